"""How good predictions are: how near codes are to the true ones, and how far distributions can be trusted.

Functions of points take ``B_true`` and ``B_pred``. Functions of distributions take a prediction and the true codes: a
prediction is a `SpikeSlab`, a tuple ``(mean, std)`` of arrays that is read as Gaussian, or an array of samples with the
draws in front. They are losses, smaller is better, unless they say otherwise.
"""

from bayeslista.metrics.activity import (
    SupportScores,
    brier_score,
    expected_calibration_error,
    reliability_curve,
    support_scores,
)
from bayeslista.metrics.points import nmse, nmse_db, support_f_measure
from bayeslista.metrics.predictive import (
    coverage,
    crps,
    interval_width,
    log_score,
    pit,
    pit_coverage,
    sharpness,
    variance_ratio,
)
from bayeslista.metrics.scorers import distribution_scorer
from bayeslista.metrics.spike import fit_spike_head, with_spike

__all__ = [
    "SupportScores",
    "brier_score",
    "coverage",
    "crps",
    "distribution_scorer",
    "expected_calibration_error",
    "fit_spike_head",
    "interval_width",
    "log_score",
    "nmse",
    "nmse_db",
    "pit",
    "pit_coverage",
    "reliability_curve",
    "sharpness",
    "support_f_measure",
    "support_scores",
    "variance_ratio",
    "with_spike",
]
