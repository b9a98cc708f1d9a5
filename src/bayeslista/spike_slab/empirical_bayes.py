r"""Empirical Bayes: matrix, noise, sparsity and slab from sufficient statistics of the pairs.

Pairs enter through sums only (:class:`Statistics`), so chunks can be read one after another, or in different places,
and added up. The rest follows in closed form or by a short EM:

- the design matrix has a Gaussian prior of independent entries of variance :math:`\tau^2`; given codes ``B`` and
  observations ``Y`` its rows are Gaussian with mean :math:`Y^T B P` and covariance :math:`\sigma^2 P`,
  :math:`P = (B^T B + \sigma^2/\tau^2\, I)^{-1}`. Both variances maximise the evidence;
- the probability of being active is the posterior mean under Jeffreys' prior;
- the slab is a mixture of at most three Gaussians, as many as the Bayesian information criterion asks for and as are
  worth their time, fitted to the histogram of the nonzero coefficients on a grid of eighths of octaves.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from bayeslista.spike_slab.sensor_noise import (
    Whitening,
    diagonal_whitening,
    sensor_variances,
    worth_whitening,
)

__all__ = [
    "ENOUGH_FOR_A_MIXTURE",
    "MatrixPosterior",
    "SlabMixture",
    "Statistics",
    "add_statistics",
    "fit_slab",
    "gather_statistics",
    "learned_whitening",
    "matrix_posterior",
    "mean_prob_active",
    "noise_given_matrix",
    "observed_slab",
    "simulate_pairs",
    "slab_histogram",
    "whitened_statistics",
]

_Floats = NDArray[np.float64]

_STEPS_PER_OCTAVE, _OCTAVES = 8, 64  # of the histogram, and how far it reaches on either side of one
_BINS = 2 * _OCTAVES * _STEPS_PER_OCTAVE  # for either sign
_RIDGES = np.logspace(-14, 6, 81)
_REFINEMENTS = np.logspace(-0.25, 0.25, 21)
_RESIDUAL_FLOOR = 1e-14  # of the observations' power, below which rounding decides
ENOUGH_FOR_A_MIXTURE = 60
_LEAST_GAIN = 0.01  # of log likelihood a value, for a part of the slab to be worth its time
_EM_STEPS = 150
_NARROWEST_PART = 1e-4  # variance of a part of the slab, in units of its mean square


class Statistics(NamedTuple):
    """Sums over pairs; those of two sets of pairs add up to those of their union."""

    n_pairs: Float[np.ndarray, ""]
    observed_sum: Float[np.ndarray, " K"]
    code_sum: Float[np.ndarray, " D"]
    observed_gram: Float[np.ndarray, "K K"]  # YᵀY
    cross: Float[np.ndarray, "K D"]  # YᵀB
    code_gram: Float[np.ndarray, "D D"]  # BᵀB
    n_active: Float[np.ndarray, " D"]  # nonzero codes of each coefficient
    histogram: Float[np.ndarray, "3 bins"]  # count, sum and sum of squares of nonzero coefficients in each bin


class MatrixPosterior(NamedTuple):
    """The posterior about the design matrix: independent rows ``N(mean, noise_var · design_covariance)``."""

    mean: Float[np.ndarray, "K D"]
    design_covariance: Float[np.ndarray, "D D"]
    noise_var: float


class SlabMixture(NamedTuple):
    """The distribution of coefficients that are not zero: a mixture of Gaussians."""

    weight: Float[np.ndarray, " C"]
    mean: Float[np.ndarray, " C"]
    var: Float[np.ndarray, " C"]


def gather_statistics(Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"]) -> Statistics:
    """Sums over pairs, in double precision."""
    observations, codes = np.asarray(Y, np.float64), np.asarray(B, np.float64)
    return Statistics(
        np.array(float(len(codes))),
        observations.sum(axis=0),
        codes.sum(axis=0),
        observations.T @ observations,
        observations.T @ codes,
        codes.T @ codes,
        np.sum(codes != 0.0, axis=0).astype(np.float64),
        slab_histogram(codes),
    )


def slab_histogram(codes: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "3 bins"]:
    """Count, sum and sum of squares of the coefficients that are not zero, in each bin."""
    values = codes[codes != 0.0]
    return np.array([np.bincount(_bins(values), part, 2 * _BINS) for part in (np.ones_like(values), values, values**2)])


def add_statistics(first: Statistics, *others: Statistics) -> Statistics:
    """The statistics of all pairs together."""
    return Statistics(*(sum(parts[1:], parts[0]) for parts in zip(first, *others, strict=True)))


def whitened_statistics(sums: Statistics, whitening: Whitening | None) -> Statistics:
    """The statistics of observations after whitening."""
    if whitening is None:
        return sums
    T = whitening.transform
    return sums._replace(
        observed_sum=T @ sums.observed_sum, observed_gram=T @ sums.observed_gram @ T.T, cross=T @ sums.cross
    )


def matrix_posterior(sums: Statistics) -> MatrixPosterior:
    r"""The posterior of the design matrix, its noise and its own size chosen by the evidence.

    With eigenvalues :math:`\delta_i` of BᵀB and :math:`\lambda = \sigma^2/\tau^2`, the evidence at its best
    :math:`\sigma^2 = \mathrm{rss}/(NK)` is, but for a constant,

    .. math:: -\tfrac{NK}{2} \log \mathrm{rss}(\lambda) - \tfrac{K}{2} \sum_i \log(1 + \delta_i/\lambda), \qquad
        \mathrm{rss} = \|Y\|^2 - \mathrm{tr}(Y^T B P B^T Y).

    Entries of the matrix may be alike, or those of its columns times the scale of their coefficients: the evidence
    decides that, too.
    """
    power = np.diag(sums.code_gram) / max(float(sums.n_pairs), 1.0)
    size = np.sqrt(np.maximum(power, 1e-6 * np.max(power, initial=0.0)))
    scale = np.where(size > 0.0, size, 1.0)
    candidates = [_matrix_posterior(sums, each) for each in (np.full_like(scale, np.max(scale)), scale)]
    return max(candidates, key=lambda pair: pair[0])[1]


def _matrix_posterior(sums: Statistics, scale: _Floats) -> tuple[float, MatrixPosterior]:
    """Log evidence at its best and the posterior, where coefficients over `scale` meet columns of one size."""
    gram, cross = sums.code_gram / np.outer(scale, scale), sums.cross / scale
    eigenvalues, vectors = np.linalg.eigh(gram)
    # Fewer pairs than coefficients leave some of them zero, but for rounding.
    eigenvalues = np.where(eigenvalues > len(gram) * np.finfo(float).eps * eigenvalues[-1], eigenvalues, 0.0)
    information = eigenvalues > 0.0
    explained = np.sum((cross @ vectors) ** 2, axis=0)[information] / eigenvalues[information]
    total = float(np.trace(sums.observed_gram))
    least = max(total - float(np.sum(explained)), 0.0)
    n_observed = len(cross)
    n_numbers = max(float(sums.n_pairs), 1.0) * n_observed

    def residual(ridge: float) -> float:
        # What the ridge adds to the least that is left: rounding would decide a difference that is small.
        added = float(np.sum(explained * (ridge / (eigenvalues[information] + ridge))))
        return max(least + added, _RESIDUAL_FLOOR * total, 1e-300)

    def log_evidence(ridge: float) -> float:
        freedom = n_observed * float(np.sum(np.log1p(eigenvalues / ridge)))
        return -0.5 * (n_numbers * np.log(residual(ridge)) + freedom)

    unit = float(eigenvalues[-1]) or 1.0
    ridge = max((unit * _RIDGES).tolist(), key=log_evidence)
    ridge = max((ridge * _REFINEMENTS).tolist(), key=log_evidence)
    design_covariance = (vectors / (eigenvalues + ridge)) @ vectors.T
    mean = cross @ design_covariance / scale
    noise_var = residual(ridge) / n_numbers
    return log_evidence(ridge), MatrixPosterior(mean, design_covariance / np.outer(scale, scale), noise_var)


def noise_given_matrix(sums: Statistics, design_matrix: Float[np.ndarray, "K D"]) -> float:
    """Mean square of what the matrix leaves unexplained of the observations."""
    X, total = np.asarray(design_matrix, np.float64), float(np.trace(sums.observed_gram))
    left = total - 2 * float(np.sum(X * sums.cross)) + float(np.sum((X @ sums.code_gram) * X))
    return max(left, _RESIDUAL_FLOOR * total) / max(float(sums.n_pairs) * len(X), 1.0)


def learned_whitening(sums: Statistics, design_matrix: Float[np.ndarray, "K D"] | None) -> Whitening | None:
    """By the residuals of the sensors, where the evidence for different noise is strong."""
    X, freedom = design_matrix, float(sums.n_pairs)
    if X is None:
        X, covariance, _ = matrix_posterior(sums)
        freedom -= float(np.sum(covariance * sums.code_gram))
    squares = np.diag(sums.observed_gram) - 2 * np.sum(X * sums.cross, axis=1)
    squares = np.maximum(squares + np.sum((X @ sums.code_gram) * X, axis=1), 0.0)
    if not worth_whitening(float(np.mean(squares)), float(np.mean(np.diag(sums.observed_gram)))):
        return None
    found = sensor_variances(squares, freedom)
    return None if found is None else diagonal_whitening(np.sqrt(found / np.mean(found)))


def mean_prob_active(sums: Statistics) -> float:
    """Posterior mean of the probability that a coefficient is not zero, under Jeffreys' prior."""
    n_coefficients = float(sums.n_pairs) * len(sums.n_active)
    return (float(sums.n_active.sum()) + 0.5) / (n_coefficients + 1.0)


def fit_slab(histogram: Float[np.ndarray, "3 bins"]) -> SlabMixture:
    """A mixture of one to three Gaussians for the coefficients that are not zero."""
    count, place, within = _occupied(histogram)
    if not count.size:
        return SlabMixture(np.ones(1), np.zeros(1), np.ones(1))
    n_values = float(count.sum())
    power = float(count @ (place**2 + within)) / n_values
    mean = float(count @ place) / n_values
    var = max(power - mean**2, _NARROWEST_PART * power)
    single = SlabMixture(np.ones(1), np.array([mean]), np.array([var]))
    if n_values < ENOUGH_FOR_A_MIXTURE:
        return single
    std, best, best_score, price = np.sqrt(var), single, np.inf, np.log(n_values) + 2 * _LEAST_GAIN * n_values / 3
    starts = [
        single,
        SlabMixture(np.full(2, 0.5), mean + std * np.array([-1.0, 1.0]), np.full(2, 0.25 * var)),
        SlabMixture(np.full(2, 0.5), np.full(2, mean), var * np.array([0.2, 1.8])),
        SlabMixture(np.full(3, 1 / 3), mean + std * np.array([-1.2, 0.0, 1.2]), np.full(3, 0.2 * var)),
        SlabMixture(np.full(3, 1 / 3), np.full(3, mean), var * np.array([0.05, 0.5, 2.5])),
    ]
    for begin in starts:
        mixture, log_likelihood = _expectation_maximisation(begin, count, place, within, _NARROWEST_PART * power)
        score = (3 * len(begin.weight) - 1) * price - 2 * log_likelihood
        if score < best_score:
            best, best_score = mixture, score
    order = np.argsort(best.mean)
    return SlabMixture(*(part[order] for part in best))


def observed_slab(histogram: Float[np.ndarray, "3 bins"]) -> SlabMixture:
    """The coefficients that are not zero as they were seen, a narrow part for every bin, to draw codes from."""
    count, place, within = _occupied(histogram)
    return SlabMixture(count / count.sum(), place, within)


def simulate_pairs(
    design_matrix: Float[np.ndarray, "K D"],
    noise_var: float | Float[np.ndarray, " K"],
    prob_active: float | Float[np.ndarray, " D"],
    slab: SlabMixture,
    n: int,
    random: np.random.Generator,
    design_covariance: Float[np.ndarray, "D D"] | None = None,
) -> tuple[Float[np.ndarray, "n K"], Float[np.ndarray, "n D"]]:
    r"""Draw fresh codes and what would be observed of them, each with a matrix drawn from its posterior.

    A matrix whose rows have covariance :math:`\sigma^2 P` turns a code into its mean's image plus noise of variance
    :math:`\sigma^2\,\beta^T P \beta`, so it need not be drawn itself.
    """
    shape = n, design_matrix.shape[1]
    part = random.choice(len(slab.weight), shape, p=slab.weight / slab.weight.sum())
    place: Any = part if slab.mean.ndim == 1 else (part, np.arange(shape[1]))  # parts of each coefficient
    values = slab.mean[place] + np.sqrt(slab.var[place]) * random.standard_normal(shape)
    codes = np.where(random.random(shape) < prob_active, values, 0.0)
    sensors = np.ndim(noise_var) > 0
    variance = np.ones(n) if sensors else np.full(n, float(noise_var))
    if design_covariance is not None:
        variance = variance * (1.0 + np.maximum(np.einsum("nd,nd->n", codes @ design_covariance, codes), 0.0))
    noise = np.sqrt(variance)[:, None] * random.standard_normal((n, len(design_matrix)))
    if sensors:
        noise *= np.sqrt(noise_var)
    return codes @ np.asarray(design_matrix, np.float64).T + noise, codes


def _occupied(histogram: _Floats) -> tuple[_Floats, _Floats, _Floats]:
    """Count, mean and variance of the bins that are not empty."""
    count, total, square = (row[histogram[0] > 0] for row in histogram)
    place = total / count
    return count, place, np.maximum(square / count - place**2, 0.0)


def _bins(values: _Floats) -> NDArray[np.int64]:
    """Bin of every nonzero value: its sign, and its magnitude on a logarithmic grid with wide ends."""
    step = np.floor(_STEPS_PER_OCTAVE * np.log2(np.abs(values))).astype(np.int64) + _BINS // 2
    return np.clip(step, 0, _BINS - 1) + np.where(values > 0.0, _BINS, 0)


def _expectation_maximisation(
    mixture: SlabMixture, count: _Floats, place: _Floats, within: _Floats, narrowest: float
) -> tuple[SlabMixture, float]:
    """The mixture after EM on binned values, and its log likelihood."""
    log_likelihood = -np.inf
    for _ in range(_EM_STEPS):
        weight, mean, var = (part[:, None] for part in mixture)
        distance = (place - mean) ** 2 + within
        log_joint = np.log(weight) - 0.5 * (np.log(2 * np.pi * var) + distance / var)
        log_total = np.logaddexp.reduce(log_joint, axis=0)
        before, log_likelihood = log_likelihood, float(count @ log_total)
        mass = count * np.exp(log_joint - log_total)
        size = np.maximum(mass.sum(axis=1), 1e-8 * count.sum())
        new_mean = mass @ place / size
        new_var = np.sum(mass * ((place - new_mean[:, None]) ** 2 + within), axis=1) / size
        mixture = SlabMixture(size / size.sum(), new_mean, np.maximum(new_var, narrowest))
        if log_likelihood - before < 1e-8 * count.sum():
            break
    return mixture, log_likelihood
