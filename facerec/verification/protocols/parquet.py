"""Hugging Face style tables: encoded images in the columns image1 and image2, and a label."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath
from typing import Any

from facerec.embedding.parquet import reading_parquet
from facerec.errors import DatasetError
from facerec.records.images import MemoryImages, text_array
from facerec.verification.bench import Bench, contiguous_folds, subjects_from_names
from facerec.verification.protocols.lists import LABELS, PairTable, file_source, make_bench

SHARD = re.compile(r"-([0-9]{5})-of-([0-9]{5})$")


def read_parquet(path: Path, images: Path | None) -> Bench:
    """Read a split ``lfw.parquet`` or ``lfw-00000-of-00002.parquet`` with ten contiguous folds.

    Of a split in several files any one stands for all. Cells are bytes, or bytes with their path;
    paths become ids where they tell the images apart, else ids count the cells. There is no folder
    of images, since the table holds them.

    Raises:
        DatasetError: the table lacks the columns, or a cell has another content.
        MissingExtraError: pyarrow is not installed.
    """
    import pandas as pd

    if images is not None:
        raise DatasetError(f"{path}: the table holds its images; leave the folder of images out")
    files = _shards(path)
    table = PairTable()
    cells: list[Any] = []
    labels: list[bool] = []
    for file in files:
        with reading_parquet(file):
            frame = pd.read_parquet(file)
        label_column = next((name for name in ("label", "target") if name in frame), None)
        if label_column is None or "image1" not in frame or "image2" not in frame:
            raise DatasetError(
                f"{file}: the columns image1, image2 and label are needed, found "
                f"{', '.join(map(str, frame.columns))[:200]}; name a table of pairs"
            )
        columns = (frame[name].tolist() for name in ("image1", "image2", label_column))
        for row, (first, second, label) in enumerate(zip(*columns, strict=True)):
            where = f"{file}, row {row}"
            cells += [_image(first, where), _image(second, where)]
            text = str(label)
            if text.lower() not in LABELS:
                raise DatasetError(
                    f"{where}: its label is {text[:60]!r}, not 0 or 1; check the table"
                )
            labels.append(LABELS[text.lower()])
    ids, contents, entries = _distinct(cells)
    for i, same in enumerate(labels):
        table.add(ids[entries[2 * i]], ids[entries[2 * i + 1]], same, f"{path}, row {i}")
    named = subjects_from_names(text_array(ids, str(path)))
    of_files = (path, "parquet") if len(files) == 1 else (path.parent, "parquet", files)
    return make_bench(
        SHARD.sub("", path.stem),
        table,
        MemoryImages(path, ids, contents),
        folds=contiguous_folds(len(labels)),
        subject_names=None if named is None else [str(subject) for subject in named],
        named_by="image names",
        source=file_source(*of_files),
    )


def _shards(path: Path) -> list[Path]:
    """Return all files of the split that ``path`` is one of."""
    match, files = SHARD.search(path.stem), [path]
    if match and 0 < int(match[2]) <= 10_000:
        numbers = (f"-{i:05d}-of-{match[2]}" for i in range(int(match[2])))
        files = [path.with_stem(SHARD.sub(number, path.stem)) for number in numbers]
    for file in files:
        if not file.is_file():
            raise DatasetError(f"{file}: there is no such file; get the whole split")
    return files


def _image(cell: Any, where: str) -> tuple[bytes, str | None]:
    content, name = cell, None
    if isinstance(cell, dict):
        content, name = cell.get("bytes"), cell.get("path")
    if not isinstance(content, bytes) or not content:
        raise DatasetError(
            f"{where}: the cell of an image holds {type(content).__name__} where encoded bytes "
            "belong; get a table with images inside"
        )
    # A list takes "./a.jpg" for "a.jpg".
    return content, str(PurePosixPath(name)) if isinstance(name, str) and name else None


def _distinct(cells: list[tuple[bytes, str | None]]) -> tuple[list[str], list[bytes], list[int]]:
    """Return ids and bytes of distinct images as they first occur, and the index of each cell."""
    hashes = [hashlib.sha256(content).digest() for content, _ in cells]
    first_of: dict[bytes, int] = {}
    for i, digest in enumerate(hashes):
        first_of.setdefault(digest, i)
    firsts, number = list(first_of.values()), {digest: i for i, digest in enumerate(first_of)}
    entries = [number[digest] for digest in hashes]
    names = {(name, index) for (_, name), index in zip(cells, entries, strict=True)}
    known = {name for name, _ in names if name is not None}
    named = len(names) == len(known) == len(firsts)
    ids = [str(cells[i][1] if named else i) for i in firsts]
    return ids, [cells[i][0] for i in firsts], entries
