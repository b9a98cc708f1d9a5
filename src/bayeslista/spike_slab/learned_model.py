"""What is given and what is learned of the model of the data, and how far layers agree with it."""

from typing import Any, NamedTuple

from numpy.typing import NDArray

from bayeslista.spike_slab.config import ESTIMATION
from bayeslista.spike_slab.empirical_bayes import SlabMixture


class Assumed(NamedTuple):
    """What the user gave, in the units of the learner; None is to be learned.

    In exact mode the probability may be one a coefficient, the noise one a sensor, and the slab, with its weights, of
    shape (C,) or (C, D).
    """

    design_matrix: Any
    prob_active: Any
    noise_var: Any
    slab_var: Any
    slab_weight: Any = None


class Learned(NamedTuple):
    """The model of the data: matrix, noise, sparsity and slab."""

    design_matrix: NDArray[Any]
    design_covariance: NDArray[Any] | None
    noise_var: Any  # a number, or in exact mode one a sensor
    prob_active: Any  # a number, or in exact mode one a coefficient
    slab: SlabMixture
    drawn: SlabMixture  # what codes are simulated from


class Agreement(NamedTuple):
    """Answers of the layers against simulated codes."""

    variance_ratio: float  # mean predicted variance over mean squared error
    failed: float  # share of the answers that fail the check against their own observations

    def is_far(self, mode: str) -> bool:
        """Whether the layers are far from their own model; in accurate mode the sampler answers what fails."""
        most = ESTIMATION.most_left_to_sampler if mode == "accurate" else ESTIMATION.most_failed_at_last
        low, high = ESTIMATION.variance_ratios
        return not low < self.variance_ratio < high or self.failed > most
