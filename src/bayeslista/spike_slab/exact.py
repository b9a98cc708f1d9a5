"""The exact posterior of signals: chains of the jump process that run until they agree.

Two chains a signal begin at the empty support and at a draw of the prior. They run in rounds, each as long as all
before; moments are averages over the last two, so that the first quarter of a run is discarded. A signal is finished
when its chains agree: ‖a − b‖/‖a + b‖, for the posterior mean and for P(active), and R-hat, √(1 + variance between over
variance within chains, each summed over coefficients), are below their levels. Where the prior expects many active
columns, Gibbs sweeps of values come before the jump process.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray

_LEAST_NOISE = 1e-9  # variance relative to the signal, which rank-one updates in double precision resolve
LARGEST_DIMENSION = 4000  # D² numbers are kept for every chain


@dataclass(frozen=True)
class Budget:
    """When a signal is finished, in moves, so that results do not depend on the machine.

    Chosen on training signals of the reference files, by the error of P(active) against runs of four million moves.
    Tolerance and most moves, I_hetero: 0.0086 with 0.05 and 300,000, 0.0082 with 0.04, 0.0074 with 0.04 and 500,000.
    Parallel tempering of the signals that take longest (three to five replicas, successive inverse temperatures of 0.5
    to 0.7) had no lower error and took more moves: I_hetero 0.0074 with 68,000 moves a signal, 0.0070 with 62,000
    without; limit_k20 0.0046 with 141,000, 0.0043 with 129,000 without.

    Starts: with one chain from the true support in place of a draw of the prior, which no estimate can beat, signals
    take 0.94 to 1.26 times the moves (I_hetero 1.00, limit_k50 0.96, C_blur3 1.26, E_copies 0.94).

    Gibbs sweeps come first where the prior expects many active columns: 1,500 observations of 1,000 coefficients, 300
    of them active, take 33 ms instead of 1.6 s; 600 observations with 100 active 20 ms instead of 180. On few columns
    they do not pay: with 20 active ones of 100 and 50 observations, 3 to 13 % of the signals agree within 1,600 sweeps.
    """

    tolerance: float = 0.04  # relative distance of the two chains, of means and of P(active)
    # R-hat, of codes and of activity. The mean of two chains at distance e has the error e/2, e²/4 = (R² − 1) W/2: a
    # hundredth of the posterior variance W.
    largest_r_hat: float = 1.01
    first_round: int = 500  # moves a chain; the second round has as many, every later one twice those before
    most_moves: int = 500_000  # of both chains of a signal
    least_active: float = 30.0  # expected number of active columns from which on sweeps are tried
    first_sweeps: int = 50
    most_sweeps: int = 400  # a chain


class SlabOdds(NamedTuple):
    """The prior: odds p w_c/(1 − p), means and precisions, of shape (C, D) each."""

    odds: NDArray[np.float64]
    mean: NDArray[np.float64]
    precision: NDArray[np.float64]


class ExactDiagnostics(NamedTuple):
    """What the chains of each signal did, one entry a signal."""

    n_moves: NDArray[np.int64]
    n_sweeps: NDArray[np.int64]  # of Gibbs sampling, for signals that it finished
    mean_distance: NDArray[np.float64]  # ‖a − b‖/‖a + b‖ of the two chains' means
    prob_distance: NDArray[np.float64]
    converged: NDArray[np.bool_]
    swap_rate: NDArray[np.float64]  # share of the swaps that changed the support
    r_hat: NDArray[np.float64]  # the larger of that of the codes and that of their activity


class ExactPosterior(NamedTuple):
    """Moments and draws, one signal a row, and diagnostics."""

    prob_active: NDArray[np.float64]
    slab_mean: NDArray[np.float64]
    slab_var: NDArray[np.float64]
    draws: NDArray[np.float64]  # (n_draws, n, D)
    diagnostics: ExactDiagnostics


def slab_odds(prob_active: Any, weight: Any, mean: Any, var: Any, n_components: int) -> SlabOdds:
    """The prior of all columns: a probability or one a column; components of shape (C,) or (C, D)."""
    p = np.broadcast_to(np.asarray(prob_active, np.float64), n_components)
    weights = np.atleast_1d(np.asarray(weight, np.float64))
    parts = []  # copies: views that cannot be written to are another type, for which numba would compile anew
    for part in (mean, 1.0 / np.asarray(var, np.float64)):
        values = np.asarray(part, np.float64)
        values = values if values.ndim == 2 else np.atleast_1d(values)[:, None]
        parts.append(np.array(np.broadcast_to(values, (len(weights), n_components)), order="C"))
    return SlabOdds(weights[:, None] / weights.sum() * (p / (1.0 - p)), *parts)


def sample_posterior(
    design_matrix: NDArray[np.float64],
    noise_var: NDArray[np.float64],
    prior: SlabOdds,
    Y: NDArray[np.float64],
    seed: int,
    *,
    n_draws: int = 0,
    n_jobs: int | None = None,
    budget: Budget = Budget(),  # noqa: B008 frozen
) -> ExactPosterior:
    """The posterior of each row of Y; ``noise_var`` has one entry a sensor.

    The random numbers of a signal follow from the seed and its own observations, so that neither the batch nor the
    order of signals nor the number of threads changes a bit of the answer.
    """
    from bayeslista.spike_slab.chains import sample_signal, sweep_signal  # numba takes half a second to import

    n, D = len(Y), design_matrix.shape[1]
    power = np.sum(prior.odds * (prior.mean**2 + 1 / prior.precision), axis=0) / (1 + prior.odds.sum(axis=0))
    noise = np.maximum(noise_var, max(_LEAST_NOISE * float(np.mean(design_matrix**2 @ power)), 1e-300))
    whitened = design_matrix / np.sqrt(noise)[:, None]
    G = np.ascontiguousarray(whitened.T @ whitened)
    scaled = Y / np.sqrt(noise)
    H = np.array([row @ whitened for row in scaled]).reshape(n, D)  # by row: the bits of a product depend on its rows
    seeds = np.array([_signal_seed(seed, row) for row in np.ascontiguousarray(Y)]).reshape(n, 4)
    moments, draws = np.zeros((n, 3, D)), np.zeros((n, n_draws, D))
    share = prior.odds.sum(axis=0)
    many = np.sum(share / (1 + share)) >= budget.least_active

    def solve(i: int) -> tuple[float, ...]:
        with np.errstate(invalid="ignore"):  # what is not finite is counted as not converged
            data = G, H[i], prior, seeds[i], budget, moments[i], draws[i]
            return (sweep_signal(*data) if many else None) or sample_signal(*data)

    found = Parallel(n_jobs=n_jobs, backend="threading")(delayed(solve)(i) for i in range(n))
    limits = np.finfo(np.float64)
    prob = np.clip(moments[:, 0], limits.tiny, 1 - limits.eps)
    slab_mean = moments[:, 1] / prob
    slab_var = np.maximum(moments[:, 2] / prob - slab_mean**2, limits.eps * (slab_mean**2 + 1e-300))
    columns = zip(*found, strict=True) if n else [()] * len(ExactDiagnostics._fields)
    diagnostics = ExactDiagnostics(*(np.array(column) for column in columns))
    return ExactPosterior(prob, slab_mean, slab_var, draws.transpose(1, 0, 2), diagnostics)


def _signal_seed(seed: int, row: NDArray[np.float64]) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(row.tobytes(), digest_size=32, key=int(seed).to_bytes(8, "little"))
    return np.frombuffer(digest.digest(), np.uint64).copy()
