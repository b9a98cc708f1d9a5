"""Two chains of one signal, in rounds until they agree: of Gibbs sweeps, and of the jump process.

Rounds are in Python and moves are compiled: compiled with the rounds, they took three times as long to compile, since
numba optimises a function again within every caller.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bayeslista.spike_slab.gibbs_sweeps import run_sweeps
from bayeslista.spike_slab.jump_process import clear, enter, normal, run, uniform

_OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


_Array = NDArray[np.float64]


class Rounds(NamedTuple):
    """Moments (3, D) of two chains together, how near they are to each other, and time or sweeps behind the moments."""

    moments: _Array
    finite: bool
    converged: bool
    mean_distance: float
    prob_distance: float
    r_hat: float
    duration: list[float]  # of each chain


class ChainState(NamedTuple):
    """A support and what is kept of it; ``active[0]`` columns are active, ``active[1:]`` lists them."""

    active: NDArray[np.int64]  # (D + 1,)
    position: NDArray[np.int64]  # (D,): place in the list, or −1
    component: NDArray[np.int64]  # (D,): of active columns
    E: NDArray[np.float64]  # (D, D), of which the first k rows and columns are in use
    V: NDArray[np.float64]  # (D, D), of which the first k rows are in use
    m: NDArray[np.float64]  # (D,), of which the first k are in use
    s: NDArray[np.float64]  # (D,)
    q: NDArray[np.float64]  # (D,)
    counts: NDArray[np.int64]  # (4,): moves, swaps tried, swaps that changed the support, changes since a rebuild


def new_state(D: int) -> ChainState:
    """Room for one chain."""
    lists = np.zeros(D + 1, np.int64), np.full(D, -1), np.zeros(D, np.int64)
    return ChainState(
        *lists, np.empty((D, D)), np.empty((D, D)), np.empty(D), np.empty(D), np.empty(D), np.zeros(4, np.int64)
    )


def _prior_draw(prior: Any, random: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Columns drawn from the prior, with their components."""
    upto = np.cumsum(prior.odds, axis=0)
    found = []
    for j, total in enumerate(upto[-1]):
        if uniform(random) < total / (1.0 + total):
            found.append((j, int(np.searchsorted(upto[:-1, j], uniform(random) * total))))
    return found


def _distance(a: _Array, b: _Array) -> float:
    """‖a − b‖ / ‖a + b‖."""
    total = float(np.sum((a + b) ** 2))
    return math.sqrt(float(np.sum((a - b) ** 2)) / total) if total > 0.0 else 0.0


def _r_hat(a: _Array, b: _Array, within: _Array) -> float:
    """√(1 + B/W) of two chains: variance B between their means, W within them, each summed over columns."""
    return math.sqrt(1.0 + 0.5 * float(np.sum((a - b) ** 2)) / max(float(np.sum(within)), 1e-300))


def rounds_until_agreement(
    advance: Callable[[int, int, _Array], float], first_round: int, most: int, D: int, budget: Any
) -> Rounds:
    """Rounds of two chains, each as long as all before, until they agree or have come to a most length.

    ``advance(chain, length, sums)`` runs a chain on, adds to sums of moments (3, D), and returns their weight. Moments
    are averages over the last two rounds.
    """
    before, now = np.zeros((2, 3, D)), np.zeros((2, 3, D))
    time_before, time_now = np.zeros(2), np.zeros(2)
    length, total = first_round, 0
    while True:
        now[:] = 0.0
        for i in range(2):
            time_now[i] = advance(i, length, now[i])
        first, second = (before + now) / (time_before + time_now)[:, None, None]
        both = 0.5 * (first + second)
        finite = bool(np.isfinite(both).all())
        mean_distance, prob_distance = _distance(first[1], second[1]), _distance(first[0], second[0])
        r_hat = max(
            _r_hat(first[1], second[1], both[2] - both[1] ** 2),
            _r_hat(first[0], second[0], both[0] * (1.0 - both[0])),
        )
        near = max(mean_distance, prob_distance) < budget.tolerance and r_hat < budget.largest_r_hat
        converged = total > 0 and near
        total += length
        if converged or not finite or total >= most:
            duration = list(time_before + time_now)
            return Rounds(both, finite, converged, mean_distance, prob_distance, r_hat, duration)
        before[:] = now
        time_before[:] = time_now
        length = total


@njit(**_OPTIONS)
def draw_values(state, random, out):
    """Values given the support: Gaussian with mean m and covariance E, by its Cholesky factor, row by row.

    A loop, since NumPy's routine takes a second to compile.
    """
    k = state.active[0]
    factor, z = np.empty((k, k)), np.empty(k)
    for a in range(k):
        z[a] = normal(random)
        value = state.m[a]
        for b in range(a + 1):
            left = 0.5 * (state.E[a, b] + state.E[b, a])
            for c in range(b):
                left -= factor[a, c] * factor[b, c]
            if a == b:
                factor[a, a] = math.sqrt(max(left, 0.0))
            else:
                factor[a, b] = left / factor[b, b] if factor[b, b] > 0.0 else 0.0
            value += factor[a, b] * z[b]
        out[state.active[1 + a]] = value


def _write_draws(draws: _Array, draw: Callable[[int, float, _Array], None], duration: list[float]) -> None:
    """Draws at equal distances over as much time as the moments; the first chain makes the first half."""
    middle = (len(draws) + 1) // 2
    for chain, (begin, end) in enumerate(((0, middle), (middle, len(draws)))):
        for row in draws[begin:end]:
            draw(chain, duration[chain] / (end - begin), row)


def sweep_signal(
    G: _Array,
    h: _Array,
    prior: Any,
    random: NDArray[np.uint64],
    budget: Any,
    moments: _Array,
    draws: _Array,
) -> tuple[float, ...] | None:
    """Gibbs sweeps of two chains, as `sample_signal` has jumps; None, and nothing written, where they do not agree."""
    values, nothing = np.zeros((2, len(h))), np.zeros((3, len(h)))
    for j, component in _prior_draw(prior, random):
        values[1, j] = prior.mean[component, j] + normal(random) / math.sqrt(prior.precision[component, j])

    def advance(chain: int, length: int, sums: _Array) -> float:
        run_sweeps(length, G, h, prior, values[chain], random, sums)
        return length

    def draw(chain: int, distance: float, out: _Array) -> None:
        run_sweeps(math.ceil(distance), G, h, prior, values[chain], random, nothing)
        out[:] = values[chain]

    found = rounds_until_agreement(advance, budget.first_sweeps, budget.most_sweeps, len(h), budget)
    if not found.converged:
        return None
    moments[:] = found.moments
    _write_draws(draws, draw, found.duration)
    n_sweeps = int(sum(found.duration))
    return 0, n_sweeps, found.mean_distance, found.prob_distance, True, 0.0, found.r_hat


def sample_signal(
    G: _Array,
    h: _Array,
    prior: Any,
    random: NDArray[np.uint64],
    budget: Any,
    moments: _Array,
    draws: _Array,
) -> tuple[float, ...]:
    """Run the chains of one signal until they agree: write moments (3, D) and draws, return what diagnostics hold."""
    D = len(h)
    states, work, nothing = [new_state(D), new_state(D)], np.empty(D), np.zeros((3, D))
    for state in states:
        clear(G, h, state)
    for j, component in _prior_draw(prior, random):
        enter(j, component, G, prior, states[1], work)

    def advance(chain: int, length: int, sums: _Array) -> float:
        return float(run(length, np.inf, G, h, prior, states[chain], random, sums))

    def draw(chain: int, distance: float, out: _Array) -> None:
        run(1 << 60, distance, G, h, prior, states[chain], random, nothing)
        draw_values(states[chain], random, out)

    found = rounds_until_agreement(advance, budget.first_round, budget.most_moves // 2, D, budget)
    if found.finite:
        moments[:] = found.moments
        _write_draws(draws, draw, found.duration)
    else:
        # The prior, and no convergence, where double precision does not resolve the posterior.
        prob = prior.odds / (1.0 + prior.odds.sum(axis=0))
        moments[:] = [(prob * part).sum(axis=0) for part in (1.0, prior.mean, 1.0 / prior.precision + prior.mean**2)]
    counts = states[0].counts + states[1].counts
    swap_rate = float(counts[2] / max(counts[1], 1))
    return int(counts[0]), 0, found.mean_distance, found.prob_distance, found.converged, swap_rate, found.r_hat
