"""Fits that go on from the last one: LISTA and BayesLISTA with warm_start=True."""

import numpy as np
import pytest

from bayeslista import LISTA, BayesLISTA
from bayeslista.bayes_lista.variational_fit import PosteriorParameters, VariationalLearner
from bayeslista.datasets import make_sparse_codes

K, D, N = 15, 20, 200


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(N, 100, K, D, noise_std=0.1, random_state=0)


@pytest.mark.parametrize("inference", ["variational", "adf"])
def test_a_warm_start_goes_on_where_the_last_fit_ended(data, inference):
    options = {"design_matrix": data.design_matrix, "inference": inference, "random_state": 0, "tol": 0}
    model = BayesLISTA(3, **options, warm_start=True, max_iter=8).fit(data.Y_train, data.B_train)
    encoder, errors = model.encoder_, model.history_["training_nmse"]
    model.set_params(max_iter=1).fit(data.Y_train, data.B_train)
    assert model.n_iter_ == 1
    assert model.history_["training_nmse"][0] < errors[0] - 0.6 * (errors[0] - errors[-1])
    assert np.abs(model.encoder_ - encoder).max() < 0.2 * np.abs(encoder).max()
    again = model.set_params(warm_start=False).fit(data.Y_train, data.B_train)
    cold = BayesLISTA(3, **options, max_iter=1).fit(data.Y_train, data.B_train)
    np.testing.assert_array_equal(again.encoder_, cold.encoder_)


def test_a_warm_start_is_the_same_network_in_other_units_and_with_another_matrix(data):
    model = BayesLISTA(3, design_matrix=data.design_matrix, max_iter=3, random_state=0)
    model.fit(data.Y_train, data.B_train)
    learner = model._learner
    Y, B = 3 * data.Y_train, 5 * data.B_train
    other = VariationalLearner.start(1.5 * data.design_matrix, Y, B, 3, None, 0.1)
    matrix = other.given_matrix * other.units.code / other.units.observation
    other.scaled_matrix, other.parameters = matrix, PosteriorParameters.of(other._parameters_of(learner, matrix))
    other.gain, other.noise_var = learner.gain, learner.noise_var
    for (mean, var), (old_mean, old_var), gain in zip(other.matrices(), learner.matrices(), (1, None), strict=True):
        ratio = other.units.observation / learner.units.observation * learner.units.code / other.units.code
        ratio = ratio if gain else 1
        np.testing.assert_allclose(mean, ratio * old_mean, rtol=1e-9, atol=1e-12)
        if gain:
            np.testing.assert_allclose(var, ratio**2 * old_var, rtol=1e-9)
    np.testing.assert_allclose(other.shrinkage * other.units.code, model.shrinkage_, rtol=1e-9)
    np.testing.assert_array_equal(other.layers.momentum, model.momentum_)


def test_a_warm_start_with_a_threshold_holds_it(data):
    model = BayesLISTA(3, warm_start=True, max_iter=1, random_state=0).fit(data.Y_train, data.B_train)
    model.set_params(shrinkage=0.07).fit(2 * data.Y_train, data.B_train)
    np.testing.assert_allclose(model.shrinkage_, 0.07, rtol=1e-12)


def test_a_warm_start_that_cannot_be_is_refused(data, tmp_path):
    model = BayesLISTA(3, warm_start=True, max_iter=1, random_state=0).fit(data.Y_train, data.B_train)
    before = model.predict(data.Y_test)
    with pytest.raises(ValueError, match="but the network to go on from has 3 layers"):
        model.set_params(n_layers=4).fit(data.Y_train, data.B_train)
    model.set_params(n_layers=3)
    with pytest.raises(ValueError, match="y has shape"):
        model.fit(data.Y_train, data.B_train[:, 1:])
    with pytest.raises(ValueError, match="features"):
        model.fit(data.Y_train[:, 1:], data.B_train)
    with pytest.raises(ValueError, match="cannot have a checkpoint"):
        model.fit(data.Y_train, data.B_train, checkpoint=tmp_path / "fit.safetensors")
    np.testing.assert_array_equal(model.predict(data.Y_test), before)


@pytest.mark.parametrize("coupled_weights", [True, False])
def test_a_warm_start_of_lista_goes_on_where_the_last_fit_ended(data, coupled_weights):
    options = {"design_matrix": data.design_matrix, "coupled_weights": coupled_weights, "random_state": 0, "tol": 0}
    model = LISTA(3, **options, warm_start=True, max_iter=20).fit(data.Y_train, data.B_train)
    encoder, errors = model.encoder_, model.history_["held_out_error"]
    model.set_params(max_iter=3).fit(data.Y_train, data.B_train)
    # The kept weights are those of the least validation error, those of the first fit included.
    assert model.history_["held_out_error"].min() < 1.1 * errors.min() < errors[0]
    assert np.abs(model.encoder_ - encoder).max() < 0.2 * np.abs(encoder).max()
    again = model.set_params(warm_start=False).fit(data.Y_train, data.B_train)
    cold = LISTA(3, **options, max_iter=3).fit(data.Y_train, data.B_train)
    np.testing.assert_array_equal(again.encoder_, cold.encoder_)


def test_a_warm_start_of_lista_needs_the_same_shapes(data):
    model = LISTA(3, warm_start=True, max_iter=2, random_state=0).fit(data.Y_train, data.B_train)
    before = model.predict(data.Y_test)
    with pytest.raises(ValueError, match="but the network to go on from has 3 layers"):
        model.set_params(n_layers=4).fit(data.Y_train, data.B_train)
    model.set_params(n_layers=3)
    with pytest.raises(ValueError, match="y has shape"):
        model.fit(data.Y_train, data.B_train[:, 1:])
    with pytest.raises(ValueError, match="features"):
        model.fit(data.Y_train[:, 1:], data.B_train)
    np.testing.assert_array_equal(model.predict(data.Y_test), before)
