"""Embeddings in many Parquet files, the shards, that are read as one file.

A folder, ``DIR/part-*.parquet`` or ``DIR/part-{000..009}.parquet`` is such a file. A folder whose
``manifest.json`` names its shards must hold them all, so that a job that has not finished is not
taken for a smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from facerec.errors import DatasetError
from facerec.files import parse_json, read_file, write_json
from facerec.shards import is_pattern, shard_paths

SUFFIX = ".parquet"
MANIFEST = "manifest.json"
SCHEMA = "facerec.shards/1"


@dataclass(frozen=True)
class Manifest:
    """What a job says of its shards before it writes the first of them."""

    note: Mapping[str, Any]
    """How embeddings are made, see `describe_embedding`, and of what, as JSON types."""
    shards: Mapping[str, int]
    """File name → images in it, in their order."""


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
    images = sum(manifest.shards.values())
    content = {"images": images, "note": dict(manifest.note), "shards": dict(manifest.shards)}
    write_json(Path(folder) / MANIFEST, {"schema": SCHEMA, **content})


def read_manifest(folder: str | Path) -> Manifest | None:
    """Read the manifest of a folder of shards; None where there is none.

    Raises:
        DatasetError: it cannot be read or is damaged.
    """
    path = Path(folder) / MANIFEST
    try:
        content = parse_json(read_file(path))
        shards, note = content["shards"], content["note"]
        if content["schema"] != SCHEMA or not isinstance(note, dict):
            raise ValueError(f"no object of schema {SCHEMA!r}")
        if any(type(count) is not int or Path(name).name != name for name, count in shards.items()):
            raise ValueError("a shard has no plain name or number of images")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DatasetError(
            f"{path}: no manifest of embeddings ({str(problem)[:200]}); restore it, or name the "
            f"shards themselves, as in {path.with_name('*' + SUFFIX)}"
        ) from problem
    return Manifest(note, shards)


def list_shards(path: str | Path) -> list[Path]:
    """Return the files that a path stands for, in their order: itself, or shards.

    Raises:
        DatasetError: there is none, one that the manifest or braces name is missing, or one is
            there that the manifest does not name.
    """
    path = Path(path)
    shards = shard_paths(path, SUFFIX)
    manifest = read_manifest(path) if path.is_dir() else None
    if not shards:
        raise DatasetError(f"{path}: there is no such file, or no {SUFFIX} file in it")
    if manifest is None:
        return shards
    if odd := {shard.name for shard in shards} ^ manifest.shards.keys():
        raise DatasetError(
            f"{path}: {min(odd)} is missing, or is no shard that {MANIFEST} names; run the job "
            f"that writes them again, or name the shards, as in {path / ('*' + SUFFIX)}"
        )
    return [path / name for name in manifest.shards]
