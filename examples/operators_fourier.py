"""A photograph of 256 × 256 pixels from a quarter of its Fourier coefficients.

The lowest 3 % of the frequencies are measured, and others at random, the higher the fewer. Noise and prior are learned
from the one image::

    python examples/operators_fourier.py [folder]
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pywt

from bayeslista import FISTA, SpikeSlabNet
from bayeslista.metrics import nmse, pit
from bayeslista.operators import PartialFourier, Wavelet

SIDE, NOISE = 256, 0.01

# %%
# The mask, in the order of ``numpy.fft.fft2``.
random = np.random.default_rng(0)
frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(SIDE), np.fft.fftfreq(SIDE)))
order = np.argsort(frequency.ravel(), kind="stable")
n_low = int(0.03 * SIDE**2)
density = (frequency.ravel()[order[n_low:]] + 0.02) ** -2.0
more = random.choice(order[n_low:], int(0.11 * SIDE**2), replace=False, p=density / density.sum())
mask = np.zeros(SIDE**2, bool)
mask[order[:n_low]] = True
mask[more] = True  # a frequency comes with its opposite, so that 11 % are 22
fourier, wavelet = PartialFourier((SIDE, SIDE), mask.reshape(SIDE, SIDE)), Wavelet((SIDE, SIDE), "db4")

# %%
# What is measured is complex; `observe` makes real observations of it.
camera = np.asarray(pywt.data.camera(), float).reshape(SIDE, 2, SIDE, 2).mean(axis=(1, 3)) / 255
measured = np.fft.fft2(camera, norm="ortho")
observations = fourier.observe(measured)[None]
observations += NOISE * random.standard_normal(observations.shape)
operator = fourier @ wavelet
print(f"observed: {operator.shape[0] / SIDE**2:.0%} of the numbers")

# %%
# The posterior, and FISTA with the best of seven penalties, which nobody would know.
dist = SpikeSlabNet(mode="fast", design_matrix=operator).fit(observations).predict_dist(observations)
codes = wavelet.rmatvec(camera.reshape(1, -1))
largest = np.max(np.abs(operator.rmatvec(observations)))
lassos = [
    FISTA(150, design_matrix=operator, shrinkage=share * largest).fit(observations).predict(observations)
    for share in np.logspace(-5, -2, 7)
]
errors = {"FISTA": min(nmse(codes, each) for each in lassos), "posterior mean": nmse(codes, dist.mean())}
inside = float(np.mean(np.abs(pit(dist, codes) - 0.5) < 0.45))
print(", ".join(f"{name}: {error:.4f}" for name, error in errors.items()), f"in the central 90 %: {inside:.1%}")
figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
filled = fourier.rmatvec(observations)
for axis, title, image in zip(
    axes,
    ("photograph", "zeros for what is missing", "posterior mean"),
    (camera, filled, wavelet.matvec(dist.mean())),
    strict=True,
):
    axis.imshow(image.reshape(SIDE, SIDE), cmap="gray", vmin=0, vmax=1)
    axis.set_title(title)
    axis.axis("off")
if len(sys.argv) > 1:
    figure.savefig(Path(sys.argv[1]) / "operators_fourier.png", dpi=120)

# What is claimed.
assert errors["posterior mean"] < errors["FISTA"]
assert 0.85 < inside < 0.95
