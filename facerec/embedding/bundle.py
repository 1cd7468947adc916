"""Reading of a bundle: a folder with one model, its variants, and the checksum of every file."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from facerec.embedding.onnx_file import first_line, printable
from facerec.errors import ModelError
from facerec.files import atomic_path, parse_json, sha256

BUNDLE_SCHEMA = "facerec.bundle/1"
NOTE_FILE = "facerec.json"
SUMS_FILE = "SHA256SUMS"
ONNX_FILE = "model.onnx"
VARIANTS_FOLDER = "variants"
"""Holds ``KIND.onnx`` for every variant; beside the model they would confuse insightface."""

MAX_TEXT = 2**24
"""Bytes of the note or of the checksums."""

_LINE = re.compile(r"([0-9a-f]{64})  ([^\x00-\x1f\x7f\\:\ud800-\udfff]+)")


@dataclass(frozen=True)
class Bundle:
    """A bundle of which every file was found to be what its checksum says."""

    path: Path
    note: dict[str, Any]
    """The contents of ``facerec.json``."""
    model: Path
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
            return self.model
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
    variants = {
        path.stem: folder / path
        for path in map(PurePosixPath, sums)
        if path.parent == PurePosixPath(VARIANTS_FOLDER) and path.suffix == ".onnx"
    }
    return Bundle(folder, _read_note(folder / NOTE_FILE), folder / ONNX_FILE, variants, sums)


def write_sums(folder: str | Path) -> None:
    """Write ``SHA256SUMS`` over all files of a folder, as ``sha256sum -c`` reads it.

    Raises:
        ModelError: the folder holds a link, something that is no file, or a name that the list
            cannot carry; or the list cannot be written.
    """
    folder = Path(folder)
    lines = [f"{sha256(folder / name)}  {name}\n" for name in _files(folder)]
    with atomic_path(folder / SUMS_FILE, ModelError) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def check_sums(folder: str | Path) -> dict[str, str]:
    """Compare every file of a folder with ``SHA256SUMS``.

    Returns:
        Path inside the folder → SHA-256, in the order of the list.

    Raises:
        ModelError: the list is missing or damaged or names a path outside; a file is missing,
            changed or not listed; a link or something that is no file.
    """
    folder = Path(folder)
    sums: dict[str, str] = {}
    for number, line in enumerate(_text(folder / SUMS_FILE).removesuffix("\n").split("\n"), 1):
        match = _LINE.fullmatch(line)
        where = f"{folder / SUMS_FILE}, line {number}"
        if match is None:
            raise ModelError(
                f"{where}: not a checksum and a path, found '{printable(line)}'; copy the bundle "
                "again"
            )
        digest, name = match.groups()
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or str(path) != name:
            raise ModelError(f"{where}: '{printable(name)}' is no plain path inside the bundle")
        if name in sums:
            raise ModelError(f"{where}: '{printable(name)}' is listed twice; copy the bundle again")
        sums[name] = digest
    files = _files(folder)
    for name in files:
        if name not in sums:
            raise ModelError(
                f"{folder}: the file '{printable(name)}' is not listed in {SUMS_FILE}; remove it, "
                "or copy the bundle again"
            )
    for name, digest in sums.items():
        if name not in files:
            raise ModelError(
                f"{folder}: the file '{printable(name)}' that {SUMS_FILE} lists is missing; copy "
                "the bundle again"
            )
        if sha256(folder / name) != digest:
            raise ModelError(
                f"{folder / name}: its SHA-256 is not the one in {SUMS_FILE}; the file was changed "
                "or damaged, copy the bundle again"
            )
    return sums


def _files(folder: Path) -> list[str]:
    """Return the paths of all files but the list itself, sorted; links are not followed."""
    names = []
    waiting = [folder]
    try:
        while waiting:
            for path in waiting.pop().iterdir():
                mode = path.lstat().st_mode
                name = path.relative_to(folder).as_posix()
                if stat.S_ISDIR(mode):
                    waiting.append(path)
                elif not stat.S_ISREG(mode):
                    raise ModelError(
                        f"{folder}: '{printable(name)}' is a link or no regular file; a bundle "
                        "holds plain files alone"
                    )
                elif _LINE.fullmatch(f"{'0' * 64}  {name}") is None:
                    raise ModelError(
                        f"{folder}: the name '{printable(name)}' has characters that {SUMS_FILE} "
                        "cannot carry; remove the file"
                    )
                elif name != SUMS_FILE:
                    names.append(name)
    except OSError as error:
        raise ModelError(
            f"{error.filename or folder}: cannot be read ({error.strerror or error}); check the "
            "path and its rights"
        ) from error
    return sorted(names)


def _read_note(path: Path) -> dict[str, Any]:
    try:
        note = parse_json(_text(path))
    except ValueError as error:
        raise ModelError(
            f"{path}: not JSON ({first_line(error)}); export or copy the bundle again"
        ) from error
    schema = note.get("schema") if isinstance(note, dict) else None
    if schema != BUNDLE_SCHEMA:
        raise ModelError(
            f"{path}: must say schema {BUNDLE_SCHEMA!r}, found {printable(str(schema))}; use "
            "the facerec that wrote the bundle, or export it again"
        )
    assert isinstance(note, dict)
    return note


def _text(path: Path) -> str:
    """Read a small text file that is itself no link."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{path}: is a link or no regular file; copy the bundle again")
        if status.st_size > MAX_TEXT:
            raise ModelError(f"{path}: {status.st_size:,} bytes, at most {MAX_TEXT:,} are read")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not text in UTF-8; copy the bundle again") from error
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); copy the bundle again"
        ) from error
