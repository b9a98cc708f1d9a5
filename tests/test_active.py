"""Acquisition scores against their definitions, batches against brute force, and the loop with a model that records."""

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import BaseEstimator

from bayeslista import BayesLISTA
from bayeslista.active import (
    active_learning,
    select_batch,
    spike_slab_entropy,
    support_entropy,
    total_variance,
    variance_reduction,
)
from bayeslista.datasets import make_sparse_codes
from bayeslista.distributions import SpikeSlab

SCORES = [total_variance, spike_slab_entropy, support_entropy]
CHANCES = st.one_of(st.sampled_from([0.0, 1e-12, 0.5, 1.0]), st.floats(0.0, 1.0))
VARIANCES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(1e-6, 1e6))
MEANS = st.one_of(st.just(0.0), st.floats(-50.0, 50.0))
TABLES = st.integers(1, 4).flatmap(
    lambda rows: st.integers(1, 3).flatmap(
        lambda columns: st.tuples(
            *(hnp.arrays(np.float64, (rows, columns), elements=kind) for kind in (CHANCES, MEANS, VARIANCES))
        )
    )
)
# Few distinct values, so that ties are common.
RANKABLE = hnp.arrays(np.float64, st.integers(1, 8), elements=st.sampled_from([-np.inf, -1.0, 0.0, 2.0, np.inf]))


class TestScores:
    @pytest.mark.parametrize("score", SCORES)
    @given(TABLES)
    def test_each_is_a_sum_over_coefficients_and_never_nan(self, score, table):
        dist = SpikeSlab(*table)
        values = score(dist)
        single = np.stack([score(dist[:, [d]]) for d in range(dist.shape[1])])
        assert values.shape == (len(dist),)
        assert not np.isnan(values).any()
        np.testing.assert_allclose(values, single.sum(axis=0), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("score", SCORES)
    def test_candidates_of_one_coefficient_may_be_a_vector(self, score):
        dist = SpikeSlab([0.2, 0.7], [1.0, -2.0], [0.5, 3.0])
        np.testing.assert_array_equal(score(dist), score(dist[:, None]))

    @pytest.mark.parametrize("score", SCORES)
    def test_single_precision_is_summed_in_double(self, score):
        single = SpikeSlab(*(np.full((1, 1000), value, np.float32) for value in (0.3, 1.5, 0.7)))
        double = SpikeSlab(*(a.astype(np.float64) for a in (single.prob_active, single.slab_mean, single.slab_var)))
        values = score(single)
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, score(double), rtol=np.finfo(np.float32).eps)

    @pytest.mark.parametrize("score", SCORES)
    @pytest.mark.parametrize("shape", [(), (2, 3, 4)])
    def test_other_shapes_are_refused(self, score, shape):
        with pytest.raises(ValueError, match=r"expected \(n_candidates, n_components\)"):
            score(SpikeSlab(np.full(shape, 0.5), 1.0, 1.0))

    def test_total_variance_is_the_formula_of_the_paper(self):
        q, m, v = np.random.default_rng(0).uniform(0.1, 1.0, (3, 5, 7))
        np.testing.assert_allclose(total_variance(SpikeSlab(q, m, v)), (q * (v + (1 - q) * m**2)).sum(axis=1))

    @pytest.mark.parametrize("parts", [False, True])
    def test_entropy_is_the_mean_of_minus_the_log_density(self, parts):
        dist = SpikeSlab([[0.3, 0.9], [1.0, 0.0]], [[2.0, -1.0], [0.5, 3.0]], [[0.5, 2.0], [0.1, 1.0]])
        if parts:
            mean, var = (np.stack([part, -2.0 * part], axis=-1) for part in (dist.slab_mean, dist.slab_var))
            dist = SpikeSlab(dist.prob_active, mean, np.abs(var), slab_weight=[0.3, 0.7])
        n = 20_000
        surprise = -dist.log_prob(dist.sample(n, random_state=0)).sum(axis=2)
        margin = 5.0 * surprise.std(axis=0) / np.sqrt(n)
        assert (np.abs(surprise.mean(axis=0) - spike_slab_entropy(dist)) < margin).all()

    @pytest.mark.parametrize(
        ("chance", "mean", "expected"),
        [(0.0, 3.0, 0.0), (0.5, 0.0, 0.0), (1.0, 0.0, 0.0), (1e-9, 3.0, -np.inf), (1.0, 3.0, -np.inf)],
    )
    def test_entropy_of_a_slab_without_variance_is_that_of_what_is_left(self, chance, mean, expected):
        dist = SpikeSlab([[chance]], mean, 0.0)
        assert spike_slab_entropy(dist) == expected
        draws = dist.sample(1, random_state=0) if chance in (0.0, 1.0) else np.full((1, 1, 1), mean)
        assert -dist.log_prob(draws)[0] == expected

    @given(TABLES, st.floats(0.01, 100.0))
    def test_a_unit_shifts_entropy_by_the_expected_number_of_active_coefficients(self, table, unit):
        chance, mean, var = table
        var = np.maximum(var, 1e-6)
        shift = spike_slab_entropy(SpikeSlab(chance, unit * mean, unit**2 * var)) - spike_slab_entropy(
            SpikeSlab(chance, mean, var)
        )
        np.testing.assert_allclose(shift, np.log(unit) * chance.sum(axis=1), atol=1e-10)

    def test_support_entropy_is_that_of_the_distribution_of_supports(self):
        chances = np.array([0.2, 0.5, 0.9])
        supports = np.array(list(itertools.product([0, 1], repeat=3)))
        probability = np.where(supports == 1, chances, 1 - chances).prod(axis=1)
        expected = -np.sum(probability * np.log(probability))
        assert support_entropy(SpikeSlab(chances[None], 7.0, 0.0)) == pytest.approx([expected])

    @given(hnp.arrays(np.float64, (3, 2), elements=CHANCES))
    def test_support_entropy_does_not_tell_active_from_inactive(self, chances):
        one, other = (support_entropy(SpikeSlab(q, 1.0, 1.0)) for q in (chances, 1.0 - chances))
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
        assert (one <= 2 * np.log(2) * (1 + 1e-12)).all()


class TestVarianceReduction:
    def test_it_is_what_a_gaussian_process_would_forget(self):
        rng = np.random.default_rng(0)
        features, known = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
        dist = SpikeSlab(*rng.uniform(0.1, 1.0, (3, 6, 5)))
        features *= np.sqrt(6 / np.sum(features**2))  # mean squared norm 1

        def variances(learned):
            across = features @ learned.T
            gram = learned @ learned.T + 0.2 * np.eye(len(learned))
            return np.diag(features @ features.T - across @ np.linalg.solve(gram, across.T))

        before = variances(known)
        unknown = dist.var().sum(axis=1) / (dist.var() + dist.mean() ** 2).sum(axis=1)
        expected = [
            np.sum(unknown * (before - variances(np.concatenate([known, row[None]]))) / before) for row in features
        ]
        np.testing.assert_allclose(variance_reduction(dist, features, known, noise=0.2), expected, rtol=1e-10)

    @given(TABLES, st.sampled_from([1e-150, 1.0, 1e150]), st.sampled_from([1e-3, 1.0, 1e3]))
    def test_units_do_not_matter_and_scores_are_shares(self, table, unit, code_unit):
        chance, mean, var = table
        rng = np.random.default_rng(0)
        features, known = rng.normal(size=(len(chance), 2)), rng.normal(size=(3, 2))
        scores = variance_reduction(SpikeSlab(chance, mean, var), features, known)
        rescaled = SpikeSlab(chance, code_unit * mean, code_unit**2 * var)
        np.testing.assert_allclose(
            variance_reduction(rescaled, unit * features, unit * known), scores, rtol=1e-8, atol=1e-12
        )
        assert ((scores >= 0) & (scores <= len(scores))).all()

    def test_a_candidate_like_many_tells_more_than_an_odd_one_of_larger_variance(self):
        features = np.array([[1.0, 0.0], [0.9, 0.1], [1.1, 0.0], [0.0, 2.0]])
        dist = SpikeSlab(np.ones((4, 1)), 1.0, [[1.0], [1.0], [1.0], [4.0]])
        assert variance_reduction(dist, features, np.zeros((0, 2))).argmax() != total_variance(dist).argmax() == 3

    def test_what_is_known_well_is_not_asked_for_again(self):
        features = np.eye(2)
        dist = SpikeSlab(np.full((2, 1), 0.5), 1.0, 1.0)
        assert variance_reduction(dist, features, np.repeat(features[:1], 50, axis=0)).argmax() == 1

    def test_observations_and_codes_of_nothing_have_a_score(self):
        dist = SpikeSlab([[0.5], [0.0]], 1.0, 1.0)
        np.testing.assert_array_equal(variance_reduction(dist, np.zeros((2, 3)), np.zeros((1, 3))), 0.0)

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            ((np.zeros(2), np.zeros((1, 1))), {}, r"features has shape \(2,\), expected \(n, n_features\)"),
            (
                (np.zeros((3, 1)), np.zeros((1, 1))),
                {},
                r"features has shape \(3, 1\) and known \(1, 1\)",
            ),
            ((np.zeros((2, 1)), np.zeros((1, 2))), {}, r"known \(1, 2\)"),
            ((np.zeros((2, 1)), [[np.nan]]), {}, "known must be finite"),
            ((np.zeros((2, 1)), np.zeros((1, 1))), {"noise": 0.0}, "noise must be a number larger than 0, got 0.0"),
        ],
    )
    def test_wrong_input_is_named(self, arguments, options, message):
        with pytest.raises(ValueError, match=message):
            variance_reduction(SpikeSlab([[0.5], [0.5]], 1.0, 1.0), *arguments, **options)


class TestSelectBatch:
    @given(RANKABLE, st.data())
    def test_without_features_it_is_the_head_of_a_stable_ranking(self, scores, data):
        n = data.draw(st.integers(1, len(scores)))
        chosen = select_batch(scores, n)
        expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:n]
        np.testing.assert_array_equal(chosen, expected)

    @given(RANKABLE, st.integers(1, 3), st.data())
    def test_with_features_each_choice_is_the_farthest_from_those_before(self, scores, shortlist, data):
        features = data.draw(hnp.arrays(np.float64, (len(scores), 2), elements=st.integers(-2, 2).map(float)))
        n = data.draw(st.integers(1, len(scores)))
        chosen = select_batch(scores, n, features, shortlist=shortlist)
        kept = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: shortlist * n]
        assert chosen[0] == kept[0]
        for step in range(1, n):
            # Squares of whole numbers: ties are exact.
            gaps = {
                i: min(int(np.sum((features[i] - features[j]) ** 2)) for j in chosen[:step])
                for i in kept
                if i not in chosen[:step]
            }
            best = max(gaps.values())
            assert chosen[step] == next(i for i in kept if gaps.get(i) == best)
        assert len(set(chosen.tolist())) == n

    @given(st.sampled_from([1e-300, 1e-200, 3.0, 1e200, 1e300]))
    def test_units_of_scores_and_features_do_not_matter(self, unit):
        rng = np.random.default_rng(0)
        scores, features = rng.normal(size=30), rng.normal(size=(30, 4))
        np.testing.assert_array_equal(
            select_batch(scores * unit, 5, features * unit), select_batch(scores, 5, features)
        )

    def test_the_shortlist_is_covered_to_twice_the_smallest_radius(self):
        rng = np.random.default_rng(1)
        features = rng.normal(size=(12, 2))
        gaps = np.linalg.norm(features[:, None] - features, axis=2)
        chosen = select_batch(np.zeros(12), 3, features)
        best = min(gaps[:, list(centres)].min(axis=1).max() for centres in itertools.combinations(range(12), 3))
        assert gaps[:, chosen].min(axis=1).max() <= 2 * best

    def test_copies_of_the_best_candidate_are_taken_last(self):
        chosen = select_batch([9.0, 9.0, 9.0, 1.0, 2.0], 3, [[0.0], [0.0], [0.0], [1.0], [1.0]])
        np.testing.assert_array_equal(chosen, [0, 4, 1])

    def test_features_without_columns_leave_the_ranking(self):
        np.testing.assert_array_equal(select_batch([1.0, 3.0, 2.0], 3, np.zeros((3, 0))), [1, 2, 0])

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            (([[1.0]], 1), {}, r"scores has shape \(1, 1\), expected \(n_candidates,\)"),
            (([], 1), {}, r"scores has shape \(0,\)"),
            (([1.0, np.nan], 1), {}, r"scores must not be NaN; 1 of 2 entries fail, the first at index \(1,\)"),
            ((["a"], 1), {}, "scores must hold real numbers"),
            (([1.0, 2.0], 3), {}, "n must be an integer from 1 to 2, got 3"),
            (([1.0, 2.0], 0), {}, "n must be an integer from 1 to 2, got 0"),
            (([1.0, 2.0], 1.5), {}, "n must be an integer from 1 to 2, got 1.5"),
            (([1.0, 2.0], 1), {"shortlist": 0}, "shortlist must be an integer of at least 1, got 0"),
            (([1.0, 2.0], 1, [1.0, 2.0]), {}, r"features has shape \(2,\), expected \(n, n_features\)"),
            (([1.0, 2.0], 1, [[1.0]]), {}, r"features has shape \(1, 1\), expected \(2, n_features\)"),
            (([1.0, 2.0], 1, [[1.0], [np.inf]]), {}, "features must be finite"),
        ],
    )
    def test_wrong_input_is_named(self, arguments, options, message):
        with pytest.raises(ValueError, match=message):
            select_batch(*arguments, **options)


class Recorder(BaseEstimator):
    """Predicts the observation itself as the variance, and keeps what it is given."""

    def fit(self, X, y):
        self.calls_ = [("fit", X.copy(), y.copy())]
        return self

    def partial_fit(self, X, y):
        self.calls_.append(("partial_fit", X.copy(), y.copy()))
        return self

    def predict_dist(self, X):
        return SpikeSlab(1.0, 0.0, X)


class Even(Recorder):
    """As sure of one observation as of another."""

    def predict_dist(self, X):
        return SpikeSlab(np.full((len(X), 1), 0.5), 1.0, 1.0)


X_TRAIN, Y_TRAIN = np.zeros((2, 1)), np.array([[-1.0], [-2.0]])
X_POOL, Y_POOL = np.array([[0.5], [3.0], [1.0], [3.0]]), np.array([[10.0], [11.0], [12.0], [13.0]])


def run(model=None, pairs=(X_TRAIN, Y_TRAIN, X_POOL, Y_POOL), **options):
    return active_learning(Recorder() if model is None else model, *pairs, **options)


class TestActiveLearning:
    def test_the_best_are_taken_in_turn_and_none_twice(self):
        steps = list(run(n_additions=4))
        assert [step.pool_index for step in steps] == [1, 3, 2, 0]
        assert [step.score for step in steps] == [3.0, 3.0, 1.0, 0.5]

    def test_variance_reduction_looks_at_observations_known_and_left(self):
        pool = np.array([[1.0, 0.0], [0.9, 0.1], [1.1, 0.0], [0.0, 1.0]])
        pairs = np.array([[0.0, 0.0]]), Y_TRAIN[:1], pool, Y_POOL
        steps = list(run(pairs=pairs, n_additions=4, strategy="variance_reduction", model=Even()))
        taken = [step.pool_index for step in steps]
        assert taken[:2] == [2, 3], "one of those alike, then the one that is not"
        assert sorted(taken) == [0, 1, 2, 3]
        left = [0, 1, 3]
        expected = variance_reduction(Even().predict_dist(pool[left]), pool[left], pool[[2]])
        assert steps[1].score == expected[2]

    def test_an_unfitted_model_is_fitted_first_and_then_given_each_new_pair(self):
        model = Recorder()
        assert all(step.model is model for step in run(model, n_additions=2))
        names = [name for name, *_ in model.calls_]
        assert names == ["fit", "partial_fit", "partial_fit"]
        np.testing.assert_array_equal(model.calls_[0][2], Y_TRAIN)
        np.testing.assert_array_equal(model.calls_[1][2], [[11.0]])
        np.testing.assert_array_equal(model.calls_[2][1], [[3.0]])

    def test_a_fitted_model_is_used_as_it_is(self):
        model = Recorder().fit(X_POOL, Y_POOL)
        next(run(model, n_additions=1))
        assert [name for name, *_ in model.calls_] == ["fit", "partial_fit"]
        assert len(model.calls_[0][1]) == len(X_POOL)

    def test_fit_starts_anew_from_all_pairs(self):
        model = Recorder()
        list(run(model, n_additions=2, update="fit"))
        name, observations, codes = model.calls_[-1]
        assert (name, len(model.calls_)) == ("fit", 1)
        np.testing.assert_array_equal(observations.ravel(), [0.0, 0.0, 3.0, 3.0])
        np.testing.assert_array_equal(codes.ravel(), [-1.0, -2.0, 11.0, 13.0])

    def test_an_update_of_ones_own_gets_all_pairs(self):
        seen = []
        model = Recorder()
        list(run(model, n_additions=2, update=lambda *given: seen.append(given)))
        assert [given[0] for given in seen] == [model, model]
        assert [len(given[1]) for given in seen] == [3, 4]
        np.testing.assert_array_equal(seen[1][2].ravel(), [-1.0, -2.0, 11.0, 13.0])

    def test_random_needs_no_prediction_and_gives_no_score(self):
        class Plain(BaseEstimator):
            fit, partial_fit = Recorder.fit, Recorder.partial_fit

        steps = list(run(Plain(), n_additions=4, strategy="random", random_state=0))
        assert sorted(step.pool_index for step in steps) == [0, 1, 2, 3]
        assert np.isnan([step.score for step in steps]).all()

    @pytest.mark.parametrize("source", [lambda: 3, lambda: np.random.default_rng(3), lambda: np.random.RandomState(3)])
    def test_random_choices_follow_the_seed_and_not_how_many_there_are(self, source):
        few, many = (
            [step.pool_index for step in run(n_additions=n, strategy="random", random_state=source())] for n in (2, 4)
        )
        assert few == many[:2]

    def test_random_choices_are_uniform(self):
        n = 2000
        rng = np.random.default_rng(0)
        first = [next(run(n_additions=1, strategy="random", random_state=rng)).pool_index for _ in range(n)]
        counts = np.bincount(first, minlength=4)
        # The chi-squared statistic with 3 degrees of freedom exceeds 21.1 once in 10,000.
        assert np.sum((counts - n / 4) ** 2 / (n / 4)) < 21.1

    def test_codes_may_be_vectors(self):
        pairs = X_TRAIN, Y_TRAIN.ravel(), X_POOL, Y_POOL.ravel()
        model = Recorder()
        list(run(model, pairs, n_additions=1))
        np.testing.assert_array_equal(model.calls_[-1][2], [11.0])

    @pytest.mark.parametrize(
        ("changes", "options", "message"),
        [
            ({0: np.zeros(2)}, {}, r"X_train has shape \(2,\)"),
            ({3: np.zeros((3, 1))}, {}, r"X_pool has shape \(4, 1\) and y_pool \(3, 1\)"),
            ({1: np.zeros((2, 1, 1))}, {}, r"y_train \(2, 1, 1\)"),
            ({0: np.zeros((2, 2))}, {}, r"X_train has shape \(2, 2\) and X_pool \(4, 1\)"),
            ({1: np.zeros(2)}, {}, r"y_train has shape \(2,\) and y_pool \(4, 1\)"),
            ({}, {"n_additions": 5}, "n_additions must be an integer from 1 to 4, got 5"),
            ({}, {"strategy": "best"}, "strategy must be a score, 'variance_reduction' or 'random', got 'best'"),
            ({}, {"update": "refit"}, "update must be 'partial_fit', 'fit' or a callable, got 'refit'"),
        ],
    )
    def test_wrong_input_is_named_at_once(self, changes, options, message):
        pairs = [X_TRAIN, Y_TRAIN, X_POOL, Y_POOL]
        for place, value in changes.items():
            pairs[place] = value
        with pytest.raises(ValueError, match=message):
            run(None, pairs, **{"n_additions": 1, **options})

    def test_a_model_without_a_method_is_refused_at_once(self):
        with pytest.raises(TypeError, match="model has no fit and no predict_dist and no partial_fit"):
            run(object(), n_additions=1)

    def test_a_score_of_another_shape_is_refused(self):
        with pytest.raises(ValueError, match=r"scores of strategy have shape \(\), expected \(4,\)"):
            next(run(n_additions=1, strategy=lambda distribution: 1.0))

    def test_it_drives_an_estimator_of_the_package(self):
        data = make_sparse_codes(n_train=60, n_test=0, n_observed=6, n_components=8, random_state=0)
        pairs = data.Y_train[:40], data.B_train[:40], data.Y_train[40:], data.B_train[40:]
        fitted = BayesLISTA(n_layers=2, design_matrix=data.design_matrix, max_iter=3, random_state=0).fit(*pairs[:2])
        before = fitted.predict_dist(pairs[2])
        for score in SCORES:
            steps = list(run(copy.copy(fitted), pairs, strategy=score, n_additions=3))
            assert steps[0].pool_index == int(np.argmax(score(before)))
            assert len({step.pool_index for step in steps}) == 3
