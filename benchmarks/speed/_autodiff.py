"""An ADF pass whose gradient is found by automatic differentiation, to compare the hand-derived one with."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, ndtr

from bayeslista.inference import adf
from bayeslista.network import Weights, log_evidence
from bayeslista.posterior import Belief

Gradient = Callable[..., Weights]


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


# With the moments of `moments` and `quick_moments`, or with those that one would write without them.
GRADIENTS: dict[str, Gradient] = {"jax.grad": jax.grad(log_evidence), "textbook": jax.grad(textbook_log_evidence)}


def one_pass(gradient: Gradient) -> Callable[..., Belief]:
    """A pass of the estimator's own update with this gradient."""

    @jax.jit
    def run(belief: Belief, pairs: adf.Pair, shrinkage: jax.Array) -> Belief:
        def step(weights: Weights, pair: adf.Pair) -> tuple[Weights, None]:
            slopes = gradient(weights, *pair, shrinkage, *belief.noise_precision)
            changes = adf._filtered(weights, lambda: slopes).changes
            return Weights(*map(adf._moved, weights, changes)), None

        return belief._replace(weights=jax.lax.scan(step, belief.weights, pairs)[0])

    return run
