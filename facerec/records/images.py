"""Images with names, wherever they lie: a pack, a folder, a record file, a table in memory."""

from __future__ import annotations

import os
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError, ImageError, PackError
from facerec.names import same_name, same_names
from facerec.records.packs import Pack
from facerec.tables import Table

NAMES = "_images.csv"
"""``lfw_images.csv`` beside ``lfw.bin`` names its entries: ``index,image_id[,subject_id]``."""

SHARED_NAMES = "pairs_images.csv"
"""The same for all packs of a folder, which then hold the same images in the same order."""

SUFFIXES = (".jpg", ".jpeg", ".png")
"""Of the images in a folder that no list names."""

_MUCH_TEXT = 1 << 26
"""Characters, at four bytes each, from which on an array of text must be mostly text."""

_PLAIN = re.compile(r"[^\\:\0./\s][^\\:\0]*")
"""Names that need no closer look, unless they hold ``..``: nearly all."""


class ImageSource(ABC):
    """Encoded images, each with an id that is unique among them.

    Attributes:
        ids: text ``(m,)``, composed; embeddings, attributes and landmarks are joined on them.
    """

    ids: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def encoded(self, i: int) -> bytes:
        """Return the encoded image ``i``, JPEG or PNG.

        Raises:
            FacerecError: the image is not there or its record is damaged.
        """

    def where(self, i: int) -> str:
        """Name image ``i`` for a message."""
        return f"image {self.ids[i]}"


class PackImages(ImageSource):
    """The distinct images of a pack.

    Ids come from the file of names beside the pack (`names_file`) if there is one, else they are
    the number of the first entry that holds the image.

    Attributes:
        entries: int64 ``(2n,)``: for every entry of the pack, its place among the images.
        named: whether ids come from a file of names.
        subjects: subject on each image, ``(m,)``, if that file tells; else None.

    Raises:
        PackError: the file of names does not fit the pack.
    """

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.first, self.entries = pack.distinct()
        self.subjects: NDArray[np.str_] | None = None
        path = None if pack.path is None else names_file(pack.path)
        self.named = path is not None
        if path is None:
            self.ids = self.first.astype(np.str_)
            return
        names, subjects = _read_names(path, pack)
        self.ids = names[self.first]
        check_unique(self.ids, str(path))
        if subjects is not None:
            self.subjects = subjects[self.first]

    def encoded(self, i: int) -> bytes:
        """Return the encoded image ``i``."""
        return self.pack.encoded(int(self.first[i]))

    def where(self, i: int) -> str:
        """Name the first entry with image ``i``, and its pair."""
        entry = int(self.first[i])
        return f"{self.pack.path or self.pack.name}, image {entry} (pair {entry // 2})"


class FolderImages(ImageSource):
    """Files below a folder; an id is the path relative to it, with ``/`` between its parts.

    Args:
        root: the folder.
        ids: text ``(m,)``, unique. They come from lists that others wrote: a path that would leave
            the folder (absolute, ``..``) is refused here, one that leaves it through a symbolic
            link when it is read, as is a file that is missing. None takes all .jpg, .jpeg and .png
            files at any depth, hidden ones excepted, in the order of their paths.

    Raises:
        DatasetError: the folder is not there, ids repeat, or one leaves the folder; or there is no
            image to take, or a folder that cannot be read.
    """

    def __init__(
        self, root: str | Path, ids: Sequence[str] | NDArray[np.str_] | None = None
    ) -> None:
        self.root = Path(root)
        self.ids = text_array(_list_images(self.root) if ids is None else ids, str(self.root))
        if not self.root.is_dir():
            raise DatasetError(f"{self.root}: there is no such folder of images; check the path")
        check_unique(self.ids, str(self.root))
        for name in self.ids.tolist():
            check_relative(name, str(self.root))
        self._resolved = self.root.resolve()

    def encoded(self, i: int) -> bytes:
        """Return the bytes of file ``i``."""
        path = find_file(self.root, str(self.ids[i]))
        try:
            if not path.resolve().is_relative_to(self._resolved):
                raise DatasetError(
                    f"{path}: the image leads out of its folder through a symbolic link; put the "
                    "file itself there"
                )
            return path.read_bytes()
        # Python before 3.13 has a RuntimeError for links that lead in a circle.
        except (OSError, RuntimeError) as problem:
            why = getattr(problem, "strerror", None) or problem
            raise ImageError(
                f"{path}: the image cannot be read ({why}); put it there "
                "or take its pairs out of the list"
            ) from problem

    def where(self, i: int) -> str:
        """Name the path of image ``i``."""
        return str(self.root / str(self.ids[i]))

    def first_folders(self) -> NDArray[np.str_] | None:
        """Return the first folder of each path, ``(m,)``, empty without; None if none has one."""
        folders = [name.split("/")[0] if "/" in name else "" for name in self.ids.tolist()]
        return np.array(folders, np.str_) if any(folders) else None


def find_file(root: Path, name: str) -> Path:
    """Return the path of a file that a list names, which need not be there.

    Names on the disk may be in any Unicode form, and two folders of one name in two.
    """
    path = root / name
    if name.isascii() or is_file(path):
        return path
    return next(filter(is_file, _of_name(root, PurePosixPath(name).parts)), path)


def _of_name(path: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield what lies under names in any form: first in the usual ones, then by looking around."""
    if not parts:
        yield path
        return
    forms = (unicodedata.normalize(form, parts[0]) for form in ("NFC", "NFD"))
    try:
        for entries in (lambda: map(path.joinpath, forms), path.iterdir):
            for entry in entries():
                if same_name(entry.name) == same_name(parts[0]):
                    yield from _of_name(entry, parts[1:])
    except OSError:
        return


def is_file(path: Path) -> bool:
    """Tell whether there is such a file; a name that no file can have names none."""
    try:
        return path.is_file()
    except OSError:
        return False


def _list_images(root: Path) -> list[str]:
    """Return the paths of all images below a folder, relative to it, sorted."""
    paths: list[str] = []

    def refuse(problem: OSError) -> None:
        if root.exists():  # nobody may be missing without a word
            raise DatasetError(
                f"{problem.filename}: the folder cannot be read ({problem.strerror or problem}); "
                "check its rights"
            ) from problem

    for folder, folders, files in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(folder).relative_to(root)
        paths += [
            (inside / name).as_posix()
            for name in files
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        ]
    if not paths:
        raise DatasetError(
            f"{root}: no such folder, or no {', '.join(SUFFIXES)} in it; check the path"
        )
    return sorted(paths)


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


def text_array(texts: Sequence[str] | NDArray[np.str_], where: str) -> NDArray[np.str_]:
    """Return names as one array, composed, in which each takes as much memory as the longest.

    Raises:
        DatasetError: one is so much longer than the others that a small file would take gigabytes.
    """
    lengths = [len(text) for text in texts]
    longest = max(lengths, default=0)
    if longest * len(lengths) > max(_MUCH_TEXT, 8 * sum(lengths)):
        i = lengths.index(longest)
        raise DatasetError(
            f"{where}: the text {texts[i][:60]!r}… has {longest:,} characters, where the "
            f"{len(lengths):,} beside it have {sum(lengths) // len(lengths):,} on average; shorten "
            "it, or check that this is the right file"
        )
    return same_names(np.asarray(texts, dtype=np.str_).reshape(-1))


def check_unique(ids: NDArray[np.str_], where: str, noun: str = "images") -> None:
    """Refuse ids that occur twice.

    Raises:
        DatasetError: naming the first such id and its places.
    """
    values, index, counts = np.unique(ids, return_index=True, return_counts=True)
    if len(values) == len(ids):
        return
    repeated = np.flatnonzero(counts > 1)
    first = repeated[np.argmin(index[repeated])]
    positions = np.flatnonzero(ids == values[first])[:2].tolist()
    raise DatasetError(
        f"{where}: the id {str(values[first])!r} names two {noun} (number {positions[0]} and "
        f"{positions[1]}); ids must be unique in any Unicode form, so rename one"
    )


def check_relative(name: str, where: str) -> None:
    """Refuse a path from a list that is empty, absolute or climbs out of its folder.

    Raises:
        DatasetError: naming the path and ``where`` it was found.
    """
    if _PLAIN.fullmatch(name) and ".." not in name:
        return
    # A list may come from either kind of system, and be read on either.
    paths = PurePosixPath(name), PureWindowsPath(name)
    leaves = any(path.is_absolute() or path.drive or ".." in path.parts for path in paths)
    if not name.strip() or "\0" in name or leaves:
        raise DatasetError(
            f"{where}: {name!r} is no path inside a folder of images (empty, absolute, or with "
            "'..'); write it relative to that folder"
        )


def names_file(pack: Path) -> Path | None:
    """Return the file that names the entries of a pack, if there is one."""
    for path in (pack.with_name(pack.stem + NAMES), pack.with_name(SHARED_NAMES)):
        if path.is_file():
            return path
    return None


def _read_names(path: Path, pack: Pack) -> tuple[NDArray[np.str_], NDArray[np.str_] | None]:
    """Read the ids of all entries, ``(2n,)``, and the subjects if there is a column."""
    table = Table(path, PackError)
    columns = ["index", "image_id", *(["subject_id"] if "subject_id" in table.columns else [])]
    rows = [fields for _, fields in table.rows(columns)]
    if [fields[0] for fields in rows] != [str(entry) for entry in range(2 * len(pack))]:
        raise PackError(
            f"{path}: it has {len(rows)} lines whose index does not run from 0 to "
            f"{2 * len(pack) - 1} as the images of the pack do; make it again for {pack.path} or "
            "take it away"
        )
    names, *subjects = (
        text_array([fields[place] for fields in rows], str(path))
        for place in range(1, len(columns))
    )
    return names, subjects[0] if subjects else None
