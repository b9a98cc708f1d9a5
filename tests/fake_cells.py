"""Cells that cost nothing, for the tests of the runner: importable by its processes."""

import os
import signal
import sys
import time
import warnings
from pathlib import Path

from bayeslista.experiments.cells import Cell
from bayeslista.experiments.description import Figure, Preset


def cells(n, folder=None, **settings):
    given = {"folder": None if folder is None else str(folder), **settings}
    return [Cell("layers", "ISTA", i, 0, "fake_cells:task", given) for i in range(n)]


def figure(n, folder=None, **settings):
    presets = {"quick": Preset(range(n), {"ISTA": 1}, {}, {})}
    return Figure("layers", "Fake", "points", presets, lambda *_: cells(n, folder, **settings))


def task(cell):
    """One row; leaves a trace of every time it was computed, and misbehaves where it is told to."""
    settings = cell.settings
    if settings["folder"] is not None:
        with Path(settings["folder"], "log").open("a") as log:
            log.write(f"{cell.point}\n")
    time.sleep(settings.get("seconds", 0))
    print("what a cell prints is no answer")
    if cell.point == settings.get("warns"):
        warnings.warn("mind the gap", stacklevel=1)
    if cell.point == settings.get("fails"):
        raise RuntimeError("this cell fails")
    if cell.point == settings.get("dies"):
        print("these are my last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if cell.point == settings.get("forgets"):
        return [{"method": cell.method}]
    return [{"method": cell.method, "x": cell.point, "nmse": cell.point / 3}]


def environment(cell):
    """How many threads the process was told to use."""
    return [{"method": os.environ["XLA_FLAGS"], "x": cell.point, "nmse": int(os.environ["OMP_NUM_THREADS"])}]
