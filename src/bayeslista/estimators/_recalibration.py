"""What pairs that a model did not learn from can still mend in its predictions, and intervals that they vouch for.

P(active) goes through a monotone map, isotonic or logistic; means of slabs are multiplied by one number, variances by
another, and a third is added to these: those of greatest likelihood. Conformal intervals need none of it: they are
central intervals of the model's own distribution, of a level that held-out pairs decide for each coefficient, and so
hold whatever the model got wrong.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit

from bayeslista.distributions import SpikeSlab
from bayeslista.metrics._forecasts import Block, tails

METHODS = ("isotonic", "logistic")

_NEAREST = 1e-12  # to 0 or 1 that a probability may be before its log-odds are taken
_ROUNDS = 3  # of the gain and the variance in turn
_WEAK = 1e6  # inverse strength of the penalty on the logistic map


class IsotonicMap(NamedTuple):
    """A monotone map of probabilities, linear between knots."""

    said: NDArray[np.float64]
    observed: NDArray[np.float64]

    def apply(self, prob: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map probabilities."""
        return np.interp(prob, self.said, self.observed)


class LogisticMap(NamedTuple):
    """A linear map of log-odds; `lapse` keeps it from certainty."""

    intercept: float
    slope: float
    lapse: float

    def apply(self, prob: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map probabilities."""
        return np.clip(expit(self.intercept + self.slope * _log_odds(prob)), self.lapse, 1.0 - self.lapse)


class Recalibration(NamedTuple):
    """What held-out pairs taught.

    Attributes
    ----------
    activity : IsotonicMap or LogisticMap
        From P(active) as predicted to what came true.
    slab_gain : float
        What means of slabs are multiplied by.
    slab_scale : float
        What standard deviations of slabs are multiplied by, before
    least_var : float
        is added to their variances.
    tails : ndarray of shape (n_pairs, n_components) or (n_pairs,)
        For each coefficient, in ascending order, the smaller of the two probabilities that the model, before this,
        gave to values as far out as the true ones.
    """

    activity: IsotonicMap | LogisticMap
    slab_gain: float
    slab_scale: float
    least_var: float
    tails: NDArray[np.float64]

    def apply(self, dist: SpikeSlab) -> SpikeSlab:
        """Recalibrate a prediction of the model."""
        dtype = dist.prob_active.dtype
        prob_active = self.activity.apply(dist.prob_active.astype(np.float64)).astype(dtype)
        slab_var = dist.slab_var.astype(np.float64) * self.slab_scale**2 + self.least_var
        return SpikeSlab(prob_active, dist.slab_mean * dtype.type(self.slab_gain), slab_var.astype(dtype))

    def interval(self, dist: SpikeSlab, level: float) -> tuple[NDArray, NDArray]:
        """Conformal interval around a prediction of the model, before recalibration."""
        n = len(self.tails)
        rank = min(int((n + 1) * (1.0 - level) * (1.0 + 1e-12)), n)  # 0.1 · 210 is to be 21
        least = self.tails[rank - 1] if rank > 0 else np.zeros(self.tails.shape[1:])
        half = np.minimum(least, 0.5) * (1.0 - 1e-12)  # a true code at the very end is to be inside
        mirrored = SpikeSlab(dist.prob_active, -dist.slab_mean, dist.slab_var)
        return dist.quantile(half), 0.0 - mirrored.quantile(half)


def fit_recalibration(dist: SpikeSlab, codes: NDArray[np.floating], method: str) -> Recalibration:
    """Learn from what a model predicted for pairs that it did not learn from.

    Parameters
    ----------
    dist : SpikeSlab of shape (n_pairs, n_components) or (n_pairs,)
        What it predicted.
    codes : ndarray of the same shape
        The true codes.
    method : {"isotonic", "logistic"}
        The map of P(active).

    Returns
    -------
    Recalibration
        To apply to other predictions of the same model.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.estimators._recalibration import fit_recalibration
    >>> truth = SpikeSlab(np.full((2000, 2), 0.2), 1.0, 1.0)
    >>> codes = truth.sample(1, random_state=0)[0]
    >>> said = SpikeSlab(np.full((2000, 2), 0.5), 1.0, 4.0)  # too often active, too wide
    >>> mended = fit_recalibration(said, codes, "isotonic").apply(said)
    >>> mended.prob_active[0].round(1), mended.slab_var[0].round()
    (array([0.2, 0.2]), array([1., 1.]))
    """
    prob, mean, var = (part.astype(np.float64) for part in (dist.prob_active, dist.slab_mean, dist.slab_var))
    code = codes.astype(np.float64)
    active = code != 0.0
    lower, upper = tails(Block(prob, mean, np.sqrt(var), code))
    return Recalibration(
        _fit_activity(prob.ravel(), active.ravel(), method),
        *_fit_slab(code[active], mean[active], var[active]),
        np.sort(np.minimum(lower, upper), axis=0),
    )


def _fit_slab(
    code: NDArray[np.float64], mean: NDArray[np.float64], var: NDArray[np.float64]
) -> tuple[float, float, float]:
    """Gain of means, scale of standard deviations and least variance of greatest likelihood, for active coefficients.

    One coefficient that the slab was right about counts, too. A scale alone would be at the mercy of a few slabs that
    are far too narrow.
    """
    known = var > 0.0
    if not known.any():
        return 1.0, 1.0, float(np.mean(np.square(code - mean))) if code.size else 0.0
    unit = float(np.exp(np.mean(np.log(var[known]))))
    size = np.sqrt(unit)
    b, m, v = (
        np.append(code[known], size) / size,
        np.append(mean[known], 0.0) / size,
        np.append(var[known], unit) / unit,
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
        # The coefficient that was right about its mean has a slope of one.
        gain = float((np.sum(weight * b * m) + 1.0) / (np.sum(weight * m * m) + 1.0))
    return gain, float(np.sqrt(scale)), float(least) * unit


def _fit_activity(prob: NDArray[np.float64], active: NDArray[np.bool_], method: str) -> IsotonicMap | LogisticMap:
    lapse = 0.5 / (prob.size + 2.0)
    if method == "isotonic":
        from sklearn.isotonic import IsotonicRegression  # as slow to import as all else here, and seldom needed

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
