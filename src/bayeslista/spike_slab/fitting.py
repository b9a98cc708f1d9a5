"""What SpikeSlabNet learns and how it predicts, in units of its own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from bayeslista.numerics.batching import SMALLEST_BLOCK, in_blocks
from bayeslista.numerics.compilation import fast_compiled
from bayeslista.numerics.epochs import Output, Units
from bayeslista.spike_slab.calibration import (
    Report,
    changed,
    cosine_rates,
    fit_head,
    init_training,
    loss_of_posterior,
    silent,
    training_step,
)
from bayeslista.spike_slab.config import BUDGET, ESTIMATION
from bayeslista.spike_slab.denoiser import Denoised, slab_prior
from bayeslista.spike_slab.empirical_bayes import (
    SlabMixture,
    Statistics,
    add_statistics,
    fit_slab,
    gather_statistics,
    learned_whitening,
    matrix_posterior,
    mean_prob_active,
    noise_given_matrix,
    observed_slab,
    simulate_pairs,
    whitened_statistics,
)
from bayeslista.spike_slab.exact import Budget, ExactPosterior, sample_posterior, slab_odds
from bayeslista.spike_slab.hyperparameters import given_slab
from bayeslista.spike_slab.imputation import impute
from bayeslista.spike_slab.learned_model import Agreement, Assumed, Learned
from bayeslista.spike_slab.model import NetworkState, SpikeSlabProblem, make_problem
from bayeslista.spike_slab.network import (
    NetworkScalars,
    answer,
    early_layers,
    last_layers,
    posterior_variance_ratio,
    refinement_layers,
    run_network,
)
from bayeslista.spike_slab.predictive_check import check_answers, largest_energy
from bayeslista.spike_slab.prior_choice import (
    CorrelatedBase,
    MixtureBase,
    World,
    choose_prior,
    dependent_answer,
    with_margins,
)
from bayeslista.spike_slab.scale_mixture_prior import GaussianParts
from bayeslista.spike_slab.sensor_noise import Whitening
from bayeslista.spike_slab.starts import STARTS, default_scalars


class _Trial(NamedTuple):
    """Scalars, and what they make of simulated pairs."""

    scalars: NetworkScalars
    state: NetworkState
    posterior: Denoised
    loss: float


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
    n_simulated: int = 0  # pairs that taught the head
    refined_share: float = BUDGET.refined_share  # all signals where layers fail untrained
    vamp_suits: bool = True  # so that fast mode has VAMP layers alone
    agreement: Agreement | None = None
    seed: int = 0  # of the chains

    def __post_init__(self) -> None:
        self.scalars = self._default_scalars("independent")

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
            self.whitening = learned_whitening(sums, self.assumed.design_matrix)
        self.learned = self._model(whitened_statistics(sums, self.whitening))
        self._choose_prior()
        if self.kept is not None and self.base is None:
            self.learned = with_margins(self.learned, self.assumed, self.kept[1])
        if self.mode != "exact" and self.base is None:
            self.prepare()
            self._choose_layers()

    def learn_from_observations(self, Y: NDArray[Any], random: np.random.Generator, report: Report = silent) -> None:
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
        found = draw_hyperparameters(X, Y, self.assumed[1:4], random, report=report)
        slab = found.slab
        if self.mode == "exact":
            self.learned = Learned(X, None, found.noise_var, found.prob_active, slab, slab)
            return
        self._assume(X, found.prob_active, found.noise_var, slab)
        self._choose_layers()

    def assume(self) -> None:
        """Take all from the user: nothing is learned."""
        _, prob_active, noise_var, slab_var, weight = self.assumed
        slab = given_slab(slab_var, weight)
        self.learned = Learned(self._given_matrix(), None, noise_var, prob_active, slab, slab)
        if self.mode != "exact":
            self.prepare()
            self._choose_layers()

    def calibrate(self, training: str | int, random: np.random.Generator, report: Report = silent) -> None:
        """Train the scalars of the layers on simulated pairs, and their head; then compare answers to fresh codes."""
        if self.mode == "exact" or self.base is not None:
            return
        n_steps, batch, n_pairs = self._affordable(training)
        report("simulation", 0, 1)
        if training != "none":
            Y, B = self._pairs(n_pairs, random)
            first = self._try(self.scalars, Y, B)
            report("simulation", 1, 1)
            if self._fails(Y, first.posterior):
                self.refined_share = 1.0
                first = self._try(self.scalars, Y, B)
            elif training == "auto":
                n_steps = 0
            tried = [first, self._try(self._train(n_steps, batch, random, report), Y, B)] if n_steps else [first]
            best = tried[-1] if tried[-1].loss < first.loss else first  # never where it is NaN
            state, failed = best.state, self._check(Y, best.posterior)[2]
            if self.mode == "accurate" and failed.any() and not failed.all():
                # The sampler answers what fails: the head is for the others, repeated so that sizes stay compiled.
                others = np.resize(np.flatnonzero(~failed), len(Y))
                Y, B, state = Y[others], B[others], NetworkState(*(part[others] for part in state))
            problem, Y, B, state, head = self._trained(self.problem, Y, B, state, best.scalars.head)
            head = fit_head(problem, Y, B, state, head, report)
            self.scalars, self.n_simulated = best.scalars._replace(head=_cast(head, self.dtype)), n_pairs
            self._learn_variance_ratio()
        self.agreement = self._agreement(*self._pairs(ESTIMATION.agreement_pairs, random))

    def _train(self, n_steps: int, batch: int, random: np.random.Generator, report: Report) -> NetworkScalars:
        """Scalars after so many steps of Adam, each on simulated pairs of its own."""
        problem, scalars = self._trained(self.problem, self.scalars)
        state, infos = init_training(scalars), []
        for i, rate in enumerate(cosine_rates(n_steps, BUDGET.learning_rate, problem.noise_var.dtype)):
            report("training", i, n_steps)
            Y, B = self._trained(*self._pairs(batch, random))
            state, info = training_step(state, scalars, problem, Y, B, rate)
            infos.append(info)
        report("training", n_steps, n_steps)
        self.losses = np.array([info.objective for info in infos])
        self.skipped = n_steps - int(sum(info.usable for info in infos))
        return _cast(changed(scalars, state), self.dtype)

    def _trained(self, *trees: Any) -> Any:
        """In single precision where the problem allows: its scalars would not suit layers that cannot do with it."""
        dtype = self.dtype if self.problem.float32_copy is None else np.dtype(np.float32)
        plain = (part._replace(float32_copy=None) if part is self.problem else part for part in trees)
        return _cast(tuple(plain), dtype)

    def _try(self, scalars: NetworkScalars, Y: Any, B: Any) -> _Trial:
        """What scalars make of simulated pairs."""
        state = self._layers(Y, scalars)
        posterior = answer(self.problem, Y, state, scalars.head)
        return _Trial(scalars, state, posterior, float(loss_of_posterior(self.problem, posterior, B)))

    def _pairs(self, n: int, random: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        """Simulated pairs as the layers take them."""
        Y, B = self._simulate(n, random)
        return self._reduce(Y), B.astype(self.dtype)

    def _fails(self, Y: NDArray[Any], posterior: Denoised) -> bool:
        """Whether answers to simulated signals fail their check so often that layers have to be trained, or others."""
        return float(np.mean(self._check(Y, posterior)[2])) > ESTIMATION.most_failed

    def _agreement(self, Y: NDArray[Any], B: NDArray[Any]) -> Agreement:
        mean, var, failed = self._check(Y, self._run(Y))
        finite = np.isfinite(mean).all(axis=1) & np.isfinite(var).all(axis=1)
        return Agreement(float(np.mean(var[finite]) / np.mean((mean - B)[finite] ** 2)), float(np.mean(failed)))

    def _check(self, Y: NDArray[Any], posterior: Denoised) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Means and variances of simulated signals, and which fail the check against their own observations."""
        chance = expit(np.asarray(posterior.log_odds, np.float64))
        slab_mean, slab_var = (np.asarray(part, np.float64) for part in posterior[1:])
        X: Any = self.problem.design_matrix
        _, covariance, noise_var, prob_active, slab, _ = self.learned
        power = prob_active * (slab.weight @ (slab.var + slab.mean**2))
        with np.errstate(over="ignore", invalid="ignore"):  # squares of layers that diverged are infinite
            mean, var = chance * slab_mean, chance * (slab_var + (1 - chance) * slab_mean**2)
            check = check_answers(Y, mean, var, X, noise_var, power, covariance)
            return mean, var, check.failed(largest_energy(prob_active, slab, X.shape[1])) | check.overflowed()

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

    def sample(
        self, Y: NDArray[Any], n_draws: int = 0, n_jobs: int | None = None, budget: Budget | None = None
    ) -> ExactPosterior:
        """Moments and joint draws of the exact posterior under the learned model.

        Uncertainty of a learned matrix is noise of the variance that codes of the prior would make of it.
        """
        X, covariance, noise_var, prob_active, slab, _ = self.learned
        noise = np.broadcast_to(np.asarray(noise_var, np.float64), len(X))
        if covariance is not None:
            power = float(np.mean(prob_active * (slab.weight @ (slab.var + slab.mean**2))))
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
        slab_var = np.asarray(posterior.slab_var * size**2)
        return Output(chance, np.asarray(posterior.slab_mean * size, self.dtype), slab_var)

    def dependent_output(self, Y: NDArray[Any]) -> tuple[Output, GaussianParts | None]:
        """The same under a prior of dependent codes, and the parts of slabs that are mixtures."""
        if self.base is None:
            raise ValueError("The prior is independent: layers or the sampler answer.")
        seen = ~np.isnan(Y)
        posterior, parts = dependent_answer(self.base, np.where(seen, Y, 0.0), seen)
        limits = np.finfo(self.dtype)
        chance = np.clip(expit(posterior.log_odds), limits.tiny, 1 - limits.eps)
        return Output(chance, np.asarray(posterior.slab_mean), np.asarray(posterior.slab_var)), parts

    def usual_size(self, Y: NDArray[Any]) -> NDArray[Any]:
        """What signals are divided by, (n, 1): one, or more where they are larger than the model ever produces."""
        return np.sqrt(np.maximum(self._energy(np.asarray(Y, np.float64)) / self.usual_energy, 1.0))[:, None]

    @property
    def chunk(self) -> int:
        """How many signals are answered together."""
        if self.mode == "exact" or self.base is not None:
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
        self.prepare()

    def prepare(self) -> None:
        """What prediction needs of the model: the problem of the layers, and how large signals usually are."""
        X, design_covariance, noise_var, prob_active, slab, _ = self.learned
        prior = slab_prior(prob_active, slab.mean, slab.var, slab.weight, n_components=X.shape[1], dtype=self.dtype)
        self.rotation = None
        reduced = X
        if len(X) > X.shape[1]:
            # Noise is alike in all directions: those that no column reaches say nothing of the code.
            self.rotation, reduced = np.linalg.qr(X)
        self.problem: SpikeSlabProblem = make_problem(reduced, noise_var, prior, design_covariance)
        powers = prob_active * (slab.weight @ (slab.var + slab.mean**2))
        power, scaled = float(np.mean(powers)), X
        if np.ndim(powers):
            scaled = X * np.sqrt(powers / power)
        design_var = 0.0 if design_covariance is None else power * float(np.trace(design_covariance))
        left, singular, _ = np.linalg.svd(scaled, full_matrices=False)
        floor = max(noise_var * (1 + design_var), 1e-12 * power * float(np.mean(singular**2)), 1e-300)
        self._directions, self._variances, self._floor = left, power * singular**2 + floor, floor
        random = np.random.default_rng(0)
        usual = self._energy(self._simulate(ESTIMATION.usual_signals, random)[0])
        self.usual_energy = max(float(np.quantile(usual, ESTIMATION.usual_quantile)), 1.0)

    def _choose_layers(self) -> None:
        """The scalars to begin with, by simulated pairs; EP layers in fast mode, too, where VAMP layers fail."""
        if not self.n_simulated:
            Y, B = self._pairs(ESTIMATION.agreement_pairs, np.random.default_rng(0))
            self.vamp_suits, self.scalars = True, self._default_scalars("plain")
            if self.mode == "fast":
                self.vamp_suits = not self._fails(Y, self._run(Y))
            if self.mode != "fast" or not self.vamp_suits:
                trials = [self._try(self._default_scalars(start), Y, B) for start in STARTS]
                self.scalars = min(trials, key=lambda trial: trial.loss).scalars
        self._learn_variance_ratio()

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

    def _default_scalars(self, start: str) -> NetworkScalars:
        n_ep = min(BUDGET.ep_layers, self.n_layers) if self.mode != "fast" or not self.vamp_suits else 0
        n_refinement = min(BUDGET.refinement_layers, self.n_layers) if self.mode != "fast" else 0
        return default_scalars(self.n_layers - n_ep, n_ep, self.dtype, n_refinement_layers=n_refinement, start=start)

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
        return in_blocks(lambda rows: answer(problem, rows[0], rows[1], scalars.head), rows, self._block())

    def _layers(
        self, Y: NDArray[Any], scalars: NetworkScalars, largest_variance_ratio: float | None = None
    ) -> NetworkState:
        """All layers, with refinement layers for signals of large posterior variance ratio."""
        problem, block = self.problem, self._block()
        smallest = block if largest_variance_ratio is None else SMALLEST_BLOCK  # one size is compiled for a fit
        state = in_blocks(lambda rows: _early(problem, rows, scalars), Y, block, smallest)
        if len(scalars.refinement_layers.offset):
            ratios = posterior_variance_ratio(problem, state)
            refined = ratios > (
                self._refinement_level(ratios) if largest_variance_ratio is None else largest_variance_ratio
            )
            if refined.any():
                rows = Y[refined], NetworkState(*(part[refined] for part in state))
                further = in_blocks(lambda rows: _refine(problem, *rows, scalars), rows, block, smallest)
                for part, new in zip(state, further, strict=True):
                    part[refined] = new
        return in_blocks(lambda rows: _last(problem, *rows, scalars), (Y, state), block, smallest)

    def _learn_variance_ratio(self) -> None:
        """The posterior variance ratio above which signals are refined, by its quantile over simulated signals."""
        if len(self.scalars.refinement_layers.offset):
            Y = self._reduce(self._simulate(BUDGET.refinement_signals, np.random.default_rng(0))[0])
            state = in_blocks(lambda rows: _early(self.problem, rows, self.scalars), Y, self._block())
            self.largest_variance_ratio = self._refinement_level(posterior_variance_ratio(self.problem, state))

    def _refinement_level(self, ratios: Any) -> float:
        level = np.quantile(np.asarray(ratios, np.float64), 1 - self.refined_share)
        return float(level) if self.refined_share < 1 else -np.inf

    def _block(self) -> int:
        """How many signals at once: small enough for the cache where every signal has a matrix of its own."""
        n_observed, n_components = self.problem.design_matrix.shape
        numbers = BUDGET.arrays * self.problem.prior.mean.size
        if self.n_ep_layers:
            numbers = n_observed * (n_observed + n_components)
        return int(2 ** np.clip(np.floor(np.log2(BUDGET.block_numbers / numbers)), 3, 10))

    def _affordable(self, training: str | int) -> tuple[int, int, int]:
        """Steps, pairs a step and pairs for the head; "auto" has fewer for large matrices, which need less of it."""
        n_observed, n_components = self.problem.design_matrix.shape
        work = self.n_ep_layers * n_observed**2 * (n_observed + 2 * n_components)
        work += 4 * self.n_layers * n_observed * n_components
        if self.problem.float32_copy is None:
            work *= 2
        n_head = int(np.clip(BUDGET.head_work / (4 * work), *BUDGET.head_pairs))
        n_steps = training if isinstance(training, int) else BUDGET.training_steps
        if training != "auto":
            return n_steps, BUDGET.batch, n_head
        batch = int(np.clip(BUDGET.training_work / (work * n_steps), BUDGET.least_batch, BUDGET.batch))
        affordable = int(BUDGET.training_work / (work * batch))
        return (min(n_steps, affordable) if affordable >= BUDGET.least_steps else 0), batch, n_head

    def _given_matrix(self) -> NDArray[Any]:
        X = np.asarray(self.assumed.design_matrix, np.float64)
        return X if self.whitening is None else self.whitening.transform @ X

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
        other.learned = with_margins(other._model(gather_statistics(Y, B)), assumed, B)
        other.prepare()
        posterior = other._run(other._reduce(Y_test))
        return np.asarray(expit(posterior.log_odds) * posterior.slab_mean)


_early: Callable[..., NetworkState] = fast_compiled(early_layers)
_refine: Callable[..., NetworkState] = fast_compiled(refinement_layers)
_last: Callable[..., NetworkState] = fast_compiled(last_layers)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda part: np.asarray(part, dtype), tree)
