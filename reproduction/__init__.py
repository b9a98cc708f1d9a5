"""The figures of the paper: ``python -m reproduction``; the demonstration: ``python -m reproduction.demo``."""
