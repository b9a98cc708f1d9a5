"""The choice of the prior: exchangeable codes cost nothing, dependent ones get the prior that suits them."""

import numpy as np
import pytest

from bayeslista import SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import crps, nmse, pit_coverage
from bayeslista.spike_slab import prior_choice
from bayeslista.spike_slab.prior_choice import World, choose_prior, is_exchangeable


def exchangeable(seed, n=200, D=40):
    return make_sparse_codes(n, 0, 20, D, random_state=seed).B_train


def images(random, n, D=40):
    """Smooth and sparse: neighbours go together."""
    shape = np.exp(-0.5 * (np.subtract.outer(np.arange(D), np.arange(D)) / 4.0) ** 2) + 1e-6 * np.eye(D)
    return np.maximum(random.standard_normal((n, D)) @ np.linalg.cholesky(shape).T, 0.0)


def bursts(random, n, D=24):
    """No zeros: scales over a decade, and codes of different sizes."""
    return np.exp(random.standard_normal((n, 1))) * np.geomspace(3, 0.1, D) * random.standard_normal((n, D))


@pytest.mark.parametrize("n", [30, 200])
def test_codes_that_are_exchangeable_look_so(n):
    assert sum(is_exchangeable(exchangeable(seed, n)) for seed in range(20)) >= 19


@pytest.mark.parametrize("make", [images, bursts])
def test_codes_that_are_not_do_not(make):
    assert not any(is_exchangeable(make(np.random.default_rng(seed), 30)) for seed in range(5))


def test_exchangeable_codes_fit_nothing_else(monkeypatch):
    monkeypatch.setattr(prior_choice, "_FITS", {})
    B = exchangeable(0)
    world = World(np.ones((3, 40)), 1.0)
    choice = choose_prior(B[:, :3], B, "auto", None, None, world, np.float64)
    assert choice == ("independent", {}, None)


@pytest.mark.parametrize(("make", "name", "noise"), [(images, "correlated", 0.05), (bursts, "mixture", 0.05)])
def test_the_prior_that_suits_the_codes_is_chosen_and_answers(make, name, noise):
    random = np.random.default_rng(0)
    B = make(random, 320)
    X = random.standard_normal((12, B.shape[1]))
    Y = B @ X.T + noise * random.standard_normal((320, 12))
    models = {
        prior: SpikeSlabNet(8, mode="fast", training="none", prior=prior, design_matrix=X, random_state=0)
        for prior in ("auto", "independent")
    }
    errors = {prior: nmse(B[120:], model.fit(Y[:120], B[:120]).predict(Y[120:])) for prior, model in models.items()}
    assert models["auto"].prior_ == name
    assert models["independent"].prior_ == "independent"
    assert errors["auto"] < 0.9 * errors["independent"]
    scores = {key: value for key, value in models["auto"].diagnostics_.items() if key.startswith("error_")}
    assert min(scores, key=scores.get) == f"error_{name}"
    dist = models["auto"].predict_dist(Y[120:])
    assert 0.84 < pit_coverage(dist, B[120:], 0.9, 0) < 0.96
    assert (dist.slab_parts is not None) == (name == "mixture")
    assert np.mean(crps(dist, B[120:])) < np.mean(np.abs(dist.mean() - B[120:]))
    checks = models["auto"].predictive_check(Y[120:])
    assert set(checks.engine) == {name}


def test_joint_draws_of_the_mixture_have_its_moments():
    random = np.random.default_rng(1)
    B = bursts(random, 100)
    X = random.standard_normal((6, 24))
    model = SpikeSlabNet(prior="mixture", design_matrix=X, random_state=0).fit(B @ X.T, B)
    mean, std = model.predict(B[:3] @ X.T, return_std=True)
    draws = model.sample(B[:3] @ X.T, n_draws=4000)
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 6 * std / np.sqrt(4000))
    np.testing.assert_allclose(draws.std(axis=0), std, rtol=0.2)


def test_a_prior_that_fails_on_a_fold_is_not_chosen(monkeypatch):
    def fails(*_):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setitem(prior_choice._FITS, "correlated", fails)
    B = images(np.random.default_rng(0), 60)
    world = World(np.eye(40), 1.0)
    choice = choose_prior(B, B, "auto", lambda *_: world, lambda Y, B, test: test, world, np.float64)
    assert choice.name == "independent"
    assert choice.scores["correlated"] == np.inf


def test_a_stated_prior_is_kept():
    B = images(np.random.default_rng(0), 60)
    given = SpikeSlabNet(8, mode="fast", training="none", prob_active=0.5, design_matrix=np.eye(40)).fit(B, B)
    assert given.prior_ == "independent"


def test_priors_of_dependent_codes_need_codes():
    with pytest.raises(ValueError, match="prior='correlated' is learned from codes: pass y"):
        SpikeSlabNet(prior="correlated", design_matrix=np.eye(3)).fit(np.ones((5, 3)))


def test_large_signals_scale_the_answer():
    random = np.random.default_rng(2)
    B = images(random, 80)
    X = random.standard_normal((12, 40))
    model = SpikeSlabNet(prior="correlated", design_matrix=X, random_state=0).fit(B @ X.T, B)
    large = 1e6 * (B[:2] @ X.T)
    np.testing.assert_allclose(model.predict(10 * large), 10 * model.predict(large), rtol=1e-4)


@pytest.mark.parametrize("mode", ["exact", "accurate"])
def test_coefficients_that_differ_get_priors_of_their_own(mode):
    random = np.random.default_rng(0)
    K, D = 15, 30
    prob, deviation = np.geomspace(0.03, 0.6, D), random.permutation(np.geomspace(0.1, 3, D))
    B = deviation * random.standard_normal((400, D)) * (random.random((400, D)) < prob)
    X = random.standard_normal((K, D))
    Y = B @ X.T + 0.3 * random.standard_normal((400, K))
    settings = {"mode": mode, "training": "none", "prior": "independent", "design_matrix": X, "random_state": 0}
    errors = []
    for given in ({}, {"prob_active": prob.mean()}, {"prob_active": prob, "slab_var": deviation**2}):
        model = SpikeSlabNet(20, **settings, **given).fit(Y[:300], B[:300])
        errors.append(np.mean((model.predict(Y[300:]) - B[300:]) ** 2))
        if not given:
            assert np.corrcoef(np.log(model.prob_active_), np.log(prob))[0, 1] > 0.9
            assert 0.85 < pit_coverage(model.predict_dist(Y[300:]), B[300:], 0.9, 0) < 0.94
    learned, common, true = errors
    assert learned < 1.15 * true
    assert learned < 0.95 * common


def test_exchangeable_coefficients_share_their_prior():
    data = make_sparse_codes(200, 0, 20, 40, random_state=0)
    model = SpikeSlabNet(design_matrix=data.design_matrix, random_state=0).fit(data.Y_train, data.B_train)
    assert isinstance(model.prob_active_, float)
    assert model.slab_mean_.ndim == 1
