"""Decisions against enumeration, the definitions, and codes drawn from a posterior that is known exactly."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bayeslista.decisions import CredibleSet, credible_sets, joint_interval, probability, select

# Sums of 64ths are exact, so that enumeration decides ties and bounds without rounding; few values make many ties.
SHARES = st.integers(0, 64).map(lambda k: k / 64)
PROBABILITIES = st.lists(SHARES, min_size=1, max_size=9)
FEW_VALUES = st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=9)


@pytest.fixture(scope="module")
def signals():
    return simulated(0)


def simulated(seed):
    """Matrix with two pairs of near copies, codes of the prior, and draws of their posterior by its 256 supports."""
    random = np.random.default_rng(seed)
    n, K, D, n_draws, prob, noise = 400, 6, 8, 2000, 0.25, 0.2
    A = random.normal(size=(K, D)) / np.sqrt(K)
    A[:, [1, 3]] = A[:, [0, 2]] + 0.05 * random.normal(size=(K, 2))
    codes = random.normal(size=(n, D)) * (random.random((n, D)) < prob)
    observations = codes @ A.T + noise * random.normal(size=(n, K))
    log_weight, moments = [], []
    for support in product([False, True], repeat=D):
        S = A[:, support]
        covariance = S @ S.T + noise**2 * np.eye(K)
        fit = np.einsum("nk,nk->n", observations, np.linalg.solve(covariance, observations.T).T)
        size = sum(support)
        log_weight.append(
            -0.5 * (fit + np.linalg.slogdet(covariance)[1]) + size * np.log(prob) + (D - size) * np.log(1 - prob)
        )
        precision = S.T @ S / noise**2 + np.eye(size)
        moments.append((np.flatnonzero(support), np.linalg.inv(precision) @ S.T / noise**2, precision))
    weight = np.exp(np.array(log_weight).T - np.max(log_weight, axis=0)[:, None])
    draws = np.zeros((n_draws, n, D))
    for i in range(n):
        chosen = random.choice(len(moments), n_draws, p=weight[i] / weight[i].sum())
        for support in np.unique(chosen):
            columns, gain, precision = moments[support]
            rows = np.flatnonzero(chosen == support)
            root = np.linalg.cholesky(precision) if len(columns) else precision
            values = np.linalg.solve(root.T, random.normal(size=(len(columns), len(rows))))
            draws[np.ix_(rows, [i], columns)] = (gain @ observations[i] + values.T)[:, None]
    return A, codes, draws


class TestSelect:
    @given(st.one_of(PROBABILITIES, FEW_VALUES), SHARES)
    def test_it_is_the_largest_of_all_subsets_that_a_threshold_separates(self, probabilities, fdr):
        values = np.array(probabilities)
        sizes = [
            size
            for size in range(1, len(values) + 1)
            for subset in combinations(range(len(values)), size)
            if np.sum(1 - values[list(subset)]) <= fdr * size
            and values[list(subset)].min() > np.delete(values, subset).max(initial=-1.0)
        ]
        assert select(values, fdr).sum() == max(sizes, default=0)

    @given(st.sets(st.integers(0, 64), min_size=1, max_size=9), SHARES)
    def test_without_ties_no_subset_within_the_bound_is_larger(self, numerators, fdr):
        values = np.array(sorted(numerators)) / 64
        sizes = [
            size
            for size in range(1, len(values) + 1)
            for subset in combinations(values, size)
            if np.sum(1 - np.array(subset)) <= fdr * size
        ]
        assert select(values, fdr).sum() == max(sizes, default=0)

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1), st.randoms())
    def test_it_keeps_the_bound_grows_with_it_and_ignores_the_order(self, probabilities, fdr, other, random):
        values = np.array(probabilities)
        selected = select(values, fdr)
        if selected.any():
            assert np.mean(1 - values[selected]) <= fdr + 1e-12
            assert values[selected].min() > values[~selected].max(initial=-1.0)
        smaller, larger = select(values, min(fdr, other)), select(values, max(fdr, other))
        assert not (smaller & ~larger).any()
        order = np.array(random.sample(range(len(values)), len(values)))
        np.testing.assert_array_equal(select(values[order], fdr), selected[order])

    def test_coefficients_of_equal_probability_stay_together(self):
        # One of the last two would have a rate of 1/6, both have 1/4.
        np.testing.assert_array_equal(select([0.5, 1.0, 0.5, 1.0], 0.2), [False, True, False, True])

    def test_the_share_of_false_discoveries_is_the_expected_one(self):
        random = np.random.default_rng(1)
        prob = random.beta(0.3, 0.7, (4000, 50))
        active = random.random(prob.shape) < prob
        for fdr in (0.05, 0.2):
            selected = select(prob, fdr)
            size = np.maximum(selected.sum(axis=1), 1)
            realised = np.sum(selected & ~active, axis=1) / size
            expected = np.sum(selected * (1 - prob), axis=1) / size
            variance = np.sum(selected * prob * (1 - prob), axis=1) / size**2
            assert expected.mean() <= fdr
            assert realised.mean() == pytest.approx(expected.mean(), abs=5 * np.sqrt(variance.sum()) / len(prob))

    def test_the_share_of_false_discoveries_is_bounded_for_a_posterior_of_signals(self, signals):
        _, codes, draws = signals
        selected = select(np.mean(draws != 0, axis=0), 0.1, axis=None)
        errors, n = np.sum(selected & (codes == 0)), selected.sum()
        assert n > 200
        assert errors / n <= 0.1 + 5 * np.sqrt(0.1 * 0.9 / n)

    def test_a_selection_is_made_along_an_axis_or_of_all_entries(self):
        values = np.random.default_rng(2).random((4, 5, 6))
        by_row = select(values, 0.3)
        np.testing.assert_array_equal(by_row[1, 2], select(values[1, 2], 0.3))
        np.testing.assert_array_equal(select(values, 0.3, axis=1), select(values.swapaxes(1, 2), 0.3).swapaxes(1, 2))
        np.testing.assert_array_equal(select(values, 0.3, axis=None).ravel(), select(values.ravel(), 0.3))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("fdr", [0.01, 0.05, 0.1, 0.3])
    def test_a_probability_that_is_rounded_meets_its_own_bound(self, fdr, dtype):
        assert select(np.full(1000, 1 - fdr, dtype), fdr).all()
        assert not select(np.full(1000, 1 - fdr - 1e-6, dtype), fdr).any()

    def test_bounds_of_zero_and_one_and_empty_signals(self):
        np.testing.assert_array_equal(select([1.0, 0.999, 0.0], 0), [True, False, False])
        assert select([0.0, 0.5], 1).all()
        assert select(np.zeros((3, 0)), 0.1).shape == (3, 0)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([0.2, 1.5], 0.1), r"prob_active must lie in \[0, 1\]; 1 of 2 .* index \(1,\): 1.5"),
            (([0.2, np.nan], 0.1), r"prob_active must lie in \[0, 1\].*nan"),
            ((["a"], 0.1), "real numbers"),
            ((0.5, 0.1), "at least one axis"),
            (([0.5], 10), r"fdr must be a number in \[0, 1\], got 10. Pass a probability"),
            (([0.5], True), "fdr must be"),
            (([0.5], 0.1, 1), "axis must be None or an integer from -1 to 0, got 1"),
            (([0.5], 0.1, 0.0), "axis must be"),
        ],
    )
    def test_bad_input_is_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            select(*arguments)


class TestCredibleSets:
    def test_one_of_two_copies(self):
        active = np.random.default_rng(0).random(500) < 0.5
        draws = np.stack([np.zeros(500), active, ~active], axis=1) * 1.7
        A = [[1.0, 0.3, -0.6], [0.0, 1.0, -2.0]]
        (found,) = credible_sets(draws, A)
        assert found == CredibleSet((1, 2), 1.0, pytest.approx(1.0), 1.0)

    def test_one_column_is_enough_where_it_is_sure(self):
        draws = np.stack([np.ones(10), np.arange(10) % 2], axis=1)
        assert credible_sets(draws, np.ones((3, 2))) == [CredibleSet((0,), 1.0, 1.0, 1.0)]

    def test_columns_of_a_set_are_correlated_with_each_other_not_only_with_the_first(self):
        # The first correlates with both others, which are orthogonal. One of the three is active.
        draws = np.eye(3)[np.repeat([0, 1, 2], [4, 3, 3])]
        A = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
        assert credible_sets(draws, A, level=0.9) == []
        (found,) = credible_sets(draws, A, level=0.7)
        assert found == CredibleSet((0, 1), 0.7, pytest.approx(np.sqrt(0.5)), 0.7)
        (found,) = credible_sets(draws, A, level=0.9, min_correlation=0.0)
        assert found.columns == (0, 1, 2)
        assert found.purity == pytest.approx(0.0)

    def test_both_copies_at_once_count_twice(self):
        assert credible_sets([[1.0, 2.0], [1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0]]) == [
            CredibleSet((0, 1), 1.0, 1.0, 4 / 3)
        ]

    @given(st.integers(0, 10**6), st.floats(0.05, 1.0), st.floats(0.0, 1.0))
    def test_sets_are_disjoint_probable_and_correlated_and_no_sure_column_is_left_out(self, seed, level, least):
        random = np.random.default_rng(seed)
        D = 7
        A = random.normal(size=(2, D))
        draws = random.normal(size=(60, D)) * (random.random((60, D)) < random.random(D))
        found = credible_sets(draws, A, level, least)
        columns = [column for each in found for column in each.columns]
        assert len(columns) == len(set(columns))
        for each in found:
            inside = draws[:, list(each.columns)] != 0
            assert each.probability == np.mean(inside.any(axis=1)) >= level - 1e-12
            assert each.expected_active == pytest.approx(inside.sum(axis=1).mean())
            unit = (A / np.linalg.norm(A, axis=0)).T
            pairs = [abs(unit[i] @ unit[j]) for i, j in combinations(each.columns, 2)]
            assert each.purity == pytest.approx(min(pairs, default=1.0))
            assert each.purity >= least - 1e-9
        assert set(np.flatnonzero(np.mean(draws != 0, axis=0) >= level)) <= set(columns)

    @given(st.integers(0, 10**6))
    def test_scales_and_signs_of_columns_and_the_order_of_draws_have_no_influence(self, seed):
        random = np.random.default_rng(seed)
        A = random.normal(size=(3, 6))
        draws = random.normal(size=(40, 6)) * (random.random((40, 6)) < 0.4)
        found = credible_sets(draws, A, 0.6, 0.4)
        scale = random.choice([-1.0, 1e-200, 3.0, 1e200], 6)
        again = credible_sets(random.permutation(draws), A * scale, 0.6, 0.4)
        assert [each.columns for each in found] == [each.columns for each in again]

    def test_several_signals_are_those_of_each(self, signals):
        A, _, draws = signals
        assert credible_sets(draws[:, :5], A) == [credible_sets(draws[:, i], A) for i in range(5)]

    def test_sets_hold_an_active_column_as_often_as_they_say(self, signals):
        A, codes, draws = signals
        found = [(each, codes[i]) for i, sets in enumerate(credible_sets(draws, A, 0.9)) for each in sets]
        said = np.array([each.probability for each, _ in found])
        right = [np.any(code[list(each.columns)] != 0) for each, code in found]
        assert len(found) > 250
        assert any(len(each.columns) > 1 for each, _ in found)
        # Five standard errors of the truth; that of 2,000 draws is a tenth of it and less.
        assert np.mean(right) == pytest.approx(said.mean(), abs=5 * np.sqrt(np.sum(said * (1 - said))) / len(said))

    def test_a_column_of_zeros_is_correlated_with_none(self):
        draws = np.eye(2)[[0, 1]]
        assert credible_sets(draws, [[1.0, 0.0]], level=0.9) == []
        assert [each.columns for each in credible_sets(draws, [[1.0, 0.0]], level=0.5)] == [(0,), (1,)]

    def test_no_signals_and_inactive_columns_have_no_sets(self):
        assert credible_sets(np.zeros((5, 0, 2)), np.eye(2)) == []
        assert credible_sets(np.zeros((5, 2)), np.eye(2), level=0.0) == []

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((np.ones(3), np.eye(3)), r"draws must have shape \(n_draws, ..., n_components\).*got \(3,\)"),
            ((np.ones((0, 3)), np.eye(3)), "none of them 0"),
            ((np.ones((2, 2, 2, 3)), np.eye(3)), "Flatten the axes of signals"),
            (([[1.0, np.nan]], np.eye(2)), r"draws must be finite; 1 of 2 .* index \(0, 1\): nan"),
            ((np.ones((4, 2)), np.eye(3)), r"design_matrix must have shape \(n_observed, 2\).*got \(3, 3\)"),
            ((np.ones((4, 2)), [1.0, 2.0]), r"got \(2,\)"),
            ((np.ones((4, 2)), [[1.0, np.inf]]), "design_matrix must be finite"),
            ((np.ones((4, 2)), np.eye(2), 95), r"level must be a number in \[0, 1\]"),
            ((np.ones((4, 2)), np.eye(2), 0.9, -0.5), r"min_correlation must be .* got -0.5. Pass an absolute"),
        ],
    )
    def test_bad_input_is_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            credible_sets(*arguments)


def between(draws, lower, upper):
    return np.all((lower <= draws) & (draws <= upper), axis=-1)


class TestJointInterval:
    @given(
        st.lists(st.lists(st.integers(-2, 2), min_size=2, max_size=2), min_size=2, max_size=15),
        st.floats(0.01, 0.99),
    )
    def test_the_rank_is_one_beyond_the_smallest_that_holds_enough_draws(self, rows, level):
        draws = np.array(rows, float)
        n, ordered = len(draws), np.sort(draws, axis=0)
        held = [np.mean(between(draws, ordered[n - 1 - k], ordered[k])) for k in range(n)]
        smallest = next(k for k in range(n) if held[k] >= level)
        assume(smallest < n - 1)
        lower, upper = joint_interval(draws, level)
        np.testing.assert_array_equal(lower, ordered[n - 2 - smallest])
        np.testing.assert_array_equal(upper, ordered[smallest + 1])

    @given(st.integers(0, 10**6), st.floats(0.0, 0.9))
    def test_at_least_that_share_of_the_draws_is_inside_whatever_the_scales(self, seed, level):
        random = np.random.default_rng(seed)
        draws = random.normal(size=(200, 4)) * (random.random((200, 4)) < [0.02, 0.3, 0.9, 1.0])
        lower, upper = joint_interval(draws, level)
        assert between(draws, lower, upper).mean() >= level
        scale = np.array([1e-100, -2.0, 1.0, 1e100])
        ends = np.sort(np.stack(joint_interval(draws * scale, level)), axis=0)
        np.testing.assert_allclose(ends, np.sort(np.stack([lower, upper]) * scale, axis=0), rtol=1e-14)

    def test_coefficients_that_are_nearly_always_zero_have_no_width(self):
        random = np.random.default_rng(0)
        draws = random.normal(size=(5000, 3)) * (random.random((5000, 3)) < [0.0, 1e-3, 0.5])
        lower, upper = joint_interval(draws, 0.9)
        np.testing.assert_array_equal(lower[:2], 0.0)
        np.testing.assert_array_equal(upper[:2], 0.0)
        assert lower[2] < -1.0
        assert upper[2] > 1.0

    def test_independent_gaussians_have_the_interval_of_their_product(self):
        draws = np.random.default_rng(0).normal(size=(100_000, 2))
        for end in joint_interval(draws, 0.9):
            # Each holds a share √0.9. The density there is 0.058, and a tail of 2.6 % has a standard error of 0.05 %.
            np.testing.assert_allclose(np.abs(end), 1.949, atol=5 * 0.0005 / 0.058)

    def test_it_holds_the_whole_code_as_often_as_asked(self, signals):
        _, codes, draws = signals
        for level in (0.5, 0.9):
            lower, upper = joint_interval(draws, level)
            # Atoms at zero make it hold more, never less.
            assert between(codes, lower, upper).mean() >= level - 5 * np.sqrt(level * (1 - level) / len(codes))

    def test_it_holds_new_draws_as_often_as_asked_though_old_ones_are_few(self):
        random = np.random.default_rng(0)
        held = []
        for _ in range(100):
            draws, fresh = random.normal(size=(2, 400, 5))
            held.append(between(fresh, *joint_interval(draws, 0.9)).mean())
        # 100 intervals of 400 draws, of which each has a standard error of about 0.02, and one rank has 0.025.
        assert 0.9 - 5 * 0.02 / 10 < np.mean(held) < 0.9 + 5 * 0.02 / 10 + 0.025

    def test_too_few_draws_give_their_range_and_a_warning(self):
        draws = np.random.default_rng(0).normal(size=(100, 3, 50))
        draws[:, 1] = 0.0
        with pytest.warns(UserWarning, match=r"100 draws are too few .* level 0.9 in 2 of 3 signals.* Take more draws"):
            lower, upper = joint_interval(draws, 0.9)
        np.testing.assert_array_equal(lower, draws.min(axis=0))
        np.testing.assert_array_equal(upper, draws.max(axis=0))

    def test_several_signals_are_those_of_each(self):
        draws = np.random.default_rng(0).normal(size=(300, 2, 3, 4)).astype(np.float32)
        lower, upper = joint_interval(draws, 0.8)
        assert lower.dtype == np.float32
        np.testing.assert_array_equal((lower[1, 2], upper[1, 2]), joint_interval(draws[:, 1, 2], 0.8))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([1.0, 2.0], 0.9), "draws must have shape"),
            (([[np.inf]], 0.9), "draws must be finite"),
            (([[1.0]], 90), "level must be a number"),
        ],
    )
    def test_bad_input_is_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            joint_interval(*arguments)


class TestProbability:
    def test_it_is_the_share_of_draws_in_the_shape_of_the_condition(self):
        draws = np.random.default_rng(0).normal(size=(100, 3, 4))
        assert probability(draws, lambda b: (b > 0).all(axis=(1, 2))) == 0.0
        found = probability(draws, lambda b: b[..., 0] > b[..., 1])
        np.testing.assert_array_equal(found, [np.mean(draws[:, i, 0] > draws[:, i, 1]) for i in range(3)])
        np.testing.assert_array_equal(probability(draws, lambda b: b > 0), np.mean(draws > 0, axis=0))
        assert isinstance(probability(draws[:, 0], lambda b: b[:, 0] > 0), float)

    def test_the_error_of_independent_draws_is_binomial(self):
        draws = np.random.default_rng(0).random((10_000, 20, 1))
        share, error = probability(draws, lambda b: b[..., 0] < 0.3, return_se=True)
        binomial = np.sqrt(0.3 * 0.7 / 10_000)
        assert np.all(np.abs(share - 0.3) < 5 * binomial)
        # The larger of two: that of 100 batches has a standard deviation of 7 %.
        assert np.all(error > 0.98 * binomial)
        assert np.all(error < 1.4 * binomial)

    def test_the_error_of_a_chain_includes_its_autocorrelation(self):
        random = np.random.default_rng(0)
        # Two states, left with probability 0.05: autocorrelation 0.9, which multiplies the variance by 1.9/0.1.
        chains = (np.cumsum(random.random((10_000, 50, 1)) < 0.05, axis=0) + random.integers(2, size=(50, 1))) % 2
        share, error = probability(chains, lambda b: b[..., 0] != 0, return_se=True)
        true = np.sqrt(0.25 * 19 / 10_000)
        assert np.std(share) == pytest.approx(true, rel=5 / np.sqrt(2 * 50))
        assert error.mean() == pytest.approx(true, rel=0.15)  # batches of 100 leave out a tenth

    def test_no_probability_is_certain(self):
        share, error = probability(np.ones((100, 1)), lambda b: b[:, 0] > 0, return_se=True)
        assert share == 1.0
        assert 0.0 < error < 0.01
        assert probability([[1.0]], lambda b: b[:, 0] > 0, return_se=True)[1] > 0.1

    def test_draws_are_not_changed_by_a_condition(self):
        draws = np.ones((4, 2), np.float32)

        def careless(b):
            b[:] = 0.0
            return b[:, 0] > 0

        with pytest.raises(ValueError, match="read-only"):
            probability(draws, careless)
        draws[0, 0] = 2.0  # still the caller's own

    @pytest.mark.parametrize(
        "condition", [lambda b: (b != 0).any(), lambda b: b[:, 0], lambda b: (b != 0).any(axis=0), lambda b: None]
    )
    def test_conditions_that_are_none_are_refused(self, condition):
        with pytest.raises(
            ValueError, match=r"condition must return an array of bool whose first axis are the 4 draws"
        ):
            probability(np.ones((4, 2)), condition)
