"""The command line: one module for each command, and shared parts.

Modules here import nothing heavy at their top, so that help appears at once.
"""

from inspect import cleandoc
from typing import Annotated

import typer

from bayeslista import __version__
from bayeslista.cli import calibrate, evaluate, fit, inspect, predict, regress, report
from bayeslista.cli._jax_cache import keep_compiled

__all__ = ["app", "main"]

_COMMANDS = (
    *(fit.fit, predict.predict, evaluate.evaluate, calibrate.calibrate, inspect.inspect, report.report),
    regress.regress,
)


def _help(text: str | None) -> str:
    """Help from a docstring: paragraphs are wrapped to the width of the screen, indented ones stay as they are."""
    paragraphs = cleandoc(text or "").split("\n\n")
    return "\n\n".join(f"\b\n{each}" if each.startswith(" ") else each for each in paragraphs)


def _show_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


def _commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Sparse coding with calibrated uncertainty.

    Fit a model to pairs of observations and codes, and predict the codes of new observations:

        bayeslista fit observations.npy codes.npy --model m.safetensors
        bayeslista predict new.npy --model m.safetensors --out out.parquet

    Tables are .npy, .npz (file.npz:name for one of several arrays), .csv or .parquet files with one row
    for every signal.
    """


app = typer.Typer(
    name="bayeslista",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.callback(help=_help(_commands.__doc__))(_commands)
for _command in _COMMANDS:
    app.command(_command.__name__, help=_help(_command.__doc__))(_command)


def main() -> None:
    """Run a command, as the installed program does."""
    keep_compiled()
    app()
