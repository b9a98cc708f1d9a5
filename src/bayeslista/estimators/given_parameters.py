"""What is given to SpikeSlabNet of the model: ranges, shapes, and the size of observations that it implies."""

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from bayeslista.estimators.validation import POSITIVE, check_arguments
from bayeslista.numerics.batching import root_mean_square
from bayeslista.spike_slab.exact import LARGEST_DIMENSION

RANGES = {
    "prob_active": Interval(Real, 0, 1, closed="neither"),
    "slab_var": POSITIVE,
    "noise_std": Interval(Real, 0, 1e150, closed="left"),
    "slab_weight": POSITIVE,
}


def check_given(model: Any, takes_arrays: bool = False) -> None:
    """Refuse numbers out of range, arrays where the mode takes none, and slabs without a weight for each part."""
    for name, interval in RANGES.items():
        value = getattr(model, name)
        if np.ndim(np.asarray(value)) and model.mode != "exact" and not takes_arrays:
            raise ValueError(
                f"{name} has shape {np.shape(value)}, which mode={model.mode!r} does not take. Pass a number, or "
                "mode='exact'."
            )
        for number in np.ravel([] if value is None else value).tolist():
            check_arguments(type(model).__name__, {name: [interval]}, **{name: number})
    parts, weights = np.shape(np.asarray(model.slab_var)), np.shape(np.asarray(model.slab_weight))
    if weights != (parts[:1] if model.slab_weight is not None else ()) or (not weights and len(parts) > 1):
        raise ValueError(
            f"slab_var has shape {parts} and slab_weight {weights}. A slab of several parts has a weight for each: "
            "pass slab_var of shape (n_parts,) or (n_parts, n_components) and slab_weight of shape (n_parts,)."
        )


def expected_size(matrix: NDArray[Any], model: Any) -> float:
    """The root mean square of an observation, about, under what is given."""
    prob, var, noise = (np.atleast_1d(numbers(part)) for part in (model.prob_active, model.slab_var, model.noise_std))
    code = root_mean_square(np.sqrt(var)) * np.sqrt(matrix.shape[1] * prob.mean())
    return float(np.hypot(root_mean_square(matrix.astype(np.float64)) * code, noise.max()))


def check_exact_shapes(model: Any, n_observed: int, n_components: int) -> None:
    """Refuse arrays of other sizes than those of the data, and codes too large for the sampler."""
    if n_components > LARGEST_DIMENSION:
        raise ValueError(
            f"mode='exact' keeps a square of the {n_components} coefficients for every chain, and takes at most "
            f"{LARGEST_DIMENSION}. Use mode='fast'."
        )
    sizes = (("prob_active", model.prob_active, n_components), ("noise_std", model.noise_std, n_observed))
    for name, value, size in sizes:
        if np.shape(np.asarray(value)) not in ((), (size,)):
            raise ValueError(
                f"{name} has shape {np.shape(np.asarray(value))}, expected a number or shape ({size},). Pass one "
                f"for every {'sensor' if name == 'noise_std' else 'coefficient'}."
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
