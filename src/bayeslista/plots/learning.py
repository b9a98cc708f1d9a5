"""Learning curves."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayeslista.plots.style import MEAN, NEUTRAL, hide_spines, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["learning_curves"]

_COLOURS = {"training": NEUTRAL, "validation": MEAN}
# The objective is that of SpikeSlabNet's calibration.
_OBJECTIVES = {"elbo": "ELBO", "log_evidence": "log evidence", "objective": "objective"}

Curves = dict[str, tuple[NDArray[np.float64], str]]


def learning_curves(model: Any, axes: "Axes | None" = None) -> "Axes":
    """Draw the training history of a model: NMSE by epoch, and in strips below squared errors and the ELBO.

    A validation error that rises while the training error falls is overfitting. For `SpikeSlabNet` the curve is the
    objective of its calibration, by step.

    Parameters
    ----------
    model : LISTA, BayesLISTA or SpikeSlabNet
        A fitted estimator with ``history_``.
    axes : matplotlib.axes.Axes, optional
        Where to draw; strips hang below it, so leave room there or save with ``bbox_inches="tight"``. By default a new
        figure is made, which is ``axes.figure`` of the returned axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the first panel; its ``child_axes`` are the strips, from top to bottom.

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

    history: Mapping[str, NDArray[np.float64]] = getattr(model, "history_", {})
    panels = history_panels(history)
    if not panels:
        raise ValueError(
            f"model has no training history to draw ({type(model).__name__}). Pass a LISTA or a BayesLISTA after its "
            "fit, or a SpikeSlabNet after its calibration."
        )
    below = 0.6 + 1.7 * (len(panels) - 1)
    if axes is None:
        height = below + 2.6
        axes = new_axes(8.0, height)
        axes.set_position((0.12, below / height, 0.85, 2.4 / height))
    panel = axes
    for i, (label, curves) in enumerate(panels.items()):
        if i:
            axes.tick_params(labelbottom=False)
            panel.tick_params(labelbottom=False)
            panel = axes.inset_axes((0.0, -0.7 * i, 1.0, 0.6), sharex=axes)
            panel.tick_params(labelbottom=True)
        _draw_curves(panel, label, curves)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    panel.set_xlabel("epoch" if "NMSE" in panels else "step")
    return axes


def history_panels(history: Mapping[str, NDArray[np.float64]]) -> dict[str, Curves]:
    """Curves by label of the axis; the names of NMSE and errors begin with the set of pairs they are of."""
    panels: dict[str, Curves] = {"NMSE": {}, "mean squared error": {}}
    for suffix, label in (("_nmse", "NMSE"), ("_error", "mean squared error")):
        for name, values in history.items():
            if name.endswith(suffix):
                pairs = name.removesuffix(suffix).replace("_", " ")
                panels[label][pairs] = (values, _COLOURS.get(pairs, MEAN))
    for name, label in _OBJECTIVES.items():
        if np.size(history.get(name, ())):
            panels[label] = {label: (history[name], MEAN)}
    return {label: curves for label, curves in panels.items() if curves}


def _draw_curves(axes: "Axes", label: str, curves: Curves) -> None:
    """Curves by epoch, with a legend if there are several; squared errors on a logarithmic scale if positive."""
    for name, (values, colour) in curves.items():
        marker = "." if len(values) < 60 else ""
        axes.plot(np.arange(1, len(values) + 1), values, marker=marker, color=colour, linewidth=1.5, label=name)
    if label == "mean squared error" and all((values > 0.0).all() for values, _ in curves.values()):
        axes.set_yscale("log")
    if label == "NMSE":
        axes.set_ylim(bottom=0.0)
    axes.set_ylabel(label)
    hide_spines(axes)
    if len(curves) > 1:
        axes.legend(ncols=len(curves), frameon=False, loc="best")
