"""Groups of subjects, and the rule that hides small ones.

Cells of few subjects are pooled, suppressed or set apart, so that no figure of theirs is shown and
none can be computed from what is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.base.errors import DatasetError

UNKNOWN = -1
"""Code of an image whose subject or group is not known."""
POOLED = "other (pooled)"
"""Name of the group that small groups are pooled into."""
ALL_GROUPS = "all groups"
"""Name of the row of all subjects with a group."""
EVERYBODY = "everybody"
"""Name of the row of all subjects, with or without a recorded group, and of their threshold."""
OTHERS = "other people"
"""Name of the threshold that was set on other data."""
SMALLEST_CELL = 10
"""Subjects from which on a cell is shown."""
MOST_GROUPS = 100
"""Groups of one attribute or intersection."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of one attribute, or of the intersection of several."""

    attributes: tuple[str, ...]
    """One, or those that intersect."""
    names: tuple[str, ...]
    """The groups, as in ``A × female``; in order of the values, pooled ones last."""
    codes: NDArray[np.int64]
    """Group of every image, ``(N,)``; `UNKNOWN` without a label or in a suppressed cell."""
    pooled: tuple[str, ...] = ()
    """Cells under ten subjects that make up the group `POOLED`."""
    suppressed: tuple[str, ...] = ()
    """Cells left out: under ten subjects, or else such a cell would follow from totals."""

    @property
    def name(self) -> str:
        """The attributes, as in ``race × sex``."""
        return " × ".join(self.attributes)


def form_groupings(
    combinations: Sequence[tuple[str, ...]],
    labels: Mapping[str, NDArray[np.str_]],
    subjects: NDArray[np.int64],
    acquired: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], tuple[Grouping, ...]]:
    """Make groups of images, small ones pooled, suppressed or set apart.

    Args:
        combinations: attributes, alone or intersecting.
        labels: value of each attribute, ``(N,)``, empty where it cannot be used.
        subjects: number of the subject, ``(N,)``, `UNKNOWN` where the image takes no part; has one
            value of an attribute at most.
        acquired: whether each image is in the figures, ``(N,)``.

    Returns:
        Running numbers of subjects, ``(N,)``, `UNKNOWN` for those who leave; and the groupings.

    Raises:
        DatasetError: too many groups.
    """
    left, apart = _set_apart(labels, subjects, acquired)
    numbers = np.full(len(subjects), UNKNOWN)
    numbers[left] = np.unique(subjects[left], return_inverse=True)[1].reshape(-1)
    seen = left & acquired
    raw: list[tuple[NDArray[np.int64], list[str]]] = []
    members = np.full((int(numbers.max()) + 1, len(combinations)), UNKNOWN)
    for column, names in enumerate(combinations):
        labelled = left & np.all([labels[name] != "" for name in names], axis=0)
        codes = np.full(len(left), UNKNOWN)
        table = pd.MultiIndex.from_arrays([labels[name][labelled] for name in names])
        codes[labelled], found = table.factorize(sort=True)
        raw.append((codes, list(map(" × ".join, found))))
        members[numbers[seen & labelled], column] = codes[seen & labelled]
    states = protect(members[np.unique(numbers[seen])], [len(cells) for _, cells in raw])
    groupings = []
    for names, (codes, cells), state in zip(combinations, raw, states, strict=True):
        visible, pooled, hidden = (
            [cells[i] for i in np.flatnonzero(state == fate)] for fate in (SHOWN, IN_POOL, HIDDEN)
        )
        # −1, no cell, takes the last entry, which stays −1.
        number = np.full(len(cells) + 1, UNKNOWN)
        number[:-1][state == SHOWN] = np.arange(len(visible))
        number[:-1][state == IN_POOL] = len(visible)
        if pooled:
            visible.append(POOLED)
        if len(visible) > MOST_GROUPS:
            raise DatasetError(
                f"the intersection of {', '.join(names)} has {len(visible):,} groups, more than "
                f"{MOST_GROUPS} cannot be compared; intersect fewer attributes"
            )
        gone = apart[names[0]] if len(names) == 1 else ()
        left_out = (*hidden, *gone)
        groupings.append(Grouping(names, tuple(visible), number[codes], tuple(pooled), left_out))
    return numbers, tuple(groupings)


def members(
    names: Sequence[str], codes: NDArray[np.int64], whole: str = ALL_GROUPS
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each group with the entries of ``codes`` that are of it, at last all or `EVERYBODY`."""
    for code, name in enumerate(names):
        yield name, codes == code
    yield whole, (codes >= 0) | (whole == EVERYBODY)


def contradictory(subjects: NDArray[Any], values: NDArray[np.str_]) -> NDArray[Any]:
    """Return the subjects ``(n,)`` with two values ``(n,)``; an empty one does not count."""
    recorded = pd.DataFrame({"subject": subjects, "value": values})[values != ""]
    distinct = recorded.drop_duplicates()["subject"]
    return distinct[distinct.duplicated()].to_numpy().astype(subjects.dtype)


def _set_apart(
    labels: Mapping[str, NDArray[np.str_]], subjects: NDArray[np.int64], acquired: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], dict[str, list[str]]]:
    """Find the images that stay, and the values of each attribute whose subjects do not.

    These are groups under ten subjects that no pool hides, beside others that are shown. Another
    group may become too small without their subjects, so this goes on until none does.
    """
    left = subjects != UNKNOWN
    apart: dict[str, list[str]] = {name: [] for name in labels}
    grown = True
    while grown:
        grown = False
        for name, values in labels.items():
            used = left & acquired & (values != "")
            pairs = pd.DataFrame({"subject": subjects[used], "value": values[used]})
            sizes = pairs.drop_duplicates()["value"].value_counts()
            small = sizes[sizes < SMALLEST_CELL]
            if _can_pool(small.to_numpy()) or small.size in (0, sizes.size):
                continue
            apart[name] += sorted(small.index)
            left &= ~np.isin(subjects, subjects[left & np.isin(values, small.index.to_list())])
            grown = True
    return left, apart


def _can_pool(sizes: NDArray[np.integer]) -> bool:
    """Whether small cells, by their numbers of subjects, can be shown as one group."""
    return int(np.count_nonzero(sizes)) >= 2 and int(sizes.sum()) >= SMALLEST_CELL


SHOWN, IN_POOL, HIDDEN = 0, 1, 2
"""What becomes of a cell."""


def protect(members: NDArray[np.int64], cells: Sequence[int]) -> list[NDArray[np.int64]]:
    """Decide which cells are shown, pooled and suppressed, so that no small one can be computed.

    Cells under ten subjects are pooled where two or more of a grouping make ten subjects, and
    suppressed elsewhere. Every shown count is a sum over the subjects that share all their groups;
    a small cell is revealed if its own sum is a linear combination of those shown and the total.
    As long as one is, the smallest shown cell in the combination is suppressed too (secondary
    suppression; Hundepool et al., Statistical Disclosure Control, Wiley 2012, chapter 4).

    Args:
        members: cell of every subject in every grouping, ``(G, K)``, −1 for none.
        cells: number of cells of every grouping, ``(K,)``.

    Returns:
        `SHOWN`, `IN_POOL` or `HIDDEN` for the cells of each grouping.
    """
    atoms, counts = np.unique(members, axis=0, return_counts=True)
    owner = np.repeat(np.arange(len(cells)), cells)
    number = np.concatenate([np.arange(size) for size in cells])
    inside = (atoms[:, owner] == number).T.astype(np.float64)
    sizes, state = inside @ counts, np.full(len(owner), SHOWN)
    low = sizes < SMALLEST_CELL
    for k in range(len(cells)):
        own = low & (owner == k)
        state[own] = IN_POOL if _can_pool(sizes[own]) else HIDDEN
    small = np.flatnonzero(low & (sizes > 0))
    secret = inside[small]
    while len(secret):
        shown: list[NDArray[np.int64]] = []
        for k in range(len(cells)):
            here = owner == k
            alone, pool = (np.flatnonzero(here & (state == fate)) for fate in (SHOWN, IN_POOL))
            shown += [*alone[:, None], *([pool] if len(pool) else [])]
        sums = np.array([np.ones(len(atoms)), *(inside[part].sum(axis=0) for part in shown)])
        weights = np.linalg.lstsq(sums.T, secret.T, rcond=None)[0]
        revealed = np.flatnonzero(np.abs(weights.T @ sums - secret).max(axis=1) < 1e-6)
        choices = [
            (owner[shown[j][0]] != owner[small[i]], sums[1 + j] @ counts, j)
            for i in revealed
            for j in np.flatnonzero(np.abs(weights[1:, i]) > 1e-6).tolist()
        ]
        if not choices:
            break
        state[shown[min(choices)[2]]] = HIDDEN
    return np.split(state, np.cumsum(cells)[:-1])
