"""The methods that the figures compare, each a function of a problem that predicts the codes of the test pairs.

To add one, write that function and put it into `METHODS`; to show it, name it in the presets of a figure. A method that
learns in epochs also has a function in `CURVES`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from sklearn.linear_model import Lasso, RidgeCV
from sklearn.utils import Bunch, check_random_state

from bayeslista.bayes_lista.adf.published_fit import FilteringLearner
from bayeslista.bayes_lista.variational_fit import VariationalLearner
from bayeslista.distributions import SpikeSlab
from bayeslista.estimators import LISTA, BayesLISTA, SpikeSlabNet
from bayeslista.lista.proximal import fista, ista
from bayeslista.metrics import nmse
from bayeslista.numerics.linear import ista_weights
from reproduction.experiment import Preset

PAPER_SHRINKAGE = 0.1
_LASSO_FRACTIONS = np.geomspace(1e-3, 0.5, 10)
_LASSO_STEPS = 5000
_LASSO_MOST_PAIRS = 100
_RIDGES = np.geomspace(1e-2, 1e5, 15)


class Problem(NamedTuple):
    """Data as from `bayeslista.datasets`, and the depth (or number of steps), seed and epochs of a fit."""

    data: Bunch
    n_layers: int
    seed: int = 0
    epochs: int | None = None  # at most; None is the default of the method


Predictor = Callable[[Problem], np.ndarray]


def _ista(problem: Problem) -> np.ndarray:
    data = problem.data
    return ista(ista_weights(data.design_matrix), data.Y_test, PAPER_SHRINKAGE, problem.n_layers)


def _fista(problem: Problem, late_momentum: bool = False) -> np.ndarray:
    data, n_layers = problem.data, problem.n_layers
    weights = ista_weights(data.design_matrix)
    return fista(weights, data.Y_test, PAPER_SHRINKAGE, n_layers, late_momentum=late_momentum)


def _published_fista(problem: Problem) -> np.ndarray:
    """FISTA whose momentum starts a step late, as in the published curves."""
    return _fista(problem, late_momentum=True)


def _fit(make: Callable[..., LISTA | BayesLISTA], problem: Problem) -> LISTA | BayesLISTA:
    data = problem.data
    epochs = {} if problem.epochs is None else {"max_iter": problem.epochs}
    model = make(problem.n_layers, design_matrix=data.design_matrix, random_state=problem.seed, **epochs)
    return model.fit(data.Y_train, data.B_train)


def _estimator(make: Callable[..., LISTA | BayesLISTA]) -> Predictor:
    """The method that is a fit of an estimator."""

    def predict(problem: Problem) -> np.ndarray:
        return _fit(make, problem).predict(problem.data.Y_test)

    return predict


def _spike_slab_net(problem: Problem) -> np.ndarray:
    """Its epochs are steps of calibration."""
    data = problem.data
    model = SpikeSlabNet(problem.n_layers, mode="accurate", design_matrix=data.design_matrix, random_state=problem.seed)
    if problem.epochs is not None:
        model.set_params(training=problem.epochs)
    return model.fit(data.Y_train, data.B_train).predict(data.Y_test)


def _published_bayes_lista(problem: Problem) -> np.ndarray:
    return next(_published_bayes_curve(problem, [1000 if problem.epochs is None else problem.epochs]))


def _untrained_start(problem: Problem) -> np.ndarray:
    """The default BayesLISTA before its first epoch."""
    data = problem.data
    with jax.enable_x64(True):
        learner = VariationalLearner.start(
            data.design_matrix, data.Y_train, data.B_train, problem.n_layers, shrinkage=None, validation_fraction=0.1
        )
    return _learn_and_predict(learner, problem, np.random.default_rng(problem.seed), 0)


def _learn_and_predict(
    learner: VariationalLearner | FilteringLearner, problem: Problem, random: np.random.Generator, n_epochs: int
) -> np.ndarray:
    """The mean that a network predicts after more epochs."""
    data, (observation_unit, code_unit) = problem.data, learner.units
    with jax.enable_x64(True):
        learner.learn(data.Y_train / observation_unit, data.B_train / code_unit, random, n_epochs, 0.0)
        output = learner.output(data.Y_test / observation_unit, include_noise=False)
    return SpikeSlab(*output).mean() * code_unit


def _lasso(problem: Problem) -> np.ndarray:
    """scikit-learn's Lasso with the true matrix, its penalty chosen on training pairs."""
    data = problem.data
    n_pairs = min(max(len(data.Y_train) // 5, 1), _LASSO_MOST_PAIRS)
    observations, codes = data.Y_train[:n_pairs], data.B_train[:n_pairs]
    largest = np.median(np.max(np.abs(observations @ data.design_matrix), axis=1)) / len(data.design_matrix)

    def solve(alpha: float, Y: np.ndarray) -> np.ndarray:
        model = Lasso(alpha=alpha, fit_intercept=False, precompute=True, max_iter=_LASSO_STEPS)
        return model.fit(data.design_matrix, Y.T).coef_.reshape(len(Y), -1)

    best = min(largest * _LASSO_FRACTIONS, key=lambda alpha: nmse(codes, solve(alpha, observations)))
    return solve(best, data.Y_test)


def _ridge(problem: Problem) -> np.ndarray:
    """Ridge regression from observations to codes, its penalty by leaving one out."""
    data = problem.data
    return RidgeCV(_RIDGES, fit_intercept=False).fit(data.Y_train, data.B_train).predict(data.Y_test)


def _exact_posterior(problem: Problem) -> np.ndarray:
    """The posterior mean where matrix, prior and noise are known, by the exact mode."""
    known = {"prob_active": 0.2, "slab_var": 1.0, "noise_std": 0.5}
    model = SpikeSlabNet(mode="exact", design_matrix=problem.data.design_matrix, random_state=problem.seed, **known)
    return model.predict(problem.data.Y_test)


LIMIT = "exact posterior"
"""What no method can be better than on average; for data of `make_sparse_codes` only."""

METHODS: dict[str, Predictor] = {
    "ISTA": _ista,
    "FISTA": _fista,
    "FISTA, published": _published_fista,
    "ridge regression": _ridge,
    "Lasso, converged": _lasso,
    "untrained start": _untrained_start,
    "LISTA": _estimator(LISTA),
    "LISTA, published": _estimator(LISTA.published),
    "BayesLISTA": _estimator(BayesLISTA),
    "BayesLISTA, published": _published_bayes_lista,
    "SpikeSlabNet": _spike_slab_net,
    LIMIT: _exact_posterior,
}
"""Every method by its name in figures and tables; the order is that of legends."""

IGNORES_LAYERS = frozenset({"ridge regression", "Lasso, converged", LIMIT})
"""Methods without layers: the same at every depth."""

FAST = frozenset({"ISTA", "FISTA", "FISTA, published", "ridge regression", "Lasso, converged"})
"""Methods that compile and learn next to nothing: one cell is for a whole sweep."""


def synthetic_presets(few_points: Sequence[int], points: Sequence[int], sizes: Mapping[str, int]) -> dict[str, Preset]:
    """Presets of a sweep on the synthetic problem, with all methods."""
    few_seeds = {"ridge regression", "Lasso, converged"}
    quick = {method: 2 if method in few_seeds else 10 if method in FAST else 1 for method in METHODS}
    paper = dict.fromkeys(METHODS, 10) | {LIMIT: 3}
    slow = ("Lasso, converged", "LISTA, published", "BayesLISTA, published", "SpikeSlabNet")
    standard = paper | dict.fromkeys(slow, 3)

    def published(n_epochs: int) -> dict[str, int]:
        return {"LISTA, published": n_epochs, "BayesLISTA, published": n_epochs}

    return {
        "quick": Preset(few_points, quick, published(10) | {"SpikeSlabNet": 0}, sizes),
        "standard": Preset(points, standard, published(100), sizes),
        "paper": Preset(points, paper, published(1000), sizes),
    }


def _lista_curve(problem: Problem, epochs: Sequence[int]) -> Iterator[np.ndarray]:
    """A fit for every number of epochs, until one converges: more epochs then change nothing."""
    model = None
    for n_epochs in epochs:
        if model is None or model.n_iter_ == model.max_iter:
            model = _fit(LISTA, problem._replace(epochs=n_epochs))
        yield model.predict(problem.data.Y_test)


def _refits(make: Callable[..., LISTA | BayesLISTA]) -> Callable[[Problem, Sequence[int]], Iterator[np.ndarray]]:
    """A fit for every number of epochs: the learning rate depends on how many there are at most."""

    def curve(problem: Problem, epochs: Sequence[int]) -> Iterator[np.ndarray]:
        for n_epochs in epochs:
            yield _fit(make, problem._replace(epochs=n_epochs)).predict(problem.data.Y_test)

    return curve


def _published_bayes_curve(problem: Problem, epochs: Sequence[int]) -> Iterator[np.ndarray]:
    """Predictions during one run: nothing in it depends on the number of epochs."""
    data, made = problem.data, 0
    with jax.enable_x64(True):
        learner = FilteringLearner.start(
            data.design_matrix,
            data.Y_train,
            data.B_train,
            problem.n_layers,
            PAPER_SHRINKAGE,
            prior="printed",
            evidence="spike_slab",
            learn_noise=False,
        )
    # The order of the pairs is that of `BayesLISTA.published`.
    random = np.random.default_rng(check_random_state(problem.seed).randint(np.iinfo(np.int32).max))
    for n_epochs in epochs:
        yield _learn_and_predict(learner, problem, random, n_epochs - made)
        made = n_epochs


CURVES: dict[str, Callable[[Problem, Sequence[int]], Iterator[np.ndarray]]] = {
    "LISTA": _lista_curve,
    "LISTA, published": _refits(LISTA.published),
    "BayesLISTA": _refits(BayesLISTA),
    "BayesLISTA, published": _published_bayes_curve,
}
"""For methods that learn in epochs: predictions after each of several numbers of epochs."""


def learning_curve(method: str, problem: Problem, epochs: Sequence[int]) -> list[float]:
    """NMSE of the test pairs for each number of epochs at most, in increasing order; constant if there are none."""
    if method in CURVES:
        return [nmse(problem.data.B_test, codes) for codes in CURVES[method](problem, epochs)]
    return [nmse(problem.data.B_test, METHODS[method](problem))] * len(epochs)
