"""Checkpoints: files from which an interrupted fit continues to the same bits.

Between two epochs a fit depends on the state of the learner and of the random generator only. Everything before the
first epoch follows from data, parameters and the seed, and is computed again.
"""

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bayeslista.io.records import read_record, write_record
from bayeslista.numerics.epochs import EpochLog

_VERSION = 1
_SECONDS = 1.0  # from one checkpoint to the next, at least,
_RATIO = 20.0  # and so many times as long as writing one takes
_REMEDY = "Pass the same, remove the file to start anew, or pass another checkpoint."

_State = TypeVar("_State")


class FitRecord(NamedTuple):
    """A fit in a file: estimator, data and parameters that identify it, and the state after its last epoch."""

    version: int
    fit: dict[str, Any]
    parameters: dict[str, Any]
    seed: int = 0
    rows: list[Any] = []  # noqa: RUF012 never changed
    kept: tuple[list[Any], dict[str, Any]] | None = None  # leaves of the state, and that of the random generator


class Checkpoint(EpochLog):
    """The log of a fit in a file, or in memory where `path` is None.

    Class and parameters of the estimator and digests of the data identify the fit. An existing file is read, and
    refused if it is of another fit; otherwise one is written at once. A file that cannot be written later does not stop
    the fit: there is a warning. `fitted` is the state of the estimator where the fit has ended, else None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        estimator: Any,
        data: Mapping[str, NDArray[Any]],
        draw_seed: Callable[[Any], int],
        records: Mapping[str, type],
    ) -> None:
        super().__init__()
        self._path = None if path is None else Path(path)
        self._record: FitRecord | None = None
        self._pending: tuple[Any, Any] | None = None
        self._due, self._failed = 0.0, False
        self.fitted: dict[str, Any] | None = None
        if self._path is None:
            self.seed = draw_seed(estimator.random_state)
            return
        parameters = {name: value for name, value in estimator.get_params(deep=False).items() if name != "verbose"}
        fit = {"estimator": type(estimator).__name__, **{name: _identify(values) for name, values in data.items()}}
        record = FitRecord(_VERSION, fit, deepcopy(parameters))  # before a RandomState moves on
        if self._path.exists():
            record, self.fitted = _read(self._path, record, records)
            self.rows = list(record.rows)
        else:
            record = record._replace(seed=draw_seed(estimator.random_state))
            self._write(record)
        self._record, self.seed = record, record.seed

    def restore(self, state: _State, random: np.random.Generator) -> _State:
        """The state to begin with; the random generator is moved to where it was."""
        if self._record is None or self._record.kept is None:
            return state
        leaves, structure = jax.tree.flatten(state)
        kept, generator = self._record.kept
        if len(kept) != len(leaves) or not all(map(_matches, kept, leaves)):
            raise ValueError(f"{self._path} does not hold the state of this fit. {_REMEDY}")
        random.bit_generator.state = generator
        restored: _State = jax.tree.unflatten(structure, list(map(_like, kept, leaves)))
        return restored

    def append(self, row: Any, state: Any, random: np.random.Generator) -> bool:
        """Record an epoch, and write it if that is due; the first always is."""
        self.rows.append(row)
        self._pending = state, random.bit_generator.state
        if time.monotonic() >= self._due:
            self._try_to_write()
        return self.callback is not None and bool(self.callback(row))

    def finish(self, fitted: dict[str, Any]) -> None:
        """Write the state of the fitted estimator: the file is then one of a model, too."""
        self.fitted, self._pending = fitted, None
        self._try_to_write()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._pending is not None:
            self._try_to_write()

    def _try_to_write(self) -> None:
        if self._record is None:
            return
        record = self._record._replace(rows=self.rows if self.fitted is None else [], kept=None)
        if self._pending is not None:
            state, generator = self._pending
            record = record._replace(kept=([_plain(leaf) for leaf in jax.tree.leaves(state)], generator))
        start = time.monotonic()
        try:
            self._write(record)
            self._pending = None
        except OSError as error:
            if not self._failed:
                message = f"The checkpoint cannot be written, and the fit goes on without: {error}"
                warnings.warn(message, UserWarning, stacklevel=2)
            self._failed = True
        end = time.monotonic()
        self._due = end + max(_SECONDS, _RATIO * (end - start))

    def _write(self, record: FitRecord) -> None:
        assert self._path is not None
        model = {} if self.fitted is None else {"estimator": record.fit["estimator"], "state": self.fitted}
        write_record(self._path, {**model, "checkpoint": record}, package_versions())


def package_versions() -> dict[str, str]:
    """Versions for the header of a file."""
    return {name: version(name) for name in ("bayeslista", "numpy", "jax", "scikit-learn")}


def _read(path: Path, expected: FitRecord, records: Mapping[str, type]) -> tuple[FitRecord, dict[str, Any] | None]:
    """The record of a file, which has to be of the expected fit, and the fitted state if that fit has ended."""
    try:
        found = read_record(path, records)
    except ValueError as error:
        raise ValueError(f"{error} Remove the file to start anew, or pass another checkpoint.") from error
    record = found.get("checkpoint") if isinstance(found, dict) else None
    if not isinstance(record, FitRecord):
        raise ValueError(f"{path} is no checkpoint of a fit. {_REMEDY}")
    if record.version != _VERSION:
        raise ValueError(f"{path} is a checkpoint of another version of bayeslista. {_REMEDY}")
    other = [*differences(expected.fit, record.fit), *differences(expected.parameters, record.parameters)]
    if other:
        raise ValueError(f"{path} is of another fit: {', '.join(other)}. {_REMEDY}")
    return record, found.get("state")


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Descriptions of the entries in which a checkpoint differs from a call."""
    names = dict.fromkeys([*ours, *theirs])
    return [
        f"{name} ({_short(theirs.get(name))} there, {_short(ours.get(name))} here)"
        for name in names
        if not _equal(ours.get(name), theirs.get(name))
    ]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.random.RandomState) and isinstance(other, np.random.RandomState):
        return all(np.array_equal(*parts) for parts in zip(one.get_state(), other.get_state(), strict=True))
    return np.array_equal(np.asarray(one), np.asarray(other))


def _short(value: Any) -> str:
    return f"an array of shape {np.shape(value)}" if np.ndim(value) else repr(value)


def _identify(values: NDArray[Any]) -> str:
    return f"{values.dtype} of shape {values.shape}, digest {hashlib.sha256(values.tobytes()).hexdigest()[:32]}"


def _plain(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _matches(kept: Any, leaf: Any) -> bool:
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return np.shape(kept) == np.shape(leaf) and getattr(kept, "dtype", None) == leaf.dtype
    return type(kept) is type(leaf)


def _like(kept: Any, leaf: Any) -> Any:
    return jnp.asarray(kept) if isinstance(leaf, jax.Array) else kept
