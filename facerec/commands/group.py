"""``facerec group``: a pile of photos → who is on them, as groups of faces."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tyro

from facerec.base.errors import DatasetError
from facerec.base.files import atomic_folder, atomic_path, check_place, staged_folder
from facerec.base.progress import Progress
from facerec.commands.cli import Console, run_command
from facerec.commands.embedder import LENIENT, Embedder, print_notes
from facerec.records.images import FolderImages
from facerec.report import words
from facerec.report.csv_tables import to_csv
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from pandas import DataFrame

    from facerec.embedding.extraction import Embeddings
    from facerec.galleries.grouping import Grouping

TABLE, KEPT, PAGE = "groups.csv", "embeddings.npz", "groups.html"

_FACE = re.compile(r" face \d+$")

_MOST = 1 / 3
"""Share of all faces from which on a group is named as one to look at."""


def group(
    photos: tyro.conf.Positional[Path],
    out: Path,
    links: Path | None = None,
    folders: Path | None = None,
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
    look like one person are listed.

    Args:
        photos: a folder of photos, or a file of embeddings (.npz, .parquet).
        out: the folder to write; one that this command wrote takes new photos.
        links: a .csv file with the columns image_id, must and cannot: faces with the same text in
            must are one person, and with the same text in cannot different people. OUT/groups.csv
            has these columns.
        folders: also make this folder, with a folder a group that holds links to its photos, the
            most doubtful first.
        embedder: how photos become embeddings.
    """
    from facerec.embedding.file import is_embeddings, write_embeddings
    from facerec.galleries.contact_sheet import SHOWN, faces_of, write_contact_sheet
    from facerec.galleries.group_table import COLUMNS, group_tables, read_table

    check_place(out, DatasetError)
    again = (out / TABLE).is_file() and (out / KEPT).is_file()
    if out.exists() and not again and (not out.is_dir() or any(out.iterdir())):
        raise DatasetError(f"{out}: holds other files; name a new folder with --out")
    if folders is not None and (is_embeddings(photos) or folders.exists()):
        raise DatasetError(
            f"{folders}: links lead to photos, not embeddings, and are made where nothing is yet; "
            "name another folder with --folders, or leave it out"
        )
    console = Console(highlight=False, soft_wrap=True)
    pictures = None if is_embeddings(photos) else FolderImages(photos)
    every, table = _faces(photos, pictures, out if again else None, embedder, console)
    if links is not None:
        given = read_table(links, ("must", "cannot"))
        if unknown := sorted(set(given.index) - set(table.index)):
            raise DatasetError(
                f"{links}: there is no face {unknown[0][:60]!r}; image_id is that of {TABLE}, as "
                "'a.jpg', or 'a.jpg face 2' where a photo shows several"
            )
        table.update(given)
    with progress_bar(console, "tiles") as progress:
        found, names = _grouped(every, table, embedder.device, progress)
    boxes = table["box"].str.split().map(lambda edges: [int(edge) for edge in edges])
    cuts = dict(zip(table.index, zip(table["photo"], boxes, strict=True), strict=True))
    verdict = _verdict(table, found)
    with staged_folder(out, DatasetError, last=TABLE) as stage:
        write_embeddings(stage / KEPT, every)
        sheet = group_tables(found, names, SHOWN, faces_of(pictures, cuts))
        write_contact_sheet(stage / PAGE, "Groups of faces", verdict, sheet)
        with atomic_path(stage / TABLE, DatasetError, private=True) as temporary:
            rows = table[list(COLUMNS)].rename_axis("image_id").reset_index()
            temporary.write_bytes(to_csv(cast(Any, rows.to_dict("records"))))
    if folders is not None:
        _link(folders, photos, table)
    for caption, shown in group_tables(found, names, 10).items():
        console.print(caption)
        console.print(shown.terminal())
    console.print(verdict, style="bold")
    print_notes([_large(found)], console)
    console.print(f"table: {out / TABLE}, page: {out / PAGE}")


def _faces(
    photos: Path,
    pictures: FolderImages | None,
    out: Path | None,
    embedder: Embedder,
    console: Console,
) -> tuple[Embeddings, DataFrame]:
    """Return the embeddings of all faces, old ones first, and a table with a row of each.

    Raises:
        DatasetError: there are no new ones, or one is called as an old one.
    """
    import pandas as pd

    from facerec.embedding.extraction import Embeddings, image_digest
    from facerec.embedding.file import read_embeddings
    from facerec.embedding.photo_faces import PhotoFace
    from facerec.embedding.space import Space
    from facerec.galleries.group_table import COLUMNS, read_table

    old = None if out is None else read_embeddings(out / KEPT)
    space = None if old is None else Space.of(old)
    if pictures is None:
        found = embedder.read(photos, console)
    else:
        known = set[bytes]() if old is None else set(cast(Any, old.digests).tolist())
        names = [
            name
            for place, name in enumerate(pictures.ids.tolist())
            if not known or image_digest(pictures.encoded(place)) not in known
        ]
        if known:
            seen = words.counted(len(pictures) - len(names), "photo")
            console.print(f"{photos}: {seen} grouped already")
        if not names:
            raise DatasetError(f"{photos}: all photos are grouped already; nothing was changed")
        source = FolderImages(photos, names)
        found = embedder.embed(photos, source, console, space=space, every_face=True)
        found = embedder.known(found, console)
    ids = cast(Any, found.ids)
    # Of embeddings in a file the name alone says which photo they are of.
    faces = found.faces or [PhotoFace(_FACE.sub("", name)) for name in ids.tolist()]
    table = pd.DataFrame("", ids, COLUMNS)
    table["photo"] = [face.image_id for face in faces]
    table["face"] = [str(face.face or "") for face in faces]
    table["box"] = [" ".join(f"{edge:.0f}" for edge in face.box or ()) for face in faces]
    table["remark"] = [found.failures.get(row, "") for row in range(len(ids))]
    digests = np.zeros(len(ids), "S32") if found.digests is None else found.digests
    columns = [found.vectors, found.norms, ids, digests]
    if old is not None and out is not None and space is not None and old.ids is not None:
        print_notes([space.compare(Space.of(found), f"{out} and {photos}")], console)
        rows = read_table(out / TABLE)
        # Photos that showed no face were tried again.
        stay = np.isin(old.ids, rows.index) & ~(np.isnan(old.norms) & np.isin(old.ids, ids))
        before = [old.vectors, old.norms, old.ids, old.digests]
        columns = [
            np.concatenate([cast(Any, one)[stay], other])
            for one, other in zip(before, columns, strict=True)
        ]
        table = pd.concat([rows.loc[columns[2][: stay.sum()]], table])
    if twice := table.index[table.index.duplicated()].tolist():
        raise DatasetError(
            f"{photos}: {twice[0]!r} is grouped already, and this is another photo or another "
            "embedding of it; give it a name of its own, or take it out"
        )
    vectors, norms, names, digests = columns
    made = Embeddings(vectors, norms, found.flip, names, note=found.note, digests=digests)
    return made, table


def _grouped(
    every: Embeddings, table: DataFrame, device: str, progress: Progress
) -> tuple[Grouping, list[str]]:
    """Write groups and doubts into the rows of new faces; return them, and whose they are."""
    from facerec.galleries.grouping import alike, group_faces

    usable, ids, digests = np.isfinite(every.norms), cast(Any, every.ids), cast(Any, every.digests)
    # A photo that is there twice says nothing new, and is where its first copy is.
    first = alike(digests, usable & (digests != b""))
    taken = np.flatnonzero(usable & (first == np.arange(len(ids))))
    rows = table.iloc[taken]
    found = group_faces(
        every.vectors[taken],
        ids[taken],
        rows["photo"].to_numpy(np.str_),
        must=rows["must"].to_numpy(np.str_),
        cannot=rows["cannot"].to_numpy(np.str_),
        known=rows["group"].replace("", "0").to_numpy(np.int64),
        device=device,
        progress=progress,
    )
    new = (rows["group"] == "").to_numpy()
    names = rows.index
    table.loc[names[new], "group"] = found.groups[new].astype(str)
    sure = ["" if np.isnan(each) else f"{each:.2g}" for each in found.doubt[new].tolist()]
    table.loc[names[new], "doubt"] = sure
    copies = np.flatnonzero(usable & (first != np.arange(len(ids))))
    originals = table.index[first[copies]]
    table.loc[ids[copies], "group"] = table.loc[originals, "group"].to_numpy()
    table.loc[ids[copies], "remark"] = [f"the same photo as {name}" for name in originals]
    return found, names.tolist()


def _verdict(table: DataFrame, found: Grouping) -> str:
    """Say what was found in a sentence."""
    sizes, limits = np.bincount(found.groups), words.limits(found.limits, form=".2g")
    several, alone = int((sizes > 1).sum()), int((sizes == 1).sum())
    out = int((table["group"] == "").sum())
    counts = {
        "copies of others": len(table) - out - len(found.groups),
        "left out, see remark": out,
        "pairs of old groups that may be one person": len(found.merges),
    }
    parts = [
        f"{words.counted(len(found.groups), 'face')}: "
        f"{words.counted(several, 'group')} of several, {alone:,} alone",
        *(f"{count:,} {what}" for what, count in counts.items() if count),
        f"expected wrong merges: {found.wrong:.2g} {limits}",
    ]
    return "; ".join(parts)


def _large(found: Grouping) -> str:
    """Return a sentence on a group of so many faces that it may be none of a person."""
    sizes = np.bincount(found.groups)
    if sizes.max() < _MOST * sizes.sum():
        return ""
    return (
        f"group {sizes.argmax()} has {sizes.max() / sizes.sum():.0%} of all faces: look at it, as "
        "pictures without a face look alike to a network (facerec calibrate finds their limit)"
    )


def _link(folders: Path, photos: Path, table: DataFrame) -> None:
    """Make a folder of every group of several faces, with links to the photos."""
    root = photos.resolve()
    with atomic_folder(folders, DatasetError) as stage:
        for number, rows in table[table["group"] != ""].groupby("group"):
            order = rows["doubt"].replace("", "0").astype(float).sort_values(ascending=False)
            names = [root / name for name in rows["photo"][order.index]]
            here = stage / f"{int(str(number)):05d}"
            for place, photo in enumerate(filter(Path.is_file, names if names[1:] else ()), 1):
                here.mkdir(exist_ok=True)
                (here / f"{place:03d} {photo.name}").symlink_to(photo)


main = partial(run_command, group)
