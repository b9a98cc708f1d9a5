"""A Gaussian base for codes that go together, and what held-out pairs say of its confidence."""

from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from bayeslista.denoiser import Denoised, denoise
from bayeslista.estimators._learners import Numbers
from bayeslista.gaussian_base import GaussianBase, cavities
from bayeslista.inference.simulation import log_score

_USUAL_LEAST = 0.01  # variance of a slab, in units of the codes that are not zero


class Head(NamedTuple):
    """What held-out pairs said of the confidence of a Gaussian base.

    Log-odds are multiplied by `temper` and moved by `offset`; variances of slabs are multiplied by `widening`, and
    `least` is added to them.
    """

    temper: float = 1.0
    offset: float = 0.0
    widening: float = 1.0
    least: float = 0.0


class Base(NamedTuple):
    """A Gaussian base and its head."""

    layer: GaussianBase
    head: Head


def structured_belief(base: Base, Y: Numbers) -> Denoised:
    temper, offset, widening, least = base.head
    mean, var = cavities(base.layer, Y)
    belief: Any = denoise(mean, var, base.layer.prior, temper, offset, widening)
    belief = jax.tree.map(np.asarray, belief)
    return belief._replace(slab_var=belief.slab_var + belief.slab_var.dtype.type(least))


def structured_head(told: list[tuple[Numbers, ...]]) -> Head:
    """The head of the best log score of pairs that each layer was not made from, with a price on a wrong variance."""

    def head(point: Numbers) -> Head:
        temper, widening, least = np.exp(point[[0, 2, 3]]).tolist()
        return Head(temper, float(point[1]), widening, _USUAL_LEAST * least)

    def loss(point: Numbers) -> float:
        scores, variance, error = [], 0.0, 0.0
        for layer, Y, B in told:
            belief = structured_belief(Base(layer, head(point)), Y)
            scores.append(float(np.mean(log_score(belief, B))))
            variance += float(np.sum(_variances(belief)))
            error += float(np.sum(squared_errors(belief, B)))
        miss = np.log(variance / error) if error > 0 else 0.0
        return miss**2 - float(np.mean(scores)) + 1e-3 * float(np.sum(np.square(point)))

    corners = np.vstack([np.zeros(4), 0.4 * np.eye(4)])  # its own are far too near to tell a slope from zero
    options = {"maxfev": 120, "xatol": 0.02, "fatol": 1e-4, "initial_simplex": corners}
    return head(minimize(loss, np.zeros(4), method="Nelder-Mead", options=options).x)


def _variances(belief: Denoised) -> Numbers:
    chance, mean = expit(np.asarray(belief.log_odds)), np.asarray(belief.slab_mean)
    return chance * (belief.slab_var + (1 - chance) * mean**2)


def squared_errors(belief: Denoised, B: Numbers) -> Numbers:
    mean = expit(np.asarray(belief.log_odds)) * np.asarray(belief.slab_mean)
    return np.sum((mean - B) ** 2, axis=1)
