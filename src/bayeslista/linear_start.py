r"""The linear minimum mean square error estimator, where learning starts.

With codes of covariance C and noise of variance σ², :math:`W = C X^T (X C X^T + \sigma^2 I)^{-1}` is the best linear
map from observations to codes. C is the covariance of the training codes, shrunk towards its diagonal or towards a
multiple of the identity by an amount that cross-validation chooses.
"""

import numpy as np
from jaxtyping import Float

_AMOUNTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
_FOLDS = 5
_NOISE_FLOOR = 1e-6


def linear_mmse_encoder(
    design_matrix: Float[np.ndarray, "K D"], Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"]
) -> Float[np.ndarray, "D K"]:
    """The linear minimum mean square error map from observations to codes.

    Parameters
    ----------
    design_matrix : array of shape (K, D)
        X.
    Y, B : array of shape (n, K) and (n, D)
        Pairs. Folds are consecutive in turn (row 0, 5, 10, … is the first), so shuffle rows that are in some order.

    Returns
    -------
    array of shape (D, K)
        W, all zero where there is nothing to learn from.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.linear_start import linear_mmse_encoder
    >>> rng = np.random.default_rng(0)
    >>> B = rng.standard_normal((2000, 3))
    >>> Y = B + rng.standard_normal((2000, 3))  # as much noise as signal: halve what is observed
    >>> linear_mmse_encoder(np.eye(3), Y, B).round(1) + 0.0
    array([[0.5, 0. , 0. ],
           [0. , 0.5, 0. ],
           [0. , 0. , 0.5]])
    """
    noise_var = max(float(np.mean((Y - B @ design_matrix.T) ** 2)), _NOISE_FLOOR * float(np.mean(Y**2)))
    if noise_var == 0 or not B.any():
        return np.zeros(design_matrix.T.shape, design_matrix.dtype)

    def encoder(covariance: np.ndarray) -> np.ndarray:
        towards = covariance @ design_matrix.T
        gram = design_matrix @ towards
        # Relative to its size, so that observations that repeat each other can still be solved for.
        ridge = noise_var + _NOISE_FLOOR * float(np.mean(np.diag(gram)))
        return np.linalg.solve(gram + ridge * np.eye(len(gram)), towards.T).T

    n_folds = min(_FOLDS, len(Y))
    errors = np.zeros(len(_AMOUNTS) + 1)
    for fold in range(n_folds if n_folds > 1 else 0):
        held_out = np.arange(len(Y)) % n_folds == fold
        for i, covariance in enumerate(_candidates(B[~held_out])):
            errors[i] += np.sum((Y[held_out] @ encoder(covariance).T - B[held_out]) ** 2)
    # Without anything to validate on, the last candidate assumes the least.
    best = int(np.argmin(errors)) if n_folds > 1 else len(_AMOUNTS)
    return encoder(_candidates(B)[best])


def _candidates(B: Float[np.ndarray, "n D"]) -> list[np.ndarray]:
    """The covariance shrunk by each amount, and last a multiple of the identity."""
    second_moment = B.T @ B / len(B)
    power = np.diag(second_moment)
    diagonal = np.diag(power + 1e-3 * np.mean(power))
    shrunk = [(1 - amount) * second_moment + amount * diagonal for amount in _AMOUNTS]
    return [*shrunk, np.mean(power) * np.eye(len(power))]
