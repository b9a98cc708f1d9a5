"""The memory of a stream: the last pairs, every tenth held out, and fits at the same places however it is cut."""

import numpy as np
import pytest

from bayeslista.numerics.stream_memory import MEMORY, StreamMemory


def _pairs(n):
    return np.arange(3 * n, dtype=float).reshape(n, 3), np.arange(2 * n, dtype=float).reshape(n, 2)


def _fits(sizes):
    memory, places = StreamMemory.empty(*_pairs(1)), []
    for size in sizes:
        Y, B = _pairs(size)
        for part in memory.until_fits(size):
            memory = memory.append(Y[part], B[part])
            if memory.is_fit_due:
                places.append(memory.n_seen)
    return memory, places


@pytest.mark.parametrize("sizes", [[4500], [1, 99, 400, 4000], [250] * 18])
def test_fits_are_due_at_the_same_places_however_the_stream_is_cut(sizes):
    memory, places = _fits(sizes)
    assert places == [100, 200, 400, 800, 1600, 2000, 4000]
    assert memory.n_seen == 4500


def test_the_oldest_pairs_are_forgotten():
    Y, B = _pairs(MEMORY + 30)
    memory = StreamMemory.empty(Y, B).append(Y[:50], B[:50]).append(Y[50:], B[50:])
    np.testing.assert_array_equal(memory.observations, Y[30:])
    np.testing.assert_array_equal(memory.codes, B[30:])


def test_every_tenth_pair_of_the_stream_is_held_out_whatever_was_forgotten():
    Y, B = _pairs(MEMORY + 33)
    held_out = StreamMemory.empty(Y, B).append(Y, B).held_out
    assert held_out.sum() == MEMORY // 10
    np.testing.assert_array_equal(np.flatnonzero(held_out)[:2] + 33, [39, 49])
