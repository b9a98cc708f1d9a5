"""How BayesLISTA learns: one class an inference, both with the same few methods.

`learn` makes passes and tells of each, `filter_once` takes a stream in, `output` predicts, `matrices` shows what was
learned. A learner works in units of its own, chosen from the first pairs it sees, and speaks standardised numbers:
observations divided by ``units.observation``, codes by ``units.code``. The estimator maps them back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from bayeslista.anchored_network import AnchoredWeights, propagate_anchored
from bayeslista.calibration import Calibration, calibrated_spike_slab, fit_calibration
from bayeslista.estimators._base import in_blocks, root_mean_square
from bayeslista.inference import adf, variational
from bayeslista.inference.adf import Pair
from bayeslista.linear_start import linear_mmse_encoder
from bayeslista.moments import slab_moments, soft_threshold_moments
from bayeslista.network import EvidenceForm, Gaussian, Weights, propagate
from bayeslista.posterior import Belief, MatrixPrior, initial_belief
from bayeslista.proximal import ista_weights

Numbers = Any  # NumPy arrays, which the mathematics takes as it takes JAX's

_PRINTED_VARIANCE = 6.0 / 5.0
_PAPER_SHRINKAGE = 0.1
_ADF_PATIENCE = 5
_VARIATIONAL_PATIENCE = 10
_START_SHRINKAGES = 0.01 * 2.0 ** np.arange(7)
_BATCHES, _LARGEST_BATCH = 16, 32


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
        """The running NMSE."""
        return float(self.values["nmse"])

    def and_then(self, later: "Pass") -> "Pass":
        """Both as one: the later values, pairs and counts added up."""
        n_pairs = self.values["n_pairs"] + later.values["n_pairs"]
        counts = {name: self.counts[name] + n for name, n in later.counts.items()}
        attempts = {name: self.attempts[name] + n for name, n in later.attempts.items()}
        return Pass({**later.values, "n_pairs": n_pairs}, counts, attempts)


def powers_of_two(n: int) -> Iterator[slice]:
    """Cut ``n`` rows into runs of 1,024, 512, … 1, so that streams of any chunks compile for few sizes."""
    start, size = 0, 1024
    while start < n:
        if start + size <= n:
            yield slice(start, start + size)
            start += size
        else:
            size //= 2


@jax.jit
def _free_slab(weights: Weights, rows: Numbers, shrinkage: Numbers) -> tuple[Numbers, ...]:
    """The spike and slab that the last threshold of the free network makes."""
    return _slab(propagate(weights, rows, shrinkage), shrinkage[-1])


@jax.jit
def _anchored_slab(
    weights: AnchoredWeights, design_matrix: Numbers, rows: Numbers, shrinkage: Numbers
) -> tuple[Numbers, ...]:
    """The same for the anchored network."""
    return _slab(propagate_anchored(weights, design_matrix, rows, shrinkage), shrinkage[-1])


@jax.jit
def _anchored_moments(
    weights: AnchoredWeights, design_matrix: Numbers, rows: Numbers, shrinkage: Numbers
) -> tuple[Numbers, ...]:
    """Mean and variance before the last threshold, and after it."""
    mean, var = propagate_anchored(weights, design_matrix, rows, shrinkage)
    output = soft_threshold_moments(mean, var, shrinkage[-1])
    return mean, var, output.mean, output.var


def _slab(entering: Gaussian, threshold: Numbers) -> tuple[Numbers, ...]:
    mean, var = entering
    slab = slab_moments(mean, var, threshold)
    limits = jnp.finfo(mean.dtype)  # neither state is ever quite ruled out, so that both have a finite score
    prob_active = jnp.clip(soft_threshold_moments(mean, var, threshold).prob_active, limits.tiny, 1 - limits.eps)
    return prob_active, slab.mean, slab.var


@dataclass
class FilteringLearner:
    """Assumed density filtering, with expectation propagation for the priors: the paper's inference."""

    units: Units
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
        scaled = prior == "scaled"
        units = Units(root_mean_square(Y), root_mean_square(active)) if scaled else Units(1.0, 1.0)
        start = ista_weights(design_matrix * (units.code / units.observation))
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
            np.full(n_layers, threshold, B.dtype),
            jax.tree.map(np.asarray, belief),
            evidence,
            learn_noise,
        )

    def learn(self, Y: Numbers, B: Numbers, random: np.random.Generator, max_iter: int, tol: float) -> Iterator[Pass]:
        """Filter the pairs in random order and refine the priors, pass after pass."""
        pairs = self._pairs(Y, B)
        errors: list[float] = []
        for _ in range(max_iter):
            order = random.permutation(len(B))
            belief, info = self._filter(Pair(pairs.observation[order], pairs.code[order]))
            belief, refinement = adf.refine_priors(belief)
            self.belief = jax.tree.map(np.asarray, belief)
            row = self._row(jax.tree.map(jnp.add, info, refinement), len(B))
            yield row
            errors.append(row.nmse)
            recent, earlier = errors[-_ADF_PATIENCE:], errors[:-_ADF_PATIENCE]
            if tol > 0 and earlier and min(recent) >= (1 - tol) * min(earlier):
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
            "nmse": float(info.relative_error) / max(int(info.n_codes), 1),
            "noise_std": np.sqrt(self.noise_var) * self.units.code,
            "encoder_var": float(np.mean(encoder.var)),
            "recurrent_var": float(np.mean(recurrent.var)),
        }
        return Pass(values, counts, attempts)


@dataclass
class VariationalLearner:
    """Variational inference on the anchored network from the linear minimum mean square error estimator."""

    units: Units
    design_matrix: Numbers
    n_layers: int
    start_shrinkage: float | None
    validation_fraction: float
    parameters: variational.Parameters = field(init=False)
    calibration: Calibration = field(init=False)
    noise_var: float = field(init=False)

    @classmethod
    def start(
        cls,
        design_matrix: Numbers,
        Y: Numbers,
        B: Numbers,
        n_layers: int,
        shrinkage: float | None,
        validation_fraction: float,
    ) -> Self:
        """Nothing learned yet; without a threshold, one per layer is learned."""
        units = Units(root_mean_square(Y), root_mean_square(B))
        scaled = design_matrix * B.dtype.type(units.code / units.observation)
        start_shrinkage = None if shrinkage is None else shrinkage / units.code
        return cls(units, scaled, n_layers, start_shrinkage, validation_fraction)

    def learn(self, Y: Numbers, B: Numbers, random: np.random.Generator, max_iter: int, tol: float) -> Iterator[Pass]:
        """Ascend in mini-batches; keep the pass that held-out pairs like best; calibrate on them."""
        order = random.permutation(len(B))
        n_held_out = int(self.validation_fraction * len(B))
        training = Y[order[n_held_out:]], B[order[n_held_out:]]
        held_out = (Y[order[:n_held_out]], B[order[:n_held_out]]) if n_held_out else training
        encoder = linear_mmse_encoder(self.design_matrix, *training).astype(B.dtype)
        shrinkage = self._first_shrinkage(encoder, *training)
        learn_shrinkage = self.start_shrinkage is None
        state, problem = variational.init(self.design_matrix, encoder, shrinkage, training, held_out, learn_shrinkage)
        n_pairs = len(training[0])
        size = int(np.clip(n_pairs // _BATCHES, 1, _LARGEST_BATCH))
        n_batches = -(-n_pairs // size)
        included = (np.arange(n_batches * size) < n_pairs).reshape(n_batches, size).astype(B.dtype)
        best = [float(state.best_error)]
        for n_pass in range(max_iter):
            rows = np.resize(random.permutation(n_pairs), (n_batches, size))
            rates = variational.schedule(n_pass, n_batches, max_iter).astype(B.dtype)
            state, info = variational.step(state, problem, rows, included, rates)
            best.append(float(state.best_error))
            yield self._row(state, info, n_pairs, n_batches)
            stale = len(best) > _VARIATIONAL_PATIENCE and best[-1] >= (1 - tol) * best[-1 - _VARIATIONAL_PATIENCE]
            if tol > 0 and stale:
                break
        self.parameters = jax.tree.map(np.asarray, state.best)
        self.noise_var = float(state.noise_var)
        self._calibrate(*held_out)

    def output(self, Y: Numbers, include_noise: bool) -> Output:
        """The calibrated spike and slab, or the network's own."""
        if include_noise:
            parts = calibrated_spike_slab(self.calibration, *self._moments(Y))
            return Output(*(part.astype(Y.dtype) for part in parts))
        belief, shrinkage = self._belief(), self.shrinkage
        return Output(*in_blocks(lambda rows: _anchored_slab(belief, self.design_matrix, rows, shrinkage), Y))

    def matrices(self) -> tuple[Gaussian, Gaussian]:
        """Means and variances of W and S; those of S follow from W and R."""
        encoder, residual = self._belief()
        mean: Numbers = np.eye(len(residual.mean), dtype=residual.mean.dtype) + residual.mean
        mean = mean - encoder.mean @ self.design_matrix
        return encoder, Gaussian(mean, residual.var + encoder.var @ self.design_matrix**2)

    @property
    def shrinkage(self) -> Numbers:
        """The threshold of each layer."""
        return np.exp(self.parameters.log_shrinkage)

    def filter_once(self, Y: Numbers, B: Numbers) -> Pass:
        """Take pairs into the belief in the order given; thresholds, noise and calibration stay."""
        noise_var = jnp.asarray(self.noise_var, B.dtype)
        given, shrinkage = jnp.asarray(self.design_matrix), jnp.asarray(self.shrinkage)
        belief, infos = self._belief(), []
        for part in powers_of_two(len(B)):
            pairs = jnp.asarray(Y[part]), jnp.asarray(B[part])
            belief, info = variational.filter_pairs(belief, given, *pairs, shrinkage, noise_var)
            infos.append(info)
        info = jax.tree.map(lambda *parts: sum(parts), *infos)
        (encoder, encoder_var), (residual, residual_var) = jax.tree.map(np.asarray, belief)
        self.parameters = self.parameters._replace(
            encoder=encoder,
            residual=residual,
            encoder_log_var=np.log(encoder_var),
            residual_log_var=np.log(residual_var),
        )
        values: dict[str, float | np.ndarray] = {
            "n_pairs": len(B),
            "nmse": float(info.relative_error) / max(int(info.n_codes), 1),
            "encoder_var": float(np.mean(encoder_var)),
            "residual_var": float(np.mean(residual_var)),
            "noise_std": float(np.sqrt(self.noise_var)) * self.units.code,
            "shrinkage": self.shrinkage * self.units.code,
        }
        attempts = {"rejected": len(B) * (encoder.size + residual.size)}
        return Pass(values, {"rejected": int(info.rejected)}, attempts)

    def _first_shrinkage(self, encoder: Numbers, Y: Numbers, B: Numbers) -> Numbers:
        """The threshold given, or the one of a grid with which the start does best."""
        if self.start_shrinkage is not None:
            return np.full(self.n_layers, self.start_shrinkage, B.dtype)
        none: Numbers = np.zeros((B.shape[1], B.shape[1]), B.dtype)
        certain = AnchoredWeights(Gaussian(encoder, 0 * encoder), Gaussian(none, none))

        def error(threshold: float) -> float:
            shrinkage = np.full(self.n_layers, threshold, B.dtype)
            moments = in_blocks(lambda rows: _anchored_moments(certain, self.design_matrix, rows, shrinkage), Y)
            return float(np.mean((moments[2] - B) ** 2))

        errors = [error(threshold) for threshold in _START_SHRINKAGES]
        return np.full(self.n_layers, _START_SHRINKAGES[int(np.argmin(errors))], B.dtype)

    def _row(self, state: variational.State, info: variational.Info, n_pairs: int, n_batches: int) -> Pass:
        learned = jax.tree.map(np.asarray, state.parameters)
        values: dict[str, float | np.ndarray] = {
            "n_pairs": n_pairs,
            "objective": float(info.objective),
            "training_error": float(info.training_error) * self.units.code**2,
            "held_out_error": float(info.held_out_error) * self.units.code**2,
            "nmse": float(info.nmse),
            "encoder_var": float(np.mean(np.exp(learned.encoder_log_var))),
            "residual_var": float(np.mean(np.exp(learned.residual_log_var))),
            "noise_std": float(np.sqrt(state.noise_var)) * self.units.code,
            "shrinkage": np.exp(learned.log_shrinkage) * self.units.code,
        }
        counts = {"skipped": int(info.skipped), "restored": int(info.restored)}
        return Pass(values, counts, {"skipped": n_batches})

    def _calibrate(self, Y: Numbers, B: Numbers) -> None:
        c_mean, c_var, mean, var = self._moments(Y)
        self.calibration = fit_calibration(c_mean, c_var, mean, var, B)

    def _moments(self, Y: Numbers) -> Any:
        """Mean and variance before the last threshold, and after it."""
        belief, shrinkage = self._belief(), self.shrinkage
        return in_blocks(lambda rows: _anchored_moments(belief, self.design_matrix, rows, shrinkage), Y)

    def _belief(self) -> AnchoredWeights:
        learned = self.parameters
        encoder_var: Numbers = np.exp(learned.encoder_log_var)
        residual_var: Numbers = np.exp(learned.residual_log_var)
        return AnchoredWeights(Gaussian(learned.encoder, encoder_var), Gaussian(learned.residual, residual_var))
