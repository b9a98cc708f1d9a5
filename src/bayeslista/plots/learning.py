"""Pictures of learning."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bayeslista.plots._axes import _IDLE, _MEAN, _bare, _new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["learning_curves"]

_WHOSE = {"training": _IDLE, "held out": _MEAN}


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
