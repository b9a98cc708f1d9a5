"""Faults: killed at any moment, out of disk, interrupted, written twice at once. Nothing finished is lost, no corrupt
file is accepted, and what is resumed ends in the same bits.

``BAYESLISTA_FAULT_ROUNDS=100 pytest tests/test_faults.py`` kills a hundred times in place of a few.
"""

import json
import os
import resource
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import fault_worker
import numpy as np
import pytest
from fault_worker import MODELS, N_STREAMED, PAIRS
from mutations import mutated
from sklearn.base import clone
from typer.testing import CliRunner

import bayeslista
from bayeslista import ISTA, BayesLISTA
from bayeslista.cli import app
from bayeslista.estimators.saving import RECORDS
from bayeslista.io import checkpoints
from bayeslista.io.records import read_record
from bayeslista.io.tables import read_table, write_table
from bayeslista.out_of_core import fit_stream

KILLED = ("variational", "filtering", "stream", "save")
ROUNDS = -(-int(os.environ.get("BAYESLISTA_FAULT_ROUNDS", "12")) // len(KILLED))  # for each kind of work


class Server:
    """A warm process whose children do the work and are killed."""

    def __init__(self):
        path = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), *filter(None, sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", fault_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path},
        )

    def do(self, folder, *tasks, signal="SIGKILL", after=None):
        """Exit codes of tasks, and how long they took; a signal is sent after some seconds or bytes if asked for."""
        request = {"folder": str(folder), "tasks": tasks, "signal": signal, "signal_after": after}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def stop(self):
        self._process.stdin.close()
        assert self._process.wait() == 0
        self._process.stdout.close()


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def uninterrupted(server, tmp_path_factory):
    """The folder that each task leaves if nothing happens to it, and how long it takes when all is compiled."""
    done = {}
    for task in KILLED:
        for _ in range(2):
            folder = tmp_path_factory.mktemp("whole")
            codes, seconds = server.do(folder, task)
            assert codes == [0], (folder / "said").read_text()
        done[task] = folder, seconds
    return done


def whole(path):
    """What a file holds, which has to be whole; None if there is none."""
    return read_record(path, RECORDS) if path.exists() else None


def progress(task, folder):
    """How much work is kept in a folder."""
    found = whole(folder / "file")
    if found is None or task == "save":
        return 0
    if task == "stream":
        return found["stream"]["n_pairs"]
    return len(found["checkpoint"].rows) if "state" not in found else 10**6


def result(task, folder):
    """What is to be the same however often the work was stopped."""
    return (folder / "file").read_bytes()


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[] if task == "save" else pytest.mark.slow) for task in KILLED]
)
def test_killed_at_any_moment_it_loses_nothing_finished_and_ends_in_the_same_bits(
    server, uninterrupted, tmp_path, task
):
    expected, seconds = uninterrupted[task]
    random = np.random.default_rng(KILLED.index(task))
    n_killed, begun = 0, 0
    while n_killed < ROUNDS:
        begun += 1
        folder = tmp_path / str(begun)
        folder.mkdir()
        for _ in range(3):  # at most so many kills before it may end
            before = progress(task, folder)
            codes, _ = server.do(folder, task, after=float(random.uniform(0, seconds)))
            assert codes in ([0], [-9]), (folder / "said").read_text()
            n_killed += codes == [-9]
            assert progress(task, folder) >= before
            if codes == [0] or n_killed >= ROUNDS:
                break
        codes, _ = server.do(folder, task)
        assert codes == [0], (folder / "said").read_text()
        assert result(task, folder) == result(task, expected)
        left = {path.name for path in folder.iterdir()} - {"file", "said"}
        assert all(name.startswith(".unfinished-") for name in left)


def test_two_processes_that_write_one_file_leave_one_of_the_two(server, tmp_path):
    expected = set()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        server.do(tmp_path / name, f"save {name}")
        expected.add((tmp_path / name / "file").read_bytes())
    assert len(expected) == 2
    assert server.do(tmp_path, "save one", "save other")[0] == [0, 0]
    assert (tmp_path / "file").read_bytes() in expected
    for after in (0.05, 0.1):
        server.do(tmp_path, "save one", "save other", after=after)
        assert (tmp_path / "file").read_bytes() in expected


def test_two_fits_with_one_checkpoint_both_end_as_one_alone(server, uninterrupted, tmp_path):
    codes, _ = server.do(tmp_path, "filtering", "filtering")
    assert codes == [0, 0], (tmp_path / "said").read_text()
    assert result("filtering", tmp_path) == result("filtering", uninterrupted["filtering"][0])


@pytest.mark.slow
def test_an_interrupted_command_says_so_and_goes_on_when_it_is_given_again(server, tmp_path):
    begun, plain = tmp_path / "begun", tmp_path / "plain"
    begun.mkdir()
    plain.mkdir()
    codes, _ = server.do(begun, "command", signal="SIGINT", after=5000)
    assert codes == [130]
    assert (begun / "said").read_text().startswith("\nInterrupted; the same command resumes from ")
    assert not (begun / "model").exists()
    kept = progress("command", begun)
    assert 1 <= kept < 300
    for folder in (begun, plain):
        codes, _ = server.do(folder, "command")
        assert codes == [0], (folder / "said").read_text()
    assert (begun / "model").read_bytes() == (plain / "model").read_bytes()


@contextmanager
def full_disk(n_bytes=1000):
    """No file can grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(params=["a limit", "a small disk"])
def full(request, tmp_path):
    """A folder with room for a little, and how to fill it up."""
    if request.param == "a limit":
        yield tmp_path, full_disk
        return
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    try:
        subprocess.run(mounted, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root can make a small disk")

    @contextmanager
    def filled():
        with (folder / "filler").open("wb") as filler, suppress(OSError):
            while True:
                os.write(filler.fileno(), b"0" * 100)
        try:
            yield
        finally:
            (folder / "filler").unlink()

    yield folder, filled
    subprocess.run(["umount", str(folder)], check=True)


FULL = r"No space left|File too large"


class TestFullDisk:
    def test_a_model_that_does_not_fit_leaves_the_one_before(self, full):
        folder, fill = full
        small, large = (ISTA(2).fit(PAIRS[0], np.tile(PAIRS[1], (1, n))) for n in (1, 20))
        small.save(folder / "model")
        before = (folder / "model").read_bytes()
        with fill(), pytest.raises(OSError, match=rf"({FULL}).*{folder / 'model'}"):
            large.save(folder / "model")
        assert (folder / "model").read_bytes() == before
        assert os.listdir(folder) == ["model"]

    def test_a_fit_goes_on_and_the_checkpoint_before_is_whole(self, full, monkeypatch):
        monkeypatch.setattr(checkpoints, "_SECONDS", 0.0)
        folder, fill = full
        model = MODELS["filtering"]
        plain = clone(model).fit(*PAIRS)
        remember = checkpoints.Checkpoint.append
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoints.Checkpoint, "append", lambda self, *told: remember(self, *told) or 1 / 0)
            with pytest.raises(ZeroDivisionError):
                clone(model).fit(*PAIRS, checkpoint=folder / "file")
        with fill(), pytest.warns(UserWarning, match="cannot be written, and the fit goes on"):
            resumed = clone(model).fit(*PAIRS, checkpoint=folder / "file")
        assert progress("filtering", folder) == 1
        again = clone(model).fit(*PAIRS, checkpoint=folder / "file")
        for fitted in (resumed, again):
            assert fitted.predict(PAIRS[0]).tobytes() == plain.predict(PAIRS[0]).tobytes()

    def test_a_stream_stops_and_goes_on_later(self, full):
        folder, fill = full
        options = {"batch_size": 4, "checkpoint": folder / "file", "every": 1}
        stream = [tuple(side[i : i + 4] for side in PAIRS) for i in range(0, N_STREAMED, 4)]

        def breaking():
            yield from stream[:5]
            with fill():
                yield from stream[5:]

        with pytest.raises(OSError, match=FULL):
            fit_stream(BayesLISTA(2, random_state=0), breaking(), **options)
        assert progress("stream", folder) == 20
        again = fit_stream(BayesLISTA(2, random_state=0), stream, **options)
        plain = fit_stream(BayesLISTA(2, random_state=0), stream, batch_size=4)
        assert again.predict(PAIRS[0]).tobytes() == plain.predict(PAIRS[0]).tobytes()

    def test_a_table_is_there_whole_or_not_at_all(self, full):
        folder, fill = full

        def write_much(path):
            write_table(path, ({"x": np.random.default_rng(0).standard_normal((50, 8))} for _ in range(40)))

        for kind in ("npz", "csv", "parquet"):
            with fill(), pytest.raises(OSError, match=FULL):
                write_much(folder / f"table.{kind}")
        assert os.listdir(folder) == []


class TestFoldersThatCannotBeWrittenTo:
    @pytest.fixture
    def place(self, tmp_path):
        (tmp_path / "file").write_text("no folder")
        np.savez(tmp_path / "pairs.npz", X=PAIRS[0], y=PAIRS[1])
        return tmp_path / "file" / "out"

    def test_what_writes_tells_before_it_works(self, place, monkeypatch):
        monkeypatch.setattr(checkpoints.Checkpoint, "append", None)
        for write in (
            lambda: ISTA().save(place),
            lambda: clone(MODELS["filtering"]).fit(*PAIRS, checkpoint=place),
            lambda: fit_stream(BayesLISTA(2), PAIRS, checkpoint=place),
        ):
            with pytest.raises(NotADirectoryError, match="out"):
                write()

    @pytest.mark.parametrize("option", ["--model", "--checkpoint"])
    def test_the_command_line_tells_in_one_line(self, place, option):
        pairs = [f"{place.parents[1] / 'pairs.npz'}:{name}" for name in "Xy"]
        files = {"--model": str(place.parents[1] / "model"), "--checkpoint": str(place.parents[1] / "kept")}
        files[option] = str(place)
        done = CliRunner().invoke(app, ["fit", *pairs, "--estimator", "bayes-lista", *sum(files.items(), ())])
        assert done.exit_code == 1
        assert len(done.stderr.splitlines()) == 1
        assert str(place.parent) in done.stderr
        assert sorted(path.name for path in place.parents[1].iterdir()) == ["file", "pairs.npz"]


def test_a_command_that_is_given_again_returns_what_it_has_found(tmp_path):
    np.savez(tmp_path / "pairs.npz", X=PAIRS[0], y=PAIRS[1])
    pairs = [f"{tmp_path / 'pairs.npz'}:{name}" for name in "Xy"]
    files = ["--model", str(tmp_path / "model"), "--checkpoint", str(tmp_path / "kept")]
    command = ["fit", *pairs, "--estimator", "bayes-lista", "--layers", "2", "--max-iter", "2", *files]
    assert CliRunner().invoke(app, command).exit_code == 0
    written = {name: (tmp_path / name).read_bytes() for name in ("model", "kept")}
    (tmp_path / "model").unlink()
    assert CliRunner().invoke(app, command).exit_code == 0
    assert {name: (tmp_path / name).read_bytes() for name in written} == written


def test_a_checkpoint_of_what_learns_nothing_is_refused(tmp_path):
    np.savez(tmp_path / "pairs.npz", X=PAIRS[0], y=PAIRS[1])
    pairs = [f"{tmp_path / 'pairs.npz'}:{name}" for name in "Xy"]
    files = ["--model", str(tmp_path / "model"), "--checkpoint", str(tmp_path / "kept")]
    done = CliRunner().invoke(app, ["fit", *pairs, "--estimator", "ista", *files])
    assert done.exit_code == 2
    assert "fitted too fast to need one" in done.stderr


class TestDamagedFiles:
    def test_a_damaged_checkpoint_is_refused_by_its_name_or_is_what_it_was(self, server, tmp_path):
        server.do(tmp_path, "filtering")
        path = tmp_path / "file"
        content, expected = path.read_bytes(), bayeslista.load(path).encoder_.tobytes()

        def found(seed):
            path.write_bytes(mutated(content, np.random.default_rng(seed)))
            try:
                return clone(MODELS["filtering"]).fit(*PAIRS, checkpoint=path).encoder_.tobytes() == expected
            except ValueError as error:
                return "refused" if str(path) in str(error) else error

        outcomes = [found(seed) for seed in range(60)]
        assert set(outcomes) <= {"refused", True}
        assert outcomes.count("refused") > 30


def test_a_table_that_is_cut_while_it_is_copied_is_refused(tmp_path):
    write_table(tmp_path / "t.npz", [{"x": PAIRS[0]}])
    content = (tmp_path / "t.npz").read_bytes()
    for share in (0.0, 0.5, 0.99):
        (tmp_path / "t.npz").write_bytes(content[: int(share * len(content))])
        with pytest.raises(ValueError, match=r"t\.npz"):
            read_table(tmp_path / "t.npz")
