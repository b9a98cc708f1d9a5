r"""The posterior: Gaussian weights, Gamma precisions, and the refinement of the priors by expectation propagation (EP).

The prior of a weight is :math:`N(w; w_0, 1/\eta)` with :math:`\eta \sim \mathrm{Gam}(a, b)`; the paper has
:math:`w_0 = 0`. Its approximate factor in the posterior is a Gaussian about :math:`w_0` times a Gamma in :math:`\eta`,
held in natural parameters (``precision``, and the increments ``shape`` and ``rate`` of the Gamma) so that it can be
divided out and multiplied back in.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bayeslista.bayes_lista.adf.layers import FreeWeights
from bayeslista.numerics.soft_threshold_fast import Gaussian


class Gamma(NamedTuple):
    """A Gamma distribution of a precision, by shape ``a`` and rate ``b``."""

    shape: Float[Array, ""]
    rate: Float[Array, ""]


class PriorFactor(NamedTuple):
    """Approximate prior factors of one matrix, one for every weight, in natural parameters."""

    centre: Float[Array, "D E"]
    precision: Float[Array, "D E"]
    shape: Float[Array, "D E"]
    rate: Float[Array, "D E"]


class AdfPosterior(NamedTuple):
    """All that learning changes."""

    weights: FreeWeights
    encoder_prior: PriorFactor
    recurrent_prior: PriorFactor
    encoder_precision: Gamma
    recurrent_precision: Gamma
    noise_precision: Gamma


class MatrixPrior(NamedTuple):
    """Centre of the prior of a matrix, and its variance before any data, :math:`b/(a - 1)`."""

    centre: Float[Array, "D E"]
    var: Float[Array, ""]


def initial_posterior(
    encoder: Float[Array, "D K"],
    recurrent: Float[Array, "D D"],
    encoder_prior: MatrixPrior,
    recurrent_prior: MatrixPrior,
    shape: float = 6.0,
) -> AdfPosterior:
    """The posterior before any data: given means, prior variances, Gammas of one shape; the noise has rate a, too."""

    def gaussian(mean: Array, prior: MatrixPrior) -> Gaussian:
        return Gaussian(mean, jnp.full_like(mean, prior.var))

    def factor(prior: MatrixPrior) -> PriorFactor:
        zero = jnp.zeros_like(prior.centre)
        return PriorFactor(prior.centre, jnp.full_like(zero, 1 / prior.var), zero, zero)

    def precision(rate: Array | float) -> Gamma:
        return Gamma(jnp.asarray(shape, encoder.dtype), jnp.asarray(rate, encoder.dtype))

    return AdfPosterior(
        FreeWeights(gaussian(encoder, encoder_prior), gaussian(recurrent, recurrent_prior)),
        factor(encoder_prior),
        factor(recurrent_prior),
        precision(encoder_prior.var * (shape - 1)),
        precision(recurrent_prior.var * (shape - 1)),
        precision(shape),
    )


def matched_gamma(gamma: Gamma, log_evidence: Array, raised_once: Array, raised_twice: Array) -> Gamma:
    r"""The Gamma with the first two moments of its product with a factor, from log Z at shape a, a + 1 and a + 2.

    The product has :math:`E\eta = Z(a+1)/Z(a) \cdot a/b` and :math:`E\eta^2 = Z(a+2)/Z(a) \cdot a(a+1)/b^2`.
    """
    a, b = gamma
    first, second = raised_once - log_evidence, raised_twice - raised_once
    # E η² / (E η)² − 1 = 1 / shape, and E η² / E η − E η = 1 / rate.
    shape = a / (jnp.expm1(second - first) * (a + 1) + 1)
    rate = b / (jnp.exp(first) * (jnp.expm1(second - first) * (a + 1) + 1))
    return Gamma(shape, rate)


def is_proper(gamma: Gamma) -> Array:
    """Whether the Gamma is finite and its precision has a finite mean variance: ``a > 1`` and ``b > 0``."""
    shape, rate = gamma
    return jnp.isfinite(shape) & jnp.isfinite(rate) & (shape > 1) & (rate > 0)


class Refinement(NamedTuple):
    """A matrix after a sweep over its prior factors; how many were rejected, and whether the sweep was damped."""

    weights: Gaussian
    prior: PriorFactor
    precision: Gamma
    rejected: Int[Array, ""]
    damped: Int[Array, ""]


def refine_prior(weights: Gaussian, prior: PriorFactor, precision: Gamma) -> Refinement:
    """One parallel sweep of EP over the prior factors of a matrix.

    All factors start from the same posterior and their increments of the shared Gamma are summed, which can overshoot:
    the sum is damped so that shape and rate go at most half of the way to an improper Gamma. A factor with an improper
    cavity or match is rejected, which leaves it unchanged; so is, uncounted, a weight without data.
    """
    mean, var = weights
    deviation = mean - prior.centre
    # 1. Cavity: divide the approximate factor out of the posterior, N(w; m, v) / factor.
    cavity_precision = 1 / var - prior.precision
    untouched = jnp.abs(cavity_precision) <= 1e-6 * prior.precision
    proper = cavity_precision > 0
    cavity_var = 1 / jnp.where(proper, cavity_precision, 1)
    cavity_deviation = cavity_var * deviation / var
    cavity_gamma = Gamma(precision.shape - prior.shape, precision.rate - prior.rate)

    # 2. log Z of the exact prior under the cavity, ∫∫ N(w; w₀, 1/η) Gam(η) cavity(w) ≈ N(deviation; 0, v + b/(a − 1)).
    def prior_var(raised: int) -> Array:
        return cavity_gamma.rate / (cavity_gamma.shape - 1 + raised)

    def log_evidence(raised: int) -> Array:
        total = cavity_var + prior_var(raised)
        return -0.5 * jnp.log(total) - 0.5 * cavity_deviation * cavity_deviation / total

    # 3. Moment matching: of w, the product of the cavity and N(w₀, b/(a − 1)); of η, `matched_gamma`.
    kept = prior_var(0) / (cavity_var + prior_var(0))
    new_deviation, new_var = cavity_deviation * kept, cavity_var * kept
    new_gamma = matched_gamma(cavity_gamma, log_evidence(0), log_evidence(1), log_evidence(2))
    accepted = proper & ~untouched & is_proper(cavity_gamma) & is_proper(new_gamma)
    accepted &= jnp.isfinite(new_deviation) & jnp.isfinite(new_var) & (new_var > 0)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(accepted, new, old)

    # 4. The new approximate factor is the matched posterior over the cavity.
    shape_gain = choose(new_gamma.shape - cavity_gamma.shape - prior.shape, jnp.zeros_like(mean))
    rate_gain = choose(new_gamma.rate - cavity_gamma.rate - prior.rate, jnp.zeros_like(mean))
    new_precision, step = _gained(precision, shape_gain, rate_gain)
    return Refinement(
        Gaussian(prior.centre + choose(new_deviation, deviation), choose(new_var, var)),
        PriorFactor(
            prior.centre,
            choose(1 / prior_var(0), prior.precision),
            prior.shape + step * shape_gain,
            prior.rate + step * rate_gain,
        ),
        new_precision,
        jnp.sum(~accepted & ~untouched),
        (step < 1).astype(int),
    )


def absorb_factors(
    gamma: Gamma, log_evidence: Float[Array, " D"], raised_once: Float[Array, " D"], raised_twice: Float[Array, " D"]
) -> tuple[Gamma, Int[Array, ""]]:
    """Multiply several independent factors of one precision into its Gamma; return how many were left out as improper.

    Each is matched separately, as the joint moments are often not those of a Gamma; increments are summed and damped as
    in :func:`refine_prior`.
    """
    matched = matched_gamma(gamma, log_evidence, raised_once, raised_twice)
    accepted = is_proper(matched)
    shape_gain = jnp.where(accepted, matched.shape - gamma.shape, 0)
    rate_gain = jnp.where(accepted, matched.rate - gamma.rate, 0)
    return _gained(gamma, shape_gain, rate_gain)[0], jnp.sum(~accepted)


def _gained(gamma: Gamma, shape_gain: Array, rate_gain: Array) -> tuple[Gamma, Array]:
    """The Gamma after the sum of all gains, and the damping factor."""
    shape_total, rate_total = jnp.sum(shape_gain), jnp.sum(rate_gain)
    step = jnp.minimum(_largest_step(gamma.shape - 1, shape_total), _largest_step(gamma.rate, rate_total))
    return Gamma(gamma.shape + step * shape_total, gamma.rate + step * rate_total), step


def _largest_step(room: Array, gain: Array) -> Array:
    """The largest fraction of ``gain``, at most 1, that uses up at most half of ``room``."""
    return jnp.where(gain < -0.5 * room, -0.5 * room / jnp.where(gain == 0, 1, gain), 1)
