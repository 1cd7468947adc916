"""How figures are said: percents, intervals, counts and p-values, alike wherever they stand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval

NOTHING = "–"
"""What stands where there is no figure."""
UNRESOLVED = "not resolvable"
"""What stands where the data are too few for a figure."""

_SPACE = "\N{NO-BREAK SPACE}"


def percent(value: float | None, decimals: int = 2) -> str:
    """Return a share as percent, such as ``98.70 %``.

    Examples:
        >>> percent(0.987).replace("\N{NO-BREAK SPACE}", " "), percent(-0.5, 0)[:3], percent(None)
        ('98.70 %', '−50', '–')
    """
    return NOTHING if value is None else f"{number(100 * value, f'.{decimals}f')} %"


def number(value: float | None, form: str = ".3g") -> str:
    """Return a number with a minus sign, three digits unless another form is asked for.

    Examples:
        >>> number(-0.25), number(-2e-7), number(0.5, "+.2f"), number(math.inf)
        ('−0.25', '−2e-07', '+0.50', '∞')
    """
    if value is None:
        return NOTHING
    text = format(value, form).replace("inf", "∞")
    # The hyphen of an exponent stays.
    return f"−{text[1:]}" if text.startswith("-") else text


def limits(
    interval: Interval | None, scale: float = 1, form: str | Callable[[float], str] = ".3g"
) -> str:
    """Return an interval as ``[low, high]``; empty if there is none.

    Both ends are multiplied by ``scale``, 100 for percent; ``form`` is theirs as `format` takes it,
    or what says one. All shares from 0 to 1 are no interval of one.

    Examples:
        >>> limits(Interval(1e-6, 0.9999), 100), limits(Interval(0, 0.5)).replace(_SPACE, " ")
        ('no interval', '[0, 0.5]')
    """
    if interval is None:
        return ""
    ends = interval.low, interval.high
    whole = -1e-9 < ends[0] < 5e-4 and 0.9995 < ends[1] < 1 + 1e-9
    if whole or interval.lacking or math.isnan(sum(ends)):
        return "no interval"
    low, high = (
        number(scale * end, form) if isinstance(form, str) else form(scale * end) for end in ends
    )
    # No line break within: in a narrow column the two ends would come apart.
    return f"[{low},{_SPACE}{high}]"


def percent_limits(interval: Interval | None) -> str:
    """Return an interval in percent with one decimal, or two if it is narrow."""
    if interval is None:
        return ""
    wide = 100 * interval.high - 100 * interval.low >= 1
    return limits(interval, 100, ".1f" if wide else ".2f")


def share(value: float, interval: Interval | None = None) -> tuple[str, str]:
    """Return a share and its interval: in percent, or as they are where all is below 0.1 %.

    Examples:
        >>> [text.replace(_SPACE, " ") for text in share(0.987, Interval(0.981, 0.991))]
        ['98.70 %', '[98.1, 99.1]']
        >>> share(0.00123)[0].replace(_SPACE, " "), share(4.3e-5)[0]
        ('0.123 %', '4.3e-05')
    """
    high = max(value, 0 if interval is None else interval.high)
    if 0 < high < 1e-3:
        return number(value), limits(interval)
    text = percent(value) if value >= 0.01 or not value else f"{number(100 * value)} %"
    return text, percent_limits(interval) if high >= 0.01 else limits(interval, 100)


def threshold(value: float | None) -> str:
    """Return a threshold of a score with all digits that it needs; the ends in words.

    Examples:
        >>> threshold(51.5), threshold(0.30001), threshold(float(np.float32(0.7)))
        ('51.5', '0.30001', '0.7')
    """
    if value is None:
        return NOTHING
    if math.isnan(value):
        return "reject all"
    if math.isinf(value):
        return "accept all" if value < 0 else "∞"
    short, single = f"{value:.4g}", np.float32(value)
    if float(short) == value:
        return short
    # A number of single precision has no more digits than that.
    return str(single) if float(single) == value else repr(value)


def p_value(value: float | None) -> str:
    """Return a p-value with two digits."""
    return number(value, ".2g")


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return ``1 pair`` or ``2,000 pairs``.

    Examples:
        >>> counted(1, "pair"), counted(2000, "pair"), counted(2, "class", "classes")
        ('1 pair', '2,000 pairs', '2 classes')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def counts(estimate: Estimate) -> str:
    """Return ``events/total`` with the mark of how many events there are; empty without counts."""
    if estimate.events is None or estimate.total is None:
        return ""
    return f"{estimate.mark}{_SPACE}{estimate.events:,}/{estimate.total:,}"


def sentence(text: str) -> str:
    """Return a text with a full stop at its end."""
    return text if text.endswith(".") else f"{text}."
