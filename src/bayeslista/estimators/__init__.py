"""Sparse coders behind scikit-learn's API."""

from bayeslista.estimators.base import NumericalWarning
from bayeslista.estimators.bayes_lista import BayesLISTA
from bayeslista.estimators.fista import FISTA
from bayeslista.estimators.ista import ISTA
from bayeslista.estimators.lista import LISTA
from bayeslista.estimators.loading import load
from bayeslista.estimators.sparse_coding_transformer import SparseCodingTransformer
from bayeslista.estimators.spike_slab_net import SpikeSlabNet
from bayeslista.estimators.spike_slab_regressor import SpikeSlabRegressor

__all__ = [
    "FISTA",
    "ISTA",
    "LISTA",
    "BayesLISTA",
    "NumericalWarning",
    "SparseCodingTransformer",
    "SpikeSlabNet",
    "SpikeSlabRegressor",
    "load",
]
