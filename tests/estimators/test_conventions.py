"""What users of scikit-learn expect: sparse codes, frames, one floating type, short representations, tags."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from bayeslista import FISTA, ISTA, LISTA, BayesLISTA, SparseCodingTransformer, SpikeSlab, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes

K, D = 6, 8
ESTIMATORS = {
    "ISTA": lambda: ISTA(5),
    "FISTA": lambda: FISTA(5),
    "LISTA": lambda: LISTA(2, max_iter=1, random_state=0),
    "BayesLISTA": lambda: BayesLISTA(2, max_iter=1, random_state=0),
    "SpikeSlabNet": lambda: SpikeSlabNet(2, mode="fast", training="none", random_state=0),
}
NAMES = [f"sensor {k}" for k in range(K)]
ATOMS = [f"atom {d}" for d in range(D)]


@pytest.fixture(scope="module")
def data():
    """Pairs in single precision."""
    made = make_sparse_codes(n_train=40, n_test=30, n_observed=K, n_components=D, random_state=0)
    return type(made)(**{name: made[name].astype(np.float32) for name in ("Y_train", "B_train", "Y_test", "B_test")})


@pytest.fixture(scope="module", params=ESTIMATORS)
def model(request, data):
    return ESTIMATORS[request.param]().fit(data.Y_train, data.B_train)


def given(X):
    """A network that has nothing to learn."""
    return SpikeSlabNet(1, mode="fast", design_matrix=X, prob_active=0.2, slab_var=1.0, noise_std=0.5)


def polars_frame(values, names):
    return pytest.importorskip("polars").DataFrame(values, schema=names)


def pandas_frame(values, names):
    return pd.DataFrame(values, columns=names)


FRAMES = pytest.mark.parametrize("frame", [pandas_frame, polars_frame])


def test_sparse_predictions_hold_what_is_probably_active(data, model):
    sparse = model.predict(data.Y_test, sparse=True)
    dense = model.predict(data.Y_test)
    assert isinstance(sparse, sp.csr_array)
    assert sparse.shape == dense.shape
    assert (sparse.data != 0).all()
    if hasattr(model, "predict_dist"):
        dense = np.where(model.predict_dist(data.Y_test).prob_active > 0.5, dense, 0)
    assert 0 < sparse.nnz < dense.size
    np.testing.assert_allclose(sparse.toarray(), dense, rtol=1e-6)


def test_sparse_predictions_are_two_dimensional_and_have_no_deviations(data):
    model = BayesLISTA(1, max_iter=1, inference="adf", random_state=0).fit(data.Y_train, data.B_train[:, 0])
    assert model.predict(data.Y_test, sparse=True).shape == (30, 1)
    with pytest.raises(ValueError, match=r"standard deviations, which are not sparse; ask with sparse=False"):
        model.predict(data.Y_test, return_std=True, sparse=True)
    with pytest.raises(ValueError, match=r"'sparse' parameter of predict must be an instance of 'bool'.*Got 'csr'"):
        model.predict(data.Y_test, sparse="csr")


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix, sp.coo_array, sp.lil_matrix, sp.dok_array])
def test_codes_to_learn_from_may_be_sparse(data, kind):
    dense = ISTA(5).fit(data.Y_train, data.B_train)
    sparse = ISTA(5).fit(data.Y_train, kind(data.B_train))
    assert sparse.dtype_ == np.float32
    np.testing.assert_array_equal(sparse.predict(data.Y_test), dense.predict(data.Y_test))
    assert sparse.score(data.Y_test, kind(data.B_test)) == dense.score(data.Y_test, data.B_test)


def test_streams_and_calibration_take_sparse_codes(data):
    models = [
        ESTIMATORS["SpikeSlabNet"]().partial_fit(data.Y_train, codes(data.B_train))
        for codes in (np.asarray, sp.csr_array)
    ]
    answers = [
        model.calibrate(data.Y_test, codes(data.B_test)).predict(data.Y_test)
        for model, codes in zip(models, (np.asarray, sp.coo_matrix), strict=True)
    ]
    np.testing.assert_array_equal(*answers)
    with pytest.raises(ValueError, match=r"X has 30 samples and y has 40"):
        models[0].partial_fit(data.Y_test, sp.csr_array(data.B_train))


def test_sparse_observations_are_refused_with_a_remedy(data, model):
    with pytest.raises(ValueError, match=r"X is sparse, but has to be dense here; pass X\.toarray\(\)"):
        model.predict(sp.csr_array(data.Y_test))
    with pytest.raises(ValueError, match=r"X is sparse.*X\.toarray\(\)"):
        clone(model).fit(sp.csc_matrix(data.Y_train), data.B_train)
    if model._takes_operators:
        return
    with pytest.raises(ValueError, match=r"design_matrix is sparse.*design_matrix\.toarray\(\)"):
        clone(model).set_params(design_matrix=sp.csr_array(np.ones((K, D)))).fit(data.Y_train, data.B_train)


def test_single_precision_stays(data, model):
    answers = [model.predict(data.Y_test), model.transform(data.Y_test), model.predict(data.Y_test, sparse=True)]
    if hasattr(model, "predict_dist"):
        dist = model.predict_dist(data.Y_test)
        answers += [*model.predict(data.Y_test, return_std=True), *model.predict_interval(data.Y_test)]
        answers += [dist, dist.mean(), dist.std(), dist.sample(1, random_state=0)]
    assert {answer.dtype for answer in answers} == {np.dtype(np.float32)}


def test_distributions_tell_their_type():
    assert SpikeSlab(0.5, 1.0, 1.0).dtype == np.float64


@FRAMES
def test_frames_go_in_and_come_out(data, model, frame):
    library = type(frame([[0.0]], ["a"])).__module__.split(".")[0]
    learned = clone(model).set_output(transform=library)
    codes = frame(data.B_train, [f"atom {d}" for d in range(D)])
    learned.fit(frame(data.Y_train, NAMES), codes.to_numpy())
    assert list(learned.feature_names_in_) == NAMES
    rows = frame(data.Y_test, NAMES)
    coded = learned.transform(rows)
    assert type(coded) is type(rows)
    assert list(coded.columns) == list(learned.get_feature_names_out())
    assert learned.get_feature_names_out()[0] == f"{type(model).__name__.lower()}0"
    assert coded.to_numpy().dtype == np.float32
    np.testing.assert_array_equal(coded.to_numpy(), model.transform(data.Y_test))
    np.testing.assert_array_equal(learned.predict(rows), model.predict(data.Y_test))


@FRAMES
def test_names_of_codes_come_back(data, model, frame):
    library = type(frame([[0.0]], ["a"])).__module__.split(".")[0]
    codes = frame(data.B_train, ATOMS)
    learned = clone(model).set_output(transform=library).fit(data.Y_train, codes)
    assert list(learned.component_names_) == list(learned.get_feature_names_out()) == ATOMS
    assert list(learned.transform(data.Y_test).columns) == ATOMS
    learned.get_feature_names_out()[0] = "changed"
    assert list(learned.component_names_) == ATOMS
    learned.fit(data.Y_train, data.B_train)
    assert not hasattr(learned, "component_names_")
    assert learned.get_feature_names_out()[0] == f"{type(model).__name__.lower()}0"


@FRAMES
def test_columns_of_the_design_matrix_name_coefficients_that_have_no_other_name(data, frame):
    matrix = frame(np.linspace(-1, 1, K * D).reshape(K, D) ** 3, ATOMS)
    assert list(ISTA(2, design_matrix=matrix).fit(data.Y_train, data.B_train).get_feature_names_out()) == ATOMS
    others = [f"other {d}" for d in range(D)]
    model = ISTA(2, design_matrix=matrix).fit(data.Y_train, frame(data.B_train, others))
    assert list(model.component_names_) == others
    prior = {"prob_active": 0.1, "slab_var": 1.0, "noise_std": 0.1}
    assert list(SpikeSlabNet(design_matrix=matrix, **prior).fit().component_names_) == ATOMS


@FRAMES
def test_codes_of_other_names_than_those_of_the_fit_are_refused(data, frame):
    model = given(np.eye(K)).fit(data.Y_train, frame(data.B_train[:, :K], NAMES))
    rest = data.Y_train, frame(data.B_train[:, :K], NAMES[::-1])
    message = f"it has {NAMES[-1]!r} where fit had {NAMES[0]!r}. Pass the codes of the same coefficients"
    for method in (model.partial_fit, model.calibrate, model.score):
        with pytest.raises(ValueError, match=message):
            method(*rest)
    with pytest.raises(ValueError, match=f"it has {K - 1} columns"):
        model.score(data.Y_train, frame(data.B_train[:, : K - 1], NAMES[:-1]))
    model.partial_fit(data.Y_train, frame(data.B_train[:, :K], NAMES)).partial_fit(data.Y_train, data.B_train[:, :K])
    assert list(model.component_names_) == NAMES


@pytest.mark.parametrize("names", [list(range(D)), ["", *ATOMS[1:]], [0, *ATOMS[1:]]])
def test_columns_that_cannot_be_told_apart_by_text_have_no_names(data, names):
    codes = pd.DataFrame(data.B_train)
    codes.columns = names
    assert not hasattr(ISTA(2).fit(data.Y_train, codes), "component_names_")


@FRAMES
def test_a_single_coefficient_may_have_a_name(data, frame):
    codes = frame(data.B_train[:, :1], ["dose"])["dose"]
    model = ISTA(2).set_output(transform="pandas").fit(data.Y_train, codes)
    assert model.predict(data.Y_test).ndim == 1
    assert list(model.transform(data.Y_test).columns) == ["dose"]


def test_observations_alone_leave_no_names_of_codes(data):
    model = given(np.eye(K)).set_params(mode="fast", training="none")
    model.fit(data.Y_train, pd.DataFrame(data.B_train[:, :K], columns=NAMES))
    assert not hasattr(model.fit(data.Y_train), "component_names_")


@FRAMES
def test_columns_have_to_be_those_of_the_fit(data, frame):
    model = ISTA(2).fit(frame(data.Y_train, NAMES), data.B_train)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame(data.Y_test, NAMES[::-1]))
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame(data.Y_test[:, 1:], NAMES[1:]))
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(data.Y_test)


@FRAMES
def test_design_matrices_may_be_frames(data, frame):
    X = np.random.default_rng(0).standard_normal((K, D))
    named = [f"atom {d}" for d in range(D)]
    np.testing.assert_array_equal(*(given(matrix).predict(data.Y_test) for matrix in (X, frame(X, named))))


def test_a_network_without_fit_names_its_columns(data):
    X = np.random.default_rng(0).standard_normal((K, D))
    coded = given(X).set_output(transform="pandas").transform(pd.DataFrame(data.Y_test, columns=NAMES))
    assert list(coded.columns) == [f"spikeslabnet{d}" for d in range(D)]


def test_frames_of_several_types_are_converted_batch_by_batch(data):
    model = ISTA(3).fit(data.Y_train, data.B_train)
    frame = pd.DataFrame(np.tile(data.Y_test.round(), (50, 1)), columns=NAMES)
    mixed = frame.astype({NAMES[0]: "Int64", NAMES[1]: "float64", NAMES[2]: "int8"})
    model.feature_names_in_ = np.array(NAMES, object)
    np.testing.assert_array_equal(model.predict(mixed, batch_size=1024), model.predict(frame))
    mixed.loc[1400, NAMES[0]] = pd.NA
    with pytest.raises(ValueError, match=r"Input X contains NaN, first in row 1400, column 0 \(counted from 0\)\."):
        model.predict(mixed)


def test_messages_of_missing_values_are_short(data):
    codes = data.B_train.copy()
    codes[5, 2] = np.inf
    with pytest.raises(
        ValueError, match=r"^Input y contains infinity, first in row 5, column 2 \(counted from 0\)\. Remove or replace"
    ):
        ISTA().fit(data.Y_train, codes)
    message = r"^Input y contains NaN, first in row 3 \(counted from 0\)\. Remove or impute missing values\.$"
    with pytest.raises(ValueError, match=message):
        ISTA().fit(data.Y_train, np.where(np.arange(40) == 3, np.nan, 1.0))


@pytest.mark.parametrize("n_pairs", [1, 19, 20])
def test_calibration_by_few_pairs_warns(data, n_pairs, recwarn):
    model = given(np.eye(K))
    model.calibrate(data.Y_test[:n_pairs], data.B_test[:n_pairs, :K])
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == (n_pairs < 20)
    if messages:
        assert f"calibrate was given {n_pairs} pairs" in messages[0]
        assert recwarn[0].filename == __file__


@pytest.mark.parametrize("name", ESTIMATORS)
def test_observations_and_codes_that_look_swapped_are_warned_of(data, name, recwarn):
    ESTIMATORS[name]().fit(data.B_train, data.Y_train)
    (warning,) = recwarn
    assert warning.category is UserWarning
    assert "as if observations and codes were swapped" in str(warning.message)
    assert "fit(observations, codes)" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(("zeros_of_X", "zeros_of_y"), [(0.5, 0.0), (0.9, 0.01), (0.0, 0.0), (1.0, 0.0), (0.0, 0.9)])
def test_other_shares_of_zeros_are_no_reason_to_warn(data, zeros_of_X, zeros_of_y):
    random = np.random.default_rng(0)
    X, y = random.standard_normal((50, 4)), random.standard_normal((50, 4))
    for values, share in ((X, zeros_of_X), (y, zeros_of_y)):
        values.ravel()[: round(share * values.size)] = 0.0
    ISTA(2).fit(X, y)


@pytest.mark.parametrize("make", [pandas_frame, polars_frame, lambda values, names: values])
def test_matrices_are_shown_by_their_corners(make):
    matrix = make(np.random.default_rng(0).standard_normal((50, 100)), [f"source {d}" for d in range(100)])
    for model, parameter in (
        (ISTA(design_matrix=matrix), "design_matrix"),
        (SparseCodingTransformer(matrix), "dictionary"),
    ):
        shown = repr(model)
        assert shown.startswith(f"{type(model).__name__}({parameter}=array([[ 0.1257, -0.1321, ...,")
        assert shown.count("\n") <= 5
        assert getattr(model, parameter) is matrix
        assert len(repr(make_pipeline(model))) < 2000


def test_many_parameters_are_shown_in_several_lines():
    model = LISTA(3, max_iter=4, random_state=0, learning_rate=0.5, batch_size=3, optimizer="sgd", tol=0.1)
    assert max(map(len, repr(model).splitlines())) <= 80


@pytest.mark.parametrize("name", ESTIMATORS)
def test_representations_are_short(name):
    estimator = ESTIMATORS[name]().set_params(design_matrix=np.random.default_rng(0).standard_normal((784, 784)))
    for matrix in (estimator.design_matrix, pd.DataFrame(estimator.design_matrix)):
        estimator.set_params(design_matrix=matrix)
        assert len(repr(estimator)) < 2000
        assert len(estimator._repr_html_()) < 100_000


def test_tags_say_what_is_so():
    for name, make in ESTIMATORS.items():
        tags = get_tags(make())
        assert tags.target_tags.multi_output
        assert tags.target_tags.single_output
        assert tags.target_tags.required
        assert not tags.input_tags.sparse
        assert tags.input_tags.allow_nan == (name == "SpikeSlabNet")
        assert not tags.non_deterministic
        assert tags.transformer_tags.preserves_dtype == ["float64", "float32"], name
    assert not get_tags(SpikeSlabNet(design_matrix=np.eye(2))).target_tags.required


def test_pipelines_pass_options_of_predict_on(data):
    pipeline = make_pipeline(StandardScaler(), ISTA(3)).fit(data.Y_train, sp.csr_array(data.B_train))
    sparse = pipeline.predict(data.Y_test, sparse=True, batch_size=8)
    np.testing.assert_array_equal(sparse.toarray(), pipeline.predict(data.Y_test))
