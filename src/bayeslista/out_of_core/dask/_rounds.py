"""BayesLISTA on blocks: in a round, an epoch over each block from common parameters, and the average of the results.

On the paper's problem averaging once an epoch reaches the error of averaging after every step with a thirtieth of the
messages, and that of a single process or a little less: results/scaling.md.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from bayeslista.bayes_lista import early_stopping, variational
from bayeslista.bayes_lista.ascent import VariationalAscent
from bayeslista.bayes_lista.variational_fit import VariationalLearner
from bayeslista.estimators import BayesLISTA, hooks
from bayeslista.estimators.progress import advance, progress_bar
from bayeslista.estimators.validation import random_seed
from bayeslista.numerics.epochs import Epoch, EpochLog, Units
from bayeslista.numerics.precision import precision
from bayeslista.out_of_core.dask._pair_blocks import PairBlocks, added

_SAMPLE = 20_000  # pairs that come to this process, for the start, validation and calibration
_BATCHES, _LARGEST_BATCH = 16, 32
_PAIRS = ("observations", "codes", "held_out_observations", "held_out_codes")


def learn_in_rounds(model: BayesLISTA, pairs: PairBlocks) -> None:
    """Fit the model by rounds over shards that stay on their workers."""
    random = np.random.default_rng(random_seed(model.random_state))
    n_pairs = sum(pairs.sizes)
    pairs = pairs.kept_by_workers()
    few = n_pairs <= _SAMPLE
    rows = np.arange(n_pairs) if few else np.sort(random.choice(n_pairs, _SAMPLE, replace=False))
    sample = pairs.rows(rows)
    with precision(model.dtype_), progress_bar(model.max_iter, type(model).__name__, model.verbose) as bar:
        plain = hooks.new_learner(model, *sample)
        assert isinstance(plain, VariationalLearner)
        settings: dict[str, Any] = {field.name: getattr(plain, field.name) for field in fields(plain) if field.init}
        learner = _ShardedLearner(**settings, pairs=pairs, sampled=rows)
        scaled = sample[0] / learner.units.observation, sample[1] / learner.units.code

        def show(row: Epoch) -> bool:
            advance(bar, row.nmse)
            return False

        log = EpochLog(show)
        learner.learn(*scaled, random, model.max_iter, model.tol, log)
        for field in fields(plain):
            setattr(plain, field.name, getattr(learner, field.name))
        hooks.install(model, plain, log.rows)


class _Given(NamedTuple):
    """The constants of all rounds."""

    problem: Any  # VariationalProblem without pairs
    units: Units
    shape: tuple[int, int]  # batches in a round, and pairs in a batch
    longest: int  # length that all shards are padded to, so that they are compiled once
    n_pairs: int


class _Sum(NamedTuple):
    """Results of shards, weighted by their numbers of pairs."""

    n_pairs: int
    state: Any  # VariationalState
    info: Any  # VariationalInfo
    skipped: int


@dataclass
class _ShardedLearner(VariationalLearner):
    """A learner whose ascents go over the shards; everything else comes from the sample."""

    pairs: PairBlocks
    sampled: NDArray[Any]

    def new_ascent(
        self, Y: NDArray[Any], B: NDArray[Any], most: int, chosen: NDArray[Any], *rest: Any
    ) -> VariationalAscent:
        ascent = super().new_ascent(Y, B, most, chosen, *rest)
        left_out = self.sampled[np.setdiff1d(np.arange(len(B)), chosen)]
        return _ShardedAscent(ascent, self.pairs, left_out, self.units)


class _ShardedAscent(VariationalAscent):
    """An ascent whose epochs are rounds over shards."""

    def __init__(self, ascent: VariationalAscent, pairs: PairBlocks, left_out: NDArray[Any], units: Units) -> None:
        import dask

        vars(self).update(vars(ascent))
        inside = pairs.inside(left_out)
        sizes = [size - len(rows) for size, rows in zip(pairs.sizes, inside, strict=True)]
        self._shards = [
            (i, block, rows)
            for i, (block, rows, size) in enumerate(zip(pairs.blocks, inside, sizes, strict=True))
            if size
        ]
        batch = int(np.clip(max(sizes) // _BATCHES, 1, _LARGEST_BATCH))
        self._n_pairs, self.n_batches = sum(sizes), -(-max(sizes) // batch)
        given = _Given(
            _without(ascent.problem, *_PAIRS), units, (self.n_batches, batch), max(pairs.sizes), self._n_pairs
        )
        (self._given,) = dask.persist(dask.delayed(given, traverse=False))

    def advance(self, n_epoch: int, random: np.random.Generator, max_iter: int) -> Epoch:
        """One round over the shards, and its validation."""
        import dask

        before, seed = self.state, int(random.integers(2**63))
        rates = variational.schedule(n_epoch, self.n_batches, max_iter).astype(self.problem.codes.dtype)
        common = dask.delayed((_without(before, "best", "best_error"), rates), traverse=False)
        visit = dask.delayed(_visit)
        total: _Sum = added(
            [visit(block, rows, self._given, common, (seed, i)) for i, block, rows in self._shards], _add
        )
        merged, info = jax.tree.map(
            lambda part: (part / total.n_pairs).astype(part.dtype), (total.state, total.info._replace(skipped=None))
        )
        merged = merged._replace(rate=before.rate, best=before.best, best_error=before.best_error)
        elbo = variational.elbo(merged, self.problem, float(info.error), self._n_pairs)
        self.state, score = early_stopping.validate(merged, self.problem)
        counts = total.skipped, len(self._shards) * self.n_batches
        return self.epoch(self._n_pairs, info, elbo, score, *counts)


def _without(record: Any, *names: str) -> Any:
    """A record without some of its fields, in NumPy arrays, which keep their type wherever they go."""
    return jax.tree.map(np.asarray, record._replace(**dict.fromkeys(names)))


def _visit(
    pairs: tuple[NDArray[Any], NDArray[Any]], left_out: NDArray[Any], given: _Given, common: Any, seed: tuple[int, int]
) -> _Sum:
    """One epoch over a shard, with its pairs weighted as if all shards were like it."""
    state, rates = common
    dtype, n_rows = pairs[1].dtype, len(pairs[1])
    rows = np.delete(np.arange(n_rows), left_out)
    order = np.resize(np.random.default_rng(seed).permutation(rows), given.shape)
    included = (np.arange(order.size) < len(rows)).reshape(given.shape) * (given.n_pairs / len(rows))
    filling = (0, given.longest - n_rows), (0, 0)
    Y, B = (np.pad(side / dtype.type(unit), filling) for side, unit in zip(pairs, given.units, strict=True))
    with jax.enable_x64(dtype == np.float64):
        problem = given.problem._replace(observations=Y, codes=B)
        state, info = variational.step(state, problem, order, included.astype(dtype), rates)
        found = jax.tree.map(lambda part: np.asarray(part) * dtype.type(len(rows)), (state, info))
    return _Sum(len(rows), found[0], found[1], int(info.skipped))


def _add(*sums: _Sum) -> _Sum:
    return jax.tree.map(lambda *parts: sum(parts), *sums)
