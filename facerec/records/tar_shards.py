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

import functools
import hashlib
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError, FacerecError, RecordError, printable
from facerec.base.files import PHOTO, atomic_path, open_file, parse_json, reading
from facerec.base.names import same_name
from facerec.base.progress import Progress
from facerec.records.images import (
    SUFFIXES,
    ImageSource,
    check_unique,
    metadata_kind,
    passed_over,
    suffix_kind,
    text_array,
    width,
)
from facerec.records.npz import ArchiveError, read_arrays, write_arrays
from facerec.records.shards import TAR, shard_paths

INDEX = ".index.npz"
"""Behind the name of a shard."""

IMAGE = "image"

LABEL_KEYS = ("label", "cls", "class", "identity", "subject_id")
"""Of these, the first that an object in a ``.json`` has is the label."""

_LABELS = {".cls": 1 << 20, ".json": 1 << 20, ".txt": 64}
"""Bytes of a label at most: what is longer is a caption, or metadata without a person's name."""

_FORMAT = 5
_MAX_INDEX = 16 << 30

_NUMBER = re.compile(rb"-?[0-9]{1,15}")

Index = dict[str, NDArray[Any]]
"""Of one shard. ``samples``: key and label in UTF-8, offset and size of each image, in the order of
the shard; the label is empty where there is none. ``account``: JSON, what was passed over.
``stamp``: format, size and time of change of the shard in nanoseconds."""


class TarImages(ImageSource):
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
        self.shards = shard_paths(path, TAR)
        if not self.shards:
            raise DatasetError(f"{path}: there is no such {TAR} file, or none in it")
        passed, people, samples = Counter[str](), set[str](), []
        for number, shard in enumerate(self.shards):
            index = self._index(shard)
            samples.append(index["samples"])
            kinds, lost = _account(index)
            passed.update(kinds)
            people |= lost
            if progress is not None:
                progress("indexing", number + 1, len(self.shards))
        # An array of bytes: millions of strings would be copied by every forked worker.
        self._samples = np.concatenate(samples)
        self._starts = np.cumsum([0, *map(len, samples)])
        labels = self._samples["label"]
        there = set(np.unique(labels).tolist())
        for entry in path.iterdir() if path.is_dir() else ():
            if (kind := metadata_kind(entry.name)) is not None:
                passed[kind] += 1
            elif entry not in self.shards and not entry.name.endswith(INDEX):
                passed[suffix_kind(entry.name)] += 1
        people -= set(map(_text, there))
        self.notes = [*self.notes, *passed_over(path, passed, people)]
        if not len(self._samples):
            said = "; ".join([*self.notes, "check the path"])
            raise DatasetError(f"{path}: its shards have no samples; {said}")
        # WebDataset asks for keys that differ within a shard alone.
        self._prefixed = len(np.unique(self._samples["key"])) < len(self._samples)
        if self._prefixed:
            check_unique(np.array([shard.stem for shard in self.shards]), str(path), "shards")
            name = printable(str(self.ids[0]))
            self.notes = [*self.notes, f"{path}: shards repeat keys, so images are named as {name}"]
        numbers = all(_NUMBER.fullmatch(label) for label in there - {b""})
        self.number_classes([_text(label) for label in labels.tolist()], numbers)

    def __len__(self) -> int:
        return len(self._samples)

    def encoded(self, i: int) -> bytes:
        """Return the encoded image ``i``, which needs no label."""
        size, offset = (self._samples[field].item(i) for field in ("size", "offset"))
        changed = "the shard was changed or taken away, start again"
        with reading(self.where(i), RecordError, changed), open_file(self._shard(i)) as file:
            data = os.pread(file.fileno(), min(size, PHOTO), offset)
            if len(data) != size:
                raise OSError(f"{len(data):,} of {size:,} bytes, of which {PHOTO:,} at most")
        return data

    def where(self, i: int) -> str:
        """Name the shard and the key of image ``i``."""
        return f"{self._shard(i)}, sample {_text(self._samples['key'][i])}"

    @functools.cached_property
    def ids(self) -> NDArray[np.str_]:  # type: ignore[override]
        """The keys of all samples, behind the names of their shards where these repeat keys."""
        keys = [_text(key) for key in self._samples["key"].tolist()]
        if self._prefixed:
            keys = [f"{self._shard(i).stem}/{key}" for i, key in enumerate(keys)]
        return text_array(keys, str(self.shards[0]))

    def names_sha256(self) -> str:
        """Return a hash of keys and classes and of the size of every image, in their order."""
        digest = hashlib.sha256("\0".join(self.class_names or []).encode(errors="surrogateescape"))
        for array in (self._samples["key"], self.labels, self._samples["size"], self._starts):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def _shard(self, i: int) -> Path:
        return self.shards[int(np.searchsorted(self._starts, i, side="right")) - 1]

    def _index(self, shard: Path) -> Index:
        """Return the index beside a shard, or make it."""
        path = shard.with_name(shard.name + INDEX)
        stamp = _stamp(shard)
        index = _read_index(path, stamp)
        if index is not None:
            return index
        index = index_shard(shard)
        try:
            with atomic_path(path) as temporary:
                write_arrays(temporary, index)
        except FacerecError as problem:
            if _read_index(path, stamp) is None:  # else another process has just written it
                note = f"{shard}: its index is not kept and is made again each time ({problem})"
                self.notes = [*self.notes, note]
        return index


def index_shard(path: Path) -> Index:
    """Go through the members of a shard, a plain tar, once.

    Raises:
        DatasetError: it cannot be read, is compressed, truncated or damaged; or a sample has a
            member twice or two images.
    """
    passed, people = Counter[str](), set[str]()
    advice = "copy it again; a compressed shard must be unpacked first (gunzip)"
    # Damaged headers end in errors of many kinds.
    with reading(path, DatasetError, advice, Exception), open_file(path) as file:
        stamp = _stamp(path)
        groups = _groups(path, file, passed)
        labels = {key: _label(path, file, fields, key) for key, fields in groups.items()}
    rows: list[tuple[bytes, bytes, int, int]] = []
    for key, fields in groups.items():
        label, used = labels[key]
        folder, slash, name = key.rpartition(b"/")
        whole = folder + slash + name.partition(b".")[0]
        named = whole != key and IMAGE in groups.get(whole, ()) and labels[whole][0]
        if IMAGE in fields and (label or not named):
            rows.append((key, label, *fields[IMAGE]))
            fields = {name: place for name, place in fields.items() if name not in (IMAGE, used)}
        elif label:
            people.add(_text(label))
        passed.update(fields.keys())
    texts = [row[0] for row in rows], [row[1] for row in rows]
    long = [width(column, str(path)) or 1 for column in texts]
    kind = [("key", f"S{long[0]}"), ("label", f"S{long[1]}"), ("offset", "i8"), ("size", "i8")]
    known = np.array([json.dumps([passed, sorted(people)]).encode()])
    return {"samples": np.array(rows, kind), "account": known, "stamp": stamp}


_Groups = dict[bytes, dict[str, tuple[int, int]]]
"""Offset and size of each field of each key: ``IMAGE``, and the labels by their suffixes."""


def _groups(path: Path, file: IO[bytes], passed: Counter[str]) -> _Groups:
    """Return what may be a sample, in the order of the shard; count the other members."""
    groups: _Groups = {}
    for member in _members(file, passed):
        folder, _, name = member.name.rpartition("/")
        parts = (part for part in (*folder.split("/"), name) if part not in (".", ".."))
        # Names with two underscores are WebDataset's own notes on a shard.
        metadata = next(filter(None, map(metadata_kind, parts)), None) or (
            "__ file" if name.startswith("__") else None
        )
        suffix = suffix_kind(name)
        if metadata is not None:
            passed[metadata] += 1
        elif suffix not in (*SUFFIXES, *_LABELS):
            passed[suffix] += 1
        else:
            key = _utf8(member.name[: -len(suffix)])
            field = IMAGE if suffix in SUFFIXES else suffix
            if field in groups.setdefault(key, {}):
                raise DatasetError(
                    f"{path}: sample {_text(key)} has two of {field}, the second a {suffix}; keys "
                    "must differ within a shard, remove or rename one"
                )
            groups[key][field] = member.offset_data, member.size
    return groups


def _members(file: IO[bytes], passed: Counter[str]) -> Iterator[tarfile.TarInfo]:
    """Yield the plain files of a tar; what is no whole tar ends in an error."""
    size, end = os.fstat(file.fileno()).st_size, 0
    archive = tarfile.TarFile(fileobj=file, encoding="utf-8", errors="surrogateescape")
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # millions would stay in memory
        stop = member.offset_data + member.size
        if not end <= member.offset_data <= stop <= size or member.issparse():
            raise tarfile.ReadError(f"{member.name[:80]!r} is truncated, or stored with holes")
        end = archive.offset
        if member.isreg():
            yield member
        elif not member.isdir():
            linked = member.issym() or member.islnk()
            passed["link" if linked else "special file"] += 1
    # tarfile takes a header that it cannot read for the end, behind which are zeros alone.
    file.seek(end)
    if size < end + 512 or any(map(any, iter(lambda: file.read(1 << 20), b""))):
        raise tarfile.ReadError(f"truncated, damaged or joined with cat after byte {end:,}")


def _label(
    path: Path, file: IO[bytes], fields: dict[str, tuple[int, int]], key: bytes
) -> tuple[bytes, str]:
    """Return the label of a sample in UTF-8 and its field, both empty if it has none."""
    for field, most in _LABELS.items():
        offset, size = fields.get(field, (0, 0))
        if field not in fields or size > most:
            continue
        advice = "write it again, as a label in UTF-8 or JSON"
        with reading(f"{path}, sample {_text(key)}, {field}", DatasetError, advice, ValueError):
            content = os.pread(file.fileno(), size, offset)
            value: Any = content.decode(errors="replace" if field == ".txt" else "strict")
            if field == ".json":
                value = parse_json(value)
            if isinstance(value, dict):
                known = (value[name] for name in LABEL_KEYS if value.get(name) is not None)
                value = next(known, None)
            if isinstance(value, bool) or not isinstance(value, (int, str, type(None))):
                raise ValueError(f"{str(value)[:40]!r} is no whole number and no text")
        text = _utf8("" if value is None else str(value).strip())
        if text and (field != ".txt" or _NUMBER.fullmatch(text)):
            return text, field
    return b"", ""


def _read_index(path: Path, stamp: NDArray[np.int64]) -> Index | None:
    """Return the index of a shard as it is now, if there is a sound one."""
    try:
        names = ("samples", "account", "stamp")
        index, _ = read_arrays(path, names, _MAX_INDEX)
        samples = index["samples"]
        kinds = [samples.dtype[name].kind for name in ("key", "label", "offset", "size")]
        sound = np.array_equal(index["stamp"], stamp) and (samples.ndim, kinds) == (1, [*"SSii"])
        sound = sound and samples["size"].min(initial=0) >= 0
        _account(index)
    except (OSError, ArchiveError, KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None
    return index if sound else None


def _account(index: Index) -> tuple[dict[str, int], set[str]]:
    """Return what was passed over in a shard, by kind, and people without an image in it."""
    passed, people = parse_json(bytes(index["account"][0]))
    return {str(kind): int(count) for kind, count in passed.items()}, set(map(str, people))


def _stamp(shard: Path) -> NDArray[np.int64]:
    facts = shard.stat()
    return np.array([_FORMAT, facts.st_size, facts.st_mtime_ns], np.int64)


def _utf8(text: str) -> bytes:
    """Return a name in UTF-8, composed, in which what was none is spelled out."""
    raw = text.encode("utf-8", "surrogateescape")
    return same_name(raw.decode("utf-8", "backslashreplace")).replace("\0", "\\0").encode()


def _text(key: Any) -> str:
    return bytes(key).decode("utf-8", "backslashreplace")
