"""Variational inference: it ascends the ELBO, keeps the best parameters, and survives trouble."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bayeslista.bayes_lista import early_stopping, variational

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


def _epochs(state, problem, n, rate=1.0):
    rng = np.random.default_rng(1)
    infos = []
    for i in range(n):
        rows = rng.permutation(N).reshape(8, 8)
        rates = rate * variational.schedule(i, 8, n)
        state, info = variational.step(state, problem, rows, jnp.ones((8, 8)), rates)
        elbo = variational.elbo(state, problem, float(info.error), N)
        state, score = early_stopping.validate(state, problem)
        infos.append((info, elbo, score))
    return state, infos


def test_learning_raises_the_elbo_and_lowers_the_held_out_error():
    state, problem = _problem()
    start = float(state.best_error)
    state, infos = _epochs(state, problem, 30)
    (first, low, _), (last, high, _) = infos[0], infos[-1]
    assert high > low
    assert last.error < first.error
    assert last.nmse < first.nmse
    assert state.best_error < start
    assert state.best_error == min(float(score.error) for *_, score in infos)
    predicted = early_stopping.moments(state.best, problem.design_matrix, problem.held_out_observations, 32)[2]
    assert float(jnp.mean((predicted - problem.held_out_codes) ** 2)) == pytest.approx(float(state.best_error))
    assert sum(int(info.skipped) for info, *_ in infos) == 0


def test_the_elbo_is_the_expected_log_density_less_the_tempered_divergence_from_the_prior():
    state, problem = _problem()
    state, [(info, elbo, _)] = _epochs(state, problem, 1)
    weights, _ = early_stopping.weight_posterior(state.parameters)
    prior_residual = stats.norm(0, np.sqrt(problem.prior_residual_var))
    prior_encoder = stats.norm(problem.prior_encoder.mean, np.sqrt(problem.prior_encoder.var))
    divergence = 0.0
    for (mean, var), prior in (
        ((weights.encoder.mean, weights.encoder.var), prior_encoder),
        ((weights.residual.mean, weights.residual.var), prior_residual),
    ):
        # An expectation of squares over a Gaussian is that over its mean plus and minus its standard deviation.
        ends = [np.asarray(mean) + sign * np.sqrt(var) for sign in (-1, 1)]
        cross = sum(prior.logpdf(end) for end in ends) / 2
        divergence -= np.sum(stats.norm(mean, np.sqrt(var)).entropy() + cross)
    density = D * stats.norm(0, np.sqrt(state.noise_var)).logpdf(np.sqrt(info.error))
    assert elbo == pytest.approx(float(density - 3 / N * divergence), rel=1e-9)


def test_the_noise_follows_the_expected_error():
    state, problem = _problem()
    state, infos = _epochs(state, problem, 20)
    assert float(state.noise_var) == pytest.approx(float(infos[-1][0].error), rel=0.2)


def test_thresholds_are_held_on_request_and_may_be_zero():
    state, problem = _problem(learn_shrinkage=False, shrinkage=0.0)
    after, _ = _epochs(state, problem, 2)
    np.testing.assert_array_equal(after.parameters.log_shrinkage, state.parameters.log_shrinkage)
    assert np.exp(after.parameters.log_shrinkage).max() < 1e-300
    learned, _ = _epochs(*_problem(), 2)
    assert np.ptp(learned.parameters.log_shrinkage) > 0


def test_padding_rows_do_not_count():
    state, problem = _problem()
    rows = np.arange(6)[None]
    padded = np.concatenate([rows, [[0, 0]]], axis=1)
    included = jnp.array([[1.0] * 6 + [0.0] * 2])
    whole, _ = variational.step(state, problem, rows, jnp.ones((1, 6)), jnp.ones(1))
    # A second batch is nothing but padding.
    padded, included = np.stack([padded[0]] * 2), jnp.stack([included[0], 0 * included[0]])
    same, info = variational.step(state, problem, padded, included, jnp.ones(2))
    assert info.skipped == 0
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_an_explosion_restores_the_best_and_halves_the_rate():
    state, problem = _problem()
    state, _ = _epochs(state, problem, 5)
    moved, _ = variational.step(state, problem, np.arange(N).reshape(8, 8), jnp.ones((8, 8)), jnp.full(8, 1e4))
    exploded, score = early_stopping.validate(moved, problem)
    assert score.restored
    assert exploded.rate == 0.5 * state.rate
    assert exploded.best_error == state.best_error
    for a, b in zip(jax.tree.leaves(exploded.parameters), jax.tree.leaves(state.best), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("poison", [np.nan, 1e100])
def test_batches_without_a_gradient_of_their_own_are_skipped_and_counted(poison):
    state, problem = _problem()
    poisoned = problem._replace(observations=problem.observations.at[0].set(poison))
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
    variances = early_stopping.weight_posterior(state.parameters)[0].encoder.var
    np.testing.assert_allclose(variances, problem.prior_encoder.var, rtol=0.2)


def test_schedule_warms_up_and_decays():
    rates = np.concatenate([variational.schedule(i, 10, 20) for i in range(20)])
    assert rates[9] == 1
    assert np.all(np.diff(rates[:10]) > 0)
    assert np.all(np.diff(rates[10:]) < 0)
    assert 0.02 <= rates[-1] < 0.03
    assert variational.schedule(0, 1, 1).tolist() == [1.0]


def test_the_prior_of_an_entry_follows_the_units_of_its_row_and_column():
    rng = np.random.default_rng(6)
    units, pairs = np.geomspace(0.1, 10, D), (np.ones((4, K)), np.ones((4, D)))
    encoder = rng.normal(size=(D, K)) / units[:, None]
    _, problem = variational.init(np.ones((K, D)), encoder, np.full(2, 0.1), pairs, pairs, True)
    relative = np.asarray(problem.prior_encoder.var) * units[:, None] ** 2
    assert relative.max() / relative.min() < 500  # squared units span 10⁴
    # Without any, those of the inverse of the design matrix.
    silent = [
        variational.init(unit * np.ones((K, D)), 0 * encoder, np.full(2, 0.1), pairs, pairs, True)[1]
        for unit in (1.0, 100.0)
    ]
    np.testing.assert_allclose(silent[1].prior_encoder.var, 1e-4 * np.asarray(silent[0].prior_encoder.var))


def test_a_start_that_is_not_finite_is_left_behind():
    state, problem = _problem()
    broken = state._replace(best_error=np.inf, best=jax.tree.map(lambda x: x * jnp.nan, state.best))
    after, _ = variational.step(broken, problem, np.arange(N).reshape(8, 8), jnp.ones((8, 8)), jnp.ones(8))
    after, _ = early_stopping.validate(after, problem)
    assert np.isfinite(after.best_error)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.best))


def test_gradients_too_small_to_square_do_not_move_anything_to_infinity():
    state, problem = _problem()
    tiny = state._replace(noise_var=jnp.asarray(1e200))
    after, info = variational.step(tiny, problem, np.arange(N).reshape(8, 8), jnp.ones((8, 8)), jnp.ones(8))
    assert int(info.skipped) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.parameters))
