"""Monte Carlo variance of the network's output, which includes the correlations between coefficients.

Propagated moments take the inputs of a layer as independent. They are not: one residual moves many of them, more so
with every layer. Given the input of a layer, W y + S e is Gaussian with independent entries, so the sums are drawn, not
the weights.
"""

import numpy as np
from jaxtyping import Float

from bayeslista.bayes_lista.propagation import CoupledWeights, LayerParameters, RowColumn


def drawn_variance(
    weights: CoupledWeights[RowColumn],
    design_matrix: Float[np.ndarray, "K D"],
    observations: Float[np.ndarray, "n K"],
    layers: LayerParameters,
    n_draws: int,
    random: np.random.Generator,
) -> Float[np.ndarray, "n D"]:
    """Variance of the output over draws of the weights, fresh in every layer, in double precision."""
    (W, p, q), (R, r, t) = (tuple(np.asarray(part, np.float64) for part in matrix) for matrix in weights)
    X, Y = (np.asarray(part, np.float64) for part in (design_matrix, observations))
    Y = np.repeat(Y, n_draws, axis=0)
    codes = before = np.zeros((len(Y), len(W)))
    for threshold, momentum, step_size in zip(*layers, strict=True):
        # u = β + μ (β − β'),  c = u + γ (W f + R u) with f = y − X u:  W f + R u has the variance V_W f² + V_R u²
        u = codes + momentum * (codes - before)
        misfit = Y - u @ X.T
        var = np.outer(misfit**2 @ q, p)
        var += np.outer(u**2 @ t, r)
        drawn = np.sqrt(var, out=var)
        drawn *= random.standard_normal(var.shape)
        direction = misfit @ W.T
        direction += u @ R.T
        direction += drawn
        direction *= step_size
        direction += u
        before, codes = codes, direction - np.clip(direction, -threshold, threshold)
    return codes.reshape(-1, n_draws, len(W)).var(axis=1, ddof=1)
