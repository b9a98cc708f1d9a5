r"""The spread that weights drawn afresh in every layer make: what moments leave out, coefficients that vary together.

Moments take the coefficients that a layer receives as independent. They are not: one residual moves many of them, more
so with every layer. Draws tell by how much the variance is larger. Given what a layer receives, the sums of products
with Gaussian weights are Gaussian and independent of each other, so sums are drawn, not weights.
"""

import numpy as np
from jaxtyping import Float

from bayeslista.anchored_network import AnchoredWeights, RowColumn


def drawn_variance(
    weights: AnchoredWeights[RowColumn],
    design_matrix: Float[np.ndarray, "K D"],
    observations: Float[np.ndarray, "n K"],
    shrinkage: Float[np.ndarray, " L"],
    n_draws: int,
    random: np.random.Generator,
) -> Float[np.ndarray, "n D"]:
    """Variance of the network's output over draws of the weights.

    Parameters
    ----------
    weights : AnchoredWeights
        Belief about W and R, with a variance a row and a column.
    design_matrix : array of shape (K, D)
        X.
    observations : array of shape (n, K)
        One observation a row.
    shrinkage : array of shape (L,)
        The threshold of each layer.
    n_draws : int
        Draws for each observation, two at least.
    random : numpy.random.Generator
        Where they come from.

    Returns
    -------
    array of shape (n, D)
        The variances, in double precision.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.anchored_network import AnchoredWeights, RowColumn
    >>> from bayeslista.weight_draws import drawn_variance
    >>> uncertain = RowColumn(np.zeros((1, 1)), np.ones(1), np.ones(1))
    >>> certain = RowColumn(np.zeros((1, 1)), np.zeros(1), np.zeros(1))
    >>> weights = AnchoredWeights(uncertain, certain)
    >>> random = np.random.default_rng(0)
    >>> drawn_variance(weights, np.ones((1, 1)), np.full((1, 1), 2.0), np.zeros(1), 10_000, random).round(1)
    array([[4.]])
    """
    (W, p, q), (R, r, t) = (tuple(np.asarray(part, np.float64) for part in matrix) for matrix in weights)
    X, Y = (np.asarray(part, np.float64) for part in (design_matrix, observations))
    Y = np.repeat(Y, n_draws, axis=0)
    codes = np.zeros((len(Y), len(W)))
    for threshold in shrinkage:
        misfit = Y - codes @ X.T
        var = np.outer(misfit**2 @ q, p)
        var += np.outer(codes**2 @ t, r)
        drawn = np.sqrt(var, out=var)
        drawn *= random.standard_normal(var.shape)
        entering = codes + misfit @ W.T
        entering += codes @ R.T
        entering += drawn
        codes = entering - np.clip(entering, -threshold, threshold)
    return codes.reshape(-1, n_draws, len(W)).var(axis=1, ddof=1)
