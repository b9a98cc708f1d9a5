"""What comes out of an experiment: a table of all numbers, a picture over the published curves, and a summary."""

import csv
import io
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bayeslista.experiments.description import Figure
from bayeslista.experiments.published import published_curves
from bayeslista.report import svg_bytes

if TYPE_CHECKING:
    import matplotlib.figure
    import plotly.graph_objects

__all__ = [
    "COLUMNS",
    "Curve",
    "Record",
    "curves",
    "draw",
    "draw_chart",
    "mean_table",
    "summary",
    "write_figure",
    "write_whole",
]

COLUMNS = ("figure", "method", "x", "seed", "nmse")

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
}
_PAPER_COLOURS = {
    "ISTA": "#94a3b8",
    "FISTA": "#5eead4",
    "LISTA": "#fb923c",
    "BayesLISTA": "#60a5fa",
    "active": "#60a5fa",
    "random": "#fb923c",
}
_OTHER_COLOUR = "#1e293b"
_LABEL_RATIO = 1.5
_HIGHEST = 1.25  # of the axis; a curve that leaves it is in the table
_ERROR_LABEL = "NMSE of the test codes"
_CHART_HEIGHT = 560  # pixels


class Record(NamedTuple):
    """One number of a figure: a line of its CSV file.

    Examples
    --------
    >>> from bayeslista.experiments.figures import Record
    >>> Record("layers", "ISTA", 4, 0, 0.785).nmse
    0.785
    """

    figure: str
    method: str
    x: float
    seed: int
    nmse: float


class Curve(NamedTuple):
    """Mean and standard deviation over seeds.

    Attributes
    ----------
    x, mean, std : tuple of float
        One entry a point; the standard deviation is 0 where there is one seed.
    n_seeds : int
        The largest number of seeds of a point.

    Examples
    --------
    >>> from bayeslista.experiments.figures import Record, curves
    >>> curves([Record("layers", "ISTA", 4, 0, 0.7), Record("layers", "ISTA", 4, 1, 0.8)])["ISTA"].mean
    (0.75,)
    """

    x: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    n_seeds: int


def curves(records: Sequence[Record]) -> dict[str, Curve]:
    """Curves by method, in the order in which methods first occur.

    Parameters
    ----------
    records : sequence of Record
        All numbers of one figure.

    Returns
    -------
    dict of Curve
        By method.

    Examples
    --------
    >>> from bayeslista.experiments.figures import Record, curves
    >>> curves([Record("layers", "ISTA", x, 0, 1 / x) for x in (4, 2)])["ISTA"].x
    (2, 4)
    """
    errors: dict[str, dict[float, list[float]]] = {}
    for record in records:
        errors.setdefault(record.method, {}).setdefault(record.x, []).append(record.nmse)
    return {
        method: Curve(
            tuple(sorted(points)),
            tuple(float(np.mean(points[x])) for x in sorted(points)),
            tuple(float(np.std(points[x], ddof=1)) if len(points[x]) > 1 else 0.0 for x in sorted(points)),
            max(map(len, points.values())),
        )
        for method, points in errors.items()
    }


class _Line(NamedTuple):
    """What is drawn of one method; the published ones are dashed."""

    label: str
    colour: str
    x: Sequence[float]
    nmse: Sequence[float]
    spread: Sequence[float] | None
    dashed: bool


def _lines(figure: Figure, records: Sequence[Record]) -> list[_Line]:
    """Our curves, then the published ones."""
    ours = [
        _Line(
            method,
            _COLOURS.get(method, _OTHER_COLOUR),
            curve.x,
            curve.mean,
            curve.std if curve.n_seeds > 1 else None,
            False,
        )
        for method, curve in curves(records).items()
    ]
    return ours + [
        _Line(f"paper: {method}", _PAPER_COLOURS[method], curve.x, curve.nmse, None, True)
        for method, curve in published_curves()[figure.name].items()
    ]


def draw(figure: Figure, records: Sequence[Record]) -> "matplotlib.figure.Figure":
    """Draw mean and spread by method over the published curves, which are dashed.

    Parameters
    ----------
    figure : Figure
        What it is of.
    records : sequence of Record
        Its numbers.

    Returns
    -------
    matplotlib.figure.Figure
        Belongs to nobody else.

    Examples
    --------
    >>> from bayeslista.experiments.figures import Record, draw
    >>> from bayeslista.experiments.layers import FIGURE
    >>> axes = draw(FIGURE, [Record("layers", "ISTA", 4, 0, 0.785)]).axes[0]
    >>> [text.get_text() for text in axes.get_legend().get_texts()][:2]
    ['ISTA', 'paper: ISTA']
    """
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    canvas = Canvas(figsize=(9.0, 5.4), layout="constrained")
    axes = canvas.subplots()
    lines = _lines(figure, records)
    drawn = [
        axes.errorbar(
            line.x,
            line.nmse,
            yerr=line.spread,
            color=line.colour,
            linestyle="--" if line.dashed else "-",
            marker=None if line.dashed else "o",
            markersize=3.5,
            capsize=2.0,
            label=line.label,
        )
        for line in lines
    ]
    if figure.log_x:
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


def draw_chart(figure: Figure, records: Sequence[Record]) -> "plotly.graph_objects.Figure":
    """Draw what `draw` does, to be looked at in a browser: curves come and go by a click on their names.

    Parameters
    ----------
    figure : Figure
        What it is of.
    records : sequence of Record
        Its numbers.

    Returns
    -------
    plotly.graph_objects.Figure
        Belongs to nobody else.

    Raises
    ------
    ImportError
        If plotly is not installed.

    Examples
    --------
    >>> from bayeslista.experiments.figures import Record, draw_chart
    >>> from bayeslista.experiments.layers import FIGURE
    >>> chart = draw_chart(FIGURE, [Record("layers", "ISTA", 4, 0, 0.785)])
    >>> [line.name for line in chart.data][:2]
    ['ISTA', 'paper: ISTA']
    """
    from plotly.graph_objects import Figure as Canvas

    lines = _lines(figure, records)
    canvas = Canvas()
    for line in lines:
        canvas.add_scatter(
            name=line.label,
            x=line.x,
            y=line.nmse,
            error_y=None if line.spread is None else {"array": line.spread, "thickness": 1, "width": 3},
            mode="lines" if line.dashed else "lines+markers",
            line={"color": line.colour, "dash": "dash" if line.dashed else "solid"},
        )
    ticks = _ticks(figure, lines)
    canvas.update_xaxes(title=figure.x_label, type="log" if figure.log_x else "linear")
    canvas.update_xaxes(tickvals=ticks, ticktext=[f"{x:g}" for x in ticks])
    canvas.update_yaxes(title=_ERROR_LABEL, hoverformat=".3f")
    if _highest(lines) > _HIGHEST:
        canvas.update_yaxes(range=[None, _HIGHEST])
    return canvas.update_layout(template="none", height=_CHART_HEIGHT, margin={"t": 30})


def _ticks(figure: Figure, lines: Sequence[_Line]) -> list[float]:
    """All points; on a logarithmic axis those far enough from the last for their labels to stand side by side."""
    shown: list[float] = []
    for x in sorted({x for line in lines for x in line.x}):
        if not figure.log_x or not shown or x >= _LABEL_RATIO * shown[-1]:
            shown.append(x)
    return shown


def _highest(lines: Sequence[_Line]) -> float:
    return max(max(line.nmse) for line in lines)


def mean_table(figure: Figure, records: Sequence[Record]) -> list[tuple[str, ...]]:
    """The mean errors and the published ones, ready to be shown.

    Parameters
    ----------
    figure : Figure
        What it is of.
    records : sequence of Record
        Its numbers.

    Returns
    -------
    list of tuple of str
        The header, then a row a method: its name, the number of seeds, and a cell for each point that was computed.

    Examples
    --------
    >>> from bayeslista.experiments.figures import Record, mean_table
    >>> from bayeslista.experiments.layers import FIGURE
    >>> mean_table(FIGURE, [Record("layers", "ISTA", 4, 0, 0.78)])[:2]
    [('layers L', 'seeds', '4'), ('ISTA', '1', '0.780')]
    """
    ours = curves(records)
    shown = sorted({x for curve in ours.values() for x in curve.x})
    rows = [(method, str(curve.n_seeds), dict(zip(curve.x, curve.mean, strict=True))) for method, curve in ours.items()]
    rows += [
        (f"paper: {method}", "", dict(zip(curve.x, curve.nmse, strict=True)))
        for method, curve in published_curves()[figure.name].items()
    ]
    return [
        (figure.x_label, "seeds", *(f"{x:g}" for x in shown)),
        *((method, n_seeds, *(f"{by_x[x]:.3f}" if x in by_x else "" for x in shown)) for method, n_seeds, by_x in rows),
    ]


def summary(figure: Figure, records: Sequence[Record]) -> str:
    """The mean errors as a table of text, with the published ones below, and the comparison of curves if there is one.

    Parameters
    ----------
    figure : Figure
        What it is of.
    records : sequence of Record
        Its numbers.

    Returns
    -------
    str
        One line a method, one column a point that was computed.

    Examples
    --------
    >>> from bayeslista.experiments.figures import Record, summary
    >>> from bayeslista.experiments.layers import FIGURE
    >>> print(summary(FIGURE, [Record("layers", "ISTA", 4, seed, 0.78) for seed in (0, 1)]))
    Synthetic codes: error by depth (K = 50)
    layers L           seeds      4
    -------------------------------
    ISTA                   2  0.780
    paper: ISTA               0.785
    paper: FISTA              0.778
    paper: LISTA              0.604
    paper: BayesLISTA         0.601
    """
    lines = [figure.title, *_lines_of_text(mean_table(figure, records))]
    if figure.compare is not None:
        lines += ["", figure.comparison, *_lines_of_text(figure.compare(records))]
    return "\n".join(lines)


def _lines_of_text(cells: Sequence[Sequence[str]]) -> list[str]:
    """A table in columns, with a rule below the header."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def write_figure(figure: Figure, records: Sequence[Record], folder: Path) -> None:
    """Write the CSV, SVG and PNG files of a figure; the same numbers give the same bytes.

    Parameters
    ----------
    figure : Figure
        What it is of; its name is that of the files.
    records : sequence of Record
        Its numbers, written in this order.
    folder : Path
        Where to; it has to be there.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.experiments.figures import Record, write_figure
    >>> from bayeslista.experiments.layers import FIGURE
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_figure(FIGURE, [Record("layers", "ISTA", 4, 0, 0.785)], Path(folder))
    ...     print((Path(folder) / "layers.csv").read_text())
    figure,method,x,seed,nmse
    layers,ISTA,4,0,0.785000
    <BLANKLINE>
    """
    lines = [(r.figure, r.method, f"{r.x:g}", r.seed, f"{r.nmse:.6f}") for r in records]
    write_whole(folder / f"{figure.name}.csv", csv_text(COLUMNS, lines))
    canvas, png = draw(figure, records), io.BytesIO()
    write_whole(folder / f"{figure.name}.svg", svg_bytes(canvas))
    canvas.savefig(png, format="png", dpi=150)
    write_whole(folder / f"{figure.name}.png", png.getvalue())


def csv_text(header: Sequence[str], lines: Sequence[Sequence[object]]) -> bytes:
    r"""Lines of a CSV file.

    Parameters
    ----------
    header : sequence of str
        Names of the columns.
    lines : sequence of sequences
        One a line.

    Returns
    -------
    bytes
        In UTF-8, with plain line ends.

    Examples
    --------
    >>> from bayeslista.experiments.figures import csv_text
    >>> csv_text(["a", "b"], [(1, "x, y")])
    b'a,b\n1,"x, y"\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *lines])
    return text.getvalue().encode()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Parameters
    ----------
    path : Path
        Replaced if it is there.
    content : bytes
        What to write.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.experiments.figures import write_whole
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "file", b"text")
    ...     [path.name for path in Path(folder).iterdir()]
    ['file']
    """
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
