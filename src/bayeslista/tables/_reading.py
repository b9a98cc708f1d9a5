"""From a file to an array of finite numbers. Files are taken to be wrong until they are seen to be right."""

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayeslista.tables._arrays import read_npy, read_npz
from bayeslista.tables._parquet import read_parquet
from bayeslista.tables._text import HEADERS, is_counted, read_csv
from bayeslista.tables._wrong import WrongTableError

_ARRAYS, _ENTRIES = ".npy", ".npz"
_TEXT, _COLUMNS = ".csv", ".parquet"
_NAMES_OF_INDEX = ("", "Unnamed: 0")  # as pandas writes, and reads what it wrote
_LEFT_OUT = "begins with the index that pandas writes, which is left out; write with index=False."
_BLOCK_NUMBERS = 2**22


class Table(NamedTuple):
    """What is in a file.

    Attributes
    ----------
    values : ndarray of shape (n_rows, n_columns) or (n_rows,)
        Finite, not empty, of a real type.
    names : tuple of str
        Of the columns; empty if they have none, or are only counted.
    notes : tuple of str
        What somebody should know of how the file was read; each goes on from its name.
    """

    values: NDArray[Any]
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_table(path: str | os.PathLike[str]) -> NDArray[Any]:
    r"""Read a table of real numbers, one row a signal.

    A .npy file is mapped into memory, not copied. The first line of a .csv file is a header if none of its cells is a
    number, if it begins with ``#``, or if it counts ``0,1,2,…`` or ``1,2,3,…``; cells are separated by commas,
    semicolons, tabs or blanks. An index that pandas wrote, a first column without a name, is left out.

    Parameters
    ----------
    path : str or path-like
        A file that ends with .npy, .npz, .csv or .parquet. ``file.npz:name`` is one array of several.

    Returns
    -------
    ndarray of shape (n_rows, n_columns) or (n_rows,)
        Finite, not empty, of a real type; one-dimensional only if the array in the file is.

    Raises
    ------
    ValueError
        If the file holds something else, is cut short or damaged; the message says where.
    OSError
        If it cannot be read.
    ImportError
        If it needs a package that is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.tables import read_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "observations.csv"
    ...     size = file.write_text("left,right\n1,2.5\n3,-4\n")
    ...     read_table(file)
    array([[ 1. ,  2.5],
           [ 3. , -4. ]])
    """
    return read_named_table(path).values


def read_named_table(path: str | os.PathLike[str], header: str = "auto") -> Table:
    r"""Read a table as `read_table` does, with the names of its columns.

    Parameters
    ----------
    path : str or path-like
        A file that ends with .npy, .npz, .csv or .parquet.
    header : {"auto", "yes", "no"}, default="auto"
        Whether the first line of a .csv file is a header; other files know it themselves.

    Returns
    -------
    Table
        Numbers, names if the file has them, and notes on doubts.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.tables import read_named_table
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "observations.csv"
    ...     size = file.write_text("left,right\n1,2.5\n3,-4\n")
    ...     read_named_table(file).names
    ('left', 'right')
    """
    if header not in HEADERS:
        raise ValueError(f"header must be one of {', '.join(HEADERS)}, got {header!r}.")
    file, entry = _split(os.fspath(path))
    kind = file.suffix.lower()
    if kind not in (_ARRAYS, _ENTRIES, _TEXT, _COLUMNS):
        raise ValueError(
            f"{file} is no table that can be read; pass a file that ends with .npy, .npz, .csv or .parquet."
        )
    with file.open("rb") as stream:  # so that a missing or forbidden file is told as such
        if not stream.read(1):
            raise ValueError(f"{file} is empty.")
    with _blaming(file):
        if kind == _TEXT:
            return _named(*read_csv(file, header))
        if kind == _COLUMNS:
            return _named(*read_parquet(file))
        return Table(_checked(read_npz(file, entry) if kind == _ENTRIES else read_npy(file)))


def _named(
    array: NDArray[Any], names: tuple[str, ...], doubt: str = "", line_of: Callable[[int], int] | None = None
) -> Table:
    """A table without an index, whose names say more than that columns are counted."""
    array = _checked(array, names, line_of)
    if len(names) != array.shape[1]:
        return Table(array, (), (doubt,) if doubt else ())
    notes: tuple[str, ...] = ()
    if len(names) > 1 and names[0] in _NAMES_OF_INDEX:
        if not np.array_equal(array[:, 0], np.arange(len(array))):
            raise WrongTableError(
                "has a first column without a name: it looks like the index that pandas writes; write with index=False."
            )
        array, names, notes = array[:, 1:], names[1:], (_LEFT_OUT,)
    return Table(array, () if is_counted(names) else names, notes)


def _split(path: str) -> tuple[Path, str | None]:
    """The file, and the name of an array in it."""
    file, colon, entry = path.rpartition(":")
    if colon and Path(file).suffix.lower() == _ENTRIES and not Path(path).exists():
        return Path(file), entry
    return Path(path), None


@contextmanager
def _blaming(file: Path) -> Iterator[None]:
    """Turn whatever a damaged file makes the libraries raise into a ValueError that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except WrongTableError as error:
        raise ValueError(f"{file} {error}") from error.__cause__
    except ImportError:
        raise
    except Exception as error:  # there is no list of what zip, NumPy's headers and Parquet may raise
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # nor may a damaged file ask to seek
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{file} cannot be read: it is no {file.suffix} file, or it is damaged ({reason}). Take another copy of it."
        ) from error


def _checked(
    array: NDArray[Any], names: tuple[str, ...] = (), line_of: Callable[[int], int] | None = None
) -> NDArray[Any]:
    if array.ndim not in (1, 2):
        raise WrongTableError(f"holds an array of shape {array.shape}; reshape it to one row for every signal.")
    if array.size == 0:
        raise WrongTableError(f"holds no numbers: its shape is {array.shape}.")
    if array.dtype.kind == "f":
        if array.dtype not in (np.float32, np.float64):
            single = array.dtype.itemsize == 4
            array = array.astype(np.float32 if single else np.float64)
        _check_finite(array, names, line_of)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _check_finite(array: NDArray[Any], names: tuple[str, ...], line_of: Callable[[int], int] | None) -> None:
    rows = max(1, _BLOCK_NUMBERS // max(1, array[:1].size))
    for begin in range(0, len(array), rows):
        finite = np.isfinite(array[begin : begin + rows])
        if not finite.all():
            row, *column = (int(i) for i in np.unravel_index(int(np.argmin(finite)), finite.shape))
            row += begin
            where = f"row {row + 1}" + ("" if line_of is None else f" (line {line_of(row)} of the file)")
            for i in column:
                where += f", column {i + 1}" + (f" ({names[i]!r})" if len(names) == array.shape[1] else "")
            raise WrongTableError(f"has {array[(row, *column)]} in {where}, counted from 1. Remove or replace it.")
