"""Template lists on disk: IJB-B and IJB-C as insightface lays them out, and TinyFace."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.files import sha256
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
            notes.append(
                f"{pairs_file}: {counted(int(clashes.sum()), 'label')} against the subjects of the "
                f"1:N lists, the first in row {int(clashes.argmax()) + 1}"
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


def _read_points(path: Path) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.float32]]:
    """Read names ``(m,)``, five points ``(m, 5, 2)`` and detector scores ``(m,)`` of all images."""
    kinds: dict[int, type] = {0: str, **dict.fromkeys(range(1, 12), np.float64)}
    frame = _read(path, "image x1 y1 … x5 y5 score", kinds)
    with np.errstate(over="ignore"):  # found on the next line
        numbers = frame.iloc[:, 1:].to_numpy().astype(np.float32)
    for odd, problem in (
        (~np.isfinite(numbers).all(axis=1), "a number is not finite"),
        (numbers[:, 10] < 0, "the detector score is below 0, which cannot be a weight"),
        (frame[0].duplicated().to_numpy(), "the image was named before"),
    ):
        _refuse(path, odd, problem)
    return frame[0].to_numpy(object), numbers[:, :10].reshape(-1, 5, 2), numbers[:, 10]


def _read_media(
    path: Path, files: NDArray[Any], points_file: Path
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Read image (as its position in ``files``), template number and media id of all rows."""
    frame = _read(path, "image template media", {0: str, 1: np.int64, 2: np.int64})
    rows = _positions(files, frame[0].to_numpy(object), path, f"{points_file} has no such image")
    return rows, frame[1].to_numpy(), frame[2].to_numpy()


def _read_pairs(path: Path, templates: NDArray[np.int64], media_file: Path) -> Pairs:
    """Read 1:1 comparisons of templates, given by their numbers in ascending order."""
    frame = _read(path, "template template label", dict.fromkeys(range(3), np.int64))
    first, second = (
        _positions(templates, frame[side].to_numpy(), path, f"{media_file} has no such template")
        for side in (0, 1)
    )
    label = frame[2].to_numpy()
    _refuse(path, (label != 0) & (label != 1), "its label is not 0 or 1")
    return Pairs(first, second, label == 1)


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
    read = {}
    for name, path in lists.items():
        frame = _read(path, ",".join(_SUBJECT_COLUMNS), {}, _SUBJECT_COLUMNS)
        read[name] = [frame[column].to_numpy() for column in _SUBJECT_COLUMNS]
    people = np.concatenate([subject for _, subject in read.values()])
    inverse = np.unique(people, return_inverse=True)[1]
    ends = np.cumsum([len(p) for _, p in read.values()])[:-1]
    sets = []
    for (name, (numbers, _)), mine in zip(read.items(), np.split(inverse, ends), strict=True):
        path = lists[name]
        positions = _positions(templates, numbers, path, f"{media_file} has no such template", 2)
        new = subjects[positions] == NOBODY
        # Of several lines of one template the first counts, so it is written last.
        subjects[positions[new][::-1]] = mine[new][::-1]
        _refuse(path, subjects[positions] != mine, "the template was another subject's before", 2)
        distinct = np.unique(positions)
        sets.append(SearchSet(name, distinct, subjects[distinct]))
    return sets[-1], tuple(sets[:-1]), subjects


def _read(
    path: Path, words: str, kinds: Mapping[int, type], columns: Sequence[str] = ()
) -> pd.DataFrame:
    """Read lines of fields apart by blanks, or below a header some columns of whole numbers.

    Raises:
        DatasetError: the list cannot be read, is empty, or has other fields.
    """
    separated: dict[str, Any] = {"sep": r"\s+", "header": None, "dtype": kinds}
    if columns:
        separated = {"usecols": lambda name: name.strip().upper() in columns, "dtype": np.int64}
    try:
        # An infinity may stand where a whole number belongs.
        with np.errstate(invalid="ignore"):
            frame = pd.read_csv(
                path,
                encoding="utf-8-sig",
                quoting=csv.QUOTE_NONE,
                na_filter=False,
                low_memory=False,
                **separated,
            )
        if columns:
            frame.columns = frame.columns.str.strip().str.upper()
        if frame.empty or set(frame) != {*(columns or kinds)}:
            raise ValueError(f"{len(frame):,} lines of {frame.shape[1]} such fields")
    except OSError as problem:
        raise DatasetError(
            f"{path}: it cannot be read ({problem.strerror or problem}); check the path"
        ) from problem
    # pandas has an IndexError for a header alone, if that names a column twice.
    except (ValueError, OverflowError, IndexError) as problem:
        said = " ".join(str(problem).split())[:200]
        raise DatasetError(
            f"{path}: it does not hold lines of '{words}' ({said}); mend it or get the list again"
        ) from problem
    for place, kind in kinds.items():
        if kind is str:
            frame[place] = frame[place].map(same_name)
    return frame


def _folder(root: str | Path, name: str) -> Path:
    folder = Path(root) / name
    if not folder.is_dir():
        raise DatasetError(f"{folder}: there is no such folder; name the folder that holds {name}/")
    return folder


def _positions(
    known: NDArray[Any], wanted: NDArray[Any], path: Path, problem: str, first: int = 1
) -> NDArray[np.int64]:
    """Return where every wanted value is among the known ones."""
    positions = pd.Index(known).get_indexer(pd.Index(wanted))
    _refuse(path, positions < 0, problem, first)
    return positions.astype(np.int64)


def _refuse(path: Path, odd: Any, problem: str, first: int = 1) -> None:
    """Refuse the first row of which something holds; ``first`` is the line of the first row."""
    if odd.any():
        line = int(odd.argmax()) + first
        raise DatasetError(f"{path}, row {line}: {problem}; mend it or get the lists again")


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
