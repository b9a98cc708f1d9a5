"""Training on pairs that stay on their workers."""

from contextlib import nullcontext
from copy import copy
from typing import Any, TypeVar

from bayeslista.estimators import BayesLISTA, SpikeSlabNet, hooks
from bayeslista.estimators.validation import rollback
from bayeslista.out_of_core.dask._block_statistics import learn_from_statistics
from bayeslista.out_of_core.dask._pair_blocks import PairBlocks
from bayeslista.out_of_core.dask._rounds import learn_in_rounds

_Model = TypeVar("_Model", BayesLISTA, SpikeSlabNet)


def fit(model: _Model, X: Any, y: Any, *, client: Any = None, batch_size: int | None = None) -> _Model:
    """Learn from pairs in blocks, on the workers that hold them.

    `SpikeSlabNet` adds up sufficient statistics of the blocks, with the same result as its own `fit`. `BayesLISTA`
    learns by local steps and averaging: in a round, every block is one epoch from the same parameters, and the results
    are averaged. A task depends on its block and on the last average only, so that Dask repeats the tasks of a lost
    worker with the same result. If anything fails, the model is left as it was.

    Parameters
    ----------
    model : BayesLISTA or SpikeSlabNet
        ``inference="adf"`` is sequential and refused.
    X : dask array, or array of shape (n_samples, n_observed)
        Observations, one a row: a dask array, whose blocks of rows are kept; or a NumPy array, memory map, or array of
        zarr or h5py, of which workers read their blocks.
    y : dask array, or array of shape (n_samples, n_components) or (n_samples,)
        Their codes, cut as X is.
    client : distributed.Client, default=None
        Where to compute. None is where Dask would: a client that is current, or else threads of this process.
    batch_size : int or None, default=None
        Pairs in a block, rounded up to 1,024. None is about a million numbers, or the blocks that a dask array has.

    Returns
    -------
    BayesLISTA or SpikeSlabNet
        The model itself, fitted.

    Raises
    ------
    ValueError
        If the model cannot learn so, or pairs do not fit together or are not finite.

    Notes
    -----
    `BayesLISTA` keeps its pairs in the memory of the workers, and draws up to 20,000 of them into this process: they
    decide the start, and a validation fraction of them decides early stopping and calibrates. Blocks should be alike;
    shuffle pairs that are sorted. `SpikeSlabNet` reads its pairs once, or twice if the first differ in scale.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from bayeslista import SpikeSlabNet
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.out_of_core.dask import fit
    >>> data = make_sparse_codes(n_train=200, n_test=5, n_observed=6, n_components=8, random_state=0)
    >>> blocks = [da.from_array(side, chunks=(50, -1)) for side in (data.Y_train, data.B_train)]
    >>> model = fit(SpikeSlabNet(2, mode="fast", training="none"), *blocks)
    >>> alone = SpikeSlabNet(2, mode="fast", training="none").fit(data.Y_train, data.B_train)
    >>> bool(np.allclose(model.design_matrix_, alone.design_matrix_, rtol=1e-10))
    True
    """
    if not isinstance(model, BayesLISTA | SpikeSlabNet):
        raise ValueError(f"The model is a {type(model).__name__}; pass a BayesLISTA or a SpikeSlabNet.")
    if isinstance(model, BayesLISTA) and model.inference != "variational":
        raise ValueError(
            f"inference={model.inference!r} is sequential; pass inference='variational', or use "
            "bayeslista.out_of_core.fit_stream."
        )
    with nullcontext() if client is None else client.as_current(), rollback(model):
        hooks.check_parameters(model)
        pairs = PairBlocks.of(X, y, batch_size)
        hooks.validate_pairs(model, *pairs.template, reset=True)
        pairs = pairs.checked(copy(model))
        if isinstance(model, SpikeSlabNet):
            learn_from_statistics(model, pairs)
        else:
            learn_in_rounds(model, pairs)
    return model
