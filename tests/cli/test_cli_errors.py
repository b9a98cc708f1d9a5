"""What goes wrong on the command line is told in one line, with an exit code, and leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from progress_lines import without_progress
from typer.testing import CliRunner

import bayeslista
from bayeslista import ISTA
from bayeslista.cli import app

KEPT = Path(__file__).parents[1] / "data"

runner = CliRunner()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in: good tables and models, and bad ones."""
    monkeypatch.chdir(tmp_path)
    for name, shape in {"y": (30, 8), "b": (30, 10), "few": (29, 10), "wide": (30, 9), "x": (8, 10)}.items():
        np.save(f"{name}.npy", np.random.default_rng(0).standard_normal(shape))
    np.save("flat.npy", np.zeros(30))
    np.save("huge.npy", np.full((30, 8), 1e300))
    np.savez("two.npz", y=np.zeros((30, 8)), b=np.zeros((30, 10)))
    Path("text.csv").write_text("a,b\n1,2\n3,four\n")
    Path("missing.csv").write_text("1,2\nnan,4\n")
    Path("empty.csv").touch()
    Path("photo.png").write_bytes(b"\x89PNG")
    Path("cut.npy").write_bytes(Path("y.npy").read_bytes()[:-100])
    Path("a_folder.npy").mkdir()
    shutil.copy(KEPT / "ista.safetensors", "m.safetensors")
    Path("cut.safetensors").write_bytes(Path("m.safetensors").read_bytes()[:-9])
    ISTA().save("unfitted.safetensors")
    return tmp_path


def run(words):
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    done = without_progress(runner.invoke(app, words.split()))
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before, "something was written"
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


FIT = "fit {} {} --model out.safetensors --estimator ista"
PREDICT = "predict {} --model {} --out {}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (FIT.format("none.npy", "b.npy"), "none.npy: No such file"),
        (FIT.format("a_folder.npy", "b.npy"), "a_folder.npy: Is a directory"),
        (FIT.format("photo.png", "b.npy"), "photo.png is not a table that can be read"),
        (FIT.format("cut.npy", "b.npy"), "cut.npy cannot be read: it is not a .npy file, or it is damaged"),
        (FIT.format("empty.csv", "b.npy"), "empty.csv is empty"),
        (FIT.format("text.csv", "b.npy"), "holds 'four' in row 2, column 2 ('b'), counted from 1"),
        (FIT.format("missing.csv", "b.npy"), "an empty cell or NaN in row 2, column 1, counted from 1"),
        (FIT.format("two.npz", "b.npy"), "There are: y, b."),
        (FIT.format("flat.npy", "b.npy"), "reshape it to one row for every signal"),
        (FIT.format("y.npy", "few.npy"), "y.npy has 30 rows and few.npy has 29"),
        (FIT.format("y.npy", "b.npy") + " --design-matrix b.npy", "design_matrix has shape (30, 10), expected"),
        (FIT.format("y.npy", "b.npy") + " --test-fraction 0.999", "leaves none of the 30 pairs to fit"),
        ("fit y.npy b.npy --model no/such/out.safetensors", "no/such: There is no such folder"),
        (
            "fit y.npy b.npy --estimator bayes-lista --model o --checkpoint no/such/c",
            "no/such: There is no such folder; make it first.",
        ),
        (PREDICT.format("y.npy", "m.safetensors", "no/such/o.npz"), "no/such: There is no such folder; make it first."),
        ("calibrate y.npy b.npy --model m.safetensors --out no/m", "no: There is no such folder; make it first."),
        ("report y.npy b.npy --model m.safetensors --out no/p.html", "no: There is no such folder; make it first."),
        ("fit y.npy b.npy --model a_folder.npy", "a_folder.npy: Is a folder"),
        (PREDICT.format("y.npy", "none.safetensors", "o.npz"), "none.safetensors: No such file"),
        (PREDICT.format("y.npy", "y.npy", "o.npz"), "y.npy is not a safetensors file"),
        (PREDICT.format("y.npy", "cut.safetensors", "o.npz"), "cut short"),
        (PREDICT.format("y.npy", "unfitted.safetensors", "o.npz"), "not fitted"),
        (PREDICT.format("wide.npy", "m.safetensors", "o.npz"), "wide.npy has 9 columns"),
        (PREDICT.format("nothing*.npy", "m.safetensors", "o.npz"), "nothing*.npy: No file has such a name"),
        (PREDICT.format("y.npy y.npy", "m.safetensors", "a_folder.npy"), "would be written to a_folder.npy/y.npz"),
        (FIT.format("y.npy", "b.npy") + " --layers 0", "n_layers"),
        (FIT.format("y.npy", "b.npy") + " --param shrinkage=wide", "shrinkage"),
        (FIT.format("huge.npy", "b.npy"), "Error: observations huge.npy (X), codes b.npy (y): "),
        (PREDICT.format("huge.npy", "m.safetensors", "o.npz"), "Error: observations huge.npy (X): "),
        ("evaluate y.npy few.npy --model m.safetensors", "few.npy has 29"),
        (
            "evaluate y.npy wide.npy --model m.safetensors",
            "wide.npy has 9 columns, and the model was fitted to 10 coefficients",
        ),
        (
            "evaluate wide.npy b.npy --model m.safetensors",
            "wide.npy has 9 columns, and the model was fitted to 8 observed values",
        ),
        ("inspect y.npy", "y.npy is not a safetensors file"),
        ("inspect .", "Is a directory"),
    ],
)
def test_work_that_fails_says_why_and_exits_with_one(folder, words, message):
    done = run(words)
    assert done.exit_code == 1
    assert message in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit y.npy b.npy", "Missing option '--model'"),
        ("fit", "Missing argument"),
        ("fit y.npy --model o.safetensors", "Only spike-slab-net can be fitted to observations alone"),
        ("fit y.npy --model o.safetensors --design-matrix x.npy --estimator lista", "Only spike-slab-net"),
        ("fit y.npy --model o.safetensors --design-matrix x.npy --test-fraction 0.5", "needs codes"),
        (FIT.format("y.npy", "b.npy") + " --estimator lasso", "choose one of spike-slab-net, bayes-lista"),
        (FIT.format("y.npy", "b.npy") + " --mode fast", "ISTA has no parameter 'mode'. It has: n_layers, shrinkage"),
        (FIT.format("y.npy", "b.npy") + " --param steps=3", "ISTA has no parameter 'steps'"),
        (FIT.format("y.npy", "b.npy") + " --param design_matrix=3", "has no parameter 'design_matrix'"),
        (FIT.format("y.npy", "b.npy") + " --param shrinkage", "expected name=value"),
        (FIT.format("y.npy", "b.npy") + " --layers 3 --param n_layers=3", "n_layers is given twice"),
        (PREDICT.format("y.npy", "m.safetensors", "o.txt"), "has to end with .npz, .csv, .parquet"),
        (PREDICT.format("y.npy", "m.safetensors", "o"), "has to end with .npz, .csv, .parquet"),
        (PREDICT.format("y.npy x.npy", "m.safetensors", "o.npz"), "there are 2 tables; name a folder, or put {name}"),
        (PREDICT.format("y.npy", "m.safetensors", "o.npz") + " --level 1.5", "--level"),
        (PREDICT.format("y.npy", "m.safetensors", "o.npz") + " --level nan", "a probability"),
        ("evaluate y.npy b.npy --model m.safetensors --level 90", "'--level': 90 is not a probability such as 0.9"),
        (PREDICT.format("y.npy", "m.safetensors", "o.npz") + " --intervals wide", "is not one of 'model', 'conformal'"),
        ("calibrate y.npy b.npy --model m.safetensors --method spline", "is not one of 'isotonic', 'logistic'"),
        (FIT.format("y.npy", "b.npy") + " --checkpoint c.safetensors", "is fitted too fast to need one"),
        ("evaluate y.npy b.npy --model m.safetensors --seed -1", "--seed"),
    ],
)
def test_words_that_are_not_understood_exit_with_two(folder, words, message):
    done = run(words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_a_folder_that_is_read_only_is_named_before_any_work(folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    done = run("fit y.npy b.npy --model out.safetensors")
    assert (done.exit_code, "Nothing can be written" in done.stderr) == (1, True)


def test_a_disk_that_fills_up_is_told_with_the_name_that_was_asked_for(folder, monkeypatch):
    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    done = run(FIT.format("y.npy", "b.npy"))
    assert (done.exit_code, done.stderr) == (1, "Error: out.safetensors cannot be written: No space left on device.\n")


def test_a_missing_package_is_named_with_the_way_to_get_it(folder, monkeypatch):
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    done = run(PREDICT.format("y.npy", "m.safetensors", "o.parquet"))
    assert (done.exit_code, 'pip install "bayeslista[tables]"' in done.stderr) == (1, True)


def test_a_model_that_was_forged_is_blamed(folder, monkeypatch):
    model = bayeslista.load("m.safetensors")
    monkeypatch.setattr(type(model), "_predict_codes", lambda self, Y: self.weights_)
    done = run("evaluate y.npy b.npy --model m.safetensors")
    assert done.exit_code == 1
    assert "the model in m.safetensors does not work (AttributeError" in done.stderr


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError])
def test_too_little_memory_is_told_as_such(folder, monkeypatch, kind):
    message = "RESOURCE_EXHAUSTED: Unable to allocate 3 TiB"

    def fail(*_):
        raise kind(message)

    monkeypatch.setattr(ISTA, "fit", fail)
    done = run(FIT.format("y.npy", "b.npy"))
    assert (done.exit_code, done.stderr) == (1, f"Error: there is not enough memory. {message}\n")


def test_a_bug_is_not_hidden(folder, monkeypatch):
    def fail(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(ISTA, "fit", fail)
    done = runner.invoke(app, FIT.format("y.npy", "b.npy").split())
    assert repr(done.exception) == "RuntimeError('a bug')"


def test_an_interrupt_exits_with_130_and_leaves_nothing(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ISTA, "fit", interrupted)
    done = run(FIT.format("y.npy", "b.npy"))
    assert (done.exit_code, done.stderr) == (130, "\nInterrupted.\n")


def test_an_interrupted_process_exits_with_130(folder):
    script = """
import time
from bayeslista.cli import app, inspect
inspect.load_model = lambda _: (print("on", flush=True), time.sleep(60))
app()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, "inspect", "m.safetensors"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == "\nInterrupted.\n"
