"""Benches by name: where ``lfw`` is on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from facerec.errors import PackError

SUFFIXES = (".bin", ".npz")


def find_pack(name_or_path: str | Path, data: Path | None = None) -> Path:
    """Return the pack file of a bench.

    A name such as ``lfw`` is looked up as ``lfw.bin`` or ``lfw.npz`` in ``data``, in the folder
    that the environment variable ``FACEREC_DATA`` names and in ``data/`` of the working folder, in
    each also in a subfolder ``lfw/``. Anything with a pack's suffix or a folder is a path.

    Raises:
        PackError: there is no such file; the sentence lists the places looked at.
    """
    name = str(name_or_path)
    path = Path(name_or_path)
    if path.suffix in SUFFIXES or len(path.parts) != 1:
        if path.is_file():
            return path
        raise PackError(f"{path}: there is no such pack; give a .bin or .npz file or a bench name")
    folders = _folders(data)
    for folder in folders:
        for place in (folder, folder / name):
            for suffix in SUFFIXES:
                if (found := place / f"{name}{suffix}").is_file():
                    return found
    places = ", ".join(f"{folder}/ and {folder / name}/" for folder in folders)
    there = sorted({file.stem for folder in folders for file in _packs(folder)})
    hint = f" (found there: {', '.join(there)})" if there else ""
    raise PackError(
        f"no pack for bench {name!r}: looked for {name}.bin and {name}.npz in {places}{hint}; put "
        f"an InsightFace-style {name}.bin there, or name its folder with --data or FACEREC_DATA"
    )


def _folders(data: Path | None) -> list[Path]:
    environment = os.environ.get("FACEREC_DATA")
    given = [data, Path(environment) if environment else None, Path("data")]
    return list(dict.fromkeys(folder for folder in given if folder is not None))


def _packs(folder: Path) -> list[Path]:
    return [
        file
        for pattern in ("*", "*/*")
        for file in folder.glob(pattern)
        if file.suffix in SUFFIXES
        and file.is_file()
        # In a subfolder only a pack of its name would be found.
        and (file.parent == folder or file.parent.name == file.stem)
    ]
