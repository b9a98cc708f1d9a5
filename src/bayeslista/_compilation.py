"""Functions that XLA compiles in less than its usual time, and that run as fast."""

import inspect
import os
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import jax

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Fewer passes over the code that is made, and the older generator of loops.
_FEWER_PASSES: dict[str, bool | int] = {"xla_backend_optimization_level": 1}
_OLDER_LOOPS: dict[str, bool | int] = {"xla_cpu_use_fusion_emitters": False}


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
        dominated by products of matrices may run at half the speed.
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

    @cache
    def compiled() -> Any:
        options = _known_options(older_loops)
        return jax.jit(function, compiler_options=options, **jit_options)

    @wraps(function)
    def call(*arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, named))):
            return function(*arguments, **named)
        result: _Result = compiled()(*arguments, **named)
        return result

    vars(call)["_cache_size"] = lambda: compiled()._cache_size()  # as `jax.jit` has it
    return call


@cache
def _known_options(older_loops: bool) -> dict[str, bool | int]:
    options = _FEWER_PASSES | (_OLDER_LOOPS if older_loops else {})
    if jax.default_backend() != "cpu":
        return {}
    told = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if name not in told and _is_known(name, value)}


def _is_known(name: str, value: bool | int) -> bool:
    try:
        jax.jit(lambda x: x + 1, compiler_options={name: value})(0.0)
    except (jax.errors.JaxRuntimeError, ValueError):  # this version does not know it
        return False
    return True
