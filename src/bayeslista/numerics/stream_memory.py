"""Memory of a stream of pairs: its last pairs, which of them validate, and where in the stream to fit anew."""

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float

MEMORY = 2000  # pairs
FIRST_FIT = 100  # pairs
_VALIDATION_EVERY = 10  # pairs


class StreamMemory(NamedTuple):
    """The last pairs of a stream, at most `MEMORY`, and how many there have been."""

    observations: Float[np.ndarray, "m K"]
    codes: Float[np.ndarray, "m D"]
    n_seen: int

    @classmethod
    def empty(cls, observations: Float[np.ndarray, "n K"], codes: Float[np.ndarray, "n D"]) -> Self:
        """No pairs yet, of the sizes and types of these."""
        return cls(observations[:0], codes[:0], 0)

    def append(self, observations: Float[np.ndarray, "n K"], codes: Float[np.ndarray, "n D"]) -> Self:
        """With more pairs; the oldest are forgotten."""
        Y, B = np.concatenate([self.observations, observations]), np.concatenate([self.codes, codes])
        return type(self)(Y[-MEMORY:], B[-MEMORY:], self.n_seen + len(codes))

    @property
    def held_out(self) -> Bool[np.ndarray, " m"]:
        """Every tenth pair of the stream, which validates and calibrates."""
        position = np.arange(self.n_seen - len(self.codes), self.n_seen)
        return position % _VALIDATION_EVERY == _VALIDATION_EVERY - 1

    @property
    def is_fit_due(self) -> bool:
        """Whether a fit to the memory is due: after 100, 200, 400, … pairs, and whenever the memory is all new."""
        return self.n_seen in _doublings(self.n_seen) or self.n_seen % MEMORY == 0

    def until_fits(self, n_pairs: int) -> Iterator[slice]:
        """Cut the next pairs after those where a fit is due: what is learned does not depend on the calls."""
        ends = {*_doublings(self.n_seen + n_pairs), *range(MEMORY, self.n_seen + n_pairs + 1, MEMORY)}
        cuts = sorted(end - self.n_seen for end in ends if end > self.n_seen)
        for begin, end in zip([0, *cuts], [*cuts, n_pairs], strict=True):
            if begin < end:
                yield slice(begin, end)


def _doublings(most: int) -> list[int]:
    """100, 200, 400, … up to `most`, and up to the size of the memory."""
    ends = [FIRST_FIT]
    while 2 * ends[-1] <= min(most, MEMORY):
        ends.append(2 * ends[-1])
    return [end for end in ends if end <= most]
