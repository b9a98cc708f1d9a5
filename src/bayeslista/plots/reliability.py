"""Calibration plots: reliability diagram, coverage curve, PIT histogram, error by standard deviation."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv
from scipy.stats import binom

from bayeslista.metrics import expected_calibration_error, pit, reliability_curve
from bayeslista.metrics.forecasts import Forecast, moment_blocks, read_codes, read_forecast
from bayeslista.numerics.checks import as_real, check_count, check_entries
from bayeslista.plots.style import INTERVAL, MEAN, NEUTRAL, RULE, SERIES, TRUTH, hide_spines, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["coverage_curve", "error_by_std", "pit_histogram", "reliability_diagram"]

_TAIL = 0.025  # what bands and error bars leave out on either side


def pit_histogram(
    dist: Forecast, B: ArrayLike, n_bins: int = 20, axes: "Axes | None" = None, random_state: Any = None
) -> "Axes":
    """Draw a histogram of the probability integral transform: flat, up to chance, if predictions are calibrated.

    A U shape is overconfidence, a hump underconfidence, a slope bias. The band holds 95 % of the bars if predictions
    are calibrated and coefficients independent; those of one signal depend on each other, so bars vary somewhat more.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions; draws are the first axis of samples.
    B : array-like
        The true codes, which broadcast against the predictions.
    n_bins : int, default=20
        Number of bars.
    axes : matplotlib.axes.Axes, optional
        Where to draw. By default a new figure is made, which is ``axes.figure`` of the returned axes.
    random_state : int, RandomState instance, Generator or None, default=None
        Of the randomised PIT; see :func:`bayeslista.metrics.pit`.

    Returns
    -------
    matplotlib.axes.Axes
        The axes; its ``patches`` are the bars, of mean height 1.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.plots import pit_histogram
    >>> dist = SpikeSlab([0.2] * 1000, 1.0, 1.0)
    >>> axes = pit_histogram(dist, dist.sample(1, random_state=0), n_bins=10, random_state=0)
    >>> len(axes.patches), bool(max(bar.get_height() for bar in axes.patches) < 1.5)
    (10, True)
    """
    n = check_count("n_bins", n_bins)
    places = np.ravel(pit(dist, B, random_state))
    count, edges = np.histogram(places, n, (0.0, 1.0))
    expected = places.size / n
    low, high = binom.ppf([_TAIL, 1.0 - _TAIL], places.size, 1.0 / n) / expected
    if axes is None:
        axes = new_axes(7.0, 4.0, layout="constrained")
    axes.bar(edges[:-1], count / expected, width=1.0 / n, align="edge", color=INTERVAL, edgecolor="white", zorder=1)
    axes.fill_between(
        [0.0, 1.0], low, high, color=RULE, alpha=0.25, linewidth=0.0, label="95 % of bars, if calibrated", zorder=2
    )
    axes.axhline(1.0, color=RULE, linewidth=1.0, linestyle="--", label="calibrated", zorder=3)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("probability integral transform of the truth")
    axes.set_ylabel("density")
    hide_spines(axes)
    axes.legend(ncols=2, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    return axes


def reliability_diagram(dist: Forecast, B: ArrayLike, n_bins: int = 10, axes: "Axes | None" = None) -> "Axes":
    """Draw the share of active coefficients against predicted P(active), and the size of the bins in a strip below.

    Points on the diagonal are calibrated; above it P(active) is too small, below it too large. Error bars are exact
    binomial intervals of 95 %, for independent coefficients.

    Parameters
    ----------
    dist : SpikeSlab or array-like of samples
        The predictions.
    B : array-like
        The true codes, which broadcast against the predictions.
    n_bins : int, default=10
        Number of bins of equal width; empty ones are not drawn.
    axes : matplotlib.axes.Axes, optional
        Where to draw; the strip hangs below it, so leave room there or save with ``bbox_inches="tight"``. By
        default a new figure is made, which is ``axes.figure`` of the returned axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the points, its legend headed by the expected calibration error; its ``child_axes[-1]`` is the
        strip, on a logarithmic scale.

    Examples
    --------
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.plots import reliability_diagram
    >>> axes = reliability_diagram(SpikeSlab([0.05, 0.05, 0.92], 1.0, 1.0), [0.0, 1.0, 1.0])
    >>> axes.get_legend().get_title().get_text()
    'expected calibration error 0.327'
    """
    predicted, observed, size = reliability_curve(dist, B, n_bins)
    error = expected_calibration_error(dist, B, n_bins)
    if axes is None:
        axes = new_axes(6.0, 6.6)
        axes.set_position((0.13, 0.305, 0.84, 0.675))
    axes.plot([0.0, 1.0], [0.0, 1.0], color=NEUTRAL, linewidth=1.0, linestyle="--", label="calibrated", zorder=1)
    axes.errorbar(
        predicted,
        observed,
        yerr=_binomial_reach(observed, size),
        fmt="o-",
        color=MEAN,
        ecolor=RULE,
        linewidth=1.2,
        elinewidth=1.0,
        capsize=3.0,
        markersize=5.0,
        label="observed, with 95 % intervals",
        zorder=2,
    )
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("share that is active")
    axes.tick_params(labelbottom=False)
    hide_spines(axes)
    axes.legend(frameon=False, loc="upper left", title=f"expected calibration error {error:.3f}", alignment="left")

    strip = axes.inset_axes((0.0, -0.32, 1.0, 0.26), sharex=axes)
    strip.tick_params(labelbottom=True)
    strip.bar(predicted, size, width=0.5 / n_bins, color=NEUTRAL)
    strip.set_yscale("log")
    strip.set_ylim(0.5, 2.0 * float(size.max()))
    strip.set_ylabel("coefficients")
    strip.set_xlabel("P(active) as predicted")
    hide_spines(strip)
    return axes


def coverage_curve(
    dist: Forecast | Mapping[str, Forecast],
    B: ArrayLike,
    levels: ArrayLike | None = None,
    axes: "Axes | None" = None,
    random_state: Any = None,
) -> "Axes":
    """Draw the coverage of central intervals against their level.

    Shares are those of :func:`bayeslista.metrics.pit_coverage`: of calibrated predictions they lie on the diagonal,
    atoms or not. Below it predictions are overconfident, above it underconfident.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std), array-like of samples, or mapping of str to any of these
        The predictions, or several by their names, one curve each.
    B : array-like
        The true codes, which broadcast against the predictions.
    levels : array-like of shape (n_levels,), optional
        Levels in [0, 1]; drawn in increasing order. By default 0, 0.05, ... 1.
    axes : matplotlib.axes.Axes, optional
        Where to draw. By default a new figure is made, which is ``axes.figure`` of the returned axes.
    random_state : int, RandomState instance, Generator or None, default=None
        Of the randomised PIT, which is the same for all levels.

    Returns
    -------
    matplotlib.axes.Axes
        The axes; its first line is the diagonal, the others are the curves.

    Examples
    --------
    >>> from bayeslista.plots import coverage_curve
    >>> codes = [-1.0, -0.5, 0.1, 0.6, 1.2]
    >>> axes = coverage_curve({"calibrated": (0.0, 1.0), "overconfident": (0.0, 0.1)}, codes, levels=[0.5, 0.9])
    >>> [(line.get_label(), line.get_ydata().tolist()) for line in axes.lines[1:]]
    [('calibrated', [0.6, 1.0]), ('overconfident', [0.0, 0.2])]
    """
    asked = _read_levels(np.linspace(0.0, 1.0, 21) if levels is None else levels)
    if isinstance(dist, Mapping):
        distances = {str(name): _named_distance(str(name), each, B, random_state) for name, each in dist.items()}
        if not distances:
            raise ValueError("dist is empty. Pass at least one prediction and its name.")
    else:
        distances = {"predictions": _central_distance(dist, B, random_state)}
    if axes is None:
        axes = new_axes(5.6, 5.4, layout="constrained")
    axes.plot([0.0, 1.0], [0.0, 1.0], color=NEUTRAL, linewidth=1.0, linestyle="--", label="calibrated", zorder=1)
    marker = "." if asked.size < 60 else ""
    for i, (name, distance) in enumerate(distances.items()):
        share = np.searchsorted(np.sort(distance), asked / 2.0, side="right") / distance.size
        style = ("-", "-.", ":")[i // len(SERIES) % 3]
        colour = SERIES[i % len(SERIES)]
        axes.plot(asked, share, style, marker=marker, color=colour, linewidth=1.5, label=name, zorder=2)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("level of the intervals")
    axes.set_ylabel("share of coefficients inside")
    hide_spines(axes)
    axes.legend(frameon=False, loc="best")
    return axes


def error_by_std(dist: Forecast, B: ArrayLike, n_bins: int = 10, axes: "Axes | None" = None) -> "Axes":
    """Draw the root mean squared error against the predicted standard deviation, in bins of the latter.

    The standard deviation of a bin is the root of its mean predicted variance, so points on the diagonal are
    calibrated; above it predictions are overconfident, below it underconfident. If the curve rises, predicted standard
    deviations rank the errors.

    Parameters
    ----------
    dist : SpikeSlab, tuple (mean, std) or array-like of samples
        The predictions.
    B : array-like
        The true codes, which broadcast against the predictions.
    n_bins : int, default=10
        Number of quantile bins. Equal standard deviations share a bin, so there may be fewer.
    axes : matplotlib.axes.Axes, optional
        Where to draw. By default a new figure is made, which is ``axes.figure`` of the returned axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, logarithmic both ways. Its first line is the diagonal, the second holds the bins, and a third, if
        there is one, those without variance or without error, at the edge of the axes.

    Examples
    --------
    >>> from bayeslista.plots import error_by_std
    >>> axes = error_by_std(([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 4.0, 4.0]), [1.0, -1.0, 6.0, 2.0], n_bins=2)
    >>> axes.lines[1].get_xdata().round(2), axes.lines[1].get_ydata().round(2)
    (array([1., 4.]), array([1.  , 4.47]))
    """
    n = check_count("n_bins", n_bins)
    std, error = _binned_errors(*_moments(dist, B), n)
    if axes is None:
        axes = new_axes(5.6, 5.4, layout="constrained")
    shown = (std > 0.0) & (error > 0.0)
    positive = np.concatenate([std[std > 0.0], error[error > 0.0]])
    low, high = (float(positive.min()), float(positive.max())) if positive.size else (1.0, 1.0)
    edge = low / (1.5 if shown.all() else 3.0)
    limits = (edge, 1.5 * high)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot(limits, limits, color=NEUTRAL, linewidth=1.0, linestyle="--", label="calibrated", zorder=1)
    axes.plot(
        std[shown],
        error[shown],
        "o-",
        color=MEAN,
        linewidth=1.2,
        markersize=5.0,
        label="bins of coefficients",
        zorder=2,
    )
    if not shown.all():
        axes.plot(
            np.maximum(std[~shown], edge),
            np.maximum(error[~shown], edge),
            "o",
            color=TRUTH,
            markerfacecolor="white",
            markersize=6.0,
            label="bins with a zero, at the edge",
            clip_on=False,
            zorder=3,
        )
    axes.set_xlim(limits)
    axes.set_ylim(limits)
    axes.set_xlabel("predicted standard deviation")
    axes.set_ylabel("root mean squared error")
    hide_spines(axes)
    axes.legend(frameon=False, loc="upper left")
    return axes


def _binomial_reach(share: NDArray[np.float64], size: NDArray[np.int64]) -> NDArray[np.float64]:
    """Distances from a share to the ends of its exact (Clopper-Pearson) interval."""
    count = np.rint(share * size)
    low = np.where(count > 0, betaincinv(np.maximum(count, 1), size - count + 1, _TAIL), 0.0)
    high = np.where(count < size, betaincinv(count + 1, np.maximum(size - count, 1), 1.0 - _TAIL), 1.0)
    return np.maximum([share - low, high - share], 0.0)


def _read_levels(levels: ArrayLike) -> NDArray[np.float64]:
    array = as_real("levels", levels).astype(np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"levels has shape {array.shape}; it must be (n_levels,). Pass a list of levels, as in [0.9].")
    legal = (array >= 0.0) & (array <= 1.0)
    check_entries(legal, "levels", array, "lie in [0, 1]", "Pass probabilities, not percentages.")
    return np.sort(array)


def _central_distance(dist: Forecast, B: ArrayLike, random_state: Any) -> NDArray[np.float64]:
    """``|PIT − ½|``: half the level of the smallest central interval that covers the code."""
    return np.abs(np.ravel(pit(dist, B, random_state)) - 0.5)


def _named_distance(name: str, dist: Forecast, B: ArrayLike, random_state: Any) -> NDArray[np.float64]:
    try:
        return _central_distance(dist, B, random_state)
    except ValueError as error:
        raise ValueError(f"dist[{name!r}]: {error}") from None


def _moments(dist: Forecast, B: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predicted variance and squared error of every coefficient, in a row."""
    read = read_forecast(dist)
    codes = read_codes(read, B)
    parts = [(var, np.square(mean - code)) for mean, var, code in moment_blocks(read, codes)]
    variance, square = (np.concatenate(column) for column in zip(*parts, strict=True))
    return variance, square


def _binned_errors(
    variance: NDArray[np.float64], square: NDArray[np.float64], n_bins: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Roots of mean variance and mean squared error in quantile bins of the variance, none of them empty."""
    starts = np.unique(np.sort(variance)[np.arange(n_bins) * variance.size // n_bins])
    place = np.searchsorted(starts, variance, side="right") - 1
    size = np.bincount(place)
    return np.sqrt(np.bincount(place, variance) / size), np.sqrt(np.bincount(place, square) / size)
