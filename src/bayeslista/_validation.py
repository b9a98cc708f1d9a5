"""Checks of arrays that a user passes, with messages that say what, where and what to do."""

import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def as_real(name: str, values: ArrayLike) -> NDArray[np.floating]:
    """Array of real floating-point numbers: float32 stays, any other real type becomes float64."""
    array = np.asarray(values)
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


def check_count(name: str, value: Any) -> int:
    """An integer of at least 1."""
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer, got {value!r}. Pass how many there are to be.") from None
    if count < 1:
        raise ValueError(f"{name} must be at least 1, got {count}.")
    return count
