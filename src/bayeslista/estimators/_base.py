"""The bridge from scikit-learn's conventions to the mathematics.

Every estimator validates here, by `_validation`, and only here: what leaves this module is finite, two-dimensional, of
matching shapes and of one floating type.
"""

import math
import os
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from bayeslista._blocks import LARGEST_BLOCK, batches, fill, stack_sparse
from bayeslista._precision import common_dtype, precision
from bayeslista.estimators._checkpoints import what_is_kept
from bayeslista.estimators._display import BriefMixin
from bayeslista.estimators._parameters import check_boolean, check_choice, check_integer, check_real
from bayeslista.estimators._validation import (
    Observations,
    cast,
    check_codes,
    check_finite,
    check_learnable,
    check_matrix,
    checked_observations,
    component_names,
    warn_if_swapped,
)
from bayeslista.persistence import write_record
from bayeslista.proximal import estimate_design_matrix

_DTYPES = ("auto", "float32", "float64")


class NumericalWarning(UserWarning):
    """Training met numbers it could not use, skipped them, and counted them in ``diagnostics_``.

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
    BriefMixin,
    metaclass=ABCMeta,
):
    """What every sparse coder shares: validation, prediction and the shape of its answers.

    A subclass stores ``n_layers``, ``design_matrix``, ``shrinkage`` and ``dtype`` in its constructor, writes
    `fit` from `_check_parameters`, `_validate_pairs` and `_resolve_design_matrix`, and implements
    `_predict_codes`.

    Attributes
    ----------
    n_features_in_ : int
        Observed values per sample, K.
    n_components_ : int
        Coefficients per code, D.
    dtype_ : numpy.dtype
        The floating type of the fit, and of everything it predicts.
    design_matrix_ : ndarray of shape (K, D)
        The design matrix given, or else estimated from the pairs.
    component_names_ : ndarray of shape (D,)
        Names of the coefficients, where the codes of the fit were a frame with names.
    """

    n_layers: int
    design_matrix: ArrayLike | None
    shrinkage: Any
    dtype: str

    @abstractmethod
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from pairs of observations and codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row.

        Returns
        -------
        Self
            The fitted estimator.
        """

    @abstractmethod
    def _predict_codes(self, Y: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n D"]:
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
        check_boolean("sparse", sparse)
        model = self._ready(X)
        if sparse:
            return stack_sparse(model._by_batches(lambda Y: (model._predict_codes(Y),), X, batch_size)[1])
        return model._shaped(*fill(*model._by_batches(lambda Y: (model._predict_codes(Y),), X, batch_size)))

    def transform(self, X: ArrayLike) -> np.ndarray:
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
        model = self._ready(X)
        return fill(*model._by_batches(lambda Y: (model._predict_codes(Y),), X, None))[0]

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> np.ndarray:
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the estimator, fitted or not, to a file that :func:`bayeslista.load` reads.

        Arrays are kept as safetensors, the rest, callbacks and metadata requests excepted, as JSON in its header. A
        file is written whole or not at all.

        Parameters
        ----------
        path : str or path-like
            Where to; by custom its name ends with ``.safetensors``. A file that is there is replaced.

        Raises
        ------
        ValueError
            If a parameter cannot be written, such as a numpy.random.Generator as `random_state`.
        FileNotFoundError
            If the folder is not there; it has to be made first.
        OSError
            If the file cannot be written for another reason.
        """
        if not type(self).__module__.startswith(f"{__package__}."):
            raise ValueError(f"load does not know {type(self).__name__}, a class of your own. Use pickle or joblib.")
        versions = {name: version(name) for name in ("bayeslista", "numpy", "jax", "scikit-learn")}
        write_record(path, {"estimator": type(self).__name__, "state": what_is_kept(self)}, versions)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _check_parameters(self) -> None:
        """Refuse constructor parameters that no data could make valid; subclasses add their own."""
        check_integer("n_layers", self.n_layers, minimum=1)
        self._check_shrinkage()
        check_choice("dtype", self.dtype, _DTYPES)

    def _check_shrinkage(self) -> None:
        check_real("shrinkage", self.shrinkage, minimum=0)

    def _validate_pairs(
        self, X: ArrayLike, y: ArrayLike | None, *, reset: bool = True
    ) -> tuple[Float[np.ndarray, "n K"], Float[np.ndarray, "n D"]]:
        """Observations and codes, finite, two-dimensional, of one floating type.

        With `reset` the shapes and the floating type are learned from these pairs; without it (`partial_fit`)
        the pairs have to agree with those of the fit.
        """
        observations = checked_observations(self, X, reset=reset)
        # The target is validated below; its presence is validated here, as the tags ask.
        validate_data(self, X, y, reset=reset, skip_check_array=True)
        check_finite("X", observations)
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

    def _validate_alone(self, X: ArrayLike) -> Float[np.ndarray, "n K"]:
        """Observations to learn from without codes."""
        observations = self._meet_alone(X)
        values = observations.rows(slice(0, observations.n_rows), self.dtype_)
        check_learnable("X", values)
        return values

    def _meet_alone(self, X: ArrayLike) -> Observations:
        """Learn columns and floating type from observations; a given design matrix says how many coefficients."""
        observations = Observations(self, X, reset=True)
        self.dtype_ = self._resolve_dtype(observations.kind, np.zeros((0, 0), np.int64))
        shape = np.asarray(self.design_matrix).shape
        self.n_components_ = int(shape[-1]) if len(shape) == 2 else 0  # any other shape is refused later
        self._one_dimensional_codes = False
        self._learn_component_names(None)
        return observations

    def _learn_component_names(self, y: Any) -> None:
        """Remember the names that codes come with, or that they come with none."""
        names = component_names(y)
        self.__dict__.pop("component_names_", None)
        if names is not None:
            self.component_names_ = names

    def _check_component_names(self, y: Any) -> None:
        """Refuse codes whose columns have other names than those of the fit, or the same in another order."""
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
        """The estimator if it can predict such observations."""
        check_is_fitted(self, "design_matrix_")
        return self

    def _by_batches(
        self, function: Callable[[Float[np.ndarray, "n K"]], Any], X: ArrayLike, batch_size: int | None
    ) -> tuple[int, Iterator[tuple[slice, Any]]]:
        """How many observations there are, and what a function says of them, validated, batch by batch."""
        if batch_size is not None:
            check_integer("batch_size", batch_size, minimum=1)
        observations = Observations(self, X, reset=False)
        return observations.n_rows, (
            (part, function(observations.rows(part, self.dtype_))) for part in self._parts(observations, batch_size)
        )

    def _parts(self, observations: Observations, batch_size: int | None = None) -> Iterator[slice]:
        n_numbers = self.n_features_in_ + self.n_components_
        return batches(observations.n_rows, batch_size, self._rows_together(), n_numbers)

    def _rows_together(self) -> int:
        """How many observations `_predict_codes` works on together: batches are multiples of it."""
        return LARGEST_BLOCK

    def _resolve_design_matrix(
        self, Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"]
    ) -> Float[np.ndarray, "K D"]:
        """Return a copy of the design matrix that the user gave, or else one estimated from the pairs."""
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

    def _shaped(self, values: Float[np.ndarray, "n D"]) -> np.ndarray:
        """Restore the dimensions that the codes of `fit` had."""
        return values.reshape(len(values), *self._code_shape)

    def _precision(self) -> AbstractContextManager[Any]:
        """Context in which JAX computes in the floating type of the fit."""
        return precision(self.dtype_)

    def _resolve_dtype(self, observed: np.dtype, codes: np.ndarray) -> np.dtype:
        """Return float32 for float32 observations and codes that are float32 or integers; else float64."""
        if self.dtype != "auto":
            return np.dtype(self.dtype)
        if np.issubdtype(observed, np.floating):
            return common_dtype(np.zeros(0, observed), codes)
        return np.dtype(np.float64)

    @property
    def _code_shape(self) -> tuple[int, ...]:
        return () if self._one_dimensional_codes else (self.n_components_,)
