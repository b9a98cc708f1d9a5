r"""Assumed density filtering (ADF) over pairs, and expectation propagation (EP) for the priors.

For one pair with evidence Z every weight is updated by

.. math::
    m \leftarrow m + v\,\partial_m \log Z, \qquad v \leftarrow v - v^2 [(\partial_m \log Z)^2 - 2\,\partial_v \log Z],

and the noise precision, if it is learned, by matching the moments of its Gamma. An epoch filters all pairs in turn;
after it the prior factors are refined.

The updates are exact where the network is linear in a weight, and local elsewhere. A trust region bounds a step of a
mean to five standard deviations, which in a linear model only a residual of five standard deviations could require, and
the growth of a variance to a factor of four. Well-scaled problems hardly ever reach it; networks deeper or wider than
their priors allow would diverge without it. Bounded updates are counted as clipped; an update that would make a
variance non-positive or a number not finite is rejected for that weight and counted, too.

From 256 coefficients on, layers multiply variances in single precision: their matrices stay in the cache, and variances
and their derivatives have seven digits.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bayeslista.bayes_lista.adf.evidence import EvidenceForm, GradientFactors, evidence_and_factors
from bayeslista.bayes_lista.adf.layers import FreeWeights
from bayeslista.bayes_lista.adf.posterior import AdfPosterior, absorb_factors, refine_prior
from bayeslista.bayes_lista.propagation import relative_errors
from bayeslista.numerics.compilation import fast_compiled
from bayeslista.numerics.precision import FAST_VARIANCES, AnyArray
from bayeslista.numerics.soft_threshold_fast import Gaussian

_LARGEST_STEP = 5.0  # of a mean, in standard deviations
_LARGEST_GROWTH = 4.0  # of a variance
_LARGE = 256  # coefficients from which on layers multiply variances in single precision, to stay in the cache
_BLOCK_NUMBERS = 2**15  # of a matrix that are updated at once, in rows of which there are no fewer than
_SMALLEST_BLOCK = 8


class AdfInfo(NamedTuple):
    """Counts and sums of one step or epoch.

    ``clipped`` and ``rejected`` count weights, ``noise_rejected`` coefficients, ``prior_rejected`` prior factors,
    ``prior_damped`` sweeps over them and ``saturated`` pairs for which a variance outgrew the precision.
    ``log_evidence`` is summed over pairs, ``relative_error`` of predictions over the ``n_codes`` codes that are not
    zero.
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
    """Of weights: derivatives in their means, which are multiplied by variances, and factors of the variances."""

    by_mean: Float[Array, "..."]
    factor: Float[Array, "..."]


class _Update(NamedTuple):
    """Changes of several matrices, counts of clipped and rejected weights, and whether some are out of bounds."""

    changes: list[_Change]
    clipped: Int[Array, ""]
    rejected: Int[Array, ""]
    out_of_bounds: Bool[Array, ""]


def _no_info(posterior: AdfPosterior) -> AdfInfo:
    none, nothing = jnp.zeros((), int), jnp.zeros_like(posterior.noise_precision.rate)
    return AdfInfo(none, none, none, none, none, none, nothing, nothing, none)


def _filtered(weights: Sequence[Gaussian], gradients: Callable[[], Sequence[Gaussian]]) -> _Update:
    """The ADF update of matrices of weights, within the trust region.

    Bounding and counting take longer than all else, and are rarely needed: an update out of bounds is marked by a
    factor that is NaN, which one sum finds. They are a loop of one round or none, as results of a condition would be
    copied. Gradients are functions: to compute outer products again is faster than to keep them.
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
    """Weights with some rows updated in place: m ← m + v ∂ₘ, v ← v · factor.

    Means come first, as they need the old variances; variances depend on them by a factor of one, or XLA would copy
    all.
    """
    (mean, var), n_rows = weights, len(change.factor)
    mean_rows, var_rows = (jax.lax.dynamic_slice_in_dim(whole, begin, n_rows) for whole in weights)
    mean = jax.lax.dynamic_update_slice_in_dim(mean, mean_rows + var_rows * change.by_mean, begin, 0)
    one = jnp.where(jnp.isnan(mean[begin, 0]), jnp.nan, 1)
    return Gaussian(mean, jax.lax.dynamic_update_slice_in_dim(var, var_rows * (one * change.factor), begin, 0))


def _block_size(n_rows: int, n_columns: int) -> int:
    """Rows of a matrix that are updated at once."""
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


def _updated(weights: FreeWeights, factors: GradientFactors) -> tuple[FreeWeights, Array, Array]:
    """The weights after one pair, and counts of clipped and rejected ones."""
    size = _block_size(*weights.recurrent.mean.shape)
    if size == len(weights.recurrent.mean):
        update = _filtered(weights, lambda: (factors.encoder(), factors.recurrent(weights.recurrent.mean)))
        return FreeWeights(*map(_moved, weights, update.changes)), update.clipped, update.rejected
    update = _filtered([weights.encoder], lambda: [factors.encoder()])
    recurrent, clipped, rejected = _in_blocks(weights.recurrent, factors, size)
    encoder = _moved(weights.encoder, update.changes[0])
    return FreeWeights(encoder, recurrent), clipped + update.clipped, rejected + update.rejected


def _factor(var: Array, gradient: Gaussian) -> tuple[Array, Array]:
    """Factor of a variance, 1 − v [(∂ₘ log Z)² − 2 ∂ᵥ log Z], and the squared step of a mean over v, v (∂ₘ log Z)²."""
    squared_step = var * gradient.mean * gradient.mean
    return 1 - (squared_step - 2 * var * gradient.var), squared_step


def _bounded(var: Array, gradient: Gaussian) -> tuple[_Change, Array, Array]:
    """The update bounded to the trust region, and counts of clipped and rejected weights."""
    factor, squared_step = _factor(var, gradient)
    accepted = jnp.isfinite(squared_step) & jnp.isfinite(factor) & (factor > 0)
    steepest = _LARGEST_STEP / jnp.sqrt(var)
    by_mean = jnp.clip(gradient.mean, -steepest, steepest)
    grown = jnp.minimum(factor, _LARGEST_GROWTH)
    clipped = accepted & ((by_mean != gradient.mean) | (grown != factor))
    change = _Change(jnp.where(accepted, by_mean, 0), jnp.where(accepted, grown, 1))
    return change, jnp.sum(clipped), jnp.sum(~accepted)


def step(
    posterior: AdfPosterior,
    pair: Pair,
    shrinkage: Float[AnyArray, " L"],
    form: EvidenceForm = "spike_slab",
    learn_noise: bool = False,
) -> tuple[AdfPosterior, AdfInfo]:
    """The ADF update of the posterior by one pair."""
    # 1. log Z and its gradient.
    large = len(pair.code) >= _LARGE
    evidence, factors = evidence_and_factors(
        posterior.weights, *pair, shrinkage, *posterior.noise_precision, form, FAST_VARIANCES if large else None
    )
    # 2. m ← m + v ∂ₘ log Z,  v ← v − v² [(∂ₘ log Z)² − 2 ∂ᵥ log Z]
    weights, clipped, rejected = _updated(posterior.weights, factors)
    # 3. The Gamma of the noise, by moments.
    noise = posterior.noise_precision
    noise_rejected = jnp.zeros((), int)
    if learn_noise:
        noise, noise_rejected = absorb_factors(
            noise, evidence.log_evidence, evidence.raised_once, evidence.raised_twice
        )
    error, nonzero = relative_errors(evidence.prediction, pair.code)
    info = _no_info(posterior)._replace(
        clipped=clipped,
        rejected=rejected,
        noise_rejected=noise_rejected,
        saturated=evidence.saturated.astype(int),
        log_evidence=jnp.sum(evidence.log_evidence),
        relative_error=error,
        n_codes=nonzero.astype(int),
    )
    return posterior._replace(weights=weights, noise_precision=noise), info


@partial(fast_compiled, static_argnames=("form", "learn_noise"))
def filter_pairs(
    posterior: AdfPosterior,
    pairs: Pair,
    shrinkage: Float[AnyArray, " L"],
    form: EvidenceForm = "spike_slab",
    learn_noise: bool = False,
) -> tuple[AdfPosterior, AdfInfo]:
    """ADF over many pairs, one after the other, in one compiled loop; counts and errors are summed."""

    def absorb(carry: tuple[AdfPosterior, AdfInfo], pair: Pair) -> tuple[tuple[AdfPosterior, AdfInfo], None]:
        posterior, total = carry
        posterior, info = step(posterior, pair, shrinkage, form, learn_noise)
        return (posterior, jax.tree.map(jnp.add, total, info)), None

    return jax.lax.scan(absorb, (posterior, _no_info(posterior)), pairs)[0]


@jax.jit
def refine_priors(posterior: AdfPosterior) -> tuple[AdfPosterior, AdfInfo]:
    """Refine the prior factors of both matrices, by one sweep of EP each."""
    encoder = refine_prior(posterior.weights.encoder, posterior.encoder_prior, posterior.encoder_precision)
    recurrent = refine_prior(posterior.weights.recurrent, posterior.recurrent_prior, posterior.recurrent_precision)
    info = _no_info(posterior)._replace(
        prior_rejected=encoder.rejected + recurrent.rejected, prior_damped=encoder.damped + recurrent.damped
    )
    refined = posterior._replace(
        weights=FreeWeights(encoder.weights, recurrent.weights),
        encoder_prior=encoder.prior,
        recurrent_prior=recurrent.prior,
        encoder_precision=encoder.precision,
        recurrent_precision=recurrent.precision,
    )
    return refined, info
