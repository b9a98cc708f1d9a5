"""BayesLISTA learns in rounds: a pass over each shard from common parameters, and their average.

On the paper's problem averaging once a pass ends at the error that averaging after every step does, with a thirtieth of
the messages, and at that of a single process or a little below: results/scaling.md.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import numpy as np

from bayeslista.distributed._pairs import Pairs, added
from bayeslista.estimators import BayesLISTA
from bayeslista.estimators._learners import Numbers, Pass, Units
from bayeslista.estimators._progress import advance, progress_bar
from bayeslista.estimators._validation import random_seed
from bayeslista.estimators._variational import VariationalLearner, _Ascent
from bayeslista.inference import judging, variational

_SAMPLE = 20_000  # pairs that come here, to start from, to judge by and to calibrate on
_BATCHES, _LARGEST_BATCH = 16, 32
_PAIRS = ("observations", "codes", "held_out_observations", "held_out_codes")


def learn_in_rounds(model: BayesLISTA, pairs: Pairs) -> None:
    """Fit the model by rounds over shards that stay on their workers.

    Parameters
    ----------
    model : BayesLISTA
        With the shapes and types of the pairs; it is changed.
    pairs : Pairs
        Checked by it: every block is a shard.
    """
    random = np.random.default_rng(random_seed(model.random_state))
    n_pairs = sum(pairs.sizes)
    pairs = pairs.kept_by_workers()
    few = n_pairs <= _SAMPLE
    rows = np.arange(n_pairs) if few else np.sort(random.choice(n_pairs, _SAMPLE, replace=False))
    sample = pairs.rows(rows)
    with model._precision(), progress_bar(model.max_iter, type(model).__name__, model.verbose) as bar:
        plain = model._new_learner(*sample)
        assert isinstance(plain, VariationalLearner)
        told: dict[str, Any] = {field.name: getattr(plain, field.name) for field in fields(plain) if field.init}
        learner = _ShardedLearner(**told, pairs=pairs, sampled=rows)
        scaled = sample[0] / learner.units.observation, sample[1] / learner.units.code
        passes = []
        for row in learner.learn(*scaled, random, model.max_iter, model.tol):
            passes.append(row)
            advance(bar, row.nmse)
        for field in fields(plain):
            setattr(plain, field.name, getattr(learner, field.name))
        model._learner = plain
        model.uncalibrate()
        model._stream = None
        model._first_pairs = None
        model._finish(passes, passes, stacklevel=4)


class _Given(NamedTuple):
    """What does not change from round to round."""

    problem: Any  # judging.Problem without pairs
    units: Units
    shape: tuple[int, int]  # batches in a round, and pairs in a batch
    longest: int  # shard, to the length of which all are filled up, so that they are compiled once
    n_pairs: int


class _Sum(NamedTuple):
    """What shards found, times the pairs that they learned from."""

    n_pairs: int
    state: Any  # judging.State
    info: Any  # variational.Info
    skipped: int


@dataclass
class _ShardedLearner(VariationalLearner):
    """The learner, for which the sample decides all but the steps of the ascent."""

    pairs: Pairs
    sampled: np.ndarray

    def _ascent(self, Y: Numbers, B: Numbers, most: int, chosen: Numbers, *rest: Any) -> _Ascent:
        ascent = super()._ascent(Y, B, most, chosen, *rest)
        left_out = self.sampled[np.setdiff1d(np.arange(len(B)), chosen)]
        return _ShardedAscent(ascent, self.pairs, left_out, self.units)


class _ShardedAscent(_Ascent):
    """An ascent whose passes are rounds over shards."""

    def __init__(self, ascent: _Ascent, pairs: Pairs, left_out: np.ndarray, units: Units) -> None:
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
        self._n_pairs, self._n_batches = sum(sizes), -(-max(sizes) // batch)
        given = _Given(
            _without(ascent._problem, *_PAIRS), units, (self._n_batches, batch), max(pairs.sizes), self._n_pairs
        )
        (self._given,) = dask.persist(dask.delayed(given, traverse=False))

    def advance(self, n_pass: int, random: np.random.Generator, max_iter: int) -> Pass:
        """Make a round, and be judged."""
        import dask

        before, seed = self.state, int(random.integers(2**63))
        rates = variational.schedule(n_pass, self._n_batches, max_iter).astype(self._problem.codes.dtype)
        common = dask.delayed((_without(before, "best", "best_error"), rates), traverse=False)
        visit = dask.delayed(_visit)
        total: _Sum = added(
            [visit(block, rows, self._given, common, (seed, i)) for i, block, rows in self._shards], _add
        )
        merged, info = jax.tree.map(
            lambda part: (part / total.n_pairs).astype(part.dtype), (total.state, total.info._replace(skipped=None))
        )
        merged = merged._replace(rate=before.rate, best=before.best, best_error=before.best_error)
        objective = variational.objective(merged, self._problem, float(info.error), self._n_pairs)
        self.state, judgement = judging.judge(merged, self._problem)
        counts = total.skipped, len(self._shards) * self._n_batches
        return self._told(self._n_pairs, info, objective, judgement, *counts)


def _without(record: Any, *names: str) -> Any:
    """A record without some of its fields, in NumPy arrays, which keep their type wherever they go."""
    return jax.tree.map(np.asarray, record._replace(**dict.fromkeys(names)))


def _visit(
    pairs: tuple[np.ndarray, np.ndarray], left_out: np.ndarray, given: _Given, common: Any, seed: tuple[int, int]
) -> _Sum:
    """A pass over a shard, each of whose pairs counts as if all shards were as this one."""
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
