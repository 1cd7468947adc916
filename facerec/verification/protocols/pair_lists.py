"""The pair lists of LFW, RFW, CFP, AgeDB, CALFW and CPLFW, flat lists and tables of pairs."""

from __future__ import annotations

import csv
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from facerec.base.errors import DatasetError
from facerec.base.files import reading
from facerec.records.images import MemoryImages
from facerec.records.shards import reading_parquet, shard_paths
from facerec.report.words import counted
from facerec.statistics.kfold import fold_indices
from facerec.verification.bench import Bench
from facerec.verification.protocols.lists import (
    LABELS,
    Line,
    NamedPair,
    list_bench,
    malformed,
    parse_label,
    read_lines,
    read_matches,
)
from facerec.verification.protocols.matlab import many, read_mat

if TYPE_CHECKING:
    import pandas as pd

HEADERS = ("target", "label", "issame", "is_same", "decision", "match", "same", "genuine", "mated")
"""Names of the column of labels, of which the first that is there counts."""

SHARD = re.compile(r"-([0-9]{5})-of-([0-9]{5})$")


def read_lfw(path: Path, images: Path | None, format: str = "lfw") -> Bench:
    """Read ``pairs.txt`` (View 2), or a list of View 1 with or without its count.

    View 2 begins with ``folds TAB n`` and has n same and n different pairs in every fold; View 1
    begins with n, or copies of it with nothing, and has no folds.

    Raises:
        DatasetError: another grammar, or counts that are not those of the header.
    """
    lines, notes = read_lines(path), []
    header = lines[0][1].split()
    if len(header) > 2 or not all(re.fullmatch(r"[0-9]{1,9}", field) for field in header):
        header = []
        notes.append("the list begins without a count, so nothing says that it is whole")
    pairs = [*_lfw_pairs(path, lines[1:] if header else lines)]
    if header:
        count, size = (int(field) for field in ["1", *header][-2:])
        same = np.array([pair.same for pair in pairs], bool)
        whole = same.size == 2 * count * size > 0
        if not whole or (same.reshape(count, -1).sum(axis=1) != size).any():
            raise DatasetError(
                f"{path}: its header asks for {size:,} same and {size:,} different pairs in each "
                f"of {count:,} folds, but there are {int(same.sum()):,} and "
                f"{int((~same).sum()):,} in all, or not as many in each; get the whole list"
            )
        pairs = [pair._replace(fold=number // (2 * size)) for number, pair in enumerate(pairs)]
    return list_bench(
        path,
        format,
        pairs,
        images or path.parent,
        subject_of=_folder,
        named_by="the list",
        name=format if len(header) == 2 else None,
        notes=notes,
    )


def read_rfw(path: Path, images: Path | None) -> Bench:
    """Read one list of RFW, or the folder ``txts`` with those of several races.

    Lists are ``{race}_pairs.txt`` or ``{race}/{race}_pairs.txt``, without a header and with ten
    contiguous folds each. Image ids begin with the race. Subjects who occur under two races are
    dropped, with their pairs. The folder of images holds ``{race}/{subject}/``, or of a single list
    also ``{subject}/``; by default it is ``data`` beside ``txts``.

    Raises:
        DatasetError: no list, or another grammar.
    """
    files = sorted([*path.glob("*_pairs.txt"), *path.glob("*/*_pairs.txt")]) or [path]
    pairs: list[NamedPair] = []
    races: dict[str, set[str]] = {}
    for file in files:
        race, listed = file.stem.removesuffix("_pairs"), [*_lfw_pairs(file, read_lines(file))]
        for pair, fold in zip(listed, fold_indices(len(listed)).tolist(), strict=True):
            first, second = (f"{race}/{side}" for side in pair[:2])
            pairs.append(NamedPair(first, second, pair.same, pair.where, fold))
            for side in (first, second):
                races.setdefault(_folder(side), set()).add(race)
    dropped = {subject for subject, occurs_in in races.items() if len(occurs_in) > 1}
    kept = [pair for pair in pairs if not dropped.intersection(map(_folder, pair[:2]))]
    note = (
        f"{counted(len(dropped), 'subject')} under two races, dropped with "
        f"{counted(len(pairs) - len(kept), 'pair')}: {', '.join(sorted(dropped))}"
    )
    near = (folder.parent / "data" for folder in (path, *path.parents[:2]))
    root = images or next(filter(Path.is_dir, near), files[0].parent)
    alone = len(files) == 1 and not (root / race).is_dir()
    return list_bench(
        path,
        "rfw",
        kept,
        root,
        subject_of=_folder,
        named_by="the list",
        name="rfw" if len(files) > 1 else files[0].stem,
        files=files if path.is_dir() else (),
        path_of=lambda name: name.partition("/")[2] if alone else name,
        notes=[note] if dropped else (),
    )


def _lfw_pairs(path: Path, lines: list[Line]) -> Iterator[NamedPair]:
    """Yield lines ``name i j`` and ``name1 i name2 j``, whose fields TAB or else blanks separate.

    Raises:
        DatasetError: a line with other fields, or of two subjects who are the same.
    """
    for line, text in lines:
        where = f"{path}, line {line}"
        name, apart = (r"([^/\\\t]+?)", r"\s*\t\s*") if "\t" in text else (r"([^/\\\s]+)", r"\s+")
        number = "([0-9]{1,9})"
        match = re.fullmatch(f"{name}{apart}{number}{apart}(?:{name}{apart})?{number}", text)
        if match is None or match[1] == match[3]:
            raise malformed(where, text, "'name i j', or 'name1 i name2 j' of two subjects,")
        person, i, other, j = match.groups()
        images = (person, i), (other or person, j)
        first, second = (f"{who}/{who}_{int(image):04d}.jpg" for who, image in images)
        yield NamedPair(first, second, other is None, where, 0)


def _folder(image: str) -> str:
    return PurePosixPath(image).parent.name


def read_two_lines(path: Path, images: Path | None, format: str) -> Bench:
    """Read two lines a pair, ``image label`` each, where 0 is different and anything else same.

    CALFW and CPLFW list all same pairs first; these are dealt out again to ten folds, 300 same and
    then 300 different pairs each. Pairs that are too few for ten folds of both are in none.

    Source: JDAI-CV/FaceX-Zoo, ``test_protocol/lfw/pairs_parser.py``.

    Raises:
        DatasetError: an odd number of lines, or another grammar.
    """
    label = "'image label', that a whole number,"
    lines = list(read_matches(path, r"(.*\S)\s+([+-]?[0-9]{1,9})", label))
    pairs = []
    for (where, (first, one)), (_, (second, other)) in itertools.zip_longest(
        lines[::2], lines[1::2], fillvalue=("", ("", ""))
    ):
        if not other or bool(int(one)) != bool(int(other)):
            raise DatasetError(
                f"{where}: the next line should be of the same pair and of the same kind, found "
                f"{other or 'no more'}; lines may be missing before, get the whole list"
            )
        pairs.append(NamedPair(first, second, int(one) != 0, where))
    same = [pair.same for pair in pairs]
    parts = [sum(same), len(same) - sum(same)] if all(same[: sum(same)]) else [len(same)]
    folds = np.concatenate([fold_indices(size) for size in parts]) * (min(parts) >= 10)
    return list_bench(
        path,
        format,
        [pairs[i]._replace(fold=int(folds[i])) for i in np.argsort(folds, kind="stable")],
        images or path.parent,
        # Ann_Lee of Ann_Lee_0001.jpg.
        subject_of=lambda name: re.sub(r"_[0-9]+$", "", PurePosixPath(name).stem),
        name=format,
    )


def read_cfp(path: Path, images: Path | None, split: str) -> Bench:
    """Read ``Protocol/Split/{FF,FP}/{01…}/{same,diff}.txt`` with the image lists beside them.

    Lines ``i,j`` count from 1 into ``Pair_list_F.txt``, in FP on the second side into
    ``Pair_list_P.txt``. An image id is ``subject/view/file``, wherever a copy keeps it. ``path`` is
    the folder ``Protocol`` or the one that holds it, ``images`` that of the subjects' folders or
    one level above them; by default ``Data/Images`` beside ``Protocol``.

    Raises:
        DatasetError: files are missing or have another grammar.
    """
    protocol = path / "Protocol" if (path / "Protocol").is_dir() else path
    lists = [protocol / f"Pair_list_{view}.txt" for view in ("F", split[1])]
    first, second = map(_cfp_images, lists)
    pairs, files = [], {*lists}
    folders = sorted((protocol / "Split" / split).glob("[0-9]*"))
    if not folders or int(folders[-1].name) != len(folders):
        raise DatasetError(
            f"{protocol / 'Split' / split}: folders 01, 02, … belong here, and not all are there; "
            "name the folder that holds CFP's Protocol"
        )
    for folder, same in itertools.product(folders, (True, False)):
        file = folder / ("same.txt" if same else "diff.txt")
        files.add(file)
        for where, (i, j) in read_matches(file, r"([0-9]{1,9})\s*,\s*([0-9]{1,9})", "'i,j'"):
            if int(i) not in first or int(j) not in second:
                raise malformed(where, f"{i},{j}", "two numbers of images in the lists")
            pairs.append(NamedPair(first[int(i)], second[int(j)], same, where, folder.name))
    root, notes = images or protocol.parent / "Data" / "Images", []
    # Copies with train and test have the subjects one folder deeper.
    deeper = {inside.name: inside.parent.name for inside in sorted(root.glob("*/*"))}
    subjects = {side.partition("/")[0] for pair in pairs for side in pair[:2]}
    if moved := subjects & deeper.keys():
        within = ", ".join(sorted({deeper[subject] for subject in moved}))
        notes.append(f"{root}: {len(moved):,} subjects lie one folder deeper, in {within}")
    return list_bench(
        protocol,
        f"cfp-{split.lower()}",
        pairs,
        root,
        subject_of=lambda name: name.partition("/")[0],
        named_by="the list",
        name=f"cfp_{split.lower()}",
        files=[*files],
        path_of=lambda name: str(PurePosixPath(deeper.get(name.partition("/")[0], ""), name)),
        notes=notes,
    )


def _cfp_images(path: Path) -> dict[int, str]:
    """Return the ids ``subject/view/file`` of lines ``number path``, by number."""
    part = r"([^/\\]+)"
    form = rf"([0-9]{{1,9}})\s+(?:.*[/\\])?{part}[/\\]{part}[/\\]{part}"
    lines = list(read_matches(path, form, "'number folder/subject/view/file'"))
    found = {int(number): "/".join(parts) for _, (number, *parts) in lines}
    if len(found) != len(lines):
        raise DatasetError(f"{path}: a number stands in two lines; get the list again")
    return found


def read_agedb(path: Path, images: Path | None) -> Bench:
    """Read ``04_FINAL_protocol_30_years.mat`` or its sisters; images are ``{name}.jpg``.

    ``splits{k}`` is a structure of a cell array, two rows of structures that begin with the name
    of the image, and of labels 1 or -1.

    Source: JDAI-CV/FaceX-Zoo, ``test_protocol/lfw/pairs_parser.py``.

    Raises:
        DatasetError: the file has another structure.
    """
    pairs = []
    advice = "a protocol of AgeDB has cells 'splits' of structures: pairs of names, labels 1 or -1"
    with reading(path, DatasetError, advice, Exception):
        for fold, split in enumerate(many(read_mat(path, ["splits"])["splits"])):
            sides, labels = list(split.values())[:2]
            listed = zip(*map(many, many(sides)), many(labels), strict=True)
            for number, (*both, label) in enumerate(listed, start=1):
                first, second = (f"{next(iter(side.values()))}.jpg" for side in both)
                where = f"{path}, split {fold + 1}, pair {number}"
                pairs.append(NamedPair(first, second, {1: True, -1: False}[label], where, fold))
    years = re.search(r"(\d+)_?years", path.stem)
    return list_bench(
        path,
        "agedb",
        pairs,
        images or path.parent,
        subject_of=_agedb_subject,
        name=f"agedb_{years[1]}" if years else None,
    )


def _agedb_subject(image: str) -> str:
    """Return ``MariaCallas`` of ``0_MariaCallas_35_f.jpg``."""
    words = image.removesuffix(".jpg").split("_")
    return next((word for word in words if not word.isdecimal()), image)


def read_flat(path: Path, images: Path | None) -> Bench:
    """Read two image paths and a label a line, with ten contiguous folds in the order of lines.

    The label is the first or the last field: the one that is a word of `LABELS` in all lines. Names
    may hold blanks where TAB, comma or semicolon separates, and then may be quoted. A first line
    with a word of `HEADERS` in that place is a header, unless it is a label as well, and so is one
    that names no files with any word above labels that are otherwise. Beside the three there may be
    a first column that counts the lines, and one that a header calls ``fold``. Where no name has a
    slash, backslashes are taken for slashes; paths that are all absolute count from the folder of
    images if they lie in it, else from the one that all share.

    Raises:
        DatasetError: a line with other fields, or no place that holds labels only.
    """
    lines, columns, folds = _flat_columns(path, read_lines(path))
    at, begin = _flat_labels(columns)
    labels, *sides = (column[begin:] for column in (columns.pop(at), *columns))
    if not any("/" in name for side in sides for name in side):
        sides = [[name.replace("\\", "/") for name in side] for side in sides]
    root, notes, names = images or path.parent, [], {*sides[0], *sides[1]}
    if names and all(re.match(r"([A-Za-z]:)?/", name) for name in names):
        shared = Path(os.path.commonpath(map(os.path.dirname, names)))
        if images is not None and shared.is_relative_to(images.absolute()):
            shared = images.absolute()
        sides = [[os.path.relpath(name, shared) for name in side] for side in sides]
        notes.append(f"the list has absolute paths; images are named from {shared} on")
        root = images or (shared if shared.is_dir() else path.parent)
    pairs = []
    for row, (label, one, other) in enumerate(zip(labels, *sides, strict=True), begin):
        where = f"{path}, line {lines[row]}"
        same, fold = parse_label(label, where), folds[row] if folds else None
        pairs.append(NamedPair(one, other, same, where, fold))
    # Only a folder for each subject says who is who.
    foldered = all(_folder(side) for pair in pairs for side in pair[:2])
    subject_of = (lambda name: str(PurePosixPath(name).parent)) if foldered else None
    return list_bench(path, "flat", pairs, root, subject_of=subject_of, notes=notes)


def _flat_labels(columns: list[list[str]]) -> tuple[int, int]:
    """Return which of three columns has the labels, and in which row they begin."""
    files = any(sign in column[0] for column in columns for sign in "./\\")
    counts = {}
    for at in (2, 0):
        name, *below = map(str.lower, columns[at])
        word, words = (any(map(str.isalpha, text)) for text in (name, "".join(below)))
        above = below and LABELS.keys() >= {*below} and word and not (words and name in LABELS)
        if (name in HEADERS and name not in LABELS) or (above and not files):
            return at, 1
        counts[at] = sum(text in LABELS for text in (name, *below))
    return (2 if counts[2] >= counts[0] else 0), 0


def _flat_columns(
    path: Path, lines: list[Line]
) -> tuple[list[int], list[list[str]], list[str] | None]:
    """Split all lines by the separator that fits the first: TAB, comma, semicolon, else blanks.

    Returns:
        The number of each line, the three columns, and one of folds.
    """

    def split(text: str, mark: str | None) -> list[str]:
        if mark is None:
            return text.split()
        try:
            # Spreadsheets end lines with separators where another column was once.
            fields = next(csv.reader([text.rstrip(mark)], delimiter=mark, strict=True))
        except csv.Error:
            return []
        return [field.strip() for field in fields]

    widths = {mark: len(split(lines[0][1], mark)) for mark in ("\t", ",", ";", None)}
    mark = max(widths, key=lambda mark: (widths[mark] == 3, widths[mark]))
    rows = [split(text, "\t" if "\t" in lines[0][1] else mark) for _, text in lines]
    if len(rows) > 1 and len(rows[0]) == len(rows[1]) - 1:
        rows[0].insert(0, "")  # above an index, where blanks at the ends of lines do not count
    width, folds = len(rows[0]), None
    whole = itertools.zip_longest(*(row[:width] for row in rows), fillvalue="")
    columns = list(map(list, whole))
    names = [column[0].lower() for column in columns]
    if len(columns) > 3 and "fold" in names:
        folds = columns.pop(names.index("fold"))
    counts = ([str(first + row) for row in range(len(rows) - 1)] for first in range(3))
    if len(columns) > 3 and columns[0][1:] in counts:
        del columns[0]
    for (line, text), row, fields in zip(lines, rows, zip(*columns, strict=True), strict=True):
        if len(row) != width or len(fields) != 3 or not all(fields):
            expected = "'image image label', apart as in line 1, perhaps with an index or a fold,"
            raise malformed(f"{path}, line {line}", text, expected)
    return [line for line, _ in lines], columns, folds


def read_parquet_pairs(path: Path, _: Path | None) -> Bench:
    """Read a split ``lfw.parquet`` or ``lfw-00000-of-00002.parquet`` with ten contiguous folds.

    Of a split in several files any one stands for all. The columns ``image1`` and ``image2`` hold
    bytes, alone or with their path; ids number the distinct images. CVLface's tables have a row an
    image in place of a pair, ``image``, ``index`` and ``is_same``; ``path`` may then, too, be the
    folder that `datasets` saved them in (``data-*.arrow``).

    Raises:
        DatasetError: the table lacks the columns, or a cell has another content.
        MissingExtraError: pyarrow is not installed.
    """
    import pandas as pd

    files, shard = [path], SHARD.search(path.stem)
    if shard:
        numbers = (f"-{i:05d}-of-{shard[2]}" for i in range(int(shard[2])))
        files = [path.with_stem(SHARD.sub(number, path.stem)) for number in numbers]
    elif path.is_dir():
        files = shard_paths(path, ".arrow") or shard_paths(path, ".parquet")
    frame = pd.concat(map(_read_frame, files), ignore_index=True) if files else pd.DataFrame()
    label = next((name for name in HEADERS if name in frame), "label")
    if {"image", "index"} <= {*frame}:
        frame = _pairs_of_rows(path, frame, label)
    columns = ["image1", "image2", label, *({"fold"} & {*frame})]
    if not {*columns} <= {*frame}:
        raise DatasetError(
            f"{path}: the columns image1, image2 and {' or '.join(HEADERS)} are needed, found "
            f"{', '.join(map(str, frame.columns))[:200]}; name a table of pairs"
        )
    numbered: dict[bytes, int] = {}
    pairs = []
    rows = zip(*(frame[name].tolist() for name in columns), strict=True)
    for row, (one, other, text, *fold) in enumerate(rows):
        where = f"{path}, row {row}"
        contents = [_encoded(cell, where) for cell in (one, other)]
        first, second = (str(numbered.setdefault(each, len(numbered))) for each in contents)
        pairs.append(NamedPair(first, second, parse_label(str(text), where), where, *fold))
    return list_bench(
        path.parent if shard else path,
        "parquet",
        pairs,
        MemoryImages(path, list(map(str, numbered.values())), list(numbered)),
        subject_of=None,
        name=SHARD.sub("", path.stem),
        files=files if shard or path.is_dir() else (),
    )


def _read_frame(file: Path) -> pd.DataFrame:
    import pandas as pd

    with reading_parquet(file):
        if file.suffix != ".arrow":
            return pd.read_parquet(file)
        import pyarrow as pa

        with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as stream:
            return stream.read_all().to_pandas()


def _pairs_of_rows(path: Path, rows: pd.DataFrame, label: str) -> pd.DataFrame:
    """Return CVLface's rows as pairs: indices 2i and 2i + 1 are pair i, and both have its label."""
    rows = rows.sort_values("index", ignore_index=True)
    first, second = (rows[side::2].reset_index(drop=True) for side in (0, 1))
    whole = label in rows and len(first) == len(second) and (rows["index"] == rows.index).all()
    if not whole or (first[label] != second[label]).any():
        raise DatasetError(
            f"{path}: its {len(rows):,} rows are no pairs: the columns are image, index (0, 1, …, "
            "each once) and is_same, alike in rows 2i and 2i + 1; get the whole table"
        )
    return first.rename(columns={"image": "image1"}).assign(image2=second["image"])


def _encoded(cell: Any, where: str) -> bytes:
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(content, bytes) or not content:
        raise malformed(where, type(content).__name__, "an encoded image")
    return content
