"""WebDataset: images in tar files, or shards, with their labels beside them, read by position.

The library of that name streams shards and shuffles what passes by, so that a run could not go on
where it stopped. Here an index of every shard says where its images lie; it is made in one pass
over the headers and kept beside the shard. Members' names are names, never paths.

A sample is an image and the labels that share its name up to the last dot, which is its key:
``000/17.jpg`` and ``000/17.cls``. Its label is the first that there is of ``.cls``, ``.json`` and
``.txt``, of which the last must be a number, since any other text is a caption. WebDataset itself
ends keys at the first dot, https://github.com/webdataset/webdataset#the-webdataset-format: where
the sample of that key has image and label, ``17.mask.png`` without a label is a field of it and is
passed over. Every member is used or counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError, RecordError, printable
from facerec.files import atomic_path, open_file, parse_json
from facerec.names import same_name
from facerec.npz import ArchiveError, read_arrays
from facerec.progress import Progress
from facerec.records.images import (
    OTHER_PHOTOS,
    SUFFIXES,
    Account,
    LabelledImages,
    metadata_kind,
    suffix_kind,
)
from facerec.records.recordio import CLASS_LIMIT
from facerec.shards import is_pattern, shard_paths

SUFFIX = ".tar"
INDEX = ".index.npz"
"""Behind the name of a shard."""

LABEL_KEYS = ("label", "cls", "class", "identity", "subject_id")
"""Of these, the first that an object in a ``.json`` has is the label."""

_LABELS = (".cls", ".json", ".txt")
_MAX_LABEL = 1 << 20
"""Bytes of a label; captions and metadata of others may be long, a person's name is not."""

_FORMAT = 3
_MAX_INDEX = 16 << 30
_MAX_NUMBER = 64
"""Bytes of a number in a text, with what is around it; whatever is longer is a caption."""

_NUMBER = re.compile(rb"-?[0-9]{1,15}")


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """Where the images of one shard are, in its order."""

    keys: NDArray[np.bytes_]
    """``(n,)``, UTF-8."""
    offsets: NDArray[np.int64]
    """``(n,)``, of the image's first byte."""
    sizes: NDArray[np.int64]
    """``(n,)``, in bytes."""
    labels: NDArray[np.bytes_]
    """``(n,)``, as they are written; empty where there is none."""
    account: NDArray[np.bytes_]
    """``(1,)``, JSON: how many members of each kind were passed over, how many are metadata, and
    labels, or else keys, of samples without an image."""
    stamp: NDArray[np.int64]
    """``(3,)``: format, size and time of change of the shard in nanoseconds."""

    def add_to(self, account: Account) -> None:
        """Count what was passed over."""
        passed, metadata, people = parse_json(bytes(self.account[0]))
        account.passed.update({str(kind): int(count) for kind, count in passed.items()})
        account.metadata.update({str(kind): int(count) for kind, count in metadata.items()})
        for name in people:
            account.people[str(name)] = False


def is_tar_shards(path: Path) -> bool:
    """Tell whether a path stands for shards: a .tar, a folder of such alone, braces or stars.

    A folder with a record file holds records, beside which an archive of them may lie.
    """
    if path.suffix.lower() == SUFFIX:
        return path.is_file() or is_pattern(path)
    if not path.is_dir():
        return False
    visible = [entry for entry in path.iterdir() if entry.name[0] != "."]
    return any(entry.suffix.lower() == SUFFIX for entry in visible) and not any(
        entry.suffix == ".rec" or entry.is_dir() for entry in visible
    )


class TarImages(LabelledImages):
    """The images of WebDataset shards, in the order of the shards and of their members.

    Labels that are all whole numbers are the classes; else they are names, and numbered in their
    order. Images without one are of the class -1. Images are named by their keys, and if shards
    repeat those, by ``SHARD/KEY``.

    Attributes:
        shards: the files.
    """

    def __init__(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Open the shards and their indexes; those that are missing or old are made.

        Args:
            path: a ``.tar``, the folder of some, or a pattern such as ``shards-{000..009}.tar``.
            progress: called with the shards done.

        Raises:
            DatasetError: no such shard, one that is truncated or no plain tar, a sample with two
                images or a label that is no class, or a key that a shard has twice.
        """
        path = Path(path)
        self.shards = shard_paths(path, SUFFIX)
        if not self.shards:
            raise DatasetError(f"{path}: there is no such {SUFFIX} file, or none in it")
        indexes: list[ShardIndex] = []
        for number, shard in enumerate(self.shards):
            indexes.append(self._index(shard))
            if progress is not None:
                progress("indexing", number + 1, len(self.shards))
        # Arrays of bytes: millions of strings would be copied by every forked worker.
        self._keys = np.concatenate([index.keys for index in indexes])
        self._offsets = np.concatenate([index.offsets for index in indexes])
        self._sizes = np.concatenate([index.sizes for index in indexes])
        self._starts = np.cumsum([0, *(len(index.keys) for index in indexes)])
        labels = np.concatenate([index.labels for index in indexes])
        account = Account()
        for index in indexes:
            index.add_to(account)
        there = set(np.unique(labels).tolist())
        account.people.update({name: name.encode() in there for name in account.people})
        for entry in path.iterdir() if path.is_dir() else ():
            if (kind := metadata_kind(entry.name)) is not None:
                account.metadata[kind] += 1
            elif entry not in self.shards and not entry.name.endswith(INDEX):
                account.passed[suffix_kind(entry.name)] += 1
        if not len(self._keys):
            found = str(account) or "they are empty"
            raise DatasetError(f"{path}: its shards have no samples ({found}); check the path")
        self.add_notes(account.notes(str(path)))
        # WebDataset asks for keys that differ within a shard alone.
        self._prefixed = len(np.unique(self._keys)) < len(self._keys)
        if self._prefixed:
            if len({shard.stem for shard in self.shards}) < len(self.shards):
                raise DatasetError(
                    f"{path}: shards repeat keys, and two shards have one name, so images cannot "
                    "be told apart; rename one shard"
                )
            self.add_notes(
                [
                    f"{path}: shards repeat keys, so an image is named after its shard too, as in "
                    f"{printable(self.name(0))}"
                ]
            )
        self._number_classes(labels)

    def __len__(self) -> int:
        return len(self._keys)

    def sample(self, i: int) -> tuple[bytes, int]:
        """See `LabelledImages.sample`; an image without a label is refused."""
        label = self._classes.item(i)
        if label < 0:
            self.refuse_unlabelled(i)
        return self.encoded(i), label

    def refuse_unlabelled(self, i: int, more: str = "") -> NoReturn:
        """Say that image ``i`` has no label, and ``more``.

        Raises:
            DatasetError: always.
        """
        raise DatasetError(
            f"{self.where(i)}: it has no label, a .cls with a number or name, a .txt with a "
            f"number, or a .json with one of {', '.join(LABEL_KEYS)}; add it, or name the set as "
            f"one without labels{more}"
        )

    def encoded(self, i: int) -> bytes:
        """Return the encoded image ``i``, which needs no label."""
        shard, size = self.shards[self._shard(i)], self._sizes.item(i)
        try:
            with open_file(shard) as file:
                data = os.pread(file.fileno(), size, self._offsets.item(i))
        except OSError as problem:
            raise DatasetError(
                f"{shard}: cannot be read ({problem.strerror or problem}); check that it is still "
                "there and its rights"
            ) from problem
        if len(data) != size:
            raise RecordError(
                f"{self.where(i)}: {len(data):,} of {size:,} bytes are there; the shard was "
                "changed, start again"
            )
        return data

    def where(self, i: int) -> str:
        """Name the shard and the key of image ``i``."""
        return f"{self.shards[self._shard(i)]}, sample {_text(self._keys[i])}"

    def name(self, i: int) -> str:
        """Return the key of the sample, behind the name of its shard where shards repeat keys."""
        key = _text(self._keys[i])
        return f"{self.shards[self._shard(i)].stem}/{key}" if self._prefixed else key

    def names_sha256(self) -> str:
        """Return a hash of keys and classes and of the size of every image, in their order."""
        digest = hashlib.sha256("\0".join(self.class_names or []).encode(errors="surrogateescape"))
        for array in (self._keys, self._classes, self._sizes, self._starts):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def read_labels(self, progress: Progress | None = None) -> NDArray[np.int64]:
        """See `LabelledImages.read_labels`; nothing needs to be read."""
        return self._classes

    def _shard(self, i: int) -> int:
        return int(np.searchsorted(self._starts, i, side="right")) - 1

    def _index(self, shard: Path) -> ShardIndex:
        """Return the index beside a shard, or make it."""
        path = shard.with_name(shard.name + INDEX)
        stamp = _stamp(shard)
        index = _read_index(path, stamp)
        if index is not None:
            return index
        index = index_shard(shard, stamp)
        try:
            with atomic_path(path, DatasetError) as temporary, temporary.open("wb") as file:
                np.savez(file, **vars(index))
        except DatasetError as problem:
            if _read_index(path, stamp) is None:  # else another process has just written it
                self.add_notes(
                    [f"{shard}: its index is not kept and is made again each time ({problem})"]
                )
        return index

    def _number_classes(self, labels: NDArray[np.bytes_]) -> None:
        """Give each label its class, -1 where there is none."""
        distinct, inverse = np.unique(labels, return_inverse=True)
        known = distinct != b""
        classes = np.full(len(distinct), -1)
        if all(_NUMBER.fullmatch(label) for label in distinct[known].tolist()):
            classes[known] = distinct[known].astype(np.int64)
            wrong = known & ((classes < 0) | (classes >= CLASS_LIMIT))
            if wrong.any():
                first = int(np.flatnonzero(wrong[inverse])[0])
                raise DatasetError(
                    f"{self.where(first)}: its label {_text(labels[first])} is no class (from 0 to "
                    f"{CLASS_LIMIT - 1:,}); number people from 0, or give them names"
                )
        else:
            classes[known] = np.arange(known.sum())
            self.class_names = [_text(label) for label in distinct[known]]
        self._classes: NDArray[np.int64] = classes[inverse]
        self.num_classes = int(classes.max()) + 1


def index_shard(path: Path, stamp: NDArray[np.int64] | None = None) -> ShardIndex:
    """Go through the members of a shard once.

    Args:
        path: the shard, a plain tar.
        stamp: of the file, if that was looked at before.

    Raises:
        DatasetError: it cannot be read, is compressed, truncated or damaged; or a sample has a
            member twice or two images.
    """
    stamp = _stamp(path) if stamp is None else stamp
    account = Account()
    rows: list[tuple[bytes, int, int, bytes]] = []
    try:
        with open_file(path) as file:
            groups = _groups(path, file, account)
            labels = {key: _label(path, file, fields, key) for key, fields in groups.items()}
    except OSError as problem:
        raise DatasetError(
            f"{path}: the shard cannot be read ({problem.strerror or problem}); check the path"
        ) from problem
    for key, fields in groups.items():
        label, field = labels[key]
        images = [name for name in fields if name in SUFFIXES]
        others = [name for name in fields if name not in (*images, field)]
        if len(images) > 1:
            raise DatasetError(
                f"{path}: sample {_text(key)} has two images ({', '.join(sorted(images))}); keep "
                "one of them"
            )
        if not images:
            others += filter(None, [field])
            if label or any(name in OTHER_PHOTOS for name in others):
                account.people[_text(label or key)] = False
        elif not label and _is_field(key, groups, labels):
            others = [f".{_text(key.rpartition(b'/')[2].partition(b'.')[2])}{images[0]}"]
        else:
            rows.append((key, *fields[images[0]], label))
        account.passed.update(others)
    known = json.dumps([account.passed, account.metadata, list(account.people)])
    return ShardIndex(
        _bytes_array([row[0] for row in rows], path),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.int64),
        _bytes_array([row[3] for row in rows], path),
        np.array([known.encode()]),
        stamp,
    )


_Groups = dict[bytes, dict[str, tuple[int, int]]]
"""Offset and size of each field of each key."""


def _groups(path: Path, file: IO[bytes], account: Account) -> _Groups:
    """Return what may be a sample, in the order of the shard; count the other members."""
    groups: _Groups = {}
    for member in _members(path, file, account):
        folder, _, name = member.name.rpartition("/")
        parts = (part for part in (*folder.split("/"), name) if part not in (".", ".."))
        # Names with two underscores are WebDataset's own notes on a shard.
        metadata = next(filter(None, map(metadata_kind, parts)), None) or (
            "__ file" if name.startswith("__") else None
        )
        field = suffix_kind(name)
        if metadata is not None:
            account.metadata[metadata] += 1
        elif field not in (*SUFFIXES, *_LABELS, *OTHER_PHOTOS):
            account.passed[field] += 1
        else:
            stem = name[: -len(field)]
            key = _utf8(f"{folder}/{stem}" if folder else stem)
            fields = groups.setdefault(key, {})
            if field in fields:
                raise DatasetError(
                    f"{path}: sample {_text(key)} has {field} twice; keys must differ within a "
                    "shard, remove or rename one"
                )
            fields[field] = member.offset_data, member.size
    return groups


def _is_field(key: bytes, groups: _Groups, labels: dict[bytes, tuple[bytes, str]]) -> bool:
    """Tell whether an image without a label is a field of the sample named up to the first dot."""
    folder, slash, name = key.rpartition(b"/")
    whole = folder + slash + name.partition(b".")[0]
    return (
        whole != key
        and whole in groups
        and bool(labels[whole][0] and SUFFIXES & groups[whole].keys())
    )


def _members(path: Path, file: IO[bytes], account: Account) -> Iterator[tarfile.TarInfo]:
    """Yield the plain files of a tar; what is no whole tar ends in a sentence.

    tarfile itself takes a header that it cannot read for the end.
    """
    size = os.fstat(file.fileno()).st_size
    end = 0
    try:
        archive = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="surrogateescape")
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # millions would stay in memory
            stop = member.offset_data + member.size
            if not end <= member.offset_data <= stop <= size or member.issparse():
                raise tarfile.ReadError(
                    f"{printable(member.name)[:80]!r} is truncated, or stored with holes"
                )
            end = archive.offset
            if member.isreg():
                yield member
            elif not member.isdir():
                kind = "link" if member.issym() or member.islnk() else "device"
                account.passed["pipe" if member.isfifo() else kind] += 1
        file.seek(end)
        if len(last := file.read(512)) < 512 or any(last):
            raise tarfile.ReadError("truncated or damaged")
        while rest := file.read(1 << 20):
            if any(rest):
                raise tarfile.ReadError("there is more, as where tars were joined with cat")
    except (DatasetError, OSError):
        raise
    # Damaged headers end in errors of many kinds.
    except Exception as problem:
        raise DatasetError(
            f"{path}: no whole tar after byte {end:,} ({str(problem)[:200] or 'it is empty'}); "
            "copy it again; a compressed shard must be unpacked first (gunzip)"
        ) from problem


def _label(
    path: Path, file: IO[bytes], fields: dict[str, tuple[int, int]], key: bytes
) -> tuple[bytes, str]:
    """Return the label of a sample in UTF-8 and its field, both empty if it has none."""
    for field in _LABELS:
        offset, size = fields.get(field, (0, 0))
        if field not in fields or (field == ".txt" and size > _MAX_NUMBER):  # a caption
            continue
        try:
            if size > _MAX_LABEL:
                raise ValueError(f"{size:,} bytes, at most {_MAX_LABEL:,} are read")
            content = os.pread(file.fileno(), size, offset)
            value = parse_json(content) if field == ".json" else content.decode("utf-8")
            if isinstance(value, dict):
                known = (value[name] for name in LABEL_KEYS if value.get(name) is not None)
                value = next(known, None)
            if isinstance(value, bool) or not isinstance(value, (int, str, type(None))):
                raise ValueError(f"{str(value)[:40]!r} is no whole number and no text")
        except ValueError as problem:
            if field == ".txt":
                continue
            raise DatasetError(
                f"{path}, sample {_text(key)}: its {field} is not the label in UTF-8 or JSON that "
                f"it should be ({str(problem)[:100]}); write it again"
            ) from problem
        text = _utf8("" if value is None else str(value).strip())
        if text and (field != ".txt" or _NUMBER.fullmatch(text)):
            return text, field
    return b"", ""


def _read_index(path: Path, stamp: NDArray[np.int64]) -> ShardIndex | None:
    """Return the index of a shard as it is now, if there is a sound one."""
    names = ShardIndex.__dataclass_fields__.keys()
    try:
        arrays, _ = read_arrays(path, path.stat().st_size, names, _MAX_INDEX)
        index = ShardIndex(**arrays)
        index.add_to(Account())
    except (OSError, ArchiveError, TypeError, ValueError, AttributeError, IndexError):
        return None
    shape = index.keys.shape
    sound = (
        np.array_equal(index.stamp, stamp)
        and len(shape) == 1
        and index.keys.dtype.kind == index.labels.dtype.kind == "S"
        and index.offsets.dtype == index.sizes.dtype == np.int64
        and index.labels.shape == index.offsets.shape == index.sizes.shape == shape
        and bool(((index.offsets >= 0) & (index.sizes >= 0)).all())
        and bool((index.sizes <= stamp[1] - index.offsets).all())
        and len(np.unique(index.keys)) == len(index.keys)
    )
    return index if sound else None


def _stamp(shard: Path) -> NDArray[np.int64]:
    try:
        facts = shard.stat()
    except OSError as problem:
        raise DatasetError(
            f"{shard}: the shard cannot be read ({problem.strerror or problem}); check the path"
        ) from problem
    return np.array([_FORMAT, facts.st_size, facts.st_mtime_ns], np.int64)


def _bytes_array(texts: list[bytes], path: Path) -> NDArray[np.bytes_]:
    longest = max(map(len, texts), default=0)
    if longest * len(texts) > max(1 << 26, 8 * sum(map(len, texts))):
        raise DatasetError(f"{path}: a key or label has {longest:,} bytes; shorten it")
    return np.array(texts, np.bytes_)


def _utf8(text: str) -> bytes:
    """Return a name in UTF-8, composed, in which what was none is spelled out."""
    raw = text.encode("utf-8", "surrogateescape")
    return same_name(raw.decode("utf-8", "backslashreplace")).replace("\0", "\\0").encode()


def _text(key: Any) -> str:
    return bytes(key).decode("utf-8", "backslashreplace")
