"""Missing values of observations: a sensor without a value has infinite noise in that signal.

A row of zeros in the matrix, with an observation of zero, has a likelihood that does not depend on the code. So every
engine takes a pattern of missing sensors as a matrix of its own, exactly; signals with the same pattern share it.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from bayeslista.spike_slab.fitting import SpikeSlabLearner
from bayeslista.spike_slab.sensor_noise import Whitening, whitening_of

_Result = TypeVar("_Result")


def by_pattern(
    learner: SpikeSlabLearner, Y: Float[np.ndarray, "n K"], function: Callable[[SpikeSlabLearner, Any], _Result]
) -> _Result:
    """A function of a learner and whitened signals, of those with the same missing sensors at a time.

    Its result is a tree of arrays with one entry a signal.
    """
    missing = np.isnan(Y)
    if not missing.any():
        return function(learner, learner.received(Y))
    patterns, which = np.unique(~missing, axis=0, return_inverse=True)
    found, order = [], []
    for i, pattern in enumerate(patterns):
        rows = np.flatnonzero(which.ravel() == i)
        part = restricted(learner, pattern)
        found.append(function(part, part.received(np.where(pattern, Y[rows], 0.0))))
        order.append(rows)
    back = np.argsort(np.concatenate(order))
    joined: _Result = jax.tree.map(lambda *parts: np.concatenate(parts)[back], *found)
    return joined


def completed(learner: SpikeSlabLearner, Y: Float[np.ndarray, "n K"], mean: Float[np.ndarray, "n D"]) -> NDArray[Any]:
    """Whitened signals whose missing values leave what the residual of the others makes one expect of theirs."""
    missing = np.isnan(Y)
    if not missing.any():
        return learner.received(Y)
    predicted = learner.unwhitened(mean @ learner.learned.design_matrix.T)
    residual = np.where(missing, 0.0, Y - predicted)
    if learner.whitening is not None and learner.mixes_sensors:
        information = learner.whitening.transform.T @ learner.whitening.transform
        for row, gone in zip(residual, missing, strict=True):
            if gone.any():
                block = information[gone]
                row[gone] = -np.linalg.lstsq(block[:, gone], block[:, ~gone] @ row[~gone], rcond=None)[0]
    return learner.received(predicted + residual)


def restricted(learner: SpikeSlabLearner, seen: Bool[np.ndarray, " K"]) -> SpikeSlabLearner:
    """The same model for signals of which only some sensors have a value; the others are to be zero."""
    part, whitening = copy(learner), learner.whitening
    matrix = learner.learned.design_matrix
    if whitening is None or not learner.mixes_sensors:
        matrix = matrix * seen[:, None]
    else:
        rows = np.flatnonzero(seen)
        inverse = whitening.inverse[rows]
        raw = inverse @ matrix
        found, unit = whitening_of(inverse @ inverse.T, raw) if len(rows) else (None, 1.0)
        own = np.eye(len(rows)) if found is None else found.transform
        transform = np.zeros((len(seen), len(seen)))
        transform[: len(own), rows] = own / np.sqrt(unit)
        matrix, part.whitening = transform[:, rows] @ raw, Whitening(transform, np.linalg.pinv(transform))
    part.learned = learner.learned._replace(design_matrix=matrix)
    if learner.base is not None:
        part.base = learner.base._replace(design_matrix=matrix)
    elif learner.mode != "exact":
        part.prepare()
    return part
