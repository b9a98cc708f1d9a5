"""ISTA as an estimator, and what it shares with FISTA."""

from abc import abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import Tags

from bayeslista.estimators.base import BaseSparseCoder
from bayeslista.estimators.operator_matrices import OPERATOR_CONSTRAINTS
from bayeslista.estimators.validation import all_or_nothing
from bayeslista.lista.proximal import ista
from bayeslista.numerics.batching import in_blocks
from bayeslista.numerics.linear import ProximalWeights, ista_weights
from bayeslista.operators import BaseOperator, is_operator
from bayeslista.operators.proximal_gradient import ista_on_operator, operator_step


class ProximalCoder(BaseSparseCoder):
    """A fixed number of proximal gradient steps with the design matrix; nothing else is learned."""

    _takes_operators = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseSparseCoder._parameter_constraints,
        "design_matrix": OPERATOR_CONSTRAINTS,
    }

    def __init__(
        self,
        n_layers: int = 100,
        *,
        design_matrix: Any = None,
        shrinkage: float = 0.1,
        dtype: str = "auto",
    ) -> None:
        self.n_layers = n_layers
        self.design_matrix = design_matrix
        self.shrinkage = shrinkage
        self.dtype = dtype

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Prepare the step from the design matrix, estimated from the pairs if it is not given.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,), default=None
            Their codes, one a row. One-dimensional: one coefficient a signal, not the response of a table. None takes
            a design matrix.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._validate_params()
        if y is None and self.design_matrix is not None:
            observations = self._validate_alone(X)
            codes = np.zeros((0, self.n_components_), self.dtype_)
        else:
            observations, codes = self._validate_pairs(X, y)
        for name in ("encoder_", "recurrent_"):  # of another fit
            self.__dict__.pop(name, None)
        if is_operator(self.design_matrix):
            operator = self._resolve_operator(codes)
            self.design_matrix_: Any = operator
            self.step_inverse_ = operator_step(operator, self.dtype_)
        else:
            self.design_matrix_ = self._resolve_design_matrix(observations, codes)
            self.encoder_, self.recurrent_, self.step_inverse_ = ista_weights(self.design_matrix_)
        self.shrinkage_ = float(self.shrinkage)
        self.n_iter_ = int(self.n_layers)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.design_matrix is None
        return tags

    def _predict_codes(self, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        if isinstance(self.design_matrix_, BaseOperator):
            return self._solve_operator(self.design_matrix_, Y)
        weights = ProximalWeights(self.encoder_, self.recurrent_, self.step_inverse_)
        return in_blocks(lambda rows: self._solve(weights, rows), Y)

    def _rows_together(self) -> int:
        return 1 if isinstance(self.design_matrix_, BaseOperator) else super()._rows_together()

    @abstractmethod
    def _solve(self, weights: ProximalWeights, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        """Run the iterations on one block of observations."""

    @abstractmethod
    def _solve_operator(self, operator: BaseOperator, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        """Run the iterations with products of an operator."""


class ISTA(ProximalCoder):
    """Sparse coding by the iterative shrinkage-thresholding algorithm.

    X are observations and y their sparse codes; for a table of features and a response: `SpikeSlabRegressor`.

    From ``β = 0`` it repeats ``β ← h_λ(W y + S β)`` with ``W = Xᵀ/τ``, ``S = I − W X`` and ``τ = 1.01
    ‖X‖₂²``, and so descends to the minimiser of ``½‖y − X β‖² + λ τ ‖β‖₁``: the Lasso of scikit-learn at
    ``alpha = λ τ / n_observed`` [1]_.

    Parameters
    ----------
    n_layers : int, default=100
        How many soft-thresholdings, the first included.
    design_matrix : array-like or operator of shape (n_observed, n_components), default=None
        ``X`` in ``y = X β + noise``. None estimates it from the pairs by ridge regression. An operator is a sparse
        array of scipy, a LinearOperator of scipy or pylops, a pair of functions ``(matvec, rmatvec)`` or one of
        :mod:`bayeslista.operators`; it takes no codes to `fit`, and no matrix is formed.
    shrinkage : float, default=0.1
        The threshold ``λ``, in the units of the codes.
    dtype : {"auto", "float32", "float64"}, default="auto"
        The floating type of the computation. "auto" is float32 where the observations are float32 and the
        codes float32 or integers, else float64.

    Attributes
    ----------
    design_matrix_ : ndarray or operator of shape (n_observed, n_components)
        The design matrix in use.
    encoder_ : ndarray of shape (n_components, n_observed)
        ``W``; of arrays only.
    recurrent_ : ndarray of shape (n_components, n_components)
        ``S``; of arrays only.
    shrinkage_ : float
        ``λ``.
    step_inverse_ : float
        ``τ``.
    n_iter_ : int
        How many soft-thresholdings a prediction takes: `n_layers` as fitted.
    dtype_ : numpy.dtype
        The floating type of the fit and its predictions.
    n_components_ : int
        Coefficients per code.
    component_names_ : ndarray of shape (n_components,)
        Their names, where the codes of `fit`, or else the design matrix, were a frame that has any.
    n_features_in_ : int
        Observed values per sample.

    See Also
    --------
    FISTA : The same minimiser in fewer steps.
    LISTA : The same steps with weights learned from the pairs.

    Notes
    -----
    Predictions are compiled for batches of 8, 16, … 1,024 rows and padded to the next of these sizes,
    whatever the number of layers.

    References
    ----------
    .. [1] I. Daubechies, M. Defrise and C. De Mol, "An iterative thresholding algorithm for linear inverse
       problems with a sparsity constraint", Communications on Pure and Applied Mathematics 57(11), 2004.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.estimators import ISTA
    >>> codes = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -2.0]])
    >>> X = np.array([[1.0, 0.2, 0.0], [0.0, 1.0, 0.1], [0.3, 0.0, 1.0]])
    >>> model = ISTA(design_matrix=X, shrinkage=0.01).fit(codes @ X.T, codes)
    >>> model.predict(codes @ X.T).round(1) + 0.0
    array([[ 1.,  0.,  0.],
           [ 0.,  0., -2.]])
    """

    def _solve(self, weights: ProximalWeights, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        return ista(weights, Y, self.shrinkage_, self.n_iter_)

    def _solve_operator(self, operator: BaseOperator, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        return ista_on_operator(operator, self.step_inverse_, Y, self.shrinkage_, self.n_iter_)
