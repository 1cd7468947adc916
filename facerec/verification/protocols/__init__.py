"""Pair lists and score files as they lie on disks → benches and scored pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from facerec.base.errors import DatasetError
from facerec.verification.bench import Bench, pack_bench
from facerec.verification.protocols.pair_lists import (
    read_agedb,
    read_cfp,
    read_flat,
    read_lfw,
    read_parquet_pairs,
    read_rfw,
    read_two_lines,
)
from facerec.verification.protocols.scores import ScoredPairs, read_scores

__all__ = ["FORMATS", "ScoredPairs", "guess_format", "read_pairs", "read_scores"]


def _read_pack(path: Path, _: Path | None) -> Bench:
    return pack_bench(path)


FORMATS: Mapping[str, Callable[[Path, Path | None], Bench]] = {
    "lfw": read_lfw,
    "xqlfw": partial(read_lfw, format="xqlfw"),
    "calfw": partial(read_two_lines, format="calfw"),
    "cplfw": partial(read_two_lines, format="cplfw"),
    "cfp-ff": partial(read_cfp, split="FF"),
    "cfp-fp": partial(read_cfp, split="FP"),
    "agedb": read_agedb,
    "rfw": read_rfw,
    "flat": read_flat,
    "parquet": read_parquet_pairs,
    "bin": _read_pack,
    "npz": _read_pack,
}
"""Every form of pair list: its name → what makes a bench of a list and a folder of images, or None
for the default folder."""


def read_pairs(
    path: str | Path, format: str | None = None, images: str | Path | None = None
) -> Bench:
    """Read a pair list as a bench.

    The format is a key of `FORMATS`, or None where the suffix makes it certain; CFP, and RFW with
    several races, is a folder of lists. Image paths are relative to the folder of images, by
    default that of the list, or where the data set's own tree has them (CFP, RFW); packs and
    parquet hold their images. Whether images are there is not looked at before one is read.

    Raises:
        DatasetError: the format is unknown, or the list is missing or malformed; the sentence
            names file and line.
        PackError: a pack is missing, unsafe or malformed.
        MissingExtraError: no package that reads parquet is installed.
    """
    format = format or guess_format(path)
    if format is None or format not in FORMATS:
        said = f"there is no format {format!r}" if format else "its name does not tell its form"
        said = said if Path(path).exists() else "there is no such list"
        raise DatasetError(f"{path}: {said}; give --format, one of {', '.join(FORMATS)}")
    if images is not None and format in ("parquet", "bin", "npz"):
        raise DatasetError(f"{path}: it holds its images; leave the folder of images out")
    return FORMATS[format](Path(path), None if images is None else Path(images))


def guess_format(path: str | Path) -> str | None:
    """Return the format that a file's suffix makes certain, else None."""
    suffixes = {".bin": "bin", ".npz": "npz", ".parquet": "parquet", ".mat": "agedb"}
    return suffixes.get(Path(path).suffix.lower())
