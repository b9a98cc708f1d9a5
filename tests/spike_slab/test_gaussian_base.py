"""The Gaussian base against the dense posterior, and its choice of shrinkage against held-out pairs themselves."""

import numpy as np
import pytest

from bayeslista.spike_slab.empirical_bayes import gather_statistics
from bayeslista.spike_slab.gaussian_base import cavities, choose_shrinkage, coefficient_priors, fit_gaussian_base

K, D, N = 5, 8, 60


@pytest.fixture(scope="module")
def pairs():
    random = np.random.default_rng(0)
    B = (random.standard_normal((N, 3)) @ random.standard_normal((3, D)) + 1.0) * (random.random((N, D)) < 0.8)
    X = random.standard_normal((K, D))
    return X, B @ X.T + 0.3 * random.standard_normal((N, K)), B


def test_cavities_are_the_gaussian_posterior_without_its_own_margins(pairs):
    X, Y, B = pairs
    shrinkage, noise_var = 0.3, 0.09
    base = fit_gaussian_base(gather_statistics(Y, B), X, noise_var, shrinkage)
    mean = B.mean(axis=0)
    sample = np.cov(B.T, bias=True)
    power = np.diag(sample) + 1e-3 * np.mean(np.diag(sample))
    prior = (1 - shrinkage) * sample
    np.fill_diagonal(prior, power)
    posterior = np.linalg.inv(np.linalg.inv(prior) + X.T @ X / noise_var)
    centre = mean + posterior @ X.T @ (Y[0] - X @ mean) / noise_var
    var = 1 / (1 / np.diag(posterior) - 1 / power)
    cavity_mean, cavity_var = cavities(base, Y[:1])
    np.testing.assert_allclose(cavity_var[0], var, rtol=1e-6)
    np.testing.assert_allclose(cavity_mean[0], var * (centre / np.diag(posterior) - mean / power), rtol=1e-6)


def test_sums_judge_as_the_pairs_would(pairs):
    X, Y, B = pairs
    fold = np.arange(N) % 5
    folds = [gather_statistics(Y[fold == i], B[fold == i]) for i in range(5)]
    amount, least, gain = choose_shrinkage(folds, [X] * 5, [0.09] * 5, [None] * 5)

    def error(shrinkage):
        total = 0.0
        for i in range(5):
            base = fit_gaussian_base(gather_statistics(Y[fold != i], B[fold != i]), X, 0.09, shrinkage, least)
            linear = base.mean + (Y[fold == i] - base.expected) @ base.encoder.T
            total += np.sum((linear - B[fold == i]) ** 2)
        return total

    assert gain > 0.1
    assert error(amount) <= min(error(other) for other in (0.05, 0.3, 0.7, 1.0)) * (1 + 1e-9)
    assert gain == pytest.approx(1 - error(amount) / error(1.0), abs=1e-6)


def test_coefficient_priors_are_drawn_towards_that_of_all():
    B = np.zeros((10, 3))
    B[:, 0], B[:5, 1] = 2.0, [1.0, 2.0, 3.0, 4.0, 5.0]
    prior = coefficient_priors(gather_statistics(B, B))
    chance = 1 / (1 + np.exp(-prior.log_odds))
    assert 0 < chance[2] < chance[1] < chance[0] < 1
    assert abs(prior.mean[0, 0] - 2.0) < abs(prior.mean[0, 1] - 2.0) < 1.0
    assert (prior.var > 0).all()
