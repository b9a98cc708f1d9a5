"""Active learning with SpikeSlabNet in a custom loop, with the interface of modAL.

Codes are expensive, observations cheap, and the design matrix is learned from pairs. One learner acquires the codes of
largest predicted variance, ten at a time; another acquires at random. The first has the smaller error after twenty.

    python examples/active_learning_loop.py
"""

from collections.abc import Callable

import numpy as np

from bayeslista import SpikeSlabNet
from bayeslista.active import select_batch, total_variance
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse

N_START, N_POOL, BATCH, ROUNDS, SEEDS = 25, 256, 10, 2, 6

Strategy = Callable[[SpikeSlabNet, np.ndarray, int], np.ndarray]


class ActiveLearner:
    """A model with an acquisition strategy."""

    def __init__(self, model: SpikeSlabNet, strategy: Strategy, X: np.ndarray, y: np.ndarray) -> None:
        self.model, self.strategy = model, strategy
        self.teach(X, y)

    def query(self, X_pool: np.ndarray, n: int) -> np.ndarray:
        """Rows of the pool to acquire."""
        return self.strategy(self.model, X_pool, n)

    def teach(self, X: np.ndarray, y: np.ndarray) -> None:
        """Update the model with new pairs."""
        self.model.partial_fit(X, y)


def largest_variance(model: SpikeSlabNet, X_pool: np.ndarray, n: int) -> np.ndarray:
    """Observations whose codes have the largest predicted variance."""
    return select_batch(total_variance(model.predict_dist(X_pool)), n)


def at_random(seed: int) -> Strategy:
    """Random observations."""
    random = np.random.default_rng(seed)
    return lambda _, X_pool, n: random.choice(len(X_pool), n, replace=False)


def final_error(strategy: Strategy, seed: int) -> float:
    """NMSE on new signals after all rounds of one learner."""
    data = make_sparse_codes(N_START + N_POOL, n_test=256, n_observed=15, n_components=20, random_state=seed)
    X_pool, y_pool = data.Y_train[N_START:], data.B_train[N_START:]
    model = SpikeSlabNet(mode="fast", random_state=0)
    learner = ActiveLearner(model, strategy, data.Y_train[:N_START], data.B_train[:N_START])
    for _ in range(ROUNDS):
        chosen = learner.query(X_pool, BATCH)
        learner.teach(X_pool[chosen], y_pool[chosen])
        X_pool, y_pool = np.delete(X_pool, chosen, axis=0), np.delete(y_pool, chosen, axis=0)
    return nmse(data.B_test, learner.model.predict(data.Y_test))


active = np.array([final_error(largest_variance, seed) for seed in range(SEEDS)])
chance = np.array([final_error(at_random(seed), seed) for seed in range(SEEDS)])
gain = chance - active
margin = 2 * gain.std(ddof=1) / np.sqrt(SEEDS)
print(
    f"NMSE after {ROUNDS * BATCH} codes, mean of {SEEDS} problems: {chance.mean():.3f} at random, "
    f"{active.mean():.3f} by variance; the gain is {gain.mean():.3f}, two standard errors of it are {margin:.3f}"
)
assert gain.mean() > margin, "no better than random acquisition"
