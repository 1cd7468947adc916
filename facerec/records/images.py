"""Images with names, and perhaps labels, wherever they lie: in a folder, a pack or memory."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError, FacerecError, ImageError, printable
from facerec.base.files import read_file, reading
from facerec.base.names import same_name, same_names
from facerec.base.progress import Progress
from facerec.records.decode import orientation
from facerec.records.other_kinds import other_kind
from facerec.records.packs import Pack
from facerec.records.recordio import CLASS_LIMIT
from facerec.records.tables import TextTable

OnError = Literal["error", "skip"]

NAMES = "_images.csv"
"""``lfw_images.csv`` beside ``lfw.bin`` names its entries: ``index,image_id[,subject_id]``."""

SHARED_NAMES = "pairs_images.csv"
"""The same for all packs of a folder, which then hold the same images in the same order."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".jpe", ".jfif")
"""Of the images in a folder or an archive that no list names."""

OTHER_PHOTOS = (".heic", ".heif", ".avif", ".gif", ".jp2", ".jxl", ".dng", ".cr2", ".nef", ".arw")
"""Of photos that must be converted before they are read."""

_METADATA = ("thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin")
"""What systems and their file managers leave beside images, in lower case."""

_COUNTABLE = ("empty folder", "linked folder", "link", "link to elsewhere", "special file")
_SHOWN = 10
"""People named, and kinds counted, in a note."""

_LOOKED_AT = 500
"""Images of a set whose EXIF data are looked at, to tell whether there are turned ones."""

_MUCH_TEXT = 1 << 26
"""Characters, at four bytes each, from which on an array of text must be mostly text."""

_OUTSIDE = re.compile(r"\s*\Z|[/\\]|[A-Za-z]:|.*\0|(.*[/\\])?\.\.([/\\]|\Z)", re.DOTALL)
"""No path in a folder, on either kind of system, as a list may come from one and be read on the
other: empty, absolute, with a drive, a NUL or ``..``."""


class ImageSource(ABC):
    """Encoded images, each with an id that is unique among them, and perhaps numbered classes.

    Attributes:
        ids: text ``(N,)``, composed; embeddings, attributes and landmarks are joined on them.
        num_classes: labels are in ``[0, num_classes)``; some classes may have no image.
        class_names: the name of each class, ``None`` where only numbers are known.
        on_error: whether a label that is damaged or missing raises, or is -1.
        upright: whether the images are files as people keep them, which are turned as their EXIF
            data asks even if nobody aligns them; packs and records hold crops, whose pixels stay as
            stored.
        notes: what was found on opening that a user should know, one sentence each.
    """

    ids: NDArray[np.str_]
    num_classes: int = 0
    class_names: list[str] | None = None
    on_error: OnError = "error"
    upright: ClassVar[bool] = False
    notes: Sequence[str] = ()
    _labels: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def encoded(self, i: int) -> bytes:
        """Return the encoded image ``i``, of a format that `decode_image` reads.

        Raises:
            FacerecError: the image is not there or its record is damaged.
        """

    def where(self, i: int) -> str:
        """Name image ``i`` for a message."""
        return f"image {self.ids[i]}"

    def sample(self, i: int) -> tuple[bytes, int]:
        """Return the encoded image ``i`` and its class.

        Raises:
            FacerecError: the image is damaged or its label is no class.
        """
        label = self.labels.item(i)
        if label < 0:
            raise DatasetError(
                f"{self.where(i)}: it has no label, as {(self.labels < 0).sum():,} of "
                f"{len(self):,} samples; add it, or name the set as one without labels"
            )
        return self.encoded(i), label

    @property
    def labels(self) -> NDArray[np.int64]:
        """The classes of all images, int64 ``(N,)``, -1 where there is none; read on first use."""
        return self.load_labels()

    def load_labels(self, progress: Progress | None = None) -> NDArray[np.int64]:
        """Return `labels`, with a view of the reading if they are not there yet."""
        if self._labels is None:
            self._labels = self.read_labels(progress)
        return self._labels

    def read_labels(self, progress: Progress | None = None) -> NDArray[np.int64]:
        """Read the classes of all images, where they are not known once the set is open.

        Args:
            progress: called now and then with the images done.

        Raises:
            FacerecError: an image is damaged or its label is no class (``on_error="error"``).
        """
        return np.full(len(self), -1)

    def number_classes(
        self, labels: Sequence[str], numbers: bool = False, names: list[str] | None = None
    ) -> None:
        """Make classes of what the set itself calls the person on each image.

        Args:
            labels: of the images, empty where there is none: names, which are numbered in their
                order, or numbers.
            numbers: which of both.
            names: of the classes that are numbers, where they are known.

        Raises:
            DatasetError: a number that is no class.
        """
        distinct = sorted({*labels} - {""})
        classes = {name: int(name) if numbers else number for number, name in enumerate(distinct)}
        if not numbers:
            names = [same_name(name) for name in distinct]
        self.num_classes = len(names or range(max(classes.values(), default=-1) + 1))
        limit = min(self.num_classes, CLASS_LIMIT)
        self._labels = np.array([classes.get(label, -1) for label in labels], np.int64)
        for label, number in classes.items():
            if not 0 <= number < limit:
                raise DatasetError(
                    f"{self.where(list(labels).index(label))}: its label {label} is no class (from "
                    f"0 to {limit - 1:,}); number people from 0, or give them names"
                )
        self.class_names = names

    def names_of_classes(self) -> list[str]:
        """Return the name, or else the number, of each class."""
        return self.class_names or [str(number) for number in range(self.num_classes)]

    def label_names(self) -> NDArray[np.str_] | None:
        """Return who is on each image, ``(N,)``, empty where unknown; None if nobody is known."""
        if not self.num_classes:
            return None
        # The last name is for the label -1.
        return text_array([*self.names_of_classes(), ""], "the labels")[self.labels]

    @property
    def titles(self) -> NDArray[np.str_]:
        """The names of all images for people to read, text ``(N,)``."""
        return self.ids

    def by_name(self) -> dict[str, int]:
        """Return the image of each name, from `titles` and `ids`, without blanks at its ends."""
        both = self.titles.tolist(), self.ids.tolist()
        return {name.strip(): i for names in both for i, name in enumerate(names)}

    def names_sha256(self) -> str | None:
        """Return a hash of the names of all images, None where other files tell them."""
        return None


class MemoryImages(ImageSource):
    """Encoded images that a table held, such as a parquet file.

    Args:
        origin: the file that they came from, for messages.
        ids: text ``(m,)``, unique.
        contents: the encoded images, in the same order.
    """

    def __init__(self, origin: str | Path, ids: Sequence[str], contents: Sequence[bytes]) -> None:
        self.origin = str(origin)
        self.ids = text_array(ids, self.origin)
        self.contents = contents
        check_unique(self.ids, self.origin)

    def encoded(self, i: int) -> bytes:
        """Return the encoded image ``i``."""
        return self.contents[i]

    def where(self, i: int) -> str:
        """Name the file and the id of image ``i``."""
        return f"{self.origin}, image {self.ids[i]}"


class PackImages(MemoryImages):
    """The distinct images of a pack.

    Ids come from the file of names beside the pack (`names_file`) if there is one, else they are
    the number of the first entry that holds the image.

    Attributes:
        entries: int64 ``(2n,)``: for every entry of the pack, its place among the images.
        named: whether ids come from a file of names.
        subjects: subject on each image, ``(m,)``, if that file tells; else None.

    Raises:
        DatasetError: the file of names does not fit the pack.
    """

    def __init__(self, pack: Pack) -> None:
        places: dict[bytes, int] = {}
        self.entries = np.array([places.setdefault(image, len(places)) for image in pack.images])
        self.first = np.unique(self.entries, return_index=True)[1]
        super().__init__(pack.path, list(map(str, self.first)), list(places))
        self.notes = turned_note(self, self.origin)
        path = names_file(pack.path)
        self.named, self.subjects = path is not None, None
        if path is not None:
            self.ids, self.subjects = _read_names(path, pack, self.first)

    def where(self, i: int) -> str:
        """Name the first entry with image ``i``, and its pair."""
        entry = int(self.first[i])
        return f"{self.origin}, image {entry} (pair {entry // 2})"


class FolderImages(ImageSource):
    """Files below a folder; an id is the path relative to it, with ``/`` between its parts.

    The first folders are the classes, numbered in the order of their names.

    Args:
        root: the folder.
        ids: text ``(m,)``, unique. They come from lists that others wrote: a path that would leave
            the folder (absolute, ``..``) is refused here, one that leaves it through a symbolic
            link when it is read, as is a file that is missing. None takes all images at any
            depth (`walk_images`), in the order of their paths; notes say what it passed over.
        paths: where in the folder the images lie, ``(m,)``, if not where their ids say.

    Raises:
        DatasetError: the folder is not there, ids repeat, or one leaves the folder; or there is no
            image to take, or a folder that cannot be read.
    """

    upright = True

    def __init__(
        self,
        root: str | Path,
        ids: Sequence[str] | NDArray[np.str_] | None = None,
        paths: Sequence[str] | None = None,
    ) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            missing = f"{self.root}: there is no such photo, or folder of images; check the path"
            raise DatasetError(other_kind(self.root) or missing)
        self._listed = ids is not None
        if ids is None:
            ids, self.notes = walk_images(self.root)
        else:
            for name in ids if paths is None else paths:
                check_relative(str(name), str(self.root))
            self.ids = text_array(ids, str(self.root))
            check_unique(self.ids, str(self.root))
        names = [str(name) for name in (ids if paths is None else paths)]
        # One array of bytes: millions of strings would be copied by every forked worker.
        self._files = np.array(list(map(os.fsencode, names)), np.bytes_)
        self.number_classes([name.split("/")[0] if "/" in name else "" for name in names])

    @functools.cached_property
    def ids(self) -> NDArray[np.str_]:  # type: ignore[override]
        """The paths of all images, text ``(m,)``."""
        ids = text_array([os.fsdecode(name) for name in self._files.tolist()], str(self.root))
        check_unique(ids, str(self.root))
        return ids

    def __len__(self) -> int:
        return len(self._files)

    def encoded(self, i: int) -> bytes:
        """Return the bytes of file ``i``."""
        path = find_file(self.root, os.fsdecode(self._files[i]))
        # Python before 3.13 has a RuntimeError for links that lead in a circle.
        with reading(path, ImageError, "put it there, or leave it out", (OSError, RuntimeError)):
            if self._listed and not path.resolve().is_relative_to(self.root.resolve()):
                raise DatasetError(f"{path}: a symbolic link leads out of its folder")
            return read_file(path)

    def where(self, i: int) -> str:
        """Name the path of image ``i``."""
        return f"{self.root}/{os.fsdecode(self._files[i])}"

    def names_sha256(self) -> str:
        """Return a hash of the paths of all images, in their order."""
        return hashlib.sha256(self._files.view(np.uint8).data).hexdigest()


class SubjectFolders(FolderImages):
    """Aligned images in a folder of folders, one a subject: ``subject/image.jpg``.

    The content of an image, not its suffix, says of which kind it is.

    Raises:
        DatasetError: no such folder, no image of a subject in it, or folders with images inside a
            subject's.
    """

    upright = False

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        inside = np.char.count(self._files, b"/")
        if inside.max() != 1:
            where = self.where(int(inside.argmax())) if inside.any() else path
            raise DatasetError(
                f"{where}: the images are not in folders of subjects; images are expected as "
                f"{path}/subject/image.jpg"
            )
        if beside := int((inside == 0).sum()):
            self.notes = [*self.notes, f"{path}: {beside:,} images beside the folders are left out"]
        # A new array, as wide as its own names are, of which the hash is taken.
        self._files = np.array(self._files[inside == 1].tolist())
        self._labels = self.labels[inside == 1]
        check_unique(np.array(self.class_names), str(path), "folders of subjects")


def find_file(root: Path, name: str) -> Path:
    """Return the path of a file that a list names, which need not be there.

    Names on the disk may be in any Unicode form, and two folders of one name in two.
    """
    path = root / name
    if name.isascii():
        return path
    composed, decomposed = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    usual = map(root.joinpath, (name, composed, decomposed))
    others = _of_name(root, PurePosixPath(composed).parts)
    return next(filter(is_file, itertools.chain(usual, others)), path)


def _of_name(path: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield what lies under composed names in any form, by looking around."""
    if not parts:
        yield path
        return
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            if same_name(entry.name) == parts[0]:
                yield from _of_name(entry, parts[1:])


def is_file(path: Path) -> bool:
    """Tell whether there is such a file; a name that no file can have names none."""
    try:
        return path.is_file()
    except OSError:
        return False


def passed_over(where: object, passed: Counter[str], lost: Iterable[str]) -> list[str]:
    """Return what is to be told of a walk, so that nobody is lost without a word: at most one note.

    Args:
        where: the folder or archive.
        passed: how many entries of a kind were passed over: a suffix such as ``.heic``, or words.
        lost: people of whom there was something, but no image.
    """
    if not passed:
        return []
    shown = passed.most_common(_SHOWN)
    texts = [
        f"{count:,} {printable(kind)}{'s' if count > 1 and kind in _COUNTABLE else ''}"
        for kind, count in shown
    ]
    if others := passed.total() - sum(count for _, count in shown):
        texts.append(f"{others:,} others")
    text = f"{where}: {', '.join(texts)} passed over"
    if names := sorted(map(printable, lost)):
        whose = "1 person has" if len(names) == 1 else f"{len(names):,} people have"
        more = ", …" if len(names) > _SHOWN else ""
        text += f"; {whose} no other photo: {', '.join(names[:_SHOWN])}{more}"
    if photos := [kind for kind in passed if kind in OTHER_PHOTOS]:
        text += f"; convert {' and '.join(photos)} to JPEG"
    return [text]


def suffix_kind(name: str) -> str:
    """Return the suffix of a file's name in lower case, or in words that it has none."""
    return os.path.splitext(name)[1].lower() or "without suffix"  # noqa: PTH122, millions


def metadata_kind(name: str) -> str | None:
    """Return as what metadata a file or folder of that name is counted; None if it is none."""
    if name.lower() in (*_METADATA, ".ds_store"):
        return name
    return "hidden" if name.startswith(".") else None


def walk_images(root: Path) -> tuple[list[str], list[str]]:
    """Return the paths of all images below ``root``, sorted part by part.

    Images are the plain files with one of `SUFFIXES`. Links inside ``root`` are followed, those to
    folders in the first level alone. Whatever else there is, is counted and not opened.

    Returns:
        The paths, and notes on what was passed over.

    Raises:
        DatasetError: a folder cannot be read, or there are no images.
    """
    passed, people, home = Counter[str](), set[str](), root.resolve()
    found, folders = list[str](), [""]
    for inside in folders:  # which grow as they are found
        visible = False
        with (
            reading(root / inside, DatasetError, "check its rights"),
            os.scandir(root / inside) as listing,
        ):
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            metadata = metadata_kind(entry.name)
            visible |= metadata is None
            kind = metadata or _entry_kind(entry, home, top=not inside)
            if kind == "folder":
                folders.append(f"{inside}{entry.name}/")
            elif kind in SUFFIXES:
                found.append(f"{inside}{entry.name}")
            else:
                passed[kind] += 1
                if inside and metadata is None:
                    people.add(inside.split("/")[0])
        if not visible and inside:
            passed["empty folder"] += 1
    notes = passed_over(root, passed, people - {path.split("/")[0] for path in found})
    if not found:
        raise DatasetError(
            f"{root}: it holds no images ({', '.join(SUFFIXES)}); "
            f"{'; '.join([*notes, 'check the path'])}"
        )
    return sorted(found, key=lambda path: path.split("/")), notes


def _entry_kind(entry: os.DirEntry[str], home: Path, top: bool) -> str:
    """Return "folder", the suffix of a file, or what else an entry is counted as."""
    if entry.is_symlink():
        target = Path(os.path.realpath(entry.path))
        if not target.is_relative_to(home):
            return "link to elsewhere"
        if not target.exists():  # to nothing, or in a circle
            return "link"
        if target.is_dir() and not top:
            return "linked folder"
    if entry.is_file():  # nearly all, and the listing knows it
        return suffix_kind(entry.name)
    return "folder" if entry.is_dir() else "special file"


def turned_note(images: ImageSource, where: str) -> list[str]:
    """Say how many crops ask by their EXIF data to be turned, if any of those looked at does."""
    chosen = np.unique(np.linspace(0, len(images) - 1, _LOOKED_AT).astype(np.int64))
    turned = 0
    for i in chosen.tolist():
        with contextlib.suppress(FacerecError):  # whoever reads it is told
            turned += orientation(images.encoded(i)) > 1
    sentence = (
        f"{where}: {turned:,} of {len(chosen):,} images looked at are marked as turned (EXIF "
        "orientation); pixels of crops are taken as they are stored, so turn those that lie on "
        "their side"
    )
    return [sentence] if turned else []


def text_array(texts: Sequence[str] | NDArray[np.str_], where: str) -> NDArray[np.str_]:
    """Return names as one array, composed, in which each takes as much memory as the longest.

    Raises:
        DatasetError: as `width`.
    """
    width(texts, where)
    return same_names(np.asarray(texts, dtype=np.str_).reshape(-1))


def width(texts: Sequence[str] | Sequence[bytes] | NDArray[np.str_], where: str) -> int:
    """Return the length of the longest of some names, as which each counts in an array.

    Raises:
        DatasetError: it is so much longer than the others that a small file would take gigabytes.
    """
    lengths = [len(text) for text in texts]
    longest = max(lengths, default=0)
    if longest * len(lengths) > max(_MUCH_TEXT, 8 * sum(lengths)):
        raise DatasetError(
            f"{where}: the text {texts[lengths.index(longest)][:60]!r}… has {longest:,} "
            f"characters, far more than the others; shorten it"
        )
    return longest


def check_unique(ids: NDArray[np.str_], where: str, noun: str = "images") -> None:
    """Refuse ids that occur twice.

    Raises:
        DatasetError: naming the first such id and its places.
    """
    places: dict[str, int] = {}
    for place, name in enumerate(ids.tolist()):
        if (first := places.setdefault(name, place)) != place:
            raise DatasetError(
                f"{where}: the id {name!r} names two {noun} (number {first} and {place}); ids must "
                "be unique in any Unicode form, so rename one"
            )


def check_relative(name: str, where: str) -> None:
    """Refuse a path from a list that is empty, absolute or climbs out of its folder.

    Raises:
        DatasetError: naming the path and ``where`` it was found.
    """
    if _OUTSIDE.match(name):
        raise DatasetError(
            f"{where}: {name!r} is no path inside a folder of images (empty, absolute, or with "
            "'..'); write it relative to that folder"
        )


def names_file(pack: Path) -> Path | None:
    """Return the file that names the entries of a pack, if there is one."""
    beside = pack.with_name(pack.stem + NAMES), pack.with_name(SHARED_NAMES)
    return next(filter(Path.is_file, beside), None)


def _read_names(
    path: Path, pack: Pack, first: NDArray[np.int64]
) -> tuple[NDArray[np.str_], NDArray[np.str_] | None]:
    """Read the ids of some entries, and the subjects on them if there is a column."""
    table = TextTable(path)
    columns = ["index", "image_id", *(["subject_id"] if "subject_id" in table.columns else [])]
    rows = [fields for _, fields in table.rows(columns)]
    count = len(pack.images)
    if [fields[0] for fields in rows] != list(map(str, range(count))):
        raise DatasetError(
            f"{path}: it has {len(rows)} lines whose index does not run from 0 to {count - 1} as "
            f"the images of the pack do; make it again for {pack.path} or take it away"
        )
    _, names, *subjects = (text_array(texts, str(path))[first] for texts in zip(*rows, strict=True))
    check_unique(names, str(path))
    return names, subjects[0] if subjects else None
