"""EP layers [Hernández-Lobato, Hernández-Lobato and Suárez, 2015]: parallel expectation propagation, a variance a site.

They take one Cholesky factorisation for every signal and layer, and are more accurate than VAMP layers.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from bayeslista.spike_slab.config import BUDGET, NUMERICS
from bayeslista.spike_slab.denoiser import prior_moments
from bayeslista.spike_slab.model import (
    LayerScalars,
    NetworkState,
    SpikeSlabProblem,
    layer_noise,
    mean_residual,
    posterior_moments,
)


def ep_layers(
    problem: SpikeSlabProblem, observations: Array, state: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """EP layers."""
    products = _products(problem.design_matrix)

    def layer(before: NetworkState, own: LayerScalars) -> tuple[NetworkState, None]:
        return _update_sites(problem, products, observations, before, own), None

    return jax.lax.scan(layer, state, scalars)[0]


def _update_sites(
    problem: SpikeSlabProblem, products: Array | None, observations: Array, state: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """One EP layer, given the products of rows that all layers share."""
    X = problem.design_matrix
    limits = jnp.finfo(observations.dtype)
    site_var = 1 / state.site_precision
    site_mean = state.site_shift * site_var
    # Noise of the layer: σ² times a factor of the chi-square and the number of active coefficients.
    residual = mean_residual(problem, observations, state)
    noise = layer_noise(problem, residual, state.mean, state.var, state.prob_active, scalars)
    # Linear step with A = X diag(v) Xᵀ + σ² I: information diag(XᵀA⁻¹X) and score XᵀA⁻¹(y − X m).
    information, score = _linear_solution(X, products, site_var, noise, observations - site_mean @ X.T)
    information = jnp.maximum(information, state.site_precision / NUMERICS.largest_cavity)
    # Cavity: the site divided out of the Gaussian posterior.
    cavity_var = jnp.maximum(1 - information * site_var, 4 * limits.eps) / information
    cavity_mean = site_mean + score / information
    # Denoising: posterior moments of prior times cavity.
    prob_active, mean, var = posterior_moments(problem.prior, cavity_mean, cavity_var, scalars)
    # New site: precision 1/v − 1/ṽ, at least a share of the prior's; shift so that means agree; damping.
    least = NUMERICS.site_floor / jnp.maximum(prior_moments(problem.prior)[1], limits.tiny**0.5)
    site = (1 / jnp.maximum(var / cavity_var, limits.eps**0.75) - 1) / cavity_var
    site = jnp.maximum(site, least)
    shift = mean * (site + 1 / cavity_var) - cavity_mean / cavity_var
    share, factor_on_site = jax.nn.sigmoid(scalars.damping), jnp.exp(scalars.log_site)
    precision = share * factor_on_site * site + (1 - share) * state.site_precision
    shift = share * factor_on_site * shift + (1 - share) * state.site_shift
    return NetworkState(precision, shift, cavity_mean, cavity_var, prob_active, mean, var)


def _products(X: Array) -> Array | None:
    """Products of all pairs of rows, as columns; none where they are too many to be worth the memory."""
    n_observed, n_components = X.shape
    if n_observed**2 * n_components > BUDGET.most_products:
        return None
    return (X[:, None, :] * X).reshape(n_observed**2, n_components).T


def _whitening(X: Array, products: Array | None, site_var: Array, noise: Array) -> tuple[Array, Array]:
    """Inverse of the lower Cholesky factor of the observations' covariance, and the noise in it, if need be raised."""
    if products is None:
        gram = jnp.einsum("kd,nd,ld->nkl", X, site_var, X)
    else:
        # One product of large matrices is three times as fast as one of small matrices for each signal.
        gram = (site_var @ products).reshape(len(site_var), len(X), len(X))
    size = jnp.max(jnp.diagonal(gram, axis1=1, axis2=2), axis=1, keepdims=True)
    noise = jnp.maximum(noise, 4 * jnp.finfo(gram.dtype).eps * len(X) * size)
    identity = jnp.broadcast_to(jnp.eye(len(X), dtype=gram.dtype), gram.shape)
    factor = jnp.linalg.cholesky(gram + noise[:, :, None] * identity, symmetrize_input=False)
    # This inverse and a product are faster than one triangular solve with as many columns as there are coefficients.
    return solve_triangular(factor, identity, lower=True), noise


@jax.custom_vjp
def _linear_solution(
    X: Array, products: Array | None, site_var: Array, noise: Array, residual: Array
) -> tuple[Array, Array]:
    r"""The diagonal of XᵀA⁻¹X, and XᵀA⁻¹ times a residual, for A = X diag(site_var) Xᵀ + n I.

    The derivative by hand takes two products of matrices, and none of the triangular solves of automatic derivatives.
    """
    return _linear_solution_forward(X, products, site_var, noise, residual)[0]


def _linear_solution_forward(
    X: Array, products: Array | None, site_var: Array, noise: Array, residual: Array
) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    whitening, _ = _whitening(X, products, site_var, noise)
    whitened = whitening @ X
    log_chi_square = jnp.einsum("nkl,nl->nk", whitening, residual)
    held_out = jnp.sum(whitened**2, axis=1), jnp.einsum("nkd,nk->nd", whitened, log_chi_square)
    transposed = jnp.swapaxes(whitening, 1, 2)
    return held_out, (X, products, transposed @ whitened, jnp.einsum("nkl,nl->nk", transposed, log_chi_square))


def _linear_solution_backward(kept: tuple[Any, ...], by: tuple[Array, Array]) -> tuple[Any, ...]:
    X, products, solved, solved_residual = kept
    by_information, by_score = by
    by_residual = jnp.einsum("nkd,nd->nk", solved, by_score)
    by_covariance = -jnp.einsum("nkd,nd,nld->nkl", solved, by_information, solved)
    by_covariance -= by_residual[:, :, None] * solved_residual[:, None, :]
    by_site_var = jnp.einsum("kd,nkd->nd", X, by_covariance @ X)
    by_noise = jnp.trace(by_covariance, axis1=1, axis2=2)[:, None]
    # The matrix is not learned by gradients.
    no_products = None if products is None else jnp.zeros_like(products)
    return jnp.zeros_like(X), no_products, by_site_var, by_noise, by_residual


_linear_solution.defvjp(_linear_solution_forward, _linear_solution_backward)
