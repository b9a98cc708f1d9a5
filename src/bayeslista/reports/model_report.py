"""The report of a fitted model on test pairs: scores, single signals, calibration, learning curves and parameters."""

import os
import platform
import re
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from bayeslista.distributions import SpikeSlab
from bayeslista.metrics import (
    brier_score,
    coverage,
    crps,
    log_score,
    nmse,
    pit_coverage,
    support_coverage,
    support_f_measure,
    variance_ratio,
)
from bayeslista.numerics.checks import as_real, check_entries
from bayeslista.plots import coverage_curve, error_by_std, learning_curves, pit_histogram, reliability_diagram
from bayeslista.plots.learning import history_panels
from bayeslista.reports.page import Block, Figure, Gallery, Paragraph, Section, Table, write_page
from bayeslista.reports.signal_viewer import signal_viewer

if TYPE_CHECKING:
    import matplotlib.figure
    from matplotlib.axes import Axes

__all__ = ["write_model_report"]

_LEVEL = 0.9
_SEED = 0  # of the randomised PIT, so that the same pairs give the same page
_PACKAGES = ("bayeslista", "jax", "numpy", "scipy", "scikit-learn")


class Evaluation(NamedTuple):
    """True codes, one a row, their predicted means and, where the model has them, their distributions."""

    codes: Float[np.ndarray, "n D"]
    mean: Float[np.ndarray, "n D"]
    distribution: SpikeSlab | None


def write_model_report(model: BaseEstimator, X: ArrayLike, y: ArrayLike, path: str | os.PathLike[str]) -> None:
    """Write one HTML page that evaluates a fitted model on test pairs.

    The page has a table of scores beside those of two baselines, up to 50 single signals, calibration plots for models
    with predictive distributions, learning curves, and the parameters. It works without a network, and the same model
    and pairs give the same bytes.

    Parameters
    ----------
    model : estimator
        A fitted estimator: those of this package, or any with ``predict``. Distributions are those of
        ``predict_dist``, if it has that method.
    X : array-like of shape (n_samples, n_observed)
        Observations, one a row.
    y : array-like of shape (n_samples, n_components) or (n_samples,)
        Their codes, one a row.
    path : str or path-like
        The file, in a folder that exists. It is written atomically.

    Raises
    ------
    ValueError
        If the model is not fitted, or X or y does not suit it or is not finite.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista import ISTA
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.reports import write_model_report
    >>> data = make_sparse_codes(n_train=20, n_test=10, n_observed=8, n_components=10, random_state=0)
    >>> model = ISTA(design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = Path(folder) / "model.html"
    ...     write_model_report(model, data.Y_test, data.B_test, page)
    ...     "<h1>ISTA on 10 test signals</h1>" in page.read_text(encoding="utf-8")
    True
    """
    evaluation = _evaluate(model, X, y)
    name = type(model).__name__
    names = getattr(model, "component_names_", None)
    sections = [
        Section("Scores", _scores(evaluation)),
        Section("Signals", _signals(evaluation, names)),
        Section("Calibration", _calibration(evaluation, name)),
        Section("Training", _training(model)),
        Section("Model", _about(model, np.shape(X)[1], evaluation)),
    ]
    write_page(path, f"{name} on {_counted(len(evaluation.codes), 'test signal')}", sections)


def _evaluate(model: Any, X: ArrayLike, y: ArrayLike) -> Evaluation:
    """Predictions for X and the codes y, in shape (n, D)."""
    predicted = model.predict_dist(X) if hasattr(model, "predict_dist") else np.asarray(model.predict(X))
    codes = as_real("y", y).astype(np.float64)
    if codes.shape != predicted.shape:
        raise ValueError(f"y has shape {codes.shape}, but predictions {predicted.shape}. Pass one code a row of X.")
    check_entries(np.isfinite(codes), "y", codes, "be finite", "Leave out pairs with missing codes.")
    shape = (len(codes), codes.size // len(codes))
    if not isinstance(predicted, SpikeSlab):
        return Evaluation(codes.reshape(shape), predicted.reshape(shape).astype(np.float64), None)
    distribution = predicted._reshape(shape)
    return Evaluation(codes.reshape(shape), distribution.mean().astype(np.float64), distribution)


def _baselines(evaluation: Evaluation) -> dict[str, Evaluation]:
    """Zero, and the mean and marginal distribution of the codes."""
    codes, zero = evaluation.codes, np.zeros_like(evaluation.codes)
    mean = np.broadcast_to(codes.mean(axis=0), codes.shape)
    pointwise = evaluation.distribution is None
    return {
        "zero": Evaluation(codes, zero, None if pointwise else SpikeSlab(zero, 0.0, 0.0)),
        "mean code": Evaluation(codes, mean, None if pointwise else _marginal(codes)),
    }


def _marginal(codes: Float[np.ndarray, "n D"]) -> SpikeSlab:
    """Spike and slab of each coefficient over all signals, with one average pseudo-observation."""
    active = codes != 0.0
    count, total = active.sum(axis=0), codes.sum(axis=0)
    share, pooled = active.mean(), codes[active] if active.any() else np.zeros(1)
    mean = (total + pooled.mean()) / (count + 1)
    square = np.sum(np.where(active, codes - mean, 0.0) ** 2, axis=0)
    variance = (square + (pooled.mean() - mean) ** 2 + pooled.var()) / (count + 1)
    return SpikeSlab(np.broadcast_to((count + share) / (len(codes) + 1), codes.shape), mean, variance)


def _support(each: Evaluation) -> Float[np.ndarray, "n D"]:
    return each.mean if each.distribution is None else (each.distribution.prob_active > 0.5).astype(np.float64)


def _support_coverage(dist: SpikeSlab, codes: Float[np.ndarray, "n D"], given_active: bool = False) -> float:
    return support_coverage(dist, codes, _LEVEL, given_active) if codes.any() else np.nan


# Name of a score: its best value, and its function.
_POINT_SCORES: dict[str, tuple[str, Callable[[Evaluation], float]]] = {
    "NMSE": ("smaller", lambda each: nmse(each.codes, each.mean) if each.codes.any() else np.nan),
    "F-measure of the support": ("larger", lambda each: support_f_measure(each.codes, _support(each))),
}
_DISTRIBUTION_SCORES: dict[str, tuple[str, Callable[[SpikeSlab, np.ndarray], float]]] = {
    "log score": ("smaller", log_score),
    "CRPS": ("smaller", crps),
    "Brier score of P(active)": ("smaller", brier_score),
    "PIT coverage, 50 %": ("0.5", lambda dist, codes: pit_coverage(dist, codes, 0.5, random_state=_SEED)),
    "PIT coverage, 90 %": ("0.9", lambda dist, codes: pit_coverage(dist, codes, _LEVEL, random_state=_SEED)),
    "coverage of 90 % intervals": ("at least 0.9", lambda dist, codes: coverage(dist, codes, _LEVEL)),
    "coverage of 90 % intervals, nonzero codes": ("", _support_coverage),
    "coverage of 90 % intervals given active, nonzero codes": (
        "0.9",
        lambda dist, codes: _support_coverage(dist, codes, given_active=True),
    ),
    "variance over squared error": ("1", variance_ratio),
}


def _scores(evaluation: Evaluation) -> list[Block]:
    columns = {"model": evaluation, **_baselines(evaluation)}
    rows = [
        [name, *(_number(score(each)) for each in columns.values()), best]
        for name, (best, score) in _POINT_SCORES.items()
    ]
    text = (
        "NMSE is the mean of ‖error‖ / ‖code‖, norms not squared. The baseline “mean code” is the mean of these very "
        "signals, the same for each. "
    )
    if evaluation.distribution is None:
        text += "The support is where a predicted coefficient is not zero."
    else:
        rows += [
            [
                name,
                *(_number(score(cast("SpikeSlab", each.distribution), each.codes)) for each in columns.values()),
                best,
            ]
            for name, (best, score) in _DISTRIBUTION_SCORES.items()
        ]
        text += (
            "The support is where P(active) exceeds one half. Log score and CRPS are proper scores of the whole "
            "distribution; the mean code's is the marginal distribution of each coefficient. PIT coverage is the "
            "share of coefficients in the central 50 or 90 % of their distributions, randomised at the atom at zero. "
            "Intervals that end at zero cover more than their level of all coefficients, and less of the nonzero ones; "
            "intervals given that a coefficient is active are those of the slab."
        )
    return [
        Table(["score", *columns, "best"], rows, "Scores of the model and of two baselines."),
        Paragraph(text),
        Paragraph("Scores on pairs of the training set would be too good."),
    ]


def _signals(evaluation: Evaluation, names: np.ndarray | None) -> list[Block]:
    codes, mean, distribution = evaluation
    viewer = signal_viewer(codes, mean, distribution, None if names is None else names.tolist())
    shown, total = len(viewer.data["signals"]), len(codes)
    which = f"All {_counted(total, 'signal')}" if shown == total else f"{shown} of {total:,} signals, evenly by rank"
    text = f"{which}, from the smallest relative error ‖error‖ / ‖code‖ to the largest. Rows count from 0."
    return [Paragraph(text), viewer]


def _calibration(evaluation: Evaluation, name: str) -> list[Block]:
    codes, _, distribution = evaluation
    if distribution is None:
        return [
            Paragraph(
                f"{name} predicts points, not distributions. BayesLISTA and SpikeSlabNet predict a distribution of "
                "every coefficient."
            )
        ]
    figures = [
        Figure(
            _figure(reliability_diagram(distribution, codes)),
            "Share of active coefficients against predicted P(active), with their number below.",
            "On the diagonal P(active) is calibrated: of coefficients with 0.3, three in ten are not zero.",
        ),
        Figure(
            _figure(coverage_curve(distribution, codes, random_state=_SEED)),
            "Share of coefficients inside central intervals against the level of the intervals.",
            "Calibrated on the diagonal; below it overconfident, above it underconfident.",
        ),
        Figure(
            _figure(pit_histogram(distribution, codes, random_state=_SEED)),
            "Histogram of the probability integral transform of the true coefficients.",
            "Flat if calibrated; a U shape is overconfidence, a hump underconfidence.",
        ),
        Figure(
            _figure(error_by_std(distribution, codes)),
            "Root mean squared error against predicted standard deviation, in bins of coefficients.",
            "Calibrated on the diagonal; a rising curve means that the standard deviation ranks the errors.",
        ),
    ]
    return [Gallery(figures)]


def _training(model: Any) -> list[Block]:
    if not history_panels(getattr(model, "history_", {})):
        return [Paragraph("No training history: nothing was trained step by step.")]
    caption = "A validation error that rises while the training error falls is overfitting."
    return [Figure(_figure(learning_curves(model)), "Learning curves of the training history.", caption)]


def _about(model: Any, n_observed: int, evaluation: Evaluation) -> list[Block]:
    parameters = model.get_params(deep=False)
    n, n_components = evaluation.codes.shape
    counts = getattr(model, "diagnostics_", {})
    facts = [
        ["estimator", type(model).__name__],
        ["observations of a signal, K", f"{n_observed}"],
        ["coefficients of a code, D", f"{n_components}"],
        ["test signals", f"{n}"],
    ]
    if hasattr(model, "dtype_"):
        facts.append(["floating type", f"{model.dtype_}"])
    if "design_matrix" in parameters:
        source = "estimated from pairs" if parameters["design_matrix"] is None else "given"
        facts.append(["design matrix", source])
    if hasattr(model, "recalibration_"):
        facts.append(["recalibrated after the fit", "no" if model.recalibration_ is None else "yes"])
    if counts:
        facts.append(["counted in training", ", ".join(f"{name} {count}" for name, count in counts.items())])
    versions = [[name, version(name)] for name in _PACKAGES] + [["Python", platform.python_version()]]
    return [
        Table(["", "value"], facts, "The model and the signals."),
        Table(["parameter", "value"], [[name, _value(value)] for name, value in parameters.items()], "Parameters."),
        Table(["name", "version"], versions, "Versions that wrote this page."),
    ]


def _figure(axes: "Axes") -> "matplotlib.figure.Figure":
    return cast("matplotlib.figure.Figure", axes.figure)


def _counted(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def _number(value: float) -> str:
    if np.isnan(value):
        return "undefined"
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"


def _value(value: Any) -> str:
    """A parameter in one line: a large array by its shape, any other value cut to 100 characters."""
    if isinstance(value, (np.ndarray, list, tuple)) and np.size(value) > 8:
        array = np.asarray(value)
        return f"array of shape {array.shape}, {array.dtype}"
    text = re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(value))
    return text if len(text) <= 100 else f"{text[:97]}..."
