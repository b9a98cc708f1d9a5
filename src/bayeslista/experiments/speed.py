"""How fast the estimators are on this machine: a few numbers in a minute.

``make bench`` in a checkout measures far more, beside the machine's own limits and beside other libraries.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bayeslista.datasets import make_sparse_codes
from bayeslista.estimators import FISTA, ISTA, LISTA, BayesLISTA, SpikeSlabNet

__all__ = ["Speed", "measure_speed"]


class Speed(NamedTuple):
    """What an estimator needs, in seconds.

    Attributes
    ----------
    estimator : str
        Which.
    first_fit : float
        A fit as short as can be, with compilation.
    fit : float
        The same fit again.
    predict : float
        A prediction for one signal of many, with its standard deviations where there are any.
    """

    estimator: str
    first_fit: float
    fit: float
    predict: float


def measure_speed(
    n_components: int = 100,
    n_observed: int = 50,
    n_layers: int = 10,
    n_train: int = 500,
    n_signals: int = 4096,
    dtype: str = "float64",
) -> Iterator[Speed]:
    """Measure every estimator on the paper's kind of problem.

    Parameters
    ----------
    n_components, n_observed, n_layers : int
        D, K and L.
    n_train, n_signals : int
        Pairs to learn from, and signals to predict.
    dtype : {"float64", "float32"}
        The floating type of the data.

    Yields
    ------
    Speed
        One estimator after the other. Those that learn in passes make five; SpikeSlabNet is not calibrated.

    Examples
    --------
    >>> from bayeslista.experiments.speed import measure_speed
    >>> next(measure_speed(8, 6, 2, n_train=10, n_signals=10)).estimator
    'ISTA'
    """
    data = make_sparse_codes(n_train, n_signals, n_observed, n_components, random_state=0)
    pairs = data.Y_train.astype(dtype), data.B_train.astype(dtype)
    signals = data.Y_test.astype(dtype)
    given: dict[str, Any] = {"n_layers": n_layers, "design_matrix": data.design_matrix}
    passes: dict[str, Any] = {"max_iter": 5, "tol": 0.0, "random_state": 0}
    models = {
        "ISTA": ISTA(**given),
        "FISTA": FISTA(**given),
        "LISTA": LISTA(**given, **passes),
        "BayesLISTA": BayesLISTA(**given, **passes),
        "SpikeSlabNet, fast": SpikeSlabNet(**given, mode="fast", calibration_steps=0),
        "SpikeSlabNet": SpikeSlabNet(**given, calibration_steps=0),
    }
    for name, model in models.items():
        keywords = {"return_std": True} if hasattr(model, "predict_dist") else {}

        def fit(model: Any = model) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of numbers that five passes leave, which are not shown
                model.fit(*pairs)

        def predict(model: Any = model, keywords: dict[str, Any] = keywords) -> None:
            model.predict(signals, **keywords)

        first, again = _seconds(fit), _seconds(fit)
        predict()
        yield Speed(name, first, again, min(_seconds(predict) for _ in range(3)) / len(signals))


def _seconds(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return float(np.maximum(time.perf_counter() - begin, 1e-9))
