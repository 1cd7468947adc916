"""Template lists on disk: IJB-B and IJB-C as insightface lays them out, and TinyFace."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.files import reading
from facerec.base.names import same_name
from facerec.embedding.align import KnownPoints
from facerec.records.images import FolderImages
from facerec.verification.bench import INFERRED, Pairs, infer_subjects
from facerec.verification.protocols.lists import file_source
from facerec.verification.protocols.matlab import many, read_mat
from facerec.verification.templates import NOBODY, SearchSet, TemplateBench


def read_ijb(root: str | Path, name: Literal["ijbb", "ijbc"]) -> TemplateBench:
    """Read IJB-B or IJB-C as insightface lays them out.

    Lists lie in ``meta/`` and images in ``loose_crop/``. The lists of 1:N are a line an image and
    are optional; they also say who is who. Without them, templates that same pairs connect are
    taken for one subject. (Layout: ``deepinsight/insightface: recognition/_evaluation_/ijb``.)

    Raises:
        DatasetError: a file is missing or one of its lines is wrong.
    """
    meta = Path(root) / "meta"
    points_file = meta / f"{name}_name_5pts_score.txt"
    media_file = meta / f"{name}_face_tid_mid.txt"
    pairs_file = meta / f"{name}_template_pair_label.txt"
    kinds: dict[int, type] = {0: str, **dict.fromkeys(range(1, 12), np.float32)}
    points = _read(points_file, "image x1 y1 … x5 y5 score", kinds)
    media = _read(media_file, "image template media", {0: str, 1: np.int64, 2: np.int64})
    listed = _read(pairs_file, "template template label", dict.fromkeys(range(3), np.int64))
    numbers = points.iloc[:, 1:].to_numpy()
    _refuse(points_file, points[0].duplicated().to_numpy(), "the image was named before")
    no_image, no_template = f"{points_file} has no such image", f"{media_file} has no such template"
    image_rows = _positions(points[0], media[0], media_file, no_image)
    templates, template_rows = np.unique(media[1], return_inverse=True)
    first, second = (_positions(templates, listed[k], pairs_file, no_template) for k in (0, 1))
    label = listed[2].to_numpy()
    _refuse(pairs_file, (label != 0) & (label != 1), "its label is not 0 or 1")

    letter = {"ijbb": "S", "ijbc": "G"}[name]
    lists = {f"{letter}{k}": meta / f"{name}_1N_gallery_{letter}{k}.csv" for k in (1, 2)}
    lists["probe"] = meta / f"{name}_1N_probe_mixed.csv"
    sets: list[SearchSet] = []
    notes, subjects = [], np.full(len(templates), NOBODY)
    if any(path.is_file() for path in lists.values()):
        sets, subjects = _read_searches(lists, templates, no_template)
    else:
        notes.append(f"{meta}: the lists of 1:N are not there, so nothing is searched")
    subjects_from = "the list"
    if (subjects == NOBODY).any():
        subjects = infer_subjects(Pairs(first, second, label == 1), len(templates))
        subjects_from = INFERRED
    files = [points_file, media_file, pairs_file, *(lists.values() if sets else ())]
    known = dict(zip(points[0].tolist(), numbers[:, :10].reshape(-1, 5, 2), strict=True))
    return TemplateBench(
        name=name,
        images=FolderImages(Path(root) / "loose_crop", points[0].tolist()),
        image_rows=image_rows,
        template_rows=template_rows.astype(np.int64),
        media_rows=media[2].to_numpy(),
        template_ids=templates.astype(np.str_),
        aligner=KnownPoints(known, method="points of the bench"),
        detector_scores=numbers[:, 10],
        pairs=Pairs(first, second, label == 1, subjects),
        subjects_from=subjects_from,
        probes=sets[-1] if sets else None,
        galleries=tuple(sets[:-1]),
        notes=tuple(notes),
        source=file_source(Path(root), "insightface ijb", files),
    )


def read_tinyface(root: str | Path) -> TemplateBench:
    """Read TinyFace: every probe searches the matching gallery images and all distractors.

    ``Testing_Set/`` holds the folders ``Probe``, ``Gallery_Match`` and ``Gallery_Distractor`` and
    the lists ``probe_img_ID_pairs.mat`` and ``gallery_match_img_ID_pairs.mat``. Each image is a
    template of its own. (Layout: ``mk-minchul/AdaFace: validation_lq/tinyface_helper.py``.)

    Raises:
        DatasetError: a file or folder is missing or not what it should be.
    """
    folder = Path(root) / "Testing_Set"
    files = [folder / f"{side}_img_ID_pairs.mat" for side in ("probe", "gallery_match")]
    probes, probe_subjects = _read_mat(files[0], "probe_set", "probe_ids")
    matches, match_subjects = _read_mat(files[1], "gallery_set", "gallery_ids")
    walked = FolderImages(folder / "Gallery_Distractor")
    distractors = [f"Gallery_Distractor/{name}" for name in walked.ids.tolist()]
    listed = [f"Probe/{name}" for name in probes], [f"Gallery_Match/{name}" for name in matches]
    images = FolderImages(folder, [*listed[0], *listed[1], *distractors])
    rows, count = np.arange(len(images)), len(probes)
    numbers = np.unique(np.concatenate([probe_subjects, match_subjects]), return_inverse=True)[1]
    subjects = np.concatenate([numbers.reshape(-1), np.full(len(distractors), NOBODY)])
    return TemplateBench(
        name="tinyface",
        images=images,
        image_rows=rows,
        template_rows=rows,
        media_rows=rows,
        template_ids=images.ids,
        pairs=Pairs(rows[:0], rows[:0], rows[:0] > 0),
        probes=SearchSet("probe", rows[:count], subjects[:count]),
        galleries=(SearchSet("gallery", rows[count:], subjects[count:]),),
        notes=tuple(walked.notes),
        source=file_source(Path(root), "tinyface", files),
    )


def _read_searches(
    lists: Mapping[str, Path], templates: NDArray[np.int64], problem: str
) -> tuple[list[SearchSet], NDArray[np.int64]]:
    """Read galleries and probes of 1:N, and the subject of every template."""
    kinds = {"TEMPLATE_ID": np.int64, "SUBJECT_ID": np.int64}
    form = {"sep": ",", "header": 0, "usecols": [*kinds]}
    read = {name: _read(path, ",".join(kinds), kinds, **form) for name, path in lists.items()}
    people = np.unique(np.concatenate([rows["SUBJECT_ID"] for rows in read.values()]))
    subjects, sets = np.full(len(templates), NOBODY), []
    for name, rows in read.items():
        positions = _positions(templates, rows["TEMPLATE_ID"], lists[name], problem, 2)
        mine = np.searchsorted(people, rows["SUBJECT_ID"])
        new = subjects[positions] == NOBODY
        # Of several lines of one template the first counts, so it is written last.
        subjects[positions[new][::-1]] = mine[new][::-1]
        odd = subjects[positions] != mine
        _refuse(lists[name], odd, "the template was another subject's before", 2)
        distinct = np.unique(positions)
        sets.append(SearchSet(name, distinct, subjects[distinct]))
    return sets, subjects


def _read(path: Path, words: str, kinds: Mapping[Any, type], **other: Any) -> pd.DataFrame:
    """Read lines of fields of some kinds, apart by blanks unless they are of another form.

    Raises:
        DatasetError: the list cannot be read, is empty, or has other fields.
    """
    form: dict[str, Any] = {"sep": r"\s+", "header": None, "encoding": "utf-8-sig", **other}
    form |= {"quoting": csv.QUOTE_NONE, "na_filter": False, "low_memory": False}
    advice = f"it must hold lines of '{words}'; mend it or get the list again"
    with reading(path, DatasetError, advice, Exception):
        # An infinity may stand where a whole number belongs.
        with np.errstate(invalid="ignore"):
            frame = pd.read_csv(path, dtype=kinds, **form)
        if {*frame} != {*kinds}:
            raise ValueError(f"{len(frame):,} lines of {frame.shape[1]} fields")
    if kinds.get(0) is str:
        frame[0] = frame[0].map(same_name)
    return frame


def _positions(
    known: Any, wanted: Any, path: Path, problem: str, first: int = 1
) -> NDArray[np.int64]:
    """Return where every wanted value is among the known ones."""
    positions = pd.Index(known).get_indexer(pd.Index(wanted))
    _refuse(path, positions < 0, problem, first)
    return positions.astype(np.int64)


def _refuse(path: Path, odd: Any, problem: str, first: int = 1) -> None:
    """Refuse the first row of which something holds; rows count from ``first`` on."""
    if odd.any():
        row = first + int(odd.argmax())
        raise DatasetError(f"{path}, row {row}: {problem}; mend it or get the lists again")


def _read_mat(path: Path, names: str, subjects: str) -> tuple[list[str], NDArray[np.float64]]:
    """Read names of images and the number of the subject of each."""
    content = read_mat(path, [names, subjects])
    images = [same_name(str(name)) for name in many(content[names])]
    what = f"{path}: the numbers {subjects!r} of the names {names!r}"
    with reading(what, DatasetError, "get the list again", Exception):
        return images, np.array(many(content[subjects]), np.float64).reshape(len(images))
