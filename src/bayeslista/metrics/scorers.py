"""Scores of distributions as scikit-learn scorers, for cross-validation and searches."""

from collections.abc import Callable
from typing import Any

from numpy.typing import ArrayLike

from bayeslista.metrics.activity import brier_score, expected_calibration_error
from bayeslista.metrics.forecasts import Forecast
from bayeslista.metrics.predictive import crps, log_score

__all__ = ["distribution_scorer"]

_LOSSES: dict[str, Callable[..., float]] = {
    "brier_score": brier_score,
    "crps": crps,
    "expected_calibration_error": expected_calibration_error,
    "log_score": log_score,
}


class _DistributionScorer:
    """Minus a loss of an estimator's predictions; a class, so that it can be pickled and printed."""

    def __init__(self, loss: Callable[..., float], arguments: dict[str, Any]) -> None:
        self.loss = loss
        self.arguments = arguments

    def __call__(self, estimator: Any, X: ArrayLike, y: ArrayLike) -> float:
        dist: Forecast
        if hasattr(estimator, "predict_dist"):
            dist = estimator.predict_dist(X)
        else:
            dist = estimator.predict(X, return_std=True)
        return -self.loss(dist, y, **self.arguments)

    def __repr__(self) -> str:
        arguments = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        return f"distribution_scorer({self.loss.__name__}{arguments})"


def distribution_scorer(
    loss: str | Callable[..., float], **arguments: Any
) -> Callable[[Any, ArrayLike, ArrayLike], float]:
    """Make a scorer, larger is better, of a loss of distributions.

    It scores ``predict_dist(X)`` or, for estimators without it, ``predict(X, return_std=True)``.

    Parameters
    ----------
    loss : {"brier_score", "crps", "expected_calibration_error", "log_score"} or callable
        A name, or a function of a prediction and the true codes of which smaller is better.
    **arguments
        Passed to it, as ``n_bins=20``.

    Returns
    -------
    callable
        ``scorer(estimator, X, y)``, for ``scoring=`` of scikit-learn's functions.

    Examples
    --------
    >>> from sklearn.model_selection import cross_val_score
    >>> from bayeslista import BayesLISTA
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.metrics import distribution_scorer
    >>> data = make_sparse_codes(n_train=60, n_observed=6, n_components=8, random_state=0)
    >>> model = BayesLISTA(n_layers=2, design_matrix=data.design_matrix, max_iter=2, random_state=0)
    >>> scores = cross_val_score(model, data.Y_train, data.B_train, cv=2, scoring=distribution_scorer("crps"))
    >>> scores.shape, bool((scores < 0).all())
    ((2,), True)
    """
    if isinstance(loss, str):
        if loss not in _LOSSES:
            raise ValueError(
                f"There is no loss {loss!r}. Choose one of {', '.join(sorted(_LOSSES))}, or pass a function."
            )
        loss = _LOSSES[loss]
    return _DistributionScorer(loss, arguments)
