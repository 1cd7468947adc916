"""What an audit holds, as JSON types, under the names that files have always had.

A class whose fields have other names in files says so in ``in_files``: names in their order,
separated by blanks, ``name=attribute`` where they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval

Json = dict[str, Any]


def plain(value: Any, leave: Sequence[str] = (), *, limits: bool = True) -> Any:
    """Return anything as JSON types; what is not finite is null, as is an empty remark.

    Args:
        value: dataclasses, mappings, sequences, numbers and text.
        leave: names to leave out at the top.
        limits: write an interval as ``ci`` with its method beside the figure; otherwise it is an
            object with all its fields.
    """
    if isinstance(value, Interval) and limits:
        return interval_to_json(value)
    if is_dataclass(value) and not isinstance(value, type):
        result: Json = {}
        for name, attribute in _names(value):
            inner = attrgetter(attribute)(value)
            if name in leave:
                continue
            if name == "interval" and limits:
                result |= interval_to_json(inner)
            elif attribute.endswith("remark"):
                result[name] = inner or (None if name == "reason" else "")
            else:
                result[name] = plain(inner, limits=limits)
        return result
    if isinstance(value, Mapping):
        return {str(key): plain(inner, limits=limits) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, limits=limits) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def interval_to_json(interval: Interval | None) -> Json:
    """Return limits, level, method and assumption of an interval, all null where there is none."""
    if interval is None:
        return {"ci": None, "confidence": None, "method": None, "assumption": None}
    return {
        "ci": plain((interval.low, interval.high)),
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
