"""The audit as files: ``audit.json``, tables, a section for a model card, and the manifest.

JSON has no NaN: what is undefined is null with a reason beside it. Everything is made from
`to_json`, so that tables and JSON cannot differ. Ids of subjects and images are in no file.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from facerec.fairness.attributes import ALL_GROUPS
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.norms import QUANTILES
from facerec.fairness.one_to_many import OneToMany
from facerec.fairness.plain import AUDIT_SCHEMA, Json, flat, flat_rows, plain
from facerec.fairness.rate_results import SCORE_EDGES, GroupRates, RatesAtThreshold
from facerec.fairness.result import Audit, GroupAudit
from facerec.fairness.tables import (
    card_table,
    change_table,
    differential_table,
    fusion_table,
    left_out_table,
    matrix_table,
    pair_table,
    threshold_table,
    working_point,
)
from facerec.files import check_replaceable, json_bytes, parse_json, write_folder
from facerec.report.csv_tables import to_csv
from facerec.report.estimate import Estimate
from facerec.report.table import Table, escape_markdown

MANIFEST_SCHEMA = "facerec.audit-manifest/1"
SCHEMA_FILE = Path(__file__).with_name("schema") / "audit.schema.json"
"""JSON Schema of ``audit.json``."""

MANIFEST = "MANIFEST.json"
PAGE = "report.html"

_PACKAGES = ("numpy", "scipy", "pandas", "torch", "matplotlib")

_DATA = ("embeddings", "scores", "pairs", "attributes")
"""Roles of the files that name the data, the first that is there."""

_METRICS = "Norm of the raw embedding (mean over subjects' means), η² of subjects' mean norms, and "

_POOLED = "under ten subjects, part of the pooled group"
_SUPPRESSED = "under ten subjects, or such a cell would follow from totals"

_FIGURES = ("mean", "subject_mean", "difference", "sd", "cv", "between_sd", "within_sd", "icc")
"""Figures of a norm table, apart from quantiles."""


def check_audit_folder(folder: str | Path) -> None:
    """Refuse a folder that a report may not replace; see `check_replaceable`."""
    check_replaceable(folder, _written_before, "an audit")


def write_audit(folder: str | Path, audit: Audit, pages: Mapping[str, bytes], command: str) -> Path:
    """Write the whole report; it appears whole or not at all, and replaces an earlier one.

    Args:
        folder: of the report.
        audit: what it says.
        pages: ``report.html`` and figures, path → contents.
        command: that makes the same report again.

    Returns:
        The path of the page.

    Raises:
        FacerecError: the folder holds anything but an audit, or cannot be written.
    """
    final = Path(folder).resolve()
    check_audit_folder(final)
    document = to_json(audit)
    files = {
        **pages,
        "audit.json": json_bytes(document, indent=1),
        "model_card_section.md": model_card(audit).encode(),
        **{
            f"tables/{name}.csv": to_csv(rows)
            for name, rows in csv_tables(audit, document).items()
            if rows
        },
    }
    files[MANIFEST] = json_bytes(manifest(audit, files, command), indent=1)
    write_folder(final, files)
    return final / PAGE


def manifest(audit: Audit, files: Mapping[str, bytes], command: str) -> Json:
    """Return what the report was made from, with what, and which other files it consists of."""
    return {
        "schema": MANIFEST_SCHEMA,
        "facerec": audit.version,
        "command": command,
        "seed": audit.settings.seed,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "inputs": [
            {"role": file.role, "name": file.name, "sha256": file.sha256} for file in audit.inputs
        ],
        "outputs": {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)},
    }


def to_json(audit: Audit) -> Json:
    """Return the audit as JSON types, as `SCHEMA_FILE` describes them."""
    settings = audit.settings
    every, each = audit.groupings, partial(_each, audit)
    searches = audit.one_to_many if isinstance(audit.one_to_many, OneToMany) else None
    return {
        "schema": AUDIT_SCHEMA,
        "facerec": audit.version,
        "banner": audit.banner,
        "inputs": {file.role: plain(file, leave=("role",)) for file in audit.inputs},
        "label_sources": list(audit.label_sources),
        "settings": {
            "groups": list(settings.groups),
            "intersect": settings.intersect,
            "covariates": list(settings.covariates),
            "fmr": list(settings.targets),
            "impostors": settings.impostors,
            "policy": audit.policy,
            "seed": settings.seed,
            "boot": settings.replicates,
            "perm": settings.permutations,
        },
        "counts": {
            name: getattr(audit, name)
            for name in ("images", "pairs", "failures", "subjects", "single_images")
        },
        "exclusions": plain(audit.exclusions),
        "thresholds": [*map(_at_target, audit.thresholds)],
        "target": audit.target,
        "channels": plain(audit.channels),
        "findings": [{**plain(finding), "text": finding.text} for finding in audit.findings],
        "groups": [row for grouping in every for row in _groups(grouping)],
        "norms": [row for grouping in every for row in _norms(grouping)],
        "association": [
            {
                "grouping": grouping.name,
                "attr": list(grouping.grouping.attributes),
                "unit": "subject",
                **plain(association, leave=("name", "p")),
                "p_perm": association.p,
            }
            for grouping, association in _known(audit, "association")
        ],
        "adjusted": each("adjusted", lambda one: [plain(one, leave=("name",))]),
        "rates": [
            row for grouping, rates in _known(audit, "rates") for row in _rates(grouping, rates)
        ],
        "fmr_matrix": each("rates", lambda rates: (_matrix(rates, one) for one in rates.points)),
        "det": each("rates", lambda rates: plain(rates.det)),
        "scores": each("histograms", plain),
        "differentials": each(
            "differentials",
            lambda found: ({"groups": list(found.groups), **_at_target(row)} for row in found.rows),
        ),
        "norm_channels": each("channels", lambda one: [plain(one, leave=("curves", "seed"))]),
        "edc": each(
            "channels",
            lambda found: (
                {"threshold": found.threshold, **plain(curve)} for curve in found.curves
            ),
        ),
        "fusion": each("fusion", lambda changes: map(_at_target, changes)),
        "comparison": None if audit.comparison is None else plain(audit.comparison.to_json()),
        "one_to_many": plain(searches),
        "not_computed": list(_not_computed(audit)),
        "caveats": list(audit.caveats),
        "warnings": list(audit.warnings),
    }


def csv_tables(audit: Audit, document: Json) -> dict[str, list[Json]]:
    """Return the rows of all tables by name: those of the page, and what only files have.

    The document is that of `to_json`.
    """
    channels = document["norm_channels"]
    searches = document["one_to_many"]

    def of_page(what: str, table: Callable[[Any], Table[Any]]) -> list[Json]:
        return _each(audit, what, lambda figures: table(figures).records())

    def within(groupings: Iterable[Json], name: str) -> list[Json]:
        return flat_rows(
            {"grouping": grouping["grouping"], **row}
            for grouping in groupings
            for row in grouping[name]
        )

    return {
        "findings": [flat(row) for row in document["findings"]],
        "exclusions": left_out_table(audit).records(),
        "groups": flat_rows(document["groups"]),
        "norms": [
            {"grouping": row["grouping"], "group": row["name"], "figure": name, **flat(row[name])}
            for row in document["norms"]
            for name in (*_FIGURES, *QUANTILES)
            if row[name] is not None
        ],
        "association": [flat(row) for row in document["association"]],
        "pairs": of_page("association", pair_table),
        "adjusted": [flat(row) for row in document["adjusted"]],
        "thresholds": threshold_table(audit).records(),
        "rates": [
            {**flat(row, only=("grouping", "name", "fmr_nominal")), "error": kind}
            | flat(row[kind.lower()])
            for row in document["rates"]
            for kind in ("FMR", "FNMR")
        ],
        "own_thresholds": flat_rows(
            {**flat(row, only=("grouping", "name", "fmr_nominal")), **row["own_threshold"]}
            for row in document["rates"]
            if row["own_threshold"] is not None
        ),
        "fmr_matrix": _each(
            audit,
            "rates",
            lambda rates: (
                {"fmr_nominal": point.threshold.target, **row}
                for point in rates.points
                for row in matrix_table(point, rates.names).records()
            ),
        ),
        "det": [
            {"grouping": row["grouping"], "group": row["name"], "threshold": t, "x": x, "y": y}
            for row in document["det"]
            for t, x, y in zip(row["thresholds"], row["x"], row["y"], strict=True)
        ],
        "scores": [
            {
                "grouping": row["grouping"],
                "group": row["name"],
                "score_from": edge,
                "genuine": mated,
                "impostor": non_mated,
            }
            for row in document["scores"]
            for edge, mated, non_mated in zip(
                SCORE_EDGES[:-1].tolist(), row["genuine"], row["impostor"], strict=True
            )
        ],
        "differentials": of_page("differentials", differential_table),
        "norm_correlations": within(channels, "correlations"),
        "norm_bins": [
            {"grouping": row["grouping"], **flat(tenth, only=("bin", "low", "high"))}
            | {"group": rate["group"], **flat(rate["fnmr"])}
            for row in channels
            for tenth in row["bins"]
            for rate in tenth["groups"]
        ],
        "norm_cuts": [
            {"grouping": row["grouping"], "share": cut["share"], "norm": cut["norm"], **flat(group)}
            for row in channels
            for cut in row["cuts"]
            for group in cut["groups"]
        ],
        "standardised": [
            {"grouping": row["grouping"], **flat(group)}
            for row in channels
            for group in row["standardised"]["groups"]
        ],
        "edc": [
            {"grouping": row["grouping"], "group": row["group"], "discarded": x, "fnmr": y}
            for row in document["edc"]
            for x, y in zip(row["discarded"], row["fnmr"], strict=True)
        ],
        "fusion": of_page("fusion", fusion_table),
        "comparison": change_table(audit.comparison).records() if audit.comparison else [],
        **{
            f"one_to_many_{name}": within(searches["groupings"] if searches else (), name)
            for name in ("rates", "thresholds", "failures")
        },
        "not_computed": [flat(row) for row in document["not_computed"]],
    }


def model_card(audit: Audit) -> str:
    """Return sections for a model card, under the headings of the Hugging Face template."""
    sources = escape_markdown("; ".join(audit.label_sources))
    names = ", ".join(escape_markdown(grouping.name) for grouping in audit.groupings)
    blocks = ["<!-- Sections for a model card, made by facerec audit. -->"]
    if audit.banner is not None:
        blocks.append(f"> **{escape_markdown(audit.banner)}**")
    metrics = "" if audit.of_scores else _METRICS
    intervals = (
        "take pairs as independent, since their subjects are not known"
        if audit.subjects is None
        else "allow for images and pairs that share a subject"
    )
    files = [
        f"- {file.role}: `{_code(file.name)}`, SHA-256 `{file.sha256}`" for file in audit.inputs
    ]
    blocks += [
        "## Uses",
        "### Out-of-Scope Use",
        "The figures below describe one data set at one threshold. They are no basis for a "
        "decision about people, and say nothing of other data or thresholds.",
        "## Bias, Risks, and Limitations",
        "\n".join(f"- {escape_markdown(finding.text)}" for finding in audit.findings),
        "\n".join(f"- {escape_markdown(text)}" for text in (*audit.caveats, *audit.warnings)),
        "## Evaluation",
        "### Testing Data, Factors & Metrics",
        "#### Testing Data",
        "\n".join([f"{audit.lead}, of which {audit.failures:,} were not acquired.", "", *files]),
        "#### Factors",
        f"{names}; labels from {sources}. Groups under ten subjects are pooled or left out.",
        "#### Metrics",
        f"{metrics}FMR and FNMR within groups at one threshold for all, with 95 % intervals that "
        f"{intervals}. Non-mated pairs are drawn {escape_markdown(audit.policy)}.",
        "### Results",
        *(card_table(audit, grouping).markdown() for grouping in audit.groupings),
        "#### Entries",
        "\n".join(["```yaml", *_eval_results(audit), "```"]),
        f"Made by facerec {audit.version} with seed {audit.settings.seed}.\n",
    ]
    return "\n\n".join(blocks)


def _eval_results(audit: Audit) -> Iterator[str]:
    """Yield entries in the manner of `huggingface_hub.EvalResult`, one a group and figure."""
    names = {file.role: file.details.get("data") or Path(file.name).stem for file in audit.inputs}
    data = next((names[role] for role in _DATA if role in names), "not named")
    for grouping in audit.groupings:
        point = working_point(audit, grouping)
        figures: list[tuple[str, str, Estimate]] = [
            (group.name, "mean norm", group.subject_mean)
            for group in (() if grouping.norms is None else grouping.norms.groups)
        ]
        figures += [
            (group.name, f"{kind} at nominal FMR {point.threshold.target}", rate)
            for group in (() if point is None else point.groups)
            for kind, rate in (("FMR", group.fmr), ("FNMR", group.fnmr))
            if point is not None
        ]
        for name, metric, estimate in figures:
            limits = None if estimate.interval is None else [estimate.low, estimate.high]
            basis = {"confidence_interval": limits, "n": estimate.total}
            yield f"- task_type: {_quoted('face-verification')}"
            yield f"  dataset_name: {_quoted(data)}"
            yield f"  dataset_config: {_quoted(f'{grouping.name} = {name}')}"
            yield f"  metric_name: {_quoted(metric)}"
            yield f"  metric_value: {json.dumps(estimate.value)}"
            yield f"  metric_args: {json.dumps(basis)}"


def _quoted(text: str) -> str:
    """Return a YAML string: one of JSON is one. It can neither end the block nor be a tag."""
    return json.dumps(text).replace("`", "\\u0060").replace("<", "\\u003c")


def _code(text: str) -> str:
    return " ".join(text.replace("`", "'").split())


def _known(audit: Audit, what: str) -> Iterator[tuple[GroupAudit, Any]]:
    """Yield the groupings that have some figures, with these."""
    for grouping in audit.groupings:
        figures = getattr(grouping, what)
        if figures is not None and not isinstance(figures, NoComparison):
            yield grouping, figures


def _each(audit: Audit, what: str, rows: Callable[[Any], Iterable[Json]]) -> list[Json]:
    """Return the rows that some figures make, of all groupings that have them, one below another.

    Args:
        audit: has the groupings.
        what: attribute of `GroupAudit`.
        rows: makes the rows of one grouping from these figures.
    """
    return [
        {"grouping": grouping.name, **row}
        for grouping, figures in _known(audit, what)
        for row in rows(figures)
    ]


def _at_target(row: Any) -> Json:
    return {"fmr_nominal": row.target, **plain(row, leave=("target",))}


def _groups(grouping: GroupAudit) -> Iterator[Json]:
    shared = {"grouping": grouping.name, "primary": grouping.primary}
    of_pairs = ("mated", "non_mated", "smallest_fmr", "lost_mated", "lost_non_mated")
    rates = grouping.rates if isinstance(grouping.rates, GroupRates) else None
    for index, (name, counts) in enumerate(zip(grouping.names, grouping.composition, strict=True)):
        pairs = None if rates is None else rates.composition[index]
        yield {
            **shared,
            "name": name,
            "slice": dict(counts.slice),
            "suppressed": False,
            "subjects": counts.subjects,
            "images": counts.images,
            "fta": None if counts.images is None else {"k": counts.failed, "n": counts.images},
            **{key: getattr(pairs, key, None) for key in of_pairs},
            "reason": None,
        }
    hidden = [(name, _POOLED) for name in grouping.pooled]
    hidden += [(name, _SUPPRESSED) for name in grouping.suppressed]
    for name, reason in hidden:
        yield {
            **shared,
            "name": name,
            "slice": None,
            "suppressed": True,
            **dict.fromkeys(("subjects", "images", "fta", *of_pairs)),
            "reason": reason,
        }


def _norms(grouping: GroupAudit) -> Iterator[Json]:
    if grouping.norms is None:
        return
    slices: list[Json | None] = [*map(dict, grouping.slices), None]
    for of, summary in zip(slices, (*grouping.norms.groups, grouping.norms.overall), strict=True):
        yield {
            "grouping": grouping.name,
            "slice": of,
            **plain(summary, leave=("quantiles",)),
            **plain(summary.quantiles),
        }


def _rates(grouping: GroupAudit, rates: GroupRates) -> Iterator[Json]:
    for point in rates.points:
        shared = {"grouping": grouping.name, "fmr_nominal": point.threshold.target}
        for group, of in zip(point.groups, grouping.slices, strict=True):
            yield {**shared, "slice": dict(of), **plain(group)}
        yield {
            **shared,
            "name": ALL_GROUPS,
            "slice": None,
            "fmr": plain(point.fmr),
            "fnmr": plain(point.fnmr),
            "own_threshold": None,
        }


def _matrix(rates: GroupRates, point: RatesAtThreshold) -> Json:
    cells = point.matrix
    return {
        "fmr_nominal": point.threshold.target,
        "groups": list(rates.names),
        "k": [[cell.events for cell in row] for row in cells],
        "n": [[cell.total for cell in row] for row in cells],
        "value": [[cell.value for cell in row] for row in cells],
        "log10": [[cell.log10 for cell in row] for row in cells],
        "ci": [[cell.interval and [cell.low, cell.high] for cell in row] for row in cells],
    }


def _not_computed(audit: Audit) -> Iterator[Json]:
    """Yield what has no figures, and why."""
    if isinstance(audit.one_to_many, NoComparison):
        yield {"grouping": "", "what": "one to many", "reason": audit.one_to_many.reason}
    for skipped in audit.skipped:
        yield {"grouping": skipped.name, "what": "everything", "reason": skipped.reason}
    for grouping in audit.groupings:
        for what in ("association", "adjusted", "rates", "differentials", "channels", "fusion"):
            figures = getattr(grouping, what)
            if isinstance(figures, NoComparison):
                yield {"grouping": grouping.name, "what": what, "reason": figures.reason}
        if not isinstance(grouping.differentials, NoComparison):
            reasons = [grouping.differentials.reason, *grouping.differentials.left_out]
            for reason in filter(None, reasons):
                yield {"grouping": grouping.name, "what": "differentials", "reason": reason}


def _written_before(folder: Path) -> set[str]:
    """Return the files that an earlier audit says it wrote; none if there is no audit."""
    try:
        manifest = parse_json((folder / MANIFEST).read_bytes())
        return {MANIFEST, *manifest["outputs"]} if manifest["schema"] == MANIFEST_SCHEMA else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
