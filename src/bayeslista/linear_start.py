r"""The linear minimum mean square error estimator, where learning starts.

With codes of covariance C and noise of variance σ², :math:`W = C X^T (X C X^T + \sigma^2 I)^{-1}` is the best linear
map from observations to codes. C is the covariance of the training codes, shrunk towards its diagonal or towards a
multiple of the identity by an amount that cross-validation chooses.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

_AMOUNTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
_FOLDS = 5
_NOISE_FLOOR = 1e-6
_MOST_JUDGES = 256


def linear_mmse_encoder(
    design_matrix: Float[np.ndarray, "K D"],
    Y: Float[np.ndarray, "n K"],
    B: Float[np.ndarray, "n D"],
    noise_var: Float[np.ndarray, " K"] | None = None,
) -> Float[np.ndarray, "D K"]:
    """The linear minimum mean square error map from observations to codes.

    Parameters
    ----------
    design_matrix : array of shape (K, D)
        X.
    Y, B : array of shape (n, K) and (n, D)
        Pairs. Folds are consecutive in turn (row 0, 5, 10, … is the first), so shuffle rows that are in some order.
    noise_var : array of shape (K,), optional
        σ² of every observed value, which should hold the uncertainty of a matrix that was estimated, too. None takes
        one for all from the residuals of the pairs.

    Returns
    -------
    array of shape (D, K)
        W in double precision, all zero where there is nothing to learn from.

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
    design_matrix, Y, B = (np.asarray(part, np.float64) for part in (design_matrix, Y, B))
    if noise_var is None:
        noise_var = np.full(Y.shape[1], np.mean((Y - B @ design_matrix.T) ** 2))
    noise_var = np.maximum(noise_var, _NOISE_FLOOR * np.mean(Y**2))
    if not (noise_var.any() and B.any()):
        return np.zeros(design_matrix.T.shape)

    def encoder(covariance: np.ndarray) -> np.ndarray:
        towards = covariance @ design_matrix.T
        gram = design_matrix @ towards
        # Relative to its size, so that observations that repeat each other can still be solved for.
        ridge = noise_var + _NOISE_FLOOR * float(np.mean(np.diag(gram)))
        return np.linalg.solve(gram + np.diag(ridge), towards.T).T

    n_folds = min(_FOLDS, len(Y))
    errors = np.zeros(len(_AMOUNTS) + 1)
    for fold in range(n_folds if n_folds > 1 else 0):
        held_out = np.arange(len(Y)) % n_folds == fold
        for i, covariance in enumerate(_candidates(B[~held_out])):
            errors[i] += np.sum((Y[held_out] @ encoder(covariance).T - B[held_out]) ** 2)
    # Without anything to validate on, the last candidate assumes the least.
    best = int(np.argmin(errors)) if n_folds > 1 else len(_AMOUNTS)
    return encoder(_candidates(B)[best])


def pace_and_shrinkage(
    design_matrix: Float[np.ndarray, "K D"],
    encoder: Float[np.ndarray, "D K"],
    pairs: tuple[Float[np.ndarray, "n K"], Float[np.ndarray, "n D"]],
    n_layers: int,
    shrinkages: Sequence[float],
) -> tuple[float, float]:
    r"""How much of the encoder to apply in a layer, and the threshold, with which the untrained network does best.

    Layer after layer with a threshold near zero, :math:`\hat\beta \leftarrow \hat\beta + W (y - X \hat\beta)` goes from
    the best linear estimate to the least squares solution, noise and all. A slower pace stops it in time.

    Parameters
    ----------
    design_matrix : array of shape (K, D)
        X.
    encoder : array of shape (D, K)
        W at full pace.
    pairs : pair of arrays
        Observations and codes to judge by.
    n_layers : int
        Depth L of the network.
    shrinkages : sequence of float
        The thresholds to try.

    Returns
    -------
    pace, shrinkage : float
        Of all thresholds and of the paces 1, 1/2, 1/4, … 1/L, those with the least squared error.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.linear_start import pace_and_shrinkage
    >>> rng = np.random.default_rng(0)
    >>> B = rng.standard_normal((500, 3))
    >>> Y = B + rng.standard_normal((500, 3))  # the best map is 0.5; in 8 layers at 1/16 it is almost reached
    >>> pace_and_shrinkage(np.eye(3), 0.5 * np.eye(3), (Y, B), 8, [0.0])
    (0.125, 0.0)
    """
    X, W = np.asarray(design_matrix, np.float64), np.asarray(encoder, np.float64)
    Y, B = (np.asarray(part[:_MOST_JUDGES], np.float64) for part in pairs)

    def error(pace: float, shrinkage: float) -> float:
        code = np.zeros_like(B)
        for _ in range(n_layers):
            code = code + (Y - code @ X.T) @ (pace * W.T)
            code = np.sign(code) * np.maximum(np.abs(code) - shrinkage, 0)
        return float(np.nan_to_num(np.mean((code - B) ** 2), nan=np.inf))

    paces = [1.0]
    while paces[-1] > 1 / n_layers:
        paces.append(max(0.5 * paces[-1], 1 / n_layers))
    with np.errstate(over="ignore", invalid="ignore"):
        return min(((pace, shrinkage) for pace in paces for shrinkage in shrinkages), key=lambda pair: error(*pair))


def _candidates(B: Float[np.ndarray, "n D"]) -> list[np.ndarray]:
    """The covariance shrunk by each amount, and last a multiple of the identity."""
    second_moment = B.T @ B / len(B)
    power = np.diag(second_moment)
    diagonal = np.diag(power + 1e-3 * np.mean(power))
    shrunk = [(1 - amount) * second_moment + amount * diagonal for amount in _AMOUNTS]
    return [*shrunk, np.mean(power) * np.eye(len(power))]
