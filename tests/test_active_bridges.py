"""Active learning outside the package: a loop of one's own, and scikit-activeml."""

import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest

from bayeslista import ISTA, SpikeSlab
from bayeslista.active import support_entropy, total_variance

EXAMPLES = Path(__file__).parents[1] / "examples"
X = np.arange(12.0).reshape(6, 2)
KNOWN = np.array([0.0, np.nan, 0.0, np.nan, np.nan, np.nan])


class Believer:
    """Believes in variances that grow with the observations, and in chances that fall with them."""

    def predict_dist(self, X):
        size = np.asarray(X)[:, :1]
        return SpikeSlab(np.repeat(0.5 / (1.0 + size), 3, axis=1), 0.0, (1.0 + size) ** 3)


@pytest.mark.no_cover
def test_the_loop_of_query_and_teach_beats_chance():
    runpy.run_path(str(EXAMPLES / "active_learning_loop.py"))


@pytest.fixture(scope="module")
def example():
    """What the example defines and computes; it checks its own claims."""
    pytest.importorskip("skactiveml")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", r"\d+ of \d+ answers leave more", UserWarning)
        return runpy.run_path(str(EXAMPLES / "active_learning_scikit_activeml.py"))


@pytest.mark.slow
def test_strategies_of_scikit_activeml_run_and_a_score_beats_chance(example):
    assert example["gain"].mean() > example["margin"] > 0.0
    assert example["std"].shape == (60,)


@pytest.mark.parametrize(
    "name", ["GreedySamplingTarget", "ExpectedModelChangeMaximization", "ExpectedModelOutputChange"]
)
def test_other_strategies_for_regressors_ask_for_one_of_the_candidates(example, name):
    import skactiveml.pool

    strategy = getattr(skactiveml.pool, name)(random_state=0)
    asked = strategy.query(example["X"], example["y"], reg=example["regressor"], fit_reg=False, candidates=[44, 45])
    assert asked.tolist() in ([44], [45])


@pytest.mark.parametrize(("score", "first"), [(total_variance, [5, 4]), (support_entropy, [1, 3])])
def test_a_score_is_a_strategy_that_asks_for_the_best_of_those_unknown(example, score, first):
    strategy = example["ScoreSampling"](score, random_state=0)
    asked, utilities = strategy.query(X, KNOWN, Believer(), batch_size=2, return_utilities=True)
    assert asked.tolist() == first
    np.testing.assert_array_equal(np.isnan(utilities[0]), KNOWN == 0.0)
    unknown = np.isnan(KNOWN)
    np.testing.assert_array_equal(utilities[0][unknown], score(Believer().predict_dist(X[unknown])))


def test_candidates_may_be_rows_or_observations_of_their_own(example):
    strategy = example["ScoreSampling"](random_state=0)
    assert strategy.query(X, KNOWN, Believer(), candidates=[1, 3]).tolist() == [3]
    assert strategy.query(X, KNOWN, Believer(), candidates=X[[4, 1]]).tolist() == [0]


def test_scikit_activeml_refuses_whole_codes_as_documented():
    pytest.importorskip("skactiveml")
    from skactiveml.pool import GreedySamplingX
    from skactiveml.regressor import SklearnRegressor

    codes = np.ones((6, 3))
    with pytest.raises(ValueError, match="1d array"):
        SklearnRegressor(ISTA()).fit(X, codes)
    with pytest.raises(ValueError, match="1d array"):
        GreedySamplingX().query(X, codes)
