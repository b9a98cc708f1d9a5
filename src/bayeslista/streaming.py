"""Pairs that do not fit in memory: learning from a stream, which can be stopped and taken up again.

A stream is cut into batches of one size, whatever pieces it comes in, so that it gives the same bits however it
arrives. A checkpoint lies between two batches: a run that goes on from there meets the same batches as one that was
never stopped.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from sklearn.utils.validation import validate_data
from tqdm import tqdm

from bayeslista.estimators import SpikeSlabNet, load
from bayeslista.estimators._base import BaseSparseCoder
from bayeslista.estimators._checkpoints import different
from bayeslista.estimators._parameters import check_boolean, check_integer
from bayeslista.estimators._validation import naming

__all__ = ["fit_stream"]

_Model = TypeVar("_Model", bound=BaseSparseCoder)
_POSITION = "_stream_position"  # under this name it is in the file, beside the attributes of the model


class _Batch(NamedTuple):
    """Pairs of a stream, and how many come before them."""

    begin: int
    X: np.ndarray
    y: np.ndarray

    @property
    def end(self) -> int:
        return self.begin + len(self.X)

    def after(self, n_pairs: int) -> "_Batch":
        """What is left when the first pairs of the stream are left out."""
        rows = max(n_pairs - self.begin, 0)
        return _Batch(self.begin + rows, self.X[rows:], self.y[rows:])


class _Position(NamedTuple):
    """How far a stream was read, how it was cut, and a digest of its first batch, by which it is known again."""

    n_pairs: int
    batch_size: int
    opening: str


class _Columns:
    """Names of columns: what a model takes, or else the first piece, has to be so in all others.

    Batches are arrays, which have none; so a copy of the model looks at the pieces as they come.
    """

    def __init__(self, model: BaseSparseCoder) -> None:
        self._model, self._first = copy(model), not hasattr(model, "_learner")

    def check(self, X: Any, y: Any) -> None:
        """Learn the names that the first pieces have, and refuse others, or the same in another order."""
        first, self._first = self._first, False
        if hasattr(X, "columns") or (hasattr(self._model, "feature_names_in_") and np.ndim(X) == 2):
            validate_data(self._model, X, reset=first, skip_check_array=True)
        if first:
            self._model._learn_component_names(y)
        else:
            self._model._check_component_names(y)

    def take_in(self, learning: Any, batch: _Batch) -> None:
        """Let a model learn from a batch, and keep the names."""
        vars(learning).pop("feature_names_in_", None)  # that arrays have none is no news
        _take_in(learning, batch)
        names = ("feature_names_in_", "component_names_")
        vars(learning).update({name: getattr(self._model, name) for name in names if hasattr(self._model, name)})


def fit_stream(
    model: _Model,
    pairs: Any,
    *,
    batch_size: int = 1024,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int = 10_000,
    resume: bool = True,
    progress: bool = False,
) -> _Model:
    """Learn from a stream of pairs, each seen once, in memory that does not grow with it.

    The model takes in batch after batch as its `partial_fit` would. If anything stops it, the model is left as it was.
    With a `checkpoint`, what was learned until then is in that file, and the same call takes it up: pairs that are in
    it are skipped, and the end is the same to the last bit as without the stop.

    Parameters
    ----------
    model : BayesLISTA or SpikeSlabNet
        What learns, fitted or not.
    pairs : iterable of (X, y), or a tuple of two arrays
        Either pieces of the stream, of any sizes: observations of shape (n, n_observed) and codes of shape
        (n, n_components) or (n,), or a single pair without its first axis. Or all observations and all codes, as
        anything that has a length and can be sliced, such as :class:`numpy.memmap`; one batch is read at a time. Names
        of the columns of frames are kept, and have to be the same in all pieces.
    batch_size : int, default=1024
        Pairs that are taken in at once.
    checkpoint : str or path-like, default=None
        A file in which to keep the model and how many pairs it has seen. It is written at the start, at times, and at
        the end, whole or not at all, and :func:`bayeslista.load` reads it as a model.
    every : int, default=10_000
        Pairs from one checkpoint to the next, at least; they are written between batches.
    resume : bool, default=True
        Whether to go on from a checkpoint that is there. False starts anew and replaces it.
    progress : bool, default=False
        Whether to show a progress bar on the standard error.

    Returns
    -------
    BayesLISTA or SpikeSlabNet
        The model itself, fitted.

    Raises
    ------
    ValueError
        If the model cannot learn from a stream, pairs do not fit together, or the checkpoint is damaged, or of another
        model or stream.
    OSError
        If the checkpoint cannot be read or written.

    Notes
    -----
    After the end of the stream the same call changes nothing; if the stream has grown by then, it goes on with what is
    new. `SpikeSlabNet` adds up sums and learns from them once at the end, and for every checkpoint.

    Examples
    --------
    >>> from bayeslista import BayesLISTA
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.streaming import fit_stream
    >>> data = make_sparse_codes(n_train=320, n_test=5, n_observed=8, n_components=10, random_state=0)
    >>> pieces = ((data.Y_train[i : i + 70], data.B_train[i : i + 70]) for i in range(0, 320, 70))
    >>> model = fit_stream(BayesLISTA(n_layers=2), pieces, batch_size=64)
    >>> int(model.history_["n_pairs"].sum()), model.predict(data.Y_test).shape
    (320, (5, 10))
    """
    if not isinstance(model, BaseSparseCoder) or not hasattr(model, "partial_fit"):
        raise ValueError(
            f"A stream needs an estimator with partial_fit, which {type(model).__name__} does not have; pass "
            "BayesLISTA or SpikeSlabNet, or use fit on as many pairs as memory holds."
        )
    model._check_parameters()
    check_integer("batch_size", batch_size, minimum=1)
    check_integer("every", every, minimum=1)
    check_boolean("resume", resume)
    check_boolean("progress", progress)
    path = None if checkpoint is None else Path(checkpoint)
    learning, position = copy(model), _Position(0, int(batch_size), "")
    learning.__dict__.pop(_POSITION, None)  # of the checkpoint that it may be from
    if path is not None and resume and path.exists():
        learning, position = _read(path, model, position)
    elif path is not None:
        _write(path, learning, position)  # what cannot be written is told at once
    known, n_pairs = position, position.n_pairs
    columns = _Columns(learning)
    batches, total = _batches(pairs, int(batch_size), known.n_pairs, columns)
    reached = 0
    with tqdm(total=total, initial=n_pairs, unit="pair", disable=not progress) as bar:
        for batch in batches:
            reached = batch.end
            if batch.begin == 0:
                _check_known(path, learning, batch, known)
                position = position._replace(opening=_digest(batch, batch.end))
            new = batch.after(known.n_pairs)
            if not len(new.X):
                continue
            try:
                columns.take_in(learning, new)
            except ValueError as error:
                raise ValueError(f"Pairs {new.begin} to {new.end - 1} of the stream: {error}") from error
            n_pairs = new.end
            bar.update(len(new.X))
            if path is not None and n_pairs - position.n_pairs >= every:
                position = position._replace(n_pairs=n_pairs)
                _write(path, _finished(learning), position)
    reached = reached if total is None else total
    if reached < known.n_pairs:
        raise ValueError(
            f"The stream ended after {reached} pairs, and {path} has seen {known.n_pairs}; pass the stream from its "
            "beginning, or resume=False."
        )
    if n_pairs == 0:
        raise ValueError("The stream has no pairs; pass at least one. A generator can be read only once.")
    if n_pairs > position.n_pairs:
        _finished(learning)
        if path is not None:
            _write(path, learning, position._replace(n_pairs=n_pairs))
    model.__dict__ = learning.__dict__
    return model


def _take_in(model: Any, batch: _Batch) -> None:
    if isinstance(model, SpikeSlabNet):
        model._learner = model._taken_in(batch.X, batch.y)
    else:
        model.partial_fit(batch.X, batch.y)


def _finished(model: Any) -> Any:
    """The model, after it has made of all pairs taken in what is to be made of them."""
    if isinstance(model, SpikeSlabNet):
        model._learner = model._learned(model._learner)
        model._finish(stacklevel=4)
    return model


def _batches(pairs: Any, size: int, n_known: int, columns: _Columns) -> tuple[Iterator[_Batch], int | None]:
    """The stream in batches that begin at multiples of their size, and how many pairs there are if that is known."""
    if isinstance(pairs, tuple) and len(pairs) == 2 and not any(isinstance(part, tuple) for part in pairs):
        for name, part in zip("Xy", pairs, strict=True):
            if not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
                raise ValueError(
                    f"pairs is a tuple (X, y) whose {name} is a {type(part).__name__}; pass two arrays, or an iterable "
                    "of pieces (X, y)."
                )
        lengths = [len(part) for part in pairs]
        if lengths[0] != lengths[1]:
            raise ValueError(
                f"X and y must pair up row by row: X has {lengths[0]} samples and y has {lengths[1]}; pass one code "
                "for every observation."
            )
        columns.check(*pairs)
        return _sliced(*pairs, size, n_known), lengths[0]
    if not isinstance(pairs, Iterable):
        raise ValueError(
            f"pairs must be an iterable of pieces (X, y), or a tuple of two arrays, got {type(pairs).__name__}."
        )
    return _recut(pairs, size, columns), None


def _sliced(X: Any, y: Any, size: int, n_known: int) -> Iterator[_Batch]:
    """Batches of arrays: the first, by which the stream is known, and those from the last known on."""
    last_known = max(n_known - 1, 0) // size * size
    for begin in sorted({0, *range(last_known, len(X), size)} if len(X) else ()):
        rows = slice(begin, begin + size)
        yield _Batch(begin, *(np.asarray(side.iloc[rows] if hasattr(side, "iloc") else side[rows]) for side in (X, y)))


def _recut(pieces: Iterable[Any], size: int, columns: _Columns) -> Iterator[_Batch]:
    """Batches of pieces of any sizes. What is kept of a piece is copied: its owner may use the memory again."""
    begin, held, n_held, first = 0, [], 0, None
    for number, piece in enumerate(pieces):
        X, y, given = _checked_piece(piece, number)
        first = first or (X.shape[1:], y.shape[1:])
        if (X.shape[1:], y.shape[1:]) != first:
            raise ValueError(
                f"Piece {number} of the stream has observations and codes of shapes {X.shape[1:]} and {y.shape[1:]}, "
                f"those before had {first[0]} and {first[1]}; pass pairs of one kind."
            )
        try:
            columns.check(*given)
        except ValueError as error:
            raise ValueError(f"Piece {number} of the stream: {error}") from error
        while len(X):
            room = size - n_held
            part = X[:room], y[:room]
            X, y = X[room:], y[room:]
            n_held += len(part[0])
            if n_held < size:
                held.append(tuple(np.array(side) for side in part))
                continue
            yield _Batch(begin, *(np.concatenate(sides) for sides in zip(*held, part, strict=True)))
            begin, held, n_held = begin + size, [], 0
    if held:
        yield _Batch(begin, *(np.concatenate(sides) for sides in zip(*held, strict=True)))


def _checked_piece(piece: Any, number: int) -> tuple[np.ndarray, np.ndarray, tuple[Any, ...]]:
    """Observations and codes of a piece, one pair a row, and both as they were given."""
    try:
        given = tuple(piece)
        X, y = (np.asarray(side) for side in given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Piece {number} of the stream is not a pair (X, y) of arrays ({error}).") from error
    if X.ndim == 1:
        X, y = X[None], y[None]
    if X.ndim != 2 or y.ndim not in (1, 2) or len(X) != len(y):
        raise ValueError(
            f"Piece {number} of the stream has X of shape {X.shape} and y of shape {y.shape}; pass (n, n_observed) and "
            "(n, n_components) or (n,), or a single pair."
        )
    return X, y, given


def _digest(batch: _Batch, n_pairs: int) -> str:
    found = hashlib.sha256()
    for name, side in (("X", batch.X), ("y", batch.y)):
        with naming(name):
            if side.dtype.kind == "c":
                raise ValueError("Complex data not supported.")
            found.update(np.ascontiguousarray(side[:n_pairs], dtype=np.float64).tobytes())
    return found.hexdigest()


def _check_known(path: Path | None, model: Any, batch: _Batch, known: _Position) -> None:
    """Refuse a stream that is not the one of the checkpoint."""
    if not known.n_pairs:
        return
    shapes = [(batch.X.shape[1], int(np.prod(batch.y.shape[1:]))), (model.n_features_in_, model.n_components_)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{path} is of pairs with {shapes[1][0]} observed values and {shapes[1][1]} coefficients, and the stream "
            f"has {shapes[0][0]} and {shapes[0][1]}; pass the same stream, another checkpoint, or resume=False."
        )
    if _digest(batch, known.n_pairs) != known.opening:
        raise ValueError(
            f"The stream does not begin with the pairs that {path} began with; pass the same stream in the same order, "
            "another checkpoint, or resume=False."
        )


def _write(path: Path, model: Any, position: _Position) -> None:
    kept = copy(model)
    setattr(kept, _POSITION, position._asdict())
    kept.save(path)


def _read(path: Path, model: Any, asked: _Position) -> tuple[Any, _Position]:
    """The model of a checkpoint, with the very parameters of the model given, and the position."""
    remedy = "Delete the file or pass resume=False to start anew, or pass another checkpoint."
    try:
        found = load(path)
    except ValueError as error:
        raise ValueError(f"{error} {remedy}") from error
    told = vars(found).pop(_POSITION, None)
    if told is None:
        raise ValueError(f"{path} holds a model that is no checkpoint of a stream. {remedy}")
    if type(found) is not type(model):
        raise ValueError(f"{path} is of {type(found).__name__}, and the model is {type(model).__name__}. {remedy}")
    position = _Position(**told)
    ours, theirs = model.get_params(deep=False), found.get_params(deep=False)
    ours["batch_size"], theirs["batch_size"] = asked.batch_size, position.batch_size
    ours["verbose"] = theirs["verbose"] = 0  # whoever watches
    other = different(ours, theirs)
    if other:
        raise ValueError(f"{path} is of other parameters: {', '.join(other)}. Pass the same, or: {remedy}")
    vars(found).update(model.get_params(deep=False))
    return found, position
