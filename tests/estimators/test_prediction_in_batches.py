"""Prediction in batches: bounded memory, the same bits, few compilations."""

import subprocess
import sys
from contextlib import contextmanager

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayeslista import FISTA, ISTA, LISTA, BayesLISTA, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.numerics.batching import batches, root_mean_square

K, D = 6, 8
ESTIMATORS = {
    "ISTA": lambda X: ISTA(5, design_matrix=X),
    "FISTA": lambda X: FISTA(5, design_matrix=X),
    "LISTA": lambda X: LISTA(2, design_matrix=X, max_iter=1, random_state=0),
    "BayesLISTA": lambda X: BayesLISTA(2, design_matrix=X, max_iter=1, random_state=0),
    "SpikeSlabNet": lambda X: SpikeSlabNet(2, mode="fast", design_matrix=X, training="none", random_state=0),
    "accurate SpikeSlabNet": lambda X: SpikeSlabNet(
        2, mode="accurate", design_matrix=X, prob_active=0.2, slab_var=1.0, noise_std=0.5, random_state=0
    ),
}
DISTRIBUTIONAL = [name for name in ESTIMATORS if name not in ("ISTA", "FISTA", "LISTA")]


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(n_train=40, n_test=2500, n_observed=K, n_components=D, random_state=0)


@pytest.fixture(scope="module", params=ESTIMATORS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(data, name):
    made = ESTIMATORS[name](data.design_matrix)
    return made if name.startswith("accurate") else made.fit(data.Y_train, data.B_train)


@contextmanager
def counted_compilations():
    """One entry for each compilation while the context is open."""
    found = []

    def listen(event, duration, **labels):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def everything(model, X, **options):
    """All that can be predicted, as dense arrays."""
    answers = {"mean": model.predict(X, **options)}
    answers["sparse"] = model.predict(X, sparse=True, **options).toarray()
    if hasattr(model, "predict_dist"):
        answers["mean"], answers["std"] = model.predict(X, return_std=True, **options)
        dist = model.predict_dist(X, **options)
        answers |= {part: getattr(dist, part) for part in ("prob_active", "slab_mean", "slab_var")}
        answers["low"], answers["high"] = model.predict_interval(X, 0.8, **options)
    return answers


def test_the_size_of_batches_changes_no_bit(data, model):
    X = data.Y_test
    whole = everything(model, X, batch_size=10**6)
    for size in (1, 1000, 1024, 2049, np.int64(7), None):
        for part, values in everything(model, X, batch_size=size).items():
            np.testing.assert_array_equal(values, whole[part], err_msg=f"{part}, batch_size={size}")


def test_rows_may_come_in_any_layout(data, model, tmp_path):
    X = data.Y_test[:1500]
    expected = model.predict(X)
    np.save(tmp_path / "rows.npy", X)
    wide = np.zeros((len(X), 2 * K))
    wide[:, ::2] = X
    layouts = {
        "memory-mapped": np.load(tmp_path / "rows.npy", mmap_mode="r"),
        "by columns": np.asfortranarray(X),
        "every other column": wide[:, ::2],
        "backwards": X[::-1].copy()[::-1],
        "objects": X.astype(object),
        "lists": X.tolist(),
    }
    for layout, rows in layouts.items():
        np.testing.assert_array_equal(model.predict(rows, batch_size=1024), expected, err_msg=layout)


def test_few_sizes_are_compiled(data, model):
    X = np.tile(data.Y_test, (4, 1))
    sizes = [(10, None), (13, 3), (16, 100), (1025, None), (1026, 7), (2047, 1500), (4099, 2048), (9999, None)]
    for n in (9, 1100):
        model.predict(X[:n])
    with counted_compilations() as compiled:
        jax.jit(lambda x: x + 1)(1.0)
        assert len(compiled) == 1
        for n, size in sizes:
            model.predict(X[:n], batch_size=size)
    assert len(compiled) <= 6


@pytest.mark.parametrize("size", [0, -1, 1.5, "all", np.nan])
def test_other_batch_sizes_are_refused(data, model, size):
    with pytest.raises(ValueError, match="'batch_size' parameter of predict must be an int in the range"):
        model.predict(data.Y_test, batch_size=size)
    if hasattr(model, "predict_dist"):
        with pytest.raises(ValueError, match=r"'batch_size' parameter of .* must be"):
            model.predict_dist(data.Y_test, batch_size=size)
        with pytest.raises(ValueError, match=r"'batch_size' parameter of .* must be"):
            model.predict_interval(data.Y_test, batch_size=size)


def test_faults_are_found_in_every_batch(data):
    model = ISTA(2, design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    X = data.Y_test.copy()
    X[2100, 3] = np.nan
    message = r"Input X contains NaN, first in row 2100, column 3 \(counted from 0\)\. Remove or impute"
    with pytest.raises(ValueError, match=message):
        model.predict(X, batch_size=1024)
    text = data.Y_test.astype(object)
    text[2200, 0] = "red"
    with pytest.raises(ValueError, match=r"X: could not convert string to float.*real numbers"):
        model.predict(text, batch_size=1024)
    single = ISTA(2, design_matrix=data.design_matrix, dtype="float32").fit(data.Y_train, data.B_train)
    X[2100, 3] = 1e200
    with pytest.raises(ValueError, match="X has values too large for float32"):
        single.predict(X, batch_size=1024)


@given(st.integers(1, 5000), st.none() | st.integers(1, 6000), st.sampled_from([1, 8, 1024]), st.integers(1, 10**7))
def test_batches_cover_every_row_once_in_whole_units(n_rows, batch_size, unit, n_numbers):
    parts = list(batches(n_rows, batch_size, unit, n_numbers))
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == n_rows
    assert all(part.start % unit == 0 for part in parts)
    if len(parts) > 1:
        assert min(part.stop - part.start for part in parts) >= unit
    if batch_size is not None:
        assert max(part.stop - part.start for part in parts) < batch_size + 2 * unit


def test_a_scale_of_many_rows_is_that_of_all(monkeypatch):
    values = np.random.default_rng(0).standard_normal((1000, 3)) * 1e200
    values[:400] = 0
    expected = 1e200 * np.sqrt(np.mean((values / 1e200) ** 2))
    monkeypatch.setattr("bayeslista.numerics.batching._CHUNK_NUMBERS", 300)
    assert root_mean_square(values) == pytest.approx(expected, rel=1e-12)
    assert root_mean_square(iter(np.split(values, 10))) == pytest.approx(expected, rel=1e-12)
    assert root_mean_square(iter([])) == root_mean_square(np.zeros((0, 3))) == root_mean_square(np.zeros(500)) == 1.0


MEASURE = """
import resource, sys
import numpy as np
from bayeslista import BayesLISTA

rng = np.random.default_rng(0)
X = rng.standard_normal((10, 20))
B = rng.standard_normal((30, 20)) * (rng.random((30, 20)) < 0.2)
pairs = (B @ X.T).astype(np.float32), B.astype(np.float32)
model = BayesLISTA(2, design_matrix=X, max_iter=1, random_state=0).fit(*pairs)
rows = np.tile(pairs[0], (7000, 1))[:200_000]
for n in (50_000, 200_000):
    answer = model.predict(rows[:n], return_std=True)
    del answer
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10))
"""


def test_memory_grows_by_the_answer_and_nothing_else():
    pytest.importorskip("resource")
    printed = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    few, many = map(float, printed.stdout.split())
    answer = 2 * 150_000 * 20 * 4 / 2**20
    assert many - few < 1.25 * answer + 8
