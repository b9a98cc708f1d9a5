"""Sums that are drawn, against weights that are."""

import numpy as np

from bayeslista.bayes_lista.monte_carlo import drawn_variance
from bayeslista.bayes_lista.propagation import CoupledWeights, LayerParameters, RowColumn


def test_sums_vary_as_those_with_weights_drawn_afresh_in_every_layer():
    rng = np.random.default_rng(0)
    D, K, n = 5, 4, 40_000
    X, y = rng.normal(size=(K, D)), rng.normal(size=(1, K))
    encoder = RowColumn(rng.normal(0, 0.3, (D, K)), rng.uniform(0.1, 0.4, D), rng.uniform(0.1, 0.4, K))
    residual = RowColumn(rng.normal(0, 0.2, (D, D)), rng.uniform(0.1, 0.3, D), rng.uniform(0.1, 0.3, D))
    layers = LayerParameters(*map(np.array, ([0.1, 0.2, 0.1], [0.0, 0.3, -0.2], [1.0, 0.8, 1.2])))
    codes = before = np.zeros((n, D))
    for threshold, momentum, step_size in zip(*layers, strict=True):
        W, R = (
            part.mean + np.sqrt(part.var) * rng.standard_normal((n, *part.mean.shape)) for part in (encoder, residual)
        )
        u = codes + momentum * (codes - before)
        entering = u + step_size * (np.einsum("ndk,nk->nd", W, y - u @ X.T) + np.einsum("nde,ne->nd", R, u))
        before, codes = codes, np.sign(entering) * np.maximum(np.abs(entering) - threshold, 0)
    found = drawn_variance(CoupledWeights(encoder, residual), X, y, layers, n, rng)[0]
    squares = (codes - codes.mean(axis=0)) ** 2
    # Both are estimates from as many draws.
    assert np.all(np.abs(found - squares.mean(axis=0)) < 5 * np.sqrt(2 / n) * squares.std(axis=0))
