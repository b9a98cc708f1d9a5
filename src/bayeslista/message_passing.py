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
from numpy.typing import ArrayLike, DTypeLike

_COLUMN_FLOOR = 1e-4  # of the largest squared norm, so that normalising does not blow up columns of next to nothing
_SITE_FLOOR = 1e-3  # least precision of a site, in units of the prior's
_MISFIT_FLOOR, _MISFIT_CEILING = 0.1, 20.0
_FURTHEST_CAVITY = 1e8  # largest variance of a cavity, in units of its site's
_ROUGH_NOISE = 1e-3  # in units of the signal, from which on single precision serves all but the last layers ...
_PRECISE_LAYERS = 2  # ... of which so many correct what it lost


class SlabPrior(NamedTuple):
    """A spike and a mixture of C Gaussians for each of D coefficients."""

    log_odds: Float[Array, " D"]
    log_weight: Float[Array, " C"]
    mean: Float[Array, "C D"]
    var: Float[Array, "C D"]


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


class HeadScalars(NamedTuple):
    """What makes the last layer's belief an answer: each slope meets (1, misfit, count)."""

    log_temper: Float[Array, "3"]
    offset: Float[Array, ""]
    log_widening: Float[Array, "3"]


class NetworkScalars(NamedTuple):
    """All that a network learns besides the problem itself."""

    vector_layers: LayerScalars
    propagation_layers: LayerScalars
    head: HeadScalars


class Denoised(NamedTuple):
    """What prior and cavity say together: log-odds of being active, and the slab's moments."""

    log_odds: Float[Array, "n D"]
    slab_mean: Float[Array, "n D"]
    slab_var: Float[Array, "n D"]


class NetworkState(NamedTuple):
    """Sites, the cavities they last led to, and the belief so far, for every signal."""

    site_precision: Float[Array, "n D"]
    site_shift: Float[Array, "n D"]  # precision times mean
    cavity_mean: Float[Array, "n D"]
    cavity_var: Float[Array, "n D"]
    prob_active: Float[Array, "n D"]
    mean: Float[Array, "n D"]
    var: Float[Array, "n D"]


def slab_prior(
    prob_active: ArrayLike,
    slab_mean: ArrayLike,
    slab_var: ArrayLike,
    weight: ArrayLike = 1.0,
    *,
    n_components: int,
    dtype: DTypeLike = np.float64,
) -> SlabPrior:
    """A prior from numbers for all coefficients, or from one column for each.

    Parameters
    ----------
    prob_active : array of shape () or (D,)
        Probability of not being zero; kept away from 0 and 1 by the precision of the numbers.
    slab_mean, slab_var : array of shape (), (C,) or (C, D)
        Means and variances of the slab's parts.
    weight : array of shape () or (C,)
        Their weights, which add up to one.
    n_components : int
        Number of coefficients D.
    dtype : dtype
        Floating type of the result.

    Returns
    -------
    SlabPrior
        With one column for each coefficient.

    Examples
    --------
    >>> from bayeslista.message_passing import slab_prior
    >>> prior = slab_prior(0.2, 0.0, 1.0, n_components=3)
    >>> prior.mean.shape, prior.log_odds.round(4).tolist()
    ((1, 3), [-1.3863, -1.3863, -1.3863])
    """
    edge = np.finfo(dtype).eps
    chance = np.clip(np.asarray(prob_active, np.float64), edge, 1 - edge)
    weights = np.atleast_1d(np.asarray(weight, np.float64))

    def columns(values: ArrayLike) -> Any:
        array = np.asarray(values, np.float64)
        upright = array if array.ndim == 2 else array.reshape(-1, 1)
        return np.broadcast_to(upright, (len(weights), n_components)).astype(dtype)

    log_odds: Any = np.broadcast_to(np.log(chance) - np.log1p(-chance), (n_components,)).astype(dtype)
    log_weight: Any = np.log(np.maximum(weights, np.finfo(dtype).tiny)).astype(dtype)
    return SlabPrior(log_odds, log_weight, columns(slab_mean), columns(slab_var))


@jax.jit
def prior_moments(prior: SlabPrior) -> tuple[Float[Array, " D"], Float[Array, " D"]]:
    """Mean and variance of every coefficient, spike included.

    Parameters
    ----------
    prior : SlabPrior
        What is known before any observation.

    Returns
    -------
    mean, var : array of shape (D,)
        The moments.

    Examples
    --------
    >>> from bayeslista.message_passing import prior_moments, slab_prior
    >>> mean, var = prior_moments(slab_prior(0.5, 2.0, 1.0, n_components=1))
    >>> round(float(mean[0]), 4), round(float(var[0]), 4)
    (1.0, 1.5)
    """
    weight = jnp.exp(prior.log_weight)[:, None]
    slab_mean = jnp.sum(weight * prior.mean, axis=0)
    slab_var = jnp.sum(weight * (prior.var + (prior.mean - slab_mean) ** 2), axis=0)
    return _with_spike(jax.nn.sigmoid(prior.log_odds), slab_mean, slab_var)


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
    >>> from bayeslista.message_passing import make_problem, slab_prior
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
def denoise(
    cavity_mean: Float[Array, "n D"],
    cavity_var: Float[Array, "n D"],
    prior: SlabPrior,
    temper: Float[Array, "..."] | float = 1.0,
    offset: Float[Array, "..."] | float = 0.0,
    widening: Float[Array, "..."] | None = None,
) -> Denoised:
    r"""The tempered posterior of coefficients of which Gaussian cavities ``N(r, t)`` tell.

    .. math::
        \ell = \tau \Big[\log\frac{p}{1-p} + b + \log \frac{\sum_c \pi_c N(r; \mu_c, s_c + t)}{N(r; 0, t)}\Big],

    and the moments of the mixture that the slab becomes. Only logarithms of probabilities are formed, and the ratio of
    densities without their difference, so neither a distant ``r`` nor a vanishing ``t`` loses digits.

    Parameters
    ----------
    cavity_mean, cavity_var : array of shape (n, D)
        r and t > 0.
    prior : SlabPrior
        What is known of the coefficients.
    temper, offset : array
        τ and b; 1 and 0 give the exact posterior.
    widening : array, optional
        Factor on ``t`` in the moments of the slab, not in the log-odds; none is 1.

    Returns
    -------
    Denoised
        Log-odds and slab.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.message_passing import denoise, slab_prior
    >>> belief = denoise(np.array([[0.0, 4.0]]), np.ones((1, 2)), slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> belief.slab_mean.tolist(), belief.slab_var.tolist()
    ([[0.0, 2.0]], [[0.5, 0.5]])
    """
    log_slab, slab_mean, slab_var = _slab_given(cavity_mean, cavity_var, prior)
    if widening is not None:
        _, slab_mean, slab_var = _slab_given(cavity_mean, cavity_var * widening, prior)
    return Denoised(temper * (prior.log_odds + offset + log_slab), slab_mean, slab_var)


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
    >>> from bayeslista.message_passing import make_problem, slab_prior, start
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
    >>> from bayeslista.message_passing import default_scalars, make_problem, slab_prior, start, vector_layer
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observations = np.array([[0.0, 2.0]])
    >>> plain = default_scalars(1, 0).vector_layers
    >>> scalars = type(plain)(*(part[0] for part in plain))
    >>> vector_layer(problem, observations, start(problem, observations), scalars).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    one = jax.tree.map(lambda part: part[None], scalars)
    return _vector_layers(problem, observations, state, one)


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
    >>> from bayeslista.message_passing import default_scalars, make_problem, propagation_layer, slab_prior, start
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observations = np.array([[0.0, 2.0]])
    >>> stacked = default_scalars(0, 1).propagation_layers
    >>> scalars = type(stacked)(*(part[0] for part in stacked))
    >>> propagation_layer(problem, observations, start(problem, observations), scalars).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    X = problem.design_matrix
    limits = jnp.finfo(observations.dtype)
    site_var = 1 / state.site_precision
    site_mean = state.site_shift * site_var
    residual = _residual(problem, observations, state)
    noise = _noise(problem, residual, state.mean, state.var, state.prob_active, scalars)
    known, pull = _linear_solution(X, site_var, noise, observations - site_mean @ X.T)
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


def run_layers(problem: Problem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> NetworkState:
    """All layers, those of vector AMP first; derivatives reach the scalars of the last kind only.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    scalars : NetworkScalars
        As many layers of each kind as there are entries.

    Returns
    -------
    NetworkState
        After the last layer.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.message_passing import default_scalars, make_problem, run_layers, slab_prior
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> run_layers(problem, np.array([[0.0, 2.0]]), default_scalars(2, 1)).mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    begin = state = start(problem, observations)
    if problem.rough is not None and begin.mean.dtype == np.float64:
        early, scalars = _split(scalars)
        single: Any = jax.tree.map(lambda part: part.astype(np.float32), (observations, begin, early))
        state = _all_layers(problem.rough, single[0], single[1], single[1], single[2])
        state = jax.tree.map(lambda part: part.astype(np.float64), state)
    return _all_layers(problem, observations, state, begin, scalars)


@jax.jit
def answer(problem: Problem, observations: Float[Array, "n K"], state: NetworkState, head: HeadScalars) -> Denoised:
    """The last cavities as a calibrated spike and slab.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    state : NetworkState
        After the last layer.
    head : HeadScalars
        How log-odds are scaled and slabs widened, by how each signal fits.

    Returns
    -------
    Denoised
        Log-odds and slab.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.message_passing import answer, default_scalars, make_problem, run_layers, slab_prior
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> observations, scalars = np.array([[0.0, 2.0]]), default_scalars(2, 1)
    >>> belief = answer(problem, observations, run_layers(problem, observations, scalars), scalars.head)
    >>> (belief.log_odds > 0).tolist()
    [[False, True]]
    """
    residual = _residual(problem, observations, state)
    misfit, count, _ = _fit_of(problem, residual, state.mean, state.var, state.prob_active)
    features = jnp.concatenate([jnp.ones_like(misfit), misfit, count], axis=1)
    temper = jnp.exp(features @ head.log_temper)[:, None]
    widening = jnp.exp(features @ head.log_widening)[:, None]
    belief = denoise(state.cavity_mean, state.cavity_var, problem.prior, 1.0, 0.0, widening)
    return belief._replace(log_odds=temper * belief.log_odds + head.offset)


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
    >>> from bayeslista.message_passing import expected_residual, make_problem, slab_prior, start
    >>> problem = make_problem(np.eye(2), 1.0, slab_prior(1.0, 0.0, 1.0, n_components=2))
    >>> observations = np.array([[2.0, 2.0]])  # half is taken for noise, and a variance of one half is left
    >>> round(float(expected_residual(problem, observations, start(problem, observations))[0]), 3)
    1.5
    """
    X = problem.design_matrix
    residual = observations - (state.site_shift / state.site_precision) @ X.T
    noise = jnp.broadcast_to(problem.noise_var, (len(observations), 1))
    whitening, noise = _whitening(X, 1 / state.site_precision, noise)
    left = jnp.einsum("nkl,nk->nl", whitening, jnp.einsum("nkl,nl->nk", whitening, residual))
    explained = jnp.mean(jnp.sum(whitening**2, axis=2), axis=1)
    return noise[:, 0] * (1 + noise[:, 0] * (jnp.mean(left**2, axis=1) - explained))


@jax.jit
def run_network(problem: Problem, observations: Float[Array, "n K"], scalars: NetworkScalars) -> Denoised:
    """All layers and the head.

    Parameters
    ----------
    problem : Problem
        What all signals share.
    observations : array of shape (n, K)
        One signal a row.
    scalars : NetworkScalars
        As many layers of each kind as there are entries.

    Returns
    -------
    Denoised
        Log-odds and slab of every coefficient.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.message_passing import default_scalars, make_problem, run_network, slab_prior
    >>> problem = make_problem(np.eye(2), 0.01, slab_prior(0.5, 0.0, 1.0, n_components=2))
    >>> run_network(problem, np.array([[0.0, 2.0]]), default_scalars(2, 1)).slab_mean.round(1).tolist()
    [[0.0, 2.0]]
    """
    return answer(problem, observations, run_layers(problem, observations, scalars), scalars.head)


def default_scalars(
    n_vector_layers: int, n_propagation_layers: int, dtype: DTypeLike = np.float64, *, tempered: bool = True
) -> NetworkScalars:
    """Scalars that serve untrained, on problems of many sizes.

    Parameters
    ----------
    n_vector_layers, n_propagation_layers : int
        How many layers of each kind.
    dtype : dtype
        Floating type of the result.
    tempered : bool, default=True
        Whether log-odds are softened where there are layers of expectation propagation; without it both kinds of
        layers are those of the textbook, but for damping, which suits slabs of a few discrete values.

    Returns
    -------
    NetworkScalars
        The same for all layers of a kind.

    Examples
    --------
    >>> from bayeslista.message_passing import default_scalars
    >>> default_scalars(4, 6).vector_layers.offset.shape
    (4,)
    """

    def stack(size: int, values: tuple[float, ...]) -> LayerScalars:
        parts: Any = [np.full(size, value, dtype) for value in values]
        return LayerScalars(*parts)

    propagation = (0.0, 0.0, 2.2, 0.0, 0.0, 0.0, 0.0)
    if n_propagation_layers and tempered:
        vector = (-0.14, -0.03, 2.3, 0.39, -0.20, 0.18, 0.0)
        propagation = (-0.27, 0.28, 2.2, -0.06, -0.06, -0.02, 0.11)
        slopes = ([0.21, 0.04, -0.26], 0.0, [-0.10, -0.04, 0.29])
    else:
        vector = (0.0, 0.0, 1.7, 0.0, 0.0, 0.0, 0.0)
        slopes = ([0.0, 0.0, 0.0], 0.0, [0.0, 0.0, 0.0])
    head: Any = [np.asarray(slope, dtype) for slope in slopes]
    layers = stack(n_vector_layers, vector), stack(n_propagation_layers, propagation)
    return NetworkScalars(*layers, HeadScalars(*head))


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


def _vector_layers(problem: Problem, observations: Array, state: NetworkState, scalars: LayerScalars) -> NetworkState:
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


def _all_layers(
    problem: Problem, observations: Array, state: NetworkState, begin: NetworkState, scalars: NetworkScalars
) -> NetworkState:
    """Layers of both kinds, each kind given up for where it began if it diverges."""
    state = _vector_layers(problem, observations, state, scalars.vector_layers)
    state = _unless_diverged(problem, observations, state, begin)
    if not len(scalars.propagation_layers.offset):
        return state
    # What a layer of one kind could learn from those of the other is not worth what it costs.
    state = jax.lax.stop_gradient(state)
    state = _propagation_layers(problem, observations, state, scalars.propagation_layers)
    return _unless_diverged(problem, observations, state, begin)


def _split(scalars: NetworkScalars) -> tuple[NetworkScalars, NetworkScalars]:
    """All layers but the last ones of the last kind, and those."""
    kind = "propagation_layers" if len(scalars.propagation_layers.offset) else "vector_layers"
    early = jax.tree.map(lambda part: part[:-_PRECISE_LAYERS], getattr(scalars, kind))
    late = jax.tree.map(lambda part: part[-_PRECISE_LAYERS:], getattr(scalars, kind))
    none = jax.tree.map(lambda part: part[:0], scalars.vector_layers)
    return scalars._replace(**{kind: early}), scalars._replace(**{"vector_layers": none, kind: late})


def _propagation_layers(
    problem: Problem, observations: Array, state: NetworkState, scalars: LayerScalars
) -> NetworkState:
    """Layers of expectation propagation."""

    def layer(before: NetworkState, own: LayerScalars) -> tuple[NetworkState, None]:
        return propagation_layer(problem, observations, before, own), None

    return jax.lax.scan(layer, state, scalars)[0]


def _unless_diverged(problem: Problem, observations: Array, state: NetworkState, begin: NetworkState) -> NetworkState:
    """Layers that explain a signal worse than nothing does, or end in no number, give way to where they began."""
    usable = _residual(problem, observations, state) <= _residual(problem, observations, begin) + problem.noise_var
    for part in state:
        usable = usable & jnp.isfinite(part).all(axis=1, keepdims=True)
    return NetworkState(*(jnp.where(usable, new, old) for new, old in zip(state, begin, strict=True)))


def _slab_given(r: Array, t: Array, prior: SlabPrior) -> tuple[Array, Array, Array]:
    """Log ratio of the densities of slab and spike, and the moments of the slab, given cavities."""
    limits = jnp.finfo(r.dtype)
    mu, s = prior.mean[:, None, :], prior.var[:, None, :]
    inverse = 1 / (s + t)
    share = s * inverse
    largest = 0.01 * jnp.sqrt(limits.max)
    score = jnp.clip(r * jax.lax.rsqrt(t), -largest, largest)
    exponent = prior.log_weight[:, None, None] + 0.5 * (score * score * share + (2 * r - mu) * (mu * inverse))
    lost = jnp.maximum(t * inverse, limits.tiny)
    part_mean = mu + share * (r - mu)
    part_var = t * share
    if len(mu) == 1:
        return exponent[0] + 0.5 * jnp.log(lost[0]), part_mean[0], part_var[0]
    highest = jax.lax.stop_gradient(jnp.max(exponent, axis=0))
    mass = jnp.sqrt(lost) * jnp.exp(exponent - highest)
    total = jnp.sum(mass, axis=0)
    part = mass / total
    mean = jnp.sum(part * part_mean, axis=0)
    return highest + jnp.log(total), mean, jnp.sum(part * (part_var + (part_mean - mean) ** 2), axis=0)


def _believe(
    prior: SlabPrior, cavity_mean: Array, cavity_var: Array, scalars: LayerScalars
) -> tuple[Array, Array, Array]:
    """Probability of being active, mean and variance after a layer's denoiser."""
    belief = denoise(cavity_mean, cavity_var, prior, jnp.exp(scalars.log_temper), scalars.offset)
    prob_active = jax.nn.sigmoid(belief.log_odds)
    return prob_active, *_with_spike(prob_active, belief.slab_mean, belief.slab_var)


def _whitening(X: Array, site_var: Array, noise: Array) -> tuple[Array, Array]:
    """Inverse of the lower Cholesky factor of the observations' covariance, and the noise in it, if need be raised."""
    gram = jnp.einsum("kd,nd,ld->nkl", X, site_var, X)
    size = jnp.max(jnp.diagonal(gram, axis1=1, axis2=2), axis=1, keepdims=True)
    noise = jnp.maximum(noise, 4 * jnp.finfo(gram.dtype).eps * len(X) * size)
    identity = jnp.broadcast_to(jnp.eye(len(X), dtype=gram.dtype), gram.shape)
    factor = jnp.linalg.cholesky(gram + noise[:, :, None] * identity)
    # This inverse and a product are faster than one triangular solve with as many columns as there are coefficients.
    return solve_triangular(factor, identity, lower=True), noise


@jax.custom_vjp
def _linear_solution(X: Array, site_var: Array, noise: Array, residual: Array) -> tuple[Array, Array]:
    r"""The diagonal of XᵀA⁻¹X, and XᵀA⁻¹ times a residual, for A = X diag(site_var) Xᵀ + n I.

    The derivative by hand takes two products of matrices, and none of the triangular solves of automatic derivatives.
    """
    return _linear_solution_forward(X, site_var, noise, residual)[0]


def _linear_solution_forward(
    X: Array, site_var: Array, noise: Array, residual: Array
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    whitening, _ = _whitening(X, site_var, noise)
    whitened = whitening @ X
    misfit = jnp.einsum("nkl,nl->nk", whitening, residual)
    told = jnp.sum(whitened**2, axis=1), jnp.einsum("nkd,nk->nd", whitened, misfit)
    transposed = jnp.swapaxes(whitening, 1, 2)
    return told, (X, transposed @ whitened, jnp.einsum("nkl,nl->nk", transposed, misfit))


def _linear_solution_backward(kept: tuple[Array, ...], by: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
    X, solved, solved_residual = kept
    by_known, by_pull = by
    by_residual = jnp.einsum("nkd,nd->nk", solved, by_pull)
    by_covariance = -jnp.einsum("nkd,nd,nld->nkl", solved, by_known, solved)
    by_covariance -= by_residual[:, :, None] * solved_residual[:, None, :]
    by_site_var = jnp.einsum("kd,nkd->nd", X, by_covariance @ X)
    by_noise = jnp.trace(by_covariance, axis1=1, axis2=2)[:, None]
    # The matrix is not learned by gradients.
    return jnp.zeros_like(X), by_site_var, by_noise, by_residual


_linear_solution.defvjp(_linear_solution_forward, _linear_solution_backward)


def _with_spike(prob_active: Array, slab_mean: Array, slab_var: Array) -> tuple[Array, Array]:
    return prob_active * slab_mean, prob_active * (slab_var + (1 - prob_active) * slab_mean**2)


def _residual(problem: Problem, observations: Array, state: NetworkState) -> Array:
    """Mean square of what the code so far leaves of each signal."""
    return jnp.mean((observations - state.mean @ problem.design_matrix.T) ** 2, axis=1, keepdims=True)


def _fit_of(
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
    misfit, count, noise = _fit_of(problem, residual, mean, var, prob_active)
    factor = scalars.log_noise + scalars.noise_by_misfit * misfit + scalars.noise_by_count * count
    return noise * jnp.exp(factor)
