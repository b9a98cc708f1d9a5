"""What the machine needs at least: bytes over its copy bandwidth, or operations over its rate of matrix products."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from conftest import CORES

_SECONDS = 0.15  # to measure for, each time


def best(function: Callable[[], object], seconds: float = _SECONDS, least: int = 3) -> float:
    """The shortest time of several calls."""
    function()
    shortest, end, n = float("inf"), time.perf_counter() + seconds, 0
    while n < least or time.perf_counter() < end:
        begin = time.perf_counter()
        jax.block_until_ready(function())
        shortest = min(shortest, time.perf_counter() - begin)
        n += 1
    return shortest


def copy_bandwidth(working_set: int) -> float:
    """Bytes read and written a second, by copies between arrays that take `working_set` bytes together."""
    n = max(working_set // 2 // CORES // 8, 512)
    pairs = [(np.ones(n), np.zeros(n)) for _ in range(CORES)]
    repeats = max(1, 20_000_000 // (16 * n))

    def copy(pair):
        for _ in range(repeats):
            np.copyto(pair[1], pair[0])

    if CORES == 1:
        seconds = best(lambda: copy(pairs[0]))
    else:
        with ThreadPoolExecutor(CORES) as pool:
            seconds = best(lambda: list(pool.map(copy, pairs)))
    return 16 * n * CORES * repeats / seconds


def product_rate(rows: int, inner: int, columns: int, dtype: str) -> float:
    """Operations a second in a product of matrices of this shape, the better of NumPy's and JAX's."""
    random = np.random.default_rng(0)
    a, b = random.standard_normal((rows, inner)).astype(dtype), random.standard_normal((inner, columns)).astype(dtype)
    with jax.enable_x64(dtype == "float64"):
        product, a_jax, b_jax = jax.jit(jnp.matmul), jnp.asarray(a), jnp.asarray(b)
        seconds = min(best(lambda: a @ b), best(lambda: product(a_jax, b_jax)))
    return 2 * rows * inner * columns / seconds


@dataclass
class Work:
    """What has to be done: bytes to move, in a working set, and operations by floating type, in products of a shape."""

    moved: float
    working_set: int
    operations: dict[str, float] = field(default_factory=dict)
    rows: int = 256
    size: int = 256

    def floor(self) -> float:
        """Seconds below which this machine cannot do it; measured now, beside what it is compared with."""
        by_bytes = self.moved / copy_bandwidth(self.working_set)
        shape = min(self.rows, 1024), min(self.size, 1024), min(self.size, 1024)
        by_operations = sum(n / product_rate(*shape, dtype) for dtype, n in self.operations.items())
        return max(by_bytes, by_operations)


@lru_cache
def word(dtype: str) -> int:
    """Bytes of a number."""
    return np.dtype(dtype).itemsize
