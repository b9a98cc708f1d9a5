"""Pairs taken one by one into a belief about the anchored network that was learned before."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bayeslista.anchored_network import AnchoredWeights, expected_error_and_gradient
from bayeslista.network import Gaussian, relative_errors

_TEMPERATURE = 30.0
_LARGEST_STEP = 0.3  # of a mean, in standard deviations
_LARGEST_FACTOR = 2.0  # of a variance, either way


class StreamInfo(NamedTuple):
    """What happened to a stream of pairs: weights whose update was bounded or rejected, the summed relative error."""

    clipped: Int[Array, ""]
    rejected: Int[Array, ""]
    relative_error: Float[Array, ""]
    n_codes: Int[Array, ""]


@jax.jit
def filter_pairs(
    belief: AnchoredWeights[Gaussian],
    design_matrix: Float[Array, "K D"],
    observations: Float[Array, "n K"],
    codes: Float[Array, "n D"],
    shrinkage: Float[Array, " L"],
    noise_var: Float[Array, ""],
) -> tuple[AnchoredWeights[Gaussian], StreamInfo]:
    r"""Take a stream of pairs into a learned belief, one after the other, each seen once.

    Per pair, one step of the natural gradient of the variational objective with the belief before it as the prior:
    :math:`1/v \leftarrow 1/v - 2 g_v` and :math:`m \leftarrow m + v g_m`, with the derivatives of the expected
    log-likelihood over a temperature of 30: a pair seen once moves the belief less than one that was learned from in
    many passes. No step moves a mean by more than 0.3 standard deviations or a variance by more than a factor of two.
    The result depends on the order of the pairs, not on how they are cut.

    Parameters
    ----------
    belief : AnchoredWeights
        Before the stream.
    design_matrix : array of shape (K, D)
        X.
    observations, codes : array of shape (n, K) and (n, D)
        The pairs.
    shrinkage : array of shape (L,)
        Thresholds, which are held.
    noise_var : array
        ν, held.

    Returns
    -------
    AnchoredWeights, StreamInfo
        After the stream, and what was rejected: updates that would make a variance not positive or a number not
        finite.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights
    >>> from bayeslista.inference.streaming import filter_pairs
    >>> from bayeslista.network import Gaussian
    >>> one = jnp.ones((1, 1))
    >>> belief = AnchoredWeights(Gaussian(0 * one, one), Gaussian(0 * one, 1e-9 * one))
    >>> pairs = jnp.ones((2000, 1)), jnp.ones((2000, 1))
    >>> after, _ = filter_pairs(belief, one, *pairs, jnp.zeros(1), jnp.asarray(0.1))
    >>> round(float(after.encoder.mean[0, 0]), 1)
    1.0
    """
    scale = -0.5 / (_TEMPERATURE * noise_var)

    def update(part: Gaussian, gradient: Gaussian) -> tuple[Gaussian, Array, Array]:
        precision = 1 / part.var - 2 * scale * gradient.var
        bounded = jnp.clip(precision, 1 / (_LARGEST_FACTOR * part.var), _LARGEST_FACTOR / part.var)
        var = 1 / bounded
        step, reach = scale * var * gradient.mean, _LARGEST_STEP * jnp.sqrt(part.var)
        mean = part.mean + jnp.clip(step, -reach, reach)
        accepted = jnp.isfinite(mean) & jnp.isfinite(var) & (var > 0)
        kept = Gaussian(jnp.where(accepted, mean, part.mean), jnp.where(accepted, var, part.var))
        clipped = accepted & ((bounded != precision) | (jnp.abs(step) > reach))
        return kept, jnp.sum(clipped), jnp.sum(~accepted)

    def take(
        belief: AnchoredWeights[Gaussian], pair: tuple[Array, Array]
    ) -> tuple[AnchoredWeights[Gaussian], StreamInfo]:
        observation, code = pair
        _, predicted, (gradient, _) = expected_error_and_gradient(
            belief, design_matrix, observation[None], code[None], shrinkage, jnp.ones(1, code.dtype)
        )
        encoder, *encoder_counts = update(belief.encoder, gradient.encoder)
        residual, *residual_counts = update(belief.residual, gradient.residual)
        clipped, rejected = (a + b for a, b in zip(encoder_counts, residual_counts, strict=True))
        (error,), (informative,) = relative_errors(predicted, code[None])
        info = StreamInfo(clipped, rejected, error, informative.astype(int))
        return AnchoredWeights(encoder, residual), info

    belief, infos = jax.lax.scan(take, belief, (observations, codes))
    return belief, jax.tree.map(jnp.sum, infos)
