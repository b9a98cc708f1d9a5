"""A process that computes cells one after the other: `main`, with the folder for finished cells as its argument.

It reads one description a line, keeps the result in the folder before it answers, and answers one line: what went
wrong, or null. Where whoever asks is gone, so is the worker, at once.
"""

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from bayeslista.experiments.cells import Cell, compute, store

__all__ = ["main", "serve"]


def serve(requests: TextIO, replies: TextIO, folder: Path, leave: Callable[[int], object] = os._exit) -> None:
    """Compute the cells asked for until nobody asks any more.

    Parameters
    ----------
    requests : text stream
        Descriptions of cells as JSON, one a line.
    replies : text stream
        For each cell, once it is kept, null; or the traceback of its failure as a JSON string.
    folder : Path
        Where finished cells are kept.
    leave : callable
        Called with 0 when the requests end, even if a cell is being computed then.

    Examples
    --------
    >>> import io
    >>> import json
    >>> from pathlib import Path
    >>> from bayeslista.experiments.cells import Cell
    >>> from bayeslista.experiments.worker import serve
    >>> line = json.dumps(Cell("layers", "ISTA", 4, 0, "no_such_module:function", {}).describe())
    >>> replies = io.StringIO()
    >>> serve(io.StringIO(line), replies, Path("nowhere"), leave=print)
    0
    >>> json.loads(replies.getvalue()).splitlines()[-1]
    "ModuleNotFoundError: No module named 'no_such_module'"
    """
    lines: SimpleQueue[str | None] = SimpleQueue()

    def listen() -> None:
        for line in requests:
            lines.put(line)
        leave(0)
        lines.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while (line := lines.get()) is not None:
        failure = None
        try:
            cell = Cell.from_description(json.loads(line))
            store(cell, folder, compute(cell))
        except Exception:  # whatever a method raises is told, and the next cell goes on
            failure = traceback.format_exc()
        replies.write(json.dumps(failure) + "\n")
        replies.flush()


def main() -> None:
    """Serve the standard streams; what a cell prints goes to the standard error."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin, replies, Path(sys.argv[1]))
