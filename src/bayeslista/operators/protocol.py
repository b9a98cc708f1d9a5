r"""The protocol of operators: shape, dtype, `matvec` and `rmatvec`, and what some of them have besides.

Signals are rows: `matvec` maps (n, D) to (n, K), `rmatvec` maps (n, K) to (n, D). Where :math:`A A^T` is diagonal in a
fast transform T, :math:`A A^T = T^* \Lambda T`, `gram_eigenvalues` has the diagonal of Λ and `gram_filter` multiplies
by :math:`T^* G T` for any diagonal G.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

Rows = Float[NDArray[Any], "n D"]
Images = Float[NDArray[Any], "n K"]

LARGEST_MATRIX = 2**20
"""Entries of a matrix that an operator may become: 8 MB, whose singular value decomposition takes a second or two."""

_DOT_TOLERANCE = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-3}  # in the dot-product test


class BaseOperator(ABC):
    """A linear map between rows of D coefficients and rows of K observations."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(K, D): observations and coefficients."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The floating type that the operator itself is known in: products are no more accurate."""
        return np.dtype(np.float64)

    @abstractmethod
    def matvec(self, codes: Rows) -> Images:
        """Products ``A x`` of rows of coefficients, in the floating type of the rows."""

    @abstractmethod
    def rmatvec(self, images: Images) -> Rows:
        """Products ``Aᵀ y`` of rows of observations, in the floating type of the rows."""

    @property
    def gram_eigenvalues(self) -> Float[NDArray[Any], " K"] | None:
        """Eigenvalues of ``A Aᵀ`` in the order of its fast transform; None where there is no such transform."""
        return None

    def gram_filter(self, gain: Images, images: Images) -> Images:
        """Rows times ``T* diag(gain) T``, with the transform T that makes ``A Aᵀ`` diagonal."""
        raise NotImplementedError

    @property
    def squared_column_norms(self) -> Float[NDArray[Any], " D"] | None:
        """Squared norms of the columns, where they are cheap; None where they are not."""
        return None

    @property
    def subbands(self) -> Int[NDArray[Any], " D"] | None:
        """The group of every coefficient, counted from 0, where coefficients come in groups of one scale; else None."""
        return None

    def neighbor_mean(self, values: Rows) -> Rows | None:
        """The mean over the neighbours of each coefficient; None where coefficients have no neighbours."""
        return None

    @property
    def has_orthonormal_rows(self) -> bool:
        """Whether ``A Aᵀ`` is the identity."""
        return False

    def to_matrix(self) -> Float[NDArray[Any], "K D"]:
        """The matrix itself, column by column; meant for small operators."""
        return np.ascontiguousarray(self.matvec(np.eye(self.shape[1], dtype=self.dtype)).T)

    def __matmul__(self, other: Any) -> "Composition":
        """The composition ``x ↦ A (B x)``."""
        if not isinstance(other, BaseOperator):
            return NotImplemented
        return Composition(self, other)

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what is computed from them is computed again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape})"


@dataclass(frozen=True, eq=False, repr=False)
class Composition(BaseOperator):
    """The operator ``x ↦ A (B x)``, written ``A @ B``.

    Parameters
    ----------
    left, right : BaseOperator
        A and B; A takes as many coefficients as B makes observations.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.operators import Convolution, Wavelet
    >>> blur = Convolution(np.ones(3) / 3, (8,))
    >>> blur @ Wavelet((8,), "haar", level=2)
    Composition(shape=(8, 8))
    """

    left: BaseOperator
    right: BaseOperator

    def __post_init__(self) -> None:
        if self.left.shape[1] != self.right.shape[0]:
            raise ValueError(
                f"Operators of shapes {self.left.shape} and {self.right.shape} cannot be composed: the left one takes "
                f"{self.left.shape[1]} numbers and the right one makes {self.right.shape[0]}. In A @ B the operator on "
                "the right is applied first."
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(K, D) of the composition."""
        return self.left.shape[0], self.right.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrower type of both."""
        return min(self.left.dtype, self.right.dtype, key=lambda each: each.itemsize)

    def matvec(self, codes: Rows) -> Images:
        """``A (B x)``."""
        return self.left.matvec(self.right.matvec(codes))

    def rmatvec(self, images: Images) -> Rows:
        """``Bᵀ (Aᵀ y)``."""
        return self.right.rmatvec(self.left.rmatvec(images))

    @property
    def gram_eigenvalues(self) -> Float[NDArray[Any], " K"] | None:
        """Those of A, if the rows of B are orthonormal: ``A B Bᵀ Aᵀ = A Aᵀ``."""
        return self.left.gram_eigenvalues if self.right.has_orthonormal_rows else None

    def gram_filter(self, gain: Images, images: Images) -> Images:
        """The filter of A."""
        return self.left.gram_filter(gain, images)

    @property
    def subbands(self) -> Int[NDArray[Any], " D"] | None:
        """Those of B, whose coefficients are the codes."""
        return self.right.subbands

    def neighbor_mean(self, values: Rows) -> Rows | None:
        """The mean over neighbours in the codes of B."""
        return self.right.neighbor_mean(values)

    @property
    def has_orthonormal_rows(self) -> bool:
        """Whether those of both are."""
        return self.left.has_orthonormal_rows and self.right.has_orthonormal_rows


@dataclass(frozen=True, eq=False, repr=False)
class ColumnScaled(BaseOperator):
    """An operator with its columns multiplied by numbers."""

    operator: BaseOperator
    factors: Any

    @property
    def shape(self) -> tuple[int, int]:
        """That of the operator."""
        return self.operator.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the operator."""
        return self.operator.dtype

    def matvec(self, codes: Rows) -> Images:
        """``A (s ∘ x)``."""
        return self.operator.matvec((codes * self.factors).astype(codes.dtype, copy=False))

    def rmatvec(self, images: Images) -> Rows:
        """``s ∘ Aᵀ y``."""
        return (self.operator.rmatvec(images) * self.factors).astype(images.dtype, copy=False)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of ``A Aᵀ`` with weights: ``tr f(A Aᵀ) ≈ Σ_j w_j f(λ_j)``, exactly where all are known."""

    eigenvalues: Any
    weights: Any

    @cached_property
    def largest(self) -> float:
        """The largest eigenvalue."""
        return float(np.max(self.eigenvalues))


def check_adjoint(operator: BaseOperator, dtype: np.dtype[Any]) -> None:
    """Refuse products of wrong shape or type, and a `rmatvec` that fails the dot-product test ⟨A x, y⟩ = ⟨x, Aᵀ y⟩."""
    K, D = operator.shape
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((1, size)).astype(dtype) for size in (D, K))
    found = {}
    for name, rows, size in (("matvec", x, K), ("rmatvec", y, D)):
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.asarray(getattr(operator, name)(rows))
        if values.shape != (1, size):
            raise ValueError(
                f"{name} of the operator makes an array of shape {values.shape[1:]} of {rows.shape[1]} numbers, where "
                f"its shape {operator.shape} asks for ({size},). Pass an operator of shape (n_observed, n_components)."
            )
        if values.dtype.kind == "c":
            raise ValueError(
                f"{name} of the operator makes complex numbers, and codes and observations have to be real. Wrap it in "
                "bayeslista.operators.StackedReal, which observes real and imaginary parts one after the other."
            )
        if not np.isfinite(values).all():
            raise ValueError(f"{name} of the operator makes NaN or infinity of finite numbers. Check its entries.")
        found[name] = values
    # In double precision, and compared with the size that such products have: ⟨A x, y⟩ is about ‖A x‖ for a random y.
    wide = [np.asarray(values, np.float64).ravel() for values in (x, y, found["matvec"], found["rmatvec"])]
    left, right = float(wide[2] @ wide[1]), float(wide[0] @ wide[3])
    scale = float(np.linalg.norm(wide[2]) + np.linalg.norm(wide[3]))
    coarser = min(np.dtype(dtype), operator.dtype, key=lambda each: each.itemsize)
    if abs(left - right) > _DOT_TOLERANCE.get(coarser, 1e-3) * scale:
        raise ValueError(
            f"rmatvec of the operator is not the transpose of its matvec: for random x and y, ⟨A x, y⟩ = {left:.6g} "
            f"and ⟨x, Aᵀ y⟩ = {right:.6g}. Correct its adjoint: a missing factor or conjugate is the usual cause."
        )


def largest_eigenvalue(operator: BaseOperator, dtype: np.dtype[Any]) -> float:
    """‖A‖₂² by power iteration on ``A Aᵀ``, from below; exact where the eigenvalues are known."""
    known = operator.gram_eigenvalues
    if known is not None:
        return float(np.max(known))
    vector = np.random.default_rng(0).standard_normal((1, operator.shape[0])).astype(dtype)
    found = 0.0
    for _ in range(_POWER_STEPS):
        size = float(np.linalg.norm(vector))
        if size == 0.0:
            return 0.0
        vector = operator.matvec(operator.rmatvec(vector / size))
        before, found = found, float(np.linalg.norm(vector))
        if abs(found - before) <= _POWER_TOLERANCE * found:
            break
    return found


def lanczos_spectrum(operator: BaseOperator, n_probes: int, n_steps: int) -> Spectrum:
    """Stochastic Lanczos quadrature [Ubaru, Chen and Saad, 2017]: Hutchinson probes, each with its own Gauss rule.

    Every probe v gives a tridiagonal matrix of coefficients; its eigenvalues are nodes, and the squares of the first
    entries of its eigenvectors their weights: ``vᵀ f(A Aᵀ) v ≈ ‖v‖² Σ_j w_j f(λ_j)``.
    """
    K = operator.shape[0]
    n_steps = min(n_steps, K)
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for _ in range(n_probes):
        start = random.choice([-1.0, 1.0], (1, K)) / np.sqrt(K)
        basis = [start]
        diagonal, off = [], []
        for step in range(n_steps):
            following = operator.matvec(operator.rmatvec(basis[-1]))
            diagonal.append(float(np.sum(following * basis[-1])))
            for each in basis * 2:  # twice is enough against loss of orthogonality
                following = following - np.sum(following * each) * each
            size = float(np.linalg.norm(following))
            if step + 1 == n_steps or size <= 1e-10 * max(diagonal[0], 1e-300):
                break
            off.append(size)
            basis.append(following / size)
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
        nodes.append(np.maximum(values, 0.0))
        weights.append(K / n_probes * vectors[0] ** 2)
    return Spectrum(np.concatenate(nodes), np.concatenate(weights))


_POWER_STEPS, _POWER_TOLERANCE = 200, 1e-4  # the margin of the step size covers ten times the tolerance
