"""Variational inference on the anchored network, from the linear minimum mean square error estimator."""

from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from bayeslista.anchored_network import AnchoredWeights, propagate_anchored
from bayeslista.calibration import Calibration, calibrated_spike_slab, fit_calibration, output_gain
from bayeslista.estimators._base import in_blocks, root_mean_square
from bayeslista.estimators._learners import Numbers, Output, Pass, Units, network_slab, powers_of_two
from bayeslista.inference import streaming, variational
from bayeslista.linear_start import Trial, linear_mmse_trials, pace_and_shrinkage
from bayeslista.network import Gaussian
from bayeslista.proximal import estimate_design_matrix_and_noise

_PATIENCE = 10
_BATCHES, _LARGEST_BATCH = 16, 32
_SHRINKAGES = (0.01 * 2.0 ** np.arange(7)).tolist()
_ENOUGH_HELD_OUT, _MOST_FOLDS = 20, 5


@jax.jit
def _anchored_slab(
    weights: AnchoredWeights, design_matrix: Numbers, rows: Numbers, shrinkage: Numbers
) -> tuple[Numbers, ...]:
    """The same for the anchored network."""
    return network_slab(propagate_anchored(weights, design_matrix, rows, shrinkage).entering, shrinkage[-1])


@jax.jit
def _anchored_moments(
    weights: AnchoredWeights, design_matrix: Numbers, rows: Numbers, shrinkage: Numbers
) -> tuple[Numbers, ...]:
    """Mean and variance before the last threshold, and the mean after it."""
    entering, output = propagate_anchored(weights, design_matrix, rows, shrinkage)
    return (*entering, output.mean)


@dataclass
class VariationalLearner:
    """Variational inference on the anchored network from the linear minimum mean square error estimator."""

    units: Units
    given_matrix: Numbers | None  # in the units of the data
    n_layers: int
    start_shrinkage: float | None
    validation_fraction: float
    scaled_matrix: Numbers = field(init=False)
    parameters: variational.Parameters = field(init=False)
    calibration: Calibration = field(init=False)
    gain: float = field(init=False)
    noise_var: float = field(init=False)

    @classmethod
    def start(
        cls,
        design_matrix: Numbers | None,
        Y: Numbers,
        B: Numbers,
        n_layers: int,
        shrinkage: float | None,
        validation_fraction: float,
    ) -> Self:
        """Nothing learned yet; without a threshold, one per layer is learned, and without a matrix that, too."""
        units = Units(root_mean_square(Y), root_mean_square(B))
        start_shrinkage = None if shrinkage is None else shrinkage / units.code
        return cls(units, design_matrix, n_layers, start_shrinkage, validation_fraction)

    def learn(self, Y: Numbers, B: Numbers, random: np.random.Generator, max_iter: int, tol: float) -> Iterator[Pass]:
        """Ascend in mini-batches, keep the pass that held-out pairs like best, and calibrate on them.

        Where those are few, more networks are trained, each with others held out, to calibrate this one by them all.
        """
        order = random.permutation(len(B))
        n_held_out, n_folds = _held_out_and_folds(len(B), self.validation_fraction)
        networks = [self, *(copy(self) for _ in range(n_folds - 1))]
        judged = []
        for fold, network in enumerate(networks):
            others = slice(fold * n_held_out, (fold + 1) * n_held_out)
            chosen = np.delete(order, others)
            training = Y[chosen], B[chosen]
            held_out = (Y[order[others]], B[order[others]]) if n_held_out else training
            passes = network._ascend(training, held_out, random, max_iter, tol)
            if network is self:
                yield from passes
                fitted = output_gain(self._moments(training[0])[2], training[1])
            else:
                deque(passes, maxlen=0)
            judged.append((*network._moments(held_out[0]), held_out[1]))
        c_mean, c_var, mean, codes = map(np.concatenate, zip(*judged, strict=True))
        self.gain = min(fitted, output_gain(mean, codes))
        self.calibration = fit_calibration(c_mean, c_var, self.gain * mean, codes)

    def _ascend(
        self,
        training: tuple[Numbers, Numbers],
        held_out: tuple[Numbers, Numbers],
        random: np.random.Generator,
        max_iter: int,
        tol: float,
    ) -> Iterator[Pass]:
        """Learn from some pairs, and keep the pass that others like best."""
        dtype, n_pairs = training[1].dtype, len(training[1])
        noise_var = None
        if self.given_matrix is not None:
            self.scaled_matrix = self.given_matrix * dtype.type(self.units.code / self.units.observation)
        else:
            self.scaled_matrix, noise_var = estimate_design_matrix_and_noise(*training)
        encoder, trials = linear_mmse_trials(self.scaled_matrix, *training, noise_var)
        if self.given_matrix is None:
            # All training pairs have helped to estimate it: none can judge by it.
            trials = [Trial(encoder, *held_out)]
        shrinkages = _SHRINKAGES if self.start_shrinkage is None else [self.start_shrinkage]
        pace, threshold = pace_and_shrinkage(self.scaled_matrix, trials, self.n_layers, shrinkages)
        state, problem = variational.init(
            self.scaled_matrix,
            (pace * encoder).astype(dtype),
            np.full(self.n_layers, threshold, dtype),
            training,
            held_out,
            learn_shrinkage=self.start_shrinkage is None,
        )
        size = int(np.clip(n_pairs // _BATCHES, 1, _LARGEST_BATCH))
        n_batches = -(-n_pairs // size)
        included = (np.arange(n_batches * size) < n_pairs).reshape(n_batches, size).astype(dtype)
        best = [float(state.best_error)]
        for n_pass in range(max_iter):
            rows = np.resize(random.permutation(n_pairs), (n_batches, size))
            rates = variational.schedule(n_pass, n_batches, max_iter).astype(dtype)
            state, info = variational.step(state, problem, rows, included, rates)
            state, judgement = variational.judge(state, problem)
            best.append(float(state.best_error))
            yield self._row(state, info, judgement, n_pairs, n_batches)
            stale = len(best) > _PATIENCE and best[-1] >= (1 - tol) * best[-1 - _PATIENCE]
            if tol > 0 and stale:
                break
        self.parameters = jax.tree.map(np.asarray, state.best)
        self.noise_var = float(state.noise_var)

    def output(self, Y: Numbers, include_noise: bool) -> Output:
        """The calibrated spike and slab, or the network's own."""
        if include_noise:
            c_mean, c_var, mean = self._moments(Y)
            parts = calibrated_spike_slab(self.calibration, c_mean, c_var, self.gain * mean)
            return Output(*(part.astype(Y.dtype) for part in parts))
        belief, shrinkage = self._belief(), self.shrinkage
        return Output(*in_blocks(lambda rows: _anchored_slab(belief, self.scaled_matrix, rows, shrinkage), Y))

    def matrices(self) -> tuple[Gaussian, Gaussian]:
        """Means and variances of W and S; those of S follow from W and R."""
        encoder, residual = self._belief()
        mean: Numbers = np.eye(len(residual.mean), dtype=residual.mean.dtype) + residual.mean
        mean = mean - encoder.mean @ self.scaled_matrix
        return encoder, Gaussian(mean, residual.var + encoder.var @ self.scaled_matrix**2)

    @property
    def design_matrix(self) -> Numbers:
        """The design matrix given or estimated, in the units of the data."""
        if self.given_matrix is not None:
            return self.given_matrix
        return self.scaled_matrix * self.scaled_matrix.dtype.type(self.units.observation / self.units.code)

    @property
    def shrinkage(self) -> Numbers:
        """The threshold of each layer."""
        return np.exp(self.parameters.log_shrinkage)

    def filter_once(self, Y: Numbers, B: Numbers) -> Pass:
        """Take pairs into the belief in the order given; thresholds, noise and calibration stay."""
        noise_var = jnp.asarray(self.noise_var, B.dtype)
        given, shrinkage = jnp.asarray(self.scaled_matrix), jnp.asarray(self.shrinkage)
        belief, infos = self._belief(), []
        for part in powers_of_two(len(B)):
            pairs = jnp.asarray(Y[part]), jnp.asarray(B[part])
            belief, info = streaming.filter_pairs(belief, given, *pairs, shrinkage, noise_var)
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
            "training_nmse": float(info.relative_error) / max(int(info.n_codes), 1),
            "encoder_var": float(np.mean(encoder_var)),
            "residual_var": float(np.mean(residual_var)),
            "noise_std": float(np.sqrt(self.noise_var)) * self.units.code,
            "shrinkage": self.shrinkage * self.units.code,
        }
        counts = {"clipped": int(info.clipped), "rejected": int(info.rejected)}
        return Pass(values, counts, {"rejected": len(B) * (encoder.size + residual.size)})

    def _row(
        self,
        state: variational.State,
        info: variational.Info,
        judgement: variational.Judgement,
        n_pairs: int,
        n_batches: int,
    ) -> Pass:
        learned = jax.tree.map(np.asarray, state.parameters)
        values: dict[str, float | np.ndarray] = {
            "n_pairs": n_pairs,
            "objective": float(info.objective),
            "training_error": float(info.error) * self.units.code**2,
            "held_out_error": float(judgement.error) * self.units.code**2,
            "training_nmse": float(info.nmse),
            "held_out_nmse": float(judgement.nmse),
            "encoder_var": float(np.mean(np.exp(learned.encoder_log_var))),
            "residual_var": float(np.mean(np.exp(learned.residual_log_var))),
            "noise_std": float(np.sqrt(state.noise_var)) * self.units.code,
            "shrinkage": np.exp(learned.log_shrinkage) * self.units.code,
        }
        counts = {"skipped": int(info.skipped), "restored": int(judgement.restored)}
        return Pass(values, counts, {"skipped": n_batches})

    def _moments(self, Y: Numbers) -> Any:
        """Mean and variance before the last threshold, and the mean after it."""
        belief, shrinkage = self._belief(), self.shrinkage
        return in_blocks(lambda rows: _anchored_moments(belief, self.scaled_matrix, rows, shrinkage), Y)

    def _belief(self) -> AnchoredWeights:
        learned = self.parameters
        encoder_var: Numbers = np.exp(learned.encoder_log_var)
        residual_var: Numbers = np.exp(learned.residual_log_var)
        return AnchoredWeights(Gaussian(learned.encoder, encoder_var), Gaussian(learned.residual, residual_var))


def _held_out_and_folds(n_pairs: int, fraction: float) -> tuple[int, int]:
    """How many pairs to hold out, one at least if any, and in how many networks, to have enough to calibrate on."""
    if fraction == 0 or n_pairs == 1:
        return 0, 1
    n_held_out = max(int(fraction * n_pairs), 1)
    return n_held_out, min(-(-_ENOUGH_HELD_OUT // n_held_out), n_pairs // n_held_out, _MOST_FOLDS)
