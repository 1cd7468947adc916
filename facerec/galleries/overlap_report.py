"""What is said and written of an overlap: a table, a list to exclude by, its facts, a page."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.files import atomic_path, parse_json, read_file, write_json
from facerec.galleries.overlap import Match, Overlap, Side
from facerec.names import same_name
from facerec.report import words
from facerec.report.documents import provenance_of
from facerec.report.page import FindingLine, Listed, Page, Section, Text
from facerec.report.table import Cell, Column, Table, facts_table
from facerec.training.run import fingerprint
from facerec.verification.bench import Bench

KIND = "facerec overlap"
SUFFIX = ".overlap.json"

Picture = Callable[[int], str]
"""Row of the embeddings → data URI of a small picture; empty if it cannot be shown."""

ASSUMED = (
    "Both sets were embedded by one network, and scores of different people in the far tail go "
    "on as the nearer ones begin; the tail is read from runners-up, impostors in either case.",
    "A subject's several images are of that subject for the most part; an image that nobody names "
    "is a subject of its own, and several such images are proposed or missed together.",
    "Relatives, doubles and one subject under two names are beyond any tail: they are proposed, "
    "and are not among the expected false ones.",
)


def proposals_table(
    overlap: Overlap,
    names: tuple[str, str],
    most: int | None = None,
    pictures: tuple[Picture | None, Picture | None] = (None, None),
) -> Table[tuple[int, Match]]:
    """Return the subjects of A who are probably in B, the surest first; of many the first."""

    def cell(side: Side, subject: int, image: int, picture: Picture | None) -> Cell:
        face = picture(image) if picture else ""
        count = words.counted(int(side.images[subject]), "image")
        name = str(side.names[subject])
        missed = "; its picture cannot be shown" if picture and not face else ""
        return Cell(name, count + missed, picture=face)

    columns: list[Column[tuple[int, Match]]] = [
        Column(
            f"subject of {names[0]}",
            lambda row: cell(overlap.a, row[1].subject, row[1].images[0], pictures[0]),
            words=True,
        ),
        Column(
            f"probably in {names[1]} as",
            lambda row: cell(overlap.b, row[1].other, row[1].images[1], pictures[1]),
            words=True,
        ),
        Column("cosine", lambda row: f"{row[1].cosine:.3f}"),
        Column("best images", lambda row: f"{row[1].image_cosine:.3f}", terminal=False),
        Column("p", lambda row: p_words(row[1].log_p)),
        Column("expected false so far", lambda row: f"{row[1].expected_false:.2g}"),
        Column("told by", lambda row: row[1].evidence, words=True, terminal=False),
    ]
    rows = list(enumerate(overlap.matches))[:most]
    more = len(overlap.matches) - len(rows)
    return Table(
        f"{words.counted(len(overlap.matches), 'subject')} of {names[0]} probably in {names[1]}",
        columns,
        rows,
        [f"And {more:,} more, all in the list that --csv writes."] if more else [],
    )


def p_words(log_p: float) -> str:
    """Return a p-value from its natural logarithm, however small."""
    exponent = log_p / math.log(10)
    return f"{math.exp(log_p):.2g}" if exponent > -4 else f"1e{exponent:.0f}"


def summary(overlap: Overlap, names: tuple[str, str]) -> str:
    """Return what was found in one sentence."""
    return (
        f"{len(overlap.matches):,} of {len(overlap.a):,} subjects of {names[0]} are probably among "
        f"the {len(overlap.b):,} of {names[1]}, of which {overlap.expected_false:.2g} are expected "
        f"to be false (at most {words.percent(overlap.share)} of a list)"
    )


def write_exclusions(path: Path, overlap: Overlap) -> None:
    """Write the proposals as a list that ``data.exclude`` of a recipe reads, the surest first.

    Raises:
        DatasetError: the file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = "subject_id", "image_id", "images", "other", "cosine", "log10_p", "expected_false"
    writer.writerow(header)
    for match in overlap.matches:
        name = str(overlap.a.names[match.subject])
        named = bool(overlap.a.named[match.subject])
        writer.writerow(
            [
                name if named else "",
                "" if named else name,
                int(overlap.a.images[match.subject]),
                str(overlap.b.names[match.other]),
                f"{match.cosine:.4f}",
                f"{match.log_p / math.log(10):.2f}",
                f"{match.expected_false:.3g}",
            ]
        )
    with atomic_path(path, DatasetError) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")


def facts_path(csv_path: Path) -> Path:
    """Return where the facts of a list are: ``lfw.csv`` has ``lfw.overlap.json`` beside it."""
    return csv_path.with_suffix(SUFFIX)


def write_facts(
    csv_path: Path, overlap: Overlap, sources: Sequence[Mapping[str, Any]], command: str | None
) -> Path:
    """Write beside a list what it is of, and which images of B show subjects of A.

    Args:
        csv_path: the list.
        overlap: what was found.
        sources: what is known of A and B: kind, path, sha256.
        command: the command line, for the record.
    """
    a, b = (
        _facts(side, source) for side, source in zip((overlap.a, overlap.b), sources, strict=True)
    )
    rows = [overlap.b.of(subject) for subject in subjects_of_b(overlap)]
    images = overlap.b.ids[np.concatenate(rows)].tolist() if rows else []
    path = facts_path(csv_path)
    write_json(
        path,
        {
            "kind": KIND,
            **provenance_of(command, ()),
            "list": csv_path.name,
            "a": a,
            "b": b,
            "share": overlap.share,
            "persons_of_a": len(overlap.matches),
            "expected_false": overlap.expected_false,
            "tails": {
                kind: {"slope": tail.slope, "shift": tail.shift}
                for kind, tail in overlap.tails.items()
            },
            "images_of_b": images,
        },
    )
    return path


def subjects_of_b(overlap: Overlap) -> list[int]:
    """Return the subjects of B who are probably in A, told from either side."""
    return sorted({m.other for m in overlap.matches} | {m.subject for m in overlap.in_b})


def _facts(side: Side, source: Mapping[str, Any]) -> dict[str, Any]:
    path = Path(str(source.get("path", "")))
    known = {key: source[key] for key in ("kind", "sha256") if key in source}
    files = fingerprint(path) if source.get("kind") == "records" and path.exists() else {}
    return {
        **known,
        "path": os.fspath(path.resolve()),
        **files,
        "persons": len(side),
        "images": len(side.rows),
        "ids_sha256": ids_sha256(side.ids),
    }


def ids_sha256(ids: NDArray[np.str_]) -> str:
    """Return a hash of image ids, in whatever order they are."""
    return hashlib.sha256("\0".join(sorted(ids.tolist())).encode()).hexdigest()


@dataclass(frozen=True)
class KnownOverlap:
    """What a file of facts says: which images of a bench show subjects of a training set."""

    path: Path
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    images: frozenset[str]
    subjects: int
    """Of the training set."""
    expected_false: float

    def is_of(self, bench: Bench) -> bool:
        """Tell whether B is the bench: the same file, or the same image ids."""
        stored, present = self.b.get("sha256"), bench.source.get("sha256")
        if stored is not None and present is not None:
            return bool(stored == present)
        return bool(self.b.get("ids_sha256") == ids_sha256(bench.images.ids))

    def is_of_records(self, path: Path) -> bool:
        """Tell whether A is what lies at ``path`` now: the same record file and index."""
        if not path.exists():
            return False

        def records(files: Any) -> set[tuple[str, int, str]]:
            return {
                (Path(name).suffix, facts["bytes"], facts.get("sha256", ""))
                for name, facts in files.items()
                if Path(name).suffix in (".rec", ".idx")
            }

        try:
            stored = records(self.a.get("files", {}))
        except (AttributeError, KeyError, TypeError):
            return False
        if not stored:
            return bool(self.a.get("path") == os.fspath(path.resolve()))
        return stored == records(fingerprint(path)["files"])


def read_overlap(path: Path) -> KnownOverlap:
    """Read the facts of a list, by the list's name or their own.

    Raises:
        DatasetError: the file cannot be read or is none of `write_facts`.
    """
    file = path if path.name.endswith(SUFFIX) else facts_path(path)
    try:
        facts = parse_json(read_file(file))
        if facts["kind"] != KIND:
            raise ValueError(f"it is a {str(facts['kind'])[:40]!r}")
        a, b, images = facts["a"], facts["b"], facts["images_of_b"]
        if not isinstance(a, dict) or not isinstance(b, dict) or not isinstance(images, list):
            raise ValueError("a and b are no objects, or images_of_b is no list")
        return KnownOverlap(
            file,
            a,
            b,
            frozenset(same_name(str(image)) for image in images),
            int(facts["persons_of_a"]),
            float(facts["expected_false"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise DatasetError(
            f"{file}: cannot be read as the facts of an overlap ({problem!r}); make it again with "
            "facerec overlap --csv"
        ) from problem


def write_page(
    path: Path,
    overlap: Overlap,
    names: tuple[str, str],
    sources: Sequence[Mapping[str, Any]],
    command: str | None,
    pictures: tuple[Picture | None, Picture | None] = (None, None),
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Write the proposals as one page, with pictures where they are given.

    Raises:
        DatasetError: the file cannot be written.
    """
    shown = any(pictures)
    if progress is not None and shown:
        pictures = tuple(_counted(each, len(overlap.matches), progress) for each in pictures)  # type: ignore[assignment]
    facts = {
        f"{name}: {key}": str(value)
        for name, side, source in zip(names, (overlap.a, overlap.b), sources, strict=True)
        for key, value in {
            **source,
            "persons": f"{len(side):,}",
            "usable images": f"{len(side.rows):,}",
            "not acquired": f"{side.failures:,}",
        }.items()
    }
    facts |= {
        f"impostors' tail, {kind}": f"slope {tail.slope:.3f} (1 is normal), shift {tail.shift:.3f}"
        for kind, tail in overlap.tails.items()
    }
    page = Page(
        title=f"Overlap of {names[0]} and {names[1]}",
        verdict=f"{summary(overlap, names)}.",
        lead="A subject of the first set is compared with every subject of the second, and the "
        "best score with the best that so many impostors reach.",
        findings=[
            FindingLine(
                f"subjects of {names[0]} in {names[1]}",
                f"{len(overlap.matches):,}",
                detail=f"{overlap.expected_false:.2g} expected to be false",
                basis=f"{len(overlap.a):,} × {len(overlap.b):,} subjects",
            ),
            FindingLine(
                f"subjects of {names[1]} in {names[0]}",
                f"{len(subjects_of_b(overlap)):,}",
                basis=f"{len(overlap.b):,} subjects",
            ),
        ],
        headline=[],
        sections=[
            Section(
                "Proposals",
                [
                    Text(
                        "These pictures show people, each time the two images that resemble each "
                        "other most. Handle this page as you handle the sets themselves."
                        if shown
                        else "Without pictures; --images shows the two most alike of each."
                    ),
                    proposals_table(overlap, names, pictures=pictures),
                ],
            ),
            Section("What is assumed", [Listed(ASSUMED)]),
            Section(
                "Provenance",
                [facts_table("This page", {**provenance_of(command, ("numpy",)), **facts})],
            ),
        ],
        banner="Proposals, not findings: look before you leave anybody out." if shown else "",
    )
    with atomic_path(path, DatasetError, private=shown) as temporary:
        temporary.write_text(page.render(), encoding="utf-8")


def _counted(
    picture: Picture | None, total: int, progress: Callable[[str, int, int], None]
) -> Picture | None:
    """Return the same, which tells how many pictures are done."""
    if picture is None:
        return None
    done = 0

    def counted(row: int) -> str:
        nonlocal done
        done += 1
        progress("drawing", min(done, total), total)
        return picture(row)

    return counted
