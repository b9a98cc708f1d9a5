"""The correlated prior: its parts against dense algebra, its posterior against enumeration of supports."""

import itertools

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import multivariate_normal

from bayeslista.numerics.precision import precision
from bayeslista.spike_slab import correlated_prior
from bayeslista.spike_slab.correlated_prior import (
    CorrelatedPrior,
    correlations_of,
    damped_covariance,
    linear_estimate,
    posterior,
    principal_factors,
    shared_layer,
)
from bayeslista.spike_slab.denoiser import slab_prior
from bayeslista.spike_slab.margins import fit_margins, log_likelihood, margin_moments

D, K = 6, 4


@pytest.fixture(scope="module")
def codes():
    random = np.random.default_rng(0)
    B = random.standard_normal((200, 3)) @ random.standard_normal((3, D)) + 0.5 * random.standard_normal((200, D))
    return B * (random.random((200, D)) < [0.9, 0.5, 0.5, 0.2, 1.0, 0.7])


def test_the_damped_covariance_is_positive_definite_with_the_given_diagonal(codes):
    variances = np.arange(1.0, D + 1)
    for power in correlated_prior.POWERS:
        found = damped_covariance(correlations_of(codes[:4]), variances, power, 0.03)
        assert np.linalg.eigvalsh(found)[0] > 0
        np.testing.assert_allclose(np.diag(found), variances)


def test_correlations_are_those_of_numpy_and_zero_where_nothing_varies(codes):
    B = np.column_stack([codes, np.full(len(codes), 2.0)])
    expected = np.eye(D + 1)
    expected[:D, :D] = np.corrcoef(codes.T)
    np.testing.assert_allclose(correlations_of(B), expected, atol=1e-12)


@pytest.mark.parametrize("rank", [2, 5])
def test_principal_factors_keep_the_diagonal_and_recover_a_factor_model(rank):
    random = np.random.default_rng(1)
    loadings = random.standard_normal((12, 2))
    covariance = loadings @ loadings.T + np.diag(0.3 + random.random(12))
    diagonal, factor = principal_factors(covariance, rank)
    assert np.all(diagonal > 0)
    np.testing.assert_allclose(diagonal + np.sum(factor**2, axis=1), np.diag(covariance))
    off = factor @ factor.T - covariance
    np.fill_diagonal(off, 0.0)
    assert np.abs(off).max() < 0.15 * np.abs(covariance).max()


def test_the_linear_estimate_is_the_posterior_mean_of_the_base(codes):
    random = np.random.default_rng(2)
    X, noise_var = random.standard_normal((K, D)), 0.1
    covariance = np.cov(codes.T) + 0.1 * np.eye(D)
    mean = codes.mean(axis=0)
    y = codes[0] @ X.T
    precision_matrix = np.linalg.inv(covariance) + X.T @ X / noise_var
    expected = mean + np.linalg.solve(precision_matrix, X.T @ (y - X @ mean) / noise_var)
    np.testing.assert_allclose(linear_estimate(covariance, mean, X, noise_var, y[None])[0], expected, rtol=1e-9)


def _toy(sparse):
    """A prior of low rank plus a diagonal with margins that have its moments, as the model asks."""
    random = np.random.default_rng(3)
    factor = random.standard_normal((D, 2)) * 0.6
    chance = np.full(D, 0.4 if sparse else 1 - 1e-12)
    slab_mean = 0.5 + random.random(D)
    diagonal = np.full(D, 0.5)
    var = diagonal + np.sum(factor**2, axis=1)
    if sparse:
        # q v + q (1 − q) m² is the variance of a margin.
        slab_var = np.maximum(var / 0.4 - 0.6 * slab_mean**2, 0.3)
        scale = np.sqrt((0.4 * slab_var + 0.24 * slab_mean**2) / var)
        factor, diagonal = factor * scale[:, None], diagonal * scale**2
        mean = 0.4 * slab_mean
    else:
        slab_var, mean = var, slab_mean
    margins = slab_prior(chance, slab_mean[None], slab_var[None], n_components=D)
    return CorrelatedPrior(mean, diagonal, factor, margins), chance, slab_mean, slab_var


def _answers(prior, X, noise_var, y, seen=None):
    with precision(np.float64):
        noise = np.float64(noise_var)
        if seen is None:
            found, _, _ = posterior(prior, X, noise, y[None], shared_layer(prior, X, noise))
        else:
            found, _, _ = posterior(prior, X, noise, y[None], None, seen[None])
        found = [np.asarray(part)[0] for part in found]
    chance = expit(found[0])
    return chance, chance * found[1], chance * (found[2] + (1 - chance) * found[1] ** 2)


def test_gaussian_margins_give_the_gaussian_posterior_exactly():
    prior, _, mean, _ = _toy(sparse=False)
    random = np.random.default_rng(4)
    X, noise_var = random.standard_normal((K, D)), 0.3
    y = random.standard_normal(K) + X @ mean
    covariance = np.diag(prior.diagonal) + prior.factor @ prior.factor.T
    expected = np.linalg.inv(np.linalg.inv(covariance) + X.T @ X / noise_var)
    _, found, var = _answers(prior, X, noise_var, y)
    np.testing.assert_allclose(found, mean + expected @ X.T @ (y - X @ mean) / noise_var, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(var, np.diag(expected), rtol=1e-6)


def _enumerated(prior, chance, slab_mean, slab_var, X, noise_var, y):
    """Mean and P(active) by all supports: given one, the density is a Gaussian, whose integral is known."""
    covariance = np.diag(prior.diagonal) + prior.factor @ prior.factor.T
    base_precision = np.linalg.inv(covariance)
    own = np.diag(covariance)
    log_mass, means, supports = [], [], []
    for support in itertools.product([False, True], repeat=D):
        active = np.array(support)
        # exp(−½ βᵀ P β + hᵀ β + c) of what is active, the others being zero.
        P = base_precision + X.T @ X / noise_var - np.diag(1 / own)
        h = base_precision @ prior.mean + X.T @ y / noise_var - prior.mean / own
        P = P[np.ix_(active, active)] + np.diag(1 / slab_var[active])
        h = h[active] + (slab_mean / slab_var)[active]
        if active.any() and np.linalg.eigvalsh(P)[0] <= 0:
            raise AssertionError("the toy is not integrable")
        constant = np.sum(np.log(np.where(active, chance, 1 - chance)))
        constant -= 0.5 * np.sum(((slab_mean**2 / slab_var) + np.log(2 * np.pi * slab_var))[active])
        solved = np.linalg.solve(P, h) if active.any() else h
        mass = constant + 0.5 * h @ solved
        mass += 0.5 * (active.sum() * np.log(2 * np.pi) - np.linalg.slogdet(P)[1]) if active.any() else 0.0
        mean = np.zeros(D)
        mean[active] = solved
        log_mass.append(mass)
        means.append(mean)
        supports.append(active)
    weight = np.exp(np.array(log_mass) - np.max(log_mass))
    weight /= weight.sum()
    return weight @ np.array(supports), weight @ np.array(means)


def test_sparse_margins_agree_with_enumeration_of_supports():
    prior, *margins = _toy(sparse=True)
    random = np.random.default_rng(5)
    errors, changes = [], []
    for _ in range(20):
        X, noise_var = random.standard_normal((K, D)), 0.2
        beta = np.where(random.random(D) < 0.4, margins[1] + np.sqrt(margins[2]) * random.standard_normal(D), 0.0)
        y = X @ beta + np.sqrt(noise_var) * random.standard_normal(K)
        active, mean = _enumerated(prior, *margins, X, noise_var, y)
        found_active, found, _ = _answers(prior, X, noise_var, y)
        errors.append([np.mean((found - mean) ** 2), np.mean((found_active - active) ** 2)])
        changes.append([np.mean((prior.mean - mean) ** 2), np.mean((0.4 - active) ** 2)])
    # EP is no exact engine, but far nearer to the posterior than the prior is: .03 and .095 of its squared distance.
    assert np.all(np.mean(errors, axis=0) < 0.12 * np.mean(changes, axis=0))


def test_the_shared_layer_changes_nothing():
    prior, *_ = _toy(sparse=True)
    random = np.random.default_rng(7)
    X, y = random.standard_normal((K, D)), random.standard_normal(K)
    for one, other in zip(_answers(prior, X, 0.2, y), _answers(prior, X, 0.2, y, np.ones(K)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("n", [5, 64, 71])
def test_the_lower_gram_is_the_triangle_of_the_product(n):
    random = np.random.default_rng(8)
    A, weight = random.standard_normal((n, 20)), random.random(20)
    with precision(np.float64):
        found = np.asarray(correlated_prior._lower_gram(A, weight))
    np.testing.assert_allclose(np.tril(found), np.tril(A * weight @ A.T), rtol=1e-12, atol=1e-12)


def test_a_sensor_that_is_not_seen_is_one_that_is_not_there():
    prior, *_ = _toy(sparse=True)
    random = np.random.default_rng(6)
    X, y = random.standard_normal((K, D)), random.standard_normal(K)
    seen = np.array([1.0, 0.0, 1.0, 1.0])
    far = np.where(seen > 0, y, 1e3)
    fewer = _answers(prior, X[seen > 0], 0.2, y[seen > 0])
    for one, other in zip(_answers(prior, X, 0.2, far, seen), fewer, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


class TestMargins:
    def test_moments_are_those_of_a_sample(self, codes):
        margins = fit_margins(codes)
        mean, var = margin_moments(margins)
        random = np.random.default_rng(0)
        n = 200_000
        part = random.choice(len(margins.weight), n, p=margins.weight)
        shape = margins.mean[part] + np.sqrt(margins.var[part]) * random.standard_normal(n)
        for d in range(D):
            drawn = np.where(random.random(n) < margins.prob_active[d], margins.scale[d] * shape, 0.0)
            assert abs(drawn.mean() - mean[d]) < 5 * drawn.std() / np.sqrt(n)
            assert drawn.var() == pytest.approx(var[d], rel=0.05)

    def test_coefficients_of_one_scale_share_it_and_of_several_do_not(self):
        random = np.random.default_rng(1)
        B = random.standard_normal((100, 30)) * (random.random((100, 30)) < 0.3)
        assert fit_margins(B).scale_power == 0.0
        scales = np.geomspace(0.1, 10, 30)
        margins = fit_margins(B * scales)
        assert margins.scale_power == 1.0
        np.testing.assert_allclose(np.log(margins.scale / scales), np.mean(np.log(margins.scale / scales)), atol=0.5)

    def test_likelihood_is_the_sum_of_log_densities(self, codes):
        margins = fit_margins(codes)
        total = 0.0
        for row in codes[:5]:
            for value, p, t in zip(row, margins.prob_active, margins.scale, strict=True):
                densities = [
                    multivariate_normal.pdf(value, t * m, t**2 * v)
                    for m, v in zip(margins.mean, margins.var, strict=True)
                ]
                total += np.log(p * margins.weight @ densities) if value else np.log1p(-p)
        assert log_likelihood(margins, codes[:5]) == pytest.approx(total, rel=1e-9)

    @pytest.mark.parametrize("B", [np.zeros((4, 3)), np.ones((5, 2)), np.eye(3)])
    def test_degenerate_codes_have_finite_margins(self, B):
        for part in (*fit_margins(B), *margin_moments(fit_margins(B))):
            assert np.all(np.isfinite(part))
