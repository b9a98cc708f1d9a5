"""Prediction and training in blocks of rows with Dask (extra ``dask``), on data larger than memory and on clusters.

Blocks are computed by threads of this process, or by the workers of a :class:`distributed.Client`.
"""

from bayeslista.out_of_core.dask._block_prediction import SpikeSlabBlocks, predict, predict_dist, predict_to_zarr
from bayeslista.out_of_core.dask._distributed_fit import fit

__all__ = ["SpikeSlabBlocks", "fit", "predict", "predict_dist", "predict_to_zarr"]
