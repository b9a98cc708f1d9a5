"""Prediction block by block, lazily, and into files."""

import os
import shutil
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bayeslista.estimators import hooks
from bayeslista.estimators.base import BaseSparseCoder
from bayeslista.estimators.distributional import DistributionalSparseCoder
from bayeslista.estimators.validation import check_arguments
from bayeslista.out_of_core.dask._row_blocks import dask_array, in_rows, known

_MOMENTS = ("mean", "std", "prob_active")
_PARAMETERS = ("prob_active", "slab_mean", "slab_var")


class SpikeSlabBlocks(NamedTuple):
    """The parameters of a :class:`bayeslista.SpikeSlab`, as dask arrays that are not computed yet.

    Attributes
    ----------
    prob_active, slab_mean, slab_var : dask array of shape (n_samples, n_components) or (n_samples,)
        What `bayeslista.SpikeSlab` takes once they are computed, together, by ``dask.compute(*blocks)``. Of a slab that
        is a mixture, its mean and variance.

    Examples
    --------
    >>> import dask
    >>> import dask.array as da
    >>> from bayeslista import SpikeSlab
    >>> from bayeslista.out_of_core.dask import SpikeSlabBlocks
    >>> blocks = SpikeSlabBlocks(*da.full((3, 4, 2), 0.5))
    >>> SpikeSlab(*dask.compute(*blocks)).shape
    (4, 2)
    """

    prob_active: Any
    slab_mean: Any
    slab_var: Any


def predict(
    model: BaseSparseCoder,
    X: Any,
    return_std: bool = False,
    prob_active: bool = False,
    *,
    batch_size: int | None = None,
) -> Any:
    """Predict the codes of observations lazily, block by block.

    Parameters
    ----------
    model : fitted estimator
        It is sent to each worker once.
    X : dask array, or array of shape (n_samples, n_observed)
        Observations, one a row: a dask array, whose blocks of rows are kept; or a NumPy array, memory map, or array of
        zarr or h5py, of which a block is read at a time. Workers open memory maps by the name of the file.
    return_std : bool, default=False
        Whether to return standard deviations, too; `BayesLISTA` and `SpikeSlabNet` have them.
    prob_active : bool, default=False
        Whether to return the probabilities of not being zero, too.
    batch_size : int or None, default=None
        Observations in a block, rounded up to those that are computed together. None is about a million numbers, or
        the blocks that a dask array has.

    Returns
    -------
    mean : dask array of shape (n_samples, n_components) or (n_samples,)
        What `model.predict` returns, to the last bit where X is no dask array or a `batch_size` is given.
    std, prob_active : dask array of the same shape
        If they were asked for. Compute them together, by ``dask.compute(mean, std)``: they come from one task.

    Raises
    ------
    ValueError
        If the model has no such answer, or the shape of X is not that of the fit. A block that has something else than
        finite numbers is refused when it is computed.

    Examples
    --------
    >>> import dask
    >>> import dask.array as da
    >>> from bayeslista import SpikeSlabNet
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.out_of_core.dask import predict
    >>> data = make_sparse_codes(n_train=100, n_test=300, n_observed=6, n_components=8, random_state=0)
    >>> model = SpikeSlabNet(2, mode="fast", training="none").fit(data.Y_train, data.B_train)
    >>> mean, std = predict(model, da.from_array(data.Y_test, chunks=(100, 6)), return_std=True)
    >>> mean
    dask.array<getitem, shape=(300, 8), dtype=float64, chunksize=(100, 8), chunktype=numpy.ndarray>
    >>> [part.shape for part in dask.compute(mean, std)]
    [(300, 8), (300, 8)]
    """
    _check_booleans("predict", return_std=return_std, prob_active=prob_active)
    wanted = _wanted(return_std, prob_active)
    _check_model(model, wanted)
    arrays = _lazily(model, _rows(model, X, batch_size), wanted)
    return arrays if len(arrays) > 1 else arrays[0]


def predict_dist(model: DistributionalSparseCoder, X: Any, *, batch_size: int | None = None) -> SpikeSlabBlocks:
    """Predict a distribution for every coefficient lazily, block by block.

    Parameters
    ----------
    model : BayesLISTA or SpikeSlabNet
        Fitted.
    X : dask array, or array of shape (n_samples, n_observed)
        As for `predict`.
    batch_size : int or None, default=None
        As for `predict`.

    Returns
    -------
    SpikeSlabBlocks
        Parameters of the distributions that `model.predict_dist` returns, not computed yet.

    Raises
    ------
    ValueError
        As for `predict`.

    Examples
    --------
    >>> import dask
    >>> from bayeslista import SpikeSlab, SpikeSlabNet
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.out_of_core.dask import predict_dist
    >>> data = make_sparse_codes(n_train=100, n_test=300, n_observed=6, n_components=8, random_state=0)
    >>> model = SpikeSlabNet(2, mode="fast", training="none").fit(data.Y_train, data.B_train)
    >>> dist = SpikeSlab(*dask.compute(*predict_dist(model, data.Y_test)))
    >>> bool((dist.prob_active == model.predict_dist(data.Y_test).prob_active).all())
    True
    """
    _check_model(model, _PARAMETERS)
    return SpikeSlabBlocks(*_lazily(model, _rows(model, X, batch_size), _PARAMETERS))


def predict_to_zarr(
    model: BaseSparseCoder,
    X: Any,
    path: str | os.PathLike[str],
    *,
    return_std: bool = True,
    prob_active: bool = True,
    batch_size: int | None = None,
    overwrite: bool = False,
) -> Any:
    """Predict the codes of observations into a zarr group, in memory that does not grow with them.

    Workers write their own blocks. The group takes its name when all are written; if anything fails, nothing is left.

    Parameters
    ----------
    model : fitted estimator
        Any of bayeslista.
    X : dask array, or array of shape (n_samples, n_observed)
        As for `predict`.
    path : str or path-like
        The folder of the group, in one that exists and that all workers see.
    return_std, prob_active : bool, default=True
        Whether to write standard deviations, and probabilities of not being zero, beside the mean. `ISTA`, `FISTA` and
        `LISTA` have neither, and need False for both.
    batch_size : int or None, default=None
        Observations in a block and in a chunk of the file. None is about a million numbers.
    overwrite : bool, default=False
        Whether to replace what is there.

    Returns
    -------
    zarr.Group
        With arrays ``mean``, ``std`` and ``prob_active``, open for reading.

    Raises
    ------
    ValueError
        As for `predict`.
    FileExistsError
        If there is something at the path already.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista import SpikeSlabNet
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.out_of_core.dask import predict_to_zarr
    >>> data = make_sparse_codes(n_train=100, n_test=300, n_observed=6, n_components=8, random_state=0)
    >>> model = SpikeSlabNet(2, mode="fast", training="none").fit(data.Y_train, data.B_train)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     group = predict_to_zarr(model, data.Y_test, Path(folder) / "codes.zarr")
    ...     sorted(group), group["mean"][:2].shape
    (['mean', 'prob_active', 'std'], (2, 8))
    """
    _check_booleans("predict_to_zarr", return_std=return_std, prob_active=prob_active, overwrite=overwrite)
    wanted = _wanted(return_std, prob_active)
    _check_model(model, wanted)
    target = Path(path)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists; pass another path, or overwrite=True to replace it.")
    da, zarr = dask_array(), _zarr()
    rows = known(_rows(model, X, None))
    rows = _rows(model, rows, _default_rows(model) if batch_size is None else batch_size)
    unfinished = target.with_name(f".unfinished-{uuid.uuid4().hex}")
    try:
        group = zarr.open_group(unfinished, mode="w-")
        sources = _lazily(model, rows, wanted)
        files = [
            group.create_array(
                name,
                shape=each.shape,
                chunks=tuple(max(n[0], 1) for n in each.chunks),
                dtype=each.dtype,
                compressors=None,
            )
            for name, each in zip(wanted, sources, strict=True)
        ]
        # Every block is of whole chunks of the file, so that no two tasks write to the same one.
        da.store(list(sources), files, lock=False)
        replaced = target.with_name(f".replaced-{uuid.uuid4().hex}")
        if target.exists():
            target.rename(replaced)
        unfinished.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return zarr.open_group(target, mode="r")


def _check_booleans(function: str, **arguments: bool) -> None:
    check_arguments(function, {name: ["boolean"] for name in arguments}, **arguments)


def _wanted(std: bool, prob_active: bool) -> tuple[str, ...]:
    return tuple(name for name, asked in zip(_MOMENTS, (True, std, prob_active), strict=True) if asked)


def _check_model(model: Any, wanted: tuple[str, ...]) -> None:
    if not isinstance(model, BaseSparseCoder):
        raise ValueError(f"The model is a {type(model).__name__}; pass a fitted estimator of bayeslista.")
    if wanted != ("mean",) and not isinstance(model, DistributionalSparseCoder):
        raise ValueError(
            f"{type(model).__name__} predicts codes without distributions; use BayesLISTA or SpikeSlabNet, or ask with "
            "return_std=False and prob_active=False for the codes alone."
        )
    check_is_fitted(model, "design_matrix_")


def _default_rows(model: Any) -> int:
    """Rows of about a million numbers."""
    return max(2**20 // (model.n_features_in_ + model.n_components_), 1)


def _rows(model: Any, X: Any, batch_size: int | None) -> Any:
    """Observations in blocks of rows, as many values each as in the fit."""
    n_numbers = model.n_features_in_ + model.n_components_
    rows = in_rows("X", X, batch_size, hooks.rows_together(model), n_numbers)
    if rows.ndim != 2 or rows.shape[1] != model.n_features_in_:
        raise ValueError(
            f"X has shape {rows.shape}, expected (n_samples, {model.n_features_in_}) as in fit; pass one observation a "
            "row."
        )
    if rows.shape[0] == 0:
        raise ValueError("X has no rows; pass at least one observation.")
    return rows


def _lazily(model: Any, rows: Any, wanted: tuple[str, ...]) -> tuple[Any, ...]:
    """The arrays wanted, computed by one task a block."""
    import dask

    shape = hooks.code_shape(model)
    whole = rows.map_blocks(
        _answer,
        dask.delayed(model, traverse=False),
        wanted=wanted,
        chunks=((len(wanted),), rows.chunks[0], *((n,) for n in shape)),
        drop_axis=() if shape else 1,
        new_axis=0,
        dtype=model.dtype_,
        meta=np.empty((0,) * (2 + len(shape)), model.dtype_),
        name=f"predict-{uuid.uuid4().hex}",
    )
    return tuple(whole[i] for i in range(len(wanted)))


def _answer(block: NDArray[Any], model: Any, wanted: tuple[str, ...], block_id: tuple[int, ...]) -> NDArray[Any]:
    """The arrays wanted of a block, stacked."""
    try:
        if wanted == ("mean",):
            return model.predict(block)[None]
        dist = model.predict_dist(block)
    except ValueError as error:
        raise ValueError(f"Block {block_id[1]} of X: {error}") from error
    return np.stack([_part(dist, name) for name in wanted])


def _part(dist: Any, name: str) -> NDArray[Any]:
    return getattr(dist, name)() if name in ("mean", "std") else getattr(dist, name)


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise ImportError("predict_to_zarr needs zarr; pip install 'bayeslista[dask]'.") from error
    return zarr
