"""A spike at zero for Gaussian predictions, fitted to held-out pairs, so that they have a log score."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayeslista.bayes_lista.output_calibration import Calibration, calibrated_spike_slab, fit_calibration
from bayeslista.distributions import SpikeSlab
from bayeslista.metrics.forecasts import read_codes, read_forecast
from bayeslista.numerics.checks import check_range

__all__ = ["fit_spike_head", "with_spike"]

_FARTHEST = 1e6  # means of more standard deviations from zero count as that far


def fit_spike_head(mean: ArrayLike, std: ArrayLike, B: ArrayLike) -> Calibration:
    """Fit P(active) as a function of ``|mean| / std`` to held-out pairs.

    It is the logistic head of `BayesLISTA`; see :mod:`bayeslista.bayes_lista.output_calibration`.

    Parameters
    ----------
    mean, std : array-like
        Predictions for pairs outside the training set.
    B : array-like
        Their true codes.

    Returns
    -------
    Calibration
        For :func:`with_spike`.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.metrics import fit_spike_head, with_spike
    >>> random = np.random.default_rng(0)
    >>> B = random.normal(size=(100, 10)) * (random.random((100, 10)) < 0.2)
    >>> mean = B + random.normal(0, 0.1, B.shape)
    >>> head = fit_spike_head(mean, 0.1, B)
    >>> with_spike([0.0, 1.0], 0.1, head).prob_active.round(1)
    array([0., 1.])
    """
    score = _score(mean, std)
    codes = np.broadcast_to(read_codes(read_forecast((mean, std)), B), score.shape)
    check_range("B", codes)
    return fit_calibration(score, 1.0, 0.0, codes)


def with_spike(mean: ArrayLike, std: ArrayLike, head: Calibration) -> SpikeSlab:
    """Spike and slab whose slab is a Gaussian prediction and whose P(active) is that of the head.

    Parameters
    ----------
    mean, std : array-like
        The Gaussian prediction.
    head : Calibration
        From :func:`fit_spike_head`.

    Returns
    -------
    SpikeSlab
        With ``slab_mean`` and ``slab_var`` as predicted. Its mean is nearer to zero than `mean`.

    Examples
    --------
    >>> from bayeslista.metrics import fit_spike_head, with_spike
    >>> head = fit_spike_head([0.0, 0.1, 2.0, -3.0], 1.0, [0.0, 0.0, 2.1, -2.8])
    >>> with_spike(2.5, 1.0, head).slab_mean
    array(2.5)
    """
    if not isinstance(head, Calibration):
        raise TypeError(f"head must be what fit_spike_head returns, got {type(head).__name__}.")
    prob_active, _, _ = calibrated_spike_slab(head, _score(mean, std), 1.0, 0.0)
    return SpikeSlab(prob_active, mean, np.square(np.asarray(std, np.float64)))


def _score(mean: ArrayLike, std: ArrayLike) -> NDArray[np.float64]:
    """Mean over standard deviation, bounded."""
    read_forecast((mean, std))
    m, s = np.broadcast_arrays(np.asarray(mean, np.float64), np.asarray(std, np.float64))
    check_range("std", s)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        score = np.where(m == 0.0, 0.0, m / s)
    return np.clip(score, -_FARTHEST, _FARTHEST)
