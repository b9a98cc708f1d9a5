"""Arrays, memory maps and arrays of zarr or h5py as dask arrays cut into blocks of whole rows."""

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslista.estimators.validation import COUNT, check_arguments
from bayeslista.numerics.batching import batches


class MappedFile:
    """Rows of a memory-mapped file, opened by its name where they are read."""

    def __init__(self, path: str, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path, self.offset, self.shape, self.dtype = path, offset, shape, dtype
        self.ndim = len(shape)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        mapped = np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        return np.array(mapped[rows])


def in_rows(name: str, values: Any, batch_size: int | None, unit: int, n_numbers: int) -> Any:
    """Rows as a dask array whose blocks hold whole rows."""
    da = dask_array()
    check_arguments("bayeslista.out_of_core.dask", {"batch_size": [COUNT, None]}, batch_size=batch_size)
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
    """The dask array, its blocks counted if they were not."""
    if np.isnan(values.shape[:1]).any():
        values = values.copy().compute_chunk_sizes()
    return values


def dask_array() -> Any:
    """The module ``dask.array``, or how to get it."""
    try:
        import dask.array
    except ImportError as error:
        raise ImportError("bayeslista.out_of_core.dask needs Dask; pip install 'bayeslista[dask]'.") from error
    return dask.array


def _row_chunks(
    shape: tuple[int, ...], batch_size: int | None, unit: int, n_numbers: int
) -> tuple[tuple[int, ...], ...]:
    """Blocks of the same rows that `predict` computes together, so that they give the same bits."""
    if 0 in shape[:1] or not shape:
        return tuple((n,) for n in shape)
    rows = batches(shape[0], batch_size, unit, n_numbers)
    return (tuple(part.stop - part.start for part in rows), *((n,) for n in shape[1:]))


def _mapped(values: np.memmap[Any, Any]) -> Any:
    """A memory map by the name of its file, where name and offset identify it."""
    root = values
    while isinstance(root.base, np.memmap):
        root = root.base
    whole = isinstance(root.base, mmap.mmap) and isinstance(root.filename, str | os.PathLike)
    if not (whole and values.flags.c_contiguous and root.mode != "c"):
        return values
    behind = values.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return MappedFile(os.path.abspath(str(root.filename)), root.offset + behind, values.shape, values.dtype)
