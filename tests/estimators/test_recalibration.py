"""Calibration after the fit: what held-out pairs mend, intervals they vouch for, and how to undo it."""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from bayeslista import BayesLISTA, SpikeSlab, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.estimators._recalibration import fit_recalibration
from bayeslista.metrics import coverage, expected_calibration_error, log_score, pit_coverage

METHODS = ["isotonic", "logistic"]


def truth_and_codes(n, seed=0):
    random = np.random.default_rng(seed)
    truth = SpikeSlab(random.beta(0.4, 1.2, (n, 20)), random.normal(0, 2, (n, 20)), random.gamma(2, 0.2, (n, 20)))
    return truth, truth.sample(1, random_state=seed)[0]


def distorted(truth):
    """Log-odds doubled and moved, slabs half as wide and too small: far too sure, but in the right order."""
    odds = np.log(truth.prob_active) - np.log1p(-truth.prob_active)
    return SpikeSlab(1 / (1 + np.exp(-2 * odds - 1)), truth.slab_mean / 1.2, truth.slab_var / 4)


class TestRecalibration:
    @pytest.mark.parametrize("method", METHODS)
    def test_it_undoes_a_distortion_of_odds_and_widths(self, method):
        said, codes = (lambda t, c: (distorted(t), c))(*truth_and_codes(200))
        truth, fresh = truth_and_codes(2000, seed=1)
        found = fit_recalibration(said, codes, method)
        mended = found.apply(distorted(truth))
        # 4,000 coefficients to learn from: shares in tenths are known to about 0.02, the scale to 2 %.
        assert expected_calibration_error(distorted(truth), fresh) > 0.08
        assert expected_calibration_error(mended, fresh) < 0.02
        assert found.slab_gain == pytest.approx(1.2, rel=0.05)
        assert found.slab_scale == pytest.approx(2.0, rel=0.15)
        assert log_score(mended, fresh) < log_score(truth, fresh) + 0.01
        for level in (0.5, 0.8, 0.9, 0.95):
            assert pit_coverage(mended, fresh, level, random_state=0) == pytest.approx(level, abs=0.02)

    @pytest.mark.parametrize("method", METHODS)
    def test_the_order_of_probabilities_stays_and_none_is_certain(self, method):
        truth, codes = truth_and_codes(50)
        chance = np.linspace(0.0, 1.0, 101)
        mapped = fit_recalibration(truth, codes, method).apply(SpikeSlab(chance, 1.0, 1.0)).prob_active
        assert np.all(np.diff(mapped) >= 0)
        assert 0 < mapped[0] < mapped[-1] < 1

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("codes", [np.zeros((3, 2)), np.ones((3, 2)), np.array([[0.0, 1.0]])])
    def test_few_pairs_or_one_kind_of_coefficient_are_no_trouble(self, method, codes):
        said = SpikeSlab(np.full(codes.shape, 0.3), 1.0, 0.0)
        mended = fit_recalibration(said, codes, method).apply(said)
        assert np.isfinite(log_score(mended, np.zeros(codes.shape)))

    def test_probabilities_in_the_wrong_order_give_way_to_one_for_all(self):
        said = SpikeSlab(np.tile([0.1, 0.9], (50, 1)), 1.0, 1.0)
        codes = np.tile([1.0, 0.0], (50, 1))
        for method in METHODS:
            assert np.allclose(fit_recalibration(said, codes, method).apply(said).prob_active, 0.5)

    def test_single_precision_stays_single(self):
        said = SpikeSlab(*(np.full((5, 2), x, np.float32) for x in (0.3, 1.0, 0.5)))
        found = fit_recalibration(said, np.ones((5, 2), np.float32), "isotonic")
        assert found.apply(said).prob_active.dtype == np.float32
        assert found.interval(said, 0.5)[0].dtype == np.float32


class TestConformal:
    @pytest.mark.parametrize("level", [0.5, 0.9])
    def test_it_holds_what_it_promises_however_wrong_the_model_is(self, level):
        truth, codes = truth_and_codes(40 * 500, seed=2)
        wrong = SpikeSlab(0.99, truth.slab_mean + 1.0, truth.slab_var / 100)
        inside = np.zeros((40, 20))
        for i in range(40):
            rows, after = slice(500 * i, 500 * i + 50), slice(500 * i + 50, 500 * (i + 1))
            low, high = fit_recalibration(wrong[rows], codes[rows], "isotonic").interval(wrong[after], level)
            inside[i] = np.mean((low <= codes[after]) & (codes[after] <= high), axis=0)
        # 50 pairs, 40 repeats, 450 signals: the mean over all is known to about 0.003, one coefficient's to 0.01.
        assert inside.mean() >= level - 0.01
        assert inside.mean(axis=0).min() >= level - 0.05
        assert coverage(wrong, codes, level) < level - 0.1

    @given(st.integers(1, 60), st.floats(0.0, 1.0))
    def test_of_its_own_pairs_it_holds_enough(self, n, level):
        truth, codes = truth_and_codes(n, seed=3)
        low, high = fit_recalibration(truth, codes, "isotonic").interval(truth, level)
        outside = np.count_nonzero((codes < low) | (codes > high), axis=0)
        assert np.all(outside <= (n + 1) * (1 - level) + 1e-9)

    def test_a_level_beyond_the_number_of_pairs_is_infinite(self):
        truth, codes = truth_and_codes(9)
        low, high = fit_recalibration(truth, codes, "isotonic").interval(truth, 0.95)
        assert np.all(np.isinf(low))
        assert np.all(np.isinf(high))

    def test_constant_predictions_hold_their_atom(self):
        said, codes = SpikeSlab(np.full((99, 1), 0.3), 1.0, 1.0), np.zeros((99, 1))
        low, high = fit_recalibration(said, codes, "isotonic").interval(said, 0.9)
        assert np.all((low <= 0) & (high >= 0))


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(n_train=60, n_test=60, n_observed=8, n_components=10, random_state=0)


def models(data):
    matrix = data.design_matrix
    prior = {"prob_active": 0.2, "slab_var": 1.0, "noise_std": 0.5}
    return {
        "BayesLISTA": BayesLISTA(2, design_matrix=matrix, max_iter=2, random_state=0),
        "BayesLISTA.published": BayesLISTA.published(2, design_matrix=matrix, max_iter=2, random_state=0),
        "SpikeSlabNet": SpikeSlabNet(2, mode="fast", design_matrix=matrix, training="none", random_state=0),
        "given": SpikeSlabNet(2, mode="fast", design_matrix=matrix, **prior),
    }


NAMES = ["BayesLISTA", "BayesLISTA.published", "SpikeSlabNet", "given"]


class TestEstimators:
    @pytest.mark.parametrize("name", NAMES)
    def test_predictions_are_mended_alike_and_can_be_put_back(self, data, name):
        model = models(data)[name]
        if name != "given":
            model.fit(data.Y_train, data.B_train)
        held, rest = slice(0, 40), slice(40, 60)
        before = model.predict_dist(data.Y_test[rest])
        assert model.calibrate(data.Y_test[held], data.B_test[held]) is model
        after = model.predict_dist(data.Y_test[rest])
        assert not np.array_equal(before.prob_active, after.prob_active)
        assert np.allclose(before.slab_mean * model.recalibration_.slab_gain, after.slab_mean)
        assert np.array_equal(model.predict(data.Y_test[rest]), after.mean())
        assert np.array_equal(model.transform(data.Y_test[rest]), after.mean())
        low, high = model.predict_interval(data.Y_test[rest], 0.8)
        assert np.array_equal(low, after.interval(0.8)[0])
        assert np.array_equal(high, after.interval(0.8)[1])
        given_active = model.predict_interval(data.Y_test[rest], 0.8, given_active=True, batch_size=7)
        assert np.array_equal(given_active, after.interval(0.8, given_active=True))
        bounds = model.predict_interval(data.Y_test[rest], 0.8, method="conformal")
        copied = pickle.loads(pickle.dumps(model))
        assert np.array_equal(copied.predict_dist(data.Y_test[rest]).prob_active, after.prob_active)
        assert np.array_equal(copied.predict_interval(data.Y_test[rest], 0.8, "conformal"), bounds)
        again = model.calibrate(data.Y_test[held], data.B_test[held]).predict_dist(data.Y_test[rest])
        assert np.array_equal(again.prob_active, after.prob_active)
        assert np.array_equal(model.uncalibrate().predict_dist(data.Y_test[rest]).prob_active, before.prob_active)

    @pytest.mark.parametrize("name", NAMES[:3])
    def test_a_fit_forgets_it_more_pairs_do_not_and_a_clone_never_had_it(self, data, name):
        model = models(data)[name].fit(data.Y_train, data.B_train).calibrate(data.Y_test, data.B_test)
        assert clone(model).recalibration_ is None
        assert model.partial_fit(data.Y_test[:2], data.B_test[:2]).recalibration_ is not None
        assert model.fit(data.Y_train, data.B_train).recalibration_ is None

    def test_the_networks_own_output_is_left_alone(self, data):
        model = models(data)["BayesLISTA"].fit(data.Y_train, data.B_train)
        before = model.predict_dist(data.Y_test, include_noise=False)
        after = model.calibrate(data.Y_test, data.B_test).predict_dist(data.Y_test, include_noise=False)
        assert np.array_equal(before.prob_active, after.prob_active)

    def test_codes_of_one_dimension_and_frames_are_taken_as_by_fit(self, data):
        frame = pd.DataFrame(data.Y_train, columns=[f"y{i}" for i in range(8)])
        model = BayesLISTA(2, max_iter=2, random_state=0).fit(frame, data.B_train[:, 0])
        low, high = model.calibrate(frame, data.B_train[:, 0]).predict_interval(frame, 0.9, method="conformal")
        assert low.shape == high.shape == (60,)
        assert np.mean((low <= data.B_train[:, 0]) & (data.B_train[:, 0] <= high)) >= 0.9

    def test_what_cannot_be_is_refused_and_nothing_is_lost(self, data):
        model = models(data)["SpikeSlabNet"].fit(data.Y_train, data.B_train)
        with pytest.raises(ValueError, match="call calibrate"):
            model.predict_interval(data.Y_test, method="conformal")
        model.calibrate(data.Y_test, data.B_test)
        kept = model.recalibration_
        for arguments, message in (
            (
                {"X": data.Y_test, "y": data.B_test, "method": "beta"},
                "'method' parameter of calibrate must be a str among",
            ),
            ({"X": data.Y_test[:, :3], "y": data.B_test}, "features"),
            ({"X": data.Y_test, "y": data.B_test[:, :3]}, "y has shape"),
            ({"X": data.Y_test, "y": np.full_like(data.B_test, np.nan)}, "NaN"),
        ):
            with pytest.raises(ValueError, match=message):
                model.calibrate(**arguments)
        assert model.recalibration_ is kept
        for level in (1.5, -0.1, "0.9"):
            with pytest.raises(ValueError, match="level must"):
                model.predict_interval(data.Y_test, level)
        with pytest.raises(ValueError, match="'method' parameter of predict_interval must be a str among"):
            model.predict_interval(data.Y_test, method="jackknife")
        with pytest.raises(ValueError, match="pass method='model' with given_active=True"):
            model.predict_interval(data.Y_test, method="conformal", given_active=True)
        with pytest.raises(
            ValueError, match="'given_active' parameter of predict_interval must be an instance of 'bool'"
        ):
            model.predict_interval(data.Y_test, given_active="yes")

    @pytest.mark.parametrize("name", NAMES[:3])
    def test_before_a_fit_there_is_nothing_to_calibrate(self, data, name):
        model = models(data)[name]
        with pytest.raises(NotFittedError):
            model.calibrate(data.Y_test, data.B_test)
        with pytest.raises(NotFittedError):
            check_is_fitted(model.uncalibrate())
