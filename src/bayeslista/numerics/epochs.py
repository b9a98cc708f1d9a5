"""Types that all learners share: units, outputs, epochs and their log.

A learner works on standardised pairs, observations divided by ``units.observation`` and codes by ``units.code``; the
estimator maps its results back.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float


class Units(NamedTuple):
    """Scales by which observations and codes are divided before learning."""

    observation: float
    code: float


class Output(NamedTuple):
    """A spike and slab for every coefficient, in standardised units."""

    prob_active: Float[np.ndarray, "n D"]
    slab_mean: Float[np.ndarray, "n D"]
    slab_var: Float[np.ndarray, "n D"]


class Epoch(NamedTuple):
    """Outcome of an epoch: values for the history, counts of numerical trouble, and the attempts that these are of."""

    values: dict[str, float | np.ndarray]
    counts: dict[str, int]
    attempts: dict[str, int]

    @property
    def nmse(self) -> float:
        """NMSE of the held-out pairs, or else of the training pairs."""
        return float(self.values.get("held_out_nmse", self.values["training_nmse"]))

    def and_then(self, later: "Epoch") -> "Epoch":
        """Both as one epoch: the later values; pairs, counts and attempts summed."""
        n_pairs = self.values["n_pairs"] + later.values["n_pairs"]
        counts = {name: self.counts[name] + n for name, n in later.counts.items()}
        attempts = {name: self.attempts[name] + n for name, n in later.attempts.items()}
        return Epoch({**later.values, "n_pairs": n_pairs}, counts, attempts)


_State = TypeVar("_State")


class EpochLog:
    """The epochs of a fit, and a callback after each of them that may stop the fit.

    A checkpoint is a log in a file: its `restore` returns the state after the last epoch of the file.
    """

    def __init__(self, callback: Callable[[Any], bool] | None = None) -> None:
        self.rows: list[Any] = []
        self.callback = callback

    def restore(self, state: _State, random: np.random.Generator) -> _State:
        """The state to begin with; a checkpoint replaces it and moves the random generator."""
        return state

    def append(self, row: Any, state: Any, random: np.random.Generator) -> bool:
        """Record an epoch and the state after it; return whether the callback asks to stop."""
        self.rows.append(row)
        return self.callback is not None and bool(self.callback(row))


def powers_of_two(n: int) -> Iterator[slice]:
    """Cut ``n`` rows into runs of 1,024, 512, … 1, so that streams compile for few sizes."""
    start, size = 0, 1024
    while start < n:
        if start + size <= n:
            yield slice(start, start + size)
            start += size
        else:
            size //= 2
