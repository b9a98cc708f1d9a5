"""Split R-hat and effective sample size on series whose values are known."""

import numpy as np

from bayeslista.numerics.convergence import split_rhat_ess


def autoregressive(rho, shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    for t in range(1, shape[-1]):
        x[..., t] = rho * x[..., t - 1] + np.sqrt(1 - rho**2) * x[..., t]
    return x


def test_independent_draws_count_fully():
    rhat, ess = split_rhat_ess(autoregressive(0.0, (50, 2, 2000)))
    assert np.all(np.abs(rhat - 1) < 0.01)
    assert abs(ess.mean() / 4000 - 1) < 0.05


def test_autocorrelated_draws_count_less():
    for rho in (0.5, 0.9, -0.4):
        rhat, ess = split_rhat_ess(autoregressive(rho, (50, 2, 4000)))
        assert abs(ess.mean() / 8000 / ((1 - rho) / (1 + rho)) - 1) < 0.1
        assert rhat.max() < 1.05


def test_chains_at_different_places_and_drifts_are_found():
    apart = autoregressive(0.0, (1, 2, 500)) + np.array([0.0, 1.0])[:, None]
    drift = autoregressive(0.0, (1, 2, 500)) + np.linspace(-1, 1, 500)
    for x in (apart, drift):
        rhat, ess = split_rhat_ess(x)
        assert rhat[0] > 1.05
        assert ess[0] < 20


def test_constant_series_have_converged_if_chains_agree():
    x = np.full((2, 2, 100), 0.1)
    x[1, 1] = 0.2
    rhat, ess = split_rhat_ess(x)
    assert rhat[0] == 1.0
    assert ess[0] == 200
    assert rhat[1] > 10
