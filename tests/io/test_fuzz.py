"""Damaged files: every reader refuses them by a ValueError or an OSError, at once and in little memory.

Twenty damaged copies of each file are read here, three hundred with ``-m slow``, and ten thousand with
``BAYESLISTA_FUZZ_EXAMPLES=10000 pytest -m slow tests/io/test_fuzz.py``.
"""

import json
import os
import struct
import warnings
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from mutations import bounded, mutated, mutated_tree
from safetensors import safe_open
from safetensors.numpy import save

import bayeslista
from bayeslista.cli._model_files import file_errors
from bayeslista.io.records import _digest
from bayeslista.io.tables import read_table, write_table

KEPT = Path(__file__).parents[1] / "data"
SEEDS = (  # the fast share, and all
    range(20),
    pytest.param(range(20, int(os.environ.get("BAYESLISTA_FUZZ_EXAMPLES", "300"))), marks=pytest.mark.slow),
)
tried_by_the_hundred = pytest.mark.parametrize("seeds", SEEDS, ids=["few", "many"])
MODELS = ("ista", "fista", "lista", "bayes_lista", "published", "spike_slab_net")

_random = np.random.default_rng(0)
TABLE = _random.standard_normal((20, 6)) * (_random.random((20, 6)) < 0.5)


def _write_csv(path):
    write_table(path, [{"x": TABLE}])


def _write_parquet(path, **options):
    table = pyarrow.table({f"x{i}": column for i, column in enumerate(TABLE.T)})
    pyarrow.parquet.write_table(table, path, **options)


TABLES = {
    "plain.npy": lambda path: np.save(path, TABLE),
    "single.npy": lambda path: np.save(path, np.asfortranarray(TABLE.astype(np.float32))),
    "plain.npz": lambda path: np.savez(path, x=TABLE),
    "compressed.npz": lambda path: np.savez_compressed(path, x=TABLE),
    "plain.csv": _write_csv,
    "plain.parquet": _write_parquet,
    "compressed.parquet": lambda path: _write_parquet(path, compression="zstd", write_page_checksum=True),
}


def read_values(path):
    return read_table(path).values


def outcome(read, path):
    """What reading gives: a value, or None where the file is refused as it should be."""
    try:
        with bounded():
            return read(path)
    except (ValueError, OSError) as error:
        if isinstance(error.__cause__, MemoryError):
            raise AssertionError("it took more memory than it should") from error
        return None


@pytest.mark.no_cover
@pytest.mark.parametrize("name", TABLES)
@tried_by_the_hundred
def test_damaged_tables_are_refused_or_are_still_tables(tmp_path, name, seeds):
    path = tmp_path / name
    TABLES[name](path)
    content = path.read_bytes()
    assert outcome(read_values, path).shape == TABLE.shape
    for seed in seeds:
        path.write_bytes(mutated(content, np.random.default_rng(seed)))
        found = outcome(read_values, path)
        assert found is None or (found.ndim in (1, 2) and np.isfinite(found).all()), seed


@pytest.mark.no_cover
@pytest.mark.parametrize("name", MODELS)
@tried_by_the_hundred
def test_damaged_models_are_refused_or_unchanged(tmp_path, name, seeds):
    content = (KEPT / f"{name}.safetensors").read_bytes()
    expected = bayeslista.load(KEPT / f"{name}.safetensors")
    path = tmp_path / "model.safetensors"
    for seed in seeds:
        path.write_bytes(mutated(content, np.random.default_rng(seed)))
        found = outcome(bayeslista.load, path)
        assert found is None or np.array_equal(found.design_matrix_, expected.design_matrix_), seed


def forge(path, header, tensors, content):
    """Write a model of another content, with a digest that matches it."""
    path.write_bytes(save(tensors, metadata={**header, "content": content, "digest": _digest(content, tensors)}))


def read_parts(name):
    with safe_open(KEPT / f"{name}.safetensors", framework="numpy") as file:
        return file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


@pytest.mark.no_cover
@pytest.mark.parametrize("name", MODELS)
@tried_by_the_hundred
def test_forged_models_are_refused_when_loaded_or_used(tmp_path, name, seeds):
    header, tensors = read_parts(name)
    path, X = tmp_path / "model.safetensors", np.ones((3, 8))
    for seed in seeds[::4]:
        forge(
            path, header, tensors, json.dumps(mutated_tree(json.loads(header["content"]), np.random.default_rng(seed)))
        )
        model = outcome(bayeslista.load, path)
        if model is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    with file_errors(model=path):
                        model.predict(X)
                except ValueError:
                    continue


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree.__setitem__("state", 3), "its state"),
        (lambda tree: tree.pop("state"), "its state"),
        (lambda tree: tree["state"].pop("items"), "cannot read"),
        (lambda tree: tree["state"]["items"].pop("n_iter_"), "n_iter_ is missing or not as it should be"),
        (lambda tree: tree["state"]["items"].__setitem__("n_components_", 11), "design_matrix_ is missing or not"),
        (
            lambda tree: tree["state"]["items"].__setitem__("dtype_", {"$": "dtype", "name": "int8"}),
            "dtype_ is missing",
        ),
        (lambda tree: tree.__setitem__("estimator", ["ISTA"]), "holds no estimator"),
        (lambda tree: tree.__setitem__("estimator", "Lasso"), "holds no estimator .*'Lasso'"),
    ],
)
def test_a_forged_content_is_told_by_what_is_wrong(tmp_path, change, message):
    header, tensors = read_parts("ista")
    tree = json.loads(header["content"])
    change(tree["items"])
    forge(tmp_path / "model", header, tensors, json.dumps(tree))
    with pytest.raises(ValueError, match=message):
        bayeslista.load(tmp_path / "model")


def test_what_nests_without_end_is_refused(tmp_path):
    header, tensors = read_parts("ista")
    forge(tmp_path / "model", header, tensors, "[" * 10**5 + "]" * 10**5)
    assert outcome(bayeslista.load, tmp_path / "model") is None


@pytest.mark.parametrize("size", [2**63, 2**40, 10**8 + 1, 2**32 - 1])
def test_a_header_that_claims_a_huge_size_takes_no_memory(tmp_path, size):
    content = (KEPT / "ista.safetensors").read_bytes()
    (tmp_path / "model").write_bytes(struct.pack("<Q", size) + content[8:])
    assert outcome(bayeslista.load, tmp_path / "model") is None


@pytest.mark.parametrize("shape", [[10**12, 10], [2**62, 4], [8, 2**61]])
def test_a_tensor_that_claims_a_huge_shape_takes_no_memory(tmp_path, shape):
    content = (KEPT / "ista.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header["0"]["shape"] = shape
    text = json.dumps(header).encode()
    (tmp_path / "model").write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    assert outcome(bayeslista.load, tmp_path / "model") is None
