"""The bridge to scikit-learn: what is refused, what is accepted, and what comes back."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bayeslista.estimators import FISTA, ISTA, LISTA
from bayeslista.estimators.base import BaseSparseCoder
from bayeslista.estimators.progress import advance, progress_bar
from bayeslista.estimators.validation import random_seed
from bayeslista.numerics.batching import in_blocks

K, D, N = 6, 8, 20


class LinearCoder(BaseSparseCoder):
    """The least that a subclass has to be: it learns means as the pairs arrive."""

    def __init__(self, n_layers=1, design_matrix=None, shrinkage=0.1, dtype="auto"):
        self.n_layers = n_layers
        self.design_matrix = design_matrix
        self.shrinkage = shrinkage
        self.dtype = dtype

    def fit(self, X, y):
        return self._learn(X, y, reset=True)

    def partial_fit(self, X, y):
        return self._learn(X, y, reset=not hasattr(self, "design_matrix_"))

    def _learn(self, X, y, reset):
        self._validate_params()
        observations, codes = self._validate_pairs(X, y, reset=reset)
        self.design_matrix_ = self._resolve_design_matrix(observations, codes)
        self.mean_ = codes.mean(axis=0)
        return self

    def _predict_codes(self, Y):
        return np.tile(self.mean_, (len(Y), 1))


@pytest.fixture
def pairs():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((K, D))
    codes = rng.standard_normal((N, D)) * (rng.random((N, D)) < 0.3)
    return X, codes @ X.T, codes


def changed(values, position, value):
    values = values.astype(type(value) if isinstance(value, str) else float).astype(object)
    values[position] = value
    return values


BAD_DATA = {
    "NaN in X": (lambda Y, B: (changed(Y, (0, 0), np.nan), B), "Input X contains NaN"),
    "infinity in X": (lambda Y, B: (changed(Y, (0, 0), np.inf), B), "Input X contains infinity"),
    "NaN in y": (lambda Y, B: (Y, changed(B, (0, 0), np.nan)), "Input y contains NaN"),
    "infinity in y": (lambda Y, B: (Y, changed(B, (0, 0), -np.inf)), "Input y contains infinity"),
    "one-dimensional X": (lambda Y, B: (Y[:, 0], B), "X: Expected 2D array, got 1D array"),
    "scalar X": (lambda Y, B: (3.0, B), "X: Expected 2D array, got scalar array"),
    "three-dimensional X": (lambda Y, B: (Y[None], B), "X: Found array with dim 3"),
    "three-dimensional y": (lambda Y, B: (Y, B[:, None]), r"y has shape \(20, 1, 8\), expected \(n_samples"),
    "scalar y": (lambda Y, B: (Y, 3.0), r"y has shape \(\), expected \(n_samples"),
    "missing y": (lambda Y, B: (Y, None), "requires y to be passed"),
    "fewer codes": (lambda Y, B: (Y, B[1:]), "X has 20 samples and y has 19; pass one code for every"),
    "no samples": (lambda Y, B: (Y[:0], B[:0]), r"X: Found array with 0 sample\(s\)"),
    "no observed values": (lambda Y, B: (Y[:, :0], B), r"X: Found array with 0 feature\(s\)"),
    "no components": (lambda Y, B: (Y, B[:, :0]), r"y has shape \(20, 0\)"),
    "text in X": (lambda Y, B: (changed(Y, (0, 0), "red"), B), "X: could not convert string to float"),
    "text as X": (lambda Y, B: (Y.astype(str), B), "X: dtype='numeric' is not compatible with arrays of bytes/strings"),
    "text as y": (lambda Y, B: (Y, B.astype(str)), "y: dtype='numeric' is not compatible with arrays of bytes/strings"),
    "ragged y": (lambda Y, B: (Y, [[1.0], [1.0, 2.0]] * 10), "y: "),
    "complex y": (lambda Y, B: (Y, B * 1j), "y: Complex data not supported"),
}


@pytest.mark.parametrize("estimator", [ISTA(), LISTA(max_iter=1)], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data_are_refused_by_name(pairs, estimator, case):
    _, observations, codes = pairs
    change, message = BAD_DATA[case]
    with pytest.raises(ValueError, match=message):
        clone(estimator).fit(*change(observations, codes))


@pytest.mark.parametrize(
    ("design_matrix", "message"),
    [
        (np.ones((D, K)), r"design_matrix has shape \(8, 6\), expected .* = \(6, 8\) .* pass its transpose"),
        (np.ones((K, D + 1)), r"design_matrix has shape \(6, 9\), expected .* pass one that fits, or None"),
        (np.ones(K), "design_matrix: Expected 2D array"),
        (np.full((K, D), np.nan), "Input design_matrix contains NaN"),
        (np.full((K, D), "a"), "design_matrix: dtype='numeric'"),
        (np.zeros((0, D)), "design_matrix: Found array with 0 sample"),
        ("identity", "'design_matrix' parameter of ISTA must be an array-like, a sparse array .* or None"),
    ],
)
def test_bad_design_matrices_are_refused_by_name(pairs, design_matrix, message):
    _, observations, codes = pairs
    with pytest.raises(ValueError, match=message):
        ISTA(design_matrix=design_matrix).fit(observations, codes)


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", None, np.nan])
@pytest.mark.parametrize("name", ["n_layers", "max_iter", "batch_size", "n_iter_no_change"])
def test_counts_are_positive_integers(pairs, name, value):
    with pytest.raises(ValueError, match=rf"'{name}' parameter of LISTA must be an int in the range \[1, inf\)"):
        LISTA(**{name: value}).fit(*pairs[1:])


@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf, "0.1", None, [0.1]])
@pytest.mark.parametrize("name", ["shrinkage", "tol", "learning_rate", "validation_fraction"])
def test_numbers_are_finite_and_not_negative(pairs, name, value):
    with pytest.raises(ValueError, match=f"'{name}' parameter of LISTA must be a float in the range"):
        LISTA(**{name: value}).fit(*pairs[1:])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"learning_rate": 0.0}, r"'learning_rate' parameter of LISTA must be a float in the range \(0.0, inf\)"),
        ({"validation_fraction": 1.0}, r"must be a float in the range \[0.0, 1.0\)"),
        ({"dtype": "float16"}, "'dtype' parameter of LISTA must be a str among"),
        ({"dtype": np.float32}, "'dtype' parameter of LISTA must be a str among"),
        ({"optimizer": "lbfgs"}, "'optimizer' parameter of LISTA must be a str among .*. Got 'lbfgs' instead"),
        ({"learn_shrinkage": 1}, "'learn_shrinkage' parameter of LISTA must be an instance of 'bool'.*Got 1"),
        ({"coupled_weights": "no"}, "'coupled_weights' parameter of LISTA must be an instance of 'bool'.*Got 'no'"),
        ({"verbose": -1}, "'verbose' parameter of LISTA must be .*Got -1"),
        ({"random_state": "seed"}, "'random_state' parameter of LISTA must be .*Got 'seed'"),
    ],
)
def test_other_parameters_are_refused_by_name(pairs, parameters, message):
    with pytest.raises(ValueError, match=message):
        LISTA(**parameters).fit(*pairs[1:])


def test_prediction_needs_a_fit_and_the_same_width(pairs):
    _, observations, codes = pairs
    with pytest.raises(NotFittedError):
        ISTA().predict(observations)
    model = ISTA().fit(observations, codes)
    with pytest.raises(ValueError, match="X has 5 features, but ISTA is expecting 6"):
        model.predict(observations[:, 1:])
    with pytest.raises(ValueError, match=r"X has 10 features.*as many columns as in fit"):
        model.predict(np.ones((2, 10)))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.transform(np.full((1, K), np.nan))


def test_values_too_large_for_single_precision_are_refused(pairs):
    X, observations, codes = pairs
    with pytest.raises(ValueError, match="X has values too large for float32; rescale it, or pass dtype='float64'"):
        ISTA(dtype="float32").fit(observations * 1e200, codes)
    with pytest.raises(ValueError, match="design_matrix has values too large for float32"):
        ISTA(dtype="float32", design_matrix=X * 1e200).fit(observations, codes)


@pytest.mark.parametrize(
    ("observed", "coded", "dtype", "expected"),
    [
        (np.float32, np.float32, "auto", np.float32),
        (np.float32, np.int64, "auto", np.float32),
        (np.float32, np.float64, "auto", np.float64),
        (np.float64, np.float32, "auto", np.float64),
        (np.float16, np.float16, "auto", np.float64),
        (np.int64, np.float32, "auto", np.float64),
        (np.float64, np.float64, "float32", np.float32),
        (np.float32, np.float32, "float64", np.float64),
    ],
)
def test_the_floating_type_follows_the_input(pairs, observed, coded, dtype, expected):
    X, observations, codes = pairs
    model = ISTA(dtype=dtype, design_matrix=X).fit(observations.astype(observed), codes.astype(coded))
    assert model.dtype_ == model.design_matrix_.dtype == model.encoder_.dtype == expected
    assert model.predict(observations).dtype == model.transform(observations).dtype == expected


def test_the_given_design_matrix_is_copied(pairs):
    X, observations, codes = pairs
    model = ISTA(design_matrix=X).fit(observations, codes)
    assert not np.shares_memory(model.design_matrix_, X)
    assert model.design_matrix is X


def test_predictions_have_the_dimensions_of_the_codes(pairs):
    _, observations, codes = pairs
    assert ISTA().fit(observations, codes).predict(observations).shape == (N, D)
    assert ISTA().fit(observations, codes[:, :1]).predict(observations).shape == (N, 1)
    vector = ISTA().fit(observations, codes[:, 0])
    assert vector.predict(observations).shape == (N,)
    assert vector.transform(observations).shape == (N, 1)
    assert isinstance(vector.score(observations, codes[:, 0]), float)


def test_further_pairs_have_to_agree_with_the_first(pairs):
    _, observations, codes = pairs
    model = LinearCoder().partial_fit(observations, codes)
    model.partial_fit(observations[:3].astype(np.float32), codes[:3].astype(np.float32))
    assert model.predict(observations).dtype == np.float64
    with pytest.raises(ValueError, match=r"y has shape \(20, 7\), expected \('n_samples', 8\) as in the first fit"):
        model.partial_fit(observations, codes[:, 1:])
    with pytest.raises(ValueError, match=r"y has shape \(20,\), expected \('n_samples', 8\)"):
        model.partial_fit(observations, codes[:, 0])
    with pytest.raises(ValueError, match="X has 5 features, but LinearCoder is expecting 6"):
        model.partial_fit(observations[:, 1:], codes)
    assert model.fit(observations, codes[:, 0]).predict(observations).shape == (N,)


def test_pandas_goes_in_and_comes_out(pairs):
    _, observations, codes = pairs
    frame = pd.DataFrame(observations, columns=[f"sensor {k}" for k in range(K)], index=range(100, 100 + N))
    model = ISTA().set_output(transform="pandas")
    coded = model.fit_transform(frame, pd.DataFrame(codes))
    assert list(coded.columns) == [f"ista{d}" for d in range(D)]
    assert list(coded.index) == list(frame.index)
    np.testing.assert_array_equal(coded.to_numpy(), model.predict(frame))
    assert list(model.feature_names_in_) == list(frame.columns)


def test_pipelines_searches_and_clones_work(pairs):
    X, observations, codes = pairs
    pipeline = make_pipeline(StandardScaler(), FISTA())
    assert pipeline.fit(observations, codes).predict(observations).shape == (N, D)
    search = GridSearchCV(ISTA(design_matrix=X), {"shrinkage": [0.001, 10.0]}, cv=2).fit(observations, codes)
    assert search.best_params_ == {"shrinkage": 0.001}
    assert clone(search.best_estimator_).get_params()["shrinkage"] == 0.001


@pytest.mark.parametrize("n", [1, 8, 9, 1024, 1025, 3000])
def test_blocks_cover_every_row_in_few_sizes(n):
    sizes = set()

    def double(rows):
        sizes.add(len(rows))
        return {"twice": 2 * rows}

    rows = np.arange(2.0 * n).reshape(n, 2)
    np.testing.assert_array_equal(in_blocks(double, rows)["twice"], 2 * rows)
    assert len(sizes) == 1
    assert sizes.pop() in {8, 16, 1024}


def test_the_progress_bar_is_silent_unless_asked(capsys):
    for verbose in (0, 1):
        with progress_bar(2, "LISTA", verbose) as bar:
            advance(bar, 0.25)
            advance(bar, 0.125)
        output = capsys.readouterr()
        assert output.out == ""
        assert ("nmse=0.1250" in output.err) == bool(verbose)


def test_seeds_follow_scikit_learn():
    state = np.random.RandomState(5)
    assert random_seed(5) == random_seed(np.random.RandomState(5)) == random_seed(state)
    assert random_seed(state) != random_seed(5)


@pytest.mark.parametrize("estimator", [ISTA, FISTA, LISTA])
def test_estimators_without_a_distribution_say_who_has_one(pairs, estimator):
    X, observations, codes = pairs
    model = estimator(2, design_matrix=X).fit(observations, codes)
    np.testing.assert_array_equal(model.predict(observations, return_std=False), model.predict(observations))
    with pytest.raises(ValueError, match="use BayesLISTA"):
        model.predict(observations, return_std=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda Y, B: (changed(Y, (0, 0), np.nan), B), "X contains NaN.*impute"),
        (lambda Y, B: (Y, changed(B, (0, 0), np.nan)), "y contains NaN.*impute"),
        (lambda Y, B: (changed(Y, (0, 0), np.inf), B), "X contains infinity.*not finite"),
        (lambda Y, B: (Y[:0], B[:0]), "X: .*at least one row"),
        (lambda Y, B: (changed(Y, (0, 0), "a"), B), "X: .*array of real numbers"),
        (lambda Y, B: (Y, None), "^This LinearCoder estimator requires y"),
    ],
)
def test_messages_say_what_to_do(pairs, spoil, message):
    _, observations, codes = pairs
    with pytest.raises(ValueError, match=f"(?s){message}"):
        LinearCoder().fit(*spoil(observations, codes))


def test_generators_seed_too():
    assert random_seed(np.random.default_rng(5)) == random_seed(np.random.default_rng(5))


def test_a_fit_that_fails_leaves_a_fitted_model_as_it_was():
    random = np.random.default_rng(0)
    X, codes = random.standard_normal((20, 4)), random.standard_normal((20, 6))
    model = ISTA(n_layers=2).fit(X, codes)
    before = model.predict(X)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((20, 5), np.nan), codes[:, :3])
    model.set_params(design_matrix=np.ones((2, 2)))
    with pytest.raises(ValueError, match="design_matrix has shape"):
        model.fit(X[:, :3], codes)
    np.testing.assert_array_equal(model.predict(X), before)
