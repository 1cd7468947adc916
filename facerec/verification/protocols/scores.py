"""Scores that others computed: CSV with labels or subjects, bob's text files, ``±1 score``."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.names import is_missing, same_name
from facerec.records.tables import TextTable
from facerec.statistics.rates import turned
from facerec.verification.bench import Pairs
from facerec.verification.protocols.lists import LABELS, file_source, read_lines

REFERENCE, PROBE = "bio_ref_subject_id", "probe_subject_id"

TEXT_COLUMNS = {
    2: ("label", "score"),
    4: (REFERENCE, PROBE, "probe_key", "score"),
    5: (REFERENCE, "bio_ref_key", PROBE, "probe_key", "score"),
}
"""Columns of files without a header by their number: ±1, bob's four and bob's five."""

SOURCE = "label_source"

SIDES = (("bio_ref_{}", "probe_{}"), ("bio_ref_{}", "bio_probe_{}"), ("{}_1", "{}_2"))
"""Names of two columns that say something of the two sides of a pair: bob's, then plain ones."""


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Similarity scores of labelled pairs."""

    scores: NDArray[np.float64]
    """Similarity of each pair, ``(n,)``; NaN is a failure to acquire. Distances with their sign
    changed if they were read as such."""
    issame: NDArray[np.bool_]
    """Whether both sides are one subject, ``(n,)``."""
    folds: NDArray[np.int64] | None = None
    """Fold 0, 1, … of each pair, ``(n,)``, from a column ``fold``."""
    subjects: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    """Subjects on both sides, ``(n,)`` each, as numbers 0, 1, …; None where unknown."""
    groups: Mapping[str, tuple[NDArray[np.str_], NDArray[np.str_]]] = field(default_factory=dict)
    """Value of each attribute that was asked for on both sides, ``(n,)`` each, empty where none is
    recorded."""
    names: NDArray[np.str_] | None = None
    """Name of each subject by its number; None without subjects. Not for any report."""
    label_sources: Mapping[str, int] = field(default_factory=dict)
    """Where the groups come from, and for how many lines, if a column says so."""
    notes: tuple[str, ...] = ()
    """What a reader must know, one sentence each."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """The file with its SHA-256, the format, and whether it holds distances, as JSON types."""

    def __len__(self) -> int:
        return len(self.scores)

    def pairs(self) -> Pairs:
        """Return labels, folds and subjects; every side of a pair is an item of its own."""
        first = 2 * np.arange(len(self))
        subjects = None
        if self.subjects is not None:
            subjects = np.stack(self.subjects, axis=1).reshape(-1)
        return Pairs(first, first + 1, self.issame, subjects, self.folds)


def read_scores(
    path: str | Path,
    *,
    distances: bool = False,
    groups: Sequence[str] = (),
    subject: str = "subject_id",
    called: Mapping[str, str] | None = None,
) -> ScoredPairs:
    """Read a file of scores, one pair a line; larger means more alike.

    With a header, as `facerec.records.tables` reads it: ``score`` with ``label`` (0 or 1, or a word
    of `LABELS`) or with the subjects of both sides, whose equality is the label; ``fold`` if it is
    there. What is said of both sides has two columns, as in bob's ``bio_ref_subject_id`` and
    ``probe_subject_id`` (or ``bio_probe_subject_id``), or in ``subject_id_1`` and ``subject_id_2``;
    a group may also have one column, for pairs within a group. Without a header, separated by
    blanks or comma: ``label score``, or bob's ``claimed real probe score`` and ``claimed model real
    probe score``. An empty or NaN score is a failure to acquire. A note says so where same pairs
    tend to have the lower scores. Of ``distances`` the sign is changed; attributes in ``groups``,
    such as ``sex``, may miss and be in any case; ``subject`` is the name of columns of subjects,
    ``called`` the columns that the file calls otherwise, as ``{"score": "similarity"}``.

    Raises:
        DatasetError: another form; the sentence names the line.
    """
    path = Path(path)
    first = read_lines(path)[0][1]
    mark = next((mark for mark in ",;\t" if mark in first), None)
    names = [name.strip(' "') for name in first.split(mark)]
    table = None
    # A line of scores ends in a number, or in a word for none.
    if called or _number(names[-1]) is None or "score" in map(str.lower, names):
        table = TextTable(path, called=called)
    columns: Sequence[str] = TEXT_COLUMNS.get(len(_fields(first)), ())
    if table is not None:
        columns = [name.lower() for name in table.columns]
    sides = _sides(columns, same_name(subject.lower()) if table is not None else "subject_id")
    if "score" not in columns or ("label" not in columns and sides is None):
        raise DatasetError(
            f"{path}, line 1: its columns are {', '.join(names)[:200]}, where score is needed, and "
            f"label or {' and '.join(side.format(subject) for side in SIDES[0])}; write such a "
            "header, apart by commas, or say which is which: --columns score=similarity label=same"
        )
    grouped = {name: _sides(columns, same_name(name.lower()), alone=True) for name in groups}
    wanted = {"score", "label", "fold", SOURCE, *(sides or ())}
    wanted.update(*filter(None, grouped.values()))
    lines, texts = _read(path, [name for name in columns if name in wanted], columns, table)

    def refuse(row: int, problem: str) -> DatasetError:
        return DatasetError(f"{path}, line {lines[row]}: {problem}; mend the line")

    def values(name: str, parse: Callable[[str], Any], but: str = "") -> NDArray[Any]:
        """Return what each row of a column means; ``but`` says so of a text that is odd."""
        meanings = {text: parse(text) for text in {*texts[name]}}
        found = [meanings[text] for text in texts[name]]
        if None in meanings.values():
            row = found.index(None)
            raise refuse(row, but.format(texts[name][row][:60]))
        return np.array(found)

    scores = values("score", _number, "the score {!r} is no number").astype(np.float64)
    if distances:
        scores = 0.0 - scores  # no −0 for two equal images
    subjects, people, folds = None, None, None
    if sides is not None:
        named = [values(side, lambda text: text or None, "a subject id is empty") for side in sides]
        people, index = np.unique(np.concatenate(named), return_inverse=True)
        one, other = index.reshape(2, -1).astype(np.int64)
        subjects, issame = (one, other), one == other
    if "label" in columns:
        odd = "{!r} where a label, 0 or 1, belongs"
        labels = values("label", lambda text: LABELS.get(text.lower()), odd).astype(bool)
        if subjects is not None and (labels != issame).any():
            row = int(np.argmax(labels != issame))
            raise refuse(row, "the label contradicts the subject ids")
        issame = labels
    notes = []
    if "fold" in columns:
        numbers = values("fold", _fold, "the fold {!r} is no whole number")
        folds = np.unique(numbers, return_inverse=True)[1].reshape(-1).astype(np.int64)
        if not folds.any():
            folds = None
            notes.append(f"{path.name}: all pairs are in one fold, so there is no accuracy")
    if distances:
        notes.append(
            f"{path.name}: distances were read with their sign changed, so a threshold of −d "
            "accepts distances up to d"
        )
    if said := turned(scores, issame):
        advice = "leave out" if distances else "if they are distances, give"
        notes.append(f"{path.name}: {said}; {advice} --distances")
    return ScoredPairs(
        scores,
        issame,
        folds,
        subjects,
        groups={
            name: (values(both[0], _recorded), values(both[1], _recorded))
            for name, both in grouped.items()
            if both is not None
        },
        names=people,
        label_sources=Counter(sorted(texts.get(SOURCE, ()))) if any(grouped.values()) else {},
        notes=tuple(notes),
        source={**file_source(path, "text" if table is None else "csv"), "distances": distances},
    )


def _read(
    path: Path, wanted: Sequence[str], columns: Sequence[str], table: TextTable | None
) -> tuple[Sequence[int], dict[str, tuple[str, ...]]]:
    """Return the numbers of the lines, and the texts of some columns."""
    if table is not None:
        rows = list(table.rows([table.columns[columns.index(name)] for name in wanted]))
    else:
        wanted, rows = columns, [(line, tuple(_fields(text))) for line, text in read_lines(path)]
        if odd := next((line for line, fields in rows if len(fields) != len(columns)), None):
            raise DatasetError(
                f"{path}, line {odd}: it does not have {len(columns)} fields as the first line "
                "has; mend the line"
            )
    if not rows:
        raise DatasetError(f"{path}: there are no scores in it; check the file")
    lines, fields_of = zip(*rows, strict=True)
    return lines, dict(zip(wanted, zip(*fields_of, strict=True), strict=True))


def _fields(text: str) -> list[str]:
    """Split a line of a file without a header."""
    return re.sub("[,;]", " ", text).split()


def _number(text: str) -> float | None:
    """Return a score, NaN for one that is missing."""
    try:
        # Python reads 1_000 and digits and blanks of other scripts.
        return float(text if text.isascii() and "_" not in text else "?")
    except ValueError:
        return math.nan if is_missing(text) else None


def _fold(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def _recorded(text: str) -> str:
    """Return a group, empty where none is recorded."""
    return "" if is_missing(text) else text


def _sides(columns: Sequence[str], name: str, alone: bool = False) -> tuple[str, str] | None:
    """Return the columns, or if ``alone`` may be the one, that say something of both sides."""
    for first, second in (*SIDES, *[("{}", "{}")] * alone):
        if {first.format(name), second.format(name)} <= {*columns}:
            return first.format(name), second.format(name)
    return None
