"""The network with coupled weights against the free one, autodiff of plain formulas and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

from bayeslista.bayes_lista.adf.layers import FreeWeights, propagate
from bayeslista.bayes_lista.propagation import (
    CoupledWeights,
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
    return *jax.tree.map(jnp.asarray, arrays), jnp.asarray(rng.uniform(0.05, 0.5, n_layers))


def _by_rows_and_columns(seed=0):
    rng = np.random.default_rng(seed)
    encoder = rng.normal(0, 0.3, (D, K)), rng.uniform(0.1, 0.5, D), rng.uniform(0.1, 0.5, K)
    residual = rng.normal(0, 0.2, (D, D)), rng.uniform(0.1, 0.3, D), rng.uniform(0.1, 0.3, D)
    return CoupledWeights(*(RowColumn(*map(jnp.asarray, part)) for part in (encoder, residual)))


def _propagate(weights, X, Y, shrinkage):
    return propagate_layers(layer_matrices(weights, X), Y, shrinkage)


def _plain_error(weights, shrinkage, X, Y, B, included):
    w_mean, w_var, r_mean, r_var = (getattr(part, name) for part in weights for name in ("mean", "var"))
    s_mean = jnp.eye(D) - w_mean @ X + r_mean
    total = 0.0
    for y, code, weight in zip(Y, B, included, strict=True):
        e = s = jnp.zeros(D)
        for threshold in shrinkage:
            u = y - X @ e
            mean = w_mean @ y + s_mean @ e
            var = (s_mean**2 + r_var) @ s + r_var @ e**2 + w_var @ (u**2 + X**2 @ s)
            std = jnp.sqrt(var)
            up, down = (mean - threshold) / std, (-mean - threshold) / std
            e = std * (norm.pdf(up) + up * norm.cdf(up) - norm.pdf(down) - down * norm.cdf(down))
            second = (1 + up**2) * norm.cdf(up) + up * norm.pdf(up) + (1 + down**2) * norm.cdf(down)
            s = var * (second + down * norm.pdf(down)) - e**2
        total += weight * jnp.sum((code - e) ** 2 + s)
    return total


@pytest.mark.parametrize("by_rows_and_columns", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("n_layers", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_expected_error_and_gradient_equal_autodiff_of_plain_formulas(n_layers, by_rows_and_columns):
    weights, X, Y, B, shrinkage = _problem(n_layers)
    if by_rows_and_columns:
        weights = _by_rows_and_columns()
    included = jnp.array([1.0, 0.5, 0.0])
    error, mean, gradient = jax.jit(expected_error_and_gradient)(weights, X, Y, B, shrinkage, included)
    entering, output = _propagate(weights, X, Y, shrinkage)
    np.testing.assert_allclose(mean, output.mean, rtol=1e-11)
    np.testing.assert_allclose(mean, soft_threshold_moments(*entering, shrinkage[-1]).mean, rtol=1e-11)
    plain = jax.jit(jax.value_and_grad(_plain_error, argnums=(0, 1)))
    value, (by_weights, by_shrinkage) = plain(weights, shrinkage, X, Y, B, included)
    np.testing.assert_allclose(error, value, rtol=1e-11)
    np.testing.assert_allclose(gradient.shrinkage, by_shrinkage, rtol=1e-9)
    for ours, theirs in zip(jax.tree.leaves(gradient.weights), jax.tree.leaves(by_weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max())


@pytest.mark.parametrize("variance_dtype", [None, np.float32])
def test_variances_by_row_and_column_are_those_of_the_entries(variance_dtype):
    _, X, Y, _, shrinkage = _problem(4)
    short = _by_rows_and_columns()
    whole = CoupledWeights(*(Gaussian(part.mean, part.var) for part in short))
    ours, theirs = (
        propagate_layers(layer_matrices(weights, X, variance_dtype), Y, shrinkage) for weights in (short, whole)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5 if variance_dtype else 1e-11)


def test_no_observations_have_no_codes():
    weights, X, Y, _, shrinkage = _problem(3)
    assert {part.shape for part in jax.tree.leaves(_propagate(weights, X, Y[:0], shrinkage))} == {(0, D)}


def test_with_certain_encoder_it_is_the_free_network():
    (encoder, residual), X, Y, _, shrinkage = _problem(4)
    encoder = Gaussian(encoder.mean, jnp.zeros_like(encoder.var))
    coupled = CoupledWeights(encoder, residual)
    free = FreeWeights(encoder, Gaussian(recurrent_mean(coupled, X), residual.var))
    for ours, theirs in zip(_propagate(coupled, X, Y, shrinkage).entering, propagate(free, Y, shrinkage), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_uncertainty_of_the_encoder_matches_monte_carlo():
    # Two layers with draws of W and R made afresh for the second, as the moments take them.
    (encoder, residual), X, Y, _, shrinkage = _problem(2, seed=3)
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
    result = _propagate(CoupledWeights(encoder, residual), X, Y[:1], shrinkage).entering
    centred = (entering - entering.mean(axis=0)) ** 2
    assert np.all(np.abs(entering.mean(axis=0) - result.mean[0]) < 5 * entering.std(axis=0) / np.sqrt(n))
    assert np.all(np.abs(centred.mean(axis=0) - result.var[0]) < 5 * centred.std(axis=0) / np.sqrt(n))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_outgrows_the_precision_stays_finite(dtype):
    weights, X, Y, _, _ = jax.tree.map(lambda part: jnp.asarray(part, dtype), _problem(2))
    huge = float(np.finfo(dtype).max) ** 0.25
    propagated = _propagate(weights, 1e3 * X, huge * Y, jnp.full(30, 0.1, dtype))
    assert all(bool(jnp.isfinite(part).all()) for part in jax.tree.leaves(propagated))
