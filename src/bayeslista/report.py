"""One self-contained HTML page: text, tables and figures in a single file that needs no network.

Text is escaped, figures are embedded as vector images, and colours follow the reader's light or dark setting.
"""

import base64
import os
import uuid
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["Figure", "Paragraph", "Section", "Table", "write_page"]

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
tbody th { font-weight: normal; }
figure { margin: 1.5rem 0; }
img { display: block; width: 100%; height: auto; background: #ffffff; border-radius: 0.5rem; }
"""


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


class Section(NamedTuple):
    """A heading and what stands below it.

    Examples
    --------
    >>> from bayeslista.report import Paragraph, Section
    >>> Section("Result", [Paragraph("All is well.")]).heading
    'Result'
    """

    heading: str
    blocks: Sequence[Paragraph | Table | Figure]


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
        If a row of a table is not as long as its header, or a figure has no description.
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
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with unfinished.open("x", encoding="utf-8") as stream:
            stream.write(page)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def _page(title: str, sections: Sequence[Section]) -> str:
    body = "\n".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    return f"<section>\n<h2>{escape(section.heading)}</h2>\n{blocks}\n</section>"


def _block(block: Paragraph | Table | Figure) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{escape(block.text)}</p>"
    return _table(block) if isinstance(block, Table) else _figure(block)


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


def _figure(figure: Figure) -> str:
    if not figure.description.strip():
        raise ValueError("A figure needs a description: say in words what it shows.")
    drawing = BytesIO()
    figure.picture.savefig(drawing, format="svg")
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawing.getvalue()).decode('ascii')}"
    caption = f"\n<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    return f'<figure>\n<img src="{source}" alt="{escape(figure.description)}">{caption}\n</figure>'
