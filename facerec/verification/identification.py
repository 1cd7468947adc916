"""1:N identification: every probe searches a gallery; TPIR at an FPIR, and rates by rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import MetricError
from facerec.cosines.searches import search_gallery
from facerec.cosines.unit_rows import real_matrix, row_norms
from facerec.report.documents import plain
from facerec.report.estimate import Estimate
from facerec.report.tidy import figure_row, records, tidy
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.identification import tpir_at_fpir
from facerec.statistics.influences import ScoredComparisons
from facerec.statistics.intervals import Interval
from facerec.verification.result import Result, TprEstimate
from facerec.verification.templates import SearchSet, TemplateBench

if TYPE_CHECKING:
    import pandas as pd

FPIR_TARGETS = ("1e-1", "1e-2", "1e-3")
RANKS = (1, 5, 10, 20)
AVERAGED = ("TPIR@FPIR", "rank")
"""Figures that are averaged over the galleries."""


@dataclass(frozen=True, kw_only=True)
class IdentificationResult(Result):
    """Figures of 1:N, by gallery and averaged over the galleries."""

    rows: pd.DataFrame = field(repr=False, compare=False)
    """A tidy table with the key ``gallery``, ``mean`` for averages; see `facerec.report.tidy`."""
    galleries: Mapping[str, int]
    """Entries of each."""
    score: str = "cosine of template vectors, float32"

    @property
    def heading(self) -> str:
        """What stands above the rows."""
        return f"{self.title}: 1:N identification"

    def to_json(self) -> dict[str, Any]:
        """Return the entries of each gallery, and all figures as rows, as JSON types."""
        facts = {"bench": self.name, **vars(self), "rows": records(self.rows)}
        del facts["name"]
        return dict(plain(facts))


def identify(
    vectors: ArrayLike, bench: TemplateBench, *, name: str | None = None
) -> IdentificationResult:
    """Search every gallery of a bench with all its probes and average the figures.

    A probe whose subject is not in the gallery, but perhaps in the other one, is a non-mated
    search. Rates at a rank are shares of the mated searches. Vectors are those of all templates,
    ``(T, D)``, as in `TemplateVectors`; ``name`` is that of the result, by default the bench's.

    Raises:
        MetricError: no search of a gallery is mated.
    """
    matrix = real_matrix(vectors, "template vectors")
    assert bench.probes is not None
    name = name or bench.name
    rows: list[dict[str, object]] = []
    notes: list[str] = []
    for gallery in bench.galleries:
        estimates, remarks = _identify(matrix, bench.probes, gallery)
        notes += [f"{bench.name}, gallery {gallery.name}: {remark}" for remark in remarks]
        rows += (figure_row(*each, bench=name, gallery=gallery.name) for each in estimates)
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
    return IdentificationResult(name=name, rows=tidy(rows), galleries=sizes, notes=tuple(notes))


def _identify(
    matrix: NDArray[np.floating], probes: SearchSet, gallery: SearchSet
) -> tuple[list[tuple[str, Estimate, str]], list[str]]:
    """Return name, figure and target of all of one gallery, and what a reader must know."""
    mine, theirs = matrix[probes.templates], matrix[gallery.templates]
    searches = search_gallery(mine, probes.subjects, theirs, gallery.subjects, max(RANKS))
    mated = searches.mated
    subjects, others = probes.subjects[mated], probes.subjects[~mated]
    mates, places, alarming = (
        searches.mate[mated],
        searches.rank[mated],
        searches.best_other[~mated],
    )
    if not mates.size:
        raise MetricError(f"gallery {gallery.name}: none of its searches is mated; get the lists")
    found: list[tuple[str, Estimate, str]] = []
    for target in FPIR_TARGETS if others.size else ():
        point = tpir_at_fpir(searches, target)
        identified = (places == 1) & (mates >= point.threshold)
        tpir = _share(identified, subjects).interval()
        realised = _share(alarming >= point.threshold, others).interval()
        if 0 < point.true_accepts < point.mated and point.false_accepts:
            # A mate that is not first is not found, however low the threshold.
            listed = np.where(places == 1, mates, np.float32(-np.inf))
            scores = np.concatenate([listed, alarming])
            of = np.unique(np.concatenate([subjects, others]), return_inverse=True)[1]
            scored = ScoredComparisons(scores, np.arange(scores.size) < listed.size, (of, of))
            tpir = scored.tpr_interval(scored.roc.tpr_at_fpr(target))
        found += TprEstimate.of(point, tpir, realised, ("TPIR", "FPIR", "searches")).figures()
    for rank in RANKS:
        found.append(("rank", Estimate.of_share(_share(places <= rank, subjects)), str(rank)))
    remarks = [] if others.size else ["every search is mated, so there is no FPIR"]
    lost = [int(np.isnan(row_norms(side)).sum()) for side in (mine, theirs)]
    if any(lost):
        remarks.append(
            f"{lost[0]} of {len(mine)} probes and {lost[1]} of {len(theirs)} entries have no "
            "vector; they find nobody and are never found"
        )
    return found, remarks


def _share(events: NDArray[np.bool_], subjects: NDArray[np.int64]) -> ClusteredShare:
    return ClusteredShare.from_pairs(events, subjects, subjects)
