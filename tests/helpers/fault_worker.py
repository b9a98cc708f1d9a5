"""Processes to be killed: work that can be stopped at any moment, in children of a process that is warm.

It reads one request a line: a task, its folder, and after how many seconds to kill it, if at all. It answers with the
exit code and the seconds that it took. JAX is imported but has computed nothing here, so that its children can.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from bayeslista import ISTA, BayesLISTA
from bayeslista.cli import app
from bayeslista.datasets import make_sparse_codes
from bayeslista.io import checkpoints
from bayeslista.out_of_core import fit_stream

DATA = make_sparse_codes(60, 10, 6, 8, random_state=0)
PAIRS = DATA.Y_train, DATA.B_train
GIVEN = {"design_matrix": DATA.design_matrix, "random_state": 0}
MODELS = {
    "variational": BayesLISTA(2, max_iter=15, tol=0.0, **GIVEN),
    "filtering": BayesLISTA(2, max_iter=30, tol=0.0, inference="adf", **GIVEN),
}
SAVED = {name: ISTA(n, design_matrix=DATA.design_matrix) for n, name in enumerate(("one", "other"), start=2)}
N_STREAMED = 60


def fit(name, folder):
    """A small fit that writes after every epoch."""
    checkpoints._SECONDS = checkpoints._RATIO = 0.0
    MODELS[name].fit(*PAIRS, checkpoint=folder / "file")


def stream(folder):
    """A small stream that is written after every batch."""
    fit_stream(BayesLISTA(2, random_state=0), PAIRS, batch_size=4, checkpoint=folder / "file", every=1)


def save(folder, names=("one", "other"), n=200):
    """The same file written again and again."""
    for _ in range(n):
        for name in names:
            SAVED[name].fit(*PAIRS).save(folder / "file")


def command(folder):
    """A fit by the command line, slow enough to be interrupted."""
    for name, values in zip(("X", "y"), PAIRS, strict=True):
        np.save(folder / f"{name}.npy", values)
    checkpoints._SECONDS = checkpoints._RATIO = 0.0
    tables = [str(folder / "X.npy"), str(folder / "y.npy")]
    files = ["--checkpoint", str(folder / "file"), "--model", str(folder / "model")]
    settings = ["--layers", "2", "--max-iter", "300", "--param", "tol=0", "--param", "inference=adf", "--quiet"]
    app(["fit", *tables, "--estimator", "bayes-lista", *settings, *files])


TASKS = {
    **{name: lambda folder, name=name: fit(name, folder) for name in MODELS},
    "stream": stream,
    "save": save,
    "save one": lambda folder: save(folder, ["one"]),
    "save other": lambda folder: save(folder, ["other"]),
    "command": command,
}


def serve():
    """Answer requests; several tasks run at the same time."""
    for line in sys.stdin:
        request = json.loads(line)
        folder, start = Path(request["folder"]), time.monotonic()
        children = [child(task, folder) for task in request["tasks"]]
        if request["signal_after"] is not None:
            wait_until(request["signal_after"], folder, start, children[0])
            for process in children:
                os.kill(process, getattr(signal, request["signal"]))
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in children]
        print(json.dumps([codes, time.monotonic() - start]), flush=True)


def child(task, folder):
    """Begin a task in a process of its own."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        with (folder / "said").open("a") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        TASKS[task](folder)
        code = 0
    except SystemExit as left:
        code = left.code
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait_until(when, folder, start, process):
    """Wait so many seconds, or until a file is larger than so many bytes; not longer than the process lives."""
    while time.monotonic() < start + 60:
        ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        late = isinstance(when, float) and time.monotonic() >= start + when
        grown = isinstance(when, int) and (folder / "file").exists() and (folder / "file").stat().st_size > when
        if ended or late or grown:
            return
        time.sleep(1e-3)


if __name__ == "__main__":
    serve()
