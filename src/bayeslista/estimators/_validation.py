"""What users pass, refused by name or brought to finite numbers of one floating type."""

import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import jax
import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import validate_data

from bayeslista._blocks import LARGEST_BLOCK, batches, some_rows

# The squares of larger numbers, or sums of them, leave the floating range; those of smaller ones are nothing.
_LARGEST = {np.dtype(np.float64): 1e150, np.dtype(np.float32): 1e17}
_LEAST = {np.dtype(np.float64): 1e-150, np.dtype(np.float32): 1e-37}
_ZEROS_OF_CODES, _ZEROS_OF_OBSERVATIONS = 0.5, 0.01  # shares of exact zeros: more than, and less than
_REMEDIES = {
    r"int too large": "Rescale it.",
    r"\b0 (sample|feature)|at least one array": "Pass at least one row and one column.",
    r"could not convert|dtype|inhomogeneous|[Cc]omplex": "Convert it to a rectangular array of real numbers.",
    r"Expected 2D|dim": "Give it one row for every sample.",
    r"features, but": "Pass as many columns as in fit.",
}


_Method = TypeVar("_Method", bound=Callable[..., Any])


def all_or_nothing(method: _Method) -> _Method:
    """Leave an estimator as it was where a method that changes it does not come to its end."""

    @wraps(method)
    def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        before = dict(vars(self))
        try:
            return method(self, *arguments, **keywords)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return run  # type: ignore[return-value]


class Observations:
    """Observations that are checked, and cast to one floating type, only as their rows are asked for.

    Arrays of many rows, memory-mapped or not, and such frames are cut before anything is converted; anything else
    becomes an array.

    Parameters
    ----------
    estimator : estimator
        That which knows, or with `reset` learns, their columns.
    X : array-like of shape (n_samples, n_observed)
        What the user passed.
    reset : bool
        Whether this is a fit.

    Attributes
    ----------
    n_rows : int
        How many there are.
    kind : numpy.dtype
        Their type before they are cast.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista import ISTA
    >>> from bayeslista.estimators._validation import Observations
    >>> observations = Observations(ISTA(), np.arange(6).reshape(3, 2), reset=True)
    >>> observations.rows(slice(1, 3), np.dtype("float32"))
    array([[2., 3.],
           [4., 5.]], dtype=float32)
    """

    def __init__(self, estimator: Any, X: Any, *, reset: bool) -> None:
        refuse_sparse("X", X)
        shape: tuple[int, ...] = getattr(X, "shape", ())
        self._as_given = len(shape) == 2 and shape[0] > LARGEST_BLOCK and not isinstance(X, jax.Array)
        self._values = X if self._as_given else checked_observations(estimator, X, reset=reset)
        first = (
            checked_observations(estimator, self._take(slice(0, 1)), reset=reset) if self._as_given else self._values
        )
        self.n_rows = int(self._values.shape[0])
        self.kind = first.dtype

    def rows(self, part: slice, dtype: np.dtype) -> np.ndarray:
        """Some of them, finite and cast; the numbers themselves where they are so already."""
        values = self._take(part)
        if self._as_given:
            with naming("X"):
                values = _numbers(check_array(values, dtype="numeric", ensure_all_finite=False))
        check_finite("X", values, part.start)
        return cast("X", values, dtype)

    def some_rows(self, dtype: np.dtype) -> Iterator[np.ndarray]:
        """All of them, a few at a time."""
        return (self.rows(part, dtype) for part in batches(self.n_rows, None, 1, int(self._values.shape[1])))

    def _take(self, part: slice) -> Any:
        return self._values.iloc[part] if hasattr(self._values, "iloc") else self._values[part]


def checked_observations(estimator: Any, X: Any, *, reset: bool) -> np.ndarray:
    """Observations as an array of numbers whose columns are those of the fit; they may not be finite."""
    refuse_sparse("X", X)
    with naming("X"):
        return _numbers(validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False))


def check_codes(y: ArrayLike | None) -> np.ndarray:
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


def component_names(y: Any) -> np.ndarray | None:
    """Names of the coefficients, as the columns of a frame or a series have them; None where they are no such names.

    Parameters
    ----------
    y : array-like
        Codes, one a row, as the user gave them.

    Returns
    -------
    ndarray of object of shape (n_components,), or None
        Texts, none of them empty and no two the same.

    Examples
    --------
    >>> import pandas as pd
    >>> from bayeslista.estimators._validation import component_names
    >>> component_names(pd.DataFrame({"left": [0.0, 1.0], "right": [2.0, 0.0]})).tolist()
    ['left', 'right']
    >>> component_names([[0.0, 2.0], [1.0, 0.0]])
    """
    names = list(getattr(y, "columns", [y.name] if hasattr(y, "to_frame") and hasattr(y, "name") else []))
    named = all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
    return np.array([str(name) for name in names], object) if named and names else None


def check_matrix(design_matrix: ArrayLike) -> np.ndarray:
    """The design matrix as the user gave it: numeric, finite and two-dimensional."""
    refuse_sparse("design_matrix", design_matrix)
    with naming("design_matrix"):
        matrix = _numbers(check_array(design_matrix, dtype="numeric", ensure_all_finite=False))
    check_finite("design_matrix", matrix)
    return matrix


def check_finite(name: str, values: np.ndarray, first_row: int = 0) -> None:
    """Refuse NaN and infinity, and say where the first is."""
    if values.dtype.kind != "f":
        return
    begin = 0
    for part in some_rows(values):
        finite = np.isfinite(part)
        if not finite.all():
            where = np.unravel_index(int(np.argmin(finite)), part.shape)
            what = "NaN" if np.isnan(part[where]) else "infinity"
            remedy = "Remove or impute missing values." if what == "NaN" else "Remove or replace what is not finite."
            row = f"row {first_row + begin + int(where[0])}"
            place = row if values.ndim == 1 else f"{row}, column {int(where[1])}"
            raise ValueError(f"Input {name} contains {what}, first in {place} (counted from 0). {remedy}")
        begin += len(part)


def dense(y: Any) -> Any:
    """Codes that may come as a sparse matrix or array, as they are or dense."""
    return y.toarray(order="C") if issparse(y) else y


def refuse_sparse(name: str, values: Any) -> None:
    """Refuse sparse matrices where numbers are dense by nature."""
    if issparse(values):
        raise ValueError(f"{name} is sparse, but has to be dense here; pass {name}.toarray().")


def cast(name: str, values: np.ndarray, dtype: np.dtype, *, copy: bool = False) -> np.ndarray:
    """Convert validated numbers to `dtype`, and refuse those that do not fit in it.

    They come back row by row in memory: sums depend on the order of numbers, and frames keep theirs by columns.
    """
    if _largest(values) > _LARGEST[dtype]:
        remedy = "rescale it." if dtype == np.float64 else "rescale it, or pass dtype='float64'."
        raise ValueError(f"{name} has values too large for {dtype}; {remedy}")
    if values.dtype == dtype:
        return values.copy(order="C") if copy else np.ascontiguousarray(values)
    return values.astype(dtype, order="C")


def check_learnable(name: str, values: np.ndarray) -> None:
    """Refuse numbers that are all so near to zero that nothing can be divided by them."""
    if 0 < _largest(values) < _LEAST[values.dtype]:
        raise ValueError(f"{name} has only values too small to learn from in {values.dtype}; rescale it.")


def warn_if_swapped(X: np.ndarray, y: np.ndarray) -> None:
    """Warn where observations look like codes, most of them exactly zero, and codes like observations, none of them so.

    Parameters
    ----------
    X, y : ndarray of two dimensions
        Observations and codes, validated.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.estimators._validation import warn_if_swapped
    >>> warn_if_swapped(np.array([[0.3, -1.2]]), np.array([[0.0, 2.0, 0.0]]))
    """
    shares = [1.0 - np.count_nonzero(values) / values.size for values in (X, y)]
    if 1.0 > shares[0] > _ZEROS_OF_CODES and shares[1] < _ZEROS_OF_OBSERVATIONS:
        warnings.warn(
            f"{shares[0]:.0%} of X are exactly zero, and hardly anything of y is, as if observations and codes were "
            "swapped. X holds observations and y their sparse codes: fit(observations, codes).",
            UserWarning,
            stacklevel=_levels_to_the_caller(),
        )


def _levels_to_the_caller() -> int:
    """How far up the stack, from the function that asks, the first one is that is neither ours nor scikit-learn's."""
    frame, level, ours = sys._getframe(1), 1, (__name__.partition(".")[0], "sklearn")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        frame, level = frame.f_back, level + 1
    return level


def _numbers(values: np.ndarray) -> np.ndarray:
    """The same as floating-point numbers where they are Python's own, which can be of any size."""
    return values.astype(np.float64) if values.dtype.kind == "O" else values


def _largest(values: np.ndarray) -> float:
    """The largest magnitude, without a copy."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """Put the name of the argument in front of a message that lacks it, and what to do at its end."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        message = str(error)
        named = message if re.search(rf"\b{argument}\b", message) else f"{argument}: {message}"
        remedy = next((fix for pattern, fix in _REMEDIES.items() if re.search(pattern, message)), "")
        raise ValueError(f"{named} {remedy}".rstrip()) from error


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
    >>> from bayeslista.estimators._validation import random_seed
    >>> random_seed(0) == random_seed(0)
    True
    """
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(np.iinfo(np.int32).max))
    with naming("random_state"):
        return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
