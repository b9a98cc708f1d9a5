r"""Calibration by simulation: the scalars of spike-and-slab layers, learned from pairs drawn from the learned model.

Layers of message passing are exact for large random matrices only. What they get wrong elsewhere is a matter of a few
numbers a layer: how sure the log-odds are, how much noise there seems to be, how fast sites may change. A model that is
given or learned can simulate as many pairs as it takes to find them. Codes are always fresh: those that a matrix was
learned from flatter it.

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

from bayeslista.numerics.compilation import fast_compiled
from bayeslista.spike_slab.config import BUDGET, ESTIMATION, NUMERICS
from bayeslista.spike_slab.denoiser import Denoised, blend
from bayeslista.spike_slab.model import NetworkState, SpikeSlabProblem
from bayeslista.spike_slab.network import AnswerMixture, HeadScalars, NetworkScalars, answer, run_layers

_HALF_LOG_TWO_PI = 0.9189385332046727


class TrainingInfo(NamedTuple):
    """What training did: the objective of every batch, and how many batches had no usable gradient."""

    objective: Float[Array, " steps"]
    skipped: Int[Array, ""]


def log_score(
    posterior: Denoised,
    codes: Float[Array, "n D"],
    floor: float = 0.0,
    scale: Float[Array, ""] | float = 1.0,
) -> Float[Array, "n D"]:
    """Log density of codes in the mixed measure, from log-odds, so that no probability rounds to zero."""
    var = jnp.maximum(posterior.slab_var, jnp.finfo(posterior.slab_var.dtype).tiny)
    density = -0.5 * ((codes - posterior.slab_mean) ** 2 / var + jnp.log(var)) - _HALF_LOG_TWO_PI
    chance = jax.nn.log_sigmoid(jnp.where(codes == 0, -posterior.log_odds, posterior.log_odds))
    if floor:
        chance = jnp.logaddexp(chance, 2 * np.log(floor))
        wide = -0.5 * (codes / scale) ** 2 - jnp.log(scale) - _HALF_LOG_TWO_PI
        density = jnp.logaddexp(density + np.log1p(-floor), wide + np.log(floor))
    return jnp.where(codes == 0, chance, chance + density)


def objective(
    scalars: NetworkScalars, problem: SpikeSlabProblem, observations: Float[Array, "n K"], codes: Float[Array, "n D"]
) -> Float[Array, ""]:
    """Negative log score and relative error of a batch."""
    posterior = answer(problem, observations, run_layers(problem, observations, scalars), scalars.head)
    return loss_of_posterior(problem, posterior, codes)


@jax.jit
def loss_of_posterior(
    problem: SpikeSlabProblem, posterior: Denoised, codes: Float[Array, "n D"], error_penalty: float = 1.0
) -> Float[Array, ""]:
    """Mean relative error less mean log score."""
    error = jnp.sum((_mean(posterior) - codes) ** 2, axis=1)
    power = jnp.sum(codes**2, axis=1)
    counted = power > 0
    # Relative to next to nothing, the best prediction would be nothing. A root has no derivative at zero.
    n_active = jnp.maximum(jnp.mean(jnp.sum(codes != 0, axis=1, dtype=codes.dtype)), 1 / len(codes))
    least = ESTIMATION.least_power * jnp.maximum(1.0, ESTIMATION.few_active / n_active) ** 2
    size = jnp.maximum(jnp.maximum(power, least * jnp.mean(power)), jnp.finfo(error.dtype).tiny)
    relative = jnp.sqrt(error / size + jnp.finfo(error.dtype).eps)
    slab = problem.prior.mean**2 + problem.prior.var
    scale = jnp.sqrt(jnp.mean(jnp.sum(jnp.exp(problem.prior.log_weight)[:, None] * slab, axis=0)))
    score = jnp.mean(log_score(posterior, codes, ESTIMATION.score_floor, scale))
    return error_penalty * jnp.sum(jnp.where(counted, relative, 0.0)) / jnp.maximum(jnp.sum(counted), 1) - score


def _mean(posterior: Denoised) -> Array:
    return jax.nn.sigmoid(posterior.log_odds) * posterior.slab_mean


@jax.jit
@jax.value_and_grad
def _head_loss(flat: Array, problem: SpikeSlabProblem, observations: Array, codes: Array, state: NetworkState) -> Array:
    return _calibrated_loss(problem, answer(problem, observations, state, _head(flat)), codes)


@jax.jit
@jax.value_and_grad
def _mixture_loss(
    flat: Array, problem: SpikeSlabProblem, observations: Array, codes: Array, state: NetworkState, before: NetworkState
) -> Array:
    first = answer(problem, observations, state, _head(flat[:16]))
    second = answer(problem, observations, before, _head(flat[16:32]))
    return _calibrated_loss(problem, blend(first, second, flat[32]), codes)


def _calibrated_loss(problem: SpikeSlabProblem, posterior: Denoised, codes: Array) -> Array:
    """Loss with a higher price on errors, and prices on what is not calibrated.

    Variances should be the mean squared error, and in every tenth of P(active) its mean the share that is active.
    """
    chance, mean = jax.nn.sigmoid(posterior.log_odds), _mean(posterior)
    var = jnp.mean(chance * (posterior.slab_var + (1 - chance) * posterior.slab_mean**2))
    gap = jnp.log(var / jnp.mean((mean - codes) ** 2))
    tenth = jnp.clip(jnp.floor(10 * jax.lax.stop_gradient(chance)), 0, 9)
    excess = jnp.stack([jnp.sum(jnp.where(tenth == i, chance - (codes != 0), 0.0)) for i in range(10)]) / codes.size
    miscalibration = jnp.sum(jnp.sqrt(excess**2 + ESTIMATION.smoothing**2))
    loss = loss_of_posterior(problem, posterior, codes, ESTIMATION.error_penalty)
    return loss + ESTIMATION.variance_penalty * gap**2 + ESTIMATION.miscalibration_penalty * miscalibration


def _head(flat: Any) -> HeadScalars:
    return HeadScalars(flat[:4], flat[4:8], flat[8:12], flat[12:])


def fit_head(
    problem: SpikeSlabProblem,
    observations: Float[np.ndarray, "n K"],
    codes: Float[np.ndarray, "n D"],
    state: NetworkState,
    start: HeadScalars,
) -> HeadScalars:
    """The head that suits simulated pairs best, for layers as they are."""
    begin = np.concatenate([np.ravel(part) for part in start]).astype(np.float64)
    found = _descend(lambda flat: _head_loss(flat, problem, observations, codes, state), begin, codes.dtype)
    return start if found is None else _head(found)


def fit_mixture(
    problem: SpikeSlabProblem,
    observations: Float[np.ndarray, "n K"],
    codes: Float[np.ndarray, "n D"],
    state: NetworkState,
    before: NetworkState,
    start: HeadScalars,
) -> tuple[HeadScalars, AnswerMixture | None]:
    """A mixture, its share, and the head that suits both."""
    alone = np.concatenate([np.ravel(part) for part in start]).astype(np.float64)
    begin = np.concatenate([alone, np.zeros(len(alone)), [ESTIMATION.first_mixture_log_odds]])
    pairs = problem, observations, codes, state
    found = _descend(lambda flat: _mixture_loss(flat, *pairs, before), begin, codes.dtype)
    if found is None or not _mixture_loss(found, *pairs, before)[0] < _head_loss(alone.astype(codes.dtype), *pairs)[0]:
        return start, None
    return _head(found[:16]), AnswerMixture(_head(found[16:32]), found[32])


def _descend(
    value_and_gradient: Callable[[np.ndarray], tuple[Array, Array]], begin: np.ndarray, dtype: np.dtype
) -> np.ndarray | None:
    """Where a loss is least, not far from the start; None if that is nowhere better."""

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(flat.astype(dtype))
        away = flat - begin
        return float(value) + ESTIMATION.ridge * float(away @ away), np.asarray(
            gradient, np.float64
        ) + 2 * ESTIMATION.ridge * away

    bounds = list(zip(begin - ESTIMATION.head_reach, begin + ESTIMATION.head_reach, strict=True))
    best = minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": BUDGET.head_steps})
    return best.x.astype(dtype) if best.fun < loss(begin)[0] else None


@fast_compiled
def train_scalars(
    scalars: NetworkScalars,
    problem: SpikeSlabProblem,
    observations: Float[Array, "steps n K"],
    codes: Float[Array, "steps n D"],
    rates: Float[Array, " steps"],
) -> tuple[NetworkScalars, TrainingInfo]:
    """One step of Adam for every batch; the layers of the last kind move together, and the head.

    Together they take fewer pairs than each by itself. Refinement layers move as those of their kind do.
    """
    import optax  # when a fit starts: prediction does not need it

    adam = optax.scale_by_adam()

    def shifted(by: NetworkScalars) -> NetworkScalars:
        return jax.tree.map(jnp.add, scalars, by._replace(refinement_layers=by.ep_layers))

    def descend(
        carry: tuple[NetworkScalars, Any], batch: tuple[Array, Array, Array]
    ) -> tuple[tuple[NetworkScalars, Any], tuple[Array, Array]]:
        before, moments = carry
        Y, B, rate = batch
        value, gradient = jax.value_and_grad(lambda by: objective(shifted(by), problem, Y, B))(before)
        square = sum(jnp.sum(part * part) for part in jax.tree.leaves(gradient))
        usable = jnp.isfinite(square) & jnp.isfinite(value)
        norm = jnp.sqrt(square)
        small = norm < NUMERICS.largest_gradient
        bounded = jax.tree.map(lambda g: jax.lax.select(small, g, g / norm * NUMERICS.largest_gradient), gradient)
        towards, after_moments = adam.update(bounded, moments)
        after = jax.tree.map(lambda old, change: old - rate * change, before, towards)
        kept = jax.tree.map(partial(jnp.where, usable), (after, after_moments), carry)
        return kept, (jnp.where(usable, value, 0.0), usable)

    vector, propagation = (jax.tree.map(lambda part: jnp.zeros((), part.dtype), kind) for kind in scalars[:2])
    begin = NetworkScalars(vector, propagation, propagation, jax.tree.map(jnp.zeros_like, scalars.head))
    (by, _), (values, usable) = jax.lax.scan(descend, (begin, adam.init(begin)), (observations, codes, rates))
    return shifted(by), TrainingInfo(values, jnp.sum(~usable))


def cosine_rates(n_steps: int, largest: float, dtype: np.typing.DTypeLike = np.float64) -> Float[np.ndarray, " steps"]:
    """Learning rates that fall from the largest to nothing."""
    return (0.5 * largest * (1 + np.cos(np.pi * np.arange(n_steps) / n_steps))).astype(dtype)
