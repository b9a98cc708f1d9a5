"""Errors of predicted codes.

Every function takes ``B_true`` and ``B_pred`` with one code in a row. A 1-D array of length n is read as n
codes of a single coefficient, as scikit-learn reads a 1-D target.
"""

from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayeslista.numerics.checks import as_real, check_entries

__all__ = ["nmse", "nmse_db", "support_f_measure"]


def nmse(B_true: ArrayLike, B_pred: ArrayLike) -> float:
    r"""Relative error of a code, averaged over codes.

    :math:`\frac1n\sum_n \|\hat\beta_n-\beta_n\|_2 / \|\beta_n\|_2`: norms, not squares, as in the published
    BayesLISTA curves; :func:`nmse_db` is the squared measure. A true code that is all zeros has no relative
    error and is left out of the mean.

    Parameters
    ----------
    B_true : array-like of shape (n, D) or (n,)
        True codes.
    B_pred : array-like of the same shape
        Predicted codes.

    Returns
    -------
    float
        0 for perfect predictions, 1 for predictions of zero. If all true codes are zero, 0 if all
        predictions are, else an error.

    Examples
    --------
    >>> from bayeslista.metrics import nmse
    >>> nmse([[3.0, 4.0], [0.0, 2.0]], [[3.0, 4.0], [0.0, 1.0]])
    0.25
    """
    true, predicted = _check_codes(B_true, B_pred)
    size, error = row_norms(true), row_norms(predicted - true)
    informative = size > 0.0
    if not informative.any():
        return _score_without_signal(error, 0.0)
    with np.errstate(over="ignore"):
        relative = float(np.mean(error[informative] / size[informative]))
    if relative == np.inf:
        raise ValueError(
            "Codes in B_true are so near to zero that a relative error overflows. Score codes that hold a "
            "signal, or use an absolute error."
        )
    return relative


def nmse_db(B_true: ArrayLike, B_pred: ArrayLike) -> float:
    r"""Squared error over signal energy in decibels, as usual for unrolled networks.

    :math:`10\log_{10}\bigl(\sum_n\|\hat\beta_n-\beta_n\|_2^2 \big/ \sum_n\|\beta_n\|_2^2\bigr)`. Unlike
    :func:`nmse` it squares, and it averages error and energy before it divides: large codes weigh more, and
    zero codes count through their errors.

    Parameters
    ----------
    B_true : array-like of shape (n, D) or (n,)
        True codes.
    B_pred : array-like of the same shape
        Predicted codes.

    Returns
    -------
    float
        0 for predictions of zero, lower is better, −inf for perfect ones.

    Examples
    --------
    >>> from bayeslista.metrics import nmse_db
    >>> round(nmse_db([[10.0, 0.0]], [[9.0, 0.0]]), 6)
    -20.0
    """
    true, predicted = _check_codes(B_true, B_pred)
    size, error = row_norms(true.reshape(1, -1))[0], row_norms((predicted - true).reshape(1, -1))[0]
    if size == 0.0:
        return _score_without_signal(error, -np.inf)
    return float(20.0 * (np.log10(error) - np.log10(size))) if error > 0.0 else -np.inf


def support_f_measure(B_true: ArrayLike, B_pred: ArrayLike, threshold: float = 0.0) -> float:
    """F-measure of the recovered support, averaged over codes.

    For each code, the harmonic mean of precision and recall of ``|β̂| > threshold`` as a detector of
    ``β ≠ 0``: ``2 |both| / (|true| + |predicted|)``. A code whose true and predicted supports are both empty
    scores 1.

    Parameters
    ----------
    B_true : array-like of shape (n, D) or (n,)
        True codes; their support is what differs from zero.
    B_pred : array-like of the same shape
        Predicted codes.
    threshold : float, default=0.0
        Magnitude above which a predicted coefficient counts as active.

    Returns
    -------
    float
        Between 0, nothing found, and 1, the support is exact in every code.

    Examples
    --------
    >>> from bayeslista.metrics import support_f_measure
    >>> support_f_measure([[1.0, 0.0, 2.0]], [[0.9, 0.2, 0.0]])
    0.5
    >>> round(support_f_measure([[1.0, 0.0, 2.0]], [[0.9, 0.2, 0.0]], threshold=0.5), 4)
    0.6667
    """
    if not isinstance(threshold, Real) or not 0.0 <= threshold < np.inf:
        raise ValueError(f"threshold must be finite and at least 0, got {threshold}. Pass a magnitude.")
    true, predicted = _check_codes(B_true, B_pred)
    true_support, found = true != 0.0, np.abs(predicted) > threshold
    shared, total = (true_support & found).sum(axis=1), true_support.sum(axis=1) + found.sum(axis=1)
    return float(np.mean(np.where(total > 0, 2.0 * shared / np.maximum(total, 1), 1.0)))


def _check_codes(B_true: ArrayLike, B_pred: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two finite, non-empty double-precision arrays of one and the same shape (n, D)."""
    true, predicted = (as_real(name, B) for name, B in (("B_true", B_true), ("B_pred", B_pred)))
    if true.shape != predicted.shape:
        raise ValueError(
            f"B_true has shape {true.shape} and B_pred {predicted.shape}; they must agree. "
            f"Pass one predicted code for each true code."
        )
    if true.ndim not in (1, 2) or true.size == 0:
        raise ValueError(
            f"B_true and B_pred must have shape (n, D) or (n,) and at least one entry, got {true.shape}. "
            f"Put one code in each row."
        )
    for name, array in (("B_true", true), ("B_pred", predicted)):
        check_entries(np.isfinite(array), name, array, "be finite", "Drop or repair those codes.")
    rows = len(true)
    return true.astype(np.float64).reshape(rows, -1), predicted.astype(np.float64).reshape(rows, -1)


def row_norms(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Euclidean norm of each row, scaled first so that squares neither overflow nor vanish."""
    largest = np.abs(rows).max(axis=1)
    scale = np.where(largest > 0.0, largest, 1.0)
    return scale * np.linalg.norm(rows / scale[:, None], axis=1)


def _score_without_signal(error: NDArray[np.float64], perfect: float) -> float:
    """Score if all true codes are zero: perfect, or undefined."""
    if np.any(error > 0.0):
        raise ValueError(
            "Every code in B_true is zero but B_pred is not, so a relative error is undefined. "
            "Score codes that hold a signal, or use an absolute error."
        )
    return perfect
