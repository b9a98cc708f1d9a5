"""The state of a variational fit, and early stopping: validation on held-out pairs, restoring the best parameters.

Validation runs on the host around one compiled function, the moments of the layers, which predictions share.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayeslista.bayes_lista.propagation import (
    CoupledWeights,
    LayerMatrices,
    LayerParameters,
    RowColumn,
    layer_matrices,
    propagate_layers,
)
from bayeslista.numerics.batching import in_blocks
from bayeslista.numerics.compilation import fast_compiled
from bayeslista.numerics.precision import FAST_VARIANCES, AnyArray

_EXPLOSION = 1.5  # of the validation error over the best one: beyond it the best parameters are restored
_BLOCK_NUMBERS = 2**18  # observed values and two codes for each signal, in a block that layers go through


class VariationalParameters(NamedTuple):
    """Parameters of the ascent: means of W and R, logarithms of their variances' factors; those of the layers."""

    encoder: Float[Array, "D K"]
    residual: Float[Array, "D D"]
    encoder_log_rows: Float[Array, " D"]
    encoder_log_columns: Float[Array, " K"]
    residual_log_rows: Float[Array, " D"]
    residual_log_columns: Float[Array, " D"]
    log_shrinkage: Float[AnyArray, " L"]
    momentum: Float[AnyArray, " L"]
    step_size: Float[AnyArray, " L"]


class VariationalProblem(NamedTuple):
    """Constants of a fit: the design matrix, the prior, learning rates, training pairs and held-out pairs."""

    design_matrix: Float[Array, "K D"]
    prior_encoder: RowColumn
    prior_residual_var: Float[Array, ""]
    rates: VariationalParameters
    observations: Float[Array, "n K"]
    codes: Float[Array, "n D"]
    held_out_observations: Float[Array, "m K"]
    held_out_codes: Float[Array, "m D"]


class VariationalState(NamedTuple):
    """Parameters, Adam's moments, noise variance ν, a factor of the rates, the best parameters and their error."""

    parameters: VariationalParameters
    first: VariationalParameters
    second: VariationalParameters
    n_steps: Float[Array, ""]
    noise_var: Float[Array, ""]
    rate: Float[Array, ""]
    best: VariationalParameters
    best_error: float


class ValidationScore(NamedTuple):
    """Mean squared error and NMSE of held-out pairs, and whether the best parameters were restored."""

    error: float
    nmse: float
    restored: bool


def weight_posterior(parameters: VariationalParameters) -> tuple[CoupledWeights[RowColumn], LayerParameters]:
    """The posterior of W and R, and the parameters of the layers; NumPy in, NumPy out."""
    encoder, residual, *logs, momentum, step_size = parameters
    library: Any = np if isinstance(encoder, np.ndarray) else jnp
    # One exponential for all: XLA takes a tenth of a second to compile each.
    ends = np.cumsum([len(part) for part in logs])[:-1]
    p, q, r, t, shrinkage = library.split(library.exp(library.concatenate(logs)), ends)
    layers = LayerParameters(shrinkage, momentum, step_size)
    return CoupledWeights(RowColumn(encoder, p, q), RowColumn(residual, r, t)), layers


def moments(
    parameters: VariationalParameters, design_matrix: Float[AnyArray, "K D"], rows: Float[AnyArray, "n K"], block: int
) -> tuple[Float[np.ndarray, "n D"], ...]:
    """Mean and variance before the last threshold, mean and variance after it; `block` rows at a time."""
    parameters, given, observations = jax.tree.map(np.asarray, (parameters, design_matrix, rows))
    with np.errstate(over="ignore", invalid="ignore"):  # layers bound moments that overflow
        weights, layers = weight_posterior(parameters)
        matrices = layer_matrices(weights, given, variance_dtype=FAST_VARIANCES)
    return in_blocks(lambda each: _layer_moments(matrices, each, layers), observations, block, smallest=block)


@fast_compiled
def _layer_moments(matrices: LayerMatrices, rows: Float[Array, "n K"], layers: LayerParameters) -> tuple[Array, ...]:
    entering, output = propagate_layers(matrices, rows, layers)
    return *entering, *output


def block_size(design_matrix: Float[AnyArray, "K D"], n_rows: int) -> int:
    """Signals a block, a power of two from 8 to 512: what a layer works on stays in the cache."""
    n_observed, n_components = design_matrix.shape
    largest = int(2 ** np.clip(np.round(np.log2(_BLOCK_NUMBERS / (n_observed + 2 * n_components))), 3, 9))
    return min(largest, max(8, 1 << (n_rows - 1).bit_length()))


def validate(state: VariationalState, problem: VariationalProblem) -> tuple[VariationalState, ValidationScore]:
    """Score the parameters on held-out pairs: keep them if they are the best, restore the best if they exploded.

    They have if the error exceeds 1.5 times the best one or is not finite; the rate is then halved.
    """
    codes = np.asarray(problem.held_out_codes)
    observations = problem.held_out_observations
    predicted = moments(
        state.parameters, problem.design_matrix, observations, block_size(problem.design_matrix, len(codes))
    )[2]
    with np.errstate(over="ignore", invalid="ignore"):
        misses, norms = np.linalg.norm(predicted - codes, axis=1), np.linalg.norm(codes, axis=1)
        error = np.mean((predicted - codes) ** 2)
    nmse = float(np.sum(misses[norms > 0] / norms[norms > 0])) / max(int(np.count_nonzero(norms)), 1)
    best_error = float(state.best_error)
    if error < best_error:
        state = state._replace(best=jax.tree.map(np.array, state.parameters), best_error=error)
    exploded = bool((error >= _EXPLOSION * best_error > 0) | ~np.isfinite(error))
    if exploded:
        nothing = [jax.tree.map(lambda part: np.zeros(part.shape, part.dtype), each) for each in state[1:4]]
        rate = np.asarray(state.rate) * np.asarray(0.5, codes.dtype)
        # Copies: the next epoch overwrites the memory of its state.
        parameters, first, second, n_steps, rate = jax.device_put((jax.tree.map(np.array, state.best), *nothing, rate))
        state = state._replace(parameters=parameters, first=first, second=second, n_steps=n_steps, rate=rate)
    return state, ValidationScore(float(error), nmse, exploded)
