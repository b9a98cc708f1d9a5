"""Answers of the layers, each checked against its own data.

In accurate mode the sampler answers signals whose check fails, up to a number of those that are answered together; what
fails after that, and in fast mode, is widened. Answers of exact mode are checked by `check_moments` alone.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayeslista.spike_slab.config import CHECKS
from bayeslista.spike_slab.exact import LARGEST_DIMENSION, Budget
from bayeslista.spike_slab.fitting import SpikeSlabLearner
from bayeslista.spike_slab.predictive_check import PredictiveCheck, check_answers, largest_energy, widen
from bayeslista.spike_slab.scale_mixture_prior import GaussianParts


class CheckedAnswers(NamedTuple):
    """A spike and slab for every coefficient, in the units of the learner, and what became of the signals."""

    prob_active: NDArray[Any]
    slab_mean: NDArray[Any]
    slab_var: NDArray[Any]
    check: PredictiveCheck
    sampled: NDArray[np.bool_]
    failed: NDArray[np.bool_]
    parts: GaussianParts | None = None  # of slabs that are mixtures


def checked_answers(learner: SpikeSlabLearner, Y: NDArray[Any], n_jobs: int | None = None) -> CheckedAnswers:
    """The answers of VAMP and EP layers, checked; those of the sampler where these fail."""
    if learner.base is not None:  # calibrated on held-out pairs, for another model than that of the check
        output, mixture = learner.dependent_output(Y)
        none = np.zeros(len(Y), bool)
        if np.isnan(Y).any():  # the residual of what is missing is zero
            predicted = (output.prob_active * output.slab_mean) @ learner.learned.design_matrix.T
            Y = np.where(np.isnan(Y), predicted, Y)
        return CheckedAnswers(*output, check_moments(learner, Y, *output), none, none, mixture)
    parts: Any = tuple(np.array(part) for part in learner.output(Y))
    size = learner.usual_size(Y)
    check = check_moments(learner, Y, parts[0], parts[1], parts[2], size)
    _, _, _, prior_prob, slab, _ = learner.learned
    prior_mean = slab.weight @ slab.mean
    prior_var = slab.weight @ (slab.var + slab.mean**2) - prior_mean**2
    lost = check.overflowed()
    if lost.any():  # layers that diverged: the prior answers, and the check fails
        for part, prior_part in zip(
            parts, (prior_prob, size[lost] * prior_mean, size[lost] ** 2 * prior_var), strict=True
        ):
            part[lost] = prior_part
    sampled, failed = np.zeros(len(Y), bool), check.failed(most_energy(learner))
    if learner.mode == "accurate" and failed.any() and len(learner.learned.design_matrix.T) <= LARGEST_DIMENSION:
        # The sampler answers the signals of the smallest tail probability.
        worst = np.flatnonzero(failed)
        worst = np.sort(
            worst[np.lexsort((-check.chi_square[worst], check.tail_probability[worst]))][: CHECKS.most_sampled]
        )
        found = learner.sample(Y[worst] / size[worst], n_jobs=n_jobs, budget=Budget(most_moves=CHECKS.most_moves))
        sampled_parts = found.prob_active, found.slab_mean * size[worst], found.slab_var * size[worst] ** 2
        anew = check_moments(learner, Y[worst], *sampled_parts, size[worst])
        # Chains that differ and explain no more are further from the posterior than the layers are.
        better = found.diagnostics.converged | ~anew.failed(most_energy(learner))
        for old, new in zip((*parts, *check), (*sampled_parts, *anew), strict=True):
            old[worst[better]] = new[better]
        sampled[worst[better]] = True
        failed = check.failed(most_energy(learner))
    if failed.any():
        wider = widen(
            check.chi_square[failed], parts[0][failed], parts[2][failed] / size[failed] ** 2, prior_prob, prior_var
        )
        # The mean of the answer stays.
        parts[1][failed] *= parts[0][failed] / np.maximum(wider[0], np.finfo(np.float64).tiny)
        parts[0][failed], parts[2][failed] = wider[0], wider[1] * size[failed] ** 2
    return CheckedAnswers(parts[0], parts[1], parts[2], check, sampled, failed)


def most_energy(learner: SpikeSlabLearner) -> float:
    """The energy of a predicted code beyond which an answer fails its check."""
    X, _, _, prob_active, slab, _ = learner.learned
    return largest_energy(prob_active, slab, X.shape[1])


def check_moments(
    learner: SpikeSlabLearner,
    Y: NDArray[Any],
    prob_active: NDArray[Any],
    slab_mean: NDArray[Any],
    slab_var: NDArray[Any],
    size: NDArray[Any] | float = 1.0,
) -> PredictiveCheck:
    """The check of spikes and slabs under the learned model, of signals that were scaled down by their size."""
    X, covariance, noise_var, prior_prob, slab, _ = learner.learned
    power = prior_prob * (slab.weight @ (slab.var + slab.mean**2))
    with np.errstate(over="ignore", invalid="ignore"):  # squares of layers that diverged are infinite
        mean = prob_active * slab_mean
        var = prob_active * (slab_var + (1 - prob_active) * slab_mean**2)
        return check_answers(Y / size, mean / size, var / np.square(size), X, noise_var, power, covariance)


def join_answers(parts: list[CheckedAnswers]) -> CheckedAnswers:
    """The answers of successive signals as one."""
    if len(parts) == 1:
        return parts[0]
    columns: list[Any] = [list(column) for column in zip(*parts, strict=True)]
    checks = PredictiveCheck(*(np.concatenate(column) for column in zip(*columns[3], strict=True)))
    joined: list[Any] = [np.concatenate(column) for i, column in enumerate(columns[:6]) if i != 3]
    mixtures = columns[6]
    mixture = None
    if mixtures[0] is not None:
        mixture = GaussianParts(*(np.concatenate(column) for column in zip(*mixtures, strict=True)))
    return CheckedAnswers(joined[0], joined[1], joined[2], checks, joined[3], joined[4], mixture)
