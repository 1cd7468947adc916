"""Tables of an audit: what a page shows of them, and what files have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from facerec.fairness.association import Association, PairDifference
from facerec.fairness.attributes import ALL_GROUPS, NO_VALUE, Exclusion, GroupCount
from facerec.fairness.baseline import BaselineComparison, Change
from facerec.fairness.channels import (
    Channel,
    CommonCut,
    FusionChange,
    GroupCut,
    NormChannels,
    NormCorrelation,
    StandardisedGap,
)
from facerec.fairness.covariates import AdjustedAssociation
from facerec.fairness.differentials import MEASURES, Differential, Differentials
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import NormSummary, NormTable
from facerec.fairness.plain import flat, plain
from facerec.fairness.rate_results import (
    ErrorRate,
    GlobalThreshold,
    GroupRates,
    GroupThreshold,
    RatesAtThreshold,
)
from facerec.fairness.result import Audit, GroupAudit, InputFile
from facerec.report import words
from facerec.report.estimate import Estimate
from facerec.report.table import Cell, Column, Spanning, Table, text_table

SUPPRESSED = "under ten subjects, or else such a cell would follow from totals"
"""Why figures of a group are not shown."""


# --- composition ------------------------------------------------------------------------------


def group_sizes(audit: Audit) -> list[str]:
    """Return a line an attribute: its groups with their sizes, and who has no recorded value."""
    thing, lines = "pair" if audit.of_scores else "image", []
    for grouping in audit.groupings:
        things = [count.images for count in grouping.composition]
        if audit.of_scores and isinstance(grouping.rates, GroupRates):
            things = [pairs.mated + pairs.non_mated for pairs in grouping.rates.composition]
        counts = zip(grouping.names, grouping.composition, things, strict=True)
        sizes = [_size(name, count.subjects, number, thing) for name, count, number in counts]
        sizes += [f"{name} (suppressed)" for name in grouping.suppressed]
        if grouping.name in audit.settings.groups:
            of_it = (gone for gone in audit.exclusions if gone.attribute == grouping.name)
            without = (gone for gone in of_it if gone.reason == NO_VALUE)
            gone = next(without, Exclusion(NO_VALUE, 0, 0))
            sizes.append(_size("no recorded value", gone.subjects, gone.images, thing))
        lines.append(f"{grouping.name}: {', '.join(sizes)}")
    return lines


def _size(name: str, subjects: int | None, things: int | None, thing: str) -> str:
    counts = ((subjects, "subject"), (things, thing))
    said = [words.counted(count, noun) for count, noun in counts if count is not None]
    return f"{name} ({', '.join(said)})" if said else name


def left_out_table(audit: Audit) -> Table[Exclusion]:
    """Return what was left out, and where the first of it stands in the input."""
    columns: list[Column[Exclusion]] = [
        Column("reason", lambda x: Cell(x.reason, f"for {x.attribute}" if x.attribute else "")),
        Column("pairs" if audit.of_scores else "images", lambda x: f"{x.images:,}"),
        Column("subjects", lambda x: _count(x.subjects)),
        Column(
            "places",
            lambda x: Cell(", ".join(map(str, x.positions)) or words.NOTHING, f"first {x.kind}s"),
            lambda x: {**flat(plain(x)), "places": " ".join(map(str, x.positions))},
            words=True,
        ),
    ]
    return Table("Left out", columns, audit.exclusions)


def composition_table(audit: Audit, grouping: GroupAudit) -> Table[int]:
    """Return what the figures of each group rest on."""
    rates = grouping.rates if isinstance(grouping.rates, GroupRates) else None
    point, counts = working_point(audit, grouping), grouping.composition
    caption = "Pairs"
    columns: list[Column[int]] = [Column("group", lambda index: grouping.names[index])]
    if audit.subjects is not None:
        caption = "Subjects and pairs"
        columns.append(Column("subjects", lambda index: _count(counts[index].subjects)))
    if not audit.of_scores:
        caption = "Subjects, images and pairs"
        columns += [
            Column("images", lambda index: _count(counts[index].images)),
            Column("images per subject", lambda index: _images_each(counts[index])),
            Column("failures to acquire", lambda index: _failed(counts[index])),
        ]
    if rates is not None:
        pairs = rates.composition
        columns += [
            Column("mated pairs", lambda index: f"{pairs[index].mated:,}"),
            Column("non-mated pairs within", lambda index: f"{pairs[index].non_mated:,}"),
            Column(
                "smallest observable FMR",
                lambda index: words.number(pairs[index].smallest_fmr, ".1e"),
            ),
        ]
    if point is not None:
        groups = point.groups
        caption += f"; errors at target FMR {point.threshold.target}"
        columns += [
            Column("false matches", lambda index: _errors(groups[index].fmr)),
            Column("false non-matches", lambda index: _errors(groups[index].fnmr)),
        ]
    hidden = Cell(f"suppressed: {SUPPRESSED}", withheld=True)
    suppressed = [Spanning(name, hidden) for name in grouping.suppressed]
    rows = [*range(len(grouping.names)), *suppressed]
    return Table(caption, columns, rows, list(_missing_pairs(grouping, rates)))


def _missing_pairs(grouping: GroupAudit, rates: GroupRates | None) -> Iterator[str]:
    if grouping.pooled:
        yield f"Pooled, as each has under ten subjects: {', '.join(grouping.pooled)}."
    if rates is None:
        return
    lost = [
        f"{group.name}: {group.lost_mated:,} mated and {group.lost_non_mated:,} non-mated pairs"
        for group in rates.composition
        if group.lost_mated or group.lost_non_mated
    ]
    if lost:
        yield f"Pairs without a score, in no rate: {'; '.join(lost)}."
    gone = rates.excluded
    if gone.mated or gone.non_mated or gone.unknown or gone.contradictory:
        yield (
            f"Pairs left out: {gone.mated:,} mated and {gone.non_mated:,} non-mated pairs with "
            f"an image without a group, {gone.unknown:,} with an image of nobody known, "
            f"{gone.contradictory:,} with a label that the subjects contradict."
        )


# --- norms ------------------------------------------------------------------------------------


def norm_table(table: NormTable) -> Table[NormSummary]:
    """Return means and spread of the norms by group."""
    columns: list[Column[NormSummary]] = [
        Column("group", lambda group: group.name),
        Column("subjects", lambda group: f"{group.subjects:,}"),
        Column("images", lambda group: f"{group.images:,}"),
        Column("mean of subjects", lambda group: figure_cell(group.subject_mean)),
        Column("minus all groups", lambda group: figure_cell(group.difference), terminal=False),
        Column("mean of images", lambda group: figure_cell(group.mean), terminal=False),
        Column("SD", lambda group: figure_cell(group.sd)),
        Column("CV", lambda group: figure_cell(group.cv)),
    ]
    remarks = [
        *words.assumptions(group.subject_mean.interval for group in table.groups),
        f"{table.replicates:,} resamples of subjects, seed {table.seed}.",
    ]
    return Table("Norms by group", columns, [*table.groups, table.overall], remarks)


def component_table(table: NormTable) -> Table[Sequence[Cell | str]]:
    """Return quantiles and variance components of the norms by group."""
    components = ("SD between subjects", "SD within subjects", "ICC(1)")
    sizes = ("m", "design effect", "effective images")
    rows: list[Sequence[Cell | str]] = [
        (
            group.name,
            *(figure_cell(group.quantiles[name]) for name in table.overall.quantiles),
            *map(figure_cell, (group.between_sd, group.within_sd, group.icc)),
            f"{group.images_per_subject:.3g}",
            words.number(group.design_effect),
            words.number(group.effective_images, ",.0f"),
        )
        for group in (*table.groups, table.overall)
    ]
    headings = ("group", *table.overall.quantiles, *components, *sizes)
    return text_table("Quantiles over images and variance components", headings, rows)


# --- association ------------------------------------------------------------------------------


def effect_table(
    association: Association, adjusted: AdjustedAssociation | NoComparison | None
) -> Table[Sequence[Cell | str]]:
    """Return the effects of the group on the norm with their tests."""
    primary, spread = association.role == "primary", association.spread_between
    permuted = f"{association.permutations:,} permutations over subjects, seed {association.seed}"
    rows: list[Sequence[Cell | str]] = [
        (
            Cell("η²", "declared in advance") if primary else Cell("η² [E]"),
            figure_cell(association.eta2),
            words.p_value(association.p),
            Cell(_welch(association.welch_f), permuted),
        ),
        ("ω² [E]", figure_cell(association.omega2), words.NOTHING, "η² without its upward bias"),
        (
            Cell("ε² [E]", f"without bias {words.number(association.eta2_h)}"),
            figure_cell(association.epsilon2),
            words.p_value(association.rank_p),
            Cell("Welch’s F of ranks, permuted", f"Kruskal–Wallis H = {association.kruskal_h:.4g}"),
        ),
        (
            "spread between subjects [E]",
            words.NOTHING,
            words.p_value(spread.p),
            Cell(f"{_welch(spread.f)} of deviations", f"{spread.subjects:,} subjects"),
        ),
    ]
    if isinstance(adjusted, AdjustedAssociation):
        before = "" if adjusted.eta2.value is None else f"η² before {adjusted.eta2.value:.3g}"
        wald = words.number(adjusted.wald_f, ".4g")
        rows.append(
            (
                Cell(f"partial η² given {', '.join(adjusted.covariates)} [E]", before),
                figure_cell(adjusted.partial_eta2),
                words.p_value(adjusted.p),
                Cell(
                    f"clustered Wald F = {wald}, df {adjusted.df[0]:g}, {adjusted.df[1]:.1f}",
                    f"{adjusted.images:,} images, {adjusted.dropped:,} without a covariate",
                ),
            )
        )
    remarks = [f"{association.subjects:,} subjects."]
    if association.mde_eta2 is not None:
        least = f"{association.mde_eta2:.2g}"
        remarks.append(f"Minimum detectable effect (80 % power, 5 % level): {least}.")
    remarks += words.assumptions([association.eta2.interval])
    remarks.append(
        f"Equivalence of all pairs within |δ| < {association.bound:g}: "
        f"p = {words.p_value(association.equivalence_p)}, "
        + ("established." if association.equivalent else "not established.")
    )
    headings = ("effect", "estimate [95 %]", "p", "test")
    return text_table("Effects and tests", headings, rows, ["test"], remarks=remarks)


def _welch(f: float | None) -> str:
    return "Welch’s F" if f is None else f"Welch’s F = {f:.4g}"


def pair_table(association: Association) -> Table[PairDifference]:
    """Return how every two groups differ in their mean norms."""
    columns: list[Column[PairDifference]] = [
        Column("groups", lambda pair: f"{pair.first} − {pair.second}"),
        Column("subjects", lambda pair: f"{pair.subjects[0]:,} + {pair.subjects[1]:,}"),
        Column("Cliff’s δ", lambda pair: figure_cell(pair.delta)),
        Column("Hodges–Lehmann shift", lambda pair: figure_cell(pair.shift)),
        Column("W₁ / pooled SD", lambda pair: figure_cell(pair.wasserstein)),
        Column("p [E]", lambda pair: words.p_value(pair.p)),
        Column("p, Holm [E]", lambda pair: words.p_value(pair.p_holm)),
        Column(
            f"p of |δ| ≥ {association.bound:g} [E]",
            lambda pair: Cell(
                words.p_value(pair.equivalence_p), "equivalent" if pair.equivalent else ""
            ),
        ),
        _whole(),
    ]
    methods = words.assumptions(
        estimate.interval
        for pair in association.pairs
        for estimate in (pair.delta, pair.shift, pair.wasserstein)
    )
    return Table("All pairs of groups", columns, association.pairs, methods)


# --- does the norm matter? --------------------------------------------------------------------


def channel_table(channels: Sequence[Channel]) -> Table[Sequence[Cell | str]]:
    """Return through which channels norms reach decisions."""
    active = {True: "active", False: "not active", None: "cannot be told"}
    headings = ("channel", "in this run", "evidence")
    rows = [(channel.name, active[channel.active], channel.evidence) for channel in channels]
    return text_table("Channels from norm to decision", headings, rows, headings[1:])


def discard_table(channels: NormChannels) -> Table[Sequence[Cell | str]]:
    """Return the share of the images of each group that common norm cuts discard."""
    cuts = channels.cuts
    rows = [
        (groups[0].group or ALL_GROUPS, *(_cut(group.images) for group in groups))
        for groups in _all_last([*zip(*(cut.groups for cut in cuts), strict=True)])
    ]
    norms = ", ".join(f"{cut.norm:.4g}" for cut in cuts)
    remark = f"Images below the cut among the images of mated pairs. Norms: {norms}."
    caption = "Share of each group that a common norm cut discards"
    return text_table(caption, ["group", *map(_cut_name, cuts)], rows, remarks=[remark])


def cut_table(channels: NormChannels) -> Table[tuple[CommonCut, GroupCut]]:
    """Return the FNMR of each group before and after each common norm cut."""
    columns: list[Column[tuple[CommonCut, GroupCut]]] = [
        Column("group", lambda row: Cell(row[1].group or ALL_GROUPS, _cut_name(row[0]))),
        Column("mated pairs discarded", lambda row: _cut(row[1].pairs)),
        Column("FNMR before", lambda row: rate_cell(row[1].before)),
        Column("FNMR after", lambda row: rate_cell(row[1].after)),
    ]
    rows = [(cut, group) for cut in channels.cuts for group in _all_last(cut.groups)]
    return Table("FNMR before and after a common norm cut", columns, rows)


def _cut_name(cut: CommonCut) -> str:
    return f"cut at {100 * float(cut.share):g} %"


def standardised_table(gap: StandardisedGap) -> Table[Sequence[Cell | str]] | None:
    """Return FNMR as it is and at equal norms; None where there are no figures."""
    if gap.raw_gap is None or gap.standardised_gap is None or gap.change is None:
        return None
    figures = [(group.group, group.raw, group.standardised) for group in gap.groups]
    figures.append(("highest − lowest", gap.raw_gap, gap.standardised_gap))
    rows = [(name, _contrast(raw), _contrast(equal)) for name, raw, equal in figures]
    change = _contrast(gap.change)
    bins = words.counted(gap.bins, "norm bin")
    remarks = [
        f"Change of the gap: {change.text} {change.small or '(no interval)'}.",
        f"{bins} with {words.percent(gap.support)} of the mated pairs.",
        f"{gap.method}.",
    ]
    caption = "FNMR as it is, and if all groups had the same norms"
    return text_table(caption, ("group", "as it is", "at equal norms"), rows, remarks=remarks)


def correlation_table(channels: NormChannels) -> Table[NormCorrelation]:
    """Return the rank correlation of norm and score by group."""
    columns: list[Column[NormCorrelation]] = [
        Column("group", lambda row: row.group or ALL_GROUPS),
        Column("Spearman’s ρ [E]", lambda row: figure_cell(row, ".3g")),
        Column("mated pairs", lambda row: f"{row.total:,}"),
        Column("subjects", lambda row: f"{row.subjects:,}"),
    ]
    rows = _all_last(channels.correlations)
    methods = words.assumptions(row.interval for row in rows)
    return Table("Lesser norm and score of mated pairs", columns, rows, methods)


def fusion_table(changes: Sequence[FusionChange]) -> Table[FusionChange]:
    """Return the error rates of raw and unit fusion."""
    columns: list[Column[FusionChange]] = [
        Column(
            "group",
            lambda row: Cell(row.group or ALL_GROUPS, f"{row.of} at target {row.target}"),
            lambda row: row.target,
            "fmr_nominal",
        ),
        Column("raw fusion", lambda row: rate_cell(row.raw)),
        Column("unit fusion", lambda row: rate_cell(row.unit)),
        Column("unit − raw", lambda row: figure_cell(row, "+.2g")),
        _whole("target"),
    ]
    methods = words.assumptions(change.interval for change in changes)
    caption = "Raw and unit fusion, each at its own global threshold"
    return Table(caption, columns, changes, methods)


# --- error rates ------------------------------------------------------------------------------


def threshold_table(audit: Audit) -> Table[GlobalThreshold]:
    """Return the global thresholds, and what they were fixed on."""
    columns: list[Column[GlobalThreshold]] = [
        Column(
            "target FMR",
            lambda row: Cell(row.target, "used above" if row.target == audit.target else ""),
            lambda row: row.target,
            "fmr_nominal",
        ),
        Column(
            "threshold",
            lambda row: Cell(
                words.threshold(row.value), row.reason or "", withheld=row.value is None
            ),
        ),
        Column(
            "false matches where it was fixed",
            lambda row: f"{row.false_matches:,}/{row.non_mated:,}",
        ),
        Column("sufficiency", _sufficiency),
        _whole("target"),
    ]
    source = audit.thresholds[0].source if audit.thresholds else "none"
    return Table(f"Global thresholds: {source}", columns, audit.thresholds)


def _sufficiency(threshold: GlobalThreshold) -> Cell:
    if not threshold.resolvable:
        return Cell("not resolvable", withheld=True)
    return Cell("at least 30 errors" if threshold.reliable else "few errors")


_Rates: TypeAlias = "tuple[str, ErrorRate, ErrorRate, GroupThreshold | None]"


def rate_table(point: RatesAtThreshold) -> Table[_Rates]:
    """Return both error rates of every group at one threshold, then of all pairs."""
    columns: list[Column[_Rates]] = [
        Column("group", lambda row: row[0]),
        Column("FMR within the group", lambda row: fmr_cell(row[1])),
        Column("FNMR", lambda row: rate_cell(row[2])),
        Column("own threshold", lambda row: _own(row[3]), terminal=False),
        Column("TMR at it", lambda row: _tmr(row[3]), terminal=False),
    ]
    rows: list[_Rates | Spanning] = [
        *((group.name, group.fmr, group.fnmr, group.own_threshold) for group in point.groups),
        ("all pairs", point.fmr, point.fnmr, None),
    ]
    remarks = [
        f"The last two columns are a {point.groups[0].own_threshold.use}.",
        *words.assumptions(
            rate.interval for group in point.groups for rate in (group.fmr, group.fnmr)
        ),
    ]
    caption = f"Rates at the global threshold of FMR {point.threshold.target}"
    if not point.threshold.resolvable:
        few = f"not resolvable with {point.threshold.non_mated:,} non-mated pairs"
        rows, remarks = [Spanning(ALL_GROUPS, Cell(few, withheld=True))], []
    elif point.threshold.value is not None:
        caption += f" ({words.threshold(point.threshold.value)})"
    return Table(caption, columns, rows, remarks)


def _own(own: GroupThreshold | None) -> Cell:
    if own is None:
        return Cell(words.NOTHING)
    if own.value is None or own.tmr.value is None:
        return Cell(words.NOTHING, own.reason or "", withheld=True)
    return Cell(
        words.threshold(own.value), f"{own.false_matches:,}/{own.non_mated:,} false matches"
    )


def _tmr(own: GroupThreshold | None) -> Cell:
    if own is None:
        return Cell(words.NOTHING)
    return _contrast(Estimate(None) if own.value is None else own.tmr)


_Between: TypeAlias = "tuple[str, str, ErrorRate]"


def matrix_table(point: RatesAtThreshold, names: Sequence[str]) -> Table[_Between]:
    """Return the false matches between all groups at one threshold."""
    columns: list[Column[_Between]] = [
        Column("groups", lambda row: row[0] if row[0] == row[1] else f"{row[0]} – {row[1]}"),
        Column(
            "FMR",
            lambda row: Cell(words.number(row[2].value, ".2g"), words.limits(row[2].interval)),
        ),
        Column("log10 FMR", lambda row: figure_cell(Estimate(row[2].log10), ".2f")),
        Column("false matches", lambda row: f"{row[2].events:,}/{row[2].total:,}"),
        Column("", data=_between),
    ]
    rows = [
        (first, second, point.matrix[i][j])
        for i, first in enumerate(names)
        for j, second in enumerate(names[: i + 1])
    ]
    return Table(f"Target FMR {point.threshold.target}", columns, rows)


def _between(row: _Between) -> dict[str, Any]:
    first, second, rate = row
    return {
        "first": first,
        "second": second,
        "k": rate.events,
        "n": rate.total,
        "value": rate.value,
        "log10": rate.log10,
        "ci_low": rate.low,
        "ci_high": rate.high,
    }


# --- differentials ----------------------------------------------------------------------------


def differential_table(
    differentials: Differentials, headline: str | None = None
) -> Table[Differential]:
    """Return measures of how far the rates of groups lie apart, or the ``headline`` alone."""
    rows = [row for row in differentials.rows if headline in (None, row.measure)]
    caption = "All measures" if headline is None else f"Headline: {headline}"
    columns: list[Column[Differential]] = [
        Column("measure", lambda row: f"{row.measure}, {row.of}"),
        Column("target FMR", lambda row: row.target, lambda row: row.target, "fmr_nominal"),
        # What is remarked has a column of its own.
        Column("value [95 %]", lambda row: figure_cell(replace(row, remark=""))),
        Column("p [E]", lambda row: words.p_value(row.p_value)),
        Column("equal rates reach", lambda row: words.number(row.at_parity, ".4g")),
        Column("fewest errors", lambda row: row.mark),
        Column("remark", _remark, words=True),
        _whole("target"),
    ]
    drawn = "pairs" if differentials.independent else "subjects"
    remarks = [
        "p: how often groups of equal rates would differ as much or more; 5 % of them lie beyond "
        "“equal rates reach”. All are exploratory [E].",
        f"Joint resample of all {drawn}, {differentials.replicates:,} replicates, seed "
        f"{differentials.seed}.",
        *words.assumptions(row.interval for row in rows),
    ]
    return Table(caption, columns, rows, remarks)


def _remark(row: Differential) -> str:
    """Say what is missing and why; what is closer to equal rates where nothing is."""
    said = [row.remark] if row.remark else []
    if row.smoothed is not None:
        said.append(f"{row.smoothed:.4g} of rates smoothed to (k + ½)/(N + 1)")
    return "; ".join(said) or f"{row.better} is closer to equal rates"


def measure_table() -> Table[Sequence[Cell | str]]:
    """Return the definitions of all measures."""
    headings = ("measure", "definition", "better")
    rows = [(f"{one.name}, {one.of}", one.definition, one.better) for one in MEASURES]
    return text_table("Measures of differentials", headings, rows, headings[1:])


# --- comparison, provenance and model card ------------------------------------------------------


def change_table(comparison: BaselineComparison) -> Table[Change]:
    """Return the changes from a baseline."""
    columns: list[Column[Change]] = [
        Column("figure", lambda row: Cell(row.name, row.role)),
        Column("baseline", lambda row: figure_cell(Estimate(row.baseline), ".3g")),
        Column("new", lambda row: figure_cell(Estimate(row.treated), ".3g")),
        Column("change [95 %]", lambda row: figure_cell(row, "+.3g")),
        Column("over seeds alone", lambda row: words.limits(row.over_seeds) or words.NOTHING),
        Column(
            "seeds of one sign",
            lambda row: (
                words.NOTHING if row.value is None else f"{row.same_sign} of {len(row.seeds)}"
            ),
        ),
        Column("conclusion", lambda row: row.conclusion, words=True),
        Column("", data=lambda row: plain(row.to_row())),
    ]
    remark = (
        f"{comparison.images:,} images of {comparison.subjects:,} subjects, "
        f"{comparison.left_out:,} images left out; error rates: {comparison.policy}; "
        f"{comparison.replicates:,} joint resamples of subjects, seed {comparison.seed}."
    )
    return Table("Changes", columns, comparison.changes, [remark])


def input_table(inputs: Sequence[InputFile]) -> Table[Sequence[Cell | str]]:
    """Return the files that were read, with their hashes."""
    headings = ("file", "SHA-256", "details")
    rows = []
    for file in inputs:
        details = "; ".join(f"{key}: {words.setting(one)}" for key, one in file.details.items())
        rows.append((Cell(file.role, file.name), file.sha256, details or words.NOTHING))
    return text_table("Inputs", headings, rows, headings[1:])


def card_table(audit: Audit, grouping: GroupAudit) -> Table[int]:
    """Return norms and error rates by group for a model card."""
    norms, point = grouping.norms, working_point(audit, grouping)
    columns: list[Column[int]] = [Column(grouping.name, lambda index: grouping.names[index])]
    if norms is not None:
        groups = norms.groups
        columns += [
            Column("subjects", lambda index: f"{groups[index].subjects:,}"),
            Column("images", lambda index: f"{groups[index].images:,}"),
            Column("mean norm", lambda index: _in_card(groups[index].subject_mean)),
        ]
    if point is not None:
        rates = point.groups
        columns += [
            Column(
                f"FMR at nominal {point.threshold.target}",
                lambda index: _in_card(rates[index].fmr),
            ),
            Column("FNMR", lambda index: _in_card(rates[index].fnmr)),
        ]
    return Table("", columns, range(len(grouping.names)))


def _in_card(estimate: Estimate) -> str:
    counts = "" if estimate.events is None else f"({estimate.events:,}/{estimate.total:,})"
    said = words.number(estimate.value, ".4g"), words.limits(estimate.interval, 1, ".4g"), counts
    return " ".join(filter(None, said))


# --- cells ------------------------------------------------------------------------------------


def head_points(audit: Audit, grouping: GroupAudit) -> list[RatesAtThreshold]:
    """Return the rates at the targets of the findings on FMR and FNMR, else at that of channels."""
    rates, measures, targets = grouping.rates, grouping.differentials, [audit.target]
    if isinstance(measures, Differentials):
        rows = [row for of in ("FMR", "FNMR") if (row := measures.heading(of)) is not None]
        known = [row.target for row in rows if row.p_value is not None]
        targets = [*dict.fromkeys(known)] or targets
    points = rates.points if isinstance(rates, GroupRates) else ()
    return [one for target in targets for one in points if one.threshold.target == target]


def working_point(audit: Audit, grouping: GroupAudit) -> RatesAtThreshold | None:
    """Return the first of `head_points`, if there is one."""
    return next(iter(head_points(audit, grouping)), None)


def rate_cell(rate: ErrorRate) -> Cell:
    """Return a rate in percent with interval, mark and counts."""
    return _counted(rate, words.percent(rate.value), 100)


def fmr_cell(rate: ErrorRate) -> Cell:
    """Return a rate as a number, as it may be very small, with interval, mark and counts."""
    return _counted(rate, words.number(rate.value, ".2g"), 1)


def _counted(rate: ErrorRate, text: str, scale: float) -> Cell:
    if rate.value is None:
        return Cell(text, rate.remark, withheld=True)
    small = [words.limits(rate.interval, scale) or rate.remark, words.counts(rate)]
    if rate.effective is not None:
        small.append(f"effective n {rate.effective:,.0f}".replace(" ", "\N{NO-BREAK SPACE}"))
    return Cell(text, "\n".join(filter(None, small)))


def figure_cell(estimate: Estimate | None, form: str = ".4g") -> Cell:
    """Return a figure with its interval, or with why there is none; hatched if missing."""
    if estimate is None:
        return Cell(words.NOTHING)
    small = words.limits(estimate.interval) or estimate.remark
    return Cell(words.number(estimate.value, form), small, withheld=estimate.value is None)


def _contrast(estimate: Estimate) -> Cell:
    small = words.limits(estimate.interval, 100)
    return Cell(words.percent(estimate.value), small, withheld=estimate.value is None)


def _cut(estimate: Estimate) -> Cell:
    # Images that a cut discards are no errors, so there is no mark of how many they are.
    counts = f"{estimate.events:,}/{estimate.total:,}"
    small = "\n".join(filter(None, (words.limits(estimate.interval, 100), counts)))
    return Cell(words.percent(estimate.value), small)


def _errors(rate: ErrorRate) -> Cell:
    return Cell(f"{rate.mark} {rate.events:,}", f"of {rate.total:,}")


def _images_each(count: GroupCount) -> str:
    if count.images is None or not count.subjects:
        return words.NOTHING
    return words.number(count.images / count.subjects)


def _failed(count: GroupCount) -> Cell:
    rate = count.failed / count.images if count.images else None
    return Cell(words.percent(rate), f"{count.failed:,}/{count.images:,}")


def _count(count: int | None) -> str:
    return words.NOTHING if count is None else f"{count:,}"


def _whole(*leave: str) -> Column[Any]:
    """Return a column for files alone, with all that a row holds."""
    return Column("", data=lambda row: flat(plain(row, leave=leave)))


def _all_last(groups: Sequence[Any]) -> list[Any]:
    """Return figures of which the first is that of all groups, with it at the end."""
    return [*groups[1:], groups[0]]
