"""What changed between two releases of a model: a new audit against the ``audit.json`` of an old.

Both audits must be of the same subjects, images, pairs and nominal rates, or a difference would
tell nothing of the models. Where the embeddings of the old release are given too (``--baseline``),
changes of the primary attribute come from joint resamples of the same subjects, and those of
identification allow for the correlation of both models' errors; otherwise all that is known of the
old release is its intervals.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from facerec.errors import DatasetError, MetricError
from facerec.fairness.attributes import EVERYBODY, OTHERS
from facerec.fairness.baseline import BaselineComparison, Change
from facerec.fairness.one_to_many import SearchKey, SearchPlan
from facerec.fairness.plain import AUDIT_SCHEMA, plain
from facerec.files import parse_json, read_file, sha256
from facerec.report.conclusions import (
    Conclusion,
    DirectedConclusion,
    of_change,
    of_interval,
    of_test,
)
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval
from facerec.statistics.searches import SEARCHES

UNPAIRED = "MOVER of the intervals of both audits"
TAKEN_AS_INDEPENDENT = (
    "the audits are taken as independent; as far as both models err on the same subjects, the "
    "change is known better than this"
)

CORRELATED = "MOVER of the intervals of both audits and their correlation"

HEADLINE = "max/geomean"


@dataclass(frozen=True)
class Release:
    """The ``audit.json`` of an earlier release."""

    name: str
    sha256: str
    document: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ReleaseChange(Estimate):
    """One figure in both audits; the value is new − old."""

    in_files: ClassVar = (
        "grouping group figure fmr_nominal=target old new change=value interval paired "
        "old_verdict new_verdict reason=remark verdict_changed conclusion"
    )
    grouping: str
    group: str | None
    """None for a figure of all groups."""
    figure: str
    target: str | None
    """Nominal FMR of the threshold; None for figures of norms."""
    old: float | None
    new: float | None
    paired: bool
    """Whether the interval comes from the errors of both models on the same subjects."""
    old_verdict: Conclusion | None = None
    """None where nothing is tested but the change."""
    new_verdict: Conclusion | None = None

    @property
    def verdict_changed(self) -> bool:
        """Whether the two audits conclude otherwise."""
        return self.old_verdict != self.new_verdict

    @property
    def conclusion(self) -> DirectedConclusion:
        """Whether the interval of the change excludes zero."""
        return of_change(self)

    @property
    def moved(self) -> bool:
        """Whether it does, on either side."""
        return self.conclusion in ("increase detected", "decrease detected")


@dataclass(frozen=True)
class ReleaseComparison:
    """All that can be said of two releases."""

    in_files: ClassVar = "name sha256 facerec summary rows notes"
    name: str
    """File of the earlier audit."""
    sha256: str
    facerec: str
    """Version that made it."""
    rows: tuple[ReleaseChange, ...]
    """Those whose verdict changed first, then those whose change is detected."""
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """What happened, in a sentence."""
        verdicts = sum(row.verdict_changed for row in self.rows)
        moved = sum(row.moved for row in self.rows)
        return (
            f"{verdicts} {'verdict' if verdicts == 1 else 'verdicts'} changed, and of "
            f"{len(self.rows)} figures {moved} moved by more than their interval"
        )


def read_release(path: str | Path) -> Release:
    """Read the ``audit.json`` of an earlier release.

    Raises:
        DatasetError: it cannot be read, or is no audit.
    """
    path = Path(path)
    try:
        document = parse_json(read_file(path))
    except (OSError, ValueError) as problem:
        raise DatasetError(
            f"{path}: it cannot be read as an audit.json ({problem}); give that of the earlier one"
        ) from problem
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if schema != AUDIT_SCHEMA:
        raise DatasetError(
            f"{path}: its schema is {schema!r} and not {AUDIT_SCHEMA!r}; give an audit.json"
        )
    return Release(path.name, sha256(path), document)


def check_settings(
    release: Release,
    groups: tuple[str, ...],
    intersect: bool,
    targets: tuple[str, ...],
    attributes: str | None,
    searches: SearchPlan | None = None,
) -> None:
    """Refuse an earlier audit of other groups, rates or labels, before anything is computed.

    Args:
        release: the earlier audit.
        groups: attributes to audit by.
        intersect: whether their combinations are groups too.
        targets: nominal FMRs.
        attributes: SHA-256 of the table of groups, if there is one.
        searches: of identification, if it is audited too.

    Raises:
        DatasetError: they differ.
    """
    with _reading(release):
        old = release.document
        asked = {"groups": list(groups), "intersect": intersect, "fmr": list(targets)}
        _compare(release, _SETTINGS, asked, old["settings"])
        labels = old["inputs"].get("attributes", {}).get("sha256")
        _same(release, "SHA-256 of the table of groups", (attributes, labels), "--attributes")
        if searches is not None and (plan := _searches(old)) is not None:
            asked = {**plain(searches), "fpir": list(searches.targets)}
            _compare(release, _SEARCHES, asked, plan)


def compare_releases(
    release: Release,
    new: Mapping[str, Any],
    comparison: BaselineComparison | None = None,
    correlations: Mapping[SearchKey, float] | None = None,
) -> ReleaseComparison:
    """Compare an audit with that of an earlier release.

    Args:
        release: the earlier audit.
        new: document of the audit, see `facerec.fairness.outputs.to_json`.
        comparison: with the embeddings of the earlier release as the baseline.
        correlations: of figures of identification with those of that baseline, see
            `facerec.fairness.one_to_many.correlate`.

    Raises:
        DatasetError: the audits are of other images, subjects, pairs or thresholds, or the baseline
            is not what the earlier audit was made from.
    """
    with _reading(release):
        _check(release, new)
        if comparison is not None:
            _check_baseline(release, new)
        rows = list(_rows(release.document, new, comparison, correlations or {}))
        notes = list(_notes(release.document, new, comparison))
        version = str(release.document["facerec"])
    rows.sort(key=lambda row: 0 if row.verdict_changed else 1 if row.moved else 2)
    return ReleaseComparison(release.name, release.sha256, version, tuple(rows), tuple(notes))


@contextlib.contextmanager
def _reading(release: Release) -> Iterator[None]:
    """Turn what an earlier audit lacks into a sentence."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as problem:
        raise DatasetError(
            f"{release.name}: it is not as facerec audit writes it ({problem!r}); make it again"
        ) from problem


_SETTINGS = (
    ("groups", "groups", "--group"),
    ("intersect", "the intersection", "--intersect"),
    ("fmr", "nominal FMRs", "--fmr"),
)
_SEARCHES = (
    ("fpir", "target FPIRs", "--fpir"),
    ("reference", "the reference group", "--reference"),
    ("homogeneous", "homogeneous galleries", "--homogeneous"),
    ("template", "the template", "--template"),
    ("seed", "the seed of galleries", "--seed"),
)
"""What must be the same in both audits: name in the document, as words, flag."""


def _compare(
    release: Release,
    fields: Iterable[tuple[str, str, str]],
    new: Mapping[str, Any],
    old: Mapping[str, Any],
) -> None:
    for name, what, flag in fields:
        _same(release, what, (new[name], old[name]), flag)


def _same(release: Release, what: str, sides: Iterable[object], flag: str) -> None:
    """Refuse what is not the same in the new audit and in the old one."""
    new, old = sides
    if new != old:
        raise DatasetError(
            f"{release.name}: {what} {_shown(old)} there and {_shown(new)} here, so the figures "
            f"cannot be compared; audit both releases with the same {flag}"
        )


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _check(release: Release, new: Mapping[str, Any]) -> None:
    """Refuse another bench, other subjects, or thresholds that are fixed otherwise."""
    old = release.document
    kinds = ["scores" if side["counts"]["images"] is None else "embeddings" for side in (new, old)]
    _same(release, "what was audited:", kinds, "kind of input")
    files = [side["inputs"] for side in (new, old)]
    for role, flag in (("attributes", "--attributes"), ("pairs", "--bench or --pairs")):
        hashes = [side.get(role, {}).get("sha256") for side in files]
        _same(release, f"SHA-256 of the {role}", hashes, flag)
    policy = ("policy", "impostors", "--bench or --pairs")
    _compare(release, (*_SETTINGS, policy), new["settings"], old["settings"])
    totals = ((name, name, "data") for name in ("images", "pairs", "subjects"))
    _compare(release, totals, new["counts"], old["counts"])
    calibrated = ["calibration" in side for side in files]
    _same(release, "thresholds from other data:", calibrated, "--threshold-from")
    if calibrated[0]:
        pairs = [[point["non_mated"] for point in side["thresholds"]] for side in (new, old)]
        _same(release, "non-mated pairs behind the thresholds", pairs, "--threshold-from")
    composition = [
        {(row["grouping"], row["name"]): (row["subjects"], row["images"]) for row in side["groups"]}
        for side in (new, old)
    ]
    for key in {**composition[1], **composition[0]}:
        counts = [side.get(key) for side in composition]
        if counts[0] != counts[1]:
            _same(
                release,
                f"subjects and images of {key[0]} {key[1]}:",
                [None if count is None else list(count) for count in counts],
                "data",
            )
    plans = [_searches(side) for side in (new, old)]
    known = [plan for plan in plans if plan is not None]
    if len(known) == len(plans):
        _compare(release, _SEARCHES, *known)
        searches = [
            [
                point["non_mated"]
                for grouping in plan["groupings"]
                for point in grouping["thresholds"]
                if point["basis"] == OTHERS
            ]
            for plan in known
        ]
        _same(release, "searches behind the thresholds", searches, "--threshold-from")


def _searches(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what an audit has of identification; files of earlier versions have nothing."""
    identification: Mapping[str, Any] | None = document.get("one_to_many")
    return identification


def _check_baseline(release: Release, new: Mapping[str, Any]) -> None:
    files = release.document["inputs"]
    old = next((files[role]["sha256"] for role in ("embeddings", "model") if role in files), None)
    given = new["inputs"]["baseline"]["sha256"]
    if old != given:
        raise DatasetError(
            f"{release.name}: it was made from the file of SHA-256 {old}, and --baseline is "
            f"{given}; give the embeddings or the model of that audit, or leave --baseline out"
        )


def _notes(
    old: Mapping[str, Any], new: Mapping[str, Any], comparison: BaselineComparison | None
) -> Iterator[str]:
    if comparison is None:
        yield (
            "Of the earlier release its audit alone is known. Both audits share their subjects, "
            "yet intervals of changes take them as independent, so they are too wide as far as "
            "both models err on the same subjects. With the earlier embeddings as --baseline, "
            "changes by the primary attribute come from the same subjects drawn for both."
        )
    else:
        yield (
            f"Changes marked paired come from {comparison.replicates:,} joint resamples of the "
            "same subjects for both models, or, of identification, from the correlation of both "
            "models' errors on the same subjects; the others take both audits as independent."
        )
    sides = [_searches(side) is not None for side in (old, new)]
    if sides[0] != sides[1]:
        yield (
            f"Only the {'earlier' if sides[0] else 'new'} audit has figures of identification "
            "(1:N), so none of them is compared; audit both releases with --one-to-many."
        )
    yield (
        "Every interval holds for itself at 95 %; of many figures that did not change, one in "
        "twenty seems to have."
    )
    yield "Thresholds are fixed anew for each release at the same nominal FMR."
    if old["facerec"] != new["facerec"]:
        yield f"The earlier audit was made by facerec {old['facerec']}, this by {new['facerec']}."
    for name, what in (("seed", "seeds"), ("boot", "resamples"), ("perm", "permutations")):
        before, now = old["settings"][name], new["settings"][name]
        if before != now:
            yield f"The audits have other {what}: {before:,} there, {now:,} here."
    failures = old["counts"]["failures"], new["counts"]["failures"]
    if failures[0] != failures[1]:
        yield (
            f"Failures to acquire: {failures[0]:,} there, {failures[1]:,} here; rates rest on what "
            "was acquired."
        )


def _rows(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    comparison: BaselineComparison | None,
    correlations: Mapping[SearchKey, float],
) -> Iterator[ReleaseChange]:
    before, now = _figures(old), _figures(new)
    if _searches(old) is not None and _searches(new) is not None:
        before, now = before | _search_figures(old), now | _search_figures(new)
    primary = new["settings"]["groups"][0]
    for key in {**now, **before}:
        one, other = before.get(key), now.get(key)
        grouping, group, figure, target = key
        paired = None
        # A comparison fixes its thresholds on these data, whatever fixed those of the audits.
        elsewhere = target is not None and "calibration" in new["inputs"]
        if comparison is not None and grouping == primary and not elsewhere:
            paired = _paired(comparison, group, figure, target)
        yield _change(key, one, other, paired, correlations)


_Key = tuple[str, str | None, str, str | None]


@dataclass(frozen=True)
class _Figure:
    """A figure of an audit as its document has it."""

    estimate: Mapping[str, Any]
    verdict: Conclusion | None = None
    search: SearchKey | None = None
    """Of a figure of identification."""


def _figures(document: Mapping[str, Any]) -> dict[_Key, _Figure]:
    """Return the figures of an audit that are compared, in the order of a report."""
    figures: dict[_Key, _Figure] = {}
    # Rates at a threshold that these impostors do not resolve are those of another target.
    resolvable = {point["fmr_nominal"]: point["resolvable"] for point in document["thresholds"]}
    for row in document["association"]:
        p = row["p_perm"]
        figures[row["grouping"], None, "η²", None] = _Figure(row["eta2"], of_test(p))
    for row in document["differentials"]:
        if row["measure"] == HEADLINE:
            figure = f"{HEADLINE} of {row['of']}"
            key = row["grouping"], None, figure, row["fmr_nominal"]
            figures[key] = _Figure(
                row, of_test(row["p_value"] if row["value"] is not None else None)
            )
    for row in document["association"]:
        for pair in row["pairs"]:
            figure = f"δ, {pair['first']} − {pair['second']}"
            figures[row["grouping"], None, figure, None] = _Figure(pair["delta"])
    for row in document["rates"]:
        if not resolvable[row["fmr_nominal"]]:
            continue
        group = row["name"] if row["slice"] is not None else None
        for name in ("fmr", "fnmr"):
            key = row["grouping"], group, name.upper(), row["fmr_nominal"]
            figures[key] = _Figure(row[name])
    for row in document["norms"]:
        group = row["name"] if row["slice"] is not None else None
        for name, figure in (("subject_mean", "mean norm"), ("cv", "CV of norms"), ("icc", "ICC")):
            figures[row["grouping"], group, figure, None] = _Figure(row[name])
    return figures


def _search_figures(document: Mapping[str, Any]) -> dict[_Key, _Figure]:
    """Return rates of identification and their ratios, but for thirds of covariates."""
    figures: dict[_Key, _Figure] = {}
    rows = [
        (audit["grouping"], audit["compared_with"], row)
        for audit in document["one_to_many"]["groupings"]
        for row in audit["rates"]
        if row["stratum"] is None
    ]
    for ratios in (True, False):
        for grouping, base, row in rows:
            estimate = row["ratio"] if ratios else row
            if estimate is None:
                continue
            figure = f"ratio of {row['figure']} to {base}" if ratios else row["figure"]
            if row["target"] is not None:
                figure += f" at FPIR={row['target']} of {row['basis']}"
            if row["galleries"] != "mixed":
                figure += f", {row['galleries']} galleries"
            group = None if row["group"] == EVERYBODY else row["group"]
            names = ("galleries", "basis", "target", "group", "figure")
            key = SearchKey(grouping, **{name: row[name] for name in names}, ratio=ratios)
            verdict = _ratio_verdict(estimate) if ratios else None
            figures[grouping, group, figure, None] = _Figure(estimate, verdict, key)
    return figures


def _ratio_verdict(ratio: Mapping[str, Any]) -> Conclusion:
    """Tell whether the interval of a ratio excludes 1."""
    if ratio["value"] is None or ratio["ci"] is None or ratio["ci"][0] is None:
        return of_interval(None)
    low, high = ratio["ci"]
    return of_interval(Interval(low - 1, math.inf if high is None else high - 1))


def _paired(
    comparison: BaselineComparison, group: str | None, figure: str, target: str | None
) -> Change | None:
    """Return the change of a figure over the same subjects, if the comparison has it."""
    if group is not None:
        return None
    try:
        if figure == "η²":
            return comparison.find("η²")
        if figure.startswith(HEADLINE):
            of = figure.rpartition(" ")[2]
            return comparison.find(f"{HEADLINE} {of} at FMR={target}", "raw")
        for change in comparison.changes:
            if change.groups is not None and figure == f"δ, {' − '.join(change.groups)}":
                return change
    except MetricError:
        return None
    return None


def _change(
    key: _Key,
    old: _Figure | None,
    new: _Figure | None,
    paired: Change | None,
    correlations: Mapping[SearchKey, float],
) -> ReleaseChange:
    grouping, group, figure, target = key
    before, now = (None if side is None else side.estimate["value"] for side in (old, new))
    tested = [None if side is None else side.verdict for side in (old, new)]
    if any(verdict is not None for verdict in tested):
        tested = [verdict or "insufficient data" for verdict in tested]
    change, interval, remark, joint = None, None, "", False
    if before is None or now is None:
        lacking, side = ("earlier", old) if before is None else ("new", new)
        reason = None if side is None else side.estimate.get("reason")
        remark = f"no value in the {lacking} audit" + (f": {reason}" if reason else "")
    else:
        assert old is not None and new is not None
        change = now - before
        if paired is not None and paired.interval is not None:
            interval, joint = paired.interval, True
        else:
            common = None if new.search is None else correlations.get(new.search)
            interval = mover(before, old.estimate["ci"], now, new.estimate["ci"], common)
            joint = common is not None and interval is not None
            if interval is None:
                remark = "no interval in one of the audits"
    return ReleaseChange(
        change,
        interval,
        remark=remark,
        grouping=grouping,
        group=group,
        figure=figure,
        target=target,
        old=before,
        new=now,
        paired=joint,
        old_verdict=tested[0],
        new_verdict=tested[1],
    )


def mover(
    old: float,
    old_limits: list[float] | None,
    new: float,
    new_limits: list[float] | None,
    correlation: float | None = None,
) -> Interval | None:
    """Return the interval of new − old from the intervals of both.

    Zou and Donner, Statistics in Medicine 27, 2008.

    Args:
        old: the earlier figure.
        old_limits: both ends of its interval; None without any.
        new: the later figure.
        new_limits: as ``old_limits``.
        correlation: of both figures, from the subjects that they share; None takes them as
            independent.
    """
    if old_limits is None or new_limits is None or None in (*old_limits, *new_limits):
        return None
    common = correlation or 0.0

    def margin(one: float, other: float) -> float:
        one, other = max(0.0, one), max(0.0, other)
        return math.sqrt(max(0.0, one * one + other * other - 2 * common * one * other))

    low = margin(new - new_limits[0], old_limits[1] - old)
    high = margin(new_limits[1] - new, old - old_limits[0])
    change = new - old
    how = (UNPAIRED, TAKEN_AS_INDEPENDENT) if correlation is None else (CORRELATED, SEARCHES)
    return Interval(change - low, change + high, method=how[0], assumption=how[1])
