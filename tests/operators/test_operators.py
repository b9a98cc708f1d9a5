"""Operators: transposes, equality with their matrices, Gram eigenvalues, and what is refused."""

import copy

import jax.numpy as jnp
import numpy as np
import pylops
import pytest
from scipy.sparse import random_array
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from bayeslista.operators import (
    Convolution,
    FunctionPair,
    MatrixOperator,
    PartialDCT,
    PartialFourier,
    StackedReal,
    Wavelet,
    as_operator,
    is_operator,
)
from bayeslista.operators.protocol import ColumnScaled, check_adjoint, lanczos_spectrum, largest_eigenvalue

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.standard_normal((5, 7))
OPERATORS = {
    "matrix": MatrixOperator(MATRIX),
    "sparse": as_operator(random_array((9, 12), density=0.3, rng=np.random.default_rng(1))),
    "integers": as_operator((random_array((9, 12), density=0.3, rng=np.random.default_rng(1)) * 9).astype(int)),
    "scipy": as_operator(aslinearoperator(MATRIX)),
    "functions": FunctionPair((lambda x: MATRIX @ x, lambda y: MATRIX.T @ y), 5, 7),
    "complex": StackedReal(aslinearoperator(MATRIX + 1j * MATRIX[::-1])),
    "convolution": Convolution(RANDOM.standard_normal(4), (9,)),
    "blur": Convolution(RANDOM.standard_normal((3, 2)), (4, 6)),
    "cosine": PartialDCT((4, 6), [0, 3, 17]),
    "fourier even": PartialFourier((4, 6), RANDOM.random((4, 6)) < 0.4),
    "fourier odd": PartialFourier((3, 5), RANDOM.random((3, 5)) < 0.4),
    "fourier full": PartialFourier((8,), np.ones(8, bool)),
    "wavelet 1d": Wavelet((16,), "db2", level=2),
    "wavelet": Wavelet((8, 16), "haar"),
    "volume": Wavelet((4, 4, 8), "db2", level=2),
    "composition": Convolution(RANDOM.standard_normal((3, 3)), (8, 8)) @ Wavelet((8, 8), "db4", level=1),
    "sampled": PartialFourier((8, 8), RANDOM.random((8, 8)) < 0.3) @ Wavelet((8, 8), "db4", level=1),
    "scaled": ColumnScaled(MatrixOperator(MATRIX), np.arange(1.0, 8.0)),
}
each = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)


@each
def test_products_are_those_of_the_matrix_and_of_its_transpose(operator):
    matrix = operator.to_matrix()
    assert matrix.shape == operator.shape
    x, y = RANDOM.standard_normal((3, operator.shape[1])), RANDOM.standard_normal((3, operator.shape[0]))
    np.testing.assert_allclose(operator.matvec(x), x @ matrix.T, atol=1e-12)
    np.testing.assert_allclose(operator.rmatvec(y), y @ matrix, atol=1e-12)
    check_adjoint(operator, np.dtype(np.float64))


@each
def test_gram_eigenvalues_and_filter_are_those_of_the_gram_matrix(operator):
    if operator.gram_eigenvalues is None:
        return
    matrix, eigenvalues = operator.to_matrix(), operator.gram_eigenvalues
    gram = matrix @ matrix.T
    np.testing.assert_allclose(np.sort(eigenvalues), np.linalg.eigvalsh(gram), atol=1e-10)
    y = RANDOM.standard_normal((2, len(gram)))
    expected = np.stack(
        [np.linalg.solve(t * gram + np.eye(len(gram)), row) for t, row in zip((0.5, 2.0), y, strict=True)]
    )
    gain = 1 / (np.array([[0.5], [2.0]]) * eigenvalues + 1)
    np.testing.assert_allclose(operator.gram_filter(gain, y), expected, atol=1e-10)
    assert operator.has_orthonormal_rows == np.allclose(gram, np.eye(len(gram)))


@each
def test_single_precision_stays_single(operator):
    x, y = (np.ones((1, size), np.float32) for size in operator.shape[::-1])
    assert operator.matvec(x).dtype == operator.rmatvec(y).dtype == np.float32
    np.testing.assert_allclose(operator.matvec(x), operator.matvec(x.astype(float)), atol=1e-4)
    check_adjoint(operator, np.dtype(np.float32))


def test_norms_of_columns_of_dense_and_sparse_matrices():
    for name in ("matrix", "sparse", "integers"):
        matrix = OPERATORS[name].to_matrix()
        np.testing.assert_allclose(OPERATORS[name].squared_column_norms, np.sum(matrix**2, axis=0))
    assert OPERATORS["scipy"].squared_column_norms is None


@each
def test_power_iteration_and_lanczos_quadrature_agree_with_the_matrix(operator):
    matrix = operator.to_matrix()
    largest = np.linalg.norm(matrix, 2) ** 2
    assert 0.99 * largest < largest_eigenvalue(operator, np.dtype(np.float64)) <= largest * (1 + 1e-9)
    K = len(matrix)
    spectrum = lanczos_spectrum(operator, 4000 // K, K)
    expected = np.sum(1 / (1 + np.linalg.eigvalsh(matrix @ matrix.T)))
    found = np.sum(spectrum.weights / (1 + spectrum.eigenvalues))
    np.testing.assert_allclose(found, expected, rtol=0.1)  # of 4,000 / K probes


def test_operators_of_pylops_work_as_they_are():
    first = pylops.FirstDerivative(12, dtype="float64")
    assert is_operator(first)
    np.testing.assert_allclose(as_operator(first).to_matrix(), first.todense(), atol=1e-12)
    spectrum = pylops.signalprocessing.FFT(10, real=False, norm="ortho", dtype="complex128")
    with pytest.raises(ValueError, match=r"complex dtype.*StackedReal"):
        as_operator(spectrum)
    check_adjoint(StackedReal(spectrum), np.dtype(np.float64))


def test_pairs_of_functions_are_compiled_where_jax_can_and_called_where_not():
    pair = (lambda x: jnp.cumsum(x), lambda y: jnp.cumsum(y[::-1])[::-1])
    operator = as_operator(pair, 6)
    np.testing.assert_allclose(operator.to_matrix(), np.tril(np.ones((6, 6))), atol=1e-6)
    plain = FunctionPair((lambda x: np.cumsum(np.asarray(x)), lambda y: np.cumsum(np.asarray(y)[::-1])[::-1]), 6, 6)
    np.testing.assert_allclose(plain.to_matrix(), np.tril(np.ones((6, 6))))
    with pytest.raises(ValueError, match=r"FunctionPair\(\(matvec, rmatvec\)"):
        as_operator(pair)


def test_a_wrong_adjoint_is_refused_with_both_products():
    wrong = LinearOperator((5, 7), matvec=lambda x: MATRIX @ x, rmatvec=lambda y: 2 * MATRIX.T @ y, dtype=float)
    with pytest.raises(ValueError, match=r"not the transpose of its matvec.*Correct its adjoint"):
        check_adjoint(as_operator(wrong), np.dtype(np.float64))


def test_a_slightly_wrong_adjoint_of_a_large_operator_is_refused_in_single_precision():
    size = 10**6
    wrong = LinearOperator((size, size), matvec=lambda x: x, rmatvec=lambda y: 1.05 * y, dtype=np.float32)
    with pytest.raises(ValueError, match="not the transpose"):
        check_adjoint(as_operator(wrong), np.dtype(np.float32))


def test_products_of_wrong_shape_type_or_no_number_are_refused():
    def pair(matvec):
        return FunctionPair((matvec, lambda y: MATRIX.T @ y), 5, 7)

    with pytest.raises(ValueError, match=r"matvec.*shape \(7,\).*asks for \(5,\)"):
        check_adjoint(pair(lambda x: x), np.dtype(np.float64))
    with pytest.raises(ValueError, match=r"complex numbers.*StackedReal"):
        check_adjoint(pair(lambda x: 1j * (MATRIX @ x)), np.dtype(np.float64))
    with pytest.raises(ValueError, match="NaN or infinity"):
        check_adjoint(pair(lambda x: np.nan * (MATRIX @ x)), np.dtype(np.float64))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: as_operator(np.zeros(3)), "expected \\(n_observed, n_components\\)"),
        (lambda: as_operator(LinearOperator((0, 3), matvec=abs, dtype=float)), "at least one of each"),
        (lambda: as_operator(random_array((2, 3), density=1.0) * np.nan), "NaN or infinity"),
        (lambda: as_operator(random_array((2, 3), density=1.0) * 1j), "complex"),
        (lambda: Convolution(np.ones(5), (4,)), "none longer"),
        (lambda: Convolution([np.inf], (4,)), "finite numbers"),
        (lambda: PartialDCT((4,), [0, 0]), "distinct"),
        (lambda: PartialDCT((4,), [4]), "in \\[0, 4\\)"),
        (lambda: PartialDCT((4,), [0.5]), "whole numbers"),
        (lambda: PartialDCT((0,), [0]), "positive sizes"),
        (lambda: PartialFourier((4,), [True]), "expected booleans of shape \\(4,\\)"),
        (lambda: Wavelet((12, 16), "haar", level=3), "halved 2 times"),
        (lambda: Wavelet((16,), "bior2.2"), "not orthogonal"),
        (lambda: PartialDCT((4,), [0]) @ PartialDCT((4,), [0]), "cannot be composed"),
    ],
)
def test_what_cannot_be_an_operator_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_only_operators_compose():
    with pytest.raises(TypeError):
        PartialDCT((4,), [0]) @ 3.0


def test_subbands_cover_the_image_and_neighbours_leave_a_coefficient_out():
    wavelet = Wavelet((16, 16), "haar", level=2)
    assert np.bincount(wavelet.subbands).tolist() == [16, 16, 16, 16, 64, 64, 64]
    one = np.zeros((1, 256))
    one[0, 8 * 16 + 8] = 1.0
    mean = wavelet.neighbor_mean(one).reshape(16, 16)
    assert mean[8, 8] == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(mean[7:10, 7], 1 / 8, atol=1e-12)
    composed = PartialDCT((16, 16), [0]) @ wavelet
    np.testing.assert_array_equal(composed.neighbor_mean(one), wavelet.neighbor_mean(one))
    np.testing.assert_array_equal(composed.subbands, wavelet.subbands)
    assert PartialDCT((16, 16), [0]).neighbor_mean(one) is None
    assert PartialDCT((16, 16), [0]).subbands is None


def test_copies_of_operators_are_alike():
    for operator in OPERATORS.values():
        x = RANDOM.standard_normal((1, operator.shape[1]))
        if not isinstance(operator, FunctionPair):
            np.testing.assert_array_equal(copy.deepcopy(operator).matvec(x), operator.matvec(x))
        assert str(operator.shape) in repr(operator)
