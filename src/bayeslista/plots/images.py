"""Images with the standard deviation and error of every pixel."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayeslista.numerics.checks import as_real, check_entries
from bayeslista.plots.style import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["uncertainty_map"]


def uncertainty_map(
    image: ArrayLike, std: ArrayLike, truth: ArrayLike | None = None, axes: "Axes | None" = None
) -> "Axes":
    """Draw an image, beside it the standard deviation of every pixel and, if the truth is given, the absolute error.

    Where the two maps look alike, standard deviations rank the errors. Each has its own scale from 0.
    Pixels are square unless an image is more than twice as wide as high, or as high as wide.

    Parameters
    ----------
    image : array-like of shape (height, width)
        The predicted image.
    std : array-like of shape (height, width)
        Standard deviation of every pixel.
    truth : array-like of shape (height, width), optional
        The true image.
    axes : matplotlib.axes.Axes, optional
        Where to draw the image; the maps hang on its right, so leave room there or save with ``bbox_inches="tight"``.
        By default a new figure is made, which is ``axes.figure`` of the returned axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the image; its ``child_axes`` are the colour bar of the image, then every map and its colour bar.

    Examples
    --------
    >>> from bayeslista.plots import uncertainty_map
    >>> axes = uncertainty_map([[0.0, 1.0], [0.5, 0.2]], std=[[0.1, 0.3], [0.1, 0.1]], truth=[[0.0, 1.2], [0.5, 0.2]])
    >>> [panel.get_title(loc="left") for panel in (axes, *axes.child_axes[1::2])]
    ['image', 'standard deviation', 'absolute error']
    """
    pixels = _read_image("image", image)
    shape = pixels.shape
    if len(shape) != 2 or pixels.size == 0:
        raise ValueError(
            f"image has shape {shape}; it must be (height, width). Reshape one row, as in row.reshape(28, 28)."
        )
    deviation = _read_image("std", std, shape)
    remedy = "Pass standard deviations, not their logarithms."
    check_entries(deviation >= 0.0, "std", deviation, "be at least 0", remedy)
    maps = [("standard deviation", "viridis", deviation)]
    if truth is not None:
        maps.append(("absolute error", "magma", np.abs(pixels - _read_image("truth", truth, shape))))

    ratio = min(max(shape[0] / shape[1], 0.5), 2.0)
    step = 1.0 + 0.4 * np.sqrt(ratio)  # from one panel to the next, in widths of a panel
    if axes is None:
        width, height = 2.8 / np.sqrt(ratio), 2.8 * np.sqrt(ratio)
        whole = 0.15 + width * step * (1 + len(maps)), height + 0.5
        axes = new_axes(*whole)
        axes.set_position((0.15 / whole[0], 0.12 / whole[1], width / whole[0], height / whole[1]))
    axes.set_box_aspect(ratio)
    _draw_panel(axes, axes, 0.0, "image", "gray", pixels, None)
    for i, (title, colours, values) in enumerate(maps, start=1):
        panel = axes.inset_axes((i * step, 0.0, 1.0, 1.0))
        _draw_panel(axes, panel, i * step, title, colours, values, (0.0, float(values.max()) or 1.0))
    return axes


def _draw_panel(
    axes: "Axes",
    panel: "Axes",
    left: float,
    title: str,
    colours: str,
    values: NDArray[np.float64],
    limits: tuple[float, float] | None,
) -> None:
    """An image with a title and its colour bar on the right, placed in units of `axes`."""
    from matplotlib.colorbar import Colorbar

    low, high = limits if limits is not None else (None, None)
    drawn = panel.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    panel.set_title(title, loc="left", fontsize="medium")
    panel.set_xticks([])
    panel.set_yticks([])
    bar = axes.inset_axes((left + 1.03, 0.0, 0.06, 1.0))
    Colorbar(bar, drawn).outline.set_visible(False)
    bar.tick_params(labelsize="small")
    bar.yaxis.get_offset_text().set(horizontalalignment="left", fontsize="small")  # a factor, as 1e−7, off the title


def _read_image(name: str, values: ArrayLike, shape: tuple[int, ...] | None = None) -> NDArray[np.float64]:
    """A finite array, of the shape of the image if one is given."""
    array = as_real(name, values).astype(np.float64)
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape} and image {shape}. Pass one entry for each pixel.")
    check_entries(np.isfinite(array), name, array, "be finite", "Replace NaN and infinite entries.")
    return array
