"""The curves of the paper's figures, read from its graphics."""

import json
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["PublishedCurve", "published_curves"]


class PublishedCurve(NamedTuple):
    """One curve of one figure.

    Attributes
    ----------
    x : tuple of int
        Where.
    nmse : tuple of float
        The error there, to four digits.
    error_bar_half : tuple of float or None
        Half the length of the error bars, where any are drawn.

    Examples
    --------
    >>> from bayeslista.experiments.published import published_curves
    >>> curve = published_curves()["layers"]["BayesLISTA"]
    >>> curve.x[-1], curve.nmse[-1]
    (20, 0.5134)
    """

    x: tuple[int, ...]
    nmse: tuple[float, ...]
    error_bar_half: tuple[float, ...] | None = None


@lru_cache(maxsize=1)
def _read() -> dict[str, dict[str, PublishedCurve]]:
    text = files("bayeslista.experiments").joinpath("published_curves.json").read_text(encoding="utf-8")
    return {
        figure: {
            method: PublishedCurve(**{name: tuple(values) for name, values in curve.items()})
            for method, curve in curves.items()
        }
        for figure, curves in json.loads(text).items()
    }


def published_curves() -> dict[str, dict[str, PublishedCurve]]:
    """All published curves, by figure and by method.

    Returns
    -------
    dict of dict of PublishedCurve
        Figures ``layers``, ``undersampling``, ``mnist_k100``, ``mnist_k250`` and ``active``.

    Examples
    --------
    >>> from bayeslista.experiments.published import published_curves
    >>> sorted(published_curves()["active"])
    ['active', 'random']
    """
    return {figure: dict(curves) for figure, curves in _read().items()}
