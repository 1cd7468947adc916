"""Folders and lists of pairs as their authors publish them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.io import savemat

from facerec.verification.bench import Bench
from helpers.toy_packs import jpeg

NamedPair = tuple[str, str, bool]


def named_pairs(bench: Bench) -> list[NamedPair]:
    ids, pairs = bench.images.ids.tolist(), bench.pairs
    return [
        (ids[first], ids[second], bool(same))
        for first, second, same in zip(pairs.first, pairs.second, pairs.issame, strict=True)
    ]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def draw(path: Path, seed: int) -> bytes:
    """Write a generated picture; return its bytes."""
    generator = np.random.default_rng(seed)
    content = jpeg(generator, generator.random((8, 8, 3)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content


def make_cfp(root: Path, level: Callable[[int], str] = lambda person: "") -> dict[str, bytes]:
    """Write a tree of 4 persons, 2 frontal and 2 profile images each, and 2 folds."""
    contents: dict[str, bytes] = {}
    lists: dict[str, list[str]] = {"frontal": [], "profile": []}
    for person in range(1, 5):
        for view, lines in lists.items():
            for image in (1, 2):
                name = f"{person:03d}/{view}/{image:02d}.jpg"
                place = root / "Data" / "Images" / level(person) / name
                contents[name] = draw(place, len(contents))
                lines.append(f"{len(lines) + 1} ../Data/Images/{name}")
    for letter, lines in zip("FP", lists.values(), strict=True):
        write(root / "Protocol" / f"Pair_list_{letter}.txt", "\n".join(lines) + "\n")
    for split in ("FF", "FP"):
        for fold, first in ((1, 1), (2, 5)):
            folder = root / "Protocol" / "Split" / split / f"{fold:02d}"
            write(folder / "same.txt", f"{first},{first + 1}\r\n{first + 2},{first + 3}\r\n")
            write(folder / "diff.txt", f"{first},{first + 2}\n")
    return contents


def make_agedb(path: Path, folds: list[list[tuple[str, str, int]]], **how: bool) -> Path:
    """Write the official structure: cells of structures of cells of structures."""
    splits = np.empty((len(folds), 1), dtype=object)
    for k, pairs in enumerate(folds):
        names = np.empty((2, len(pairs)), dtype=object)
        for i, (first, second, _) in enumerate(pairs):
            names[0, i] = {"name": first, "age": 30.0}
            names[1, i] = {"name": second, "age": 60.0}
        labels = np.array([[label for *_, label in pairs]], dtype=np.int16)
        splits[k, 0] = {"pairs": names, "labels": labels}
    savemat(path, {"splits": splits}, **how)
    return path
