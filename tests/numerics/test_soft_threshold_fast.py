"""The moments that layers use, against the accurate ones, which test_soft_threshold.py compares with mpmath."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial.chebyshev import chebval
from scipy.stats import norm

from bayeslista.numerics.soft_threshold import soft_threshold_moments, soft_threshold_moments_and_gradients
from bayeslista.numerics.soft_threshold_fast import (
    _CHEBYSHEV,
    _ROOT_REACH,
    _ROOTS,
    fast_moments,
    fast_moments_and_slopes,
    moments_backward,
    threshold_backward,
)

DTYPES = [np.float64, np.float32]


def computed(function, dtype, *arrays):
    """What a compiled function makes of arrays in this precision, as NumPy arrays."""
    with jax.enable_x64(dtype == np.float64):
        return jax.tree.map(np.asarray, jax.jit(function)(*(jnp.asarray(part, dtype) for part in arrays)))


def slopes_and_derivatives(mean, var, shrinkage, by_mean, by_var):
    output, slopes = fast_moments_and_slopes(mean, var, shrinkage)
    given = slopes, output.mean, by_mean, by_var
    return output, (*moments_backward(*given), threshold_backward(*given))


def cases(dtype, n=4000):
    """Gaussians and thresholds over many decades, many of them near the threshold, some without variance."""
    random = np.random.default_rng(0)
    mean = random.choice([-1.0, 1.0], n) * 10.0 ** random.uniform(-4, 4, n)
    var = 10.0 ** random.uniform(-8, 8, n)
    shrinkage = 10.0 ** random.uniform(-4, 4, n)
    near = random.random(n) < 0.3
    mean[near] = np.sign(mean[near]) * shrinkage[near] + np.sqrt(var[near]) * random.normal(0, 3, near.sum())
    mean[:50], var[50:100], shrinkage[100:150] = 0.0, 0.0, 0.0
    return [part.astype(dtype) for part in (mean, var, shrinkage)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_agree_with_the_accurate_ones_to_rounding_of_the_gaussian(dtype):
    mean, var, shrinkage = cases(dtype)
    fast = computed(fast_moments, dtype, mean, var, shrinkage)
    exact = soft_threshold_moments(*(part.astype(np.float64) for part in (mean, var, shrinkage)))
    eps = np.finfo(dtype).eps
    # Subtracting the threshold rounds in units of the larger of the two.
    unit = np.sqrt(var.astype(np.float64)) + np.maximum(np.abs(mean), shrinkage) + 1e-300
    assert np.max(np.abs(fast.mean - exact.mean) / unit) < 8 * eps
    rounded = np.abs(mean) * eps / np.sqrt(np.where(var > 0, var, 1))
    assert np.all(np.abs(fast.var - exact.var) <= var * (40 * eps + np.minimum(8 * rounded, 1)))
    assert fast.mean.dtype == fast.var.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_derivatives_agree_with_the_accurate_ones(dtype):
    random = np.random.default_rng(1)
    n = 2000
    std, delta = 10.0 ** random.uniform(-2, 2, n), 10.0 ** random.uniform(-2, 1, n)
    mean, var, shrinkage = random.normal(0, 3, n) * std, std**2, delta * std
    by_mean, by_var = random.normal(size=(2, n))
    arrays = [part.astype(dtype) for part in (mean, var, shrinkage, by_mean, by_var)]
    output, found = computed(slopes_and_derivatives, dtype, *arrays)
    alone = computed(fast_moments, dtype, *arrays[:3])
    assert np.max(np.abs(output.mean - alone.mean) / std) < 8 * np.finfo(dtype).eps
    assert np.max(np.abs(output.var - alone.var) / var) < 20 * np.finfo(dtype).eps
    rounded = [np.asarray(part, np.float64) for part in arrays]
    (_, exact_mean, _), exact = soft_threshold_moments_and_gradients(*rounded[:3])
    # ∂e/∂λ = −f,  ∂s/∂λ = 2 (e f − E|h|)
    (mean, var, shrinkage), (by_mean, by_var) = rounded[:3], rounded[3:]
    distances = [(shrinkage + side * mean) / np.sqrt(var) for side in (-1, 1)]
    up, down = map(norm.sf, distances)
    magnitude = np.sqrt(var) * sum(norm.pdf(t) - t * norm.sf(t) for t in distances)
    expected = (
        by_mean * exact.mean_by_mean + by_var * exact.var_by_mean,
        by_mean * exact.mean_by_var + by_var * exact.var_by_var,
        by_mean * (down - up) + 2 * by_var * (exact_mean * (up - down) - magnitude),
    )
    for name, got, wanted, unit in zip(
        ("mean", "var", "shrinkage"), found, expected, (1 + std, 1 + 1 / std, 1 + std), strict=True
    ):
        assert np.max(np.abs(got - wanted) / (unit * (1 + np.abs(mean) / std))) < 60 * np.finfo(dtype).eps, name


@given(
    st.floats(-1e6, 1e6), st.floats(0, 1e6), st.one_of(st.just(0.0), st.floats(1e-300, 1e6)), st.sampled_from(DTYPES)
)
def test_numbers_stay_finite_and_variances_within_bounds(mean, var, shrinkage, dtype):
    together, slopes = computed(fast_moments_and_slopes, dtype, mean, var, shrinkage)
    room, rounding = 1 + 20 * np.finfo(dtype).eps, 20 * np.finfo(dtype).eps
    for output in (together, computed(fast_moments, dtype, mean, var, shrinkage)):
        assert all(np.isfinite(part) for part in output)
        assert -rounding * var <= output.var <= var * room
        assert abs(output.mean) <= abs(dtype(mean)) * room + rounding * np.sqrt(var)
    assert all(np.isfinite(part) for part in slopes)
    assert 0 <= slopes.prob_active <= room


def test_no_threshold_leaves_the_gaussian_as_it_is():
    mean, var = jnp.array([-2.0, 0.0, 3.0]), jnp.array([0.5, 1.0, 0.0])
    output = fast_moments(mean, var, jnp.asarray(0.0))
    np.testing.assert_allclose(output.mean, mean)
    np.testing.assert_allclose(output.var, var)


def test_without_variance_it_is_soft_thresholding():
    mean = jnp.array([-2.0, -0.5, 0.0, 0.5, 3.0])
    output, slopes = fast_moments_and_slopes(mean, jnp.zeros(5), jnp.asarray(0.5))
    assert output.mean.tolist() == [-1.5, 0.0, 0.0, 0.0, 2.5]
    assert output.var.tolist() == [0.0] * 5
    assert slopes.density_difference.tolist() == [0.0] * 5


def test_variances_in_single_precision_leave_means_in_double():
    mean, var, shrinkage = cases(np.float64)
    with jax.enable_x64(True):
        mixed = fast_moments(jnp.asarray(mean), jnp.asarray(var, jnp.float32), jnp.asarray(shrinkage))
        double = fast_moments(jnp.asarray(mean), jnp.asarray(var), jnp.asarray(shrinkage))
    assert mixed.mean.dtype == np.float64
    assert mixed.var.dtype == np.float32
    # Single precision is in what the spread adds, not in what it is added to.
    np.testing.assert_array_less(np.abs(mixed.mean - double.mean), 1e-6 * np.sqrt(var) + 1e-30)


def interpolant(function, n):
    """Chebyshev coefficients of the polynomial that is the function in n points of [−1, 1]."""
    angles = [(k + mpmath.mpf(1) / 2) * mpmath.pi / n for k in range(n)]
    values = [function(mpmath.cos(angle)) for angle in angles]
    for j in range(n):
        terms = (value * mpmath.cos(j * angle) for value, angle in zip(values, angles, strict=True))
        yield (2 if j else 1) * mpmath.fsum(terms) / n


def density(t):
    return mpmath.exp(-t * t / 2) / mpmath.sqrt(2 * mpmath.pi)


def first_moment(t):
    return density(t) - t * mpmath.erfc(t / mpmath.sqrt(2)) / 2


def second_moment(t):
    return (1 + t * t) * mpmath.erfc(t / mpmath.sqrt(2)) / 2 - t * density(t)


@pytest.mark.parametrize("dtype", DTYPES)
def test_coefficients_are_those_of_the_chebyshev_interpolant(dtype):
    mpmath.mp.dps = 40
    reach, coefficients = _CHEBYSHEV[np.dtype(dtype)]
    bend = 2 / (mpmath.mpf(1) / 4 - 1 / (mpmath.mpf(reach) + 4))

    def ratio(x):
        t = bend / (bend / 4 - 1 - x) - 4
        return second_moment(t) / density(t)

    for expected, coefficient in zip(interpolant(ratio, len(coefficients)), coefficients, strict=True):
        assert abs(expected - coefficient) < 1e-16


@pytest.mark.parametrize(("moment", "coefficients"), [(first_moment, _ROOTS[0]), (second_moment, _ROOTS[1])])
def test_no_polynomials_of_their_degree_are_better_in_single_precision(moment, coefficients):
    x = np.cos(np.linspace(np.pi, 0, 2001))
    error = chebval(x, coefficients) ** 8 - np.array([float(moment(t)) for t in _ROOT_REACH * (1 + x) / 2])
    runs = np.split(np.abs(error), 1 + np.flatnonzero(np.diff(np.sign(error))))
    # As many errors of alternating signs and the same size as there are coefficients, and one more.
    assert sum(run.max() > 0.999 * np.abs(error).max() for run in runs) == len(coefficients) + 1
    assert np.abs(error).max() < 2e-7
