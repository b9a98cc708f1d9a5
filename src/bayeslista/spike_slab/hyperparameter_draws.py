r"""Noise, sparsity and slab from observations alone: their posterior, drawn together with the codes of all signals.

A sweep draws the support and values of every signal by the jump process, then each hyperparameter given all codes:

.. math::
    \sigma^2 \sim IG(\tfrac{nK}{2}, \tfrac{\|Y - B X^T\|^2}{2}), \quad
    p \sim Beta(1 + k, D + nD - k), \quad
    \tau \sim IG(\tfrac{k + w}{2}, \tfrac{\sum b^2 + w\tau_0}{2})

with k active coefficients in all; the prior of p has the weight of a signal without any, that of τ of w coefficients.
Where values are enough to say, a mixture of Gaussians takes the place of τ after the first sweeps (stochastic EM
[Celeux and Diebolt, 1985]): it is fitted to the values drawn in a stretch of sweeps, and used in the next.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayeslista.spike_slab.chains import draw_values, new_state
from bayeslista.spike_slab.empirical_bayes import ENOUGH_FOR_A_MIXTURE, SlabMixture, fit_slab, slab_histogram
from bayeslista.spike_slab.exact import SlabOdds, slab_odds
from bayeslista.spike_slab.hyperparameters import single_slab
from bayeslista.spike_slab.jump_process import rebuild, run

# Of more coefficients fewer signals, n D² up to a number: each says more, and takes the sampler longer.
LEAST_SIGNALS, MOST_SIGNALS, SIGNALS_WORK = 8, 300, 1e6
# Noise and sparsity come to their level with few signals. Supports of all of them then settle in the first third of the
# other sweeps, as many as n D times their number allows. At K = 50 and D = 100 that takes 0.8 s instead of 5 s for 150
# sweeps of 300 signals; log noise and log P(active) are off by 0.03 instead of 0.02 (results/calibration.md).
OPENING_SIGNALS, OPENING_SWEEPS = 24, 90
LEAST_SWEEPS, MOST_SWEEPS, SWEEPS_WORK = 40, 100, 4e5
STRETCH = 20  # sweeps between two fits of the mixture
DURATION = 1.0  # of the jump process in a sweep, in which every active column tries three swaps
MOST_MOVES = 2000  # of a signal in a sweep
# First noise as a share of the observations' power: from above it descends slowly where observations are few. At
# K = 20 log noise is off by 2.1 in the end, from a half of the power by 2.6, as after 150 sweeps of 300 signals.
FIRST_PROB_ACTIVE, FIRST_NOISE = 0.1, 0.03
PRIOR_WEIGHT = 0.5


class Hyperparameters(NamedTuple):
    """P(active), noise variance and slab: geometric means of draws, and standard deviations of their logs."""

    prob_active: float
    noise_var: float
    slab_var: float  # of a single Gaussian, which comes before the mixture
    log_std: NDArray[np.float64]
    slab: SlabMixture


def _draw_codes(
    G: NDArray[Any],
    H: NDArray[Any],
    prior: SlabOdds,
    state: Any,
    random: NDArray[np.uint64],
    codes: NDArray[Any],
    parts: NDArray[np.int64],
) -> None:
    """Advance the chain of each signal from the support of its codes, and draw new ones and their parts of the slab."""
    work, nothing = np.empty(len(G)), np.zeros((3, len(G)))
    for h, code, part in zip(H, codes, parts, strict=True):
        support = np.flatnonzero(code)
        state.active[0] = len(support)
        state.active[1 : 1 + len(support)] = support
        state.component[:] = part
        rebuild(G, h, prior, state, work)
        run(MOST_MOVES, DURATION, G, h, prior, state, random, nothing)
        code[:] = 0.0
        draw_values(state, random, code)
        part[:] = state.component


def draw_hyperparameters(
    X: NDArray[np.float64],
    Y: NDArray[np.float64],
    given: Sequence[float | None],
    random: np.random.Generator,
    report: Callable[[str, int, int], None] = lambda *_: None,
) -> Hyperparameters:
    """The posterior of P(active), noise variance and slab variance, those that are given held."""
    most = int(np.clip(SIGNALS_WORK / X.shape[1] ** 2, LEAST_SIGNALS, MOST_SIGNALS))
    Y = Y[random.permutation(len(Y))[:most]]
    missing = np.isnan(Y)
    Y = np.where(missing, 0.0, Y)
    (n, K), D = Y.shape, X.shape[1]
    first_noise = FIRST_NOISE * float(np.mean(Y**2)) or 1.0
    power = first_noise * K / (float(np.sum(X**2)) or 1.0)
    starts = FIRST_PROB_ACTIVE, first_noise, power / (given[0] or FIRST_PROB_ACTIVE)
    values = [start if value is None else float(value) for start, value in zip(starts, given, strict=True)]
    first_slab = values[2]
    gram, products = X.T @ X, Y @ X
    codes, parts, state = np.zeros((n, D)), np.zeros((n, D), np.int64), new_state(D)
    bits = random.integers(2**63, size=4).astype(np.uint64)
    slab: SlabMixture | None = None  # until values are enough for it, the Gaussian of variance τ
    seen, draws = slab_histogram(codes), []
    n_later = int(np.clip(SWEEPS_WORK / (n * D), LEAST_SWEEPS, MOST_SWEEPS))
    n_sweeps = OPENING_SWEEPS + n_later
    for sweep in range(n_sweeps):
        report("hyperparameters", sweep, n_sweeps)
        n = len(Y) if sweep >= OPENING_SWEEPS else min(len(Y), OPENING_SIGNALS)
        prob_active, noise_var, slab_var = values
        mixture = single_slab(slab_var) if slab is None else slab
        prior: SlabOdds = slab_odds(prob_active, mixture.weight, mixture.mean, mixture.var, D)
        used = codes[:n]
        _draw_codes(gram / noise_var, products[:n] / noise_var, prior, state, bits, used, parts[:n])
        n_active, energy = np.count_nonzero(used), float(np.sum(used**2))
        if missing.any():  # missing values are drawn as well, given code and noise
            drawn_values = codes @ X.T + np.sqrt(noise_var) * random.standard_normal(Y.shape)
            Y = np.where(missing, drawn_values, Y)
            products = Y @ X
        residual = float(np.sum((Y[:n] - used @ X.T) ** 2))
        drawn = (
            random.beta(1 + n_active, D + n * D - n_active),
            max(residual, 1e-12 * n * K * first_noise) / random.chisquare(n * K),
            (energy + PRIOR_WEIGHT * first_slab) / random.chisquare(n_active + PRIOR_WEIGHT),
        )
        values = [new if value is None else float(value) for new, value in zip(drawn, given, strict=True)]
        draws.append(values)
        # Stochastic EM: the mixture that suits the values of the last stretch best.
        if given[2] is None and sweep >= STRETCH:
            seen = seen + slab_histogram(used) / STRETCH
            if (sweep + 1) % STRETCH == 0:
                slab = fit_slab(seen) if seen[0].sum() >= ENOUGH_FOR_A_MIXTURE else None
                seen, parts[:] = np.zeros_like(seen), 0
    report("hyperparameters", n_sweeps, n_sweeps)
    logs: Any = np.log(np.array(draws)[OPENING_SWEEPS + n_later // 3 :])
    means = map(float, np.exp(logs.mean(axis=0)))
    found = [new if value is None else float(value) for new, value in zip(means, given, strict=True)]
    return Hyperparameters(found[0], found[1], found[2], logs.std(axis=0), slab or single_slab(found[2]))
