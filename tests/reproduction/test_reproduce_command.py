"""The command ``python -m reproduction``."""

import os
import subprocess
import sys
from pathlib import Path

import fake_cells
import pytest

from reproduction import reproduce as module
from reproduction.__main__ import main


@pytest.fixture
def tiny(monkeypatch):
    """The figure of layers costs nothing; its last cell fails where asked for."""

    def replace(**settings):
        monkeypatch.setitem(module.FIGURES, "layers", (fake_cells.figure(2, **settings),))

    replace()
    return replace


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["depths"], "no figure depths: choose from layers"),
        (["--preset", "slow"], "invalid choice: 'slow'"),
        (["--jobs", "0"], "at least 1"),
        (["layers", "--point", "4", "--point", "11"], "no point 11"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_written(wrong, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*wrong, "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_table_is_printed_and_files_are_written(tiny, tmp_path, capsys):
    assert main(["layers", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "paper: BayesLISTA" in printed.out
    assert str(tmp_path / "report.html") in printed.out
    assert "plotly" not in printed.out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cells", "layers.csv", "layers.png", "layers.svg", "report.html", "timings.csv",
    ]  # fmt: skip


def test_where_plotly_is_missing_there_is_a_hint_and_pictures_are_still(tiny, tmp_path, capsys, without_plotly):
    assert main(["layers", "--out", str(tmp_path)]) == 0
    assert 'pip install "bayeslista[report]"' in capsys.readouterr().err
    assert "<img" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_failed_cell_shows_in_the_exit_code_until_it_succeeds(tiny, tmp_path, capsys):
    tiny(fails=1)
    assert main(["layers", "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "1 of layers, ISTA: RuntimeError: this cell fails" in error
    assert str(tmp_path / "failures.txt") in error
    assert "in compute" in (tmp_path / "failures.txt").read_text()
    tiny()
    assert main(["layers", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "failures.txt").exists()


def test_a_folder_that_cannot_be_written_to_is_named(tiny, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["layers", "--out", str(tmp_path / "file")]) == 1
    assert f"Cannot write to {tmp_path / 'file'}" in capsys.readouterr().err


def test_by_default_all_figures_are_made_and_an_interrupt_is_one_line(monkeypatch, tmp_path, capsys):
    asked = []

    def reproduce(figures, *settings):
        asked.extend((figure.name, *settings) for figure in figures)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "reproduce", reproduce)
    assert main(["--preset", "paper", "--jobs", "3", "--out", str(tmp_path)]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    names = ["layers", "undersampling", "mnist_k100", "mnist_k250", "active"]
    assert asked == [(name, "paper", tmp_path, 3, []) for name in names]


def test_the_module_runs_as_a_program():
    root = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "reproduction", "--help"]
    done = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0
    for word in ("layers, undersampling, mnist, active", "{quick,standard,paper}", "--jobs", "--out", "--point"):
        assert word in done.stdout
