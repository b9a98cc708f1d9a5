"""``bayeslista reproduce`` makes the paper's figures."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayeslista.cli._running import FAILED, INTERRUPTED

if TYPE_CHECKING:
    from bayeslista.experiments.runner import Failure


class FigureName(StrEnum):
    """What can be made."""

    LAYERS = "layers"
    UNDERSAMPLING = "undersampling"
    MNIST = "mnist"
    ACTIVE = "active"
    ALL = "all"


class PresetChoice(StrEnum):
    """How much of it."""

    QUICK = "quick"
    STANDARD = "standard"
    PAPER = "paper"


def reproduce(
    figure: Annotated[FigureName, typer.Argument(help="Which figure of the paper.")] = FigureName.ALL,
    preset: Annotated[
        PresetChoice,
        typer.Option(help="quick: minutes; standard: about two hours on two cores; paper: the settings of the paper."),
    ] = PresetChoice.QUICK,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, each of one thread.")] = os.cpu_count() or 1,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("reproduction"),
    points: Annotated[
        list[int] | None, typer.Option("--point", help="A point of the figure's sweep, of which to compute no others.")
    ] = None,
) -> None:
    """Make the paper's figures.

    Tables, pictures over the published curves, timings, and a page of it all.

        bayeslista reproduce layers --preset paper --point 4 --point 10

    computes two depths of one figure.

    Finished parts are kept in the folder: after an interrupt, of whatever kind, the same command goes on from there.
    """
    from bayeslista.experiments import reproduction
    from bayeslista.experiments.figures import summary
    from bayeslista.experiments.page import STILL_PICTURES
    from bayeslista.report import can_draw_charts

    chosen = [
        each for name, group in reproduction.FIGURES.items() if figure in (FigureName.ALL, name) for each in group
    ]
    if not can_draw_charts():
        print(STILL_PICTURES, file=sys.stderr)
    try:
        for each in chosen:
            each.cells(preset.value, points or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--point") from error
    try:
        found = reproduction.reproduce(chosen, preset.value, out, jobs, points=points or ())
    except OSError as error:
        print(f"Cannot write to {out}: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        print("\nInterrupted. What is finished is kept; the same command goes on from there.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    for each in chosen:
        print(f"\n{summary(each, found.records[each.name])}")
    print(f"\nOpen {out / 'report.html'} for all of it. Tables (.csv) and figures (.svg, .png) are in {out}.")
    if found.failures:
        print(_failure_lines(found.failures, out), file=sys.stderr)
        raise typer.Exit(FAILED)


def _failure_lines(failures: list["Failure"], out: Path) -> str:
    """How many parts failed and why, each reason once."""
    from bayeslista.experiments.runner import count_reasons

    reasons = count_reasons(failures).items()
    lines = [f"  {n} of {figure}, {method}: {reason}" for (figure, method, reason), n in reasons]
    return "\n".join(["\nSome parts failed:", *lines, f"{out / 'failures.txt'} has the tracebacks."])
