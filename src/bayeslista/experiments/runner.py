"""Runs cells in processes of one thread each, and goes on where it was stopped.

A finished cell is on disk before its process says so: whatever is killed, and whenever, only cells that were not
finished are computed again. A cell that fails, or takes its process down, is reported; the others go on.

Where ``joblib.parallel_config`` names another backend than joblib's own, such as "dask", cells are computed there.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter, deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, NamedTuple

from joblib import Parallel, delayed
from joblib.parallel import get_active_backend
from tqdm import tqdm

from bayeslista.experiments.cells import Cell, Outcome, compute, load, store

__all__ = ["Failure", "Results", "count_reasons", "run"]

_ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
}
_Answers = Generator[tuple[int, str | None], None, None]  # cells by their number, and what went wrong with each
WORKER = "from bayeslista.experiments.worker import main; main()"
_LAST_WORDS = 4000  # bytes
_INTERRUPT_SECONDS = 0.1
_OWN_BACKENDS = ("LokyBackend", "SequentialBackend", "ThreadingBackend")  # in place of which processes are started here


class Failure(NamedTuple):
    r"""A cell that could not be computed, and why.

    Examples
    --------
    >>> from bayeslista.experiments.runner import Failure
    >>> Failure(None, "Traceback …\nValueError: no data").reason
    'ValueError: no data'
    """

    cell: Cell
    trace: str

    @property
    def reason(self) -> str:
        """The last line of the traceback."""
        return self.trace.strip().splitlines()[-1]


class Results(NamedTuple):
    """What came of a list of cells.

    Attributes
    ----------
    finished : list of (Cell, Outcome)
        In the order of the cells, whatever the order they finished in.
    failures : list of Failure
        In the order of the cells.

    Examples
    --------
    >>> from bayeslista.experiments.runner import Results
    >>> Results([], []).failures
    []
    """

    finished: list[tuple[Cell, Outcome]]
    failures: list[Failure]


def count_reasons(failures: Sequence[Failure]) -> Counter[tuple[str, str, str]]:
    """How many cells failed for the same reason.

    Parameters
    ----------
    failures : sequence of Failure
        What failed.

    Returns
    -------
    Counter
        By figure, method and reason, in the order in which they first occur.

    Examples
    --------
    >>> from bayeslista.experiments.cells import Cell
    >>> from bayeslista.experiments.runner import Failure, count_reasons
    >>> cells = [Cell("layers", "ISTA", 4, seed, "module:function", {}) for seed in (0, 1)]
    >>> dict(count_reasons([Failure(cell, "ValueError: no data") for cell in cells]))
    {('layers', 'ISTA', 'ValueError: no data'): 2}
    """
    return Counter((failure.cell.figure, failure.cell.method, failure.reason) for failure in failures)


def run(cells: Sequence[Cell], folder: str | os.PathLike[str], jobs: int = 1, progress: bool = True) -> Results:
    """Compute all cells that are not kept yet.

    Parameters
    ----------
    cells : sequence of Cell
        What to compute; no two alike.
    folder : path-like
        Where finished cells are kept; made if it is not there.
    jobs : int, default=1
        How many processes, each of one thread. With a backend of ``joblib.parallel_config`` that is not joblib's own,
        such as "dask", cells go to all of its workers instead; what they find comes back and is kept here. If the
        backend gives up, as where a cell takes several workers down, cells without an answer are reported as failed,
        and the next run computes them.
    progress : bool, default=True
        Whether to show a bar with the remaining time on the standard error.

    Returns
    -------
    Results
        What the cells found, and which failed.

    Raises
    ------
    ValueError
        If two cells are the same.
    OSError
        If the folder cannot be made.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.experiments.cells import Outcome, store
    >>> from bayeslista.experiments.layers import FIGURE
    >>> from bayeslista.experiments.runner import run
    >>> cells = FIGURE.cells("quick")[:1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store(cells[0], Path(folder), Outcome([], 0.0, 0.0, []))  # kept from another time
    ...     results = run(cells, folder, progress=False)
    >>> results.finished[0][0].method, results.failures
    ('ISTA', [])
    """
    twice = [key for key, n in Counter(cell.key for cell in cells).items() if n > 1]
    if twice:
        raise ValueError(f"These cells are given more than once: {', '.join(twice)}")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    found = [load(cell, target) for cell in cells]
    # Methods that take long stand last in a figure: they begin first, so that none of them is left over at the end.
    waiting = deque(i for i in reversed(range(len(cells))) if found[i] is None)
    traces: dict[int, str] = {}
    total, n_waiting = len(cells), len(waiting)
    with tqdm(total=total, initial=total - n_waiting, unit="cell", disable=not progress, smoothing=0.1) as bar:
        elsewhere = type(get_active_backend()[0]).__name__ not in _OWN_BACKENDS
        answers = _on_backend(cells, waiting, target) if elsewhere else _in_lanes(cells, waiting, target, jobs)
        with closing(answers):
            for i, trace in answers:
                found[i] = load(cells[i], target)
                if found[i] is None:
                    traces[i] = trace or "The result of the cell was not kept as it should be."
                bar.set_postfix(failed=len(traces), refresh=False)
                bar.update()
    return Results(
        [(cell, outcome) for cell, outcome in zip(cells, found, strict=True) if outcome is not None],
        [Failure(cells[i], traces[i]) for i in sorted(traces)],
    )


def _in_lanes(cells: Sequence[Cell], waiting: "deque[int]", folder: Path, jobs: int) -> _Answers:
    """Cells that have been computed by processes of ours, and what went wrong with each."""
    done: SimpleQueue[tuple[int, str | None]] = SimpleQueue()
    n_waiting = len(waiting)
    lanes = [_Lane(cells, waiting, done, folder) for _ in range(min(jobs, n_waiting))]
    try:
        for lane in lanes:
            lane.start()
        for _ in range(n_waiting):
            yield done.get()
    finally:
        waiting.clear()
        for lane in lanes:
            lane.stop()


def _on_backend(cells: Sequence[Cell], waiting: Iterable[int], folder: Path) -> _Answers:
    """Cells that have been computed by the backend of joblib, each kept here as soon as it is known."""
    left = dict.fromkeys(waiting)
    tasks = (delayed(_computed)(i, cells[i]) for i in tuple(left))
    try:
        for i, outcome, trace in Parallel(n_jobs=-1, return_as="generator_unordered", batch_size=1)(tasks):
            if outcome is not None:
                store(cells[i], folder, outcome)
            del left[i]
            yield i, trace
    except Exception:  # of the backend: whatever a cell raises is in its trace
        trace = traceback.format_exc()
        yield from ((i, trace) for i in left)


def _computed(i: int, cell: Cell) -> tuple[int, Outcome | None, str | None]:
    try:
        return i, compute(cell), None
    except Exception:
        return i, None, traceback.format_exc()


class _Lane(threading.Thread):
    """Feeds one process after the other with cells: a new one only where the last one died."""

    def __init__(
        self,
        cells: Sequence[Cell],
        waiting: "deque[int]",
        done: "SimpleQueue[tuple[int, str | None]]",
        folder: Path,
    ) -> None:
        super().__init__(daemon=True)
        self._cells, self._waiting, self._done, self._folder = cells, waiting, done, folder
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Take cells until there are none."""
        with tempfile.TemporaryFile() as errors:
            while True:
                try:
                    i = self._waiting.popleft()
                except IndexError:
                    break
                try:
                    trace = self._ask(self._cells[i], errors)
                except Exception:  # whatever it is: a cell without an answer would be waited for for ever
                    trace = traceback.format_exc()
                self._done.put((i, trace))
            self._end()

    def stop(self) -> None:
        """End the process, even amidst a cell, and then the thread."""
        while self.is_alive():
            process = self._process
            if process is not None:
                process.kill()
            self.join(_INTERRUPT_SECONDS)

    def _ask(self, cell: Cell, errors: IO[bytes]) -> str | None:
        """Have a cell computed; return what went wrong."""
        process = self._process = self._process or self._begin(errors)
        assert process.stdin is not None
        assert process.stdout is not None
        reply = ""
        with suppress(OSError):
            process.stdin.write(json.dumps(cell.describe()) + "\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        if reply:
            trace: str | None = json.loads(reply)
            return trace
        code = process.wait()
        self._end()
        errors.seek(max(errors.seek(0, os.SEEK_END) - _LAST_WORDS, 0))
        words = errors.read().decode(errors="replace")
        return f"{words}\nThe process that computed this cell ended with exit code {code}."

    def _begin(self, errors: IO[bytes]) -> "subprocess.Popen[str]":
        # The environment is set before JAX and NumPy are imported; the path lets a worker find what we can import.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        return subprocess.Popen(
            [sys.executable, "-c", WORKER, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": path},
        )

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        with suppress(OSError):
            self._process.communicate()
        self._process = None
