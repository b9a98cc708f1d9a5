"""Comma-separated values."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayeslista.tables._wrong import WrongTableError

_ENCODING = "utf-8-sig"  # spreadsheets write a mark in front
_SHOWN = 40  # characters of a cell in a message


class _Layout(NamedTuple):
    """How to read a file."""

    delimiter: str | None
    skipped: int
    names: tuple[str, ...]


def read_csv(file: Path) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Read a file of numbers, with or without a header, and the names in that."""
    try:
        layout = _find_layout(file)
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
        return values, layout.names
    except UnicodeDecodeError as error:
        raise WrongTableError(f"is no text in UTF-8 ({error.reason} at byte {error.start}).") from error


def _find_layout(file: Path) -> _Layout:
    """Look at the first line that is not blank."""
    with file.open(encoding=_ENCODING) as lines:
        for number, line in enumerate(lines):
            if line.strip():
                delimiter = next((mark for mark in ";\t," if mark in line), None)
                header = _is_header(line, delimiter)
                return _Layout(delimiter, number + header, _names(line, delimiter) if header else ())
    raise WrongTableError("holds no numbers: all of its lines are blank.")


def _is_header(line: str, delimiter: str | None) -> bool:
    """Whether a line holds names: no numbers, a comment, or the numbers of columns that pandas writes."""
    cells = _cells(line, delimiter)
    counted = len(cells) > 2 and cells == [str(i) for i in range(len(cells))]
    return line.lstrip().startswith("#") or counted or not any(_is_number(cell) for cell in cells)


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
                    return f"cannot be read: line {number}, column {column} {what}. Every cell has to be a number."
            width = width or len(cells)
            if len(cells) != width:
                return f"cannot be read: line {number} has {len(cells)} cells, the lines before it have {width}."
    return None
