"""Plots of codes and their distributions, of regressions, errors, learning curves and calibration.

Figures are made without pyplot: no backend is chosen, no global setting changes and nothing stays open. Functions raise
`ValueError` if shapes do not agree or numbers are not finite.
"""

from bayeslista.plots.codes import plot_code, plot_nmse, plot_signal
from bayeslista.plots.depths import fit_depths, plot_error_by_depth
from bayeslista.plots.images import uncertainty_map
from bayeslista.plots.inclusion import plot_credible_sets, plot_inclusion
from bayeslista.plots.learning import learning_curves
from bayeslista.plots.reliability import coverage_curve, error_by_std, pit_histogram, reliability_diagram

__all__ = [
    "coverage_curve",
    "error_by_std",
    "fit_depths",
    "learning_curves",
    "pit_histogram",
    "plot_code",
    "plot_credible_sets",
    "plot_error_by_depth",
    "plot_inclusion",
    "plot_nmse",
    "plot_signal",
    "reliability_diagram",
    "uncertainty_map",
]
