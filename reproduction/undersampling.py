"""Error by the number of observations, on the synthetic problem with networks of four layers."""

from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse
from reproduction.experiment import Cell, PaperFigure, Row
from reproduction.methods import FAST, METHODS, Problem, synthetic_presets

PRESETS = synthetic_presets(
    few_points=(20, 80),
    points=tuple(range(10, 101, 10)),
    sizes={"n_train": 1000, "n_test": 100, "n_components": 100, "n_layers": 4},
)


def compute(cell: Cell) -> list[Row]:
    """Errors of a method at the numbers of observations of a cell."""
    sizes = dict(cell.sizes)
    n_layers = sizes.pop("n_layers")
    rows = []
    for n_observed in cell.points:
        data = make_sparse_codes(**sizes, n_observed=n_observed, random_state=cell.seed)
        codes = METHODS[cell.method](Problem(data, n_layers, cell.seed, cell.epochs))
        rows.append(Row(cell.method, n_observed, nmse(data.B_test, codes)))
    return rows


FIGURE = PaperFigure(
    "undersampling",
    "Synthetic codes: error by number of observations (L = 4)",
    "observations K",
    PRESETS,
    compute,
    FAST,
)
