"""Pictures of codes, of what is believed of them, and of errors.

Figures are made without pyplot: no backend is chosen, no global setting changes and nothing stays open.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from bayeslista._validation import as_real, check_entries
from bayeslista.distributions import SpikeSlab

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_code", "plot_nmse"]

_TRUTH, _MEAN, _SPREAD, _IDLE, _RULE = "#c2410c", "#1d4ed8", "#c7d7f5", "#94a3b8", "#475569"


def plot_code(code: ArrayLike, distribution: SpikeSlab, axes: "Axes | None" = None, title: str | None = None) -> "Axes":
    """Draw a true code against its predicted mean ± 2 standard deviations, and P(active) in a strip below.

    Only coefficients that are not zero are marked as truth, each joined to its predicted mean, so that a miss is
    a line and its length the error. In the strip the bars of those coefficients stand out: a perfect support is a
    full bar wherever it is coloured and none elsewhere.

    Parameters
    ----------
    code : array-like of shape (D,)
        The true code.
    distribution : SpikeSlab of shape (D,)
        What is believed of it.
    axes : matplotlib.axes.Axes, optional
        Where to draw; the strip hangs below it, so leave room there or save with ``bbox_inches="tight"``. By
        default a new figure is made, which is ``axes.figure`` of what is returned.
    title : str, optional
        Put above the axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the code; its ``child_axes[-1]`` is the strip of probabilities.

    Raises
    ------
    ValueError
        If the code is not one-dimensional and finite, or the distribution has another shape.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.plots import plot_code
    >>> belief = SpikeSlab(prob_active=[0.1, 0.9, 0.2], slab_mean=[0.0, 1.5, 0.3], slab_var=0.04)
    >>> axes = plot_code([0.0, 1.4, 0.0], belief, title="A code and what is believed of it")
    >>> axes.get_ylabel(), axes.child_axes[-1].get_ylabel()
    ('coefficient', 'P(active)')
    """
    from matplotlib.ticker import MaxNLocator

    truth = as_real("code", code).astype(np.float64)
    if truth.ndim != 1 or truth.size == 0 or distribution.shape != truth.shape:
        raise ValueError(
            f"code has shape {truth.shape} and distribution {distribution.shape}; both must be (D,). "
            "Pass one code and the distribution of the same row, as in plot_code(codes[0], distribution[0])."
        )
    check_entries(np.isfinite(truth), "code", truth, "be finite", "Replace NaN and infinite entries.")
    if axes is None:
        axes = _new_axes(10.0, 5.4)
        axes.set_position((0.075, 0.31, 0.91, 0.565))
    index, active = np.arange(truth.size), truth != 0.0
    mean, spread = distribution.mean(), 2.0 * distribution.std()
    width = min(4.0, 420.0 / truth.size)
    size = min(6.0, 10.0 * width / 4.0)
    axes.axhline(0.0, color=_IDLE, linewidth=0.8, zorder=0)
    axes.vlines(index, mean - spread, mean + spread, color=_SPREAD, linewidth=width, label="mean ± 2 std", zorder=1)
    axes.vlines(index[active], truth[active], mean[active], color=_TRUTH, linewidth=1.0, zorder=2)
    axes.plot(index, mean, ".", color=_MEAN, markersize=size, label="predicted mean", zorder=3)
    axes.plot(
        index[active],
        truth[active],
        "o",
        color=_TRUTH,
        markerfacecolor="white",
        markersize=size,
        label="truth, where not zero",
        zorder=4,
    )
    axes.set_ylabel("coefficient")
    axes.set_xlim(-0.7, truth.size - 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.tick_params(labelbottom=False)
    _bare(axes)
    axes.legend(ncols=3, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    if title is not None:
        axes.set_title(title, loc="left", pad=24.0)

    strip = axes.inset_axes((0.0, -0.36, 1.0, 0.3), sharex=axes)
    strip.tick_params(labelbottom=True)
    for chosen, colour, label in ((active, _TRUTH, "not zero"), (~active, _IDLE, "zero")):
        strip.bar(index[chosen], distribution.prob_active[chosen], color=colour, width=0.8, label=label)
    strip.set_ylim(0.0, 1.0)
    strip.set_yticks([0.0, 0.5, 1.0])
    strip.set_ylabel("P(active)")
    strip.set_xlabel("index of the coefficient   (bars in colour: the truth is not zero)")
    strip.axhline(0.5, color=_RULE, linewidth=0.6, linestyle=":", zorder=0)
    _bare(strip)
    return axes


def plot_nmse(scores: Mapping[str, float], axes: "Axes | None" = None) -> "Axes":
    """Draw the normalised error of each method as a horizontal bar, with its value.

    Parameters
    ----------
    scores : mapping of str to float
        NMSE by name of the method; drawn from top to bottom in this order.
    axes : matplotlib.axes.Axes, optional
        Where to draw. By default a new figure is made, which is ``axes.figure`` of what is returned.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    ValueError
        If there are no scores, or one is negative or not finite.

    Examples
    --------
    >>> from bayeslista.plots import plot_nmse
    >>> axes = plot_nmse({"ISTA": 0.67, "LISTA": 0.5})
    >>> [text.get_text() for text in axes.texts]
    ['0.670', '0.500']
    """
    names = list(scores)
    values = as_real("scores", [scores[name] for name in names]).astype(np.float64)
    if values.size == 0:
        raise ValueError("scores is empty. Pass at least one method and its NMSE.")
    legal = np.isfinite(values) & (values >= 0.0)
    check_entries(legal, "scores", values, "be finite and at least 0", "Pass what metrics.nmse returns.")
    if axes is None:
        axes = _new_axes(8.0, 1.2 + 0.45 * len(names), layout="constrained")
    bars = axes.barh(names, values, color=_MEAN, height=0.62)
    axes.bar_label(bars, fmt="%.3f", padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.15 * float(values.max()) or 1.0)
    axes.set_xlabel("NMSE of the codes   (0: perfect, 1: no better than predicting zero)")
    axes.tick_params(axis="y", length=0)
    _bare(axes)
    return axes


def _new_axes(width: float, height: float, layout: Literal["constrained"] | None = None) -> "Axes":
    """Axes of a new figure that belongs to nobody else."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout).subplots()


def _bare(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
