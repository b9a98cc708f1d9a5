"""Training epochs and predictions of every estimator, each beside its floor."""

import warnings

import pytest
from _problems import PASSES, PREDICTIONS, SIZES, Problem, prediction

ROUNDS = {100: 21, 500: 5, 784: 5}


def run(benchmark, problem, name, call, n, work):
    benchmark.group = f"{problem.d}, {problem.k}, {problem.n_layers}"
    floor = work.floor if work else lambda: None
    benchmark.extra_info |= {"name": name, "dtype": problem.dtype, "n": n}
    before = floor()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few epochs warn of what does not matter here
        call()
        benchmark.pedantic(call, rounds=ROUNDS[problem.d])
    benchmark.extra_info["floor"] = before and min(before, floor())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PASSES)
def test_training_pass(benchmark, name, size, dtype):
    problem = Problem(*size, dtype)
    benchmark.extra_info["kind"] = "training pass"
    run(benchmark, problem, name, *PASSES[name](problem))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PREDICTIONS)
def test_prediction(benchmark, name, size, dtype):
    problem = Problem(*size, dtype)
    benchmark.extra_info["kind"] = "prediction"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = prediction(name, problem)
    run(benchmark, problem, name, *parts)
