"""Design matrices that are operators: what estimators take, and what they refuse."""

from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils._param_validation import HasMethods

from bayeslista.estimators.validation import refuse_sparse
from bayeslista.operators import BaseOperator, as_operator, is_operator
from bayeslista.operators.protocol import LARGEST_MATRIX, check_adjoint

OPERATOR_CONSTRAINTS: list[Any] = ["array-like", "sparse matrix", HasMethods(["matvec", "rmatvec"]), None]


def refuse_operators(estimator: Any) -> None:
    """Refuse sparse matrices and operators where an estimator takes arrays only."""
    refuse_sparse("design_matrix", estimator.design_matrix)
    if is_operator(estimator.design_matrix):
        raise ValueError(
            f"design_matrix is an operator, which {type(estimator).__name__} does not take. Pass an array, or use "
            "ISTA, FISTA or SpikeSlabNet(mode='fast'), which take operators."
        )


def matrix_shape(design_matrix: Any) -> tuple[int, ...]:
    """The shape of a design matrix as it was given; empty where it has none, as a pair of functions."""
    if is_operator(design_matrix):
        return tuple(getattr(design_matrix, "shape", ()))
    return np.asarray(design_matrix).shape


def given_operator(estimator: Any, n_observed: int) -> BaseOperator:
    """The operator that was given, of as many rows as there are features, its adjoint tested."""
    if issparse(estimator.design_matrix) and estimator.design_matrix.ndim != 2:
        raise ValueError("design_matrix is a one-dimensional sparse array. Pass one of two dimensions.")
    operator = as_operator(estimator.design_matrix, n_observed)
    if operator.shape[0] != n_observed:
        remedy = "its transpose" if operator.shape[1] == n_observed else "observations of that size"
        raise ValueError(
            f"design_matrix has shape {operator.shape} and X has {n_observed} features, where the operator should "
            f"make as many observations; pass {remedy}."
        )
    check_adjoint(operator, estimator.dtype_)
    return operator


def small_matrix(operator: BaseOperator, what: str) -> Any:
    """The matrix of a small operator; of a large one an error that names what asks for it."""
    n_observed, n_components = operator.shape
    if n_observed * n_components > LARGEST_MATRIX:
        raise ValueError(
            f"{what} needs a matrix, and the operator of shape {operator.shape} is too large to become one (more than "
            f"{LARGEST_MATRIX} entries). Use mode='fast', which works with products alone."
        )
    return operator.to_matrix()
