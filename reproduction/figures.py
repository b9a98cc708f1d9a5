"""The files of a figure: a table of all errors, and a picture over the published curves."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from bayeslista.reports.page import svg_bytes
from reproduction.experiment import PaperFigure

if TYPE_CHECKING:
    import matplotlib.figure
    import plotly.graph_objects

_COLOURS = {
    "ISTA": "#94a3b8",
    "FISTA": "#0f766e",
    "FISTA, published": "#5eead4",
    "ridge regression": "#a16207",
    "Lasso, converged": "#65a30d",
    "untrained start": "#7c3aed",
    "LISTA": "#c2410c",
    "LISTA, published": "#fb923c",
    "BayesLISTA": "#1d4ed8",
    "BayesLISTA, published": "#60a5fa",
    "SpikeSlabNet": "#db2777",
    "active (BayesLISTA)": "#1d4ed8",
    "random (BayesLISTA)": "#c2410c",
    "variance reduction (BayesLISTA)": "#16a34a",
    "active (BayesLISTA, published)": "#60a5fa",
    "random (BayesLISTA, published)": "#fb923c",
    "paper: ISTA": "#94a3b8",
    "paper: FISTA": "#5eead4",
    "paper: LISTA": "#fb923c",
    "paper: BayesLISTA": "#60a5fa",
    "paper: active": "#60a5fa",
    "paper: random": "#fb923c",
}
_OTHER_COLOUR = "#1e293b"
_LABEL_RATIO = 1.5  # of neighbouring labels on a logarithmic axis, at least
_HIGHEST = 1.25  # of the axis; a curve that leaves it is in the table
_ERROR_LABEL = "NMSE of the test codes"


class Curve(NamedTuple):
    """Mean errors of a method by x; the standard deviation over seeds where there are several."""

    x: list[float]
    nmse: list[float]
    std: list[float] | None = None
    n_seeds: int | None = None  # None for a published curve

    @property
    def dashed(self) -> bool:
        """Whether the curve is a published one."""
        return self.n_seeds is None


@cache
def published_curves() -> dict[str, dict[str, Curve]]:
    """The curves of the paper by figure and method, read from its graphics."""
    read = json.loads(Path(__file__).with_name("published_curves.json").read_text(encoding="utf-8"))
    return {
        figure: {method: Curve(curve["x"], curve["nmse"]) for method, curve in curves.items()}
        for figure, curves in read.items()
    }


def curves(figure: PaperFigure, table: pd.DataFrame) -> dict[str, Curve]:
    """Our curves by method, then the published ones."""
    ours = {}
    for method, rows in table.groupby("method", sort=False):
        errors = rows.groupby("x")["nmse"]
        n_seeds = int(errors.count().max())
        std = errors.std().fillna(0.0).tolist() if n_seeds > 1 else None
        ours[str(method)] = Curve(sorted(errors.groups), errors.mean().tolist(), std, n_seeds)
    return ours | {f"paper: {method}": curve for method, curve in published_curves()[figure.name].items()}


def draw(figure: PaperFigure, table: pd.DataFrame) -> "matplotlib.figure.Figure":
    """Mean and standard deviation by method, over the published curves, which are dashed."""
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    canvas = Canvas(figsize=(9.0, 5.4), layout="constrained")
    axes = canvas.subplots()
    lines = curves(figure, table)
    drawn = [
        axes.errorbar(
            curve.x,
            curve.nmse,
            yerr=curve.std,
            color=_COLOURS.get(name, _OTHER_COLOUR),
            linestyle="--" if curve.dashed else "-",
            marker=None if curve.dashed else "o",
            markersize=3.5,
            capsize=2.0,
            label=name,
        )
        for name, curve in lines.items()
    ]
    if figure.over_epochs:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(_ticks(figure, lines)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if _highest(lines) > _HIGHEST:
        axes.set_ylim(top=_HIGHEST)
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(_ERROR_LABEL)
    axes.set_title(figure.title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(handles=drawn, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return canvas


def draw_chart(figure: PaperFigure, table: pd.DataFrame) -> "plotly.graph_objects.Figure":
    """The picture of `draw` for a browser: a click on a name hides its curve or shows it."""
    from plotly.graph_objects import Figure as Canvas

    lines, canvas = curves(figure, table), Canvas()
    for name, curve in lines.items():
        canvas.add_scatter(
            name=name,
            x=curve.x,
            y=curve.nmse,
            error_y=None if curve.std is None else {"array": curve.std, "thickness": 1, "width": 3},
            mode="lines" if curve.dashed else "lines+markers",
            line={"color": _COLOURS.get(name, _OTHER_COLOUR), "dash": "dash" if curve.dashed else "solid"},
        )
    ticks = _ticks(figure, lines)
    canvas.update_xaxes(title=figure.x_label, type="log" if figure.over_epochs else "linear")
    canvas.update_xaxes(tickvals=ticks, ticktext=[f"{x:g}" for x in ticks])
    canvas.update_yaxes(title=_ERROR_LABEL, hoverformat=".3f")
    if _highest(lines) > _HIGHEST:
        canvas.update_yaxes(range=[None, _HIGHEST])
    return canvas.update_layout(template="none", height=560, margin={"t": 30})


def _ticks(figure: PaperFigure, lines: dict[str, Curve]) -> list[float]:
    """All points; on a logarithmic axis those whose labels do not overlap."""
    shown: list[float] = []
    for x in sorted({x for curve in lines.values() for x in curve.x}):
        if not figure.over_epochs or not shown or x >= _LABEL_RATIO * shown[-1]:
            shown.append(x)
    return shown


def _highest(lines: dict[str, Curve]) -> float:
    return max(max(curve.nmse) for curve in lines.values())


def mean_table(figure: PaperFigure, table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Mean errors at the points that were computed, and the published ones: a header, then one row a method."""
    shown = sorted(table["x"].unique())
    rows = [(figure.x_label, "seeds", *(f"{x:g}" for x in shown))]
    for name, curve in curves(figure, table).items():
        errors = dict(zip(curve.x, curve.nmse, strict=True))
        n_seeds = "" if curve.n_seeds is None else f"{curve.n_seeds}"
        rows.append((name, n_seeds, *(f"{errors[x]:.3f}" if x in errors else "" for x in shown)))
    return rows


def summary(figure: PaperFigure, table: pd.DataFrame) -> str:
    """The tables of a figure as text."""
    lines = [figure.title, *aligned(mean_table(figure, table))]
    if figure.compare is not None:
        lines += ["", figure.comparison, *aligned(figure.compare(table))]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table of text, with a rule below the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def write_figure(figure: PaperFigure, table: pd.DataFrame, folder: Path) -> None:
    """Write the CSV, SVG and PNG files of a figure; the same numbers give the same bytes."""
    table.to_csv(folder / f"{figure.name}.csv", index=False, float_format="%.6f", lineterminator="\n")
    canvas = draw(figure, table)
    (folder / f"{figure.name}.svg").write_bytes(svg_bytes(canvas))
    canvas.savefig(folder / f"{figure.name}.png", dpi=150)
