"""Error by epochs, for images of digits seen through 100 and 250 random projections."""

from bayeslista.datasets import load_mnist_codes
from reproduction.experiment import Cell, PaperFigure, Preset, Row
from reproduction.methods import LIMIT, METHODS, Problem, learning_curve

_EPOCHS = (1, 2, 5, 10, 20, 50, 100, 200, 300, 400, 499)
_ONCE = {method: 1 for method in METHODS if method != LIMIT}
_QUICK = {method: 1 for method in _ONCE if method not in ("untrained start", "LISTA, published")}
_STANDARD_ENDS = dict.fromkeys(("LISTA, published", "BayesLISTA", "BayesLISTA, published"), 100)
_PAPER_ENDS = {"BayesLISTA": 100}  # it needs no more
_REFITTED = {"LISTA, published", "BayesLISTA"}  # every point is a fit of its own, and a cell


def compute(cell: Cell) -> list[Row]:
    """Errors of a method after the numbers of epochs of a cell."""
    sizes = dict(cell.sizes)
    n_layers = sizes.pop("n_layers")
    problem = Problem(load_mnist_codes(**sizes, random_state=cell.seed), n_layers, cell.seed)
    errors = learning_curve(cell.method, problem, cell.points)
    return [Row(cell.method, x, error) for x, error in zip(cell.points, errors, strict=True)]


def _figure(n_observed: int) -> PaperFigure:
    sizes = {"n_train": 100, "n_test": 100, "n_layers": 20, "n_observed": n_observed}
    presets = {
        "quick": Preset((1,), _QUICK, {}, sizes),
        "standard": Preset(_EPOCHS, _ONCE, _STANDARD_ENDS, sizes),
        "paper": Preset(_EPOCHS, _ONCE, _PAPER_ENDS, sizes),
    }
    title = f"Images of digits: error by epochs (K = {n_observed}, L = 20)"
    whole_sweep = METHODS.keys() - _REFITTED
    return PaperFigure(f"mnist_k{n_observed}", title, "epochs", presets, compute, whole_sweep, over_epochs=True)


FIGURE_100 = _figure(100)
FIGURE_250 = _figure(250)
