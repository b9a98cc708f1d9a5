"""Models in files: arrays as safetensors, everything else as JSON in its header. No pickle; no code is run.

A value is a tree of numbers, text, lists, tuples, dictionaries, arrays, and records: named tuples and dataclasses of
which the reader has a list by name. Arrays and numbers come back bit for bit.
"""

import dataclasses
import hashlib
import json
import math
import os
import struct
import types
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save
from scipy.sparse import csr_array, issparse

from bayeslista.io.atomic import write_atomically

__all__ = ["read_record", "read_versions", "write_record"]

FORMAT = 1  # written by this version, which reads all formats up to it

_NAME = "bayeslista"
_KIND = "$"  # the key of an object in the JSON under which its kind is
_Tensors = Mapping[str, NDArray[Any]]


def write_record(path: str | os.PathLike[str], record: Any, versions: Mapping[str, str] | None = None) -> None:
    """Write a tree of numbers, text, arrays and records to a file, whole or not at all; equal trees, equal files."""
    tensors: dict[str, NDArray[Any]] = {}
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
    """Read a record back; whatever is not a file of `write_record`, or is damaged or newer, is a ValueError."""
    with open(os.fspath(path), "rb"):  # raises the error of a missing or forbidden file
        pass
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            tensors = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # a SafetensorError, or an error of NumPy at a type that it does not have
        raise ValueError(
            f"{path} is not a safetensors file, or it is cut short ({error}). Pass a file that save has written."
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
    except Exception as error:  # a tree of other types and names can raise any
        raise ValueError(
            f"{path} has content that this version of {_NAME} cannot read ({error}). "
            "If the file is of an earlier version, fit and save the model anew."
        ) from error


def read_versions(path: str | os.PathLike[str]) -> dict[str, str]:
    """The versions that a record was written by; empty if they cannot be read, since no digest covers them."""
    with safe_open(path, framework="numpy") as file:
        text = (file.metadata() or {}).get("versions", "")
    try:
        return {name: str(version) for name, version in json.loads(text).items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _in_order(content: bytes, header: Mapping[str, str]) -> bytes:
    """The same file with its metadata in the order given; that of safetensors is random."""
    (size,) = struct.unpack("<Q", content[:8])
    found = json.loads(content[8 : 8 + size])
    text = json.dumps({**found, "__metadata__": dict(header)}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def _digest(content: str, tensors: _Tensors) -> str:
    found = hashlib.sha256(content.encode())
    for name in sorted(tensors):
        array = tensors[name]
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _encode(value: Any, tensors: dict[str, NDArray[Any]], where: str) -> Any:
    """JSON for a value; arrays go to `tensors`, under numbers."""
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
        state: Any = value.__getstate__()  # as pickled: without arrays that are computed again
        fields = {name: _encode(part, tensors, f"{where}.{name}") for name, part in state.items()}
        return {_KIND: "record", "name": type(value).__name__, "fields": fields}
    if isinstance(value, (list, tuple)):
        items = [_encode(part, tensors, f"{where}[{i}]") for i, part in enumerate(value)]
        return items if isinstance(value, list) else {_KIND: "tuple", "items": items}
    if isinstance(value, dict) and all(type(name) is str for name in value):
        entries = {name: _encode(part, tensors, f"{where}[{name!r}]") for name, part in value.items()}
        return {_KIND: "dict", "items": entries}
    if issparse(value) and value.ndim == 2:
        rows = csr_array(value)
        arrays = [_put(part, tensors) for part in (rows.data, rows.indices, rows.indptr)]
        return {_KIND: "sparse", "arrays": arrays, "shape": [int(size) for size in rows.shape]}
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


def _put(array: NDArray[Any], tensors: dict[str, NDArray[Any]]) -> str:
    name = str(len(tensors))
    tensors[name] = np.asarray(array, order="C")
    return name


def _decode(value: Any, tensors: _Tensors, records: Mapping[str, type]) -> Any:
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
        _check_fields(record, fields)
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
    if kind == "sparse":
        found = csr_array(tuple(tensors[name] for name in value["arrays"]), shape=tuple(value["shape"]))
        found.check_format(full_check=True)
        return found
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


def _check_fields(record: type, fields: Mapping[str, Any]) -> None:
    """Refuse fields that are missing, or of another kind than their annotation; shapes are not compared."""
    for name, hint in get_type_hints(record).items():
        if name in fields and not _fits(fields[name], hint):
            raise TypeError(f"{record.__name__}.{name} cannot be a {type(fields[name]).__name__}")
    if dataclasses.is_dataclass(record):
        for field in dataclasses.fields(record):
            given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
            if field.init and not given and field.name not in fields:
                raise TypeError(f"{record.__name__}.{field.name} is missing")


def _fits(value: Any, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is np.ndarray or hasattr(hint, "array_type"):  # jaxtyping's
        return _is_numeric(value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(each, parts[1]) for each in value.values())
    if origin is list:
        return isinstance(value, list) and all(_fits(each, parts[0]) for each in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(_fits, value, parts))
    if hint in (int, float):
        return _is_numeric(value) and np.ndim(value) == 0
    return hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, (Real, np.ndarray, np.generic))
