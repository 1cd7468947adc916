"""What a bench is: images, labelled pairs of them, folds, subjects; and where ``lfw`` lies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from facerec.base.errors import PackError
from facerec.base.files import sha256
from facerec.embedding.align import Aligner
from facerec.records.images import ImageSource, PackImages, text_array
from facerec.records.packs import is_bcolz, read_pack
from facerec.report.words import counted
from facerec.statistics.influences import ScoredComparisons
from facerec.statistics.kfold import fold_indices

SUFFIXES = (".bin", ".npz")


INFERRED = "same pairs"
"""How subjects are known where no name tells them."""


def dependence(subjects: int | None, origin: str | None = None) -> str:
    """Say what intervals rest on where pairs are of so many subjects, known from an ``origin``."""
    if subjects is None:
        return "assuming independent comparisons; subjects are unknown"
    known = "" if origin is None else f" (known from {origin})"
    return f"pairs that share one of {subjects:,} subjects{known} are dependent"


@dataclass(frozen=True, eq=False)
class Pairs:
    """Labelled comparisons between m items: images, or templates of several images."""

    first: NDArray[np.int64]
    """Item on the first side of each pair, ``(n,)``."""
    second: NDArray[np.int64]
    """Item on the second side, ``(n,)``."""
    issame: NDArray[np.bool_]
    """Whether both show one subject, ``(n,)``."""
    subjects: NDArray[np.int64] | None = None
    """Subject of every item, ``(m,)``, as numbers 0, 1, …; None where nothing says who is who."""
    folds: NDArray[np.int64] | None = None
    """Fold 0, 1, … of each pair, ``(n,)``; None for a protocol without folds."""

    def __len__(self) -> int:
        return len(self.issame)

    def __getitem__(self, chosen: NDArray[np.bool_ | np.int64]) -> Pairs:
        """Return some of the pairs, by places or by a mask, of the same items.

        Folds that have pairs left are numbered anew; one alone is none.
        """
        folds = None
        if self.folds is not None:
            left, folds = np.unique(self.folds[chosen], return_inverse=True)
            folds = folds if left.size > 1 else None
        sides = self.first[chosen], self.second[chosen]
        return Pairs(*sides, self.issame[chosen], self.subjects, folds)

    def comparisons(self, scores: NDArray[np.floating]) -> tuple[ScoredComparisons, int | None]:
        """Return all pairs with their scores, ``(n,)``, and how many subjects are in them.

        Where a label contradicts the subjects, the label stands: both sides of a same pair are one,
        the second side of a different pair is a subject of its own. Without subjects, None, every
        pair stands for itself.
        """
        same, sides = self.issame, self.subject_pairs()
        if sides is None:
            return ScoredComparisons(scores, same), None
        first, second = sides
        numbers = np.unique(np.concatenate(sides))
        strange = ~same & (first == second)
        second[strange] = numbers.max(initial=0) + 1 + np.arange(int(strange.sum()))
        return ScoredComparisons(scores, same, (first, np.where(same, *sides))), numbers.size

    @property
    def itself(self) -> NDArray[np.bool_]:
        """Which pairs compare an item with itself, and tell nothing, ``(n,)``."""
        return self.first == self.second

    def doubts(self) -> list[str]:
        """Say which pairs tell nothing or nothing new, and whose label contradicts the subjects."""
        doubts, own = [], np.flatnonzero(self.itself)
        if own.size:
            said = "pairs compare an image with itself and are left out, the first is pair"
            doubts.append(f"{own.size} {said} {own[0]}")
        low, high = np.sort([self.first, self.second], axis=0)[:, ~self.itself]
        if again := low.size - np.unique(low * (high.max(initial=0) + 1) + high).size:
            doubts.append(
                f"{counted(again, 'pair')} of the same two images as an earlier one, in this order "
                "or the other; each counts"
            )
        sides = self.subject_pairs()
        if sides is None:
            return doubts
        wrong = (self.issame != (sides[0] == sides[1])) & ~self.itself
        for label, kind, fact in ((1, "same", "two subjects"), (0, "different", "one subject")):
            odd = np.flatnonzero(wrong & (self.issame == label))
            if odd.size:
                doubts.append(
                    f"{odd.size} pairs labelled {kind} show {fact} by the names or the other "
                    f"labels, the first is pair {odd[0]}; their labels are taken as they are"
                )
        return doubts

    def subject_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the subjects on both sides of every pair, ``(n,)`` each, if known."""
        if self.subjects is None:
            return None
        return self.subjects[self.first], self.subjects[self.second]


@dataclass(frozen=True, eq=False)
class Bench:
    """A verification set: images, pairs of them, and what is known of its making."""

    name: str
    images: ImageSource
    pairs: Pairs
    """Items are the images in their order, or templates of them."""
    subjects_from: str | None = None
    """How subjects are known: "the list", "image names", "same pairs"; None if they are not."""
    notes: tuple[str, ...] = ()
    """What a reader must know, one sentence each."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Files with their SHA-256, and the format, as JSON types."""
    aligner: Aligner | None = None
    """What crops faces by points that come with the bench; None without any."""


def pack_bench(path: str | Path) -> Bench:
    """Read a pack as a bench with ten contiguous folds.

    Subjects are those of the column ``subject_id`` in the file of names beside the pack
    (`facerec.records.images.names_file`), or else the folders in its ids; without such a file,
    images that same pairs connect are taken for one subject.

    Raises:
        PackError: the pack is missing, unsafe or malformed.
        DatasetError: its file of names is malformed.
    """
    pack = read_pack(path)
    images = PackImages(pack)
    first, second = images.entries[0::2], images.entries[1::2]
    names, named_by = images.subjects, "the file of names"
    if names is None and images.named:
        names, named_by = folders_of(images.ids), "image names"
    pairs = Pairs(first, second, pack.issame, folds=contiguous_folds(len(pack.issame)))
    pairs, named_by, notes = find_subjects(pairs, len(images), names, named_by)
    if Path(path).is_file():
        digest = sha256(path)
    else:
        digest = hashlib.sha256(b"".join(pack.images)).hexdigest()
    return Bench(
        name=pack.path.stem,
        images=images,
        pairs=pairs,
        subjects_from=named_by,
        notes=(*notes, *images.notes),
        source={"path": str(pack.path), "sha256": digest, "format": "pack"},
    )


def find_subjects(
    pairs: Pairs, items: int, names: Sequence[str] | NDArray[np.str_] | None, named_by: str
) -> tuple[Pairs, str, tuple[str, ...]]:
    """Number the subjects of all items: by name where that agrees with every label.

    Args:
        pairs: of the items.
        items: their number m.
        names: of the subject on each item, ``(m,)``, if they are known; else same pairs tell.
        named_by: where these names come from.

    Returns:
        The pairs with subjects, how these are known, and notes.
    """
    notes: tuple[str, ...] = ()
    if names is not None:
        numbers = np.unique(text_array(names, named_by), return_inverse=True)[1]
        named = replace(pairs, subjects=numbers.reshape(-1).astype(np.int64))
        wrong = int(((numbers[pairs.first] == numbers[pairs.second]) != pairs.issame).sum())
        if not wrong:
            return named, named_by, notes
        notes = (
            f"the subjects that {named_by} name are contradicted by the labels of "
            f"{counted(wrong, 'pair')}, so images that same pairs connect are taken for one "
            "subject",
        )
    return replace(pairs, subjects=infer_subjects(pairs, items)), INFERRED, notes


def contiguous_folds(pairs: int) -> NDArray[np.int64] | None:
    """Return the fold of every pair, ``(pairs,)``, in ten blocks; None if they cannot be filled."""
    return fold_indices(pairs) if pairs >= 10 else None


def folders_of(ids: NDArray[np.str_]) -> NDArray[np.str_] | None:
    """Return the folder in each id, ``(m,)``; None if any id has none."""
    folders = [str(PurePosixPath(name).parent) for name in ids.tolist()]
    return None if "." in folders else np.array(folders, dtype=np.str_)


def infer_subjects(pairs: Pairs, items: int) -> NDArray[np.int64]:
    """Take items that same pairs connect, directly or through others, for one subject.

    It cannot see that two items of unconnected pairs show one subject, so intervals that rest on it
    may still be a little too narrow.

    Returns:
        int64 ``(items,)``.
    """
    rows, columns = pairs.first[pairs.issame], pairs.second[pairs.issame]
    edges = coo_array((np.ones(rows.size, np.int8), (rows, columns)), (items, items))
    return connected_components(edges, directed=False)[1].astype(np.int64)


def find_pack(name_or_path: str | Path, data: Path | None = None) -> Path:
    """Return the pack file of a bench.

    A name such as ``lfw`` is looked up as ``lfw.bin`` or ``lfw.npz`` in ``data``, in the folder
    that the environment variable ``FACEREC_DATA`` names and in ``data/`` of the working folder, in
    each also in a subfolder ``lfw/``. Anything with a pack's suffix or a folder, and a bcolz pack,
    is a path.

    Raises:
        PackError: there is no such file; the sentence lists the folders looked in.
    """
    name, path = str(name_or_path), Path(name_or_path)
    if path.suffix in SUFFIXES or len(path.parts) != 1 or is_bcolz(path):
        places = [path]
    else:
        folders = [at for folder in bench_folders(data) for at in (folder, folder / name)]
        places = [folder / f"{name}{end}" for folder in folders for end in SUFFIXES]
    for place in places:
        if place.is_file() or is_bcolz(place):
            return place
    raise PackError(
        f"no pack for bench {name!r}: looked for {', '.join(map(str, places))}; give an "
        "InsightFace-style .bin or .npz, or name its folder with --data or FACEREC_DATA"
    )


def bench_folders(data: Path | None) -> list[Path]:
    """Return the folders that benches are looked for in, which need not be there."""
    given = data, os.environ.get("FACEREC_DATA"), "data"
    return list(dict.fromkeys(Path(folder) for folder in given if folder))
