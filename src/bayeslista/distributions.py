"""The predictive distribution of a sparse coefficient: a spike at zero and a slab, Gaussian or a mixture of Gaussians.

A coefficient is exactly zero with probability ``1 − q`` and otherwise drawn from the slab. The atom makes
the distribution neither discrete nor continuous, so every method documents its value at zero.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayeslista.numerics.checks import as_real, check_entries
from bayeslista.numerics.slabs import GaussianSlab, MixtureSlab, Slab, mixture_moments

__all__ = ["SlabParts", "SpikeSlab"]

_SUM_OF_WEIGHTS = 1e-5  # largest distance from one, in single precision


class SlabParts(NamedTuple):
    """The Gaussians that a slab is a mixture of: arrays of the shape of the distributions and one axis for the parts.

    Attributes
    ----------
    weight, mean, var : ndarray of shape (..., n_parts)
        Weights, which sum to one, means and variances.

    Examples
    --------
    >>> from bayeslista.distributions import SpikeSlab
    >>> SpikeSlab(0.5, [0.0, 1.0], [1.0, 2.0], slab_weight=[0.5, 0.5]).slab_parts.mean
    array([0., 1.])
    """

    weight: NDArray[np.floating]
    mean: NDArray[np.floating]
    var: NDArray[np.floating]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class SpikeSlab:
    """Independent spike-and-slab distributions, one for each entry of an array.

    ``β = 0`` with probability ``1 − prob_active``, else ``β ~ N(slab_mean, slab_var)``, or, with `slab_weight`, β
    comes from a mixture of Gaussians.

    Parameters
    ----------
    prob_active : array-like
        Probability, in [0, 1], that the coefficient comes from the slab.
    slab_mean : array-like
        Mean of the slab; with `slab_weight` the means of its parts, which the last axis counts.
    slab_var : array-like
        Variance of the slab, at least zero; with `slab_weight` those of its parts. At zero the slab, or its part, is a
        point mass.
    slab_weight : array-like, default=None
        Weights of the parts of a mixture, on the last axis; they sum to one. None is a single Gaussian.

    Attributes
    ----------
    prob_active, slab_mean, slab_var : ndarray
        The parameters, broadcast against each other, read-only. Of a mixture, `slab_mean` and `slab_var` are mean and
        variance of the whole slab. They are float32 if all parameters came as float32, else float64, and so is all that
        the methods return. The arithmetic is always float64.
    slab_parts : SlabParts or None
        Weights, means and variances of the parts of a mixture; None of a single Gaussian.

    Raises
    ------
    ValueError
        If a parameter is not finite or out of range, or if the shapes do not broadcast.

    Examples
    --------
    >>> from bayeslista.distributions import SpikeSlab
    >>> dist = SpikeSlab(prob_active=[0.0, 0.5, 1.0], slab_mean=2.0, slab_var=1.0)
    >>> dist
    SpikeSlab(shape=(3,), dtype=float64)
    >>> dist.mean()
    array([0., 1., 2.])
    >>> low, high = dist.interval(0.9)
    >>> low.round(2), high.round(2)
    (array([0.  , 0.  , 0.36]), array([0.  , 3.28, 3.64]))
    >>> dist[1].prob_active
    array(0.5)
    >>> wide = SpikeSlab(0.5, [0.0, 0.0], [1.0, 9.0], slab_weight=[0.5, 0.5])
    >>> float(wide.var()), float(wide.quantile(0.95).round(2))
    (2.5, 2.58)
    """

    prob_active: NDArray[np.floating]
    slab_mean: NDArray[np.floating]
    slab_var: NDArray[np.floating]
    slab_parts: SlabParts | None

    def __init__(
        self,
        prob_active: ArrayLike,
        slab_mean: ArrayLike,
        slab_var: ArrayLike,
        slab_weight: ArrayLike | None = None,
    ) -> None:
        given = {"prob_active": prob_active, "slab_mean": slab_mean, "slab_var": slab_var}
        if slab_weight is not None:
            given["slab_weight"] = slab_weight
        arrays = {name: as_real(name, values) for name, values in given.items()}
        if slab_weight is not None:
            for name in ("slab_mean", "slab_var", "slab_weight"):
                arrays[name] = np.atleast_1d(arrays[name])
            arrays["prob_active"] = arrays["prob_active"][..., None]
        try:
            shape = np.broadcast_shapes(*(array.shape for array in arrays.values()))
        except ValueError:
            shapes = ", ".join(f"{name} {np.shape(given[name])}" for name in arrays)
            remedy = "one common shape" if slab_weight is None else "one common shape, slabs with a last axis for parts"
            raise ValueError(f"The parameters do not broadcast: {shapes}. Give them {remedy}.") from None
        for name, array in arrays.items():
            check_entries(np.isfinite(array), name, array, "be finite", "Replace NaN and infinite entries.")
        q, variance = arrays["prob_active"], arrays["slab_var"]
        legal = (q >= 0) & (q <= 1)
        check_entries(legal, "prob_active", q, "lie in [0, 1]", "Pass probabilities; clip round-off.")
        remedy = "Pass variances, not log-variances; clip round-off."
        check_entries(variance >= 0, "slab_var", variance, "be at least 0", remedy)
        dtype = np.float32 if all(array.dtype == np.float32 for array in arrays.values()) else np.float64
        stored: dict[str, Any] = {
            name: np.array(np.broadcast_to(array, shape), dtype=dtype) for name, array in arrays.items()
        }
        parts = None
        if slab_weight is not None:
            weight = stored["slab_weight"].astype(np.float64)
            check_entries(weight >= 0, "slab_weight", weight, "be at least 0", "Pass weights, not their logarithms.")
            total = weight.sum(axis=-1)
            legal = np.abs(total - 1.0) <= _SUM_OF_WEIGHTS
            check_entries(legal, "slab_weight", total, "sum to 1 over the last axis", "Divide them by their sum.")
            weight /= total[..., None]
            parts = SlabParts(weight.astype(dtype), stored["slab_mean"], stored["slab_var"])
            mean_and_var = mixture_moments(weight, *(part.astype(np.float64) for part in parts[1:]))
            probability = stored["prob_active"][..., 0].copy()
            stored = dict(zip(("prob_active", "slab_mean", "slab_var"), (probability, *mean_and_var), strict=True))
        moments: Any = [np.asarray(stored[name], dtype) for name in ("prob_active", "slab_mean", "slab_var")]
        self._set(*moments, parts=parts)

    @classmethod
    def _of(
        cls,
        prob_active: NDArray[np.floating],
        slab_mean: NDArray[np.floating],
        slab_var: NDArray[np.floating],
        *parts: NDArray[np.floating],
    ) -> "SpikeSlab":
        """From valid arrays that are not shared, as `_arrays` has them: nothing is checked or copied."""
        dist = object.__new__(cls)
        dist._set(prob_active, slab_mean, slab_var, parts=SlabParts(*parts) if parts else None)
        return dist

    def _set(self, *arrays: NDArray[np.floating], parts: SlabParts | None) -> None:
        """Store read-only arrays."""
        for array in (*arrays, *(parts or ())):
            array.setflags(write=False)
        for name, value in zip(("prob_active", "slab_mean", "slab_var", "slab_parts"), (*arrays, parts), strict=True):
            object.__setattr__(self, name, value)

    def _arrays(self) -> tuple[NDArray[np.floating], ...]:
        """All arrays: probability, mean and variance of the slab, and weights, means and variances of its parts."""
        return self.prob_active, self.slab_mean, self.slab_var, *(self.slab_parts or ())

    def _map(self, function: Any) -> "SpikeSlab":
        """A function of an array and the number of its further axes, applied to all arrays."""
        moments = [np.array(function(array, 0)) for array in self._arrays()[:3]]
        return SpikeSlab._of(*moments, *(np.array(function(array, 1)) for array in self._arrays()[3:]))

    def _reshape(self, shape: tuple[int, ...]) -> "SpikeSlab":
        """The same distributions in an array of another shape."""
        return self._map(lambda array, further: array.reshape(*shape, *array.shape[array.ndim - further :]))

    def _affine(
        self, prob_active: NDArray[np.floating], gain: float, scale: float = 1.0, added_var: float = 0.0
    ) -> "SpikeSlab":
        """Another probability, means times a gain, variances times the square of a scale plus a number."""
        _, mean, var = self.slab_parts or (None, self.slab_mean, self.slab_var)
        new_var = (var.astype(np.float64) * scale**2 + added_var).astype(var.dtype)
        weight = None if self.slab_parts is None else self.slab_parts.weight
        return SpikeSlab(prob_active, mean * mean.dtype.type(gain), new_var, slab_weight=weight)

    def _mirrored(self) -> "SpikeSlab":
        """The distributions of −β."""
        return self._affine(self.prob_active, -1.0)

    def _slab(self) -> Slab:
        """The slab in double precision."""
        if self.slab_parts is None:
            return GaussianSlab(self.slab_mean.astype(np.float64), np.sqrt(self.slab_var.astype(np.float64)))
        weight, mean, var = (part.astype(np.float64) for part in self.slab_parts)
        return MixtureSlab(weight, mean, np.sqrt(var))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of distributions.

        Examples
        --------
        >>> from bayeslista.distributions import SpikeSlab
        >>> SpikeSlab([[0.1], [0.2]], [0.0, 1.0, 2.0], 1.0).shape
        (2, 3)
        """
        return self.prob_active.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Floating type of the parameters, and of all that the methods return.

        Examples
        --------
        >>> import numpy as np
        >>> from bayeslista.distributions import SpikeSlab
        >>> SpikeSlab(*np.ones((3, 2), np.float32)).dtype
        dtype('float32')
        """
        return self.prob_active.dtype

    def __len__(self) -> int:
        return len(self.prob_active)

    def __getitem__(self, index: Any) -> "SpikeSlab":
        if self.slab_parts is None:
            return SpikeSlab(self.prob_active[index], self.slab_mean[index], self.slab_var[index])
        place = np.arange(self.prob_active.size).reshape(self.shape)[index]
        weight, mean, var = (part.reshape(-1, part.shape[-1])[place] for part in self.slab_parts)
        return SpikeSlab(self.prob_active[index], mean, var, slab_weight=weight)

    def __iter__(self) -> Iterator["SpikeSlab"]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"SpikeSlab(shape={self.shape}, dtype={self.dtype})"

    def mean(self) -> NDArray[np.floating]:
        """Mean ``q m``, spike included.

        Returns
        -------
        ndarray
            One mean for each coefficient.

        Examples
        --------
        >>> from bayeslista.distributions import SpikeSlab
        >>> float(SpikeSlab(0.25, 2.0, 1.0).mean())
        0.5
        """
        q, m, _ = self._parameters()
        return self._finish(q * m)

    def var(self) -> NDArray[np.floating]:
        """Variance ``q (v + (1 − q) m²)``, spike included: a sum of non-negative terms, so nothing cancels.

        Returns
        -------
        ndarray
            One variance for each coefficient; infinite only where it exceeds the floating-point range.

        Examples
        --------
        >>> from bayeslista.distributions import SpikeSlab
        >>> float(SpikeSlab(0.5, 2.0, 1.0).var())
        1.5
        """
        q, m, _ = self._parameters()
        with np.errstate(over="ignore"):
            return self._finish(q * self.slab_var.astype(np.float64) + q * (1.0 - q) * m * m)

    def std(self) -> NDArray[np.floating]:
        """Square root of the variance, formed without squaring: it stays finite where the variance overflows.

        Returns
        -------
        ndarray
            One standard deviation for each coefficient.

        Examples
        --------
        >>> from bayeslista.distributions import SpikeSlab
        >>> round(float(SpikeSlab(0.5, 2.0, 1.0).std()), 4)
        1.2247
        """
        q, m, s = self._parameters()
        return self._finish(np.hypot(np.sqrt(q) * s, np.sqrt(q * (1.0 - q)) * m))

    def log_prob(self, x: ArrayLike) -> NDArray[np.floating]:
        """Log density with respect to Lebesgue measure plus a unit atom at zero.

        An exact zero scores ``log(1 − q)``, any other value ``log q`` plus the log density of the slab. That of a slab
        of zero variance is the limit ``v → 0``: infinite at ``x = m ≠ 0`` (if ``q > 0``), elsewhere zero. If
        ``m = 0`` as well, all the mass lies on the atom and zero scores ``log 1 = 0``.

        Parameters
        ----------
        x : array-like
            Values, broadcast against the distributions; leading dimensions hold samples. Infinite values
            score −inf.

        Returns
        -------
        ndarray
            Log densities, never NaN.

        Examples
        --------
        >>> from bayeslista.distributions import SpikeSlab
        >>> SpikeSlab(0.5, 2.0, 1.0).log_prob([0.0, 2.0]).round(4)
        array([-0.6931, -1.6121])
        """
        q, slab = self.prob_active.astype(np.float64), self._slab()
        values = self._argument("x", x)
        with np.errstate(divide="ignore"):
            score = np.where(q > 0.0, np.log(np.where(q > 0.0, q, 1.0)) + slab.log_density(values), -np.inf)
            spike = np.where(slab.is_zero(), 0.0, np.log1p(-q))
        return self._finish(np.where(values == 0.0, spike, score))

    def cdf(self, x: ArrayLike) -> NDArray[np.floating]:
        """Probability ``P(β ≤ x)``; it jumps by ``1 − q`` at ``x = 0``, where the atom is counted.

        Parameters
        ----------
        x : array-like
            Values, broadcast against the distributions; leading dimensions hold samples.

        Returns
        -------
        ndarray
            Probabilities, with full relative precision in the lower tail.

        Examples
        --------
        >>> from bayeslista.distributions import SpikeSlab
        >>> SpikeSlab(0.5, 0.0, 1.0).cdf([-1e-9, 0.0]).round(4)
        array([0.25, 0.75])
        """
        q, values = self.prob_active.astype(np.float64), self._argument("x", x)
        return self._finish(q * self._slab().lower(values) + np.where(values >= 0.0, 1.0 - q, 0.0))

    def quantile(self, p: ArrayLike) -> NDArray[np.floating]:
        """Smallest ``x`` with ``P(β ≤ x) ≥ p``: the generalised inverse of :meth:`cdf`.

        A level that falls within the jump of the atom gives exactly 0. Levels 0 and 1 give the ends of the
        support: ±inf as a rule, finite ones where ``slab_var`` or ``prob_active`` is zero.

        Parameters
        ----------
        p : array-like
            Levels in [0, 1], broadcast against the distributions; leading dimensions are free.

        Returns
        -------
        ndarray
            Quantiles, precise for tiny ``p`` and for tiny ``1 − p``.

        Examples
        --------
        >>> from bayeslista.distributions import SpikeSlab
        >>> SpikeSlab(0.5, 0.0, 1.0).quantile([0.05, 0.5, 0.95]).round(4)
        array([-1.2816,  0.    ,  1.2816])
        """
        q, slab = self.prob_active.astype(np.float64), self._slab()
        lower = self._argument("p", p)
        legal = (lower >= 0.0) & (lower <= 1.0)
        check_entries(legal, "p", lower, "lie in [0, 1]", "Pass probabilities, not percentages.")
        upper, spike = 1.0 - lower, 1.0 - q
        left, right = q * slab.lower(np.zeros(())), q * slab.upper(np.zeros(()))
        # The smaller of the two tails has full relative precision: it is the one that is inverted.
        small = lower < upper
        below = np.where(small, lower <= left, upper >= right + spike)
        above = np.where(small, lower > left + spike, (upper < right) | ((upper == 0.0) & ~slab.bounded()))
        with np.errstate(over="ignore"):
            divisor = np.where(q > 0.0, q, 1.0)
            lower_share = np.where(below, lower, np.where(small, lower - spike, q - upper)) / divisor
            upper_share = np.where(below, q - lower, upper) / divisor
        score = slab.quantile(lower_share, upper_share)
        one_sided = [np.minimum(score, 0.0), np.maximum(score, 0.0)]
        return self._finish(np.select([q == 0.0, q == 1.0, below, above], [0.0, score, *one_sided], 0.0))

    def interval(
        self, level: ArrayLike, given_active: bool = False
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Central interval that leaves at most ``(1 − level)/2`` of the probability on either side.

        The upper end is minus the lower end for ``−β``, so the interval of ``−β`` is the mirror image and a
        tiny upper tail is as precise as a tiny lower one. Where an end falls on the atom, the coverage
        is larger than ``level``.

        Parameters
        ----------
        level : array-like
            Nominal coverage in [0, 1]; broadcast against the distributions.
        given_active : bool, default=False
            Whether the interval is that of the coefficient given that it is active: between the quantiles of the slab,
            whatever `prob_active`. If distributions are calibrated, it holds a share `level` of the active
            coefficients, where the interval with the spike holds fewer of them, since small ones have an interval
            [0, 0].

        Returns
        -------
        low, high : ndarray
            The ends, both part of the interval.

        Examples
        --------
        >>> from bayeslista.distributions import SpikeSlab
        >>> low, high = SpikeSlab([0.02, 1.0], 0.0, 1.0).interval(0.95)
        >>> low.round(2), high.round(2)
        (array([ 0.  , -1.96]), array([0.  , 1.96]))
        >>> low, high = SpikeSlab([0.02, 1.0], 0.0, 1.0).interval(0.95, given_active=True)
        >>> low.round(2), high.round(2)
        (array([-1.96, -1.96]), array([1.96, 1.96]))
        """
        share = self._argument("level", level)
        legal = (share >= 0.0) & (share <= 1.0)
        check_entries(legal, "level", share, "lie in [0, 1]", "Pass a probability, not a percentage.")
        tail = (1.0 - share) / 2.0
        dist = self._affine(np.ones_like(self.prob_active), 1.0) if given_active else self
        return dist.quantile(tail), 0.0 - dist._mirrored().quantile(tail)

    def sample(
        self, n: int, random_state: int | np.random.Generator | np.random.RandomState | None = None
    ) -> NDArray[np.floating]:
        """Independent draws; those of the spike are exactly zero.

        Parameters
        ----------
        n : int
            Number of draws from each distribution, at least zero.
        random_state : int, numpy.random.Generator, numpy.random.RandomState or None
            A seed, a source of randomness to advance, or None for fresh entropy. The same seed gives the same
            draws.

        Returns
        -------
        ndarray of shape (n, ...)
            The draws.

        Examples
        --------
        >>> from bayeslista.distributions import SpikeSlab
        >>> draws = SpikeSlab([0.0, 1.0], 3.0, 0.0).sample(2, random_state=0)
        >>> draws
        array([[0., 3.],
               [0., 3.]])
        """
        size = operator.index(n)
        if size < 0:
            raise ValueError(f"n must be at least 0, got {size}. Pass a number of draws.")
        source: np.random.Generator | np.random.RandomState
        if isinstance(random_state, (np.random.Generator, np.random.RandomState)):
            source = random_state
        else:
            source = np.random.default_rng(random_state)
        active = source.random((size, *self.shape)) < self.prob_active.astype(np.float64)
        return self._finish(np.where(active, self._slab().draw(source, (size, *self.shape)), 0.0))

    def _parameters(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Probability, slab mean and slab standard deviation in double precision."""
        q, m, v = (a.astype(np.float64) for a in (self.prob_active, self.slab_mean, self.slab_var))
        return q, m, np.sqrt(v)

    def _argument(self, name: str, values: ArrayLike) -> NDArray[np.float64]:
        """Validate an argument that broadcasts against the distributions."""
        array = as_real(name, values).astype(np.float64)
        try:
            np.broadcast_shapes(array.shape, self.shape)
        except ValueError:
            raise ValueError(
                f"{name} has shape {array.shape}, which does not broadcast against the distributions, "
                f"of shape {self.shape}. Let its last dimensions match; samples or levels go in front."
            ) from None
        check_entries(~np.isnan(array), name, array, "not be NaN", "Remove or impute missing values.")
        return array

    def _finish(self, values: NDArray[np.float64]) -> NDArray[np.floating]:
        """Cast a result to the dtype of the parameters; a single number becomes a NumPy scalar."""
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(self.dtype)[()]
