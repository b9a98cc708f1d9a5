"""Calibration by simulation: its score against the distribution's own, and what it learns."""

import jax
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from bayeslista.distributions import SpikeSlab
from bayeslista.spike_slab.calibration import (
    changed,
    cosine_rates,
    fit_head,
    init_training,
    log_score,
    objective,
    training_step,
)
from bayeslista.spike_slab.denoiser import Denoised, slab_prior
from bayeslista.spike_slab.empirical_bayes import SlabMixture, simulate_pairs
from bayeslista.spike_slab.model import make_problem
from bayeslista.spike_slab.network import default_scalars, run_layers, run_network

SLAB = SlabMixture(np.ones(1), np.zeros(1), np.ones(1))
LIKE_KINDS = "ep_layers", "refinement_layers"


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def test_log_score_is_that_of_the_distribution():
    random = np.random.default_rng(0)
    posterior = Denoised(*(random.standard_normal((2, 4, 3))), random.uniform(0.1, 2, (4, 3)))
    codes = np.where(random.random((4, 3)) < 0.5, random.standard_normal((4, 3)), 0.0)
    distribution = SpikeSlab(1 / (1 + np.exp(-posterior.log_odds)), posterior.slab_mean, posterior.slab_var)
    np.testing.assert_allclose(log_score(posterior, codes), distribution.log_prob(codes), rtol=1e-9)


@pytest.mark.slow
def test_training_mends_what_was_spoilt_and_skips_what_is_no_number():
    random = np.random.default_rng(0)
    X = random.standard_normal((4, 6))
    problem = make_problem(X, 0.1, slab_prior(0.3, 0.0, 1.0, n_components=6))
    Y, B = simulate_pairs(X, 0.1, 0.3, SLAB, 40 * 32, random)
    batches = [Y.reshape(40, 32, 4), B.reshape(40, 32, 6)]
    batches[0][3, 0, 0] = np.nan
    usual = default_scalars(0, 3)
    spoilt = usual._replace(head=usual.head._replace(offset=np.array([2.0, 0.0, 0.0, 0.0])))
    state, skipped = init_training(spoilt), 0
    for Y, B, rate in zip(*batches, cosine_rates(40, 0.1), strict=True):
        state, info = training_step(state, spoilt, problem, Y, B, rate)
        skipped += not info.usable
    trained = changed(spoilt, state)
    fresh = simulate_pairs(X, 0.1, 0.3, SLAB, 32, random)
    assert skipped == 1
    best, after, before = (float(objective(scalars, problem, *fresh)) for scalars in (usual, trained, spoilt))
    assert before - after > 0.5 * (before - best)
    assert trained.head.offset[0] < 1.5
    np.testing.assert_array_equal(trained.vamp_layers.offset, spoilt.vamp_layers.offset)
    moved = [float(getattr(trained, kind).offset[0] - getattr(spoilt, kind).offset[0]) for kind in LIKE_KINDS]
    assert moved[0] != 0
    assert moved[1] == pytest.approx(moved[0], rel=1e-9)


def test_doubt_leaves_a_share_to_a_wide_slab_and_bounds_the_cost():
    posterior = Denoised(np.full((1, 2), 50.0), np.ones((1, 2)), np.full((1, 2), 1e-4))
    codes, scale, floor = np.array([[1.0, -1.0]]), 2.0, 1e-3
    mixture = (1 - floor) * norm.pdf(codes, 1.0, 0.01) + floor * norm.pdf(codes, 0.0, scale)
    np.testing.assert_allclose(
        log_score(posterior, codes, floor, scale),
        np.log(mixture) + floor**2,
        rtol=1e-9,
    )


@pytest.mark.parametrize("log_odds", [-1e4, 0.0, 1e4])
def test_doubt_bounds_the_cost_of_a_wrong_support(log_odds):
    posterior = Denoised(np.full((1, 2), log_odds), np.ones((1, 2)), np.ones((1, 2)))
    codes, floor = np.array([[0.0, 1.0]]), 1e-3
    chance = np.array([[expit(-log_odds), expit(log_odds)]])
    density = np.where(codes == 0, 1.0, (1 - floor) * norm.pdf(0.0) + floor * norm.pdf(codes))
    np.testing.assert_allclose(
        log_score(posterior, codes, floor),
        np.log((chance + floor**2) * density),
        rtol=1e-9,
    )


@pytest.fixture(scope="module")
def layers():
    random = np.random.default_rng(0)
    X = random.standard_normal((4, 6))
    with jax.enable_x64(True):
        problem = make_problem(X, 0.1, slab_prior(0.3, 0.0, 1.0, n_components=6))
    return problem, simulate_pairs(X, 0.1, 0.3, SLAB, 2048, random), simulate_pairs(X, 0.1, 0.3, SLAB, 2048, random)


@pytest.mark.slow
def test_the_head_mends_itself_and_predicts_its_own_error(layers):
    problem, pairs, fresh = layers
    spoilt = default_scalars(6, 0)
    one = np.array([1.0, 0.0, 0.0, 0.0])
    spoilt = spoilt._replace(head=spoilt.head._replace(offset=one, log_widening=one, log_slab_scale=one))
    head = fit_head(problem, *pairs, run_layers(problem, pairs[0], spoilt), spoilt.head)
    mended = spoilt._replace(head=head)
    assert float(objective(mended, problem, *fresh)) < float(objective(spoilt, problem, *fresh)) - 0.1
    posterior = run_network(problem, fresh[0], mended)
    distribution = SpikeSlab(1 / (1 + np.exp(-np.asarray(posterior.log_odds))), *map(np.asarray, posterior[1:]))
    said, missed = distribution.var().mean(axis=1), np.mean((distribution.mean() - fresh[1]) ** 2, axis=1)
    assert said.mean() / missed.mean() == pytest.approx(1, abs=0.15)
    # Not only on average: clear signals are believed, doubtful ones are not.
    for signals in np.array_split(np.argsort(said), 4):
        assert said[signals].mean() / missed[signals].mean() == pytest.approx(1, abs=0.3)


def test_a_head_is_kept_where_pairs_tell_nothing(layers):
    problem, (Y, B), _ = layers
    scalars = default_scalars(6, 0)
    nothing = np.full_like(Y, np.nan)
    assert fit_head(problem, nothing, B, run_layers(problem, nothing, scalars), scalars.head) is scalars.head
