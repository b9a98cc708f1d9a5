"""Calibration by simulation: its score against the distribution's own, and what it learns."""

import jax
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

from bayeslista.distributions import SpikeSlab
from bayeslista.spike_slab.calibration import (
    cosine_rates,
    fit_head,
    fit_mixture,
    log_score,
    loss_of_posterior,
    objective,
    train_scalars,
)
from bayeslista.spike_slab.denoiser import Denoised, blend, slab_prior
from bayeslista.spike_slab.empirical_bayes import SlabMixture, simulate_pairs
from bayeslista.spike_slab.model import make_problem
from bayeslista.spike_slab.network import default_scalars, mixed_answer, run_layers, run_network, vamp_state

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
    trained, info = train_scalars(spoilt, problem, *batches, cosine_rates(40, 0.1))
    fresh = simulate_pairs(X, 0.1, 0.3, SLAB, 32, random)
    assert int(info.skipped) == 1
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


def as_distribution(posterior):
    return SpikeSlab(expit(np.asarray(posterior.log_odds)), *map(np.asarray, posterior[1:]))


def test_a_blend_has_the_moments_of_the_mixture():
    random = np.random.default_rng(0)
    first, second = (
        Denoised(3 * random.standard_normal((4, 3)), random.standard_normal((4, 3)), random.uniform(0.1, 2, (4, 3)))
        for _ in range(2)
    )
    share = 0.2
    one, other = as_distribution(first), as_distribution(second)
    both = as_distribution(blend(first, second, np.log(share / (1 - share))))
    np.testing.assert_allclose(both.prob_active, (1 - share) * one.prob_active + share * other.prob_active, rtol=1e-12)
    np.testing.assert_allclose(both.mean(), (1 - share) * one.mean() + share * other.mean(), rtol=1e-9, atol=1e-12)
    square = [part.var() + part.mean() ** 2 for part in (one, other, both)]
    np.testing.assert_allclose(square[2], (1 - share) * square[0] + share * square[1], rtol=1e-9)


@pytest.mark.parametrize("log_odds", [-800.0, 800.0])
def test_a_blend_of_certainties_is_certain(log_odds):
    sure = Denoised(np.full((1, 1), log_odds), np.ones((1, 1)), np.ones((1, 1)))
    assert float(blend(sure, sure, -2.0).log_odds[0, 0]) == pytest.approx(log_odds)


@pytest.mark.slow
def test_a_second_opinion_helps_where_the_first_is_sure_of_the_wrong_thing(layers):
    problem, (Y, B), fresh = layers
    scalars = default_scalars(6, 1)
    sound, before = run_layers(problem, Y, scalars), vamp_state(problem, Y, scalars)

    def misled(state, Y):
        """Every eighth signal is told of a support that it does not have."""
        wrong = np.where(np.arange(len(Y))[:, None] % 8 == 0, 3.0, np.asarray(state.cavity_mean))
        return state._replace(cavity_mean=wrong)

    head, mixture = fit_mixture(problem, Y, B, misled(sound, Y), before, scalars.head)
    alone = scalars._replace(head=fit_head(problem, Y, B, misled(sound, Y), scalars.head))
    both = scalars._replace(head=head, mixture=mixture)
    state = misled(run_layers(problem, fresh[0], scalars), fresh[0])
    losses = [
        float(loss_of_posterior(problem, mixed_answer(problem, fresh[0], state, one), fresh[1]))
        for one in (alone, both)
    ]
    assert expit(mixture.log_odds) > 0.2
    assert losses[1] < losses[0] - 0.05


def test_there_is_no_second_opinion_that_is_no_number(layers):
    problem, (Y, B), _ = layers
    scalars = default_scalars(6, 1)
    state = run_layers(problem, Y, scalars)
    nothing = state._replace(cavity_mean=np.full_like(state.cavity_mean, np.nan))
    head, mixture = fit_mixture(problem, Y, B, state, nothing, scalars.head)
    assert head is scalars.head
    assert mixture is None
