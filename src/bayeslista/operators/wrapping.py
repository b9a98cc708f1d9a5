"""Operators from what users hold: arrays, sparse arrays, operators of scipy and pylops, pairs of functions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse
from scipy.sparse.linalg import LinearOperator

from bayeslista.numerics.precision import precision
from bayeslista.operators.protocol import BaseOperator, Images, Rows


@dataclass(frozen=True, eq=False, repr=False)
class MatrixOperator(BaseOperator):
    """A dense or sparse matrix as an operator.

    Parameters
    ----------
    matrix : ndarray or sparse array of shape (n_observed, n_components)
        The matrix; a sparse one stays sparse.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse import eye_array
    >>> from bayeslista.operators import MatrixOperator
    >>> MatrixOperator(2.0 * eye_array(3)).matvec(np.ones((1, 3)))
    array([[2., 2., 2.]])
    """

    matrix: Any

    def __post_init__(self) -> None:
        if issparse(self.matrix):
            values = csr_array(self.matrix)
            if values.dtype.kind != "f":
                values = values.astype(np.float64)
            if not np.isfinite(values.data).all():
                raise ValueError("The sparse design_matrix contains NaN or infinity. Remove or replace these entries.")
            object.__setattr__(self, "matrix", values)

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D) of the matrix."""
        return int(self.matrix.shape[0]), int(self.matrix.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the matrix."""
        return np.dtype(self.matrix.dtype)

    def matvec(self, codes: Rows) -> Images:
        """``x Aᵀ`` of rows x."""
        return _like(codes, (self.matrix @ codes.T).T)

    def rmatvec(self, images: Images) -> Rows:
        """``y A`` of rows y."""
        return _like(images, (self.matrix.T @ images.T).T)

    @property
    def squared_column_norms(self) -> NDArray[Any]:
        """Sums of squares of the columns, without a copy of a sparse matrix's zeros."""
        if not issparse(self.matrix):
            return np.einsum("kd,kd->d", self.matrix, self.matrix)
        return np.bincount(self.matrix.indices, self.matrix.data**2, self.shape[1])


@dataclass(frozen=True, eq=False, repr=False)
class WrappedOperator(BaseOperator):
    """A LinearOperator of scipy or pylops.

    Parameters
    ----------
    operator : scipy.sparse.linalg.LinearOperator
        Anything with `shape`, `dtype`, `matvec` and `rmatvec` of one-dimensional arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse.linalg import aslinearoperator
    >>> from bayeslista.operators import WrappedOperator
    >>> WrappedOperator(aslinearoperator(np.eye(2))).matvec(np.ones((3, 2))).shape
    (3, 2)
    """

    operator: Any

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D) of the operator."""
        return int(self.operator.shape[0]), int(self.operator.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its type; float64 where it has none."""
        return np.dtype(getattr(self.operator, "dtype", None) or np.float64)

    def matvec(self, codes: Rows) -> Images:
        """Row by row."""
        return _like(codes, np.stack([np.ravel(self.operator.matvec(row)) for row in codes]))

    def rmatvec(self, images: Images) -> Rows:
        """Row by row."""
        return _like(images, np.stack([np.ravel(self.operator.rmatvec(row)) for row in images]))


@dataclass(frozen=True, eq=False, repr=False)
class FunctionPair(BaseOperator):
    """Two functions that JAX can trace, or of NumPy arrays: one row in, one row out.

    Parameters
    ----------
    functions : tuple of two callables
        ``x ↦ A x`` and ``y ↦ Aᵀ y``.
    n_observed, n_components : int
        The shape.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.operators import FunctionPair
    >>> twice = FunctionPair((lambda x: 2 * x, lambda y: 2 * y), 3, 3)
    >>> twice.rmatvec(np.ones((1, 3)))
    array([[2., 2., 2.]])
    """

    functions: tuple[Callable[..., Any], Callable[..., Any]]
    n_observed: int
    n_components: int

    @property
    def shape(self) -> tuple[int, int]:
        """(n_observed, n_components)."""
        return self.n_observed, self.n_components

    def matvec(self, codes: Rows) -> Images:
        """Row by row."""
        return self._rows(0, codes)

    def rmatvec(self, images: Images) -> Rows:
        """Row by row."""
        return self._rows(1, images)

    def _rows(self, which: int, rows: NDArray[Any]) -> NDArray[Any]:
        with precision(rows.dtype):
            return _like(rows, np.stack([np.ravel(np.asarray(self._calls[which](row))) for row in rows]))

    @cached_property
    def _calls(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Both functions, compiled where JAX can trace them."""
        return _compiled(self.functions[0], self.n_components), _compiled(self.functions[1], self.n_observed)


@dataclass(frozen=True, eq=False, repr=False)
class StackedReal(BaseOperator):
    """A complex operator on real codes, observed as real parts and then imaginary parts.

    ``y = [Re A x, Im A x]``, so that K complex observations are 2 K real ones, and the transpose is
    ``[u, v] ↦ Re Aᴴ (u + i v)``. Complex observations z become ``np.concatenate([z.real, z.imag])``.

    Parameters
    ----------
    operator : scipy.sparse.linalg.LinearOperator
        The complex operator.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.sparse.linalg import aslinearoperator
    >>> from bayeslista.operators import StackedReal
    >>> StackedReal(aslinearoperator(np.array([[1.0 + 2.0j]]))).matvec(np.ones((1, 1)))
    array([[1., 2.]])
    """

    operator: Any

    @property
    def shape(self) -> tuple[int, int]:
        """(2 K, D)."""
        return 2 * int(self.operator.shape[0]), int(self.operator.shape[1])

    def matvec(self, codes: Rows) -> Images:
        """Real parts, then imaginary parts."""
        found = np.stack([np.ravel(self.operator.matvec(row)) for row in codes])
        return _like(codes, np.concatenate([found.real, found.imag], axis=1))

    def rmatvec(self, images: Images) -> Rows:
        """The real part of the adjoint."""
        real, imaginary = np.split(images, 2, axis=1)
        rows = real + 1j * imaginary
        return _like(images, np.stack([np.real(np.ravel(self.operator.rmatvec(row))) for row in rows]))


def is_operator(value: Any) -> bool:
    """Whether a design matrix is to be taken as an operator: a sparse array, an operator or a pair of functions.

    Parameters
    ----------
    value : object
        What was passed as design matrix.

    Returns
    -------
    bool
        False for arrays and None.

    Examples
    --------
    >>> from bayeslista.operators import is_operator
    >>> is_operator([[1.0]]), is_operator((abs, abs))
    (False, True)
    """
    if isinstance(value, tuple):
        return len(value) == 2 and all(callable(each) for each in value)
    products = hasattr(value, "matvec") and hasattr(value, "rmatvec") and hasattr(value, "shape")
    return isinstance(value, BaseOperator | LinearOperator) or issparse(value) or products


def as_operator(value: Any, n_observed: int | None = None) -> BaseOperator:
    """An operator from an array, a sparse array, an operator of scipy or pylops, or a pair of functions.

    Parameters
    ----------
    value : array-like, sparse array, LinearOperator, BaseOperator or pair of callables
        What to take as design matrix. A pair is ``(matvec, rmatvec)``, of one row each; JAX compiles it if it can.
    n_observed : int, default=None
        Rows of the matrix, which a pair of functions does not have.

    Returns
    -------
    BaseOperator
        The operator.

    Examples
    --------
    >>> from bayeslista.operators import as_operator
    >>> as_operator([[1.0, 2.0]])
    MatrixOperator(shape=(1, 2))
    """
    if isinstance(value, BaseOperator):
        return value
    if isinstance(value, tuple) and is_operator(value):
        if n_observed is None:
            raise ValueError(
                "A pair of functions has no shape of its own. Pass bayeslista.operators.FunctionPair((matvec, "
                "rmatvec), n_observed, n_components)."
            )
        with precision(np.float64):
            found = np.asarray(value[1](np.zeros(n_observed)))
        return FunctionPair(value, n_observed, int(found.size))
    if not is_operator(value) or issparse(value):
        matrix = value if issparse(value) else np.asarray(value, np.float64)
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ValueError(
                f"design_matrix has shape {matrix.shape}, expected (n_observed, n_components) with at least one of "
                "each."
            )
        if matrix.dtype.kind == "c":
            raise ValueError("design_matrix is complex. Stack its real and imaginary parts as rows of a real matrix.")
        return MatrixOperator(matrix)
    shape = tuple(value.shape)
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(
            f"The operator has shape {shape}, expected (n_observed, n_components) with at least one of each."
        )
    if np.dtype(getattr(value, "dtype", None) or np.float64).kind == "c":
        raise ValueError(
            "The operator has a complex dtype, and codes and observations have to be real. Wrap it in "
            "bayeslista.operators.StackedReal, which observes real and imaginary parts one after the other."
        )
    return WrappedOperator(value)


def _compiled(function: Callable[..., Any], size: int) -> Callable[..., Any]:
    """The function compiled by JAX; as it is, where JAX cannot trace it."""
    import jax

    def traced(x: Any) -> Any:  # JAX keeps functions by weak references, which methods written in C do not have
        return function(x)

    try:
        jax.eval_shape(traced, jax.ShapeDtypeStruct((size,), np.float32))
    except Exception:  # whatever NumPy or other code makes of a tracer; its own errors come back when it is called
        return function
    return jax.jit(traced)


def _like(rows: NDArray[Any], products: NDArray[Any]) -> NDArray[Any]:
    """Products in the floating type of the rows; complex ones stay, for the check of the operator to refuse them."""
    return products if products.dtype.kind == "c" else np.ascontiguousarray(products, rows.dtype)
