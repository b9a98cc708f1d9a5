"""Sparse coders that predict a distribution for every coefficient."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import StrOptions

from bayeslista.distributions import SpikeSlab
from bayeslista.estimators._recalibration import METHODS, Recalibration, fit_recalibration
from bayeslista.estimators.base import BaseSparseCoder
from bayeslista.estimators.validation import check_arguments, warn_caller
from bayeslista.metrics.forecasts import check_level

_FEW = 20  # pairs

_Rows = Float[NDArray[Any], "n K"]


class DistributionalSparseCoder(BaseSparseCoder):
    """A sparse coder that predicts a distribution for every coefficient: `predict` is its mean.

    A subclass implements `_own_dist`, without recalibration, and lets `fit` end with `uncalibrate`.
    """

    recalibration_: Recalibration | None = None

    @abstractmethod
    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Update by more pairs."""

    @abstractmethod
    def _own_dist(self, Y: _Rows) -> SpikeSlab:
        """The distributions of validated observations, before recalibration."""

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
        if sparse and return_std:
            raise ValueError(
                "return_std=True asks for standard deviations, which are not sparse; ask with sparse=False for them."
            )
        check_arguments("predict", {"sparse": ["boolean"]}, sparse=sparse)
        model = self._ready(X)
        if sparse:
            return model._sparse_in_batches(lambda Y: _probable(model._dist(Y)), X, batch_size)
        found = model._in_batches(lambda Y: model._moments(Y)[: 1 + return_std], X, batch_size)
        return found if return_std else found[0]

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
        return model._dist_in_batches(model._dist, X, batch_size)

    def predict_interval(
        self,
        X: ArrayLike,
        level: float = 0.9,
        method: str = "model",
        *,
        given_active: bool = False,
        batch_size: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
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
        given_active : bool, default=False
            Whether intervals are those of coefficients given that they are active, as for `SpikeSlab.interval`; with
            ``method="model"`` only.
        batch_size : int or None, default=None
            As for `predict`.

        Returns
        -------
        low, high : ndarray of shape (n_samples, n_components) or (n_samples,)
            The ends, both part of the interval.
        """
        check_arguments(
            "predict_interval",
            {"method": [StrOptions({"model", "conformal"})], "given_active": ["boolean"]},
            method=method,
            given_active=given_active,
        )
        check_level(level)
        if given_active and method == "conformal":
            raise ValueError(
                "Conformal intervals have no guarantee given that a coefficient is active; pass method='model' with "
                "given_active=True."
            )
        model = self._ready(X)
        recalibration = self.recalibration_
        if method == "model":
            return model._in_batches(lambda Y: model._dist(Y).interval(level, given_active), X, batch_size)  # type: ignore[return-value]
        if recalibration is None:
            raise ValueError(
                "Conformal intervals need pairs that the model did not learn from; call calibrate(X, y) first."
            )
        return model._in_batches(lambda Y: recalibration.interval(model._own_dist(Y), float(level)), X, batch_size)  # type: ignore[return-value]

    def calibrate(self, X: ArrayLike, y: ArrayLike, method: str = "isotonic") -> Self:
        """Recalibrate P(active) and the slab on pairs that the model did not learn from.

        P(active) goes through a monotone map; means of slabs are multiplied by one number, variances by another, and a
        third is added to these. The mean of a prediction changes accordingly. Another call starts from the predictions
        of `fit` again; `uncalibrate` and `fit` remove the recalibration, `partial_fit` keeps it.

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
        check_arguments("calibrate", {"method": [StrOptions(set(METHODS))]}, method=method)
        model = self._ready(X)
        _, codes = model._validate_pairs(X, y, reset=False)
        if len(codes) < _FEW:
            warn_caller(
                f"calibrate was given {len(codes)} pairs, and fewer than {_FEW} are too few to separate errors of the "
                "model from chance. Pass more of them, 200 as a rule, or call uncalibrate().",
                UserWarning,
            )
        own = model._dist_in_batches(model._own_dist, X, None)
        self.recalibration_ = fit_recalibration(own, codes.reshape(own.shape), method)
        return self

    def uncalibrate(self) -> Self:
        """Remove the recalibration of `calibrate`.

        Returns
        -------
        Self
            The estimator, as `fit` and `partial_fit` left it.
        """
        self.__dict__.pop("recalibration_", None)
        return self

    def _predict_codes(self, Y: _Rows) -> Float[NDArray[Any], "n D"]:
        return self._moments(Y)[0]

    def _moments(self, Y: _Rows) -> tuple[NDArray[Any], ...]:
        """Mean and standard deviation of `_dist`; a subclass may compute them faster."""
        dist = self._dist(Y)
        return dist.mean(), dist.std()

    def _dist(self, Y: _Rows) -> SpikeSlab:
        own = self._own_dist(Y)
        return own if self.recalibration_ is None else self.recalibration_.apply(own)

    def _dist_in_batches(
        self, function: Callable[[_Rows], SpikeSlab], X: ArrayLike, batch_size: int | None
    ) -> SpikeSlab:
        return SpikeSlab._of(*self._in_batches(lambda Y: function(Y)._arrays(), X, batch_size))


def _probable(dist: SpikeSlab) -> NDArray[Any]:
    return np.where(dist.prob_active > 0.5, dist.mean(), 0)
