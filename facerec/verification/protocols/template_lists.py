"""Template lists on disk: IJB-B and IJB-C as insightface lays them out, and TinyFace."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.files import open_file, sha256
from facerec.names import same_name
from facerec.records.images import FolderImages
from facerec.report.words import counted
from facerec.verification.bench import INFERRED, Pairs, infer_subjects
from facerec.verification.protocols.matlab import many, read_mat
from facerec.verification.templates import NOBODY, SearchSet, TemplateBench

# The galleries of 1:N and their files, without "ijbb_" or "ijbc_" before and ".csv" behind.
_GALLERIES = {
    "ijbb": {"S1": "1N_gallery_S1", "S2": "1N_gallery_S2"},
    "ijbc": {"G1": "1N_gallery_G1", "G2": "1N_gallery_G2"},
}

_SUBJECT_COLUMNS = ("TEMPLATE_ID", "SUBJECT_ID")

# Lines parsed at a time; a pair list has millions.
_LINES = 1 << 20


def read_ijb(root: str | Path, name: Literal["ijbb", "ijbc"]) -> TemplateBench:
    """Read IJB-B or IJB-C as insightface lays them out.

    Lists lie in ``meta/`` and images in ``loose_crop/``. The lists of 1:N are a line an image and
    are optional; they also say who is who. Without them, templates that same pairs connect are
    taken for one subject. (Layout: ``deepinsight/insightface: recognition/_evaluation_/ijb``.)

    Raises:
        DatasetError: a file is missing or one of its lines is wrong.
    """
    meta = _folder(root, "meta")
    points_file = meta / f"{name}_name_5pts_score.txt"
    media_file = meta / f"{name}_face_tid_mid.txt"
    pairs_file = meta / f"{name}_template_pair_label.txt"
    files, points, scores = _read_points(points_file)
    images = FolderImages(Path(root) / "loose_crop", files)
    image_rows, numbers, media = _read_media(media_file, files, points_file)
    templates, template_rows = np.unique(numbers, return_inverse=True)
    pairs = _read_pairs(pairs_file, templates, media_file)

    lists = {key: meta / f"{name}_{stem}.csv" for key, stem in _GALLERIES[name].items()}
    lists["probe"] = meta / f"{name}_1N_probe_mixed.csv"
    probes, galleries, listed = _read_searches(lists, templates, media_file)
    notes = [] if probes else [f"{meta}: the lists of 1:N are not there, so nothing is searched"]
    if (listed != NOBODY).all():
        subjects, subjects_from = listed, "the list"
        clashes = (listed[pairs.first] == listed[pairs.second]) != pairs.issame
        if clashes.any():
            line, _ = _row(pairs_file, int(clashes.argmax()))
            notes.append(
                f"{pairs_file}: {counted(int(clashes.sum()), 'label')} against the subjects of the "
                f"1:N lists, the first in line {line}"
            )
    else:
        subjects = infer_subjects(pairs.first, pairs.second, pairs.issame, len(templates))
        subjects_from = INFERRED
    read = [points_file, media_file, pairs_file, *(lists.values() if probes else ())]
    return TemplateBench(
        name=name,
        images=images,
        image_rows=image_rows,
        template_rows=template_rows.astype(np.int64),
        media_rows=media,
        template_ids=templates.astype(np.str_),
        points=points,
        detector_scores=scores,
        pairs=Pairs(pairs.first, pairs.second, pairs.issame, subjects),
        subjects_from=subjects_from,
        probes=probes,
        galleries=galleries,
        notes=tuple(notes),
        source=_source(root, "insightface ijb", read),
    )


def read_tinyface(root: str | Path) -> TemplateBench:
    """Read TinyFace: every probe searches the matching gallery images and all distractors.

    ``Testing_Set/`` holds the folders ``Probe``, ``Gallery_Match`` and ``Gallery_Distractor`` and
    the lists ``probe_img_ID_pairs.mat`` and ``gallery_match_img_ID_pairs.mat``. Each image is a
    template of its own. (Layout: ``mk-minchul/AdaFace: validation_lq/tinyface_helper.py``.)

    Raises:
        DatasetError: a file or folder is missing or not what it should be.
    """
    folder = _folder(root, "Testing_Set")
    probe_file = folder / "probe_img_ID_pairs.mat"
    match_file = folder / "gallery_match_img_ID_pairs.mat"
    probe_names, probe_subjects = _read_mat(probe_file, "probe_set", "probe_ids")
    match_names, match_subjects = _read_mat(match_file, "gallery_set", "gallery_ids")
    walked = FolderImages(folder / "Gallery_Distractor")
    distractors = walked.ids.tolist()
    images = FolderImages(
        folder,
        [f"Probe/{name}" for name in probe_names]
        + [f"Gallery_Match/{name}" for name in match_names]
        + [f"Gallery_Distractor/{name}" for name in distractors],
    )
    rows = np.arange(len(images))
    numbers = np.unique(np.concatenate([probe_subjects, match_subjects]), return_inverse=True)[1]
    probes = len(probe_names)
    subjects = np.concatenate([numbers.reshape(-1), np.full(len(distractors), NOBODY)])
    return TemplateBench(
        name="tinyface",
        images=images,
        image_rows=rows,
        template_rows=rows,
        media_rows=rows,
        template_ids=images.ids,
        probes=SearchSet("probe", rows[:probes], subjects[:probes]),
        galleries=(SearchSet("gallery", rows[probes:], subjects[probes:]),),
        notes=tuple(walked.notes),
        source=_source(root, "tinyface", [probe_file, match_file]),
    )


@dataclass(frozen=True)
class _Layout:
    """What the fields of a line hold, by their places; below a header, which has commas, some."""

    words: str
    kinds: Mapping[int, type]
    header: Sequence[str] = ()

    def fits(self, line: str) -> bool:
        fields = line.split("," if self.header else None)
        enough = len(fields) > max(self.kinds) if self.header else len(fields) == len(self.kinds)
        # Bytes that are no UTF-8 are shown by that character.
        enough = enough and "\ufffd" not in line
        return enough and all(_is(kind, fields[place]) for place, kind in self.kinds.items())


_POINTS = _Layout("image x1 y1 … x5 y5 score", {0: str, **dict.fromkeys(range(1, 12), float)})
_MEDIA = _Layout("image template media", {0: str, 1: int, 2: int})
_PAIRS = _Layout("template template label", {0: int, 1: int, 2: int})


def _read_points(path: Path) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]:
    """Read names ``(m,)``, five points ``(m, 5, 2)`` and detector scores ``(m,)`` of all images."""
    frame = pd.concat(_frames(path, _POINTS), ignore_index=True)
    with np.errstate(over="ignore"):  # found on the next line
        numbers = frame.iloc[:, 1:].to_numpy().astype(np.float32)
    for odd, problem in (
        (~np.isfinite(numbers).all(axis=1), "has a number that is not finite"),
        (numbers[:, 10] < 0, "ends in a detector score below 0, which cannot be a weight"),
        (frame[0].duplicated().to_numpy(), "names an image again"),
    ):
        if odd.any():
            raise _wrong_row(path, int(odd.argmax()), problem)
    return frame[0].to_numpy(object), numbers[:, :10].reshape(-1, 5, 2), numbers[:, 10]


def _read_media(
    path: Path, files: NDArray[Any], points_file: Path
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Read image (as its position in ``files``), template number and media id of all rows."""
    frame = pd.concat(_frames(path, _MEDIA), ignore_index=True)
    rows = _positions(
        files, frame[0].to_numpy(object), path, f"names an image that {points_file} has not"
    )
    return rows, frame[1].to_numpy(np.int64), frame[2].to_numpy(np.int64)


def _read_pairs(path: Path, templates: NDArray[np.int64], media_file: Path) -> Pairs:
    """Read 1:1 comparisons of templates, given by their numbers in ascending order."""
    problem = f"names a template that {media_file} has not"
    sides: tuple[list[NDArray[np.int64]], ...] = ([], [])
    labels, done = [], 0
    for frame in _frames(path, _PAIRS):
        for side, numbers in enumerate((frame[0], frame[1])):
            sides[side].append(_positions(templates, numbers.to_numpy(), path, problem, done))
        label = frame[2].to_numpy()
        odd = (label != 0) & (label != 1)
        if odd.any():
            raise _wrong_row(path, done + int(odd.argmax()), "has a label that is not 0 or 1")
        labels.append(label == 1)
        done += len(frame)
    first, second = (np.concatenate(side) for side in sides)
    return Pairs(first, second, np.concatenate(labels))


def _read_searches(
    lists: Mapping[str, Path], templates: NDArray[np.int64], media_file: Path
) -> tuple[SearchSet | None, tuple[SearchSet, ...], NDArray[np.int64]]:
    """Read probes and galleries of 1:N, if they are there, and the subject of every template."""
    subjects = np.full(len(templates), NOBODY)
    missing = [path for path in lists.values() if not path.is_file()]
    if len(missing) == len(lists):
        return None, (), subjects
    if missing:
        raise DatasetError(
            f"{missing[0]}: there is no such list, but others of 1:N are there; add it, or take "
            "them away to do without 1:N"
        )
    read = {name: _read_subjects(path) for name, path in lists.items()}
    ids, inverse = np.unique(np.concatenate([p for _, p in read.values()]), return_inverse=True)
    ends = np.cumsum([len(p) for _, p in read.values()])[:-1]
    sets = []
    for (name, (numbers, _)), mine in zip(read.items(), np.split(inverse, ends), strict=True):
        path = lists[name]
        problem = f"names a template that {media_file} has not"
        positions = _positions(templates, numbers, path, problem, header=1)
        new = subjects[positions] == NOBODY
        # Of several lines of one template the first counts, so it is written last.
        subjects[positions[new][::-1]] = mine[new][::-1]
        odd = subjects[positions] != mine
        if odd.any():
            row = int(odd.argmax())
            other = ids[subjects[positions[row]]]
            raise _wrong_row(
                path, row, f"gives a template to another subject than before ({other})", header=1
            )
        distinct = np.unique(positions)
        sets.append(SearchSet(name, distinct, subjects[distinct]))
    return sets[-1], tuple(sets[:-1]), subjects


def _read_subjects(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read the columns TEMPLATE_ID and SUBJECT_ID of a list of 1:N, a line an image."""
    number, line = next(_lines(path), (1, ""))
    header = [name.strip().upper() for name in line.split(",")]
    if not set(_SUBJECT_COLUMNS) <= set(header):
        raise DatasetError(
            f"{path}, line {number}: it should name the columns {' and '.join(_SUBJECT_COLUMNS)}, "
            f"found {_shown(line.strip())}; put the header of the protocol there"
        )
    columns = [header.index(name) for name in _SUBJECT_COLUMNS]
    layout = _Layout(",".join(_SUBJECT_COLUMNS), dict.fromkeys(columns, int), header)
    frame = pd.concat(_frames(path, layout))
    if frame.empty:
        raise DatasetError(f"{path}: the list is empty; put the list of the protocol there")
    return frame[columns[0]].to_numpy(), frame[columns[1]].to_numpy()


def _frames(path: Path, layout: _Layout) -> Iterator[pd.DataFrame]:
    """Yield the lines of a list, some at a time, as columns named by their places."""
    types = {str: str, int: np.int64, float: np.float64}
    places = {"header": 0, "names": range(len(layout.header)), "index_col": False}
    separated: dict[str, Any] = places if layout.header else {"sep": r"\s+", "header": None}
    header = int(bool(layout.header))
    try:
        # An infinity may stand where a whole number belongs.
        with np.errstate(invalid="ignore"), pd.read_csv(
            path, engine="c", quoting=csv.QUOTE_NONE, na_filter=False, low_memory=False,
            dtype={place: types[kind] for place, kind in layout.kinds.items()}, chunksize=_LINES,
            usecols=list(layout.kinds) if layout.header else None, **separated,
        ) as reader:  # fmt: skip
            for frame in reader:
                if frame.shape[1] != len(layout.kinds):
                    raise ValueError(f"{frame.shape[1]} fields in a line")
                for place in (place for place, kind in layout.kinds.items() if kind is str):
                    frame[place] = frame[place].map(same_name)
                yield frame
    except OSError as problem:
        raise _unreadable(path, problem) from problem
    # pandas has an IndexError for a header alone, if that names a column twice.
    except (ValueError, OverflowError, IndexError) as problem:
        for number, line in _lines(path, header):
            if not layout.fits(line):
                raise DatasetError(
                    f"{path}, line {number}: it should hold '{layout.words}', found "
                    f"{_shown(line.strip())}; mend the line or get the list again"
                ) from problem
        said = f"it cannot be read as lines of '{layout.words}' ({problem})"
        if next(_lines(path, header), None) is None:
            said = "the list is empty; put the list of the protocol there"
        raise DatasetError(f"{path}: {said}") from problem


def _folder(root: str | Path, name: str) -> Path:
    folder = Path(root) / name
    if not folder.is_dir():
        raise DatasetError(f"{folder}: there is no such folder; name the folder that holds {name}/")
    return folder


def _unreadable(path: Path, problem: OSError) -> DatasetError:
    return DatasetError(
        f"{path}: it cannot be read ({problem.strerror or problem}); check the path"
    )


def _wrong_row(path: Path, row: int, problem: str, header: int = 0) -> DatasetError:
    """Word what is wrong with a line that could be parsed."""
    number, line = _row(path, row, header)
    return DatasetError(
        f"{path}, line {number}: {_shown(line.strip())} {problem}; mend the line or get the lists "
        "again"
    )


def _row(path: Path, row: int, header: int = 0) -> tuple[int, str]:
    return next(itertools.islice(_lines(path, header), row, None))


def _lines(path: Path, header: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, but the header, with their numbers from 1."""
    try:
        with open_file(path, "r", encoding="utf-8-sig", errors="replace") as file:
            filled = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            yield from itertools.islice(filled, header, None)
    except OSError as problem:
        raise _unreadable(path, problem) from problem


def _positions(
    known: NDArray[Any],
    wanted: NDArray[Any],
    path: Path,
    problem: str,
    done: int = 0,
    header: int = 0,
) -> NDArray[np.int64]:
    """Return where every wanted value is; ``done`` rows of the list came before these."""
    positions = pd.Index(known).get_indexer(pd.Index(wanted))
    if (positions < 0).any():
        raise _wrong_row(path, done + int((positions < 0).argmax()), problem, header)
    return positions.astype(np.int64)


def _is(kind: type, word: str) -> bool:
    """Say whether a word is a 64-bit integer, a finite number, or (``str``) anything."""
    try:
        # Python reads 1_000 and digits of other scripts, pandas does not.
        plain = word.encode("ascii", "replace").replace(b"_", b"?")
        number = 0 if kind is str else kind(plain)
    except ValueError:
        return False
    return abs(number) < (2**63 if kind is int else math.inf)


def _shown(line: str) -> str:
    return repr(line if len(line) <= 80 else f"{line[:77]}…")


def _read_mat(path: Path, names: str, subjects: str) -> tuple[list[str], NDArray[np.int64]]:
    """Read names of images and the number of the subject of each."""
    content = read_mat(path, [names, subjects])
    image_names = many(content[names])
    try:
        if not all(isinstance(name, str) for name in image_names):
            raise TypeError("names are not text")
        numbers = np.array(many(content[subjects]), np.float64).ravel()
    except (TypeError, ValueError, OverflowError) as problem:
        raise DatasetError(
            f"{path}: it should hold names in {names!r} and numbers in {subjects!r} "
            f"({type(problem).__name__}: {problem}); get the list again"
        ) from problem
    if len(image_names) != len(numbers) or not image_names:
        raise DatasetError(
            f"{path}: {len(image_names)} names in {names!r} and {len(numbers)} numbers in "
            f"{subjects!r}; there must be one a name, and one at least"
        )
    whole = (numbers >= 0) & (numbers == np.floor(numbers)) & (numbers < 2**53)
    if not whole.all():
        number = int(whole.argmin())
        raise DatasetError(
            f"{path}: entry {number} of {subjects!r} is {numbers[number]:g}, but subjects are "
            "whole numbers from 0"
        )
    return image_names, numbers.astype(np.int64)


def _source(root: str | Path, kind: str, files: Sequence[Path]) -> dict[str, Any]:
    return {"path": str(root), "format": kind, "files": {path.name: sha256(path) for path in files}}
