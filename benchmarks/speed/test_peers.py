"""The same by other means: PyTorch, solvers of the Lasso, Monte Carlo draws of weights, the exact posterior."""

import pytest
from _peers import autodiff_pass, torch_network, torch_pass, weight_draws
from _problems import SIZES, Problem
from sklearn.linear_model import Lasso

from bayeslista import SpikeSlabNet

DTYPES = ["float64", "float32"]
REACHABLE = SIZES[:2] + SIZES[3:4]


def run(benchmark, kind, name, problem, n, call, rounds=5):
    benchmark.group = f"{problem.d}, {problem.k}, {problem.n_layers}"
    benchmark.extra_info |= {"kind": kind, "name": name, "dtype": problem.dtype, "n": n}
    call()
    benchmark.pedantic(call, rounds=rounds)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_lista_in_pytorch_trains(benchmark, size, dtype):
    problem = Problem(*size, dtype)
    call, n = torch_pass(problem)
    run(benchmark, "training pass", "LISTA in PyTorch", problem, n, call, rounds=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_lista_in_pytorch_predicts(benchmark, size, dtype):
    problem = Problem(*size, dtype)
    torch, forward, _ = torch_network(problem)
    rows = torch.tensor(problem.data.Y_test)

    def call():
        with torch.no_grad():
            return forward(rows).numpy()

    run(benchmark, "prediction", "LISTA in PyTorch", problem, len(rows), call)


@pytest.mark.parametrize("size", SIZES[:1] + SIZES[3:4], ids=str)
def test_adf_by_automatic_differentiation(benchmark, size):
    problem = Problem(*size, "float64")
    call, n = autodiff_pass(problem, "jax.grad")
    run(benchmark, "training pass", "ADF by jax.grad", problem, n, call, rounds=3)


@pytest.mark.parametrize("size", SIZES[:1] + SIZES[3:4], ids=str)
def test_adf_by_automatic_differentiation_of_textbook_formulas(benchmark, size):
    problem = Problem(*size, "float64")
    call, n = autodiff_pass(problem, "textbook")
    run(benchmark, "training pass", "ADF by jax.grad, textbook", problem, n, call, rounds=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", REACHABLE, ids=str)
def test_monte_carlo_draws_of_the_weights(benchmark, size, dtype):
    problem = Problem(*size, dtype)
    call, n = weight_draws(problem)
    run(benchmark, "prediction", "100 draws of the weights", problem, n, call, rounds=2)


@pytest.mark.parametrize("size", SIZES[:1] + SIZES[3:4], ids=str)
def test_lasso_of_scikit_learn(benchmark, size):
    problem = Problem(*size, "float64")
    data, rows = problem.data, problem.data.Y_test[:16]

    def call():
        model = Lasso(alpha=0.1, fit_intercept=False, tol=1e-3, max_iter=5000)
        return [model.fit(data.design_matrix, row).coef_ for row in rows]

    run(benchmark, "prediction", "Lasso, scikit-learn", problem, len(rows), call, rounds=2)


@pytest.mark.parametrize("size", SIZES[:1] + SIZES[3:4], ids=str)
def test_lasso_of_skglm(benchmark, size):
    skglm = pytest.importorskip("skglm")
    problem = Problem(*size, "float64")
    data, rows = problem.data, problem.data.Y_test[:16]

    def call():
        model = skglm.Lasso(alpha=0.1, fit_intercept=False, tol=1e-3)
        return [model.fit(data.design_matrix, row).coef_ for row in rows]

    run(benchmark, "prediction", "Lasso, skglm", problem, len(rows), call, rounds=2)


def test_exact_posterior(benchmark):
    problem = Problem(*SIZES[0], "float64")
    data, rows = problem.data, problem.data.Y_test[:16]

    known = {"prob_active": 0.2, "slab_var": 1.0, "noise_std": 0.5}
    model = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, random_state=0, **known)

    def call():
        return model.predict(rows)

    run(benchmark, "prediction", "exact posterior", problem, len(rows), call, rounds=1)
