"""Convergence of Markov chains: split R-hat and effective sample size (Vehtari et al., Bayesian Analysis, 2021)."""

import numpy as np
from numpy.typing import NDArray


def split_rhat_ess(draws: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Split R-hat and effective sample size of series (n_series, n_chains, n_draws); 1 and n for constant ones."""
    half = draws.shape[2] // 2
    x = np.concatenate([draws[:, :, :half], draws[:, :, -half:]], axis=1)
    m, n = x.shape[1:]
    means = x.mean(axis=2)
    x = x - means[:, :, None]
    # Autocovariance of every half chain by the FFT, then their mean.
    size = 1 << (2 * n - 1).bit_length()
    power = np.abs(np.fft.rfft(x, size, axis=2)) ** 2
    covariance = np.fft.irfft(power, size, axis=2)[:, :, :n].mean(axis=1) / n
    within = covariance[:, 0] * n / (n - 1)
    total = covariance[:, 0] + means.var(axis=1, ddof=1)
    # Constant up to the round-off of a mean.
    level = np.abs(means).max(axis=1, initial=0.0)
    varies = total > (1e-12 * level) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = np.where(varies, np.sqrt(total / within), 1.0)
        rho = 1.0 - (within[:, None] - covariance) / total[:, None]
    rho[:, 0] = 1.0
    # Geyer's initial monotone sequence: sums of pairs, as long as they are positive, made to decrease.
    pairs = rho[:, 0 : n - n % 2 : 2] + rho[:, 1::2]
    positive = np.cumprod(pairs > 0.0, axis=1, dtype=bool)
    time = -1.0 + 2.0 * np.sum(np.where(positive, np.minimum.accumulate(pairs, axis=1), 0.0), axis=1)
    ess = m * n / np.maximum(time, 1.0 / np.log10(max(m * n, 10)))
    return rhat, np.where(varies, ess, float(m * n))
