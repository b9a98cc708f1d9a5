"""Pairs in blocks that stay on their workers, and sums over them in a tree of tasks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bayeslista.estimators import hooks
from bayeslista.numerics.batching import LARGEST_BLOCK
from bayeslista.out_of_core.dask._row_blocks import in_rows, known

_FAN_IN = 8


class PairBlocks(NamedTuple):
    """Blocks of pairs as tasks, none of them empty, and their sizes."""

    blocks: list[Any]
    sizes: list[int]
    template: tuple[NDArray[Any], NDArray[Any]]  # a pair of zeros, of the shapes and types of the others

    @classmethod
    def of(cls, X: Any, y: Any, batch_size: int | None) -> Self:
        """Two arrays, cut alike."""
        n_numbers = sum(int(np.prod(getattr(side, "shape", ())[1:])) for side in (X, y)) or 1
        observations = known(in_rows("X", X, batch_size, LARGEST_BLOCK, n_numbers))
        codes = known(in_rows("y", y, batch_size, LARGEST_BLOCK, n_numbers))
        if observations.ndim != 2 or codes.ndim not in (1, 2):
            raise ValueError(
                f"X has shape {observations.shape} and y has shape {codes.shape}; pass (n_samples, n_observed) and "
                "(n_samples, n_components) or (n_samples,)."
            )
        if observations.shape[0] != codes.shape[0]:
            raise ValueError(
                f"X and y must pair up row by row: X has {observations.shape[0]} samples and y has {codes.shape[0]}; "
                "pass one code for every observation."
            )
        if observations.shape[0] == 0:
            raise ValueError("X and y have no rows; pass at least one pair.")
        import dask

        codes = codes.rechunk({0: observations.chunks[0]})
        sides = zip(observations.to_delayed().ravel(), codes.to_delayed().ravel(), strict=True)
        whole = [(dask.delayed(both), size) for both, size in zip(sides, observations.chunks[0], strict=True) if size]
        zeros = [np.zeros((1, *side.shape[1:]), side.dtype) for side in (observations, codes)]
        return cls([block for block, _ in whole], [size for _, size in whole], (zeros[0], zeros[1]))

    @property
    def begins(self) -> list[int]:
        """The row at which each block begins."""
        return [0, *np.cumsum(self.sizes[:-1]).tolist()]

    def checked(self, model: Any) -> Self:
        """The pairs, validated by the model when they are computed."""
        import dask

        shared = dask.delayed(model, traverse=False)
        check = dask.delayed(_checked)
        return self._replace(blocks=[check(block, shared, i) for i, block in enumerate(self.blocks)])

    def kept_by_workers(self) -> Self:
        """The same blocks, computed once, each staying where it was computed."""
        import dask

        return self._replace(blocks=list(dask.persist(*self.blocks)))

    def rows(self, wanted: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Some pairs, in ascending order, in this process."""
        import dask

        parts = [
            dask.delayed(_some)(block, inside)
            for block, inside in zip(self.blocks, self.inside(wanted), strict=True)
            if len(inside)
        ]
        X, y = zip(*dask.compute(*parts), strict=True)
        return np.concatenate(X), np.concatenate(y)

    def inside(self, wanted: NDArray[Any]) -> list[NDArray[Any]]:
        """Rows, in ascending order, by block and counted from its beginning."""
        ends = np.cumsum(self.sizes)
        cuts = np.split(wanted, np.searchsorted(wanted, ends[:-1]))
        return [part - begin for part, begin in zip(cuts, self.begins, strict=True)]


def added(parts: Sequence[Any], add: Callable[..., Any]) -> Any:
    """The sum of what tasks return, computed by a tree of tasks that depends on their number only."""
    import dask

    level = list(parts)
    while len(level) > 1:
        level = [dask.delayed(add)(*level[i : i + _FAN_IN]) for i in range(0, len(level), _FAN_IN)]
    return level[0].compute()


def _checked(pairs: tuple[Any, Any], model: Any, number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        return hooks.validate_pairs(model, *pairs, reset=False)
    except ValueError as error:
        raise ValueError(f"Block {number} of the pairs: {error}") from error


def _some(pairs: tuple[NDArray[Any], NDArray[Any]], rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return pairs[0][rows], pairs[1][rows]
