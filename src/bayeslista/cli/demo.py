"""``bayeslista demo``: the demonstration."""

from pathlib import Path
from typing import Annotated

import typer

from bayeslista.cli._options import Seed
from bayeslista.cli._running import reported


@reported
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("demo_output"),
    seed: Seed = 0,
) -> None:
    """Fit all estimators on the paper's problem.

        bayeslista demo --out demo_output

    It takes about a minute. A table appears on the screen, figures and a page in the folder.
    """
    from bayeslista.demo import main

    raise typer.Exit(main(["--out", str(out), "--seed", str(seed)]))
