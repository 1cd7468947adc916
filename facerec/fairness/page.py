"""The page and the figures of a demographic norm audit.

The page can be read without script; its only one moves the threshold slider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files

import jinja2
from markupsafe import Markup

from facerec.fairness import figures, one_to_many_page, tables
from facerec.fairness.channels import NormChannels
from facerec.fairness.findings import HEADLINE, Finding, verdict
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import NormSummary, NormTable
from facerec.fairness.rate_results import SCORE_EDGES, RatesAtThreshold
from facerec.fairness.result import Audit, GroupAudit
from facerec.report import words
from facerec.report.documents import provenance_of
from facerec.report.estimate import Estimate
from facerec.report.figures import Drawing, Drawings, Files, slug
from facerec.report.page import (
    Block,
    FindingLine,
    Folded,
    Heading,
    Listed,
    Page,
    Section,
    Terms,
    Text,
    Widget,
    printed,
)
from facerec.report.table import facts_table
from facerec.statistics.operating_points import RULE_OF_30

_SPOKEN = 12
"""Groups whose figures an alternative text gives."""
_LONG = 40
"""Rows from which on a table is folded."""
_MARKS = "Full marks: at least 30 errors; half: 3 to 29; hollow: fewer."
_RATES_CAPTION = (
    "FMR (left) and FNMR (right) at the global thresholds, errors/pairs beside. An arrow: no "
    f"error, the line ends at the upper limit. {_MARKS}"
)
_RATES = "Recognition at the global threshold"
"""Title of the section that others refer to."""

_TERMS = {
    "Match": "A pair whose cosine is at or above the threshold t. Mated (genuine) pairs show one "
    "subject, non-mated (impostor) pairs two.",
    "FMR, FNMR": "False matches over non-mated pairs, and false non-matches over mated pairs, of "
    "those with a score. FMR of a group counts pairs of two subjects of that group. Failures to "
    "acquire are counted apart.",
    "Global threshold": "One threshold for everybody, the lowest whose FMR does not exceed the "
    "target where it is fixed. Thresholds of single groups are a diagnostic and not deployable.",
    "Differential performance, differential outcome": "Groups differ in their score distributions; "
    "groups differ in FMR or FNMR at a threshold.",
    f"Resolvable; rule of {RULE_OF_30}": "A target is resolvable if the pairs leave room for one "
    f"error at it. Fewer than {RULE_OF_30} errors are few.",
    "●, ◐, ○": f"At least {RULE_OF_30} errors, 3 to {RULE_OF_30 - 1}, fewer: in tables, and as "
    "full, half and hollow marks in figures. That errors share subjects is in the interval and the "
    "effective n.",
    "Interval": "95 %. Those of rates allow for pairs that share subjects; the effective n is the "
    "number of independent pairs that would say as much. With no error the upper limit is that of "
    "as many independent trials as there are disjoint pairs of subjects.",
    "η², ω², ε²": "Share of the variance of subjects’ mean norms that lies between groups, "
    "SSB/SST; the same without its upward bias; the same of ranks, H/(G − 1).",
    "Cliff’s δ, Hodges–Lehmann shift, W₁": "P(X > Y) − P(X < Y); the median of all differences "
    "x − y; the area between both distribution functions over the pooled standard deviation.",
    "ICC(1), design effect": "Share of the variance of norms that lies between subjects; "
    "1 + (m − 1) · ICC, by which images of one subject inflate the variance of a mean, m images a "
    "subject.",
    "Minimum detectable effect": "The η² that Welch’s test finds with 80 % power at the 5 % level, "
    "whichever groups differ.",
    "Area under FDR": "The mean of FDR over the targets at which it has a value.",
    "EDC": "Error versus discard: FNMR of what remains as mated pairs of the lowest norms are left "
    "out, threshold fixed; pairs of equal norms leave together.",
    "[E]": "Exploratory: any test but the one declared in advance.",
}


def render(audit: Audit, command: str | None = None) -> Files:
    """Return ``report.html`` and ``figures/*.{svg,png}``; equal audits give equal bytes.

    The command line that led to the audit is for the record.
    """
    drawings = Drawings()
    of = "audit of scores" if audit.of_scores else "norm audit"
    names = ", ".join(grouping.name for grouping in audit.groupings)
    notes = [Listed(audit.warnings, "notes")] if audit.warnings else []
    page = Page(
        title=f"Demographic {of}: {names}",
        verdict=verdict(audit.findings),
        lead=f"{audit.lead}, by recorded group; facerec {audit.version}. Estimates have a 95 % "
        f"interval and their counts. Groups: {'. '.join(tables.group_sizes(audit))}.",
        findings=[_finding(finding) for finding in audit.findings],
        headline=[
            Text("Made by rule from the figures below. [E]: exploratory, not declared in advance."),
            *_headline(audit, drawings),
            *notes,
        ],
        sections=[*_sections(audit, drawings), _provenance(audit, command)],
        banner=audit.banner or "",
    )
    return {"report.html": page.render().encode(), **drawings.files}


# --- the head of the page ---------------------------------------------------------------------


def _finding(finding: Finding) -> FindingLine:
    """Return a line of the findings box."""
    return FindingLine(
        figure=finding.said,
        estimate="",
        conclusion=finding.conclusion,
        detail=finding.remark,
        basis=f"{finding.measured}{' [E]' if finding.exploratory else ''}",
    )


def _headline(audit: Audit, drawings: Drawings) -> list[Drawing]:
    """Draw what the findings on the primary attribute are about."""
    grouping = next((grouping for grouping in audit.groupings if grouping.primary), None)
    if grouping is None:
        return []
    point = tables.working_point(audit, grouping)
    if point is not None and not point.threshold.resolvable:
        point = None
    spoken = "" if point is None else _spoken_rates(point)
    if grouping.norms is None:
        rates = grouping.rates
        picture = None if isinstance(rates, NoComparison) else figures.rate_figure(rates)
        return drawings.draw("headline", picture, spoken, f"{grouping.name}: {_RATES_CAPTION}")
    caption = f"{grouping.name}: mean norm of each group less that of all groups"
    if point is not None:
        caption += (
            f"; FMR and FNMR at the global threshold of FMR {point.threshold.target}, errors/pairs "
            f"beside. {_MARKS.removesuffix('.')}"
        )
    means = _spoken(grouping.norms, lambda group: group.difference)
    alt = f"Mean norm of subjects less that of all groups: {means}. {spoken}".strip()
    picture = figures.headline_figure(grouping.norms, point)
    return drawings.draw("headline", picture, alt, f"{caption}.")


# --- the sections -----------------------------------------------------------------------------

_Describe = Callable[[Audit, GroupAudit, Drawings], Iterable[Block]]


def _sections(audit: Audit, drawings: Drawings) -> Iterator[Section]:
    def by_grouping(describe: _Describe) -> Iterator[Block]:
        for number, grouping in enumerate(audit.groupings, start=1):
            yield Heading(grouping.name)
            yield from describe(audit, grouping, drawings.of(f"{slug(number, grouping.name)}-"))

    blocks = [*by_grouping(_composition)]
    if audit.exclusions:
        blocks.append(tables.left_out_table(audit))
    for skipped in audit.skipped:
        blocks += [Heading(skipped.name), Text(f"Not shown: {skipped.reason}.")]
    yield Section(
        "Composition and sufficiency",
        blocks,
        "What the figures of each group rest on: ● at least 30 errors, ◐ 3 to 29, ○ fewer than 3.",
    )
    if not audit.of_scores:
        yield Section(
            "Norm distributions",
            [*by_grouping(_norms)],
            "Norms of raw embeddings; where image and mirror image were added, the mean of both "
            "norms. The subject is the unit of every interval; images of one "
            "subject are never taken for independent.",
        )
        yield Section(
            "Association of the norm with the recorded group",
            [*by_grouping(_association)],
            "Tests compare the mean norms of subjects. One test was declared in advance; all "
            "others are exploratory and marked E.",
        )
        yield Section(
            "Does the norm matter here?",
            [tables.channel_table(audit.channels), *by_grouping(_channels)],
            "Cosine scoring discards the norm. A norm that differs between groups changes "
            "decisions only through one of these channels.",
        )
    thresholds: Block = Text("There is no threshold, so there are no error rates.")
    if audit.thresholds:
        thresholds = tables.threshold_table(audit)
    yield Section(
        _RATES,
        [thresholds, *_slider(audit), *by_grouping(_rates)],
        "One threshold for everybody. FMR and FNMR of a group count pairs within the group.",
    )
    yield Section(
        "Differential summary",
        [*by_grouping(_differentials)],
        f"How far the rates of the groups lie apart, after the rates themselves in “{_RATES}”. "
        "Few errors give no ratio, and nothing is added to zeros without saying so.",
    )
    if audit.one_to_many is not None:
        yield one_to_many_page.section(audit.one_to_many, drawings)
    if not audit.of_scores:
        yield _comparison(audit, drawings)
    yield Section("Limitations", [Listed(audit.caveats)], "What these figures do not say.")
    yield Section("Glossary and formulas", [Terms(_TERMS), tables.measure_table()])


def _composition(audit: Audit, grouping: GroupAudit, drawings: Drawings) -> Iterator[Block]:
    yield tables.composition_table(audit, grouping)
    if isinstance(grouping.rates, NoComparison):
        yield Text(f"No error rates: {grouping.rates.reason}.")


def _norms(audit: Audit, grouping: GroupAudit, drawings: Drawings) -> Iterator[Block]:
    table, sample = grouping.norms, grouping.sample
    assert table is not None and sample is not None  # as this section is left out
    yield from drawings.draw(
        "norms",
        figures.violin_figure(sample, table),
        "Distributions of norms; mean of subjects’ means: "
        f"{_spoken(table, lambda group: group.subject_mean)}.",
        "Norms of images (left halves) and means of subjects in bins (right halves).",
    )
    yield from drawings.draw(
        "difference",
        figures.difference_figure(table),
        "Mean norm of subjects less that of all groups: "
        f"{_spoken(table, lambda group: group.difference)}.",
        "Forest of the mean of each group minus the grand mean.",
    )
    yield from drawings.draw(
        "ecdf",
        figures.ecdf_figure(sample, grouping.names),
        "Distribution functions of the norms of images, by group; the table has quantiles.",
        "Distribution functions over each other: the lower curve has the larger norms.",
    )
    yield from drawings.draw(
        "spread",
        figures.spread_figure(table),
        f"Coefficient of variation of norms: {_spoken(table, lambda group: group.cv)}.",
        "Forest of the spread, which the spherical embedding constraint reduces.",
    )
    yield tables.norm_table(table)
    components = tables.component_table(table)
    yield Folded("Quantiles, variance components and design effect", [components])


def _association(audit: Audit, grouping: GroupAudit, drawings: Drawings) -> Iterator[Block]:
    association = grouping.association
    if isinstance(association, NoComparison):
        yield Text(f"No comparison: {association.reason}.")
        return
    yield tables.effect_table(association, grouping.adjusted)
    if isinstance(grouping.adjusted, NoComparison):
        yield Text(f"No adjustment for covariates: {grouping.adjusted.reason}.")
    pairs = association.pairs
    spoken = "; ".join(
        f"{pair.first} against {pair.second} {_said(pair.delta)}" for pair in pairs[:_SPOKEN]
    )
    yield from drawings.draw(
        "delta",
        figures.delta_figure(association, grouping.names),
        f"Cliff’s delta: {spoken}.",
        "Cliff’s δ = P(X > Y) − P(X < Y) of subjects’ mean norms, row X against column Y.",
    )
    compared = words.counted(len(pairs), "pair")
    yield Folded(f"{compared} of groups compared", [tables.pair_table(association)])


def _channels(audit: Audit, grouping: GroupAudit, drawings: Drawings) -> Iterator[Block]:
    if isinstance(grouping.channels, NoComparison):
        yield Text(f"No figures on mated pairs: {grouping.channels.reason}.")
    else:
        yield from _mated(audit, grouping, grouping.channels, drawings)
    if isinstance(grouping.fusion, NoComparison):
        yield Text(f"Raw against unit fusion: not compared, {grouping.fusion.reason}.")
    else:
        fusion = tables.fusion_table(grouping.fusion)
        yield Folded("Raw against unit fusion of two views", [fusion])


def _mated(
    audit: Audit, grouping: GroupAudit, channels: NormChannels, drawings: Drawings
) -> Iterator[Block]:
    yield Text(
        f"{channels.pairs:,} mated pairs of {channels.subjects:,} subjects at the threshold of FMR "
        f"{audit.target} ({words.threshold(channels.threshold)}); the norm of a pair is the lesser "
        "of its two."
    )
    tenths = ", ".join(
        f"tenth {tenth.bin}: {words.percent(tenth.groups[0].fnmr.value)}" for tenth in channels.bins
    )
    yield from drawings.draw(
        "decile",
        figures.decile_figure(channels, grouping.names),
        f"FNMR by tenth of the norm, of all groups: {tenths}.",
        "FNMR by norm: the same tenths of all mated pairs for every group.",
    )
    whole = next(curve for curve in channels.curves if curve.group is None)
    yield from drawings.draw(
        "discard",
        figures.discard_figure(channels, grouping.names),
        f"Error versus discard of all groups: area to 20 % {whole.area:.4f}, "
        f"{whole.area_above_best:.4f} above the best possible curve.",
        "Error versus discard (EDC) at the fixed threshold. Marks: the common norm cuts that "
        "discard up to 1, 5, 10 and 20 % of all mated pairs. Dotted: no quality does better.",
    )
    yield tables.discard_table(channels)
    standardised = tables.standardised_table(channels.standardised)
    yield standardised or Text(f"FNMR at equal norms: {channels.standardised.reason}.")
    yield Folded(
        "FNMR before and after the common cuts, and rank correlation of norm and score",
        [tables.cut_table(channels), tables.correlation_table(channels)],
    )


def _rates(audit: Audit, grouping: GroupAudit, drawings: Drawings) -> Iterator[Block]:
    rates = grouping.rates
    if isinstance(rates, NoComparison):
        yield Text(f"No error rates: {rates.reason}.")
        return
    yield Text(f"Non-mated pairs: {rates.policy}.")
    heads = tables.head_points(audit, grouping)
    point = heads[0] if heads else None
    yield from drawings.draw(
        "rates",
        figures.rate_figure(rates),
        "FMR and FNMR of every group at every target that the data resolve. "
        + ("" if point is None else _spoken_rates(point)),
        _RATES_CAPTION,
    )
    yield from map(tables.rate_table, heads)
    yield from drawings.draw(
        "det",
        figures.det_figure(rates),
        "DET curves by group on probit axes; the tables have the rates at the marks.",
        "DET: trade-off of both error rates by group. Dashed lines join marks of one threshold.",
    )
    if point is not None:
        target = point.threshold.target
        yield from drawings.draw(
            "matrix",
            figures.matrix_figure(point, grouping.names),
            f"False matches between groups at target {target}; a table below has all cells.",
            f"log10 FMR between groups at target {target}: +1 is ten times as many. Grey: on "
            "target; red: above; blue: below; hatched: no false match among so many pairs.",
        )
    yield from drawings.draw(
        "scores",
        figures.score_figure(grouping.histograms, rates),
        "Histograms of non-mated and mated scores within each group, thresholds marked.",
        "Scores within each group; dotted lines are the global thresholds by target FMR.",
    )
    for other in rates.points:
        if other not in heads:
            table = tables.rate_table(other)
            yield Folded(f"Rates at target FMR {other.threshold.target}", [table])
    resolvable = [other for other in rates.points if other.threshold.resolvable]
    yield Folded(
        "False matches between groups",
        [tables.matrix_table(other, grouping.names) for other in resolvable],
    )


def _differentials(audit: Audit, grouping: GroupAudit, drawings: Drawings) -> Iterator[Block]:
    differentials = grouping.differentials
    if isinstance(differentials, NoComparison) or not differentials.rows:
        yield Text(f"No comparison: {differentials.reason}.")
        return
    yield from (Text(f"Left out: {sentence}.") for sentence in differentials.left_out)
    yield tables.differential_table(differentials, HEADLINE)
    spoken = "; ".join(
        f"{row.of} at {row.target} {row.value:.3g}"
        for row in differentials.rows
        if row.measure == HEADLINE and row.value is not None
    )
    yield from drawings.draw(
        "differentials",
        figures.differential_figure(differentials),
        f"Measures of differentials by target. {HEADLINE}: {spoken or 'none has a value'}.",
        "Ratios (top) and measures between 0 and 1 (bottom). A value beyond its grey tick differs "
        "more than 95 % of samples of groups with equal rates.",
    )
    everything = tables.differential_table(differentials)
    yield Folded(f"All {words.counted(len(everything.rows), 'figure')}", [everything])


def _comparison(audit: Audit, drawings: Drawings) -> Section:
    title = "Baseline and new model"
    if audit.comparison is None:
        return Section(title, [], "No baseline was given, so nothing is compared.")
    comparison = audit.comparison
    table = tables.change_table(comparison)
    picture = drawings.draw(
        "comparison",
        figures.comparison_figure(comparison.changes),
        "Changes from baseline to new model with intervals; the table has all figures.",
        "Changes from baseline to new model; every row has its own scale.",
    )
    return Section(
        title,
        [
            Listed([*comparison.reading, *comparison.notes]),
            *picture,
            table if len(table.rows) <= _LONG else Folded(f"{len(table.rows):,} changes", [table]),
        ],
        "The same images, pairs and subjects in both arms; thresholds fixed anew per model at the "
        f"same nominal FMR. Groups: {comparison.attribute}.",
    )


def _provenance(audit: Audit, command: str | None) -> Section:
    """Return the last section: what was audited, and how to do it again."""
    settings = audit.settings
    primary = f"η² of subjects’ mean norms by {settings.groups[0]}"
    audited = {
        "labels": "; ".join(audit.label_sources),
        "non-mated pairs": audit.policy,
        "threshold source": audit.thresholds[0].source if audit.thresholds else "no threshold",
        "primary test": "none: scores hold no norms" if audit.of_scores else primary,
        "data": f"{audit.lead}, {audit.failures:,} of them not acquired",
    }
    asked = {
        "command": command or "see MANIFEST.json beside this page",
        "groups": ", ".join(settings.groups) + (" and their intersection" * settings.intersect),
        "target FMRs": ", ".join(settings.targets),
        "non-mated pairs from": settings.impostors,
        "covariates": ", ".join(settings.covariates) or "none",
        "gating by norm, declared": "yes" if settings.gating else "no",
        "norm as confidence, declared": "yes" if settings.confidence else "no",
        "permutations": f"{settings.permutations:,}",
        "resamples": f"{settings.replicates:,}",
        "seed": str(settings.seed),
    }
    versions = {name: str(value) for name, value in provenance_of(None).items() if value}
    return Section(
        "Provenance",
        [
            facts_table("What was audited", audited),
            facts_table("Settings", asked),
            tables.input_table(audit.inputs),
            facts_table("Environment", versions),
            Text(
                "Beside this page: audit.json with all figures, tables as CSV, figures as SVG and "
                "PNG, and MANIFEST.json with the hashes of all inputs and outputs."
            ),
        ],
        "Equal inputs and seeds give equal bytes, so this page bears no date.",
    )


# --- the slider -------------------------------------------------------------------------------


def _slider(audit: Audit) -> list[Widget]:
    """Return the slider over thresholds; none without histograms."""
    groupings = [
        {
            "name": grouping.name,
            "groups": [
                {"name": group.name, "genuine": group.mated, "impostor": group.non_mated}
                for group in grouping.histograms
            ],
        }
        for grouping in audit.groupings
        if grouping.histograms
    ]
    if not groupings:
        return []
    thresholds = {
        threshold.target: threshold.value
        for threshold in audit.thresholds
        if threshold.resolvable and threshold.value is not None
    }
    low, bins = float(SCORE_EDGES[0]), SCORE_EDGES.size - 1
    step = float(SCORE_EDGES[1]) - low
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("facerec.fairness", "pages"),
        autoescape=True,
        finalize=printed,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    html = environment.get_template("slider.html.j2").render(
        groupings=groupings,
        thresholds=thresholds,
        last=bins - 1,
        low=low,
        high=low + step * (bins - 1),
        per_unit=round(1 / step),
    )
    script = files("facerec.fairness").joinpath("pages", "slider.js").read_text(encoding="utf-8")
    start = thresholds.get(audit.target or "", 0.0)
    data = {"low": low, "step": step, "start": start, "groupings": groupings}
    return [Widget(Markup(html), script, data)]


# --- words ------------------------------------------------------------------------------------


def _said(estimate: Estimate | None) -> str:
    if estimate is None or estimate.value is None:
        return "unknown"
    return f"{estimate.value:.4g} {words.limits(estimate.interval)}".strip()


def _spoken(table: NormTable, figure: Callable[[NormSummary], Estimate | None]) -> str:
    """Say a figure of the first groups."""
    said = [f"{group.name} {_said(figure(group))}" for group in table.groups[:_SPOKEN]]
    more = len(table.groups) - len(said)
    return "; ".join([*said, *([f"and {more} more groups"] if more else [])])


def _spoken_rates(point: RatesAtThreshold) -> str:
    """Say the rates of the first groups at a threshold."""
    said = [
        f"{group.name} FMR {words.number(group.fmr.value, '.2g')}, "
        f"FNMR {words.percent(group.fnmr.value)}"
        for group in point.groups[:_SPOKEN]
    ]
    return f"At target {point.threshold.target}: {'; '.join(said)}."
