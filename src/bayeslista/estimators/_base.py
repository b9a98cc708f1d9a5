"""The bridge from scikit-learn's conventions to the mathematics.

Every estimator validates here and only here: what leaves this module is finite, two-dimensional, of matching
shapes and of one floating type.
"""

import math
import os
import re
import sys
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from tqdm import tqdm

from bayeslista._precision import common_dtype
from bayeslista.distributions import SpikeSlab
from bayeslista.estimators._parameters import check_choice, check_integer, check_real
from bayeslista.estimators._recalibration import METHODS, Recalibration, fit_recalibration
from bayeslista.metrics._forecasts import check_level
from bayeslista.persistence import write_record
from bayeslista.proximal import estimate_design_matrix

_LARGEST_BLOCK = 1024
_SMALLEST_BLOCK = 8
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
    BaseEstimator,
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
        y : array-like of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row.

        Returns
        -------
        Self
            The fitted estimator.
        """

    @abstractmethod
    def _predict_codes(self, Y: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n D"]:
        """Codes of validated observations."""

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predict the codes of observations.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        return_std : bool, default=False
            Whether to return standard deviations, too, which this estimator does not have.

        Returns
        -------
        ndarray of shape (n_samples, n_components) or (n_samples,)
            Their codes, one-dimensional if those of `fit` were, in the floating type of the fit.
        """
        if return_std:
            raise ValueError(
                f"return_std=True asks for standard deviations, which {type(self).__name__} does not have; "
                "use BayesLISTA or SpikeSlabNet, or return_std=False."
            )
        return self._postprocess(self._predict_codes(self._validate_observations(X)))

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
        return self._predict_codes(self._validate_observations(X))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the estimator, fitted or not, to a file that :func:`bayeslista.load` reads.

        Arrays are kept as safetensors, the rest as JSON in its header. A file is written whole or not at all.

        Parameters
        ----------
        path : str or path-like
            Where to; by custom its name ends with ``.safetensors``. A file that is there is replaced.

        Raises
        ------
        ValueError
            If a parameter cannot be written, such as a numpy.random.Generator as `random_state`.
        OSError
            If the file cannot be written.
        """
        if not type(self).__module__.startswith(f"{__package__}."):
            raise ValueError(f"load does not know {type(self).__name__}, a class of your own. Use pickle or joblib.")
        versions = {name: version(name) for name in ("bayeslista", "numpy", "jax", "scikit-learn")}
        write_record(path, {"estimator": type(self).__name__, "state": dict(vars(self))}, versions)

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
        # The target is validated below; its presence is validated here, as the tags ask.
        validate_data(self, X, y, reset=reset, skip_check_array=True)
        with _naming("X"):
            observations = validate_data(self, X, reset=reset, dtype="numeric")
        codes = _check_codes(y)
        if len(codes) != len(observations):
            raise ValueError(
                f"X and y must pair up row by row: X has {len(observations)} samples and y has {len(codes)}; "
                "pass one code for every observation."
            )
        if reset:
            self.dtype_ = self._resolve_dtype(observations, codes)
            self.n_components_ = math.prod(codes.shape[1:])
            self._one_dimensional_codes = codes.ndim == 1
        elif codes.shape[1:] != self._code_shape:
            raise ValueError(
                f"y has shape {codes.shape}, expected {('n_samples', *self._code_shape)} as in the first "
                "fit; pass codes of the same components, or fit anew."
            )
        return (
            _cast("X", observations, self.dtype_),
            _cast("y", codes.reshape(len(codes), -1), self.dtype_),
        )

    def _validate_alone(self, X: ArrayLike) -> Float[np.ndarray, "n K"]:
        """Observations to learn from without codes; a given design matrix says how many coefficients there are."""
        with _naming("X"):
            observations = validate_data(self, X, reset=True, dtype="numeric")
        self.dtype_ = self._resolve_dtype(observations, np.zeros((0, 0), np.int64))
        shape = np.asarray(self.design_matrix).shape
        self.n_components_ = int(shape[-1]) if len(shape) == 2 else 0  # any other shape is refused later
        self._one_dimensional_codes = False
        return _cast("X", observations, self.dtype_)

    def _validate_observations(self, X: ArrayLike) -> Float[np.ndarray, "n K"]:
        """Observations to predict from, in the floating type of the fit."""
        check_is_fitted(self, "design_matrix_")
        with _naming("X"):
            observations = validate_data(self, X, reset=False, dtype="numeric")
        return _cast("X", observations, self.dtype_)

    def _resolve_design_matrix(
        self, Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"]
    ) -> Float[np.ndarray, "K D"]:
        """Return a copy of the design matrix that the user gave, or else one estimated from the pairs."""
        if self.design_matrix is None:
            return estimate_design_matrix(Y, B)
        with _naming("design_matrix"):
            given = check_array(self.design_matrix, dtype="numeric", input_name="design_matrix")
        expected = (Y.shape[1], B.shape[1])
        if given.shape != expected:
            remedy = "pass its transpose" if given.shape == expected[::-1] else "pass one that fits, or None"
            raise ValueError(
                f"design_matrix has shape {given.shape}, expected (n_observed, n_components) = {expected} to "
                f"match X and y; {remedy} (None estimates it from the pairs)."
            )
        return _cast("design_matrix", given, self.dtype_, copy=True)

    def _postprocess(self, codes: Float[np.ndarray, "n D"]) -> np.ndarray:
        """Restore the dimensions that the codes of `fit` had."""
        return codes.reshape(len(codes), *self._code_shape)

    def _precision(self) -> AbstractContextManager[Any]:
        """Context in which JAX computes in the floating type of the fit."""
        return jax.enable_x64(self.dtype_ == np.float64)

    def _resolve_dtype(self, observations: np.ndarray, codes: np.ndarray) -> np.dtype:
        """Return float32 for float32 observations and codes that are float32 or integers; else float64."""
        if self.dtype != "auto":
            return np.dtype(self.dtype)
        if np.issubdtype(observations.dtype, np.floating):
            return common_dtype(observations, codes)
        return np.dtype(np.float64)

    @property
    def _code_shape(self) -> tuple[int, ...]:
        return () if self._one_dimensional_codes else (self.n_components_,)


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
    def _own_dist(self, X: ArrayLike) -> SpikeSlab:
        """Predict a distribution for every coefficient, without what `calibrate` learned."""

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predict the codes of observations, and how uncertain they are.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        return_std : bool, default=False
            Whether to return the standard deviations, too.

        Returns
        -------
        mean : ndarray of shape (n_samples, n_components) or (n_samples,)
            Mean of `predict_dist`, one-dimensional if the codes of `fit` were.
        std : ndarray of the same shape
            Its standard deviation, if `return_std`.
        """
        distribution = self.predict_dist(X)
        return (distribution.mean(), distribution.std()) if return_std else distribution.mean()

    def predict_dist(self, X: ArrayLike) -> SpikeSlab:
        """Predict a distribution for every coefficient.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.

        Returns
        -------
        SpikeSlab
            Of shape (n_samples, n_components), or (n_samples,) if the codes of `fit` were one-dimensional.
        """
        return self._recalibrated(self._own_dist(X))

    def predict_interval(
        self, X: ArrayLike, level: float = 0.9, method: str = "model"
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

        Returns
        -------
        low, high : ndarray of shape (n_samples, n_components) or (n_samples,)
            The ends, both part of the interval.
        """
        check_choice("method", method, ("model", "conformal"))
        check_level(level)
        if method == "model":
            return self.predict_dist(X).interval(level)
        own = self._own_dist(X)
        if self.recalibration_ is None:
            raise ValueError(
                "Conformal intervals need pairs that the model did not learn from; call calibrate(X, y) first."
            )
        return self.recalibration_.interval(own, float(level))

    def calibrate(self, X: ArrayLike, y: ArrayLike, method: str = "isotonic") -> Self:
        """Mend P(active) and the width of the slab by pairs that the model did not learn from.

        P(active) goes through a monotone map; means of slabs are multiplied by one number, variances by another, and a
        third is added to these. The mean of a prediction moves as they do. Calling it again begins anew from what `fit`
        learned; `uncalibrate` goes back to that, `fit` forgets it, and `partial_fit` keeps it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row. Two hundred are enough as a rule, where codes have a hundred coefficients.
        y : array-like of shape (n_samples, n_components) or (n_samples,)
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
        own = model._own_dist(X)
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

    def _ready(self, X: ArrayLike) -> Self:
        """The estimator if it can predict such observations."""
        check_is_fitted(self, "design_matrix_")
        return self

    def _recalibrated(self, dist: SpikeSlab) -> SpikeSlab:
        return dist if self.recalibration_ is None else self.recalibration_.apply(dist)


def in_blocks(function: Callable[..., Any], rows: Any, largest: int = _LARGEST_BLOCK) -> Any:
    """Apply a row-wise function to blocks of few different sizes, so that few sizes are ever compiled.

    Rows go through in blocks of 1,024, or `largest`; what is left over is padded with zeros to the next power of two,
    at least 8. Any pytree of arrays that lead with the rows comes back as NumPy arrays, without the padding.

    Parameters
    ----------
    function : callable
        From blocks of rows to a pytree of arrays of shape (m, ...).
    rows : pytree of ndarray of shape (n, ...)
        Its input.
    largest : int, default=1024
        A power of two that no block exceeds.

    Returns
    -------
    pytree of ndarray
        What `function` would return for all rows at once.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.estimators._base import in_blocks
    >>> in_blocks(lambda block: (block.sum(axis=1), block[:, 0] * len(block)), np.ones((3, 2)))
    (array([2., 2., 2.]), array([8., 8., 8.]))
    """
    n_rows = len(jax.tree.leaves(rows)[0])
    size = min(largest, max(_SMALLEST_BLOCK, 1 << (n_rows - 1).bit_length()))

    def padded(part: np.ndarray) -> np.ndarray:
        whole = np.zeros((-(-n_rows // size) * size, *part.shape[1:]), part.dtype)
        whole[:n_rows] = part
        return whole

    leaves, structure = jax.tree.flatten(jax.tree.map(padded, rows))
    blocks = [
        function(jax.tree.unflatten(structure, [part[begin : begin + size] for part in leaves]))
        for begin in range(0, n_rows, size)
    ]
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:n_rows], *blocks)


def progress_bar(total: int, description: str, verbose: int) -> tqdm:
    """Make a progress bar on the standard error, silent unless `verbose` is at least 1.

    Call ``advance(bar, nmse)`` after every pass.

    Parameters
    ----------
    total : int
        How many passes there are at most.
    description : str
        What is being trained.
    verbose : int
        Whether to show it.

    Returns
    -------
    tqdm.tqdm
        A context manager.

    Examples
    --------
    >>> from bayeslista.estimators._base import advance, progress_bar
    >>> with progress_bar(3, "LISTA", verbose=0) as bar:
    ...     for error in (0.9, 0.8, 0.7):
    ...         advance(bar, error)
    """
    return tqdm(total=total, desc=description, unit="pass", disable=verbose < 1, file=sys.stderr)


def advance(bar: tqdm, nmse: float) -> None:
    """Move a progress bar one pass on and show the running NMSE.

    Parameters
    ----------
    bar : tqdm.tqdm
        From `progress_bar`.
    nmse : float
        The normalised error after this pass.

    Examples
    --------
    >>> from bayeslista.estimators._base import advance, progress_bar
    >>> with progress_bar(1, "LISTA", verbose=0) as bar:
    ...     advance(bar, 0.5)
    """
    bar.set_postfix(nmse=f"{nmse:.4f}", refresh=False)
    bar.update()


def random_seed(random_state: Any) -> int:
    """Draw one seed from scikit-learn's `random_state`, or from one of NumPy's newer generators.

    Parameters
    ----------
    random_state : None, int, numpy.random.RandomState or numpy.random.Generator
        What the user gave.

    Returns
    -------
    int
        A seed for NumPy's or JAX's generators.

    Examples
    --------
    >>> from bayeslista.estimators._base import random_seed
    >>> random_seed(0) == random_seed(0)
    True
    """
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(np.iinfo(np.int32).max))
    with _naming("random_state"):
        return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def root_mean_square(values: np.ndarray) -> float:
    """Root mean square, safe from overflow; 1 where all is zero or there is nothing.

    Parameters
    ----------
    values : ndarray
        Of any shape.

    Returns
    -------
    float
        A scale to divide by.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.estimators._base import root_mean_square
    >>> root_mean_square(np.array([3e200, -3e200])), root_mean_square(np.zeros(2))
    (3e+200, 1.0)
    """
    largest = float(np.max(np.abs(values), initial=0.0)) or 1.0
    return largest * float(np.sqrt(np.mean((values / largest) ** 2)) if values.size else 0.0) or 1.0


_REMEDIES = {
    r"NaN": "Remove or impute missing values.",
    r"infinity": "Remove or replace values that are not finite.",
    r"\b0 (sample|feature)|at least one array": "Pass at least one row and one column.",
    r"could not convert|dtype|inhomogeneous|[Cc]omplex": "Convert it to a rectangular array of real numbers.",
    r"Expected 2D|dim": "Give it one row for every sample.",
    r"features, but": "Pass as many columns as in fit.",
}


@contextmanager
def _naming(argument: str) -> Iterator[None]:
    """Put the name of the argument in front of a message that lacks it, and what to do at its end."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        named = message if re.search(rf"\b{argument}\b", message) else f"{argument}: {message}"
        remedy = next((fix for pattern, fix in _REMEDIES.items() if re.search(pattern, message)), "")
        raise ValueError(f"{named} {remedy}".rstrip()) from error


def _check_codes(y: ArrayLike | None) -> np.ndarray:
    """Codes as the user gave them: numeric, finite, one- or two-dimensional and not empty."""
    with _naming("y"):
        codes = check_array(
            y,
            dtype="numeric",
            ensure_2d=False,
            allow_nd=True,
            ensure_min_samples=0,
            ensure_min_features=0,
            input_name="y",
        )
    if codes.ndim not in (1, 2) or codes.size == 0:
        raise ValueError(
            f"y has shape {codes.shape}, expected (n_samples, n_components) or (n_samples,) with at least "
            "one of each; pass one code, not empty, for every observation."
        )
    return codes


def _cast(name: str, values: np.ndarray, dtype: np.dtype, *, copy: bool = False) -> np.ndarray:
    """Convert validated numbers to `dtype`, and refuse those that do not fit in it."""
    if values.dtype == dtype:
        return values.copy() if copy else values
    with np.errstate(over="ignore"):
        converted = values.astype(dtype)
    if not np.isfinite(converted).all():
        raise ValueError(f"{name} has values too large for {dtype}; rescale it, or pass dtype='float64'.")
    return converted
