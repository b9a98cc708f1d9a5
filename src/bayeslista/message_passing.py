r"""Spike-and-slab layers: from an observation to a spike and slab for every coefficient.

The problem is :math:`y = X\beta + N(0, \sigma^2 I)`, with :math:`\beta_d` zero with probability :math:`1 - p_d` and
else from a small mixture of Gaussians, the slab. Every layer replaces the prior of each coefficient by a Gaussian
factor (a *site*), solves the linear problem that is left exactly, takes each site out of the solution again (the
*cavity*), and asks the denoiser what prior and cavity say of the coefficient together, which makes the next site.

*Vector-AMP layers* have sites of one common variance on columns of about unit norm: one singular value decomposition
serves all signals and layers. *Expectation-propagation layers* have a variance for every site, which takes a
factorisation for every signal, and are more accurate. Both soften the log-odds of the denoiser a little, since cavities
are surer than they should be, and see a noise that reacts to how well the code so far explains the observation.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from bayeslista.denoiser import SlabPrior, denoise, prior_moments, with_spike

_COLUMN_FLOOR = 1e-4  # of the largest squared norm, so that normalising does not blow up columns of next to nothing
_SITE_FLOOR = 1e-3  # least precision of a site, in units of the prior's
_MISFIT_FLOOR, _MISFIT_CEILING = 0.1, 20.0
_FURTHEST_CAVITY = 1e8  # largest variance of a cavity, in units of its site's
_MOST_PRODUCTS = 2**21  # of pairs of rows
_ROUGH_NOISE = 1e-3  # in units of the signal, from which on single precision serves all but the last layers


class Problem(NamedTuple):
    """What all signals share: the design matrix, taken apart once, the noise and the prior."""

    design_matrix: Float[Array, "K D"]
    left: Float[Array, "K R"]  # singular value decomposition of the matrix with normalised columns
    singular: Float[Array, " R"]
    right: Float[Array, "R D"]
    column_unit: Float[Array, " D"]  # what a coefficient is divided by when its column is normalised
    noise_var: Float[Array, ""]
    prior: SlabPrior
    spread: Float[Array, "D D"] | None  # P: the rows of a learned matrix have covariance σ² P
    rough: "Problem | None"  # the same in single precision, where that is good enough for all but the last layers


class LayerScalars(NamedTuple):
    """What a layer of either kind can learn; one entry a layer where layers are stacked."""

    log_temper: Float[Array, "..."]  # of τ, by which log-odds are multiplied
    offset: Float[Array, "..."]  # b, added to the log-odds
    damping: Float[Array, "..."]  # log-odds of the share of the new sites
    log_noise: Float[Array, "..."]  # log of the factor on the noise, ...
    noise_by_misfit: Float[Array, "..."]  # ... how it reacts to the misfit, ...
    noise_by_count: Float[Array, "..."]  # ... and to how many coefficients are active
    log_site: Float[Array, "..."]  # log of the factor on new sites


class NetworkState(NamedTuple):
    """Sites, the cavities they last led to, and the belief so far, for every signal."""

    site_precision: Float[Array, "n D"]
    site_shift: Float[Array, "n D"]  # precision times mean
    cavity_mean: Float[Array, "n D"]
    cavity_var: Float[Array, "n D"]
    prob_active: Float[Array, "n D"]
    mean: Float[Array, "n D"]
    var: Float[Array, "n D"]


def make_problem(
    design_matrix: ArrayLike, noise_var: float, prior: SlabPrior, spread: ArrayLike | None = None
) -> Problem:
    """Take a design matrix apart, once for all signals.

    Parameters
    ----------
    design_matrix : array of shape (K, D)
        X. Columns may be zero, repeated or of any norm.
    noise_var : float
        σ². It is raised to what the precision can tell from nothing beside the signal that the prior expects.
    prior : SlabPrior
        What is known of the coefficients.
    spread : array of shape (D, D), optional
        P, where the matrix is learned: its rows have covariance σ² P.

    Returns
    -------
    Problem
        What the layers need, NumPy arrays in the floating type of the prior.

    Examples
    --------
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem
    >>> problem = make_problem([[3.0, 0.0]], 0.1, slab_prior(0.2, 0.0, 1.0, n_components=2))
    >>> problem.singular.shape, round(float(problem.column_unit[0]), 3)
    ((1,), 0.333)
    """
    X = np.asarray(design_matrix, np.float64)
    power = np.sum(X**2, axis=0)
    largest = np.max(power)
    column_unit = 1 / np.sqrt(power + _COLUMN_FLOOR * largest if largest > 0 else np.ones_like(power))
    left, singular, right = np.linalg.svd(X * column_unit, full_matrices=False)
    dtype = prior.mean.dtype
    parts: Any = [part.astype(dtype) for part in (X, left, singular, right, column_unit)]
    signal = _expected_power(X, prior)
    limits = np.finfo(dtype)
    noise = max(noise_var, float(limits.eps) ** 0.8 * signal, float(limits.tiny))
    parts += [np.asarray(noise, dtype), prior, None if spread is None else np.asarray(spread, dtype), None]
    problem = Problem(*parts)
    if dtype == np.float64 and noise_var >= _ROUGH_NOISE * signal:
        rough: Any = jax.tree.map(lambda part: part.astype(np.float32), problem)
        return problem._replace(rough=rough)
    return problem


@jax.jit
def start(problem: Problem, observations: Float[Array, "n K"]) -> NetworkState:
    """Sites that equal the prior's mean and variance, cavities that tell nothing, and no belief but the prior.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.

    Returns
    -------
    NetworkState
        Where the first layer begins.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem, start
    >>> problem = make_problem(np.eye(2), 0.1, slab_prior(0.5, 0.0, 4.0, n_components=2))
    >>> start(problem, np.ones((1, 2))).site_precision.tolist()
    [[0.5, 0.5]]
    """
    mean, var = (jnp.broadcast_to(part, (len(observations), part.shape[0])) for part in prior_moments(problem.prior))
    chance = jnp.broadcast_to(jax.nn.sigmoid(problem.prior.log_odds), mean.shape)
    var = jnp.maximum(var, jnp.finfo(var.dtype).tiny ** 0.5)
    return NetworkState(1 / var, mean / var, mean, _FURTHEST_CAVITY * var, chance, mean, var)


@jax.jit
def vector_layer(
    problem: Problem, observations: Float[Array, "n K"], state: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """One layer of vector AMP: sites of a common variance in the units of normalised columns.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    state : NetworkState
        Sites and belief so far; of the sites' variances only their mean counts.
    scalars : LayerScalars
        Of this layer.

    Returns
    -------
    NetworkState
        After the layer.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem, start, vector_layer
    >>> from bayeslista.spike_slab_network import default_scalars
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observations = np.array([[0.0, 2.0]])
    >>> plain = default_scalars(1, 0).vector_layers
    >>> scalars = type(plain)(*(part[0] for part in plain))
    >>> vector_layer(problem, observations, start(problem, observations), scalars).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    one = jax.tree.map(lambda part: part[None], scalars)
    return vector_layers(problem, observations, state, one)


@jax.jit
def propagation_layer(
    problem: Problem, observations: Float[Array, "n K"], state: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """One layer of expectation propagation: all sites at once, each with a variance of its own.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    state : NetworkState
        Sites and belief so far.
    scalars : LayerScalars
        Of this layer.

    Returns
    -------
    NetworkState
        After the layer.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import make_problem, propagation_layer, start
    >>> from bayeslista.spike_slab_network import default_scalars
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observations = np.array([[0.0, 2.0]])
    >>> stacked = default_scalars(0, 1).propagation_layers
    >>> scalars = type(stacked)(*(part[0] for part in stacked))
    >>> propagation_layer(problem, observations, start(problem, observations), scalars).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    one = jax.tree.map(lambda part: part[None], scalars)
    return propagation_layers(problem, observations, state, one)


def _update_sites(
    problem: Problem, products: Array | None, observations: Array, state: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """One layer of expectation propagation, given the products of rows that all layers share."""
    X = problem.design_matrix
    limits = jnp.finfo(observations.dtype)
    site_var = 1 / state.site_precision
    site_mean = state.site_shift * site_var
    residual = mean_residual(problem, observations, state)
    noise = _noise(problem, residual, state.mean, state.var, state.prob_active, scalars)
    known, pull = _linear_solution(X, products, site_var, noise, observations - site_mean @ X.T)
    known = jnp.maximum(known, state.site_precision / _FURTHEST_CAVITY)
    cavity_var = jnp.maximum(1 - known * site_var, 4 * limits.eps) / known
    cavity_mean = site_mean + pull / known
    prob_active, mean, var = _believe(problem.prior, cavity_mean, cavity_var, scalars)
    least = _SITE_FLOOR / jnp.maximum(prior_moments(problem.prior)[1], limits.tiny**0.5)
    site = (1 / jnp.maximum(var / cavity_var, limits.eps**0.75) - 1) / cavity_var
    site = jnp.maximum(site, least)
    shift = mean * (site + 1 / cavity_var) - cavity_mean / cavity_var
    share, factor_on_site = jax.nn.sigmoid(scalars.damping), jnp.exp(scalars.log_site)
    precision = share * factor_on_site * site + (1 - share) * state.site_precision
    shift = share * factor_on_site * shift + (1 - share) * state.site_shift
    return NetworkState(precision, shift, cavity_mean, cavity_var, prob_active, mean, var)


@jax.jit
def expected_residual(problem: Problem, observations: Float[Array, "n K"], state: NetworkState) -> Float[Array, " n"]:
    r"""Mean square that the codes are expected to leave of the observation, which EM takes for the noise.

    Sites and noise make a Gaussian posterior of covariance :math:`\Sigma`; the answer is
    :math:`(\|y - X \hat\beta\|^2 + \mathrm{tr}\, X \Sigma X^T) / K`.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    state : NetworkState
        After the last layer.

    Returns
    -------
    array of shape (n,)
        One mean square for each signal.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.denoiser import slab_prior
    >>> from bayeslista.message_passing import expected_residual, make_problem, start
    >>> problem = make_problem(np.eye(2), 1.0, slab_prior(1.0, 0.0, 1.0, n_components=2))
    >>> observations = np.array([[2.0, 2.0]])  # half is taken for noise, and a variance of one half is left
    >>> round(float(expected_residual(problem, observations, start(problem, observations))[0]), 3)
    1.5
    """
    X = problem.design_matrix
    residual = observations - (state.site_shift / state.site_precision) @ X.T
    noise = jnp.broadcast_to(problem.noise_var, (len(observations), 1))
    whitening, noise = _whitening(X, _products(X), 1 / state.site_precision, noise)
    left = jnp.einsum("nkl,nk->nl", whitening, jnp.einsum("nkl,nl->nk", whitening, residual))
    explained = jnp.mean(jnp.sum(whitening**2, axis=2), axis=1)
    return noise[:, 0] * (1 + noise[:, 0] * (jnp.mean(left**2, axis=1) - explained))


def _expected_power(X: Any, prior: SlabPrior) -> float:
    """Mean square of an observed value but for the noise."""
    return float(np.mean(X**2 @ np.asarray(prior_moments(prior)[1], np.float64)))


class _VectorState(NamedTuple):
    """What a layer of vector AMP hands on, in the units of normalised columns.

    Sites of a common variance are a linear function of the belief and the cavities, so what the matrix makes of them
    follows from what it makes of those: every layer multiplies by it once each way.
    """

    site_mean: Float[Array, "n D"]
    site_var: Float[Array, "n 1"]
    site_seen: Float[Array, "n R"]  # right singular vectors times the sites' means
    seen: Float[Array, "n R"]  # the same of the belief
    cavity_mean: Float[Array, "n D"]
    cavity_var: Float[Array, "n 1"]
    prob_active: Float[Array, "n D"]
    mean: Float[Array, "n D"]
    var: Float[Array, "n D"]


def vector_layers(problem: Problem, observations: Array, state: NetworkState, scalars: LayerScalars) -> NetworkState:
    """Layers of vector AMP; none leave the state as it is."""
    if not len(scalars.offset):
        return state
    unit, singular = problem.column_unit, problem.singular
    prior = problem.prior._replace(mean=problem.prior.mean / unit, var=problem.prior.var / unit**2)
    limits = jnp.finfo(observations.dtype)
    n_components = unit.shape[0]
    projected = observations @ problem.left
    outside = jnp.sum(observations**2, axis=1, keepdims=True) - jnp.sum(projected**2, axis=1, keepdims=True)
    outside = jnp.maximum(outside, 0.0)
    least = _SITE_FLOOR / jnp.mean(prior_moments(prior)[1])

    def layer(before: _VectorState, own: LayerScalars) -> tuple[_VectorState, None]:
        residual = jnp.sum((projected - singular * before.seen) ** 2, axis=1, keepdims=True) + outside
        noise = _noise(
            problem, residual / observations.shape[1], before.mean * unit, before.var * unit**2, before.prob_active, own
        )
        t, r = before.site_var, before.site_mean
        gain = 1 / (t * singular**2 + noise)
        known = jnp.sum(singular**2 * gain, axis=1, keepdims=True) / n_components
        known = jnp.maximum(known, 1 / (_FURTHEST_CAVITY * t))
        # 1 − t·known as a sum of what is not known, so that nothing cancels where the noise is small.
        unknown = (jnp.sum(noise * gain, axis=1, keepdims=True) + (n_components - singular.shape[0])) / n_components
        cavity_t = jnp.maximum(unknown, limits.eps) / known
        step = singular * gain * (projected - singular * before.site_seen) / known
        cavity_r = r + step @ problem.right
        prob_active, mean, var = _believe(prior, cavity_r, cavity_t, own)
        seen = mean @ problem.right.T
        left_over = jnp.mean(var, axis=1, keepdims=True) / cavity_t
        site = (1 / jnp.maximum(left_over, limits.eps**0.5) - 1) / cavity_t
        site = jnp.exp(own.log_site) * jnp.maximum(site, least)
        share = jax.nn.sigmoid(own.damping)
        site_t = 1 / (share * site + (1 - share) / t)
        weights = share * site_t * (1 / cavity_t + site), share * site_t / cavity_t, (1 - share) * site_t / t
        site_r = weights[0] * mean - weights[1] * cavity_r + weights[2] * r
        site_seen = weights[0] * seen - weights[1] * (before.site_seen + step) + weights[2] * before.site_seen
        return _VectorState(site_r, site_t, site_seen, seen, cavity_r, cavity_t, prob_active, mean, var), None

    site_mean, mean = state.site_shift / (state.site_precision * unit), state.mean / unit
    begin = _VectorState(
        site_mean,
        jnp.mean(1 / (state.site_precision * unit**2), axis=1, keepdims=True),
        site_mean @ problem.right.T,
        mean @ problem.right.T,
        state.cavity_mean / unit,
        jnp.mean(state.cavity_var / unit**2, axis=1, keepdims=True),
        state.prob_active,
        mean,
        state.var / unit**2,
    )
    end = jax.lax.scan(layer, begin, scalars)[0]
    precision = jnp.broadcast_to(1 / (end.site_var * unit**2), end.mean.shape)
    cavities = end.cavity_mean * unit, end.cavity_var * unit**2
    belief = end.prob_active, end.mean * unit, end.var * unit**2
    return NetworkState(precision, end.site_mean * unit * precision, *cavities, *belief)


def propagation_layers(
    problem: Problem, observations: Array, state: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """Layers of expectation propagation."""
    products = _products(problem.design_matrix)

    def layer(before: NetworkState, own: LayerScalars) -> tuple[NetworkState, None]:
        return _update_sites(problem, products, observations, before, own), None

    return jax.lax.scan(layer, state, scalars)[0]


def _believe(
    prior: SlabPrior, cavity_mean: Array, cavity_var: Array, scalars: LayerScalars
) -> tuple[Array, Array, Array]:
    """Probability of being active, mean and variance after a layer's denoiser."""
    belief = denoise(cavity_mean, cavity_var, prior, jnp.exp(scalars.log_temper), scalars.offset)
    prob_active = jax.nn.sigmoid(belief.log_odds)
    return prob_active, *with_spike(prob_active, belief.slab_mean, belief.slab_var)


def _products(X: Array) -> Array | None:
    """Products of all pairs of rows, as columns; none where they are too many to be worth the memory."""
    n_observed, n_components = X.shape
    if n_observed**2 * n_components > _MOST_PRODUCTS:
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
    misfit = jnp.einsum("nkl,nl->nk", whitening, residual)
    told = jnp.sum(whitened**2, axis=1), jnp.einsum("nkd,nk->nd", whitened, misfit)
    transposed = jnp.swapaxes(whitening, 1, 2)
    return told, (X, products, transposed @ whitened, jnp.einsum("nkl,nl->nk", transposed, misfit))


def _linear_solution_backward(kept: tuple[Any, ...], by: tuple[Array, Array]) -> tuple[Any, ...]:
    X, products, solved, solved_residual = kept
    by_known, by_pull = by
    by_residual = jnp.einsum("nkd,nd->nk", solved, by_pull)
    by_covariance = -jnp.einsum("nkd,nd,nld->nkl", solved, by_known, solved)
    by_covariance -= by_residual[:, :, None] * solved_residual[:, None, :]
    by_site_var = jnp.einsum("kd,nkd->nd", X, by_covariance @ X)
    by_noise = jnp.trace(by_covariance, axis1=1, axis2=2)[:, None]
    # The matrix is not learned by gradients.
    no_products = None if products is None else jnp.zeros_like(products)
    return jnp.zeros_like(X), no_products, by_site_var, by_noise, by_residual


_linear_solution.defvjp(_linear_solution_forward, _linear_solution_backward)


def mean_residual(problem: Problem, observations: Array, state: NetworkState) -> Array:
    """Mean square of what the code so far leaves of each signal."""
    return jnp.mean((observations - state.mean @ problem.design_matrix.T) ** 2, axis=1, keepdims=True)


def fit_of(
    problem: Problem, residual: Array, mean: Array, var: Array, prob_active: Array
) -> tuple[Array, Array, Array]:
    """How the code so far fits: log misfit, excess of active coefficients, and the noise that the matrix adds to."""
    noise = jnp.broadcast_to(problem.noise_var, residual.shape)
    if problem.spread is not None:
        bent = jnp.sum((mean @ problem.spread) * mean + var * jnp.diagonal(problem.spread), axis=1, keepdims=True)
        noise = noise * (1 + bent)
    expected = jnp.sum(jax.nn.sigmoid(problem.prior.log_odds))
    count = jnp.sum(prob_active, axis=1, keepdims=True) / expected - 1
    return jnp.log(jnp.minimum(residual / noise, _MISFIT_CEILING) + _MISFIT_FLOOR), count, noise


def _noise(
    problem: Problem, residual: Array, mean: Array, var: Array, prob_active: Array, scalars: LayerScalars
) -> Array:
    """The noise that a layer sees."""
    misfit, count, noise = fit_of(problem, residual, mean, var, prob_active)
    factor = scalars.log_noise + scalars.noise_by_misfit * misfit + scalars.noise_by_count * count
    return noise * jnp.exp(factor)
