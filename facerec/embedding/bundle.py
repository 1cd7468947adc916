"""Reading of a bundle: a folder with one model, its variants, and the checksum of every file."""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath

from facerec.errors import ModelError
from facerec.files import atomic_path, read_file, sha256

BUNDLE_SCHEMA = "facerec.bundle/1"
NOTE_FILE = "facerec.json"
SUMS_FILE = "SHA256SUMS"
ONNX_FILE = "model.onnx"
VARIANTS_FOLDER = "variants"
"""Holds ``KIND.onnx`` for every variant; beside the model they would confuse insightface."""

MAX_TEXT = 2**24
"""Bytes of the checksums."""


def is_bundle(folder: Path) -> bool:
    """Tell whether a folder means to be a bundle, whole or not."""
    return (folder / SUMS_FILE).is_file() or (folder / NOTE_FILE).is_file()


def bundle_file(folder: Path, variant: str | None = None) -> tuple[Path, str]:
    """Return the file of a bundle's model, or of a variant, and the SHA-256 that it must have.

    Args:
        folder: the bundle, of which every file is compared with its checksum.
        variant: the name of a file in the folder of variants, without its suffix.

    Raises:
        ModelError: a file is missing, changed or not listed, or is a link; or no such variant.
    """
    sums = check_sums(folder)
    variants = {
        path.stem: str(path)
        for path in map(PurePosixPath, sums)
        if path.parent == PurePosixPath(VARIANTS_FOLDER) and path.suffix == ".onnx"
    }
    name = ONNX_FILE if variant is None else variants.get(variant, "")
    if name not in sums:
        raise ModelError(
            f"{folder}: no {ONNX_FILE if variant is None else f'variant {variant!r}'} in this "
            f"bundle, it has {', '.join(variants) or 'no variants'}"
        )
    return folder / name, sums[name]


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
    file = folder / SUMS_FILE
    try:
        if file.is_symlink() or file.stat().st_size > MAX_TEXT:
            raise ValueError(f"a link, or larger than {MAX_TEXT:,} bytes")
        pairs = [line.partition("  ") for line in read_file(file).decode().splitlines()]
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read ({error}); copy the bundle again") from error
    # Names of the list are compared with those that are there, and never opened.
    listed, there = {name: total for total, _, name in pairs}, _sums(folder)
    for name in sorted({*listed, *there}):
        if listed.get(name) != there.get(name):
            problem = "is not listed" if name in there else "is missing"
            if name in there and name in listed:
                problem = "its SHA-256 is another"
            raise ModelError(f"{folder}: {name[:80]!r}: {problem}, by {SUMS_FILE}; copy it again")
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
