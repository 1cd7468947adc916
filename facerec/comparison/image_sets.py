"""Labelled images for comparisons: record files, folders of classes, and lists of images.

Images stay encoded where they are; labels, names and classes are read at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.files import sha256
from facerec.comparison.splits import ClassSplit, Numbering, split_classes
from facerec.records.decode import decode_image
from facerec.records.images import FolderImages, ImageSource, SubjectFolders, is_file, turned_note
from facerec.records.layout import RecordImages
from facerec.records.tables import TextTable

LIST = "images.csv"
"""List of a folder of images: paths, classes and perhaps parts. ``examples/retrieval_sets.py``
writes it for CUB-200-2011, Cars196, Stanford Online Products and In-Shop Clothes Retrieval."""

_BENCH = re.compile(
    r"((ca|cp|xq|sl)?lfw|age_?db\d*|ijb_?[abc]|rfw|tinyface|cfp_?f[pf]|cfp_dataset)(_.*)?|cfp"
)
"""Names of verification sets, in lower case and with _ for what is no letter or digit."""

_PACK_SUFFIXES = (".bin", ".npz")
_FILE_SUFFIXES = (".rec", ".npz", ".csv", ".parquet")
"""Endings of records and of embeddings, whose folder may bear the name too."""


@dataclass(frozen=True)
class ImageData:
    """The images that all arms of a comparison train and are scored on."""

    path: Path
    """A record file or its folder, a folder of class/image.jpg, or one with the list
    ``images.csv``: columns path and class, and perhaps part (train, query, gallery or test)."""


@dataclass(eq=False)
class ImageSet:
    """Images of classes 0 … C−1, each class with at least two images.

    It is made of all images that there are: classes that cannot be retrieved are left out, and the
    others numbered anew, in their order.
    """

    path: Path
    """Of the set; it begins the sentence of an error."""
    ids: NDArray[np.str_]
    """Text ``(n,)``, unique: the key of a record, or a path inside the folder."""
    labels: NDArray[np.int64]
    """Contiguous classes ``(n,)``; once it is made every class occurs."""
    class_names: list[str]
    """One a class, in the order of the numbers."""
    files: Sequence[Path] = ()
    """What was read to know this."""
    images: ImageSource | None = None
    """The encoded images; None where there are only their features."""
    partition: NDArray[np.str_] | None = None
    """Text ``(n,)``: the part that a list gives; None elsewhere."""
    train_classes: int | None = None
    """How many of the first classes the set itself trains on, where a list has a part for training;
    None elsewhere."""
    notes: Sequence[str] = ()
    """What a user should know, one sentence each."""

    def __post_init__(self) -> None:
        names, sizes = self.class_names, np.bincount(self.labels, minlength=len(self.class_names))
        kept_classes = np.flatnonzero(sizes >= 2)
        lone = [names[c] for c in np.flatnonzero(sizes == 1).tolist()]
        self._kept = kept = np.flatnonzero(sizes[self.labels] >= 2)
        self.labels = np.searchsorted(kept_classes, self.labels[kept])
        self.class_names = [names[c] for c in kept_classes.tolist()]
        self.ids = self.ids[kept]
        self.partition = None if self.partition is None else self.partition[kept]
        self.train_classes = self.train_classes and int((kept_classes < self.train_classes).sum())
        self.notes = list(self.notes)
        if lone:
            self.notes.append(
                f"{self.path}: {len(lone):,} of {len(sizes):,} classes have one image, which has "
                f"no other to be compared with, and are left out: {_some(lone)}"
            )
        if empty := int((sizes == 0).sum()):
            self.notes.append(f"{self.path}: {empty:,} of {len(sizes):,} classes have no image")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    def split(self, folds: int, numbering: Numbering) -> ClassSplit:
        """Split the classes; see `split_classes`."""
        own = self.train_classes
        return split_classes(self.num_classes, folds, numbering, own, str(self.path))

    def where(self, i: int) -> str:
        """Name image ``i`` for a message: its file and record, or its path."""
        assert self.images is not None
        return self.images.where(int(self._kept[i]))

    def read(self, i: int) -> NDArray[np.uint8]:
        """Return image ``i``, decoded, as uint8 RGB ``(height, width, 3)``.

        Raises:
            FacerecError: the image is missing or damaged; the sentence names its place.
        """
        assert self.images is not None
        data, upright = self.images.encoded(int(self._kept[i])), self.images.upright
        return decode_image(data, self.where(i), None, upright=upright)

    def fingerprint(self) -> dict[str, Any]:
        """Identify the set without reading its images, as JSON types.

        Counts, one hash over all ids and classes, and the size of every file of them, with its
        SHA-256 for all but the ``.rec``, whose places of images its ``.idx`` has.
        """
        digest = hashlib.sha256()
        for name, label in zip(self.ids.tolist(), self.labels.tolist(), strict=True):
            digest.update(f"{name}\0{self.class_names[label]}\n".encode("utf-8", "surrogatepass"))
        return {
            "images": len(self),
            "classes": self.num_classes,
            "labels_sha256": digest.hexdigest(),
            "files": [
                {"name": path.name, "bytes": path.stat().st_size}
                | ({} if path.suffix == ".rec" else {"sha256": sha256(path)})
                for path in self.files
            ],
        }


def open_image_set(config: ImageData) -> ImageSet:
    """Open the images of a comparison.

    Args:
        config: where they are.

    Raises:
        FacerecError: a bench; files missing, damaged or inconsistent (naming file and line).
    """
    path = Path(config.path)
    records = path.is_file() or any(path.glob("*.rec"))
    packs = any(path.glob("*.bin")) and not records
    refuse_bench(path, known=packs or path.suffix in _PACK_SUFFIXES)
    if (path / LIST).is_file():
        return _read_list(path)
    source = RecordImages(path) if records else SubjectFolders(path)
    files = []
    if isinstance(source, RecordImages):
        beside = (source.path, source.path.with_suffix(".idx"), source.path.parent / "property")
        files = [each for each in beside if each.is_file()]
    notes = [*source.notes, *turned_note(source, str(path))]
    names = source.names_of_classes()
    return ImageSet(path, source.ids, source.labels, names, files, source, notes=notes)


def refuse_bench(path: Path, *, known: bool) -> None:
    """Refuse verification benches: nothing may be selected on what judges the models selected.

    Raises:
        DatasetError: this is ``known`` for one, or the file or its folder bears the name of one.
    """
    names = []
    for candidate in (path, path.resolve()):
        files = candidate.suffix in _FILE_SUFFIXES
        names += [candidate.stem, candidate.parent.name] if files else [candidate.name]
    if known or any(_BENCH.fullmatch(re.sub(r"[\W_]+", "_", name.lower())) for name in names):
        raise DatasetError(
            f"{path}: this is a verification bench, and nothing may be selected on a bench; "
            "compare on subjects held out from a training set (records or a folder)"
        )


def _read_list(root: Path) -> ImageSet:
    """Read the list of a folder; the classes of a part for training come first."""
    file = root / LIST
    table = TextTable(file)
    columns = ["path", "class", *(["part"] if "part" in table.columns else [])]
    frame = pd.DataFrame([fields for _, fields in table.rows(columns)], columns=columns)
    parts, images = frame.get("part", pd.Series("all", frame.index)), frame["path"].tolist()
    own = parts == "train"
    train, others = set(frame["class"][own]), set(frame["class"][~own])
    for wrong, what in (
        (frame["path"][(frame["class"] == "") | (parts == "")], "images have no class or part"),
        (sorted(train & others), "classes are in the training part and in the test part"),
        (
            [name for name in images if not is_file(root / name)],
            f"of {len(images):,} listed images are not in {root}",
        ),
    ):
        if len(wrong):
            raise DatasetError(
                f"{file}: {len(wrong):,} {what}: {_some(list(wrong))}; write the list again"
            )
    source = FolderImages(root, images)
    order = ordered(train) + ordered(others)
    return ImageSet(
        root,
        source.ids,
        pd.Index(order).get_indexer(pd.Index(frame["class"])),
        order,
        [file],
        source,
        parts.to_numpy(np.str_) if "part" in frame else None,
        len(train) or None,
    )


def ordered(names: Iterable[str]) -> list[str]:
    """Return names of classes in the order of numbers, if all are such, else in that of letters."""
    known = sorted(names)
    try:
        # Tables turn whole numbers into 1.0, 2.0, … where one of them is missing.
        return sorted(known, key=Decimal)
    except ArithmeticError:
        return known


def _some(names: Sequence[Any]) -> str:
    shown = ", ".join(str(name)[:60] for name in names[:3])
    return shown + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
