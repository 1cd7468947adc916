"""Pairs of people whom a model was trained on, and a bench without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from facerec.base.errors import MetricError
from facerec.galleries.overlap_report import SUFFIX, KnownOverlap, facts_path, read_overlap
from facerec.verification import Bench
from facerec.verification.templates import TemplateBench


def given_overlap(path: Path, benches: Sequence[Bench]) -> KnownOverlap:
    """Read the overlap that the user has given, which must be of one of the benches."""
    given = read_overlap(path)
    if not any(given.is_of(bench) for bench in benches if not isinstance(bench, TemplateBench)):
        raise MetricError(
            f"{given.path}: its second set, {str(given.b.get('path'))!r}, is none of the benches; "
            "compute the overlap with the bench that is verified"
        )
    return given


def training_overlaps(data: Mapping[str, Any] | None) -> list[KnownOverlap]:
    """Return the overlaps whose facts lie beside a model's training set, and are of that set.

    A list that was left out in training is none: its people were not trained on. ``data`` is the
    recipe's section, None where it is not known.
    """
    known = []
    for training_set in (data, *data.get("also", ())) if data else ():
        path = Path(str(training_set.get("path", "")))
        left_out = facts_path(Path(str(training_set.get("exclude")))).resolve()
        folder = path if path.is_dir() else path.parent
        for file in sorted(folder.glob(f"*{SUFFIX}")) if path.exists() else ():
            overlap = read_overlap(file)
            if file.resolve() != left_out and overlap.is_of_records(path):
                known.append(overlap)
    return known


def without_known(bench: Bench, known: Sequence[KnownOverlap]) -> tuple[list[Bench], list[str]]:
    """Return the bench without the pairs of people who were trained on, and a sentence an overlap.

    There is no such bench where it has no such pairs, or no figures without them.
    """
    if isinstance(bench, TemplateBench):
        return [], []
    pairs, notes, said = bench.pairs, [], []
    rest = np.ones(len(pairs), dtype=bool)
    for overlap in {each.path.resolve(): each for each in known if each.is_of(bench)}.values():
        trained_on = np.isin(bench.images.ids, list(overlap.images))
        shown = trained_on[pairs.first] | trained_on[pairs.second]
        count = f"{np.count_nonzero(shown):,} of {len(pairs):,} pairs"
        who = "probably in the training set"
        people = f"{overlap.subjects:,} people, in {count}"
        said.append(f"{bench.name}: {people}, are {who} ({overlap.path})")
        notes.append(f"{count} show a person who is {who} ({overlap.path}) and are left out")
        rest &= ~shown
    if rest.all() or len(set(pairs.issame[rest].tolist())) < 2:  # no figures without both kinds
        return [], said
    name = f"{bench.name} without people of the training set"
    return [replace(bench, name=name, pairs=pairs[rest], notes=(*bench.notes, *notes))], said
