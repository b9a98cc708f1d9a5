"""BayesLISTA as an estimator: learning, its distributions, streams, scales and what it reports."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayeslista import ISTA, BayesLISTA, NumericalWarning, SpikeSlab
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse

K, D, N = 15, 20, 200


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(N, 100, K, D, noise_std=0.1, random_state=0)


@pytest.fixture(scope="module")
def model(data):
    return BayesLISTA(4, design_matrix=data.design_matrix, max_iter=20, random_state=0).fit(data.Y_train, data.B_train)


@parametrize_with_checks([BayesLISTA()])
def test_scikit_learn_conformance(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)  # the checks' data are labels, not codes
        check(estimator)


def test_learning_beats_its_start(data, model):
    start = ISTA(4, design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    assert nmse(data.B_test, model.predict(data.Y_test)) < 0.85 * nmse(data.B_test, start.predict(data.Y_test))
    assert model.history_["nmse"][-1] < model.history_["nmse"][0]


def test_learning_narrows_the_weights(data, model):
    start = BayesLISTA(4, design_matrix=data.design_matrix, max_iter=1, random_state=0)
    start.fit(data.Y_train, data.B_train)
    assert np.mean(model.encoder_std_) < np.mean(start.encoder_std_)
    assert np.mean(model.recurrent_std_) < np.mean(start.recurrent_std_)


def test_fitted_attributes_have_their_shapes(model):
    assert model.encoder_.shape == model.encoder_std_.shape == (D, K)
    assert model.recurrent_.shape == model.recurrent_std_.shape == (D, D)
    np.testing.assert_array_equal(model.shrinkage_, np.full(4, 0.1))
    assert model.n_iter_ == 20
    assert {len(values) for values in model.history_.values()} == {20}
    assert model.diagnostics_["rejected"] == model.history_["rejected"].sum() == 0


def test_mean_and_std_are_those_of_the_distribution(data, model):
    mean, std = model.predict(data.Y_test, return_std=True)
    distribution = model.predict_dist(data.Y_test)
    assert isinstance(distribution, SpikeSlab)
    np.testing.assert_array_equal(mean, distribution.mean())
    np.testing.assert_array_equal(std, distribution.std())
    np.testing.assert_array_equal(model.predict(data.Y_test), mean)
    np.testing.assert_array_equal(model.transform(data.Y_test), mean)


def test_noise_widens_the_slab_and_nothing_else(data, model):
    wide, own = model.predict_dist(data.Y_test), model.predict_dist(data.Y_test, include_noise=False)
    np.testing.assert_array_equal(wide.prob_active, own.prob_active)
    np.testing.assert_array_equal(wide.slab_mean, own.slab_mean)
    np.testing.assert_allclose(wide.slab_var - own.slab_var, model.noise_std_**2, rtol=1e-10)


def test_active_coefficients_are_more_probably_active(data, model):
    prob_active = model.predict_dist(data.Y_test).prob_active
    assert prob_active[data.B_test != 0].mean() > prob_active[data.B_test == 0].mean() + 0.2


def test_larger_errors_come_with_larger_predicted_spread(data, model):
    own = model.predict_dist(data.Y_test, include_noise=False)
    error = np.abs(own.mean() - data.B_test)
    wide = own.std() > np.median(own.std())
    assert error[wide].mean() > 1.3 * error[~wide].mean()


@pytest.mark.parametrize("parameters", [{"evidence": "gaussian"}, {"prior": "printed"}, {"learn_noise": True}])
def test_every_variant_learns(data, parameters):
    variant = BayesLISTA(3, design_matrix=data.design_matrix, max_iter=8, random_state=0, **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        variant.fit(data.Y_train, data.B_train)
    start = ISTA(3, design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    assert nmse(data.B_test, variant.predict(data.Y_test)) < nmse(data.B_test, start.predict(data.Y_test))
    if parameters == {"prior": "printed"}:
        assert variant.noise_std_ == pytest.approx(np.sqrt(1.2))


def test_learned_noise_shrinks_towards_the_residuals(data):
    model = BayesLISTA(
        3, design_matrix=data.design_matrix, evidence="gaussian", learn_noise=True, max_iter=5, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        model.fit(data.Y_train, data.B_train)
    residual = np.sqrt(np.mean((model.predict(data.Y_train) - data.B_train) ** 2))
    assert 0.5 * residual < model.noise_std_ < 2 * residual
    assert np.all(np.diff(model.history_["noise_std"]) < 0)


def test_the_design_matrix_may_be_left_out(data):
    model = BayesLISTA(4, max_iter=10, random_state=0).fit(data.Y_train, data.B_train)
    start = ISTA(4).fit(data.Y_train, data.B_train)
    assert nmse(data.B_test, model.predict(data.Y_test)) < nmse(data.B_test, start.predict(data.Y_test))


def test_the_same_seed_gives_the_same_bits(data):
    one, same, other = (
        BayesLISTA(4, design_matrix=data.design_matrix, max_iter=2, random_state=seed).fit(data.Y_train, data.B_train)
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one.encoder_, same.encoder_)
    np.testing.assert_array_equal(one.recurrent_std_, same.recurrent_std_)
    assert (one.encoder_ != other.encoder_).any()


def test_without_tolerance_all_passes_are_made_and_with_it_learning_stops(data):
    parameters = {"n_layers": 4, "design_matrix": data.design_matrix, "max_iter": 30, "random_state": 0}
    assert BayesLISTA(tol=0, **parameters).fit(data.Y_train, data.B_train).n_iter_ == 30
    stopped = BayesLISTA(tol=0.05, **parameters).fit(data.Y_train, data.B_train)
    assert 5 < stopped.n_iter_ < 30
    history = stopped.history_["nmse"]
    assert history[-5:].min() >= 0.95 * history[:-5].min()


@pytest.mark.parametrize("scale", [1e-3, 255.0])
def test_with_scaled_priors_scale_does_not_matter(data, model, scale):
    # The threshold is absolute, so it is scaled along.
    scaled = BayesLISTA(4, design_matrix=data.design_matrix, shrinkage=0.1 * scale, max_iter=20, random_state=0)
    scaled.fit(scale * data.Y_train, scale * data.B_train)
    mean, std = scaled.predict(scale * data.Y_test, return_std=True)
    expected_mean, expected_std = model.predict(data.Y_test, return_std=True)
    np.testing.assert_allclose(mean, scale * expected_mean, atol=1e-6 * scale)
    np.testing.assert_allclose(std, scale * expected_std, rtol=1e-6)


def test_a_stream_gives_the_same_belief_however_it_is_cut(data):
    whole, cut = (BayesLISTA(3, design_matrix=data.design_matrix) for _ in range(2))
    for stop, start in ((20, 0), (60, 20)):
        whole.partial_fit(data.Y_train[start:stop], data.B_train[start:stop])
    for start, stop in ((0, 20), (20, 21), (21, 60)):
        cut.partial_fit(data.Y_train[start:stop], data.B_train[start:stop])
    np.testing.assert_allclose(cut.encoder_, whole.encoder_, rtol=1e-10)
    np.testing.assert_allclose(cut.recurrent_std_, whole.recurrent_std_, rtol=1e-10)
    assert (whole.n_iter_, cut.n_iter_) == (2, 3)


def test_partial_fit_goes_on_from_a_fit(data, model):
    going_on = pickle.loads(pickle.dumps(model))
    going_on.partial_fit(data.Y_test[:50], data.B_test[:50])
    assert going_on.n_iter_ == 21
    assert np.mean(going_on.encoder_std_) < np.mean(model.encoder_std_)
    with pytest.raises(ValueError, match="y has shape"):
        going_on.partial_fit(data.Y_test, data.B_test[:, :3])


def test_pickled_and_cloned_models_predict_alike(data, model):
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(data.Y_test), model.predict(data.Y_test))
    assert not hasattr(clone(model), "belief_")


def test_a_parameter_changed_after_the_fit_waits_for_the_next_fit(data, model):
    changed = pickle.loads(pickle.dumps(model)).set_params(n_layers=1, shrinkage=5.0, prior="printed")
    np.testing.assert_array_equal(changed.predict(data.Y_test), model.predict(data.Y_test))


def test_pipelines_and_searches_work(data):
    pipeline = make_pipeline(StandardScaler(), BayesLISTA(2, max_iter=2, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        search = GridSearchCV(pipeline, {"bayeslista__shrinkage": [0.05, 0.2]}, cv=2).fit(data.Y_train, data.B_train)
    mean, std = search.best_estimator_[-1].predict(data.Y_test, return_std=True)
    assert mean.shape == std.shape == (100, D)


def test_single_precision_goes_through_and_agrees(data, model):
    single = BayesLISTA(4, design_matrix=data.design_matrix, max_iter=20, random_state=0)
    single.fit(data.Y_train.astype(np.float32), data.B_train.astype(np.float32))
    mean, std = single.predict(data.Y_test, return_std=True)
    assert mean.dtype == std.dtype == single.encoder_.dtype == np.float32
    expected = nmse(data.B_test, model.predict(data.Y_test))
    assert nmse(data.B_test, mean) == pytest.approx(expected, abs=0.01)


def test_one_component_may_be_a_vector_or_a_column():
    rng = np.random.default_rng(0)
    codes = rng.normal(size=30)
    observations = codes[:, None] * rng.normal(size=4)
    vector = BayesLISTA(2, max_iter=2, random_state=0).fit(observations, codes)
    column = BayesLISTA(2, max_iter=2, random_state=0).fit(observations, codes[:, None])
    mean, std = vector.predict(observations, return_std=True)
    assert mean.shape == std.shape == vector.predict_dist(observations).shape == (30,)
    assert column.predict_dist(observations).shape == (30, 1)
    assert vector.transform(observations).shape == (30, 1)
    np.testing.assert_array_equal(column.predict(observations)[:, 0], mean)


_rng = np.random.default_rng(5)
DEGENERATE = {
    "observations of zero": (np.zeros((6, 3)), _rng.normal(size=(6, 4))),
    "codes of zero": (_rng.normal(size=(6, 3)), np.zeros((6, 4))),
    "nothing but zeros": (np.zeros((6, 3)), np.zeros((6, 4))),
    "one sample": (_rng.normal(size=(1, 3)), _rng.normal(size=(1, 4))),
    "constant columns": (np.ones((6, 3)), np.ones((6, 4))),
    "some rows of zeros": (np.eye(6, 3), np.eye(6, 4)),
    "tiny numbers": (1e-150 * np.ones((6, 3)), 1e-150 * np.eye(6, 4)),
    "huge numbers": (1e150 * np.ones((6, 3)), 1e150 * np.eye(6, 4)),
}


@pytest.mark.parametrize("prior", ["scaled", "printed"])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_pairs_train_and_predict_finite_numbers(case, prior):
    observations, codes = DEGENERATE[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        model = BayesLISTA(3, max_iter=2, prior=prior, random_state=0).fit(observations, codes)
    mean, std = model.predict(observations, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()


def test_trouble_is_counted_and_told_once(data):
    deep = BayesLISTA(
        20, design_matrix=data.design_matrix, prior="printed", dtype="float32", max_iter=2, random_state=0
    )
    with pytest.warns(NumericalWarning, match="saturated") as caught:
        deep.fit(1e6 * data.Y_train[:50], 1e6 * data.B_train[:50])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert deep.diagnostics_["saturated"] == deep.history_["saturated"].sum() > 0
    assert np.isfinite(deep.predict(data.Y_test)).all()


def test_progress_is_shown_on_request(data, capsys):
    model = BayesLISTA(2, design_matrix=data.design_matrix, max_iter=2, random_state=0)
    model.set_params(verbose=1).fit(data.Y_train, data.B_train)
    shown = capsys.readouterr().err
    assert "BayesLISTA" in shown
    assert "nmse=" in shown
    model.set_params(verbose=0).fit(data.Y_train, data.B_train)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"inference": "mcmc"}, "inference must be one of 'adf'"),
        ({"prior": "flat"}, "prior must be one of 'scaled', 'printed'"),
        ({"evidence": "laplace"}, "evidence must be one of"),
        ({"learn_noise": 1}, "learn_noise must be True or False"),
        ({"shrinkage": -0.1}, "shrinkage must be"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"tol": -1}, "tol must be"),
        ({"design_matrix": np.eye(3)}, r"design_matrix has shape \(3, 3\)"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_parameters_are_refused_by_name(data, parameters, message, method):
    with pytest.raises(ValueError, match=message):
        getattr(BayesLISTA(**parameters), method)(data.Y_train, data.B_train)


@pytest.mark.parametrize(("n_layers", "passes", "target"), [(4, 150, 0.64), (10, 100, 0.61)])
def test_no_worse_than_the_published_code_at_the_same_number_of_passes(shared, n_layers, passes, target):
    with np.load(shared / "reference" / "published_code_synthetic.npz") as file:
        X, Y_train, B_train, Y_test, B_test = (
            file[key] for key in ("X", "y_train", "beta_train", "y_test", "beta_test")
        )
    model = BayesLISTA(n_layers, design_matrix=X, inference="adf", max_iter=passes, tol=0, random_state=0)
    model.fit(Y_train, B_train)
    assert model.n_iter_ == passes
    assert nmse(B_test, model.predict(Y_test)) <= target
