"""The paper's inference: assumed density filtering, with expectation propagation for the priors."""

from dataclasses import dataclass
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from bayeslista._blocks import in_blocks, root_mean_square
from bayeslista._compilation import quickly_compiled
from bayeslista.estimators._checkpoints import Memory
from bayeslista.estimators._learners import Numbers, Output, Pass, Passes, Units, network_slab, powers_of_two
from bayeslista.inference import adf
from bayeslista.inference.adf import Pair
from bayeslista.network import EvidenceForm, Gaussian, Weights, propagate
from bayeslista.posterior import Belief, MatrixPrior, initial_belief
from bayeslista.proximal import ista_weights

_PRINTED_VARIANCE = 6.0 / 5.0
_PAPER_SHRINKAGE = 0.1
_PATIENCE = 5


@partial(quickly_compiled, older_loops=False)
def _free_slab(weights: Weights, rows: Numbers, shrinkage: Numbers) -> tuple[Numbers, ...]:
    """The spike and slab that the last threshold of the free network makes."""
    return network_slab(propagate(weights, rows, shrinkage), shrinkage[-1])


def _is_stale(errors: list[float], tol: float) -> bool:
    """Whether the last passes have not lowered the error any more."""
    recent, earlier = errors[-_PATIENCE:], errors[:-_PATIENCE]
    return tol > 0 and bool(earlier) and min(recent) >= (1 - tol) * min(earlier)


def _printed_prior_diverges(Y: Numbers, active: Numbers, n_layers: int, n_components: int) -> bool:
    """Whether the spread that the printed prior gives the output is beyond all digits that codes have.

    It begins at 1.2 ‖y‖² and grows by a factor of 1.2 D with every further layer.
    """
    power = np.log(Y.shape[1]) + 2 * np.log(root_mean_square(Y))
    spread = np.log(_PRINTED_VARIANCE) + power + (n_layers - 1) * np.log(_PRINTED_VARIANCE * n_components)
    return bool(spread > 2 * np.log(root_mean_square(active)) - np.log(np.finfo(active.dtype).eps))


@dataclass
class FilteringLearner:
    """Assumed density filtering, with expectation propagation for the priors: the paper's inference."""

    units: Units
    design_matrix: Numbers
    shrinkage: Numbers
    belief: Belief
    evidence: EvidenceForm
    learn_noise: bool

    @classmethod
    def start(
        cls,
        design_matrix: Numbers,
        Y: Numbers,
        B: Numbers,
        n_layers: int,
        shrinkage: float | None,
        prior: str,
        evidence: EvidenceForm,
        learn_noise: bool,
    ) -> Self:
        """The belief before any data, at ISTA's weights; without a threshold, the paper's."""
        active = B[B != 0]
        scaled = prior == "scaled" or _printed_prior_diverges(Y, active, n_layers, B.shape[1])
        units = Units(root_mean_square(Y), root_mean_square(active)) if scaled else Units(1.0, 1.0)
        start = ista_weights(design_matrix * B.dtype.type(units.code / units.observation))
        encoder_var = recurrent_var = _PRINTED_VARIANCE
        if scaled:
            share = (active.size or B.size) / B.size
            encoder_var = share / (Y.shape[1] if Y.any() else 1) / n_layers
            recurrent_var = 1 / (n_layers * B.shape[1])
        means = jnp.asarray(start.encoder), jnp.asarray(start.recurrent)
        encoder_prior, recurrent_prior = (
            MatrixPrior(mean if scaled else jnp.zeros_like(mean), jnp.asarray(var, B.dtype))
            for mean, var in zip(means, (encoder_var, recurrent_var), strict=True)
        )
        belief = initial_belief(*means, encoder_prior, recurrent_prior)
        threshold = _PAPER_SHRINKAGE if shrinkage is None else shrinkage / units.code
        return cls(
            units,
            design_matrix,
            np.full(n_layers, threshold, B.dtype),
            jax.tree.map(np.asarray, belief),
            evidence,
            learn_noise,
        )

    def learn(
        self,
        Y: Numbers,
        B: Numbers,
        random: np.random.Generator,
        max_iter: int,
        tol: float,
        memory: Memory | None = None,
    ) -> Passes:
        """Filter the pairs in random order and refine the priors, pass after pass."""
        memory = memory or Memory()
        pairs = self._pairs(Y, B)
        self.belief = memory.recall(self.belief, random)
        while len(memory.rows) < max_iter and not _is_stale([row.nmse for row in memory.rows], tol):
            order = random.permutation(len(B))
            belief, info = self._filter(Pair(pairs.observation[order], pairs.code[order]))
            belief, refinement = adf.refine_priors(belief)
            self.belief = jax.tree.map(np.asarray, belief)
            row = self._row(jax.tree.map(jnp.add, info, refinement), len(B))
            memory.after(row, self.belief, random)
            if (yield row):
                return

    def filter_once(self, Y: Numbers, B: Numbers) -> Pass:
        """Take pairs into the belief in the order given."""
        infos = []
        for part in powers_of_two(len(B)):
            belief, info = self._filter(self._pairs(Y[part], B[part]))
            self.belief = jax.tree.map(np.asarray, belief)
            infos.append(info)
        return self._row(jax.tree.map(lambda *parts: sum(parts), *infos), len(B))

    def output(self, Y: Numbers, include_noise: bool) -> Output:
        """The network's own spike and slab, widened by the noise if that is included."""
        prob_active, mean, var = in_blocks(lambda rows: _free_slab(self.belief.weights, rows, self.shrinkage), Y)
        return Output(prob_active, mean, var + var.dtype.type(self.noise_var if include_noise else 0.0))

    def matrices(self) -> tuple[Gaussian, Gaussian]:
        """Means and variances of W and S."""
        return self.belief.weights

    @property
    def noise_var(self) -> float:
        """Mean variance under the noise's Gamma."""
        shape, rate = self.belief.noise_precision
        return float(rate / (shape - 1))

    def _pairs(self, Y: Numbers, B: Numbers) -> Pair:
        return Pair(jnp.asarray(Y), jnp.asarray(B))

    def _filter(self, pairs: Pair) -> tuple[Belief, adf.Info]:
        return adf.filter_pairs(self.belief, pairs, self.shrinkage, form=self.evidence, learn_noise=self.learn_noise)

    def _row(self, info: adf.Info, n_pairs: int) -> Pass:
        encoder, recurrent = self.belief.weights
        n_weights, n_components = encoder.mean.size + recurrent.mean.size, len(recurrent.mean)
        attempts = {
            "clipped": n_pairs * n_weights,
            "rejected": n_pairs * n_weights,
            "noise_rejected": n_pairs * n_components,
            "saturated": n_pairs,
        }
        counts = {name: int(getattr(info, name)) for name in (*attempts, "prior_rejected", "prior_damped")}
        values: dict[str, float | np.ndarray] = {
            "n_pairs": n_pairs,
            "objective": float(info.log_evidence) / n_pairs,
            "training_nmse": float(info.relative_error) / max(int(info.n_codes), 1),
            "noise_std": np.sqrt(self.noise_var) * self.units.code,
            "encoder_var": float(np.mean(encoder.var)),
            "recurrent_var": float(np.mean(recurrent.var)),
        }
        return Pass(values, counts, attempts)
