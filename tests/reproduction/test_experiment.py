"""Running an experiment: what is computed, kept and resumed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import fake_cells
import pytest
from joblib import parallel_config, register_parallel_backend
from joblib.parallel import ThreadingBackend

from reproduction.experiment import run
from reproduction.reproduce import reproduce


def computed(folder):
    """Which cells were computed, as often as they were."""
    return sorted(int(line) for line in (folder / "log").read_text().split())


def points(cells):
    return [each.cell.points[0] for each in cells]


def test_rows_come_in_the_order_of_the_cells_though_some_fail(tmp_path):
    results = run([fake_cells.figure(5, fails=1, diverges=3, warns=4)], "quick", tmp_path, jobs=2, progress=False)
    assert points(results.finished) == [0, 2, 4]
    assert [tuple(row) for row in results.table("layers").to_numpy()] == [
        ("layers", "ISTA", x, 0, x / 3) for x in (0, 2, 4)
    ]
    assert results.finished[-1].outcome.warnings == ["mind the gap"]
    failed, diverged = results.failures
    assert (failed.cell.points, failed.reason) == ((1,), "RuntimeError: this cell fails")
    assert "not finite" in diverged.reason


def test_finished_cells_are_not_repeated_but_failed_and_damaged_ones_are(tmp_path, capsys):
    figure = fake_cells.figure(4, folder=str(tmp_path), fails=1)
    first = run([figure], "quick", tmp_path / "cells")
    assert "4/4" in capsys.readouterr().err
    again = run([figure], "quick", tmp_path / "cells", progress=False)
    assert computed(tmp_path) == [0, 1, 1, 2, 3]
    assert again.finished == first.finished
    for file in (tmp_path / "cells").rglob("output.pkl"):
        file.write_bytes(file.read_bytes()[:20])
    assert [each.outcome.rows for each in run([figure], "quick", tmp_path / "cells", progress=False).finished] == [
        each.outcome.rows for each in first.finished
    ]


def test_other_settings_are_other_cells(tmp_path):
    for seconds in (0, 0.001):
        run([fake_cells.figure(2, folder=str(tmp_path), seconds=seconds)], "quick", tmp_path / "cells", progress=False)
    assert computed(tmp_path) == [0, 0, 1, 1]


def test_points_can_be_chosen(tmp_path):
    results = run([fake_cells.figure(4)], "quick", tmp_path, points=[3, 1], progress=False)
    assert points(results.finished) == [1, 3]


def test_a_worker_that_dies_loses_no_finished_cell(tmp_path):
    # Cells start from the last one.
    results = run([fake_cells.figure(6, dies=0)], "quick", tmp_path, jobs=2, progress=False)
    assert 0 in points(results.failures)
    assert all("TerminatedWorkerError" in failure.trace for failure in results.failures)
    assert sorted(points(results.finished) + points(results.failures)) == list(range(6))
    assert points(results.finished)


def test_cells_that_a_backend_has_no_answer_for_are_reported_and_computed_next_time(tmp_path):
    class Broken(ThreadingBackend):
        def submit(self, func, callback=None):
            raise ConnectionError("no workers are left")

    register_parallel_backend("broken", Broken)
    figure = fake_cells.figure(3)
    with parallel_config("broken"):
        results = run([figure], "quick", tmp_path, jobs=2, progress=False)
    assert [failure.reason for failure in results.failures] == ["ConnectionError: no workers are left"] * 3
    assert points(run([figure], "quick", tmp_path, progress=False).finished) == [0, 1, 2]


KILLED = """
import sys
from pathlib import Path
import fake_cells
from reproduction.reproduce import reproduce
folder = Path(sys.argv[1])
reproduce([fake_cells.figure(8, folder=str(folder), seconds=0.3)], "quick", folder / "out", jobs=2, progress=False)
"""


@pytest.mark.slow
def test_killed_half_way_and_restarted_it_ends_alike_and_repeats_no_finished_cell(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), *filter(None, sys.path)])
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env={**os.environ, "PYTHONPATH": path})
    out = tmp_path / "out"
    deadline = time.monotonic() + 120
    while len(list(out.rglob("output.pkl"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    time.sleep(2)  # workers end with the cells that they had
    n_kept, before = len(list(out.rglob("output.pkl"))), computed(tmp_path)
    assert 2 <= n_kept < 8
    reproduce([fake_cells.figure(8, folder=str(tmp_path), seconds=0.3)], "quick", out, progress=False)
    assert len(computed(tmp_path)) - len(before) == 8 - n_kept
    assert set(computed(tmp_path)) == set(range(8))
    lines = [f"layers,ISTA,{x},0,{x / 3:.6f}" for x in range(8)]
    assert (out / "layers.csv").read_text() == "\n".join(["figure,method,x,seed,nmse", *lines, ""])


@pytest.mark.slow
def test_cells_run_on_workers_of_dask(tmp_path):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(sys.path.extend, sys.path)
        with parallel_config("dask", wait_for_workers_timeout=30):
            results = run([fake_cells.figure(4, folder=str(tmp_path), fails=1)], "quick", tmp_path / "cells", jobs=2)
    assert points(results.finished) == [0, 2, 3]
    assert computed(tmp_path) == [0, 1, 2, 3]
