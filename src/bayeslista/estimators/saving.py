"""Estimators to files: arrays as safetensors, parameters and other attributes as JSON in the header."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator

from bayeslista.bayes_lista.adf.layers import FreeWeights
from bayeslista.bayes_lista.adf.posterior import AdfPosterior, Gamma, PriorFactor
from bayeslista.bayes_lista.adf.published_fit import FilteringLearner
from bayeslista.bayes_lista.output_calibration import Calibration
from bayeslista.bayes_lista.variational_fit import PosteriorParameters, VariationalLearner
from bayeslista.estimators._recalibration import IsotonicMap, LogisticMap, Recalibration
from bayeslista.io.checkpoints import FitRecord, package_versions
from bayeslista.io.records import write_record
from bayeslista.numerics.epochs import Epoch, Units
from bayeslista.numerics.soft_threshold_fast import Gaussian
from bayeslista.numerics.stream_memory import StreamMemory
from bayeslista.operators import Composition, Convolution, MatrixOperator, PartialDCT, PartialFourier, Wavelet
from bayeslista.spike_slab.correlated_prior import CorrelatedPrior
from bayeslista.spike_slab.denoiser import SlabPrior
from bayeslista.spike_slab.empirical_bayes import SlabMixture, Statistics
from bayeslista.spike_slab.fitting import SpikeSlabLearner
from bayeslista.spike_slab.learned_model import Agreement, Assumed, Learned
from bayeslista.spike_slab.model import LayerScalars, SpikeSlabProblem
from bayeslista.spike_slab.network import HeadScalars, NetworkScalars
from bayeslista.spike_slab.operator_fitting import OperatorLearner
from bayeslista.spike_slab.operator_problem import OperatorPrior
from bayeslista.spike_slab.prior_choice import CorrelatedBase, Head, MixtureBase
from bayeslista.spike_slab.regression import RegressionDraws
from bayeslista.spike_slab.scale_mixture_prior import ScaleMixture
from bayeslista.spike_slab.sensor_noise import Whitening

_NOT_SAVED = ("_skl_", "_callback_", "_parent_callback_", "_metadata_request")  # what scikit-learn attaches


class CodePrior(NamedTuple):
    """Prior of codes and noise: probability of being active, components of the slab, and the noise's std."""

    prob_active: Any  # a number, or one a coefficient
    slab_weight: Any
    slab_mean: Any
    slab_var: Any
    noise_std: Any  # a number, or one a sensor


class Nested(NamedTuple):
    """An estimator inside another one."""

    estimator: str
    state: dict[str, Any]


# The named tuples and dataclasses that a file may hold, by name.
RECORDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(AdfPosterior, Calibration, FilteringLearner, FreeWeights, Gamma, Gaussian, PosteriorParameters, PriorFactor),
        *(Agreement, Assumed, Head, HeadScalars, LayerScalars, Learned, NetworkScalars),
        *(CorrelatedBase, CorrelatedPrior, MixtureBase, ScaleMixture, Whitening, StreamMemory),
        *(SlabMixture, SlabPrior, SpikeSlabLearner, SpikeSlabProblem, Statistics, VariationalLearner),
        *(Composition, Convolution, MatrixOperator, PartialDCT, PartialFourier, Wavelet),
        *(OperatorLearner, OperatorPrior),
        *(CodePrior, Epoch, FitRecord, IsotonicMap, LogisticMap, Nested, Recalibration, RegressionDraws, Units),
    )
}


class SavingMixin(BaseEstimator):
    """An estimator that can be saved to a file."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the estimator, fitted or not, to a file that :func:`bayeslista.load` reads.

        Arrays are kept as safetensors, the rest, callbacks and metadata requests excepted, as JSON in its header. A
        file is written whole or not at all.

        Parameters
        ----------
        path : str or path-like
            Where to; by custom its name ends with ``.safetensors``. A file that is there is replaced.

        Raises
        ------
        ValueError
            If a parameter cannot be written, such as a numpy.random.Generator as `random_state`.
        FileNotFoundError
            If the folder is not there; it has to be made first.
        OSError
            If the file cannot be written for another reason.
        """
        write_estimator(path, self, {})


def write_estimator(path: str | os.PathLike[str], estimator: BaseEstimator, extra: Mapping[str, Any]) -> None:
    """Write an estimator and extra entries, which `loading.read_estimator` returns."""
    name, state = _nested(estimator)
    inner = {key: _nested(part) if isinstance(part, SavingMixin) else part for key, part in state.items()}
    write_record(path, {"estimator": name, "state": inner, **extra}, package_versions())


def state_of(estimator: BaseEstimator) -> dict[str, Any]:
    """Parameters and attributes, without what scikit-learn attaches for the time of a fit or a search."""
    return {name: value for name, value in vars(estimator).items() if not name.startswith(_NOT_SAVED)}


def restore(estimator: BaseEstimator, state: Mapping[str, Any]) -> None:
    """Put the attributes of a file into an estimator, whose parameters stay as they are."""
    own = estimator.get_params(deep=False)
    vars(estimator).update({name: value for name, value in state.items() if name not in own})


def _nested(estimator: BaseEstimator) -> Nested:
    name = type(estimator).__name__
    if not type(estimator).__module__.startswith(f"{__package__}."):
        raise ValueError(f"load cannot read {name}, a class of your own. Use pickle or joblib.")
    return Nested(name, state_of(estimator))
