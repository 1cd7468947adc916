"""Who is in two sets of images at once: proposals with a calibrated number of false ones.

Every subject of A is compared with every subject of B as a template, the sum of the raw embeddings
of all images; `facerec.galleries.impostor_tail` says how likely the best of so many impostors
scores as high. An image whose subject nobody names is a subject of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from facerec.base.defaults import OVERLAP_SHARE
from facerec.base.errors import DatasetError, MetricError
from facerec.base.progress import Progress
from facerec.cosines.searches import best
from facerec.cosines.unit_rows import UnitRows, on_grid, row_norms
from facerec.embedding.extraction import Embeddings
from facerec.galleries.impostor_tail import (
    RANKS,
    accept,
    centre_and_spread,
    fit_tail,
    standardise,
)
from facerec.galleries.search import group_sums

if TYPE_CHECKING:
    import torch

# Best ones kept of a row where several images may be of one subject whom nobody names.
_UNNAMED_RANKS = 24

# Standard deviations of impostors above which two unnamed images of one set may be one subject.
_ALIKE = 3.0


class Side:
    """The usable images of one set, sorted by subject.

    Attributes:
        rows: rows of the embeddings, ``(n,)``.
        subject: number of the subject on each, ascending, ``(n,)``.
        starts: first of each subject's images, and n at the end, ``(P + 1,)``.
        names: of the subjects, ``(P,)``: the subject, or the image's id where nobody names one.
        named: whether a subject is known, ``(P,)``.
        failures: images without a usable embedding.
        units: all embeddings at length 1.
    """

    def __init__(self, embeddings: Embeddings, what: str) -> None:
        """Sort images.

        Args:
            embeddings: raw ones, with ids.
            what: the set's name for messages.

        Raises:
            DatasetError: no ids, or no usable embedding.
        """
        if embeddings.ids is None:
            raise DatasetError(
                f"{what}: embeddings without image ids; make them with facerec embed"
            )
        norms = row_norms(embeddings.vectors)
        self.units = UnitRows(embeddings.vectors, norms=norms)
        usable = np.flatnonzero(~np.isnan(norms))
        if not usable.size:
            raise DatasetError(f"{what}: no image has a usable embedding; check the images")
        self.vectors, self.ids = embeddings.vectors, embeddings.ids
        self.failures = len(embeddings.vectors) - usable.size
        subjects = embeddings.subjects
        known = np.zeros(usable.size, bool) if subjects is None else subjects[usable] != ""
        numbers = np.empty(usable.size, np.int64)
        recorded: NDArray[np.str_] = np.empty(0, np.str_)
        if subjects is not None and known.any():
            recorded, numbers[known] = np.unique(subjects[usable[known]], return_inverse=True)
        numbers[~known] = len(recorded) + np.arange(np.count_nonzero(~known))
        order = np.argsort(numbers, kind="stable")
        self.rows, self.subject = usable[order], numbers[order]
        self.starts = np.searchsorted(self.subject, np.arange(numbers.max() + 2))
        self.named = np.arange(len(self.starts) - 1) < len(recorded)
        self.names = np.concatenate([recorded, self.ids[self.rows[self.subject >= len(recorded)]]])

    def __len__(self) -> int:
        """Return the number of subjects."""
        return len(self.names)

    @property
    def images(self) -> NDArray[np.int64]:
        """Usable images of each subject, ``(P,)``."""
        return np.diff(self.starts)

    def of(self, subject: int) -> NDArray[np.int64]:
        """Return the rows of a subject's images."""
        return self.rows[self.starts[subject] : self.starts[subject + 1]]

    def templates(self) -> NDArray[np.float32]:
        """Return the sum of each subject's raw embeddings, of length 1, ``(P, D)``."""
        sums = group_sums(self.vectors, self.rows, self.starts, np.ones(len(self.rows)))
        norms = row_norms(sums)
        lost = np.isnan(norms)  # opposite images cancel out: one of nobody
        sums[lost], norms[lost] = 1.0, math.sqrt(sums.shape[1])
        sums /= norms[:, None].astype(np.float32)
        return sums


@dataclass(frozen=True)
class Match:
    """A subject of A who is probably in B."""

    subject: int
    """Number in A's `Side`."""
    other: int
    """Number in B's."""
    cosine: float
    """Cosine of both templates."""
    log_p: float
    """Natural logarithm of the chance that the best of all impostors is as good, or better."""
    expected_false: float
    """Expected false ones among this proposal and all better ones."""
    images: tuple[int, int]
    """Rows of the two images that resemble each other most."""
    image_cosine: float
    """Cosine of these two images."""


@dataclass(frozen=True, eq=False)
class Overlap:
    """The subjects of A who are probably in B."""

    a: Side
    b: Side
    share: float
    matches: tuple[Match, ...]
    """The surest first."""

    @property
    def expected_false(self) -> float:
        """Expected false ones among all proposals for A."""
        return self.matches[-1].expected_false if self.matches else 0.0


def find_overlap(
    a: Embeddings,
    b: Embeddings,
    *,
    share: float = OVERLAP_SHARE,
    device: str | torch.device = "cpu",
    names: tuple[str, str] = ("A", "B"),
    progress: Progress | None = None,
) -> Overlap:
    """Find the subjects of A who are probably in B.

    Assumed: no more than half of what looks like the scores of impostors is anything else; subjects
    of one set with a name have another one only by mistake; impostors in the far tail go on as the
    nearer ones begin. Relatives and doubles count as impostors, but a few are beyond any tail.

    Args:
        a: raw embeddings with ids, and perhaps subjects.
        b: raw embeddings of the other set, by the same network.
        share: of the proposals that may be false, in (0, 1).
        device: where scores are computed, see `choose_device`.
        names: of both sets, for messages.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        DatasetError: embeddings without ids, of different lengths, or none that is usable.
        MetricError: one subject on either side, to whom nobody can be compared.
    """
    if a.vectors.shape[1] != b.vectors.shape[1]:
        raise DatasetError(
            f"{names[0]} has embeddings of {a.vectors.shape[1]} dimensions and {names[1]} of "
            f"{b.vectors.shape[1]}; embed both with one model"
        )
    first, second = Side(a, names[0]), Side(b, names[1])
    if max(len(first), len(second)) < 2:
        raise MetricError(
            f"{names[0]} and {names[1]} have one subject each, so that there is no impostor to "
            "compare with; give one of them more subjects"
        )
    from facerec.base.devices import choose_device

    templates = first.templates(), second.templates()
    rows, columns = standardise(*templates)
    ranks = RANKS if second.named.all() else _UNNAMED_RANKS
    left, right = (
        UnitRows(side, norms=np.ones(len(side)), device=choose_device(device))
        for side in (rows, columns)
    )
    others, scores = best(left, right, ranks, stage="comparing templates", progress=progress)
    nearest = others[:, 0].copy()
    scores = _without_more_of_the_best(scores, others, columns, second.named)
    scale = centre_and_spread(rows, columns)
    log_p = fit_tail(scores[:, :RANKS], len(second), scale, share)
    log_p[~accept(log_p, share)] = np.nan
    matches = _proposals(first, second, log_p, nearest, templates)
    return Overlap(first, second, share, tuple(matches))


def _without_more_of_the_best(
    scores: NDArray[np.float32],
    subjects: NDArray[np.int64],
    templates: NDArray[np.float32],
    named: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """Take away scores that may be of the same subject as the best one, where nobody names both.

    Of several images of one subject whom nobody names, the second best is no impostor.

    Args:
        scores: of each row with its best subjects, descending, ``(n, k)``.
        subjects: numbers of these subjects.
        templates: standardised, of the set that these subjects are of, ``(P, D)``.
        named: whether each subject of that set has a name.

    Returns:
        Scores, ``(n, k)``, descending, −∞ where there are fewer.
    """
    if named.all() or scores.shape[1] < 2:
        return scores
    middle, spread = centre_and_spread(templates, templates, same=True)
    kept = scores.copy()
    for start in range(0, len(scores), 1024):
        rows = slice(start, start + 1024)
        who = subjects[rows]
        likeness = np.einsum("nkd,nd->nk", templates[who], templates[who[:, 0]])
        alike = (likeness >= middle + _ALIKE * spread) & ~(named[who] & named[who[:, :1]])
        alike[:, 0] = False
        kept[rows][alike] = -np.inf
    return -np.sort(-kept, axis=1)


def _proposals(
    mine: Side,
    theirs: Side,
    log_p: NDArray[np.float64],
    nearest: NDArray[np.int64],
    templates: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> Iterator[Match]:
    """Yield the subjects of A who are probably in B, the surest first; log_p of others is NaN."""
    for subject in np.argsort(log_p, kind="stable")[: np.count_nonzero(~np.isnan(log_p))].tolist():
        other = int(nearest[subject])
        rows, columns = mine.of(subject), theirs.of(other)
        of_images = on_grid(mine.units.unit(rows) @ theirs.units.unit(columns).T)
        nearest_two = np.unravel_index(int(of_images.argmax()), of_images.shape)
        yield Match(
            subject=subject,
            other=other,
            cosine=float(templates[0][subject] @ templates[1][other]),
            log_p=float(log_p[subject]),
            expected_false=float(np.exp(log_p[subject]) * len(mine)),
            images=(int(rows[nearest_two[0]]), int(columns[nearest_two[1]])),
            image_cosine=float(of_images[nearest_two]),
        )
