"""Pictures of codes, of what is believed of them, of errors and of learning, and of how far beliefs can be trusted.

Figures are made without pyplot: no backend is chosen, no global setting changes and nothing stays open.
"""

from bayeslista.plots.calibration import coverage_curve, error_by_std, pit_histogram, reliability_diagram
from bayeslista.plots.codes import plot_code, plot_nmse, plot_signal
from bayeslista.plots.images import uncertainty_map
from bayeslista.plots.learning import learning_curves

__all__ = [
    "coverage_curve",
    "error_by_std",
    "learning_curves",
    "pit_histogram",
    "plot_code",
    "plot_nmse",
    "plot_signal",
    "reliability_diagram",
    "uncertainty_map",
]
