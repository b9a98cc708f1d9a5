r"""Calibration of the network's output: a spike and slab for every coefficient, learned from held-out pairs.

For each coefficient a network gives the mean :math:`e` of its output and the Gaussian :math:`N(c_m, c_v)` before its
last soft-threshold. The mean is accurate; the variance and :math:`P(|c| > \lambda)` are not calibrated. The mean is
kept, the rest is learned:

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

_Floats = NDArray[np.float64]

# Prior of the head's parameters: mean, standard deviation and bounds. Slopes, scale and exponent have no unit.
_HEAD_CENTRE = np.array([-2.5, 2.0, 2.0, -0.7, 0.7])  # intercept, two slopes, log scale, variance exponent
_HEAD_STD = np.array([3.0, 1.0, 1.0, 1.0, 0.3])
_HEAD_BOUNDS = ((-15.0, 15.0), (-8.0, 8.0), (-8.0, 8.0), (-8.0, 8.0), (0.0, 1.0))
_SLOPE_DIFFERENCE_STD = 0.5  # of the prior that the slopes of the two signs are alike
_EXCESS_CENTRE = 0.75  # κ over the root mean squared error per active coefficient
_EXCESS_STD = 0.5  # of log κ
_EXCESS_GRID = np.geomspace(0.05, 8.0, 16)  # κ over the same unit, ...
_EXCESS_REFINEMENT = np.geomspace(0.7, 1.4, 15)  # ... and the finer grid around the best
_PSEUDO_COUNT = 1.0  # active coefficients whose squared error is the codes' own mean square
_WITHIN_AT_LEAST = 0.1  # share of the squared error that the slab variance explains
_LOG_RATIO_BOUND = 7.0  # of log(variance / typical variance)
_TINY_VAR = 1e-300
_USEFUL, _USEFUL_SQUARED = 0.9, 0.5  # relative and squared error, over those of predicting zero
_GAINS = np.linspace(0.0, 1.0, 41).tolist()


class Calibration(NamedTuple):
    """Parameters of the calibrated spike and slab; in the module's equations a, b₊, b₋, k, c̄_v, γ, κ and v₀."""

    intercept: float
    slope_positive: float
    slope_negative: float
    scale: float
    typical_var: float
    var_exponent: float
    slab_excess: float
    slab_var: float
    lapse: float  # no probability is nearer to 0 or 1


def fit_calibration(c_mean: ArrayLike, c_var: ArrayLike, mean: ArrayLike, code: ArrayLike) -> Calibration:
    """Fit the calibration to held-out pairs: moments before the last threshold, the output's mean and the codes.

    The head is the maximum a posteriori estimate given the active set; then κ maximises the mixed-measure log score
    over distributions whose mean variance is the mean squared error. The priors weigh about one coefficient each.
    """
    c, w, e, b = (x.ravel() for x in _doubles(c_mean, c_var, mean, code))
    active, unit, square = b != 0.0, _mean_or_one(np.append(e * e, b * b)), _mean_or_one(c * c)
    positive = w > _TINY_VAR
    typical = float(np.exp(np.mean(np.log(w[positive])))) if positive.any() else _TINY_VAR
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
        return score - 0.5 * (float(np.log(relative / _EXCESS_CENTRE)) / _EXCESS_STD) ** 2, v

    relative = max(_EXCESS_GRID.tolist(), key=try_excess)
    relative = max((relative * _EXCESS_REFINEMENT).tolist(), key=try_excess)
    return draft._replace(slab_excess=relative * per_active, slab_var=try_excess(relative)[1])


def calibrated_spike_slab(
    calibration: Calibration, c_mean: ArrayLike, c_var: ArrayLike, mean: ArrayLike
) -> tuple[_Floats, _Floats, _Floats]:
    """P(active), slab mean and slab variance: ``prob_active * slab_mean`` is ``mean`` to rounding."""
    c, w, e = _doubles(c_mean, c_var, mean)
    log_ratio = _log_ratio(w, calibration.typical_var)
    q = _raise(_head(calibration, c, log_ratio), e, calibration.slab_excess, calibration.lapse)
    return q, e / q, calibration.slab_var * np.exp(calibration.var_exponent * log_ratio)


def fast_spike_slab(
    calibration: Calibration, c_mean: Float[Array, "..."], c_var: Float[Array, "..."], mean: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
    """:func:`calibrated_spike_slab` inside compiled functions, in the type of `c_var`, results in that of `mean`."""
    given, dtype = calibration, c_var.dtype
    tiny, largest = (float(value) for value in (jnp.finfo(dtype).tiny, jnp.finfo(dtype).max))
    typical = max(_TINY_VAR, tiny) if dtype == jnp.float32 else _TINY_VAR
    log_ratio = jnp.log(jnp.maximum(c_var, typical)) - jnp.log(jnp.maximum(given.typical_var, typical)).astype(dtype)
    log_ratio = given.var_exponent * jnp.clip(log_ratio, -_LOG_RATIO_BOUND, _LOG_RATIO_BOUND).astype(dtype)
    # Squares in units of the scale, bounded so that they do not overflow.
    relative = jnp.minimum(jnp.abs(c_mean) / jnp.sqrt(given.scale), largest**0.25).astype(dtype)
    slope = jnp.where(c_mean > 0, given.slope_positive, given.slope_negative).astype(dtype)
    # log(1 + u) and 1/(1 + exp(−x)) directly: more accurate forms would gain only the last digit of the sum.
    odds = given.intercept + slope * jnp.log(1 + relative * relative * jnp.exp(-log_ratio))
    # q = max(q₀, |e|/(|e| + κ)), both as 1/(1 + x)
    raised = 1 / (1 + jnp.minimum(jnp.exp(-odds), given.slab_excess / jnp.abs(mean)).astype(dtype))
    prob_active = jnp.clip(raised, given.lapse, 1 - given.lapse).astype(mean.dtype)
    return prob_active, mean / prob_active, (given.slab_var * jnp.exp(log_ratio)).astype(mean.dtype)


def output_gain(mean: ArrayLike, code: ArrayLike) -> float:
    r"""Factor of the predictions in [0, 1] that makes them no worse than predicting zero; 1 in the ordinary case.

    A small squared error allows a relative error :math:`\|\hat\beta-\beta\| / \|\beta\|` over 1 for small codes in
    large noise. If its mean exceeds 0.9, and the squared error half of the codes' power, the result is the smallest
    gain whose relative error is within one standard error of the least.
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
    """Intercept, slopes, log scale and exponent: the maximum a posteriori estimate given the active set."""

    def loss(theta: _Floats) -> tuple[float, _Floats]:
        growth, share = _growth(c, log_ratio, theta[3], theta[4])
        slope = np.where(c > 0.0, theta[1], theta[2])
        odds = theta[0] + slope * growth
        step = expit(odds) - active
        by_growth, by_scale = step * growth, -step * slope * share
        away, apart = (theta - _HEAD_CENTRE) / _HEAD_STD, (theta[1] - theta[2]) / _SLOPE_DIFFERENCE_STD
        value = np.sum(np.logaddexp(0.0, odds) - active * odds) + 0.5 * (away @ away + apart**2)
        up, down = by_growth[c > 0.0].sum(), by_growth[c <= 0.0].sum()
        gradient = np.array([step.sum(), up, down, by_scale.sum(), by_scale @ log_ratio]) + away / _HEAD_STD
        gradient[1:3] += np.array([1.0, -1.0]) * apart / _SLOPE_DIFFERENCE_STD
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
    """q₀, the probability of being active given the pre-activation alone."""
    growth, _ = _growth(c, log_ratio, np.log(calibration.scale), calibration.var_exponent)
    return expit(
        calibration.intercept + np.where(c > 0.0, calibration.slope_positive, calibration.slope_negative) * growth
    )


def _raise(head: _Floats, e: _Floats, excess: float, lapse: float) -> _Floats:
    """Q = max(q₀, |e|/(|e| + κ)): the slab mean ``e/q`` exceeds ``|e|`` by at most κ, the excess."""
    size = np.abs(e)
    return np.clip(np.maximum(head, size / (size + excess)), lapse, 1.0 - lapse)


def _log_ratio(w: _Floats, typical: float) -> _Floats:
    """log(c_v / c̄_v), bounded."""
    return np.clip(np.log(np.maximum(w, _TINY_VAR)) - np.log(typical), -_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)


def _mean_or_one(values: _Floats) -> float:
    """Mean; one for no values and for zeros."""
    return float(values.mean()) if values.any() else 1.0


def _doubles(*arrays: ArrayLike) -> tuple[_Floats, ...]:
    """Arrays broadcast to one shape, in double precision."""
    return np.broadcast_arrays(*(np.asarray(x, np.float64) for x in arrays))
