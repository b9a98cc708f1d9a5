"""How far the predicted uncertainty can be trusted, of our models and of what one would use instead.

Cells are the paper's problem at three sizes, three shifts of its test signals that no model was trained for, and images
of digits. Every row of the CSV is one method on one cell and seed; a model is fitted once for a training problem and
seed, and meets all test cells of it.

    python benchmarks/uncertainty.py [--cells K=50 …] [--methods BayesLISTA …] [--seeds 0 1 2] [--out results]
    python benchmarks/uncertainty.py --conformal [--cells K=50 …] [--seeds 0 1 2] [--out results]

Finished rows are kept in the CSV and not computed again; the table and the picture are made from all of them.
`--conformal` splits pairs that no model was trained on twenty times, at random, into 200 to calibrate with and others
to test on, and tells how often conformal intervals of 90 % hold.

Models learn from 1,000 training pairs (100 images). 200 more pairs, held out from training, are for what has to be
chosen or calibrated afterwards. A rival without an atom at zero is scored twice: with a head that learned from the
held-out pairs how probable activity is (`with_spike`; the Gaussian is the slab), and, as "…, calibrated", through the
calibrator that BayesLISTA uses (`fit_calibration`). Nothing is chosen on test signals.
"""

import argparse
import csv
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Bunch

from _rivals import (
    N_LAYERS,
    Prediction,
    ard,
    bayesian_ridge,
    bootstrap_lasso,
    deep_ensemble,
    exact_posterior,
    last_layer_laplace,
    mc_dropout,
)
from bayeslista import BayesLISTA, NumericalWarning, SpikeSlab, SpikeSlabNet
from bayeslista.bayes_lista.output_calibration import calibrated_spike_slab, fit_calibration
from bayeslista.datasets import load_mnist_codes, make_sparse_codes
from bayeslista.metrics import (
    brier_score,
    crps,
    expected_calibration_error,
    fit_spike_head,
    log_score,
    nmse,
    pit_coverage,
    sharpness,
    variance_ratio,
    with_spike,
)
from bayeslista.reports.page import svg_bytes

LEVELS = (0.5, 0.8, 0.9, 0.95)
COLUMNS = [
    "cell", "n_observed", "seed", "method", "n_test",
    "nmse", "log_score", "crps", "crps_first", *(f"pit_{100 * level:.0f}" for level in LEVELS),
    "variance_ratio", "brier", "calibration_error", "sharpness", "variance_growth", "fit_seconds", "predict_seconds",
]  # fmt: skip
KEY = COLUMNS[:4]
FIRST = 200  # test signals that methods are run on that need long for each
CALIBRATED = ", calibrated"
LIMIT = "exact posterior"

Forecast = SpikeSlab | np.ndarray


class Cell(NamedTuple):
    cell: str
    n_observed: int

    @property
    def trained_on(self) -> "Cell":
        """The cell whose test signals are like the training pairs."""
        return self if self.cell == "MNIST" else Cell("in-distribution", self.n_observed)


CELLS = {
    "K=30": Cell("in-distribution", 30),
    "K=50": Cell("in-distribution", 50),
    "K=80": Cell("in-distribution", 80),
    "noise": Cell("twice the noise", 50),
    "active": Cell("twice as many active", 50),
    "columns": Cell("new design columns", 50),
    "mnist": Cell("MNIST", 100),
}


def load(cell: Cell, seed: int, n_train: int = 1000, n_held: int = 200, n_test: int = 500) -> Bunch:
    """Training, held-out and test pairs; of the first two, those of a shift are the same as without it."""
    K, D = cell.n_observed, 100
    if cell.cell == "MNIST":
        n_train, n_test = min(n_train, 100), min(n_test, 200)
        data = load_mnist_codes(K, n_train + n_held, n_test, random_state=seed)
    else:
        data = make_sparse_codes(n_train + n_held, n_test, K, D, random_state=seed)
    for name in ("Y", "B"):
        data[f"{name}_held"], data[f"{name}_train"] = data[f"{name}_train"][n_train:], data[f"{name}_train"][:n_train]
    X = data.design_matrix
    if cell.cell == "twice the noise":
        data.Y_test = 2 * data.Y_test - data.B_test @ X.T
    elif cell.cell == "twice as many active":
        other = make_sparse_codes(1, n_test, K, D, 0.4, design_matrix=X, random_state=seed)
        data.Y_test, data.B_test = other.Y_test, other.B_test
    elif cell.cell == "new design columns":
        random = np.random.default_rng([seed, 7])
        changed = random.choice(D, 10, replace=False)
        difference = random.standard_normal((K, len(changed))) - X[:, changed]
        data.Y_test = data.Y_test + data.B_test[:, changed] @ difference.T
    return data


class Variant(NamedTuple):
    """A way to score a fitted method: what it predicts, and how that is read as a distribution and a mean."""

    name: str
    predict: Callable[[np.ndarray], Any]
    read: Callable[[Any], tuple[Forecast, np.ndarray]]
    fit_seconds: float


class Method(NamedTuple):
    fit: Callable[[Bunch, int], Any]
    ours: bool = False
    compiled: bool = True  # so that the first prediction is not timed
    first_only: bool = False
    synthetic_only: bool = False


def network(make: Callable[..., Any], data: Bunch, seed: int) -> Any:
    return make(design_matrix=data.design_matrix, random_state=seed).fit(data.Y_train, data.B_train)


METHODS = {
    LIMIT: Method(exact_posterior, compiled=False, first_only=True, synthetic_only=True),
    "SpikeSlabNet": Method(partial(network, partial(SpikeSlabNet, mode="accurate")), ours=True),
    "SpikeSlabNet, fast": Method(partial(network, partial(SpikeSlabNet, mode="fast")), ours=True),
    "BayesLISTA": Method(partial(network, partial(BayesLISTA, N_LAYERS)), ours=True),
    "BayesLISTA.published": Method(partial(network, partial(BayesLISTA.published, N_LAYERS, max_iter=100)), ours=True),
    "deep ensemble of LISTA": Method(deep_ensemble),
    "MC-dropout LISTA": Method(mc_dropout),
    "last-layer Laplace LISTA": Method(last_layer_laplace),
    "bootstrap Lasso": Method(bootstrap_lasso, compiled=False, first_only=True),
    "ARD": Method(ard, compiled=False, first_only=True),
    "BayesianRidge": Method(bayesian_ridge, compiled=False, first_only=True),
}


def as_predicted(distribution: SpikeSlab) -> tuple[Forecast, np.ndarray]:
    return distribution, distribution.mean()


def names(method: str) -> list[str]:
    """Rows of a method: rivals are calibrated, too, and so are our models where they can be."""
    known = METHODS[method]
    can = hasattr(BayesLISTA if method.startswith("Bayes") else SpikeSlabNet, "calibrate") if known.ours else True
    return [method, method + CALIBRATED] if can and method != LIMIT else [method]


def fitted(method: str, data: Bunch, seed: int) -> list[Variant]:
    """Fit a method, and all that is learned from held-out pairs."""
    begin = time.process_time()
    model = METHODS[method].fit(data, seed)
    if method == LIMIT:
        return [Variant(method, model, as_predicted, time.process_time() - begin)]
    if METHODS[method].ours:
        variants = [Variant(method, model.predict_dist, as_predicted, time.process_time() - begin)]
        if method + CALIBRATED in names(method):
            other = deepcopy(model)
            other = other.calibrate(data.Y_held, data.B_held) or other
            spent = time.process_time() - begin
            variants.append(Variant(method + CALIBRATED, other.predict_dist, as_predicted, spent))
        return variants
    held: Prediction = model(data.Y_held)
    head = fit_spike_head(held.mean, held.std, data.B_held)
    calibration = fit_calibration(held.mean, held.std**2, held.mean, data.B_held)

    def raw(found: Prediction) -> tuple[Forecast, np.ndarray]:
        return (with_spike(found.mean, found.std, head) if found.samples is None else found.samples), found.mean

    def calibrated(found: Prediction) -> tuple[Forecast, np.ndarray]:
        return SpikeSlab(*calibrated_spike_slab(calibration, found.mean, found.std**2, found.mean)), found.mean

    spent = time.process_time() - begin
    return [Variant(method, model, raw, spent), Variant(method + CALIBRATED, model, calibrated, spent)]


def first(forecast: Forecast, n: int) -> Forecast:
    """What is predicted of the first signals."""
    return forecast[:n] if isinstance(forecast, SpikeSlab) else forecast[:, :n]


def mean_variance(forecast: Forecast) -> float:
    return float(np.mean(forecast.var() if isinstance(forecast, SpikeSlab) else forecast.var(axis=0, ddof=1)))


def scores(forecast: Forecast, mean: np.ndarray, codes: np.ndarray) -> dict[str, float]:
    return {
        "nmse": nmse(codes, mean),
        "log_score": log_score(forecast, codes),
        "crps": crps(forecast, codes),
        "crps_first": crps(first(forecast, FIRST), codes[:FIRST]),
        **{f"pit_{100 * level:.0f}": pit_coverage(forecast, codes, level, random_state=0) for level in LEVELS},
        "variance_ratio": variance_ratio(forecast, codes),
        "brier": brier_score(forecast, codes),
        "calibration_error": expected_calibration_error(forecast, codes),
        "sharpness": sharpness(forecast),
    }


def run(
    method: str, cells: Sequence[Cell], seed: int, done: set[tuple[str, ...]], read: Callable[..., Bunch] = load
) -> Iterator[dict[str, Any]]:
    """Rows of one method on cells of one training problem, first on signals like those that it was trained on."""
    wanted = [cell for cell in cells if any(key(cell, seed, name) not in done for name in names(method))]
    if not wanted:
        return
    home = wanted[0].trained_on
    variants = fitted(method, read(home, seed), seed)
    usual: dict[str, float] = {}
    for cell in dict.fromkeys([home, *wanted]):
        data = read(cell, seed)
        n = min(FIRST, len(data.Y_test)) if METHODS[method].first_only else len(data.Y_test)
        Y, B = data.Y_test[:n], data.B_test[:n]
        found: dict[Any, tuple[Any, float]] = {}
        for variant in variants:
            if variant.predict not in found:
                if METHODS[method].compiled:
                    variant.predict(Y)
                begin = time.process_time()
                answer = variant.predict(Y)
                found[variant.predict] = answer, time.process_time() - begin
            answer, spent = found[variant.predict]
            forecast, mean = variant.read(answer)
            spread = mean_variance(forecast)
            if cell == home:
                usual[variant.name] = spread
            if cell in wanted and key(cell, seed, variant.name) not in done:
                row = {**cell._asdict(), "seed": seed, "method": variant.name, "n_test": n}
                row |= scores(forecast, mean, B) | {"variance_growth": spread / usual[variant.name]}
                row |= {"fit_seconds": variant.fit_seconds, "predict_seconds": spent}
                yield {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in row.items()}


def key(cell: Cell, seed: int, method: str) -> tuple[str, ...]:
    return cell.cell, str(cell.n_observed), str(seed), method


def work(arguments: argparse.Namespace) -> Iterator[tuple[str, list[Cell], int]]:
    """Methods with the cells that one fit serves."""
    problems: dict[Cell, list[Cell]] = defaultdict(list)
    for name in arguments.cells:
        problems[CELLS[name].trained_on].append(CELLS[name])
    for seed in arguments.seeds:
        for problem, cells in problems.items():
            for method in arguments.methods:
                if not (METHODS[method].synthetic_only and problem.cell == "MNIST"):
                    yield method, cells, seed


# Conformal intervals -------------------------------------------------------------------------------------------------


def conformal(cell: Cell, seed: int, method: str, n_splits: int = 20, n_held: int = 200) -> tuple[float, ...]:
    """Mean, least and greatest share of coefficients that lie in their intervals of 90 %, over splits."""
    data = load(cell, seed)
    model = METHODS[method].fit(data, seed)
    Y, B = np.concatenate([data.Y_held, data.Y_test]), np.concatenate([data.B_held, data.B_test])
    random, shares = np.random.default_rng(seed), []
    for _ in range(n_splits):
        order = random.permutation(len(Y))
        held, test = order[:n_held], order[n_held:]
        low, high = model.calibrate(Y[held], B[held]).predict_interval(Y[test], 0.9, method="conformal")
        shares.append(np.mean((low <= B[test]) & (B[test] <= high)))
        model.uncalibrate()
    return float(np.mean(shares)), float(np.min(shares)), float(np.max(shares))


def conformal_table(cells: Sequence[str], seeds: Sequence[int]) -> str:
    lines = [
        "# Conformal intervals",
        "",
        "Made by `python benchmarks/uncertainty.py --conformal`: share of coefficients that lie in their intervals of",
        "90 %, over 20 random splits into 200 pairs to calibrate with and the others to test on; least and greatest of",
        "all splits and seeds.",
        "",
        "| cell | method | seeds | mean | least | greatest |",
        "|---|---|---|---|---|---|",
    ]
    for name in cells:
        for method in (method for method, known in METHODS.items() if known.ours):
            found = np.array([conformal(CELLS[name], seed, method) for seed in seeds])
            mean, least, most = found[:, 0].mean(), found[:, 1].min(), found[:, 2].max()
            lines.append(f"| {name} | {method} | {len(found)} | {mean:.3f} | {least:.3f} | {most:.3f} |")
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


# What is shown -------------------------------------------------------------------------------------------------------

Groups = dict[Cell, dict[str, list[dict[str, str]]]]


def grouped(rows: list[dict[str, str]]) -> Groups:
    """Rows by cell, in the order of `CELLS`, and by method: the limit, then by the CRPS of the first signals."""
    groups: Groups = {}
    for cell in CELLS.values():
        found: dict[str, list[dict[str, str]]] = defaultdict(list)
        for row in rows:
            if (row["cell"], int(row["n_observed"])) == cell:
                found[row["method"]].append(row)
        order = sorted(found, key=lambda name: (name != LIMIT, np.mean(values(found[name], "crps_first"))))
        if found:
            groups[cell] = {name: found[name] for name in order}
    return groups


def values(group: list[dict[str, str]], column: str) -> list[float]:
    return [float(row[column]) for row in group]


def summary(numbers: list[float]) -> str:
    return f"{np.mean(numbers):.3g}" + (f" ± {np.std(numbers):.2g}" if len(numbers) > 1 else "")


def table(rows: list[dict[str, str]]) -> str:
    shown = ["crps_first", *(name for name in COLUMNS[5:-2] if name != "crps_first")]
    lines = [
        "# Uncertainty of our models and of others",
        "",
        "Made by `python benchmarks/uncertainty.py`: mean ± standard deviation over seeds. The exact posterior",
        "(of the model that made the training pairs) is first, then methods come by the CRPS of the first",
        f"{FIRST} test signals, which all have in common; other scores are of n signals. Log score, CRPS, Brier score",
        "and calibration error (of P(active), in tenths): smaller is better. PIT: share of coefficients whose",
        "randomised probability integral transform lies in its central 50, 80, 90 and 95 %. Variance ratio: mean",
        "predicted variance over mean squared error. Sharpness: mean predicted standard deviation. Variance growth:",
        "mean predicted variance over that of signals like the training pairs. Rivals without an atom at zero have",
        "a head from 200 held-out pairs that says how probable activity is; “calibrated” are those whose whole",
        "distribution comes from these pairs and the calibrator of BayesLISTA (or from `calibrate` of our models).",
        "NMSE is that of a method's own mean. Times are the processor's: seconds to fit, with compilation and all",
        "that held-out pairs teach; milliseconds to predict a signal, without.",
    ]
    for cell, methods in grouped(rows).items():
        heads = ["method", "seeds", "n", *(name.replace("_", " ") for name in shown), "fit s", "predict ms"]
        lines += ["", f"## {cell.cell[0].upper()}{cell.cell[1:]}, K = {cell.n_observed}", ""]
        lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for method, group in methods.items():
            fit, predict = (np.mean(values(group, name)) for name in COLUMNS[-2:])
            cells = [method, str(len(group)), group[0]["n_test"], *(summary(values(group, name)) for name in shown)]
            cells += [f"{fit:.3g}", f"{1000 * predict / float(group[0]['n_test']):.2g}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def picture(rows: list[dict[str, str]]) -> Any:
    """Coverage less its level above, CRPS below, one column for each cell."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    groups, small = grouped(rows), {"fontsize": 6, "va": "center"}
    known = [name for name in METHODS if any(name in methods for methods in groups.values())]
    colours = {name: "black" if name == LIMIT else colormaps["tab10"](i % 10) for i, name in enumerate(known, -1)}
    figure = Figure((1.6 + 1.9 * len(groups), 5.2), layout="constrained")
    axes = figure.subplots(2, len(groups), squeeze=False, sharey="row")
    for (cell, methods), (above, below) in zip(groups.items(), axes.T, strict=True):
        above.axhline(0, color="0.7", linewidth=0.8)
        for place, name in enumerate(known):
            bars = [part for part in (name, name + CALIBRATED) if part in methods]
            if not bars:
                continue
            drawn = bars[0] if METHODS[name].ours else bars[-1]
            coverage = [np.mean(values(methods[drawn], f"pit_{100 * level:.0f}")) - level for level in LEVELS]
            above.plot(LEVELS, coverage, marker="o", markersize=2.5, linewidth=1, color=colours[name])
            for bar in bars:
                wide, faint = (0.8, 0.35) if bar == name and len(bars) > 1 else (0.5, 1.0)
                size = np.mean(values(methods[bar], "crps_first"))
                below.barh(place, size, wide, color=colours[name], alpha=faint, linewidth=0)
        most = 2.5 * np.median([np.mean(values(group, "crps_first")) for group in methods.values()])
        for bar in below.patches:
            if bar.get_width() > most:  # one that would dwarf all others is cut, and its length written
                below.text(most, bar.get_y() + bar.get_height() / 2, f"{bar.get_width():.2g}→", ha="right", **small)
        below.set_xlim(0, min(most, 1.05 * max(bar.get_width() for bar in below.patches)))
        above.set_title(f"{cell.cell}\nK = {cell.n_observed}", fontsize=8)
        above.set_xticks(LEVELS, [f"{level:.0%}"[:-1] for level in LEVELS])
        above.set_xlabel("level, %", fontsize=7)
        below.set_xlabel("CRPS", fontsize=7)
        below.locator_params(axis="x", nbins=4)
        for one in (above, below):
            one.tick_params(labelsize=7)
            one.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylim(-0.25, 0.25)
    axes[0, 0].set_ylabel("PIT coverage less its level\n(rivals calibrated)", fontsize=7)
    axes[1, 0].set_yticks(range(len(known)), known)
    axes[1, 0].invert_yaxis()
    for label, name in zip(axes[1, 0].get_yticklabels(), known, strict=True):
        label.set_color(colours[name])
    caption = "wide, pale bars: as fitted, rivals with a head for P(active); narrow bars: calibrated on held-out pairs"
    figure.supxlabel(caption, fontsize=7)
    return figure


def write_all(rows: list[dict[str, str]], out: Path) -> None:
    (out / "uncertainty.md").write_text(table(rows))
    drawn = picture(rows)
    (out / "uncertainty.svg").write_bytes(svg_bytes(drawn))
    drawn.savefig(out / "uncertainty.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--conformal", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    for kind in (NumericalWarning, ConvergenceWarning):
        warnings.simplefilter("ignore", kind)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.conformal:
        usual = [name for name in arguments.cells if CELLS[name].trained_on == CELLS[name]]
        (arguments.out / "conformal.md").write_text(conformal_table(usual, arguments.seeds))
        return
    path = arguments.out / "uncertainty.csv"
    rows: list[dict[str, str]] = list(csv.DictReader(path.open())) if path.exists() else []
    done = {tuple(row[name] for name in KEY) for row in rows}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not rows:
            writer.writeheader()
        for method, cells, seed in work(arguments):
            for row in run(method, cells, seed, done):
                writer.writerow(row)
                file.flush()
                rows.append({name: str(value) for name, value in row.items()})
                print(*(row[name] for name in COLUMNS), flush=True)
    if rows:
        write_all(rows, arguments.out)


if __name__ == "__main__":
    main()
