"""Files of models: nothing changes on the way, nothing half-written stays, and nothing wrong is taken for right."""

import json
import os
import pickle
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import bayeslista
from bayeslista import FISTA, ISTA, LISTA, BayesLISTA, SpikeSlabNet
from bayeslista.bayes_lista.adf.layers import FreeWeights
from bayeslista.datasets import make_sparse_codes
from bayeslista.io import records as persistence
from bayeslista.io.records import read_record, read_versions, write_record
from bayeslista.numerics.soft_threshold_fast import Gaussian

KEPT = Path(__file__).parents[1] / "data"


def make_data():
    return make_sparse_codes(n_train=60, n_test=30, n_observed=8, n_components=10, random_state=0)


@pytest.fixture(scope="module")
def data():
    return make_data()


def estimators(data):
    matrix, few = data.design_matrix, {"random_state": 0, "max_iter": 2}
    return {
        "ista": ISTA(3, design_matrix=matrix),
        "fista": FISTA(3),
        "lista": LISTA(2, design_matrix=matrix, **few),
        "bayes_lista": BayesLISTA(2, design_matrix=matrix, **few),
        "published": BayesLISTA.published(2, design_matrix=matrix, **few),
        "spike_slab_net": SpikeSlabNet(2, mode="fast", design_matrix=matrix, training="none", random_state=0),
        "learned_matrix": SpikeSlabNet(2, mode="fast", training="none", random_state=0),
    }


NAMES = ["ista", "fista", "lista", "bayes_lista", "published", "spike_slab_net", "learned_matrix"]


def assert_same(one, other):
    """Trees of the same types and the same bits."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray) and one.dtype != object:
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif hasattr(one, "__dict__") and not isinstance(one, (type, np.ndarray)):
        # The state that is pickled: arrays cached on the device are made anew.
        assert_same(dict(one.__getstate__() or {}), dict(other.__getstate__() or {}))
    else:
        assert np.array_equal(one, other, equal_nan=isinstance(one, (float, np.floating)))


class TestEstimators:
    @pytest.mark.parametrize(
        ("name", "dtype"), [*((name, np.float64) for name in NAMES), ("spike_slab_net", np.float32)]
    )
    def test_a_round_trip_changes_no_bit(self, data, tmp_path, name, dtype):
        model = estimators(data)[name].fit(data.Y_train.astype(dtype), data.B_train.astype(dtype))
        if hasattr(model, "calibrate"):
            model.calibrate(data.Y_test, data.B_test, method="logistic" if dtype is np.float32 else "isotonic")
        model.save(tmp_path / "model.safetensors")
        again = bayeslista.load(tmp_path / "model.safetensors")
        assert_same(model, again)
        assert_same(model.predict(data.Y_test), again.predict(data.Y_test))
        if hasattr(model, "partial_fit"):
            more = [each.partial_fit(data.Y_test, data.B_test).predict(data.Y_test) for each in (model, again)]
            assert_same(*more)

    def test_images_and_their_base_come_back(self, tmp_path):
        random = np.random.default_rng(0)
        B = np.maximum(random.standard_normal((60, 1)) + 0.3 * random.standard_normal((60, 12)), 0.0)
        Y = B @ random.standard_normal((12, 6))
        model = SpikeSlabNet(2, mode="fast", training="none", random_state=0).fit(Y, B)
        assert model.prior_ == "correlated"
        model.save(tmp_path / "model")
        assert_same(model.predict(Y), bayeslista.load(tmp_path / "model").predict(Y))

    def test_names_of_features_and_the_state_of_randomness_come_back(self, data, tmp_path):
        frame = pd.DataFrame(data.Y_train, columns=[f"y{i}" for i in range(8)])
        model = LISTA(2, max_iter=1, random_state=np.random.RandomState(3)).fit(frame, data.B_train)
        model.save(tmp_path / "model")
        again = bayeslista.load(tmp_path / "model")
        assert again.feature_names_in_.tolist() == list(frame.columns)
        assert again.random_state.randint(10**9) == clone(model).random_state.randint(10**9)
        with pytest.raises(ValueError, match="feature names"):
            again.predict(frame.rename(columns={"y0": "z0"}))

    def test_names_of_coefficients_come_back(self, data, tmp_path):
        names = [f"source {d}" for d in range(10)]
        ISTA(2).fit(data.Y_train, pd.DataFrame(data.B_train, columns=names)).save(tmp_path / "model")
        again = bayeslista.load(tmp_path / "model")
        assert again.component_names_.dtype == object
        assert list(again.get_feature_names_out()) == names

    @pytest.mark.parametrize("names", [np.array(["a"] * 10, object), np.array(["a"], object), np.zeros(10), "abc"])
    def test_names_that_cannot_be_are_refused(self, data, tmp_path, names):
        model = ISTA(2).fit(data.Y_train, data.B_train)
        model.component_names_ = names
        model.save(tmp_path / "model")
        with pytest.raises(ValueError, match="component_names_ is missing or not as it should be"):
            bayeslista.load(tmp_path / "model")

    def test_one_that_is_not_fitted_is_still_not(self, data, tmp_path):
        BayesLISTA(7, shrinkage=0.2).save(tmp_path / "model")
        again = bayeslista.load(tmp_path / "model")
        assert again.get_params() == BayesLISTA(7, shrinkage=0.2).get_params()
        with pytest.raises(NotFittedError):
            again.predict(data.Y_test)

    @pytest.mark.parametrize("name", NAMES[:-1])
    def test_files_written_earlier_are_read(self, data, name):
        """Until the first release tests/helpers/write_models.py may write them anew."""
        model = bayeslista.load(KEPT / f"{name}.safetensors")
        expected = np.load(KEPT / "predictions.npz")[name]
        # BayesLISTA carries variances in single precision when it predicts, which it did not when the file was written.
        atol = 1e-5 if name == "bayes_lista" else 1e-8
        np.testing.assert_allclose(model.predict(data.Y_test[:3]), expected, rtol=1e-6, atol=atol)

    def test_what_cannot_be_saved_is_refused_before_anything_is_written(self, tmp_path):
        class Mine(ISTA):
            pass

        for model, message in (
            (Mine(), "load cannot read Mine"),
            (LISTA(random_state=np.random.default_rng(0)), r"state.*random_state.*Generator, which cannot be saved"),
            (ISTA(design_matrix=np.array([["a", 1]], dtype=object)), "cannot be saved"),
        ):
            with pytest.raises(ValueError, match=message):
                model.save(tmp_path / "model")
        assert os.listdir(tmp_path) == []

    def test_pickle_keeps_them_as_well(self, data):
        model = estimators(data)["bayes_lista"].fit(data.Y_train, data.B_train)
        assert_same(model.predict(data.Y_test), pickle.loads(pickle.dumps(model)).predict(data.Y_test))


class Anything(NamedTuple):
    one: Any
    other: Any


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.dtype, st.sampled_from(["float32", "int64"])),
    hnp.arrays(st.sampled_from([np.float64, np.float32, np.int64, np.bool_]), hnp.array_shapes(min_dims=0, min_side=0)),
)
TREES = st.recursive(
    LEAVES,
    lambda part: st.one_of(
        st.lists(part),
        st.tuples(part, part),
        st.dictionaries(st.text(), part),
        st.builds(Anything, part, part),
    ),
    max_leaves=8,
)


class Part(NamedTuple):
    size: float


class Whole(NamedTuple):
    count: int = 0
    array: Float[np.ndarray, " D"] = np.zeros(3)
    other: NDArray[np.float64] = np.zeros(3)
    part: Part | None = None
    parts: list[Part] = []  # noqa: RUF012
    table: dict[str, float] = {}  # noqa: RUF012
    pair: tuple[int, Any] = (1, "x")
    choice: Literal["one", "two"] = "one"
    fine: bool = True
    anything: Any = None


@dataclass
class Learned:
    units: float = field(default=1.0)
    steps: int = 3
    history: list[float] = field(default_factory=list)
    learned: float = field(init=False)


GOOD = {
    "count": [3, 2.5, np.int64(3), np.array(3)],
    "array": [np.zeros((2, 2)), 1.0, np.float32(1.0)],
    "other": [np.zeros(2)],
    "part": [Part(1.0), None],
    "parts": [[], [Part(1.0)]],
    "table": [{"a": 1.0}],
    "pair": [(1, None)],
    "choice": ["two"],
    "fine": [False],
    "anything": ["x", None, Part(1.0)],
}
BAD = {
    "count": ["3", None, np.zeros(2), Part(1.0)],
    "array": ["x", None, [1.0]],
    "other": [None, {}],
    "part": [1.0, "x", (1.0,)],
    "parts": [None, [1.0], (Part(1.0),)],
    "table": [{"a": "x"}, [1.0]],
    "pair": [(1,), ("x", 1), [1, 2]],
    "choice": ["three", 1, np.zeros(2)],
    "fine": [1, "True", None],
}


class TestFields:
    """Fields of a record have to be of the kind of their annotation."""

    @pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
    def test_fields_of_the_right_kind_are_read(self, tmp_path, name, value):
        write_record(tmp_path / "file", Whole(**{name: value}))
        assert isinstance(read_record(tmp_path / "file", {"Part": Part, "Whole": Whole}), Whole)

    @pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
    def test_another_kind_is_refused_by_name(self, tmp_path, name, value):
        write_record(tmp_path / "file", Whole(**{name: value}))
        with pytest.raises(ValueError, match=f"Whole.{name} cannot be a {type(value).__name__}"):
            read_record(tmp_path / "file", {"Part": Part, "Whole": Whole})

    def test_a_dataclass_without_a_field_that_it_needs_is_refused(self, tmp_path):
        @dataclass
        class Needing(Learned):
            rate: float = field(kw_only=True)

        write_record(tmp_path / "file", Learned(units=2.0))
        assert read_record(tmp_path / "file", {"Learned": Learned}).units == 2.0
        with pytest.raises(ValueError, match=r"Needing\.rate is missing"):
            read_record(tmp_path / "file", {"Learned": Needing})


class TestRecords:
    @given(TREES)
    def test_any_tree_comes_back_as_it_was(self, tmp_path_factory, tree):
        path = tmp_path_factory.getbasetemp() / "tree"
        write_record(path, tree)
        assert_same(tree, read_record(path, {"Anything": Anything}))

    def test_a_record_whose_fields_are_of_another_kind_is_refused(self, tmp_path):
        for record in (Gaussian("wide", 1.0), Gaussian(None, 1.0), FreeWeights(Gaussian(1.0, 1.0), 2.0)):
            write_record(tmp_path / "record", record)
            with pytest.raises(ValueError, match=r"(mean|recurrent) cannot be a (str|NoneType|float)"):
                read_record(tmp_path / "record", {"Gaussian": Gaussian, "FreeWeights": FreeWeights})

    def test_equal_records_are_equal_files(self, tmp_path):
        for name in ("one", "other"):
            write_record(tmp_path / name, {"ä": np.arange(3), "b": [1.5]}, {"numpy": "2"})
        assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()

    def test_versions_that_cannot_be_understood_are_none(self, tmp_path, monkeypatch):
        write_record(tmp_path / "record", 1, {"numpy": "2.4"})
        assert read_versions(tmp_path / "record") == {"numpy": "2.4"}
        content = (tmp_path / "record").read_bytes()
        (tmp_path / "record").write_bytes(content.replace(b'{\\"numpy\\": \\"2.4\\"}', b'[\\"numpy\\", \\"2.4\\"]'))
        assert read_versions(tmp_path / "record") == {}

    def test_the_header_tells_of_versions(self, tmp_path):
        ISTA().save(tmp_path / "model")
        content = (tmp_path / "model").read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])["__metadata__"]
        assert header["format_version"] == "1"
        assert "scikit-learn" in json.loads(header["versions"])

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
    def test_a_file_that_is_cut_short_is_refused(self, tmp_path, share):
        path = tmp_path / "model"
        ISTA(design_matrix=np.ones((3, 4))).save(path)
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ValueError, match="cut short"):
            bayeslista.load(path)

    def test_no_byte_of_the_arrays_or_the_content_can_change_unnoticed(self, tmp_path):
        path = tmp_path / "model"
        ISTA(7, design_matrix=np.ones((3, 4))).save(path)
        content = path.read_bytes()
        begin = content.index(b'\\"n_layers\\"')
        for place in (*range(begin, begin + 40, 3), len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(ValueError, match=str(path)):
                bayeslista.load(path)

    def test_other_files_are_refused_by_name(self, tmp_path, monkeypatch):
        from safetensors.numpy import save_file

        path = tmp_path / "model"
        path.write_text("a,b\n1,2\n")
        with pytest.raises(ValueError, match="not a safetensors file"):
            bayeslista.load(path)
        save_file({"a": np.ones(3)}, path)
        with pytest.raises(ValueError, match="of another program"):
            bayeslista.load(path)
        write_record(path, [1, 2])
        with pytest.raises(ValueError, match="holds no estimator"):
            bayeslista.load(path)
        write_record(path, Gaussian(1, 2))
        with pytest.raises(ValueError, match="there is no Gaussian"):
            read_record(path, {})
        with pytest.raises(ValueError, match="cannot read"):
            read_record(path, {"Gaussian": ValueError})
        monkeypatch.setattr(persistence, "FORMAT", 2)
        write_record(path, 1)
        monkeypatch.undo()
        with pytest.raises(ValueError, match=r"format 2.*reads up to 1.*newer"):
            bayeslista.load(path)
        monkeypatch.setattr(persistence, "_encode", lambda *_: {"$": "lambda"})
        write_record(path, 1)
        with pytest.raises(ValueError, match="there is no kind 'lambda'"):
            read_record(path, {})

    def test_a_missing_file_is_told_as_such(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            bayeslista.load(tmp_path / "none")

    def test_a_missing_folder_is_told_by_name_and_with_what_to_do(self, data, tmp_path):
        folder = tmp_path / "models" / "today"
        learning = BayesLISTA(2, max_iter=1, random_state=0)
        uses = [
            ISTA().save,
            bayeslista.SparseCodingTransformer(data.design_matrix.T).save,
            lambda path: learning.fit(data.Y_train, data.B_train, checkpoint=path),
        ]
        for use in uses:
            with pytest.raises(FileNotFoundError, match="There is no such folder; make it first") as caught:
                use(folder / "model.safetensors")
            assert str(caught.value).endswith(f"'{folder}'")
        assert os.listdir(tmp_path) == []

    def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_else(self, tmp_path, monkeypatch):
        path = tmp_path / "model"
        ISTA(3).save(path)

        def fail(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            ISTA(4).save(path)
        assert os.listdir(tmp_path) == ["model"]
        assert bayeslista.load(path).n_layers == 3
