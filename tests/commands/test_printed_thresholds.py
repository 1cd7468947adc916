"""A printed threshold accepts what its line says, wherever it is printed and however scores tie."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.html_page import Page
from helpers.toy_files import read_table
from numpy.typing import NDArray

from facerec.commands import audit_scores, enroll, verify_scores
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings

TARGETS = ("0.3", "1e-1", "1e-2", "2e-3")
FPR = "--fpr", ",".join(TARGETS)
NUMBER = r"(-?[\d.]+(?:e[+-]\d+)?)"


def whole_numbers(score: NDArray[np.float64]) -> list[str]:
    return [f"{50 + 12 * value:.0f}" for value in score]


def int8_cosines(score: NDArray[np.float64]) -> list[str]:
    return [repr(round(40 * value) / 127**2 * 100) for value in score]


def nearly_equal(score: NDArray[np.float64]) -> list[str]:
    return [f"{0.3 + 1e-12 * round(value):.13f}" for value in score]


KINDS = whole_numbers, int8_cosines, nearly_equal


def draw(kind: Any, pairs: int = 2000) -> tuple[NDArray[np.bool_], list[str]]:
    generator = np.random.default_rng(4)
    same = generator.random(pairs) < 0.4
    return same, kind(generator.standard_normal(pairs) + 2 * same)


def told_by_verify(out: str, folder: Path, name: str) -> Iterator[tuple[str, str, float]]:
    """Yield place, target and threshold wherever ``verify`` tells one."""
    for target in TARGETS:
        found = re.search(rf"(?m)^ threshold {target} +{NUMBER} ", out)
        assert found, target
        yield "terminal", target, float(found[1])
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    for name_, value, *_ in page.rows("Figures with 95 % intervals"):
        if name_.startswith("threshold"):
            yield "page", name_.split()[1], float(value)
    for line in read_table(folder / "figures.csv"):
        if line["figure"] == "threshold":
            yield "csv", line["target"], float(line["value"])
    report = json.loads((folder / "report.json").read_text())
    for row in report["results"][name]["rows"]:
        if row["figure"] == "threshold":
            yield "json", row["target"], float(row["value"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sign", [1, -1])
def test_verify(kind: Any, sign: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, texts = draw(kind)
    if sign < 0:  # distances, of which a threshold is one of the negative distance
        texts = [text[1:] if text.startswith("-") else f"-{text}" for text in texts]
    lines = "".join(f"{int(one)},{text}\n" for one, text in zip(same, texts, strict=True))
    (tmp_path / "s.csv").write_text("label,score\n" + lines)
    flags = ["--distances"] if sign < 0 else []
    out = str(tmp_path / "out")
    verify_scores.main([str(tmp_path / "s.csv"), *flags, *FPR, "--out", out])
    scores = sign * np.array([float(text) for text in texts])
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    ((name, result),) = report["results"].items()
    rows = {(row["figure"], row["target"]): row for row in result["rows"]}
    told = list(told_by_verify(capsys.readouterr().out, tmp_path / "out", name))
    assert len(told) == 4 * len(TARGETS)
    for place, target, threshold in told:
        accepted, alarms = scores >= threshold, rows["realised FPR", target]["numerator"]
        assert np.count_nonzero(accepted & ~same) == alarms, (place, target)
        found = rows["TPR@FPR", target]["numerator"]
        assert np.count_nonzero(accepted & same) == found, (place, target)
        assert alarms <= float(target) * np.count_nonzero(~same)
        # The next lower score would accept too much: no threshold does more.
        lower = scores[~accepted & ~same].max()
        assert np.count_nonzero(scores[~same] >= lower) > float(target) * np.count_nonzero(~same)
        limits = rows["threshold", target]
        assert limits["low"] <= limits["value"] <= float(limits["high"])


@pytest.mark.parametrize("kind", KINDS)
def test_audit_of_scores(kind: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same, texts = draw(kind)
    groups = np.random.default_rng(5).choice(["north", "south"], same.size)
    rows = zip(same, texts, groups, strict=True)
    lines = (f"{int(one)},{text},{name}\n" for one, text, name in rows)
    (tmp_path / "s.csv").write_text("label,score,region\n" + "".join(lines))
    folder, targets = tmp_path / "out", ("--fmr", "1e-1,1e-2")
    flags = "--group", "region", "--replicates", "40", "--out", str(folder)
    audit_scores.main(["--scores", str(tmp_path / "s.csv"), *targets, *flags])
    scores = np.array([float(text) for text in texts])
    line = rf"at one threshold for (?:everybody:|all,) {NUMBER}"
    page = Page((folder / "audit.html").read_text(encoding="utf-8"))
    target = json.loads((folder / "audit.json").read_text())["headline"]["target"]
    shown = " ".join(f"{capsys.readouterr().out} {page.text}".split())
    told = [(text, target) for text in re.findall(line, shown)]
    fixed = [row for row in read_table(folder / "audit.csv") if row["figure"] == "threshold"]
    told += [(row["value"], row["target"]) for row in fixed]
    rows = json.loads((folder / "audit.json").read_text())["rows"]
    counted = {row["target"]: row for row in rows if row["figure"] == "threshold"}
    told += [(str(row["value"]), target) for target, row in counted.items()]
    assert len(told) >= 6
    for text, target in told:
        found = np.count_nonzero(scores[~same] >= float(text))
        assert found == counted[target]["numerator"] <= float(target) * np.count_nonzero(~same)


def quantised(images: int = 150, seed: int = 6) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return vectors of ±1, whose cosines are few and exact, and who is on the images."""
    generator = np.random.default_rng(seed)
    person = generator.integers(images // 5, size=images)
    centres = generator.choice([-1.0, 1.0], (person.max() + 1, 64))
    flips = generator.random((images, 64)) < 0.15
    return np.where(flips, -1, 1).astype(np.float32) * centres[person].astype(np.float32), person


def write(path: Path, vectors: NDArray[np.float32], person: NDArray[np.int64], mark: str) -> None:
    norms = np.linalg.norm(vectors, axis=1)
    ids = np.array([f"{mark}{image}.jpg" for image in range(len(person))])
    subjects = np.array([f"{mark}{who}" for who in person])
    note = {"model": {"name": "toy", "sha256": "ab" * 32, "preprocessing": None}}
    write_embeddings(path, Embeddings(vectors, norms, True, ids, subjects, {}, note))


def test_gallery(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    people, strangers = quantised(30), quantised(600, seed=7)
    write(tmp_path / "e.npz", people[0][:6], np.arange(6), "p")
    write(tmp_path / "i.npz", *strangers, "x")
    impostors = "--impostors", str(tmp_path / "i.npz")
    enroll.main([str(tmp_path / "e.npz"), "--gallery", str(tmp_path / "g.npz"), *impostors])
    line = rf"FPIR (\S+): threshold {NUMBER} has FPIR ([\d.]+).%.*exact"
    said = re.findall(line, capsys.readouterr().out)
    assert said
    best = (strangers[0] @ people[0][:6].T / 64).max(axis=1)
    for target, threshold, share in said:
        # Every stranger is searched in the whole gallery.
        found = np.mean(best >= float(threshold))
        assert 100 * found == pytest.approx(float(share), abs=0.006) and found <= float(target)
