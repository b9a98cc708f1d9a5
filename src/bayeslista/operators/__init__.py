"""Design matrices that are never formed: products with them and with their transpose are enough.

`as_operator` accepts what users hold: arrays, sparse arrays, operators of scipy and pylops, pairs of functions.
"""

from bayeslista.operators.protocol import BaseOperator, Composition
from bayeslista.operators.transforms import Convolution, PartialDCT, PartialFourier
from bayeslista.operators.wavelets import Wavelet
from bayeslista.operators.wrapping import (
    FunctionPair,
    MatrixOperator,
    StackedReal,
    WrappedOperator,
    as_operator,
    is_operator,
)

__all__ = [
    "BaseOperator",
    "Composition",
    "Convolution",
    "FunctionPair",
    "MatrixOperator",
    "PartialDCT",
    "PartialFourier",
    "StackedReal",
    "Wavelet",
    "WrappedOperator",
    "as_operator",
    "is_operator",
]
