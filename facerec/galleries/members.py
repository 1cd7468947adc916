"""Vectors of images, sorted by whom they show, and sums of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from facerec.base.large_arrays import empty, group_blocks
from facerec.cosines.unit_rows import row_norms
from facerec.embedding.extraction import Embeddings

Floats = NDArray[np.float64]

Ints = NDArray[np.int64]


class Members:
    """Vectors of images, and which of them make a class.

    Args:
        vectors: ``(n, D)``.
        label: class of each, ``(n,)``, in ``[0, classes)``; −1 for one that takes no part.
        classes: their number.

    Attributes:
        order: the images, class by class, ``(m,)``.
        starts: first of each class in that order, and m at the end, ``(C + 1,)``.
        images: in each class, ``(C,)``.
    """

    def __init__(self, vectors: NDArray[np.floating], label: Ints, classes: int) -> None:
        self.vectors, self.label, self.classes = vectors, label, classes
        self.order = np.argsort(label, kind="stable")[np.count_nonzero(label < 0) :]
        self.starts = np.searchsorted(label[self.order], np.arange(classes + 1))
        self.images = np.diff(self.starts)

    def of(self, number: int) -> Ints:
        """Return the images of a class."""
        return self.order[self.starts[number] : self.starts[number + 1]]

    def sums(self, weights: Floats | None = None) -> NDArray[np.float32]:
        """Return the weighted sum of each class, ``(C, D)``, in a file if that is large.

        Args:
            weights: of the images, ``(n,)``; by default 1.
        """
        sums = empty((self.classes, self.vectors.shape[1]), np.float32)
        for first, last in group_blocks(self.starts):
            rows = self.order[self.starts[first] : self.starts[last]]
            some = np.flatnonzero(self.images[first:last])
            sums[first:last] = 0
            if some.size:
                vectors = self.vectors[rows].astype(np.float64)
                weighted = vectors if weights is None else vectors * weights[rows, None]
                begins = self.starts[first + some] - self.starts[first]
                sums[first + some] = np.add.reduceat(weighted, begins)
        return sums


def directions(sums: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return sums at length 1, or as 0 where nothing is left of one."""
    lengths = np.maximum(np.nan_to_num(row_norms(sums)), 1e-9)[:, None].astype(np.float32)
    return np.divide(sums, lengths, out=empty(sums.shape, np.float32))


class Side(Members):
    """The usable images of one of two sets; an image that nobody names is a subject of its own.

    Args:
        embeddings: raw ones, with ids.

    Attributes:
        ids: of all images.
        names: of the subjects, ``(P,)``: the subject, or the image's id where nobody names one.
        named: whether a subject is known, ``(P,)``.
        failures: images without a usable embedding.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        assert embeddings.ids is not None  # readers see to that
        usable = ~np.isnan(row_norms(embeddings.vectors))
        subjects = np.zeros(len(usable), "U1")
        if embeddings.subjects is not None:
            subjects = embeddings.subjects
        known = usable & (subjects != "")
        recorded, numbers = np.unique(subjects[known], return_inverse=True)
        alone, label = np.flatnonzero(usable & ~known), np.full(len(usable), -1)
        label[known], label[alone] = numbers, len(recorded) + np.arange(len(alone))
        self.ids, self.failures = embeddings.ids, int(np.count_nonzero(~usable))
        self.names = np.concatenate([recorded, self.ids[alone]])
        self.named = np.arange(len(self.names)) < len(recorded)
        super().__init__(embeddings.vectors, label, len(self.names))
