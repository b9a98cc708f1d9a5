"""BayesLISTA as an estimator."""

import os
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import StrOptions

from bayeslista.bayes_lista.adf.evidence import EvidenceForm
from bayeslista.bayes_lista.adf.published_fit import FilteringLearner
from bayeslista.bayes_lista.variational_fit import VariationalLearner
from bayeslista.distributions import SpikeSlab
from bayeslista.estimators.base import BaseSparseCoder, NumericalWarning
from bayeslista.estimators.distributional import DistributionalSparseCoder
from bayeslista.estimators.progress import CallbackSupportMixin, watched, with_callbacks
from bayeslista.estimators.saving import RECORDS, restore, state_of
from bayeslista.estimators.validation import (
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    all_or_nothing,
    check_going_on,
    random_seed,
    warn_caller,
)
from bayeslista.io.checkpoints import Checkpoint
from bayeslista.numerics.epochs import Epoch
from bayeslista.numerics.stream_memory import FIRST_FIT, StreamMemory

_TOLERATED, _FEW = 1e-2, 20  # share and number of failed updates that go without a warning

_Rows = Float[NDArray[Any], "n K"]
_Codes = Float[NDArray[Any], "n D"]


class BayesLISTA(CallbackSupportMixin, DistributionalSparseCoder):
    r"""Sparse coding by a Bayesian network: every weight is a distribution, and so is every prediction.

    X are observations and y their sparse codes; for a table of features and a response: `SpikeSlabRegressor`.

    The network is that of LISTA, :math:`\hat\beta \leftarrow h_\lambda(W y + S \hat\beta)` for `n_layers` layers,
    with an independent Gaussian for every weight [1]_. Means and variances are propagated through the layers in closed
    form. The prediction is a spike at zero and a Gaussian slab for every coefficient.

    By default the weights are coupled as in LISTA-CP, :math:`S = I - W X + R`, and W, R and for each layer a threshold,
    a momentum :math:`\mu` and a step size :math:`\gamma` are learned by variational inference on those moments,
    starting at the linear minimum mean square error estimator: :math:`u = \hat\beta + \mu (\hat\beta - \hat\beta')`
    extrapolates from the last two layers and :math:`c = u + \gamma (W y + S u - u)` is thresholded next. The variance
    of a weight is the product of a number of its row and one of its column: a departure from the paper's one variance a
    weight, for speed. :math:`P(|c| > \lambda)` is the network's own probability of being active, :math:`1 - \omega`;
    that of predictions is a calibrated head on c. Validation pairs decide early stopping and calibrate the predicted
    distribution.

    Parameters
    ----------
    n_layers : int, default=10
        How many soft-thresholdings, the first included.
    design_matrix : array-like of shape (n_observed, n_components), default=None
        ``X`` in ``y = X β + noise``. None estimates it from the pairs.
    shrinkage : "auto" or float, default="auto"
        The threshold of every layer in the units of the codes, held; or "auto", to learn one for each layer. With
        ``inference="adf"``, which cannot learn it, "auto" is the paper's 0.1.
    inference : {"variational", "adf"}, default="variational"
        Variational inference, or the paper's: assumed density filtering over the pairs with expectation propagation
        for the priors, with W and S free, starting at ISTA's weights.
    prior : {"scaled", "printed"}, default="scaled"
        For "adf". "scaled" centres the priors at ISTA's weights, with variances :math:`1/(L D)` for ``S`` and
        :math:`E\beta_d^2 / (L\,E\|y\|^2)` for ``W``, so that a prediction's variance stays bounded however deep or
        wide the network is, and measures codes in units of the root mean square of their nonzero entries. "printed" is
        the paper's: zero mean, variance 1.2, data as they are. It lets the variance grow by a factor of about D in
        every layer; where that exceeds the precision of the codes (in float64 from about eight layers of 100
        coefficients on), "scaled" is used instead.
    evidence : {"spike_slab", "gaussian"}, default="spike_slab"
        For "adf": the likelihood of a pair, the paper's mixture of a Student's t spike and a Gaussian slab, or a
        Gaussian with the same mean and variance.
    learn_noise : bool, default=False
        For "adf": whether the Gamma of the noise precision is learned, or held at Gam(6, 6) as in the paper's curves.
        Learned with ``evidence="spike_slab"`` it degenerates, because exact zeros let the spike's precision grow
        without bound.
    max_iter : int, default=50
        Epochs at most.
    tol : float, default=1e-4
        Early stopping: training ends when the error has not fallen by this fraction, the mean squared error of the
        validation pairs in ten epochs, or for "adf" the running NMSE in five. 0 runs all epochs.
    validation_fraction : float, default=0.1
        The fraction of the pairs that is held out, one pair at least, to choose the best epoch and to calibrate. Where
        that is fewer than 20, it is cross-validation: up to five networks learn with different pairs held out, and the
        start is kept unless another epoch is better by a standard error; with a design matrix given, one more network
        then learns from all pairs for the best number of epochs. With 0, or a single pair, the training pairs are used,
        which makes predictions overconfident. "adf" holds nothing out.
    warm_start : bool, default=False
        Whether `fit` goes on from the posterior of the last `fit` or `partial_fit`, where that was of the same
        `inference`. Columns, coefficients and `n_layers` have to be the same. For the same pairs again `random_state`
        has to be the same integer, and cross-validation is to be avoided: pairs that the network has learned from
        neither validate nor calibrate it.
    dtype : {"auto", "float32", "float64"}, default="auto"
        The floating type of the computation. "auto" is float32 where the observations are float32 and the codes
        float32 or integers, else float64.
    random_state : int, RandomState instance or None, default=None
        Decides the held-out pairs and the order of the others. The same integer gives the same bits.
    verbose : int, default=0
        1 shows a progress bar with the running NMSE on the standard error.

    Attributes
    ----------
    design_matrix_ : ndarray of shape (n_observed, n_components)
        The design matrix in use: the one given, or the one estimated from the pairs that the network learned from.
    encoder_, encoder_std_ : ndarray of shape (n_components, n_observed)
        Mean and standard deviation of ``W``.
    recurrent_, recurrent_std_ : ndarray of shape (n_components, n_components)
        Mean and standard deviation of ``S``.
    shrinkage_ : ndarray of shape (n_layers,)
        The threshold of each layer.
    momentum_, step_size_ : ndarray of shape (n_layers,)
        Momentum and step size of each layer, 0 and 1 for "adf"; the momentum of the first has no effect.
    noise_std_ : float
        Standard deviation of the codes about the network's output, as of training.
    n_iter_ : int
        Epochs run.
    history_ : dict of str to ndarray, one entry an epoch
        ``"n_pairs"``, the ``"elbo"`` per pair (for "adf" the ``"log_evidence"``), the ``"training_nmse"`` of pairs just
        before they were learned from, mean variances of the weights, ``"noise_std"`` and the counts of `diagnostics_`;
        variational inference adds the ``"held_out_nmse"``, both mean squared errors (``"training_error"``,
        ``"held_out_error"``) and the ``"shrinkage"`` of each layer. NaN where an entry has none. Means over the
        networks where several learn side by side.
    diagnostics_ : dict of str to int
        Sums over all epochs of numerical trouble. Variational inference: mini-batches ``"skipped"`` because their
        gradient was not finite, and times the best weights were ``"restored"`` after the held-out error grew.
        Filtering: updates ``"rejected"`` because a variance would have turned non-positive or a number not finite, and
        ``"clipped"`` by the trust region; for "adf" also rejected noise updates and prior factors, pairs with a
        variance so large that it was ``"saturated"``, and damped sweeps over the priors. There is a
        :class:`NumericalWarning` where it is more than one in a hundred updates of a kind, and more than 20.
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
    LISTA : The same network with weights that are numbers.

    Notes
    -----
    With "adf", every epoch counts the same pairs again: after many epochs the variances of the weights are far too
    small, and the predicted variance is little more than that of the noise. No update moves a mean by more than five
    standard deviations or makes a variance more than four times larger; see
    :mod:`bayeslista.bayes_lista.adf.filtering`.

    References
    ----------
    .. [1] D. Kuzin, O. Isupova and L. Mihaylova, "Uncertainty propagation in neural networks for sparse coding",
       Bayesian Deep Learning workshop, NeurIPS 2018.

    Examples
    --------
    >>> from bayeslista import BayesLISTA
    >>> from bayeslista.datasets import make_sparse_codes
    >>> data = make_sparse_codes(n_train=200, n_test=5, n_observed=15, n_components=20, random_state=0)
    >>> model = BayesLISTA(n_layers=4, design_matrix=data.design_matrix, max_iter=10, random_state=0)
    >>> mean, std = model.fit(data.Y_train, data.B_train).predict(data.Y_test, return_std=True)
    >>> mean.shape, bool((std > 0).all())
    ((5, 20), True)
    >>> model.predict_dist(data.Y_test).prob_active.shape
    (5, 20)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseSparseCoder._parameter_constraints,
        "shrinkage": [NOT_NEGATIVE, StrOptions({"auto"})],
        "inference": [StrOptions({"variational", "adf"})],
        "prior": [StrOptions({"scaled", "printed"})],
        "evidence": [StrOptions({"spike_slab", "gaussian"})],
        "learn_noise": ["boolean"],
        "max_iter": [COUNT],
        "tol": [NOT_NEGATIVE],
        "validation_fraction": [FRACTION],
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        n_layers: int = 10,
        *,
        design_matrix: ArrayLike | None = None,
        shrinkage: float | str = "auto",
        inference: str = "variational",
        prior: str = "scaled",
        evidence: EvidenceForm = "spike_slab",
        learn_noise: bool = False,
        max_iter: int = 50,
        tol: float = 1e-4,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        dtype: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_layers = n_layers
        self.design_matrix = design_matrix
        self.shrinkage = shrinkage
        self.inference = inference
        self.prior = prior
        self.evidence = evidence
        self.learn_noise = learn_noise
        self.max_iter = max_iter
        self.tol = tol
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def published(
        cls,
        n_layers: int = 10,
        *,
        design_matrix: ArrayLike | None = None,
        shrinkage: float = 0.1,
        max_iter: int = 1000,
        dtype: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> Self:
        """BayesLISTA as the paper has it: assumed density filtering, ``W`` and ``S`` free, priors as printed.

        It starts at ISTA with the threshold held, the noise held at Gam(6, 6), and runs all epochs. Where the printed
        priors diverge, in deep or wide networks, they are scaled: see `prior`.

        Parameters
        ----------
        n_layers : int, default=10
            How many soft-thresholdings, the first included.
        design_matrix : array-like of shape (n_observed, n_components), default=None
            As for `BayesLISTA`.
        shrinkage : float, default=0.1
            The threshold of every layer.
        max_iter : int, default=1000
            Epochs; all are run.
        dtype : {"auto", "float32", "float64"}, default="auto"
            As for `BayesLISTA`.
        random_state : int, RandomState instance or None, default=None
            Decides the order of the pairs.
        verbose : int, default=0
            1 shows a progress bar.

        Returns
        -------
        BayesLISTA
            An ordinary estimator, not yet fitted, wholly described by its parameters.

        Examples
        --------
        >>> from bayeslista import BayesLISTA
        >>> BayesLISTA.published(n_layers=4).inference
        'adf'
        """
        return cls(
            n_layers,
            design_matrix=design_matrix,
            shrinkage=shrinkage,
            inference="adf",
            prior="printed",
            max_iter=max_iter,
            tol=0.0,
            dtype=dtype,
            random_state=random_state,
            verbose=verbose,
        )

    @all_or_nothing
    @with_callbacks
    def fit(self, X: ArrayLike, y: ArrayLike, *, checkpoint: str | os.PathLike[str] | None = None) -> Self:
        """Learn the posterior of the weights from pairs of observations and codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row. One-dimensional: one coefficient a signal, not the response of a table.
        checkpoint : str or path-like, default=None
            A file for the state of the fit, written from time to time and at the end. The same call continues from it,
            to the same bits as without the interruption; after the end it returns at once. Remove the file to start
            anew. It cannot be combined with going on from another fit (`warm_start`).

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._validate_params()
        warm = self.warm_start and hasattr(self, "_learner")
        if warm:
            check_going_on(self, checkpoint)
        observations, codes = self._validate_pairs(X, y, reset=not warm)
        data = {"X": observations, "y": codes.reshape(len(codes), *self._code_shape)}
        log = Checkpoint(checkpoint, self, data, random_seed, RECORDS)
        if log.fitted is not None:
            restore(self, log.fitted)
            return self
        random = np.random.default_rng(log.seed)
        watching = {"n_more": 1, "n_done": len(log.rows), "verbose": self.verbose}
        with log, watched(self, (observations, codes), self.max_iter, **watching) as watch, self._precision():
            learner, going_on = self._learner_of_fit(observations, codes, warm)
            pairs = observations / learner.units.observation, codes / learner.units.code
            log.callback = watch.next_epoch
            watch.begin()
            learner.learn(*pairs, random, self.max_iter, self.tol, log, **going_on)
            watch.end()
            self._install(learner, log.rows)
            log.finish(state_of(self))
        return self

    @all_or_nothing
    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Update the posterior by more pairs, once, in the order given.

        With variational inference every pair is one bounded step of the natural gradient, and after 100, 200, 400, …
        2,000 pairs, and then every 2,000, a network is fitted anew to the last ones, at most 2,000, which are kept.
        Every tenth pair of the stream decides whether it takes over, and else recalibrates the network at hand. A
        design matrix that the pairs contradict is estimated instead. Without a `fit`, the first 100 pairs are filtered
        as by "adf". With "adf" it is assumed density filtering throughout.

        Without a `fit`, the posterior starts at ISTA's weights. Units, and a design matrix that is not given, are
        estimated from the first 100 pairs, which are kept until then: up to there every call starts again from all of
        them. After that, and after `fit`, calls update the posterior at hand, with its depth, thresholds, noise and
        calibration: parameters changed since then are for the next `fit`. Priors are not refined, so the result does
        not depend on how the pairs are cut into calls. In `history_` they are one entry, the last.

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
        self._validate_params()
        first = not hasattr(self, "_learner")
        observations, codes = self._validate_pairs(X, y, reset=first)
        if not first and self._first_pairs is not None:
            observations, codes = (
                np.concatenate(parts) for parts in zip(self._first_pairs, (observations, codes), strict=True)
            )
        anew = first or self._first_pairs is not None
        with self._precision():
            start = observations[:FIRST_FIT], codes[:FIRST_FIT]
            learner = copy(self._learner) if not anew else self._new_stream(*start)
            row = self._stream(learner, observations / learner.units.observation, codes / learner.units.code)
        first_pairs = (observations, codes) if anew and len(codes) < FIRST_FIT else None
        online = row if anew or self._online is None else self._online.and_then(row)
        self._install(learner, [] if anew else self._epochs, online=online, first_pairs=first_pairs, new=[row])
        return self

    def predict_dist(self, X: ArrayLike, include_noise: bool = True, *, batch_size: int | None = None) -> SpikeSlab:
        """Predict a distribution for every coefficient.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        include_noise : bool, default=True
            Whether to predict the codes, including noise: calibrated on validation pairs where there were any, else
            with the noise added to the slab, and recalibrated by `calibrate` if it was called. Without it the
            distribution is the network's own ω, m and v, as in the paper. After a variational `fit` its variance is
            that of the output for weights drawn anew in every layer.
        batch_size : int or None, default=None
            As for `predict`.

        Returns
        -------
        SpikeSlab
            Of shape (n_samples, n_components), or (n_samples,) if the codes of `fit` were one-dimensional.
        """
        if include_noise:
            return super().predict_dist(X, batch_size=batch_size)
        model = self._ready(X)
        return model._dist_in_batches(lambda Y: model._output(Y, False), X, batch_size)

    def _own_dist(self, Y: _Rows) -> SpikeSlab:
        return self._output(Y, True)

    def _moments(self, Y: _Rows) -> tuple[NDArray[Any], ...]:
        if self.recalibration_ is not None or not isinstance(self._learner, VariationalLearner):
            return super()._moments(Y)
        with self._precision():
            return self._learner.moments(Y)

    def _output(self, Y: _Rows, include_noise: bool) -> SpikeSlab:
        observation_unit, code_unit = self._learner.units
        with self._precision():
            prob_active, slab_mean, slab_var = self._learner.output(Y / observation_unit, include_noise)
        return SpikeSlab._of(prob_active, slab_mean * code_unit, slab_var * code_unit**2)

    def _stream(self, learner: VariationalLearner | FilteringLearner, Y: _Rows, B: _Codes) -> Epoch:
        """Update a learner by standardised pairs."""
        if isinstance(learner, FilteringLearner):
            return learner.filter_once(Y, B)
        begin = 0
        if not hasattr(learner, "parameters"):  # the first pairs of a stream without a fit
            begin = FIRST_FIT
            learner.learn(Y[:begin], B[:begin], np.random.default_rng(0), self.max_iter, self.tol)
            learner.memory = StreamMemory.empty(Y, B).append(Y[:begin], B[:begin])
        row = learner.learn_stream(Y[begin:], B[begin:], self.max_iter, self.tol)
        return row._replace(values={**row.values, "n_pairs": len(B)})

    def _threshold(self) -> float | None:
        return None if isinstance(self.shrinkage, str) else float(self.shrinkage)

    def _learner_of_fit(
        self, Y: _Rows, B: _Codes, warm: bool
    ) -> tuple[VariationalLearner | FilteringLearner, dict[str, Any]]:
        """The learner of a fit, and what it goes on from."""
        if warm and isinstance(self._learner, FilteringLearner) and self.inference == "adf":
            return copy(self._learner), {}
        going_on = warm and isinstance(self._learner, VariationalLearner) and self.inference == "variational"
        return self._new_learner(Y, B), {"go_on_from": self._learner} if going_on else {}

    def _new_learner(self, Y: _Rows, B: _Codes) -> VariationalLearner | FilteringLearner:
        if self.inference == "adf":
            return self._new_filter(Y, B)
        # One that is not given is estimated inside, without the pairs that are held out.
        given = None if self.design_matrix is None else self._resolve_design_matrix(Y, B)
        return VariationalLearner.start(given, Y, B, self.n_layers, self._threshold(), self.validation_fraction)

    def _new_stream(self, Y: _Rows, B: _Codes) -> VariationalLearner | FilteringLearner:
        """The learner of a stream without a fit; up to 100 pairs it is assumed density filtering."""
        return self._new_learner(Y, B) if len(B) == FIRST_FIT else self._new_filter(Y, B)

    def _new_filter(self, Y: _Rows, B: _Codes) -> VariationalLearner | FilteringLearner:
        settings = self.n_layers, self._threshold(), self.prior, self.evidence, self.learn_noise
        return FilteringLearner.start(self._resolve_design_matrix(Y, B), Y, B, *settings)

    def _install(
        self,
        learner: VariationalLearner | FilteringLearner,
        epochs: list[Epoch],
        *,
        online: Epoch | None = None,
        first_pairs: tuple[_Rows, _Codes] | None = None,
        new: list[Epoch] | None = None,
    ) -> None:
        """Put a learned model into the estimator: fitted attributes in the units of the data, and warnings.

        `epochs` are those of a fit, which removes a recalibration; `online` is the epoch of `partial_fit` after it,
        `first_pairs` what `partial_fit` may start from again, and `new` the epochs to warn of.
        """
        if online is None:
            self.uncalibrate()
        self._learner, self._epochs, self._online, self._first_pairs = learner, epochs, online, first_pairs
        encoder, recurrent = learner.matrices()
        gain = learner.units.code / learner.units.observation
        self.encoder_, self.encoder_std_ = encoder.mean * gain, np.sqrt(encoder.var) * gain
        self.recurrent_, self.recurrent_std_ = recurrent.mean, np.sqrt(recurrent.var)
        self.shrinkage_ = learner.shrinkage * learner.units.code
        self.momentum_, self.step_size_ = np.zeros_like(self.shrinkage_), np.ones_like(self.shrinkage_)
        if isinstance(learner, VariationalLearner):
            self.momentum_, self.step_size_ = map(np.asarray, learner.layers[1:])
        self.noise_std_ = float(np.sqrt(learner.noise_var)) * learner.units.code
        self.design_matrix_ = learner.design_matrix
        rows = epochs if online is None else [*epochs, online]
        self.n_iter_ = len(rows)
        values = list(dict.fromkeys(name for row in rows for name in row.values))
        missing = {name: np.nan * np.asarray(row.values[name]) for row in rows for name in row.values}
        counts = list(dict.fromkeys(name for row in rows for name in row.counts))
        self.history_ = {name: np.array([row.values.get(name, missing[name]) for row in rows]) for name in values}
        self.history_ |= {name: np.array([row.counts.get(name, 0) for row in rows]) for name in counts}
        self.diagnostics_ = {name: int(self.history_[name].sum()) for name in counts}
        _warn_of_failures(rows if new is None else new)


def _warn_of_failures(epochs: list[Epoch]) -> None:
    attempts = {name: sum(row.attempts[name] for row in epochs) for name in epochs[0].attempts}
    failures = {name: sum(row.counts[name] for row in epochs) for name in attempts}
    listed = [
        f"{failures[name]} of {n} {name}" for name, n in attempts.items() if failures[name] > max(_TOLERATED * n, _FEW)
    ]
    if listed:
        warn_caller(
            f"More than {_TOLERATED:.0%} of the updates were not usable as they were ({', '.join(listed)}; see "
            "diagnostics_): scales, depth or prior do not suit the data. Try the default inference and prior, fewer "
            "layers, or a shrinkage that fits the codes.",
            NumericalWarning,
        )
