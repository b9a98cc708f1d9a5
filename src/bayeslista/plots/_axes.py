"""What all pictures share: colours, a figure of one's own, and no frame."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TRUTH, _MEAN, _SPREAD, _IDLE, _RULE = "#c2410c", "#1d4ed8", "#c7d7f5", "#94a3b8", "#475569"

_SERIES = (_MEAN, _TRUTH, "#0f766e", "#db2777", "#a16207", "#7c3aed")


def _new_axes(width: float, height: float, layout: Literal["constrained"] | None = None) -> "Axes":
    """Axes of a new figure that belongs to nobody else."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout).subplots()


def _bare(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
