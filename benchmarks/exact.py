"""Exact mode against the stored posteriors and against LassoCV: python -m benchmarks.exact ../shared results/exact.md

Matrix, prior and noise are given, then learned from the training pairs. Processor time of one core, signals one after
the other; LassoCV (cv=5) fits a share of the same signals in the same run.
"""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LassoCV
from threadpoolctl import threadpool_limits

from bayeslista import NumericalWarning, SpikeSlab, SpikeSlabNet
from bayeslista.metrics import crps, nmse, pit_coverage

CHALLENGE = ("E_copies", "H_sines", "F_eeg", "C_blur3", "D_ar.98", "I_t3", "I_hetero")
LIMIT = ("limit_k20", "limit_k50", "limit_k80", "limit_k100")
SEEDS = (0, 1, 2)
N_LASSO = 20


def problems(folder):
    """Name, arrays, given parameters, stored posterior."""
    for name in CHALLENGE:
        path = folder / "reference" / "challenge" / f"{name}_seed201.npz"
        z = dict(np.load(path))
        noise = z["noise_std"] if z["noise_std"].ndim else float(z["noise_std"])
        slab = {"slab_var": z["slab_vars"], "slab_weight": z["slab_weights"]}
        if len(z["slab_vars"]) == 1:
            slab = {"slab_var": float(z["slab_vars"][0])}
        stored = z["posterior_mean"], z["posterior_var"], z["posterior_prob_active"]
        yield name, z, {"prob_active": float(z["prob_active"]), "noise_std": noise, **slab}, stored, z["chains_differ"]
    for name in LIMIT:
        z = dict(np.load(folder / "reference" / f"{name}.npz"))
        stored = z["gibbs_mean"], z["gibbs_var"], z["gibbs_active_prob"]
        yield name, z, {"prob_active": 0.2, "slab_var": 1.0, "noise_std": 0.5}, stored, None


def as_distribution(mean, var, prob):
    """The spike and slab with these moments."""
    prob = np.clip(prob, 1e-12, 1 - 1e-12)
    slab_mean = mean / prob
    return SpikeSlab(prob, slab_mean, np.maximum((var + mean**2) / prob - slab_mean**2, 1e-12))


def row(name, z, given, stored, differ, seed):
    X, Y, B = z["X"], z["Y_test"], z["B_test"]
    reference = as_distribution(*stored)
    limit, crps_limit = nmse(B, stored[0]), crps(reference, B)
    model = SpikeSlabNet(mode="exact", design_matrix=X, random_state=seed, **given)
    model.predict(Y[:1])  # compiles
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        dist = model.predict_dist(Y)
        seconds = (time.process_time() - start) / len(Y)
        if seed == SEEDS[0]:
            converged = model.exact_diagnostics(Y)["converged"]
            learned = SpikeSlabNet(mode="exact", design_matrix=X, random_state=seed).fit(z["Y_train"], z["B_train"])
            learned_nmse = nmse(B, learned.predict(Y))
    sure = dist.prob_active > 0.9
    usable = slice(None) if differ is None else differ < 0.05
    away = np.linalg.norm(dist.mean() - stored[0], axis=1) / np.linalg.norm(B, axis=1)
    once = {}
    if seed == SEEDS[0]:
        once = {
            "learned": learned_nmse / limit,
            "converged": converged.mean(),
            "near": np.mean(away[converged] < 0.1),
        }
    return once | {
        "NMSE": nmse(B, dist.mean()) / limit,
        "CRPS": crps(dist, B) / crps_limit,
        "P": np.abs(dist.prob_active - stored[2])[usable].mean(),
        "PIT 90 %": pit_coverage(dist, B, 0.9, random_state=0),
        "said": dist.prob_active[sure].mean(),
        "active": (B != 0)[sure].mean(),
        "ms": 1e3 * seconds,
    }


def main(shared, out):
    lines = []
    with threadpool_limits(1):
        for name, z, given, stored, differ in problems(Path(shared)):
            start = time.process_time()
            for y in z["Y_test"][:N_LASSO]:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)
                    LassoCV(cv=5).fit(z["X"], y)
            lasso = 1e3 * (time.process_time() - start) / N_LASSO
            rows = [row(name, z, given, stored, differ, seed) for seed in SEEDS]
            mean = {key: np.mean([each[key] for each in rows if key in each]) for key in rows[0]}
            spread = np.ptp([each["NMSE"] for each in rows])
            lines.append(
                f"| {name} | {mean['NMSE']:.3f} ({spread:.3f}) | {mean['CRPS']:.3f} | {mean['learned']:.3f} | "
                f"{mean['P']:.4f} | {mean['PIT 90 %']:.3f} | {mean['said']:.3f} / {mean['active']:.3f} | "
                f"{mean['converged']:.2f} | {mean['near']:.2f} | {mean['ms']:.1f} | {lasso:.1f} | "
                f"{mean['ms'] / lasso:.2f} |"
            )
            print(lines[-1], flush=True)
    text = f"""# The exact mode of SpikeSlabNet

Made by `python -m benchmarks.exact ../shared results/exact.md`, processor time of one core, means over random states
{SEEDS}. NMSE and CRPS are ratios to those of the stored posterior (in brackets their range over random states);
"learned" is the NMSE ratio with prior and noise learned from the training pairs. P is the mean difference of P(active)
to the stored one. "near" is the share of converged signals whose mean is nearer to the stored one than a tenth of the
code's norm. "learned", "converged" and "near" are of the first random state.

| data | NMSE | CRPS | learned | P | PIT 90 % | P > 0.9: said / active | converged | near | ms | LassoCV, ms | ratio |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""
    Path(out).write_text(text + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
