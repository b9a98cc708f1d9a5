"""Files of the command line: tables that have to match, models, and places to write to."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayeslista.io.tables import NamedArray

_NAMES_SHOWN = 20
_ARGUMENT = re.compile(r"\b[Xy]\b")


def load_model(path: Path) -> Any:
    """Read a model."""
    from bayeslista import load

    return load(path)


def read_observations(path: str, header: str, model: Any = None) -> "NamedArray":
    """Read a table with one row for every signal, whose columns are those of the model."""
    from bayeslista.io.tables import read_table

    fitted = _names(model, "feature_names_in_")
    table = read_table(path, header, fitted)
    if table.values.ndim != 2:
        raise ValueError(
            f"{path} holds an array of shape {table.values.shape}; reshape it to one row for every signal, "
            "(n, 1) where one value is observed or (1, n) for a single signal."
        )
    _check_columns(path, table, getattr(model, "n_features_in_", None), fitted, "observed values")
    return table


def read_pairs(observations: str, codes: str, header: str, model: Any = None) -> tuple["NamedArray", "NamedArray"]:
    """Read observations and codes that pair up row by row, and whose columns are those of the model."""
    from bayeslista.io.tables import read_table

    X = read_observations(observations, header, model)
    fitted = _names(model, "component_names_")
    y = read_table(codes, header, fitted)
    if len(X.values) != len(y.values):
        raise ValueError(
            f"{observations} has {len(X.values)} rows and {codes} has {len(y.values)}; pass a code for every "
            "observation."
        )
    _check_columns(codes, y, getattr(model, "n_components_", None), fitted, "coefficients")
    return X, y


def _names(model: Any, attribute: str) -> tuple[str, ...]:
    return tuple(map(str, getattr(model, attribute, ())))


def _check_columns(path: str, table: "NamedArray", expected: int | None, fitted: tuple[str, ...], what: str) -> None:
    """Refuse columns that are not those of the fit, with the first difference."""
    n_columns = table.values[0].size
    if expected is not None and n_columns != expected:
        unknown = [name for name in table.names if fitted and name not in fitted]
        raise ValueError(
            f"{path} has {n_columns} columns, and the model was fitted to {expected} {what}; pass as many, one row for "
            "every signal." + (f" The first column that the fit did not have is {unknown[0]!r}." if unknown else "")
        )
    if fitted and table.names and table.names != fitted:
        raise ValueError(f"{path} {first_difference(table.names, fitted, 'the model was fitted to')}")


def first_difference(names: tuple[str, ...], expected: tuple[str, ...], where: str) -> str:
    """The first of as many names that is not the expected one, and a remedy."""
    column = next(i for i, pair in enumerate(zip(names, expected, strict=True)) if pair[0] != pair[1])
    shown = ", ".join(map(repr, expected[:_NAMES_SHOWN])) + (", …" if len(expected) > _NAMES_SHOWN else "")
    message = f"has {names[column]!r} in column {column + 1}, where {where} {expected[column]!r}"
    if sorted(names) == sorted(expected):
        return f"{message}: the columns are in another order. Reorder them to {shown}."
    return f"{message}. Pass the columns {shown}; or, if these are the same, a table without a header."


def check_place(path: Path) -> None:
    """Refuse a file that cannot be written, before time is spent on its content."""
    if path.is_dir():
        raise IsADirectoryError(21, "Is a folder; name a file in it", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "There is no such folder; make it first", str(path.parent))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(13, "Nothing can be written to this folder", str(path.parent))


@contextmanager
def file_errors(observations: str = "", codes: str | None = None, model: Path | None = None) -> Iterator[None]:
    """Name the files in errors about X and y, and in those that a forged model file causes in Python."""
    try:
        yield
    except ValueError as error:  # NotFittedError, too, which is also an AttributeError
        if not _ARGUMENT.search(str(error)):
            raise
        files = f"observations {observations} (X)" + ("" if codes is None else f", codes {codes} (y)")
        raise ValueError(f"{files}: {error}") from error
    except (AttributeError, TypeError, LookupError, ArithmeticError) as error:
        if model is None:
            raise
        raise ValueError(
            f"the model in {model} does not work ({type(error).__name__}: {error}). Fit it anew; if that does not work "
            "either, it is a bug in bayeslista."
        ) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Put the name of the file that the user asked for into an error of writing."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}.") from error


def describe(model: Any) -> str:
    """The estimator and its sizes."""
    name = type(model).__name__
    if not hasattr(model, "n_features_in_"):
        return f"{name}, not fitted"
    if not hasattr(model, "n_components_"):
        return f"{name}, {model.n_features_in_} features"
    return f"{name}, {model.n_features_in_} observed values, {model.n_components_} coefficients"
