"""Errors of codes, and proper scores and calibration of predictive distributions.

Functions of points take ``B_true`` and ``B_pred``. Functions of distributions take a prediction and the true codes: a
prediction is a `SpikeSlab`, a tuple ``(mean, std)`` of a Gaussian, or an array of samples whose first axis are the
draws. They are losses, smaller is better, unless documented otherwise.
Functions raise `ValueError` if shapes do not broadcast or numbers are not finite.
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
    support_coverage,
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
    "support_coverage",
    "support_f_measure",
    "support_scores",
    "variance_ratio",
    "with_spike",
]
