"""HTML pages about fitted models, each in one file that works without a network."""

from bayeslista.reports.model_report import write_model_report

__all__ = ["write_model_report"]
