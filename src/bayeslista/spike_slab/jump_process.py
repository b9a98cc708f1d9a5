r"""A Markov jump process over supports whose stationary distribution is the exact spike-and-slab posterior.

Model: :math:`y = X b + \varepsilon` with independent Gaussian noise of standard deviation :math:`\sigma_k` at sensor k;
:math:`b_j = 0` with probability :math:`1 - p_j`, else drawn from component c with probability :math:`w_c`,
:math:`N(\mu_{cj}, \tau_{cj})`. Values are integrated out; the state is the support S with the component of every active
column. With :math:`G = X^T \mathrm{diag}(\sigma^{-2}) X` and :math:`h = X^T \mathrm{diag}(\sigma^{-2}) y` a chain keeps

.. math::
    E = (G_{SS} + \mathrm{diag}\,\tau^{-1})^{-1}, \quad V = E G_{S:}, \quad m = E (h_S + \mu/\tau), \quad
    s_j = G_{jj} - G_{jS} E G_{Sj}, \quad q_j = h_j - G_{jS} m .

Given the rest of S the likelihood of :math:`b_j` is :math:`\exp(q_j b - s_j b^2/2)`, so the posterior odds of column j
in component c are

.. math:: o_{jc} = \frac{p_j}{1-p_j}\, w_c\, (1 + \tau s_j)^{-1/2}
    \exp\tfrac12\Big\{\frac{(q_j + \mu/\tau)^2}{s_j + 1/\tau} - \frac{\mu^2}{\tau}\Big\}.

Moves, with their rates in a unit of time:

- an inactive column enters at :math:`\min(\sum_c o_{jc}, R)`, in a component drawn in proportion to the odds;
- an active column leaves at :math:`\min(1, R/\sum_c o_{jc})`;
- every active column tries a heat-bath swap at rate ``SWAP_RATE``: it is taken out, and its successor, column and
  component, is drawn in proportion to the odds of all inactive columns and itself.

Each is in detailed balance, for any cap R. There is no rejection: a state counts by its waiting time.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

RATE_CAP = 100.0  # R; balanced for any value, larger ones let the process flicker between two states
SWAP_RATE = 3.0
ALWAYS_ODDS = 1e40  # prior odds of columns that stay active: times any Bayes factor here below overflow
REBUILD_EVERY = 300  # changes of the support, after which E, V, m, s and q are computed anew against round-off
_LARGEST_EXPONENT = 600.0  # of odds, beyond which a probability is one to the last digit
# Sums may be reordered and products contracted; infinities and NaN do not occur.
_FAST = {"reassoc", "contract", "nsz", "arcp", "nnan", "ninf"}
# "numpy": a division by zero is no exception, without which LLVM can use vector instructions.
_OPTIONS: Any = {"cache": True, "nogil": True, "error_model": "numpy"}


@intrinsic
def _bits(typing_context, value):
    """The bits of a float64 as an int64."""
    return types.int64(types.float64), lambda c, builder, s, args: builder.bitcast(args[0], ir.IntType(64))


@intrinsic
def _from_bits(typing_context, value):
    """The float64 with the bits of an int64."""
    return types.float64(types.int64), lambda c, builder, s, args: builder.bitcast(args[0], ir.DoubleType())


@njit(fastmath={"contract"}, **_OPTIONS)
def _exp(x):
    """e^x for |x| ≤ 700 in operations that LLVM vectorises: 2^k times a Taylor polynomial; relative error 1e-14."""
    shifted = x * 1.4426950408889634 + 6755399441055744.0  # the low bits now hold k = round(x / log 2)
    k = shifted - 6755399441055744.0
    r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10
    p = 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.755731922398589e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return p * _from_bits((_bits(shifted) + 1023) << 52)


@njit(**_OPTIONS)
def uniform(random):
    """A number in (0, 1) by xoshiro256+ (Blackman and Vigna, 2021), whose state is four uint64."""
    s0, s1, s2, s3 = random[0], random[1], random[2], random[3]
    result = s0 + s3
    t = s1 << np.uint64(17)
    s2 ^= s0
    s3 ^= s1
    s1 ^= s2
    s0 ^= s3
    s2 ^= t
    s3 = (s3 << np.uint64(45)) | (s3 >> np.uint64(19))
    random[0], random[1], random[2], random[3] = s0, s1, s2, s3
    return (float(result >> np.uint64(12)) + 0.5) * 2.220446049250313e-16


@njit(**_OPTIONS)
def normal(random):
    """A standard normal number by Box and Muller."""
    return math.sqrt(-2.0 * math.log(uniform(random))) * math.cos(2.0 * math.pi * uniform(random))


@njit(fastmath=_FAST, **_OPTIONS)
def enter(j, component, G, prior, state, work):
    """Add column j in a component: a rank-one update of all that is kept. ``work`` has room for D numbers."""
    E, V, m, s, q = state.E, state.V, state.m, state.s, state.q
    k, D = state.active[0], len(G)
    precision, prior_mean = prior.precision[component, j], prior.mean[component, j]
    d = 1.0 / (max(s[j], 0.0) + precision)  # variance of b_j given S
    shift = q[j] + prior_mean * precision
    mean = shift * d
    # w = G_j − Σ_a G_ja V_a: information between j and every column, given S.
    for col in range(D):
        work[col] = G[j, col]
    a = 0
    while a + 4 <= k:  # four rows at a time
        g0, g1 = G[j, state.active[1 + a]], G[j, state.active[2 + a]]
        g2, g3 = G[j, state.active[3 + a]], G[j, state.active[4 + a]]
        for col in range(D):
            work[col] -= g0 * V[a, col] + g1 * V[a + 1, col] + g2 * V[a + 2, col] + g3 * V[a + 3, col]
        a += 4
    while a < k:
        g0 = G[j, state.active[1 + a]]
        for col in range(D):
            work[col] -= g0 * V[a, col]
        a += 1
    row = E[k]  # V_:j, which is contiguous there
    for a in range(k):
        row[a] = V[a, j]
    for a in range(k):
        m[a] -= row[a] * mean
        factor = d * row[a]
        for b in range(k):
            E[a, b] += factor * row[b]
        for col in range(D):
            V[a, col] -= factor * work[col]
    for a in range(k):
        row[a] = E[a, k] = -d * row[a]
    for col in range(D):
        w = work[col]
        V[k, col] = d * w
        s[col] -= d * w * w
        q[col] -= mean * w
    E[k, k] = d
    m[k] = mean
    state.active[1 + k] = j
    state.active[0] = k + 1
    state.position[j] = k
    state.component[j] = component


@njit(fastmath=_FAST, **_OPTIONS)
def leave(a, state):
    """Remove the a-th active column: the Gaussian of the values is conditioned on its value being zero."""
    E, V, m, s, q = state.E, state.V, state.m, state.s, state.q
    k, D, j = state.active[0], len(s), state.active[1 + a]
    inverse = 1.0 / E[a, a]
    shift = m[a] * inverse
    for col in range(D):
        v = V[a, col]
        s[col] += v * v * inverse
        q[col] += v * shift
    removed, row = V[a], E[a]
    for b in range(k):
        if b != a:
            g = row[b] * inverse
            m[b] -= g * m[a]
            for col in range(D):
                V[b, col] -= g * removed[col]
            for c in range(k):
                E[b, c] -= g * row[c]
    # The last active column takes the free place in the list.
    last = k - 1
    if a != last:
        for col in range(D):
            V[a, col] = V[last, col]
        for b in range(k):
            E[a, b] = E[last, b]
        for b in range(k):
            E[b, a] = E[b, last]
        E[a, a] = E[last, last]
        m[a] = m[last]
        moved = state.active[1 + last]
        state.active[1 + a] = moved
        state.position[moved] = a
    state.position[j] = -1
    state.active[0] = last


@njit(**_OPTIONS)
def clear(G, h, state):
    """Begin with the empty support."""
    state.active[0] = 0
    for col in range(len(h)):
        state.position[col] = -1
        state.s[col] = G[col, col]
        state.q[col] = h[col]


@njit(**_OPTIONS)
def rebuild(G, h, prior, state, work):
    """Compute all that is kept of the support anew, without the round-off of many updates."""
    columns = state.active[1 : 1 + state.active[0]].copy()
    clear(G, h, state)
    for j in columns:
        enter(j, state.component[j], G, prior, state, work)
    state.counts[3] = 0


@njit(**_OPTIONS)
def _largest_exponent(s, q, prior):
    """The largest exponent of the odds of any column."""
    largest = 0.0
    for c in range(len(prior.mean)):
        for j in range(len(s)):
            precision, mean = prior.precision[c, j], prior.mean[c, j]
            z = q[j] + mean * precision
            value = 0.5 * (z * z / (max(s[j], 0.0) + precision) - mean * mean * precision)
            largest = max(largest, value)
    return largest


@njit(fastmath=_FAST, **_OPTIONS)
def column_odds(s, q, prior, shift, out):
    """Σ_c o_jc of every column without itself, times e^{−shift}; returns by how much exponents are too large."""
    beyond = 0.0
    out[:] = 0.0
    for c in range(len(prior.mean)):
        for j in range(len(s)):
            precision, mean = prior.precision[c, j], prior.mean[c, j]
            d = 1.0 / (max(s[j], 0.0) + precision)
            z = q[j] + mean * precision
            exponent = 0.5 * (z * z * d - mean * mean * precision) - shift
            beyond += max(exponent - _LARGEST_EXPONENT, 0.0)
            exponent = min(max(exponent, -_LARGEST_EXPONENT), _LARGEST_EXPONENT)
            out[j] += prior.odds[c, j] * math.sqrt(precision * d) * _exp(exponent)
    return beyond


@njit(fastmath=_FAST, **_OPTIONS)
def column_moments(s, q, prior, out):
    """Σ_c o_jc of every column without itself, and, as further rows, Σ_c o_jc E[b_j | c] and Σ_c o_jc E[b_j² | c].

    Returns by how much exponents are too large, where `strong_moments` has the shares of components.
    """
    total, first, second = out[0], out[1], out[2]
    beyond = 0.0
    out[:] = 0.0
    for c in range(len(prior.mean)):
        for j in range(len(s)):
            precision, mean = prior.precision[c, j], prior.mean[c, j]
            d = 1.0 / (max(s[j], 0.0) + precision)
            z = q[j] + mean * precision
            exponent = 0.5 * (z * z * d - mean * mean * precision)
            beyond += max(exponent - _LARGEST_EXPONENT, 0.0)
            exponent = min(max(exponent, -_LARGEST_EXPONENT), _LARGEST_EXPONENT)
            own = prior.odds[c, j] * math.sqrt(precision * d) * _exp(exponent)
            total[j] += own
            first[j] += own * z * d
            second[j] += own * (d + z * z * d * d)
    return beyond


@njit(**_OPTIONS)
def strong_moments(s, q, prior, out):
    """The rows of `column_moments` for columns whose odds exceed the range of doubles: these are capped, not shares."""
    n_components = len(prior.mean)
    for j in range(len(s)):
        largest = -1e300
        for c in range(n_components):
            precision, mean = prior.precision[c, j], prior.mean[c, j]
            z = q[j] + mean * precision
            largest = max(largest, 0.5 * (z * z / (max(s[j], 0.0) + precision) - mean * mean * precision))
        if largest > _LARGEST_EXPONENT:
            out[:, j] = 0.0
            for c in range(n_components):
                own = _component_weight(s[j], q[j], j, c, prior, largest - _LARGEST_EXPONENT)
                precision = prior.precision[c, j]
                d = 1.0 / (max(s[j], 0.0) + precision)
                mean = (q[j] + prior.mean[c, j] * precision) * d
                out[0, j] += own
                out[1, j] += own * mean
                out[2, j] += own * (d + mean * mean)


@njit(fastmath=_FAST, **_OPTIONS)
def _component_weight(s, q, j, c, prior, shift):
    """o_jc of one column without itself, times e^{−shift}."""
    precision, mean = prior.precision[c, j], prior.mean[c, j]
    d = 1.0 / (max(s, 0.0) + precision)
    z = q + mean * precision
    exponent = 0.5 * (z * z * d - mean * mean * precision + math.log(precision * d)) - shift
    return prior.odds[c, j] * math.exp(max(exponent, -_LARGEST_EXPONENT))


@njit(**_OPTIONS)
def draw_component(s, q, j, prior, random):
    """A component of column j in proportion to its odds."""
    n_components = len(prior.mean)
    if n_components == 1:
        return 0
    shift = -1e300
    for c in range(n_components):
        precision, mean = prior.precision[c, j], prior.mean[c, j]
        z = q + mean * precision
        value = 0.5 * (z * z / (max(s, 0.0) + precision) - mean * mean * precision)
        shift = max(shift, value)
    total = 0.0
    for c in range(n_components):
        total += _component_weight(s, q, j, c, prior, shift)
    u = uniform(random) * total
    for c in range(n_components - 1):
        u -= _component_weight(s, q, j, c, prior, shift)
        if u <= 0.0:
            return c
    return n_components - 1


@njit(fastmath=_FAST, **_OPTIONS)
def _accumulate(weight, odds, sums):
    """Add P(active), E[b] and E[b²] of every column given all others, weighted (Rao–Blackwell)."""
    for j in range(odds.shape[1]):
        share = weight / (1.0 + odds[0, j])
        sums[0, j] += share * odds[0, j]
        sums[1, j] += share * odds[1, j]
        sums[2, j] += share * odds[2, j]


@njit(fastmath=_FAST, **_OPTIONS)
def _total(weights):
    """Sum in any order, which vector instructions take."""
    total = 0.0
    for j in range(len(weights)):
        total += weights[j]
    return total


@njit(**_OPTIONS)
def _draw_column(weights, total, random):
    """An index in proportion to its weight."""
    u = uniform(random) * total
    chosen = len(weights) - 1
    for j in range(len(weights)):
        u -= weights[j]
        if u <= 0.0:
            chosen = j
            break
    while weights[chosen] == 0.0 and chosen > 0:  # round-off at the end of the sum
        chosen -= 1
    return chosen


@njit(**_OPTIONS)
def run(n_moves, duration, G, h, prior, state, random, sums):
    """Make moves until their number, or the duration, is reached; returns the time that has passed.

    With a finite duration waiting times are drawn, so that the state at its end has the stationary distribution; else
    every state counts by its expected waiting time. Moments are added to ``sums`` (3, D).
    """
    D = len(G)
    odds, rates, s, q = np.empty((3, D)), np.empty(D), np.empty(D), np.empty(D)
    swap_odds, swap_s, swap_q, work = np.empty(D), np.empty(D), np.empty(D), np.empty(D)
    elapsed, pending, total_rate, total = 0.0, 0.0, 0.0, 0.0
    changed = True
    for _ in range(n_moves):
        k = state.active[0]
        if changed:
            # s and q of every column without itself: for active ones 1/E_aa − 1/τ and m_a/E_aa − μ/τ.
            for col in range(D):  # assigned as slices, the message of an error takes two seconds to compile
                s[col] = state.s[col]
                q[col] = state.q[col]
            for a in range(k):
                j = state.active[1 + a]
                precision = prior.precision[state.component[j], j]
                s[j] = 1.0 / state.E[a, a] - precision
                q[j] = state.m[a] / state.E[a, a] - prior.mean[state.component[j], j] * precision
            if column_moments(s, q, prior, odds) > 0.0 and len(prior.mean) > 1:
                strong_moments(s, q, prior, odds)
            for j in range(D):
                rates[j] = min(odds[0, j], RATE_CAP)
            for a in range(k):
                j = state.active[1 + a]
                rates[j] = RATE_CAP / max(odds[0, j], RATE_CAP)
            total_rate = _total(rates)
            total = total_rate + SWAP_RATE * k
            changed = False
        # Waiting time of the state.
        wait = 1.0 / max(total, 1e-300)
        ended = False
        if duration < np.inf:
            wait *= -math.log(uniform(random))
            if not elapsed + wait < duration:  # or no number
                wait = duration - elapsed
                ended = True
        elapsed += wait
        pending += wait
        if ended:
            break
        state.counts[0] += 1
        a, entering, component = -1, -1, 0
        if uniform(random) * total < total_rate:
            # A column enters or leaves.
            j = _draw_column(rates, total_rate, random)
            if state.position[j] >= 0:
                a = state.position[j]
            else:
                entering = j
                component = draw_component(s[j], q[j], j, prior, random)
            changed = True
        else:
            # Heat-bath swap of a random active column: s and q once it is out.
            a = min(int(uniform(random) * k), k - 1)
            j = state.active[1 + a]
            if prior.odds[0, j] >= ALWAYS_ODDS:
                continue
            state.counts[1] += 1
            inverse = 1.0 / state.E[a, a]
            for col in range(D):
                v = state.V[a, col]
                swap_s[col] = state.s[col] + v * v * inverse
                swap_q[col] = state.q[col] + v * state.m[a] * inverse
            swap_s[j] = s[j]
            swap_q[j] = q[j]
            for b in range(k):
                if b != a:
                    swap_q[state.active[1 + b]] = 0.0  # not a candidate: keep its exponent small
            if column_odds(swap_s, swap_q, prior, 0.0, swap_odds) > 0.0:
                shift = _largest_exponent(swap_s, swap_q, prior)
                column_odds(swap_s, swap_q, prior, shift, swap_odds)
            for b in range(k):
                if b != a:
                    swap_odds[state.active[1 + b]] = 0.0
            entering = _draw_column(swap_odds, _total(swap_odds), random)
            component = draw_component(swap_s[entering], swap_q[entering], entering, prior, random)
            changed = entering != j or component != state.component[j]
            state.counts[2] += changed
        if changed:
            _accumulate(pending, odds, sums)
            pending = 0.0
            if a >= 0:
                leave(a, state)
            if entering >= 0:
                enter(entering, component, G, prior, state, work)
            state.counts[3] += 1
            if state.counts[3] >= REBUILD_EVERY:
                rebuild(G, h, prior, state, work)
    if pending > 0.0:
        _accumulate(pending, odds, sums)
    return elapsed
