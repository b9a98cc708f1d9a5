"""A seeded grid of awkward problems that the default BayesLISTA has to survive.

Sizes come from a few shapes, since every shape is compiled anew; within a shape the scales of codes and observations,
the threshold, sparsity, noise, geometry of the design matrix and floating type vary. A configuration passes if nothing
is raised and nothing but `NumericalWarning` warned of, if mean, standard deviation and P(active) of fresh observations
are finite, and, with 50 pairs or more, if the NMSE of fresh codes of nonzero norm is at most 1.05.

    python benchmarks/stress.py [--seed s] [--first n] [--only i ...] [--out results/stress.csv]

The exit code is 1 if any configuration fails.
"""

import argparse
import csv
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bayeslista import BayesLISTA, NumericalWarning
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse

LARGEST_NMSE = 1.05
SCORED_FROM = 50
N_TEST = 128


class Shape(NamedTuple):
    n_components: int
    n_observed: int
    n_layers: int
    n_pairs: int
    max_iter: int
    repeats: int


SHAPES = [
    Shape(1, 1, 1, 1, 3, 20),
    Shape(1, 1, 10, 50, 5, 24),
    Shape(1, 7, 30, 60, 5, 20),
    Shape(8, 1, 4, 60, 5, 24),
    Shape(3, 2, 2, 2, 3, 20),
    Shape(6, 6, 8, 9, 5, 20),
    Shape(12, 6, 4, 50, 20, 28),
    Shape(20, 10, 30, 100, 5, 28),
    Shape(15, 40, 5, 200, 5, 28),
    Shape(40, 20, 20, 80, 5, 28),
    Shape(30, 10, 12, 300, 50, 14),
    Shape(100, 50, 10, 50, 3, 20),
    Shape(10, 5, 4, 5000, 3, 14),
    Shape(200, 250, 6, 64, 3, 10),
    Shape(784, 3, 2, 50, 3, 10),
    Shape(784, 100, 20, 100, 3, 4),
    Shape(784, 250, 30, 50, 2, 2),
]


def plain(design: np.ndarray, _: np.random.Generator) -> np.ndarray:
    return design


def duplicated(design: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Every column occurs about twice."""
    return design[:, random.integers(0, -(-design.shape[1] // 2), design.shape[1])]


def collinear(design: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """All columns in the span of two, but for 1e-9 of their size."""
    few = design[:, :2]
    return few @ random.standard_normal((few.shape[1], design.shape[1])) + 1e-9 * design


def opposed(design: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """All columns on one line, of either sign."""
    return design[:, :1] * random.choice([-1.0, 1.0], design.shape[1])


def uneven(design: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Norms of columns over six decades."""
    return design * 10.0 ** random.uniform(-3, 3, design.shape[1])


def uneven_rows(design: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Some observations a million times larger than others."""
    return design * 10.0 ** random.uniform(-3, 3, (len(design), 1))


def vanishing(design: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """About half of the columns are zero."""
    return design * (random.random(design.shape[1]) < 0.5)


GEOMETRIES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    function.__name__: function for function in (plain, duplicated, collinear, opposed, uneven, uneven_rows, vanishing)
}
GEOMETRY_WEIGHTS = (0.22, 0.13, 0.13, 0.1, 0.22, 0.1, 0.1)


class Configuration(NamedTuple):
    index: int
    n_components: int
    n_observed: int
    n_layers: int
    n_pairs: int
    max_iter: int
    code_scale: float
    observation_scale: float
    shrinkage: float | str
    prob_active: float
    noise_std: float
    geometry: str
    dtype: str
    known: bool


def configurations(seed: int) -> list[Configuration]:
    """The grid, shapes taking turns so that any prefix is varied."""
    rounds = range(max(shape.repeats for shape in SHAPES))
    order = [shape for turn in rounds for shape in SHAPES if turn < shape.repeats]
    grid = []
    for index, shape in enumerate(order):
        random = np.random.default_rng([seed, index])
        scales = [float(10.0 ** random.integers(-6, 7)) if random.random() < 0.7 else 1.0 for _ in range(2)]
        # Thresholds are absolute: half of them are of the size of the codes, the others meet codes of any scale.
        threshold = float(random.choice([0.0, 1e-3, 0.1, 1.0, 10.0]))
        if random.random() < 0.5:
            threshold = min(threshold * scales[0], 10.0)
        grid.append(
            Configuration(
                index,
                *shape[:5],
                code_scale=scales[0],
                observation_scale=scales[1],
                shrinkage="auto" if random.random() < 0.55 else threshold,
                prob_active=float(random.choice([0.0, 0.02, 0.2, 0.5, 1.0], p=[0.06, 0.14, 0.4, 0.2, 0.2])),
                noise_std=float(random.choice([0.0, 1e-6, 0.1, 0.5, 2.0])),
                geometry=str(random.choice(list(GEOMETRIES), p=GEOMETRY_WEIGHTS)),
                dtype=str(random.choice(["float64", "float32"], p=[0.65, 0.35])),
                known=bool(random.random() < 0.7),
            )
        )
    return grid


def problem(configuration: Configuration, seed: int) -> dict[str, np.ndarray]:
    """Training and test pairs and their design matrix, scaled."""
    random = np.random.default_rng([seed + 1, configuration.index])
    shape = configuration.n_observed, configuration.n_components
    design = GEOMETRIES[configuration.geometry](random.standard_normal(shape), random)
    data = make_sparse_codes(
        configuration.n_pairs,
        N_TEST,
        *shape,
        prob_active=configuration.prob_active,
        noise_std=configuration.noise_std,
        design_matrix=design,
        random_state=int(random.integers(2**31)),
    )
    gain = configuration.observation_scale / configuration.code_scale
    factors = {"Y": configuration.observation_scale, "B": configuration.code_scale, "d": gain}
    return {name: (factors[name[0]] * value).astype(configuration.dtype) for name, value in data.items()}


def score(true: np.ndarray, predicted: np.ndarray) -> float:
    """NMSE over codes of nonzero norm; 0 where there are none."""
    informative = true.any(axis=1)
    return nmse(true[informative], predicted[informative]) if informative.any() else 0.0


def attempt(configuration: Configuration, seed: int) -> tuple[float, str]:
    """NMSE of fresh codes, and what failed or nothing."""
    data = problem(configuration, seed)
    model = BayesLISTA(
        configuration.n_layers,
        design_matrix=data["design_matrix"] if configuration.known else None,
        shrinkage=configuration.shrinkage,
        max_iter=configuration.max_iter,
        random_state=configuration.index,
    )
    model.fit(data["Y_train"], data["B_train"])
    mean, std = model.predict(data["Y_test"], return_std=True)
    answers = {"mean": mean, "std": std, "prob_active": model.predict_dist(data["Y_test"]).prob_active}
    unusable = [name for name, values in answers.items() if not np.isfinite(values).all()]
    if unusable:
        return float("nan"), f"not finite: {', '.join(unusable)}"
    error = score(data["B_test"], mean)
    if configuration.n_pairs >= SCORED_FROM and not error <= LARGEST_NMSE:
        return error, f"NMSE {error:.3g}"
    return error, ""


def run(configuration: Configuration, seed: int) -> dict[str, Any]:
    """One row of the table."""
    begin = time.perf_counter()
    error = float("nan")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            error, failure = attempt(configuration, seed)
        except Exception as exception:
            frame = traceback.extract_tb(exception.__traceback__)[-1]
            failure = f"{type(exception).__name__}: {exception} ({Path(frame.filename).name}:{frame.lineno})"
    numerical = sum(issubclass(warning.category, NumericalWarning) for warning in caught)
    others = [warning for warning in caught if not issubclass(warning.category, NumericalWarning)]
    if others and not failure:
        failure = "; ".join(
            sorted({f"{w.category.__name__}: {w.message} ({Path(w.filename).name}:{w.lineno})" for w in others})
        )
    return {
        **configuration._asdict(),
        "nmse": error,
        "numerical_warnings": numerical,
        "seconds": time.perf_counter() - begin,
        "failure": failure,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=2018, help="of the grid and its data")
    parser.add_argument("--first", type=int, default=None, metavar="n", help="run only the first n configurations")
    parser.add_argument("--only", type=int, nargs="+", default=None, metavar="i", help="run only these indices")
    parser.add_argument("--out", type=Path, default=Path("results/stress.csv"))
    arguments = parser.parse_args()
    grid = configurations(arguments.seed)
    chosen = grid[: arguments.first] if arguments.only is None else [grid[i] for i in arguments.only]
    begin = time.perf_counter()
    rows = []
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        columns = [*Configuration._fields, "nmse", "numerical_warnings", "seconds", "failure"]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for configuration in chosen:
            row = run(configuration, arguments.seed)
            rows.append(row)
            shown = {"nmse": f"{row['nmse']:.4g}", "seconds": f"{row['seconds']:.2f}"}
            writer.writerow(row | shown)
            file.flush()
            if row["failure"]:
                print(*configuration, row["failure"], flush=True)
    failed = sum(bool(row["failure"]) for row in rows)
    warned = sum(bool(row["numerical_warnings"]) for row in rows)
    print(
        f"{len(rows)} configurations, {failed} failed, {warned} with a NumericalWarning, "
        f"{time.perf_counter() - begin:.0f} s"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
