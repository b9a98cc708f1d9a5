r"""Noise as sensors have it: whitening of a given covariance, and noise variances of sensors learned from residuals.

Noise of covariance :math:`\Sigma` is white, of variance :math:`c^2 = \mathrm{tr}\,\Sigma / K`, once observations and
matrix are multiplied by T with :math:`T \Sigma T^T = c^2 I`. Where :math:`\Sigma` is singular, directions without noise
get a little; those that no column of the matrix reaches say nothing of the code, and are left out.

Sums of squared residuals :math:`S_k \sim \sigma_k^2 \chi^2_\nu` teach variances that have an inverse gamma prior of
shape a and scale b. Both maximise the evidence; one common variance is the limit :math:`a \to \infty`, and is
kept unless the evidence against it is strong.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import gammaln

LEAST_STD = 1e-5  # noise of a direction, in units of the largest
_UNREACHED = 1e-8  # norm of a direction's row of the matrix, in units of the matrix's: no column reaches it
# Twice the log evidence for different variances: sensors that are alike exceed it once in two hundred fits.
_STRONG = 6.6
_LEAST_RESIDUAL = 1e-9  # of the signal's power: smaller ones are rounding


class Whitening(NamedTuple):
    """T and its inverse."""

    transform: Float[np.ndarray, "R K"]
    inverse: Float[np.ndarray, "K R"]

    def apply(self, Y: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n R"]:
        """Whitened observations; row by row, since bits of a product depend on how many rows there are."""
        scale = self.scale()
        return Y * scale if scale is not None else np.array([self.transform @ y for y in Y]).reshape(len(Y), -1)

    def scale(self) -> Float[np.ndarray, " K"] | None:
        """The diagonal of T where that is all: every sensor has noise of its own."""
        T = self.transform
        if T.shape[0] != T.shape[1] or np.count_nonzero(T) > len(T):
            return None
        diagonal = np.diag(T)
        return diagonal if np.all(diagonal > 0) else None


def whitening_of(
    noise_covariance: Float[np.ndarray, "K K"], design_matrix: Float[np.ndarray, "K D"] | None = None
) -> tuple[Whitening | None, float]:
    """The whitening of a covariance, and the variance of the noise after it; None where it is white."""
    covariance = np.asarray(noise_covariance, np.float64)
    unit = float(np.mean(np.diag(covariance)))
    if unit <= 0 or np.array_equal(covariance, unit * np.eye(len(covariance))):
        return None, max(unit, 0.0)
    shape = covariance / unit
    if np.count_nonzero(shape - np.diag(np.diag(shape))) == 0:
        return diagonal_whitening(np.sqrt(np.diag(shape))), unit
    values, vectors = np.linalg.eigh(shape)
    least = LEAST_STD**2 * values[-1]
    if values[0] >= least:
        root = np.linalg.cholesky(shape)
        return Whitening(np.linalg.inv(root), root), unit
    kept = values >= least
    if design_matrix is None:
        kept[:] = True
    else:
        reached = np.linalg.norm(vectors.T @ design_matrix, axis=1)
        kept |= reached > _UNREACHED * np.linalg.norm(design_matrix)
    deviation = np.sqrt(np.maximum(values, least))[kept]
    return Whitening(vectors[:, kept].T / deviation[:, None], vectors[:, kept] * deviation), unit


def diagonal_whitening(deviations: Float[np.ndarray, " K"]) -> Whitening:
    """For noise of a standard deviation a sensor."""
    sizes = np.maximum(deviations, LEAST_STD * np.max(deviations))
    return Whitening(np.diag(1 / sizes), np.diag(sizes))


def sensor_variances(squares: Float[np.ndarray, " K"], freedom: float) -> Float[np.ndarray, " K"] | None:
    """Noise variances from sums of squared residuals; None where sensors may well be alike."""
    squares = np.asarray(squares, np.float64)
    common = float(np.mean(squares)) / max(freedom, 1.0)
    if len(squares) < 2 or freedom < 1 or common <= 0:
        return None
    ratio = squares / common

    def evidence(point: Any) -> float:
        a, b = np.exp(point)
        half = 0.5 * freedom
        each = gammaln(a + half) - gammaln(a) + a * np.log(b) - (a + half) * np.log(b + 0.5 * ratio)
        return float(np.sum(each))

    alike = float(-0.5 * np.sum(ratio))
    start = min((np.log([a, a]) for a in (0.5, 2.0, 10.0, 50.0)), key=lambda point: -evidence(point))
    found = minimize(lambda point: -evidence(np.clip(point, -10, 15)), start, method="Nelder-Mead")
    a, b = np.exp(np.clip(found.x, -10, 15))
    if 2 * (evidence(np.log([a, b])) - alike) < _STRONG:
        return None
    return common * (b + 0.5 * ratio) / (a + 0.5 * freedom)


def worth_whitening(residual: float, power: float) -> bool:
    """Whether residuals are more than rounding."""
    return residual > _LEAST_RESIDUAL * power
