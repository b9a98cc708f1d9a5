"""The command line: help, start and `reproduce`."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import bayeslista
import fake_cells
from bayeslista.cli import app
from bayeslista.experiments import reproduction
from bayeslista.experiments.cells import Outcome, store
from bayeslista.experiments.reproduction import FIGURES, Reproduction
from bayeslista.experiments.runner import Failure

runner = CliRunner()


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """Arguments of a run whose cells are kept already."""
    monkeypatch.setitem(FIGURES, "layers", (fake_cells.figure(2),))
    (tmp_path / "cells").mkdir()
    for cell in fake_cells.cells(2):
        store(cell, tmp_path / "cells", Outcome([{"method": "ISTA", "x": cell.point, "nmse": 0.5}], 1.0, 1.0, []))
    return ["reproduce", "layers", "--out", str(tmp_path), "--jobs", "1"]


COMMANDS = ["fit", "predict", "evaluate", "calibrate", "inspect", "report", "demo", "reproduce"]


def test_help_appears_without_the_weight_of_jax():
    script = (
        "import sys; from bayeslista.cli import app; app(['fit', '--help'], standalone_mode=False); "
        "assert not {'jax', 'sklearn', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_the_package_tells_what_it_has_before_it_is_imported():
    script = (
        "import sys, bayeslista; assert 'jax' not in sys.modules; assert {'ISTA', 'load'} <= set(dir(bayeslista)); "
        "assert bayeslista.ISTA.__name__ == 'ISTA' and bayeslista.SpikeSlab.__name__ == 'SpikeSlab'"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bayeslista.nothing
    assert "SpikeSlabNet" in dir(bayeslista)


def test_the_version_is_that_of_the_package():
    shown = runner.invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"{bayeslista.__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example_on_a_line_of_its_own(command):
    shown = runner.invoke(app, [command, "--help"], env={"COLUMNS": "60"})
    assert shown.exit_code == 0
    assert any(line.strip().startswith(f"bayeslista {command}") for line in shown.output.splitlines())


def test_help_names_the_commands_and_the_choices():
    shown = runner.invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert all(f"\n  {command}  " in shown.output for command in COMMANDS)
    shown = runner.invoke(app, ["reproduce", "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for word in ("layers", "undersampling", "mnist", "active", "quick", "standard", "paper", "jobs", "out"):
        assert word in shown.output


@pytest.mark.parametrize(
    "wrong", [["draw"], ["reproduce", "depths"], ["reproduce", "--preset", "slow"], ["reproduce", "--jobs", "0"]]
)
def test_what_is_not_understood_is_refused(wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, wrong).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_points_that_a_figure_does_not_have_are_refused_before_anything_is_written(tmp_path):
    out = tmp_path / "out"
    done = runner.invoke(app, ["reproduce", "layers", "--point", "4", "--point", "11", "--out", str(out)])
    assert done.exit_code == 2
    assert "no point 11" in done.output
    assert not out.exists()


def test_a_table_is_printed_and_files_are_named(arguments, tmp_path):
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0
    assert "paper: BayesLISTA" in done.output
    assert str(tmp_path) in done.output
    assert (tmp_path / "layers.svg").exists()
    assert str(tmp_path / "report.html") in done.output.replace("\n", "")
    assert "plotly" not in done.output


def test_where_plotly_is_missing_this_is_said_first_and_pictures_are_still(arguments, tmp_path, without_plotly):
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0
    assert done.output.index('pip install "bayeslista[report]"') < done.output.index("paper: BayesLISTA")
    assert "<img" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_failed_cell_shows_in_the_exit_code_and_its_reason_on_the_screen(arguments, tmp_path, monkeypatch):
    failures = [Failure(cell, "Traceback\nRuntimeError: no luck") for cell in fake_cells.cells(2)]
    monkeypatch.setattr(reproduction, "reproduce", lambda *_, **__: Reproduction({"layers": []}, failures))
    done = runner.invoke(app, arguments)
    assert done.exit_code == 1
    assert "2 of layers, ISTA: RuntimeError: no luck" in done.output
    assert str(tmp_path / "failures.txt") in done.output.replace("\n", "")


def test_a_folder_that_cannot_be_written_to_is_named(arguments, tmp_path):
    (tmp_path / "file").touch()
    done = runner.invoke(app, [*arguments, "--out", str(tmp_path / "file")])
    assert done.exit_code == 1
    assert f"Cannot write to {tmp_path / 'file'}" in done.output


def test_an_interrupt_says_that_nothing_is_lost(arguments, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduction, "reproduce", interrupted)
    done = runner.invoke(app, arguments)
    assert done.exit_code == 130
    assert "goes on from there" in done.output


def test_all_means_every_figure(monkeypatch, tmp_path):
    asked = []

    def reproduce(figures, preset, out, jobs, points):
        asked.extend((figure.name, preset, out, jobs, points) for figure in figures)
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduction, "reproduce", reproduce)
    runner.invoke(app, ["reproduce", "--preset", "paper", "--jobs", "3", "--out", str(tmp_path), "--point", "10"])
    names = ["layers", "undersampling", "mnist_k100", "mnist_k250", "active"]
    assert asked == [(name, "paper", tmp_path, 3, [10]) for name in names]


def test_bench_measures_every_estimator():
    command = ["bench", "--components", "6", "--observed", "5", "--layers", "2", "--signals", "8", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["seconds"]
    assert [row["estimator"].split(",")[0] for row in rows] == [
        "ISTA", "FISTA", "LISTA", "BayesLISTA", "SpikeSlabNet", "SpikeSlabNet",
    ]  # fmt: skip
    assert all(row[part] > 0 for row in rows for part in ("first_fit", "fit", "predict"))
