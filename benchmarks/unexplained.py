"""Unexplained observations in accurate mode: python -m benchmarks.unexplained ../shared results/unexplained.md

Challenge files (model learned from the training pairs), simulated spectra from observations alone, and the diabetes
table with squares and products as one signal, scaled by 0.9 to 1.1.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from bayeslista import SpikeSlabNet
from bayeslista.metrics import nmse
from benchmarks.exact import CHALLENGE

SEEDS = (0, 1, 2)


def spectra(seed, n=200, K=60, D=50):
    """Amounts of substances of four Gaussian peaks each on a constant background, and their noisy spectra."""
    rng = np.random.default_rng(seed)
    X = np.full((K, D), 0.3)
    for j in range(D):
        for _ in range(4):
            centre, width, height = rng.uniform(0, K), rng.uniform(3, 8), rng.uniform(0.3, 1)
            X[:, j] += height * np.exp(-0.5 * ((np.arange(K) - centre) / width) ** 2)
    B = np.where(rng.random((n, D)) < 0.08, rng.exponential(1, (n, D)), 0.0)
    return X, B, B @ X.T + 0.05 * rng.standard_normal((n, K))


def answers(model, Y, B, X):
    """One row: what was left unexplained, by which engines, and what was surely active but zero without a warning."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist = model.predict_dist(Y)
    seconds = time.perf_counter() - start
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check = model.predictive_check(Y)
    residual = Y - dist.mean() @ X.T
    unexplained = np.mean(residual**2 / np.square(model.noise_std_), axis=1) > 2
    warned = any("unexplained" in str(each.message) for each in caught)
    silent = 0
    if B is not None and not warned:
        silent = int(((dist.prob_active > 0.99) & (B == 0))[unexplained].any(axis=1).sum())
    informative = slice(None) if B is None else B.any(axis=1)
    return {
        "signals": len(Y),
        "unexplained": unexplained.mean(),
        "failed": check.failed.mean(),
        "sampled": (check.engine == "exact").mean(),
        "warned": warned,
        "silent": silent,
        "error": np.nan if B is None else nmse(B[informative], dist.mean()[informative]),
        "ms": 1e3 * seconds / len(Y),
    }


def cells(shared):
    """Name and row of every problem."""
    for name in (*CHALLENGE, "J_expo"):
        path = shared / "reference" / "challenge" / f"{name}_seed201.npz"
        if not path.exists():
            print(f"{path} is not there: skipped")
            continue
        z = np.load(path)
        model = SpikeSlabNet(mode="accurate", design_matrix=z["X"], random_state=0)
        yield name, answers(model.fit(z["Y_train"], z["B_train"]), z["Y_test"], z["B_test"], z["X"])
    for seed in SEEDS:
        X, B, Y = spectra(seed)
        model = SpikeSlabNet(mode="accurate", design_matrix=X, random_state=seed)
        yield f"spectra {seed}, observations alone", answers(model.fit(Y), Y, B, X)
    table, response = load_diabetes(return_X_y=True)
    X = StandardScaler().fit_transform(PolynomialFeatures(2, include_bias=False).fit_transform(table))
    centred = (response - response.mean()) / response.std()
    rows = []
    for seed in range(20):
        y = (0.9 + 0.2 * seed / 19) * centred[None]
        model = SpikeSlabNet(mode="accurate", design_matrix=X, training="none", random_state=seed)
        rows.append(answers(model.fit(y), y, None, X) | {"noise": model.noise_std_ / (0.9 + 0.2 * seed / 19)})
    mean = {key: np.mean([row[key] for row in rows]) for key in rows[0]}
    print("noise of the diabetes table over seeds:", mean["noise"], np.ptp([row["noise"] for row in rows]))
    yield "diabetes, one signal, twenty seeds, untrained", mean


def main(shared, out):
    lines = []
    for name, row in cells(Path(shared)):
        shares = " | ".join(f"{row[key]:.3f}" for key in ("unexplained", "failed", "sampled"))
        lines.append(
            f"| {name} | {row['signals']:.0f} | {shares} | {row['silent']:.0f} | {row['error']:.3f} | {row['ms']:.1f} |"
        )
        print(lines[-1], flush=True)
    text = """# Unexplained observations

Made by `python -m benchmarks.unexplained ../shared results/unexplained.md`: `SpikeSlabNet(mode="accurate")`.
"Unexplained" is the share of answers whose mean squared residual is over twice the noise variance, "failed" that of
answers that failed their check in the end, "sampled" that of answers by the sampler. "Silent" counts unexplained
answers, without any warning, with a coefficient of P(active) > 0.99 that is zero.

| data | signals | unexplained | failed | sampled | silent | NMSE | ms a signal |
|---|---|---|---|---|---|---|---|
"""
    Path(out).write_text(text + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
