"""Inpainting of digits over a learned dictionary, with a map of the uncertainty.

scikit-learn learns a dictionary from whole digits; SparseCodingTransformer then infers codes of others from 40 noisy
pixels of 64, and predicts the hidden pixels with their variance. Nothing is tuned, and no codes are given. Run it with
a folder to save the figure in:

    python examples/dictionary_learning.py [folder]
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import MiniBatchDictionaryLearning, SparseCoder

from bayeslista import SparseCodingTransformer, SpikeSlabNet
from bayeslista.plots import uncertainty_map

N_ATOMS, N_SEEN, NOISE = 64, 40, 0.1  # grey values are from 0 to 1

random = np.random.default_rng(0)
digits = load_digits().data / 16
usual = digits[:1000].mean(axis=0)
known, truth = digits[:1000] - usual, digits[1000:1500] - usual
order = random.permutation(digits.shape[1])
seen, hidden = np.sort(order[:N_SEEN]), np.sort(order[N_SEEN:])
Y_known, Y_new = (rows[:, seen] + NOISE * random.standard_normal((len(rows), N_SEEN)) for rows in (known[:300], truth))

learner = MiniBatchDictionaryLearning(N_ATOMS, alpha=1.0, max_iter=20, batch_size=64, random_state=0).fit(known)
atoms = learner.components_


def quality(pixels: np.ndarray) -> float:
    """Peak signal-to-noise ratio of the hidden pixels, in decibels."""
    return -10 * float(np.log10(np.mean((pixels - truth)[:, hidden] ** 2)))


# Codes are inferred over the observed pixels of the atoms; whole atoms then give the hidden pixels.
network = SpikeSlabNet(mode="fast", training="none")
coder = SparseCodingTransformer(atoms[:, seen], estimator=network, random_state=0).fit(Y_known)
codes = coder.transform_dist(Y_new)
pixels, pixel_var = codes.mean() @ atoms, codes.var() @ atoms**2
ours = quality(pixels)
print(f"{'SparseCodingTransformer':30} {ours:.1f} dB")

others = {f"OMP, {n} atoms": {"transform_n_nonzero_coefs": n} for n in (2, 3, 4, 6)}
others |= {
    f"Lasso, α = {a}": {"transform_algorithm": "lasso_lars", "transform_alpha": a} for a in (0.05, 0.1, 0.3, 1.0)
}
found = {name: quality(SparseCoder(atoms[:, seen], **each).transform(Y_new) @ atoms) for name, each in others.items()}
for name, value in found.items():
    print(f"{'SparseCoder: ' + name:30} {value:.1f} dB")
print(f"{'the mean digit':30} {quality(np.zeros_like(truth)):.1f} dB")

error, predicted = ((pixels - truth) ** 2)[:, hidden], pixel_var[:, hidden]
ratio = predicted.mean() / error.mean()
uncertain = predicted > np.quantile(predicted, 0.75)
share = error[uncertain].sum() / error.sum()
print(
    f"Hidden pixels: predicted variance / squared error {ratio:.2f}; the quarter of largest variance has {share:.0%} "
    f"of the squared error. Noise of {NOISE} is estimated as {coder.prior_.noise_std:.2f}: atoms do not fit exactly."
)
best = {kind: max(value for name, value in found.items() if name.startswith(kind)) for kind in ("OMP", "Lasso")}
assert ours > best["OMP"], "orthogonal matching pursuit with its best count is better"
assert ours > found["Lasso, α = 1.0"], "the penalty that the dictionary was learned with is better"
assert ours > best["Lasso"] - 0.7, "a Lasso whose penalty was chosen on the hidden pixels is far better"
assert 0.7 < ratio < 1.4, "the variance is not calibrated"
assert share > 0.4, "the variance does not rank the errors"

if len(sys.argv) > 1:
    image, var, right = (
        rows[:18].reshape(3, 6, 8, 8).swapaxes(1, 2).reshape(24, 48) for rows in (pixels, pixel_var, truth)
    )
    frame = np.tile(usual.reshape(8, 8), (3, 6))
    axes = uncertainty_map(image + frame, np.sqrt(var), right + frame)
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    axes.figure.savefig(Path(sys.argv[1]) / "dictionary_learning.png", dpi=110, bbox_inches="tight")
