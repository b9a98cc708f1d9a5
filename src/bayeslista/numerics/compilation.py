"""`jax.jit` with XLA options that shorten compilation and keep the speed at run time."""

import inspect
import os
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Fewer optimisation passes of the backend; the older loop emitter, or the widest vectors of the processor.
_FEWER_PASSES: dict[str, bool | int] = {"xla_backend_optimization_level": 1}
_OLDER_LOOPS: dict[str, bool | int] = {"xla_cpu_use_fusion_emitters": False}
_WIDEST_VECTORS: dict[str, bool | int] = {"xla_cpu_prefer_vector_width": 512}
SHORTEST_KEPT = 0.1  # seconds of compilation that are worth a file
_ERRORS = jax.errors.JaxRuntimeError, ValueError  # of an option that is unknown to this version of XLA


def fast_compiled(
    function: Callable[_Parameters, _Result], *, older_loops: bool = True, **jit_options: Any
) -> Callable[_Parameters, _Result]:
    """`jax.jit` with options for short compilation, on CPUs only and unless ``XLA_FLAGS`` sets them.

    `older_loops` selects the older loop emitter: it compiles sooner, but elementwise functions may run at half the
    speed.
    """
    function = inspect.unwrap(function)  # the argument may be compiled already
    jitted: dict[
        bool, Any
    ] = {}  # with all options (False), or only with those that this version of XLA supports (True)

    def compiled(supported: bool) -> Any:
        if supported not in jitted:
            options = _supported_options(older_loops) if supported else _options(older_loops)
            jitted[supported] = jax.jit(function, compiler_options=options, **jit_options)
        return jitted[supported]

    @wraps(function)
    def call(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, named))):
            return function(*arguments, **named)
        try:
            result: _Result = compiled(True in jitted)(*arguments, **named)
        except _ERRORS:
            # Tested only now: to test the options takes longer than to read many a function from the cache.
            if True in jitted or _supported_options(older_loops) == _options(older_loops):
                raise
            result = compiled(True)(*arguments, **named)
        return result

    vars(call)["_cache_size"] = lambda: compiled(True in jitted)._cache_size()  # as `jax.jit` has it
    return call


def cache_compiled(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep what JAX compiles in a folder, so that the next process starts warm.

    It sets JAX's own persistent cache, for the whole process; nothing does so on import. The command line has it on.

    Parameters
    ----------
    folder : str or path-like, default=None
        Where to; it is made if need be. None is ``bayeslista/jax`` in the user's folder for caches, that of the command
        line.

    Returns
    -------
    pathlib.Path
        The folder.

    Examples
    --------
    >>> import tempfile
    >>> import bayeslista
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bayeslista.cache_compiled(folder).is_dir()
    True
    """
    from jax.experimental.compilation_cache import compilation_cache

    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayeslista" / "jax"
    place = default if folder is None else Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST_KEPT)
    compilation_cache.reset_cache()  # JAX looks for the folder once, when it first compiles
    return place


def _options(older_loops: bool) -> dict[str, bool | int]:
    """The options for this kind of device that ``XLA_FLAGS`` does not set."""
    if jax.default_backend() != "cpu":
        return {}
    flags = os.environ.get("XLA_FLAGS", "")
    options = _FEWER_PASSES | (_OLDER_LOOPS if older_loops else _WIDEST_VECTORS)
    return {name: value for name, value in options.items() if name not in flags}


@cache
def _supported_options(older_loops: bool) -> dict[str, bool | int]:
    """Those of them that this version of XLA supports."""
    return {name: value for name, value in _options(older_loops).items() if _is_supported(name, value)}


def _is_supported(name: str, value: bool | int) -> bool:
    try:
        jax.jit(lambda x: x + 1, compiler_options={name: value})(0.0)
    except _ERRORS:
        return False
    return True
