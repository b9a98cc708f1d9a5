"""The engines of SpikeSlabNet behind one interface: predictions, their checks, and draws."""

import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayeslista.distributions import SpikeSlab
from bayeslista.estimators.base import BaseSparseCoder, NumericalWarning
from bayeslista.estimators.distributional import DistributionalSparseCoder
from bayeslista.estimators.progress import progress_bar
from bayeslista.estimators.validation import COUNT, check_arguments, random_seed, warn_caller
from bayeslista.spike_slab.checked_answers import (
    CheckedAnswers,
    check_moments,
    checked_answers,
    join_answers,
    most_energy,
)
from bayeslista.spike_slab.exact import ExactDiagnostics, ExactPosterior
from bayeslista.spike_slab.fitting import SpikeSlabLearner
from bayeslista.spike_slab.missing import by_pattern, completed
from bayeslista.spike_slab.operator_fitting import OperatorLearner
from bayeslista.spike_slab.predictive_check import PredictiveCheck
from bayeslista.spike_slab.prior_choice import MixtureBase, draw_codes, prior_name

_SHOWN = 32  # signals that are sampled between two moves of the progress bar
_A_MINUTE = 60.0  # of sampling, beyond which `predict` says how long layers would take
# Seconds of mode="accurate" at K = 50 and D = 100, on one core: a fit, and a signal (results/calibration.md).
_LAYERS_FIT, _LAYERS_SIGNAL = 10.0, 4e-4


@dataclass
class _Call:
    """One call of a prediction: its rows and progress bar, failed answers, and whether its time was estimated."""

    n_rows: int
    bar: Any
    n_failed: int = 0
    estimated: bool = False


_CALL: ContextVar[_Call | None] = ContextVar("call", default=None)


def _all_patterns(learner: SpikeSlabLearner, Y: np.ndarray) -> CheckedAnswers:
    """Answers of the priors of dependent codes, which take NaN."""
    return checked_answers(learner, learner.received(Y))


def _advance(n_rows: int) -> None:
    """Move the progress bar of the call."""
    call = _CALL.get()
    if call is not None:
        call.bar.update(n_rows)


class SpikeSlabEngines(DistributionalSparseCoder):
    """Prediction by layers or by the sampler, with every answer checked against its own data."""

    _learner: Any  # a SpikeSlabLearner, or in mode="fast" an OperatorLearner
    mode: str
    n_jobs: int | None
    random_state: Any
    verbose: int

    def _own_dist(self, Y: Float[np.ndarray, "n K"]) -> SpikeSlab:
        return self._own_dist_of(self._answers(Y))

    def _samples(self) -> bool:
        """Whether answers are sampled: in exact mode, unless codes depend on each other."""
        return self.mode == "exact" and self._learner.base is None

    def _own_dist_of(self, answers: CheckedAnswers) -> SpikeSlab:
        """Answers in the units of the codes, before recalibration."""
        unit, limits = self._learner.units.code, np.finfo(self.dtype_)
        prob = np.clip(answers.prob_active, limits.tiny, 1 - limits.eps)
        if answers.parts is not None:  # the last axis counts the parts
            weight, mean, var = answers.parts
            slab = np.swapaxes(mean, 1, 2) * unit, np.swapaxes(var, 1, 2) * unit**2, weight[:, None, :]
            return SpikeSlab(*(part.astype(self.dtype_) for part in (prob, *slab)))
        parts = prob, answers.slab_mean * unit, answers.slab_var * unit**2
        return SpikeSlab(*(part.astype(self.dtype_) for part in parts))

    def _answers(self, Y: Float[np.ndarray, "n K"]) -> CheckedAnswers:
        """Answers in the units of the learner, checked against their data."""
        if self._samples():
            found = self._exact(Y, 0)
            moments = found.prob_active, found.slab_mean, found.slab_var
            raw = np.asarray(Y, np.float64) / self._learner.units.observation
            rows = completed(self._learner, raw, found.prob_active * found.slab_mean)
            check = check_moments(self._learner, rows, *moments)
            failed = check.failed(most_energy(self._learner))
            answers = CheckedAnswers(*moments, check, np.ones(len(Y), bool), failed)
        else:
            chunk, learner = self._rows_together(), self._learner
            answers_of: Any = partial(by_pattern, function=partial(checked_answers, n_jobs=self.n_jobs))
            if isinstance(learner, OperatorLearner):
                answers_of = OperatorLearner.answers
            elif learner.base is not None and not learner.mixes_sensors:
                answers_of = _all_patterns
            with self._precision():
                rows = Y / self.dtype_.type(learner.units.observation)
                parts = []
                for i in range(0, len(rows), chunk):
                    parts.append(answers_of(learner, rows[i : i + chunk]))
                    _advance(len(parts[-1].failed))
                answers = join_answers(parts)
        call = _CALL.get()
        if call is not None:
            call.n_failed += int(answers.failed.sum())
        return answers

    def _by_batches(
        self, function: Callable[[Any], Any], X: ArrayLike, batch_size: int | None
    ) -> tuple[int, Iterator[tuple[slice, Any]]]:
        n_rows, parts = super()._by_batches(function, X, batch_size)
        return n_rows, self._counted(n_rows, parts)

    def _counted(self, n_rows: int, parts: Iterator[tuple[slice, Any]]) -> Iterator[tuple[slice, Any]]:
        """All batches, and with the last one a warning that counts the answers which failed their check."""
        with progress_bar(n_rows, type(self).__name__, self.verbose, unit="signal") as bar:
            yield from self._warned(_Call(n_rows, bar), parts)

    def _warned(self, call: _Call, parts: Iterator[tuple[slice, Any]]) -> Iterator[tuple[slice, Any]]:
        n_rows = call.n_rows
        while True:
            token = _CALL.set(call)
            try:
                part = next(parts, None)
            finally:
                _CALL.reset(token)
            if part is None:
                return
            last = part[0].stop == n_rows
            if last and call.n_failed:
                remedy = "They were widened; try mode='exact'."
                if self.mode == "exact":
                    remedy = "Prior or noise do not suit these signals."
                warn_caller(
                    f"{call.n_failed} of {n_rows} answers leave more of their observations unexplained than the noise "
                    f"allows (predictive_check(X) has each). {remedy}",
                    NumericalWarning,
                )
            yield part

    def predictive_check(self, X: ArrayLike) -> Any:
        """Check the answer of every signal against its own observations: no codes are needed.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.

        Returns
        -------
        pandas.DataFrame
            One row a signal: ``chi_square``, the mean squared residual at the predicted code in units of the noise
            variance (about one, or less where many coefficients are active); ``tail_probability``, the chi-square
            probability of a larger one; ``energy`` of the predicted code and ``posterior_variance_ratio``, both in
            units of what the prior expects; the ``engine`` that made the answer ("fast", "accurate", "exact",
            "correlated" or "mixture"); and whether the check ``failed``, by a tail probability below 0.0001 or an
            energy over twice what is five standard deviations above the mean under the prior. In ``mode="accurate"``
            answers that fail are sampled instead, up to 256 of the signals that are computed together. Other failed
            answers of layers are widened, as if the noise variance were ``chi_square`` times larger.

        Examples
        --------
        >>> import numpy as np
        >>> from bayeslista import SpikeSlabNet
        >>> from bayeslista.datasets import make_sparse_codes
        >>> data = make_sparse_codes(n_train=1, n_test=50, n_observed=15, n_components=20, random_state=0)
        >>> model = SpikeSlabNet(
        ...     mode="fast", design_matrix=data.design_matrix, prob_active=0.2, slab_var=1.0, noise_std=0.5
        ... )
        >>> bool(model.predictive_check(data.Y_test).failed.any())
        False
        """
        return self._checked_dist(X)[1]

    def _checked_dist(self, X: ArrayLike) -> tuple[SpikeSlab, Any]:
        """What `predict_dist` and `predictive_check` return, computed once."""
        import pandas as pd

        model = self._ready(X)

        def columns(Y: Float[np.ndarray, "n K"]) -> tuple[np.ndarray, ...]:
            answers = model._answers(Y)
            dist = model._own_dist_of(answers)
            dist = dist if model.recalibration_ is None else model.recalibration_.apply(dist)
            return (*answers.check, answers.sampled, answers.failed, *dist._arrays())

        n_rows, batches = BaseSparseCoder._by_batches(model, columns, X, None)
        with progress_bar(n_rows, type(self).__name__, model.verbose, unit="signal") as bar:
            token = _CALL.set(_Call(n_rows, bar))
            try:
                found = list(batches)
            finally:
                _CALL.reset(token)
        parts = [np.concatenate(column) for column in zip(*(part for _, part in found), strict=True)]
        n_checks = len(PredictiveCheck._fields)
        checks, (sampled, failed), arrays = parts[:n_checks], parts[n_checks : n_checks + 2], parts[n_checks + 2 :]
        dist = SpikeSlab._of(*(part.reshape(len(part), *model._code_shape, *part.shape[2:]) for part in arrays))
        engine = np.where(
            sampled, "exact", model.mode if model._learner.base is None else prior_name(model._learner.base)
        )
        return dist, pd.DataFrame(
            dict(zip(PredictiveCheck._fields, checks, strict=True)) | {"engine": engine, "failed": failed}
        )

    def sample(self, X: ArrayLike, n_draws: int = 100) -> np.ndarray:
        """Draw codes from the posterior of observations.

        In ``mode="exact"`` draws are joint over the coefficients of a signal, their support included. In the other
        modes, and under the correlated prior, coefficients are drawn independently from their marginal distributions;
        under the mixture prior draws are joint.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        n_draws : int, default=100
            How many draws of each signal.

        Returns
        -------
        ndarray of shape (n_draws, n_samples, n_components)
            Draws; what is not active is exactly zero. In exact mode the first half is of one chain and the second of
            another: with an even number, ``draws.reshape(2, -1, *draws.shape[1:])`` has the axes (chain, draw, …) that
            arviz takes.

        Examples
        --------
        >>> import numpy as np
        >>> from bayeslista import SpikeSlabNet
        >>> model = SpikeSlabNet(
        ...     mode="exact", design_matrix=[[1.0, 1.0]], prob_active=0.5, slab_var=1.0, noise_std=0.1, random_state=0
        ... )
        >>> draws = model.sample([[2.0]], n_draws=1000)  # either column, or both, explain the observation
        >>> float(np.mean((draws != 0).any(axis=2))) > 0.99
        True
        """
        check_arguments("sample", {"n_draws": [COUNT]}, n_draws=n_draws)
        model = self._ready(X)

        def draws(Y: Float[np.ndarray, "n K"]) -> tuple[np.ndarray, ...]:
            if isinstance(model._learner.base, MixtureBase):
                return (model._joint_draws(Y, n_draws),)
            if not model._samples():
                random = np.random.default_rng(random_seed(model.random_state))
                return (np.swapaxes(model._dist(Y).sample(n_draws, random_state=random), 0, 1),)
            return (np.swapaxes(model._exact(Y, n_draws).draws, 0, 1) * model._learner.units.code,)

        _, found = model._by_batches(draws, X, None)
        return np.concatenate([np.swapaxes(part, 0, 1) for _, (part,) in found], axis=1).astype(model.dtype_)

    def _joint_draws(self, Y: Float[np.ndarray, "n K"], n_draws: int) -> np.ndarray:
        """Draws under the mixture prior, one signal a row."""
        units = self._learner.units
        random = np.random.default_rng(random_seed(self.random_state))

        def draw(learner: SpikeSlabLearner, rows: np.ndarray) -> np.ndarray:
            base: Any = learner.base
            return np.swapaxes(draw_codes(base, rows, n_draws, random), 0, 1)

        return by_pattern(self._learner, Y / units.observation, draw) * units.code

    def exact_diagnostics(self, X: ArrayLike) -> dict[str, np.ndarray]:
        """Convergence of the chains of each signal, in ``mode="exact"``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.

        Returns
        -------
        dict of str to ndarray of shape (n_samples,)
            ``"n_moves"`` of both chains of the jump process, or ``"n_sweeps"`` of Gibbs sampling where that was
            enough; ``"mean_distance"`` and ``"prob_distance"`` between the two chains (‖a − b‖ over ‖a + b‖ of their
            means and of P(active)), whether they ``"converged"``, the ``"swap_rate"``, the share of swaps that changed
            the support, and ``"r_hat"``, the larger of that of the codes and that of their activity.
        """
        model = self._ready(X)
        if not model._samples():
            what = (
                f"mode={model.mode!r}"
                if model.mode != "exact"
                else "codes that depend on each other, which their own prior predicts"
            )
            raise ValueError(f"exact_diagnostics is of answers that are sampled; this model has {what}.")
        _, found = model._by_batches(lambda Y: (model._exact(Y, 0).diagnostics,), X, None)
        parts = [part for _, (part,) in found]
        return {name: np.concatenate([getattr(part, name) for part in parts]) for name in ExactDiagnostics._fields}

    def _estimate_time(self, seconds: float, n_observed: int) -> None:
        """Warn once a call, after its first signals, if sampling takes over a minute."""
        call = _CALL.get()
        if call is None or call.estimated:
            return
        call.estimated = True
        layers = _LAYERS_FIT + call.n_rows * _LAYERS_SIGNAL * (n_observed / 50) ** 2 * self.n_components_ / 100
        if seconds * call.n_rows > max(_A_MINUTE, layers):
            warn_caller(
                f"Sampling {call.n_rows} signals takes about {seconds * call.n_rows / 60:.0f} minutes; "
                f"mode='accurate' would take about {layers / 60:.1g}, its fit included. verbose=1 shows progress, "
                "n_jobs=-1 uses all cores.",
                UserWarning,
            )

    def _exact(self, Y: Float[np.ndarray, "n K"], n_draws: int) -> ExactPosterior:
        """The exact posterior in the units of the learner; a warning counts signals whose chains do not agree."""
        # The cut changes no bit; with a progress bar it is finer.
        unit, chunk = self._learner.units.observation, _SHOWN if self.verbose else self._rows_together()
        parts: list[ExactPosterior] = []

        def draw(learner: SpikeSlabLearner, rows: np.ndarray) -> ExactPosterior:
            found = learner.sample(rows, n_draws, self.n_jobs)
            return found._replace(draws=np.swapaxes(found.draws, 0, 1))  # one signal a row

        for i in range(0, len(Y), chunk):
            rows = np.asarray(Y[i : i + chunk], np.float64) / unit
            start = time.perf_counter()
            parts.append(by_pattern(self._learner, rows, draw))
            self._estimate_time((time.perf_counter() - start) / len(rows), Y.shape[1])
            _advance(len(rows))
        parts = [part._replace(draws=np.swapaxes(part.draws, 0, 1)) for part in parts]
        columns = [np.concatenate([part[i] for part in parts]) for i in range(3)]
        diagnostics = ExactDiagnostics(
            *(np.concatenate(column) for column in zip(*(part.diagnostics for part in parts), strict=True))
        )
        draws = np.concatenate([part.draws for part in parts], axis=1)
        found = ExactPosterior(columns[0], columns[1], columns[2], draws, diagnostics)
        n_open = int(np.sum(~found.diagnostics.converged))
        if n_open:
            warn_caller(
                f"The chains of {n_open} of {len(Y)} signals did not agree within the most moves; their answers are "
                "the average of both chains (exact_diagnostics(X) has the distances). A noise that is far too small "
                "has this effect: learn it by fit(X), or pass a larger noise_std.",
                NumericalWarning,
            )
        return found
