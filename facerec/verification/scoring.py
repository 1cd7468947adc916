"""All pairs of a set of images: exact operating points, and errors by identity and by group.

The cosines of N images are computed tile by tile and never stored. Images are sorted by identity,
so that the mated pairs lie near the diagonal and most tiles hold non-mated pairs only.

Exact thresholds come from a histogram of the non-mated scores, whose bins are exact because their
width is a power of two, and from the scores in those few bins that hold the wanted ranks. The bins
are guessed from a random sample of pairs; a rank that falls elsewhere costs a second pass, after
which every rank is known.

Each tile is one single-threaded float32 matrix product of fixed shape, so the scores, and with
them every count, do not depend on the number of threads or ranks.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from facerec.devices import choose_device
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

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the tiles that are done and the tiles in all."""

# Bin 0 of the histograms while they are filled: pairs that are not to be counted.
_EXCLUDED = 0
_BINS = BIN_EDGES.size + 1

# Work between merges of what is collected: it bounds memory and is large enough to be rare.
_PENDING = 2**21

_SAMPLE = 2**18
"""Random pairs from which the bins of the wanted ranks are guessed, at most."""

_KEEP_ALL = 2**22
"""Up to so many non-mated scores nothing is guessed, all are kept."""


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
        if (
            self.of_identity is None
            or table.identities is None
            or not self.non_mated[first, second]
        ):
            return None
        left, right = (np.flatnonzero(self.of_identity == group) for group in (first, second))
        counts = table.identities
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

    Targets cost one pass over all tiles (two if a guess fails), tables another one.

    Args:
        vectors: raw embeddings, ``(N, D)``. They are normalised in float64 and scored in float32;
            scores that rounding carries beyond ±1 count as ±1.
        subjects: identity of each image, ``(N,)``: numbers or text.
        fpr: targets; text is taken exactly.
        thresholds: at which errors are counted.
        groups: group of each image, ``(N,)`` text, for counts between groups.
        tables_at_points: count errors by identity and group at the operating points too.
        device: where scores are computed, see `choose_device`.
        tile: rows and columns of a tile; by default 1024 on the CPU, 8192 elsewhere. Scores may
            differ in the last bit between tile sizes and devices.
        genuine_limit: keep all mated scores up to this number.
        identity_limit: count false matches by pair of identities up to this number.
        progress: see `Progress`.
        process_group: the ranks that share the work; by default all.

    Raises:
        MetricError: shapes that do not fit, a target that is no rate, a NaN threshold, or no mated
            or no non-mated pair of usable images.
        DeviceError: the device is not there.
    """
    for target in fpr:
        parse_rate(target)
    if any(math.isnan(threshold) for threshold in thresholds):
        raise MetricError("a threshold is NaN; give numbers between -1 and 1")
    people = _People(vectors, subjects, groups)
    chosen = choose_device(device)
    size = tile or (1024 if chosen.type == "cpu" else 8192)
    tiles = _Tiles(people.unit, people.identity, chosen, size, process_group, progress)

    histogram: NDArray[np.int64] | None = None
    ranked: dict[int, tuple[np.float32, int]] = {}
    allowed = [allowed_accepts(target, people.non_mated) for target in fpr]
    if fpr:
        ranks = sorted({count + 1 for count in allowed if count < people.non_mated})
        histogram, ranked = _select(tiles, ranks, _guess(people, ranks, tiles))
    cuts = [
        just_above(ranked[count + 1][0]) if count < people.non_mated else np.float32(-np.inf)
        for count in allowed
    ]

    given = [_float32_at_least(threshold) for threshold in thresholds]
    in_all = [*given, *cuts] if tables_at_points else given
    counts = _count(tiles, people, [*given, *cuts], len(in_all), genuine_limit, identity_limit)
    points = []
    for place, (target, cut, count) in enumerate(zip(fpr, cuts, allowed, strict=True), len(given)):
        false = ranked[count + 1][1] if count < people.non_mated else people.non_mated
        if tables_at_points and counts.false_matches[place] != false:
            raise MetricError(
                f"{counts.false_matches[place]} false matches at {cut} in one pass and {false} in "
                f"another: matrix products on {chosen} are not reproducible; compute on the cpu"
            )
        true = people.mated - int(counts.missed[place].sum())
        points.append(operating_point(target, cut, (true, false), (people.mated, people.non_mated)))
    targets = [None] * len(given) + [str(target) for target in fpr]
    return AllPairs(
        images=len(people.identity),
        failures=people.failures,
        lost_mated=people.lost_mated,
        lost_non_mated=people.lost_non_mated,
        mated=people.mated,
        non_mated=people.non_mated,
        subjects=people.labels,
        images_per_subject=people.images,
        points=tuple(points),
        tables=tuple(
            counts.table(place, float(edge), targets[place], people)
            for place, edge in enumerate(in_all)
        ),
        groups=people.groups,
        genuine=counts.genuine,
        genuine_histogram=counts.histogram,
        impostor_histogram=histogram,
    )


class _People:
    """The usable images, sorted by identity."""

    def __init__(
        self,
        vectors: ArrayLike,
        subjects: ArrayLike,
        groups: Sequence[str] | NDArray[np.str_] | None,
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
        order = np.argsort(identity, kind="stable")
        self.identity = identity[order].astype(np.int32)
        self.order = np.flatnonzero(usable)[order]
        self.unit = _unit(raw, norms, self.order)
        self.group: NDArray[np.int64] | None = None
        self.groups: Groups | None = None
        if groups is not None:
            self._set_groups(np.asarray(groups)[self.order])

    def _set_groups(self, of_image: NDArray[Any]) -> None:
        """Count the pairs between groups."""
        names, self.group = np.unique(of_image, return_inverse=True)
        ones = np.ones(self.group.size, np.int64)
        shape = self.images.size, names.size
        members = csr_array((ones, (self.identity, self.group)), shape)
        images = np.bincount(self.group, minlength=names.size)
        # Ordered pairs of images, each with itself among them, by the groups of the two.
        same = np.asarray((members.T @ members).todense())
        total = np.multiply.outer(images, images)
        mated, pairs = same.copy(), total.copy()
        for counts in (mated, pairs):
            np.fill_diagonal(counts, (counts.diagonal() - images) // 2)
        one_each = members.nnz == shape[0]
        self.groups = Groups(
            names=tuple(str(name) for name in names),
            images=images,
            mated=mated,
            non_mated=pairs - mated,
            of_identity=members.indices.astype(np.int64) if one_each else None,
        )


K = TypeVar("K", bound="_Kernel")


class _Kernel(Protocol):
    """Takes what it needs from one tile of scores after another."""

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None: ...


class _Tiles:
    """The score matrix on and above its diagonal, in square tiles that are dealt to ranks."""

    def __init__(
        self,
        unit: NDArray[np.float32],
        identity: NDArray[np.int32],
        device: torch.device,
        size: int,
        process_group: dist.ProcessGroup | None,
        progress: Progress | None,
    ) -> None:
        self.identity, self.device, self.size = identity, device, size
        self._unit = torch.from_numpy(unit).to(device)
        self._process_group, self._progress = process_group, progress
        blocks = -(-len(identity) // size)
        first, second = np.triu_indices(blocks)
        ends = np.minimum((first + 1) * size, len(identity)) - 1
        near = identity[ends] >= identity[second * size]
        # Tiles with mated pairs are dealt first, so that those alone are dealt evenly too.
        order = np.argsort(~near, kind="stable")[rank(process_group) :: world_size(process_group)]
        self._places = np.stack([first, second], axis=1)[order] * size
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
                rows, columns = (slice(at, min(at + self.size, len(self._unit))) for at in place)
                shape = rows.stop - rows.start, columns.stop - columns.start
                scores = buffer[: math.prod(shape)].view(shape)
                torch.mm(self._unit[rows], self._unit[columns].T, out=scores)
                kernel(scores, rows, columns)
                with lock:
                    done += 1
                    if self._progress is not None:
                        self._progress(stage, done, len(places))
            return kernel

        with _exact_products() as threads:
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
        if self.identity[rows.stop - 1] < self.identity[columns.start]:
            return None
        mated = np.equal.outer(self.identity[rows], self.identity[columns])
        if rows.start != columns.start:
            return mated, mated
        later = np.triu(np.ones(mated.shape, bool), 1)
        mated &= later
        return mated, mated | ~later

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


@contextlib.contextmanager
def _exact_products() -> Iterator[int]:
    """Make matrix products single-threaded and truly float32; give the threads that torch had.

    One thread a product keeps the sums in one order, and threads on tiles of their own need not
    wait for each other.
    """
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


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


class _Selection:
    """Histogram of the non-mated scores, and the scores themselves in some bins.

    Args:
        tiles: whose scores come.
        edges: the bins wanted: from the first up to before the second, from the third, and so on.
    """

    def __init__(self, tiles: _Tiles, edges: Sequence[int]) -> None:
        self.histogram = np.zeros(_BINS, np.int64)
        self.scores = _Scores()
        self._tiles, self._edges = tiles, edges
        self._scaled = torch.empty(tiles.size**2, device=tiles.device)
        self._bins = torch.empty(tiles.size**2, dtype=torch.int16, device=tiles.device)
        self._wanted, self._spare = (torch.empty_like(self._bins, dtype=torch.bool) for _ in "ab")

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        flat = scores.view(-1)
        buffers = (self._scaled, self._bins, self._wanted, self._spare)
        scaled, bins, wanted, spare = (buffer[: flat.numel()] for buffer in buffers)
        torch.clamp(flat, -1, 1, out=scaled).mul_(1 / BIN_WIDTH).floor_()
        bins.copy_(scaled).add_(_BINS // 2)
        if (masks := self._tiles.mated(rows, columns)) is not None:
            excluded = torch.from_numpy(masks[1]).to(bins.device).view(-1)
            bins.masked_fill_(excluded, _EXCLUDED)
        self.histogram += torch.bincount(bins, minlength=_BINS).cpu().numpy()
        _at_least(bins, self._edges[0], out=wanted)
        for edge in self._edges[1:]:
            wanted ^= _at_least(bins, edge, out=spare)
        self.scores.add(np.clip(flat[_positions(wanted)].cpu().numpy(), -1, 1))


def _select(
    tiles: _Tiles, ranks: Sequence[int], edges: Sequence[int]
) -> tuple[NDArray[np.int64], dict[int, tuple[np.float32, int]]]:
    """Find non-mated scores by rank.

    Args:
        tiles: scores.
        ranks: 1 for the highest score, 2 for the next, …
        edges: see `_Selection`; a wrong guess costs a second pass.

    Returns:
        the histogram over `BIN_EDGES`, and of each rank its score and how many are higher.
    """
    found: dict[int, tuple[np.float32, int]] = {}
    stage = "finding thresholds"
    while True:
        kernels = tiles.visit(lambda edges=edges: _Selection(tiles, edges), stage)  # type: ignore[misc]
        histogram = tiles.total([kernel.histogram for kernel in kernels])[1:]
        distinct, counts = _merge(tiles.gather([kernel.scores.merged() for kernel in kernels]))
        bin_of = _bins(distinct)
        reached = histogram[::-1].cumsum()[::-1]  # scores in a bin and above
        missing = set()
        for wanted in (each for each in ranks if each not in found):
            place = int(np.count_nonzero(reached >= wanted)) - 1
            # Bin 0 of the kernel is for excluded pairs.
            if np.searchsorted(edges, place + 1, side="right") % 2 == 0:
                missing.add(place + 1)
                continue
            inside = bin_of == place
            higher = int(reached[place] - histogram[place])
            descending = counts[inside][::-1].cumsum() + higher
            index = int(np.searchsorted(descending, wanted))
            above = higher if index == 0 else int(descending[index - 1])
            found[wanted] = distinct[inside][::-1][index], above
        if not missing:
            return histogram, found
        edges = [edge for place in sorted(missing) for edge in (place, place + 1)]
        stage = "finding thresholds again"


def _guess(people: _People, ranks: Sequence[int], tiles: _Tiles) -> list[int]:
    """Guess bins that hold the scores of some ranks, as edges for `_Selection`."""
    if people.non_mated <= _KEEP_ALL:
        return [1, _BINS]
    generator = np.random.default_rng(0)
    # So few that they take little time beside all pairs.
    size = min(_SAMPLE, people.non_mated // 512)
    first, second = generator.integers(len(people.unit), size=(2, size))
    other = people.identity[first] != people.identity[second]
    first, second = first[other], second[other]
    scores = np.empty(first.size, np.float32)
    for start in range(0, first.size, 1024):  # small enough to stay in cache
        part = slice(start, start + 1024)
        left, right = people.unit[first[part]], people.unit[second[part]]
        scores[part] = np.einsum("nd,nd->n", left, right)
    descending = np.sort(_bins(scores))[::-1] + 1
    edges: list[int] = []
    # From the lowest score to the highest, so that the edges ascend.
    for wanted in sorted(ranks, reverse=True):
        middle = wanted / people.non_mated * scores.size
        # Four standard deviations, and some for the smallest counts.
        reach = 4 * math.sqrt(middle) + 4
        low = math.ceil(middle + reach)
        high = math.floor(middle - reach)
        bottom = int(descending[low]) if low < scores.size else 1
        top = int(descending[high]) + 1 if high >= 0 else _BINS
        if edges and bottom <= edges[-1]:
            edges[-1] = max(top, edges[-1])
        else:
            edges += [bottom, top]
    # Ranks that compute on different hardware could guess differently. No bin is the last edge.
    return tiles.agreed(edges or [_BINS])


class _PairCounts:
    """Counts events by pair of identities, each once, in a sparse matrix; gives up at a limit."""

    def __init__(self, identities: int, limit: int) -> None:
        self._shape = identities, identities
        self._limit, self._total = limit, 0
        self._merged = csr_array(self._shape, dtype=np.int32)
        self._pending: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
        self._size = 0

    def add(self, first: NDArray[np.int32], second: NDArray[np.int32]) -> None:
        self._total += first.size
        if self._total > self._limit:
            self._pending = []
            return
        self._pending.append((first, second))
        self._size += first.size
        if self._size >= _PENDING:
            self._merge()

    def matrix(self) -> csr_array | None:
        """Return the counts, or None if there were more than the limit."""
        if self._total > self._limit:
            return None
        self._merge()
        return self._merged

    def _merge(self) -> None:
        if self._pending:
            rows, columns = (np.concatenate(side) for side in zip(*self._pending, strict=True))
            ones = np.ones(rows.size, np.int32)
            self._merged = self._merged + coo_array((ones, (rows, columns)), self._shape).tocsr()
            self._pending, self._size = [], 0


class _Counting:
    """Counts errors at fixed thresholds, and collects the mated scores.

    Args:
        tiles: whose scores come.
        people: identities and groups of the images.
        edges: thresholds, float32.
        matched: so many of them, from the first on, are for non-mated pairs too.
        keep: whether to collect the mated scores.
        identity_limit: see `score_all_pairs`.
    """

    def __init__(
        self,
        tiles: _Tiles,
        people: _People,
        edges: Sequence[np.float32],
        matched: int,
        keep: bool,
        identity_limit: int,
    ) -> None:
        self._tiles, self._people, self._keep = tiles, people, keep
        # Scores beyond ±1 by rounding count as ±1, so no threshold may tell them apart. Excluded
        # pairs are at −∞.
        self._edges = [_within_cosines(edge) for edge in edges]
        self._matched = sorted(range(matched), key=lambda place: self._edges[place])
        identities = people.images.size
        squares = 0 if people.groups is None else len(people.groups.names) ** 2
        shape = len(edges), identities
        self.histogram = np.zeros(BIN_EDGES.size, np.int64)
        self.genuine = [np.empty(0, np.float32)]
        self.missed, self.involved = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.false_matches = np.zeros(len(edges), np.int64)
        self.group_missed = np.zeros((len(edges), squares), np.int64)
        self.group_false_matches = np.zeros((len(edges), squares), np.int64)
        self.pairs = [_PairCounts(identities, identity_limit) for _ in range(matched)]
        self._hits = torch.empty(tiles.size**2, dtype=torch.bool, device=tiles.device)

    def __call__(self, scores: Tensor, rows: slice, columns: slice) -> None:
        masks = self._tiles.mated(rows, columns)
        if masks is not None:
            self._count_mated(scores, masks[0], rows, columns)
        if not self._matched:
            return
        if masks is not None:
            scores.masked_fill_(torch.from_numpy(masks[1]).to(scores.device), -torch.inf)
        lowest = self._edges[self._matched[0]]
        hits = self._hits[: scores.numel()].view_as(scores)
        places = _positions(_at_least(scores, lowest, out=hits).view(-1))
        if places.numel():
            found = scores.view(-1)[places].cpu().numpy()
            self._count_false_matches(found, places.cpu().numpy(), rows, columns)

    def _count_mated(
        self, scores: Tensor, mated: NDArray[np.bool_], rows: slice, columns: slice
    ) -> None:
        places = np.flatnonzero(mated)
        if not places.size:
            return
        flat = scores.view(-1)
        found = flat[torch.from_numpy(places).to(flat.device)].cpu().numpy()
        found = np.clip(found, -1, 1)
        self.histogram += np.bincount(_bins(found), minlength=BIN_EDGES.size)
        if self._keep:
            self.genuine.append(found)
        first, second = self._images(places, rows, columns)
        identity, base = self._people.identity[first], self._people.identity[rows.start]
        between = self._between(first, second)
        for place, edge in enumerate(self._edges):
            below = found < edge
            _add(self.missed[place], identity[below] - base, base)
            if between is not None:
                _add(self.group_missed[place], between[below])

    def _count_false_matches(
        self, found: NDArray[np.float32], places: NDArray[np.int64], rows: slice, columns: slice
    ) -> None:
        first, second = self._images(places, rows, columns)
        between = self._between(first, second)
        left, right = self._people.identity[first], self._people.identity[second]
        bases = self._people.identity[[rows.start, columns.start]]
        for place in self._matched:  # thresholds ascend: what one rejects the next ones do too
            passed = found >= self._edges[place]
            if not passed.all():
                found, left, right = found[passed], left[passed], right[passed]
                between = None if between is None else between[passed]
            if not found.size:
                return
            self.false_matches[place] += found.size
            _add(self.involved[place], left - bases[0], bases[0])
            _add(self.involved[place], right - bases[1], bases[1])
            self.pairs[place].add(left, right)
            if between is not None:
                _add(self.group_false_matches[place], between)

    def _images(
        self, places: NDArray[np.int64], rows: slice, columns: slice
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the two images of pairs given by their places in a tile."""
        width = columns.stop - columns.start
        row = places // width  # np.divmod takes ten times as long
        return row + rows.start, places - row * width + columns.start

    def _between(
        self, first: NDArray[np.int64], second: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Return a number for the groups of the two images."""
        group, groups = self._people.group, self._people.groups
        if group is None or groups is None:
            return None
        return group[first] * len(groups.names) + group[second]


@dataclass(frozen=True, eq=False)
class _Counts:
    """What the kernels of all ranks counted; see `_Counting`."""

    histogram: NDArray[np.int64]
    genuine: NDArray[np.float32] | None
    missed: NDArray[np.int64]
    involved: NDArray[np.int64]
    false_matches: NDArray[np.int64]
    group_missed: NDArray[np.int64]
    group_false_matches: NDArray[np.int64]
    pairs: Sequence[csr_array | None]

    def table(
        self, place: int, threshold: float, target: str | None, people: _People
    ) -> ErrorTable:
        """Return the errors at one threshold."""
        grouped = people.groups is not None
        return ErrorTable(
            threshold=threshold,
            target=target,
            false_matches=int(self.false_matches[place]),
            non_mated=people.non_mated,
            false_non_matches=int(self.missed[place].sum()),
            mated=people.mated,
            images=people.images,
            missed=self.missed[place],
            involved=self.involved[place],
            identities=self.pairs[place],
            group_false_matches=_symmetric(self.group_false_matches[place]) if grouped else None,
            group_false_non_matches=_symmetric(self.group_missed[place]) if grouped else None,
        )


def _count(
    tiles: _Tiles,
    people: _People,
    edges: Sequence[np.float32],
    matched: int,
    genuine_limit: int,
    identity_limit: int,
) -> _Counts:
    """Count errors at thresholds; see `_Counting`. Without ``matched`` near tiles alone matter."""
    keep = people.mated <= genuine_limit
    kernels = tiles.visit(
        lambda: _Counting(tiles, people, edges, matched, keep, identity_limit),
        "counting errors",
        near_only=not matched,
    )
    genuine = None
    if keep:
        own = np.concatenate([part for kernel in kernels for part in kernel.genuine])
        genuine = np.sort(np.concatenate(tiles.gather([own])))
    counts = {
        name: tiles.total([getattr(kernel, name) for kernel in kernels])
        for name in (
            "histogram",
            "missed",
            "involved",
            "false_matches",
            "group_missed",
            "group_false_matches",
        )
    }
    pairs: list[csr_array | None] = []
    for place in range(matched):
        fits = counts["false_matches"][place] <= identity_limit
        own_parts = [kernel.pairs[place].matrix() for kernel in kernels] if fits else []
        parts = tiles.gather(own_parts)
        pairs.append(sum(parts[1:], start=parts[0]) if fits else None)
    return _Counts(genuine=genuine, pairs=pairs, **counts)


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
    return np.float32(-2) if edge <= -1 else edge
