"""Digits of which a third of the pixels is hidden, filled in by a learned dictionary, with a map of the doubt.

scikit-learn learns a dictionary from whole digits; SparseCodingTransformer then finds codes of others from 40 noisy
pixels of 64, and says how sure it is of the pixels that it has not seen. Nothing is tuned, and no code is known. Run it
with a folder to save the picture in:

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


# Only what atoms show in pixels that are seen can explain these; whole atoms then tell the others.
network = SpikeSlabNet(mode="fast", calibration_steps=0)
coder = SparseCodingTransformer(atoms[:, seen], estimator=network, random_state=0).fit(Y_known)
codes = coder.transform_dist(Y_new)
pixels, pixel_var = codes.mean() @ atoms, codes.var() @ atoms**2
ours = quality(pixels)
print(f"{'SparseCodingTransformer':30} {ours:.1f} dB")

rivals = {f"OMP, {n} atoms": {"transform_n_nonzero_coefs": n} for n in (2, 3, 4, 6)}
rivals |= {
    f"Lasso, α = {a}": {"transform_algorithm": "lasso_lars", "transform_alpha": a} for a in (0.05, 0.1, 0.3, 1.0)
}
found = {name: quality(SparseCoder(atoms[:, seen], **each).transform(Y_new) @ atoms) for name, each in rivals.items()}
for name, value in found.items():
    print(f"{'SparseCoder: ' + name:30} {value:.1f} dB")
print(f"{'the mean digit':30} {quality(np.zeros_like(truth)):.1f} dB")

error, said = ((pixels - truth) ** 2)[:, hidden], pixel_var[:, hidden]
ratio = said.mean() / error.mean()
doubtful = said > np.quantile(said, 0.75)
share = error[doubtful].sum() / error.sum()
print(
    f"Hidden pixels: predicted variance / squared error {ratio:.2f}; the quarter of them in most doubt has {share:.0%} "
    f"of the squared error. The noise of {NOISE} looks like {coder.prior_.noise_std:.2f}: no atoms fit a digit exactly."
)
best = {kind: max(value for name, value in found.items() if name.startswith(kind)) for kind in ("OMP", "Lasso")}
assert ours > best["OMP"], "orthogonal matching pursuit with its best count is better"
assert ours > found["Lasso, α = 1.0"], "the penalty that the dictionary was learned with is better"
assert ours > best["Lasso"] - 0.7, "a Lasso whose penalty was chosen knowing the truth is far better"
assert 0.7 < ratio < 1.4, "it does not know how wrong it is"
assert share > 0.4, "it does not know where it is wrong"

if len(sys.argv) > 1:
    image, var, right = (
        rows[:18].reshape(3, 6, 8, 8).swapaxes(1, 2).reshape(24, 48) for rows in (pixels, pixel_var, truth)
    )
    frame = np.tile(usual.reshape(8, 8), (3, 6))
    axes = uncertainty_map(image + frame, np.sqrt(var), right + frame)
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    axes.figure.savefig(Path(sys.argv[1]) / "dictionary_learning.png", dpi=110, bbox_inches="tight")
