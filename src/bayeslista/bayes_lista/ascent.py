"""Variational ascents: one network on its training pairs, and the networks of several folds side by side."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float, Int

from bayeslista.bayes_lista import variational
from bayeslista.bayes_lista.early_stopping import (
    ValidationScore,
    VariationalParameters,
    VariationalProblem,
    VariationalState,
    block_size,
    moments,
)
from bayeslista.numerics.epochs import Epoch, EpochLog

_PATIENCE = 10  # epochs
_BATCHES, _LARGEST_BATCH = 16, 32


class VariationalAscent:
    """One network in training: its constants, its state, and the parameters to keep."""

    def __init__(
        self,
        design_matrix: Float[np.ndarray, "K D"],
        start: tuple[float, float],
        chosen: Int[np.ndarray, " n"],
        most: int,
        code_unit: float,
        state: VariationalState,
        problem: VariationalProblem,
    ) -> None:
        self.design_matrix = design_matrix
        self.start = start
        self.state = state
        self.problem = problem
        self.error = float(state.best_error)
        self.first = self.kept = _copied(state.parameters)
        self._batch_size = int(np.clip(most // _BATCHES, 1, _LARGEST_BATCH))
        self.n_batches = -(-most // self._batch_size)
        self._chosen = chosen
        self._code_unit = code_unit

    def keep(self) -> None:
        """Keep the current parameters."""
        self.kept = _copied(self.state.parameters)

    def advance(self, n_epoch: int, random: np.random.Generator, max_iter: int) -> Epoch:
        """Train for one epoch, and validate."""
        n_pairs, shape, dtype = len(self._chosen), (self.n_batches, self._batch_size), self.problem.codes.dtype
        included = (np.arange(np.prod(shape)) < n_pairs).reshape(shape).astype(dtype)
        rows = np.resize(random.permutation(self._chosen), shape)
        rates = variational.schedule(n_epoch, self.n_batches, max_iter).astype(dtype)
        self.state, info, elbo, score = variational.advance(self.state, self.problem, rows, included, rates)
        return self.epoch(n_pairs, info, elbo, score, int(info.skipped), self.n_batches)

    def epoch(
        self,
        n_pairs: int,
        info: variational.VariationalInfo,
        elbo: float,
        score: ValidationScore,
        n_skipped: int,
        n_batches: int,
    ) -> Epoch:
        """The outcome of an epoch, in the units of the data."""
        self.error = float(np.nan_to_num(score.error, nan=np.inf))
        _, _, p, q, r, t, log_shrinkage, momentum, step_size = map(np.asarray, self.state.parameters)
        values: dict[str, float | np.ndarray] = {
            "n_pairs": n_pairs,
            "elbo": elbo,
            "training_error": float(info.error) * self._code_unit**2,
            "held_out_error": float(score.error) * self._code_unit**2,
            "training_nmse": float(info.nmse),
            "held_out_nmse": float(score.nmse),
            "encoder_var": float(np.mean(np.exp(p[:, None] + q))),
            "residual_var": float(np.mean(np.exp(r[:, None] + t))),
            "noise_std": float(np.sqrt(self.state.noise_var)) * self._code_unit,
            "shrinkage": np.exp(log_shrinkage) * self._code_unit,
            "momentum": momentum,
            "step_size": step_size,
        }
        counts = {"skipped": n_skipped, "restored": int(score.restored)}
        return Epoch(values, counts, {"skipped": n_batches})


def _copied(parameters: VariationalParameters) -> VariationalParameters:
    """A copy: the next epoch overwrites the memory of its state."""
    copied: VariationalParameters = jax.tree.map(np.array, parameters)
    return copied


def ascend_together(
    ascents: Sequence[VariationalAscent], random: np.random.Generator, max_iter: int, tol: float, log: EpochLog
) -> int:
    """Train side by side until the summed validation error is stale; keep and return the best epoch (0: the start)."""
    errors = np.full(max_iter + 1, np.inf)  # at the start, and after each epoch
    errors[0] = sum(ascent.error for ascent in ascents)
    errors, networks = log.restore((errors, [(ascent.state, ascent.kept) for ascent in ascents]), random)
    for ascent, network in zip(ascents, networks, strict=True):
        ascent.state, ascent.kept = network
    while (n_epoch := len(log.rows)) < max_iter and not _is_stale(errors[: n_epoch + 1], tol):
        epochs = [ascent.advance(n_epoch, random, max_iter) for ascent in ascents]
        errors[n_epoch + 1] = sum(ascent.error for ascent in ascents)
        if errors[n_epoch + 1] < errors[: n_epoch + 1].min():
            for ascent in ascents:
                ascent.keep()
        row = _mean_epoch(epochs)
        if log.append(row, (errors.copy(), [(ascent.state, ascent.kept) for ascent in ascents]), random):
            break
    return int(np.argmin(errors))


def _is_stale(errors: Float[np.ndarray, " n"], tol: float) -> bool:
    """Whether the least error has fallen by less than `tol`, relatively, over the last epochs."""
    best = np.minimum.accumulate(errors)
    return tol > 0 and len(best) > _PATIENCE and bool(best[-1] >= (1 - tol) * best[-1 - _PATIENCE])


def _mean_epoch(epochs: Sequence[Epoch]) -> Epoch:
    """An epoch of several networks: mean values, summed counts."""
    values = {name: sum(each.values[name] for each in epochs) / len(epochs) for name in epochs[0].values}
    counts = {name: sum(each.counts[name] for each in epochs) for name in epochs[0].counts}
    return Epoch(values, counts, {name: sum(each.attempts[name] for each in epochs) for name in epochs[0].attempts})


def improved(
    ascents: Sequence[VariationalAscent],
    Y: Float[np.ndarray, "n K"],
    B: Float[np.ndarray, "n D"],
    held_out: Sequence[Int[np.ndarray, " m"]],
) -> bool:
    """Whether the kept parameters lower the validation error of the start by more than one standard error."""
    gains = [
        _squared_errors(ascent.first, ascent.design_matrix, Y[rows], B[rows])
        - _squared_errors(ascent.kept, ascent.design_matrix, Y[rows], B[rows])
        for ascent, rows in zip(ascents, held_out, strict=True)
    ]
    by_pair = np.concatenate(gains)
    return bool(by_pair.mean() > by_pair.std() / np.sqrt(len(by_pair)))


def _squared_errors(
    parameters: VariationalParameters,
    design_matrix: Float[np.ndarray, "K D"],
    Y: Float[np.ndarray, "n K"],
    B: Float[np.ndarray, "n D"],
) -> Float[np.ndarray, " n"]:
    """Squared error of every pair."""
    predicted = moments(parameters, design_matrix, Y, block_size(design_matrix, len(B)))[2]
    return np.sum((predicted - B) ** 2, axis=1)
