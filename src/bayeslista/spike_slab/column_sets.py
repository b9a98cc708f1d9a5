"""The columns of a table, standardised and weighted on demand, and their Gram matrices.

Up to ``LARGEST_GRAM`` columns their Gram matrix is formed and every stretch of a chain may change all of them. With
more, a stretch works on a set: hot columns, of high probability or correlated with such, and one block of the other
ones, in turn. What is active outside the set stays so for that stretch, which is Gibbs sampling in blocks and as exact.
Only the Gram matrices of these sets are formed, and rows of what is active outside.
"""

from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_GRAM = 2500  # columns: 50 MB, and moves cost as much as the columns of a set
_CORRELATED = 0.5  # with a likely column, from which on a column is hot: swaps are among the columns of a set
_N_HOT, _BLOCK, _N_FROZEN, _N_ROWS = 256, 512, 16, 500  # at p = 20,000: 200 MB of sets, 80 MB of rows
# Draws while all blocks are visited once. With sets that change every 8 to 25 stretches instead, 8,000 iterations of
# p = 20,000 left 13 coefficients with an ESS below 100; so, 600 to 1,200 suffice.
ITERATIONS_A_CYCLE = 4
_PART = 1024  # columns that are made dense together
# Inner products are rounded to this share of the largest that their columns can have, so that the order of a sum, which
# depends on threads and on whether a row is repeated or weighted, does not decide what a chain does.
_RESOLUTION = 2.0**-34

_Array = NDArray[np.float64]


class DesignColumns:
    """Columns of a dense or CSC matrix, centred and scaled as asked, times the square roots of the weights of rows."""

    def __init__(self, X: Any, weights: _Array, centre: bool, scale: bool):
        self._X, self._root, self.weights = X, np.sqrt(weights)[:, None], weights
        self.D, total = X.shape[1], weights.sum()
        self.mean, self.scale = np.zeros(self.D), np.ones(self.D)
        spread, largest = np.empty(self.D), np.empty(self.D)
        for part in self.parts():
            Z = self._dense(part)
            if centre:
                self.mean[part] = weights @ Z / total
            largest[part] = np.abs(Z).max(axis=0)
            spread[part] = np.sqrt(weights @ (Z - self.mean[part]) ** 2 / total)
        # A deviation as small as the round-off of a mean is none.
        self.constant = spread <= 1e-13 * largest
        self.spread = np.where(self.constant, 1.0, spread)
        if scale:
            self.scale = self.spread
        self.unit = 2.0 ** np.round(np.log2(self.spread / self.scale) + 0.5 * np.log2(total))

    def parts(self) -> list[NDArray[np.int64]]:
        """Indices of the columns, a part at a time."""
        return np.array_split(np.arange(self.D), -(-self.D // _PART))

    def take(self, columns: NDArray[np.int64]) -> _Array:
        """Some columns, standardised and weighted; constant ones are zero."""
        Z = (self._dense(columns) - self.mean[columns]) / self.scale[columns] * self._root
        Z[:, self.constant[columns]] = 0.0
        return Z

    def correlate(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> _Array:
        """A part of the Gram matrix, rounded."""
        resolution = _RESOLUTION * np.outer(self.unit[rows], self.unit[columns])
        return np.round(self.take(rows).T @ self.take(columns) / resolution) * resolution

    def project(self, y: _Array) -> _Array:
        """Inner products of all columns with a weighted response of unit variance, rounded."""
        resolution = _RESOLUTION * self.unit * 2.0 ** np.round(0.5 * np.log2(self.weights.sum()))
        products = np.concatenate([y @ self.take(part) for part in self.parts()])
        return np.round(products / resolution) * resolution

    def _dense(self, columns: NDArray[np.int64]) -> _Array:
        part = self._X[:, columns]
        return np.asarray(part.toarray() if hasattr(part, "toarray") else part, np.float64)


class ColumnSets:
    """Sets of columns that stretches work on, with their Gram matrices: one with all, or hot ones with blocks."""

    def __init__(self, columns: DesignColumns, largest: int = LARGEST_GRAM):
        self.columns, self.D = columns, columns.D
        self.hot, self.n_visits, self.whole = np.arange(self.D), 1, largest >= self.D
        self._rows: OrderedDict[int, _Array] = OrderedDict()  # Gram rows of columns that were frozen, of latest use
        if self.whole:
            self._sets = [(self.hot, columns.correlate(self.hot, self.hot))]

    def choose(self, score: _Array, likely: NDArray[np.int64]) -> None:
        """Make the columns hot that have the highest score or are correlated with likely ones."""
        # Columns of zeros, which are constant, are correlated with none.
        norms = self.columns.spread / self.columns.scale * np.sqrt(self.columns.weights.sum())
        near = np.zeros(self.D)
        for j in likely:
            near = np.maximum(near, np.abs(self._row(j)) / (norms[j] * norms))
        best = np.argsort(-np.where(near > _CORRELATED, 1.0 + near, score), kind="stable")
        n_near = int(np.sum(near > _CORRELATED))
        n_hot = min(max(_N_HOT, n_near + _N_HOT // 2), 4 * _N_HOT)
        self.hot = np.sort(best[:n_hot])
        cold = np.sort(best[n_hot:])
        blocks = np.array_split(cold, max(1, -(-len(cold) // _BLOCK)))
        self.n_visits = max(1, len(blocks) // ITERATIONS_A_CYCLE)
        self._sets = []
        for block in blocks:
            # Room for frozen columns; what is not in use are columns of zeros that cannot enter.
            both = np.concatenate([self.hot, block])
            self._sets.append((both, np.pad(self.columns.correlate(both, both), (0, _N_FROZEN))))

    def visit(self, number: int, active: NDArray[np.int64]) -> tuple[NDArray[np.int64], _Array, int]:
        """Columns of a set (−1: none), their Gram matrix, and how many of them, the first ones, may change."""
        free, G = self._sets[number % len(self._sets)]
        n = len(free)
        if self.whole:
            return free, G, n
        fixed = np.setdiff1d(active, free)
        m = max(len(G), n + len(fixed))
        if m > len(G):
            G = np.pad(G, (0, m - len(G)))
        G[n:], G[:, n:] = 0.0, 0.0
        for place, j in enumerate(fixed, n):
            row = self._row(int(j))
            G[place, :n] = G[:n, place] = row[free]
            G[place, n : n + len(fixed)] = row[fixed]
        return np.concatenate([free, fixed, np.full(m - n - len(fixed), -1)]), G, n

    def _row(self, j: int) -> _Array:
        """One row of the Gram matrix of all columns."""
        if j not in self._rows:
            parts = [self.columns.correlate(np.array([j]), part)[0] for part in self.columns.parts()]
            self._rows[j] = np.concatenate(parts)
            if len(self._rows) > _N_ROWS:
                self._rows.popitem(last=False)
        self._rows.move_to_end(j)
        return self._rows[j]
