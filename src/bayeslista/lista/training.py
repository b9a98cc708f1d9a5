"""Training of LISTA: gradient descent on the mean squared error of an unrolled ISTA.

The network computes ``β ← h_λₗ(W y + S β)`` in L layers that share ``W`` and ``S``, each with its own threshold; if it
is accelerated, also with its own momentum and step size, as in FISTA but learned:

    u_l = β_{l−1} + μ_l (β_{l−1} − β_{l−2}),   c_l = u_l + γ_l (W y + S u_l − u_l),   β_l = h_λₗ(c_l),   β_0 = 0.

Its parametrisation is either free, ``W`` and ``S``, or with coupled weights as in LISTA-CP, ``S = A − W X`` with the
design matrix ``X``: a step in ``W`` then keeps the relation ``S = I − W X`` of ISTA, and only ``A``, which starts at
the identity, departs from it.

`init` starts from given weights; `step` is one epoch over the pairs in mini-batches and keeps the weights with the
least error on the validation pairs. Both are pure functions, and one compiled `step` serves all epochs.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bayeslista.lista.proximal import soft_threshold
from bayeslista.numerics.batching import in_blocks
from bayeslista.numerics.compilation import fast_compiled
from bayeslista.numerics.precision import AnyArray


class ListaWeights(NamedTuple):
    """``W``, ``S`` (or ``A = S + W X`` of coupled weights); thresholds, momenta and step sizes of the layers."""

    encoder: Float[AnyArray, "D K"]
    recurrent: Float[AnyArray, "D D"]
    shrinkage: Float[AnyArray, " L"]  # never negative
    momentum: Float[AnyArray, " L"] | None = None  # that of the first layer has no effect; None: not accelerated
    step_size: Float[AnyArray, " L"] | None = None  # None with momentum


class LearningRates(NamedTuple):
    """The learning rate of each part of `ListaWeights`; zero holds it."""

    encoder: float
    recurrent: float
    shrinkage: float
    momentum: float = 0.0
    step_size: float = 0.0


class CodePairs(NamedTuple):
    """Observations and their codes, one pair a row."""

    observations: Float[AnyArray, "n K"]
    codes: Float[AnyArray, "n D"]


class MiniBatches(NamedTuple):
    """Mini-batches of equal size: indices of the pairs, and 1 for a pair, 0 for padding of the last batch."""

    rows: Int[AnyArray, "m b"]
    present: Float[AnyArray, "m b"]


class ListaState(NamedTuple):
    """Weights, the state of Adam (None for SGD), the best weights, their error, and epochs since it clearly fell."""

    weights: ListaWeights
    optimizer: Any
    best: ListaWeights
    best_error: Float[Array, ""]
    n_stale: Int[Array, ""]


class ListaInfo(NamedTuple):
    """Training loss of an epoch, error and NMSE of the validation pairs after it, batches skipped as not finite."""

    loss: Float[Array, ""]
    error: Float[Array, ""]
    nmse: Float[Array, ""]
    n_skipped: Int[Array, ""]


def decoupled(weights: ListaWeights, design_matrix: Float[AnyArray, "K D"] | None) -> ListaWeights:
    """Free weights from coupled ones, ``S = A − W X``; without a design matrix they are free already."""
    if design_matrix is None:
        return weights
    return weights._replace(recurrent=weights.recurrent - weights.encoder @ design_matrix)


def coupled(weights: ListaWeights, design_matrix: Float[AnyArray, "K D"] | None) -> ListaWeights:
    """Coupled weights from free ones, ``A = S + W X``."""
    if design_matrix is None:
        return weights
    return weights._replace(recurrent=weights.recurrent + weights.encoder @ design_matrix)


@jax.jit
def predict(weights: ListaWeights, observations: Float[AnyArray, "n K"]) -> Float[Array, "n D"]:
    """Codes of the last layer; the weights are free ones."""
    drive = jnp.matmul(observations, weights.encoder.T)

    if weights.momentum is None or weights.step_size is None:

        def plain_layer(codes: Array, shrinkage: Any) -> tuple[Array, None]:
            return soft_threshold(drive + codes @ weights.recurrent.T, shrinkage), None

        first = soft_threshold(drive, weights.shrinkage[0])
        return jax.lax.scan(plain_layer, first, weights.shrinkage[1:])[0]

    def layer(carry: tuple[Array, Array], of_layer: tuple[Any, ...]) -> tuple[tuple[Array, Array], None]:
        (codes, before), (shrinkage, momentum, step_size) = carry, of_layer
        extrapolated = codes + momentum * (codes - before)
        moved = drive + extrapolated @ weights.recurrent.T
        entering = extrapolated + step_size * (moved - extrapolated)
        return (soft_threshold(entering, shrinkage), codes), None

    first = soft_threshold(weights.step_size[0] * drive, weights.shrinkage[0])
    of_layers = weights.shrinkage[1:], weights.momentum[1:], weights.step_size[1:]
    return jax.lax.scan(layer, (first, jnp.zeros_like(first)), of_layers)[0][0]


def make_batches(order: Int[np.ndarray, " n"], batch_size: int) -> MiniBatches:
    """Cut a permutation of the pairs into mini-batches, the last one padded."""
    size = min(batch_size, len(order))
    padded = np.resize(order, (-(-len(order) // size), size))
    return MiniBatches(padded, (np.arange(padded.size) < len(order)).astype(float).reshape(padded.shape))


def init(
    start: ListaWeights,
    validation: CodePairs,
    design_matrix: Float[AnyArray, "K D"] | None = None,
    *,
    optimizer: str = "adam",
) -> ListaState:
    """The state before the first epoch, at given weights: coupled ones if there is a design matrix."""
    weights = decoupled(start, design_matrix)
    codes = in_blocks(lambda rows: predict(weights, rows), np.asarray(validation.observations))
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.nan_to_num(np.mean((codes - validation.codes) ** 2, dtype=codes.dtype), nan=np.inf, posinf=np.inf)
    # Zeros by NumPy: to compile those of optax takes a fifth of a second.
    shapes = jax.eval_shape(_adam().init, start) if optimizer == "adam" else None
    moments = jax.tree.map(lambda part: np.zeros(part.shape, part.dtype), shapes)
    parts: list[Any] = [start, moments, start, error, np.zeros((), int)]
    begun: ListaState = jax.device_put(ListaState(*parts))
    return begun


@partial(fast_compiled, static_argnames="optimizer")
def step(
    state: ListaState,
    training: CodePairs,
    validation: CodePairs,
    batches: MiniBatches,
    rates: LearningRates,
    tolerance: float,
    design_matrix: Float[AnyArray, "K D"] | None = None,
    *,
    optimizer: str = "adam",
) -> tuple[ListaState, ListaInfo]:
    """One epoch of Adam or SGD on the mean squared error over pairs and coefficients.

    A batch without a finite gradient is skipped and counted; an epoch whose validation error overflows restores the
    best weights; one whose error falls by less than `tolerance`, relatively, is stale.
    """

    def descend(carry: tuple[ListaWeights, Any], batch: MiniBatches) -> tuple[tuple[Any, ...], tuple[Array, ...]]:
        weights, moments = carry
        pairs = CodePairs(training.observations[batch.rows], training.codes[batch.rows])
        loss, gradient = jax.value_and_grad(_loss)(weights, pairs, batch.present, design_matrix)
        usable = jnp.isfinite(sum(jnp.sum(part * part) for part in jax.tree.leaves(gradient)))
        direction, new_moments = _adam().update(gradient, moments) if optimizer == "adam" else (gradient, None)
        steps = zip(weights, rates, direction, strict=True)
        parts: list[Any] = [None if w is None else w - rate * towards for w, rate, towards in steps]
        moved = ListaWeights(*parts)
        moved = moved._replace(shrinkage=jnp.maximum(moved.shrinkage, 0.0))  # λ ≥ 0
        kept = jax.tree.map(partial(jax.lax.select, usable), (moved, new_moments), (weights, moments))
        return kept, (jnp.where(usable, loss, 0.0), usable, batch.present.sum())

    (weights, moments), (losses, usable, sizes) = jax.lax.scan(descend, (state.weights, state.optimizer), batches)
    counted = sizes * usable
    loss = jnp.sum(losses * counted) / jnp.maximum(counted.sum(), 1)
    # Validation: restore, keep the best, count stale epochs.
    error, nmse = _errors(decoupled(weights, design_matrix), validation)
    weights = jax.tree.map(partial(jax.lax.select, jnp.isfinite(error)), weights, state.best)
    better = error < state.best_error
    clearly_better = error < state.best_error * (1 - tolerance)
    following = ListaState(
        weights,
        moments,
        jax.tree.map(partial(jax.lax.select, better), weights, state.best),
        jnp.where(better, error, state.best_error),
        jnp.where(clearly_better, 0, state.n_stale + 1),
    )
    return following, ListaInfo(loss, error, nmse, jnp.sum(~usable))


def _adam() -> Any:
    import optax  # when a fit starts: prediction does not need it, and it takes 0.17 s of processor time

    return optax.scale_by_adam()


def _loss(
    weights: ListaWeights,
    pairs: CodePairs,
    present: Float[AnyArray, " b"],
    design_matrix: Float[AnyArray, "K D"] | None,
) -> Float[Array, ""]:
    difference = predict(decoupled(weights, design_matrix), pairs.observations) - pairs.codes
    return jnp.sum(present * jnp.mean(difference**2, axis=1)) / present.sum()


def _errors(weights: ListaWeights, pairs: CodePairs) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean squared error, and NMSE: the mean of ``‖β̂ − β‖/‖β‖`` over codes that are not zero; infinite on overflow."""
    difference = predict(weights, pairs.observations) - pairs.codes
    size = jnp.linalg.norm(pairs.codes, axis=1)
    counted = size > 0
    ratio = jnp.linalg.norm(difference, axis=1) / jnp.where(counted, size, 1.0)
    errors = jnp.mean(difference**2), jnp.sum(ratio * counted) / jnp.maximum(counted.sum(), 1)
    return jax.tree.map(lambda error: jnp.where(jnp.isnan(error), jnp.inf, error), errors)
