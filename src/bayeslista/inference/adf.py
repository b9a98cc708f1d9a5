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

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

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


def _nothing(belief: Belief) -> Info:
    none, nothing = jnp.zeros((), int), jnp.zeros_like(belief.noise_precision.rate)
    return Info(none, none, none, none, none, none, nothing, nothing, none)


def _filtered(weights: Gaussian, gradient: Callable[[], Gaussian]) -> tuple[Gaussian, Array, Array]:
    """Updated weights, how many were clipped and how many rejected.

    Bounding and counting take longer than all else. They are for the rare case that some update is out of bounds, which
    the sum of the new variances tells: one that is not a number marks such an update. The gradient is asked for where
    it is used: to make one of vectors again is quicker than to keep it.
    """
    var, by_mean = weights.var, gradient().mean
    _, (_, new_var) = _matched(weights, gradient())
    room = _LARGEST_STEP**2 * (1 - 1e-3)  # a little less, so that rounding does not hide what is out of bounds
    within = (new_var > 0) & (new_var <= _LARGEST_GROWTH * var) & (var * by_mean * by_mean <= room)
    none = jnp.zeros((), int)
    return jax.lax.cond(
        jnp.isfinite(jnp.sum(jnp.where(within, new_var, jnp.nan))),
        lambda: (_matched(weights, gradient())[1], none, none),
        lambda: _bounded(weights, gradient()),
    )


def _in_blocks(weights: Gaussian, factors: GradientFactors) -> tuple[Gaussian, Array, Array]:
    """The same for the recurrent matrix, a few rows at a time, so that gradients stay in the cache."""
    n_rows, n_columns = weights.mean.shape
    sizes = [size for size in range(_SMALLEST_BLOCK, n_rows + 1) if n_rows % size == 0]
    size = max((size for size in sizes if size * n_columns <= _BLOCK_NUMBERS), default=n_rows)
    if size == n_rows:
        gradient = factors.recurrent(weights.mean)
        return _filtered(weights, lambda: gradient)

    def update(block: Array, carry: tuple[Gaussian, Array, Array]) -> tuple[Gaussian, Array, Array]:
        weights, clipped, rejected = carry
        begin = block * size
        part, by_entering = (
            jax.tree.map(lambda whole: jax.lax.dynamic_slice_in_dim(whole, begin, size), each)
            for each in (weights, factors.by_entering)
        )
        gradient = factors._replace(by_entering=by_entering).recurrent(part.mean)
        updated, more_clipped, more_rejected = _filtered(part, lambda: gradient)
        weights = jax.tree.map(
            lambda whole, new: jax.lax.dynamic_update_slice_in_dim(whole, new, begin, 0), weights, updated
        )
        return weights, clipped + more_clipped, rejected + more_rejected

    none = jnp.zeros((), int)
    return jax.lax.fori_loop(0, n_rows // size, update, (weights, none, none))


def _matched(weights: Gaussian, gradient: Gaussian) -> tuple[Array, Gaussian]:
    """The step of the mean, and the weights after it."""
    mean, var = weights
    step = var * gradient.mean
    return step, Gaussian(mean + step, var - var * (step * gradient.mean - 2 * var * gradient.var))


def _bounded(weights: Gaussian, gradient: Gaussian) -> tuple[Gaussian, Array, Array]:
    mean, var = weights
    step, (_, new_var) = _matched(weights, gradient)
    accepted = jnp.isfinite(step) & jnp.isfinite(new_var) & (new_var > 0)
    reach = _LARGEST_STEP * jnp.sqrt(var)
    bounded_step = jnp.clip(step, -reach, reach)
    bounded_var = jnp.minimum(new_var, _LARGEST_GROWTH * var)
    clipped = accepted & ((bounded_step != step) | (bounded_var != new_var))
    updated = Gaussian(jnp.where(accepted, mean + bounded_step, mean), jnp.where(accepted, bounded_var, var))
    return updated, jnp.sum(clipped), jnp.sum(~accepted)


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
    encoder, *encoder_counts = _filtered(belief.weights.encoder, factors.encoder)
    recurrent, *recurrent_counts = _in_blocks(belief.weights.recurrent, factors)
    noise = belief.noise_precision
    noise_rejected = jnp.zeros((), int)
    if learn_noise:
        noise, noise_rejected = absorb_factors(
            noise, evidence.log_evidence, evidence.raised_once, evidence.raised_twice
        )
    error, informative = relative_errors(evidence.prediction, pair.code)
    info = _nothing(belief)._replace(
        clipped=encoder_counts[0] + recurrent_counts[0],
        rejected=encoder_counts[1] + recurrent_counts[1],
        noise_rejected=noise_rejected,
        saturated=evidence.saturated.astype(int),
        log_evidence=jnp.sum(evidence.log_evidence),
        relative_error=error,
        n_codes=informative.astype(int),
    )
    return belief._replace(weights=Weights(encoder, recurrent), noise_precision=noise), info


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

    def take(belief: Belief, pair: Pair) -> tuple[Belief, Info]:
        return step(belief, pair, shrinkage, form, learn_noise)

    belief, infos = jax.lax.scan(take, belief, pairs)
    return belief, jax.tree.map(jnp.sum, infos)


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
