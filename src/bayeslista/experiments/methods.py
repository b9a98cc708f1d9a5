"""The methods that the figures compare, each a function of a problem that predicts the codes of the test pairs.

To add one, write that function and put it into `METHODS`; to show it, name it in the list of a figure. A method that
learns in passes also has a function in `CURVES`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from sklearn.linear_model import Lasso, RidgeCV
from sklearn.utils import Bunch

from bayeslista.distributions import SpikeSlab
from bayeslista.estimators import LISTA, BayesLISTA, SpikeSlabNet
from bayeslista.estimators._filtering import FilteringLearner
from bayeslista.estimators._validation import random_seed
from bayeslista.estimators._variational import VariationalLearner
from bayeslista.experiments.description import Preset
from bayeslista.experiments.gibbs import gibbs_posterior
from bayeslista.metrics import nmse
from bayeslista.proximal import fista, ista, ista_weights

__all__ = [
    "CURVES",
    "IGNORES_LAYERS",
    "LIMIT",
    "METHODS",
    "QUICK_TO_RUN",
    "Problem",
    "learning_curve",
    "synthetic_presets",
]

PAPER_SHRINKAGE = 0.1
_LASSO_FRACTIONS = np.geomspace(1e-3, 0.5, 10)
_LASSO_STEPS = 5000
_LASSO_MOST_PAIRS = 100
_RIDGES = np.geomspace(1e-2, 1e5, 15)
_TEMPERATURES = 2.0 ** np.linspace(0, 3, 7)
_ENOUGH_OBSERVED = 0.7  # of the coefficients, from which on chains move freely without heat


class Problem(NamedTuple):
    """Data and all that a method may want to know.

    Attributes
    ----------
    data : Bunch
        Design matrix, training and test pairs, as from `bayeslista.datasets`.
    n_layers : int
        Depth of a network, or number of steps.
    seed : int
        Of the fit.
    passes : int or None
        Passes over the training pairs at most; None is the method's own default.

    Examples
    --------
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.experiments.methods import Problem
    >>> Problem(make_sparse_codes(n_train=5, n_observed=2, n_components=3, random_state=0), n_layers=4).passes is None
    True
    """

    data: Bunch
    n_layers: int
    seed: int = 0
    passes: int | None = None


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
    passes = {} if problem.passes is None else {"max_iter": problem.passes}
    model = make(problem.n_layers, design_matrix=data.design_matrix, random_state=problem.seed, **passes)
    return model.fit(data.Y_train, data.B_train)


def _estimator(make: Callable[..., LISTA | BayesLISTA]) -> Predictor:
    """The method that is a fit of an estimator."""

    def predict(problem: Problem) -> np.ndarray:
        return _fit(make, problem).predict(problem.data.Y_test)

    return predict


def _spike_slab_net(problem: Problem) -> np.ndarray:
    """Its passes are steps of calibration."""
    data = problem.data
    model = SpikeSlabNet(problem.n_layers, design_matrix=data.design_matrix, random_state=problem.seed)
    if problem.passes is not None:
        model.set_params(calibration_steps=problem.passes)
    return model.fit(data.Y_train, data.B_train).predict(data.Y_test)


def _published_bayes_lista(problem: Problem) -> np.ndarray:
    passes = 1000 if problem.passes is None else problem.passes
    return next(_published_bayes_curve(problem, [passes]))


def _untrained_start(problem: Problem) -> np.ndarray:
    """The default BayesLISTA before its first pass."""
    data = problem.data
    with jax.enable_x64(True):
        learner = VariationalLearner.start(
            data.design_matrix, data.Y_train, data.B_train, problem.n_layers, shrinkage=None, validation_fraction=0.1
        )
    return _learn_and_predict(learner, problem, np.random.default_rng(problem.seed), 0)


def _learn_and_predict(
    learner: VariationalLearner | FilteringLearner, problem: Problem, random: np.random.Generator, n_passes: int
) -> np.ndarray:
    """The mean that a network predicts after more passes."""
    data, (observation_unit, code_unit) = problem.data, learner.units
    with jax.enable_x64(True):
        passes = learner.learn(data.Y_train / observation_unit, data.B_train / code_unit, random, n_passes, 0.0)
        deque(passes, maxlen=0)
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
    """The posterior mean where matrix, prior and noise are known, by Gibbs sampling."""
    data = problem.data
    n_observed, n_components = data.design_matrix.shape
    sweeps = {} if problem.passes is None else {"n_burn_in": problem.passes // 2, "n_sweeps": problem.passes}
    temperatures = (1.0,) if n_observed >= _ENOUGH_OBSERVED * n_components else _TEMPERATURES
    return gibbs_posterior(
        data.design_matrix, data.Y_test, temperatures=temperatures, random_state=problem.seed, **sweeps
    ).mean


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

QUICK_TO_RUN = frozenset({"ISTA", "FISTA", "FISTA, published", "ridge regression", "Lasso, converged"})
"""Methods that compile and learn next to nothing: one cell serves a whole sweep."""


def synthetic_presets(few_points: Sequence[int], points: Sequence[int], sizes: Mapping[str, int]) -> dict[str, Preset]:
    """Presets of a sweep on the synthetic problem, with all methods.

    Parameters
    ----------
    few_points, points : sequence of int
        Of the quick preset, and of the others.
    sizes : mapping of str to int
        Sizes of the data and of the networks.

    Returns
    -------
    dict of Preset
        By name.

    Examples
    --------
    >>> from bayeslista.experiments.methods import synthetic_presets
    >>> synthetic_presets((2,), (2, 3), {})["paper"].passes["BayesLISTA, published"]
    1000
    """
    quick_to_run = set(QUICK_TO_RUN) - {"ridge regression", "Lasso, converged"}
    quick = {method: 10 if method in quick_to_run else 2 if method in QUICK_TO_RUN else 1 for method in METHODS}
    paper = dict.fromkeys(METHODS, 10) | {LIMIT: 3}
    slow = ("Lasso, converged", "LISTA, published", "BayesLISTA, published", "SpikeSlabNet")
    standard = paper | dict.fromkeys(slow, 3)

    def passes(n: int) -> dict[str, int]:
        return {"LISTA, published": n, "BayesLISTA, published": n}

    return {
        "quick": Preset(few_points, quick, passes(10) | {LIMIT: 300, "SpikeSlabNet": 0}, sizes),
        "standard": Preset(points, standard, passes(100), sizes),
        "paper": Preset(points, paper, passes(1000), sizes),
    }


def _lista_curve(problem: Problem, passes: Sequence[int]) -> Iterator[np.ndarray]:
    """A fit for every number of passes, until one stops by itself: allowing it more then changes nothing."""
    model = None
    for n_passes in passes:
        if model is None or model.n_iter_ == model.max_iter:
            model = _fit(LISTA, problem._replace(passes=n_passes))
        yield model.predict(problem.data.Y_test)


def _refits(make: Callable[..., LISTA | BayesLISTA]) -> Callable[[Problem, Sequence[int]], Iterator[np.ndarray]]:
    """A fit for every number of passes: the pace of learning depends on how many there may be."""

    def curve(problem: Problem, passes: Sequence[int]) -> Iterator[np.ndarray]:
        for n_passes in passes:
            yield _fit(make, problem._replace(passes=n_passes)).predict(problem.data.Y_test)

    return curve


def _published_bayes_curve(problem: Problem, passes: Sequence[int]) -> Iterator[np.ndarray]:
    """One run, looked at on the way: nothing in it depends on how many passes there will be."""
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
    random = np.random.default_rng(random_seed(problem.seed))
    for n_passes in passes:
        yield _learn_and_predict(learner, problem, random, n_passes - made)
        made = n_passes


CURVES: dict[str, Callable[[Problem, Sequence[int]], Iterator[np.ndarray]]] = {
    "LISTA": _lista_curve,
    "LISTA, published": _refits(LISTA.published),
    "BayesLISTA": _refits(BayesLISTA),
    "BayesLISTA, published": _published_bayes_curve,
}
"""For methods that learn in passes: predictions after each of several numbers of passes."""


def learning_curve(method: str, problem: Problem, passes: Sequence[int]) -> list[float]:
    """NMSE of the test pairs after so many passes over the training pairs.

    Every point is what a user gets who asks for that many passes at most. A method that makes no passes has the same
    error at all points.

    Parameters
    ----------
    method : str
        A key of `METHODS`.
    problem : Problem
        Data, depth and seed.
    passes : sequence of int
        Increasing.

    Returns
    -------
    list of float
        One error for each number of passes.

    Examples
    --------
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.experiments.methods import Problem, learning_curve
    >>> data = make_sparse_codes(n_train=20, n_test=5, n_observed=6, n_components=8, random_state=0)
    >>> first, last = learning_curve("ISTA", Problem(data, n_layers=4), [1, 10])
    >>> first == last
    True
    """
    if method in CURVES:
        return [nmse(problem.data.B_test, codes) for codes in CURVES[method](problem, passes)]
    return [nmse(problem.data.B_test, METHODS[method](problem))] * len(passes)
