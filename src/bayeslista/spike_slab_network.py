"""Spike-and-slab layers as a network: their scalars, all layers in a row, and the head that makes them an answer.

Where the noise allows, all layers but the last two run in single precision.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import DTypeLike

from bayeslista.denoiser import Denoised, denoise
from bayeslista.message_passing import (
    LayerScalars,
    NetworkState,
    Problem,
    fit_of,
    mean_residual,
    propagation_layers,
    start,
    vector_layers,
)

_PRECISE_LAYERS = 2  # of the last kind, which correct what single precision lost


class HeadScalars(NamedTuple):
    """What makes the last layer's belief an answer: each slope meets (1, misfit, count)."""

    log_temper: Float[Array, "3"]
    offset: Float[Array, ""]
    log_widening: Float[Array, "3"]


class NetworkScalars(NamedTuple):
    """All that a network learns besides the problem itself."""

    vector_layers: LayerScalars
    propagation_layers: LayerScalars
    head: HeadScalars


def run_layers(problem: Problem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> NetworkState:
    """All layers, those of vector AMP first; derivatives reach the scalars of the last kind only.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    scalars : NetworkScalars
        As many layers of each kind as there are entries.

    Returns
    -------
    NetworkState
        After the last layer.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars, run_layers
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> run_layers(problem, np.array([[0.0, 2.0]]), default_scalars(2, 1)).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    begin = state = start(problem, observations)
    if problem.rough is not None and begin.mean.dtype == np.float64:
        early, scalars = _split(scalars)
        single: Any = jax.tree.map(lambda part: part.astype(np.float32), (observations, begin, early))
        state = _all_layers(problem.rough, single[0], single[1], single[1], single[2])
        state = jax.tree.map(lambda part: part.astype(np.float64), state)
    return _all_layers(problem, observations, state, begin, scalars)


@jax.jit
def answer(problem: Problem, observations: Float[Array, "n K"], state: NetworkState, head: HeadScalars) -> Denoised:
    """The last cavities as a calibrated spike and slab.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    state : NetworkState
        After the last layer.
    head : HeadScalars
        How log-odds are scaled and slabs widened, by how each signal fits.

    Returns
    -------
    Denoised
        Log-odds and slab.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import answer, default_scalars, run_layers
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observations, scalars = np.array([[0.0, 2.0]]), default_scalars(2, 1)
    >>> belief = answer(problem, observations, run_layers(problem, observations, scalars), scalars.head)
    >>> (belief.log_odds > 0).tolist()
    [[False, True]]
    """
    residual = mean_residual(problem, observations, state)
    misfit, count, _ = fit_of(problem, residual, state.mean, state.var, state.prob_active)
    features = jnp.concatenate([jnp.ones_like(misfit), misfit, count], axis=1)
    temper = jnp.exp(features @ head.log_temper)[:, None]
    widening = jnp.exp(features @ head.log_widening)[:, None]
    belief = denoise(state.cavity_mean, state.cavity_var, problem.prior, 1.0, 0.0, widening)
    return belief._replace(log_odds=temper * belief.log_odds + head.offset)


@jax.jit
def run_network(problem: Problem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> Denoised:
    """All layers and the head.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    scalars : NetworkScalars
        As many layers of each kind as there are entries.

    Returns
    -------
    Denoised
        Log-odds and slab of every coefficient.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars, run_network
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> run_network(problem, np.array([[0.0, 2.0]]), default_scalars(2, 1)).slab_mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    return answer(problem, observations, run_layers(problem, observations, scalars), scalars.head)


def default_scalars(
    n_vector_layers: int, n_propagation_layers: int, dtype: DTypeLike = np.float64, *, tempered: bool = True
) -> NetworkScalars:
    """Scalars that serve untrained, on problems of many sizes.

    Parameters
    ----------
    n_vector_layers, n_propagation_layers : int
        How many layers of each kind.
    dtype : dtype
        Floating type of the result.
    tempered : bool, default=True
        Whether log-odds are softened where there are layers of expectation propagation; without it both kinds of
        layers are those of the textbook, but for damping, which suits slabs of a few discrete values.

    Returns
    -------
    NetworkScalars
        The same for all layers of a kind.

    Examples
    --------
    >>> from bayeslista.spike_slab_network import default_scalars
    >>> default_scalars(4, 6).vector_layers.offset.shape
    (4,)
    """

    def stack(size: int, values: tuple[float, ...]) -> LayerScalars:
        parts: Any = [np.full(size, value, dtype) for value in values]
        return LayerScalars(*parts)

    propagation = (0.0, 0.0, 2.2, 0.0, 0.0, 0.0, 0.0)
    if n_propagation_layers and tempered:
        vector = (-0.14, -0.03, 2.3, 0.39, -0.20, 0.18, 0.0)
        propagation = (-0.27, 0.28, 2.2, -0.06, -0.06, -0.02, 0.11)
        slopes = ([0.21, 0.04, -0.26], 0.0, [-0.10, -0.04, 0.29])
    else:
        vector = (0.0, 0.0, 1.7, 0.0, 0.0, 0.0, 0.0)
        slopes = ([0.0, 0.0, 0.0], 0.0, [0.0, 0.0, 0.0])
    head: Any = [np.asarray(slope, dtype) for slope in slopes]
    layers = stack(n_vector_layers, vector), stack(n_propagation_layers, propagation)
    return NetworkScalars(*layers, HeadScalars(*head))


def _all_layers(
    problem: Problem, observations: Array, state: NetworkState, begin: NetworkState, scalars: NetworkScalars
) -> NetworkState:
    """Layers of both kinds, each kind given up for where it began if it diverges."""
    state = vector_layers(problem, observations, state, scalars.vector_layers)
    state = _unless_diverged(problem, observations, state, begin)
    if not len(scalars.propagation_layers.offset):
        return state
    # What a layer of one kind could learn from those of the other is not worth what it costs.
    state = jax.lax.stop_gradient(state)
    state = propagation_layers(problem, observations, state, scalars.propagation_layers)
    return _unless_diverged(problem, observations, state, begin)


def _split(scalars: NetworkScalars) -> tuple[NetworkScalars, NetworkScalars]:
    """All layers but the last ones of the last kind, and those."""
    kind = "propagation_layers" if len(scalars.propagation_layers.offset) else "vector_layers"
    early = jax.tree.map(lambda part: part[:-_PRECISE_LAYERS], getattr(scalars, kind))
    late = jax.tree.map(lambda part: part[-_PRECISE_LAYERS:], getattr(scalars, kind))
    none = jax.tree.map(lambda part: part[:0], scalars.vector_layers)
    return scalars._replace(**{kind: early}), scalars._replace(**{"vector_layers": none, kind: late})


def _unless_diverged(problem: Problem, observations: Array, state: NetworkState, begin: NetworkState) -> NetworkState:
    """Layers that explain a signal worse than nothing does, or end in no number, give way to where they began."""
    usable = (
        mean_residual(problem, observations, state) <= mean_residual(problem, observations, begin) + problem.noise_var
    )
    for part in state:
        usable = usable & jnp.isfinite(part).all(axis=1, keepdims=True)
    return NetworkState(*(jnp.where(usable, new, old) for new, old in zip(state, begin, strict=True)))
