"""A figure as an experiment: its cells, computed in parallel by joblib and kept on disk by `joblib.Memory`.

A cell is kept as soon as it is computed: a run that was killed goes on with the cells that were not finished.
`joblib.parallel_config` chooses another backend, such as "dask", whose workers have to share the folder.
"""

import time
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from joblib import Memory, Parallel, delayed
from tqdm import tqdm


class Row(NamedTuple):
    """The error of a method at one point of a sweep."""

    method: str
    x: int
    nmse: float


class Cell(NamedTuple):
    """What is computed and kept as a whole: one method with one seed, at one point of the sweep or at several."""

    method: str
    points: tuple[int, ...]
    seed: int
    epochs: int | None  # at most; None is the default of the method
    sizes: dict[str, int]  # of the data and of the networks


class Outcome(NamedTuple):
    """The rows of a cell, the seconds that they took, and each warning once."""

    rows: list[Row]
    seconds: float
    warnings: list[str]


@dataclass(frozen=True)
class Preset:
    """How much of a figure is computed; `seeds` has the methods in the order of the legend."""

    points: Sequence[int]
    seeds: Mapping[str, int]
    epochs: Mapping[str, int]
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper: what stands on it, and the function that computes one of its cells."""

    name: str
    title: str
    x_label: str
    presets: Mapping[str, Preset]
    compute: Callable[[Cell], list[Row]]
    whole_sweep: Collection[str]  # methods with one cell for all points: fast, or the same everywhere
    over_epochs: bool = False  # x is the number of epochs: a curve ends at the epochs of its method
    compare: Callable[[pd.DataFrame], list[tuple[str, ...]]] | None = None  # one more table, header first
    comparison: str = ""  # its caption

    def cells(self, preset: str, points: Collection[int] = ()) -> list[Cell]:
        """The cells of a preset by method, seed and point; if points are given, of these only."""
        chosen, cells = self.presets[preset], []
        if unknown := sorted(set(points) - set(chosen.points)):
            known = ", ".join(map(str, chosen.points))
            raise ValueError(f"{self.name} has no point {unknown[0]} in the preset {preset}: choose from {known}.")
        for method, n_seeds in chosen.seeds.items():
            epochs = chosen.epochs.get(method)
            end = epochs if self.over_epochs and epochs else max(chosen.points)
            sweep = tuple(x for x in chosen.points if x <= end and (x in points or not points))
            parts = [sweep] * bool(sweep) if method in self.whole_sweep else [(x,) for x in sweep]
            cells += [Cell(method, part, seed, epochs, dict(chosen.sizes)) for seed in range(n_seeds) for part in parts]
        return cells


class Finished(NamedTuple):
    """A cell of a figure and its outcome."""

    figure: str
    cell: Cell
    outcome: Outcome


class Failure(NamedTuple):
    """A cell of a figure that could not be computed, and the traceback."""

    figure: str
    cell: Cell
    trace: str

    @property
    def reason(self) -> str:
        """The last line of the traceback."""
        return self.trace.strip().splitlines()[-1]


class Results(NamedTuple):
    """Finished and failed cells, each in the order of the cells."""

    finished: list[Finished]
    failures: list[Failure]

    def table(self, figure: str) -> pd.DataFrame:
        """All errors of a figure, one a row."""
        rows = [
            (figure, row.method, row.x, each.cell.seed, row.nmse)
            for each in self.finished
            if each.figure == figure
            for row in each.outcome.rows
        ]
        return pd.DataFrame(rows, columns=["figure", "method", "x", "seed", "nmse"])


def measure(compute: Callable[[Cell], list[Row]], cell: Cell) -> Outcome:
    """Compute a cell, with its time and warnings; this is the function whose results are kept."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        rows = compute(cell)
    if not np.isfinite([row.nmse for row in rows]).all():
        raise ValueError(f"An error is not finite: {rows}")
    messages = dict.fromkeys(str(warning.message) for warning in caught)
    return Outcome(rows, round(time.perf_counter() - start, 3), list(messages))


def run(
    figures: Sequence[PaperFigure],
    preset: str,
    folder: Path,
    jobs: int = 1,
    points: Collection[int] = (),
    progress: bool = True,
) -> Results:
    """Compute the cells of figures that are not in the folder yet; a cell that fails does not stop the others."""
    kept = Memory(folder, verbose=0).cache(measure)
    tasks = [(figure, cell) for figure in figures for cell in figure.cells(preset, points)]
    # Methods that take long are last in a figure. They start first, so that none of them runs alone at the end.
    missing = [i for i, (figure, cell) in enumerate(tasks) if not kept.check_call_in_cache(figure.compute, cell)][::-1]
    traces: dict[int, str | None] = {}
    with tqdm(total=len(tasks), initial=len(tasks) - len(missing), unit="cell", disable=not progress) as bar:
        calls = (delayed(_attempt)(kept, i, tasks[i][0].compute, tasks[i][1]) for i in missing)
        try:
            for i, trace in Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(calls):
                traces[i] = trace
                bar.set_postfix(failed=sum(map(bool, traces.values())), refresh=False)
                bar.update()
        except Exception:  # of the backend, such as a worker that was killed; exceptions of cells are in their traces
            lost = traceback.format_exc()
            traces = {i: traces.get(i, lost) for i in missing}
    finished, failures = [], []
    for i, (figure, cell) in enumerate(tasks):
        trace = traces.get(i)
        if trace and not kept.check_call_in_cache(figure.compute, cell):
            failures.append(Failure(figure.name, cell, trace))
        else:
            finished.append(Finished(figure.name, cell, kept(figure.compute, cell)))
    return Results(finished, failures)


def _attempt(
    kept: Callable[..., Outcome], i: int, compute: Callable[[Cell], list[Row]], cell: Cell
) -> tuple[int, str | None]:
    """Compute and keep a cell in a worker; return its number and the traceback if it failed."""
    try:
        kept(compute, cell)
    except Exception:
        return i, traceback.format_exc()
    return i, None
