"""The network with coupled weights against the free one, autodiff of plain formulas and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

from bayeslista.bayes_lista.adf.layers import FreeWeights, propagate
from bayeslista.bayes_lista.monte_carlo import drawn_variance
from bayeslista.bayes_lista.propagation import (
    CoupledWeights,
    LayerParameters,
    RowColumn,
    expected_error_and_gradient,
    layer_matrices,
    propagate_layers,
    recurrent_mean,
)
from bayeslista.numerics.soft_threshold import soft_threshold_moments
from bayeslista.numerics.soft_threshold_fast import Gaussian

D, K, N = 6, 4, 3


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _problem(n_layers, seed=0):
    rng = np.random.default_rng(seed)
    weights = CoupledWeights(
        Gaussian(rng.normal(0, 0.3, (D, K)), rng.uniform(0.01, 0.2, (D, K))),
        Gaussian(rng.normal(0, 0.2, (D, D)), rng.uniform(0.01, 0.1, (D, D))),
    )
    arrays = weights, rng.normal(size=(K, D)), rng.normal(size=(N, K)), rng.normal(size=(N, D))
    return *jax.tree.map(jnp.asarray, arrays), LayerParameters.plain(jnp.asarray(rng.uniform(0.05, 0.5, n_layers)))


def _accelerated(layers, seed=1):
    rng = np.random.default_rng(seed)
    parts = rng.uniform(-0.5, 1.2, len(layers.shrinkage)), rng.uniform(0.5, 1.4, len(layers.shrinkage))
    return layers._replace(momentum=jnp.asarray(parts[0]), step_size=jnp.asarray(parts[1]))


def _by_rows_and_columns(seed=0):
    rng = np.random.default_rng(seed)
    encoder = rng.normal(0, 0.3, (D, K)), rng.uniform(0.1, 0.5, D), rng.uniform(0.1, 0.5, K)
    residual = rng.normal(0, 0.2, (D, D)), rng.uniform(0.1, 0.3, D), rng.uniform(0.1, 0.3, D)
    return CoupledWeights(*(RowColumn(*map(jnp.asarray, part)) for part in (encoder, residual)))


def _propagate(weights, X, Y, layers):
    return propagate_layers(layer_matrices(weights, X), Y, layers)


def _plain_error(weights, layers, X, Y, B, included):
    w_mean, w_var, r_mean, r_var = (getattr(part, name) for part in weights for name in ("mean", "var"))
    n_mean = r_mean - w_mean @ X
    total = 0.0
    for y, code, weight in zip(Y, B, included, strict=True):
        e = s = e_before = s_before = covariance = jnp.zeros(D)
        for threshold, mu, gamma in zip(*layers, strict=True):
            u = e + mu * (e - e_before)
            u_var = (1 + mu) ** 2 * s + mu**2 * s_before - 2 * mu * (1 + mu) * covariance
            misfit = y - X @ u
            mean = u + gamma * (w_mean @ y + n_mean @ u)
            # (I + γ N)² with the other variances
            of_var = (jnp.eye(D) + gamma * n_mean) ** 2 + gamma**2 * (r_var + w_var @ X**2)
            var = of_var @ u_var + gamma**2 * (r_var @ u**2 + w_var @ misfit**2)
            held = 1 + jax.lax.stop_gradient(gamma * jnp.diag(n_mean))
            with_before = held * ((1 + mu) * s - mu * covariance)
            e_before, s_before = e, s
            std = jnp.sqrt(var)
            up, down = (mean - threshold) / std, (-mean - threshold) / std
            e = std * (norm.pdf(up) + up * norm.cdf(up) - norm.pdf(down) - down * norm.cdf(down))
            second = (1 + up**2) * norm.cdf(up) + up * norm.pdf(up) + (1 + down**2) * norm.cdf(down)
            s = var * (second + down * norm.pdf(down)) - e**2
            covariance = jax.lax.stop_gradient(norm.cdf(up) + norm.cdf(down)) * with_before
        total += weight * jnp.sum((code - e) ** 2 + s)
    return total


@pytest.mark.parametrize("by_rows_and_columns", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("n_layers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_expected_error_and_gradient_equal_autodiff_of_plain_formulas(n_layers, by_rows_and_columns):
    weights, X, Y, B, layers = _problem(n_layers)
    layers = _accelerated(layers)
    if by_rows_and_columns:
        weights = _by_rows_and_columns()
    included = jnp.array([1.0, 0.5, 0.0])
    error, mean, gradient = jax.jit(expected_error_and_gradient)(weights, X, Y, B, layers, included)
    entering, output = _propagate(weights, X, Y, layers)
    np.testing.assert_allclose(mean, output.mean, rtol=1e-11)
    np.testing.assert_allclose(mean, soft_threshold_moments(*entering, layers.shrinkage[-1]).mean, rtol=1e-11)
    plain = jax.jit(jax.value_and_grad(_plain_error, argnums=(0, 1)))
    value, (by_weights, by_layers) = plain(weights, layers, X, Y, B, included)
    np.testing.assert_allclose(error, value, rtol=1e-11)
    for ours, theirs in zip(*map(jax.tree.leaves, (gradient, (by_weights, by_layers))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max())


@pytest.mark.parametrize("variance_dtype", [None, np.float32])
def test_variances_by_row_and_column_are_those_of_the_entries(variance_dtype):
    _, X, Y, _, layers = _problem(4)
    layers = _accelerated(layers)
    short = _by_rows_and_columns()
    whole = CoupledWeights(*(Gaussian(part.mean, part.var) for part in short))
    ours, theirs = (
        propagate_layers(layer_matrices(weights, X, variance_dtype), Y, layers) for weights in (short, whole)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5 if variance_dtype else 1e-11)


def test_no_observations_have_no_codes():
    weights, X, Y, _, layers = _problem(3)
    assert {part.shape for part in jax.tree.leaves(_propagate(weights, X, Y[:0], layers))} == {(0, D)}


def test_with_certain_encoder_it_is_the_free_network():
    (encoder, residual), X, Y, _, layers = _problem(4)
    encoder = Gaussian(encoder.mean, jnp.zeros_like(encoder.var))
    coupled = CoupledWeights(encoder, residual)
    free = FreeWeights(encoder, Gaussian(jnp.eye(D) + recurrent_mean(coupled, X), residual.var))
    for ours, theirs in zip(
        _propagate(coupled, X, Y, layers).entering, propagate(free, Y, layers.shrinkage), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_uncertainty_of_the_encoder_matches_monte_carlo():
    # Two layers with draws of W and R made afresh for the second, as the moments take them.
    (encoder, residual), X, Y, _, layers = _problem(2, seed=3)
    shrinkage = layers.shrinkage
    rng = np.random.default_rng(0)
    n = 200_000
    first = np.sqrt(encoder.var) * rng.standard_normal((n, D, K)) + encoder.mean
    drive = first @ Y[0]
    output = drive - np.clip(drive, -shrinkage[0], shrinkage[0])
    output = np.stack([rng.permutation(column) for column in output.T], axis=1)
    second = np.sqrt(encoder.var) * rng.standard_normal((n, D, K)) + encoder.mean
    departure = np.sqrt(residual.var) * rng.standard_normal((n, D, D)) + residual.mean
    misfit = Y[0] - output @ X.T
    entering = output + np.einsum("nij,nj->ni", second, misfit) + np.einsum("nij,nj->ni", departure, output)
    result = _propagate(CoupledWeights(encoder, residual), X, Y[:1], layers).entering
    centred = (entering - entering.mean(axis=0)) ** 2
    assert np.all(np.abs(entering.mean(axis=0) - result.mean[0]) < 5 * entering.std(axis=0) / np.sqrt(n))
    assert np.all(np.abs(centred.mean(axis=0) - result.var[0]) < 5 * centred.std(axis=0) / np.sqrt(n))


def test_variances_with_momentum_match_monte_carlo():
    # Draws of the weights anew in every layer, and orthogonal columns, so that coefficients are independent: then only
    # the covariance of successive layers is approximate.
    rng = np.random.default_rng(0)
    d, n = 20, 4000
    X = np.eye(d)
    encoder = RowColumn(jnp.asarray(0.2 * X.T), jnp.full(d, 0.02), jnp.full(d, 0.02))
    residual = RowColumn(jnp.zeros((d, d)), jnp.full(d, 0.02), jnp.full(d, 0.02))
    codes = 3 * rng.standard_normal((8, d)) * (rng.random((8, d)) < 0.2)
    Y = codes @ X.T
    layers = LayerParameters(
        np.full(6, 0.1), np.array([0, 0.4, 0.8, 1.0, 0.8, 0.6]), np.array([1, 1.2, 1.3, 1.2, 1, 1])
    )
    weights = CoupledWeights(encoder, residual)
    moments = _propagate(weights, X, jnp.asarray(Y), jax.tree.map(jnp.asarray, layers)).output
    drawn = drawn_variance(weights, X, Y, layers, n, rng)
    assert float(jnp.sum(moments.var)) == pytest.approx(np.sum(drawn), rel=0.05)
    without = _propagate(weights, X, jnp.asarray(Y), LayerParameters.plain(layers.shrinkage)).output
    assert float(jnp.sum(without.var)) != pytest.approx(np.sum(drawn), rel=0.15)


@pytest.mark.parametrize("momentum", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_outgrows_the_precision_stays_finite(dtype, momentum):
    weights, X, Y, _, _ = jax.tree.map(lambda part: jnp.asarray(part, dtype), _problem(2))
    huge = float(np.finfo(dtype).max) ** 0.25
    layers = LayerParameters(*(jnp.full(30, value, dtype) for value in (0.1, momentum, 1.3)))
    propagated = _propagate(weights, 1e3 * X, huge * Y, layers)
    assert all(bool(jnp.isfinite(part).all()) for part in jax.tree.leaves(propagated))
