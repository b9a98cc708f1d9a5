"""One self-contained HTML page: text, tables, figures and charts, rendered by jinja2 from `templates/`."""

import base64
import os
from collections.abc import Sequence
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from bayeslista.io.atomic import write_atomically

if TYPE_CHECKING:
    import jinja2
    import matplotlib.figure

__all__ = [
    "Block",
    "Figure",
    "Gallery",
    "Paragraph",
    "Section",
    "Table",
    "Widget",
    "svg_bytes",
    "write_page",
]

_JSON = {"separators": (",", ":"), "allow_nan": False}


class Paragraph(NamedTuple):
    """Running text."""

    text: str


class Table(NamedTuple):
    """A table; the first cell of a row is its heading."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


class Figure(NamedTuple):
    """A matplotlib figure; `description` is its text alternative."""

    picture: "matplotlib.figure.Figure"
    description: str
    caption: str = ""


class Gallery(NamedTuple):
    """Figures side by side where there is room for them."""

    figures: Sequence[Figure]


class Widget(NamedTuple):
    """Markup and a script that draws `data`, which is embedded as JSON; markup and script are not escaped."""

    markup: str
    data: Any
    script: str


Block = Paragraph | Table | Figure | Gallery | Widget
_KINDS = (Paragraph, Table, Figure, Gallery, Widget)


class Section(NamedTuple):
    """A heading and the blocks below it."""

    heading: str
    blocks: Sequence[Block]


def svg_bytes(picture: "matplotlib.figure.Figure") -> bytes:
    """A matplotlib figure as an SVG file; the same figure gives the same bytes."""
    import matplotlib

    drawing = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "bayeslista"}):
        picture.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue()


def write_page(path: str | os.PathLike[str], title: str, sections: Sequence[Section]) -> None:
    """Write sections as one HTML page, atomically: a file that is there stays as it is if anything fails."""
    blocks = [block for section in sections for block in section.blocks]
    for block in blocks:
        _check(block)
    page = template("page.html.jinja").render(
        title=title,
        sections=sections,
        style=read_template("style.css"),
        scripts=list(dict.fromkeys(block.script for block in blocks if isinstance(block, Widget))),
    )
    write_atomically(path, page.encode())


def template(name: str) -> "jinja2.Template":
    """A template of this package, in an environment that escapes and refuses undefined variables."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bayeslista.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.tests |= {kind.__name__.lower(): (lambda block, kind=kind: isinstance(block, kind)) for kind in _KINDS}
    environment.policies["json.dumps_kwargs"] = _JSON
    environment.filters["svg_uri"] = _svg_uri
    return environment.get_template(name)


def read_template(name: str) -> str:
    """A file of `templates/` as it is: the style sheet or a script."""
    return files("bayeslista.reports").joinpath("templates", name).read_text(encoding="utf-8")


def _check(block: Block) -> None:
    """Refuse a row that is not as long as the header, and a figure without a text alternative."""
    if isinstance(block, Table):
        for row in block.rows:
            if len(row) != len(block.header):
                raise ValueError(f"A table's header has {len(block.header)} cells, but the row {list(row)} {len(row)}.")
    pictures = block.figures if isinstance(block, Gallery) else [block]
    for picture in pictures:
        if isinstance(picture, Figure) and not picture.description.strip():
            raise ValueError("A figure needs a description, its text alternative.")


def _svg_uri(picture: "matplotlib.figure.Figure") -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg_bytes(picture)).decode('ascii')}"
