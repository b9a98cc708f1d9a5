"""Beyond one machine, and beyond memory: prediction and training in blocks, with Dask (extra ``dask``).

Blocks of rows go to wherever Dask computes: threads of this process, or the workers of a cluster where a
:class:`distributed.Client` is there. Nothing is computed here that an estimator would not compute itself.
"""

from bayeslista.distributed._prediction import SpikeSlabBlocks, predict, predict_dist, predict_to_zarr
from bayeslista.distributed._training import fit

__all__ = ["SpikeSlabBlocks", "fit", "predict", "predict_dist", "predict_to_zarr"]
