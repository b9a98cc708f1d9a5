r"""Assumed density filtering over pairs, and expectation propagation for the priors.

For one pair with evidence Z every weight is updated by

.. math::
    m \leftarrow m + v\,\partial_m \log Z, \qquad v \leftarrow v - v^2 [(\partial_m \log Z)^2 - 2\,\partial_v \log Z],

and the noise precision, if it is learned, by matching the moments of its Gamma. A pass takes the pairs in turn; after
it the prior factors are refined.

The formulas are exact where the network is linear in a weight, and local elsewhere: far from there they may ask for
steps of many standard deviations. A trust region bounds every step of a mean to five standard deviations, which in a
linear model only a residual of five standard deviations could ask for, and every growth of a variance to a factor of
four. Well-scaled problems hardly ever touch it; networks deeper or wider than their priors allow would diverge without
it. What it bounds is counted as clipped, and an update that would make a variance non-positive or a number not finite
is rejected for that weight and counted, too.

From 256 coefficients on, layers multiply variances in single precision, whatever the weights are in: their matrices
stay in the cache, and variances and their derivatives have seven digits.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bayeslista._compilation import quickly_compiled
from bayeslista.network import (
    QUICK_VARIANCES,
    EvidenceForm,
    Gaussian,
    GradientFactors,
    Weights,
    evidence_and_factors,
    relative_errors,
)
from bayeslista.posterior import Belief, absorb_factors, refine_prior

_LARGEST_STEP = 5.0  # of a mean, in standard deviations
_LARGEST_GROWTH = 4.0  # of a variance
_LARGE = 256  # coefficients from which on layers multiply variances in single precision, to stay in the cache
_BLOCK_NUMBERS = 2**15  # of a matrix that are updated at once, in rows of which there are no fewer than
_SMALLEST_BLOCK = 8


class Info(NamedTuple):
    """What happened to the updates of one step or pass: counts, and the error of the predictions before them.

    ``clipped`` and ``rejected`` count weights, ``noise_rejected`` coefficients, ``prior_rejected`` prior factors and
    ``prior_damped`` sweeps over them; ``saturated`` counts pairs for which a variance outgrew the precision.
    ``log_evidence`` is summed over pairs, and ``relative_error``, which is ``‖prediction − code‖ / ‖code‖``, over the
    ``n_codes`` codes that are not zero.
    """

    clipped: Int[Array, ""]
    rejected: Int[Array, ""]
    noise_rejected: Int[Array, ""]
    prior_rejected: Int[Array, ""]
    prior_damped: Int[Array, ""]
    saturated: Int[Array, ""]
    log_evidence: Float[Array, ""]
    relative_error: Float[Array, ""]
    n_codes: Int[Array, ""]


class Pair(NamedTuple):
    """An observation of shape (K,) and its code of shape (D,), or arrays of them, one a row."""

    observation: Float[Array, "... K"]
    code: Float[Array, "... D"]


class _Change(NamedTuple):
    """Of weights: derivatives in their means, of which a step is as many variances, and factors of the variances."""

    by_mean: Float[Array, "..."]
    factor: Float[Array, "..."]


class _Update(NamedTuple):
    """Changes of several matrices, what of them was clipped or rejected, and whether some are out of bounds."""

    changes: list[_Change]
    clipped: Int[Array, ""]
    rejected: Int[Array, ""]
    out_of_bounds: Bool[Array, ""]


def _nothing(belief: Belief) -> Info:
    none, nothing = jnp.zeros((), int), jnp.zeros_like(belief.noise_precision.rate)
    return Info(none, none, none, none, none, none, nothing, nothing, none)


def _filtered(weights: Sequence[Gaussian], gradients: Callable[[], Sequence[Gaussian]]) -> _Update:
    """Changes of matrices of weights, within bounds.

    Bounding and counting take longer than all else. They are for the rare case that some update is out of bounds, which
    is marked by a factor that is not a number, and so found by one product. They are a loop of one round or none, not a
    condition, whose results would be copied. Gradients are asked for where they are used: to make one of vectors again
    is quicker than to keep it.
    """
    half = _LARGEST_GROWTH / 2
    room = _LARGEST_STEP**2 * (1 - 1e-3)  # a little less, so that rounding does not hide what is out of bounds
    changes, sums = [], []
    for (_, var), gradient in zip(weights, gradients(), strict=True):
        factor, squared_step = _factor(var, gradient)
        factor = jnp.where((jnp.abs(factor - half) < half) & (squared_step <= room), factor, jnp.nan)
        changes.append(_Change(gradient.mean, factor))
        sums.append(jnp.sum(factor @ jnp.ones(factor.shape[-1], factor.dtype)))

    def bounded(update: _Update) -> _Update:
        found = [
            _bounded(var, Gaussian(change.by_mean, gradient.var))
            for (_, var), change, gradient in zip(weights, update.changes, gradients(), strict=True)
        ]
        changes, clipped, rejected = zip(*found, strict=True)
        return _Update(list(changes), sum(clipped, none), sum(rejected, none), jnp.zeros((), bool))

    none = jnp.zeros((), int)
    update = _Update(changes, none, none, ~jnp.isfinite(sum(sums)))
    return jax.lax.while_loop(lambda update: update.out_of_bounds, bounded, update)


def _moved(weights: Gaussian, change: _Change, begin: Array | int = 0) -> Gaussian:
    """Weights, of which some rows are changed.

    Means come first, for which old variances are needed, and variances are made to wait for them by a one that is known
    only then: so both can change in place, where XLA would otherwise copy the whole.
    """
    (mean, var), n_rows = weights, len(change.factor)
    mean_rows, var_rows = (jax.lax.dynamic_slice_in_dim(whole, begin, n_rows) for whole in weights)
    mean = jax.lax.dynamic_update_slice_in_dim(mean, mean_rows + var_rows * change.by_mean, begin, 0)
    one = jnp.where(jnp.isnan(mean[begin, 0]), jnp.nan, 1)
    return Gaussian(mean, jax.lax.dynamic_update_slice_in_dim(var, var_rows * (one * change.factor), begin, 0))


def _block_size(n_rows: int, n_columns: int) -> int:
    """How many rows of a matrix are updated at once."""
    sizes = [size for size in range(_SMALLEST_BLOCK, n_rows + 1) if n_rows % size == 0]
    return max((size for size in sizes if size * n_columns <= _BLOCK_NUMBERS), default=n_rows)


def _in_blocks(weights: Gaussian, factors: GradientFactors, size: int) -> tuple[Gaussian, Array, Array]:
    """The recurrent matrix updated a few rows at a time, so that gradients stay in the cache."""

    def update(block: Array, carry: tuple[Gaussian, Array, Array]) -> tuple[Gaussian, Array, Array]:
        weights, clipped, rejected = carry
        begin = block * size
        part = jax.tree.map(lambda whole: jax.lax.dynamic_slice_in_dim(whole, begin, size), weights)
        gradient = factors.of_rows(begin, size).recurrent(part.mean)
        update = _filtered([part], lambda: [gradient])
        return _moved(weights, update.changes[0], begin), clipped + update.clipped, rejected + update.rejected

    none = jnp.zeros((), int)
    return jax.lax.fori_loop(0, len(weights.mean) // size, update, (weights, none, none))


def _updated(weights: Weights, factors: GradientFactors) -> tuple[Weights, Array, Array]:
    """After one pair: the weights, how many were clipped and how many rejected."""
    size = _block_size(*weights.recurrent.mean.shape)
    if size == len(weights.recurrent.mean):
        update = _filtered(weights, lambda: (factors.encoder(), factors.recurrent(weights.recurrent.mean)))
        return Weights(*map(_moved, weights, update.changes)), update.clipped, update.rejected
    update = _filtered([weights.encoder], lambda: [factors.encoder()])
    recurrent, clipped, rejected = _in_blocks(weights.recurrent, factors, size)
    encoder = _moved(weights.encoder, update.changes[0])
    return Weights(encoder, recurrent), clipped + update.clipped, rejected + update.rejected


def _factor(var: Array, gradient: Gaussian) -> tuple[Array, Array]:
    """What multiplies a variance, and the square of the mean's step in standard deviations."""
    squared_step = var * gradient.mean * gradient.mean
    return 1 - (squared_step - 2 * var * gradient.var), squared_step


def _bounded(var: Array, gradient: Gaussian) -> tuple[_Change, Array, Array]:
    factor, squared_step = _factor(var, gradient)
    accepted = jnp.isfinite(squared_step) & jnp.isfinite(factor) & (factor > 0)
    steepest = _LARGEST_STEP / jnp.sqrt(var)
    by_mean = jnp.clip(gradient.mean, -steepest, steepest)
    grown = jnp.minimum(factor, _LARGEST_GROWTH)
    clipped = accepted & ((by_mean != gradient.mean) | (grown != factor))
    change = _Change(jnp.where(accepted, by_mean, 0), jnp.where(accepted, grown, 1))
    return change, jnp.sum(clipped), jnp.sum(~accepted)


def step(
    belief: Belief,
    pair: Pair,
    shrinkage: Float[Array, " L"],
    form: EvidenceForm = "spike_slab",
    learn_noise: bool = False,
) -> tuple[Belief, Info]:
    """Take one pair into the belief.

    Parameters
    ----------
    belief : Belief
        Before the pair.
    pair : Pair
        One observation and its code.
    shrinkage : array of shape (L,)
        The threshold of each layer.
    form : {"spike_slab", "gaussian"}
        Which evidence.
    learn_noise : bool
        Whether the Gamma of the noise is updated or held.

    Returns
    -------
    Belief, Info
        After the pair, and what was clipped or rejected.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.inference import adf
    >>> from bayeslista.posterior import MatrixPrior, initial_belief
    >>> prior = MatrixPrior(jnp.zeros((1, 1)), jnp.asarray(1.0))
    >>> belief = initial_belief(jnp.zeros((1, 1)), jnp.zeros((1, 1)), prior, prior)
    >>> pair = adf.Pair(jnp.ones(1), jnp.ones(1))
    >>> after, _ = adf.step(belief, pair, jnp.zeros(1))
    >>> bool(after.weights.encoder.var[0, 0] < belief.weights.encoder.var[0, 0])
    True
    """
    large = len(pair.code) >= _LARGE
    evidence, factors = evidence_and_factors(
        belief.weights, *pair, shrinkage, *belief.noise_precision, form, QUICK_VARIANCES if large else None
    )
    weights, clipped, rejected = _updated(belief.weights, factors)
    noise = belief.noise_precision
    noise_rejected = jnp.zeros((), int)
    if learn_noise:
        noise, noise_rejected = absorb_factors(
            noise, evidence.log_evidence, evidence.raised_once, evidence.raised_twice
        )
    error, informative = relative_errors(evidence.prediction, pair.code)
    info = _nothing(belief)._replace(
        clipped=clipped,
        rejected=rejected,
        noise_rejected=noise_rejected,
        saturated=evidence.saturated.astype(int),
        log_evidence=jnp.sum(evidence.log_evidence),
        relative_error=error,
        n_codes=informative.astype(int),
    )
    return belief._replace(weights=weights, noise_precision=noise), info


@partial(quickly_compiled, static_argnames=("form", "learn_noise"))
def filter_pairs(
    belief: Belief,
    pairs: Pair,
    shrinkage: Float[Array, " L"],
    form: EvidenceForm = "spike_slab",
    learn_noise: bool = False,
) -> tuple[Belief, Info]:
    """Take many pairs into the belief, one after the other, in one compiled loop.

    Parameters
    ----------
    belief : Belief
        Before the pairs.
    pairs : Pair
        Observations of shape (n, K) and codes of shape (n, D).
    shrinkage, form, learn_noise
        As in :func:`step`.

    Returns
    -------
    Belief, Info
        After the pairs, with counts and errors summed over them.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.inference import adf
    >>> from bayeslista.posterior import MatrixPrior, initial_belief
    >>> prior = MatrixPrior(jnp.zeros((1, 1)), jnp.asarray(1.0))
    >>> belief = initial_belief(jnp.zeros((1, 1)), jnp.zeros((1, 1)), prior, prior)
    >>> pairs = adf.Pair(jnp.ones((100, 1)), jnp.ones((100, 1)))
    >>> belief, info = adf.filter_pairs(belief, pairs, jnp.zeros(1))
    >>> round(float(belief.weights.encoder.mean[0, 0]), 1), int(info.n_codes)
    (1.0, 100)
    """

    def take(carry: tuple[Belief, Info], pair: Pair) -> tuple[tuple[Belief, Info], None]:
        belief, total = carry
        belief, info = step(belief, pair, shrinkage, form, learn_noise)
        return (belief, jax.tree.map(jnp.add, total, info)), None

    return jax.lax.scan(take, (belief, _nothing(belief)), pairs)[0]


@jax.jit
def refine_priors(belief: Belief) -> tuple[Belief, Info]:
    """Refine the prior factors of both matrices, by one sweep of expectation propagation each.

    Parameters
    ----------
    belief : Belief
        After a pass.

    Returns
    -------
    Belief, Info
        With refined priors; ``prior_rejected`` and ``prior_damped`` tell what was left as it was.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.inference import adf
    >>> from bayeslista.posterior import MatrixPrior, initial_belief
    >>> prior = MatrixPrior(jnp.zeros((1, 1)), jnp.asarray(1.0))
    >>> belief = initial_belief(jnp.zeros((1, 1)), jnp.zeros((1, 1)), prior, prior)
    >>> _, info = adf.refine_priors(belief)
    >>> int(info.prior_rejected)
    0
    """
    encoder = refine_prior(belief.weights.encoder, belief.encoder_prior, belief.encoder_precision)
    recurrent = refine_prior(belief.weights.recurrent, belief.recurrent_prior, belief.recurrent_precision)
    info = _nothing(belief)._replace(
        prior_rejected=encoder.rejected + recurrent.rejected, prior_damped=encoder.damped + recurrent.damped
    )
    refined = belief._replace(
        weights=Weights(encoder.weights, recurrent.weights),
        encoder_prior=encoder.prior,
        recurrent_prior=recurrent.prior,
        encoder_precision=encoder.precision,
        recurrent_precision=recurrent.precision,
    )
    return refined, info
