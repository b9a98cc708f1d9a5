"""Training pairs with missing values: these become what matrix and code predict, and noise of their sensor."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from bayeslista.spike_slab.empirical_bayes import Statistics, add_statistics, gather_statistics, matrix_posterior

_ROUNDS = 6  # of matrix and imputed values in turn: their error falls by the share of missing values in each


def check_sensors(missing: Bool[np.ndarray, "n K"]) -> None:
    """Refuse a sensor that no training row has a value of."""
    gone = np.flatnonzero(missing.all(axis=0))
    if len(gone):
        raise ValueError(
            f"Column {gone[0]} of X (counted from 0) is missing in every row, so that nothing can be learned of that "
            "sensor. Leave it out, and its row of design_matrix if there is one."
        )


def impute(
    Y: Float[np.ndarray, "n K"],
    B: Float[np.ndarray, "n D"],
    design_matrix: Float[np.ndarray, "K D"] | None,
    random: np.random.Generator,
    before: Sequence[Statistics] = (),
) -> Float[np.ndarray, "n K"]:
    """The observations without missing values; noise is added, so that no variance is too small.

    A matrix that is not given is learned in turn with them, and with the pairs before; its uncertainty is that of
    complete pairs.
    """
    missing = np.isnan(Y)
    if not missing.any():
        return Y
    noise = random.standard_normal(Y.shape)
    count = np.sum(~missing, axis=0)
    full = np.where(missing, 0.0, Y)
    for _ in range(1 if design_matrix is not None else _ROUNDS):
        X = design_matrix
        if X is None:
            X = matrix_posterior(add_statistics(gather_statistics(full, B), *before)).mean
        predicted = B @ X.T
        squares = np.sum(np.where(missing, 0.0, Y - predicted) ** 2, axis=0)
        overall = np.sum(squares) / max(float(np.sum(count)), 1.0)  # of sensors that have no value here
        deviation = np.sqrt(np.where(count > 0, squares / np.maximum(count, 1), overall))
        full = np.where(missing, predicted + deviation * noise, Y).astype(Y.dtype)
    return full
