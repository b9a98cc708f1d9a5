"""LISTA as an estimator."""

import math
from functools import partial
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import StrOptions

from bayeslista.estimators.base import BaseSparseCoder, NumericalWarning
from bayeslista.estimators.progress import CallbackSupportMixin, Watch, watched, with_callbacks
from bayeslista.estimators.validation import (
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    all_or_nothing,
    check_going_on,
    random_seed,
    warn_caller,
)
from bayeslista.lista import training
from bayeslista.lista.training import CodePairs, LearningRates, ListaInfo, ListaState, ListaWeights
from bayeslista.numerics.batching import in_blocks, root_mean_square
from bayeslista.numerics.epochs import Units
from bayeslista.numerics.linear import estimate_design_matrix_and_noise, explains, ista_weights
from bayeslista.numerics.lmmse import SHRINKAGES, EncoderFold, lmmse_folds, step_size_and_shrinkage
from bayeslista.numerics.stream_memory import StreamMemory


class LISTA(CallbackSupportMixin, BaseSparseCoder):
    """Sparse coding by a learned ISTA: a network of `n_layers` steps trained on pairs.

    X are observations and y their sparse codes; for a table of features and a response: `SpikeSlabRegressor`.

    Each layer computes ``β_l = h_λ(u + γ (W y + S u − u))``, ``u = β_{l−1} + μ (β_{l−1} − β_{l−2})``, with one ``W``
    and one ``S`` for all layers, and for each a threshold ``λ``, a momentum ``μ`` and a step size ``γ``: as FISTA is
    ISTA with momentum, this is LISTA [1]_ with momentum. Training starts at the linear minimum mean square error
    estimator and descends on the mean squared error of the codes. The weights of the epoch with the least error on
    validation pairs are kept.

    Parameters
    ----------
    n_layers : int, default=10
        How many soft-thresholdings, the first included.
    design_matrix : array-like of shape (n_observed, n_components), default=None
        ``X`` in ``y = X β + noise``, for the start. None estimates it from the pairs by ridge regression.
    start : {"lmmse", "ista"}, default="lmmse"
        Where training starts: ``W`` of the linear minimum mean square error estimator, times a step size of at most
        one that is chosen on the pairs; or that of ISTA. ``S = I − W X`` for both.
    shrinkage : "auto" or float, default="auto"
        The threshold at the start, in the units of the codes, or throughout without `learn_shrinkage`; "auto" chooses
        one on the pairs. A learned one starts at most at the root mean square of ``W y``, because a network without
        active coefficients has no gradient.
    learn_shrinkage : bool, default=True
        Whether to learn a threshold for each layer.
    learn_momentum : bool, default=True
        Whether to learn a momentum and a step size for each layer; without them it is ``β ← h_λ(W y + S β)``.
    coupled_weights : bool, default=True
        Whether to couple the weights through the design matrix, as in LISTA-CP: ``W`` and ``R`` in
        ``S = I − W X + R`` are trained in place of ``W`` and ``S``. It is the same network, and overfits far less.
    optimizer : {"adam", "sgd"}, default="adam"
        "adam" works on observations and codes brought to unit root mean square, "sgd" on the data as they are.
    learning_rate : float, default=0.02
        For "sgd" the rate of every weight, for the mean squared error over coefficients. For "adam" it is
        relative to the problem: about the most that a step changes ``W X`` in spectral norm, a momentum, a step size,
        and a threshold in units of the codes' root mean square; what else changes ``S`` moves a tenth of it.
    batch_size : int, default=16
        Pairs per step.
    max_iter : int, default=200
        Epochs at most.
    tol : float, default=1e-4
        Early stopping: training ends when `n_iter_no_change` epochs in a row have not lowered the mean squared error
        of the validation pairs by this fraction. 0 runs all `max_iter` epochs; the best weights are kept all the same.
    validation_fraction : float, default=0.1
        The fraction of the pairs to hold out for validation. Where it is less than one pair, or 0, the error on the
        training pairs is used.
    n_iter_no_change : int, default=10
        Epochs without progress that end the training.
    warm_start : bool, default=False
        Whether `fit` goes on from the weights of the last `fit` or `partial_fit`, in place of `start`. The pairs need
        not be the same, but their columns, coefficients and `n_layers` do.
    dtype : {"auto", "float32", "float64"}, default="auto"
        The floating type of the computation. "auto" is float32 where the observations are float32 and the
        codes float32 or integers, else float64.
    random_state : int, RandomState instance or None, default=None
        Decides the validation pairs and the order of the others. The same integer gives the same bits.
    verbose : int, default=0
        1 shows a progress bar with the NMSE of the validation pairs on the standard error.

    Attributes
    ----------
    design_matrix_ : ndarray of shape (n_observed, n_components)
        The design matrix in use.
    encoder_ : ndarray of shape (n_components, n_observed)
        ``W``.
    recurrent_ : ndarray of shape (n_components, n_components)
        ``S``.
    shrinkage_ : ndarray of shape (n_layers,)
        The threshold of each layer.
    momentum_ : ndarray of shape (n_layers,)
        The momentum of each layer; that of the first has no effect.
    step_size_ : ndarray of shape (n_layers,)
        The step size of each layer.
    step_inverse_ : float
        ``τ`` of ISTA's step.
    n_iter_ : int
        Epochs run.
    history_ : dict of str to ndarray, one entry an epoch
        The mean squared error of the training pairs before each step (``"training_error"``), that of the validation
        pairs after the epoch (``"held_out_error"``) and their NMSE, ``mean ‖β̂ − β‖/‖β‖`` over codes that are not zero
        (``"held_out_nmse"``).
    diagnostics_ : dict of str to int
        ``"n_held_out"`` validation pairs, ``"n_batches"`` in all, ``"n_skipped"`` of them because their gradient was
        not finite, and the ``"best_epoch"`` whose weights were kept, 0 for those of the start.
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
    ISTA : The same steps, not learned.

    Notes
    -----
    Predictions are compiled for batches of 8, 16, … 1,024 rows and padded to the next of these sizes.

    References
    ----------
    .. [1] K. Gregor and Y. LeCun, "Learning fast approximations of sparse coding", ICML 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.estimators import ISTA, LISTA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((10, 20))
    >>> codes = rng.standard_normal((300, 20)) * (rng.random((300, 20)) < 0.1)
    >>> observations = codes @ X.T
    >>> model = LISTA(n_layers=3, design_matrix=X, random_state=0).fit(observations[:200], codes[:200])
    >>> start = ISTA(n_layers=3, design_matrix=X).fit(observations[:200], codes[:200])
    >>> model.score(observations[200:], codes[200:]) > start.score(observations[200:], codes[200:])
    True
    """

    _memory: StreamMemory | None = None  # of `partial_fit`
    _untrained = False  # a stream too short to train on

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseSparseCoder._parameter_constraints,
        "start": [StrOptions({"lmmse", "ista"})],
        "shrinkage": [NOT_NEGATIVE, StrOptions({"auto"})],
        "learn_shrinkage": ["boolean"],
        "learn_momentum": ["boolean"],
        "coupled_weights": ["boolean"],
        "optimizer": [StrOptions({"adam", "sgd"})],
        "learning_rate": [POSITIVE],
        "batch_size": [COUNT],
        "max_iter": [COUNT],
        "tol": [NOT_NEGATIVE],
        "validation_fraction": [FRACTION],
        "n_iter_no_change": [COUNT],
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        n_layers: int = 10,
        *,
        design_matrix: ArrayLike | None = None,
        start: str = "lmmse",
        shrinkage: float | str = "auto",
        learn_shrinkage: bool = True,
        learn_momentum: bool = True,
        coupled_weights: bool = True,
        optimizer: str = "adam",
        learning_rate: float = 0.02,
        batch_size: int = 16,
        max_iter: int = 200,
        tol: float = 1e-4,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        warm_start: bool = False,
        dtype: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_layers = n_layers
        self.design_matrix = design_matrix
        self.start = start
        self.shrinkage = shrinkage
        self.learn_shrinkage = learn_shrinkage
        self.learn_momentum = learn_momentum
        self.coupled_weights = coupled_weights
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
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
        """LISTA as the baseline of the BayesLISTA paper was trained.

        Plain stochastic gradient descent on the mean squared error over coefficients, ``W`` and ``S`` free,
        at the rate 1e-4, one pair at a time, on all pairs as they are, the threshold held. Unlike there, the weights of
        the epoch with the least training error are kept.

        Parameters
        ----------
        n_layers : int, default=10
            How many soft-thresholdings, the first included.
        design_matrix : array-like of shape (n_observed, n_components), default=None
            As for `LISTA`.
        shrinkage : float, default=0.1
            The threshold of every layer.
        max_iter : int, default=1000
            Epochs; all are run.
        dtype : {"auto", "float32", "float64"}, default="auto"
            As for `LISTA`.
        random_state : int, RandomState instance or None, default=None
            Decides the order of the pairs.
        verbose : int, default=0
            1 shows a progress bar.

        Returns
        -------
        LISTA
            An ordinary estimator, not yet fitted, wholly described by its parameters.

        Examples
        --------
        >>> from bayeslista.estimators import LISTA
        >>> LISTA.published(n_layers=4).optimizer
        'sgd'
        """
        return cls(
            n_layers,
            design_matrix=design_matrix,
            start="ista",
            shrinkage=shrinkage,
            learn_shrinkage=False,
            learn_momentum=False,
            coupled_weights=False,
            optimizer="sgd",
            learning_rate=1e-4,
            batch_size=1,
            max_iter=max_iter,
            tol=0.0,
            validation_fraction=0.0,
            dtype=dtype,
            random_state=random_state,
            verbose=verbose,
        )

    @all_or_nothing
    @with_callbacks
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Train the network on pairs of observations and codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row. One-dimensional: one coefficient a signal, not the response of a table.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._validate_params()
        warm = self.warm_start and hasattr(self, "encoder_")
        if warm:
            check_going_on(self)
        observations, codes = self._validate_pairs(X, y, reset=not warm)
        self.design_matrix_ = self._resolve_design_matrix(observations, codes)
        random = np.random.default_rng(random_seed(self.random_state))
        order = random.permutation(len(codes))
        n_held_out = int(self.validation_fraction * len(order))
        rows = order[:n_held_out], order[n_held_out:]
        self._memory, self._untrained = None, False
        with watched(self, (observations, codes), self.max_iter, verbose=self.verbose) as watch, self._precision():
            self._train(CodePairs(observations, codes), *rows, random, watch, from_start=not warm, from_fitted=warm)
        return self

    @all_or_nothing
    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Go on learning from more pairs.

        The last 2,000 pairs of the stream are kept, and after 100, 200, 400, … 2,000 of them, and then every 2,000, the
        network is trained on those: from the weights at hand or, where that has the smaller error, from a new start.
        Every tenth pair validates. A design matrix that the pairs contradict is estimated instead. In between pairs are
        only collected, so that the result does not depend on how the stream is cut into calls. Without a `fit`, the
        network is its start until the first 100 pairs are there. History and diagnostics are of the last training.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._validate_params()
        first = not hasattr(self, "encoder_")
        if not first:
            check_going_on(self)
        observations, codes = self._validate_pairs(X, y, reset=first)
        memory, untrained = self._memory or StreamMemory.empty(observations, codes), first or self._untrained
        with self._precision():
            for part in memory.until_fits(len(codes)):
                memory = memory.append(observations[part], codes[part])
                if memory.is_fit_due or untrained:
                    self._train_on(memory, self.max_iter if memory.is_fit_due else 0, not untrained)
                    untrained = not memory.is_fit_due
        self._memory, self._untrained = memory, untrained
        return self

    def _train_on(self, memory: StreamMemory, max_iter: int, from_fitted: bool) -> None:
        """Train on the memory of a stream; a given matrix that its held-out pairs contradict is estimated instead."""
        Y, B, held_out = memory.observations, memory.codes, memory.held_out
        matrix = self._resolve_design_matrix(Y, B)
        if self.design_matrix is not None and held_out.any():
            estimate, _ = estimate_design_matrix_and_noise(Y[~held_out], B[~held_out])
            matrix = estimate if explains(estimate, matrix, Y[held_out], B[held_out]) else matrix
        self.design_matrix_ = matrix
        rows = np.flatnonzero(held_out), np.flatnonzero(~held_out)
        random = np.random.default_rng(memory.n_seen)
        self._train(CodePairs(Y, B), *rows, random, max_iter=max_iter, from_fitted=from_fitted)

    def _train(
        self,
        pairs: CodePairs,
        held_out: Int[NDArray[Any], " m"],
        chosen: Int[NDArray[Any], " n"],
        random: np.random.Generator,
        watch: Watch | None = None,
        *,
        max_iter: int | None = None,
        from_start: bool = True,
        from_fitted: bool = False,
    ) -> None:
        """Train on chosen pairs from the better of the given starts, and set the fitted attributes."""
        units = Units(1.0, 1.0)
        if self.optimizer == "adam":
            units = Units(root_mean_square(pairs.observations), root_mean_square(pairs.codes))
        pairs = CodePairs(pairs.observations / units.observation, pairs.codes / units.code)
        learned_from = CodePairs(*(values[chosen] for values in pairs))
        validation = CodePairs(*(values[held_out] for values in pairs)) if len(held_out) else learned_from

        gain = units.observation / units.code
        design_matrix = self.design_matrix_ / gain
        coupling = design_matrix if self.coupled_weights else None
        step_inverse = ista_weights(design_matrix).step_inverse
        starts = [self._fitted_weights(coupling, units)] if from_fitted else []
        starts += [self._start_weights(learned_from, design_matrix, units.code)] if from_start else []
        states = [training.init(weights, validation, coupling, optimizer=self.optimizer) for weights in starts]
        state = min(states, key=lambda state: float(state.best_error))
        rates = self._rates(design_matrix.shape, math.sqrt(step_inverse))

        def fitted(best: ListaWeights) -> dict[str, Any]:
            # By NumPy: there is nothing to compile for it.
            encoder, recurrent, shrinkage, momentum, step_size = training.decoupled(
                jax.tree.map(np.asarray, best), coupling
            )
            return {
                "design_matrix_": self.design_matrix_,
                "encoder_": np.asarray(encoder) / gain,
                "recurrent_": np.asarray(recurrent),
                "shrinkage_": np.asarray(shrinkage) * units.code,
                "momentum_": np.zeros_like(shrinkage) if momentum is None else np.asarray(momentum),
                "step_size_": np.ones_like(shrinkage) if step_size is None else np.asarray(step_size),
            }

        infos: list[ListaInfo] = []
        while len(infos) < (self.max_iter if max_iter is None else max_iter) and not self._is_stale(state):
            if watch is not None:
                watch.begin()
            batches = training.make_batches(random.permutation(len(learned_from.codes)), self.batch_size)
            state, info = training.step(
                state, learned_from, validation, batches, rates, self.tol, coupling, optimizer=self.optimizer
            )
            infos.append(info)
            if watch is not None and watch.end_epoch(float(info.nmse), partial(fitted, state.best)):
                break
        n_batches = -(-len(learned_from.codes) // min(self.batch_size, len(learned_from.codes)))
        self._report(infos, float(state.best_error), units.code, len(held_out), n_batches)
        self.__dict__.update(fitted(state.best))
        self.step_inverse_ = step_inverse * gain**2

    def _fitted_weights(self, coupling: Float[NDArray[Any], "K D"] | None, units: Units) -> ListaWeights:
        """The weights at hand, in standardised units; coupled ones if there is a design matrix."""
        encoder, shrinkage = self.encoder_ * (units.observation / units.code), self.shrinkage_ / units.code
        free = ListaWeights(encoder, self.recurrent_, shrinkage)
        if self.learn_momentum or self._is_accelerated():
            free = free._replace(momentum=self.momentum_, step_size=self.step_size_)
        return training.coupled(free, coupling)

    def _is_accelerated(self) -> bool:
        return bool(self.momentum_.any() or (self.step_size_ != 1).any())

    def _start_weights(self, pairs: CodePairs, design_matrix: Float[NDArray[Any], "K D"], unit: float) -> ListaWeights:
        """Weights and thresholds before training, in standardised units; `unit` is that of the codes."""
        rows: tuple[Any, Any] = (pairs.observations, pairs.codes)
        given = None if isinstance(self.shrinkage, str) else self.shrinkage / unit
        shrinkages = SHRINKAGES if given is None else (given,)
        identity = np.eye(design_matrix.shape[1], dtype=self.dtype_)
        if self.start == "ista":
            encoder, recurrent, _ = ista_weights(design_matrix)
            _, shrinkage = step_size_and_shrinkage(design_matrix, [EncoderFold(encoder, *rows)], 1, shrinkages)
        else:
            noise_var = estimate_design_matrix_and_noise(*rows)[1] if self.design_matrix is None else None
            encoder, folds = lmmse_folds(design_matrix, *rows, noise_var)
            step_size, shrinkage = step_size_and_shrinkage(design_matrix, folds, self.n_layers, shrinkages)
            encoder = (step_size * encoder).astype(self.dtype_)
            recurrent = identity - encoder @ design_matrix
        if self.learn_shrinkage:
            shrinkage = min(shrinkage, root_mean_square(np.asarray(pairs.observations @ encoder.T)))
        thresholds = np.full(self.n_layers, shrinkage, self.dtype_)
        weights = ListaWeights(encoder, identity if self.coupled_weights else recurrent, thresholds)
        if self.learn_momentum:
            weights = weights._replace(momentum=np.zeros_like(thresholds), step_size=np.ones_like(thresholds))
        return weights

    def _is_stale(self, state: ListaState) -> bool:
        """Whether the last epochs have not lowered the error any more."""
        return self.tol > 0 and int(state.n_stale) >= self.n_iter_no_change

    def _rates(self, shape: tuple[int, ...], norm: float) -> LearningRates:
        """Learning rates for a design matrix of this shape and spectral norm."""
        rate = self.learning_rate
        of_layers = rate * self.learn_shrinkage, rate * self.learn_momentum, rate * self.learn_momentum
        if self.optimizer == "sgd":
            return LearningRates(rate, rate, *of_layers)
        # A step of Adam is at most its rate in every entry: in spectral norm, √(rows · columns) times that.
        return LearningRates(rate / (norm * math.sqrt(math.prod(shape))), 0.1 * rate / shape[1], *of_layers)

    def _report(
        self, infos: list[ListaInfo], best_error: float, code_scale: float, n_held_out: int, n_batches: int
    ) -> None:
        """Set history and diagnostics, in the units of the codes, and warn of what was skipped."""
        table = {name: np.array([float(getattr(info, name)) for info in infos]) for name in ListaInfo._fields}
        n_skipped = int(table["n_skipped"].sum())
        errors = table["error"]
        self.n_iter_ = len(infos)
        self.history_ = {
            "training_error": table["loss"] * code_scale**2,
            "held_out_error": errors * code_scale**2,
            "held_out_nmse": table["nmse"],
        }
        self.diagnostics_ = {
            "n_held_out": n_held_out,
            "n_batches": n_batches * len(infos),
            "n_skipped": n_skipped,
            "best_epoch": int(np.argmin(errors)) + 1 if errors.min(initial=math.inf) <= best_error < math.inf else 0,
        }
        if n_skipped:
            warn_caller(
                f"{n_skipped} of {n_batches * len(infos)} mini-batches had a gradient that is not finite and were "
                "skipped; the best weights before that are kept. Lower learning_rate, or use optimizer='adam', "
                "which standardises the data.",
                NumericalWarning,
            )

    def _predict_codes(self, Y: Float[NDArray[Any], "n K"]) -> Float[NDArray[Any], "n D"]:
        weights = ListaWeights(self.encoder_, self.recurrent_, self.shrinkage_)
        if self._is_accelerated():
            weights = weights._replace(momentum=self.momentum_, step_size=self.step_size_)
        with self._precision():
            return in_blocks(lambda rows: training.predict(weights, rows), Y)
