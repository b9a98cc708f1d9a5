"""SpikeSlab against mpmath, scipy.stats, quadrature and Monte Carlo."""

import copy
import itertools
import pickle

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from bayeslista.distributions import SpikeSlab

CHANCES = st.one_of(st.sampled_from([0.0, 1e-12, 0.5, 1.0 - 1e-12, 1.0]), st.floats(0.0, 1.0))
MEANS = st.one_of(st.sampled_from([-30.0, 0.0, 30.0]), st.floats(-50.0, 50.0))
VARIANCES = st.one_of(st.just(1.0), st.floats(1e-3, 1e3))
LEVELS = st.one_of(
    st.floats(1e-300, 1.0, exclude_max=True),
    st.floats(-300.0, -1.0).map(lambda e: 10.0**e),
    st.floats(-15.0, -1.0).map(lambda e: 1.0 - 10.0**e),
)
# Levels as a share of the slab's own mass, counted from either end: where regimes meet and digits get lost.
SHARES = st.one_of(st.floats(0.01, 2.0), st.floats(-16.0, -2.0).map(lambda e: 1.0 - 10.0**e))
POINTS = st.one_of(st.sampled_from([0.0, -1e-300, 1e-300]), st.floats(-200.0, 200.0))


def excess(q, m, v, x, p):
    """P(β ≤ x) − p, each case a difference whose first term is exact, so that its sign can be trusted."""
    q, m, v, p = map(mpmath.mpf, (q, m, v, p))
    score = (mpmath.mpf(x) - m) / mpmath.sqrt(v)
    atom = 1 - q if x >= 0 else mpmath.mpf(0)
    if score < 0:
        return (atom - p) + q * mpmath.ncdf(score)
    return (atom + q - p) - q * mpmath.ncdf(-score)


def grid():
    return SpikeSlab(np.array([0.0, 0.3, 1.0])[:, None], np.array([-2.0, 0.0, 0.5, 8.0]), 1.7)


class TestConstruction:
    def test_parameters_are_broadcast_and_read_only(self):
        dist = grid()
        assert dist.shape == dist.prob_active.shape == dist.slab_mean.shape == dist.slab_var.shape == (3, 4)
        assert dist.slab_mean[2, 3] == 8.0
        for values in (dist.prob_active, dist.slab_mean, dist.slab_var):
            with pytest.raises(ValueError, match="read-only"):
                values[0, 0] = 0.5
        with pytest.raises(AttributeError):
            dist.slab_mean = np.zeros(3)

    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_later_changes_to_the_callers_array_do_not_reach_in(self, kind):
        chances = np.array([0.25, 0.5], kind)
        dist = SpikeSlab(chances, np.zeros(2, kind), np.ones(2, kind))
        chances[:] = 1.0
        np.testing.assert_array_equal(dist.prob_active, [0.25, 0.5])

    @pytest.mark.parametrize(
        ("kinds", "expected"),
        [
            (("f4", "f4", "f4"), "f4"),
            (("f4", "f4", "f8"), "f8"),
            (("f4", "i8", "f4"), "f8"),
            (("f2", "f2", "f2"), "f8"),
        ],
    )
    def test_precision_is_single_only_if_all_parameters_are(self, kinds, expected):
        dist = SpikeSlab(*(np.ones(2, kind) for kind in kinds))
        low, high = dist.interval(0.9)
        results = [dist.mean(), dist.var(), dist.std(), dist.log_prob(0.5), dist.cdf(0.5), low, high]
        results += [dist.quantile(0.3), dist.sample(2, 0), dist.slab_var, dist[0].mean()]
        assert {result.dtype for result in results} == {np.dtype(expected)}

    def test_single_precision_results_are_rounded_double_ones(self):
        parameters = [np.array(a, np.float32) for a in ([0.3, 0.7], [3.0, -0.2], [0.5, 1.5])]
        single, double = SpikeSlab(*parameters), SpikeSlab(*(a.astype(np.float64) for a in parameters))
        x = np.array([[-0.4], [0.0], [1e-3], [2.0]])
        np.testing.assert_array_equal(single.log_prob(x), double.log_prob(x).astype(np.float32))
        np.testing.assert_array_equal(single.cdf(x), double.cdf(x).astype(np.float32))
        np.testing.assert_array_equal(single.var(), double.var().astype(np.float32))

    @pytest.mark.parametrize(
        ("parameters", "message"),
        [
            (([0.1, 1.2, -0.1], 0.0, 1.0), r"prob_active must lie in \[0, 1\]; 2 of 3 .* index \(1,\): 1.2"),
            ((-0.5, 0.0, 1.0), r"prob_active must lie in \[0, 1\]; got -0.5"),
            ((0.5, 0.0, [[1.0, -2.0]]), r"slab_var must be at least 0; 1 of 2 .* index \(0, 1\): -2.0"),
            ((0.5, [0.0, np.inf], 1.0), r"slab_mean must be finite; 1 of 2 .* index \(1,\): inf"),
            ((np.nan, 0.0, 1.0), "prob_active must be finite; got nan"),
            ((0.5, 0.0, np.inf), "slab_var must be finite; got inf"),
            ((0.5, [0.0, 1.0], [1.0, 1.0, 1.0]), r"do not broadcast: prob_active \(\), slab_mean \(2,\), slab_var"),
            ((0.5, 1j, 1.0), "slab_mean must hold real numbers, got dtype complex128"),
            (("half", 0.0, 1.0), "prob_active must hold real numbers"),
        ],
    )
    def test_invalid_parameters_are_refused_with_what_and_where(self, parameters, message):
        with pytest.raises(ValueError, match=message):
            SpikeSlab(*parameters)

    def test_indexing_gives_distributions(self):
        dist = grid()
        np.testing.assert_array_equal(dist[1].mean(), dist.mean()[1])
        np.testing.assert_array_equal(dist[:, [3, 0]].var(), dist.var()[:, [3, 0]])
        assert dist[2, 3].shape == ()
        assert len(dist) == 3
        assert [row.shape for row in dist] == [(4,)] * 3

    def test_a_single_distribution_has_no_length(self):
        with pytest.raises(TypeError):
            len(SpikeSlab(0.5, 0.0, 1.0))
        with pytest.raises(TypeError):
            list(SpikeSlab(0.5, 0.0, 1.0))

    def test_it_survives_pickle_and_copy(self):
        dist = grid()
        for twin in (pickle.loads(pickle.dumps(dist)), copy.deepcopy(dist)):
            np.testing.assert_array_equal(twin.quantile(0.7), dist.quantile(0.7))

    def test_repr_tells_shape_and_precision(self):
        assert repr(grid()) == "SpikeSlab(shape=(3, 4), dtype=float64)"

    def test_empty_arrays_are_fine(self):
        dist = SpikeSlab(np.zeros((0, 3)), 0.0, 1.0)
        assert dist.mean().shape == dist.quantile(0.5).shape == (0, 3)


class TestMoments:
    @given(CHANCES, st.floats(-1e100, 1e100), st.floats(0.0, 1e200))
    def test_moments_match_arbitrary_precision(self, q, m, v):
        with mpmath.workdps(900):
            first, second = mpmath.mpf(q) * m, mpmath.mpf(q) * (mpmath.mpf(v) + mpmath.mpf(m) ** 2)
            variance = second - first**2
            expected = float(first), float(variance), float(mpmath.sqrt(variance))
        dist = SpikeSlab(q, m, v)
        # Below 1e-290 products are subnormal and lose digits.
        np.testing.assert_allclose((dist.mean(), dist.var(), dist.std()), expected, rtol=2e-14, atol=1e-290)

    def test_variance_does_not_cancel_where_the_mean_dwarfs_it(self):
        assert SpikeSlab(1.0, 1e9, 1e-9).var() == 1e-9

    def test_std_stays_finite_where_the_variance_overflows(self):
        dist = SpikeSlab([0.5, 0.0], 1e200, 1.0)
        np.testing.assert_array_equal(dist.var(), [np.inf, 0.0])
        np.testing.assert_allclose(dist.std(), [0.5e200, 0.0])

    @pytest.mark.parametrize("parameters", [(0.3, 1.5, 0.4), (0.9, -2.0, 3.0), (0.05, 0.0, 1.0)])
    def test_moments_agree_with_the_cdf_by_quadrature(self, parameters):
        dist = SpikeSlab(*parameters)

        def integral(function):
            return integrate.quad(function, 0.0, 25.0, epsabs=1e-12, limit=200)[0]

        above = [integral(lambda x, k=k: k * x ** (k - 1) * (1.0 - dist.cdf(x))) for k in (1, 2)]
        below = [integral(lambda x, k=k: k * x ** (k - 1) * dist.cdf(-x)) for k in (1, 2)]
        mean = above[0] - below[0]
        assert dist.mean() == pytest.approx(mean, abs=1e-9)
        assert dist.var() == pytest.approx(above[1] + below[1] - mean**2, abs=1e-9)


class TestLogProb:
    @given(st.floats(1e-6, 1.0 - 1e-6), MEANS, VARIANCES, st.floats(-100.0, 100.0).filter(bool))
    def test_values_match_scipy(self, q, m, v, x):
        expected = np.log(q) + stats.norm.logpdf(x, m, np.sqrt(v))
        np.testing.assert_allclose(SpikeSlab(q, m, v).log_prob(x), expected, rtol=1e-10, atol=1e-12)

    @given(CHANCES, MEANS, VARIANCES)
    def test_exact_zero_scores_the_spike_alone(self, q, m, v):
        with mpmath.workdps(40):
            expected = float(mpmath.log1p(-mpmath.mpf(q))) if q < 1 else -np.inf
        np.testing.assert_allclose(SpikeSlab(q, m, v).log_prob(0.0), expected, rtol=1e-14)

    def test_total_mass_is_one(self):
        dist = SpikeSlab(0.3, 0.7, 2.0)
        slab, _ = integrate.quad(lambda x: np.exp(dist.log_prob(x)), -15.0, 15.0, points=[0.7], epsabs=1e-12)
        assert slab + np.exp(dist.log_prob(0.0)) == pytest.approx(1.0, abs=1e-10)

    @pytest.mark.parametrize(
        ("parameters", "x", "expected"),
        [
            ((0.3, 2.0, 0.0), 2.0, np.inf),
            ((0.3, 2.0, 0.0), 1.9, -np.inf),
            ((0.3, 2.0, 0.0), 0.0, np.log(0.7)),
            ((0.0, 2.0, 0.0), 2.0, -np.inf),
            ((0.3, 0.0, 0.0), 0.0, 0.0),
            ((1.0, 0.0, 0.0), 0.0, 0.0),
            ((0.3, 0.0, 0.0), 1.0, -np.inf),
            ((0.0, 1.0, 1.0), 1.0, -np.inf),
            ((0.0, 1.0, 1.0), 0.0, 0.0),
            ((1.0, 1.0, 1.0), 0.0, -np.inf),
            ((0.5, 1.0, 1.0), np.inf, -np.inf),
            ((0.5, 1.0, 1.0), -np.inf, -np.inf),
            ((0.5, 1e300, 1e-300), -1e300, -np.inf),
        ],
    )
    def test_limits_are_never_nan(self, parameters, x, expected):
        assert SpikeSlab(*parameters).log_prob(x) == pytest.approx(expected)

    def test_leading_dimensions_hold_samples(self):
        dist = grid()
        draws = dist.sample(5, random_state=1)
        scores = dist.log_prob(draws)
        assert scores.shape == (5, 3, 4)
        assert scores[4, 1, 2] == dist[1, 2].log_prob(draws[4, 1, 2])


class TestCdf:
    @given(CHANCES, MEANS, VARIANCES, POINTS)
    def test_values_match_arbitrary_precision_in_relative_terms(self, q, m, v, x):
        with mpmath.workdps(400):
            expected = float(excess(q, m, v, x, 0.0))
        # The z-score is rounded: a relative error ε of z moves log Φ by up to z² ε.
        rounding = 4e-16 * (abs(x) + abs(m)) / np.sqrt(v) * (10.0 + abs(x - m) / np.sqrt(v))
        np.testing.assert_allclose(SpikeSlab(q, m, v).cdf(x), expected, rtol=2e-13 + rounding, atol=1e-290)

    @given(CHANCES, MEANS, st.one_of(st.just(0.0), VARIANCES), POINTS, POINTS)
    def test_it_never_decreases(self, q, m, v, x, y):
        dist = SpikeSlab(q, m, v)
        assert dist.cdf(min(x, y)) <= dist.cdf(max(x, y)) + 1e-15

    @given(CHANCES, MEANS, st.one_of(st.just(0.0), VARIANCES))
    def test_it_runs_from_zero_to_one(self, q, m, v):
        np.testing.assert_array_equal(SpikeSlab(q, m, v).cdf([-np.inf, np.inf]), [0.0, 1.0])

    def test_the_atom_is_counted_from_zero_on(self):
        dist = SpikeSlab(0.3, 0.0, 1.0)
        below, at = dist.cdf([np.nextafter(0.0, -1.0), 0.0])
        assert at - below == pytest.approx(0.7)

    def test_a_slab_without_width_is_a_step(self):
        np.testing.assert_allclose(SpikeSlab(0.3, 2.0, 0.0).cdf([-1.0, 0.0, 1.9, 2.0]), [0.0, 0.7, 0.7, 1.0])
        np.testing.assert_allclose(SpikeSlab(0.3, -2.0, 0.0).cdf([-2.1, -2.0, 0.0]), [0.0, 0.3, 1.0])


class TestQuantile:
    @settings(max_examples=150)
    @given(CHANCES, MEANS, VARIANCES, LEVELS)
    def test_it_is_the_generalised_inverse_of_the_exact_cdf(self, q, m, v, p):
        x = float(SpikeSlab(q, m, v).quantile(p))
        slack = 1e-13 * (abs(m) + 40.0 * np.sqrt(v))
        with mpmath.workdps(400):
            assert excess(q, m, v, x + slack, p) >= 0
            assert excess(q, m, v, x - slack, p) < 0

    @given(st.floats(-15.0, 0.0).map(lambda e: 10.0**e), MEANS, VARIANCES, SHARES, st.booleans(), st.booleans())
    def test_it_stays_precise_next_to_a_light_slab_or_spike(self, mass, m, v, share, light_spike, mirrored):
        q = 1.0 - mass if light_spike else mass
        p = min(mass * share, 1.0)
        p = 1.0 - p if mirrored else p
        if 0.0 < p < 1.0:
            x = float(SpikeSlab(q, m, v).quantile(p))
            slack = 1e-13 * (abs(m) + 40.0 * np.sqrt(v))
            with mpmath.workdps(60):
                assert excess(q, m, v, x + slack, p) >= 0
                assert excess(q, m, v, x - slack, p) < 0

    def test_the_sign_tells_the_side_of_the_atom(self):
        source = np.random.default_rng(0)
        q, m = source.random(20_000), source.normal(0.0, 2.0, 20_000)
        dist = SpikeSlab(q, m, 1.0)
        edge = q * stats.norm.cdf(-m)
        assert np.all(dist.quantile(edge) <= 0.0)
        edge = 1.0 - q * stats.norm.cdf(m)
        for _ in range(4):
            edge = np.nextafter(edge, 1.0)
            assert np.all(dist.quantile(edge) >= 0.0)

    @given(CHANCES, st.floats(-3.0, 3.0), VARIANCES, st.floats(0.001, 0.999))
    def test_cdf_of_quantile_reaches_the_level(self, q, m, v, p):
        dist = SpikeSlab(q, m, v)
        assert dist.cdf(dist.quantile(p)) >= p - 1e-13

    @given(CHANCES, MEANS, VARIANCES, POINTS)
    def test_quantile_of_cdf_does_not_pass_the_point(self, q, m, v, x):
        dist = SpikeSlab(q, m, v)
        level = dist.cdf(x)
        # Where the cdf is flat, one rounding of the level is a visible step: allow for a few. Below the smallest
        # normal number one rounding can be the level itself, and level 0 means the end of the support.
        if level >= np.finfo(np.float64).tiny:
            assert dist.quantile(level * (1.0 - 1e-14)) <= x + 1e-13 * (abs(x) + abs(m) + 40.0 * np.sqrt(v))

    @given(CHANCES, MEANS, st.one_of(st.just(0.0), VARIANCES), LEVELS, LEVELS)
    def test_it_never_decreases(self, q, m, v, p, r):
        low, high = SpikeSlab(q, m, v).quantile([min(p, r), max(p, r)])
        assert low <= high + 1e-13 * (abs(m) + 40.0 * np.sqrt(v))

    def test_levels_within_the_jump_give_exactly_zero(self):
        dist = SpikeSlab(0.4, 1.0, 1.0)
        left = 0.4 * stats.norm.cdf(-1.0)
        levels = np.array([left + 1e-12, 0.3, left + 0.6 - 1e-12])
        np.testing.assert_array_equal(dist.quantile(levels), 0.0)
        assert dist.quantile(left - 1e-3) < 0.0 < dist.quantile(left + 0.6 + 1e-3)

    def test_without_a_spike_it_is_the_normal_quantile(self):
        levels = np.array([1e-300, 1e-20, 1e-12, 0.01, 0.4, 0.6, 0.99, 1.0 - 1e-15])
        for mean in (-30.0, 0.0, 30.0):
            expected = stats.norm.ppf(levels, mean, 2.0)
            np.testing.assert_allclose(SpikeSlab(1.0, mean, 4.0).quantile(levels), expected, rtol=1e-13)

    @pytest.mark.parametrize(
        ("parameters", "ends"),
        [
            ((0.5, 1.0, 1.0), (-np.inf, np.inf)),
            ((0.5, 99.0, 1.0), (-np.inf, np.inf)),
            ((0.5, -99.0, 1.0), (-np.inf, np.inf)),
            ((1.0, 1.0, 1.0), (-np.inf, np.inf)),
            ((0.0, 1.0, 1.0), (0.0, 0.0)),
            ((0.5, 3.0, 0.0), (0.0, 3.0)),
            ((0.5, -3.0, 0.0), (-3.0, 0.0)),
            ((1.0, 3.0, 0.0), (3.0, 3.0)),
            ((1.0, -3.0, 0.0), (-3.0, -3.0)),
            ((0.5, 0.0, 0.0), (0.0, 0.0)),
        ],
    )
    def test_levels_zero_and_one_give_the_ends_of_the_support(self, parameters, ends):
        np.testing.assert_array_equal(SpikeSlab(*parameters).quantile([0.0, 1.0]), ends)

    @pytest.mark.parametrize(
        ("parameters", "levels", "expected"),
        [
            ((0.5, 3.0, 0.0), [0.1, 0.5, 0.500001, 0.9], [0.0, 0.0, 3.0, 3.0]),
            ((0.5, -3.0, 0.0), [0.1, 0.5, 0.500001, 0.9], [-3.0, -3.0, 0.0, 0.0]),
            ((0.25, 3.0, 0.0), [0.75, 0.76], [0.0, 3.0]),
            ((0.75, 3.0, 0.0), [0.25, 0.26], [0.0, 3.0]),
            ((0.75, -3.0, 0.0), [0.75, 0.76], [-3.0, 0.0]),
        ],
    )
    def test_a_slab_without_width_gives_its_point(self, parameters, levels, expected):
        np.testing.assert_array_equal(SpikeSlab(*parameters).quantile(levels), expected)

    def test_levels_broadcast_in_front(self):
        dist = grid()
        levels = np.array([0.1, 0.9])[:, None, None]
        result = dist.quantile(levels)
        assert result.shape == (2, 3, 4)
        np.testing.assert_array_equal(result[1], dist.quantile(0.9))


class TestInterval:
    @given(CHANCES, MEANS, st.one_of(st.just(0.0), VARIANCES), st.floats(0.0, 1.0))
    def test_negation_mirrors_it(self, q, m, v, level):
        low, high = SpikeSlab(q, m, v).interval(level)
        mirrored_low, mirrored_high = SpikeSlab(q, -m, v).interval(level)
        assert (mirrored_low, mirrored_high) == (-high, -low)
        assert low <= high

    @given(CHANCES, MEANS, VARIANCES, st.floats(0.0, 1.0 - 1e-12))
    def test_neither_side_keeps_more_than_its_share(self, q, m, v, level):
        low, high = map(float, SpikeSlab(q, m, v).interval(level))
        slack = 1e-13 * (abs(m) + 40.0 * np.sqrt(v))
        with mpmath.workdps(400):
            tail = mpmath.mpf((1.0 - level) / 2.0)
            assert excess(q, m, v, low - slack, tail) <= 0
            assert excess(q, m, v, high + slack, 1 - tail) >= 0

    def test_without_a_spike_it_is_the_normal_interval(self):
        np.testing.assert_allclose(SpikeSlab(1.0, 1.0, 4.0).interval(0.9), stats.norm.interval(0.9, 1.0, 2.0))

    def test_the_end_on_the_atom_is_positive_zero(self):
        for end in SpikeSlab(0.01, 1.0, 1.0).interval(0.9):
            assert end == 0.0
            assert not np.signbit(end)

    def test_level_one_is_the_whole_support(self):
        assert SpikeSlab(0.5, 0.0, 1.0).interval(1.0) == (-np.inf, np.inf)
        assert SpikeSlab(0.5, 3.0, 0.0).interval(1.0) == (0.0, 3.0)

    def test_draws_fall_inside_as_often_as_the_level_says(self):
        dist = SpikeSlab(0.8, 0.5, 1.0)
        low, high = dist.interval(0.9)
        assert low < 0.0 < high
        draws = dist.sample(100_000, random_state=2)
        inside = np.mean((low <= draws) & (draws <= high))
        assert abs(inside - 0.9) < 5.0 * np.sqrt(0.09 / draws.size)

    @given(CHANCES, MEANS, VARIANCES, st.floats(0.0, 1.0 - 1e-9))
    def test_given_active_it_is_the_interval_of_the_slab_whatever_the_spike(self, q, m, v, level):
        found = SpikeSlab(q, m, v).interval(level, given_active=True)
        np.testing.assert_allclose(found, stats.norm.interval(level, m, np.sqrt(v)), rtol=1e-9, atol=1e-9 * np.sqrt(v))

    def test_given_active_it_holds_active_coefficients_as_often_as_the_level_says(self):
        random = np.random.default_rng(3)
        dist = SpikeSlab(random.random(50_000), random.normal(size=50_000), random.random(50_000))
        codes = dist.sample(1, random_state=4)[0]
        active = codes != 0.0
        held = {}
        for given_active in (False, True):
            low, high = dist.interval(0.9, given_active)
            held[given_active] = np.mean((low <= codes)[active] & (codes <= high)[active])
        assert abs(held[True] - 0.9) < 5.0 * np.sqrt(0.09 / active.sum())
        assert held[False] < 0.88

    def test_given_active_a_point_slab_and_float32_are_kept(self):
        assert SpikeSlab(0.1, 3.0, 0.0).interval(0.9, given_active=True) == (3.0, 3.0)
        dist = SpikeSlab(*np.full((3, 2), 0.5, np.float32))
        assert {end.dtype for end in dist.interval([[0.5], [0.9]], given_active=True)} == {np.dtype(np.float32)}
        assert dist.interval([[0.5], [0.9]], given_active=True)[0].shape == (2, 2)


class TestArguments:
    @pytest.mark.parametrize("method", ["log_prob", "cdf", "quantile", "interval"])
    def test_nan_is_refused(self, method):
        with pytest.raises(ValueError, match=r"must not be NaN; 1 of 2 entries fail, the first at index \(1,\)"):
            getattr(SpikeSlab([0.5, 0.5], 0.0, 1.0), method)([0.1, np.nan])

    @pytest.mark.parametrize("method", ["log_prob", "cdf", "quantile", "interval"])
    def test_shapes_that_do_not_broadcast_are_refused(self, method):
        with pytest.raises(ValueError, match=r"has shape \(3,\), which does not broadcast .* shape \(2,\)"):
            getattr(SpikeSlab([0.5, 0.5], 0.0, 1.0), method)([0.1, 0.2, 0.3])

    @pytest.mark.parametrize("level", [-1e-9, 1.0 + 1e-9, 95.0])
    def test_levels_outside_the_unit_interval_are_refused(self, level):
        dist = SpikeSlab(0.5, 0.0, 1.0)
        with pytest.raises(ValueError, match=r"^p must lie in \[0, 1\]"):
            dist.quantile(level)
        with pytest.raises(ValueError, match=r"^level must lie in \[0, 1\]"):
            dist.interval(level)


class TestSample:
    def test_draws_follow_the_model(self):
        n, q, m, v = 100_000, 0.3, 1.5, 0.4
        draws = SpikeSlab(q, m, v).sample(n, random_state=0)
        active = draws[draws != 0.0]
        assert abs(active.size / n - q) < 5.0 * np.sqrt(q * (1.0 - q) / n)
        assert stats.kstest(active, stats.norm(m, np.sqrt(v)).cdf).pvalue > 1e-4

    def test_moments_agree_with_mean_and_var(self):
        dist = grid()
        n = 50_000
        draws = dist.sample(n, random_state=3)
        assert draws.shape == (n, 3, 4)
        error = np.abs(draws.mean(axis=0) - dist.mean())
        assert np.all(error <= 5.0 * dist.std() / np.sqrt(n))
        squares = (draws - dist.mean()) ** 2
        error = np.abs(squares.mean(axis=0) - dist.var())
        assert np.all(error <= 5.0 * squares.std(axis=0) / np.sqrt(n))

    def test_coefficients_are_independent(self):
        draws = SpikeSlab(np.full(2, 0.5), 0.0, 1.0).sample(50_000, random_state=4)
        assert abs(np.corrcoef(draws.T)[0, 1]) < 5.0 / np.sqrt(50_000)
        assert abs(np.corrcoef((draws != 0.0).T)[0, 1]) < 5.0 / np.sqrt(50_000)

    def test_never_and_always_active(self):
        draws = SpikeSlab([0.0, 1.0], 1.0, 1.0).sample(1000, random_state=5)
        assert np.all(draws[:, 0] == 0.0)
        assert np.all(draws[:, 1] != 0.0)

    @pytest.mark.parametrize("source", [lambda: 7, lambda: np.random.default_rng(7), lambda: np.random.RandomState(7)])
    def test_the_same_seed_gives_the_same_draws(self, source):
        dist = grid()
        np.testing.assert_array_equal(dist.sample(4, source()), dist.sample(4, source()))

    @pytest.mark.parametrize("source", [np.random.default_rng(7), np.random.RandomState(7), None])
    def test_a_generator_moves_on(self, source):
        dist = grid()
        assert not np.array_equal(dist.sample(4, source), dist.sample(4, source))

    def test_the_number_of_draws_is_checked(self):
        dist = grid()
        assert dist.sample(0).shape == (0, 3, 4)
        with pytest.raises(ValueError, match="n must be at least 0, got -1"):
            dist.sample(-1)
        with pytest.raises(TypeError):
            dist.sample(2.5)


def mixtures(n=200, n_parts=3, seed=0):
    """Random mixtures, some narrow, some heavy-tailed."""
    random = np.random.default_rng(seed)
    weight = random.dirichlet(np.ones(n_parts), n)
    mean, std = random.normal(0, 2, (n, n_parts)), np.exp(random.normal(-0.5, 1.5, (n, n_parts)))
    return SpikeSlab(random.random(n), mean, std**2, slab_weight=weight)


class TestMixtureSlab:
    def test_one_part_is_the_single_gaussian(self):
        single = SpikeSlab([0.2, 0.7], [1.0, -2.0], [0.5, 3.0])
        mixed = SpikeSlab([0.2, 0.7], [[1.0], [-2.0]], [[0.5], [3.0]], slab_weight=[1.0])
        x = np.array([[-3.0], [0.0], [0.4], [5.0]])
        for name, arguments in {"mean": (), "var": (), "std": (), "log_prob": (x,), "cdf": (x,)}.items():
            np.testing.assert_allclose(getattr(mixed, name)(*arguments), getattr(single, name)(*arguments), rtol=1e-14)
        levels = np.array([[1e-200], [1e-9], [0.3], [0.5], [0.99], [1.0]])
        np.testing.assert_allclose(mixed.quantile(levels), single.quantile(levels), rtol=1e-13)

    def test_equal_parts_are_one(self):
        split = SpikeSlab(0.4, [1.0, 1.0, 1.0], 2.0, slab_weight=[0.2, 0.3, 0.5])
        whole = SpikeSlab(0.4, 1.0, 2.0)
        assert split.quantile(0.93) == pytest.approx(whole.quantile(0.93), rel=1e-13)
        assert split.slab_var == pytest.approx(2.0, rel=1e-14)

    def test_moments_agree_with_draws_and_quadrature(self):
        dist = mixtures(5)
        for one in dist:
            low, high = one.quantile([1e-13, 1 - 1e-13])
            edges = np.unique(np.r_[low, np.sort(np.r_[one.slab_parts.mean, 0.0]), high])

            def integral(power, one=one, edges=edges):
                return sum(
                    integrate.quad(lambda x: x**power * np.exp(one.log_prob(x)) * (x != 0), a, b, limit=200)[0]
                    for a, b in itertools.pairwise(edges)
                )

            assert integral(0) == pytest.approx(one.prob_active, abs=1e-7)
            assert integral(1) == pytest.approx(one.mean(), abs=1e-6)
            assert integral(2) == pytest.approx(one.var() + one.mean() ** 2, rel=1e-5)
        draws = dist.sample(20_000, random_state=0)
        np.testing.assert_allclose(draws.mean(axis=0), dist.mean(), atol=5 * np.max(dist.std()) / np.sqrt(20_000))
        np.testing.assert_allclose(np.mean(draws != 0, axis=0), dist.prob_active, atol=0.02)

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6), LEVELS)
    def test_quantiles_invert_the_cdf_from_both_ends(self, seed, p):
        dist = mixtures(20, seed=seed)
        x = dist.quantile(p)
        below, at = dist.cdf(np.nextafter(x, -np.inf)), dist.cdf(x)
        upper = dist._mirrored().cdf(-x)  # P(β ≥ x), precise in the upper tail
        atom = x == 0
        assert np.all(at[atom] >= p * (1 - 1e-12))
        assert np.all(below[atom] <= p * (1 + 1e-12))
        if p < 0.5:
            np.testing.assert_allclose(at[~atom], p, rtol=1e-9)
        else:
            np.testing.assert_allclose(upper[~atom], 1 - p, rtol=1e-9)

    def test_quantiles_match_arbitrary_precision_in_both_tails(self):
        weight, mean, std = [0.7, 0.3], [0.5, -1.0], [0.1, 4.0]
        dist = SpikeSlab(0.9, mean, np.square(std), slab_weight=weight)
        for p in (1e-250, 1e-30, 0.02, 0.6, 0.97):
            with mpmath.workdps(300):

                def excess_of(x, p=p):
                    total = sum(w * mpmath.ncdf((x - m) / s) for w, m, s in zip(weight, mean, std, strict=True))
                    return mpmath.mpf(0.9) * total + (mpmath.mpf(0.1) if x >= 0 else 0) - mpmath.mpf(p)

                found = mpmath.mpf(float(dist.quantile(p)))
                step = abs(found) * mpmath.mpf("1e-12")
                assert excess_of(found - step) <= 0 <= excess_of(found + step)

    def test_intervals_mirror_and_given_active_ignores_the_spike(self):
        dist = mixtures(50)
        low, high = dist.interval(0.9)
        mirrored_low, mirrored_high = dist._mirrored().interval(0.9)
        np.testing.assert_allclose(low, 0.0 - mirrored_high, rtol=1e-14)
        np.testing.assert_allclose(high, 0.0 - mirrored_low, rtol=1e-14)
        low, high = dist.interval(0.9, given_active=True)
        slab = SpikeSlab(np.ones(50), *dist.slab_parts[1:], slab_weight=dist.slab_parts.weight)
        np.testing.assert_allclose(slab.cdf(high) - slab.cdf(low), 0.9, rtol=1e-9)

    def test_a_part_may_be_a_point(self):
        dist = SpikeSlab(1.0, [1.0, 0.0], [0.0, 1.0], slab_weight=[0.5, 0.5])
        below = 0.5 * stats.norm.cdf(1.0)
        np.testing.assert_allclose(dist.cdf([np.nextafter(1.0, 0.0), 1.0]), [below, below + 0.5], rtol=1e-12)
        assert dist.quantile(below + 0.2) == pytest.approx(1.0, abs=1e-12)
        assert dist.log_prob(1.0) == np.inf

    def test_indexing_reshaping_and_single_precision(self):
        dist = mixtures(12)
        table = dist._reshape((3, 4))
        assert table.shape == (3, 4)
        np.testing.assert_array_equal(table[1, 2].quantile(0.7), dist[6].quantile(0.7))
        np.testing.assert_array_equal(table[..., 1].var(), dist.var()[1::4])
        np.testing.assert_array_equal(table[[2, 0]].cdf(0.3), np.r_[dist.cdf(0.3)[8:], dist.cdf(0.3)[:4]].reshape(2, 4))
        single = SpikeSlab(
            *(part.astype(np.float32) for part in (dist.prob_active, *dist.slab_parts[1:])),
            slab_weight=dist.slab_parts.weight.astype(np.float32),
        )
        assert single.dtype == np.float32
        assert single.slab_parts.mean.dtype == single.slab_mean.dtype == single.quantile(0.3).dtype == np.float32
        twin = pickle.loads(pickle.dumps(dist))
        np.testing.assert_array_equal(twin.cdf(0.3), dist.cdf(0.3))

    @pytest.mark.parametrize(
        ("weight", "message"),
        [
            ([0.5, 0.6], "slab_weight must sum to 1"),
            ([1.5, -0.5], "slab_weight must be at least 0"),
            ([0.2, 0.3, 0.5], "do not broadcast"),
            ([np.nan, 1.0], "slab_weight must be finite"),
        ],
    )
    def test_invalid_weights_are_refused(self, weight, message):
        with pytest.raises(ValueError, match=message):
            SpikeSlab(0.5, [0.0, 1.0], 1.0, slab_weight=weight)
