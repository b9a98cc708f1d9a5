"""The compilation cache of JAX, kept from one command to the next."""

import os
from importlib.util import find_spec
from pathlib import Path

_SHORTEST = "0.1"  # seconds of compilation that are worth a file
_MOST = str(10**9)  # bytes


def keep_compiled() -> None:
    """Set JAX's compilation cache, before JAX is imported, unless JAX_COMPILATION_CACHE_DIR is set; empty is none."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayeslista" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home
        return
    if not os.access(folder, os.W_OK):
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", _SHORTEST)
    if find_spec("filelock") is not None:  # without it JAX refuses a limit
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", _MOST)
