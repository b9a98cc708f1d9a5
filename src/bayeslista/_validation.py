"""Checks of arrays that a user passes, with messages that say what, where and what to do."""

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST = 1e150
"""The squares of larger numbers, or sums of them, are beyond all floating-point numbers."""


def as_real(name: str, values: ArrayLike) -> NDArray[np.floating]:
    """Array of real floating-point numbers: float32 stays, any other real type becomes float64."""
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
    """Raise a ValueError that says which rule is broken, how often, where first, and what to do."""
    if legal.all():
        return
    first = tuple(int(i) for i in np.unravel_index(int(np.argmin(legal)), legal.shape))
    wrong = int(legal.size - np.count_nonzero(legal))
    where = f"{wrong} of {legal.size} entries fail, the first at index {first}: " if legal.ndim else "got "
    raise ValueError(f"{name} must {rule}; {where}{values[first]}. {remedy}")


def check_range(name: str, values: NDArray[Any]) -> None:
    """Refuse numbers whose squares are beyond all floating-point numbers."""
    if values.dtype == np.float32 or max(values.max(initial=0.0), -values.min(initial=0.0)) <= LARGEST:
        return
    check_entries(np.abs(values) <= LARGEST, name, values, f"not exceed {LARGEST:g} in magnitude", "Rescale it.")


def check_count(name: str, value: Any) -> int:
    """An integer of at least 1."""
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}. Pass how many there are to be.") from None
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}.")
    return count
