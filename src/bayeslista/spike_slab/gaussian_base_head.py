"""A Gaussian base for dependent codes: its calibration on held-out pairs, and whether they prefer it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from bayeslista.spike_slab.calibration import log_score
from bayeslista.spike_slab.config import ESTIMATION
from bayeslista.spike_slab.denoiser import Denoised, denoise
from bayeslista.spike_slab.empirical_bayes import Statistics, add_statistics
from bayeslista.spike_slab.gaussian_base import GaussianBase, cavities, choose_shrinkage, fit_gaussian_base

_USUAL_LEAST = 0.01  # variance of a slab, in units of the codes that are not zero


class Head(NamedTuple):
    """Calibration of a Gaussian base on held-out pairs.

    Log-odds are multiplied by `inverse_temperature` and moved by `offset`; variances of slabs are multiplied by
    `widening`, and `least` is added to them.
    """

    inverse_temperature: float = 1.0
    offset: float = 0.0
    widening: float = 1.0
    least: float = 0.0


class Base(NamedTuple):
    """A Gaussian base and its head."""

    layer: GaussianBase
    head: Head


def structured_posterior(base: Base, Y: NDArray[Any]) -> Denoised:
    """Posterior moments under the Gaussian base, by its head."""
    inverse_temperature, offset, widening, least = base.head
    mean, var = cavities(base.layer, Y)
    posterior: Any = denoise(mean, var, base.layer.prior, inverse_temperature, offset, widening)
    posterior = jax.tree.map(np.asarray, posterior)
    return posterior._replace(slab_var=posterior.slab_var + posterior.slab_var.dtype.type(least))


def structured_head(held_out: list[tuple[Any, ...]]) -> Head:
    """The head of the best log score of pairs that each layer was not made from, with a price on a wrong variance."""

    def head(point: NDArray[Any]) -> Head:
        inverse_temperature, widening, least = np.exp(point[[0, 2, 3]]).tolist()
        return Head(inverse_temperature, float(point[1]), widening, _USUAL_LEAST * least)

    def loss(point: NDArray[Any]) -> float:
        scores, variance, error = [], 0.0, 0.0
        for layer, Y, B in held_out:
            posterior = structured_posterior(Base(layer, head(point)), Y)
            scores.append(float(np.mean(log_score(posterior, B))))
            variance += float(np.sum(_variances(posterior)))
            error += float(np.sum(squared_errors(posterior, B)))
        miss = np.log(variance / error) if error > 0 else 0.0
        return miss**2 - float(np.mean(scores)) + 1e-3 * float(np.sum(np.square(point)))

    corners = np.vstack([np.zeros(4), 0.4 * np.eye(4)])  # those of SciPy are too close for a slope to show
    options = {"maxfev": 120, "xatol": 0.02, "fatol": 1e-4, "initial_simplex": corners}
    return head(minimize(loss, np.zeros(4), method="Nelder-Mead", options=options).x)


def _variances(posterior: Denoised) -> NDArray[Any]:
    chance, mean = expit(np.asarray(posterior.log_odds)), np.asarray(posterior.slab_mean)
    return chance * (posterior.slab_var + (1 - chance) * mean**2)


def squared_errors(posterior: Denoised, B: NDArray[Any]) -> NDArray[Any]:
    """Squared error of the posterior mean, a signal."""
    mean = expit(np.asarray(posterior.log_odds)) * np.asarray(posterior.slab_mean)
    return np.sum((mean - B) ** 2, axis=1)


def choose_base(
    folds: list[Statistics],
    kept: tuple[NDArray[Any], NDArray[Any]],
    matrix_of: Callable[[Statistics], tuple[Any, ...]],
    model: tuple[Any, ...],
    independent: Callable[[NDArray[Any]], Denoised],
    dtype: np.dtype,
) -> Base | None:
    """A Gaussian base, if pairs that it was not made from prefer it by more than a standard error.

    A model is a matrix, its noise variance and the covariance of its rows, ``matrix_of`` that of some sums;
    ``independent`` is the posterior of independent codes.
    """
    others = [add_statistics(*(fold for j, fold in enumerate(folds) if j != i)) for i in range(len(folds))]
    models = [matrix_of(sums) for sums in others]
    amount, least, gain = choose_shrinkage(folds, *map(list, zip(*models, strict=True)))
    if gain < ESTIMATION.least_gain or amount > ESTIMATION.most_shrinkage:
        return None
    Y, B = kept
    fold = np.arange(len(B)) % len(folds)
    held_out: list[tuple[Any, ...]] = []
    structured = np.zeros(len(B))
    for i, (sums, (matrix, noise_var, design_covariance)) in enumerate(zip(others, models, strict=True)):
        layer = fit_gaussian_base(sums, matrix, noise_var, amount, least, design_covariance, dtype)
        rows = fold == i
        pairs = Y[rows].astype(dtype), B[rows].astype(dtype)
        structured[rows] = squared_errors(structured_posterior(Base(layer, Head()), pairs[0]), B[rows])
        held_out.append((layer, *pairs))
    saved = squared_errors(independent(Y), B) - structured
    if not saved.mean() > saved.std() / np.sqrt(len(saved)):
        return None
    matrix, noise_var, design_covariance = model
    layer = fit_gaussian_base(add_statistics(*folds), matrix, noise_var, amount, least, design_covariance, dtype)
    return Base(layer, structured_head(held_out))
