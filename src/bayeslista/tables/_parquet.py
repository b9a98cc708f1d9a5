"""Parquet, by pyarrow, which is imported only here."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayeslista.tables._wrong import WrongTableError

_MOST_COMPRESSED = 10_000  # numbers that one byte of a file can stand for
_THRIFT_LIMIT = 2**26  # bytes and entries of the metadata
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas adds


def import_pyarrow() -> Any:
    """Import pyarrow with its Parquet, or say how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError('.parquet files need pyarrow: pip install "bayeslista[tables]".') from error
    return pyarrow


def read_parquet(file: Path) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Read all columns of numbers into one array, and their names."""
    arrow = import_pyarrow()
    care = {
        "thrift_string_size_limit": _THRIFT_LIMIT,
        "thrift_container_size_limit": _THRIFT_LIMIT,
        "page_checksum_verification": True,
    }
    with file.open("rb") as stream, arrow.parquet.ParquetFile(stream, **care) as source:
        fields = [field for field in source.schema_arrow if not _INDEX.fullmatch(field.name)]
        for field in fields:
            if not _is_numeric(arrow.types, field.type):
                raise WrongTableError(f"holds {field.type} in column {field.name!r}, not real numbers.")
        n_rows = source.metadata.num_rows
        if n_rows * max(1, len(fields)) > _MOST_COMPRESSED * file.stat().st_size:
            raise WrongTableError(f"is damaged: it claims {n_rows} rows, more than it can hold.")
        single = all(arrow.types.is_float32(field.type) for field in fields)
        table = source.read(columns=[field.name for field in fields], use_threads=False)
    array = np.empty((len(table), len(fields)), np.float32 if single else np.float64)
    for i, column in enumerate(table.columns):
        array[:, i] = column.to_numpy()
    return array, tuple(field.name for field in fields)


def _is_numeric(types: Any, kind: Any) -> bool:
    return any(ask(kind) for ask in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal))
