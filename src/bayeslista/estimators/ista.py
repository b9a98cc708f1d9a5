"""ISTA as an estimator, and what it shares with FISTA."""

from abc import abstractmethod
from typing import Any, Self

from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from bayeslista.estimators.base import BaseSparseCoder
from bayeslista.estimators.validation import all_or_nothing
from bayeslista.lista.proximal import ista
from bayeslista.numerics.batching import in_blocks
from bayeslista.numerics.linear import ProximalWeights, ista_weights


class ProximalCoder(BaseSparseCoder):
    """A fixed number of proximal gradient steps with the design matrix; nothing else is learned."""

    def __init__(
        self,
        n_layers: int = 100,
        *,
        design_matrix: ArrayLike | None = None,
        shrinkage: float = 0.1,
        dtype: str = "auto",
    ) -> None:
        self.n_layers = n_layers
        self.design_matrix = design_matrix
        self.shrinkage = shrinkage
        self.dtype = dtype

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Prepare the step from the design matrix, estimated from the pairs if it is not given.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row. One-dimensional: one coefficient a signal, not the response of a table.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._validate_params()
        observations, codes = self._validate_pairs(X, y)
        self.design_matrix_ = self._resolve_design_matrix(observations, codes)
        self.encoder_, self.recurrent_, self.step_inverse_ = ista_weights(self.design_matrix_)
        self.shrinkage_ = float(self.shrinkage)
        self.n_iter_ = int(self.n_layers)
        return self

    def _predict_codes(self, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        weights = ProximalWeights(self.encoder_, self.recurrent_, self.step_inverse_)
        return in_blocks(lambda rows: self._solve(weights, rows), Y)

    @abstractmethod
    def _solve(self, weights: ProximalWeights, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        """Run the iterations on one block of observations."""


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
    design_matrix : array-like of shape (n_observed, n_components), default=None
        ``X`` in ``y = X β + noise``. None estimates it from the pairs by ridge regression.
    shrinkage : float, default=0.1
        The threshold ``λ``, in the units of the codes.
    dtype : {"auto", "float32", "float64"}, default="auto"
        The floating type of the computation. "auto" is float32 where the observations are float32 and the
        codes float32 or integers, else float64.

    Attributes
    ----------
    design_matrix_ : ndarray of shape (n_observed, n_components)
        The design matrix in use.
    encoder_ : ndarray of shape (n_components, n_observed)
        ``W``.
    recurrent_ : ndarray of shape (n_components, n_components)
        ``S``.
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
