r"""Calibration by simulation: the scalars of spike-and-slab layers, learned from pairs drawn from the learned model.

Layers of message passing are exact for large random matrices only. What they get wrong elsewhere is a matter of a few
numbers a layer: how sure the log-odds are, how much noise there seems to be, how fast sites may change. A model that is
known, or has been learned, can make as many pairs as it takes to find them. Codes are always fresh: those that a matrix
was learned from flatter it.

The objective of a batch is the negative log score, by coefficient and in the mixed measure, plus the mean of
:math:`\|\hat\beta - \beta\| / \|\beta\|`; Adam descends it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize

from bayeslista._compilation import quickly_compiled
from bayeslista.denoiser import Denoised, blend
from bayeslista.inference.adam import Moments, direction, no_moments, squared_norm
from bayeslista.message_passing import NetworkState, Problem
from bayeslista.spike_slab_network import HeadScalars, NetworkScalars, Opinion, answer, run_layers

_HALF_LOG_TWO_PI = 0.9189385332046727
_LARGEST_GRADIENT = 1.0
_DOUBT = 1e-3
_LEAST_POWER = 0.3  # of a code, in units of the mean, that errors are divided by
_FEW_ACTIVE = 5.0  # with fewer active coefficients, codes differ so much in power that relative errors mislead
_PRICE_OF_VARIANCE, _PRICE_OF_MISCALIBRATION, _SMOOTH = 3.0, 5.0, 1e-4
_RIDGE, _HEAD_REACH, _HEAD_STEPS = 1e-3, 1.5, 40
_FIRST_LOG_ODDS = -2.2  # of the share of a second opinion: a tenth

PRICE_OF_ERROR = 20.0
"""What a relative error counts for, in units of the log score, once layers are learned."""


class Info(NamedTuple):
    """What training did: the objective of every batch, and how many batches had no usable gradient."""

    objective: Float[Array, " steps"]
    skipped: Int[Array, ""]


def log_score(
    belief: Denoised, codes: Float[Array, "n D"], doubt: float = 0.0, scale: Float[Array, ""] | float = 1.0
) -> Float[Array, "n D"]:
    """Log density of codes in the mixed measure, from log-odds, so that no probability rounds to zero.

    Parameters
    ----------
    belief : Denoised
        Log-odds and slab.
    codes : array of shape (n, D)
        The truth.
    doubt : float, default=0.0
        Share of the slab that is left to a Gaussian about zero; its square bounds from below what counts as the
        probability of being active or not. Together they bound what a single code can cost.
    scale : float
        Its standard deviation.

    Returns
    -------
    array of shape (n, D)
        ``log(1 − q)`` where a code is zero, else ``log q + log N(β; m, v)``.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.simulation import log_score
    >>> from bayeslista.denoiser import Denoised
    >>> belief = Denoised(np.zeros((1, 2)), np.full((1, 2), 2.0), np.ones((1, 2)))
    >>> [round(float(score), 3) for score in log_score(belief, np.array([[0.0, 2.0]]))[0]]
    [-0.693, -1.612]
    """
    var = jnp.maximum(belief.slab_var, jnp.finfo(belief.slab_var.dtype).tiny)
    density = -0.5 * ((codes - belief.slab_mean) ** 2 / var + jnp.log(var)) - _HALF_LOG_TWO_PI
    chance = jax.nn.log_sigmoid(jnp.where(codes == 0, -belief.log_odds, belief.log_odds))
    if doubt:
        chance = jnp.logaddexp(chance, 2 * np.log(doubt))
        wide = -0.5 * (codes / scale) ** 2 - jnp.log(scale) - _HALF_LOG_TWO_PI
        density = jnp.logaddexp(density + np.log1p(-doubt), wide + np.log(doubt))
    return jnp.where(codes == 0, chance, chance + density)


def objective(
    scalars: NetworkScalars, problem: Problem, observations: Float[Array, "n K"], codes: Float[Array, "n D"]
) -> Float[Array, ""]:
    """Negative log score and relative error of a batch.

    Parameters
    ----------
    scalars : NetworkScalars
        What is learned.
    problem : Problem
        What all signals share.
    observations, codes : array of shape (n, K) and (n, D)
        Pairs.

    Returns
    -------
    array
        The smaller the better.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.simulation import objective
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observed, scalars = np.array([[0.0, 2.0]]), default_scalars(1, 0)
    >>> right, wrong = (objective(scalars, problem, observed, np.array([code])) for code in ([0.0, 2.1], [2.1, 0.0]))
    >>> bool(right < wrong)
    True
    """
    belief = answer(problem, observations, run_layers(problem, observations, scalars), scalars.head)
    return loss_of_belief(problem, belief, codes)


@jax.jit
def loss_of_belief(
    problem: Problem, belief: Denoised, codes: Float[Array, "n D"], price_of_error: float = 1.0
) -> Float[Array, ""]:
    """Mean relative error less mean log score.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    belief : Denoised
        What is predicted.
    codes : array of shape (n, D)
        The truth.
    price_of_error : float, default=1.0
        What a relative error counts for, in units of the log score.

    Returns
    -------
    array
        The smaller the better.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.inference.simulation import loss_of_belief
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars, run_network
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> belief = run_network(problem, np.array([[0.0, 2.0]]), default_scalars(1, 0))
    >>> bool(loss_of_belief(problem, belief, np.array([[0.0, 2.1]])) < 0)
    True
    """
    error = jnp.sum((_mean(belief) - codes) ** 2, axis=1)
    power = jnp.sum(codes**2, axis=1)
    counted = power > 0
    # Relative to next to nothing, the best prediction would be nothing. A root has no derivative at zero.
    n_active = jnp.maximum(jnp.mean(jnp.sum(codes != 0, axis=1, dtype=codes.dtype)), 1 / len(codes))
    least = _LEAST_POWER * jnp.maximum(1.0, _FEW_ACTIVE / n_active) ** 2
    size = jnp.maximum(jnp.maximum(power, least * jnp.mean(power)), jnp.finfo(error.dtype).tiny)
    relative = jnp.sqrt(error / size + jnp.finfo(error.dtype).eps)
    slab = problem.prior.mean**2 + problem.prior.var
    scale = jnp.sqrt(jnp.mean(jnp.sum(jnp.exp(problem.prior.log_weight)[:, None] * slab, axis=0)))
    score = jnp.mean(log_score(belief, codes, _DOUBT, scale))
    return price_of_error * jnp.sum(jnp.where(counted, relative, 0.0)) / jnp.maximum(jnp.sum(counted), 1) - score


def _mean(belief: Denoised) -> Array:
    return jax.nn.sigmoid(belief.log_odds) * belief.slab_mean


@jax.jit
@jax.value_and_grad
def _head_loss(flat: Array, problem: Problem, observations: Array, codes: Array, state: NetworkState) -> Array:
    return _calibrated_loss(problem, answer(problem, observations, state, _head(flat)), codes)


@jax.jit
@jax.value_and_grad
def _opinion_loss(
    flat: Array, problem: Problem, observations: Array, codes: Array, state: NetworkState, before: NetworkState
) -> Array:
    first = answer(problem, observations, state, _head(flat[:16]))
    second = answer(problem, observations, before, _head(flat[16:32]))
    return _calibrated_loss(problem, blend(first, second, flat[32]), codes)


def _calibrated_loss(problem: Problem, belief: Denoised, codes: Array) -> Array:
    """Loss with a higher price on errors, and prices on what is not calibrated.

    Variances should be the mean squared error, and in every tenth of P(active) its mean the share that is active.
    """
    chance, mean = jax.nn.sigmoid(belief.log_odds), _mean(belief)
    var = jnp.mean(chance * (belief.slab_var + (1 - chance) * belief.slab_mean**2))
    gap = jnp.log(var / jnp.mean((mean - codes) ** 2))
    tenth = jnp.clip(jnp.floor(10 * jax.lax.stop_gradient(chance)), 0, 9)
    excess = jnp.stack([jnp.sum(jnp.where(tenth == i, chance - (codes != 0), 0.0)) for i in range(10)]) / codes.size
    miscalibration = jnp.sum(jnp.sqrt(excess**2 + _SMOOTH**2))
    loss = loss_of_belief(problem, belief, codes, PRICE_OF_ERROR)
    return loss + _PRICE_OF_VARIANCE * gap**2 + _PRICE_OF_MISCALIBRATION * miscalibration


def _head(flat: Any) -> HeadScalars:
    return HeadScalars(flat[:4], flat[4:8], flat[8:12], flat[12:])


def fit_head(
    problem: Problem,
    observations: Float[np.ndarray, "n K"],
    codes: Float[np.ndarray, "n D"],
    state: NetworkState,
    start: HeadScalars,
) -> HeadScalars:
    """The head that suits simulated pairs best, for layers as they are.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations, codes : array of shape (n, K) and (n, D)
        Simulated pairs.
    state : NetworkState
        What the layers make of them.
    start : HeadScalars
        The head to start from.

    Returns
    -------
    HeadScalars
        Another head, or the same where none is better.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.generative import SlabMixture, simulate_pairs
    >>> from bayeslista.inference.simulation import fit_head
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars, run_layers
    >>> problem = make_problem(np.eye(2), 0.1, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> slab = SlabMixture(np.ones(1), np.zeros(1), np.ones(1))
    >>> Y, B = simulate_pairs(np.eye(2), 0.1, 0.5, slab, 200, np.random.default_rng(0))
    >>> scalars = default_scalars(3, 0)
    >>> head = fit_head(problem, Y, B, run_layers(problem, Y, scalars), scalars.head)
    >>> head.log_widening.shape
    (4,)
    """
    begin = np.concatenate([np.ravel(part) for part in start]).astype(np.float64)
    found = _descend(lambda flat: _head_loss(flat, problem, observations, codes, state), begin, codes.dtype)
    return start if found is None else _head(found)


def fit_opinion(
    problem: Problem,
    observations: Float[np.ndarray, "n K"],
    codes: Float[np.ndarray, "n D"],
    state: NetworkState,
    before: NetworkState,
    start: HeadScalars,
) -> tuple[HeadScalars, Opinion | None]:
    """A second opinion, its share, and the head that suits both.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations, codes : array of shape (n, K) and (n, D)
        Simulated pairs.
    state, before : NetworkState
        What all layers make of them, and those of vector AMP alone.
    start : HeadScalars
        The head without a second opinion.

    Returns
    -------
    head : HeadScalars
        Another head, or the same where none is better.
    opinion : Opinion or None
        None where none is better.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.generative import SlabMixture, simulate_pairs
    >>> from bayeslista.inference.simulation import fit_opinion
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars, run_layers, vector_state
    >>> problem = make_problem(np.eye(2), 0.1, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> slab = SlabMixture(np.ones(1), np.zeros(1), np.ones(1))
    >>> Y, B = simulate_pairs(np.eye(2), 0.1, 0.5, slab, 200, np.random.default_rng(0))
    >>> scalars = default_scalars(2, 1)
    >>> states = run_layers(problem, Y, scalars), vector_state(problem, Y, scalars)
    >>> head, opinion = fit_opinion(problem, Y, B, *states, scalars.head)
    >>> head.log_widening.shape
    (4,)
    """
    alone = np.concatenate([np.ravel(part) for part in start]).astype(np.float64)
    begin = np.concatenate([alone, np.zeros(len(alone)), [_FIRST_LOG_ODDS]])
    pairs = problem, observations, codes, state
    found = _descend(lambda flat: _opinion_loss(flat, *pairs, before), begin, codes.dtype)
    if found is None or not _opinion_loss(found, *pairs, before)[0] < _head_loss(alone.astype(codes.dtype), *pairs)[0]:
        return start, None
    return _head(found[:16]), Opinion(_head(found[16:32]), found[32])


def _descend(
    value_and_gradient: Callable[[np.ndarray], tuple[Array, Array]], begin: np.ndarray, dtype: np.dtype
) -> np.ndarray | None:
    """Where a loss is least, not far from the start; None if that is nowhere better."""

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(flat.astype(dtype))
        away = flat - begin
        return float(value) + _RIDGE * float(away @ away), np.asarray(gradient, np.float64) + 2 * _RIDGE * away

    bounds = list(zip(begin - _HEAD_REACH, begin + _HEAD_REACH, strict=True))
    best = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _HEAD_STEPS})
    return best.x.astype(dtype) if best.fun < loss(begin)[0] else None


@quickly_compiled
def train_scalars(
    scalars: NetworkScalars,
    problem: Problem,
    observations: Float[Array, "steps n K"],
    codes: Float[Array, "steps n D"],
    rates: Float[Array, " steps"],
) -> tuple[NetworkScalars, Info]:
    """One step of Adam for every batch; the layers of the last kind move together, and the head.

    Together they take fewer pairs than each by itself. Further layers move as those of their kind do.

    Parameters
    ----------
    scalars : NetworkScalars
        Where to start.
    problem : Problem
        What all signals share.
    observations, codes : array of shape (steps, n, K) and (steps, n, D)
        Simulated pairs, one batch a step.
    rates : array of shape (steps,)
        The learning rate of every step.

    Returns
    -------
    scalars : NetworkScalars
        Learned.
    info : Info
        What happened.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.generative import SlabMixture, simulate_pairs
    >>> from bayeslista.inference.simulation import cosine_rates, train_scalars
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> from bayeslista.spike_slab_network import default_scalars
    >>> problem = make_problem(np.eye(2), 0.1, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> slab = SlabMixture(np.ones(1), np.zeros(1), np.ones(1))
    >>> Y, B = simulate_pairs(np.eye(2), 0.1, 0.5, slab, 3 * 4, np.random.default_rng(0))
    >>> batches = Y.reshape(3, 4, 2), B.reshape(3, 4, 2)
    >>> scalars, info = train_scalars(default_scalars(1, 0), problem, *batches, cosine_rates(3, 0.02))
    >>> info.objective.shape, int(info.skipped)
    ((3,), 0)
    """

    def shifted(by: NetworkScalars) -> NetworkScalars:
        return jax.tree.map(jnp.add, scalars, by._replace(further_layers=by.propagation_layers))

    def descend(
        carry: tuple[NetworkScalars, Moments], batch: tuple[Array, Array, Array]
    ) -> tuple[tuple[NetworkScalars, Moments], tuple[Array, Array]]:
        before, moments = carry
        Y, B, rate = batch
        value, gradient = jax.value_and_grad(lambda by: objective(shifted(by), problem, Y, B))(before)
        square = squared_norm(gradient)
        usable = jnp.isfinite(square) & jnp.isfinite(value)
        norm = jnp.sqrt(square)
        small = norm < _LARGEST_GRADIENT
        bounded = jax.tree.map(lambda g: jax.lax.select(small, g, g / norm * _LARGEST_GRADIENT), gradient)
        towards, after_moments = direction(bounded, moments)
        after = jax.tree.map(lambda old, change: old - rate * change, before, towards)
        kept = jax.tree.map(partial(jnp.where, usable), (after, after_moments), carry)
        return kept, (jnp.where(usable, value, 0.0), usable)

    vector, propagation = (jax.tree.map(lambda part: jnp.zeros((), part.dtype), kind) for kind in scalars[:2])
    begin = NetworkScalars(vector, propagation, propagation, jax.tree.map(jnp.zeros_like, scalars.head))
    (by, _), (values, usable) = jax.lax.scan(descend, (begin, no_moments(begin)), (observations, codes, rates))
    return shifted(by), Info(values, jnp.sum(~usable))


def cosine_rates(n_steps: int, largest: float, dtype: np.typing.DTypeLike = np.float64) -> Float[np.ndarray, " steps"]:
    """Learning rates that fall from the largest to nothing.

    Parameters
    ----------
    n_steps : int
        How many.
    largest : float
        The first.
    dtype : dtype
        Floating type of the result.

    Returns
    -------
    array of shape (n_steps,)
        Half a cosine.

    Examples
    --------
    >>> from bayeslista.inference.simulation import cosine_rates
    >>> cosine_rates(2, 0.1).round(3).tolist()
    [0.1, 0.05]
    """
    return (0.5 * largest * (1 + np.cos(np.pi * np.arange(n_steps) / n_steps))).astype(dtype)
