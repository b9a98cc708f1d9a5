"""SpikeSlabRegressor: conventions of scikit-learn, units, decisions, saving, and bad input."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.feature_selection import SelectFromModel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import bayeslista
from bayeslista import NumericalWarning, SpikeSlabRegressor
from bayeslista.decisions import joint_interval


def regressor(**parameters):
    return SpikeSlabRegressor(**{"random_state": 0, **parameters})


@pytest.mark.filterwarnings("ignore::bayeslista.NumericalWarning")  # the checks have tables that are interpolated
@pytest.mark.filterwarnings("ignore:Skipping check")
@parametrize_with_checks([regressor()])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 15)) * np.linspace(0.1, 10.0, 15) + 5.0
    coef = np.zeros(15)
    coef[[2, 7]] = 3.0, -0.5
    return X, X @ coef + 20.0 + rng.standard_normal(120), coef


@pytest.fixture(scope="module")
def model(data):
    return regressor().fit(*data[:2])


def test_active_features_are_found_in_the_units_of_the_data(data, model):
    X, _, coef = data
    assert model.select(0.1).tolist() == (coef != 0).tolist()
    assert np.all(np.abs(model.coef_ - coef) < 4 * model.coef_std_ + 0.05)
    assert abs(model.noise_std_ - 1.0) < 0.2
    np.testing.assert_allclose(model.posterior_.mean(), model.coef_)
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_)
    # Draws and averages are of the same posterior: standard errors of means of 800 draws.
    draws = model.coef_draws()
    np.testing.assert_allclose(draws.mean(axis=0), model.coef_, atol=5 * model.coef_std_.max() / np.sqrt(200))
    np.testing.assert_allclose((draws != 0).mean(axis=0), model.prob_active_, atol=0.1)
    low, high = joint_interval(draws, 0.9)
    assert np.all((low <= coef) & (coef <= high))


def test_units_of_the_data_do_not_matter(data, model):
    X, y, _ = data
    scale = 2.0 ** np.arange(-7, 8)
    other = regressor().fit(X * scale, 1024.0 * y + 5.0)
    np.testing.assert_allclose(other.prob_active_, model.prob_active_, rtol=1e-6)
    np.testing.assert_allclose(other.coef_ * scale / 1024.0, model.coef_, rtol=1e-6)
    np.testing.assert_allclose(other.noise_std_ / 1024.0, model.noise_std_, rtol=1e-6)


def test_predictive_distributions_include_the_noise(data, model):
    X, _, _ = data
    mean, std = model.predict(X, return_std=True)
    assert np.all(std > model.noise_std_)
    low, high = model.predict_interval(X, 0.9)
    np.testing.assert_allclose((high - low) / std, 2 * 1.645, rtol=0.05)
    draws = model.sample(X, 4000)
    assert draws.shape == (4000, 120)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=6 / np.sqrt(800))
    np.testing.assert_allclose(draws.std(axis=0), std, rtol=0.1)
    np.testing.assert_array_equal(draws, model.sample(X, 4000))
    assert np.all(np.isinf(model.predict_interval(X[:2], 1.0)))


def test_the_same_seed_gives_the_same_bits(data, model):
    X, y, _ = data
    again = regressor().fit(X, y)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    np.testing.assert_array_equal(again.coef_draws(), model.coef_draws())
    assert not np.array_equal(regressor(random_state=1).fit(X, y).coef_, model.coef_)


def test_sparse_tables_have_the_same_posterior(data, model):
    X, y, _ = data
    for kind in (sp.csr_array, sp.csc_matrix):
        sparse = regressor().fit(kind(X), y)
        np.testing.assert_allclose(sparse.coef_, model.coef_, rtol=1e-9)
        np.testing.assert_allclose(sparse.predict_interval(kind(X)), model.predict_interval(X), rtol=1e-9)


def test_several_targets_are_fitted_side_by_side(data, model):
    X, y, _ = data
    both = regressor(n_jobs=2).fit(X, np.column_stack([y, -y]))
    np.testing.assert_array_equal(both.coef_[0], model.coef_)
    np.testing.assert_allclose(both.coef_[1], -model.coef_, atol=0.05)
    assert both.predict(X).shape == both.predict(X, return_std=True)[1].shape == (120, 2)
    assert both.sample(X, 3).shape == (3, 120, 2)
    assert both.intercept_.shape == both.noise_std_.shape == (2,)
    assert both.select().shape == both.posterior_.shape == (2, 15)
    assert [len(sets) for sets in both.credible_sets(X)] == [2, 2]
    assert both.inclusion_table(target=1)["mean"].iloc[0] == both.coef_[1, both.prob_active_[1].argmax()]


def test_many_features_are_sampled_in_blocks(monkeypatch):
    from bayeslista.spike_slab import column_sets

    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 60))
    X[:, 1] = X[:, 0] + 0.1 * rng.standard_normal(80)
    y = X[:, 0] - X[:, 40] + rng.standard_normal(80)
    whole = regressor().fit(X, y)
    for name, value in {"LARGEST_GRAM": 50, "_N_HOT": 10, "_BLOCK": 10}.items():
        monkeypatch.setattr(column_sets, name, value)
    monkeypatch.setattr(column_sets.ColumnSets.__init__, "__defaults__", (50,))
    blocks = regressor(max_iter=1200).fit(X, y)
    np.testing.assert_allclose(blocks.prob_active_, whole.prob_active_, atol=0.06)
    np.testing.assert_allclose(blocks.coef_, whole.coef_, atol=0.06)


# Parameters ----------------------------------------------------------------------------------------------------------


def test_features_that_are_always_active(data):
    X, y, _ = data
    frame = pd.DataFrame(X, columns=[f"f{j}" for j in range(15)])
    named = regressor(always_active=["f4", "f9"]).fit(frame, y)
    numbered = regressor(always_active=[9, 4]).fit(X, y)
    np.testing.assert_array_equal(named.coef_, numbered.coef_)
    assert named.prob_active_[[4, 9]].tolist() == [1.0, 1.0]
    assert np.all(named.coef_draws()[:, [4, 9]] != 0)
    for wrong in (["f99"], [15], [True], [1.5]):
        with pytest.raises(ValueError, match=r"always_active has .*, which is no feature"):
            regressor(always_active=wrong).fit(X, y)


def test_given_parts_of_the_model(data):
    X, y, _ = data
    given = regressor(prob_active=0.2, noise_std=2.0, slab_var=4.0).fit(X, y)
    assert (given.noise_std_, given.slab_var_) == (pytest.approx(2.0), pytest.approx(4.0))
    assert given.expected_prob_active_ == pytest.approx(0.2)
    np.testing.assert_allclose(regressor(expected_n_active=3).fit(X, y).expected_prob_active_, 0.2)
    probs = np.full(15, 0.2)
    probs[2], probs[0] = 0.0, 1.0
    each = regressor(prob_active=probs).fit(X, y)
    assert (each.prob_active_[2], each.coef_[2], each.prob_active_[0]) == (0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="both given; pass one"):
        regressor(prob_active=0.1, expected_n_active=2).fit(X, y)
    with pytest.raises(ValueError, match=r"prob_active has shape \(3,\); pass a number, or one for each of 15"):
        regressor(prob_active=[0.1] * 3).fit(X, y)
    with pytest.raises(ValueError, match=r"prob_active must lie in \[0, 1\]"):
        regressor(prob_active=[2.0] * 15).fit(X, y)
    with pytest.raises(ValueError, match="expected_n_active is 15, but must be below 15"):
        regressor(expected_n_active=15).fit(X, y)


def test_without_intercept_and_standardisation():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(100), rng.standard_normal((100, 3))])
    y = 5.0 + X[:, 2] + 0.1 * rng.standard_normal(100)
    model = regressor(fit_intercept=False, standardize=False).fit(X, y)
    assert model.intercept_ == 0.0
    np.testing.assert_allclose(model.coef_, [5, 0, 1, 0], atol=0.1)
    assert np.all(model._draws[0].intercept == 0)


# Tables that are not as they should be -------------------------------------------------------------------------------


def test_copies_of_a_feature_share_its_probability_and_constant_ones_have_none(data):
    X, y, _ = data
    copied = np.column_stack([X[:, 2], X, X[:, 2], np.full(120, 0.1)])
    model = regressor().fit(copied, y)
    p = model.prob_active_[[0, 3, 16]]
    np.testing.assert_allclose(p, p.mean(), rtol=0.1)
    assert p.sum() == pytest.approx(1.0, abs=0.15)
    assert (model.prob_active_[17], model.coef_[17]) == (0.0, 0.0)
    found = {each.columns: each.purity for each in model.credible_sets(copied)}
    assert found == {(0, 3, 16): pytest.approx(1.0), (8,): 1.0}
    with pytest.raises(ValueError, match="always_active has the constant feature x17"):
        regressor(always_active=[17]).fit(copied, y)


def test_a_constant_response_has_an_intercept_only(data):
    X, _, _ = data
    model = regressor().fit(X, np.full(120, 3.3))
    assert not model.coef_.any()
    assert not model.prob_active_.any()
    np.testing.assert_allclose(model.predict(X, return_std=True), [[3.3] * 120, [0.0] * 120], atol=1e-12)
    np.testing.assert_allclose(model.predict_interval(X, 0.9), 3.3)
    assert model.inclusion_table()["mean"].eq(0).all()
    noisy = regressor(noise_std=1.0).fit(X, np.full(120, 3.3))
    assert noisy.noise_std_ == pytest.approx(1.0)
    assert np.abs(noisy.coef_).max() < 0.1


def test_only_constant_features(data):
    model = regressor().fit(np.ones((120, 3)), data[1])
    assert not model.coef_.any()
    assert model.intercept_ == pytest.approx(data[1].mean())


@pytest.mark.filterwarnings("ignore::bayeslista.NumericalWarning")
def test_two_samples_and_more_features_than_samples(data):
    X, y, _ = data
    for rows in (2, 6):
        model = regressor(max_iter=600).fit(X[:rows], y[:rows])
        mean, std = model.predict(X, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert (model.prob_active_ < 1).all()
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        regressor().fit(X[:1], y[:1])


def test_weights_count_as_repetition_and_zero_weights_not_at_all(data):
    X, y, _ = data
    weights = np.arange(120) % 3
    weighted = regressor().fit(X, y, sample_weight=weights)
    repeated = regressor().fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-8)
    absent = regressor().fit(X[weights > 0], y[weights > 0], weights[weights > 0])
    np.testing.assert_array_equal(absent.coef_, weighted.coef_)
    for wrong, message in ((0.0 * weights, "at least one non-zero"), (-1.0 * weights, "[Nn]egative")):
        with pytest.raises(ValueError, match=message):
            regressor().fit(X, y, sample_weight=wrong)
    with pytest.raises(ValueError, match="Scale the weights"):
        regressor().fit(X, y, sample_weight=np.full(120, 1e-3))


def test_missing_values_are_refused_with_their_place(data):
    X, y, _ = data
    for value, what in ((np.nan, "NaN"), (np.inf, "infinity")):
        wrong = X.copy()
        wrong[4, 3] = value
        with pytest.raises(ValueError, match=rf"X contains {what}, first in row 4, column 3"):
            regressor().fit(wrong, y)
        bad = y.copy()
        bad[7] = value
        with pytest.raises(ValueError, match=rf"y contains {what}"):
            regressor().fit(X, bad)
    with pytest.raises(ValueError, match="too large"):
        regressor().fit(1e200 * X, y)


def test_what_has_not_converged_is_named():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 30))
    with pytest.warns(NumericalWarning, match=r"\d+ coefficients \(x\d+.*\) .*have not converged after 12 iterations"):
        model = regressor(max_iter=12).fit(X, X[:, 0] + rng.standard_normal(40))
    assert not model.diagnostics_["converged"]


# Around it -----------------------------------------------------------------------------------------------------------


def test_pipelines_searches_and_selection():
    frame, y = load_diabetes(return_X_y=True, as_frame=True)
    frame, y = frame.iloc[:200], y.iloc[:200]
    model = regressor(max_iter=600).fit(frame, y)
    table = model.inclusion_table()
    assert set(table["feature"]) == set(frame.columns)
    assert table["prob_active"].is_monotonic_decreasing
    assert (table["low"] <= table["high"]).all()
    pipeline = make_pipeline(StandardScaler(), clone(model))
    search = GridSearchCV(pipeline, {"spikeslabregressor__expected_n_active": [2, 5]}, cv=2).fit(frame, y)
    assert search.best_score_ > 0.3
    selector = SelectFromModel(model, threshold=0.5, importance_getter="prob_active_").fit(frame, y)
    chosen = selector.set_output(transform="pandas").transform(frame)
    assert list(chosen.columns) == [name for name, p in zip(frame.columns, model.prob_active_, strict=True) if p >= 0.5]


@pytest.mark.parametrize("targets", [1, 2])
def test_files_hold_all_of_it(tmp_path, data, targets):
    X, y, _ = data
    model = regressor().fit(pd.DataFrame(X).add_prefix("f"), y if targets == 1 else np.column_stack([y, y]))
    model.save(tmp_path / "model.safetensors")
    again = bayeslista.load(tmp_path / "model.safetensors")
    frame = pd.DataFrame(X).add_prefix("f")
    np.testing.assert_array_equal(again.predict(frame, return_std=True), model.predict(frame, return_std=True))
    np.testing.assert_array_equal(again.sample(frame, 3), model.sample(frame, 3))
    pd.testing.assert_frame_equal(again.inclusion_table(), model.inclusion_table())
    assert again.credible_sets(frame) == model.credible_sets(frame)
    assert again.diagnostics_.keys() == model.diagnostics_.keys()
    regressor().save(tmp_path / "unfitted.safetensors")
    assert bayeslista.load(tmp_path / "unfitted.safetensors").get_params() == regressor().get_params()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("coef_", np.zeros(3)),
        ("prob_active_", None),
        ("_centre", np.zeros(2)),
        ("_draws", []),
        ("noise_std_", "x"),
    ],
)
def test_files_that_could_not_work_are_refused(tmp_path, model, name, value):
    broken = clone(model)
    vars(broken).update(vars(model))
    setattr(broken, name, value)
    broken.save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} is missing or not as it should be"):
        bayeslista.load(tmp_path / "model.safetensors")


def test_progress_is_shown(data, capsys):
    regressor(verbose=1).fit(*data[:2])
    assert "SpikeSlabRegressor" in capsys.readouterr().err
