r"""Dependent codes, such as pixels: a Gaussian base with a spike and slab for every coefficient.

The prior is a Gaussian :math:`N(\mu, C)` whose margins are exchanged for spikes and slabs :math:`f_d`,

.. math:: p(\beta) \propto N(\beta; \mu, C) \prod_d \frac{f_d(\beta_d)}{N(\beta_d; \mu_d, C_{dd})}, \qquad
    C = (1 - \alpha) S + \alpha\, \mathrm{diag}\, S,

with the codes' covariance S, shrunk by an amount that cross-validation chooses. One EP layer is
then linear: the posterior of the Gaussian base, its margins taken out of it again, is a cavity for each coefficient,

.. math:: r = \mu + \frac{W (y - X \mu)}{1 - \rho}, \qquad t = \frac{\Sigma_{dd}}{1 - \rho}, \qquad
    \rho = \frac{\Sigma_{dd}}{C_{dd}}, \qquad W = C X^T (X C X^T + n I)^{-1}.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from bayeslista.spike_slab.denoiser import SlabPrior, slab_prior
from bayeslista.spike_slab.empirical_bayes import Statistics, add_statistics

__all__ = ["GaussianBase", "cavities", "choose_shrinkage", "coefficient_priors", "fit_gaussian_base"]

_AMOUNTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.0)
_NOISES = (1e-6, 1e-3, 1e-2)  # least noise, in units of the signal
_PSEUDO_COUNT = 3.0
_LEAST_POWER = 1e-3  # of a coefficient, in units of the mean over coefficients
_LEAST_INFORMATION = 1e-3  # of 1 − ρ


class GaussianBase(NamedTuple):
    """A linear layer that makes a cavity for every coefficient, and their priors."""

    mean: Float[np.ndarray, " D"]
    expected: Float[np.ndarray, " K"]  # X μ
    encoder: Float[np.ndarray, "D K"]  # W
    readout: Float[np.ndarray, " D"]  # 1 / (1 − ρ)
    cavity_var: Float[np.ndarray, " D"]
    prior: SlabPrior


def coefficient_priors(sums: Statistics, dtype: Any = np.float64) -> SlabPrior:
    """A spike and slab for each coefficient, drawn towards that of all by three pseudo-counts."""
    n, active, total, square = float(sums.n_pairs), sums.n_active, sums.code_sum, np.diag(sums.code_gram)
    n_active = max(float(active.sum()), 1.0)
    chance = (float(active.sum()) + 0.5) / (n * len(active) + 1.0)
    mean = float(total.sum()) / n_active
    var = max(float(square.sum()) / n_active - mean**2, 1e-4 * float(square.sum()) / n_active, 1e-12)
    count = active + _PSEUDO_COUNT
    means = (total + _PSEUDO_COUNT * mean) / count
    about = square - 2 * means * total + active * means**2
    variances = (np.maximum(about, 0.0) + _PSEUDO_COUNT * (var + (mean - means) ** 2)) / count
    chances = (active + _PSEUDO_COUNT * chance) / (n + _PSEUDO_COUNT)
    return slab_prior(chances, means[None], variances[None], n_components=len(active), dtype=dtype)


def fit_gaussian_base(
    sums: Statistics,
    design_matrix: Float[np.ndarray, "K D"],
    noise_var: float,
    shrinkage: float,
    least_noise: float = _NOISES[0],
    design_covariance: Float[np.ndarray, "D D"] | None = None,
    dtype: Any = np.float64,
) -> GaussianBase:
    """The linear layer for given pairs, matrix and noise."""
    encoder, covariance, mean = _linear_layer(sums, design_matrix, noise_var, shrinkage, least_noise, design_covariance)
    prior_var = np.diag(covariance)
    explained = np.einsum("dk,kd->d", encoder, design_matrix @ covariance) / prior_var  # 1 − ρ
    explained = np.clip(explained, _LEAST_INFORMATION, 1 - 1e-12)
    parts: Any = [mean, design_matrix @ mean, encoder, 1 / explained, prior_var * (1 - explained) / explained]
    parts = [*(part.astype(dtype) for part in parts), coefficient_priors(sums, dtype)]
    return GaussianBase(*parts)


def cavities(
    base: GaussianBase, observations: Float[np.ndarray, "n K"]
) -> tuple[Float[np.ndarray, "n D"], Float[np.ndarray, "n D"]]:
    """What observations say of every coefficient, apart from its own margin."""
    cavity_mean = base.mean + ((observations - base.expected) @ base.encoder.T) * base.readout
    return cavity_mean, np.broadcast_to(base.cavity_var, cavity_mean.shape)


def choose_shrinkage(
    folds: Sequence[Statistics],
    design_matrices: Sequence[Float[np.ndarray, "K D"]],
    noise_vars: Sequence[float],
    design_covariances: Sequence[Float[np.ndarray, "D D"] | None],
) -> tuple[float, float, float]:
    """Shrinkage and least noise of the linear layer by cross-validation, and the gain over none."""
    errors = np.zeros((len(_AMOUNTS), len(_NOISES)))
    for i, held_out in enumerate(folds):
        others = add_statistics(*(fold for j, fold in enumerate(folds) if j != i))
        for a, amount in enumerate(_AMOUNTS):
            for b, least in enumerate(_NOISES):
                layer = _linear_layer(others, design_matrices[i], noise_vars[i], amount, least, design_covariances[i])
                errors[a, b] += _squared_error(held_out, design_matrices[i], layer[0], layer[2])
    best = np.unravel_index(int(np.argmin(errors)), errors.shape)
    independent = float(errors[-1].min())
    gain = 1.0 - float(errors[best]) / independent if independent > 0 else 0.0
    return _AMOUNTS[best[0]], _NOISES[best[1]], gain


def _linear_layer(
    sums: Statistics, X: Any, noise_var: float, shrinkage: float, least_noise: float, design_covariance: Any
) -> tuple[Any, Any, Any]:
    """W, C and μ."""
    n = max(float(sums.n_pairs), 1.0)
    mean = sums.code_sum / n
    covariance = (1 - shrinkage) * (sums.code_gram / n - np.outer(mean, mean))
    power = np.maximum(np.diag(sums.code_gram) / n - mean**2, 0.0)
    power = power + _LEAST_POWER * np.mean(power) + 1e-12
    covariance[np.diag_indices_from(covariance)] = power
    # By the shrunk covariance: the codes that a matrix was learned from understate its variance.
    design_var = (
        0.0
        if design_covariance is None
        else float(np.sum(design_covariance * covariance) + mean @ design_covariance @ mean)
    )
    passed = X @ covariance
    seen = passed @ X.T
    noise = max(noise_var * (1 + max(design_var, 0.0)), least_noise * float(np.mean(np.diag(seen))), 1e-300)
    return np.linalg.solve(seen + noise * np.eye(len(X)), passed).T, covariance, mean


def _squared_error(sums: Statistics, X: Any, encoder: Any, mean: Any) -> float:
    """Of the linear layer on pairs of which only sums are information."""
    constant = mean - encoder @ (X @ mean)
    left = np.trace(sums.code_gram) - 2 * np.sum(encoder * sums.cross.T)
    left += np.sum((encoder @ sums.observed_gram) * encoder)
    left -= 2 * constant @ (sums.code_sum - encoder @ sums.observed_sum)
    return float(left + sums.n_pairs * constant @ constant)
