from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from rich.console import Console

from facerec.errors import FacerecError
from facerec.statistics.intervals import wilson
from facerec.statistics.rates import tpr_at_fpr
from facerec.verification import TprEstimate, VerificationResult, evaluate
from facerec.verification.report import (
    describe_flip,
    format_rate,
    plot_roc,
    print_result,
    roc_figure,
)


def make_result(pairs: int = 200, name: str = "toy", broken: int = 0) -> VerificationResult:
    generator = np.random.default_rng(0)
    same = np.tile(np.repeat([True, False], pairs // 20), 10)
    matrix = generator.normal(size=(2 * pairs, 16))
    matrix[1::2][same] += 1.2 * matrix[0::2][same]
    norms = np.linalg.norm(matrix, axis=1)
    matrix[: 2 * broken : 2] = 0
    return evaluate(matrix, same, name=name, norms=norms, flip=True, compat="insightface")


def printed(result: VerificationResult, width: int = 110) -> str:
    stream = io.StringIO()
    print_result(result, Console(file=stream, width=width))
    return stream.getvalue()


def estimate(hits: int, negatives: int, target: str) -> TprEstimate:
    positives = np.r_[np.full(hits, 2.0), np.full(3000 - hits, -2.0)]
    point = tpr_at_fpr(positives, np.linspace(-1, 3, negatives), target)
    point = replace(point, true_accepts=hits, tpr=hits / 3000)
    return TprEstimate(point, wilson(hits, 3000), wilson(point.false_accepts, point.negatives))


def test_rate_in_one_line() -> None:
    assert format_rate(estimate(2961, 3000, "1e-2")) == (
        "98.70 % [98.23, 99.05] (2961/3000 at 30/3000)"
    )
    assert format_rate(estimate(2700, 3000, "1e-3")) == (
        "90.00 % [88.9, 91.0] (2700/3000 at 3/3000), few errors"
    )
    assert format_rate(estimate(2961, 3000, "1e-4")) == "not resolvable (N=3000)"


def test_flip_is_named() -> None:
    assert describe_flip(True) == "flip: sum of raw embeddings"
    assert describe_flip(False) == "flip: none"
    assert describe_flip(None) == "flip: unknown"


def test_table_has_figure_interval_count_and_source() -> None:
    result = make_result()
    text = printed(result)
    lines = {line.split("  ")[0]: line for line in text.splitlines()}
    accuracy, interval = result.accuracy, result.accuracy_interval
    for piece in (
        f"{100 * accuracy.mean:.2f} %",
        f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]",
        f"{accuracy.correct}/200",
        f"± {100 * accuracy.sem:.2f} SEM, ± {100 * accuracy.std:.2f} std",
    ):
        assert piece in lines["accuracy 10-fold"]
    point = result.point("1e-1").point
    assert f"{point.true_accepts}/100 at 10/100" in lines["TPR@FPR=1e-1"]
    assert "FPR 0.1, few errors" in lines["TPR@FPR=1e-1"]
    assert "not resolvable" in lines["TPR@FPR=1e-3"] and "N=100" in lines["TPR@FPR=1e-3"]
    assert "%" not in lines["TPR@FPR=1e-3"]  # no number where there is none
    assert f"{result.auc.value:.4f}" in lines["AUC"]
    assert f"{100 * result.eer.value:.2f} %" in lines["EER (ROC hull)"]
    assert result.norms is not None
    assert f"CV {result.norms.cv:.4f}" in lines["mean ‖f‖ (XNorm)"]
    assert "insightface mode" in lines
    assert "flip: sum of raw embeddings" in text
    assert "assuming independent comparisons" in text
    assert "not acquired" not in text


def test_table_fits_eighty_columns_without_losing_anything() -> None:
    result = make_result(6000)
    text = printed(result, width=80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    point = result.point("1e-1").point
    assert f"{point.true_accepts}/3000 at 300/3000" in text


def test_failures_are_in_the_table_and_listed() -> None:
    text = printed(make_result(broken=12))
    assert "not acquired" in text and "12/200 pairs" in text and "6.00 %" in text
    assert "note: 12 of 200 pairs have no score" in text
    assert "  pair 9: the embedding of its first image is zero" in text
    assert "  pair 10:" not in text
    assert "and 2 more, all listed by --json" in text


def test_names_with_brackets_are_printed_as_they_are() -> None:
    text = printed(make_result(name="[bold]x"))
    assert "[bold]x" in text


def curves(results: dict[str, VerificationResult]) -> list[tuple[np.ndarray, np.ndarray]]:
    axes = roc_figure(results).axes[0]
    return [
        tuple(map(np.asarray, line.get_data()))  # type: ignore[misc]
        for line in axes.get_lines()
        if line.get_drawstyle() == "steps-post"
    ]


def test_curve_is_the_exact_step_function() -> None:
    result = make_result()
    ((x, y),) = curves({"toy": result})
    assert x[0] == 1 / 100  # nothing is drawn where nothing is resolvable
    assert (x[-1], y[-1]) == (1, 1)
    for target in ("1/100", "1/50", "0.055", "1/10", "0.333", "1/2", "1"):
        numerator, _, denominator = target.partition("/")
        at = np.searchsorted(x, float(numerator) / float(denominator or 1), side="right") - 1
        assert y[at] == tpr_at_fpr(result.positives, result.negatives, target).tpr


def test_every_curve_is_in_the_legend() -> None:
    results = {f"model {n}, toy": make_result(200 + 20 * n) for n in range(3)}
    assert len(curves(results)) == 3
    legend = roc_figure(results).axes[0].get_legend()
    assert [text.get_text().split("   ")[0] for text in legend.get_texts()] == list(results)


def test_plot_files(tmp_path: Path) -> None:
    results = {"toy": make_result(), "more": make_result(400)}
    plot_roc(results, tmp_path / "new" / "roc.png")
    image = cv2.imread(str(tmp_path / "new" / "roc.png"))
    assert image.shape[0] >= 600 and image.std() > 5
    plot_roc(results, tmp_path / "roc.svg")
    assert ElementTree.parse(tmp_path / "roc.svg").getroot().tag.endswith("svg")
    once = (tmp_path / "roc.svg").read_bytes()
    plot_roc(results, tmp_path / "roc.svg")
    assert (tmp_path / "roc.svg").read_bytes() == once


def test_unknown_plot_format(tmp_path: Path) -> None:
    with pytest.raises(FacerecError) as error:
        plot_roc({"toy": make_result()}, tmp_path / "roc.jpg")
    assert str(error.value) == (
        f"{tmp_path / 'roc.jpg'}: a ROC plot is a .png, .svg or .pdf file; change the suffix"
    )
    assert list(tmp_path.iterdir()) == []


def test_separated_scores_can_be_drawn(tmp_path: Path) -> None:
    same = np.tile([True, False], 20)
    matrix = np.ones((80, 2))
    matrix[1::2][~same] = [1, -1]
    plot_roc({"perfect": evaluate(matrix, same, name="perfect")}, tmp_path / "roc.png")
    assert (tmp_path / "roc.png").stat().st_size > 5000
