"""Calibration by simulation: its score against the distribution's own, and what it learns."""

import jax
import numpy as np
import pytest

from bayeslista.distributions import SpikeSlab
from bayeslista.generative import SlabMixture, simulate_pairs
from bayeslista.inference.simulation import cosine_rates, log_score, objective, train_scalars
from bayeslista.message_passing import Denoised, default_scalars, make_problem, slab_prior

SLAB = SlabMixture(np.ones(1), np.zeros(1), np.ones(1))


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def test_log_score_is_that_of_the_distribution():
    random = np.random.default_rng(0)
    belief = Denoised(*(random.standard_normal((2, 4, 3))), random.uniform(0.1, 2, (4, 3)))
    codes = np.where(random.random((4, 3)) < 0.5, random.standard_normal((4, 3)), 0.0)
    distribution = SpikeSlab(1 / (1 + np.exp(-belief.log_odds)), belief.slab_mean, belief.slab_var)
    np.testing.assert_allclose(log_score(belief, codes), distribution.log_prob(codes), rtol=1e-9)


def test_training_mends_what_was_spoilt_and_skips_what_is_no_number():
    random = np.random.default_rng(0)
    X = random.standard_normal((4, 6))
    problem = make_problem(X, 0.1, slab_prior(0.3, 0.0, 1.0, n_components=6))
    Y, B = simulate_pairs(X, 0.1, 0.3, SLAB, 40 * 32, random)
    batches = [Y.reshape(40, 32, 4), B.reshape(40, 32, 6)]
    batches[0][3, 0, 0] = np.nan
    spoilt = default_scalars(0, 3)
    spoilt = spoilt._replace(head=spoilt.head._replace(offset=np.array(2.0)))
    trained, info = train_scalars(spoilt, problem, *batches, cosine_rates(40, 0.1))
    fresh = simulate_pairs(X, 0.1, 0.3, SLAB, 32, random)
    assert int(info.skipped) == 1
    assert float(objective(trained, problem, *fresh)) < float(objective(spoilt, problem, *fresh)) - 0.2
    assert float(trained.head.offset) < 1.5
    np.testing.assert_array_equal(trained.vector_layers.offset, spoilt.vector_layers.offset)
