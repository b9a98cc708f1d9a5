"""ISTA and FISTA on operators: the answers of the matrix, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pylops
import pytest
from scipy.sparse import csr_array, random_array
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from sklearn.base import clone

from bayeslista.estimators import FISTA, ISTA, LISTA, BayesLISTA
from bayeslista.operators import Convolution, MatrixOperator, PartialDCT, PartialFourier, Wavelet

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.standard_normal((12, 20))
BLUR = Convolution(np.ones((3, 3)) / 9, (8, 8)) @ Wavelet((8, 8), "haar")
SAMPLED = PartialFourier((8, 8), RANDOM.random((8, 8)) < 0.4) @ Wavelet((8, 8), "db2", level=1)
GIVEN = {
    "sparse": csr_array(MATRIX * (RANDOM.random(MATRIX.shape) < 0.3)),
    "linear operator": aslinearoperator(MATRIX),
    "pylops": pylops.FirstDerivative(16, dtype="float64"),
    "pair": (lambda x: jnp.asarray(MATRIX) @ x, lambda y: jnp.asarray(MATRIX).T @ y),
    "own": MatrixOperator(MATRIX),
    "blur": BLUR,
    "sampled": SAMPLED,
    "cosine": PartialDCT((16,), [0, 1, 5]),
}
both = pytest.mark.parametrize("estimator", [ISTA, FISTA])


def dense(given):
    if isinstance(given, tuple):
        return MATRIX
    if hasattr(given, "to_matrix"):
        return given.to_matrix()
    return given.toarray() if hasattr(given, "toarray") else given @ np.eye(given.shape[1])


@both
@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_operators_have_the_answers_of_their_matrices(estimator, given):
    matrix = dense(given)
    observations = RANDOM.standard_normal((3, len(matrix)))
    step = 1.01 * np.linalg.norm(matrix, 2) ** 2
    penalty = 0.05 * step  # one objective for both, whose step sizes differ by what power iteration lacks
    model = estimator(2000, design_matrix=given, shrinkage=0.05).fit(observations)
    assert model.step_inverse_ == pytest.approx(step, rel=0.01)
    model.set_params(shrinkage=penalty / model.step_inverse_).fit(observations)
    reference = estimator(2000, design_matrix=matrix, shrinkage=0.05).fit(observations)

    def objective(codes):
        return 0.5 * np.sum((observations - codes @ matrix.T) ** 2) + penalty * np.abs(codes).sum()

    assert objective(model.predict(observations)) == pytest.approx(objective(reference.predict(observations)), rel=1e-5)
    assert model.design_matrix_.shape == matrix.shape
    assert not hasattr(model, "encoder_")


@both
def test_signals_are_computed_together_as_alone_and_in_single_precision(estimator):
    observations = RANDOM.standard_normal((4, SAMPLED.shape[0]))
    model = estimator(design_matrix=SAMPLED, shrinkage=0.02).fit(observations)
    together = model.predict(observations)
    alone = np.concatenate([model.predict(row[None]) for row in observations])
    np.testing.assert_allclose(alone, together, atol=1e-12)
    single = clone(model).fit(observations.astype(np.float32)).predict(observations.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, together, atol=1e-4)


@both
def test_codes_are_not_needed_with_a_matrix_and_change_nothing(estimator):
    observations, codes = RANDOM.standard_normal((3, 12)), RANDOM.standard_normal((3, 20))
    for given in (MATRIX, MatrixOperator(MATRIX)):
        model = estimator(design_matrix=given)
        np.testing.assert_array_equal(
            model.fit(observations).predict(observations), model.fit(observations, codes).predict(observations)
        )
    with pytest.raises(ValueError, match="requires y"):
        estimator().fit(observations)


@both
def test_an_operator_of_zeros_predicts_zeros(estimator):
    model = estimator(design_matrix=csr_array((4, 6))).fit(np.ones((2, 4)))
    np.testing.assert_array_equal(model.predict(np.ones((2, 4))), 0.0)


@both
def test_fits_with_an_array_and_with_an_operator_leave_nothing_of_each_other(estimator):
    observations = RANDOM.standard_normal((3, 12))
    model = estimator(design_matrix=MATRIX).fit(observations)
    model.set_params(design_matrix=aslinearoperator(MATRIX)).fit(observations)
    assert not hasattr(model, "encoder_")
    assert not hasattr(model, "recurrent_")
    before = model.predict(observations)
    again = model.set_params(design_matrix=MATRIX).fit(observations).predict(observations)
    np.testing.assert_allclose(again, before, atol=0.02)  # of step sizes that differ by what power iteration lacks


@both
@pytest.mark.parametrize(
    ("given", "codes", "message"),
    [
        (aslinearoperator(MATRIX.T), None, r"shape \(20, 12\).*pass its transpose"),
        (aslinearoperator(np.ones((5, 9))), None, "pass observations of that size"),
        (aslinearoperator(MATRIX), np.ones((3, 19)), r"expected.*\(12, 19\)"),
        (LinearOperator((12, 20), lambda x: MATRIX @ x, lambda y: -MATRIX.T @ y, dtype=float), None, "transpose"),
        (aslinearoperator(MATRIX * 1j), None, "StackedReal"),
        (random_array((12, 20), rng=0) * np.inf, None, "NaN or infinity"),
        ((np.sum,), None, "design_matrix"),
        (3.0, None, "design_matrix"),
    ],
)
def test_operators_that_do_not_fit_are_refused(estimator, given, codes, message):
    with pytest.raises(ValueError, match=message):
        estimator(design_matrix=given).fit(np.ones((3, 12)), codes)


@pytest.mark.parametrize("estimator", [LISTA, BayesLISTA])
def test_networks_that_learn_weights_take_arrays_alone(estimator):
    model = estimator(design_matrix=aslinearoperator(MATRIX))
    with pytest.raises(ValueError, match=r"is an operator, which .* does not take.*SpikeSlabNet\(mode='fast'\)"):
        model.fit(np.ones((3, 12)), np.ones((3, 20)))
