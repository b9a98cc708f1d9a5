r"""Deterministic variational inference for the anchored network, in mini-batches.

The belief about W and R is Gaussian with independent entries whose variances have a factor for their row and one for
their column; its parameters, and a threshold per layer, ascend

.. math::
    \sum_n E_q \log N(\beta_n; \hat\beta_n, \nu) - T\,\mathrm{KL}(q \,\|\, p),

where the expectation is the expected squared error that moments give in closed form: no sampling. The prior is
:math:`W \sim N(W_0, (4/L)^2 z)` about the start, with z the typical square of an entry in its row and column, and
:math:`R \sim N(0, (0.8/L)^2/D)`; the temperature is :math:`T = 3`, and ν follows the error itself as a running mean.
The ascent is Adam's with an epsilon relative to the matrix it scales, rates that bound how far a step moves
:math:`W X` and R in spectral norm (R by :math:`(N/D)^{1/4}` of that with fewer pairs than coefficients), a warm-up over
the first pass and a cosine decay.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bayeslista._compilation import quickly_compiled
from bayeslista.anchored_network import RowColumn, expected_error_and_gradient
from bayeslista.inference.judging import AscentParameters, Judgement, Problem, State, belief, judge
from bayeslista.network import largest_moment, relative_errors

_TEMPERATURE = 3.0
_PRIOR_SPREAD = 4.0, 0.8  # of W in units of its root mean square, of R in units of 1/√D; both over L
_INITIAL_SPREAD = 0.05
_MEAN_RATE = 0.4, 3.2  # at most the first; the second over L^1.5
_LOG_VAR_RATE = 0.05
_LOG_SHRINKAGE_RATE = 0.01
_FIRST_DECAY, _SECOND_DECAY = 0.9, 0.999
_RELATIVE_EPSILON = 0.01
_FINAL_RATE = 0.02
_NOISE_DECAY = 0.95

_Numbers = Any  # NumPy's arrays or JAX's


class Info(NamedTuple):
    """What a pass did: errors of the training pairs, each batch's just before its step, and batches skipped."""

    error: Float[Array, ""]
    nmse: Float[Array, ""]
    skipped: Int[Array, ""]


def init(
    design_matrix: Float[np.ndarray, "K D"],
    encoder: Float[np.ndarray, "D K"],
    shrinkage: Float[np.ndarray, " L"],
    training: tuple[Float[np.ndarray, "n K"], Float[np.ndarray, "n D"]],
    held_out: tuple[Float[np.ndarray, "m K"], Float[np.ndarray, "m D"]],
    learn_shrinkage: bool,
) -> tuple[State, Problem]:
    """The start of learning at a given encoder.

    Parameters
    ----------
    design_matrix : array of shape (K, D)
        X.
    encoder : array of shape (D, K)
        W at the start, about which its prior is centred; R starts at zero.
    shrinkage : array of shape (L,)
        Thresholds at the start, above zero if they are to be learned.
    training, held_out : pair of arrays
        Observations and codes to learn from, and to choose the best pass by.
    learn_shrinkage : bool
        Whether thresholds move.

    Returns
    -------
    State, Problem
        What :func:`step` takes.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference import variational
    >>> pairs = np.ones((4, 1), np.float32), np.ones((4, 1), np.float32)
    >>> start = np.ones((1, 1), np.float32)
    >>> state, problem = variational.init(start, start, np.full(2, 0.1, np.float32), pairs, pairs, True)
    >>> state.parameters.log_shrinkage.shape
    (2,)
    """
    dtype = design_matrix.dtype
    (d, k), n_layers = encoder.shape, len(shrinkage)
    norm = float(np.linalg.norm(design_matrix, 2)) or 1.0
    rows, columns = _entry_sizes(encoder, 1 / norm)
    with np.errstate(divide="ignore"):
        log_shrinkage = np.maximum(np.log(shrinkage), np.log(np.finfo(dtype).tiny))
    step_size = min(_MEAN_RATE[0], _MEAN_RATE[1] / n_layers**1.5)
    values: tuple[Any, ...] = (
        encoder,
        np.zeros((d, d)),
        2 * np.log(_INITIAL_SPREAD * rows),
        2 * np.log(columns),
        np.full(d, 2 * np.log(_INITIAL_SPREAD) - np.log(d)),
        np.zeros(d),
        log_shrinkage,
    )
    rates = (
        step_size / (norm * np.sqrt(d * k)),
        # Slower where there are fewer pairs than coefficients: R would know them by heart.
        step_size / d * min(1.0, (len(training[1]) / d) ** 0.25),
        *4 * [_LOG_VAR_RATE],
        _LOG_SHRINKAGE_RATE * learn_shrinkage,
    )
    prior = encoder, (_PRIOR_SPREAD[0] / n_layers * rows) ** 2, columns**2

    def copied(parts: Sequence[Any]) -> list[Any]:
        return [np.array(part, dtype) for part in parts]

    # A pass works in the memory of the state, no part of which may be another.
    parameters, best = (AscentParameters(*copied(values)) for _ in range(2))
    first, second = (jax.tree.map(np.zeros_like, parameters) for _ in range(2))
    given: list[Any] = [design_matrix, RowColumn(*copied(prior)), *copied([(_PRIOR_SPREAD[1] / n_layers) ** 2 / d])]
    problem = Problem(*jax.device_put([*given, AscentParameters(*copied(rates)), *training, *held_out]))
    begin: list[Any] = [parameters, first, second, *copied([0, 1, 1]), best, np.inf]
    state, judgement = judge(State(*begin), problem)
    error = np.nan_to_num(judgement.error, nan=1.0, posinf=1.0)
    noise_var, rate = copied([np.maximum(error, np.finfo(dtype).eps), 1])
    *moving, best, best_error = state._replace(noise_var=noise_var, rate=rate)
    return State(*[*jax.device_put(moving), best, best_error]), problem


def _entry_sizes(
    encoder: Float[np.ndarray, "D K"], otherwise: float
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " K"]]:
    """Typical size of every entry, the product of those of its row and its column: their units may differ."""
    power = np.square(encoder, dtype=np.float64)
    overall = float(power.mean())
    if overall == 0:
        return np.full(len(power), otherwise), np.ones(power.shape[1])
    rows, columns = (np.maximum(power.mean(axis=axis), 1e-8 * overall) for axis in (1, 0))
    return np.sqrt(rows), np.sqrt(columns / overall)


def _ascend(
    state: State, problem: Problem, gradient: AscentParameters, rate: Array
) -> tuple[tuple[AscentParameters, AscentParameters, AscentParameters], Array]:
    """Adam's step: parameters and both moments; and whether the gradient, and its square, is finite."""
    n_steps = state.n_steps + 1
    first = jax.tree.map(lambda m, g: _FIRST_DECAY * m + (1 - _FIRST_DECAY) * g, state.first, gradient)
    second = jax.tree.map(lambda v, g: _SECOND_DECAY * v + (1 - _SECOND_DECAY) * g * g, state.second, gradient)
    forgotten, forgotten_square = 1 - _FIRST_DECAY**n_steps, 1 - _SECOND_DECAY**n_steps
    squares = jax.tree.map(lambda v: jnp.mean(v) / forgotten_square, second)

    def move(parameter: Array, m: Array, v: Array, square: Array, speed: Array) -> Array:
        floor = _RELATIVE_EPSILON * jnp.sqrt(square) + 1e3 * jnp.sqrt(jnp.finfo(v.dtype).tiny)
        return parameter + rate * speed * m / forgotten / (jnp.sqrt(v / forgotten_square) + floor)

    moved = jax.tree.map(move, state.parameters, first, second, squares, problem.rates)
    return (moved, first, second), jnp.isfinite(sum(jax.tree.leaves(squares)))


@quickly_compiled
def step(
    state: State,
    problem: Problem,
    rows: Int[_Numbers, "b s"],
    included: Float[_Numbers, "b s"],
    rates: Float[_Numbers, " b"],
) -> tuple[State, Info]:
    """One pass over pairs in mini-batches; a batch whose gradient is not finite is skipped and counted.

    So is one whose error reaches the bound of all moments, `bayeslista.network.largest_moment`: its gradient is that of
    the bound.

    Parameters
    ----------
    state : State
        Before the pass.
    problem : Problem
        What is given.
    rows : array of shape (b, s)
        The pairs of each of the b batches.
    included : array of shape (b, s)
        1, or 0 where a row only fills a batch up; a batch of nothing else changes nothing.
    rates : array of shape (b,)
        What to multiply the rates by in each batch: :func:`schedule`.

    Returns
    -------
    State, Info
        After the pass, and what happened in it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from bayeslista.inference import variational
    >>> from bayeslista.inference.judging import judge
    >>> pairs = np.ones((4, 1), np.float32), 0.5 * np.ones((4, 1), np.float32)
    >>> start = np.ones((1, 1), np.float32)
    >>> state, problem = variational.init(start, start, np.full(2, 0.1, np.float32), pairs, pairs, True)
    >>> rows, included = jnp.arange(4).reshape(2, 2), jnp.ones((2, 2))
    >>> after, info = variational.step(state, problem, rows, included, jnp.ones(2))
    >>> after, _ = judge(after, problem)
    >>> bool(after.best_error < state.best_error)
    True
    """
    n_pairs, d = jnp.sum(included), problem.codes.shape[1]
    strength = _TEMPERATURE / n_pairs

    def batch(state: State, chosen: tuple[Array, Array, Array]) -> tuple[State, tuple[Array, ...]]:
        rows, included, rate = chosen
        parameters = state.parameters
        weights, shrinkage = belief(parameters)
        n = jnp.maximum(jnp.sum(included), 1)
        error, predicted, ((encoder, residual), by_shrinkage) = expected_error_and_gradient(
            weights, problem.design_matrix, problem.observations[rows], problem.codes[rows], shrinkage, included
        )
        # Of −error/2ν per pair, and of minus the divergence from the prior.
        scale = -0.5 / (state.noise_var * n)
        prior, prior_residual_var = problem.prior_encoder, problem.prior_residual_var

        def by_logs(of: RowColumn, by: RowColumn, prior_rows: Array, prior_columns: Array) -> tuple[Array, Array]:
            rows, columns = of.rows / prior_rows, of.columns / prior_columns
            return (
                scale * of.rows * by.rows + 0.5 * strength * (len(columns) - rows * jnp.sum(columns)),
                scale * of.columns * by.columns + 0.5 * strength * (len(rows) - columns * jnp.sum(rows)),
            )

        gradient = AscentParameters(
            scale * encoder.mean - strength * (parameters.encoder - prior.mean) / prior.var,
            scale * residual.mean - strength * parameters.residual / prior_residual_var,
            *by_logs(weights.encoder, encoder, prior.rows, prior.columns),
            *by_logs(weights.residual, residual, prior_residual_var, jnp.ones(())),
            scale * by_shrinkage * shrinkage,
        )
        (moved, first, second), finite = _ascend(state, problem, gradient, rate * state.rate)
        usable = (error < largest_moment(error)) & finite
        noise_var = _NOISE_DECAY * state.noise_var + (1 - _NOISE_DECAY) * error / (n * d)
        smallest = jnp.finfo(noise_var.dtype).eps
        after = state._replace(
            parameters=moved,
            first=first,
            second=second,
            n_steps=state.n_steps + 1,
            noise_var=jnp.maximum(noise_var, smallest),
        )
        used = usable & jnp.any(included > 0)
        after = jax.tree.map(partial(jax.lax.select, used), after, state)
        ratios, informative = relative_errors(predicted, problem.codes[rows])
        told = error, included @ ratios, included @ informative.astype(ratios.dtype)
        return after, (*(jnp.where(usable, value, 0) for value in told), ~usable)

    state, (errors, ratios, n_codes, skipped) = jax.lax.scan(batch, state, (rows, included, rates))
    training_error = jnp.sum(errors) / (n_pairs * d)
    return state, Info(training_error, jnp.sum(ratios) / jnp.maximum(jnp.sum(n_codes), 1), jnp.sum(skipped))


_step_in_place = quickly_compiled(step, donate_argnames="state")


def advance(
    state: State,
    problem: Problem,
    rows: Int[_Numbers, "b s"],
    included: Float[_Numbers, "b s"],
    rates: Float[_Numbers, " b"],
) -> tuple[State, Info, float, Judgement]:
    """A pass and its judgement, in the memory of the state that is given, which is no more afterwards.

    Parameters
    ----------
    state, problem, rows, included, rates
        As for :func:`step`.

    Returns
    -------
    State, Info, float, Judgement
        After the pass, what happened in it, the objective after it, and what held-out pairs say.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from bayeslista.inference import variational
    >>> pairs = np.ones((4, 1), np.float32), 0.5 * np.ones((4, 1), np.float32)
    >>> start = np.ones((1, 1), np.float32)
    >>> state, problem = variational.init(start, start, np.full(2, 0.1, np.float32), pairs, pairs, True)
    >>> error = float(state.best_error)
    >>> rows, included = jnp.arange(4).reshape(2, 2), jnp.ones((2, 2))
    >>> state, _, _, judgement = variational.advance(state, problem, rows, included, jnp.ones(2))
    >>> float(judgement.error) < error
    True
    """
    apart: dict[str, Any] = {"best": None, "best_error": None}
    moving = state._replace(**apart)
    moved, info = _step_in_place(moving, problem, rows, included, rates)
    reached = objective(moved, problem, float(info.error), float(np.sum(included)))
    state, judgement = judge(moved._replace(best=state.best, best_error=state.best_error), problem)
    return state, info, reached, judgement


def objective(state: State, problem: Problem, error: float, n_pairs: float) -> float:
    """What the ascent raises, for one pair; on the host, where it has nothing to compile.

    Parameters
    ----------
    state : State
        After a pass.
    problem : Problem
        What is given.
    error : float
        Mean squared error of the training pairs.
    n_pairs : float
        How many there are.

    Returns
    -------
    float
        The expected log density less what the divergence from the prior counts.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference import variational
    >>> pairs = np.ones((4, 1), np.float32), 0.5 * np.ones((4, 1), np.float32)
    >>> start = np.ones((1, 1), np.float32)
    >>> state, problem = variational.init(start, start, np.full(2, 0.1, np.float32), pairs, pairs, True)
    >>> [round(variational.objective(state, problem, 0.1, n_pairs), 2) for n_pairs in (4, 400)]
    [-3.9, -0.35]
    """
    parameters, (mean, rows, columns), residual_var, noise_var = jax.tree.map(
        lambda part: np.asarray(part, np.float64),
        (state.parameters, problem.prior_encoder, problem.prior_residual_var, state.noise_var),
    )

    def divergence(departure: Any, log_rows: Any, log_columns: Any, prior_rows: Any, prior_columns: Any) -> float:
        """Of Gaussians whose variances, those of the prior too, are the product of a row's factor and a column's."""
        rows, columns = log_rows - np.log(prior_rows), log_columns - np.log(prior_columns)
        m, n = departure.shape
        squares = (1 / prior_rows) @ (departure * departure) @ (1 / prior_columns)
        logs = n * np.sum(rows) + m * np.sum(columns)
        return 0.5 * float(np.sum(np.exp(rows)) * np.sum(np.exp(columns)) - m * n - logs + squares)

    encoder, residual, p, q, r, t, _ = parameters
    d = len(encoder)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        whole = divergence(encoder - mean, p, q, rows, columns)
        whole += divergence(residual, r, t, np.full(d, residual_var), np.ones(d))
        likelihood = -0.5 * d * float(np.log(2 * np.pi * noise_var) + error / noise_var)
    return likelihood - _TEMPERATURE / n_pairs * whole


def schedule(n_pass: int, n_batches: int, max_passes: int) -> Float[np.ndarray, " b"]:
    """What to multiply the rates by in each batch of a pass: a warm-up, then a cosine down to 2 %.

    Parameters
    ----------
    n_pass : int
        Which pass, the first being 0.
    n_batches : int
        Batches in a pass.
    max_passes : int
        Passes in all.

    Returns
    -------
    array of shape (n_batches,)
        The factors.

    Examples
    --------
    >>> from bayeslista.inference.variational import schedule
    >>> schedule(0, 4, 10).tolist()
    [0.25, 0.5, 0.75, 1.0]
    >>> bool(schedule(9, 4, 10)[-1] < 0.05)
    True
    """
    time = n_pass + np.arange(n_batches) / n_batches
    if n_pass == 0:
        return time + 1 / n_batches
    progress = (time - 1) / max(max_passes - 1, 1)
    return _FINAL_RATE + (1 - _FINAL_RATE) * 0.5 * (1 + np.cos(np.pi * progress))
