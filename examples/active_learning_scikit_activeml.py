"""SpikeSlabNet inside scikit-activeml: its loop and its strategies, with whole codes and with a single coefficient.

scikit-activeml supports a scalar target, NaN where it is missing. With whole codes,

- strategies that use observations alone, such as GreedySamplingX, need only the labelled rows;
- any acquisition function of bayeslista.active becomes a strategy of the same interface: ScoreSampling below.

With a single coefficient the model goes into SklearnNormalRegressor, and all strategies for regressors work.

    pip install "bayeslista[active]"
    python examples/active_learning_scikit_activeml.py
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from skactiveml.base import SingleAnnotatorPoolQueryStrategy
from skactiveml.pool import ExpectedModelVarianceReduction, GreedySamplingX, KLDivergenceMaximization, RandomSampling
from skactiveml.regressor import SklearnNormalRegressor
from skactiveml.utils import simple_batch

from bayeslista import SpikeSlab, SpikeSlabNet
from bayeslista.active import total_variance
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse

N_START, N_POOL, BATCH, ROUNDS, SEEDS = 25, 256, 10, 2, 6


class ScoreSampling(SingleAnnotatorPoolQueryStrategy):
    """Acquire the codes of largest score by a function of bayeslista.active."""

    def __init__(
        self,
        score: Callable[[SpikeSlab], np.ndarray] = total_variance,
        missing_label: float = np.nan,
        random_state: Any = None,
    ) -> None:
        super().__init__(missing_label=missing_label, random_state=random_state)
        self.score = score

    def query(
        self,
        X: np.ndarray,
        y: np.ndarray,
        model: SpikeSlabNet,
        candidates: np.ndarray | None = None,
        batch_size: int = 1,
        return_utilities: bool = False,
    ) -> Any:
        """Rows to acquire; `y` is NaN where the code is missing."""
        X, y, candidates, batch_size, return_utilities = self._validate_data(
            X, y, candidates, batch_size, return_utilities
        )
        X_candidates, rows = self._transform_candidates(candidates, X, y)
        utilities = self.score(model.predict_dist(X_candidates))
        if rows is not None:
            utilities, chosen = np.full(len(X), np.nan), utilities
            utilities[rows] = chosen
        return simple_batch(utilities, self.random_state_, batch_size, return_utilities)


def final_error(strategy: SingleAnnotatorPoolQueryStrategy, seed: int) -> float:
    """NMSE on new signals after all rounds."""
    data = make_sparse_codes(N_START + N_POOL, n_test=256, n_observed=15, n_components=20, random_state=seed)
    X, codes = data.Y_train, data.B_train
    known = np.where(np.arange(len(X)) < N_START, 0.0, np.nan)
    model = SpikeSlabNet(mode="fast", random_state=0).partial_fit(X[:N_START], codes[:N_START])
    for _ in range(ROUNDS):
        options = {"model": model} if isinstance(strategy, ScoreSampling) else {}
        asked = strategy.query(X, known, batch_size=BATCH, **options)
        known[asked] = 0.0
        model.partial_fit(X[asked], codes[asked])
    return nmse(data.B_test, model.predict(data.Y_test))


errors = {
    kind.__name__: np.array([final_error(kind(random_state=seed), seed) for seed in range(SEEDS)])
    for kind in (RandomSampling, GreedySamplingX, ScoreSampling)
}
gain = errors["RandomSampling"] - errors["ScoreSampling"]
margin = 2 * gain.std(ddof=1) / np.sqrt(SEEDS)
for name, error in errors.items():
    print(f"{name:16} NMSE {error.mean():.3f} after {ROUNDS * BATCH} codes, mean of {SEEDS} problems")
print(f"ScoreSampling gains {gain.mean():.3f} over random acquisition; two standard errors of that are {margin:.3f}")
assert gain.mean() > margin, "no better than random acquisition"

# One coefficient: the library's own strategies for regressors, which read predict(X, return_std=True).
data = make_sparse_codes(60, n_test=0, n_observed=15, n_components=20, random_state=0)
X, y = data.Y_train, np.where(np.arange(60) < 40, data.B_train[:, 0], np.nan)
model = SpikeSlabNet(mode="fast", training="none", random_state=0)
regressor = SklearnNormalRegressor(model, random_state=0).fit(X, y)
mean, std = regressor.predict(X, return_std=True)
assert np.array_equal(regressor.predict_target_distribution(X).std(), std)
for kind in (ExpectedModelVarianceReduction, KLDivergenceMaximization):
    asked = kind(random_state=0).query(X, y, reg=regressor, fit_reg=False, batch_size=1)
    print(
        f"{kind.__name__} acquires row {asked[0]}, where the coefficient is {mean[asked[0]]:.2f} ± {std[asked[0]]:.2f}"
    )
    assert np.isnan(y[asked]).all()
