"""Finds the pictures of an example: matplotlib figures among its variables, made without pyplot."""

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


def _figures(values: Iterable[Any]) -> list[Figure]:
    found = []
    for value in values:
        if isinstance(value, Axes):
            found.append(value.figure)
        elif isinstance(value, Figure):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _figures(value)
        elif isinstance(value, dict):
            found += _figures(value.values())
    return list(dict.fromkeys(found))


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the figures that a block of an example has made, to be shown below each other."""
    seen = block_vars.setdefault("figures_seen", [])
    paths = []
    for figure in _figures(list(block_vars["example_globals"].values())):
        if figure not in seen:
            seen.append(figure)
            paths.append(next(block_vars["image_path_iterator"]))
            figure.savefig(paths[-1], dpi=110, bbox_inches="tight")
    return "".join(figure_rst([path], gallery_conf["src_dir"]) for path in paths)
