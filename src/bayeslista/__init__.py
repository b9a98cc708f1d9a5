"""Sparse coding with calibrated uncertainty."""

from importlib.metadata import version

from bayeslista.distributions import SpikeSlab
from bayeslista.estimators import FISTA, ISTA, LISTA, BayesLISTA, NumericalWarning, SpikeSlabNet, load

__all__ = ["FISTA", "ISTA", "LISTA", "BayesLISTA", "NumericalWarning", "SpikeSlab", "SpikeSlabNet", "load"]
__version__ = version("bayeslista")
