"""Assumed density filtering against exact posteriors, and what it does where it cannot go on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayeslista.bayes_lista.adf import filtering as adf
from bayeslista.bayes_lista.adf.evidence import evidence_and_factors
from bayeslista.bayes_lista.adf.layers import FreeWeights
from bayeslista.bayes_lista.adf.posterior import MatrixPrior, initial_posterior
from bayeslista.numerics.soft_threshold_fast import Gaussian


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _posterior(d, k, var=1.0, seed=0):
    rng = np.random.default_rng(seed)
    means = jnp.asarray(rng.normal(0, 0.3, (d, k))), jnp.asarray(rng.normal(0, 0.2, (d, d)))
    return initial_posterior(*means, *(MatrixPrior(jnp.zeros_like(mean), jnp.asarray(var)) for mean in means))


def _pairs(n, d, k, seed=1):
    rng = np.random.default_rng(seed)
    codes = rng.normal(size=(n, d)) * (rng.uniform(size=(n, d)) < 0.4)
    return adf.Pair(jnp.asarray(rng.normal(size=(n, k))), jnp.asarray(codes))


def _filtered(weights, gradient):
    update = adf._filtered([weights], lambda: [gradient])
    return adf._moved(weights, *update.changes), int(update.clipped), int(update.rejected)


@pytest.mark.parametrize("form", ["spike_slab", "gaussian"])
def test_without_threshold_one_layer_is_exact_bayesian_linear_regression(form):
    rng = np.random.default_rng(0)
    y = rng.normal(0, 2, 50)
    codes = 0.7 * y + rng.normal(0, 1, 50)
    prior = MatrixPrior(jnp.zeros((1, 1)), jnp.asarray(1.2))
    posterior = initial_posterior(jnp.zeros((1, 1)), jnp.zeros((1, 1)), prior, prior)
    noise = 6 / 5
    after, info = adf.filter_pairs(posterior, adf.Pair(y[:, None], codes[:, None]), jnp.zeros(1), form=form)
    precision = 1 / 1.2 + np.sum(y**2) / noise
    assert after.weights.encoder.var[0, 0] == pytest.approx(1 / precision, rel=1e-10)
    assert after.weights.encoder.mean[0, 0] == pytest.approx(np.sum(y * codes) / noise / precision, rel=1e-10)
    np.testing.assert_array_equal(after.weights.recurrent, posterior.weights.recurrent)
    assert info.clipped == info.rejected == 0


def test_one_very_informative_pair_is_still_exact():
    prior = MatrixPrior(jnp.zeros((1, 1)), jnp.asarray(1.0))
    posterior = initial_posterior(jnp.zeros((1, 1)), jnp.zeros((1, 1)), prior, prior)
    after, _ = adf.step(posterior, adf.Pair(jnp.array([1e4]), jnp.array([2e4])), jnp.zeros(1))
    precision = 1 + 1e8 / 1.2
    assert after.weights.encoder.var[0, 0] == pytest.approx(1 / precision, rel=1e-6)
    assert after.weights.encoder.mean[0, 0] == pytest.approx(2e8 / 1.2 / precision, rel=1e-10)


def test_learned_noise_finds_the_variance_of_the_residuals():
    rng = np.random.default_rng(3)
    n, true_std = 4000, 0.3
    y = rng.normal(size=(n, 1))
    codes = 0.5 * y + true_std * rng.normal(size=(n, 1))
    prior = MatrixPrior(jnp.zeros((1, 1)), jnp.asarray(1.0))
    posterior = initial_posterior(jnp.zeros((1, 1)), jnp.zeros((1, 1)), prior, prior)
    after, info = adf.filter_pairs(posterior, adf.Pair(y, codes), jnp.zeros(1), form="gaussian", learn_noise=True)
    shape, rate = after.noise_precision
    # n residuals know their variance to √(2/n) = 2.2 %; the prior's 6 pseudo-pairs of variance 1 add 3 %.
    assert float(rate / shape) == pytest.approx(true_std**2, rel=0.1)
    assert info.noise_rejected == 0
    held, _ = adf.filter_pairs(posterior, adf.Pair(y, codes), jnp.zeros(1), form="gaussian")
    assert held.noise_precision == posterior.noise_precision


def test_a_scan_over_pairs_is_its_steps_and_a_stream_can_be_cut_anywhere():
    posterior, pairs, shrinkage = _posterior(5, 4), _pairs(6, 5, 4), jnp.full(3, 0.1)
    whole, info = adf.filter_pairs(posterior, pairs, shrinkage)
    step = jax.jit(adf.step)
    stepped, errors = posterior, 0.0
    for row in range(6):
        stepped, one = step(stepped, jax.tree.map(lambda values, row=row: values[row], pairs), shrinkage)
        errors += float(one.relative_error)
    cut = adf.filter_pairs(posterior, jax.tree.map(lambda values: values[:2], pairs), shrinkage)[0]
    cut = adf.filter_pairs(cut, jax.tree.map(lambda values: values[2:], pairs), shrinkage)[0]
    for other in (stepped, cut):
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-14)
    assert float(info.relative_error) == pytest.approx(errors)
    assert info.n_codes == 6


def test_updates_that_would_break_a_variance_are_rejected_for_that_weight_alone():
    weights = Gaussian(jnp.zeros((1, 4)), jnp.full((1, 4), 0.5))
    gradient = Gaussian(jnp.array([[0.5, 2.0, jnp.nan, 0.5]]), jnp.array([[-0.1, -1.0, 0.0, jnp.inf]]))
    updated, clipped, rejected = _filtered(weights, gradient)
    assert (clipped, rejected) == (0, 3)
    np.testing.assert_array_equal(updated.mean, [[0.25, 0, 0, 0]])
    np.testing.assert_allclose(updated.var, [[0.5 - 0.25 * (0.25 + 0.2), 0.5, 0.5, 0.5]])


def test_steps_beyond_the_trust_region_are_cut_to_it_and_counted():
    weights = Gaussian(jnp.zeros((1, 3)), jnp.full((1, 3), 0.25))
    gradient = Gaussian(jnp.array([[-100.0, 0.0, 1.0]]), jnp.array([[4999.0, 1e3, 0.4]]))
    updated, clipped, rejected = _filtered(weights, gradient)
    assert (clipped, rejected) == (2, 0)
    np.testing.assert_allclose(updated.mean, [[-5 * 0.5, 0, 0.25]])
    np.testing.assert_allclose(updated.var, [[0.25 - 0.0625 * 2, 4 * 0.25, 0.25 - 0.0625 * 0.2]])


@pytest.mark.parametrize(("d", "scale", "gain"), [(264, 1, 0.06), (264, 1e25, 0.06), (257, 1, 0.06), (264, 1, 1)])
@pytest.mark.slow
def test_large_networks_take_the_same_steps_in_blocks_and_with_seven_digits_of_a_variance(d, scale, gain):
    """Divided into rows or not; with variances beyond single precision; with updates that are rejected."""
    posterior = _posterior(d, 9, 1e-3)
    encoder, recurrent = posterior.weights
    posterior = posterior._replace(weights=FreeWeights(encoder, recurrent._replace(mean=gain * recurrent.mean)))
    pair = jax.tree.map(lambda values: scale * values[0], _pairs(1, d, 9))
    shrinkage = jnp.full(4, 0.1 * scale)
    after, info = jax.jit(adf.step)(posterior, pair, shrinkage)
    _, factors = evidence_and_factors(posterior.weights, *pair, shrinkage, *posterior.noise_precision)
    gradient = factors.encoder(), factors.recurrent(posterior.weights.recurrent.mean)
    counts = []
    for before, slope, found in zip(posterior.weights, gradient, after.weights, strict=True):
        change, *each = adf._bounded(before.var, slope)
        expected = adf._moved(before, change)
        counts.append(each)
        for part in ("mean", "var"):
            start, wanted, got = (np.asarray(getattr(which, part)) for which in (before, expected, found))
            np.testing.assert_allclose(got - start, wanted - start, rtol=2e-4, atol=2e-6 * np.abs(wanted - start).max())
    (clipped, rejected), (more_clipped, more_rejected) = counts
    n = sum(part.mean.size for part in posterior.weights)
    assert abs(int(info.clipped) - int(clipped + more_clipped)) <= 1e-4 * n
    assert abs(int(info.rejected) - int(rejected + more_rejected)) <= 1e-4 * n
    assert (int(info.clipped + info.rejected) > 0) == (gain == 1)


def test_pairs_of_zeros_change_nothing_that_they_should_not():
    posterior = _posterior(4, 3)
    nothing = adf.Pair(jnp.zeros((2, 3)), jnp.zeros((2, 4)))
    after, info = adf.filter_pairs(posterior, nothing, jnp.full(2, 0.1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    np.testing.assert_array_equal(after.weights.encoder.mean, posterior.weights.encoder.mean)
    assert info.n_codes == 0
    assert info.relative_error == 0


def test_refining_priors_touches_both_matrices_and_counts():
    posterior, _ = adf.filter_pairs(_posterior(5, 4), _pairs(30, 5, 4), jnp.full(2, 0.1))
    refined, info = adf.refine_priors(posterior)
    assert refined.encoder_precision.shape != posterior.encoder_precision.shape
    assert refined.recurrent_precision.shape != posterior.recurrent_precision.shape
    assert refined.noise_precision == posterior.noise_precision
    wide = posterior._replace(
        weights=jax.tree.map(
            lambda x: x, FreeWeights(Gaussian(jnp.ones((5, 4)), jnp.full((5, 4), 9.0)), posterior.weights.recurrent)
        )
    )
    assert adf.refine_priors(wide)[1].prior_rejected == info.prior_rejected + 20


def test_explosive_priors_saturate_instead_of_overflowing():
    posterior = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), _posterior(30, 20, var=1e4))
    pairs = jax.tree.map(lambda leaf: 100 * leaf.astype(jnp.float32), _pairs(3, 30, 20))
    after, info = adf.filter_pairs(posterior, pairs, jnp.full(15, 0.1, jnp.float32))
    assert info.saturated == 3
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))


def test_compiled_once_for_all_epochs():
    posterior, pairs, shrinkage = _posterior(3, 2), _pairs(4, 3, 2), jnp.full(2, 0.1)
    adf.filter_pairs(posterior, pairs, shrinkage)
    before = adf.filter_pairs._cache_size(), adf.refine_priors._cache_size()
    for _ in range(3):
        posterior, _ = adf.filter_pairs(posterior, pairs, shrinkage)
        posterior, _ = adf.refine_priors(posterior)
    assert adf.filter_pairs._cache_size() == before[0]
    assert adf.refine_priors._cache_size() <= before[1] + 1
