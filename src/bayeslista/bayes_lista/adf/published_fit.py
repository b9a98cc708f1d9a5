"""The learner of BayesLISTA as published: assumed density filtering (ADF), priors refined by EP."""

from dataclasses import dataclass
from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayeslista.bayes_lista.adf import filtering as adf
from bayeslista.bayes_lista.adf.evidence import EvidenceForm
from bayeslista.bayes_lista.adf.filtering import Pair
from bayeslista.bayes_lista.adf.layers import FreeWeights, propagate
from bayeslista.bayes_lista.adf.posterior import AdfPosterior, MatrixPrior, initial_posterior
from bayeslista.bayes_lista.propagation import network_slab
from bayeslista.numerics.batching import in_blocks, root_mean_square
from bayeslista.numerics.compilation import fast_compiled
from bayeslista.numerics.epochs import Epoch, EpochLog, Output, Units, powers_of_two
from bayeslista.numerics.linear import ista_weights
from bayeslista.numerics.precision import AnyArray
from bayeslista.numerics.soft_threshold_fast import Gaussian

_PRINTED_VARIANCE = 6.0 / 5.0  # b/(a − 1) of the paper's Gam(6, 6)
_PAPER_SHRINKAGE = 0.1
_PATIENCE = 5  # epochs


@partial(fast_compiled, older_loops=False)
def _free_slab(weights: FreeWeights, rows: Float[Array, "n K"], shrinkage: Float[AnyArray, " L"]) -> tuple[Array, ...]:
    """The spike and slab of the output."""
    return network_slab(propagate(weights, rows, shrinkage), shrinkage[-1])


def _is_stale(errors: list[float], tol: float) -> bool:
    """Whether the last epochs have not lowered the error by more than `tol`, relatively."""
    recent, earlier = errors[-_PATIENCE:], errors[:-_PATIENCE]
    return tol > 0 and bool(earlier) and min(recent) >= (1 - tol) * min(earlier)


def _printed_prior_diverges(
    Y: Float[np.ndarray, "n K"], active: Float[np.ndarray, " m"], n_layers: int, n_components: int
) -> bool:
    """Whether the output variance of the printed prior, 1.2 ‖y‖² (1.2 D)^(L−1), leaves no digit of the codes."""
    power = np.log(Y.shape[1]) + 2 * np.log(root_mean_square(Y))
    output_var = np.log(_PRINTED_VARIANCE) + power + (n_layers - 1) * np.log(_PRINTED_VARIANCE * n_components)
    return bool(output_var > 2 * np.log(root_mean_square(active)) - np.log(np.finfo(active.dtype).eps))


@dataclass
class FilteringLearner:
    """The paper's inference: ADF over pairs, EP for the priors after every epoch."""

    units: Units
    design_matrix: Float[np.ndarray, "K D"]
    shrinkage: Float[np.ndarray, " L"]
    posterior: AdfPosterior
    evidence: EvidenceForm
    learn_noise: bool

    @classmethod
    def start(
        cls,
        design_matrix: Float[np.ndarray, "K D"],
        Y: Float[np.ndarray, "n K"],
        B: Float[np.ndarray, "n D"],
        n_layers: int,
        shrinkage: float | None,
        prior: str,
        evidence: EvidenceForm,
        learn_noise: bool,
    ) -> Self:
        """The posterior before any data, at ISTA's weights; the default threshold is the paper's."""
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
        posterior = initial_posterior(*means, encoder_prior, recurrent_prior)
        threshold = _PAPER_SHRINKAGE if shrinkage is None else shrinkage / units.code
        return cls(
            units,
            design_matrix,
            np.full(n_layers, threshold, B.dtype),
            jax.tree.map(np.asarray, posterior),
            evidence,
            learn_noise,
        )

    def learn(
        self,
        Y: Float[np.ndarray, "n K"],
        B: Float[np.ndarray, "n D"],
        random: np.random.Generator,
        max_iter: int,
        tol: float,
        log: EpochLog | None = None,
    ) -> None:
        """Filter the pairs in random order and refine the priors, epoch after epoch."""
        log = log or EpochLog()
        pairs = self._pairs(Y, B)
        self.posterior = log.restore(self.posterior, random)
        while len(log.rows) < max_iter and not _is_stale([row.nmse for row in log.rows], tol):
            order = random.permutation(len(B))
            posterior, info = self._filter(Pair(pairs.observation[order], pairs.code[order]))
            posterior, refinement = adf.refine_priors(posterior)
            self.posterior = jax.tree.map(np.asarray, posterior)
            row = self._row(jax.tree.map(jnp.add, info, refinement), len(B))
            if log.append(row, self.posterior, random):
                return

    def filter_once(self, Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"]) -> Epoch:
        """Update the posterior by pairs in the order given."""
        infos = []
        for part in powers_of_two(len(B)):
            posterior, info = self._filter(self._pairs(Y[part], B[part]))
            self.posterior = jax.tree.map(np.asarray, posterior)
            infos.append(info)
        return self._row(jax.tree.map(lambda *parts: sum(parts), *infos), len(B))

    def output(self, Y: Float[np.ndarray, "n K"], include_noise: bool) -> Output:
        """The network's spike and slab; with noise, its variance is added to the slab's."""
        prob_active, mean, var = in_blocks(lambda rows: _free_slab(self.posterior.weights, rows, self.shrinkage), Y)
        return Output(prob_active, mean, var + var.dtype.type(self.noise_var if include_noise else 0.0))

    def matrices(self) -> tuple[Gaussian, Gaussian]:
        """Means and variances of W and S."""
        return self.posterior.weights

    @property
    def noise_var(self) -> float:
        """Mean noise variance b/(a − 1)."""
        shape, rate = self.posterior.noise_precision
        return float(rate / (shape - 1))

    def _pairs(self, Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"]) -> Pair:
        return Pair(jnp.asarray(Y), jnp.asarray(B))

    def _filter(self, pairs: Pair) -> tuple[AdfPosterior, adf.AdfInfo]:
        return adf.filter_pairs(self.posterior, pairs, self.shrinkage, form=self.evidence, learn_noise=self.learn_noise)

    def _row(self, info: adf.AdfInfo, n_pairs: int) -> Epoch:
        encoder, recurrent = self.posterior.weights
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
            "log_evidence": float(info.log_evidence) / n_pairs,
            "training_nmse": float(info.relative_error) / max(int(info.n_codes), 1),
            "noise_std": np.sqrt(self.noise_var) * self.units.code,
            "encoder_var": float(np.mean(encoder.var)),
            "recurrent_var": float(np.mean(recurrent.var)),
        }
        return Epoch(values, counts, attempts)
