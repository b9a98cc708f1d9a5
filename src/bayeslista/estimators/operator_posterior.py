"""SpikeSlabNet on operators: what it takes, learns and refuses there."""

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayeslista.estimators.base import NumericalWarning
from bayeslista.estimators.given_parameters import numbers
from bayeslista.estimators.operator_matrices import small_matrix
from bayeslista.estimators.validation import check_matrix, naming, warn_caller
from bayeslista.numerics.batching import root_mean_square
from bayeslista.numerics.epochs import Units
from bayeslista.operators import BaseOperator, MatrixOperator, is_operator
from bayeslista.operators.protocol import LARGEST_MATRIX
from bayeslista.spike_slab.learned_model import Assumed
from bayeslista.spike_slab.operator_fitting import OperatorLearner


def uses_operator(model: Any) -> bool:
    """Whether the design matrix is an operator, or coefficients have labels, which layers of matrices do not take."""
    return is_operator(model.design_matrix) or model.prior_labels is not None


def fit_on_operator(model: Any, X: ArrayLike, y: ArrayLike | None) -> Any:
    """`fit` with an operator."""
    _check_mode(model)
    codes: Any = None
    if y is None:
        observations = model._validate_alone(X)
    else:
        observations, codes = model._validate_pairs(X, y)
    operator = _operator(model, np.zeros((0, 0)) if codes is None else codes)
    if _becomes_matrix(model, operator):
        return _fit_as_matrix(model, operator, X, y)
    learner = _new_learner(model, operator, root_mean_square(observations))
    rows = observations / model.dtype_.type(learner.units.observation)
    if codes is None:
        learner.learn_from_observations(rows)
    else:
        learner.learn_from_pairs(rows, codes / model.dtype_.type(learner.units.code))
    model.uncalibrate()
    _install(model, learner)
    return model


def assumed_on_operator(model: Any, X: ArrayLike) -> Any:
    """A copy that has taken what is given for learned."""
    _check_mode(model)
    taken = copy(model)
    taken._meet_alone(X)
    operator = _operator(taken, np.zeros((0, 0)))
    if _becomes_matrix(taken, operator):
        taken.design_matrix = small_matrix(operator, f"mode={taken.mode!r}")
        return taken._assumed(X)
    slab_var = np.asarray(numbers(taken.slab_var))
    learner = _new_learner(taken, operator, float(np.sqrt(np.mean(slab_var))))
    learner.assume()
    _install(taken, learner)
    return taken


def given_shape(model: Any) -> tuple[int, int]:
    """Observations and coefficients of the operator that was given."""
    shape = getattr(model.design_matrix, "shape", None)
    if shape is None:
        if isinstance(model.design_matrix, tuple):
            raise ValueError(
                "A pair of functions has no shape of its own. Pass bayeslista.operators.FunctionPair((matvec, "
                "rmatvec), n_observed, n_components), or observations to fit."
            )
        shape = np.shape(model.design_matrix)
    return int(shape[0]), int(shape[1])


def refuse_partial_fit(model: Any) -> None:
    """Refuse what sums over pairs cannot do without a matrix."""
    if uses_operator(model):
        raise ValueError(
            "partial_fit takes sums over pairs, which are as large as the matrix, and no operator and no "
            "prior_labels. Pass all observations to fit, or an array as design_matrix."
        )


def _check_mode(model: Any) -> None:
    if model.prior_labels is not None and model.mode != "fast":
        raise ValueError(f"prior_labels are for mode='fast', and mode is {model.mode!r}. Pass mode='fast', or None.")
    if model.slab_weight is not None and model.mode == "fast":
        raise ValueError("slab_weight is for mode='exact'. Pass None, or mode='exact' with a small operator.")


def _operator(model: Any, codes: NDArray[Any]) -> BaseOperator:
    if is_operator(model.design_matrix):
        return model._resolve_operator(codes)
    if model.design_matrix is None:
        raise ValueError("prior_labels need a design matrix. Pass design_matrix, or prior_labels=None.")
    matrix = check_matrix(model.design_matrix)
    blank = np.zeros((0, model.n_features_in_)), codes if codes.size else np.zeros((0, matrix.shape[1]))
    return MatrixOperator(model._resolve_design_matrix(*blank).astype(np.float64))


def _becomes_matrix(model: Any, operator: BaseOperator) -> bool:
    """Whether a matrix takes the place of the operator: where a mode needs one, and where it is small and alike."""
    if model.mode != "fast":
        return True
    given = [np.ndim(np.asarray(part)) for part in (model.prob_active, model.slab_var)]
    alike = model.prior_labels is None and operator.subbands is None and not any(given)
    return alike and operator.shape[0] * operator.shape[1] <= LARGEST_MATRIX


def _fit_as_matrix(model: Any, operator: BaseOperator, X: ArrayLike, y: ArrayLike | None) -> Any:
    dense = copy(model)
    dense.design_matrix = small_matrix(operator, f"mode={model.mode!r}")
    dense.fit(X, y)
    own = model.get_params(deep=False)
    vars(model).update({name: value for name, value in vars(dense).items() if name not in own})
    return model


def _labels(model: Any, operator: BaseOperator) -> NDArray[Any] | None:
    if model.prior_labels is None:
        return operator.subbands
    labels = np.asarray(model.prior_labels)
    if labels.shape != operator.shape[1:] or labels.dtype.kind not in "iub":
        with naming("prior_labels"):
            raise ValueError(
                f"prior_labels has shape {labels.shape} and dtype {labels.dtype}, expected whole numbers of shape "
                f"({operator.shape[1]},). Pass one label for every coefficient."
            )
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def _check_sizes(model: Any, operator: BaseOperator) -> None:
    D = operator.shape[1]
    for name in ("prob_active", "slab_var"):
        shape = np.shape(np.asarray(getattr(model, name)))
        if shape not in ((), (D,)):
            raise ValueError(f"{name} has shape {shape}, expected a number or shape ({D},), one a coefficient.")
    if model.noise_covariance is not None:
        raise ValueError("noise_covariance needs a matrix. Pass noise_std, or an array as design_matrix.")
    if model.prior in ("correlated", "mixture"):
        raise ValueError(f"prior={model.prior!r} needs a matrix. Pass prior='auto', or an array as design_matrix.")
    if np.ndim(np.asarray(model.noise_std)):
        raise ValueError("noise_std on an operator is a number. Pass one, or mode='exact' with a small operator.")


def _new_learner(model: Any, operator: BaseOperator, size: float) -> OperatorLearner:
    _check_sizes(model, operator)
    # One power of two for observations and codes, so that the operator stays as it is and nothing is rounded.
    unit = float(2.0 ** np.round(np.log2(size)))
    assumed = Assumed(
        None,
        numbers(model.prob_active),
        None if model.noise_std is None else (numbers(model.noise_std) / unit) ** 2,
        None if model.slab_var is None else numbers(model.slab_var) / unit**2,
    )
    return OperatorLearner(operator, _labels(model, operator), Units(unit, unit), model.n_layers, assumed, model.dtype_)


def _install(model: Any, learner: OperatorLearner) -> None:
    """Put a learned model into the estimator: fitted attributes in the units of the data."""
    prior, unit, given = learner.prior, learner.units.code, learner.assumed
    assert prior is not None
    model._learner = learner
    model.design_matrix_ = learner.operator
    model.design_matrix_std_ = np.zeros(model.n_components_, model.dtype_)
    prob, slab_var = prior.prob_active, prior.slab_var
    model.prob_active_ = float(prob[0]) if len(prob) == 1 else prob
    model.noise_std_ = float(np.sqrt(learner.noise_var)) * learner.units.observation
    model.slab_weight_, model.slab_mean_ = np.ones(1), np.zeros(1)
    model.slab_var_ = (slab_var if given.slab_var is None else np.atleast_1d(given.slab_var)) * unit**2
    model.prior_ = "independent"
    model.history_ = {"objective": np.zeros(0)}
    model.diagnostics_ = {"skipped": 0, "layers": learner.n_run}
    if not learner.has_settled:
        warn_caller(
            "The layers of the fit did not settle: the posterior means still change, or a state before them is "
            "answered. The operator may be far from random. Learn from more observations, give noise_std, or use "
            "fewer prior_labels.",
            NumericalWarning,
        )
