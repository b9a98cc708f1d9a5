"""Floating-point precision without global switches.

JAX computes in float32 unless told otherwise, and its switch is global. Here the precision follows the
data instead: every entry point opens a 64-bit context around the compiled call when its arrays are float64. The context
is that of one thread, so threads of either precision do not meet.
"""

import inspect
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar

import jax
import numpy as np

_Function = TypeVar("_Function", bound=Callable[..., Any])

_process = {"has computed": False, "was forked since": False}


def _notice_fork() -> None:
    _process["was forked since"] = _process["has computed"]


getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_notice_fork)  # there is no fork on Windows


def precision(dtype: np.typing.DTypeLike) -> AbstractContextManager[Any]:
    """Context in which JAX computes in a floating type; refused in a process in which it would wait for ever.

    A process that is forked has none of the threads of its parent, and JAX, once it has computed, counts on them.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista._precision import precision
    >>> with precision("float64"):
    ...     jnp.ones(1).dtype
    dtype('float64')
    """
    if _process["was forked since"]:
        raise RuntimeError(
            "This process was forked from one in which JAX had computed before, and would wait for it for ever. Use "
            "joblib, or multiprocessing.get_context('spawn'), or fork before the first fit or predict."
        )
    _process["has computed"] = True
    return jax.enable_x64(np.dtype(dtype) == np.float64)


def common_dtype(*arrays: Any) -> np.dtype:
    """Float32 if every array that has a floating type is float32, else float64.

    Python numbers and integer arrays have no say, as in NumPy.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista._precision import common_dtype
    >>> common_dtype(np.zeros(3, np.float32), 0.1)
    dtype('float32')
    >>> common_dtype([1, 2, 3], 0.1)
    dtype('float64')
    """
    kinds = [np.asarray(array).dtype for array in arrays if type(array) not in (bool, int, float)]
    floating = [kind for kind in kinds if np.issubdtype(kind, np.floating)]
    single = floating and all(kind == np.float32 for kind in floating)
    return np.dtype(np.float32 if single else np.float64)


def follows_input_precision(function: _Function) -> _Function:
    """Let a JAX function of arrays be called with NumPy arrays at their own precision.

    Tracers pass through untouched, so the function composes with ``jit``, ``vmap`` and ``grad``. Anything else is
    computed in the common precision of the arguments, and comes back as JAX arrays if any of them was one, else as
    NumPy arrays.
    """
    compiled = jax.jit(function)
    signature = inspect.signature(function)

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        arrays = signature.bind(*args, **kwargs).args
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            return function(*arrays)
        dtype = common_dtype(*arrays)
        with precision(dtype):
            if any(isinstance(array, jax.Array) for array in arrays):
                return compiled(*arrays)
            return jax.tree.map(np.asarray, compiled(*(np.asarray(array, dtype) for array in arrays)))

    return wrapper  # type: ignore[return-value]
