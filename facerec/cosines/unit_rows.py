"""Lengths of raw embeddings, and embeddings of length 1 with the cosines of pairs of them.

There is one definition of a cosine: the float64 product of both rows at length 1, rounded to
multiples of 2⁻²⁴ and held in float32, which has them all up to 1. Rounding errors, which depend on
where in a matrix a row lies, are far smaller and leave no trace, so that equal rows tie. A row that
is zero or not finite has no cosine.
"""

from __future__ import annotations

import threading
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.base.large_arrays import empty

Pairs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Rows and columns of pairs, and their scores."""

Kind = Literal["int8", "bfloat16", "float32"]
"""The number format of a copy, from the coarsest to the finest."""

GRID = 2.0**24

# A few MiB of float64 at a time.
_ROWS = 4096

_PAIRS = 512
"""Pairs that are scored together: small enough to stay in a core's cache."""


def row_norms(matrix: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the norm of every row; NaN for one that is zero or not finite."""
    norms = np.empty(len(matrix))
    # A damaged file may hold signalling NaNs, which numpy warns of when it converts them.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(matrix), _ROWS):
            rows = matrix[start : start + _ROWS].astype(np.float64)
            norms[start : start + _ROWS] = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return np.where((norms > 0) & np.isfinite(norms), norms, np.nan)


def unit_rows(
    matrix: NDArray[np.floating], norms: NDArray[np.float64], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return chosen ``rows`` of ``(N, D)``, divided by their `row_norms`, as float32 ``(n, D)``.

    Many of them lie on the disk, see `facerec.base.large_arrays`.
    """
    unit = empty((len(rows), matrix.shape[1]), np.float32)
    for start in range(0, len(rows), _ROWS):
        block = rows[start : start + _ROWS]
        unit[start : start + _ROWS] = matrix[block].astype(np.float64) / norms[block, np.newaxis]
    return unit


def real_matrix(values: ArrayLike, what: str) -> NDArray[np.floating]:
    """Return ``values`` as a matrix of real numbers.

    Raises:
        MetricError: they are none; ``what`` says what they should be.
    """
    matrix = np.asarray(values)
    if matrix.ndim != 2 or matrix.dtype.kind != "f":
        raise MetricError(
            f"{what}: rows of real numbers are needed, found {matrix.dtype} of shape {matrix.shape}"
        )
    return matrix


def on_grid(products: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return products of unit rows as cosines; the products are overwritten."""
    products *= GRID
    np.rint(products, out=products)
    products /= GRID
    return products.astype(np.float32)


class UnitRows:
    """Rows of a matrix at length 1, computed when they are asked for, and coarse copies of them.

    Args:
        matrix: ``(N, D)``, in memory or in a file; it must not change.
        rows: which of them, ``(n,)``, each with a direction; by default all.
        norms: of all rows of the matrix, ``(N,)``, if they are known. With other numbers, such as
            1, rows are divided by these, and products take the place of cosines.
        device: of `coarse`, see `facerec.base.devices.choose_device`.
    """

    def __init__(
        self,
        matrix: NDArray[np.floating],
        rows: NDArray[np.int64] | None = None,
        norms: NDArray[np.float64] | None = None,
        device: object = "cpu",
    ) -> None:
        self.matrix, self.device = matrix, str(device)
        lengths = row_norms(matrix) if norms is None else norms
        self._rows, self.norms = rows, lengths if rows is None else lengths[rows]
        self.are_single = (
            rows is None
            and matrix.dtype == np.float32
            and bool((np.abs(self.norms - 1) < 2.0**-20).all())
        )
        self.copies: dict[Kind, Any] = {}  # kept by `facerec.cosines.coarse.copy_of`
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.norms)

    def unit(self, rows: slice | NDArray[np.integer]) -> NDArray[np.float64]:
        """Return some of the rows at length 1, ``(n, D)``."""
        vectors = self.matrix[rows if self._rows is None else self._rows[rows]].astype(np.float64)
        vectors /= self.norms[rows, np.newaxis]
        return vectors

    def erase(self) -> None:
        """Leave no byte of any row in the copies, which are not to be used any more."""
        for copy in self.copies.values():
            copy.erase()
        self.copies = {}


def cosines(
    left: UnitRows, right: UnitRows, rows: NDArray[np.integer], columns: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Return the cosine of every pair of a row of each side, ``(n,)``."""
    found = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), _PAIRS):
        # Rows that come again and again are divided but once.
        own, places = np.unique(rows[start : start + _PAIRS], return_inverse=True)
        mine, theirs = left.unit(own)[places], right.unit(columns[start : start + _PAIRS])
        found[start : start + _PAIRS] = on_grid(np.einsum("nd,nd->n", mine, theirs))
    return found


def score_pairs(
    vectors: ArrayLike, first: NDArray[np.integer], second: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Return the cosine of every pair, ``(n,)``; NaN where an embedding is zero or not finite.

    Pairs name rows of the raw embeddings ``(m, D)``.

    Raises:
        MetricError: not a matrix of real numbers.
    """
    matrix = real_matrix(vectors, "embeddings")
    norms = row_norms(matrix)
    scores = np.full(len(first), np.nan, np.float32)
    there = np.flatnonzero(~np.isnan(norms[first] + norms[second]))
    rows = UnitRows(matrix, None, norms)
    scores[there] = cosines(rows, rows, first[there], second[there])
    return scores
