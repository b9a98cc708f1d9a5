"""The command line: help and start."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import bayeslista
from bayeslista.cli import app

runner = CliRunner()


COMMANDS = ["fit", "predict", "evaluate", "calibrate", "inspect", "report", "regress"]


def test_help_appears_without_the_weight_of_jax():
    script = (
        "import sys; from bayeslista.cli import app; app(['fit', '--help'], standalone_mode=False); "
        "assert not {'jax', 'sklearn', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules)"
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
    shown = runner.invoke(app, ["fit", "--help"], env={"COLUMNS": "200"})
    for word in ("spike-slab-net", "bayes-lista", "accurate", "auto|yes|no", "epochs"):
        assert word in shown.output


@pytest.mark.parametrize("command", ["draw", "demo", "reproduce", "bench"])
def test_other_commands_are_refused(command):
    done = runner.invoke(app, [command])
    assert (done.exit_code, "No such command" in done.stderr) == (2, True)
