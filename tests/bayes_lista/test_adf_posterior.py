"""Prior factors and Gamma precisions against scalar references and exact moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from bayeslista.bayes_lista.adf.posterior import (
    Gamma,
    MatrixPrior,
    PriorFactor,
    initial_posterior,
    is_proper,
    matched_gamma,
    refine_prior,
)
from bayeslista.numerics.soft_threshold_fast import Gaussian


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _scalar_sweep(mean, var, prior, precision):
    """Expectation propagation of the textbook, one weight after the other, from one posterior."""
    shape, rate = precision
    refined, gains = [], []
    for i in range(len(mean)):
        # Divide the approximate factor N(centre, 1/precision) out of the posterior.
        cavity_precision = 1 / var[i] - prior.precision[i]
        cavity_var = 1 / cavity_precision
        cavity_mean = cavity_var * (mean[i] / var[i] - prior.precision[i] * prior.centre[i])
        a, b = shape - prior.shape[i], rate - prior.rate[i]

        def log_z(a, cavity_mean=cavity_mean, cavity_var=cavity_var, b=b, centre=prior.centre[i]):
            return stats.norm.logpdf(cavity_mean, centre, np.sqrt(cavity_var + b / (a - 1)))

        total = cavity_var + b / (a - 1)
        by_mean = (prior.centre[i] - cavity_mean) / total
        by_var = 0.5 * by_mean**2 - 0.5 / total
        new_mean = cavity_mean + cavity_var * by_mean
        new_var = cavity_var - cavity_var**2 * (by_mean**2 - 2 * by_var)
        z, z1, z2 = (np.exp(log_z(a + k)) for k in range(3))
        new_a = 1 / (z * z2 / z1**2 * (a + 1) / a - 1)
        new_b = 1 / (z2 / z1 * (a + 1) / b - z1 / z * a / b)
        refined.append((new_mean, new_var, 1 / new_var - cavity_precision))
        gains.append((new_a - a, new_b - b))
    new_mean, new_var, factor_precision = np.array(refined).T
    shape_increments, rate_increments = np.array(gains).T
    total_shape = shape + np.sum(shape_increments - prior.shape)
    total_rate = rate + np.sum(rate_increments - prior.rate)
    return new_mean, new_var, factor_precision, shape_increments, rate_increments, total_shape, total_rate


@pytest.mark.parametrize("centred", [False, True])
def test_vectorised_sweeps_equal_a_scalar_reference(centred):
    rng = np.random.default_rng(0)
    mean, var = rng.normal(0, 0.5, 12), rng.uniform(0.01, 0.2, 12)
    centre = rng.normal(0, 0.5, 12) if centred else np.zeros(12)
    prior = PriorFactor(centre, np.full(12, 1 / 1.2), np.zeros(12), np.zeros(12))
    precision = Gamma(6.0, 6.0)
    for _ in range(3):
        ours = refine_prior(
            Gaussian(jnp.asarray(mean), jnp.asarray(var)),
            jax.tree.map(jnp.asarray, prior),
            jax.tree.map(jnp.asarray, precision),
        )
        expected = _scalar_sweep(mean, var, prior, precision)
        got = (*ours.weights, ours.prior.precision, ours.prior.shape, ours.prior.rate, *ours.precision)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
        assert ours.rejected == ours.damped == 0
        (mean, var), prior, precision = jax.tree.map(np.asarray, ours[:3])


def test_the_posterior_stays_the_product_of_cavity_and_prior_factor():
    rng = np.random.default_rng(1)
    weights = Gaussian(jnp.asarray(rng.normal(0, 1, (4, 3))), jnp.asarray(rng.uniform(0.01, 0.5, (4, 3))))
    prior = PriorFactor(jnp.zeros((4, 3)), jnp.full((4, 3), 1 / 1.2), jnp.zeros((4, 3)), jnp.zeros((4, 3)))
    refined = refine_prior(weights, prior, Gamma(jnp.asarray(6.0), jnp.asarray(6.0)))
    data_precision = 1 / weights.var - prior.precision
    np.testing.assert_allclose(1 / refined.weights.var - refined.prior.precision, data_precision, rtol=1e-9)
    np.testing.assert_allclose(refined.weights.mean / refined.weights.var, weights.mean / weights.var, rtol=1e-9)
    np.testing.assert_allclose(refined.precision.shape, 6 + refined.prior.shape.sum(), rtol=1e-12)


def test_repeated_sweeps_find_the_spread_of_weights_of_small_variance():
    rng = np.random.default_rng(2)
    weights = Gaussian(jnp.asarray(rng.normal(0, 0.1, (60, 50))), jnp.full((60, 50), 1e-6))
    prior = PriorFactor(*(jnp.full((60, 50), value) for value in (0.0, 1 / 1.2, 0.0, 0.0)))
    precision = Gamma(jnp.asarray(6.0), jnp.asarray(6.0))
    for _ in range(20):
        weights, prior, precision, _, _ = refine_prior(weights, prior, precision)
    # The exact posterior of the precision given the weights: Gam(6 + n/2, 6 + Σw²/2).
    exact = (6 + 0.5 * np.sum(weights.mean**2)) / (6 + 1500)
    assert precision.rate / precision.shape == pytest.approx(float(exact), rel=0.02)


def test_matched_gamma_has_the_moments_of_the_product():
    a, b, width = 6.0, 3.0, 0.4

    def normaliser(shape):
        # A factor exp(−width·η) under Gam(shape, b), in closed form.
        return -shape * np.log1p(width / b)

    matched = matched_gamma(Gamma(a, b), normaliser(a), normaliser(a + 1), normaliser(a + 2))
    # Its product with the Gamma is a Gamma again.
    assert matched.shape == pytest.approx(a, rel=1e-12)
    assert matched.rate == pytest.approx(b + width, rel=1e-12)


def test_matched_gamma_agrees_with_quadrature_for_another_factor():
    a, b = 4.0, 2.0

    def factor(x):
        return 1 / (1 + x**2)

    def z(shape):
        return integrate.quad(lambda x: factor(x) * stats.gamma.pdf(x, shape, scale=1 / b), 0, np.inf)[0]

    def moment(k):
        return integrate.quad(lambda x: x**k * factor(x) * stats.gamma.pdf(x, a, scale=1 / b), 0, np.inf)[0] / z(a)

    matched = matched_gamma(Gamma(a, b), *(np.log(z(a + k)) for k in range(3)))
    assert matched.shape / matched.rate == pytest.approx(moment(1), rel=1e-7)
    assert matched.shape / matched.rate**2 == pytest.approx(moment(2) - moment(1) ** 2, rel=1e-6)


@pytest.mark.parametrize(
    ("shape", "rate", "proper"),
    [
        (1.5, 1.0, True),
        (1.0, 1.0, False),
        (2.0, 0.0, False),
        (np.nan, 1.0, False),
        (2.0, np.inf, False),
        (-3.0, 1.0, False),
    ],
)
def test_is_proper(shape, rate, proper):
    assert bool(is_proper(Gamma(shape, rate))) is proper


def test_factors_without_a_proper_cavity_are_rejected_and_weights_without_data_left_alone():
    mean = jnp.asarray([0.3, 0.2, 0.1])
    var = jnp.asarray([2.4, 1.2, 0.1])  # wider than its prior factor; as wide; narrow
    prior = PriorFactor(*(jnp.full(3, value) for value in (0.0, 1 / 1.2, 0.0, 0.0)))
    refined = refine_prior(Gaussian(mean, var), prior, Gamma(jnp.asarray(6.0), jnp.asarray(3.0)))
    assert refined.rejected == 1
    np.testing.assert_array_equal(refined.weights.mean[:2], mean[:2])
    np.testing.assert_array_equal(refined.weights.var[:2], var[:2])
    assert refined.weights.var[2] < var[2]


def test_a_sweep_that_would_break_the_shared_gamma_is_damped():
    # Many weights far outside what the Gamma expects, each asking to widen it a lot.
    mean, var = jnp.full(1000, 0.5), jnp.full(1000, 5e-5)
    prior = PriorFactor(*(jnp.full(1000, value) for value in (0.0, 1e4, 0.0, 0.0)))
    precision = Gamma(jnp.asarray(500.0), jnp.asarray(0.05))
    refined = refine_prior(Gaussian(mean, var), prior, precision)
    assert refined.damped == 1
    assert is_proper(refined.precision)
    np.testing.assert_allclose(refined.precision.shape, 500 + refined.prior.shape.sum(), rtol=1e-9)
    np.testing.assert_allclose(refined.precision.rate, 0.05 + refined.prior.rate.sum(), rtol=1e-9)


def test_initial_posterior_has_the_prior_variance_everywhere():
    prior = MatrixPrior(jnp.zeros((2, 3)), jnp.asarray(1.2)), MatrixPrior(jnp.eye(2), jnp.asarray(0.5))
    posterior = initial_posterior(jnp.ones((2, 3)), jnp.eye(2), *prior)
    np.testing.assert_array_equal(posterior.weights.encoder.var, 1.2)
    np.testing.assert_array_equal(posterior.weights.recurrent.var, 0.5)
    for precision, var in ((posterior.encoder_precision, 1.2), (posterior.recurrent_precision, 0.5)):
        assert precision.rate / (precision.shape - 1) == pytest.approx(var)
    assert posterior.noise_precision == (6, 6)
