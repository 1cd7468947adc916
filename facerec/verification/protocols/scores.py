"""Scores that others computed: CSV with labels or subjects, bob's text files, ``±1 score``."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.names import is_missing, same_name
from facerec.statistics.rates import sort_scores
from facerec.verification.bench import Pairs
from facerec.verification.protocols.lists import LABELS, decode_text, file_source, read_content

REFERENCE, PROBE = "bio_ref_subject_id", "probe_subject_id"

TEXT_COLUMNS = {
    2: ("label", "score"),
    4: (REFERENCE, PROBE, "probe_key", "score"),
    5: (REFERENCE, "bio_ref_key", PROBE, "probe_key", "score"),
}
"""Columns of files without a header by their number: ±1, bob's four and bob's five."""

SURPLUS = "*"
"""A column after the last, so that fields too many are seen."""
SOURCE = "label_source"

SIDES = (("bio_ref_{}", "probe_{}"), ("bio_ref_{}", "bio_probe_{}"), ("{}_1", "{}_2"))
"""Names of two columns that say something of the two sides of a pair: bob's, then plain ones."""


DISTANCES = "minus the distance given in the file"


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

    @property
    def kind(self) -> str:
        """What a score is, in words for a report."""
        return DISTANCES if self.source.get("distances") else "as given in the file"

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
) -> ScoredPairs:
    """Read a file of scores, one pair a line; larger means more alike.

    With a header, separated by comma, semicolon or TAB: ``score`` with ``label`` (0 or 1, or a
    word of `LABELS`) or with the subjects of both sides, whose equality is the label; ``fold`` if
    it is there. What is said of both sides has two columns, as in bob's ``bio_ref_subject_id`` and
    ``probe_subject_id`` (or ``bio_probe_subject_id``), or in ``subject_id_1`` and ``subject_id_2``;
    a group may also have one column, for pairs within a group. Without a header, separated by
    blanks or comma: ``label score``, or bob's ``claimed real probe score`` and ``claimed model real
    probe score``. An empty or NaN score is a failure to acquire. A note says so where same pairs
    tend to have the lower scores. Of ``distances`` the sign is changed; attributes in ``groups``,
    such as ``sex``, may miss and be in any case; ``subject`` is the name of columns of subjects.

    Raises:
        DatasetError: another form; the sentence names the line.
    """
    table = _Table(Path(path), same_name(subject.lower()), groups)
    scores = table.values("score", _number, "the score {!r} is no number").astype(np.float64)
    table.refuse_other_fields(np.isnan(scores))
    if distances:
        scores = 0.0 - scores  # no −0 for two equal images
    subjects, names = None, None
    if table.subjects is not None:
        subjects, names = table.numbered(*table.subjects)
        issame = subjects[0] == subjects[1]
    if "label" in table.columns:
        labels = table.values("label", _label, "{!r} where a label, 0 or 1, belongs").astype(bool)
        if subjects is not None and (wrong := np.flatnonzero(labels != issame)).size:
            table.refuse(wrong[0], "the label contradicts the two subject ids")
        issame = labels
    folds = None
    if "fold" in table.columns:
        numbers = table.values("fold", _fold, "the fold {!r} is no whole number").astype(np.int64)
        if np.unique(numbers).size < 2:
            raise DatasetError(
                f"{path}: all pairs are in fold {numbers[0]}; accuracy needs two folds or more, so "
                "number more of them or take out the column fold"
            )
        folds = np.unique(numbers, return_inverse=True)[1].reshape(-1).astype(np.int64)
    sources: dict[str, int] = {}
    if table.groups and SOURCE in table.columns:
        empty = f"{SOURCE} is empty; write there where the groups come from"
        found, counts = np.unique(
            table.values(SOURCE, lambda text: text or None, empty).astype(np.str_),
            return_counts=True,
        )
        sources = dict(zip(found.tolist(), counts.tolist(), strict=True))
    return ScoredPairs(
        scores,
        issame,
        folds=folds,
        subjects=subjects,
        groups={
            name: (table.values(first, _recorded), table.values(second, _recorded))
            for name, (first, second) in table.groups.items()
        },
        names=names,
        label_sources=sources,
        notes=_notes(Path(path), scores, issame, distances),
        source={**file_source(Path(path), table.format), "distances": distances},
    )


def _notes(
    path: Path, scores: NDArray[np.float64], issame: NDArray[np.bool_], distances: bool
) -> tuple[str, ...]:
    """Say what was done to the scores, and whether they seem to run the other way."""
    notes = []
    advice = "if they are distances (smaller means more alike), give --distances"
    if distances:
        notes.append(
            f"{path.name}: distances were read with their sign changed, so a threshold of −d "
            "accepts distances up to d"
        )
        advice = "leave out --distances if larger means more alike"
    there = ~np.isnan(scores)
    same, different = scores[there & issame], scores[there & ~issame]
    if same.size and different.size and (auc := sort_scores(same, different).auc()) < 0.5:
        notes.append(
            f"{path.name}: different pairs tend to score higher than same pairs (AUC {auc:.4f}, "
            f"below one half); {advice}"
        )
    return tuple(notes)


class _Table:
    """A score file as columns of distinct texts, and what its first line says."""

    def __init__(self, path: Path, subject: str, groups: Sequence[str]) -> None:
        import pandas as pd

        self.path, text = path, decode_text(path, read_content(path)).rstrip("\r\n")
        first = text.partition("\n")[0].strip()
        self._separator = next((mark for mark in ",;\t" if mark in first), "")
        fields = [name.strip().lower() for name in self._split(first)]
        self._header = int("score" in fields)
        self._lines = text.split("\n")[self._header :]
        self.format = "csv" if self._header else "text"
        self.columns = tuple(fields) if self._header else TEXT_COLUMNS.get(len(fields), ())
        if not first or not self._lines:
            raise DatasetError(f"{path}: there are no scores in it; check the file")
        if not self.columns:
            raise DatasetError(
                f"{path}, line 1: {first[:60]!r} is neither a header with the column score nor "
                "two, four or five fields; write a header, such as label,score"
            )
        if len({*self.columns, SURPLUS}) <= len(self.columns):
            raise DatasetError(
                f"{path}, line 1: a column occurs twice or is called {SURPLUS}; rename it"
            )
        self.subjects = _sides(self.columns, subject if self._header else "subject_id")
        if "label" not in self.columns and self.subjects is None:
            raise DatasetError(
                f"{path}, line 1: the columns are {', '.join(fields)[:200]}; beside score there "
                f"must be label, or {' and '.join(side.format(subject) for side in SIDES[0])}"
            )
        self.groups = {
            name: sides
            for name in groups
            for column in [same_name(name.lower())]
            if (sides := _sides(self.columns, column) or _both(self.columns, column))
        }
        try:
            self._frame = pd.read_csv(
                io.StringIO("\n".join(self._lines)),
                sep=self._separator or r"\s+",
                names=[*self.columns, SURPLUS],
                index_col=False,
                dtype="category",
                keep_default_na=False,
                na_filter=False,
                skip_blank_lines=False,
                quoting=csv.QUOTE_MINIMAL if self._separator else csv.QUOTE_NONE,
            )
        except ValueError as problem:
            said = " ".join(str(problem).split())[:200]
            raise DatasetError(
                f"{path}: the scores cannot be read ({said}); check the file"
            ) from problem
        if len(self._frame) != len(self._lines):
            raise DatasetError(
                f"{path}: {len(self._lines):,} lines hold {len(self._frame):,} rows, so a field "
                "has a line end in it; write the file without"
            )

    def refuse(self, row: int, problem: str) -> NoReturn:
        """Refuse a row."""
        line = row + 1 + self._header
        raise DatasetError(f"{self.path}, line {line}: {problem}; mend the line")

    def refuse_other_fields(self, suspects: NDArray[np.bool_]) -> None:
        """Refuse a row with too few fields, of which the score is missing, or with too many."""
        suspects = suspects | (self._frame[SURPLUS] != "").to_numpy()
        for row in np.flatnonzero(suspects).tolist():
            if len(self._split(self._lines[row])) != len(self.columns):
                self.refuse(
                    row,
                    f"{self._lines[row].strip()[:60]!r} does not have {len(self.columns)} fields "
                    "as the first line has",
                )

    def values(self, name: str, parse: Callable[[str], Any], but: str = "") -> NDArray[Any]:
        """Return what each row of a column means, ``(n,)``; ``but`` says so of a text that is odd.

        Raises:
            DatasetError: ``parse`` returns None of a text; the sentence names the line.
        """
        column = self._frame[name]
        texts = [str(text).strip() for text in column.cat.categories]
        meanings, codes = [parse(text) for text in texts], column.cat.codes.to_numpy()
        odd = [code for code, meaning in enumerate(meanings) if meaning is None]
        if odd:
            row = int(np.flatnonzero(np.isin(codes, odd))[0])
            self.refuse(row, but.format(texts[codes[row]][:60]))
        return np.array(meanings)[codes]

    def numbered(
        self, first: str, second: str
    ) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], NDArray[np.str_]]:
        """Number the subjects of both columns together, in the order of their names."""
        empty = "a subject id is empty"
        sides = [
            self.values(side, lambda text: text or None, empty).astype(np.str_)
            for side in (first, second)
        ]
        names, numbers = np.unique(np.concatenate(sides), return_inverse=True)
        one, other = np.split(numbers.reshape(-1).astype(np.int64), 2)
        return (one, other), names

    def _split(self, text: str) -> list[str]:
        """Split a line; a line that cannot be split is one field."""
        if not self._separator:
            return text.split()
        try:
            lines = csv.reader([text.strip(" \r")], delimiter=self._separator, strict=True)
            return next(lines, [])
        except csv.Error:
            return [text]


def _number(text: str) -> float | None:
    """Return a score, NaN for one that is missing."""
    try:
        # Python reads 1_000 and digits and blanks of other scripts.
        return float(text if text.isascii() and "_" not in text else "?")
    except ValueError:
        return math.nan if is_missing(text) else None


def _label(text: str) -> bool | None:
    return LABELS.get(text.lower())


def _fold(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def _recorded(text: str) -> str:
    """Return a group, empty where none is recorded."""
    return "" if is_missing(text) else text


def _sides(columns: Sequence[str], name: str) -> tuple[str, str] | None:
    """Return the columns that say something of both sides of a pair; None without them."""
    for first, second in SIDES:
        if {first.format(name), second.format(name)} <= {*columns}:
            return first.format(name), second.format(name)
    return None


def _both(columns: Sequence[str], name: str) -> tuple[str, str] | None:
    return (name, name) if name in columns else None
