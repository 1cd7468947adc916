"""Lengths of raw embeddings, and embeddings of length 1, in blocks that need little memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.base.large_arrays import empty

# A few MiB of float64 at a time.
_ROWS = 4096


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
