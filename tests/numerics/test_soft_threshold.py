"""Moments of a soft-thresholded Gaussian against 50-digit arithmetic, Monte Carlo and autodiff."""

import itertools

import jax
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslista.numerics import tail_ratios as _tail_ratios
from bayeslista.numerics.soft_threshold import (
    slab_moments,
    slab_moments_and_gradients,
    soft_threshold_moments,
    soft_threshold_moments_and_gradients,
)

# Standardised positions of mean and threshold: centre, borders, narrow intervals, tails to 40 and far beyond.
_ALPHAS = [0, 1e-12, 1e-3, 0.04, 0.3, 1, 2.5, 8, 39.9, 40, 1e3, 1e8]
_DELTAS = [1e-12, 1e-4, 0.03, 0.0999, 0.1001, 0.5, 1, 3, 7, 38, 40, 1e4]
_VARIANCES = {np.float64: [1e-200, 1e-30, 1e-3, 1, 7.3, 1e12], np.float32: [1e-30, 1e-3, 1, 1e12]}


def _grid(dtype):
    points = [
        (sign * np.sqrt(v) * a, v, np.sqrt(v) * d)
        for (v, a, d), sign in zip(
            itertools.product(_VARIANCES[dtype], _ALPHAS, _DELTAS), itertools.cycle([1, 1, -1]), strict=False
        )
    ]
    # The mean next to and on the threshold, both signs.
    points += [(s * (lam + t * 1e-3), 1e-6, lam) for s in (-1, 1) for lam in (0.1, 10) for t in (-9, -1, 0, 1, 9)]
    # Thresholds in absolute units, whatever the variance.
    absolute = itertools.product((0, -0.5, 1, 1e3), _VARIANCES[dtype], (0, 1e-6, 0.1, 1, 1e3))
    points += [(m, v, lam) for m, v, lam in absolute if abs(m) <= 1e8 * np.sqrt(v)]
    return np.array(points).astype(dtype).T


def _digits(mean, var, shrinkage):
    """Digits that survive the cancellations of the textbook formulas, beyond the 50 we want."""
    far = (abs(float(mean)) + float(shrinkage)) / np.sqrt(float(var))
    return int(110 + 6 * np.log10(2 + far))


class _Oracle:
    """The textbook formulas, in enough digits for their cancellations, differentiated numerically."""

    def __init__(self, mean, var, shrinkage):
        self.mean, self.var, self.shrinkage = (mpmath.mpf(float(x)) for x in (mean, var, shrinkage))

    def raw(self, mean, var, shrinkage):
        std = mpmath.sqrt(var)
        # Of either threshold the smaller tail; the other is its complement, which takes no second error function.
        near, far = (abs(mean) - shrinkage) / std, (abs(mean) + shrinkage) / std
        above, below = mpmath.erfc(abs(near) / mpmath.sqrt(2)) / 2, mpmath.erfc(far / mpmath.sqrt(2)) / 2

        def side(t, tail):
            density = mpmath.exp(-t * t / 2) / mpmath.sqrt(2 * mpmath.pi)
            return tail, std * (density + t * tail), var * ((1 + t * t) * tail + t * density)

        up, down = side(near, 1 - above if near > 0 else above), side(-far, below)
        inside = (above if near > 0 else 1 - above) - below
        sign = 1 if mean >= 0 else -1
        q, e, second = up[0] + down[0], sign * (up[1] - down[1]), up[2] + down[2]
        return q, inside, e, second

    def values(self, mean_step=0, var_step=0):
        q, inside, e, second = self.raw(self.mean + mean_step, self.var + var_step, self.shrinkage)
        # Through the complement where a probability is close to one, as its own digits would not show it.
        log_q = mpmath.log1p(-inside) if q > 0.5 else mpmath.log(q)
        log_inside = mpmath.log1p(-q) if q < 0.5 else mpmath.log(inside) if inside > 0 else mpmath.mpf("-inf")
        return {
            "prob_active": q,
            "mean": e,
            "var": second - e * e,
            "log_prob_active": log_q,
            "log_prob_inactive": log_inside,
            "slab_mean": e / q,
            "slab_var": second / q - (e / q) ** 2,
        }

    def gradients(self):
        std = mpmath.sqrt(self.var)
        far = 1 + (abs(self.mean) + self.shrinkage) / std
        step = mpmath.mpf(10) ** -30 / far**2
        result = {}
        units = {"mean": std, "var": self.var}
        for name, unit in units.items():
            high, low = (self.values(**{f"{name}_step": sign * step * unit}) for sign in (1, -1))
            result |= {
                f"{key}_by_{name}": (high[key] - low[key]) / (2 * step * unit)
                for key in high
                if mpmath.isfinite(high[key]) and mpmath.isfinite(low[key])
            }
        return result


def _scale(name, std):
    """The natural size of a value, to which an error is compared where the value itself cancels."""
    value, _, argument = name.partition("_by_")
    unit = {"mean": 1, "slab_mean": 1, "var": 2, "slab_var": 2}.get(value, 0)
    return std ** (unit - {"": 0, "mean": 1, "var": 2}[argument])


def _ours(mean, var, shrinkage):
    arguments = mean, var, shrinkage
    values, slopes = soft_threshold_moments_and_gradients(*arguments)
    result = values._asdict() | slopes._asdict()
    values, slopes = slab_moments_and_gradients(*arguments)
    slab = values._asdict() | slopes._asdict()
    return result | {f"slab_{k}" if k.startswith(("mean", "var")) else k: v for k, v in slab.items()}


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("dtype", "relative", "absolute"),
    [(np.float64, 1e-9, 1e-12), (np.float32, 1e-4, 1e-6)],
    ids=["f64", "f32"],
)
def test_every_value_and_derivative_agrees_with_50_digit_arithmetic(dtype, relative, absolute):
    mean, var, shrinkage = _grid(dtype)
    ours = _ours(mean, var, shrinkage)
    limits = np.finfo(dtype)
    worst = {}
    for i in range(mean.size):
        with mpmath.workdps(_digits(mean[i], var[i], shrinkage[i])):
            oracle = _Oracle(mean[i], var[i], shrinkage[i])
            expected = oracle.values() | oracle.gradients()
            expected = {name: truth for name, truth in expected.items() if name in ours}
            std = mpmath.sqrt(oracle.var)
            for name, truth in expected.items():
                got = ours[name][i]
                assert got.dtype == dtype
                assert np.isfinite(got), (name, mean[i], var[i], shrinkage[i])
                if abs(truth) > limits.max:  # only logarithms and their derivatives outgrow the numbers
                    assert "log" in name
                    assert abs(got) == limits.max
                    continue
                error = abs(mpmath.mpf(float(got)) - truth)
                allowed = relative * abs(truth)
                if not name.startswith("log_prob") or "_by_" in name:
                    allowed = max(allowed, absolute * _scale(name, std))
                allowed = max(allowed, 2 * float(limits.tiny))
                ratio = float(error / allowed)
                if ratio > worst.get(name, (0,))[0]:
                    worst[name] = (
                        ratio,
                        float(mean[i]),
                        float(var[i]),
                        float(shrinkage[i]),
                        float(got),
                        float(truth),
                    )
    assert len(worst) == len(ours) == 19
    failed = {name: case for name, case in worst.items() if case[0] > 1}
    assert not failed


_finite_means = st.floats(-1e14, 1e14)
_variances = st.one_of(st.just(0.0), st.floats(1e-200, 1e12))
_thresholds = st.floats(0, 1e3)


@settings(max_examples=400)
@given(_finite_means, _variances, _thresholds)
def test_whatever_the_input_values_are_finite_and_in_range(mean, var, shrinkage):
    for dtype in (np.float64, np.float32):
        with np.errstate(under="ignore"):  # small variances become zero in single precision
            arguments = [np.asarray(x, dtype) for x in (mean, var, shrinkage)]
        values = soft_threshold_moments(*arguments)
        everything = _ours(*arguments)
        assert all(np.all(np.isfinite(value)) for value in everything.values())
        assert 0 <= values.prob_active <= 1
        assert values.var >= 0
        assert everything["slab_var"] >= 0
        assert everything["log_prob_active"] <= 0
        assert everything["log_prob_inactive"] <= 0
        assert abs(values.mean) <= abs(arguments[0]) + np.sqrt(arguments[1])


@settings(max_examples=200)
@given(st.floats(-20, 20), st.floats(1e-6, 1e6), st.floats(0, 20))
def test_spike_and_slab_has_the_moments_of_the_thresholded_variable(mean, var, shrinkage):
    values, slab = soft_threshold_moments(mean, var, shrinkage), slab_moments(mean, var, shrinkage)
    q = np.exp(slab.log_prob_active)
    scale = np.sqrt(var)
    np.testing.assert_allclose(values.prob_active, q, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(values.mean, q * slab.mean, rtol=1e-11, atol=1e-14 * scale)
    spread = q * (slab.var + np.exp(slab.log_prob_inactive) * slab.mean**2)
    np.testing.assert_allclose(values.var, spread, rtol=1e-11, atol=1e-14 * var)


@settings(max_examples=100)
@given(st.floats(0, 50), st.floats(1e-3, 1e3), st.floats(0, 50))
def test_reflecting_the_mean_reflects_what_is_odd(mean, var, shrinkage):
    here, there = _ours(mean, var, shrinkage), _ours(-mean, var, shrinkage)
    odd = {
        "mean", "slab_mean", "mean_by_var", "var_by_mean", "slab_mean_by_var", "slab_var_by_mean",
        "log_prob_active_by_mean", "log_prob_inactive_by_mean",
    }  # fmt: skip
    for name, value in here.items():
        assert there[name] == (-value if name in odd else value)


def test_without_variance_the_limits_are_exact():
    mean = np.array([-2.0, -0.5, 0.0, 0.3, 1.5])
    values = soft_threshold_moments(mean, 0.0, 0.5)
    np.testing.assert_array_equal(values.prob_active, [1, 0, 0, 0, 1])
    np.testing.assert_array_equal(values.mean, [-1.5, 0, 0, 0, 1.0])
    np.testing.assert_array_equal(values.var, 0)
    _, slopes = soft_threshold_moments_and_gradients(mean, 0.0, 0.5)
    np.testing.assert_array_equal(slopes.mean_by_mean, [1, 0, 0, 0, 1])
    np.testing.assert_array_equal(slopes.var_by_var, [1, 0, 0, 0, 1])
    for name in ("mean_by_var", "var_by_mean"):
        np.testing.assert_array_equal(getattr(slopes, name), 0)
    slab = slab_moments(mean, 0.0, 0.5)
    np.testing.assert_array_equal(slab.mean, [-1.5, 0, 0, 0, 1.0])
    np.testing.assert_array_equal(slab.var, 0)
    np.testing.assert_array_equal(np.exp(slab.log_prob_active), [1, 0, 0, 0, 1])


@pytest.mark.parametrize("mean", [-0.5, 0.0, 0.5])
def test_at_the_kink_without_variance_derivatives_are_zero_by_convention(mean):
    for function in (soft_threshold_moments_and_gradients, slab_moments_and_gradients):
        assert all(value == 0 for value in function(mean, 0.0, abs(mean))[1])
    assert soft_threshold_moments(mean, 0.0, abs(mean)) == (0, 0, 0)


def test_without_threshold_it_is_the_identity():
    mean, var = np.array([-3.0, 0.0, 1e-9, 2.0, 1e8]), np.array([1.0, 2.0, 1e-200, 1e12, 1.0])
    values = soft_threshold_moments(mean, var, 0.0)
    np.testing.assert_array_equal(values, [np.ones(5), mean, var])
    _, slopes = soft_threshold_moments_and_gradients(mean, var, 0.0)
    expected = {"mean_by_mean": 1, "var_by_var": 1}
    for name, value in slopes._asdict().items():
        np.testing.assert_array_equal(value, expected.get(name, 0))
    slab = slab_moments(mean, var, 0.0)
    np.testing.assert_array_equal(slab[2:], [mean, var])
    np.testing.assert_array_equal(slab.log_prob_active, 0)


def test_tail_polynomial_is_the_chebyshev_interpolant_of_the_tail_ratio():
    size = 64
    with mpmath.workdps(60):

        def scaled_ratio(w):
            t = 4 * (1 + w) / (1 - w)
            if t > 20:
                ratio = mpmath.mpf(0)
                for n in range(1500, 2, -1):
                    ratio = n / (t + ratio)
            else:
                zeroth = mpmath.erfc(t / mpmath.sqrt(2)) * mpmath.exp(t * t / 2) * mpmath.sqrt(mpmath.pi / 2)
                first = 1 - t * zeroth
                second = zeroth - t * first
                ratio = (2 * first - t * second) / second
            return ratio * (t + 2) / 3

        angles = [mpmath.pi * (2 * j + 1) / (2 * size) for j in range(size)]
        heights = [scaled_ratio(mpmath.cos(angle)) for angle in angles]
        for i, coefficient in enumerate(_tail_ratios._TAIL_CHEBYSHEV):
            total = mpmath.fsum(h * mpmath.cos(i * a) for h, a in zip(heights, angles, strict=True))
            assert abs(total * (1 if i == 0 else 2) / size - coefficient) < 1e-16


def test_inside_other_transformations_it_keeps_the_precision_it_is_given():
    with jax.enable_x64(True):
        mean = jax.numpy.linspace(-1, 1, 5)
        batched = jax.jit(jax.vmap(lambda m: soft_threshold_moments(m, 0.5, 0.1)))(mean)
        assert batched.mean.dtype == np.float64
    eager = soft_threshold_moments(np.linspace(-1, 1, 5), 0.5, 0.1)
    assert isinstance(eager.mean, np.ndarray)
    np.testing.assert_allclose(batched.mean, eager.mean, rtol=1e-14)
    single = soft_threshold_moments(np.linspace(-1, 1, 5, dtype=np.float32), 0.5, 0.1)
    assert single.mean.dtype == np.float32
    assert soft_threshold_moments(np.ones(1, np.float32), np.float64(1e-200), 0.1).var == 1e-200
    outside = soft_threshold_moments(mean, 0.5, 0.1)  # double-precision arrays, in single-precision surroundings
    assert outside.mean.dtype == np.float64
    assert soft_threshold_moments(mean.astype(jax.numpy.float16), 0.5, 0.1).mean.dtype == np.float64


def test_arguments_may_be_named():
    assert soft_threshold_moments(shrinkage=0.1, mean=1e8, var=1.0).var == 1.0
