"""What is given to SpikeSlabNet of the model: ranges, shapes, and the size of observations that it implies."""

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils._param_validation import Interval

from bayeslista.estimators.validation import POSITIVE, check_arguments, check_finite, naming, refuse_sparse
from bayeslista.numerics.batching import root_mean_square
from bayeslista.spike_slab.exact import LARGEST_DIMENSION
from bayeslista.spike_slab.sensor_noise import Whitening, whitening_of

_ASYMMETRY = 1e-8  # and negative eigenvalues, in units of the largest entry: rounding

RANGES = {
    "prob_active": Interval(Real, 0, 1, closed="neither"),
    "slab_var": POSITIVE,
    "noise_std": Interval(Real, 0, 1e150, closed="left"),
    "slab_weight": POSITIVE,
}


def check_given(model: Any) -> None:
    """Refuse numbers out of range, and slabs without a weight for each part."""
    for name, interval in RANGES.items():
        value = getattr(model, name)
        for number in np.ravel([] if value is None else value).tolist():
            check_arguments(type(model).__name__, {name: [interval]}, **{name: number})
    parts, weights = np.shape(np.asarray(model.slab_var)), np.shape(np.asarray(model.slab_weight))
    if weights != (parts[:1] if model.slab_weight is not None else ()) or (not weights and len(parts) > 1):
        raise ValueError(
            f"slab_var has shape {parts} and slab_weight {weights}. A slab of several parts has a weight for each: "
            "pass slab_var of shape (n_parts,) or (n_parts, n_components) and slab_weight of shape (n_parts,)."
        )


def given_noise(model: Any, matrix: NDArray[Any] | None, n_observed: int) -> tuple[Whitening | None, float | None]:
    """Whitening and variance of the noise that is given; None of each where it is white, or not given."""
    if model.noise_covariance is not None:
        return whitening_of(_checked_covariance(model, n_observed), matrix)
    if model.noise_std is None:
        return None, None
    std = numbers(model.noise_std)
    if np.shape(std) not in ((), (n_observed,)):
        raise ValueError(
            f"noise_std has shape {np.shape(std)}, expected a number or shape ({n_observed},). Pass one for every "
            "sensor."
        )
    return whitening_of(np.diag(np.square(std))) if np.ndim(std) else (None, std**2)


def _checked_covariance(model: Any, n_observed: int) -> NDArray[Any]:
    if model.noise_std is not None:
        raise ValueError("noise_std and noise_covariance are both given. Pass one of them, and None for the other.")
    refuse_sparse("noise_covariance", model.noise_covariance)
    with naming("noise_covariance"):
        covariance = np.asarray(check_array(model.noise_covariance, dtype=np.float64, ensure_all_finite=False))
    check_finite("noise_covariance", covariance)
    if covariance.shape != (n_observed, n_observed):
        raise ValueError(
            f"noise_covariance has shape {covariance.shape}, expected ({n_observed}, {n_observed}). Pass a row and a "
            "column for every sensor."
        )
    size = float(np.max(np.abs(covariance)))
    if np.max(np.abs(covariance - covariance.T)) > _ASYMMETRY * size:
        raise ValueError("noise_covariance is not symmetric. Pass (C + C.T) / 2 if that is what you mean.")
    least = float(np.linalg.eigvalsh(covariance)[0])
    if least < -_ASYMMETRY * size * n_observed:
        raise ValueError(
            f"noise_covariance has the negative eigenvalue {least:.3g}, so it is no covariance. Pass a positive "
            "semidefinite matrix."
        )
    return covariance


def expected_size(matrix: NDArray[Any], model: Any) -> float:
    """The root mean square of an observation, about, under what is given."""
    noise_std = model.noise_std
    if model.noise_covariance is not None:
        noise_std = np.sqrt(np.diag(_checked_covariance(model, len(matrix))))
    prob, var, noise = (np.atleast_1d(numbers(part)) for part in (model.prob_active, model.slab_var, noise_std))
    code = root_mean_square(np.sqrt(var)) * np.sqrt(matrix.shape[1] * prob.mean())
    return float(np.hypot(root_mean_square(matrix.astype(np.float64)) * code, noise.max()))


def check_shapes(model: Any, n_components: int) -> None:
    """Refuse arrays of other sizes than those of the data, and codes too large for the sampler."""
    if model.mode == "exact" and n_components > LARGEST_DIMENSION:
        raise ValueError(
            f"mode='exact' keeps a square of the {n_components} coefficients for every chain, and takes at most "
            f"{LARGEST_DIMENSION}. Use mode='fast'."
        )
    if np.shape(np.asarray(model.prob_active)) not in ((), (n_components,)):
        raise ValueError(
            f"prob_active has shape {np.shape(np.asarray(model.prob_active))}, expected a number or shape "
            f"({n_components},). Pass one for every coefficient."
        )
    shape = np.shape(np.asarray(model.slab_var))
    if (model.slab_weight is None and shape not in ((), (n_components,))) or (
        len(shape) == 2 and shape[1] != n_components
    ):
        raise ValueError(
            f"slab_var has shape {shape} for {n_components} coefficients. Pass a number or one for every "
            "coefficient, or, with slab_weight, shape (n_parts,) or (n_parts, n_components)."
        )


def numbers(values: Any) -> Any:
    """A number as a float, anything else as an array; None stays."""
    if values is None:
        return None
    return np.asarray(values, np.float64) if np.ndim(values) else float(values)
