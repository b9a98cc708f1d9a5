"""Scalars of spike-and-slab layers that serve untrained, and that training begins with."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from bayeslista.spike_slab.config import NUMERICS
from bayeslista.spike_slab.model import LayerScalars
from bayeslista.spike_slab.network import HeadScalars, NetworkScalars


class Start(NamedTuple):
    """Scalars that serve untrained: of VAMP and EP layers, and slopes of the head but for the variance ratio."""

    vamp: tuple[float, ...]
    ep: tuple[float, ...]
    log_inverse_temperature: tuple[float, ...] = (0.0, 0.0, 0.0)
    log_widening: tuple[float, ...] = (0.0, 0.0, 0.0)


_TEMPERED = (-0.14, -0.03, 2.3, 0.39, -0.20, 0.18, 0.0)
_HEAD = (0.21, 0.04, -0.26), (-0.10, -0.04, 0.29)
# One suits matrices of independent entries; one, in which sites change by half as much, matrices of columns that are
# alike: rounded means of what training found for pairs, sinusoids, blur and dipoles; the last codes of few values.
# benchmarks/calibration.py measures them.
STARTS = {
    "independent": Start(_TEMPERED, (-0.27, 0.28, 2.2, -0.06, -0.06, -0.02, 0.11), *_HEAD),
    "coherent": Start(_TEMPERED, (0.1, 0.2, 1.75, 0.15, 0.05, 0.1, -0.6), *_HEAD),
    "plain": Start((0.0, 0.0, 1.7, 0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 2.2, 0.0, 0.0, 0.0, 0.0)),
}


def default_scalars(
    n_vamp_layers: int,
    n_ep_layers: int,
    dtype: DTypeLike = np.float64,
    *,
    n_refinement_layers: int = 10,
    start: str = "independent",
) -> NetworkScalars:
    """Scalars that serve untrained, on problems of many sizes; VAMP layers alone are plain."""

    def stack(size: int, values: tuple[float, ...]) -> LayerScalars:
        parts: Any = [np.full(size, value, dtype) for value in values]
        return LayerScalars(*parts)

    vamp, ep, inverse_temperature, widening = STARTS[start if n_ep_layers else "plain"]
    head: Any = [np.asarray((*slope, 0.0), dtype) for slope in (inverse_temperature, (0.0,) * 3, widening, (0.0,) * 3)]
    cooling: Any = np.linspace(ep[0], ep[0] * NUMERICS.final_temperature_ratio, n_refinement_layers, dtype=dtype)
    damping = np.full_like(cooling, NUMERICS.refinement_damping)
    refinement = stack(n_refinement_layers, ep)._replace(log_inverse_temperature=cooling, damping=damping)
    return NetworkScalars(stack(n_vamp_layers, vamp), stack(n_ep_layers, ep), refinement, HeadScalars(*head))
