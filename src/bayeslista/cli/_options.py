"""Arguments and options that commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Choice = StrEnum("Choice", ["auto", "yes", "no"])


def _checked_level(level: float) -> float:
    if not 0.0 <= level <= 1.0:
        raise typer.BadParameter(f"{level:g} is not a probability such as 0.9.")
    return level


Observations = Annotated[
    str,
    typer.Argument(metavar="OBSERVATIONS", help="Table of observations, one row for every signal.", show_default=False),
]
Codes = Annotated[str, typer.Argument(metavar="CODES", help="Table of their codes, row by row.", show_default=False)]
Model = Annotated[Path, typer.Option("--model", help="A model that `bayeslista fit` wrote.", show_default=False)]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="The same seed gives the same numbers.")]
Level = Annotated[
    float,
    typer.Option("--level", callback=_checked_level, help="Probability of the intervals, between 0 and 1."),
]
Header = Annotated[Choice, typer.Option("--header", help="Whether .csv tables begin with a line of names.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on the standard output.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
