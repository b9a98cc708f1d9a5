"""Online updates of a posterior: they lower the error, can be cut anywhere, and break nothing."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayeslista.bayes_lista import online
from bayeslista.bayes_lista.propagation import CoupledWeights, LayerParameters, expected_error_and_gradient
from bayeslista.numerics.soft_threshold_fast import Gaussian

D, K, N = 8, 6, 64


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _problem():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(K, D))
    B = rng.normal(size=(N + 20, D)) * (rng.uniform(size=(N + 20, D)) < 0.3)
    Y = B @ X.T + 0.1 * rng.normal(size=(N + 20, K))
    return SimpleNamespace(
        design_matrix=X, observations=Y[:N], codes=B[:N], held_out_observations=Y[N:], held_out_codes=B[N:]
    )


def _posterior(seed=0):
    rng = np.random.default_rng(seed)
    return CoupledWeights(
        Gaussian(jnp.asarray(rng.normal(0, 0.3, (D, K))), jnp.full((D, K), 1e-3)),
        Gaussian(jnp.asarray(rng.normal(0, 0.1, (D, D))), jnp.full((D, D), 1e-4)),
    )


def test_a_stream_lowers_the_expected_error_and_can_be_cut_anywhere():
    problem = _problem()
    posterior, layers, noise_var = _posterior(), LayerParameters.plain(jnp.full(3, 0.1)), jnp.asarray(0.1)
    pairs = problem.observations, problem.codes
    after, info = online.filter_pairs(posterior, problem.design_matrix, *pairs, layers, noise_var)
    cut = posterior
    for rows in (slice(0, 1), slice(1, 40), slice(40, None)):
        parts = (part[rows] for part in pairs)
        cut, _ = online.filter_pairs(cut, problem.design_matrix, *parts, layers, noise_var)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(cut), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)

    def error(weights):
        held_out = problem.held_out_observations, problem.held_out_codes
        return expected_error_and_gradient(weights, problem.design_matrix, *held_out, layers, jnp.ones(20))[0]

    assert error(after) < error(posterior)
    assert int(info.rejected) == 0
    assert 0 < int(info.clipped) < N * (D * K + D * D)
    assert int(info.n_codes) == int(np.sum(np.any(problem.codes != 0, axis=1)))


def test_for_one_linear_weight_a_stream_is_tempered_bayesian_regression():
    rng = np.random.default_rng(4)
    y = rng.normal(size=100)
    codes = 0.7 * y + 0.3 * rng.normal(size=100)
    nothing = Gaussian(jnp.zeros((1, 1)), jnp.full((1, 1), 1e-12))
    posterior = CoupledWeights(Gaussian(jnp.zeros((1, 1)), jnp.full((1, 1), 0.1)), nothing)
    after, _ = online.filter_pairs(
        posterior, jnp.zeros((1, 1)), y[:, None], codes[:, None], LayerParameters.plain(jnp.zeros(1)), jnp.asarray(0.09)
    )
    precision = 10 + np.sum(y**2) / (30 * 0.09)
    assert float(after.encoder.var[0, 0]) == pytest.approx(1 / precision, rel=1e-8)
    assert float(after.encoder.mean[0, 0]) == pytest.approx(np.sum(y * codes) / (30 * 0.09) / precision, rel=1e-8)


def test_stream_updates_that_would_break_a_variance_are_rejected():
    improper = Gaussian(jnp.zeros((D, D)), jnp.full((D, D), jnp.inf))
    posterior = _posterior()._replace(residual=improper)
    problem = _problem()
    after, info = online.filter_pairs(
        posterior,
        problem.design_matrix,
        problem.observations[:2],
        problem.codes[:2],
        LayerParameters.plain(jnp.full(2, 0.1)),
        jnp.asarray(0.1),
    )
    assert int(info.rejected) > 0
    np.testing.assert_array_equal(after.residual.mean, 0)
