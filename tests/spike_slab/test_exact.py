"""The exact sampler against the sum over all supports, simulation-based calibration, and broken copies of itself."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from bayeslista.spike_slab import chains, jump_process
from bayeslista.spike_slab.exact import Budget, sample_posterior, slab_odds

LONG = Budget(tolerance=0.0, first_round=20_000, most_moves=600_000)
SWEEPS = Budget(tolerance=1.0, largest_r_hat=9.0, least_active=0.0, first_sweeps=200)  # every signal ends after 400


def problem(seed=0, K=6, D=7, n=3, n_parts=2, twins=True):
    """Unequal noise, probabilities and slabs, two columns nearly equal, and slabs that are not centred."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((K, D))
    if twins:
        X[:, 1] = X[:, 0] + 0.2 * rng.standard_normal(K)
    noise_var = (0.5 * np.exp(0.5 * rng.standard_normal(K))) ** 2
    weight = rng.dirichlet(np.ones(n_parts))
    slab = rng.normal(0, 0.5, (n_parts, D)), rng.uniform(0.3, 3.0, (n_parts, D))
    prior = slab_odds(rng.uniform(0.1, 0.5, D), weight, *slab, D)
    codes = np.where(rng.random((n, D)) < 0.3, rng.standard_normal((n, D)), 0.0)
    Y = codes @ X.T + np.sqrt(noise_var) * rng.standard_normal((n, K))
    return X, noise_var, prior, Y


def enumerated(X, noise_var, prior, y):
    """P(active), mean and mean square of every coefficient, by the sum over all supports and components."""
    whitened, n_parts, D = X / np.sqrt(noise_var)[:, None], *prior.mean.shape
    G, h = whitened.T @ whitened, whitened.T @ (y / np.sqrt(noise_var))
    logs, moments = [], []
    for choice in itertools.product(range(n_parts + 1), repeat=D):
        S = [j for j in range(D) if choice[j]]
        parts = [choice[j] - 1 for j in S]
        precision, mean = prior.precision[parts, S], prior.mean[parts, S]
        A, shift = G[np.ix_(S, S)] + np.diag(precision), h[S] + mean * precision
        E = np.linalg.inv(A)
        evidence = 0.5 * (shift @ E @ shift - np.sum(mean**2 * precision) + np.sum(np.log(precision)))
        logs.append(np.sum(np.log(prior.odds[parts, S])) + evidence - 0.5 * np.linalg.slogdet(A)[1])
        found = np.zeros((3, D))
        found[0, S], found[1, S] = 1.0, E @ shift
        found[2, S] = found[1, S] ** 2 + np.diag(E)
        moments.append(found)
    weights = np.exp(np.array(logs) - max(logs))
    return np.tensordot(weights / weights.sum(), np.array(moments), axes=1)


def moments_of(found):
    prob, mean = found.prob_active, found.slab_mean
    return np.stack([prob, prob * mean, prob * (found.slab_var + mean**2)], axis=1)


def error_against_enumeration(seed=0, n_parts=2, budget=LONG):
    X, noise_var, prior, Y = problem(seed, n_parts=n_parts)
    found = moments_of(sample_posterior(X, noise_var, prior, Y, 1, budget=budget))
    return np.abs(found - np.array([enumerated(X, noise_var, prior, y) for y in Y])).max()


class TestAgainstTheSumOverAllSupports:
    @pytest.mark.parametrize(("seed", "n_parts"), [(0, 1), (1, 2)])
    def test_moments_agree(self, seed, n_parts):
        # 300,000 moves a chain; over ten other seeds the largest deviation was 0.006.
        assert error_against_enumeration(seed, n_parts) < 0.012

    @pytest.mark.parametrize(("seed", "n_parts"), [(2, 1), (3, 2)])
    def test_moments_of_gibbs_sweeps_agree(self, seed, n_parts):
        X, noise_var, prior, Y = problem(seed, K=14, n_parts=n_parts, twins=False)
        budget = replace(SWEEPS, first_sweeps=100_000, most_sweeps=1_000_000)
        found = sample_posterior(X, noise_var, prior, Y, 1, budget=budget)
        assert (found.diagnostics.n_sweeps == 400_000).all()
        assert (found.diagnostics.n_moves == 0).all()
        error = np.abs(moments_of(found) - np.array([enumerated(X, noise_var, prior, y) for y in Y])).max()
        # Over ten other seeds at most 0.0044.
        assert error < 0.009

    def test_draws_have_the_moments_of_the_posterior(self):
        X, noise_var, prior, Y = problem(3, n=1)
        draws = sample_posterior(X, noise_var, prior, Y, 0, n_draws=8_000, budget=LONG).draws[:, 0]
        expected = enumerated(X, noise_var, prior, Y[0])
        found = np.array([np.mean(draws != 0, axis=0), np.mean(draws, axis=0), np.mean(draws**2, axis=0)])
        # Draws are at distances of about 20 moves: allow for an autocorrelation time of 5.
        margin = 5 * np.sqrt(5 * np.array([draws.astype(bool).var(0), draws.var(0), (draws**2).var(0)]) / len(draws))
        assert (np.abs(found - expected) < margin + 1e-3).all()

    def test_odds_beyond_the_range_of_doubles_keep_the_shares_of_components(self):
        prior = slab_odds(0.5, [0.5, 0.5], 0.0, [0.13, 4.0], 1)
        X, noise_var, Y = np.ones((10, 1)), np.ones(10), np.full((1, 10), 40.0)  # odds of e^7600 and e^4500
        found = moments_of(sample_posterior(X, noise_var, prior, Y, 0))
        assert np.allclose(found[0], enumerated(X, noise_var, prior, Y[0]), rtol=1e-9)

    @pytest.mark.slow
    def test_moments_agree_with_twelve_coefficients(self):
        X, noise_var, prior, Y = problem(11, K=9, D=12, n=1, n_parts=1)  # 4,096 supports
        found = moments_of(sample_posterior(X, noise_var, prior, Y, 1, budget=LONG))
        assert np.abs(found[0] - enumerated(X, noise_var, prior, Y[0])).max() < 0.012

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(4, 10))
    def test_moments_agree_on_more_problems(self, seed):
        assert error_against_enumeration(seed, 1 + seed % 2) < 0.012


@pytest.mark.slow
class TestBrokenMoves:
    """The comparison with enumeration fails for wrong rates, swaps and updates, each broken on purpose."""

    @pytest.fixture(autouse=True)
    def _interpreted(self, monkeypatch):
        for module in (jump_process, chains):
            for name, value in list(vars(module).items()):
                if hasattr(value, "py_func"):
                    monkeypatch.setattr(module, name, value.py_func)
        monkeypatch.setattr(jump_process, "_exp", np.exp)
        for module in (jump_process, chains):
            monkeypatch.setattr(module, "uniform", lambda random: random.random())

    def error(self, n_moves=40_000):
        X, noise_var, prior, Y = problem(0, n=1, n_parts=1, D=4, K=4)
        whitened = X / np.sqrt(noise_var)[:, None]
        G, h = whitened.T @ whitened, whitened.T @ (Y[0] / np.sqrt(noise_var))
        state, sums = chains.new_state(4), np.zeros((3, 4))
        jump_process.clear(G, h, state)
        random = np.random.default_rng(0)
        time = jump_process.run(n_moves, np.inf, G, h, prior, state, random, sums)
        return np.abs(sums / time - enumerated(X, noise_var, prior, Y[0])).max()

    def test_as_it_is(self):
        assert self.error() < 0.03

    def test_any_cap_on_the_rates_is_balanced_unless_leaving_ignores_it(self, monkeypatch):
        monkeypatch.setattr(jump_process, "RATE_CAP", 0.2)
        assert self.error() < 0.03
        monkeypatch.setattr(jump_process, "max", lambda a, b: b if b == 0.2 else max(a, b), raising=False)
        assert self.error() > 0.05

    def test_a_successor_drawn_uniformly(self, monkeypatch):
        original = jump_process._draw_column

        def draw(weights, total, random):
            return original(np.where(weights > 0, 1.0, 0.0), float(np.sum(weights > 0)), random)

        monkeypatch.setattr(jump_process, "_draw_column", draw)
        assert self.error() > 0.05

    def test_an_update_that_forgets_the_mean(self, monkeypatch):
        original = jump_process.enter

        def enter(j, component, G, prior, state, work):
            q = state.q.copy()
            original(j, component, G, prior, state, work)
            state.q[:] = q

        monkeypatch.setattr(jump_process, "enter", enter)
        assert self.error() > 0.05


def prior_draws(rng, prior, n):
    """Codes of a prior."""
    n_parts, D = prior.mean.shape
    total = prior.odds.sum(axis=0)
    part = np.array([rng.choice(n_parts, size=n, p=prior.odds[:, j] / total[j]) for j in range(D)]).T
    values = prior.mean[part, np.arange(D)] + rng.standard_normal((n, D)) / np.sqrt(prior.precision[part, np.arange(D)])
    return np.where(rng.random((n, D)) < total / (1 + total), values, 0.0)


@pytest.mark.parametrize("budget", [Budget(), SWEEPS], ids=["jumps", "sweeps"])
def test_simulation_based_calibration_is_uniform(budget):
    # A mixture slab, unequal probabilities and noise, two columns nearly equal.
    rng = np.random.default_rng(0)
    X, noise_var, prior, _ = problem(0, K=8, D=12)
    codes = prior_draws(rng, prior, 200)
    Y = codes @ X.T + np.sqrt(noise_var) * rng.standard_normal((200, 8))
    draws = sample_posterior(X, noise_var, prior, Y, 0, n_draws=19, budget=budget).draws
    statistics = [
        lambda b: (b != 0).sum(axis=-1),
        lambda b: b.sum(axis=-1),
        *(lambda b, j=j: b[..., j] for j in (0, 1, 5)),
    ]
    for statistic in statistics:
        value, drawn = statistic(codes), statistic(draws)
        less, equal = np.sum(drawn < value, axis=0), np.sum(drawn == value, axis=0)
        ranks = less + rng.integers(0, equal + 1)  # ties in random order
        counts = np.bincount(ranks // 4, minlength=5)
        assert chisquare(counts).pvalue > 1e-3


class TestJointDistribution:
    """Codes given the support, observations given codes, supports given observations: in turn they keep the prior.

    Geweke's test, by independent chains of 20 turns that begin at the prior: their last state has its distribution.
    """

    D, TURNS = 3, 20

    def counts(self, n_chains, seed=0, duration=1.0):
        """How often each support with its components is the last of a chain, and its probability under the prior."""
        K, D, n_parts = 3, self.D, 2
        X, noise_var, prior, _ = problem(seed, K=K, D=D, n_parts=n_parts)
        std = np.sqrt(noise_var)
        whitened = X / std[:, None]
        G, rng = whitened.T @ whitened, np.random.default_rng(seed)
        bits, work, sums = rng.integers(2**63, size=4).astype(np.uint64), np.empty(D), np.zeros((3, D))
        choices = list(itertools.product(range(n_parts + 1), repeat=D))
        state, found = chains.new_state(D), np.zeros(len(choices))
        weights = np.concatenate([np.ones((1, D)), prior.odds]) / (1 + prior.odds.sum(axis=0))
        chances = np.array([np.prod([weights[part, j] for j, part in enumerate(choice)]) for choice in choices])
        for first in rng.choice(len(choices), size=n_chains, p=chances):
            choice = choices[first]
            parts = np.maximum(np.array(choice) - 1, 0), np.arange(D)
            codes = prior.mean[parts] + rng.standard_normal(D) / np.sqrt(prior.precision[parts])
            codes = np.where(np.array(choice) > 0, codes, 0.0)
            for _ in range(self.TURNS):
                h = whitened.T @ ((X @ codes) / std + rng.standard_normal(K))
                jump_process.clear(G, h, state)
                for j, part in enumerate(choice):
                    if part:
                        jump_process.enter(j, part - 1, G, prior, state, work)
                jump_process.run(1 << 60, duration, G, h, prior, state, bits, sums)
                choice = tuple(int(state.component[j]) + 1 if state.position[j] >= 0 else 0 for j in range(D))
                codes[:] = 0.0
                chains.draw_values(state, bits, codes)
            found[choices.index(choice)] += 1
        return found, chances * n_chains

    @pytest.mark.slow
    def test_the_prior_is_left_as_it_is(self):
        found, expected = self.counts(3000)
        assert chisquare(found, expected).pvalue > 1e-4

    def test_the_prior_is_left_as_it_is_by_a_few_chains(self):
        found, expected = self.counts(400, duration=0.3)
        assert chisquare(found, expected).pvalue > 1e-4


class TestOneSignal:
    def test_neither_batch_nor_order_nor_threads_change_a_bit(self):
        X, noise_var, prior, Y = problem(5, n=6)
        whole = sample_posterior(X, noise_var, prior, Y, 3)
        turned = sample_posterior(X, noise_var, prior, Y[::-1], 3, n_jobs=2)
        one = sample_posterior(X, noise_var, prior, Y[2:3], 3)
        assert np.array_equal(whole.slab_mean, turned.slab_mean[::-1])
        assert np.array_equal(whole.prob_active[2:3], one.prob_active)
        other = sample_posterior(X, noise_var, prior, Y, 4)
        assert not np.array_equal(whole.slab_mean, other.slab_mean)

    def test_equal_columns_share_their_probability(self):
        X = np.repeat(np.random.default_rng(0).standard_normal((5, 2)), 2, axis=1)
        y = 2.0 * X[:, :1].T
        found = sample_posterior(X, np.full(5, 0.01), slab_odds(0.2, 1.0, 0.0, 1.0, 4), y, 0, budget=LONG)
        assert found.prob_active[0, 0] == pytest.approx(found.prob_active[0, 1], abs=0.02)

    @pytest.mark.parametrize("scale", [1e-150, 1e-8, 1.0, 1e8])
    def test_extreme_scales_of_the_noise_stay_finite(self, scale):
        X, _, prior, Y = problem(6, n=2)
        found = sample_posterior(X, np.full(len(X), scale), prior, Y, 0)
        assert all(np.isfinite(part).all() for part in found[:3])
        assert ((found.prob_active > 0) & (found.prob_active < 1)).all()
        assert (found.slab_var > 0).all()

    def test_a_signal_whose_chains_disagree_is_counted(self):
        X, noise_var, prior, Y = problem(7, n=4)
        found = sample_posterior(X, noise_var, prior, Y, 0, budget=Budget(tolerance=1e-9, most_moves=2_000))
        assert not found.diagnostics.converged.any()
        assert (found.diagnostics.n_moves >= 2_000).all()

    def test_moments_that_are_no_numbers_become_those_of_the_prior_and_are_counted(self, monkeypatch):
        def run(n_moves, duration, G, h, prior, state, random, sums):
            sums[:] = np.nan
            return 1.0

        monkeypatch.setattr(chains, "run", run)
        X, noise_var, _, Y = problem(8, n=2)
        found = sample_posterior(X, noise_var, slab_odds(0.3, 1.0, 0.5, 2.0, 7), Y, 0, n_draws=3)
        assert np.allclose(found.prob_active, 0.3)
        assert np.allclose(found.slab_mean, 0.5)
        assert np.allclose(found.slab_var, 2.0)
        assert np.isfinite(found.draws).all()
        assert not found.diagnostics.converged.any()

    def test_many_active_columns_are_swept_and_correlated_ones_jump(self):
        rng = np.random.default_rng(0)
        X, noise_var, prior = rng.standard_normal((300, 200)), np.full(300, 4.0), slab_odds(0.3, 1.0, 0.0, 1.0, 200)
        Y = prior_draws(rng, prior, 2) @ X.T + 2.0 * rng.standard_normal((2, 300))
        found = sample_posterior(X, noise_var, prior, Y, 0, n_draws=10)
        assert (found.diagnostics.n_sweeps > 0).all()
        jumps = sample_posterior(X, noise_var, prior, Y, 0, budget=Budget(least_active=np.inf))
        assert (jumps.diagnostics.n_sweeps == 0).all()
        means = [each.prob_active * each.slab_mean for each in (found, jumps)]
        assert np.linalg.norm(means[0] - means[1]) < 0.05 * np.linalg.norm(means[1])
        assert found.draws.shape == (10, 2, 200)
        assert np.linalg.norm(found.draws.mean(axis=0) - means[0]) < 0.15 * np.linalg.norm(means[0])
        copies = np.repeat(X[:, :100], 2, axis=1) + 1e-3 * rng.standard_normal((300, 200))
        found = sample_posterior(copies, noise_var, prior, Y[:1], 0)
        assert (found.diagnostics.n_moves > 0).all()
