"""SpikeSlabNet as an estimator."""

from copy import copy
from numbers import Integral
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval, StrOptions

from bayeslista.estimators.base import BaseSparseCoder, NumericalWarning
from bayeslista.estimators.given_parameters import (
    RANGES,
    check_given,
    check_shapes,
    expected_size,
    given_noise,
    numbers,
)
from bayeslista.estimators.operator_matrices import OPERATOR_CONSTRAINTS
from bayeslista.estimators.operator_posterior import (
    assumed_on_operator,
    fit_on_operator,
    given_shape,
    refuse_partial_fit,
    uses_operator,
)
from bayeslista.estimators.posterior_engines import SpikeSlabEngines
from bayeslista.estimators.progress import CallbackSupportMixin, stages, watched, with_callbacks
from bayeslista.estimators.validation import (
    all_or_nothing,
    check_matrix,
    random_seed,
    warn_caller,
)
from bayeslista.numerics.batching import root_mean_square
from bayeslista.numerics.epochs import Units
from bayeslista.spike_slab.config import ESTIMATION
from bayeslista.spike_slab.fitting import SpikeSlabLearner
from bayeslista.spike_slab.imputation import check_sensors
from bayeslista.spike_slab.learned_model import Assumed
from bayeslista.spike_slab.prior_choice import prior_name


def _seen(Y: np.ndarray) -> np.ndarray:
    """What is not missing."""
    return Y[~np.isnan(Y)] if np.isnan(Y).any() else Y


_SET_UP: WeakKeyDictionary[Any, tuple[list[Any], Any]] = WeakKeyDictionary()  # models of what is given alone
_GIVEN = ("design_matrix", "prob_active", "slab_var", "noise_std")  # with all of them there is nothing to learn


class SpikeSlabNet(CallbackSupportMixin, SpikeSlabEngines):
    r"""Sparse coding with a spike-and-slab prior: the exact posterior by sampling, or close to it by trained layers.

    X are observations and y their sparse codes; for a table of features and a response: `SpikeSlabRegressor`.

    The model is :math:`y = X\beta + N(0, \sigma^2 I)` with coefficients that are zero or else drawn from a slab, a
    small mixture of Gaussians. Pairs teach a posterior of the matrix (if it is not given), the noise, the sparsity and
    the slab. A collapsed sampler over supports then draws from the posterior of each observation; or, for many of them,
    unrolled layers of vector AMP [1]_ and expectation propagation [2]_ turn each into a spike and slab for every
    coefficient. A few scalars in every layer are learned from pairs simulated from that model, which calibrates the
    answer without any held-out pair. Every answer is checked against its own observation (`predictive_check`).

    With a design matrix it learns from observations alone (``fit(X)``), and with ``prob_active``, ``slab_var`` and
    ``noise_std`` as well it predicts at once, without `fit`.

    Parameters
    ----------
    n_layers : int, default=20
        How many layers, of both kinds together; not used in exact mode.
    mode : {"exact", "accurate", "fast"}, default="exact"
        "exact" samples the posterior by a collapsed Markov jump process over supports until two chains of each signal
        agree: any design matrix, nothing to train, 5 to 300 ms a signal of 100 coefficients on one core. The others
        train layers once, for many signals: "fast" has VAMP layers only, unless they fail simulated signals, as they do
        where columns are alike; in "accurate" the last five are EP layers, which take a factorisation for every signal,
        and the third of the signals with the largest posterior variance ratio goes through up to ten more.
    design_matrix : array-like or operator of shape (n_observed, n_components), default=None
        ``X`` in ``y = X β + noise``. None learns it from the pairs; its uncertainty then widens the answer. An operator
        is a sparse array of scipy, a LinearOperator of scipy or pylops, a pair of functions ``(matvec, rmatvec)`` or
        one of :mod:`bayeslista.operators`. In ``mode="fast"`` no matrix is formed, and nothing is trained; the other
        modes take small operators.
    prob_active : float or array-like of shape (n_components,), default=None
        Probability that a coefficient is not zero, or one a coefficient. None learns it: a common one, or one a
        coefficient where pairs show that coefficients differ.
    slab_var : float or array-like, default=None
        Variance of the coefficients that are not zero, about zero. None learns the slab, a mixture of up to three
        Gaussians; on an operator one Gaussian, or one a label. Of shape (n_components,) it is one a coefficient; with
        `slab_weight` one a part of a mixture, of shape (n_parts,) or (n_parts, n_components).
    noise_std : float or array-like of shape (n_observed,), default=None
        Standard deviation of the noise, or one a sensor. None learns it; from pairs one a sensor, where the evidence
        for different ones is strong.
    noise_covariance : array-like of shape (n_observed, n_observed), default=None
        Covariance of the noise, positive semidefinite, in place of `noise_std`. Observations and matrix are whitened.
    slab_weight : array-like of shape (n_parts,), default=None
        Weights of the parts of a slab that `slab_var` gives.
    prior_labels : array-like of int of shape (n_components,), default=None
        In ``mode="fast"``: coefficients of one label, such as a subband, share probability and variance. None are the
        subbands of a `Wavelet`, else one label for all.
    training : {"auto", "full", "none"} or int, default="auto"
        How long the layers are trained on simulated pairs; not used in exact mode. "auto" trains them only where they
        fail over 2 % of simulated signals (`predictive_check`), by up to 40 steps of Adam on 64 pairs each, fewer for
        large matrices, and fits their head. "full" takes all steps whatever the matrix; a number is as many, 0 fits
        the head alone. "none" keeps scalars that serve untrained. `diagnostics_` has what was done.
    prior : {"auto", "independent", "correlated", "mixture"}, default="auto"
        How coefficients of a code depend on each other. "independent": not at all. "correlated": a Gaussian base with a
        spike and slab for each coefficient, as for pixels. "mixture": a mixture of Gaussians at several scales, for
        codes without exact zeros, as those of photographs and electrocardiograms. "auto" chooses by the error on
        held-out pairs; it is independent where codes look exchangeable, where there are fewer than 12 pairs or more
        than 2,000 coefficients, and where `prob_active` or `slab_var` state a prior.
    dtype : {"auto", "float32", "float64"}, default="auto"
        The floating type of the computation. "auto" is float32 where the observations are float32 and the codes
        float32 or integers, else float64.
    random_state : int, RandomState instance or None, default=None
        Decides the simulated pairs, and the chains in exact mode. The same integer gives the same bits.
    n_jobs : int, default=None
        Threads that sample signals in ``mode="exact"``, as joblib counts them. They do not change the result.
    verbose : int, default=0
        1 shows a progress bar, with stage, rate and remaining time, in `fit` and of the signals in predictions.

    Attributes
    ----------
    design_matrix_ : ndarray of shape (n_observed, n_components)
        The design matrix given, or the posterior mean of a learned one.
    design_matrix_std_ : ndarray of shape (n_components,)
        Standard deviation of the entries in each column of it; zero if it was given.
    prob_active_ : float or ndarray of shape (n_components,)
        Probability that a coefficient is not zero.
    slab_weight_, slab_mean_, slab_var_ : ndarray of shape (n_parts,)
        The slab: weights, means and variances of its parts; where coefficients differ, means and variances have the
        shape (n_parts, n_components). With labels of an operator `slab_var_` and `prob_active_` have one of each.
    noise_std_ : float or ndarray of shape (n_observed,)
        Standard deviation of the noise, or one a sensor where they differ.
    prior_ : {"independent", "correlated", "mixture"}
        The prior in use. Those of dependent codes answer in place of the layers and of the sampler, in every mode.
    history_ : dict of str to ndarray, one entry a step
        The ``"objective"`` of simulated batches: negative log score plus relative error.
    diagnostics_ : dict of str to number
        What was done: ``"steps"`` of training and those ``"skipped"`` because their gradient was not finite, simulated
        ``"pairs"`` that the head was fitted to, and how many of the layers are ``"ep_layers"``. Of 512 other simulated
        pairs, where layers were compared to them: the ``"variance_ratio"``, mean predicted variance over mean squared
        error, and the share of answers that ``"failed"`` their check. ``"error_correlated"`` and so on: the mean
        relative error of every prior that was tried, on held-out pairs.
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
    BayesLISTA : A network that learns its weights, after the paper.

    Notes
    -----
    Signals larger than the model ever produces are predicted as if scaled down to the largest usual ones and the answer
    is scaled up again, its uncertainty included. Codes of a few discrete values are predicted well, but a Gaussian slab
    cannot be calibrated for them.

    References
    ----------
    .. [1] S. Rangan, P. Schniter and A. K. Fletcher, "Vector approximate message passing", IEEE Transactions on
       Information Theory 65(10), 2019.
    .. [2] J. M. Hernández-Lobato, D. Hernández-Lobato and A. Suárez, "Expectation propagation in linear regression
       models with spike-and-slab priors", Machine Learning 99(3), 2015.

    Examples
    --------
    >>> from bayeslista import SpikeSlabNet
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.metrics import nmse
    >>> data = make_sparse_codes(n_train=1, n_test=50, n_observed=15, n_components=20, random_state=0)
    >>> model = SpikeSlabNet(
    ...     mode="fast", design_matrix=data.design_matrix, prob_active=0.2, slab_var=1.0, noise_std=0.5
    ... )
    >>> mean, std = model.predict(data.Y_test, return_std=True)  # a Bayesian solver: there is nothing to fit
    >>> nmse(data.B_test, mean) < 0.45, bool((std > 0).all())
    (True, True)
    """

    _learner: Any  # a SpikeSlabLearner, or an OperatorLearner
    _takes_operators = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseSparseCoder._parameter_constraints,
        **{name: [each, "array-like", None] for name, each in RANGES.items()},
        "noise_covariance": ["array-like", None],
        "design_matrix": OPERATOR_CONSTRAINTS,
        "prior_labels": ["array-like", None],
        "mode": [StrOptions({"accurate", "exact", "fast"})],
        "training": [StrOptions({"auto", "full", "none"}), Interval(Integral, 0, None, closed="left")],
        "prior": [StrOptions({"auto", "independent", "correlated", "mixture"})],
        "n_jobs": [Integral, None],
    }

    def __init__(
        self,
        n_layers: int = 20,
        *,
        mode: str = "exact",
        design_matrix: Any = None,
        prob_active: float | ArrayLike | None = None,
        slab_var: float | ArrayLike | None = None,
        noise_std: float | ArrayLike | None = None,
        noise_covariance: ArrayLike | None = None,
        slab_weight: ArrayLike | None = None,
        prior_labels: ArrayLike | None = None,
        training: str | int = "auto",
        prior: str = "auto",
        dtype: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_layers = n_layers
        self.mode = mode
        self.design_matrix = design_matrix
        self.prob_active = prob_active
        self.slab_var = slab_var
        self.noise_std = noise_std
        self.noise_covariance = noise_covariance
        self.slab_weight = slab_weight
        self.prior_labels = prior_labels
        self.training = training
        self.prior = prior
        self.dtype = dtype
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    @all_or_nothing
    @with_callbacks
    def fit(self, X: ArrayLike | None = None, y: ArrayLike | None = None) -> Self:
        """Learn the model from pairs of observations and codes, or from observations alone, and calibrate the layers.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed), default=None
            Observations, one a row. None, which takes design_matrix, prob_active, slab_var and noise_std, learns
            nothing and sets the model up once for all predictions.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,), default=None
            Their codes, one a row. One-dimensional: one coefficient a signal, not the response of a table. None, which
            takes a design matrix, learns sparsity, slab and noise by draws of them along with the codes.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._validate_params()
        if X is None and y is None and self._all_given():
            if uses_operator(self):
                self.__dict__.update(vars(assumed_on_operator(self, np.zeros((1, given_shape(self)[0])))))
                return self
            self.__dict__.update(vars(self._assumed(check_matrix(self.design_matrix)[:, :1].T)))  # type: ignore[arg-type]
            return self
        if y is None and self.design_matrix is None:
            raise ValueError(
                "SpikeSlabNet requires y to be passed, but the target y is None; pass codes, or give design_matrix to "
                "learn from observations alone."
            )
        if uses_operator(self):
            return fit_on_operator(self, X, y)  # type: ignore[arg-type]
        alone = y is None
        if alone and self.prior in ("correlated", "mixture"):
            raise ValueError(
                f"prior={self.prior!r} is learned from codes: pass y, or prior='auto', which is independent without."
            )
        if alone and any(np.ndim(np.asarray(getattr(self, name))) for name in _GIVEN[1:3]):
            raise ValueError(
                "fit(X) without codes learns from observations with a number for each of prob_active and slab_var that "
                "is given, not with an array. Pass codes, numbers, or all of them and the noise, which needs no fit."
            )
        pairs = (self._validate_alone(X),) if alone else self._validate_pairs(X, y)  # type: ignore[arg-type]
        observations, codes = pairs if len(pairs) == 2 else (*pairs, np.zeros((0, self.n_components_)))
        seed = random_seed(self.random_state)
        random = np.random.default_rng(seed)
        with watched(self, pairs, 2) as watch, stages(type(self).__name__, self.verbose) as report, self._precision():
            watch.begin("model")
            report("model", 0, 1)
            learner = self._new_learner(root_mean_square(_seen(observations)), codes)
            if alone:
                check_sensors(np.isnan(observations))
                learner.learn_from_observations(observations / learner.units.observation, random, report)
            else:
                check_sensors(np.isnan(observations))
                learner.update(observations / learner.units.observation, codes / learner.units.code)
                learner.learn_from_pairs()
                report("model", 1, 1)
            watch.end()
            watch.begin("layers")
            learner.calibrate(self.training, random, report)
            watch.end()
            learner.seed = seed
            self.uncalibrate()
            self._install(learner)
        return self

    @all_or_nothing
    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Take more pairs in: the model is that of all pairs so far, however they were cut.

        The scalars of the layers stay those of the last `fit`, or, where there was none, those that serve untrained.
        What was learned from observations alone gives way to what the pairs say.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row; a single pair is one row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._update(X, y)
        self._conclude()
        return self

    def _update(self, X: ArrayLike, y: ArrayLike) -> None:
        """Add pairs to the sufficient statistics."""
        self._validate_params()
        refuse_partial_fit(self)
        first = not hasattr(self, "_learner")
        observations, codes = self._validate_pairs(X, y, reset=first)
        learner = self._new_learner(root_mean_square(_seen(observations)), codes) if first else copy(self._learner)
        learner.update(observations / learner.units.observation, codes / learner.units.code)
        self._learner = learner

    def _conclude(self) -> None:
        """Learn from the sufficient statistics."""
        with self._precision():
            self._learner.learn_from_pairs()
        self._install(self._learner)

    @property
    def _allow_nan(self) -> bool:  # type: ignore[override]
        return not uses_operator(self)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.design_matrix is None
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "design_matrix_") or self._all_given()

    @property
    def _n_features_out(self) -> int:
        if not hasattr(self, "n_components_") and self._all_given():
            return given_shape(self)[1]
        return self.n_components_

    def _rows_together(self) -> int:
        return self._learner.chunk

    def _all_given(self) -> bool:
        return not self._lacking()

    def _lacking(self) -> list[str]:
        """What is to be learned; a covariance gives the noise as well."""
        given = {name for name in _GIVEN if getattr(self, name) is not None}
        return [
            name
            for name in _GIVEN
            if name not in given | ({"noise_std"} if self.noise_covariance is not None else set())
        ]

    def _ready(self, X: ArrayLike) -> Self:
        """The estimator itself if it is fitted; else, if all is given, a copy that has taken it for learned."""
        if hasattr(self, "design_matrix_"):
            return self
        if not self._all_given():
            raise NotFittedError(
                "This SpikeSlabNet instance is not fitted yet. Call 'fit', or, to predict from what is given alone, "
                f"give {', '.join(self._lacking())}."
            )
        # Set up once: kept until a parameter, or type or names of the observations change.
        seen = getattr(X, "dtype", None), getattr(X, "columns", None)
        values = [*self.get_params(deep=False).values(), *seen, self.recalibration_]
        kept, model = _SET_UP.get(self, ([], None))
        if model is None or any(one is not other for one, other in zip(kept, values, strict=True)):
            self._validate_params()
            model = self._assumed(X)
            _SET_UP[self] = values, model
        return model

    def _assumed(self, X: ArrayLike) -> Self:
        """A copy that has taken what is given for learned; observations decide names and floating type."""
        if uses_operator(self):
            return assumed_on_operator(self, X)
        model = copy(self)
        model._meet_alone(X)
        size = expected_size(check_matrix(self.design_matrix), self)  # type: ignore[arg-type]
        learner = model._new_learner(size, np.zeros((0, model.n_components_)))
        with model._precision():
            learner.assume()
        learner.seed = random_seed(self.random_state)
        model._install(learner)
        return model

    def _new_learner(self, size: float, B: Float[np.ndarray, "n D"]) -> SpikeSlabLearner:
        """Nothing learned yet, for observations of a root mean square and codes, if there are any."""
        matrix, n_observed = None, self.n_features_in_
        if self.design_matrix is not None:
            given = check_matrix(self.design_matrix)
            n_components = B.shape[1] if len(B) else given.shape[1]
            if not len(B) and len(given) != n_observed:
                remedy = "its transpose" if n_components == n_observed else "observations of that size"
                raise ValueError(
                    f"design_matrix has shape {given.shape} and X has {n_observed} features, where the matrix "
                    f"should have as many rows; pass {remedy}."
                )
            blank = np.zeros((0, n_observed)), np.zeros((0, n_components))
            matrix = self._resolve_design_matrix(*blank).astype(np.float64)
        check_shapes(self, B.shape[1])
        whitening, noise_var = given_noise(self, matrix, n_observed)
        units = self._choose_units(size, B, matrix)
        assumed = Assumed(
            None if matrix is None else matrix * (units.code / units.observation),
            numbers(self.prob_active),
            None if noise_var is None else noise_var / units.observation**2,
            None if self.slab_var is None else numbers(self.slab_var) / units.code**2,
            numbers(self.slab_weight),
        )
        return SpikeSlabLearner(units, self.n_layers, self.mode, assumed, self.dtype_, whitening, prior=self.prior)

    def _choose_units(self, observation: float, B: Any, matrix: Any) -> Units:
        """Powers of two, so that no number is rounded and histograms of any first chunk have the same bins."""
        if len(B):
            code = root_mean_square(B[B != 0])
        elif self.slab_var is not None:
            code = float(np.sqrt(np.mean(np.asarray(self.slab_var, np.float64))))
        else:
            code = observation / root_mean_square(matrix)
        return Units(*(float(2.0 ** np.round(np.log2(part))) for part in (observation, code)))

    def _install(self, learner: SpikeSlabLearner) -> None:
        """Put a learned model into the estimator: fitted attributes in the units of the data, and warnings."""
        self._learner, model = learner, learner.learned
        gain = learner.units.observation / learner.units.code
        self.design_matrix_ = (learner.unwhitened(model.design_matrix.T).T * gain).astype(self.dtype_)
        if learner.assumed.design_matrix is not None:
            self.design_matrix_ = (learner.assumed.design_matrix * gain).astype(self.dtype_)
        sensors = 1.0 if learner.whitening is None else np.linalg.norm(learner.whitening.inverse, axis=1)
        std = np.zeros(self.n_components_)
        if model.design_covariance is not None:
            std = (
                np.sqrt(model.noise_var * np.diag(model.design_covariance))
                * gain
                * np.sqrt(np.mean(np.square(sensors)))
            )
        self.design_matrix_std_ = std.astype(self.dtype_)
        self.prob_active_ = numbers(model.prob_active)
        self.noise_std_ = numbers(np.sqrt(model.noise_var) * learner.units.observation * sensors)
        self.slab_weight_ = model.slab.weight
        self.slab_mean_, self.slab_var_ = model.slab.mean * learner.units.code, model.slab.var * learner.units.code**2
        self.prior_ = prior_name(learner.base)
        self.history_ = {"objective": learner.losses}
        n_steps = len(learner.losses)
        self.diagnostics_ = {
            "steps": n_steps,
            "skipped": learner.skipped,
            "pairs": learner.n_simulated,
            "ep_layers": 0 if self.mode == "exact" or learner.base is not None else learner.n_ep_layers,
            **({} if learner.agreement is None else learner.agreement._asdict()),
            **{f"error_{name}": score for name, score in learner.prior_scores.items()},
        }
        if learner.skipped > 0.1 * n_steps:
            warn_caller(
                f"{learner.skipped} of {n_steps} steps of training had no usable gradient (see diagnostics_): "
                "the model does not suit the layers. Try mode='exact', fewer layers, or training='none'.",
                NumericalWarning,
            )
        if learner.agreement is not None and learner.agreement.is_far(self.mode):
            ratio, failed = learner.agreement
            warn_caller(
                f"The layers are far from the posterior of their own model: on {ESTIMATION.agreement_pairs} simulated "
                f"signals {failed:.0%} of the answers leave more unexplained than the noise allows, and the predicted "
                f"variance is {ratio:.2g} times the squared error. Use mode='exact'"
                f"{', or training' if self.training == 'none' else ''}.",
                NumericalWarning,
            )

    def _validate_params(self) -> None:
        super()._validate_params()
        check_given(self)
