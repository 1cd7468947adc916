"""Embeddings in many Parquet files, the shards, that are read as one file or one after the other.

A folder, ``DIR/part-*.parquet`` or ``DIR/part-{000..009}.parquet`` is such a file. A folder whose
``manifest.json`` names its shards must hold them all, so that a job that has not finished is not
taken for a smaller one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facerec.embedding.check import check_embeddings, ids_of
from facerec.embedding.extraction import Embeddings
from facerec.embedding.parquet import MAX_BYTES, parquet_chunks, parquet_rows
from facerec.errors import DatasetError
from facerec.files import parse_json, read_file, write_json
from facerec.large_arrays import empty
from facerec.records.images import check_unique
from facerec.shards import is_pattern, shard_paths

SUFFIX = ".parquet"
MANIFEST = "manifest.json"
SCHEMA = "facerec.shards/1"

_TERMS = ("sha256", "preprocessing")
"""What must be the same of two models whose embeddings may be compared."""


@dataclass(frozen=True)
class Manifest:
    """What a job says of its shards before it writes the first of them."""

    note: Mapping[str, Any]
    """How embeddings are made, see `describe_embedding`, and of what, as JSON types."""
    shards: Mapping[str, int]
    """File name → images in it, in their order."""

    @property
    def images(self) -> int:
        """Images in all shards."""
        return sum(self.shards.values())


def is_shards(path: str | Path) -> bool:
    """Tell whether a path stands for shards: a folder with some in it, braces, or stars."""
    path = Path(path)
    if path.suffix.lower() == SUFFIX and is_pattern(path):
        return True
    return path.is_dir() and any(path.glob(f"[!.]*{SUFFIX}"))


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Write what the shards of a folder will be.

    Raises:
        FacerecError: it cannot be written.
    """
    write_json(
        Path(folder) / MANIFEST,
        {
            "schema": SCHEMA,
            "images": manifest.images,
            "note": dict(manifest.note),
            "shards": dict(manifest.shards),
        },
    )


def read_manifest(folder: str | Path) -> Manifest | None:
    """Read the manifest of a folder of shards; None where there is none.

    Raises:
        DatasetError: it cannot be read or is damaged.
    """
    path = Path(folder) / MANIFEST
    try:
        content = parse_json(read_file(path))
        if content["schema"] != SCHEMA:
            raise ValueError(f"its schema is {str(content['schema'])[:40]!r}, not {SCHEMA!r}")
        shards, note = content["shards"], content["note"]
        if not isinstance(note, dict) or not all(
            type(count) is int and 0 < count < 1 << 40 and Path(name).name == name
            for name, count in shards.items()
        ):
            raise TypeError("its note is no object, or a shard has no name or number of images")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DatasetError(
            f"{path}: no manifest of embeddings ({str(problem)[:200]}); restore it, or name the "
            f"shards themselves, as in {path.with_name('*' + SUFFIX)}"
        ) from problem
    return Manifest(note, shards)


def list_shards(path: str | Path) -> list[Path]:
    """Return the shards that a path stands for, in their order.

    Raises:
        DatasetError: there is none, one that the manifest or braces name is missing, or one is
            there that the manifest does not name.
    """
    path = Path(path)
    shards = shard_paths(path, SUFFIX)
    manifest = read_manifest(path) if path.is_dir() else None
    if manifest is None:
        if not shards:
            raise DatasetError(
                f"{path}: there is no such file, or no {SUFFIX} file in it; check the path"
            )
        return shards
    there = {shard.name for shard in shards}
    if missing := [name for name in manifest.shards if name not in there]:
        raise DatasetError(
            f"{path}: {len(missing):,} of {len(manifest.shards):,} shards are missing, the first "
            f"is {missing[0]}; run the job that writes them again, it goes on where it stopped"
        )
    if extra := sorted(there - manifest.shards.keys()):
        raise DatasetError(
            f"{path}: {extra[0]} is no shard that {MANIFEST} names; move it away, or name the "
            f"shards themselves, as in {path / ('*' + SUFFIX)}"
        )
    return [path / name for name in manifest.shards]


def shard_chunks(path: str | Path) -> Iterator[Embeddings]:
    """Yield the embeddings of all shards in order, some thousand images at a time.

    Failures are numbered within their chunk. Every one has been checked by itself; that no image
    occurs in two is known when the last one has been taken.

    Raises:
        DatasetError: a shard is missing or damaged, holds another number of images than its
            manifest says, was made by another model or otherwise than the first, or has an image
            that another one has too.
        MissingExtraError: pyarrow is not installed.
    """
    path = Path(path)
    shards = list_shards(path)
    manifest = read_manifest(path) if path.is_dir() else None
    terms: dict[str, Any] | None = None
    seen = _Seen(path, shards)
    for number, shard in enumerate(shards):
        images = 0
        for chunk in parquet_chunks(shard):
            check_embeddings(shard, chunk)
            own = _terms(chunk)
            if terms is None:
                terms = own
            elif changed := [name for name in own if own[name] != terms.get(name)]:
                name = changed[0]
                raise DatasetError(
                    f"{shard}: its {name} is {_brief(own[name])}, that of {shards[0]} is "
                    f"{_brief(terms.get(name))}; embeddings made in two ways cannot be compared, "
                    "embed all images with the same model and flags"
                )
            images += len(chunk.norms)
            seen.add(number, ids_of(shard, chunk))
            yield replace(chunk, note=_whole_note(path, chunk.note, len(shards)))
        if manifest is not None and images != manifest.shards[shard.name]:
            raise DatasetError(
                f"{shard}: {images:,} images where {MANIFEST} says {manifest.shards[shard.name]:,};"
                " remove the file and run the job that writes it again"
            )
    seen.check()


def read_shards(path: str | Path) -> Embeddings:
    """Read all shards as one file; vectors that are many lie on the disk, see `large_arrays`.

    Raises:
        DatasetError: as `shard_chunks`, or more than fits in memory.
        MissingExtraError: pyarrow is not installed.
    """
    rows = sum(parquet_rows(shard) for shard in list_shards(path))
    return join_chunks(str(path), rows, shard_chunks(path))


def join_chunks(where: str, rows: int, chunks: Iterable[Embeddings]) -> Embeddings:
    """Return chunks as one, whose vectors exist once.

    Args:
        where: names the file in messages.
        rows: images in all chunks.
        chunks: at least one; all of one size, with ids, and failures numbered within each.

    Raises:
        DatasetError: another number of images, or more than fits in memory.
    """
    vectors: npt.NDArray[np.float32] | None = None
    gathered: list[Embeddings] = []
    failures: dict[int, str] = {}
    done = 0
    for chunk in chunks:
        count, size = chunk.vectors.shape
        if vectors is None:
            vectors = _allocate(where, rows, size)
        if done + count > rows:
            break
        vectors[done : done + count] = chunk.vectors
        failures.update((done + row, why) for row, why in chunk.failures.items())
        gathered.append(replace(chunk, vectors=vectors[:0], failures={}))
        done += count
    if vectors is None or done != rows:
        raise DatasetError(f"{where}: it changed while it was read; read it again")
    known = any(chunk.subjects is not None for chunk in gathered)
    unknown = np.array("", np.str_)
    return replace(
        gathered[0],
        vectors=vectors,
        norms=np.concatenate([chunk.norms for chunk in gathered]),
        ids=np.concatenate([chunk.ids for chunk in gathered if chunk.ids is not None]),
        subjects=np.concatenate(
            [
                np.repeat(unknown, len(chunk.norms)) if chunk.subjects is None else chunk.subjects
                for chunk in gathered
            ]
        )
        if known
        else None,
        failures=failures,
    )


def shards_sha256(shards: Sequence[Path], sums: Sequence[str]) -> str:
    """Return one hash for many files, from their names and their own hashes."""
    text = json.dumps([[shard.name, total] for shard, total in zip(shards, sums, strict=True)])
    return hashlib.sha256(text.encode()).hexdigest()


def digest_ids(ids: npt.NDArray[np.str_]) -> npt.NDArray[np.void]:
    """Return 16 bytes for each id, ``(N,)``, by which very many can be compared."""
    digests = b"".join(
        hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()
        for name in ids.tolist()
    )
    return np.frombuffer(digests, "V16")


class _Seen:
    """Hashes of the ids of all shards, 16 bytes an image."""

    def __init__(self, path: Path, shards: Sequence[Path]) -> None:
        self.path, self.shards = path, shards
        self.digests: list[npt.NDArray[np.void]] = []
        self.numbers: list[int] = []

    def add(self, number: int, ids: npt.NDArray[np.str_]) -> None:
        """Take the ids of a chunk of shard ``number``."""
        self.digests.append(digest_ids(ids))
        self.numbers.append(number)

    def check(self) -> None:
        """Refuse an id that occurs twice.

        Raises:
            DatasetError: names the first such id and its shards.
        """
        digests = np.concatenate(self.digests)
        order = np.argsort(digests, kind="stable")
        ordered = digests[order]
        again = np.flatnonzero(ordered[1:] == ordered[:-1])
        if not again.size:
            return
        shard_of = np.repeat(self.numbers, [len(chunk) for chunk in self.digests])
        first = again[np.argmin(order[again])]
        pair = [int(shard_of[order[first + k]]) for k in (0, 1)]
        names = [self._ids(number) for number in dict.fromkeys(pair)]
        if len(names) == 1:
            check_unique(names[0], str(self.shards[pair[0]]))
        shared = names[0][np.isin(names[0], names[-1])]
        raise DatasetError(
            f"{self.path}: {str(shared[0]) if shared.size else 'an image'!r} is in two shards, "
            f"{self.shards[pair[0]].name} and {self.shards[pair[1]].name} ({len(again):,} images "
            "occur twice in all); keep one of them"
        )

    def _ids(self, number: int) -> npt.NDArray[np.str_]:
        shard = self.shards[number]
        return np.concatenate([ids_of(shard, chunk) for chunk in parquet_chunks(shard)])


def _terms(embeddings: Embeddings) -> dict[str, Any]:
    """Return what embeddings must share to be compared, by the words of a message."""
    model = embeddings.note.get("model")
    model = model if isinstance(model, dict) else {}
    return {
        "dimension": embeddings.vectors.shape[1],
        **{f"model's {name}": model.get(name) for name in _TERMS},
        "flip": embeddings.flip,
        "align": embeddings.note.get("align"),
    }


def _whole_note(path: Path, note: Mapping[str, Any], shards: int) -> dict[str, Any]:
    if "model" in note:
        return {**note, "shards": shards}
    return {**note, "source": {"path": str(path), "format": "parquet"}, "shards": shards}


def _brief(value: Any) -> str:
    text = "not stated" if value is None else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _allocate(where: str, rows: int, size: int) -> npt.NDArray[np.float32]:
    needed = 4 * rows * size
    if needed > MAX_BYTES:
        raise DatasetError(
            f"{where}: {rows:,} embeddings of {size:,} numbers take {needed:,} bytes, more than "
            "are read at once; take fewer shards"
        )
    return empty((rows, size), np.float32)
