"""Those who watch a fit: a progress bar, and the callbacks of scikit-learn 1.9 and later."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from tqdm import tqdm

_Row = TypeVar("_Row")

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9 has none

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to support."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, as deep in the stack as scikit-learn's own decorator has it."""

        @wraps(method)
        def plain(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return plain


class Watch:
    """A fit that is being watched: it tells of every task that begins and ends.

    Parameters
    ----------
    estimator : estimator
        What is being fitted.
    pairs : tuple of ndarray
        Observations and, if there are any, codes.
    n_tasks : int
        How many tasks there are at most.
    bar : tqdm.tqdm
        From `progress_bar`.
    """

    def __init__(self, estimator: Any, pairs: tuple[Any, ...], n_tasks: int, bar: tqdm) -> None:
        self._bar = bar
        self._told = {"estimator": estimator, **dict(zip(("X", "y"), pairs, strict=False))}
        supported = hasattr(estimator, "_init_callback_context")
        self._fit = estimator._init_callback_context(max_subtasks=n_tasks) if supported else None
        self._task: Any = None
        if self._fit is not None:
            self._fit.call_on_fit_task_begin(**self._told)

    def begin(self, name: str = "pass") -> None:
        """A task begins."""
        if self._fit is not None:
            self._task = self._fit.subcontext(task_name=name)
            self._task.call_on_fit_task_begin(**self._told)

    def end(self, fitted: Callable[[], dict[str, Any]] | None = None) -> bool:
        """The task has ended, with fitted attributes if there are any yet; return whether a callback asks to stop."""
        if self._task is None:
            return False
        return bool(self._task.call_on_fit_task_end(**self._told, reconstruction_attributes=fitted))

    def end_pass(self, nmse: float, fitted: Callable[[], dict[str, Any]] | None = None) -> bool:
        """A pass has ended, which moves the progress bar, too."""
        advance(self._bar, nmse)
        return self.end(fitted)

    def over(self, passes: Generator[_Row, bool | None, None]) -> Iterator[_Row]:
        """Passes as they are made, the last told of as a task of its own: what follows them."""
        stop: bool | None = None
        while True:
            self.begin()
            try:
                row = passes.send(stop)
            except StopIteration:
                self.end()
                return
            yield row
            stop = self.end_pass(row.nmse)  # type: ignore[attr-defined]

    def finish(self) -> None:
        """The fit has ended."""
        if self._fit is not None:
            self._fit.call_on_fit_task_end(**self._told, reconstruction_attributes={})


@contextmanager
def watched(
    estimator: Any, pairs: tuple[Any, ...], n_tasks: int, *, n_more: int = 0, n_done: int = 0, verbose: int = 0
) -> Iterator[Watch]:
    """Let a progress bar and callbacks watch a fit, which `with_callbacks` has to decorate.

    Parameters
    ----------
    estimator : estimator
        What is being fitted.
    pairs : tuple of ndarray
        Observations and, if there are any, codes.
    n_tasks : int
        How many tasks there are at most that move the progress bar.
    n_more : int, default=0
        And how many that do not.
    n_done : int, default=0
        How many tasks another fit has done before it was stopped.
    verbose : int, default=0
        Whether to show a progress bar.

    Yields
    ------
    Watch
        To be told of tasks.

    Examples
    --------
    >>> from bayeslista import LISTA
    >>> from bayeslista.estimators._progress import watched
    >>> with watched(LISTA(), (), n_tasks=1) as watch:
    ...     watch.begin()
    ...     watch.end_pass(0.5)
    False
    """
    with progress_bar(n_tasks, type(estimator).__name__, verbose, n_done) as bar:
        watch = Watch(estimator, pairs, n_tasks + n_more, bar)
        yield watch
        watch.finish()


def progress_bar(total: int, description: str, verbose: int, initial: int = 0) -> tqdm:
    """Make a progress bar on the standard error, silent unless `verbose` is at least 1.

    Call ``advance(bar, nmse)`` after every pass.

    Parameters
    ----------
    total : int
        How many passes there are at most.
    description : str
        What is being trained.
    verbose : int
        Whether to show it.
    initial : int, default=0
        How many passes were made before.

    Returns
    -------
    tqdm.tqdm
        A context manager.

    Examples
    --------
    >>> from bayeslista.estimators._progress import advance, progress_bar
    >>> with progress_bar(3, "LISTA", verbose=0) as bar:
    ...     for error in (0.9, 0.8, 0.7):
    ...         advance(bar, error)
    """
    return tqdm(total=total, initial=initial, desc=description, unit="pass", disable=verbose < 1, file=sys.stderr)


def advance(bar: tqdm, nmse: float) -> None:
    """Move a progress bar one pass on and show the running NMSE.

    Parameters
    ----------
    bar : tqdm.tqdm
        From `progress_bar`.
    nmse : float
        The normalised error after this pass.

    Examples
    --------
    >>> from bayeslista.estimators._progress import advance, progress_bar
    >>> with progress_bar(1, "LISTA", verbose=0) as bar:
    ...     advance(bar, 0.5)
    """
    bar.set_postfix(nmse=f"{nmse:.4f}", refresh=False)
    bar.update()
