"""Do the faces of a set lie in their crops where the network expects them?

Nothing in a crop says where its face was meant to lie, and a network embeds it all the same. Two
things tell without a label: a network of faces gives well-placed ones longer embeddings, and crops
that lie wrongly make different people alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from facerec.base.progress import Progress
from facerec.cosines.unit_rows import row_norms, unit_rows
from facerec.embedding.extraction import Embeddings
from facerec.embedding.model import EmbeddingModel, shifted

Shift = tuple[int, int]
"""Pixels to the right, and down."""

STEPS = (-12, -8, -4, 0, 4, 8, 12)
"""Pixels of a 112×112 crop that are tried to the right, and down: 8 to the right is the crop of
112×96 in one of 112×112."""

GAIN = 1.05
"""Factor on the mean norm from which on another placement is worth a line."""

SAMPLE = 48
"""Images on which that is looked at."""

ALIKE = 0.15
"""Mean cosine of different people from which on a set is named: well-placed crops of LFW, CFP and
CelebA have 0.00 to 0.06 in the networks that were at hand, boxes of a detector 0.2 to 0.5."""


PEOPLE = 10
"""People from which on that is looked at: of ten people of LFW the mean errs by 0.02 (standard
deviation, MobileFaceNet), of five by 0.04, where 0.09 part it from the limit."""

MOST_ALIKE = 20_000
"""Images, evenly from a set, from which that mean is taken."""


def try_placements(
    model: EmbeddingModel,
    faces: NDArray[np.uint8],
    steps: Sequence[int] = STEPS,
    progress: Progress | None = None,
) -> dict[Shift, float]:
    """Return the mean raw norm at each placement that was tried, the largest first.

    All steps are tried to the right, then downwards from the best of these.

    Args:
        model: what embeds; its own shift is the one where the search starts.
        faces: uint8 RGB ``(n, H, W, 3)``, as they come.
        steps: pixels of a 112×112 crop.
        progress: see `facerec.base.progress.Progress`.
    """
    unit, found = max(1, round(faces.shape[1] / 112)), dict[Shift, float]()

    def norm(shift: Shift) -> float:
        if shift not in found:
            vectors = model.embed(shifted(faces, shift))
            found[shift] = float(np.linalg.norm(vectors, axis=1).mean())
            if progress is not None:
                progress("trying placements", len(found), 2 * len(steps))
        return found[shift]

    across, down = model.shift
    across = max((across, *(unit * step for step in steps)), key=lambda x: norm((x, down)))
    for step in steps:
        norm((across, unit * step))
    order = sorted(found, key=lambda at: (-found[at], abs(at[0]) + abs(at[1])))
    return {at: found[at] for at in order}


def better_placement(model: EmbeddingModel | None, faces: NDArray[np.uint8] | None) -> str:
    """Return a sentence if crops lie elsewhere than the network expects them; else an empty one.

    Args:
        model: what embeds; None where it is not at hand, and nothing is said.
        faces: some crops of the set, uint8 RGB ``(n, H, W, 3)``, as they come; perhaps none.
    """
    if model is None or faces is None or not len(faces):
        return ""
    tried = try_placements(model, faces, (-8, -4, 0, 4, 8))
    (right, down), norm = next(iter(tried.items()))
    if not norm > GAIN * tried[model.shift]:
        return ""
    return (
        f"these faces do not lie in their crops as the network expects them: moved by {right} "
        f"{down} pixels, norms are {100 * (norm / tried[model.shift] - 1):.0f} % larger "
        f"({len(faces)} images); facerec verify --try-preprocessing compares placements, and "
        f"--shift {right} {down} moves the crops"
    )


def stranger_cosine(vectors: NDArray[np.floating], subjects: NDArray[np.str_]) -> float:
    """Return the mean cosine of images of different people; NaN without two of them.

    Args:
        vectors: raw embeddings ``(N, D)``; rows that are zero or not finite are left out.
        subjects: of the images, ``(N,)``; those of nobody knows whom, empty, are left out.
    """
    norms = row_norms(vectors)
    rows = np.flatnonzero(~np.isnan(norms) & (subjects != ""))
    names, subject = np.unique(subjects[rows], return_inverse=True)
    if len(names) < 2:
        return math.nan
    sums = np.zeros((len(names), vectors.shape[1]))
    np.add.at(sums, subject, unit_rows(vectors, norms, rows))
    images = np.bincount(subject).astype(float)
    # The square of a sum is that of all pairs; people with themselves are taken out.
    products = (sums.sum(axis=0) ** 2).sum() - (sums**2).sum()
    return float(products / (images.sum() ** 2 - (images**2).sum()))


def alike_note(embeddings: Embeddings, subjects: NDArray[np.str_] | None) -> str:
    """Return a sentence if different people are too much alike; else an empty one.

    Args:
        embeddings: of a set of faces.
        subjects: who is on them, ``(N,)``; None where that is unknown. Fewer than `PEOPLE` people
            tell nothing.
    """
    if subjects is None:
        return ""
    some = slice(None, None, -(-len(subjects) // MOST_ALIKE) or 1)
    few = len(set(subjects[some].tolist()) - {""}) < PEOPLE
    return "" if few else alike_words(stranger_cosine(embeddings.vectors[some], subjects[some]))


def alike_words(mean: float) -> str:
    """Return a sentence on a mean cosine of different people that is too high, or none."""
    if not mean > ALIKE:
        return ""
    return (
        f"different people have a mean cosine of {mean:.2f}, where well-placed faces have 0.00 to "
        "0.06: these crops do not lie as the network expects, or its pixels are prepared "
        "otherwise; align the photos (--align), or let facerec verify --try-preprocessing look"
    )
