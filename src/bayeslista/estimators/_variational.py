"""Variational inference on the anchored network, from the linear minimum mean square error estimator."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from bayeslista._blocks import in_blocks, root_mean_square
from bayeslista._compilation import quickly_compiled
from bayeslista.anchored_network import (
    AnchoredWeights,
    LayerMatrices,
    RowColumn,
    layer_matrices,
    propagate_layers,
    reduced,
)
from bayeslista.calibration import Calibration, fit_calibration, output_gain, quick_spike_slab
from bayeslista.estimators._checkpoints import Memory
from bayeslista.estimators._learners import Numbers, Output, Pass, Passes, Units, network_slab, powers_of_two
from bayeslista.inference import judging, streaming, variational
from bayeslista.linear_start import Trial, linear_mmse_trials, pace_and_shrinkage
from bayeslista.network import QUICK_VARIANCES, Gaussian
from bayeslista.proximal import estimate_design_matrix_and_noise
from bayeslista.weight_draws import drawn_variance

_PATIENCE = 10
_BATCHES, _LARGEST_BATCH = 16, 32
_SHRINKAGES = (0.01 * 2.0 ** np.arange(7)).tolist()
_ENOUGH_HELD_OUT, _MOST_FOLDS = 20, 5
_DRAWN = 64, 32  # signals, and draws of the weights for each
_NARROWEST = 0.1  # of what moments say of a slab, where draws say that there is less spread
_FACTORED = 1e-4  # as far may the logarithm of a variance be from what its row and its column say


class Parameters(NamedTuple):
    """What was learned: variances, entry by entry, and thresholds by their logarithms."""

    encoder: Numbers
    residual: Numbers
    encoder_log_var: Numbers
    residual_log_var: Numbers
    log_shrinkage: Numbers

    @classmethod
    def after(cls, ascent: judging.AscentParameters) -> Self:
        """As an ascent has left them."""
        encoder, residual, p, q, r, t, log_shrinkage = map(np.asarray, ascent)
        return cls(encoder, residual, p[:, None] + q, r[:, None] + t, log_shrinkage)

    def belief(self) -> AnchoredWeights[Gaussian]:
        """Means and variances."""
        encoder_var: Numbers = np.exp(self.encoder_log_var)
        residual_var: Numbers = np.exp(self.residual_log_var)
        return AnchoredWeights(Gaussian(self.encoder, encoder_var), Gaussian(self.residual, residual_var))

    def short_belief(self) -> AnchoredWeights[Any]:
        """The same with a variance a row and a column, where they are such: a stream of pairs changes that."""
        encoder = _by_row_and_column(self.encoder, self.encoder_log_var)
        residual = _by_row_and_column(self.residual, self.residual_log_var)
        return self.belief() if encoder is None or residual is None else AnchoredWeights(encoder, residual)


def _by_row_and_column(mean: Numbers, log_var: Numbers) -> RowColumn | None:
    columns: Numbers = log_var.mean(axis=0)
    rows: Numbers = (log_var - columns).mean(axis=1)
    departure = np.abs(log_var - rows[:, None] - columns)
    return RowColumn(mean, np.exp(rows), np.exp(columns)) if departure.max() <= _FACTORED else None


_for_many = partial(quickly_compiled, older_loops=False)


@quickly_compiled
def _network_slab(matrices: LayerMatrices, rows: Numbers, shrinkage: Numbers, spread: Numbers) -> tuple[Numbers, ...]:
    """The spike and slab that the last threshold makes, with a slab that makes the variance so many times as large."""
    prob_active, mean, var = network_slab(propagate_layers(matrices, rows, shrinkage).entering, shrinkage[-1])
    wider = var + (spread - 1) * (var + (1 - prob_active) * mean * mean)
    return prob_active, mean, jnp.maximum(wider, _NARROWEST * var)


@_for_many
def _calibrated_slab(
    matrices: LayerMatrices,
    rows: Numbers,
    shrinkage: Numbers,
    calibration: Calibration,
    gain: float,
) -> tuple[Numbers, ...]:
    """The spike and slab as calibrated."""
    entering, output = propagate_layers(matrices, rows, shrinkage)
    return quick_spike_slab(calibration, entering.mean, entering.var, gain * output.mean)


@_for_many
def _calibrated_moments(
    matrices: LayerMatrices,
    rows: Numbers,
    shrinkage: Numbers,
    calibration: Calibration,
    gain: float,
    units: Units,
) -> tuple[Numbers, ...]:
    """Mean and standard deviation of that, in the units of the data; the mean is the network's own."""
    (c_mean, c_var), output = propagate_layers(matrices, rows / units.observation, shrinkage)
    mean = gain * output.mean
    chance, slab_mean, var = quick_spike_slab(calibration, c_mean, c_var, reduced(mean, c_var.dtype))
    std = jnp.sqrt(chance * (var + (1 - chance) * slab_mean * slab_mean)).astype(mean.dtype)
    return units.code * mean, units.code * std


@dataclass(eq=False)
class VariationalLearner:
    """Variational inference on the anchored network from the linear minimum mean square error estimator."""

    units: Units
    given_matrix: Numbers | None  # in the units of the data
    n_layers: int
    start_shrinkage: float | None
    validation_fraction: float
    scaled_matrix: Numbers = field(init=False)
    parameters: Parameters = field(init=False)
    calibration: Calibration = field(init=False)
    gain: float = field(init=False)
    noise_var: float = field(init=False)
    # How many times the variance of the network's output is that of moments, for every coefficient.
    spread: Numbers = field(init=False, default=1.0)

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

    def learn(
        self,
        Y: Numbers,
        B: Numbers,
        random: np.random.Generator,
        max_iter: int,
        tol: float,
        memory: Memory | None = None,
    ) -> Passes:
        """Ascend in mini-batches, keep the pass that held-out pairs like best, and calibrate on them.

        Where those are few, several networks ascend side by side, each with others held out, and all are judged and
        calibrated together. One more then learns from all pairs for as many passes as were best; where the
        matrix is estimated, the first is taken, lest there be nobody who can judge the estimate.
        """
        order = random.permutation(len(B))
        n_held_out, n_folds = _held_out_and_folds(len(B), self.validation_fraction)
        folds = [np.arange(fold * n_held_out, (fold + 1) * n_held_out) for fold in range(n_folds)]
        held_out = [order[fold] if n_held_out else order for fold in folds]
        chosen = [np.delete(order, fold) for fold in folds]
        # Of one shape for all networks, so that they are compiled once.
        most = len(B) if n_folds > 1 else len(chosen[0])
        ascents = [self._ascent(Y, B, most, *rows) for rows in zip(chosen, held_out, strict=True)]
        best_pass = yield from _ascend_together(ascents, random, max_iter, tol, memory or Memory())
        if n_folds > 1 and not _improved(ascents, Y, B, held_out):
            best_pass = 0
            for ascent in ascents:
                ascent.kept = ascent.first
        final, learned_from = ascents[0], chosen[0]
        block = judging.block_size(final.design_matrix, len(held_out[0]))  # as judges have had it
        judged = [
            (*judging.moments(ascent.kept, ascent.design_matrix, Y[rows], block)[:3], B[rows])
            for ascent, rows in zip(ascents, held_out, strict=True)
        ]
        if n_folds > 1 and self.given_matrix is not None:
            learned_from = order
            start = np.median([ascent.start for ascent in ascents], axis=0)
            final = self._ascent(Y, B, most, order, held_out[0], start)
            for n_pass in range(best_pass):
                final.advance(n_pass, random, max_iter)
            final.keep()
        self.scaled_matrix = final.design_matrix
        self.parameters = Parameters.after(final.kept)
        self.noise_var = float(final.state.noise_var)
        *_, fitted, told_var = judging.moments(final.kept, self.scaled_matrix, Y[learned_from], block)
        c_mean, c_var, mean, codes = map(np.concatenate, zip(*judged, strict=True))
        self.gain = min(output_gain(fitted, B[learned_from]), output_gain(mean, codes))
        self.calibration = fit_calibration(c_mean, c_var, self.gain * mean, codes)
        some = Y[learned_from[: _DRAWN[0]]]
        self.spread = _spread(final.kept, self.scaled_matrix, some, told_var[: _DRAWN[0]], random)

    def _ascent(
        self, Y: Numbers, B: Numbers, most: int, chosen: Numbers, held_out: Numbers, start: Numbers | None = None
    ) -> "_Ascent":
        """The start of learning from chosen pairs, at the pace and threshold given, or those that others like best.

        There are as many batches as if ``most`` pairs were chosen.
        """
        training = Y[chosen], B[chosen]
        dtype, noise_var = B.dtype, None
        if self.given_matrix is not None:
            design_matrix = self.given_matrix * dtype.type(self.units.code / self.units.observation)
        else:
            design_matrix, noise_var = estimate_design_matrix_and_noise(*training)
        encoder, trials = linear_mmse_trials(design_matrix, *training, noise_var)
        if self.given_matrix is None:
            # All training pairs have helped to estimate it: none can judge by it.
            trials = [Trial(encoder, Y[held_out], B[held_out])]
        if start is None:
            shrinkages = _SHRINKAGES if self.start_shrinkage is None else [self.start_shrinkage]
            start = pace_and_shrinkage(design_matrix, trials, self.n_layers, shrinkages)
        pace, threshold = start
        state, problem = variational.init(
            design_matrix,
            (pace * encoder).astype(dtype),
            np.full(self.n_layers, threshold, dtype),
            (Y, B),
            (Y[held_out], B[held_out]),
            learn_shrinkage=self.start_shrinkage is None,
        )
        return _Ascent(design_matrix, (pace, threshold), chosen, most, self.units.code, state, problem)

    def output(self, Y: Numbers, include_noise: bool) -> Output:
        """The calibrated spike and slab, or the network's own."""
        if include_noise:
            matrices, shrinkage, calibration, gain, _ = self._handed_over()
            return Output(
                *in_blocks(
                    lambda rows: _calibrated_slab(matrices, rows, shrinkage, calibration, gain), Y, self._block(Y)
                )
            )
        matrices, shrinkage = layer_matrices(self.parameters.short_belief(), self.scaled_matrix), self.shrinkage
        told = shrinkage, np.asarray(self.spread, shrinkage.dtype)
        return Output(*in_blocks(lambda rows: _network_slab(matrices, rows, *told), Y, self._block(Y)))

    def moments(self, Y: Numbers) -> tuple[Numbers, ...]:
        """Mean and standard deviation of the calibrated spike and slab, all in the units of the data."""
        matrices, *told = self._handed_over()
        return in_blocks(lambda rows: _calibrated_moments(matrices, rows, *told), Y, self._block(Y))

    def _handed_over(self) -> tuple[Any, ...]:
        """What predictions need, as JAX has it: matrices, thresholds, calibration, gain and units.

        It is made once, not for every block or call, and again when something that it is made of has changed.
        """
        source = self.parameters, self.scaled_matrix, self.calibration, self.gain
        known, made = _MADE.get(self, ((None,) * len(source), ()))
        if any(old is not new for old, new in zip(known, source, strict=True)):
            matrices = layer_matrices(self.parameters.short_belief(), self.scaled_matrix, QUICK_VARIANCES)
            made = jax.device_put((matrices, self.shrinkage, self.calibration, self.gain, self.units))
            _MADE[self] = source, made
        return made

    def _block(self, Y: Numbers) -> int:
        return judging.block_size(self.scaled_matrix, len(Y))

    def matrices(self) -> tuple[Gaussian, Gaussian]:
        """Means and variances of W and S; those of S follow from W and R."""
        encoder, residual = self.parameters.belief()
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
        belief, infos = self.parameters.belief(), []
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


# What learners have handed over to JAX, as long as they live: neither saved nor copied with them.
_MADE: WeakKeyDictionary[VariationalLearner, tuple[tuple[Any, ...], tuple[Any, ...]]] = WeakKeyDictionary()


class _Ascent:
    """One network on its way: where it is, what it has been given, and the parameters to keep."""

    def __init__(
        self,
        design_matrix: Numbers,
        start: tuple[float, float],
        chosen: Numbers,
        most: int,
        code_unit: float,
        state: judging.State,
        problem: judging.Problem,
    ) -> None:
        self.design_matrix = design_matrix
        self.start = start
        self.state = state
        self.error = float(state.best_error)
        self.first = self.kept = _copied(state.parameters)
        self._chosen = chosen
        self._batch_size = int(np.clip(most // _BATCHES, 1, _LARGEST_BATCH))
        self._n_batches = -(-most // self._batch_size)
        self._code_unit = code_unit
        self._problem = problem

    def keep(self) -> None:
        """Keep the parameters as they are now."""
        self.kept = _copied(self.state.parameters)

    def advance(self, n_pass: int, random: np.random.Generator, max_iter: int) -> Pass:
        """Make a pass over the pairs, and be judged."""
        n_pairs, shape, dtype = len(self._chosen), (self._n_batches, self._batch_size), self._problem.codes.dtype
        included = (np.arange(np.prod(shape)) < n_pairs).reshape(shape).astype(dtype)
        rows = np.resize(random.permutation(self._chosen), shape)
        rates = variational.schedule(n_pass, self._n_batches, max_iter).astype(dtype)
        self.state, info, objective, judgement = variational.advance(self.state, self._problem, rows, included, rates)
        counts = int(info.skipped), self._n_batches
        return self._told(n_pairs, info, objective, judgement, *counts)

    def _told(
        self,
        n_pairs: int,
        info: variational.Info,
        objective: float,
        judgement: judging.Judgement,
        n_skipped: int,
        n_batches: int,
    ) -> Pass:
        """What a pass did, of which that is the outcome."""
        self.error = float(np.nan_to_num(judgement.error, nan=np.inf))
        learned = Parameters.after(self.state.parameters)
        values: dict[str, float | np.ndarray] = {
            "n_pairs": n_pairs,
            "objective": objective,
            "training_error": float(info.error) * self._code_unit**2,
            "held_out_error": float(judgement.error) * self._code_unit**2,
            "training_nmse": float(info.nmse),
            "held_out_nmse": float(judgement.nmse),
            "encoder_var": float(np.mean(np.exp(learned.encoder_log_var))),
            "residual_var": float(np.mean(np.exp(learned.residual_log_var))),
            "noise_std": float(np.sqrt(self.state.noise_var)) * self._code_unit,
            "shrinkage": np.exp(learned.log_shrinkage) * self._code_unit,
        }
        counts = {"skipped": n_skipped, "restored": int(judgement.restored)}
        return Pass(values, counts, {"skipped": n_batches})


def _copied(parameters: judging.AscentParameters) -> judging.AscentParameters:
    """A copy for safekeeping: the next pass works in the memory of the state it is given."""
    return jax.tree.map(np.array, parameters)


def _ascend_together(
    ascents: Sequence[_Ascent], random: np.random.Generator, max_iter: int, tol: float, memory: Memory
) -> Generator[Pass, bool | None, int]:
    """Ascend side by side, keep the parameters of the pass that is best for all together, and return its number."""
    errors = np.full(max_iter + 1, np.inf)  # before any pass, and after each
    errors[0] = sum(ascent.error for ascent in ascents)
    errors, networks = memory.recall((errors, [(ascent.state, ascent.kept) for ascent in ascents]), random)
    for ascent, network in zip(ascents, networks, strict=True):
        ascent.state, ascent.kept = network
    while (n_pass := len(memory.rows)) < max_iter and not _is_stale(errors[: n_pass + 1], tol):
        passes = [ascent.advance(n_pass, random, max_iter) for ascent in ascents]
        errors[n_pass + 1] = sum(ascent.error for ascent in ascents)
        if errors[n_pass + 1] < errors[: n_pass + 1].min():
            for ascent in ascents:
                ascent.keep()
        row = _mean_pass(passes)
        memory.after(row, (errors.copy(), [(ascent.state, ascent.kept) for ascent in ascents]), random)
        if (yield row):
            break
    return int(np.argmin(errors))


def _is_stale(errors: Numbers, tol: float) -> bool:
    """Whether the last passes have not lowered the error any more."""
    best = np.minimum.accumulate(errors)
    return tol > 0 and len(best) > _PATIENCE and bool(best[-1] >= (1 - tol) * best[-1 - _PATIENCE])


def _mean_pass(passes: Sequence[Pass]) -> Pass:
    """What several networks did in a pass: values on average, counts in all."""
    values = {name: sum(each.values[name] for each in passes) / len(passes) for name in passes[0].values}
    counts = {name: sum(each.counts[name] for each in passes) for name in passes[0].counts}
    return Pass(values, counts, {name: sum(each.attempts[name] for each in passes) for name in passes[0].attempts})


def _spread(
    parameters: judging.AscentParameters,
    design_matrix: Numbers,
    Y: Numbers,
    told: Numbers,
    random: np.random.Generator,
) -> Numbers:
    """Variances of the output over draws, relative to those of moments, for every coefficient over all signals."""
    weights, shrinkage = judging.belief(parameters)
    with np.errstate(over="ignore", invalid="ignore"):
        drawn = np.sum(drawn_variance(weights, design_matrix, Y, shrinkage, _DRAWN[1], random), axis=0)
    total = np.sum(told, axis=0, dtype=np.float64)
    usable = np.isfinite(drawn) & (drawn > 0) & np.isfinite(total) & (total > 0)
    return np.where(usable, drawn, 1) / np.where(usable, total, 1)


def _squared_errors(parameters: judging.AscentParameters, design_matrix: Numbers, Y: Numbers, B: Numbers) -> Numbers:
    """Of what a network predicts, one a pair."""
    predicted = judging.moments(parameters, design_matrix, Y, judging.block_size(design_matrix, len(B)))[2]
    return np.sum((predicted - B) ** 2, axis=1)


def _improved(ascents: Sequence[_Ascent], Y: Numbers, B: Numbers, held_out: Sequence[Numbers]) -> bool:
    """Whether held-out pairs prefer what is kept to the start by more than one standard error: few can be wrong."""
    fell = [
        _squared_errors(ascent.first, ascent.design_matrix, Y[rows], B[rows])
        - _squared_errors(ascent.kept, ascent.design_matrix, Y[rows], B[rows])
        for ascent, rows in zip(ascents, held_out, strict=True)
    ]
    by_pair = np.concatenate(fell)
    return bool(by_pair.mean() > by_pair.std() / np.sqrt(len(by_pair)))


def _held_out_and_folds(n_pairs: int, fraction: float) -> tuple[int, int]:
    """How many pairs to hold out, one at least if any, and in how many networks, to have enough to calibrate on."""
    if fraction == 0 or n_pairs == 1:
        return 0, 1
    n_held_out = max(int(fraction * n_pairs), 1)
    return n_held_out, min(-(-_ENOUGH_HELD_OUT // n_held_out), n_pairs // n_held_out, _MOST_FOLDS)
