"""CFP: frontal-frontal and frontal-profile pairs of its official tree."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np

from facerec.errors import DatasetError
from facerec.verification.bench import Bench
from facerec.verification.protocols.lists import (
    ListedImages,
    PairTable,
    file_source,
    folder_images,
    make_bench,
    parse_number,
    read_lines,
)


def read_cfp(path: Path, images: Path | None, split: str) -> Bench:
    """Read ``Protocol/Split/{FF,FP}/{01…}/{same,diff}.txt`` with the image lists beside them.

    Lines ``i,j`` count from 1 into ``Pair_list_F.txt``, in FP on the second side into
    ``Pair_list_P.txt``. An image id is ``subject/view/file``, wherever a copy keeps it. ``path`` is
    the folder ``Protocol`` or the one that holds it, ``images`` that of the subjects' folders or
    one level above them; by default where the lists say, ``../Data/Images``.

    Raises:
        DatasetError: files are missing or have another grammar.
    """
    protocol = path / "Protocol" if (path / "Protocol").is_dir() else path
    folders = _fold_folders(protocol / "Split" / split)
    frontal = protocol / "Pair_list_F.txt"
    profile = protocol / "Pair_list_P.txt" if split == "FP" else frontal
    listed = {file: _image_list(file) for file in (frontal, profile)}
    files = list(listed)
    notes = [note for _, remarks in listed.values() for note in remarks]
    firsts, seconds = listed[frontal][0], listed[profile][0]
    table = PairTable()
    folds = []
    for fold, folder in enumerate(folders):
        for name, same in (("same.txt", True), ("diff.txt", False)):
            file = folder / name
            files.append(file)
            lines, remarks = read_lines(file)
            notes += remarks
            for line, text in lines:
                where = f"{file}, line {line}"
                i, j = _indices(text, where, len(firsts), len(seconds))
                table.add(_id(firsts[i]), _id(seconds[j]), same, where)
                folds.append(fold)
    root = images or _root(protocol / PurePosixPath(firsts[0]).parents[2], protocol)
    located, remark = _locate(root, list(table.names))
    return make_bench(
        f"cfp_{split.lower()}",
        table,
        located,
        folds=np.array(folds, dtype=np.int64) if len(folders) > 1 else None,
        subject_names=[PurePosixPath(name).parts[0] for name in table.names],
        named_by="the list",
        source=file_source(protocol, f"cfp-{split.lower()}", files),
        notes=notes + remark,
    )


def _fold_folders(split: Path) -> list[Path]:
    """Return the folders ``01``, ``02``, … of a split, none of them missing."""
    folders = sorted(
        (folder for folder in split.glob("*") if folder.name.isdecimal() and folder.is_dir()),
        key=lambda folder: int(folder.name),
    )
    if not folders or [int(folder.name) for folder in folders] != list(range(1, len(folders) + 1)):
        names = ", ".join(folder.name for folder in folders) or "none"
        raise DatasetError(
            f"{split}: folders 01, 02, … with same.txt and diff.txt belong here, found {names}; "
            "name the folder that holds CFP's Protocol"
        )
    return folders


def _image_list(path: Path) -> tuple[list[str], list[str]]:
    """Return the paths of lines ``n path`` in their order, and notes."""
    lines, notes = read_lines(path)
    names = []
    for number, (line, text) in enumerate(lines, start=1):
        fields = text.split(maxsplit=1)
        if len(fields) != 2 or parse_number(fields[0], f"{path}, line {line}") != number:
            raise DatasetError(
                f"{path}, line {line}: {text[:60]!r} where '{number} path' belongs; get the whole "
                "list"
            )
        name = fields[1].replace("\\", "/")
        if len(PurePosixPath(name).parts) < 3:
            raise DatasetError(
                f"{path}, line {line}: {name[:60]!r} is no path subject/view/file; mend the line"
            )
        names.append(name)
    return names, notes


def _indices(text: str, where: str, firsts: int, seconds: int) -> tuple[int, int]:
    fields = [field.strip() for field in text.split(",")]
    if len(fields) != 2:
        raise DatasetError(f"{where}: {text[:60]!r} is not 'i,j'; mend the line")
    for field, count in zip(fields, (firsts, seconds), strict=True):
        if parse_number(field, where, least=1) > count:
            raise DatasetError(
                f"{where}: image {field} of a list that has {count:,}; get the whole list"
            )
    return int(fields[0]) - 1, int(fields[1]) - 1


def _id(name: str) -> str:
    return "/".join(PurePosixPath(name).parts[-3:])


def _root(listed: Path, protocol: Path) -> Path:
    """Return the folder of images that the lists name, which may not leave the data set."""
    root = listed.resolve()
    if not root.is_relative_to(protocol.resolve().parent):
        raise DatasetError(
            f"{protocol / 'Pair_list_F.txt'}, line 1: its path leads out of the data set to "
            f"{root}; name the folder of images"
        )
    return root


def _locate(root: Path, ids: list[str]) -> tuple[ListedImages, list[str]]:
    """Find subjects in ``root`` or one folder deeper, as in a copy with ``train`` and ``test``."""
    subjects = dict.fromkeys(PurePosixPath(name).parts[0] for name in ids)
    levels = sorted(folder.name for folder in root.glob("*") if folder.is_dir())
    level_of = {}
    for subject in subjects:
        if not (root / subject).is_dir():
            for level in levels:
                if (root / level / subject).is_dir():
                    level_of[subject] = level
                    break
    paths = [str(PurePosixPath(level_of.get(name.split("/")[0], ""), name)) for name in ids]
    deeper = ", ".join(sorted(set(level_of.values())))
    note = f"{root}: {len(level_of):,} subjects lie one folder deeper, in {deeper}"
    return folder_images(root, ids, paths), [note] if level_of else []
