r"""The linear minimum mean square error (LMMSE) estimator, the start of learning.

With codes of covariance C and noise of variance σ², :math:`W = C X^T (X C X^T + \sigma^2 I)^{-1}` is the best linear
map from observations to codes. C is the covariance of the training codes, shrunk towards its diagonal or
a multiple of the identity by an amount that cross-validation chooses.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_AMOUNTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
_FOLDS = 5
_NOISE_FLOOR = 1e-6  # of σ², relative to the mean square of the observations
_MOST_VALIDATION_PAIRS = 256
# Thresholds to choose from, in units of the codes' root mean square.
SHRINKAGES = tuple((0.01 * 2.0 ** np.arange(7)).tolist())


class EncoderFold(NamedTuple):
    """An encoder, and validation pairs that it was not estimated from."""

    encoder: Float[np.ndarray, "D K"]
    observations: Float[np.ndarray, "n K"]
    codes: Float[np.ndarray, "n D"]


def lmmse_folds(
    design_matrix: Float[np.ndarray, "K D"],
    Y: Float[np.ndarray, "n K"],
    B: Float[np.ndarray, "n D"],
    noise_var: Float[np.ndarray, " K"] | None = None,
) -> tuple[Float[np.ndarray, "D K"], list[EncoderFold]]:
    """The LMMSE encoder in double precision, and one estimated without each cross-validation fold, with that fold.

    σ² is by default the mean square of the residuals. Folds are rows 0, 5, 10, …, then 1, 6, 11, …; from a single pair
    there is one, with that pair. Without signal or noise the encoder is zero.
    """
    design_matrix, Y, B = (np.asarray(part, np.float64) for part in (design_matrix, Y, B))
    if noise_var is None:
        noise_var = np.full(Y.shape[1], np.mean((Y - B @ design_matrix.T) ** 2))
    noise_var = np.maximum(noise_var, _NOISE_FLOOR * np.mean(Y**2))
    if not (noise_var.any() and B.any()):
        nothing = np.zeros(design_matrix.T.shape)
        return nothing, [EncoderFold(nothing, Y, B)]

    def encoder(cross_covariance: np.ndarray) -> np.ndarray:
        """W = C Xᵀ (X C Xᵀ + σ² I)⁻¹ from C Xᵀ."""
        gram = design_matrix @ cross_covariance
        # Relative to the size of the matrix, which is singular where observations repeat each other.
        ridge = noise_var + _NOISE_FLOOR * float(np.mean(np.diag(gram)))
        return np.linalg.solve(gram + np.diag(ridge), cross_covariance.T).T

    if len(Y) == 1:
        # Without validation pairs: the candidate with the fewest parameters.
        only = encoder(_candidates(design_matrix, B)[-1])
        return only, [EncoderFold(only, Y, B)]
    fold = np.arange(len(Y)) % min(_FOLDS, len(Y))
    folds = [fold == i for i in range(max(fold) + 1)]
    errors = np.zeros(len(_AMOUNTS) + 1)  # cross-validation of the shrinkage of C
    for held_out in folds:
        for i, cross_covariance in enumerate(_candidates(design_matrix, B[~held_out])):
            errors[i] += np.sum((Y[held_out] @ encoder(cross_covariance).T - B[held_out]) ** 2)
    best = int(np.argmin(errors))
    encoders = [encoder(_candidates(design_matrix, B[~held_out])[best]) for held_out in folds]
    fold_encoders = [EncoderFold(W, Y[held_out], B[held_out]) for W, held_out in zip(encoders, folds, strict=True)]
    return encoder(_candidates(design_matrix, B)[best]), fold_encoders


def step_size_and_shrinkage(
    design_matrix: Float[np.ndarray, "K D"],
    validation: Sequence[EncoderFold],
    n_layers: int,
    shrinkages: Sequence[float] = SHRINKAGES,
) -> tuple[float, float]:
    r"""Step size in 1, 1/2, … 1/L and threshold of least validation error, for the untrained network.

    With a threshold near zero, :math:`\hat\beta \leftarrow \hat\beta + W (y - X \hat\beta)` moves from the LMMSE
    estimate to least squares, noise included; a smaller step size is early stopping.
    """
    X, most = np.asarray(design_matrix, np.float64), -(-_MOST_VALIDATION_PAIRS // len(validation))

    def error(step_size: float, shrinkage: float) -> float:
        total = 0.0
        for fold in validation:
            W, Y, B = (np.asarray(part, np.float64) for part in (fold.encoder, *(pair[:most] for pair in fold[1:])))
            code = np.zeros_like(B)
            for _ in range(n_layers):
                code += (Y - code @ X.T) @ (step_size * W.T)
                code -= np.clip(code, -shrinkage, shrinkage)
            total += float(np.sum((code - B) ** 2))
        return float(np.nan_to_num(total, nan=np.inf))

    step_size, best, chosen = 1.0, np.inf, (1.0, shrinkages[0])
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            errors = [error(step_size, shrinkage) for shrinkage in shrinkages]
            if best < min(errors):
                return chosen
            if min(errors) < best:
                best, chosen = min(errors), (step_size, shrinkages[int(np.argmin(errors))])
            if step_size <= 1 / n_layers:
                return chosen
            step_size = max(0.5 * step_size, 1 / n_layers)


def _candidates(design_matrix: Float[np.ndarray, "K D"], B: Float[np.ndarray, "n D"]) -> list[np.ndarray]:
    """C Xᵀ for the covariance shrunk by each amount, and last for a multiple of the identity."""
    sampled = B.T @ (B @ design_matrix.T) / len(B)
    power = np.mean(B * B, axis=0)
    independent = (power + 1e-3 * np.mean(power))[:, None] * design_matrix.T
    shrunk = [(1 - amount) * sampled + amount * independent for amount in _AMOUNTS]
    return [*shrunk, np.mean(power) * design_matrix.T]
