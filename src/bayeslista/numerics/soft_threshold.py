r"""The soft-thresholded Gaussian: probabilities, moments and their derivatives, accurate in the far tails.

For :math:`x \sim N(m, v)` and :math:`h = h_\lambda(x) = \mathrm{sign}(x) \max(|x| - \lambda, 0)` it computes

====================  ==============================================================================
``prob_active``       :math:`q = P(|x| > \lambda)`, the probability that ``h`` is not zero
``mean``, ``var``     :math:`e = E\,h` and :math:`s = \mathrm{Var}\,h`, the spike at zero included
slab                  mean and variance of ``h`` given that it is not zero
====================  ==============================================================================

and the derivatives in ``m`` and ``v`` of all but ``q``, in closed form. With
:math:`d = N(\lambda; m, v) - N(-\lambda; m, v)`,

.. math:: \partial_m e = q, \quad \partial_v e = \tfrac d2, \qquad
    \partial_m s = 2 e (1 - q), \quad \partial_v s = q - e d .

Accuracy
--------
Write :math:`\alpha = |m|/\sqrt v`, :math:`\delta = \lambda/\sqrt v`; the two tails start at
:math:`\delta - \alpha` and :math:`\delta + \alpha` standard deviations. Each is described by the *tail ratios*
:math:`\rho_n(t) = R_n(t) / R_{n-1}(t)` of :math:`R_n(t) = E[(z - t)_+^n] / \varphi(t)`, which obey

.. math:: \rho_n(t) = \frac{n}{t + \rho_{n+1}(t)}, \qquad R_0(t) = \frac{1}{t + \rho_1(t)},

so that one smooth function, :math:`\rho_3`, gives all the others by sums and quotients of positive numbers, without
cancellation and underflow in the far tail. The two densities are :math:`\varphi(\delta - \alpha)` and
:math:`e^{-2\alpha\delta}` times that, and the variance of the two-sided variable is a sum of three positive terms.
``v = 0`` and ``λ = 0`` give the exact limits; a derivative that does not exist (``v = 0``, ``|m| = λ``) is set to zero.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayeslista.numerics.precision import follows_input_precision
from bayeslista.numerics.tail_ratios import tail_ratios

_HALF_LOG_TWO_PI, _INVERSE_ROOT_TWO_PI = 0.9189385332046727, 0.3989422804014327


class SoftThresholdMoments(NamedTuple):
    """Moments of a soft-thresholded Gaussian, the spike at zero included."""

    prob_active: Float[Array, "..."]
    mean: Float[Array, "..."]
    var: Float[Array, "..."]


class SoftThresholdGradients(NamedTuple):
    """Derivatives of ``mean`` and ``var`` of :class:`SoftThresholdMoments` in the Gaussian's mean and variance."""

    mean_by_mean: Float[Array, "..."]
    mean_by_var: Float[Array, "..."]
    var_by_mean: Float[Array, "..."]
    var_by_var: Float[Array, "..."]


class SlabMoments(NamedTuple):
    """The soft-thresholded Gaussian as a spike and slab, its probabilities as logarithms."""

    log_prob_active: Float[Array, "..."]
    log_prob_inactive: Float[Array, "..."]
    mean: Float[Array, "..."]
    var: Float[Array, "..."]


class SlabGradients(NamedTuple):
    """Derivatives of :class:`SlabMoments` in the mean and the variance of the Gaussian."""

    log_prob_active_by_mean: Float[Array, "..."]
    log_prob_active_by_var: Float[Array, "..."]
    log_prob_inactive_by_mean: Float[Array, "..."]
    log_prob_inactive_by_var: Float[Array, "..."]
    mean_by_mean: Float[Array, "..."]
    mean_by_var: Float[Array, "..."]
    var_by_mean: Float[Array, "..."]
    var_by_var: Float[Array, "..."]


class _Tail(NamedTuple):
    """One side of the threshold, in units of the standard deviation, given that ``x`` lies beyond it."""

    hazard: Array  # density at the threshold over the probability beyond it
    mean: Array  # mean excess
    var: Array  # variance of the excess
    skew: Array  # its third cumulant over the hazard's unit: d var / d(distance)
    growth: Array  # mean + distance × var: twice the derivative of the mean excess in log v


class _Standardised(NamedTuple):
    """The Gaussian and its threshold in units of the standard deviation, reflected so that the mean is ≥ 0."""

    std: Array  # √v, exactly zero where v is
    inverse_std: Array  # 1/√v, never infinite
    alpha: Array  # |m|/√v
    delta: Array  # λ/√v
    distance: Array  # ||m| − λ|/√v
    above: Array  # (|m| − λ)/√v
    near: tuple[Array, Array, Array]  # ρ₁, ρ₂, ρ₃ at `distance`
    far_distance: Array  # (|m| + λ)/√v
    far: tuple[Array, Array, Array]  # ρ₁, ρ₂, ρ₃ there
    density: Array  # φ(above)
    ratio: Array  # φ(far) / φ(above) = exp(−2αδ)
    ratio_complement: Array  # 1 − ratio
    near_mills: Array  # R₀(|above|)
    far_mills: Array  # ratio × R₀(far)
    narrow: Array  # whether the inactive interval is so narrow that differences of tails would cancel
    inactive: Array  # P(|x| < λ) / (density × width) where `mostly_active`

    @property
    def mostly_active(self) -> Array:
        """Where the active probability is computed as one minus the inactive one."""
        return (self.narrow & (self.std > 0)) | (self.above >= 0)

    @property
    def width(self) -> Array:
        """The factor δ that a narrow interval's probability is proportional to, else one."""
        return jnp.where(self.narrow, self.delta, 1)

    @property
    def by_log_var(self) -> Array:
        """2v ∂q/∂v over the density."""
        narrow = self.delta * (1 + self.ratio) - self.alpha * self.ratio_complement
        return jnp.where(self.narrow, narrow, self.far_distance * self.ratio - self.above)


def _promote(*arrays: Array) -> list[Array]:
    """One shape and one floating type: the common one if it is float32 or float64, else JAX's default."""
    dtype = jnp.result_type(float, *arrays)
    if dtype not in (jnp.float32, jnp.float64):
        dtype = jnp.result_type(float)
    return jnp.broadcast_arrays(*(jnp.asarray(array, dtype) for array in arrays))


def _one_minus_exp(x: Array) -> Array:
    """1 − exp(−x) for x ≥ 0, to a few units in the last place; unlike `jnp.expm1` XLA vectorises it."""
    small = jnp.minimum(x, 0.5)
    series = jnp.ones_like(x)
    for order in range(15, 1, -1):
        series = 1 - small / order * series
    return jnp.where(x < 0.5, small * series, 1 - jnp.exp(-x))


def _standardise(mean: Array, var: Array, shrinkage: Array) -> _Standardised:
    limits = jnp.finfo(var.dtype)
    farthest = 0.25 * float(np.sqrt(limits.max))
    certain = var < 1e4 * limits.tiny  # leaves room for divisions by the variance and a probability
    std = jnp.where(certain, 0, jnp.sqrt(jnp.where(certain, 1, var)))
    safe_std = jnp.where(certain, float(limits.tiny) ** 0.25, std)
    nearest = jnp.where(certain, 1e6, 0)  # without variance neither side of the threshold has a tail
    size, inverse = jnp.abs(mean), 1 / safe_std
    alpha, delta = (jnp.minimum(length * inverse, farthest) for length in (size, shrinkage))
    sides = jnp.array([-1.0, 1.0], var.dtype).reshape(
        2, *(1,) * var.ndim
    )  # both at once: half as many loops to compile
    distances = jnp.clip(jnp.abs(size + sides * shrinkage) * inverse, nearest, farthest)
    distance, far_distance = distances
    beyond = (size > shrinkage) | ((size == shrinkage) & ~certain)
    above = jnp.where(beyond, distance, -distance)
    ratios = tail_ratios(distances)
    near, far = zip(*ratios, strict=True)
    density = _INVERSE_ROOT_TWO_PI * jnp.exp(-0.5 * distance * distance)
    ratio_complement = _one_minus_exp(2 * alpha * delta)
    ratio = 1 - ratio_complement
    near_mills, far_mills = 1 / (distances + ratios[0])
    far_mills = ratio * far_mills

    # Narrow interval: ∫ φ over (α−δ, α+δ) = 2δ φ(α) Σ Heₙ(α) δⁿ/(n+1)!, even n; and φ(α) = φ(α−δ) e^{δ²/2 − αδ}.
    narrow = (delta * jnp.maximum(alpha, 1)) < 0.1
    d2 = jnp.where(narrow, delta * delta, 0)
    x = jnp.where(narrow, alpha * delta, 0) ** 2
    series = 1 + (
        (x - d2) / 6
        + (x * x - 6 * x * d2 + 3 * d2 * d2) / 120
        + (x * x * x - 15 * x * x * d2 + 45 * x * d2 * d2 - 15 * d2 * d2 * d2) / 5040
        + (x**4 - 28 * x**3 * d2 + 210 * x * x * d2 * d2 - 420 * x * d2**3 + 105 * d2**4) / 362880
    )
    rise = 1 + 0.5 * d2 * (1 + 0.25 * d2 * (1 + d2 / 6 * (1 + d2 / 8 * (1 + d2 / 10))))
    inactive = jnp.where(narrow, 2 * series * rise * jnp.sqrt(ratio), near_mills - far_mills)
    return _Standardised(
        std, inverse, alpha, delta, distance, above, near, far_distance, far, density, ratio, ratio_complement,
        near_mills, far_mills, narrow, inactive,
    )  # fmt: skip


def _probabilities(z: _Standardised) -> tuple[Array, Array]:
    """P(active) and P(inactive), each with a small relative error."""
    inactive = z.density * z.inactive * z.width
    active = z.density * (z.near_mills + z.far_mills)
    return (
        jnp.where(z.mostly_active, 1 - inactive, active),
        jnp.where(z.mostly_active, inactive, 1 - active),
    )


def _finite(value: Array) -> Array:
    largest = jnp.finfo(value.dtype).max
    return jnp.clip(value, -largest, largest)


def _moments(mean: Array, var: Array, shrinkage: Array, z: _Standardised) -> SoftThresholdMoments:
    prob_active, _ = _probabilities(z)
    near_first = z.density * z.near[0] * z.near_mills
    far_first = z.density * z.far[0] * z.far_mills
    excess = jnp.maximum(jnp.abs(mean) - shrinkage, 0) + z.std * (near_first - far_first)
    near_var = near_first * z.near[1] - near_first * near_first
    far_var = far_first * z.far[1] - far_first * far_first
    above_var = jnp.where(z.above >= 0, 1 - 2 * z.density * z.near_mills, 0)
    both = 2 * (jnp.maximum(z.above, 0) + near_first) * far_first
    linear = (shrinkage == 0) & (z.std > 0)
    return SoftThresholdMoments(
        jnp.where(linear, 1, prob_active),
        jnp.where(linear, mean, jnp.sign(mean) * excess),
        jnp.where(linear, var, z.std * z.std * (above_var + near_var + far_var + both)),
    )


def _gradients(mean: Array, shrinkage: Array, z: _Standardised) -> SoftThresholdGradients:
    sign = jnp.sign(mean)
    prob_active, prob_inactive = _probabilities(z)
    near_excess = jnp.maximum(z.above, 0) + z.near[0] * z.density * z.near_mills
    excess = near_excess - z.far[0] * z.density * z.far_mills
    difference = z.density * z.ratio_complement
    linear = (shrinkage == 0) & (z.std > 0)
    return SoftThresholdGradients(
        jnp.where(linear, 1, prob_active),
        0.5 * sign * difference * z.inverse_std,
        2 * sign * z.std * excess * prob_inactive,
        jnp.where(linear, 1, prob_active - excess * difference),
    )


def _beyond(distance: Array, ratios: tuple[Array, Array, Array]) -> _Tail:
    """The excess over a threshold ``distance`` ≥ 0 standard deviations above the mean."""
    first, second, third = ratios
    hazard, var = distance + first, first * (second - first)
    skew = hazard * first * first * second * (third - second)
    return _Tail(hazard, first, var, skew, first + distance * var)


def _tails(z: _Standardised) -> tuple[_Tail, _Tail]:
    """The near and the far side of the threshold."""
    hazard = z.density / (1 - z.density * z.near_mills)
    height = jnp.maximum(z.above, 0)
    mean = height + hazard
    var = 1 - hazard * mean
    inside = _Tail(hazard, mean, var, hazard * (mean * mean - var), hazard * (1 + height * mean))
    outside = _beyond(z.distance, z.near)
    near = _Tail(*(jnp.where(z.above >= 0, a, b) for a, b in zip(inside, outside, strict=True)))
    return near, _beyond(z.far_distance, z.far)


def _shares(z: _Standardised) -> tuple[Array, Array]:
    """Shares of the near and of the far side in the active probability."""
    near = jnp.where(z.above >= 0, 1 - z.density * z.near_mills, z.near_mills)
    far = jnp.where(z.above >= 0, z.density * z.far_mills, z.far_mills)
    inverse = 1 / (near + far)
    return near * inverse, far * inverse


def _slab(mean: Array, var: Array, shrinkage: Array, z: _Standardised) -> SlabMoments:
    near, far = _tails(z)
    near_share, far_share = _shares(z)
    prob_active, prob_inactive = _probabilities(z)
    log_density = -0.5 * z.distance * z.distance - _HALF_LOG_TWO_PI
    log_smaller = log_density + jnp.log(jnp.where(z.mostly_active, z.inactive * z.width, z.near_mills + z.far_mills))
    log_larger = jnp.log1p(-jnp.where(z.mostly_active, prob_inactive, prob_active))
    beyond = jnp.maximum(jnp.abs(mean) - shrinkage, 0)
    near_excess = beyond + z.std * jnp.where(z.above >= 0, near.hazard, near.mean)
    between = near.mean + far.mean
    slab_var = near_share * near.var + far_share * far.var + near_share * far_share * between * between
    linear = (shrinkage == 0) & (z.std > 0)
    return SlabMoments(
        _finite(jnp.where(z.mostly_active, log_larger, log_smaller)),
        _finite(jnp.where(z.mostly_active, log_smaller, log_larger)),
        jnp.where(linear, mean, jnp.sign(mean) * (near_share * near_excess - far_share * z.std * far.mean)),
        jnp.where(linear, var, z.std * z.std * slab_var),
    )


def _slab_gradients(mean: Array, shrinkage: Array, z: _Standardised) -> SlabGradients:
    sign = jnp.sign(mean)
    near, far = _tails(z)
    near_share, far_share = _shares(z)
    prob_active, prob_inactive = _probabilities(z)
    mixing = near_share * far_share
    between = near.mean + far.mean
    # Derivatives of the near side's share: in the mean times √v, and twice that in the variance times v.
    by_mean = mixing * (near.hazard + far.hazard)
    outside = z.distance * near.mean - z.far_distance * far.mean - 4 * z.alpha * z.delta
    inside = -z.above * near.hazard - z.far_distance * far.hazard
    by_var = mixing * jnp.where(z.above >= 0, inside, outside)
    var_by_share = (near.var - far.var) + (far_share - near_share) * between * between

    # d log P = dP / P, with the density that both share cancelled where P may vanish.
    per_active = jnp.where(z.mostly_active, z.density, 1)
    per_active = per_active / jnp.where(z.mostly_active, prob_active, z.near_mills + z.far_mills)
    per_inactive = jnp.where(z.mostly_active, 1, z.density)
    per_inactive = per_inactive / jnp.where(z.mostly_active, z.inactive, prob_inactive)
    # As λ → 0 numerator and denominator vanish alike: both are taken per unit of δ there.
    per_width = jnp.where(z.narrow & (z.delta > 0), z.delta, 1)
    vanishing = z.narrow & (z.delta == 0)
    complement = jnp.where(vanishing, 2 * z.alpha, z.ratio_complement / per_width)
    by_log_var = jnp.where(vanishing, 2 - 2 * z.alpha * z.alpha, z.by_log_var / per_width)

    linear = (shrinkage == 0) & (z.std > 0)
    mean_by_mean = near_share * near.var + far_share * far.var + by_mean * between
    mean_by_var = near_share * near.growth - far_share * far.growth + by_var * between
    var_by_mean = near_share * near.skew - far_share * far.skew + by_mean * var_by_share
    var_by_mean += 2 * mixing * between * (near.var - far.var)
    var_by_var = near_share * (near.var - 0.5 * z.above * near.skew)
    var_by_var += far_share * (far.var + 0.5 * z.far_distance * far.skew)
    var_by_var += 0.5 * by_var * var_by_share + mixing * between * (near.growth + far.growth)
    gradients = SlabGradients(
        _finite(sign * per_active * z.ratio_complement * z.inverse_std),
        _finite(0.5 * per_active * z.by_log_var * z.inverse_std * z.inverse_std),
        _finite(-sign * per_inactive * complement * z.inverse_std),
        _finite(-0.5 * per_inactive * by_log_var * z.inverse_std * z.inverse_std),
        jnp.where(linear, 1, mean_by_mean),
        jnp.where(linear, 0, _finite(0.5 * sign * mean_by_var * z.inverse_std)),
        jnp.where(linear, 0, sign * z.std * var_by_mean),
        jnp.where(linear, 1, var_by_var),
    )
    kink = (z.std == 0) & (jnp.abs(mean) == shrinkage)
    return SlabGradients(*(jnp.where(kink, 0, gradient) for gradient in gradients))


@follows_input_precision
def soft_threshold_moments(
    mean: Float[Array, "..."], var: Float[Array, "..."], shrinkage: Float[Array, "..."]
) -> SoftThresholdMoments:
    r"""``prob_active`` :math:`= P(|x| > \lambda)`, ``mean`` and ``var`` of :math:`h_\lambda(x)`, the spike included."""
    mean, var, shrinkage = _promote(mean, var, shrinkage)
    return _moments(mean, var, shrinkage, _standardise(mean, var, shrinkage))


@follows_input_precision
def soft_threshold_moments_and_gradients(
    mean: Float[Array, "..."], var: Float[Array, "..."], shrinkage: Float[Array, "..."]
) -> tuple[SoftThresholdMoments, SoftThresholdGradients]:
    """:func:`soft_threshold_moments` and derivatives of mean and variance."""
    mean, var, shrinkage = _promote(mean, var, shrinkage)
    z = _standardise(mean, var, shrinkage)
    return _moments(mean, var, shrinkage, z), _gradients(mean, shrinkage, z)


@follows_input_precision
def slab_moments(mean: Float[Array, "..."], var: Float[Array, "..."], shrinkage: Float[Array, "..."]) -> SlabMoments:
    """The soft-thresholded Gaussian as spike and slab: log probabilities, and the moments given ``h ≠ 0``.

    The slab's mean is ``mean / prob_active`` without that division; log 0 is the most negative finite number.
    """
    mean, var, shrinkage = _promote(mean, var, shrinkage)
    return _slab(mean, var, shrinkage, _standardise(mean, var, shrinkage))


@follows_input_precision
def slab_moments_and_gradients(
    mean: Float[Array, "..."], var: Float[Array, "..."], shrinkage: Float[Array, "..."]
) -> tuple[SlabMoments, SlabGradients]:
    """:func:`slab_moments` and their derivatives."""
    mean, var, shrinkage = _promote(mean, var, shrinkage)
    z = _standardise(mean, var, shrinkage)
    return _slab(mean, var, shrinkage, z), _slab_gradients(mean, shrinkage, z)
