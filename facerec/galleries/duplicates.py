"""Images that are in a set twice, almost to the pixel."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from facerec.base.progress import Progress
from facerec.cosines.counts import Sample
from facerec.cosines.tiles import Tile
from facerec.galleries.members import Floats, Ints, Members

_NEARER = 3
"""How many times nearer duplicates are than two photos of one label usually are."""

_PAIRS = 10_000
"""Pairs of one label at most from which that is read."""

_LEAST = 100
"""Pairs of one label that are needed to read it."""

_IDENTICAL = 1 - 2.0**-13
"""Cosine from which on two images are one, whatever else is in the set."""


def duplicates(
    members: Members,
    rank: Floats,
    device: torch.device,
    *,
    across: bool = True,
    progress: Progress | None = None,
) -> tuple[Ints, Floats]:
    """Find images that are there twice.

    These are pairs at less than a third of the angle that is the median of pairs of one label;
    with few of those pairs, exact copies alone.

    Args:
        members: the images.
        rank: of two images that with the larger number goes, ``(n,)``.
        device: where to compute.
        across: look among images of different labels too, which costs a comparison of all pairs.
        progress: called with the tiles done.

    Returns:
        of each pair the image to go and the one that stays, ``(P, 2)``, and their cosine, ``(P,)``,
        descending.

    Raises:
        MetricError: there is no pair of images with one label, or with two.
    """
    low, high = np.array([[[_least_cosine(members)]], [[np.inf]]])
    pairs: list[tuple[Ints, Ints, Floats]] = []

    def collect(tile: Tile) -> None:
        row, column, scores = tile.reaching(low, high)
        first, second = tile.rows.start + row, tile.columns.start + column
        kept = (first < second) & (scores >= low[0, 0])
        pairs.append((first[kept], second[kept], scores[kept]))

    sample = Sample(members.vectors, members.label, device, 1024, progress)
    spans = None if across else sample.near
    sample.tiles.visit(lambda: collect, "looking for duplicates", spans)
    *places, scores = (np.concatenate(part) for part in zip(*pairs, strict=True))
    close = np.sort(members.order[np.stack(places, axis=1)], axis=1)
    order = np.argsort(rank[close], axis=1, kind="stable")
    kept, gone = np.take_along_axis(close, order, axis=1).T
    # An image with several likenesses goes once, for the likest of those that rank before it.
    found = pd.DataFrame({"gone": gone, "kept": kept, "cosine": scores})
    found = found[across | (members.label[gone] == members.label[kept])]
    found = found.sort_values(["gone", "cosine", "kept"], ascending=[True, False, True])
    found = found.drop_duplicates("gone").sort_values("cosine", ascending=False, kind="stable")
    return found[["gone", "kept"]].to_numpy(), found["cosine"].to_numpy()


def _least_cosine(members: Members) -> float:
    """Return the least cosine of a duplicate."""
    first, second = members.order[:-1], members.order[1:]
    alike = np.flatnonzero(members.label[first] == members.label[second])
    if len(alike) < _LEAST:
        return _IDENTICAL
    alike = alike[:: -(-len(alike) // _PAIRS)]
    cosines = np.einsum("nd,nd->n", members.vectors[first[alike]], members.vectors[second[alike]])
    usual = np.arccos(np.clip(np.median(cosines), -1, 1))
    return min(float(np.cos(usual / _NEARER)), _IDENTICAL)
