r"""The spike-and-slab model as the layers see it: matrix, noise and prior, and the state between two layers.

The problem is :math:`y = X\beta + N(0, \sigma^2 I)`, with :math:`\beta_d` zero with probability :math:`1 - p_d` and
else from a small mixture of Gaussians, the slab. A layer replaces the prior of each coefficient by a Gaussian factor (a
*site*), solves the remaining linear problem exactly, divides each site out of the solution (the *cavity*), and combines
cavity and prior in the denoiser, whose moments are matched by the next site. VAMP layers (`vamp`) have sites of one
common variance, EP layers (`ep`) one variance a coefficient.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from bayeslista.spike_slab.config import NUMERICS
from bayeslista.spike_slab.denoiser import SlabPrior, denoise, prior_moments, with_spike


class SpikeSlabProblem(NamedTuple):
    """What all signals share: the design matrix, taken apart once, the noise and the prior."""

    design_matrix: Float[Array, "K D"]
    left: Float[Array, "K R"]  # singular value decomposition of the matrix with normalised columns
    singular: Float[Array, " R"]
    right: Float[Array, "R D"]
    column_unit: Float[Array, " D"]  # what a coefficient is divided by when its column is normalised
    noise_var: Float[Array, ""]
    prior: SlabPrior
    design_covariance: Float[Array, "D D"] | None  # P: the rows of a learned matrix have covariance σ² P
    float32_copy: "SpikeSlabProblem | None"  # where float32 serves all but the last layers


class LayerScalars(NamedTuple):
    """What a layer of either kind can learn; one entry a layer where layers are stacked."""

    log_inverse_temperature: Float[Array, "..."]  # of τ, by which log-odds are multiplied
    offset: Float[Array, "..."]  # b, added to the log-odds
    damping: Float[Array, "..."]  # log-odds of the share of the new sites
    log_noise: Float[Array, "..."]  # log of the factor on the noise, ...
    noise_by_chi_square: Float[Array, "..."]  # ... how it reacts to the log_chi_square, ...
    noise_by_count: Float[Array, "..."]  # ... and to how many coefficients are active
    log_site: Float[Array, "..."]  # log of the factor on new sites


class NetworkState(NamedTuple):
    """Sites, the cavities they last led to, and the posterior so far, for every signal."""

    site_precision: Float[Array, "n D"]
    site_shift: Float[Array, "n D"]  # precision times mean
    cavity_mean: Float[Array, "n D"]
    cavity_var: Float[Array, "n D"]
    prob_active: Float[Array, "n D"]
    mean: Float[Array, "n D"]
    var: Float[Array, "n D"]


def make_problem(
    design_matrix: ArrayLike, noise_var: float, prior: SlabPrior, design_covariance: ArrayLike | None = None
) -> SpikeSlabProblem:
    """Singular value decomposition of the design matrix with normalised columns, once for all signals."""
    X = np.asarray(design_matrix, np.float64)
    power = np.sum(X**2, axis=0)
    largest = np.max(power)
    column_unit = 1 / np.sqrt(power + NUMERICS.column_floor * largest if largest > 0 else np.ones_like(power))
    left, singular, right = np.linalg.svd(X * column_unit, full_matrices=False)
    dtype = prior.mean.dtype
    parts: Any = [part.astype(dtype) for part in (X, left, singular, right, column_unit)]
    signal = _expected_power(X, prior)
    limits = np.finfo(dtype)
    noise = max(noise_var, float(limits.eps) ** 0.8 * signal, float(limits.tiny))
    parts += [
        np.asarray(noise, dtype),
        prior,
        None if design_covariance is None else np.asarray(design_covariance, dtype),
        None,
    ]
    problem = SpikeSlabProblem(*parts)
    if dtype == np.float64 and noise_var >= NUMERICS.float32_noise * signal:
        float32_copy: Any = jax.tree.map(lambda part: part.astype(np.float32), problem)
        return problem._replace(float32_copy=float32_copy)
    return problem


@jax.jit
def start(problem: SpikeSlabProblem, observations: Float[Array, "n K"]) -> NetworkState:
    """Sites that equal the prior's mean and variance, flat cavities, and the prior's moments."""
    mean, var = (jnp.broadcast_to(part, (len(observations), part.shape[0])) for part in prior_moments(problem.prior))
    chance = jnp.broadcast_to(jax.nn.sigmoid(problem.prior.log_odds), mean.shape)
    var = jnp.maximum(var, jnp.finfo(var.dtype).tiny ** 0.5)
    return NetworkState(1 / var, mean / var, mean, NUMERICS.largest_cavity * var, chance, mean, var)


def _expected_power(X: Any, prior: SlabPrior) -> float:
    """Mean square of an observed value but for the noise."""
    return float(np.mean(X**2 @ np.asarray(prior_moments(prior)[1], np.float64)))


def mean_residual(problem: SpikeSlabProblem, observations: Array, state: NetworkState) -> Array:
    """Mean square of what the code so far leaves of each signal."""
    return jnp.mean((observations - state.mean @ problem.design_matrix.T) ** 2, axis=1, keepdims=True)


def fit_statistics(
    problem: SpikeSlabProblem, residual: Array, mean: Array, var: Array, prob_active: Array
) -> tuple[Array, Array, Array]:
    """Log chi-square of the residual, excess of active coefficients, and noise with the variance of the design."""
    noise = jnp.broadcast_to(problem.noise_var, residual.shape)
    if problem.design_covariance is not None:
        design_var = jnp.sum(
            (mean @ problem.design_covariance) * mean + var * jnp.diagonal(problem.design_covariance),
            axis=1,
            keepdims=True,
        )
        noise = noise * (1 + design_var)
    expected = jnp.sum(jax.nn.sigmoid(problem.prior.log_odds))
    count = jnp.sum(prob_active, axis=1, keepdims=True) / expected - 1
    return jnp.log(jnp.minimum(residual / noise, NUMERICS.chi_square_ceiling) + NUMERICS.chi_square_floor), count, noise


def layer_noise(
    problem: SpikeSlabProblem, residual: Array, mean: Array, var: Array, prob_active: Array, scalars: LayerScalars
) -> Array:
    """The noise that a layer sees."""
    log_chi_square, count, noise = fit_statistics(problem, residual, mean, var, prob_active)
    factor = scalars.log_noise + scalars.noise_by_chi_square * log_chi_square + scalars.noise_by_count * count
    return noise * jnp.exp(factor)


def posterior_moments(
    prior: SlabPrior, cavity_mean: Array, cavity_var: Array, scalars: LayerScalars
) -> tuple[Array, Array, Array]:
    """Probability of being active, mean and variance after a layer's denoiser."""
    posterior = denoise(cavity_mean, cavity_var, prior, jnp.exp(scalars.log_inverse_temperature), scalars.offset)
    prob_active = jax.nn.sigmoid(posterior.log_odds)
    return prob_active, *with_spike(prob_active, posterior.slab_mean, posterior.slab_var)
