"""Comma-separated values."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayeslista.tables._wrong import WrongTableError

_ENCODING = "utf-8-sig"  # spreadsheets write a mark in front
_SHOWN = 40  # characters of a cell in a message
_FEWEST_TO_DOUBT = 4  # columns; fewer numbers grow by chance too often
_DOUBT = "was read without a header, though its first line grows from cell to cell: if that is one, pass --header yes."
HEADERS = ("auto", "yes", "no")


class _Layout(NamedTuple):
    """How to read a file."""

    delimiter: str | None
    skipped: int
    names: tuple[str, ...] = ()
    doubt: str = ""


def read_csv(file: Path, header: str) -> tuple[NDArray[np.float64], tuple[str, ...], str, Callable[[int], int]]:
    """Read a file of numbers, the names in its header, what is to be said of it, and from a row to its line."""
    try:
        layout = _find_layout(file, header)
        try:
            values = np.loadtxt(
                file,
                delimiter=layout.delimiter,
                skiprows=layout.skipped,
                comments=None,
                quotechar='"',
                encoding=_ENCODING,
                ndmin=2,
            )
        except ValueError as error:
            wrong = _wrong_line(file, layout)
            if wrong is None or isinstance(error, UnicodeDecodeError):
                raise
            raise WrongTableError(wrong) from error
        return values, layout.names, layout.doubt, partial(_line_of, file, layout)
    except UnicodeDecodeError as error:
        raise WrongTableError(f"is no text in UTF-8 ({error.reason} at byte {error.start}).") from error


def _find_layout(file: Path, header: str) -> _Layout:
    """Look at the first two lines that are not blank."""
    with file.open(encoding=_ENCODING) as lines:
        filled = ((number, line) for number, line in enumerate(lines) if line.strip())
        number, line = next(filled, (0, ""))
        _, second = next(filled, (0, ""))
    if not line:
        raise WrongTableError("holds no numbers: all of its lines are blank.")
    delimiter = next((mark for mark in ";\t," if mark in line), None)
    cells = _cells(line, delimiter)
    if header == "yes" or (header == "auto" and (line.lstrip().startswith("#") or _is_header(cells))):
        return _Layout(delimiter, number + 1, _names(line, delimiter))
    doubtful = header == "auto" and len(cells) >= _FEWEST_TO_DOUBT and _grows(cells)
    return _Layout(delimiter, number, doubt=_DOUBT if doubtful and not _grows(_cells(second, delimiter)) else "")


def _is_header(cells: list[str]) -> bool:
    """Whether cells are names: no numbers, or the numbers of columns; that of an index may be empty."""
    named = cells[1:] if len(cells) > 1 and cells[0] == "" else cells
    indexed = named is not cells
    counted = (indexed or len(cells) > 2) and is_counted(named)
    return counted or (indexed and _grows(named)) or not any(_is_number(cell) for cell in named)


def is_counted(names: Sequence[str]) -> bool:
    """Whether names are 0, 1, 2, … or 1, 2, 3, …."""
    return any(list(names) == [str(i + first) for i in range(len(names))] for first in (0, 1))


def _grows(cells: list[str]) -> bool:
    """Whether all cells are numbers, each larger than the one before."""
    return all(map(_is_number, cells)) and all(float(left) < float(right) for left, right in pairwise(cells))


def _names(line: str, delimiter: str | None) -> tuple[str, ...]:
    """The names in a header; a sentence behind ``#`` holds none."""
    comment = line.lstrip().startswith("#")
    cells = _cells(line.lstrip().removeprefix("#"), delimiter) if comment else _cells(line, delimiter)
    return () if comment and (delimiter is None or any(" " in cell for cell in cells)) else tuple(cells)


def _cells(line: str, delimiter: str | None) -> list[str]:
    return [cell.strip().strip('"') for cell in line.rstrip("\r\n").split(delimiter)]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _line_of(file: Path, layout: _Layout, row: int) -> int:
    """The line of the file, counted from 1, in which a row, counted from 0, is."""
    with file.open(encoding=_ENCODING) as lines:
        filled = (number for number, line in enumerate(lines, start=1) if number > layout.skipped and line.strip())
        return next(islice(filled, row, None))


def _wrong_line(file: Path, layout: _Layout) -> str | None:
    """Say which line is the first that cannot be read, and why."""
    width = 0
    with file.open(encoding=_ENCODING) as lines:
        for number, line in enumerate(lines, start=1):
            if number <= layout.skipped or line == "\n":
                continue
            cells = _cells(line, layout.delimiter)
            for column, cell in enumerate(cells, start=1):
                if not _is_number(cell):
                    what = f"holds {cell[:_SHOWN]!r}, which is no number" if cell else "is empty"
                    named = f" ({layout.names[column - 1]!r})" if len(layout.names) == len(cells) else ""
                    return (
                        f"cannot be read: line {number}, column {column}{named} {what}. Every cell has to be a number; "
                        "leave out columns of names or dates."
                    )
            width = width or len(cells)
            if len(cells) != width:
                return f"cannot be read: line {number} has {len(cells)} cells, the lines before it have {width}."
    return None
