"""The audit as files: ``audit.json``, tables, a section for a model card, and the manifest.

JSON has no NaN: what is undefined is null with a reason beside it. Everything is made from
`to_json`, so that tables and JSON cannot differ. Ids of subjects and images are in no file.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from facerec.fairness.association import NoComparison
from facerec.fairness.channels import NormChannels
from facerec.fairness.norms import QUANTILES, NormSummary
from facerec.fairness.plain import Json, plain
from facerec.fairness.rates import SCORE_EDGES, ErrorRate, GroupRates
from facerec.fairness.result import Audit, GroupAudit
from facerec.files import check_replaceable, parse_json, write_folder
from facerec.report.csv_tables import to_csv
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
        **{f"tables/{name}.csv": to_csv(rows) for name, rows in tables(document).items() if rows},
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


def tables(document: Json) -> dict[str, list[Json]]:
    """Return flat tables by name.

    Args:
        document: see `to_json`.
    """
    channels = document["norm_channels"]
    comparison = document["comparison"] or {}
    return {
        "findings": [_flat(row) for row in document["findings"]],
        "exclusions": [
            {**_flat(row), "places": " ".join(map(str, row["places"]))}
            for row in document["exclusions"]
        ],
        "groups": [_flat(row) for row in document["groups"]],
        "norms": [
            {"grouping": row["grouping"], "group": row["name"], "figure": name, **_flat(row[name])}
            for row in document["norms"]
            for name in (*_FIGURES, *QUANTILES)
            if row[name] is not None
        ],
        "association": [_flat(row) for row in document["association"]],
        "pairs": [
            {"grouping": row["grouping"], **_flat(pair)}
            for row in document["association"]
            for pair in row["pairs"]
        ],
        "adjusted": [_flat(row) for row in document["adjusted"]],
        "thresholds": [_flat(row) for row in document["thresholds"]],
        "rates": [
            {**_flat(row, only=("grouping", "name", "fmr_nominal")), "error": kind}
            | _flat(row[kind.lower()])
            for row in document["rates"]
            for kind in ("FMR", "FNMR")
        ],
        "own_thresholds": [
            {**_flat(row, only=("grouping", "name", "fmr_nominal")), **_flat(row["own_threshold"])}
            for row in document["rates"]
            if row["own_threshold"] is not None
        ],
        "fmr_matrix": list(_matrix_rows(document["fmr_matrix"])),
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
        "differentials": [_flat(row) for row in document["differentials"]],
        "norm_correlations": [
            {"grouping": row["grouping"], **_flat(found)}
            for row in channels
            for found in row["correlations"]
        ],
        "norm_bins": [
            {"grouping": row["grouping"], **_flat(found, only=("bin", "low", "high"))}
            | {"group": rate["group"], **_flat(rate["fnmr"])}
            for row in channels
            for found in row["bins"]
            for rate in found["groups"]
        ],
        "norm_cuts": [
            {"grouping": row["grouping"], "share": cut["share"], "norm": cut["norm"], **_flat(part)}
            for row in channels
            for cut in row["cuts"]
            for part in cut["groups"]
        ],
        "standardised": [
            {"grouping": row["grouping"], **_flat(part)}
            for row in channels
            for part in row["standardised"]["groups"]
        ],
        "edc": [
            {"grouping": row["grouping"], "group": row["group"], "discarded": x, "fnmr": y}
            for row in document["edc"]
            for x, y in zip(row["discarded"], row["fnmr"], strict=True)
        ],
        "fusion": [_flat(row) for row in document["fusion"]],
        "comparison": [_flat(row) for row in comparison.get("rows", ())],
        "not_computed": [_flat(row) for row in document["not_computed"]],
    }


def model_card(audit: Audit) -> str:
    """Return sections for a model card, under the headings of the Hugging Face template."""
    settings, target = audit.settings, audit.target
    sources = _escape("; ".join(audit.label_sources))
    names = ", ".join(_escape(part.name) for part in audit.groupings)
    lines = ["<!-- Sections for a model card, made by facerec audit. -->", ""]
    if audit.banner is not None:
        lines += [f"> **{_escape(audit.banner)}**", ""]
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
        *(f"- {_escape(finding.text)}" for finding in audit.findings),
        "",
        *(f"- {_escape(caveat)}" for caveat in (*audit.caveats, *audit.warnings)),
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
        + f"Impostor pairs are drawn {_escape(audit.policy)}.",
        "",
        "### Results",
        "",
    ]
    for part in audit.groupings:
        lines += _card_table(part, target)
    lines += ["#### Entries", "", "```yaml", *_eval_results(audit), "```", ""]
    lines.append(f"Made by facerec {audit.version} with seed {settings.seed}.")
    return "\n".join(lines) + "\n"


def _card_table(part: GroupAudit, target: str | None) -> list[str]:
    head = [_escape(part.name)]
    if part.norms is not None:
        head += ["subjects", "images", "mean norm"]
    rates = part.rates if isinstance(part.rates, GroupRates) else None
    points = [] if rates is None else [p for p in rates.points if p.threshold.target == target]
    for point in points:
        head += [f"FMR at nominal {point.threshold.target}", "FNMR"]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for place, name in enumerate(part.names):
        cells = [_escape(name)]
        if part.norms is not None:
            row = part.norms.groups[place]
            cells += [f"{row.subjects:,}", f"{row.images:,}"]
            cells.append(_card_cell(row.subject_mean.value, row.subject_mean.interval))
        for point in points:
            group = point.groups[place]
            cells += [_card_rate(group.fmr), _card_rate(group.fnmr)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _card_rate(rate: ErrorRate) -> str:
    counts = f" ({rate.events:,}/{rate.total:,})"
    return _card_cell(rate.value, rate.interval) + counts


def _card_cell(value: float | None, interval: Interval | None) -> str:
    if value is None:
        return "–"
    limits = "" if interval is None else f" [{interval.low:.4g}, {interval.high:.4g}]"
    return f"{value:.4g}{limits}"


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


def _escape(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    flat = " ".join(text.split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", flat)


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


def _matrix_rows(matrices: Sequence[Json]) -> Iterator[Json]:
    for matrix in matrices:
        names = matrix["groups"]
        for i, first in enumerate(names):
            for j, second in enumerate(names[: i + 1]):
                low, high = matrix["ci"][i][j] or (None, None)
                yield {
                    "grouping": matrix["grouping"],
                    "fmr_nominal": matrix["fmr_nominal"],
                    "first": first,
                    "second": second,
                    **{key: matrix[key][i][j] for key in ("k", "n", "value", "log10")},
                    "ci_low": low,
                    "ci_high": high,
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


def _flat(row: Mapping[str, Any], only: Iterable[str] | None = None) -> Json:
    """Return one level: limits and inner objects as columns of their own, lists left out."""
    found: Json = {}
    for name, value in row.items():
        if only is not None and name not in only:
            continue
        if name == "ci" or name.endswith("_ci"):
            low, high = value or (None, None)
            found |= {f"{name}_low": low, f"{name}_high": high}
        elif isinstance(value, Mapping):
            found |= {f"{name}_{inner}": cell for inner, cell in _flat(value).items()}
        elif not isinstance(value, list):
            found[name] = value
    return found


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
