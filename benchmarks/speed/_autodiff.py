"""An ADF epoch whose gradient is found by automatic differentiation, to compare the hand-derived one with."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, ndtr

from bayeslista.bayes_lista.adf import filtering as adf
from bayeslista.bayes_lista.adf.evidence import evidence_and_factors
from bayeslista.bayes_lista.adf.layers import FreeWeights
from bayeslista.bayes_lista.adf.posterior import AdfPosterior

Gradient = Callable[..., FreeWeights]


def textbook_log_evidence(weights, observation, code, shrinkage, shape, rate):
    (w_mean, w_var), (s_mean, s_var) = weights
    drive_mean, drive_var = w_mean @ observation, w_var @ observation**2

    def density(t):
        return jnp.exp(-0.5 * t * t) / jnp.sqrt(2 * jnp.pi)

    def layer(carry, threshold):
        mean, var = carry
        std = jnp.sqrt(var)
        up, down = (mean - threshold) / std, (-mean - threshold) / std
        active = ndtr(up) + ndtr(down)
        e = std * (density(up) + up * ndtr(up) - density(down) - down * ndtr(down))
        second = (1 + up**2) * ndtr(up) + up * density(up) + (1 + down**2) * ndtr(down) + down * density(down)
        s = var * second - e**2
        following = drive_mean + s_mean @ e, drive_var + s_mean**2 @ s + s_var @ (e**2 + s)
        return following, (active, e, s)

    _, (active, e, s) = jax.lax.scan(layer, (drive_mean, drive_var), shrinkage)
    active, e, s = active[-1], e[-1], s[-1]
    mean = e / active
    var = s / active - (1 - active) * mean**2 + rate / (shape - 1)
    spike = jnp.exp(gammaln(shape + 0.5) - gammaln(shape)) / jnp.sqrt(2 * jnp.pi * rate)
    spike *= (1 + 0.5 * code**2 / rate) ** -(shape + 0.5)
    slab = jnp.exp(-0.5 * (code - mean) ** 2 / var) / jnp.sqrt(2 * jnp.pi * var)
    return jnp.sum(jnp.log((1 - active) * spike + active * slab))


def log_evidence(*arguments: Any) -> jax.Array:
    """With the moments of `numerics.soft_threshold` and `soft_threshold_fast`."""
    return jnp.sum(evidence_and_factors(*arguments)[0].log_evidence)


GRADIENTS: dict[str, Gradient] = {"jax.grad": jax.grad(log_evidence), "textbook": jax.grad(textbook_log_evidence)}


def one_pass(gradient: Gradient) -> Callable[..., AdfPosterior]:
    """An epoch of the estimator's own update with this gradient."""

    @jax.jit
    def run(posterior: AdfPosterior, pairs: adf.Pair, shrinkage: jax.Array) -> AdfPosterior:
        def step(weights: FreeWeights, pair: adf.Pair) -> tuple[FreeWeights, None]:
            slopes = gradient(weights, *pair, shrinkage, *posterior.noise_precision)
            changes = adf._filtered(weights, lambda: slopes).changes
            return FreeWeights(*map(adf._moved, weights, changes)), None

        return posterior._replace(weights=jax.lax.scan(step, posterior.weights, pairs)[0])

    return run
