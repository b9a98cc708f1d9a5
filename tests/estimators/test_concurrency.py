"""Many at once: threads and processes get the answers that a single call gets."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from threading import Barrier

import jax
import joblib
import numpy as np
import pytest
from joblib.externals.loky import get_reusable_executor
from sklearn.base import clone

import bayeslista
from bayeslista import ISTA, LISTA, BayesLISTA, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes

DATA = make_sparse_codes(60, 150, 6, 8, random_state=0)
GIVEN = {"design_matrix": DATA.design_matrix, "random_state": 0}
N_THREADS = 16


MODELS = {
    "ISTA": ISTA(2, design_matrix=DATA.design_matrix, dtype="float32"),
    "LISTA": LISTA(2, max_iter=2, **GIVEN),
    "single": LISTA(2, max_iter=2, dtype="float32", **GIVEN),
    "BayesLISTA": BayesLISTA(2, max_iter=2, **GIVEN),
    "SpikeSlabNet": SpikeSlabNet(2, mode="fast", training="none", dtype="float32", **GIVEN),
}


@pytest.fixture(scope="module")
def models():
    return {name: model.fit(DATA.Y_train, DATA.B_train) for name, model in MODELS.items()}


@pytest.fixture(scope="module")
def expected(models):
    """What a single call says of few and of many observations."""
    return {name: [model.predict(DATA.Y_test[:n]) for n in (150, 20)] for name, model in models.items()}


def at_once(*calls):
    """Results of functions that begin at the same moment in threads of their own."""
    barrier = Barrier(len(calls))

    def begin(call):
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(begin, calls))


def same(one, other):
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def test_sixteen_threads_get_the_bits_of_a_single_call(models, expected):
    for name, model in models.items():
        found = at_once(*[lambda model=model: model.predict(DATA.Y_test)] * N_THREADS)
        assert all(same(each, expected[name][0]) for each in found), name


def test_threads_of_either_precision_do_not_meet(models, expected):
    names = list(models) * 3
    before = jax.numpy.ones(1).dtype

    def call(name):
        def predict():
            return [models[name].predict(DATA.Y_test[:n]) for _ in range(5) for n in (150, 20)]

        return predict

    for name, found in zip(names, at_once(*map(call, names)), strict=True):
        assert all(same(*both) for both in zip(found, expected[name] * 5, strict=True)), name
    assert jax.numpy.ones(1).dtype == before


def test_threads_that_compile_at_the_same_time_agree():
    model = ISTA(3, design_matrix=np.ones((5, 7))).fit(np.ones((4, 5)), np.ones((4, 7)))
    found = at_once(*[lambda: model.predict(np.full((11, 5), 2.0))] * N_THREADS)
    assert all(same(each, found[0]) for each in found)
    assert same(found[0], model.predict(np.full((11, 5), 2.0)))


def test_fits_in_threads_end_as_alone(models, expected):
    names = ["LISTA", "single", "BayesLISTA"] * 2
    fits = [lambda name=name: clone(models[name]).fit(DATA.Y_train, DATA.B_train) for name in names]
    for name, model in zip(names, at_once(*fits), strict=True):
        assert same(model.predict(DATA.Y_test), expected[name][0]), name


def test_threads_that_save_one_file_leave_a_whole_one(models, tmp_path):
    path = tmp_path / "model"
    two = [models[name] for name in ("ISTA", "LISTA")]
    at_once(*[lambda model=model: [model.save(path) for _ in range(5)] for model in two * 4])
    assert type(bayeslista.load(path)) in (ISTA, LISTA)
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.slow
def test_spawned_processes_and_joblib_get_the_bits_of_a_single_call(models, expected):
    names = ["LISTA", "single", "SpikeSlabNet"]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        spawned = list(pool.map(_predict, [models[name] for name in names]))
    jobs = [joblib.delayed(_predict)(models[name]) for name in names]
    loky = joblib.Parallel(n_jobs=2)(jobs)
    get_reusable_executor().shutdown()
    for name, one, other in zip(names, spawned, loky, strict=True):
        assert same(one, expected[name][0]), name
        assert same(other, expected[name][0]), name


def _predict(model):
    return model.predict(DATA.Y_test)


FORKED = """
import multiprocessing
import os
import sys
import warnings

import bayeslista
from bayeslista.datasets import make_sparse_codes

Y = make_sparse_codes(60, 150, 6, 8, random_state=0).Y_test
model = bayeslista.load(sys.argv[1])

def predict(n):
    return model.predict(Y[:n]).tobytes()

with multiprocessing.get_context("fork").Pool(2) as pool:  # JAX has computed nothing yet
    early = pool.map(predict, [150, 150, 20])
assert early == [predict(150), predict(150), predict(20)]

warnings.simplefilter("ignore")  # JAX's own
fits = [getattr(bayeslista, name)().fit for name in ("LISTA", "BayesLISTA", "SpikeSlabNet")]
for attempt in (lambda: predict(150), *(lambda fit=fit: fit(Y, Y) for fit in fits)):
    child = os.fork()
    if not child:
        try:
            attempt()
        except RuntimeError as error:
            os._exit(7 if "forked" in str(error) and "joblib" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert predict(150) == early[0]
print("fine")
"""


def test_a_process_forked_before_jax_computes_works_and_one_after_is_told_and_does_not_hang(models, tmp_path):
    models["LISTA"].save(tmp_path / "model")
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "model")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "fine\n", done.stderr


def test_a_fork_is_noticed(monkeypatch):
    from bayeslista.numerics import precision as _precision

    monkeypatch.setattr(_precision, "_process", {"computed": False, "forked": False})
    _precision._notice_fork()
    with _precision.precision(np.float32):
        pass
    _precision._notice_fork()
    with pytest.raises(RuntimeError, match="forked from one in which JAX had computed before"):
        LISTA().fit(DATA.Y_train, DATA.B_train)
