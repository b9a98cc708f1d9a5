"""The same by other means: PyTorch, solvers of the Lasso, Monte Carlo draws of weights, the exact posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _autodiff import GRADIENTS, one_pass
from _problems import BATCH, SIZES, Problem, adf_start, fitted, in_precision
from sklearn.linear_model import Lasso

from bayeslista.experiments.gibbs import gibbs_posterior
from bayeslista.inference.gradient_descent import Weights, predict
from bayeslista.proximal import ista_weights
from conftest import CORES

DTYPES = ["float64", "float32"]
REACHABLE = SIZES[:2] + SIZES[3:4]


def run(benchmark, kind, name, problem, n, call, rounds=5):
    benchmark.group = f"{problem.d}, {problem.k}, {problem.n_layers}"
    benchmark.extra_info |= {"kind": kind, "name": name, "dtype": problem.dtype, "n": n}
    call()
    benchmark.pedantic(call, rounds=rounds)


def torch_network(problem):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(CORES)
    start = ista_weights(problem.data.design_matrix)
    encoder, recurrent = (torch.nn.Parameter(torch.tensor(part)) for part in (start.encoder, start.recurrent))
    thresholds = torch.nn.Parameter(torch.full((problem.n_layers,), 0.1, dtype=encoder.dtype))

    def forward(rows):
        drive = rows @ encoder.T
        codes = torch.sign(drive) * torch.relu(drive.abs() - thresholds[0])
        for threshold in thresholds[1:]:
            entering = drive + codes @ recurrent.T
            codes = torch.sign(entering) * torch.relu(entering.abs() - threshold)
        return codes

    return torch, forward, [encoder, recurrent, thresholds]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_lista_in_pytorch_trains(benchmark, size, dtype):
    problem = Problem(*size, dtype)
    torch, forward, parameters = torch_network(problem)
    optimizer = torch.optim.Adam(parameters, lr=1e-5)
    Y, B = torch.tensor(problem.data.Y_train), torch.tensor(problem.data.B_train)

    def one_pass():
        for begin in range(0, len(Y), BATCH):
            rows = slice(begin, begin + BATCH)
            optimizer.zero_grad()
            ((forward(Y[rows]) - B[rows]) ** 2).mean().backward()
            optimizer.step()

    run(benchmark, "training pass", "LISTA in PyTorch", problem, len(Y), one_pass, rounds=3)


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
    arguments = adf_start(problem)
    call = in_precision(problem, one_pass(GRADIENTS["jax.grad"]), *arguments)
    run(benchmark, "training pass", "ADF by jax.grad", problem, len(arguments[1].code), call, rounds=3)


@pytest.mark.parametrize("size", SIZES[:1] + SIZES[3:4], ids=str)
def test_adf_by_automatic_differentiation_of_textbook_formulas(benchmark, size):
    problem = Problem(*size, "float64")
    arguments = adf_start(problem)
    call = in_precision(problem, one_pass(GRADIENTS["textbook"]), *arguments)
    run(benchmark, "training pass", "ADF by jax.grad, textbook", problem, len(arguments[1].code), call, rounds=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", REACHABLE, ids=str)
def test_monte_carlo_draws_of_the_weights(benchmark, size, dtype):
    """Mean and standard deviation by 100 networks whose weights are drawn, as one would without moments."""
    problem = Problem(*size, dtype)
    model = fitted("BayesLISTA", problem)
    rows = problem.data.Y_test[: problem.n_test // 8]

    @jax.jit
    def moments(encoder, encoder_std, recurrent, recurrent_std, shrinkage, rows, key):
        def draw(sums, key):
            first, second = jax.random.split(key)
            weights = Weights(
                encoder + encoder_std * jax.random.normal(first, encoder.shape, encoder.dtype),
                recurrent + recurrent_std * jax.random.normal(second, recurrent.shape, recurrent.dtype),
                shrinkage,
            )
            codes = predict(weights, rows)
            return (sums[0] + codes, sums[1] + codes * codes), None

        nothing = jnp.zeros((len(rows), len(encoder)), rows.dtype)
        sums, _ = jax.lax.scan(draw, (nothing, nothing), jax.random.split(key, 100))
        return sums[0] / 100, jnp.sqrt(sums[1] / 100 - (sums[0] / 100) ** 2)

    given = (model.encoder_, model.encoder_std_, model.recurrent_, model.recurrent_std_, model.shrinkage_)
    call = in_precision(problem, moments, *(np.asarray(part, dtype) for part in given), rows, jax.random.key(0))
    run(benchmark, "prediction", "100 draws of the weights", problem, len(rows), call, rounds=2)


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


def test_gibbs_sampler(benchmark):
    problem = Problem(*SIZES[0], "float64")
    data, rows = problem.data, problem.data.Y_test[:16]

    def call():
        return gibbs_posterior(data.design_matrix, rows, n_sweeps=1000, random_state=0)

    run(benchmark, "prediction", "Gibbs sampler, 1,000 sweeps", problem, len(rows), call, rounds=1)
