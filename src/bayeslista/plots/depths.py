"""Errors of networks of several depths."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from bayeslista.metrics import nmse
from bayeslista.plots.style import hide_spines, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["fit_depths", "plot_error_by_depth"]


def fit_depths(
    estimator: Any, depths: Iterable[int], pairs: tuple[ArrayLike, ArrayLike], test: tuple[ArrayLike, ArrayLike]
) -> dict[int, float]:
    """Fit clones of a network with several numbers of layers; their NMSE on test pairs.

    Parameters
    ----------
    estimator : estimator
        A network with a parameter `n_layers`; it is cloned.
    depths : iterable of int
        Numbers of layers.
    pairs : tuple of two array-likes
        Observations and codes to fit to.
    test : tuple of two array-likes
        Observations and codes for the error.

    Returns
    -------
    dict of int to float
        The NMSE of every depth.

    Examples
    --------
    >>> from bayeslista import ISTA
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.plots import fit_depths
    >>> data = make_sparse_codes(n_train=20, n_test=5, n_observed=8, n_components=10, random_state=0)
    >>> pairs, test = (data.Y_train, data.B_train), (data.Y_test, data.B_test)
    >>> errors = fit_depths(ISTA(design_matrix=data.design_matrix), [2, 20], pairs, test)
    >>> errors[20] < errors[2]
    True
    """
    errors = {}
    for depth in depths:
        fitted = clone(estimator).set_params(n_layers=depth).fit(*pairs)
        errors[int(depth)] = float(nmse(test[1], fitted.predict(test[0])))
    return errors


def plot_error_by_depth(errors: Mapping[str, Mapping[int, float]], axes: "Axes | None" = None) -> "Axes":
    """Draw the error of every method against its number of layers.

    Parameters
    ----------
    errors : mapping of str to mapping of int to float
        For every method, the error of every depth, as of `fit_depths`.
    axes : matplotlib Axes, default=None
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib Axes
        The axes drawn on.

    Examples
    --------
    >>> from bayeslista.plots import plot_error_by_depth
    >>> axes = plot_error_by_depth({"LISTA": {4: 0.39, 10: 0.32}, "ISTA": {4: 0.9, 10: 0.8}})
    >>> axes.get_xlabel()
    'layers'
    """
    if not errors or not all(errors.values()):
        raise ValueError("errors has a method without any depth; give at least one of each.")
    values = [value for by_depth in errors.values() for value in by_depth.values()]
    if not np.all(np.isfinite(values)):
        raise ValueError("errors has an entry that is not finite; leave that depth out.")
    if axes is None:
        axes = new_axes(6.0, 4.0, layout="constrained")
    for method, by_depth in errors.items():
        depths = sorted(by_depth)
        axes.plot(depths, [by_depth[depth] for depth in depths], marker="o", label=method)
    axes.set(xlabel="layers", ylabel="NMSE")
    axes.legend()
    hide_spines(axes)
    return axes
