"""From batches of arrays to a file that is there whole or not at all, in bounded memory."""

import csv
import io
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from bayeslista._atomic import finishing
from bayeslista.tables._parquet import import_pyarrow

Batch = Mapping[str, NDArray[Any]]


def table_writer(
    path: str | os.PathLike[str], components: Sequence[str] | None = None
) -> AbstractContextManager[Callable[[Batch], None]]:
    """Write named arrays to a file, batch by batch.

    In a .npz file each name is an array. In a .csv or .parquet file it is a column for each component of it,
    ``name_0``, ``name_1`` and so on, or ``name_left``, ``name_right`` for components that are called so.

    Parameters
    ----------
    path : str or path-like
        A file that ends with .npz, .csv or .parquet. It appears, or is replaced, when the context ends without an
        exception.
    components : sequence of str or None, default=None
        What the components of all arrays are called, each by another name. None counts them.

    Returns
    -------
    context manager
        It gives a function, to call with a dictionary of arrays of shape (n_rows, n_components) or (n_rows,): with
        the same names, components and types every time, and as many rows as each batch has.

    Raises
    ------
    ValueError
        If the name ends with anything else.
    OSError
        If the file cannot be written.
    ImportError
        If pyarrow, which .parquet needs, is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from bayeslista.tables import table_writer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "codes.csv"
    ...     with table_writer(file) as write:
    ...         write({"mean": np.array([[1.0, 0.0]])})
    ...         write({"mean": np.array([[0.5, 2.0]])})
    ...     print(file.read_text())
    mean_0,mean_1
    1.0,0.0
    0.5,2.0
    """
    kind = Path(path).suffix.lower()
    if kind not in WRITTEN:
        raise ValueError(f"{path} has to end with one of {', '.join(WRITTEN)}.")
    if kind == ".parquet":
        import_pyarrow()
    return _writing(Path(path), _WRITERS[kind], components)


@contextmanager
def _writing(
    path: Path, writer: Callable[..., Any], components: Sequence[str] | None
) -> Iterator[Callable[[Batch], None]]:
    with finishing(path) as unfinished, writer(unfinished, components) as write:
        yield write


@contextmanager
def _csv_writer(path: Path, components: Sequence[str] | None) -> Iterator[Callable[[Batch], None]]:
    with path.open("x", encoding="utf-8", newline="\n") as stream:

        def write(batch: Batch) -> None:
            columns = _columns(batch, components)
            if stream.tell() == 0:
                csv.writer(stream, lineterminator="\n").writerow(columns)
            rows = np.stack([values.astype(str) for values in columns.values()], axis=1)
            stream.writelines(",".join(row) + "\n" for row in rows)

        yield write


@contextmanager
def _parquet_writer(path: Path, components: Sequence[str] | None) -> Iterator[Callable[[Batch], None]]:
    arrow = import_pyarrow()
    with ExitStack() as stack:
        stream = stack.enter_context(path.open("xb"))
        writers: list[Any] = []

        def write(batch: Batch) -> None:
            table = arrow.table(_columns(batch, components))
            if not writers:
                make = arrow.parquet.ParquetWriter(stream, table.schema, write_page_checksum=True)
                writers.append(stack.enter_context(make))
            writers[0].write_table(table)

        yield write


@contextmanager
def _npz_writer(path: Path, components: Sequence[str] | None) -> Iterator[Callable[[Batch], None]]:
    """Numbers go to a file for each name, since the header in front of them says how many there are."""
    with TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        heads: dict[str, dict[str, Any]] = {}

        def write(batch: Batch) -> None:
            for place, (name, values) in enumerate(batch.items()):
                head = heads.setdefault(
                    name, {"descr": npy.dtype_to_descr(values.dtype), "fortran_order": False, "shape": (0,)}
                )
                head["shape"] = (head["shape"][0] + len(values), *values.shape[1:])
                with (Path(folder) / str(place)).open("ab") as stream:
                    stream.write(np.ascontiguousarray(values).data)

        yield write
        with zipfile.ZipFile(path, "x") as archive:
            for place, (name, head) in enumerate(heads.items()):
                header = io.BytesIO()
                npy.write_array_header_1_0(header, head)
                entry = archive.open(f"{name}.npy", "w", force_zip64=True)
                with entry, (Path(folder) / str(place)).open("rb") as numbers:
                    entry.write(header.getvalue())
                    shutil.copyfileobj(numbers, entry, 2**20)


def _columns(batch: Batch, components: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """One column for each component of each array."""
    found: dict[str, NDArray[Any]] = {}
    for name, values in batch.items():
        columns = values.reshape(len(values), -1).T
        called = range(len(columns)) if components is None else components
        found |= {f"{name}_{component}": column for component, column in zip(called, columns, strict=True)}
    return found


_WRITERS = {".npz": _npz_writer, ".csv": _csv_writer, ".parquet": _parquet_writer}
WRITTEN = tuple(_WRITERS)
"""How names of files end that can be written."""
