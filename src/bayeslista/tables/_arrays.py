"""NumPy's files, read without pickle and without trust in the sizes that they claim."""

import io
import math
import mmap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from bayeslista.tables._wrong import WrongTableError

_MOST_COMPRESSED = 1100  # bytes that one byte of a zip file can stand for
_NAMES_SHOWN = 20


def read_npy(file: Path) -> NDArray[Any]:
    """Map an array into memory."""
    with file.open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return _array(content, content)


def read_npz(file: Path, entry: str | None) -> NDArray[Any]:
    """Read the only array of an archive, or the one that is named."""
    with zipfile.ZipFile(file) as archive:
        entries = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
        names = ", ".join([*entries][:_NAMES_SHOWN]) + (", …" if len(entries) > _NAMES_SHOWN else "")
        if not entries:
            raise WrongTableError("holds no arrays.")
        if entry is None and len(entries) > 1:
            raise WrongTableError(f"holds several arrays; name one as {file.name}:NAME. There are: {names}.")
        if entry is not None and entry not in entries:
            raise WrongTableError(f"holds no array {entry!r}. There are: {names}.")
        info = archive.getinfo(entries[next(iter(entries)) if entry is None else entry])
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise WrongTableError("is compressed in a way that NumPy does not write; save it again by numpy.savez.")
        if info.file_size > _MOST_COMPRESSED * file.stat().st_size:
            raise WrongTableError(f"is damaged: it claims {info.file_size} bytes, more than it can hold.")
        content = archive.read(info)
    return _array(io.BytesIO(content), content)


def _array(stream: Any, content: Any) -> NDArray[Any]:
    """The array in the bytes of a .npy file, without a copy."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise WrongTableError("holds no numbers, or is of a version of the format that is not known.")
    shape, fortran, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
    if dtype.kind not in "biuf":
        raise WrongTableError(f"holds values of type {dtype}, not real numbers. Convert it to float.")
    begin, size = stream.tell(), math.prod(shape) * dtype.itemsize
    if size != len(content) - begin:
        raise WrongTableError(
            f"is damaged or cut short: shape {shape} of {dtype} takes {size} bytes, not {len(content) - begin}."
        )
    if size == 0:
        return np.zeros(shape, dtype)
    return np.frombuffer(content, dtype, offset=begin).reshape(shape, order="F" if fortran else "C")
