"""Scores that others computed: CSV with labels or subjects, bob's text files, ``±1 score``."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.names import MISSING, is_missing, same_name
from facerec.statistics.rates import sort_scores
from facerec.verification.bench import Pairs
from facerec.verification.protocols.lists import LABELS, decode_text, file_source, read_content

if TYPE_CHECKING:
    import pandas as pd

REFERENCE, PROBE = "bio_ref_subject_id", "probe_subject_id"

NAN = {
    "NaN",
    "NaT",
    *(form(word) for word in MISSING for form in (str.lower, str.upper, str.title)),
}
"""A score that is not there, since an image could not be acquired."""

TEXT_COLUMNS = {
    2: ("label", "score"),
    4: (REFERENCE, PROBE, "probe_key", "score"),
    5: (REFERENCE, "bio_ref_key", PROBE, "probe_key", "score"),
}
"""Columns of files without a header by their number: ±1, bob's four and bob's five."""

SURPLUS = "*"
"""A column after the last, so that fields too many are seen."""
SOURCE = "label_source"
USED = ("score", "label", "fold", SURPLUS)

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
    import pandas as pd

    path = Path(path)
    subject = same_name(subject.lower())
    table = _Table(path, subject)
    columns = [*table.columns, SURPLUS]
    subject_columns = _sides(table.columns, subject if table.skipped else "subject_id")
    recorded = {
        name: sides
        for name in groups
        for column in [same_name(name.lower())]
        if (sides := _sides(table.columns, column) or _both(table.columns, column))
    }
    used = {
        *USED,
        *(subject_columns or ()),
        *(column for sides in recorded.values() for column in sides),
    }
    if recorded:
        used.add(SOURCE)
    try:
        frame = pd.read_csv(
            io.BytesIO(table.with_header(columns)),
            sep=table.separator or r"\s+",
            usecols=[name for name in columns if name in used],
            dtype=dict.fromkeys(columns, "category") | {"score": np.float64},
            keep_default_na=False,
            na_values={"score": list(NAN)},
            skip_blank_lines=False,
            quoting=csv.QUOTE_MINIMAL if table.separator else csv.QUOTE_NONE,
            **_exact(),
        )
    # Its errors name no line, or count lines in its own way.
    except ValueError as problem:
        table.explain(problem)
    scores = frame["score"].to_numpy()
    table.check(frame, scores)
    if distances:
        scores = 0.0 - scores  # no −0 for two equal images
    subjects, names = None, None
    if subject_columns is not None:
        first, second = subject_columns
        subjects, names = _numbered(frame[first], frame[second], table)
        issame = subjects[0] == subjects[1]
    if "label" in frame:
        labels = _labels(frame["label"], table)
        if subjects is not None and (wrong := np.flatnonzero(labels != issame)).size:
            raise DatasetError(
                f"{table.where(wrong[0])}: the label contradicts the two subject ids; mend the line"
            )
        issame = labels
    return ScoredPairs(
        scores,
        issame,
        folds=_folds(frame["fold"], table) if "fold" in frame else None,
        subjects=subjects,
        groups={
            name: (values[0], values[1])
            for name, sides in recorded.items()
            for values in [[_recorded(frame[side], table) for side in sides]]
        },
        names=names,
        label_sources=_sources(frame[SOURCE], table) if SOURCE in frame else {},
        notes=_notes(path, scores, issame, distances),
        source={**file_source(path, table.format), "distances": distances},
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
    """The text of a score file, UTF-8 without mark or last line end, and what its first line says.

    `skipped` is 1 if that is a header; `separator` is comma, semicolon, TAB or, for any blanks,
    empty.
    """

    def __init__(self, path: Path, subject: str) -> None:
        self.path = path
        raw = read_content(path)
        if not raw.isascii() or b"\0" in raw:
            raw = decode_text(path, raw).encode()
        self.content = raw.rstrip(b"\r\n")
        first = decode_text(path, self.content.partition(b"\n")[0]).strip()
        self.separator = next((mark for mark in ",;\t" if mark in first), "")
        fields = [name.strip().lower() for name in self.fields(first)]
        self.skipped = int("score" in fields)
        if self.skipped:
            self.format, self.columns = "csv", tuple(fields)
            if len({*fields, SURPLUS}) <= len(fields):
                raise DatasetError(
                    f"{path}, line 1: a column occurs twice or is called {SURPLUS}; rename it"
                )
            if "label" not in fields and _sides(fields, subject) is None:
                first, second = (column.format(subject) for column in SIDES[0])
                raise DatasetError(
                    f"{path}, line 1: the columns are {', '.join(fields)[:200]}; beside score "
                    f"there must be label, or {first} and {second}"
                )
        else:
            self.format = "text"
            if not self.content:
                raise DatasetError(f"{path}: there are no scores in it; check the file")
            if len(fields) not in TEXT_COLUMNS:
                raise DatasetError(
                    f"{path}, line 1: {first[:60]!r} is neither a header with the column score nor "
                    "two, four or five fields; write a header, such as label,score"
                )
            self.columns = TEXT_COLUMNS[len(fields)]
        if self.content.count(b"\n") < self.skipped:
            raise DatasetError(f"{path}: a header and no scores; check the file")

    def fields(self, text: str) -> list[str]:
        """Split a line; a line that cannot be split is one field."""
        if not self.separator:
            return text.split()
        try:
            lines = csv.reader([text.strip(" \r")], delimiter=self.separator, strict=True)
            return next(lines, [])
        except csv.Error:
            return [text]

    def where(self, row: int) -> str:
        return f"{self.path}, line {row + 1 + self.skipped}"

    def with_header(self, columns: list[str]) -> bytes:
        """Return the content with ``columns`` as its header."""
        body = self.content.partition(b"\n")[2] if self.skipped else self.content
        return (self.separator or " ").join(columns).encode() + b"\n" + body

    def rows(self) -> list[str]:
        return decode_text(self.path, self.content).split("\n")[self.skipped :]

    def check(self, frame: pd.DataFrame, scores: NDArray[np.float64]) -> None:
        """Refuse what pandas lets pass: fields too few or too many, line ends inside fields."""
        lines = self.content.count(b"\n") + 1 - self.skipped
        if len(frame) != lines:
            raise DatasetError(
                f"{self.path}: {lines:,} lines below the header hold {len(frame):,} rows, so a "
                "field has a line end in it; write the file without"
            )
        suspects = np.isnan(scores)
        if (frame[SURPLUS].cat.categories != "").any():
            suspects |= (frame[SURPLUS] != "").to_numpy()
        if suspects.any():
            rows = self.rows()
            for row in np.flatnonzero(suspects).tolist():
                if len(self.fields(rows[row])) != len(self.columns):
                    self._refuse_fields(row, rows[row])

    def explain(self, problem: ValueError) -> NoReturn:
        """Raise an error for the first line that cannot be read."""
        rows = self.rows()
        at = self.columns.index("score")
        for row, text in enumerate(rows):
            fields = self.fields(text)
            if len(fields) != len(self.columns):
                self._refuse_fields(row, text)
            try:
                # Python reads 1_000 and digits and blanks of other scripts, pandas does not.
                number = fields[at].encode("ascii", "replace").strip().replace(b"_", b"?")
                float("nan" if fields[at] in NAN else number)
            except ValueError:
                hint = "" if row or self.skipped else ", or call the column of a header score"
                raise DatasetError(
                    f"{self.where(row)}: the score {fields[at][:60]!r} is no number; mend the "
                    f"line{hint}"
                ) from None
        raise DatasetError(
            f"{self.path}: the scores cannot be read ({str(problem).strip()[:200]}); check the file"
        ) from problem

    def _refuse_fields(self, row: int, text: str) -> NoReturn:
        if not text.strip():
            raise DatasetError(f"{self.where(row)}: the line is blank; take it out")
        raise DatasetError(
            f"{self.where(row)}: {text.strip()[:60]!r} does not have {len(self.columns)} fields as "
            "the first line has; mend the line"
        )


def _exact() -> dict[str, Any]:
    """Ask older pandas to round as Python does, which newer ones do anyway."""
    import pandas as pd

    version = tuple(map(int, pd.__version__.split(".")[:2]))
    return {"float_precision": "round_trip"} if version < (3, 1) else {}


def _sides(columns: Sequence[str], name: str) -> tuple[str, str] | None:
    """Return the columns that say something of both sides of a pair; None without them."""
    for first, second in SIDES:
        if {first.format(name), second.format(name)} <= {*columns}:
            return first.format(name), second.format(name)
    return None


def _both(columns: Sequence[str], name: str) -> tuple[str, str] | None:
    return (name, name) if name in columns else None


def _stripped(
    column: pd.Series, table: _Table, fits: Callable[[str], Any] = lambda _: True, but: str = ""
) -> tuple[NDArray[np.str_], NDArray[Any]]:
    """Return the distinct texts of a column and the place of each row's among them.

    A line whose text does not fit is refused; ``but`` says so of the text.
    """
    texts = np.array([str(text).strip() for text in _texts(column)], np.str_)
    codes = column.cat.codes.to_numpy()
    wrong = [code for code, text in enumerate(texts.tolist()) if not fits(text)]
    if wrong:
        row = int(np.flatnonzero(np.isin(codes, wrong))[0])
        raise DatasetError(f"{table.where(row)}: {but.format(str(texts[codes[row]])[:60])}")
    return texts, codes


def _recorded(column: pd.Series, table: _Table) -> NDArray[np.str_]:
    """Return the group in each row, empty where none is recorded."""
    texts, codes = _stripped(column, table)
    return np.array(["" if is_missing(text) else text for text in texts.tolist()], np.str_)[codes]


def _sources(column: pd.Series, table: _Table) -> dict[str, int]:
    empty = f"{SOURCE} is empty; write there where the groups come from"
    texts, codes = _stripped(column, table, bool, empty)
    names, counts = np.unique(texts[codes], return_counts=True)
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def _numbered(
    first: pd.Series, second: pd.Series, table: _Table
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], NDArray[np.str_]]:
    """Number the subjects of both columns together, in the order of their names."""
    for side in (first, second):
        if (unnamed := np.flatnonzero(side == "")).size:
            raise DatasetError(
                f"{table.where(unnamed[0])}: a subject id is empty; mend the line or leave it out"
            )
    names = np.unique(np.concatenate([_texts(first), _texts(second)]))
    sides = (
        np.searchsorted(names, _texts(side))[side.cat.codes.to_numpy()].astype(np.int64)
        for side in (first, second)
    )
    return (next(sides), next(sides)), names.astype(np.str_)


def _texts(column: pd.Series) -> NDArray[Any]:
    """Return the distinct texts of a column, in the order of its codes."""
    return column.cat.categories.to_numpy(dtype=object)


def _labels(column: pd.Series, table: _Table) -> NDArray[np.bool_]:
    no_label = "{!r} where a label, 0 or 1, belongs; mend the line"
    texts, codes = _stripped(column, table, lambda text: text.lower() in LABELS, no_label)
    return np.array([LABELS[text.lower()] for text in texts.tolist()])[codes]


def _folds(column: pd.Series, table: _Table) -> NDArray[np.int64]:
    no_fold = "the fold {!r} is no whole number; mend the line"
    texts, codes = _stripped(column, table, re.compile("[0-9]{1,9}").fullmatch, no_fold)
    numbers = texts.astype(np.int64)
    if np.unique(numbers).size < 2:
        raise DatasetError(
            f"{table.path}: all pairs are in fold {texts[0][:60]}; accuracy needs two folds or "
            "more, so number more of them or take out the column fold"
        )
    return np.unique(numbers, return_inverse=True)[1].reshape(-1).astype(np.int64)[codes]
