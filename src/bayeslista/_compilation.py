"""Functions that XLA compiles in less than its usual time, and that run as fast."""

import inspect
import os
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import jax

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Fewer passes over the code that is made; the older generator of loops, or vectors as wide as the processor has them.
_FEWER_PASSES: dict[str, bool | int] = {"xla_backend_optimization_level": 1}
_OLDER_LOOPS: dict[str, bool | int] = {"xla_cpu_use_fusion_emitters": False}
_WIDEST_VECTORS: dict[str, bool | int] = {"xla_cpu_prefer_vector_width": 512}
_ERRORS = jax.errors.JaxRuntimeError, ValueError  # of an option that this version does not know


def quickly_compiled(
    function: Callable[_Parameters, _Result], *, older_loops: bool = True, **jit_options: Any
) -> Callable[_Parameters, _Result]:
    """Compile a function as `jax.jit` does, with options that shorten compilation where there are such.

    On a processor only, as far as this version of XLA knows the options, and unless ``XLA_FLAGS`` mentions them. Inside
    another compiled function it is part of that.

    Parameters
    ----------
    function : callable
        From arrays to arrays.
    older_loops : bool, default=True
        Whether to use the older generator of loops: compiled sooner, but functions of many elements that are not
        dominated by products of matrices may run at half the speed. Without it they use the widest vectors, too.
    **jit_options
        For `jax.jit`.

    Returns
    -------
    callable
        The same function, compiled at its first call.

    Examples
    --------
    >>> from bayeslista._compilation import quickly_compiled
    >>> float(quickly_compiled(lambda x: x + 1)(1.0))
    2.0
    """
    function = inspect.unwrap(function)  # of one that is such already

    tried: dict[bool, Any] = {}  # with the options that XLA knows as a rule, or with those that it turned out to know

    def compiled(surely: bool) -> Any:
        if surely not in tried:
            options = _known_options(older_loops) if surely else _likely_options(older_loops)
            tried[surely] = jax.jit(function, compiler_options=options, **jit_options)
        return tried[surely]

    @wraps(function)
    def call(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, named))):
            return function(*arguments, **named)
        try:
            result: _Result = compiled(True in tried)(*arguments, **named)
        except _ERRORS:
            # To ask what is known takes longer than many a function takes to be read from the cache.
            if True in tried or _known_options(older_loops) == _likely_options(older_loops):
                raise
            result = compiled(True)(*arguments, **named)
        return result

    vars(call)["_cache_size"] = lambda: compiled(True in tried)._cache_size()  # as `jax.jit` has it
    return call


def _likely_options(older_loops: bool) -> dict[str, bool | int]:
    """The options that nobody has set, for this kind of device."""
    if jax.default_backend() != "cpu":
        return {}
    told = os.environ.get("XLA_FLAGS", "")
    options = _FEWER_PASSES | (_OLDER_LOOPS if older_loops else _WIDEST_VECTORS)
    return {name: value for name, value in options.items() if name not in told}


@cache
def _known_options(older_loops: bool) -> dict[str, bool | int]:
    """Those of them that this version of XLA knows."""
    return {name: value for name, value in _likely_options(older_loops).items() if _is_known(name, value)}


def _is_known(name: str, value: bool | int) -> bool:
    try:
        jax.jit(lambda x: x + 1, compiler_options={name: value})(0.0)
    except _ERRORS:
        return False
    return True
