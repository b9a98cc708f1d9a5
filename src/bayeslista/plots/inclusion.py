"""Plots of a regression: inclusion probabilities and credible sets."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bayeslista.decisions import CredibleSet
from bayeslista.numerics.checks import as_real, check_entries
from bayeslista.plots.style import INTERVAL, MEAN, NEUTRAL, RULE, SERIES, hide_spines, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_credible_sets", "plot_inclusion"]


def plot_inclusion(table: Any, n_features: int = 20, axes: "Axes | None" = None) -> "Axes":
    """Draw the inclusion probabilities of the most probable features, and their coefficients in a strip beside.

    Parameters
    ----------
    table : pandas.DataFrame
        What ``SpikeSlabRegressor.inclusion_table`` returns.
    n_features : int, default=20
        Most features to draw.
    axes : matplotlib.axes.Axes, optional
        Where to draw. By default a new figure is made, which is ``axes.figure`` of the returned axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the probabilities; its ``child_axes[-1]`` has the intervals of the coefficients given that they are
        active, faint where that is improbable.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from bayeslista import SpikeSlabRegressor
    >>> from bayeslista.plots import plot_inclusion
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> axes = plot_inclusion(SpikeSlabRegressor(random_state=0).fit(X, y).inclusion_table())
    >>> sorted(label.get_text() for label in axes.get_yticklabels()[:3])
    ['bmi', 'bp', 's5']
    """
    shown = table.head(n_features)
    if len(shown) == 0:
        raise ValueError("table is empty. Pass what inclusion_table() of a fitted SpikeSlabRegressor returns.")
    if axes is None:
        axes = new_axes(9.0, 1.4 + 0.28 * len(shown))
        axes.set_position((0.2, 0.13, 0.36, 0.82))
    place, prob = np.arange(len(shown)), shown["prob_active"].to_numpy()
    axes.barh(place, prob, color=MEAN, height=0.7)
    axes.set_yticks(place, shown["feature"].astype(str))
    axes.invert_yaxis()
    axes.set_xlim(0.0, 1.0)
    axes.set_xlabel("P(active)")
    axes.axvline(0.5, color=RULE, linewidth=0.6, linestyle=":")
    hide_spines(axes)
    strip = axes.inset_axes((1.06, 0.0, 1.0, 1.0), sharey=axes)
    mean = 0.5 * (shown["low"] + shown["high"]).to_numpy()
    for y, low, high, centre, p in zip(place, shown["low"], shown["high"], mean, prob, strict=True):
        strip.hlines(y, low, high, color=MEAN, alpha=0.15 + 0.85 * p, linewidth=2.0)
        strip.plot(centre, y, "o", color=MEAN, alpha=0.15 + 0.85 * p, markersize=4)
    strip.axvline(0.0, color=NEUTRAL, linewidth=0.8)
    strip.tick_params(labelleft=False, left=False)
    strip.set_xlabel("coefficient, given active")
    hide_spines(strip)
    return axes


def plot_credible_sets(
    prob_active: ArrayLike, sets: Sequence[CredibleSet], position: ArrayLike | None = None, axes: "Axes | None" = None
) -> "Axes":
    """Draw the inclusion probabilities of all features along their positions, credible sets in colour.

    Parameters
    ----------
    prob_active : array-like of shape (n_features,)
        Inclusion probabilities.
    sets : sequence of CredibleSet
        What ``SpikeSlabRegressor.credible_sets`` or :func:`bayeslista.decisions.credible_sets` returns.
    position : array-like of shape (n_features,), optional
        Where a feature is, on a chromosome for example. By default its index.
    axes : matplotlib.axes.Axes, optional
        Where to draw. By default a new figure is made, which is ``axes.figure`` of the returned axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes; its legend has the size and probability of each set.

    Examples
    --------
    >>> from bayeslista.decisions import CredibleSet
    >>> from bayeslista.plots import plot_credible_sets
    >>> axes = plot_credible_sets([0.0, 0.6, 0.4, 0.01], [CredibleSet((1, 2), 1.0, 0.97, 1.0)])
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['set of 2, P = 1.00']
    """
    prob = as_real("prob_active", prob_active)
    place = np.arange(prob.size) if position is None else as_real("position", position)
    if prob.ndim != 1 or place.shape != prob.shape:
        raise ValueError(
            f"prob_active has shape {prob.shape} and position {place.shape}; both must be (n_features,). Pass those of "
            "one response."
        )
    check_entries((prob >= 0) & (prob <= 1), "prob_active", prob, "lie in [0, 1]", "Pass probabilities.")
    if axes is None:
        axes = new_axes(10.0, 3.6, layout="constrained")
    axes.plot(place, prob, ".", color=INTERVAL, markersize=4, zorder=1)
    for number, each in enumerate(sets):
        columns, label = list(each.columns), f"set of {len(each.columns)}, P = {each.probability:.2f}"
        colour = SERIES[number % len(SERIES)]
        axes.plot(place[columns], prob[columns], "o", color=colour, markersize=5, label=label, zorder=2)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("P(active)")
    axes.set_xlabel("index of the feature" if position is None else "position")
    if len(sets):
        axes.legend(frameon=False)
    hide_spines(axes)
    return axes
