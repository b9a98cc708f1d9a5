"""Streams of pairs: the same model however they arrive and wherever they are interrupted, in constant memory."""

import os
import signal
import subprocess
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import SGDRegressor

import bayeslista
from bayeslista import ISTA, BayesLISTA, SparseCodingTransformer, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.io.records import read_record
from bayeslista.out_of_core import fit_stream

K, D, N, SIZE = 6, 8, 328, 64  # few sizes are compiled: those of batches, and of the eight pairs that are left
MODELS = {
    "BayesLISTA": BayesLISTA(2),
    "SpikeSlabNet": SpikeSlabNet(2, mode="fast", training="none", random_state=0),
}
both = pytest.mark.parametrize("name", list(MODELS))


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(N, 20, K, D, random_state=0)


@pytest.fixture(scope="module")
def pairs(data):
    return data.Y_train, data.B_train


@pytest.fixture(scope="module")
def uninterrupted(pairs):
    return {name: fit_stream(clone(model), pairs, batch_size=SIZE) for name, model in MODELS.items()}


class BrokenLineError(Exception):
    """What happens to a stream."""


def pieces(pairs, size=50, stop=None):
    for begin in range(0, len(pairs[0]), size):
        if stop is not None and begin + size > stop:
            raise BrokenLineError
        yield tuple(side[begin : begin + size] for side in pairs)


def assert_same(one, other, Y):
    for mine, theirs in zip(one.predict(Y, return_std=True), other.predict(Y, return_std=True), strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert one.design_matrix_.tobytes() == other.design_matrix_.tobytes()


@both
def test_a_stream_gives_what_partial_fit_does(data, pairs, uninterrupted, name):
    model = clone(MODELS[name]).partial_fit(*pairs)
    np.testing.assert_allclose(uninterrupted[name].predict(data.Y_test), model.predict(data.Y_test), rtol=1e-8)


@settings(max_examples=15)
@given(st.lists(st.integers(0, N), max_size=8))
def test_pieces_of_any_sizes_give_the_same_bits(data, pairs, uninterrupted, cuts):
    cuts = [0, *sorted(cuts), N]
    stream = [tuple(side[a:b] for side in pairs) for a, b in pairwise(cuts)]
    model = fit_stream(clone(MODELS["BayesLISTA"]), stream, batch_size=SIZE)
    assert_same(model, uninterrupted["BayesLISTA"], data.Y_test)


@both
def test_single_pairs_lists_and_files_give_the_same_bits(data, pairs, uninterrupted, tmp_path, name):
    for side, values in zip("Xy", pairs, strict=True):
        np.save(tmp_path / f"{side}.npy", values)
    memory_maps = tuple(np.load(tmp_path / f"{side}.npy", mmap_mode="r") for side in "Xy")
    streams = (
        zip(*pairs, strict=True),
        tuple(tuple(side[rows] for side in pairs) for rows in (slice(0, 200), slice(200, N))),
        tuple(side.tolist() for side in pairs),
        memory_maps,
    )
    for stream in streams:
        assert_same(fit_stream(clone(MODELS[name]), stream, batch_size=SIZE), uninterrupted[name], data.Y_test)


SENSORS, SOURCES = [f"sensor {k}" for k in range(K)], [f"source {d}" for d in range(D)]
frames = pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])


def named(frame, pairs):
    """The same pairs as frames; pandas with an index that is no position."""
    for values, names in zip(pairs, (SENSORS, SOURCES), strict=True):
        made = frame(dict(zip(names, values.T, strict=True)))
        yield made.set_index(np.arange(N) / 10) if frame is pd.DataFrame else made


@both
@frames
def test_names_of_columns_are_kept(data, pairs, uninterrupted, tmp_path, name, frame):
    whole = tuple(named(frame, pairs))
    rows = (side if frame is pl.DataFrame else side.iloc for side in whole)
    parts = zip(*([side[i : i + 50] for i in range(0, N, 50)] for side in rows), strict=True)
    for stream in (whole, parts):
        model = fit_stream(clone(MODELS[name]), stream, batch_size=SIZE, checkpoint=tmp_path / "c", resume=False)
        for each in (model, bayeslista.load(tmp_path / "c")):
            assert list(each.feature_names_in_) == SENSORS
            assert list(each.component_names_) == SOURCES
        again = fit_stream(clone(MODELS[name]), whole, batch_size=SIZE, checkpoint=tmp_path / "c")
        assert list(again.feature_names_in_) == SENSORS
        np.testing.assert_array_equal(
            model.predict(pd.DataFrame(data.Y_test, columns=SENSORS)), uninterrupted[name].predict(data.Y_test)
        )


@frames
def test_pieces_of_other_columns_are_refused(pairs, frame):
    X, y = named(frame, pairs)
    others = {
        "Piece 1 of the stream: The feature names should match": (X[SENSORS[::-1]], y),
        "Piece 1 of the stream: The names of the columns of y should match": (X, y[SOURCES[::-1]]),
    }
    for message, other in others.items():
        model = clone(MODELS["BayesLISTA"])
        with pytest.raises(ValueError, match=message):
            fit_stream(model, [(X, y), other], batch_size=SIZE)
        assert not hasattr(model, "feature_names_in_")
    model = fit_stream(clone(MODELS["BayesLISTA"]), (X, y), batch_size=SIZE)
    for message, other in others.items():
        with pytest.raises(ValueError, match=message.removeprefix("Piece 1 of the stream: ")):
            fit_stream(model, other, batch_size=SIZE)
    assert list(model.feature_names_in_) == SENSORS


def test_names_that_some_pieces_lack_are_told_as_partial_fit_does(pairs):
    X, y = named(pd.DataFrame, pairs)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model = fit_stream(clone(MODELS["BayesLISTA"]), [(X, y), pairs], batch_size=SIZE)
    assert list(model.feature_names_in_) == SENSORS
    with pytest.warns(UserWarning, match="X has feature names, but BayesLISTA was fitted without"):
        model = fit_stream(clone(MODELS["BayesLISTA"]), [pairs, (X, y)], batch_size=SIZE)
    assert not hasattr(model, "feature_names_in_")


def test_single_pairs_go_on_from_a_model_with_names(pairs):
    model = fit_stream(clone(MODELS["BayesLISTA"]), tuple(named(pd.DataFrame, pairs)), batch_size=SIZE)
    fit_stream(model, zip(*pairs, strict=True), batch_size=SIZE)
    assert list(model.feature_names_in_) == SENSORS
    assert list(model.component_names_) == SOURCES


def test_one_dimensional_codes_stay_so(pairs):
    Y, y = pairs[0][:SIZE], pairs[1][:SIZE, 0]
    whole = fit_stream(clone(MODELS["BayesLISTA"]), (Y, y), batch_size=SIZE)
    single = fit_stream(clone(MODELS["BayesLISTA"]), zip(Y, y, strict=True), batch_size=SIZE)
    assert whole.predict(Y).shape == (SIZE,)
    np.testing.assert_array_equal(single.predict(Y), whole.predict(Y))


def test_memory_that_is_used_again_does_no_harm(data, pairs, uninterrupted):
    def stream():
        room = [np.empty((50, side.shape[1])) for side in pairs]
        for piece in pieces(pairs):
            for kept, new in zip(room, piece, strict=True):
                kept[: len(new)] = new
            yield tuple(kept[: len(piece[0])] for kept in room)

    model = fit_stream(clone(MODELS["BayesLISTA"]), stream(), batch_size=SIZE)
    assert_same(model, uninterrupted["BayesLISTA"], data.Y_test)


# BayesLISTA keeps the last 2,000 pairs: 32 chunks of 128 fill that, and compile the fits to it.
@pytest.mark.parametrize(
    ("name", "size", "n_first", "limit"), [("BayesLISTA", 128, 32, 2**20), ("SpikeSlabNet", 512, 2, 2**21)]
)
def test_memory_does_not_grow_with_the_stream(name, size, n_first, limit):
    n_observed = 32
    n_more = 20 * limit // (size * n_observed * 8)

    def peak(n_pieces):
        random = np.random.default_rng(0)
        stream = (
            (random.standard_normal((size, n_observed)), random.standard_normal((size, 2))) for _ in range(n_pieces)
        )
        tracemalloc.start()
        try:
            fit_stream(clone(MODELS[name]), stream, batch_size=size)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(n_first + n_more)  # compiles
    assert peak(n_first + n_more) < peak(n_first) + limit


@pytest.mark.parametrize(
    ("name", "stops"),
    [("BayesLISTA", [0, 40, 150, 300]), ("SpikeSlabNet", [200])],
)
def test_an_interrupted_stream_ends_with_the_same_bits(data, pairs, uninterrupted, tmp_path, name, stops):
    path, model = tmp_path / "checkpoint", clone(MODELS[name])
    for stop in stops:
        with pytest.raises(BrokenLineError):
            fit_stream(model, pieces(pairs, stop=stop), batch_size=SIZE, checkpoint=path, every=100)
        assert not hasattr(model, "design_matrix_")
    fit_stream(model, pieces(pairs, 90), batch_size=SIZE, checkpoint=path, every=100)
    assert_same(model, uninterrupted[name], data.Y_test)
    assert_same(bayeslista.load(path), uninterrupted[name], data.Y_test)
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_file_is_taken_up_at_its_row(data, pairs, uninterrupted, tmp_path):
    class Rows:
        """An array on a slow disk."""

        def __init__(self, values, last=N):
            self.values, self.last, self.read = values, last, []

        def __len__(self):
            return len(self.values)

        def __getitem__(self, rows):
            if rows.stop > self.last:
                raise BrokenLineError
            self.read.append(rows.start)
            return self.values[rows]

    options = {"batch_size": SIZE, "checkpoint": tmp_path / "checkpoint", "every": 1}
    model = clone(MODELS["BayesLISTA"])
    with pytest.raises(BrokenLineError):
        fit_stream(model, (Rows(pairs[0], 200), pairs[1]), **options)
    again = Rows(pairs[0], N + SIZE)
    assert_same(fit_stream(model, (again, pairs[1]), **options), uninterrupted["BayesLISTA"], data.Y_test)
    assert again.read == [0, 128, 192, 256, 320]


def test_a_killed_process_is_taken_up_again(data, pairs, uninterrupted, tmp_path):
    np.savez(tmp_path / "pairs.npz", X=pairs[0], y=pairs[1])
    script = f"""
import os, signal
import numpy as np
from bayeslista import BayesLISTA
from bayeslista.out_of_core import fit_stream
pairs = np.load({str(tmp_path / "pairs.npz")!r})
X, y = pairs["X"], pairs["y"]
def stream():
    for begin in range(0, len(X), 50):
        if begin == 250:
            os.kill(os.getpid(), signal.SIGKILL)
        yield X[begin:begin + 50], y[begin:begin + 50]
fit_stream(BayesLISTA(2), stream(), batch_size={SIZE}, checkpoint={str(tmp_path / "checkpoint")!r}, every=100)
"""
    source = str(Path(bayeslista.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert bayeslista.load(tmp_path / "checkpoint").history_["n_pairs"].sum() == 2 * SIZE
    model = fit_stream(
        clone(MODELS["BayesLISTA"]), pieces(pairs), batch_size=SIZE, checkpoint=tmp_path / "checkpoint", every=100
    )
    assert_same(model, uninterrupted["BayesLISTA"], data.Y_test)


@both
def test_after_the_end_nothing_changes_until_the_stream_grows(data, pairs, uninterrupted, tmp_path, name):
    path = tmp_path / "checkpoint"
    begun = tuple(side[:288] for side in pairs)
    fit_stream(clone(MODELS[name]), begun, batch_size=SIZE, checkpoint=path)
    content = path.read_bytes()
    for stream in (begun, pieces(begun)):
        model = fit_stream(clone(MODELS[name]), stream, batch_size=SIZE, checkpoint=path)
        assert path.read_bytes() == content
        assert_same(model, bayeslista.load(path), data.Y_test)
    grown = fit_stream(clone(MODELS[name]), pairs, batch_size=SIZE, checkpoint=path)
    expected = uninterrupted[name].predict(data.Y_test)
    np.testing.assert_allclose(grown.predict(data.Y_test), expected, rtol=1e-8)


def test_a_fitted_model_goes_on_from_where_it_was(data, pairs, tmp_path):
    first, rest = (tuple(side[rows] for side in pairs) for rows in (slice(0, SIZE), slice(SIZE, N)))
    start = BayesLISTA(2, inference="adf", max_iter=1, random_state=0).fit(*first)
    plain = fit_stream(clone(start).fit(*first), rest, batch_size=SIZE)
    with pytest.raises(BrokenLineError):
        fit_stream(start, pieces(rest, stop=160), batch_size=SIZE, checkpoint=tmp_path / "checkpoint", every=1)
    again = clone(start)  # what it had learned is in the file
    fit_stream(again, rest, batch_size=SIZE, checkpoint=tmp_path / "checkpoint")
    assert_same(again, plain, data.Y_test)


def test_a_short_stream_can_grow_again_and_again(data, pairs, tmp_path):
    path = tmp_path / "checkpoint"
    for n in (8, 16, 16, 80):
        model = bayeslista.load(path) if path.exists() else clone(MODELS["BayesLISTA"])
        fit_stream(model, tuple(side[:n] for side in pairs), batch_size=SIZE, checkpoint=path)
        assert model.history_["n_pairs"].sum() == n


class TestRefusals:
    @pytest.fixture
    def path(self, pairs, tmp_path):
        path = tmp_path / "checkpoint"
        model = BayesLISTA(2, design_matrix=np.ones((K, D)), random_state=np.random.RandomState(0))
        fit_stream(model, pairs, batch_size=SIZE, checkpoint=path)
        return path

    @pytest.mark.parametrize(
        ("model", "options", "message"),
        [
            ({"n_layers": 3}, {}, r"of other parameters: n_layers \(2 there, 3 here\)\. Pass the same"),
            ({"design_matrix": None}, {}, r"design_matrix \(an array of shape \(6, 8\) there, None here\)"),
            ({"random_state": np.random.RandomState(1)}, {}, r"random_state \(RandomState"),
            ({"random_state": 0}, {}, r"random_state \(RandomState.* there, 0 here\)"),
            ({}, {"batch_size": 32}, r"batch_size \(64 there, 32 here\)"),
        ],
    )
    def test_a_checkpoint_of_other_parameters_says_what_differs(self, pairs, path, model, options, message):
        before = path.read_bytes()
        usual = {"n_layers": 2, "design_matrix": np.ones((K, D)), "random_state": np.random.RandomState(0)}
        with pytest.raises(ValueError, match=f"{path} is {message}" if "n_layers" in model else message):
            fit_stream(BayesLISTA(**usual | model), pairs, **{"batch_size": SIZE, "checkpoint": path} | options)
        assert path.read_bytes() == before
        same = BayesLISTA(**usual, verbose=1)
        assert fit_stream(same, pairs, batch_size=SIZE, checkpoint=path).design_matrix is usual["design_matrix"]
        assert same.verbose == 1

    def test_a_checkpoint_of_another_estimator_or_none_is_refused(self, pairs, path):
        with pytest.raises(ValueError, match="is of BayesLISTA, and the model is SpikeSlabNet"):
            fit_stream(clone(MODELS["SpikeSlabNet"]), pairs, checkpoint=path)
        ISTA().save(path)
        with pytest.raises(ValueError, match=r"no checkpoint of a stream.*resume=False"):
            fit_stream(clone(MODELS["BayesLISTA"]), pairs, checkpoint=path)

    def test_another_stream_is_refused(self, pairs, tmp_path):
        path, model = tmp_path / "checkpoint", clone(MODELS["BayesLISTA"])
        options = {"batch_size": SIZE, "checkpoint": path}
        fit_stream(model, pairs, **options)
        before = model.encoder_.tobytes()
        Y, B = pairs
        for stream, message in (
            ((Y[:, 1:], B), "of pairs with 6 observed values and 8 coefficients, and the stream has 5 and 8"),
            ((Y[::-1], B[::-1]), "does not begin with the pairs"),
            (pieces((Y[::-1], B[::-1])), "does not begin with the pairs"),
            ((Y[:100], B[:100]), f"ended after 100 pairs, and {path} has seen 328"),
            (pieces((Y[:100], B[:100])), "ended after 100 pairs"),
            ([], "ended after 0 pairs"),
        ):
            with pytest.raises(ValueError, match=message):
                fit_stream(model, stream, **options)
        assert model.encoder_.tobytes() == before
        fit_stream(model, (Y[::-1], B[::-1]), **options, resume=False)
        assert model.encoder_.tobytes() != before

    @pytest.mark.parametrize("damage", ["cut", "changed", "text"])
    def test_a_damaged_checkpoint_is_told_and_kept(self, pairs, path, damage):
        content = path.read_bytes()
        spoiled = {"cut": content[:-9], "changed": content[:-1] + bytes([content[-1] ^ 1]), "text": b"a,b\n"}[damage]
        path.write_bytes(spoiled)
        with pytest.raises(ValueError, match=rf"{path}.*Delete the file or pass resume=False"):
            fit_stream(clone(MODELS["BayesLISTA"]), pairs, checkpoint=path)
        assert path.read_bytes() == spoiled

    def test_what_cannot_be_kept_is_told_before_anything_is_learned(self, tmp_path):
        def never():
            raise AssertionError("read")
            yield

        with pytest.raises(FileNotFoundError):
            fit_stream(clone(MODELS["BayesLISTA"]), never(), checkpoint=tmp_path / "none" / "checkpoint")
        with pytest.raises(ValueError, match="cannot be saved"):
            fit_stream(BayesLISTA(random_state=np.random.default_rng(0)), never(), checkpoint=tmp_path / "checkpoint")
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("model", [ISTA(), SparseCodingTransformer(np.ones((2, 2))), SGDRegressor(), None])
    def test_models_that_cannot_learn_from_a_stream_are_refused(self, pairs, model):
        with pytest.raises(
            ValueError, match=rf"which {type(model).__name__} does not have; pass BayesLISTA, LISTA or Spike"
        ):
            fit_stream(model, pairs)

    @pytest.mark.parametrize(
        ("stream", "message"),
        [
            (3, "pairs must be an iterable of pieces .* got int"),
            ((np.ones((3, K)), 3), r"a tuple \(X, y\) whose y is a int; pass two arrays"),
            ((np.ones((3, K)), np.ones((2, D))), "X has 3 samples and y has 2; pass one code"),
            ((np.ones((0, K)), np.ones((0, D))), "The stream has no pairs"),
            (iter(()), "The stream has no pairs.*only once"),
            ([3], r"Piece 0 of the stream is not a pair \(X, y\)"),
            ([(np.ones((3, K)), np.ones((2, D)))], r"Piece 0 .* X of shape \(3, 6\) and y of shape \(2, 8\); pass \(n"),
            ([(np.ones((1, 3, K)), np.ones((1, D)))], r"Piece 0 .* X of shape \(1, 3, 6\)"),
            ([(np.ones(K), np.ones(D)), (np.ones(K + 1), np.ones(D))], r"Piece 1 .* \(7,\) and \(8,\), those before"),
        ],
    )
    def test_what_is_no_stream_is_refused(self, stream, message):
        with pytest.raises(ValueError, match=message):
            fit_stream(clone(MODELS["BayesLISTA"]), stream)

    @both
    def test_bad_pairs_are_told_by_their_place(self, pairs, name):
        Y, B = (side.copy() for side in pairs)
        Y[100, 2] = np.inf  # SpikeSlabNet takes NaN for a missing sensor
        with pytest.raises(ValueError, match="Pairs 64 to 127 of the stream: Input X contains infinity"):
            fit_stream(clone(MODELS[name]), (Y, B), batch_size=SIZE)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch_size": 0}, "'batch_size' parameter of .* must be"),
            ({"every": 0}, "'every' parameter of .* must be"),
            ({"resume": 1}, "'resume' parameter of .* must be"),
            ({"progress": "yes"}, "'progress' parameter of .* must be"),
        ],
    )
    def test_options_out_of_range_are_refused(self, pairs, options, message):
        with pytest.raises(ValueError, match=message):
            fit_stream(clone(MODELS["BayesLISTA"]), pairs, **options)

    def test_parameters_out_of_range_are_refused_before_anything_is_read(self):
        with pytest.raises(ValueError, match=r"'n_layers' parameter of .* must be"):
            fit_stream(BayesLISTA(0), 3)


def test_progress_is_shown_when_asked(pairs, capsys):
    for progress in (False, True):
        fit_stream(clone(MODELS["BayesLISTA"]), pairs, batch_size=SIZE, progress=progress)
        assert ("328/328" in capsys.readouterr().err) == progress


def test_a_checkpoint_is_no_pickle(pairs, tmp_path):
    fit_stream(clone(MODELS["BayesLISTA"]), pairs, batch_size=SIZE, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="there is no"):
        read_record(tmp_path / "checkpoint", {})  # only records that are known are made
