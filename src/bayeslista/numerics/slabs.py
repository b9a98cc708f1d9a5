"""Slabs: the distribution of a coefficient that is not zero, one Gaussian or a mixture of Gaussians.

`SpikeSlab` and the metrics work with any of them through the same few methods: tails, quantiles, log density, draws,
and the mean distances that the CRPS consists of. A part of zero variance is a point mass. All is double precision.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]

_HALF_LOG_TWO_PI = 0.5 * np.log(2.0 * np.pi)
_ROOT_TWO_OVER_PI, _ROOT_PI = np.sqrt(2.0 / np.pi), np.sqrt(np.pi)
_MOST_ITERATIONS = 200  # of safeguarded Newton steps; a dozen suffice unless parts are points
_NODES = 40  # of the quadrature of an entropy
_EPSILON = float(np.finfo(np.float64).eps)


class GaussianSlab(NamedTuple):
    """One Gaussian for each coefficient."""

    mean: Floats
    std: Floats

    def lower(self, x: Floats) -> Floats:
        """``P(S ≤ x)``."""
        return ndtr(_standardised(x, self.mean, self.std))

    def upper(self, x: Floats) -> Floats:
        """``P(S ≥ x)``, for a point mass ``P(S > x)``."""
        return ndtr(-_standardised(x, self.mean, self.std))

    def log_density(self, x: Floats) -> Floats:
        """Log density; infinite at a point mass."""
        return _log_gaussian(x, self.mean, self.std)

    def point_mass(self, x: Floats) -> Floats:
        """``P(S = x)``."""
        return np.where((self.std == 0.0) & (x == self.mean), 1.0, 0.0)

    def entropy(self) -> Floats:
        """Differential entropy; −inf of a point mass."""
        with np.errstate(divide="ignore"):
            return np.log(self.std) + (_HALF_LOG_TWO_PI + 0.5)

    def is_zero(self) -> NDArray[np.bool_]:
        """Whether all the mass is at zero."""
        return (self.std == 0.0) & (self.mean == 0.0)

    def bounded(self) -> NDArray[np.bool_]:
        """Whether the support is a point."""
        return self.std == 0.0

    def quantile(self, lower: Floats, upper: Floats) -> Floats:
        """Quantile with these probabilities on either side, of which the smaller one decides."""
        score = np.where(lower < upper, ndtri(lower), -ndtri(upper))
        return self.mean + self.std * np.where(self.std > 0.0, score, 0.0)

    def draw(self, source: Any, shape: tuple[int, ...]) -> Floats:
        """Draws of a shape that ends with that of the slab."""
        return self.mean + self.std * source.standard_normal(shape)

    def mirrored(self) -> "GaussianSlab":
        """The slab of −S."""
        return GaussianSlab(-self.mean, self.std)

    def distance(self, x: Floats | float) -> Floats:
        """Mean of ``|S − x|``."""
        return mean_size(x - self.mean, self.std)

    def difference(self) -> Floats:
        """Mean of ``|S − S′|`` for two independent draws."""
        return self.std * (2.0 / _ROOT_PI)


class MixtureSlab(NamedTuple):
    """A mixture of Gaussians for each coefficient; the last axis counts the parts, of which weights sum to one."""

    weight: Floats
    mean: Floats
    std: Floats

    def lower(self, x: Floats) -> Floats:
        """``P(S ≤ x)``."""
        return np.sum(self.weight * ndtr(_standardised(x[..., None], self.mean, self.std)), axis=-1)

    def upper(self, x: Floats) -> Floats:
        """``P(S ≥ x)``, where there are no point masses."""
        return np.sum(self.weight * ndtr(-_standardised(x[..., None], self.mean, self.std)), axis=-1)

    def log_density(self, x: Floats) -> Floats:
        """Log density; infinite at a point mass."""
        with np.errstate(divide="ignore"):
            parts = np.log(self.weight) + _log_gaussian(x[..., None], self.mean, self.std)
        parts = np.where(self.weight > 0.0, parts, -np.inf)
        return np.logaddexp.reduce(parts, axis=-1)

    def point_mass(self, x: Floats) -> Floats:
        """``P(S = x)``."""
        return np.sum(np.where((self.std == 0.0) & (x[..., None] == self.mean), self.weight, 0.0), axis=-1)

    def entropy(self) -> Floats:
        """Differential entropy, by Gauss-Hermite quadrature around each part; −inf if a part is a point mass."""
        total = np.zeros(self.mean.shape[:-1])
        for node, share in zip(*np.polynomial.hermite_e.hermegauss(_NODES), strict=True):
            for part in range(self.mean.shape[-1]):
                loss = -self.log_density(self.mean[..., part] + node * self.std[..., part])
                with np.errstate(invalid="ignore"):
                    loss = self.weight[..., part] * (share / np.sqrt(2.0 * np.pi)) * loss
                total = total + np.where(self.weight[..., part] > 0.0, loss, 0.0)
        return total

    def is_zero(self) -> NDArray[np.bool_]:
        """Whether all the mass is at zero."""
        return np.all((self.weight == 0.0) | ((self.std == 0.0) & (self.mean == 0.0)), axis=-1)

    def bounded(self) -> NDArray[np.bool_]:
        """Whether the support is finitely many points."""
        return np.all((self.weight == 0.0) | (self.std == 0.0), axis=-1)

    def quantile(self, lower: Floats, upper: Floats) -> Floats:
        """Quantile with these probabilities on either side, of which the smaller one decides."""
        shape = np.broadcast_shapes(lower.shape, upper.shape, self.mean.shape[:-1])
        n_parts = self.mean.shape[-1]
        small = lower < upper
        tail = np.broadcast_to(np.where(small, lower, upper), shape).ravel()
        sign = np.broadcast_to(np.where(small, 1.0, -1.0), shape).ravel()
        weight, mean, std = (np.broadcast_to(part, (*shape, n_parts)).reshape(-1, n_parts) for part in self)
        return (sign * _lower_quantile(weight, sign[:, None] * mean, std, tail)).reshape(shape)

    def draw(self, source: Any, shape: tuple[int, ...]) -> Floats:
        """Draws of a shape that ends with that of the slab."""
        below = np.cumsum(self.weight[..., :-1], axis=-1)
        part = np.sum(source.random(shape)[..., None] > below, axis=-1)[..., None]
        full = (*shape, self.mean.shape[-1])
        mean, std = (np.take_along_axis(np.broadcast_to(each, full), part, -1)[..., 0] for each in self[1:])
        return mean + std * source.standard_normal(shape)

    def mirrored(self) -> "MixtureSlab":
        """The slab of −S."""
        return MixtureSlab(self.weight, -self.mean, self.std)

    def distance(self, x: Floats | float) -> Floats:
        """Mean of ``|S − x|``."""
        return np.sum(self.weight * mean_size(np.asarray(x)[..., None] - self.mean, self.std), axis=-1)

    def difference(self) -> Floats:
        """Mean of ``|S − S′|`` for two independent draws."""
        total = np.sum(self.weight**2 * self.std, axis=-1) * (2.0 / _ROOT_PI)
        for i in range(1, self.mean.shape[-1]):
            others, own = (each[..., :i] for each in self), (each[..., i : i + 1] for each in self)
            (w, m, s), (w_i, m_i, s_i) = others, own
            apart = mean_size(m - m_i, np.hypot(s, s_i))
            total = total + 2.0 * np.sum(w * w_i * apart, axis=-1)
        return total


Slab = GaussianSlab | MixtureSlab


def mixture_moments(weight: Floats, mean: Floats, var: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of mixtures whose parts are on the last axis."""
    center = np.sum(weight * mean, axis=-1)
    return center, np.sum(weight * (var + (mean - center[..., None]) ** 2), axis=-1)


def mean_size(mu: Floats, s: Floats) -> Floats:
    """Mean of ``|N(mu, s²)|``."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        z = np.abs(mu) / s
        size = np.abs(mu) * (1.0 - 2.0 * ndtr(-z)) + s * (_ROOT_TWO_OVER_PI * np.exp(-0.5 * z * z))
    return np.where(s == 0.0, np.abs(mu), size)


def _standardised(x: Floats, mean: Floats, std: Floats) -> Floats:
    """z-score; of a point mass −inf below it, else +inf."""
    with np.errstate(over="ignore"):
        score = (x - mean) / np.where(std > 0.0, std, 1.0)
    return np.where(std > 0.0, score, np.where(x >= mean, np.inf, -np.inf))


def _log_gaussian(x: Floats, mean: Floats, std: Floats) -> Floats:
    """Log density of a Gaussian, and its limit for a point mass."""
    point = std == 0.0
    with np.errstate(over="ignore"):
        density = -0.5 * _standardised(x, mean, std) ** 2 - np.log(np.where(point, 1.0, std)) - _HALF_LOG_TWO_PI
    return np.where(point & (x == mean), np.inf, density)


def _lower_quantile(weight: Floats, mean: Floats, std: Floats, tail: Floats) -> Floats:
    """Smallest x with ``P(S ≤ x) ≥ tail``, for tails of at most one half, of n mixtures.

    The quantiles of the parts enclose it. Newton steps on the log of the distribution function, from the left, where
    they do not overshoot for one Gaussian; a step that leaves the bracket is a bisection instead.
    """
    with np.errstate(invalid="ignore"):
        ends = np.where(std > 0.0, mean + std * ndtri(tail)[:, None], mean)
    counted = weight > 0.0
    low = np.min(np.where(counted, ends, np.inf), axis=-1)
    high = np.max(np.where(counted, ends, -np.inf), axis=-1)
    found = high.copy()
    open_ = np.flatnonzero((low < high) & (tail > 0.0))
    found[tail <= 0.0] = low[tail <= 0.0]
    width = np.min(np.where(counted & (std > 0.0), std, np.inf), axis=-1)
    width[np.isinf(width)] = 0.0
    x = low.copy()
    for _ in range(_MOST_ITERATIONS):
        if not open_.size:
            break
        here, w, m, s = x[open_], weight[open_], mean[open_], std[open_]
        score = _standardised(here[:, None], m, s)
        mass = np.sum(w * ndtr(score), axis=-1)
        density = np.sum(np.where(s > 0.0, w * np.exp(-0.5 * score**2) / np.where(s > 0.0, s, 1.0), 0.0), axis=-1)
        density *= np.exp(-_HALF_LOG_TWO_PI)
        reached = mass >= tail[open_]
        high[open_] = np.where(reached, here, high[open_])
        low[open_] = np.where(reached, low[open_], here)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = here + (np.log(tail[open_]) - np.log(mass)) * mass / density
        inside = (step > low[open_]) & (step < high[open_])
        after = np.where(inside, step, low[open_] + 0.5 * (high[open_] - low[open_]))
        tolerance = 2.0 * _EPSILON * (np.abs(here) + width[open_])
        done = (np.abs(after - here) <= tolerance) | (high[open_] - low[open_] <= tolerance)
        x[open_] = after
        # A jump of the distribution function is where the bracket ends, whose upper end counts.
        found[open_] = np.where(high[open_] - low[open_] <= tolerance, high[open_], after)
        open_ = open_[~done]
    return found
