"""Error by the number of observations, on the synthetic problem with networks of four layers."""

from bayeslista.datasets import make_sparse_codes
from bayeslista.experiments.cells import Cell, Row
from bayeslista.experiments.description import Figure, Preset, sweep_cells
from bayeslista.experiments.methods import METHODS, QUICK_TO_RUN, Problem, synthetic_presets
from bayeslista.metrics import nmse

__all__ = ["FIGURE", "compute"]

_SIZES = {"n_train": 1000, "n_test": 100, "n_components": 100, "n_layers": 4}
PRESETS = synthetic_presets((20, 80), tuple(range(10, 101, 10)), _SIZES)


def compute(cell: Cell) -> list[Row]:
    """Errors of a method at the numbers of observations of a cell.

    Parameters
    ----------
    cell : Cell
        From `FIGURE`.

    Returns
    -------
    list of dict
        ``method``, ``x`` and ``nmse`` for each number of observations.

    Examples
    --------
    >>> from bayeslista.experiments.undersampling import FIGURE, compute
    >>> [row["x"] for row in compute(FIGURE.cells("quick")[0])]
    [20, 80]
    """
    sizes = dict(cell.settings["sizes"])
    n_layers = sizes.pop("n_layers")
    rows = []
    for n_observed in cell.settings["points"]:
        data = make_sparse_codes(**sizes, n_observed=n_observed, random_state=cell.seed)
        codes = METHODS[cell.method](Problem(data, n_layers, cell.seed, cell.settings["passes"]))
        rows.append({"method": cell.method, "x": n_observed, "nmse": nmse(data.B_test, codes)})
    return rows


def _cells(figure: str, preset: Preset) -> list[Cell]:
    return sweep_cells(figure, f"{__name__}:compute", preset, QUICK_TO_RUN)


FIGURE = Figure(
    "undersampling", "Synthetic codes: error by number of observations (L = 4)", "observations K", PRESETS, _cells
)
