r"""Checks of posterior answers against the data that they explain.

An answer with mean :math:`\hat\beta` leaves the residual :math:`r = y - X\hat\beta`. Under the model
:math:`\sum_k r_k^2 / \sigma_k^2` is at most chi-square with K degrees of freedom, since the answer was chosen to
explain y, and :math:`\hat\beta` has at most the energy of codes of the prior. An answer that fails either has missed
the posterior, or the model does not suit the signal.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, expit, logit

from bayeslista.spike_slab.config import CHECKS


class PredictiveCheck(NamedTuple):
    """One entry a signal."""

    chi_square: NDArray[np.float64]  # mean over the sensors of the squared residual in units of the noise variance
    tail_probability: NDArray[np.float64]  # of a larger sum of squares, were the residual the noise
    energy: NDArray[np.float64]  # of the predicted code, in units of what the prior expects
    posterior_variance_ratio: NDArray[np.float64]  # posterior over prior variance

    def failed(self, most_energy: float) -> NDArray[np.bool_]:
        """Whether the residual or the code is larger than the model allows."""
        unexplained = (self.tail_probability < CHECKS.tail_probability) & (self.chi_square > 1)
        return unexplained | (self.energy > most_energy)

    def overflowed(self) -> NDArray[np.bool_]:
        """Whether the squares of an answer are no finite numbers."""
        return ~np.isfinite(self.chi_square) | ~np.isfinite(self.energy) | ~np.isfinite(self.posterior_variance_ratio)


def check_answers(
    Y: NDArray[Any],
    mean: NDArray[Any],
    var: NDArray[Any],
    design_matrix: NDArray[Any],
    noise_var: NDArray[Any] | float,
    prior_power: NDArray[Any] | float,
    design_covariance: NDArray[Any] | None = None,
) -> PredictiveCheck:
    """The check of answers with posterior moments, under noise of one variance or one a sensor."""
    Y, mean, var = (np.asarray(part, np.float64) for part in (Y, mean, var))
    design_var: Any = 0.0
    if design_covariance is not None:
        # Var(x_k^T β) of a learned row: σ² (β̂^T P β̂ + tr P V).
        design_var = np.sum((mean @ design_covariance) * mean, axis=1) + var @ np.diag(design_covariance)
        design_var = design_var[:, None]
    return check_residuals(Y, Y - mean @ design_matrix.T, mean, var, noise_var, prior_power, design_var)


def check_residuals(
    Y: NDArray[Any],
    residual: NDArray[Any],
    mean: NDArray[Any],
    var: NDArray[Any],
    noise_var: NDArray[Any] | float,
    prior_power: NDArray[Any] | float,
    design_var: NDArray[Any] | float = 0.0,
) -> PredictiveCheck:
    """The check of answers that leave a residual, whose noise is wider by the variance of the design."""
    K, D = Y.shape[1], mean.shape[1]
    # Residuals of next to nothing count as explained: layers in single precision do not resolve them.
    floor = CHECKS.least_noise * np.mean(Y**2, axis=1, keepdims=True) + np.finfo(np.float64).tiny
    noise = (noise_var + floor) * (1 + design_var)
    chi_square = np.mean(residual**2 / noise, axis=1)
    chi_square[np.isnan(chi_square)] = np.inf
    power = np.broadcast_to(np.asarray(prior_power, np.float64), D)
    return PredictiveCheck(
        chi_square,
        chdtrc(K, K * chi_square),
        np.sum(mean**2, axis=1) / power.sum(),
        var.sum(axis=1) / power.sum(),
    )


def largest_energy(prob_active: NDArray[Any] | float, slab: Any, n_components: int) -> float:
    """Energy of a predicted code, in units of what the prior expects, beyond which an answer fails its check.

    The mean plus so many standard deviations of the energy of codes, times a factor; on the paper's problem the largest
    of 2,000 codes is 3.7 to 6.0 standard deviations above the mean (20 seeds, 4.7 on average).
    """
    unit = float(np.max(slab.var + slab.mean**2))  # the answer has no unit: no square below overflows
    mean, var = slab.mean.T / np.sqrt(unit), slab.var.T / unit
    mean, var = (np.broadcast_to(part, (n_components, len(slab.weight))) for part in (mean, var))
    prob = np.broadcast_to(np.asarray(prob_active, np.float64), n_components)
    square = prob * ((var + mean**2) @ slab.weight)
    fourth = prob * ((3 * var**2 + 6 * var * mean**2 + mean**4) @ slab.weight)
    deviation = np.sqrt(np.sum(fourth - square**2)) / np.sum(square)
    return float(CHECKS.energy_factor * (1 + CHECKS.energy_deviations * deviation))


def widen(
    chi_square: NDArray[Any],
    prob_active: NDArray[Any],
    slab_var: NDArray[Any],
    prior_prob: NDArray[Any] | float,
    prior_var: NDArray[Any] | float,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """P(active) and variances of slabs as if the noise variance were χ² times larger (a power likelihood).

    Log-odds and precisions are the prior's plus what the data add; the latter is divided by χ².
    """
    factor = 1 / np.maximum(chi_square, 1.0)[:, None]
    start = logit(prior_prob)
    chance = expit(start + factor * (logit(prob_active) - start))
    information = np.maximum(1 / slab_var - 1 / np.asarray(prior_var), 0.0)
    return chance, np.maximum(1 / (1 / np.asarray(prior_var) + factor * information), slab_var)
