"""Weights of a proximal gradient step, and ridge regression for the design matrix."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayeslista.numerics.precision import common_dtype

_STEP_MARGIN = 1.01  # τ / ‖X‖₂²
_RIDGES = np.logspace(-12, 0, 25)  # candidates, relative to the largest eigenvalue
_SMALLEST_FREEDOM = 1e-14  # 1 − leverage, where the residual is divided by it


class ProximalWeights(NamedTuple):
    """Weights of one proximal gradient step: ``W = Xᵀ/τ``, ``S = I − W X`` and ``τ``."""

    encoder: Float[np.ndarray, "D K"]
    recurrent: Float[np.ndarray, "D D"]
    step_inverse: float


def ista_weights(design_matrix: ArrayLike) -> ProximalWeights:
    """Weights of the proximal gradient step with ``τ = 1.01 ‖X‖₂²``; ``τ = 1`` where X is zero."""
    dtype = common_dtype(design_matrix)
    X = np.asarray(design_matrix, np.float64)
    # Computed on the matrix at unit scale, so that its square neither overflows nor underflows.
    scale = float(np.max(np.abs(X))) or 1.0
    unit = X / scale
    norm = _STEP_MARGIN * float(np.linalg.norm(unit, 2)) ** 2 or 1.0
    encoder = unit.T / norm
    recurrent = np.eye(X.shape[1]) - encoder @ unit
    return ProximalWeights((encoder / scale).astype(dtype), recurrent.astype(dtype), norm * scale * scale)


def estimate_design_matrix(Y: ArrayLike, B: ArrayLike) -> Float[np.ndarray, "K D"]:
    """Ridge regression of observations on codes; the ridge minimises generalised cross-validation (GCV)."""
    return estimate_design_matrix_and_noise(Y, B)[0]


def estimate_design_matrix_and_noise(
    Y: ArrayLike, B: ArrayLike
) -> tuple[Float[np.ndarray, "K D"], Float[np.ndarray, " K"]]:
    """The ridge estimate of X, and the mean squared leave-one-out residual (noise, estimation error) of every row."""
    dtype = common_dtype(Y, B)
    observations, codes = np.asarray(Y, np.float64), np.asarray(B, np.float64)
    codes, code_scale = _unit_columns(codes)
    observations, observation_scale = _unit_columns(observations)
    # Ridge by GCV: minimise ‖residual‖² / (n − Σ s²/(s² + ridge))² over the candidates, s the singular values.
    left, singular, right = np.linalg.svd(codes, full_matrices=False)
    projected = left.T @ observations
    unexplained = np.sum((observations - left @ projected) ** 2)
    power = singular**2
    ridges = _RIDGES * (power[0] or 1.0)
    kept = power / (power + ridges[:, None])
    residual = unexplained + ((1 - kept) ** 2) @ np.sum(projected**2, axis=1)
    ridge = ridges[np.argmin(residual / (len(codes) - kept.sum(axis=1)) ** 2)]
    coefficients = right.T @ ((singular / (power + ridge))[:, None] * projected)
    coefficients[~codes.any(axis=0)] = 0.0  # components that are never active
    # Leave-one-out residuals r / (1 − leverage). Both are summed without differences: they may be as small as the
    # ridge.
    left_out = ridge / (power + ridge)
    freedom = (left * left) @ left_out + np.maximum(1 - np.sum(left * left, axis=1), 0)
    residuals = left @ (left_out[:, None] * projected) + (observations - left @ projected)
    residuals = residuals / np.maximum(freedom, _SMALLEST_FREEDOM)[:, None]
    return (
        (coefficients.T * observation_scale[:, None] / code_scale).astype(dtype),
        (np.mean(residuals**2, axis=0) * observation_scale**2).astype(dtype),
    )


def explains(
    better: Float[np.ndarray, "K D"],
    than: Float[np.ndarray, "K D"],
    Y: Float[np.ndarray, "n K"],
    B: Float[np.ndarray, "n D"],
) -> bool:
    """Whether one design matrix has a smaller mean squared residual than another, by more than a standard error."""
    gain = np.mean((Y - B @ than.T) ** 2 - (Y - B @ better.T) ** 2, axis=1)
    return bool(gain.mean() > gain.std() / np.sqrt(len(gain)))


def _unit_columns(values: Float[np.ndarray, "n d"]) -> tuple[np.ndarray, np.ndarray]:
    """Columns divided by their root mean square, and the divisors; 1 for a column of zeros."""
    largest = np.max(np.abs(values), axis=0)
    largest = np.where(largest > 0, largest, 1.0)
    relative = np.sqrt(np.mean((values / largest) ** 2, axis=0))
    scale = largest * np.where(relative > 0, relative, 1.0)
    return values / scale, scale
