"""What a fit has learned so far, in a file from which the same fit goes on to the same bits.

A fit is a sequence of passes. Between two of them all that matters is the state of learning and that of the random
generator; how learning begins follows from data, parameters and a seed, and is computed again.
"""

import hashlib
import os
import time
import warnings
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bayeslista.estimators._validation import random_seed
from bayeslista.persistence import read_record, write_record

_VERSION = 1
_SECONDS = 1.0  # from one checkpoint to the next, at least,
_SHARE = 20.0  # and so many times as long as writing one takes
_REMEDY = "Pass the same, remove the file to start anew, or pass another checkpoint."

_State = TypeVar("_State")


class FitRecord(NamedTuple):
    """What a file tells of a fit: which one it is, and what its last pass left behind."""

    version: int
    fit: dict[str, Any]
    parameters: dict[str, Any]
    seed: int = 0
    rows: list[Any] = []  # noqa: RUF012 never changed
    kept: tuple[list[Any], dict[str, Any]] | None = None


class Memory:
    """What a fit remembers from pass to pass: here, what the passes told, and nothing of any fit before.

    Attributes
    ----------
    rows : list
        What the passes told, one entry each.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.estimators._checkpoints import Memory
    >>> memory, random = Memory(), np.random.default_rng(0)
    >>> state = memory.recall(np.zeros(2), random)
    >>> memory.after("the first pass", state + 1, random)
    >>> memory.rows
    ['the first pass']
    """

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def recall(self, state: _State, random: np.random.Generator) -> _State:
        """The state to begin with: the one given, or, as the random generator, that after the last pass remembered."""
        return state

    def after(self, row: Any, state: Any, random: np.random.Generator) -> None:
        """Remember a pass: what it told, and what all later passes depend on."""
        self.rows.append(row)


class Checkpoint(Memory):
    """A memory in a file, if there is to be one, for the time of a fit; if that is stopped, the last pass is written.

    A file that is there is read, and refused if it is of another fit; else one is written, before anything is learned.
    After that a file that cannot be written is no reason to stop: there is a warning.

    Parameters
    ----------
    path : str, path-like or None
        The file.
    estimator : estimator
        What is being fitted, after its parameters and the data were checked.
    data : tuple of ndarray
        Observations, and codes if there are any.

    Attributes
    ----------
    seed : int
        Of all that is drawn.
    finished : bool
        Whether the fit has ended already; `restored` is then the end of it.

    Examples
    --------
    >>> from bayeslista import LISTA
    >>> from bayeslista.estimators._checkpoints import Checkpoint
    >>> with Checkpoint(None, LISTA(random_state=0), ()) as memory:
    ...     memory.finished, memory.seed
    (False, 209652396)
    """

    def __init__(self, path: str | os.PathLike[str] | None, estimator: Any, data: tuple[np.ndarray, ...]) -> None:
        super().__init__()
        self._path = None if path is None else Path(path)
        self._estimator = estimator
        self._state: dict[str, Any] | None = None
        self._pending: tuple[Any, Any] | None = None
        self._next, self._failed = 0.0, False
        self._told = None if self._path is None else self._open(self._path, estimator, data)
        self.seed: int = random_seed(estimator.random_state) if self._told is None else self._told.seed
        self.finished = self._state is not None

    def _open(self, path: Path, estimator: Any, data: tuple[np.ndarray, ...]) -> FitRecord:
        parameters = {name: value for name, value in estimator.get_params(deep=False).items() if name != "verbose"}
        fit = {"estimator": type(estimator).__name__, **_describe(estimator, data)}
        asked = FitRecord(_VERSION, fit, deepcopy(parameters))  # a RandomState moves on
        if path.exists():
            told, self._state = _read(path, asked)
            self.rows = list(told.rows)
            return told
        asked = asked._replace(seed=random_seed(estimator.random_state))
        _write(path, asked, None)
        return asked

    def recall(self, state: _State, random: np.random.Generator) -> _State:
        """The state to begin with, and the random generator moved to where it was."""
        if self._told is None or self._told.kept is None:
            return state
        leaves, shape = jax.tree.flatten(state)
        kept, drawn = self._told.kept
        same = len(kept) == len(leaves) and all(map(_fits, kept, leaves))
        if not same:
            raise ValueError(f"{self._path} does not hold the state of this fit. {_REMEDY}")
        random.bit_generator.state = drawn
        begun: _State = jax.tree.unflatten(shape, list(map(_like, kept, leaves)))
        return begun

    def after(self, row: Any, state: Any, random: np.random.Generator) -> None:
        """Remember a pass, and write it if that is due; the first always is."""
        super().after(row, state, random)
        self._pending = state, random.bit_generator.state
        if time.monotonic() >= self._next:
            self._try_to_write()

    def finish(self) -> None:
        """The fit has ended: the file becomes that of the model, and of this fit."""
        self._state = what_is_kept(self._estimator)
        self._pending = None
        self._try_to_write()

    def restored(self) -> Any:
        """The estimator, with what the file says that it has learned."""
        own = self._estimator.get_params(deep=False)
        learned = {name: value for name, value in (self._state or {}).items() if name not in own}
        vars(self._estimator).update(learned)
        return self._estimator

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._pending is not None:
            self._try_to_write()

    def _try_to_write(self) -> None:
        if self._path is None or self._told is None:
            return
        told = self._told._replace(rows=self.rows if self._state is None else [], kept=None)
        if self._pending is not None:
            state, drawn = self._pending
            told = told._replace(kept=([_plain(leaf) for leaf in jax.tree.leaves(state)], drawn))
        start = time.monotonic()
        try:
            _write(self._path, told, self._state)
            self._pending = None
        except OSError as error:
            if not self._failed:
                message = f"The checkpoint cannot be written, and the fit goes on without: {error}"
                warnings.warn(message, UserWarning, stacklevel=2)
            self._failed = True
        end = time.monotonic()
        self._next = end + max(_SECONDS, _SHARE * (end - start))


def _write(path: Path, told: FitRecord, state: dict[str, Any] | None) -> None:
    model = {} if state is None else {"estimator": told.fit["estimator"], "state": state}
    versions = {name: version(name) for name in ("bayeslista", "numpy", "jax", "scikit-learn")}
    write_record(path, {**model, "checkpoint": told}, versions)


def _read(path: Path, asked: FitRecord) -> tuple[FitRecord, dict[str, Any] | None]:
    """What the file tells if it is of the fit asked for, and what was learned if that has ended."""
    from bayeslista.estimators._files import known_records  # it knows all estimators, and they know this

    try:
        found = read_record(path, known_records())
    except ValueError as error:
        raise ValueError(f"{error} Remove the file to start anew, or pass another checkpoint.") from error
    told = found.get("checkpoint") if isinstance(found, dict) else None
    if not isinstance(told, FitRecord):
        raise ValueError(f"{path} is no checkpoint of a fit. {_REMEDY}")
    if told.version != _VERSION:
        raise ValueError(f"{path} is a checkpoint of another version of bayeslista. {_REMEDY}")
    other = [*different(asked.fit, told.fit), *different(asked.parameters, told.parameters)]
    if other:
        raise ValueError(f"{path} is of another fit: {', '.join(other)}. {_REMEDY}")
    return told, found.get("state")


def what_is_kept(estimator: Any) -> dict[str, Any]:
    """Parameters and attributes of an estimator, without what scikit-learn attaches for the time of a fit or a search.

    Parameters
    ----------
    estimator : estimator
        Fitted or not.

    Returns
    -------
    dict
        By name, for a file.

    Examples
    --------
    >>> from bayeslista import ISTA
    >>> from bayeslista.estimators._checkpoints import what_is_kept
    >>> what_is_kept(ISTA(n_layers=2))["n_layers"]
    2
    """
    passing = ("_skl_", "_callback_", "_parent_callback_", "_metadata_request")
    return {name: value for name, value in vars(estimator).items() if not name.startswith(passing)}


def different(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Say in which entries a checkpoint differs from what is asked for.

    Parameters
    ----------
    ours, theirs : dict
        Numbers, texts, arrays and random states by their names.

    Returns
    -------
    list of str
        One for each that is not the same.

    Examples
    --------
    >>> from bayeslista.estimators._checkpoints import different
    >>> different({"n_layers": 2, "tol": 0.0}, {"n_layers": 3, "tol": 0.0})
    ['n_layers (3 there, 2 here)']
    """
    names = dict.fromkeys([*ours, *theirs])
    return [
        f"{name} ({_short(theirs.get(name))} there, {_short(ours.get(name))} here)"
        for name in names
        if not _same(ours.get(name), theirs.get(name))
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.random.RandomState) and isinstance(other, np.random.RandomState):
        return all(np.array_equal(*parts) for parts in zip(one.get_state(), other.get_state(), strict=True))
    return np.array_equal(np.asarray(one), np.asarray(other))


def _short(value: Any) -> str:
    return f"an array of shape {np.shape(value)}" if np.ndim(value) else repr(value)


def _describe(estimator: Any, data: tuple[np.ndarray, ...]) -> dict[str, str]:
    """What tells data apart: type, shape as the user gave it, and a digest."""
    shapes = [data[0].shape, (*data[0].shape[:1], *estimator._code_shape)]
    return {
        name: f"{values.dtype} of shape {shape}, digest {hashlib.sha256(values.tobytes()).hexdigest()[:32]}"
        for name, values, shape in zip("Xy", data, shapes, strict=False)
    }


def _plain(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _fits(kept: Any, leaf: Any) -> bool:
    if isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return np.shape(kept) == np.shape(leaf) and getattr(kept, "dtype", None) == leaf.dtype
    return type(kept) is type(leaf)


def _like(kept: Any, leaf: Any) -> Any:
    return jnp.asarray(kept) if isinstance(leaf, jax.Array) else kept
