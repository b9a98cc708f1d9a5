"""A widget that shows signals one at a time: true coefficients, predicted means, intervals and P(active)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from bayeslista.distributions import SpikeSlab
from bayeslista.metrics.points import row_norms
from bayeslista.reports.page import Widget, read_template, template

__all__ = ["choose_signals", "relative_errors", "signal_viewer"]

_LEVEL = 0.9
_MOST_SIGNALS, _MOST_COEFFICIENTS = 50, 50_000  # of a page, which stays below three megabytes


def relative_errors(codes: Float[np.ndarray, "n D"], mean: Float[np.ndarray, "n D"]) -> Float[np.ndarray, " n"]:
    """``‖β̂ − β‖ / ‖β‖`` of every signal: 0 where both are zero, infinite where only the true code is."""
    error, size = row_norms(mean - codes), row_norms(codes)
    undefined = np.where(error > 0.0, np.inf, 0.0)
    return np.divide(error, size, out=undefined, where=size > 0.0)


def choose_signals(errors: Float[np.ndarray, " n"], n_components: int) -> Int[np.ndarray, " shown"]:
    """Indices of at most 50 signals, evenly spaced by rank from the smallest error to the largest."""
    n = len(errors)
    shown = min(n, _MOST_SIGNALS, max(1, _MOST_COEFFICIENTS // n_components))
    ranks = np.linspace(0, n - 1, shown).round() if shown > 1 else [(n - 1) // 2]
    return np.argsort(errors, kind="stable")[np.asarray(ranks, int)]


def signal_viewer(
    codes: Float[np.ndarray, "n D"],
    mean: Float[np.ndarray, "n D"],
    distribution: SpikeSlab | None = None,
    names: Sequence[str] | None = None,
) -> Widget:
    """The widget for true and predicted codes; intervals and P(active) are shown if `distribution` is given."""
    errors = relative_errors(codes, mean)
    rows = choose_signals(errors, codes.shape[1])
    rank = np.empty(len(errors), int)
    rank[np.argsort(errors, kind="stable")] = np.arange(1, len(errors) + 1)
    signals: list[dict[str, Any]] = []
    for row in rows:
        error = f"{errors[row]:.3g}" if np.isfinite(errors[row]) else "undefined, the code is zero"
        signal = {"row": int(row), "rank": int(rank[row]), "error": error}
        signal |= {"truth": _rounded(codes[row]), "mean": _rounded(mean[row])}
        if distribution is not None:
            low, high = distribution[row].interval(_LEVEL)
            signal |= {"low": _rounded(low), "high": _rounded(high)}
            signal |= {"active": np.round(distribution.prob_active[row].astype(np.float64), 3).tolist()}
            # Of the ends before they are rounded.
            signal["outside"] = np.flatnonzero((codes[row] < low) | (codes[row] > high)).tolist()
        signals.append(signal)
    data = {"level": f"{100 * _LEVEL:g} %", "total": len(errors), "start": len(rows) // 2, "signals": signals}
    markup = template("signal_viewer.html.jinja").render(data, distributions=distribution is not None)
    if names is not None:
        data["names"] = [str(name) for name in names]
    return Widget(markup, data, read_template("signal_viewer.js"))


def _rounded(values: NDArray[np.floating]) -> list[float]:
    """Four digits of every number, whole ones as integers, which take less room."""
    numbers = [float(f"{value:.4g}") for value in values.astype(np.float64)]
    return [int(number) if number == int(number) else number for number in numbers]
