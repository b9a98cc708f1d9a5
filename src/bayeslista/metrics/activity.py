"""Scores and calibration of P(active), the inclusion probability."""

from numbers import Real
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayeslista.metrics.forecasts import Forecast, prob_active_blocks, read_codes, read_forecast
from bayeslista.numerics.checks import check_count

__all__ = ["SupportScores", "brier_score", "expected_calibration_error", "reliability_curve", "support_scores"]


class SupportScores(NamedTuple):
    """Precision, recall and F-measure of the support, over all coefficients together; larger is better.

    Attributes
    ----------
    precision : float
        Share of predicted active coefficients that are active; 1 if there are none.
    recall : float
        Share of active coefficients that are predicted so; 1 if there are none.
    f_measure : float
        Their harmonic mean.

    Examples
    --------
    >>> from bayeslista.metrics import SupportScores
    >>> SupportScores(1.0, 0.5, 2 / 3).recall
    0.5
    """

    precision: float
    recall: float
    f_measure: float


class ReliabilityCurve(NamedTuple):
    """Mean of P(active), share that is active and number of coefficients in the nonempty bins of P(active)."""

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    size: NDArray[np.int64]


def brier_score(dist: Forecast, B: ArrayLike) -> float:
    """Mean squared difference of P(active) and the indicator of activity: a proper score of the support.

    Parameters
    ----------
    dist : SpikeSlab or array-like of samples
        The predictions; of samples, P(active) is the share that is not zero.
    B : array-like
        The true codes, which broadcast against the predictions.

    Returns
    -------
    float
        Between 0 and 1; smaller is better.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import brier_score
    >>> brier_score(SpikeSlab([0.5, 1.0], 1.0, 1.0), [0.0, 3.0])
    0.125
    """
    read = read_forecast(dist)
    codes = read_codes(read, B)
    total, n = 0.0, 0
    for probability, active in prob_active_blocks(read, codes):
        total += float(np.sum(np.square(probability - active)))
        n += probability.size
    return total / n


def reliability_curve(dist: Forecast, B: ArrayLike, n_bins: int = 10) -> ReliabilityCurve:
    """Mean of P(active) and share that is active, in bins of equal width.

    Parameters
    ----------
    dist : SpikeSlab or array-like of samples
        The predictions.
    B : array-like
        The true codes, which broadcast against the predictions.
    n_bins : int, default=10
        Number of bins of equal width.

    Returns
    -------
    ReliabilityCurve
        ``predicted``, ``observed`` and ``size`` of the bins that are not empty.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import reliability_curve
    >>> curve = reliability_curve(SpikeSlab([0.05, 0.05, 0.92], 1.0, 1.0), [0.0, 1.0, 1.0])
    >>> curve.predicted, curve.observed, curve.size
    (array([0.05, 0.92]), array([0.5, 1. ]), array([2, 1]))
    """
    n = check_count("n_bins", n_bins)
    read = read_forecast(dist)
    codes = read_codes(read, B)
    predicted, observed, size = np.zeros(n), np.zeros(n), np.zeros(n, np.int64)
    for probability, active in prob_active_blocks(read, codes):
        place = np.minimum((n * probability).astype(np.int64), n - 1)
        predicted += np.bincount(place, probability, n)
        observed += np.bincount(place, active, n)
        size += np.bincount(place, minlength=n)
    used = size > 0
    return ReliabilityCurve(predicted[used] / size[used], observed[used] / size[used], size[used])


def expected_calibration_error(dist: Forecast, B: ArrayLike, n_bins: int = 10) -> float:
    """Mean distance of P(active) and the share that is active, over bins of equal width.

    It is 0 for calibrated P(active), informative or not, and biased upwards in finite samples.

    Parameters
    ----------
    dist : SpikeSlab or array-like of samples
        The predictions.
    B : array-like
        The true codes, which broadcast against the predictions.
    n_bins : int, default=10
        Number of bins of equal width.

    Returns
    -------
    float
        Between 0 and 1; smaller is better.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import expected_calibration_error
    >>> round(expected_calibration_error(SpikeSlab([0.05, 0.05, 0.92], 1.0, 1.0), [0.0, 1.0, 1.0]), 4)
    0.3267
    """
    predicted, observed, size = reliability_curve(dist, B, n_bins)
    return float(np.average(np.abs(predicted - observed), weights=size))


def support_scores(dist: Forecast, B: ArrayLike, threshold: float = 0.5) -> SupportScores:
    """Precision, recall and F-measure of the support where P(active) exceeds a threshold.

    Counted over all coefficients together, where :func:`support_f_measure`, which takes points, averages over codes.

    Parameters
    ----------
    dist : SpikeSlab or array-like of samples
        The predictions.
    B : array-like
        The true codes, which broadcast against the predictions.
    threshold : float, default=0.5
        P(active) above which a coefficient is predicted active.

    Returns
    -------
    SupportScores
        ``precision``, ``recall`` and ``f_measure``; larger is better.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import support_scores
    >>> support_scores(SpikeSlab([0.9, 0.6, 0.1, 0.2], 1.0, 1.0), [1.0, 0.0, 0.0, 2.0])
    SupportScores(precision=0.5, recall=0.5, f_measure=0.5)
    """
    if not isinstance(threshold, Real) or not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold must lie in [0, 1], got {threshold}. Pass a probability.")
    read = read_forecast(dist)
    codes = read_codes(read, B)
    both = predicted = true = 0
    for probability, active in prob_active_blocks(read, codes):
        called = probability > threshold
        both += int(np.count_nonzero(called & active))
        predicted += int(np.count_nonzero(called))
        true += int(np.count_nonzero(active))
    return SupportScores(
        both / predicted if predicted else 1.0,
        both / true if true else 1.0,
        2.0 * both / (predicted + true) if predicted + true else 1.0,
    )
