r"""The soft-thresholded Gaussian in few operations, for the layers of a network.

:mod:`bayeslista.numerics.soft_threshold` has a small relative error even in the far tails, which spike-and-slab outputs
need. Layers need less: mean and variance to a few units in the last place of the Gaussian's own standard deviation and
variance. For :math:`x \sim N(m, v)`, :math:`h = h_\lambda(x)` and a threshold :math:`t \ge 0` standard deviations from
the mean, all follows from the density :math:`\varphi(t)` and one smooth function, :math:`R_2(t) = E[(z - t)_+^2] /
\varphi(t)`:

.. math:: R_1 = \frac{1 - t R_2}{1 + t^2}, \qquad R_0 = R_2 + t R_1,

where :math:`R_n` is the same for the n-th power, without cancellation. The derivatives of :math:`e = E\,h` and
:math:`s = \mathrm{Var}\,h` are

.. math::
    \partial_m e = q, \quad \partial_v e = \tfrac d2, \quad \partial_\lambda e = -f, \qquad
    \partial_m s = 2 e (1 - q), \quad \partial_v s = q - e d, \quad \partial_\lambda s = 2 (e f - E|h|),

with :math:`q = P(|x| > \lambda)`, :math:`d` the difference of the densities of x at the two thresholds and :math:`f`
that of the probabilities beyond them.

In single precision, and without derivatives, :math:`E[(z - t)_+]` and :math:`E[(z - t)_+^2]` are eighth powers of
polynomials, which are positive for all t and take neither an exponential nor a division.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.polynomial.chebyshev import cheb2poly

from bayeslista.numerics.tail_ratios import polynomial_value

_INVERSE_ROOT_TWO_PI = 0.3989422804014327
_CENTRE = 4.0


class Gaussian(NamedTuple):
    """Independent Gaussians, one for every entry of an array."""

    mean: Float[Array, "..."]
    var: Float[Array, "..."]


class _Fit(NamedTuple):
    """R₂ for 0 ≤ t ≤ `reach` as a polynomial in x = B/4 − 1 − B/(t + 4), which goes from −1 to 1; B is `bend`."""

    reach: float
    polynomial: tuple[float, ...]

    @property
    def bend(self) -> float:
        return 2 / (1 / _CENTRE - 1 / (self.reach + _CENTRE))


# Chebyshev interpolants; tests/numerics/test_soft_threshold_fast.py derives them again with mpmath. Beyond `reach` R₂
# is constant: densities there are below the last place of the sums that they are part of.
_CHEBYSHEV = {
    np.dtype(np.float64): (
        9.0,
        (
            0.34247575218717496,
            -0.5349234970377131,
            0.26594632481644614,
            -0.08783155062726994,
            0.019376733359596582,
            -0.0026412268977564495,
            0.000139726326005117,
            1.792327152019428e-05,
            -2.927218894878409e-06,
            -1.3366614459817006e-07,
            4.560094038898857e-08,
            2.0649882875608193e-09,
            -7.130330407938965e-10,
            -5.628057139414867e-11,
            1.0247946620790245e-11,
            1.5830176447546938e-12,
            -9.196392407125098e-14,
            -3.762900136804544e-14,
            -1.3789692971425438e-15,
        ),
    ),
    np.dtype(np.float32): (
        6.0,
        (
            0.37305210467943317,
            -0.5515674202454849,
            0.24466092464005498,
            -0.06970804212657825,
            0.012886574572510679,
            -0.0014036883629311712,
            4.500085064695209e-05,
            8.877845643153326e-06,
            -8.184617676822866e-07,
            -7.090225752969514e-08,
        ),
    ),
}
_FITS = {kind: _Fit(reach, tuple(cheb2poly(terms))) for kind, (reach, terms) in _CHEBYSHEV.items()}

# The eighth powers of these polynomials are minimax approximations of E(z − t)₊ and E(z − t)₊² for 0 ≤ t ≤
# `_ROOT_REACH`, to 2e-8 and 2e-7; in Chebyshev's basis, and in powers.
_ROOT_REACH = 5.5
_ROOTS = (
    (
        0.4571884750590601,
        -0.41589181588098845,
        0.03881694176785115,
        0.018986948443057476,
        -0.0018787840025337138,
        -0.00015290384655014774,
        0.0003587671272779775,
        5.8744019754622714e-05,
    ),
    (
        0.4377053519172839,
        -0.44595425835142116,
        0.04445112889343984,
        0.006509795150435355,
        -0.005919374912647368,
        -0.0013677630374790526,
        -4.524397503620165e-05,
    ),
)
_ROOT_POLYNOMIALS: list[list[float]] = [cheb2poly(terms).tolist() for terms in _ROOTS]


class Slopes(NamedTuple):
    """Factors of the derivatives of mean and variance: q, d, f and E|h| of the module's equations."""

    prob_active: Float[Array, "..."]
    density_difference: Float[Array, "..."]
    side_difference: Float[Array, "..."]
    magnitude: Float[Array, "..."]


class _TwoSides(NamedTuple):
    """Both sides of the threshold, reflected so that the mean is not negative, in standard deviations."""

    above: Array  # (|m| − λ)/√v
    beyond: Array  # whether |m| ≥ λ
    std: Array
    inverse_std: Array
    near: tuple[Array, Array, Array]  # φ R₀, φ R₁, φ R₂ at the nearer threshold
    far: tuple[Array, Array, Array]
    densities: tuple[Array, Array]  # φ at the nearer and the farther threshold


def fast_moments(mean: Float[Array, "..."], var: Float[Array, "..."], shrinkage: Float[Array, ""]) -> Gaussian:
    """Mean and variance of the soft-thresholded Gaussian, each in its own floating type."""
    if var.dtype == np.float32:
        return _short_moments(mean, var, shrinkage)[0]
    return _moments(mean, var, shrinkage, _standardise(mean, var, shrinkage))


def fast_moments_and_probability(
    mean: Float[Array, "..."], var: Float[Array, "..."], shrinkage: Float[Array, ""]
) -> tuple[Gaussian, Float[Array, "..."]]:
    """Mean and variance of the soft-thresholded Gaussian, and its probability of being active, q."""
    if var.dtype == np.float32:
        return _short_moments(mean, var, shrinkage)
    z = _standardise(mean, var, shrinkage)
    return _moments(mean, var, shrinkage, z), jnp.where(z.beyond, 1 - z.near[0], z.near[0]) + z.far[0]


def fast_moments_and_slopes(
    mean: Float[Array, "..."], var: Float[Array, "..."], shrinkage: Float[Array, ""]
) -> tuple[Gaussian, Slopes]:
    """Mean and variance of the soft-thresholded Gaussian, and the factors of their derivatives."""
    z = _standardise(mean, var, shrinkage)
    sign = jnp.sign(mean)
    near = jnp.where(z.beyond, 1 - z.near[0], z.near[0])
    return _moments(mean, var, shrinkage, z), Slopes(
        near + z.far[0],
        # Without variance there is no derivative at the threshold itself: it is set to zero.
        sign * (z.densities[0] - z.densities[1]) * z.inverse_std * (z.std * z.inverse_std),
        sign * (near - z.far[0]),
        jnp.maximum(jnp.abs(mean) - shrinkage, 0) + z.std * (z.near[1] + z.far[1]),
    )


def moments_backward(
    slopes: Slopes, output_mean: Float[Array, "..."], by_mean: Float[Array, "..."], by_var: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Chain rule: derivatives in m and v from those in e and s (``by_mean``, ``by_var``)."""
    active, difference = slopes.prob_active, slopes.density_difference
    # g_m = g_e q + 2 g_s e (1 − q),  g_v = g_e d/2 + g_s (q − e d)
    return (
        by_mean * active + 2 * by_var * output_mean * (1 - active),
        0.5 * by_mean * difference + by_var * (active - output_mean * difference),
    )


def threshold_backward(
    slopes: Slopes, output_mean: Float[Array, "..."], by_mean: Float[Array, "..."], by_var: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Chain rule: elementwise derivatives in λ from those in e and s (``by_mean``, ``by_var``)."""
    side = slopes.side_difference  # g_λ = 2 g_s (e f − E|h|) − g_e f
    return 2 * by_var * (output_mean * side - slopes.magnitude) - by_mean * side


def _standardise(mean: Array, var: Array, shrinkage: Array) -> _TwoSides:
    dtype = var.dtype
    fit = _FITS[np.dtype(dtype)]
    size = jnp.abs(mean)
    std = jnp.sqrt(var)
    inverse = 1 / jnp.maximum(std, float(np.sqrt(np.finfo(dtype).tiny)))
    over = size - shrinkage
    # Sums are in the precision of the mean, all that follows in that of the variance.
    above, far = over.astype(dtype) * inverse, (size + shrinkage).astype(dtype) * inverse
    distance = jnp.abs(above)
    density = _INVERSE_ROOT_TWO_PI * jnp.exp(-0.5 * distance * distance)
    far_density = _INVERSE_ROOT_TWO_PI * jnp.exp(-0.5 * far * far)

    def partial_moments(distance: Array, density: Array) -> tuple[Array, Array, Array]:
        t = jnp.minimum(distance, fit.reach)
        second = polynomial_value(fit.polynomial, fit.bend / _CENTRE - 1 - fit.bend / (t + _CENTRE))
        first = (1 - t * second) / (1 + t * t)
        return density * (second + t * first), density * first, density * second

    return _TwoSides(
        above,
        over >= 0,
        std,
        inverse,
        partial_moments(distance, density),
        partial_moments(far, far_density),
        (density, far_density),
    )


def _moments(mean: Array, var: Array, shrinkage: Array, z: _TwoSides) -> Gaussian:
    excess = z.near[1] - z.far[1]
    # For |m| ≥ λ the square of |m| − λ is taken out on both sides of E h² − (E h)².
    reach = jnp.minimum(z.above, _FITS[np.dtype(var.dtype)].reach)
    second = jnp.where(z.beyond, 1 - 2 * reach * excess - z.near[2], z.near[2])
    output_mean = jnp.sign(mean) * (jnp.maximum(jnp.abs(mean) - shrinkage, 0) + (z.std * excess).astype(mean.dtype))
    return Gaussian(output_mean, var * (second + z.far[2] - excess * excess))


def _short_moments(mean: Array, var: Array, shrinkage: Array) -> tuple[Gaussian, Array]:
    """Mean and variance by polynomials, for variances in single precision; the probability of being active."""
    dtype = var.dtype
    inverse = jax.lax.rsqrt(jnp.maximum(var, float(np.finfo(dtype).tiny)))
    size = jnp.abs(mean)
    over = size - shrinkage
    t_near, t_far = (
        jnp.minimum(jnp.abs(side) * inverse, _ROOT_REACH)
        for side in (over.astype(dtype), (size + shrinkage).astype(dtype))
    )
    near, far = ((2 / _ROOT_REACH) * t - 1 for t in (t_near, t_far))
    (first_near, first_far), (second_near, second_far) = (
        [_eighth_power(polynomial_value(polynomial, side)) for side in (near, far)] for polynomial in _ROOT_POLYNOMIALS
    )
    # P(z > t) = E(z − t)₊² + t E(z − t)₊
    tail = second_near + t_near * first_near
    prob_active = jnp.where(over >= 0, 1 - tail, tail) + second_far + t_far * first_far
    excess = (first_near - first_far) / inverse  # a division: XLA keeps its result, where it would recompute a product
    # For |m| ≥ λ the square of |m| − λ is taken out on both sides of E h² − (E h)².
    beyond = jnp.minimum(over.astype(dtype), _ROOT_REACH * var * inverse)
    second = jnp.where(over >= 0, var - 2 * beyond * excess - var * second_near, var * second_near)
    output_mean = jnp.sign(mean) * (jnp.maximum(over, 0) + excess.astype(mean.dtype))
    return Gaussian(output_mean, second + var * second_far - excess * excess), prob_active


def _eighth_power(x: Array) -> Array:
    fourth = jnp.square(jnp.square(x))
    return fourth * fourth
