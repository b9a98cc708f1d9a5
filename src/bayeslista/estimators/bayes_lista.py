"""BayesLISTA as an estimator."""

import warnings
from typing import Literal, NamedTuple, Self, overload

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from bayeslista.distributions import SpikeSlab
from bayeslista.estimators._base import (
    BaseSparseCoder,
    NumericalWarning,
    advance,
    in_blocks,
    progress_bar,
    random_seed,
    root_mean_square,
)
from bayeslista.estimators._parameters import (
    check_boolean,
    check_choice,
    check_integer,
    check_real,
    check_verbose,
)
from bayeslista.inference import adf
from bayeslista.inference.adf import Info, Pair
from bayeslista.moments import slab_moments, soft_threshold_moments
from bayeslista.network import Weights, propagate
from bayeslista.posterior import Belief, MatrixPrior, initial_belief
from bayeslista.proximal import ista_weights

_INFERENCES = ("adf",)
_PRIORS = ("scaled", "printed")
_EVIDENCES = ("spike_slab", "gaussian")
_PRINTED_VARIANCE = 6.0 / 5.0
_PATIENCE = 5
_TOLERATED = 1e-4


class _Units(NamedTuple):
    """What observations and codes are divided by before learning."""

    observation: float
    code: float


class BayesLISTA(BaseSparseCoder):
    r"""Sparse coding by a Bayesian network: every weight is a distribution, and so is every prediction [1]_.

    The network is that of LISTA, :math:`\hat\beta \leftarrow h_\lambda(W y + S \hat\beta)` for `n_layers` layers,
    with an independent Gaussian for every entry of ``W`` and ``S``. Means and variances are propagated through the
    layers in closed form, and what comes out is, for every coefficient, a spike at zero and a Gaussian slab.

    Learning is assumed density filtering over the pairs, pass after pass, with the priors of the weights refined by
    expectation propagation after each pass.

    Parameters
    ----------
    n_layers : int, default=10
        How many soft-thresholdings, the first included.
    design_matrix : array-like of shape (n_observed, n_components), default=None
        ``X`` in ``y = X β + noise``, for the start at ISTA's weights. None estimates it from the pairs.
    shrinkage : float, default=0.1
        The threshold λ of every layer, in the units of the codes.
    inference : {"adf"}, default="adf"
        How the belief meets the data.
    prior : {"scaled", "printed"}, default="scaled"
        "scaled" centres the priors at ISTA's weights, with variances :math:`1/(L D)` for ``S`` and
        :math:`E\beta_d^2 / (L\,E\|y\|^2)` for ``W``, so that a prediction's variance stays bounded however deep or
        wide the network is, and measures codes in units of the root mean square of their nonzero entries. "printed" is
        the paper's: zero mean, variance 1.2, data as they are. In deep or wide networks the printed prior lets the
        variance grow by a factor of about D in every layer, and in single precision overflow: use it to reproduce.
    evidence : {"spike_slab", "gaussian"}, default="spike_slab"
        What scores a pair: the paper's mixture of a Student's t spike and a Gaussian slab, or a Gaussian with the
        same mean and variance.
    learn_noise : bool, default=False
        Whether the Gamma of the noise precision is learned, or held at Gam(6, 6) as in the paper's curves. Learned
        with ``evidence="spike_slab"`` it degenerates, because exact zeros let the spike's precision grow without bound.
    max_iter : int, default=100
        Passes over the pairs at most.
    tol : float, default=1e-4
        Learning stops when the running NMSE has not fallen by this fraction in five passes. 0 makes all passes.
    dtype : {"auto", "float32", "float64"}, default="auto"
        The floating type of the computation. "auto" is float32 where the observations are float32 and the codes
        float32 or integers, else float64.
    random_state : int, RandomState instance or None, default=None
        Decides the order of the pairs in each pass. The same integer gives the same bits.
    verbose : int, default=0
        1 shows a progress bar with the running NMSE on the standard error.

    Attributes
    ----------
    design_matrix_ : ndarray of shape (n_observed, n_components)
        The design matrix in use.
    encoder_, encoder_std_ : ndarray of shape (n_components, n_observed)
        Mean and standard deviation of ``W``.
    recurrent_, recurrent_std_ : ndarray of shape (n_components, n_components)
        Mean and standard deviation of ``S``.
    shrinkage_ : ndarray of shape (n_layers,)
        The threshold of each layer.
    noise_std_ : float
        Standard deviation of the codes about the network's output.
    belief_ : Belief
        The whole belief, in the units of learning.
    n_iter_ : int
        Passes made.
    history_ : dict of str to ndarray of shape (n_iter_,)
        For each pass ``"n_pairs"``, their ``"nmse"``, each predicted just before it was learned from, the
        ``"noise_std"``, and the counts of `diagnostics_`.
    diagnostics_ : dict of str to int
        How many updates of weights were ``"clipped"`` by the trust region or ``"rejected"`` because a variance would
        have turned non-positive or a number not finite, how many noise updates and prior factors were rejected, how
        many pairs had a variance so large that it was ``"saturated"``, and how many sweeps over the priors were damped.
        A :class:`NumericalWarning` tells of it where more than one in 10,000 updates of a kind are concerned.
    dtype_ : numpy.dtype
        The floating type of the fit and its predictions.
    n_components_ : int
        Coefficients per code.
    n_features_in_ : int
        Observed values per sample.

    See Also
    --------
    LISTA : The same network with weights that are numbers.

    Notes
    -----
    Filtering the same pairs again counts them again: after many passes the variances of the weights are far smaller
    than honest ones, and the noise, held, is what is left of the predicted spread.

    No step moves a mean by more than five standard deviations or makes a variance more than four times larger; see
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
        shrinkage: float = 0.1,
        inference: str = "adf",
        prior: str = "scaled",
        evidence: str = "spike_slab",
        learn_noise: bool = False,
        max_iter: int = 100,
        tol: float = 1e-4,
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
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn the belief about the weights from pairs of observations and codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        y : array-like of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._check_parameters()
        observations, codes = self._validate_pairs(X, y)
        random = np.random.default_rng(random_seed(self.random_state))
        self._start(observations, codes)
        with self._precision(), progress_bar(self.max_iter, type(self).__name__, self.verbose) as bar:
            pairs = self._in_units(observations, codes)
            belief = self.belief_
            for _ in range(self.max_iter):
                order = random.permutation(len(codes))
                belief, info = self._filter(belief, Pair(pairs.observation[order], pairs.code[order]))
                belief, refinement = adf.refine_priors(belief)
                nmse = self._record(belief, jax.tree.map(jnp.add, info, refinement), len(codes))
                advance(bar, nmse)
                if self._has_converged():
                    break
        return self._finish(belief)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Take more pairs into the belief, once, in the order given.

        The first call starts the belief as `fit` would with these pairs; later ones, and calls after `fit`, go on from
        the belief there is. The priors are not refined, so a stream gives the same belief however it is cut after the
        first call.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row; a single pair is one row.
        y : array-like of shape (n_samples, n_components) or (n_samples,)
            Their codes, one a row.

        Returns
        -------
        Self
            The fitted estimator.
        """
        self._check_parameters()
        first = not hasattr(self, "belief_")
        observations, codes = self._validate_pairs(X, y, reset=first)
        if first:
            self._start(observations, codes)
        with self._precision():
            belief, info = self._filter(self.belief_, self._in_units(observations, codes))
            self._record(belief, info, len(codes))
        return self._finish(belief)

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    def predict(self, X: ArrayLike, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the codes of observations, and how uncertain they are.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        return_std : bool, default=False
            Whether to return the standard deviations, too.

        Returns
        -------
        mean : ndarray of shape (n_samples, n_components) or (n_samples,)
            Mean of `predict_dist`, one-dimensional if the codes of `fit` were.
        std : ndarray of the same shape
            Its standard deviation, if `return_std`.
        """
        distribution = self.predict_dist(X)
        return (distribution.mean(), distribution.std()) if return_std else distribution.mean()

    def predict_dist(self, X: ArrayLike, include_noise: bool = True) -> SpikeSlab:
        """Predict a distribution for every coefficient.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_observed)
            Observations, one a row.
        include_noise : bool, default=True
            Whether the noise of the codes about the network's output widens the slab. Without it the distribution is
            the network's own ω, m and v, as in the paper.

        Returns
        -------
        SpikeSlab
            Of shape (n_samples, n_components), or (n_samples,) if the codes of `fit` were one-dimensional.
        """
        return self._distribution(self._validate_observations(X), include_noise, self._code_shape)

    def _predict_codes(self, Y: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n D"]:
        return self._distribution(Y, True, (self.n_components_,)).mean()

    def _distribution(self, Y: Float[np.ndarray, "n K"], include_noise: bool, code_shape: tuple[int, ...]) -> SpikeSlab:
        observation_unit, code_unit = self._units
        shrinkage = self.shrinkage_ / code_unit
        with self._precision():
            prob_active, slab_mean, slab_var = in_blocks(
                lambda rows: _predict(self.belief_.weights, rows, shrinkage), Y / observation_unit
            )
        noise_var = self.noise_std_**2 if include_noise else 0.0
        shape = (len(Y), *code_shape)
        return SpikeSlab(
            prob_active.reshape(shape),
            (slab_mean * code_unit).reshape(shape),
            (slab_var * code_unit**2 + np.asarray(noise_var, self.dtype_)).reshape(shape),
        )

    def _start(self, observations: Float[np.ndarray, "n K"], codes: Float[np.ndarray, "n D"]) -> None:
        """Set the belief before any data, and the units that it is learned in."""
        design_matrix = self._resolve_design_matrix(observations, codes)
        active = codes[codes != 0]
        scaled = self.prior == "scaled"
        self._units = _Units(root_mean_square(observations), root_mean_square(active)) if scaled else _Units(1.0, 1.0)
        start = ista_weights(design_matrix * (self._units.code / self._units.observation))
        encoder_var = recurrent_var = _PRINTED_VARIANCE
        if scaled:
            share = (active.size or codes.size) / codes.size
            power = observations.shape[1] if observations.any() else 1.0
            encoder_var, recurrent_var = share / power / self.n_layers, 1 / (self.n_layers * codes.shape[1])
        with self._precision():
            means = jnp.asarray(start.encoder), jnp.asarray(start.recurrent)
            encoder_prior, recurrent_prior = (
                MatrixPrior(mean if scaled else jnp.zeros_like(mean), jnp.asarray(var, self.dtype_))
                for mean, var in zip(means, (encoder_var, recurrent_var), strict=True)
            )
            belief = initial_belief(*means, encoder_prior, recurrent_prior)
        self.belief_: Belief = jax.tree.map(np.asarray, belief)
        self.design_matrix_ = design_matrix
        self.shrinkage_ = np.full(self.n_layers, self.shrinkage, self.dtype_)
        self._passes: list[dict[str, float]] = []

    def _in_units(self, observations: Float[np.ndarray, "n K"], codes: Float[np.ndarray, "n D"]) -> Pair:
        return Pair(jnp.asarray(observations / self._units.observation), jnp.asarray(codes / self._units.code))

    def _filter(self, belief: Belief, pairs: Pair) -> tuple[Belief, Info]:
        return adf.filter_pairs(
            belief, pairs, self.shrinkage_ / self._units.code, form=self.evidence, learn_noise=self.learn_noise
        )

    def _record(self, belief: Belief, info: Info, n_pairs: int) -> float:
        """Note a pass in the history and return its running NMSE."""
        counts = {name: int(getattr(info, name)) for name in _COUNTS}
        nmse = float(info.relative_error) / max(int(info.n_codes), 1)
        self._passes.append({"n_pairs": n_pairs, "nmse": nmse, "noise_std": self._noise_std(belief), **counts})
        return nmse

    def _has_converged(self) -> bool:
        """Whether the running NMSE of the last passes is hardly below that of those before."""
        errors = [row["nmse"] for row in self._passes]
        if self.tol == 0 or len(errors) <= _PATIENCE:
            return False
        return min(errors[-_PATIENCE:]) >= (1 - self.tol) * min(errors[:-_PATIENCE])

    def _noise_std(self, belief: Belief) -> float:
        shape, rate = belief.noise_precision
        return float(np.sqrt(rate / (shape - 1))) * self._units.code

    def _finish(self, belief: Belief) -> Self:
        """Store the belief, in the units of the data where it is shown, and warn of what was left out."""
        self.belief_ = jax.tree.map(np.asarray, belief)
        encoder, recurrent = self.belief_.weights
        gain = self._units.code / self._units.observation
        self.encoder_, self.encoder_std_ = encoder.mean * gain, np.sqrt(encoder.var) * gain
        self.recurrent_, self.recurrent_std_ = recurrent.mean, np.sqrt(recurrent.var)
        self.noise_std_ = self._noise_std(self.belief_)
        self.n_iter_ = len(self._passes)
        self.history_ = {name: np.array([row[name] for row in self._passes]) for name in self._passes[0]}
        self.diagnostics_ = {name: int(self.history_[name].sum()) for name in _COUNTS}
        n_pairs, n_weights = sum(row["n_pairs"] for row in self._passes), encoder.mean.size + recurrent.mean.size
        attempts = {
            "clipped": n_pairs * n_weights,
            "rejected": n_pairs * n_weights,
            "noise_rejected": n_pairs * self.n_components_,
            "prior_rejected": self.n_iter_ * n_weights,
            "saturated": n_pairs,
        }
        trouble = {name: n for name, n in attempts.items() if self.diagnostics_[name] > _TOLERATED * n}
        if trouble:
            listed = ", ".join(
                f"{self.diagnostics_[name]} of {n} {name.replace('_', ' ')}" for name, n in trouble.items()
            )
            warnings.warn(
                f"More than one in {1 / _TOLERATED:,.0f} updates were not usable as they were ({listed}; see "
                "diagnostics_): scales, depth or prior do not suit the data. Use prior='scaled', fewer layers, or a "
                "shrinkage that fits the codes.",
                NumericalWarning,
                stacklevel=3,
            )
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("inference", self.inference, _INFERENCES)
        check_choice("prior", self.prior, _PRIORS)
        check_choice("evidence", self.evidence, _EVIDENCES)
        check_boolean("learn_noise", self.learn_noise)
        check_integer("max_iter", self.max_iter, minimum=1)
        check_real("tol", self.tol, minimum=0)
        check_verbose(self.verbose)


_COUNTS = ("clipped", "rejected", "noise_rejected", "prior_rejected", "saturated", "prior_damped")


@jax.jit
def _predict(
    weights: Weights, observations: Float[Array, "n K"], shrinkage: Float[Array, " L"]
) -> tuple[Array, Array, Array]:
    """Probability of being active, slab mean and slab variance, each of shape (n, D)."""
    mean, var = propagate(weights, observations, shrinkage)
    slab = slab_moments(mean, var, shrinkage[-1])
    return soft_threshold_moments(mean, var, shrinkage[-1]).prob_active, slab.mean, slab.var
