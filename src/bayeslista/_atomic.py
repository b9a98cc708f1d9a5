"""Files that are there whole or not at all."""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def finishing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a name to write a file under, which takes its own only once it is on disk.

    Parameters
    ----------
    path : str or path-like
        The file, in a folder that exists; one that was there stays if anything fails.

    Yields
    ------
    pathlib.Path
        A file in the same folder, for the caller to make.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.
    OSError
        If it cannot be written for another reason.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista._atomic import finishing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with finishing(Path(folder) / "note") as unfinished:
    ...         count = unfinished.write_text("whole")
    ...     [file.name for file in Path(folder).iterdir()]
    ['note']
    """
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
            error.filename = str(target)  # by which a user knows it
        raise
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file that takes its name only once it is on disk; one that was there stays if anything fails.

    Parameters
    ----------
    path : str or path-like
        The file, in a folder that exists.
    content : bytes
        All of it.

    Raises
    ------
    OSError
        If it cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from bayeslista._atomic import write_atomically
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "note", b"whole")
    ...     [file.name for file in Path(folder).iterdir()]
    ['note']
    """
    with finishing(path) as unfinished, unfinished.open("xb") as stream:
        try:
            stream.write(content)
            stream.flush()
        except OSError as error:
            error.filename = str(unfinished)  # writing, unlike opening, does not tell
            raise
