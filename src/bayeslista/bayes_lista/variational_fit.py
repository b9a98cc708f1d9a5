"""The learner of BayesLISTA: variational inference from the LMMSE start, output calibration, predictions."""

from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bayeslista.bayes_lista import online, variational
from bayeslista.bayes_lista.ascent import VariationalAscent, ascend_together, improved
from bayeslista.bayes_lista.early_stopping import VariationalParameters, block_size, moments, weight_posterior
from bayeslista.bayes_lista.monte_carlo import drawn_variance
from bayeslista.bayes_lista.output_calibration import Calibration, fast_spike_slab, fit_calibration, output_gain
from bayeslista.bayes_lista.propagation import (
    CoupledWeights,
    LayerMatrices,
    LayerParameters,
    RowColumn,
    in_dtype,
    layer_matrices,
    network_slab,
    propagate_layers,
)
from bayeslista.numerics.batching import in_blocks, root_mean_square
from bayeslista.numerics.compilation import fast_compiled
from bayeslista.numerics.epochs import Epoch, EpochLog, Output, Units, powers_of_two
from bayeslista.numerics.linear import estimate_design_matrix_and_noise, explains
from bayeslista.numerics.lmmse import SHRINKAGES, EncoderFold, lmmse_folds, step_size_and_shrinkage
from bayeslista.numerics.precision import FAST_VARIANCES, AnyArray
from bayeslista.numerics.soft_threshold_fast import Gaussian
from bayeslista.numerics.stream_memory import StreamMemory

_ENOUGH_HELD_OUT, _MOST_FOLDS = 20, 5
_DRAWN_SIGNALS, _DRAWS = 64, 32
_NARROWEST = 0.1  # slab variance over that of the moments, where draws have a smaller variance
_FACTORED = 1e-4  # largest departure of a log variance from the sum of a row term and a column term


class PosteriorParameters(NamedTuple):
    """The learned posterior: means, log variances entry by entry; log thresholds, momenta and step sizes."""

    encoder: Float[np.ndarray, "D K"]
    residual: Float[np.ndarray, "D D"]
    encoder_log_var: Float[np.ndarray, "D K"]
    residual_log_var: Float[np.ndarray, "D D"]
    log_shrinkage: Float[np.ndarray, " L"]
    momentum: Float[np.ndarray, " L"]
    step_size: Float[np.ndarray, " L"]

    @classmethod
    def of(cls, parameters: VariationalParameters) -> Self:
        """From the parameters of an ascent."""
        encoder, residual, p, q, r, t, *layers = map(np.asarray, parameters)
        return cls(encoder, residual, p[:, None] + q, r[:, None] + t, *layers)

    def posterior(self) -> CoupledWeights[Gaussian]:
        """Means and variances."""
        parts: Any = self.encoder, np.exp(self.encoder_log_var), self.residual, np.exp(self.residual_log_var)
        return CoupledWeights(Gaussian(*parts[:2]), Gaussian(*parts[2:]))

    def factored_posterior(self) -> CoupledWeights[Any]:
        """The same with row and column factors of the variances where they exist: online updates change that."""
        encoder = _by_row_and_column(self.encoder, self.encoder_log_var)
        residual = _by_row_and_column(self.residual, self.residual_log_var)
        return self.posterior() if encoder is None or residual is None else CoupledWeights(encoder, residual)


def _by_row_and_column(mean: Float[np.ndarray, "m n"], log_var: Float[np.ndarray, "m n"]) -> RowColumn | None:
    rows, columns = _rows_and_columns(log_var)
    departure = np.abs(log_var - rows[:, None] - columns)
    parts: Any = mean, np.exp(rows), np.exp(columns)
    return RowColumn(*parts) if departure.max() <= _FACTORED else None


def _rows_and_columns(log_var: Float[np.ndarray, "m n"]) -> tuple[Any, Any]:
    """The nearest sum of a row term and a column term."""
    columns = log_var.mean(axis=0)
    return (log_var - columns).mean(axis=1), columns


_elementwise_compiled = partial(fast_compiled, older_loops=False)


@fast_compiled
def _network_slab(
    matrices: LayerMatrices, rows: Float[Array, "n K"], layers: LayerParameters, ratio: Float[AnyArray, " D"]
) -> tuple[Array, ...]:
    """The network's own spike and slab, with a slab variance that scales the variance of the output by `ratio`."""
    prob_active, mean, var = network_slab(propagate_layers(matrices, rows, layers).entering, layers.shrinkage[-1])
    wider = var + (ratio - 1) * (var + (1 - prob_active) * mean * mean)
    return prob_active, mean, jnp.maximum(wider, _NARROWEST * var)


@_elementwise_compiled
def _calibrated_slab(
    matrices: LayerMatrices,
    rows: Float[Array, "n K"],
    layers: LayerParameters,
    calibration: Calibration,
    gain: float,
) -> tuple[Array, ...]:
    """The calibrated spike and slab."""
    entering, output = propagate_layers(matrices, rows, layers)
    return fast_spike_slab(calibration, entering.mean, entering.var, gain * output.mean)


@_elementwise_compiled
def _calibrated_moments(
    matrices: LayerMatrices,
    rows: Float[Array, "n K"],
    layers: LayerParameters,
    calibration: Calibration,
    gain: float,
    units: Units,
) -> tuple[Array, ...]:
    """Mean (the network's own) and standard deviation of the calibrated spike and slab, in the units of the data."""
    (c_mean, c_var), output = propagate_layers(matrices, rows / units.observation, layers)
    mean = gain * output.mean
    prob_active, slab_mean, var = fast_spike_slab(calibration, c_mean, c_var, in_dtype(mean, c_var.dtype))
    std = jnp.sqrt(prob_active * (var + (1 - prob_active) * slab_mean * slab_mean)).astype(mean.dtype)
    return units.code * mean, units.code * std


@dataclass(eq=False)
class VariationalLearner:
    """Variational inference for the network with coupled weights, started from the LMMSE estimator."""

    units: Units
    given_matrix: Float[np.ndarray, "K D"] | None  # in the units of the data
    n_layers: int
    start_shrinkage: float | None
    validation_fraction: float
    scaled_matrix: Float[np.ndarray, "K D"] = field(init=False)
    parameters: PosteriorParameters = field(init=False)
    calibration: Calibration = field(init=False)
    gain: float = field(init=False)
    noise_var: float = field(init=False)
    # Monte Carlo variance of the output over that of the moments, for every coefficient.
    variance_ratio: Float[np.ndarray, " D"] | float = field(init=False, default=1.0)
    memory: StreamMemory | None = field(init=False, default=None)  # of `learn_stream`, standardised
    # Arrays of `_on_device` and what they were made from; not part of the state that is copied, pickled or saved.
    _device_arrays: Any = field(init=False, default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_device_arrays"}

    @classmethod
    def start(
        cls,
        design_matrix: Float[np.ndarray, "K D"] | None,
        Y: Float[np.ndarray, "n K"],
        B: Float[np.ndarray, "n D"],
        n_layers: int,
        shrinkage: float | None,
        validation_fraction: float,
    ) -> Self:
        """Before any data; without a threshold, one per layer is learned; without a matrix, it is estimated."""
        units = Units(root_mean_square(Y), root_mean_square(B))
        start_shrinkage = None if shrinkage is None else shrinkage / units.code
        return cls(units, design_matrix, n_layers, start_shrinkage, validation_fraction)

    def learn(
        self,
        Y: Float[np.ndarray, "n K"],
        B: Float[np.ndarray, "n D"],
        random: np.random.Generator,
        max_iter: int,
        tol: float,
        log: EpochLog | None = None,
        go_on_from: "VariationalLearner | None" = None,
    ) -> None:
        """Ascend the ELBO in mini-batches, keep the epoch of least validation error, and calibrate on held-out pairs.

        Where those are few, one network a fold is trained, and all are validated and calibrated together. One more then
        learns from all pairs for the best number of epochs; where the matrix is estimated, the first network is taken,
        because no pairs would be left to validate the estimate on.
        """
        # 1. Folds of held-out pairs.
        order = random.permutation(len(B))
        n_held_out, n_folds = _held_out_and_folds(len(B), self.validation_fraction)
        folds = [np.arange(fold * n_held_out, (fold + 1) * n_held_out) for fold in range(n_folds)]
        held_out = [order[fold] if n_held_out else order for fold in folds]
        chosen = [np.delete(order, fold) for fold in folds]
        # Of one shape for all networks, so that they are compiled once.
        most = len(B) if n_folds > 1 else len(chosen[0])
        # 2. Ascent with early stopping.
        ascents = [self.new_ascent(Y, B, most, *rows, None, go_on_from) for rows in zip(chosen, held_out, strict=True)]
        best_epoch = ascend_together(ascents, random, max_iter, tol, log or EpochLog())
        if n_folds > 1 and not improved(ascents, Y, B, held_out):
            best_epoch = 0
            for ascent in ascents:
                ascent.kept = ascent.first
        final, learned_from = ascents[0], chosen[0]
        block = block_size(final.design_matrix, len(held_out[0]))  # that of validation, which is compiled
        validated = [
            (*moments(ascent.kept, ascent.design_matrix, Y[rows], block)[:3], B[rows])
            for ascent, rows in zip(ascents, held_out, strict=True)
        ]
        # 3. With folds, one more network on all pairs.
        if n_folds > 1 and self.given_matrix is not None:
            learned_from = order
            start = np.median([ascent.start for ascent in ascents], axis=0)
            final = self.new_ascent(Y, B, most, order, held_out[0], start, go_on_from)
            for n_epoch in range(best_epoch):
                final.advance(n_epoch, random, max_iter)
            final.keep()
        self.scaled_matrix = final.design_matrix
        self.parameters = PosteriorParameters.of(final.kept)
        self.noise_var = float(final.state.noise_var)
        # 4. Gain and calibration of the output, and its Monte Carlo variance.
        *_, fitted, output_var = moments(final.kept, self.scaled_matrix, Y[learned_from], block)
        c_mean, c_var, mean, codes = map(np.concatenate, zip(*validated, strict=True))
        self.gain = min(output_gain(fitted, B[learned_from]), output_gain(mean, codes))
        self.calibration = fit_calibration(c_mean, c_var, self.gain * mean, codes)
        some = Y[learned_from[:_DRAWN_SIGNALS]]
        self.variance_ratio = _variance_ratio(final.kept, self.scaled_matrix, some, output_var[:_DRAWN_SIGNALS], random)

    def new_ascent(
        self,
        Y: Float[np.ndarray, "n K"],
        B: Float[np.ndarray, "n D"],
        most: int,
        chosen: Int[np.ndarray, " m"],
        held_out: Int[np.ndarray, " h"],
        start: Any = None,
        go_on_from: "VariationalLearner | None" = None,
    ) -> VariationalAscent:
        """An ascent on chosen pairs, in as many batches as for `most` pairs; `start` is a step size and a threshold.

        The encoder that they give is the centre of the prior, and where the ascent begins without one to go on from.
        """
        training = Y[chosen], B[chosen]
        dtype, noise_var = B.dtype, None
        if self.given_matrix is not None:
            design_matrix = self.given_matrix * dtype.type(self.units.code / self.units.observation)
        else:
            design_matrix, noise_var = estimate_design_matrix_and_noise(*training)
        encoder, validation = lmmse_folds(design_matrix, *training, noise_var)
        if self.given_matrix is None:
            # The estimate of the matrix depends on all training pairs: only held-out pairs validate it.
            validation = [EncoderFold(encoder, Y[held_out], B[held_out])]
        if start is None:
            shrinkages = SHRINKAGES if self.start_shrinkage is None else (self.start_shrinkage,)
            start = step_size_and_shrinkage(design_matrix, validation, self.n_layers, shrinkages)
        step_size, threshold = start
        state, problem = variational.init(
            design_matrix,
            (step_size * encoder).astype(dtype),
            np.full(self.n_layers, threshold, dtype),
            (Y, B),
            (Y[held_out], B[held_out]),
            learn_shrinkage=self.start_shrinkage is None,
            begin_at=None if go_on_from is None else self._parameters_of(go_on_from, design_matrix),
        )
        return VariationalAscent(design_matrix, (step_size, threshold), chosen, most, self.units.code, state, problem)

    def _parameters_of(self, other: Self, design_matrix: Float[np.ndarray, "K D"]) -> VariationalParameters:
        """The parameters of another learner in the units of this one, with the same S for another design matrix."""
        encoder, residual, encoder_log_var, residual_log_var, log_shrinkage, *layers = other.parameters
        observation_ratio, code_ratio = (a / b for a, b in zip(self.units, other.units, strict=True))
        # W' = W observation'/observation · code/code';  R' = S − I + W' X' with S = I − W X + R
        gain = observation_ratio / code_ratio
        moved = gain * encoder
        residual = residual + moved @ design_matrix - encoder @ other.scaled_matrix
        if self.start_shrinkage is None:
            log_shrinkage = log_shrinkage - np.log(code_ratio)
        else:
            with np.errstate(divide="ignore"):
                smallest = np.log(np.finfo(log_shrinkage.dtype).tiny)
                log_shrinkage = np.full_like(log_shrinkage, np.maximum(np.log(self.start_shrinkage), smallest))
        logs = *_rows_and_columns(encoder_log_var + 2 * np.log(gain)), *_rows_and_columns(residual_log_var)
        parts: Any = moved, residual, *logs, log_shrinkage, *layers
        return VariationalParameters(*parts)

    def output(self, Y: Float[np.ndarray, "n K"], include_noise: bool) -> Output:
        """The calibrated spike and slab, or the network's own."""
        if include_noise:
            matrices, layers, calibration, gain, _ = self._on_device()
            return Output(
                *in_blocks(lambda rows: _calibrated_slab(matrices, rows, layers, calibration, gain), Y, self._block(Y))
            )
        matrices, layers = layer_matrices(self.parameters.factored_posterior(), self.scaled_matrix), self.layers
        ratio = np.asarray(self.variance_ratio, layers.shrinkage.dtype)
        return Output(*in_blocks(lambda rows: _network_slab(matrices, rows, layers, ratio), Y, self._block(Y)))

    def moments(self, Y: Float[np.ndarray, "n K"]) -> tuple[Float[np.ndarray, "n D"], ...]:
        """Mean and standard deviation of the calibrated spike and slab, all in the units of the data."""
        matrices, *scalars = self._on_device()
        return in_blocks(lambda rows: _calibrated_moments(matrices, rows, *scalars), Y, self._block(Y))

    def _on_device(self) -> tuple[Any, ...]:
        """Matrices, layers, calibration, gain and units as device arrays, kept until a source changes."""
        source = self.parameters, self.scaled_matrix, self.calibration, self.gain
        kept, arrays = self._device_arrays or ((None,) * len(source), ())
        if any(old is not new for old, new in zip(kept, source, strict=True)):
            matrices = layer_matrices(self.parameters.factored_posterior(), self.scaled_matrix, FAST_VARIANCES)
            arrays = jax.device_put((matrices, self.layers, self.calibration, self.gain, self.units))
            self._device_arrays = source, arrays
        return arrays

    def _block(self, Y: Float[np.ndarray, "n K"]) -> int:
        return block_size(self.scaled_matrix, len(Y))

    def matrices(self) -> tuple[Gaussian, Gaussian]:
        """Means and variances of W and S; those of S follow from W and R."""
        encoder, residual = self.parameters.posterior()
        mean: Any = np.eye(len(residual.mean), dtype=residual.mean.dtype) + residual.mean
        mean = mean - encoder.mean @ self.scaled_matrix
        return encoder, Gaussian(mean, residual.var + encoder.var @ self.scaled_matrix**2)

    @property
    def design_matrix(self) -> Float[np.ndarray, "K D"]:
        """The design matrix given or estimated, in the units of the data."""
        if self.given_matrix is not None:
            return self.given_matrix
        return self.scaled_matrix * self.scaled_matrix.dtype.type(self.units.observation / self.units.code)

    @property
    def shrinkage(self) -> Float[np.ndarray, " L"]:
        """The threshold of each layer."""
        return np.exp(self.parameters.log_shrinkage)

    @property
    def layers(self) -> LayerParameters:
        """Threshold, momentum and step size of each layer."""
        return LayerParameters(self.shrinkage, self.parameters.momentum, self.parameters.step_size)

    def learn_stream(
        self, Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"], max_iter: int, tol: float
    ) -> Epoch:
        """Update by more pairs, one by one; after 100, 200, 400, … of them, fit anew to the last ones."""
        memory = self.memory or StreamMemory.empty(Y, B)
        epoch = self._stream_epoch(0, {}, {})
        for part in memory.until_fits(len(B)):
            memory = memory.append(Y[part], B[part])
            row = self.filter_once(Y[part], B[part])
            epoch = epoch.and_then(row)
            if memory.is_fit_due:
                self._fit_memory(memory, max_iter, tol)
        self.memory = memory
        return epoch

    def _fit_memory(self, memory: StreamMemory, max_iter: int, tol: float) -> None:
        """Fit anew to the pairs of the memory; keep that where it is better on every tenth, else recalibrate there."""
        Y, B = memory.observations, memory.codes
        held_out = memory.held_out
        training, validation = (Y[~held_out], B[~held_out]), (Y[held_out], B[held_out])
        # A given matrix that the pairs contradict is estimated instead.
        known = None if self.given_matrix is None else self.scaled_matrix
        if known is not None and explains(estimate_design_matrix_and_noise(*training)[0], known, *validation):
            known = None
        fresh = copy(self)
        fresh.given_matrix = None if known is None else self.given_matrix
        fresh.learn(*training, np.random.default_rng(memory.n_seen), max_iter, tol)

        def squared_error(learner: Self) -> float:
            mean = learner._own_moments(validation[0])[2]
            return float(np.nan_to_num(np.sum((learner.gain * mean - validation[1]) ** 2), nan=np.inf))

        if squared_error(fresh) < squared_error(self):
            vars(self).update(vars(fresh))
        elif len(validation[1]) >= _ENOUGH_HELD_OUT:
            c_mean, c_var, mean, _ = self._own_moments(validation[0])
            self.gain = output_gain(mean, validation[1])
            self.calibration = fit_calibration(c_mean, c_var, self.gain * mean, validation[1])

    def _own_moments(self, Y: Float[np.ndarray, "n K"]) -> tuple[Float[np.ndarray, "n D"], ...]:
        """Mean and variance before the last threshold and after it, standardised."""
        matrices, layers = layer_matrices(self.parameters.factored_posterior(), self.scaled_matrix), self.layers

        def rows(each: Float[Array, "n K"]) -> tuple[Array, ...]:
            entering, output = propagate_layers(matrices, each, layers)
            return *entering, *output

        return in_blocks(rows, Y, self._block(Y))

    def filter_once(self, Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"]) -> Epoch:
        """Update the posterior by pairs in the order given; thresholds, noise and calibration are held."""
        noise_var = jnp.asarray(self.noise_var, B.dtype)
        given, layers = jnp.asarray(self.scaled_matrix), jax.tree.map(jnp.asarray, self.layers)
        posterior, infos = self.parameters.posterior(), []
        for part in powers_of_two(len(B)):
            pairs = jnp.asarray(Y[part]), jnp.asarray(B[part])
            posterior, info = online.filter_pairs(posterior, given, *pairs, layers, noise_var)
            infos.append(info)
        info = jax.tree.map(lambda *parts: sum(parts), *infos)
        (encoder, encoder_var), (residual, residual_var) = jax.tree.map(np.asarray, posterior)
        self.parameters = self.parameters._replace(
            encoder=encoder,
            residual=residual,
            encoder_log_var=np.log(encoder_var),
            residual_log_var=np.log(residual_var),
        )
        return self._stream_epoch(
            len(B),
            {"training_nmse": float(info.relative_error) / max(int(info.n_codes), 1)},
            {"clipped": int(info.clipped), "rejected": int(info.rejected)},
        )

    def _stream_epoch(self, n_pairs: int, values: dict[str, float], counts: dict[str, int]) -> Epoch:
        """The epoch of pairs of a stream, in the units of the data."""
        encoder, residual = self.parameters.posterior()
        state: dict[str, float | np.ndarray] = {
            "n_pairs": n_pairs,
            "training_nmse": np.nan,
            "encoder_var": float(np.mean(encoder.var)),
            "residual_var": float(np.mean(residual.var)),
            "noise_std": float(np.sqrt(self.noise_var)) * self.units.code,
            "shrinkage": self.shrinkage * self.units.code,
            "momentum": self.parameters.momentum,
            "step_size": self.parameters.step_size,
        }
        n_updates = n_pairs * (encoder.mean.size + residual.mean.size)
        return Epoch({**state, **values}, {"clipped": 0, "rejected": 0, **counts}, {"rejected": n_updates})


def _variance_ratio(
    parameters: VariationalParameters,
    design_matrix: Float[np.ndarray, "K D"],
    Y: Float[np.ndarray, "n K"],
    output_var: Float[np.ndarray, "n D"],
    random: np.random.Generator,
) -> Float[np.ndarray, " D"]:
    """Monte Carlo variance of the output over that of the moments, summed over signals; 1 where one is not usable."""
    weights, layers = weight_posterior(parameters)
    with np.errstate(over="ignore", invalid="ignore"):
        drawn = np.sum(drawn_variance(weights, design_matrix, Y, layers, _DRAWS, random), axis=0)
    total = np.sum(output_var, axis=0, dtype=np.float64)
    usable = np.isfinite(drawn) & (drawn > 0) & np.isfinite(total) & (total > 0)
    return np.where(usable, drawn, 1) / np.where(usable, total, 1)


def _held_out_and_folds(n_pairs: int, fraction: float) -> tuple[int, int]:
    """Held-out pairs a fold, one at least if any, and folds, so that there are enough to calibrate on."""
    if fraction == 0 or n_pairs == 1:
        return 0, 1
    n_held_out = max(int(fraction * n_pairs), 1)
    return n_held_out, min(-(-_ENOUGH_HELD_OUT // n_held_out), n_pairs // n_held_out, _MOST_FOLDS)
