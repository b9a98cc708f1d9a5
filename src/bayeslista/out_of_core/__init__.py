"""Training and prediction on data larger than memory: streams of pairs, and blocks with Dask in `out_of_core.dask`."""

from bayeslista.out_of_core.streams import fit_stream

__all__ = ["fit_stream"]
