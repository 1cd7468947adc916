"""The images that are compared, in the order in which tiles take them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from facerec.errors import MetricError
from facerec.verification.scoring.results import Groups


class People:
    """The usable images, sorted by identity, or by group and then identity.

    Either way the images of an identity are neighbours.
    """

    def __init__(
        self,
        vectors: ArrayLike,
        subjects: ArrayLike,
        groups: Sequence[str] | NDArray[np.str_] | None,
        by_group: bool,
    ) -> None:
        raw, names = np.asarray(vectors), np.asarray(subjects)
        if raw.ndim != 2 or raw.dtype.kind != "f":
            raise MetricError(
                f"embeddings have shape (N, D) and real values, found {raw.dtype} of shape "
                f"{raw.shape}"
            )
        for values, what in ((names, "subjects"), (groups, "groups")):
            if values is not None and np.shape(values) != (len(raw),):
                raise MetricError(
                    f"there are {len(raw)} embeddings but {what} of shape {np.shape(values)}; "
                    "give one an image"
                )
        norms = _norms(raw)
        usable = np.isfinite(norms) & (norms > 0)
        self.failures = np.flatnonzero(~usable)
        _, everyone = np.unique(names, return_counts=True)
        self.labels, identity, self.images = np.unique(
            names[usable], return_inverse=True, return_counts=True
        )
        self.mated, self.non_mated = _pair_counts(self.images)
        self.lost_mated, self.lost_non_mated = (
            total - kept
            for total, kept in zip(
                _pair_counts(everyone), (self.mated, self.non_mated), strict=True
            )
        )
        if not self.mated or not self.non_mated:
            raise MetricError(
                f"{len(identity)} usable images of {len(self.images)} identities make "
                f"{self.mated} mated and {self.non_mated} non-mated pairs ({len(self.failures)} "
                "images have no usable embedding); error rates need at least one of each"
            )
        self.group, self.groups = np.zeros(identity.size, np.int64), None
        if groups is not None:
            names, self.group = np.unique(np.asarray(groups)[usable], return_inverse=True)
            self.groups = self._count_groups(names, identity)
        if by_group and (self.groups is None or self.groups.of_identity is None):
            raise MetricError(
                "to look at each group alone takes groups of images that have no identity in common"
            )
        order = (
            np.lexsort((identity, self.group)) if by_group else np.argsort(identity, kind="stable")
        )
        self.identity, self.group = identity[order].astype(np.int32), self.group[order]
        self.unit = _unit(raw, norms, np.flatnonzero(usable)[order])
        # Parts that tiles do not mix: groups that are looked at alone, else all are one.
        self.by_group = by_group
        self.row = self.group if by_group else np.zeros_like(self.group)
        self.rows = int(self.row[-1]) + 1

    def _count_groups(self, names: NDArray[Any], identity: NDArray[np.int64]) -> Groups:
        """Count the pairs between groups."""
        ones = np.ones(self.group.size, np.int64)
        shape = self.images.size, names.size
        members = csr_array((ones, (identity, self.group)), shape)
        images = np.bincount(self.group, minlength=names.size)
        # Ordered pairs of images, each with itself among them, by the groups of the two.
        same = np.asarray((members.T @ members).todense())
        total = np.multiply.outer(images, images)
        mated, pairs = same.copy(), total.copy()
        for counts in (mated, pairs):
            np.fill_diagonal(counts, (counts.diagonal() - images) // 2)
        one_each = members.nnz == shape[0]
        return Groups(
            names=tuple(str(name) for name in names),
            images=images,
            mated=mated,
            non_mated=pairs - mated,
            of_identity=members.indices.astype(np.int64) if one_each else None,
        )

    def spans(self) -> list[slice]:
        """Return the images of each part that tiles do not mix."""
        edges = np.searchsorted(self.row, np.arange(self.rows + 1)).tolist()
        return [slice(start, stop) for start, stop in pairwise(edges)]


def _norms(raw: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the norm of every row, in float64; NaN or infinite where a value is."""
    norms = np.empty(len(raw))
    for start in range(0, len(raw), 1024):
        rows = raw[start : start + 1024].astype(np.float64)
        norms[start : start + 1024] = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return norms


def _unit(
    raw: NDArray[np.floating], norms: NDArray[np.float64], order: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return rows in another order, normalised in float64, as float32."""
    unit = np.empty((len(order), raw.shape[1]), np.float32)
    for start in range(0, len(order), 1024):
        part = order[start : start + 1024]
        unit[start : start + 1024] = raw[part].astype(np.float64) / norms[part, None]
    return unit


def _pair_counts(images: NDArray[np.integer]) -> tuple[int, int]:
    """Return the numbers of mated and non-mated pairs, given the images of each identity."""
    total = int(images.sum())
    mated = int((images.astype(np.int64) * (images - 1) // 2).sum())
    return mated, total * (total - 1) // 2 - mated
