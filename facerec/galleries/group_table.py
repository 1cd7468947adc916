"""The table of a grouped pile of photos: a row a face, which people edit and commands read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.galleries.contact_sheet import SHOWN, Face
from facerec.galleries.grouping import Grouping
from facerec.records.tables import TextTable
from facerec.report.csv_tables import plain
from facerec.report.table import Cell, Table

COLUMNS = (
    *("photo", "face", "box", "group", "doubt", "subject_id"),
    *("must", "cannot", "remark"),
)
"""Beside image_id."""


def read_table(path: Path, columns: Sequence[str] = COLUMNS) -> pd.DataFrame:
    """Return columns of a table, as text by image_id.

    Raises:
        DatasetError: it cannot be read, lacks a column, or a group is no number.
    """
    table = TextTable(path)
    rows = {fields[0]: fields[1:] for _, fields in table.rows(("image_id", *columns))}
    found = pd.DataFrame.from_dict(rows, orient="index", columns=list(columns), dtype=str)
    found = found.map(plain).rename(index=plain)
    for number in set(found.get("group", ())) - {""}:
        if not number.isdecimal():
            raise DatasetError(
                f"{path}: the group {number[:60]!r} is no number; leave that column as it was, and "
                "write names into subject_id"
            )
    return found


def named_groups(path: Path, ids: NDArray[np.str_]) -> NDArray[np.str_] | None:
    """Return the name of each face's group, ``(N,)``, empty without one; None of other tables.

    A name in subject_id, on any face of a group, is that of the group.

    Raises:
        DatasetError: a group has two names, or none has any.
    """
    if "doubt" not in TextTable(path).columns:
        return None
    table = read_table(path)
    given = table[(table["subject_id"] != "") & (table["group"] != "")]
    given = given[["group", "subject_id"]].drop_duplicates()
    for number in given["group"][given["group"].duplicated()]:
        raise DatasetError(
            f"{path}: group {number} has two names in subject_id; a group is one person, so write "
            "one of them"
        )
    if given.empty:
        raise DatasetError(
            f"{path}: no group has a name; write one into subject_id, on any face of a group"
        )
    names = table["group"].map(given.set_index("group")["subject_id"])
    return names.reindex(ids).fillna("").to_numpy(np.str_)


def group_tables(
    found: Grouping, ids: Sequence[str], most: int = SHOWN, face: Face = lambda name: ""
) -> dict[str, Table]:
    """Return the most doubtful groups, and old groups that look like one person, as tables.

    Args:
        found: the groups.
        ids: of the faces.
        most: rows of a table.
        face: image → picture.
    """
    faces = pd.DataFrame({"name": ids, "doubt": found.doubt, "group": found.groups})
    faces = faces.sort_values("doubt", ascending=False, kind="stable")
    named = faces.groupby("group", sort=False)["name"].agg(["first", "last", "size"])
    groups = named.assign(doubt=faces.groupby("group", sort=False)["doubt"].max())

    def cell(name: str, text: str = "") -> Cell:
        return Cell(text or name, picture=face(name))

    headings = "group", "faces", "its most doubtful face", "its surest face"
    rows: list[tuple[str | Cell, ...]] = [
        (str(number), str(size), cell(first), cell(last), f"{doubt:.1e}")
        for number, first, last, size, doubt in groups.dropna().head(most).itertuples()
    ]
    apart = "old group", "looks like"
    merges: list[tuple[str | Cell, ...]] = [
        (*(cell(str(named["last"][each]), f"group {each}") for each in pair), f"{doubt:.1e}")
        for *pair, doubt in found.merges[:most]
    ]
    tables = {
        "groups, the most doubtful first": Table("", (*headings, "doubt"), rows, headings),
        "old groups that may be one person": Table("", (*apart, "doubt"), merges, apart),
    }
    return {name: table for name, table in tables.items() if table.rows}
