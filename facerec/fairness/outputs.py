"""The audit as files: one page, one table as CSV and JSON, pictures, and a model card's section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from facerec.fairness.page import model_card, render
from facerec.fairness.result import Audit
from facerec.files import check_replaceable, json_bytes, parse_json, write_folder
from facerec.report import tidy
from facerec.report.csv_tables import to_csv

SCHEMA = "facerec.audit/2"
PAGE = "audit.html"
JSON = "audit.json"


def check_audit_folder(folder: str | Path) -> None:
    """Refuse a folder that a report may not replace; see `check_replaceable`."""
    check_replaceable(folder, _written_before, "an audit")


def write_audit(folder: str | Path, audit: Audit, command: str) -> Path:
    """Write the whole report; it appears whole or not at all, and replaces an earlier one.

    Args:
        folder: of the report.
        audit: what it says.
        command: that makes the same report again.

    Returns:
        The path of the page.

    Raises:
        FacerecError: the folder holds anything but an audit, or cannot be written.
    """
    final = Path(folder).resolve()
    check_audit_folder(final)
    files = {
        **render(audit, command),
        "audit.csv": to_csv(records(audit)),
        "model_card_section.md": model_card(audit).encode(),
    }
    document = to_json(audit, command, [*files, JSON])
    write_folder(final, {**files, JSON: json_bytes(document, indent=1)})
    return final / PAGE


def records(audit: Audit) -> list[dict[str, Any]]:
    """Return the rows as JSON types; what is no finite number is None."""
    return tidy.records(audit.rows.replace([np.inf, -np.inf], np.nan))


def to_json(audit: Audit, command: str, files: list[str]) -> dict[str, Any]:
    """Return the audit as JSON types: a head of facts, findings and sentences, and flat rows."""
    return {
        "schema": SCHEMA,
        "command": command,
        **audit.facts,
        "findings": [{**vars(finding), "text": finding.text} for finding in audit.findings],
        "warnings": list(audit.warnings),
        "caveats": list(audit.caveats),
        "files": sorted(files),
        "rows": records(audit),
    }


def read_rows(path: str | Path) -> list[Mapping[str, Any]]:
    """Return the rows of an ``audit.json``."""
    return list(parse_json(Path(path).read_bytes())["rows"])


def _written_before(folder: Path) -> set[str]:
    """Return the files that an earlier report in the folder says it wrote."""
    try:
        document = parse_json((folder / JSON).read_bytes())
        if document["schema"] == SCHEMA:
            return set(document["files"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return set()
