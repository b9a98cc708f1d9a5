"""One self-contained HTML page: text, tables, figures and charts in a single file that needs no network.

Text is escaped, figures are embedded as vector images, charts and live blocks with the script that draws them, and
colours follow the reader's light or dark setting.
"""

import base64
import json
import os
import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.util import find_spec
from io import BytesIO
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from bayeslista._atomic import write_atomically

if TYPE_CHECKING:
    import matplotlib.figure
    import plotly.graph_objects

__all__ = [
    "Block",
    "Chart",
    "Figure",
    "Gallery",
    "Live",
    "Paragraph",
    "Section",
    "Table",
    "can_draw_charts",
    "svg_bytes",
    "write_page",
]

_STYLE = """
:root { color-scheme: light dark; --ink: #1e293b; --quiet: #526077; --line: #cbd5e1; --page: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e8f0; --quiet: #a3b1c6; --line: #475569; --page: #0f172a; }
}
body { margin: 0; background: var(--page); color: var(--ink); font: 1rem/1.6 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { line-height: 1.25; }
h2 { margin-top: 2.5rem; }
p { max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption, figcaption { color: var(--quiet); text-align: left; padding: 0.4rem 0; }
th, td { padding: 0.35rem 0.9rem 0.35rem 0; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child { text-align: left; }
tbody th { font-weight: normal; min-width: 6rem; }
@media (max-width: 30rem) { th, td { padding-right: 0.5rem; font-size: 0.9rem; } }
figure { margin: 1.5rem 0; }
.gallery { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 1.5rem; }
img { display: block; width: 100%; height: auto; background: #ffffff; border-radius: 0.5rem; }
"""

# Without this, plotly 7 offers to send the chart's data to its maker.
_CHART_CONFIG = {"showSendToCloud": False, "displaylogo": False}


class Paragraph(NamedTuple):
    """Running text.

    Examples
    --------
    >>> from bayeslista.report import Paragraph
    >>> Paragraph("Twenty of a hundred coefficients are not zero.").text
    'Twenty of a hundred coefficients are not zero.'
    """

    text: str


class Table(NamedTuple):
    """A table; the first cell of a row is its heading.

    Examples
    --------
    >>> from bayeslista.report import Table
    >>> Table(header=["method", "NMSE"], rows=[["ISTA", "0.67"]], caption="Errors").rows
    [['ISTA', '0.67']]
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


class Figure(NamedTuple):
    """A matplotlib figure; `description` says in words what it shows, for those who do not see it.

    Examples
    --------
    >>> import matplotlib.figure
    >>> from bayeslista.report import Figure
    >>> Figure(matplotlib.figure.Figure(), description="An empty figure.").caption
    ''
    """

    picture: "matplotlib.figure.Figure"
    description: str
    caption: str = ""


class Chart(NamedTuple):
    """A plotly figure, which answers to the pointer; `description` says in words what it shows.

    Examples
    --------
    >>> import plotly.graph_objects
    >>> from bayeslista.report import Chart
    >>> Chart(plotly.graph_objects.Figure(), description="An empty chart.").caption
    ''
    """

    picture: "plotly.graph_objects.Figure"
    description: str
    caption: str = ""


class Gallery(NamedTuple):
    """Figures side by side where there is room for them.

    Examples
    --------
    >>> import matplotlib.figure
    >>> from bayeslista.report import Figure, Gallery
    >>> picture = Figure(matplotlib.figure.Figure(), description="An empty figure.")
    >>> len(Gallery([picture, picture]).figures)
    2
    """

    figures: Sequence[Figure]


class Live(NamedTuple):
    """Markup that a script brings to life with data of its own.

    Unlike text, `markup`, `style` and `script` go into the page as they are: write them, never take them from data.
    `data` is anything that JSON can hold. It follows the markup as the JSON of a script element, and both stand in one
    element of the class "live"; a script that several share runs once, at the end of the page.

    Examples
    --------
    >>> from bayeslista.report import Live
    >>> Live("<p></p>", {"text": "</p>"}, "document.querySelector('.live p').textContent = 'here';").style
    ''
    """

    markup: str
    data: Any
    script: str
    style: str = ""


Block = Paragraph | Table | Figure | Gallery | Chart | Live
"""What can stand below a heading."""


class Section(NamedTuple):
    """A heading and what stands below it.

    Examples
    --------
    >>> from bayeslista.report import Paragraph, Section
    >>> Section("Result", [Paragraph("All is well.")]).heading
    'Result'
    """

    heading: str
    blocks: Sequence[Block]


def can_draw_charts() -> bool:
    """Whether plotly is installed, which a `Chart` needs.

    Returns
    -------
    bool
        True if it can be found.

    Examples
    --------
    >>> from bayeslista.report import can_draw_charts
    >>> can_draw_charts()
    True
    """
    return find_spec("plotly") is not None


def svg_bytes(picture: "matplotlib.figure.Figure") -> bytes:
    """Draw a matplotlib figure as SVG; the same figure gives the same bytes.

    Parameters
    ----------
    picture : matplotlib.figure.Figure
        What to draw.

    Returns
    -------
    bytes
        The file.

    Examples
    --------
    >>> import matplotlib.figure
    >>> from bayeslista.report import svg_bytes
    >>> svg_bytes(matplotlib.figure.Figure())[:5]
    b'<?xml'
    """
    import matplotlib

    drawing = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "bayeslista"}):
        picture.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue()


def write_page(path: str | os.PathLike[str], title: str, sections: Sequence[Section]) -> None:
    """Write sections as one HTML page, whole or not at all.

    The page is complete before a file is opened, and it takes its name only once it is on disk: a page that was
    there before stays as it is if anything fails.

    Parameters
    ----------
    path : str or path-like
        The file, in a folder that exists; replaced if it is there.
    title : str
        Of the page.
    sections : sequence of Section
        From top to bottom.

    Raises
    ------
    ValueError
        If a row of a table is not as long as its header, a figure or chart has no description, or data hold a number
        that is not finite.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.report import Paragraph, Section, write_page
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = Path(folder) / "index.html"
    ...     write_page(page, "Report", [Section("Result", [Paragraph("1 < 2")])])
    ...     "<p>1 &lt; 2</p>" in page.read_text(encoding="utf-8")
    True
    """
    page = _page(title, sections)
    write_atomically(path, page.encode())


def _page(title: str, sections: Sequence[Section]) -> str:
    numbers = count(1)
    body = "\n".join(_section(section, numbers) for section in sections)
    blocks = [block for section in sections for block in section.blocks]
    script = _chart_script() if any(isinstance(block, Chart) for block in blocks) else ""
    live = [block for block in blocks if isinstance(block, Live)]
    style = "".join(dict.fromkeys([_STYLE, *(block.style for block in live)]))
    last = "".join(f"<script>{each}</script>\n" for each in dict.fromkeys(block.script for block in live))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n{script}</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n{last}</body>\n</html>\n"
    )


def _section(section: Section, numbers: Iterator[int]) -> str:
    blocks = "\n".join(_block(block, numbers) for block in section.blocks)
    return f"<section>\n<h2>{escape(section.heading)}</h2>\n{blocks}\n</section>"


def _block(block: Block, numbers: Iterator[int]) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Live):
        return _live(block)
    if isinstance(block, Gallery):
        figures = "\n".join(_block(figure, numbers) for figure in block.figures)
        return f'<div class="gallery">\n{figures}\n</div>'
    if not block.description.strip():
        raise ValueError("A figure needs a description: say in words what it shows.")
    content = _chart(block, next(numbers)) if isinstance(block, Chart) else _image(block)
    caption = f"\n<figcaption>{escape(block.caption)}</figcaption>" if block.caption else ""
    return f"<figure>\n{content}{caption}\n</figure>"


def _table(table: Table) -> str:
    for row in table.rows:
        if len(row) != len(table.header):
            raise ValueError(f"A table's header has {len(table.header)} cells, but the row {list(row)} has {len(row)}.")
    header = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    rows = "\n".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in table.rows
    )
    caption = f"<caption>{escape(table.caption)}</caption>\n" if table.caption else ""
    return (
        f'<div class="wide"><table>\n{caption}<thead><tr>{header}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _live(block: Live) -> str:
    # Inside a string of JSON, the only place where it can stand, this is the same character; and no tag can begin.
    data = json.dumps(block.data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<div class="live">\n{block.markup}\n<script type="application/json">{data}</script>\n</div>'


def _image(figure: Figure) -> str:
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg_bytes(figure.picture)).decode('ascii')}"
    return f'<img src="{source}" alt="{escape(figure.description)}">'


def _chart(chart: Chart, number: int) -> str:
    from plotly.io import to_html

    # The number stands where plotly would draw a name by lot: the same charts give the same page.
    content = to_html(
        chart.picture,
        config=_CHART_CONFIG,
        full_html=False,
        include_plotlyjs=False,
        div_id=f"chart-{number}",
    )
    return f'<div role="img" aria-label="{escape(chart.description)}">{content}</div>'


def _chart_script() -> str:
    from plotly.offline import get_plotlyjs

    # Maps, which no page has, would fetch their icons from a registry of packages.
    script = re.sub(r"https://[\w.]+/npm/", "", get_plotlyjs())
    return f"<script>{script}</script>\n"
