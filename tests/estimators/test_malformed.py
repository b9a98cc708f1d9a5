"""Malformed input: every public function refuses it by a message, or answers with finite numbers.

A table of bad values meets a table of entry points, more than a thousand pairs in all, and Hypothesis makes some more.
"""

import datetime
import warnings
from decimal import Decimal
from numbers import Number

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import bayeslista
from bayeslista import (
    FISTA,
    ISTA,
    LISTA,
    BayesLISTA,
    SparseCodingTransformer,
    SpikeSlab,
    SpikeSlabNet,
    active,
    datasets,
    decisions,
    metrics,
)
from bayeslista.io.records import read_record
from bayeslista.io.tables import read_table, write_table
from bayeslista.out_of_core import fit_stream

N, K, D = 24, 4, 6
DATA = datasets.make_sparse_codes(N, 5, K, D, random_state=0)
X, Y, MATRIX = DATA.Y_train, DATA.B_train, DATA.design_matrix
DIST = SpikeSlab(np.full((N, D), 0.3), Y, 0.5)


def _with(array, value):
    changed = np.array(array)
    changed[1, 2] = value
    return changed


# Of each: a function of the right shape that makes it anew, since generators can be read only once.
BAD_ARRAYS = {
    "None": lambda n, m: None,
    "text": lambda n, m: "observations",
    "bytes": lambda n, m: b"observations",
    "a number": lambda n, m: 3.0,
    "NaN": lambda n, m: float("nan"),
    "object()": lambda n, m: object(),
    "a type": lambda n, m: float,
    "a function": lambda n, m: len,
    "a dict": lambda n, m: {"a": 1, "b": 2},
    "a dict of columns": lambda n, m: {i: list(range(n)) for i in range(m)},
    "a set": lambda n, m: {1.0, 2.0},
    "a generator": lambda n, m: (row for row in np.ones((n, m))),
    "a range": lambda n, m: range(n),
    "an ellipsis": lambda n, m: ...,
    "an empty list": lambda n, m: [],
    "an empty row": lambda n, m: [[]],
    "no rows": lambda n, m: np.empty((0, m)),
    "no columns": lambda n, m: np.empty((n, 0)),
    "zero dimensions": lambda n, m: np.array(1.0),
    "one dimension": lambda n, m: np.ones(m),
    "one dimension, short": lambda n, m: np.ones(n - 1),
    "three dimensions": lambda n, m: np.ones((n, m, 1)),
    "four dimensions": lambda n, m: np.ones((2, n, m, 2)),
    "too few rows": lambda n, m: np.ones((n - 1, m)),
    "too many columns": lambda n, m: np.ones((n, m + 1)),
    "transposed": lambda n, m: np.ones((m, n)),
    "ragged": lambda n, m: [[1.0] * (m - i % 2) for i in range(n)],
    "nested too deep": lambda n, m: [[[1.0, 2.0], 3.0]] * n,
    "objects": lambda n, m: np.full((n, m), object(), object),
    "objects with None": lambda n, m: _with(np.ones((n, m), object), None),
    "decimals": lambda n, m: np.full((n, m), Decimal("1.5"), object),
    "complex": lambda n, m: np.full((n, m), 1 + 1j),
    "strings": lambda n, m: np.full((n, m), "one"),
    "strings of numbers": lambda n, m: np.full((n, m), "1.5"),
    "dates": lambda n, m: np.full((n, m), np.datetime64("2020-01-01")),
    "durations": lambda n, m: np.full((n, m), np.timedelta64(3, "D")),
    "a date": lambda n, m: datetime.date(2020, 1, 1),
    "void": lambda n, m: np.zeros((n, m), [("a", float), ("b", int)]),
    "masked": lambda n, m: np.ma.masked_array(np.ones((n, m)), np.ones((n, m), bool)),
    "booleans": lambda n, m: np.tile(np.arange(m) % 2 == 0, (n, 1)),
    "small integers": lambda n, m: np.tile(np.arange(m, dtype=np.int8), (n, 1)),
    "half precision": lambda n, m: np.tile(np.arange(m, dtype=np.float16), (n, 1)),
    "one NaN": lambda n, m: _with(np.ones((n, m)), np.nan),
    "one infinity": lambda n, m: _with(np.ones((n, m)), np.inf),
    "one minus infinity": lambda n, m: _with(np.ones((n, m)), -np.inf),
    "all NaN": lambda n, m: np.full((n, m), np.nan),
    "huge": lambda n, m: np.tile((-1.0) ** np.arange(m) * 1e300, (n, 1)),
    "one huge": lambda n, m: _with(np.tile(np.arange(m, dtype=float), (n, 1)), 1e200),
    "tiny": lambda n, m: np.full((n, m), 5e-324),
    "zeros": lambda n, m: np.zeros((n, m)),
    "negative": lambda n, m: np.full((n, m), -1.0),
    "constant": lambda n, m: np.ones((n, m)),
    "sparse": lambda n, m: scipy.sparse.eye_array(n, m, format="csr"),
    "sparse, wrong": lambda n, m: scipy.sparse.eye_array(n + 1, m + 2, format="coo"),
    "big integers": lambda n, m: [[10**400] * m] * n,
}
BAD_NUMBERS = {
    "None": None,
    "text": "many",
    "a number as text": "1",
    "bytes": b"1",
    "a list": [1],
    "a tuple": (1, 2),
    "a dict": {},
    "an array": np.ones(2),
    "an empty array": np.ones(0),
    "object()": object(),
    "a type": int,
    "complex": 1 + 1j,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": -float("inf"),
    "minus one": -1,
    "minus a half": -0.5,
    "one and a half": 1.5,
    "zero": 0,
    "True": True,
    "a decimal": Decimal("NaN"),
    "a date": datetime.date(2020, 1, 1),
    "huge": 1e300,
}


def _models():
    common = {"design_matrix": MATRIX, "random_state": 0}
    return {
        "ISTA": ISTA(2, design_matrix=MATRIX),
        "FISTA": FISTA(2, design_matrix=MATRIX),
        "LISTA": LISTA(2, max_iter=1, **common),
        "BayesLISTA": BayesLISTA(2, max_iter=1, **common),
        "filtering": BayesLISTA(2, max_iter=1, inference="adf", **common),
        "SpikeSlabNet": SpikeSlabNet(2, mode="fast", training="none", **common),
        "SparseCodingTransformer": SparseCodingTransformer(
            MATRIX.T, estimator=SpikeSlabNet(2, mode="fast", training="none")
        ),
    }


MODELS = _models()
FITTED = {}  # while tests run: to collect them takes no model
DISTRIBUTIONAL = ("BayesLISTA", "filtering", "SpikeSlabNet")
CODERS = tuple(name for name in MODELS if name != "SparseCodingTransformer")


@pytest.fixture(scope="module", autouse=True)
def _fitted():
    FITTED.update({name: clone(model).fit(X, Y) for name, model in MODELS.items()})


def _copied(model):
    """A fitted model of one's own, which may be changed."""
    other = clone(model)
    other.__dict__.update(model.__dict__)
    return other


def _array_entries():
    """Where arrays go in: a name, the shape that is right there, and a function."""
    entries = {}

    def add(name, function, shape):
        entries[name] = (function, shape)

    for name in MODELS:
        add(f"{name}.fit(X)", lambda bad, name=name: clone(MODELS[name]).fit(bad, Y), (N, K))
        add(f"{name}.fit(y)", lambda bad, name=name: clone(MODELS[name]).fit(X, bad), (N, D))
        add(f"{name}.transform", lambda bad, name=name: FITTED[name].transform(bad), (N, K))
    for name in CODERS:
        if name != "filtering":
            made = {
                "ISTA": ISTA,
                "FISTA": FISTA,
                "LISTA": LISTA,
                "BayesLISTA": BayesLISTA,
                "SpikeSlabNet": SpikeSlabNet,
            }
            options = {k: v for k, v in MODELS[name].get_params().items() if k != "design_matrix"}
            add(
                f"{name}(design_matrix)",
                lambda bad, kind=made[name], options=options: kind(design_matrix=bad, **options).fit(X, Y),
                (K, D),
            )
        add(f"{name}.predict", lambda bad, name=name: FITTED[name].predict(bad), (N, K))
        add(f"{name}.score(X)", lambda bad, name=name: FITTED[name].score(bad, Y), (N, K))
        add(f"{name}.score(y)", lambda bad, name=name: FITTED[name].score(X, bad), (N, D))
    for name in DISTRIBUTIONAL:
        add(f"{name}.predict(return_std)", lambda bad, name=name: FITTED[name].predict(bad, return_std=True), (N, K))
        add(f"{name}.predict_dist", lambda bad, name=name: FITTED[name].predict_dist(bad), (N, K))
        add(f"{name}.predict_interval", lambda bad, name=name: FITTED[name].predict_interval(bad), (N, K))
        add(f"{name}.partial_fit(X)", lambda bad, name=name: _copied(FITTED[name]).partial_fit(bad, Y), (N, K))
        add(f"{name}.partial_fit(y)", lambda bad, name=name: _copied(FITTED[name]).partial_fit(X, bad), (N, D))
        add(f"{name}.calibrate(X)", lambda bad, name=name: _copied(FITTED[name]).calibrate(bad, Y), (N, K))
        add(f"{name}.calibrate(y)", lambda bad, name=name: _copied(FITTED[name]).calibrate(X, bad), (N, D))
    add(
        "SparseCodingTransformer(dictionary)",
        lambda bad: SparseCodingTransformer(bad, estimator=ISTA(2)).fit(X),
        (D, K),
    )
    add("transform_std", lambda bad: FITTED["SparseCodingTransformer"].transform_std(bad), (N, K))
    add("transform_dist", lambda bad: FITTED["SparseCodingTransformer"].transform_dist(bad), (N, K))
    add("inverse_transform", lambda bad: FITTED["SparseCodingTransformer"].inverse_transform(bad), (N, D))
    add("fit_stream", lambda bad: fit_stream(clone(MODELS["SpikeSlabNet"]), bad), (N, K))
    add("fit_stream(X)", lambda bad: fit_stream(clone(MODELS["SpikeSlabNet"]), (bad, Y)), (N, K))
    add("fit_stream(y)", lambda bad: fit_stream(clone(MODELS["SpikeSlabNet"]), [(X, bad)]), (N, D))

    for name in ("nmse", "nmse_db", "support_f_measure"):
        function = getattr(metrics, name)
        add(f"{name}(B_true)", lambda bad, function=function: function(bad, Y), (N, D))
        add(f"{name}(B_pred)", lambda bad, function=function: function(Y, bad), (N, D))
    scores = "pit pit_coverage coverage support_coverage log_score crps variance_ratio brier_score"
    for name in f"{scores} expected_calibration_error reliability_curve support_scores".split():
        function = getattr(metrics, name)
        add(f"{name}(B)", lambda bad, function=function: function(DIST, bad), (N, D))
        add(f"{name}(samples)", lambda bad, function=function: function(bad, Y[0]), (N, D))
        add(f"{name}(mean)", lambda bad, function=function: function((bad, 1.0), Y), (N, D))
        add(f"{name}(std)", lambda bad, function=function: function((Y, bad), Y), (N, D))
    for name in ("interval_width", "sharpness"):
        function = getattr(metrics, name)
        add(name, function, (N, D))
        add(f"{name}(std)", lambda bad, function=function: function((Y, bad)), (N, D))
    add("fit_spike_head(mean)", lambda bad: metrics.fit_spike_head(bad, 1.0, Y), (N, D))
    add("fit_spike_head(B)", lambda bad: metrics.fit_spike_head(Y, 1.0, bad), (N, D))
    head = metrics.fit_spike_head(Y, 1.0, Y)
    add("with_spike(mean)", lambda bad: metrics.with_spike(bad, 1.0, head), (N, D))
    add("with_spike(std)", lambda bad: metrics.with_spike(Y, bad, head), (N, D))

    add("SpikeSlab(prob_active)", lambda bad: SpikeSlab(bad, 0.0, 1.0), (N, D))
    add("SpikeSlab(slab_mean)", lambda bad: SpikeSlab(0.5, bad, 1.0), (N, D))
    add("SpikeSlab(slab_var)", lambda bad: SpikeSlab(0.5, 0.0, bad), (N, D))
    add("SpikeSlab.log_prob", DIST.log_prob, (N, D))
    for name in ("cdf", "quantile", "interval"):
        add(f"SpikeSlab.{name}", getattr(DIST, name), (N, D))

    add("select", lambda bad: decisions.select(bad, 0.1), (N, D))
    add("credible_sets(draws)", lambda bad: decisions.credible_sets(bad, X[:, :1].repeat(D, 1)), (N, D))
    add("credible_sets(design_matrix)", lambda bad: decisions.credible_sets(Y, bad), (K, D))
    add("joint_interval", lambda bad: decisions.joint_interval(bad, 0.1), (N, D))
    add("probability", lambda bad: decisions.probability(bad, lambda b: b[..., 0] > 0), (N, D))

    add(
        "make_sparse_codes(design_matrix)",
        lambda bad: datasets.make_sparse_codes(5, 2, K, D, design_matrix=bad),
        (K, D),
    )
    for name in ("total_variance", "spike_slab_entropy", "support_entropy"):
        add(name, getattr(active, name), (N, D))
    add("variance_reduction(features)", lambda bad: active.variance_reduction(DIST, bad, X), (N, K))
    add("variance_reduction(known)", lambda bad: active.variance_reduction(DIST, X, bad), (N, K))
    add("select_batch(scores)", lambda bad: active.select_batch(bad, 2), (N, 3))
    add("select_batch(features)", lambda bad: active.select_batch(np.arange(N), 2, bad), (N, K))
    for place in range(4):
        add(
            f"active_learning({place})",
            lambda bad, place=place: _learn_actively(place, bad),
            (N, K if place % 2 == 0 else D),
        )
    return entries


def _learn_actively(place, bad):
    given = [X, Y, X, Y]
    given[place] = bad
    return [step.score for step in active.active_learning(_copied(FITTED["SpikeSlabNet"]), *given, n_additions=1)]


def _number_entries():
    """Where a number, a choice or a path goes in."""
    entries = {}
    for name, model in MODELS.items():
        for parameter in model.get_params(deep=False):
            if parameter not in ("design_matrix", "dictionary", "random_state"):
                entries[f"{name}({parameter})"] = lambda bad, model=model, parameter=parameter: (
                    clone(model).set_params(**{parameter: bad}).fit(X, Y)
                )

    def spike():
        return FITTED["SpikeSlabNet"]

    entries |= {
        "ISTA(random_state)": lambda bad: LISTA(2, max_iter=1, random_state=bad).fit(X, Y),
        "predict(batch_size)": lambda bad: FITTED["ISTA"].predict(X, batch_size=bad),
        "predict(sparse)": lambda bad: FITTED["ISTA"].predict(X, sparse=bad),
        "predict_interval(level)": lambda bad: spike().predict_interval(X, bad),
        "predict_interval(given_active)": lambda bad: spike().predict_interval(X, given_active=bad),
        "predict_interval(method)": lambda bad: spike().predict_interval(X, method=bad),
        "calibrate(method)": lambda bad: _copied(spike()).calibrate(X, Y, method=bad),
        "fit_stream(model)": lambda bad: fit_stream(bad, (X, Y)),
        "fit_stream(batch_size)": lambda bad: fit_stream(clone(MODELS["SpikeSlabNet"]), (X, Y), batch_size=bad),
        "fit_stream(every)": lambda bad: fit_stream(clone(MODELS["SpikeSlabNet"]), (X, Y), every=bad),
        "fit_stream(resume)": lambda bad: fit_stream(clone(MODELS["SpikeSlabNet"]), (X, Y), resume=bad),
        "coverage(level)": lambda bad: metrics.coverage(DIST, Y, bad),
        "support_coverage(level)": lambda bad: metrics.support_coverage(DIST, Y, bad),
        "pit_coverage(level)": lambda bad: metrics.pit_coverage(DIST, Y, bad),
        "interval_width(level)": lambda bad: metrics.interval_width(DIST, bad),
        "support_scores(threshold)": lambda bad: metrics.support_scores(DIST, Y, bad),
        "support_f_measure(threshold)": lambda bad: metrics.support_f_measure(Y, Y, bad),
        "reliability_curve(n_bins)": lambda bad: metrics.reliability_curve(DIST, Y, bad),
        "expected_calibration_error(n_bins)": lambda bad: metrics.expected_calibration_error(DIST, Y, bad),
        "distribution_scorer(loss)": lambda bad: metrics.distribution_scorer(bad)(spike(), X, Y),
        "with_spike(head)": lambda bad: metrics.with_spike(Y, 1.0, bad),
        "select(fdr)": lambda bad: decisions.select(np.ones(3), bad),
        "select(axis)": lambda bad: decisions.select(np.ones(3), 0.1, bad),
        "credible_sets(level)": lambda bad: decisions.credible_sets(Y, np.ones((K, D)), bad),
        "credible_sets(min_correlation)": lambda bad: decisions.credible_sets(Y, np.ones((K, D)), 0.9, bad),
        "joint_interval(level)": lambda bad: decisions.joint_interval(Y, bad),
        "SpikeSlab.sample(n)": lambda bad: DIST.sample(bad),
        "SpikeSlab.sample(random_state)": lambda bad: DIST.sample(1, bad),
        "make_sparse_codes(n_train)": lambda bad: datasets.make_sparse_codes(bad, 2, K, D),
        "make_sparse_codes(n_observed)": lambda bad: datasets.make_sparse_codes(3, 2, bad, D),
        "make_sparse_codes(n_components)": lambda bad: datasets.make_sparse_codes(3, 2, K, bad),
        "make_sparse_codes(prob_active)": lambda bad: datasets.make_sparse_codes(3, 2, K, D, prob_active=bad),
        "make_sparse_codes(noise_std)": lambda bad: datasets.make_sparse_codes(3, 2, K, D, noise_std=bad),
        "make_sparse_codes(random_state)": lambda bad: datasets.make_sparse_codes(3, 2, K, D, random_state=bad),
        "select_batch(n)": lambda bad: active.select_batch(np.arange(9), bad),
        "select_batch(shortlist)": lambda bad: active.select_batch(np.arange(9), 2, X[:9], shortlist=bad),
        "variance_reduction(noise)": lambda bad: active.variance_reduction(DIST, X, X, noise=bad),
        "active_learning(model)": lambda bad: list(active.active_learning(bad, X, Y, X, Y, n_additions=1)),
        "active_learning(n_additions)": lambda bad: list(
            active.active_learning(_copied(spike()), X, Y, X, Y, n_additions=bad)
        ),
        "active_learning(strategy)": lambda bad: list(
            active.active_learning(_copied(spike()), X, Y, X, Y, n_additions=1, strategy=bad)
        ),
        "active_learning(update)": lambda bad: list(
            active.active_learning(_copied(spike()), X, Y, X, Y, n_additions=1, update=bad)
        ),
        "load": lambda bad: bayeslista.load(bad),
        "read_record": lambda bad: read_record(bad, {}),
        "read_table": lambda bad: read_table(bad),
        "save": lambda bad: FITTED["ISTA"].save(bad),
        "write_table": lambda bad: write_table(bad, [{"x": X}]),
    }
    return entries


ARRAY_ENTRIES, NUMBER_ENTRIES = _array_entries(), _number_entries()
FILES = {"load", "read_record", "read_table", "save", "write_table"}  # these may raise an OSError, too
# Where an infinity is the right answer: densities of points that cannot be, ends of supports, no error at all.
INFINITE = {"log_score(B)", "variance_ratio(std)", "SpikeSlab.log_prob", "SpikeSlab.quantile", "SpikeSlab.interval"}
SLOW = {("SparseCodingTransformer(estimator)", "None")}  # it is the default


def is_legal(value, infinite):
    """Whether an answer has no NaN in it, and no infinity unless that may be."""
    if isinstance(value, np.ndarray | Number):
        array = np.asarray(value)
        return array.dtype.kind != "f" or not (np.isnan(array) if infinite else ~np.isfinite(array)).any()
    if isinstance(value, SpikeSlab):
        return is_legal((value.prob_active, value.slab_mean, value.slab_var, value.mean(), value.std()), infinite)
    if scipy.sparse.issparse(value):
        return is_legal(value.data, infinite)
    if isinstance(value, (list, tuple)):
        return all(is_legal(part, infinite) for part in value)
    if hasattr(value, "transform"):  # of a model, what it predicts
        return is_legal(value.transform(X), infinite)
    return True


def complaint(entry, function, bad):
    """What is wrong with how a function takes a bad value; None if nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = function(bad)
            legal = is_legal(found, entry in INFINITE)
    except Exception as error:
        allowed = (ValueError, TypeError, OSError) if entry in FILES else (ValueError, TypeError)
        told = isinstance(error, allowed) and len(str(error).split()) >= 3
        return None if told else f"raises {error!r:.200}"
    return None if legal else "answers with what is not finite"


@pytest.mark.parametrize("entry", ARRAY_ENTRIES)
@pytest.mark.slow
def test_bad_arrays_are_refused_by_a_message_or_answered_by_numbers(entry):
    function, shape = ARRAY_ENTRIES[entry]
    wrong = {name: complaint(entry, function, make(*shape)) for name, make in BAD_ARRAYS.items()}
    assert not {name: said for name, said in wrong.items() if said}


@pytest.mark.parametrize("entry", NUMBER_ENTRIES)
def test_bad_numbers_and_choices_are_refused_by_a_message_or_answered_by_numbers(entry, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # a bad path may be a good name
    wrong = {
        name: complaint(entry, NUMBER_ENTRIES[entry], bad)
        for name, bad in BAD_NUMBERS.items()
        if (entry, name) not in SLOW
    }
    assert not {name: said for name, said in wrong.items() if said}


def test_there_are_more_than_a_thousand_of_them():
    assert len(ARRAY_ENTRIES) * len(BAD_ARRAYS) + len(NUMBER_ENTRIES) * len(BAD_NUMBERS) > 1000


@pytest.mark.parametrize("name", CODERS)
@pytest.mark.parametrize("scale", [1e30, 3e37, 1e-30, 1e-42])
@pytest.mark.slow
def test_single_precision_at_its_ends_is_refused_or_answered_by_numbers(name, scale):
    pairs = [(scale * side / np.abs(side).max()).astype(np.float32) for side in (X, Y)]
    model = clone(MODELS[name]).set_params(design_matrix=None)
    assert complaint(name, lambda pairs: model.fit(*pairs).predict(pairs[0]), pairs) is None


@pytest.mark.parametrize("number", [0, 1, True])
@pytest.mark.parametrize("read", [bayeslista.load, read_table, lambda path: read_record(path, {})])
def test_a_number_is_no_file(read, number):
    with pytest.raises(TypeError, match="PathLike"):
        read(number)  # a file of that descriptor would be read, and closed


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3) | st.complex_numbers()
TREES = st.recursive(SCALARS, lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=2), parts))
QUICK = ("ISTA.predict", "ISTA.fit(X)", "ISTA.fit(y)", "nmse(B_pred)", "crps(B)", "SpikeSlab.cdf", "fit_stream")


@pytest.mark.no_cover
@settings(max_examples=30)
@given(st.sampled_from(QUICK), TREES)
def test_whatever_is_made_of_lists_and_scalars_is_refused_or_answered(entry, tree):
    assert complaint(entry, ARRAY_ENTRIES[entry][0], tree) is None
