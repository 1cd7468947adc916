"""Recorded attributes of subjects, joined with the norms of their images.

Nothing here guesses an attribute. What cannot be used is counted as an `Exclusion`, cells of few
subjects are pooled or suppressed, and subjects leave this file as running numbers.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from facerec.errors import DatasetError, MetricError
from facerec.names import is_missing, same_names
from facerec.records.images import check_unique, text_array
from facerec.tables import Table

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
MOST_NUMBERS = 12
"""Different numbers that are taken for groups, such as grades; more of them are measurements."""
LEAST_CV = 1e-4
"""Coefficient of variation of norms below which the embeddings were normalised."""

INFERRED = (
    "Some group labels were inferred from images by a model or a person, not recorded; figures by "
    "group may reflect errors of that inference."
)
"""Banner of an audit with such labels."""

NO_VALUE = "no value"
"""Why images of subjects without a recorded group are left out."""

_IMAGE, _SOURCE, _FAMILY = "image_id", "label_source", "family"
_POSITIONS = 10


@dataclass(frozen=True, eq=False)
class Attributes:
    """The lines of an attributes file, as recorded."""

    path: Path
    """Where they were read."""
    lines: NDArray[np.int64]
    """Line of the file, from 1, ``(L,)``."""
    images: NDArray[np.str_]
    """Image id, ``(L,)``; may occur more than once."""
    subjects: NDArray[np.str_]
    """Who is on the image, ``(L,)``."""
    groups: Mapping[str, NDArray[np.str_]]
    """Value of each attribute, ``(L,)``, empty where none is recorded."""
    label_sources: tuple[str, ...]
    """Every value of ``label_source``, sorted."""
    inferred: bool
    """Whether some labels are inferred, which every page of a report must say."""
    families: NDArray[np.str_] | None = None
    """Family of the subject, ``(L,)``, empty where none is recorded; None without that column."""


@dataclass(frozen=True)
class Exclusion:
    """Images that an audit leaves out, counted."""

    reason: str
    """Why, as words."""
    images: int
    """Images, or lines that repeat another."""
    subjects: int | None = None
    """Subjects concerned, where they are known."""
    attribute: str | None = None
    """The attribute for which they are left out; None if for all."""
    kind: Literal["line", "row"] = "line"
    """Whether ``positions`` are lines of the attributes, from 1, or rows of embeddings, from 0."""
    positions: tuple[int, ...] = ()
    """The first ten of them."""


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups of one attribute, or of the intersection of several."""

    attributes: tuple[str, ...]
    """One, or those that intersect."""
    cells: tuple[tuple[str, ...], ...]
    """Values of each group, one an attribute; in order of the values, pooled ones last."""
    codes: NDArray[np.int64]
    """Group of every joined image, ``(n,)``; −1 without a label or in a suppressed cell."""
    pooled: tuple[tuple[str, ...], ...] = ()
    """Cells under ten subjects that make up the group `POOLED`."""
    suppressed: tuple[tuple[str, ...], ...] = ()
    """Cells left out: under ten subjects, or else such a cell would follow from totals."""

    @property
    def name(self) -> str:
        """The attributes, as in ``race × sex``."""
        return " × ".join(self.attributes)

    @property
    def names(self) -> tuple[str, ...]:
        """The groups, as in ``A × female``."""
        return tuple(POOLED if cell[0] == POOLED else " × ".join(cell) for cell in self.cells)


@dataclass(frozen=True, eq=False)
class Joined:
    """Images that have both an embedding (or a failure to acquire one) and attributes."""

    rows: NDArray[np.int64]
    """Row of the embeddings, ascending, ``(n,)``."""
    norms: NDArray[np.float64]
    """Raw norm, ``(n,)``; NaN or 0 where the image was not acquired."""
    subjects: NDArray[np.int64]
    """Running number of the subject, ``(n,)``, in the order of their names. Whoever has the
    attributes can undo that; nobody else can."""
    groupings: tuple[Grouping, ...]
    """Attributes in the order asked for, then intersections."""
    exclusions: tuple[Exclusion, ...]
    """What was left out."""
    label_sources: tuple[str, ...]
    """Where labels come from."""
    banner: str | None
    """What every page must carry, if anything."""
    order: NDArray[np.int64]
    """Rank of each image's id, ``(n,)``: what is drawn of images goes by it and not by the row."""
    family: NDArray[np.int64] | None = None
    """Family of each subject, ``(G,)``; None where no families are recorded."""

    @property
    def acquired(self) -> NDArray[np.bool_]:
        """Whether each image has an embedding, ``(n,)``; one of zeros has no direction."""
        return self.norms > 0


def read_attributes(
    path: str | Path,
    groups: Sequence[str],
    *,
    subject: str = "subject_id",
    allow_inferred: bool = False,
) -> Attributes:
    """Read a CSV file with a header and one line an image.

    The columns ``image_id`` and ``label_source`` must be there. A column ``family`` names people
    who are related or look alike, as twins: error rates then leave out one family at a time. With
    ``subject="image_id"`` every image counts as a subject of its own, for sets that do not say who
    is who.

    Args:
        path: a table that `facerec.tables` reads: UTF-8 or UTF-16; commas, semicolons or tabs.
        groups: columns of attributes; what `is_missing` is not recorded.
        subject: column of the subject.
        allow_inferred: take labels whose source says that they are inferred.

    Raises:
        DatasetError: a column or value is missing, a line is malformed, labels are inferred, or an
            attribute has more than a hundred values.
    """
    path = Path(path)
    if not groups:
        raise DatasetError(f"{path}: no attribute was named; name at least one column of groups")
    text = Table(path)
    if not text.columns:
        raise DatasetError(f"{path}: the file is empty; check that it is the right one")
    families = [_FAMILY] if _FAMILY in text.columns else []
    wanted = list(dict.fromkeys([_IMAGE, subject, *groups, _SOURCE, *families]))
    records = [(line, *fields) for line, fields in text.rows(wanted)]
    if not records:
        raise DatasetError(f"{path}: there is a header but no line below it; check the file")
    table = pd.DataFrame(records, columns=["", *wanted], dtype=object)
    lines = table[""].to_numpy(np.int64)
    for column in (_IMAGE, subject, _SOURCE):
        # Of these only an empty field is missing: None and Na are names of people.
        empty = np.flatnonzero(table[column] == "")
        if len(empty):
            raise DatasetError(
                f"{path}, line {lines[empty[0]]}: {column} is empty ({len(empty):,} such lines); "
                "write it there or remove the line"
            )
    sources = dict(sorted(Counter(table[_SOURCE]).items()))
    inferred = check_sources(path, sources, allow_inferred=allow_inferred)
    return Attributes(
        path=path,
        lines=lines,
        images=_text(path, table[_IMAGE]),
        subjects=_text(path, table[subject]),
        groups={name: _values(path, name, table[name]) for name in dict.fromkeys(groups)},
        label_sources=tuple(sources),
        inferred=inferred,
        families=None
        if not families
        else _text(path, table[_FAMILY].mask(table[_FAMILY].map(is_missing), "")),
    )


def check_raw(norms: ArrayLike, source: str = "the embeddings") -> None:
    """Refuse norms of embeddings that were normalised before they were stored.

    Args:
        norms: ``(N,)``; what is zero or not finite is passed over.
        source: for the error.

    Raises:
        DatasetError: their coefficient of variation is below 1e-4, or there are fewer than two.
    """
    values = np.asarray(norms, dtype=np.float64)
    # Zeros stand for images without a face, and their spread would hide that others have none.
    values = values[np.isfinite(values) & (values != 0)]
    if len(values) < 2:
        raise DatasetError(f"{source}: {len(values)} images have a norm; an audit needs many")
    mean = float(values.mean())
    if float(values.std()) <= LEAST_CV * mean:
        raise DatasetError(
            f"{source}: all norms are {mean:.6g} within {LEAST_CV:g} of that, so the embeddings "
            "are already normalised and a norm audit is impossible; store raw embeddings"
        )


def join(
    attributes: Attributes,
    ids: ArrayLike,
    norms: ArrayLike,
    failures: Collection[int] = (),
    *,
    intersections: Sequence[Sequence[str]] = (),
    source: str = "the embeddings",
) -> Joined:
    """Bring attributes and norms of the same images together.

    Contradictions are never resolved: an image whose lines differ goes, and so does, for the
    attribute in question, a subject with two values. A failure to acquire stays an image of its
    group. The subjects of a group that is too small to be shown leave the whole audit, so that no
    total gives their figures away.

    Args:
        attributes: of images.
        ids: image ids of the embeddings, ``(N,)``, unique.
        norms: raw norms, ``(N,)``; those of failures are not looked at.
        failures: rows that were not acquired.
        intersections: tuples of attributes whose combinations are groups too.
        source: names the embeddings in errors.

    Raises:
        DatasetError: ids that repeat, normalised embeddings, no image in common, or too many
            groups.
        MetricError: arrays that do not fit together.
    """
    names, values = same_names(np.asarray(ids).astype(np.str_)), np.asarray(norms, np.float64)
    if names.shape != values.shape:
        raise MetricError(f"{source}: {names.size} ids and {values.size} norms; give one an image")
    check_unique(names, source)
    failed = np.zeros(len(names), dtype=bool)
    failed[list(failures)] = True
    check_raw(values[~failed], source)
    exclusions: list[Exclusion] = []
    chosen, rows = _match(attributes, names, source, exclusions)
    broken = ~np.isfinite(values[rows]) & ~failed[rows]
    _exclude(exclusions, "norm is not finite", rows[broken], kind="row")
    chosen, rows = chosen[~broken], rows[~broken]
    if not len(rows):
        raise DatasetError(f"{source}: no image is left to audit after exclusions")
    subjects = np.unique(attributes.subjects[chosen], return_inverse=True)[1].astype(np.int64)
    known = np.where(failed[rows], np.nan, values[rows])
    family = None
    if attributes.families is not None:
        family = _families(attributes.path, attributes.families[chosen], subjects)
    labels = {
        name: _labels(attributes, name, chosen, subjects, exclusions) for name in attributes.groups
    }
    combinations: list[tuple[str, ...]] = [(name,) for name in attributes.groups]
    combinations += [tuple(combination) for combination in intersections]
    everyone = subjects
    left, subjects, groupings = form_groupings(combinations, labels, subjects, known > 0)
    if family is not None:
        family = family[np.unique(everyone[left])]
    return Joined(
        rows=rows[left],
        norms=known[left],
        subjects=subjects,
        groupings=groupings,
        exclusions=tuple(exclusions),
        label_sources=attributes.label_sources,
        banner=INFERRED if attributes.inferred else None,
        order=np.unique(names[rows[left]], return_inverse=True)[1].astype(np.int64),
        family=family,
    )


def _families(
    path: Path, names: NDArray[np.str_], subjects: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return a number for the family of each subject, ``(G,)``; its own where none is recorded."""
    table = pd.DataFrame({"subject": subjects, "family": names})
    named = table[table.family != ""].drop_duplicates()
    twice = named.subject[named.subject.duplicated()]
    if len(twice):
        both = sorted(named.family[named.subject == twice.iloc[0]])
        raise DatasetError(
            f"{path}: one subject has the families {both[0]!r} and {both[1]!r}; write one of them"
        )
    size = int(subjects.max()) + 1
    family = np.arange(size)
    family[named.subject] = size + named.family.factorize()[0]
    return np.unique(family, return_inverse=True)[1].astype(np.int64)


def form_groupings(
    combinations: Sequence[tuple[str, ...]],
    labels: Mapping[str, NDArray[np.str_]],
    subjects: NDArray[np.int64],
    acquired: NDArray[np.bool_],
) -> tuple[NDArray[np.bool_], NDArray[np.int64], tuple[Grouping, ...]]:
    """Make groups of images, small ones pooled, suppressed or set apart.

    Args:
        combinations: attributes, alone or intersecting.
        labels: value of each attribute, ``(n,)``, empty where it cannot be used.
        subjects: number of the subject, ``(n,)``; has one value of an attribute at most.
        acquired: whether each image is in the figures, ``(n,)``.

    Returns:
        Which images stay, ``(n,)``, and running numbers of subjects and the groupings of those.

    Raises:
        DatasetError: too many groups.
    """
    left, apart = _set_apart(labels, subjects, acquired)
    subjects = np.unique(subjects[left], return_inverse=True)[1].astype(np.int64)
    acquired = acquired[left]
    raw: list[tuple[NDArray[np.int64], list[tuple[str, ...]]]] = []
    members = np.full((int(subjects.max()) + 1, len(combinations)), -1, dtype=np.int64)
    for column, names in enumerate(combinations):
        columns = [labels[name][left] for name in names]
        labelled = np.all([values != "" for values in columns], axis=0)
        codes = np.full(len(labelled), -1, dtype=np.int64)
        table = pd.MultiIndex.from_arrays([values[labelled] for values in columns])
        codes[labelled], found = table.factorize(sort=True)
        raw.append((codes, list(map(tuple, found))))
        there = acquired & labelled
        members[subjects[there], column] = codes[there]
    seen = np.isin(np.arange(len(members)), subjects[acquired])
    states = protect(members[seen], [len(cells) for _, cells in raw])
    groupings = []
    for names, (codes, cells), state in zip(combinations, raw, states, strict=True):
        of = {fate: np.flatnonzero(state == fate).tolist() for fate in (SHOWN, IN_POOL, HIDDEN)}
        visible = [cells[i] for i in of[SHOWN]]
        # −1, no cell, takes the last entry, which stays −1.
        number = np.full(len(cells) + 1, -1, dtype=np.int64)
        number[of[SHOWN]], number[of[IN_POOL]] = np.arange(len(visible)), len(visible)
        if of[IN_POOL]:
            visible.append((POOLED,) * len(names))
        if len(visible) > MOST_GROUPS:
            raise DatasetError(
                f"the intersection of {', '.join(names)} has {len(visible):,} groups, more than "
                f"{MOST_GROUPS} cannot be compared; intersect fewer attributes"
            )
        gone = [(value,) for value in (apart[names[0]] if len(names) == 1 else ())]
        pooled, hidden = ([cells[i] for i in of[fate]] for fate in (IN_POOL, HIDDEN))
        groupings.append(
            Grouping(names, tuple(visible), number[codes], tuple(pooled), (*hidden, *gone))
        )
    return left, subjects, tuple(groupings)


def contradictory(subjects: NDArray[Any], values: NDArray[np.str_]) -> NDArray[Any]:
    """Return the subjects ``(n,)`` with two values ``(n,)``; an empty one does not count."""
    recorded = pd.DataFrame({"subject": subjects, "value": values})[values != ""]
    distinct = recorded.drop_duplicates()["subject"]
    return distinct[distinct.duplicated()].to_numpy().astype(subjects.dtype)


def check_sources(path: Path, sources: Mapping[str, int], *, allow_inferred: bool) -> bool:
    """Return whether labels are inferred.

    Args:
        path: the file.
        sources: where labels come from, and for how many lines.
        allow_inferred: whether they may be.

    Raises:
        DatasetError: they are, and that is not allowed.
    """
    inferred = [source for source in sources if re.search(r"\binferred\b", source, re.IGNORECASE)]
    if inferred and not allow_inferred:
        count = sum(sources[source] for source in inferred)
        raise DatasetError(
            f"{path}: {count:,} lines have inferred labels (label_source {inferred[0]!r}), on "
            "which no statement about people should rest; use recorded labels, or allow inferred "
            "ones (--allow-inferred-labels), which puts a banner on every page"
        )
    return bool(inferred)


def check_values(path: Path, name: str, values: NDArray[np.str_]) -> None:
    """Refuse a column that cannot be one of groups.

    Raises:
        DatasetError: it is empty, has too many values, numbers that were not binned, values that
            read alike, or one that the audit gives itself.
    """
    distinct = np.unique(values[values != ""])
    if not len(distinct):
        raise DatasetError(f"{path}: the column {name} is empty; name one that holds groups")
    if len(distinct) > MOST_GROUPS:
        raise DatasetError(
            f"{path}: the column {name} has {len(distinct):,} different values, more than "
            f"{MOST_GROUPS} groups cannot be compared; name another column or join values to bins"
        )
    numbers = sum(map(_is_number, distinct.tolist()))
    if numbers > MOST_NUMBERS:
        raise DatasetError(
            f"{path}: the column {name} has {numbers:,} different numbers, which are no groups; "
            f"write bins there, such as 18-29 and 30-44"
        )
    written: dict[str, str] = {}
    for value in distinct.tolist():
        folded = unicodedata.normalize("NFKC", value).casefold()
        if folded in (POOLED, ALL_GROUPS, EVERYBODY, OTHERS):
            raise DatasetError(
                f"{path}: the column {name} has the value {value!r}, which the audit gives to a "
                "row of its own; rename the group"
            )
        if folded in written:
            raise DatasetError(
                f"{path}: the column {name} has the values {written[folded]!r} and {value!r}, "
                "which differ in capitals or in how letters are encoded; write one group in one "
                "way"
            )
        written[folded] = value


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text.replace(",", ".")))
    except ValueError:
        return False


def _text(path: Path, column: pd.Series) -> NDArray[np.str_]:
    return text_array(column.to_list(), f"{path}, column {column.name}")


def _values(path: Path, name: str, column: pd.Series) -> NDArray[np.str_]:
    values = _text(path, column.mask(column.map(is_missing), ""))
    check_values(path, name, values)
    return values


def _match(
    attributes: Attributes, ids: NDArray[np.str_], source: str, exclusions: list[Exclusion]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the position among the lines and the row of each common image, by row."""
    lines, images = attributes.lines, attributes.images
    columns = images, attributes.subjects, *attributes.groups.values()
    table = pd.DataFrame(dict(enumerate(columns)))
    repeated = table.duplicated().to_numpy()
    differs = np.zeros(len(lines), bool)
    differs[~repeated] = table.loc[~repeated, 0].duplicated(keep=False)
    at = pd.Index(ids).get_indexer(pd.Index(images)).astype(np.int64)
    alone = ~repeated & ~differs & (at < 0)
    unknown = np.flatnonzero(~np.isin(np.arange(len(ids)), at))
    _exclude(exclusions, "line repeats another one", lines[repeated])
    _exclude(
        exclusions,
        "lines of one image contradict each other",
        lines[differs],
        attributes.subjects[differs],
        images=len(np.unique(images[differs])),
    )
    _exclude(exclusions, "embedding without attributes", unknown, kind="row")
    _exclude(exclusions, "attributes without embedding", lines[alone], attributes.subjects[alone])
    kept = np.flatnonzero(~repeated & ~differs & (at >= 0))
    if not len(kept):
        raise DatasetError(
            f"{attributes.path}: none of its {len(images):,} images (as {str(images[0])[:60]!r}) "
            f"can be joined with the {len(ids):,} of {source} (as {str(ids[0])[:60]!r}); ids must "
            "be equal to the letter, with folder and suffix"
        )
    kept = kept[np.argsort(at[kept], kind="stable")]
    return kept, at[kept]


def _exclude(
    exclusions: list[Exclusion],
    reason: str,
    positions: NDArray[np.int64],
    subjects: NDArray[Any] | None = None,
    *,
    images: int | None = None,
    attribute: str | None = None,
    kind: Literal["line", "row"] = "line",
) -> None:
    """Append what is left out, if it is anything."""
    if len(positions):
        count = len(positions) if images is None else images
        concerned = None if subjects is None else len(np.unique(subjects))
        first = tuple(np.sort(positions)[:_POSITIONS].tolist())
        exclusions.append(Exclusion(reason, count, concerned, attribute, kind, first))


def _labels(
    attributes: Attributes,
    name: str,
    chosen: NDArray[np.int64],
    subjects: NDArray[np.int64],
    exclusions: list[Exclusion],
) -> NDArray[np.str_]:
    """Return the value of an attribute for each joined image, empty where it cannot be used."""
    values = attributes.groups[name]
    # A contradiction anywhere in the file counts, also on lines that were not joined.
    conflict = np.isin(attributes.subjects[chosen], contradictory(attributes.subjects, values))
    empty = (values[chosen] == "") & ~conflict
    for reason, gone in (("subject in several groups", conflict), (NO_VALUE, empty)):
        lines = attributes.lines[chosen[gone]]
        _exclude(exclusions, reason, lines, subjects[gone], attribute=name)
    return np.where(conflict, "", values[chosen])


def _set_apart(
    labels: Mapping[str, NDArray[np.str_]], subjects: NDArray[np.int64], acquired: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], dict[str, list[str]]]:
    """Find the images that stay, and the values of each attribute whose subjects do not.

    These are groups under ten subjects that no pool hides, beside others that are shown. Another
    group may become too small without their subjects, so this goes on until none does.
    """
    left = np.ones(len(subjects), dtype=bool)
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
    inside = [
        (atoms[:, k, None] == np.arange(number)).T.astype(np.float64)
        for k, number in enumerate(cells)
    ]
    states, small = [], []
    for matrix in inside:
        sizes = matrix @ counts
        low = sizes < SMALLEST_CELL
        states.append(np.where(low, IN_POOL if _can_pool(sizes[low]) else HIDDEN, SHOWN))
        small.append(matrix[low & (sizes > 0)])
    secret = np.concatenate(small)
    grouping_of_secret = np.repeat(np.arange(len(small)), [len(cells) for cells in small])
    while len(secret):
        shown: list[tuple[int, NDArray[np.bool_]]] = []
        for k, state in enumerate(states):
            shown += [(k, np.arange(len(state)) == cell) for cell in np.flatnonzero(state == SHOWN)]
            if (state == IN_POOL).any():
                shown.append((k, state == IN_POOL))
        if not shown:
            break
        sums = np.array(
            [np.ones(len(atoms)), *(inside[k][which].sum(axis=0) for k, which in shown)]
        )
        weights = np.linalg.lstsq(sums.T, secret.T, rcond=None)[0]
        revealed = np.flatnonzero(np.abs(weights.T @ sums - secret).max(axis=1) < 1e-6)
        used = [np.flatnonzero(np.abs(weights[1:, i]) > 1e-6) for i in revealed]
        choices = [
            (shown[j][0] != grouping_of_secret[i], sums[1 + j] @ counts, j)
            for i, combination in zip(revealed, used, strict=True)
            for j in combination.tolist()
        ]
        if not choices:
            break
        k, which = shown[min(choices)[2]]
        states[k][which] = HIDDEN
    return states
