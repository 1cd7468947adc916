"""Which faces of a pile are of one person: groups without a threshold, and how many are wrong.

A round compares the mean vectors of the groups that there are, at first of single faces, on one
scale (`facerec.galleries.impostor_tail.standardise`). A group joins its best other one as long as
few pairs of strangers in the whole pile are expected to score as high; how high strangers score is
read from the middle of the scores (`BentTail`). A person of many photos would count as many people
in all of that: each group has the weight 1 / (1 + others that are too near for strangers), and
the sum of the weights is about how many people there are.

In a round a group that joins another takes none, so that chains of chance do not grow.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import t as student

from facerec.base.devices import choose_device
from facerec.base.errors import MetricError
from facerec.base.large_arrays import empty
from facerec.base.progress import Progress
from facerec.cosines.searches import best
from facerec.cosines.unit_rows import UnitRows, row_norms, unit_rows
from facerec.galleries.impostor_tail import BentTail, standardise
from facerec.galleries.search import group_sums
from facerec.statistics.intervals import Interval

Floats = NDArray[np.float64]

Ints = NDArray[np.int64]

FEWEST = 20
"""Faces that say how alike strangers are."""

FALSE_SHARE = 2e-4
"""Pairs of strangers that may be expected at the least score of a round, a person."""

_OTHERS = 16
"""Best others of a group that are looked at."""

_NEAR = -2.0
"""Logarithm of the strangers a group may expect at a score that is too high for one."""

_SAMPLE = 2048

_PARTS = 8
"""Of the sample, whose tails differ by chance."""

_LARGE = 3
"""Photos from which on a group's faces say how alike they are among themselves."""

_ACROSS = 0.5
"""Share of that which the faces of two such groups need."""

_STRANGERS = 0.3
"""Cosine that less than half of all pairs reach, unless nearly all are of one person."""

_OLD = "photos of", "an old group"


@dataclass(frozen=True, eq=False)
class Grouping:
    """Proposals of who is one person.

    Attributes:
        groups: number of each face's, ``(n,)``: those of old groups, and then 1, 2, … the largest
            first; each face that is alone is one.
        doubt: how many strangers of each face would be expected to be as much like the others of
            its group, 1 at the most, ``(n,)``; NaN for a face that is alone.
        wrong: how many merges of two people are expected.
        limits: of ``wrong``, at 90 %: what chance did to the sample that the tail is fitted to. It
            says nothing of relatives, and of a tail that goes on otherwise than it begins.
        merges: two old groups each that look like one person, and how many pairs of strangers are
            expected to look as much alike; the surest first.
    """

    groups: Ints
    doubt: Floats
    wrong: float
    limits: Interval
    merges: tuple[tuple[int, int, float], ...]


def group_faces(
    vectors: NDArray[np.floating],
    ids: NDArray[np.str_],
    photos: NDArray[np.str_] | None = None,
    *,
    must: NDArray[np.str_] | None = None,
    cannot: NDArray[np.str_] | None = None,
    known: Ints | None = None,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Grouping:
    """Group faces by who they probably are.

    Args:
        vectors: raw embeddings, ``(n, D)``, each with a direction.
        ids: what faces are called in messages, ``(n,)``.
        photos: faces of one photo are of different people, ``(n,)``; by default each has its own.
        must: faces with the same text are one person, ``(n,)``; empty for no such.
        cannot: faces with the same text are different people, in the same way.
        known: number of the old group of each face, ``(n,)``, 0 for a new one. Old groups take new
            faces, and stay apart.
        device: where faces are compared.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: too few faces, hardly any of different people, or links that contradict.
    """
    count = len(vectors)
    if count < FEWEST:
        raise MetricError(
            f"{count} faces: how alike strangers are is learned from the faces themselves, which "
            f"takes {FEWEST} at the least; add photos, also of other people"
        )
    chosen, none = choose_device(device), np.full(count, "")
    must, cannot = (none if links is None else links for links in (must, cannot))
    photos = ids if photos is None else photos
    old = np.zeros(count, np.int64) if known is None else known
    numbers = np.concatenate([alike(must, must != ""), alike(old, old > 0)])
    faces = np.tile(np.arange(count), 2)
    links = coo_array((np.ones(2 * count), (faces, numbers)), shape=(count, count))
    group = connected_components(links, directed=False)[1].astype(np.int64)
    held = _apart(group, ids, photos, cannot, old)
    unit = unit_rows(vectors, row_norms(vectors), np.arange(count))
    _refuse_one_person(unit)

    generator, labels = np.random.default_rng(0), np.arange(len(held))
    if len(held) == count:  # while faces are alone, others of their photos take no place in a list
        labels = alike(photos, np.ones(count, bool))
    weights, fresh = _first_weights(unit, group, generator), np.ones(len(held), bool)
    wrong = np.zeros(3)  # expected, and its limits
    for turn in itertools.count():
        templates, lengths, sizes = _templates(unit, group, len(held))
        (rows,) = standardise(templates, weights=weights)
        sample = generator.permutation(len(rows))[:_SAMPLE]
        tail = BentTail(rows[sample], weights[sample])
        side = UnitRows(rows, norms=np.ones(len(rows)), device=chosen)
        stage = f"round {turn}: comparing {len(rows):,} groups"
        others, scores = best(
            side, side, _OTHERS, apart=(labels, labels), stage=stage, progress=progress
        )
        share, people = tail.log_share(scores), float(weights.sum() if turn else len(rows))
        expected = np.exp(share) * people * (people - 1) / 2
        into = np.arange(len(rows))
        if turn:  # the first comparison is for the weights alone
            limit = FALSE_SHARE * people
            one, place = np.nonzero(expected <= limit)
            sound = _hold_together(templates, lengths, sizes, one, others[one, place])
            one, place = one[sound], place[sound]
            order = np.lexsort((place, expected[one, place]))
            pairs = one[order], others[one, place][order], expected[one, place][order]
            merges = _join(pairs, held, into).items()
            if len(np.unique(into)) == len(into):
                break
            # What was compared before is no new chance of being wrong.
            new = 1 - (weights[~fresh].sum() / people) ** 2
            factor = _uncertainty(rows[sample], weights[sample], scores[expected <= limit].min())
            wrong += new * limit * np.array([1, 1 / factor, factor])
        kept = np.flatnonzero(into == np.arange(len(rows)))
        number = np.zeros(len(rows), np.int64)
        number[kept] = np.arange(len(kept))
        fresh = (np.bincount(number[into]) > 1) | (not turn)
        row, place = np.nonzero(share[kept] <= _NEAR - np.log(people))
        target = number[into[others[kept[row], place]]]
        near = np.unique((row * len(kept) + target)[row != target]) // len(kept)
        weights = 1 / (1 + np.bincount(near, minlength=len(kept)))
        group, held = number[into[group]], [held[each] for each in kept.tolist()]
        labels = np.arange(len(kept)) if turn else labels
    groups = _numbers(group, old)
    of_group = np.zeros(len(held), np.int64)
    of_group[group] = groups
    return Grouping(
        groups,
        _doubts(unit, group, templates, lengths, weights),
        float(wrong[0]),
        Interval(wrong[1], wrong[2], 0.9, "Student", "a tail that goes on as it begins"),
        tuple((int(of_group[one]), int(of_group[two]), doubt) for (one, two), doubt in merges),
    )


def alike(values: NDArray[Any], there: NDArray[np.bool_]) -> Ints:
    """Return numbers ``(n,)``, equal where values are; elsewhere each is of its own."""
    numbers = np.arange(len(values))
    _, first, same = np.unique(values[there], return_index=True, return_inverse=True)
    numbers[there] = numbers[there][first][same]
    return numbers


def _apart(group: Ints, *columns: NDArray[Any]) -> list[dict[Any, int]]:
    """Return of each group what another one that it joins may not have, too.

    Args:
        group: of each face, ``(n,)``.
        columns: ids, photos, texts under cannot and numbers of old groups, ``(n,)`` each.

    Raises:
        MetricError: two faces of a group may not be together.
    """
    held: list[dict[Any, int]] = [{} for _ in range(group.max() + 1)]
    lists = (each.tolist() for each in (group, *columns))
    for face, (number, name, photo, cannot, old) in enumerate(zip(*lists, strict=True), 1):
        own = {("photo", photo): face, ("cannot", cannot): face, _OLD: old}
        own = {key: value for key, value in own.items() if value and key[1]}
        if any(held[number].setdefault(key, value) != value for key, value in own.items()):
            raise MetricError(
                f"{name!r} must be one person with a face of the same photo, of another old group, "
                "or with the same text under cannot, and cannot be; mend the links, or to join old "
                "groups group all photos into a new folder"
            )
    return held


def _refuse_one_person(unit: NDArray[np.float32]) -> None:
    """Refuse faces of which half of all pairs look like one person's."""
    sample = unit[np.random.default_rng(0).permutation(len(unit))[:_SAMPLE]]
    middle = np.median((sample @ sample.T)[np.triu_indices(len(sample), 1)])
    if middle >= _STRANGERS:
        raise MetricError(
            f"half of all pairs of these {len(unit):,} faces have a cosine of {middle:.2f} or "
            "more, so nearly all are of one person, or the model does not tell people apart; how "
            "alike strangers are cannot be learned: add other people, or check the model"
        )


def _first_weights(unit: NDArray[np.float32], group: Ints, generator: np.random.Generator) -> Floats:
    """Return roughly one over how many faces are like those of each group, ``(G,)``."""
    faces = np.unique(group, return_index=True)[1]
    sample = generator.permutation(len(unit))[:_SAMPLE]
    alike = np.zeros(len(faces))
    for start in range(0, len(faces), _SAMPLE):
        part = slice(start, start + _SAMPLE)
        alike[part] = (np.maximum(unit[faces[part]] @ unit[sample].T, 0) ** 4).sum(axis=1)
    return 1 / np.maximum(alike * len(unit) / len(sample), 1)


def _templates(
    unit: NDArray[np.float32], group: Ints, count: int
) -> tuple[NDArray[np.float32], Floats, Ints]:
    """Return mean directions of groups ``(G, D)``, lengths of the means ``(G,)``, and sizes."""
    sizes = np.bincount(group, minlength=count)
    starts = np.append(0, np.cumsum(sizes))
    sums = group_sums(unit, np.argsort(group, kind="stable"), starts, np.ones(len(group)))
    lengths = np.maximum(np.nan_to_num(row_norms(sums)), 1e-9)
    sums /= lengths[:, np.newaxis].astype(np.float32)
    return sums, lengths / sizes, sizes


def _hold_together(
    templates: NDArray[np.float32], lengths: Floats, sizes: Ints, one: Ints, other: Ints
) -> NDArray[np.bool_]:
    """Return which pairs of groups are as much alike as the faces within both ask for, ``(m,)``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        within = (sizes * lengths**2 - 1) / (sizes - 1)  # the mean cosine of two of its faces
    across = np.einsum("nd,nd->n", templates[one], templates[other]) * lengths[one] * lengths[other]
    few = np.minimum(sizes[one], sizes[other]) < _LARGE
    return np.asarray(few | (across >= _ACROSS * np.minimum(within[one], within[other])))


def _join(
    pairs: tuple[Ints, Ints, Floats], held: list[dict[Any, int]], into: Ints
) -> dict[tuple[int, int], float]:
    """Let groups join others, each the first that may have it; ``into`` and ``held`` change.

    Returns:
        Two old groups each that would join if they might → pairs of strangers expected.
    """
    takes, done = set[int](), set[int]()
    apart: dict[tuple[int, int], float] = {}
    for one, other, expected in zip(*(each.tolist() for each in pairs), strict=True):
        if one in done:
            continue
        if both := held[one].keys() & held[other].keys():
            if both == {_OLD}:
                apart.setdefault((min(one, other), max(one, other)), expected)
            continue
        done.add(one)
        if one not in takes and into[other] == other:
            into[one] = other
            takes.add(other)
            held[other].update(held[one])
    return apart


def _uncertainty(rows: NDArray[np.float32], weights: Floats, score: float) -> float:
    """Return the factor by which a share of impostors may be off, at 90 %, by parts."""
    parts = [BentTail(rows[part::_PARTS], weights[part::_PARTS]) for part in range(_PARTS)]
    shares = [float(part.log_share(np.array([score]))[0]) for part in parts]
    error = np.std(shares, ddof=1) / math.sqrt(_PARTS)
    return float(np.exp(min(student.ppf(0.95, _PARTS - 1) * error, 20.0)))


def _numbers(group: Ints, old: Ints) -> Ints:
    """Return the number of each face's group, ``(n,)``: the old one, or the next, largest first."""
    known, sizes = np.zeros(group.max() + 1, np.int64), np.bincount(group)
    np.maximum.at(known, group, old)
    new = np.flatnonzero(known == 0)
    new = new[np.argsort(-sizes[new], kind="stable")]
    known[new] = known.max() + 1 + np.arange(len(new))
    return known[group]


def _doubts(
    unit: NDArray[np.float32],
    group: Ints,
    templates: NDArray[np.float32],
    lengths: Floats,
    weights: Floats,
) -> Floats:
    """Return how many strangers would be as much like the others of each face's group, ``(n,)``."""
    sizes = np.bincount(group)
    faces = np.flatnonzero(sizes[group] > 1)
    doubts, own = np.full(len(unit), np.nan), group[faces]
    # On the scale of the groups, of which a face and the others of its group are none.
    count, size = len(templates), len(faces)
    every = empty((count + 2 * size, unit.shape[1]), np.float32)
    every[:count], every[count : count + size] = templates, unit[faces]
    rest = every[count + size :]
    rest[:] = templates[own] * (lengths * sizes)[own, None].astype(np.float32) - unit[faces]
    rest /= np.maximum(np.nan_to_num(row_norms(rest)), 1e-9)[:, None].astype(np.float32)
    (rows,) = standardise(every, weights=np.append(weights, np.zeros(2 * size)))
    sample = np.random.default_rng(0).permutation(count)[:_SAMPLE]
    scores = np.einsum("nd,nd->n", rows[count : count + size], rows[count + size :])
    tail = BentTail(rows[sample], weights[sample])
    doubts[faces] = np.minimum(np.exp(tail.log_share(scores)) * (weights.sum() - 1), 1)
    return doubts
