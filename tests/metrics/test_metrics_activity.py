"""Scores of P(active), spikes for predictions without one, and scorers."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import BayesianRidge
from sklearn.metrics import brier_score_loss, precision_recall_fscore_support
from sklearn.model_selection import cross_validate

from bayeslista import ISTA, SpikeSlab
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import (
    brier_score,
    crps,
    distribution_scorer,
    expected_calibration_error,
    fit_spike_head,
    log_score,
    reliability_curve,
    support_scores,
    with_spike,
)


def dist_and_codes(n=5000, seed=0):
    random = np.random.default_rng(seed)
    dist = SpikeSlab(random.beta(0.5, 1.5, (n, 4)), random.normal(size=(n, 4)), 1.0)
    return dist, dist.sample(1, random_state=seed)[0]


class TestActivity:
    def test_they_agree_with_scikit_learn(self):
        dist, codes = dist_and_codes()
        active, chance = codes.ravel() != 0, dist.prob_active.ravel()
        assert brier_score(dist, codes) == pytest.approx(brier_score_loss(active, chance))
        for threshold in (0.1, 0.5, 0.9):
            theirs = precision_recall_fscore_support(active, chance > threshold, average="binary")[:3]
            assert support_scores(dist, codes, threshold) == pytest.approx(theirs)

    @given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
    def test_the_brier_score_is_least_at_the_truth(self, truth, other):
        def expected(q):
            dist = SpikeSlab(q, 1.0, 1.0)
            return (1 - truth) * brier_score(dist, 0.0) + truth * brier_score(dist, 1.0)

        assert expected(truth) <= expected(other) + 1e-12

    def test_calibrated_probabilities_have_little_calibration_error_and_shifted_ones_much(self):
        dist, codes = dist_and_codes()
        # Ten bins of about 2,000 coefficients: the error of a share is about 0.01.
        assert expected_calibration_error(dist, codes) < 0.015
        shifted = SpikeSlab(np.minimum(dist.prob_active + 0.1, 1.0), dist.slab_mean, dist.slab_var)
        assert expected_calibration_error(shifted, codes) == pytest.approx(0.1, abs=0.02)

    def test_bins_without_coefficients_are_left_out_and_certainty_has_a_bin(self):
        curve = reliability_curve(SpikeSlab([0.0, 1.0, 1.0], 1.0, 1.0), [0.0, 1.0, 0.0], n_bins=4)
        assert curve.predicted.tolist() == [0.0, 1.0]
        assert curve.observed.tolist() == [0.0, 0.5]
        assert curve.size.tolist() == [1, 2]

    def test_of_samples_it_is_the_share_that_is_not_zero(self):
        dist, codes = dist_and_codes(50)
        draws = dist.sample(2000, random_state=0)
        share = SpikeSlab(np.mean(draws != 0, axis=0), 1.0, 1.0)
        for score in (brier_score, expected_calibration_error, support_scores):
            assert score(draws, codes) == score(share, codes)

    def test_nothing_found_and_nothing_there_is_a_perfect_support(self):
        assert support_scores(SpikeSlab(0.1, 1.0, 1.0), 0.0) == (1.0, 1.0, 1.0)

    @pytest.mark.parametrize("score", [brier_score, expected_calibration_error, support_scores])
    def test_a_prediction_without_a_spike_is_refused(self, score):
        for dist in ((0.0, 1.0), np.ones((5, 1))):
            with pytest.raises(ValueError, match="Give it a spike"):
                score(dist, 1.0)

    def test_bins_and_thresholds_are_checked(self):
        dist = SpikeSlab(0.5, 1.0, 1.0)
        for bins, message in ((0, "at least 1"), (2.5, "must be an integer")):
            with pytest.raises(ValueError, match=message):
                reliability_curve(dist, 1.0, n_bins=bins)
        with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
            support_scores(dist, 1.0, threshold=50)


class TestSpike:
    def test_a_head_learns_which_coefficients_are_active(self):
        random = np.random.default_rng(0)
        codes = random.normal(size=(2000, 5)) * (random.random((2000, 5)) < 0.2)
        std = random.choice([0.05, 0.5], codes.shape)
        mean = codes + std * random.normal(size=codes.shape)
        head = fit_spike_head(mean[:1000], std[:1000], codes[:1000])
        dist = with_spike(mean[1000:], std[1000:], head)
        assert np.array_equal(dist.slab_mean, mean[1000:])
        assert np.allclose(dist.slab_var, std[1000:] ** 2)
        assert expected_calibration_error(dist, codes[1000:]) < 0.02
        assert brier_score(dist, codes[1000:]) < 0.6 * 0.16  # of one probability for all
        assert np.isfinite(log_score(dist, codes[1000:]))

    def test_predictions_without_spread_are_no_trouble(self):
        head = fit_spike_head([0.0, 0.0, 1.0, 2.0], 0.0, [0.0, 0.0, 1.0, 2.0])
        chance = with_spike([0.0, 3.0, -3.0], 0.0, head).prob_active
        assert np.isfinite(chance).all()
        assert chance[0] < 0.5 < chance[1]


class TestScorers:
    def test_cross_validation_takes_them_and_larger_is_better(self):
        random = np.random.default_rng(0)
        X = random.normal(size=(80, 3))
        y = X @ [1.0, -2.0, 0.5] + random.normal(size=80)
        scoring = {"crps": distribution_scorer("crps"), "log": distribution_scorer(log_score)}
        found = cross_validate(BayesianRidge(), X, y, scoring=scoring, cv=4, error_score="raise")
        assert np.all(found["test_crps"] < 0)
        assert found["test_log"].mean() == pytest.approx(-0.5 * np.log(2 * np.pi * np.e), abs=0.2)

    def test_a_distribution_is_asked_for_where_there_is_one(self):
        class Fixed:
            def predict_dist(self, X):
                return SpikeSlab(np.full(len(X), 0.25), 1.0, 1.0)

        scorer = distribution_scorer("expected_calibration_error", n_bins=4)
        assert scorer(Fixed(), np.ones((4, 1)), [0.0, 0.0, 0.0, 2.0]) == 0.0
        assert repr(scorer) == "distribution_scorer(expected_calibration_error, n_bins=4)"

    def test_they_can_be_pickled(self):
        scorer = pickle.loads(pickle.dumps(distribution_scorer("crps")))
        model = BayesianRidge().fit(np.arange(6.0)[:, None], [1.0, 2.0, 3.5, 4.0, 5.5, 6.0])
        X, y = np.ones((2, 1)), [1.0, 2.0]
        assert scorer(model, X, y) == -crps(model.predict(X, return_std=True), y)

    def test_an_unknown_name_and_an_estimator_without_spread_are_refused(self):
        with pytest.raises(ValueError, match=r"There is no loss 'accuracy'.*brier_score, crps"):
            distribution_scorer("accuracy")
        data = make_sparse_codes(n_train=5, n_observed=3, n_components=4, random_state=0)
        model = ISTA(2, design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
        with pytest.raises(ValueError, match="does not have"):
            distribution_scorer("crps")(model, data.Y_train, data.B_train)
