"""LISTA's training: gradient descent on the squared error of an unrolled ISTA.

The network repeats ``β ← h_λₗ(W y + S β)`` for L layers that share ``W`` and ``S``, each with a threshold of
its own. It is trained in one of two parametrisations of the same weights: ``W`` and ``S`` free, or anchored
to a design matrix ``X``, ``S = A − W X``, so that a step in ``W`` keeps the relation that ISTA has and only
``A``, which starts at the identity, can leave it.

`init` starts from given weights, `step` makes one pass over the pairs in mini-batches and keeps the weights
that did best on the monitored pairs. Both are pure functions; one compiled `step` serves all passes, and `init` needs
nothing compiled but `predict`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bayeslista._blocks import in_blocks
from bayeslista._compilation import quickly_compiled
from bayeslista.inference.adam import Moments, direction, no_moments, squared_norm
from bayeslista.proximal import soft_threshold

_Numbers = Array | np.ndarray

__all__ = [
    "Batches",
    "Info",
    "Pairs",
    "Rates",
    "State",
    "Weights",
    "init",
    "make_batches",
    "predict",
    "step",
    "unanchored",
]


class Weights(NamedTuple):
    """The weights of a LISTA network.

    Attributes
    ----------
    encoder : array of shape (D, K)
        ``W``.
    recurrent : array of shape (D, D)
        ``S``; in an anchored network ``A = S + W X``.
    shrinkage : array of shape (L,)
        The threshold of each layer, never negative.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.gradient_descent import Weights
    >>> Weights(np.eye(2), np.zeros((2, 2)), np.full(3, 0.1)).shrinkage.shape
    (3,)
    """

    encoder: Float[_Numbers, "D K"]
    recurrent: Float[_Numbers, "D D"]
    shrinkage: Float[_Numbers, " L"]


class Rates(NamedTuple):
    """The learning rate of each kind of weight; zero holds it.

    Attributes
    ----------
    encoder, recurrent, shrinkage : float
        As in `Weights`.

    Examples
    --------
    >>> from bayeslista.inference.gradient_descent import Rates
    >>> Rates(encoder=1e-4, recurrent=1e-4, shrinkage=0.0).shrinkage
    0.0
    """

    encoder: float
    recurrent: float
    shrinkage: float


class Pairs(NamedTuple):
    """Observations and their codes, one pair a row.

    Attributes
    ----------
    observations : array of shape (n, K)
        ``y``.
    codes : array of shape (n, D)
        ``β``.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.gradient_descent import Pairs
    >>> Pairs(np.ones((5, 2)), np.ones((5, 3))).codes.shape
    (5, 3)
    """

    observations: Float[_Numbers, "n K"]
    codes: Float[_Numbers, "n D"]


class Batches(NamedTuple):
    """Mini-batches of equal size: which pair is where, and where there is none.

    Attributes
    ----------
    rows : array of shape (m, b)
        Indices of the pairs, one batch a row.
    present : array of shape (m, b)
        1, or 0 where the last batch is only padded.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.gradient_descent import make_batches
    >>> make_batches(np.arange(3), 2).present
    array([[1., 1.],
           [1., 0.]])
    """

    rows: Int[_Numbers, "m b"]
    present: Float[_Numbers, "m b"]


class State(NamedTuple):
    """What training remembers between passes.

    Attributes
    ----------
    weights : Weights
        Where the descent is.
    moments : Moments or None
        The running moments of Adam.
    best : Weights
        The weights with the least error on the monitored pairs so far, those of the start included.
    best_error : float
        Their mean squared error.
    n_stale : int
        Passes since that error last fell by more than the tolerance.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference import gradient_descent
    >>> start = gradient_descent.Weights(np.eye(2), np.zeros((2, 2)), np.zeros(1))
    >>> state = gradient_descent.init(start, gradient_descent.Pairs(np.ones((4, 2)), np.ones((4, 2))))
    >>> float(state.best_error)
    0.0
    """

    weights: Weights
    moments: Moments | None
    best: Weights
    best_error: Float[Array, ""]
    n_stale: Int[Array, ""]


class Info(NamedTuple):
    """What happened in one pass.

    Attributes
    ----------
    loss : float
        Mean squared error of the training pairs, each as its batch was met.
    error : float
        Mean squared error of the monitored pairs after the pass.
    nmse : float
        Their normalised error, the mean of ``‖β̂ − β‖/‖β‖`` over codes that are not zero; 0 if all are.
    n_skipped : int
        Batches without a finite gradient, which were left out.

    Examples
    --------
    >>> from bayeslista.inference.gradient_descent import Info
    >>> Info(loss=0.1, error=0.2, nmse=0.5, n_skipped=0).n_skipped
    0
    """

    loss: Float[Array, ""]
    error: Float[Array, ""]
    nmse: Float[Array, ""]
    n_skipped: Int[Array, ""]


def unanchored(weights: Weights, anchor: Float[_Numbers, "K D"] | None) -> Weights:
    """Weights with ``S`` itself in the place of ``A``.

    Parameters
    ----------
    weights : Weights
        Weights as trained.
    anchor : array of shape (K, D) or None
        The design matrix they are anchored to; None if they are free.

    Returns
    -------
    Weights
        What `predict` takes.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.gradient_descent import Weights, unanchored
    >>> anchored = Weights(np.full((1, 1), 0.5), np.eye(1), np.zeros(3))
    >>> unanchored(anchored, np.ones((1, 1))).recurrent
    array([[0.5]])
    """
    if anchor is None:
        return weights
    return weights._replace(recurrent=weights.recurrent - weights.encoder @ anchor)


@jax.jit
def predict(weights: Weights, observations: Float[_Numbers, "n K"]) -> Float[Array, "n D"]:
    """Run the network on observations, one a row.

    Parameters
    ----------
    weights : Weights
        Its weights.
    observations : array of shape (n, K)
        ``y``.

    Returns
    -------
    array of shape (n, D)
        The codes of the last layer.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.inference.gradient_descent import Weights, predict
    >>> network = Weights(jnp.eye(2), jnp.zeros((2, 2)), jnp.full(3, 1.0))
    >>> predict(network, jnp.array([[3.0, -0.5]])).tolist()
    [[2.0, 0.0]]
    """
    drive = jnp.matmul(observations, weights.encoder.T)

    def layer(codes: Array, shrinkage: Any) -> tuple[Array, None]:
        return soft_threshold(drive + codes @ weights.recurrent.T, shrinkage), None

    first = soft_threshold(drive, weights.shrinkage[0])
    return jax.lax.scan(layer, first, weights.shrinkage[1:])[0]


def make_batches(order: Int[np.ndarray, " n"], batch_size: int) -> Batches:
    """Cut an order of the pairs into mini-batches, the last one padded.

    Parameters
    ----------
    order : array of shape (n,)
        A permutation of the rows.
    batch_size : int
        Pairs per batch; at most n are used.

    Returns
    -------
    Batches
        As many as it takes.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.gradient_descent import make_batches
    >>> make_batches(np.array([2, 0, 1]), 2).rows
    array([[2, 0],
           [1, 2]])
    """
    size = min(batch_size, len(order))
    padded = np.resize(order, (-(-len(order) // size), size))
    return Batches(padded, (np.arange(padded.size) < len(order)).astype(float).reshape(padded.shape))


def init(
    start: Weights,
    monitored: Pairs,
    anchor: Float[_Numbers, "K D"] | None = None,
    *,
    optimizer: str = "adam",
) -> State:
    """Begin training at given weights.

    Parameters
    ----------
    start : Weights
        Usually ISTA's.
    monitored : Pairs
        The pairs that decide which weights are best: held out, or else those of the training.
    anchor : array of shape (K, D), optional
        The design matrix that the weights are anchored to; without it ``W`` and ``S`` are free.
    optimizer : {"adam", "sgd"}
        The rule of descent.

    Returns
    -------
    State
        Before the first pass.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference import gradient_descent
    >>> start = gradient_descent.Weights(np.eye(2), np.zeros((2, 2)), np.ones(1))
    >>> state = gradient_descent.init(start, gradient_descent.Pairs(np.ones((4, 2)), np.ones((4, 2))))
    >>> float(state.best_error)
    1.0
    """
    weights = unanchored(start, anchor)
    codes = in_blocks(lambda rows: predict(weights, rows), np.asarray(monitored.observations))
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.nan_to_num(np.mean((codes - monitored.codes) ** 2, dtype=codes.dtype), nan=np.inf, posinf=np.inf)
    moments = no_moments(start) if optimizer == "adam" else None
    parts: list[Any] = [start, moments, start, error, np.zeros((), int)]
    begun: State = jax.device_put(State(*parts))
    return begun


@partial(quickly_compiled, static_argnames="optimizer")
def step(
    state: State,
    training: Pairs,
    monitored: Pairs,
    batches: Batches,
    rates: Rates,
    tolerance: float,
    anchor: Float[_Numbers, "K D"] | None = None,
    *,
    optimizer: str = "adam",
) -> tuple[State, Info]:
    """Make one pass over the training pairs.

    Every batch descends along the gradient of its mean squared error, over pairs and coefficients. A batch
    whose gradient is not finite changes nothing and is counted; thresholds that would turn negative stop at
    zero. A pass that ends where the monitored error overflows returns to the best weights.

    Parameters
    ----------
    state : State
        From `init` or the previous pass.
    training : Pairs
        The pairs to learn from.
    monitored : Pairs
        The pairs that decide which weights are best.
    batches : Batches
        The training pairs in the order of this pass, from `make_batches`.
    rates : Rates
        The learning rate of each kind of weight.
    tolerance : float
        The relative fall of the monitored error below which a pass counts as stale.
    anchor : array of shape (K, D), optional
        As for `init`.
    optimizer : {"adam", "sgd"}
        The rule of descent, as for `init`.

    Returns
    -------
    State
        After the pass.
    Info
        What happened in it.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference import gradient_descent
    >>> start = gradient_descent.Weights(np.eye(2), np.zeros((2, 2)), np.ones(1))
    >>> pairs = gradient_descent.Pairs(np.ones((4, 2)), np.ones((4, 2)))
    >>> state = gradient_descent.init(start, pairs)
    >>> batches = gradient_descent.make_batches(np.arange(4), 2)
    >>> rates = gradient_descent.Rates(0.1, 0.1, 0.1)
    >>> state, info = gradient_descent.step(state, pairs, pairs, batches, rates, 0.0)
    >>> float(info.error) < 1.0, int(info.n_skipped)
    (True, 0)
    """

    def descend(carry: tuple[Weights, Moments | None], batch: Batches) -> tuple[tuple, tuple]:
        weights, moments = carry
        pairs = Pairs(training.observations[batch.rows], training.codes[batch.rows])
        loss, gradient = jax.value_and_grad(_loss)(weights, pairs, batch.present, anchor)
        usable = jnp.isfinite(squared_norm(gradient))
        towards, new_moments = (gradient, None) if moments is None else direction(gradient, moments)
        moved = Weights(*(weight - rate * change for weight, rate, change in zip(weights, rates, towards, strict=True)))
        moved = moved._replace(shrinkage=jnp.maximum(moved.shrinkage, 0.0))
        kept = jax.tree.map(partial(jax.lax.select, usable), (moved, new_moments), (weights, moments))
        return kept, (jnp.where(usable, loss, 0.0), usable, batch.present.sum())

    (weights, moments), (losses, usable, sizes) = jax.lax.scan(descend, (state.weights, state.moments), batches)
    counted = sizes * usable
    loss = jnp.sum(losses * counted) / jnp.maximum(counted.sum(), 1)
    error, nmse = _errors(unanchored(weights, anchor), monitored)
    weights = jax.tree.map(partial(jax.lax.select, jnp.isfinite(error)), weights, state.best)
    better = error < state.best_error
    clearly_better = error < state.best_error * (1 - tolerance)
    following = State(
        weights,
        moments,
        jax.tree.map(partial(jax.lax.select, better), weights, state.best),
        jnp.where(better, error, state.best_error),
        jnp.where(clearly_better, 0, state.n_stale + 1),
    )
    return following, Info(loss, error, nmse, jnp.sum(~usable))


def _loss(
    weights: Weights,
    pairs: Pairs,
    present: Float[_Numbers, " b"],
    anchor: Float[_Numbers, "K D"] | None,
) -> Float[Array, ""]:
    difference = predict(unanchored(weights, anchor), pairs.observations) - pairs.codes
    return jnp.sum(present * jnp.mean(difference**2, axis=1)) / present.sum()


def _errors(weights: Weights, pairs: Pairs) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean squared error and NMSE, infinite where they overflow."""
    difference = predict(weights, pairs.observations) - pairs.codes
    size = jnp.linalg.norm(pairs.codes, axis=1)
    counted = size > 0
    ratio = jnp.linalg.norm(difference, axis=1) / jnp.where(counted, size, 1.0)
    errors = jnp.mean(difference**2), jnp.sum(ratio * counted) / jnp.maximum(counted.sum(), 1)
    return jax.tree.map(lambda error: jnp.where(jnp.isnan(error), jnp.inf, error), errors)
