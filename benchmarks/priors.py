"""Priors of real codes: SpikeSlabNet with its defaults beside BayesLISTA and the linear estimate, on the same data.

    python benchmarks/priors.py [--problems "MNIST 100" …] [--seeds 0 1 …] [--pairs 30] [--out results]

Finished rows are kept in the CSV and not computed again. Choices were made on seeds 10 to 14.
"""

import argparse
import csv
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bayeslista import LISTA, BayesLISTA, SpikeSlabNet
from bayeslista.metrics import crps, nmse, pit_coverage, variance_ratio
from benchmarks._real_codes import problems

NAMES = ["MNIST 100", "MNIST 250", "patches 25 %", "patches 50 %", "ECG", "MIT-BIH"]
COLUMNS = [
    "problem", "pairs", "seed", "method", "nmse", "crps", "pit_50", "pit_90", "variance_ratio",
    "prior", "fit", "signal",
]  # fmt: skip
METHODS = {
    "SpikeSlabNet": lambda X, seed: SpikeSlabNet(design_matrix=X, random_state=seed),
    "SpikeSlabNet, X learned": lambda X, seed: SpikeSlabNet(random_state=seed),
    "BayesLISTA": lambda X, seed: BayesLISTA(design_matrix=X, random_state=seed),
    "LISTA": lambda X, seed: LISTA(design_matrix=X, random_state=seed),
}


def linear(data: Any) -> np.ndarray:
    """The linear estimate of least mean squared error, its covariance from the pairs, its ridge by two halves."""
    X, B, Y = data.design_matrix, data.B_train, data.Y_train
    noise = max(float(np.mean((Y - B @ X.T) ** 2)), 1e-12)

    def weights(codes: Any, ridge: float) -> Any:
        mean = codes.mean(axis=0)
        covariance = np.cov(codes.T, bias=True) + ridge * np.mean(np.var(codes, axis=0)) * np.eye(codes.shape[1])
        return mean, np.linalg.solve(X @ covariance @ X.T + noise * np.eye(len(X)), X @ covariance)

    def predict(fitted: Any, observed: Any) -> Any:
        mean, gain = fitted
        return mean + (observed - X @ mean) @ gain

    def error(ridge: float) -> float:
        return nmse(B[1::2], predict(weights(B[::2], ridge), Y[1::2]))

    return predict(weights(B, min(np.geomspace(1e-4, 1, 9), key=error)), data.Y_test)


def row(data: Any, name: str, seed: int) -> dict[str, Any]:
    if name == "linear":
        return {"nmse": nmse(data.B_test, linear(data))}
    model = METHODS[name](data.design_matrix, seed)
    begin = time.process_time()
    model.fit(data.Y_train, data.B_train)
    fitted = time.process_time()
    mean = model.predict(data.Y_test)
    seconds = (time.process_time() - fitted) / len(mean)
    found = {"nmse": nmse(data.B_test, mean), "fit": fitted - begin, "signal": seconds}
    if hasattr(model, "predict_dist"):
        dist = model.predict_dist(data.Y_test)
        found |= {
            "crps": crps(dist, data.B_test),
            "pit_50": pit_coverage(dist, data.B_test, 0.5, seed),
            "pit_90": pit_coverage(dist, data.B_test, 0.9, seed),
            "variance_ratio": variance_ratio(dist, data.B_test),
        }
    return found | {"prior": getattr(model, "prior_", "")}


def table(rows: list[dict[str, str]]) -> str:
    """Means over seeds."""
    titles = ["problem", "pairs", "method", "seeds", "NMSE", "CRPS", "PIT 50 %", "PIT 90 %", "variance/MSE", "prior"]
    titles += ["fit (s)", "ms a signal"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for key in dict.fromkeys((each["problem"], each["pairs"], each["method"]) for each in rows):
        own = [each for each in rows if (each["problem"], each["pairs"], each["method"]) == key]

        def mean(name: str, digits: int, factor: float = 1.0, own: Any = own) -> str:
            values = [float(each[name]) for each in own if each[name] not in ("", None)]
            return f"{factor * np.mean(values):.{digits}f}" if values else ""

        chosen = ", ".join(dict.fromkeys(each["prior"] for each in own if each["prior"]))
        cells = [*key, str(len(own)), mean("nmse", 4), mean("crps", 4), mean("pit_50", 3), mean("pit_90", 3)]
        cells += [mean("variance_ratio", 2), chosen, mean("fit", 1), mean("signal", 2, 1000.0)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="+", default=NAMES)
    parser.add_argument("--methods", nargs="+", default=["SpikeSlabNet", "BayesLISTA", "linear"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--pairs", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    path = options.out / "priors.csv"
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    done = {(each["problem"], each["pairs"], each["seed"], each["method"]) for each in rows}
    for seed in options.seeds:
        for name in options.problems:
            data = problems([name], seed, options.pairs)[name]
            for method in options.methods:
                key = (name, str(len(data.B_train)), str(seed), method)
                if key not in done:
                    new = dict.fromkeys(COLUMNS, "") | dict(zip(COLUMNS, key, strict=False)) | row(data, method, seed)
                    rows.append({column: str(value) for column, value in new.items()})
                    print(rows[-1], flush=True)
                    with path.open("w", newline="") as file:
                        writer = csv.DictWriter(file, COLUMNS)
                        writer.writeheader()
                        writer.writerows(rows)
    print(table(sorted(rows, key=lambda each: (each["problem"], int(each["pairs"]), each["method"]))))


if __name__ == "__main__":
    main()
