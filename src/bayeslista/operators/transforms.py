"""Convolution, and samples of the Fourier and the cosine transform, all with a diagonal Gram matrix."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft

from bayeslista.operators.protocol import BaseOperator, Images, Rows


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Convolution(BaseOperator):
    r"""Circular convolution of a signal or an image with a kernel, by the fast Fourier transform.

    With the transfer function h of the kernel, :math:`A A^T = F^* \mathrm{diag}(|h|^2) F`.

    Parameters
    ----------
    kernel : array-like
        The kernel, with as many axes as the image; its centre, entry ``size // 2`` of every axis, stays in place.
    shape : tuple of int
        Shape of the image, row after row the D coefficients and the K = D observations.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.operators import Convolution
    >>> Convolution([1.0, 1.0, 1.0], (4,)).matvec(np.array([[1.0, 0.0, 0.0, 0.0]])).round(12) + 0.0
    array([[1., 1., 0., 1.]])
    """

    kernel: Any
    image_shape: tuple[int, ...]

    def __init__(self, kernel: ArrayLike, shape: tuple[int, ...]) -> None:
        values = np.asarray(kernel, np.float64)
        sizes = _checked_shape(shape)
        if values.ndim != len(sizes) or any(a > b for a, b in zip(values.shape, sizes, strict=True)):
            raise ValueError(
                f"kernel has shape {values.shape} for an image of shape {sizes}. Pass a kernel with as many axes, none "
                "longer than that of the image."
            )
        if not np.isfinite(values).all():
            raise ValueError("kernel contains NaN or infinity. Pass finite numbers.")
        object.__setattr__(self, "kernel", values)
        object.__setattr__(self, "image_shape", sizes)

    @property
    def shape(self) -> tuple[int, int]:
        """(D, D)."""
        size = int(np.prod(self.image_shape))
        return size, size

    def matvec(self, codes: Rows) -> Images:
        """The kernel's transfer function times the transform."""
        return self._filter(self._transfer, codes)

    def rmatvec(self, images: Images) -> Rows:
        """The same with the conjugate, a correlation."""
        return self._filter(np.conj(self._transfer), images)

    @cached_property
    def gram_eigenvalues(self) -> NDArray[Any]:
        """|h|² at every frequency."""
        return np.abs(fft.fftn(self._placed)).ravel() ** 2

    def gram_filter(self, gain: Images, images: Images) -> Images:
        """A gain a frequency, alike at opposite ones."""
        half = gain.reshape(-1, *self.image_shape)[..., : self.image_shape[-1] // 2 + 1]
        return self._filter(half, images)

    @cached_property
    def _placed(self) -> NDArray[Any]:
        """The kernel in an image, its centre in the corner."""
        whole = np.zeros(self.image_shape)
        whole[tuple(slice(size) for size in self.kernel.shape)] = self.kernel
        return np.roll(whole, [-(size // 2) for size in self.kernel.shape], tuple(range(whole.ndim)))

    @cached_property
    def _transfer(self) -> NDArray[Any]:
        return fft.rfftn(self._placed)

    def _filter(self, gain: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
        axes = tuple(range(1, len(self.image_shape) + 1))
        spectrum = fft.rfftn(rows.reshape(-1, *self.image_shape), axes=axes)
        spectrum *= gain  # in the precision of the rows
        return fft.irfftn(spectrum, s=self.image_shape, axes=axes).reshape(len(rows), -1)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class PartialDCT(BaseOperator):
    """Some coefficients of the orthonormal cosine transform (DCT-II) of a signal or an image.

    Rows are orthonormal: ``A Aᵀ = I``.

    Parameters
    ----------
    shape : tuple of int
        Shape of the image, row after row the D coefficients.
    indices : array-like of int of shape (n_observed,)
        Which of the transform's coefficients are observed, as places in the flattened transform, each once.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.operators import PartialDCT
    >>> PartialDCT((4,), [0]).matvec(np.ones((1, 4)))
    array([[2.]])
    """

    image_shape: tuple[int, ...]
    indices: Any

    def __init__(self, shape: tuple[int, ...], indices: ArrayLike) -> None:
        sizes = _checked_shape(shape)
        object.__setattr__(self, "image_shape", sizes)
        object.__setattr__(self, "indices", _checked_indices(indices, int(np.prod(sizes))))

    @property
    def shape(self) -> tuple[int, int]:
        """(number of indices, D)."""
        return len(self.indices), int(np.prod(self.image_shape))

    def matvec(self, codes: Rows) -> Images:
        """The transform where it is observed."""
        found = fft.dctn(codes.reshape(-1, *self.image_shape), axes=self._axes, norm="ortho")
        return found.reshape(len(codes), -1)[:, self.indices]

    def rmatvec(self, images: Images) -> Rows:
        """The inverse transform of the observed, zero elsewhere."""
        whole = np.zeros((len(images), self.shape[1]), images.dtype)
        whole[:, self.indices] = images
        found = fft.idctn(whole.reshape(-1, *self.image_shape), axes=self._axes, norm="ortho")
        return found.reshape(len(images), -1)

    @property
    def gram_eigenvalues(self) -> NDArray[Any]:
        """All one."""
        return np.ones(len(self.indices))

    def gram_filter(self, gain: Images, images: Images) -> Images:
        """The gain itself."""
        return gain * images

    @property
    def has_orthonormal_rows(self) -> bool:
        """They are rows of an orthogonal matrix."""
        return True

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.image_shape) + 1))


@dataclass(frozen=True, eq=False, repr=False, init=False)
class PartialFourier(BaseOperator):
    r"""Some frequencies of the unitary Fourier transform of a real signal or image, as real numbers.

    A frequency and its opposite have conjugate values, so that each pair counts once: observed are
    :math:`\sqrt 2\, \mathrm{Re}\, z` of all pairs and :math:`\sqrt 2\, \mathrm{Im}\, z`, and the real values of the
    frequencies that are their own opposite. In this scaling rows are orthonormal, ``A Aᵀ = I``, and complex noise of
    standard deviation s a value (s/√2 a part) is real noise of standard deviation s.

    Parameters
    ----------
    shape : tuple of int
        Shape of the image, row after row the D coefficients.
    mask : array-like of bool of that shape
        Which frequencies are observed, in the order of ``numpy.fft.fftn``. A frequency is observed if it or its
        opposite is.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.operators import PartialFourier
    >>> image = np.arange(6.0)
    >>> sampled = PartialFourier((6,), [True, True, False, False, False, False])
    >>> y = sampled.matvec(image[None])
    >>> bool(np.allclose(y, sampled.observe(np.fft.fft(image, norm="ortho"))))
    True
    """

    image_shape: tuple[int, ...]
    mask: Any

    def __init__(self, shape: tuple[int, ...], mask: ArrayLike) -> None:
        sizes = _checked_shape(shape)
        observed = np.asarray(mask)
        if observed.dtype != bool or observed.shape != sizes or not observed.any():
            raise ValueError(
                f"mask has shape {observed.shape} and dtype {observed.dtype}, expected booleans of shape {sizes}, not "
                "all False. Pass one for every frequency of numpy.fft.fftn."
            )
        object.__setattr__(self, "image_shape", sizes)
        object.__setattr__(self, "mask", observed)

    @property
    def shape(self) -> tuple[int, int]:
        """(real observations, D)."""
        pairs, single, _ = self._frequencies
        return 2 * len(pairs) + len(single), int(np.prod(self.image_shape))

    def observe(self, transform: NDArray[Any]) -> NDArray[Any]:
        """The observations in a whole transform, such as a measured k-space of the unitary scaling."""
        pairs, single, _ = self._frequencies
        flat = np.ravel(transform)
        z = np.sqrt(2.0) * flat[pairs]
        return np.concatenate([z.real, z.imag, flat[single].real])

    def matvec(self, codes: Rows) -> Images:
        """Real parts, imaginary parts and real frequencies."""
        pairs, single, _ = self._half_places
        spectrum = fft.rfftn(codes.reshape(-1, *self.image_shape), axes=self._axes, norm="ortho")
        flat = spectrum.reshape(len(codes), -1)
        z = flat[:, pairs] * np.asarray(np.sqrt(2.0), codes.dtype)
        return np.concatenate([z.real, z.imag * self._signs.astype(codes.dtype), flat[:, single].real], axis=1)

    def rmatvec(self, images: Images) -> Rows:
        """The inverse transform of the Hermitian spectrum that the observations make."""
        (pairs, single, opposite), n = self._half_places, len(self._signs)
        real, imaginary = images[:, :n], images[:, n : 2 * n] * self._signs.astype(images.dtype)
        half = (*self.image_shape[:-1], self.image_shape[-1] // 2 + 1)
        kind = np.complex64 if images.dtype == np.float32 else np.complex128
        spectrum = np.zeros((len(images), int(np.prod(half))), kind)
        z = (real + 1j * imaginary).astype(kind) * np.asarray(np.sqrt(0.5), images.dtype)
        spectrum[:, pairs] = z
        # A pair with both members in the half spectrum needs the second one, too.
        both = opposite >= 0
        spectrum[:, opposite[both]] = np.conj(z[:, both])
        spectrum[:, single] = images[:, 2 * n :]
        found = fft.irfftn(spectrum.reshape(-1, *half), s=self.image_shape, axes=self._axes, norm="ortho")
        return found.reshape(len(images), -1)

    @property
    def gram_eigenvalues(self) -> NDArray[Any]:
        """All one."""
        return np.ones(self.shape[0])

    def gram_filter(self, gain: Images, images: Images) -> Images:
        """The gain itself."""
        return gain * images

    @property
    def has_orthonormal_rows(self) -> bool:
        """In this scaling they are."""
        return True

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.image_shape) + 1))

    @cached_property
    def _opposite(self) -> NDArray[np.intp]:
        """The place of the opposite of every frequency."""
        places = np.arange(self.mask.size).reshape(self.image_shape)
        axes = tuple(range(places.ndim))
        return np.roll(np.flip(places, axes), 1, axes).ravel()

    @cached_property
    def _frequencies(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """Places of the first of each observed pair, of frequencies without a partner, and of the second of a pair."""
        flat, places = self.mask.ravel(), np.arange(self.mask.size)
        observed = flat | flat[self._opposite]
        pairs = np.flatnonzero(observed & (places < self._opposite))
        return pairs, np.flatnonzero(observed & (places == self._opposite)), self._opposite[pairs]

    @cached_property
    def _placed(self) -> tuple[tuple[NDArray[np.intp], ...], NDArray[np.float64]]:
        """Where pairs, single frequencies and the seconds of pairs are in the half spectrum, and signs of Im."""
        pairs, single, seconds = self._frequencies
        half = self.image_shape[-1] // 2 + 1
        width = self.image_shape[-1]

        def place(full: NDArray[np.intp]) -> NDArray[np.intp]:
            row, column = np.divmod(full, width)
            return np.where(column < half, row * half + column, -1)

        first, second = place(pairs), place(seconds)
        conjugate = first < 0  # only the second of the pair is in the half spectrum
        signs = np.where(conjugate, -1.0, 1.0)
        return (np.where(conjugate, second, first), place(single), np.where(conjugate, -1, second)), signs

    @property
    def _half_places(self) -> tuple[NDArray[np.intp], ...]:
        return self._placed[0]

    @property
    def _signs(self) -> NDArray[np.float64]:
        return self._placed[1]


def _checked_shape(shape: Any) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in np.atleast_1d(shape))
    if not sizes or min(sizes) < 1:
        raise ValueError(f"shape must be of positive sizes, got {shape}.")
    return sizes


def _checked_indices(indices: ArrayLike, size: int) -> NDArray[np.intp]:
    places = np.asarray(indices)
    if places.ndim != 1 or places.dtype.kind not in "iu" or not len(places):
        raise ValueError(f"indices must be whole numbers in one row, got shape {places.shape} and {places.dtype}.")
    if places.min() < 0 or places.max() >= size or len(np.unique(places)) < len(places):
        raise ValueError(f"indices must be distinct and in [0, {size}); got {places.min()} to {places.max()}.")
    return places.astype(np.intp)
