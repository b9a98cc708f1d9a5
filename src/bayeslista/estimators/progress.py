"""Progress bars, and the callbacks of scikit-learn 1.9 and later."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from tqdm import tqdm

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn before 1.9 has none

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """No callbacks."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, wrapped as scikit-learn's decorator wraps it."""

        @wraps(method)
        def plain(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return plain


class Watch:
    """The tasks of a fit, which move a progress bar and call the callbacks of scikit-learn."""

    def __init__(self, estimator: Any, data: tuple[Any, ...], n_tasks: int, bar: tqdm) -> None:
        self._bar = bar
        self._keywords = {"estimator": estimator, **dict(zip(("X", "y"), data, strict=False))}
        supported = hasattr(estimator, "_init_callback_context")
        self._fit = estimator._init_callback_context(max_subtasks=n_tasks) if supported else None
        self._task: Any = None
        if self._fit is not None:
            self._fit.call_on_fit_task_begin(**self._keywords)

    def begin(self, name: str = "epoch") -> None:
        """Begin a task."""
        if self._fit is not None:
            self._task = self._fit.subcontext(task_name=name)
            self._task.call_on_fit_task_begin(**self._keywords)

    def end(self, fitted: Callable[[], dict[str, Any]] | None = None) -> bool:
        """End the task, with a function that returns fitted attributes; return whether a callback asks to stop."""
        if self._task is None:
            return False
        return bool(self._task.call_on_fit_task_end(**self._keywords, reconstruction_attributes=fitted))

    def end_epoch(self, nmse: float, fitted: Callable[[], dict[str, Any]] | None = None) -> bool:
        """End an epoch, which moves the progress bar, too."""
        advance(self._bar, nmse)
        return self.end(fitted)

    def next_epoch(self, row: Any) -> bool:
        """End an epoch and begin the next, or what follows the last."""
        stop = self.end_epoch(row.nmse)
        self.begin()
        return stop

    def finish(self) -> None:
        """End the fit."""
        if self._fit is not None:
            self._fit.call_on_fit_task_end(**self._keywords, reconstruction_attributes={})


@contextmanager
def watched(
    estimator: Any, data: tuple[Any, ...], n_epochs: int, *, n_more: int = 0, n_done: int = 0, verbose: int = 0
) -> Iterator[Watch]:
    """Watch a fit of so many epochs and more tasks, of which some were done before an interruption."""
    with progress_bar(n_epochs, type(estimator).__name__, verbose, n_done) as bar:
        watch = Watch(estimator, data, n_epochs + n_more, bar)
        yield watch
        watch.finish()


def progress_bar(total: int, description: str, verbose: int, initial: int = 0, unit: str = "epoch") -> tqdm:
    """A progress bar on the standard error, silent unless `verbose` is at least 1."""
    return tqdm(total=total, initial=initial, desc=description, unit=unit, disable=verbose < 1, file=sys.stderr)


@contextmanager
def stages(description: str, verbose: int) -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows how many steps of a stage are done: a progress bar for each stage."""
    bar: tqdm | None = None
    shown = ""

    def report(stage: str, n_done: int, n_steps: int) -> None:
        nonlocal bar, shown
        if verbose < 1:
            return
        if bar is None or stage != shown:
            if bar is not None:
                bar.close()
            bar, shown = progress_bar(n_steps, f"{description}, {stage}", verbose, unit="step"), stage
        bar.update(n_done - bar.n)

    try:
        yield report
    finally:
        if bar is not None:
            bar.close()


def advance(bar: tqdm, nmse: float) -> None:
    """Move a progress bar by one epoch and show its NMSE."""
    bar.set_postfix(nmse=f"{nmse:.4f}", refresh=False)
    bar.update()
