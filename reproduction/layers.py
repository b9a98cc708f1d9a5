"""Error by the number of layers, on the synthetic problem with 50 observations of 100 coefficients."""

from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse
from reproduction.experiment import Cell, PaperFigure, Row
from reproduction.methods import FAST, IGNORES_LAYERS, METHODS, Problem, synthetic_presets

PRESETS = synthetic_presets(
    few_points=(4, 10),
    points=(2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20),
    sizes={"n_train": 1000, "n_test": 100, "n_observed": 50, "n_components": 100},
)


def compute(cell: Cell) -> list[Row]:
    """Errors of a method at the depths of a cell."""
    data = make_sparse_codes(**cell.sizes, random_state=cell.seed)
    depths = cell.points[:1] if cell.method in IGNORES_LAYERS else cell.points
    errors = [
        nmse(data.B_test, METHODS[cell.method](Problem(data, n_layers, cell.seed, cell.epochs))) for n_layers in depths
    ]
    errors *= len(cell.points) // len(errors)
    return [Row(cell.method, x, error) for x, error in zip(cell.points, errors, strict=True)]


FIGURE = PaperFigure(
    "layers", "Synthetic codes: error by depth (K = 50)", "layers L", PRESETS, compute, FAST | IGNORES_LAYERS
)
