"""Spike-and-slab layers as a network: their scalars, all layers in a row, and the head that makes them an answer.

A network runs in three parts: its early layers; further layers for those signals that are still in doubt, which cause
most of the error; and its last layers. Where the noise allows, all but these two run in single precision.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import DTypeLike

from bayeslista._compilation import quickly_compiled
from bayeslista.denoiser import Denoised, blend, denoise, prior_moments
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

_USUAL_DOUBT, _DOUBT_FLOOR = 0.1, 0.01
_FURTHER_DAMPING, _FINAL_TEMPER = 1.0, 0.37
_LAST_LAYERS = 2  # of the last kind, which correct what single precision lost


class HeadScalars(NamedTuple):
    """What makes the last layer's belief an answer: each slope meets (1, misfit, count, doubt)."""

    log_temper: Float[Array, "4"]
    offset: Float[Array, "4"]
    log_widening: Float[Array, "4"]  # of cavities, which moves the means of slabs, too
    log_spread: Float[Array, "4"] | np.ndarray = np.zeros(4, np.float32)  # of slabs alone


class Opinion(NamedTuple):
    """A second answer, of the layers of vector AMP alone, and the log-odds of its share in the whole.

    Expectation propagation is the better one but, of a doubtful signal, is sometimes sure of the wrong support.
    """

    head: HeadScalars
    log_odds: Float[Array, ""]


class NetworkScalars(NamedTuple):
    """All that a network learns besides the problem itself."""

    vector_layers: LayerScalars
    propagation_layers: LayerScalars
    further_layers: LayerScalars  # of expectation propagation, for signals in doubt
    head: HeadScalars
    opinion: Opinion | None = None


def early_layers(problem: Problem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> NetworkState:
    """All layers but the last, those of vector AMP first, in single precision where the problem has a rough twin.

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
        In the precision that it was computed in.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars, early_layers
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> early_layers(problem, np.array([[0.0, 2.0]]), default_scalars(4, 0)).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    working, observations, early = _roughly(problem, observations, _split(scalars)[0])
    begin = start(working, observations)
    state = vector_layers(working, observations, begin, early.vector_layers)
    if len(scalars.propagation_layers.offset):
        # What a layer of one kind could learn from those of the other is not worth what it costs.
        state = jax.lax.stop_gradient(state)
    return _propagate(working, observations, state, begin, early.propagation_layers)


def further_layers(
    problem: Problem, observations: Float[Array, "n K"], state: NetworkState, scalars: NetworkScalars
) -> NetworkState:
    """More layers of expectation propagation, that sharpen slowly.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    state : NetworkState
        From `early_layers`.
    scalars : NetworkScalars
        Of the network.

    Returns
    -------
    NetworkState
        In the same precision.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars, early_layers, further_layers
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observations, scalars = np.array([[0.0, 2.0]]), default_scalars(0, 2)
    >>> state = early_layers(problem, observations, scalars)
    >>> further_layers(problem, observations, state, scalars).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    working, observations, scalars = _roughly(problem, observations, scalars)
    return _propagate(working, observations, state, start(working, observations), scalars.further_layers)


def last_layers(
    problem: Problem, observations: Float[Array, "n K"], state: NetworkState, scalars: NetworkScalars
) -> NetworkState:
    """The last layers of the last kind, in the precision of the observations.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    state : NetworkState
        From `early_layers` or `further_layers`.
    scalars : NetworkScalars
        Of the network.

    Returns
    -------
    NetworkState
        From which `answer` makes an answer.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem, start
    >>> from bayeslista.spike_slab_network import default_scalars, last_layers
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observations = np.array([[0.0, 2.0]])
    >>> last_layers(problem, observations, start(problem, observations), default_scalars(0, 1)).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    last, begin = _split(scalars)[1], start(problem, observations)
    state = NetworkState(*(part.astype(begin.mean.dtype) for part in state))
    if not len(last.propagation_layers.offset):
        state = vector_layers(problem, observations, state, last.vector_layers)
        return _unless_diverged(problem, observations, state, begin)
    return _propagate(problem, observations, state, begin, last.propagation_layers)


def doubt(problem: Problem, state: NetworkState) -> Float[Array, " n"]:
    """How much of the prior's variance is left of each signal's code.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    state : NetworkState
        Of any layer.

    Returns
    -------
    array of shape (n,)
        One share for each signal.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem, start
    >>> from bayeslista.spike_slab_network import doubt
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> doubt(problem, start(problem, np.array([[0.0, 2.0]]))).tolist()
    [1.0]
    """
    prior_var = prior_moments(problem.prior)[1]
    return state.var.sum(axis=1) / prior_var.sum()


def run_layers(problem: Problem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> NetworkState:
    """Early and last layers; derivatives reach the scalars of the last kind only.

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
    return last_layers(problem, observations, early_layers(problem, observations, scalars), scalars)


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
    log_doubt = jnp.log(doubt(problem, state)[:, None] / _USUAL_DOUBT + _DOUBT_FLOOR)
    features = jnp.concatenate([jnp.ones_like(misfit), misfit, count, log_doubt], axis=1)
    temper = jnp.exp(features @ head.log_temper)[:, None]
    widening = jnp.exp(features @ head.log_widening)[:, None]
    belief = denoise(state.cavity_mean, state.cavity_var, problem.prior, 1.0, 0.0, widening)
    return belief._replace(
        log_odds=temper * belief.log_odds + (features @ head.offset)[:, None],
        slab_var=belief.slab_var * jnp.exp(features @ head.log_spread)[:, None],
    )


def vector_state(problem: Problem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> NetworkState:
    """Where the layers of vector AMP end, before any expectation propagation.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    scalars : NetworkScalars
        Of the network.

    Returns
    -------
    NetworkState
        In the precision of the observations, from which a second opinion is made.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars, vector_state
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> vector_state(problem, np.array([[0.0, 2.0]]), default_scalars(4, 1)).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    working, rough, early = _roughly(problem, observations, scalars)
    begin = start(working, rough)
    state = _unless_diverged(working, rough, vector_layers(working, rough, begin, early.vector_layers), begin)
    dtype = jnp.asarray(observations).dtype  # without double precision, single
    return NetworkState(*(part.astype(dtype) for part in state))


@quickly_compiled
def with_opinion(
    problem: Problem, observations: Float[Array, "n K"], state: NetworkState, scalars: NetworkScalars
) -> Denoised:
    """The answer of all layers, with that of the layers of vector AMP where there is a second opinion.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    state : NetworkState
        After the last layer.
    scalars : NetworkScalars
        Of the network.

    Returns
    -------
    Denoised
        Log-odds and slab of every coefficient.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars, run_layers, with_opinion
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observations, scalars = np.array([[0.0, 2.0]]), default_scalars(2, 1)
    >>> belief = with_opinion(problem, observations, run_layers(problem, observations, scalars), scalars)
    >>> (belief.log_odds > 0).tolist()
    [[False, True]]
    """
    belief = answer(problem, observations, state, scalars.head)
    if scalars.opinion is None:
        return belief
    before = vector_state(problem, observations, scalars)
    return blend(belief, answer(problem, observations, before, scalars.opinion.head), scalars.opinion.log_odds)


@quickly_compiled
def run_network(problem: Problem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> Denoised:
    """Early and last layers, and the head.

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
    n_vector_layers: int,
    n_propagation_layers: int,
    dtype: DTypeLike = np.float64,
    *,
    n_further_layers: int = 10,
    tempered: bool = True,
) -> NetworkScalars:
    """Scalars that serve untrained, on problems of many sizes.

    Parameters
    ----------
    n_vector_layers, n_propagation_layers : int
        How many layers of each kind.
    dtype : dtype
        Floating type of the result.
    n_further_layers : int, default=10
        How many more of the second kind for signals in doubt.
    tempered : bool, default=True
        Whether log-odds are softened where there are layers of expectation propagation; without it both kinds of
        layers are those of the textbook, but for damping, which suits slabs of a few discrete values.

    Returns
    -------
    NetworkScalars
        The same for all layers of a kind, but that further layers sharpen slowly.

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
        slopes = [[0.21, 0.04, -0.26, 0.0], [0.0] * 4, [-0.10, -0.04, 0.29, 0.0], [0.0] * 4]
    else:
        vector = (0.0, 0.0, 1.7, 0.0, 0.0, 0.0, 0.0)
        slopes = [[0.0] * 4] * 4
    head: Any = [np.asarray(slope, dtype) for slope in slopes]
    vectors, propagations = stack(n_vector_layers, vector), stack(n_propagation_layers, propagation)
    temper: Any = np.linspace(propagation[0], propagation[0] * _FINAL_TEMPER, n_further_layers, dtype=dtype)
    further = stack(n_further_layers, propagation)
    further = further._replace(log_temper=temper, damping=np.full_like(temper, _FURTHER_DAMPING))
    return NetworkScalars(vectors, propagations, further, HeadScalars(*head))


def _propagate(
    problem: Problem, observations: Array, state: NetworkState, begin: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """Layers of expectation propagation; they, and what they start from, are given up where they diverge."""
    state = _unless_diverged(problem, observations, state, begin)
    if not len(scalars.offset):
        return state
    state = propagation_layers(problem, observations, state, scalars)
    return _unless_diverged(problem, observations, state, begin)


def _split(scalars: NetworkScalars) -> tuple[NetworkScalars, NetworkScalars]:
    """All layers but the last ones of the last kind, and those."""
    kind = "propagation_layers" if len(scalars.propagation_layers.offset) else "vector_layers"
    early = jax.tree.map(lambda part: part[:-_LAST_LAYERS], getattr(scalars, kind))
    last = jax.tree.map(lambda part: part[-_LAST_LAYERS:], getattr(scalars, kind))
    none = jax.tree.map(lambda part: part[:0], scalars.vector_layers)
    return scalars._replace(**{kind: early}), scalars._replace(**{"vector_layers": none, kind: last})


def _roughly(problem: Problem, observations: Array, scalars: NetworkScalars) -> tuple[Problem, Array, NetworkScalars]:
    """All in single precision, if the problem allows."""
    if problem.rough is None or observations.dtype != np.float64:
        return problem, observations, scalars
    single: Any = jax.tree.map(lambda part: part.astype(np.float32), (observations, scalars))
    return problem.rough, *single


def _unless_diverged(problem: Problem, observations: Array, state: NetworkState, begin: NetworkState) -> NetworkState:
    """Layers that explain a signal worse than nothing does, or end in no number, give way to where they began."""
    usable = (
        mean_residual(problem, observations, state) <= mean_residual(problem, observations, begin) + problem.noise_var
    )
    nothing = sum(0 * part for part in state)  # unless some part is not finite
    usable = usable & (jnp.sum(nothing, axis=1, keepdims=True) == 0)
    chosen = jnp.broadcast_to(usable, state.mean.shape)
    return NetworkState(*(jax.lax.select(chosen, new, old) for new, old in zip(state, begin, strict=True)))
