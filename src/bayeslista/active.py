"""Active learning: acquisition functions, batches and the loop.

An acquisition function takes the predictive distribution of all candidates, of shape (n_candidates, n_components), and
returns one score for each; larger is acquired first. Shape (n_candidates,) is read as codes of a single coefficient.
"""

from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.linalg import cholesky, solve_triangular
from scipy.special import entr
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from bayeslista.distributions import SpikeSlab
from bayeslista.numerics.checks import as_real, check_entries

__all__ = [
    "Addition",
    "active_learning",
    "select_batch",
    "spike_slab_entropy",
    "support_entropy",
    "total_variance",
    "variance_reduction",
]

Acquisition = Callable[[SpikeSlab], ArrayLike]
Update = Callable[[Any, np.ndarray, np.ndarray], Any]

_HALF_LOG_TWO_PI_E = 0.5 * np.log(2.0 * np.pi * np.e)


class Addition(NamedTuple):
    """One step of :func:`active_learning`.

    ``pool_index`` is the row of the pool that was acquired, ``score`` its acquisition score (NaN for "random"), and
    ``model`` the updated model: the same object at every step.
    """

    pool_index: int
    score: float
    model: Any


def total_variance(distribution: SpikeSlab) -> Float[np.ndarray, " n_candidates"]:
    """Sum of the variances of a candidate's coefficients: the acquisition function of the paper.

    Parameters
    ----------
    distribution : SpikeSlab of shape (n_candidates, n_components)
        The predictive distribution of all candidates.

    Returns
    -------
    ndarray of shape (n_candidates,)
        The scores, at least zero.

    Examples
    --------
    >>> from bayeslista.active import total_variance
    >>> from bayeslista.distributions import SpikeSlab
    >>> total_variance(SpikeSlab([[1.0, 0.5], [0.0, 1.0]], 2.0, 1.0))
    array([2.5, 1. ])
    """
    _check_distribution(distribution)
    return _sum_of_coefficients(distribution, distribution.var())


def spike_slab_entropy(distribution: SpikeSlab) -> Float[np.ndarray, " n_candidates"]:
    r"""Sum of the entropies of a candidate's coefficients, in nats.

    With the measure of :meth:`SpikeSlab.log_prob`, Lebesgue's plus a unit atom at zero, the entropy
    :math:`-\mathrm E \log p(\beta)` of a spike and slab is :math:`H(q) + \tfrac q2 \log(2 \pi e v)`, the binary entropy
    of being active plus q times the entropy of the Gaussian. A slab without variance has entropy 0 at zero and −inf
    elsewhere. Like all differential entropies it depends on units: codes in units c times smaller add
    :math:`\log c\,\sum_d q_d`, which can change the order of candidates that differ in sparsity.

    Parameters
    ----------
    distribution : SpikeSlab of shape (n_candidates, n_components)
        The predictive distribution of all candidates.

    Returns
    -------
    ndarray of shape (n_candidates,)
        The scores: any finite number, or −inf, never NaN.

    Examples
    --------
    >>> from bayeslista.active import spike_slab_entropy
    >>> from bayeslista.distributions import SpikeSlab
    >>> spike_slab_entropy(SpikeSlab([[1.0], [0.5], [0.0]], 2.0, [[1.0], [1.0], [0.0]])).round(4)
    array([1.4189, 1.4026, 0.    ])
    """
    _check_distribution(distribution)
    q, variance = distribution.prob_active.astype(np.float64), distribution.slab_var.astype(np.float64)
    point = variance == 0.0
    at_zero = (q == 0.0) | (point & (distribution.slab_mean == 0.0))
    if distribution.slab_parts is None:
        width = 0.5 * np.log(np.where(point, 1.0, variance)) + _HALF_LOG_TWO_PI_E
    else:
        width = distribution._slab().entropy()
        point, width = np.isneginf(width), np.where(np.isneginf(width), 0.0, width)
    entropy = _binary_entropy(q) + q * width
    return _sum_of_coefficients(distribution, np.select([at_zero, point], [0.0, -np.inf], entropy))


def support_entropy(distribution: SpikeSlab) -> Float[np.ndarray, " n_candidates"]:
    r"""Sum over a candidate's coefficients of the binary entropy of ``prob_active``, in nats.

    It is the entropy of the support and does not depend on the magnitudes of coefficients or their units.

    Parameters
    ----------
    distribution : SpikeSlab of shape (n_candidates, n_components)
        The predictive distribution of all candidates.

    Returns
    -------
    ndarray of shape (n_candidates,)
        The scores, between 0 and ``n_components`` times log 2.

    Examples
    --------
    >>> from bayeslista.active import support_entropy
    >>> from bayeslista.distributions import SpikeSlab
    >>> support_entropy(SpikeSlab([[0.5, 0.5], [0.0, 1.0]], 2.0, 1.0)).round(4)
    array([1.3863, 0.    ])
    """
    _check_distribution(distribution)
    return _sum_of_coefficients(distribution, _binary_entropy(distribution.prob_active.astype(np.float64)))


def variance_reduction(
    distribution: SpikeSlab, features: ArrayLike, known: ArrayLike, *, noise: float = 0.1
) -> Float[np.ndarray, " n_candidates"]:
    r"""Expected reduction of the variance of all candidates by the code of one.

    The candidate of largest variance is often an outlier, which carries little information about others. Here codes
    are modelled as linear in the features with Gaussian weights, so that candidates i and j have the posterior
    covariance :math:`K_{ij}` given the known features. The code of j reduces the variance of i by the share
    :math:`K_{ij}^2 / K_{ii} (K_{jj} + \sigma^2)` [1]_. The score is the sum of these shares, each weighted by total
    variance over second moment of the code of i. It has no unit.

    Parameters
    ----------
    distribution : SpikeSlab of shape (n_candidates, n_components)
        The predictive distribution of all candidates.
    features : array-like of shape (n_candidates, n_features)
        Features of the candidates, as a rule their observations.
    known : array-like of shape (n_known, n_features)
        Features of the training pairs.
    noise : float, default=0.1
        :math:`\sigma^2` over the mean squared norm of the candidates' features; larger than 0.

    Returns
    -------
    ndarray of shape (n_candidates,)
        The scores, from 0 to the number of candidates.

    Raises
    ------
    ValueError
        If an argument has another shape, is not finite, or is out of range.

    References
    ----------
    .. [1] D. A. Cohn, Z. Ghahramani and M. I. Jordan, "Active learning with statistical models", Journal of Artificial
       Intelligence Research 4, 1996.

    Examples
    --------
    >>> from bayeslista.active import variance_reduction
    >>> from bayeslista.distributions import SpikeSlab
    >>> alike, odd = [[1.0, 0.0], [1.0, 0.1], [0.9, 0.0]], [[0.0, 3.0]]
    >>> scores = variance_reduction(SpikeSlab([[0.5]] * 4, 1.0, 1.0), alike + odd, [[0.1, 0.1]])
    >>> scores.argmax().item(), bool(scores[0] > 2 * scores[3])
    (0, True)
    """
    variance = total_variance(distribution)
    power = variance + _sum_of_coefficients(distribution, distribution.mean().astype(np.float64) ** 2)
    uncertain = np.divide(variance, power, out=np.zeros_like(power), where=power > 0)
    candidates, learned = _check_features("features", features), _check_features("known", known)
    if len(candidates) != len(variance) or learned.shape[1] != candidates.shape[1]:
        raise ValueError(
            f"features has shape {candidates.shape} and known {learned.shape}, expected ({len(variance)}, n_features) "
            "and (n_known, n_features). Pass one row a candidate, and the same features of those known."
        )
    if not isinstance(noise, Real) or not 0 < noise < np.inf:
        raise ValueError(f"noise must be a number larger than 0, got {noise!r}. Pass a share of the features' power.")
    # In units of the largest entry, so that squares do not overflow; then in those of the mean squared norm.
    largest = max(np.max(np.abs(places), initial=0.0) for places in (candidates, learned)) or 1.0
    candidates, learned = candidates / largest, learned / largest
    scale = np.sqrt(np.mean(np.sum(candidates**2, axis=1))) or 1.0
    candidates, learned = candidates / scale, learned / scale
    precision = np.eye(candidates.shape[1]) + learned.T @ learned / noise
    rows = solve_triangular(cholesky(precision, lower=True), candidates.T, lower=True)
    covariance = rows.T @ rows
    own = np.diag(covariance)
    weight = np.divide(uncertain, own, out=np.zeros_like(own), where=own > 0)
    return weight @ covariance**2 / (own + noise)


def select_batch(
    scores: ArrayLike, n: int, features: ArrayLike | None = None, *, shortlist: int = 10
) -> Int[np.ndarray, " n"]:
    """Choose n candidates by score, or by score and diversity.

    Without `features` they are the n best, which are often redundant. With `features` the ``shortlist × n`` best are
    kept and n of them chosen by farthest-first traversal: the best one, then repeatedly the one farthest from its
    nearest chosen one. That covers the shortlist to within twice the smallest possible radius [1]_. Only the order of
    the scores and ratios of distances matter. Ties go to the better score, then to the smaller index.

    Parameters
    ----------
    scores : array-like of shape (n_candidates,)
        Larger is better; infinite ones are allowed.
    n : int
        Number of candidates to choose.
    features : array-like of shape (n_candidates, n_features), default=None
        Observations or predicted codes, compared by Euclidean distance.
    shortlist : int, default=10
        Size of the shortlist in multiples of n. 1 gives the n best in another order.

    Returns
    -------
    ndarray of shape (n,)
        Indices of the chosen candidates, in the order of choice, none of them twice.

    Raises
    ------
    ValueError
        If an argument has another shape, is out of range, or has entries that cannot be compared.

    References
    ----------
    .. [1] T. F. Gonzalez, "Clustering to minimize the maximum intercluster distance", Theoretical Computer Science 38,
       1985.

    Examples
    --------
    >>> from bayeslista.active import select_batch
    >>> scores, places = [5.0, 4.9, 4.0, 0.1], [[0.0], [0.1], [3.0], [9.0]]
    >>> select_batch(scores, 2)
    array([0, 1])
    >>> select_batch(scores, 2, places)
    array([0, 3])
    """
    values = as_real("scores", scores)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"scores has shape {values.shape}, expected (n_candidates,). Pass one number a candidate.")
    check_entries(~np.isnan(values), "scores", values, "not be NaN", "Leave out candidates that have no score.")
    _check_count("n", n, 1, len(values), "Choose no more candidates than there are.")
    _check_count("shortlist", shortlist, 1, np.inf, "Pass how many times n to keep.")
    ranked = np.argsort(-values, kind="stable")
    if features is None:
        return ranked[:n]
    places = _check_features("features", features)
    if len(places) != len(values):
        raise ValueError(
            f"features has shape {places.shape}, expected ({len(values)}, n_features). Pass one row a score."
        )
    kept = ranked[: shortlist * n]
    # In units of the largest entry, so that squares do not overflow.
    places = places[kept] / (np.max(np.abs(places[kept]), initial=0.0) or 1.0)
    chosen = [0]
    distance = np.full(len(kept), np.inf)
    while len(chosen) < n:
        distance = np.minimum(distance, np.linalg.norm(places - places[chosen[-1]], axis=1))
        distance[chosen] = -1.0
        chosen.append(int(np.argmax(distance)))
    return kept[chosen]


def active_learning(
    model: Any,
    X_train: ArrayLike,
    y_train: ArrayLike,
    X_pool: ArrayLike,
    y_pool: ArrayLike,
    *,
    n_additions: int,
    strategy: Acquisition | str = total_variance,
    update: Update | str = "partial_fit",
    random_state: int | np.random.Generator | np.random.RandomState | None = None,
) -> Iterator[Addition]:
    """Acquire the codes of a pool of observations one after the other, and update the model with each pair.

    Every step scores the pool with the current model and acquires the best remaining candidate. Arguments are
    validated at once; learning happens while the result is iterated over.

    Parameters
    ----------
    model : estimator
        With `fit` and `predict_dist`, and `partial_fit` for that update. It is modified. If it is not fitted, it is
        first fitted to the training pairs.
    X_train, y_train : array-like of shape (n_train, n_observed) and (n_train, n_components) or (n_train,)
        The initial training pairs.
    X_pool, y_pool : array-like of shape (n_pool, n_observed) and (n_pool, n_components) or (n_pool,)
        Candidate observations and their codes. A code is not used before its observation is acquired.
    n_additions : int
        Number of acquisitions, at most the size of the pool.
    strategy : callable, "variance_reduction" or "random", default=total_variance
        An acquisition function such as :func:`total_variance`; :func:`variance_reduction` with observations as
        features; or a random choice.
    update : {"partial_fit", "fit"} or callable, default="partial_fit"
        How a pair is learned: "partial_fit" with the new pair alone, or "fit" from scratch with all pairs. A callable
        ``update(model, X, y)`` gets all pairs so far, the newest last, and modifies the model.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        For "random". The order does not depend on `n_additions`.

    Returns
    -------
    iterator of Addition
        One for every acquisition: its index in the pool, its score and the model. Evaluate the model before the next
        iteration, which modifies it.

    Raises
    ------
    ValueError
        If shapes do not agree, an option is unknown, or a score has another shape than (n_pool,).
    TypeError
        If the model lacks a method that is needed.

    Examples
    --------
    >>> from bayeslista import BayesLISTA
    >>> from bayeslista.active import active_learning, total_variance
    >>> from bayeslista.datasets import make_sparse_codes
    >>> data = make_sparse_codes(n_train=60, n_test=0, n_observed=8, n_components=10, random_state=0)
    >>> known, pool = slice(0, 50), slice(50, 60)
    >>> model = BayesLISTA(n_layers=2, design_matrix=data.design_matrix, max_iter=5, random_state=0)
    >>> steps = active_learning(
    ...     model, data.Y_train[known], data.B_train[known], data.Y_train[pool], data.B_train[pool],
    ...     n_additions=3, strategy=total_variance,
    ... )
    >>> taken = [step.pool_index for step in steps]
    >>> len(set(taken)), model.n_iter_
    (3, 6)
    """
    known = _check_pairs("train", X_train, y_train)
    pool = _check_pairs("pool", X_pool, y_pool)
    for name, ours, theirs in zip("Xy", known, pool, strict=True):
        if ours.shape[1:] != theirs.shape[1:]:
            raise ValueError(
                f"{name}_train has shape {ours.shape} and {name}_pool {theirs.shape}; they may differ in the first "
                "number only. Pass pairs of one and the same problem."
            )
    _check_count("n_additions", n_additions, 1, len(pool[0]), "Acquire no more than the pool holds.")
    if strategy not in ("random", "variance_reduction") and not callable(strategy):
        raise ValueError(
            f"strategy must be a score, 'variance_reduction' or 'random', got {strategy!r}. Pass, say, total_variance."
        )
    if update not in ("partial_fit", "fit") and not callable(update):
        raise ValueError(f"update must be 'partial_fit', 'fit' or a callable, got {update!r}. Choose one of them.")
    needed = ["fit", *([] if strategy == "random" else ["predict_dist"]), *([] if callable(update) else [update])]
    lacking = [name for name in needed if not hasattr(model, name)]
    if lacking:
        raise TypeError(f"model has no {' and no '.join(lacking)}. Pass one that has, or another strategy or update.")
    if isinstance(random_state, (np.random.Generator, np.random.RandomState)):
        order = random_state.permutation(len(pool[0]))
    else:
        order = np.random.default_rng(random_state).permutation(len(pool[0]))
    return _additions(model, known, pool, n_additions, strategy, update, order)


def _additions(
    model: Any,
    known: tuple[np.ndarray, np.ndarray],
    pool: tuple[np.ndarray, np.ndarray],
    n_additions: int,
    strategy: Acquisition | str,
    update: Update | str,
    order: Int[np.ndarray, " n_pool"],
) -> Iterator[Addition]:
    try:
        check_is_fitted(model)
    except NotFittedError:
        model.fit(*known)
    left = np.ones(len(order), bool)
    for step in range(n_additions):
        index, score = int(order[step]), np.nan
        if strategy != "random":
            remaining = np.flatnonzero(left)
            # The whole pool each time: one shape is compiled once.
            distribution = model.predict_dist(pool[0])
            if callable(strategy):
                scores = as_real("The scores of strategy", strategy(distribution))
                if scores.shape != left.shape:
                    raise ValueError(
                        f"The scores of strategy have shape {scores.shape}, expected {left.shape}. "
                        "Return one a candidate."
                    )
                scores = scores[left]
            else:
                scores = variance_reduction(distribution[left], pool[0][left], known[0])
            best = select_batch(scores, 1)[0]
            index, score = int(remaining[best]), float(scores[best])
        left[index] = False
        new = pool[0][index : index + 1], pool[1][index : index + 1]
        known = np.concatenate([known[0], new[0]]), np.concatenate([known[1], new[1]])
        if callable(update):
            update(model, *known)
        elif update == "fit":
            model.fit(*known)
        else:
            model.partial_fit(*new)
        yield Addition(index, score, model)


def _binary_entropy(q: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return entr(q) + entr(1.0 - q)


def _check_distribution(distribution: Any) -> None:
    if not isinstance(distribution, SpikeSlab):
        raise TypeError(
            f"distribution must be a SpikeSlab, got {type(distribution).__name__}. Pass what predict_dist returns."
        )


def _sum_of_coefficients(
    distribution: SpikeSlab, values: Float[np.ndarray, "n_candidates ..."]
) -> Float[np.ndarray, " n_candidates"]:
    """Sums over the coefficients of each candidate, in double precision."""
    if len(distribution.shape) not in (1, 2):
        raise ValueError(
            f"distribution has shape {distribution.shape}, expected (n_candidates, n_components). "
            "Score all candidates together, one in a row."
        )
    return values.astype(np.float64).reshape(len(values), -1).sum(axis=1)


def _check_features(name: str, features: ArrayLike) -> Float[np.ndarray, "n n_features"]:
    places = as_real(name, features).astype(np.float64)
    if places.ndim != 2:
        raise ValueError(f"{name} has shape {places.shape}, expected (n, n_features). Pass one row a candidate.")
    check_entries(np.isfinite(places), name, places, "be finite", "Replace NaN and infinite entries.")
    return places


def _check_pairs(part: str, X: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Observations and codes as arrays of equal length; the model validates their entries."""
    observations, codes = np.asarray(X), np.asarray(y)
    if observations.ndim != 2 or codes.ndim not in (1, 2) or len(observations) != len(codes):
        raise ValueError(
            f"X_{part} has shape {observations.shape} and y_{part} {codes.shape}, expected (n, n_observed) and "
            "(n, n_components) or (n,). Pass one code for every observation."
        )
    return observations, codes


def _check_count(name: str, value: Any, least: int, most: float, remedy: str) -> None:
    if not isinstance(value, Integral) or not least <= int(value) <= most:
        span = f"of at least {least}" if most == np.inf else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {span}, got {value!r}. {remedy}")
