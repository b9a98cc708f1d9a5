"""Validation of what users pass: refused by name, or converted to finite numbers of one floating type."""

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from numbers import Integral, Real
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.utils import check_array, check_random_state
from sklearn.utils._param_validation import Interval, validate_parameter_constraints
from sklearn.utils.validation import validate_data

from bayeslista.numerics.batching import LARGEST_BLOCK, batches, some_rows

COUNT = Interval(Integral, 1, None, closed="left")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
POSITIVE = Interval(Real, 0, None, closed="neither")
FRACTION = Interval(Real, 0, 1, closed="left")

# The squares of larger numbers, or sums of them, overflow; those of smaller ones underflow.
_LARGEST = {np.dtype(np.float64): 1e150, np.dtype(np.float32): 1e17}
_SMALLEST = {np.dtype(np.float64): 1e-150, np.dtype(np.float32): 1e-37}
_ZEROS_OF_CODES, _ZEROS_OF_OBSERVATIONS = 0.5, 0.01  # shares of exact zeros: more than, and less than
_REMEDIES = {
    r"int too large": "Rescale it.",
    r"\b0 (sample|feature)|at least one array": "Pass at least one row and one column.",
    r"could not convert|dtype|inhomogeneous|[Cc]omplex": "Convert it to a rectangular array of real numbers.",
    r"Expected 2D|dim": "Give it one row for every sample.",
    r"features, but": "Pass as many columns as in fit.",
}

_Method = TypeVar("_Method", bound=Callable[..., Any])


@contextmanager
def rollback(estimator: Any) -> Iterator[None]:
    """Restore all attributes of an estimator if anything is raised."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def all_or_nothing(method: _Method) -> _Method:
    """Make a method restore all attributes of its estimator if it raises."""

    @wraps(method)
    def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with rollback(self):
            return method(self, *arguments, **keywords)

    return run  # type: ignore[return-value]


def check_arguments(function: str, constraints: dict[str, list[Any]], **arguments: Any) -> None:
    """Check arguments of a function by scikit-learn's parameter constraints."""
    validate_parameter_constraints(constraints, arguments, caller_name=function)


class Observations:
    """Observations that are checked and converted to one floating type only as their rows are asked for.

    Arrays of many rows, memory-mapped or not, and frames are cut before anything is converted.
    """

    def __init__(self, estimator: Any, X: Any, *, reset: bool) -> None:
        refuse_sparse("X", X)
        shape: tuple[int, ...] = getattr(X, "shape", ())
        self._as_given = len(shape) == 2 and shape[0] > LARGEST_BLOCK and not isinstance(X, jax.Array)
        self._values = X if self._as_given else checked_observations(estimator, X, reset=reset)
        self._allow_nan = bool(getattr(estimator, "_allow_nan", False))
        first = (
            checked_observations(estimator, self._take(slice(0, 1)), reset=reset) if self._as_given else self._values
        )
        self.n_rows = int(self._values.shape[0])
        self.dtype = first.dtype  # before conversion

    def rows(self, part: slice, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Some rows, finite and converted; a view where nothing is to be converted."""
        values = self._take(part)
        if self._as_given:
            with naming("X"):
                values = _numbers(check_array(values, dtype="numeric", ensure_all_finite=False))
        check_finite("X", values, part.start, allow_nan=self._allow_nan)
        return cast("X", values, dtype)

    def some_rows(self, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """All rows, a few at a time."""
        return (self.rows(part, dtype) for part in batches(self.n_rows, None, 1, int(self._values.shape[1])))

    def _take(self, part: slice) -> Any:
        return self._values.iloc[part] if hasattr(self._values, "iloc") else self._values[part]


def checked_observations(estimator: Any, X: Any, *, reset: bool) -> NDArray[Any]:
    """Observations as an array with the columns of the fit; finiteness is not checked."""
    refuse_sparse("X", X)
    with naming("X"):
        return _numbers(validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False))


def check_codes(y: ArrayLike | None) -> NDArray[Any]:
    """Codes as the user gave them: numeric, finite, one- or two-dimensional and not empty."""
    with naming("y"):
        codes = _numbers(
            check_array(
                dense(y),
                dtype="numeric",
                ensure_2d=False,
                allow_nd=True,
                ensure_min_samples=0,
                ensure_min_features=0,
                ensure_all_finite=False,
            )
        )
    if codes.ndim not in (1, 2) or codes.size == 0:
        raise ValueError(
            f"y has shape {codes.shape}, expected (n_samples, n_components) or (n_samples,) with at least "
            "one of each; pass one code, not empty, for every observation."
        )
    check_finite("y", codes)
    return codes


def component_names(y: Any) -> NDArray[np.object_] | None:
    """Names of the coefficients from the columns of a frame or series; None unless they are distinct texts."""
    names = list(getattr(y, "columns", [y.name] if hasattr(y, "to_frame") and hasattr(y, "name") else []))
    named = all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
    return np.array([str(name) for name in names], object) if named and names else None


def check_matrix(design_matrix: ArrayLike) -> NDArray[Any]:
    """The design matrix as the user gave it: numeric, finite and two-dimensional."""
    refuse_sparse("design_matrix", design_matrix)
    with naming("design_matrix"):
        matrix = _numbers(check_array(design_matrix, dtype="numeric", ensure_all_finite=False))
    check_finite("design_matrix", matrix)
    return matrix


def check_going_on(estimator: Any, checkpoint: Any = None) -> None:
    """Refuse to go on from a fitted network with another number of layers, or with a checkpoint."""
    n_fitted = len(estimator.shrinkage_)
    if estimator.n_layers != n_fitted:
        raise ValueError(
            f"n_layers={estimator.n_layers}, but the network to go on from has {n_fitted} layers; set n_layers to "
            "that, or train a new network by fit with warm_start=False."
        )
    if checkpoint is not None:
        raise ValueError(
            "A fit with warm_start=True that goes on from another one cannot have a checkpoint, which would not hold "
            "that one; pass checkpoint=None, or set warm_start=False."
        )


def check_finite(name: str, values: NDArray[Any], first_row: int = 0, *, allow_nan: bool = False) -> None:
    """Refuse infinity, and NaN unless it marks what is missing, with the place of the first."""
    if values.dtype.kind != "f":
        return
    begin = 0
    for part in some_rows(values):
        finite = ~np.isinf(part) if allow_nan else np.isfinite(part)
        if not finite.all():
            where = np.unravel_index(int(np.argmin(finite)), part.shape)
            what = "NaN" if np.isnan(part[where]) else "infinity"
            remedy = "Remove or impute missing values." if what == "NaN" else "Remove or replace what is not finite."
            row = f"row {first_row + begin + int(where[0])}"
            place = row if values.ndim == 1 else f"{row}, column {int(where[1])}"
            raise ValueError(f"Input {name} contains {what}, first in {place} (counted from 0). {remedy}")
        begin += len(part)


def dense(y: Any) -> Any:
    """Codes, dense if they were sparse."""
    return y.toarray(order="C") if issparse(y) else y


def refuse_sparse(name: str, values: Any) -> None:
    """Refuse sparse matrices of observations and dictionaries."""
    if issparse(values):
        raise ValueError(f"{name} is sparse, but has to be dense here; pass {name}.toarray().")


def cast(name: str, values: NDArray[Any], dtype: np.dtype[Any], *, copy: bool = False) -> NDArray[Any]:
    """Convert validated numbers to `dtype`, C-ordered since sums depend on the order, and refuse those too large."""
    if _largest(values) > _LARGEST[dtype]:
        remedy = "rescale it." if dtype == np.float64 else "rescale it, or pass dtype='float64'."
        raise ValueError(f"{name} has values too large for {dtype}; {remedy}")
    if values.dtype == dtype:
        return values.copy(order="C") if copy else np.ascontiguousarray(values)
    return values.astype(dtype, order="C")


def check_learnable(name: str, values: NDArray[Any]) -> None:
    """Refuse numbers that are all so near to zero that nothing can be divided by them."""
    if 0 < _largest(values) < _SMALLEST[values.dtype]:
        raise ValueError(f"{name} has only values too small to learn from in {values.dtype}; rescale it.")


def warn_if_swapped(X: NDArray[Any], y: NDArray[Any]) -> None:
    """Warn where most of the observations are exactly zero and hardly any code is."""
    shares = [1.0 - np.count_nonzero(values) / values.size for values in (X, y)]
    if 1.0 > shares[0] > _ZEROS_OF_CODES and shares[1] < _ZEROS_OF_OBSERVATIONS:
        warn_caller(
            f"{shares[0]:.0%} of X are exactly zero, and hardly anything of y is, as if observations and codes were "
            "swapped. X holds observations and y their sparse codes: fit(observations, codes).",
            UserWarning,
        )


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the line of the first caller that is neither this package nor scikit-learn."""
    frame, level, ours = sys._getframe(1), 2, (__name__.partition(".")[0], "sklearn")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Arrays of Python integers, which can be of any size, as floating-point numbers."""
    return values.astype(np.float64) if values.dtype.kind == "O" else values


def _largest(values: NDArray[Any]) -> float:
    """The largest magnitude, without a copy."""
    if values.dtype.kind == "f":  # NaN, where it is allowed, has no size
        return max(
            float(np.fmax.reduce(values, axis=None, initial=0)), -float(np.fmin.reduce(values, axis=None, initial=0))
        )
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """Add the name of the argument and what to do to messages that lack them."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        message = str(error)
        named = message if re.search(rf"\b{argument}\b", message) else f"{argument}: {message}"
        remedy = next((fix for pattern, fix in _REMEDIES.items() if re.search(pattern, message)), "")
        raise ValueError(f"{named} {remedy}".rstrip()) from error


def random_seed(random_state: Any) -> int:
    """Draw one seed from scikit-learn's `random_state`, or from a numpy.random.Generator."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(np.iinfo(np.int32).max))
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
