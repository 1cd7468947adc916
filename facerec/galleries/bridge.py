"""A bridge: probes of a new network search a gallery of an old one, without its photos.

    bridge = Bridge.build(read_embeddings("old.npz"), read_embeddings("new.npz"))
    Gallery.read("door.npz").translated(bridge).identify(read_embeddings("visitors.npz"))

Photos of other people, embedded by both networks, teach a linear map from the new network's space
to the old one's: ridge regression of unit embeddings. It is applied to probes alone; the gallery
and its file stay as they are.

What that costs is told by folds of the bridge's people: photos of each fold are mapped by what the
others teach, and meet each other alone, as strangers to the map.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from facerec.base.errors import DatasetError
from facerec.base.files import atomic_path, parse_json, reading
from facerec.cosines.unit_rows import row_norms
from facerec.embedding.extraction import Embeddings
from facerec.embedding.space import Space
from facerec.records.npz import read_arrays, write_arrays
from facerec.statistics.operating_points import RULE_OF_30
from facerec.statistics.rates import roc_curve

FORMAT = "facerec bridge 1"

FEWEST = 100
"""People of whom a bridge has two photos, and strangers' photos that tell a threshold, at least."""

FPR = 1e-3
"""At which misses are compared, or the lowest at which `RULE_OF_30` pairs of strangers match."""

_WEIGHTS = [float(10.0**power) for power in np.arange(-2, 3, 0.5)]

_FOLDS = 10

_MET = 1000
"""Photos of a fold that meet each other at most."""

_Array = NDArray[np.float64]
_Numbers = NDArray[np.int64]
_Way = Sequence[tuple[_Array, _Array]]
"""Mated and non-mated scores of each fold."""


@dataclass(frozen=True)
class Price:
    """How many pairs of photos of one person searches miss at one FPR, on a bridge's people."""

    people: int
    photos: int
    fpr: float
    """Share of pairs of different people that match; each way has its own threshold."""
    mated: int
    """Pairs of photos of one person."""
    old: int
    """Missed by the old network."""
    translated: int
    """Missed where one photo is translated from the new network."""
    anew: int
    """Missed by the new network: as if everybody were enrolled anew."""
    ratio: float | None
    """Translated over old; None where fewer than `RULE_OF_30` of either are missed."""
    low: float | None
    high: float | None
    """Limits of its 95 % interval, over people."""


@dataclass(frozen=True, eq=False)
class Bridge:
    """A map from a new network's space to an old one's, and its price; see the module."""

    old: Space
    new: Space
    matrix: NDArray[np.float32]
    """``(D new, D old)``."""
    price: Price

    @classmethod
    def build(cls, old: Embeddings, new: Embeddings, where: str = "old and new") -> Bridge:
        """Return the map that photos teach which both networks embedded.

        Args:
            old: of the old network, with ids and subjects.
            new: of the new one, where the ids are those of the same photos.
            where: they come from, both names.

        Raises:
            DatasetError: too few people are named, two photos have one id, or both are of one
                network.
        """
        if (space := Space.of(old)) == Space.of(new):
            raise DatasetError(f"{where} are of one network, {space.name}; embed with both")
        entries, probes, who = _same_photos(old, new, where)
        folds = [np.flatnonzero(who * _FOLDS // (who[-1] + 1) == fold) for fold in range(_FOLDS)]
        own = [(probes[fold].T @ probes[fold], probes[fold].T @ entries[fold]) for fold in folds]
        gram, cross = (np.sum(each, axis=0) for each in zip(*own, strict=True))

        def mapped(weight: float) -> _Array:
            found = np.empty_like(entries)
            for fold, (its_gram, its_cross) in zip(folds, own, strict=True):
                found[fold] = probes[fold] @ _ridge(gram - its_gram, cross - its_cross, weight)
            return _unit(found)

        weight = max(_WEIGHTS, key=lambda weight: float((mapped(weight) * entries).sum()))
        met = [fold[:_MET] for fold in folds]
        ways = (entries, entries), (mapped(weight), entries), (probes, probes)
        price = _price([[_scores(p[f], e[f], who[f]) for f in met] for p, e in ways])
        matrix = _ridge(gram, cross, weight).astype(np.float32)
        priced = Price(int(who[-1]) + 1, len(who), *price)
        return cls(space, Space.of(new), matrix, priced)

    def __call__(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return embeddings of the new network, ``(n, D new)``, mapped to the old one's space."""
        return (vectors / row_norms(vectors)[:, None]).astype(np.float32) @ self.matrix

    def write(self, path: str | Path) -> None:
        """Write the bridge whole or not at all; only the owner may read the file.

        Raises:
            FacerecError: it cannot be written.
        """
        parts = {name: asdict(getattr(self, name)) for name in ("old", "new", "price")}
        note = np.array(json.dumps({"format": FORMAT, **parts}, allow_nan=False))
        with atomic_path(path, private=True) as temporary:
            write_arrays(temporary, {"note": note, "matrix": self.matrix})

    @classmethod
    def read(cls, path: str | Path) -> Bridge:
        """Read a bridge file without running anything that it may contain.

        Raises:
            DatasetError: the file is missing, damaged, or no bridge.
        """
        with reading(path, DatasetError, "make a bridge with facerec translate", Exception):
            arrays, _ = read_arrays(Path(path), {"note", "matrix"}, 1 << 30)
            note, matrix = parse_json(str(arrays["note"][()])), arrays["matrix"]
            old, new = Space(**note["old"]), Space(**note["new"])
            found = note["format"], matrix.dtype, matrix.shape, bool(np.isfinite(matrix).all())
            if found != (FORMAT, np.float32, (new.embedding_size, old.embedding_size), True):
                raise ValueError(f"its map of {matrix.dtype} {matrix.shape} does not fit")
            return cls(old, new, matrix, Price(**note["price"]))


def _same_photos(old: Embeddings, new: Embeddings, where: str) -> tuple[_Array, _Array, _Numbers]:
    """Return the unit embeddings of photos that both have, old and new, and who is on each.

    People have numbers from 0 on, at random, and the photos of each follow each other.
    """
    assert old.ids is not None and new.ids is not None  # readers see to that
    names = np.zeros(len(old.ids), "U1") if old.subjects is None else old.subjects
    _, mine, theirs = np.intersect1d(old.ids, new.ids, return_indices=True)
    usable = ~np.isnan(old.norms[mine] + new.norms[theirs]) & (names[mine] != "")
    mine, theirs = mine[usable], theirs[usable]
    if old.digests is not None and new.digests is not None:
        if (odd := old.digests[mine] != new.digests[theirs]).any():
            name = str(old.ids[mine][odd][0])
            raise DatasetError(f"{where}: {name!r} is another photo in each; embed the same photos")
        # A photo that is there twice may be in two folds, and make the price too good.
        once = np.unique(old.digests[mine], return_index=True)[1]
        mine, theirs = mine[once], theirs[once]
    _, who, photos = np.unique(names[mine], return_inverse=True, return_counts=True)
    if (several := int((photos > 1).sum())) < FEWEST:
        found = f"{several:,} named people have two photos or more that are in both"
        raise DatasetError(f"{where}: {found}, and a bridge needs {FEWEST}; embed more people")
    who = np.random.default_rng(0).permutation(len(photos))[who]
    order = np.argsort(who, kind="stable")
    return _unit(old.vectors[mine[order]]), _unit(new.vectors[theirs[order]]), who[order]


def _ridge(gram: _Array, cross: _Array, weight: float) -> _Array:
    return np.asarray(np.linalg.solve(gram + weight * np.eye(len(gram)), cross), np.float64)


def _unit(rows: NDArray[np.floating]) -> _Array:
    return np.asarray(rows / row_norms(rows)[:, None], np.float64)


def _scores(probes: _Array, entries: _Array, who: _Numbers) -> tuple[_Array, _Array]:
    """Return the scores of all pairs of some photos, mated and non-mated."""
    rows, columns = np.triu_indices(len(who), 1)
    scores, same = (probes @ entries.T)[rows, columns], who[rows] == who[columns]
    return scores[same], scores[~same]


def _price(ways: Sequence[_Way]) -> tuple[Any, ...]:
    """Return the fields of a price, from scores of old, translated and new photos by fold."""
    mated, others = (sum(len(fold[kind]) for fold in ways[0]) for kind in (0, 1))
    fpr = max(FPR, min(RULE_OF_30 / max(others, 1), 1.0))

    def misses(way: _Way, left_out: int = -1) -> int:
        kept = [fold for number, fold in enumerate(way) if number != left_out]
        same, different = (np.concatenate(side) for side in zip(*kept, strict=True))
        point = roc_curve(same, different).tpr_at_fpr(fpr)
        return point.mated - point.true_accepts

    missed = old, translated, _ = [misses(way) for way in ways]
    if min(old, translated) < RULE_OF_30:
        return fpr, mated, *missed, None, None, None
    # The grouped jackknife, on the scale of logarithms.
    parts = [[max(misses(way, fold), 0.5) for fold in range(_FOLDS)] for way in ways[:2]]
    error = math.sqrt((_FOLDS - 1) * float(np.var(np.diff(np.log(parts), axis=0))))
    reach = math.exp(float(stdtrit(_FOLDS - 1, 0.975)) * error)
    ratio = translated / old
    return fpr, mated, *missed, ratio, ratio / reach, ratio * reach
