"""The page and the figures of a demographic norm audit.

The page can be read without script; its only one moves the threshold slider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.figure import Figure

from facerec.fairness.association import (
    AdjustedAssociation,
    Association,
    NoComparison,
    SpreadTest,
)
from facerec.fairness.channels import Discarded, FusionChange, NormChannels
from facerec.fairness.differentials import MEASURES, Differential, Differentials
from facerec.fairness.figures import (
    comparison_figure,
    comparison_name,
    decile_figure,
    delta_figure,
    det_figure,
    difference_figure,
    differential_figure,
    discard_figure,
    ecdf_figure,
    headline_figure,
    matrix_figure,
    rate_figure,
    score_figure,
    spread_figure,
    violin_figure,
)
from facerec.fairness.findings import HEADLINE, Finding, verdict
from facerec.fairness.norms import NormTable
from facerec.fairness.rates import (
    SCORE_EDGES,
    ErrorRate,
    GroupRates,
    GroupThreshold,
    RatesAtThreshold,
)
from facerec.fairness.result import Audit, GroupAudit, InputFile
from facerec.report.blocks import Cell, Drawing, FindingLine, Table, render_page
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval
from facerec.statistics.operating_points import RULE_OF_30
from facerec.verification.page import assumptions, counted, data_uri, provenance_of, slug
from facerec.verification.plots import draw

Files = dict[str, bytes]
"""Path inside the report → contents."""

_SPOKEN = 12
"""Groups whose figures an alternative text gives."""
_LONG = 40
"""Rows from which on a table is folded."""
_OF_EMBEDDINGS = (3, 4, 5, 8)
"""Sections on norms and on a baseline, which scores do not have."""
_RATES_CAPTION = (
    "FMR (left) and FNMR (right) at the global thresholds, errors/pairs beside. An arrow: no "
    "error, the line ends at the upper limit. Full marks: at least 30 errors; half: 3 to 29; "
    "hollow: fewer."
)
_SUPPRESSED = "under ten subjects, or else such a cell would follow from totals"


@dataclass(frozen=True)
class Remark:
    """A sentence."""

    text: str
    kind: ClassVar[str] = "remark"


@dataclass(frozen=True)
class Listed:
    """Sentences, each of its own."""

    items: Sequence[str]
    kind: ClassVar[str] = "listed"


@dataclass(frozen=True)
class Folded:
    """What a reader unfolds."""

    summary: str
    blocks: Sequence[Table | Drawing]
    kind: ClassVar[str] = "folded"


@dataclass(frozen=True)
class Slider:
    """The place of the threshold slider."""

    kind: ClassVar[str] = "slider"


Block = Table | Drawing | Remark | Listed | Folded | Slider


@dataclass(frozen=True)
class Part:
    """What a section says about one grouping; without a title, about all."""

    title: str | None
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A numbered section of the page."""

    number: int
    title: str
    lead: str
    parts: Sequence[Part]


def render(audit: Audit, command: str | None = None) -> Files:
    """Return ``report.html`` and ``figures/*.{svg,png}``; equal audits give equal bytes.

    Args:
        audit: what to show.
        command: the command line that led to it, for the record.
    """
    figures = _Figures()
    page = render_page(
        "facerec.fairness",
        "audit.html.j2",
        "audit.css",
        "slider.js",
        title=f"Demographic {'audit of scores' if audit.of_scores else 'norm audit'}: "
        + ", ".join(part.name for part in audit.groupings),
        lead=f"{audit.lead}, by recorded group; facerec {audit.version}. Estimates have a 95 % "
        "interval and their counts.",
        banner=audit.banner,
        warnings=audit.warnings,
        verdict=verdict(audit.findings),
        findings=[_finding(finding) for finding in audit.findings],
        headline=_headline(audit, figures),
        sections=[
            section
            for section in _sections(audit, figures)
            if not audit.of_scores or section.number not in _OF_EMBEDDINGS
        ],
        provenance=_provenance(audit, command),
        slider=_slider(audit),
        measures=_measures(),
        rule=RULE_OF_30,
    )
    return {"report.html": page.encode(), **figures.files}


class _Figures:
    """Draws figures and keeps their files."""

    def __init__(self, prefix: str = "", files: Files | None = None) -> None:
        self.files: Files = {} if files is None else files
        self._prefix = prefix

    def of(self, prefix: str) -> _Figures:
        """Return the same, with a prefix to the names of figures."""
        return _Figures(prefix, self.files)

    def draw(self, name: str, figure: Figure | None, alt: str, caption: str) -> list[Drawing]:
        """Draw a figure as SVG and PNG and return the block that shows it; none if it is None."""
        if figure is None:
            return []
        picture = draw(figure, "svg")
        # Laid out once, it need not be again.
        figure.set_layout_engine("none")
        path = f"figures/{self._prefix}{name}"
        self.files |= {f"{path}.svg": picture, f"{path}.png": draw(figure, "png")}
        return [Drawing(data_uri("image/svg+xml", picture), alt, caption)]


# --- the head of the page ---------------------------------------------------------------------


def _finding(finding: Finding) -> FindingLine:
    """Return a line of the findings box."""
    basis = f"{finding.total:,} {finding.unit}"
    mark = " [E]" if finding.exploratory else ""
    return FindingLine(
        figure=f"{finding.grouping}: {finding.figure}{mark}",
        estimate="–" if finding.value is None else f"{finding.value:.3g}",
        limits="" if finding.interval is None else _limits(finding.interval),
        conclusion=finding.conclusion,
        detail=finding.remark,
        basis=basis if finding.p is None else f"{basis}, p = {finding.p:.2g}",
    )


def _headline(audit: Audit, figures: _Figures) -> list[Drawing]:
    """Draw what the findings on the primary attribute are about."""
    primary = [grouping for grouping in audit.groupings if grouping.primary]
    if not primary:
        return []
    (grouping,) = primary
    rates = grouping.rates
    point = None if isinstance(rates, NoComparison) else _working(audit, rates)
    if point is not None and not point.threshold.resolvable:
        point = None
    if grouping.norms is None:
        picture = None if isinstance(rates, NoComparison) else rate_figure(rates)
        alt = "" if point is None else _spoken_rates(point)
        return figures.draw("headline", picture, alt, f"{grouping.name}: {_RATES_CAPTION}")
    caption = f"{grouping.name}: mean norm of each group less that of all groups"
    if point is not None:
        caption += (
            f"; FMR and FNMR at the global threshold of FMR {point.threshold.target}, errors/pairs "
            "beside. Full marks: at least 30 errors; half: 3 to 29; hollow: fewer"
        )
    means = _spoken(grouping.norms, lambda group: group.difference or Estimate(None))
    alt = f"Mean norm of subjects less that of all groups: {means}."
    if point is not None:
        alt += f" {_spoken_rates(point)}"
    return figures.draw("headline", headline_figure(grouping.norms, point), alt, f"{caption}.")


# --- the sections -------------------------------------------------------------------------


def _sections(audit: Audit, figures: _Figures) -> Iterator[Section]:
    prefixes = [
        f"{slug(place, grouping.name)}-" for place, grouping in enumerate(audit.groupings, start=1)
    ]

    def parts(about: Callable[[Audit, GroupAudit, _Figures], Iterable[Block]]) -> list[Part]:
        if audit.of_scores and about in (_norms, _association, _channels):
            return []
        return [
            Part(grouping.name, list(about(audit, grouping, figures.of(prefix))))
            for grouping, prefix in zip(audit.groupings, prefixes, strict=True)
        ]

    yield Section(
        2,
        "Composition and sufficiency",
        "What the figures of each group rest on: ● at least 30 errors, ◐ 3 to 29, ○ fewer than 3.",
        [
            *parts(_composition),
            *([Part(None, [_left_out(audit)])] if audit.exclusions else []),
            *(Part(gone.name, [Remark(f"Not shown: {gone.reason}.")]) for gone in audit.skipped),
        ],
    )
    yield Section(
        3,
        "Norm distributions",
        "Norms of raw embeddings. The subject is the unit of every interval; images of one subject "
        "are never taken for independent.",
        parts(_norms),
    )
    yield Section(
        4,
        "Association of the norm with the recorded group",
        "Tests compare the mean norms of subjects. One test was declared in advance; all others "
        "are exploratory and marked E.",
        parts(_association),
    )
    yield Section(
        5,
        "Does the norm matter here?",
        "Cosine scoring discards the norm. A norm that differs between groups changes decisions "
        "only through one of these channels.",
        [Part(None, [_checklist(audit)]), *parts(_channels)],
    )
    yield Section(
        6,
        "Recognition at the global threshold",
        "One threshold for everybody. FMR and FNMR of a group count pairs within the group.",
        [Part(None, [_thresholds(audit), Slider()]), *parts(_rates)],
    )
    yield Section(
        7,
        "Differential summary",
        "How far the rates of the groups lie apart, after the rates themselves in section 6. "
        "Few errors give no ratio, and nothing is added to zeros without saying so.",
        parts(_differentials),
    )
    yield Section(8, "Baseline and treated model", *_comparison(audit, figures))
    yield Section(
        9,
        "Limitations",
        "What these figures do not say.",
        [Part(None, [Listed([*audit.caveats, *audit.warnings])])],
    )


def _left_out(audit: Audit) -> Table:
    rows = [
        [
            Cell(gone.reason, f"for {gone.attribute}" if gone.attribute else ""),
            Cell(f"{gone.images:,}"),
            Cell("–" if gone.subjects is None else f"{gone.subjects:,}"),
            Cell(", ".join(map(str, gone.places)) or "–", f"first {gone.place}s"),
        ]
        for gone in audit.exclusions
    ]
    columns = ["reason", "pairs" if audit.of_scores else "images", "subjects", "places"]
    return Table("Left out", columns, rows, words=["places"])


def _composition(audit: Audit, grouping: GroupAudit, figures: _Figures) -> Iterator[Block]:
    rates = grouping.rates
    point = None if isinstance(rates, NoComparison) else _working(audit, rates)
    rows = []
    for place, (name, count) in enumerate(zip(grouping.names, grouping.composition, strict=True)):
        cells = [Cell(name)]
        if count.subjects is not None:
            cells.append(Cell(f"{count.subjects:,}"))
        if count.subjects is not None and count.images is not None:
            cells += [
                Cell(f"{count.images:,}"),
                Cell(f"{count.images / count.subjects:.3g}"),
                Cell(_share(count.failed, count.images), f"{count.failed:,}/{count.images:,}"),
            ]
        if not isinstance(rates, NoComparison):
            part = rates.composition[place]
            finest = "–" if part.smallest_fmr is None else f"{part.smallest_fmr:.1e}"
            cells += [Cell(f"{part.mated:,}"), Cell(f"{part.non_mated:,}"), Cell(finest)]
        if point is not None:
            found = point.groups[place]
            cells += [_errors(found.fmr), _errors(found.fnmr)]
        rows.append(cells)
    caption, columns = "Pairs", ["group"]
    if audit.subjects is not None:
        caption, columns = "Subjects and pairs", ["group", "subjects"]
    if not audit.of_scores:
        caption = "Subjects, images and pairs"
        columns += ["images", "images per subject", "failures to acquire"]
    if not isinstance(rates, NoComparison):
        columns += ["mated pairs", "impostor pairs within", "smallest observable FMR"]
    if point is not None:
        columns += ["false matches", "false non-matches"]
        caption += f"; errors at target FMR {point.threshold.target}"
    hidden = Cell(f"suppressed: {_SUPPRESSED}", withheld=True, span=len(columns) - 1)
    rows += [[Cell(name), hidden] for name in grouping.suppressed]
    remarks = []
    if grouping.pooled:
        remarks.append(f"Pooled, as each has under ten subjects: {', '.join(grouping.pooled)}.")
    if not isinstance(rates, NoComparison):
        lost = [
            f"{part.name}: {part.lost_mated:,} mated and {part.lost_non_mated:,} impostor pairs"
            for part in rates.composition
            if part.lost_mated or part.lost_non_mated
        ]
        if lost:
            remarks.append(f"Pairs without a score, in no rate: {'; '.join(lost)}.")
        gone = rates.excluded
        if gone.mated or gone.non_mated or gone.unknown or gone.contradictory:
            remarks.append(
                f"Pairs left out: {gone.mated:,} mated and {gone.non_mated:,} impostor pairs with "
                f"an image without a group, {gone.unknown:,} with an image of nobody known, "
                f"{gone.contradictory:,} with a label that the subjects contradict."
            )
    yield Table(caption, columns, rows, remarks)
    if isinstance(rates, NoComparison):
        yield Remark(f"No error rates: {rates.reason}.")


def _norms(audit: Audit, grouping: GroupAudit, figures: _Figures) -> Iterator[Block]:
    table = grouping.norms
    assert table is not None and grouping.sample is not None  # as this section is left out
    means = _spoken(table, lambda group: group.subject_mean)
    differences = _spoken(table, lambda group: group.difference or Estimate(None))
    spreads = _spoken(table, lambda group: group.cv)
    yield from (
        figures.draw(
            "norms",
            violin_figure(grouping.sample, table),
            f"Distributions of norms; mean of subjects’ means: {means}.",
            "Norms of images (left halves) and means of subjects in bins (right halves).",
        )
        + figures.draw(
            "difference",
            difference_figure(table),
            f"Mean norm of subjects less that of all groups: {differences}.",
            "Forest of the mean of each group minus the grand mean.",
        )
        + figures.draw(
            "ecdf",
            ecdf_figure(grouping.sample, grouping.names),
            "Distribution functions of the norms of images, by group; the table has quantiles.",
            "Distribution functions over each other: the lower curve has the larger norms.",
        )
        + figures.draw(
            "spread",
            spread_figure(table),
            f"Coefficient of variation of norms: {spreads}.",
            "Forest of the spread, which the spherical embedding constraint reduces.",
        )
    )
    columns = [
        "group",
        "subjects",
        "images",
        "mean of subjects",
        "minus all groups",
        "mean of images",
        "SD",
        "CV",
    ]
    rows = [
        [
            Cell(group.name),
            Cell(f"{group.subjects:,}"),
            Cell(f"{group.images:,}"),
            _estimate(group.subject_mean),
            _estimate(group.difference),
            _estimate(group.mean),
            _estimate(group.sd),
            _estimate(group.cv),
        ]
        for group in (*table.groups, table.overall)
    ]
    methods = assumptions(group.subject_mean.interval for group in table.groups)
    drawn = f"{table.replicates:,} resamples of subjects, seed {table.seed}."
    yield Table("Norms by group", columns, rows, [*methods, drawn])
    yield Folded("Quantiles, variance components and design effect", [_components(table)])


def _components(table: NormTable) -> Table:
    quantiles = tuple(table.overall.quantiles)
    rows = [
        [
            Cell(group.name),
            *(_estimate(group.quantiles[name]) for name in quantiles),
            _estimate(group.between_sd),
            _estimate(group.within_sd),
            _estimate(group.icc),
            Cell(f"{group.images_per_subject:.3g}"),
            Cell("–" if group.design_effect is None else f"{group.design_effect:.3g}"),
            Cell("–" if group.effective_images is None else f"{group.effective_images:,.0f}"),
        ]
        for group in (*table.groups, table.overall)
    ]
    columns = [
        "group",
        *quantiles,
        "SD between subjects",
        "SD within subjects",
        "ICC(1)",
        "m",
        "design effect",
        "effective images",
    ]
    return Table("Quantiles over images and variance components", columns, rows)


def _association(audit: Audit, grouping: GroupAudit, figures: _Figures) -> Iterator[Block]:
    found = grouping.association
    if isinstance(found, NoComparison):
        yield Remark(f"No comparison: {found.reason}.")
        return
    yield _association_table(found, grouping.adjusted)
    if isinstance(grouping.adjusted, NoComparison):
        yield Remark(f"No adjustment for covariates: {grouping.adjusted.reason}.")
    spoken = "; ".join(
        f"{pair.first} against {pair.second} {_plain(pair.delta)}" for pair in found.pairs[:_SPOKEN]
    )
    yield from figures.draw(
        "delta",
        delta_figure(found, grouping.names),
        f"Cliff’s delta: {spoken}.",
        "Cliff’s δ = P(X > Y) − P(X < Y) of subjects’ mean norms, row X against column Y.",
    )
    rows = [
        [
            Cell(f"{pair.first} − {pair.second}"),
            Cell(f"{pair.subjects[0]:,} + {pair.subjects[1]:,}"),
            _estimate(pair.delta),
            _estimate(pair.shift),
            _estimate(pair.wasserstein),
            Cell(_p(pair.p)),
            Cell(_p(pair.p_holm)),
            Cell(_p(pair.equivalence_p), "equivalent" if pair.equivalent else ""),
        ]
        for pair in found.pairs
    ]
    columns = [
        "groups",
        "subjects",
        "Cliff’s δ",
        "Hodges–Lehmann shift",
        "W₁ / pooled SD",
        "p [E]",
        "p, Holm [E]",
        f"p of |δ| ≥ {found.bound:g} [E]",
    ]
    methods = assumptions(
        estimate.interval
        for pair in found.pairs
        for estimate in (pair.delta, pair.shift, pair.wasserstein)
    )
    table = Table("All pairs of groups", columns, rows, methods)
    yield Folded(f"{counted(len(rows), 'pair')} of groups compared", [table])


def _association_table(
    found: Association, adjusted: AdjustedAssociation | NoComparison | None
) -> Table:
    mark = "" if found.role == "primary" else " [E]"
    rows = [
        [
            Cell(f"η²{mark}", "declared in advance" if not mark else ""),
            _estimate(found.eta2),
            Cell(_p(found.p)),
            Cell(
                _welch(found.welch_f),
                f"{found.permutations:,} permutations over subjects, seed {found.seed}",
            ),
        ],
        [Cell("ω² [E]"), _estimate(found.omega2), Cell("–"), Cell("η² without its upward bias")],
        [
            Cell("ε² [E]", f"without bias {found.eta2_h:.3g}"),
            _estimate(found.epsilon2),
            Cell(_p(found.rank_p)),
            Cell("Welch’s F of ranks, permuted", f"Kruskal–Wallis H = {found.kruskal_h:.4g}"),
        ],
        _spread_row("spread between subjects", found.spread_between),
        _spread_row("spread within subjects", found.spread_within),
    ]
    if isinstance(adjusted, AdjustedAssociation):
        wald = "–" if adjusted.wald_f is None else f"{adjusted.wald_f:.4g}"
        before = "" if adjusted.eta2.value is None else f"η² before {adjusted.eta2.value:.3g}"
        rows.append(
            [
                Cell(f"partial η² given {', '.join(adjusted.covariates)} [E]", before),
                _estimate(adjusted.partial_eta2),
                Cell(_p(adjusted.p)),
                Cell(
                    f"clustered Wald F = {wald}, df {adjusted.df[0]:g}, {adjusted.df[1]:.1f}",
                    f"{adjusted.images:,} images, {adjusted.dropped:,} without a covariate",
                ),
            ]
        )
    remarks = [f"{found.subjects:,} subjects."]
    if found.mde_eta2 is not None:
        remarks.append(f"Minimum detectable effect (80 % power, 5 % level): {found.mde_eta2:.2g}.")
    remarks += assumptions([found.eta2.interval])
    remarks.append(
        f"Equivalence of all pairs within |δ| < {found.bound:g}: p = {_p(found.equivalence_p)}, "
        + ("established." if found.equivalent else "not established.")
    )
    columns = ["effect", "estimate [95 %]", "p", "test"]
    return Table("Effects and tests", columns, rows, remarks, words=["test"])


def _spread_row(name: str, test: SpreadTest | None) -> list[Cell]:
    if test is None:
        return [Cell(f"{name} [E]"), Cell("–"), Cell("–"), Cell("each subject has one image")]
    return [
        Cell(f"{name} [E]"),
        Cell("–"),
        Cell(_p(test.p)),
        Cell(f"{_welch(test.f)} of deviations", f"{test.subjects:,} subjects"),
    ]


def _welch(f: float | None) -> str:
    return "Welch’s F" if f is None else f"Welch’s F = {f:.4g}"


def _checklist(audit: Audit) -> Table:
    words = {True: "active", False: "not active", None: "cannot be told"}
    rows = [
        [Cell(channel.name), Cell(words[channel.active]), Cell(channel.evidence)]
        for channel in audit.channels
    ]
    columns = ["channel", "in this run", "evidence"]
    return Table("Channels from norm to decision", columns, rows, words=columns)


def _channels(audit: Audit, grouping: GroupAudit, figures: _Figures) -> Iterator[Block]:
    found = grouping.channels
    if isinstance(found, NoComparison):
        yield Remark(f"No figures on mated pairs: {found.reason}.")
    else:
        yield from _mated(audit, grouping, found, figures)
    if isinstance(grouping.fusion, NoComparison):
        yield Remark(f"Raw against unit fusion: not compared, {grouping.fusion.reason}.")
    else:
        yield Folded("Raw against unit fusion of two views", [_fusion(grouping.fusion)])


def _mated(
    audit: Audit, grouping: GroupAudit, found: NormChannels, figures: _Figures
) -> Iterator[Block]:
    yield Remark(
        f"{found.pairs:,} mated pairs of {found.persons:,} subjects at the threshold of FMR "
        f"{audit.target} ({found.threshold:.4g}); the norm of a pair is the lesser of its two."
    )
    whole = next(curve for curve in found.curves if curve.group is None)
    yield from (
        figures.draw(
            "decile",
            decile_figure(found, grouping.names),
            "FNMR by tenth of the norm, of all groups: "
            + ", ".join(
                f"tenth {part.bin}: {_percent(part.groups[0].fnmr.value)}" for part in found.bins
            )
            + ".",
            "FNMR by norm: the same tenths of all mated pairs for every group.",
        )
        + figures.draw(
            "discard",
            discard_figure(found, grouping.names),
            f"Error versus discard of all groups: area to 20 % {whole.area:.4f}, "
            f"{whole.area_above_best:.4f} above the best possible curve.",
            "Error versus discard (EDC) at the fixed threshold. Marks: the common norm cuts that "
            "discard up to 1, 5, 10 and 20 % of all mated pairs. Dotted: no quality does better.",
        )
    )
    yield Table(
        "Share of each group that a common norm cut discards",
        ["group", *(f"cut at {100 * float(cut.share):g} %" for cut in found.cuts)],
        [
            [
                Cell(found.cuts[0].groups[place].group or "all groups"),
                *(_cut(cut.groups[place].images) for cut in found.cuts),
            ]
            for place in _all_last(len(grouping.names))
        ],
        [
            "Images below the cut among the images of mated pairs. Norms: "
            + ", ".join(f"{cut.norm:.4g}" for cut in found.cuts)
            + "."
        ],
    )
    gap = found.standardised
    if gap.raw_gap is None or gap.standardised_gap is None or gap.change is None:
        yield Remark(f"FNMR at equal norms: {gap.reason}.")
    else:
        rows = [
            [Cell(group.group), _contrast(group.raw), _contrast(group.standardised)]
            for group in gap.groups
        ]
        rows.append(
            [Cell("highest − lowest"), _contrast(gap.raw_gap), _contrast(gap.standardised_gap)]
        )
        change = _contrast(gap.change)
        said = f"Change of the gap: {change.text} {change.small or '(no interval)'}."
        support = (
            f"{counted(gap.bins, 'norm bin')} with {_percent(gap.support)} of the mated pairs."
        )
        yield Table(
            "FNMR as it is, and if all groups had the same norms",
            ["group", "as it is", "at equal norms"],
            rows,
            [said, support, f"{gap.method}."],
        )
    yield Folded(
        "FNMR before and after the common cuts, and rank correlation of norm and score",
        [_cuts(found), _correlations(found)],
    )


def _all_last(groups: int) -> list[int]:
    """Return the places of figures of which the first is that of all groups."""
    return [*range(1, groups + 1), 0]


def _cuts(found: NormChannels) -> Table:
    rows = [
        [
            Cell(part.group or "all groups", f"cut at {100 * float(cut.share):g} %"),
            _cut(part.pairs),
            _rate(part.before),
            _rate(part.after),
        ]
        for cut in found.cuts
        for part in (cut.groups[place] for place in _all_last(len(cut.groups) - 1))
    ]
    columns = ["group", "mated pairs discarded", "FNMR before", "FNMR after"]
    return Table("FNMR before and after a common norm cut", columns, rows)


def _correlations(found: NormChannels) -> Table:
    rows = [
        [
            Cell(part.group or "all groups"),
            Cell("–", part.remark, withheld=True)
            if part.value is None
            else Cell(f"{part.value:.3g}", _limits(part.interval) or part.remark),
            Cell(f"{part.total:,}"),
            Cell(f"{part.subjects:,}"),
        ]
        for part in (*found.correlations[1:], found.correlations[0])
    ]
    columns = ["group", "Spearman’s ρ [E]", "mated pairs", "subjects"]
    methods = assumptions(part.interval for part in found.correlations)
    return Table("Lesser norm and score of mated pairs", columns, rows, methods)


def _fusion(changes: Sequence[FusionChange]) -> Table:
    rows = [
        [
            Cell(change.group or "all groups", f"{change.of} at target {change.target}"),
            _rate(change.raw),
            _rate(change.unit),
            Cell("–", withheld=True)
            if change.value is None
            else Cell(f"{change.value:+.2g}", _limits(change.interval)),
        ]
        for change in changes
    ]
    columns = ["group", "raw fusion", "unit fusion", "unit − raw"]
    methods = assumptions(change.interval for change in changes)
    return Table("Raw and unit fusion, each at its own global threshold", columns, rows, methods)


def _thresholds(audit: Audit) -> Block:
    if not audit.thresholds:
        return Remark("There is no threshold, so there are no error rates.")
    rows = [
        [
            Cell(
                found.target, "used above and in findings" if found.target == audit.target else ""
            ),
            Cell("–", found.reason or "", withheld=True)
            if found.value is None
            else Cell(f"{found.value:.4g}"),
            Cell(f"{found.false_matches:,}/{found.non_mated:,}"),
            _sufficiency(resolvable=found.resolvable, reliable=found.reliable),
        ]
        for found in audit.thresholds
    ]
    columns = ["target FMR", "threshold", "false matches where it was fixed", "sufficiency"]
    return Table(f"Global thresholds: {audit.thresholds[0].source}", columns, rows)


def _sufficiency(*, resolvable: bool, reliable: bool) -> Cell:
    if not resolvable:
        return Cell("not resolvable", withheld=True)
    return Cell("at least 30 errors" if reliable else "few errors")


def _rates(audit: Audit, grouping: GroupAudit, figures: _Figures) -> Iterator[Block]:
    found = grouping.rates
    if isinstance(found, NoComparison):
        yield Remark(f"No error rates: {found.reason}.")
        return
    yield Remark(f"Impostors: {found.policy}.")
    point = _working(audit, found)
    yield from figures.draw(
        "rates",
        rate_figure(found),
        "FMR and FNMR of every group at every target that the data resolve. "
        + ("" if point is None else _spoken_rates(point)),
        _RATES_CAPTION,
    )
    if point is not None:
        yield _rate_table(point)
    pictures = figures.draw(
        "det",
        det_figure(found),
        "DET curves by group on probit axes; the tables have the rates at the marks.",
        "DET: trade-off of both error rates by group. Dashed lines join marks of one threshold.",
    )
    if point is not None:
        pictures += figures.draw(
            "matrix",
            matrix_figure(point, grouping.names),
            f"False matches between groups at target {point.threshold.target}; a table below has "
            "all cells.",
            f"log10 FMR between groups at target {point.threshold.target}: +1 is ten times as "
            "many. Grey: on target; red: above; blue: below; hatched: no false match among so "
            "many pairs.",
        )
    yield from pictures
    yield from figures.draw(
        "scores",
        score_figure(grouping.histograms, found),
        "Histograms of impostor and genuine scores within each group, thresholds marked.",
        "Scores within each group; dotted lines are the global thresholds by target FMR.",
    )
    for other in found.points:
        if other is not point:
            yield Folded(f"Rates at target FMR {other.threshold.target}", [_rate_table(other)])
    yield Folded(
        "False matches between groups",
        [_matrix(other, grouping.names) for other in found.points if other.threshold.resolvable],
    )


def _rate_table(point: RatesAtThreshold) -> Table:
    target = point.threshold.target
    caption = f"Rates at the global threshold of FMR {target}"
    columns = ["group", "FMR within the group", "FNMR", "own threshold", "TMR at it"]
    if not point.threshold.resolvable:
        few = f"not resolvable with {point.threshold.non_mated:,} impostor pairs"
        return Table(caption, columns, [[Cell("all groups"), Cell(few, withheld=True, span=4)]])
    rows = [
        [Cell(group.name), _fmr(group.fmr), _rate(group.fnmr), *_own(group.own_threshold)]
        for group in point.groups
    ]
    rows.append([Cell("all pairs"), _fmr(point.fmr), _rate(point.fnmr), Cell("–"), Cell("–")])
    rates = [rate for group in point.groups for rate in (group.fmr, group.fnmr)]
    remarks = [
        f"The last two columns are a {point.groups[0].own_threshold.use}.",
        *assumptions(rate.interval for rate in rates),
    ]
    return Table(caption, columns, rows, remarks)


def _own(found: GroupThreshold) -> list[Cell]:
    if found.value is None or found.tmr.value is None:
        hidden = Cell("–", found.reason or "", withheld=True)
        return [hidden, Cell("–", withheld=True)]
    counts = f"{found.false_matches:,}/{found.non_mated:,} false matches"
    return [
        Cell(f"{found.value:.4g}", counts),
        Cell(_percent(found.tmr.value), _limits(found.tmr.interval, 100)),
    ]


def _matrix(point: RatesAtThreshold, names: Sequence[str]) -> Table:
    matrix, rows = point.matrix, []
    for i, first in enumerate(names):
        for j, second in enumerate(names[: i + 1]):
            cell, log10 = matrix.cells[i][j], matrix.log10[i][j]
            rows.append(
                [
                    Cell(first if i == j else f"{first} – {second}"),
                    Cell(
                        "–" if cell.value is None else f"{cell.value:.2g}", _limits(cell.interval)
                    ),
                    Cell("–", withheld=True) if log10 is None else Cell(f"{log10:.2f}"),
                    Cell(f"{cell.events:,}/{cell.total:,}"),
                ]
            )
    caption = f"Target FMR {point.threshold.target}"
    return Table(caption, ["groups", "FMR", "log10 FMR", "false matches"], rows)


def _differentials(audit: Audit, grouping: GroupAudit, figures: _Figures) -> Iterator[Block]:
    found = grouping.differentials
    if isinstance(found, NoComparison) or not found.rows:
        yield Remark(f"No comparison: {found.reason}.")
        return
    yield from (Remark(f"Left out: {sentence}.") for sentence in found.left_out)
    headline = [row for row in found.rows if row.measure == HEADLINE]
    yield _measure_table(f"Headline: {HEADLINE}", headline, found, defined=False)
    spoken = "; ".join(
        f"{row.of} at {row.target} {row.value:.3g}" for row in headline if row.value is not None
    )
    yield from figures.draw(
        "differentials",
        differential_figure(found),
        f"Measures of differentials by target. {HEADLINE}: {spoken or 'none has a value'}.",
        "Ratios (top) and measures between 0 and 1 (bottom). A value beyond its grey tick differs "
        "more than 95 % of samples of groups with equal rates.",
    )
    yield Folded(
        f"All {counted(len(found.rows), 'figure')} with definitions",
        [_measure_table("All measures", found.rows, found, defined=True)],
    )


def _measure_table(
    caption: str, rows: Sequence[Differential], found: Differentials, *, defined: bool
) -> Table:
    cells = [
        [
            Cell(f"{row.measure}, {row.of}", row.definition if defined else ""),
            Cell(row.target),
            Cell("–", withheld=True)
            if row.value is None
            else Cell(f"{row.value:.4g}", _limits(row.interval)),
            Cell(_p(row.p_value)),
            Cell("–" if row.at_parity is None else f"{row.at_parity:.4g}"),
            Cell(row.mark),
            Cell(_why(row)),
        ]
        for row in rows
    ]
    remarks = [
        "p: how often groups of equal rates would differ as much or more; 5 % of them lie beyond "
        "“equal rates reach”. All are exploratory [E].",
        f"Joint resample of all {'pairs' if found.independent else 'subjects'}, "
        f"{found.replicates:,} replicates, seed {found.seed}.",
        *assumptions(row.interval for row in rows),
    ]
    columns = [
        "measure",
        "target FMR",
        "value [95 %]",
        "p [E]",
        "equal rates reach",
        "fewest errors",
        "remark",
    ]
    return Table(caption, columns, cells, remarks, words=["remark"])


def _why(row: Differential) -> str:
    """Say what is missing and why; what is closer to equal rates where nothing is."""
    said = [row.remark] if row.remark else []
    if row.smoothed is not None:
        said.append(f"{row.smoothed:.4g} of rates smoothed to (k + ½)/(N + 1)")
    return "; ".join(said) or f"{row.better} is closer to equal rates"


def _comparison(audit: Audit, figures: _Figures) -> tuple[str, list[Part]]:
    """Return the lead and the parts of section 8."""
    if audit.comparison is None:
        return "No baseline was given, so nothing is compared.", []
    found = audit.comparison.to_json()
    rows = [
        [
            Cell(comparison_name(row), row["role"]),
            *(_number(row[arm]) for arm in ("baseline", "treated")),
            _changed(row),
            Cell(_ends(row["seeds_low"], row["seeds_high"]) or "–"),
            Cell("–" if row["change"] is None else f"{row['same_sign']} of {row['seeds']}"),
            Cell(row["conclusion"]),
        ]
        for row in found["rows"]
    ]
    columns = [
        "figure",
        "baseline",
        "treated",
        "change [95 %]",
        "over seeds alone",
        "seeds of one sign",
        "conclusion",
    ]
    remarks = [
        f"{found['images']:,} images of {found['persons']:,} subjects, {found['left_out']:,} "
        f"images left out; error rates: {found['policy']}; {found['replicates']:,} joint resamples "
        f"of subjects, seed {found['seed']}."
    ]
    picture = figures.draw(
        "comparison",
        comparison_figure(found["rows"]),
        "Changes from baseline to treated with intervals; the table has all figures.",
        "Changes from baseline to treated; every row has its own scale.",
    )
    lead = (
        "The same images, pairs and subjects in both arms; thresholds fixed anew per model at the "
        f"same nominal FMR. Groups: {found['attribute']}."
    )
    table = Table("Changes", columns, rows, remarks, words=["conclusion"])
    changes = table if len(rows) <= _LONG else Folded(counted(len(rows), "change"), [table])
    return lead, [Part(None, [Listed([*found["reading"], *found["notes"]]), *picture, changes])]


def _changed(row: Mapping[str, Any]) -> Cell:
    reason = row["reason"] or ""
    if row["change"] is None:
        return Cell("–", reason, withheld=True)
    return Cell(f"{row['change']:+.3g}", _ends(row["low"], row["high"]) or reason)


def _provenance(audit: Audit, command: str | None) -> Section:
    """Return the last section: what was audited, and how to do it again."""
    settings = audit.settings
    facts = [
        ("labels", "; ".join(audit.label_sources)),
        ("impostor pairs", audit.policy),
        ("threshold source", audit.thresholds[0].source if audit.thresholds else "no threshold"),
        (
            "primary test",
            "none: scores hold no norms"
            if audit.of_scores
            else f"η² of subjects’ mean norms by {settings.groups[0]}",
        ),
        ("data", f"{audit.lead}, {audit.failures:,} of them not acquired"),
    ]
    asked = [
        ("command", command or "see MANIFEST.json beside this page"),
        ("groups", ", ".join(settings.groups) + (" and their intersection" * settings.intersect)),
        ("target FMRs", ", ".join(settings.targets)),
        ("impostors", settings.impostors),
        ("covariates", ", ".join(settings.covariates) or "none"),
        ("gating by norm, declared", "yes" if settings.gating else "no"),
        ("norm as confidence, declared", "yes" if settings.confidence else "no"),
        ("permutations", f"{settings.permutations:,}"),
        ("resamples", f"{settings.replicates:,}"),
        ("seed", str(settings.seed)),
    ]
    inputs = [
        [Cell(file.role, file.name), Cell(file.sha256), Cell(_details(file) or "–")]
        for file in audit.inputs
    ]
    versions = [
        (name, str(value)) for name, value in provenance_of(None).items() if value is not None
    ]
    blocks: list[Block] = [
        _facts("What was audited", facts),
        _facts("Settings", asked),
        Table("Inputs", ["file", "SHA-256", "details"], inputs, words=["SHA-256", "details"]),
        _facts("Environment", versions),
        Remark(
            "Beside this page: audit.json with all figures, tables as CSV, figures as SVG and PNG, "
            "and MANIFEST.json with the hashes of all inputs and outputs."
        ),
    ]
    lead = "Equal inputs and seeds give equal bytes, so this page bears no date."
    return Section(11, "Provenance", lead, [Part(None, blocks)])


def _measures() -> Table:
    rows = [
        [Cell(f"{measure.name}, {measure.of}"), Cell(measure.definition), Cell(measure.better)]
        for measure in MEASURES
    ]
    columns = ["measure", "definition", "better"]
    return Table("Measures of differentials", columns, rows, words=columns)


# --- the slider -------------------------------------------------------------------------------


def _slider(audit: Audit) -> dict[str, Any] | None:
    """Return what the slider shows and computes from; None without histograms."""
    groupings = [
        {
            "name": grouping.name,
            "groups": [
                {"name": found.name, "genuine": found.genuine, "impostor": found.impostor}
                for found in grouping.histograms
            ],
        }
        for grouping in audit.groupings
        if grouping.histograms
    ]
    if not groupings:
        return None
    thresholds = [
        {"target": found.target, "value": found.value, "text": f"{found.value:.4g}"}
        for found in audit.thresholds
        if found.resolvable and found.value is not None
    ]
    start = next((x["value"] for x in thresholds if x["target"] == audit.target), 0.0)
    low, bins = float(SCORE_EDGES[0]), SCORE_EDGES.size - 1
    step = float(SCORE_EDGES[1]) - low
    return {
        "data": {"low": low, "step": step, "start": start, "groupings": groupings},
        "groupings": groupings,
        "thresholds": thresholds,
        "last": bins - 1,
        "low": low,
        "high": low + step * (bins - 1),
        "step": step,
        "per_unit": round(1 / step),
    }


# --- words and cells --------------------------------------------------------------------------


def _working(audit: Audit, rates: GroupRates) -> RatesAtThreshold | None:
    """Return the rates at the target of findings and channels, if there is one."""
    found = [point for point in rates.points if point.threshold.target == audit.target]
    return found[0] if found else None


def _facts(caption: str, facts: Iterable[tuple[str, str]]) -> Table:
    rows = [[Cell(name), Cell(value)] for name, value in facts]
    return Table(caption, ["fact", "value"], rows, words=["value"])


def _estimate(found: Estimate | None) -> Cell:
    if found is None:
        return Cell("–")
    if found.value is None:
        return Cell("–", found.remark, withheld=True)
    return Cell(f"{found.value:.4g}", _limits(found.interval) or found.remark)


def _rate(rate: ErrorRate) -> Cell:
    """Return a rate in percent with interval, mark and counts."""
    if rate.value is None:
        return Cell("–", rate.remark, withheld=True)
    return Cell(_percent(rate.value), _basis(rate, _limits(rate.interval, 100)))


def _fmr(rate: ErrorRate) -> Cell:
    """Return a rate as a number, as it may be very small."""
    if rate.value is None:
        return Cell("–", rate.remark, withheld=True)
    return Cell(f"{rate.value:.2g}", _basis(rate, _limits(rate.interval)))


def _basis(rate: ErrorRate, limits: str) -> str:
    counts = f"{rate.mark}\N{NO-BREAK SPACE}{rate.events:,}/{rate.total:,}"
    parts = [limits or rate.remark, counts]
    if rate.effective is not None:
        parts.append(f"effective\N{NO-BREAK SPACE}n\N{NO-BREAK SPACE}{rate.effective:,.0f}")
    return "\n".join(filter(None, parts))


def _errors(rate: ErrorRate) -> Cell:
    return Cell(f"{rate.mark} {rate.events:,}", f"of {rate.total:,}")


def _cut(found: Discarded) -> Cell:
    limits = _limits(found.interval, 100)
    counts = f"{found.events:,}/{found.total:,}"
    return Cell(_percent(found.value), "\n".join(filter(None, (limits, counts))))


def _contrast(found: Estimate) -> Cell:
    return Cell(_percent(found.value), _limits(found.interval, 100))


def _number(value: float | None) -> Cell:
    return Cell("–", withheld=True) if value is None else Cell(f"{value:.3g}")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


def _share(count: int, total: int) -> str:
    return _percent(count / total if total else None)


def _limits(interval: Interval | None, scale: float = 1.0) -> str:
    return "" if interval is None else _ends(scale * interval.low, scale * interval.high)


def _ends(low: float | None, high: float | None) -> str:
    # No line break within: in a narrow column the two limits would come apart.
    return "" if low is None or high is None else f"[{low:.3g},\N{NO-BREAK SPACE}{high:.3g}]"


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def _details(file: InputFile) -> str:
    return "; ".join(f"{key}: {_said(value)}" for key, value in file.details.items())


def _plain(found: Estimate) -> str:
    return (
        "unknown" if found.value is None else f"{found.value:.4g} {_limits(found.interval)}".strip()
    )


def _spoken(table: NormTable, figure: Callable[[Any], Estimate]) -> str:
    """Say a figure of the first groups."""
    said = [f"{group.name} {_plain(figure(group))}" for group in table.groups[:_SPOKEN]]
    more = len(table.groups) - len(said)
    return "; ".join([*said, *([f"and {more} more groups"] if more else [])])


def _spoken_rates(point: RatesAtThreshold) -> str:
    """Say the rates of the first groups at a threshold."""
    said = [
        f"{group.name} FMR {_fmr(group.fmr).text}, FNMR {_percent(group.fnmr.value)}"
        for group in point.groups[:_SPOKEN]
    ]
    return f"At target {point.threshold.target}: {'; '.join(said)}."


def _said(value: Any) -> str:
    """Say a JSON value in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_said(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_said, value)) or "none"
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
