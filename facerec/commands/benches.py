"""What several commands share: which verification sets the flags mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from facerec.errors import DatasetError

if TYPE_CHECKING:
    from facerec.verification.bench import Bench
    from facerec.verification.templates import TemplateBench

TEMPLATE_BENCHES = ("ijbb", "ijbc", "tinyface")


def open_benches(
    names: Sequence[str],
    pairs: Path | None = None,
    format: str | None = None,
    images: Path | None = None,
    data: Path | None = None,
) -> list[Bench | TemplateBench]:
    """Open benches by name, pack files, or one pair list.

    Args:
        names: of benches (see `find_pack`), packs, or `TEMPLATE_BENCHES`, whose folder is ``data``
            or of that name inside it; without ``data``, inside FACEREC_DATA or ``data/``.
        pairs: a pair list in place of names.
        format: form of the pair list; None where its suffix tells.
        images: the folder that the paths of the list are relative to.
        data: folder of the benches.

    Raises:
        DatasetError: neither or both of names and pair list, what belongs to the other of them, or
            a malformed list.
        PackError: a pack is missing, unsafe or malformed.
    """
    from facerec.verification.protocols import FORMATS, guess_format, read_pairs

    if bool(names) == (pairs is not None):
        raise DatasetError("give either --bench or --pairs, to say which pairs are meant")
    if pairs is None:
        if format is not None or images is not None:
            raise DatasetError("--format and --images belong to --pairs; leave them out")
        return [_named(name, data) for name in names]
    if data is not None:
        raise DatasetError(
            "--data is the folder of a --bench; leave it out with --pairs, and name the folder "
            "that the paths of the list are relative to with --images"
        )
    format = format or guess_format(pairs)
    if format is None:
        if not pairs.exists():
            raise DatasetError(f"{pairs}: there is no such list of pairs; check the path")
        raise DatasetError(
            f"{pairs}: its name does not tell its form; give --format, one of {', '.join(FORMATS)}"
        )
    return [read_pairs(pairs, format, images)]


def _named(name: str, data: Path | None) -> Bench | TemplateBench:
    from facerec.verification.bench import bench_folders, find_pack, pack_bench
    from facerec.verification.protocols.template_lists import read_ijb, read_tinyface

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
