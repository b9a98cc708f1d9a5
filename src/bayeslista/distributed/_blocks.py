"""Whatever holds rows, as a dask array cut into blocks of whole rows."""

import mmap
import os
from typing import Any

import numpy as np

from bayeslista._blocks import batches
from bayeslista.estimators._parameters import check_integer


class MappedFile:
    """Rows of a memory-mapped file, opened where they are read: what travels is its name, not its content.

    Parameters
    ----------
    path : str
        The file.
    offset : int
        Bytes before the first number.
    shape : tuple of int
        Of the array, row by row in the file.
    dtype : numpy.dtype
        Of its numbers.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from bayeslista.distributed._blocks import MappedFile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     count = (Path(folder) / "rows").write_bytes(np.arange(6.0).tobytes())
    ...     MappedFile(str(Path(folder) / "rows"), 0, (3, 2), np.dtype("float64"))[1:]
    array([[2., 3.],
           [4., 5.]])
    """

    def __init__(self, path: str, offset: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.path, self.offset, self.shape, self.dtype = path, offset, shape, dtype
        self.ndim = len(shape)

    def __getitem__(self, rows: Any) -> np.ndarray:
        mapped = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        return np.array(mapped[rows])


def in_rows(name: str, values: Any, batch_size: int | None, unit: int, n_numbers: int) -> Any:
    """Rows as a dask array whose blocks hold whole rows.

    Parameters
    ----------
    name : str
        What to call it in messages.
    values : dask array, or anything with a shape and a type that can be sliced
        One row a sample. The blocks of a dask array stay as they are unless a size is asked for.
    batch_size : int or None
        Rows a block, rounded up to whole units; None is about a million numbers.
    unit : int
        Rows that are computed together.
    n_numbers : int
        How many numbers go with a row.

    Returns
    -------
    dask.array.Array
        The same rows.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.distributed._blocks import in_rows
    >>> in_rows("X", np.zeros((10, 3)), 4, unit=2, n_numbers=3).chunks
    ((4, 4, 2), (3,))
    """
    da = dask_array()
    if batch_size is not None:
        check_integer("batch_size", batch_size, minimum=1)
    if not isinstance(values, da.Array):
        if not (hasattr(values, "shape") and hasattr(values, "dtype") and hasattr(values, "__getitem__")):
            raise ValueError(
                f"{name} is a {type(values).__name__}; pass a dask array, a NumPy array or memory map, or an array of "
                "zarr or h5py."
            )
        source = _mapped(values) if isinstance(values, np.memmap) else values
        chunks = _row_chunks(source.shape, batch_size, unit, n_numbers)
        return da.from_array(source, chunks=chunks, meta=np.empty((0,) * len(source.shape), source.dtype))
    if values.ndim > 1 and values.numblocks[1] > 1:
        values = values.rechunk({1: -1})
    if batch_size is not None:
        values = known(values)
        values = values.rechunk(_row_chunks(values.shape, batch_size, unit, n_numbers))
    return values


def known(values: Any) -> Any:
    """The dask array, its blocks counted if they were not.

    Examples
    --------
    >>> import dask.array as da
    >>> from bayeslista.distributed._blocks import known
    >>> numbers = da.arange(10, chunks=5)
    >>> known(numbers[numbers > 3]).chunks
    ((1, 5),)
    """
    if np.isnan(values.shape[:1]).any():
        values = values.copy().compute_chunk_sizes()
    return values


def dask_array() -> Any:
    """The module ``dask.array``, or how to get it."""
    try:
        import dask.array
    except ImportError as error:
        raise ImportError("bayeslista.distributed needs Dask; pip install 'bayeslista[dask]'.") from error
    return dask.array


def _row_chunks(
    shape: tuple[int, ...], batch_size: int | None, unit: int, n_numbers: int
) -> tuple[tuple[int, ...], ...]:
    """Blocks of the same rows that `predict` computes together, so that they give the same bits."""
    if 0 in shape[:1] or not shape:
        return tuple((n,) for n in shape)
    rows = batches(shape[0], batch_size, unit, n_numbers)
    return (tuple(part.stop - part.start for part in rows), *((n,) for n in shape[1:]))


def _mapped(values: np.memmap) -> Any:
    """A memory map by the name of its file, where that tells all of it."""
    root = values
    while isinstance(root.base, np.memmap):
        root = root.base
    whole = isinstance(root.base, mmap.mmap) and isinstance(root.filename, str | os.PathLike)
    if not (whole and values.flags.c_contiguous and root.mode != "c"):
        return values
    behind = values.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return MappedFile(os.path.abspath(str(root.filename)), root.offset + behind, values.shape, values.dtype)
