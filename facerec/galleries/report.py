"""A gallery on the terminal: its thresholds, and for whom they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console

from facerec.base.errors import MetricError
from facerec.galleries.gallery import OWN, Gallery
from facerec.galleries.threshold import Calibration, Fpir
from facerec.report import words
from facerec.report.table import Table

FPIRS = ("1e-1", "1e-2", "1e-3")

FEW_STRANGERS = 200
"""Strangers below whose number intervals of the FPIR are said to hold too seldom."""


def print_groups(
    gallery: Gallery, groups: Sequence[str], points: Sequence[Fpir], console: Console
) -> None:
    """Say which FPIR thresholds have for strangers of each group, the worst first."""
    calibration = gallery.calibration
    if calibration is None or calibration.source != OWN:
        console.print("no FPIR by group: nobody knows the groups of the strangers", style="yellow")
        return
    told: set[str] = set()
    for point in points:
        found = calibration.by_group(point, np.array(groups, np.str_))
        rows = [(name, *map(_rate, both), f"{both[1].size:,}") for name, *both in found]
        told |= {name for name, *_ in found}
        headings = "strangers", "FPIR before all", "before their group alone", "people of it"
        title = f"threshold {words.threshold(point.threshold)}"
        console.print(Table(title, headings, rows, words=("strangers",)).terminal())
    if few := sorted({*groups} - {"", *told}):
        console.print(f"too few people to tell their FPIR: {', '.join(few)}")


def print_thresholds(calibration: Calibration | None, size: int, console: Console) -> list[Fpir]:
    """Say which thresholds have which FPIR in a gallery of a size, and return them."""
    if calibration is None:
        console.print("no calibration: a gallery of one person needs --impostors for an FPIR")
        return []
    points: list[Fpir] = []
    console.print(
        f"calibrated with {words.counted(len(calibration.scores), 'probe')} "
        f"({calibration.source}) on {words.counted(calibration.entry_subjects.size, 'template')}"
    )
    for target in FPIRS:
        try:
            points.append(calibration.threshold(target, size))
            console.print(f"  FPIR {target}: {fpir_words(points[-1])}")
        except MetricError as problem:
            console.print(f"  FPIR {target}: {words.UNRESOLVED} ({problem})")
    if len(np.unique(calibration.probe_subjects)) < FEW_STRANGERS:
        why = "where they look alike, the FPIR may lie beyond its interval, mostly below it"
        said = f"strangers are fewer than {FEW_STRANGERS}: {why}; calibrate with more --impostors"
        console.print(said, style="yellow")
    return points


def fpir_words(point: Fpir) -> str:
    """Say threshold, FPIR, interval and method in one line."""
    how = f"{point.method}; {point.remark}" if point.remark else point.method
    at = words.threshold(point.threshold)
    return f"threshold {at} has FPIR {_rate(point)} among {point.size:,} people ({how})"


def _rate(point: Fpir) -> str:
    return f"{words.percent(point.value)} {words.percent_limits(point.interval)}"
