"""What the estimators are compared with: LISTA in PyTorch, ADF by automatic differentiation, draws of the weights."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _autodiff import GRADIENTS, one_pass
from _problems import BATCH, Problem, adf_start, fitted, in_precision

from bayeslista.lista.training import ListaWeights, predict
from bayeslista.numerics.linear import ista_weights
from conftest import CORES

Call = Callable[[], Any]


def torch_network(problem: Problem) -> tuple[Any, Callable[[Any], Any], list[Any]]:
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


def torch_pass(problem: Problem) -> tuple[Call, int]:
    """An epoch of Adam, in the batches that the estimators take, and how many pairs it has."""
    torch, forward, parameters = torch_network(problem)
    optimizer = torch.optim.Adam(parameters, lr=1e-5)
    Y, B = torch.tensor(problem.data.Y_train), torch.tensor(problem.data.B_train)

    def call():
        for begin in range(0, len(Y), BATCH):
            rows = slice(begin, begin + BATCH)
            optimizer.zero_grad()
            ((forward(Y[rows]) - B[rows]) ** 2).mean().backward()
            optimizer.step()

    return call, len(Y)


def autodiff_pass(problem: Problem, gradient: str) -> tuple[Call, int]:
    """An epoch of ADF whose gradient is that of `GRADIENTS`."""
    arguments = adf_start(problem)
    return in_precision(problem, one_pass(GRADIENTS[gradient]), *arguments), len(arguments[1].code)


def weight_draws(problem: Problem) -> tuple[Call, int]:
    """Mean and standard deviation by 100 networks whose weights are drawn, as one would without moments."""
    model = fitted("BayesLISTA", problem)
    rows = problem.data.Y_test[: problem.n_test // 8]

    @jax.jit
    def moments(encoder, encoder_std, recurrent, recurrent_std, shrinkage, rows, key):
        def draw(sums, key):
            first, second = jax.random.split(key)
            weights = ListaWeights(
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
    arrays = (np.asarray(part, problem.dtype) for part in given)
    return in_precision(problem, moments, *arrays, rows, jax.random.key(0)), len(rows)
