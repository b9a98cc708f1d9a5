"""Files of the command line: tables that have to go together, models, and places to write to."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayeslista.cli._running import say

if TYPE_CHECKING:
    from bayeslista.estimators._base import BaseSparseCoder
    from bayeslista.tables import Table

_NAMES_SHOWN = 20
_ARGUMENT = re.compile(r"\b[Xy]\b")


def read_observations(path: str, header: str) -> "Table":
    """Read a table of signals."""
    table = _read(path, header)
    if table.values.ndim != 2:
        raise ValueError(
            f"{path} holds an array of shape {table.values.shape}; reshape it to one row for every signal, "
            "(n, 1) where one value is observed or (1, n) for a single signal."
        )
    return table


def _read(path: str, header: str) -> "Table":
    """Read a table, and say what is to be said of it."""
    from bayeslista.tables import read_named_table

    table = read_named_table(path, header)
    for note in table.notes:
        say(f"Warning: {path} {note}")
    return table


def read_pairs(observations: str, codes: str, header: str) -> tuple["Table", "Table"]:
    """Read observations and codes that pair up row by row."""
    X, y = read_observations(observations, header), _read(codes, header)
    if len(X.values) != len(y.values):
        raise ValueError(
            f"{observations} has {len(X.values)} rows and {codes} has {len(y.values)}; pass a code for every "
            "observation."
        )
    return X, y


def load_model(path: Path) -> "BaseSparseCoder":
    """Read a model."""
    from bayeslista import load

    return load(path)


def check_columns(model: "BaseSparseCoder", X: "Table", observations: str) -> None:
    """Refuse observations of another size, or of other columns, than the model was fitted to."""
    n_columns = X.values.shape[1]
    expected = getattr(model, "n_features_in_", n_columns)
    fitted = tuple(map(str, getattr(model, "feature_names_in_", X.names)))
    if n_columns != expected:
        strange = [name for name in X.names if name not in fitted]
        raise ValueError(
            f"{observations} has {n_columns} columns, and the model was fitted to observations of {expected} values; "
            "pass observations of that size, one row a signal."
            + (f" The first column that it does not know is {strange[0]!r}." if strange else "")
        )
    if X.names and X.names != fitted:
        raise ValueError(f"{observations} {_first_difference(X.names, fitted)}")


def _first_difference(names: tuple[str, ...], fitted: tuple[str, ...]) -> str:
    """Where the names of columns are not those of the fit, and what to do."""
    column = next(i for i, pair in enumerate(zip(names, fitted, strict=True)) if pair[0] != pair[1])
    shown = ", ".join(fitted[:_NAMES_SHOWN]) + (", …" if len(fitted) > _NAMES_SHOWN else "")
    where = f"has {names[column]!r} in column {column + 1}, where the model was fitted to {fitted[column]!r}"
    if sorted(names) == sorted(fitted):
        return f"{where}: the columns are in another order. Bring them into that of the fit: {shown}."
    return f"{where}. Pass the columns of the fit: {shown}; or, if these are the same, a table without a header."


def keep_names(model: "BaseSparseCoder", X: "Table", y: "Table | None") -> None:
    """Let a fitted model remember the names of the columns that it was fitted to."""
    import numpy as np

    if X.names:
        model.feature_names_in_ = np.array(X.names, object)
    if y is not None and y.names and "" not in y.names and len(set(y.names)) == len(y.names):
        model.component_names_ = np.array(y.names, object)


def check_pairs(model: "BaseSparseCoder", X: "Table", y: "Table", observations: str, codes: str) -> None:
    """Refuse pairs of other sizes, or of other columns, than the model was fitted to."""
    check_columns(model, X, observations)
    n_columns = y.values[0].size
    expected = getattr(model, "n_components_", n_columns)
    if n_columns != expected:
        raise ValueError(
            f"{codes} has {n_columns} columns, and the model was fitted to codes of {expected} coefficients; "
            "pass codes of that size, one row a signal."
        )
    fitted = tuple(map(str, getattr(model, "component_names_", y.names)))
    if y.names and y.names != fitted:
        raise ValueError(f"{codes} {_first_difference(y.names, fitted)}")


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written, before time is spent on its content."""
    if path.is_dir():
        raise IsADirectoryError(21, "Is a folder; name a file in it", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "There is no such folder; make it first", str(path.parent))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(13, "Nothing can be written to this folder", str(path.parent))


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Blame the file of a model that was forged, or is of a version that never was, for what it makes Python raise."""
    try:
        yield
    except ValueError:
        raise
    except (AttributeError, TypeError, LookupError, ArithmeticError) as error:
        raise ValueError(
            f"the model in {path} does not work ({type(error).__name__}: {error}). Fit it anew; if that does not work "
            "either, you have found a bug in bayeslista."
        ) from error


@contextmanager
def naming(observations: str, codes: str | None = None) -> Iterator[None]:
    """Say which files are meant where an estimator speaks of its arguments."""
    try:
        yield
    except ValueError as error:
        if not _ARGUMENT.search(str(error)):
            raise
        files = f"observations {observations} (X)" + ("" if codes is None else f", codes {codes} (y)")
        raise ValueError(f"{files}: {error}") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file that a person asked for where one on the way to it failed."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error


def describe(model: Any) -> str:
    """The estimator and its sizes."""
    name = type(model).__name__
    if not hasattr(model, "n_features_in_"):
        return f"{name}, not fitted"
    return f"{name}, {model.n_features_in_} observed values, {model.n_components_} coefficients"
