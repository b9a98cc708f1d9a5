r"""Moments through the layers of the network with W and S free.

An unrolled network of L layers computes :math:`c_l = W y + S \hat\beta_{l-1}`, :math:`\hat\beta_l = h_{\lambda_l}(c_l)`
with :math:`\hat\beta_0 = 0`. Every entry of W (``encoder``) and S (``recurrent``) is an independent Gaussian with mean
M and variance V, and each :math:`c_l` is taken to be Gaussian with the exact mean and variance of that sum of products:

.. math::
    c_m = M_W y + M_S e, \qquad c_v = V_W y^2 + M_S^2 s + V_S (e^2 + s),

where ``e`` and ``s`` are mean and variance of :math:`\hat\beta_{l-1}`. The number of layers is the length of the
vector of thresholds.
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayeslista.numerics.precision import AnyArray, largest_moment
from bayeslista.numerics.soft_threshold_fast import Gaussian, Slopes, fast_moments, fast_moments_and_slopes

_FEW = 3  # layers that are unrolled, which saves a tenth of the time or more; a loop compiles sooner


class FreeWeights(NamedTuple):
    """The Gaussian posterior of W and S, which all layers share."""

    encoder: Gaussian
    recurrent: Gaussian


class LayerOutputs(NamedTuple):
    """Outputs of the thresholds before the last, and their slopes, kept for the backward sweep."""

    output: Gaussian
    slopes: Slopes


class VarianceMatrices(NamedTuple):
    """M_S² and V_S, by which variances are multiplied in every layer."""

    squares: Float[Array, "D D"]
    var: Float[Array, "D D"]

    @classmethod
    def of(cls, recurrent: Gaussian, dtype: np.dtype | None) -> Self:
        """In a floating type, or their own."""
        squares, var = recurrent.mean * recurrent.mean, recurrent.var
        if dtype is None or dtype == var.dtype:
            return cls(squares, var)
        largest = float(np.finfo(dtype).max)
        return cls(*(jnp.minimum(part, largest).astype(dtype) for part in (squares, var)))


def few_layers(n_layers: int) -> bool:
    """Whether a loop over layers is unrolled."""
    return n_layers <= _FEW


def matrix_product(matrix: Float[Array, "m n"], vector: Float[Array, "..."], *, transposed: bool = False) -> Array:
    """A product with the precision of the matrix and the range of the vector, in whose floating type it is."""
    if matrix.dtype == vector.dtype:
        return vector @ matrix if transposed else matrix @ vector
    unit = jnp.maximum(jnp.max(jnp.abs(vector)), float(np.finfo(vector.dtype).tiny))
    small = (vector / unit).astype(matrix.dtype)
    return unit * (small @ matrix if transposed else matrix @ small).astype(vector.dtype)


def _bounded(var: Array) -> Array:
    return jnp.minimum(var, largest_moment(var))


def propagate_pair(
    weights: FreeWeights, variances: VarianceMatrices, observation: Float[Array, " K"], shrinkage: Float[AnyArray, " L"]
) -> tuple[Gaussian, LayerOutputs, Float[Array, " D"]]:
    """The input of the last threshold, the outputs of those before it, and the largest variances on the way."""
    (w_mean, w_var), (s_mean, _) = weights
    drive_mean = w_mean @ observation
    drive_var = w_var @ (observation * observation)

    def layer(carry: tuple[Gaussian, Array], threshold: Any) -> tuple[tuple[Gaussian, Array], LayerOutputs]:
        entering, largest = carry
        output, slopes = fast_moments_and_slopes(*entering, threshold)
        e, s = output
        # c_m = M_W y + M_S e,  c_v = V_W y² + M_S² s + V_S (e² + s)
        mean = drive_mean + s_mean @ e
        var = _bounded(drive_var + matrix_product(variances.squares, s) + matrix_product(variances.var, e * e + s))
        return (Gaussian(mean, var), jnp.maximum(largest, var)), LayerOutputs(output, slopes)

    first = Gaussian(drive_mean, _bounded(drive_var))
    few = few_layers(len(shrinkage) - 1)
    (last, largest), outputs = jax.lax.scan(layer, (first, first.var), shrinkage[:-1], unroll=few)
    return last, outputs, largest


@jax.jit
def propagate(weights: FreeWeights, observations: Float[Array, "n K"], shrinkage: Float[AnyArray, " L"]) -> Gaussian:
    """Mean and variance of the input of the last threshold, for a batch of observations."""
    (w_mean, w_var), (s_mean, s_var) = weights
    drive = Gaussian(observations @ w_mean.T, _bounded((observations * observations) @ w_var.T))
    squared = s_mean * s_mean

    def layer(entering: Gaussian, threshold: Any) -> tuple[Gaussian, None]:
        e, s = fast_moments(*entering, threshold)
        mean = drive.mean + e @ s_mean.T
        var = _bounded(drive.var + s @ squared.T + (e * e + s) @ s_var.T)
        return Gaussian(mean, var), None

    return jax.lax.scan(layer, drive, shrinkage[:-1])[0]
