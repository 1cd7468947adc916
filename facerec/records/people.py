"""Who is on images, and of which groups these people are, from a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.base.names import is_missing
from facerec.records.images import text_array
from facerec.records.tables import TextTable


def read_members(
    path: Path, ids: NDArray[np.str_], group: str | None = None
) -> tuple[NDArray[np.str_], NDArray[np.str_] | None, int]:
    """Look up subjects and groups of images in a table with the columns image_id and subject_id.

    Returns:
        Who is on the images ``(N,)``, in which group ``(N,)`` (empty where none is recorded), if
        groups are asked for, and how many rows of the table are of other images.

    Raises:
        DatasetError: no such table or column, an image twice or without a row, a row without a
            subject, or no image with a group.
    """
    recorded: dict[str, tuple[str, str]] = {}
    table = TextTable(path)
    wanted = ["image_id", "subject_id", *([] if group is None else [group])]
    for line, (image, subject, *groups) in table.rows(wanted):
        if not image or not subject or image in recorded:
            what = "is on an earlier line too" if image and subject else "or its subject is empty"
            raise DatasetError(f"{table.where(line)}: image {image!r} {what}; mend the line")
        recorded[image] = subject, "".join(value for value in groups if not is_missing(value))
    absent = [name for name in ids.tolist() if name not in recorded]
    if absent:
        raise DatasetError(
            f"{path}: {len(absent):,} of {len(ids):,} images with an embedding have no row, the "
            f"first is {absent[0]!r}; image_id must be the id in the embeddings file"
        )
    people, values = zip(*(recorded[name] for name in ids.tolist()), strict=True)
    if group is not None and not any(values):
        raise DatasetError(f"{path}: the column {group} has no value of these images; name another")
    given = {both for both in zip(people, values, strict=True) if both[1]}
    if len(given) > len({subject for subject, _ in given}):
        raise DatasetError(
            f"{path}: a subject has two values in the column {group}; groups are of people, so "
            "write one of them"
        )
    groups_of = None if group is None else text_array(values, str(path))
    return text_array(people, str(path)), groups_of, len(recorded) - len(ids)
