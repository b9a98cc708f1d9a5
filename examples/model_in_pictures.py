"""The model in pictures: a sparse code, a soft-thresholded Gaussian, and posterior distributions.

Run it with a folder to save the figures in::

    python examples/model_in_pictures.py [folder]
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import norm

from bayeslista import SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.numerics.soft_threshold import slab_moments, soft_threshold_moments


def new_axes(**settings: object) -> Axes:
    """Axes of a figure of their own."""
    axes = Figure(figsize=(8, 3.2), layout="constrained").subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(**settings)
    return axes


# %%
# Most coefficients of a code are exactly zero. There are fewer noisy observations than coefficients, so the design
# matrix has no inverse.
data = make_sparse_codes(n_train=1, n_test=200, n_observed=24, n_components=40, random_state=0)
code, observation = data.B_test[7], data.Y_test[7]

problem = new_axes(xlabel="index", ylabel="value", xlim=(-1, 40))
problem.plot(np.arange(24), observation, "s-", color="#94a3b8", markersize=4, label="observation y, 24 values")
problem.stem(np.arange(40), code, linefmt="#c2410c", markerfmt="o", basefmt=" ", label="code β, 40 coefficients")
problem.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1.0, 1.0))
assert np.mean(data.B_test == 0) > 0.7

# %%
# The input of a soft-threshold is a Gaussian, in grey. Its output is zero with the probability of the middle part; the
# two tails move inwards by the threshold. The moments of the output have closed forms, and a spike with a Gaussian slab
# matches them.
location, variance, threshold = 0.8, 1.0, 0.7
moments = soft_threshold_moments(location, variance, threshold)
slab = slab_moments(location, variance, threshold)
prob_active = float(moments.prob_active)

grid = np.linspace(-3, 4, 1001)
before = norm.pdf(grid, location, np.sqrt(variance))
after = norm.pdf(grid + threshold * np.sign(grid), location, np.sqrt(variance))
layer = new_axes(xlabel="value", ylabel="density, or probability", ylim=(0, 0.45))
layer.fill_between(grid, before, color="#cbd5e1", label="Gaussian before")
layer.plot(grid, after, color="#0f766e", label="after, where not zero")
layer.plot(grid, prob_active * norm.pdf(grid, slab.mean, np.sqrt(slab.var)), "--", color="#1d4ed8", label="slab")
layer.vlines(0, 0, 1 - prob_active, color="#c2410c", linewidth=5, label=f"spike, P(zero) = {1 - prob_active:.2f}")
layer.legend(frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0))

draws = np.random.default_rng(0).normal(location, np.sqrt(variance), 200_000)
shrunk = np.sign(draws) * np.maximum(np.abs(draws) - threshold, 0)
assert abs(shrunk.mean() - float(moments.mean)) < 0.01
assert abs(shrunk.var() - float(moments.var)) < 0.01
assert abs(prob_active * float(slab.mean) - float(moments.mean)) < 1e-6

# %%
# The prediction is a spike and slab for every coefficient: some are likely zero, some almost surely nonzero, some
# uncertain. Nothing is fitted here: with design matrix, sparsity, slab and noise given, ``SpikeSlabNet`` predicts
# without a fit.
model = SpikeSlabNet(design_matrix=data.design_matrix, prob_active=0.2, slab_var=1.1, noise_std=0.5, mode="fast")
posterior = model.predict_dist(data.Y_test)
dist = posterior[7]

grid = np.linspace(-2, 1.2, 1001)
uncertain = np.argmin(np.abs(dist.prob_active - 0.5))
chosen = {"likely zero": dist.prob_active.argmin(), "uncertain": uncertain, "likely active": dist.prob_active.argmax()}
answer = new_axes(xlabel="coefficient", ylabel="density, or probability")
for width, (name, d), colour in zip((9, 5, 3), chosen.items(), ("#94a3b8", "#a16207", "#1d4ed8"), strict=True):
    q, m, v = (float(part[d]) for part in (dist.prob_active, dist.slab_mean, dist.slab_var))
    answer.plot(grid, q * norm.pdf(grid, m, np.sqrt(v)), color=colour, label=f"{name}: P(active) = {q:.2f}")
    answer.vlines(0, 0, 1 - q, color=colour, linewidth=width)
    answer.plot(code[d], -0.08, "^", color=colour, markersize=8)
answer.plot([], [], "^", color="#475569", label="truth")
answer.legend(frameon=False, loc="upper right")

active = data.B_test != 0
found, false_alarm = posterior.prob_active[active].mean(), posterior.prob_active[~active].mean()
print(f"P(active): {found:.2f} on average where the truth is not zero, {false_alarm:.2f} where it is")
assert found > 4 * false_alarm

if len(sys.argv) > 1:
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for name, axes in (("problem", problem), ("layer", layer), ("answer", answer)):
        axes.figure.savefig(Path(sys.argv[1]) / f"model_{name}.png", dpi=90)
