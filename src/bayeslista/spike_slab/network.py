"""Spike-and-slab layers as a network: their scalars, all layers in a row, and the head that makes them an answer.

A network runs in three parts: its early layers; refinement layers for signals of large posterior variance ratio, which
cause most of the error; and its last layers. Where the noise allows, all but these two run in float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import DTypeLike

from bayeslista.numerics.compilation import fast_compiled
from bayeslista.spike_slab.config import NUMERICS
from bayeslista.spike_slab.denoiser import Denoised, denoise, prior_moments
from bayeslista.spike_slab.ep import ep_layers
from bayeslista.spike_slab.model import (
    LayerScalars,
    NetworkState,
    SpikeSlabProblem,
    fit_statistics,
    mean_residual,
    start,
)
from bayeslista.spike_slab.vamp import vamp_layers


class HeadScalars(NamedTuple):
    """Slopes of the calibrated answer in (1, log chi-square, excess count, log posterior variance ratio)."""

    log_inverse_temperature: Float[Array, "4"]
    offset: Float[Array, "4"]
    log_widening: Float[Array, "4"]  # of cavities, which moves the means of slabs, too
    log_slab_scale: Float[Array, "4"] | np.ndarray = np.zeros(4, np.float32)  # of slabs alone


class NetworkScalars(NamedTuple):
    """All that a network learns besides the problem itself."""

    vamp_layers: LayerScalars
    ep_layers: LayerScalars
    refinement_layers: LayerScalars  # of expectation propagation, for signals of large posterior variance ratio
    head: HeadScalars


def early_layers(problem: SpikeSlabProblem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> NetworkState:
    """All layers but the last, VAMP layers first, in single precision where the problem has a float32 copy."""
    working, observations, early = _in_float32(problem, observations, _split(scalars)[0])
    begin = start(working, observations)
    state = vamp_layers(working, observations, begin, early.vamp_layers)
    if len(scalars.ep_layers.offset):
        # What a layer of one kind could learn from those of the other is not worth what it costs.
        state = jax.lax.stop_gradient(state)
    return _propagate(working, observations, state, begin, early.ep_layers)


def refinement_layers(
    problem: SpikeSlabProblem, observations: Float[Array, "n K"], state: NetworkState, scalars: NetworkScalars
) -> NetworkState:
    """More EP layers, that sharpen slowly."""
    working, observations, scalars = _in_float32(problem, observations, scalars)
    return _propagate(working, observations, state, start(working, observations), scalars.refinement_layers)


def last_layers(
    problem: SpikeSlabProblem, observations: Float[Array, "n K"], state: NetworkState, scalars: NetworkScalars
) -> NetworkState:
    """The last layers of the last kind, in the precision of the observations."""
    last, begin = _split(scalars)[1], start(problem, observations)
    state = NetworkState(*(part.astype(begin.mean.dtype) for part in state))
    if not len(last.ep_layers.offset):
        state = vamp_layers(problem, observations, state, last.vamp_layers)
        return _unless_diverged(problem, observations, state, begin)
    return _propagate(problem, observations, state, begin, last.ep_layers)


def posterior_variance_ratio(problem: SpikeSlabProblem, state: NetworkState) -> Float[Array, " n"]:
    """Posterior over prior variance of each signal's code."""
    prior_var = prior_moments(problem.prior)[1]
    return state.var.sum(axis=1) / prior_var.sum()


def run_layers(problem: SpikeSlabProblem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> NetworkState:
    """Early and last layers; derivatives reach the scalars of the last kind only."""
    return last_layers(problem, observations, early_layers(problem, observations, scalars), scalars)


@fast_compiled
def answer(
    problem: SpikeSlabProblem, observations: Float[Array, "n K"], state: NetworkState, head: HeadScalars
) -> Denoised:
    """The last cavities as a calibrated spike and slab."""
    residual = mean_residual(problem, observations, state)
    log_chi_square, count, _ = fit_statistics(problem, residual, state.mean, state.var, state.prob_active)
    log_variance_ratio = jnp.log(
        posterior_variance_ratio(problem, state)[:, None] / NUMERICS.variance_ratio_unit + NUMERICS.variance_ratio_floor
    )
    features = jnp.concatenate([jnp.ones_like(log_chi_square), log_chi_square, count, log_variance_ratio], axis=1)
    inverse_temperature = jnp.exp(features @ head.log_inverse_temperature)[:, None]
    widening = jnp.exp(features @ head.log_widening)[:, None]
    posterior = denoise(state.cavity_mean, state.cavity_var, problem.prior, 1.0, 0.0, widening)
    return posterior._replace(
        log_odds=inverse_temperature * posterior.log_odds + (features @ head.offset)[:, None],
        slab_var=posterior.slab_var * jnp.exp(features @ head.log_slab_scale)[:, None],
    )


@fast_compiled
def run_network(problem: SpikeSlabProblem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> Denoised:
    """Early and last layers, and the head."""
    return answer(problem, observations, run_layers(problem, observations, scalars), scalars.head)


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


def _propagate(
    problem: SpikeSlabProblem, observations: Array, state: NetworkState, begin: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """EP layers; they, and what they start from, are given up where they diverge."""
    state = _unless_diverged(problem, observations, state, begin)
    if not len(scalars.offset):
        return state
    state = ep_layers(problem, observations, state, scalars)
    return _unless_diverged(problem, observations, state, begin)


def _split(scalars: NetworkScalars) -> tuple[NetworkScalars, NetworkScalars]:
    """All layers but the last ones of the last kind, and those."""
    kind = "ep_layers" if len(scalars.ep_layers.offset) else "vamp_layers"
    early = jax.tree.map(lambda part: part[: -NUMERICS.last_layers], getattr(scalars, kind))
    last = jax.tree.map(lambda part: part[-NUMERICS.last_layers :], getattr(scalars, kind))
    none = jax.tree.map(lambda part: part[:0], scalars.vamp_layers)
    return scalars._replace(**{kind: early}), scalars._replace(**{"vamp_layers": none, kind: last})


def _in_float32(
    problem: SpikeSlabProblem, observations: Array, scalars: NetworkScalars
) -> tuple[SpikeSlabProblem, Array, NetworkScalars]:
    """All in single precision, if the problem allows."""
    if problem.float32_copy is None or observations.dtype != np.float64:
        return problem, observations, scalars
    single: Any = jax.tree.map(lambda part: part.astype(np.float32), (observations, scalars))
    return problem.float32_copy, *single


def _unless_diverged(
    problem: SpikeSlabProblem, observations: Array, state: NetworkState, begin: NetworkState
) -> NetworkState:
    """Layers that explain a signal worse than nothing does, or end in no number, give way to where they began."""
    usable = (
        mean_residual(problem, observations, state) <= mean_residual(problem, observations, begin) + problem.noise_var
    )
    nothing = sum(0 * part for part in state)  # unless some part is not finite
    usable = usable & (jnp.sum(nothing, axis=1, keepdims=True) == 0)
    chosen = jnp.broadcast_to(usable, state.mean.shape)
    return NetworkState(*(jax.lax.select(chosen, new, old) for new, old in zip(state, begin, strict=True)))
