"""Colours and axes that all plots share."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRUTH, MEAN, INTERVAL, NEUTRAL, RULE = "#c2410c", "#1d4ed8", "#c7d7f5", "#94a3b8", "#475569"
SERIES = (MEAN, TRUTH, "#0f766e", "#db2777", "#a16207", "#7c3aed")


def new_axes(width: float, height: float, layout: Literal["constrained"] | None = None) -> "Axes":
    """Axes of a new figure, made without pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout).subplots()


def hide_spines(axes: "Axes") -> None:
    """Remove the frame above and on the right."""
    axes.spines[["top", "right"]].set_visible(False)
