"""BayesLISTA as an estimator."""

import os
import warnings
from copy import copy
from typing import Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayeslista.distributions import SpikeSlab
from bayeslista.estimators._base import NumericalWarning
from bayeslista.estimators._checkpoints import Checkpoint
from bayeslista.estimators._distributional import DistributionalSparseCoder
from bayeslista.estimators._filtering import FilteringLearner
from bayeslista.estimators._learners import Learner, Pass
from bayeslista.estimators._parameters import (
    check_boolean,
    check_choice,
    check_integer,
    check_real,
    check_verbose,
)
from bayeslista.estimators._progress import CallbackSupportMixin, watched, with_callbacks
from bayeslista.estimators._validation import all_or_nothing
from bayeslista.estimators._variational import VariationalLearner
from bayeslista.network import EvidenceForm

_INFERENCES = ("variational", "adf")
_PRIORS = ("scaled", "printed")
_EVIDENCES = ("spike_slab", "gaussian")
_TOLERATED = 1e-2
_FEW = 20
_STREAM_START = 100  # pairs


class BayesLISTA(CallbackSupportMixin, DistributionalSparseCoder):
    r"""Sparse coding by a Bayesian network: every weight is a distribution, and so is every prediction.

    The network is that of LISTA, :math:`\hat\beta \leftarrow h_\lambda(W y + S \hat\beta)` for `n_layers` layers,
    with an independent Gaussian for every weight [1]_. Means and variances are propagated through the layers in closed
    form, and what comes out is, for every coefficient, a spike at zero and a Gaussian slab.

    By default the network is anchored at the design matrix, :math:`S = I - W X + R`, and learns W, R and a threshold
    for each layer by variational inference on those moments, starting at the linear minimum mean square error
    estimator. A held-out fraction of the pairs chooses the best pass and calibrates the predicted distribution.

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
        How the belief meets the data: variational inference, or the paper's assumed density filtering over the pairs
        with expectation propagation for the priors, on W and S free from ISTA's weights on.
    prior : {"scaled", "printed"}, default="scaled"
        For "adf". "scaled" centres the priors at ISTA's weights, with variances :math:`1/(L D)` for ``S`` and
        :math:`E\beta_d^2 / (L\,E\|y\|^2)` for ``W``, so that a prediction's variance stays bounded however deep or
        wide the network is, and measures codes in units of the root mean square of their nonzero entries. "printed" is
        the paper's: zero mean, variance 1.2, data as they are. It lets the variance grow by a factor of about D in
        every layer; where that is beyond all digits that codes have (in double precision from about eight layers of 100
        coefficients on) learning from it would be learning from round-off, and "scaled" takes its place.
    evidence : {"spike_slab", "gaussian"}, default="spike_slab"
        For "adf": what scores a pair, the paper's mixture of a Student's t spike and a Gaussian slab, or a Gaussian
        with the same mean and variance.
    learn_noise : bool, default=False
        For "adf": whether the Gamma of the noise precision is learned, or held at Gam(6, 6) as in the paper's curves.
        Learned with ``evidence="spike_slab"`` it degenerates, because exact zeros let the spike's precision grow
        without bound.
    max_iter : int, default=50
        Passes over the pairs at most.
    tol : float, default=1e-4
        Learning stops when the error has not fallen by this fraction: the mean squared error of the held-out pairs in
        ten passes, or for "adf" the running NMSE in five. 0 makes all passes.
    validation_fraction : float, default=0.1
        The fraction of the pairs that is held out, one pair at least, to choose the best pass and to calibrate. Where
        that is fewer than 20, up to five networks learn side by side with different pairs held out, to do so together,
        and the start is kept unless they like another pass better by a standard error; with a design matrix given, one
        more then learns from all pairs for as many passes as were best. With 0, or a single pair, the training pairs
        themselves do it, which makes predictions too sure. "adf" holds nothing out.
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
    noise_std_ : float
        Standard deviation of the codes about the network's output, as learning saw it.
    n_iter_ : int
        Passes made.
    history_ : dict of str to ndarray, one entry a pass
        ``"n_pairs"``, the ``"objective"`` per pair (for "adf" the log evidence), the ``"training_nmse"`` of pairs just
        before they were learned from, mean variances of the weights, ``"noise_std"`` and the counts of `diagnostics_`;
        variational inference adds the ``"held_out_nmse"``, both mean squared errors (``"training_error"``,
        ``"held_out_error"``) and the ``"shrinkage"`` of each layer. NaN where an entry has none. Means over the
        networks where several learn side by side.
    diagnostics_ : dict of str to int
        Sums over all passes of what went wrong. Variational inference: mini-batches ``"skipped"`` because their
        gradient was not finite, and times the best weights were ``"restored"`` after the held-out error grew.
        Filtering: updates ``"rejected"`` because a variance would have turned non-positive or a number not finite, and
        ``"clipped"`` by the trust region; for "adf" also rejected noise updates and prior factors, pairs with a
        variance so large that it was ``"saturated"``, and damped sweeps over the priors. A :class:`NumericalWarning`
        tells of it where more than one in a hundred updates of a kind, and more than 20, are concerned.
    dtype_ : numpy.dtype
        The floating type of the fit and its predictions.
    n_components_ : int
        Coefficients per code.
    component_names_ : ndarray of shape (n_components,)
        Their names, where the codes of `fit` were a frame that has any.
    n_features_in_ : int
        Observed values per sample.

    See Also
    --------
    LISTA : The same network with weights that are numbers.

    Notes
    -----
    With "adf", filtering the same pairs again counts them again: after many passes the variances of the weights are far
    smaller than honest ones, and the noise, held, is what is left of the predicted spread. No step moves a mean by more
    than five standard deviations or makes a variance more than four times larger; see
    :mod:`bayeslista.inference.adf`.

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

        It starts at ISTA with the threshold held, the noise held at Gam(6, 6), and makes all passes. Where the printed
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
            Passes over the pairs; all are made.
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
        """Learn the belief about the weights from pairs of observations and codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row.
        checkpoint : str or path-like, default=None
            A file in which to keep what is learned from time to time, and in the end. The same call goes on from it,
            and ends with the same bits as if it had never been stopped; after the end it returns at once. Remove the
            file to start anew.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._check_parameters()
        observations, codes = self._validate_pairs(X, y)
        memory = Checkpoint(checkpoint, self, (observations, codes))
        if memory.finished:
            return memory.restored()
        random = np.random.default_rng(memory.seed)
        watching = {"n_more": 1, "n_done": len(memory.rows), "verbose": self.verbose}
        with memory, watched(self, (observations, codes), self.max_iter, **watching) as watch, self._precision():
            learner = self._new_learner(observations, codes)
            pairs = observations / learner.units.observation, codes / learner.units.code
            for _ in watch.over(learner.learn(*pairs, random, self.max_iter, self.tol, memory)):
                pass
            passes = memory.rows
            self._learner = learner
            self.uncalibrate()
            self._stream: Pass | None = None
            self._first_pairs: tuple[np.ndarray, np.ndarray] | None = None
            self._finish(passes, passes, stacklevel=5)
            memory.finish()
        return self

    @all_or_nothing
    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Take more pairs into the belief, once, in the order given.

        After a variational `fit` every pair is one bounded step of the natural gradient; else, and where there was no
        `fit`, it is assumed density filtering.

        Without a `fit` before it, a stream starts a belief at ISTA's weights. Units, and a design matrix that is not
        given, are taken from its first 100 pairs, which are kept until then: up to there every call begins anew from
        all of them. After that, and after `fit`, calls go on from the belief there is, with the depth, thresholds,
        noise and calibration that it has: parameters changed since then wait for the next `fit`. Priors are not
        refined, so a stream gives the same belief however it is cut. In `history_` it is one entry, the last.

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
        self._check_parameters()
        first = not hasattr(self, "_learner")
        observations, codes = self._validate_pairs(X, y, reset=first)
        kept = None if first else self._first_pairs
        if kept is not None:
            observations, codes = np.concatenate([kept[0], observations]), np.concatenate([kept[1], codes])
        anew = first or kept is not None
        with self._precision():
            start = observations[:_STREAM_START], codes[:_STREAM_START]
            learner = self._new_filter(*start) if anew else copy(self._learner)
            row = learner.filter_once(observations / learner.units.observation, codes / learner.units.code)
        self._learner = learner
        self._first_pairs = (observations, codes) if anew and len(codes) < _STREAM_START else None
        self._stream = row if anew or self._stream is None else self._stream.and_then(row)
        self._finish([*([] if anew else self._passes), self._stream], [row], stacklevel=4)
        return self

    def predict_dist(self, X: ArrayLike, include_noise: bool = True, *, batch_size: int | None = None) -> SpikeSlab:
        """Predict a distribution for every coefficient.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        include_noise : bool, default=True
            Whether to predict the codes, with all that separates them from the network's output: calibrated on
            held-out pairs where there were any, else the noise added to the slab, and mended by `calibrate` if it was
            called. Without it the distribution is the network's own ω, m and v, as in the paper. After a variational
            `fit` they spread as the output does over weights drawn afresh in every layer.
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
        return model._whole(lambda Y: model._output(Y, False), X, batch_size)

    def _own_dist(self, Y: Float[np.ndarray, "n K"]) -> SpikeSlab:
        return self._output(Y, True)

    def _moments(self, Y: Float[np.ndarray, "n K"]) -> tuple[np.ndarray, ...]:
        if self.recalibration_ is not None or not isinstance(self._learner, VariationalLearner):
            return super()._moments(Y)
        with self._precision():
            return self._learner.moments(Y)

    def _output(self, Y: Float[np.ndarray, "n K"], include_noise: bool) -> SpikeSlab:
        observation_unit, code_unit = self._learner.units
        with self._precision():
            prob_active, slab_mean, slab_var = self._learner.output(Y / observation_unit, include_noise)
        return SpikeSlab._of(prob_active, slab_mean * code_unit, slab_var * code_unit**2)

    def _threshold(self) -> float | None:
        return None if isinstance(self.shrinkage, str) else float(self.shrinkage)

    def _new_learner(self, Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"]) -> Learner:
        if self.inference == "adf":
            return self._new_filter(Y, B)
        # One that is not given is estimated inside, without the pairs that are held out.
        given = None if self.design_matrix is None else self._resolve_design_matrix(Y, B)
        return VariationalLearner.start(given, Y, B, self.n_layers, self._threshold(), self.validation_fraction)

    def _new_filter(self, Y: Float[np.ndarray, "n K"], B: Float[np.ndarray, "n D"]) -> Learner:
        return FilteringLearner.start(
            self._resolve_design_matrix(Y, B),
            Y,
            B,
            self.n_layers,
            self._threshold(),
            self.prior,
            self.evidence,
            self.learn_noise,
        )

    def _finish(self, passes: list[Pass], new: list[Pass], stacklevel: int) -> None:
        """Show what was learned in the units of the data, and warn of what was left out in the new passes."""
        learner = self._learner
        self._passes = passes[: len(passes) - (self._stream is not None)]
        encoder, recurrent = learner.matrices()
        gain = learner.units.code / learner.units.observation
        self.encoder_, self.encoder_std_ = encoder.mean * gain, np.sqrt(encoder.var) * gain
        self.recurrent_, self.recurrent_std_ = recurrent.mean, np.sqrt(recurrent.var)
        self.shrinkage_ = learner.shrinkage * learner.units.code
        self.noise_std_ = float(np.sqrt(learner.noise_var)) * learner.units.code
        self.design_matrix_ = learner.design_matrix
        self.n_iter_ = len(passes)
        told = list(dict.fromkeys(name for row in passes for name in row.values))
        counted = list(dict.fromkeys(name for row in passes for name in row.counts))
        self.history_ = {name: np.array([row.values.get(name, np.nan) for row in passes]) for name in told}
        self.history_ |= {name: np.array([row.counts.get(name, 0) for row in passes]) for name in counted}
        self.diagnostics_ = {name: int(self.history_[name].sum()) for name in counted}
        attempts = {name: sum(row.attempts[name] for row in new) for name in new[0].attempts}
        failures = {name: sum(row.counts[name] for row in new) for name in attempts}
        trouble = [name for name, n in attempts.items() if failures[name] > max(_TOLERATED * n, _FEW)]
        if trouble:
            listed = ", ".join(f"{failures[name]} of {attempts[name]} {name}" for name in trouble)
            warnings.warn(
                f"More than {_TOLERATED:.0%} of the updates were not usable as they were ({listed}; see diagnostics_): "
                "scales, depth or prior do not suit the data. Try the default inference and prior, fewer layers, or a "
                "shrinkage that fits the codes.",
                NumericalWarning,
                stacklevel=stacklevel,
            )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("inference", self.inference, _INFERENCES)
        check_choice("prior", self.prior, _PRIORS)
        check_choice("evidence", self.evidence, _EVIDENCES)
        check_boolean("learn_noise", self.learn_noise)
        check_integer("max_iter", self.max_iter, minimum=1)
        check_real("tol", self.tol, minimum=0)
        check_real("validation_fraction", self.validation_fraction, minimum=0, below=1)
        check_verbose(self.verbose)

    def _check_shrinkage(self) -> None:
        if not (isinstance(self.shrinkage, str) and self.shrinkage == "auto"):
            super()._check_shrinkage()
