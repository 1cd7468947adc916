"""Quality measures of images as covariates, from a CSV as OFIQ writes it.

OFIQ is the reference implementation of ISO/IEC 29794-5. Its sample application writes a line an
image, fields apart by semicolons: ``Filename``, the measures as they come, the same as
``MEASURE.scalar`` from 0 to 100, and a time. Where a measure could not be taken its scalar is −1.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from facerec.errors import DatasetError
from facerec.fairness.attributes import Attributes, read_number
from facerec.files import sha256
from facerec.tables import Table

UNIFIED = "UnifiedQualityScore"
DEFAULT = f"{UNIFIED}.scalar"
"""The covariate that is taken where none is named."""

MAGFACE = (
    f"OFIQ’s {UNIFIED} comes from a MagFace network, so it is read off the norm of an embedding: "
    "to hold it fixed is to hold fixed another network’s answer to what is tested here."
)

_NAME, _SCALAR, _RAW = "Filename", ".scalar", ".raw"
_NOT_TAKEN = -1.0


@dataclass(frozen=True, eq=False)
class Quality:
    """Measures of images."""

    path: Path
    sha256: str
    files: tuple[str, ...]
    """Names of the images, as they stand in the file, ``(L,)``."""
    measures: Mapping[str, NDArray[np.float64]]
    """Value of each measure asked for, ``(L,)``, NaN where it could not be taken."""

    @property
    def remark(self) -> str | None:
        """What a reader must know of these measures, if anything."""
        unified = any(_measure(name) == UNIFIED for name in self.measures)
        return MAGFACE if unified else None


def read_quality(path: str | Path, wanted: Sequence[str] = ()) -> Quality:
    """Read the measures of images from a CSV as OFIQ writes it.

    Args:
        path: UTF-8 (with a mark or not), fields apart by semicolons.
        wanted: columns; those that the file lacks are left to other files. Without any that it
            has, `DEFAULT` is taken.

    Raises:
        DatasetError: the file is no such table, lacks all that is wanted and `DEFAULT` too, or
            holds what is no number.
    """
    path = Path(path)
    table = Table(path)
    header = table.columns
    if header[:1] != [_NAME]:
        raise DatasetError(
            f"{path}: the first line must begin with {_NAME} and have semicolons between its "
            f"fields, as OFIQ writes it; found {';'.join(header)[:60]!r}"
        )
    chosen = [name for name in wanted if name in header[1:]] or [DEFAULT]
    if chosen[0] not in header:
        raise DatasetError(
            f"{path}: there is no column {chosen[0]}; name others with --covariates, as "
            f"{', '.join(header[1:6])}"
        )
    lines = list(table.rows(header))
    if not lines:
        raise DatasetError(f"{path}: there is a header but no line below it; check the file")
    return Quality(
        path,
        sha256(path),
        tuple(row[0] for _, row in lines),
        {name: _values(path, header, lines, name) for name in dict.fromkeys(chosen)},
    )


def add_quality(attributes: Attributes, quality: Quality) -> Attributes:
    """Return attributes with the measures of their images as covariates.

    OFIQ writes paths as it was given them. So a path belongs to the image whose id is the longest
    of its ends: ``photos/Ann/1.jpg`` to ``Ann/1.jpg`` rather than to ``1.jpg``.

    Raises:
        DatasetError: a column is in both files, no path ends in the id of an image, or two lines of
            one image differ.
    """
    doubled = sorted(set(attributes.covariates) & set(quality.measures))
    if doubled:
        raise DatasetError(
            f"{quality.path}: {doubled[0]} is a column of {attributes.path} too; rename one of them"
        )
    ids = set(attributes.images.tolist())
    first_rows: dict[str, int] = {}
    for row, name in enumerate(quality.files):
        image = _image(name, ids)
        if image is None:
            continue
        first = first_rows.setdefault(image, row)
        for measure, values in quality.measures.items():
            if not np.array_equal(values[first], values[row], equal_nan=True):
                raise DatasetError(
                    f"{quality.path}: {image} has two lines of different {measure} "
                    f"({values[first]:g} and {values[row]:g}); leave one"
                )
    if not first_rows:
        raise DatasetError(
            f"{quality.path}: none of its {len(quality.files):,} paths (as "
            f"{quality.files[0][:60]!r}) ends in the id of an image of {attributes.path} (as "
            f"{str(attributes.images[0])[:60]!r}); run OFIQ on the folder that the ids start in"
        )
    rows = np.array([first_rows.get(image, -1) for image in attributes.images.tolist()])
    measures = {
        name: np.where(rows >= 0, values[rows], np.nan) for name, values in quality.measures.items()
    }
    return replace(attributes, covariates={**attributes.covariates, **measures})


def _image(path: str, ids: Collection[str]) -> str | None:
    """Return the longest end of a path that is an id."""
    segments = path.replace("\\", "/").split("/")
    ends = ("/".join(segments[start:]) for start in range(len(segments)))
    return next((end for end in ends if end in ids), None)


def _measure(name: str) -> str:
    return name.removesuffix(_SCALAR).removesuffix(_RAW)


def _values(
    path: Path, header: Sequence[str], lines: Sequence[tuple[int, Sequence[str]]], name: str
) -> NDArray[np.float64]:
    """Return a column; NaN where its measure could not be taken, also if it is the raw one."""
    column = header.index(name)
    scalar = _measure(name) + _SCALAR
    verdict = header.index(scalar) if scalar in header else None
    values = np.full(len(lines), np.nan)
    for index, (line, row) in enumerate(lines):
        number = read_number(path, line, name, row[column])
        taken = verdict is None or read_number(path, line, scalar, row[verdict]) != _NOT_TAKEN
        values[index] = number if taken else math.nan
    return values
