"""``facerec all-pairs``: every image of an embeddings file against every other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import facerec
from facerec.commands.cli import Console, listed_rates, run_command
from facerec.defaults import ALL_PAIRS_TARGETS
from facerec.errors import DatasetError
from facerec.files import check_place, parse_json, write_json
from facerec.large_arrays import take
from facerec.names import is_missing
from facerec.records.images import text_array
from facerec.report import words
from facerec.report.csv_tables import save_csv
from facerec.report.progress import progress_bar
from facerec.report.table import Cell, text_table
from facerec.statistics.intervals import complement
from facerec.statistics.operating_points import OperatingPoint
from facerec.tables import Table
from facerec.verification.scoring import BIN_WIDTH

if TYPE_CHECKING:
    from facerec.statistics.clustered import ClusteredShare
    from facerec.verification.scoring import AllPairs, ErrorTable, Groups

FIGURES = "all_pairs.json"
GROUPS = "groups.csv"

Members: TypeAlias = "tuple[NDArray[np.str_], NDArray[np.str_] | None, int]"
"""Who is on the images ``(N,)``, in which group ``(N,)`` (empty where none is recorded), if groups
are asked for, and how many rows of the table are of other images."""


def all_pairs(
    embeddings: Path,
    subjects: Path | None = None,
    group: str | None = None,
    fpr: tuple[str, ...] = ALL_PAIRS_TARGETS,
    threshold: tuple[float, ...] = (),
    out: Path | None = None,
    json: Path | None = None,
    device: str = "cpu",
) -> None:
    """Compare every image of an embeddings file with every other.

    Prints the TPR at fixed FPRs and the errors at fixed thresholds over all N(N − 1)/2 pairs, with
    counts and intervals that allow for pairs that share a person. Thresholds are exact. Several
    GPUs or machines: torchrun --nproc-per-node 8 tools/all_pairs.py …; the figures are the same.

    Args:
        embeddings: an .npz file as facerec embed writes it, with raw embeddings and image ids, or a
            .csv or .parquet table of image_id, e0, e1, … (or a column embedding with a list), or a
            folder of such Parquet shards.
        subjects: a .csv file with the columns image_id and subject_id, needed if the embeddings
            file does not say who is on the images; rows of other images are passed over.
        group: a column of that file; errors are also counted within and between its values. Images
            without a value are left out of all figures, and counted.
        fpr: false positive rates at which the true positive rate is read, as 1e-3,1e-4; taken
            exactly.
        threshold: cosines at which errors are counted; accepted are pairs at or above.
        out: write all_pairs.json, roc.csv and groups.csv into this folder.
        json: write all figures to this file.
        device: where to compute: auto, cpu, cuda, cuda:1, mps.
    """
    from facerec.embedding.file import embeddings_sha256, read_embeddings
    from facerec.training.distributed import launched
    from facerec.verification.scoring import score_all_pairs

    fpr = listed_rates(fpr)  # before minutes of work
    if out is not None:
        check_place(out / FIGURES)
    with launched(device) as ranks:
        console = Console(quiet=not ranks.is_main, highlight=False, soft_wrap=True)
        file = read_embeddings(embeddings)
        ids = file.ids
        assert ids is not None  # the reader sees to that
        names, groups, unused = _members(embeddings, ids, file.subjects, subjects, group)
        console.print(f"embeddings {embeddings}: {len(ids):,} images")
        if unused:
            console.print(f"note: {unused:,} rows of {subjects} have no embedding", style="yellow")
        compared = np.ones(len(ids), bool) if groups is None else groups != ""
        blank = np.unique(names[~compared])
        if blank.size:
            console.print(
                f"note: {np.count_nonzero(~compared):,} images of {blank.size:,} subjects have no "
                f"{group} in {subjects} and are left out of all figures",
                style="yellow",
            )
        with progress_bar(console) as show:
            result = score_all_pairs(
                file.vectors if compared.all() else take(file.vectors, np.flatnonzero(compared)),
                names[compared],
                fpr=fpr,
                thresholds=threshold,
                groups=None if groups is None else groups[compared],
                device=ranks.device,
                progress=show,
            )
        report = Report(result)

        def finish() -> None:
            report.print(console)
            figures = {
                "facerec": facerec.__version__,
                "embeddings": {
                    "path": str(embeddings),
                    "sha256": embeddings_sha256(embeddings),
                    "note": dict(file.note),
                },
                "subjects": None if subjects is None else str(subjects),
                "group": group,
                "images_without_group": int(np.count_nonzero(~compared)),
                "failures": ids[compared][result.failures].tolist(),
                **report.to_json(),
            }
            written = []
            if json is not None:
                write_json(json, figures)
                written.append(json)
            if out is not None:
                _forget(out)
                tables = report.write_tables(out)
                write_json(out / FIGURES, figures)  # last: with it the tables are all there
                written += [out / FIGURES, *tables]
            for path in written:
                console.print(f"figures: {path}")

        ranks.on_main(finish)


def _forget(folder: Path) -> None:
    """Remove what an earlier run says in a folder, and its table of groups if it had groups."""
    figures = folder / FIGURES
    try:
        if parse_json(figures.read_bytes())["group"] is not None:
            (folder / GROUPS).unlink(missing_ok=True)
        figures.unlink()
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no earlier run; what stands in the way is met when the files are written


def read_members(path: Path, ids: NDArray[np.str_], group: str | None) -> Members:
    """Look up subjects and groups of images in a table with the columns image_id and subject_id.

    Raises:
        DatasetError: no such table or column, an image twice or without a row, a row without a
            subject, or no image with a group.
    """
    wanted = ["image_id", "subject_id", *([] if group is None else [group])]
    recorded: dict[str, tuple[str, str]] = {}
    table = Table(path)
    for line, (image, subject, *groups) in table.rows(wanted):
        if not image or not subject:
            raise DatasetError(
                f"{table.where(line)}: image_id or subject_id is empty; fill it in or take the "
                "line away"
            )
        if image in recorded:
            raise DatasetError(
                f"{table.where(line)}: image {image!r} was on an earlier line already; keep one of "
                "them"
            )
        recorded[image] = subject, "".join(value for value in groups if not is_missing(value))
    names = ids.tolist()
    absent = [name for name in names if name not in recorded]
    if absent:
        unused = len(recorded) - (len(names) - len(absent))
        raise DatasetError(
            f"{path}: {len(absent):,} of {len(names):,} images with an embedding have no row, the "
            f"first is {absent[0]!r}, and {unused:,} of {len(recorded):,} rows have no embedding; "
            "image_id must be the id in the embeddings file"
        )
    people, values = zip(*(recorded[name] for name in names), strict=True)
    if group is not None and not any(values):
        raise DatasetError(
            f"{path}: no image with an embedding has a value in the column {group}; name another "
            "column, or leave out --group"
        )
    return (
        text_array(people, str(path)),
        None if group is None else text_array(values, str(path)),
        len(recorded) - len(names),
    )


def _members(
    embeddings: Path,
    ids: NDArray[np.str_],
    known: NDArray[np.str_] | None,
    table: Path | None,
    group: str | None,
) -> Members:
    """Take subjects from the table, or else from the embeddings file."""
    if table is not None:
        return read_members(table, ids, group)
    if group is not None:
        raise DatasetError(f"--group {group}: name the table with that column with --subjects")
    unknown = len(ids) if known is None else int(np.count_nonzero(known == ""))
    if known is None or unknown:
        raise DatasetError(
            f"{embeddings}: of {unknown:,} of {len(ids):,} images it does not say who is on them; "
            "name a table with the columns image_id,subject_id with --subjects"
        )
    return known, None, 0


class Report:
    """The figures with their intervals, for the terminal and for files."""

    def __init__(self, result: AllPairs) -> None:
        self.result = result
        count = len(result.tables) - len(result.points)
        self._given = [_Estimate(table, result.groups) for table in result.tables[:count]]
        self._points = [
            (point, _Estimate(table, result.groups))
            for point, table in zip(result.points, result.tables[count:], strict=True)
        ]

    def print(self, console: Console) -> None:
        """Print the tables."""
        result = self.result
        pairs = f"{result.mated:,} mated and {result.non_mated:,} non-mated pairs"
        console.print(
            f"{result.images:,} images of {len(result.subjects):,} subjects: {pairs}",
            style="bold",
        )
        rows = [row for point in self._points for row in _point_rows(*point)]
        for estimate in self._given:
            threshold = words.threshold(estimate.table.threshold)
            rows.append((f"FMR at {threshold}", *_cells(estimate.fmr)))
            rows.append((f"FNMR at {threshold}", *_cells(estimate.fnmr)))
        console.print(text_table("", ("figure", *_HEADINGS), rows, words=_WORDS).terminal())
        console.print(
            "score: cosine, float32; pairs that share a subject are dependent: intervals with "
            "the effective number of comparisons, at thresholds taken as known",
            style="dim italic",
        )
        self._print_groups(console)
        if result.failures.size:
            lost = f"{result.lost_mated:,} mated and {result.lost_non_mated:,} non-mated pairs"
            console.print(
                f"not acquired: {result.failures.size:,} of "
                f"{result.images + result.failures.size:,} images; their {lost} are in no rate",
                style="yellow",
            )

    def _print_groups(self, console: Console) -> None:
        if self.result.groups is None:
            return
        for name, estimate in self._named():
            rows = [
                (" × ".join(names), kind, *_cells(share, counts))
                for names, kind, share, counts in estimate.by_group()
            ]
            headings = "groups", "error", *_HEADINGS
            table = text_table(f"groups at {name}", headings, rows, words=("error", *_WORDS))
            console.print()
            console.print(table.terminal())

    def _named(self) -> list[tuple[str, _Estimate]]:
        """Return the estimates with their names; none at targets that cannot be resolved."""
        points = [
            (f"FPR {point.target} (threshold {words.threshold(point.threshold)})", estimate)
            for point, estimate in self._points
            if point.resolvable
        ]
        thresholds = [
            (f"threshold {words.threshold(estimate.table.threshold)}", estimate)
            for estimate in self._given
        ]
        return points + thresholds

    def to_json(self) -> dict[str, Any]:
        """Return all figures as JSON types; what cannot be resolved is null."""
        from facerec.verification.evaluation import json_number

        result = self.result
        return {
            "images": result.images,
            "subjects_with_images": len(result.subjects),
            "pairs": {
                "mated": result.mated,
                "non_mated": result.non_mated,
                "lost_mated": result.lost_mated,
                "lost_non_mated": result.lost_non_mated,
            },
            "score": "cosine of raw embeddings, float32",
            "operating_points": [
                {
                    **point.to_json(),
                    "threshold": json_number(point.threshold),
                    "tpr": point.tpr if point.resolvable else None,
                    "tpr_interval": asdict(complement(estimate.fnmr.interval()))
                    if point.resolvable
                    else None,
                    "fpr_interval": asdict(estimate.fmr.interval()),
                    "groups": estimate.groups_to_json(),
                }
                for point, estimate in self._points
            ],
            "thresholds": [
                {
                    "threshold": json_number(estimate.table.threshold),
                    "fmr": _share_to_json(estimate.fmr),
                    "fnmr": _share_to_json(estimate.fnmr),
                    "groups": estimate.groups_to_json(),
                }
                for estimate in self._given
            ],
        }

    def write_tables(self, folder: Path) -> list[Path]:
        """Write ``roc.csv``, and with groups ``groups.csv``; return their paths."""
        paths: list[Path] = []
        roc = self.result.roc()
        if roc is not None:
            paths.append(folder / "roc.csv")
            threshold = f"threshold (multiples of {BIN_WIDTH})"
            header = threshold, "false_accepts", "true_accepts", "fpr", "tpr"
            columns = roc.thresholds, roc.false_accepts, roc.true_accepts, roc.fpr, roc.tpr
            rows = zip(*(column.tolist() for column in columns), strict=True)
            save_csv(paths[-1], header, rows)
        if self.result.groups is not None:
            paths.append(folder / GROUPS)
            names = "at", "first", "second", "error", "errors", "comparisons"
            save_csv(paths[-1], (*names, "rate", "low", "high"), self._group_rows())
        return paths

    def _group_rows(self) -> Iterable[tuple[object, ...]]:
        for at, estimate in self._named():
            for names, kind, share, (events, comparisons) in estimate.by_group():
                rate = events / comparisons if comparisons else ""
                limits: tuple[object, ...] = "", ""
                if share is not None:
                    interval = share.interval()
                    limits = interval.low, interval.high
                yield at, names[0], names[-1], kind, events, comparisons, rate, *limits


class _Estimate:
    """The errors at one threshold with what their intervals need."""

    def __init__(self, table: ErrorTable, groups: Groups | None) -> None:
        self.table, self._groups = table, groups
        self.fmr, self.fnmr = table.fmr_share(), table.fnmr_share()

    def by_group(
        self,
    ) -> list[tuple[tuple[str, ...], str, ClusteredShare | None, tuple[int, int]]]:
        """Return names of one or two groups, kind of error, share if known, errors and pairs."""
        groups, table = self._groups, self.table
        if groups is None or table.group_false_matches is None:
            return []
        assert table.group_false_non_matches is not None
        rows: list[tuple[tuple[str, ...], str, ClusteredShare | None, tuple[int, int]]] = []
        for first, name in enumerate(groups.names):
            for second in range(first, len(groups.names)):
                names = (name,) if first == second else (name, groups.names[second])
                cell = first, second
                counts = int(table.group_false_matches[cell]), int(groups.non_mated[cell])
                rows.append((names, "FMR", groups.fmr_share(table, first, second), counts))
                if first == second or groups.mated[cell]:
                    share = groups.fnmr_share(table, first) if first == second else None
                    counts = int(table.group_false_non_matches[cell]), int(groups.mated[cell])
                    rows.append((names, "FNMR", share, counts))
        return rows

    def groups_to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "groups": list(names),
                "error": kind,
                "errors": events,
                "comparisons": comparisons,
                "rate": events / comparisons if comparisons else None,
                "interval": None if share is None else asdict(share.interval()),
            }
            for names, kind, share, (events, comparisons) in self.by_group()
        ]


_HEADINGS = "value, 95 % interval", "counts", "remark"
_WORDS = ("remark",)


def _point_rows(point: OperatingPoint, estimate: _Estimate) -> Iterator[tuple[Cell | str, ...]]:
    """Yield the TPR at a target, and the FPR that its threshold realises."""
    name = f"TPR@FPR={point.target}"
    if not point.resolvable:
        finest = f"finest FPR {1 / point.non_mated:.2e}"
        yield name, "not resolvable", f"N={point.non_mated:,}", finest
        return
    limits = words.percent_limits(complement(estimate.fnmr.interval()))
    counts = f"{point.true_accepts:,}/{point.mated:,}"
    value = Cell(words.percent(point.tpr), limits)
    yield name, value, counts, f"t = {words.threshold(point.threshold)}"
    value, counts, remark = _cells(estimate.fmr)
    yield "  its FPR", value, counts, remark if point.reliable else f"{remark}, few errors"


def _cells(
    share: ClusteredShare | None, counts: tuple[int, int] | None = None
) -> tuple[Cell, str, str]:
    """Return an error rate with its interval, its counts and a remark."""
    from facerec.statistics.clustered import Bound

    if share is None:
        assert counts is not None
        events, comparisons = counts
        rate = words.number(events / comparisons if comparisons else None)
        remark = "subjects are in several groups or too many errors" if comparisons else "no pairs"
        return Cell(rate), f"{events:,}/{comparisons:,}", remark
    interval = share.interval()
    remark = interval.assumption
    if isinstance(interval, Bound):
        remark = f"{interval.if_independent:.2g} if independent"
    elif interval.effective is not None:
        remark = f"n_eff {interval.effective:.3g}"
    value = Cell(f"{share.rate:.3g}", words.limits(interval))
    return value, f"{share.events:,}/{share.comparisons:,}", remark


def _share_to_json(share: ClusteredShare) -> dict[str, Any]:
    return {
        "rate": share.rate,
        "errors": share.events,
        "comparisons": share.comparisons,
        "interval": asdict(share.interval()),
    }


main = partial(run_command, all_pairs)
