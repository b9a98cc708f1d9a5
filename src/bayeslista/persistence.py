"""Models in files: arrays as safetensors, everything else as JSON in its header. No pickle, and no code is run.

A value is a tree of numbers, text, lists, tuples, dictionaries, arrays, and records: named tuples and dataclasses that
the reader knows by name. Arrays and numbers come back bit for bit.
"""

import dataclasses
import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from bayeslista._atomic import write_atomically
from bayeslista._fields import check_fields

__all__ = ["read_record", "read_versions", "write_record"]

FORMAT = 1
"""What this version writes; it reads all up to it."""

_NAME = "bayeslista"
_KIND = "$"  # the key that tells what an object of the JSON stands for


def write_record(path: str | os.PathLike[str], record: Any, versions: Mapping[str, str] | None = None) -> None:
    """Write a record to a file, whole or not at all.

    Parameters
    ----------
    path : str or path-like
        Where to; a file that is there is replaced.
    record : object
        A tree of numbers, text, arrays and records.
    versions : mapping of str to str, optional
        Told in the header, for people.

    Raises
    ------
    ValueError
        If something in it cannot be written.
    OSError
        If the file cannot be written; one that was there is left as it was.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.persistence import read_record, write_record
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_record(Path(folder) / "numbers.safetensors", {"one": [1, 2.5, None]})
    ...     read_record(Path(folder) / "numbers.safetensors", {})
    {'one': [1, 2.5, None]}
    """
    tensors: dict[str, np.ndarray] = {}
    content = json.dumps(_encode(record, tensors, "model"), allow_nan=False)
    header = {
        "format": _NAME,
        "format_version": str(FORMAT),
        "content": content,
        "digest": _digest(content, tensors),
        "versions": json.dumps(dict(versions or {})),
    }
    write_atomically(path, _in_order(save(tensors, metadata=header), header))


def read_record(path: str | os.PathLike[str], records: Mapping[str, type]) -> Any:
    """Read a record back.

    Parameters
    ----------
    path : str or path-like
        A file of :func:`write_record`.
    records : mapping of str to type
        Named tuples and dataclasses that may be in it, by their names.

    Returns
    -------
    object
        What was written.

    Raises
    ------
    ValueError
        If the file is something else, cut short, changed, or of a newer version.
    OSError
        If it cannot be read.

    Examples
    --------
    >>> from bayeslista.persistence import read_record
    >>> read_record("/no/such/file", {})
    Traceback (most recent call last):
    FileNotFoundError: ...
    """
    with open(os.fspath(path), "rb"):  # so that a missing or forbidden file is told as such
        pass
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            tensors = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # a SafetensorError, or what NumPy raises at a type that it does not have
        raise ValueError(
            f"{path} is no safetensors file, or it is cut short ({error}). Pass a file that save has written."
        ) from error
    if header.get("format") != _NAME:
        raise ValueError(f"{path} is a safetensors file of another program. Pass a file that save has written.")
    version = header.get("format_version", "")
    if not version.isdecimal() or int(version) > FORMAT:
        raise ValueError(
            f"{path} has format {version or 'unknown'}, and this version of {_NAME} reads up to {FORMAT}. "
            f"Install a newer {_NAME}."
        )
    content = header.get("content", "")
    if header.get("digest") != _digest(content, tensors):
        raise ValueError(f"{path} is not as it was written: its digest does not match. Take another copy of it.")
    try:
        return _decode(json.loads(content), tensors, records)
    except Exception as error:  # whatever a tree of other types and names makes Python raise
        raise ValueError(f"{path} does not hold what this version of {_NAME} knows ({error}).") from error


def read_versions(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read which versions a record was written by.

    Parameters
    ----------
    path : str or path-like
        A file that :func:`read_record` reads.

    Returns
    -------
    dict of str to str
        As told in the header, which no digest covers; empty if that is not to be understood.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista.persistence import read_versions, write_record
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_record(Path(folder) / "numbers", [1, 2], {"numpy": "2.4"})
    ...     read_versions(Path(folder) / "numbers")
    {'numpy': '2.4'}
    """
    with safe_open(path, framework="numpy") as file:
        text = (file.metadata() or {}).get("versions", "")
    try:
        return {name: str(version) for name, version in json.loads(text).items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _in_order(content: bytes, header: Mapping[str, str]) -> bytes:
    """The same file with its metadata in the order given, since safetensors draws one: equal models, equal files."""
    (size,) = struct.unpack("<Q", content[:8])
    found = json.loads(content[8 : 8 + size])
    text = json.dumps({**found, "__metadata__": dict(header)}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def _digest(content: str, tensors: Mapping[str, np.ndarray]) -> str:
    found = hashlib.sha256(content.encode())
    for name in sorted(tensors):
        array = tensors[name]
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _encode(value: Any, tensors: dict[str, np.ndarray], where: str) -> Any:
    """JSON for a value; arrays are put aside, and named by numbers."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_KIND: "float", "value": repr(value)}
    if isinstance(value, np.dtype):
        return {_KIND: "dtype", "name": value.name}
    if isinstance(value, np.generic):
        return {_KIND: "scalar", "array": _put(np.asarray(value), tensors)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names = type(value)._fields
        fields = {name: _encode(part, tensors, f"{where}.{name}") for name, part in zip(names, value, strict=True)}
        return {_KIND: "record", "name": type(value).__name__, "fields": fields}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {name: _encode(part, tensors, f"{where}.{name}") for name, part in vars(value).items()}
        return {_KIND: "record", "name": type(value).__name__, "fields": fields}
    if isinstance(value, (list, tuple)):
        items = [_encode(part, tensors, f"{where}[{i}]") for i, part in enumerate(value)]
        return items if isinstance(value, list) else {_KIND: "tuple", "items": items}
    if isinstance(value, dict) and all(type(name) is str for name in value):
        entries = {name: _encode(part, tensors, f"{where}[{name!r}]") for name, part in value.items()}
        return {_KIND: "dict", "items": entries}
    if isinstance(value, np.random.RandomState):
        name, keys, *rest = value.get_state(legacy=True)
        return {_KIND: "RandomState", "state": [name, _put(np.asarray(keys), tensors), *rest]}
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return {_KIND: "array", "array": _put(array, tensors)}
        if array.ndim == 1 and all(isinstance(part, str) for part in array.tolist()):
            return {_KIND: "names", "values": array.tolist()}
    raise ValueError(
        f"{where} is a {type(value).__name__}, which cannot be saved. Numbers, text, arrays, and an integer or a "
        "RandomState as random_state can; pickle saves anything."
    )


def _put(array: np.ndarray, tensors: dict[str, np.ndarray]) -> str:
    name = str(len(tensors))
    tensors[name] = np.asarray(array, order="C")
    return name


def _decode(value: Any, tensors: Mapping[str, np.ndarray], records: Mapping[str, type]) -> Any:
    if isinstance(value, list):
        return [_decode(part, tensors, records) for part in value]
    if not isinstance(value, dict):
        return value
    kind = value[_KIND]
    if kind == "record":
        if value["name"] not in records:
            raise KeyError(f"there is no {value['name']}")
        record = records[value["name"]]
        fields = {name: _decode(part, tensors, records) for name, part in value["fields"].items()}
        check_fields(record, fields)
        if hasattr(record, "_fields"):
            return record(**fields)
        made: Any = object.__new__(record)
        made.__dict__.update(fields)
        return made
    if kind == "tuple":
        return tuple(_decode(part, tensors, records) for part in value["items"])
    if kind == "dict":
        return {name: _decode(part, tensors, records) for name, part in value["items"].items()}
    if kind == "array":
        return tensors[value["array"]]
    if kind == "scalar":
        return tensors[value["array"]][()]
    if kind == "names":
        return np.array(value["values"], dtype=object)
    if kind == "float":
        return float(value["value"])
    if kind == "dtype":
        return np.dtype(value["name"])
    if kind == "RandomState":
        name, keys, *rest = value["state"]
        random = np.random.RandomState()
        random.set_state((name, tensors[keys], *rest))
        return random
    raise KeyError(f"there is no kind {kind!r}")
