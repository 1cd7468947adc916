"""Proposals to change the labels of a training set: a CSV that people edit, and its effect.

A row with an ``image_id`` concerns that image: its label becomes ``proposed_label``, or the image
goes where that is empty. A row without one concerns all images of ``label``. A row whose ``accept``
is ``no`` has no effect.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal, get_args

from facerec.base.errors import DatasetError
from facerec.base.files import atomic_path, reading
from facerec.base.names import is_missing
from facerec.records.tables import TextTable

Kind = Literal["no_face", "wrong_label", "mixture", "merge", "duplicate"]

COLUMNS = ("kind", "image_id", "label", "proposed_label", "other_id", "score", "accept")

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")

_NO = ("no", "n", "false", "0")
_YES = ("yes", "y", "true", "1", "")


@dataclass(frozen=True)
class Proposal:
    """One change that somebody may accept.

    Attributes:
        kind: what is wrong: no face that the model knows; the label of an image; a label with two
            subjects, of whom the second is to get a label of their own; one subject under two
            labels; an image that is there twice.
        image_id: the image; empty for all images of the label.
        label: the present one.
        proposed_label: the one to get; empty if the image is to go.
        other_id: for duplicates the image that stays, else empty.
        score: how sure the proposal is; a probability, for duplicates a cosine, and without a face
            by how much its face score is below the limit.
        accept: whether it is to be applied.
    """

    kind: Kind
    image_id: str
    label: str
    proposed_label: str
    other_id: str
    score: float
    accept: bool = True


def write_proposals(path: Path, proposals: Sequence[Proposal]) -> None:
    """Write a table of proposals, whole or not at all; no cell is a formula for a spreadsheet.

    Raises:
        FacerecError: it cannot be written.
    """
    with (
        atomic_path(path, private=True) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for *texts, score, accept in map(astuple, proposals):
            cells = [*texts, f"{score:.4f}", "yes" if accept else "no"]
            writer.writerow(f"'{cell}" if _steers(cell) else cell for cell in cells)


def read_proposals(path: Path) -> list[Proposal]:
    """Read a table of proposals.

    Raises:
        DatasetError: it cannot be read, lacks a column, or a row is of no known kind, has a score
            that is no number, an ``accept`` other than yes or no, or names nothing to change.
    """
    table = TextTable(path)
    return [_proposal(fields, table.where(line)) for line, fields in table.rows(COLUMNS)]


def _proposal(fields: Sequence[str], where: str) -> Proposal:
    kind, image, label, proposed, other, score, accept = map(_plain, fields)
    kinds, accepted = ", ".join(get_args(Kind)), accept.lower() in _YES
    advice = f"write one of {kinds}, a score, yes or no, the label, and an image or a new label"
    with reading(where, DatasetError, advice, ValueError):
        value = float("nan" if is_missing(score) else score)
        known = kind in get_args(Kind) and (accepted or accept.lower() in _NO)
        if not known or not label or not (image or proposed):
            raise ValueError(f"its kind is {kind[:60]!r} and accept {accept[:60]!r}")
    return Proposal(kind, image, label, proposed, other, value, accepted)  # type: ignore[arg-type]


def _steers(text: str) -> bool:
    """Tell whether a spreadsheet would compute a cell, or take its apostrophe for a mark."""
    return text.lstrip("'").startswith(_FORMULA)


def _plain(text: str) -> str:
    """Take away the apostrophe that `write_proposals` puts before what would be computed."""
    return text[1:] if text.startswith("'") and _steers(text) else text


def combine(
    proposals: Sequence[Proposal], labels: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what the accepted ones of some proposals do together.

    An image that one of them drops is gone, whatever else is proposed; a wrong label counts before
    a mixture. Labels that are merged in a chain or in a ring all get the name of one of them, the
    end of the chain.

    Args:
        proposals: of a set.
        labels: image → its label.

    Returns:
        Image → its label, empty if it goes; and label → the label whose name its images get in
        the end, for those that are merged.
    """
    accepted = [item for item in proposals if item.accept]
    after = dict(labels)
    for item in sorted(accepted, key=lambda it: (not it.proposed_label, it.kind == "wrong_label")):
        if item.image_id:
            after[item.image_id] = item.proposed_label
    target: dict[str, str] = {}

    def end(label: str) -> str:
        while label in target:
            label = target[label]
        return label

    for item in accepted:
        first, last = end(item.label), end(item.proposed_label)
        if not item.image_id and first != last:
            target[first] = last
    return after, {label: end(label) for label in target}
