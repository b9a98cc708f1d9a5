r"""Codes without exact zeros: a mixture of Gaussians, each of them at several scales, whose posterior is closed form.

.. math:: \beta \mid c, j \sim N(0, a_j^2 C_c), \qquad
    P(c, j \mid y) \propto \pi_{cj}\, N(y; 0, a_j^2 X C_c X^T + \sigma^2 I).

One eigendecomposition :math:`X C_c X^T = V \Lambda V^T` a part serves all scales and signals:

.. math:: E[\beta \mid y, c, j] = C_c X^T V\, \frac{a_j^2}{a_j^2 \Lambda + \sigma^2}\, V^T y,

.. math:: \mathrm{Var}[\beta \mid y, c, j] = a_j^2\, \mathrm{diag}\, C_c
    - \sum_k (C_c X^T V)_{\cdot k}^2 \frac{a_j^4}{a_j^2 \lambda_k + \sigma^2}.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from bayeslista.spike_slab.correlated_prior import correlations_of, damped_covariance

N_SCALES = 5
SCALE_QUANTILES = (0.02, 0.98)  # of ‖β‖/√D, between which the scales are
MOST_PARTS, SIGNALS_A_PART = 8, 60
N_STARTS = 6  # random starts, joined into one mixture
_EM_STEPS = 10
_PRIOR_SIGNALS = 20.0  # ν: what the pooled covariance counts in that of a part
_POWER, _DAMPING = 0.6, 0.05  # w and α of the pooled covariance
_LEAST_NOISE = 1e-10  # in units of the signal
KEPT_PARTS = 10  # of the mixture of each signal, the likeliest; the others are joined


class ScaleMixture(NamedTuple):
    """Covariances of the parts, the scales, and the weight of every pair of them."""

    covariance: Float[np.ndarray, "c D D"]
    scale: Float[np.ndarray, " j"]
    weight: Float[np.ndarray, "c j"]
    mean: Float[np.ndarray, " D"]  # of all parts


class Observed(NamedTuple):
    """A scale mixture seen through a matrix: what all signals share."""

    readout: Float[np.ndarray, "c D K"]  # C_c Xᵀ V
    basis: Float[np.ndarray, "c K K"]  # V
    eigenvalue: Float[np.ndarray, "c K"]
    prior_var: Float[np.ndarray, "c D"]
    scale: Float[np.ndarray, " j"]
    log_weight: Float[np.ndarray, "c j"]
    noise_var: float
    mean: Float[np.ndarray, " D"]
    expected: Float[np.ndarray, " K"]  # X m


class GaussianParts(NamedTuple):
    """A mixture of Gaussians for every coefficient; weights are those of the signal."""

    weight: Float[np.ndarray, "n p"]
    mean: Float[np.ndarray, "n p D"]
    var: Float[np.ndarray, "n p D"]


def fit_scale_mixture(B: Float[np.ndarray, "n D"], random: np.random.Generator, centred: bool = False) -> ScaleMixture:
    """The joined mixtures of several random starts of EM, about zero, or about the mean of the codes."""
    B = np.asarray(B, np.float64)
    centre = B.mean(axis=0) if centred else np.zeros(B.shape[1])
    B = B - centre
    n = len(B)
    size = np.sqrt(np.mean(B**2, axis=1))
    ends = np.quantile(size[size > 0], SCALE_QUANTILES) if np.any(size > 0) else np.ones(2)
    largest = max(float(ends[1]), 1e-300)
    scale: Any = np.geomspace(max(float(ends[0]), 1e-6 * largest), largest, N_SCALES)
    unit = B / np.maximum(size, scale[0])[:, None]
    variances = np.mean(unit**2, axis=0)
    variances = variances + 1e-6 * np.mean(variances) + 1e-300
    pooled = damped_covariance(correlations_of(unit), variances, _POWER, _DAMPING)
    n_parts = int(np.clip(n // SIGNALS_A_PART, 1, MOST_PARTS))
    n_starts = N_STARTS if n_parts > 1 else 1
    found = [_expectation_maximisation(B, unit, scale, pooled, n_parts, random) for _ in range(n_starts)]
    covariance, weight = (np.concatenate(part) for part in zip(*found, strict=True))
    return ScaleMixture(covariance, scale, weight / n_starts, centre)


def _expectation_maximisation(
    B: Any, unit: Any, scale: Any, pooled: Any, n_parts: int, random: np.random.Generator
) -> tuple[Any, Any]:
    """Covariances and weights after so many steps from a random partition of the signals."""
    n, D = B.shape
    covariance = np.empty((n_parts, D, D))
    partition = random.permutation(n) % n_parts
    for c in range(n_parts):
        rows = unit[partition == c]
        covariance[c] = (rows.T @ rows + _PRIOR_SIGNALS * pooled) / (len(rows) + _PRIOR_SIGNALS)
    weight = np.full((n_parts, len(scale)), 1 / (n_parts * len(scale)))
    for _ in range(_EM_STEPS):
        joint = np.log(weight) + np.stack([_log_densities(B, each, scale) for each in covariance], axis=1)
        share = np.exp(joint - logsumexp(joint, axis=(1, 2), keepdims=True))
        mass = share.sum(axis=0)
        weight = (mass + 0.1) / (mass + 0.1).sum()
        for c in range(n_parts):
            rows = B * np.sqrt(share[:, c] @ (1 / scale**2))[:, None]
            covariance[c] = (rows.T @ rows + _PRIOR_SIGNALS * pooled) / (mass[c].sum() + _PRIOR_SIGNALS)
    return covariance, weight


def _log_densities(B: Any, covariance: Any, scale: Any) -> Any:
    """Of every code at every scale, but for a constant."""
    D = len(covariance)
    root = np.linalg.cholesky(covariance)
    square = np.sum(np.linalg.solve(root, B.T) ** 2, axis=0)[:, None]
    log_volume = 2 * np.sum(np.log(np.diag(root))) + D * np.log(scale**2)
    return -0.5 * (square / scale**2 + log_volume)


def observe(mixture: ScaleMixture, design_matrix: Float[np.ndarray, "K D"], noise_var: float) -> Observed:
    """What all signals share that are seen through a matrix."""
    X = np.asarray(design_matrix, np.float64)
    bases, eigenvalues, readouts = [], [], []
    for covariance in mixture.covariance:
        passed = X @ covariance
        eigenvalue, basis = np.linalg.eigh(passed @ X.T)
        bases.append(basis)
        eigenvalues.append(np.maximum(eigenvalue, 0.0))
        readouts.append(passed.T @ basis)
    largest = float(np.max(eigenvalues)) * float(mixture.scale[-1]) ** 2
    noise = max(noise_var, _LEAST_NOISE * largest, 1e-300)
    variances = np.stack([np.diag(each) for each in mixture.covariance])
    stacks = np.stack(readouts), np.stack(bases), np.stack(eigenvalues)
    return Observed(*stacks, variances, mixture.scale, np.log(mixture.weight), noise, mixture.mean, X @ mixture.mean)


def part_weights(observed: Observed, Y: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n c j"]:
    """P(c, j | y)."""
    Y = Y - observed.expected
    joint = np.empty((len(Y), *observed.log_weight.shape))
    for c, (basis, eigenvalue) in enumerate(zip(observed.basis, observed.eigenvalue, strict=True)):
        squares = (Y @ basis) ** 2
        variances = observed.scale[:, None] ** 2 * eigenvalue + observed.noise_var
        joint[:, c] = observed.log_weight[c] - 0.5 * (squares @ (1 / variances).T + np.sum(np.log(variances), axis=1))
    return np.exp(joint - logsumexp(joint, axis=(1, 2), keepdims=True))


def posterior_parts(observed: Observed, Y: Float[np.ndarray, "n K"], kept: int = KEPT_PARTS) -> GaussianParts:
    """The posterior of every signal: its likeliest parts, and one Gaussian with the moments of all others."""
    Y = np.asarray(Y, np.float64)
    weights = part_weights(observed, Y)
    n, n_parts, n_scales = weights.shape
    D = observed.readout.shape[1]
    flat = weights.reshape(n, -1)
    kept = min(kept, flat.shape[1])
    order = np.argsort(-flat, axis=1)[:, :kept]
    place = np.full(flat.shape, kept)  # where a part goes: its own place, or that of the others
    np.put_along_axis(place, order, np.broadcast_to(np.arange(kept), order.shape), axis=1)
    weight, first, second = np.zeros((n, kept + 1)), np.zeros((n, kept + 1, D)), np.zeros((n, kept + 1, D))
    for c in range(n_parts):
        projected = (Y - observed.expected) @ observed.basis[c]
        squared = observed.readout[c] ** 2
        for j in range(n_scales):
            column = c * n_scales + j
            rows = np.flatnonzero(flat[:, column] > 1e-6)
            if not rows.size:
                continue
            power = observed.scale[j] ** 2
            gain = power / (power * observed.eigenvalue[c] + observed.noise_var)
            mean = (projected[rows] * gain) @ observed.readout[c].T
            var = np.maximum(power * (observed.prior_var[c] - squared @ gain), 1e-12 * power * observed.prior_var[c])
            target, share = place[rows, column], flat[rows, column]
            weight[rows, target] += share
            first[rows, target] += share[:, None] * mean
            second[rows, target] += share[:, None] * (var + mean**2)
    empty = weight <= 0
    safe = np.where(empty, 1.0, weight)[..., None]
    mean = first / safe
    var = np.maximum(second / safe - mean**2, 1e-12 * np.max(second, axis=1, keepdims=True) + 1e-300)
    return GaussianParts(weight / weight.sum(axis=1, keepdims=True), mean + observed.mean, var)


def moments(parts: GaussianParts) -> tuple[Float[np.ndarray, "n D"], Float[np.ndarray, "n D"]]:
    """Mean and variance of every coefficient."""
    weight = parts.weight[..., None]
    mean = np.sum(weight * parts.mean, axis=1)
    return mean, np.sum(weight * (parts.var + (parts.mean - mean[:, None]) ** 2), axis=1)


def draw_codes(
    mixture: ScaleMixture,
    design_matrix: Float[np.ndarray, "K D"],
    noise_var: float,
    Y: Float[np.ndarray, "n K"],
    n_draws: int,
    random: np.random.Generator,
    width: float = 1.0,
) -> Float[np.ndarray, "s n D"]:
    """Joint draws: part and scale first, then a draw of the prior, corrected by what it misses of the observation.

    Distances from the mean of a part are multiplied by the root of the width.
    """
    observed = observe(mixture, design_matrix, noise_var)
    weights = part_weights(observed, np.asarray(Y, np.float64)).reshape(len(Y), -1)
    roots = np.linalg.cholesky(mixture.covariance)
    X, n_scales = np.asarray(design_matrix, np.float64), len(mixture.scale)
    draws = np.empty((n_draws, len(Y), X.shape[1]))
    for i, y in enumerate(np.asarray(Y, np.float64)):
        chosen = random.choice(weights.shape[1], n_draws, p=weights[i] / weights[i].sum())
        for column in np.unique(chosen):
            c, j = divmod(int(column), n_scales)
            rows, scale = np.flatnonzero(chosen == column), float(mixture.scale[j])
            prior = scale * random.standard_normal((len(rows), X.shape[1])) @ roots[c].T
            noise = np.sqrt(observed.noise_var) * random.standard_normal((len(rows), len(X)))
            gain = scale**2 / (scale**2 * observed.eigenvalue[c] + observed.noise_var)

            def correct(missed: Any, c: int = c, gain: Any = gain) -> Any:
                return (missed @ observed.basis[c] * gain) @ observed.readout[c].T

            draws[rows, i] = (
                mixture.mean + correct(y - observed.expected) + np.sqrt(width) * (prior - correct(prior @ X.T + noise))
            )
    return draws
