"""What both ways of learning share: units, what a pass tells, and cutting a stream.

A learner works in units of its own, chosen from the first pairs it sees, and speaks standardised numbers: observations
divided by ``units.observation``, codes by ``units.code``. The estimator maps them back.
"""

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from bayeslista.estimators._checkpoints import Memory
from bayeslista.moments import slab_moments, soft_threshold_moments
from bayeslista.network import Gaussian

Numbers = Any  # NumPy arrays, which the mathematics takes as it takes JAX's


class Units(NamedTuple):
    """What observations and codes are divided by before learning."""

    observation: float
    code: float


class Output(NamedTuple):
    """A spike and slab for every coefficient, in standardised units."""

    prob_active: Numbers
    slab_mean: Numbers
    slab_var: Numbers


class Pass(NamedTuple):
    """What a pass did: values for the history, and counts of trouble with how often there could have been any."""

    values: dict[str, float | np.ndarray]
    counts: dict[str, int]
    attempts: dict[str, int]

    @property
    def nmse(self) -> float:
        """NMSE of the held-out pairs, or else of the training pairs."""
        return float(self.values.get("held_out_nmse", self.values["training_nmse"]))

    def and_then(self, later: "Pass") -> "Pass":
        """Both as one: the later values, pairs and counts added up."""
        n_pairs = self.values["n_pairs"] + later.values["n_pairs"]
        counts = {name: self.counts[name] + n for name, n in later.counts.items()}
        attempts = {name: self.attempts[name] + n for name, n in later.attempts.items()}
        return Pass({**later.values, "n_pairs": n_pairs}, counts, attempts)


Passes = Generator[Pass, bool | None, None]  # told, after each, whether to stop


class Learner(Protocol):
    """One inference: what the estimator asks of it."""

    units: Units

    def learn(
        self,
        Y: Numbers,
        B: Numbers,
        random: np.random.Generator,
        max_iter: int,
        tol: float,
        memory: Memory | None = None,
    ) -> Passes:
        """Make passes over the pairs, those that are not in memory, and tell of each."""

    def filter_once(self, Y: Numbers, B: Numbers) -> Pass:
        """Take a stream of pairs in, each once."""

    def output(self, Y: Numbers, include_noise: bool) -> Output:
        """Predict."""

    def matrices(self) -> tuple[Gaussian, Gaussian]:
        """Means and variances of W and S."""

    @property
    def design_matrix(self) -> Numbers:
        """The design matrix in use, in the units of the data."""

    @property
    def shrinkage(self) -> Numbers:
        """The threshold of each layer."""

    @property
    def noise_var(self) -> float:
        """The variance of the noise."""


def powers_of_two(n: int) -> Iterator[slice]:
    """Cut ``n`` rows into runs of 1,024, 512, … 1, so that streams of any chunks compile for few sizes."""
    start, size = 0, 1024
    while start < n:
        if start + size <= n:
            yield slice(start, start + size)
            start += size
        else:
            size //= 2


def network_slab(entering: Gaussian, threshold: Numbers) -> tuple[Numbers, ...]:
    """The spike and slab that the last threshold makes of what enters it."""
    mean, var = entering
    slab = slab_moments(mean, var, threshold)
    limits = jnp.finfo(mean.dtype)  # neither state is ever quite ruled out, so that both have a finite score
    prob_active = jnp.clip(soft_threshold_moments(mean, var, threshold).prob_active, limits.tiny, 1 - limits.eps)
    return prob_active, slab.mean, slab.var
