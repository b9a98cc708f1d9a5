r"""Scores of predictive distributions: calibration, sharpness and proper scoring rules.

A coefficient has an atom at zero, so it has no density with respect to Lebesgue measure. :func:`log_score` takes the
density with respect to Lebesgue measure plus a unit atom at zero; :func:`crps` compares distribution functions and
needs no density; :func:`pit` is randomised within the jump at the atom.
"""

from collections.abc import Iterator
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from sklearn.utils import check_random_state

from bayeslista.distributions import SpikeSlab
from bayeslista.metrics.forecasts import (
    Floats,
    Forecast,
    ForecastBlock,
    ForecastParameters,
    Samples,
    blocks,
    check_level,
    lower_tail,
    moment_blocks,
    read_codes,
    read_forecast,
    sample_blocks,
    sample_tails,
    spike_slab_blocks,
    tails,
)

__all__ = [
    "coverage",
    "crps",
    "interval_width",
    "log_score",
    "pit",
    "pit_coverage",
    "sharpness",
    "support_coverage",
    "variance_ratio",
]

_HALF_LOG_TWO_PI = 0.5 * np.log(2.0 * np.pi)


def pit(dist: Forecast, B: ArrayLike, random_state: Any = None) -> NDArray[np.float64]:
    """Probability integral transform: the predictive distribution function at the true code.

    It is uniform on [0, 1] if predictions are calibrated. At an atom it is randomised: uniform between
    ``P(β < b)`` and ``P(β ≤ b)``; for samples it is a rank, ties broken at random.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions; draws are the first axis of samples.
    B : array-like
        The true codes, which broadcast against the predictions.
    random_state : int, RandomState instance, Generator or None, default=None
        Of the randomisation at atoms.

    Returns
    -------
    ndarray
        One number for each coefficient.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import pit
    >>> pit(SpikeSlab(0.5, 2.0, 1.0), [2.0, 100.0])
    array([0.75, 1.  ])
    >>> bool(pit(SpikeSlab(0.5, 2.0, 1.0), 0.0, random_state=0) < 0.52)
    True
    """
    read = read_forecast(dist)
    codes = read_codes(read, B)
    return _joined(list(_pit_blocks(read, codes, random_state)), read, codes)


def pit_coverage(dist: Forecast, B: ArrayLike, level: float = 0.9, random_state: Any = None) -> float:
    """Share of coefficients whose :func:`pit` lies in the central part of [0, 1].

    It equals `level` for calibrated predictions, also with atoms, where closed intervals that end on an atom cover more
    (:func:`coverage`). Neither more nor less is better.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions.
    B : array-like
        The true codes, which broadcast against the predictions.
    level : float, default=0.9
        Length of the central part.
    random_state : int, RandomState instance, Generator or None, default=None
        Of the randomisation at atoms.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import pit_coverage
    >>> dist = SpikeSlab([0.2] * 10_000, 1.0, 1.0)
    >>> round(pit_coverage(dist, dist.sample(1, random_state=0), 0.9, random_state=0), 2)
    0.9
    """
    half = check_level(level) / 2.0
    read = read_forecast(dist)
    codes = read_codes(read, B)
    parts = _pit_blocks(read, codes, random_state)
    return sum(int(np.count_nonzero(np.abs(part - 0.5) <= half)) for part in parts) / _size(read, codes)


def coverage(dist: Forecast, B: ArrayLike, level: float = 0.9) -> float:
    """Share of true codes that lie in the central interval of their predictions.

    The interval is that of :meth:`SpikeSlab.interval`: closed, at most ``(1 − level)/2`` of the probability on either
    side. Neither more nor less is better.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions.
    B : array-like
        The true codes, which broadcast against the predictions.
    level : float, default=0.9
        Nominal coverage of the intervals.

    Returns
    -------
    float
        Between 0 and 1; at least `level`, up to chance, where predictions are calibrated.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import coverage
    >>> coverage(SpikeSlab([0.02, 1.0], 0.0, 1.0), [[0.0, 1.5], [1.0, 1.7]], level=0.9)
    0.5
    """
    read = read_forecast(dist)
    codes = read_codes(read, B)
    parts = _inside_blocks(read, codes, check_level(level), False)
    return sum(int(np.count_nonzero(inside)) for inside, _ in parts) / _size(read, codes)


def support_coverage(dist: Forecast, B: ArrayLike, level: float = 0.9, given_active: bool = False) -> float:
    """Share of true codes that lie in the central interval of their predictions, among those that are not zero.

    The intervals of :func:`coverage` hold fewer of the active coefficients than of all: small ones have a high
    probability of zero, and an interval [0, 0]. With `given_active` the interval is that of a coefficient given that it
    is active, and holds a share `level` of the active ones where predictions are calibrated.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions.
    B : array-like
        The true codes, at least one of them not zero, which broadcast against the predictions.
    level : float, default=0.9
        Nominal coverage of the intervals.
    given_active : bool, default=False
        Whether intervals are those of ``SpikeSlab.interval(level, given_active=True)``: of the slab or, for samples, of
        the draws that are not zero. A coefficient without such a draw counts as not covered. A Gaussian has no spike,
        and the same interval either way.

    Returns
    -------
    float
        Between 0 and 1. Neither more nor less is better.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import support_coverage
    >>> dist, B = SpikeSlab([0.02, 1.0, 0.3], 0.0, 1.0), [0.5, 1.5, 0.0]
    >>> support_coverage(dist, B, 0.9), support_coverage(dist, B, 0.9, given_active=True)
    (0.5, 1.0)
    """
    read = read_forecast(dist)
    codes = read_codes(read, B)
    n_covered = n_active = 0
    for inside, active in _inside_blocks(read, codes, check_level(level), given_active):
        n_covered += int(np.count_nonzero(inside & active))
        n_active += int(np.count_nonzero(active))
    if n_active == 0:
        raise ValueError("All codes of B are zero, so none can be covered. Pass some with nonzero coefficients.")
    return n_covered / n_active


def interval_width(dist: Forecast, level: float = 0.9) -> float:
    """Mean width of central intervals: among predictions of equal coverage, narrower is better.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions.
    level : float, default=0.9
        Nominal coverage of the intervals.

    Returns
    -------
    float
        Infinite at level 1 of a slab with some width.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import interval_width
    >>> round(interval_width(SpikeSlab([0.02, 1.0], 0.0, 1.0), level=0.9), 4)
    1.6449
    """
    tail = (1.0 - check_level(level)) / 2.0
    read = read_forecast(dist)
    codes = read_codes(read, np.zeros(()))
    total = 0.0
    if isinstance(read, Samples):
        for draws, _ in sample_blocks(read, codes):
            low, high = np.quantile(draws, [tail, 1.0 - tail], axis=0, method="inverted_cdf")
            total += float(np.sum(high - low))
    else:
        for q, m, s, _, parts in blocks(read, codes):
            if parts is None:
                total += float(np.sum(_widths(q, m, s, tail)))
            else:
                low, high = SpikeSlab(q, parts.mean, parts.std**2, parts.weight).interval(2.0 * (0.5 - tail))
                total += float(np.sum(high - low))
    return total / _size(read, codes)


@overload
def log_score(dist: Forecast, B: ArrayLike, average: Literal[True] = True) -> float: ...
@overload
def log_score(dist: Forecast, B: ArrayLike, average: bool) -> Any: ...
def log_score(dist: Forecast, B: ArrayLike, average: bool = True) -> Any:
    r"""Negative log predictive density of the true codes, with respect to Lebesgue measure plus a unit atom at zero.

    :math:`-\log(1 - q)` where a code is exactly zero, else :math:`-\log q - \log N(\beta; m, v)`: a strictly proper
    score. It has a unit: codes in other units shift it. Samples are scored as the spike and slab with their moments.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions. A Gaussian has no atom at zero and is refused where a code is zero: see
        :func:`with_spike`.
    B : array-like
        The true codes, which broadcast against the predictions.
    average : bool, default=True
        Whether to return the mean instead of the score of every coefficient.

    Returns
    -------
    float or ndarray
        Smaller is better; infinite where what a prediction excludes came true.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import log_score
    >>> log_score(SpikeSlab(0.5, 2.0, 1.0), [0.0, 2.0], average=False).round(4)
    array([0.6931, 1.6121])
    """
    read = read_forecast(dist)
    codes = read_codes(read, B)
    if isinstance(read, ForecastParameters) and not read.atom and not codes.all():
        raise ValueError(
            "A Gaussian (mean, std) has no atom at zero, so its log score of a zero code is infinite. "
            "Give it a spike: with_spike(mean, std, fit_spike_head(held_out_mean, held_out_std, B_held_out))."
        )
    return _collect((_log_losses(block) for block in spike_slab_blocks(read, codes)), read, codes, average)


@overload
def crps(dist: Forecast, B: ArrayLike, average: Literal[True] = True) -> float: ...
@overload
def crps(dist: Forecast, B: ArrayLike, average: bool) -> Any: ...
def crps(dist: Forecast, B: ArrayLike, average: bool = True) -> Any:
    r"""Continuous ranked probability score: :math:`E|x - \beta| - \tfrac12 E|x - x'|` for draws x, x' of a prediction.

    For a spike and a Gaussian slab, with :math:`A(\mu, v)` the mean of :math:`|N(\mu, v)|`, it is

    .. math:: (1-q)|\beta| + q\,[A(\beta - m, v) - A(m, v)] + q^2\,[A(m, v) - \sqrt{v/\pi}].

    A mixture has sums over its parts, and pairs of them, instead. The score is strictly proper, has the unit of the
    codes, and is the absolute error of a point prediction.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions. Samples are scored as their empirical distribution.
    B : array-like
        The true codes, which broadcast against the predictions.
    average : bool, default=True
        Whether to return the mean instead of the score of every coefficient.

    Returns
    -------
    float or ndarray
        At least 0; smaller is better.

    References
    ----------
    .. [1] T. Gneiting and A. E. Raftery, "Strictly proper scoring rules, prediction, and estimation", Journal of the
       American Statistical Association 102(477), 2007.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import crps
    >>> crps(SpikeSlab([0.0, 1.0], 2.0, 0.0), [0.5, 0.5], average=False)
    array([0.5, 1.5])
    >>> round(crps((0.0, 1.0), 0.0), 4)
    0.2337
    """
    read = read_forecast(dist)
    codes = read_codes(read, B)
    if isinstance(read, Samples):
        parts = (_sample_crps(*part) for part in sample_blocks(read, codes))
    else:
        parts = (_crps(block) for block in blocks(read, codes))
    return _collect(parts, read, codes, average)


def sharpness(dist: Forecast) -> float:
    """Mean predicted standard deviation, calibrated or not.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions.

    Returns
    -------
    float
        Smaller is sharper, and better only where predictions are calibrated.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.metrics import sharpness
    >>> sharpness(SpikeSlab([0.0, 1.0], 2.0, 1.0))
    0.5
    """
    read = read_forecast(dist)
    codes = read_codes(read, np.zeros(()))
    return sum(float(np.sum(np.sqrt(var))) for _, var, _ in moment_blocks(read, codes)) / _size(read, codes)


def variance_ratio(dist: Forecast, B: ArrayLike) -> float:
    """Mean predicted variance over mean squared error: 1 if the predicted variance is right on average.

    Below 1 predictions are overconfident, above it underconfident: neither more nor less is better.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions.
    B : array-like
        The true codes, which broadcast against the predictions.

    Returns
    -------
    float
        Infinite where there is no error but some variance, 1 where there is neither.

    Examples
    --------
    >>> from bayeslista.metrics import variance_ratio
    >>> variance_ratio(([0.0, 0.0], [1.0, 2.0]), [2.0, 1.0])
    1.0
    """
    read = read_forecast(dist)
    codes = read_codes(read, B)
    variance = error = 0.0
    for mean, var, code in moment_blocks(read, codes):
        variance += float(np.sum(var))
        error += float(np.sum(np.square(mean - code)))
    if error == 0.0:
        return 1.0 if variance == 0.0 else np.inf
    return variance / error


def _inside_blocks(
    read: ForecastParameters | Samples, codes: NDArray[np.floating], level: float, given_active: bool
) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Whether true codes lie in central intervals, and whether they are active, block by block."""
    tail = (1.0 - level) / 2.0
    if isinstance(read, Samples):
        for draws, code in sample_blocks(read, codes):
            lower, upper = sample_tails(draws, code, given_active)
            yield (lower >= tail) & (upper >= tail), code != 0.0
    else:
        for block in blocks(read, codes):
            lower, upper = tails(block._replace(prob_active=np.ones_like(block.code)) if given_active else block)
            yield (lower >= tail) & (upper >= tail), block.code != 0.0


def _size(read: ForecastParameters | Samples, codes: NDArray[np.floating]) -> int:
    return int(np.prod(np.broadcast_shapes(read.shape, codes.shape)))


def _collect(parts: Any, read: ForecastParameters | Samples, codes: NDArray[np.floating], average: bool) -> Any:
    """The mean over all blocks, or their entries in the broadcast shape."""
    if average:
        return sum(float(np.sum(part)) for part in parts) / _size(read, codes)
    return _joined(list(parts), read, codes)


def _joined(parts: list[Floats], read: ForecastParameters | Samples, codes: NDArray[np.floating]) -> Any:
    return np.concatenate(parts).reshape(np.broadcast_shapes(read.shape, codes.shape))[()]


def _pit_blocks(read: ForecastParameters | Samples, codes: NDArray[np.floating], random_state: Any) -> Iterator[Floats]:
    is_generator = isinstance(random_state, np.random.Generator)
    random = random_state if is_generator else check_random_state(random_state)
    if isinstance(read, Samples):
        n = len(read.draws)
        for draws, code in sample_blocks(read, codes):
            below, equal = np.count_nonzero(draws < code, axis=0), np.count_nonzero(draws == code, axis=0)
            yield (below + (equal + 1.0) * random.random(code.size)) / (n + 1.0)
    else:
        for block in blocks(read, codes):
            lower, atom = lower_tail(block)
            yield np.clip(lower - atom * random.random(block.code.size), 0.0, 1.0)


def _widths(q: Floats, m: Floats, s: Floats, tail: float) -> Floats:
    """Widths of central intervals, for tails of at most one half.

    An end is at zero, or beyond it (the tail is in the slab), or short of it (the atom is in the tail, too). The
    slab's share of the tail is the same for both ends, so it is inverted once.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        small = ndtr(np.where(s > 0.0, -np.abs(m) / s, np.where(m == 0.0, np.inf, -np.inf)))
    near, far, atom = q * small, q * (1.0 - small), 1.0 - q
    below, above = np.where(m > 0.0, near, far), np.where(m > 0.0, far, near)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        score = ndtri(np.minimum(tail, q - tail) / q)
        reach = np.where((q > tail) & (s > 0.0), s * np.where(2.0 * tail < q, -score, score), 0.0)
    low = np.where((tail <= below) & (q > 0.0), np.minimum(m - reach, 0.0), 0.0)
    high = np.where((tail <= above) & (q > 0.0), np.maximum(m + reach, 0.0), 0.0)
    width = high - low
    short = np.flatnonzero((tail > near + atom) | ((q == 1.0) & (s == 0.0)))  # never both ends
    q, m, s, atom = q[short], np.abs(m[short]), s[short], atom[short]
    with np.errstate(invalid="ignore"):
        inside = m + np.where(s > 0.0, s * ndtri((tail - atom) / q), 0.0)
    width[short] -= np.where(q < 1.0, np.maximum(inside, 0.0), inside)
    return width


def _log_losses(block: ForecastBlock) -> Floats:
    q, m, s, b, parts = block
    if parts is not None:
        with np.errstate(divide="ignore"):
            return np.where(b == 0.0, -np.log1p(-q), -np.log(q) - parts.log_density(b))
    point, zero = s == 0.0, b == 0.0
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        loss = 0.5 * np.square((b - m) / s) + np.log(s) + (_HALF_LOG_TWO_PI - np.log(q))
        loss[zero] = -np.log1p(-q[zero])
    if point.any():  # the limit of a slab that narrows
        loss[point & ~zero] = np.where(b == m, -np.inf, np.inf)[point & ~zero]
        loss[point & zero & (m == 0.0)] = 0.0
        loss[(q == 0.0) & ~zero] = np.inf
    return loss


def _crps(block: ForecastBlock) -> Floats:
    q, b, slab = block.prob_active, block.code, block.slab
    size = slab.distance(0.0)
    return (1.0 - q) * np.abs(b) + q * (slab.distance(b) - size) + q * q * (size - 0.5 * slab.difference())


def _sample_crps(draws: Floats, code: Floats) -> Floats:
    n = len(draws)
    error = np.mean(np.abs(draws - code), axis=0)
    draws.sort(axis=0)
    weight = 2.0 * np.arange(1, n + 1) - n - 1
    return error - weight @ draws / (n * n)
