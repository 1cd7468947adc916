"""An index that searches templates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.libraries import Library

faiss = Library("faiss", "'facerec[faiss]', or search with index exact")


def faiss_index(templates: NDArray[np.float32]) -> Any:
    """Return an index by inner product over unit templates ``(N, D)`` (extra ``faiss``).

    It compares with those in the nearest of about 4√N cells, of which it looks at a sixteenth, 8 at
    the least.

    Raises:
        MissingExtraError: FAISS is not installed.
    """
    count, size = templates.shape
    # k-means wants some dozens of templates a cell.
    cells = max(1, min(round(4 * math.sqrt(count)), count // 39))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(size), size, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = 1234  # of the k-means that places the cells
    index.train(templates)
    index.nprobe = min(cells, max(8, cells // 16))
    index.add(templates)
    return index
