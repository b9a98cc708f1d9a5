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
from jaxtyping import Array, Bool, Float
from scipy.optimize import minimize

from bayeslista.numerics.compilation import fast_compiled
from bayeslista.spike_slab.config import BUDGET, ESTIMATION, NUMERICS
from bayeslista.spike_slab.denoiser import Denoised
from bayeslista.spike_slab.model import NetworkState, SpikeSlabProblem
from bayeslista.spike_slab.network import HeadScalars, NetworkScalars, answer, run_layers

_HALF_LOG_TWO_PI = 0.9189385332046727

Report = Callable[[str, int, int], None]  # a stage, and how many of its steps are done


def silent(stage: str, n_done: int, n_steps: int) -> None:
    """Report to nobody."""


class TrainingInfo(NamedTuple):
    """The objective of a batch, and whether its gradient was usable."""

    objective: Float[Array, ""]
    usable: Bool[Array, ""]


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


@fast_compiled
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


@fast_compiled
def _head_loss(
    flat: Any, problem: SpikeSlabProblem, observations: Array, codes: Array, state: NetworkState
) -> tuple[Array, Array]:
    """Calibrated loss, and its derivative by the scalars of the head."""
    return jax.value_and_grad(
        lambda flat: _calibrated_loss(problem, answer(problem, observations, state, _head(flat)), codes)
    )(flat)


def fit_head(
    problem: SpikeSlabProblem,
    observations: Any,
    codes: Any,
    state: NetworkState,
    start: HeadScalars,
    report: Report = silent,
) -> HeadScalars:
    """The head that suits simulated pairs best, not far from the start, for layers as they are."""
    begin = np.concatenate([np.ravel(part) for part in start]).astype(np.float64)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = _head_loss(flat.astype(codes.dtype), problem, observations, codes, state)
        away = flat - begin
        ridge = ESTIMATION.ridge
        return float(value) + ridge * float(away @ away), np.asarray(gradient, np.float64) + 2 * ridge * away

    steps = iter(range(1, BUDGET.head_steps))
    bounds = list(zip(begin - ESTIMATION.head_reach, begin + ESTIMATION.head_reach, strict=True))
    options = {"maxiter": BUDGET.head_steps}
    best = minimize(
        loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=options,
        callback=lambda _: report("head", next(steps, BUDGET.head_steps), BUDGET.head_steps),
    )  # fmt: skip
    report("head", BUDGET.head_steps, BUDGET.head_steps)
    return _head(best.x.astype(codes.dtype)) if best.fun < loss(begin)[0] else start


class TrainingState(NamedTuple):
    """Between two steps of Adam: by how much scalars were changed, and its moments."""

    change: NetworkScalars
    moments: Any


def init_training(scalars: NetworkScalars) -> TrainingState:
    """No change so far: one number for each scalar of a layer of either kind, and the head."""
    import optax  # when a fit starts: prediction does not need it

    vector, propagation = (jax.tree.map(lambda part: np.zeros((), part.dtype), kind) for kind in scalars[:2])
    change = NetworkScalars(vector, propagation, propagation, jax.tree.map(np.zeros_like, scalars.head))
    return TrainingState(change, optax.scale_by_adam().init(change))


def changed(scalars: NetworkScalars, state: TrainingState) -> NetworkScalars:
    """Scalars after training; refinement layers change as those of their kind do."""
    change = state.change._replace(refinement_layers=state.change.ep_layers)
    return jax.tree.map(lambda old, by: old + by, scalars, change)


@fast_compiled
def training_step(
    state: TrainingState,
    scalars: NetworkScalars,
    problem: SpikeSlabProblem,
    observations: Float[Array, "n K"],
    codes: Float[Array, "n D"],
    rate: Float[Array, ""] | np.floating,
) -> tuple[TrainingState, TrainingInfo]:
    """One step of Adam; the layers of the last kind change together, and the head.

    Together they take fewer pairs than each by itself.
    """
    import optax

    def loss(change: NetworkScalars) -> Array:
        return objective(changed(scalars, state._replace(change=change)), problem, observations, codes)

    value, gradient = jax.value_and_grad(loss)(state.change)
    square = sum(jnp.sum(part * part) for part in jax.tree.leaves(gradient))
    usable = jnp.isfinite(square) & jnp.isfinite(value)
    norm = jnp.sqrt(square)
    small = norm < NUMERICS.largest_gradient
    bounded = jax.tree.map(lambda g: jax.lax.select(small, g, g / norm * NUMERICS.largest_gradient), gradient)
    towards, moments = optax.scale_by_adam().update(bounded, state.moments)
    change = jax.tree.map(lambda old, by: old - rate * by, state.change, towards)
    kept = jax.tree.map(partial(jnp.where, usable), TrainingState(change, moments), state)
    return kept, TrainingInfo(jnp.where(usable, value, 0.0), usable)


def cosine_rates(n_steps: int, largest: float, dtype: np.typing.DTypeLike = np.float64) -> Float[np.ndarray, " steps"]:
    """Learning rates that fall from the largest to nothing."""
    return (0.5 * largest * (1 + np.cos(np.pi * np.arange(n_steps) / n_steps))).astype(dtype)
