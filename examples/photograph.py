"""Compressive sensing of a photograph, and a map of the uncertainty of its reconstruction.

Models are trained on blocks of 8 × 8 pixels of one photograph, each with 32 random projections; another one is then
reconstructed from its projections alone. Run it with a folder to save the figure in::

    python examples/photograph.py [folder]
"""

import sys
from pathlib import Path

import numpy as np
from scipy.fft import idctn
from scipy.stats import spearmanr
from sklearn.datasets import load_sample_image
from sklearn.linear_model import RidgeCV

from bayeslista import BayesLISTA, SpikeSlabNet
from bayeslista.metrics import coverage, variance_ratio
from bayeslista.plots import uncertainty_map

SIDE, HEIGHT, WIDTH = 8, 208, 320
N_OBSERVED, NOISE, SMALLEST = 32, 0.01, 0.03  # grey values are from 0 to 1


def blocks(name: str) -> np.ndarray:
    """Grey values of a photograph at half its resolution, one block a row."""
    grey = load_sample_image(name).mean(axis=2)[: 2 * HEIGHT, : 2 * WIDTH] / 255
    grey = grey.reshape(HEIGHT, 2, WIDTH, 2).mean(axis=(1, 3))
    return grey.reshape(HEIGHT // SIDE, SIDE, WIDTH // SIDE, SIDE).swapaxes(1, 2).reshape(-1, SIDE * SIDE)


def image(rows: np.ndarray) -> np.ndarray:
    """Blocks put together again."""
    return rows.reshape(HEIGHT // SIDE, WIDTH // SIDE, SIDE, SIDE).swapaxes(1, 2).reshape(HEIGHT, WIDTH)


# A block is its mean, which is measured, and coefficients of a cosine basis, few of which are large: the code. High
# frequencies are weaker than low ones, so each is scaled by its root mean square in the first photograph.
basis = np.array([idctn(wave.reshape(SIDE, SIDE), norm="ortho").ravel() for wave in np.eye(SIDE * SIDE)])
random = np.random.default_rng(0)
sensing = random.standard_normal((N_OBSERVED, SIDE * SIDE)) / SIDE


def observe(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, projections of the rest, and its cosine coefficients, small ones set to zero."""
    mean = rows.mean(axis=1, keepdims=True)
    waves = (rows - mean) @ basis.T
    projections = (rows - mean) @ sensing.T + NOISE * random.standard_normal((len(rows), N_OBSERVED))
    return mean, projections, np.where(np.abs(waves) > SMALLEST, waves, 0.0)


known = blocks("china.jpg")
mean_known, Y_known, waves_known = observe(known)
truth = blocks("flower.jpg")
mean_new, Y_new, waves_new = observe(truth)
usual = np.sqrt(np.sum(waves_known**2, axis=0) / np.maximum(np.count_nonzero(waves_known, axis=0), 1))
usual = np.maximum(usual, SMALLEST)
B_known, B_new = waves_known / usual, waves_new / usual

order = random.permutation(len(B_known))
train, held_out = order[200:], order[:200]
matrix = sensing @ basis.T * usual
models = {
    "SpikeSlabNet": SpikeSlabNet(mode="fast", design_matrix=matrix, training="none", random_state=0),
    "BayesLISTA": BayesLISTA(10, design_matrix=matrix, random_state=0),
}
ridge = RidgeCV(np.geomspace(1e-4, 100, 13)).fit(Y_known[train], waves_known[train])
left_out = np.mean((known - mean_known - waves_known @ basis) ** 2)  # by leaving out small waves
quality = {"ridge regression": -10 * np.log10(np.mean((mean_new + ridge.predict(Y_new) @ basis - truth) ** 2))}
print(f"{'ridge regression':18} {quality['ridge regression']:.1f} dB")
figures = []
for name, model in models.items():
    model.fit(Y_known[train], B_known[train]).calibrate(Y_known[held_out], B_known[held_out])
    code = model.predict_dist(Y_new)
    pixels = mean_new + (code.mean() * usual) @ basis
    pixel_std = np.sqrt((code.var() * usual**2) @ basis**2 + left_out)
    quality[name] = -10 * np.log10(np.mean((pixels - truth) ** 2))

    error, predicted = (np.sqrt(np.mean(square, axis=1)) for square in ((pixels - truth) ** 2, pixel_std**2))
    agreement = spearmanr(error, predicted).statistic
    uncertain = predicted > np.quantile(predicted, 0.9)
    share = np.sum(error[uncertain] ** 2) / np.sum(error**2)
    print(
        f"{name:18} {quality[name]:.1f} dB; error and predicted deviation of blocks have a rank correlation of "
        f"{agreement:.2f}, the tenth of largest variance has {share:.0%} of the squared error; variance over it "
        f"{variance_ratio(code, B_new):.1f}; 90 % intervals hold {coverage(code, B_new):.0%}"
    )
    assert agreement > 0.7, "the map does not rank the errors"
    assert share > 0.5
    figures.append(uncertainty_map(image(pixels), image(pixel_std), image(truth)).figure)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        figures[-1].savefig(Path(sys.argv[1]) / f"photograph_{name}.png", dpi=110, bbox_inches="tight")
assert quality["BayesLISTA"] > quality["ridge regression"] > quality["SpikeSlabNet"] - 0.5
