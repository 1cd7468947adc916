"""Reading of a bundle: a folder with one model, its variants, and the checksum of every file."""

from __future__ import annotations

from pathlib import Path

from facerec.base.errors import ModelError
from facerec.base.files import atomic_path, read_file, reading, sha256

BUNDLE_SCHEMA = "facerec.bundle/1"
NOTE_FILE = "facerec.json"
SUMS_FILE = "SHA256SUMS"
ONNX_FILE = "model.onnx"
MODEL_FILE = "model.safetensors"
"""The weights of a run, which no bundle holds."""
VARIANTS_FOLDER = "variants"
"""Holds ``KIND.onnx`` for every variant; beside the model they would confuse insightface."""

CARD_FILE = "README.md"
EVALUATIONS_FILE = ".eval_results/facerec.yaml"
"""This and the card are for people, who may edit them where they are published: neither is listed
among the checksums."""

MAX_TEXT = 2**24
"""Bytes of the checksums."""


def is_bundle(folder: Path) -> bool:
    """Tell whether a folder means to be a bundle, whole or not."""
    return (folder / SUMS_FILE).is_file() or (folder / NOTE_FILE).is_file()


def bundle_file(folder: Path, variant: str | None = None) -> Path:
    """Return the file of a bundle's model, or of a variant.

    Args:
        folder: the bundle, of which every file is compared with its checksum.
        variant: the name of a file in the folder of variants, without its suffix.

    Raises:
        ModelError: a file is missing, changed or not listed, or is a link; or no such variant.
    """
    sums = check_sums(folder)
    name = ONNX_FILE if variant is None else f"{VARIANTS_FOLDER}/{variant}.onnx"
    if name not in sums:
        there = ", ".join(each for each in sums if each.endswith(".onnx"))
        raise ModelError(f"{folder}: no {name[:80]} in this bundle, it has {there or 'no model'}")
    return folder / name


def write_sums(folder: str | Path) -> None:
    """Write ``SHA256SUMS`` over the files that programs read, as ``sha256sum -c`` reads it.

    Raises:
        ModelError: the folder holds a link, something that is no file, or a name that the list
            cannot carry; or the list cannot be written.
    """
    sums = _sums(Path(folder)).items()
    lines = [f"{total}  {name}\n" for name, total in sums if not _is_edited(name)]
    with atomic_path(Path(folder) / SUMS_FILE) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


def read_sums(folder: Path) -> dict[str, str]:
    """Return what ``SHA256SUMS`` lists: path inside the folder → SHA-256.

    Raises:
        ModelError: the list is missing or too long.
    """
    with reading(folder / SUMS_FILE, ModelError, "copy the bundle again"):
        text = read_file(folder / SUMS_FILE, MAX_TEXT).decode(errors="replace")
    lines = [line.partition("  ") for line in text.splitlines()]
    return {name: total for total, _, name in lines}


def check_sums(folder: str | Path) -> dict[str, str]:
    """Compare every file of a folder with ``SHA256SUMS``; return path inside it → SHA-256.

    A snapshot in the cache of the Hugging Face Hub may hold files of others, which nothing reads.

    Raises:
        ModelError: the list is missing or damaged; a file is missing, changed or not listed; a link
            or something that is no file.
    """
    folder = Path(folder)
    # Names of the list are compared with those that are there, and never opened.
    there, listed = _sums(folder), read_sums(folder)
    snapshot = folder.resolve().parent.name == "snapshots"
    for name in sorted({*listed, *there}):
        if name not in listed and (snapshot or _is_edited(name)):
            continue
        if listed.get(name) != there.get(name):
            raise ModelError(
                f"{folder}: {name[:80]!r} is {there.get(name, 'missing')}, and in {SUMS_FILE} "
                f"{listed.get(name, 'not listed')}; copy the bundle again"
            )
    return {name: there[name] for name in listed}


def _is_edited(name: str) -> bool:
    return name == CARD_FILE or name.startswith(".eval_results/")


def _is_link(path: Path, folder: Path) -> bool:
    """Tell whether this is a link, other than those of the Hub's cache to files of its own."""
    return path.is_symlink() and path.resolve().parent != folder.resolve().parent.parent / "blobs"


def _sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of all files but the list itself, sorted by path; links are refused."""
    names = []
    for path in folder.rglob("*"):
        name, link = path.relative_to(folder).as_posix(), _is_link(path, folder)
        if link or not (path.is_dir() or path.is_file()) or not name.isprintable() or "\\" in name:
            raise ModelError(
                f"{folder}: {name[:80]!r} is a link or no regular file, or has a name that "
                f"{SUMS_FILE} cannot carry; remove it"
            )
        if path.is_file() and name != SUMS_FILE:
            names.append(name)
    return {name: sha256(folder / name) for name in sorted(names)}
