"""What may be wrong with the labels of a set, found from its embeddings alone.

Every question is answered in the same way (`facerec.galleries.faults`): by what the same items look
like with the fault put there on purpose. An image is given somebody else's label, a class is split
in two, two classes are thrown together. A proposal is what is more probably wrong than right.

That classes of faces hold such faults: Deng et al., "Sub-center ArcFace", ECCV 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from facerec.devices import choose_device
from facerec.errors import MetricError
from facerec.galleries.duplicates import Duplicates, duplicates
from facerec.galleries.faults import Floats, Ints
from facerec.galleries.label_faults import (
    Members,
    Mixtures,
    Twins,
    WrongLabels,
    mixtures,
    twins,
    wrong_labels,
)
from facerec.progress import Progress
from facerec.records.proposals import Proposal
from facerec.verification.unit_rows import row_norms, unit_rows


@dataclass(frozen=True, eq=False)
class Cleaning:
    """What was found in a set.

    Attributes:
        images: with an embedding.
        classes: their labels.
        wrong: wrong labels; its classes are those that `labels` numbers.
        twins: classes of one subject; of those classes too.
        mixtures: classes of two subjects, before any was split.
        duplicates: images that are there twice.
        probability: of each image, that it does not belong under its label, ``(n,)``: that of a
            wrong label, or of being a second subject where that is larger.
        rows: the images that take part, of those given, ``(n,)``.
        labels: class of each image after mixtures are split, ``(n,)``; the second subjects have the
            numbers from ``classes`` on.
        proposals: all of them, the surest of each kind first.
    """

    images: int
    classes: int
    wrong: WrongLabels
    twins: Twins
    mixtures: Mixtures
    duplicates: Duplicates
    probability: Floats
    rows: Ints
    labels: Ints
    proposals: tuple[Proposal, ...]


def clean_set(
    vectors: ArrayLike,
    labels: ArrayLike,
    ids: ArrayLike,
    *,
    limit: float = 0.5,
    across: bool = True,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Cleaning:
    """Look for faults in the labels of a set.

    Mixtures are split and subjects with two labels joined, for the sake of what is found next; then
    wrong labels are looked for. Images without an embedding or without a label take no part.

    Args:
        vectors: raw embeddings, ``(N, D)``; rows that are not finite, or 0, take no part.
        labels: the name of each image's class, text ``(N,)``; empty where there is none.
        ids: image ids, text ``(N,)``.
        limit: probability from which on a fault is proposed.
        across: look for duplicates among all pairs, not only those of one label.
        device: where to compute.
        progress: see `facerec.progress.Progress`.

    Raises:
        MetricError: shapes that do not fit, or too few images of too few classes to compare.
    """
    raw, names, images = np.asarray(vectors), np.asarray(labels), np.asarray(ids)
    if raw.ndim != 2 or names.shape != (len(raw),) or images.shape != (len(raw),):
        raise MetricError(
            f"cleaning needs embeddings (N, D) with a label and an id each, found shapes "
            f"{raw.shape}, {names.shape} and {images.shape}"
        )
    norms = row_norms(raw)
    rows = np.flatnonzero(~np.isnan(norms) & (names != ""))
    if len(rows) < 4:
        raise MetricError(
            f"{len(rows)} of {len(raw)} images have an embedding and a label, and to compare takes "
            "four at least; check the images and their labels"
        )
    unit, images = unit_rows(raw, norms, rows), images[rows]
    words, label = np.unique(names[rows], return_inverse=True)
    count, chosen = len(words), choose_device(device)

    members = Members(unit, label, count)
    mixed = replace(mixtures(members, progress), limit=limit)
    moved = mixed.second & mixed.proposed[label]
    fresh = np.flatnonzero(mixed.proposed)
    number = np.full(count, -1)
    number[fresh] = count + np.arange(len(fresh))
    split = np.where(moved, number[label], label)

    split_members = Members(unit, split, count + len(fresh))
    same = replace(twins(split_members, chosen, progress), limit=limit)
    root = _roots(same)
    numbers, joined = np.unique(root[split], return_inverse=True)
    wrong = wrong_labels(Members(unit, joined, len(numbers)), chosen, progress=progress)
    wrong = replace(wrong, limit=limit, nearest=numbers[wrong.nearest])

    probability = np.maximum(
        wrong.probability, np.where(mixed.second, mixed.probability[label], 0.0)
    )
    # Of two duplicates that goes whose label is less sure, and else the later one.
    order = np.lexsort((np.arange(len(rows)), np.round(probability, 2)))
    rank = np.empty(len(rows))
    rank[order] = np.arange(len(rows))
    sure = probability < 0.5
    twice = duplicates(
        members, chosen, across=across, keep_first=rank, sure=sure, progress=progress
    )

    taken = set(words.tolist())
    titles = words.tolist()
    for old in fresh.tolist():
        titles.append(_fresh_name(str(words[old]), taken))
    proposals = [
        *_wrong_rows(wrong, images, words[label], words.tolist()),
        *_mixture_rows(mixed, moved, images, words, label, titles, number),
        *_twin_rows(same, titles, np.bincount(split, minlength=len(titles))),
        *_duplicate_rows(twice, images, words[label]),
    ]
    return Cleaning(
        len(rows), count, wrong, same, mixed, twice, probability, rows, split, tuple(proposals)
    )


def _roots(same: Twins) -> Ints:
    """Return for each class the one that stands for its subject, joining proposed pairs."""
    root = np.arange(len(same.probability))

    def end(number: int) -> int:
        while root[number] != number:
            number = int(root[number])
        return number

    for number in np.flatnonzero(same.proposed).tolist():
        first, last = sorted((end(number), end(int(same.partner[number]))))
        root[last] = first
    return np.array([end(number) for number in range(len(root))])


def _fresh_name(name: str, taken: set[str]) -> str:
    """Return a name for the second subject of a class that nobody has yet."""
    number = 2
    while (fresh := f"{name}~{number}") in taken:
        number += 1
    taken.add(fresh)
    return fresh


def _wrong_rows(
    wrong: WrongLabels, images: NDArray[np.str_], label: NDArray[np.str_], names: Sequence[str]
) -> Iterator[Proposal]:
    # The second subject of a mixture may be no subject but what a network cannot tell apart, such
    # as profiles; nobody else's image is put there.
    chosen = np.flatnonzero(wrong.proposed)
    for row in chosen[np.argsort(-wrong.probability[chosen], kind="stable")].tolist():
        nearest = int(wrong.nearest[row])
        at_home = nearest < len(names) and wrong.inside[row] > 0.5 * wrong.probability[row]
        proposed = names[nearest] if at_home else ""
        score = float(wrong.probability[row])
        yield Proposal("wrong_label", str(images[row]), str(label[row]), proposed, "", score)


def _mixture_rows(
    mixed: Mixtures,
    moved: NDArray[np.bool_],
    images: NDArray[np.str_],
    words: NDArray[np.str_],
    label: Ints,
    titles: Sequence[str],
    number: Ints,
) -> Iterator[Proposal]:
    chosen = np.flatnonzero(moved)
    order = np.lexsort((label[chosen], -mixed.probability[label[chosen]]))
    for row in chosen[order].tolist():
        old = int(label[row])
        score = float(mixed.probability[old])
        yield Proposal(
            "mixture", str(images[row]), str(words[old]), titles[int(number[old])], "", score
        )


def _twin_rows(same: Twins, titles: Sequence[str], sizes: Ints) -> Iterator[Proposal]:
    """Propose each pair once; the label with fewer images goes."""
    seen = set()
    chosen = np.flatnonzero(same.proposed)
    for number in chosen[np.argsort(-same.probability[chosen], kind="stable")].tolist():
        other = int(same.partner[number])
        pair = min(number, other), max(number, other)
        if pair in seen:
            continue
        seen.add(pair)
        less, more = sorted(pair, key=lambda each: (sizes[each], -each))
        yield Proposal("merge", "", titles[less], titles[more], "", float(same.probability[number]))


def _duplicate_rows(
    twice: Duplicates, images: NDArray[np.str_], label: NDArray[np.str_]
) -> Iterator[Proposal]:
    for row in np.argsort(-twice.cosine, kind="stable").tolist():
        gone, kept = twice.pairs[row].tolist()
        score = float(twice.cosine[row])
        yield Proposal(
            "duplicate", str(images[gone]), str(label[gone]), "", str(images[kept]), score
        )
