"""A cell: the smallest piece of an experiment that is computed, kept and repeated as a whole.

A cell is wholly described by plain numbers and words. What it finds depends on nothing else, so a finished cell is
kept in a small JSON file named after that description, and need not be computed again.
"""

import hashlib
import json
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self

from bayeslista._atomic import write_atomically

__all__ = ["CACHE_VERSION", "Cell", "Outcome", "Row", "compute", "load", "store"]

CACHE_VERSION = 1
"""Raised whenever cells of the same description would find something else: then all are computed anew."""

Row = dict[str, Any]
"""What a cell finds at one point: ``method``, ``x`` and ``nmse``."""


@dataclass(frozen=True)
class Cell:
    """One method at one point of a sweep (or at all of them, where that is cheaper) with one seed.

    Parameters
    ----------
    figure : str
        The figure it is for.
    method : str
        What is run.
    point : float or None
        The point of the sweep; None where the cell is for all points.
    seed : int
        Decides the data and the fit.
    task : str
        The function that computes it, as ``"package.module:function"``: from a cell to a list of rows.
    settings : mapping of str to what JSON can hold
        All else that the result depends on.

    Examples
    --------
    >>> from bayeslista.experiments.cells import Cell
    >>> cell = Cell("layers", "ISTA", 4, 0, "bayeslista.experiments.layers:compute", {"points": (4,)})
    >>> cell.settings
    {'points': [4]}
    >>> Cell.from_description(cell.describe()) == cell
    True
    """

    figure: str
    method: str
    point: float | None
    seed: int
    task: str
    settings: Mapping[str, Any] = field(hash=False)

    def __post_init__(self) -> None:
        # As they will be read back: lists for tuples. What JSON cannot hold is refused here.
        object.__setattr__(self, "settings", json.loads(json.dumps(dict(self.settings), allow_nan=False)))

    def describe(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Self:
        """The cell that `describe` described."""
        return cls(**description)

    @property
    def key(self) -> str:
        """A name for its file: the figure and a hash of the description and of the version of the cache."""
        text = json.dumps(_identity(self), sort_keys=True)
        return f"{self.figure}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


class Outcome(NamedTuple):
    """What a cell found, how long it took and what it warned of.

    Attributes
    ----------
    rows : list of dict
        The results.
    seconds : float
        Time by the clock.
    processor_seconds : float
        Time of the processor.
    warnings : list of str
        Each message once.

    Examples
    --------
    >>> from bayeslista.experiments.cells import Outcome
    >>> Outcome([{"method": "ISTA", "x": 4, "nmse": 0.7}], 0.1, 0.1, []).rows[0]["nmse"]
    0.7
    """

    rows: list[Row]
    seconds: float
    processor_seconds: float
    warnings: list[str]


def compute(cell: Cell) -> Outcome:
    """Run the task of a cell in this process.

    Parameters
    ----------
    cell : Cell
        What to compute.

    Returns
    -------
    Outcome
        Its rows, with the time they took.

    Raises
    ------
    ValueError
        If the task returned something else than rows of ``method``, ``x`` and a finite ``nmse``.

    Examples
    --------
    >>> from bayeslista.experiments.cells import compute
    >>> from bayeslista.experiments.layers import FIGURE
    >>> cell = FIGURE.cells("quick")[0]
    >>> cell.method, compute(cell).rows[0]["x"]
    ('ISTA', 4)
    """
    module, _, name = cell.task.partition(":")
    task = getattr(import_module(module), name)
    begin, processor_begin = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        rows = task(cell)
    seconds = round(time.perf_counter() - begin, 3), round(time.process_time() - processor_begin, 3)
    if not _are_rows(rows):
        raise ValueError(f"{cell.task} has to return rows of method, x and a finite nmse, but returned {rows!r}")
    return Outcome(rows, *seconds, list(dict.fromkeys(str(warning.message) for warning in caught)))


def store(cell: Cell, folder: Path, outcome: Outcome) -> None:
    """Keep what a cell found, whole or not at all.

    Parameters
    ----------
    cell : Cell
        What was computed.
    folder : Path
        Where finished cells are kept; it has to be there.
    outcome : Outcome
        What it found.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.experiments.cells import Cell, Outcome, load, store
    >>> cell = Cell("layers", "ISTA", 4, 0, "module:function", {})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store(cell, Path(folder), Outcome([{"method": "ISTA", "x": 4, "nmse": 0.5}], 0.1, 0.1, []))
    ...     load(cell, Path(folder)).rows
    [{'method': 'ISTA', 'x': 4, 'nmse': 0.5}]
    """
    kept = _identity(cell) | outcome._asdict()
    text = json.dumps(kept | {"digest": _digest(kept)}, indent=1, allow_nan=False)
    write_atomically(_path(cell, folder), text.encode())


def load(cell: Cell, folder: Path) -> Outcome | None:
    """What a cell found when it was last computed.

    Parameters
    ----------
    cell : Cell
        What to look for.
    folder : Path
        Where finished cells are kept.

    Returns
    -------
    Outcome or None
        None if the cell is not there, or its file is damaged or of another origin.

    Examples
    --------
    >>> from pathlib import Path
    >>> from bayeslista.experiments.cells import Cell, load
    >>> load(Cell("layers", "ISTA", 4, 0, "module:function", {}), Path("nowhere")) is None
    True
    """
    try:
        kept = json.loads(_path(cell, folder).read_text(encoding="utf-8"))
        digest = kept.pop("digest", None)
        if digest is not None and digest != _digest(kept):  # the first files had none
            return None
        outcome = Outcome(**{name: kept.pop(name) for name in Outcome._fields})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return outcome if kept == _identity(cell) and _are_rows(outcome.rows) else None


def _identity(cell: Cell) -> dict[str, Any]:
    return {"cache_version": CACHE_VERSION, "cell": cell.describe()}


def _digest(kept: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _path(cell: Cell, folder: Path) -> Path:
    return folder / f"{cell.key}.json"


def _are_rows(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and row.keys() == {"method", "x", "nmse"}
        and isinstance(row["method"], str)
        and all(isinstance(row[name], (int, float)) and math.isfinite(row[name]) for name in ("x", "nmse"))
        for row in rows
    )
