"""Missing values: what is predicted without a sensor is what a model without that sensor predicts."""

import numpy as np
import pytest

from bayeslista import BayesLISTA, SpikeSlabNet, load
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse, pit_coverage

K, D = 15, 20
MODES = pytest.mark.parametrize("mode", ["exact", "accurate", "fast"])


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(300, 60, K, D, random_state=0)


def given(X, mode, **noise):
    noise = noise or {"noise_std": 0.5}
    return SpikeSlabNet(8, mode=mode, design_matrix=X, prob_active=0.2, slab_var=1.0, random_state=0,
                        training="none", **noise)  # fmt: skip


def with_gaps(Y, share, seed=0):
    return np.where(np.random.default_rng(seed).random(Y.shape) < share, np.nan, Y)


@MODES
@pytest.mark.parametrize("noise", ["common", "one a sensor", "correlated"])
def test_a_missing_sensor_is_one_that_is_not_there(data, mode, noise):
    keep = np.arange(K) != 3
    std = np.linspace(0.3, 0.8, K)
    covariance = 0.25 * 0.9 ** np.abs(np.subtract.outer(np.arange(K), np.arange(K)))
    whole, part = {
        "common": ({}, {}),
        "one a sensor": ({"noise_std": std}, {"noise_std": std[keep]}),
        "correlated": ({"noise_covariance": covariance}, {"noise_covariance": covariance[np.ix_(keep, keep)]}),
    }[noise]
    Y = data.Y_test[:12].copy()
    expected = given(data.design_matrix[keep], mode, **part).predict(Y[:, keep])
    Y[:, 3] = np.nan
    found = given(data.design_matrix, mode, **whole).predict(Y)
    # Layers follow the mean residual, of one sensor more; chains have other random numbers.
    assert np.linalg.norm(found - expected) < (0.12 if mode != "exact" else 0.06) * np.linalg.norm(expected)


@MODES
def test_signals_without_any_value_get_the_prior(data, mode):
    dist = given(data.design_matrix, mode).predict_dist(np.full((2, K), np.nan))
    np.testing.assert_allclose(dist.mean(), 0.0, atol=0.1)
    np.testing.assert_allclose(dist.prob_active, 0.2, atol=0.07)
    np.testing.assert_allclose(dist.var(), 0.2, atol=0.1)


@MODES
def test_patterns_do_not_change_the_order_or_each_other(data, mode):
    model = given(data.design_matrix, mode)
    Y = with_gaps(data.Y_test[:20], 0.05)
    together = model.predict(Y)
    apart = np.concatenate([model.predict(Y[i : i + 1]) for i in range(20)])
    # The early layers are in single precision, whose last digits depend on the size of a block.
    assert np.linalg.norm(together - apart) < (1e-8 if mode == "exact" else 1e-3) * np.linalg.norm(apart)
    assert len(model.predictive_check(Y)) == 20


@pytest.mark.filterwarnings("ignore:The chains of")
def test_a_fifth_missing_is_within_eight_percent_of_exact_mode_and_calibrated():
    data = make_sparse_codes(1, 300, 31, 50, random_state=1)
    Y = with_gaps(data.Y_test, 0.2)
    X = data.design_matrix
    models = {
        mode: SpikeSlabNet(20, mode=mode, design_matrix=X, prob_active=0.2, slab_var=1.2, noise_std=0.5, random_state=0)
        for mode in ("exact", "accurate")
    }
    errors = {mode: nmse(data.B_test, model.predict(Y)) for mode, model in models.items()}
    assert errors["accurate"] < 1.08 * errors["exact"]
    for model in models.values():
        assert 0.88 < pit_coverage(model.predict_dist(Y), data.B_test, 0.9, 0) < 0.92


@pytest.mark.parametrize("known", [True, False])
def test_training_pairs_may_have_gaps(data, known):
    X = data.design_matrix if known else None
    settings = {"mode": "fast", "training": "none", "design_matrix": X, "random_state": 0}
    whole = SpikeSlabNet(8, **settings).fit(data.Y_train, data.B_train)
    gaps = SpikeSlabNet(8, **settings).fit(with_gaps(data.Y_train, 0.2), data.B_train)
    assert gaps.noise_std_ == pytest.approx(whole.noise_std_, rel=0.08)
    errors = [nmse(data.B_test, model.predict(data.Y_test)) for model in (whole, gaps)]
    assert errors[1] < 1.05 * errors[0]


def test_observations_alone_may_have_gaps(data):
    model = SpikeSlabNet(design_matrix=data.design_matrix, random_state=0).fit(with_gaps(data.Y_train, 0.1))
    assert model.noise_std_ == pytest.approx(0.5, rel=0.2)
    assert model.prob_active_ == pytest.approx(0.2, abs=0.06)


@pytest.mark.parametrize("prior", ["correlated", "mixture"])
def test_priors_of_dependent_codes_take_gaps(prior, tmp_path):
    random = np.random.default_rng(0)
    B = random.standard_normal((80, 4)) @ random.standard_normal((4, 10)) + 0.1 * random.standard_normal((80, 10))
    X = random.standard_normal((8, 10))
    Y = B @ X.T + 0.1 * random.standard_normal((80, 8))
    model = SpikeSlabNet(prior=prior, design_matrix=X, noise_std=0.1, random_state=0).fit(Y[:60], B[:60])
    test = with_gaps(Y[60:], 0.2)
    errors = [nmse(B[60:], model.predict(part)) for part in (Y[60:], test)]
    assert errors[0] < errors[1] < 1.0
    filled = nmse(B[60:], model.predict(np.nan_to_num(test)))
    assert errors[1] < 0.8 * filled
    np.testing.assert_allclose(model.predict(test[:3]), model.predict(test)[:3], rtol=1e-5, atol=1e-6)
    assert model.sample(test, n_draws=5).shape == (5, 20, 10)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(test), model.predict(test))


def test_what_is_missing_everywhere_or_infinite_is_refused(data):
    Y = data.Y_train.copy()
    Y[:, 4] = np.nan
    with pytest.raises(ValueError, match=r"Column 4 of X .* is missing in every row"):
        SpikeSlabNet(design_matrix=data.design_matrix).fit(Y, data.B_train)
    with pytest.raises(ValueError, match=r"Column 4 of X .* is missing in every row"):
        SpikeSlabNet(design_matrix=data.design_matrix).fit(Y)
    Y[:, 4] = np.inf
    with pytest.raises(ValueError, match="infinity, first in row 0, column 4"):
        SpikeSlabNet(design_matrix=data.design_matrix).fit(Y, data.B_train)
    with pytest.raises(ValueError, match="Remove or impute missing values"):
        BayesLISTA(2, design_matrix=data.design_matrix).fit(with_gaps(data.Y_train, 0.1), data.B_train)
