"""Estimators from files: no code in them is run, and what could not work is refused."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bayeslista.bayes_lista.adf.published_fit import FilteringLearner
from bayeslista.bayes_lista.variational_fit import VariationalLearner
from bayeslista.estimators._recalibration import Recalibration
from bayeslista.estimators.bayes_lista import BayesLISTA
from bayeslista.estimators.fista import FISTA
from bayeslista.estimators.ista import ISTA
from bayeslista.estimators.lista import LISTA
from bayeslista.estimators.saving import RECORDS, Nested, restore
from bayeslista.estimators.sparse_coding_transformer import SparseCodingTransformer
from bayeslista.estimators.spike_slab_net import SpikeSlabNet
from bayeslista.estimators.spike_slab_regressor import SpikeSlabRegressor
from bayeslista.io.records import read_record
from bayeslista.numerics.stream_memory import StreamMemory
from bayeslista.operators import BaseOperator
from bayeslista.spike_slab.fitting import SpikeSlabLearner
from bayeslista.spike_slab.operator_fitting import OperatorLearner
from bayeslista.spike_slab.regression import RegressionDraws

_ESTIMATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (ISTA, FISTA, LISTA, BayesLISTA, SparseCodingTransformer, SpikeSlabNet, SpikeSlabRegressor)
}


def load(path: str | os.PathLike[str]) -> Any:
    """Read an estimator from a file that its `save` has written; no code in it is run.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    ISTA, FISTA, LISTA, BayesLISTA, SpikeSlabNet, SpikeSlabRegressor or SparseCodingTransformer
        As it was saved: what it predicts is the same to the last bit.

    Raises
    ------
    ValueError
        If the file is something else, cut short, changed, or of a newer version.
    OSError
        If it cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import bayeslista
    >>> from bayeslista.datasets import make_sparse_codes
    >>> data = make_sparse_codes(n_train=20, n_test=5, n_observed=6, n_components=8, random_state=0)
    >>> model = bayeslista.ISTA(design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(Path(folder) / "model.safetensors")
    ...     again = bayeslista.load(Path(folder) / "model.safetensors")
    >>> bool((again.predict(data.Y_test) == model.predict(data.Y_test)).all())
    True
    """
    return read_estimator(path)[0]


def read_estimator(path: str | os.PathLike[str]) -> tuple[Any, dict[str, Any]]:
    """The estimator in a file, and the extra entries that were written with it."""
    found: Any = read_record(path, RECORDS)
    extra: dict[str, Any] = dict(found) if isinstance(found, dict) else {}
    if "checkpoint" in extra and "state" not in extra:
        raise ValueError(f"{path} is the checkpoint of a fit that has not ended. Call that fit again to go on from it.")
    estimator = Nested(extra.pop("estimator", ""), extra.pop("state", None))
    return _estimator(estimator, path), extra


def _estimator(record: Nested, path: str | os.PathLike[str]) -> Any:
    """The estimator of a record, and those inside it; parameters that the record lacks have their default."""
    name, state = record
    if not isinstance(name, str) or name not in _ESTIMATORS:
        raise ValueError(f"{path} holds no estimator of this version of bayeslista ({name!r}).")
    invalid = _first_invalid(name, state)
    if invalid is not None:
        raise ValueError(
            f"{path} holds no {name} that could work: {invalid} is missing or not as it should be. "
            "If the file is of an earlier version, fit and save the model anew."
        )
    kind = _ESTIMATORS[name]
    values = {key: _estimator(part, path) if isinstance(part, Nested) else part for key, part in state.items()}
    estimator = kind(**{key: values[key] for key in kind._get_param_names() if key in values})
    restore(estimator, values)
    return estimator


def _first_invalid(name: str, state: Any) -> str | None:
    """The first attribute that a fitted estimator needs and that is missing, or of another type or shape."""
    if not isinstance(state, dict):
        return "its state"
    if name == "SpikeSlabRegressor":
        return _first_invalid_of_regressor(state) if "coef_" in state else None
    if "design_matrix_" not in state:
        return None  # not fitted
    checks = {**_ATTRIBUTES, **_ATTRIBUTES_OF.get(name, {})}
    if isinstance(state["design_matrix_"], BaseOperator):
        checks = {key: check for key, check in checks.items() if key not in _OF_MATRICES}
    for attribute, is_valid in checks.items():
        if not is_valid(state.get(attribute)):
            return attribute
    K, D = state["n_features_in_"], state["n_components_"]
    for attribute, shape in {"design_matrix_": (K, D), "encoder_": (D, K), "recurrent_": (D, D)}.items():
        if attribute in state and state[attribute].shape != shape:
            return attribute
    return None if _are_names(state.get("component_names_"), D) else "component_names_"


def _first_invalid_of_regressor(state: dict[str, Any]) -> str | None:
    """The same of a regressor, whose arrays have the shape of its coefficients."""
    coef, n, draws = state["coef_"], state.get("n_features_in_"), state.get("_draws")
    known: Any = state
    if not _is_count(n) or not _is_array(coef) or coef.ndim not in (1, 2) or coef.shape[-1] != n:
        return "coef_"
    for name in ("coef_std_", "prob_active_", "_slab_mean", "_slab_var"):
        if not _is_array(known.get(name)) or known[name].shape != coef.shape:
            return name
    if not _is_array(state.get("_centre")) or state["_centre"].shape != (n,):
        return "_centre"
    if not isinstance(draws, list) or len(draws) != (1 if coef.ndim == 1 else len(coef)):
        return "_draws"
    for each in draws:
        if not isinstance(each, RegressionDraws) or not all(isinstance(part, np.ndarray) for part in each):
            return "_draws"
        size = (len(each.n_active),)
        fits = each.intercept.shape == each.noise_std.shape == size and each.columns.shape == each.values.shape
        counts = fits and np.all(each.n_active >= 0) and each.columns.shape == (each.n_active.sum(),)
        if not counts or not np.all((each.columns >= 0) & (each.columns < n)):
            return "_draws"
    for name in ("intercept_", "noise_std_", "slab_var_", "expected_prob_active_"):
        value = known.get(name)
        if not (_is_real(value) if coef.ndim == 1 else _is_array(value) and value.shape == (len(coef),)):
            return name
    return None


def _are_names(value: Any, n: int) -> bool:
    """Whether names, which are optional, are n different texts."""
    if value is None:
        return True
    names = value.tolist() if isinstance(value, np.ndarray) and value.shape == (n,) else []
    return all(isinstance(name, str) for name in names) and len(set(names)) == n


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _is_vector(value: Any) -> bool:
    return _is_array(value) and value.ndim == 1


def _is_real(value: Any) -> bool:
    return isinstance(value, float | np.floating)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


_Checks = dict[str, Callable[[Any], bool]]
_ATTRIBUTES: _Checks = {
    "n_features_in_": _is_count,
    "n_components_": _is_count,
    "dtype_": lambda value: isinstance(value, np.dtype) and value in (np.float32, np.float64),
    "_one_dimensional_codes": lambda value: type(value) is bool,
    "design_matrix_": _is_array,
    "recalibration_": lambda value: isinstance(value, Recalibration | None),
}
_OF_MATRICES = ("design_matrix_", *("encoder_", "recurrent_"))
_WEIGHTS: _Checks = {"encoder_": _is_array, "recurrent_": _is_array}
_PROXIMAL: _Checks = {**_WEIGHTS, "step_inverse_": _is_real, "shrinkage_": _is_real, "n_iter_": _is_count}
_ATTRIBUTES_OF: dict[str, _Checks] = {
    "ISTA": _PROXIMAL,
    "FISTA": _PROXIMAL,
    "LISTA": {
        **_PROXIMAL,
        **dict.fromkeys(("shrinkage_", "momentum_", "step_size_"), _is_vector),
        "n_iter_": lambda value: value == 0 or _is_count(value),  # none in a stream that has just begun
        "_memory": lambda value: isinstance(value, StreamMemory | None),
    },
    "BayesLISTA": {**_WEIGHTS, "_learner": lambda value: isinstance(value, FilteringLearner | VariationalLearner)},
    "SpikeSlabNet": {"_learner": lambda value: isinstance(value, SpikeSlabLearner | OperatorLearner)},
}
