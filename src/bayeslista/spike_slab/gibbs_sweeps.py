r"""Uncollapsed Gibbs sampling of one signal: values are part of the state, and a sweep draws every coefficient in turn.

With :math:`r = h - G b` and :math:`s_j = r_j + G_{jj} b_j` the odds of column j in component c, given all others, are

.. math:: o_{jc} = \frac{p_j}{1-p_j}\, w_c\, (1 + \tau G_{jj})^{-1/2}
    \exp\tfrac12\Big\{\frac{(s_j + \mu/\tau)^2}{G_{jj} + 1/\tau} - \frac{\mu^2}{\tau}\Big\},

and an active value is Gaussian with mean :math:`(s_j + \mu/\tau)/(G_{jj} + 1/\tau)` and variance
:math:`1/(G_{jj} + 1/\tau)` [George and McCulloch, 1993]. A sweep takes :math:`O(D k)` operations with k active
columns, as much as a single move of the jump process, which mixes better where columns are correlated.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from bayeslista.spike_slab.jump_process import normal, uniform


@njit(cache=True, nogil=True, error_model="numpy")
def run_sweeps(n_sweeps: Any, G: Any, h: Any, prior: Any, values: Any, random: Any, sums: Any) -> None:
    """Sweeps from some values, in place; adds P(active), mean and mean square of every coefficient given the others."""
    n_parts, D = prior.odds.shape
    variance, shift, log_odds = np.empty((n_parts, D)), np.empty((n_parts, D)), np.empty((n_parts, D))
    for c in range(n_parts):
        for j in range(D):
            tau, mu = 1.0 / prior.precision[c, j], prior.mean[c, j]
            variance[c, j] = 1.0 / (G[j, j] + prior.precision[c, j])
            shift[c, j] = mu / tau
            log_odds[c, j] = math.log(prior.odds[c, j]) - 0.5 * (math.log1p(tau * G[j, j]) + mu * mu / tau)
    residual = h.copy()
    for j in range(D):
        if values[j] != 0.0:
            for i in range(D):
                residual[i] -= G[j, i] * values[j]
    weight = np.empty(n_parts)
    for _ in range(n_sweeps):
        for j in range(D):
            s = residual[j] + G[j, j] * values[j]
            # Odds of the components, relative to the largest weight, that of zero included.
            top = 0.0
            for c in range(n_parts):
                weight[c] = log_odds[c, j] + 0.5 * variance[c, j] * (s + shift[c, j]) ** 2
                top = max(top, weight[c])
            active, first, second = 0.0, 0.0, 0.0
            for c in range(n_parts):
                weight[c] = math.exp(weight[c] - top)
                mean = variance[c, j] * (s + shift[c, j])
                active += weight[c]
                first += weight[c] * mean
                second += weight[c] * (variance[c, j] + mean * mean)
            total = active + math.exp(-top)
            sums[0, j] += active / total
            sums[1, j] += first / total
            sums[2, j] += second / total
            # A new value, and the residual that it leaves.
            place, new = uniform(random) * total, 0.0
            if place < active:
                c = 0
                while c < n_parts - 1 and place >= weight[c]:
                    place -= weight[c]
                    c += 1
                new = variance[c, j] * (s + shift[c, j]) + math.sqrt(variance[c, j]) * normal(random)
            change = new - values[j]
            if change != 0.0:
                for i in range(D):
                    residual[i] -= G[j, i] * change
                values[j] = new
