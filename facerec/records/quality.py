"""Quality scores of images by another program, such as OFIQ or SER-FIQ, from a table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.names import is_missing
from facerec.records.tables import TextTable

IDS = ("image_id", "Filename", "image", "path", "file", "id")
"""Columns of image ids; the first that a table has counts."""

USUAL = ("UnifiedQualityScore.scalar", "quality")
"""Columns that are taken where none is named: OFIQ's, and that of most others."""


class Quality(NamedTuple):
    """What a table says of the quality of images."""

    path: Path
    column: str
    values: NDArray[np.float64]
    """Of each image, higher is better, NaN where none is recorded, ``(N,)``."""
    note: str
    """Says in a sentence what was read, and how many images have none."""


def read_quality(source: str, ids: NDArray[np.str_]) -> Quality:
    """Look up the quality of images in a table.

    Args:
        source: path of the table, and perhaps, behind a colon, its column of numbers; by default
            one of `USUAL`, or the only one with nothing but numbers.
        ids: of the images, ``(N,)``.

    Raises:
        DatasetError: no such table or column, several that may be meant, an image twice, what is no
            number, or no image with a quality.
    """
    name, _, column = source.rpartition(":")
    if not name or Path(source).is_file():
        name, column = source, ""
    table = TextTable(name)
    key = next((each for each in IDS if each in table.columns), IDS[0])
    others = [each for each in table.columns if each not in ("", key)]
    wanted = [column] if column else [each for each in USUAL if each in others][:1] or others
    known: dict[str, list[float | None]] = {}
    for line, (image, *texts) in table.rows([key, *wanted]):
        numbers = [_number(text) for text in texts]
        if not image or image in known or numbers == [None]:
            what = "occurs twice" if image in known else f"is no name or {texts} no number"
            raise DatasetError(f"{table.where(line)}: image {image!r} {what}; mend the line")
        known[image] = numbers
    numeric = [n for n, of in enumerate(zip(*known.values(), strict=True)) if None not in of]
    if len(numeric) != 1:
        raise DatasetError(
            f"{name}: {len(numeric)} columns hold numbers alone, of {', '.join(others)[:200]}; "
            f"name one, as {name}:COLUMN"
        )
    column, number = wanted[numeric[0]], {image: of[numeric[0]] for image, of in known.items()}
    values = np.array([number.get(each, math.nan) for each in ids.tolist()], np.float64)
    absent = ids[np.isnan(values)].tolist()
    lacking = f"{len(absent):,} of {len(ids):,} images have no number in the column {column}"
    lacking += "".join(f", the first is {each!r}" for each in absent[:1])
    if len(absent) == len(ids):
        there = f"the first of {name} is {next(iter(known))!r}"
        raise DatasetError(f"{name}: {lacking}; {there} (ids must be equal to the letter)")
    return Quality(Path(name), column, values, f"quality by {name}: {lacking}; higher is better")


def _number(text: str) -> float | None:
    """Return a finite number, NaN where none is recorded, and None of what is neither."""
    try:
        value = math.nan if is_missing(text) else float(text)
    except ValueError:
        return None
    return None if math.isinf(value) else value
