"""Sparse coders that say how sure they are."""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayeslista._blocks import fill, stack_sparse
from bayeslista.distributions import SpikeSlab
from bayeslista.estimators._base import BaseSparseCoder
from bayeslista.estimators._parameters import check_boolean, check_choice
from bayeslista.estimators._recalibration import METHODS, Recalibration, fit_recalibration
from bayeslista.metrics._forecasts import check_level

_FEW = 20  # pairs


class DistributionalSparseCoder(BaseSparseCoder):
    """A sparse coder that predicts a distribution for every coefficient: `predict` is its mean.

    A subclass implements `_own_dist`, what it predicts before any `calibrate`, and lets `fit` forget what `calibrate`
    learned.

    Attributes
    ----------
    recalibration_ : Recalibration or None
        What `calibrate` learned; None before it, and after `fit` or `uncalibrate`.
    """

    recalibration_: Recalibration | None = None

    @abstractmethod
    def _own_dist(self, Y: Float[np.ndarray, "n K"]) -> SpikeSlab:
        """A distribution for every coefficient of validated observations, without what `calibrate` learned."""

    def predict(
        self, X: ArrayLike, return_std: bool = False, *, batch_size: int | None = None, sparse: bool = False
    ) -> Any:
        """Predict the codes of observations, and how uncertain they are.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        return_std : bool, default=False
            Whether to return the standard deviations, too.
        batch_size : int or None, default=None
            Observations to convert, check and predict at a time, rounded up to the blocks that are computed together;
            it changes no bit of the answer. None is about a million numbers.
        sparse : bool, default=False
            Whether to return a sparse array: the mean where a coefficient is more probably active than not, and zero
            elsewhere. Standard deviations are nowhere zero, so `return_std` is refused with it.

        Returns
        -------
        mean : ndarray of shape (n_samples, n_components) or (n_samples,), or two-dimensional csr_array
            Mean of `predict_dist`, one-dimensional if the codes of `fit` were and it is not sparse.
        std : ndarray of the same shape
            Its standard deviation, if `return_std`.
        """
        check_boolean("sparse", sparse)
        if sparse and return_std:
            raise ValueError(
                "return_std=True asks for standard deviations, which are not sparse; ask with sparse=False for them."
            )
        model = self._ready(X)
        if sparse:
            return stack_sparse(model._by_batches(lambda Y: (_probable(model._dist(Y)),), X, batch_size)[1])
        found = fill(*model._by_batches(lambda Y: model._moments(Y)[: 1 + return_std], X, batch_size))
        return tuple(map(model._shaped, found)) if return_std else model._shaped(*found)

    def predict_dist(self, X: ArrayLike, *, batch_size: int | None = None) -> SpikeSlab:
        """Predict a distribution for every coefficient.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        batch_size : int or None, default=None
            As for `predict`.

        Returns
        -------
        SpikeSlab
            Of shape (n_samples, n_components), or (n_samples,) if the codes of `fit` were one-dimensional.
        """
        model = self._ready(X)
        return model._whole(model._dist, X, batch_size)

    def predict_interval(
        self, X: ArrayLike, level: float = 0.9, method: str = "model", *, batch_size: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict an interval for every coefficient.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        level : float, default=0.9
            Probability in [0, 1] that an interval is to hold.
        method : {"model", "conformal"}, default="model"
            "model" is the central interval of `predict_dist`. "conformal" is a central interval of what the model
            predicted before `calibrate`, of a level that its n pairs decide for each coefficient: if they and the
            signals to come are exchangeable, it holds each coefficient with at least the probability asked for, on
            average over signals and pairs, however wrong the model is. It is infinite where the level exceeds
            n / (n + 1).
        batch_size : int or None, default=None
            As for `predict`.

        Returns
        -------
        low, high : ndarray of shape (n_samples, n_components) or (n_samples,)
            The ends, both part of the interval.
        """
        check_choice("method", method, ("model", "conformal"))
        check_level(level)
        model = self._ready(X)
        if method == "conformal" and self.recalibration_ is None:
            raise ValueError(
                "Conformal intervals need pairs that the model did not learn from; call calibrate(X, y) first."
            )

        def ends(Y: Float[np.ndarray, "n K"]) -> tuple[np.ndarray, ...]:
            if method == "model":
                return model._dist(Y).interval(level)
            return model.recalibration_.interval(model._own_dist(Y), float(level))  # type: ignore[union-attr]

        low, high = fill(*model._by_batches(ends, X, batch_size))
        return model._shaped(low), model._shaped(high)

    def calibrate(self, X: ArrayLike, y: ArrayLike, method: str = "isotonic") -> Self:
        """Mend P(active) and the width of the slab by pairs that the model did not learn from.

        P(active) goes through a monotone map; means of slabs are multiplied by one number, variances by another, and a
        third is added to these. The mean of a prediction moves as they do. Calling it again begins anew from what `fit`
        learned; `uncalibrate` goes back to that, `fit` forgets it, and `partial_fit` keeps it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row. Two hundred are enough as a rule, where codes have a hundred coefficients; below
            twenty there is a warning.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row.
        method : {"isotonic", "logistic"}, default="isotonic"
            The map of P(active): of any monotone shape, or linear in log-odds, which needs fewer pairs.

        Returns
        -------
        Self
            The estimator, calibrated.
        """
        check_choice("method", method, METHODS)
        model = self._ready(X)
        _, codes = model._validate_pairs(X, y, reset=False)
        if len(codes) < _FEW:
            warnings.warn(
                f"calibrate was given {len(codes)} pairs, from fewer than {_FEW} of which chance is learned as much as "
                "the model's faults. Pass more of them, 200 as a rule, or call uncalibrate().",
                UserWarning,
                stacklevel=2,
            )
        own = model._whole(model._own_dist, X, None)
        self.recalibration_ = fit_recalibration(own, codes.reshape(own.shape), method)
        return self

    def uncalibrate(self) -> Self:
        """Forget what `calibrate` learned.

        Returns
        -------
        Self
            The estimator, as `fit` and `partial_fit` left it.
        """
        self.__dict__.pop("recalibration_", None)
        return self

    def _predict_codes(self, Y: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n D"]:
        return self._moments(Y)[0]

    def _moments(self, Y: Float[np.ndarray, "n K"]) -> tuple[np.ndarray, ...]:
        """Mean and standard deviation of `_dist`; a subclass may have a shorter way to them."""
        dist = self._dist(Y)
        return dist.mean(), dist.std()

    def _dist(self, Y: Float[np.ndarray, "n K"]) -> SpikeSlab:
        own = self._own_dist(Y)
        return own if self.recalibration_ is None else self.recalibration_.apply(own)

    def _whole(
        self, function: Callable[[Float[np.ndarray, "n K"]], SpikeSlab], X: ArrayLike, batch_size: int | None
    ) -> SpikeSlab:
        """The distributions of all observations, of the shape that the codes of `fit` had."""
        parts = fill(*self._by_batches(lambda Y: _parameters(function(Y)), X, batch_size))
        return SpikeSlab._of(*map(self._shaped, parts))


def _parameters(dist: SpikeSlab) -> tuple[np.ndarray, ...]:
    return dist.prob_active, dist.slab_mean, dist.slab_var


def _probable(dist: SpikeSlab) -> np.ndarray:
    return np.where(dist.prob_active > 0.5, dist.mean(), 0)
