"""Rows in batches and blocks: memory is bounded, and few sizes are compiled."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from scipy.sparse import csr_array, vstack

LARGEST_BLOCK = 1024
SMALLEST_BLOCK = 8
_BATCH_NUMBERS = 2**20  # in the observations and codes of a batch, unless its size is given
_CHUNK_NUMBERS = 2**22


def in_blocks(
    function: Callable[..., Any], rows: Any, largest: int = LARGEST_BLOCK, smallest: int = SMALLEST_BLOCK
) -> Any:
    """Apply a row-wise function to blocks of rows, padded with zeros to a power of two in [smallest, largest]."""
    n_rows = len(jax.tree.leaves(rows)[0])
    size = min(largest, max(smallest, 1 << (n_rows - 1).bit_length()))
    whole: Any = None
    for begin in range(0, n_rows, size):
        part = slice(begin, min(begin + size, n_rows))
        block = function(jax.tree.map(lambda leaf, part=part: _padded(leaf[part], size), rows))
        if whole is None:
            whole = jax.tree.map(lambda leaf: np.empty((n_rows, *leaf.shape[1:]), leaf.dtype), block)
        jax.tree.map(lambda leaf, new, part=part: _put(leaf, new, part), whole, block)
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
    """Cut rows into batches of whole units (the last takes the remainder): results do not depend on `batch_size`."""
    size = max(_BATCH_NUMBERS // n_numbers, 1) if batch_size is None else batch_size
    size = -(-size // unit) * unit
    begins = list(range(0, n_rows, size))
    if len(begins) > 1 and n_rows - begins[-1] < unit:
        begins.pop()
    for begin, end in zip(begins, [*begins[1:], n_rows], strict=True):
        yield slice(begin, end)


def fill(n_rows: int, parts: Iterable[tuple[slice, tuple[np.ndarray, ...]]]) -> tuple[np.ndarray, ...]:
    """Concatenate the arrays of consecutive batches; each batch is released before the next one is computed."""
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
    """Stack the dense codes of batches as one sparse array, without explicit zeros."""
    return vstack([csr_array(codes) for _, (codes,) in parts], format="csr")


def root_mean_square(values: np.ndarray | Iterable[np.ndarray]) -> float:
    """Root mean square without overflow; 1 for zeros and for no values."""
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
    """The rows of an array in chunks of about four million numbers."""
    step = max(_CHUNK_NUMBERS * len(values) // max(values.size, 1), 1)
    return (values[begin : begin + step] for begin in range(0, len(values), step))
