"""Ratios of successive tail moments of the standard normal distribution.

With ``R_n(t) = E[(z − t)₊ⁿ] / φ(t)`` for standard normal ``z``, the ratio ``ρ_n = R_n / R_{n−1}`` obeys
``ρ_n = n / (t + ρ_{n+1})``, so ρ₃ alone gives ρ₂ and ρ₁ without any subtraction.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

# (t + 2) ρ₃(t) / 3 as a polynomial in w = (t − 4)/(t + 4), constant term first: the Chebyshev interpolant over
# 0 ≤ t < ∞, rewritten in powers of w. tests/numerics/test_soft_threshold.py derives it again with mpmath.
_TAIL_CENTRE = 4.0
_TAIL_OFFSET = 2.0
_TAIL_CHEBYSHEV = (
    1.1346969739156394,
    -0.05229280842801673,
    -0.10805971632010211,
    0.022255989838286815,
    0.005675590724953098,
    -0.002060778510673514,
    -0.00042576962791821053,
    0.00019094035667948397,
    3.97634734165398e-05,
    -1.7913366670496845e-05,
    -4.232107510854752e-06,
    1.6681235650509276e-06,
    4.803129056204906e-07,
    -1.5032797026664152e-07,
    -5.5562612308394884e-08,
    1.2666680446983664e-08,
    6.3672854999194e-09,
    -9.377076584313888e-10,
    -7.097113982348206e-10,
    5.102652973715479e-11,
    7.593377186959462e-11,
    2.3821651246732176e-14,
    -7.709425615138838e-12,
    -5.650075798412436e-13,
    7.335230476942745e-13,
    1.122836404430365e-13,
    -6.431443022967462e-14,
    -1.610413839154821e-14,
)
_TAIL_POLYNOMIAL = {
    np.dtype(np.float64): np.polynomial.chebyshev.cheb2poly(_TAIL_CHEBYSHEV).tolist(),
    np.dtype(np.float32): np.polynomial.chebyshev.cheb2poly(_TAIL_CHEBYSHEV[:16]).tolist(),
}


def polynomial_value(polynomial: Sequence[float], x: Array) -> Array:
    """Value of a polynomial at x, constant term first, by Estrin's scheme: few operations depend on each other."""
    terms: list[Array] = [jnp.asarray(term, x.dtype) for term in polynomial]
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        last = terms[-1:] if len(terms) % 2 else []
        terms, x = [low + high * x for low, high in pairs] + last, x * x
    return terms[0]


def tail_ratios(distance: Array) -> tuple[Array, Array, Array]:
    """ρ₁, ρ₂ and ρ₃ at ``distance`` ≥ 0, each to a few units in the last place."""
    polynomial = _TAIL_POLYNOMIAL[np.dtype(distance.dtype)]
    position = (distance - _TAIL_CENTRE) / (distance + _TAIL_CENTRE)
    third = 3 * polynomial_value(polynomial, position) / (distance + _TAIL_OFFSET)
    second = 2 / (distance + third)
    return 1 / (distance + second), second, third
