"""Slabs as they are given."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslista.spike_slab.empirical_bayes import SlabMixture


def given_slab(var: NDArray[Any], weight: NDArray[Any] | None) -> SlabMixture:
    """A slab of zero mean: one variance, one a coefficient, or with weights one a component, (C,) or (C, D)."""
    values = np.asarray(var, np.float64)
    if weight is None:
        values = values[None, :] if values.ndim == 1 else values.reshape(1)
        return SlabMixture(np.ones(1), np.zeros_like(values), values)
    weights = np.asarray(weight, np.float64)
    return SlabMixture(weights / weights.sum(), np.zeros_like(values), values)


def single_slab(var: float) -> SlabMixture:
    """One Gaussian of zero mean."""
    return SlabMixture(np.ones(1), np.zeros(1), np.array([float(var)]))
