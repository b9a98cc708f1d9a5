"""SpikeSlabNet as an estimator."""

import os
import warnings
from copy import copy
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags

from bayeslista._blocks import root_mean_square
from bayeslista.distributions import SpikeSlab
from bayeslista.estimators._base import NumericalWarning
from bayeslista.estimators._checkpoints import Checkpoint
from bayeslista.estimators._distributional import DistributionalSparseCoder
from bayeslista.estimators._learners import Units
from bayeslista.estimators._parameters import check_choice, check_integer, check_real, check_verbose
from bayeslista.estimators._progress import CallbackSupportMixin, watched, with_callbacks
from bayeslista.estimators._spike_slab import Assumed, SpikeSlabLearner
from bayeslista.estimators._validation import all_or_nothing, check_matrix

_MODES = ("accurate", "fast")
_GIVEN = ("design_matrix", "prob_active", "slab_var", "noise_std")  # with all of them there is nothing to learn


class SpikeSlabNet(CallbackSupportMixin, DistributionalSparseCoder):
    r"""Sparse coding by layers of message passing: close to the exact posterior, at a thousandth of its cost.

    The model is :math:`y = X\beta + N(0, \sigma^2 I)` with coefficients that are zero or else drawn from a slab, a
    small mixture of Gaussians. Pairs teach a posterior of the matrix (if it is not given), the noise, the sparsity and
    the slab; unrolled layers of vector AMP [1]_ and expectation propagation [2]_ then turn an observation into a spike
    and slab for every coefficient. A few scalars in every layer are learned from pairs simulated from that model, which
    calibrates the answer without any held-out pair.

    With a design matrix it learns from observations alone (``fit(X)``), and with ``prob_active``, ``slab_var`` and
    ``noise_std`` as well it predicts at once, without `fit`.

    Parameters
    ----------
    n_layers : int, default=20
        How many layers, of both kinds together.
    mode : {"accurate", "fast"}, default="accurate"
        "fast" has layers of vector AMP only. In "accurate" the last five are of expectation propagation, which take a
        factorisation for every signal, and the third of the signals that is then most in doubt goes through up to ten
        more.
    design_matrix : array-like of shape (n_observed, n_components), default=None
        ``X`` in ``y = X β + noise``. None learns it from the pairs; its uncertainty then widens the answer.
    prob_active : float, default=None
        Probability that a coefficient is not zero. None learns it.
    slab_var : float, default=None
        Variance of the coefficients that are not zero, about zero. None learns the slab, a mixture of up to three
        Gaussians.
    noise_std : float, default=None
        Standard deviation of the noise. None learns it.
    calibration_steps : int, default=60
        Steps of Adam on simulated pairs, of which each sees 64. Large matrices get fewer of both, so that it takes
        about a minute, or none. 0 keeps scalars that serve untrained.
    dtype : {"auto", "float32", "float64"}, default="auto"
        The floating type of the computation. "auto" is float32 where the observations are float32 and the codes
        float32 or integers, else float64.
    random_state : int, RandomState instance or None, default=None
        Decides the simulated pairs. The same integer gives the same bits.
    verbose : int, default=0
        Kept for symmetry with the other estimators; nothing is shown.

    Attributes
    ----------
    design_matrix_ : ndarray of shape (n_observed, n_components)
        The design matrix given, or the posterior mean of a learned one.
    design_matrix_std_ : ndarray of shape (n_components,)
        Standard deviation of the entries in each column of it; zero if it was given.
    prob_active_ : float
        Probability that a coefficient is not zero.
    slab_weight_, slab_mean_, slab_var_ : ndarray of shape (n_parts,)
        The slab: weights, means and variances of its parts.
    noise_std_ : float
        Standard deviation of the noise.
    structured_ : bool
        Whether pairs showed codes to go together, as pixels do, so that a Gaussian base with a spike and slab for each
        coefficient takes the place of the layers; see :mod:`bayeslista.gaussian_base`.
    history_ : dict of str to ndarray, one entry a step
        The ``"objective"`` of simulated batches: negative log score plus relative error.
    diagnostics_ : dict of str to int
        Batches ``"skipped"`` because their gradient was not finite.
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

    def __init__(
        self,
        n_layers: int = 20,
        *,
        mode: str = "accurate",
        design_matrix: ArrayLike | None = None,
        prob_active: float | None = None,
        slab_var: float | None = None,
        noise_std: float | None = None,
        calibration_steps: int = 60,
        dtype: str = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_layers = n_layers
        self.mode = mode
        self.design_matrix = design_matrix
        self.prob_active = prob_active
        self.slab_var = slab_var
        self.noise_std = noise_std
        self.calibration_steps = calibration_steps
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    @all_or_nothing
    @with_callbacks
    def fit(
        self, X: ArrayLike, y: ArrayLike | None = None, *, checkpoint: str | os.PathLike[str] | None = None
    ) -> Self:
        """Learn the model from pairs of observations and codes, or from observations alone, and calibrate the layers.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like or sparse array of shape (n_samples, n_components) or (n_samples,), default=None
            Their codes, one a row. None, which takes a design matrix, learns sparsity, slab and noise by EM.
        checkpoint : str or path-like, default=None
            A file in which to keep the model as soon as it is learned, and all in the end. The same call goes on from
            it, and ends with the same bits as if it had never been stopped; after the end it returns at once. Remove
            the file to start anew.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._check_parameters()
        if y is None and self.design_matrix is None:
            raise ValueError(
                "SpikeSlabNet requires y to be passed, but the target y is None; pass codes, or give design_matrix to "
                "learn from observations alone."
            )
        alone = y is None
        pairs = (self._validate_alone(X),) if alone else self._validate_pairs(X, y)
        observations, codes = pairs if len(pairs) == 2 else (*pairs, np.zeros((0, self.n_components_)))
        memory = Checkpoint(checkpoint, self, pairs)
        if memory.finished:
            return memory.restored()
        random = np.random.default_rng(memory.seed)
        with memory, watched(self, pairs, 2) as watch, self._precision():
            watch.begin("model")
            learner = memory.recall(self._new_learner(root_mean_square(observations), codes), random)
            if not memory.rows:
                if alone:
                    learner.learn_from_observations(observations / learner.units.observation, random)
                else:
                    learner.take_in(observations / learner.units.observation, codes / learner.units.code)
                    learner.learn_from_pairs()
                memory.after("model", learner, random)
            watch.end()
            watch.begin("layers")
            learner.calibrate(self.calibration_steps, random)
            watch.end()
            self._learner = learner
            self.uncalibrate()
            self._finish(stacklevel=5)
            memory.finish()
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
        self._learner = self._learned(self._taken_in(X, y))
        self._finish(stacklevel=4)
        return self

    def _taken_in(self, X: ArrayLike, y: ArrayLike) -> SpikeSlabLearner:
        """A learner whose sums have more pairs in them, and that has learned nothing of these yet."""
        self._check_parameters()
        first = not hasattr(self, "_learner")
        observations, codes = self._validate_pairs(X, y, reset=first)
        learner = self._new_learner(root_mean_square(observations), codes) if first else copy(self._learner)
        learner.take_in(observations / learner.units.observation, codes / learner.units.code)
        return learner

    def _learned(self, learner: SpikeSlabLearner) -> SpikeSlabLearner:
        """The learner, after it has learned from its sums."""
        with self._precision():
            learner.learn_from_pairs()
        return learner

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.design_matrix is None
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "design_matrix_") or self._all_given()

    def _own_dist(self, Y: Float[np.ndarray, "n K"]) -> SpikeSlab:
        observation_unit, code_unit = self._learner.units
        chunk = self._rows_together()
        with self._precision():
            outputs = [self._learner.output(Y[i : i + chunk] / observation_unit) for i in range(0, len(Y), chunk)]
        prob_active, slab_mean, slab_var = (np.concatenate(parts) for parts in zip(*outputs, strict=True))
        parts = prob_active, slab_mean * code_unit, slab_var * code_unit**2
        return SpikeSlab(*(part.astype(self.dtype_) for part in parts))

    @property
    def _n_features_out(self) -> int:
        if not hasattr(self, "n_components_") and self._all_given():
            return int(np.asarray(self.design_matrix).shape[-1])
        return self.n_components_

    def _rows_together(self) -> int:
        return self._learner.chunk

    def _all_given(self) -> bool:
        return all(getattr(self, name) is not None for name in _GIVEN)

    def _ready(self, X: ArrayLike) -> Self:
        """The estimator itself if it is fitted; else, if all is given, a copy that has taken it for learned."""
        if hasattr(self, "design_matrix_"):
            return self
        if not self._all_given():
            missing = [name for name in _GIVEN if getattr(self, name) is None]
            raise NotFittedError(
                "This SpikeSlabNet instance is not fitted yet. Call 'fit', or, to predict from what is given alone, "
                f"give {', '.join(missing)}."
            )
        model = copy(self)
        model._check_parameters()
        observations = model._meet_alone(X)
        size = root_mean_square(observations.some_rows(model.dtype_))
        learner = model._new_learner(size, np.zeros((0, model.n_components_)))
        with model._precision():
            learner.assume()
        model._learner = learner
        model._finish(stacklevel=3)
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
        units = self._choose_units(size, B, matrix)
        assumed = Assumed(
            None if matrix is None else matrix * (units.code / units.observation),
            self.prob_active,
            None if self.noise_std is None else (self.noise_std / units.observation) ** 2,
            None if self.slab_var is None else self.slab_var / units.code**2,
        )
        return SpikeSlabLearner(units, self.n_layers, self.mode, assumed, self.dtype_)

    def _choose_units(self, observation: float, B: Any, matrix: Any) -> Units:
        """Powers of two, so that no number is rounded and histograms of any first chunk have the same bins."""
        if len(B):
            code = root_mean_square(B[B != 0])
        elif self.slab_var is not None:
            code = float(np.sqrt(self.slab_var))
        else:
            code = observation / root_mean_square(matrix)
        return Units(*(float(2.0 ** np.round(np.log2(part))) for part in (observation, code)))

    def _finish(self, stacklevel: int) -> None:
        """Show what was learned in the units of the data."""
        learner, model = self._learner, self._learner.learned
        gain = learner.units.observation / learner.units.code
        self.design_matrix_ = (model.design_matrix * gain).astype(self.dtype_)
        std = np.zeros(self.n_components_)
        if model.spread is not None:
            std = np.sqrt(model.noise_var * np.diag(model.spread)) * gain
        self.design_matrix_std_ = std.astype(self.dtype_)
        self.prob_active_ = float(model.prob_active)
        self.noise_std_ = float(np.sqrt(model.noise_var)) * learner.units.observation
        self.slab_weight_ = model.slab.weight
        self.slab_mean_, self.slab_var_ = model.slab.mean * learner.units.code, model.slab.var * learner.units.code**2
        self.structured_ = learner.base is not None
        self.history_ = {"objective": learner.objectives}
        self.diagnostics_ = {"skipped": learner.skipped}
        n_steps = len(learner.objectives)
        if learner.skipped > 0.1 * n_steps:
            warnings.warn(
                f"{learner.skipped} of {n_steps} steps of calibration had no usable gradient (see diagnostics_): "
                "the model does not suit the layers. Try mode='fast', fewer layers, or calibration_steps=0.",
                NumericalWarning,
                stacklevel=stacklevel,
            )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("mode", self.mode, _MODES)
        if self.prob_active is not None:
            check_real("prob_active", self.prob_active, minimum=0, below=1, strict=True)
        if self.slab_var is not None:
            check_real("slab_var", self.slab_var, minimum=0, strict=True)
        if self.noise_std is not None:
            check_real("noise_std", self.noise_std, minimum=0, below=1e150)
        check_integer("calibration_steps", self.calibration_steps, minimum=0)
        check_verbose(self.verbose)

    def _check_shrinkage(self) -> None:
        """There is no threshold."""
