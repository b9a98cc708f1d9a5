"""Regression of one response or several on a table, with the probability that each feature matters."""

from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from scipy.special import ndtr
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from bayeslista import decisions
from bayeslista.distributions import SpikeSlab
from bayeslista.estimators._display import BriefMixin
from bayeslista.estimators.base import NumericalWarning
from bayeslista.estimators.progress import progress_bar
from bayeslista.estimators.saving import SavingMixin
from bayeslista.estimators.validation import (
    COUNT,
    POSITIVE,
    all_or_nothing,
    cast,
    check_arguments,
    check_finite,
    naming,
    random_seed,
    warn_caller,
)
from bayeslista.numerics.batching import batches
from bayeslista.numerics.checks import as_real, check_entries, check_probability
from bayeslista.spike_slab import regression
from bayeslista.spike_slab.column_sets import DesignColumns

_NAMED = 5  # features that have not converged, in a warning


class SpikeSlabRegressor(MultiOutputMixin, RegressorMixin, SavingMixin, BriefMixin):
    """Linear regression with a spike-and-slab prior: coefficients, inclusion probabilities, predictive intervals.

    Every coefficient is zero or Gaussian; which, how large, how many are not zero, and how much noise there is are
    sampled from their joint posterior, so there is nothing to tune. Sampling goes on until two chains agree.

    Parameters
    ----------
    prob_active : float or array-like of shape (n_features,), default=None
        Prior probability that a coefficient is not zero: 0 is never, 1 always. None learns one for all features, under
        a Beta(1, n_features) prior, i.e. about one active feature is expected.
    expected_n_active : float, default=None
        Expected number of active features, instead of `prob_active`.
    slab_var : float, default=None
        Prior variance of an active coefficient, of standardised features if `standardize`. None learns it: relative to
        the noise variance it has an inverse gamma prior of shape ½ and scale 0.1 for features of unit variance.
    noise_std : float, default=None
        Standard deviation of the noise. None learns it, under an inverse gamma prior of the variance that counts as a
        tenth of an observation.
    always_active : array-like of str or int, default=None
        Names or indices of features that are active whatever the data.
    standardize : bool, default=True
        Whether to divide features by their standard deviations inside, so that all have the same prior.
    fit_intercept : bool, default=True
        Whether to fit an intercept, under a flat prior.
    max_iter : int, default=8000
        Most iterations of a chain, of which the last half is kept.
    n_jobs : int, default=None
        Threads for several targets; up to 2,500 features.
    random_state : int, RandomState instance or None, default=None
        Source of the sampler's random numbers. The same integer gives the same bits.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        Posterior means of the coefficients, in the units of the data.
    intercept_ : float or ndarray of shape (n_targets,)
        Posterior mean of the intercept.
    coef_std_ : ndarray of the shape of `coef_`
        Posterior standard deviations.
    prob_active_ : ndarray of the shape of `coef_`
        Inclusion probabilities.
    posterior_ : SpikeSlab of the shape of `coef_`
        Marginal posteriors of the coefficients.
    noise_std_, slab_var_, expected_prob_active_ : float or ndarray of shape (n_targets,)
        Posterior mean of the noise's standard deviation, posterior median of the variance of active coefficients (of
        standardised features), and posterior mean of the share of active features.
    diagnostics_ : dict
        For every target ``n_iter`` and ``converged``; ``rhat`` and ``ess``, split R-hat and effective sample size of
        coefficients; the same of the number of active features and of the noise, as ``rhat_n_active`` and so on.
    n_iter_ : int
        Iterations of each chain, the most of any target.
    n_features_in_ : int
        Features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where `X` had any.

    Warns
    -----
    NumericalWarning
        If after `max_iter` iterations a split R-hat is above 1.05 or an effective sample size below 100.

    Notes
    -----
    Constant features have coefficient and probability 0 next to an intercept. Copies of a feature share its
    probability. A sample weight counts as repetition.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista import SpikeSlabRegressor
    >>> X = np.random.default_rng(0).standard_normal((100, 20))
    >>> y = 2.0 * X[:, 3] + np.random.default_rng(1).standard_normal(100)
    >>> model = SpikeSlabRegressor(random_state=0).fit(X, y)
    >>> np.flatnonzero(model.prob_active_ > 0.5)
    array([3])
    >>> mean, std = model.predict(X, return_std=True)
    >>> bool(abs(std.mean() - 1.0) < 0.2)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "prob_active": [Interval(Real, 0, 1, closed="both"), "array-like", None],
        "expected_n_active": [POSITIVE, None],
        "slab_var": [POSITIVE, None],
        "noise_std": [POSITIVE, None],
        "always_active": ["array-like", None],
        "standardize": ["boolean"],
        "fit_intercept": ["boolean"],
        "max_iter": [COUNT],
        "n_jobs": [int, None],
        "random_state": ["random_state", np.random.Generator],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        *,
        prob_active: float | ArrayLike | None = None,
        expected_n_active: float | None = None,
        slab_var: float | None = None,
        noise_std: float | None = None,
        always_active: ArrayLike | None = None,
        standardize: bool = True,
        fit_intercept: bool = True,
        max_iter: int = 8000,
        n_jobs: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.prob_active = prob_active
        self.expected_n_active = expected_n_active
        self.slab_var = slab_var
        self.noise_std = noise_std
        self.always_active = always_active
        self.standardize = standardize
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Sample the posterior of the coefficients.

        Parameters
        ----------
        X : array-like or sparse array of shape (n_samples, n_features)
            The table.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            The response, or several of them.
        sample_weight : array-like of shape (n_samples,), default=None
            How often each sample counts.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._validate_params()
        table: Any
        response: Any
        with naming("X"):
            table, response = validate_data(
                *(self, X, y),
                accept_sparse="csc",
                dtype=np.float64,
                multi_output=True,
                y_numeric=True,
                ensure_min_samples=2,
                ensure_all_finite=issparse(X),
            )
        if not issparse(table):
            check_finite("X", table)
            cast("X", table, np.dtype(np.float64))
        weights = _check_sample_weight(sample_weight, table, dtype=np.float64, ensure_non_negative=True)
        rows = weights > 0
        if not rows.all():
            table, response, weights = table[rows], response[rows], weights[rows]
        if len(response) < 2 or weights.sum() <= 1.0:
            raise ValueError(
                f"sample_weight leaves {len(response)} samples of total weight {weights.sum():g}; a weight counts as "
                "repetition, so there must be two samples with a total above 1. Scale the weights."
            )
        target = cast("y", np.asarray(response, np.float64).reshape(len(weights), -1), np.dtype(np.float64))
        columns = DesignColumns(table, weights, self.fit_intercept, self.standardize)
        first = max(4, min(regression.Schedule.first_round, self.max_iter // 3))
        schedule = regression.Schedule(max_iter=self.max_iter, first_round=first)
        total = schedule.n_chains * self.max_iter * target.shape[1]
        with progress_bar(total, type(self).__name__, int(self.verbose), unit="iteration") as bar:
            fits = regression.regress(
                *(columns, target, self.fit_intercept, self._given(columns), random_seed(self.random_state)),
                *(schedule, self.n_jobs, bar.update),
            )
        self._store(fits, response.ndim == 1, columns.mean)
        self._warn()
        return self

    def _given(self, columns: DesignColumns) -> regression.GivenPrior:
        """The parts of the model that are given, checked against the table."""
        D = columns.D
        prob = np.full(D, np.nan)
        if self.prob_active is not None and self.expected_n_active is not None:
            raise ValueError("prob_active and expected_n_active are both given; pass one of them.")
        if self.prob_active is not None:
            values = as_real("prob_active", self.prob_active)
            if values.shape not in ((), (D,)):
                raise ValueError(
                    f"prob_active has shape {values.shape}; pass a number, or one for each of {D} features."
                )
            check_entries((values >= 0) & (values <= 1), "prob_active", values, "lie in [0, 1]", "Pass probabilities.")
            prob[:] = values
        if self.expected_n_active is not None and self.expected_n_active >= D:
            raise ValueError(f"expected_n_active is {self.expected_n_active:g}, but must be below {D}, all features.")
        always = self._indices(self.always_active, D)
        if columns.constant[always].any():
            raise ValueError(
                f"always_active has the constant feature {self._names()[always[columns.constant[always]][0]]}, on "
                "whose coefficient there are no data. Leave it out; fit_intercept=True fits an intercept."
            )
        prob[always] = 1.0
        given = (np.nan if value is None else float(value) for value in (self.slab_var, self.noise_std))
        return regression.GivenPrior(prob, self.expected_n_active, *given)

    def _indices(self, features: Any, D: int) -> NDArray[np.int64]:
        """Indices of features that are given by name or index."""
        names = list(getattr(self, "feature_names_in_", []))
        found = []
        for each in np.asarray([] if features is None else features, object).ravel():
            place = names.index(each) if isinstance(each, str) and each in names else each
            if isinstance(place, (str, bool)) or not isinstance(place, (int, np.integer)) or not 0 <= place < D:
                raise ValueError(f"always_active has {each!r}, which is no feature: pass names, or 0 to {D - 1}.")
            found.append(int(place))
        return np.unique(np.array(found, np.int64))

    def _store(self, fits: list[regression.TargetFit], single: bool, centre: NDArray[np.float64]) -> None:
        """Fitted attributes."""

        def gather(values: list[Any]) -> Any:
            return values[0] if single else np.array(values)

        dists = [SpikeSlab(each.prob_active, each.slab_mean, each.slab_var) for each in fits]
        self.coef_ = gather([dist.mean() for dist in dists])
        self.coef_std_ = gather([dist.std() for dist in dists])
        fields = {"intercept_": "intercept", "prob_active_": "prob_active", "noise_std_": "noise_std"}
        fields |= {"_slab_mean": "slab_mean", "_slab_var": "slab_var", "slab_var_": "slab_size"}
        for attribute, name in {**fields, "expected_prob_active_": "share_active"}.items():
            setattr(self, attribute, gather([getattr(each, name) for each in fits]))
        self._draws = [each.draws for each in fits]
        self._centre = centre
        n, kept = self.n_features_in_, float(regression.Schedule.n_draws)
        nothing: dict[str, Any] = {"rhat": np.ones(n), "ess": np.full(n, kept), "n_iter": 0, "converged": True}
        nothing |= {"scalar_rhat": np.ones(2), "scalar_ess": np.full(2, kept)}
        found = [nothing if each.found is None else each.found._asdict() for each in fits]
        names = ("n_iter", "converged", "rhat", "ess")
        self.diagnostics_ = {name: gather([each[name] for each in found]) for name in names}
        self.n_iter_ = int(np.max(self.diagnostics_["n_iter"]))
        for kind in ("rhat", "ess"):
            for i, name in enumerate(("n_active", "noise")):
                self.diagnostics_[f"{kind}_{name}"] = gather([float(each[f"scalar_{kind}"][i]) for each in found])

    def _warn(self) -> None:
        """One warning that names what has not converged."""
        if np.all(self.diagnostics_["converged"]):
            return
        poor, limits = {}, regression.Schedule
        for name in ("", "_n_active", "_noise"):
            rhat, ess = (np.asarray(self.diagnostics_[kind + name]) for kind in ("rhat", "ess"))
            poor[name] = (rhat >= limits.rhat) | (ess <= limits.ess)
        which = np.flatnonzero(np.atleast_2d(poor[""]).any(axis=0))
        more = ", …" if len(which) > _NAMED else ""
        parts = [f"{len(which)} coefficients ({', '.join(self._names()[which[:_NAMED]])}{more})"] if len(which) else []
        scalars = {"_n_active": "the number of active ones", "_noise": "the noise"}
        parts += [text for name, text in scalars.items() if poor[name].any()]
        warn_caller(
            f"{' and '.join(parts)} have not converged after {self.n_iter_} iterations: split R-hat above "
            f"{limits.rhat} or an effective sample size below {limits.ess:g} (see diagnostics_). Raise max_iter.",
            NumericalWarning,
        )

    def _names(self) -> NDArray[Any]:
        """Names of the features, by default x0, x1 and so on."""
        names = getattr(self, "feature_names_in_", None)
        return np.array([f"x{j}" for j in range(self.n_features_in_)], object) if names is None else names

    @property
    def posterior_(self) -> SpikeSlab:
        """Marginal posteriors of the coefficients."""
        check_is_fitted(self, "coef_")
        return SpikeSlab(self.prob_active_, self._slab_mean, self._slab_var)

    def _rows(self, X: ArrayLike) -> Any:
        """Validated rows to predict."""
        check_is_fitted(self, "coef_")
        with naming("X"):
            rows = validate_data(
                self, X, accept_sparse="csr", dtype=np.float64, reset=False, ensure_all_finite=issparse(X)
            )
        if not issparse(rows):
            check_finite("X", rows)
        return rows

    def _by_draws(self, rows: Any, function: Any) -> NDArray[np.float64]:
        """What a function makes of the linear predictors of all draws and their noise, batch by batch of rows."""
        targets = []
        for draws in self._draws:
            parts = [
                function(regression.predicted_means(draws, rows[part]), draws.noise_std)
                for part in batches(rows.shape[0], None, 1, len(draws.noise_std))
            ]
            targets.append(np.concatenate(parts, axis=-1))
        return targets[0] if self.coef_.ndim == 1 else np.stack(targets, axis=-1)

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Predict the response, the mean over the posterior.

        Parameters
        ----------
        X : array-like or sparse array of shape (n_samples, n_features)
            Rows of the table.
        return_std : bool, default=False
            Whether to return standard deviations of the predictive distribution, noise included, too.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Posterior means.
        std : ndarray of the same shape
            Standard deviations, if `return_std`.
        """
        rows = self._rows(X)
        mean = np.asarray(rows @ self.coef_.T) + self.intercept_
        if not return_std:
            return mean
        return mean, self._by_draws(rows, lambda means, noise: np.sqrt(means.var(axis=0) + np.mean(noise**2)))

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Central intervals of the predictive distribution of the response, noise included.

        Parameters
        ----------
        X : array-like or sparse array of shape (n_samples, n_features)
            Rows of the table.
        level : float, default=0.9
            Probability that the response lies inside.

        Returns
        -------
        low, high : ndarray of shape (n_samples,) or (n_samples, n_targets)
            The ends.
        """
        share, rows = check_probability("level", level), self._rows(X)
        low, high = (
            self._by_draws(rows, lambda means, noise, p=p: regression.mixture_quantile(means, noise, p))
            for p in (0.5 * (1.0 - share), 0.5 * (1.0 + share))
        )
        return low, high

    def sample(self, X: ArrayLike, n_draws: int = 1) -> NDArray[np.float64]:
        """Draw responses from their joint predictive distribution, noise included.

        Parameters
        ----------
        X : array-like or sparse array of shape (n_samples, n_features)
            Rows of the table.
        n_draws : int, default=1
            Number of draws; with an integer `random_state` they are the same in every call.

        Returns
        -------
        ndarray of shape (n_draws, n_samples) or (n_draws, n_samples, n_targets)
            The draws. The rows of one draw have the same coefficients.
        """
        check_arguments("sample", {"n_draws": [COUNT]}, n_draws=n_draws)
        rows, random = self._rows(X), np.random.default_rng(random_seed(self.random_state))
        targets = []
        for draws in self._draws:
            n = len(draws.noise_std)
            picks = np.concatenate([random.permutation(n) for _ in range(-(-n_draws // n))])[:n_draws]
            noise = draws.noise_std[picks, None] * random.standard_normal((n_draws, rows.shape[0]))
            targets.append(regression.predicted_means(draws, rows)[picks] + noise)
        return targets[0] if self.coef_.ndim == 1 else np.stack(targets, axis=-1)

    def coef_draws(self, target: int = 0) -> NDArray[np.float64]:
        """Joint draws of the coefficients, exactly zero where a feature is not active.

        Parameters
        ----------
        target : int, default=0
            Which of several responses.

        Returns
        -------
        ndarray of shape (n_draws, n_features)
            Some 800 draws, in the units of the data, for :mod:`bayeslista.decisions`.
        """
        check_is_fitted(self, "coef_")
        return regression.draw_matrix(self._draws[target], self.n_features_in_).toarray()

    def select(self, fdr: float = 0.1) -> NDArray[np.bool_]:
        """Select the largest set of features with a bound on the expected share of false discoveries.

        Parameters
        ----------
        fdr : float, default=0.1
            The bound, as of :func:`bayeslista.decisions.select`.

        Returns
        -------
        ndarray of bool of the shape of `coef_`
            Whether a feature is selected.
        """
        check_is_fitted(self, "coef_")
        return decisions.select(self.prob_active_, fdr)

    def credible_sets(self, X: ArrayLike, level: float = 0.95, min_correlation: float = 0.5) -> list[Any]:
        """Small sets of correlated features of which at least one is active with high probability.

        Parameters
        ----------
        X : array-like or sparse array of shape (n_samples, n_features)
            The table of the fit, whose columns decide the correlations.
        level : float, default=0.95
            Least probability that at least one feature of a set is active.
        min_correlation : float, default=0.5
            Least absolute correlation of any two features of a set.

        Returns
        -------
        list of CredibleSet
            As of :func:`bayeslista.decisions.credible_sets`, with columns of the table; for several targets, a list
            for each.
        """
        rows = self._rows(X)
        targets = []
        for draws in self._draws:
            seen = np.unique(draws.columns)
            part = rows[:, seen]
            table = np.asarray(part.toarray() if issparse(part) else part) - self._centre[seen]
            found = []
            if len(seen):
                active = regression.draw_matrix(draws, self.n_features_in_)[:, seen].toarray()
                found = decisions.credible_sets(active, table, level, min_correlation)
            targets.append([replace(each, columns=tuple(seen[list(each.columns)].tolist())) for each in found])
        return targets[0] if self.coef_.ndim == 1 else targets

    def inclusion_table(self, level: float = 0.9, target: int = 0) -> Any:
        """What is known of every feature, as a frame, most probable features first.

        Parameters
        ----------
        level : float, default=0.9
            Probability of the interval.
        target : int, default=0
            Which of several responses.

        Returns
        -------
        pandas.DataFrame
            Columns ``feature``, ``prob_active``, ``mean``, ``std``; given that the feature is active, ``low`` and
            ``high``, the ends of the interval, and ``prob_positive``.
        """
        import pandas as pd

        check_is_fitted(self, "coef_")
        dist = self.posterior_ if self.coef_.ndim == 1 else self.posterior_[target]
        low, high = dist.interval(level, given_active=True)
        positive = ndtr(dist.slab_mean / np.sqrt(np.maximum(dist.slab_var, 1e-300)))
        table = {"feature": self._names(), "prob_active": dist.prob_active, "mean": dist.mean(), "std": dist.std()}
        frame = pd.DataFrame({**table, "low": low, "high": high, "prob_positive": positive})
        return frame.sort_values("prob_active", ascending=False, kind="stable", ignore_index=True)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
