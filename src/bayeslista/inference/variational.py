r"""Deterministic variational inference for the anchored network, in mini-batches.

The belief about W and R is Gaussian with independent entries; its parameters, and a threshold per layer, ascend

.. math::
    \sum_n E_q \log N(\beta_n; \hat\beta_n, \nu) - T\,\mathrm{KL}(q \,\|\, p),

where the expectation is the expected squared error that moments give in closed form: no sampling. The prior is
:math:`W \sim N(W_0, (4/L)^2 z)` about the start, with z the typical square of an entry in its row and column, and
:math:`R \sim N(0, (0.8/L)^2/D)`; the temperature is :math:`T = 3`, and ν follows the error itself as a running mean.
The ascent is Adam's with an epsilon relative to the matrix it scales, rates that bound how far a step moves
:math:`W X` and R in spectral norm, a warm-up over the first pass and a cosine decay.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bayeslista.anchored_network import AnchoredWeights, expected_error_and_gradient, propagate_anchored
from bayeslista.moments import soft_threshold_moments
from bayeslista.network import Gaussian

_TEMPERATURE = 3.0
_PRIOR_SPREAD = 4.0, 0.8  # of W in units of its root mean square, of R in units of 1/√D; both over L
_INITIAL_SPREAD = 0.05
_MEAN_RATE = 0.2, 0.8  # at most the first; the second over L
_LOG_VAR_RATE = 0.05
_LOG_SHRINKAGE_RATE = 0.01
_FIRST_DECAY, _SECOND_DECAY = 0.9, 0.999
_RELATIVE_EPSILON = 0.01
_FINAL_RATE = 0.02
_NOISE_DECAY = 0.95
_EXPLOSION = 1.5
_STREAM_TEMPERATURE = 30.0
_LARGEST_STREAM_STEP = 0.3  # of a mean, in standard deviations
_LARGEST_STREAM_FACTOR = 2.0  # of a variance, either way


class Parameters(NamedTuple):
    """What is learned: variances and thresholds by their logarithms."""

    encoder: Float[Array, "D K"]
    residual: Float[Array, "D D"]
    encoder_log_var: Float[Array, "D K"]
    residual_log_var: Float[Array, "D D"]
    log_shrinkage: Float[Array, " L"]


class Problem(NamedTuple):
    """What is given: the design matrix, the prior, the pairs to learn from and those held out."""

    design_matrix: Float[Array, "K D"]
    prior_encoder: Float[Array, "D K"]
    prior_encoder_var: Float[Array, "D K"]
    prior_residual_var: Float[Array, ""]
    rates: Parameters
    observations: Float[Array, "n K"]
    codes: Float[Array, "n D"]
    held_out_observations: Float[Array, "m K"]
    held_out_codes: Float[Array, "m D"]


class State(NamedTuple):
    """Where learning is: parameters, Adam's moments, the noise, the rate, and the best parameters so far."""

    parameters: Parameters
    first: Parameters
    second: Parameters
    n_steps: Float[Array, ""]
    noise_var: Float[Array, ""]
    rate: Float[Array, ""]
    best: Parameters
    best_error: Float[Array, ""]


class Info(NamedTuple):
    """What a pass did: errors per coefficient, NMSE of the held-out codes, and what went wrong."""

    objective: Float[Array, ""]
    training_error: Float[Array, ""]
    held_out_error: Float[Array, ""]
    nmse: Float[Array, ""]
    skipped: Int[Array, ""]
    restored: Bool[Array, ""]


def posterior(parameters: Parameters) -> AnchoredWeights:
    """The belief that the parameters describe.

    Parameters
    ----------
    parameters : Parameters
        Means and logarithms of variances.

    Returns
    -------
    AnchoredWeights
        Means and variances.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.inference.variational import Parameters, posterior
    >>> parameters = Parameters(*jnp.zeros((4, 1, 1)), jnp.zeros(2))
    >>> float(posterior(parameters).encoder.var[0, 0])
    1.0
    """
    return AnchoredWeights(
        Gaussian(parameters.encoder, jnp.exp(parameters.encoder_log_var)),
        Gaussian(parameters.residual, jnp.exp(parameters.residual_log_var)),
    )


@jax.jit
def predict(
    parameters: Parameters, design_matrix: Float[Array, "K D"], observations: Float[Array, "n K"]
) -> Float[Array, "n D"]:
    """Mean of the output.

    Parameters
    ----------
    parameters : Parameters
        What was learned.
    design_matrix : array of shape (K, D)
        X.
    observations : array of shape (n, K)
        One observation a row.

    Returns
    -------
    array of shape (n, D)
        One code a row.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.inference.variational import Parameters, predict
    >>> certain = jnp.full((1, 1), -99.0)
    >>> parameters = Parameters(jnp.ones((1, 1)), jnp.zeros((1, 1)), certain, certain, jnp.log(jnp.array([0.5])))
    >>> predict(parameters, jnp.ones((1, 1)), jnp.array([[2.0]])).tolist()
    [[1.5]]
    """
    shrinkage = jnp.exp(parameters.log_shrinkage)
    mean, var = propagate_anchored(posterior(parameters), design_matrix, observations, shrinkage)
    return soft_threshold_moments(mean, var, shrinkage[-1]).mean


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
    size = _entry_sizes(encoder)
    norm = float(np.linalg.norm(design_matrix, 2)) or 1.0
    with np.errstate(divide="ignore"):
        log_shrinkage = np.maximum(np.log(shrinkage), np.log(np.finfo(dtype).tiny))
    step_size = min(_MEAN_RATE[0], _MEAN_RATE[1] / n_layers)
    values: tuple[Any, ...] = (
        encoder,
        np.zeros((d, d)),
        2 * np.log(_INITIAL_SPREAD * size),
        np.full((d, d), 2 * np.log(_INITIAL_SPREAD) - np.log(d)),
        log_shrinkage,
    )
    rates = (
        step_size / (norm * np.sqrt(d * k)),
        step_size / d,
        _LOG_VAR_RATE,
        _LOG_VAR_RATE,
        _LOG_SHRINKAGE_RATE * learn_shrinkage,
    )
    parameters = Parameters(*(jnp.asarray(value, dtype) for value in values))
    zero = Parameters(*(jnp.asarray(np.zeros(value.shape), dtype) for value in parameters))
    problem = Problem(
        jnp.asarray(design_matrix),
        jnp.asarray(encoder, dtype),
        jnp.asarray((_PRIOR_SPREAD[0] / n_layers * size) ** 2, dtype),
        jnp.asarray((_PRIOR_SPREAD[1] / n_layers) ** 2 / d, dtype),
        Parameters(*(jnp.asarray(rate, dtype) for rate in rates)),
        *(jnp.asarray(part) for part in (*training, *held_out)),
    )
    error, noise_var = _first_errors(parameters, problem)
    return (
        State(
            parameters,
            zero,
            zero,
            jnp.asarray(0, dtype),
            noise_var,
            jnp.asarray(1, dtype),
            parameters,
            error,
        ),
        problem,
    )


def _entry_sizes(encoder: Float[np.ndarray, "D K"]) -> Float[np.ndarray, "D K"]:
    """Typical size of every entry, the product of those of its row and its column: their units may differ."""
    power = np.square(encoder, dtype=np.float64)
    overall = float(power.mean())
    if overall == 0:
        return np.ones_like(power)
    rows, columns = (np.maximum(power.mean(axis=axis, keepdims=True), 1e-8 * overall) for axis in (1, 0))
    return np.sqrt(rows * columns / overall)


@jax.jit
def _first_errors(parameters: Parameters, problem: Problem) -> tuple[Array, Array]:
    """Held-out error of the start, infinite if it is not finite, and its error on the training pairs as the noise."""
    error, _ = _errors(parameters, problem)
    noise_var = jnp.mean((predict(parameters, problem.design_matrix, problem.observations) - problem.codes) ** 2)
    noise_var = jnp.maximum(jnp.where(jnp.isfinite(noise_var), noise_var, 1), jnp.finfo(noise_var.dtype).eps)
    return jnp.where(jnp.isfinite(error), error, jnp.inf), noise_var


def _errors(parameters: Parameters, problem: Problem) -> tuple[Array, Array]:
    """Mean squared error and NMSE of the held-out pairs."""
    predicted = predict(parameters, problem.design_matrix, problem.held_out_observations)
    difference = predicted - problem.held_out_codes
    norms = jnp.linalg.norm(problem.held_out_codes, axis=1)
    ratios = jnp.where(norms > 0, jnp.linalg.norm(difference, axis=1) / jnp.where(norms > 0, norms, 1), 0)
    return jnp.mean(difference**2), jnp.sum(ratios) / jnp.maximum(jnp.sum(norms > 0), 1)


def _ascend(
    state: State, problem: Problem, gradient: Parameters, rate: Array
) -> tuple[Parameters, Parameters, Parameters]:
    """Adam's step: parameters and both moments."""
    n_steps = state.n_steps + 1
    first = jax.tree.map(lambda m, g: _FIRST_DECAY * m + (1 - _FIRST_DECAY) * g, state.first, gradient)
    second = jax.tree.map(lambda v, g: _SECOND_DECAY * v + (1 - _SECOND_DECAY) * g * g, state.second, gradient)

    def move(parameter: Array, m: Array, v: Array, speed: Array) -> Array:
        size = jnp.sqrt(v / (1 - _SECOND_DECAY**n_steps))
        floor = _RELATIVE_EPSILON * jnp.sqrt(jnp.mean(size * size)) + 1e3 * jnp.sqrt(jnp.finfo(size.dtype).tiny)
        return parameter + rate * speed * m / (1 - _FIRST_DECAY**n_steps) / (size + floor)

    return jax.tree.map(move, state.parameters, first, second, problem.rates), first, second


@jax.jit
def step(
    state: State, problem: Problem, rows: Int[Array, "b s"], included: Float[Array, "b s"], rates: Float[Array, " b"]
) -> tuple[State, Info]:
    """One pass over the pairs in mini-batches, judged by the held-out pairs at its end.

    If their error exceeds 1.5 times the best, or is not finite, the best parameters are restored and the rate halved.
    A batch whose gradient is not finite is skipped and counted.

    Parameters
    ----------
    state : State
        Before the pass.
    problem : Problem
        What is given.
    rows : array of shape (b, s)
        The pairs of each of the b batches.
    included : array of shape (b, s)
        1, or 0 where a row only fills a batch up.
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
    >>> pairs = np.ones((4, 1), np.float32), 0.5 * np.ones((4, 1), np.float32)
    >>> start = np.ones((1, 1), np.float32)
    >>> state, problem = variational.init(start, start, np.full(2, 0.1, np.float32), pairs, pairs, True)
    >>> rows, included = jnp.arange(4).reshape(2, 2), jnp.ones((2, 2))
    >>> after, info = variational.step(state, problem, rows, included, jnp.ones(2))
    >>> bool(info.held_out_error < state.best_error)
    True
    """
    n_pairs, d = problem.codes.shape
    strength = _TEMPERATURE / n_pairs

    def batch(state: State, chosen: tuple[Array, Array, Array]) -> tuple[State, tuple[Array, Array]]:
        rows, included, rate = chosen
        parameters = state.parameters
        shrinkage = jnp.exp(parameters.log_shrinkage)
        belief = posterior(parameters)
        n = jnp.sum(included)
        error, ((encoder, residual), by_shrinkage) = expected_error_and_gradient(
            belief, problem.design_matrix, problem.observations[rows], problem.codes[rows], shrinkage, included
        )
        # Of −error/2ν per pair, and of minus the divergence from the prior.
        scale = -0.5 / (state.noise_var * n)
        gradient = Parameters(
            scale * encoder.mean - strength * (parameters.encoder - problem.prior_encoder) / problem.prior_encoder_var,
            scale * residual.mean - strength * parameters.residual / problem.prior_residual_var,
            scale * encoder.var * belief.encoder.var
            + 0.5 * strength * (1 - belief.encoder.var / problem.prior_encoder_var),
            scale * residual.var * belief.residual.var
            + 0.5 * strength * (1 - belief.residual.var / problem.prior_residual_var),
            scale * by_shrinkage * shrinkage,
        )
        usable = jnp.isfinite(error) & jnp.all(
            jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient)])
        )
        moved, first, second = _ascend(state, problem, gradient, rate * state.rate)
        noise_var = _NOISE_DECAY * state.noise_var + (1 - _NOISE_DECAY) * error / (n * d)
        smallest = jnp.finfo(noise_var.dtype).eps
        after = state._replace(
            parameters=moved,
            first=first,
            second=second,
            n_steps=state.n_steps + 1,
            noise_var=jnp.maximum(noise_var, smallest),
        )
        after = jax.tree.map(lambda new, old: jnp.where(usable, new, old), after, state)
        return after, (jnp.where(usable, error, 0), ~usable)

    state, (errors, skipped) = jax.lax.scan(batch, state, (rows, included, rates))
    held_out_error, nmse = _errors(state.parameters, problem)
    training_error = jnp.sum(errors) / (n_pairs * d)
    objective = -0.5 * (jnp.log(2 * jnp.pi * state.noise_var) + training_error / state.noise_var) * d
    objective -= strength * _divergence(state.parameters, problem)
    grown = (held_out_error >= _EXPLOSION * state.best_error) & (state.best_error > 0)
    exploded = grown | ~jnp.isfinite(held_out_error)
    better = held_out_error < state.best_error
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), state.parameters, state.best)
    zero = jax.tree.map(jnp.zeros_like, state.first)

    def restore(fallback: Any, current: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(exploded, a, b), fallback, current)

    state = state._replace(
        parameters=restore(best, state.parameters),
        first=restore(zero, state.first),
        second=restore(zero, state.second),
        n_steps=jnp.where(exploded, 0, state.n_steps),
        rate=jnp.where(exploded, 0.5 * state.rate, state.rate),
        best=best,
        best_error=jnp.where(better, held_out_error, state.best_error),
    )
    return state, Info(objective, training_error, held_out_error, nmse, jnp.sum(skipped), exploded)


class StreamInfo(NamedTuple):
    """What happened to a stream of pairs: weights whose update was rejected, and the summed relative error."""

    rejected: Int[Array, ""]
    relative_error: Float[Array, ""]
    n_codes: Int[Array, ""]


@jax.jit
def filter_pairs(
    belief: AnchoredWeights,
    design_matrix: Float[Array, "K D"],
    observations: Float[Array, "n K"],
    codes: Float[Array, "n D"],
    shrinkage: Float[Array, " L"],
    noise_var: Float[Array, ""],
) -> tuple[AnchoredWeights, StreamInfo]:
    r"""Take a stream of pairs into a learned belief, one after the other, each seen once.

    Per pair, one step of the natural gradient of the same objective with the belief before it as the prior:
    :math:`1/v \leftarrow 1/v - 2 g_v` and :math:`m \leftarrow m + v g_m`, with the derivatives of the expected
    log-likelihood over a temperature of 30: a pair seen once moves the belief less than one that was learned from in
    many passes. No step moves a mean by more than 0.3 standard deviations or a variance by more than a factor of two.
    The result depends on the order of the pairs, not on how they are cut.

    Parameters
    ----------
    belief : AnchoredWeights
        Before the stream.
    design_matrix : array of shape (K, D)
        X.
    observations, codes : array of shape (n, K) and (n, D)
        The pairs.
    shrinkage : array of shape (L,)
        Thresholds, which are held.
    noise_var : array
        ν, held.

    Returns
    -------
    AnchoredWeights, StreamInfo
        After the stream, and what was rejected: updates that would make a variance not positive or a number not
        finite.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights
    >>> from bayeslista.inference.variational import filter_pairs
    >>> from bayeslista.network import Gaussian
    >>> one = jnp.ones((1, 1))
    >>> belief = AnchoredWeights(Gaussian(0 * one, one), Gaussian(0 * one, 1e-9 * one))
    >>> pairs = jnp.ones((2000, 1)), jnp.ones((2000, 1))
    >>> after, _ = filter_pairs(belief, one, *pairs, jnp.zeros(1), jnp.asarray(0.1))
    >>> round(float(after.encoder.mean[0, 0]), 1)
    1.0
    """
    scale = -0.5 / (_STREAM_TEMPERATURE * noise_var)

    def update(part: Gaussian, gradient: Gaussian) -> tuple[Gaussian, Array]:
        precision = 1 / part.var - 2 * scale * gradient.var
        precision = jnp.clip(precision, 1 / (_LARGEST_STREAM_FACTOR * part.var), _LARGEST_STREAM_FACTOR / part.var)
        var = 1 / precision
        reach = _LARGEST_STREAM_STEP * jnp.sqrt(part.var)
        mean = part.mean + jnp.clip(scale * var * gradient.mean, -reach, reach)
        accepted = jnp.isfinite(mean) & jnp.isfinite(var) & (var > 0)
        kept = Gaussian(jnp.where(accepted, mean, part.mean), jnp.where(accepted, var, part.var))
        return kept, jnp.sum(~accepted)

    def take(belief: AnchoredWeights, pair: tuple[Array, Array]) -> tuple[AnchoredWeights, StreamInfo]:
        observation, code = pair
        mean, var = propagate_anchored(belief, design_matrix, observation[None], shrinkage)
        predicted = soft_threshold_moments(mean, var, shrinkage[-1]).mean[0]
        _, (gradient, _) = expected_error_and_gradient(
            belief, design_matrix, observation[None], code[None], shrinkage, jnp.ones(1, code.dtype)
        )
        encoder, encoder_rejected = update(belief.encoder, gradient.encoder)
        residual, residual_rejected = update(belief.residual, gradient.residual)
        norm = jnp.linalg.norm(code)
        error = jnp.where(norm > 0, jnp.linalg.norm(predicted - code) / jnp.where(norm > 0, norm, 1), 0)
        info = StreamInfo(encoder_rejected + residual_rejected, error, (norm > 0).astype(int))
        return AnchoredWeights(encoder, residual), info

    belief, infos = jax.lax.scan(take, belief, (observations, codes))
    return belief, jax.tree.map(jnp.sum, infos)


def _divergence(parameters: Parameters, problem: Problem) -> Array:
    """Kullback-Leibler divergence of the belief from the prior."""

    def of(mean: Array, log_var: Array, prior_var: Array) -> Array:
        ratio = jnp.exp(log_var) / prior_var
        return 0.5 * jnp.sum(ratio - 1 - log_var + jnp.log(prior_var) + mean * mean / prior_var)

    return of(parameters.encoder - problem.prior_encoder, parameters.encoder_log_var, problem.prior_encoder_var) + of(
        parameters.residual, parameters.residual_log_var, problem.prior_residual_var
    )


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
