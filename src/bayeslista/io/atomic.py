"""Files that are there whole or not at all."""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def finishing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name in the same folder; the file gets its own name once it is complete and on disk."""
    target = Path(path)
    if not target.parent.exists():
        remedy = "There is no such folder; make it first, by os.makedirs for example"
        raise FileNotFoundError(errno.ENOENT, remedy, str(target.parent))
    unfinished = target.with_name(f".unfinished-{uuid.uuid4().hex}")
    try:
        yield unfinished
        with unfinished.open("r+b") as stream:
            os.fsync(stream.fileno())
        os.replace(unfinished, target)
    except OSError as error:
        if error.filename == str(unfinished):
            error.filename = str(target)  # the name that the user asked for
        raise
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that appears, or replaces the one before, only once all of it is on disk."""
    with finishing(path) as unfinished, unfinished.open("xb") as stream:
        try:
            stream.write(content)
            stream.flush()
        except OSError as error:
            error.filename = str(unfinished)  # an error in writing, unlike one in opening, has no file name
            raise
