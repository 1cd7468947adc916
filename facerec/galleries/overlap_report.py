"""What is written of an overlap: a list to exclude by, and its facts, which verify reads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.files import atomic_path, parse_json, read_file, reading, write_json
from facerec.base.names import same_name
from facerec.galleries.members import Side
from facerec.galleries.overlap import Overlap
from facerec.report import words
from facerec.report.documents import provenance_of
from facerec.training.run import fingerprint
from facerec.verification.bench import Bench

KIND = "facerec overlap 2"
SUFFIX = ".overlap.json"


def summary(overlap: Overlap, names: tuple[str, str]) -> str:
    """Return what was found in one sentence."""
    return (
        f"{len(overlap.matches):,} of {overlap.a.classes:,} subjects of {names[0]} are probably "
        f"among the {overlap.b.classes:,} of {names[1]}, of which {overlap.expected_false:.2g} are "
        f"expected to be false (at most {words.percent(overlap.share)} of a list)"
    )


def write_exclusions(path: Path, overlap: Overlap) -> None:
    """Write the proposals as a list that ``data.exclude`` of a recipe reads, the surest first.

    Raises:
        FacerecError: the file cannot be written.
    """
    a, found = overlap.a, overlap.matches
    name, named = a.names[found["subject"]], a.named[found["subject"]]
    columns = {
        "subject_id": np.where(named, name, ""),
        "image_id": np.where(named, "", name),
        "images": a.images[found["subject"]],
        "other": overlap.b.names[found["other"]],
        "cosine": found["cosine"].map("{:.4f}".format),
        "log10_p": found["log10_p"].map("{:.2f}".format),
        "expected_false": found["expected_false"].map("{:.3g}".format),
    }
    table = pd.DataFrame(columns)  # names come back as they were
    with atomic_path(path, private=True) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n", encoding="utf-8")


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
    b, shown = overlap.b, np.unique(overlap.matches["other"])
    facts = {
        "kind": KIND,
        **provenance_of(command, ()),
        "list": csv_path.name,
        "a": _facts(overlap.a, sources[0]),
        "b": _facts(b, sources[1]),
        "share": overlap.share,
        "subjects_of_a": len(overlap.matches),
        "expected_false": overlap.expected_false,
        "images_of_b": b.ids[b.order[np.isin(b.label[b.order], shown)]].tolist(),
    }
    write_json(facts_path(csv_path), facts, private=True)
    return facts_path(csv_path)


def _facts(side: Side, source: Mapping[str, Any]) -> dict[str, Any]:
    path = Path(str(source.get("path", "")))
    return {
        **{key: source[key] for key in ("kind", "sha256") if key in source},
        "path": os.fspath(path.resolve()),
        "files": _records(path) if source.get("kind") == "records" and path.exists() else [],
        "subjects": side.classes,
        "images": len(side.order),
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
    """Subjects of the training set."""

    def is_of(self, bench: Bench) -> bool:
        """Tell whether B is the bench: the same file, or the same image ids."""
        stored, present = self.b.get("sha256"), bench.source.get("sha256")
        if stored is not None and present is not None:
            return bool(stored == present)
        return bool(self.b.get("ids_sha256") == ids_sha256(bench.images.ids))

    def is_of_records(self, path: Path) -> bool:
        """Tell whether A is what lies at ``path`` now: the same record file and index."""
        if not self.a["files"]:
            return bool(self.a["path"] == os.fspath(path.resolve()))
        return bool(self.a["files"] == _records(path))


def _records(path: Path) -> list[list[Any]]:
    """Return kind, size and hash of record files and their indices, as JSON types."""
    known = ((Path(name).suffix, of) for name, of in fingerprint(path)["files"].items())
    kinds = (".rec", ".idx")
    return sorted([kind, of["bytes"], of.get("sha256")] for kind, of in known if kind in kinds)


def read_overlap(path: Path) -> KnownOverlap:
    """Read the facts of a list, by the list's name or their own.

    Raises:
        DatasetError: the file cannot be read or is none of `write_facts`.
    """
    file = path if path.name.endswith(SUFFIX) else facts_path(path)
    with reading(file, DatasetError, "make it again with facerec overlap --csv", Exception):
        facts = parse_json(read_file(file))
        if facts["kind"] != KIND:  # what is known of record files has another form before
            raise ValueError(f"its kind is {str(facts['kind'])[:60]!r}")
        shown = frozenset(map(same_name, facts["images_of_b"]))
        sides = dict(facts["a"]), dict(facts["b"])
        return KnownOverlap(file, *sides, shown, int(facts["subjects_of_a"]))
