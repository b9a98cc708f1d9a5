"""How far SpikeSlabNet, at its defaults, is from the physical limit.

The reference files beside the project hold the paper's problem with the exact model's posterior (two Gibbs chains);
other cells are fresh problems of the same generator, and harder dictionaries. Every row of the CSV is one cell.

    python benchmarks/limit.py [--cells known …] [--seeds 0 1 …] [--reference ../shared/reference] [--out results]

Finished rows are kept in the CSV and not computed again. Times are processor seconds of one process.
"""

import argparse
import csv
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import Bunch

from bayeslista import NumericalWarning, SpikeSlab, SpikeSlabNet
from bayeslista.datasets import load_mnist_codes, make_sparse_codes
from bayeslista.metrics import nmse, nmse_db

COLUMNS = [
    "cell", "n_observed", "seed", "mode", "n_layers", "pairs", "matrix",
    "nmse", "nmse_db", "gibbs_nmse", "pit_50", "pit_90", "interval_90", "variance_ratio", "calibration_error", "brier",
    "gibbs_brier", "fit_seconds", "milliseconds_per_1000",
]  # fmt: skip
KEY = COLUMNS[:7]


class Cell(NamedTuple):
    cell: str
    n_observed: int
    mode: str = "accurate"
    n_layers: int = 20
    pairs: str = "1000"  # or "alone": observations without codes
    matrix: str = "known"


CELLS = {
    "known": [Cell("reference", k) for k in (50, 20, 80, 100)] + [Cell("reference", 50, n_layers=10)],
    "fast": [Cell("reference", k, "fast") for k in (50, 20, 80, 100)],
    "few": [Cell("reference", 50, pairs="20"), Cell("reference", 80, pairs="20")],
    "alone": [Cell("reference", k, pairs="alone") for k in (50, 20, 80, 100)],
    "learned": [Cell("reference", 50, pairs=n, matrix="learned") for n in ("1000", "200", "50")]
    + [Cell("reference", 80, matrix="learned")],
    "fresh": [Cell("fresh", k) for k in (50, 80)] + [Cell("fresh", k, "fast") for k in (50, 80)],
    "hard": [
        Cell(name, 50)
        for name in ("ill-conditioned", "equicorrelated", "autoregressive", "uneven columns", "Laplacian", "signs")
    ],
    "wide": [Cell("SNR 20", 250, n_layers=16, pairs="200"), Cell("SNR 40", 250, n_layers=16, pairs="200")],
    "misfit": [Cell(name, 50) for name in ("100 times larger", "twice the noise", "twice as many active")],
    "mnist": [Cell("MNIST", k, pairs="100", matrix=m) for k in (100, 250) for m in ("known", "learned")],
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
    mean, chance, active = distribution.mean(), distribution.prob_active, codes != 0
    uniform = np.random.default_rng(0).uniform(size=codes.shape)
    pit = distribution.cdf(codes) - np.where(active, 0.0, (1 - chance) * uniform)
    low, high = distribution.interval(0.9)
    sure = chance > 0.5
    decile = np.minimum((10 * chance).astype(int), 9)
    shares = np.bincount(decile.ravel(), minlength=10) / chance.size
    gaps = np.bincount(decile.ravel(), (chance - active).ravel(), minlength=10) / chance.size
    informative = active.any(axis=1)
    return {
        "nmse": nmse(codes[informative], mean[informative]),
        "nmse_db": nmse_db(codes, mean),
        "pit_50": float(np.mean(np.abs(pit - 0.5) < 0.25)),
        "pit_90": float(np.mean(np.abs(pit - 0.5) < 0.45)),
        "interval_90": float(np.mean(((low <= codes) & (codes <= high))[sure])) if sure.any() else np.nan,
        "variance_ratio": float(distribution.var().mean() / np.mean((mean - codes) ** 2)),
        "calibration_error": float(np.sum(np.abs(gaps[shares > 0]))),
        "brier": float(np.mean((chance - active) ** 2)),
    }


def run(cell: Cell, seed: int, reference: Path) -> dict[str, Any]:
    data = load(cell, seed, reference)
    known = data.design_matrix if cell.matrix == "known" else None
    model = SpikeSlabNet(cell.n_layers, mode=cell.mode, design_matrix=known, random_state=seed)
    begin = time.process_time()
    if cell.pairs == "alone":
        model.fit(data.Y_train)
    else:
        model.fit(data.Y_train[: int(cell.pairs)], data.B_train[: int(cell.pairs)])
    fitted = time.process_time()
    distribution = model.predict_dist(data.Y_test)
    again = time.process_time()
    model.predict_dist(data.Y_test)
    each = (time.process_time() - again) / len(data.Y_test)
    row = {**cell._asdict(), "seed": seed, **scores(distribution, data.B_test)}
    row |= {"fit_seconds": fitted - begin, "milliseconds_per_1000": 1e6 * each}
    if "gibbs_mean" in data:
        row["gibbs_nmse"] = nmse(data.B_test, data.gibbs_mean)
        row["gibbs_brier"] = float(np.mean((data.gibbs_active_prob - (data.B_test != 0)) ** 2))
    return {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.items()}


def wanted(cells: list[str], seeds: list[int], reference: Path) -> Iterator[tuple[Cell, int]]:
    for name in cells:
        for cell in CELLS[name]:
            if cell.cell == "reference":
                if reference.is_dir():
                    yield cell, 0
            else:
                for seed in seeds:
                    yield cell, seed


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Distance to the limit",
        "",
        "Made by `python benchmarks/limit.py`: SpikeSlabNet at its defaults but for the columns named. NMSE as in the",
        "paper; PIT: share of coefficients whose randomised probability integral transform lies in its central 50 and",
        "90 %; interval 90: coverage of central 90 % intervals where P(active) > 0.5; variance ratio: mean predicted",
        "variance over mean squared error; calibration error: expected, of P(active) in tenths. Times are processor",
        "seconds on a shared machine. Reference cells have 200 test signals, others 1,000 (SNR and MNIST: 200).",
        "",
        "| " + " | ".join(name.replace("_", " ") for name in COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    ordered = sorted(rows, key=lambda row: [str(row.get(name, "")).zfill(6) for name in KEY])
    lines += ["| " + " | ".join(str(row.get(name) or "") for name in COLUMNS) + " |" for row in ordered]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--reference", type=Path, default=Path("../shared/reference"))
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", NumericalWarning)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "limit.csv"
    rows: list[dict[str, Any]] = list(csv.DictReader(path.open())) if path.exists() else []
    done = {tuple(str(row[name]) for name in KEY) for row in rows}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not rows:
            writer.writeheader()
        for cell, seed in wanted(arguments.cells, arguments.seeds, arguments.reference):
            if tuple(str({**cell._asdict(), "seed": seed}[name]) for name in KEY) in done:
                continue
            row = run(cell, seed, arguments.reference)
            writer.writerow(row)
            file.flush()
            rows.append({name: str(value) for name, value in row.items()})
            print(*(row.get(name, "") for name in COLUMNS), flush=True)
    (arguments.out / "limit.md").write_text(table(rows))


if __name__ == "__main__":
    main()
