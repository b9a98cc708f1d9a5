"""How far SpikeSlabNet, at its defaults, is from the physical limit, and from what one would use instead.

The reference files beside the project hold the paper's problem with the exact model's posterior (two Gibbs chains),
which is sampled by the exact mode elsewhere; other cells are fresh problems of the same generator, harder dictionaries
and codes, signals unlike the training data, and images. Every row of the CSV is one method on one cell and seed.

    python benchmarks/limit.py [--cells known …] [--methods SpikeSlabNet …] [--seeds 0 1 …] [--speed] [--out results]

Finished rows are kept in the CSV and not computed again. `--speed` measures times instead, all in one process.
"""

import argparse
import csv
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np
from sklearn.linear_model import Lasso, LassoCV
from sklearn.utils import Bunch

from bayeslista import BayesLISTA, NumericalWarning, SpikeSlab, SpikeSlabNet
from bayeslista.datasets import load_mnist_codes, make_sparse_codes
from bayeslista.metrics import (
    brier_score,
    coverage,
    expected_calibration_error,
    nmse,
    nmse_db,
    pit_coverage,
    variance_ratio,
)
from bayeslista.spike_slab.empirical_bayes import gather_statistics, matrix_posterior

COLUMNS = [
    "cell", "n_observed", "pairs", "matrix", "seed", "method",
    "nmse", "nmse_db", "nmse_first", "pit_50", "pit_90", "interval_90", "variance_ratio", "calibration_error", "brier",
    "fit_seconds",
]  # fmt: skip
KEY = COLUMNS[:6]
FIRST = 200  # test signals that the posterior is sampled of
NETWORKS = {
    "SpikeSlabNet": {"mode": "accurate"},
    "SpikeSlabNet, fast": {"mode": "fast"},
    "SpikeSlabNet, 10 layers": {"mode": "accurate", "n_layers": 10},
    "SpikeSlabNet, 16 layers": {"mode": "accurate", "n_layers": 16},
}
EVERYWHERE = ("SpikeSlabNet", "SpikeSlabNet, fast", "Lasso", "BayesLISTA")
OURS = EVERYWHERE[:2]
LIMIT = "exact posterior"
PRIOR = {"prob_active": 0.2, "slab_var": 1.0, "noise_std": 0.5}  # of the paper's problem, but for its gap


class Cell(NamedTuple):
    cell: str
    n_observed: int
    pairs: str = "1000"  # or "alone": observations without codes
    matrix: str = "known"


class Group(NamedTuple):
    cells: list[Cell]
    methods: tuple[str, ...]
    n_seeds: int = 1


HARD = ("ill-conditioned", "equicorrelated", "autoregressive", "uneven columns", "Laplacian", "signs")
GROUPS = {
    "known": Group([Cell("reference", k) for k in (50, 20, 80, 100)], (*EVERYWHERE, LIMIT)),
    "ten_layers": Group([Cell("reference", 50)], ("SpikeSlabNet, 10 layers",)),
    "few": Group([Cell("reference", 50, "20"), Cell("reference", 80, "20")], EVERYWHERE),
    "alone": Group([Cell("reference", k, "alone") for k in (50, 20, 80, 100)], ("SpikeSlabNet", "Lasso")),
    "learned": Group(
        [Cell("reference", 50, n, "learned") for n in ("1000", "200", "50")]
        + [Cell("reference", 80, "1000", "learned")],
        EVERYWHERE,
    ),
    "fresh": Group([Cell("fresh", k) for k in (50, 80)], (*OURS, LIMIT), 5),
    "fresh_learned": Group([Cell("fresh", 50, "1000", "learned")], ("SpikeSlabNet",), 5),
    "fresh_little": Group([Cell("fresh", 50, "20"), *(Cell("fresh", k, "alone") for k in (50, 20))], OURS[:1], 3),
    "hard": Group([Cell(name, 50) for name in HARD], (*OURS, "Lasso"), 3),
    "hard_network": Group([Cell(name, 50) for name in HARD], ("BayesLISTA",)),
    "wide": Group([Cell("SNR 20", 250, "200"), Cell("SNR 40", 250, "200")], ("SpikeSlabNet, 16 layers", "Lasso")),
    "misfit": Group([Cell(name, 50) for name in ("100 times larger", "twice the noise", "twice as many active")], OURS),
    "mnist": Group([Cell("MNIST", k, "100", m) for k in (100, 250) for m in ("known", "learned")], OURS[:1], 5),
}


def load(cell: Cell, seed: int, reference: Path) -> Bunch:
    K, D = cell.n_observed, 100
    if cell.cell == "reference":
        file = np.load(reference / f"limit_k{K}.npz")
        return Bunch(design_matrix=file["X"], **{name: file[name] for name in file.files if name != "X"})
    if cell.cell == "MNIST":
        return load_mnist_codes(K, 100, 200, random_state=seed)
    random = np.random.default_rng([seed, 5])
    if cell.cell.startswith("SNR"):
        X = random.standard_normal((K, 500)) / np.sqrt(K)
        power = 0.1 * 500 / K  # of an observed value
        noise = float(np.sqrt(power * 10 ** (-int(cell.cell.split()[1]) / 10)))
        return make_sparse_codes(200, 200, K, 500, 0.1, 0.0, noise, X, random_state=seed)
    X = random.standard_normal((K, D))
    if cell.cell == "ill-conditioned":
        left, _, right = np.linalg.svd(X, full_matrices=False)
        X = left * np.geomspace(1, 1e-3, K) @ right * np.sqrt(K * D / np.sum(np.geomspace(1, 1e-3, K) ** 2))
    elif cell.cell == "equicorrelated":
        X = np.sqrt(0.1) * X + np.sqrt(0.9) * X[:, :1]
    elif cell.cell == "autoregressive":
        for d in range(1, D):
            X[:, d] = 0.9 * X[:, d - 1] + np.sqrt(1 - 0.81) * X[:, d]
    elif cell.cell == "uneven columns":
        X = X * 10 ** random.uniform(-1, 1, D)
    data = make_sparse_codes(1000, 1000, K, D, design_matrix=X, random_state=seed)
    if cell.cell in ("Laplacian", "signs"):
        for part in ("train", "test"):
            codes = data[f"B_{part}"]
            other = random.laplace(0, np.sqrt(0.5), codes.shape) if cell.cell == "Laplacian" else np.sign(codes)
            changed = np.where(codes != 0, other, 0.0)
            data[f"Y_{part}"] = data[f"Y_{part}"] + (changed - codes) @ X.T
            data[f"B_{part}"] = changed
    elif cell.cell == "100 times larger":
        data.Y_test, data.B_test = data.Y_test + 99 * data.B_test @ X.T, 100 * data.B_test
    elif cell.cell == "twice the noise":
        data.Y_test = 2 * data.Y_test - data.B_test @ X.T
    elif cell.cell == "twice as many active":
        other = make_sparse_codes(1, 1000, K, D, 0.4, design_matrix=X, random_state=seed)
        data.Y_test, data.B_test = other.Y_test, other.B_test
    return data


def scores(distribution: SpikeSlab, codes: np.ndarray) -> dict[str, float]:
    mean, sure, informative = distribution.mean(), distribution.prob_active > 0.5, codes.any(axis=1)
    return {
        "nmse": nmse(codes[informative], mean[informative]),
        "nmse_db": nmse_db(codes, mean),
        "pit_50": pit_coverage(distribution, codes, 0.5, random_state=0),
        "pit_90": pit_coverage(distribution, codes, 0.9, random_state=0),
        "interval_90": coverage(distribution[sure], codes[sure], 0.9) if sure.any() else np.nan,
        "variance_ratio": variance_ratio(distribution, codes),
        "calibration_error": expected_calibration_error(distribution, codes),
        "brier": brier_score(distribution, codes),
    }


def estimated_matrix(data: Bunch, rows: slice) -> np.ndarray:
    return matrix_posterior(gather_statistics(data.Y_train[rows], data.B_train[rows])).mean


def lasso(cell: Cell, data: Bunch) -> np.ndarray:
    """Lasso with the same matrix; its penalty by pairs that the matrix was not learned from, or signal by signal."""

    def solve(X: np.ndarray, alpha: float, Y: np.ndarray) -> np.ndarray:
        return Lasso(alpha, fit_intercept=False, precompute=True, max_iter=5000).fit(X, Y.T).coef_.reshape(len(Y), -1)

    if cell.pairs == "alone":
        X = data.design_matrix
        return np.array([LassoCV(fit_intercept=False, max_iter=5000).fit(X, y).coef_ for y in data.Y_test])
    n = int(cell.pairs)
    X = tried = data.design_matrix
    rows = slice(0, min(n, 100))
    if cell.matrix == "learned":
        X, tried, rows = (
            estimated_matrix(data, slice(0, n)),
            estimated_matrix(data, slice(n // 5, n)),
            slice(0, n // 5),
        )
    Y, B = data.Y_train[rows][:100], data.B_train[rows][:100]
    Y, B = Y[B.any(axis=1)], B[B.any(axis=1)]
    largest = np.median(np.max(np.abs(Y @ tried), axis=1)) / len(tried)
    best = min(largest * np.geomspace(1e-3, 0.5, 12), key=lambda alpha: nmse(B, solve(tried, alpha, Y)))
    return solve(X, best, data.Y_test)


def exact_posterior(data: Bunch, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and probability of being active of the first test signals."""
    if "gibbs_mean" in data:
        return data.gibbs_mean, data.gibbs_active_prob
    model = SpikeSlabNet(mode="exact", design_matrix=data.design_matrix, random_state=seed, **PRIOR)
    found = model.predict_dist(data.Y_test[:FIRST])
    return found.mean(), found.prob_active


def run(cell: Cell, seed: int, method: str, data: Bunch) -> dict[str, Any]:
    row: dict[str, Any] = {**cell._asdict(), "seed": seed, "method": method}
    known = data.design_matrix if cell.matrix == "known" else None
    informative = data.B_test.any(axis=1)
    if method == LIMIT:
        mean, chance = exact_posterior(data, seed)
        codes, informative = data.B_test[: len(mean)], informative[: len(mean)]
        row |= {"nmse_first": nmse(codes[informative], mean[informative]), "nmse_db": nmse_db(codes, mean)}
        row["brier"] = float(np.mean((chance - (codes != 0)) ** 2))
    elif method == "Lasso":
        mean = lasso(cell, data)
        row |= {"nmse": nmse(data.B_test[informative], mean[informative]), "nmse_db": nmse_db(data.B_test, mean)}
    else:
        if method == "BayesLISTA":
            model = BayesLISTA(20, design_matrix=known, random_state=seed)
        else:
            model = SpikeSlabNet(design_matrix=known, random_state=seed, **NETWORKS[method])
        begin = time.process_time()
        if cell.pairs == "alone":
            model.fit(data.Y_train)
        else:
            model.fit(data.Y_train[: int(cell.pairs)], data.B_train[: int(cell.pairs)])
        row["fit_seconds"] = time.process_time() - begin
        distribution = model.predict_dist(data.Y_test)
        row |= scores(distribution, data.B_test)
        first = np.flatnonzero(informative[:FIRST])
        row["nmse_first"] = nmse(data.B_test[first], distribution.mean()[first])
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}


def wanted(arguments: argparse.Namespace) -> Iterator[tuple[Cell, int, str]]:
    for name in arguments.cells:
        cells, methods, n_seeds = GROUPS[name]
        for cell in cells:
            if cell.cell == "reference" and not arguments.reference.is_dir():
                continue
            for seed in range(n_seeds):
                if arguments.seeds is None or seed in arguments.seeds:
                    yield from ((cell, seed, method) for method in methods if method in arguments.methods)


def table(rows: list[dict[str, Any]]) -> str:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(str(row[name]) for name in KEY if name != "seed")].append(row)
    limits = {
        (row["cell"], str(row["n_observed"]), str(row["seed"])): float(row["nmse_first"])
        for row in rows
        if row["method"] == LIMIT
    }
    shown = [name for name in COLUMNS[6:] if name != "nmse_first"]
    lines = [
        "# Distance to the limit",
        "",
        "Made by `python benchmarks/limit.py`, all at their defaults, networks of 20 layers where nothing else is",
        "said; mean ± standard deviation where there are several seeds. NMSE as in the paper; times the limit: its",
        f"ratio to that of the exact posterior on the same {FIRST} signals; PIT: share of coefficients whose",
        "randomised probability integral transform lies in its central 50 and 90 %; interval 90: coverage of central",
        "90 % intervals where P(active) > 0.5; variance ratio: mean predicted variance over mean squared error;",
        "calibration error: expected, of P(active) in tenths. Seconds are the processor's, with compilation, on a",
        "shared machine.",
        "Reference cells have 200 test signals, SNR and MNIST 200, others 1,000.",
        "",
        "| cell | K | pairs | matrix | method | seeds | times the limit | "
        + " | ".join(name.replace("_", " ") for name in shown)
        + " |",
        "|" + "---|" * (7 + len(shown)),
    ]
    for key, group in sorted(groups.items(), key=lambda item: [part.zfill(5) for part in item[0]]):
        ratios = [
            float(row["nmse_first"]) / limits[place]
            for row in group
            if row["method"] not in (LIMIT, "Lasso")
            and (place := (row["cell"], str(row["n_observed"]), str(row["seed"]))) in limits
        ]
        columns = [[float(row[name]) for row in group if row.get(name) not in (None, "")] for name in shown]
        cells = [summary(values) for values in (ratios, *columns)]
        lines.append("| " + " | ".join([*key, str(len(group)), *cells]) + " |")
    return "\n".join(lines) + "\n"


def summary(values: list[float]) -> str:
    if not values:
        return ""
    return f"{np.mean(values):.3g}" + (f" ± {np.std(values):.2g}" if len(values) > 1 else "")


def processor_seconds(action: Callable[[], object]) -> float:
    """The least of three, after one that compiles."""
    action()
    times = []
    for _ in range(3):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times)


def speed() -> str:
    """Processor time a signal on the paper's problem, all in one process."""
    data = make_sparse_codes(1000, 1000, 50, 100, random_state=0)
    X, Y = data.design_matrix, data.Y_test
    times = {
        "Lasso, one fit a signal": processor_seconds(lambda: [Lasso(0.1).fit(X, y) for y in Y[:100]]) / 100,
        "LassoCV, one fit a signal": processor_seconds(lambda: [LassoCV().fit(X, y) for y in Y[:3]]) / 3,
    }
    for dtype in (np.float64, np.float32):
        for mode in ("fast", "accurate"):
            model = SpikeSlabNet(mode=mode, design_matrix=X, training=10, random_state=0)
            model.fit(data.Y_train.astype(dtype), data.B_train.astype(dtype))
            rows = Y.astype(dtype)
            seconds = processor_seconds(lambda model=model, rows=rows: model.predict_dist(rows)) / len(Y)
            times[f"SpikeSlabNet, {mode}, {np.dtype(dtype).name}"] = seconds
    model = SpikeSlabNet(mode="exact", design_matrix=X, random_state=0, **PRIOR)
    times["SpikeSlabNet, exact"] = processor_seconds(lambda: model.predict_dist(Y[:100])) / 100
    lines = [
        "# Speed",
        "",
        "Made by `python benchmarks/limit.py --speed`: processor time a signal (K = 50, D = 100, 20 layers, 1,000",
        "signals at once), all measured in one process of one thread; read the ratios.",
        "",
        "| method | microseconds a signal | Lasso / it | LassoCV / it | exact / it |",
        "|---|---|---|---|---|",
    ]
    peers = ("Lasso, one fit a signal", "LassoCV, one fit a signal", "SpikeSlabNet, exact")
    for name, seconds in times.items():
        ratios = " | ".join(f"{times[peer] / seconds:.3g}" for peer in peers)
        lines.append(f"| {name} | {1e6 * seconds:.4g} | {ratios} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=GROUPS, default=list(GROUPS))
    methods = list(dict.fromkeys(method for group in GROUPS.values() for method in group.methods))
    parser.add_argument("--methods", nargs="+", choices=methods, default=methods)
    parser.add_argument("--seeds", nargs="+", type=int, default=None)
    parser.add_argument("--reference", type=Path, default=Path("../shared/reference"))
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", NumericalWarning)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.speed:
        (arguments.out / "limit_speed.md").write_text(speed())
        return
    path = arguments.out / "limit.csv"
    rows: list[dict[str, Any]] = list(csv.DictReader(path.open())) if path.exists() else []
    done = {tuple(str(row[name]) for name in KEY) for row in rows}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not rows:
            writer.writeheader()
        for cell, seed, method in wanted(arguments):
            if tuple(str({**cell._asdict(), "seed": seed, "method": method}[name]) for name in KEY) in done:
                continue
            row = run(cell, seed, method, load(cell, seed, arguments.reference))
            writer.writerow(row)
            file.flush()
            rows.append({name: str(value) for name, value in row.items()})
            print(*(row.get(name, "") for name in COLUMNS), flush=True)
    (arguments.out / "limit.md").write_text(table(rows))


if __name__ == "__main__":
    main()
