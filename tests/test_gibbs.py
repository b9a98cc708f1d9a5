"""The Gibbs sampler against all supports enumerated, quadrature, mpmath and the reference chains."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_ndtr, logsumexp

from bayeslista.datasets import make_sparse_codes
from bayeslista.experiments.gibbs import _slab, _tail, _tail_draw, gibbs_posterior

# How many standard errors a test tolerates. The errors are estimated from 8 or more chains, so that errors over
# standard errors have Student's t distribution with 7 degrees of freedom: beyond 9 once in 20,000.
CHAINS = 8
TOLERATED = 9.0
tail, tail_draw = jax.jit(_tail), jax.jit(_tail_draw)
slab_with_gap = jax.jit(partial(_slab, has_gap=True))


def exact_moments(X, y, p, noise_std, slab_std):
    """Mean, variance and P(active) with the plain slab: the sum over all supports by Gaussian algebra."""
    D = X.shape[1]
    log_weights, means, squares = [], [], []
    supports = np.array(list(itertools.product([False, True], repeat=D)))
    for support in supports:
        columns = X[:, support]
        covariance = noise_std**2 * np.eye(len(y)) + slab_std**2 * columns @ columns.T
        prior = np.where(support, np.log(p), np.log1p(-p)).sum()
        log_weights.append(prior + stats.multivariate_normal.logpdf(y, cov=covariance))
        precision = np.eye(support.sum()) / slab_std**2 + columns.T @ columns / noise_std**2
        inner = np.linalg.inv(precision)
        mean = np.zeros(D)
        mean[support] = inner @ columns.T @ y / noise_std**2
        square = mean**2
        square[support] += np.diag(inner)
        means.append(mean)
        squares.append(square)
    weights = np.exp(log_weights - logsumexp(log_weights))
    mean = weights @ np.array(means)
    return mean, weights @ np.array(squares) - mean**2, weights @ supports


def gridded_moments(X, y, p, gap, noise_std):
    """The same for two coefficients and any gap, by quadrature over a grid of midpoints that begins at the gap."""
    edges = gap + np.linspace(0.0, 8.0, 1601)
    half = (edges[1:] + edges[:-1]) / 2
    points = np.concatenate([-half[::-1], [0.0], half])
    step = edges[1] - edges[0]
    slab = np.exp(stats.norm.logpdf(points) - log_ndtr(-gap) - np.log(2.0)) * step
    prior = np.where(points == 0.0, 1.0 - p, p * slab)
    first, second = np.meshgrid(points, points, indexing="ij")
    error = sum((y[k] - X[k, 0] * first - X[k, 1] * second) ** 2 for k in range(len(y)))
    weights = np.outer(prior, prior) * np.exp(-(error - error.min()) / (2 * noise_std**2))
    weights /= weights.sum()
    marginals = weights.sum(axis=1), weights.sum(axis=0)
    mean = np.array([m @ points for m in marginals])
    return (
        mean,
        np.array([m @ points**2 for m in marginals]) - mean**2,
        np.array([m @ (points != 0) for m in marginals]),
    )


def stacked(rows):
    """The moments of several observations as arrays."""
    return [np.array(part) for part in zip(*rows, strict=True)]


def runs(X, Y, n_runs=CHAINS, **options):
    """Independent runs: estimates of all three moments, and standard errors of their means over runs."""
    results = [gibbs_posterior(X, Y, random_state=seed, **options) for seed in range(n_runs)]
    for name in ("mean", "var", "prob_active"):
        values = np.array([getattr(result, name) for result in results])
        yield values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(n_runs)


def assert_agree(estimates, expected, n_draws):
    for (value, error), truth in zip(estimates, expected, strict=True):
        # What is not met in n draws has a probability below 10 / n, or one would have met it but for a chance of
        # exp(-10). The spread between runs does not tell of it, so it is allowed for.
        unseen = 10.0 / n_draws * max(1.0, np.abs(truth).max())
        np.testing.assert_array_less(np.abs(value - truth), TOLERATED * error + unseen)


class TestPosterior:
    @pytest.mark.parametrize("temperatures", [(1.0,), (1.0, 1.5, 2.5)])
    @pytest.mark.parametrize(("p", "noise_std", "slab_std"), [(0.2, 0.5, 1.0), (0.5, 0.3, 2.0)])
    def test_the_plain_slab_agrees_with_all_supports_enumerated(self, p, noise_std, slab_std, temperatures):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((3, 5))
        B = slab_std * rng.standard_normal((4, 5)) * (rng.random((4, 5)) < p)
        Y = B @ X.T + noise_std * rng.standard_normal((4, 3))
        expected = (
            np.array(part) for part in zip(*(exact_moments(X, y, p, noise_std, slab_std) for y in Y), strict=True)
        )
        known = {"prob_active": p, "noise_std": noise_std, "slab_std": slab_std, "slab_gap": 0.0}
        estimates = runs(X, Y, n_burn_in=500, n_sweeps=2000, temperatures=temperatures, **known)
        assert_agree(estimates, expected, CHAINS * 2 * 2000)

    @pytest.mark.parametrize(("gap", "noise_std"), [(0.1, 0.5), (1.0, 0.5), (0.5, 0.1)])
    def test_the_gap_agrees_with_quadrature(self, gap, noise_std):
        X = np.array([[1.0, 0.6], [0.2, -0.9]])
        Y = np.array([[0.4, -0.3], [1.5, 0.2], [0.0, 0.0]])
        expected = (
            np.array(part) for part in zip(*(gridded_moments(X, y, 0.3, gap, noise_std) for y in Y), strict=True)
        )
        options = {"prob_active": 0.3, "slab_gap": gap, "noise_std": noise_std, "n_burn_in": 200, "n_sweeps": 2000}
        assert_agree(runs(X, Y, temperatures=(1.0, 3.0), **options), expected, CHAINS * 2 * 2000)

    def test_one_coefficient_needs_no_sampling(self):
        # Given all others, of which there are none, the conditional moments are the posterior's.
        result = gibbs_posterior(
            [[1.3]], [[0.7]], slab_gap=0.0, prob_active=0.4, n_burn_in=0, n_sweeps=1, random_state=0
        )
        mean, var, active = exact_moments(np.array([[1.3]]), np.array([0.7]), 0.4, 0.5, 1.0)
        np.testing.assert_allclose(result.mean[0], mean, rtol=1e-13)
        np.testing.assert_allclose(result.var[0], var, rtol=1e-13)
        np.testing.assert_allclose(result.prob_active[0], active, rtol=1e-13)
        # Chains differ by round-off.
        np.testing.assert_allclose(result.std_error, 0.0, atol=1e-15)
        np.testing.assert_allclose(result.gap, 0.0, atol=1e-15)

    def test_certain_activity_and_certain_absence(self):
        X, Y = np.eye(2), np.array([[0.3, -2.0]])
        absent = gibbs_posterior(X, Y, prob_active=0.0, n_burn_in=1, n_sweeps=3, random_state=0)
        for part in absent[:5]:
            np.testing.assert_array_equal(part, 0.0)
        present = gibbs_posterior(X, Y, prob_active=1.0, slab_gap=0.0, n_burn_in=1, n_sweeps=3, random_state=0)
        np.testing.assert_array_equal(present.prob_active, 1.0)
        np.testing.assert_allclose(present.mean, Y / 1.25)
        np.testing.assert_allclose(present.var, 0.2)

    def test_units_do_not_matter(self):
        data = make_sparse_codes(n_train=3, n_test=0, n_observed=4, n_components=5, random_state=1)
        options = {"n_burn_in": 5, "n_sweeps": 20, "random_state": 0}
        one = gibbs_posterior(data.design_matrix, data.Y_train, **options)
        scaled = {"slab_gap": 25.5, "noise_std": 0.5 * 1e-3, "slab_std": 255.0}
        other = gibbs_posterior(data.design_matrix * 1e-3 / 255.0, data.Y_train * 1e-3, **scaled, **options)
        np.testing.assert_allclose(other.mean, 255.0 * one.mean, rtol=1e-6)
        np.testing.assert_allclose(other.var, 255.0**2 * one.var, rtol=1e-6)
        np.testing.assert_allclose(other.gap, one.gap, rtol=1e-6)

    def test_the_seed_decides_every_bit(self):
        X, Y = np.random.default_rng(0).standard_normal((2, 3, 3))
        options = {"slab_gap": 0.0, "n_burn_in": 2, "n_sweeps": 5, "temperatures": (1.0, 2.0)}
        first, same, other = (gibbs_posterior(X, Y, random_state=seed, **options) for seed in (0, 0, 1))
        stream = gibbs_posterior(X, Y, random_state=np.random.default_rng(0), **options)
        for a, b, c in zip(first, same, stream, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c)
        assert (first.mean != other.mean).any()

    def test_error_and_gap_are_those_of_the_spread_between_chains(self):
        data = make_sparse_codes(n_train=2, n_test=0, n_observed=4, n_components=6, random_state=0)
        options = {"n_burn_in": 50, "n_sweeps": 50}
        result = gibbs_posterior(data.design_matrix, data.Y_train, n_chains=2, random_state=0, **options)
        # With two chains the standard error is half their distance.
        distance = np.linalg.norm(2.0 * result.std_error, axis=1)
        np.testing.assert_allclose(result.gap, distance / np.linalg.norm(result.mean, axis=1))
        # Mean squares over 300 runs are within 5 standard errors of each other.
        results = [
            gibbs_posterior(data.design_matrix, data.Y_train, n_chains=2, random_state=s, **options) for s in range(300)
        ]
        claimed = np.array([result.std_error**2 for result in results])
        means = np.array([result.mean for result in results])
        actual = (means - means.mean(axis=0)) ** 2
        margin = 5.0 * np.sqrt((claimed.var(axis=0) + actual.var(axis=0)) / len(results))
        assert (np.abs(claimed.mean(axis=0) - actual.mean(axis=0)) < margin).all()

    def test_replicas_at_almost_one_temperature_always_exchange(self):
        X, Y = np.random.default_rng(0).standard_normal((2, 3, 3))
        ladder = 1.0, 1.0 + 1e-15, 1.0 + 2e-15
        result = gibbs_posterior(X, Y, slab_gap=0.0, n_burn_in=1, n_sweeps=7, temperatures=ladder, random_state=0)
        np.testing.assert_array_equal(result.swap_rate, 1.0)
        assert gibbs_posterior(X, Y, slab_gap=0.0, n_burn_in=0, n_sweeps=1).swap_rate.shape == (0,)

    def test_no_observations_give_no_posteriors(self):
        result = gibbs_posterior(np.eye(2), np.zeros((0, 2)), n_burn_in=1, n_sweeps=1, temperatures=(1.0, 2.0))
        assert result.mean.shape == (0, 2)
        assert result.gap.shape == (0,)
        np.testing.assert_array_equal(result.swap_rate, 0.0)

    def test_tempering_finds_what_a_single_chain_misses(self):
        # Two columns nearly alike and little noise: one of them explains the observation, and to change which, a
        # chain has to pass through states that explain nothing.
        X = np.array([[1.0, 0.98], [0.0, 0.199]])
        y = np.array([[1.0, 0.0995]])
        known = {"prob_active": 0.1, "slab_gap": 0.5, "noise_std": 0.05, "n_burn_in": 200, "n_sweeps": 400}
        expected = stacked([gridded_moments(X, y[0], 0.1, 0.5, 0.05)])
        assert_agree(runs(X, y, temperatures=2.0 ** np.arange(8), **known), expected, CHAINS * 2 * 400)
        # The second column is as likely as the first, but single chains stay with what they found, mostly the first.
        single = gibbs_posterior(X, y, n_chains=32, random_state=0, **known)
        assert single.prob_active[0, 1] < 0.5 * expected[2][0, 1]

    @pytest.mark.parametrize("K", [80, 100])
    def test_it_agrees_with_the_reference_chains(self, shared, K):
        reference = np.load(shared / "reference" / f"limit_k{K}.npz")
        few = slice(0, 6)
        means, variances, chances = (reference[f"gibbs_{name}"][few] for name in ("mean", "var", "active_prob"))
        mean, _, active = runs(reference["X"], reference["Y_test"][few], n_burn_in=100, n_sweeps=100)
        # The reference is an average of 20,000 draws, and has an error of its own.
        of_mean, of_chance = (np.sqrt(spread / 20_000) for spread in (variances, chances * (1.0 - chances)))
        estimates = [(mean[0], np.hypot(mean[1], of_mean)), (active[0], np.hypot(active[1], of_chance))]
        assert_agree(estimates, [means, chances], 20_000)

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            ((np.eye(2), np.zeros((1, 3))), {}, r"design_matrix has shape \(2, 2\) and Y \(1, 3\)"),
            ((np.eye(2), np.zeros(2)), {}, r"Y \(2,\)"),
            ((np.zeros(2), np.zeros((1, 2))), {}, r"design_matrix has shape \(2,\)"),
            ((np.zeros((2, 0)), np.zeros((1, 2))), {}, "K and D at least 1"),
            (([[np.nan]], [[1.0]]), {}, "design_matrix must be finite"),
            (([[1.0]], [[np.inf]]), {}, "Y must be finite"),
            (([["a"]], [[1.0]]), {}, "design_matrix must hold real numbers"),
            (([[1.0]], [[1.0]]), {"temperatures": (2.0, 3.0)}, "temperatures must be 1 and then grow"),
            (([[1.0]], [[1.0]]), {"temperatures": ()}, "temperatures must be 1 and then grow"),
            (([[1.0]], [[1.0]]), {"temperatures": (1.0, 1.0)}, "temperatures must be 1 and then grow"),
            (([[1.0]], [[1.0]]), {"temperatures": (1.0, np.inf)}, "temperatures must be 1 and then grow"),
            (([[1.0]], [[1.0]]), {"temperatures": 1.0}, "temperatures must be 1 and then grow"),
            (([[1.0]], [[1.0]]), {"prob_active": 1.1}, r"prob_active must be a number, in \[0, 1\], got 1.1"),
            (([[1.0]], [[1.0]]), {"prob_active": "0.1"}, "prob_active must be a number"),
            (([[1.0]], [[1.0]]), {"slab_gap": -0.1}, "slab_gap must be a number, finite and at least 0"),
            (([[1.0]], [[1.0]]), {"noise_std": 0.0}, "noise_std must be a number, finite and larger than 0"),
            (([[1.0]], [[1.0]]), {"slab_std": np.inf}, "slab_std must be a number, finite and larger than 0"),
            (([[1.0]], [[1.0]]), {"n_chains": 1}, "n_chains must be an integer of at least 2, got 1"),
            (([[1.0]], [[1.0]]), {"n_burn_in": -1}, "n_burn_in must be an integer of at least 0, got -1"),
            (([[1.0]], [[1.0]]), {"n_sweeps": 1.5}, "n_sweeps must be an integer of at least 1, got 1.5"),
        ],
    )
    def test_wrong_input_is_named(self, arguments, options, message):
        with pytest.raises(ValueError, match=message):
            gibbs_posterior(*arguments, **options)


class TestTails:
    @pytest.mark.parametrize("start", [-40.0, -5.0, -0.3, 0.0, 0.3, 5.0, 40.0, 1e4, 1e8])
    def test_moments_of_a_tail_agree_with_mpmath(self, start):
        with jax.enable_x64(True):
            found = tail(jnp.asarray(start))
        with mpmath.workdps(60):
            mass = mpmath.erfc(mpmath.mpf(start) / mpmath.sqrt(2)) / 2
            mean = mpmath.npdf(start) / mass
            var = 1 + mean * (start - mean)
        assert float(found.log_mass) == pytest.approx(float(mpmath.log(mass)), rel=1e-14, abs=1e-300)
        assert float(found.mean) == pytest.approx(float(mean), rel=1e-13)
        assert float(found.var) == pytest.approx(float(var), rel=1e-12)

    @given(st.one_of(st.floats(-10.0, 60.0), st.sampled_from([5.0, 5.0000001, 1e3, 1e6])), st.floats(1e-15, 1 - 1e-9))
    @settings(max_examples=60)
    def test_a_draw_has_the_fraction_asked_for_beyond_it(self, start, fraction):
        with jax.enable_x64(True):
            at = jnp.asarray(start)
            point = tail_draw(at, tail(at).log_mass, jnp.asarray(fraction))
        with mpmath.workdps(40):
            beyond, all_of_it = (mpmath.erfc(mpmath.mpf(float(x)) / mpmath.sqrt(2)) for x in (point, start))
            error = float(abs(beyond / all_of_it - fraction))
            # A few units in the last place of the point, which move what is beyond it by at most this.
            hazard = max(float(point), 0.0) + 1.0
            assert error < 1e-14 * (1.0 + hazard * max(abs(float(point)), 1.0) * fraction)
        assert float(point) >= start

    @given(st.floats(-4.0, 4.0), st.floats(0.01, 2.0), st.floats(0.01, 3.0))
    @settings(max_examples=30)
    def test_draws_have_the_moments_that_are_claimed_and_keep_out_of_the_gap(self, mean, var, gap):
        n = 4001
        uniform = (np.arange(n) + 0.5) / n
        with jax.enable_x64(True):
            slab = slab_with_gap(*(jnp.asarray(x) for x in (mean, var, gap, uniform)))
        draws = np.asarray(slab.draw)
        assert (np.abs(draws) >= gap).all()
        # Equally spaced levels are a midpoint rule. Its error is at most one cell of the range of what is averaged.
        reach = np.ptp(draws)
        assert abs(draws.mean() - float(slab.mean)) < 2 * reach / n
        assert abs(((draws - float(slab.mean)) ** 2).mean() - float(slab.var)) < 4 * reach**2 / n
        probability = stats.norm.sf((gap - mean) / np.sqrt(var)) + stats.norm.sf((gap + mean) / np.sqrt(var))
        assert float(slab.log_mass) == pytest.approx(np.log(probability), rel=1e-9, abs=1e-9)

    def test_a_gap_far_beyond_the_slab_is_still_sampled(self):
        with jax.enable_x64(True):
            slab = slab_with_gap(*(jnp.asarray(x) for x in (0.0, 1e-6, 1.0, [0.25, 0.5 - 1e-9, 0.75])))
        draws = np.asarray(slab.draw)
        # Beyond 1000 standard deviations a tail is exponential with mean one thousandth of one.
        np.testing.assert_allclose(np.abs(draws) - 1.0, 1e-6 * np.log([2.0, 1.0, 2.0]), rtol=1e-5, atol=1e-11)
        assert np.isfinite(slab.log_mass)
