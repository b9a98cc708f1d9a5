r"""Noise, sparsity and slab from observations alone: their posterior, drawn together with the codes of all signals.

A sweep draws the support and values of every signal by the jump process, then each hyperparameter given all codes:

.. math::
    \sigma^2 \sim IG(\tfrac{nK}{2}, \tfrac{\|Y - B X^T\|^2}{2}), \quad
    p \sim Beta(1 + k, D + nD - k), \quad
    \tau \sim IG(\tfrac{k + w}{2}, \tfrac{\sum b^2 + w\tau_0}{2})

with k active coefficients in all; the prior of p has the weight of a signal without any, that of τ of w coefficients.
Where values are enough to say, a mixture of Gaussians takes the place of τ after the discarded sweeps (stochastic EM
[Celeux and Diebolt, 1985]): it is fitted to the values drawn in a stretch of sweeps, and used in the next.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayeslista.spike_slab.chains import draw_values, new_state
from bayeslista.spike_slab.empirical_bayes import ENOUGH_FOR_A_MIXTURE, SlabMixture, fit_slab, slab_histogram
from bayeslista.spike_slab.exact import SlabOdds, slab_odds
from bayeslista.spike_slab.hyperparameters import single_slab
from bayeslista.spike_slab.jump_process import rebuild, run
from bayeslista.spike_slab.sensor_noise import sensor_variances

# Of 100 coefficients in four seconds; standard deviations of 0.01 to 0.03 of log noise and log P(active). Of more
# coefficients fewer signals, n D² up to the last number: each says more, and takes the sampler longer.
LEAST_SIGNALS, MOST_SIGNALS, SIGNALS_WORK = 8, 300, 3e6
N_SWEEPS = 150  # of which the first third is discarded
DURATION = 1.0  # of the jump process in a sweep, in which every active column tries three swaps
SENSOR_SWEEPS = 10  # between which noise of the sensors is learned from their residuals
MOST_MOVES = 2000  # of a signal in a sweep
FIRST_PROB_ACTIVE = 0.1
PRIOR_WEIGHT = 0.5


class Hyperparameters(NamedTuple):
    """P(active), noise variance and slab: geometric means of draws, and standard deviations of their logs."""

    prob_active: float
    noise_var: float
    slab_var: float  # of a single Gaussian, which comes before the mixture
    log_std: NDArray[np.float64]
    slab: SlabMixture
    sensor_std: NDArray[np.float64] | None = None  # of noise that differs between sensors, in units of that above


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
    n_sweeps: int = N_SWEEPS,
) -> Hyperparameters:
    """The posterior of P(active), noise variance and slab variance, those that are given held."""
    most = int(np.clip(SIGNALS_WORK / X.shape[1] ** 2, LEAST_SIGNALS, MOST_SIGNALS))
    Y = Y[random.permutation(len(Y))[:most]]
    missing = np.isnan(Y)
    Y = np.where(missing, 0.0, Y)
    (n, K), D = Y.shape, X.shape[1]
    # Half of the observations' power is noise at first: at little noise supports of the start would hardly change.
    first_noise = 0.5 * float(np.mean(Y**2)) or 1.0
    power = first_noise * K / (float(np.sum(X**2)) or 1.0)
    starts = FIRST_PROB_ACTIVE, first_noise, power / (given[0] or FIRST_PROB_ACTIVE)
    values = [start if value is None else float(value) for start, value in zip(starts, given, strict=True)]
    first_slab = values[2]
    gram, products = X.T @ X, Y @ X
    codes, parts, state = np.zeros((n, D)), np.zeros((n, D), np.int64), new_state(D)
    bits = random.integers(2**63, size=4).astype(np.uint64)
    slab: SlabMixture | None = None  # until values are enough for it, the Gaussian of variance τ
    seen, draws = slab_histogram(codes), []
    burn, stretch = n_sweeps // 3, max(n_sweeps // 6, 1)
    squares, deviations = np.zeros(K), np.ones(K)
    for sweep in range(n_sweeps):
        prob_active, noise_var, slab_var = values
        used = single_slab(slab_var) if slab is None else slab
        prior: SlabOdds = slab_odds(prob_active, used.weight, used.mean, used.var, D)
        _draw_codes(gram / noise_var, products / noise_var, prior, state, bits, codes, parts)
        n_active, energy = np.count_nonzero(codes), float(np.sum(codes**2))
        if missing.any():  # missing values are drawn as well, given code and noise
            drawn_values = codes @ X.T + np.sqrt(noise_var) * random.standard_normal(Y.shape)
            Y = np.where(missing, drawn_values, Y)
            products = Y @ X
        squares += np.sum((Y - codes @ X.T) ** 2, axis=0)
        if given[1] is None and (sweep + 1) % SENSOR_SWEEPS == 0:
            # Stochastic EM as for the slab, where the evidence for sensors that differ is strong.
            variances = sensor_variances(squares / SENSOR_SWEEPS, n)
            if variances is not None:
                change = np.sqrt(variances / np.mean(variances * deviations**2) * np.mean(deviations**2))
                deviations = deviations * change
                X, Y = X / change[:, None], Y / change
                gram, products = X.T @ X, Y @ X
            squares[:] = 0.0
        residual = float(np.sum((Y - codes @ X.T) ** 2))
        drawn = (
            random.beta(1 + n_active, D + n * D - n_active),
            max(residual, 1e-12 * n * K * first_noise) / random.chisquare(n * K),
            (energy + PRIOR_WEIGHT * first_slab) / random.chisquare(n_active + PRIOR_WEIGHT),
        )
        values = [new if value is None else float(value) for new, value in zip(drawn, given, strict=True)]
        draws.append(values)
        # Stochastic EM: the mixture that suits the values of the last stretch best.
        if given[2] is None and sweep >= burn - stretch:
            seen = seen + slab_histogram(codes) / stretch
            if (sweep + 1 - burn) % stretch == 0:
                slab = fit_slab(seen) if seen[0].sum() >= ENOUGH_FOR_A_MIXTURE else None
                seen, parts[:] = np.zeros_like(seen), 0
    logs: Any = np.log(np.array(draws)[burn:])
    means = map(float, np.exp(logs.mean(axis=0)))
    found = [new if value is None else float(value) for new, value in zip(means, given, strict=True)]
    differ = None if np.all(deviations == 1) else deviations
    return Hyperparameters(found[0], found[1], found[2], logs.std(axis=0), slab or single_slab(found[2]), differ)
