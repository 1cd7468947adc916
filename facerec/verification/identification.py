"""1:N identification: every probe searches a gallery; TPIR at an FPIR, and rates by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.report.documents import plain
from facerec.report.estimate import Estimate
from facerec.report.tidy import figure_row, records, tidy
from facerec.report.words import threshold_remark
from facerec.statistics.clustered import fnmr_interval
from facerec.statistics.identification import (
    Searches,
    cmc,
    count_equal,
    tpir_at_fpir,
)
from facerec.statistics.influences import ScoredComparisons
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import Rate
from facerec.verification.templates import SearchSet, TemplateBench
from facerec.verification.unit_rows import real_matrix, row_norms

if TYPE_CHECKING:
    import pandas as pd

FPIR_TARGETS = ("1e-1", "1e-2", "1e-3")
RANKS = (1, 5, 10, 20)
AVERAGED = ("TPIR@FPIR", "rank")
"""Figures that are averaged over the galleries."""

# Side of a tile of scores: a few MiB of float64.
_TILE = 1024

# Cosines are multiples of 2⁻²⁴, which float32 holds exactly up to 1: the rounding errors of a
# product, which depend on where in a tile it lies, are far smaller and leave no trace.
_GRID = 2.0**24


@dataclass(frozen=True)
class IdentificationResult:
    """Figures of 1:N, by gallery and averaged over the galleries."""

    name: str
    figures: pd.DataFrame = field(repr=False, compare=False)
    """A tidy table with the key ``gallery``, ``mean`` for averages; see `facerec.report.tidy`."""
    galleries: Mapping[str, int]
    """Entries of each."""
    notes: tuple[str, ...]
    """What a reader must know, one sentence each."""
    flip: bool | None = None
    """See `facerec.verification.result.VerificationResult`, as for what follows."""
    align: Mapping[str, Any] | None = None
    score: str = "cosine of template vectors, float32"
    model: Mapping[str, Any] | None = None
    source: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entries of each gallery, and all figures as rows, as JSON types."""
        facts = {"bench": self.name, **vars(self), "figures": records(self.figures)}
        del facts["name"]
        return dict(plain(facts))


def search_gallery(
    probes: ArrayLike, probe_subjects: ArrayLike, gallery: ArrayLike, gallery_subjects: ArrayLike
) -> Searches:
    """Search a gallery ``(G, D)`` with every probe ``(P, D)``, tile by tile.

    Scores are cosines: computed in float64, rounded to multiples of 2⁻²⁴ and held in float32, so
    that equal vectors tie. A vector that is zero or not finite has score −∞ with all others: a
    failed probe raises no alarm, and a mate without a score has the last rank. A subject, ``(P,)``
    and ``(G,)``, may be several times in the gallery; a negative number there is nobody's mate.

    Raises:
        MetricError: no matrix of real numbers.
    """
    probe, other = _Side(probes, probe_subjects), _Side(gallery, gallery_subjects)
    entries = len(other.matrix)
    # The best mate must be known before anyone can be counted as scoring above it.
    nearest = nearest_entries(probes, probe_subjects, gallery, gallery_subjects)
    above = np.zeros(len(probe.matrix), np.int64)
    lost = np.isneginf(nearest.mate)
    bar = np.where(lost, np.float32(np.inf), nearest.mate)
    for rows, _, scores, same in _score_tiles(probe, other):
        scores[same] = -np.inf
        beaten = scores.max(axis=1) >= bar[rows]  # few, so that the rest need not be counted
        higher = scores[beaten] >= bar[rows[beaten], np.newaxis]
        above[rows[beaten]] += np.count_nonzero(higher, axis=1)
    mates = count_equal(probe.subjects, other.subjects[other.subjects >= 0])
    rank = np.where(lost, entries - mates, above) + 1
    return Searches(
        nearest.best,
        np.where(mates > 0, nearest.mate, np.float32(np.nan)),
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
        MetricError: no matrix of real numbers.
    """
    probe, other = _Side(probes, probe_subjects), _Side(gallery, gallery_subjects)
    best, second, mate = np.full((3, len(probe.matrix)), -np.inf, np.float32)
    entry = np.full(len(best), -1, np.int64)
    for rows, columns, scores, same in _score_tiles(probe, other):
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
    return NearestEntries(best, entry, second, mate)


def identify(
    vectors: ArrayLike,
    bench: TemplateBench,
    *,
    name: str | None = None,
    fpir: Sequence[Rate] = FPIR_TARGETS,
    ranks: Sequence[int] = RANKS,
) -> IdentificationResult:
    """Search every gallery of a bench with all its probes and average the figures.

    A probe whose subject is not in the gallery, but perhaps in the other one, is a non-mated
    search. Rates at a rank are shares of the mated searches. Vectors are those of all templates,
    ``(T, D)``, as in `TemplateVectors`; ``name`` is that of the result, by default the bench's.

    Raises:
        MetricError: the bench has no searches or none is mated, or an impossible target.
    """
    matrix = real_matrix(vectors, "template vectors")
    if bench.probes is None:
        raise MetricError(f"{bench.name} has no lists of probes and galleries to search")
    name = name or bench.name
    rows: list[dict[str, object]] = []
    notes: list[str] = []
    for gallery in bench.galleries:
        estimates, remarks = _identify(matrix, bench.probes, gallery, fpir, ranks)
        notes += [f"{bench.name}, gallery {gallery.name}: {remark}" for remark in remarks]
        for (figure, target), estimate in estimates.items():
            rows.append(figure_row(figure, estimate, target, bench=name, gallery=gallery.name))
    if len(bench.galleries) > 1:
        figures = tidy(rows)
        shared = figures[figures.figure.isin(AVERAGED)].groupby(["figure", "target"], sort=False)
        # Limits are averaged too: wide enough even if all err alike.
        for (what, at), each in shared:
            if len(each) == len(bench.galleries) and each.value.notna().all():
                value, low, high = (float(each[end].mean()) for end in ("value", "low", "high"))
                mean = Estimate(value, Interval(low, high), remark="limits: means of those of each")
                rows.append(figure_row(str(what), mean, str(at), bench=name, gallery="mean"))
    sizes = {gallery.name: len(gallery.templates) for gallery in bench.galleries}
    return IdentificationResult(name, tidy(rows), sizes, tuple(notes))


def _identify(
    matrix: NDArray[np.floating],
    probes: SearchSet,
    gallery: SearchSet,
    fpir: Sequence[Rate],
    ranks: Sequence[int],
) -> tuple[dict[tuple[str, str], Estimate], list[str]]:
    """Return the figures of one gallery by name and target, and what a reader must know."""
    mine, theirs = matrix[probes.templates], matrix[gallery.templates]
    searches = search_gallery(mine, probes.subjects, theirs, gallery.subjects)
    mated = searches.mated
    subjects, others = probes.subjects[mated], probes.subjects[~mated]
    closed = Searches(
        searches.best_other[mated], searches.mate[mated], searches.rank[mated], searches.gallery
    )
    hits = cmc(closed, max(ranks, default=1))
    found: dict[tuple[str, str], Estimate] = {}
    for target in map(str, fpir if others.size else ()):
        point = tpir_at_fpir(searches, target)
        if not point.resolvable:
            said = f"{point.non_mated} searches are non-mated"
            found["TPIR@FPIR", target] = Estimate(None, remark=said, unresolved=True)
            continue
        identified = (closed.rank == 1) & (closed.mate >= point.threshold)
        alarms = searches.best_other[~mated] >= point.threshold
        tpir, realised = fnmr_interval(identified, subjects), fnmr_interval(alarms, others)
        if 0 < point.true_accepts < point.mated and point.false_accepts:
            # A mate that is not first is not found, however low the threshold.
            listed = np.where(closed.rank == 1, closed.mate, np.float32(-np.inf))
            scores = np.concatenate([listed, searches.best_other[~mated]])
            of = np.unique(np.concatenate([subjects, others]), return_inverse=True)[1]
            scored = ScoredComparisons.of(scores, np.arange(scores.size) < listed.size, (of, of))
            tpir = scored.tpr_interval(scored.figures.roc.tpr_at_fpr(target))
        few = "" if point.reliable else "few errors"
        found |= {
            ("TPIR@FPIR", target): Estimate(point.tpr, tpir, point.true_accepts, point.mated, few),
            ("realised FPIR", target): Estimate(
                point.fpr_realised, realised, point.false_accepts, point.non_mated
            ),
            ("threshold", target): Estimate(
                point.threshold, remark=threshold_remark(point.threshold), unit="score"
            ),
        }
    for rank in ranks:
        count = int(hits[rank - 1])
        interval = fnmr_interval(closed.rank <= rank, subjects)
        found["rank", str(rank)] = Estimate(count / subjects.size, interval, count, subjects.size)
    remarks = [] if others.size else ["every search is mated, so there is no FPIR"]
    lost = [int(np.isnan(row_norms(side)).sum()) for side in (mine, theirs)]
    if any(lost):
        remarks.append(
            f"{lost[0]} of {len(mine)} probes and {lost[1]} of {len(theirs)} entries have no "
            "vector; they find nobody and are never found"
        )
    return found, remarks


class _Side:
    """One side of a search; `order` has the rows that can be scored, subject by subject."""

    def __init__(self, vectors: ArrayLike, subjects: ArrayLike) -> None:
        self.matrix = real_matrix(vectors, "vectors to be searched")
        self.subjects = np.asarray(subjects, dtype=np.int64)
        self.norms = row_norms(self.matrix)
        order = np.argsort(self.subjects, kind="stable")
        self.order = order[~np.isnan(self.norms[order])]

    def tiles(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        for start in range(0, len(self.order), _TILE):
            rows = self.order[start : start + _TILE]
            yield rows, self.matrix[rows].astype(np.float64) / self.norms[rows, np.newaxis]


def _score_tiles(
    probe: _Side, gallery: _Side
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]]:
    """Yield rows of probes ``(p,)`` and of entries ``(g,)``, their cosines, and who are mates."""
    for columns, units in gallery.tiles():
        theirs = gallery.subjects[columns]
        others = units.T * _GRID
        for rows, mine in probe.tiles():
            products = mine @ others
            scores = np.rint(products, out=products).astype(np.float32) * np.float32(1 / _GRID)
            same = (probe.subjects[rows, np.newaxis] == theirs) & (theirs >= 0)
            yield rows, columns, scores, same
