"""One page of all that a run found: charts over the published curves, tables, timings, trouble and versions."""

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from statistics import median

from bayeslista.experiments.description import Figure, Preset
from bayeslista.experiments.figures import Record, draw, draw_chart, mean_table
from bayeslista.experiments.runner import Results, count_reasons
from bayeslista.report import Block, Chart, Paragraph, Section, Table, can_draw_charts, write_page
from bayeslista.report import Figure as Picture

__all__ = ["STILL_PICTURES", "write_report"]

STILL_PICTURES = (
    "plotly is not installed, so the pictures in report.html are still. For interactive ones: "
    'pip install "bayeslista[report]", then the same command again; what is finished is not computed again.'
)
"""What to say where plotly is missing."""

_PACKAGES = ("bayeslista", "jax", "numpy", "scipy", "scikit-learn")
_SIZES = {
    "n_train": "training pairs",
    "n_test": "test pairs",
    "n_pool": "pairs to choose from",
    "n_observed": "observations K",
    "n_components": "coefficients D",
    "n_layers": "layers L",
    "passes_per_addition": "passes after each addition",
}


def write_report(
    path: str | os.PathLike[str],
    figures: Sequence[Figure],
    preset: str,
    records: Mapping[str, Sequence[Record]],
    results: Results,
) -> None:
    """Write a page that needs no network; the same numbers, timings and versions give the same bytes.

    Its charts are interactive where plotly is installed, else pictures.

    Parameters
    ----------
    path : path-like
        The file, in a folder that exists; replaced if it is there.
    figures : sequence of Figure
        What was computed.
    preset : {"quick", "standard", "paper"}
        How much of it.
    records : mapping of str to sequence of Record
        All numbers by name of the figure.
    results : Results
        Where they come from: how long the cells took, and what went wrong.

    Raises
    ------
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.experiments.figures import Record
    >>> from bayeslista.experiments.layers import FIGURE
    >>> from bayeslista.experiments.page import write_report
    >>> from bayeslista.experiments.runner import Results
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = Path(folder) / "report.html"
    ...     write_report(page, [FIGURE], "quick", {"layers": [Record("layers", "ISTA", 4, 0, 0.785)]}, Results([], []))
    ...     "<td>0.785</td>" in page.read_text(encoding="utf-8")
    True
    """
    interactive = can_draw_charts()
    about = [
        Paragraph(
            f"Made by bayeslista reproduce with the preset {preset}. NMSE is the mean of the error's norm over the "
            "code's, norms without squares; lower is better."
        ),
        *([] if interactive else [Paragraph(STILL_PICTURES)]),
    ]
    parts = [
        Section(figure.title, _about_figure(figure, figure.presets[preset], records[figure.name], interactive))
        for figure in figures
    ]
    trouble = _trouble(results)
    if trouble:
        parts.append(Section("Trouble", trouble))
    parts += [Section("Timings", [_timings(results)]), Section("Versions", [_versions()])]
    write_page(path, "The paper's figures, computed anew", [Section("About", about), *parts])


def _about_figure(figure: Figure, preset: Preset, records: Sequence[Record], interactive: bool) -> list[Block]:
    header, *rows = mean_table(figure, records)
    description = (
        f"Curves of NMSE by {figure.x_label}: {'; '.join(row[0] for row in rows)}. The table below has the numbers."
    )
    caption = "Mean over seeds and, where there are several, one standard deviation. Dashed: the published curves."
    clicks = " Click on a name to hide its curve or to show it again, twice to see it alone."
    drawn = (
        Chart(draw_chart(figure, records), description, caption + clicks)
        if interactive
        else Picture(draw(figure, records), description, caption)
    )
    settings = [f"{_SIZES.get(name, name.replace('_', ' '))} {size}" for name, size in preset.sizes.items()]
    settings.append(f"{figure.x_label} {', '.join(f'{x:g}' for x in preset.points)}")
    effort = [[method, f"{n}", f"{preset.passes.get(method, '')}"] for method, n in preset.seeds.items()]
    return [
        drawn,
        Table(header, rows, "Mean NMSE over seeds."),
        *_comparison(figure, records),
        Paragraph(
            f"Settings: {'; '.join(settings)}. Passes over the training pairs are at most those below; where none are "
            "given, a method's own defaults hold, or all passes of the horizontal axis."
        ),
        Table(["method", "seeds", "passes"], effort, "Seeds and passes."),
    ]


def _comparison(figure: Figure, records: Sequence[Record]) -> list[Table]:
    if figure.compare is None:
        return []
    header, *rows = figure.compare(records)
    return [Table(header, rows, figure.comparison)]


def _timings(results: Results) -> Table:
    seconds: dict[tuple[str, str], list[float]] = {}
    for cell, outcome in results.finished:
        seconds.setdefault((cell.figure, cell.method), []).append(outcome.seconds)
    return Table(
        ["figure", "method", "cells", "total (s)", "median (s)"],
        [[*names, f"{len(each)}", f"{sum(each):.1f}", f"{median(each):.2f}"] for names, each in seconds.items()],
        "Seconds by the clock, each cell in a process of one thread, when it was computed. A cell is a method with one "
        "seed, at one point or at all of them.",
    )


def _trouble(results: Results) -> list[Table]:
    """What failed and what was warned of, where anything was."""
    warned = Counter(
        (cell.figure, cell.method, message) for cell, outcome in results.finished for message in outcome.warnings
    )
    return [
        Table(
            [heading, "figure", "method", "cells"],
            [[text, figure, method, f"{n}"] for (figure, method, text), n in counted.items()],
        )
        for heading, counted in (("failure", count_reasons(results.failures)), ("warning", warned))
        if counted
    ]


def _versions() -> Table:
    rows = [[name, version(name)] for name in _PACKAGES]
    rows += [["Python", platform.python_version()], ["platform", f"{platform.system()} {platform.machine()}"]]
    caption = "What wrote this page; parts kept from an earlier run were computed with what was installed then."
    return Table(["name", "version"], rows, caption)
