"""LISTA as an estimator."""

import math
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from bayeslista._blocks import in_blocks, root_mean_square
from bayeslista.estimators._base import BaseSparseCoder, NumericalWarning
from bayeslista.estimators._checkpoints import Checkpoint
from bayeslista.estimators._parameters import (
    check_boolean,
    check_choice,
    check_integer,
    check_real,
    check_verbose,
)
from bayeslista.estimators._progress import CallbackSupportMixin, Watch, watched, with_callbacks
from bayeslista.estimators._validation import all_or_nothing
from bayeslista.inference import gradient_descent
from bayeslista.inference.gradient_descent import Info, Pairs, Rates, State, Weights
from bayeslista.proximal import ista_weights

_OPTIMIZERS = ("adam", "sgd")


class LISTA(CallbackSupportMixin, BaseSparseCoder):
    """Sparse coding by a learned ISTA: a network of `n_layers` steps trained on pairs.

    Each layer computes ``β ← h_λ(W y + S β)`` with one ``W`` and one ``S`` for all layers and a threshold
    ``λ`` for each. Training [1]_ starts at ISTA and descends on the mean squared error of the codes. The weights
    that did best on a held-out fraction of the pairs are kept, so that the network is never worse there than
    ISTA was.

    Parameters
    ----------
    n_layers : int, default=10
        How many soft-thresholdings, the first included.
    design_matrix : array-like of shape (n_observed, n_components), default=None
        ``X`` in ``y = X β + noise``, for the start. None estimates it from the pairs by ridge regression.
    shrinkage : float, default=0.1
        The threshold at the start, in the units of the codes, or throughout without `learn_shrinkage`. A
        start to be learned from is lowered to the root mean square of ``W y`` where it exceeds that, because
        a network without active coefficients has no gradient.
    learn_shrinkage : bool, default=True
        Whether to learn a threshold for each layer.
    anchored : bool, default=True
        Whether to train ``W`` and the deviation ``R`` in ``S = I − W X + R`` in place of ``W`` and ``S``: the
        same network, but a step in ``W`` keeps what the design matrix says of ``S``, which overfits far less.
    optimizer : {"adam", "sgd"}, default="adam"
        "adam" works on observations and codes brought to unit root mean square, "sgd" on the data as they are.
    learning_rate : float, default=0.2
        For "sgd" the rate of every weight, for the mean squared error over coefficients. For "adam" it is
        relative to the problem: about the most that a step changes ``W X`` in spectral norm; what else changes
        ``S``, and the thresholds in units of the codes' root mean square, move a tenth of it.
    batch_size : int, default=16
        Pairs per step.
    max_iter : int, default=200
        Passes over the pairs at most.
    tol : float, default=1e-4
        Training stops when `n_iter_no_change` passes in a row have not lowered the mean squared error of the
        held-out pairs by this fraction. 0 makes all `max_iter` passes; the best weights are kept all the
        same.
    validation_fraction : float, default=0.1
        The fraction of the pairs to hold out. Where it is less than one pair, or 0, all pairs train the
        network and the error on them decides when to stop and which weights to keep.
    n_iter_no_change : int, default=10
        How many passes without progress end the training.
    dtype : {"auto", "float32", "float64"}, default="auto"
        The floating type of the computation. "auto" is float32 where the observations are float32 and the
        codes float32 or integers, else float64.
    random_state : int, RandomState instance or None, default=None
        Decides the held-out pairs and the order of the others. The same integer gives the same bits.
    verbose : int, default=0
        1 shows a progress bar with the running NMSE of the held-out pairs on the standard error.

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
    step_inverse_ : float
        ``τ`` of the start.
    n_iter_ : int
        Passes made.
    history_ : dict of str to ndarray, one entry a pass
        For each pass the mean squared error of the training pairs as they were met (``"training_error"``), that of
        the held-out pairs after it (``"held_out_error"``) and their NMSE, ``mean ‖β̂ − β‖/‖β‖`` over codes that are
        not zero (``"held_out_nmse"``).
    diagnostics_ : dict of str to int
        ``"n_held_out"`` pairs, ``"n_batches"`` met, ``"n_skipped"`` of them because their gradient was not
        finite, and the ``"best_pass"`` whose weights were kept, 0 for those of the start.
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

    def __init__(
        self,
        n_layers: int = 10,
        *,
        design_matrix: ArrayLike | None = None,
        shrinkage: float = 0.1,
        learn_shrinkage: bool = True,
        anchored: bool = True,
        optimizer: str = "adam",
        learning_rate: float = 0.2,
        batch_size: int = 16,
        max_iter: int = 200,
        tol: float = 1e-4,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        dtype: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_layers = n_layers
        self.design_matrix = design_matrix
        self.shrinkage = shrinkage
        self.learn_shrinkage = learn_shrinkage
        self.anchored = anchored
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
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
        the pass with the least training error are kept.

        Parameters
        ----------
        n_layers : int, default=10
            How many soft-thresholdings, the first included.
        design_matrix : array-like of shape (n_observed, n_components), default=None
            As for `LISTA`.
        shrinkage : float, default=0.1
            The threshold of every layer.
        max_iter : int, default=1000
            Passes over the pairs; all are made.
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
            shrinkage=shrinkage,
            learn_shrinkage=False,
            anchored=False,
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
    def fit(self, X: ArrayLike, y: ArrayLike, *, checkpoint: str | os.PathLike[str] | None = None) -> Self:
        """Train the network on pairs of observations and codes.

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
        design_matrix = self._resolve_design_matrix(observations, codes)
        memory = Checkpoint(checkpoint, self, (observations, codes))
        if memory.finished:
            return memory.restored()
        standardised = self.optimizer == "adam"
        observation_scale, code_scale = (
            (root_mean_square(observations), root_mean_square(codes)) if standardised else (1.0, 1.0)
        )
        gain = observation_scale / code_scale
        pairs = Pairs(observations / observation_scale, codes / code_scale)

        def learned(best: Weights) -> dict[str, np.ndarray]:
            return {
                "design_matrix_": design_matrix,
                "encoder_": np.asarray(best.encoder) / gain,
                "recurrent_": np.asarray(best.recurrent),
                "shrinkage_": np.asarray(best.shrinkage) * code_scale,
            }

        watching = {"n_done": len(memory.rows), "verbose": self.verbose}
        with memory, watched(self, (observations, codes), self.max_iter, **watching) as watch, self._precision():
            best, step_inverse = self._train(pairs, design_matrix / gain, code_scale, watch, learned, memory)
            self.__dict__.update(learned(best))
            self.step_inverse_ = step_inverse * gain**2
            memory.finish()
        return self

    def _train(
        self,
        pairs: Pairs,
        design_matrix: Float[np.ndarray, "K D"],
        code_scale: float,
        watch: Watch,
        learned: Callable[[Weights], dict[str, np.ndarray]],
        memory: Checkpoint,
    ) -> tuple[Weights, float]:
        """Train on pairs in the units of the descent; return the best weights and the step of the start."""
        random = np.random.default_rng(memory.seed)
        order = random.permutation(len(pairs.codes))
        n_held_out = int(self.validation_fraction * len(order))
        training = Pairs(*(values[order[n_held_out:]] for values in pairs))
        monitored = Pairs(*(values[order[:n_held_out]] for values in pairs)) if n_held_out else training

        start = ista_weights(design_matrix)
        anchor = design_matrix if self.anchored else None
        shrinkage = self.shrinkage / code_scale
        if self.learn_shrinkage:
            shrinkage = min(shrinkage, root_mean_square(np.asarray(training.observations @ start.encoder.T)))
        state = gradient_descent.init(
            Weights(
                start.encoder,
                np.eye(len(start.recurrent), dtype=self.dtype_) if self.anchored else start.recurrent,
                np.full(self.n_layers, shrinkage, self.dtype_),
            ),
            monitored,
            anchor,
            optimizer=self.optimizer,
        )
        rates = self._rates(design_matrix.shape, math.sqrt(start.step_inverse))
        state = memory.recall(state, random)
        while len(memory.rows) < self.max_iter and not self._is_stale(state):
            watch.begin()
            batches = gradient_descent.make_batches(random.permutation(len(training.codes)), self.batch_size)
            state, info = gradient_descent.step(
                state, training, monitored, batches, rates, self.tol, anchor, optimizer=self.optimizer
            )
            memory.after([float(value) for value in info], state, random)
            if watch.end_pass(float(info.nmse), partial(_so_far, learned, state.best, anchor)):
                break
        infos = [Info(*row) for row in memory.rows]
        n_batches = -(-len(training.codes) // min(self.batch_size, len(training.codes)))
        self._report(infos, float(state.best_error), code_scale, n_held_out, n_batches)
        return _on_host(state.best, anchor), start.step_inverse

    def _is_stale(self, state: State) -> bool:
        """Whether the last passes have not lowered the error any more."""
        return self.tol > 0 and int(state.n_stale) >= self.n_iter_no_change

    def _rates(self, shape: tuple[int, ...], norm: float) -> Rates:
        """Learning rates in the units of the descent, for a design matrix of this shape and spectral norm."""
        learn = float(self.learn_shrinkage)
        if self.optimizer == "sgd":
            return Rates(self.learning_rate, self.learning_rate, self.learning_rate * learn)
        # A step of Adam is at most its rate in every entry: in spectral norm, √(rows · columns) times that.
        slow = self.learning_rate / 10
        return Rates(self.learning_rate / (norm * math.sqrt(math.prod(shape))), slow / shape[1], slow * learn)

    def _report(self, infos: list[Info], best_error: float, code_scale: float, n_held_out: int, n_batches: int) -> None:
        """Store what happened in the passes, in the units of the codes, and warn of what was skipped."""
        table = {name: np.array([float(getattr(info, name)) for info in infos]) for name in Info._fields}
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
            "best_pass": int(np.argmin(errors)) + 1 if errors.min() <= best_error < math.inf else 0,
        }
        if n_skipped:
            warnings.warn(
                f"{n_skipped} of {n_batches * len(infos)} mini-batches had a gradient that is not finite and were "
                "skipped; the best weights before that are kept. Lower learning_rate, or use optimizer='adam', "
                "which standardises the data.",
                NumericalWarning,
                stacklevel=6,
            )

    def _predict_codes(self, Y: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n D"]:
        weights = Weights(self.encoder_, self.recurrent_, self.shrinkage_)
        with self._precision():
            return in_blocks(lambda rows: gradient_descent.predict(weights, rows), Y)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_boolean("learn_shrinkage", self.learn_shrinkage)
        check_boolean("anchored", self.anchored)
        check_choice("optimizer", self.optimizer, _OPTIMIZERS)
        check_real("learning_rate", self.learning_rate, minimum=0, strict=True)
        check_integer("batch_size", self.batch_size, minimum=1)
        check_integer("max_iter", self.max_iter, minimum=1)
        check_real("tol", self.tol, minimum=0)
        check_real("validation_fraction", self.validation_fraction, minimum=0, below=1)
        check_integer("n_iter_no_change", self.n_iter_no_change, minimum=1)
        check_verbose(self.verbose)


def _so_far(learned: Callable[[Weights], dict[str, np.ndarray]], best: Weights, anchor: Any) -> dict[str, np.ndarray]:
    return learned(_on_host(best, anchor))


def _on_host(best: Weights, anchor: Any) -> Weights:
    """What `predict` takes, by NumPy: there is nothing to compile for it."""
    return gradient_descent.unanchored(Weights(*map(np.asarray, best)), anchor)
