"""What SpikeSlabNet learns and how it predicts, in units of its own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from bayeslista._blocks import in_blocks
from bayeslista._compilation import quickly_compiled
from bayeslista.denoiser import Denoised, denoise, slab_prior
from bayeslista.estimators._learners import Numbers, Output, Units
from bayeslista.estimators._structured import Base, Head, squared_errors, structured_belief, structured_head
from bayeslista.gaussian_base import choose_shrinkage, fit_gaussian_base
from bayeslista.generative import (
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
)
from bayeslista.inference.simulation import (
    PRICE_OF_ERROR,
    cosine_rates,
    fit_head,
    fit_opinion,
    loss_of_belief,
    train_scalars,
)
from bayeslista.message_passing import NetworkState, Problem, expected_residual, make_problem
from bayeslista.spike_slab_network import (
    NetworkScalars,
    default_scalars,
    doubt,
    early_layers,
    further_layers,
    last_layers,
    run_layers,
    run_network,
    vector_state,
    with_opinion,
)

_PROPAGATION_LAYERS, _FURTHER_LAYERS = 5, 10
_SHARE_IN_DOUBT, _DOUBT_SIGNALS = 0.35, 512
_CHUNK_BLOCKS = 16  # that go through the early layers before signals in doubt are gathered
_BLOCK_NUMBERS = 2**20  # in the arrays of a block that a layer goes through
_ARRAYS = 64  # of the size of the codes, in a layer of vector AMP
_FOLDS = 5
_ENOUGH_TO_DRAW_FROM = 60  # nonzero coefficients
_KEPT_PAIRS = 200  # for the choice between independent and structured codes
_LEAST_GAIN, _MOST_SHRINKAGE = 0.02, 0.9  # of the linear layer, for structured codes to be considered
_BATCH, _LEAST_BATCH, _LEAST_STEPS, _RATE = 64, 8, 10, 0.02
_TRAINING_WORK, _HEAD_WORK = 1e11, 2e11  # products of numbers, a minute or so together
_HEAD_PAIRS = 128, 3072
_USUAL_QUANTILE, _USUAL_SIGNALS = 0.999, 2000
_EM_STEPS, _EM_REACH, _EM_TOLERANCE = 15, 0.7, 5e-3
_EM_NUMBERS, _EM_SIGNALS = 2**16, (256, 2048)  # observed values, and the signals they may make
_EM_BOUNDS = np.array([[np.log(1e-4), -np.inf, -np.inf, -3.0], [np.log(0.95), np.inf, np.inf, 3.0]])


class Assumed(NamedTuple):
    """What the user gave, in the units of the learner; None is to be learned."""

    design_matrix: Numbers | None
    prob_active: float | None
    noise_var: float | None
    slab_var: float | None


class Learned(NamedTuple):
    """The model of the data: matrix, noise, sparsity and slab."""

    design_matrix: Numbers
    spread: Numbers | None
    noise_var: float
    prob_active: float
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
    folds: list[Statistics] = field(default_factory=list)
    n_seen: int = 0
    kept: tuple[Numbers, Numbers] | None = None
    learned: Learned = field(init=False)
    base: Base | None = None
    scalars: NetworkScalars = field(init=False)
    most_doubt: float = np.inf
    objectives: Numbers = field(default_factory=lambda: np.zeros(0))
    skipped: int = 0

    def __post_init__(self) -> None:
        self.scalars = self._default_scalars()

    def take_in(self, Y: Numbers, B: Numbers) -> None:
        """Add pairs to the sums; every fifth pair of the stream is of the same fold."""
        fold = (self.n_seen + np.arange(len(B))) % _FOLDS
        new = [gather_statistics(Y[fold == i], B[fold == i]) for i in range(_FOLDS)]
        self.folds = [add_statistics(*both) for both in zip(self.folds, new, strict=True)] if self.folds else new
        self.n_seen += len(B)
        before = (Y[:0], B[:0]) if self.kept is None else self.kept
        room = _KEPT_PAIRS - len(before[0])
        self.kept = np.concatenate([before[0], Y[:room]]), np.concatenate([before[1], B[:room]])

    def learn_from_pairs(self) -> None:
        """Everything but the scalars of the layers, from the sums."""
        self.learned = self._model(add_statistics(*self.folds))
        self._prepare()
        self._learn_doubt()
        self.base = self._structured()

    def learn_from_observations(self, Y: Numbers, random: np.random.Generator) -> None:
        r"""Sparsity, slab and noise by EM on the layers, corrected by simulation.

        An M-step on approximate posteriors is biased. The same step on as many signals simulated from the current model
        has the same bias, so the ratio of the two tells where the model differs from the data.
        """
        assumed = self.assumed
        X = np.asarray(assumed.design_matrix, np.float64)
        n_signals = int(np.clip(_EM_NUMBERS // len(X), *_EM_SIGNALS))
        Y = np.asarray(Y[random.permutation(len(Y))[:n_signals]], np.float64)
        power, noise_var = _second_moments(X, Y)
        noise_var = noise_var if assumed.noise_var is None else assumed.noise_var
        prob_active = 0.1 if assumed.prob_active is None else assumed.prob_active
        slab_power = power / prob_active if assumed.slab_var is None else assumed.slab_var
        values = np.array([*np.log([prob_active, noise_var, slab_power]), 0.0])
        held = np.array([part is not None for part in (*assumed[1:], assumed.slab_var)])

        def assume(values: Numbers) -> None:
            chance, noise, size = np.exp(values[:3])
            self._assume(X, chance, noise, _single(size) if held[3] else _shaped_slab(size, values[3]))

        seed = random.integers(2**63)  # the same draws in every step, so that steps can be compared
        tried: list[tuple[Numbers, Numbers]] = []
        for _ in range(_EM_STEPS):
            assume(values)
            simulated, _ = self._simulate(len(Y), np.random.default_rng(seed))
            change = np.where(held, 0.0, np.log(self._maximise(Y) / self._maximise(simulated)))
            tried = [*tried[-len(values) :], (values, change)]
            if np.max(np.abs(change)) < _EM_TOLERANCE:
                break
            values = values + np.clip(_accelerated(tried), -_EM_REACH, _EM_REACH)
            values = np.where(held, values, np.clip(values, *_EM_BOUNDS))
        assume(tried[-1][0])
        self._learn_doubt()

    def assume(self) -> None:
        """Take all from the user: nothing is learned."""
        prob_active, noise_var, slab_var = (float(part) for part in self.assumed[1:] if part is not None)
        self._assume(self.assumed.design_matrix, prob_active, noise_var, _single(slab_var))
        self._learn_doubt()

    def calibrate(self, n_steps: int, random: np.random.Generator) -> None:
        """Learn the scalars of the layers from simulated pairs, and keep them if fresh ones agree."""
        n_steps, batch, n_head = self._affordable(n_steps)
        if self.base is not None or n_steps == 0:
            return
        problem, plain = self.problem, self._default_scalars(tempered=False)
        tempered = self.scalars._replace(opinion=None)

        def pairs(n: int) -> tuple[Numbers, Numbers]:
            Y, B = self._simulate(n, random)
            return self._reduce(Y), B.astype(self.dtype)

        judges = pairs(4 * batch)

        def loss(scalars: NetworkScalars, price_of_error: float) -> float:
            belief = with_opinion(problem, judges[0], self._layers(judges[0], scalars), scalars)
            return float(loss_of_belief(problem, belief, judges[1], price_of_error))

        start = min(tempered, plain, key=partial(loss, price_of_error=1.0))
        batches = [part.reshape(n_steps, batch, -1) for part in pairs(n_steps * batch)]
        # Scalars learned in single precision would not suit layers that cannot do with it.
        dtype = self.dtype if problem.rough is None else np.dtype(np.float32)
        alone = _cast(problem._replace(rough=None), dtype)
        observed, wanted = _cast(batches, dtype)
        rates: Any = cosine_rates(n_steps, _RATE, dtype)
        trained, info = train_scalars(_cast(start, dtype), alone, observed, wanted, rates)
        self.objectives, self.skipped = np.asarray(info.objective), int(info.skipped)
        Y, B = pairs(n_head)
        candidates = []
        for scalars in (start, _cast(trained, self.dtype)):
            state = self._layers(Y, scalars)
            head = fit_head(alone, *_cast((Y, B, state, scalars.head), dtype))
            candidates.append((scalars._replace(head=_cast(head, self.dtype)), state))
        errors = [loss(scalars, PRICE_OF_ERROR) for scalars, _ in candidates]
        self.scalars, state = candidates[errors[1] < errors[0]]  # never where it is NaN
        if self.n_propagation_layers and len(self.scalars.vector_layers.offset):
            before = in_blocks(lambda rows: _before(problem, rows, self.scalars), Y, self._block())
            found = fit_opinion(alone, *_cast((Y, B, state, before, self.scalars.head), dtype))
            head, opinion = _cast(found, self.dtype)
            self.scalars = self.scalars._replace(head=head, opinion=opinion)
        self._learn_doubt()

    def output(self, Y: Numbers) -> Output:
        """A spike and slab for every coefficient, of signals brought to a usual size and back."""
        size = np.sqrt(np.maximum(self._energy(np.asarray(Y, np.float64)) / self.usual_energy, 1.0))[:, None]
        scaled = (Y / size).astype(self.dtype)
        if self.base is None:
            belief = self._run(self._reduce(scaled))
        else:
            belief = in_blocks(partial(structured_belief, self.base), scaled)
        limits = np.finfo(self.dtype)
        chance = np.clip(expit(belief.log_odds), limits.tiny, 1 - limits.eps)
        return Output(chance, np.asarray(belief.slab_mean * size, self.dtype), _square(belief.slab_var, size))

    @property
    def chunk(self) -> int:
        """How many signals are answered together."""
        return _CHUNK_BLOCKS * self._block()

    @property
    def n_propagation_layers(self) -> int:
        """How many layers have sites of their own variance."""
        return len(self.scalars.propagation_layers.offset)

    def _model(self, sums: Statistics) -> Learned:
        assumed, (design_matrix, noise_var, spread) = self.assumed, self._matrix(sums)
        slab = drawn = fit_slab(sums.histogram)
        if assumed.slab_var is not None:
            slab = drawn = _single(assumed.slab_var)
        elif sums.n_active.sum() >= _ENOUGH_TO_DRAW_FROM:
            drawn = observed_slab(sums.histogram)
        prob_active = mean_prob_active(sums) if assumed.prob_active is None else assumed.prob_active
        return Learned(design_matrix, spread, noise_var, prob_active, slab, drawn)

    def _matrix(self, sums: Statistics) -> tuple[Numbers, float, Numbers | None]:
        """The design matrix, the noise, and the spread of a matrix that is learned: all that a linear layer needs."""
        assumed, spread = self.assumed, None
        if assumed.design_matrix is None:
            design_matrix, spread, noise_var = matrix_posterior(sums)
        else:
            design_matrix = np.asarray(assumed.design_matrix, np.float64)
            noise_var = noise_given_matrix(sums, design_matrix)
        return design_matrix, noise_var if assumed.noise_var is None else assumed.noise_var, spread

    def _assume(self, design_matrix: Numbers, prob_active: float, noise_var: float, slab: SlabMixture) -> None:
        self.learned = Learned(np.asarray(design_matrix, np.float64), None, noise_var, prob_active, slab, slab)
        self._prepare()

    def _prepare(self) -> None:
        """What prediction needs of the model: the problem of the layers, and how large signals usually are."""
        X, spread, noise_var, prob_active, slab, _ = self.learned
        prior = slab_prior(prob_active, slab.mean, slab.var, slab.weight, n_components=X.shape[1], dtype=self.dtype)
        self.rotation = None
        reduced = X
        if len(X) > X.shape[1]:
            # Noise is alike in all directions: those that no column reaches say nothing of the code.
            self.rotation, reduced = np.linalg.qr(X)
        self.problem: Problem = make_problem(reduced, noise_var, prior, spread)
        power = prob_active * float(slab.weight @ (slab.var + slab.mean**2))
        bent = 0.0 if spread is None else power * float(np.trace(spread))
        left, singular, _ = np.linalg.svd(X, full_matrices=False)
        floor = max(noise_var * (1 + bent), 1e-12 * power * float(np.mean(singular**2)), 1e-300)
        self._directions, self._variances, self._floor = left, power * singular**2 + floor, floor
        random = np.random.default_rng(0)
        usual = self._energy(self._simulate(_USUAL_SIGNALS, random)[0])
        self.usual_energy = max(float(np.quantile(usual, _USUAL_QUANTILE)), 1.0)

    def _energy(self, Y: Numbers) -> Numbers:
        """Mean square of signals in units of what the model expects of them."""
        along = Y @ self._directions
        outside = np.maximum(np.sum(Y**2, axis=1) - np.sum(along**2, axis=1), 0.0)
        return (np.sum(along**2 / self._variances, axis=1) + outside / self._floor) / Y.shape[1]

    def _simulate(self, n: int, random: np.random.Generator) -> tuple[Numbers, Numbers]:
        X, spread, noise_var, prob_active, _, drawn = self.learned
        return simulate_pairs(X, noise_var, prob_active, drawn, n, random, spread)

    def _reduce(self, Y: Numbers) -> Numbers:
        return np.asarray(Y if self.rotation is None else Y @ self.rotation, self.dtype)

    def _default_scalars(self, tempered: bool = True) -> NetworkScalars:
        n_propagation = min(_PROPAGATION_LAYERS, self.n_layers) if self.mode == "accurate" else 0
        n_further = min(_FURTHER_LAYERS, self.n_layers) if n_propagation else 0
        return default_scalars(
            self.n_layers - n_propagation, n_propagation, self.dtype, n_further_layers=n_further, tempered=tempered
        )

    def _run(self, Y: Numbers) -> Denoised:
        size = self.chunk
        chunks = [self._answer(Y[begin : begin + size]) for begin in range(0, len(Y), size)]
        belief: Any = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
        return Denoised(*belief)

    def _answer(self, Y: Numbers) -> Denoised:
        problem, scalars = self.problem, self.scalars
        if not len(scalars.further_layers.offset):
            return in_blocks(lambda rows: run_network(problem, rows, scalars), Y, self._block())
        rows = Y, self._layers(Y, scalars, self.most_doubt)
        return in_blocks(lambda rows: with_opinion(problem, rows[0], rows[1], scalars), rows, self._block())

    def _layers(self, Y: Numbers, scalars: NetworkScalars, most_doubt: float | None = None) -> NetworkState:
        """All layers, and further ones for signals in too much doubt; by default, for a share of these signals."""
        problem, block = self.problem, self._block()
        state = in_blocks(lambda rows: _early(problem, rows, scalars), Y, block)
        if len(scalars.further_layers.offset):
            doubts = doubt(problem, state)
            in_doubt = doubts > (_usual_most(doubts) if most_doubt is None else most_doubt)
            if in_doubt.any():
                rows = Y[in_doubt], NetworkState(*(part[in_doubt] for part in state))
                further = in_blocks(lambda rows: _further(problem, *rows, scalars), rows, block)
                for part, new in zip(state, further, strict=True):
                    part[in_doubt] = new
        return in_blocks(lambda rows: _last(problem, *rows, scalars), (Y, state), block)

    def _learn_doubt(self) -> None:
        """From which doubt on further layers are worth it: few simulated signals reach it."""
        if len(self.scalars.further_layers.offset):
            Y = self._reduce(self._simulate(_DOUBT_SIGNALS, np.random.default_rng(0))[0])
            state = in_blocks(lambda rows: _early(self.problem, rows, self.scalars), Y, self._block())
            self.most_doubt = _usual_most(doubt(self.problem, state))

    def _block(self) -> int:
        """How many signals at once: small enough for the cache where every signal has a matrix of its own."""
        n_observed, n_components = self.problem.design_matrix.shape
        numbers = _ARRAYS * self.problem.prior.mean.size
        if self.n_propagation_layers:
            numbers = n_observed * (n_observed + n_components)
        return int(2 ** np.clip(np.floor(np.log2(_BLOCK_NUMBERS / numbers)), 3, 10))

    def _maximise(self, Y: Numbers) -> Numbers:
        """Sparsity, noise, power and shape of the slab that the belief asks for, by the cheaper kind of layers."""
        problem = self.problem
        scalars = default_scalars(self.n_layers, 0, self.dtype)

        def moments(rows: Numbers) -> Any:
            return _em_moments(problem, rows, scalars)

        parts = in_blocks(moments, self._reduce(Y))
        active, size, square, residual = (np.asarray(part, np.float64) for part in parts)
        noise_var = residual.mean()
        if self.rotation is not None:
            outside = np.mean(np.sum(Y**2, axis=1) - np.sum((Y @ self.rotation) ** 2, axis=1))
            noise_var = (noise_var * self.rotation.shape[1] + outside) / Y.shape[1]
        tiny = 1e-300
        power = square.sum() / max(active.sum(), tiny)
        shape = size.sum() ** 2 / max(active.sum() * square.sum(), tiny)
        return np.maximum([active.mean(), noise_var, power, shape], tiny)

    def _affordable(self, n_steps: int) -> tuple[int, int, int]:
        """Steps, pairs a step and pairs for the head, fewer for large matrices, whose layers need less training."""
        n_observed, n_components = self.problem.design_matrix.shape
        work = self.n_propagation_layers * n_observed**2 * (n_observed + 2 * n_components)
        work += 4 * self.n_layers * n_observed * n_components
        if self.problem.rough is None:
            work *= 2
        batch = int(np.clip(_TRAINING_WORK / (work * max(n_steps, 1)), _LEAST_BATCH, _BATCH))
        affordable = int(_TRAINING_WORK / (work * batch))
        n_head = int(np.clip(_HEAD_WORK / (4 * work), *_HEAD_PAIRS))
        return (min(n_steps, affordable) if affordable >= _LEAST_STEPS else 0), batch, n_head

    def _structured(self) -> Base | None:
        """A Gaussian base, if pairs that it was not made from prefer it by more than a standard error."""
        if self.kept is None or self.n_seen < 2 * _FOLDS or self.problem.design_matrix.shape[1] < 2:
            return None
        others = [
            add_statistics(*(fold for j, fold in enumerate(self.folds) if j != i)) for i in range(len(self.folds))
        ]
        models = [self._matrix(sums) for sums in others]
        amount, least, gain = choose_shrinkage(self.folds, *map(list, zip(*models, strict=True)))
        if gain < _LEAST_GAIN or amount > _MOST_SHRINKAGE:
            return None
        Y, B = self.kept
        fold = np.arange(len(B)) % _FOLDS
        told: list[tuple[Numbers, ...]] = []
        errors = []
        for i, (sums, (matrix, noise_var, spread)) in enumerate(zip(others, models, strict=True)):
            layer = fit_gaussian_base(sums, matrix, noise_var, amount, least, spread, self.dtype)
            rows = fold == i
            belief = structured_belief(Base(layer, Head()), Y[rows].astype(self.dtype))
            errors.append((rows, squared_errors(belief, B[rows])))
            told.append((layer, Y[rows].astype(self.dtype), B[rows].astype(self.dtype)))
        structured = np.zeros(len(B))
        for rows, error in errors:
            structured[rows] = error
        saved = squared_errors(self._run(self._reduce(Y)), B) - structured
        if not saved.mean() > saved.std() / np.sqrt(len(saved)):
            return None
        model = self.learned
        sums = add_statistics(*self.folds)
        layer = fit_gaussian_base(sums, *model[:1], model.noise_var, amount, least, model.spread, self.dtype)
        return Base(layer, structured_head(told))


@quickly_compiled
def _em_moments(problem: Problem, rows: Numbers, scalars: NetworkScalars) -> tuple[Numbers, ...]:
    """For each signal: active coefficients, their magnitudes and squares, and the square left of the observation."""
    state = run_layers(problem, rows, scalars)
    slab = denoise(state.cavity_mean, state.cavity_var, problem.prior)
    mean, std = slab.slab_mean, jnp.sqrt(jnp.maximum(slab.slab_var, jnp.finfo(state.mean.dtype).tiny))
    score = mean / std
    size = std * jnp.sqrt(2 / jnp.pi) * jnp.exp(-0.5 * score**2) + mean * jax.scipy.special.erf(score / jnp.sqrt(2.0))
    parts = state.prob_active, state.prob_active * size, state.var + state.mean**2
    return *(part.mean(axis=1) for part in parts), expected_residual(problem, rows, state)


_early: Callable[..., NetworkState] = quickly_compiled(early_layers)
_further: Callable[..., NetworkState] = quickly_compiled(further_layers)
_last: Callable[..., NetworkState] = quickly_compiled(last_layers)
_before: Callable[..., NetworkState] = quickly_compiled(vector_state)


def _usual_most(doubts: Any) -> float:
    return float(np.quantile(np.asarray(doubts, np.float64), 1 - _SHARE_IN_DOUBT))


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda part: np.asarray(part, dtype), tree)


def _accelerated(tried: list[tuple[Numbers, Numbers]]) -> Numbers:
    """Anderson's step for a fixed point, from the last values and the changes that they asked for."""
    values, changes = (np.array(part) for part in zip(*tried, strict=True))
    if len(tried) == 1:
        return changes[-1]
    bends, ways = np.diff(changes, axis=0), np.diff(values, axis=0)
    # Small directions are left alone: chance, not curvature, bends them.
    share = np.linalg.lstsq(bends.T, changes[-1], rcond=0.03)[0]
    return changes[-1] - (ways + bends).T @ share


def _second_moments(X: Numbers, Y: Numbers) -> tuple[float, float]:
    """Power of a coefficient and variance of the noise, by the likelihood of Gaussian codes.

    The covariance of observations is that of Gaussian codes of the same power, whatever their sparsity.
    """
    left, singular, _ = np.linalg.svd(X, full_matrices=False)
    along = np.mean((Y @ left) ** 2, axis=0)
    outside = max(float(np.mean(np.sum(Y**2, axis=1)) - along.sum()), 0.0)
    n_outside = len(X) - len(singular)
    total = float(np.mean(Y**2)) or 1.0
    size = float(np.mean(singular**2)) * len(singular) / len(X) or 1.0

    def loss(point: Numbers) -> float:
        power, noise = np.exp(point) * [total / size, total]
        variance = power * singular**2 + noise
        return float(np.sum(np.log(variance) + along / variance) + n_outside * np.log(noise) + outside / noise)

    best = minimize(loss, np.log([0.9, 0.1]), method="L-BFGS-B", bounds=[(-12, 3), (-14, 1)])
    power, noise = np.exp(best.x) * [total / size, total]
    return float(power), float(noise)


def _shaped_slab(power: float, shape: float) -> SlabMixture:
    """A symmetric slab of two parts: apart from zero if the shape is positive, heavy-tailed if it is negative."""
    share = np.tanh(np.abs(shape))
    if shape >= 0:
        mean, var = np.sqrt(power * share) * np.array([-1.0, 1.0]), np.full(2, power * (1 - share))
    else:
        mean, var = np.zeros(2), power * np.array([1 - share, 1 + share])
    return SlabMixture(np.full(2, 0.5), mean, var)


def _single(var: float) -> SlabMixture:
    return SlabMixture(np.ones(1), np.zeros(1), np.array([float(var)]))


def _square(var: Numbers, size: Numbers) -> Numbers:
    return np.asarray(np.asarray(var) * size**2)
