"""The runner: what it computes, keeps, repeats and survives."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fake_cells
from bayeslista.experiments import cells as cells_module
from bayeslista.experiments import runner, worker
from bayeslista.experiments.cells import Cell, Outcome, compute, load, store
from bayeslista.experiments.reproduction import reproduce
from bayeslista.experiments.runner import run

ROW = {"method": "ISTA", "x": 1, "nmse": 0.5}
CELL = Cell("layers", "ISTA", 1, 0, "fake_cells:task", {"folder": None})


def computed(folder):
    """Which cells were computed, as often as they were."""
    return sorted(int(line) for line in (folder / "log").read_text().split())


class TestCell:
    def test_another_description_has_another_key(self):
        others = [
            Cell("mnist", "ISTA", 1, 0, "fake_cells:task", {"folder": None}),
            Cell("layers", "FISTA", 1, 0, "fake_cells:task", {"folder": None}),
            Cell("layers", "ISTA", 2, 0, "fake_cells:task", {"folder": None}),
            Cell("layers", "ISTA", 1, 1, "fake_cells:task", {"folder": None}),
            Cell("layers", "ISTA", 1, 0, "fake_cells:other", {"folder": None}),
            Cell("layers", "ISTA", 1, 0, "fake_cells:task", {"folder": 1}),
        ]
        assert len({cell.key for cell in [CELL, *others]}) == 7

    def test_another_version_of_the_cache_has_another_key(self, monkeypatch):
        before = CELL.key
        monkeypatch.setattr(cells_module, "CACHE_VERSION", -1)
        assert before != CELL.key

    def test_settings_that_json_cannot_hold_are_refused(self):
        with pytest.raises(TypeError, match="not JSON serializable"):
            Cell("layers", "ISTA", 1, 0, "fake_cells:task", {"data": object()})

    def test_equal_cells_hash_alike(self):
        assert hash(CELL) == hash(Cell.from_description(json.loads(json.dumps(CELL.describe()))))


class TestCache:
    def test_what_was_stored_is_loaded(self, tmp_path):
        outcome = Outcome([ROW], 1.5, 1.0, ["careful"])
        store(CELL, tmp_path, outcome)
        assert load(CELL, tmp_path) == outcome
        assert len(list(tmp_path.iterdir())) == 1

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
    def test_a_truncated_file_is_not_believed(self, tmp_path, share):
        store(CELL, tmp_path, Outcome([ROW], 1.5, 1.0, []))
        (path,) = tmp_path.iterdir()
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        assert load(CELL, tmp_path) is None

    @pytest.mark.parametrize(
        "content",
        [b"[]", b"null", b"{}", b"\xff\xfe", b'{"rows": [], "seconds": 1, "processor_seconds": 1, "warnings": []}'],
    )
    def test_a_foreign_file_is_not_believed(self, tmp_path, content):
        (tmp_path / f"{CELL.key}.json").write_bytes(content)
        assert load(CELL, tmp_path) is None

    def test_the_file_of_another_cell_is_not_believed(self, tmp_path):
        other = Cell("layers", "FISTA", 1, 0, "fake_cells:task", {"folder": None})
        store(other, tmp_path, Outcome([ROW], 1.5, 1.0, []))
        os.replace(tmp_path / f"{other.key}.json", tmp_path / f"{CELL.key}.json")
        assert load(CELL, tmp_path) is None

    def test_nothing_is_left_where_storing_fails(self, tmp_path, monkeypatch):
        def replace(*_):
            raise OSError("disk full")

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(OSError, match="disk full"):
            store(CELL, tmp_path, Outcome([ROW], 1.5, 1.0, []))
        assert not list(tmp_path.iterdir())


class TestCompute:
    def test_rows_and_warnings_are_collected(self):
        (cell,) = fake_cells.cells(1, warns=0)
        outcome = compute(cell)
        assert outcome.rows == [{"method": "ISTA", "x": 0, "nmse": 0.0}]
        assert outcome.warnings == ["mind the gap"]

    def test_rows_that_are_none_are_refused(self):
        (cell,) = fake_cells.cells(1, forgets=0)
        with pytest.raises(ValueError, match="fake_cells:task has to return rows"):
            compute(cell)


class TestWorker:
    def test_it_keeps_before_it_answers_and_goes_on_after_a_failure(self, tmp_path):
        asked = fake_cells.cells(3, fails=1)
        requests = io.StringIO("".join(json.dumps(cell.describe()) + "\n" for cell in asked))
        replies, left = io.StringIO(), []
        worker.serve(requests, replies, tmp_path, leave=left.append)
        first, second, third = map(json.loads, replies.getvalue().splitlines())
        assert first is third is None
        assert "RuntimeError: this cell fails" in second
        assert [load(cell, tmp_path) is not None for cell in asked] == [True, False, True]
        assert left == [0]

    def test_main_answers_where_the_standard_output_was(self, tmp_path, monkeypatch):
        class Stream:
            def __init__(self, number):
                self.number = number

            def fileno(self):
                return self.number

        answers, errors = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("answers", "errors"))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["worker", str(tmp_path)])
            patch.setattr(sys, "stdin", "requests")
            patch.setattr(sys, "stdout", Stream(answers))
            patch.setattr(sys, "stderr", Stream(errors))

            def serve(requests, replies, folder):
                assert (requests, folder) == ("requests", tmp_path)
                os.write(answers, b"printed")
                with replies:
                    replies.write("answered")

            patch.setattr(worker, "serve", serve)
            worker.main()
        os.close(answers)
        os.close(errors)
        assert (tmp_path / "answers").read_text() == "answered"
        assert (tmp_path / "errors").read_text() == "printed"


class TestRun:
    def test_rows_come_in_the_order_of_the_cells_though_some_fail_or_die(self, tmp_path):
        told = Cell("layers", "ISTA", 9, 0, "fake_cells:environment", {})
        slow = Cell("layers", "ISTA", 6, 0, "fake_cells:task", {"folder": None, "seconds": 0.5})
        cells = [told, *fake_cells.cells(6, fails=1, dies=2, forgets=3), slow]
        results = run(cells, tmp_path, jobs=2, progress=False)
        assert [cell for cell, _ in results.finished] == [told, cells[1], cells[5], cells[6], slow]
        assert [outcome.rows[0]["x"] for _, outcome in results.finished] == [9, 0, 4, 5, 6]
        (threads,) = results.finished[0][1].rows
        assert threads["nmse"] == 1, "each process has one thread"
        assert "xla_cpu_multi_thread_eigen=false" in threads["method"]
        failed, died, forgot = results.failures
        assert failed.cell.point == 1
        assert failed.reason == "RuntimeError: this cell fails"
        assert "these are my last words" in died.trace
        assert died.reason == f"The process that computed this cell ended with exit code -{signal.SIGKILL.value}."
        assert "has to return rows" in forgot.reason

    def test_finished_cells_are_not_repeated_and_damaged_ones_are(self, tmp_path, capsys):
        cells = fake_cells.cells(3, tmp_path)
        kept = tmp_path / "cells"
        kept.mkdir()
        for cell in cells[:2]:
            store(cell, kept, compute(cell))
        damaged = kept / f"{cells[1].key}.json"
        damaged.write_bytes(damaged.read_bytes()[:40])
        results = run(cells, kept)
        assert "3/3" in capsys.readouterr().err
        assert computed(tmp_path) == [0, 1, 1, 2]
        assert [outcome.rows[0]["x"] for _, outcome in results.finished] == [0, 1, 2]

    def test_nothing_to_compute_starts_no_process(self, tmp_path, monkeypatch):
        store(CELL, tmp_path, Outcome([ROW], 1.0, 1.0, []))
        monkeypatch.setattr(subprocess, "Popen", None)
        assert run([CELL], tmp_path, progress=False).finished[0][1].rows == [ROW]
        assert run([], tmp_path, progress=False) == ([], [])

    def test_a_process_that_cannot_start_is_told(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no_python"))
        (failure,) = run([CELL], tmp_path, progress=False).failures
        assert failure.reason.startswith("FileNotFoundError")

    def test_a_result_that_vanishes_is_told(self, tmp_path, monkeypatch):
        monkeypatch.setattr(runner._Lane, "_ask", lambda *_: None)
        (failure,) = run([CELL], tmp_path, progress=False).failures
        assert failure.reason == "The result of the cell was not kept as it should be."

    def test_a_cell_given_twice_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="more than once: layers-"):
            run([CELL, CELL], tmp_path, progress=False)

    def test_an_interrupt_ends_the_processes_and_the_threads(self, tmp_path, monkeypatch):
        class Interrupted:
            def put(self, item):
                pass

            def get(self):
                while not (tmp_path / "log").exists():
                    time.sleep(0.05)
                raise KeyboardInterrupt

        monkeypatch.setattr(runner, "SimpleQueue", Interrupted)
        before = threading.active_count()
        with pytest.raises(KeyboardInterrupt):
            run(fake_cells.cells(2, tmp_path, seconds=600), tmp_path / "cells", progress=False)
        assert threading.active_count() == before
        assert computed(tmp_path) == [1]


KILLED = """
import sys
from pathlib import Path
import fake_cells
from bayeslista.experiments.reproduction import reproduce
folder = Path(sys.argv[1])
reproduce([fake_cells.figure(8, folder, seconds=0.15)], "quick", folder / "out", jobs=2, progress=False)
"""


def test_killed_half_way_and_restarted_it_ends_alike_and_repeats_no_finished_cell(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], env={**os.environ, "PYTHONPATH": path})
    out = tmp_path / "out"
    deadline = time.monotonic() + 120
    while len(list(out.glob("cells/*.json"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    time.sleep(0.5)  # its workers end with it
    cells = fake_cells.cells(8, tmp_path, seconds=0.15)
    finished = [int(cell.point) for cell in cells if load(cell, out / "cells")]
    before = computed(tmp_path)
    assert 3 <= len(finished) < 8
    reproduce([fake_cells.figure(8, tmp_path, seconds=0.15)], "quick", out, progress=False)
    again = computed(tmp_path)
    for point in before:
        again.remove(point)
    assert again == [point for point in range(8) if point not in finished]
    lines = [f"layers,ISTA,{x},0,{x / 3:.6f}" for x in range(8)]
    assert (out / "layers.csv").read_text() == "\n".join(["figure,method,x,seed,nmse", *lines, ""])


def test_a_worker_ends_with_whoever_asked_even_amidst_a_cell(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-c", runner.WORKER, str(tmp_path)],
        stdin=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path},
    )
    (cell,) = fake_cells.cells(1, tmp_path, seconds=600)
    process.stdin.write(json.dumps(cell.describe()) + "\n")
    process.stdin.flush()
    deadline = time.monotonic() + 120
    while not (tmp_path / "log").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.stdin.close()
    assert process.wait(timeout=30) == 0
