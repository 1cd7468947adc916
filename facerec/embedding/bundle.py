"""Reading of a bundle: a folder with one model, its variants, and the checksum of every file."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from facerec.errors import ModelError
from facerec.files import atomic_path, parse_json, read_file, sha256

BUNDLE_SCHEMA = "facerec.bundle/1"
NOTE_FILE = "facerec.json"
SUMS_FILE = "SHA256SUMS"
ONNX_FILE = "model.onnx"
VARIANTS_FOLDER = "variants"
"""Holds ``KIND.onnx`` for every variant; beside the model they would confuse insightface."""

MAX_TEXT = 2**24
"""Bytes of the note or of the checksums."""


@dataclass(frozen=True)
class Bundle:
    """A bundle of which every file was found to be what its checksum says."""

    path: Path
    note: dict[str, Any]
    """The contents of ``facerec.json``."""
    variants: dict[str, Path]
    """Kind → file; the kind is the file's name without its suffix."""
    sums: Mapping[str, str]
    """Path inside the bundle → SHA-256."""

    def onnx(self, variant: str | None = None) -> Path:
        """Return the file of a variant, or of the model itself.

        Raises:
            ModelError: the bundle has no such variant.
        """
        if variant is None:
            return self.path / ONNX_FILE
        if variant not in self.variants:
            known = ", ".join(self.variants) or "none"
            raise ModelError(f"{self.path}: no variant {variant!r} in this bundle, it has {known}")
        return self.variants[variant]


def is_bundle(folder: Path) -> bool:
    """Tell whether a folder means to be a bundle, whole or not."""
    return (folder / SUMS_FILE).is_file() or (folder / NOTE_FILE).is_file()


def read_bundle(folder: str | Path) -> Bundle:
    """Check a bundle from its checksums up and return what it holds.

    Raises:
        ModelError: a file is missing, changed or not listed, is a link, or the note is damaged.
    """
    folder = Path(folder)
    sums = check_sums(folder)
    for name in (NOTE_FILE, ONNX_FILE):
        if name not in sums:
            raise ModelError(f"{folder}: the bundle has no {name}; export or copy it again")
    try:
        note = parse_json(_text(folder / NOTE_FILE))
        if not isinstance(note, dict) or note.get("schema") != BUNDLE_SCHEMA:
            raise ValueError(f"it must say schema {BUNDLE_SCHEMA!r}")
    except ValueError as error:
        raise ModelError(
            f"{folder / NOTE_FILE}: no note of a bundle that this facerec reads "
            f"({str(error)[:200]}); export it again"
        ) from error
    variants = {
        path.stem: folder / path
        for path in map(PurePosixPath, sums)
        if path.parent == PurePosixPath(VARIANTS_FOLDER) and path.suffix == ".onnx"
    }
    return Bundle(folder, note, variants, sums)


def write_sums(folder: str | Path) -> None:
    """Write ``SHA256SUMS`` over all files of a folder, as ``sha256sum -c`` reads it.

    Raises:
        ModelError: the folder holds a link, something that is no file, or a name that the list
            cannot carry; or the list cannot be written.
    """
    lines = [f"{total}  {name}\n" for name, total in _sums(Path(folder)).items()]
    with atomic_path(Path(folder) / SUMS_FILE, ModelError) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def check_sums(folder: str | Path) -> dict[str, str]:
    """Compare every file of a folder with ``SHA256SUMS``; return path inside it → SHA-256.

    Raises:
        ModelError: the list is missing or damaged; a file is missing, changed or not listed; a link
            or something that is no file.
    """
    folder = Path(folder)
    pairs = (line.partition("  ") for line in _text(folder / SUMS_FILE).splitlines())
    # Names of the list are compared with those that are there, and never opened.
    listed = {name: total for total, _, name in pairs}
    there = _sums(folder)
    for name in sorted(listed.keys() ^ there.keys()):
        problem = "is missing" if name in listed else "is not listed"
        raise ModelError(
            f"{folder}: the file {name[:80]!r} {problem}, by {SUMS_FILE}; copy the bundle again"
        )
    for name, total in there.items():
        if listed[name] != total:
            raise ModelError(
                f"{folder / name}: its SHA-256 is not the one in {SUMS_FILE}; the file was changed "
                "or damaged, copy the bundle again"
            )
    return there


def _sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of all files but the list itself, sorted by path; links are refused."""
    names = []
    for path in folder.rglob("*"):
        mode, name = path.lstat().st_mode, path.relative_to(folder).as_posix()
        if not stat.S_ISDIR(mode) and name != SUMS_FILE:
            if not stat.S_ISREG(mode) or not name.isprintable() or "\\" in name:
                raise ModelError(
                    f"{folder}: {name[:80]!r} is a link or no regular file, or has a name that "
                    f"{SUMS_FILE} cannot carry; remove it"
                )
            names.append(name)
    return {name: sha256(folder / name) for name in sorted(names)}


def _text(path: Path) -> str:
    """Read a small text file that is itself no link."""
    try:
        if path.is_symlink() or path.stat().st_size > MAX_TEXT:
            raise ValueError(f"a link, or larger than {MAX_TEXT:,} bytes")
        return read_file(path).decode()
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); copy the bundle again") from error
