r"""The denoiser: posterior of a coefficient under a spike-and-slab prior and a Gaussian cavity.

A coefficient is zero with probability :math:`1 - p` and else from a small mixture of Gaussians, the slab. Only
logarithms of probabilities are formed, so no probability rounds to zero.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, DTypeLike
from scipy.special import expit


class SlabPrior(NamedTuple):
    """A spike and a mixture of C Gaussians for each of D coefficients."""

    log_odds: Float[Array, " D"]
    log_weight: Float[Array, " C"]
    mean: Float[Array, "C D"]
    var: Float[Array, "C D"]


class Denoised(NamedTuple):
    """Posterior of prior times cavity: log-odds of being active, and the slab's moments."""

    log_odds: Float[Array, "n D"]
    slab_mean: Float[Array, "n D"]
    slab_var: Float[Array, "n D"]


def slab_prior(
    prob_active: ArrayLike,
    slab_mean: ArrayLike,
    slab_var: ArrayLike,
    weight: ArrayLike = 1.0,
    *,
    n_components: int,
    dtype: DTypeLike = np.float64,
) -> SlabPrior:
    """A prior from numbers for all coefficients, or from one column for each."""
    edge = np.finfo(dtype).eps
    chance = np.clip(np.asarray(prob_active, np.float64), edge, 1 - edge)
    weights = np.atleast_1d(np.asarray(weight, np.float64))

    def columns(values: ArrayLike) -> Any:
        array = np.asarray(values, np.float64)
        upright = array if array.ndim == 2 else array.reshape(-1, 1)
        return np.broadcast_to(upright, (len(weights), n_components)).astype(dtype)

    log_odds: Any = np.broadcast_to(np.log(chance) - np.log1p(-chance), (n_components,)).astype(dtype)
    log_weight: Any = np.log(np.maximum(weights, np.finfo(dtype).tiny)).astype(dtype)
    return SlabPrior(log_odds, log_weight, columns(slab_mean), columns(slab_var))


def prior_moments(prior: SlabPrior) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    """Mean and variance of every coefficient, spike included."""
    if not isinstance(prior.mean, np.ndarray):
        return _compiled_moments(prior)
    with np.errstate(over="ignore", invalid="ignore"):
        return _moments(prior, np.exp(prior.log_weight), expit(prior.log_odds))


def _moments(prior: SlabPrior, weight: Array, prob_active: Array) -> tuple[Array, Array]:
    slab_mean = (weight[:, None] * prior.mean).sum(axis=0)
    slab_var = (weight[:, None] * (prior.var + (prior.mean - slab_mean) ** 2)).sum(axis=0)
    return with_spike(prob_active, slab_mean, slab_var)


@jax.jit
def _compiled_moments(prior: SlabPrior) -> tuple[Array, Array]:
    return _moments(prior, jnp.exp(prior.log_weight), jax.nn.sigmoid(prior.log_odds))


@jax.jit
def denoise(
    cavity_mean: Float[Array, "n D"],
    cavity_var: Float[Array, "n D"],
    prior: SlabPrior,
    inverse_temperature: Float[Array, "..."] | float = 1.0,
    offset: Float[Array, "..."] | float = 0.0,
    widening: Float[Array, "..."] | None = None,
) -> Denoised:
    r"""The tempered posterior of coefficients with Gaussian cavities ``N(r, t)``.

    .. math::
        \ell = \tau \Big[\log\frac{p}{1-p} + b + \log \frac{\sum_c \pi_c N(r; \mu_c, s_c + t)}{N(r; 0, t)}\Big],

    and the moments of the mixture that the slab becomes. Only logarithms of probabilities are formed, and the ratio of
    densities without their difference, so neither a distant ``r`` nor a vanishing ``t`` loses digits.
    """
    log_slab, slab_mean, slab_var = _slab_given(cavity_mean, cavity_var, prior)
    if widening is not None:
        _, slab_mean, slab_var = _slab_given(cavity_mean, cavity_var * widening, prior)
    return Denoised(inverse_temperature * (prior.log_odds + offset + log_slab), slab_mean, slab_var)


def _slab_given(r: Array, t: Array, prior: SlabPrior) -> tuple[Array, Array, Array]:
    """Log ratio of the densities of slab and spike, and the moments of the slab, given cavities."""
    limits = jnp.finfo(r.dtype)
    mu, s = prior.mean[:, None, :], prior.var[:, None, :]
    inverse = 1 / (s + t)
    share = s * inverse
    largest = 0.01 * jnp.sqrt(limits.max)
    score = jnp.clip(r * jax.lax.rsqrt(t), -largest, largest)
    exponent = prior.log_weight[:, None, None] + 0.5 * (score * score * share + (2 * r - mu) * (mu * inverse))
    lost = jnp.maximum(t * inverse, limits.tiny)
    part_mean = mu + share * (r - mu)
    part_var = t * share
    if len(mu) == 1:
        return exponent[0] + 0.5 * jnp.log(lost[0]), part_mean[0], part_var[0]
    highest = jax.lax.stop_gradient(jnp.max(exponent, axis=0))
    mass = jnp.sqrt(lost) * jnp.exp(exponent - highest)
    total = jnp.sum(mass, axis=0)
    part = mass / total
    mean = jnp.sum(part * part_mean, axis=0)
    return highest + jnp.log(total), mean, jnp.sum(part * (part_var + (part_mean - mean) ** 2), axis=0)


def with_spike(prob_active: Array, slab_mean: Array, slab_var: Array) -> tuple[Array, Array]:
    """Mean and variance of a slab with its spike."""
    return prob_active * slab_mean, prob_active * (slab_var + (1 - prob_active) * slab_mean**2)
