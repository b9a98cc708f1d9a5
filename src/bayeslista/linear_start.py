r"""The linear minimum mean square error estimator, where learning starts.

With codes of covariance C and noise of variance σ², :math:`W = C X^T (X C X^T + \sigma^2 I)^{-1}` is the best linear
map from observations to codes. C is the covariance of the training codes, shrunk towards its diagonal or towards a
multiple of the identity by an amount that cross-validation chooses.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_AMOUNTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
_FOLDS = 5
_NOISE_FLOOR = 1e-6
_MOST_JUDGES = 256


class Trial(NamedTuple):
    """An encoder, and pairs that it was not made from, to judge it by."""

    encoder: Float[np.ndarray, "D K"]
    observations: Float[np.ndarray, "n K"]
    codes: Float[np.ndarray, "n D"]


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
    return linear_mmse_trials(design_matrix, Y, B, noise_var)[0]


def linear_mmse_trials(
    design_matrix: Float[np.ndarray, "K D"],
    Y: Float[np.ndarray, "n K"],
    B: Float[np.ndarray, "n D"],
    noise_var: Float[np.ndarray, " K"] | None = None,
) -> tuple[Float[np.ndarray, "D K"], list[Trial]]:
    """The same map, and others like it, each made without a fold of the pairs that can judge it.

    The pairs that a map was made from are no judges: with few of them it knows their codes by heart.

    Parameters
    ----------
    design_matrix, Y, B, noise_var
        As of :func:`linear_mmse_encoder`.

    Returns
    -------
    encoder : array of shape (D, K)
        W.
    trials : list of Trial
        One a fold; from a single pair, the map itself and that pair.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.linear_start import linear_mmse_trials
    >>> encoder, trials = linear_mmse_trials(np.eye(2), np.ones((20, 2)), np.ones((20, 2)))
    >>> [len(trial.codes) for trial in trials]
    [4, 4, 4, 4, 4]
    """
    design_matrix, Y, B = (np.asarray(part, np.float64) for part in (design_matrix, Y, B))
    if noise_var is None:
        noise_var = np.full(Y.shape[1], np.mean((Y - B @ design_matrix.T) ** 2))
    noise_var = np.maximum(noise_var, _NOISE_FLOOR * np.mean(Y**2))
    if not (noise_var.any() and B.any()):
        nothing = np.zeros(design_matrix.T.shape)
        return nothing, [Trial(nothing, Y, B)]

    def encoder(towards: np.ndarray) -> np.ndarray:
        gram = design_matrix @ towards
        # Relative to its size, so that observations that repeat each other can still be solved for.
        ridge = noise_var + _NOISE_FLOOR * float(np.mean(np.diag(gram)))
        return np.linalg.solve(gram + np.diag(ridge), towards.T).T

    if len(Y) == 1:
        # Without anything to validate on, the candidate that assumes the least.
        only = encoder(_candidates(design_matrix, B)[-1])
        return only, [Trial(only, Y, B)]
    fold = np.arange(len(Y)) % min(_FOLDS, len(Y))
    folds = [fold == i for i in range(max(fold) + 1)]
    errors = np.zeros(len(_AMOUNTS) + 1)
    for held_out in folds:
        for i, towards in enumerate(_candidates(design_matrix, B[~held_out])):
            errors[i] += np.sum((Y[held_out] @ encoder(towards).T - B[held_out]) ** 2)
    best = int(np.argmin(errors))
    encoders = [encoder(_candidates(design_matrix, B[~held_out])[best]) for held_out in folds]
    trials = [Trial(W, Y[held_out], B[held_out]) for W, held_out in zip(encoders, folds, strict=True)]
    return encoder(_candidates(design_matrix, B)[best]), trials


def pace_and_shrinkage(
    design_matrix: Float[np.ndarray, "K D"], trials: Sequence[Trial], n_layers: int, shrinkages: Sequence[float]
) -> tuple[float, float]:
    r"""How much of the encoder to apply in a layer, and the threshold, with which the untrained network does best.

    Layer after layer with a threshold near zero, :math:`\hat\beta \leftarrow \hat\beta + W (y - X \hat\beta)` goes from
    the best linear estimate to the least squares solution, noise and all. A slower pace stops it in time.

    Parameters
    ----------
    design_matrix : array of shape (K, D)
        X.
    trials : sequence of Trial
        W at full pace, with pairs to judge by: one, or several whose errors add up.
    n_layers : int
        Depth L of the network.
    shrinkages : sequence of float
        The thresholds to try.

    Returns
    -------
    pace, shrinkage : float
        Those with the least squared error, of all thresholds and of the paces 1, 1/2, 1/4, … 1/L as far as slower is
        better.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.linear_start import Trial, pace_and_shrinkage
    >>> rng = np.random.default_rng(0)
    >>> B = rng.standard_normal((500, 3))
    >>> Y = B + rng.standard_normal((500, 3))  # the best map is 0.5; in 8 layers at 1/16 it is almost reached
    >>> pace_and_shrinkage(np.eye(3), [Trial(0.5 * np.eye(3), Y, B)], 8, [0.0])
    (0.125, 0.0)
    """
    X, most = np.asarray(design_matrix, np.float64), -(-_MOST_JUDGES // len(trials))

    def error(pace: float, shrinkage: float) -> float:
        total = 0.0
        for trial in trials:
            W, Y, B = (np.asarray(part, np.float64) for part in (trial.encoder, *(pair[:most] for pair in trial[1:])))
            code = np.zeros_like(B)
            for _ in range(n_layers):
                code += (Y - code @ X.T) @ (pace * W.T)
                code -= np.clip(code, -shrinkage, shrinkage)
            total += float(np.sum((code - B) ** 2))
        return float(np.nan_to_num(total, nan=np.inf))

    pace, best, chosen = 1.0, np.inf, (1.0, shrinkages[0])
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            errors = [error(pace, shrinkage) for shrinkage in shrinkages]
            if best < min(errors):
                return chosen
            if min(errors) < best:
                best, chosen = min(errors), (pace, shrinkages[int(np.argmin(errors))])
            if pace <= 1 / n_layers:
                return chosen
            pace = max(0.5 * pace, 1 / n_layers)


def _candidates(design_matrix: Float[np.ndarray, "K D"], B: Float[np.ndarray, "n D"]) -> list[np.ndarray]:
    """C Xᵀ for the covariance shrunk by each amount, and last for a multiple of the identity."""
    sampled = B.T @ (B @ design_matrix.T) / len(B)
    power = np.mean(B * B, axis=0)
    independent = (power + 1e-3 * np.mean(power))[:, None] * design_matrix.T
    shrunk = [(1 - amount) * sampled + amount * independent for amount in _AMOUNTS]
    return [*shrunk, np.mean(power) * design_matrix.T]
