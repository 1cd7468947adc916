"""Gallery files, read without running anything that they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.files import parse_json, reading
from facerec.base.names import same_names
from facerec.base.recipe import from_dict
from facerec.cosines.unit_rows import row_norms
from facerec.embedding.calibration import ScoreCalibration
from facerec.embedding.space import Space
from facerec.galleries.threshold import Calibration
from facerec.records.npz import read_arrays

FORMAT = "facerec gallery 2"

COLUMNS = ("subjects", "templates", "lengths", "images", "enrolled", "expires")
"""Arrays of a gallery and its file with a row a subject."""

DIGESTS = ("digests", "digest_rows")
"""Arrays with a row an image."""

MAX_BYTES = 64 << 30
"""Largest total size of the arrays of a gallery file that is read."""

KEPT = ("scores", "entries", "probe_subjects", "entry_subjects")
"""Arrays of a calibration that a gallery file holds."""


def read_gallery(path: Path) -> dict[str, Any]:
    """Return the attributes of the gallery in a file by name.

    Raises:
        DatasetError: the file is missing, damaged, or no gallery.
    """
    names = {"note", *COLUMNS, *DIGESTS, *(f"calibration_{name}" for name in KEPT)}
    with reading(path, DatasetError, "give a gallery that facerec enroll wrote", Exception):
        arrays, _ = read_arrays(path, names, MAX_BYTES)
        note = parse_json(str(arrays["note"][()]))
        if note["format"] != FORMAT:
            raise ValueError(f"it is {str(note['format'])[:60]!r}")
        space, calibration, worth = Space(**note["space"]), None, note["score_calibration"]
        if (known := note["calibration"]) is not None:
            kept = {name: arrays[f"calibration_{name}"] for name in KEPT}
            calibration = Calibration(**kept, source=str(known["probes"]))
        if worth is not None:
            worth.pop("schema", None)  # as files from before have one
            worth = from_dict(ScoreCalibration, worth, str(path))
        others = {"space": space, "calibration": calibration, "score_calibration": worth}
        return {**_checked(arrays, space, calibration), **others}


def _checked(
    arrays: dict[str, NDArray[Any]], space: Space, calibration: Calibration | None
) -> dict[str, NDArray[Any]]:
    """Return the arrays, names in one Unicode form; refuse what no gallery has."""
    found = {name: arrays[name] for name in (*COLUMNS, *DIGESTS)}
    subjects, rows = same_names(found["subjects"]), found["digest_rows"]
    people, size = len(subjects), space.embedding_size
    shapes = [(people,), (people, size), *[(people,)] * 4, *[(len(rows),)] * 2]
    fits = [
        [array.shape for array in found.values()] == shapes,
        "".join(array.dtype.kind for array in found.values()) == "UffiMMSi",
        np.isin(rows, np.arange(people)).all(),
        len(np.unique(subjects)) == people,
        # They were unit vectors when they were written.
        np.allclose(row_norms(found["templates"]), 1, atol=1e-5),
    ]
    if calibration is not None:
        entries, enrolled = calibration.entries, calibration.entry_subjects
        fits.append(calibration.scores.shape == entries.shape)
        fits.append(entries.shape[:1] == calibration.probe_subjects.shape)
        fits.append(entries.min() >= -1 and entries.max() < enrolled.size <= people)
        fits.append(np.array_equal(enrolled, np.arange(enrolled.size)))
    if not all(fits):
        raise ValueError("its arrays do not fit together")
    return {**found, "subjects": subjects}
