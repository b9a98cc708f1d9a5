"""One page of all that a run found: charts over the published curves, tables, timings, failures and versions."""

import json
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pandas as pd

from bayeslista.reports.page import Block, Paragraph, Section, Table, Widget, write_page
from bayeslista.reports.page import Figure as Picture
from reproduction.experiment import Failure, Finished, PaperFigure, Preset, Results
from reproduction.figures import draw, draw_chart, mean_table

NO_PLOTLY = (
    "plotly is not installed, so the pictures in report.html are still. For interactive ones: "
    'pip install "bayeslista[report]", then the same command again; finished cells are not computed again.'
)
# Without showSendToCloud, plotly 7 offers to send the chart's data to its maker.
_DRAW = """
for (const chart of document.querySelectorAll(".widget .chart")) {
  const { data, layout } = JSON.parse(chart.closest(".widget").querySelector("script").textContent);
  Plotly.newPlot(chart, data, layout, { showSendToCloud: false, displaylogo: false, responsive: true });
}
"""
_PACKAGES = ("bayeslista", "jax", "numpy", "scipy", "scikit-learn")
_SIZES = {
    "n_train": "training pairs",
    "n_test": "test pairs",
    "n_pool": "pairs to choose from",
    "n_observed": "observations K",
    "n_components": "coefficients D",
    "n_layers": "layers L",
}


def can_draw_charts() -> bool:
    """Whether plotly is installed."""
    return find_spec("plotly") is not None


def write_report(
    path: Path, figures: Sequence[PaperFigure], preset: str, tables: Mapping[str, pd.DataFrame], results: Results
) -> None:
    """Write the page; the same numbers, timings and versions give the same bytes."""
    interactive = can_draw_charts()
    about = [
        Paragraph(
            f"Made by make reproduce with the preset {preset}. NMSE is the mean of the error's norm over the code's, "
            "norms without squares; lower is better."
        ),
        *([] if interactive else [Paragraph(NO_PLOTLY)]),
    ]
    sections = [
        Section("About", about),
        *(Section(f.title, _about_figure(f, f.presets[preset], tables[f.name], interactive)) for f in figures),
        *([Section("Failures and warnings", troubles)] if (troubles := _troubles(results)) else []),
        Section("Timings", [_timings(results.finished)]),
        Section("Versions", [_versions()]),
    ]
    write_page(path, "The paper's figures, computed anew", sections)


def _about_figure(figure: PaperFigure, preset: Preset, table: pd.DataFrame, interactive: bool) -> list[Block]:
    header, *rows = mean_table(figure, table)
    description = (
        f"Curves of NMSE by {figure.x_label}: {'; '.join(row[0] for row in rows)}. The table below has the numbers."
    )
    caption = "Mean over seeds and, where there are several, one standard deviation. Dashed: the published curves."
    clicks = " Click on a name to hide its curve or to show it again, twice to see it alone."
    settings = [f"{_SIZES.get(name, name.replace('_', ' '))} {size}" for name, size in preset.sizes.items()]
    settings.append(f"{figure.x_label} {', '.join(f'{x:g}' for x in preset.points)}")
    effort = [[method, f"{n}", f"{preset.epochs.get(method, '')}"] for method, n in preset.seeds.items()]
    blocks: list[Block] = [
        _chart(figure, table, description, caption + clicks)
        if interactive
        else Picture(draw(figure, table), description, caption),
        Table(header, rows, "Mean NMSE over seeds."),
    ]
    if figure.compare is not None:
        header, *rows = figure.compare(table)
        blocks.append(Table(header, rows, figure.comparison))
    return [
        *blocks,
        Paragraph(
            f"Settings: {'; '.join(settings)}. A method makes at most the epochs below; where none are given, those of "
            "its own defaults or all of the horizontal axis."
        ),
        Table(["method", "seeds", "epochs"], effort, "Seeds and epochs."),
    ]


def _chart(figure: PaperFigure, table: pd.DataFrame, description: str, caption: str) -> Widget:
    """An interactive chart; `description` is its text alternative."""
    from plotly.offline import get_plotlyjs

    place = f'<div id="chart-{figure.name}" class="chart" role="img" aria-label="{escape(description)}"></div>'
    markup = f"<figure>{place}<figcaption>{escape(caption)}</figcaption></figure>"
    # Maps, which no page has, would fetch their icons from a registry of packages.
    script = re.sub(r"https://[\w.]+/npm/", "", get_plotlyjs())
    return Widget(markup, json.loads(draw_chart(figure, table).to_json()), script + _DRAW)


def _timings(finished: Iterable[Finished]) -> Table:
    seconds: dict[tuple[str, str], list[float]] = {}
    for each in finished:
        seconds.setdefault((each.figure, each.cell.method), []).append(each.outcome.seconds)
    return Table(
        ["figure", "method", "cells", "total (s)", "median (s)"],
        [[*names, f"{len(each)}", f"{sum(each):.1f}", f"{median(each):.2f}"] for names, each in seconds.items()],
        "Wall time of each cell in a process of one thread, when it was computed. A cell is a method with one seed, at "
        "one point or at all of them.",
    )


def count_reasons(failures: Iterable[Failure]) -> Counter[tuple[str, str, str]]:
    """How many cells failed, by figure, method and reason."""
    return Counter((failure.figure, failure.cell.method, failure.reason) for failure in failures)


def _troubles(results: Results) -> list[Block]:
    warned = Counter(
        (each.figure, each.cell.method, message) for each in results.finished for message in each.outcome.warnings
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
    caption = "Of this page; cells kept from an earlier run were computed with what was installed then."
    return Table(["name", "version"], rows, caption)
