"""Orthogonal wavelet synthesis; needs PyWavelets (extra `wavelets`)."""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslista.operators.protocol import BaseOperator, Images, Rows


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Wavelet(BaseOperator):
    """Synthesis of a signal or an image from the coefficients of an orthogonal wavelet, periodic at the edges.

    An orthogonal matrix: ``A Aᵀ = Aᵀ A = I``. Coefficients have the arrangement of an image of the same shape: the
    approximation in the first corner, details of ever finer levels around it.

    Parameters
    ----------
    shape : tuple of int
        Shape of the image; every axis can be halved `level` times.
    wavelet : str, default="db4"
        An orthogonal wavelet of PyWavelets: "haar", "db4", "sym8", "coif2" and others.
    level : int, default=None
        How many levels. None are as many as leave approximations of at least eight entries an axis.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.operators import Wavelet
    >>> synthesis = Wavelet((16,), "haar", level=2)
    >>> image = synthesis.matvec(np.eye(16))
    >>> bool(np.allclose(synthesis.rmatvec(image), np.eye(16)))
    True
    >>> synthesis.subbands
    array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2])
    """

    image_shape: tuple[int, ...]
    wavelet: str
    level: int

    def __init__(self, shape: tuple[int, ...], wavelet: str = "db4", level: int | None = None) -> None:
        sizes = tuple(int(size) for size in np.atleast_1d(shape))
        most = min((size & -size).bit_length() - 1 for size in sizes)
        usual = min(int(np.log2(max(size // 8, 1))) for size in sizes)
        levels = max(min(most, usual), 1) if level is None else int(level)
        if levels < 1 or levels > most:
            raise ValueError(
                f"An image of shape {sizes} can be halved {most} times, and level is {levels}. Pass a level between 1 "
                "and that, or pad the image to sizes that are multiples of 2 ** level."
            )
        object.__setattr__(self, "image_shape", sizes)
        object.__setattr__(self, "wavelet", str(wavelet))
        object.__setattr__(self, "level", levels)
        if not self._filters.orthogonal:
            raise ValueError(
                f"The wavelet {wavelet!r} is not orthogonal, so that its analysis is not the transpose of its "
                'synthesis. Pass "haar", "db4", "sym8", "coif2", or another orthogonal one.'
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(D, D)."""
        size = int(np.prod(self.image_shape))
        return size, size

    def matvec(self, codes: Rows) -> Images:
        """Synthesis, level by level from the coarsest."""
        import pywt

        whole = codes.reshape(-1, *self.image_shape)
        found = whole[(slice(None), *(slice(size) for size in self._sizes(self.level)))]
        for level in range(self.level, 0, -1):
            parts = {key: whole[where] for key, where in self._details(level)}
            parts["a" * len(self.image_shape)] = found
            found = pywt.idwtn(parts, self._filters, "periodization", axes=self._axes)
        return np.ascontiguousarray(found.reshape(len(codes), -1))

    def rmatvec(self, images: Images) -> Rows:
        """Analysis, level by level from the finest."""
        import pywt

        whole = np.empty((len(images), *self.image_shape), images.dtype)
        rest = images.reshape(-1, *self.image_shape)
        for level in range(1, self.level + 1):
            parts = pywt.dwtn(rest, self._filters, "periodization", axes=self._axes)
            for key, where in self._details(level):
                whole[where] = parts[key]
            rest = parts["a" * len(self.image_shape)]
        whole[(slice(None), *(slice(size) for size in self._sizes(self.level)))] = rest
        return whole.reshape(len(images), -1)

    @property
    def gram_eigenvalues(self) -> NDArray[Any]:
        """All one."""
        return np.ones(self.shape[0])

    def gram_filter(self, gain: Images, images: Images) -> Images:
        """The gain itself."""
        return gain * images

    @property
    def has_orthonormal_rows(self) -> bool:
        """The wavelet is orthogonal."""
        return True

    @cached_property
    def subbands(self) -> NDArray[np.intp]:
        """The subband of every coefficient: 0 is the approximation, then details from the coarsest level on."""
        labels = np.zeros(self.image_shape, np.intp)
        number = 0
        for level in range(self.level, 0, -1):
            for _, where in self._details(level):
                number += 1
                labels[where[1:]] = number
        return labels.ravel()

    def neighbor_mean(self, values: Rows) -> Rows:
        """The mean over the 3 × 3 (in two dimensions) places around each coefficient, itself excluded.

        The arrangement is that of an image, so that neighbours across the edge of a subband belong to another one: a
        share of the places of 4 over the side of the subband.
        """
        from scipy.ndimage import uniform_filter

        whole = values.reshape(-1, *self.image_shape)
        places = 3 ** len(self.image_shape)
        means = uniform_filter(whole, (1, *[3] * len(self.image_shape)), mode="nearest")
        return ((means * places - whole) / (places - 1)).reshape(len(values), -1)

    @cached_property
    def _filters(self) -> Any:
        try:
            import pywt
        except ImportError as error:
            raise ImportError("Wavelet needs PyWavelets: pip install 'bayeslista[wavelets]'.") from error
        return pywt.Wavelet(self.wavelet)

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.image_shape) + 1))

    def _sizes(self, level: int) -> tuple[int, ...]:
        return tuple(size >> level for size in self.image_shape)

    def _details(self, level: int) -> list[tuple[str, tuple[slice, ...]]]:
        """Keys of the details of a level, and where they are."""
        sizes = self._sizes(level)
        found = []
        for key in product("ad", repeat=len(sizes)):
            if "d" in key:
                spans = (slice(n, 2 * n) if kind == "d" else slice(n) for kind, n in zip(key, sizes, strict=True))
                found.append(("".join(key), (slice(None), *spans)))
        return found
