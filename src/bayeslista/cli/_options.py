"""Arguments and options that commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

LARGEST_SEED = 2**32 - 1


class Choice(StrEnum):
    """Whether the first line of a .csv file is a header."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


def _checked_level(level: float) -> float:
    if not 0.0 <= level <= 1.0:
        raise typer.BadParameter(f"{level:g} is to be a probability such as 0.9, not a percentage.")
    return level


Observations = Annotated[
    str, typer.Argument(metavar="OBSERVATIONS", help="Table of observations, one row a signal.", show_default=False)
]
Codes = Annotated[str, typer.Argument(metavar="CODES", help="Table of their codes, row by row.", show_default=False)]
Model = Annotated[Path, typer.Option("--model", help="A model that `bayeslista fit` wrote.", show_default=False)]
Seed = Annotated[int, typer.Option("--seed", min=0, max=LARGEST_SEED, help="The same seed gives the same numbers.")]
Level = Annotated[
    float,
    typer.Option("--level", callback=_checked_level, help="Probability that intervals are to hold, between 0 and 1."),
]
Header = Annotated[Choice, typer.Option("--header", help="Whether .csv tables begin with a line of names.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
