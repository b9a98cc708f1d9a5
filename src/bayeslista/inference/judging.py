"""Where a variational ascent is, and how held-out pairs judge it.

What is here works on the host: one compiled function serves all that asks for moments, and nothing else is compiled.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayeslista._blocks import in_blocks
from bayeslista._compilation import quickly_compiled
from bayeslista.anchored_network import (
    AnchoredWeights,
    LayerMatrices,
    RowColumn,
    layer_matrices,
    propagate_layers,
)
from bayeslista.network import QUICK_VARIANCES

_EXPLOSION = 1.5
_BLOCK_NUMBERS = 2**18  # observed values and two codes for each signal, in a block that layers go through

_Numbers = Any  # NumPy's arrays or JAX's


class AscentParameters(NamedTuple):
    """What is learned: factors of variances, and thresholds, by their logarithms."""

    encoder: Float[Array, "D K"]
    residual: Float[Array, "D D"]
    encoder_log_rows: Float[Array, " D"]
    encoder_log_columns: Float[Array, " K"]
    residual_log_rows: Float[Array, " D"]
    residual_log_columns: Float[Array, " D"]
    log_shrinkage: Float[Array, " L"]


class Problem(NamedTuple):
    """What is given: the design matrix, the prior, the pairs to learn from and those held out."""

    design_matrix: Float[Array, "K D"]
    prior_encoder: RowColumn
    prior_residual_var: Float[Array, ""]
    rates: AscentParameters
    observations: Float[Array, "n K"]
    codes: Float[Array, "n D"]
    held_out_observations: Float[Array, "m K"]
    held_out_codes: Float[Array, "m D"]


class State(NamedTuple):
    """Where learning is: parameters, Adam's moments, the noise, the rate, and the best parameters so far."""

    parameters: AscentParameters
    first: AscentParameters
    second: AscentParameters
    n_steps: Float[Array, ""]
    noise_var: Float[Array, ""]
    rate: Float[Array, ""]
    best: AscentParameters
    best_error: float


class Judgement(NamedTuple):
    """What held-out pairs say: mean squared error, NMSE, and whether the best parameters had to be restored."""

    error: float
    nmse: float
    restored: bool


def belief(parameters: AscentParameters) -> tuple[AnchoredWeights[RowColumn], Float[_Numbers, " L"]]:
    """The belief that the parameters describe, and the thresholds.

    Parameters
    ----------
    parameters : AscentParameters
        Means and logarithms of variances and thresholds, NumPy's arrays or JAX's.

    Returns
    -------
    AnchoredWeights, array of shape (L,)
        Means and variances, and the threshold of each layer.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.inference.judging import AscentParameters, belief
    >>> parameters = AscentParameters(*jnp.zeros((2, 1, 1)), *jnp.zeros((4, 1)), jnp.zeros(2))
    >>> weights, shrinkage = belief(parameters)
    >>> float(weights.encoder.var[0, 0]), shrinkage.tolist()
    (1.0, [1.0, 1.0])
    """
    encoder, residual, *logs = parameters
    library: Any = np if isinstance(encoder, np.ndarray) else jnp
    # One exponential for all: XLA takes a tenth of a second to compile each.
    ends = np.cumsum([len(part) for part in logs])[:-1]
    p, q, r, t, shrinkage = library.split(library.exp(library.concatenate(logs)), ends)
    return AnchoredWeights(RowColumn(encoder, p, q), RowColumn(residual, r, t)), shrinkage


def moments(
    parameters: AscentParameters, design_matrix: Float[_Numbers, "K D"], rows: Float[_Numbers, "n K"], block: int
) -> tuple[Float[np.ndarray, "n D"], ...]:
    """Mean and variance before the last threshold, mean and variance after it.

    Parameters
    ----------
    parameters : AscentParameters
        What was learned.
    design_matrix : array of shape (K, D)
        X.
    rows : array of shape (n, K)
        One observation a row.
    block : int
        How many of them to work on at once, a power of two: what is compiled depends on it, not on n.

    Returns
    -------
    tuple of four arrays of shape (n, D)
        The variances in single precision.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.inference.judging import AscentParameters, moments
    >>> certain = jnp.full((4, 1), -49.0)
    >>> parameters = AscentParameters(jnp.ones((1, 1)), jnp.zeros((1, 1)), *certain, jnp.log(jnp.array([0.5])))
    >>> moments(parameters, jnp.ones((1, 1)), jnp.array([[2.0]]), 8)[2].tolist()
    [[1.5]]
    """
    parameters, given, observations = jax.tree.map(np.asarray, (parameters, design_matrix, rows))
    with np.errstate(over="ignore", invalid="ignore"):  # layers bound what outgrows the type
        weights, shrinkage = belief(parameters)
        matrices = layer_matrices(weights, given, variance_dtype=QUICK_VARIANCES)
    return in_blocks(lambda each: _layer_moments(matrices, each, shrinkage), observations, block, smallest=block)


@quickly_compiled
def _layer_moments(
    matrices: LayerMatrices, rows: Float[Array, "n K"], shrinkage: Float[Array, " L"]
) -> tuple[Array, ...]:
    entering, output = propagate_layers(matrices, rows, shrinkage)
    return *entering, *output


def block_size(design_matrix: Float[_Numbers, "K D"], n_rows: int) -> int:
    """How many signals to work on at once, so that what a layer works on stays in the cache.

    Parameters
    ----------
    design_matrix : array of shape (K, D)
        X.
    n_rows : int
        How many there are.

    Returns
    -------
    int
        A power of two, from 8 to 512.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.judging import block_size
    >>> block_size(np.ones((50, 100)), 100), block_size(np.ones((100, 784)), 10**6)
    (128, 128)
    """
    n_observed, n_components = design_matrix.shape
    largest = int(2 ** np.clip(np.round(np.log2(_BLOCK_NUMBERS / (n_observed + 2 * n_components))), 3, 9))
    return min(largest, max(8, 1 << (n_rows - 1).bit_length()))


def judge(state: State, problem: Problem) -> tuple[State, Judgement]:
    """Let the held-out pairs judge the parameters: keep them if they are the best so far, drop them if they exploded.

    If the held-out error exceeds 1.5 times the best, or is not finite, the best parameters are restored and the rate
    halved.

    Parameters
    ----------
    state : State
        After a pass.
    problem : Problem
        What is given.

    Returns
    -------
    State, Judgement
        What to go on from, and why.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference import judging, variational
    >>> pairs = np.ones((4, 1), np.float32), np.ones((4, 1), np.float32)
    >>> start = np.ones((1, 1), np.float32)
    >>> state, problem = variational.init(start, start, np.full(2, 0.1, np.float32), pairs, pairs, True)
    >>> worse = state._replace(parameters=state.parameters._replace(encoder=9 * state.parameters.encoder))
    >>> after, judgement = judging.judge(worse, problem)
    >>> judgement.restored, after.parameters.encoder.tolist()
    (True, [[1.0]])
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
        # The next pass works in the memory of these.
        parameters, first, second, n_steps, rate = jax.device_put((jax.tree.map(np.array, state.best), *nothing, rate))
        state = state._replace(parameters=parameters, first=first, second=second, n_steps=n_steps, rate=rate)
    return state, Judgement(float(error), nmse, exploded)
