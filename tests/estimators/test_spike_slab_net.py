"""SpikeSlabNet as an estimator: what it learns from how little, its distributions, streams, scales and awkward data."""

import pickle
import warnings
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayeslista import ISTA, NumericalWarning, SpikeSlab, SpikeSlabNet, load
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse
from bayeslista.spike_slab import calibration as simulation
from bayeslista.spike_slab import fitting as _spike_slab
from bayeslista.spike_slab.network import early_layers, posterior_variance_ratio

K, D, N = 15, 20, 200


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(N, 256, K, D, random_state=0)


def fast(**parameters):
    """Layers of vector AMP with the scalars they start with: what compiles soonest."""
    return SpikeSlabNet(**{"n_layers": 8, "mode": "fast", "training": "none", "random_state": 0} | parameters)


@pytest.fixture(scope="module")
def given(data):
    return fast(design_matrix=data.design_matrix, prob_active=0.2, slab_var=1.16, noise_std=0.5)


@pytest.fixture(scope="module")
def model(data):
    return fast(design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)


# Every check fits data of another shape, which is compiled anew: two layers of one kind are enough to conform.
@pytest.mark.no_cover
@parametrize_with_checks([fast(n_layers=2, random_state=None)])
def test_scikit_learn_conformance(estimator, check):
    check(estimator)


def test_a_bayesian_solver_needs_no_fit_and_does_not_change(data, given):
    mean, std = given.predict(data.Y_test, return_std=True)
    distribution = given.predict_dist(data.Y_test)
    assert isinstance(distribution, SpikeSlab)
    np.testing.assert_array_equal(mean, distribution.mean())
    np.testing.assert_array_equal(std, distribution.std())
    np.testing.assert_array_equal(given.transform(data.Y_test), mean)
    assert not hasattr(given, "design_matrix_")
    ista = ISTA(8, design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    assert nmse(data.B_test, mean) < 0.8 * nmse(data.B_test, ista.predict(data.Y_test))


def test_what_is_given_is_set_up_once_and_follows_its_parameters(data, given):
    given, fitted = clone(given), clone(given).fit()
    expected = given.predict(data.Y_test)
    np.testing.assert_array_equal(fitted.predict(data.Y_test), expected)
    assert fitted.n_features_in_ == K
    with mock.patch.object(SpikeSlabNet, "_assumed", side_effect=AssertionError("set up again")):
        np.testing.assert_array_equal(given.predict(data.Y_test), expected)
        np.testing.assert_array_equal(given.predict_dist(data.Y_test).mean(), expected)
    other = given.set_params(noise_std=2.0 * given.noise_std).predict(data.Y_test)
    np.testing.assert_array_equal(other, clone(given).predict(data.Y_test))
    assert not np.array_equal(other, expected)


def test_fit_without_data_takes_everything_given(data):
    with pytest.raises(ValueError, match="requires y"):
        fast().fit()
    with pytest.raises(ValueError, match="X"):
        fast(design_matrix=data.design_matrix, prob_active=0.2).fit()


def test_without_fit_or_prior_there_is_no_prediction(data):
    with pytest.raises(NotFittedError, match=r"Call 'fit', or, .* give slab_var, noise_std\.$"):
        fast(design_matrix=data.design_matrix, prob_active=0.2).predict(data.Y_test)


@pytest.mark.parametrize(("columns", "remedy"), [(D, "its transpose"), (K - 1, "observations of that size")])
def test_a_matrix_that_does_not_fit_the_observations_alone_is_named(columns, remedy):
    message = rf"design_matrix has shape \({K}, {D}\) and X has {columns} features.*; pass {remedy}\.$"
    with pytest.raises(ValueError, match=message):
        fast(design_matrix=np.ones((K, D))).fit(np.ones((4, columns)))


def test_pairs_teach_sparsity_slab_and_noise(data, model, given):
    assert model.prob_active_ == pytest.approx(0.2, abs=0.03)
    assert model.noise_std_ == pytest.approx(0.5, rel=0.05)
    assert model.slab_weight_ @ (model.slab_var_ + model.slab_mean_**2) == pytest.approx(1.16, rel=0.15)
    assert model.prior_ == "independent"
    error = nmse(data.B_test, model.predict(data.Y_test))
    assert error < 1.03 * nmse(data.B_test, given.predict(data.Y_test))


def test_twenty_pairs_are_enough_with_a_known_matrix(data, given):
    model = fast(design_matrix=data.design_matrix).fit(data.Y_train[:20], data.B_train[:20])
    assert nmse(data.B_test, model.predict(data.Y_test)) < 1.05 * nmse(data.B_test, given.predict(data.Y_test))


def test_observations_alone_teach_sparsity_slab_and_noise(data, given):
    model = fast(design_matrix=data.design_matrix).fit(data.Y_train)
    assert model.prob_active_ == pytest.approx(0.2, abs=0.08)
    assert model.noise_std_ == pytest.approx(0.5, rel=0.2)
    assert nmse(data.B_test, model.predict(data.Y_test)) < 1.05 * nmse(data.B_test, given.predict(data.Y_test))


def test_what_is_given_is_held(data):
    parameters = {"prob_active": 0.3, "slab_var": 2.0, "noise_std": 0.7}
    for codes in (data.B_train, None):
        model = fast(design_matrix=data.design_matrix, **parameters).fit(data.Y_train, codes)
        assert model.prob_active_ == pytest.approx(0.3)
        assert model.slab_var_ == pytest.approx(np.array([2.0]))
        assert model.noise_std_ == pytest.approx(0.7)


def test_observations_alone_without_a_matrix_are_refused(data):
    with pytest.raises(ValueError, match=r"requires y to be passed, but the target y is None; .* give design_matrix"):
        fast().fit(data.Y_train)


def test_a_learned_matrix_widens_the_answer_where_pairs_are_few(data, model):
    few = fast().fit(data.Y_train[:30], data.B_train[:30])
    assert (few.design_matrix_std_ > 0).all()
    assert (model.design_matrix_std_ == 0).all()
    distribution = few.predict_dist(data.Y_test)
    ratio = distribution.var().mean() / np.mean((distribution.mean() - data.B_test) ** 2)
    assert 0.6 < ratio < 1.7
    assert nmse(data.B_test, distribution.mean()) < 0.95


def test_a_stream_gives_the_same_model_however_it_is_cut(data):
    whole, cut = fast().fit(data.Y_train, data.B_train), fast()
    for part in (slice(0, 1), slice(1, 90), slice(90, N)):
        cut.partial_fit(data.Y_train[part], data.B_train[part])
    np.testing.assert_allclose(cut.predict(data.Y_test), whole.predict(data.Y_test), rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_calibration_by_simulation_does_no_harm_and_is_reproducible():
    data = make_sparse_codes(100, 256, 8, 16, random_state=1)
    constants = fast(design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    trained = clone(constants).set_params(training=20).fit(data.Y_train, data.B_train)
    again = clone(trained).fit(data.Y_train, data.B_train)
    assert len(trained.history_["objective"]) == 20
    assert trained.diagnostics_["skipped"] == 0
    np.testing.assert_array_equal(trained.predict(data.Y_test), again.predict(data.Y_test))
    scores = [model.predict_dist(data.Y_test).log_prob(data.B_test).mean() for model in (constants, trained)]
    assert scores[1] > scores[0] - 0.02


def test_auto_trains_large_matrices_less_and_what_is_asked_for_is_done(data, model):
    assert model._learner._affordable("auto") == (40, 64, 1024)
    problem = SimpleNamespace(design_matrix=np.broadcast_to(0.0, (1000, 2000)), float32_copy=None)
    large = SimpleNamespace(n_ep_layers=6, n_layers=20, problem=problem)
    affordable = _spike_slab.SpikeSlabLearner._affordable
    assert affordable(large, "auto") == (0, 8, 128)
    assert affordable(large, "full") == (40, 64, 128)
    assert affordable(large, 7) == (7, 64, 128)


def smooth(n_train=N, n_test=256):
    """Columns that are shifts of a wide bump."""
    shifts = np.arange(D)[None, :] * (K - 1) / (D - 1) - np.arange(K)[:, None]
    X = np.exp(-0.5 * (shifts / 1.5) ** 2)
    return make_sparse_codes(n_train, n_test, K, D, design_matrix=X, prob_active=0.1, noise_std=0.05, random_state=0)


def test_fast_mode_has_ep_layers_where_vamp_layers_fail_their_own_model(data, model):
    assert model.diagnostics_["ep_layers"] == 0
    blurred = smooth()
    suited = fast(design_matrix=blurred.design_matrix, n_layers=20).fit(blurred.Y_train, blurred.B_train)
    assert suited.diagnostics_["ep_layers"] == 5
    with mock.patch.object(_spike_slab.SpikeSlabLearner, "_fails", return_value=False):
        vamp = clone(suited).fit(blurred.Y_train, blurred.B_train)
    assert vamp.diagnostics_["ep_layers"] == 0
    B = blurred.B_test[blurred.B_test.any(axis=1)]
    Y = blurred.Y_test[blurred.B_test.any(axis=1)]
    assert nmse(B, suited.predict(Y)) < 0.8 * nmse(B, vamp.predict(Y))


def test_fit_warns_once_where_the_layers_are_far_from_their_own_model():
    blurred = smooth()
    model = fast(design_matrix=blurred.design_matrix, n_layers=1)
    with pytest.warns(NumericalWarning, match="far from the posterior of their own model") as caught:
        model.fit(blurred.Y_train, blurred.B_train)
    assert len([each for each in caught if "far from" in str(each.message)]) == 1
    assert model.diagnostics_["failed"] > 0.1 or not 0.5 < model.diagnostics_["variance_ratio"] < 2


@pytest.mark.parametrize("training", ["none", 0, 3])
def test_diagnostics_say_what_was_done(data, training):
    model = fast(design_matrix=data.design_matrix, training=training).fit(data.Y_train, data.B_train)
    n_steps, n_pairs = (0, 0) if training == "none" else (training, 1024)
    found = model.diagnostics_
    assert (found["steps"], found["skipped"], found["pairs"]) == (n_steps, 0, n_pairs)
    assert len(model.history_["objective"]) == n_steps
    assert 0.5 < found["variance_ratio"] < 2
    assert 0 <= found["failed"] < 0.1


def test_an_interrupt_of_training_leaves_the_estimator_unfitted(data, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_spike_slab, "training_step", interrupted)
    model = fast(design_matrix=data.design_matrix, training=5)
    with pytest.raises(KeyboardInterrupt):
        model.fit(data.Y_train, data.B_train)
    with pytest.raises(NotFittedError):
        model.predict(data.Y_test)


@pytest.mark.parametrize("alone", [False, True])
def test_progress_names_stages_and_signals(data, capsys, alone):
    model = fast(design_matrix=data.design_matrix, training=2, verbose=1)
    model.fit(data.Y_train, None if alone else data.B_train)
    shown = capsys.readouterr().err
    for stage in ("hyperparameters" if alone else "model", "simulation", "training", "head"):
        assert f"SpikeSlabNet, {stage}: 100%" in shown
    assert "step/s" in shown
    model.predict(data.Y_test)
    shown = capsys.readouterr().err
    assert "256/256" in shown
    assert "signal/s" in shown
    model.set_params(verbose=0).fit(data.Y_train, data.B_train).predict(data.Y_test)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_calibration_does_not_give_up_a_single_dense_coefficient():
    random = np.random.default_rng(0)
    X = random.standard_normal((200, 10))
    y = X[:, :3].sum(axis=1) + 0.1 * random.standard_normal(200)
    without, calibrated = (fast(n_layers=2, training=steps).fit(X, y).score(X, y) for steps in ("none", 60))
    assert calibrated > without - 0.05


@pytest.mark.slow
def test_a_signal_in_doubt_is_so_whatever_its_company(data):
    model = fast(mode="accurate", design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    share = np.mean(_doubts(model, data.Y_test) > model._learner.largest_variance_ratio)
    assert share == pytest.approx(0.35, abs=0.12)  # four standard errors of 256 signals
    together = model.predict(data.Y_test)
    apart = np.concatenate([model.predict(rows) for rows in np.array_split(data.Y_test, 16)])
    # Single precision differs by 0.003 at most; other signals with further layers would by 0.06 to 0.25.
    np.testing.assert_allclose(apart, together, rtol=0, atol=0.01)


def _doubts(model, Y):
    learner = model._learner
    with jax.enable_x64(True):
        early = early_layers(learner.problem, Y / learner.units.observation, learner.scalars)
        return np.asarray(posterior_variance_ratio(learner.problem, early))


@pytest.mark.slow
def test_steps_without_a_gradient_are_warned_of(data, monkeypatch):
    def none_usable(state, *rest):
        return state, simulation.TrainingInfo(np.zeros(()), np.zeros((), bool))

    monkeypatch.setattr(_spike_slab, "training_step", none_usable)
    with pytest.warns(NumericalWarning, match="4 of 4 steps of training"):
        fast(design_matrix=data.design_matrix, training=4).fit(data.Y_train, data.B_train)


@pytest.mark.parametrize("mode", ["fast", "accurate"])
def test_it_is_calibrated_on_the_problem_of_the_paper(mode):
    data = make_sparse_codes(100, 512, 25, 50, random_state=1)
    model = fast(mode=mode, n_layers=20, design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    distribution = model.predict_dist(data.Y_test)
    uniform = np.random.default_rng(0).uniform(size=data.B_test.shape)
    pit = distribution.cdf(data.B_test) - np.where(data.B_test == 0, (1 - distribution.prob_active) * uniform, 0)
    assert np.mean(np.abs(pit - 0.5) < 0.45) == pytest.approx(0.9, abs=0.02)
    assert np.mean(np.abs(pit - 0.5) < 0.25) == pytest.approx(0.5, abs=0.03)
    ratio = distribution.var().mean() / np.mean((distribution.mean() - data.B_test) ** 2)
    assert 0.75 < ratio < 1.3  # few signals carry most of the error


def test_signals_a_hundred_times_larger_widen_the_answer(data, given):
    distribution = given.predict_dist(data.Y_test + 99 * data.B_test @ data.design_matrix.T)
    error = np.mean((distribution.mean() - 100 * data.B_test) ** 2)
    assert error < 0.2 * np.mean((100 * data.B_test) ** 2)
    assert distribution.var().mean() > 0.5 * error


AWKWARD = {
    "repeated columns": lambda X: X[:, np.arange(D) // 2],
    "zero columns": lambda X: X * (np.arange(D) % 3 > 0),
    "norms over six decades": lambda X: X * np.logspace(-3, 3, D),
    "all but parallel": lambda X: X[:, :1] + 1e-4 * X,
    "tiny": lambda X: 1e-6 * X,
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_matrices_never_diverge(name):
    X = AWKWARD[name](np.random.default_rng(0).standard_normal((K, D)))
    noise = 0.1 * np.sqrt(np.mean(X**2))
    data = make_sparse_codes(N, 256, K, D, design_matrix=X, noise_std=noise, random_state=0)
    for codes in (data.B_train, None):
        mean, std = fast(design_matrix=X).fit(data.Y_train, codes).predict(data.Y_test, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert nmse(data.B_test[data.B_test.any(axis=1)], mean[data.B_test.any(axis=1)]) < 1.05


def test_more_observations_than_coefficients():
    data = make_sparse_codes(N, 256, 40, 10, random_state=0)
    for codes in (data.B_train, None):
        model = fast(design_matrix=data.design_matrix).fit(data.Y_train, codes)
        assert model.noise_std_ == pytest.approx(0.5, rel=0.1)
        assert nmse(data.B_test[data.B_test.any(axis=1)], model.predict(data.Y_test)[data.B_test.any(axis=1)]) < 0.2


def test_codes_of_two_values_are_told_apart():
    data = make_sparse_codes(N, 256, K, D, random_state=0)
    signs, test = np.sign(data.B_train), np.sign(data.B_test)
    Y, Y_test = (data[f"Y_{part}"] + (new - data[f"B_{part}"]) @ data.design_matrix.T
                 for part, new in (("train", signs), ("test", test)))  # fmt: skip
    model = fast(design_matrix=data.design_matrix).fit(Y, signs)
    np.testing.assert_allclose(model.slab_mean_, [-1, 1], atol=1e-6)
    plain = fast(design_matrix=data.design_matrix, slab_var=1.0).fit(Y, signs)
    informative = test.any(axis=1)
    errors = [nmse(test[informative], each.predict(Y_test)[informative]) for each in (model, plain)]
    assert errors[0] < 0.8 * errors[1]


def test_codes_that_go_together_are_noticed():
    random = np.random.default_rng(0)
    patterns = random.standard_normal((3, D)) + 2.0
    X = random.standard_normal((5, D))

    def draw(n):
        codes = np.abs(random.standard_normal((n, 3))) @ patterns * (random.random((n, D)) < 0.9)
        return codes @ X.T + 0.01 * random.standard_normal((n, 5)), codes

    Y, B = draw(100)
    Y_test, B_test = draw(256)
    model = fast(design_matrix=X).fit(Y, B)
    assert model.prior_ == "correlated"
    distribution = model.predict_dist(Y_test)
    assert nmse(B_test, distribution.mean()) < 0.75
    assert 0.5 < distribution.var().mean() / np.mean((distribution.mean() - B_test) ** 2) < 2.0


def test_single_precision_stays_single(data, model):
    single = fast(design_matrix=data.design_matrix).fit(
        data.Y_train.astype(np.float32), data.B_train.astype(np.float32)
    )
    mean, std = single.predict(data.Y_test.astype(np.float32), return_std=True)
    assert mean.dtype == std.dtype == single.design_matrix_.dtype == np.float32
    np.testing.assert_allclose(mean, model.predict(data.Y_test), atol=2e-3)


def test_units_of_the_data_do_not_matter(data, model):
    scaled = fast(design_matrix=data.design_matrix * 1e3).fit(data.Y_train * 1e-3, data.B_train * 1e-6)
    np.testing.assert_allclose(scaled.predict(data.Y_test * 1e-3), 1e-6 * model.predict(data.Y_test), atol=1e-11)


def test_pickling_keeps_the_predictions(data, model):
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(data.Y_test), model.predict(data.Y_test))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mode": "slow"}, "'mode' parameter of SpikeSlabNet must be a str among"),
        ({"prob_active": 0.0}, "'prob_active' parameter of .* must be"),
        ({"prob_active": 1.0}, "'prob_active' parameter of .* must be"),
        ({"slab_var": -1.0}, "'slab_var' parameter of .* must be"),
        ({"noise_std": -0.1}, "'noise_std' parameter of .* must be"),
        ({"training": -1}, "'training' parameter of .* must be a str among .*'auto'"),
        ({"training": "half"}, "'training' parameter of .* must be a str among .*'none'"),
        ({"n_layers": 0}, "'n_layers' parameter of .* must be"),
    ],
)
def test_parameters_out_of_range_are_refused(data, parameters, message):
    with pytest.raises(ValueError, match=message):
        fast(**parameters).fit(data.Y_train, data.B_train)


def test_the_limit_is_reached_on_the_reference_data(shared):
    file = np.load(shared / "reference" / "limit_k50.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fast(n_layers=20, design_matrix=file["X"]).fit(file["Y_train"][:20], file["B_train"][:20])
    assert nmse(file["B_test"], model.predict(file["Y_test"])) < 0.24  # the exact posterior mean has 0.207


class TestExact:
    """The estimator in exact mode; the sampler itself is tested in tests/spike_slab/test_exact.py."""

    GIVEN: ClassVar = {"prob_active": 0.2, "slab_var": 1.0, "noise_std": 0.5, "random_state": 0}

    @pytest.fixture
    def data(self):
        return make_sparse_codes(200, 40, 15, 20, random_state=3)

    def test_it_is_better_than_untrained_layers_and_calibrated(self, data):
        exact = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, **self.GIVEN)
        fast = SpikeSlabNet(mode="fast", design_matrix=data.design_matrix, **self.GIVEN)
        assert nmse(data.B_test, exact.predict(data.Y_test)) < nmse(data.B_test, fast.predict(data.Y_test))
        dist = exact.predict_dist(data.Y_test)
        ratio = dist.var().mean() / np.mean((dist.mean() - data.B_test) ** 2)
        assert 0.7 < ratio < 1.4  # 800 coefficients, a fifth of them active

    def test_intervals_given_active_hold_active_coefficients_as_often_as_asked(self, data):
        model = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, **self.GIVEN)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            low, high = model.predict_interval(data.Y_train, 0.9, given_active=True)
        active = data.B_train != 0
        held = np.mean((low <= data.B_train)[active] & (data.B_train <= high)[active])
        assert abs(held - 0.9) < 5 * np.sqrt(0.09 / active.sum())  # about 800 of them

    @pytest.mark.parametrize("batch_size", [1, 7, None])
    def test_the_same_seed_gives_the_same_bits_in_any_batch_and_with_any_threads(self, data, batch_size):
        model = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, n_jobs=2, **self.GIVEN)
        expected = clone(model).set_params(n_jobs=None).predict(data.Y_test)
        assert np.array_equal(model.predict(data.Y_test, batch_size=batch_size), expected)

    def test_pairs_observations_alone_and_a_learned_matrix_come_close_to_what_is_given(self, data):
        given = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, **self.GIVEN).predict(data.Y_test)
        limit = nmse(data.B_test, given)
        paired = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, random_state=0)
        paired.fit(data.Y_train, data.B_train)
        assert nmse(data.B_test, paired.predict(data.Y_test)) < 1.05 * limit
        alone = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, random_state=0).fit(data.Y_train)
        assert nmse(data.B_test, alone.predict(data.Y_test)) < 1.15 * limit
        learned = SpikeSlabNet(mode="exact", random_state=0).fit(data.Y_train, data.B_train)
        assert nmse(data.B_test, learned.predict(data.Y_test)) < 1.6 * limit

    def test_a_stream_and_a_file_keep_it(self, data, tmp_path):
        model = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, random_state=0)
        model.partial_fit(data.Y_train[:100], data.B_train[:100]).partial_fit(data.Y_train[100:], data.B_train[100:])
        whole = clone(model).fit(data.Y_train, data.B_train)
        assert model.noise_std_ == pytest.approx(whole.noise_std_, rel=1e-9)
        whole.save(tmp_path / "model")
        assert np.array_equal(load(tmp_path / "model").predict(data.Y_test[:5]), whole.predict(data.Y_test[:5]))

    def test_arrays_of_one_number_are_that_number(self, data):
        K, D = data.design_matrix.shape
        one = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, **self.GIVEN)
        many = clone(one).set_params(
            prob_active=np.full(D, 0.2), slab_var=np.ones((2, D)), slab_weight=[0.5, 0.5], noise_std=np.full(K, 0.5)
        )
        a, b = one.predict(data.Y_test[:5]), many.predict(data.Y_test[:5])
        assert np.linalg.norm(a - b) < 0.1 * np.linalg.norm(a)  # other draws of the same posterior
        per_coefficient = clone(one).set_params(slab_var=np.ones(D))
        assert np.array_equal(per_coefficient.predict(data.Y_test[:5]), a)

    def test_joint_draws_agree_with_the_marginals_and_independent_ones_are_drawn_otherwise(self, data):
        model = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, **self.GIVEN)
        draws = model.sample(data.Y_test[:4], n_draws=400)
        assert draws.shape == (400, 4, 20)
        dist = model.predict_dist(data.Y_test[:4])
        assert np.abs((draws != 0).mean(axis=0) - dist.prob_active).mean() < 0.04
        assert clone(model).set_params(mode="fast").sample(data.Y_test[:4], n_draws=3).shape == (3, 4, 20)

    def test_diagnostics_are_of_every_signal_and_of_exact_mode_only(self, data):
        model = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, **self.GIVEN)
        found = model.exact_diagnostics(data.Y_test[:3])
        assert found["converged"].all()
        assert all(len(values) == 3 for values in found.values())
        with pytest.raises(ValueError, match="mode='fast'"):
            clone(model).set_params(mode="fast").exact_diagnostics(data.Y_test[:3])

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"mode": "fast", "prob_active": [0.2] * 19}, r"prob_active has shape \(19,\)"),
            ({"prob_active": [0.2] * 19 + [1.0]}, "prob_active"),
            ({"prob_active": [0.2] * 19}, r"prob_active has shape \(19,\)"),
            ({"noise_std": [0.5] * 14}, r"noise_std has shape \(14,\)"),
            ({"noise_std": [0.5] * 14 + [-1.0]}, "noise_std"),
            ({"slab_var": [1.0] * 19}, r"slab_var has shape \(19,\)"),
            ({"slab_var": [[1.0] * 20]}, "slab_weight"),
            ({"slab_var": [1.0, 2.0], "slab_weight": [1.0]}, "slab_weight"),
            ({"slab_weight": [1.0]}, "slab_weight"),
        ],
    )
    def test_bad_input_is_named(self, data, wrong, message):
        model = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, **self.GIVEN).set_params(**wrong)
        with pytest.raises(ValueError, match=message):
            model.predict(data.Y_test[:2])


@pytest.mark.parametrize("mode", ["fast", "accurate"])
class TestPriorsACoefficient:
    GIVEN: ClassVar = {"training": "none", "noise_std": 0.5, "random_state": 0}

    def test_numbers_and_arrays_of_one_number_are_the_same(self, data, mode):
        models = [
            SpikeSlabNet(8, mode=mode, design_matrix=data.design_matrix, prob_active=p, slab_var=v, **self.GIVEN)
            for p, v in ((0.2, 1.0), (np.full(D, 0.2), np.full(D, 1.0)))
        ]
        one, other = (model.predict(data.Y_test) for model in models)
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)

    def test_layers_are_near_the_sampler(self, mode):
        random = np.random.default_rng(0)
        prob, var = np.geomspace(0.02, 0.5, D), np.geomspace(4.0, 0.25, D)
        X = random.standard_normal((K, D))
        B = np.sqrt(var) * random.standard_normal((200, D)) * (random.random((200, D)) < prob)
        Y = B @ X.T + 0.5 * random.standard_normal((200, K))
        settings = {"design_matrix": X, "prob_active": prob, "slab_var": var, **self.GIVEN}
        found = SpikeSlabNet(20, mode=mode, **settings).predict(Y)
        exact = SpikeSlabNet(mode="exact", **settings).predict(Y)
        common = SpikeSlabNet(20, mode=mode, **{**settings, "prob_active": prob.mean(), "slab_var": 1.0}).predict(Y)
        errors = [np.mean((part - B) ** 2) for part in (found, exact, common)]
        assert errors[0] < 1.25 * errors[1]  # they are not trained
        assert errors[0] < 0.9 * errors[2]

    def test_a_slab_of_several_parts_has_weights(self, data, mode):
        settings = {"design_matrix": data.design_matrix, "prob_active": 0.2, **self.GIVEN}
        parts = np.repeat([[0.5], [2.0]], D, axis=1)
        models = [
            SpikeSlabNet(8, mode=mode, slab_var=var, slab_weight=[0.5, 0.5], **settings) for var in ([0.5, 2.0], parts)
        ]
        one, other = (model.predict(data.Y_test[:20]) for model in models)
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
