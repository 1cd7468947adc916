"""Lengths of raw embeddings, and embeddings of length 1, in blocks that need little memory."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Index = slice | NDArray[np.int64]


class Rows(Protocol):
    """A float32 matrix whose rows are held, or made whenever they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and dimensions, ``(n, D)``."""

    def __len__(self) -> int:
        """Return n."""

    def __getitem__(self, index: Index, /) -> NDArray[np.float32]:
        """Return some rows, ``(m, D)``."""


# A few MiB of float64 at a time.
_ROWS = 4096


def row_norms(matrix: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the norm of every row; NaN for one that is zero or not finite."""
    norms = np.empty(len(matrix))
    for start in range(0, len(matrix), _ROWS):
        rows = matrix[start : start + _ROWS].astype(np.float64)
        norms[start : start + _ROWS] = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return np.where((norms > 0) & np.isfinite(norms), norms, np.nan)


def unit_rows(
    matrix: NDArray[np.floating], norms: NDArray[np.float64], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return chosen rows divided by their norms, ``(n, D)``, as float32.

    Args:
        matrix: raw embeddings, ``(N, D)``.
        norms: of its rows, ``(N,)``, see `row_norms`.
        rows: which ones, ``(n,)``.
    """
    unit = np.empty((len(rows), matrix.shape[1]), np.float32)
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS]
        unit[start : start + _ROWS] = matrix[block].astype(np.float64) / norms[block, np.newaxis]
    return unit


class UnitRows:
    """Chosen rows divided by their norms whenever they are asked for, as `unit_rows` does.

    So a large set needs no second copy of its embeddings.

    Args:
        matrix: raw embeddings, ``(N, D)``.
        norms: of its rows, ``(N,)``, see `row_norms`.
        rows: which ones, ``(n,)``.
    """

    def __init__(
        self, matrix: NDArray[np.floating], norms: NDArray[np.float64], rows: NDArray[np.int64]
    ) -> None:
        self._matrix, self._norms, self._rows = matrix, norms, rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and dimensions, ``(n, D)``."""
        return len(self._rows), self._matrix.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Index) -> NDArray[np.float32]:
        return unit_rows(self._matrix, self._norms, self._rows[index])

    def take(self, order: NDArray[np.int64]) -> UnitRows:
        """Return rows in another order, or some of them, made on demand too."""
        return UnitRows(self._matrix, self._norms, self._rows[order])
