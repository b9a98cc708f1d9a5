"""Deblurring of a photograph in a wavelet basis, with a map of the uncertainty.

The blur is an operator, a convolution by the fast Fourier transform, and so is the wavelet synthesis: no matrix of
65,536 columns is formed. Noise and prior, one scale and probability for each subband, are learned from the one image::

    python examples/operators_deblurring.py [folder]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pywt

from bayeslista import SpikeSlabNet
from bayeslista.operators import Convolution, Wavelet

SIDE, NOISE = 256, 0.005

# %%
# The photograph, blurred by a Gaussian of 1.5 pixels.
camera = np.asarray(pywt.data.camera(), float).reshape(SIDE, 2, SIDE, 2).mean(axis=(1, 3)) / 255
offsets = np.arange(-6, 7)
line = np.exp(-0.5 * (offsets / 1.5) ** 2)
blur = Convolution(np.outer(line, line) / line.sum() ** 2, (SIDE, SIDE))
wavelet = Wavelet((SIDE, SIDE), "db4")
random = np.random.default_rng(0)
blurred = blur.matvec(camera.reshape(1, -1)) + NOISE * random.standard_normal((1, SIDE**2))

# %%
# `blur @ wavelet` maps wavelet coefficients to the blurred image.
model = SpikeSlabNet(mode="fast", design_matrix=blur @ wavelet).fit(blurred)
dist = model.predict_dist(blurred)
sharp = wavelet.matvec(dist.mean()).reshape(SIDE, SIDE)

# %%
# Draws of the coefficients become images, whose standard deviation is the uncertainty of every pixel.
draws = wavelet.matvec(dist.sample(50, random_state=0)[:, 0])
spread = draws.std(axis=0).reshape(SIDE, SIDE)


def error(image: np.ndarray) -> float:
    """Root mean square error of the grey values."""
    return float(np.sqrt(np.mean((image.reshape(SIDE, SIDE) - camera) ** 2)))


print(f"blurred: {error(blurred):.4f}, deblurred: {error(sharp):.4f}, expected: {np.sqrt(np.mean(spread**2)):.4f}")
print(f"noise: {NOISE}, learned: {model.noise_std_:.4f}")
figure, axes = plt.subplots(1, 4, figsize=(12, 3.2), layout="constrained")
for axis, title, image in zip(
    axes,
    ("photograph", "blurred", "posterior mean", "standard deviation"),
    (camera, blurred.reshape(SIDE, SIDE), sharp, spread),
    strict=True,
):
    axis.imshow(image, cmap="viridis" if title == "standard deviation" else "gray")
    axis.set_title(title)
    axis.axis("off")
if len(sys.argv) > 1:
    figure.savefig(Path(sys.argv[1]) / "operators_deblurring.png", dpi=120)

# What is claimed: sharper than before, and most where it is sure.
assert error(sharp) < 0.9 * error(blurred)
wrong = np.abs(sharp - camera)
sure = spread < np.median(spread)
assert wrong[sure].mean() < 0.8 * wrong[~sure].mean()
