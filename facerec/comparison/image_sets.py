"""Labelled images for comparisons: record files, folders, and four retrieval sets as published.

Images stay encoded where they are; labels, names and classes are read at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True, eq=False)
class Listing:
    """What a layout's files say, before any class is left out.

    Attributes:
        images: the encoded images.
        labels: int64 ``(n,)``, indices into ``class_names``.
        class_names: in the order of the class numbers.
        files: what was read to know this, by the name to show.
        partition: text ``(n,)``, the data set's own part of each image; None where it has none.
        train_classes: how many of the first classes are the data set's own training classes; None
            where it does not say.
        notes: what a user should know, one sentence each.
    """

    images: ImageSource
    labels: NDArray[np.int64]
    class_names: list[str]
    files: dict[str, Path]
    partition: NDArray[np.str_] | None = None
    train_classes: int | None = None
    notes: list[str] = field(default_factory=list)


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

    def __init__(self, listing: Listing, where: str) -> None:
        """Leave out classes that cannot be retrieved and number the others anew, in their order.

        Args:
            listing: what was read.
            where: the path, which begins the sentence of an error.

        Raises:
            DatasetError: fewer than two classes with two images.
        """
        sizes = np.bincount(listing.labels, minlength=len(listing.class_names))
        kept_classes = np.flatnonzero(sizes >= 2)
        lone = np.flatnonzero(sizes == 1)
        if len(kept_classes) < 2:
            raise DatasetError(
                f"{where}: {len(kept_classes)} of {len(sizes):,} classes have two images or more, "
                "but a comparison needs classes to train on and others to score; add images"
            )
        kept = np.flatnonzero(sizes[listing.labels] >= 2)
        number = np.full(len(sizes), -1)
        number[kept_classes] = np.arange(len(kept_classes))
        self._images, self._kept, self._files = listing.images, kept, listing.files
        self.labels: NDArray[np.int64] = number[listing.labels[kept]]
        self.class_names = [listing.class_names[c] for c in kept_classes]
        self.ids: NDArray[np.str_] = listing.images.ids[kept]
        self.partition = None if listing.partition is None else listing.partition[kept]
        self.train_classes = (
            None
            if listing.train_classes is None
            else int((kept_classes < listing.train_classes).sum())
        )
        self.notes = list(listing.notes)
        if len(lone):
            names = _some([listing.class_names[c] for c in lone])
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
            "files": {name: _identity(path) for name, path in self._files.items()},
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
    return ImageSet(_READERS[config.layout](path), str(path))


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


def _read_records(path: Path) -> Listing:
    if path.is_dir() and not any(path.glob("*.rec")):
        raise DatasetError(
            f"{path}: the folder has no .rec file; name the folder that has one, or the layout of "
            "these images in the recipe's ImageData, such as 'folder' for class/image.jpg"
        )
    dataset = RecordDataset(path)
    records = dataset.records.path
    beside = [records, records.with_suffix(".idx"), records.parent / "property"]
    return Listing(
        dataset,
        dataset.labels,
        dataset.class_names or [str(number) for number in range(dataset.num_classes)],
        {file.name: file for file in beside if file.is_file()},
        notes=[*dataset.notes, *turned_note(dataset, str(path))],
    )


def _read_folder(path: Path) -> Listing:
    dataset = FolderDataset(path)
    assert dataset.class_names is not None
    notes = [*dataset.notes, *turned_note(dataset, str(path))]
    return Listing(dataset, dataset.labels, dataset.class_names, {}, notes=notes)


def _read_cub(path: Path) -> Listing:
    """Read CUB-200-2011: images.txt, image_class_labels.txt and classes.txt; images in images/."""
    files = _needed(path, ("images.txt", "image_class_labels.txt", "classes.txt"), "CUB-200-2011")
    names = _read_numbered(files["images.txt"])
    classes = _read_numbered(files["classes.txt"])
    labels: dict[int, int] = {}
    where_labels = files["image_class_labels.txt"]
    for where, (image, label) in _rows(where_labels, 2):
        number, class_id = parse_number(image, where), parse_number(label, where)
        if number not in names:
            raise DatasetError(f"{where}: images.txt has no image {number}; get both files again")
        if class_id not in classes:
            raise DatasetError(f"{where}: classes.txt has no class {class_id}; check both files")
        if number in labels:
            raise DatasetError(f"{where}: image {number} has a class already; remove one line")
        labels[number] = class_id
    if missing := [number for number in names if number not in labels]:
        raise DatasetError(
            f"{where_labels}: {len(missing):,} of {len(names):,} images have no class, the first "
            f"is {missing[0]}; get the file again"
        )
    order = sorted(classes)
    return Listing(
        _listed_images(path / "images", list(names.values()), files["images.txt"]),
        _indices(order, [labels[number] for number in names]),
        [classes[number] for number in order],
        files,
    )


def _read_cars196(path: Path) -> Listing:
    """Read Cars196 as one list, or as the devkit's two; of these the training list alone will do.

    Either ``cars_annos.mat`` (fields relative_im_path and class, images in car_ims/), or
    ``cars_train_annos.mat`` and ``cars_test_annos_withlabels.mat`` (fields fname and class, images
    in cars_train/ and cars_test/), the lists also in devkit/. Class names come from the former or
    from ``cars_meta.mat`` if it is there, else they are numbers.
    """
    whole = _find_mat(path, "cars_annos.mat")
    if whole is None:
        return _read_cars_devkit(path)
    content = read_mat(whole, ["annotations", "class_names"])
    images = _cars_annotations(whole, content["annotations"], "relative_im_path")
    return _cars_listing(path, images, many(content["class_names"]), [whole])


_CARS_LISTS = {
    "cars_train_annos.mat": "cars_train/",
    "cars_test_annos_withlabels.mat": "cars_test/",
}
"""The lists of the devkit, and the folders of their images."""


def _read_cars_devkit(path: Path) -> Listing:
    images: list[tuple[str, int]] = []
    files: list[Path] = []
    notes: list[str] = []
    for name, folder in _CARS_LISTS.items():
        file = _find_mat(path, name)
        if file is None and files:
            notes.append(
                f"{path}: Cars196, training half: {name} is not there, so figures are those of "
                f"{len(images):,} images, not those of published tables"
            )
            continue
        if file is None:
            raise DatasetError(
                f"{path}: neither cars_annos.mat nor {name} is there; give the folder of Cars196 "
                "that holds one of them, also in devkit/"
            )
        rows = read_mat(file, ["annotations"])["annotations"]
        labelled = _cars_annotations(file, rows, "fname")
        images += [(folder + image, number) for image, number in labelled]
        files.append(file)
    meta = _find_mat(path, "cars_meta.mat")
    if meta is None:
        return _cars_listing(path, images, None, files, notes)
    names = many(read_mat(meta, ["class_names"])["class_names"])
    return _cars_listing(path, images, names, [*files, meta], notes)


def _cars_listing(
    path: Path,
    images: Sequence[tuple[str, int]],
    names: list[Any] | None,
    files: Sequence[Path],
    notes: Sequence[str] = (),
) -> Listing:
    """Return images given by path and class, from 1; the last file holds the names of classes."""
    numbers = [number for _, number in images]
    order = sorted(set(numbers))
    if names is None:
        class_names = [str(number) for number in order]
    elif order[-1] <= len(names) and all(isinstance(name, str) for name in names):
        class_names = [names[number - 1] for number in order]
    else:
        raise DatasetError(
            f"{files[-1]}: 'class_names' holds {len(names):,} entries that do not name the "
            f"classes up to {order[-1]}; get the file again"
        )
    return Listing(
        _listed_images(path, [name for name, _ in images], files[0]),
        _indices(order, numbers),
        class_names,
        {file.name: file for file in files},
        notes=list(notes),
    )


def _cars_annotations(path: Path, rows: Any, column: str) -> list[tuple[str, int]]:
    """Return path and class of every image of a list."""
    images = []
    for number, row in enumerate(many(rows), start=1):
        cells = row if isinstance(row, dict) else {}
        name, label = cells.get(column), cells.get("class")
        if (
            not isinstance(name, str)
            or not isinstance(label, (int, float))
            or not float(label).is_integer()
            or label < 1
        ):
            raise DatasetError(
                f"{path}, annotation {number}: it needs text in {column!r} and a whole number from "
                f"1 in 'class', found {name!r:.60} and {label!r:.60}; get the file again"
            )
        images.append((name, int(label)))
    if not images:
        raise DatasetError(f"{path}: it lists nothing; get the file again")
    return images


def _find_mat(path: Path, name: str) -> Path | None:
    return next((p for p in (path / name, path / "devkit" / name) if p.is_file()), None)


def _read_sop(path: Path) -> Listing:
    """Read Stanford Online Products: Ebay_train.txt and Ebay_test.txt together.

    Each begins with the line ``image_id class_id super_class_id path``. The official training
    classes (1 to 11318) come first, then the test classes, both in the order of their numbers.
    """
    files = _needed(path, ("Ebay_train.txt", "Ebay_test.txt"), "Stanford Online Products")
    rows = [
        (name, parse_number(class_id, where), part)
        for part, file in zip(("train", "test"), files.values(), strict=True)
        for where, (_, class_id, _, name) in _rows(file, 4, header="image_id")
    ]
    return _partitioned(path, path, rows, files)


def _read_inshop(path: Path) -> Listing:
    """Read In-Shop Clothes Retrieval: list_eval_partition.txt, in the folder or in Eval/.

    Its first line is the number of images, the second ``image_name item_id evaluation_status``.
    Images are in img/ or Img/img/. Training classes come first, then those of query and gallery,
    both in the order of their item ids.
    """
    name = "list_eval_partition.txt"
    file = next((p for p in (path / "Eval" / name, path / name) if p.is_file()), path / name)
    root = path / "Img" if (path / "Img" / "img").is_dir() else path
    rows = _rows(file, 3, header="image_name", count=True)
    for where, (_, _, part) in rows:
        if part not in ("train", "query", "gallery"):
            raise DatasetError(
                f"{where}: {part[:60]!r} is no part; it must be train, query or gallery"
            )
    return _partitioned(file, root, [cells for _, cells in rows], {file.name: file})


def _partitioned(
    where: Path, root: Path, rows: Sequence[Sequence[Any]], files: dict[str, Path]
) -> Listing:
    """Return images given by path, class and part; the classes of the training part come first."""
    train = {name for _, name, part in rows if part == "train"}
    others = {name for _, name, part in rows if part != "train"}
    if both := sorted(train & others):
        raise DatasetError(
            f"{where}: {len(both):,} classes are in the training part and in the test part: "
            f"{_some(both)}; get the lists again"
        )
    images, classes, partition = zip(*rows, strict=True)
    order = sorted(train) + sorted(others)
    return Listing(
        _listed_images(root, images, next(iter(files.values()))),
        _indices(order, classes),
        [str(name) for name in order],
        files,
        np.array(partition, np.str_),
        len(train),
    )


_READERS: Mapping[Layout, Callable[[Path], Listing]] = {
    "records": _read_records,
    "folder": _read_folder,
    "cub": _read_cub,
    "cars196": _read_cars196,
    "sop": _read_sop,
    "inshop": _read_inshop,
}


def _needed(path: Path, names: Sequence[str], of: str) -> dict[str, Path]:
    """Return the files of a data set by name; all must be there."""
    if lacking := [name for name in names if not (path / name).is_file()]:
        raise DatasetError(
            f"{path}: {', '.join(lacking)} of {of} is not there; give the folder that holds "
            f"{', '.join(names)}"
        )
    return {name: path / name for name in names}


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
    stated = -1
    if count:
        number, text = lines.pop(0)
        stated = parse_number(text, f"{path}, line {number}")
    if header is not None:
        number, text = lines.pop(0) if lines else (0, "")
        if text.split()[:1] != [header]:
            raise DatasetError(
                f"{path}, line {number}: the line of column names that begins with {header!r} is "
                f"missing, found {text[:60]!r}; get the file again"
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
    if stated not in (-1, len(rows)):
        raise DatasetError(
            f"{path}, line 1: {stated:,} images are announced, but {len(rows):,} lines follow; "
            "the file was cut or changed, get it again"
        )
    if not rows:
        raise DatasetError(f"{path}: it lists nothing; get the file again")
    return rows


def _read_numbered(path: Path) -> dict[int, str]:
    """Read lines of a number and a text."""
    texts: dict[int, str] = {}
    for where, (number, text) in _rows(path, 2):
        key = parse_number(number, where)
        if key in texts:
            raise DatasetError(f"{where}: the number {key} occurs before; remove one of the lines")
        texts[key] = text
    return texts


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


def _indices(order: Sequence[Any], values: Sequence[Any]) -> NDArray[np.int64]:
    """Return the index of each value in ``order``."""
    index_of = {value: i for i, value in enumerate(order)}
    return np.array([index_of[value] for value in values], np.int64)


def _some(names: Sequence[Any], limit: int = 3) -> str:
    shown = ", ".join(str(name)[:60] for name in names[:limit])
    return shown + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def _identity(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"bytes": size} | ({"sha256": sha256(path)} if size <= MAX_HASHED_BYTES else {})
