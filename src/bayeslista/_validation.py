"""Checks of arrays that a user passes, with messages that say what, where and what to do."""

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
