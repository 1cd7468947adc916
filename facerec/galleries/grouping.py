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

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from facerec.base.devices import choose_device
from facerec.base.errors import MetricError
from facerec.base.progress import Progress
from facerec.cosines.searches import best
from facerec.cosines.unit_rows import UnitRows, row_norms, unit_rows
from facerec.galleries.impostor_tail import SAMPLE, BentTail, standardise
from facerec.galleries.label_faults import left_out
from facerec.galleries.members import Floats, Ints, Members, directions

FEWEST = 20
"""Faces that say how alike strangers are."""

FALSE_SHARE = 5e-4
"""Pairs of strangers that may be expected at the least score of a round, a person."""

_SMALL = 1000
"""Faces of a pile that may have half as many, as each one weighs more."""

_OTHERS = 16
"""Best others of a group that are looked at."""

_NEAR = -2.0
"""Logarithm of the strangers a group may expect at a score that is too high for one."""

_FIRST = 512
"""Faces that first tell how many are like each."""

_STRANGERS = 0.3
"""Cosine that less than half of all pairs reach, unless nearly all are of one person."""

_HEAVIER = 3.0
"""Merges of two people on real photos for one that the tail tells: relatives, faces from the side,
and others who look alike for a reason that few pairs share."""

TAIL_OFF = 5.0
"""Factor by which the stated number is wrong on real photos, at the most."""

_LARGE = 3
"""Faces from which on a group says how alike they are among themselves."""

_ACROSS = 0.5
"""Share of that which the faces of two such groups need."""

_TOGETHER = "must", "digest", "group"
_APART = "photo", "cannot"

_OLD = "group", "old"


@dataclass(frozen=True, eq=False)
class Grouping:
    """Proposals of who is one person.

    Attributes:
        groups: number of each face's, ``(n,)``: those of old groups, and then the next, the largest
            first; each face that is alone is one.
        doubt: how many strangers of each face would be expected to be as much like the others of
            its group, ``(n,)``; NaN for a face that is alone.
        wrong: how many merges of two people are expected.
        merges: two old groups each that look like one person, and how many pairs of strangers are
            expected to look as much alike; the surest first.
    """

    groups: Ints
    doubt: Floats
    wrong: float
    merges: list[tuple[int, int, float]]


def group_faces(
    vectors: NDArray[np.floating],
    table: pd.DataFrame,
    *,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Grouping:
    """Group faces by who they probably are.

    Args:
        vectors: raw embeddings, ``(n, D)``, each with a direction.
        table: a row of each face by its name, of texts, empty where there is none. Faces with the
            same text in ``must`` or ``digest`` are one person, and those with the same in ``photo``
            or ``cannot`` different people. ``group`` is the number of an old group, which takes new
            faces and joins no other old one. Columns may lack.
        device: where faces are compared.
        progress: see `facerec.base.progress.Progress`.

    Raises:
        MetricError: too few faces, hardly any of different people, or links that contradict.
    """
    count, names = len(vectors), [*_TOGETHER, *_APART]
    if count < FEWEST:
        raise MetricError(
            f"{count} faces tell too little of how alike strangers are; give {FEWEST} or more"
        )
    table = table.reindex(columns=names, fill_value="")
    ends = np.concatenate([_first_alike(table[name]) for name in _TOGETHER])
    links = coo_array((np.ones(len(ends)), (np.tile(np.arange(count), 3), ends)))
    group = connected_components(links, directed=False)[1].astype(np.int64)
    held = _held(table, group)
    unit = unit_rows(vectors, row_norms(vectors), np.arange(count))
    generator, chosen = np.random.default_rng(0), choose_device(device)
    weights = _first_weights(unit, group, generator.permutation(count)[:_FIRST])
    share_of_people = FALSE_SHARE * count / (count + _SMALL)
    people, chances, new = float(len(held)), 0.0, np.ones(len(held), bool)
    while True:
        members = Members(unit, group, len(held))
        sums = members.sums()
        (rows,) = standardise(directions(sums), weights=weights)
        sample = generator.permutation(len(rows))[: SAMPLE // 2]
        pairs = np.triu(np.outer(weights[sample], weights[sample]), 1)
        tail = BentTail(rows[sample] @ rows[sample].T, pairs)
        side = UnitRows(rows, norms=np.ones(len(rows)), device=chosen)
        own, stage = np.arange(len(rows)), f"comparing {len(rows):,} groups"
        others, scores = best(side, side, _OTHERS, apart=(own, own), stage=stage, progress=progress)
        share = tail.log_share(scores)
        # Where more look alike than the tail tells, as faces from the side do, a score says less.
        near = share <= _NEAR - np.log(people)
        others_there = (1 / (1 + near.sum(axis=1)))[others].sum(axis=1) - 1
        crowd = np.maximum(others_there / (people * np.exp(share[:, -1])), 1)
        expected = crowd[:, None] * crowd[others] * np.exp(share) * people * (people - 1) / 2
        one, place = np.nonzero(expected <= share_of_people * people)
        order = np.lexsort((place, expected[one, place]))
        order = order[_hold_together(sums, members.images, one, others[one, place])[order]]
        one, place = one[order], place[order]
        into, merges = _join(one, others[one, place], expected[one, place], held)
        if (into == own).all():
            break
        # What was compared before is no new chance of being wrong.
        chances += 1 - (weights[~new].sum() / weights.sum()) ** 2
        kept, number = np.unique(into, return_inverse=True)
        row, place = np.nonzero(near[kept])
        left = number[others[kept[row], place]]
        left = np.unique((row * len(kept) + left)[row != left]) // len(kept)
        weights = 1 / (1 + np.bincount(left, minlength=len(kept)))
        people, new = float(weights.sum()), np.bincount(number) > 1
        group, held = number[group], [held[each] for each in kept.tolist()]
    old = pd.to_numeric(table["group"]).fillna(0).to_numpy(np.int64)
    numbers, sizes = np.zeros(len(held), np.int64), np.bincount(group)
    np.maximum.at(numbers, group, old)
    fresh = np.flatnonzero(numbers == 0)
    fresh = fresh[np.argsort(-sizes[fresh], kind="stable")]
    numbers[fresh] = numbers.max() + 1 + np.arange(len(fresh))
    return Grouping(
        numbers[group],
        _doubts(members, weights, generator),
        _HEAVIER * chances * share_of_people * people,
        [(int(numbers[one]), int(numbers[two]), each) for (one, two), each in merges.items()],
    )


def _first_alike(values: pd.Series) -> Ints:
    """Return the first place of each text, ``(n,)``; of an empty one its own."""
    place = pd.Series(np.arange(len(values)))
    first = place.groupby(values.to_numpy()).transform("min")
    return first.where(values.to_numpy() != "", place).to_numpy(np.int64)


def _held(table: pd.DataFrame, group: Ints) -> list[set[tuple[str, str]]]:
    """Return of each group what another one that it joins may not have, too.

    Raises:
        MetricError: two faces of a group may not be together.
    """
    held: list[set[tuple[str, str]]] = [set() for _ in range(group.max() + 1)]
    olds: dict[int, str] = {}
    places = zip(group.tolist(), table.itertuples(), strict=True)
    for number, (name, *_, old, photo, cannot) in places:
        own = {each for each in (("photo", photo), ("cannot", cannot)) if each[1]}
        both = {what for what, _ in held[number] & own}
        if old and olds.setdefault(number, old) != old:
            both.add("group")
        if both:
            why = f"its {min(both)} says that both are different people; change one of these"
            raise MetricError(f"{name!r} is by group, must or copies one with a face, and {why}")
        held[number] |= own
    for number in olds:
        held[number].add(_OLD)
    return held


def _first_weights(unit: NDArray[np.float32], group: Ints, sample: Ints) -> Floats:
    """Return roughly one over how many faces are like those of each group, ``(G,)``.

    Raises:
        MetricError: half of all pairs of faces look like one person's.
    """
    pairs = (unit[sample] @ unit[sample].T)[np.triu_indices(len(sample), 1)]
    if (middle := np.median(pairs)) >= _STRANGERS:
        raise MetricError(
            f"half of all pairs of faces have a cosine of {middle:.2f} or more, so nearly all are "
            "of one person, or the model tells nobody apart; add other people, or check the model"
        )
    alike = np.maximum(unit[np.unique(group, return_index=True)[1]] @ unit[sample].T, 0) ** 4
    return np.asarray(1 / np.maximum(alike.mean(axis=1) * len(unit), 1), np.float64)


def _hold_together(
    sums: NDArray[np.float32], sizes: Ints, one: Ints, other: Ints
) -> NDArray[np.bool_]:
    """Return which pairs of groups are as much alike as the faces within both ask for, ``(m,)``."""
    within = (np.einsum("gd,gd->g", sums, sums) / sizes - 1) / np.maximum(sizes - 1, 1)
    across = np.einsum("md,md->m", sums[one], sums[other]) / (sizes[one] * sizes[other])
    few = np.minimum(sizes[one], sizes[other]) < _LARGE
    return np.asarray(few | (across >= _ACROSS * np.minimum(within[one], within[other])))


def _join(
    one: Ints, other: Ints, expected: Floats, held: list[set[tuple[str, str]]]
) -> tuple[Ints, dict[tuple[int, int], float]]:
    """Let groups join others, each the first that may have it; ``held`` changes.

    Returns:
        What each group joins, itself if none, ``(G,)``, and two old groups each that would join if
        they might → pairs of strangers expected.
    """
    into, takes, done = np.arange(len(held)), set[int](), set[int]()
    apart: dict[tuple[int, int], float] = {}
    for left, right, each in zip(one.tolist(), other.tolist(), expected.tolist(), strict=True):
        both = held[left] & held[right]
        if left in done:
            continue
        if both == {_OLD}:
            apart.setdefault((min(left, right), max(left, right)), each)
        if both:
            continue
        done.add(left)
        if left not in takes and into[right] == right:
            into[left] = right
            takes.add(right)
            held[right] |= held[left]
    return into, apart


def _doubts(members: Members, weights: Floats, generator: np.random.Generator) -> Floats:
    """Return how many strangers would be as much like the others of each face's group, ``(n,)``."""
    count = len(members.label)
    sums = members.sums()
    templates = directions(sums)
    cosines, lengths = left_out(members, sums, np.ones(count), np.arange(count))
    face, group = (generator.permutation(size)[:SAMPLE] for size in (count, len(templates)))
    own = (weights / members.images)[members.label[face]]
    counted = np.outer(own, weights[group]) * (members.label[face][:, None] != group)
    tail = BentTail(members.vectors[face] @ templates[group].T, counted)
    doubts = np.exp(tail.log_share(cosines)) * weights.sum()
    return np.where(lengths > 1e-6, doubts, np.nan)
