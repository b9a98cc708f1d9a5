"""Chains of the jump process for one signal: two until they agree, with tempered replicas where they do not.

Rounds are in Python and moves are compiled: compiled with the rounds, they took three times as long to compile, since
numba optimises a function again within every caller.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bayeslista.spike_slab.jump_process import clear, enter, normal, rebuild, run, uniform

_OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy"}


_Array = NDArray[np.float64]


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
    log_likelihood: NDArray[np.float64]  # (1,): log p(y | S) − log p(y | ∅)
    counts: NDArray[np.int64]  # (4,): moves, swaps tried, swaps that changed the support, changes since a rebuild


@njit(**_OPTIONS)
def new_state(D):
    """Room for one chain."""
    return ChainState(
        np.zeros(D + 1, np.int64),
        np.full(D, -1),
        np.zeros(D, np.int64),
        np.empty((D, D)),
        np.empty((D, D)),
        np.empty(D),
        np.empty(D),
        np.empty(D),
        np.zeros(1),
        np.zeros(4, np.int64),
    )


def _enter_prior_draw(G: _Array, prior: Any, state: ChainState, random: NDArray[np.uint64], work: _Array) -> None:
    """Add columns drawn from the prior."""
    upto = np.cumsum(prior.odds, axis=0)
    for j, total in enumerate(upto[-1]):
        if uniform(random) < total / (1.0 + total):
            component = int(np.searchsorted(upto[:-1, j], uniform(random) * total))
            enter(j, component, G, prior, state, work)


def _distance(a: _Array, b: _Array) -> float:
    """‖a − b‖ / ‖a + b‖."""
    total = float(np.sum((a + b) ** 2))
    return math.sqrt(float(np.sum((a - b) ** 2)) / total) if total > 0.0 else 0.0


def _r_hat(a: _Array, b: _Array, within: _Array) -> float:
    """√(1 + B/W) of two chains: variance B between their means, W within them, each summed over columns."""
    return math.sqrt(1.0 + 0.5 * float(np.sum((a - b) ** 2)) / max(float(np.sum(within)), 1e-300))


def exchange(states: list[ChainState], order: list[int], ladder: _Array, random: NDArray[np.uint64]) -> None:
    """Try to exchange neighbouring temperatures: accept with min(1, exp{(β − β′)(L′ − L)}) [Geyer, 1991]."""
    for r in range(len(states) - 1):
        x, y = order[r], order[r + 1]
        gain = states[y].log_likelihood[0] - states[x].log_likelihood[0]
        if math.log(uniform(random)) < (ladder[r] - ladder[r + 1]) * gain:
            order[r], order[r + 1] = y, x


def advance(
    n_moves: int,
    duration: float,
    G: _Array,
    h: _Array,
    prior: Any,
    states: list[ChainState],
    order: list[int],
    ladder: _Array,
    random: NDArray[np.uint64],
    sums: _Array,
) -> float:
    """Run a chain until its moves or the duration are reached; returns the time that has passed.

    With several replicas each runs for a unit of time at its temperature; exchanges are tried between these.
    """
    if len(states) == 1:
        return float(run(n_moves, duration, 1.0, G, h, prior, states[0], random, sums))
    elapsed, begin = 0.0, sum(int(state.counts[0]) for state in states)
    longest = min(duration, n_moves)  # a unit of time counts as a move at least: chains may stand still
    while sum(int(state.counts[0]) for state in states) - begin < n_moves and elapsed < longest:
        for r in range(len(states)):
            run(1 << 60, 1.0, float(ladder[r]), G, h, prior, states[order[r]], random, sums)
        exchange(states, order, ladder, random)
        elapsed += 1.0
    return elapsed


@njit(**_OPTIONS)
def draw_values(state, random, out):
    """Values given the support: Gaussian with mean m and covariance E."""
    k = state.active[0]
    if k == 0:
        return
    covariance = state.E[:k, :k].copy()
    covariance = 0.5 * (covariance + covariance.T)
    factor = np.linalg.cholesky(covariance)
    z = np.empty(k)
    for a in range(k):
        z[a] = normal(random)
    values = factor @ z
    for a in range(k):
        out[state.active[1 + a]] = state.m[a] + values[a]


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
    ladder = budget.temperature_ratio ** np.arange(budget.n_temperatures)
    work = np.empty(D)
    replicas: list[list[ChainState]] = [[new_state(D)], [new_state(D)]]
    orders = [[0], [0]]
    for chain in range(2):
        clear(G, h, replicas[chain][0])
    _enter_prior_draw(G, prior, replicas[1][0], random, work)
    before, now = np.zeros((2, 3, D)), np.zeros((2, 3, D))
    time_before, time_now = np.zeros(2), np.zeros(2)
    length, rounds, tempered = budget.first_round, 0, False
    while True:
        # A round; moments are averages over the last two.
        now[:] = 0.0
        for i in range(2):
            time_now[i] = advance(length, np.inf, G, h, prior, replicas[i], orders[i], ladder, random, now[i])
        first, second = (before + now) / (time_before + time_now)[:, None, None]
        both = 0.5 * (first + second)
        finite = bool(np.isfinite(both).all())
        rounds += 1
        mean_distance, prob_distance = _distance(first[1], second[1]), _distance(first[0], second[0])
        r_hat = max(
            _r_hat(first[1], second[1], both[2] - both[1] ** 2),
            _r_hat(first[0], second[0], both[0] * (1.0 - both[0])),
        )
        agree = max(mean_distance, prob_distance) < budget.tolerance and r_hat < budget.largest_r_hat
        converged = rounds > 1 and time_before[0] > 0.0 and agree
        n_moves = sum(int(state.counts[0]) for chain in replicas for state in chain)
        if converged or not finite or n_moves >= budget.most_moves:
            break
        if rounds == budget.rounds and len(ladder) > 1:
            # Replicas at higher temperatures begin where the chain is.
            tempered = True
            length = 4 * budget.first_round * len(ladder)
            before[:] = 0.0
            time_before[:] = 0.0
            for chain in range(2):
                cold = replicas[chain][0]
                for _ in range(1, len(ladder)):
                    state = new_state(D)
                    state.active[:] = cold.active
                    state.component[:] = cold.component
                    rebuild(G, h, prior, state, work)
                    replicas[chain].append(state)
                orders[chain] = list(range(len(ladder)))
            continue
        before[:] = now
        time_before[:] = time_now
        if rounds > 1:
            length *= 2
    if not finite:
        # The prior, and no convergence, where double precision does not resolve the posterior.
        prob = prior.odds / (1.0 + prior.odds.sum(axis=0))
        moments[:] = [(prob * part).sum(axis=0) for part in (1.0, prior.mean, 1.0 / prior.precision + prior.mean**2)]
        draws = draws[:0]
    else:
        moments[:] = both
    # Draws at equal distances over as much time as the last two rounds; the first chain makes the first half.
    middle = (len(draws) + 1) // 2
    nothing = np.zeros((3, D))
    for chain, (begin, end) in enumerate(((0, middle), (middle, len(draws)))):
        duration = (time_before[chain] + time_now[chain]) / max(end - begin, 1)
        for i in range(begin, end):
            advance(1 << 60, duration, G, h, prior, replicas[chain], orders[chain], ladder, random, nothing)
            draw_values(replicas[chain][orders[chain][0]], random, draws[i])
    counts = np.sum([state.counts for chain in replicas for state in chain], axis=0)
    swap_rate = float(counts[2] / max(counts[1], 1))
    return int(counts[0]), mean_distance, prob_distance, converged, tempered, swap_rate, r_hat
