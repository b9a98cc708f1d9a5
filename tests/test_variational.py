"""Variational inference: it ascends its objective, keeps the best, survives trouble, and streams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayeslista.anchored_network import AnchoredWeights, expected_error_and_gradient
from bayeslista.inference import variational
from bayeslista.network import Gaussian

D, K, N = 8, 6, 64


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _problem(learn_shrinkage=True, shrinkage=0.1, n_layers=3, scale=1.0):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(K, D))
    B = rng.normal(size=(N + 20, D)) * (rng.uniform(size=(N + 20, D)) < 0.3)
    Y = B @ X.T + 0.1 * rng.normal(size=(N + 20, K))
    encoder = X.T @ np.linalg.inv(X @ X.T + 0.1 * np.eye(K))
    pairs = (scale * Y[:N], B[:N]), (Y[N:], B[N:])
    return variational.init(X, encoder, np.full(n_layers, shrinkage), *pairs, learn_shrinkage)


def _passes(state, problem, n, rate=1.0):
    rng = np.random.default_rng(1)
    infos = []
    for i in range(n):
        rows = rng.permutation(N).reshape(8, 8)
        rates = rate * variational.schedule(i, 8, n)
        state, info = variational.step(state, problem, rows, jnp.ones((8, 8)), rates)
        infos.append(info)
    return state, infos


def test_learning_raises_the_objective_and_lowers_the_held_out_error():
    state, problem = _problem()
    start = float(state.best_error)
    state, infos = _passes(state, problem, 30)
    assert infos[-1].objective > infos[0].objective
    assert infos[-1].training_error < infos[0].training_error
    assert state.best_error < 0.95 * start
    assert state.best_error == min(float(info.held_out_error) for info in infos)
    predicted = variational.predict(state.best, problem.design_matrix, problem.held_out_observations)
    assert float(jnp.mean((predicted - problem.held_out_codes) ** 2)) == pytest.approx(float(state.best_error))
    assert sum(int(info.skipped) for info in infos) == 0


def test_the_noise_follows_the_expected_error():
    state, problem = _problem()
    state, infos = _passes(state, problem, 20)
    assert float(state.noise_var) == pytest.approx(float(infos[-1].training_error), rel=0.2)


def test_thresholds_are_held_on_request_and_may_be_zero():
    state, problem = _problem(learn_shrinkage=False, shrinkage=0.0)
    after, _ = _passes(state, problem, 2)
    np.testing.assert_array_equal(after.parameters.log_shrinkage, state.parameters.log_shrinkage)
    assert np.exp(after.parameters.log_shrinkage).max() < 1e-300
    learned, _ = _passes(*_problem(), 2)
    assert np.ptp(learned.parameters.log_shrinkage) > 0


def test_padding_rows_do_not_count():
    state, problem = _problem()
    rows = np.arange(6)[None]
    padded = np.concatenate([rows, [[0, 0]]], axis=1)
    included = jnp.array([[1.0] * 6 + [0.0] * 2])
    whole, _ = variational.step(state, problem, rows, jnp.ones((1, 6)), jnp.ones(1))
    same, _ = variational.step(state, problem, padded, included, jnp.ones(1))
    for a, b in zip(jax.tree.leaves(whole.parameters), jax.tree.leaves(same.parameters), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_an_explosion_restores_the_best_and_halves_the_rate():
    state, problem = _problem()
    state, _ = _passes(state, problem, 5)
    exploded, info = variational.step(state, problem, np.arange(N).reshape(8, 8), jnp.ones((8, 8)), jnp.full(8, 1e4))
    assert bool(info.restored)
    assert exploded.rate == 0.5 * state.rate
    assert exploded.best_error == state.best_error
    for a, b in zip(jax.tree.leaves(exploded.parameters), jax.tree.leaves(state.best), strict=True):
        np.testing.assert_array_equal(a, b)


def test_batches_without_a_finite_gradient_are_skipped_and_counted():
    state, problem = _problem()
    poisoned = problem._replace(observations=problem.observations.at[0].set(jnp.nan))
    after, info = variational.step(state, poisoned, np.arange(N).reshape(8, 8), jnp.ones((8, 8)), jnp.ones(8))
    assert int(info.skipped) == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    assert after.n_steps == 7


def test_the_gradient_in_log_variances_follows_the_divergence():
    # Without data to explain (codes that the network cannot reach any closer), the prior's variance is the target.
    state, problem = _problem(n_layers=1)
    silent = problem._replace(
        observations=jnp.zeros_like(problem.observations),
        codes=jnp.zeros_like(problem.codes),
        held_out_observations=jnp.zeros_like(problem.held_out_observations),
        held_out_codes=jnp.zeros_like(problem.held_out_codes),
    )
    state = state._replace(noise_var=jnp.asarray(1.0))
    for _ in range(300):
        state, _ = variational.step(state, silent, np.arange(N)[None], jnp.ones((1, N)), jnp.ones(1))
    variances = np.exp(state.parameters.encoder_log_var)
    np.testing.assert_allclose(variances, problem.prior_encoder_var, rtol=0.2)


def test_schedule_warms_up_and_decays():
    rates = np.concatenate([variational.schedule(i, 10, 20) for i in range(20)])
    assert rates[9] == 1
    assert np.all(np.diff(rates[:10]) > 0)
    assert np.all(np.diff(rates[10:]) < 0)
    assert 0.02 <= rates[-1] < 0.03
    assert variational.schedule(0, 1, 1).tolist() == [1.0]


def _belief(seed=0):
    rng = np.random.default_rng(seed)
    return AnchoredWeights(
        Gaussian(jnp.asarray(rng.normal(0, 0.3, (D, K))), jnp.full((D, K), 1e-3)),
        Gaussian(jnp.asarray(rng.normal(0, 0.1, (D, D))), jnp.full((D, D), 1e-4)),
    )


def test_a_stream_lowers_the_expected_error_and_can_be_cut_anywhere():
    _, problem = _problem()
    belief, shrinkage, noise_var = _belief(), jnp.full(3, 0.1), jnp.asarray(0.1)
    pairs = problem.observations, problem.codes
    after, info = variational.filter_pairs(belief, problem.design_matrix, *pairs, shrinkage, noise_var)
    cut = belief
    for rows in (slice(0, 1), slice(1, 40), slice(40, None)):
        parts = (part[rows] for part in pairs)
        cut, _ = variational.filter_pairs(cut, problem.design_matrix, *parts, shrinkage, noise_var)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(cut), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)

    def error(weights):
        held_out = problem.held_out_observations, problem.held_out_codes
        return expected_error_and_gradient(weights, problem.design_matrix, *held_out, shrinkage, jnp.ones(20))[0]

    assert error(after) < error(belief)
    assert int(info.rejected) == 0
    assert int(info.n_codes) == int(np.sum(np.any(problem.codes != 0, axis=1)))


def test_for_one_linear_weight_a_stream_is_tempered_bayesian_regression():
    rng = np.random.default_rng(4)
    y = rng.normal(size=100)
    codes = 0.7 * y + 0.3 * rng.normal(size=100)
    nothing = Gaussian(jnp.zeros((1, 1)), jnp.full((1, 1), 1e-12))
    belief = AnchoredWeights(Gaussian(jnp.zeros((1, 1)), jnp.full((1, 1), 0.1)), nothing)
    after, _ = variational.filter_pairs(
        belief, jnp.zeros((1, 1)), y[:, None], codes[:, None], jnp.zeros(1), jnp.asarray(0.09)
    )
    precision = 10 + np.sum(y**2) / (30 * 0.09)
    assert float(after.encoder.var[0, 0]) == pytest.approx(1 / precision, rel=1e-8)
    assert float(after.encoder.mean[0, 0]) == pytest.approx(np.sum(y * codes) / (30 * 0.09) / precision, rel=1e-8)


def test_stream_updates_that_would_break_a_variance_are_rejected():
    belief = _belief()._replace(residual=Gaussian(jnp.zeros((D, D)), jnp.full((D, D), jnp.inf)))
    _, problem = _problem()
    after, info = variational.filter_pairs(
        belief, problem.design_matrix, problem.observations[:2], problem.codes[:2], jnp.full(2, 0.1), jnp.asarray(0.1)
    )
    assert int(info.rejected) > 0
    np.testing.assert_array_equal(after.residual.mean, 0)


def test_the_prior_of_an_entry_follows_the_units_of_its_row_and_column():
    rng = np.random.default_rng(6)
    units, pairs = np.geomspace(0.1, 10, D), (np.ones((4, K)), np.ones((4, D)))
    encoder = rng.normal(size=(D, K)) / units[:, None]
    _, problem = variational.init(np.ones((K, D)), encoder, np.full(2, 0.1), pairs, pairs, True)
    relative = np.asarray(problem.prior_encoder_var) * units[:, None] ** 2
    assert relative.max() / relative.min() < 500  # squared units span 10⁴
    _, silent = variational.init(np.ones((K, D)), 0 * encoder, np.full(2, 0.1), pairs, pairs, True)
    assert np.isfinite(silent.prior_encoder_var).all()


def test_a_start_that_is_not_finite_is_left_behind():
    state, problem = _problem()
    broken = state._replace(best_error=jnp.asarray(jnp.inf), best=jax.tree.map(lambda x: x * jnp.nan, state.best))
    after, _ = variational.step(broken, problem, np.arange(N).reshape(8, 8), jnp.ones((8, 8)), jnp.ones(8))
    assert np.isfinite(after.best_error)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.best))


def test_gradients_too_small_to_square_do_not_move_anything_to_infinity():
    state, problem = _problem()
    tiny = state._replace(noise_var=jnp.asarray(1e200))
    after, info = variational.step(tiny, problem, np.arange(N).reshape(8, 8), jnp.ones((8, 8)), jnp.ones(8))
    assert int(info.skipped) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.parameters))
