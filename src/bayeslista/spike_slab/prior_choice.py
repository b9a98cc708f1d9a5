r"""The prior of the codes: independent coefficients, a correlated base, or a mixture of scales; pairs choose.

An early look asks whether coefficients differ from each other at all, or go together; codes that are exchangeable keep
the independent prior, and nothing else is fitted. Otherwise each prior is fitted to two thirds of the pairs at a time,
and the one with the least mean relative error on the others answers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logsumexp

from bayeslista.numerics.batching import in_blocks
from bayeslista.spike_slab import scale_mixture_prior
from bayeslista.spike_slab.correlated_prior import (
    DAMPINGS,
    POWERS,
    CorrelatedPrior,
    compiled_layer,
    compiled_posterior,
    correlations_of,
    damped_covariance,
    linear_estimate,
    make_prior,
)
from bayeslista.spike_slab.denoiser import Denoised, with_spike
from bayeslista.spike_slab.learned_model import Assumed, Learned
from bayeslista.spike_slab.margins import differing_margins, fit_margins, margin_moments, slab_of
from bayeslista.spike_slab.scale_mixture_prior import (
    GaussianParts,
    ScaleMixture,
    fit_scale_mixture,
    moments,
    observe,
    posterior_parts,
)

PRIORS = ("independent", "correlated", "mixture")
N_FOLDS = 3
MOST_HELD_OUT, MANY_COEFFICIENTS, FEW_HELD_OUT = 300, 200, 45  # signals; fewer of many coefficients
LEAST_PAIRS = 12
LARGEST_DIMENSION = 2000  # of codes whose covariance is taken apart
MOST_ZEROS = 0.05  # share of exact zeros, up to which a mixture of Gaussians is offered: it has none
_LOOK_ROWS, _LOOK_ORDERS, _LOOK_DEVIATIONS = 300, 19, 5.0
_BLOCK = 8  # signals that EP takes together: they are computed one after another
_USUAL_SIZE = 2.0  # times the largest norm of a training signal is still usual
_USUAL_LEAST = 0.01  # variance of a slab, in units of the codes that are not zero
_WIDE_WEIGHT = 1e-3  # of a wide density in the log score of a head, so that no single coefficient decides
_WIDTHS = np.geomspace(0.3, 3.0, 13)  # candidates of what variances of a mixture are multiplied by


class Head(NamedTuple):
    """Calibration of the correlated prior's answers on pairs that they were not fitted to.

    Log-odds are multiplied by `inverse_temperature` and moved by `offset`; variances of slabs are multiplied by
    ``exp(width + slope · log posterior variance ratio)``, and `least` is added.
    """

    inverse_temperature: float = 1.0
    offset: float = 0.0
    width: float = 0.0
    slope: float = 0.0
    least: float = 0.0


class CorrelatedBase(NamedTuple):
    """A correlated prior, the matrix and noise it is seen through, and its head."""

    prior: CorrelatedPrior
    design_matrix: NDArray[Any]
    noise_var: float
    head: Head
    largest: float  # norm of a usual signal at most; others are scaled down to it, and their codes up


class MixtureBase(NamedTuple):
    """A mixture of scales, the matrix and noise it is seen through, and what its variances are multiplied by."""

    prior: ScaleMixture
    design_matrix: NDArray[Any]
    noise_var: float
    width: float


class World(NamedTuple):
    """Matrix and noise that pairs were learned to have; uncertainty of a learned matrix counts as noise."""

    design_matrix: NDArray[Any]
    noise_var: Any
    design_covariance: NDArray[Any] | None = None


class Choice(NamedTuple):
    """What was chosen, the mean relative error of every prior that was tried, and what answers (None: the layers)."""

    name: str
    scores: dict[str, float]
    base: CorrelatedBase | MixtureBase | None


Model = Callable[[NDArray[Any], NDArray[Any]], World]
Independent = Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], NDArray[Any]]


def choose_prior(
    Y: NDArray[Any],
    B: NDArray[Any],
    wanted: str,
    model: Model,
    independent: Independent,
    final: World,
    dtype: Any,
) -> Choice:
    """The prior for pairs: `model` learns matrix and noise of pairs, `independent` predicts by the layers."""
    if len(B) < LEAST_PAIRS or B.shape[1] < 2 or B.shape[1] > LARGEST_DIMENSION:
        return Choice("independent", {}, None)
    if wanted == "auto" and is_exchangeable(B):
        return Choice("independent", {}, None)
    tried = [wanted] if wanted != "auto" else list(PRIORS if np.mean(B == 0) <= MOST_ZEROS else PRIORS[:2])
    folds = _folds(len(B), B.shape[1])
    worlds = [model(Y[train], B[train]) for train, _ in folds]
    scores, fitted = {}, {}
    for name in tried:
        try:
            if name == "independent":
                answers = [independent(Y[train], B[train], Y[test]) for train, test in folds]
            else:
                fitted[name] = _FITS[name](Y, B, folds, worlds, final, dtype)
                answers = fitted[name].means
            scores[name] = relative_error(
                np.concatenate(answers), np.concatenate([B[test] for _, test in folds]), float(np.mean(B**2))
            )
        except (ValueError, FloatingPointError):  # LinAlgError is one: this prior does not suit the pairs
            scores[name] = np.inf
    # An error that is no number counts as infinite; among equals the simplest.
    best = min(scores, key=lambda name: scores[name] if np.isfinite(scores[name]) else np.inf)
    if not np.isfinite(scores[best]):
        best = "independent"
    return Choice(best, scores, fitted[best].make() if best in fitted else None)


def prior_name(base: CorrelatedBase | MixtureBase | None) -> str:
    """The name of the prior that answers."""
    return "independent" if base is None else PRIORS[1 + isinstance(base, MixtureBase)]


def with_margins(learned: Learned, assumed: Assumed, B: NDArray[Any]) -> Learned:
    """A probability and a slab for every coefficient, where codes show them to differ and none is given."""
    given = assumed.prob_active is not None or assumed.slab_var is not None
    if given or len(B) < LEAST_PAIRS or is_exchangeable(B):
        return learned
    margins = differing_margins(B)
    if margins is None:
        return learned
    slab = slab_of(margins)
    return learned._replace(prob_active=margins.prob_active, slab=slab, drawn=slab)


def is_exchangeable(B: NDArray[Any]) -> bool:
    """Whether codes look as if any of their entries could change places.

    Five statistics are compared with those of codes whose entries are in random order: how often coefficients are
    active, their means, their powers, the correlations between them, and the sizes of whole codes.
    """
    B = np.asarray(B[:_LOOK_ROWS], np.float64)
    random = np.random.default_rng(0)
    own = _differences(B)
    others = np.array([_differences(random.permutation(B.ravel()).reshape(B.shape)) for _ in range(_LOOK_ORDERS)])
    deviation = others.std(axis=0, ddof=1)
    return bool(np.all(own - others.mean(axis=0) <= _LOOK_DEVIATIONS * deviation + 1e-12 * np.abs(own)))


def _differences(B: NDArray[Any]) -> NDArray[Any]:
    centred = B - B.mean(axis=0)
    size = np.sqrt(np.sum(centred**2, axis=0))
    unit = centred / np.where(size > 0, size, 1.0)
    spread = [np.var(part.mean(axis=0)) for part in ((B != 0).astype(float), B, B**2)]
    # ‖RᵀR‖ of the correlations from the smaller product.
    return np.array([*spread, np.sum((unit @ unit.T) ** 2), np.var(np.sum(B**2, axis=1))])


def relative_error(found: NDArray[Any], B: NDArray[Any], power: float) -> float:
    """Mean ‖error‖ / ‖code‖; codes of next to nothing count as a thousandth of the usual power."""
    size = np.sqrt(np.maximum(np.sum(B**2, axis=1), 1e-3 * power * B.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.mean(np.sqrt(np.sum((found - B) ** 2, axis=1)) / size))


def dependent_answer(
    base: CorrelatedBase | MixtureBase, Y: NDArray[Any], seen: NDArray[Any] | None = None
) -> tuple[Denoised, GaussianParts | None]:
    """Posterior moments of every coefficient, and the mixture of Gaussians that a slab is where it is one.

    `seen` marks the sensors that have a value; those without have infinite noise.
    """
    if isinstance(base, CorrelatedBase):
        return calibrated(base, _correlated_posterior(base, Y, seen)), None
    parts = _mixture_posterior(base, Y, seen)
    parts = parts._replace(var=base.width * parts.var)
    mean, var = moments(parts)
    return _denoised(np.full_like(mean, np.inf), mean, var), parts


def draw_codes(base: MixtureBase, Y: NDArray[Any], n_draws: int, random: np.random.Generator) -> NDArray[Any]:
    """Joint draws under a mixture of scales, (n_draws, n, D)."""
    return scale_mixture_prior.draw_codes(
        base.prior, base.design_matrix, base.noise_var, Y, n_draws, random, base.width
    )


def calibrated(base: CorrelatedBase, found: Denoised) -> Denoised:
    """Answers by the head."""
    head = base.head
    _, prior_var = _margin_variances(base.prior)
    _, var = _moments(found)
    ratio = np.log(np.maximum(np.mean(var, axis=1, keepdims=True) / np.mean(prior_var), 1e-12))
    wider = np.exp(np.clip(head.width + head.slope * ratio, -4.0, 6.0))
    log_odds = head.inverse_temperature * found.log_odds + head.offset
    return Denoised(log_odds, found.slab_mean, wider * found.slab_var + head.least)


_with_spike: Callable[..., tuple[Any, Any]] = with_spike


def _denoised(*parts: Any) -> Denoised:
    return Denoised(*parts)


def _moments(found: Denoised) -> tuple[Any, Any]:
    log_odds, mean, var = (np.asarray(part) for part in found)
    return _with_spike(expit(log_odds), mean, var)


def _margin_variances(prior: CorrelatedPrior) -> tuple[Any, Any]:
    return prior.mean, prior.diagonal + np.sum(prior.factor**2, axis=1)


def _correlated_posterior(base: CorrelatedBase, Y: NDArray[Any], seen: NDArray[Any] | None) -> Denoised:
    """By EP in single precision, whose noise is at least 1e-5 of the signal: NMSE is the same to five digits."""
    size = np.maximum(np.sqrt(np.sum(np.where(np.isfinite(Y), Y, 0.0) ** 2, axis=1, keepdims=True)) / base.largest, 1.0)
    single = np.dtype(np.float32)
    prior: Any = jax.tree.map(lambda part: np.asarray(part, single), base.prior)
    matrix: Any = np.asarray(base.design_matrix, single)
    noise: Any = np.asarray(base.noise_var, single)
    if seen is None or np.all(seen):
        shared = compiled_layer(prior, matrix, noise)
        rows: Any = np.asarray(Y / size, single)
        found = in_blocks(lambda part: compiled_posterior(prior, matrix, noise, part, shared)[0], rows, _BLOCK)
    else:
        rows = np.asarray(np.where(seen, Y, 0.0) / size, single), np.asarray(seen, single)
        found = in_blocks(
            lambda part: compiled_posterior(prior, matrix, noise, part[0], None, part[1])[0], rows, _BLOCK
        )
    log_odds, mean, var = (np.asarray(part, np.float64) for part in found)
    return _denoised(log_odds, mean * size, var * size**2)


def _mixture_posterior(base: MixtureBase, Y: NDArray[Any], seen: NDArray[Any] | None) -> GaussianParts:
    """In closed form; signals with the same missing sensors share what is taken apart."""
    if seen is None or np.all(seen):
        return posterior_parts(observe(base.prior, base.design_matrix, base.noise_var), Y)
    patterns, which = np.unique(np.asarray(seen, bool), axis=0, return_inverse=True)
    found: Any = None
    for i, pattern in enumerate(patterns):
        rows = np.flatnonzero(which.ravel() == i)
        matrix = base.design_matrix * pattern[:, None]
        parts = posterior_parts(observe(base.prior, matrix, base.noise_var), np.where(pattern, Y[rows], 0.0))
        if found is None:
            found = GaussianParts(*(np.empty((len(Y), *part.shape[1:])) for part in parts))
        for whole, part in zip(found, parts, strict=True):
            whole[rows] = part
    return GaussianParts(*found)


def _folds(n: int, n_components: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Rows to fit and rows to predict, every third of them."""
    fold = np.arange(n) % N_FOLDS
    most = (FEW_HELD_OUT if n_components > MANY_COEFFICIENTS else MOST_HELD_OUT) // N_FOLDS
    return [(np.flatnonzero(fold != i), np.flatnonzero(fold == i)[:most]) for i in range(N_FOLDS)]


class _Fitted(NamedTuple):
    """Means of held-out codes, and what makes the prior of all pairs."""

    means: list[NDArray[Any]]
    make: Callable[[], CorrelatedBase | MixtureBase]


def _noise(world: World, covariance: NDArray[Any], mean: NDArray[Any]) -> float:
    """Noise variance with that which uncertainty of a learned matrix makes of codes with these moments."""
    noise = float(np.mean(world.noise_var))
    P = world.design_covariance
    return noise if P is None else noise * (1 + max(float(np.sum(P * covariance) + mean @ P @ mean), 0.0))


def _code_moments(B: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Covariance and mean of fresh codes: damped, since those that a matrix was learned from understate its part."""
    return damped_covariance(correlations_of(B), np.var(B, axis=0), POWERS[-2], DAMPINGS[-1]), B.mean(axis=0)


def _fit_correlated(
    Y: NDArray[Any], B: NDArray[Any], folds: Any, worlds: list[World], final: World, dtype: Any
) -> _Fitted:
    rho = fit_margins(B).scale_power
    margins = [fit_margins(B[train], rho) for train, _ in folds]
    correlations = [correlations_of(B[train]) for train, _ in folds]

    def error(power: float, damping: float) -> float:
        total = 0.0
        for (_, test), each, found, world in zip(folds, margins, correlations, worlds, strict=True):
            mean, variances = margin_moments(each)
            covariance = damped_covariance(found, variances, power, damping)
            noise = _noise(world, covariance, mean)
            guess = linear_estimate(covariance, mean, world.design_matrix, noise, Y[test])
            total += relative_error(guess, B[test], float(np.mean(B**2)))
        return total

    amounts = min(((power, damping) for power in POWERS for damping in DAMPINGS), key=lambda pair: error(*pair))
    raw, bases = [], []
    for (train, test), each, found, world in zip(folds, margins, correlations, worlds, strict=True):
        prior = make_prior(each, found, *amounts, dtype)
        bases.append(
            CorrelatedBase(prior, world.design_matrix, _noise(world, *_code_moments(B[train])), Head(), _largest(Y))
        )
        raw.append(_correlated_posterior(bases[-1], Y[test], None))
    head = _fit_head(bases, raw, [B[test] for _, test in folds])
    means = [
        np.asarray(_moments(calibrated(base._replace(head=head), found))[0])
        for base, found in zip(bases, raw, strict=True)
    ]

    def make() -> CorrelatedBase:
        prior = make_prior(fit_margins(B, rho), correlations_of(B), *amounts, dtype)
        return CorrelatedBase(prior, final.design_matrix, _noise(final, *_code_moments(B)), head, _largest(Y))

    return _Fitted(means, make)


def _largest(Y: NDArray[Any]) -> float:
    return _USUAL_SIZE * float(np.sqrt(np.max(np.sum(Y**2, axis=1), initial=0.0))) or 1.0


def _fit_head(bases: list[CorrelatedBase], raw: list[Denoised], codes: list[NDArray[Any]]) -> Head:
    """The head of the best log score, with a price on a wrong variance."""
    B = np.concatenate(codes)
    power = float(np.mean(B[B != 0] ** 2)) if np.any(B != 0) else 1.0

    def head(point: NDArray[Any]) -> Head:
        temperature, least = np.exp(point[[0, 4]]).tolist()
        return Head(temperature, float(point[1]), float(point[2]), float(point[3]), _USUAL_LEAST * power * least)

    def loss(point: NDArray[Any]) -> float:
        parts = [calibrated(base._replace(head=head(point)), found) for base, found in zip(bases, raw, strict=True)]
        found = _denoised(*(np.concatenate([getattr(part, name) for part in parts]) for name in Denoised._fields))
        mean, var = _moments(found)
        miss = np.log(np.sum(var) / max(float(np.sum((mean - B) ** 2)), 1e-300))
        return float(miss**2 - np.mean(_log_score(found, B, power)) + 1e-3 * np.sum(np.square(point)))

    corners = np.vstack([np.zeros(5), 0.4 * np.eye(5)])  # those of SciPy are too close for a slope to show
    options = {"maxfev": 150, "xatol": 0.02, "fatol": 1e-4, "initial_simplex": corners}
    return head(minimize(loss, np.zeros(5), method="Nelder-Mead", options=options).x)


def _log_score(found: Denoised, B: NDArray[Any], power: float) -> Any:
    own = _log_gaussian(B - found.slab_mean, found.slab_var) + np.log1p(-_WIDE_WEIGHT)
    density = np.logaddexp(own, _log_gaussian(B, 9 * power) + np.log(_WIDE_WEIGHT))
    return np.where(B != 0, log_expit(found.log_odds) + density, log_expit(-found.log_odds))


def _log_gaussian(distance: Any, var: Any) -> Any:
    return -0.5 * (distance**2 / var + np.log(2 * np.pi * var))


def _fit_mixture(
    Y: NDArray[Any], B: NDArray[Any], folds: Any, worlds: list[World], final: World, dtype: Any
) -> _Fitted:
    codes = np.concatenate([B[test] for _, test in folds])
    power = float(np.mean(B**2))

    def held_out(centred: bool) -> tuple[float, list[GaussianParts], list[NDArray[Any]]]:
        parts = []
        for (train, test), world in zip(folds, worlds, strict=True):
            mixture = fit_scale_mixture(B[train], np.random.default_rng(0), centred)
            base = MixtureBase(mixture, world.design_matrix, _noise(world, *_code_moments(B[train])), 1.0)
            parts.append(_mixture_posterior(base, Y[test], None))
        means = [moments(part)[0] for part in parts]
        return relative_error(np.concatenate(means), codes, power), parts, means

    tried = {centred: held_out(centred) for centred in (False, True)}
    centred = tried[True][0] < tried[False][0]
    _, parts, means = tried[centred]
    width = max(_WIDTHS.tolist(), key=partial(_score_of_width, parts, [B[test] for _, test in folds]))

    def make() -> MixtureBase:
        mixture = fit_scale_mixture(B, np.random.default_rng(0), centred)
        return MixtureBase(mixture, final.design_matrix, _noise(final, *_code_moments(B)), width)

    return _Fitted(means, make)


def _score_of_width(parts: list[GaussianParts], codes: list[NDArray[Any]], width: float) -> float:
    """Mean log score of mixtures whose variances are multiplied by a number."""
    score = 0.0
    for part, B in zip(parts, codes, strict=True):
        with np.errstate(divide="ignore"):
            joint = np.log(part.weight)[..., None] + _log_gaussian(B[:, None] - part.mean, width * part.var)
        score += float(np.sum(logsumexp(joint, axis=1)))
    return score


_FITS: dict[str, Callable[..., _Fitted]] = {"correlated": _fit_correlated, "mixture": _fit_mixture}
