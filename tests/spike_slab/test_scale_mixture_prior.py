"""The mixture of scales: its posterior against importance sampling, its draws against its moments."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from bayeslista.spike_slab.scale_mixture_prior import (
    N_SCALES,
    ScaleMixture,
    draw_codes,
    fit_scale_mixture,
    moments,
    observe,
    part_weights,
    posterior_parts,
)

D, K = 5, 3


@pytest.fixture(scope="module")
def mixture():
    random = np.random.default_rng(0)
    roots = random.standard_normal((2, D, D))
    covariance = roots @ roots.swapaxes(1, 2) + 0.2 * np.eye(D)
    weight = random.dirichlet(np.ones(6)).reshape(2, 3)
    return ScaleMixture(covariance, np.array([0.3, 1.0, 3.0]), weight, random.standard_normal(D))


@pytest.fixture(scope="module")
def observed():
    random = np.random.default_rng(1)
    return random.standard_normal((K, D)), random.standard_normal((7, K)), 0.2


def test_weights_are_those_of_the_densities_of_the_observations(mixture, observed):
    X, Y, noise_var = observed
    joint = np.array(
        [
            [
                np.log(mixture.weight[c, j])
                + multivariate_normal.logpdf(Y, X @ mixture.mean, a**2 * X @ C @ X.T + noise_var * np.eye(K))
                for j, a in enumerate(mixture.scale)
            ]
            for c, C in enumerate(mixture.covariance)
        ]
    )
    expected = np.exp(joint - logsumexp(joint, axis=(0, 1)))
    found = part_weights(observe(mixture, X, noise_var), Y)
    np.testing.assert_allclose(found, expected.transpose(2, 0, 1), atol=1e-12)


@pytest.mark.parametrize("kept", [2, 10])
def test_moments_are_those_of_weighted_draws_of_the_prior(mixture, observed, kept):
    X, Y, _ = observed
    noise_var = 2.0  # enough for many draws to count
    random = np.random.default_rng(2)
    n = 400_000
    chosen = random.choice(6, n, p=mixture.weight.ravel())
    roots = np.linalg.cholesky(mixture.covariance)
    draws = mixture.mean + mixture.scale[chosen % 3, None] * np.einsum(
        "nde,ne->nd", roots[chosen // 3], random.standard_normal((n, D))
    )
    parts = posterior_parts(observe(mixture, X, noise_var), Y, kept)
    mean, var = moments(parts)
    for i, y in enumerate(Y):
        weight = np.exp(-0.5 * np.sum((y - draws @ X.T) ** 2, axis=1) / noise_var)
        weight /= weight.sum()
        error = 5 * np.sqrt(var[i] * np.sum(weight**2))
        assert np.all(np.abs(weight @ draws - mean[i]) < error)
        squares = (draws - mean[i]) ** 2
        error = 5 * np.sqrt(np.sum(weight[:, None] ** 2 * (squares - var[i]) ** 2, axis=0))
        assert np.all(np.abs(weight @ squares - var[i]) < error)
        assert np.all(error < 0.5 * var[i])


def test_joint_draws_have_the_covariance_of_the_posterior():
    random = np.random.default_rng(3)
    root = random.standard_normal((D, D))
    single = ScaleMixture((root @ root.T + 0.1 * np.eye(D))[None], np.ones(1), np.ones((1, 1)), np.zeros(D))
    X, y, noise_var = random.standard_normal((K, D)), random.standard_normal(K), 0.3
    covariance = np.linalg.inv(np.linalg.inv(single.covariance[0]) + X.T @ X / noise_var)
    for width in (1.0, 2.0):
        draws = draw_codes(single, X, noise_var, y[None], 40_000, np.random.default_rng(0), width)[:, 0]
        np.testing.assert_allclose(draws.mean(axis=0), covariance @ X.T @ y / noise_var, atol=0.05)
        np.testing.assert_allclose(np.cov(draws.T), width * covariance, atol=0.06 * width * covariance.max())


def test_scales_and_covariance_of_one_part_are_learned():
    random = np.random.default_rng(4)
    root = np.tril(random.standard_normal((D, D))) + np.eye(D)
    sizes = np.exp(random.standard_normal(59))[:, None]
    B = sizes * (random.standard_normal((59, D)) @ root.T)
    found = fit_scale_mixture(B, np.random.default_rng(0))
    assert found.weight.shape == (1, N_SCALES)
    assert found.weight.sum() == pytest.approx(1.0)
    X, noise_var = np.eye(D)[:3], 1e-4
    test = np.exp(random.standard_normal(200))[:, None] * (random.standard_normal((200, D)) @ root.T)
    mean, _ = moments(posterior_parts(observe(found, X, noise_var), test @ X.T))
    true = ScaleMixture((root @ root.T)[None], found.scale, np.full((1, N_SCALES), 0.2), np.zeros(D))
    best, _ = moments(posterior_parts(observe(true, X, noise_var), test @ X.T))
    errors = [np.mean(np.linalg.norm(each - test, axis=1) / np.linalg.norm(test, axis=1)) for each in (mean, best)]
    assert errors[0] < 1.15 * errors[1]


@pytest.mark.parametrize("B", [np.zeros((30, 4)), np.ones((30, 4)), np.eye(4)])
def test_degenerate_codes_give_finite_answers(B):
    found = fit_scale_mixture(B, np.random.default_rng(0))
    for part in moments(posterior_parts(observe(found, np.ones((2, 4)), 0.0), np.ones((3, 2)))):
        assert np.all(np.isfinite(part))
