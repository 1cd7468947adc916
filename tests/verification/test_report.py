from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from helpers.toy_results import make_result
from rich.console import Console

from facerec.records.images import MemoryImages
from facerec.report.words import limits, percent_limits, threshold
from facerec.statistics.intervals import wilson
from facerec.statistics.rates import tpr_at_fpr
from facerec.verification import TprEstimate, VerificationResult
from facerec.verification.compare import Comparison, compare
from facerec.verification.identification import IdentificationResult, identify
from facerec.verification.report import (
    describe_flip,
    format_rate,
    print_comparison,
    print_identification,
    print_result,
)
from facerec.verification.tables import THRESHOLD_ADVICE
from facerec.verification.templates import SearchSet, TemplateBench


def printed(
    result: VerificationResult | Comparison | IdentificationResult, width: int = 110
) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    if isinstance(result, Comparison):
        print_comparison(result, console)
    elif isinstance(result, IdentificationResult):
        print_identification(result, console)
    else:
        print_result(result, console)
    return plain(stream.getvalue())


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def words(text: str) -> str:
    return " ".join(text.split())


def rows(text: str) -> dict[str, str]:
    return {line.strip().split("  ")[0]: line for line in text.splitlines()}


def estimate(hits: int, negatives: int, target: str) -> TprEstimate:
    positives = np.r_[np.full(hits, 2.0), np.full(3000 - hits, -2.0)]
    point = tpr_at_fpr(positives, np.linspace(-1, 3, negatives), target)
    point = replace(point, true_accepts=hits, tpr=hits / 3000)
    return TprEstimate.of(point, wilson(hits, 3000), wilson(point.false_accepts, point.non_mated))


def test_rate_in_one_line() -> None:
    assert plain(format_rate(estimate(2961, 3000, "1e-2"))) == (
        "98.70 % [98.23, 99.05] (2961/3000 at 30/3000)"
    )
    assert plain(format_rate(estimate(2700, 3000, "1e-3"))) == (
        "90.00 % [88.9, 91.0] (2700/3000 at 3/3000), few errors"
    )
    assert format_rate(estimate(2961, 3000, "1e-4")) == "not resolvable (N=3000)"


def test_flip_is_named() -> None:
    assert describe_flip(True) == "flip: sum of raw embeddings"
    assert describe_flip(False) == "flip: none"
    assert describe_flip(None) == "flip: unknown"


def test_tables_have_figure_interval_count_and_source() -> None:
    result = make_result(compat="insightface")
    text = printed(result)
    lines = rows(text.partition("Thresholds for deployment")[0])
    accuracy, tenth, norms = result.accuracy, result.point("1e-1"), result.norms
    assert accuracy is not None and accuracy.interval is not None and norms is not None
    for piece in (
        f"{100 * accuracy.kfold.mean:.2f} %",
        plain(percent_limits(accuracy.interval)),
        f"{accuracy.events}/200",
    ):
        assert piece in lines["accuracy, 10 folds"]
    kfold = accuracy.kfold
    assert f"± {100 * kfold.sem:.2f} SEM, ± {100 * kfold.std:.2f} std" in text
    assert f"{tenth.point.true_accepts}/100" in lines["1e-1"] and "few errors" in text
    assert plain(percent_limits(tenth.tpr.interval)) in lines["1e-1"]
    assert "not resolvable" in lines["1e-3"] and "finest 1.00e-02" in text
    assert "%" not in lines["1e-3"]  # no number where there is none
    assert f"{result.auc.value:.4f}" in lines["AUC"]
    assert f"{100 * result.eer.value:.2f} %" in lines["EER on the ROC hull"]
    assert f"CV {norms.cv:.4f}" in text
    assert "toy · toynet: 100 same and 100 different pairs" in text
    assert f"intervals: {result.basis}" in words(text) and "40 subjects" in result.basis
    assert f"score: {result.score}" in words(text)
    assert "flip: sum of raw embeddings" in text


def test_thresholds_stand_below_with_the_advice() -> None:
    for result in (make_result(), make_result(persons=None)):
        text = printed(result)
        below = rows(text.partition("Thresholds for deployment")[2])
        for target in ("1e-1", "1e-2"):
            estimate = result.point(target).threshold
            assert threshold(estimate.value) in below[target]
            assert plain(limits(estimate.interval, form=".4g")) in below[target]
        assert "1e-3" not in below  # nothing for what cannot be resolved
        assert THRESHOLD_ADVICE in words(text)


def test_a_list_of_scores_has_neither_folds_nor_norms_nor_model() -> None:
    result = replace(
        make_result(folds=False, persons=None), norms=None, model=None, flip=None, score="s.csv"
    )
    assert result.accuracy is None
    text = printed(result)
    assert "accuracy" not in text and "XNorm" not in text
    assert "toy: 100 same and 100 different pairs" in text
    assert "flip: unknown; score: s.csv" in text
    assert "assuming independent comparisons" in text


@pytest.mark.parametrize("persons", [40, 300, None])
def test_tables_fit_eighty_columns_without_losing_anything(persons: int | None) -> None:
    result = make_result(6000, persons=persons, compat="insightface", replicates=20)
    text = printed(result, width=80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    point = result.point("1e-1").point
    assert f"{point.true_accepts}/3000" in text and "300/3000" in text
    for estimate in result.points[:3]:
        assert plain(limits(estimate.threshold.interval, form=".4g")) in text


def test_failures_are_in_the_table_and_listed() -> None:
    result = make_result(broken=12)
    count = len(result.failures)
    assert count >= 12
    text = printed(result)
    line = rows(text)["failures to acquire"]
    assert f"{count}/200 pairs" in line and f"{100 * count / 200:.2f} %" in line
    assert f"note: {count} of 200 pairs have no score" in text
    listed = words(text.partition(f"{count} pairs without a score, left out of all rates")[2])
    assert listed.count("its first image") == 10
    assert f"and {count - 10} more, all listed by --json and --out" in listed


def test_names_with_brackets_are_printed_as_they_are() -> None:
    assert "[bold]x" in printed(make_result(name="[bold]x"))


def test_comparison_shows_both_values_the_difference_and_its_interval() -> None:
    first = make_result(6000, replicates=0)
    second = make_result(6000, noise=2, strength=1.1, broken=3, replicates=0)
    second = replace(second, model={"name": "[red]net", "sha256": "cd"})
    found = compare(first, second, replicates=50)
    text = printed(found, 80)
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert f"{found.mated:,} same and {found.non_mated:,} different pairs" in text
    assert "A: toy · toynet" in text and "B: toy · [red]net" in text
    assert "50 joint bootstraps over 40 subjects" in text
    assert f"note: {found.left_out} of 6000 pairs" in text
    for row in found.rows:
        line = rows(text)[row.figure]
        if row.first.value is None:
            assert line.count("not resolvable") == 2 and "%" not in line
            continue
        for piece in (
            f"{100 * row.first.value:.2f} %",
            f"{100 * row.second.value:.2f} %",
            f"{100 * row.difference.value:+.2f}".replace("-", "−"),
            plain(limits(row.difference.interval, 100, "+.2f")),
        ):
            assert piece in line
    accuracy = found.rows[0].first
    assert f"{accuracy.events}/{accuracy.total}" in text


def test_comparison_passes_no_verdict() -> None:
    first, second = (make_result(2000, strength=strength) for strength in (0.6, 2.0))
    found = compare(first, second, replicates=50)
    area = next(row for row in found.rows if row.figure == "AUC")
    assert area.difference.low > 0
    text = printed(found).lower()
    for verdict in ("better", "worse", "significant", "win", "improve"):
        assert verdict not in text


def make_identification(open_set: bool) -> IdentificationResult:
    generator = np.random.default_rng(0)
    persons = np.arange(60)
    vectors = generator.normal(size=(120, 8))
    vectors[60:] += 1.5 * vectors[:60]
    rows = np.arange(120)
    half = 30 if open_set else 60
    bench = TemplateBench(
        name="[b]ijb",
        images=MemoryImages("memory", [str(row) for row in rows], []),
        image_rows=rows,
        template_rows=rows,
        media_rows=rows,
        template_ids=rows.astype(np.str_),
        probes=SearchSet("probes", rows[60:], persons),
        galleries=(
            SearchSet("G1", rows[:half], persons[:half]),
            SearchSet("G2", rows[60 - half : 60], persons[60 - half :]),
        ),
    )
    return identify(vectors, bench, fpir=["1e-1", "1e-2"], ranks=[1, 5])


def test_identification_is_shown_by_gallery_and_on_average() -> None:
    result = make_identification(open_set=True)
    text = printed(result, 80)
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    assert "[b]ijb: 1:N identification" in text
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line.startswith(("TPIR", "rank"))]
    for gallery, found in zip(result.galleries, (lines[:4], lines[4:8]), strict=True):
        assert all(gallery.name in line for line in found)
        tenth, rank = gallery.points[0], gallery.ranks[1]
        for piece in (
            f"{100 * tenth.point.tpir:.2f} %",
            plain(percent_limits(tenth.tpir.interval)),
            f"{tenth.point.hits}/30 at {tenth.point.false_alarms}/30",
        ):
            assert piece in found[0]
        assert "not resolvable" in found[1] and "N=30" in found[1] and "%" not in found[1]
        assert f"{rank.events}/30" in found[2] and plain(percent_limits(rank.interval)) in found[2]
    means = lines[8:]
    assert [line.split()[0] for line in means] == ["TPIR@FPIR=1e-1", "rank", "rank"]
    assert f"{100 * result.tpir['1e-1'].value:.2f} %" in means[0] and "mean" in means[0]


def test_a_closed_set_has_ranks_alone() -> None:
    text = printed(make_identification(open_set=False))
    assert "TPIR" not in text and "rank 5" in text
    assert "note: [b]ijb, gallery G1: every search is mated" in text
