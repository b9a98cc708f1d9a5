"""Tables of numbers in files: .csv and .parquet by pandas, .npy and .npz by NumPy. Nothing is unpickled."""

import csv
import errno
import math
import os
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from bayeslista.io.atomic import finishing

Batch = Mapping[str, NDArray[Any]]

_READABLE = (".npy", ".npz", ".csv", ".parquet")
_ENCODING = "utf-8-sig"  # spreadsheets write a byte order mark
_QUOTED = re.compile('"[^"]*"')
_RAGGED = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")  # pandas
_INDEX_NAMES = ("", "Unnamed: 0")  # of an index in a .csv file of pandas, and after pandas has read it
_THRIFT_LIMIT = 2**26  # bytes and entries of the metadata of a .parquet file
_BLOCK_NUMBERS = 2**22  # checked at once, so that a mapped .npy file need not fit into memory
_LEAST_GROWING = 4  # columns; shorter rows of numbers increase by chance too often
_INDEX_LEFT_OUT = "begins with the index that pandas writes, which is left out; write with index=False."
_MAYBE_HEADER = "was read without a header, though its first line increases from cell to cell; if it is a header, "
_MAYBE_HEADER += "pass --header yes."


class NamedArray(NamedTuple):
    """Finite real numbers of one or two dimensions, and the names of the columns; none if they are only counted."""

    values: NDArray[Any]
    names: tuple[str, ...] = ()


class _TableError(ValueError):
    """A message that continues the name of the file."""


def read_table(path: str | os.PathLike[str], header: str = "auto", known: Sequence[str] = ()) -> NamedArray:
    """Read a table; `header` is auto, yes or no, and a first line of the `known` names is a header under auto."""
    file, entry = _split(os.fspath(path))
    kind = file.suffix.lower()
    if kind not in _READABLE:
        raise ValueError(f"{file} is not a table that can be read; pass a file that ends with {_listed(_READABLE)}.")
    with file.open("rb") as stream:  # raises the error of a missing or forbidden file
        if not stream.read(1):
            raise ValueError(f"{file} is empty.")
    names: tuple[str, ...] = ()
    notes: list[str] = []
    with _errors_with_name(file):
        if kind == ".npy":
            values = _read_npy(file)
        elif kind == ".npz":
            values = _read_npz(file, entry)
        elif kind == ".csv":
            values, names = _read_csv(file, header, known, notes)
        else:
            values, names = _read_parquet(file)
        values = _checked(values, names)
        if len(names) > 1 and names[0] in _INDEX_NAMES:
            values, names = _without_index(values), names[1:]
            notes = [_INDEX_LEFT_OUT]
    for note in notes:
        warnings.warn(f"{file} {note}", UserWarning, stacklevel=2)
    return NamedArray(values, () if _is_counted(names) else names)


def _split(path: str) -> tuple[Path, str | None]:
    """The file, and the name of one array in it: ``file.npz:name``."""
    file, colon, entry = path.rpartition(":")
    if colon and Path(file).suffix.lower() == ".npz" and not Path(path).exists():
        return Path(file), entry
    return Path(path), None


@contextmanager
def _errors_with_name(file: Path) -> Iterator[None]:
    """Turn every error that a damaged file causes in the libraries into a ValueError that names the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except _TableError as error:
        raise ValueError(f"{file} {error}") from error.__cause__
    except ImportError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file} is not text in UTF-8 ({error.reason} at byte {error.start}); save it as such."
        ) from error
    except Exception as error:  # zip, NumPy and Parquet have no common class of errors
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # the disk, not the file; an offset in a damaged file can be an invalid argument, though
        if found := _RAGGED.search(str(error)):
            expected, line, n_cells = found.groups()
            raise ValueError(f"{file} has {n_cells} cells in line {line} and {expected} in those before it.") from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{file} cannot be read: it is not a {file.suffix} file, or it is damaged ({reason}). Take another copy."
        ) from error


def _checked(values: NDArray[Any], names: tuple[str, ...]) -> NDArray[Any]:
    """The numbers in native byte order, as float32 or float64 if they are floats; all have to be finite."""
    if values.dtype.kind not in "biuf":
        raise _TableError(f"holds values of type {values.dtype}, not real numbers. Convert it to float.")
    if values.ndim not in (1, 2):
        raise _TableError(f"holds an array of shape {values.shape}; reshape it to one row for every signal.")
    if values.size == 0:
        raise _TableError(f"holds no numbers: its shape is {values.shape}.")
    if values.dtype.kind != "f":
        return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32 if values.dtype.itemsize == 4 else np.float64)
    n_rows = max(1, _BLOCK_NUMBERS // values[0].size)
    for begin in range(0, len(values), n_rows):
        finite = np.isfinite(values[begin : begin + n_rows])
        if not finite.all():
            row, *column = (int(i) for i in np.argwhere(~finite)[0])
            value = values[(begin + row, *column)]
            what = "an empty cell or NaN" if np.isnan(value) else value
            raise _TableError(f"has {what} in {_place(begin + row, column, names)}. Fill it in, or leave out the row.")
    return values


def _place(row: int, column: Sequence[int], names: tuple[str, ...]) -> str:
    """A cell in words."""
    named = f" ({names[column[0]]!r})" if column and names else ""
    return f"row {row + 1}" + "".join(f", column {i + 1}" for i in column) + f"{named}, counted from 1"


def _without_index(values: NDArray[Any]) -> NDArray[Any]:
    if not np.array_equal(values[:, 0], np.arange(len(values))):
        raise _TableError("has a first column without a name, as an index of pandas; write with index=False.")
    return values[:, 1:]


def _read_npy(file: Path) -> NDArray[Any]:
    """Map an array into memory."""
    array = np.load(file, mmap_mode="r")
    if not isinstance(array, np.memmap) or array.offset + array.nbytes != file.stat().st_size:
        raise _TableError("is damaged: its size is not that of the array in it.")
    return array


def _read_npz(file: Path, entry: str | None) -> NDArray[Any]:
    """Read the only array of an archive, or the one that is named."""
    with file.open("rb") as stream, np.load(stream) as archive:
        names = [name for name in archive.files if f"{name}.npy" in archive.zip.namelist()]
        if not names:
            raise _TableError("holds no arrays.")
        if entry is None and len(names) > 1:
            raise _TableError(f"holds several arrays; name one as {file.name}:NAME. There are: {', '.join(names)}.")
        if entry is not None and entry not in names:
            raise _TableError(f"holds no array {entry!r}. There are: {', '.join(names)}.")
        name = names[0] if entry is None else entry
        # NumPy allocates what the header of the array claims: compare it with the size of the entry first.
        info = archive.zip.getinfo(f"{name}.npy")
        with archive.zip.open(info) as content:
            read = npy.read_array_header_1_0 if npy.read_magic(content) == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read(content)
            if content.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
                raise _TableError("is damaged: its size is not that of the array in it.")
        return archive[name]


def _read_parquet(file: Path) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Read the columns; pandas keeps an index of its own apart."""
    _require_pyarrow()
    import pandas as pd

    limits = {"thrift_string_size_limit": _THRIFT_LIMIT, "thrift_container_size_limit": _THRIFT_LIMIT}
    with file.open("rb") as stream:
        options: dict[str, Any] = {"use_threads": False, "page_checksum_verification": True, **limits}
        frame = pd.read_parquet(stream, engine="pyarrow", **options)
    for name, dtype in zip(frame.columns, frame.dtypes, strict=True):
        if not pd.api.types.is_numeric_dtype(dtype):
            raise _TableError(f"holds values of type {dtype} in column {str(name)!r}, not real numbers.")
    single = all(dtype == np.float32 for dtype in frame.dtypes)
    values = frame.to_numpy(np.float32 if single else np.float64, na_value=np.nan)
    return values, tuple(map(str, frame.columns))


def _require_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ImportError('.parquet files need pyarrow: pip install "bayeslista[tables]".') from error


def _read_csv(file: Path, header: str, known: Sequence[str], notes: list[str]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Read a text of numbers and the names in its header; an ambiguous header is noted."""
    with file.open(encoding=_ENCODING) as stream:
        filled = ((number, line) for number, line in enumerate(stream) if line.strip())
        number, first = next(filled, (0, ""))
        _, second = next(filled, (0, first))
    if not first:
        raise _TableError("holds no numbers: all of its lines are blank.")
    title = first.lstrip().startswith("#")
    # The separator of numbers comes first: names, and the words of a title, can have other marks in them.
    samples = [_QUOTED.sub("", line) for line in (second, "" if title else first)]
    delimiter = next((mark for sample in samples for mark in ";\t," if mark in sample), " ")
    cells = _cells(first.lstrip("# \t") if title else first, delimiter)
    has_header = header == "yes" or (header == "auto" and (title or _is_header(cells, known)))
    values = _parse(file, delimiter, number + has_header, cells if has_header else [])
    if not has_header:
        if (
            header == "auto"
            and len(cells) >= _LEAST_GROWING
            and _grows(cells)
            and not _grows(_cells(second, delimiter))
        ):
            notes.append(_MAYBE_HEADER)
        return values, ()
    if title and (delimiter == " " or len(cells) != values.shape[1] or any(" " in cell for cell in cells)):
        return values, ()  # words about the table, not names
    if delimiter == " " and values.shape[1] == 1:
        cells = [first.strip().strip('"')]  # the name of a single column can have blanks in it
    if len(cells) != values.shape[1]:
        raise _TableError(f"has {len(cells)} names in its header and {values.shape[1]} numbers in a row.")
    return values, tuple(cells)


def _parse(file: Path, delimiter: str, n_skipped: int, names: list[str]) -> NDArray[np.float64]:
    """Read the numbers below the header, exactly; the first cell that is not a number is named."""
    import pandas as pd
    from pandas.errors import EmptyDataError, ParserError

    options: dict[str, Any] = {
        "sep": r"\s+" if delimiter == " " else delimiter,
        "header": None,
        "skiprows": n_skipped,
        "skipinitialspace": True,
        "encoding": _ENCODING,
    }
    if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
        options["float_precision"] = "round_trip"  # later versions have no other
    try:
        return pd.read_csv(file, dtype=np.float64, **options).to_numpy()
    except EmptyDataError as error:
        raise _TableError("holds no numbers: there are no rows below its header.") from error
    except (ParserError, UnicodeDecodeError):
        raise
    except ValueError as error:
        text = pd.read_csv(file, dtype=str, **options)
        wrong = np.argwhere((text.apply(pd.to_numeric, errors="coerce").isna() & text.notna()).to_numpy())
        if not len(wrong):
            raise
        row, column = map(int, wrong[0])
        cell = str(text.iat[row, column])
        place = _place(row, [column], tuple(names) if len(names) == text.shape[1] else ())
        remedy = (
            "Write decimals with a point, and thousands without a separator."
            if re.fullmatch(r"\s*[-+]?[\d.]+,[\d,]+\s*", cell)
            else "Every cell has to be a number; leave out columns of names or dates."
        )
        raise _TableError(f"holds {cell[:40]!r} in {place}, which is not a number. {remedy}") from error


def _cells(line: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line.strip()], delimiter=delimiter, skipinitialspace=True))]


def _is_header(cells: list[str], known: Sequence[str]) -> bool:
    """Whether cells are names: the known ones, no numbers, or the numbers of columns; that of an index is empty."""
    indexed = len(cells) > 1 and cells[0] == ""
    named = cells[1:] if indexed else cells
    if sorted(named) == sorted(known) or not any(_is_number(cell.replace(",", ".")) for cell in named):
        return True
    return ((indexed or len(named) > 2) and _is_counted(named)) or (indexed and _grows(named))


def _is_counted(names: Sequence[str]) -> bool:
    """Whether names are 0, 1, 2, … or 1, 2, 3, …."""
    return any(list(names) == [str(i + first) for i in range(len(names))] for first in (0, 1))


def _grows(cells: list[str]) -> bool:
    """Whether all cells are numbers, each larger than the one before."""
    return all(map(_is_number, cells)) and all(float(left) < float(right) for left, right in pairwise(cells))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def write_table(
    path: str | os.PathLike[str], batches: Iterable[Batch], components: Sequence[str] | None = None
) -> None:
    """Write batches of named arrays to a .npz, .csv or .parquet file, in bounded memory and whole or not at all.

    In a .csv or .parquet file, component d of an array is the column ``name_d``, or ``name_`` and its name.
    """
    kind = Path(path).suffix.lower()
    if kind not in WRITABLE:
        raise ValueError(f"{path} has to end with {_listed(WRITABLE)}.")
    if kind == ".parquet":
        _require_pyarrow()
    with finishing(path) as unfinished:
        _WRITERS[kind](unfinished, batches, components)


def _write_csv(path: Path, batches: Iterable[Batch], components: Sequence[str] | None) -> None:
    with path.open("x", encoding="utf-8", newline="") as stream:
        for i, batch in enumerate(batches):
            _frame(batch, components).to_csv(stream, header=i == 0, index=False, lineterminator="\n")


def _write_parquet(path: Path, batches: Iterable[Batch], components: Sequence[str] | None) -> None:
    from pyarrow import Table
    from pyarrow.parquet import ParquetWriter

    with path.open("xb") as stream, ExitStack() as stack:
        writer = None
        for batch in batches:
            table = Table.from_pandas(_frame(batch, components), preserve_index=False)
            writer = writer or stack.enter_context(ParquetWriter(stream, table.schema, write_page_checksum=True))
            writer.write_table(table)


def _frame(batch: Batch, components: Sequence[str] | None) -> Any:
    """One column for each component of each array."""
    import pandas as pd

    columns: dict[str, NDArray[Any]] = {}
    for name, values in batch.items():
        rows = values.reshape(len(values), -1)
        called = range(rows.shape[1]) if components is None else components
        columns |= {f"{name}_{component}": column for component, column in zip(called, rows.T, strict=True)}
    return pd.DataFrame(columns)


def _write_npz(path: Path, batches: Iterable[Batch], components: Sequence[str] | None) -> None:
    """Numbers go to one file for each name first, since the header before them has to have their count."""
    with TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        heads: dict[str, dict[str, Any]] = {}
        for batch in batches:
            for name, values in batch.items():
                head = heads.setdefault(
                    name, {"descr": npy.dtype_to_descr(values.dtype), "fortran_order": False, "shape": (0,)}
                )
                head["shape"] = (head["shape"][0] + len(values), *values.shape[1:])
                with Path(folder, name).open("ab") as stream:
                    stream.write(np.ascontiguousarray(values).data)
        with zipfile.ZipFile(path, "x") as archive:
            for name, head in heads.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    npy.write_array_header_1_0(entry, head)
                    with Path(folder, name).open("rb") as numbers:
                        shutil.copyfileobj(numbers, entry, 2**20)


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


_WRITERS: dict[str, Callable[[Path, Iterable[Batch], Sequence[str] | None], None]] = {
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
WRITABLE = tuple(_WRITERS)
