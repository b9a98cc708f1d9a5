"""VAMP layers [Rangan, Schniter and Fletcher, 2019]: sites of one common variance on columns of about unit norm.

One singular value decomposition serves all signals and layers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayeslista.spike_slab.config import NUMERICS
from bayeslista.spike_slab.denoiser import prior_moments
from bayeslista.spike_slab.model import LayerScalars, NetworkState, SpikeSlabProblem, layer_noise, posterior_moments


class _VampState(NamedTuple):
    """What a VAMP layer hands on, in the units of normalised columns.

    Sites of a common variance are a linear function of the posterior and the cavities, so what the matrix makes of them
    follows from what it makes of those: every layer multiplies by it once each way.
    """

    site_mean: Float[Array, "n D"]
    site_var: Float[Array, "n 1"]
    site_seen: Float[Array, "n R"]  # right singular vectors times the sites' means
    seen: Float[Array, "n R"]  # the same of the posterior
    cavity_mean: Float[Array, "n D"]
    cavity_var: Float[Array, "n 1"]
    prob_active: Float[Array, "n D"]
    mean: Float[Array, "n D"]
    var: Float[Array, "n D"]


def vamp_layers(
    problem: SpikeSlabProblem, observations: Array, state: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """VAMP layers; none leave the state as it is."""
    if not len(scalars.offset):
        return state
    unit, singular = problem.column_unit, problem.singular
    prior = problem.prior._replace(mean=problem.prior.mean / unit, var=problem.prior.var / unit**2)
    limits = jnp.finfo(observations.dtype)
    n_components = unit.shape[0]
    projected = observations @ problem.left
    outside = jnp.sum(observations**2, axis=1, keepdims=True) - jnp.sum(projected**2, axis=1, keepdims=True)
    outside = jnp.maximum(outside, 0.0)
    least = NUMERICS.site_floor / jnp.mean(prior_moments(prior)[1])

    def layer(before: _VampState, own: LayerScalars) -> tuple[_VampState, None]:
        # Noise of the layer: σ² times a factor of the chi-square and the number of active coefficients.
        residual = jnp.sum((projected - singular * before.seen) ** 2, axis=1, keepdims=True) + outside
        noise = layer_noise(
            problem, residual / observations.shape[1], before.mean * unit, before.var * unit**2, before.prob_active, own
        )
        # LMMSE step with sites N(r, t I): gains 1/(t s² + σ²) in the basis of singular vectors.
        t, r = before.site_var, before.site_mean
        gain = 1 / (t * singular**2 + noise)
        information = jnp.sum(singular**2 * gain, axis=1, keepdims=True) / n_components
        information = jnp.maximum(information, 1 / (NUMERICS.largest_cavity * t))
        # 1 − t·information as a sum of what is not information, so that nothing cancels where the noise is small.
        remaining = (jnp.sum(noise * gain, axis=1, keepdims=True) + (n_components - singular.shape[0])) / n_components
        # Cavity (extrinsic) N(r̃, t̃): the site divided out of the LMMSE posterior.
        cavity_t = jnp.maximum(remaining, limits.eps) / information
        step = singular * gain * (projected - singular * before.site_seen) / information
        cavity_r = r + step @ problem.right
        # Denoising: posterior moments of prior times cavity.
        prob_active, mean, var = posterior_moments(prior, cavity_r, cavity_t, own)
        seen = mean @ problem.right.T
        # New site: moments matched on average, 1/t = 1/mean(v) − 1/t̃, with damping.
        left_over = jnp.mean(var, axis=1, keepdims=True) / cavity_t
        site = (1 / jnp.maximum(left_over, limits.eps**0.5) - 1) / cavity_t
        site = jnp.exp(own.log_site) * jnp.maximum(site, least)
        share = jax.nn.sigmoid(own.damping)
        site_t = 1 / (share * site + (1 - share) / t)
        weights = share * site_t * (1 / cavity_t + site), share * site_t / cavity_t, (1 - share) * site_t / t
        site_r = weights[0] * mean - weights[1] * cavity_r + weights[2] * r
        site_seen = weights[0] * seen - weights[1] * (before.site_seen + step) + weights[2] * before.site_seen
        return _VampState(site_r, site_t, site_seen, seen, cavity_r, cavity_t, prob_active, mean, var), None

    site_mean, mean = state.site_shift / (state.site_precision * unit), state.mean / unit
    begin = _VampState(
        site_mean,
        jnp.mean(1 / (state.site_precision * unit**2), axis=1, keepdims=True),
        site_mean @ problem.right.T,
        mean @ problem.right.T,
        state.cavity_mean / unit,
        jnp.mean(state.cavity_var / unit**2, axis=1, keepdims=True),
        state.prob_active,
        mean,
        state.var / unit**2,
    )
    end = jax.lax.scan(layer, begin, scalars)[0]
    precision = jnp.broadcast_to(1 / (end.site_var * unit**2), end.mean.shape)
    cavities = end.cavity_mean * unit, end.cavity_var * unit**2
    posterior = end.prob_active, end.mean * unit, end.var * unit**2
    return NetworkState(precision, end.site_mean * unit * precision, *cavities, *posterior)
