"""From figures to files: computes their cells and writes a folder."""

from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from reproduction import active_learning, layers, mnist, undersampling
from reproduction.experiment import PaperFigure, Results, run
from reproduction.figures import write_figure
from reproduction.page import write_report

FIGURES: dict[str, tuple[PaperFigure, ...]] = {
    "layers": (layers.FIGURE,),
    "undersampling": (undersampling.FIGURE,),
    "mnist": (mnist.FIGURE_100, mnist.FIGURE_250),
    "active": (active_learning.FIGURE,),
}
"""The paper's figures by the name of their experiment."""


def reproduce(
    figures: Sequence[PaperFigure],
    preset: str,
    out: Path,
    jobs: int = 1,
    points: Collection[int] = (),
    progress: bool = True,
) -> Results:
    """Compute figures and write CSV, SVG and PNG of each, report.html, timings.csv and, if a cell failed, failures.txt.

    Finished cells are kept in the folder ``cells`` and not computed again. Remove it after a change of the code.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = run(figures, preset, out / "cells", jobs, points, progress)
    tables = {figure.name: results.table(figure.name) for figure in figures}
    for figure in figures:
        write_figure(figure, tables[figure.name], out)
    write_report(out / "report.html", figures, preset, tables, results)
    timings = [
        (each.figure, each.cell.method, " ".join(map(str, each.cell.points)), each.cell.seed, each.outcome.seconds,
         " / ".join(each.outcome.warnings))
        for each in results.finished
    ]  # fmt: skip
    columns = ["figure", "method", "points", "seed", "seconds", "warnings"]
    pd.DataFrame(timings, columns=columns).to_csv(out / "timings.csv", index=False)
    failures = out / "failures.txt"
    failures.unlink(missing_ok=True)
    if results.failures:
        parts = (f"{failure.figure}: {failure.cell}\n{failure.trace.rstrip()}\n" for failure in results.failures)
        failures.write_text("\n".join(parts), encoding="utf-8")
    return results
