"""From names of figures to files: runs their cells and writes what they found."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bayeslista.experiments import active_learning, layers, mnist, undersampling
from bayeslista.experiments.description import Figure
from bayeslista.experiments.figures import Record, csv_text, write_figure, write_whole
from bayeslista.experiments.page import write_report
from bayeslista.experiments.runner import Failure, Results, run

__all__ = ["FIGURES", "Reproduction", "reproduce"]

FIGURES: dict[str, tuple[Figure, ...]] = {
    "layers": (layers.FIGURE,),
    "undersampling": (undersampling.FIGURE,),
    "mnist": (mnist.FIGURE_100, mnist.FIGURE_250),
    "active": (active_learning.FIGURE,),
}
"""The paper's figures by the name of their experiment."""

_TIMING_COLUMNS = ("figure", "method", "point", "seed", "seconds", "processor_seconds", "warnings")


class Reproduction(NamedTuple):
    """What a run found.

    Attributes
    ----------
    records : dict of list of Record
        All numbers by name of the figure.
    failures : list of Failure
        Cells that could not be computed.

    Examples
    --------
    >>> from bayeslista.experiments.reproduction import Reproduction
    >>> Reproduction({"layers": []}, []).failures
    []
    """

    records: dict[str, list[Record]]
    failures: list[Failure]


def reproduce(
    figures: Sequence[Figure],
    preset: str,
    out: str | os.PathLike[str],
    jobs: int = 1,
    progress: bool = True,
    points: Sequence[int] = (),
) -> Reproduction:
    """Compute figures of the paper and write them to a folder.

    For each figure there are a CSV file with every seed, an SVG and a PNG file; for all of them ``timings.csv``,
    ``report.html`` and, if a cell failed, ``failures.txt``. Finished cells are kept in ``cells/`` and not computed
    again.

    Parameters
    ----------
    figures : sequence of Figure
        What to compute.
    preset : {"quick", "standard", "paper"}
        How much of it.
    out : path-like
        The folder; made if it is not there.
    jobs : int, default=1
        How many processes, each of one thread.
    progress : bool, default=True
        Whether to show a progress bar.
    points : sequence of int, default=()
        Points of the sweeps to compute; none are all.

    Returns
    -------
    Reproduction
        All numbers, and what failed.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    ValueError
        If a figure has no such point.

    Examples
    --------
    >>> import dataclasses
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.experiments.description import Preset
    >>> from bayeslista.experiments.layers import FIGURE
    >>> from bayeslista.experiments.reproduction import reproduce
    >>> sizes = {"n_train": 5, "n_test": 5, "n_observed": 5, "n_components": 10}
    >>> tiny = dataclasses.replace(FIGURE, presets={"quick": Preset((2, 3), {"ISTA": 1}, {}, sizes)})
    >>> with tempfile.TemporaryDirectory() as out:
    ...     found = reproduce([tiny], "quick", out, progress=False)
    ...     sorted(path.name for path in Path(out).iterdir())
    ['cells', 'layers.csv', 'layers.png', 'layers.svg', 'report.html', 'timings.csv']
    >>> [record.x for record in found.records["layers"]]
    [2, 3]
    """
    cells = [cell for figure in figures for cell in figure.cells(preset, points)]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    results = run(cells, folder / "cells", jobs, progress)
    records: dict[str, list[Record]] = {figure.name: [] for figure in figures}
    for cell, outcome in results.finished:
        records[cell.figure] += [
            Record(cell.figure, row["method"], row["x"], cell.seed, row["nmse"]) for row in outcome.rows
        ]
    for figure in figures:
        write_figure(figure, records[figure.name], folder)
    _write_timings(results, folder)
    _write_failures(results, folder)
    write_report(folder / "report.html", figures, preset, records, results)
    return Reproduction(records, results.failures)


def _write_timings(results: Results, folder: Path) -> None:
    """How long each cell took when it was computed, and what it warned of."""
    lines = [
        (cell.figure, cell.method, "" if cell.point is None else f"{cell.point:g}", cell.seed, *outcome[1:3],
         " / ".join(outcome.warnings))
        for cell, outcome in results.finished
    ]  # fmt: skip
    write_whole(folder / "timings.csv", csv_text(_TIMING_COLUMNS, lines))


def _write_failures(results: Results, folder: Path) -> None:
    path = folder / "failures.txt"
    if not results.failures:
        path.unlink(missing_ok=True)
        return
    parts = [f"{failure.cell.describe()}\n{failure.trace.rstrip()}\n" for failure in results.failures]
    write_whole(path, "\n".join(parts).encode())
