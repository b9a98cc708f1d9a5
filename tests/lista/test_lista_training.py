"""LISTA's training step by step."""

import jax
import numpy as np
import pytest

from bayeslista.lista import training
from bayeslista.lista.proximal import ista
from bayeslista.lista.training import CodePairs, LearningRates, ListaWeights, make_batches
from bayeslista.numerics.linear import ista_weights


@pytest.fixture
def problem():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((6, 8))
    codes = rng.standard_normal((23, 8)) * (rng.random((23, 8)) < 0.3)
    return X, CodePairs(codes @ X.T, codes)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def start(X, n_layers=3, shrinkage=0.05):
    weights = ista_weights(X)
    return ListaWeights(weights.encoder, weights.recurrent, np.full(n_layers, shrinkage))


def test_the_untrained_network_is_ista(problem):
    X, pairs = problem
    expected = ista(ista_weights(X), pairs.observations, 0.05, 3)
    np.testing.assert_allclose(training.predict(start(X), pairs.observations), expected, atol=1e-14)


def test_coupled_and_free_start_at_the_same_network(problem):
    X, pairs = problem
    free = start(X)
    coupled = free._replace(recurrent=np.eye(8))
    np.testing.assert_allclose(training.decoupled(coupled, X).recurrent, free.recurrent, atol=1e-14)
    assert training.decoupled(free, None) is free
    free_error = float(training.init(free, pairs).best_error)
    assert float(training.init(coupled, pairs, X).best_error) == pytest.approx(free_error, rel=1e-12)


def test_batches_cover_every_pair_once():
    batches = make_batches(np.random.default_rng(0).permutation(11), 4)
    assert batches.rows.shape == (3, 4)
    assert sorted(batches.rows[batches.present > 0]) == list(range(11))
    assert make_batches(np.arange(3), 100).rows.shape == (1, 3)


def test_a_padded_batch_descends_as_the_pairs_it_holds(problem):
    X, pairs = problem
    rates = LearningRates(0.01, 0.01, 0.01)
    state = training.init(start(X), pairs, optimizer="sgd")
    padded = make_batches(np.arange(3), 3)
    padded = training.MiniBatches(np.pad(padded.rows, ((0, 0), (0, 2))), np.pad(padded.present, ((0, 0), (0, 2))))
    exact, _ = training.step(state, pairs, pairs, make_batches(np.arange(3), 3), rates, 0.0, optimizer="sgd")
    masked, _ = training.step(state, pairs, pairs, padded, rates, 0.0, optimizer="sgd")
    for one, other in zip(*map(jax.tree.leaves, (exact.weights, masked.weights)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_one_sgd_step_is_the_gradient_by_finite_differences(problem):
    X, pairs = problem
    weights = start(X)
    state = training.init(weights, pairs, optimizer="sgd")
    whole = make_batches(np.arange(len(pairs.codes)), len(pairs.codes))
    following, info = training.step(state, pairs, pairs, whole, LearningRates(0.01, 0.01, 0.01), 0.0, optimizer="sgd")

    def loss(**changed):
        return np.mean(
            (np.asarray(training.predict(weights._replace(**changed), pairs.observations)) - pairs.codes) ** 2
        )

    assert float(info.loss) == pytest.approx(loss(), rel=1e-12)
    for name, position in (("encoder", (2, 3)), ("recurrent", (1, 4)), ("shrinkage", (1,))):
        nudge = np.zeros_like(getattr(weights, name))
        nudge[position] = 1e-6
        value = getattr(weights, name)
        slope = (loss(**{name: value + nudge}) - loss(**{name: value - nudge})) / 2e-6
        moved = np.asarray(getattr(following.weights, name) - value)[position] / 0.01
        assert moved == pytest.approx(-slope, rel=1e-5, abs=1e-9)


def accelerated(X, n_layers=3):
    return start(X, n_layers)._replace(momentum=np.array([9.0, 0.4, -0.3]), step_size=np.array([0.9, 1.3, 0.7]))


def test_an_accelerated_layer_extrapolates_and_steps(problem):
    X, pairs = problem
    weights = accelerated(X)
    before = codes = np.zeros_like(pairs.codes)
    for shrinkage, momentum, step_size in zip(weights.shrinkage, weights.momentum, weights.step_size, strict=True):
        u = codes + momentum * (codes - before)
        c = u + step_size * (pairs.observations @ weights.encoder.T + u @ weights.recurrent.T - u)
        before, codes = codes, c - np.clip(c, -shrinkage, shrinkage)
    np.testing.assert_allclose(training.predict(weights, pairs.observations), codes, atol=1e-14)


def test_without_momentum_at_unit_step_size_it_is_the_plain_network(problem):
    X, pairs = problem
    still = start(X)._replace(momentum=np.zeros(3), step_size=np.ones(3))
    plain = training.predict(start(X), pairs.observations)
    np.testing.assert_allclose(training.predict(still, pairs.observations), plain, atol=1e-14)


def test_momentum_and_step_sizes_descend(problem):
    X, pairs = problem
    rates = LearningRates(0.0, 0.0, 0.0, 0.01, 0.01)
    state = training.init(accelerated(X), pairs, optimizer="sgd")
    before = float(state.best_error)
    whole = make_batches(np.arange(23), 23)
    for _ in range(5):
        state, _ = training.step(state, pairs, pairs, whole, rates, 0.0, optimizer="sgd")
    assert float(state.best_error) < before
    assert state.weights.momentum[0] == 9.0  # the first layer has nothing to extrapolate from
    assert (state.weights.momentum[1:] != accelerated(X).momentum[1:]).all()
    assert (state.weights.step_size != accelerated(X).step_size).all()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("coupled", [True, False])
def test_training_lowers_the_error_and_compiles_once(problem, optimizer, coupled):
    X, pairs = problem
    design_matrix = X if coupled else None
    weights = start(X)._replace(recurrent=np.eye(8)) if coupled else start(X)
    state = training.init(weights, pairs, design_matrix, optimizer=optimizer)
    before = float(state.best_error)
    compiled = training.step._cache_size()
    for seed in range(15):
        batches = make_batches(np.random.default_rng(seed).permutation(23), 5)
        state, info = training.step(
            state, pairs, pairs, batches, LearningRates(0.003, 0.001, 0.001), 0.0, design_matrix, optimizer=optimizer
        )
    assert training.step._cache_size() == compiled + 1
    assert float(state.best_error) < before
    assert float(info.nmse) < 1
    assert int(info.n_skipped) == 0


def test_thresholds_never_turn_negative_and_a_zero_rate_holds(problem):
    X, pairs = problem
    state = training.init(start(X), pairs)
    batches = make_batches(np.arange(23), 5)
    fast, _ = training.step(state, pairs, pairs, batches, LearningRates(0.0, 0.0, 10.0), 0.0)
    assert (np.asarray(fast.weights.shrinkage) >= 0).all()
    np.testing.assert_array_equal(fast.weights.encoder, state.weights.encoder)
    np.testing.assert_array_equal(fast.weights.recurrent, state.weights.recurrent)


def test_gradients_that_are_not_finite_are_skipped_and_counted(problem):
    X, pairs = problem
    poisoned = CodePairs(pairs.observations.copy(), pairs.codes)
    poisoned.observations[0] = 1e200
    state = training.init(start(X), pairs)
    batches = make_batches(np.arange(20), 5)
    following, info = training.step(state, poisoned, pairs, batches, LearningRates(0.001, 0.001, 0.001), 0.0)
    assert int(info.n_skipped) == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(following))
    assert np.isfinite(info.loss)


def test_a_diverged_epoch_returns_to_the_best_weights(problem):
    X, pairs = problem
    state = training.init(start(X), pairs, optimizer="sgd")
    batches = make_batches(np.arange(23), 5)
    following, info = training.step(
        state, pairs, pairs, batches, LearningRates(1e150, 1e150, 0.0), 0.0, optimizer="sgd"
    )
    assert float(info.error) == float(info.nmse) == np.inf
    assert int(following.n_stale) == 1
    for one, other in zip(following.weights, state.best, strict=True):
        np.testing.assert_array_equal(one, other)


def test_epochs_without_clear_progress_are_counted(problem):
    X, pairs = problem
    state = training.init(start(X), pairs)
    batches = make_batches(np.arange(23), 5)
    for expected in (1, 2):
        state, _ = training.step(state, pairs, pairs, batches, LearningRates(1e-9, 1e-9, 1e-9), 0.5)
        assert int(state.n_stale) == expected


def test_zero_codes_have_no_normalised_error(problem):
    X, pairs = problem
    nothing = CodePairs(pairs.observations, np.zeros_like(pairs.codes))
    state = training.init(start(X), nothing)
    _, info = training.step(
        state, nothing, nothing, make_batches(np.arange(23), 5), LearningRates(1e-3, 1e-3, 1e-3), 0.0
    )
    assert float(info.nmse) == 0.0
