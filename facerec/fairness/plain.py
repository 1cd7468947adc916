"""What an audit holds, as JSON types, under the names that files have always had.

A class whose fields have other names in files says so in ``in_files``: names in their order,
separated by blanks, ``name=attribute`` where they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any

from facerec.report import documents
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval

Json = dict[str, Any]

AUDIT_SCHEMA = "facerec.audit/1"
"""What ``audit.json`` says that it is."""


def plain(value: Any, leave: Sequence[str] = (), *, limits: bool = True) -> Any:
    """Return anything as JSON types; what is not finite is null, as is an empty remark.

    Args:
        value: dataclasses, mappings, sequences, numbers and text.
        leave: names to leave out at the top.
        limits: write an interval as ``ci`` with its method beside the figure; otherwise it is an
            object with all its fields.
    """
    result = documents.plain(value, partial(_in_files, limits=limits), infinities=False)
    return {name: result[name] for name in result if name not in leave} if leave else result


def _in_files(value: Any, limits: bool) -> Json:
    """Return what a dataclass holds under the names that it has in files."""
    if isinstance(value, Interval):
        return _limits(value) if limits else documents.by_name(value)
    result: Json = {}
    for name, attribute in _names(value):
        inner = attrgetter(attribute)(value)
        if name == "interval" and limits:
            result |= _limits(inner)
        elif attribute.endswith("remark"):
            result[name] = inner or (None if name == "reason" else "")
        else:
            result[name] = inner
    return result


def _limits(interval: Interval | None) -> Json:
    """Return limits, level, method and assumption of an interval, all null where there is none."""
    if interval is None:
        return {"ci": None, "confidence": None, "method": None, "assumption": None}
    return {
        "ci": (interval.low, interval.high),
        "confidence": interval.confidence,
        "method": interval.method,
        "assumption": interval.assumption,
    }


def flat(row: Mapping[str, Any], only: Iterable[str] | None = None) -> Json:
    """Return one level: limits and inner objects as columns of their own, lists left out.

    Args:
        row: JSON types, see `plain`.
        only: names to keep at the top; all of them if None.
    """
    result: Json = {}
    for name, value in row.items():
        if only is not None and name not in only:
            continue
        if name == "ci" or name.endswith("_ci"):
            low, high = value or (None, None)
            result |= {f"{name}_low": low, f"{name}_high": high}
        elif isinstance(value, Mapping):
            result |= {f"{name}_{inner}": cell for inner, cell in flat(value).items()}
        elif not isinstance(value, list):
            result[name] = value
    return result


def flat_rows(rows: Iterable[Mapping[str, Any]]) -> list[Json]:
    """Return `flat` of rows; what is an object in some of them is no column where others lack it.

    Args:
        rows: JSON types, see `plain`.
    """
    rows = list(rows)
    objects = {name for row in rows for name, value in row.items() if isinstance(value, Mapping)}

    def lacked(name: str, value: Any) -> bool:
        return value is None and name in objects

    return [
        flat({name: value for name, value in row.items() if not lacked(name, value)})
        for row in rows
    ]


def _names(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the names in files with the attributes that they stand for."""
    names = getattr(value, "in_files", None)
    if names is None and isinstance(value, Estimate):
        names = "value interval" if value.total is None else "value interval n=total reason=remark"
    if names is None:
        names = " ".join(field.name for field in fields(value))
    for name in names.split():
        first, _, second = name.partition("=")
        yield first, second or first
