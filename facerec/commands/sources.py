"""Which images the flags mean, and which pairs of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from facerec.base.errors import DatasetError
from facerec.records.images import FolderImages, ImageSource, PackImages
from facerec.records.other_kinds import other_kind
from facerec.records.shards import set_kind

if TYPE_CHECKING:
    from facerec.embedding.align import Aligner
    from facerec.verification.bench import Bench

Kind = Literal["records", "images", "bench"]

TEMPLATE_BENCHES = ("ijbb", "ijbc", "tinyface")


def open_benches(
    names: Sequence[str],
    pairs: Path | None = None,
    format: str | None = None,
    images: Path | None = None,
    data: Path | None = None,
) -> list[Bench]:
    """Open benches by name, pack files, or one pair list.

    Args:
        names: of benches (see `find_pack`), packs, pair lists whose suffix tells their form, or
            `TEMPLATE_BENCHES`, whose folder is ``data`` or of that name inside it; without
            ``data``, inside FACEREC_DATA or ``data/``.
        pairs: a pair list in place of names.
        format: form of the pair list; None where its suffix tells.
        images: the folder that the paths of the list are relative to.
        data: folder of the benches.

    Raises:
        DatasetError: neither or both of names and pair list, or a malformed list.
        PackError: a pack is missing, unsafe or malformed.
    """
    from facerec.verification.protocols import read_pairs

    if bool(names) == (pairs is not None):
        raise DatasetError("give either --bench or --pairs, to say which pairs are meant")
    if pairs is None:
        return [_named(name, data) for name in names]
    return [read_pairs(pairs, format, images)]


def open_image_benches(*given: Any, **how: Any) -> list[Bench]:
    """Open benches as `open_benches` does, but none of templates.

    Raises:
        FacerecError: as there, or one compares templates of several images.
    """
    from facerec.verification.templates import TemplateBench

    benches = open_benches(*given, **how)
    if odd := [one.name for one in benches if isinstance(one, TemplateBench)]:
        what = "compares templates of several images; name pairs of images, as lfw"
        raise DatasetError(f"{odd[0]}: it {what}")
    return benches


def _named(name: str, data: Path | None) -> Bench:
    from facerec.verification.bench import bench_folders, find_pack, pack_bench
    from facerec.verification.protocols import guess_format, read_pairs
    from facerec.verification.protocols.template_lists import read_ijb, read_tinyface

    if guess_format(name) in ("parquet", "agedb"):
        return read_pairs(name)
    if name not in TEMPLATE_BENCHES:
        return pack_bench(find_pack(name, data))
    folders = bench_folders(None) if data is None else [data]
    root = next((folder / name for folder in folders if (folder / name).is_dir()), data)
    if root is None:
        raise DatasetError(
            f"{name} is a folder of lists and images; name it with --data, or the folder that it "
            "is in with FACEREC_DATA"
        )
    if name == "tinyface":
        return read_tinyface(root)
    return read_ijb(root, cast(Literal["ijbb", "ijbc"], name))


@dataclass(frozen=True, eq=False)
class Opened:
    """Images to embed, and what is known of them."""

    images: ImageSource
    description: dict[str, Any]
    """For the note, as JSON types."""
    subjects: Callable[[], NDArray[np.str_] | None]
    """Reads who is on each image, ``(N,)``, empty where unknown; None if nobody is known."""
    aligner: Aligner | None = None
    """From points that come with the images; another one may be asked for."""


def open_set(
    kind: Kind,
    path: str | Path,
    data: Path | None = None,
    on_error: Literal["error", "skip"] = "error",
) -> Opened:
    """Open a record file, a folder or a bench.

    Raises:
        FacerecError: it cannot be read.
    """
    from facerec.records.tar_shards import TarImages
    from facerec.records.training_set import Data, open_images

    if kind != "bench":
        given = Data(Path(path), on_error=on_error)
        faces = FolderImages(path) if kind == "images" else open_images(given.path, given)
        note = {"kind": "webdataset" if isinstance(faces, TarImages) else kind, "path": str(path)}
        return Opened(faces, note, faces.label_names)
    from facerec.verification.bench import INFERRED, folders_of
    from facerec.verification.templates import TemplateBench

    (bench,) = open_benches([str(path)], data=data)
    images = bench.images
    if isinstance(bench, TemplateBench):
        # Persons are those of templates, which may share images.
        return Opened(images, {"kind": "bench", **bench.source}, lambda: None, bench.aligner)
    numbers = bench.pairs.subjects
    subjects = None if numbers is None else numbers.astype(np.str_)
    if isinstance(images, PackImages) and bench.subjects_from != INFERRED:
        # Names are better than numbers where they do not contradict the labels.
        names = folders_of(images.ids) if images.subjects is None else images.subjects
        subjects = subjects if names is None else names
    description = {"kind": "bench", **bench.source, "subjects_from": bench.subjects_from}
    return Opened(images, description, lambda: subjects)


def kind_of(path: Path) -> Kind:
    """Return which kind of images lies at a path; a folder of images may have subfolders."""
    if set_kind(path) in (".rec", ".tar"):
        return "records"
    if path.is_dir():
        return "images"
    if path.suffix == ".bin":
        return "bench"
    raise DatasetError(
        other_kind(path)
        or f"{path}: no such file, or neither embeddings (.npz, .parquet) nor records (.rec), a "
        "pack (.bin), a folder or WebDataset shards (.tar); check the path"
    )
