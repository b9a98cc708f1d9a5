"""Spike-and-slab layers as a network: their scalars, all layers in a row, and the head that makes them an answer.

A network runs in three parts: its early layers; refinement layers for signals of large posterior variance ratio, which
cause most of the error; and its last layers. Where the noise allows, all but these two run in float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

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
