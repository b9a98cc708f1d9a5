"""ISTA and FISTA as estimators."""

import numpy as np
import pytest
from sklearn.linear_model import Lasso
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayeslista.estimators import FISTA, ISTA
from bayeslista.numerics.linear import ista_weights

K, D, N = 15, 20, 4
both = pytest.mark.parametrize("estimator", [ISTA, FISTA])


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((K, D))
    codes = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.2)
    return X, codes @ X.T + 0.05 * rng.standard_normal((N, K)), codes


@pytest.mark.no_cover
@parametrize_with_checks([ISTA(), FISTA()])
def test_scikit_learn_conformance(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("estimator", "n_layers"), [(ISTA, 20_000), (FISTA, 3_000)])
def test_long_runs_reach_the_objective_of_scikit_learns_lasso(pairs, estimator, n_layers):
    X, observations, codes = pairs
    model = estimator(n_layers, design_matrix=X, shrinkage=0.01).fit(observations, codes)
    penalty = model.shrinkage_ * model.step_inverse_
    lasso = Lasso(alpha=penalty / K, fit_intercept=False, tol=1e-14, max_iter=1_000_000)
    best = np.stack([lasso.fit(X, observation).coef_ for observation in observations])

    def objective(coded):
        return 0.5 * np.sum((observations - coded @ X.T) ** 2) + penalty * np.abs(coded).sum()

    assert objective(model.predict(observations)) == pytest.approx(objective(best), rel=1e-8)


@both
def test_what_was_fitted_is_there_to_read(pairs, estimator):
    X, observations, codes = pairs
    model = estimator(7, design_matrix=X, shrinkage=0.2).fit(observations, codes)
    weights = ista_weights(X)
    np.testing.assert_array_equal(model.encoder_, weights.encoder)
    np.testing.assert_array_equal(model.recurrent_, weights.recurrent)
    assert model.step_inverse_ == weights.step_inverse
    assert (model.shrinkage_, model.n_iter_, model.n_components_, model.n_features_in_) == (0.2, 7, D, K)


@both
def test_a_parameter_changed_after_the_fit_waits_for_the_next_fit(pairs, estimator):
    _, observations, codes = pairs
    model = estimator(7).fit(observations, codes)
    before = model.predict(observations)
    model.set_params(n_layers=1, shrinkage=5.0)
    np.testing.assert_array_equal(model.predict(observations), before)


@both
@pytest.mark.parametrize(
    ("observations", "codes"),
    [
        (np.zeros((N, K)), np.ones((N, D))),
        (np.ones((N, K)), np.zeros((N, D))),
        (np.zeros((N, K)), np.zeros((N, D))),
        (np.ones((1, K)), np.ones((1, D))),
        (np.ones((N, K)), np.ones((N, D))),
    ],
    ids=["zero observations", "zero codes", "all zero", "one sample", "constant columns"],
)
def test_degenerate_pairs_predict_finite_codes(estimator, observations, codes):
    model = estimator().fit(observations, codes)
    assert np.isfinite(model.predict(observations)).all()
    assert np.isfinite(model.predict(np.zeros((1, K)))).all()


@both
def test_the_codes_of_one_row_do_not_depend_on_its_company(pairs, estimator):
    X, observations, codes = pairs
    model = estimator(design_matrix=X).fit(observations, codes)
    together = model.predict(observations)
    alone = np.concatenate([model.predict(row[None]) for row in observations])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(("n_layers", "expected"), [(4, 0.786), (10, 0.706)])
def test_ista_has_its_reference_error(shared, n_layers, expected):
    data = np.load(shared / "reference" / "published_code_synthetic.npz")
    model = ISTA(n_layers, design_matrix=data["X"]).fit(data["y_train"], data["beta_train"])
    error = np.linalg.norm(model.predict(data["y_test"]) - data["beta_test"], axis=1)
    assert np.mean(error / np.linalg.norm(data["beta_test"], axis=1)) == pytest.approx(expected, abs=6e-4)
