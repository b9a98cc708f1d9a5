"""Problems of all sizes, a training epoch and a prediction of every estimator on them, and the work that each has."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from _floor import Work, word

from bayeslista import FISTA, ISTA, LISTA, BayesLISTA, SpikeSlabNet
from bayeslista.bayes_lista import variational
from bayeslista.bayes_lista.adf import filtering as adf
from bayeslista.bayes_lista.adf.posterior import AdfPosterior, MatrixPrior, initial_posterior
from bayeslista.datasets import make_sparse_codes
from bayeslista.lista import training
from bayeslista.numerics.linear import ista_weights

SIZES = [(100, 50, 4), (100, 50, 20), (500, 250, 16), (784, 100, 20), (784, 250, 20)]  # D, K, L
BATCH = 32


@dataclass(frozen=True)
class Problem:
    """Pairs to learn from and observations to predict from, in one floating type."""

    d: int
    k: int
    n_layers: int
    dtype: str

    @property
    def n_train(self) -> int:
        return 992 if self.d <= 100 else 96

    @property
    def n_test(self) -> int:
        return 8192 if self.d <= 100 else 1024

    @property
    def data(self):
        return _data(self)

    def floor_of(self, n_products: float, n_signals: int, dtype: str | None = None) -> Work:
        """Work of `n_products` operations for every signal, with matrices and signals read once."""
        numbers = (self.d + self.k) * self.d + n_signals * (self.d + self.k)
        return Work(
            numbers * word(self.dtype), numbers * word(self.dtype), {dtype or self.dtype: n_products * n_signals},
            n_signals, self.d,
        )  # fmt: skip


@lru_cache(maxsize=2)
def _data(problem: Problem):
    data = make_sparse_codes(problem.n_train, problem.n_test, problem.k, problem.d, random_state=0)
    names = ("design_matrix", "Y_train", "B_train", "Y_test", "B_test")
    return SimpleNamespace(**{name: np.asarray(getattr(data, name), problem.dtype) for name in names})


def in_precision(problem: Problem, function: Callable[..., object], *arguments) -> Callable[[], object]:
    """A call of no arguments that has its precision and waits for the result."""

    def call():
        with jax.enable_x64(problem.dtype == "float64"):
            return jax.block_until_ready(function(*arguments))

    return call


# Training epochs: what is called, how many pairs it has, and its work.


def adf_start(problem: Problem) -> tuple[AdfPosterior, adf.Pair, np.ndarray]:
    """A posterior whose prior suits depth and width, pairs and thresholds."""
    data, dtype = problem.data, problem.dtype
    with jax.enable_x64(dtype == "float64"):
        start = ista_weights(data.design_matrix)
        means = jnp.asarray(start.encoder, dtype), jnp.asarray(start.recurrent, dtype)
        variances = 0.2 / (20 * problem.k * problem.n_layers), 1 / (problem.d * problem.n_layers)
        priors = (MatrixPrior(mean, jnp.asarray(var, dtype)) for mean, var in zip(means, variances, strict=True))
        n = problem.n_train if problem.d <= 100 else 16
        pairs = adf.Pair(jnp.asarray(data.Y_train[:n]), jnp.asarray(data.B_train[:n]))
        return initial_posterior(*means, *priors), pairs, np.full(problem.n_layers, 0.1, dtype)


def adf_pass(problem: Problem):
    arguments = adf_start(problem)
    n = len(arguments[1].code)
    d, k, after = problem.d, problem.k, problem.n_layers - 1
    weights = 2 * (d * d + d * k)  # means and variances
    # Both matrices of S forward and backward in every layer but one, those of W once; all read and written once.
    moved = (2 * after * 2 * d * d + 2 * d * k + 2 * weights) * word(problem.dtype)
    # Three products with vectors either way, three sums of outer products; a dozen operations to update a weight.
    operations = 2 * after * 6 * d * d + after * 6 * d * d + 8 * d * k + 6 * weights
    work = Work(n * moved, weights * word(problem.dtype), {problem.dtype: n * operations}, d, d)
    return in_precision(problem, adf.filter_pairs, *arguments), n, work


def lista_pass(problem: Problem):
    data, dtype = problem.data, problem.dtype
    start = ista_weights(data.design_matrix)
    pairs = training.CodePairs(data.Y_train, data.B_train)
    weights = training.ListaWeights(
        start.encoder, np.eye(problem.d, dtype=dtype), np.full(problem.n_layers, 0.1, dtype)
    )
    few = training.CodePairs(data.Y_train[:8], data.B_train[:8])
    state = in_precision(problem, training.init, weights, few, data.design_matrix)()
    batches = training.make_batches(np.arange(problem.n_train), BATCH)
    batches = batches._replace(present=batches.present.astype(dtype))
    rates = training.LearningRates(1e-5, 1e-5, 1e-5)
    call = in_precision(problem, training.step, state, pairs, few, batches, rates, 0.0, data.design_matrix)
    products = 3 * (2 * problem.d * problem.k + (problem.n_layers - 1) * 2 * problem.d**2)
    return call, problem.n_train, problem.floor_of(products, problem.n_train)


def variational_pass(problem: Problem):
    data, dtype = problem.data, problem.dtype
    start = ista_weights(data.design_matrix)
    training, few = (data.Y_train, data.B_train), (data.Y_train[:8], data.B_train[:8])
    thresholds = np.full(problem.n_layers, 0.1, dtype)
    begin = in_precision(problem, variational.init, data.design_matrix, start.encoder, thresholds, training, few, True)
    state, given = begin()
    shape = problem.n_train // BATCH, BATCH
    rows = np.arange(problem.n_train).reshape(shape)
    rates = np.full(shape[0], 1e-3, dtype)
    call = in_precision(problem, variational.step, state, given, rows, np.ones(shape, dtype), rates)
    d, k, after = problem.d, problem.k, problem.n_layers - 1
    # With M_S, B and X forward and backward, and the gradients of the first two.
    products = 2 * after * 2 * d * (2 * d + k) + after * 2 * d * 2 * d + 6 * d * k
    n = problem.n_train
    work = problem.floor_of(products, n)
    # Adam reads and writes means and their two moments once a batch.
    work.moved += shape[0] * (d * d + d * k) * 6 * word(dtype)
    return call, n, work


def spike_slab_pass(problem: Problem):
    """All that is learned from pairs, the layers' scalars excepted; what is learned from has no floor to speak of."""
    data = problem.data
    model = SpikeSlabNet(problem.n_layers, mode="fast", design_matrix=data.design_matrix, training="none")
    return lambda: model.fit(data.Y_train, data.B_train), problem.n_train, None


PASSES = {
    "BayesLISTA": variational_pass,
    "BayesLISTA.published": adf_pass,
    "LISTA": lista_pass,
    "SpikeSlabNet": spike_slab_pass,
}


# Predictions: of the mean, or of mean and standard deviation where there is one.


@lru_cache(maxsize=2)
def fitted(name: str, problem: Problem):
    """The estimator after the shortest training that gives it weights of the usual kind."""
    data = problem.data
    given = {"n_layers": problem.n_layers, "design_matrix": data.design_matrix}
    few = {"max_iter": 1, "random_state": 0}
    model = {
        "ISTA": lambda: ISTA(**given),
        "FISTA": lambda: FISTA(**given),
        "LISTA": lambda: LISTA(**given, **few),
        "BayesLISTA": lambda: BayesLISTA(**given, **few, validation_fraction=0.4),
        "BayesLISTA.published": lambda: BayesLISTA(**given, **few, inference="adf"),
        "SpikeSlabNet, fast": lambda: SpikeSlabNet(**given, mode="fast", training="none"),
        "SpikeSlabNet": lambda: SpikeSlabNet(**given, mode="accurate", training="none"),
    }[name]()
    return model.fit(data.Y_train[:64], data.B_train[:64])


def prediction(name: str, problem: Problem):
    data, d, k, after = problem.data, problem.d, problem.k, problem.n_layers - 1
    model = fitted(name, problem)
    n = problem.n_test
    if name == "SpikeSlabNet":
        n = 512 if d <= 100 else 32
    rows = data.Y_test[:n]
    uncertain = "Bayes" in name or "Spike" in name
    plain = 2 * d * k + after * 2 * d * d
    if name == "BayesLISTA":
        work = problem.floor_of(2 * d * k + after * 2 * d * d, n)
        spread = n * after * 2 * d * (d + k)
        work.operations["float32"] = work.operations.get("float32", 0) + spread
    elif name == "BayesLISTA.published":
        work = problem.floor_of(2 * plain + after * 4 * d * d, n)
    elif "Spike" in name:
        propagation = min(5, problem.n_layers) if name == "SpikeSlabNet" else 0
        work = problem.floor_of(
            (problem.n_layers - propagation) * 4 * d * k + propagation * (2 * k * k * d + k**3 / 3), n
        )
    else:
        work = problem.floor_of(plain, n)
    return (lambda: model.predict(rows, return_std=True)) if uncertain else (lambda: model.predict(rows)), n, work


PREDICTIONS = ["ISTA", "FISTA", "LISTA", "BayesLISTA", "BayesLISTA.published", "SpikeSlabNet, fast", "SpikeSlabNet"]
