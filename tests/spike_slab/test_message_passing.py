"""Spike-and-slab layers against quadrature, autodiff, textbook algorithms and the sum over all supports."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayeslista.datasets import make_sparse_codes
from bayeslista.spike_slab import ep
from bayeslista.spike_slab import network as spike_slab_network
from bayeslista.spike_slab.denoiser import denoise, prior_moments, slab_prior
from bayeslista.spike_slab.ep import ep_layers
from bayeslista.spike_slab.model import LayerScalars, make_problem, start
from bayeslista.spike_slab.network import (
    early_layers,
    last_layers,
    posterior_variance_ratio,
    refinement_layers,
    run_layers,
    run_network,
)
from bayeslista.spike_slab.starts import default_scalars
from bayeslista.spike_slab.vamp import vamp_layers

K, D = 6, 9
MIXTURE = {"weight": [0.7, 0.3], "slab_mean": [0.5, -2.0], "slab_var": [1.0, 0.25]}
PLAIN = LayerScalars(*(np.float64(value) for value in (0.0, 0.0, np.inf, 0.0, 0.0, 0.0, 0.0)))


@jax.jit
def vamp_layer(problem, Y, state, scalars):
    return vamp_layers(problem, Y, state, jax.tree.map(lambda part: jnp.asarray(part)[None], scalars))


@jax.jit
def ep_layer(problem, Y, state, scalars):
    return ep_layers(problem, Y, state, jax.tree.map(lambda part: jnp.asarray(part)[None], scalars))


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def _problem(seed=0, noise_var=0.1, n_observed=K, prob_active=0.3, design_covariance=None):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_observed, D)) * rng.uniform(0.5, 2, D)
    prior = slab_prior(prob_active, **MIXTURE, n_components=D)
    Y = rng.standard_normal((4, n_observed)) * 2
    return make_problem(X, noise_var, prior, design_covariance), Y


@pytest.mark.parametrize(
    ("r", "t", "p"), [(0.3, 0.5, 0.2), (-4.0, 0.1, 0.01), (6.0, 2.0, 0.9), (0.0, 1e-3, 0.5), (40.0, 0.01, 1e-9)]
)
def test_denoiser_equals_quadrature(r, t, p):
    mpmath.mp.dps = 40

    def density(x, mean, var):
        return mpmath.exp(-((x - mean) ** 2) / (2 * var)) / mpmath.sqrt(2 * mpmath.pi * var)

    parts = list(zip(*(MIXTURE[name] for name in ("weight", "slab_mean", "slab_var")), strict=True))
    peaks = sorted({(r * s + m * t) / (s + t) for _, m, s in parts} | {-60.0, 60.0})
    width = mpmath.sqrt(t)
    edges = sorted({e for peak in peaks for e in (peak - 8 * width, peak, peak + 8 * width)})

    def joint(x):
        return sum(w * density(x, m, s) for w, m, s in parts) * density(r, x, t)

    peak = max(map(joint, peaks))

    def moment(k):
        return peak * mpmath.quad(lambda x: x**k * joint(x) / peak, edges)

    z, first, second = moment(0), moment(1), moment(2)
    log_odds = mpmath.log(mpmath.mpf(p) / (1 - mpmath.mpf(p)) * z / density(0, r, t))
    prior = slab_prior(p, **MIXTURE, n_components=1)
    posterior = denoise(np.array([[r]]), np.array([[t]]), prior)
    np.testing.assert_allclose(posterior.log_odds[0, 0], float(log_odds), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(posterior.slab_mean[0, 0], float(first / z), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(posterior.slab_var[0, 0], float(second / z - (first / z) ** 2), rtol=1e-6)


def test_variance_over_cavity_variance_is_the_derivative_of_the_mean():
    prior = slab_prior(0.2, **MIXTURE, n_components=5)
    r, t = np.linspace(-3, 3, 5)[None], np.geomspace(0.01, 5, 5)[None]

    def moments(r):
        posterior = denoise(r, t, prior)
        q = jax.nn.sigmoid(posterior.log_odds)
        return q * posterior.slab_mean, q * (posterior.slab_var + (1 - q) * posterior.slab_mean**2)

    slope = jax.jvp(jax.jit(lambda r: moments(r)[0]), (r,), (np.ones_like(r),))[1]
    np.testing.assert_allclose(moments(r)[1] / t, slope, rtol=1e-9)


def test_tempering_and_offset_act_on_the_log_odds_and_widening_on_the_slab():
    prior = slab_prior(0.2, 0.0, 1.0, n_components=1)
    r, t = np.array([[1.0]]), np.array([[0.5]])
    exact, other = denoise(r, t, prior), denoise(r, t, prior, 0.5, 0.3, 4.0)
    np.testing.assert_allclose(other.log_odds, 0.5 * (exact.log_odds + 0.3))
    for part, expected in zip(other[1:], denoise(r, 4.0 * t, prior)[1:], strict=True):
        np.testing.assert_allclose(part, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    r=st.floats(-1e10, 1e10),
    log_t=st.floats(-25, 25),
    p=st.sampled_from([0.0, 1e-12, 0.2, 1.0]),
    log_s=st.floats(-30, 12),
)
@settings(max_examples=60)
def test_denoiser_is_finite_and_within_range_everywhere(dtype, r, log_t, p, log_s):
    with jax.enable_x64(dtype == np.float64):
        prior = slab_prior(p, 0.0, np.exp(log_s), n_components=1, dtype=dtype)
        posterior = denoise(np.full((1, 1), r, dtype), np.full((1, 1), np.exp(log_t), dtype), prior)
        assert posterior.log_odds.dtype == dtype
        assert all(np.isfinite(part).all() for part in posterior)
        assert 0 <= float(posterior.slab_var[0, 0]) <= 1.001 * min(np.exp(log_t), np.exp(log_s)) + 1e-30


def _denoised_moments(r, t, prior):
    posterior = denoise(r[None], t[None], prior)
    q = 1 / (1 + np.exp(-np.asarray(posterior.log_odds[0])))
    m, v = np.asarray(posterior.slab_mean[0]), np.asarray(posterior.slab_var[0])
    return q * m, q * (v + (1 - q) * m**2)


def test_vector_layers_are_textbook_vector_amp():
    problem, Y = _problem()
    unit = np.asarray(problem.column_unit)
    A, noise = np.asarray(problem.design_matrix) * unit, float(problem.noise_var)
    mean, var = (np.asarray(part) for part in prior_moments(problem.prior))
    state = start(problem, Y)
    for _ in range(3):
        state = vamp_layer(problem, Y, state, PLAIN)
    for i, y in enumerate(np.asarray(Y)):
        r, precision = mean / unit, 1 / np.mean(var / unit**2)
        for _ in range(3):
            covariance = np.linalg.inv(A.T @ A / noise + precision * np.eye(D))
            estimate = covariance @ (A.T @ y / noise + precision * r)
            eta = 1 / np.mean(np.diag(covariance))
            onward = eta - precision
            cavity = (eta * estimate - precision * r) / onward
            x, V = _denoised_moments(cavity * unit, unit**2 / onward, problem.prior)
            eta = 1 / np.mean(V / unit**2)
            precision = max(eta - onward, 1e-3 / np.mean(var / unit**2))
            r = ((onward + precision) * x / unit - onward * cavity) / precision
        np.testing.assert_allclose(state.mean[i], x, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(state.site_precision[i], precision / unit**2, rtol=1e-7)
        np.testing.assert_allclose(state.site_shift[i], precision * r / unit, rtol=1e-6, atol=1e-8)


def test_propagation_layers_are_parallel_expectation_propagation():
    problem, Y = _problem()
    X, noise = np.asarray(problem.design_matrix), float(problem.noise_var)
    mean, var = (np.asarray(part) for part in prior_moments(problem.prior))
    state, share = start(problem, Y), 0.7
    scalars = PLAIN._replace(damping=np.log(share / (1 - share)))
    for _ in range(4):
        state = ep_layer(problem, Y, state, scalars)
    for i, y in enumerate(np.asarray(Y)):
        a, h = 1 / var, mean / var
        for _ in range(4):
            covariance = np.linalg.inv(X.T @ X / noise + np.diag(a))
            posterior = covariance @ (X.T @ y / noise + h)
            marginal = np.diag(covariance)
            t = 1 / (1 / marginal - a)
            r = t * (posterior / marginal - h)
            x, V = _denoised_moments(r, t, problem.prior)
            new = np.maximum(1 / V - 1 / t, 1e-3 / var)
            a, h = share * new + (1 - share) * a, share * (x * (new + 1 / t) - r / t) + (1 - share) * h
        np.testing.assert_allclose(state.mean[i], x, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(state.cavity_var[i], t, rtol=1e-6)
        np.testing.assert_allclose(state.site_precision[i], a, rtol=1e-5)


def test_hand_derived_gradient_equals_differences():
    problem, Y = _problem()
    problem = problem._replace(float32_copy=None)
    stacked = default_scalars(0, 2).ep_layers

    @jax.jit
    def loss(by):
        scalars = stacked._replace(
            log_noise=stacked.log_noise + by[0], log_inverse_temperature=stacked.log_inverse_temperature + by[1]
        )
        state = run_layers(problem, Y, default_scalars(0, 0)._replace(ep_layers=scalars))
        return (state.mean**2 + state.var * state.cavity_var).sum()

    point, gradient = np.array([0.1, -0.2]), jax.jit(jax.grad(loss))(np.array([0.1, -0.2]))
    steps = 1e-5 * np.eye(2)
    differences = [(loss(point + step) - loss(point - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(gradient, differences, rtol=1e-6)


def _by_enumeration(X, y, p, slab_var, noise_var):
    """Posterior mean and activity by the sum over all supports."""
    n = X.shape[1]
    weights, means, active = [], [], []
    for support in itertools.product([False, True], repeat=n):
        on = np.array(support)
        C = slab_var * X[:, on] @ X[:, on].T + noise_var * np.eye(len(y))
        solved = np.linalg.solve(C, y)
        weights.append(on.sum() * np.log(p / (1 - p)) - 0.5 * (y @ solved + np.linalg.slogdet(C)[1]))
        means.append(np.where(on, slab_var * X.T @ solved, 0.0))
        active.append(on)
    weight = np.exp(np.array(weights) - np.max(weights))
    weight /= weight.sum()
    return weight @ np.array(means), weight @ np.array(active)


@pytest.mark.parametrize(("n_vector", "n_propagation", "tolerance"), [(12, 0, 1.15), (4, 6, 1.10)])
def test_network_is_near_the_exact_posterior_of_small_problems(n_vector, n_propagation, tolerance):
    data = make_sparse_codes(1, 150, 6, 8, slab_gap=0.0, noise_std=0.4, random_state=3)
    prior = slab_prior(0.2, 0.0, 1.0, n_components=8)
    problem = make_problem(data.design_matrix, 0.16, prior)
    posterior = run_network(problem, data.Y_test, default_scalars(n_vector, n_propagation))
    prob_active = np.asarray(jax.nn.sigmoid(posterior.log_odds))
    exact = [_by_enumeration(data.design_matrix, y, 0.2, 1.0, 0.16) for y in data.Y_test]
    mean, active = (np.array(part) for part in zip(*exact, strict=True))
    error = np.mean((prob_active * np.asarray(posterior.slab_mean) - data.B_test) ** 2)
    assert error < tolerance * np.mean((mean - data.B_test) ** 2)
    assert np.mean(np.abs(prob_active - active)) < 0.05


@pytest.mark.parametrize(("n_vector", "n_propagation"), [(12, 0), (6, 6)])
def test_single_precision_serves_all_but_the_last_layers(n_vector, n_propagation):
    with jax.enable_x64(True):
        problem, Y = _problem()
        scalars = default_scalars(n_vector, n_propagation)
        mixed, double = (run_network(each, Y, scalars) for each in (problem, problem._replace(float32_copy=None)))
        assert mixed.log_odds.dtype == np.float64
        np.testing.assert_allclose(mixed.log_odds, double.log_odds, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(mixed.slab_mean, double.slab_mean, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(mixed.slab_var, double.slab_var, rtol=1e-3)


def test_the_products_of_rows_change_nothing_but_the_time(monkeypatch):
    problem, Y = _problem()
    scalars = default_scalars(0, 2).ep_layers
    states = [ep_layers(problem, Y, start(problem, Y), scalars)]
    monkeypatch.setattr(ep, "BUDGET", dataclasses.replace(ep.BUDGET, most_products=0))
    states.append(ep_layers(problem, Y, start(problem, Y), scalars))
    for one, other in zip(*states, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_further_layers_help_the_signals_in_doubt():
    data = make_sparse_codes(1, 600, 25, 50, random_state=2)
    prior = slab_prior(0.2, [-0.8, 0.8], 0.4, [0.5, 0.5], n_components=50)
    problem, scalars = make_problem(data.design_matrix, 0.25, prior), default_scalars(4, 5)
    early = early_layers(problem, data.Y_test, scalars)
    assert early.mean.dtype == np.float32
    further = refinement_layers(problem, data.Y_test, early, scalars)
    ends = [last_layers(problem, data.Y_test, state, scalars) for state in (early, further)]
    assert all(end.mean.dtype == np.float64 for end in ends)
    refined = np.asarray(
        posterior_variance_ratio(problem, early) > np.quantile(posterior_variance_ratio(problem, early), 0.7)
    )
    errors = [np.sum((np.asarray(end.mean) - data.B_test)[refined] ** 2, axis=1) for end in ends]
    saved = errors[0] - errors[1]
    assert saved.mean() > 2 * saved.std() / np.sqrt(len(saved))


def test_single_precision_is_not_asked_to_tell_small_noise():
    prior = slab_prior(0.3, 0.0, 1.0, n_components=D)
    X, signal = np.ones((2, D)), 0.3 * D
    assert make_problem(X, 0.002 * signal, prior).float32_copy is not None
    assert make_problem(X, 0.0005 * signal, prior).float32_copy is None


@pytest.mark.parametrize(("n_vector", "n_propagation"), [(5, 0), (2, 3)])
@given(
    log_code=st.floats(-5, 5),
    log_observation=st.floats(-5, 5),
    signs=st.lists(st.sampled_from([-1.0, 1.0]), min_size=D, max_size=D),
    order=st.permutations(range(D)),
)
@settings(max_examples=10)
def test_answers_follow_units_signs_and_order(n_vector, n_propagation, log_code, log_observation, signs, order):
    with jax.enable_x64(True):
        problem, Y = _problem()
        scalars = default_scalars(n_vector, n_propagation)
        code, observation, flip, order = np.exp(log_code), np.exp(log_observation), np.array(signs), np.array(order)
        prior = slab_prior(0.3, 0.0, 1.0, n_components=D)
        other = slab_prior(0.3, 0.0, code**2, n_components=D)
        X = problem.design_matrix
        plain = make_problem(X, 0.1, prior)._replace(float32_copy=None)
        changed = make_problem((X * flip * observation / code)[:, order], 0.1 * observation**2, other)
        changed = changed._replace(float32_copy=None)
        one, two = run_network(plain, Y, scalars), run_network(changed, Y * observation, scalars)
        np.testing.assert_allclose(two.log_odds, one.log_odds[:, order], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(two.slab_mean, code * (one.slab_mean * flip)[:, order], rtol=1e-6, atol=code * 1e-6)
        np.testing.assert_allclose(two.slab_var, code**2 * one.slab_var[:, order], rtol=1e-6)


AWKWARD = {
    "noise of next to nothing": lambda X: X,
    "repeated columns": lambda X: X[:, [0, 0, 0, 1, 1, 2, 3, 4, 5]],
    "zero columns": lambda X: X * np.array([0, 1, 1, 0, 1, 1, 1, 1, 0]),
    "nothing but zeros": lambda X: 0 * X,
    "norms over eight decades": lambda X: X * np.logspace(-4, 4, D),
    "columns all but parallel": lambda X: X[:, :1] + 1e-6 * X,
    "more observations than coefficients": lambda X: np.concatenate([X, X[::-1] + 1, X * X]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", AWKWARD)
def test_no_matrix_and_no_noise_gives_nan(name, dtype):
    rng = np.random.default_rng(5)
    X = AWKWARD[name](rng.standard_normal((K, D)))
    B = rng.standard_normal((16, D)) * (rng.random((16, D)) < 0.3)
    with jax.enable_x64(dtype == np.float64):
        scalars = default_scalars(6, 6, dtype)
        prior = slab_prior(0.3, 0.0, 1.0, n_components=D, dtype=dtype)
        for noise_var in (1e-30, 0.01):
            posterior = run_network(make_problem(X, noise_var, prior), (B @ X.T).astype(dtype), scalars)
            assert all(np.isfinite(part).all() for part in posterior)
            assert np.abs(posterior.slab_mean).max() < 1e3


def test_spread_of_a_learned_matrix_widens_the_answer():
    problem, Y = _problem()
    wide = problem._replace(design_covariance=0.5 * np.eye(D))
    scalars = default_scalars(3, 3)
    sure, unsure = (run_network(one, Y, scalars) for one in (problem, wide))
    assert np.mean(unsure.slab_var) > 1.1 * np.mean(sure.slab_var)


def test_signals_on_which_layers_diverge_begin_again():
    problem, Y = _problem()
    begin = start(problem, Y)
    lost = begin._replace(mean=begin.mean.at[0].set(1e6).at[1].set(np.nan).at[2].set(0.1))
    kept = spike_slab_network._unless_diverged(problem, Y, lost, begin)
    rows = np.array([0, 1, 3])
    np.testing.assert_array_equal(kept.mean[rows], begin.mean[rows])
    assert np.isfinite(kept.mean).all()


def test_layers_of_each_kind_are_optional():
    problem, Y = _problem()
    np.testing.assert_allclose(run_layers(problem, Y, default_scalars(0, 0)).mean, start(problem, Y).mean, rtol=1e-6)
