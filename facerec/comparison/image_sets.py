"""Labelled images for comparisons: record files, folders, and four retrieval sets as published.

Images stay encoded where they are; labels, names and classes are read at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError, ImageError
from facerec.files import sha256
from facerec.records.dataset import FolderDataset, RecordDataset
from facerec.records.decode import decode_image
from facerec.records.images import FolderImages, ImageSource, turned_note
from facerec.verification.protocols.lists import MAX_NAME, parse_number, read_lines
from facerec.verification.protocols.matlab import many, read_mat

Layout = Literal["records", "folder", "cub", "cars196", "sop", "inshop"]

MAX_HASHED_BYTES = 64 << 20
"""Files beyond this size enter a fingerprint by their size alone."""

_BENCH = re.compile(
    r"((ca|cp|xq|sl)?lfw|age_?db\d*|ijb_?[abc]|rfw|tinyface|cfp_?f[pf]|cfp_dataset)(_.*)?|cfp"
)
"""Names of verification sets, in lower case and with _ for what is no letter or digit."""

_PACK_SUFFIXES = (".bin", ".npz")
_FILE_SUFFIXES = (".rec", ".npz", ".csv", ".parquet")
"""Of records and of embeddings, whose folder may bear the name too."""


@dataclass(frozen=True)
class ImageData:
    """The images that all arms of a comparison train and are scored on."""

    path: Path
    """A record file or its folder, a folder of class/image.jpg, or the folder of the set."""
    layout: Layout = "records"
    """What the path holds: records, folder, or one of the retrieval sets cub (CUB-200-2011),
    cars196, sop (Stanford Online Products) and inshop (In-Shop Clothes Retrieval)."""


class ImageSet:
    """Images of classes 0 … C−1, each class with at least two images.

    Attributes:
        labels: int64 ``(n,)``, contiguous classes; every class occurs.
        class_names: one a class, in the order of the numbers.
        ids: text ``(n,)``, unique: the key of a record, or a path inside the folder.
        partition: text ``(n,)``: train or test in Stanford Online Products, train, query or
            gallery in In-Shop; None elsewhere.
        train_classes: how many of the first classes the set itself trains on (Stanford Online
            Products, In-Shop); None elsewhere.
        notes: what a user should know, one sentence each.
    """

    def __init__(
        self,
        where: Path,
        images: ImageSource,
        labels: NDArray[np.int64],
        class_names: Sequence[str],
        files: Sequence[Path] = (),
        partition: NDArray[np.str_] | None = None,
        train_classes: int | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Leave out classes that cannot be retrieved and number the others anew, in their order.

        Args:
            where: the path, which begins the sentence of an error.
            images: the encoded images.
            labels: int64 ``(n,)``, indices into ``class_names``.
            class_names: in the order of the class numbers.
            files: what was read to know this.
            partition: text ``(n,)``, the set's own part of each image; None where it has none.
            train_classes: how many of the first classes are the set's own training classes; None
                where it does not say.
            notes: what a user should know, one sentence each.

        Raises:
            DatasetError: fewer than two classes with two images.
        """
        sizes = np.bincount(labels, minlength=len(class_names))
        kept_classes = np.flatnonzero(sizes >= 2)
        lone = np.flatnonzero(sizes == 1)
        if len(kept_classes) < 2:
            raise DatasetError(
                f"{where}: {len(kept_classes)} of {len(sizes):,} classes have two images or more, "
                "but a comparison needs classes to train on and others to score; add images"
            )
        kept = np.flatnonzero(sizes[labels] >= 2)
        number = np.full(len(sizes), -1)
        number[kept_classes] = np.arange(len(kept_classes))
        self._images, self._kept, self._files = images, kept, list(files)
        self.labels: NDArray[np.int64] = number[labels[kept]]
        self.class_names = [class_names[c] for c in kept_classes.tolist()]
        self.ids: NDArray[np.str_] = images.ids[kept]
        self.partition = None if partition is None else partition[kept]
        self.train_classes = None
        if train_classes is not None:
            self.train_classes = int((kept_classes < train_classes).sum())
        self.notes = list(notes)
        if len(lone):
            names = _some([class_names[c] for c in lone.tolist()])
            self.notes.append(
                f"{where}: {len(lone):,} of {len(sizes):,} classes have one image, which has no "
                f"other to be compared with, and are left out: {names}"
            )
        if empty := int((sizes == 0).sum()):
            self.notes.append(f"{where}: {empty:,} of {len(sizes):,} classes have no image")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return len(self.class_names)

    def where(self, i: int) -> str:
        """Name image ``i`` for a message: its file and record, or its path."""
        return self._images.where(int(self._kept[i]))

    def read(self, i: int) -> NDArray[np.uint8]:
        """Return image ``i``, decoded, as uint8 RGB ``(height, width, 3)``.

        Raises:
            FacerecError: the image is missing or damaged; the sentence names its place.
        """
        data = self._images.encoded(int(self._kept[i]))
        try:
            return decode_image(data, "", None, upright=self._images.upright)
        except ImageError:  # only now is it worth the time to word where the image is
            return decode_image(data, self.where(i), None, upright=self._images.upright)

    def fingerprint(self) -> dict[str, Any]:
        """Identify the set without reading its images, as JSON types.

        Counts, one hash over all ids and classes, and the size of every list or record file, with
        its SHA-256 up to 64 MiB.
        """
        digest = hashlib.sha256()
        for name, label in zip(self.ids.tolist(), self.labels.tolist(), strict=True):
            digest.update(f"{name}\0{self.class_names[label]}\n".encode("utf-8", "surrogatepass"))
        return {
            "images": len(self),
            "classes": self.num_classes,
            "labels_sha256": digest.hexdigest(),
            "files": [_identity(path) for path in self._files],
        }


def open_image_set(config: ImageData) -> ImageSet:
    """Open the images of a comparison.

    Verification benches are refused: they judge the models that a comparison selects, so nothing
    may be selected on them.

    Args:
        config: where they are, and in which layout.

    Raises:
        FacerecError: a bench; files missing, damaged or inconsistent (naming file and line); too
            few classes with two images.
    """
    path = Path(config.path)
    refuse_bench_name(path)
    packs = path.is_dir() and any(path.glob("*.bin")) and not any(path.glob("*.rec"))
    if packs or path.suffix in _PACK_SUFFIXES:
        raise _bench_error(path)
    if not path.exists():
        raise DatasetError(f"{path}: there is no such file or folder; check the path")
    return _READERS[config.layout](path)


def refuse_bench_name(path: Path) -> None:
    """Refuse files and folders that bear the name of a bench.

    Raises:
        DatasetError: this one does.
    """
    names = []
    for candidate in (path, path.resolve()):
        files = candidate.suffix in _FILE_SUFFIXES
        names += [candidate.stem, candidate.parent.name] if files else [candidate.name]
    if any(_BENCH.fullmatch(re.sub(r"[\W_]+", "_", name.lower())) for name in names):
        raise _bench_error(path)


def _bench_error(path: Path) -> DatasetError:
    return DatasetError(
        f"{path}: this is a verification bench, and nothing may be selected on a bench; compare on "
        "identities held out from a training set (records or a folder)"
    )


def _read_records(path: Path) -> ImageSet:
    if path.is_dir() and not any(path.glob("*.rec")):
        raise DatasetError(
            f"{path}: the folder has no .rec file; name the folder that has one, or the layout of "
            "these images in the recipe's ImageData, such as 'folder' for class/image.jpg"
        )
    dataset = RecordDataset(path)
    records = dataset.records.path
    beside = [records, records.with_suffix(".idx"), records.parent / "property"]
    names = dataset.class_names or [str(number) for number in range(dataset.num_classes)]
    notes = [*dataset.notes, *turned_note(dataset, str(path))]
    files = [file for file in beside if file.is_file()]
    return ImageSet(path, dataset, dataset.labels, names, files, notes=notes)


def _read_folder(path: Path) -> ImageSet:
    dataset = FolderDataset(path)
    assert dataset.class_names is not None
    notes = [*dataset.notes, *turned_note(dataset, str(path))]
    return ImageSet(path, dataset, dataset.labels, dataset.class_names, notes=notes)


def _read_cub(path: Path) -> ImageSet:
    """Read CUB-200-2011: images.txt, image_class_labels.txt and classes.txt; images in images/."""
    texts = [path / f"{name}.txt" for name in ("images", "image_class_labels", "classes")]
    images, numbers, classes = map(_read_numbered, texts)
    labels = {image: parse_number(text, str(texts[1])) for image, text in numbers.items()}
    if images.keys() != labels.keys() or not set(labels.values()) <= classes.keys():
        raise DatasetError(
            f"{texts[1]}: it does not give each image of images.txt one class of classes.txt; get "
            "the three files again"
        )
    listed = [(text, labels[image]) for image, text in images.items()]
    return _listed(path, path / "images", listed, texts, classes)


def _read_numbered(path: Path) -> dict[int, str]:
    """Read lines of a number and a text."""
    rows = _rows(path, 2)
    texts = {parse_number(number, where): text for where, (number, text) in rows}
    if len(texts) < len(rows):
        raise DatasetError(f"{path}: a number occurs twice; get the file again")
    return texts


_CARS_LISTS = {
    "cars_train_annos.mat": "cars_train/",
    "cars_test_annos_withlabels.mat": "cars_test/",
}
"""The lists of the devkit, and the folders of their images."""


def _read_cars196(path: Path) -> ImageSet:
    """Read Cars196 as one list, or as the devkit's two; of these the training list alone will do.

    Either ``cars_annos.mat`` (fields relative_im_path and class, images in car_ims/), or
    ``cars_train_annos.mat`` and ``cars_test_annos_withlabels.mat`` (fields fname and class, images
    in cars_train/ and cars_test/), the lists also in devkit/. Class names come from the former or
    from ``cars_meta.mat`` if it is there, else they are numbers.
    """
    known = {file.name: file for folder in (path / "devkit", path) for file in folder.glob("*.mat")}
    whole = "cars_annos.mat" in known
    lists = (
        {"cars_annos.mat": ""} if whole else {k: v for k, v in _CARS_LISTS.items() if k in known}
    )
    if "cars_train_annos.mat" not in lists and not whole:
        raise DatasetError(
            f"{path}: neither cars_annos.mat nor cars_train_annos.mat is there; give the folder of "
            "Cars196 that holds one of them, also in devkit/"
        )
    column = "relative_im_path" if whole else "fname"
    images = [
        (folder + name, number)
        for file, folder in lists.items()
        for name, number in _cars_annotations(known[file], column)
    ]
    files = [known[file] for file in lists]
    naming = files[0] if whole else known.get("cars_meta.mat")
    names: dict[int, str] | None = None
    if naming is not None:
        files += [] if whole else [naming]
        found = many(read_mat(naming, ["class_names"])["class_names"])
        names = {number: str(name) for number, name in enumerate(found, start=1)}
    notes = []
    if not whole and len(lists) < len(_CARS_LISTS):
        notes.append(
            f"{path}: Cars196, training half: {[*_CARS_LISTS][1]} is not there, so figures are "
            f"those of {len(images):,} images, not those of published tables"
        )
    return _listed(path, path, images, files, names, notes=notes)


def _cars_annotations(path: Path, column: str) -> list[tuple[str, int]]:
    """Return path and class of every image of a list."""
    images = []
    for number, row in enumerate(many(read_mat(path, ["annotations"])["annotations"]), start=1):
        cells = row if isinstance(row, dict) else {}
        name, label = cells.get(column), cells.get("class", 0)
        whole = isinstance(label, (int, float)) and float(label).is_integer() and label >= 1
        if not isinstance(name, str) or not whole:
            raise DatasetError(
                f"{path}, annotation {number}: it needs text in {column!r} and a whole number from "
                f"1 in 'class', found {name!r:.60} and {label!r:.60}; get the file again"
            )
        images.append((name, int(float(label))))
    return images


def _read_sop(path: Path) -> ImageSet:
    """Read Stanford Online Products: Ebay_train.txt and Ebay_test.txt together.

    Each begins with the line ``image_id class_id super_class_id path``. The official training
    classes (1 to 11318) come first, then the test classes, both in the order of their numbers.
    """
    files = [path / f"Ebay_{part}.txt" for part in ("train", "test")]
    rows = [
        (name, parse_number(class_id, where), file.stem.removeprefix("Ebay_"))
        for file in files
        for where, (_, class_id, _, name) in _rows(file, 4, header="image_id")
    ]
    images = [(name, label) for name, label, _ in rows]
    return _listed(path, path, images, files, parts=[part for *_, part in rows])


def _read_inshop(path: Path) -> ImageSet:
    """Read In-Shop Clothes Retrieval: list_eval_partition.txt, in the folder or in Eval/.

    Its first line is the number of images, the second ``image_name item_id evaluation_status``.
    Images are in img/ or Img/img/. Training classes come first, then those of query and gallery,
    both in the order of their item ids.
    """
    name = "list_eval_partition.txt"
    file = next((p for p in (path / "Eval" / name, path / name) if p.is_file()), path / name)
    root = path / "Img" if (path / "Img" / "img").is_dir() else path
    rows = [cells for _, cells in _rows(file, 3, header="image_name", count=True)]
    parts = [part for *_, part in rows]
    if strange := set(parts) - {"train", "query", "gallery"}:
        raise DatasetError(
            f"{file}: {min(strange)[:60]!r} is no part; it must be train, query or gallery"
        )
    return _listed(path, root, [(image, item) for image, item, _ in rows], [file], parts=parts)


def _listed(
    path: Path,
    root: Path,
    images: Sequence[tuple[str, Any]],
    files: Sequence[Path],
    names: Mapping[Any, str] | None = None,
    parts: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> ImageSet:
    """Return images given by path and class, perhaps with the part of the set that they are in.

    Classes are in the order of their numbers or names, those of the training part first.
    """
    in_train = [part == "train" for part in parts or [""] * len(images)]
    train, others = (
        {label for (_, label), inside in zip(images, in_train, strict=True) if inside is wanted}
        for wanted in (True, False)
    )
    if both := sorted(train & others):
        raise DatasetError(
            f"{path}: {len(both):,} classes are in the training part and in the test part: "
            f"{_some(both)}; get the lists again"
        )
    order = sorted(train) + sorted(others)
    if names is not None and (unnamed := [label for label in order if label not in names]):
        raise DatasetError(f"{files[-1]}: no name of class {unnamed[0]}; get the file again")
    index_of = {label: index for index, label in enumerate(order)}
    return ImageSet(
        path,
        _listed_images(root, [name for name, _ in images], files[0]),
        np.array([index_of[label] for _, label in images], np.int64),
        [str(label) if names is None else names[label] for label in order],
        files,
        None if parts is None else np.array(parts, np.str_),
        len(train) if parts else None,
        notes,
    )


_READERS: Mapping[Layout, Callable[[Path], ImageSet]] = {
    "records": _read_records,
    "folder": _read_folder,
    "cub": _read_cub,
    "cars196": _read_cars196,
    "sop": _read_sop,
    "inshop": _read_inshop,
}


def _rows(
    path: Path, columns: int, *, header: str | None = None, count: bool = False
) -> list[tuple[str, list[str]]]:
    """Split the lines of a table at blanks; the last column may hold some itself.

    Args:
        path: the file.
        columns: how many each line has.
        header: the first word of the line before the rows, if there is such a line.
        count: the line before the header is the number of rows.

    Returns:
        For every row where it is, for messages, and its columns.

    Raises:
        DatasetError: naming the line.
    """
    lines, _ = read_lines(path)
    stated = parse_number(lines.pop(0)[1], f"{path}, line 1") if count else None
    if header is not None and (not lines or lines.pop(0)[1].split()[:1] != [header]):
        raise DatasetError(
            f"{path}: the line of column names that begins with {header!r} is missing; get the "
            "file again"
        )
    rows = []
    for number, text in lines:
        cells = text.split(maxsplit=columns - 1)
        if len(cells) != columns:
            raise DatasetError(
                f"{path}, line {number}: {columns} columns are needed, found {len(cells)} in "
                f"{text[:60]!r}; mend the line or get the file again"
            )
        rows.append((f"{path}, line {number}", cells))
    if not rows or stated not in (None, len(rows)):
        raise DatasetError(f"{path}: it lists {len(rows):,} images, not all; get the file again")
    return rows


def _listed_images(root: Path, names: Sequence[str], listed_in: Path) -> FolderImages:
    """Return the images that a list names, all of which must be there."""
    # All names become one array as wide as the longest.
    if long := [name for name in names if len(name) > MAX_NAME]:
        raise DatasetError(
            f"{listed_in}: {long[0][:60]!r}… is too long for the name of a file; check that this "
            "is the right list"
        )
    images = FolderImages(root, names)
    missing = [name for name in names if not _is_file(root / name)]
    if missing:
        raise DatasetError(
            f"{listed_in}: {len(missing):,} of {len(names):,} listed images are not in {root}: "
            f"{_some(missing)}; unpack the images there"
        )
    return images


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a part of the name is longer than the file system takes
        return False


def _some(names: Sequence[Any], limit: int = 3) -> str:
    shown = ", ".join(str(name)[:60] for name in names[:limit])
    return shown + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def _identity(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"name": path.name, "bytes": size} | (
        {"sha256": sha256(path)} if size <= MAX_HASHED_BYTES else {}
    )
