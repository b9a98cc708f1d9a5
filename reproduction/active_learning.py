"""Error as images are added one by one: by uncertainty, at random, or by the variance that they reduce.

All strategies start from the same fit, so that their errors can be compared repeat by repeat. Networks learn in single
precision, since they are fitted hundreds of times.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import ttest_1samp
from sklearn.utils import Bunch

from bayeslista.active import Acquisition, active_learning, total_variance
from bayeslista.datasets import load_mnist_codes
from bayeslista.estimators import BayesLISTA
from bayeslista.metrics import nmse
from reproduction.experiment import Cell, PaperFigure, Preset, Row

_ADDITIONS = tuple(range(11))
_PUBLISHED, _DEFAULT = "BayesLISTA, published", "BayesLISTA"
_OF_THE_PAPER: dict[str, Acquisition | str] = {"active": total_variance, "random": "random"}


class ActiveLearner(NamedTuple):
    """A network, whether it goes on learning after an addition or is fitted anew, and its strategies by name."""

    make: Callable[[Bunch, int, int, int], BayesLISTA]
    goes_on: bool
    strategies: dict[str, Acquisition | str]


def _published(data: Bunch, n_layers: int, epochs: int, seed: int) -> BayesLISTA:
    return BayesLISTA.published(n_layers, design_matrix=data.design_matrix, max_iter=epochs, random_state=seed)


def _default(data: Bunch, n_layers: int, epochs: int, seed: int) -> BayesLISTA:
    return BayesLISTA(
        n_layers, design_matrix=data.design_matrix, max_iter=epochs, validation_fraction=0.0, random_state=seed
    )


LEARNERS = {
    _PUBLISHED: ActiveLearner(_published, True, _OF_THE_PAPER),
    _DEFAULT: ActiveLearner(_default, False, _OF_THE_PAPER | {"variance reduction": "variance_reduction"}),
}


def compute(cell: Cell) -> list[Row]:
    """Errors after each addition, for all strategies of a network."""
    sizes, learner = cell.sizes, LEARNERS[cell.method]
    n_train = sizes["n_train"]
    images = load_mnist_codes(sizes["n_observed"], n_train + sizes["n_pool"], sizes["n_test"], random_state=cell.seed)
    Y, B, Y_test = (part.astype(np.float32) for part in (images.Y_train, images.B_train, images.Y_test))
    known, pool = ((Y[rows], B[rows]) for rows in (slice(0, n_train), slice(n_train, None)))
    start = learner.make(images, sizes["n_layers"], cell.epochs or 1, cell.seed).fit(*known)
    rows = []
    for name, strategy in learner.strategies.items():
        additions = active_learning(
            deepcopy(start),
            *known,
            *pool,
            n_additions=cell.points[-1],
            strategy=strategy,
            update=_more_epochs(sizes["epochs_per_addition"], cell.seed) if learner.goes_on else "fit",
            random_state=cell.seed,
        )
        models = (start, *(addition.model for addition in additions))
        errors = [nmse(images.B_test, model.predict(Y_test)) for model in models]
        rows += [Row(f"{name} ({cell.method})", x, errors[x]) for x in cell.points]
    return rows


def _more_epochs(n_epochs: int, seed: int) -> Callable[[BayesLISTA, np.ndarray, np.ndarray], None]:
    random = np.random.default_rng(seed)

    def update(model: BayesLISTA, Y: np.ndarray, B: np.ndarray) -> None:
        for _ in range(n_epochs):
            order = random.permutation(len(Y))
            model.partial_fit(Y[order], B[order])

    return update


def compare_with_random(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Mean difference to random choice by addition, repeat by repeat, and the p-value of Student's paired test."""
    errors = {method: rows.pivot(index="seed", columns="x", values="nmse") for method, rows in table.groupby("method")}
    points = sorted(x for x in table["x"].unique() if x > 0)
    rows: list[tuple[str, ...]] = [("less random", "repeats", *(f"{x:g}" for x in points), "p")]
    for method, learner in LEARNERS.items():
        for name in (f"{strategy} ({method})" for strategy in learner.strategies if strategy != "random"):
            if points and name in errors:
                less = (errors[name] - errors[f"random ({method})"])[points]
                p_value = f"{ttest_1samp(less[points[-1]], 0.0).pvalue:.2g}" if len(less) > 1 else ""
                rows.append((name, f"{len(less)}", *(f"{less[x].mean():.4f}" for x in points), p_value))
    return rows


def _preset(
    points: tuple[int, ...], seeds: tuple[int, int], epochs: tuple[int, int], per_addition: int, n_pool: int = 500
) -> Preset:
    """Repeats and epochs of the published and the default network; only the former learns on after an addition."""
    sizes = {"n_train": 50, "n_test": 100, "n_observed": 100, "n_layers": 20}
    sizes |= {"epochs_per_addition": per_addition, "n_pool": n_pool}
    networks = _PUBLISHED, _DEFAULT
    return Preset(points, dict(zip(networks, seeds, strict=True)), dict(zip(networks, epochs, strict=True)), sizes)


FIGURE = PaperFigure(
    "active",
    "Images of digits: error as images are added (K = 100, L = 20)",
    "images added",
    {
        "quick": _preset((0, 1), (1, 1), (3, 1), 1, n_pool=100),
        "standard": _preset(_ADDITIONS, (6, 20), (20, 2), 3),
        "paper": _preset(_ADDITIONS, (20, 20), (50, 5), 10),
    },
    compute,
    LEARNERS.keys(),
    compare=compare_with_random,
    comparison="Mean difference to random choice from the same start, by images added; p by Student's paired test.",
)
