r"""The learned belief: Gaussian weights, the prior factors among them, and Gamma precisions.

The prior of a weight is :math:`N(w; w_0, 1/\eta)` with :math:`\eta \sim \mathrm{Gam}(a, b)`; the paper has
:math:`w_0 = 0`. Its share in the belief is an approximate factor per weight: a Gaussian about :math:`w_0` times a
Gamma in :math:`\eta`, held in natural parameters (``precision``, and the increments ``shape`` and ``rate`` that it adds
to the Gamma) so that it can be divided out and multiplied back in.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bayeslista.network import Gaussian, Weights


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


class Belief(NamedTuple):
    """Everything that learning changes."""

    weights: Weights
    encoder_prior: PriorFactor
    recurrent_prior: PriorFactor
    encoder_precision: Gamma
    recurrent_precision: Gamma
    noise_precision: Gamma


class MatrixPrior(NamedTuple):
    """Where the prior of a matrix is centred, and its variance before any data."""

    centre: Float[Array, "D E"]
    var: Float[Array, ""]


def initial_belief(
    encoder: Float[Array, "D K"],
    recurrent: Float[Array, "D D"],
    encoder_prior: MatrixPrior,
    recurrent_prior: MatrixPrior,
    shape: float = 6.0,
) -> Belief:
    """The belief before any data: means as given, every weight with its prior's variance.

    Parameters
    ----------
    encoder, recurrent : array
        Means of W and S.
    encoder_prior, recurrent_prior : MatrixPrior
        Their priors. The variance is :math:`b/(a - 1)` of the precision's Gamma.
    shape : float
        Shape ``a`` of the three Gammas; the noise starts at rate ``a``, too, as in the paper.

    Returns
    -------
    Belief
        The start of learning.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.posterior import MatrixPrior, initial_belief
    >>> prior = MatrixPrior(jnp.zeros((2, 2)), jnp.asarray(1.2))
    >>> belief = initial_belief(jnp.eye(2), jnp.zeros((2, 2)), prior, prior)
    >>> round(float(belief.encoder_precision.rate), 6)
    6.0
    """

    def spread(mean: Array, prior: MatrixPrior) -> Gaussian:
        return Gaussian(mean, jnp.full_like(mean, prior.var))

    def factor(prior: MatrixPrior) -> PriorFactor:
        zero = jnp.zeros_like(prior.centre)
        return PriorFactor(prior.centre, jnp.full_like(zero, 1 / prior.var), zero, zero)

    def precision(rate: Array | float) -> Gamma:
        return Gamma(jnp.asarray(shape, encoder.dtype), jnp.asarray(rate, encoder.dtype))

    return Belief(
        Weights(spread(encoder, encoder_prior), spread(recurrent, recurrent_prior)),
        factor(encoder_prior),
        factor(recurrent_prior),
        precision(encoder_prior.var * (shape - 1)),
        precision(recurrent_prior.var * (shape - 1)),
        precision(shape),
    )


def matched_gamma(gamma: Gamma, log_evidence: Array, raised_once: Array, raised_twice: Array) -> Gamma:
    r"""The Gamma with the first two moments of its product with a factor.

    If ``Z(a)`` is the factor's normaliser under :math:`\mathrm{Gam}(a, b)`, the product has
    :math:`E\eta = Z(a+1)/Z(a) \cdot a/b` and :math:`E\eta^2 = Z(a+2)/Z(a) \cdot a(a+1)/b^2`.

    Parameters
    ----------
    gamma : Gamma
        Before the factor.
    log_evidence, raised_once, raised_twice : array
        log Z at shape ``a``, ``a + 1`` and ``a + 2``.

    Returns
    -------
    Gamma
        May be improper or not finite where the moments do not belong to a Gamma; :func:`is_proper` tells.

    Examples
    --------
    >>> from bayeslista.posterior import Gamma, matched_gamma
    >>> unchanged = matched_gamma(Gamma(6.0, 3.0), 0.0, 0.0, 0.0)  # a factor that does not depend on η
    >>> round(float(unchanged.shape), 4), round(float(unchanged.rate), 4)
    (6.0, 3.0)
    """
    a, b = gamma
    first, second = raised_once - log_evidence, raised_twice - raised_once
    # E η² / (E η)² − 1 = 1 / shape, and E η² / E η − E η = 1 / rate.
    shape = a / (jnp.expm1(second - first) * (a + 1) + 1)
    rate = b / (jnp.exp(first) * (jnp.expm1(second - first) * (a + 1) + 1))
    return Gamma(shape, rate)


def is_proper(gamma: Gamma) -> Array:
    """Whether the Gamma is finite and its precision has a finite mean variance: ``a > 1`` and ``b > 0``.

    Parameters
    ----------
    gamma : Gamma
        To judge, elementwise.

    Returns
    -------
    array of bool
        Its verdict.

    Examples
    --------
    >>> from bayeslista.posterior import Gamma, is_proper
    >>> bool(is_proper(Gamma(0.5, 1.0)))
    False
    """
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
    """One parallel sweep of expectation propagation over the prior factors of a matrix.

    Every factor is divided out of the belief, the true prior is multiplied in, moments are matched, and the new
    approximate factor is what was gained. All factors start from the same belief, and what they add to the shared
    Gamma is summed at the end. Because each of them ignores what the others add, that sum can overshoot: it is
    damped so that shape and rate go at most half of the way to where the Gamma ends. A factor whose cavity or match
    is improper is rejected, which leaves it as it was. A weight of which only the prior is known is left alone.

    Parameters
    ----------
    weights : Gaussian
        The belief about the matrix.
    prior : PriorFactor
        Its approximate prior factors.
    precision : Gamma
        The belief about the prior's precision.

    Returns
    -------
    Refinement
        The refined belief and what was rejected or damped on the way.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.network import Gaussian
    >>> from bayeslista.posterior import MatrixPrior, initial_belief, refine_prior
    >>> prior = MatrixPrior(jnp.zeros((2, 2)), jnp.asarray(1.2))
    >>> belief = initial_belief(jnp.eye(2), jnp.eye(2), prior, prior)
    >>> learned = Gaussian(jnp.eye(2), jnp.full((2, 2), 0.01))
    >>> refined = refine_prior(learned, belief.encoder_prior, belief.encoder_precision)
    >>> bool(refined.precision.shape > belief.encoder_precision.shape)
    True
    """
    mean, var = weights
    deviation = mean - prior.centre
    cavity_precision = 1 / var - prior.precision
    untouched = jnp.abs(cavity_precision) <= 1e-6 * prior.precision
    proper = cavity_precision > 0
    cavity_var = 1 / jnp.where(proper, cavity_precision, 1)
    cavity_deviation = cavity_var * deviation / var
    cavity_gamma = Gamma(precision.shape - prior.shape, precision.rate - prior.rate)

    def prior_var(raised: int) -> Array:
        return cavity_gamma.rate / (cavity_gamma.shape - 1 + raised)

    def log_evidence(raised: int) -> Array:
        total = cavity_var + prior_var(raised)
        return -0.5 * jnp.log(total) - 0.5 * cavity_deviation * cavity_deviation / total

    # The moment match for this log Z is the product of two Gaussians, the cavity and N(0, b/(a − 1)).
    kept = prior_var(0) / (cavity_var + prior_var(0))
    new_deviation, new_var = cavity_deviation * kept, cavity_var * kept
    new_gamma = matched_gamma(cavity_gamma, log_evidence(0), log_evidence(1), log_evidence(2))
    accepted = proper & ~untouched & is_proper(cavity_gamma) & is_proper(new_gamma)
    accepted &= jnp.isfinite(new_deviation) & jnp.isfinite(new_var) & (new_var > 0)

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(accepted, new, old)

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
    """Take several independent factors of one precision into its Gamma at once.

    Each is matched by itself, as the moments of all together are often no Gamma's; what they add is summed, damped as
    in :func:`refine_prior`. Factors whose match is improper are left out.

    Parameters
    ----------
    gamma : Gamma
        Before the factors.
    log_evidence, raised_once, raised_twice : array of shape (D,)
        log Z of every factor at shape ``a``, ``a + 1`` and ``a + 2``.

    Returns
    -------
    Gamma
        After the factors.
    int
        How many were left out.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.posterior import Gamma, absorb_factors
    >>> flat = jnp.zeros(3)  # factors that do not depend on the precision
    >>> gamma, left_out = absorb_factors(Gamma(jnp.asarray(6.0), jnp.asarray(3.0)), flat, flat, flat)
    >>> round(float(gamma.shape), 4), round(float(gamma.rate), 4), int(left_out)
    (6.0, 3.0, 0)
    """
    matched = matched_gamma(gamma, log_evidence, raised_once, raised_twice)
    accepted = is_proper(matched)
    shape_gain = jnp.where(accepted, matched.shape - gamma.shape, 0)
    rate_gain = jnp.where(accepted, matched.rate - gamma.rate, 0)
    return _gained(gamma, shape_gain, rate_gain)[0], jnp.sum(~accepted)


def _gained(gamma: Gamma, shape_gain: Array, rate_gain: Array) -> tuple[Gamma, Array]:
    """The Gamma after the sum of all gains, and the part of it that was taken."""
    shape_total, rate_total = jnp.sum(shape_gain), jnp.sum(rate_gain)
    step = jnp.minimum(_largest_step(gamma.shape - 1, shape_total), _largest_step(gamma.rate, rate_total))
    return Gamma(gamma.shape + step * shape_total, gamma.rate + step * rate_total), step


def _largest_step(room: Array, gain: Array) -> Array:
    """The largest part of ``gain``, at most all of it, that uses up at most half of ``room``."""
    return jnp.where(gain < -0.5 * room, -0.5 * room / jnp.where(gain == 0, 1, gain), 1)
