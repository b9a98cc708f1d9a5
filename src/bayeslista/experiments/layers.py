"""Error by the number of layers, on the synthetic problem with 50 observations of 100 coefficients."""

from bayeslista.datasets import make_sparse_codes
from bayeslista.experiments.cells import Cell, Row
from bayeslista.experiments.description import Figure, Preset, sweep_cells
from bayeslista.experiments.methods import IGNORES_LAYERS, METHODS, QUICK_TO_RUN, Problem, synthetic_presets
from bayeslista.metrics import nmse

__all__ = ["FIGURE", "compute"]

_SIZES = {"n_train": 1000, "n_test": 100, "n_observed": 50, "n_components": 100}
PRESETS = synthetic_presets((4, 10), (2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20), _SIZES)


def compute(cell: Cell) -> list[Row]:
    """Errors of a method at the depths of a cell.

    Parameters
    ----------
    cell : Cell
        From `FIGURE`.

    Returns
    -------
    list of dict
        ``method``, ``x`` and ``nmse`` for each depth.

    Examples
    --------
    >>> from bayeslista.experiments.layers import FIGURE, compute
    >>> [row["x"] for row in compute(FIGURE.cells("quick")[0])]
    [4, 10]
    """
    points, passes, sizes = (cell.settings[name] for name in ("points", "passes", "sizes"))
    data = make_sparse_codes(**sizes, random_state=cell.seed)
    predict = METHODS[cell.method]
    depths = points[:1] if cell.method in IGNORES_LAYERS else points
    errors = [nmse(data.B_test, predict(Problem(data, n_layers, cell.seed, passes))) for n_layers in depths]
    errors *= len(points) // len(errors)
    return [{"method": cell.method, "x": x, "nmse": error} for x, error in zip(points, errors, strict=True)]


def _cells(figure: str, preset: Preset) -> list[Cell]:
    return sweep_cells(figure, f"{__name__}:compute", preset, QUICK_TO_RUN | IGNORES_LAYERS)


FIGURE = Figure("layers", "Synthetic codes: error by depth (K = 50)", "layers L", PRESETS, _cells)
