"""Estimators in files: `save`, and `load`, which knows every record that a fitted estimator may hold."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bayeslista.calibration import Calibration
from bayeslista.denoiser import SlabPrior
from bayeslista.estimators._checkpoints import FitRecord
from bayeslista.estimators._filtering import FilteringLearner
from bayeslista.estimators._learners import Pass, Units
from bayeslista.estimators._recalibration import IsotonicMap, LogisticMap, Recalibration
from bayeslista.estimators._spike_slab import Assumed, Learned, SpikeSlabLearner
from bayeslista.estimators._structured import Base, Head
from bayeslista.estimators._variational import Parameters, VariationalLearner
from bayeslista.estimators.bayes_lista import BayesLISTA
from bayeslista.estimators.fista import FISTA
from bayeslista.estimators.ista import ISTA
from bayeslista.estimators.lista import LISTA
from bayeslista.estimators.sparse_coding_transformer import CodePrior, Nested, SparseCodingTransformer
from bayeslista.estimators.spike_slab_net import SpikeSlabNet
from bayeslista.gaussian_base import GaussianBase
from bayeslista.generative import SlabMixture, Statistics
from bayeslista.message_passing import LayerScalars, Problem
from bayeslista.network import Gaussian, Weights
from bayeslista.persistence import read_record
from bayeslista.posterior import Belief, Gamma, PriorFactor
from bayeslista.spike_slab_network import HeadScalars, NetworkScalars, Opinion

_ESTIMATORS: dict[str, Any] = {
    kind.__name__: kind for kind in (ISTA, FISTA, LISTA, BayesLISTA, SparseCodingTransformer, SpikeSlabNet)
}
_RECORDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Assumed,
        Base,
        Belief,
        Calibration,
        CodePrior,
        FilteringLearner,
        FitRecord,
        Gamma,
        Gaussian,
        GaussianBase,
        Head,
        HeadScalars,
        IsotonicMap,
        LayerScalars,
        Learned,
        LogisticMap,
        Nested,
        NetworkScalars,
        Opinion,
        Parameters,
        Pass,
        PriorFactor,
        Problem,
        Recalibration,
        SlabMixture,
        SlabPrior,
        SpikeSlabLearner,
        Statistics,
        Units,
        VariationalLearner,
        Weights,
    )
}


def known_records() -> dict[str, type]:
    """Every record that a file may hold, by its name."""
    return _RECORDS


def load(path: str | os.PathLike[str]) -> Any:
    """Read an estimator from a file that its `save` has written; no code in it is run.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    ISTA, FISTA, LISTA, BayesLISTA, SpikeSlabNet or SparseCodingTransformer
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
    found: Any = read_record(path, _RECORDS)
    told: dict[str, Any] = found if isinstance(found, dict) else {}
    if "checkpoint" in told and "state" not in told:
        raise ValueError(f"{path} is the checkpoint of a fit that has not ended. Call that fit again to go on from it.")
    state: Any = told.get("state")
    return _made(Nested(told.get("estimator", ""), state), path)


def _made(told: Nested, path: str | os.PathLike[str]) -> Any:
    """The estimator that a record tells of, and those inside it; parameters it does not tell have their default."""
    name, state = told
    if not isinstance(name, str) or name not in _ESTIMATORS:
        raise ValueError(f"{path} holds no estimator that this version of bayeslista knows ({name!r}).")
    wrong = _first_wrong(name, state)
    if wrong is not None:
        raise ValueError(f"{path} holds no {name} that could work: {wrong} is missing or not as it should be.")
    kind = _ESTIMATORS[name]
    parts = {key: _made(part, path) if isinstance(part, Nested) else part for key, part in state.items()}
    model = kind(**{key: parts[key] for key in kind._get_param_names() if key in parts})
    model.__dict__.update(parts)
    return model


def _first_wrong(name: str, state: Any) -> str | None:
    """What a fitted estimator cannot do without and is not there, or is of another kind; None if all is well."""
    if not isinstance(state, dict):
        return "its state"
    if "design_matrix_" not in state:
        return None  # not fitted
    for attribute, fine in {**_OF_ALL, **_OF_EACH.get(name, {})}.items():
        if not fine(state.get(attribute)):
            return attribute
    K, D = state["n_features_in_"], state["n_components_"]
    for attribute, shape in {"design_matrix_": (K, D), "encoder_": (D, K), "recurrent_": (D, D)}.items():
        if attribute in state and state[attribute].shape != shape:
            return attribute
    if not _are_names(state.get("component_names_"), D):
        return "component_names_"
    return None


def _are_names(value: Any, n: int) -> bool:
    """Whether names, which models need not have, are as many different ones as there are coefficients."""
    if value is None:
        return True
    names = value.tolist() if isinstance(value, np.ndarray) and value.shape == (n,) else []
    return all(isinstance(name, str) for name in names) and len(set(names)) == n


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _is_real(value: Any) -> bool:
    return isinstance(value, float | np.floating)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


_OF_ALL: dict[str, Callable[[Any], bool]] = {
    "n_features_in_": _is_count,
    "n_components_": _is_count,
    "dtype_": lambda value: isinstance(value, np.dtype) and value in (np.float32, np.float64),
    "_one_dimensional_codes": lambda value: type(value) is bool,
    "design_matrix_": _is_array,
    "recalibration_": lambda value: isinstance(value, Recalibration | None),
}
_OF_STEPS: dict[str, Callable[[Any], bool]] = {
    "encoder_": _is_array,
    "recurrent_": _is_array,
    "step_inverse_": _is_real,
    "shrinkage_": _is_real,
    "n_iter_": _is_count,
}
_OF_EACH: dict[str, dict[str, Callable[[Any], bool]]] = {
    "ISTA": _OF_STEPS,
    "FISTA": _OF_STEPS,
    "LISTA": {**_OF_STEPS, "shrinkage_": lambda value: _is_array(value) and value.ndim == 1},
    "BayesLISTA": {
        "_learner": lambda value: isinstance(value, FilteringLearner | VariationalLearner),
        "encoder_": _is_array,
        "recurrent_": _is_array,
    },
    "SpikeSlabNet": {"_learner": lambda value: isinstance(value, SpikeSlabLearner)},
}
