"""Validation of arrays from users; messages name the rule, the entry and the remedy."""

import operator
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST = 1e150
"""Sums of squares of larger numbers overflow double precision."""


def as_real(name: str, values: ArrayLike) -> NDArray[np.floating]:
    """Convert to a floating array: float32 stays, any other real type becomes float64."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a rectangular array of real numbers ({error}). Give rows one length."
        ) from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}. Convert it to float.")
    return array if array.dtype == np.float32 else array.astype(np.float64)


def check_entries(legal: NDArray[np.bool_], name: str, values: NDArray[Any], rule: str, remedy: str) -> None:
    """Raise a ValueError with the rule, the number of illegal entries, the first of them and the remedy."""
    if legal.all():
        return
    first = tuple(int(i) for i in np.unravel_index(int(np.argmin(legal)), legal.shape))
    wrong = int(legal.size - np.count_nonzero(legal))
    where = f"{wrong} of {legal.size} entries fail, the first at index {first}: " if legal.ndim else "got "
    raise ValueError(f"{name} must {rule}; {where}{values[first]}. {remedy}")


def check_range(name: str, values: NDArray[Any]) -> None:
    """Reject numbers whose squares overflow."""
    if values.dtype == np.float32 or max(values.max(initial=0.0), -values.min(initial=0.0)) <= LARGEST:
        return
    check_entries(np.abs(values) <= LARGEST, name, values, f"not exceed {LARGEST:g} in magnitude", "Rescale it.")


def check_count(name: str, value: Any) -> int:
    """Validate an integer of at least 1."""
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}. Pass a whole number.") from None
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}.")
    return count


def check_probability(name: str, value: Any, remedy: str = "Pass a probability, not a percentage.") -> float:
    """Validate a number in [0, 1]."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real) or not 0.0 <= float(value) <= 1.0:
        raise ValueError(f"{name} must be a number in [0, 1], got {value!r}. {remedy}")
    return float(value)
