"""The LMMSE start against its closed forms."""

import numpy as np
import pytest

from bayeslista.numerics.lmmse import EncoderFold, lmmse_folds, step_size_and_shrinkage


def lmmse_encoder(*arguments):
    return lmmse_folds(*arguments)[0]


def test_with_many_pairs_it_is_the_regression_from_observations_to_codes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5, 8))
    mixing = rng.normal(size=(8, 8))
    B = rng.normal(size=(20_000, 8)) @ mixing.T
    Y = B @ X.T + 0.5 * rng.normal(size=(20_000, 5))
    regression = np.linalg.lstsq(Y, B)[0].T
    # Each entry of the regression is known to about √(1/n) of the codes' scale over that of the observations.
    np.testing.assert_allclose(lmmse_encoder(X, Y, B), regression, atol=0.05)


def test_for_independent_codes_chance_correlations_are_shrunk():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 40))
    B = rng.normal(size=(60, 40)) * (rng.uniform(size=(60, 40)) < 0.2)
    Y = B @ X.T + 0.5 * rng.normal(size=(60, 20))
    exact = 0.2 * X.T @ np.linalg.inv(0.2 * X @ X.T + 0.25 * np.eye(20))
    test = rng.normal(size=(2000, 40)) * (rng.uniform(size=(2000, 40)) < 0.2)
    seen = test @ X.T + 0.5 * rng.normal(size=(2000, 20))

    def error(encoder):
        return np.mean((seen @ encoder.T - test) ** 2)

    sample = B.T @ B / 60
    unshrunk = sample @ X.T @ np.linalg.inv(X @ sample @ X.T + 0.25 * np.eye(20))
    assert error(lmmse_encoder(X, Y, B)) < 1.05 * error(exact) < 0.9 * error(unshrunk)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_few_pairs_and_repeated_rows_are_solvable(n):
    rng = np.random.default_rng(2)
    X = np.repeat(rng.normal(size=(1, 4)), 3, axis=0)
    B = rng.normal(size=(n, 4))
    assert np.isfinite(lmmse_encoder(X, B @ X.T, B)).all()


def test_nothing_to_learn_from_gives_zeros():
    X = np.ones((2, 3))
    np.testing.assert_array_equal(lmmse_encoder(X, np.zeros((4, 2)), np.zeros((4, 3))), 0)
    np.testing.assert_array_equal(lmmse_encoder(X, np.ones((4, 2)), np.zeros((4, 3))), 0)


def test_observed_values_of_more_noise_count_less():
    rng = np.random.default_rng(3)
    B = rng.normal(size=(4000, 2))
    X, noise_std = np.array([[1.0, 0.5], [0.3, 1.0], [1.0, -1.0]]), np.array([0.1, 1.0, 3.0])
    Y = B @ X.T + noise_std * rng.normal(size=(4000, 3))
    exact = X.T @ np.linalg.inv(X @ X.T + np.diag(noise_std**2))
    np.testing.assert_allclose(lmmse_encoder(X, Y, B, noise_std**2), exact, atol=0.05)


class TestStepSizeAndShrinkage:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(12, 15))
    B = rng.normal(size=(200, 15)) * (rng.uniform(size=(200, 15)) < 0.2)
    noise = rng.normal(size=(200, 12))

    def start(self, noise_std, n_layers, shrinkages):
        Y = self.B @ self.X.T + noise_std * self.noise
        encoder = lmmse_encoder(self.X, Y, self.B)
        return encoder, Y, step_size_and_shrinkage(self.X, [EncoderFold(encoder, Y, self.B)], n_layers, shrinkages)

    def test_one_layer_has_nothing_to_slow_down(self):
        assert self.start(1.0, 1, [0.0])[2] == (1.0, 0.0)

    def test_deep_without_a_threshold_it_stays_near_the_linear_estimate(self):
        encoder, Y, (step_size, _) = self.start(2.0, 30, [0.0])
        contraction = np.eye(15) - step_size * encoder @ self.X
        deep = sum(np.linalg.matrix_power(contraction, n) for n in range(30)) @ (step_size * encoder)
        least_squares = np.linalg.pinv(self.X)

        def error(map_):
            return np.mean((Y @ map_.T - self.B) ** 2)

        assert step_size == pytest.approx(1 / 30)
        assert error(deep) < 1.1 * error(encoder) < 0.5 * error(least_squares)

    def test_among_thresholds_none_and_too_much_are_not_taken(self):
        assert self.start(0.1, 10, [0.0, 0.1, 1.0])[2] == (1.0, 0.1)

    def test_starts_that_overflow_are_not_taken(self):
        encoder = 1e60 * np.ones((15, 12))
        step_size, _ = step_size_and_shrinkage(
            self.X, [EncoderFold(encoder, self.B @ self.X.T, self.B)], 20, [0.0, 0.1]
        )
        assert 0.05 <= step_size <= 1


def test_encoders_of_folds_are_validated_on_other_pairs():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(10, 60))
    mixing = rng.normal(size=(60, 4)) / 2  # codes of a few directions, which twenty pairs overfit
    B = rng.normal(size=(400, 4)) @ mixing.T + 0.3 * rng.normal(size=(400, 60))
    Y = B @ X.T
    encoder, folds = lmmse_folds(X, Y[:20], B[:20])
    np.testing.assert_array_equal(np.sort(np.concatenate([fold.codes for fold in folds]), axis=0), np.sort(B[:20], 0))

    def error(W, Y, B):
        return np.mean((Y @ W.T - B) ** 2)

    validated = np.mean([error(*fold) for fold in folds])
    assert error(encoder, Y[:20], B[:20]) < 0.8 * error(encoder, Y[20:], B[20:]) < validated
