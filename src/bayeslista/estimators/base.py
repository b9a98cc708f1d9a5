"""The base class of all estimators: validation of data, prediction in batches, and the shapes of answers."""

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import Tags
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from bayeslista.estimators._display import BriefMixin
from bayeslista.estimators.operator_matrices import given_operator, matrix_shape, refuse_operators
from bayeslista.estimators.saving import SavingMixin
from bayeslista.estimators.validation import (
    COUNT,
    NOT_NEGATIVE,
    Observations,
    cast,
    check_arguments,
    check_codes,
    check_finite,
    check_learnable,
    check_matrix,
    checked_observations,
    component_names,
    warn_if_swapped,
)
from bayeslista.numerics.batching import LARGEST_BLOCK, batches, fill, stack_sparse
from bayeslista.numerics.linear import estimate_design_matrix
from bayeslista.numerics.precision import common_dtype, precision
from bayeslista.operators import BaseOperator

_Rows = Float[NDArray[Any], "n K"]
_Codes = Float[NDArray[Any], "n D"]


class NumericalWarning(UserWarning):
    """Training skipped numbers that it could not use, and counted them in ``diagnostics_``.

    Examples
    --------
    >>> import warnings
    >>> from bayeslista.estimators import NumericalWarning
    >>> warnings.simplefilter("ignore", NumericalWarning)
    """


class BaseSparseCoder(
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    MultiOutputMixin,
    TransformerMixin,
    SavingMixin,
    BriefMixin,
    metaclass=ABCMeta,
):
    """Base class of sparse coders.

    A subclass writes `fit` from `_validate_params`, `_validate_pairs` and `_resolve_design_matrix`, sets
    `design_matrix_` there, and implements `_predict_codes`.
    """

    n_layers: int
    design_matrix: ArrayLike | None
    shrinkage: Any
    dtype: str
    _allow_nan = False  # whether NaN marks a missing sensor

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_layers": [COUNT],
        "design_matrix": ["array-like", None],
        "shrinkage": [NOT_NEGATIVE],
        "dtype": [StrOptions({"auto", "float32", "float64"})],
        "random_state": ["random_state", np.random.Generator],
        "verbose": ["verbose"],
    }

    _takes_operators = False

    def _validate_params(self) -> None:
        if not self._takes_operators:
            refuse_operators(self)  # scikit-learn's message would not say what to do
        super()._validate_params()

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from pairs of observations and codes."""

    @abstractmethod
    def _predict_codes(self, Y: _Rows) -> _Codes:
        """Codes of validated observations."""

    def predict(
        self, X: ArrayLike, return_std: bool = False, *, batch_size: int | None = None, sparse: bool = False
    ) -> Any:
        """Predict the codes of observations.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        return_std : bool, default=False
            Whether to return standard deviations, too, which this estimator does not have.
        batch_size : int or None, default=None
            Observations to convert, check and predict at a time, rounded up to the blocks of up to 1,024 that are
            compiled; it changes no bit of the answer. None is about a million numbers.
        sparse : bool, default=False
            Whether to return a sparse array, which holds what is not exactly zero.

        Returns
        -------
        ndarray of shape (n_samples, n_components) or (n_samples,), or two-dimensional csr_array
            Their codes, one-dimensional if those of `fit` were and they are not sparse, in the floating type of the
            fit.
        """
        if return_std:
            raise ValueError(
                f"return_std=True asks for standard deviations, which {type(self).__name__} does not have; "
                "use BayesLISTA or SpikeSlabNet, or return_std=False."
            )
        check_arguments("predict", {"sparse": ["boolean"]}, sparse=sparse)
        model = self._ready(X)
        if sparse:
            return model._sparse_in_batches(model._predict_codes, X, batch_size)
        return model._in_batches(lambda Y: (model._predict_codes(Y),), X, batch_size)[0]

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Codes of observations, as features for the next step of a pipeline.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            What `predict` returns, always two-dimensional.
        """
        codes = self.predict(X)
        return codes.reshape(len(codes), -1)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the columns of `transform`.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Not used; scikit-learn passes it.

        Returns
        -------
        ndarray of object of shape (n_components,)
            Those that the codes of `fit` had, where they were a frame with names; else that of the class, counted:
            ``ista0``, ``ista1`` and so on.
        """
        names = getattr(self, "component_names_", None)
        return super().get_feature_names_out(input_features) if names is None else names.copy()

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Coefficient of determination of `predict`, averaged over coefficients.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row.
        sample_weight : array-like of shape (n_samples,), default=None
            What each pair counts.

        Returns
        -------
        float
            1 at best; 0 is as good as the mean of the codes.
        """
        self._check_component_names(y)
        codes = check_codes(y)
        cast("y", codes, np.dtype(np.float64))  # refuses what cannot be squared
        return super().score(X, codes, sample_weight)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._allow_nan
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _update(self: Any, X: ArrayLike, y: ArrayLike) -> None:
        """Update by a batch of a stream of pairs; what can wait is left to `_conclude`."""
        self.partial_fit(X, y)

    def _conclude(self) -> None:
        """Complete what `_update` has left."""

    def _validate_pairs(self, X: ArrayLike, y: ArrayLike | None, *, reset: bool = True) -> tuple[_Rows, _Codes]:
        """Observations and codes, finite, two-dimensional, of one floating type.

        With `reset` these pairs decide shapes, names and floating type; without it they have to match the fit.
        """
        observations = checked_observations(self, X, reset=reset)
        # The target is validated below; its presence is validated here, as the tags ask.
        validate_data(self, X, y, reset=reset, skip_check_array=True)
        check_finite("X", observations, allow_nan=self._allow_nan)
        codes = check_codes(y)
        if len(codes) != len(observations):
            raise ValueError(
                f"X and y must pair up row by row: X has {len(observations)} samples and y has {len(codes)}; "
                "pass one code for every observation."
            )
        if reset:
            self.dtype_ = self._resolve_dtype(observations.dtype, codes)
            self.n_components_ = math.prod(codes.shape[1:])
            self._one_dimensional_codes = codes.ndim == 1
            self._learn_component_names(y)
        elif codes.shape[1:] != self._code_shape:
            raise ValueError(
                f"y has shape {codes.shape}, expected {('n_samples', *self._code_shape)} as in the first "
                "fit; pass codes of the same components, or fit anew."
            )
        else:
            self._check_component_names(y)
        pairs = cast("X", observations, self.dtype_), cast("y", codes.reshape(len(codes), -1), self.dtype_)
        if reset:
            for name, values in zip("Xy", pairs, strict=True):
                check_learnable(name, values)
            warn_if_swapped(*pairs)
        return pairs

    def _validate_alone(self, X: ArrayLike) -> _Rows:
        """Observations to learn from without codes."""
        observations = self._meet_alone(X)
        values = observations.rows(slice(0, observations.n_rows), self.dtype_)
        check_learnable("X", values)
        return values

    def _meet_alone(self, X: ArrayLike) -> Observations:
        """Set shapes, names and floating type by observations and the design matrix."""
        observations = Observations(self, X, reset=True)
        self.dtype_ = self._resolve_dtype(observations.dtype, np.zeros((0, 0), np.int64))
        shape = matrix_shape(self.design_matrix)
        self.n_components_ = int(shape[-1]) if len(shape) == 2 else 0  # any other shape is refused later
        self._one_dimensional_codes = False
        self._learn_component_names(None)
        return observations

    def _learn_component_names(self, y: Any) -> None:
        """Set the names of the coefficients, if the codes have any, or else the design matrix."""
        names = component_names(y)
        if names is None:
            names = component_names(self.design_matrix)
        self.__dict__.pop("component_names_", None)
        if names is not None:
            self.component_names_ = names

    def _check_component_names(self, y: Any) -> None:
        """Refuse codes with other names of columns than in the fit, or in another order."""
        fitted, names = getattr(self, "component_names_", None), component_names(y)
        if fitted is None or names is None or np.array_equal(names, fitted):
            return
        pairs = zip(names, fitted, strict=False)
        other = next((f"{a!r} where fit had {b!r}" for a, b in pairs if a != b), f"{len(names)} columns")
        raise ValueError(
            f"The names of the columns of y should match those that were passed during fit: it has {other}. Pass the "
            "codes of the same coefficients in the same order."
        )

    def _ready(self, X: ArrayLike) -> Self:
        """The fitted estimator."""
        check_is_fitted(self, "design_matrix_")
        return self

    def _by_batches(
        self, function: Callable[[_Rows], Any], X: ArrayLike, batch_size: int | None
    ) -> tuple[int, Iterator[tuple[slice, Any]]]:
        """The number of rows, and batch by batch the rows and what a function computes of them, validated.

        All predictions come here: this is the one place where rows are cut, which bounds memory.
        """
        check_arguments("predict", {"batch_size": [COUNT, None]}, batch_size=batch_size)
        observations = Observations(self, X, reset=False)
        n_numbers = self.n_features_in_ + self.n_components_
        parts = batches(observations.n_rows, batch_size, self._rows_together(), n_numbers)
        return observations.n_rows, ((part, function(observations.rows(part, self.dtype_))) for part in parts)

    def _in_batches(
        self, function: Callable[[_Rows], tuple[NDArray[Any], ...]], X: ArrayLike, batch_size: int | None
    ) -> tuple[NDArray[Any], ...]:
        """Arrays that a function computes of validated rows, with the shape of the codes of `fit`."""
        arrays = fill(*self._by_batches(function, X, batch_size))
        return tuple(values.reshape(len(values), *self._code_shape, *values.shape[2:]) for values in arrays)

    def _sparse_in_batches(
        self, function: Callable[[_Rows], NDArray[Any]], X: ArrayLike, batch_size: int | None
    ) -> Any:
        """Codes that a function computes of validated rows, as a sparse array."""
        return stack_sparse(self._by_batches(lambda Y: (function(Y),), X, batch_size)[1])

    def _rows_together(self) -> int:
        """Rows that `_predict_codes` computes together: batches are multiples of it."""
        return LARGEST_BLOCK

    def _resolve_design_matrix(self, Y: _Rows, B: _Codes) -> Float[NDArray[Any], "K D"]:
        """A copy of the design matrix given, or else one estimated from the pairs."""
        if self.design_matrix is None:
            return estimate_design_matrix(Y, B)
        given = check_matrix(self.design_matrix)
        expected = (Y.shape[1], B.shape[1])
        if given.shape != expected:
            swapped = given.shape == expected[::-1]
            remedy = "pass its transpose, or swap X and y if they are" if swapped else "pass one that fits, or None"
            raise ValueError(
                f"design_matrix has shape {given.shape}, expected (n_observed, n_components) = {expected} to "
                f"match X and y; {remedy} (None estimates it from the pairs)."
            )
        matrix = cast("design_matrix", given, self.dtype_, copy=True)
        check_learnable("design_matrix", matrix)
        return matrix

    def _resolve_operator(self, B: _Codes) -> BaseOperator:
        """The operator given, its shape that of the data and its adjoint tested."""
        operator = given_operator(self, self.n_features_in_)
        if len(B) and operator.shape[1] != B.shape[1]:
            raise ValueError(
                f"design_matrix has shape {operator.shape}, expected (n_observed, n_components) = "
                f"{(self.n_features_in_, B.shape[1])} to match X and y; pass one that fits."
            )
        self.n_components_ = operator.shape[1]  # a pair of functions has no shape before
        return operator

    def _precision(self) -> AbstractContextManager[Any]:
        """Context in which JAX computes in the floating type of the fit."""
        return precision(self.dtype_)

    def _resolve_dtype(self, observed: np.dtype[Any], codes: NDArray[Any]) -> np.dtype[Any]:
        """float32 for float32 observations and codes that are float32 or integers; else float64."""
        if self.dtype != "auto":
            return np.dtype(self.dtype)
        if np.issubdtype(observed, np.floating):
            return common_dtype(np.zeros(0, observed), codes)
        return np.dtype(np.float64)

    @property
    def _code_shape(self) -> tuple[int, ...]:
        return () if self._one_dimensional_codes else (self.n_components_,)
