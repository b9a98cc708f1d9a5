"""The interface to estimators for training and prediction elsewhere, such as on streams of pairs or with Dask."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from bayeslista.estimators.base import BaseSparseCoder


def check_parameters(estimator: Any) -> None:
    """Check the parameters of an estimator by its constraints."""
    estimator._validate_params()


def validate_pairs(estimator: BaseSparseCoder, X: Any, y: Any, *, reset: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Pairs as `fit` would validate them; with `reset` they decide shapes and floating type of the estimator."""
    return estimator._validate_pairs(X, y, reset=reset)


def validate_names(estimator: BaseSparseCoder, X: Any, y: Any, *, reset: bool) -> None:
    """Check the names of the columns of frames, or with `reset` keep them in the estimator."""
    if hasattr(X, "columns") or (hasattr(estimator, "feature_names_in_") and np.ndim(X) == 2):
        validate_data(estimator, X, reset=reset, skip_check_array=True)
    if reset:
        estimator._learn_component_names(y)
    else:
        estimator._check_component_names(y)


def new_learner(estimator: Any, *data: Any) -> Any:
    """A learner with the parameters of the estimator, for data that `validate_pairs` has seen the shapes of."""
    return estimator._new_learner(*data)


def install(estimator: Any, learner: Any, *epochs: Any) -> None:
    """Put a learned model into an estimator, as `fit` does."""
    estimator.uncalibrate()
    estimator._install(learner, *epochs)


def update(estimator: Any, X: Any, y: Any, names: BaseSparseCoder) -> None:
    """Update an estimator by a batch of arrays whose columns have the names that another estimator keeps."""
    vars(estimator).pop("feature_names_in_", None)  # arrays have no names, of which scikit-learn would warn
    estimator._update(X, y)
    kept = ("feature_names_in_", "component_names_")
    vars(estimator).update({name: getattr(names, name) for name in kept if hasattr(names, name)})


def conclude(estimator: Any) -> None:
    """Complete what was learned by `update`."""
    estimator._conclude()


def is_trained(estimator: Any) -> bool:
    """Whether there is a model that `update` would go on from."""
    return hasattr(estimator, "_learner") or hasattr(estimator, "encoder_")


def code_shape(estimator: BaseSparseCoder) -> tuple[int, ...]:
    """The shape of one code: empty where the codes of `fit` were one-dimensional."""
    return estimator._code_shape


def rows_together(estimator: BaseSparseCoder) -> int:
    """Rows that are predicted together: blocks of multiples of it are predicted to the same bits."""
    return estimator._rows_together()


def predict_and_check(estimator: Any, X: Any) -> tuple[Any, Any]:
    """What `predict_dist` and `predictive_check` of a SpikeSlabNet return, computed once."""
    return estimator._checked_dist(X)
