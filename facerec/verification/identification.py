"""1:N identification: every probe searches a gallery; TPIR at an FPIR, and rates by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.errors import MetricError
from facerec.report.estimate import Estimate
from facerec.report.tidy import UNRESOLVED, records
from facerec.statistics.clustered import DEPENDENT, fnmr_interval
from facerec.statistics.identification import (
    IdentificationPoint,
    Searches,
    cmc,
    count_equal,
    tpir_at_fpir,
)
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_intervals import tpr_interval
from facerec.statistics.operating_points import Rate
from facerec.statistics.rates import roc_curve
from facerec.verification.templates import NOBODY, SearchSet, TemplateBench, real_matrix
from facerec.verification.unit_rows import row_norms

FPIR_TARGETS = ("1e-1", "1e-2", "1e-3")
RANKS = (1, 5, 10, 20)

# Side of a tile of scores: a few MiB of float64.
_TILE = 1024

# Cosines are multiples of 2⁻²⁴, which float32 holds exactly up to 1: the rounding errors of a
# product, which depend on where in a tile it lies, are far smaller and leave no trace.
_GRID = 2.0**24


@dataclass(frozen=True)
class TpirEstimate:
    """TPIR at an FPIR, and the FPIR that its threshold realises; intervals follow subjects."""

    point: IdentificationPoint
    tpir: Estimate
    """Its interval allows for the uncertainty of the threshold; no value where the target is not
    resolvable."""
    fpir: Estimate


@dataclass(frozen=True)
class GalleryResult:
    """What the searches of one gallery give."""

    name: str
    searches: Searches = field(repr=False, compare=False)
    points: tuple[TpirEstimate, ...]
    """One a target FPIR; empty if no search is non-mated."""
    ranks: Mapping[int, Estimate]
    """Share of mated searches whose mate has a rank or a better one."""
    failed_probes: int
    """Probes without a vector, which find nobody."""
    failed_entries: int
    """Entries of the gallery without a vector, which are never found."""


@dataclass(frozen=True)
class IdentificationResult:
    """Figures of 1:N, by gallery and averaged over the galleries."""

    name: str
    galleries: tuple[GalleryResult, ...]
    tpir: Mapping[str, Estimate]
    """Mean TPIR by target FPIR, as it was written, for targets that every gallery can resolve."""
    rank_rates: Mapping[int, Estimate]
    """Mean identification rate by rank."""
    notes: tuple[str, ...]
    """What a reader must know, one sentence each."""
    flip: bool | None = None
    """See `facerec.verification.evaluation.VerificationResult`, as for what follows."""
    align: Mapping[str, Any] | None = None
    score: str = "cosine of template vectors, float32"
    model: Mapping[str, Any] | None = None
    source: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entries of each gallery, and all figures as rows, as JSON types."""
        from facerec.verification.figures import identification_figures

        return {
            "bench": self.name,
            "galleries": {each.name: each.searches.gallery for each in self.galleries},
            "figures": records(identification_figures(self)),
            "flip": self.flip,
            "align": self.align,
            "score": self.score,
            "model": self.model,
            "source": self.source,
            "notes": self.notes,
        }


def search_gallery(
    probes: ArrayLike, probe_subjects: ArrayLike, gallery: ArrayLike, gallery_subjects: ArrayLike
) -> Searches:
    """Search a gallery ``(G, D)`` with every probe ``(P, D)``, tile by tile.

    Scores are cosines: computed in float64, rounded to multiples of 2⁻²⁴ and held in float32, so
    that equal vectors tie. A vector that is zero or not finite has score −∞ with all others: a
    failed probe raises no alarm, and a mate without a score has the last rank. A subject, ``(P,)``
    and ``(G,)``, may be several times in the gallery; a negative number there is nobody's mate.

    Raises:
        MetricError: shapes that do not fit, or an empty gallery.
    """
    probe, other = _sides(
        probes, probe_subjects, gallery, gallery_subjects, " and a gallery that is not empty"
    )
    entries = len(other.matrix)
    mate, best_other = np.full((2, len(probe.matrix)), -np.inf, np.float32)
    above = np.zeros(len(mate), np.int64)
    # The best mate must be known before anyone can be counted as scoring above it.
    for rows, _, scores, same in _score_tiles(probe, other, only_mates=True):
        best = np.max(scores, axis=1, where=same, initial=-np.inf)
        mate[rows] = np.maximum(mate[rows], best)
    lost = np.isneginf(mate)
    bar = np.where(lost, np.float32(np.inf), mate)
    for rows, _, scores, same in _score_tiles(probe, other, only_mates=False):
        scores[same] = -np.inf
        best = scores.max(axis=1)
        best_other[rows] = np.maximum(best_other[rows], best)
        beaten = best >= bar[rows]  # few, so that the rest need not be counted
        higher = scores[beaten] >= bar[rows[beaten], np.newaxis]
        above[rows[beaten]] += np.count_nonzero(higher, axis=1)
    mates = count_equal(probe.subjects, other.subjects[other.subjects >= 0])
    rank = np.where(lost, entries - mates, above) + 1
    scale = np.float32(1 / _GRID)
    return Searches(
        best_other * scale,
        np.where(mates > 0, mate * scale, np.float32(np.nan)),
        np.where(mates > 0, rank, 0),
        entries,
    )


@dataclass(frozen=True, eq=False)
class NearestEntries:
    """The two best entries of other subjects, and the mate, of every probe; ``(P,)`` each.

    Scores are those of `search_gallery`. An entry alone causes a false alarm at a threshold if the
    best score reaches it and the second one does not.
    """

    best: NDArray[np.float32]
    """Best score with another subject; −inf if there is none."""
    entry: NDArray[np.int64]
    """Row of the gallery with that score, one of several if they tie; −1 if there is none."""
    second: NDArray[np.float32]
    """Second best score with another subject; equals the best one where two tie."""
    mate: NDArray[np.float32]
    """Best score with the same subject; −inf if there is none."""


def nearest_entries(
    probes: ArrayLike, probe_subjects: ArrayLike, gallery: ArrayLike, gallery_subjects: ArrayLike
) -> NearestEntries:
    """Search a gallery, which may be empty, as `search_gallery` does, for the two best entries.

    Raises:
        MetricError: shapes that do not fit.
    """
    probe, other = _sides(probes, probe_subjects, gallery, gallery_subjects)
    best, second, mate = np.full((3, len(probe.matrix)), -np.inf, np.float32)
    entry = np.full(len(best), -1, np.int64)
    for rows, columns, scores, same in _score_tiles(probe, other, only_mates=False):
        mate[rows] = np.maximum(mate[rows], np.max(scores, axis=1, where=same, initial=-np.inf))
        scores[same] = -np.inf
        lines = np.arange(len(rows))
        column = scores.argmax(axis=1)
        first = scores[lines, column]
        scores[lines, column] = -np.inf
        next_best, held = scores.max(axis=1), best[rows]
        better = first > held
        second[rows] = np.where(
            better, np.maximum(held, next_best), np.maximum(second[rows], first)
        )
        best[rows] = np.where(better, first, held)
        entry[rows] = np.where(better, columns[column], entry[rows])
    scale = np.float32(1 / _GRID)
    return NearestEntries(best * scale, entry, second * scale, mate * scale)


def identify(
    vectors: ArrayLike,
    bench: TemplateBench,
    *,
    fpir: Sequence[Rate] = FPIR_TARGETS,
    ranks: Sequence[int] = RANKS,
) -> IdentificationResult:
    """Search every gallery of a bench with all its probes and average the figures.

    A probe whose subject is not in the gallery, but perhaps in the other one, is a non-mated
    search. Rates at a rank are shares of the mated searches. Vectors are those of all templates,
    ``(T, D)``, as in `TemplateVectors`.

    Raises:
        MetricError: the bench has no searches or none is mated, another number of templates, or an
            impossible target or rank.
    """
    matrix = real_matrix(vectors, "template vectors")
    if min(ranks, default=1) < 1:
        raise MetricError(f"rank {min(ranks)} is no length of a candidate list; the least is 1")
    if bench.probes is None:
        raise MetricError(f"{bench.name} has no lists of probes and galleries to search")
    if len(matrix) != len(bench.template_ids):
        raise MetricError(
            f"{bench.name}: there are {len(matrix)} vectors for {len(bench.template_ids)} templates"
        )
    results = tuple(
        _identify(matrix, bench.probes, gallery, fpir, ranks) for gallery in bench.galleries
    )
    open_set = all(result.points for result in results)
    points = zip(*[result.points for result in results], strict=True) if open_set else ()
    return IdentificationResult(
        name=bench.name,
        galleries=results,
        tpir={
            estimates[0].point.target: _mean([estimate.tpir for estimate in estimates])
            for estimates in points
            if all(estimate.point.resolvable for estimate in estimates)
        },
        rank_rates={rank: _mean([result.ranks[rank] for result in results]) for rank in ranks},
        notes=tuple(note for result in results for note in _search_notes(bench.name, result)),
    )


def _identify(
    matrix: NDArray[np.floating],
    probes: SearchSet,
    gallery: SearchSet,
    fpir: Sequence[Rate],
    ranks: Sequence[int],
) -> GalleryResult:
    mine, theirs = matrix[probes.templates], matrix[gallery.templates]
    searches = search_gallery(mine, probes.subjects, theirs, gallery.subjects)
    mated = searches.mated
    subjects, others = probes.subjects[mated], probes.subjects[~mated]
    closed = Searches(
        searches.best_other[mated], searches.mate[mated], searches.rank[mated], searches.gallery
    )
    hits = cmc(closed, max(ranks, default=1))

    def at_fpir(target: Rate) -> TpirEstimate:
        point = tpir_at_fpir(searches, target)
        identified = (closed.rank <= point.rank) & (closed.mate >= point.threshold)
        alarms = searches.best_other[~mated] >= point.threshold
        tpir, fpir = fnmr_interval(identified, subjects), fnmr_interval(alarms, others)
        finest = f"{UNRESOLVED}: {point.non_mated} searches are non-mated"
        estimate = Estimate(None, remark=finest)
        if point.resolvable:
            if tpir.effective is not None and fpir.effective is not None:
                # A mate beyond the list is not found, however low the threshold.
                listed = np.where(closed.rank <= point.rank, closed.mate, np.float32(-np.inf))
                roc = roc_curve(listed, searches.best_other[~mated])
                effective = tpir.effective, fpir.effective
                both = tpr_interval(roc, roc.tpr_at_fpr(target), effective=effective)
                tpir = replace(both, assumption=DEPENDENT)
            few = "" if point.reliable else "few errors"
            estimate = Estimate(point.tpir, tpir, point.hits, point.mated, few)
        alarmed = Estimate(point.fpir_realised, fpir, point.false_alarms, point.non_mated)
        return TpirEstimate(point, estimate, alarmed)

    return GalleryResult(
        name=gallery.name,
        searches=searches,
        points=tuple(at_fpir(target) for target in fpir) if others.size else (),
        ranks={
            rank: Estimate(
                int(hits[rank - 1]) / subjects.size,
                fnmr_interval(closed.rank <= rank, subjects),
                int(hits[rank - 1]),
                subjects.size,
            )
            for rank in ranks
        },
        failed_probes=int(np.isnan(row_norms(mine)).sum()),
        failed_entries=int(np.isnan(row_norms(theirs)).sum()),
    )


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    """Average rates of several galleries, and their limits: wide enough even if all err alike."""
    intervals = [estimate.interval for estimate in estimates if estimate.interval is not None]
    if len(estimates) == 1:
        return Estimate(estimates[0].value, intervals[0])
    low, high = (float(np.mean([getattr(i, end) for i in intervals])) for end in ("low", "high"))
    return Estimate(
        float(np.mean([estimate.value for estimate in estimates])),
        Interval(
            low,
            high,
            intervals[0].confidence,
            "mean of the limits of each gallery",
            f"{intervals[0].assumption}; conservative",
        ),
    )


def _search_notes(name: str, result: GalleryResult) -> Iterator[str]:
    where = f"{name}, gallery {result.name}"
    if not result.points:
        yield f"{where}: every search is mated, so there is no FPIR"
    if result.failed_probes or result.failed_entries:
        yield (
            f"{where}: {result.failed_probes} of {result.searches.rank.size} probes and "
            f"{result.failed_entries} of {result.searches.gallery} entries have no vector; they "
            "find nobody and are never found"
        )


class _Side:
    """One side of a search; `order` has the rows that can be scored, subject by subject."""

    def __init__(self, vectors: ArrayLike, subjects: ArrayLike, what: str) -> None:
        self.matrix = real_matrix(vectors, what)
        self.subjects = np.asarray(subjects, dtype=np.int64)
        if self.subjects.shape != (len(self.matrix),):
            raise MetricError(
                f"{what}: {self.subjects.shape} subjects for {len(self.matrix)} vectors; give one "
                "number each"
            )
        self.norms = row_norms(self.matrix)
        order = np.argsort(self.subjects, kind="stable")
        self.order = order[~np.isnan(self.norms[order])]

    def tiles(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        for start in range(0, len(self.order), _TILE):
            rows = self.order[start : start + _TILE]
            yield rows, self.matrix[rows].astype(np.float64) / self.norms[rows, np.newaxis]


def _sides(
    probes: ArrayLike,
    probe_subjects: ArrayLike,
    gallery: ArrayLike,
    gallery_subjects: ArrayLike,
    or_empty: str = "",
) -> tuple[_Side, _Side]:
    """Return both sides of a search; ``or_empty`` says so where a gallery must not be empty."""
    probe = _Side(probes, probe_subjects, "probes")
    other = _Side(gallery, gallery_subjects, "the gallery")
    if probe.matrix.shape[1] != other.matrix.shape[1] or (or_empty and not len(other.matrix)):
        raise MetricError(
            f"probes have shape {probe.matrix.shape} and the gallery {other.matrix.shape}; a "
            f"search needs one length of vectors{or_empty}"
        )
    return probe, other


def _score_tiles(
    probe: _Side, gallery: _Side, *, only_mates: bool
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]]:
    """Yield rows of probes ``(p,)`` and of entries ``(g,)``, their cosines × 2²⁴, and mates."""
    for columns, units in gallery.tiles():
        theirs = np.where(gallery.subjects[columns] < 0, NOBODY, gallery.subjects[columns])
        others = units.T * _GRID
        for rows, mine in probe.tiles():
            subjects = probe.subjects[rows]
            # Both run upwards, so tiles whose ranges are apart hold no mates.
            apart = subjects[-1] < max(theirs[0], 0) or theirs[-1] < max(subjects[0], 0)
            if only_mates and apart:
                continue
            products = mine @ others
            scores = np.rint(products, out=products).astype(np.float32)
            if apart:
                yield rows, columns, scores, np.broadcast_to(np.False_, scores.shape)
            else:
                yield rows, columns, scores, (subjects[:, np.newaxis] == theirs) & (theirs >= 0)
