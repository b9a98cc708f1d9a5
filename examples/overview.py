"""One signal with its intervals, and errors by depth compared with the exact posterior.

On the left a signal of the paper's problem, 50 observations of 100 coefficients: of 100 test signals the one whose
error is the median. On the right the errors by depth, read from results/standard/layers.csv. Run it with a folder to
save the figure in::

    python examples/overview.py [folder]
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np
from matplotlib.figure import Figure

from bayeslista import SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.plots import plot_signal

data = make_sparse_codes(n_train=1000, n_test=100, n_observed=50, n_components=100, random_state=0)
model = SpikeSlabNet(mode="accurate", design_matrix=data.design_matrix, training="none", random_state=0)
dist = model.fit(data.Y_train, data.B_train).predict_dist(data.Y_test)
error = np.linalg.norm(dist.mean() - data.B_test, axis=1) / np.linalg.norm(data.B_test, axis=1)
typical = int(np.argsort(error)[len(error) // 2])
low, high = dist.interval(0.9)
inside = (low <= data.B_test) & (data.B_test <= high)
print(f"NMSE {error.mean():.3f}; intervals of 90 % hold {inside.mean():.1%} of the coefficients")

seeds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
with open(Path(sys.argv[0]).resolve().parents[1] / "results" / "standard" / "layers.csv", encoding="utf-8") as file:
    for row in csv.DictReader(file):
        seeds[row["method"]][int(row["x"])].append(float(row["nmse"]))
nmse = {method: {depth: mean(values) for depth, values in by_depth.items()} for method, by_depth in seeds.items()}

figure = Figure(figsize=(14, 4.2), layout="constrained")
left, right = figure.subplots(1, 2, width_ratios=(2.1, 1))
plot_signal(dist[typical], data.B_test[typical], axes=left, title="A signal of median error")
for method, label, colour in (
    ("BayesLISTA, published", "BayesLISTA.published, 100 epochs", "#64748b"),
    ("BayesLISTA", "BayesLISTA", "#0f766e"),
    ("SpikeSlabNet", "SpikeSlabNet", "#1d4ed8"),
):
    depths = sorted(nmse[method])
    right.plot(depths, [nmse[method][depth] for depth in depths], "o-", color=colour, markersize=4)
    right.annotate(label, (depths[-1], nmse[method][depths[-1]]), xytext=(0, 6), textcoords="offset points", ha="right")
for method, label in (("Lasso, converged", "Lasso"), ("exact posterior", "exact posterior")):
    level = mean(nmse[method].values())
    right.axhline(level, color="#475569", linewidth=1, linestyle="--")
    right.annotate(label, (20, level), xytext=(0, -4), textcoords="offset points", ha="right", va="top")
right.set(xlabel="layers", ylim=(0, 0.75), xticks=[2, 4, 6, 8, 10, 15, 20])
right.set_title("NMSE by depth", loc="left", pad=24)
right.spines[["top", "right"]].set_visible(False)
if len(sys.argv) > 1:
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(sys.argv[1]) / "overview.png", dpi=100)

assert 0.9 < inside.mean() < 0.97
assert nmse["SpikeSlabNet"][20] < 1.1 * mean(nmse["exact posterior"].values()), "the limit is not near"
assert nmse["SpikeSlabNet"][20] < 0.7 * mean(nmse["Lasso, converged"].values())
assert nmse["BayesLISTA"][20] < 0.7 * nmse["BayesLISTA, published"][20]
