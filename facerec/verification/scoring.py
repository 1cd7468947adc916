"""All pairs of a set of images: exact operating points, and errors by identity and by group.

The cosines of N images are computed tile by tile and never stored. Images are sorted by identity,
so that the mated pairs lie near the diagonal and most tiles hold non-mated pairs only.

One pass finds exact thresholds and counts the errors at them. A random sample of pairs tells
between which edges a threshold will lie. What reaches the upper edge is counted at once, what lies
between them is kept until the threshold is known. A histogram of the non-mated scores, whose bins
are exact because their width is a power of two, tells whether the edges were right; a threshold
that lies elsewhere costs another pass. So does one with too many scores about it to keep them.

Each tile is one single-threaded float32 matrix product of fixed shape, so the scores, and with
them every count, do not depend on the number of threads or ranks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from facerec.devices import choose_device, exact_products
from facerec.errors import MetricError
from facerec.heads.collectives import all_reduce_, rank, world_size
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.curves import RocCurve, roc_from_counts
from facerec.statistics.operating_points import (
    OperatingPoint,
    Rate,
    allowed_accepts,
    just_above,
    operating_point,
    parse_rate,
)

FPR_TARGETS = ("1e-1", "1e-2", "1e-3", "1e-4", "1e-5", "1e-6")

BIN_WIDTH = 2.0**-13
"""Of the histograms; a power of two, so that the bin of a float32 score is exact."""

BIN_EDGES = np.arange(-(2**13), 2**13 + 1) * BIN_WIDTH
"""Lower edges of the bins, −1, …, 1; the last bin holds the score 1 alone."""

Window = tuple[np.float32, np.float32]
"""Scores from the first one on and below the second one."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the tiles that are done and the tiles in all."""

# Takes the place of the score where a pair is not to be counted.
_EXCLUDED = -1.25
# Every score of a pair is above it.
_LOWEST = np.float32(-1.125)
_BIN_OF_EXCLUDED = round(-_EXCLUDED / BIN_WIDTH)
_BIN_OF_LOWEST = _BIN_OF_EXCLUDED - BIN_EDGES.size // 2

# Row, after those of the groups, for all pairs, or for those that are not within a group.
_EVERYONE = -1

# Work between merges of what is collected: it bounds memory and is large enough to be rare.
_PENDING = 2**21

_KEPT = 2**24
"""Pairs that a thread keeps until their thresholds are known, at most."""

_SHARE = 1024
"""One of so many pairs is in the sample, so that it takes little time beside all pairs."""

_BLOCK = 32
"""Images a side of the blocks of pairs in the sample: a compromise of speed and independence."""


@dataclass(frozen=True, eq=False)
class ErrorTable:
    """Errors of all pairs at one threshold: in all, by identity, and by group of images."""

    threshold: float
    """Match if ``score >= threshold``; a float32 number."""
    target: str | None
    """The FPR that it realises, as it was asked for; None for a threshold that was given."""
    false_matches: int
    non_mated: int
    false_non_matches: int
    mated: int
    images: NDArray[np.int64]
    """Images of each identity, ``(G,)``."""
    missed: NDArray[np.int64]
    """False non-matches of each identity, ``(G,)``."""
    involved: NDArray[np.int64]
    """False matches in which each identity takes part, ``(G,)``; they sum to twice their number."""
    identities: csr_array | None
    """False matches between identities, ``(G, G)``: each counted once, above the diagonal (E + Eᵀ
    is the symmetric matrix); None if there are more than ``identity_limit`` false matches."""
    group_false_matches: NDArray[np.int64] | None
    """False matches between an image of group d and one of group e, ``(D, D)``, symmetric."""
    group_false_non_matches: NDArray[np.int64] | None
    """False non-matches between an image of group d and one of group e, ``(D, D)``, symmetric."""
    within: csr_array | None = None
    """Those of ``identities`` that are within a group, however many; None unless each group is
    looked at alone."""

    @property
    def fmr(self) -> float:
        """False match rate."""
        return self.false_matches / self.non_mated

    @property
    def fnmr(self) -> float:
        """False non-match rate."""
        return self.false_non_matches / self.mated

    def fmr_share(self) -> ClusteredShare:
        """Return the FMR with the sums over identities that its interval needs.

        Without the counts by pair of identities the sums within such pairs are taken for 0, which
        gives Hájek's variance: wider, and conservative for rare false matches.
        """
        if self.identities is not None:
            return ClusteredShare.from_images(self.identities, self.images)
        images = self.images.astype(np.float64)
        loads = images * (images.sum() - images)
        identities = images.size
        return ClusteredShare(
            events=self.false_matches,
            comparisons=self.non_mated,
            residuals=self.involved - self.fmr * loads,
            loads=loads,
            squares=0.0,
            mated_squares=0.0,
            disjoint=lambda: identities // 2,
        )

    def fnmr_share(self) -> ClusteredShare:
        """Return the FNMR with the sums over identities that its interval needs."""
        return ClusteredShare.from_mated_counts(self.missed, self.images * (self.images - 1) // 2)


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of images, and how many pairs there are between them."""

    names: tuple[str, ...]
    images: NDArray[np.int64]
    """Images in each group, ``(D,)``."""
    mated: NDArray[np.int64]
    """Mated pairs with one image in group d and the other in e, ``(D, D)``, symmetric."""
    non_mated: NDArray[np.int64]
    """Non-mated pairs with one image in group d and the other in e, ``(D, D)``, symmetric."""
    of_identity: NDArray[np.int64] | None
    """Group of each identity, ``(G,)``; None if an identity has images in several groups."""

    def fmr_share(self, table: ErrorTable, first: int, second: int) -> ClusteredShare | None:
        """Return the FMR between two groups, or within one, with its sums over identities.

        None where they are not known: an identity is in several groups, or the table has no counts
        by pair of identities; also where there are no such pairs.
        """
        counts = table.identities
        if counts is None and first == second:
            counts = table.within
        if self.of_identity is None or counts is None or not self.non_mated[first, second]:
            return None
        left, right = (np.flatnonzero(self.of_identity == group) for group in (first, second))
        if first == second:
            return ClusteredShare.from_images(counts[left][:, left], table.images[left])
        between = counts[left][:, right] + counts[right][:, left].T
        return ClusteredShare.from_images(between, table.images[left], table.images[right])

    def fnmr_share(self, table: ErrorTable, group: int) -> ClusteredShare | None:
        """Return the FNMR within a group with its sums over identities; None as for the FMR."""
        if self.of_identity is None or not self.mated[group, group]:
            return None
        members = self.of_identity == group
        images = table.images[members]
        return ClusteredShare.from_mated_counts(table.missed[members], images * (images - 1) // 2)


@dataclass(frozen=True, eq=False)
class GroupAlone:
    """What the comparison of the images of one group with each other found."""

    points: tuple[OperatingPoint, ...]
    """At the FPR targets for groups, in their order."""
    images: NDArray[np.int64]
    """Images of each identity of the group, ``(G,)``."""
    missed: NDArray[np.int64]
    """False non-matches of each identity at each point, ``(T, G)``."""
    genuine_histogram: NDArray[np.int64]
    """Mated scores in each bin of `BIN_EDGES`."""
    impostor_histogram: NDArray[np.int64]
    """Non-mated scores in each bin of `BIN_EDGES`."""

    def fnmr_share(self, point: int) -> ClusteredShare:
        """Return the FNMR at a point, given by its place, with the sums over identities."""
        comparisons = self.images * (self.images - 1) // 2
        return ClusteredShare.from_mated_counts(self.missed[point], comparisons)

    def roc(self) -> RocCurve:
        """Return the ROC at the lower edges of the bins, where it is exact."""
        return roc_from_counts(BIN_EDGES, self.genuine_histogram, self.impostor_histogram)


@dataclass(frozen=True, eq=False)
class AllPairs:
    """What the comparison of every image with every other found."""

    images: int
    """Images with a usable embedding."""
    failures: NDArray[np.int64]
    """Indices of images without one (zero or not finite): failures to acquire."""
    lost_mated: int
    """Mated pairs that failures took part in; they are in no count and no rate."""
    lost_non_mated: int
    mated: int
    non_mated: int
    subjects: NDArray[Any]
    """Label of each identity with a usable image, ``(G,)``, ascending."""
    images_per_subject: NDArray[np.int64]
    """Usable images of each identity, ``(G,)``."""
    points: tuple[OperatingPoint, ...]
    """At the FPR targets, in their order."""
    tables: tuple[ErrorTable, ...]
    """At the thresholds given, then at the operating points, in their order."""
    groups: Groups | None
    alone: tuple[GroupAlone | None, ...]
    """Each group by itself, None if it lacks mated or non-mated pairs; none of them without FPR
    targets for groups."""
    genuine: NDArray[np.float32] | None
    """All mated scores, ascending; None if there are more than ``genuine_limit``."""
    genuine_histogram: NDArray[np.int64]
    """Mated scores in each bin of `BIN_EDGES`."""
    impostor_histogram: NDArray[np.int64] | None
    """Non-mated scores in each bin of `BIN_EDGES`; None if no FPR target was given."""

    def roc(self) -> RocCurve | None:
        """Return the ROC at the lower edges of the bins, where it is exact; None without one."""
        if self.impostor_histogram is None:
            return None
        return roc_from_counts(BIN_EDGES, self.genuine_histogram, self.impostor_histogram)


def score_all_pairs(
    vectors: ArrayLike,
    subjects: ArrayLike,
    *,
    fpr: Sequence[Rate] = FPR_TARGETS,
    thresholds: Sequence[float] = (),
    groups: Sequence[str] | NDArray[np.str_] | None = None,
    group_fpr: Sequence[Rate] = (),
    tables_at_points: bool = True,
    device: str | torch.device = "cpu",
    tile: int | None = None,
    genuine_limit: int = 2**25,
    identity_limit: int = 2**25,
    progress: Progress | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> AllPairs:
    """Compare every image with every other once, N(N − 1)/2 pairs.

    Pairs of one identity are mated, all others non-mated; no image is compared with itself. On the
    CPU torch's number of threads work on different tiles; under torch.distributed every rank calls
    this with the same arguments, computes its share of the tiles, and gets the whole result.

    All this costs one pass over all tiles (more if a guess fails), and one over the few tiles with
    mated pairs.

    Args:
        vectors: raw embeddings, ``(N, D)``. They are normalised in float64 and scored in float32;
            scores that rounding carries beyond ±1 count as ±1.
        subjects: identity of each image, ``(N,)``: numbers or text.
        fpr: targets; text is taken exactly.
        thresholds: at which errors are counted.
        groups: group of each image, ``(N,)`` text, for counts between groups.
        group_fpr: targets at which each group is looked at alone, among its own images.
        tables_at_points: count errors by identity and group at the operating points too.
        device: where scores are computed, see `choose_device`.
        tile: rows and columns of a tile, at most; by default 1024 on the CPU, 8192 elsewhere.
            Scores may differ in the last bit between tile sizes and devices.
        genuine_limit: keep all mated scores up to this number.
        identity_limit: count false matches by pair of identities up to this number.
        progress: see `Progress`.
        process_group: the ranks that share the work; by default all.

    Raises:
        MetricError: shapes that do not fit, a target that is no rate, a NaN threshold, no mated
            or no non-mated pair of usable images, or groups to be looked at alone that are not
            there or share an identity.
        DeviceError: the device is not there.
    """
    for target in (*fpr, *group_fpr):
        parse_rate(target)
    if any(math.isnan(threshold) for threshold in thresholds):
        raise MetricError("a threshold is NaN; give numbers between -1 and 1")
    people = _People(vectors, subjects, groups, by_group=bool(group_fpr))
    chosen = choose_device(device)
    size = tile or (1024 if chosen.type == "cpu" else 8192)
    tiles = _Tiles(people, chosen, size, process_group, progress)

    searches = people.searches(tiles, fpr, group_fpr)
    everyone = searches[_EVERYONE]
    given = [_float32_at_least(threshold) for threshold in thresholds]
    sought = everyone.allowed if tables_at_points else []
    false = _scan(tiles, people, given, sought, searches, identity_limit)

    cuts = [everyone.cut(count) for count in everyone.allowed]
    edges = np.full((len(given) + len(cuts) + len(group_fpr), people.rows), _LOWEST)
    edges[: len(given) + len(cuts)] = np.array([*given, *cuts])[:, None]
    for row in searches.keys() - {_EVERYONE}:
        search = searches[row]
        edges[len(given) + len(cuts) :, row] = [search.cut(count) for count in search.allowed]
    mated = _count_mated(tiles, people, edges, genuine_limit)
    targets = [None] * len(given) + [str(target) for target in fpr]
    at_points = slice(len(given), len(given) + len(fpr))
    at_own = slice(at_points.stop, None)
    histogram = false.histogram.sum(axis=0)
    return AllPairs(
        images=len(people.identity),
        failures=people.failures,
        lost_mated=people.lost_mated,
        lost_non_mated=people.lost_non_mated,
        mated=people.mated,
        non_mated=people.non_mated,
        subjects=people.labels,
        images_per_subject=people.images,
        points=everyone.points(fpr, mated.missed[at_points].sum(axis=1), people.mated),
        tables=tuple(
            _table(
                people,
                float([*given, *cuts][place]),
                targets[place],
                table,
                mated.missed[place],
                mated.by_group[place],
            )
            for place, table in enumerate(false.tables)
        ),
        groups=people.groups,
        alone=tuple(
            _alone(
                people,
                row,
                searches.get(row),
                group_fpr,
                mated.missed[at_own],
                (mated.histogram[row], false.histogram[row]),
            )
            for row in range(people.rows if group_fpr else 0)
        ),
        genuine=mated.genuine,
        genuine_histogram=mated.histogram.sum(axis=0),
        impostor_histogram=histogram if fpr else None,
    )


class _People:
    """The usable images, sorted by identity, or by group and then identity.

    Either way the images of an identity are neighbours.
    """

    def __init__(
        self,
        vectors: ArrayLike,
        subjects: ArrayLike,
        groups: Sequence[str] | NDArray[np.str_] | None,
        by_group: bool,
    ) -> None:
        raw, names = np.asarray(vectors), np.asarray(subjects)
        if raw.ndim != 2 or raw.dtype.kind != "f":
            raise MetricError(
                f"embeddings have shape (N, D) and real values, found {raw.dtype} of shape "
                f"{raw.shape}"
            )
        for values, what in ((names, "subjects"), (groups, "groups")):
            if values is not None and np.shape(values) != (len(raw),):
                raise MetricError(
                    f"there are {len(raw)} embeddings but {what} of shape {np.shape(values)}; "
                    "give one an image"
                )
        norms = _norms(raw)
        usable = np.isfinite(norms) & (norms > 0)
        self.failures = np.flatnonzero(~usable)
        _, everyone = np.unique(names, return_counts=True)
        self.labels, identity, self.images = np.unique(
            names[usable], return_inverse=True, return_counts=True
        )
        self.mated, self.non_mated = _pair_counts(self.images)
        self.lost_mated, self.lost_non_mated = (
            total - kept
            for total, kept in zip(
                _pair_counts(everyone), (self.mated, self.non_mated), strict=True
            )
        )
        if not self.mated or not self.non_mated:
            raise MetricError(
                f"{len(identity)} usable images of {len(self.images)} identities make "
                f"{self.mated} mated and {self.non_mated} non-mated pairs ({len(self.failures)} "
                "images have no usable embedding); error rates need at least one of each"
            )
        self.group, self.groups = np.zeros(identity.size, np.int64), None
        if groups is not None:
            names, self.group = np.unique(np.asarray(groups)[usable], return_inverse=True)
            self.groups = self._count_groups(names, identity)
        if by_group and (self.groups is None or self.groups.of_identity is None):
            raise MetricError(
                "to look at each group alone takes groups of images that have no identity in common"
            )
        order = (
            np.lexsort((identity, self.group)) if by_group else np.argsort(identity, kind="stable")
        )
        self.identity, self.group = identity[order].astype(np.int32), self.group[order]
        self.unit = _unit(raw, norms, np.flatnonzero(usable)[order])
        # Parts that tiles do not mix: groups that are looked at alone, else all are one.
        self.by_group = by_group
        self.row = self.group if by_group else np.zeros_like(self.group)
        self.rows = int(self.row[-1]) + 1

    def _count_groups(self, names: NDArray[Any], identity: NDArray[np.int64]) -> Groups:
        """Count the pairs between groups."""
        ones = np.ones(self.group.size, np.int64)
        shape = self.images.size, names.size
        members = csr_array((ones, (identity, self.group)), shape)
        images = np.bincount(self.group, minlength=names.size)
        # Ordered pairs of images, each with itself among them, by the groups of the two.
        same = np.asarray((members.T @ members).todense())
        total = np.multiply.outer(images, images)
        mated, pairs = same.copy(), total.copy()
        for counts in (mated, pairs):
            np.fill_diagonal(counts, (counts.diagonal() - images) // 2)
        one_each = members.nnz == shape[0]
        return Groups(
            names=tuple(str(name) for name in names),
            images=images,
            mated=mated,
            non_mated=pairs - mated,
            of_identity=members.indices.astype(np.int64) if one_each else None,
        )

    def spans(self) -> list[slice]:
        """Return the images of each part that tiles do not mix."""
        edges = np.searchsorted(self.row, np.arange(self.rows + 1)).tolist()
        return [slice(start, stop) for start, stop in pairwise(edges)]

    def searches(
        self, tiles: _Tiles, fpr: Sequence[Rate], group_fpr: Sequence[Rate]
    ) -> dict[int, _Search]:
        """Prepare the search for operating points of everyone, and of each group alone."""
        every = slice(0, len(self.identity))
        found = {_EVERYONE: _Search(tiles, every, self.non_mated, fpr)}
        if group_fpr:
            assert self.groups is not None  # as was made sure
            pairs = zip(self.groups.mated.diagonal(), self.groups.non_mated.diagonal(), strict=True)
            for row, ((mated, non_mated), span) in enumerate(zip(pairs, self.spans(), strict=True)):
                if mated and non_mated:
                    found[row] = _Search(tiles, span, int(non_mated), group_fpr)
        return found


K = TypeVar("K", bound="_Kernel")


class _Kernel(Protocol):
    """Takes what it needs from one tile of scores after another."""

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None: ...


class _Tiles:
    """The score matrix on and above its diagonal, in square tiles that are dealt to ranks."""

    def __init__(
        self,
        people: _People,
        device: torch.device,
        size: int,
        process_group: dist.ProcessGroup | None,
        progress: Progress | None,
    ) -> None:
        self.identity, self.device, self.size = people.identity, device, size
        self.unit = torch.from_numpy(people.unit).to(device)
        self._row = people.row
        self._process_group, self._progress = process_group, progress
        blocks = np.array(
            [
                (start, min(start + size, span.stop))
                for span in people.spans()
                for start in range(span.start, span.stop, size)
            ]
        )
        first, second = np.triu_indices(len(blocks))
        near = self.identity[blocks[first, 1] - 1] == self.identity[blocks[second, 0]]
        near |= first == second
        # Tiles with mated pairs are dealt first, so that those alone are dealt evenly too.
        order = np.argsort(~near, kind="stable")[rank(process_group) :: world_size(process_group)]
        self._places = np.stack([blocks[first], blocks[second]], axis=1)[order]
        self._near = int(near[order].sum())

    def visit(self, make: Callable[[], K], stage: str, near_only: bool = False) -> list[K]:
        """Hand every tile of this rank to one of the kernels that ``make`` makes, one a thread.

        Args:
            make: makes a kernel.
            stage: what is being done, for the progress.
            near_only: only tiles with mated pairs.
        """
        places = self._places[: self._near] if near_only else self._places
        turn, lock, stop = iter(places.tolist()), threading.Lock(), threading.Event()
        done = 0

        def work() -> K:
            nonlocal done
            torch.set_num_threads(1)  # OpenMP keeps a number for every thread
            kernel = make()
            buffer = torch.empty(self.size**2, device=self.device)
            while not stop.is_set():
                with lock:
                    place = next(turn, None)
                if place is None:
                    break
                rows, columns = (slice(*ends) for ends in place)
                shape = rows.stop - rows.start, columns.stop - columns.start
                scores = buffer[: math.prod(shape)].view(shape)
                torch.mm(self.unit[rows], self.unit[columns].T, out=scores)
                kernel(scores, rows, columns)
                with lock:
                    done += 1
                    if self._progress is not None:
                        self._progress(stage, done, len(places))
            return kernel

        with exact_products() as threads:
            workers = threads if self.device.type == "cpu" else 1
            with ThreadPoolExecutor(workers) as pool:
                futures = [pool.submit(work) for _ in range(workers)]
                try:
                    wait(futures, return_when=FIRST_EXCEPTION)
                finally:
                    stop.set()  # else leaving the pool waits until all tiles are done
                return [future.result() for future in futures]

    def mated(
        self, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
        """Return which pairs of a tile are mated and which are not to be counted as non-mated.

        The latter are mated pairs and, on the diagonal, pairs of an image with itself or an earlier
        one. None if all pairs are non-mated.
        """
        diagonal = rows.start == columns.start
        if not diagonal and self.identity[rows.stop - 1] != self.identity[columns.start]:
            return None
        mated = np.equal.outer(self.identity[rows], self.identity[columns])
        if not diagonal:
            return mated, mated
        later = np.triu(np.ones(mated.shape, bool), 1)
        mated &= later
        return mated, mated | ~later

    def row(self, rows: slice, columns: slice) -> int:
        """Return the part, such as a group, whose images alone make a tile; else `_EVERYONE`."""
        first, second = self._row[[rows.start, columns.start]].tolist()
        return first if first == second else _EVERYONE

    def total(self, counts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Sum up the counts of all kernels on all ranks."""
        summed = torch.from_numpy(np.sum(counts, axis=0)).to(self.device)
        return all_reduce_(summed, self._process_group).cpu().numpy()

    def gather(self, values: list[Any]) -> list[Any]:
        """Return what the kernels of all ranks have, in the order of ranks."""
        ranks = world_size(self._process_group)
        if ranks == 1:
            return values
        gathered: list[Any] = [None] * ranks
        dist.all_gather_object(gathered, values, group=self._process_group)
        return [value for part in gathered for value in part]

    def agreed(self, value: Any) -> Any:
        """Return the value that the first rank has."""
        return self.gather([value])[0]


class _Scores:
    """Distinct scores and how often each one came; their number is bounded by float32's grain."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[np.float32], NDArray[np.int64]]] = []
        self._pending: list[NDArray[np.float32]] = []
        self._size = 0

    def add(self, scores: NDArray[np.float32]) -> None:
        self._pending.append(scores)
        self._size += scores.size
        if self._size >= _PENDING:
            self._parts = [self.merged()]
            self._pending, self._size = [], 0

    def merged(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the distinct scores, ascending, and their counts."""
        fresh = np.concatenate([np.empty(0, np.float32), *self._pending])
        return _merge([*self._parts, np.unique(fresh, return_counts=True)])


class _Search:
    """Operating points among the non-mated scores of everyone, or of one group alone.

    Args:
        tiles: have the embeddings.
        images: whose scores these are.
        non_mated: how many there are.
        fpr: targets.
    """

    def __init__(self, tiles: _Tiles, images: slice, non_mated: int, fpr: Sequence[Rate]) -> None:
        self._device, self._non_mated = tiles.device, non_mated
        self.allowed = [allowed_accepts(target, non_mated) for target in fpr]
        # Ranks: 1 for the highest score, 2 for the next, …
        ranks = sorted({count + 1 for count in self.allowed if count < non_mated})
        self._missing = _guess(tiles, images, non_mated, ranks)
        self._found: dict[int, tuple[np.float32, int]] = {}

    @property
    def windows(self) -> list[Window]:
        """Where the scores are that are still to be found."""
        return [_window(*bins) for bins in self._missing.values()]

    def window(self, allowed: int) -> Window:
        """Return where the threshold for so many false accepts is; it is known at equal ends."""
        if allowed + 1 in self._missing:
            return _window(*self._missing[allowed + 1])
        cut = _within_cosines(self.cut(allowed))
        return cut, cut

    def settle(
        self,
        histogram: NDArray[np.int64],
        scores: NDArray[np.float32],
        counts: NDArray[np.int64],
    ) -> None:
        """Find the scores that are in their windows, and learn the windows of the others.

        Args:
            histogram: over `BIN_EDGES`.
            scores: distinct ones, ascending, among them all in the windows.
            counts: of these.
        """
        bin_of = _bins(scores)
        reached = histogram[::-1].cumsum()[::-1]  # scores in a bin and above
        for wanted, (bottom, top) in list(self._missing.items()):
            place = int(np.count_nonzero(reached >= wanted)) - 1
            if not bottom <= place < top:
                self._missing[wanted] = place, place + 1
                continue
            inside = bin_of == place
            _check_passes(int(counts[inside].sum()), int(histogram[place]), self._device)
            higher = int(reached[place] - histogram[place])
            descending = counts[inside][::-1].cumsum() + higher
            index = int(np.searchsorted(descending, wanted))
            above = higher if index == 0 else int(descending[index - 1])
            self._found[wanted] = scores[inside][::-1][index], above
            del self._missing[wanted]

    def cut(self, allowed: int) -> np.float32:
        """Return the threshold for so many false accepts."""
        if allowed >= self._non_mated:
            return np.float32(-np.inf)
        return just_above(self._found[allowed + 1][0])

    def accepts(self, allowed: int) -> int:
        """Return the false accepts at that threshold."""
        return self._non_mated if allowed >= self._non_mated else self._found[allowed + 1][1]

    def points(
        self, fpr: Sequence[Rate], missed: Sequence[int] | NDArray[np.int64], mated: int
    ) -> tuple[OperatingPoint, ...]:
        """Describe the operating points.

        Args:
            fpr: the targets.
            missed: mated scores below the threshold of each.
            mated: all mated scores.
        """
        pairs = mated, self._non_mated
        return tuple(
            operating_point(
                target, self.cut(count), (mated - int(below), self.accepts(count)), pairs
            )
            for target, count, below in zip(fpr, self.allowed, missed, strict=True)
        )


def _guess(
    tiles: _Tiles, images: slice, non_mated: int, ranks: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Guess the bins that hold the scores of some ranks: of each its first, and one past its last.

    The sample are all pairs of some random images with some others, many times over.
    """
    blocks = non_mated // (_SHARE * _BLOCK**2)
    generator = np.random.default_rng(0)
    parts = [np.empty(0, np.int64)]
    for start in range(0, blocks if ranks else 0, 16):
        shape = 2, min(16, blocks - start), _BLOCK
        sides = generator.integers(images.start, images.stop, size=shape)
        left, right = (
            tiles.unit[torch.from_numpy(side).to(tiles.device).view(-1)].view(*side.shape, -1)
            for side in sides
        )
        scores = torch.bmm(left, right.transpose(1, 2)).cpu().numpy()
        identity = tiles.identity[sides]
        other = identity[0][:, :, None] != identity[1][:, None, :]
        parts.append(_bins(scores[other]))
    descending = np.sort(np.concatenate(parts))[::-1]
    found = {}
    for wanted in ranks:
        middle = wanted / non_mated * descending.size
        # Four standard deviations, and some for the smallest counts.
        reach = 4 * math.sqrt(middle) + 4
        low = math.ceil(middle + reach)
        high = math.floor(middle - reach)
        bottom = int(descending[low]) if low < descending.size else 0
        top = int(descending[high]) + 1 if high >= 0 else BIN_EDGES.size
        found[wanted] = bottom, top
    # Ranks that compute on different hardware could guess differently.
    return tiles.agreed(found)


def _check_passes(found: int, expected: int, device: torch.device) -> None:
    """Refuse scores that another pass counted otherwise."""
    if found != expected:
        raise MetricError(
            f"{found} scores in one pass and {expected} in another: matrix products on {device} "
            "are not reproducible; compute on the cpu"
        )


def _window(bottom: int, top: int) -> Window:
    """Return the scores in some bins, from the first to before the last: at or above, below."""
    high = np.float32(BIN_EDGES[top]) if top < BIN_EDGES.size else np.float32(np.inf)
    return _within_cosines(np.float32(BIN_EDGES[bottom])), high


class _PairCounts:
    """Counts events by pair of identities, each once, in a sparse matrix; gives up at a limit.

    All threads add to one of these.
    """

    def __init__(self, identities: int, limit: int) -> None:
        self._shape = identities, identities
        self._limit, self._total = limit, 0
        self._merged = csr_array(self._shape, dtype=np.int32)
        self._pending: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self._size = 0
        self._lock, self._merging = threading.Lock(), threading.Lock()

    def add(self, first: NDArray[np.int32], second: NDArray[np.int32]) -> None:
        with self._lock:
            self._total += first.size
            if self._total > self._limit:
                self._pending, self._merged = [], csr_array(self._shape, dtype=np.int32)
                return
            self._pending.append((first, second))
            self._size += first.size
            # A larger matrix takes longer to add to, so it is done more rarely.
            if self._size < max(_PENDING, self._merged.nnz // 2):
                return
            pending, self._pending, self._size = self._pending, [], 0
        self._merge(pending)

    def matrix(self) -> csr_array | None:
        """Return the counts, or None if there were more than the limit."""
        if self._total > self._limit:
            return None
        self._merge(self._pending)
        self._pending = []
        return self._merged

    def _merge(self, pending: Sequence[tuple[NDArray[np.int32], NDArray[np.int32]]]) -> None:
        if pending:
            rows, columns = (np.concatenate(side) for side in zip(*pending, strict=True))
            ones = np.ones(rows.size, np.int32)
            fresh = coo_array((ones, (rows, columns)), self._shape).tocsr()
            with self._merging:
                self._merged = self._merged + fresh


class _Scan:
    """Looks at the non-mated scores: histograms, false matches, and scores that may be thresholds.

    Args:
        tiles: whose scores come.
        people: identities and groups of the images.
        lines: thresholds at which false matches are counted, or where each will be.
        windows: in which scores are kept, of all pairs and of those within a group.
        binned: of which pairs the histograms are wanted.
        pairs: count the false matches of each line by identity: within groups that are looked at
            alone, and all others.
    """

    def __init__(
        self,
        tiles: _Tiles,
        people: _People,
        lines: Sequence[Window],
        windows: Mapping[int, Sequence[Window]],
        binned: Collection[int],
        pairs: Sequence[tuple[_PairCounts, _PairCounts]],
    ) -> None:
        self._tiles, self._people, self._pairs = tiles, people, pairs
        self._windows, self._binned = windows, binned
        self._highs = [high for _, high in lines]
        self._ascending = np.argsort(self._highs, kind="stable").tolist()
        self._keeps = any(low < high for low, high in lines)
        in_all = [low for low, _ in (*lines, *windows.get(_EVERYONE, ()))]
        self._lowest = [
            min([*in_all, *(low for low, _ in windows.get(row, ()))], default=np.float32(np.inf))
            for row in (*range(people.rows), _EVERYONE)
        ]
        squares = 0 if people.groups is None else len(people.groups.names) ** 2
        self.histogram = np.zeros((people.rows + 1, BIN_EDGES.size), np.int64)
        self.scores = [_Scores() for _ in range(people.rows + 1)]
        self.dropped = False
        """Whether pairs are lost whose score is in a window."""
        self._kept: list[tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]] = []
        self._size = 0
        self.count = np.zeros(len(lines), np.int64)
        self.involved = np.zeros((len(lines), people.images.size), np.int64)
        self.by_group = np.zeros((len(lines), squares), np.int64)
        cells = tiles.size**2
        self._hits = torch.empty(cells, dtype=torch.bool, device=tiles.device)
        if binned:
            self._scaled = torch.empty(cells, device=tiles.device)
            self._bins = torch.empty(cells, dtype=torch.int16, device=tiles.device)

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        if (masks := self._tiles.mated(rows, columns)) is not None:
            scores.masked_fill_(torch.from_numpy(masks[1]).to(scores.device), _EXCLUDED)
        row, flat = self._tiles.row(rows, columns), scores.view(-1)
        if row in self._binned:
            self._bin(flat, row)
        if self._lowest[row] > 1:
            return
        places = _positions(_at_least(flat, self._lowest[row], out=self._hits[: flat.numel()]))
        if places.numel():
            found = np.clip(flat[places].cpu().numpy(), -1, 1)
            first, second = _images(places.cpu().numpy(), rows, columns)
            self._keep(found, first, second, row)
            for line in self._ascending:  # what one rejects the next ones do too
                passed = found >= self._highs[line]
                if not passed.all():
                    found, first, second = found[passed], first[passed], second[passed]
                self._add(line, first, second)

    def settle(self, line: int, threshold: np.float32) -> None:
        """Count the pairs that are kept and reach a threshold between its edges."""
        for scores, first, second in self._kept:
            inside = (scores >= threshold) & (scores < self._highs[line])
            self._add(line, first[inside], second[inside])

    def _bin(self, flat: Tensor, row: int) -> None:
        scaled, bins = self._scaled[: flat.numel()], self._bins[: flat.numel()]
        torch.mul(flat, 1 / BIN_WIDTH, out=scaled).floor_()
        bins.copy_(scaled).add_(_BIN_OF_EXCLUDED)
        counts = torch.bincount(bins, minlength=_BIN_OF_LOWEST + BIN_EDGES.size).cpu().numpy()
        self.histogram[row] += counts[_BIN_OF_LOWEST:]
        # Scores that rounding carries below −1 count as −1.
        self.histogram[row, 0] += counts[1:_BIN_OF_LOWEST].sum()

    def _keep(
        self,
        found: NDArray[np.float32],
        first: NDArray[np.int64],
        second: NDArray[np.int64],
        row: int,
    ) -> None:
        for part in {row, _EVERYONE}:
            inside = np.zeros(found.size, bool)
            for low, high in self._windows.get(part, ()):
                inside |= (found >= low) & (found < high)
            scores = found[inside]
            self.scores[part].add(scores)
            if part == _EVERYONE and self._keeps and not self.dropped:
                left, right = (side[inside].astype(np.int32) for side in (first, second))
                self._kept.append((scores, left, right))
                self._size += scores.size
                if self._size > _KEPT:
                    self._kept, self.dropped = [], True

    def _add(self, line: int, first: NDArray[np.integer], second: NDArray[np.integer]) -> None:
        """Count false matches."""
        if not first.size:
            return
        people = self._people
        left, right = people.identity[first], people.identity[second]
        self.count[line] += first.size
        _add(self.involved[line], left)
        _add(self.involved[line], right)
        # Above the diagonal, whatever the order of the groups.
        low, high = np.minimum(left, right), np.maximum(left, right)
        if people.groups is not None:
            groups = people.group[first], people.group[second]
            _add(self.by_group[line], groups[0] * len(people.groups.names) + groups[1])
            if people.by_group:
                within = groups[0] == groups[1]
                self._pairs[line][0].add(low[within], high[within])
                low, high = low[~within], high[~within]
        self._pairs[line][1].add(low, high)


@dataclass(frozen=True, eq=False)
class _FalseMatches:
    """False matches at one threshold; see `ErrorTable`."""

    count: int
    involved: NDArray[np.int64]
    by_group: NDArray[np.int64]
    """By the groups of the first and of the second image, ``(D²,)``."""
    identities: csr_array | None
    within: csr_array | None


@dataclass(frozen=True, eq=False)
class _NonMated:
    """What there is to know of the non-mated scores."""

    histogram: NDArray[np.int64]
    """Over `BIN_EDGES`: within each part, then between them, ``(parts + 1, bins)``."""
    tables: Sequence[_FalseMatches]


def _scan(
    tiles: _Tiles,
    people: _People,
    given: Sequence[np.float32],
    sought: Sequence[int],
    searches: Mapping[int, _Search],
    identity_limit: int,
) -> _NonMated:
    """Find the operating points, and count false matches at thresholds.

    Args:
        tiles: scores.
        people: whose scores these are.
        given: thresholds.
        sought: false accepts of the operating points of everyone at which they are counted too.
        searches: operating points to find, by part.
        identity_limit: see `score_all_pairs`.
    """
    everyone = searches[_EVERYONE]
    known = [_within_cosines(edge) for edge in given]

    def line(place: int) -> Window:
        if place < len(known):
            return known[place], known[place]
        return everyone.window(sought[place - len(known)])

    binned: Collection[int] = [row for row, search in searches.items() if search.allowed]
    if everyone.allowed:
        binned = range(_EVERYONE, people.rows)
    histogram = np.zeros((people.rows + 1, BIN_EDGES.size), np.int64)
    tables: dict[int, _FalseMatches] = {}
    open_lines = {place: line(place) for place in range(len(given) + len(sought))}
    stage = "comparing all pairs"
    while open_lines or binned or any(search.windows for search in searches.values()):
        windows = {row: search.windows for row, search in searches.items()}
        lines = list(open_lines.values())
        size = people.images.size
        pairs = [
            (_PairCounts(size, people.non_mated), _PairCounts(size, identity_limit)) for _ in lines
        ]
        kernels = tiles.visit(
            lambda: _Scan(tiles, people, lines, windows, binned, pairs),  # noqa: B023
            stage,
        )
        histogram += tiles.total([kernel.histogram for kernel in kernels])
        for row, search in searches.items():
            if search.windows:
                part = histogram.sum(axis=0) if row == _EVERYONE else histogram[row]
                scores = tiles.gather([kernel.scores[row].merged() for kernel in kernels])
                search.settle(part, *_merge(scores))
        dropped = tiles.total([np.array([kernel.dropped], np.int64) for kernel in kernels])[0]
        settled = {}
        for index, (place, (low, high)) in enumerate(open_lines.items()):
            threshold, end = line(place)
            if low == high or (threshold == end and not dropped):
                settled[index] = place
                for kernel in kernels:
                    kernel.settle(index, threshold)
        for place, table in _false_matches(tiles, kernels, pairs, settled, identity_limit):
            if place >= len(given):
                expected = everyone.accepts(sought[place - len(given)])
                _check_passes(table.count, expected, tiles.device)
            tables[place] = table
        open_lines = {place: line(place) for place in open_lines if place not in tables}
        binned, stage = (), "comparing all pairs again"
    return _NonMated(histogram, [tables[place] for place in sorted(tables)])


def _false_matches(
    tiles: _Tiles,
    kernels: Sequence[_Scan],
    pairs: Sequence[tuple[_PairCounts, _PairCounts]],
    settled: Mapping[int, int],
    identity_limit: int,
) -> Iterator[tuple[int, _FalseMatches]]:
    """Add up what all ranks counted on some lines; ``settled`` has what to call each."""
    count, involved, by_group = (
        tiles.total([getattr(kernel, name) for kernel in kernels])
        for name in ("count", "involved", "by_group")
    )
    for index, place in settled.items():
        within, others = pairs[index]
        inside, identities = sum(tiles.gather([within.matrix()])), None
        if count[index] <= identity_limit:
            identities = inside + sum(tiles.gather([others.matrix()]))
        yield (
            place,
            _FalseMatches(int(count[index]), involved[index], by_group[index], identities, inside),
        )


class _MatedScores:
    """Counts the mated scores below thresholds, and collects the scores.

    Args:
        tiles: whose scores come.
        people: identities and groups of the images.
        edges: thresholds, of each part its own, ``(E, parts)``.
        keep: whether to collect the scores.
    """

    def __init__(
        self, tiles: _Tiles, people: _People, edges: NDArray[np.float32], keep: bool
    ) -> None:
        self._tiles, self._people, self._edges, self._keep = tiles, people, edges, keep
        squares = 0 if people.groups is None else len(people.groups.names) ** 2
        self.histogram = np.zeros((people.rows + 1, BIN_EDGES.size), np.int64)
        self.genuine = [np.empty(0, np.float32)]
        self.missed = np.zeros((len(edges), people.images.size), np.int64)
        self.by_group = np.zeros((len(edges), squares), np.int64)

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        masks = self._tiles.mated(rows, columns)
        assert masks is not None  # no other tiles come here
        places = np.flatnonzero(masks[0])
        flat, people = scores.view(-1), self._people
        found = flat[torch.from_numpy(places).to(flat.device)].cpu().numpy()
        found = np.clip(found, -1, 1)
        if self._keep:
            self.genuine.append(found)
        row = self._tiles.row(rows, columns)
        self.histogram[row] += np.bincount(_bins(found), minlength=BIN_EDGES.size)
        first, second = _images(places, rows, columns)
        identity, of = people.identity[first], people.row[first]
        for place, edge in enumerate(self._edges):
            below = found < edge[of]
            _add(self.missed[place], identity[below])
            if people.groups is not None:
                groups = people.group[first[below]], people.group[second[below]]
                _add(self.by_group[place], groups[0] * len(people.groups.names) + groups[1])


@dataclass(frozen=True, eq=False)
class _Mated:
    """What there is to know of the mated scores; see `_MatedScores`."""

    genuine: NDArray[np.float32] | None
    histogram: NDArray[np.int64]
    missed: NDArray[np.int64]
    by_group: NDArray[np.int64]


def _count_mated(
    tiles: _Tiles, people: _People, edges: NDArray[np.float32], genuine_limit: int
) -> _Mated:
    """Count the mated scores below thresholds, given for every part."""
    keep = people.mated <= genuine_limit
    kernels = tiles.visit(
        lambda: _MatedScores(tiles, people, edges, keep),
        "comparing mated pairs",
        near_only=True,
    )
    genuine = None
    if keep:
        own = np.concatenate([part for kernel in kernels for part in kernel.genuine])
        genuine = np.sort(np.concatenate(tiles.gather([own])))
    histogram, missed, by_group = (
        tiles.total([getattr(kernel, name) for kernel in kernels])
        for name in ("histogram", "missed", "by_group")
    )
    return _Mated(genuine, histogram, missed, by_group)


def _table(
    people: _People,
    threshold: float,
    target: str | None,
    false: _FalseMatches,
    missed: NDArray[np.int64],
    missed_by_group: NDArray[np.int64],
) -> ErrorTable:
    """Put the errors at one threshold together."""
    grouped = people.groups is not None
    return ErrorTable(
        threshold=threshold,
        target=target,
        false_matches=false.count,
        non_mated=people.non_mated,
        false_non_matches=int(missed.sum()),
        mated=people.mated,
        images=people.images,
        missed=missed,
        involved=false.involved,
        identities=false.identities,
        group_false_matches=_symmetric(false.by_group) if grouped else None,
        group_false_non_matches=_symmetric(missed_by_group) if grouped else None,
        within=false.within if people.by_group else None,
    )


def _alone(
    people: _People,
    row: int,
    search: _Search | None,
    fpr: Sequence[Rate],
    missed: NDArray[np.int64],
    histograms: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> GroupAlone | None:
    """Put together what one group alone gives.

    Args:
        people: all.
        row: number of the group.
        search: its operating points; None if it lacks mated or non-mated pairs.
        fpr: their targets.
        missed: mated scores below its thresholds by identity, ``(T, G)``.
        histograms: of mated and non-mated scores.
    """
    if search is None:
        return None
    groups = people.groups
    assert groups is not None and groups.of_identity is not None  # as was made sure
    members = groups.of_identity == row
    own = missed[:, members]
    return GroupAlone(
        points=search.points(fpr, own.sum(axis=1), int(groups.mated[row, row])),
        images=people.images[members],
        missed=own,
        genuine_histogram=histograms[0],
        impostor_histogram=histograms[1],
    )


def _images(
    places: NDArray[np.int64], rows: slice, columns: slice
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the two images of pairs given by their places in a tile."""
    width = columns.stop - columns.start
    row = places // width  # np.divmod takes ten times as long
    return row + rows.start, places - row * width + columns.start


def _norms(raw: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the norm of every row, in float64; NaN or infinite where a value is."""
    norms = np.empty(len(raw))
    for start in range(0, len(raw), 1024):
        rows = raw[start : start + 1024].astype(np.float64)
        norms[start : start + 1024] = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return norms


def _unit(
    raw: NDArray[np.floating], norms: NDArray[np.float64], order: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return rows in another order, normalised in float64, as float32."""
    unit = np.empty((len(order), raw.shape[1]), np.float32)
    for start in range(0, len(order), 1024):
        part = order[start : start + 1024]
        unit[start : start + 1024] = raw[part].astype(np.float64) / norms[part, None]
    return unit


def _pair_counts(images: NDArray[np.integer]) -> tuple[int, int]:
    """Return the numbers of mated and non-mated pairs, given the images of each identity."""
    total = int(images.sum())
    mated = int((images.astype(np.int64) * (images - 1) // 2).sum())
    return mated, total * (total - 1) // 2 - mated


def _bins(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the bin of each score between −1 and 1, an index into `BIN_EDGES`."""
    clipped = np.clip(scores, -1, 1)
    return np.floor(clipped / np.float32(BIN_WIDTH)).astype(np.int64) + BIN_EDGES.size // 2


def _at_least(values: Tensor, edge: float | np.float32, out: Tensor) -> Tensor:
    """Mark the values that are at least ``edge``; numpy does it ten times as fast as torch."""
    if values.device.type == "cpu":
        array = values.numpy()
        np.greater_equal(array, array.dtype.type(edge), out=out.numpy())
    else:
        torch.ge(values, float(edge), out=out)
    return out


def _positions(marks: Tensor) -> Tensor:
    """Return the indices of true values, ``(K,)``; numpy is the faster one on the CPU."""
    if marks.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(marks.numpy()))
    return marks.nonzero().view(-1)


def _merge(
    parts: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Add up counts of distinct scores."""
    scores, counts = (np.concatenate(side) for side in zip(*parts, strict=True))
    distinct, index = np.unique(scores, return_inverse=True)
    summed = np.zeros(distinct.size, np.int64)
    np.add.at(summed, index, counts)
    return distinct, summed


def _add(counts: NDArray[np.int64], places: NDArray[np.integer], base: int = 0) -> None:
    """Count places from ``base`` on, without touching the rest of a long array."""
    found = np.bincount(places)
    counts[base : base + found.size] += found


def _symmetric(ordered: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return counts of unordered pairs of groups from those by (first, second), ``(D²,)``."""
    square = ordered.reshape(math.isqrt(ordered.size), -1)
    both = square + square.T
    np.fill_diagonal(both, square.diagonal())
    return both


def _float32_at_least(threshold: float) -> np.float32:
    """Return the lowest float32 that is no less: it decides float32 scores alike."""
    rounded = np.float32(threshold)
    return just_above(rounded) if float(rounded) < threshold else rounded


def _within_cosines(edge: np.float32) -> np.float32:
    """Return a threshold that treats scores beyond ±1 as ±1."""
    if edge > 1:
        return np.float32(np.inf)
    return _LOWEST if edge <= -1 else edge
