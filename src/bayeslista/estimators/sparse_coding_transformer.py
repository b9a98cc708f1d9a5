"""Codes over a given dictionary, as scikit-learn's SparseCoder has them, with their uncertainty."""

from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_array
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import validate_data

from bayeslista.distributions import SpikeSlab
from bayeslista.estimators._display import BriefMixin
from bayeslista.estimators.base import BaseSparseCoder
from bayeslista.estimators.distributional import DistributionalSparseCoder
from bayeslista.estimators.ista import ProximalCoder
from bayeslista.estimators.saving import CodePrior, SavingMixin
from bayeslista.estimators.spike_slab_net import SpikeSlabNet
from bayeslista.estimators.validation import COUNT, NOT_NEGATIVE, POSITIVE, naming, random_seed
from bayeslista.spike_slab.empirical_bayes import SlabMixture, simulate_pairs

_FLOATS = (np.float64, np.float32)
_PRIOR = ("prob_active", "slab_var", "noise_std")

_Dictionary = Float[NDArray[Any], "D K"]


class SparseCodingTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SavingMixin, BriefMixin):
    """Sparse codes of data over a given dictionary, each with its uncertainty.

    It takes the place of scikit-learn's :class:`~sklearn.decomposition.SparseCoder`: atoms are the rows of
    `dictionary`, as `DictionaryLearning` leaves them in ``components_``. `fit` needs no codes. It learns from
    observations alone how sparse codes are, how large, and how much noise there is, as `SpikeSlabNet` does;
    estimators that learn from pairs are then trained on pairs simulated from that model.

    Parameters
    ----------
    dictionary : array-like of shape (n_components, n_features)
        The atoms, one a row, of any norms.
    estimator : ISTA, FISTA, LISTA, BayesLISTA or SpikeSlabNet, default=None
        What finds the codes; a copy of it is fitted, with the dictionary as its design matrix. None is
        ``SpikeSlabNet()``.
    prob_active : float, default=None
        Probability that a coefficient is not zero. None leaves it to the estimator, or learns it. It is not used by
        ISTA and FISTA, which have no prior, nor by LISTA and BayesLISTA where `fit` gets codes; nor are the next two.
    slab_var : float, default=None
        Variance of the coefficients that are not zero, about zero. None leaves it to the estimator, or learns the slab.
    noise_std : float, default=None
        Standard deviation of the noise. None leaves it to the estimator, or learns it.
    n_simulated : int, default=1000
        Pairs to simulate, for LISTA and BayesLISTA.
    random_state : int, RandomState instance or None, default=None
        Decides the simulated pairs, and what the estimator draws unless it has a `random_state` of its own. The same
        integer gives the same bits.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        The dictionary.
    estimator_ : ISTA, FISTA, LISTA, BayesLISTA or SpikeSlabNet
        The fitted estimator.
    prior_ : CodePrior or None
        The prior of codes and noise: ``prob_active``, ``slab_weight``, ``slab_mean``, ``slab_var`` and
        ``noise_std``. None where the estimator needs none.
    n_components_ : int
        Atoms.
    n_features_in_ : int
        Values per sample.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, where `X` had any.

    See Also
    --------
    SpikeSlabNet : The estimator by default.

    Notes
    -----
    Codes of `BayesLISTA` and `SpikeSlabNet` are posterior means: often small, but seldom exactly zero.
    ``transform_dist(X).prob_active`` is the probability of being active.

    Examples
    --------
    >>> from bayeslista import SparseCodingTransformer, SpikeSlabNet
    >>> from bayeslista.datasets import make_sparse_codes
    >>> data = make_sparse_codes(n_train=200, n_test=5, n_observed=15, n_components=20, random_state=0)
    >>> atoms = data.design_matrix.T
    >>> network = SpikeSlabNet(mode="fast", training="none")
    >>> coder = SparseCodingTransformer(atoms, estimator=network, random_state=0).fit(data.Y_train)
    >>> codes, std = coder.transform(data.Y_test), coder.transform_std(data.Y_test)
    >>> codes.shape, std.shape, coder.inverse_transform(codes).shape
    ((5, 20), (5, 20), (5, 15))
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "prob_active": [Interval(Real, 0, 1, closed="neither"), None],
        "slab_var": [POSITIVE, None],
        "noise_std": [NOT_NEGATIVE, None],
        "n_simulated": [COUNT],
        "random_state": ["random_state", np.random.Generator],
    }

    def __init__(
        self,
        dictionary: ArrayLike,
        *,
        estimator: BaseSparseCoder | None = None,
        prob_active: float | None = None,
        slab_var: float | None = None,
        noise_std: float | None = None,
        n_simulated: int = 1000,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.dictionary = dictionary
        self.estimator = estimator
        self.prob_active = prob_active
        self.slab_var = slab_var
        self.noise_std = noise_std
        self.n_simulated = n_simulated
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn the prior of codes and noise from observations, or from pairs of observations and codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Observations, one a row.
        y : array-like of shape (n_samples, n_components), default=None
            Their codes, if there are any. A one-dimensional `y`, such as the labels that a pipeline passes to all of
            its steps, is ignored.

        Returns
        -------
        Self
            The fitted transformer.
        """
        self._validate_params()
        with naming("X"):
            observations = validate_data(self, X, dtype=_FLOATS)
        dictionary = self._checked_dictionary(observations)
        estimator = self._new_estimator(dictionary)
        codes = _checked_codes(y, (len(observations), len(dictionary)))
        random = np.random.default_rng(random_seed(self.random_state))
        seed = int(random.integers(2**31))
        if "random_state" in estimator.get_params() and estimator.get_params()["random_state"] is None:
            estimator.set_params(random_state=seed)
        prior = None
        if codes is None and isinstance(estimator, ProximalCoder):
            codes = np.zeros((len(observations), len(dictionary)), observations.dtype)  # not used
        elif codes is None and not isinstance(estimator, SpikeSlabNet):
            prior = self._learned_prior(observations, dictionary, seed)
            slab = SlabMixture(prior.slab_weight, prior.slab_mean, prior.slab_var)
            model = dictionary.T, prior.noise_std**2, prior.prob_active, slab
            simulated = simulate_pairs(*model, int(self.n_simulated), random)
            observations, codes = (part.astype(observations.dtype) for part in simulated)
        self.estimator_ = estimator.fit(observations, codes)
        self.prior_ = _prior_of(self.estimator_) if isinstance(self.estimator_, SpikeSlabNet) else prior
        self.components_ = dictionary.astype(observations.dtype)
        self.n_components_ = len(dictionary)
        return self

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Codes of observations.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Observations, one a row.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            Their codes; of estimators that predict distributions, the means.
        """
        estimator, observations = self._ready(X)
        return estimator.predict(observations)

    def transform_std(self, X: ArrayLike) -> NDArray[Any]:
        """Standard deviations of the codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Observations, one a row.

        Returns
        -------
        ndarray of shape (n_samples, n_components)
            How uncertain every coefficient is.
        """
        return self.transform_dist(X).std()

    def transform_dist(self, X: ArrayLike) -> SpikeSlab:
        """A distribution for every coefficient.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Observations, one a row.

        Returns
        -------
        SpikeSlab
            Of shape (n_samples, n_components).
        """
        estimator, observations = self._ready(X)
        if not isinstance(estimator, DistributionalSparseCoder):
            raise ValueError(
                f"{type(estimator).__name__} finds codes without their uncertainty; pass estimator=SpikeSlabNet() or "
                "BayesLISTA()."
            )
        return estimator.predict_dist(observations)

    def inverse_transform(self, X: ArrayLike) -> NDArray[Any]:
        """Put observations together from their codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            Codes, one a row.

        Returns
        -------
        ndarray of shape (n_samples, n_features)
            The codes times the dictionary.
        """
        with naming("X"):
            codes = check_array(X, dtype=_FLOATS, input_name="X")
        dictionary = self.components_ if hasattr(self, "components_") else self._checked_dictionary()
        if codes.shape[1] != len(dictionary):
            raise ValueError(
                f"X has shape {codes.shape}, expected (n_samples, {len(dictionary)}); pass codes, which have one "
                "coefficient for every atom of the dictionary."
            )
        return codes @ dictionary.astype(codes.dtype)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the columns of `transform`.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Not used; scikit-learn passes it.

        Returns
        -------
        ndarray of object of shape (n_components,)
            Those that the codes had, where `fit` was given a frame of them; else ``sparsecodingtransformer0`` and so
            on.
        """
        names = getattr(getattr(self, "estimator_", None), "component_names_", None)
        return super().get_feature_names_out(input_features) if names is None else names.copy()

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimator_") or not self._missing()

    @property
    def _n_features_out(self) -> int:
        return self.n_components_ if hasattr(self, "estimator_") else len(self._checked_dictionary())

    def _missing(self) -> list[str]:
        """Parameters that a prediction without a fit lacks."""
        if self.estimator is not None and not isinstance(self.estimator, SpikeSlabNet):
            return ["estimator=SpikeSlabNet()", *_PRIOR]
        return [name for name in _PRIOR if getattr(self, name) is None and getattr(self.estimator, name, None) is None]

    def _ready(self, X: ArrayLike) -> tuple[BaseSparseCoder, NDArray[Any]]:
        """The estimator that finds the codes, and observations that suit it."""
        if hasattr(self, "estimator_"):
            with naming("X"):
                return self.estimator_, validate_data(self, X, reset=False, dtype=_FLOATS)
        missing = self._missing()
        if missing:
            raise NotFittedError(
                "This SparseCodingTransformer instance is not fitted yet. Call 'fit', for which observations are "
                f"enough, or, to find codes by what is given alone, give {', '.join(missing)}."
            )
        with naming("X"):
            observations = check_array(X, dtype=_FLOATS, input_name="X", estimator=self)
        return self._new_estimator(self._checked_dictionary(observations)), observations

    def _new_estimator(self, dictionary: _Dictionary) -> BaseSparseCoder:
        """A copy of the estimator with the dictionary, and the prior if it takes one."""
        if self.estimator is not None and not isinstance(self.estimator, BaseSparseCoder):
            raise ValueError(
                f"estimator must be one of bayeslista's estimators, got {self.estimator!r}; pass for example "
                "SpikeSlabNet()."
            )
        estimator = SpikeSlabNet() if self.estimator is None else clone(self.estimator)
        if estimator.design_matrix is not None:
            raise ValueError(
                "estimator has a design_matrix, which would take the place of the dictionary; leave it out of "
                f"{type(estimator).__name__}(…)."
            )
        estimator.set_params(design_matrix=dictionary.T)
        if isinstance(estimator, SpikeSlabNet):
            estimator.set_params(**self._given_prior())
        return estimator

    def _given_prior(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in _PRIOR if getattr(self, name) is not None}

    def _learned_prior(self, observations: NDArray[Any], dictionary: _Dictionary, seed: int) -> CodePrior:
        """The prior of codes and noise learned from observations, except for what is given."""
        network = SpikeSlabNet(mode="fast", training="none", design_matrix=dictionary.T, random_state=seed)
        return _prior_of(network.set_params(**self._given_prior()).fit(observations))

    def _checked_dictionary(self, observations: NDArray[Any] | None = None) -> _Dictionary:
        try:
            dictionary = check_array(self.dictionary, dtype=_FLOATS, input_name="dictionary")
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"dictionary: {error} Pass a real array of shape (n_components, n_features), one atom a row."
            ) from error
        if observations is not None and dictionary.shape[1] != observations.shape[1]:
            columns = len(dictionary) == observations.shape[1]
            remedy = "pass its transpose, dictionary.T" if columns else "pass one that fits the data"
            raise ValueError(
                f"dictionary has shape {dictionary.shape} and X has {observations.shape[1]} features; atoms are the "
                f"rows of the dictionary, of shape (n_components, n_features): {remedy}."
            )
        return dictionary


def _checked_codes(y: ArrayLike | None, expected: tuple[int, int]) -> Any:
    """Codes to learn from; None where there are none, or where `y` is for a later step of a pipeline."""
    shape = np.asarray(y).shape
    if len(shape) < 2:
        return None
    if shape != expected:
        raise ValueError(
            f"y has shape {shape}, and codes would have (n_samples, n_components) = {expected}; pass these, or "
            "None to learn from observations alone. Where y is for a later step of a pipeline, fit this one before, "
            "and put it there as sklearn.frozen.FrozenEstimator(transformer)."
        )
    return y


def _prior_of(network: SpikeSlabNet) -> CodePrior:
    slab = network.slab_weight_, network.slab_mean_, network.slab_var_
    return CodePrior(network.prob_active_, *slab, network.noise_std_)
