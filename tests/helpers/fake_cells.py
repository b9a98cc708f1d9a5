"""A figure whose cells cost nothing, importable by the processes that compute them."""

import os
import signal
import time
import warnings
from pathlib import Path

from reproduction.experiment import PaperFigure, Preset, Row


def compute(cell):
    """One row; logs every computation, and misbehaves at the points that the settings name."""
    (x,), settings = cell.points, cell.sizes
    if "folder" in settings:
        with Path(settings["folder"], "log").open("a") as log:
            log.write(f"{x}\n")
    time.sleep(settings.get("seconds", 0))
    if x == settings.get("warns"):
        warnings.warn("mind the gap", stacklevel=1)
    if x == settings.get("fails"):
        raise RuntimeError("this cell fails")
    if x == settings.get("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    return [Row(cell.method, x, float("nan") if x == settings.get("diverges") else x / 3)]


def figure(n, **settings):
    """A figure of n cells."""
    return PaperFigure("layers", "Fake", "points", {"quick": Preset(range(n), {"ISTA": 1}, {}, settings)}, compute, ())
