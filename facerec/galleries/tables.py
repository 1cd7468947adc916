"""Tables of what was found in sets and galleries: proposals to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from facerec.galleries.contact_sheet import Face
from facerec.galleries.overlap import Overlap, Side
from facerec.records.proposals import Proposal
from facerec.report import words
from facerec.report.table import Cell, Table

KINDS = {
    "no_face": ("no face", "images that do not look like the faces that the model knows"),
    "wrong_label": ("wrong label", "images whose label is probably not that of the person"),
    "mixture": ("mixture", "images of a second person in a class, for a label of their own"),
    "merge": ("merge", "pairs of labels that are probably one person"),
    "duplicate": ("duplicate", "images that are there twice, almost to the pixel"),
}
"""Names and meanings of the kinds of proposals, in the order of the table."""


def proposal_tables(
    proposals: Sequence[Proposal],
    most: int,
    face: Face = lambda name: "",
    first: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Table]:
    """Return the surest proposals of each kind that there is, by what the kind is called.

    Args:
        proposals: the surest of each kind first.
        most: of a kind.
        face: image → picture.
        first: label → the image that stands for it.
    """

    def cell(image: str, label: str, text: str) -> Cell:
        return Cell(image or label or text, picture=face(image or first.get(label, "")))

    tables = {}
    for kind, (name, _) in KINDS.items():
        rows = [
            (
                Cell(one.image_id or "all", picture=face(one.image_id or first.get(one.label, ""))),
                cell("", one.label, ""),
                cell(one.other_id, one.proposed_label, "none: leave out"),
                f"{one.score:.4f}",
            )
            for one in [each for each in proposals if each.kind == kind][:most]
        ]
        headings = name, "label", "the one that stays" if kind == "duplicate" else "proposed label"
        if rows:
            tables[name] = Table("", (*headings, "score"), rows, words=headings)
    return tables


def overlap_table(
    overlap: Overlap,
    names: tuple[str, str],
    most: int,
    faces: Sequence[Face] = (lambda name: "", lambda name: ""),
) -> Table:
    """Return people who are probably in both sets, the surest first.

    Args:
        overlap: who was found.
        names: of the sets.
        most: of the people.
        faces: image → picture, of both sets.
    """

    def cell(side: Side, subject: int, image: int, face: Face) -> Cell:
        count = words.counted(int(side.images[subject]), "image")
        return Cell(str(side.names[subject]), count, face(str(side.ids[image])))

    rows = [
        (
            cell(overlap.a, match.subject, match.images[0], faces[0]),
            cell(overlap.b, match.other, match.images[1], faces[1]),
            f"{match.cosine:.3f}",
            f"1e{match.log_p / math.log(10):.0f}",
            f"{match.expected_false:.2g}",
        )
        for match in overlap.matches[:most]
    ]
    who = f"subject of {names[0]}", f"probably in {names[1]} as"
    return Table("", (*who, "cosine", "p", "expected false so far"), rows, words=who)
