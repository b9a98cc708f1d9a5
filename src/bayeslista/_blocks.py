"""Rows a few at a time, so that memory is bounded and few sizes are ever compiled."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from scipy.sparse import csr_array, vstack

LARGEST_BLOCK = 1024
_SMALLEST_BLOCK = 8
_NUMBERS = 2**20  # in the observations and codes of a batch, unless its size is given
_AT_ONCE = 2**22


def in_blocks(
    function: Callable[..., Any], rows: Any, largest: int = LARGEST_BLOCK, smallest: int = _SMALLEST_BLOCK
) -> Any:
    """Apply a row-wise function to blocks of few different sizes, so that few sizes are ever compiled.

    Rows go through in blocks of 1,024, or `largest`; what is left over is padded with zeros to that size, and where
    there are fewer rows than that, to the next power of two, at least 8, or `smallest`. Any pytree of arrays that lead
    with the rows comes back as NumPy arrays, without the padding.

    Parameters
    ----------
    function : callable
        From blocks of rows to a pytree of arrays of shape (m, ...).
    rows : pytree of ndarray of shape (n, ...)
        Its input.
    largest : int, default=1024
        A power of two that no block exceeds.
    smallest : int, default=8
        A power of two that no block falls short of.

    Returns
    -------
    pytree of ndarray
        What `function` would return for all rows at once.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista._blocks import in_blocks
    >>> in_blocks(lambda block: (block.sum(axis=1), block[:, 0] * len(block)), np.ones((3, 2)))
    (array([2., 2., 2.]), array([8., 8., 8.]))
    """
    n_rows = len(jax.tree.leaves(rows)[0])
    size = min(largest, max(smallest, 1 << (n_rows - 1).bit_length()))
    whole: Any = None
    for begin in range(0, n_rows, size):
        part = slice(begin, min(begin + size, n_rows))
        found = function(jax.tree.map(lambda leaf, part=part: _padded(leaf[part], size), rows))
        if whole is None:
            whole = jax.tree.map(lambda leaf: np.empty((n_rows, *leaf.shape[1:]), leaf.dtype), found)
        jax.tree.map(lambda leaf, new, part=part: _put(leaf, new, part), whole, found)
    return whole


def _padded(block: np.ndarray, size: int) -> np.ndarray:
    if len(block) == size:
        return block
    full = np.zeros((size, *block.shape[1:]), block.dtype)
    full[: len(block)] = block
    return full


def _put(whole: np.ndarray, block: Any, part: slice) -> None:
    whole[part] = np.asarray(block)[: part.stop - part.start]


def batches(n_rows: int, batch_size: int | None, unit: int, n_numbers: int) -> Iterator[slice]:
    """Cut rows into batches of whole units, so that results are the same bits whatever the size of a batch.

    Parameters
    ----------
    n_rows : int
        How many rows there are.
    batch_size : int or None
        Rows a batch, rounded up to whole units. None is about a million numbers.
    unit : int
        Rows that belong together. What is left over, less than a unit, belongs to the last batch.
    n_numbers : int
        How many numbers go with a row.

    Yields
    ------
    slice
        The rows of a batch.

    Examples
    --------
    >>> from bayeslista._blocks import batches
    >>> list(batches(10, 3, unit=4, n_numbers=1))
    [slice(0, 4, None), slice(4, 10, None)]
    """
    size = max(_NUMBERS // n_numbers, 1) if batch_size is None else batch_size
    size = -(-size // unit) * unit
    begins = list(range(0, n_rows, size))
    if len(begins) > 1 and n_rows - begins[-1] < unit:
        begins.pop()
    for begin, end in zip(begins, [*begins[1:], n_rows], strict=True):
        yield slice(begin, end)


def fill(n_rows: int, parts: Iterable[tuple[slice, tuple[np.ndarray, ...]]]) -> tuple[np.ndarray, ...]:
    """Put arrays of batches where they belong in arrays of all rows.

    Parameters
    ----------
    n_rows : int
        How many rows there are.
    parts : iterable of (slice, tuple of ndarray)
        The rows of a batch and its arrays; each is forgotten before the next is asked for.

    Returns
    -------
    tuple of ndarray of shape (n_rows, ...)
        The arrays, whole.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista._blocks import fill
    >>> fill(3, [(slice(0, 2), (np.ones(2),)), (slice(2, 3), (np.zeros(1),))])
    (array([1., 1., 0.]),)
    """
    whole: tuple[np.ndarray, ...] = ()
    for rows, arrays in parts:
        if rows == slice(0, n_rows):
            return arrays
        if not whole:
            whole = tuple(np.empty((n_rows, *array.shape[1:]), array.dtype) for array in arrays)
        for target, array in zip(whole, arrays, strict=True):
            target[rows] = array
    return whole


def stack_sparse(parts: Iterable[tuple[slice, tuple[np.ndarray]]]) -> csr_array:
    """Stack the dense codes of batches, each made sparse before the next is asked for.

    Parameters
    ----------
    parts : iterable of (slice, tuple of one ndarray)
        The rows of a batch and its codes.

    Returns
    -------
    scipy.sparse.csr_array
        All codes, without explicit zeros.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista._blocks import stack_sparse
    >>> stack_sparse([(slice(0, 1), (np.array([[0.0, 2.0]]),)), (slice(1, 2), (np.array([[3.0, -0.0]]),))]).data
    array([2., 3.])
    """
    return vstack([csr_array(codes) for _, (codes,) in parts], format="csr")


def root_mean_square(values: np.ndarray | Iterable[np.ndarray]) -> float:
    """Root mean square, safe from overflow; 1 where all is zero or there is nothing.

    Parameters
    ----------
    values : ndarray or iterable of ndarray
        Of any shape, or its rows a few at a time.

    Returns
    -------
    float
        A scale to divide by.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista._blocks import root_mean_square
    >>> root_mean_square(np.array([3e200, -3e200])), root_mean_square(np.zeros(2))
    (3e+200, 1.0)
    """
    parts = some_rows(values) if isinstance(values, np.ndarray) else values
    sizes, levels = np.array([(part.size, _level(part)) for part in parts if part.size]).reshape(-1, 2).T
    top = float(np.max(levels, initial=0.0))
    if top == 0.0:
        return 1.0
    return top * float(np.sqrt(np.sum(sizes / np.sum(sizes) * (levels / top) ** 2)))


def _level(part: np.ndarray) -> float:
    largest = float(np.max(np.abs(part))) or 1.0
    return largest * float(np.sqrt(np.mean((part / largest) ** 2)))


def some_rows(values: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of an array, as many at once as four million numbers take."""
    step = max(_AT_ONCE * len(values) // max(values.size, 1), 1)
    return (values[begin : begin + step] for begin in range(0, len(values), step))
