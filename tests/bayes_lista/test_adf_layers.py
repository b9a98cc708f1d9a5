"""The network's moments and evidence against Monte Carlo, autodiff of textbook formulas and finite differences."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm, t

from bayeslista.bayes_lista.adf.evidence import evidence_and_factors
from bayeslista.bayes_lista.adf.layers import FreeWeights, propagate
from bayeslista.numerics.soft_threshold import soft_threshold_moments
from bayeslista.numerics.soft_threshold_fast import Gaussian

D, K = 7, 5
FORMS = ["spike_slab", "gaussian"]


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _problem(n_layers, seed=0):
    rng = np.random.default_rng(seed)
    weights = FreeWeights(
        Gaussian(rng.normal(0, 0.5, (D, K)), rng.uniform(0.01, 0.3, (D, K))),
        Gaussian(rng.normal(0, 0.3, (D, D)), rng.uniform(0.01, 0.1, (D, D))),
    )
    code = rng.normal(0, 1, D) * (rng.uniform(size=D) < 0.5)
    shrinkage = rng.uniform(0.05, 0.5, n_layers)
    return jax.tree.map(jnp.asarray, (weights, rng.normal(0, 1, K), code, shrinkage))


@partial(jax.jit, static_argnames="form")
def evidence_and_gradient(weights, observation, code, shrinkage, shape, rate, form="spike_slab"):
    evidence, factors = evidence_and_factors(weights, observation, code, shrinkage, shape, rate, form)
    return evidence, FreeWeights(factors.encoder(), factors.recurrent(weights.recurrent.mean))


def _textbook_evidence(weights, observation, code, shrinkage, shape, rate, form):
    """The paper's formulas as printed, but for the errata, in the plainest code there is."""
    (w_mean, w_var), (s_mean, s_var) = weights
    e = s = jnp.zeros(D)
    for threshold in shrinkage:
        mean = w_mean @ observation + s_mean @ e
        var = w_var @ observation**2 + s_mean**2 @ s + s_var @ (e**2 + s)
        std = jnp.sqrt(var)
        up, down = (mean - threshold) / std, (-mean - threshold) / std
        q = norm.cdf(up) + norm.cdf(down)
        e = std * (norm.pdf(up) + up * norm.cdf(up) - norm.pdf(down) - down * norm.cdf(down))
        second = (1 + up**2) * norm.cdf(up) + up * norm.pdf(up) + (1 + down**2) * norm.cdf(down) + down * norm.pdf(down)
        s = var * second - e**2
    noise = rate / (shape - 1)
    if form == "gaussian":
        return jnp.sum(norm.logpdf(code, e, jnp.sqrt(s + noise)))
    slab_mean = e / q
    slab_var = s / q - (1 - q) * slab_mean**2
    spike = t.pdf(code, 2 * shape, 0.0, jnp.sqrt(rate / shape))
    return jnp.sum(jnp.log((1 - q) * spike + q * norm.pdf(code, slab_mean, jnp.sqrt(slab_var + noise))))


_textbook_gradient = jax.jit(jax.value_and_grad(_textbook_evidence), static_argnames="form")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n_layers", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))])
def test_evidence_and_gradient_equal_autodiff_of_the_textbook_formulas(form, n_layers):
    for seed in range(5):
        problem = _problem(n_layers, seed)
        evidence, gradient = evidence_and_gradient(*problem, 3.0, 2.0, form)
        value, expected = _textbook_gradient(*problem, 3.0, 2.0, form=form)
        np.testing.assert_allclose(evidence.log_evidence.sum(), value, rtol=1e-11)
        for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
            if theirs.shape == (D, D) and n_layers == 1:
                np.testing.assert_array_equal(ours, 0)
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max())


@pytest.mark.parametrize("form", FORMS)
def test_raised_evidence_is_that_of_a_larger_noise_shape(form):
    problem = _problem(3)
    evidence, _ = evidence_and_gradient(*problem, 3.0, 2.0, form)
    assert evidence.raised_once.sum() == pytest.approx(float(_textbook_evidence(*problem, 4.0, 2.0, form)), rel=1e-11)
    assert evidence.raised_twice.sum() == pytest.approx(float(_textbook_evidence(*problem, 5.0, 2.0, form)), rel=1e-11)


@pytest.mark.parametrize("form", FORMS)
def test_gradient_equals_finite_differences(form):
    problem = _problem(4, seed=3)
    _, gradient = evidence_and_gradient(*problem, 6.0, 6.0, form)
    leaves, tree = jax.tree.flatten(problem[0])
    rng = np.random.default_rng(1)
    directions = [rng.normal(size=leaf.shape) for leaf in leaves]

    def along(step):
        moved = tree.unflatten([leaf + step * d for leaf, d in zip(leaves, directions, strict=True)])
        return float(evidence_and_gradient(moved, *problem[1:], 6.0, 6.0, form)[0].log_evidence.sum())

    slope = sum(np.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), directions, strict=True))
    numerical = (8 * (along(1e-4) - along(-1e-4)) - (along(2e-4) - along(-2e-4))) / 12e-4
    assert slope == pytest.approx(numerical, rel=1e-8)


def test_two_layers_match_monte_carlo():
    (w, s), observation, _, shrinkage = _problem(3, seed=5)
    rng = np.random.default_rng(0)
    n = 200_000
    draws = np.sqrt(w.var) * rng.standard_normal((n, D, K)) + w.mean
    drive = draws @ observation
    first = soft_threshold_moments(w.mean @ observation, w.var @ observation**2, shrinkage[0])
    thresholded = drive - np.clip(drive, -shrinkage[0], shrinkage[0])
    # The next layer takes the components of its input as independent of each other and of the drive.
    shuffled = np.stack([rng.permutation(column) for column in thresholded.T], axis=1)
    recurrent = np.sqrt(s.var) * rng.standard_normal((n, D, D)) + s.mean
    second = drive + np.einsum("nij,nj->ni", recurrent, shuffled)
    result = propagate(FreeWeights(w, s), observation[None], shrinkage[:2])

    def assert_same_moments(samples, mean, var):
        centred = (samples - samples.mean(axis=0)) ** 2
        assert np.all(np.abs(samples.mean(axis=0) - mean) < 5 * samples.std(axis=0) / np.sqrt(n))
        assert np.all(np.abs(centred.mean(axis=0) - var) < 5 * centred.std(axis=0) / np.sqrt(n))

    assert_same_moments(thresholded, first.mean, first.var)
    assert_same_moments(second, result.mean[0], result.var[0])
    active = (thresholded != 0).mean(axis=0)
    assert np.all(np.abs(active - first.prob_active) < 5 * np.sqrt(active * (1 - active) / n))


def test_a_batch_is_its_rows():
    weights, _, code, shrinkage = _problem(4)
    observations = jnp.asarray(np.random.default_rng(0).normal(size=(3, K)))
    batch = soft_threshold_moments(*propagate(weights, observations, shrinkage), shrinkage[-1])
    for row, observation in enumerate(observations):
        evidence, _ = evidence_and_gradient(weights, observation, code, shrinkage, 6.0, 6.0)
        np.testing.assert_allclose(batch.mean[row], evidence.prediction, rtol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_extreme_pairs_give_finite_evidence_and_gradients(form, dtype):
    weights, observation, code, shrinkage = jax.tree.map(lambda x: x.astype(dtype), _problem(3))
    certain = FreeWeights(*(Gaussian(part.mean, jnp.zeros_like(part.var)) for part in weights))
    cases = [
        (weights, 0 * observation, code),
        (weights, observation, 0 * code),
        (weights, 1e4 * observation, code),
        (weights, observation, 1e4 * code),
        (weights, 1e-10 * observation, 0 * code),
        (certain, observation, code),
        (certain, 0 * observation, 0 * code),
    ]
    for case in cases:
        for threshold in (shrinkage, 0 * shrinkage, 1e3 * shrinkage):
            evidence, gradient = evidence_and_gradient(*case, threshold, dtype(6), dtype(6), form)
            assert np.isfinite(evidence.log_evidence).all()
            assert evidence.log_evidence.dtype == dtype
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
