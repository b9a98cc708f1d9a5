"""Point metrics against hand-worked numbers, scikit-learn and invariances."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import f1_score

from bayeslista.metrics import nmse, nmse_db, support_f_measure

METRICS = [nmse, nmse_db, support_f_measure]
CODES = hnp.arrays(
    np.float64, st.tuples(st.just(2), st.integers(1, 5), st.integers(1, 4)), elements=st.integers(-3, 3).map(float)
)


class TestNmse:
    def test_it_averages_ratios_of_norms_not_of_squares(self):
        true = np.array([[3.0, 4.0], [0.0, 2.0]])
        predicted = np.array([[0.0, 0.0], [0.0, 3.0]])
        assert nmse(true, predicted) == pytest.approx((1.0 + 0.5) / 2.0)

    def test_predicting_zero_scores_one(self):
        true = np.random.default_rng(0).normal(size=(7, 5))
        assert nmse(true, np.zeros((7, 5))) == pytest.approx(1.0)

    def test_zero_codes_are_left_out_of_the_mean(self):
        assert nmse([[0.0, 0.0], [2.0, 0.0]], [[9.0, 9.0], [1.0, 0.0]]) == 0.5

    def test_only_zero_codes_score_zero_if_predicted_as_zero(self):
        assert nmse(np.zeros((3, 2)), np.zeros((3, 2))) == 0.0

    def test_a_vector_is_read_as_codes_of_one_coefficient(self):
        assert nmse([1.0, -2.0, 0.0], [2.0, -2.0, 5.0]) == pytest.approx(0.5)

    @given(CODES, st.sampled_from([1e-300, 1e-200, 1e200, 1e300]))
    def test_a_common_scale_does_not_matter_however_extreme(self, codes, scale):
        true, predicted = codes
        true[0, 0] = 1.0
        assert nmse(scale * true, scale * predicted) == pytest.approx(nmse(true, predicted), rel=1e-12)

    def test_single_precision_input_is_accumulated_in_double(self):
        true = np.full((1, 3), 1e30, np.float32)
        assert nmse(true, np.zeros_like(true)) == pytest.approx(1.0)


class TestNmseInDecibels:
    def test_it_divides_total_squares(self):
        true = np.array([[3.0, 4.0], [0.0, 0.0]])
        predicted = np.array([[3.0, 3.0], [2.0, 0.0]])
        assert nmse_db(true, predicted) == pytest.approx(10.0 * np.log10(5.0 / 25.0))

    def test_predicting_zero_scores_zero_decibels(self):
        assert nmse_db([[1.0, 2.0], [0.0, 3.0]], np.zeros((2, 2))) == pytest.approx(0.0)

    def test_a_perfect_prediction_scores_minus_infinity(self):
        assert nmse_db([[1.0, 2.0]], [[1.0, 2.0]]) == -np.inf
        assert nmse_db([[0.0, 0.0]], [[0.0, 0.0]]) == -np.inf

    @given(CODES, st.sampled_from([1e-300, 1e300]))
    def test_a_common_scale_does_not_matter_however_extreme(self, codes, scale):
        true, predicted = codes
        true[0, 0] = 1.0
        assert nmse_db(scale * true, scale * predicted) == pytest.approx(nmse_db(true, predicted), abs=1e-10)


class TestSupportFMeasure:
    @given(CODES, st.sampled_from([0.0, 0.5, 1.0, 2.5]))
    def test_each_code_scores_as_in_scikit_learn(self, codes, threshold):
        true, predicted = codes
        expected = np.mean(
            [
                f1_score(b != 0.0, np.abs(b_hat) > threshold, zero_division=1.0)
                for b, b_hat in zip(true, predicted, strict=True)
            ]
        )
        assert support_f_measure(true, predicted, threshold) == pytest.approx(expected)

    def test_codes_weigh_equally(self):
        true = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]])
        predicted = np.array([[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
        assert support_f_measure(true, predicted) == 0.5

    def test_a_magnitude_equal_to_the_threshold_is_not_active(self):
        assert support_f_measure([[1.0]], [[-0.5]], threshold=0.5) == 0.0
        assert support_f_measure([[1.0]], [[-0.5]], threshold=0.49) == 1.0

    @pytest.mark.parametrize("threshold", [-0.1, np.nan, np.inf])
    def test_thresholds_that_are_no_magnitude_are_refused(self, threshold):
        with pytest.raises(ValueError, match="threshold must be finite and at least 0"):
            support_f_measure([[1.0]], [[1.0]], threshold)


@pytest.mark.parametrize("metric", METRICS)
class TestInput:
    def test_the_score_is_a_float(self, metric):
        assert type(metric([[1, 2]], [[1, 0]])) is float
        assert type(metric([[1, 2]], [[1, 2]])) is float
        assert type(metric([[0, 0]], [[0, 0]])) is float

    def test_shapes_must_agree(self, metric):
        with pytest.raises(ValueError, match=r"B_true has shape \(2, 3\) and B_pred \(3, 2\); they must agree"):
            metric(np.ones((2, 3)), np.ones((3, 2)))

    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (2, 2, 2)])
    def test_anything_but_rows_of_codes_is_refused(self, metric, shape):
        with pytest.raises(ValueError, match="Put one code in each row"):
            metric(np.ones(shape), np.ones(shape))

    def test_entries_must_be_finite(self, metric):
        spoiled = np.ones((2, 2))
        spoiled[1, 0] = np.nan
        with pytest.raises(ValueError, match=r"B_pred must be finite; 1 of 4 .* index \(1, 0\): nan"):
            metric(np.ones((2, 2)), spoiled)
        with pytest.raises(ValueError, match="B_true must be finite"):
            metric(spoiled, np.ones((2, 2)))

    def test_entries_must_be_real(self, metric):
        with pytest.raises(ValueError, match="B_pred must hold real numbers"):
            metric([[1.0]], [[1j]])


@pytest.mark.parametrize("metric", [nmse, nmse_db])
def test_a_relative_error_without_any_signal_is_refused(metric):
    with pytest.raises(ValueError, match="Every code in B_true is zero but B_pred is not"):
        metric(np.zeros((2, 2)), np.ones((2, 2)))
