"""Noise that is not white: whitening against algebra, learned variances against their posterior, in all modes."""

import numpy as np
import pytest

from bayeslista import SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse
from bayeslista.spike_slab.sensor_noise import sensor_variances, whitening_of

K, D = 15, 20


def ar(n, rho=0.9):
    return rho ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(256, 40, K, D, noise_std=0.0, random_state=0)


def given(X, **noise):
    return SpikeSlabNet(8, design_matrix=X, prob_active=0.2, slab_var=1.0, training="none", random_state=0, **noise)


@pytest.mark.parametrize("covariance", [ar(6), np.diag(np.arange(1.0, 7)), 4 * np.eye(6)])
def test_noise_is_white_after_whitening(covariance):
    whitening, var = whitening_of(covariance)
    T = np.eye(6) if whitening is None else whitening.transform
    inverse = np.eye(6) if whitening is None else whitening.inverse
    np.testing.assert_allclose(T @ covariance @ T.T, var * np.eye(6), atol=1e-10)
    np.testing.assert_allclose(inverse @ T, np.eye(6), atol=1e-10)


def test_a_singular_covariance_keeps_the_directions_that_the_matrix_reaches():
    reference = np.eye(5) - 0.2
    random = np.random.default_rng(0)
    X = random.standard_normal((5, 3))
    inside, var = whitening_of(reference, reference @ X)
    assert inside.transform.shape == (4, 5)
    np.testing.assert_allclose(inside.transform @ reference @ inside.transform.T, var * np.eye(4), atol=1e-10)
    outside, _ = whitening_of(reference, X)
    assert outside.transform.shape == (5, 5)


@pytest.mark.parametrize("mode", ["exact", "accurate", "fast"])
def test_a_covariance_equals_whitening_by_hand(data, mode):
    covariance = 0.25 * ar(K)
    root = np.linalg.cholesky(covariance)
    noise = np.random.default_rng(1).standard_normal((10, K)) @ root.T
    Y = data.Y_test[:10] + noise
    ours = given(data.design_matrix, mode=mode, noise_covariance=covariance).predict_dist(Y)
    hand = np.linalg.inv(root) * 0.5
    theirs = given(hand @ data.design_matrix, mode=mode, noise_std=0.5).predict_dist(Y @ hand.T)
    tolerance = 1e-8 if mode != "exact" else 0.15  # chains have other random numbers
    for one, other in ((ours.mean(), theirs.mean()), (ours.std(), theirs.std())):
        assert np.linalg.norm(one - other) < tolerance * np.linalg.norm(other)


@pytest.mark.parametrize("mode", ["exact", "accurate", "fast"])
def test_average_reference_is_what_all_but_one_sensor_say(data, mode):
    """Noise of the average reference is singular; dropping a sensor loses nothing of it."""
    reference = np.eye(K) - 1 / K
    X = reference @ data.design_matrix
    Y = (data.Y_test[:10] + 0.5 * np.random.default_rng(2).standard_normal((10, K))) @ reference
    covariance = 0.25 * reference
    ours = given(X, mode=mode, noise_covariance=covariance).predict(Y)
    theirs = given(X[1:], mode=mode, noise_covariance=covariance[1:, 1:]).predict(Y[:, 1:])
    # Chains have other random numbers; all but the last layers are in single precision.
    assert np.linalg.norm(ours - theirs) < (0.05 if mode == "exact" else 2e-3) * np.linalg.norm(theirs)


@pytest.mark.parametrize("mode", ["exact", "accurate"])
def test_noise_of_each_sensor_is_learned_from_pairs_and_used(data, mode):
    random = np.random.default_rng(3)
    std = 0.4 * np.exp(random.standard_normal(K))
    Y, Y_test = (
        data[f"Y_{part}"] + std * random.standard_normal((len(data[f"Y_{part}"]), K)) for part in ("train", "test")
    )
    models = [
        SpikeSlabNet(8, mode=mode, training="none", design_matrix=data.design_matrix, random_state=0, **noise)
        for noise in ({}, {"noise_std": std}, {"noise_std": float(np.sqrt(np.mean(std**2)))})
    ]
    errors = [nmse(data.B_test, model.fit(Y, data.B_train).predict(Y_test)) for model in models]
    assert np.std(np.log(models[0].noise_std_ / std)) < 0.1
    np.testing.assert_allclose(models[1].noise_std_, std)
    np.testing.assert_allclose(models[0].design_matrix_, data.design_matrix)
    assert errors[0] < 1.05 * errors[1] < 0.95 * errors[2]


def test_a_learned_matrix_is_in_the_units_of_the_data(data):
    random = np.random.default_rng(4)
    std = 0.2 * np.exp(random.standard_normal(K))
    Y = data.Y_train + std * random.standard_normal((256, K))
    model = SpikeSlabNet(8, mode="fast", training="none", random_state=0).fit(Y, data.B_train)
    assert np.std(np.log(model.noise_std_ / std)) < 0.15
    error = np.abs(model.design_matrix_ - data.design_matrix).mean(axis=1)
    assert np.corrcoef(np.log(error), np.log(std))[0, 1] > 0.9  # the noise of a sensor is that of its row


def test_sensors_that_are_alike_share_their_noise():
    random = np.random.default_rng(5)
    assert sum(sensor_variances(random.chisquare(100, 50), 100) is None for _ in range(100)) >= 97


def test_learned_variances_are_shrunk_and_nearer_than_those_of_the_residuals():
    random = np.random.default_rng(6)
    errors = []
    for _ in range(50):
        true = np.exp(0.5 * random.standard_normal(30))
        raw = true * random.chisquare(8, 30) / 8
        found = sensor_variances(8 * raw, 8)
        found = np.full(30, raw.mean()) if found is None else found
        errors.append([np.mean(np.log(part / true) ** 2) for part in (found, raw)])
    better, worse = np.mean(errors, axis=0)
    assert better < 0.8 * worse


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ({"noise_covariance": np.eye(3)}, r"noise_covariance has shape \(3, 3\), expected \(15, 15\)"),
        ({"noise_covariance": np.triu(np.ones((K, K)))}, "noise_covariance is not symmetric"),
        ({"noise_covariance": -np.eye(K)}, "negative eigenvalue"),
        ({"noise_covariance": np.full((K, K), np.nan)}, "noise_covariance contains NaN"),
        ({"noise_covariance": np.eye(K), "noise_std": 1.0}, "both given"),
        ({"noise_std": np.ones(3)}, r"noise_std has shape \(3,\), expected a number or shape \(15,\)"),
        ({"noise_std": -np.ones(K)}, "noise_std"),
    ],
)
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_noise_that_cannot_be_is_refused(data, noise, message, mode):
    with pytest.raises(ValueError, match=message):
        given(data.design_matrix, mode=mode, **noise).predict(data.Y_test)
