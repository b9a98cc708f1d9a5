"""Sparse coding by proximal gradient steps: soft-thresholding, ISTA and FISTA.

For observations ``y = X β + noise`` both iterate ``c = W y + S β``, ``β = h_λ(c)`` with ``W = Xᵀ/τ``, ``S = I
− W X`` and ``τ`` just above ``‖X‖₂²``. The threshold ``λ`` is absolute, in the units of the codes, so the
iterations descend to the minimiser of ``½‖y − X β‖² + λ τ ‖β‖₁``: scikit-learn's Lasso at ``alpha = λ τ /
K``. FISTA [1]_ adds momentum.

References
----------
.. [1] A. Beck and M. Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse
   problems", SIAM Journal on Imaging Sciences 2(1), 2009.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bayeslista.numerics.linear import ProximalWeights
from bayeslista.numerics.precision import common_dtype, follows_input_precision, precision

__all__ = [
    "fista",
    "ista",
    "soft_threshold",
]


@follows_input_precision
def soft_threshold(x: Float[Array, "..."], shrinkage: Float[Array, "..."]) -> Float[Array, "..."]:
    """Soft-thresholding ``h_λ(x) = sign(x) max(|x| − λ, 0)``, exactly zero where ``|x| ≤ λ``."""
    return x - jnp.clip(x, -shrinkage, shrinkage)


def ista(
    weights: ProximalWeights, Y: Float[np.ndarray, "n K"], shrinkage: float, n_layers: int
) -> Float[np.ndarray, "n D"]:
    """Codes after `n_layers` layers of ISTA from zero; the first layer is ``h_λ(W y)``."""
    return _in_input_precision(_ista, weights, Y, shrinkage, n_layers)


def fista(
    weights: ProximalWeights,
    Y: Float[np.ndarray, "n K"],
    shrinkage: float,
    n_layers: int,
    *,
    late_momentum: bool = False,
) -> Float[np.ndarray, "n D"]:
    """Codes after `n_layers` layers of FISTA, ISTA with momentum ``t_{k+1} = (1 + √(1 + 4 t_k²))/2``, ``t_1 = 1``.

    With `late_momentum` it starts one layer later, as in the published curves: then three layers are those of ISTA.
    """
    return _in_input_precision(_fista, weights, Y, shrinkage, n_layers, late_momentum)


def _in_input_precision(
    kernel: Callable[..., Array], weights: ProximalWeights, Y: Any, shrinkage: float, *options: int
) -> np.ndarray:
    """Run a compiled kernel on NumPy arrays in their common precision."""
    arrays = (weights.encoder, weights.recurrent, Y)
    dtype = common_dtype(*arrays)
    with precision(dtype):
        return np.asarray(
            kernel(*(np.asarray(array, dtype) for array in arrays), np.asarray(shrinkage, dtype), *options)
        )


@jax.jit
def _ista(
    encoder: Float[Array, "D K"],
    recurrent: Float[Array, "D D"],
    Y: Float[Array, "n K"],
    shrinkage: Float[Array, ""],
    n_layers: Int[Array, ""],
) -> Float[Array, "n D"]:
    drive = Y @ encoder.T

    def layer(_: Int[Array, ""], codes: Float[Array, "n D"]) -> Float[Array, "n D"]:
        return soft_threshold(drive + codes @ recurrent.T, shrinkage)

    return jax.lax.fori_loop(1, n_layers, layer, soft_threshold(drive, shrinkage))


@jax.jit
def _fista(
    encoder: Float[Array, "D K"],
    recurrent: Float[Array, "D D"],
    Y: Float[Array, "n K"],
    shrinkage: Float[Array, ""],
    n_layers: Int[Array, ""],
    late_momentum: Bool[Array, ""],
) -> Float[Array, "n D"]:
    drive = Y @ encoder.T

    def layer(_: Int[Array, ""], carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        previous, extrapolated, momentum = carry  # β_{k−1}, z_k, t_k
        codes = soft_threshold(drive + extrapolated @ recurrent.T, shrinkage)
        following = _next_momentum(momentum)
        # z_{k+1} = β_k + (t_k − 1)/t_{k+1} (β_k − β_{k−1})
        return codes, codes + (momentum - 1) / following * (codes - previous), following

    first = soft_threshold(drive, shrinkage)
    one = jnp.ones((), Y.dtype)
    second_momentum = jnp.where(late_momentum, one, _next_momentum(one))
    return jax.lax.fori_loop(1, n_layers, layer, (first, first, second_momentum))[0]


def _next_momentum(momentum: Float[Array, ""]) -> Float[Array, ""]:
    return (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
