"""What pairs say of matrix, noise, sparsity and slab, against direct formulas and simulation."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from bayeslista.datasets import make_sparse_codes
from bayeslista.spike_slab.empirical_bayes import (
    SlabMixture,
    add_statistics,
    fit_slab,
    gather_statistics,
    matrix_posterior,
    mean_prob_active,
    noise_given_matrix,
    observed_slab,
    simulate_pairs,
)


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(300, 0, 6, 8, noise_std=0.3, random_state=0)


def test_statistics_add_up_over_any_chunks(data):
    whole = gather_statistics(data.Y_train, data.B_train)
    cuts = [0, 1, 1, 120, 300]
    parts = [gather_statistics(data.Y_train[a:b], data.B_train[a:b]) for a, b in pairwise(cuts)]
    for one, other in zip(whole, add_statistics(*parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-10)


def test_matrix_posterior_is_the_conjugate_one_at_its_ridge(data):
    Y, B = data.Y_train, data.B_train
    mean, design_covariance, noise_var = matrix_posterior(gather_statistics(Y, B))
    precision = np.linalg.inv(design_covariance)
    ridge = np.diag(precision - B.T @ B)
    np.testing.assert_allclose(precision - B.T @ B, np.diag(ridge), atol=1e-8)
    np.testing.assert_allclose(mean, Y.T @ B @ design_covariance, rtol=1e-10)
    assert noise_var == pytest.approx(0.09, rel=0.15)  # 1,800 residuals know it to 3 %


def test_evidence_is_at_its_best():
    random = np.random.default_rng(1)
    B = random.standard_normal((12, 20))
    X = 0.7 * random.standard_normal((9, 20))
    Y = B @ X.T + 0.4 * random.standard_normal((12, 9))
    _, design_covariance, noise_var = matrix_posterior(gather_statistics(Y, B))
    ridge = np.diag(np.linalg.inv(design_covariance) - B.T @ B)

    def log_evidence(noise_var, weight_var):
        covariance = B @ np.diag(weight_var) @ B.T + noise_var * np.eye(12)
        return multivariate_normal(np.zeros(12), covariance).logpdf(Y.T).sum()

    best = log_evidence(noise_var, noise_var / ridge)
    for factor in (0.7, 1.4):
        assert log_evidence(noise_var * factor, noise_var / ridge) < best
        assert log_evidence(noise_var, noise_var / ridge * factor) < best


def test_rounding_does_not_decide_what_few_pairs_say():
    """Fewer than coefficients can be explained without noise: where that is less likely, noise is found."""
    n_noisy = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        B = random.standard_normal((12, 20))
        Y = B @ random.standard_normal((20, 9)) + random.standard_normal((12, 9))

        def log_evidence(noise_var, B=B, Y=Y):
            """At the best size of the matrix, whose entries are alike or so where coefficients have one scale."""
            covariances = [
                size * (B * by_column) @ B.T + noise_var * np.eye(12)
                for size in np.geomspace(0.1, 10, 100)
                for by_column in (np.ones(20), 1 / np.mean(B**2, axis=0))
            ]
            return max(
                -0.5 * np.trace(np.linalg.solve(each, Y @ Y.T)) - 4.5 * np.linalg.slogdet(each)[1]
                for each in covariances
            )

        if max(map(log_evidence, np.geomspace(0.03, 3, 15))) > log_evidence(1e-9) + 0.01:
            n_noisy += 1
            assert matrix_posterior(gather_statistics(Y, B)).noise_var > 0.01, seed
    assert n_noisy > 10


def test_a_learned_matrix_misses_by_as_much_as_its_spread_says():
    data = make_sparse_codes(60, 0, 40, 30, noise_std=0.5, random_state=2)
    mean, design_covariance, noise_var = matrix_posterior(gather_statistics(data.Y_train, data.B_train))
    error = np.mean((mean - data.design_matrix) ** 2, axis=0)
    assert np.mean(error / (noise_var * np.diag(design_covariance))) == pytest.approx(1.0, abs=0.2)


def test_columns_of_any_scale_are_learned():
    random = np.random.default_rng(3)
    scale = np.logspace(-3, 3, 8)
    B = random.standard_normal((40, 8)) * scale
    X = random.standard_normal((5, 8)) / scale
    mean = matrix_posterior(gather_statistics(B @ X.T + 0.01 * random.standard_normal((40, 5)), B)).mean
    np.testing.assert_allclose(mean * scale, X * scale, atol=0.02)


@pytest.mark.parametrize("n", [1, 3])
def test_few_pairs_and_pairs_without_anything_are_finite(n):
    for B in (np.zeros((n, 4)), np.ones((n, 4))):
        for Y in (np.zeros((n, 3)), np.ones((n, 3))):
            sums = gather_statistics(Y, B)
            assert all(np.isfinite(part).all() for part in matrix_posterior(sums))
            assert np.isfinite(noise_given_matrix(sums, np.ones((3, 4))))
            assert 0 < mean_prob_active(sums) < 1
            assert all(np.isfinite(part).all() for part in fit_slab(sums.histogram))


def test_noise_is_the_mean_squared_residual(data):
    residual = data.Y_train - data.B_train @ data.design_matrix.T
    sums = gather_statistics(data.Y_train, data.B_train)
    assert noise_given_matrix(sums, data.design_matrix) == pytest.approx(np.mean(residual**2), rel=1e-9)


SLABS = {
    "Gaussian": (lambda random, n: random.normal(1.0, 2.0, n), 1),
    "Laplacian": (lambda random, n: random.laplace(0.0, 1.0, n), 2),
    "two points": (lambda random, n: random.choice([-1.0, 1.0], n), 2),
}


@pytest.mark.parametrize("name", SLABS)
def test_slab_has_the_parts_and_moments_of_its_values(name):
    draw, least = SLABS[name]
    values = draw(np.random.default_rng(0), 3000)
    slab = fit_slab(gather_statistics(np.zeros((1, 1)), values[None]).histogram)
    mean = slab.weight @ slab.mean
    assert len(slab.weight) >= least
    assert name != "Gaussian" or len(slab.weight) == 1
    assert slab.weight.sum() == pytest.approx(1.0)
    assert mean == pytest.approx(values.mean(), abs=1e-3)
    assert slab.weight @ (slab.var + slab.mean**2) == pytest.approx(np.mean(values**2), rel=1e-3)


def test_simulated_pairs_are_what_the_model_says():
    random = np.random.default_rng(0)
    X = random.standard_normal((3, 5))
    slab = SlabMixture(np.array([0.3, 0.7]), np.array([-1.0, 2.0]), np.array([0.5, 0.1]))
    design_covariance = 0.5 * np.eye(5)
    Y, B = simulate_pairs(X, 0.2, 0.4, slab, 20000, random, design_covariance)
    assert np.mean(B != 0) == pytest.approx(0.4, abs=0.01)
    assert B[B != 0].mean() == pytest.approx(1.1, abs=0.03)
    residual = np.mean((Y - B @ X.T) ** 2)
    assert residual == pytest.approx(0.2 * (1 + 0.5 * np.mean(np.sum(B**2, axis=1))), rel=0.03)


def test_the_observed_slab_has_the_moments_of_the_coefficients_and_their_gaps():
    random = np.random.default_rng(0)
    codes = random.standard_normal((400, 5))
    codes = np.where(random.random(codes.shape) < 0.4, codes + np.sign(codes), 0.0)
    slab = observed_slab(gather_statistics(codes, codes).histogram)
    values = codes[codes != 0]
    assert slab.weight @ slab.mean == pytest.approx(values.mean())
    assert slab.weight @ (slab.mean**2 + slab.var) == pytest.approx(np.mean(values**2))
    _, drawn = simulate_pairs(np.eye(5), 0.1, 0.4, slab, 400, random)
    assert np.abs(drawn[drawn != 0]).min() > 0.8
