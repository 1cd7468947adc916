"""The images that are compared, in the order in which tiles take them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.errors import MetricError
from facerec.verification.scoring.results import Groups, check_pairs, pair_counts
from facerec.verification.unit_rows import row_norms, unit_rows


class Sample:
    """The usable images, sorted by subject, or with ``by_group`` by group and then subject.

    Either way the images of a subject are neighbours. There may be several groupings, each with
    the group of every image, ``(N,)``; of numbers, negative ones are none.
    """

    def __init__(
        self,
        vectors: ArrayLike,
        subjects: ArrayLike,
        groupings: Sequence[ArrayLike],
        by_group: bool,
    ) -> None:
        raw, names = np.asarray(vectors), np.asarray(subjects)
        if raw.ndim != 2 or raw.dtype.kind != "f":
            raise MetricError(
                f"embeddings have shape (N, D) and real values, found {raw.dtype} of shape "
                f"{raw.shape}"
            )
        given = [np.asarray(codes) for codes in groupings]
        for values, what in ((names, "subjects"), *((codes, "groups") for codes in given)):
            if values.shape != (len(raw),):
                raise MetricError(
                    f"there are {len(raw)} embeddings but {what} of shape {np.shape(values)}; "
                    "give one an image"
                )
        norms = row_norms(raw)
        usable = ~np.isnan(norms)
        self.failures = np.flatnonzero(~usable)
        _, everyone = np.unique(names, return_counts=True)
        self.labels, subject, self.images = np.unique(
            names[usable], return_inverse=True, return_counts=True
        )
        self.mated, self.non_mated = pair_counts(self.images)
        self.lost_mated, self.lost_non_mated = (
            total - kept
            for total, kept in zip(pair_counts(everyone), (self.mated, self.non_mated), strict=True)
        )
        check_pairs(self.images, len(self.failures))
        self.group, self.groups = np.zeros(subject.size, np.int64), None
        self.names: tuple[NDArray[Any], ...] = ()
        self.cells = np.zeros((0, 1), np.int64)
        if given:
            numbered = [_numbered(codes[usable]) for codes in given]
            self.names = tuple(names for names, _ in numbered)
            codes = np.stack([index for _, index in numbered])
            self.cells, self.group = np.unique(codes, axis=1, return_inverse=True)
            self.group = self.group.reshape(-1)
            alone = len(given) == 1 and self.cells.min() >= 0
            texts = self.names[0] if alone else range(self.cells.shape[1])
            self.groups = Groups.count([str(text) for text in texts], subject, self.group)
        if by_group and (self.groups is None or self.groups.of_subject is None):
            raise MetricError(
                "to count within groups takes groups of images that have no identity in common"
            )
        order = (
            np.lexsort((subject, self.group)) if by_group else np.argsort(subject, kind="stable")
        )
        self.subject, self.group = subject[order].astype(np.int32), self.group[order]
        self.unit = unit_rows(raw, norms, np.flatnonzero(usable)[order])
        # Tiles do not mix cells of groups that are counted within.
        self.by_group = by_group
        self.row = self.group if by_group else np.zeros_like(self.group)
        self.rows = int(self.row[-1]) + 1
        # Which cells have a group in common.
        common = self.cells[:, :, None] == self.cells[:, None]
        self.shared = (common & (self.cells >= 0)[:, None]).any(axis=0)
        # In which groupings the images of a cell have a group.
        self.kind, self.kinds = np.zeros(1, np.int64), 1
        if given:
            kinds, kind = np.unique(self.cells >= 0, axis=1, return_inverse=True)
            self.kind, self.kinds = kind.reshape(-1), kinds.shape[1]

    def spans(self) -> list[slice]:
        """Return the images of each cell that tiles do not mix."""
        edges = np.searchsorted(self.row, np.arange(self.rows + 1)).tolist()
        return [slice(start, stop) for start, stop in pairwise(edges)]


def _numbered(codes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the names of groups, ascending, and the index of each image's, −1 for none."""
    names, index = np.unique(codes, return_inverse=True)
    without = int(np.count_nonzero(names < 0)) if names.dtype.kind == "i" else 0
    return names[without:], np.maximum(index.astype(np.int64) - without, -1)
