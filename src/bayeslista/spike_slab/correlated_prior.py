r"""Dependent codes, such as pixels: one Gaussian base with a spike and slab in place of every margin.

.. math:: p(\beta) \propto N(\beta; m, C) \prod_d \frac{f_d(\beta_d)}{N(\beta_d; m_d, C_{dd})},

with margins :math:`f_d` (`margins`), whose moments are m and the diagonal of C. Correlations R of the codes are damped,

.. math:: C \propto (1-\alpha)\,[(1-w) R + w\, R \circ R \circ R] + \alpha I,

which is positive definite, and removes the small correlations that few pairs show by chance; w and α are chosen by the
error of the linear estimate on held-out pairs. :math:`C = \mathrm{diag}\,\psi + U U^T` has low rank plus a diagonal,
and expectation propagation gives every factor :math:`f_d / N_d` a Gaussian site.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from bayeslista.numerics.compilation import fast_compiled
from bayeslista.spike_slab.denoiser import Denoised, SlabPrior, denoise, with_spike
from bayeslista.spike_slab.margins import Margins, margin_moments, prior_of

POWERS = (0.0, 0.5, 0.75, 1.0)  # candidates of w
DAMPINGS = (0.03, 0.1, 0.3)  # candidates of α
MOST_RANK = 200
# Digits, seeds 10 and 11: 6, 8 and 12 layers have .224, .222 and .222 (K = 100); ranks of 100, 150, 200 and 300 have
# .247, .214, .209 and .203, in 10, 14, 15 and 25 ms (8 layers).
N_LAYERS = 6
STEP = 0.7  # of the way to a new site
_FACTOR_STEPS = 5
# In units of the signal. A last noise of 1e-4 has .0195 in place of .0168 on digits (K = 250, seeds 10 to 12).
_FIRST_NOISE, _LAST_NOISE = 1e-2, 1e-5
_GRAM_BLOCKS = 4  # of rows: five eighths of the products of a symmetric matrix
_LEAST_CAVITY = 1e-3  # precision, in units of the base's


class CorrelatedPrior(NamedTuple):
    """A Gaussian base of low rank plus a diagonal, and the margins that take the place of its own."""

    mean: Float[np.ndarray, " D"]
    diagonal: Float[np.ndarray, " D"]  # ψ
    factor: Float[np.ndarray, "D q"]  # U
    margins: SlabPrior


class Sites(NamedTuple):
    """Gaussian sites of one signal, on β − m: precision s and precision times mean h."""

    precision: Float[Array, " D"]
    shift: Float[Array, " D"]


def damped_covariance(
    correlations: Float[np.ndarray, "D D"], variances: Float[np.ndarray, " D"], power: float, damping: float
) -> Float[np.ndarray, "D D"]:
    """C, whose diagonal are the variances."""
    shape = (1 - damping) * ((1 - power) * correlations + power * correlations**3)
    np.fill_diagonal(shape, 1.0)
    deviation = np.sqrt(variances)
    return shape * deviation * deviation[:, None]


def correlations_of(B: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "D D"]:
    """Correlations of codes; zero where a coefficient does not vary."""
    centred = np.asarray(B, np.float64) - np.mean(B, axis=0)
    size = np.sqrt(np.sum(centred**2, axis=0))
    floor = 1e-6 * np.max(size, initial=0.0)
    unit = np.where(size > floor, centred / np.where(size > floor, size, 1.0), 0.0)
    found = np.asarray(unit.T @ unit)
    np.fill_diagonal(found, 1.0)
    return found


def linear_estimate(
    covariance: Float[np.ndarray, "D D"],
    mean: Float[np.ndarray, " D"],
    design_matrix: Float[np.ndarray, "K D"],
    noise_var: float,
    Y: Float[np.ndarray, "n K"],
) -> Float[np.ndarray, "n D"]:
    """The posterior mean under the base alone."""
    passed = design_matrix @ covariance
    seen = passed @ design_matrix.T
    noise = max(noise_var, _LAST_NOISE * float(np.mean(np.diag(seen))), 1e-300)
    weights = np.linalg.solve(seen + noise * np.eye(len(seen)), (Y - design_matrix @ mean).T)
    return mean + weights.T @ passed


def make_prior(
    margins: Margins, correlations: Float[np.ndarray, "D D"], power: float, damping: float, dtype: Any = np.float64
) -> CorrelatedPrior:
    """The prior of given margins and correlations, its covariance of low rank plus a diagonal."""
    mean, variances = margin_moments(margins)
    variances = np.maximum(variances, 1e-9 * np.mean(variances) + 1e-300)
    diagonal, factor = principal_factors(damped_covariance(correlations, variances, power, damping))
    return CorrelatedPrior(mean.astype(dtype), diagonal.astype(dtype), factor.astype(dtype), prior_of(margins, dtype))


def principal_factors(
    covariance: Float[np.ndarray, "D D"], most_rank: int = MOST_RANK
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, "D q"]]:
    """ψ and U of a covariance, in units of its own deviations; its diagonal stays as it is."""
    size = np.sqrt(np.diag(covariance))
    shape = covariance / size / size[:, None]
    rank = min(most_rank, max(len(shape) - 1, 1))
    left = 1 / np.maximum(np.diag(np.linalg.inv(shape)), 1.0) if len(shape) > 1 else np.full(1, 0.5)
    for _ in range(_FACTOR_STEPS if rank < len(shape) - 1 else 1):
        values, vectors = np.linalg.eigh(shape - np.diag(left))
        values, vectors = values[-rank:], vectors[:, -rank:]
        keep = values > 1e-6
        factor = vectors[:, keep] * np.sqrt(values[keep])
        left = np.clip(1 - np.sum(factor**2, axis=1), 1e-3, 1.0)
    # The diagonal is one: rows of the factor that exceed it by the floor are scaled.
    factor *= np.sqrt(np.minimum((1 - left) / np.maximum(np.sum(factor**2, axis=1), 1e-300), 1.0))[:, None]
    if not factor.shape[1]:
        factor = np.zeros((len(shape), 1))
    left = 1 - np.sum(factor**2, axis=1)
    return left * size**2, factor * size[:, None]


class SharedLayer(NamedTuple):
    """The first layer, whose sites are zero: what is the same for all signals."""

    gain: Float[Array, "D K"]  # of β − m, by residuals
    var: Float[Array, " D"]


def shared_layer(
    prior: CorrelatedPrior, design_matrix: Float[Array, "K D"], noise_var: Float[Array, ""]
) -> SharedLayer:
    """The posterior of the base alone, at the noise of the first layer."""
    noise = _noises(prior, design_matrix, noise_var)[0]
    root, gain, var = _conditioned(design_matrix, prior.diagonal, prior.factor, noise)
    return SharedLayer(solve_triangular(root, gain, lower=True, trans=1).T, var)


def posterior(
    prior: CorrelatedPrior,
    design_matrix: Float[Array, "K D"],
    noise_var: Float[Array, ""],
    Y: Float[Array, "n K"],
    shared: SharedLayer | None = None,
    seen: Float[Array, "n K"] | None = None,
) -> tuple[Denoised, Float[Array, "n D"], Float[Array, "n D"]]:
    """Spike and slab of every coefficient of every signal, and the Gaussian cavities they come from.

    `seen` is one where a sensor has a value, else zero: its noise is infinite. Without it, `shared` saves a layer.
    """
    rows: Any = (Y, jnp.ones_like(Y) if seen is None else seen)
    noises = _noises(prior, design_matrix, noise_var)
    mean, var = jax.lax.map(lambda row: _cavities(prior, design_matrix, noises, shared, *row), rows)
    return denoise(mean, var, prior.margins), mean, var


compiled_layer = fast_compiled(shared_layer)
compiled_posterior = fast_compiled(posterior)


def _noises(prior: CorrelatedPrior, X: Any, noise_var: Any) -> Any:
    """Noise variance of every layer: it falls to that of the sensors, or to a small share of the signal."""
    power = jnp.mean((X**2) @ prior.diagonal + jnp.sum((X @ prior.factor) ** 2, axis=1))
    levels = jnp.geomspace(_FIRST_NOISE, _LAST_NOISE, N_LAYERS).astype(X.dtype)
    return jnp.maximum(noise_var, levels * power) + jnp.finfo(X.dtype).tiny


def _cavities(
    prior: CorrelatedPrior, X: Any, noises: Any, shared: SharedLayer | None, y: Any, seen: Any
) -> tuple[Any, Any]:
    """Cavities of one signal after all layers."""
    mean, diagonal, factor, margins = prior
    base_var = diagonal + jnp.sum(factor**2, axis=1)
    residual = (y - X @ mean) * seen
    X = X * seen[:, None] if shared is None else X

    def layer(sites: Sites, noise: Any) -> tuple[Sites, Any]:
        cavity = _cavity(prior, X, residual, sites, noise)
        return _new_sites(margins, mean, base_var, sites, cavity), None

    sites = Sites(jnp.zeros_like(mean), jnp.zeros_like(mean))
    if shared is not None:
        cavity = 1 / shared.var, (shared.gain @ residual) / shared.var
        sites, noises = _new_sites(margins, mean, base_var, sites, cavity), noises[1:]
    sites, _ = jax.lax.scan(layer, sites, noises[:-1])
    precision, shift = _cavity(prior, X, residual, sites, noises[-1])
    flat = jnp.maximum(precision - 1 / base_var, _LEAST_CAVITY / base_var)
    return mean + shift / flat, 1 / flat


def _cavity(prior: CorrelatedPrior, X: Any, residual: Any, sites: Sites, noise: Any) -> tuple[Any, Any]:
    """Precision c and shift g of the posterior of β − m without its own site."""
    _, diagonal, factor, _ = prior
    # Base and sites: C' = diag d + F Fᵀ, N = I + Uᵀ diag(s/(1+sψ)) U.
    shrunk = 1 / (1 + sites.precision * diagonal)
    d = diagonal * shrunk
    inner = _lower_gram(factor.T, sites.precision * shrunk) + jnp.eye(factor.shape[1], dtype=X.dtype)
    F = solve_triangular(_root(inner), (factor * shrunk[:, None]).T, lower=True).T
    prior_mean = d * sites.shift + F @ (F.T @ sites.shift)
    # Given y: mean + C'Xᵀ S⁻¹ (y − X mean).
    root, gain, var = _conditioned(X, d, F, noise)
    mean = prior_mean + gain.T @ solve_triangular(root, residual - X @ prior_mean, lower=True)
    return 1 / var - sites.precision, mean / var - sites.shift


def _conditioned(X: Any, d: Any, F: Any, noise: Any) -> tuple[Any, Any, Any]:
    """L of S = X C' Xᵀ + σ² I = L Lᵀ, L⁻¹ X C', and the diagonal of C' − C'Xᵀ S⁻¹ X C'; C' = diag d + F Fᵀ."""
    XF = X @ F
    root = _root(_lower_gram(X, d) + XF @ XF.T + noise * jnp.eye(len(X), dtype=X.dtype))
    gain = solve_triangular(root, X * d + XF @ F.T, lower=True)
    prior_var = d + jnp.sum(F**2, axis=1)
    return root, gain, jnp.maximum(prior_var - jnp.sum(gain**2, axis=0), jnp.finfo(X.dtype).eps * prior_var)


def _root(matrix: Any) -> Any:
    """Cholesky factor of a matrix of which only the lower triangle counts."""
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


def _lower_gram(A: Any, weight: Any) -> Any:
    """A diag(w) Aᵀ in its lower triangle, by blocks of rows: above them it is zero."""
    n = len(A)
    ends = [n * i // _GRAM_BLOCKS for i in range(_GRAM_BLOCKS + 1)] if n >= 16 * _GRAM_BLOCKS else [0, n]
    blocks = []
    for begin, end in pairwise(ends):
        part = (A[begin:end] * weight) @ A[:end].T
        blocks.append(jnp.pad(part, ((0, 0), (0, n - end))))
    return jnp.concatenate(blocks)


def _new_sites(margins: SlabPrior, base_mean: Any, base_var: Any, sites: Sites, cavity: tuple[Any, Any]) -> Sites:
    """Sites that match the moments of each margin times its cavity; where a precision would be negative, the old."""
    precision, shift = cavity
    flat = jnp.maximum(precision - 1 / base_var, _LEAST_CAVITY / base_var)
    found = denoise((base_mean + shift / flat)[None], 1 / flat[None], margins)
    mean, var = with_spike(jax.nn.sigmoid(found.log_odds), found.slab_mean, found.slab_var)
    mean, var = mean[0], jnp.maximum(var[0], 1e-9 * base_var)
    new = 1 / var - flat - 1 / base_var
    new_shift = (mean - base_mean) * (new + precision) - shift
    keep = (new > 0) & jnp.isfinite(new) & jnp.isfinite(new_shift)
    moved = (jnp.where(keep, STEP * (b - a), 0.0) for a, b in zip(sites, (new, new_shift), strict=True))
    return Sites(*(old + by for old, by in zip(sites, moved, strict=True)))
