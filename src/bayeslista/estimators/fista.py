"""FISTA as an estimator."""

from typing import Any

from jaxtyping import Float
from numpy.typing import NDArray

from bayeslista.estimators.ista import ProximalCoder
from bayeslista.lista.proximal import fista
from bayeslista.numerics.linear import ProximalWeights
from bayeslista.operators import BaseOperator
from bayeslista.operators.proximal_gradient import fista_on_operator


class FISTA(ProximalCoder):
    """Sparse coding by the fast iterative shrinkage-thresholding algorithm.

    X are observations and y their sparse codes; for a table of features and a response: `SpikeSlabRegressor`.

    `ISTA` with Nesterov's momentum [1]_: the same minimiser of ``½‖y − X β‖² + λ τ ‖β‖₁``, approached at the rate
    ``1/k²`` in place of ``1/k``. The first two layers equal those of ISTA.

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
    ISTA : The same without momentum.
    LISTA : The same steps with weights learned from the pairs.

    References
    ----------
    .. [1] A. Beck and M. Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear inverse
       problems", SIAM Journal on Imaging Sciences 2(1), 2009.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.estimators import FISTA
    >>> codes = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -2.0]])
    >>> X = np.array([[1.0, 0.2, 0.0], [0.0, 1.0, 0.1], [0.3, 0.0, 1.0]])
    >>> model = FISTA(n_layers=30, design_matrix=X, shrinkage=0.01).fit(codes @ X.T, codes)
    >>> model.predict(codes @ X.T).round(1) + 0.0
    array([[ 1.,  0.,  0.],
           [ 0.,  0., -2.]])
    """

    def _solve(self, weights: ProximalWeights, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        return fista(weights, Y, self.shrinkage_, self.n_iter_)

    def _solve_operator(self, operator: BaseOperator, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        return fista_on_operator(operator, self.step_inverse_, Y, self.shrinkage_, self.n_iter_)
