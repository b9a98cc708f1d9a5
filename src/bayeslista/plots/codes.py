"""Plots of single codes and their predictive distributions, and of errors by method."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayeslista.distributions import SpikeSlab
from bayeslista.metrics.forecasts import Forecast, Samples, check_level, read_forecast
from bayeslista.numerics.checks import as_real, check_entries
from bayeslista.plots.style import INTERVAL, MEAN, NEUTRAL, RULE, TRUTH, hide_spines, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_code", "plot_nmse", "plot_signal"]


def plot_code(code: ArrayLike, distribution: SpikeSlab, axes: "Axes | None" = None, title: str | None = None) -> "Axes":
    """Draw a true code against its predicted mean ± 2 standard deviations, and P(active) in a strip below.

    Nonzero coefficients are marked as truth, each joined to its predicted mean by a line of the length of its error.
    Their bars in the strip are coloured.

    Parameters
    ----------
    code : array-like of shape (D,)
        The true code.
    distribution : SpikeSlab of shape (D,)
        Its predictive distribution.
    axes : matplotlib.axes.Axes, optional
        Where to draw; the strip hangs below it, so leave room there or save with ``bbox_inches="tight"``. By
        default a new figure is made, which is ``axes.figure`` of the returned axes.
    title : str, optional
        Put above the axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the code; its ``child_axes[-1]`` is the strip of probabilities.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.plots import plot_code
    >>> dist = SpikeSlab(prob_active=[0.1, 0.9, 0.2], slab_mean=[0.0, 1.5, 0.3], slab_var=0.04)
    >>> axes = plot_code([0.0, 1.4, 0.0], dist, title="A code and its distribution")
    >>> axes.get_ylabel(), axes.child_axes[-1].get_ylabel()
    ('coefficient', 'P(active)')
    """
    truth = as_real("code", code).astype(np.float64)
    if truth.ndim != 1 or truth.size == 0 or distribution.shape != truth.shape:
        raise ValueError(
            f"code has shape {truth.shape} and distribution {distribution.shape}; both must be (D,). "
            "Pass one code and the distribution of the same row, as in plot_code(codes[0], distribution[0])."
        )
    check_entries(np.isfinite(truth), "code", truth, "be finite", "Replace NaN and infinite entries.")
    if axes is None:
        axes = new_axes(10.0, 5.4)
        axes.set_position((0.075, 0.31, 0.91, 0.565))
    index, active = np.arange(truth.size), truth != 0.0
    mean, reach = distribution.mean(), 2.0 * distribution.std()
    width, size = _mark_sizes(truth.size)
    axes.axhline(0.0, color=NEUTRAL, linewidth=0.8, zorder=0)
    axes.vlines(index, mean - reach, mean + reach, color=INTERVAL, linewidth=width, label="mean ± 2 std", zorder=1)
    axes.vlines(index[active], truth[active], mean[active], color=TRUTH, linewidth=1.0, zorder=2)
    axes.plot(index, mean, ".", color=MEAN, markersize=size, label="predicted mean", zorder=3)
    axes.plot(
        index[active],
        truth[active],
        "o",
        color=TRUTH,
        markerfacecolor="white",
        markersize=size,
        label="truth, where not zero",
        zorder=4,
    )
    _label_code(axes, truth.size, title)
    axes.tick_params(labelbottom=False)

    strip = axes.inset_axes((0.0, -0.36, 1.0, 0.3), sharex=axes)
    strip.tick_params(labelbottom=True)
    for chosen, colour, label in ((active, TRUTH, "not zero"), (~active, NEUTRAL, "zero")):
        strip.bar(index[chosen], distribution.prob_active[chosen], color=colour, width=0.8, label=label)
    strip.set_ylim(0.0, 1.0)
    strip.set_yticks([0.0, 0.5, 1.0])
    strip.set_ylabel("P(active)")
    strip.set_xlabel("index of the coefficient   (bars in colour: the truth is not zero)")
    strip.axhline(0.5, color=RULE, linewidth=0.6, linestyle=":", zorder=0)
    hide_spines(strip)
    return axes


def plot_signal(
    dist: Forecast,
    B: ArrayLike | None = None,
    level: float = 0.9,
    axes: "Axes | None" = None,
    title: str | None = None,
    interval: tuple[ArrayLike, ArrayLike] | None = None,
) -> "Axes":
    """Draw the intervals and predicted mean of one signal, and the truth if it is given.

    The truth is marked where it is not zero, and filled where it lies outside its interval, zero or not: of 100
    coefficients about ten may, at level 0.9. :func:`plot_code` shows standard deviations and P(active) instead.

    Parameters
    ----------
    dist : SpikeSlab of shape (D,), tuple (mean, std) or array-like of samples of shape (n_draws, D)
        Its predictive distribution.
    B : array-like of shape (D,), optional
        The true signal.
    level : float, default=0.9
        Nominal coverage of the intervals; that of `interval` if it is given.
    axes : matplotlib.axes.Axes, optional
        Where to draw. By default a new figure is made, which is ``axes.figure`` of the returned axes.
    title : str, optional
        Put above the axes.
    interval : tuple (low, high) of array-likes of shape (D,), optional
        Intervals to draw, conformal ones for example. By default they are the central ones of `dist`, as of
        :meth:`SpikeSlab.interval`.

    Returns
    -------
    matplotlib.axes.Axes
        The axes; its legend has the number of coefficients outside.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.plots import plot_signal
    >>> dist = SpikeSlab(prob_active=[0.1, 0.9, 0.2], slab_mean=[0.0, 1.5, 0.3], slab_var=0.04)
    >>> axes = plot_signal(dist, [0.0, 1.4, 3.0])
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['90 % interval', 'predicted mean', 'truth, where not zero', 'truth outside (1 of 3)']
    """
    share = check_level(level)
    mean, ends = _mean_and_interval(dist, share)
    if mean.ndim != 1 or mean.size == 0:
        raise ValueError(
            f"dist is of shape {mean.shape}; it must be (D,). Pass one signal, as in plot_signal(distribution[0])."
        )
    low, high = _read_interval(ends if interval is None else interval, mean.shape)
    truth = None if B is None else _read_row("B", B, mean.shape)
    if axes is None:
        axes = new_axes(10.0, 4.0, layout="constrained")
    index = np.arange(mean.size)
    width, size = _mark_sizes(mean.size)
    axes.axhline(0.0, color=NEUTRAL, linewidth=0.8, zorder=0)
    axes.vlines(index, low, high, color=INTERVAL, linewidth=width, label=f"{100.0 * share:g} % interval", zorder=1)
    axes.plot(index, mean, ".", color=MEAN, markersize=size, label="predicted mean", zorder=2)
    if truth is not None:
        outside = (truth < low) | (truth > high)
        inside = (truth != 0.0) & ~outside
        missed = f"truth outside ({np.count_nonzero(outside)} of {truth.size})"
        for chosen, fill, label in ((inside, "white", "truth, where not zero"), (outside, TRUTH, missed)):
            axes.plot(
                index[chosen],
                truth[chosen],
                "o",
                color=TRUTH,
                markerfacecolor=fill,
                markersize=size,
                label=label,
                zorder=3,
            )
    _label_code(axes, mean.size, title)
    axes.set_xlabel("index of the coefficient")
    return axes


def plot_nmse(scores: Mapping[str, float], axes: "Axes | None" = None) -> "Axes":
    """Draw the normalised error of each method as a horizontal bar, with its value.

    Parameters
    ----------
    scores : mapping of str to float
        NMSE by name of the method; drawn from top to bottom in this order.
    axes : matplotlib.axes.Axes, optional
        Where to draw. By default a new figure is made, which is ``axes.figure`` of the returned axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

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
        axes = new_axes(8.0, 1.2 + 0.45 * len(names), layout="constrained")
    bars = axes.barh(names, values, color=MEAN, height=0.62)
    axes.bar_label(bars, fmt="%.3f", padding=4)
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.15 * float(values.max()) or 1.0)
    axes.set_xlabel("NMSE of the codes   (0: perfect, 1: no better than predicting zero)")
    axes.tick_params(axis="y", length=0)
    hide_spines(axes)
    return axes


def _mark_sizes(n: int) -> tuple[float, float]:
    """Width of lines and size of points that leave room for each other."""
    width = min(4.0, 420.0 / n)
    return width, min(6.0, 10.0 * width / 4.0)


def _label_code(axes: "Axes", n: int, title: str | None) -> None:
    """Labels, ticks and legend of one code; a title stands above the legend."""
    from matplotlib.ticker import MaxNLocator

    axes.set_ylabel("coefficient")
    axes.set_xlim(-0.7, n - 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    hide_spines(axes)
    columns = len(axes.get_legend_handles_labels()[1])
    axes.legend(ncols=columns, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    if title is not None:
        axes.set_title(title, loc="left", pad=24.0)


def _mean_and_interval(
    dist: Forecast, level: float
) -> tuple[NDArray[np.floating], tuple[NDArray[np.floating], NDArray[np.floating]]]:
    """Mean and central interval of a prediction."""
    read = read_forecast(dist)
    if isinstance(read, Samples):
        tail = (1.0 - level) / 2.0
        low, high = np.quantile(read.draws, [tail, 1.0 - tail], axis=0, method="inverted_cdf")
        return read.draws.mean(axis=0), (low, high)
    if read.parts is not None:
        parts = SpikeSlab(read.prob_active, read.parts.mean, read.parts.var, read.parts.weight)
    else:
        parts = SpikeSlab(read.prob_active, read.slab_mean, read.scale if read.atom else np.square(read.scale))
    return parts.mean(), parts.interval(level)


def _read_interval(
    interval: tuple[ArrayLike, ArrayLike], shape: tuple[int, ...]
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    if not isinstance(interval, tuple) or len(interval) != 2:
        raise ValueError("interval must be a tuple (low, high). Pass the ends of the intervals, lower ones first.")
    remedy = "Ask for a lower level, or calibrate on more signals."
    low, high = interval
    low = _read_row("low of interval", low, shape, remedy)
    high = _read_row("high of interval", high, shape, remedy)
    check_entries(low <= high, "low of interval", low, "be at most high", "Pass lower ends first.")
    return low, high


def _read_row(
    name: str, values: ArrayLike, shape: tuple[int, ...], remedy: str = "Replace NaN and infinite entries."
) -> NDArray[np.float64]:
    """A finite row of the length of the signal."""
    row = as_real(name, values).astype(np.float64)
    if row.shape != shape:
        raise ValueError(f"{name} has shape {row.shape} and dist {shape}. Pass what belongs to the same signal.")
    check_entries(np.isfinite(row), name, row, "be finite", remedy)
    return row
