"""Formulas as MathML, which browsers draw by themselves: no script and no network."""

import html
import re
import unicodedata

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)

STYLED = re.compile(r'<mi mathvariant="(bold|bold-italic|double-struck)">([^<]+)</mi>')
BAR = re.compile(r"<mo( [^>]*)?>(&#x0007C;|&#x02016;)</mo>")


def _letter(styled: re.Match[str]) -> str:
    """A bold or double-struck letter as its own character: browsers know no other style of one than upright."""
    style = styled[1].upper().replace("BOLD-ITALIC", "BOLD ITALIC")
    plain = unicodedata.name(html.unescape(styled[2]))
    letter = re.sub(r"LATIN |GREEK |LETTER ", "", plain)
    special = {"DOUBLE-STRUCK CAPITAL R"}  # has been there for longer than the others
    name = f"{style} {letter}" if f"{style} {letter}" in special else f"MATHEMATICAL {style} {letter}"
    return f"<mi>{unicodedata.lookup(name)}</mi>"


def _mathml(node: nodes.Element, display: str) -> str:
    markup = convert(node.astext(), display=display)
    if "\\" in markup:
        logger.warning("A command of this formula is not known: %s", node.astext(), location=node)
    return BAR.sub(r'<mo\1 lspace="0" rspace="0">\2</mo>', STYLED.sub(_letter, markup))


def _visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="notranslate"))
    self.body.append(_mathml(node, "inline") + "</span>")
    raise nodes.SkipNode


def _visit_display(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="formula notranslate"))
    self.body.append(_mathml(node, "block") + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the renderer."""
    app.add_html_math_renderer("mathml", (_visit_inline, None), (_visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
