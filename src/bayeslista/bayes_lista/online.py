"""Online updates of the posterior of W and R, one pair after the other."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bayeslista.bayes_lista.propagation import (
    CoupledWeights,
    LayerParameters,
    expected_error_and_gradient,
    relative_errors,
)
from bayeslista.numerics.soft_threshold_fast import Gaussian

_TEMPERATURE = 30.0  # a pair seen once moves the posterior less than one of many epochs
_LARGEST_STEP = 0.3  # of a mean, in standard deviations
_LARGEST_FACTOR = 2.0  # of a variance, either way


class StreamInfo(NamedTuple):
    """Weights whose update was clipped or rejected, and the summed relative error of the codes that are not zero."""

    clipped: Int[Array, ""]
    rejected: Int[Array, ""]
    relative_error: Float[Array, ""]
    n_codes: Int[Array, ""]


@jax.jit
def filter_pairs(
    posterior: CoupledWeights[Gaussian],
    design_matrix: Float[Array, "K D"],
    observations: Float[Array, "n K"],
    codes: Float[Array, "n D"],
    layers: LayerParameters,
    noise_var: Float[Array, ""],
) -> tuple[CoupledWeights[Gaussian], StreamInfo]:
    r"""Update the posterior by a stream of pairs, each seen once; noise and the layers' parameters are held.

    A pair is one natural-gradient step on the ELBO with the posterior before it as the prior, :math:`1/v \leftarrow 1/v
    - 2 g_v`, :math:`m \leftarrow m + v g_m`, within a trust region. Updates that are not finite are rejected. The
    result depends on the order of the pairs, not on how they are cut.
    """
    scale = -0.5 / (_TEMPERATURE * noise_var)  # of the expected log-likelihood −error/2ν over the temperature

    def update(part: Gaussian, gradient: Gaussian) -> tuple[Gaussian, Array, Array]:
        # 1/v ← 1/v − 2 g_v, within a factor of two
        precision = 1 / part.var - 2 * scale * gradient.var
        bounded = jnp.clip(precision, 1 / (_LARGEST_FACTOR * part.var), _LARGEST_FACTOR / part.var)
        var = 1 / bounded
        # m ← m + v g_m, within 0.3 standard deviations
        step, reach = scale * var * gradient.mean, _LARGEST_STEP * jnp.sqrt(part.var)
        mean = part.mean + jnp.clip(step, -reach, reach)
        accepted = jnp.isfinite(mean) & jnp.isfinite(var) & (var > 0)
        kept = Gaussian(jnp.where(accepted, mean, part.mean), jnp.where(accepted, var, part.var))
        clipped = accepted & ((bounded != precision) | (jnp.abs(step) > reach))
        return kept, jnp.sum(clipped), jnp.sum(~accepted)

    def absorb(
        posterior: CoupledWeights[Gaussian], pair: tuple[Array, Array]
    ) -> tuple[CoupledWeights[Gaussian], StreamInfo]:
        observation, code = pair
        _, predicted, (gradient, _) = expected_error_and_gradient(
            posterior, design_matrix, observation[None], code[None], layers, jnp.ones(1, code.dtype)
        )
        encoder, *encoder_counts = update(posterior.encoder, gradient.encoder)
        residual, *residual_counts = update(posterior.residual, gradient.residual)
        clipped, rejected = (a + b for a, b in zip(encoder_counts, residual_counts, strict=True))
        (error,), (nonzero,) = relative_errors(predicted, code[None])
        info = StreamInfo(clipped, rejected, error, nonzero.astype(int))
        return CoupledWeights(encoder, residual), info

    posterior, infos = jax.lax.scan(absorb, posterior, (observations, codes))
    return posterior, jax.tree.map(jnp.sum, infos)
