"""Who is in two sets of images at once: proposals with a calibrated number of false ones.

Every subject of A is compared with every subject of B, as a template (the sum of the raw embeddings
of all images), and image by image; `facerec.galleries.impostor_tail` says how likely the best of so
many impostors scores as high. An image whose subject nobody names is a subject of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facerec.defaults import OVERLAP_SHARE
from facerec.devices import choose_device
from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError, MetricError
from facerec.galleries.impostor_tail import (
    RANKS,
    accept,
    centre_and_spread,
    fit_tail,
    standardise,
    subtracted,
)
from facerec.large_arrays import empty, group_blocks, take
from facerec.progress import Progress
from facerec.verification.scoring.tiles import CrossTiles
from facerec.verification.unit_rows import row_norms, unit_rows

_BLOCK = 1 << 14

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
        self._norms = row_norms(embeddings.vectors)
        usable = np.flatnonzero(~np.isnan(self._norms))
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

    def unit(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the embeddings of images by their rows, of length 1, ``(n, D)``."""
        return unit_rows(self.vectors, self._norms, rows)

    def unit_images(self) -> NDArray[np.float32]:
        """Return the embeddings of usable images in their order, of length 1, ``(n, D)``."""
        return self.unit(self.rows)

    def templates(self) -> NDArray[np.float32]:
        """Return the sum of each subject's raw embeddings, of length 1, ``(P, D)``."""
        templates = empty((len(self), self.vectors.shape[1]), np.float32)
        for start, stop in group_blocks(self.starts):
            first, last = self.starts[start], self.starts[stop]
            rows = self.vectors[self.rows[first:last]].astype(np.float64)
            sums = np.add.reduceat(rows, self.starts[start:stop] - first, axis=0)
            sums[np.isnan(row_norms(sums))] = 1.0  # opposite images cancel out: one of nobody
            templates[start:stop] = unit_rows(sums, row_norms(sums), np.arange(len(sums)))
        return templates


@dataclass(frozen=True)
class Match:
    """A subject of one set who is probably in the other."""

    subject: int
    """Number in its own `Side`."""
    other: int
    """Number in the other one."""
    cosine: float
    """Of both templates."""
    log_p: float
    """Natural logarithm of the chance that the best of all impostors is as good, or better."""
    expected_false: float
    """Expected false ones among this proposal and all better ones."""
    images: tuple[int, int]
    """Rows of the two images that resemble each other most."""
    image_cosine: float
    """Their cosine."""


@dataclass(frozen=True, eq=False)
class Overlap:
    """The subjects of A who are probably in B, those of B who are in A, and how that was told."""

    a: Side
    b: Side
    share: float
    matches: tuple[Match, ...]
    """Subjects of A, the surest first."""
    in_b: tuple[Match, ...]
    """Subjects of B, the surest first; `Match.other` is of A."""

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
        b: the same, of the same network.
        share: of the proposals that may be false, in (0, 1).
        device: where scores are computed, see `choose_device`.
        names: of both sets, for messages.
        progress: see `facerec.progress.Progress`.

    Raises:
        DatasetError: embeddings without ids, of different lengths, or none that is usable.
        MetricError: a share that is none, or one subject on either side, to whom nobody can be
            compared.
    """
    if not 0 < share < 1:
        raise MetricError(f"the share of false proposals is {share}; give one between 0 and 1")
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
    where = choose_device(device)
    named, everyone = (first.named, second.named), (np.arange(len(first)), np.arange(len(second)))
    templates = first.templates(), second.templates()
    levels = [_Level(templates, everyone, named, share, where, "comparing templates", progress)]
    if len(first.rows) > len(first) or len(second.rows) > len(second):
        images = first.unit_images(), second.unit_images()
        subjects = first.subject, second.subject
        levels.append(_Level(images, subjects, named, share, where, "comparing images", progress))
    matches, in_b = (_proposals((first, second)[:: 1 - 2 * at], at, levels, share) for at in (0, 1))
    return Overlap(first, second, share, matches, in_b)


class _Level:
    """One comparison of all rows of two sets.

    Attributes:
        log_p: for each set, of each of its subjects, ``(P,)``.
        other: for each set, the subject of the other set who is behind it, ``(P,)``.
    """

    def __init__(
        self,
        unit: tuple[NDArray[np.float32], NDArray[np.float32]],
        subject: tuple[NDArray[np.int64], NDArray[np.int64]],
        named: tuple[NDArray[np.bool_], NDArray[np.bool_]],
        share: float,
        device: torch.device,
        stage: str,
        progress: Progress | None,
    ) -> None:
        scaled = standardise(*unit)
        ranks = tuple(RANKS if known.all() else _UNNAMED_RANKS for known in reversed(named))
        tiles = CrossTiles(*scaled, device, progress=progress)
        kernels = tiles.visit(lambda: _Best(subject, ranks), stage)
        best = []
        for side in (0, 1):
            scores, subjects = kernels[0].best[side]
            for kernel in kernels[1:]:
                scores, subjects = _merged(scores, subjects, *kernel.best[side])
            first = subjects[:, 0].copy()
            scores = _without_more_of_the_best(
                scores, subjects, unit[1 - side], subject[1 - side], named[1 - side]
            )
            best.append((scores[:, :RANKS], first))
        counts = [len(known) for known in named]
        values = fit_tail(
            [scores for scores, _ in best], counts[::-1], centre_and_spread(*scaled), share
        )
        self.log_p, self.other = [], []
        for side in (0, 1):
            # Half of a subject's images or more must agree, as one may have a wrong label: twice
            # the median is a p-value however they depend on each other (Rüger 1978).
            images = np.bincount(subject[side], minlength=counts[side])
            order = np.lexsort((values[side], subject[side]))
            begins = np.searchsorted(subject[side], np.arange(counts[side]))
            agreeing = (images + 1) // 2
            middle = values[side][order[begins + agreeing - 1]]
            self.log_p.append(np.minimum(0.0, middle + np.log(images / agreeing)))
            self.other.append(best[side][1][order[begins]])


class _Best:
    """Keeps, for every row and every column, its best scores with different subjects."""

    def __init__(
        self, subject: tuple[NDArray[np.int64], NDArray[np.int64]], ranks: Sequence[int]
    ) -> None:
        self._subject = subject
        self.best = [
            (
                np.full((len(own), min(rank, int(others[-1]) + 1)), -np.inf, np.float32),
                np.full((len(own), min(rank, int(others[-1]) + 1)), -1, np.int32),
            )
            for own, others, rank in zip(subject, subject[::-1], ranks, strict=True)
        ]

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        for side, (matrix, own, others) in enumerate(
            ((scores, rows, columns), (scores.T, columns, rows))
        ):
            kept, whose = self.best[side]
            subjects, starts = np.unique(self._subject[1 - side][others], return_index=True)
            if len(subjects) < matrix.shape[1]:
                matrix = _by_subject(matrix, starts)
            top, column = torch.topk(matrix, min(kept.shape[1], matrix.shape[1]), dim=1)
            new = top.cpu().numpy()
            # Rows that hold better ones already need no more work: nearly all, after a while.
            better = np.flatnonzero(new[:, 0] > kept[own, -1])
            at = own.start + better
            new_subjects = subjects[column.cpu().numpy()[better]].astype(np.int32)
            kept[at], whose[at] = _merged(kept[at], whose[at], new[better], new_subjects)


def _by_subject(matrix: Tensor, starts: NDArray[np.int64]) -> Tensor:
    """Return the best score of each row with each subject, whose columns are neighbours."""
    if matrix.device.type == "cpu":
        return torch.from_numpy(np.maximum.reduceat(matrix.numpy(), starts, axis=1))
    lengths = torch.from_numpy(np.diff([*starts, matrix.shape[1]])).to(matrix.device)
    lengths = lengths.expand(len(matrix), -1).contiguous()
    return torch.segment_reduce(matrix.contiguous(), "max", lengths=lengths, axis=1)


def _merged(
    scores: NDArray[np.float32],
    subjects: NDArray[np.int32],
    more: NDArray[np.float32],
    others: NDArray[np.int32],
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return the best of two lists of rows, each subject once."""
    count = scores.shape[1]
    values = np.concatenate([scores, more], axis=1)
    names = np.concatenate([subjects, others], axis=1)
    order = np.lexsort((-values, names), axis=1)
    values = np.take_along_axis(values, order, 1)
    names = np.take_along_axis(names, order, 1)
    values[:, 1:][names[:, 1:] == names[:, :-1]] = -np.inf
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    values = np.take_along_axis(values, order, 1)
    names = np.take_along_axis(names, order, 1)
    return values, names.astype(np.int32, copy=False)


def _without_more_of_the_best(
    scores: NDArray[np.float32],
    subjects: NDArray[np.int32],
    unit: NDArray[np.float32],
    subject: NDArray[np.int64],
    named: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """Take away scores that may be of the same subject as the best one, where nobody names both.

    Of several images of one subject whom nobody names, the second best is no impostor.

    Args:
        scores: of each row with its best subjects, descending, ``(n, k)``.
        subjects: numbers of these subjects.
        unit: the images or templates of the set that these subjects are of.
        subject: of each of them.
        named: whether each subject of that set has a name.

    Returns:
        Scores, ``(n, k)``, descending, −∞ where there are fewer.
    """
    if named.all() or scores.shape[1] < 2:
        return scores
    centred = subtracted(unit, unit.mean(axis=0))
    for start in range(0, len(centred), _BLOCK):
        block = centred[start : start + _BLOCK]
        block /= np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12)
    middle, spread = centre_and_spread(centred, centred, same=True)
    # Subjects without a name have one image or template, so their first is all that there is.
    one = take(centred, np.searchsorted(subject, np.arange(len(named))))
    kept = np.empty_like(scores)
    for start in range(0, len(scores), 1024):
        who = subjects[start : start + 1024]
        block = scores[start : start + 1024].copy()
        alike = np.einsum("nkd,nd->nk", one[who], one[who[:, 0]]) >= middle + _ALIKE * spread
        alike &= ~(named[who] & named[who[:, :1]])
        alike[:, 0] = False
        block[alike] = -np.inf
        kept[start : start + 1024] = -np.sort(-block, axis=1)
    return kept


def _proposals(
    sides: tuple[Side, ...], at: int, levels: Sequence[_Level], share: float
) -> tuple[Match, ...]:
    """Return the subjects of ``sides[0]`` who are probably in ``sides[1]``, the surest first."""
    mine, theirs = sides
    each = np.stack([level.log_p[at] for level in levels])
    which = each.argmin(axis=0)
    subjects = np.arange(len(mine))
    # The better of two comparisons is taken, so it may be so good twice as easily.
    log_p = np.minimum(0.0, each[which, subjects] + np.log(len(levels)))
    chosen = np.flatnonzero(accept(log_p, share))
    chosen = chosen[np.argsort(log_p[chosen], kind="stable")]
    matches = []
    for subject in chosen.tolist():
        other = int(levels[which[subject]].other[at][subject])
        rows, columns = mine.of(subject), theirs.of(other)
        left, right = mine.unit(rows), theirs.unit(columns)
        cosines = left @ right.T
        best = np.unravel_index(int(cosines.argmax()), cosines.shape)
        sums = [
            side.vectors[chosen_rows].sum(axis=0, dtype=np.float64)
            for side, chosen_rows in ((mine, rows), (theirs, columns))
        ]
        length = float(np.linalg.norm(sums[0]) * np.linalg.norm(sums[1]))
        matches.append(
            Match(
                subject=subject,
                other=other,
                cosine=float(sums[0] @ sums[1]) / length if length else 0.0,
                log_p=float(log_p[subject]),
                expected_false=float(np.exp(log_p[subject]) * len(mine)),
                images=(int(rows[best[0]]), int(columns[best[1]])),
                image_cosine=float(np.clip(cosines[best], -1, 1)),
            )
        )
    return tuple(matches)
