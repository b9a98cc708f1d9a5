r"""From what a trained network says to a calibrated spike and slab, learned from held-out pairs.

For each coefficient a network gives the mean :math:`e` of its output and the Gaussian :math:`N(c_m, c_v)` just
before its last soft-threshold. The mean is good; the spread is not, and :math:`P(|c| > \lambda)` is no
probability of being active. This module keeps the mean and learns the rest:

.. math::

    \mathrm{logit}\, q_0 = a + b_\pm \log(1 + c_m^2 / (k r)), \qquad
    q = \max\!\Big(q_0, \frac{|e|}{|e| + \kappa}\Big), \qquad
    m = \frac{e}{q}, \qquad v = v_0\, r, \qquad r = (c_v / \bar c_v)^\gamma .

The mean of the result is exactly :math:`e` and no slab mean exceeds :math:`|e|` by more than :math:`\kappa`. The
derivation, and what was measured, is in ``docs/predictive.md``.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit

__all__ = ["Calibration", "calibrated_spike_slab", "fit_calibration", "output_gain", "quick_spike_slab"]

_Floats = NDArray[np.float64]

# Where the parameters of the head stand before any pair is seen, how far (standard deviations) they may be
# expected from there, and where they stop. Slopes, scale and exponent have no unit.
_HEAD_CENTRE = np.array([-2.5, 2.0, 2.0, -0.7, 0.7])  # intercept, two slopes, log scale, variance exponent
_HEAD_SPREAD = np.array([3.0, 1.0, 1.0, 1.0, 0.3])
_HEAD_BOUNDS = ((-15.0, 15.0), (-8.0, 8.0), (-8.0, 8.0), (-8.0, 8.0), (0.0, 1.0))
_SLOPE_DIFFERENCE_SPREAD = 0.5  # the two signs are alike unless the pairs say otherwise
_EXCESS_CENTRE = 0.75  # κ over the root mean squared error per active coefficient
_EXCESS_SPREAD = 0.5  # of log κ
_EXCESS_GRID = np.geomspace(0.05, 8.0, 16)  # κ over the same unit, ...
_EXCESS_REFINEMENT = np.geomspace(0.7, 1.4, 15)  # ... and the finer grid around the best
_PSEUDO_COUNT = 1.0  # active coefficients whose squared error is the codes' own mean square
_WITHIN_AT_LEAST = 0.1  # share of the squared error that the slab's own width has to explain
_LOG_RATIO_BOUND = 7.0  # a variance further than e^±7 from the typical one counts as that far
_TINY_VAR = 1e-300
_USEFUL, _USEFUL_SQUARED = 0.9, 0.5  # of the relative and of the squared error of predicting nothing
_GAINS = np.linspace(0.0, 1.0, 41).tolist()


class Calibration(NamedTuple):
    """What held-out pairs taught about activity and spread; :func:`calibrated_spike_slab` applies it.

    Attributes
    ----------
    intercept : float
        Log-odds of being active at ``c_mean = 0``, before ``lapse``.
    slope_positive, slope_negative : float
        Growth of the log-odds with the logarithm of ``c_mean²``, for either sign of ``c_mean``.
    scale : float
        Square of the ``c_mean`` at which that growth sets in, at the typical variance.
    typical_var : float
        Geometric mean of ``c_var`` over the held-out pairs.
    var_exponent : float
        Power, in [0, 1], of ``c_var`` over ``typical_var`` that ``scale`` and ``slab_var`` follow.
    slab_excess : float
        Most by which the slab mean may exceed the mean in absolute value.
    slab_var : float
        Slab variance at the typical variance.
    lapse : float
        No probability is nearer to 0 or 1 than this.
    """

    intercept: float
    slope_positive: float
    slope_negative: float
    scale: float
    typical_var: float
    var_exponent: float
    slab_excess: float
    slab_var: float
    lapse: float


def fit_calibration(c_mean: ArrayLike, c_var: ArrayLike, mean: ArrayLike, code: ArrayLike) -> Calibration:
    """Learn from held-out pairs how active and how far from the mean the codes are.

    The head is the maximum of the posterior of which coefficients are active; then the slab's excess is the one
    of best mixed-measure log score among the spike-and-slab distributions whose mean variance is the mean
    squared error. Weak priors, worth about one coefficient each, decide where the pairs are silent.

    Parameters
    ----------
    c_mean, c_var : array-like
        Mean and variance before the last threshold, for held-out pairs that did not train the network.
    mean : array-like
        Mean of the network's output. (Its variance, which follows from ``c_mean`` and ``c_var``, was found to add
        next to nothing to them.)
    code : array-like
        The true codes.

    Returns
    -------
    Calibration
        Finite for any finite input, none at all included.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.calibration import calibrated_spike_slab, fit_calibration
    >>> random = np.random.default_rng(0)
    >>> code = random.normal(0, 2, (20, 50)) * (random.random((20, 50)) < 0.2)
    >>> c_mean, c_var = code + random.normal(0, 0.3, code.shape), np.full(code.shape, 0.09)
    >>> mean = np.sign(c_mean) * np.maximum(np.abs(c_mean) - 0.3, 0)
    >>> calibration = fit_calibration(c_mean, c_var, mean, code)
    >>> prob_active, slab_mean, slab_var = calibrated_spike_slab(calibration, [0.0, 3.0], 0.09, [0.0, 2.7])
    >>> prob_active.round(1)
    array([0., 1.])
    """
    c, w, e, b = (x.ravel() for x in _doubles(c_mean, c_var, mean, code))
    active, unit, square = b != 0.0, _mean_or_one(np.append(e * e, b * b)), _mean_or_one(c * c)
    known = w > _TINY_VAR
    typical = float(np.exp(np.mean(np.log(w[known])))) if known.any() else _TINY_VAR
    log_ratio = _log_ratio(w, typical)
    intercept, up, down, log_scale, exponent = _fit_head(c / np.sqrt(square), log_ratio, active)
    scale, lapse = float(np.exp(log_scale)) * square, 0.5 / (b.size + 2.0)
    draft = Calibration(intercept, up, down, scale, typical, exponent, slab_excess=1.0, slab_var=1.0, lapse=lapse)
    head, ratio = _head(draft, c, log_ratio), np.exp(exponent * log_ratio)
    error = float(np.sum((e - b) ** 2))
    per_active = float(np.sqrt((error + _PSEUDO_COUNT * unit) / (np.sum(active) + _PSEUDO_COUNT)))

    def try_excess(relative: float) -> tuple[float, float]:
        """Penalised log score of an excess, and the slab variance with which it matches the squared error."""
        q = _raise(head, e, relative * per_active, lapse)
        m = e / q
        between = float(np.sum(np.abs(e) * (np.abs(m) - np.abs(e))))
        within = max(error - between, _WITHIN_AT_LEAST * error)
        v = (within + _PSEUDO_COUNT * unit) / (float(np.sum(q * ratio)) + _PSEUDO_COUNT)
        slab = np.log(q) - 0.5 * (np.log(2.0 * np.pi * v * ratio) + (b - m) ** 2 / (v * ratio))
        score = float(np.sum(np.where(active, slab, np.log1p(-q))))
        return score - 0.5 * (float(np.log(relative / _EXCESS_CENTRE)) / _EXCESS_SPREAD) ** 2, v

    relative = max(_EXCESS_GRID.tolist(), key=try_excess)
    relative = max((relative * _EXCESS_REFINEMENT).tolist(), key=try_excess)
    return draft._replace(slab_excess=relative * per_active, slab_var=try_excess(relative)[1])


def calibrated_spike_slab(
    calibration: Calibration, c_mean: ArrayLike, c_var: ArrayLike, mean: ArrayLike
) -> tuple[_Floats, _Floats, _Floats]:
    """One spike and slab for each coefficient, with the network's mean and a calibrated spread.

    Parameters
    ----------
    calibration : Calibration
        From :func:`fit_calibration`.
    c_mean, c_var : array-like
        Mean and variance before the last threshold.
    mean : array-like
        Mean of the network's output. All three broadcast against each other.

    Returns
    -------
    prob_active, slab_mean, slab_var : ndarray
        ``prob_active * slab_mean`` is ``mean`` to rounding, ``slab_var`` is positive.

    Examples
    --------
    >>> from bayeslista.calibration import Calibration, calibrated_spike_slab
    >>> calibration = Calibration(-2.0, 2.0, 2.0, 0.5, 0.1, 0.7, slab_excess=1.0, slab_var=0.3, lapse=1e-3)
    >>> prob_active, slab_mean, slab_var = calibrated_spike_slab(calibration, [0.1, 2.0], 0.1, [0.01, 1.8])
    >>> prob_active.round(2), slab_mean.round(2), slab_var
    (array([0.12, 0.92]), array([0.08, 1.96]), array([0.3, 0.3]))
    """
    c, w, e = _doubles(c_mean, c_var, mean)
    log_ratio = _log_ratio(w, calibration.typical_var)
    q = _raise(_head(calibration, c, log_ratio), e, calibration.slab_excess, calibration.lapse)
    return q, e / q, calibration.slab_var * np.exp(calibration.var_exponent * log_ratio)


def quick_spike_slab(
    calibration: Calibration, c_mean: Float[Array, "..."], c_var: Float[Array, "..."], mean: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    """What :func:`calibrated_spike_slab` says, as a part of a compiled function.

    Parameters
    ----------
    calibration : Calibration
        From :func:`fit_calibration`.
    c_mean, c_var : array
        Mean and variance before the last threshold. All but the mean of the slab is computed in the type of `c_var`.
    mean : array
        Mean of the network's output.

    Returns
    -------
    prob_active, slab_mean, slab_var : array
        All of the type of `mean`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.calibration import Calibration, quick_spike_slab
    >>> calibration = Calibration(-2.0, 2.0, 2.0, 0.5, 0.1, 0.7, slab_excess=1.0, slab_var=0.3, lapse=1e-3)
    >>> entering = jnp.array([0.1, 2.0]), jnp.full(2, 0.1)
    >>> prob_active, _, _ = quick_spike_slab(calibration, *entering, jnp.array([0.0, 1.8]))
    >>> [round(float(probability), 2) for probability in prob_active]
    [0.12, 0.92]
    """
    given, dtype = calibration, c_var.dtype
    tiny, largest = (float(value) for value in (jnp.finfo(dtype).tiny, jnp.finfo(dtype).max))
    typical = max(_TINY_VAR, tiny) if dtype == jnp.float32 else _TINY_VAR
    log_ratio = jnp.log(jnp.maximum(c_var, typical)) - jnp.log(jnp.maximum(given.typical_var, typical)).astype(dtype)
    log_ratio = given.var_exponent * jnp.clip(log_ratio, -_LOG_RATIO_BOUND, _LOG_RATIO_BOUND).astype(dtype)
    # Squares in units of the scale, which have room for any that is not beyond all doubt.
    relative = jnp.minimum(jnp.abs(c_mean) / jnp.sqrt(given.scale), largest**0.25).astype(dtype)
    slope = jnp.where(c_mean > 0, given.slope_positive, given.slope_negative).astype(dtype)
    # log(1 + u) and 1/(1 + exp(−x)) as they stand: better forms would gain a last place of what is added to.
    odds = given.intercept + slope * jnp.log(1 + relative * relative * jnp.exp(-log_ratio))
    # The larger of that and size/(size + excess), both as 1/(1 + x).
    raised = 1 / (1 + jnp.minimum(jnp.exp(-odds), given.slab_excess / jnp.abs(mean)).astype(dtype))
    prob_active = jnp.clip(raised, given.lapse, 1 - given.lapse).astype(mean.dtype)
    return prob_active, mean / prob_active, (given.slab_var * jnp.exp(log_ratio)).astype(mean.dtype)


def output_gain(mean: ArrayLike, code: ArrayLike) -> float:
    r"""What to multiply predictions by so that they are no worse than predicting nothing.

    The mean squared error is what a network learns to lower; the relative error
    :math:`\|\hat\beta-\beta\| / \|\beta\|` of small codes may exceed 1 all the same, where noise drowns them. Only if
    its mean exceeds 0.9, as near to 1 as few pairs can tell, and more than half of the codes' power is missed, a gain
    is taken: the smallest whose relative error is within one standard error of the least.

    Parameters
    ----------
    mean, code : array-like of shape (n, D)
        Predictions, and the true codes.

    Returns
    -------
    float
        1 in the ordinary case, else one of 0, 0.025, … 0.975 and 1.

    Examples
    --------
    >>> from bayeslista.calibration import output_gain
    >>> output_gain([[2.0], [0.1]], [[2.0], [0.1]]), output_gain([[2.0], [4.0]], [[0.5], [1.0]])
    (1.0, 0.25)
    """
    e, b = _doubles(mean, code)
    norm = np.linalg.norm(b, axis=1)
    e, b, norm = e[norm > 0], b[norm > 0], norm[norm > 0]

    errors = np.array([np.linalg.norm(gain * e - b, axis=1) / norm for gain in _GAINS])
    missed = np.sum((e - b) ** 2)
    if np.sum(errors[-1]) <= _USEFUL * len(norm) or missed <= _USEFUL_SQUARED * np.sum(b * b):
        return 1.0
    means = np.mean(errors, axis=1)
    best = int(np.argmin(means))
    return _GAINS[int(np.argmax(means <= means[best] + np.std(errors[best]) / np.sqrt(len(norm))))]


def _fit_head(c: _Floats, log_ratio: _Floats, active: NDArray[np.bool_]) -> list[float]:
    """Intercept, slopes, log scale and exponent of greatest posterior density given which are active."""

    def loss(theta: _Floats) -> tuple[float, _Floats]:
        growth, share = _growth(c, log_ratio, theta[3], theta[4])
        slope = np.where(c > 0.0, theta[1], theta[2])
        odds = theta[0] + slope * growth
        step = expit(odds) - active
        by_growth, by_scale = step * growth, -step * slope * share
        away, apart = (theta - _HEAD_CENTRE) / _HEAD_SPREAD, (theta[1] - theta[2]) / _SLOPE_DIFFERENCE_SPREAD
        value = np.sum(np.logaddexp(0.0, odds) - active * odds) + 0.5 * (away @ away + apart**2)
        up, down = by_growth[c > 0.0].sum(), by_growth[c <= 0.0].sum()
        gradient = np.array([step.sum(), up, down, by_scale.sum(), by_scale @ log_ratio]) + away / _HEAD_SPREAD
        gradient[1:3] += np.array([1.0, -1.0]) * apart / _SLOPE_DIFFERENCE_SPREAD
        return value / (c.size + 1.0), gradient / (c.size + 1.0)

    tight = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 500}
    fit = minimize(loss, _HEAD_CENTRE, jac=True, method="L-BFGS-B", bounds=_HEAD_BOUNDS, options=tight)
    return [float(x) for x in fit.x]


def _growth(c: _Floats, log_ratio: _Floats, log_scale: float, exponent: float) -> tuple[_Floats, _Floats]:
    """``log(1 + u)`` and ``u/(1 + u)`` of ``u = c²/(scale · ratio)``, however large or small ``c`` is."""
    with np.errstate(divide="ignore"):
        log_u = 2.0 * np.log(np.abs(c)) - log_scale - exponent * log_ratio
    return np.logaddexp(0.0, log_u), expit(log_u)


def _head(calibration: Calibration, c: _Floats, log_ratio: _Floats) -> _Floats:
    """Probability of being active as the pre-activation alone tells it."""
    growth, _ = _growth(c, log_ratio, np.log(calibration.scale), calibration.var_exponent)
    return expit(
        calibration.intercept + np.where(c > 0.0, calibration.slope_positive, calibration.slope_negative) * growth
    )


def _raise(head: _Floats, e: _Floats, excess: float, lapse: float) -> _Floats:
    """Raise the probability to where the slab mean ``e/q`` exceeds ``|e|`` by no more than ``excess``."""
    size = np.abs(e)
    return np.clip(np.maximum(head, size / (size + excess)), lapse, 1.0 - lapse)


def _log_ratio(w: _Floats, typical: float) -> _Floats:
    """Bounded logarithm of a variance over the typical one."""
    return np.clip(np.log(np.maximum(w, _TINY_VAR)) - np.log(typical), -_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)


def _mean_or_one(values: _Floats) -> float:
    """Mean; one where there is nothing to average or nothing but zeros."""
    return float(values.mean()) if values.any() else 1.0


def _doubles(*arrays: ArrayLike) -> tuple[_Floats, ...]:
    """Arrays of one common shape in double precision."""
    return np.broadcast_arrays(*(np.asarray(x, np.float64) for x in arrays))
