"""Floating-point precision by context, not by JAX's global switch: float64 arrays are computed in a 64-bit context."""

import inspect
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Array

AnyArray = Array | np.ndarray
"""An array on the host or on a device: pure functions take either."""

FAST_VARIANCES = np.dtype(np.float32)
"""The floating type of variances where seven digits are enough: it halves the memory that a layer goes through."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_process = {"computed": False, "forked": False}


def _notice_fork() -> None:
    _process["forked"] = _process["computed"]


getattr(os, "register_at_fork", lambda **_: None)(after_in_child=_notice_fork)  # there is no fork on Windows


def precision(dtype: np.typing.DTypeLike) -> AbstractContextManager[Any]:
    """Context in which JAX computes in a floating type; refused in forked processes, where JAX waits for ever."""
    if _process["forked"]:
        raise RuntimeError(
            "This process was forked from one in which JAX had computed before, and would wait for it for ever. Use "
            "joblib, or multiprocessing.get_context('spawn'), or fork before the first fit or predict."
        )
    _process["computed"] = True
    return jax.enable_x64(np.dtype(dtype) == np.float64)


def largest_moment(like: AnyArray) -> float:
    """Bound of means and variances in layers, which are squared and summed: fourth root of the largest number."""
    return float(np.finfo(like.dtype).max) ** 0.25


def common_dtype(*arrays: Any) -> np.dtype:
    """Float32 if every floating array is float32, else float64; Python numbers and integer arrays do not count."""
    kinds = [np.asarray(array).dtype for array in arrays if type(array) not in (bool, int, float)]
    floating = [kind for kind in kinds if np.issubdtype(kind, np.floating)]
    single = floating and all(kind == np.float32 for kind in floating)
    return np.dtype(np.float32 if single else np.float64)


def follows_input_precision(function: _Function) -> _Function:
    """Compile a function, and compute NumPy arguments in their common precision.

    Tracers pass through, so that the function composes with ``jit``, ``vmap`` and ``grad``. NumPy in, NumPy out.
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
