"""Whether what was read for a record is what its annotations promise."""

import dataclasses
import types
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np


def check_fields(record: type, fields: Mapping[str, Any]) -> None:
    """Refuse fields that are of another kind than a named tuple or dataclass has them: its numbers, arrays and records.

    Shapes are not compared, and any number passes for any other.

    Parameters
    ----------
    record : type
        A named tuple or a dataclass.
    fields : mapping of str to object
        What is to become one. What has no annotation passes.

    Raises
    ------
    TypeError
        If one is of another kind, or missing.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> from bayeslista._fields import check_fields
    >>> class Line(NamedTuple):
    ...     slope: float
    ...     name: str | None
    >>> check_fields(Line, {"slope": 1.0, "name": None})
    >>> check_fields(Line, {"slope": "steep", "name": None})
    Traceback (most recent call last):
    TypeError: Line.slope cannot be a str
    """
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
