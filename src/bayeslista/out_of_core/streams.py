"""Training on a stream of pairs that does not fit in memory, which can be interrupted and resumed.

A stream is cut into batches of one size, whatever pieces it comes in, so that the result has the same bits however it
arrives. Checkpoints are written between two batches.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bayeslista.estimators import hooks
from bayeslista.estimators.base import BaseSparseCoder
from bayeslista.estimators.loading import read_estimator
from bayeslista.estimators.saving import restore, state_of, write_estimator
from bayeslista.estimators.validation import COUNT, check_arguments, naming, rollback
from bayeslista.io.checkpoints import differences

__all__ = ["fit_stream"]

_Model = TypeVar("_Model", bound=BaseSparseCoder)
_CONSTRAINTS = {"batch_size": [COUNT], "every": [COUNT], "resume": ["boolean"], "progress": ["boolean"]}
_REMEDY = "Delete the file or pass resume=False to start anew, or pass another checkpoint."


class _Batch(NamedTuple):
    """Pairs of a stream, and how many come before them."""

    begin: int
    X: NDArray[Any]
    y: NDArray[Any]

    @property
    def end(self) -> int:
        return self.begin + len(self.X)

    def after(self, n_pairs: int) -> "_Batch":
        """What is left without the first pairs of the stream."""
        rows = max(n_pairs - self.begin, 0)
        return _Batch(self.begin + rows, self.X[rows:], self.y[rows:])


class _Position(NamedTuple):
    """Pairs of a stream that a checkpoint has seen, the size of batches, and a digest of the first."""

    n_pairs: int
    batch_size: int
    opening: str


class _Columns:
    """The names of columns, which are those of the model or else of the first piece, in a copy of the model.

    Batches are arrays, which have no names: pieces are checked as they come.
    """

    def __init__(self, model: BaseSparseCoder) -> None:
        self.model, self._first = copy(model), not hooks.is_trained(model)

    def check(self, X: Any, y: Any) -> None:
        hooks.validate_names(self.model, X, y, reset=self._first)
        self._first = False


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

    The model is updated by batch after batch as by its `partial_fit`. If anything is raised, the model is left as it
    was. With a `checkpoint`, what was learned until then is in that file, and the same call resumes: pairs that it has
    seen are skipped, and the result is the same to the last bit as without the interruption.

    Parameters
    ----------
    model : BayesLISTA, LISTA or SpikeSlabNet
        Fitted or not.
    pairs : iterable of (X, y), or a tuple of two arrays
        Either pieces of the stream, of any sizes: observations of shape (n, n_observed) and codes of shape
        (n, n_components) or (n,), or a single pair without its first axis. Or all observations and all codes, as
        anything that has a length and can be sliced, such as :class:`numpy.memmap`; one batch is read at a time. Names
        of the columns of frames are kept, and have to be the same in all pieces.
    batch_size : int, default=1024
        Pairs in an update.
    checkpoint : str or path-like, default=None
        A file for the model and the number of pairs it has seen. It is written at the start, from time to time, and at
        the end, whole or not at all, and :func:`bayeslista.load` reads it as a model.
    every : int, default=10_000
        Pairs from one checkpoint to the next, at least; they are written between batches.
    resume : bool, default=True
        Whether to continue from an existing checkpoint. False starts anew and replaces it.
    progress : bool, default=False
        Whether to show a progress bar on the standard error.

    Returns
    -------
    BayesLISTA, LISTA or SpikeSlabNet
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
    After the end of the stream the same call changes nothing; if the stream has grown, it continues with what is new.
    `SpikeSlabNet` adds up sufficient statistics and learns from them once at the end, and for every checkpoint.

    Examples
    --------
    >>> from bayeslista import BayesLISTA
    >>> from bayeslista.datasets import make_sparse_codes
    >>> from bayeslista.out_of_core import fit_stream
    >>> data = make_sparse_codes(n_train=320, n_test=5, n_observed=8, n_components=10, random_state=0)
    >>> pieces = ((data.Y_train[i : i + 70], data.B_train[i : i + 70]) for i in range(0, 320, 70))
    >>> model = fit_stream(BayesLISTA(n_layers=2), pieces, batch_size=64)
    >>> int(model.history_["n_pairs"].sum()), model.predict(data.Y_test).shape
    (320, (5, 10))
    """
    if not isinstance(model, BaseSparseCoder) or not hasattr(model, "partial_fit"):
        raise ValueError(
            f"A stream needs an estimator with partial_fit, which {type(model).__name__} does not have; pass "
            "BayesLISTA, LISTA or SpikeSlabNet, or use fit on as many pairs as memory holds."
        )
    hooks.check_parameters(model)
    check_arguments("fit_stream", _CONSTRAINTS, batch_size=batch_size, every=every, resume=resume, progress=progress)
    path, known = None if checkpoint is None else Path(checkpoint), _Position(0, int(batch_size), "")
    with rollback(model):
        if path is not None and resume and path.exists():
            known = _restore(path, model, known)
        elif path is not None:
            _write(path, model, known)  # a file that cannot be written is an error before any pair is read
        _learn(model, pairs, known, path, every, progress)
    return model


def _learn(model: Any, pairs: Any, known: _Position, path: Path | None, every: int, progress: bool) -> None:
    """Update the model by the pairs that a checkpoint has not seen, and write checkpoints."""
    written, n_pairs, reached = known, known.n_pairs, 0
    columns = _Columns(model)
    batches, total = _batches(pairs, known, columns)
    with tqdm(total=total, initial=n_pairs, unit="pair", disable=not progress) as bar:
        for batch in batches:
            reached = batch.end
            if batch.begin == 0:
                _check_opening(path, model, batch, known)
                written = written._replace(opening=_digest(batch, batch.end))
            new = batch.after(known.n_pairs)
            if not len(new.X):
                continue
            try:
                hooks.update(model, new.X, new.y, columns.model)
            except ValueError as error:
                raise ValueError(f"Pairs {new.begin} to {new.end - 1} of the stream: {error}") from error
            n_pairs = new.end
            bar.update(len(new.X))
            if path is not None and n_pairs - written.n_pairs >= every:
                written = written._replace(n_pairs=n_pairs)
                hooks.conclude(model)
                _write(path, model, written)
    reached = reached if total is None else total
    if reached < known.n_pairs:
        raise ValueError(
            f"The stream ended after {reached} pairs, and {path} has seen {known.n_pairs}; pass the stream from its "
            "beginning, or resume=False."
        )
    if n_pairs == 0:
        raise ValueError("The stream has no pairs; pass at least one. A generator can be read only once.")
    if n_pairs > written.n_pairs:
        hooks.conclude(model)
        if path is not None:
            _write(path, model, written._replace(n_pairs=n_pairs))


def _batches(pairs: Any, known: _Position, columns: _Columns) -> tuple[Iterator[_Batch], int | None]:
    """The stream in batches that begin at multiples of their size, and the number of pairs, None if unknown."""
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
        return _sliced(*pairs, known.batch_size, known.n_pairs), lengths[0]
    if not isinstance(pairs, Iterable):
        raise ValueError(
            f"pairs must be an iterable of pieces (X, y), or a tuple of two arrays, got {type(pairs).__name__}."
        )
    return _recut(pairs, known.batch_size, columns), None


def _sliced(X: Any, y: Any, size: int, n_known: int) -> Iterator[_Batch]:
    """Batches of arrays: the first, which identifies the stream, and those from the last known on."""
    last_known = max(n_known - 1, 0) // size * size
    for begin in sorted({0, *range(last_known, len(X), size)} if len(X) else ()):
        rows = slice(begin, begin + size)
        yield _Batch(begin, *(np.asarray(side.iloc[rows] if hasattr(side, "iloc") else side[rows]) for side in (X, y)))


def _recut(pieces: Iterable[Any], size: int, columns: _Columns) -> Iterator[_Batch]:
    """Batches of pieces of any sizes. Parts that are held are copied: the caller may reuse the memory."""
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


def _checked_piece(piece: Any, number: int) -> tuple[NDArray[Any], NDArray[Any], tuple[Any, ...]]:
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


def _check_opening(path: Path | None, model: Any, batch: _Batch, known: _Position) -> None:
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


def _write(path: Path, model: BaseSparseCoder, position: _Position) -> None:
    write_estimator(path, model, {"stream": position._asdict()})


def _restore(path: Path, model: BaseSparseCoder, asked: _Position) -> _Position:
    """Put what a checkpoint has learned into the model, which has to have the same parameters; return the position."""
    try:
        found, extra = read_estimator(path)
    except ValueError as error:
        raise ValueError(f"{error} {_REMEDY}") from error
    if "stream" not in extra:
        raise ValueError(f"{path} holds a model that is no checkpoint of a stream. {_REMEDY}")
    if type(found) is not type(model):
        raise ValueError(f"{path} is of {type(found).__name__}, and the model is {type(model).__name__}. {_REMEDY}")
    position = _Position(**extra["stream"])
    ours, theirs = model.get_params(deep=False), found.get_params(deep=False)
    ours["batch_size"], theirs["batch_size"] = asked.batch_size, position.batch_size
    ours["verbose"] = theirs["verbose"] = 0
    other = differences(ours, theirs)
    if other:
        raise ValueError(f"{path} is of other parameters: {', '.join(other)}. Pass the same, or: {_REMEDY}")
    restore(model, state_of(found))
    return position
