"""One page about a fitted model and pairs to judge it by: scores, signals to leaf through, calibration, settings."""

import os
import platform
import re
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayeslista.distributions import SpikeSlab
from bayeslista.estimators._base import BaseSparseCoder
from bayeslista.estimators._distributional import DistributionalSparseCoder
from bayeslista.metrics import (
    brier_score,
    coverage,
    crps,
    log_score,
    nmse,
    pit_coverage,
    support_f_measure,
    variance_ratio,
)
from bayeslista.plots import coverage_curve, error_by_std, learning_curves, pit_histogram, reliability_diagram
from bayeslista.plots._axes import _MEAN, _bare, _new_axes
from bayeslista.report import Block, Figure, Gallery, Paragraph, Section, Table, write_page
from bayeslista.signal_viewer import signal_viewer

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

__all__ = ["write_model_report"]

_LEVEL = 0.9
_SEED = 0  # decides draws at atoms, so that the same pairs give the same page
_PACKAGES = ("bayeslista", "jax", "numpy", "scipy", "scikit-learn")


class _Judged(NamedTuple):
    """Codes, one in a row, and what was predicted of them."""

    codes: Float[np.ndarray, "n D"]
    mean: Float[np.ndarray, "n D"]
    belief: SpikeSlab | None


def write_model_report(model: BaseSparseCoder, X: ArrayLike, y: ArrayLike, path: str | os.PathLike[str]) -> None:
    """Write one HTML page about a fitted model, judged by pairs that it did not learn from.

    The page holds a table of scores beside those of two trivial predictions, up to 50 signals to leaf through, pictures
    of calibration for models that predict distributions, learning curves, and what the model is. It needs no network,
    and the same model and pairs give the same bytes.

    Parameters
    ----------
    model : ISTA, FISTA, LISTA, BayesLISTA or SpikeSlabNet
        A fitted estimator.
    X : array-like of shape (n_samples, n_observed)
        Observations, one a row.
    y : array-like of shape (n_samples, n_components) or (n_samples,)
        Their codes, one a row.
    path : str or path-like
        The file, in a folder that exists; replaced, whole or not at all, if it is there.

    Raises
    ------
    ValueError
        If the model is not fitted, or X or y does not suit it or holds numbers that are not finite.
    TypeError
        If the model is not one of this package.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista import ISTA
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.model_report import write_model_report
    >>> data = make_sparse_codes(n_train=20, n_test=10, n_observed=8, n_components=10, random_state=0)
    >>> model = ISTA(design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = Path(folder) / "model.html"
    ...     write_model_report(model, data.Y_test, data.B_test, page)
    ...     "<h1>ISTA, judged by 10 signals</h1>" in page.read_text(encoding="utf-8")
    True
    """
    if not isinstance(model, BaseSparseCoder):
        raise TypeError(
            f"model must be an estimator of bayeslista, got {type(model).__name__}. Of a pipeline pass the last step, "
            "and X as the steps before it leave it."
        )
    fitted = model._ready(X)  # SpikeSlabNet may predict from a given prior, without a fit
    codes = fitted._validate_pairs(X, y, reset=False)[1].astype(np.float64)
    judged = _judge(fitted, X, codes)
    name = type(model).__name__
    sections = [
        Section("How good it is", _scores(judged)),
        Section("Signals", _signals(judged, getattr(fitted, "component_names_", None))),
        Section("How far its uncertainty can be trusted", _uncertainty(judged, name)),
        Section("How it learned", _learning(model)),
        Section("What it is", _about(model, fitted, len(codes))),
    ]
    write_page(path, f"{name}, judged by {_counted(len(codes), 'signal')}", sections)


def _judge(model: BaseSparseCoder, X: ArrayLike, codes: Float[np.ndarray, "n D"]) -> _Judged:
    if not isinstance(model, DistributionalSparseCoder):
        return _Judged(codes, model.predict(X).reshape(codes.shape).astype(np.float64), None)
    belief = model.predict_dist(X)
    parts = (part.reshape(codes.shape) for part in (belief.prob_active, belief.slab_mean, belief.slab_var))
    rows = SpikeSlab(*parts)
    return _Judged(codes, rows.mean().astype(np.float64), rows)


def _trivial(judged: _Judged) -> dict[str, _Judged]:
    """What needs no model: zero, and what codes are like on average."""
    codes = judged.codes
    zero, mean = np.zeros_like(codes), np.broadcast_to(codes.mean(axis=0), codes.shape)
    if judged.belief is None:
        return {"zero": _Judged(codes, zero, None), "the mean code": _Judged(codes, mean, None)}
    return {
        "zero": _Judged(codes, zero, SpikeSlab(zero, 0.0, 0.0)),
        "the mean code": _Judged(codes, mean, _usual(codes)),
    }


def _usual(codes: Float[np.ndarray, "n D"]) -> SpikeSlab:
    """How often each coefficient is active, and its mean and variance then, by all signals and an average one more."""
    active = codes != 0.0
    count, total = active.sum(axis=0), codes.sum(axis=0)
    share, everywhere = active.mean(), codes[active] if active.any() else np.zeros(1)
    mean = (total + everywhere.mean()) / (count + 1)
    square = np.sum(np.where(active, codes - mean, 0.0) ** 2, axis=0)
    variance = (square + (everywhere.mean() - mean) ** 2 + everywhere.var()) / (count + 1)
    return SpikeSlab(np.broadcast_to((count + share) / (len(codes) + 1), codes.shape), mean, variance)


def _support(judged: _Judged) -> np.ndarray:
    return judged.mean if judged.belief is None else (judged.belief.prob_active > 0.5).astype(np.float64)


_POINT_SCORES: dict[str, tuple[str, Callable[[_Judged], float]]] = {
    "NMSE": ("smaller", lambda each: nmse(each.codes, each.mean) if each.codes.any() else np.nan),
    "F-measure of the support": ("larger", lambda each: support_f_measure(each.codes, _support(each))),
}
_BELIEF_SCORES: dict[str, tuple[str, Callable[[SpikeSlab, np.ndarray], float]]] = {
    "log score": ("smaller", log_score),
    "CRPS": ("smaller", crps),
    "Brier score of P(active)": ("smaller", brier_score),
    "PIT coverage, 50 %": ("0.5", lambda belief, codes: pit_coverage(belief, codes, 0.5, random_state=_SEED)),
    "PIT coverage, 90 %": ("0.9", lambda belief, codes: pit_coverage(belief, codes, _LEVEL, random_state=_SEED)),
    "90 % intervals hold, of all": ("at least 0.9", lambda belief, codes: coverage(belief, codes, _LEVEL)),
    "90 % intervals hold, of those not zero": ("", lambda belief, codes: _coverage_of_active(belief, codes)),
    "variance over squared error": ("1", variance_ratio),
}


def _coverage_of_active(belief: SpikeSlab, codes: np.ndarray) -> float:
    active = codes != 0.0
    return coverage(belief[active], codes[active], _LEVEL) if active.any() else np.nan


def _scores(judged: _Judged) -> list[Block]:
    columns = {"the model": judged, **_trivial(judged)}
    rows = [
        [name, *(_number(score(each)) for each in columns.values()), best]
        for name, (best, score) in _POINT_SCORES.items()
    ]
    if judged.belief is not None:
        rows += [
            [name, *(_number(score(cast("SpikeSlab", each.belief), each.codes)) for each in columns.values()), best]
            for name, (best, score) in _BELIEF_SCORES.items()
        ]
    text = (
        "NMSE is the mean of the error's norm over the code's, norms without squares. The mean code is that of these "
        "very signals, the same for each: a model that has learned something is better. "
    )
    if judged.belief is None:
        text += "The support is where a predicted coefficient is not zero."
    else:
        text += (
            "The support is where P(active) exceeds one half. Log score and CRPS judge whole distributions; that of "
            "the mean code has for every coefficient how often it is active, and its mean and variance then. PIT "
            "coverage is the share of coefficients in the middle 50 or 90 % of their distributions, with a draw of "
            "lots at zero. Intervals that end at zero hold more than they are asked to, and fewer of the coefficients "
            "that are not zero."
        )
    return [
        Table(["score", *columns, "best"], rows, "Scores of the model, and of two predictions that need none."),
        Paragraph(text),
        Paragraph("Signals that the model learned from would flatter it: these should be others."),
    ]


def _signals(judged: _Judged, names: np.ndarray | None) -> list[Block]:
    viewer = signal_viewer(judged.codes, judged.mean, judged.belief, None if names is None else names.tolist())
    shown, total = len(viewer.data["signals"]), len(judged.codes)
    which = (
        f"All {_counted(total, 'signal')}, from"
        if shown == total
        else f"{shown} of {total:,} signals, evenly spaced by rank from"
    )
    return [
        Paragraph(
            f"{which} the smallest relative error (the error's norm over the code's) to the largest; the first shown "
            "is that in the middle. Rows count from 0, as in the data."
        ),
        viewer,
    ]


def _uncertainty(judged: _Judged, name: str) -> list[Block]:
    belief, codes = judged.belief, judged.codes
    if belief is None:
        return [
            Paragraph(
                f"{name} predicts one number for every coefficient and not a distribution, so there is no uncertainty "
                "to judge; BayesLISTA and SpikeSlabNet have it."
            )
        ]
    pictures = [
        Figure(
            _picture(reliability_diagram(belief, codes)),
            "Share of coefficients that are active against P(active) as predicted, with their number below.",
            "On the diagonal P(active) is right: of coefficients with 0.3, three in ten are not zero.",
        ),
        Figure(
            _picture(coverage_curve(belief, codes, random_state=_SEED)),
            "Share of coefficients inside central intervals against the level of the intervals.",
            "On the diagonal widths are right; below it the model is too sure, above it too modest.",
        ),
        Figure(
            _picture(pit_histogram(belief, codes, random_state=_SEED)),
            "Histogram of the probability integral transform of the true coefficients.",
            "Flat if calibrated; a valley in the middle: too sure, a hill: too modest.",
        ),
        Figure(
            _picture(error_by_std(belief, codes)),
            "Root mean squared error against predicted standard deviation, in bins of coefficients.",
            "A curve that rises along the diagonal: the model knows where it is wrong.",
        ),
    ]
    return [Gallery(pictures)]


def _learning(model: BaseSparseCoder) -> list[Block]:
    history = getattr(model, "history_", {})
    if any(name.endswith("_nmse") for name in history):
        return [
            Figure(
                _picture(learning_curves(model)),
                "Curves of the NMSE by pass, and below it of what else the model kept.",
                "Errors and objective, pass by pass. A curve of held-out pairs that rises while that of the training "
                "pairs falls is a model that learns its pairs by heart.",
            )
        ]
    if np.size(history.get("objective", ())):
        return [
            Figure(
                _objective(history["objective"]),
                "Curve of the objective by step.",
                "The objective of calibration by simulated pairs, step by step; smaller is better.",
            )
        ]
    return [Paragraph("It keeps no record of learning: it learned nothing, or nothing step by step.")]


def _objective(values: np.ndarray) -> "matplotlib.figure.Figure":
    axes = _new_axes(8.0, 3.2, layout="constrained")
    axes.plot(np.arange(1, len(values) + 1), values, color=_MEAN, linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel("objective")
    _bare(axes)
    return _picture(axes)


def _about(model: BaseSparseCoder, fitted: BaseSparseCoder, n_signals: int) -> list[Block]:
    parameters = [[name, _value(value)] for name, value in model.get_params(deep=False).items()]
    counts = getattr(model, "diagnostics_", {})
    facts = [
        ["estimator", type(model).__name__],
        ["observed values of a signal, K", f"{fitted.n_features_in_}"],
        ["coefficients of a code, D", f"{fitted.n_components_}"],
        ["signals on this page", f"{n_signals}"],
        ["floating type", f"{fitted.dtype_}"],
        ["design matrix", "estimated from pairs" if model.design_matrix is None else "given"],
    ]
    if isinstance(model, DistributionalSparseCoder):
        facts.append(["calibrated after the fit", "no" if model.recalibration_ is None else "yes"])
    if counts:
        facts.append(["counted in training", ", ".join(f"{name} {count}" for name, count in counts.items())])
    versions = [[name, version(name)] for name in _PACKAGES] + [["Python", platform.python_version()]]
    return [
        Table(["", "value"], facts, "The model and the signals."),
        Table(["parameter", "value"], parameters, "Parameters it was made with."),
        Table(["name", "version"], versions, "Versions that wrote this page."),
    ]


def _picture(axes: "Axes") -> "matplotlib.figure.Figure":
    return cast("matplotlib.figure.Figure", axes.figure)


def _counted(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def _number(value: float) -> str:
    if np.isnan(value):
        return "undefined"
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"


def _value(value: Any) -> str:
    """A parameter in one line: arrays by their shape, anything else cut short where it is long."""
    if isinstance(value, (np.ndarray, list, tuple)) and np.size(value) > 8:
        array = np.asarray(value)
        return f"array of shape {array.shape}, {array.dtype}"
    text = re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))
    return text if len(text) <= 100 else f"{text[:97]}..."
