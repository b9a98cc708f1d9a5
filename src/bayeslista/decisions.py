"""Decisions from inclusion probabilities and from joint draws: selections, credible sets, simultaneous intervals.

Joint draws are those of ``SpikeSlabNet(mode="exact").sample``, or any array whose first axis are the draws and whose
last axis are the coefficients, exactly zero where they are not active. All statements are about the posterior: they are
as good as the model and, for draws, as their number.
"""

import math
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayeslista.numerics.checks import as_real, check_entries, check_probability

__all__ = ["CredibleSet", "credible_sets", "joint_interval", "probability", "select"]

_ROUND_OFF = 1e-12  # relative, of sums and of products of levels and counts


@dataclass(frozen=True)
class CredibleSet:
    """Columns of which at least one is active with high posterior probability.

    Attributes
    ----------
    columns : tuple of int
        Indices of the columns, ascending.
    probability : float
        Posterior probability that at least one of them is active.
    purity : float
        Smallest absolute correlation between two of them; 1 for a single column.
    expected_active : float
        Posterior mean of how many of them are active.

    Examples
    --------
    >>> from bayeslista.decisions import CredibleSet
    >>> CredibleSet((3, 7), probability=0.98, purity=0.91, expected_active=1.02).columns
    (3, 7)
    """

    columns: tuple[int, ...]
    probability: float
    purity: float
    expected_active: float


def select(prob_active: ArrayLike, fdr: float, axis: int | None = -1) -> NDArray[np.bool_]:
    """Select coefficients with a bound on the expected share of false discoveries.

    The selection is the largest set ``{P ≥ t}`` for which the mean of ``1 − P`` over the set is at most `fdr`: the
    Bayesian false discovery rate of [1]_ and [2]_. Coefficients of equal P are selected together or not at all, so the
    order of coefficients has no influence. Without ties at the threshold no set of any kind with that bound is larger.

    Parameters
    ----------
    prob_active : array-like
        Inclusion probabilities, such as ``predict_dist(X).prob_active``.
    fdr : float
        Bound on the expected share of false discoveries, in [0, 1].
    axis : int or None, default=-1
        Axis along which one selection is made, by default one for each signal. None makes one selection of all entries
        together, with the bound for all of them.

    Returns
    -------
    ndarray of bool
        Whether a coefficient is selected, of the shape of `prob_active`. An empty selection has no false discovery.

    Notes
    -----
    Sure coefficients make room for improbable ones: with ninety of P = 1, ten of P = 0 have a rate of 0.1. Add
    ``& (prob_active > 0.5)`` to leave those out. Comparisons allow for rounding of `fdr` and of P.

    References
    ----------
    .. [1] M. A. Newton, A. Noueiry, D. Sarkar and P. Ahlquist, "Detecting differential gene expression with a
       semiparametric hierarchical mixture method", Biostatistics 5(2), 2004.
    .. [2] P. Müller, G. Parmigiani and K. Rice, "FDR and Bayesian multiple comparisons rules", Bayesian Statistics 8,
       2007.

    Examples
    --------
    >>> from bayeslista.decisions import select
    >>> select([0.99, 0.4, 0.85, 0.1], fdr=0.1)  # (0.01 + 0.15) / 2 = 0.08
    array([ True, False,  True, False])
    """
    given = as_real("prob_active", prob_active)
    legal = (given >= 0) & (given <= 1)
    check_entries(legal, "prob_active", given, "lie in [0, 1]", "Pass probabilities; clip round-off.")
    if given.ndim == 0:
        raise ValueError(f"prob_active must have at least one axis, got {given}. Pass all coefficients of a signal.")
    limit = check_probability("fdr", fdr) * (1.0 + _ROUND_OFF) + 0.5 * float(np.finfo(given.dtype).eps)
    values = given.astype(np.float64)
    rows = values.reshape(-1) if axis is None else np.moveaxis(values, _axis(axis, given.ndim), -1)
    ordered = -np.sort(-rows, axis=-1)
    rate = np.cumsum(1.0 - ordered, axis=-1) / np.arange(1, rows.shape[-1] + 1)
    following = np.concatenate([ordered[..., 1:], np.full_like(ordered[..., :1], -1.0)], axis=-1)
    allowed = (rate <= limit) & (following < ordered)  # the last of its equals
    threshold = np.min(np.where(allowed, ordered, np.inf), axis=-1, keepdims=True, initial=np.inf)
    selected = rows >= threshold
    return selected.reshape(given.shape) if axis is None else np.moveaxis(selected, -1, axis)


def credible_sets(
    draws: ArrayLike, design_matrix: ArrayLike, level: float = 0.95, min_correlation: float = 0.5
) -> list[Any]:
    """Groups of correlated columns of which at least one is active with high probability.

    Where columns are nearly copies, no single one has a high inclusion probability, but their group does. A group
    begins with the most probable column that is in no group yet, and adds, one by one, the column that raises the
    probability of ``at least one is active`` most, among those in no group whose absolute correlation with every
    column of the group is at least `min_correlation`. It is returned if that probability reaches `level`; if not, its
    columns stay free, and the next group begins with the next column. Ties go to the first column.

    Parameters
    ----------
    draws : array-like of shape (n_draws, n_components) or (n_draws, n_samples, n_components)
        Joint draws of the posterior of one signal or several; independent draws from marginals give wrong
        probabilities.
    design_matrix : array-like of shape (n_observed, n_components)
        Its columns decide the correlations. They are not centred, as the model has no intercept: for a regression with
        one, pass centred columns.
    level : float, default=0.95
        Least probability that at least one column of a set is active.
    min_correlation : float, default=0.5
        Least absolute correlation, in [0, 1], of any two columns of a set.

    Returns
    -------
    list of CredibleSet
        Disjoint sets of one signal, in the order in which they were found; of several signals, a list for each.

    Notes
    -----
    The level holds for each set, not for all of them at once. A set is small as greedy choices go, not the smallest.
    In a large group of columns, active with prior probability p each, some column is active whatever the data:
    ``1 − (1 − p)^size`` is the probability of that under the prior, to compare with.

    SuSiE [1]_ assumes that the coefficients are a sum of components of exactly one active column, and its sets hold
    that column of one component; they may overlap, and those of low purity are dropped after the fact. Here the joint
    posterior is arbitrary: a set may have several active columns (``expected_active``), sets are disjoint, correlation
    is a condition on their growth, and there need not be as many sets as effects.

    References
    ----------
    .. [1] G. Wang, A. Sarkar, P. Carbonetto and M. Stephens, "A simple new approach to variable selection in
       regression, with application to genetic fine mapping", Journal of the Royal Statistical Society B 82(5), 2020.

    Examples
    --------
    >>> from bayeslista.decisions import credible_sets
    >>> draws = [[1.1, 0.0, 0.0], [0.0, 0.9, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.3]]
    >>> credible_sets(draws, [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # which of two copies is unknown, one of them is sure
    [CredibleSet(columns=(0, 1), probability=1.0, purity=1.0, expected_active=1.0)]
    """
    given = _read_draws(draws)
    if given.ndim > 3:
        raise ValueError(
            f"draws must have shape (n_draws, n_components) or (n_draws, n_samples, n_components), got {given.shape}. "
            "Flatten the axes of signals."
        )
    correlation = _absolute_correlation(design_matrix, given.shape[-1])
    count = _at_least(check_probability("level", level), len(given))
    least = check_probability("min_correlation", min_correlation, "Pass an absolute correlation.")
    similar = correlation >= least - _ROUND_OFF
    if given.ndim == 2:
        return _signal_sets(given != 0.0, correlation, similar, count)
    return [_signal_sets(given[:, i] != 0.0, correlation, similar, count) for i in range(given.shape[1])]


def joint_interval(draws: ArrayLike, level: float) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Intervals that hold all coefficients of a signal at once with high probability.

    The ends are order statistics of the same rank for every coefficient, so each has the scale of its own draws [1]_.
    The rank is one beyond the smallest for which at least `level` of the draws lie inside in all coefficients: by
    leaving out one draw after the other, that is the rank for which a code that is not among the draws lies inside with
    probability `level`. A draw that equals an end is inside: coefficients that are zero in nearly all draws have the
    interval [0, 0], unless that would leave too many draws outside.

    Parameters
    ----------
    draws : array-like of shape (n_draws, ..., n_components)
        Joint draws of the posterior.
    level : float
        Probability in [0, 1] that all coefficients of a signal lie inside.

    Returns
    -------
    lower, upper : ndarray of shape (..., n_components)
        The ends, both part of the interval.

    Warns
    -----
    UserWarning
        If the draws of a signal are too few. A simultaneous interval reaches far into the tails of each coefficient; of
        D uncertain, independent ones, even the range of all draws leaves out a new code with probability
        ``1 − (1 − 2/(n_draws + 1))^D``, and that has to be below ``1 − level``. The range is returned then.

    References
    ----------
    .. [1] J. Besag, P. Green, D. Higdon and K. Mengersen, "Bayesian computation and stochastic systems", Statistical
       Science 10(1), 1995.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.decisions import joint_interval
    >>> draws = np.random.default_rng(0).normal(size=(20_000, 2)) * [1.0, 10.0]
    >>> lower, upper = joint_interval(draws, 0.9)  # alone, each coefficient would have ±1.64 standard deviations
    >>> upper.round(1)
    array([ 2. , 19.5])
    >>> bool(np.mean(((lower <= draws) & (draws <= upper)).all(axis=1)) >= 0.9)
    True
    """
    given = _read_draws(draws)
    n = len(given)
    # A draw lies between the order statistics n − depth and depth + 1 if depth draws at most are smaller, or larger.
    outer = _beyond(given).max(axis=-1)
    share = check_probability("level", level)
    inner = np.mean(outer < n - 1, axis=0)  # extreme in no coefficient: inside the range of all other draws
    n_short = int(np.sum(inner < share * (1.0 - _ROUND_OFF)))
    if n_short:
        warnings.warn(
            f"{n} draws are too few for a joint interval of level {share:g} in {n_short} of {inner.size} signals: the "
            f"range of all draws holds a new one with probability {inner.min():.2g}. Take more draws or a lower level.",
            stacklevel=2,
        )
    depth = np.minimum(np.sort(outer, axis=0)[_at_least(share, n) - 1] + 1, n - 1)[None, ..., None]
    ordered = np.sort(given, axis=0)
    lower, upper = (np.take_along_axis(ordered, place, axis=0)[0] for place in (n - 1 - depth, depth))
    return lower, upper


def probability(draws: ArrayLike, condition: Callable[[NDArray[np.floating]], Any], return_se: bool = False) -> Any:
    """Posterior probability of a condition on the coefficients, the share of draws that meet it.

    Parameters
    ----------
    draws : array-like of shape (n_draws, ..., n_components)
        Joint draws of the posterior.
    condition : callable
        It is called once, with all draws as an array, and returns an array of bool whose first axis are the draws, as
        ``lambda b: (b != 0).sum(axis=-1) <= 3``.
    return_se : bool, default=False
        Whether to return the Monte Carlo standard error, too.

    Returns
    -------
    probability : float or ndarray
        Of the shape that the condition returned, without the axis of draws.
    se : float or ndarray
        Standard error of the probability, if `return_se`: the larger of that of independent draws, which is never zero
        (a condition met k times counts as one of probability (k + ½)/(n_draws + 1)), and that of the means of
        ``√n_draws`` successive draws, which includes their autocorrelation.

    Examples
    --------
    >>> from bayeslista.decisions import probability
    >>> draws = [[1.1, 0.0, 0.0], [0.0, 0.9, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.3]]
    >>> probability(draws, lambda b: (b != 0).sum(axis=-1) == 1)
    0.75
    >>> probability(draws, lambda b: b[..., 0] > b[..., 1], return_se=True)
    (0.5, 0.25)
    """
    given = _read_draws(draws)
    given.setflags(write=False)
    met = np.asarray(condition(given))
    if met.dtype != bool or met.shape[:1] != (len(given),):
        raise ValueError(
            f"condition must return an array of bool whose first axis are the {len(given)} draws, got dtype "
            f"{met.dtype} and shape {met.shape}. Reduce over the last axis only, as in (b != 0).any(axis=-1)."
        )
    mean = met.mean(axis=0)
    return (_plain(mean), _plain(_standard_error(met))) if return_se else _plain(mean)


def _read_draws(draws: ArrayLike) -> NDArray[np.floating]:
    """Validate draws; a copy or view that the caller's array does not share flags with."""
    given = as_real("draws", draws).view()
    if given.ndim < 2 or 0 in (len(given), given.shape[-1]):
        raise ValueError(
            f"draws must have shape (n_draws, ..., n_components), none of them 0, got {given.shape}. Pass what "
            "sample(X, n_draws) of a model returns, or one signal of it, draws[:, i]."
        )
    check_entries(np.isfinite(given), "draws", given, "be finite", "Drop or repair those draws.")
    return given


def _axis(axis: Any, ndim: int) -> int:
    """Validate an axis."""
    try:
        place = operator.index(axis)
    except TypeError:
        place = ndim
    if not -ndim <= place < ndim:
        raise ValueError(
            f"axis must be None or an integer from {-ndim} to {ndim - 1}, got {axis!r}. Pass one of these."
        )
    return place


def _at_least(level: float, n: int) -> int:
    """The smallest positive number of draws that is at least a share `level` of n."""
    return max(1, math.ceil(level * n * (1.0 - _ROUND_OFF)))


def _absolute_correlation(design_matrix: ArrayLike, n_components: int) -> NDArray[np.float64]:
    """|cosine| of the angles between columns; zero for a column of zeros, except with itself."""
    given = as_real("design_matrix", design_matrix)
    if given.ndim != 2 or given.shape[1] != n_components or len(given) == 0:
        raise ValueError(
            f"design_matrix must have shape (n_observed, {n_components}), as draws have {n_components} coefficients, "
            f"got {given.shape}. Pass the matrix of the model, one column a coefficient."
        )
    check_entries(np.isfinite(given), "design_matrix", given, "be finite", "Replace NaN and infinite entries.")
    A = given.astype(np.float64)
    A /= np.where(A.any(axis=0), np.abs(A).max(axis=0), 1.0)  # squares of any column neither overflow nor vanish
    A /= np.where(A.any(axis=0), np.linalg.norm(A, axis=0), 1.0)
    correlation = np.minimum(np.abs(A.T @ A), 1.0)
    np.fill_diagonal(correlation, 1.0)
    return correlation


def _signal_sets(
    active: NDArray[np.bool_], correlation: NDArray[np.float64], similar: NDArray[np.bool_], count: int
) -> list[CredibleSet]:
    """Sets of one signal, from the supports of its draws; at least `count` of these have a column of the set."""
    indicator = active.astype(np.float64)
    n_active = indicator.sum(axis=0)
    free, found = np.ones(active.shape[1], bool), []
    for seed in np.argsort(-n_active, kind="stable"):
        if not free[seed] or n_active[seed] == 0 or n_active[free & similar[seed]].sum() < count:
            continue
        columns, covered, eligible = [int(seed)], active[:, seed], free & similar[seed]
        while covered.sum() < count:
            gain = np.where(eligible, ~covered @ indicator, 0.0)
            best = int(np.argmax(gain))
            if gain[best] == 0.0:
                break
            columns.append(best)
            covered, eligible = covered | active[:, best], eligible & similar[best]
        else:
            columns.sort()
            free[columns] = False
            purity = float(correlation[np.ix_(columns, columns)].min())
            found.append(
                CredibleSet(tuple(columns), float(covered.mean()), purity, float(n_active[columns].sum() / len(active)))
            )
    return found


def _beyond(draws: NDArray[np.floating]) -> NDArray[np.int64]:
    """For each draw of each coefficient, the number of draws that are smaller or that of larger ones, if it is more."""
    order = np.argsort(draws, axis=0)
    ordered = np.take_along_axis(draws, order, axis=0)
    place = np.arange(len(draws)).reshape(-1, *(1,) * (draws.ndim - 1))
    repeats = ordered[1:] == ordered[:-1]
    first, last = np.broadcast_to(place, draws.shape).copy(), np.broadcast_to(place[::-1], draws.shape).copy()
    first[1:][repeats], last[:-1][repeats] = 0, 0
    np.maximum.accumulate(first, axis=0, out=first)
    np.maximum.accumulate(last[::-1], axis=0, out=last[::-1])
    beyond = np.empty_like(first)
    np.put_along_axis(beyond, order, np.maximum(first, last), axis=0)
    return beyond


def _standard_error(met: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Standard error of the mean over draws: of independent ones, or by batch means if that is larger."""
    n = len(met)
    share = (met.sum(axis=0) + 0.5) / (n + 1.0)
    independent = np.sqrt(share * (1.0 - share) / n)
    size = math.isqrt(n)
    n_batches = n // size
    if n_batches < 2:
        return independent
    means = met[: size * n_batches].reshape(n_batches, size, *met.shape[1:]).mean(axis=1)
    return np.maximum(independent, np.sqrt(means.var(axis=0, ddof=1) / n_batches))


def _plain(values: Any) -> Any:
    """An array, or a float where it has no axes."""
    return float(values) if np.ndim(values) == 0 else values
