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
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bayeslista._compilation import quickly_compiled
from bayeslista.network import EvidenceForm, Gaussian, Weights, evidence_and_gradient, relative_errors
from bayeslista.posterior import Belief, absorb_factors, refine_prior

_LARGEST_STEP = 5.0  # of a mean, in standard deviations
_LARGEST_GROWTH = 4.0  # of a variance


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


def _filtered(weights: Gaussian, gradient: Gaussian) -> tuple[Gaussian, Array, Array]:
    """Updated weights, how many were clipped and how many rejected.

    Bounding and counting take longer than all else. They are for the rare case that some update is out of bounds, which
    a sum over columns, the quickest kind, tells.
    """
    var = weights.var
    _, new_var = _matched(*weights, *gradient)
    room = _LARGEST_STEP**2 * (1 - 1e-3)  # a little less, so that rounding does not hide what is out of bounds
    within = (new_var > 0) & (new_var <= _LARGEST_GROWTH * var) & (var * gradient.mean * gradient.mean <= room)
    n_outside = jnp.sum(jnp.sum(jnp.where(within, 0, 1).astype(var.dtype), axis=0))
    return jax.lax.cond(n_outside > 0, _bounded, _unbounded, *weights, *gradient)


def _matched(mean: Array, var: Array, by_mean: Array, by_var: Array) -> tuple[Array, Array]:
    """The step of the mean, and the new variance."""
    step = var * by_mean
    return step, var - var * (step * by_mean - 2 * var * by_var)


def _unbounded(mean: Array, var: Array, by_mean: Array, by_var: Array) -> tuple[Gaussian, Array, Array]:
    step, new_var = _matched(mean, var, by_mean, by_var)
    none = jnp.zeros((), int)
    return Gaussian(mean + step, new_var), none, none


def _bounded(mean: Array, var: Array, by_mean: Array, by_var: Array) -> tuple[Gaussian, Array, Array]:
    step, new_var = _matched(mean, var, by_mean, by_var)
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
    evidence, gradient = evidence_and_gradient(belief.weights, *pair, shrinkage, *belief.noise_precision, form)
    encoder, *encoder_counts = _filtered(belief.weights.encoder, gradient.encoder)
    recurrent, *recurrent_counts = _filtered(belief.weights.recurrent, gradient.recurrent)
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
