r"""Deterministic variational inference for the network with coupled weights: the ELBO, and epochs of its ascent.

The posterior q of W and R has independent Gaussian entries whose variances are products of a row factor and a column
factor; its parameters, and a threshold, a momentum and a step size per layer, ascend the evidence lower bound, tempered
by T,

.. math::
    \mathrm{ELBO} = \sum_n E_q \log N(\beta_n; \hat\beta_n, \nu) - T\,\mathrm{KL}(q \,\|\, p),

where the expectation follows in closed form from the moments of the layers: no sampling. The prior p is :math:`W \sim
N(W_0, (0.25/L)^2 z)` about the start, with z the typical square of an entry in its row and column, and :math:`R \sim
N(0, (0.05/L)^2/D)`; the temperature is :math:`T = 3`, and ν is a running mean of the expected error. The optimizer is
Adam with an epsilon relative to the matrix that it scales (which optax does not have), rates that bound a step of
:math:`W X` and R in spectral norm (R by :math:`(N/D)^{1/4}` of that with fewer pairs than coefficients), a warm-up over
the first epoch and a cosine decay.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bayeslista.bayes_lista.early_stopping import (
    ValidationScore,
    VariationalParameters,
    VariationalProblem,
    VariationalState,
    validate,
    weight_posterior,
)
from bayeslista.bayes_lista.propagation import RowColumn, expected_error_and_gradient, relative_errors
from bayeslista.numerics.compilation import fast_compiled
from bayeslista.numerics.precision import AnyArray, largest_moment

_TEMPERATURE = 3.0
# Chosen on seeds 10 and 11 at K = 50, 80 and 100 (results/acceleration.md): wider priors or faster means overfit.
_PRIOR_STD = 0.25, 0.05  # of W in units of its root mean square, of R in units of 1/√D; both over L
_INITIAL_STD = 0.02  # in the same units, whatever L
_MEAN_RATE = 0.1, 0.8  # at most the first; the second over L^1.5
_LOG_VAR_RATE = 0.05
_LAYER_RATE = 0.02  # of log thresholds, momenta and step sizes
_FIRST_DECAY, _SECOND_DECAY = 0.9, 0.999  # of Adam
_RELATIVE_EPSILON = 0.01  # of Adam, times the root mean square of a matrix' gradients
_FINAL_RATE = 0.02
_NOISE_DECAY = 0.95


class VariationalInfo(NamedTuple):
    """Mean squared error and NMSE of the training pairs, each batch before its step; batches skipped."""

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
    begin_at: VariationalParameters | None = None,
) -> tuple[VariationalState, VariationalProblem]:
    """The state at a given encoder, which is the prior mean of W, and the constants of the fit; R starts at zero.

    With `begin_at` the state is that, and the constants are the same.
    """
    dtype = design_matrix.dtype
    (d, k), n_layers = encoder.shape, len(shrinkage)
    norm = float(np.linalg.norm(design_matrix, 2)) or 1.0
    rows, columns = _entry_sizes(encoder, 1 / norm)
    with np.errstate(divide="ignore"):
        log_shrinkage = np.maximum(np.log(shrinkage), np.log(np.finfo(dtype).tiny))
    # With fewer pairs than coefficients: a prior of the same weight per pair, and slower steps.
    shortage = min(1.0, len(training[1]) / d)
    step_size = min(_MEAN_RATE[0], _MEAN_RATE[1] / n_layers**1.5)
    values: tuple[Any, ...] = (
        encoder,
        np.zeros((d, d)),
        2 * np.log(_INITIAL_STD * rows),
        2 * np.log(columns),
        np.full(d, 2 * np.log(_INITIAL_STD) - np.log(d)),
        np.zeros(d),
        log_shrinkage,
        np.zeros(n_layers),
        np.ones(n_layers),
    )
    rates = (
        step_size / (norm * np.sqrt(d * k)),
        # Slower where there are fewer pairs than coefficients: R would overfit them.
        step_size / d * shortage**0.25,
        *4 * [_LOG_VAR_RATE],
        *(_LAYER_RATE * shortage**0.25 * np.array([learn_shrinkage, 1, 1])),
    )
    prior_std = [std / (n_layers * shortage**0.5) for std in _PRIOR_STD]
    prior = encoder, (prior_std[0] * rows) ** 2, columns**2

    def copied(parts: Sequence[Any]) -> list[Any]:
        return [np.array(part, dtype) for part in parts]

    # An epoch overwrites the memory of its state, no part of which may be shared.
    parameters, best = (VariationalParameters(*copied(values if begin_at is None else begin_at)) for _ in range(2))
    first, second = (jax.tree.map(np.zeros_like, parameters) for _ in range(2))
    given: list[Any] = [design_matrix, RowColumn(*copied(prior)), *copied([prior_std[1] ** 2 / d])]
    problem = VariationalProblem(*jax.device_put([*given, VariationalParameters(*copied(rates)), *training, *held_out]))
    begin: list[Any] = [parameters, first, second, *copied([0, 1, 1]), best, np.inf]
    state, score = validate(VariationalState(*begin), problem)
    error = np.nan_to_num(score.error, nan=1.0, posinf=1.0)
    noise_var, rate = copied([np.maximum(error, np.finfo(dtype).eps), 1])
    *moving, best, best_error = state._replace(noise_var=noise_var, rate=rate)
    return VariationalState(*[*jax.device_put(moving), best, best_error]), problem


def _entry_sizes(
    encoder: Float[np.ndarray, "D K"], otherwise: float
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " K"]]:
    """Typical size of every entry, the product of those of its row and of its column, whose units may differ."""
    power = np.square(encoder, dtype=np.float64)
    overall = float(power.mean())
    if overall == 0:
        return np.full(len(power), otherwise), np.ones(power.shape[1])
    rows, columns = (np.maximum(power.mean(axis=axis), 1e-8 * overall) for axis in (1, 0))
    return np.sqrt(rows), np.sqrt(columns / overall)


def _ascend(
    state: VariationalState, problem: VariationalProblem, gradient: VariationalParameters, rate: Array
) -> tuple[tuple[VariationalParameters, VariationalParameters, VariationalParameters], Array]:
    """Adam's step: parameters and both moments; and whether the gradient, and its square, is finite."""
    # m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²;  θ ← θ + rate · m̂ / (√v̂ + 0.01 √mean v̂)
    n_steps = state.n_steps + 1
    first = jax.tree.map(lambda m, g: _FIRST_DECAY * m + (1 - _FIRST_DECAY) * g, state.first, gradient)
    second = jax.tree.map(lambda v, g: _SECOND_DECAY * v + (1 - _SECOND_DECAY) * g * g, state.second, gradient)
    correction, square_correction = 1 - _FIRST_DECAY**n_steps, 1 - _SECOND_DECAY**n_steps
    squares = jax.tree.map(lambda v: jnp.mean(v) / square_correction, second)

    def move(parameter: Array, m: Array, v: Array, square: Array, speed: Array) -> Array:
        floor = _RELATIVE_EPSILON * jnp.sqrt(square) + 1e3 * jnp.sqrt(jnp.finfo(v.dtype).tiny)
        return parameter + rate * speed * m / correction / (jnp.sqrt(v / square_correction) + floor)

    moved = jax.tree.map(move, state.parameters, first, second, squares, problem.rates)
    return (moved, first, second), jnp.isfinite(sum(jax.tree.leaves(squares)))


@fast_compiled
def step(
    state: VariationalState,
    problem: VariationalProblem,
    rows: Int[AnyArray, "b s"],
    included: Float[AnyArray, "b s"],
    rates: Float[AnyArray, " b"],
) -> tuple[VariationalState, VariationalInfo]:
    """One epoch over `rows` in mini-batches, in which `included` pairs count; `rates` are factors of learning rates.

    A batch whose gradient is not finite, or whose error reaches `largest_moment`, is skipped and counted.
    """
    n_pairs, d = jnp.sum(included), problem.codes.shape[1]
    kl_weight = _TEMPERATURE / n_pairs

    def batch(state: VariationalState, chosen: Any) -> tuple[VariationalState, tuple[Array, ...]]:
        rows, included, rate = chosen
        parameters = state.parameters
        weights, layers = weight_posterior(parameters)
        n = jnp.maximum(jnp.sum(included), 1)
        # Expected error Σ (β − e)² + s of the batch, and its gradient by the backward sweep.
        error, predicted, ((encoder, residual), by_layers) = expected_error_and_gradient(
            weights, problem.design_matrix, problem.observations[rows], problem.codes[rows], layers, included
        )
        # Gradient of the ELBO per pair, −error/(2ν n) − T KL(q ‖ p)/N.
        scale = -0.5 / (state.noise_var * n)
        prior, prior_residual_var = problem.prior_encoder, problem.prior_residual_var

        # In log p and log q, for V = p qᵀ: V-weighted gradients of the error, and of KL = ½ Σ (V/V₀ − log V/V₀ + …).
        def by_logs(of: RowColumn, by: RowColumn, prior_rows: Array, prior_columns: Array) -> tuple[Array, Array]:
            rows, columns = of.rows / prior_rows, of.columns / prior_columns
            return (
                scale * of.rows * by.rows + 0.5 * kl_weight * (len(columns) - rows * jnp.sum(columns)),
                scale * of.columns * by.columns + 0.5 * kl_weight * (len(rows) - columns * jnp.sum(rows)),
            )

        gradient = VariationalParameters(
            scale * encoder.mean - kl_weight * (parameters.encoder - prior.mean) / prior.var,
            scale * residual.mean - kl_weight * parameters.residual / prior_residual_var,
            *by_logs(weights.encoder, encoder, prior.rows, prior.columns),
            *by_logs(weights.residual, residual, prior_residual_var, jnp.ones(())),
            scale * by_layers.shrinkage * layers.shrinkage,
            scale * by_layers.momentum,
            scale * by_layers.step_size,
        )
        (moved, first, second), finite = _ascend(state, problem, gradient, rate * state.rate)
        usable = (error < largest_moment(error)) & finite
        # ν ← 0.95 ν + 0.05 error/(n D)
        noise_var = _NOISE_DECAY * state.noise_var + (1 - _NOISE_DECAY) * error / (n * d)
        smallest = jnp.finfo(noise_var.dtype).eps
        following = state._replace(
            parameters=moved,
            first=first,
            second=second,
            n_steps=state.n_steps + 1,
            noise_var=jnp.maximum(noise_var, smallest),
        )
        used = usable & jnp.any(included > 0)
        following = jax.tree.map(partial(jax.lax.select, used), following, state)
        ratios, nonzero = relative_errors(predicted, problem.codes[rows])
        sums = error, included @ ratios, included @ nonzero.astype(ratios.dtype)
        return following, (*(jnp.where(usable, value, 0) for value in sums), ~usable)

    state, (errors, ratios, n_codes, skipped) = jax.lax.scan(batch, state, (rows, included, rates))
    training_error = jnp.sum(errors) / (n_pairs * d)
    return state, VariationalInfo(training_error, jnp.sum(ratios) / jnp.maximum(jnp.sum(n_codes), 1), jnp.sum(skipped))


_step_in_place = fast_compiled(step, donate_argnames="state")


def advance(
    state: VariationalState,
    problem: VariationalProblem,
    rows: Int[AnyArray, "b s"],
    included: Float[AnyArray, "b s"],
    rates: Float[AnyArray, " b"],
) -> tuple[VariationalState, VariationalInfo, float, ValidationScore]:
    """One epoch, the ELBO after it and its validation; the memory of the given state is reused."""
    apart: dict[str, Any] = {"best": None, "best_error": None}
    moving = state._replace(**apart)
    moved, info = _step_in_place(moving, problem, rows, included, rates)
    reached = elbo(moved, problem, float(info.error), float(np.sum(included)))
    state, score = validate(moved._replace(best=state.best, best_error=state.best_error), problem)
    return state, info, reached, score


def elbo(state: VariationalState, problem: VariationalProblem, error: float, n_pairs: float) -> float:
    """The tempered ELBO per pair, given the mean squared error of the training pairs; computed on the host."""
    parameters, (mean, rows, columns), residual_var, noise_var = jax.tree.map(
        lambda part: np.asarray(part, np.float64),
        (state.parameters, problem.prior_encoder, problem.prior_residual_var, state.noise_var),
    )

    def divergence(departure: Any, log_rows: Any, log_columns: Any, prior_rows: Any, prior_columns: Any) -> float:
        """KL(q ‖ p) of Gaussians whose variances are products of row factors and column factors."""
        rows, columns = log_rows - np.log(prior_rows), log_columns - np.log(prior_columns)
        m, n = departure.shape
        squares = (1 / prior_rows) @ (departure * departure) @ (1 / prior_columns)
        logs = n * np.sum(rows) + m * np.sum(columns)
        return 0.5 * float(np.sum(np.exp(rows)) * np.sum(np.exp(columns)) - m * n - logs + squares)

    encoder, residual, p, q, r, t, *_ = parameters
    d = len(encoder)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        kl = divergence(encoder - mean, p, q, rows, columns)
        kl += divergence(residual, r, t, np.full(d, residual_var), np.ones(d))
        likelihood = -0.5 * d * float(np.log(2 * np.pi * noise_var) + error / noise_var)
    return likelihood - _TEMPERATURE / n_pairs * kl


def schedule(n_epoch: int, n_batches: int, max_epochs: int) -> Float[np.ndarray, " b"]:
    """Factors of the learning rates for each batch of an epoch: a warm-up in epoch 0, then a cosine down to 2 %."""
    time = n_epoch + np.arange(n_batches) / n_batches
    if n_epoch == 0:
        return time + 1 / n_batches
    progress = (time - 1) / max(max_epochs - 1, 1)
    return _FINAL_RATE + (1 - _FINAL_RATE) * 0.5 * (1 + np.cos(np.pi * progress))
