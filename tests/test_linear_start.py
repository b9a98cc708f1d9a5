"""The linear start against its closed forms."""

import numpy as np
import pytest

from bayeslista.linear_start import linear_mmse_encoder


def test_with_many_pairs_it_is_the_regression_from_observations_to_codes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5, 8))
    mixing = rng.normal(size=(8, 8))
    B = rng.normal(size=(20_000, 8)) @ mixing.T
    Y = B @ X.T + 0.5 * rng.normal(size=(20_000, 5))
    regression = np.linalg.lstsq(Y, B)[0].T
    # Each entry of the regression is known to about √(1/n) of the codes' scale over that of the observations.
    np.testing.assert_allclose(linear_mmse_encoder(X, Y, B), regression, atol=0.05)


def test_for_independent_codes_it_does_not_believe_chance_correlations():
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
    assert error(linear_mmse_encoder(X, Y, B)) < 1.05 * error(exact) < 0.9 * error(unshrunk)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_few_pairs_and_repeated_rows_are_solvable(n):
    rng = np.random.default_rng(2)
    X = np.repeat(rng.normal(size=(1, 4)), 3, axis=0)
    B = rng.normal(size=(n, 4))
    assert np.isfinite(linear_mmse_encoder(X, B @ X.T, B)).all()


def test_nothing_to_learn_from_gives_zeros():
    X = np.ones((2, 3))
    np.testing.assert_array_equal(linear_mmse_encoder(X, np.zeros((4, 2)), np.zeros((4, 3))), 0)
    np.testing.assert_array_equal(linear_mmse_encoder(X, np.ones((4, 2)), np.zeros((4, 3))), 0)
