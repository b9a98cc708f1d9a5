"""How a command ends: with a result, or with a message that a person can act on and an exit code."""

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import typer

FAILED, INTERRUPTED = 1, 130

_EXHAUSTED = "RESOURCE_EXHAUSTED"  # of XLA, where memory is short

_Command = TypeVar("_Command", bound=Callable[..., None])


def reported(command: _Command) -> _Command:
    """Make errors and warnings of a command single lines on the standard error."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            with _plain_warnings():
                command(*arguments, **options)
        except KeyboardInterrupt as stop:
            say(f"\nInterrupted; {stop}" if str(stop) else "\nInterrupted.")
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and _EXHAUSTED not in str(error):
                raise
            say(f"Error: {_reason(error)}")
            raise typer.Exit(FAILED) from error

    return run  # type: ignore[return-value]


def say(text: str) -> None:
    """Print on the standard error, which programs do not read."""
    print(text, file=sys.stderr)


def tell(result: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Print the result: for a program, or for a person."""
    print(json.dumps(_plain(result), ensure_ascii=False) if as_json else "\n".join(lines))


def shows_progress(quiet: bool) -> bool:
    """Whether the standard error is a terminal and progress is wanted."""
    return not quiet and sys.stderr.isatty()


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, MemoryError | RuntimeError):
        return f"there is not enough memory. {error}".strip()
    return " ".join(str(error).split())


@contextmanager
def _plain_warnings() -> Iterator[None]:
    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say(f"Warning: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.simplefilter("default", RuntimeWarning)
        warnings.filterwarnings("ignore", "X does not have valid feature names")  # names are checked with the table
        warnings.showwarning = show
        yield


def _plain(value: Any) -> Any:
    """A value as JSON has it; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
