"""Small pictures that differ, folders of files, archives and tables."""

from __future__ import annotations

import csv
import io
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import cv2
import numpy as np


def picture(seed: int, height: int = 112, width: int = 112, suffix: str = ".jpg") -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return cv2.imencode(suffix, image)[1].tobytes()


def write_files(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def read_files(root: Path) -> dict[str, bytes]:
    """Return all files below a folder by their paths in it."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def read_table(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_tar(
    path: Path, members: Iterable[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT
) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def faces(count: int, seed: int = 0, side: int = 112) -> np.ndarray:
    """Return noise in the shape of faces."""
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def encode(image: np.ndarray, suffix: str = ".png") -> bytes:
    return cv2.imencode(suffix, image[:, :, ::-1])[1].tobytes()


def png_header(width: int, height: int) -> bytes:
    """Return a PNG that claims a size and has no pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n\0\0\0\x0d" + header + struct.pack(">I", zlib.crc32(header))
    return start + b"\0\0\0\0IDAT" + bytes(8)
