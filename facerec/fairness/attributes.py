"""Recorded attributes of subjects, joined with the norms of their images.

Nothing here guesses an attribute. What cannot be used is counted as an `Exclusion`, and subjects
leave this file as running numbers.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import DatasetError
from facerec.base.names import is_missing
from facerec.embedding.extraction import Embeddings
from facerec.fairness.groupings import (
    ALL_GROUPS,
    EVERYBODY,
    MOST_GROUPS,
    OTHERS,
    POOLED,
    UNKNOWN,
    Grouping,
    contradictory,
    form_groupings,
)
from facerec.records.images import text_array
from facerec.records.tables import TextTable

MOST_NUMBERS = 12
"""Different numbers that are taken for groups, such as grades; more of them are measurements."""
LEAST_CV = 1e-4
"""Coefficient of variation of norms below which the embeddings were normalised."""

RECORDED = ("self-reported", "annotated by people", "document", "study")
"""How a person or a document records a group; a ``label_source`` begins with one of them."""

_RECORDED = re.compile(
    r"(self([- ]?(reported|declared|identified))?"
    r"|(annotated|labell?ed|checked) by (people|persons|humans|hand|annotators|curators)"
    r"|annotators?|curators?|documents?|birth dates?|dates? of birth|stud(y|ies)"
    r"|(.*[,;:] )?hand-checked\b.*)\s*([,;:(].*)?",
    re.IGNORECASE,
)
"""The same and other spellings, alone or before a mark and free text."""
_GUESSED = re.compile(
    r"infer|predict|estimat|guess|classif|deriv|automat|neural|network|learn|algorithm|software"
    r"|machine|model|detected|rekogni|fair.?face|face\+\+|deep.?face|insight.?face|genderize|gpt|clip\b"
    r"|\b(ai|api|aws|azure|cnn|dnn|llm|ml|nn|vit)\b",
    re.IGNORECASE,
)
"""What names a program, which guesses, wherever it stands."""

INFERRED = (
    "Nothing says that a person or a document recorded all group labels: some may have been "
    "guessed from images or names, and figures by group may reflect errors of those guesses."
)
"""Banner of an audit with such labels."""
NOT_SAID = "source not said"

NO_VALUE, SEVERAL = "no value", "in several groups"
"""Why images of subjects without a recorded group, or with two, are left out."""

_SAME = {"man": "male", "men": "male", "woman": "female", "women": "female"}
_IMAGE, _SOURCE, _FAMILY = "image_id", "label_source", "family"
_POSITIONS = 10

Kind = Literal["line", "row", "pair"]


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
    """Whether some labels may be, which every page of a report must say."""
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
    kind: Kind = "line"
    """Whether ``positions`` are lines of the attributes, from 1, or rows of embeddings or pairs of
    a list, from 0."""
    positions: tuple[int, ...] = ()
    """The first ten of them."""


@dataclass(frozen=True, eq=False)
class Joined:
    """What is recorded of the images of an embeddings file."""

    norms: NDArray[np.float64]
    """Raw norm of every row, ``(N,)``; NaN where the image was not acquired."""
    subjects: NDArray[np.int64]
    """Running number of the subject, ``(N,)``, in the order of their names; `UNKNOWN` where the
    image takes no part. Whoever has the attributes can undo that; nobody else can."""
    groupings: tuple[Grouping, ...]
    """Attributes in the order asked for, then intersections."""
    exclusions: tuple[Exclusion, ...]
    """What was left out."""
    family: NDArray[np.int64] | None = None
    """Family of each subject, ``(G,)``; None where no families are recorded."""

    @property
    def acquired(self) -> NDArray[np.bool_]:
        """Whether each image takes part and has a direction, ``(N,)``."""
        return (self.subjects != UNKNOWN) & (self.norms > 0)


def read_attributes(
    path: str | Path,
    groups: Sequence[str],
    *,
    subject: str = "subject_id",
    allow_inferred: bool = False,
    called: Mapping[str, str] | None = None,
) -> Attributes:
    """Read a CSV file with a header and one line an image.

    The column ``image_id`` must be there, and ``label_source`` says who recorded the groups. A
    column ``family`` names people who are related or look alike, as twins: error rates then leave
    out one family at a time. With ``subject="image_id"`` every image counts as a subject of its
    own, for sets that do not say who is who.

    Args:
        path: a table that `facerec.records.tables` reads: UTF-8 or UTF-16; commas, semicolons or
            tabs.
        groups: columns of attributes; what `is_missing` is not recorded.
        subject: column of the subject.
        allow_inferred: take labels whose source does not begin as one of `RECORDED`.
        called: columns that the table calls otherwise, as ``{"image_id": "file"}``.

    Raises:
        DatasetError: a column or value is missing, a line is malformed, labels are not recorded, or
            an attribute has more than a hundred values.
    """
    path = Path(path)
    text = TextTable(path, called=called)
    families, source = ([name] if name in text.columns else [] for name in (_FAMILY, _SOURCE))
    wanted = list(dict.fromkeys([_IMAGE, subject, *groups, *source, *families]))
    rows = list(text.rows(wanted))
    if not rows:
        raise DatasetError(f"{path}: there is a header but no line below it; check the file")
    columns = dict(zip(wanted, zip(*(fields for _, fields in rows), strict=True), strict=True))
    images, subjects = (text_array(columns[name], str(path)) for name in (_IMAGE, subject))
    # Of these only an empty field is missing: None and Na are names of people.
    for (line, _), image, who in zip(rows, images, subjects, strict=True):
        if not image or not who:
            raise DatasetError(
                f"{path}, line {line}: {subject if image else _IMAGE} is empty; write it there or "
                "remove the line"
            )
    recorded = {
        name: text_array(["" if is_missing(one) else one for one in columns[name]], str(path))
        for name in (*groups, *families)
    }
    values = {name: recorded[name] for name in groups}
    for name, texts in values.items():
        check_values(path, name, texts)
    sources = Counter(columns.get(_SOURCE, [""] * len(rows)))
    label_sources, inferred = check_sources(path, sources, allow_inferred=allow_inferred)
    return Attributes(
        path=path,
        lines=np.array([line for line, _ in rows]),
        images=images,
        subjects=subjects,
        groups=values,
        label_sources=label_sources,
        inferred=inferred,
        families=recorded[_FAMILY] if families else None,
    )


def check_raw(norms: ArrayLike, source: str = "the embeddings") -> None:
    """Refuse norms of embeddings that were normalised before they were stored.

    Args:
        norms: ``(N,)``; what is zero or not finite is passed over.
        source: for the error.

    Raises:
        DatasetError: their coefficient of variation is below 1e-4.
    """
    values = np.asarray(norms, dtype=np.float64)
    # Zeros stand for images without a face, and their spread would hide that others have none.
    values = values[np.isfinite(values) & (values != 0)]
    if len(values) > 1 and values.std() <= LEAST_CV * (mean := values.mean()):
        raise DatasetError(
            f"{source}: all norms are {mean:.6g} within {LEAST_CV:g} of that, so the embeddings "
            "are already normalised and a norm audit is impossible; store raw embeddings"
        )


def join(
    attributes: Attributes,
    embeddings: Embeddings,
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
        embeddings: N of them, with image ids, each once.
        intersections: tuples of attributes whose combinations are groups too.
        source: names the embeddings in errors.

    Raises:
        DatasetError: normalised embeddings, no image in common, or too many groups.
    """
    ids, norms = embeddings.ids, np.asarray(embeddings.norms, np.float64)
    assert ids is not None  # readers of files see to that
    norms = np.where(np.isin(np.arange(len(ids)), [*embeddings.failures]), np.nan, norms)
    check_raw(norms, source)
    exclusions: list[Exclusion] = []
    lines, rows = _match(attributes, ids, source, exclusions)
    subjects, who = np.full(len(ids), UNKNOWN), attributes.subjects[lines]
    subjects[rows] = np.unique(who, return_inverse=True)[1].reshape(-1)
    labels, places = {}, attributes.lines[lines]
    for name, values in attributes.groups.items():
        # A contradiction anywhere in the file counts, also on lines that were not joined.
        torn = np.isin(who, contradictory(attributes.subjects, values))
        labels[name] = np.full(len(ids), "", values.dtype)
        labels[name][rows] = usable_values(name, values[lines], torn, places, who, exclusions)
    combinations = [*((name,) for name in attributes.groups), *map(tuple, intersections)]
    norms = np.where(np.isfinite(norms), norms, np.nan)
    numbers, groupings = form_groupings(combinations, labels, subjects, norms > 0)
    family = None
    if attributes.families is not None:
        family = _families(attributes.path, attributes.families[lines], subjects[rows])
        family = family[np.unique(subjects[numbers != UNKNOWN])]
    return Joined(norms, numbers, groupings, tuple(exclusions), family)


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
    return np.unique(family, return_inverse=True)[1].reshape(-1)


def check_sources(
    path: Path, sources: Mapping[str, int], *, allow_inferred: bool
) -> tuple[tuple[str, ...], bool]:
    """Return the sources of labels, sorted, and whether one does not begin as one of `RECORDED`.

    Args:
        path: the file.
        sources: where labels come from, empty where that is not said, and for how many lines.
        allow_inferred: whether they may be.

    Raises:
        DatasetError: they may, and that is not allowed.
    """
    inferred = [
        source
        for source in sorted(sources)
        if not _RECORDED.fullmatch(source) or _GUESSED.search(source)
    ]
    if inferred and not allow_inferred:
        count = sum(sources[source] for source in inferred)
        said = f"{_SOURCE} {inferred[0][:60]!r}" if inferred[0] else f"no {_SOURCE}"
        raise DatasetError(
            f"{path}: {count:,} lines do not say that a person or a document recorded their groups "
            f"({said}). If so, begin the column {_SOURCE} with {', '.join(RECORDED[:-1])} or "
            f"{RECORDED[-1]}, as in 'self-reported: enrolment form'; else allow inferred labels "
            "(--allow-inferred-labels), which puts a banner on every page"
        )
    return tuple(source or NOT_SAID for source in sorted(sources)), bool(inferred)


def changing(exclusions: Sequence[Exclusion], groupings: Sequence[Grouping]) -> list[str]:
    """Return a sentence for each attribute that changes within subjects."""
    seen = {one.name for one in groupings if one.names or one.pooled or one.suppressed}
    return [
        f"{gone.attribute}: {'' if gone.attribute in seen else 'all '}"
        f"{gone.subjects or gone.images:,} {'subjects' if gone.subjects else 'mated pairs'} stand "
        "in several groups and are left out; give a person one value, such as the age at enrolment."
        for gone in exclusions
        if SEVERAL in gone.reason
    ]


def alike(values: Iterable[str]) -> list[list[str]]:
    """Return the values that look like one group in several spellings, several each.

    Examples:
        >>> alike(["M", "East Asian", "male", "east-asian", "F", "Black", "<30", ">30"])
        [['East Asian', 'east-asian'], ['male', 'M']]
    """
    found: dict[str, list[str]] = {}
    for value in values:
        read = unicodedata.normalize("NFKC", value).casefold()
        read = re.sub(r"[\s_\-\u2010-\u2015]+", "", read)
        found.setdefault(_SAME.get(read, read), []).append(value)
    for letter in [read for read in found if len(read) == 1 and read.isalpha()]:
        whole = [read for read in found if read.startswith(letter) and read != letter]
        if len(whole) == 1:
            found[whole[0]] += found.pop(letter)
    return [spellings for spellings in found.values() if len(spellings) > 1]


def check_values(path: Path, name: str, values: NDArray[np.str_]) -> None:
    """Refuse a column that cannot be one of groups.

    Raises:
        DatasetError: it has too many values, numbers that were not binned, or one that the audit
            gives itself.
    """
    distinct = pd.Series(np.unique(values[values != ""]), dtype=object)
    decimals = distinct.str.replace(",", ".", regex=False)
    numbers = np.isfinite(pd.to_numeric(decimals, errors="coerce")).sum()
    for count, most, what in (
        (numbers, MOST_NUMBERS, "numbers"),
        (len(distinct), MOST_GROUPS, "values"),
    ):
        if count > most:
            raise DatasetError(
                f"{path}: the column {name} has {count:,} different {what}, more than {most} "
                "cannot be compared as groups; name another column, or write bins there, such as "
                "18-29 and 30-44"
            )
    if taken := {POOLED, ALL_GROUPS, EVERYBODY, OTHERS}.intersection(distinct.str.casefold()):
        raise DatasetError(
            f"{path}: the column {name} has the value {min(taken)!r}, which the audit gives to a "
            "row of its own; rename the group"
        )


def _match(
    attributes: Attributes, ids: NDArray[np.str_], source: str, exclusions: list[Exclusion]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the position among the lines and the row of each common image."""
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
    return kept, at[kept]


def _exclude(
    exclusions: list[Exclusion],
    reason: str,
    positions: NDArray[np.int64],
    subjects: NDArray[Any] | None = None,
    *,
    images: int | None = None,
    attribute: str | None = None,
    kind: Kind = "line",
) -> None:
    """Append what is left out, if it is anything; a position may be there twice."""
    places = np.unique(positions)
    if len(places):
        count = len(places) if images is None else images
        concerned = None if subjects is None else len(np.unique(subjects))
        first = tuple(places[:_POSITIONS].tolist())
        exclusions.append(Exclusion(reason, count, concerned, attribute, kind, first))


def usable_values(
    attribute: str,
    values: NDArray[np.str_],
    torn: NDArray[np.bool_],
    positions: NDArray[np.int64],
    subjects: NDArray[Any] | None,
    exclusions: list[Exclusion],
    kind: Kind = "line",
) -> NDArray[np.str_]:
    """Return the values ``(n,)`` of an attribute, empty where they cannot be used.

    Args:
        attribute: its name.
        values: as recorded, empty where nothing is.
        torn: whether the subject has another value somewhere, ``(n,)``.
        positions: where each value stands, ``(n,)``.
        subjects: who has each, ``(n,)``; None where that is not known.
        exclusions: takes what is left out, once a position.
        kind: of positions.
    """
    who = "mated pair" if subjects is None else "subject"
    empty = (values == "") & ~np.isin(positions, positions[torn])
    for reason, gone in ((f"{who} {SEVERAL}", torn), (NO_VALUE, empty)):
        concerned = None if subjects is None else subjects[gone]
        _exclude(exclusions, reason, positions[gone], concerned, attribute=attribute, kind=kind)
    return np.where(torn, "", values)
