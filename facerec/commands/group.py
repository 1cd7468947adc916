"""``facerec group``: a pile of photos → who is on them, as groups of faces."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tyro

from facerec.base.errors import DatasetError
from facerec.base.files import atomic_folder, atomic_path, check_place, staged_folder
from facerec.commands.cli import Console, refuse, run_command
from facerec.commands.embedder import LENIENT, Embedder, print_notes
from facerec.records.images import FolderImages
from facerec.report import words
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from pandas import DataFrame

    from facerec.embedding.extraction import Embeddings

TABLE, KEPT, PAGE, LINKS = "groups.csv", "embeddings.npz", "groups.html", "people"


def group(
    photos: tyro.conf.Positional[Path],
    out: Path,
    folders: tyro.conf.FlagCreatePairsOff[bool] = False,
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = LENIENT,
) -> None:
    """Group the faces of photos by who they probably are, and say how many merges may be wrong.

    There is no threshold to choose: how alike strangers are is learned from the faces themselves.
    All faces of a photo take part (--align), and two of one photo are never one person. OUT then
    holds groups.csv with a row a face, groups.html with the most doubtful groups first, and
    embeddings.npz. It is personal data, and only its owner may read it.

    Write names into the column subject_id, one a group is enough, and enrol them: facerec enroll
    OUT/embeddings.npz --subjects OUT/groups.csv --gallery people.npz. Run it again on more photos
    with the same OUT: new faces are placed, old groups stay as they are, and those of them that
    look like one person are listed. Faces whose group you empty are placed anew. Those with the
    same text in the column must are then one person, and with the same in cannot different people.

    Args:
        photos: a folder of photos, or a file of embeddings (.npz, .parquet).
        out: the folder to write; one that this command wrote takes new photos.
        folders: also make OUT/people, with a folder a group that holds links to its photos, the
            most doubtful first.
        embedder: how photos become embeddings.
    """
    from facerec.embedding.file import is_embeddings, write_embeddings
    from facerec.galleries.contact_sheet import SHOWN, faces_of, write_contact_sheet
    from facerec.galleries.group_table import COLUMNS, group_table
    from facerec.galleries.grouping import TAIL_OFF, group_faces

    check_place(out)
    links = f"{photos}: it has no photos to which --folders could link; leave --folders out"
    refuse({links: folders and is_embeddings(photos)})
    console = Console()
    every, table, pictures = _faces(photos, out, embedder, console)
    usable = np.isfinite(every.norms)
    faces = table[usable].assign(digest=np.asarray(every.digests, np.str_)[usable])
    with progress_bar(console, "tiles") as show:
        found = group_faces(every.vectors[usable], faces, device=embedder.device, progress=show)
    table.loc[faces.index, "group"] = found.groups.astype(str)
    table.loc[faces.index, "doubt"] = [f"{each:.2g}".replace("nan", "") for each in found.doubt]
    sizes = np.bincount(found.groups)
    counts = {
        "groups of several": np.count_nonzero(sizes > 1),
        "alone": np.count_nonzero(sizes == 1),
        "in photos that are there twice": faces["digest"][faces["digest"] != ""].duplicated().sum(),
        "left out, see remark": np.count_nonzero(~usable),
        "pairs of old groups that look like one person": len(found.merges),
    }
    low, high = found.wrong / TAIL_OFF, found.wrong * TAIL_OFF
    parts = [f"{what}: {count:,}" for what, count in counts.items() if count]
    largest = f"the largest, {sizes.argmax()}, has {words.percent(sizes.max() / len(faces))}"
    wrong = f"expected wrong merges of this run {found.wrong:.2g} [{low:.2g}, {high:.2g}]"
    verdict = "; ".join([words.counted(len(faces), "face"), *parts, largest, wrong])
    shown = zip(table["photo"], table["box"], strict=True)
    face = faces_of(pictures, dict(zip(table.index, shown, strict=True)))
    with staged_folder(out, last=TABLE) as stage:
        write_embeddings(stage / KEPT, every)
        sheet = {"The most doubtful first": group_table(found, faces.index, SHOWN, face)}
        write_contact_sheet(stage / PAGE, "Groups of faces", verdict, sheet)
        with atomic_path(stage / TABLE, private=True) as temporary:
            table[list(COLUMNS)].to_csv(
                temporary, index_label="image_id", errors="backslashreplace"
            )
    if folders:
        _link(out / LINKS, photos, table)
    console.print(group_table(found, faces.index, 10).terminal())
    console.print(verdict, style="bold")
    if not counts["groups of several"]:
        how = "add photos of other people, empty the column group, run it again"
        console.print(f"no two faces are surely of one person; {how}", style="yellow")
    console.print(f"table: {out / TABLE}, page: {out / PAGE}")


def _faces(
    photos: Path, out: Path, embedder: Embedder, console: Console
) -> tuple[Embeddings, DataFrame, FolderImages | None]:
    """Return embeddings of all faces, old ones first, a table with a row of each, and photos."""
    import pandas as pd

    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.embedding.space import Space
    from facerec.galleries.group_table import COLUMNS, read_table

    again = (out / TABLE).exists()
    old = read_embeddings(out / KEPT) if again else None
    before = read_table(out / TABLE) if again else pd.DataFrame(columns=COLUMNS)
    if is_embeddings(photos):
        pictures, found = None, embedder.read(photos, console)
    else:
        pictures = FolderImages(photos)
        # Photos that failed may have been mended: they are tried again.
        failed = before["remark"].ne("").groupby(before["photo"]).transform("all").astype(bool)
        before = before[~(failed & before["photo"].isin(pictures.ids))]
        names = np.setdiff1d(pictures.ids, before["photo"]).tolist()
        space, source = None if old is None else Space.of(old), FolderImages(photos, names)
        if names or old is None:
            found = embedder.embed(photos, source, console, space=space, every_face=True)
            found = embedder.known(found, console)
        else:  # what people changed in the table is new
            found = old
    rows = pd.DataFrame("", found.ids, COLUMNS)
    rows["photo"] = rows.index.str.replace(r" face \d+$", "", regex=True)
    if found.faces:
        rows["box"] = [" ".join(f"{edge:.0f}" for edge in face.box or ()) for face in found.faces]
    rows["remark"] = [found.failures.get(row, "") for row in range(len(rows))]
    if found.digests is None:
        found = replace(found, digests=np.zeros(len(rows), "S32"))
    here = ~rows.index.isin(before.index)
    joined = {name: getattr(found, name)[here] for name in ("vectors", "norms", "ids", "digests")}
    if old is not None:
        print_notes([Space.of(old).compare(Space.of(found), f"{out} and {photos}")], console)
        kept = np.isin(cast(Any, old.ids), before.index)  # people may take rows out
        joined = {name: np.concatenate([getattr(old, name)[kept], joined[name]]) for name in joined}
    if lost := sorted({*before.index} - {*joined["ids"].tolist()}):
        how = "give it its image_id back, or take it out"
        raise DatasetError(f"{out / TABLE}: the row of {lost[0]!r} is of no face; {how}")
    table = pd.concat([before, rows[here]]).reindex(joined["ids"], fill_value="")
    failed_rows = np.flatnonzero(np.isnan(joined["norms"]))
    why = dict(zip(failed_rows.tolist(), table["remark"].iloc[failed_rows], strict=True))
    every = replace(found, failures=why, several={}, face_scores=None, subjects=None, **joined)
    return every, table, pictures


def _link(folders: Path, photos: Path, table: DataFrame) -> None:
    """Make a folder of every group of several faces, with links to the photos."""
    several = table[(table["group"] != "") & (table["doubt"] != "")].astype({"doubt": float})
    with atomic_folder(folders, replace=True) as stage:
        for number, rows in several.sort_values("doubt", ascending=False).groupby("group"):
            here = stage / f"{int(str(number)):05d}"
            here.mkdir()
            for place, name in enumerate(rows["photo"], 1):
                photo = (photos / name).resolve()
                (here / f"{place:03d} {photo.name}").symlink_to(photo)


main = partial(run_command, group)
