"""Operators: python -m benchmarks.operators results/operators.md [photographs|matrices|growth|sparse …]

Photographs are those that PyWavelets comes with (camera is the one of scikit-image); constants of the layers were
chosen on others: those of scikit-learn and Matplotlib.
"""

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pywt
from scipy.sparse import csr_array

from bayeslista import FISTA, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import crps, nmse, pit
from bayeslista.operators import MatrixOperator, PartialDCT, PartialFourier, Wavelet
from bayeslista.operators.proximal_gradient import operator_step
from bayeslista.spike_slab.operator_fitting import OperatorLearner

PHOTOGRAPHS = ("camera", "ascent", "aero")
SIDE, NOISE, LOW, SHARE = 256, 0.01, 0.03, 0.25
PENALTIES = np.logspace(-5, -2, 7)  # of the Lasso, in units of the largest |Aᵀ y|


def photograph(name):
    whole = np.asarray(getattr(pywt.data, name)(), float) / 255
    return whole.reshape(SIDE, 2, SIDE, 2).mean(axis=(1, 3))


def sampled(frequency, random):
    """The lowest 3 % of the places, and others of a density that falls with the square of the frequency: 25 %."""
    order = np.argsort(frequency, kind="stable")
    n_low = int(LOW * len(order))
    rest = order[n_low:]
    density = (frequency[rest] + 0.02) ** -2.0
    more = random.choice(rest, int(SHARE * len(order)) - n_low, replace=False, p=density / density.sum())
    return np.sort(np.concatenate([order[:n_low], more]))


def transform(kind, shape, random):
    if kind == "DCT":
        frequency = np.sqrt(
            sum(np.square(part / 2) for part in np.meshgrid(*(np.arange(n) / n for n in shape)))
        ).ravel()
        return PartialDCT(shape, sampled(frequency, random))
    frequency = np.sqrt(sum(np.square(part) for part in np.meshgrid(*map(np.fft.fftfreq, shape)))).ravel()
    places = np.arange(frequency.size).reshape(shape)
    opposite = np.roll(np.flip(places), 1, tuple(range(len(shape)))).ravel()
    first = np.flatnonzero(places.ravel() <= opposite)
    mask = np.zeros(frequency.size, bool)
    mask[first[sampled(frequency[first], random)]] = True
    return PartialFourier(shape, mask.reshape(shape))


def fista_to_the_end(operator, Y, penalty, change=1e-4):
    """Codes of FISTA until the relative change of the codes is below 1e-4."""
    step = operator_step(operator, Y.dtype)
    codes = extrapolated = np.zeros((1, operator.shape[1]))
    momentum = 1.0
    for _ in range(2000):
        moved = extrapolated + operator.rmatvec(Y - operator.matvec(extrapolated)) / step
        new = moved - np.clip(moved, -penalty / step, penalty / step)
        following = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        extrapolated = new + (momentum - 1) / following * (new - codes)
        moved_by, codes, momentum = np.linalg.norm(new - codes), new, following
        if moved_by < change * np.linalg.norm(codes):
            break
    return codes


def timed(function, *arguments):
    start = time.process_time()
    found = function(*arguments)
    return time.process_time() - start, found


def photographs(n_seeds=1):
    lines = [
        "## Photographs",
        "",
        f"{SIDE} × {SIDE} pixels from {SHARE:.0%} of the coefficients of a transform (the lowest "
        f"{LOW:.0%}, and others of "
        f"decaying density), noise of {NOISE} (pixels are from 0 to 1) and prior learned from the one "
        f"image. FISTA has the "
        "best of seven penalties by the true error, and stops at a relative change of 1e-4. Times "
        "are processor seconds of "
        "`fit` and `predict_dist` together and of FISTA with that one penalty, the least of three turns; "
        f"mean over masks ({n_seeds}).",
        "",
        "| transform | wavelet | photograph | NMSE FISTA | NMSE fast | ratio | s FISTA | s fast | "
        "ratio | PIT in the central "
        "90 % | noise learned |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, wavelet in (("Fourier", "db4"), ("DCT", "db4"), ("Fourier", "haar"), ("DCT", "haar")):
        basis = Wavelet((SIDE, SIDE), wavelet)
        for name in PHOTOGRAPHS:
            codes = basis.rmatvec(photograph(name).reshape(1, -1))
            rows = []
            for seed in range(n_seeds):
                random = np.random.default_rng(seed)
                operator = transform(kind, (SIDE, SIDE), random) @ basis
                Y = operator.matvec(codes) + NOISE * random.standard_normal((1, operator.shape[0]))
                largest = np.max(np.abs(operator.rmatvec(Y)))
                answers = {p: fista_to_the_end(operator, Y, p * largest) for p in PENALTIES}
                best = min(answers, key=lambda p: nmse(codes, answers[p]))
                seconds = []
                for _ in range(3):
                    rival, _ = timed(fista_to_the_end, operator, Y, best * largest)
                    own, (model, dist) = timed(fit_and_predict, operator, Y)
                    seconds.append((rival, own))
                inside = np.mean(np.abs(pit(dist, codes) - 0.5) < 0.45)
                errors = nmse(codes, answers[best]), nmse(codes, dist.mean())
                rows.append((*errors, *np.min(seconds, axis=0), inside, model.noise_std_))
            lasso, own, rival, mine, inside, noise = np.mean(rows, axis=0)
            lines.append(
                f"| {kind} | {wavelet} | {name} | {lasso:.5f} | {own:.5f} | {own / lasso:.2f} | "
                f"{rival:.2f} | {mine:.2f} | "
                f"{mine / rival:.2f} | {inside:.1%} | {noise:.3f} |"
            )
            print(lines[-1], flush=True)
    return lines


def fit_and_predict(operator, Y, labels=None):
    model = SpikeSlabNet(mode="fast", design_matrix=operator, prior_labels=labels).fit(Y)
    return model, model.predict_dist(Y)


def matrices():
    lines = [
        "## Dense matrices as operators",
        "",
        "The paper's problem with its prior given: layers on operators (products alone) over the fast mode of the same "
        "matrix without training.",
        "",
        "| K × D | seed | NMSE of the matrix | ratio | CRPS of the matrix | ratio |",
        "|---|---|---|---|---|---|",
    ]
    given = {"prob_active": 0.2, "slab_var": 1.0, "noise_std": 0.5}
    for K, D, n in ((50, 100, 1000), (80, 100, 1000), (250, 500, 200)):
        for seed in range(3):
            data = make_sparse_codes(n_train=1, n_test=n, n_observed=K, n_components=D, random_state=seed)
            X, B, Y = data.design_matrix, data.B_test, data.Y_test
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dense = SpikeSlabNet(mode="fast", design_matrix=X, **given).predict_dist(Y)
                labels = np.zeros(D, int)  # keep a small operator from becoming a matrix
                model = SpikeSlabNet(mode="fast", design_matrix=MatrixOperator(X), prior_labels=labels, **given)
                dist = model.predict_dist(Y)
            assert isinstance(model.fit()._learner, OperatorLearner)
            errors = [nmse(B, each.mean()) for each in (dense, dist)]
            scores = [float(np.mean(crps(each, B))) for each in (dense, dist)]
            lines.append(
                f"| {K} × {D} | {seed} | {errors[0]:.4f} | {errors[1] / errors[0]:.4f} | {scores[0]:.5f} | "
                f"{scores[1] / scores[0]:.4f} |"
            )
            print(lines[-1], flush=True)
    return lines


def reset_peak():
    """Forget the peak of this process so far; megabytes that it holds."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return held("VmRSS")


def held(what):
    line = next(each for each in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if what in each)
    return int(line.split()[1]) / 1024


def one_size(size, kind):
    """Seconds, layers and peak memory of a fit and a prediction, in this process."""
    random = np.random.default_rng(0)
    if kind == "spikes":
        operator = PartialDCT((size,), np.sort(random.choice(size, size // 4, replace=False)))
        codes = random.standard_normal((1, size)) * (random.random((1, size)) < 0.03)
    else:
        side = int(np.sqrt(size))
        basis = Wavelet((side, side), kind)
        x, y = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side))
        picture = (np.hypot(x - 0.2, y) < 0.5) + 0.5 * (np.abs(x + y) < 0.4) + 0.3 * np.sin(9 * x * y)
        operator = transform("DCT", (side, side), random) @ basis
        codes = basis.rmatvec(picture.reshape(1, -1))
    Y = operator.matvec(codes) + NOISE * random.standard_normal((1, operator.shape[0]))
    fit_and_predict(PartialDCT((64,), np.arange(32)), Y[:, :32])  # what is imported and compiled
    before = reset_peak()
    seconds, (model, dist) = min((timed(fit_and_predict, operator, Y) for _ in range(2)), key=lambda pair: pair[0])
    peak = held("VmHWM")
    pair = min(timed(lambda: operator.rmatvec(operator.matvec(codes)))[0] for _ in range(5))
    return {
        "seconds": seconds,
        "layers": model.diagnostics_["layers"],
        "pair": pair,
        "memory": peak,
        "added": (peak - before) * 2**20 / (8 * size),
        "error": nmse(codes, dist.mean()),
    }


def one_sparse():
    """Ten thousand rows of twenty categorical features with five thousand values each, in this process."""
    random = np.random.default_rng(0)
    rows, features, values = 10_000, 20, 5_000
    share = 1 / np.arange(1, values + 1)
    chosen = random.choice(values, (rows, features), p=share / share.sum()) + values * np.arange(features)
    X = csr_array(
        (np.ones(chosen.size), chosen.ravel(), np.arange(0, chosen.size + 1, features)), (rows, values * features)
    )
    codes = random.standard_normal((1, values * features)) * (random.random((1, values * features)) < 0.02)
    Y = codes @ X.T + 0.1 * random.standard_normal((1, rows))
    fit_and_predict(X[:, :2000], Y)  # what is imported and compiled is no memory of the problem
    counts = X.sum(axis=0)
    labels = np.floor(np.log2(np.maximum(counts, 0.5)) / 2).astype(int)  # alike columns: a factor of four in counts
    largest = np.max(np.abs(Y @ X))
    before = reset_peak()
    lassos = [
        (each, timed(lambda s=each: FISTA(300, design_matrix=X, shrinkage=s).fit(Y).predict(Y)))
        for each in largest * np.logspace(-6, -3, 7)
    ]
    seconds, (model, dist) = timed(fit_and_predict, X, Y, labels)
    memory = (held("VmHWM") - before) * 2**20
    stored = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    seen = np.asarray((X != 0).sum(axis=0))[None] > 0
    _, (lasso, found) = min(lassos, key=lambda each: nmse(codes * seen, each[1][1] * seen))
    return {
        "stored": stored / 2**20,
        "memory": memory / 2**20,
        "vectors": (memory - 3 * stored) / (8 * X.shape[1]),
        "fista": lasso,
        "seconds": seconds,
        "error_fista": nmse(codes * seen, found * seen),
        "error": nmse(codes * seen, dist.mean() * seen),
        "noise": model.noise_std_,
        "layers": model.diagnostics_["layers"],
    }


def elsewhere(call):
    """A call of this module in a process of its own, whose peak memory is its own."""
    code = (
        f"import json; from benchmarks.operators import *; warnings.simplefilter('ignore'); print(json.dumps({call}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(found.stdout.strip().splitlines()[-1])


def growth():
    lines = [
        "## Growth",
        "",
        "Spikes from 25 % of their cosine transform, where the linear step is exact, and an image from 25 % of that of "
        "its pixels; noise and prior learned: `fit` and `predict_dist`, a process each. A pair is one product with the "
        "operator and one with its transpose. Vectors are what the process grew by at its peak, in units of D "
        "double-precision numbers.",
        "",
        "| codes | D | seconds | layers | s a layer | s a pair | pairs a layer | peak MB | vectors | NMSE |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in ("spikes", "db4"):
        sizes = (10**4, 10**5, 10**6) if kind == "spikes" else (2**14, 2**16, 2**18, 2**20)
        table = []
        for size in sizes:
            found = elsewhere(f"one_size({size}, {kind!r})")
            layer = found["seconds"] / found["layers"]
            table.append((found["seconds"], layer, found["pair"]))
            lines.append(
                f"| {kind} | {size:,} | {found['seconds']:.2f} | {found['layers']} | {layer:.4f} | {found['pair']:.4f} "
                f"| {layer / found['pair']:.1f} | {found['memory']:.0f} | {found['added']:.0f} | {found['error']:.4f} |"
            )
            print(lines[-1], flush=True)
        total, layer, pair = (np.polyfit(np.log(sizes), np.log(each), 1)[0] for each in zip(*table, strict=True))
        lines.append(f"| {kind} | exponent | {total:.2f} | | {layer:.2f} | {pair:.2f} | | | | |")
        print(lines[-1], flush=True)
    return lines


def sparse():
    found = elsewhere("one_sparse()")
    return [
        "## A sparse matrix",
        "",
        "One-hot features: 10,000 rows, 100,000 columns (20 features of 5,000 values, by Zipf's "
        "law), 20 nonzeros a row; 2 % of "
        "the effects are not zero. Errors are of effects of values that occur. Memory is what the "
        "process grew by at its peak.",
        "",
        "| | seconds | NMSE |",
        "|---|---|---|",
        f"| FISTA (300 layers, best of seven penalties) | {found['fista']:.2f} | {found['error_fista']:.3f} |",
        f"| fast, noise and prior learned ({found['layers']} layers) | {found['seconds']:.2f} | {found['error']:.3f} |",
        "",
        f"Stored: {found['stored']:.1f} MB. Peak of both: {found['memory']:.0f} MB, which is three "
        f"times what is stored and "
        f"{found['vectors']:.0f} vectors of 100,000 numbers; the dense matrix would be 7.5 GB. Noise learned: "
        f"{found['noise']:.3f} (0.1).",
    ]


SECTIONS = {"photographs": photographs, "matrices": matrices, "growth": growth, "sparse": sparse}


def main():
    path, names = Path(sys.argv[1]), sys.argv[2:] or list(SECTIONS)
    parts = {}
    if path.exists():
        for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
            parts[part.splitlines()[0]] = ["## " + part.rstrip()]
    head = [
        "# Operators",
        "",
        "Made by `python -m benchmarks.operators results/operators.md`, on one thread "
        "(`OMP_NUM_THREADS=1`). The photographs are "
        "those that PyWavelets comes with; camera is also in scikit-image.",
        "",
    ]
    for name in names:
        lines = SECTIONS[name]()
        parts[lines[0].removeprefix("## ")] = lines
        body = "\n\n".join("\n".join(part) for part in parts.values())
        path.write_text("\n".join(head) + "\n" + body + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
