"""What each stage of the calibration of SpikeSlabNet's layers gains and costs.

    python -m benchmarks.calibration ../shared/reference results/calibration.md [--parts stages challenge speed table]

`stages` compares layers alone, without the sampler, on a thousand fresh pairs of the paper's problem and of the
dictionaries of the challenge; `challenge` compares whole predictions to the stored posterior of its test signals;
`speed` and `table` measure processor time in processes of their own, on one core, taking turns. Parts that were
finished before are kept as JSON next to the results.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from bayeslista import NumericalWarning, SpikeSlab, SpikeSlabNet
from bayeslista.metrics import crps, nmse, pit_coverage, variance_ratio
from bayeslista.numerics.precision import precision
from bayeslista.spike_slab import fitting

PAPER, CHALLENGE = "limit_k50", ("H_sines", "D_ar.98", "I_t3", "E_copies", "C_blur3", "F_eeg")
VARIANTS: dict[str, dict[str, Any]] = {
    "usual start": {"training": "none", "starts": ("independent",)},
    "best start": {"training": "none"},
    "and head": {"training": 0},
    "auto": {"training": "auto"},
    "full": {"training": "full"},
    "auto, no refinement": {"training": "auto", "refined": False},
    "fast": {"training": "auto", "mode": "fast"},
}
DATA = (PAPER, "H_sines", "E_copies")  # of the stages; the others say the same
DROPPED = """
## Stages that were dropped

Measured before, on the same kind of pairs (one seed; NMSE and CRPS). The mixture with the answer of the VAMP layers
took 11 of 21 seconds and gained nothing on the paper's problem (.1857 and .0257 with it, .1858 and .0260 without), on
H_sines (.3144 and .0122; .3140 and .0123) and F_eeg, 0.5 % on E_copies. A head from 3,072 pairs was no better than
one from 1,024 (.1857 either way), a head for either of two candidates no better than one for the better candidate;
both together took 7 seconds. Steps of 0.02 were too small: on E_copies 60 of them came to .5499, of 0.05 to .4996,
and 40 of 0.03 from the start for coherent columns to .48. All steps in one compiled scan took 6 seconds to compile.

## Observations alone

Noise, P(active) and slab by draws: with 300 signals in all of 150 sweeps 5.0 s on the paper's problem, and the
logarithms off by .025, .020 and .033 (root mean square of three seeds); with 24 signals in 90 sweeps and then 100 in
40 sweeps 0.8 s, and .011, .021 and .045. On F_eeg .003, .026 and .038 in 1.2 s before, .032, .037 and .050 in 0.3 s
now; with K = 20, where noise comes down slowly, log noise was off by 2.6 and is by 2.1.
"""
FITS = {
    "BayesLISTA(n_layers=10)": "bayeslista.BayesLISTA(n_layers=10, **given).fit(Y, B)",
    "accurate, pairs": "bayeslista.SpikeSlabNet(mode='accurate', **given).fit(Y, B)",
    "accurate, observations alone": "bayeslista.SpikeSlabNet(mode='accurate', **given).fit(Y)",
    "fast, pairs": "bayeslista.SpikeSlabNet(mode='fast', **given).fit(Y, B)",
}
TIMED = """
import time, warnings, bayeslista, bayeslista.estimators
from bayeslista.datasets import make_sparse_codes
warnings.simplefilter("ignore")
data = make_sparse_codes(1000, 1, 50, 100, random_state=0)
given, Y, B = dict(design_matrix=data.design_matrix, random_state=0), data.Y_train, data.B_train
for _ in range(3):
    begin = time.process_time()
    {}
    print(time.process_time() - begin)
"""


def read(name: str, folder: Path) -> dict[str, Any]:
    if name == PAPER:
        file = dict(np.load(folder / f"{name}.npz"))
        return file | {"slab_weights": 1.0, "slab_vars": 1.0, "prob_active": 0.2, "noise_std": 0.5}
    return dict(np.load(folder / "challenge" / f"{name}_seed201.npz"))


def fresh(data: dict[str, Any], n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random, X = np.random.default_rng(seed), data["X"]
    weights, variances = np.atleast_1d(data["slab_weights"]), np.atleast_1d(data["slab_vars"])
    part = random.choice(len(weights), (n, X.shape[1]), p=weights / weights.sum())
    active = random.random(part.shape) < data["prob_active"]
    codes = np.sqrt(variances[part]) * random.standard_normal(part.shape) * active
    return codes @ X.T + data["noise_std"] * random.standard_normal((n, len(X))), codes


def row(dist: SpikeSlab, codes: np.ndarray) -> dict[str, float]:
    some = codes.any(axis=1)
    return {
        "NMSE": nmse(codes[some], dist.mean()[some]),
        "CRPS": float(np.mean(crps(dist, codes))),
        "PIT 90 %": pit_coverage(dist, codes, 0.9, random_state=0),
        "variance / MSE": variance_ratio(dist, codes),
    }


def fitted(data: dict[str, Any], pairs: tuple[np.ndarray, np.ndarray], mode: str, training: Any) -> tuple[Any, float]:
    begin = time.process_time()
    model = SpikeSlabNet(mode=mode, design_matrix=data["X"], training=training, random_state=0).fit(*pairs)
    return model, time.process_time() - begin


def stages(folder: Path) -> list[dict[str, Any]]:
    rows, starts = [], fitting.STARTS
    for name in DATA:
        data = read(name, folder)
        training, test = fresh(data, 1000, 98), fresh(data, 1000, 99)
        for variant, options in VARIANTS.items():
            fitting.STARTS = {start: starts[start] for start in options.get("starts", starts)}
            for _ in range(2):  # the second is compiled before
                model, seconds = fitted(data, training, options.get("mode", "accurate"), options["training"])
            learner = model._learner
            if not options.get("refined", True):
                learner.largest_variance_ratio = np.inf
            with precision(model.dtype_):
                found = learner.output(test[0] / learner.units.observation)
            unit, done = learner.units.code, model.diagnostics_
            dist = SpikeSlab(found[0], found[1] * unit, found[2] * unit**2)
            rows.append({"data": name, "stages": variant, **row(dist, test[1]), "steps": done["steps"]})
            rows[-1] |= {"EP layers": done["ep_layers"], "failed": done["failed"], "seconds": seconds}
            print(rows[-1], flush=True)
    fitting.STARTS = starts
    return rows


def challenge(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for name in CHALLENGE:
        data = read(name, folder)
        some = data["B_test"].any(axis=1)
        limit = nmse(data["B_test"][some], data["posterior_mean"][some])
        for mode in ("accurate", "fast"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                model, seconds = fitted(data, (data["Y_train"], data["B_train"]), mode, "auto")
            warned = any(each.category is NumericalWarning and "far from" in str(each.message) for each in caught)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scores = row(model.predict_dist(data["Y_test"]), data["B_test"])
                check = model.predictive_check(data["Y_test"])
            rows.append({"data": name, "mode": mode, "NMSE / posterior": scores["NMSE"] / limit, **scores})
            rows[-1] |= {"sampled": float(np.mean(check.engine == "exact")), "failed": float(check.failed.mean())}
            rows[-1] |= {"fit warned": "yes" if warned else "no", "seconds": seconds}
            print(rows[-1], flush=True)
    return rows


def speed(_: Path) -> list[dict[str, Any]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    found: dict[str, list[list[float]]] = {name: [] for name in FITS}
    for _turn in range(2):
        for name, code in FITS.items():
            command = [sys.executable, "-c", TIMED.format(code)]
            done = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
            found[name].append([float(word) for word in done.stdout.split()])
            print(name, found[name][-1], flush=True)
    cold = {name: min(each[0] for each in times) for name, times in found.items()}
    warm = {name: min(min(each[1:]) for each in times) for name, times in found.items()}
    first = next(iter(FITS))
    return [
        {"fit": name, "cold": cold[name], "warm": warm[name], "cold / BayesLISTA": cold[name] / cold[first],
         "warm / BayesLISTA": warm[name] / warm[first]}
        for name in FITS
    ]  # fmt: skip


def table(_: Path) -> list[dict[str, Any]]:
    """The command line on 250 signals, 24 sensors and 40 coefficients, and 50 to predict."""
    from bayeslista.datasets import make_sparse_codes

    data, rows = make_sparse_codes(250, 50, 24, 40, random_state=0), []
    program = [sys.executable, "-c", "from bayeslista.cli import main; main()"]
    kinds = {"pairs": ["y.npy", "b.npy"], "observations alone": ["y.npy", "--design-matrix", "x.npy"]}
    for kind, arguments in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            for name, part in (("y", "Y_train"), ("b", "B_train"), ("x", "design_matrix"), ("t", "Y_test")):
                np.save(place / f"{name}.npy", data[part])
            clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
            clean |= {"XDG_CACHE_HOME": str(place / "cache"), "NUMBA_CACHE_DIR": str(place / "numba")}
            for cache in ("empty", "warm", "warm"):
                times = []
                for words in (
                    ["fit", *arguments, "--model", "m"],
                    ["predict", "t.npy", "--model", "m", "--out", "o.npz"],
                ):
                    before = os.times()
                    subprocess.run([*program, *words], cwd=place, env=clean, capture_output=True, check=True)
                    after = os.times()
                    used = after.children_user + after.children_system - before.children_user - before.children_system
                    times.append(used)
                rows.append(
                    {"fitted to": kind, "cache": cache, "fit": times[0], "predict": times[1], "both": sum(times)}
                )
                print(rows[-1], flush=True)
    return rows


PARTS = {"stages": stages, "challenge": challenge, "speed": speed, "table": table}
TITLES = {
    "stages": "Stages, layers alone (1,000 fresh pairs; seconds of the fit, compiled before)",
    "challenge": "Challenge, whole predictions (100 test signals; seconds with compilation)",
    "speed": "Fits of the paper's problem, 1,000 pairs (seconds of processor time)",
    "table": "`bayeslista fit` and `predict` of a table of 250 × (24 → 40) (seconds of processor time)",
}


def lines(rows: list[dict[str, Any]]) -> list[str]:
    names = list(rows[0])
    cells = [[f"{value:.3g}" if isinstance(value, float) else str(value) for value in each.values()] for each in rows]
    return [f"| {' | '.join(each)} |" for each in (names, ["---"] * len(names), *cells)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("reference", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    asked = parser.parse_args()
    kept = asked.out.with_suffix(".json")
    found = json.loads(kept.read_text()) if kept.exists() else {}
    for part in asked.parts:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[part] = PARTS[part](asked.reference)
        kept.write_text(json.dumps(found, indent=1) + "\n")
    text = [
        "# Calibration of the layers of SpikeSlabNet",
        "",
        "Made by `python -m benchmarks.calibration`, one core, one seed, on a machine that others use, too: compare "
        "within a table.",
        "",
    ]
    for part, title in TITLES.items():
        if part in found:
            text += [f"## {title}", "", *lines(found[part]), ""]
    asked.out.write_text("\n".join(text).rstrip() + "\n" + DROPPED)


if __name__ == "__main__":
    main()
