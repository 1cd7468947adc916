"""Tables of what was found in sets and galleries: proposals to look at, and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from facerec.galleries.contact_sheet import Face
from facerec.galleries.gallery import Identification
from facerec.galleries.members import Side
from facerec.galleries.overlap import Overlap
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
            cell(overlap.a, match["subject"], match["image"], faces[0]),
            cell(overlap.b, match["other"], match["other_image"], faces[1]),
            f"{match['cosine']:.3f}",
            f"1e{match['log10_p']:.0f}",
            f"{match['expected_false']:.2g}",
        )
        for match in overlap.matches.head(most).to_dict("records")
    ]
    who = f"subject of {names[0]}", f"probably in {names[1]} as"
    return Table("", (*who, "cosine", "p", "expected false so far"), rows, words=who)


def answers_table(found: Identification, names: Sequence[str]) -> Table:
    """Return who is on images, by their names ``(n,)``, of which there may be fewer than answers.

    Without a threshold the candidates are listed; probabilities have a column where there are any.
    """
    chances = any(answer.probability for answer in found)
    rows = []
    for name, answer in zip(names, found, strict=False):
        remark = answer.failure or ""
        if not remark and found.threshold is None:
            remark = ", ".join(f"{each.subject} {each.score:.4f}" for each in answer.candidates)
        elif not remark and answer.subject is None:
            remark = "below the threshold"
        figures = (words.number(value, ".4f") for value in (answer.score, answer.margin))
        chance = [_chance(answer.probability)][:chances]
        rows.append((name, answer.subject or words.NOTHING, *figures, *chance, remark))
    headings = "image", "subject", "score", "margin", *["probability"][:chances], "remark"
    return Table("", headings, rows, words=("subject", "remark"))


def _chance(probability: tuple[float, float, float] | None) -> str:
    if probability is None:
        return words.NOTHING
    value, low, high = probability
    if high == 1 or low == 0:  # beyond the calibration's data
        return f"at least {low:.3g}" if high == 1 else f"at most {high:.2g}"
    return f"{value:.3g} [{low:.2g}, {high:.2g}]"
