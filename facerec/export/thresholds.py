"""Thresholds of a verification report, for the services that will use the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from facerec.errors import ExportError
from facerec.files import parse_json, read_file, sha256
from facerec.verification import VerificationResult

Threshold = dict[str, Any]
"""One threshold as JSON types: bench, fpr (the target), threshold, fpr_realised and tpr with their
intervals and counts, flip, score."""


def read_thresholds(path: Path, model_sha256: str | None) -> list[Threshold]:
    """Read the thresholds of a report that ``facerec verify`` wrote, by ``--json`` or ``--out``.

    Each gets a ``source``: the report's name and SHA-256. What the data could not resolve is left
    out.

    Args:
        path: the file, or the folder of a report.
        model_sha256: of the weights that are exported; thresholds of others do not fit.

    Raises:
        ExportError: no such report, one on another model, or one of mixed kind.
    """
    path = path / "report.json" if path.is_dir() else path
    try:
        results = parse_json(read_file(path))["results"]
        results = list(results.values() if isinstance(results, dict) else results)
        digests = {(result["model"] or {}).get("sha256") for result in results}
        source = {"report": path.name, "sha256": sha256(path)}
        rows = [{**row, "source": source} for result in results for row in _rows(result)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportError(
            f"{path}: not a report of facerec verify ({error!r}); write one with --json"
        ) from error
    if digests != {model_sha256} or model_sha256 is None:
        raise ExportError(
            f"{path}: the report is on a model with SHA-256 "
            f"{', '.join(str(digest)[:12] for digest in digests)}, not on this one "
            f"({str(model_sha256)[:12]}), and thresholds belong to one model; verify this one"
        )
    flips = [row["flip"] for row in rows]
    if not any(all(flip is mode for flip in flips) for mode in (True, False)):
        raise ExportError(
            f"{path}: its thresholds do not all say, or not all alike, whether mirror images took "
            "part, but a service embeds in one way; give a report of one kind"
        )
    return rows


def result_thresholds(result: VerificationResult) -> list[Threshold]:
    """Return the thresholds that a result found, without a ``source``."""
    return list(_rows(result.to_json()))


def flip_mode(thresholds: Sequence[Threshold]) -> str | None:
    """Name how the embeddings behind thresholds were made: ``none`` or ``sum_raw``.

    None without thresholds.
    """
    return ("sum_raw" if thresholds[0]["flip"] else "none") if thresholds else None


def _rows(result: Mapping[str, Any]) -> Iterable[Threshold]:
    for point in result["tpr_at_fpr"]:
        threshold = point["threshold"]
        # A threshold that is not finite is stored as text or null.
        if not (point["resolvable"] and isinstance(threshold, float) and math.isfinite(threshold)):
            continue
        ends = point["threshold_interval"]
        limits = None if ends is None else [ends["low"], ends["high"]]
        # One that is open at an end is stored as text.
        known = limits is not None and all(isinstance(end, float) for end in limits)
        yield {
            "bench": result["bench"],
            "fpr": point["target"],
            "threshold": threshold,
            "threshold_interval": limits if known else None,
            "fpr_realised": point["fpr_realised"],
            "fpr_interval": _limits(point["fpr_interval"]),
            "false_accepts": [point["false_accepts"], point["negatives"]],
            "tpr": point["tpr"],
            "tpr_interval": _limits(point["tpr_interval"]),
            "true_accepts": [point["true_accepts"], point["positives"]],
            "reliable": point["reliable"],
            "flip": result["flip"],
            "score": result["score"],
        }


def _limits(interval: Mapping[str, Any]) -> list[Any]:
    return [interval["low"], interval["high"]]
