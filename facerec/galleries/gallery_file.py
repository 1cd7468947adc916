"""Gallery files: read without running anything that they hold, and templates as Parquet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError, MetricError, fault
from facerec.base.files import atomic_path, parse_json
from facerec.base.libraries import Library
from facerec.base.names import same_names
from facerec.base.recipe import from_dict
from facerec.cosines.unit_rows import row_norms
from facerec.embedding.calibration import ScoreCalibration
from facerec.embedding.space import Space
from facerec.galleries.threshold import Calibration
from facerec.records.npz import read_arrays

pa = Library("pyarrow", "'facerec[parquet]'")
parquet = Library("pyarrow.parquet", "'facerec[parquet]'")

FORMAT = "facerec gallery 2"
"""Of the files that are written; in the first, which is read too, nobody has a date."""

COLUMNS = ("subjects", "templates", "lengths", "images", "enrolled", "expires")
"""Arrays of a gallery and its file with a row a subject."""

DIGESTS = ("digests", "digest_rows")
"""Arrays with a row an image; in files from before there are none, and no image is known again."""

MAX_BYTES = 64 << 30
"""Largest total size of the arrays of a gallery file that is read."""

KEPT = ("scores", "entries", "probe_subjects", "entry_subjects")
"""Arrays of a calibration that a gallery file holds."""

Arrays = Mapping[str, NDArray[Any]]


def read_gallery(path: Path) -> dict[str, Any]:
    """Return the attributes of the gallery in a file by name.

    Raises:
        DatasetError: the file is missing, damaged, or no gallery.
    """
    names = {"note", *COLUMNS, *DIGESTS, *(f"calibration_{name}" for name in KEPT)}
    try:
        arrays, _ = read_arrays(path, names, MAX_BYTES)
        note = parse_json(str(arrays["note"][()]))
        if note["format"] not in (FORMAT, "facerec gallery 1") or note["fusion"] != "unit":
            raise ValueError(f"it is {str(note['format'])[:60]!r} of {note['fusion']} embeddings")
        if note["format"] != FORMAT:
            never = np.full(len(arrays["subjects"]), "NaT", "M8[s]")
            arrays |= {"enrolled": never, "expires": never}
        arrays = {"digests": np.empty(0, "S32"), "digest_rows": np.empty(0, np.int64), **arrays}
        space, calibration, worth = Space(**note["space"]), None, note.get("score_calibration")
        if (known := note["calibration"]) is not None:
            kept = {name: arrays[f"calibration_{name}"] for name in KEPT}
            calibration = Calibration(**kept, source=str(known.get("probes", "unknown")))
        return {
            **_checked(arrays, space, calibration),
            "space": space,
            "calibration": calibration,
            "score_calibration": worth and from_dict(ScoreCalibration, worth, str(path)),
        }
    except OSError as problem:
        why = f"the gallery cannot be read ({problem.strerror or problem})"
        raise DatasetError(f"{path}: {why}; check the path, or enrol people first") from problem
    except (KeyError, TypeError, ValueError, AttributeError, MetricError) as error:
        why = f"no gallery that this facerec can read ({fault(error)[:200]})"
        raise DatasetError(f"{path}: {why}; give what facerec enroll wrote") from error


def _checked(
    arrays: dict[str, NDArray[Any]], space: Space, calibration: Calibration | None
) -> dict[str, NDArray[Any]]:
    """Return the arrays, names in one Unicode form; refuse what no gallery has."""
    people, subjects = len(arrays["subjects"]), same_names(arrays["subjects"])
    shapes: dict[str, tuple[int, ...]] = {name: (people,) for name in COLUMNS}
    shapes |= {"templates": (people, space.embedding_size)}
    digests, rows = (arrays[name] for name in DIGESTS)
    fits = [
        *(arrays[name].shape == shapes[name] for name in COLUMNS),
        "".join(arrays[name].dtype.kind for name in (*COLUMNS, *DIGESTS)) == "UffiMMSi",
        digests.shape == rows.shape == (rows.size,),
        bool(((rows >= 0) & (rows < people)).all()),
        len(np.unique(subjects)) == people,
        # They were unit vectors when they were written.
        np.allclose(row_norms(arrays["templates"]), 1, atol=1e-5),
    ]
    if calibration is not None:
        entries = calibration.entry_subjects
        fits += [np.array_equal(entries, np.arange(entries.size)), entries.size <= people]
        fits.append(bool(calibration.entries.min() >= -1))
    if not all(fits):
        raise ValueError("its arrays do not fit together")
    found = {name: arrays[name] for name in (*COLUMNS, *DIGESTS)}
    return {**found, "subjects": subjects, "expires": arrays["expires"].astype("M8[D]")}


def export_table(path: Path, columns: Arrays, space: Space) -> None:
    """Write templates as Parquet, one row a subject, for a database to load.

    Columns: ``image_id`` and ``subject_id`` (the subject, twice: facerec's own commands read the
    table as embeddings), ``images`` int64, ``enrolled`` and ``expires``, and ``embedding``, list of
    float32 of length 1, so that inner product and cosine are one. The file's metadata has the
    embedding space.

    Raises:
        MissingExtraError: pyarrow is not installed.
        FacerecError: the file cannot be written.
    """
    templates, names = columns["templates"], pa.array(columns["subjects"].tolist(), pa.string())
    starts = np.arange(0, templates.size + 1, templates.shape[1])
    vectors = pa.LargeListArray.from_arrays(starts, pa.array(templates.reshape(-1)))
    kept = {name: columns[name] for name in ("images", "enrolled", "expires")}
    table = {"image_id": names, "subject_id": names, **kept, "embedding": vectors}
    about = {"facerec_gallery": json.dumps({"space": asdict(space), "fusion": "unit"})}
    with atomic_path(path, private=True) as temporary:
        # Numbers hardly compress, and a dictionary of them is larger than they are.
        parquet.write_table(pa.table(table, metadata=about), temporary, use_dictionary=False)
