"""Soft-thresholding, ISTA and FISTA against their definitions and against scikit-learn's Lasso."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Lasso

from bayeslista.lista import proximal
from bayeslista.lista.proximal import fista, ista, soft_threshold
from bayeslista.numerics.linear import estimate_design_matrix, estimate_design_matrix_and_noise, ista_weights


@pytest.fixture
def problem(rng):
    X = rng.standard_normal((15, 20))
    codes = rng.standard_normal((4, 20)) * (rng.random((4, 20)) < 0.2)
    return X, codes @ X.T + 0.05 * rng.standard_normal((4, 15))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def definition(x, shrinkage):
    return np.sign(x) * np.maximum(np.abs(x) - shrinkage, 0)


def objective(X, Y, codes, penalty):
    return 0.5 * np.sum((Y - codes @ X.T) ** 2, axis=1) + penalty * np.sum(np.abs(codes), axis=1)


def test_soft_threshold_is_its_definition(rng):
    x = rng.standard_normal((5, 7))
    np.testing.assert_allclose(soft_threshold(x, 0.3), definition(x, 0.3), rtol=1e-15)
    np.testing.assert_array_equal(soft_threshold(x, 0.0), x)
    assert soft_threshold(np.array([0.3, -0.3]), 0.3).tolist() == [0.0, 0.0]


def test_soft_threshold_composes_with_jax():
    slope = jax.jit(jax.vmap(jax.grad(lambda x: soft_threshold(x, jnp.float32(1.0)))))
    assert slope(jnp.array([-2.0, 0.5, 3.0])).tolist() == [1.0, 0.0, 1.0]


def test_the_step_is_just_below_the_inverse_of_the_squared_norm(problem):
    X, _ = problem
    weights = ista_weights(X)
    assert weights.step_inverse == pytest.approx(1.01 * np.linalg.norm(X, 2) ** 2, rel=1e-12)
    np.testing.assert_allclose(weights.encoder, X.T / weights.step_inverse, rtol=1e-12)
    np.testing.assert_allclose(weights.recurrent, np.eye(20) - weights.encoder @ X, atol=1e-14)


def test_a_zero_matrix_leaves_codes_at_zero():
    weights = ista_weights(np.zeros((3, 2)))
    assert weights.step_inverse == 1.0
    assert not weights.encoder.any()
    np.testing.assert_array_equal(weights.recurrent, np.eye(2))
    assert not ista(weights, np.ones((1, 3)), 0.1, 5).any()


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_weights_survive_extreme_scales(problem, scale):
    X, _ = problem
    weights = ista_weights(X * scale)
    np.testing.assert_allclose(weights.encoder * scale, ista_weights(X).encoder, rtol=1e-12)
    np.testing.assert_allclose(weights.recurrent, ista_weights(X).recurrent, atol=1e-14)


@pytest.mark.parametrize("n_layers", [1, 2, 3, 7])
def test_ista_counts_the_first_threshold(problem, n_layers):
    X, Y = problem
    weights = ista_weights(X)
    codes = np.zeros((4, 20))
    for _ in range(n_layers):
        codes = definition(Y @ weights.encoder.T + codes @ weights.recurrent.T, 0.02)
    np.testing.assert_allclose(ista(weights, Y, 0.02, n_layers), codes, atol=1e-14)


@pytest.mark.parametrize("n_layers", [1, 2, 3, 7])
def test_fista_follows_beck_and_teboulle(problem, n_layers):
    X, Y = problem
    weights = ista_weights(X)
    codes = extrapolated = np.zeros((4, 20))
    momentum = 1.0
    for _ in range(n_layers):
        previous, codes = codes, definition(Y @ weights.encoder.T + extrapolated @ weights.recurrent.T, 0.02)
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        extrapolated = codes + (momentum - 1) / following * (codes - previous)
        momentum = following
    result = fista(weights, Y, 0.02, n_layers)
    np.testing.assert_allclose(result, codes, atol=1e-14)
    assert np.allclose(result, ista(weights, Y, 0.02, n_layers)) == (n_layers <= 2)


@pytest.mark.parametrize("n_layers", [1, 2, 3, 4, 7])
def test_late_momentum_is_that_of_the_layer_before(problem, n_layers):
    X, Y = problem
    weights = ista_weights(X)
    codes = extrapolated = definition(Y @ weights.encoder.T, 0.02)
    momentum = 1.0
    for _ in range(n_layers - 1):
        previous, codes = codes, definition(Y @ weights.encoder.T + extrapolated @ weights.recurrent.T, 0.02)
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        extrapolated = codes + (momentum - 1) / following * (codes - previous)
        momentum = following
    result = fista(weights, Y, 0.02, n_layers, late_momentum=True)
    np.testing.assert_allclose(result, codes, atol=1e-14)
    assert np.allclose(result, ista(weights, Y, 0.02, n_layers)) == (n_layers <= 3)


@pytest.mark.parametrize(("solver", "n_layers"), [(ista, 20_000), (fista, 3_000)])
def test_long_runs_reach_the_lasso(problem, solver, n_layers):
    X, Y = problem
    weights = ista_weights(X)
    shrinkage = 0.01
    alpha = shrinkage * weights.step_inverse / len(X)
    lasso = Lasso(alpha=alpha, fit_intercept=False, tol=1e-14, max_iter=1_000_000)
    best = objective(X, Y, np.stack([lasso.fit(X, y).coef_ for y in Y]), shrinkage * weights.step_inverse)
    reached = objective(X, Y, solver(weights, Y, shrinkage, n_layers), shrinkage * weights.step_inverse)
    np.testing.assert_allclose(reached, best, rtol=1e-8)


def test_the_number_of_layers_does_not_recompile(problem):
    X, Y = problem
    weights = ista_weights(X)
    ista(weights, Y, 0.1, 3)
    compiled = proximal._ista._cache_size()
    for n_layers in (4, 5, 60):
        ista(weights, Y, 0.2, n_layers)
    assert proximal._ista._cache_size() == compiled


def test_single_precision_stays_single(problem):
    X, Y = (values.astype(np.float32) for values in problem)
    weights = ista_weights(X)
    assert weights.encoder.dtype == weights.recurrent.dtype == np.float32
    assert ista(weights, Y, 0.1, 3).dtype == fista(weights, Y, 0.1, 3).dtype == np.float32
    assert estimate_design_matrix(Y, np.ones((4, 2), np.float32)).dtype == np.float32


def test_clean_pairs_recover_the_design_matrix(rng):
    X, codes = rng.standard_normal((5, 8)), rng.standard_normal((30, 8))
    np.testing.assert_allclose(estimate_design_matrix(codes @ X.T, codes), X, atol=1e-8)


def test_noisy_pairs_come_close_to_the_design_matrix_even_where_least_squares_breaks(rng):
    X, codes = rng.standard_normal((20, 40)), rng.standard_normal((40, 40))
    noisy = codes @ X.T + rng.standard_normal((40, 20))
    ridge, least_squares = estimate_design_matrix(noisy, codes), np.linalg.lstsq(codes, noisy)[0].T
    assert np.linalg.norm(ridge - X) < 0.7 * np.linalg.norm(least_squares - X)


@pytest.mark.parametrize("n", [1, 3, 30])
def test_degenerate_codes_give_finite_design_matrices(rng, n):
    codes = rng.standard_normal((n, 6))
    codes[:, 0] = 0.0
    codes[:, 1] = 2.0
    codes[:, 3] = codes[:, 2]
    estimate = estimate_design_matrix(rng.standard_normal((n, 4)), codes)
    assert np.isfinite(estimate).all()
    assert not estimate[:, 0].any()


def test_all_zero_pairs_give_a_zero_design_matrix():
    assert not estimate_design_matrix(np.zeros((3, 2)), np.ones((3, 4))).any()
    assert not estimate_design_matrix(np.ones((3, 2)), np.zeros((3, 4))).any()


def test_noise_is_what_a_new_pair_would_show_not_what_the_pairs_at_hand_do():
    noise_std = np.array([0.5, 1.0, 4.0])
    claimed, within, new = [], [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((3, 20))
        codes, fresh = rng.standard_normal((60, 20)), rng.standard_normal((500, 20))
        observations, unseen = (B @ X.T + noise_std * rng.standard_normal((len(B), 3)) for B in (codes, fresh))
        estimate, noise_var = estimate_design_matrix_and_noise(observations, codes)
        claimed.append(noise_var)
        within.append(np.mean((observations - codes @ estimate.T) ** 2, axis=0))
        new.append(np.mean((unseen - fresh @ estimate.T) ** 2, axis=0))
    # A mean of 60 squares over 40 seeds has a relative standard deviation of √(2/2400) = 0.03.
    np.testing.assert_allclose(np.mean(claimed, axis=0), np.mean(new, axis=0), rtol=0.12)
    assert (np.mean(within, axis=0) < 0.7 * np.mean(new, axis=0)).all()
