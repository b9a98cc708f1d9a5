"""How good a model is on pairs: numbers with names."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_MEANINGS = {
    "nmse": "NMSE: relative error of the codes",
    "f_measure": "F-measure of the support",
    "log_score": "log score",
    "crps": "CRPS",
    "pit_coverage": "PIT coverage",
    "variance_ratio": "variance ratio: predicted / squared error",
    "brier_score": "Brier score of P(active)",
}


def score(model: Any, X: "np.ndarray", y: "np.ndarray", level: float, seed: int) -> dict[str, float]:
    """Score codes, and distributions where the model predicts them."""
    from bayeslista import metrics

    if not hasattr(model, "predict_dist"):
        codes = model.predict(X)
        return {
            "nmse": metrics.nmse(y.reshape(len(y), -1), codes.reshape(len(y), -1)),
            "f_measure": metrics.support_f_measure(y.reshape(len(y), -1), codes.reshape(len(y), -1)),
        }
    dist = model.predict_dist(X)
    true = y.reshape(dist.shape)
    return {
        "nmse": metrics.nmse(true.reshape(len(y), -1), dist.mean().reshape(len(y), -1)),
        "f_measure": metrics.support_scores(dist, true).f_measure,
        "log_score": metrics.log_score(dist, true),
        "crps": metrics.crps(dist, true),
        "pit_coverage": metrics.pit_coverage(dist, true, level, random_state=seed),
        "variance_ratio": metrics.variance_ratio(dist, true),
        "brier_score": metrics.brier_score(dist, true),
    }


def score_lines(scores: dict[str, float], level: float) -> list[str]:
    """A line for each score."""
    notes = {"pit_coverage": f" of {level:g} intervals"}
    return [f"  {_MEANINGS[name] + notes.get(name, ''):<45}{value:.4f}" for name, value in scores.items()]
