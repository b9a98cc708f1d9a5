"""Pictures of codes, of what is believed of them, of errors and of learning.

Figures are made without pyplot: no backend is chosen, no global setting changes and nothing stays open.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bayeslista._validation import as_real, check_entries
from bayeslista.distributions import SpikeSlab

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["learning_curves", "plot_code", "plot_nmse"]

_TRUTH, _MEAN, _SPREAD, _IDLE, _RULE = "#c2410c", "#1d4ed8", "#c7d7f5", "#94a3b8", "#475569"

_WHOSE = {"training": _IDLE, "held out": _MEAN}


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


def learning_curves(model: Any, axes: "Axes | None" = None) -> "Axes":
    """Draw how a model learned: its NMSE pass by pass, and in strips below its squared errors and its objective.

    What is drawn is what the model's ``history_`` holds. A pass is judged by held-out pairs where there are any; their
    curve above that of the training pairs, and rising while that one falls, is a model that learns its pairs by heart.

    Parameters
    ----------
    model : LISTA or BayesLISTA
        A fitted estimator with ``history_``.
    axes : matplotlib.axes.Axes, optional
        Where to draw; strips hang below it, so leave room there or save with ``bbox_inches="tight"``. By default a new
        figure is made, which is ``axes.figure`` of what is returned.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the NMSE; its ``child_axes`` are the strips, from top to bottom.

    Raises
    ------
    ValueError
        If the model is not fitted or keeps no history.

    Examples
    --------
    >>> from bayeslista import LISTA
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.plots import learning_curves
    >>> data = make_sparse_codes(n_train=30, n_observed=4, n_components=6, random_state=0)
    >>> model = LISTA(n_layers=2, max_iter=3, random_state=0).fit(data.Y_train, data.B_train)
    >>> axes = learning_curves(model)
    >>> axes.get_ylabel(), [strip.get_ylabel() for strip in axes.child_axes]
    ('NMSE', ['mean squared error'])
    """
    from matplotlib.ticker import MaxNLocator

    history: Mapping[str, np.ndarray] = getattr(model, "history_", {})
    ratios, errors = (
        {
            label: (history[name], colour)
            for label, colour in _WHOSE.items()
            if (name := f"{label.replace(' ', '_')}_{kind}") in history
        }
        for kind in ("nmse", "error")
    )
    if not ratios:
        raise ValueError(
            f"model has no history_ to draw ({type(model).__name__}). Pass a LISTA or a BayesLISTA after its fit."
        )
    objective = {"objective": (history["objective"], _MEAN)} if "objective" in history else {}
    panels = [("mean squared error", errors), ("objective", objective)]
    panels = [(label, curves) for label, curves in panels if curves]
    if axes is None:
        below = 0.6 + 1.7 * len(panels)
        height = below + 2.6
        axes = _new_axes(8.0, height)
        axes.set_position((0.12, below / height, 0.85, 2.4 / height))
    passes = np.arange(1, len(next(iter(history.values()))) + 1)
    _draw_curves(axes, passes, "NMSE", ratios)
    axes.set_ylim(bottom=0.0)
    lowest = axes
    for i, (label, curves) in enumerate(panels):
        axes.tick_params(labelbottom=False)
        lowest.tick_params(labelbottom=False)
        lowest = axes.inset_axes((0.0, -0.7 * (i + 1), 1.0, 0.6), sharex=axes)
        lowest.tick_params(labelbottom=True)
        _draw_curves(lowest, passes, label, curves)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    lowest.set_xlabel("pass")
    return axes


def _draw_curves(axes: "Axes", passes: np.ndarray, label: str, curves: Mapping[str, tuple[np.ndarray, str]]) -> None:
    """Curves by pass, with a legend if there are several; errors on a logarithmic scale where they allow it."""
    marker = "." if len(passes) < 60 else ""
    for name, (values, colour) in curves.items():
        axes.plot(passes, values, marker=marker, color=colour, linewidth=1.5, label=name)
    if label == "mean squared error" and all((values > 0.0).all() for values, _ in curves.values()):
        axes.set_yscale("log")
    axes.set_ylabel(label)
    _bare(axes)
    if len(curves) > 1:
        axes.legend(ncols=len(curves), frameon=False, loc="best")


def _new_axes(width: float, height: float, layout: Literal["constrained"] | None = None) -> "Axes":
    """Axes of a new figure that belongs to nobody else."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout).subplots()


def _bare(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)
