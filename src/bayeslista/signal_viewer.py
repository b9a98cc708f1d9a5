"""Signals to leaf through on a page: true coefficients, what a model says of them, and how sure it is.

The drawing is made by a script in the page, of the data in the page: nothing is fetched.
"""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from bayeslista.distributions import SpikeSlab
from bayeslista.metrics.points import _norm
from bayeslista.report import Live

__all__ = ["choose_signals", "relative_errors", "signal_viewer"]

_LEVEL, _PERCENT = 0.9, "90 %"
_MOST_SIGNALS, _MOST_COEFFICIENTS = 50, 50_000  # of a page, which stays below three megabytes


def relative_errors(codes: Float[np.ndarray, "n D"], mean: Float[np.ndarray, "n D"]) -> Float[np.ndarray, " n"]:
    """Norm of the error over that of the code, signal by signal.

    Parameters
    ----------
    codes, mean : ndarray of shape (n, D)
        The true codes and those predicted, finite.

    Returns
    -------
    ndarray of shape (n,)
        Infinite where the true code is all zeros and the prediction is not, 0 where both are.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.signal_viewer import relative_errors
    >>> relative_errors(np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]]), np.array([[3.0, 3.0], [1.0, 0.0], [0.0, 0.0]]))
    array([0.2, inf, 0. ])
    """
    error, size = _norm(mean - codes), _norm(codes)
    undefined = np.where(error > 0.0, np.inf, 0.0)
    return np.divide(error, size, out=undefined, where=size > 0.0)


def choose_signals(errors: Float[np.ndarray, " n"], n_components: int) -> Int[np.ndarray, " shown"]:
    """Choose signals that span the errors from the smallest to the largest, evenly by rank.

    Parameters
    ----------
    errors : ndarray of shape (n,)
        Of all signals.
    n_components : int
        Coefficients of a signal: the longer signals are, the fewer are chosen.

    Returns
    -------
    ndarray of shape (shown,)
        Their indices by increasing error: all, or at most 50 with the best and the worst among them; the median if
        there is room for one only.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.signal_viewer import choose_signals
    >>> choose_signals(np.array([0.3, 0.1, 0.2]), n_components=100)
    array([1, 2, 0])
    >>> choose_signals(np.arange(101.0), n_components=10_000)
    array([  0,  25,  50,  75, 100])
    """
    n = len(errors)
    shown = min(n, _MOST_SIGNALS, max(1, _MOST_COEFFICIENTS // n_components))
    ranks = np.linspace(0, n - 1, shown).round() if shown > 1 else [(n - 1) // 2]
    return np.argsort(errors, kind="stable")[np.asarray(ranks, int)]


def signal_viewer(
    codes: Float[np.ndarray, "n D"],
    mean: Float[np.ndarray, "n D"],
    belief: SpikeSlab | None = None,
    names: Sequence[str] | None = None,
) -> Live:
    """Make a block of a page in which a reader leafs through signals, from the smallest error to the largest.

    Parameters
    ----------
    codes, mean : ndarray of shape (n, D)
        The true codes and those predicted, finite.
    belief : SpikeSlab of shape (n, D), default=None
        What is believed of them; without it neither intervals nor P(active) are drawn.
    names : sequence of D str, default=None
        Of the coefficients, told beside their numbers.

    Returns
    -------
    Live
        A drop-down list, a slider and a drawing, which also obey the arrow keys.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.signal_viewer import signal_viewer
    >>> viewer = signal_viewer(np.array([[0.0, 2.0]]), np.array([[0.1, 1.5]]))
    >>> viewer.data["signals"][0]["mean"]
    [0.1, 1.5]
    """
    errors = relative_errors(codes, mean)
    rows = choose_signals(errors, codes.shape[1])
    rank = np.empty(len(errors), int)
    rank[np.argsort(errors, kind="stable")] = np.arange(1, len(errors) + 1)
    signals: list[dict[str, Any]] = []
    for row in rows:
        error = f"{errors[row]:.3g}" if np.isfinite(errors[row]) else "undefined, the code is zero"
        signal = {"row": int(row), "rank": int(rank[row]), "error": error}
        signal |= {"truth": _rounded(codes[row]), "mean": _rounded(mean[row])}
        if belief is not None:
            low, high = belief[row].interval(_LEVEL)
            signal |= {"low": _rounded(low), "high": _rounded(high)}
            signal |= {"active": np.round(belief.prob_active[row].astype(np.float64), 3).tolist()}
            # Decided here: rounded ends do not tell.
            signal["outside"] = np.flatnonzero((codes[row] < low) | (codes[row] > high)).tolist()
        signals.append(signal)
    start = len(rows) // 2
    data: dict[str, Any] = {"level": _PERCENT, "total": len(errors), "start": start, "signals": signals}
    if names is not None:
        data["names"] = [str(name) for name in names]
    return Live(_markup(signals, start, len(errors), belief is not None), data, *_assets())


def _rounded(values: NDArray[np.floating]) -> list[float]:
    """Four digits of every number, whole ones as integers, which take less room."""
    numbers = [float(f"{value:.4g}") for value in values.astype(np.float64)]
    return [int(number) if number == int(number) else number for number in numbers]


def _assets() -> tuple[str, str]:
    folder = files("bayeslista")
    script, style = (folder.joinpath(f"signal_viewer.{kind}").read_text(encoding="utf-8") for kind in ("js", "css"))
    return script, style


def _markup(signals: list[dict[str, Any]], start: int, total: int, distributions: bool) -> str:
    names = ["error {error}: row {row}, rank {rank} of {total}".format(**each, total=total) for each in signals]
    options = "\n".join(
        f'<option value="{i}"{" selected" if i == start else ""}>{escape(name)}</option>'
        for i, name in enumerate(names)
    )
    legend = [("truth", "truth, where not zero"), ("mean", "predicted mean")]
    if distributions:
        legend += [
            ("outside", "truth outside its interval"),
            ("interval", f"{_PERCENT} interval"),
            ("bar", "P(active)"),
            ("bar active", "P(active) where the truth is not zero, also marked below the axis"),
        ]
    keys = "\n".join(
        f'<li><span class="key {kind}" aria-hidden="true"></span>{escape(text)}</li>' for kind, text in legend
    )
    return f"""<div class="controls">
<label>Signal <select class="choice">
{options}
</select></label>
<span class="steps"><button type="button" class="previous" aria-label="Previous signal, smaller error">&#9664;</button>
<button type="button" class="next" aria-label="Next signal, larger error">&#9654;</button></span>
<label class="by-error">smallest error <input type="range" class="slider"
min="0" max="{len(signals) - 1}" value="{start}"
aria-label="Signal, from the smallest error to the largest"> largest</label>
<label><input type="checkbox" class="same-scale" checked> one scale for all signals</label>
</div>
<p class="facts" aria-live="polite"></p>
<svg class="drawing" role="img" aria-label="The signal chosen above" height="440"></svg>
<ul class="legend">
{keys}
</ul>
<p class="readout">Point at a coefficient to read its numbers; the arrow keys go from signal to signal.</p>
<details><summary>The numbers of this signal</summary><div class="wide" tabindex="0" role="region" \
aria-label="Table of coefficients"><table class="numbers"></table></div></details>
<noscript><p>The drawing needs JavaScript, which is switched off.</p></noscript>"""
