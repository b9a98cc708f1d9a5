"""Scores of a model on pairs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MEANINGS = {
    "nmse": "NMSE: relative error of the codes",
    "f_measure": "F-measure of the support",
    "log_score": "log score",
    "crps": "CRPS",
    "pit_coverage": "PIT coverage",
    "support_coverage": "coverage of the support",
    "support_coverage_given_active": "coverage of the support",
    "variance_ratio": "variance ratio: predicted / squared error",
    "brier_score": "Brier score of P(active)",
}


def score(model: Any, X: "NDArray[Any]", y: "NDArray[Any]", level: float, seed: int) -> dict[str, float]:
    """Score codes, and distributions where the model predicts them."""
    from bayeslista import metrics

    dist = model.predict_dist(X) if hasattr(model, "predict_dist") else None
    codes = model.predict(X) if dist is None else dist.mean()
    nmse = metrics.nmse(y.reshape(len(y), -1), codes.reshape(len(y), -1))
    if dist is None:
        f_measure = metrics.support_f_measure(y.reshape(len(y), -1), codes.reshape(len(y), -1))
        return {"nmse": nmse, "f_measure": f_measure}
    true = y.reshape(dist.shape)
    return {
        "nmse": nmse,
        "f_measure": metrics.support_scores(dist, true).f_measure,
        "log_score": metrics.log_score(dist, true),
        "crps": metrics.crps(dist, true),
        "pit_coverage": metrics.pit_coverage(dist, true, level, random_state=seed),
        "support_coverage": metrics.support_coverage(dist, true, level),
        "support_coverage_given_active": metrics.support_coverage(dist, true, level, given_active=True),
        "variance_ratio": metrics.variance_ratio(dist, true),
        "brier_score": metrics.brier_score(dist, true),
    }


def score_lines(scores: dict[str, float], level: float) -> list[str]:
    """A line for each score."""
    notes = {
        "pit_coverage": f" of {level:g} intervals",
        "support_coverage": f", {level:g} intervals",
        "support_coverage_given_active": f", {level:g} intervals given active",
    }
    return [f"  {_MEANINGS[name] + notes.get(name, ''):<49}{value:.4f}" for name, value in scores.items()]
