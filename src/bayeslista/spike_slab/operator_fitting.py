"""What SpikeSlabNet learns on an operator, and how it predicts."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslista.numerics.epochs import Output, Units
from bayeslista.operators.protocol import BaseOperator
from bayeslista.spike_slab.checked_answers import CheckedAnswers
from bayeslista.spike_slab.config import CHECKS
from bayeslista.spike_slab.fitting import Assumed
from bayeslista.spike_slab.operator_problem import (
    OPERATOR_BUDGET,
    OperatorPrior,
    OperatorProblem,
    make_groups,
    make_operator_problem,
)
from bayeslista.spike_slab.operator_vamp import Learning, OperatorState, denoise_gaussian_slab, run_layers_on_operator
from bayeslista.spike_slab.predictive_check import check_residuals, widen

_FIRST_PROB_ACTIVE, _FIRST_NOISE = 0.1, 0.1  # of one group; the noise in units of the power of the observations
_FIRST_GROUP_PROB, _FIRST_GROUP_NOISE = 0.3, 1e-3  # of several, such as subbands, whose signals are stronger


@dataclass
class OperatorLearner:
    """A model of signals that an operator observes, and the layers that invert it."""

    operator: BaseOperator
    labels: Any  # (D,), or None
    units: Units
    n_layers: int
    assumed: Assumed  # without its matrix: the operator
    dtype: np.dtype
    power: float = 1.0  # mean square of an observation
    prior: OperatorPrior | None = None
    noise_var: float = 0.0
    n_run: int = 0  # layers of the fit
    has_settled: bool = True  # whether they ended before their number did, with hardly a change
    kept: Any = None  # observations of the fit, and their answers
    base: None = None
    mode: str = "fast"
    _problem: OperatorProblem | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what is computed again."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "_problem"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "_problem": None})

    def learn_from_observations(self, Y: NDArray[Any]) -> None:
        """Noise and prior by EM along the layers; what is given is held."""
        prob_active, noise_var, slab_var = self.assumed[1:4]
        many = make_groups(self.labels, self.operator.shape[1]).labels is not None
        self.power = float(np.mean(Y.astype(np.float64) ** 2)) or 1.0
        first = (_FIRST_GROUP_NOISE if many else _FIRST_NOISE) * self.power
        prior = self._given_prior(_FIRST_GROUP_PROB if many else _FIRST_PROB_ACTIVE)
        problem = self._make_problem(prior, first if noise_var is None else noise_var)
        if slab_var is None and not many:
            # Half of the power of the observations is that of the codes at first.
            expected = float(np.mean(prior.prob_active) * np.mean(problem.relative_var) * problem.column_power[0])
            share = 0.5 * self.power * Y.shape[1] / self.operator.shape[1] / expected
            problem = problem._replace(prior=prior._replace(slab_var=prior.slab_var * share))
        learning = Learning(noise_var is None, prob_active is None, slab_var is None)
        problem, state = run_layers_on_operator(problem, Y, OPERATOR_BUDGET.learning_layers, learning)
        self.prior, self.noise_var, self._problem = problem.prior, problem.noise_var, problem
        self.n_run, self.has_settled = int(state.n_run), bool(np.median(state.change) < OPERATOR_BUDGET.settled_change)
        if Y.shape[0] * self.operator.shape[1] <= OPERATOR_BUDGET.kept_numbers:
            self.kept = (Y.copy(), *_posterior(problem, state))

    def learn_from_pairs(self, Y: NDArray[Any], B: NDArray[Any]) -> None:
        """Noise and prior in closed form; what is given is held."""
        prob_active, noise_var, slab_var = self.assumed[1:4]
        groups = make_groups(self.labels, self.operator.shape[1])
        self.power = float(np.mean(Y.astype(np.float64) ** 2)) or 1.0
        active = groups.mean((B != 0).astype(float)).mean(axis=0)
        counts = groups.sizes * len(B)
        prior = self._given_prior(0.5)
        if prob_active is None:  # under Jeffreys' prior
            prior = prior._replace(prob_active=(active * counts + 0.5) / (counts + 1))
        if slab_var is None:
            energy = groups.mean(B.astype(np.float64) ** 2).mean(axis=0)
            usual = float(np.sum(energy * counts) / max(float(np.sum(active * counts)), 1.0)) or 1.0
            found = energy / np.where(active > 0, active, 1)
            prior = prior._replace(slab_var=np.where(found > 0, found, usual))
        if noise_var is None:
            noise_var = float(np.mean((Y - self.operator.matvec(B)).astype(np.float64) ** 2))
        self._take(prior, noise_var)

    def assume(self) -> None:
        """Take all from the user: nothing is learned."""
        prior, noise_var = self._given_prior(0.5), float(self.assumed.noise_var)
        self._take(prior, noise_var)
        problem = self._problem
        assert problem is not None
        code = problem.groups.spread(prior.prob_active, np.float64) * problem.relative_var
        image = self.operator.shape[1] / self.operator.shape[0] * float(np.mean(problem.column_power))
        self.power = float(np.mean(code)) * image + noise_var
        self._take(prior, noise_var)

    def output(self, Y: NDArray[Any]) -> Output:
        """A spike and slab for every coefficient; of the observations of the fit what it ended with."""
        parts: Any = [np.empty((len(Y), self.operator.shape[1]), self.dtype) for _ in Output._fields]
        new = np.ones(len(Y), bool)
        if self.kept is not None and len(Y):
            for i, row in enumerate(Y):
                same = np.flatnonzero((self.kept[0] == row).all(axis=1))
                if len(same):
                    new[i] = False
                    for part, kept in zip(parts, self.kept[1:], strict=True):
                        part[i] = kept[same[0]]
        if new.any():
            problem, state = run_layers_on_operator(self.problem, Y[new], self.n_layers)
            for part, found in zip(parts, _posterior(problem, state), strict=True):
                part[new] = found
        return Output(*parts)

    def answers(self, Y: NDArray[Any]) -> CheckedAnswers:
        """The output, checked against the observations; what fails is widened."""
        prob, slab_mean, slab_var = self.output(Y)
        problem = self.problem
        spread = problem.groups.spread
        prior_prob = np.broadcast_to(spread(problem.prior.prob_active, np.float64), prob.shape[1])
        prior_var = spread(problem.prior.slab_var, np.float64) * problem.relative_var * np.square(problem.column_unit)
        power = prior_prob * prior_var
        with np.errstate(over="ignore", invalid="ignore"):
            mean = prob * slab_mean
            var = prob * (slab_var + (1 - prob) * slab_mean**2)
            residual = Y - self.operator.matvec(mean)
            observed, left, m, v = (np.asarray(part, np.float64) for part in (Y, residual, mean, var))
            check = check_residuals(observed, left, m, v, self.noise_var, power)
        # As `predictive_check.largest_energy`, of coefficients that differ.
        deviation = np.sqrt(np.sum((3 - prior_prob) * prior_prob * prior_var**2)) / np.sum(power)
        unexplained = (check.tail_probability < CHECKS.tail_probability) & (
            check.chi_square > OPERATOR_BUDGET.largest_chi_square
        )
        most_energy = CHECKS.energy_factor * (1 + CHECKS.energy_deviations * float(deviation))
        failed = unexplained | (check.energy > most_energy)
        lost = check.overflowed() | (np.sum(left**2, axis=1) > np.sum(observed**2, axis=1))  # worse than nothing
        for part, prior_part in zip((prob, slab_mean, slab_var), (prior_prob, np.zeros(1), prior_var), strict=True):
            part[lost] = prior_part
        failed |= lost
        wide = failed & ~lost
        if wide.any():
            wider = widen(check.chi_square[wide], prob[wide], slab_var[wide], prior_prob, prior_var)
            # The mean of the answer stays.
            slab_mean[wide] *= prob[wide] / np.maximum(wider[0], np.finfo(self.dtype).tiny)
            prob[wide], slab_var[wide] = wider
        return CheckedAnswers(prob, slab_mean, slab_var, check, np.zeros(len(Y), bool), failed)

    @property
    def problem(self) -> OperatorProblem:
        """What layers take, made once."""
        if self._problem is None:
            assert self.prior is not None
            self._problem = self._make_problem(self.prior, self.noise_var)
        return self._problem

    @property
    def chunk(self) -> int:
        """How many signals are answered together."""
        return max(OPERATOR_BUDGET.row_numbers // max(self.operator.shape), 1)

    def _take(self, prior: OperatorPrior, noise_var: float) -> None:
        self.prior, self.noise_var = prior, noise_var
        self._problem = self._make_problem(prior, noise_var)

    def _given_prior(self, prob_active: float) -> OperatorPrior:
        """The prior as given, with a first probability and variances of one where it is not."""
        n_groups = make_groups(self.labels, self.operator.shape[1]).n_groups
        given = self.assumed.prob_active
        prob = np.full(n_groups, prob_active) if given is None else np.atleast_1d(np.asarray(given, np.float64))
        return OperatorPrior(prob if prob.size > 1 else np.full(n_groups, float(prob[0])), np.ones(n_groups))

    def _make_problem(self, prior: OperatorPrior, noise_var: float) -> OperatorProblem:
        given = self.assumed.slab_var
        operator = self.operator
        local = given is None and operator.neighbor_mean(np.zeros((1, operator.shape[1]), self.dtype)) is not None
        return make_operator_problem(
            operator,
            self.labels,
            prior,
            noise_var,
            self.power,
            self.dtype,
            relative_var=None if given is None else np.atleast_1d(np.asarray(given, np.float64)),
            is_local=local,
        )


def _posterior(problem: OperatorProblem, state: OperatorState) -> tuple[NDArray[Any], ...]:
    """P(active), mean and variance of the slab in the units of the codes."""
    groups, dtype = problem.groups, state.mean.dtype
    slab_var = state.relative_var * groups.spread(problem.prior.slab_var, dtype)
    log_odds = np.log(problem.prior.prob_active) - np.log1p(-problem.prior.prob_active)
    cavity_var = groups.spread(state.cavity_var, dtype)
    prob, mean, var = denoise_gaussian_slab(state.cavity_mean, cavity_var, groups.spread(log_odds, dtype), slab_var)
    return prob, mean * problem.column_unit, var * np.square(problem.column_unit)
