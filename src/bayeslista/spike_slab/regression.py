"""The posterior of one response given a table: two chains of Gibbs sampling until split R-hat and ESS are good."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import ndtr, ndtri

from bayeslista.numerics.convergence import split_rhat_ess
from bayeslista.spike_slab.column_sets import ITERATIONS_A_CYCLE, ColumnSets, DesignColumns

_LIKELY, _MOST_LIKELY = 0.05, 200  # P(active) of columns whose neighbours are hot, and the most of these

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """How long chains run; in stretches, so that results do not depend on the machine."""

    # Iterations; the second round has twice as many, every later one as many as all before it. The last one is kept.
    first_round: int = 200  # genotypes (574 × 1,001) then have an ESS above 400, of the size above 130
    max_iter: int = 8000  # of a chain
    rhat: float = 1.05
    ess: float = 100.0
    duration: float = 1.0  # of a stretch; an active column tries three swaps in a unit of time
    n_draws: int = 1000  # kept of all chains, at most
    n_chains: int = 2


class ResponsePosterior(NamedTuple):
    """Moments of coefficients, draws and diagnostics of one response."""

    prob_active: _Array
    mean: _Array
    square: _Array
    n_active: NDArray[np.int64]  # of each draw
    columns: NDArray[np.int64]
    values: _Array
    scalars: _Array  # (n_draws, 3): noise variance, slab variance, share of active columns
    rhat: _Array  # of every coefficient
    ess: _Array
    scalar_rhat: _Array  # of model size and log noise variance
    scalar_ess: _Array
    n_iter: int
    converged: bool


class RegressionDraws(NamedTuple):
    """Joint draws in the units of the data: active columns and their values, one draw after the other."""

    n_active: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: _Array
    intercept: _Array
    noise_std: _Array


class _Chain:
    """A chain between stretches: support, hyperparameters, random numbers, and what the current round has found."""

    def __init__(self, support: NDArray[np.int64], hyper: _Array, seed: NDArray[np.uint64]):
        self.support, self.hyper, self.random, self.number = support, hyper, seed, 0

    def run(self, n: int, problem: "Problem", duration: float) -> None:
        """Run n iterations, a new round: stretches of the set of all columns, or a few sets each."""
        from bayeslista.spike_slab.hyperparameter_gibbs import Trace  # numba takes half a second to import

        self.sums, self.time, traces = np.zeros((3, len(problem.h))), np.zeros(len(problem.h)), []
        if problem.sets.whole:
            traces = [self._stretches(n, problem, duration)]
        for _ in range(0 if problem.sets.whole else n):
            for _ in range(problem.sets.n_visits):
                trace = self._stretches(1, problem, duration)
            traces.append(trace)
        self.trace = Trace(*(np.concatenate(parts) for parts in zip(*traces, strict=True)))
        self.ends = np.cumsum(self.trace.n_active)

    def _stretches(self, n: int, problem: "Problem", duration: float) -> Any:
        """Run n stretches of the next set."""
        from bayeslista.spike_slab.chains import new_state
        from bayeslista.spike_slab.exact import SlabOdds
        from bayeslista.spike_slab.hyperparameter_gibbs import gibbs

        columns, G, n_changing = problem.sets.visit(self.number, self.support)
        m, used = len(columns), columns >= 0
        place = np.full(len(problem.h), -1)
        place[columns[used]] = np.flatnonzero(used)
        state = new_state(m)
        state.active[0] = len(self.support)
        state.active[1 : 1 + len(self.support)] = place[self.support]
        given, h = (np.where(used, values[columns], 0.0) for values in (problem.given_odds, problem.h))
        frozen = used & ((np.arange(m) >= n_changing) | (given == np.inf))
        prior = SlabOdds(np.ones((1, m)), np.zeros((1, m)), np.ones((1, m)))
        sums = np.zeros((3, m))
        trace = gibbs(
            *(n, duration, G, h, problem.yy, problem.dof, given, frozen, problem.n_free),
            *(problem.spec, prior, state, self.hyper, self.random, sums),
        )
        self.support = np.sort(columns[state.active[1 : 1 + state.active[0]]])
        free = columns[:n_changing]
        self.sums[:, free] += sums[:, :n_changing]
        self.time[free] += n
        self.number += 1
        return trace._replace(columns=columns[trace.columns])


@dataclass(frozen=True)
class Problem:
    """One response: columns, Zᵀy, yᵀy, degrees of freedom, prior odds (NaN: learned; infinite: always active)."""

    sets: ColumnSets
    h: _Array
    yy: float
    dof: float
    given_odds: _Array
    spec: Any

    @property
    def n_free(self) -> int:
        """Columns whose prior odds are learned."""
        return int(np.isnan(self.given_odds).sum())


def default_prior(D: int, column_var: float = 1.0) -> Any:
    """Weak priors of hyperparameters for a response of unit variance; the slab is relative to the noise variance."""
    # The noise counts as a tenth of an observation, small enough for R² = 1 − 10⁻⁷ at 100 samples; the slab as one
    # coefficient of 0.3 noise standard deviations per standard deviation of a column; one active column is expected.
    from bayeslista.spike_slab.hyperparameter_gibbs import HyperPrior

    return HyperPrior(0.05, 5e-6, 0.5, 0.1 / column_var, 1.0, float(max(D, 1)), np.nan, np.nan)


def sample_response(
    problem: Problem,
    seed: Any,
    schedule: Schedule = Schedule(),  # noqa: B008 frozen
    progress: Callable[[int], Any] = lambda n: None,
) -> ResponsePosterior:
    """Run the chains of one response until they have converged, or for the most stretches."""
    D, spec = len(problem.h), problem.spec
    always = np.flatnonzero(problem.given_odds == np.inf)
    possible = np.flatnonzero((problem.given_odds > 0) | np.isnan(problem.given_odds))
    rng = np.random.default_rng(seed)
    chains = []
    for number in range(schedule.n_chains):
        # From the least support, and from random ones.
        size = min(number * 5, len(possible), int(problem.dof / 4))
        support = np.union1d(always, rng.choice(possible, size, replace=False) if size else possible[:0])
        noise = 0.5 * problem.yy / max(problem.dof, 1.0) if np.isnan(spec.noise_var) else spec.noise_var
        slab = spec.slab_scale / spec.slab_shape if np.isnan(spec.slab_var) else spec.slab_var / noise
        prob = spec.prob_alpha / (spec.prob_alpha + spec.prob_beta)
        random = np.frombuffer(rng.bytes(32), np.uint64).copy()
        chains.append(_Chain(support.astype(np.int64), np.array([noise, slab, prob]), random))
    sets = problem.sets
    if not sets.whole:
        # Which columns are hot is found by the first rounds, which are not kept, and fixed from then on.
        sets.choose(np.abs(problem.h), always)
        for _ in range(2):
            for chain in chains:
                chain.run(2 * ITERATIONS_A_CYCLE, problem, schedule.duration)
            prob = np.mean([chain.sums[0] / np.maximum(chain.time, 1.0) for chain in chains], axis=0)
            likely = np.argsort(-prob, kind="stable")[:_MOST_LIKELY]
            sets.choose(prob, likely[prob[likely] > _LIKELY])
    length, total = schedule.first_round, 0
    while True:
        for chain in chains:
            chain.run(length, problem, schedule.duration)
            progress(length)
        total += length
        if total > length:
            measured = _measure(chains, length, D)
            good = all(np.all(r < schedule.rhat) for r in measured[::2])
            good = good and all(np.all(e > schedule.ess) for e in measured[1::2])
            if good or 2 * total > schedule.max_iter:
                break
        length = total if total > length else 2 * length
    seen = np.maximum(sum(chain.time for chain in chains), 1.0)
    prob, mean, square = sum(chain.sums for chain in chains) / seen
    prob[always] = 1.0
    share = schedule.n_draws // schedule.n_chains
    picks = np.unique(np.linspace(0, length - 1, min(share, length)).astype(int))
    kept = [_pick(chain, picks) for chain in chains]
    n_active, columns, values, scalars = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return ResponsePosterior(prob, mean, square, n_active, columns, values, scalars, *measured, total, good)


def _pick(chain: _Chain, picks: NDArray[np.int64]) -> tuple[Any, ...]:
    """Some draws of a chain."""
    trace = chain.trace
    inside = np.concatenate(
        [np.arange(chain.ends[i] - trace.n_active[i], chain.ends[i]) for i in picks] or [picks]
    ).astype(int)
    return trace.n_active[picks], trace.columns[inside], trace.values[inside], trace.scalars[picks]


def _measure(chains: list[_Chain], n: int, D: int) -> tuple[_Array, _Array, _Array, _Array]:
    """Split R-hat and ESS of every coefficient, and of the model size and the logarithm of the noise variance."""
    rhat, ess = np.ones(D), np.full(D, float(n * len(chains)))
    seen = np.unique(np.concatenate([chain.trace.columns for chain in chains]))
    for part in np.array_split(seen, max(1, len(seen) * n * len(chains) // 500_000)):
        place = np.full(D, -1)
        place[part] = np.arange(len(part))
        draws = np.zeros((len(part), len(chains), n))
        for i, chain in enumerate(chains):
            rows, where = np.repeat(np.arange(n), chain.trace.n_active), place[chain.trace.columns]
            draws[where[where >= 0], i, rows[where >= 0]] = chain.trace.values[where >= 0]
        if len(part):
            rhat[part], ess[part] = split_rhat_ess(draws)
    scalars = [[chain.trace.n_active for chain in chains], [np.log(chain.trace.scalars[:, 0]) for chain in chains]]
    return rhat, ess, *split_rhat_ess(np.array(scalars, np.float64))


class GivenPrior(NamedTuple):
    """What a user gives of the model: P(active) of each column (NaN: learned), or the number of active ones."""

    prob_active: _Array
    n_active: float | None
    slab_var: float
    noise_std: float


class TargetFit(NamedTuple):
    """The posterior of one response in the units of the data; ``found`` is None where the response is constant."""

    intercept: float
    prob_active: _Array
    slab_mean: _Array
    slab_var: _Array
    noise_std: float
    slab_size: float
    share_active: float
    draws: RegressionDraws
    found: ResponsePosterior | None


def regress(
    columns: DesignColumns,
    Y: _Array,
    centre: bool,
    given: GivenPrior,
    seed: int,
    schedule: Schedule,
    n_jobs: int | None = None,
    progress: Callable[[int], Any] = lambda n: None,
) -> list[TargetFit]:
    """The posterior of every column of Y; they share the Gram matrix."""
    sets = ColumnSets(columns)

    def solve(t: int) -> TargetFit:
        return _solve(sets, columns, np.ascontiguousarray(Y[:, t]), centre, given, (seed, t), schedule, progress)

    # Threads share the one Gram matrix; sets of columns belong to one response at a time.
    return Parallel(n_jobs=n_jobs if sets.whole else 1, backend="threading")(
        delayed(solve)(t) for t in range(Y.shape[1])
    )


def _solve(
    sets: ColumnSets,
    columns: DesignColumns,
    y: _Array,
    centre: bool,
    given: GivenPrior,
    seed: tuple[int, int],
    schedule: Schedule,
    progress: Callable[[int], Any],
) -> TargetFit:
    """The posterior of one response, sampled in units of its standard deviation."""
    D, n = columns.D, columns.weights.sum()
    y_mean = float(columns.weights @ y / n) if centre else 0.0
    deviation = y - y_mean
    unit = float(np.sqrt(columns.weights @ deviation**2 / n))
    if unit <= 1e-13 * np.abs(y).max():  # the round-off of the mean
        if np.isnan(given.noise_std):
            zeros, none = np.zeros(D), np.zeros(0)
            constant = np.full(schedule.n_draws, y_mean)
            draws = RegressionDraws(np.zeros_like(constant, int), none.astype(int), none, constant, 0 * constant)
            return TargetFit(y_mean, zeros, zeros, zeros, 0.0, 0.0, 0.0, draws, None)
        deviation, unit = 0.0 * y, given.noise_std
    weighted = np.sqrt(columns.weights) * deviation / unit
    # Prior: columns that are constant are never active; the slab is relative to columns of unit variance.
    usable = ~columns.constant
    prob = np.where(usable, given.prob_active, 0.0)
    if given.n_active is not None:
        prob[np.isnan(prob)] = min(given.n_active / max(usable.sum(), 1), 1.0 - 1e-12)
    with np.errstate(divide="ignore"):
        odds = prob / (1.0 - prob)
    size = float(np.mean((columns.spread / columns.scale)[usable] ** 2)) if usable.any() else 1.0
    spec = default_prior(int(usable.sum()), size)._replace(
        noise_var=(given.noise_std / unit) ** 2, slab_var=given.slab_var / unit**2
    )
    problem = Problem(sets, columns.project(weighted), float(np.round(weighted @ weighted, 9)), n - centre, odds, spec)
    found = sample_response(problem, seed, schedule, progress)
    # Back to the units of the data.
    factor = unit / columns.scale
    active = found.prob_active > 0
    slab_mean = np.divide(found.mean, found.prob_active, out=np.zeros(D), where=active)
    square = np.divide(found.square, found.prob_active, out=np.zeros(D), where=active)
    least = np.finfo(float).eps * square
    coef = found.mean * factor
    random = np.random.default_rng((*seed, 1))
    noise = unit * np.sqrt(found.scalars[:, 0])
    values = found.values * factor[found.columns]
    ends = np.cumsum(found.n_active)
    offsets = np.concatenate([[0.0], np.cumsum(values * columns.mean[found.columns])])
    intercept = y_mean - (offsets[ends] - offsets[ends - found.n_active])
    if centre:
        intercept = intercept + noise / np.sqrt(n) * random.standard_normal(len(noise))
    return TargetFit(
        y_mean - float(columns.mean @ coef),
        found.prob_active,
        slab_mean * factor,
        np.maximum(square - slab_mean**2, least) * factor**2,
        float(noise.mean()),
        float(np.median(found.scalars[:, 1])) * unit**2,
        float(found.scalars[:, 2].mean())
        if np.isnan(odds).any()
        else float(prob[usable].mean())
        if usable.any()
        else 0.0,
        RegressionDraws(found.n_active, found.columns, values, intercept, noise),
        found,
    )


def draw_matrix(draws: RegressionDraws, D: int) -> Any:
    """Coefficients of joint draws, one draw a row, as a sparse array."""
    starts = np.concatenate([[0], np.cumsum(draws.n_active)])
    return csr_array((draws.values, draws.columns, starts), shape=(len(draws.n_active), D))


def predicted_means(draws: RegressionDraws, X: Any) -> _Array:
    """Linear predictors of rows, one draw a row."""
    product = draw_matrix(draws, X.shape[1]) @ X.T
    return np.asarray(product.toarray() if hasattr(product, "toarray") else product) + draws.intercept[:, None]


def mixture_quantile(means: _Array, std: _Array, p: float) -> _Array:
    """Quantiles of equal mixtures of Gaussians, one a column, by Newton's method within a bracket."""
    if p <= 0.0 or p >= 1.0:
        return np.full(means.shape[1], np.inf if p >= 1.0 else -np.inf)
    ends = means + ndtri(p) * std[:, None]
    low, high = ends.min(axis=0), ends.max(axis=0)
    x = ends.mean(axis=0)
    scale = np.where(std > 0.0, std, 1e-300)[:, None]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for _ in range(100):
            z = (x - means) / scale
            gap = ndtr(z).mean(axis=0) - p
            density = np.mean(np.exp(-0.5 * z * z) / scale, axis=0) / np.sqrt(2.0 * np.pi)
            low, high = np.where(gap < 0.0, x, low), np.where(gap < 0.0, high, x)
            step = x - gap / density
            following = np.where((step > low) & (step < high), step, 0.5 * (low + high))
            if np.all(np.abs(following - x) <= 1e-12 * (np.abs(x) + std.max())):
                break
            x = following
    return following
