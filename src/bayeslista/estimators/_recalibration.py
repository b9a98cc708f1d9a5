"""Recalibration of predictions on pairs that a model did not learn from, and conformal intervals.

P(active) goes through a monotone map, isotonic or logistic. Means of slabs are multiplied by one number, variances by
another, and a third is added to these, all of maximum likelihood. Conformal intervals are central intervals of the
model's own distribution, at a level for each coefficient that held-out pairs decide.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit

from bayeslista.distributions import SpikeSlab
from bayeslista.metrics.forecasts import ForecastBlock, tails
from bayeslista.numerics.slabs import MixtureSlab

METHODS = ("isotonic", "logistic")

_NEAREST = 1e-12  # distance of a probability to 0 and 1 before its log-odds are taken
_ROUNDS = 3  # of alternating maximisation over the variances and the gain
_WEAK = 1e6  # inverse strength of the penalty on the logistic map


class IsotonicMap(NamedTuple):
    """A monotone map of probabilities, linear between knots."""

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]

    def apply(self, prob: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map probabilities."""
        return np.interp(prob, self.predicted, self.observed)


class LogisticMap(NamedTuple):
    """A linear map of log-odds; `lapse` keeps it from certainty."""

    intercept: float
    slope: float
    lapse: float

    def apply(self, prob: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map probabilities."""
        return np.clip(expit(self.intercept + self.slope * _log_odds(prob)), self.lapse, 1.0 - self.lapse)


class Recalibration(NamedTuple):
    """A map of P(active), gain and scale of slabs, variance to add, and tail probabilities of held-out codes."""

    activity: IsotonicMap | LogisticMap
    slab_gain: float  # factor of the means
    slab_scale: float  # factor of the standard deviations
    least_var: float  # added to the variances
    tails: NDArray[np.float64]  # the smaller tail of each true code, sorted over pairs, before recalibration

    def apply(self, dist: SpikeSlab) -> SpikeSlab:
        """Recalibrate a prediction of the model."""
        dtype = dist.prob_active.dtype
        prob_active = self.activity.apply(dist.prob_active.astype(np.float64)).astype(dtype)
        return dist._affine(prob_active, self.slab_gain, self.slab_scale, self.least_var)

    def interval(self, dist: SpikeSlab, level: float) -> tuple[NDArray[Any], NDArray[Any]]:
        """Conformal interval around a prediction of the model, before recalibration."""
        n = len(self.tails)
        rank = min(int((n + 1) * (1.0 - level) * (1.0 + 1e-12)), n)  # 0.1 · 210 is to be 21
        least = self.tails[rank - 1] if rank > 0 else np.zeros(self.tails.shape[1:])
        half = np.minimum(least, 0.5) * (1.0 - 1e-12)  # a true code at the very end is to be inside
        return dist.quantile(half), 0.0 - dist._mirrored().quantile(half)


def fit_recalibration(dist: SpikeSlab, codes: NDArray[np.floating], method: str) -> Recalibration:
    """Fit the recalibration of predictions to the true codes of the same shape."""
    prob, mean, var = (part.astype(np.float64) for part in (dist.prob_active, dist.slab_mean, dist.slab_var))
    code = codes.astype(np.float64)
    active = code != 0.0
    slab = dist._slab()
    lower, upper = tails(ForecastBlock(prob, mean, np.sqrt(var), code, slab if isinstance(slab, MixtureSlab) else None))
    return Recalibration(
        _fit_activity(prob.ravel(), active.ravel(), method),
        *_fit_slab(code[active], mean[active], var[active]),
        np.sort(np.minimum(lower, upper), axis=0),
    )


def _fit_slab(
    code: NDArray[np.float64], mean: NDArray[np.float64], var: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Gain of means, scale of standard deviations and added variance of maximum likelihood, for active coefficients.

    One pseudo-observation at the predicted scale regularises. A scale alone would be decided by a few slabs that are
    far too narrow.
    """
    proper = var > 0.0
    if not proper.any():
        return 1.0, 1.0, float(np.mean(np.square(code - mean))) if code.size else 0.0
    unit = float(np.exp(np.mean(np.log(var[proper]))))
    size = np.sqrt(unit)
    b, m, v = (
        np.append(code[proper], size) / size,
        np.append(mean[proper], 0.0) / size,
        np.append(var[proper], unit) / unit,
    )
    gain, point = 1.0, np.array([0.0, -2.0])
    for _ in range(_ROUNDS):
        square = np.square(b - gain * m)

        def loss(point: NDArray[np.float64], square: NDArray[np.float64] = square) -> tuple[float, Any]:
            scale, least = np.exp(point)
            total = scale * v + least
            slope = (1.0 - square / total) / total
            value = np.mean(np.log(total) + square / total)
            return float(value), np.array([scale * np.mean(slope * v), least * np.mean(slope)])

        point = minimize(loss, point, jac=True, method="L-BFGS-B", bounds=[(-12.0, 12.0)] * 2).x
        scale, least = np.exp(point)
        weight = 1.0 / (scale * v + least)
        # Weighted least squares of codes on means, with a pseudo-observation of slope one.
        gain = float((np.sum(weight * b * m) + 1.0) / (np.sum(weight * m * m) + 1.0))
    return gain, float(np.sqrt(scale)), float(least) * unit


def _fit_activity(prob: NDArray[np.float64], active: NDArray[np.bool_], method: str) -> IsotonicMap | LogisticMap:
    lapse = 0.5 / (prob.size + 2.0)
    if method == "isotonic":
        from sklearn.isotonic import IsotonicRegression  # slow to import, and seldom needed

        found = IsotonicRegression(y_min=lapse, y_max=1.0 - lapse, out_of_bounds="clip").fit(prob, active)
        return IsotonicMap(found.X_thresholds_.astype(np.float64), found.y_thresholds_.astype(np.float64))
    if active.all() or not active.any():
        return LogisticMap(0.0, 1.0, lapse)
    odds = _log_odds(prob)
    from sklearn.linear_model import LogisticRegression

    found = LogisticRegression(C=_WEAK, max_iter=1000).fit(odds[:, None], active)
    intercept, slope = float(found.intercept_[0]), float(found.coef_[0, 0])
    return LogisticMap(intercept, slope, lapse) if slope > 0.0 else LogisticMap(float(logit(active.mean())), 0.0, lapse)


def _log_odds(prob: NDArray[np.float64]) -> NDArray[np.float64]:
    return logit(np.clip(prob, _NEAREST, 1.0 - _NEAREST))
