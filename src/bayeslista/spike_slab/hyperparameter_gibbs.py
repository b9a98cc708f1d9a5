r"""Gibbs sampling of noise, slab size and share of active columns around the jump process, for one response.

Model, in units of the noise: :math:`y/\sigma = Z b + \varepsilon`, :math:`b_j \sim N(0, g)` with probability
:math:`\pi`, else zero; in units of the response the slab has the variance :math:`\tau = g \sigma^2`. In these units the
Gram matrix does not depend on a hyperparameter and :math:`h = Z^T y` only by the factor :math:`1/\sigma`. A stretch:

1. the support moves for a fixed time by the jump process, values integrated out;
2. :math:`\sigma^2 \mid S, g \sim IG(a + \nu/2,\; a_0 + \tfrac12 (y^T y - h_S^T E h_S))`, values integrated out, where
   the slab scales with the noise; :math:`\sigma^2 \mid b \sim IG(a + \nu/2,\; a_0 + \tfrac12 \|y - Z b\|^2)` where
   :math:`\tau` is given (then after 3);
3. :math:`b \mid S, \sigma, g \sim N(E h_S/\sigma, E)`;
4. :math:`g \mid b \sim IG(c + k/2,\; c_0 + \tfrac12 \sum b^2)` for k active columns;
5. :math:`\pi \mid S \sim \mathrm{Beta}(\alpha + k, \beta + D - k)`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bayeslista.spike_slab.jump_process import ALWAYS_ODDS, normal, rebuild, run, uniform

# Of a stretch: reached only where nearly collinear columns interpolate the response, and then round-off rules anyway.
_MOST_MOVES = 200_000
_LARGEST_CONDITION = 1e8  # g times the largest entry of G: with 2^-34, to which G is rounded, nothing is indefinite
_OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy"}


class HyperPrior(NamedTuple):
    """Priors of the hyperparameters, or their values where given (else NaN)."""

    noise_shape: float
    noise_scale: float
    slab_shape: float
    slab_scale: float
    prob_alpha: float
    prob_beta: float
    noise_var: float
    slab_var: float


class Trace(NamedTuple):
    """Draws at the ends of stretches: active columns and their values one after the other, and scalars."""

    n_active: NDArray[np.int64]  # (n,)
    columns: NDArray[np.int64]
    values: NDArray[np.float64]
    scalars: NDArray[np.float64]  # (n, 3): noise variance, slab variance, share of active columns


@njit(**_OPTIONS)
def gamma(shape, random):
    """A gamma number of unit scale by Marsaglia and Tsang (2000)."""
    boost = 1.0
    if shape < 1.0:
        boost = uniform(random) ** (1.0 / shape)
        shape += 1.0
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        x = normal(random)
        v = (1.0 + c * x) ** 3
        if v > 0.0 and math.log(uniform(random)) < 0.5 * x * x + d - d * v + d * math.log(v):
            return max(boost * d * v, 1e-300)


@njit(**_OPTIONS)
def gibbs(n, duration, G, h, yy, dof, given_odds, frozen, n_free, spec, prior, state, hyper, random, sums):
    """Run n stretches; ``hyper`` (σ², g, π) and the state go on, moments are added to ``sums`` (3, D).

    ``given_odds`` is NaN for columns whose odds are π/(1 − π), of which there are ``n_free``; frozen columns stay.
    """
    D = len(h)
    work, scaled, stretch = np.empty(D), np.empty(D), np.empty((3, D))
    n_active, scalars = np.empty(n, np.int64), np.empty((n, 3))
    columns, values = np.empty(16 * n, np.int64), np.empty(16 * n)
    filled, diagonal = 0, 0.0
    for j in range(D):
        diagonal = max(diagonal, G[j, j])
    largest = _LARGEST_CONDITION / max(diagonal, 1e-300)
    for t in range(n):
        sigma = math.sqrt(hyper[0])
        odds = hyper[2] / (1.0 - hyper[2])
        for j in range(D):
            prior.odds[0, j] = odds if math.isnan(given_odds[j]) else given_odds[j]
            if frozen[j]:
                prior.odds[0, j] = ALWAYS_ODDS
            prior.precision[0, j] = 1.0 / hyper[1]
            scaled[j] = h[j] / sigma
        rebuild(G, scaled, prior, state, work)
        # 1. Support.
        stretch[:] = 0.0
        run(_MOST_MOVES, duration, G, scaled, prior, state, random, stretch)
        if state.counts[3] > 0:
            rebuild(G, scaled, prior, state, work)
        scale = 1.0 / duration
        for part in range(3):
            for j in range(D):
                sums[part, j] += scale * stretch[part, j]
            scale *= sigma
        k = state.active[0]
        E = state.E[:k, :k].copy()
        E = 0.5 * (E + E.T)
        mean = state.m[:k] * sigma  # E h_S
        # 2. Noise, values integrated out.
        if math.isnan(spec.noise_var) and math.isnan(spec.slab_var):
            explained = 0.0
            for a in range(k):
                explained += h[state.active[1 + a]] * mean[a]
            rate = spec.noise_scale + 0.5 * max(yy - explained, 1e-10 * yy)
            hyper[0] = rate / gamma(spec.noise_shape + 0.5 * dof, random)
            sigma = math.sqrt(hyper[0])
        # 3. Values.
        z = np.empty(k)
        for a in range(k):
            z[a] = normal(random)
        b = mean / sigma
        if k > 0:
            b += np.linalg.cholesky(E) @ z
        if filled + k > len(columns):
            columns = np.concatenate((columns, np.empty(len(columns) + k, np.int64)))
            values = np.concatenate((values, np.empty(len(values) + k)))
        square, k_free = 0.0, 0
        for a in range(k):
            j = state.active[1 + a]
            columns[filled + a] = j
            values[filled + a] = sigma * b[a]
            square += b[a] * b[a]
            k_free += math.isnan(given_odds[j])
        # 2'. Noise given values.
        if math.isnan(spec.noise_var) and not math.isnan(spec.slab_var):
            left = yy
            for a in range(k):
                i = state.active[1 + a]
                fitted = 0.0
                for c in range(k):
                    fitted += G[i, state.active[1 + c]] * values[filled + c]
                left += values[filled + a] * (fitted - 2.0 * h[i])
            hyper[0] = (spec.noise_scale + 0.5 * max(left, 1e-10 * yy)) / gamma(spec.noise_shape + 0.5 * dof, random)
        filled += k
        scalars[t, 0], scalars[t, 1], scalars[t, 2] = hyper[0], hyper[0] * hyper[1], hyper[2]
        n_active[t] = k
        # 4. Slab size.
        if math.isnan(spec.slab_var):
            ratio = (spec.slab_scale + 0.5 * square) / gamma(spec.slab_shape + 0.5 * k, random)
            hyper[1] = min(max(ratio, 1e-16 * largest), largest)
        else:
            hyper[1] = min(spec.slab_var / hyper[0], largest)
            scalars[t, 1] = spec.slab_var
        # 5. Share of active columns.
        if n_free > 0:
            x = gamma(spec.prob_alpha + k_free, random)
            hyper[2] = min(max(x / (x + gamma(spec.prob_beta + n_free - k_free, random)), 1e-12), 1.0 - 1e-12)
    return Trace(n_active, columns[:filled].copy(), values[:filled].copy(), scalars)
