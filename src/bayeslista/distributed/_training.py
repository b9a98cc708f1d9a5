"""Training on pairs that stay on their workers."""

from contextlib import nullcontext
from copy import copy
from typing import Any, TypeVar

from bayeslista.distributed._pairs import Pairs
from bayeslista.distributed._rounds import learn_in_rounds
from bayeslista.distributed._sums import learn_from_sums
from bayeslista.estimators import BayesLISTA, SpikeSlabNet

_Model = TypeVar("_Model", BayesLISTA, SpikeSlabNet)


def fit(model: _Model, X: Any, y: Any, *, client: Any = None, batch_size: int | None = None) -> _Model:
    """Learn from pairs in blocks, on the workers that hold them.

    `SpikeSlabNet` adds up sums over the blocks, and learns what its own `fit` would. `BayesLISTA` learns in rounds: in
    each, every block is gone through once from the same parameters, and what comes out is averaged. A task depends on
    its block and on the last average alone, so Dask computes what a lost worker had begun once more, and the result is
    the same. If anything fails, the model is left as it was.

    Parameters
    ----------
    model : BayesLISTA or SpikeSlabNet
        What learns; ``inference="adf"`` takes one pair after the other, and cannot.
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
    `BayesLISTA` keeps its pairs in the memory of the workers, and brings up to 20,000 of them, by chance, here: they
    decide the start, and those held out of them choose the best round and calibrate. Blocks should be alike; shuffle
    pairs that are sorted. `SpikeSlabNet` reads its pairs once, or twice if the first are of another size than the rest.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from bayeslista import SpikeSlabNet
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.distributed import fit
    >>> data = make_sparse_codes(n_train=200, n_test=5, n_observed=6, n_components=8, random_state=0)
    >>> blocks = [da.from_array(side, chunks=(50, -1)) for side in (data.Y_train, data.B_train)]
    >>> model = fit(SpikeSlabNet(2, mode="fast", calibration_steps=0), *blocks)
    >>> alone = SpikeSlabNet(2, mode="fast", calibration_steps=0).fit(data.Y_train, data.B_train)
    >>> bool(np.allclose(model.design_matrix_, alone.design_matrix_, rtol=1e-10))
    True
    """
    if not isinstance(model, BayesLISTA | SpikeSlabNet):
        raise ValueError(f"The model is a {type(model).__name__}; pass a BayesLISTA or a SpikeSlabNet.")
    if isinstance(model, BayesLISTA) and model.inference != "variational":
        raise ValueError(
            f"inference={model.inference!r} takes one pair after the other; pass inference='variational', or use "
            "bayeslista.streaming.fit_stream."
        )
    with nullcontext() if client is None else client.as_current():
        learning = copy(model)
        learning._check_parameters()
        pairs = Pairs.of(X, y, batch_size)
        learning._validate_pairs(*pairs.likeness)
        pairs = pairs.checked(copy(learning))
        if isinstance(learning, SpikeSlabNet):
            learn_from_sums(learning, pairs)
        else:
            learn_in_rounds(learning, pairs)
    model.__dict__ = learning.__dict__
    return model
