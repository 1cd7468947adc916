"""The table of a grouped pile of photos: a row a face, which people edit and commands read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.galleries.contact_sheet import Face
from facerec.records.tables import TextTable
from facerec.report.table import Cell, Table

if TYPE_CHECKING:  # enrolment by a table needs no torch
    from facerec.galleries.grouping import Grouping

COLUMNS = ("photo", "box", "group", "doubt", "subject_id", "must", "cannot", "remark")
"""Beside image_id."""


def read_table(path: Path, columns: Sequence[str] = COLUMNS) -> pd.DataFrame:
    """Return columns of a table, as text by image_id.

    Raises:
        DatasetError: it cannot be read, lacks a column, or a group is no number.
    """
    rows = {name: fields for _, (name, *fields) in TextTable(path).rows(("image_id", *columns))}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(columns), dtype=str)
    if odd := [each for each in table.get("group", ()) if each and not each.isdecimal()]:
        raise DatasetError(f"{path}: group {odd[0][:60]!r} is no number; names go into subject_id")
    return table


def named_groups(path: Path, ids: NDArray[np.str_]) -> NDArray[np.str_] | None:
    """Return the name of each face's group, ``(N,)``, empty without one; None of other tables.

    A name in subject_id, on any face of a group, is that of the group.

    Raises:
        DatasetError: a group has two names.
    """
    if "doubt" not in TextTable(path).columns:
        return None
    table = read_table(path)
    given = table[(table["subject_id"] != "") & (table["group"] != "")]
    names = given.groupby("group")["subject_id"].agg(["min", "max"])
    for number in names.index[names["min"] != names["max"]]:
        raise DatasetError(f"{path}: group {number} has two names in subject_id; write one of them")
    name, group = names["min"].to_dict(), table["group"].reindex(ids, fill_value="")
    return np.array([name.get(each, "") for each in group], np.str_)


def group_table(
    found: Grouping, ids: Iterable[str], most: int, face: Face = lambda name: ""
) -> Table:
    """Return old groups that look like one person, and then the most doubtful groups.

    Args:
        found: the groups.
        ids: of the faces.
        most: rows of either kind.
        face: image → picture.
    """
    faces = pd.DataFrame({"name": ids, "doubt": found.doubt, "group": found.groups})
    faces = faces.sort_values("doubt", ascending=False, kind="stable")
    of = faces.groupby("group", sort=False)
    groups = of["name"].agg(["first", "last", "size"]).assign(doubt=of["doubt"].max())

    def row(group: str, size: str, pair: Iterable[str], doubt: float) -> tuple[str | Cell, ...]:
        return group, size, *(Cell(each, picture=face(each)) for each in pair), f"{doubt:.1e}"

    rows = [
        row(f"{one} or {two}?", "", groups["last"][[one, two]], doubt)
        for one, two, doubt in found.merges[:most]
    ]
    rows += [
        row(str(number), str(size), (first, last), doubt)
        for number, first, last, size, doubt in groups.dropna().head(most).itertuples()
    ]
    headings = "group", "faces", "its most doubtful face", "its surest face"
    return Table("", (*headings, "doubt"), rows, headings)
