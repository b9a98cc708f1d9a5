"""Accuracy and calibration of the default BayesLISTA over seeds, beside LISTA, its untrained start, Lasso and ridge.

Every cell is a problem (size, depth) and a seed of `make_sparse_codes`, or of `load_mnist_codes`; every row of the CSV
is one method on one cell. The table gives mean and standard deviation over seeds.

    python benchmarks/accuracy.py [--cells synthetic …] [--methods BayesLISTA …] [--seeds 0 1 …] [--out results]

Finished rows are kept in the CSV and not computed again.
"""

import argparse
import csv
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayeslista import FISTA, LISTA, BayesLISTA, NumericalWarning, SpikeSlab
from bayeslista.datasets import load_mnist_codes, make_sparse_codes
from bayeslista.metrics import brier_score, log_score, nmse, pit_coverage, variance_ratio
from reproduction.methods import METHODS as FIGURE_METHODS
from reproduction.methods import Problem

COLUMNS = [
    "problem", "n_observed", "n_layers", "seed", "method",
    "nmse", "variance_ratio", "pit_50", "pit_90", "log_score", "log_score_constant", "brier", "worst_pass", "seconds",
]  # fmt: skip

METHODS = [
    "BayesLISTA", "LISTA", "untrained start", "Lasso, converged", "ridge regression", "BayesLISTA.published",
]  # fmt: skip


class Cell(NamedTuple):
    problem: str
    n_observed: int
    n_layers: int


CELLS = {
    "synthetic": [Cell("synthetic", 50, n) for n in (4, 10, 20)]
    + [Cell("synthetic", k, n) for k, n in ((30, 4), (80, 4), (80, 10), (100, 4))],
    "layers": [Cell("synthetic", 50, n) for n in (2, 3, 5, 6, 7, 8, 9, 15)],
    "mnist": [Cell("mnist", 100, 20), Cell("mnist", 250, 20)],
    "unknown": [Cell("unknown matrix", 50, n) for n in (4, 10)],
    "published": [Cell("published", 50, n) for n in (4, 10)],
    "published_depths": [Cell("published", 50, n) for n in (2, 3, 5, 6, 7, 8, 9, 15, 20)],
}


def load(cell: Cell, seed: int) -> Any:
    if cell.problem == "mnist":
        return load_mnist_codes(cell.n_observed, 100, 100, random_state=seed)
    # Rows of one seed do not depend on how many there are: the first 100 are those of a smaller test set.
    return make_sparse_codes(1000, 1000, cell.n_observed, 100, random_state=seed)


def scores(distribution: SpikeSlab, data: Any, seed: int) -> dict[str, float]:
    active = data.B_train != 0
    constant = SpikeSlab(active.mean(), data.B_train[active].mean(), data.B_train[active].var())
    return {
        "variance_ratio": variance_ratio(distribution, data.B_test),
        "pit_50": pit_coverage(distribution, data.B_test, 0.5, seed),
        "pit_90": pit_coverage(distribution, data.B_test, 0.9, seed),
        "log_score": -log_score(distribution, data.B_test),
        "log_score_constant": -log_score(constant, data.B_test),
        "brier": brier_score(distribution, data.B_test),
    }


def lasso(data: Any) -> np.ndarray:
    """Lasso with the true matrix, run to convergence, its threshold chosen on training pairs."""

    def solve(shrinkage: float, Y: np.ndarray) -> np.ndarray:
        model = FISTA(2000, design_matrix=data.design_matrix, shrinkage=shrinkage)
        return model.fit(data.Y_train, data.B_train).predict(Y)

    grid = np.sqrt(np.mean(data.B_train**2)) * np.geomspace(1e-4, 1, 9)
    best = min(grid, key=lambda shrinkage: nmse(data.B_train[:100], solve(shrinkage, data.Y_train[:100])))
    return solve(best, data.Y_test)


def methods(cell: Cell, data: Any, seed: int) -> Iterator[tuple[str, Any]]:
    known = None if cell.problem == "unknown matrix" else data.design_matrix
    if cell.problem == "published":
        yield "BayesLISTA.published", BayesLISTA.published(cell.n_layers, design_matrix=known, random_state=seed)
        return
    yield "BayesLISTA", BayesLISTA(cell.n_layers, design_matrix=known, random_state=seed)
    yield "LISTA", LISTA(cell.n_layers, design_matrix=known, random_state=seed)
    if known is not None:
        problem = Problem(data, cell.n_layers)
        yield "untrained start", lambda: FIGURE_METHODS["untrained start"](problem)
        yield "Lasso, converged", lambda: lasso(data)
        yield "ridge regression", lambda: FIGURE_METHODS["ridge regression"](problem)


def run(cell: Cell, seed: int, wanted: list[str], done: set[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    data = load(cell, seed)
    for name, method in methods(cell, data, seed):
        key = (*map(str, cell), str(seed), name)
        if key in done or name not in wanted:
            continue
        begin = time.perf_counter()
        row: dict[str, Any] = {**cell._asdict(), "seed": seed, "method": name}
        if callable(method):
            predicted = method()
        else:
            method.fit(data.Y_train, data.B_train)
            predicted = method.predict(data.Y_test)
        row |= {"seconds": time.perf_counter() - begin, "nmse": nmse(data.B_test, predicted)}
        if isinstance(method, BayesLISTA):
            row |= scores(method.predict_dist(data.Y_test), data, seed)
            row["worst_pass"] = float(np.max(method.history_["training_nmse"]))  # NaN if any epoch was not finite
        yield row


def table(rows: list[dict[str, Any]]) -> str:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[(row["problem"], row["n_observed"], row["n_layers"], row["method"])].append(row)

    def cell(group: list[dict[str, Any]], column: str) -> str:
        values = [float(row[column]) for row in group if row.get(column) not in (None, "")]
        return f"{np.mean(values):.3f} ± {np.std(values):.3f}" if values else ""

    shown = COLUMNS[5:-1]
    lines = [
        "# Accuracy and calibration over seeds",
        "",
        "Made by `python benchmarks/accuracy.py`: mean ± standard deviation over seeds. Variance ratio: mean predicted",
        "variance over mean squared error. PIT: share of coefficients whose randomised probability integral transform",
        "lies in its central 50 and 90 %. Log score: mean log density in the mixed measure, beside that of a constant",
        "spike and slab fitted to the training codes. Brier: of P(active). Worst epoch: the largest NMSE of any epoch",
        "of training.",
        "",
        "| problem | K | L | method | seeds | " + " | ".join(name.replace("_", " ") for name in shown) + " |",
        "|" + "---|" * (5 + len(shown)),
    ]
    for key, group in sorted(
        groups.items(), key=lambda item: (item[0][0], int(item[0][1]), int(item[0][2]), item[0][3])
    ):
        cells = [*map(str, key), str(len(group)), *(cell(group, column) for column in shown)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", NumericalWarning)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "accuracy.csv"
    rows: list[dict[str, Any]] = list(csv.DictReader(path.open())) if path.exists() else []
    done = {tuple(row[column] for column in COLUMNS[:5]) for row in rows}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not rows:
            writer.writeheader()
        for seed in arguments.seeds:
            for name in arguments.cells:
                for cell in CELLS[name]:
                    for row in run(cell, seed, arguments.methods, done):
                        writer.writerow(row)
                        file.flush()
                        rows.append(row)
                        print(
                            *(f"{row[c]:.4g}" if isinstance(row[c], float) else row[c] for c in COLUMNS if c in row),
                            flush=True,
                        )
    (arguments.out / "accuracy.md").write_text(table(rows))


if __name__ == "__main__":
    main()
