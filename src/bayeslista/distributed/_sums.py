"""SpikeSlabNet learns from sums over pairs, and sums over blocks add up to those over all."""

from copy import copy

import numpy as np

from bayeslista._blocks import root_mean_square
from bayeslista.distributed._pairs import Pairs, added
from bayeslista.estimators import SpikeSlabNet
from bayeslista.estimators._spike_slab import SpikeSlabLearner
from bayeslista.estimators._validation import random_seed
from bayeslista.generative import Statistics, add_statistics

_OPENING = 1024  # pairs that come here: units are guessed from them, and a learner keeps a few


def learn_from_sums(model: SpikeSlabNet, pairs: Pairs) -> None:
    """Fit the model as its `fit` would, with every pair read where it is.

    Parameters
    ----------
    model : SpikeSlabNet
        With the shapes and types of the pairs; it is changed.
    pairs : Pairs
        Checked by it.
    """
    random = np.random.default_rng(random_seed(model.random_state))
    opening = pairs.rows(np.arange(min(sum(pairs.sizes), _OPENING)))
    sizes = root_mean_square(opening[0]), root_mean_square(opening[1][opening[1] != 0])
    learner = _blank(model, *sizes)
    folds = _add_up(pairs, learner)
    found = _blank(model, *_sizes(folds, learner))
    if found.units != learner.units:  # all pairs together ask for other units than the first
        learner = found
        folds = _add_up(pairs, learner)
    learner.take_in(opening[0] / learner.units.observation, opening[1] / learner.units.code)
    learner.folds, learner.n_seen = folds, sum(pairs.sizes)
    with model._precision():
        learner.learn_from_pairs()
        learner.calibrate(model.calibration_steps, random)
    model._learner = learner
    model.uncalibrate()
    model._finish(stacklevel=4)


def _blank(model: SpikeSlabNet, observation: float, code: float) -> SpikeSlabLearner:
    """Nothing learned yet, in units for observations and nonzero codes of such root mean squares."""
    return model._new_learner(observation, np.full((1, model.n_components_), code))


def _add_up(pairs: Pairs, learner: SpikeSlabLearner) -> list[Statistics]:
    import dask

    blank, sums = dask.delayed(learner, traverse=False), dask.delayed(_sums)
    parts = [sums(block, blank, begin) for block, begin in zip(pairs.blocks, pairs.begins, strict=True)]
    return added(parts, _add)


def _sums(pairs: tuple[np.ndarray, np.ndarray], blank: SpikeSlabLearner, n_before: int) -> list[Statistics]:
    """Sums over a block, in the folds that its pairs have among all."""
    learner = copy(blank)
    learner.n_seen = n_before
    learner.take_in(pairs[0] / learner.units.observation, pairs[1] / learner.units.code)
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
