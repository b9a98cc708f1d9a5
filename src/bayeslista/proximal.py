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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from bayeslista._precision import common_dtype, follows_input_precision, precision

__all__ = [
    "ProximalWeights",
    "estimate_design_matrix",
    "fista",
    "ista",
    "ista_weights",
    "soft_threshold",
]

_STEP_MARGIN = 1.01
_RIDGES = np.logspace(-12, 0, 25)
_SMALLEST_FREEDOM = 1e-14


class ProximalWeights(NamedTuple):
    """The weights of one proximal gradient step, and of one layer of the networks that learn from it.

    Attributes
    ----------
    encoder : array of shape (D, K)
        ``W = Xᵀ/τ``, from observations to codes.
    recurrent : array of shape (D, D)
        ``S = I − W X``, from codes to codes.
    step_inverse : float
        ``τ``, the inverse of the step.

    Examples
    --------
    >>> from bayeslista.proximal import ista_weights
    >>> ista_weights([[2.0, 0.0]]).encoder.shape
    (2, 1)
    """

    encoder: Float[np.ndarray, "D K"]
    recurrent: Float[np.ndarray, "D D"]
    step_inverse: float


@follows_input_precision
def soft_threshold(x: Float[Array, "..."], shrinkage: Float[Array, "..."]) -> Float[Array, "..."]:
    """Shrink towards zero: ``h_λ(x) = sign(x) max(|x| − λ, 0)``.

    Parameters
    ----------
    x : array
        Values to shrink.
    shrinkage : array or float
        The threshold ``λ ≥ 0``; broadcasts against `x`.

    Returns
    -------
    array
        The shrunk values, exactly zero where ``|x| ≤ λ``.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.proximal import soft_threshold
    >>> soft_threshold(np.array([-3.0, 0.5, 2.0]), 1.0)
    array([-2.,  0.,  1.])
    """
    return x - jnp.clip(x, -shrinkage, shrinkage)


def ista_weights(design_matrix: ArrayLike) -> ProximalWeights:
    """Weights of the proximal gradient step with ``τ = 1.01 ‖X‖₂²``.

    Parameters
    ----------
    design_matrix : array of shape (K, D)
        ``X``. Where it is all zero, ``τ = 1``.

    Returns
    -------
    ProximalWeights
        In the floating type of `design_matrix`.

    Examples
    --------
    >>> from bayeslista.proximal import ista_weights
    >>> weights = ista_weights([[2.0, 0.0]])
    >>> round(weights.step_inverse, 2)
    4.04
    >>> weights.recurrent.round(2)
    array([[0.01, 0.  ],
           [0.  , 1.  ]])
    """
    dtype = common_dtype(design_matrix)
    X = np.asarray(design_matrix, np.float64)
    # Computed on the matrix at unit scale, so that its square neither overflows nor underflows.
    scale = float(np.max(np.abs(X))) or 1.0
    unit = X / scale
    norm = _STEP_MARGIN * float(np.linalg.norm(unit, 2)) ** 2 or 1.0
    encoder = unit.T / norm
    recurrent = np.eye(X.shape[1]) - encoder @ unit
    return ProximalWeights((encoder / scale).astype(dtype), recurrent.astype(dtype), norm * scale * scale)


def ista(
    weights: ProximalWeights, Y: Float[np.ndarray, "n K"], shrinkage: float, n_layers: int
) -> Float[np.ndarray, "n D"]:
    """Codes after `n_layers` soft-thresholdings of ISTA from zero, the first one, ``h_λ(W y)``, included.

    Parameters
    ----------
    weights : ProximalWeights
        From `ista_weights`.
    Y : array of shape (n, K)
        One observation a row.
    shrinkage : float
        The threshold ``λ``, in the units of the codes.
    n_layers : int
        How many soft-thresholdings; every number runs the same compiled loop.

    Returns
    -------
    array of shape (n, D)
        One code a row.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.proximal import ista, ista_weights
    >>> weights = ista_weights(np.eye(2))
    >>> ista(weights, np.array([[3.0, 0.05]]), 0.1, n_layers=20).round(3)
    array([[2.899, 0.   ]])
    """
    return _in_input_precision(_ista, weights, Y, shrinkage, n_layers)


def fista(
    weights: ProximalWeights,
    Y: Float[np.ndarray, "n K"],
    shrinkage: float,
    n_layers: int,
    *,
    late_momentum: bool = False,
) -> Float[np.ndarray, "n D"]:
    """Codes after `n_layers` soft-thresholdings of FISTA: ISTA with Nesterov's momentum.

    With ``t_{k+1} = (1 + √(1 + 4 t_k²))/2`` and ``t_1 = 1``, the first two layers are those of ISTA and the
    third is the first to differ.

    Parameters
    ----------
    weights : ProximalWeights
        From `ista_weights`.
    Y : array of shape (n, K)
        One observation a row.
    shrinkage : float
        The threshold ``λ``, in the units of the codes.
    n_layers : int
        How many soft-thresholdings; every number runs the same compiled loop.
    late_momentum : bool, default=False
        Whether momentum starts one layer later, as in the published curves: then three layers are those of ISTA.

    Returns
    -------
    array of shape (n, D)
        One code a row.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.proximal import fista, ista, ista_weights
    >>> weights = ista_weights(np.array([[1.0, 0.5], [0.5, 1.0]]))
    >>> Y = np.array([[1.0, -1.0]])
    >>> [bool(np.allclose(fista(weights, Y, 0.01, k), ista(weights, Y, 0.01, k))) for k in (1, 2, 3)]
    [True, True, False]
    """
    return _in_input_precision(_fista, weights, Y, shrinkage, n_layers, late_momentum)


def estimate_design_matrix(Y: ArrayLike, B: ArrayLike) -> Float[np.ndarray, "K D"]:
    """Estimate the design matrix from pairs: the ridge regression of observations on codes.

    Minimises ``‖Y − B Xᵀ‖²`` plus a ridge on codes brought to unit root mean square. The ridge, between 1e-12
    and 1 of the largest eigenvalue, is the one with the least generalised cross-validation error, so that
    fewer pairs than components, repeated columns and a single pair are all well posed, while plentiful clean
    pairs recover the matrix itself. A component that is never active gets a column of zeros.

    Parameters
    ----------
    Y : array of shape (n, K)
        Observations.
    B : array of shape (n, D)
        Codes.

    Returns
    -------
    array of shape (K, D)
        The estimate, in the common floating type of `Y` and `B`.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.proximal import estimate_design_matrix
    >>> X = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
    >>> B = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, -1.0], [0.5, 1.0]])
    >>> bool(np.allclose(estimate_design_matrix(B @ X.T, B), X))
    True
    """
    return estimate_design_matrix_and_noise(Y, B)[0]


def estimate_design_matrix_and_noise(
    Y: ArrayLike, B: ArrayLike
) -> tuple[Float[np.ndarray, "K D"], Float[np.ndarray, " K"]]:
    """The same estimate, and the mean square by which it misses each of the observed values of a new pair.

    That is the noise and the uncertainty of the matrix together, found by predicting every pair from the others.

    Parameters
    ----------
    Y : array of shape (n, K)
        Observations.
    B : array of shape (n, D)
        Codes.

    Returns
    -------
    design_matrix : array of shape (K, D)
        As by :func:`estimate_design_matrix`.
    noise_var : array of shape (K,)
        Mean squared leave-one-out residual of every observed value.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.proximal import estimate_design_matrix_and_noise
    >>> rng = np.random.default_rng(0)
    >>> B = rng.standard_normal((20, 10))
    >>> Y = B @ np.ones((10, 1)) + rng.standard_normal((20, 1))  # noise 1, and as much again from the ten unknowns
    >>> estimate_design_matrix_and_noise(Y, B)[1].round(1)
    array([1.8])
    """
    dtype = common_dtype(Y, B)
    observations, codes = np.asarray(Y, np.float64), np.asarray(B, np.float64)
    codes, code_scale = _unit_columns(codes)
    observations, observation_scale = _unit_columns(observations)
    left, singular, right = np.linalg.svd(codes, full_matrices=False)
    projected = left.T @ observations
    unexplained = np.sum((observations - left @ projected) ** 2)
    power = singular**2
    ridges = _RIDGES * (power[0] or 1.0)
    kept = power / (power + ridges[:, None])
    residual = unexplained + ((1 - kept) ** 2) @ np.sum(projected**2, axis=1)
    ridge = ridges[np.argmin(residual / (len(codes) - kept.sum(axis=1)) ** 2)]
    coefficients = right.T @ ((singular / (power + ridge))[:, None] * projected)
    coefficients[~codes.any(axis=0)] = 0.0
    # Residuals and their degrees of freedom by what is left out, not by differences: both may be as small as the ridge.
    left_out = ridge / (power + ridge)
    freedom = (left * left) @ left_out + np.maximum(1 - np.sum(left * left, axis=1), 0)
    residuals = left @ (left_out[:, None] * projected) + (observations - left @ projected)
    residuals = residuals / np.maximum(freedom, _SMALLEST_FREEDOM)[:, None]
    return (
        (coefficients.T * observation_scale[:, None] / code_scale).astype(dtype),
        (np.mean(residuals**2, axis=0) * observation_scale**2).astype(dtype),
    )


def _unit_columns(values: Float[np.ndarray, "n d"]) -> tuple[np.ndarray, np.ndarray]:
    """Columns at unit root mean square, and what they were divided by: 1 for a column of zeros."""
    largest = np.max(np.abs(values), axis=0)
    largest = np.where(largest > 0, largest, 1.0)
    spread = np.sqrt(np.mean((values / largest) ** 2, axis=0))
    scale = largest * np.where(spread > 0, spread, 1.0)
    return values / scale, scale


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
        previous, extrapolated, momentum = carry
        codes = soft_threshold(drive + extrapolated @ recurrent.T, shrinkage)
        following = _next_momentum(momentum)
        return codes, codes + (momentum - 1) / following * (codes - previous), following

    first = soft_threshold(drive, shrinkage)
    one = jnp.ones((), Y.dtype)
    second_momentum = jnp.where(late_momentum, one, _next_momentum(one))
    return jax.lax.fori_loop(1, n_layers, layer, (first, first, second_momentum))[0]


def _next_momentum(momentum: Float[Array, ""]) -> Float[Array, ""]:
    return (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
