"""What SpikeSlabNet learns and how it predicts, in units of its own."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from bayeslista.numerics.batching import in_blocks
from bayeslista.numerics.compilation import fast_compiled
from bayeslista.numerics.epochs import Output, Units
from bayeslista.spike_slab.calibration import (
    cosine_rates,
    fit_head,
    fit_mixture,
    loss_of_posterior,
    train_scalars,
)
from bayeslista.spike_slab.config import BUDGET, ESTIMATION
from bayeslista.spike_slab.denoiser import Denoised, slab_prior
from bayeslista.spike_slab.empirical_bayes import (
    SlabMixture,
    Statistics,
    add_statistics,
    fit_slab,
    gather_statistics,
    matrix_posterior,
    mean_prob_active,
    noise_given_matrix,
    observed_slab,
    simulate_pairs,
    whitened_statistics,
)
from bayeslista.spike_slab.exact import Budget, ExactPosterior, sample_posterior, slab_odds
from bayeslista.spike_slab.hyperparameters import given_slab, single_slab
from bayeslista.spike_slab.imputation import impute
from bayeslista.spike_slab.model import NetworkState, SpikeSlabProblem, make_problem
from bayeslista.spike_slab.network import (
    NetworkScalars,
    default_scalars,
    early_layers,
    last_layers,
    mixed_answer,
    posterior_variance_ratio,
    refinement_layers,
    run_network,
    vamp_state,
)
from bayeslista.spike_slab.prior_choice import CorrelatedBase, MixtureBase, World, answer, choose_prior
from bayeslista.spike_slab.scale_mixture_prior import GaussianParts
from bayeslista.spike_slab.sensor_noise import (
    Whitening,
    diagonal_whitening,
    sensor_variances,
    whitening_of,
    worth_whitening,
)


class Assumed(NamedTuple):
    """What the user gave, in the units of the learner; None is to be learned.

    In exact mode the probability may be one a coefficient, the noise one a sensor, and the slab, with its weights, of
    shape (C,) or (C, D).
    """

    design_matrix: Any
    prob_active: Any
    noise_var: Any
    slab_var: Any
    slab_weight: Any = None


class Learned(NamedTuple):
    """The model of the data: matrix, noise, sparsity and slab."""

    design_matrix: NDArray[Any]
    design_covariance: NDArray[Any] | None
    noise_var: Any  # a number, or in exact mode one a sensor
    prob_active: Any  # a number, or in exact mode one a coefficient
    slab: SlabMixture
    drawn: SlabMixture  # what codes are simulated from


@dataclass
class SpikeSlabLearner:
    """A model of the data, and layers that invert it."""

    units: Units
    n_layers: int
    mode: str
    assumed: Assumed
    dtype: np.dtype
    whitening: Whitening | None = None  # after which noise is white; matrix and noise of the model are those after it
    folds: list[Statistics] = field(default_factory=list)
    n_seen: int = 0
    kept: tuple[NDArray[Any], NDArray[Any]] | None = None
    learned: Learned = field(init=False)
    prior: str = "auto"  # or the name of one
    base: CorrelatedBase | MixtureBase | None = None  # answers in place of the layers
    prior_scores: dict[str, float] = field(default_factory=dict)  # mean relative errors of the priors that were tried
    scalars: NetworkScalars = field(init=False)
    largest_variance_ratio: float = np.inf
    losses: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    skipped: int = 0
    seed: int = 0  # of the chains

    def __post_init__(self) -> None:
        self.scalars = self._default_scalars()

    def update(self, Y: NDArray[Any], B: NDArray[Any]) -> None:
        """Add pairs to the sums; every fifth pair of the stream is of the same fold."""
        Y = impute(Y, B, self.assumed.design_matrix, np.random.default_rng(self.n_seen), self.folds)
        fold = (self.n_seen + np.arange(len(B))) % ESTIMATION.folds
        new = [gather_statistics(Y[fold == i], B[fold == i]) for i in range(ESTIMATION.folds)]
        self.folds = [add_statistics(*both) for both in zip(self.folds, new, strict=True)] if self.folds else new
        self.n_seen += len(B)
        before = (Y[:0], B[:0]) if self.kept is None else self.kept
        room = max(ESTIMATION.kept_numbers // (Y.shape[1] + B.shape[1]), ESTIMATION.kept_pairs) - len(before[0])
        room = max(min(room, ESTIMATION.most_kept_pairs - len(before[0])), 0)
        self.kept = np.concatenate([before[0], Y[:room]]), np.concatenate([before[1], B[:room]])

    def learn_from_pairs(self) -> None:
        """Everything but the scalars of the layers, from the sums."""
        sums = add_statistics(*self.folds)
        if self.assumed.noise_var is None:
            self.whitening = self._learned_whitening(sums)
        self.learned = self._model(whitened_statistics(sums, self.whitening))
        if self.mode != "exact":
            self._prepare()
            self._learn_variance_ratio()
        self._choose_prior()

    def learn_from_observations(self, Y: NDArray[Any], random: np.random.Generator) -> None:
        """Sparsity, slab and noise by draws of them, along with the codes."""
        from bayeslista.spike_slab.hyperparameter_draws import (
            draw_hyperparameters,  # numba takes half a second to import
        )

        X, Y = self._given_matrix(), np.asarray(Y, np.float64)
        if self.mixes_sensors and np.isnan(Y).any():
            raise ValueError(
                "fit(X) without codes does not take missing values together with correlated noise. Pass codes, a "
                "noise_std, or rows of X without NaN."
            )
        Y = self.received(Y)
        found = draw_hyperparameters(X, Y, self.assumed[1:4], random)
        slab = found.slab
        if found.sensor_std is not None:
            self.whitening = diagonal_whitening(found.sensor_std)
            X = self._given_matrix()
        if self.mode == "exact":
            self.learned = Learned(X, None, found.noise_var, found.prob_active, slab, slab)
            return
        self._assume(X, found.prob_active, found.noise_var, slab)
        self._learn_variance_ratio()

    def assume(self) -> None:
        """Take all from the user: nothing is learned."""
        if self.mode == "exact":
            _, prob_active, noise_var, slab_var, weight = self.assumed
            slab = given_slab(slab_var, weight)
            X = self._given_matrix()
            self.learned = Learned(X, None, noise_var, prob_active, slab, slab)
            return
        prob_active, noise_var, slab_var = (float(part) for part in self.assumed[1:4] if part is not None)
        self._assume(self._given_matrix(), prob_active, noise_var, single_slab(slab_var))
        self._learn_variance_ratio()

    def calibrate(self, n_steps: int, random: np.random.Generator) -> None:
        """Learn the scalars of the layers from simulated pairs, and keep them if fresh ones agree."""
        if self.mode == "exact":
            return
        n_steps, batch, n_head = self._affordable(n_steps)
        if self.base is not None or n_steps == 0:
            return
        problem, plain = self.problem, self._default_scalars(tempered=False)
        tempered = self.scalars._replace(mixture=None)

        def pairs(n: int) -> tuple[Any, Any]:
            Y, B = self._simulate(n, random)
            return self._reduce(Y), B.astype(self.dtype)

        validation_pairs = pairs(4 * batch)

        def loss(scalars: NetworkScalars, error_penalty: float) -> float:
            posterior = mixed_answer(problem, validation_pairs[0], self._layers(validation_pairs[0], scalars), scalars)
            return float(loss_of_posterior(problem, posterior, validation_pairs[1], error_penalty))

        start = min(tempered, plain, key=partial(loss, error_penalty=1.0))
        batches = [part.reshape(n_steps, batch, -1) for part in pairs(n_steps * batch)]
        # Scalars learned in single precision would not suit layers that cannot do with it.
        dtype = self.dtype if problem.float32_copy is None else np.dtype(np.float32)
        alone = _cast(problem._replace(float32_copy=None), dtype)
        observed, wanted = _cast(batches, dtype)
        rates: Any = cosine_rates(n_steps, BUDGET.learning_rate, dtype)
        trained, info = train_scalars(_cast(start, dtype), alone, observed, wanted, rates)
        self.losses, self.skipped = np.asarray(info.objective), int(info.skipped)
        Y, B = pairs(n_head)
        candidates = []
        for scalars in (start, _cast(trained, self.dtype)):
            state = self._layers(Y, scalars)
            head = fit_head(alone, *_cast((Y, B, state, scalars.head), dtype))
            candidates.append((scalars._replace(head=_cast(head, self.dtype)), state))
        errors = [loss(scalars, ESTIMATION.error_penalty) for scalars, _ in candidates]
        self.scalars, state = candidates[errors[1] < errors[0]]  # never where it is NaN
        if self.n_ep_layers and len(self.scalars.vamp_layers.offset):
            before = in_blocks(lambda rows: _before(problem, rows, self.scalars), Y, self._block())
            found = fit_mixture(alone, *_cast((Y, B, state, before, self.scalars.head), dtype))
            head, mixture = _cast(found, self.dtype)
            self.scalars = self.scalars._replace(head=head, mixture=mixture)
        self._learn_variance_ratio()

    def received(self, Y: NDArray[Any]) -> NDArray[Any]:
        """Observations after whitening, as all methods that predict take them."""
        return Y if self.whitening is None else self.whitening.apply(Y)

    @property
    def mixes_sensors(self) -> bool:
        """Whether noise is correlated, so that a missing sensor changes what others are whitened by."""
        return self.whitening is not None and self.whitening.scale() is None

    def unwhitened(self, Y: NDArray[Any]) -> NDArray[Any]:
        """Observations before whitening."""
        return Y if self.whitening is None else Y @ self.whitening.inverse.T

    def restricted(self, seen: NDArray[np.bool_]) -> "SpikeSlabLearner":
        """The same model for signals of which only some sensors have a value; the others are to be zero."""
        part, learned = copy(self), self.learned
        matrix, whitening = learned.design_matrix, self.whitening
        if whitening is None or not self.mixes_sensors:
            matrix = matrix * seen[:, None]
        else:
            rows = np.flatnonzero(seen)
            raw = (whitening.inverse @ matrix)[rows]
            inverse = whitening.inverse[rows]
            found, unit = whitening_of(inverse @ inverse.T, raw) if len(rows) else (None, 1.0)
            own = np.eye(len(rows)) if found is None else found.transform
            transform = np.zeros((len(seen), len(seen)))
            transform[: len(own), rows] = own / np.sqrt(unit)
            matrix, part.whitening = transform[:, rows] @ raw, Whitening(transform, np.linalg.pinv(transform))
        part.learned = learned._replace(design_matrix=matrix)
        if self.base is not None:
            part.base = self.base._replace(design_matrix=matrix)
        elif self.mode != "exact":
            part._prepare()
        return part

    def sample(
        self, Y: NDArray[Any], n_draws: int = 0, n_jobs: int | None = None, budget: Budget | None = None
    ) -> ExactPosterior:
        """Moments and joint draws of the exact posterior under the learned model.

        Uncertainty of a learned matrix is noise of the variance that codes of the prior would make of it.
        """
        X, covariance, noise_var, prob_active, slab, _ = self.learned
        noise = np.broadcast_to(np.asarray(noise_var, np.float64), len(X))
        if covariance is not None:
            power = float(np.mean(prob_active) * (slab.weight @ (slab.var + slab.mean**2)))
            noise = noise * (1 + power * float(np.trace(covariance)))
        prior = slab_odds(prob_active, slab.weight, slab.mean, slab.var, X.shape[1])
        rows = np.asarray(Y, np.float64)
        return sample_posterior(
            X, noise, prior, rows, self.seed, n_draws=n_draws, n_jobs=n_jobs, budget=budget or Budget()
        )

    def output(self, Y: NDArray[Any]) -> Output:
        """A spike and slab for every coefficient, of signals brought to a usual size and back."""
        size = self.usual_size(Y)
        posterior = self._run(self._reduce((Y / size).astype(self.dtype)))
        limits = np.finfo(self.dtype)
        chance = np.clip(expit(posterior.log_odds), limits.tiny, 1 - limits.eps)
        return Output(chance, np.asarray(posterior.slab_mean * size, self.dtype), _square(posterior.slab_var, size))

    def dependent_output(self, Y: NDArray[Any]) -> tuple[Output, GaussianParts | None]:
        """The same under a prior of dependent codes, and the parts of slabs that are mixtures."""
        if self.base is None:
            raise ValueError("The prior is independent: layers or the sampler answer.")
        seen = ~np.isnan(Y)
        posterior, parts = answer(self.base, np.where(seen, Y, 0.0), seen)
        limits = np.finfo(self.dtype)
        chance = np.clip(expit(posterior.log_odds), limits.tiny, 1 - limits.eps)
        return Output(chance, np.asarray(posterior.slab_mean), np.asarray(posterior.slab_var)), parts

    def usual_size(self, Y: NDArray[Any]) -> NDArray[Any]:
        """What signals are divided by, (n, 1): one, or more where they are larger than the model ever produces."""
        return np.sqrt(np.maximum(self._energy(np.asarray(Y, np.float64)) / self.usual_energy, 1.0))[:, None]

    @property
    def chunk(self) -> int:
        """How many signals are answered together."""
        if self.mode == "exact":
            return BUDGET.exact_chunk
        return BUDGET.chunk_blocks * self._block()

    @property
    def n_ep_layers(self) -> int:
        """How many layers have sites of their own variance."""
        return len(self.scalars.ep_layers.offset)

    def _model(self, sums: Statistics) -> Learned:
        assumed, (design_matrix, noise_var, design_covariance) = self.assumed, self._matrix(sums)
        slab = drawn = fit_slab(sums.histogram)
        if assumed.slab_var is not None:
            slab = drawn = given_slab(assumed.slab_var, assumed.slab_weight)
        elif sums.n_active.sum() >= ESTIMATION.enough_to_simulate_from:
            drawn = observed_slab(sums.histogram)
        prob_active = mean_prob_active(sums) if assumed.prob_active is None else assumed.prob_active
        return Learned(design_matrix, design_covariance, noise_var, prob_active, slab, drawn)

    def _matrix(self, sums: Statistics) -> tuple[NDArray[Any], Any, NDArray[Any] | None]:
        """Design matrix, noise, and the covariance P of the rows of a learned matrix over σ²."""
        assumed, design_covariance = self.assumed, None
        if assumed.design_matrix is None:
            design_matrix, design_covariance, noise_var = matrix_posterior(sums)
        else:
            design_matrix = self._given_matrix()
            noise_var = noise_given_matrix(sums, design_matrix)
        return design_matrix, noise_var if assumed.noise_var is None else assumed.noise_var, design_covariance

    def _assume(self, design_matrix: NDArray[Any], prob_active: float, noise_var: float, slab: SlabMixture) -> None:
        self.learned = Learned(np.asarray(design_matrix, np.float64), None, noise_var, prob_active, slab, slab)
        self._prepare()

    def _prepare(self) -> None:
        """What prediction needs of the model: the problem of the layers, and how large signals usually are."""
        X, design_covariance, noise_var, prob_active, slab, _ = self.learned
        prior = slab_prior(prob_active, slab.mean, slab.var, slab.weight, n_components=X.shape[1], dtype=self.dtype)
        self.rotation = None
        reduced = X
        if len(X) > X.shape[1]:
            # Noise is alike in all directions: those that no column reaches say nothing of the code.
            self.rotation, reduced = np.linalg.qr(X)
        self.problem: SpikeSlabProblem = make_problem(reduced, noise_var, prior, design_covariance)
        power = prob_active * float(slab.weight @ (slab.var + slab.mean**2))
        design_var = 0.0 if design_covariance is None else power * float(np.trace(design_covariance))
        left, singular, _ = np.linalg.svd(X, full_matrices=False)
        floor = max(noise_var * (1 + design_var), 1e-12 * power * float(np.mean(singular**2)), 1e-300)
        self._directions, self._variances, self._floor = left, power * singular**2 + floor, floor
        random = np.random.default_rng(0)
        usual = self._energy(self._simulate(ESTIMATION.usual_signals, random)[0])
        self.usual_energy = max(float(np.quantile(usual, ESTIMATION.usual_quantile)), 1.0)

    def _energy(self, Y: NDArray[Any]) -> NDArray[Any]:
        """Mean square of signals in units of what the model expects of them."""
        along = Y @ self._directions
        outside = np.maximum(np.sum(Y**2, axis=1) - np.sum(along**2, axis=1), 0.0)
        return (np.sum(along**2 / self._variances, axis=1) + outside / self._floor) / Y.shape[1]

    def _simulate(self, n: int, random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        X, design_covariance, noise_var, prob_active, _, drawn = self.learned
        return simulate_pairs(X, noise_var, prob_active, drawn, n, random, design_covariance)

    def _reduce(self, Y: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(Y if self.rotation is None else Y @ self.rotation, self.dtype)

    def _default_scalars(self, tempered: bool = True) -> NetworkScalars:
        n_ep = min(BUDGET.ep_layers, self.n_layers) if self.mode != "fast" else 0
        n_refinement = min(BUDGET.refinement_layers, self.n_layers) if n_ep else 0
        return default_scalars(
            self.n_layers - n_ep,
            n_ep,
            self.dtype,
            n_refinement_layers=n_refinement,
            tempered=tempered,
        )

    def _run(self, Y: NDArray[Any]) -> Denoised:
        size = self.chunk
        chunks = [self._answer(Y[begin : begin + size]) for begin in range(0, len(Y), size)]
        posterior: Any = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
        return Denoised(*posterior)

    def _answer(self, Y: NDArray[Any]) -> Denoised:
        problem, scalars = self.problem, self.scalars
        if not len(scalars.refinement_layers.offset):
            return in_blocks(lambda rows: run_network(problem, rows, scalars), Y, self._block())
        rows = Y, self._layers(Y, scalars, self.largest_variance_ratio)
        return in_blocks(lambda rows: mixed_answer(problem, rows[0], rows[1], scalars), rows, self._block())

    def _layers(
        self, Y: NDArray[Any], scalars: NetworkScalars, largest_variance_ratio: float | None = None
    ) -> NetworkState:
        """All layers, with refinement layers for signals of large posterior variance ratio."""
        problem, block = self.problem, self._block()
        state = in_blocks(lambda rows: _early(problem, rows, scalars), Y, block)
        if len(scalars.refinement_layers.offset):
            ratios = posterior_variance_ratio(problem, state)
            refined = ratios > (_refinement_level(ratios) if largest_variance_ratio is None else largest_variance_ratio)
            if refined.any():
                rows = Y[refined], NetworkState(*(part[refined] for part in state))
                further = in_blocks(lambda rows: _refine(problem, *rows, scalars), rows, block)
                for part, new in zip(state, further, strict=True):
                    part[refined] = new
        return in_blocks(lambda rows: _last(problem, *rows, scalars), (Y, state), block)

    def _learn_variance_ratio(self) -> None:
        """The posterior variance ratio above which signals are refined, by its quantile over simulated signals."""
        if len(self.scalars.refinement_layers.offset):
            Y = self._reduce(self._simulate(BUDGET.refinement_signals, np.random.default_rng(0))[0])
            state = in_blocks(lambda rows: _early(self.problem, rows, self.scalars), Y, self._block())
            self.largest_variance_ratio = _refinement_level(posterior_variance_ratio(self.problem, state))

    def _block(self) -> int:
        """How many signals at once: small enough for the cache where every signal has a matrix of its own."""
        n_observed, n_components = self.problem.design_matrix.shape
        numbers = BUDGET.arrays * self.problem.prior.mean.size
        if self.n_ep_layers:
            numbers = n_observed * (n_observed + n_components)
        return int(2 ** np.clip(np.floor(np.log2(BUDGET.block_numbers / numbers)), 3, 10))

    def _affordable(self, n_steps: int) -> tuple[int, int, int]:
        """Steps, pairs a step and pairs for the head, fewer for large matrices, whose layers need less training."""
        n_observed, n_components = self.problem.design_matrix.shape
        work = self.n_ep_layers * n_observed**2 * (n_observed + 2 * n_components)
        work += 4 * self.n_layers * n_observed * n_components
        if self.problem.float32_copy is None:
            work *= 2
        batch = int(np.clip(BUDGET.training_work / (work * max(n_steps, 1)), BUDGET.least_batch, BUDGET.batch))
        affordable = int(BUDGET.training_work / (work * batch))
        n_head = int(np.clip(BUDGET.head_work / (4 * work), *BUDGET.head_pairs))
        return (min(n_steps, affordable) if affordable >= BUDGET.least_steps else 0), batch, n_head

    def _given_matrix(self) -> NDArray[Any]:
        X = np.asarray(self.assumed.design_matrix, np.float64)
        return X if self.whitening is None else self.whitening.transform @ X

    def _learned_whitening(self, sums: Statistics) -> Whitening | None:
        """By the residuals of the sensors, where the evidence for different noise is strong."""
        X, freedom = self.assumed.design_matrix, float(sums.n_pairs)
        if X is None:
            X, covariance, _ = matrix_posterior(sums)
            freedom -= float(np.sum(covariance * sums.code_gram))
        squares = np.diag(sums.observed_gram) - 2 * np.sum(X * sums.cross, axis=1)
        squares = np.maximum(squares + np.sum((X @ sums.code_gram) * X, axis=1), 0.0)
        if not worth_whitening(float(np.mean(squares)), float(np.mean(np.diag(sums.observed_gram)))):
            return None
        found = sensor_variances(squares, freedom)
        return None if found is None else diagonal_whitening(np.sqrt(found / np.mean(found)))

    def _choose_prior(self) -> None:
        """Let pairs choose the prior, unless it is given."""
        self.base, self.prior_scores = None, {}
        stated = any(part is not None for part in (self.assumed.prob_active, self.assumed.slab_var))
        if self.kept is None or self.prior == "independent" or (self.prior == "auto" and stated):
            return
        learned = self.learned
        final = World(learned.design_matrix, learned.noise_var, learned.design_covariance)
        _, self.prior_scores, self.base = choose_prior(
            self.received(self.kept[0]),
            self.kept[1],
            self.prior,
            self._world,
            self._independent_means,
            final,
            self.dtype,
        )

    def _world(self, Y: NDArray[Any], B: NDArray[Any]) -> World:
        """Matrix and noise of some pairs."""
        return World(*self._matrix(gather_statistics(Y, B)))

    def _independent_means(self, Y: NDArray[Any], B: NDArray[Any], Y_test: NDArray[Any]) -> NDArray[Any]:
        """Codes by untrained layers that some pairs were learned for: they stand for independent coefficients."""
        mode = "accurate" if self.mode == "exact" else self.mode
        assumed = self.assumed
        if assumed.design_matrix is not None:
            assumed = assumed._replace(design_matrix=self._given_matrix())  # observations are whitened
        other = SpikeSlabLearner(self.units, self.n_layers, mode, assumed, self.dtype, prior="independent")
        other.learned = other._model(gather_statistics(Y, B))
        other._prepare()
        posterior = other._run(other._reduce(Y_test))
        return np.asarray(expit(posterior.log_odds) * posterior.slab_mean)


_early: Callable[..., NetworkState] = fast_compiled(early_layers)
_refine: Callable[..., NetworkState] = fast_compiled(refinement_layers)
_last: Callable[..., NetworkState] = fast_compiled(last_layers)
_before: Callable[..., NetworkState] = fast_compiled(vamp_state)


def _refinement_level(ratios: Any) -> float:
    return float(np.quantile(np.asarray(ratios, np.float64), 1 - BUDGET.refined_share))


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda part: np.asarray(part, dtype), tree)


def _square(var: Any, size: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.asarray(var) * size**2)
