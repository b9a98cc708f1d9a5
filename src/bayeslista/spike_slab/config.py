"""All constants of SpikeSlabNet's layers and of what is learned for them, each with its reason where one is known.

Constants of the exact sampler are in `exact.Budget` and `jump_process`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Numerics:
    """Bounds that keep layers finite."""

    column_floor: float = 1e-4  # of the largest squared norm: columns of next to nothing are not normalised
    site_floor: float = 1e-3  # least precision of a site, in units of the prior's
    largest_cavity: float = 1e8  # variance of a cavity, in units of its site's
    chi_square_floor: float = 0.1  # added to the chi-square before its logarithm
    chi_square_ceiling: float = 20.0
    variance_ratio_unit: float = 0.1  # posterior over prior variance of a usual signal
    variance_ratio_floor: float = 0.01
    float32_noise: float = 1e-3  # in units of the signal, from which on float32 serves all but the last layers
    last_layers: int = 2  # in float64: they correct what float32 lost
    refinement_damping: float = 1.0  # log-odds of the share of new sites in refinement layers
    final_temperature_ratio: float = 0.37  # of the log inverse temperature, at the end of the refinement layers
    largest_gradient: float = 1.0  # norm to which gradients of the training are clipped


@dataclass(frozen=True)
class LayerBudget:
    """How much is computed: layers, memory, training."""

    ep_layers: int = 5
    refinement_layers: int = 10
    refined_share: float = 0.35  # of the signals, those with the largest posterior variance ratio
    refinement_signals: int = 512  # simulated, to find the ratio that this share exceeds
    chunk_blocks: int = 16  # blocks that go through the early layers before signals to refine are gathered
    block_numbers: int = 2**20  # in the arrays of a block that a layer goes through
    arrays: int = 64  # of the size of the codes, in a VAMP layer
    most_products: int = 2**21  # of pairs of rows that EP layers precompute
    batch: int = 64
    least_batch: int = 8
    least_steps: int = 10
    training_steps: int = 40
    learning_rate: float = 0.03
    training_work: float = 1e11  # products of numbers; with those of the head about a minute
    head_work: float = 2e11
    head_pairs: tuple[int, int] = (128, 1024)
    head_steps: int = 40  # of L-BFGS
    exact_chunk: int = 256  # signals that are sampled together in exact mode


@dataclass(frozen=True)
class Estimation:
    """How the model is learned, and what training aims at."""

    folds: int = 5
    enough_to_simulate_from: int = 60  # nonzero coefficients, from which on codes are simulated from their histogram
    # For the prior of dependent codes, which takes codes themselves: so many numbers, but no fewer and no more pairs.
    kept_numbers: int = 2**20
    kept_pairs: int = 200
    most_kept_pairs: int = 1000
    usual_quantile: float = 0.999  # of the energy of simulated signals, beyond which signals are scaled down
    usual_signals: int = 2000
    score_floor: float = 1e-3  # weight of a wide density in the log score, which bounds the loss of a batch
    least_power: float = 0.3  # of a code, in units of the mean, that errors are divided by
    few_active: float = 5.0  # below, codes differ so much in power that relative errors mislead
    variance_penalty: float = 3.0
    miscalibration_penalty: float = 5.0
    smoothing: float = 1e-4  # of the absolute value of the miscalibration
    ridge: float = 1e-3  # on the distance of a head from its start
    head_reach: float = 1.5  # largest distance of a head's scalar from its start
    agreement_pairs: int = 512  # simulated, to compare starts, and answers to their codes
    most_failed_at_last: float = 0.1  # ... and beyond which fit warns; half as much is widened well
    most_left_to_sampler: float = 0.125  # the same in accurate mode: 256 of 2,048 signals
    variance_ratios: tuple[float, float] = (0.5, 2.0)  # predicted variance over squared error, outside which fit warns
    most_failed: float = 0.02  # of simulated signals, beyond which layers are trained, or are others
    error_penalty: float = 20.0  # of the relative error in units of the log score, once layers are learned


@dataclass(frozen=True)
class Checks:
    """When an answer is checked against its own data as failed, and what happens then.

    On 2,000 signals of the paper's problem (K = 50) accurate mode has none below 1e-4, two below 1e-3; fast mode 0.5 %.
    """

    tail_probability: float = 1e-4  # of a sum of squared residuals as large, were the residual the noise
    energy_deviations: float = 5.0  # standard deviations of the energy of codes ...
    energy_factor: float = 2.0  # ... above its mean, times this: the most energy of a predicted code
    least_noise: float = 1e-6  # in units of the mean square of the signal: smaller residuals count as explained
    # Of the signals that are answered together (2,048 with K = 50 and D = 100), those that accurate mode leaves to the
    # sampler at most. Of the 100 test signals of E_copies 65 fail, which are sampled in 15 ms each.
    most_sampled: int = 256
    most_moves: int = 60_000  # of the sampler for these: a tenth of a second a signal of 100 coefficients


NUMERICS = Numerics()
BUDGET = LayerBudget()
ESTIMATION = Estimation()
CHECKS = Checks()
