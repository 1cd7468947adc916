"""A bench becomes a pack, or a folder of images with its pair list."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.files import atomic_folder, atomic_path
from facerec.progress import Progress
from facerec.records.decode import image_suffix
from facerec.records.images import NAMES, ImageSource, PackImages, check_relative
from facerec.records.packs import write_pack
from facerec.verification.bench import INFERRED, Bench, Pairs, contiguous_folds, subjects_from_names


def export_pack(bench: Bench, out: Path, progress: Progress | None = None) -> tuple[str, ...]:
    """Write a bench as ``.bin`` or ``.npz``, and image names into ``NAME_images.csv`` beside it.

    Pairs are put in the order of their folds, since readers of packs take ten contiguous ones.
    Names get a column ``subject_id`` where the folders in them do not tell the subjects.

    Returns:
        What the pack cannot keep, one sentence each.

    Raises:
        DatasetError: there is something at ``out`` already, or names beside it that are not ours.
        FacerecError: an image cannot be read, or the pack cannot be written.
    """
    if out.exists():
        raise DatasetError(f"{out}: is there already; choose another name or take it away")
    pairs = bench.pairs
    folds = np.zeros(len(pairs), dtype=np.int64) if pairs.folds is None else pairs.folds
    order = np.argsort(folds, kind="stable")
    notes = ("a pack is read in ten contiguous folds, which are not those of the protocol",)
    entries = np.stack([pairs.first[order], pairs.second[order]], axis=1).reshape(-1)
    names = _names_csv(bench, entries) if has_names(bench.images) else None
    names_path = out.with_name(out.stem + NAMES)
    there = names_path.read_bytes() if names_path.is_file() else None
    if there is not None and there != names:
        raise DatasetError(
            f"{names_path}: it names the images of another pack, and {out.name} would be read with "
            "it; choose another name or take it away"
        )
    contents = []
    for i in range(len(bench.images)):
        contents.append(bench.images.encoded(i))
        if progress is not None:
            progress("images", i + 1, len(bench.images))
    # Names first: a pack that is there is whole.
    if names is not None:
        with atomic_path(names_path, DatasetError) as temporary:
            temporary.write_bytes(names)
    try:
        write_pack(out, [contents[i] for i in entries], pairs.issame[order].tolist())
    except BaseException:
        if there is None:
            names_path.unlink(missing_ok=True)
        raise
    return () if _are_contiguous(folds[order]) else notes


def export_folder(bench: Bench, out: Path, progress: Progress | None = None) -> tuple[str, ...]:
    """Write a bench as ``out/images/ID`` with ``out/pairs.txt`` or ``out/pairs.csv``.

    ``pairs.txt`` has LFW's grammar; where ids or folds do not fit it, ``pairs.csv`` has lines
    ``a,b,label``. Images without names are called by their numbers. The folder appears under its
    name only when it is complete.

    Returns:
        What the list cannot keep, one sentence each.

    Raises:
        DatasetError: ``out`` holds something already, an id is no path, or writing fails.
        FacerecError: an image cannot be read.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DatasetError(f"{out}: holds something already; choose a new or empty folder")
    images = bench.images
    named = has_names(images)
    ids = images.ids.tolist()
    with atomic_folder(out, DatasetError, private=True) as temporary:
        folder = temporary / "images"
        for i, name in enumerate(ids):
            content = images.encoded(i)
            if not named:
                ids[i] = name = f"{int(name):06d}{image_suffix(content)}"
            check_relative(name, images.where(i))
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
            if progress is not None:
                progress("images", i + 1, len(ids))
        text = lfw_text(ids, bench.pairs)
        if text is not None:
            (temporary / "pairs.txt").write_bytes(text.encode())
            return ()
        (temporary / "pairs.csv").write_bytes(_flat_text(ids, bench.pairs, bench.name))
    if _are_contiguous(bench.pairs.folds):
        return ()
    return ("pairs.csv cannot keep the folds of the protocol; it is read in ten contiguous ones",)


def has_names(images: ImageSource) -> bool:
    """Tell whether ids are more than numbers that a pack's or table's reader gave."""
    if isinstance(images, PackImages):
        return images.named
    return not all(name.isdecimal() for name in images.ids.tolist())


def lfw_text(ids: list[str], pairs: Pairs) -> str | None:
    """Return pairs in LFW's grammar, None where ids, labels or folds do not fit it.

    With folds it is View 2, without it is View 1, with a count where it is of both classes.
    """
    named = [parsed for name in ids if (parsed := _subject_and_number(name))]
    if len(named) < len(ids):
        return None
    sizes = np.bincount(pairs.issame, minlength=2)
    header = f"{sizes[0]}\n" if sizes[0] == sizes[1] else ""
    if pairs.folds is not None:
        count = int(pairs.folds.max()) + 1
        size = len(pairs) // (2 * count)
        blocks = np.repeat(np.arange(count), 2 * size)
        per_fold = np.bincount(pairs.folds[pairs.issame], minlength=count)
        if count < 2 or not np.array_equal(pairs.folds, blocks) or (per_fold != size).any():
            return None
        header = f"{count}\t{size}\n"
    lines = []
    for first, second, same in zip(
        pairs.first.tolist(), pairs.second.tolist(), pairs.issame.tolist(), strict=True
    ):
        (subject, i), (other, j) = named[first], named[second]
        if same != (subject == other):
            return None
        lines.append(f"{subject}\t{i}\t{j}\n" if same else f"{subject}\t{i}\t{other}\t{j}\n")
    return header + "".join(lines)


def _subject_and_number(name: str) -> tuple[str, int] | None:
    """Return subject and number of ``Subject/Person_0001.jpg``, None for any other id."""
    match = re.fullmatch(r"([^/\\\t\r\n]+)/\1_([0-9]{4,9})\.jpg", name)
    if match is None or match[1] != match[1].strip() or f"{int(match[2]):04d}" != match[2]:
        return None
    return match[1], int(match[2])


def _flat_text(ids: list[str], pairs: Pairs, name: str) -> bytes:
    for image in ids:
        if image != image.strip() or any(mark in image for mark in "\t\r\n"):
            raise DatasetError(
                f"{name}: the image id {image[:60]!r} fits no list, because of blanks around it or "
                "a TAB or line end inside; rename it"
            )
    sides = zip(pairs.first, pairs.second, pairs.issame, strict=True)
    return _csv([ids[first], ids[second], int(same)] for first, second, same in sides)


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _are_contiguous(folds: NDArray[np.int64] | None) -> bool:
    """Tell whether folds are the ten that a list without folds is read in."""
    blocks = None if folds is None else contiguous_folds(len(folds))
    return folds is not None and blocks is not None and np.array_equal(folds, blocks)


def _names_csv(bench: Bench, entries: NDArray[np.int64]) -> bytes:
    """Return the file of names for entries that are these images."""
    ids, subjects = bench.images.ids, bench.pairs.subjects
    by_folder = subjects_from_names(ids)
    known = subjects if bench.subjects_from != INFERRED else None
    if by_folder is not None and known is not None:
        both = len(np.unique(np.stack([known, by_folder]), axis=1).T)
        if both == len(np.unique(known)) == len(np.unique(by_folder)):
            known = None  # as the folders tell
    columns = {"index": np.arange(len(entries)), "image_id": ids[entries]}
    if known is not None:
        columns["subject_id"] = known[entries]
    return _csv([columns, *zip(*columns.values(), strict=True)])
