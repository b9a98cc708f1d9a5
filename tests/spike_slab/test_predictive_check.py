"""Checks of answers against their own data, and what becomes of those that fail."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from bayeslista import NumericalWarning, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse
from bayeslista.spike_slab import checked_answers
from bayeslista.spike_slab.config import CHECKS
from bayeslista.spike_slab.fitting import SpikeSlabLearner
from bayeslista.spike_slab.predictive_check import check_answers, widen


class TestTheCheck:
    def test_residuals_are_in_units_of_the_noise_of_each_sensor(self):
        rng = np.random.default_rng(0)
        X, noise_std = rng.standard_normal((6, 4)), np.array([0.1, 1.0, 3.0, 0.5, 2.0, 1.0])
        mean, z = rng.standard_normal((3, 4)), rng.standard_normal((3, 6))
        found = check_answers(mean @ X.T + noise_std * z, mean, np.ones((3, 4)), X, noise_std**2, 0.5)
        assert np.allclose(found.chi_square, np.mean(z**2, axis=1), rtol=1e-2)  # sensors of low noise meet the floor
        assert np.allclose(found.tail_probability, chi2.sf(6 * found.chi_square, 6))
        assert np.allclose(found.energy, np.sum(mean**2, axis=1) / 2)
        assert np.allclose(found.posterior_variance_ratio, 2.0)

    def test_a_learned_matrix_adds_its_variance_to_the_noise(self):
        X, covariance = np.zeros((2, 2)), np.array([[0.5, 0.2], [0.2, 0.3]])
        mean, var = np.array([[1.0, 2.0]]), np.array([[0.1, 0.4]])
        expected = 4.0 * (1 + mean[0] @ covariance @ mean[0] + 0.05 + 0.12)
        found = check_answers(np.full((1, 2), 3.0), mean, var, X, 4.0, 1.0, covariance)
        assert found.chi_square[0] == pytest.approx(9 / expected, rel=1e-5)

    def test_widening_moves_towards_the_prior_and_never_narrows(self):
        chance, var = np.array([[0.999, 0.01]]), np.array([[1e-4, 0.5]])
        same = widen(np.array([0.5]), chance, var, 0.2, 1.0)
        assert np.allclose(same[0], chance)
        assert np.allclose(same[1], var)
        wide = widen(np.array([100.0]), chance, var, 0.2, 1.0)
        assert chance[0, 1] < wide[0][0, 1] < 0.2 < wide[0][0, 0] < chance[0, 0]
        assert wide[1][0, 0] == pytest.approx(1 / (1 + 9999 / 100))


@pytest.fixture(scope="module")
def coherent():
    """Smooth overlapping columns, which layers do not suit."""
    rng = np.random.default_rng(0)
    centre, grid = np.linspace(0, 20, 24), np.arange(20.0)
    X = 0.3 + np.exp(-0.5 * ((grid[:, None] - centre) / 2.5) ** 2)
    codes = np.where(rng.random((40, 24)) < 0.1, 1.5 * rng.standard_normal((40, 24)), 0.0)
    codes[:, 3] += 1.0
    return X, codes @ X.T + 0.02 * rng.standard_normal((40, 20)), codes


def model(mode, X, **given):
    return SpikeSlabNet(
        6,
        mode=mode,
        design_matrix=X,
        random_state=0,
        **{"prob_active": 0.12, "slab_var": 2.0, "noise_std": 0.02} | given,
    )


class TestPrediction:
    def test_one_warning_counts_the_failed_answers_whatever_the_batches(self, coherent):
        X, Y, _ = coherent
        net = model("fast", X)
        table = model("fast", X).predictive_check(Y)
        assert table.failed.sum() > 5
        assert (table.failed == ((table.tail_probability < 1e-4) & (table.chi_square > 1))).all()
        for batch_size in (None, 8):
            with pytest.warns(NumericalWarning, match=f"^{table.failed.sum()} of 40 answers") as found:
                net.predict(Y, batch_size=batch_size)
            assert len(found) == 1

    def test_failed_answers_are_as_wide_as_their_errors(self, coherent):
        X, Y, codes = coherent
        failed = model("fast", X).predictive_check(Y).failed.to_numpy()
        with pytest.warns(NumericalWarning):
            dist = model("fast", X).predict_dist(Y)
        assert dist.var()[failed].mean() > 0.3 * np.mean((dist.mean() - codes)[failed] ** 2)

    @pytest.mark.parametrize("most", [4, 256])
    def test_accurate_mode_samples_the_worst_of_those_that_fail(self, coherent, most, monkeypatch):
        monkeypatch.setattr(checked_answers, "CHECKS", replace(CHECKS, most_sampled=most))
        X, Y, _ = coherent
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            table = model("accurate", X).predictive_check(Y)
            accurate, exact = (model(mode, X).predict_dist(Y) for mode in ("accurate", "exact"))
        sampled = (table.engine == "exact").to_numpy()
        assert (sampled.sum() == 4) if most == 4 else (sampled.sum() > 4)
        assert not table.failed[sampled].any()
        assert table.failed.any() == (most == 4)
        assert nmse(exact.mean()[sampled], accurate.mean()[sampled]) < 0.15

    def test_widening_keeps_the_mean(self):
        X = np.array([[1.0], [1.0]])
        learner = model("fast", X)._ready(np.zeros((1, 2)))._learner
        answers = checked_answers.checked_answers(learner, np.array([[3.0, -3.0]]))
        assert answers.failed.all()
        plain = learner.output(np.array([[3.0, -3.0]]))
        assert answers.prob_active * answers.slab_mean == pytest.approx(plain[0] * plain[1], abs=1e-9)

    def test_layers_whose_squares_overflow_give_way_to_the_prior(self, coherent, monkeypatch):
        X, Y, _ = coherent
        net = model("fast", X, prob_active=0.12, slab_var=2.0)
        plain = SpikeSlabLearner.output

        def diverged(self, Y):
            answers = plain(self, Y)
            answers[1][0], answers[2][0] = [-1e200, 1e200] * 12, 1e190
            return answers

        monkeypatch.setattr(SpikeSlabLearner, "output", diverged)
        with pytest.warns(NumericalWarning, match="answers leave more"):
            dist = net.predict_dist(Y)[0]
        assert np.allclose((dist.prob_active, dist.slab_mean, dist.slab_var), np.array([[0.12], [0.0], [2.0]]))

    def test_few_answers_on_a_random_matrix_fail(self):
        data = make_sparse_codes(n_train=1, n_test=300, n_observed=30, n_components=40, random_state=0)
        for mode in ("fast", "exact"):
            table = model(mode, data.design_matrix, prob_active=0.2, slab_var=1.0, noise_std=0.5)
            table = table.predictive_check(data.Y_test[: 300 if mode == "fast" else 20])
            assert table.failed.mean() < 0.02  # VAMP misses one in two hundred
            assert (table.engine == mode).all()


class TestExactMode:
    def test_codes_that_interpolate_what_the_model_does_not_have_fail_by_their_energy(self):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((10, 20))
        codes = np.where(rng.random((8, 20)) < 0.1, rng.standard_normal((8, 20)), 0.0)
        Y = codes @ X.T + 0.1 * rng.standard_normal((8, 10))
        net = model("exact", X, prob_active=0.1, slab_var=1.0, noise_std=0.1)
        assert not net.predictive_check(Y).failed.any()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumericalWarning)
            assert net.predictive_check(Y + 8 * rng.standard_normal(Y.shape)).failed.mean() > 0.7

    @pytest.mark.parametrize("noise_std", [0.0, 3e-4])
    def test_a_noise_far_too_small_is_warned_of_and_ends(self, coherent, noise_std):
        X, Y, _ = coherent
        with pytest.warns(NumericalWarning, match="did not agree|unexplained"):
            dist = model("exact", X, noise_std=noise_std).predict_dist(Y[:2] + 1.0)
        assert np.isfinite(dist.mean()).all()
