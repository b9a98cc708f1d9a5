"""Scores of distributions against quadrature, draws, the methods of SpikeSlab, and the laws that define them."""

import tracemalloc
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import kstest, norm

from bayeslista import SpikeSlab
from bayeslista.metrics import (
    coverage,
    crps,
    interval_width,
    log_score,
    pit,
    pit_coverage,
    sharpness,
    support_coverage,
    variance_ratio,
)

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
PROBABILITIES = st.one_of(st.sampled_from([0.0, 1e-9, 0.5, 1.0]), st.floats(0.0, 1.0))
MEANS = st.floats(-5.0, 5.0)
VARIANCES = st.floats(1e-3, 9.0)
VALUES = st.one_of(st.just(0.0), st.floats(-8.0, 8.0))
SPIKE_SLABS = st.builds(SpikeSlab, st.floats(0.01, 0.99), MEANS, VARIANCES)


def mixed(n=400, d=7, seed=0):
    """Distributions of every kind: with and without a spike, a slab, a width; and draws of them."""
    random = np.random.default_rng(seed)
    q = random.choice([0.0, 1e-3, 0.2, 0.9, 1.0], (n, d))
    dist = SpikeSlab(q, random.normal(0, 2, (n, d)), random.choice([0.0, 1e-6, 0.5, 4.0], (n, d)))
    return dist, dist.sample(1, random_state=seed)[0]


def expectation(score, truth):
    """Mean of a score over draws of a spike and slab, by quadrature of the slab."""
    q, m, s = float(truth.prob_active), float(truth.slab_mean), float(np.sqrt(truth.slab_var))
    slab = WEIGHTS @ score(m + s * NODES) / np.sqrt(2 * np.pi)
    return (1 - q) * float(score(np.zeros(1))[0]) + q * float(slab)


class TestPit:
    @pytest.mark.parametrize("seed", [0, 1])
    def test_it_is_uniform_for_codes_drawn_from_their_predictions(self, seed):
        dist, codes = mixed(4000, 5, seed)
        found = pit(dist, codes, random_state=seed)
        assert found.shape == codes.shape
        assert kstest(found.ravel(), "uniform").pvalue > 1e-4

    def test_it_is_uniform_for_ranks_among_samples_however_few(self):
        dist = SpikeSlab(np.full(20_000, 0.3), 1.0, 1.0)
        draws, codes = dist.sample(4, random_state=0), dist.sample(1, random_state=1)[0]
        assert kstest(pit(draws, codes, random_state=2), "uniform").pvalue > 1e-4

    def test_it_tells_of_predictions_that_are_too_narrow(self):
        codes = np.random.default_rng(0).normal(size=2000)
        assert kstest(pit((np.zeros(2000), 0.8), codes), "uniform").pvalue < 1e-6

    @given(PROBABILITIES, MEANS, VARIANCES, VALUES.filter(bool))
    def test_away_from_the_atom_it_is_the_distribution_function(self, q, m, v, b):
        dist = SpikeSlab(q, m, v)
        assert pit(dist, b) == pytest.approx(float(dist.cdf(b)), abs=1e-15)

    def test_a_seed_gives_the_same_numbers_and_a_generator_moves_on(self):
        dist, codes = mixed()
        assert np.array_equal(pit(dist, codes, random_state=3), pit(dist, codes, random_state=3))
        random = np.random.default_rng(3)
        assert not np.array_equal(pit(dist, codes, random), pit(dist, codes, random))

    def test_its_central_share_is_the_level_asked_for(self):
        dist, codes = mixed(4000, 5)
        for level in (0.0, 0.5, 0.9, 1.0):  # five standard errors of 20,000 coefficients
            margin = 5 * np.sqrt(level * (1 - level) / codes.size)
            assert pit_coverage(dist, codes, level, random_state=0) == pytest.approx(level, abs=margin + 1e-12)


class TestCoverageAndWidth:
    @pytest.mark.parametrize("level", [0.0, 0.3, 0.5, 0.9, 0.99])
    def test_they_are_those_of_the_intervals(self, level):
        dist, codes = mixed()
        low, high = dist.interval(level)
        assert coverage(dist, codes, level) == pytest.approx(np.mean((low <= codes) & (codes <= high)), abs=0.002)
        assert interval_width(dist, level) == pytest.approx(np.mean(high - low), rel=1e-9)

    @pytest.mark.parametrize("level", [0.0, 0.5, 0.9, 0.999999, 1.0])
    def test_widths_are_those_of_the_intervals_where_ends_meet_the_atom(self, level):
        chances, means = [0.0, 1e-9, 0.05, 0.3, 0.95, 0.999, 1.0], [-50.0, -0.5, 0.0, 1e-9, 4.0]
        for chance, mean, var in product(chances, means, [0.0, 1e-12, 1.0]):
            dist = SpikeSlab(chance, mean, var)
            low, high = dist.interval(level)
            assert interval_width(dist, level) == pytest.approx(float(high - low), rel=1e-9, abs=1e-12)

    def test_level_one_holds_everything_and_is_infinitely_wide(self):
        dist, codes = mixed()
        assert coverage(dist, codes, 1.0) == 1.0
        assert interval_width(dist, 1.0) == np.inf
        assert interval_width(SpikeSlab(0.5, 2.0, 0.0), 1.0) == 2.0

    def test_samples_have_the_intervals_of_their_quantiles(self):
        draws = np.random.default_rng(0).normal(size=(4000, 3))
        assert interval_width(draws, 0.9) == pytest.approx(2 * norm.ppf(0.95), abs=0.15)
        assert coverage(draws, np.array([0.0, 1.5, 3.0]), 0.9) == pytest.approx(2 / 3)

    def test_a_gaussian_has_its_own(self):
        assert interval_width((1.0, 2.0), 0.9) == pytest.approx(4 * norm.ppf(0.95))
        assert coverage((1.0, 2.0), [1.0 + 2 * 1.64, 1.0 + 2 * 1.65], 0.9) == 0.5

    @pytest.mark.parametrize("given_active", [False, True])
    @pytest.mark.parametrize("level", [0.0, 0.5, 0.9, 0.99])
    def test_on_the_support_it_is_that_of_the_intervals_of_active_coefficients(self, level, given_active):
        dist, codes = mixed()
        low, high = dist.interval(level, given_active)
        inside, active = (low <= codes) & (codes <= high), codes != 0.0
        found = support_coverage(dist, codes, level, given_active)
        assert found == pytest.approx(np.mean(inside[active]), abs=0.002)

    def test_on_the_support_intervals_given_active_hold_as_often_as_asked_and_others_less(self):
        random = np.random.default_rng(0)
        dist = SpikeSlab(random.random((4000, 5)), random.normal(size=(4000, 5)), 0.5)
        codes = dist.sample(1, random_state=1)[0]
        for level in (0.5, 0.9):
            margin = 5 * np.sqrt(level * (1 - level) / np.count_nonzero(codes))
            assert support_coverage(dist, codes, level, given_active=True) == pytest.approx(level, abs=margin)
            assert support_coverage(dist, codes, level) < level - margin < coverage(dist, codes, level)

    def test_on_the_support_samples_have_the_quantiles_of_their_nonzero_draws(self):
        dist = SpikeSlab([0.3] * 200, np.linspace(-2, 2, 200), 1.0)
        draws, codes = dist.sample(20_000, random_state=0), dist.sample(1, random_state=1)[0]
        for given_active in (False, True):
            expected = support_coverage(dist, codes, 0.8, given_active)
            assert support_coverage(draws, codes, 0.8, given_active) == pytest.approx(expected, abs=0.03)
        draws[:, 0] = 0.0  # never active, and the code is
        assert support_coverage(draws[:, :1], [1.0], 1.0, given_active=True) == 0.0

    def test_on_the_support_a_gaussian_has_the_same_interval_either_way(self):
        codes = [1.0 + 2 * 1.64, 1.0 + 2 * 1.65, 0.0]
        assert support_coverage((1.0, 2.0), codes, 0.9) == support_coverage((1.0, 2.0), codes, 0.9, True) == 0.5

    def test_without_a_support_there_is_nothing_to_cover(self):
        with pytest.raises(ValueError, match="All codes of B are zero"):
            support_coverage(SpikeSlab(0.5, 1.0, 1.0), np.zeros(3))


class TestLogScore:
    def test_it_is_minus_the_log_density_whatever_the_kind(self):
        dist, codes = mixed()
        codes[::3] = 0.0
        assert np.allclose(log_score(dist, codes, average=False), -dist.log_prob(codes), rtol=1e-12)

    @given(SPIKE_SLABS, SPIKE_SLABS)
    def test_it_is_least_at_the_truth(self, truth, other):
        def expected(dist):
            return expectation(lambda b: log_score(dist, b, average=False), truth)

        assert expected(truth) <= expected(other) + 1e-9

    def test_what_was_excluded_costs_infinitely_much_and_is_never_nan(self):
        assert log_score(SpikeSlab(0.0, 1.0, 1.0), 2.0) == np.inf
        assert log_score(SpikeSlab(1.0, 1.0, 1.0), 0.0) == np.inf
        assert log_score(SpikeSlab(0.0, 1.0, 0.0), 1.0) == np.inf

    def test_a_gaussian_is_scored_where_nothing_is_zero_and_refused_where_something_is(self):
        assert log_score((1.0, 2.0), 2.0) == pytest.approx(-norm.logpdf(2.0, 1.0, 2.0))
        with pytest.raises(ValueError, match="with_spike"):
            log_score((1.0, 2.0), [1.0, 0.0])

    def test_many_samples_score_like_the_spike_and_slab_they_are_from(self):
        dist = SpikeSlab([0.1, 0.5, 0.9], [1.0, -2.0, 0.5], [1.0, 0.3, 2.0])
        codes = np.array([0.0, -1.5, 1.0])
        assert log_score(dist.sample(100_000, random_state=0), codes) == pytest.approx(log_score(dist, codes), abs=0.01)

    def test_samples_that_are_all_zero_or_never_cost_no_infinity(self):
        draws = np.zeros((10, 3))
        draws[:, 1] = 1.0
        draws[0, 2] = 2.0
        assert np.isfinite(log_score(draws, [[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], average=False)[:, 0]).all()
        assert np.isfinite(log_score(np.zeros((3, 2)), [0.0, 1.0]))


class TestCrps:
    @settings(max_examples=60)
    @given(PROBABILITIES, MEANS, VARIANCES, VALUES)
    @example(1e-9, 3.0, 1e-3, 0.0)
    @example(1.0, 0.0, 1.0, 0.0)
    def test_it_is_the_integrated_squared_difference_of_distribution_functions(self, q, m, v, b):
        dist, s = SpikeSlab(q, m, v), np.sqrt(v)

        def square(x):
            return float(dist.cdf(x) - (x >= b)) ** 2

        ends = sorted({-20.0, 20.0, 0.0, b, *(float(np.clip(m + k * s, -20, 20)) for k in (-8, -3, 0, 3, 8))})
        parts = [quad(square, low, high, limit=200)[0] for low, high in pairwise(ends)]
        assert crps(dist, b) == pytest.approx(sum(parts), abs=2e-6)

    @given(SPIKE_SLABS, SPIKE_SLABS)
    def test_it_is_least_at_the_truth(self, truth, other):
        def expected(dist):
            return expectation(lambda b: crps(dist, b, average=False), truth)

        # The score has a kink where the code is: quadrature is good to a thousandth of its size.
        assert expected(truth) <= expected(other) + 2e-3 * (1 + expected(other))

    def test_it_is_that_of_many_samples(self):
        dist, codes = SpikeSlab([0.0, 0.2, 0.7, 1.0], [1.0, 3.0, -1.0, 0.1], [1.0, 0.2, 4.0, 1e-4]), np.arange(4.0)
        draws = dist.sample(200_000, random_state=0)
        assert np.allclose(crps(draws, codes, average=False), crps(dist, codes, average=False), atol=0.01)

    def test_of_few_samples_it_is_the_mean_difference_less_half_their_own(self):
        draws, code = np.array([[0.0], [1.0], [4.0]]), 2.0
        own = np.mean(np.abs(draws - draws.T))
        assert crps(draws, [code]) == pytest.approx(np.mean(np.abs(draws - code)) - 0.5 * own)

    def test_without_spread_it_is_the_absolute_error(self):
        assert crps(SpikeSlab(1.0, 2.0, 0.0), [5.0, -1.0], average=False).tolist() == [3.0, 3.0]
        assert crps((2.0, 0.0), 2.5) == 0.5

    @given(PROBABILITIES, st.floats(-1e150, 1e150), st.floats(0, 1e150), st.floats(-1e150, 1e150))
    def test_it_is_finite_and_not_negative_at_any_scale(self, q, m, v, b):
        found = crps(SpikeSlab(q, m, v), b)
        assert -1e-12 * (abs(m) + abs(b) + np.sqrt(v)) <= found < np.inf

    def test_a_scale_of_codes_is_a_scale_of_scores(self):
        dist, codes = mixed()
        scaled = SpikeSlab(dist.prob_active, 8 * dist.slab_mean, 64 * dist.slab_var)
        assert crps(scaled, 8 * codes) == pytest.approx(8 * crps(dist, codes))


class TestSpread:
    def test_sharpness_is_the_mean_standard_deviation(self):
        dist, _ = mixed()
        assert sharpness(dist) == pytest.approx(dist.std().mean())
        assert sharpness((0.0, [1.0, 3.0])) == 2.0
        assert sharpness(np.array([[0.0], [2.0]])) == pytest.approx(np.sqrt(2.0))

    def test_the_variance_ratio_compares_variance_and_squared_error(self):
        dist, codes = mixed(4000, 5)
        by_hand = dist.var().mean() / np.mean((dist.mean() - codes) ** 2)
        assert variance_ratio(dist, codes) == pytest.approx(by_hand)
        assert variance_ratio((1.0, 0.0), 1.0) == 1.0
        assert variance_ratio((1.0, 0.5), 1.0) == np.inf


SCORES = [pit, coverage, pit_coverage, support_coverage, log_score, crps, variance_ratio]


class TestInput:
    @pytest.mark.parametrize("score", [coverage, support_coverage, log_score, crps, variance_ratio])
    def test_predictions_and_codes_broadcast(self, score):
        dist = SpikeSlab([[0.2, 0.9, 0.5]], 1.0, [[0.5, 1.0, 2.0]])
        codes = np.random.default_rng(0).normal(size=(2, 40, 1))
        whole = SpikeSlab(*(np.broadcast_to(part, (2, 40, 3)) for part in (dist.prob_active, 1.0, dist.slab_var)))
        assert score(dist, codes) == pytest.approx(score(whole, np.broadcast_to(codes, (2, 40, 3))), rel=1e-12)
        draws = whole.sample(5, random_state=0)
        assert score(draws[:, 0, :1], codes) == score(
            np.broadcast_to(draws[:, None, :1, 0], (5, 2, 40, 3)), np.broadcast_to(codes, (2, 40, 3))
        )

    def test_every_coefficient_has_a_score_in_the_shape_of_both(self):
        assert crps(SpikeSlab(0.5, 1.0, 1.0), np.ones((3, 2)), average=False).shape == (3, 2)
        assert log_score(np.ones((4, 2)), np.ones((3, 2)), average=False).shape == (3, 2)
        assert isinstance(crps(SpikeSlab(0.5, 1.0, 1.0), 1.0), float)

    def test_single_precision_is_summed_in_double(self):
        dist, codes = mixed(300, 5)
        single = SpikeSlab(*(part.astype(np.float32) for part in (dist.prob_active, dist.slab_mean, dist.slab_var)))
        double = SpikeSlab(*(part.astype(float) for part in (single.prob_active, single.slab_mean, single.slab_var)))
        code = codes.astype(np.float32)
        for score in (crps, coverage, variance_ratio):
            assert score(single, code) == score(double, code.astype(float))

    @pytest.mark.parametrize("score", SCORES)
    def test_bad_input_is_refused_with_a_reason(self, score):
        dist = SpikeSlab([0.5, 0.5], 1.0, 1.0)
        for prediction, codes, message in (
            (dist, [1.0, 2.0, 3.0], r"B has shape \(3,\).*broadcast"),
            (dist, [1.0, np.nan], "B must be finite"),
            (dist, ["a", "b"], "real numbers"),
            ((np.ones(2), -np.ones(2)), np.ones(2), "std must be at least 0"),
            ((np.ones(2), np.full(2, np.nan)), np.ones(2), "std must be finite"),
            ((np.ones(2), np.ones(3)), np.ones(2), "std has shape"),
            ((np.ones(2),), np.ones(2), r"must be \(mean, std\)"),
            (np.ones((1, 2)), np.ones(2), "at least two draws"),
            (np.float64(1.0), np.ones(2), "at least two draws"),
            (np.ones((4, 2)), np.ones((4, 2)), "samples of one more dimension"),
            ([np.ones(2), np.ones(2)], np.ones(2), "as a tuple"),
            (np.full((2, 2), np.inf), np.ones(2), "samples must be finite"),
            (SpikeSlab(np.ones((0, 2)), 1.0, 1.0), np.ones((0, 2)), "nothing to score"),
        ):
            with pytest.raises(ValueError, match=message):
                score(prediction, codes)

    @pytest.mark.parametrize("score", [coverage, pit_coverage, support_coverage])
    def test_levels_are_probabilities(self, score):
        for level in (90, "0.9", None, [0.9], True, np.nan):
            with pytest.raises(ValueError, match="not a percentage"):
                score((0.0, 1.0), 1.0, level)

    @pytest.mark.parametrize("score", [*SCORES, sharpness, interval_width])
    def test_memory_is_bounded_by_that_of_the_input(self, score):
        random = np.random.default_rng(0)
        dist = SpikeSlab(random.random((1500, 500)), random.normal(size=(1500, 500)), 1.0)
        codes = dist.sample(1, random_state=1)[0]  # of seed 0 all would be zero
        given = (dist,) if score in (sharpness, interval_width) else (dist, codes)
        score(*given)
        tracemalloc.start()
        try:
            score(*given)
            assert tracemalloc.get_traced_memory()[1] < 4 * codes.nbytes
        finally:
            tracemalloc.stop()


class TestMixtureSlabs:
    def dist(self, n=40):
        random = np.random.default_rng(3)
        weight = random.dirichlet(np.ones(3), n)
        std = np.exp(random.normal(-0.5, 1.0, (n, 3)))
        return SpikeSlab(random.random(n), random.normal(0, 1, (n, 3)), std**2, slab_weight=weight)

    def test_scores_of_one_part_are_those_of_a_gaussian(self):
        single = SpikeSlab([0.2, 0.9], [1.0, -2.0], [0.5, 3.0])
        mixed = SpikeSlab([0.2, 0.9], [[1.0], [-2.0]], [[0.5], [3.0]], slab_weight=[1.0])
        B = np.array([[0.0, 0.0], [0.4, -3.0]])
        for score in (crps, log_score):
            np.testing.assert_allclose(score(mixed, B, average=False), score(single, B, average=False), rtol=1e-13)
        np.testing.assert_allclose(pit(mixed, B, 0), pit(single, B, 0), rtol=1e-13)
        assert interval_width(mixed) == pytest.approx(interval_width(single), rel=1e-12)
        assert variance_ratio(mixed, B) == pytest.approx(variance_ratio(single, B), rel=1e-12)

    def test_crps_is_the_integral_of_squared_differences_of_distribution_functions(self):
        dist = self.dist(4)
        grid = np.linspace(-40.0, 40.0, 400_001)
        for code in (0.0, 0.7):
            error = np.square(dist.cdf(grid[:, None]) - (grid[:, None] >= code))
            expected = np.trapezoid(error, grid, axis=0)
            np.testing.assert_allclose(crps(dist, np.full(4, code), average=False), expected, atol=3e-4)

    def test_calibrated_mixtures_have_uniform_pit_and_covering_intervals(self):
        dist = self.dist()
        B = dist.sample(2000, random_state=0)
        assert kstest(pit(dist, B, 0).ravel(), "uniform").pvalue > 0.001
        assert pit_coverage(dist, B, 0.5, random_state=0) == pytest.approx(0.5, abs=0.008)
        assert support_coverage(dist, B, 0.9, given_active=True) == pytest.approx(0.9, abs=0.008)
        assert coverage(dist, B, 0.9) >= 0.895
        low, high = dist.interval(0.9)
        assert interval_width(dist, 0.9) == pytest.approx(np.mean(high - low), rel=1e-12)
        assert log_score(dist, B) == pytest.approx(-np.mean(dist.log_prob(B)), rel=1e-12)
