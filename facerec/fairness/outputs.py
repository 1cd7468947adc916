"""The audit as files: ``audit.json``, tables, a section for a model card, and the manifest.

JSON has no NaN: what is undefined is null with a reason beside it. Everything is made from
`to_json`, so that tables and JSON cannot differ. Ids of subjects and images are in no file.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from facerec.fairness.association import Association, NoComparison
from facerec.fairness.audit import Audit, GroupAudit
from facerec.fairness.channels import NormChannels
from facerec.fairness.differentials import Differentials
from facerec.fairness.norms import QUANTILES, NormSummary
from facerec.fairness.plain import Json, flat, plain
from facerec.fairness.rates import SCORE_EDGES, GroupRates
from facerec.fairness.tables import (
    card_table,
    change_table,
    differential_table,
    fusion_table,
    left_out_table,
    matrix_table,
    pair_table,
    threshold_table,
)
from facerec.files import check_replaceable, parse_json, write_folder
from facerec.report.csv_tables import to_csv
from facerec.report.table import Table, escape_markdown
from facerec.statistics.intervals import Interval

SCHEMA = "facerec.audit/1"
MANIFEST_SCHEMA = "facerec.audit-manifest/1"
SCHEMA_FILE = Path(__file__).with_name("schema") / "audit.schema.json"
"""JSON Schema of ``audit.json``."""

MANIFEST = "MANIFEST.json"
PAGE = "report.html"

_PACKAGES = ("numpy", "scipy", "pandas", "torch", "matplotlib")

_METRICS = "Norm of the raw embedding (mean over subjects' means), η² of subjects' mean norms, and "

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
        "audit.json": _encode(document),
        "model_card_section.md": model_card(audit).encode(),
        **{
            f"tables/{name}.csv": to_csv(rows)
            for name, rows in csv_tables(audit, document).items()
            if rows
        },
    }
    files[MANIFEST] = _encode(manifest(audit, files, command))
    write_folder(final, files)
    return final / PAGE


def manifest(audit: Audit, files: Mapping[str, bytes], command: str) -> Json:
    """Return what the report was made from, with what, and what it consists of.

    Args:
        audit: the audit.
        files: path → contents, of all files but the manifest.
        command: that makes the same report again.
    """
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
    every = audit.groupings
    return {
        "schema": SCHEMA,
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
            "images": audit.images,
            "pairs": audit.pairs,
            "failures": audit.failures,
            "subjects": audit.subjects,
            "single_images": audit.single_images,
        },
        "exclusions": plain(audit.exclusions),
        "thresholds": [
            {"fmr_nominal": point.target, **plain(point, leave=("target",))}
            for point in audit.thresholds
        ],
        "target": audit.target,
        "channels": plain(audit.channels),
        "findings": [{**plain(found), "text": found.text} for found in audit.findings],
        "groups": [row for part in every for row in _groups(part)],
        "norms": [row for part in every for row in _norms(part)],
        "association": [_association(part) for part in every if _known(part.association)],
        "adjusted": [
            {"grouping": part.name, **plain(part.adjusted, leave=("name",))}
            for part in every
            if _known(part.adjusted)
        ],
        "rates": [row for part in every for row in _rates(part)],
        "fmr_matrix": [row for part in every for row in _matrices(part)],
        "det": [row for part in every for row in _det(part)],
        "scores": [row for part in every for row in _scores(part)],
        "differentials": [row for part in every for row in _differentials(part)],
        "norm_channels": [_norm_channels(part) for part in every if _known(part.channels)],
        "edc": [row for part in every for row in _edc(part)],
        "fusion": [row for part in every for row in _fusion(part)],
        "comparison": None if audit.comparison is None else plain(audit.comparison.to_json()),
        "not_computed": list(_not_computed(audit)),
        "caveats": list(audit.caveats),
        "warnings": list(audit.warnings),
    }


def csv_tables(audit: Audit, document: Json) -> dict[str, list[Json]]:
    """Return the rows of all tables by name: those of the page, and what only files have.

    Args:
        audit: what the page shows.
        document: see `to_json`.
    """
    channels = document["norm_channels"]
    every = audit.groupings

    def of_page(grouping: GroupAudit, table: Table[Any], **shared: Any) -> list[Json]:
        return [{"grouping": grouping.name, **shared, **row} for row in table.records()]

    return {
        "findings": [flat(row) for row in document["findings"]],
        "exclusions": left_out_table(audit).records(),
        "groups": [flat(row) for row in document["groups"]],
        "norms": [
            {"grouping": row["grouping"], "group": row["name"], "figure": name, **flat(row[name])}
            for row in document["norms"]
            for name in (*_FIGURES, *QUANTILES)
            if row[name] is not None
        ],
        "association": [flat(row) for row in document["association"]],
        "pairs": [
            row
            for grouping in every
            if isinstance(grouping.association, Association)
            for row in of_page(grouping, pair_table(grouping.association))
        ],
        "adjusted": [flat(row) for row in document["adjusted"]],
        "thresholds": threshold_table(audit).records(),
        "rates": [
            {**flat(row, only=("grouping", "name", "fmr_nominal")), "error": kind}
            | flat(row[kind.lower()])
            for row in document["rates"]
            for kind in ("FMR", "FNMR")
        ],
        "own_thresholds": [
            {**flat(row, only=("grouping", "name", "fmr_nominal")), **flat(row["own_threshold"])}
            for row in document["rates"]
            if row["own_threshold"] is not None
        ],
        "fmr_matrix": [
            row
            for grouping in every
            if isinstance(grouping.rates, GroupRates)
            for point in grouping.rates.points
            for row in of_page(
                grouping,
                matrix_table(point, grouping.rates.names),
                fmr_nominal=point.threshold.target,
            )
        ],
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
                "genuine": genuine,
                "impostor": impostor,
            }
            for row in document["scores"]
            for edge, genuine, impostor in zip(
                SCORE_EDGES[:-1].tolist(), row["genuine"], row["impostor"], strict=True
            )
        ],
        "differentials": [
            row
            for grouping in every
            if isinstance(grouping.differentials, Differentials)
            for row in of_page(grouping, differential_table(grouping.differentials))
        ],
        "norm_correlations": [
            {"grouping": row["grouping"], **flat(found)}
            for row in channels
            for found in row["correlations"]
        ],
        "norm_bins": [
            {"grouping": row["grouping"], **flat(found, only=("bin", "low", "high"))}
            | {"group": rate["group"], **flat(rate["fnmr"])}
            for row in channels
            for found in row["bins"]
            for rate in found["groups"]
        ],
        "norm_cuts": [
            {"grouping": row["grouping"], "share": cut["share"], "norm": cut["norm"], **flat(part)}
            for row in channels
            for cut in row["cuts"]
            for part in cut["groups"]
        ],
        "standardised": [
            {"grouping": row["grouping"], **flat(part)}
            for row in channels
            for part in row["standardised"]["groups"]
        ],
        "edc": [
            {"grouping": row["grouping"], "group": row["group"], "discarded": x, "fnmr": y}
            for row in document["edc"]
            for x, y in zip(row["discarded"], row["fnmr"], strict=True)
        ],
        "fusion": [
            row
            for grouping in every
            if not isinstance(grouping.fusion, NoComparison)
            for row in of_page(grouping, fusion_table(grouping.fusion))
        ],
        "comparison": change_table(document["comparison"]).records()
        if document["comparison"]
        else [],
        "not_computed": [flat(row) for row in document["not_computed"]],
    }


def model_card(audit: Audit) -> str:
    """Return sections for a model card, under the headings of the Hugging Face template."""
    settings = audit.settings
    sources = escape_markdown("; ".join(audit.label_sources))
    names = ", ".join(escape_markdown(part.name) for part in audit.groupings)
    lines = ["<!-- Sections for a model card, made by facerec audit. -->", ""]
    if audit.banner is not None:
        lines += [f"> **{escape_markdown(audit.banner)}**", ""]
    lines += [
        "## Uses",
        "",
        "### Out-of-Scope Use",
        "",
        "The figures below describe one data set at one threshold. They are no basis for a "
        "decision about people, and say nothing of other data or thresholds.",
        "",
        "## Bias, Risks, and Limitations",
        "",
        *(f"- {escape_markdown(finding.text)}" for finding in audit.findings),
        "",
        *(f"- {escape_markdown(caveat)}" for caveat in (*audit.caveats, *audit.warnings)),
        "",
        "## Evaluation",
        "",
        "### Testing Data, Factors & Metrics",
        "",
        "#### Testing Data",
        "",
        f"{audit.lead}, of which {audit.failures:,} were not acquired.",
        "",
        *(f"- {file.role}: `{_code(file.name)}`, SHA-256 `{file.sha256}`" for file in audit.inputs),
        "",
        "#### Factors",
        "",
        f"{names}; labels from {sources}. Groups under ten subjects are pooled or left out.",
        "",
        "#### Metrics",
        "",
        f"{_METRICS if not audit.of_scores else ''}"
        "FMR and FNMR within groups at one threshold for all, with 95 % intervals that "
        + (
            "take pairs as independent, since their subjects are not known. "
            if audit.subjects is None
            else "allow for images and pairs that share a subject. "
        )
        + f"Impostor pairs are drawn {escape_markdown(audit.policy)}.",
        "",
        "### Results",
        "",
    ]
    for grouping in audit.groupings:
        lines += [card_table(audit, grouping).markdown(), ""]
    lines += ["#### Entries", "", "```yaml", *_eval_results(audit), "```", ""]
    lines.append(f"Made by facerec {audit.version} with seed {settings.seed}.")
    return "\n".join(lines) + "\n"


def _eval_results(audit: Audit) -> Iterator[str]:
    """Yield entries in the manner of `huggingface_hub.EvalResult`, one a group and figure."""
    data = next((file.name for file in audit.inputs if file.role == "attributes"), "attributes")
    for part in audit.groupings:
        found: list[tuple[str, str, float | None, Interval | None, int]] = [
            (row.name, "mean norm", row.subject_mean.value, row.subject_mean.interval, row.subjects)
            for row in (() if part.norms is None else part.norms.groups)
        ]
        if isinstance(part.rates, GroupRates):
            for point in part.rates.points:
                if point.threshold.target != audit.target:
                    continue
                for group in point.groups:
                    for kind, rate in (("FMR", group.fmr), ("FNMR", group.fnmr)):
                        name = f"{kind} at nominal FMR {audit.target}"
                        row = group.name, name, rate.value, rate.interval, rate.total
                        found.append(row)
        for group_name, metric, value, interval, count in found:
            yield f"- task_type: {_quoted('face-verification')}"
            yield f"  dataset_name: {_quoted(data)}"
            yield f"  dataset_config: {_quoted(f'{part.name} = {group_name}')}"
            yield f"  metric_name: {_quoted(metric)}"
            yield f"  metric_value: {json.dumps(value)}"
            limits = None if interval is None else [interval.low, interval.high]
            yield f"  metric_args: {json.dumps({'confidence_interval': limits, 'n': count})}"


def _quoted(text: str) -> str:
    """Return a YAML string: one of JSON is one. It can neither end the block nor be a tag."""
    return json.dumps(text).replace("`", "\\u0060").replace("<", "\\u003c")


def _code(text: str) -> str:
    return " ".join(text.replace("`", "'").split())


def _known(value: Any) -> bool:
    return value is not None and not isinstance(value, NoComparison)


def _slice(part: GroupAudit, name: str | None) -> Json | None:
    """Return the value by attribute of a group; None for all groups."""
    return dict(part.slices[part.names.index(name)]) if name in part.names else None


def _groups(part: GroupAudit) -> Iterator[Json]:
    composition = part.rates.composition if isinstance(part.rates, GroupRates) else None
    for place, (name, counts) in enumerate(zip(part.names, part.composition, strict=True)):
        pairs = None if composition is None else composition[place]
        yield {
            "grouping": part.name,
            "primary": part.primary,
            "name": name,
            "slice": dict(counts.slice),
            "suppressed": False,
            "subjects": counts.subjects,
            "images": counts.images,
            "fta": None if counts.images is None else {"k": counts.failed, "n": counts.images},
            "mated": None if pairs is None else pairs.mated,
            "non_mated": None if pairs is None else pairs.non_mated,
            "smallest_fmr": None if pairs is None else pairs.smallest_fmr,
            "lost_mated": None if pairs is None else pairs.lost_mated,
            "lost_non_mated": None if pairs is None else pairs.lost_non_mated,
            "reason": None,
        }
    for names, reason in (
        (part.pooled, "under ten subjects, part of the pooled group"),
        (part.suppressed, "under ten subjects, or such a cell would follow from totals"),
    ):
        for name in names:
            yield {
                "grouping": part.name,
                "primary": part.primary,
                "name": name,
                "slice": None,
                "suppressed": True,
                **dict.fromkeys(("subjects", "images", "fta", "mated", "non_mated")),
                **dict.fromkeys(("smallest_fmr", "lost_mated", "lost_non_mated")),
                "reason": reason,
            }


def _norms(part: GroupAudit) -> Iterator[Json]:
    def row(summary: NormSummary, of: Json | None) -> Json:
        return {
            "grouping": part.name,
            "name": summary.name,
            "slice": of,
            "subjects": summary.subjects,
            "images": summary.images,
            **{name: plain(getattr(summary, name)) for name in _FIGURES},
            **{name: plain(summary.quantiles[name]) for name in QUANTILES},
            "images_per_subject": plain(summary.images_per_subject),
            "design_effect": plain(summary.design_effect),
            "effective_images": plain(summary.effective_images),
        }

    if part.norms is None:
        return
    for summary in part.norms.groups:
        yield row(summary, _slice(part, summary.name))
    yield row(part.norms.overall, None)


def _association(part: GroupAudit) -> Json:
    found = plain(part.association, leave=("name", "p", "pairs"))
    assert not isinstance(part.association, NoComparison)
    return {
        "grouping": part.name,
        "attr": list(part.attributes),
        "unit": "subject",
        **found,
        "p_perm": part.association.p,
        "pairs": plain(part.association.pairs),
    }


def _rates(part: GroupAudit) -> Iterator[Json]:
    if isinstance(part.rates, NoComparison):
        return
    for point in part.rates.points:
        shared = {"grouping": part.name, "fmr_nominal": point.threshold.target}
        for group in point.groups:
            yield {
                **shared,
                "name": group.name,
                "slice": _slice(part, group.name),
                "fmr": plain(group.fmr),
                "fnmr": plain(group.fnmr),
                "own_threshold": plain(group.own_threshold),
            }
        yield {
            **shared,
            "name": "all groups",
            "slice": None,
            "fmr": plain(point.fmr),
            "fnmr": plain(point.fnmr),
            "own_threshold": None,
        }


def _matrices(part: GroupAudit) -> Iterator[Json]:
    if isinstance(part.rates, NoComparison):
        return
    for point in part.rates.points:
        matrix = point.matrix
        yield {
            "grouping": part.name,
            "fmr_nominal": point.threshold.target,
            "groups": list(part.rates.names),
            "k": [[cell.events for cell in row] for row in matrix.cells],
            "n": [[cell.total for cell in row] for row in matrix.cells],
            "value": [[cell.value for cell in row] for row in matrix.cells],
            "log10": plain(matrix.log10),
            "ci": [
                [None if cell.interval is None else plain((cell.low, cell.high)) for cell in row]
                for row in matrix.cells
            ],
        }


def _det(part: GroupAudit) -> Iterator[Json]:
    if isinstance(part.rates, GroupRates):
        for curve in part.rates.det:
            yield {"grouping": part.name, **plain(curve)}


def _scores(part: GroupAudit) -> Iterator[Json]:
    for histogram in part.histograms:
        yield {"grouping": part.name, **plain(histogram)}


def _differentials(part: GroupAudit) -> Iterator[Json]:
    if isinstance(part.differentials, NoComparison):
        return
    for row in part.differentials.rows:
        yield {
            "grouping": part.name,
            "groups": list(part.differentials.groups),
            "fmr_nominal": row.target,
            **plain(row, leave=("target",)),
        }


def _norm_channels(part: GroupAudit) -> Json:
    assert isinstance(part.channels, NormChannels)
    return {"grouping": part.name, **plain(part.channels, leave=("curves", "seed"))}


def _edc(part: GroupAudit) -> Iterator[Json]:
    if isinstance(part.channels, NormChannels):
        for curve in part.channels.curves:
            yield {
                "grouping": part.name,
                "threshold": part.channels.threshold,
                **plain(curve),
            }


def _fusion(part: GroupAudit) -> Iterator[Json]:
    if not isinstance(part.fusion, NoComparison):
        for change in part.fusion:
            yield {
                "grouping": part.name,
                "fmr_nominal": change.target,
                **plain(change, leave=("target",)),
            }


def _not_computed(audit: Audit) -> Iterator[Json]:
    """Yield what has no figures, and why."""
    for skipped in audit.skipped:
        yield {"grouping": skipped.name, "what": "everything", "reason": skipped.reason}
    for part in audit.groupings:
        for what in ("association", "adjusted", "rates", "differentials", "channels", "fusion"):
            found = getattr(part, what)
            if isinstance(found, NoComparison):
                yield {"grouping": part.name, "what": what, "reason": found.reason}
        if not isinstance(part.differentials, NoComparison):
            reasons = [part.differentials.reason, *part.differentials.left_out]
            for reason in filter(None, reasons):
                yield {"grouping": part.name, "what": "differentials", "reason": reason}


def _encode(value: Json) -> bytes:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def _written_before(folder: Path) -> set[str]:
    """Return the files that an earlier audit says it wrote; none if there is no audit."""
    try:
        found = parse_json((folder / MANIFEST).read_bytes())
        return {MANIFEST, *found["outputs"]} if found["schema"] == MANIFEST_SCHEMA else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()
