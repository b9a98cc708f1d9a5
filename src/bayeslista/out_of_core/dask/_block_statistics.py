"""SpikeSlabNet on blocks: sufficient statistics of blocks add up to those of all pairs."""

from copy import copy

import numpy as np

from bayeslista.estimators import SpikeSlabNet, hooks
from bayeslista.estimators.validation import random_seed
from bayeslista.numerics.batching import root_mean_square
from bayeslista.numerics.precision import precision
from bayeslista.out_of_core.dask._pair_blocks import PairBlocks, added
from bayeslista.spike_slab.empirical_bayes import Statistics, add_statistics
from bayeslista.spike_slab.fitting import SpikeSlabLearner

_OPENING = 1024  # pairs that come to this process: units are estimated from them, and a learner keeps a few


def learn_from_statistics(model: SpikeSlabNet, pairs: PairBlocks) -> None:
    """Fit the model as its `fit` would, with every pair read on its worker."""
    random = np.random.default_rng(random_seed(model.random_state))
    opening = pairs.rows(np.arange(min(sum(pairs.sizes), _OPENING)))
    sizes = root_mean_square(opening[0]), root_mean_square(opening[1][opening[1] != 0])
    learner = _blank(model, *sizes)
    folds = _add_up(pairs, learner)
    found = _blank(model, *_sizes(folds, learner))
    if found.units != learner.units:  # all pairs have another scale than the first
        learner = found
        folds = _add_up(pairs, learner)
    learner.update(opening[0] / learner.units.observation, opening[1] / learner.units.code)
    learner.folds, learner.n_seen = folds, sum(pairs.sizes)
    with precision(model.dtype_):
        learner.learn_from_pairs()
        learner.calibrate(model.training, random)
    hooks.install(model, learner)


def _blank(model: SpikeSlabNet, observation: float, code: float) -> SpikeSlabLearner:
    """Nothing learned yet, in units for observations and nonzero codes of such root mean squares."""
    return hooks.new_learner(model, observation, np.full((1, model.n_components_), code))


def _add_up(pairs: PairBlocks, learner: SpikeSlabLearner) -> list[Statistics]:
    import dask

    blank, sums = dask.delayed(learner, traverse=False), dask.delayed(_sums)
    parts = [sums(block, blank, begin) for block, begin in zip(pairs.blocks, pairs.begins, strict=True)]
    return added(parts, _add)


def _sums(pairs: tuple[np.ndarray, np.ndarray], blank: SpikeSlabLearner, n_before: int) -> list[Statistics]:
    """Statistics of a block, in the folds that its pairs have among all."""
    learner = copy(blank)
    learner.n_seen = n_before
    learner.update(pairs[0] / learner.units.observation, pairs[1] / learner.units.code)
    return learner.folds


def _add(*folds: list[Statistics]) -> list[Statistics]:
    return [add_statistics(*same) for same in zip(*folds, strict=True)]


def _sizes(folds: list[Statistics], learner: SpikeSlabLearner) -> tuple[float, float]:
    """Root mean squares of all observations and of all nonzero codes; the latter is zero if there are none."""
    total = add_statistics(*folds)
    observed = np.trace(total.observed_gram) / (float(total.n_pairs) * len(total.observed_sum))
    count, _, squares = total.histogram.sum(axis=1)
    return (
        float(np.sqrt(observed)) * learner.units.observation or 1.0,
        float(np.sqrt(squares / max(count, 1.0))) * learner.units.code,
    )
