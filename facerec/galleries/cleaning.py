"""What may be wrong with the labels of a set, found from its embeddings alone.

Every question is answered in the same way (`facerec.galleries.label_faults`): by what the same
items look like with the fault put there on purpose. An image is given somebody else's label, a
class is split in two, two classes are thrown together.

That classes of faces hold such faults: Deng et al., "Sub-center ArcFace", ECCV 2020.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import log_ndtr, ndtri

from facerec.base.devices import choose_device
from facerec.base.errors import MetricError
from facerec.base.progress import Progress
from facerec.cosines.unit_rows import row_norms, unit_rows
from facerec.embedding.face_score import FALSE_REFUSALS
from facerec.galleries.duplicates import duplicates
from facerec.galleries.impostor_tail import accept, nearest_subjects
from facerec.galleries.label_faults import FALSE_SHARE, mixtures, proposed, wrong_labels
from facerec.galleries.members import Floats, Ints, Members, directions
from facerec.records.proposals import Proposal


@dataclass(frozen=True, eq=False)
class Cleaning:
    """What was found in a set.

    Attributes:
        classes: labels of the images that take part.
        rows: the images that take part, of those given, ``(n,)``.
        probability: of each, that it does not belong under its label, ``(n,)``: that of a wrong
            label, or of being a second subject where that is larger.
        proposals: all of them, the surest of each kind first.
    """

    classes: int
    rows: Ints
    probability: Floats
    proposals: tuple[Proposal, ...]


def clean_set(
    vectors: ArrayLike,
    labels: ArrayLike,
    ids: ArrayLike,
    *,
    face_scores: ArrayLike | None = None,
    face_limit: float | None = None,
    across: bool = True,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Cleaning:
    """Look for faults in the labels of a set.

    Mixtures are split and subjects with two labels joined, for the sake of what is found next; then
    wrong labels are looked for. Images without an embedding or without a label take no part, nor
    do those that look like no face: they are proposed as such, and accepted as far as sound faces
    would hardly have so low a score.

    Args:
        vectors: raw embeddings, ``(N, D)``; rows that are not finite, or 0, take no part.
        labels: the name of each image's class, text ``(N,)``; empty where there is none.
        ids: image ids, text ``(N,)``.
        face_scores: of the images, ``(N,)``, see `facerec.embedding.calibration.FaceScore`.
        face_limit: score below which an image is none of a face; without it all are taken for one.
        across: look for duplicates among all pairs, not only those of one label.
        device: where to compute.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: too few images of too few classes to compare.
    """
    raw, names, images = np.asarray(vectors), np.asarray(labels), np.asarray(ids)
    norms = row_norms(raw)
    rows = np.flatnonzero(~np.isnan(norms) & (names != ""))
    found: list[Proposal] = []
    if face_scores is not None and face_limit is not None:
        scores = np.asarray(face_scores)[rows]
        found += _without_face(images[rows], names[rows], scores, face_limit)
        rows = rows[~(scores < face_limit)]
    if len(rows) < 4:
        few = f"{len(rows)} of {len(raw)} images have an embedding and a label"
        raise MetricError(f"{few}, and to compare takes four; check the images and their labels")
    unit, images = unit_rows(raw, norms, rows), images[rows]
    words, label = np.unique(names[rows], return_inverse=True)
    count, chosen = len(words), choose_device(device)

    members = Members(unit, label, count)
    mixed, second = mixtures(members, progress)
    fresh = np.sort(proposed(mixed)).astype(np.int64)
    number = np.arange(count)  # of the label that each second subject gets
    number[fresh] = count + np.arange(len(fresh))
    split = np.where(second, number[label], label)
    titles = [*words.tolist(), *_fresh_names(words, fresh)]

    templates = directions(Members(unit, split, len(titles)).sums())
    doing = "looking for subjects with two labels"
    partner, same = nearest_subjects(
        templates, share=FALSE_SHARE, device=chosen, stage=doing, progress=progress
    )
    joined = np.flatnonzero(accept(same, FALSE_SHARE))
    links = coo_array((np.ones(len(joined)), (joined, partner[joined])), shape=(len(titles),) * 2)
    people, person = connected_components(links, directed=False)
    wrong = wrong_labels(Members(unit, person[split], people), chosen, progress)

    probability = np.maximum(wrong.probability, np.where(second, mixed[label], 0.0))
    # Of two duplicates that goes whose label is less sure, and else the later one.
    order = np.lexsort((np.arange(len(rows)), np.round(probability, 2)))
    rank = np.empty(len(rows))
    rank[order] = np.arange(len(rows))
    twice, cosine = duplicates(members, rank, chosen, across=across, progress=progress)

    # The second subject of a mixture may be no subject but what a network cannot tell apart, such
    # as profiles; nobody else's image is put there.
    first_title = np.unique(person, return_index=True)[1]
    for row in proposed(wrong.probability):
        nearest = int(first_title[wrong.nearest[row]])
        name = titles[nearest] if nearest < count and wrong.at_home[row] else ""
        score = float(wrong.probability[row])
        found.append(Proposal("wrong_label", str(images[row]), titles[label[row]], name, "", score))
    moved = np.flatnonzero(split >= count)
    for row in moved[np.lexsort((label[moved], -mixed[label[moved]]))].tolist():
        old, new, score = titles[label[row]], titles[split[row]], float(mixed[label[row]])
        found.append(Proposal("mixture", str(images[row]), old, new, "", score))
    sizes = np.bincount(split, minlength=len(titles))
    merged: dict[tuple[int, int], float] = {}
    for one in joined[np.argsort(same[joined], kind="stable")].tolist():
        pair = sorted([one, int(partner[one])], key=lambda each: (sizes[each], -each))
        merged.setdefault((pair[0], pair[1]), float(-np.expm1(same[one])))
    for (goes, stays), score in merged.items():  # the smaller one goes
        found.append(Proposal("merge", "", titles[goes], titles[stays], "", score))
    for (gone, kept), score in zip(twice.tolist(), cosine.tolist(), strict=True):
        going, staying = str(images[gone]), str(images[kept])
        found.append(Proposal("duplicate", going, titles[label[gone]], "", staying, score))
    return Cleaning(count, rows, probability, tuple(found))


def _without_face(
    images: NDArray[np.str_], labels: NDArray[np.str_], scores: Floats, limit: float
) -> Iterator[Proposal]:
    """Yield images with a face score below the limit, the lowest first.

    Some faces lie below it, too. Accepted is the longest list of which at most `FALSE_SHARE` are
    faces, if the scores of faces are those of a normal law about 0 with `FALSE_REFUSALS` below the
    limit.
    """
    sure = accept(log_ndtr(ndtri(FALSE_REFUSALS) * scores / min(limit, -1.0)), FALSE_SHARE)
    for row in np.argsort(scores, kind="stable")[: np.count_nonzero(scores < limit)]:
        image, label, score = str(images[row]), str(labels[row]), limit - float(scores[row])
        yield Proposal("no_face", image, label, "", "", score, bool(sure[row]))


def _fresh_names(words: NDArray[np.str_], mixed: Ints) -> Iterator[str]:
    """Yield a name for the second subject of each mixed class that nobody has yet."""
    known = {*words.tolist()}
    for name in words[mixed].tolist():
        numbered = (f"{name}~{number}" for number in itertools.count(2))
        yield next(fresh for fresh in numbered if fresh not in known)
