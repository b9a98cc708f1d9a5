"""Calibration on held-out pairs: against a model whose posterior is known, at its limits, and under rescaling."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import expit

from bayeslista.bayes_lista.output_calibration import (
    Calibration,
    calibrated_spike_slab,
    fast_spike_slab,
    fit_calibration,
    output_gain,
)
from bayeslista.distributions import SpikeSlab

CHANCE, GAIN, SLAB_VAR, NOISE = 0.2, 0.8, 4.0, 0.3


def simulate(n_pairs, n_components=50, seed=0, chance=CHANCE, noise_spread=0.0, heavy=False, sign=None):
    """Pre-activations ``c = gβ + noise`` of Bernoulli-Gaussian codes, and the exact posterior of each code."""
    random = np.random.default_rng(seed)
    shape = (n_pairs, n_components)
    active = random.random(shape) < chance
    code = active * random.normal(0.0, np.sqrt(SLAB_VAR), shape)
    if sign is not None:
        code = sign * np.abs(code)
    noise = NOISE * np.exp(noise_spread * random.standard_normal((n_pairs, 1))) * np.ones(shape)
    # Six degrees of freedom: heavy tails, yet a fourth moment, without which no mean square settles.
    error = random.standard_t(6, shape) / np.sqrt(1.5) if heavy else random.standard_normal(shape)
    c = GAIN * code + np.sqrt(noise) * error
    total = GAIN**2 * SLAB_VAR + noise
    odds = np.log(chance) - np.log1p(-chance) - 0.5 * np.log(total / noise) + 0.5 * c * c * (1 / noise - 1 / total)
    prob, slab_mean, slab_var = expit(odds), GAIN * SLAB_VAR / total * c, SLAB_VAR * noise / total
    # The network's own variance is the wrong one, as it is in practice.
    return {"given": (c, noise / 30.0, prob * slab_mean), "code": code, "exact": (prob, slab_mean, slab_var)}


def soften(c, threshold):
    return np.sign(c) * np.maximum(np.abs(c) - threshold, 0.0)


def central_share(belief, code, level, seed=0):
    """Share of the randomised PIT within its central ``level``; at the atom it is uniform over the jump."""
    jump = np.where(code == 0.0, 1.0 - belief.prob_active, 0.0)
    rank = belief.cdf(code) - jump * np.random.default_rng(seed).random(code.shape)
    return np.mean(np.abs(rank - 0.5) <= level / 2)


def check_laws(mean, prob_active, slab_mean, slab_var):
    assert np.isfinite(prob_active).all()
    assert np.isfinite(slab_mean).all()
    assert np.isfinite(slab_var).all()
    assert (prob_active > 0).all()
    assert (prob_active < 1).all()
    assert (slab_var > 0).all()
    np.testing.assert_allclose(prob_active * slab_mean, np.broadcast_to(mean, prob_active.shape), rtol=1e-14)


class TestAgainstAKnownPosterior:
    """The mean is the exact posterior mean; activity and spread have to be found again."""

    @pytest.fixture(scope="class")
    @staticmethod
    def fitted():
        held, test = simulate(100, seed=1), simulate(400, seed=2)
        return test, calibrated_spike_slab(fit_calibration(*held["given"], held["code"]), *test["given"])

    def test_probability_is_the_posterior_one(self, fitted):
        test, (prob_active, _, _) = fitted
        active, exact = test["code"] != 0, test["exact"][0]
        assert np.mean(np.abs(prob_active - exact)) < 0.02
        assert np.mean((prob_active - active) ** 2) < np.mean((exact - active) ** 2) + 0.002
        for low in np.arange(0.0, 1.0, 0.1):
            chosen = (prob_active >= low) & (prob_active < low + 0.1)
            # Three binomial standard errors, and 0.04 for the shape of the head.
            margin = 3 * np.sqrt(0.25 / chosen.sum()) + 0.04
            assert abs(active[chosen].mean() - prob_active[chosen].mean()) < margin

    def test_variance_matches_the_squared_error(self, fitted):
        test, parts = fitted
        squared = (test["given"][2] - test["code"]) ** 2
        ratio = SpikeSlab(*parts).var().mean() / squared.mean()
        # Relative standard error of either mean square, the smaller set having 100 pairs: about 4 %.
        assert abs(ratio - 1) < 3 * np.sqrt(1 / 100 + 1 / 400) * squared.mean(axis=1).std() / squared.mean()

    @pytest.mark.parametrize("level", [0.5, 0.9])
    def test_randomised_pit_is_uniform(self, fitted, level):
        test, parts = fitted
        assert abs(central_share(SpikeSlab(*parts), test["code"], level) - level) < 0.015

    def test_log_score_is_nearly_that_of_the_posterior(self, fitted):
        test, parts = fitted
        code = test["code"]
        slab = code[code != 0]
        best, constant = (
            SpikeSlab(*p).log_prob(code).mean() for p in (test["exact"], (CHANCE, slab.mean(), slab.var()))
        )
        reached = SpikeSlab(*parts).log_prob(code).mean()
        assert best - 0.02 < reached < best + 1e-3
        assert constant < reached - 0.3

    def test_mean_is_kept(self, fitted):
        test, parts = fitted
        check_laws(test["given"][2], *parts)

    def test_slab_mean_exceeds_the_mean_by_no_more_than_the_excess(self):
        held = simulate(20)
        calibration = fit_calibration(*held["given"], held["code"])
        _, slab_mean, _ = calibrated_spike_slab(calibration, *held["given"])
        mean = np.abs(held["given"][2])
        assert (np.abs(slab_mean) <= (mean + calibration.slab_excess) * (1 + 1e-2)).all()
        assert (np.abs(slab_mean) >= mean).all()


class TestOtherWorlds:
    def score(self, held, test):
        parts = calibrated_spike_slab(fit_calibration(*held["given"], held["code"]), *test["given"])
        check_laws(test["given"][2], *parts)
        belief, code = SpikeSlab(*parts), test["code"]
        ratio = belief.var().mean() / np.mean((test["given"][2] - code) ** 2)
        return ratio, central_share(belief, code, 0.9), belief.log_prob(code).mean(), belief

    @pytest.mark.parametrize("options", [{"noise_spread": 0.5}, {"heavy": True}, {"chance": 0.5}, {"sign": 1}])
    def test_calibrated_where_the_network_is_wrong(self, options):
        held, test = simulate(60, seed=3, **options), simulate(300, seed=4, **options)
        for data in (held, test):
            c, w, _ = data["given"]
            data["given"] = (c, w, soften(c, 0.4))
        ratio, share, score, _ = self.score(held, test)
        assert 0.85 < ratio < 1.2
        assert 0.86 < share < 0.94
        slab = held["code"][held["code"] != 0]
        constant = SpikeSlab(np.mean(held["code"] != 0), slab.mean(), slab.var())
        assert score > constant.log_prob(test["code"]).mean()

    def test_noisier_pairs_get_wider_slabs(self):
        options = {"noise_spread": 0.8}
        held, test = simulate(60, seed=3, **options), simulate(300, seed=4, **options)
        _, _, _, belief = self.score(held, test)
        slab_std = np.sqrt(belief.slab_var)
        assert np.corrcoef(slab_std.ravel(), np.sqrt(test["exact"][2]).ravel())[0, 1] > 0.9

    def test_one_sided_codes_are_not_active_on_the_other_side(self):
        held = simulate(100, seed=5, sign=-1)
        calibration = fit_calibration(*held["given"], held["code"])
        prob_active, _, _ = calibrated_spike_slab(calibration, [-2.0, 2.0], 0.01, 0.0)
        assert calibration.slope_negative > calibration.slope_positive
        assert prob_active[0] > 0.9
        assert prob_active[1] < 0.5

    @pytest.mark.parametrize("n_pairs", [1, 3])
    def test_few_pairs_still_beat_the_constant(self, n_pairs):
        test = simulate(200, seed=99)
        slab = test["code"][test["code"] != 0]
        constant = SpikeSlab(CHANCE, slab.mean(), slab.var()).log_prob(test["code"]).mean()
        for seed in range(8):
            assert self.score(simulate(n_pairs, seed=seed), test)[2] > constant


class TestLimits:
    def test_dense_codes_are_active(self):
        data = simulate(40, chance=1 - 1e-12)
        calibration = fit_calibration(*data["given"], data["code"])
        prob_active, _, slab_var = calibrated_spike_slab(calibration, *data["given"])
        assert prob_active.min() > 0.95
        np.testing.assert_allclose(slab_var, data["exact"][2], rtol=0.15)

    def test_codes_of_zeros_are_inactive(self):
        c = np.random.default_rng(0).normal(size=(20, 30))
        given = (c, np.ones_like(c), np.zeros_like(c))
        parts = calibrated_spike_slab(fit_calibration(*given, np.zeros_like(c)), *given)
        check_laws(given[2], *parts)
        assert parts[0].max() < 0.05

    def test_nothing_at_all(self):
        none = np.zeros((0, 5))
        calibration = fit_calibration(none, none, none, none)
        assert np.isfinite(calibration).all()
        check_laws([0.0, 0.5], *calibrated_spike_slab(calibration, [0.0, 1.0], 0.1, [0.0, 0.5]))

    def test_perfect_predictions_leave_a_narrow_slab(self):
        data = simulate(50)
        exact = (data["code"], np.zeros_like(data["code"]), data["code"])
        prob_active, slab_mean, slab_var = calibrated_spike_slab(fit_calibration(*exact, data["code"]), *exact)
        check_laws(data["code"], prob_active, slab_mean, slab_var)
        assert slab_var.max() < 0.01
        assert np.mean((prob_active - (data["code"] != 0)) ** 2) < 0.01

    def test_useless_predictions_fall_back_to_the_base_rate(self):
        code = simulate(100)["code"]
        given = (np.zeros_like(code), np.ones_like(code), np.zeros_like(code))
        prob_active, slab_mean, slab_var = calibrated_spike_slab(fit_calibration(*given, code), *given)
        np.testing.assert_allclose(prob_active, np.mean(code != 0), atol=1e-3)
        np.testing.assert_array_equal(slab_mean, 0.0)
        np.testing.assert_allclose(slab_var, np.mean(code[code != 0] ** 2), rtol=0.02)

    @pytest.mark.parametrize("size", [0.0, 1e-150, 1e150])
    def test_new_observations_of_any_size(self, size):
        data = simulate(10)
        calibration = fit_calibration(*data["given"], data["code"])
        mean = np.array([-size, 0.0, size])
        check_laws(mean, *calibrated_spike_slab(calibration, mean, size, mean))

    def test_zero_variances_are_no_information(self):
        data = simulate(30)
        c, w, e = data["given"]
        unknown = fit_calibration(c, np.zeros_like(w), e, data["code"])
        known = fit_calibration(c, np.ones_like(w), e, data["code"])
        for a, b in zip(
            calibrated_spike_slab(unknown, c, np.zeros_like(w), e),
            calibrated_spike_slab(known, c, np.ones_like(w), e),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-8)

    @settings(max_examples=60)
    @given(data=st.data())
    def test_always_finite_and_lawful(self, data):
        shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=6))
        real = st.one_of(st.just(0.0), st.floats(-1e6, 1e6), st.floats(-1.0, 1.0))
        positive = st.one_of(st.just(0.0), st.floats(0.0, 1e6), st.floats(1e-12, 1e-3))
        draw_real, draw_positive = (hnp.arrays(np.float64, shape, elements=x) for x in (real, positive))
        c, e, code, new = (data.draw(draw_real) for _ in range(4))
        w, other = (data.draw(draw_positive) for _ in range(2))
        calibration = fit_calibration(c, w, e, code)
        assert np.isfinite(calibration).all()
        assert calibration.scale > 0
        assert calibration.typical_var > 0
        assert calibration.slab_excess > 0
        assert calibration.slab_var > 0
        assert 0 <= calibration.var_exponent <= 1
        assert 0 < calibration.lapse < 0.5
        for parts in ((c, w, e), (e, other, new)):
            check_laws(parts[2], *calibrated_spike_slab(calibration, *parts))


class TestLaws:
    @pytest.mark.parametrize("scale", [1e-3, 10.0, 255.0])
    def test_units_do_not_matter(self, scale):
        data = simulate(20, noise_spread=0.5)
        c, w, e = data["given"]
        moved = (scale * c, scale**2 * w, scale * e)
        prob_active, slab_mean, slab_var = calibrated_spike_slab(fit_calibration(c, w, e, data["code"]), c, w, e)
        other = calibrated_spike_slab(fit_calibration(*moved, scale * data["code"]), *moved)
        np.testing.assert_allclose(other[0], prob_active, rtol=1e-6)
        np.testing.assert_allclose(other[1], scale * slab_mean, rtol=1e-6)
        np.testing.assert_allclose(other[2], scale**2 * slab_var, rtol=1e-6)

    def test_sign_does_not_matter(self):
        data = simulate(20, sign=1)
        c, w, e = data["given"]
        original = calibrated_spike_slab(fit_calibration(c, w, e, data["code"]), c, w, e)
        mirrored = calibrated_spike_slab(fit_calibration(-c, w, -e, -data["code"]), -c, w, -e)
        np.testing.assert_allclose(mirrored[0], original[0], rtol=1e-6)
        np.testing.assert_allclose(mirrored[1], -original[1], rtol=1e-6)

    def test_order_of_pairs_does_not_matter(self):
        data = simulate(20)
        turned = [x[::-1] for x in data["given"]]
        np.testing.assert_allclose(
            fit_calibration(*turned, data["code"][::-1]), fit_calibration(*data["given"], data["code"]), rtol=1e-5
        )

    def test_same_bits_again_and_single_precision_close(self):
        data = simulate(20)
        first = fit_calibration(*data["given"], data["code"])
        assert first == fit_calibration(*data["given"], data["code"])
        assert isinstance(first, Calibration)
        assert all(type(x) is float for x in first)
        single = fit_calibration(*(x.astype(np.float32) for x in data["given"]), data["code"].astype(np.float32))
        np.testing.assert_allclose(single, first, rtol=1e-3)


class TestGain:
    def test_predictions_that_are_of_use_are_left_alone(self):
        data = simulate(20)
        assert output_gain(data["given"][2], data["code"]) == 1.0

    def test_predictions_worse_than_none_are_shrunk_to_no_worse(self):
        random = np.random.default_rng(0)
        code, noise = random.normal(size=(300, 1)), random.normal(size=(300, 1))
        mean = (code + 2 * noise) / 5  # the posterior mean, of infinite expected relative error

        def error(gain):
            return np.mean(np.abs(gain * mean - code) / np.abs(code))

        assert error(1.0) > 1 >= error(output_gain(mean, code))
        assert output_gain(noise, code) < 0.1
        assert output_gain(3 * code + 0.01 * noise, code) == pytest.approx(1 / 3, abs=0.03)

    def test_a_few_small_codes_do_not_spoil_good_predictions(self):
        random = np.random.default_rng(0)
        code = random.normal(size=(300, 1))
        code[0] = 1e-6
        mean = code + 0.1 * random.normal(size=(300, 1))
        assert np.mean(np.abs(mean - code) / np.abs(code)) > 100
        assert output_gain(mean, code) == 1.0

    def test_codes_of_zeros_say_nothing(self):
        assert output_gain(np.ones((3, 2)), np.zeros((3, 2))) == 1.0
        assert output_gain([[5.0], [1.0]], [[0.0], [1.0]]) == 1.0


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_the_compiled_form_is_the_same(dtype, tolerance):
    calibration = Calibration(-2.0, 2.0, 1.5, 0.5, 0.1, 0.7, slab_excess=1.0, slab_var=0.3, lapse=1e-3)
    rng = np.random.default_rng(0)
    c_mean, c_var = rng.normal(0, 2, 100), rng.uniform(0, 1, 100)
    entering = c_mean, c_var, 0.8 * c_mean
    with jax.enable_x64(dtype == "float64"):
        compiled = jax.jit(fast_spike_slab)(calibration, *(part.astype(dtype) for part in entering))
    for ours, expected in zip(compiled, calibrated_spike_slab(calibration, *entering), strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, expected, rtol=tolerance)
