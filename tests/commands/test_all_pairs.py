from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest import MonkeyPatch

from facerec.base.files import sha256
from facerec.commands.all_pairs import main
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings
from facerec.verification.scoring import score_all_pairs
from tests.commands.conftest import Refused, Told

FAILED = 7

Figures = dict[tuple[str, str, str], dict[str, Any]]


def toy() -> tuple[NDArray[np.float32], NDArray[np.str_], NDArray[np.str_], NDArray[np.str_]]:
    """Vectors, ids, subjects and groups of 120 images; one was not acquired."""
    generator = np.random.default_rng(0)
    person = generator.integers(30, size=120)
    centres = generator.standard_normal((30, 16))
    vectors = (centres[person] + generator.standard_normal((120, 16))).astype(np.float32)
    vectors[FAILED] = np.nan
    ids = np.array([f"p{who}/{image}.jpg" for image, who in enumerate(person)])
    subjects = np.array([f"p{who}" for who in person])
    return vectors, ids, subjects, np.where(person % 3 == 0, "=a", "b")


VECTORS, IDS, SUBJECTS, GROUPS = toy()


def write_toy(path: Path, subjects: NDArray[np.str_] | None = SUBJECTS) -> None:
    norms = np.linalg.norm(VECTORS, axis=1).astype(np.float32)
    about = {"failures": {FAILED: "no face"}, "note": {"model": {"name": "toy"}}}
    write_embeddings(path, Embeddings(VECTORS, norms, True, IDS, subjects, **about))


def write_subjects(path: Path, rows: list[list[str]] | None = None) -> None:
    """Write a table in another order than the embeddings, with a row that they lack."""
    if rows is None:
        rows = [list(row) for row in zip(IDS, SUBJECTS, GROUPS, strict=True)][::-1]
        rows.append(["elsewhere.jpg", "p1", ""])
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "kind"])
        writer.writerows(rows)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    write_toy(tmp_path / "e.npz")
    write_toy(tmp_path / "nobody.npz", subjects=None)
    write_subjects(tmp_path / "s.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


GROUPED = ["--embeddings", "nobody.npz", "--subjects", "s.csv", "--group", "kind"]


def figures(file: str) -> Figures:
    rows = json.loads(Path(file).read_text())["rows"]
    return {(row["group"], row["figure"], row["target"]): row for row in rows}


def test_terminal_and_json_hold_the_same_rows(workplace: Path, told: Told) -> None:
    flags = ["--fpr", "1/20,1e-9", "--threshold", "0.4", "--json", "j.json"]
    text = " ".join(told(main, *GROUPED, *flags).split())
    content = json.loads(Path("j.json").read_text())
    found = score_all_pairs(VECTORS, SUBJECTS, fpr=["1/20"], thresholds=[0.4])
    assert content["embeddings"]["sha256"] == sha256("nobody.npz")
    assert content["embeddings"]["note"]["model"] == {"name": "toy"}
    assert content["failures"] == [IDS[FAILED]]
    assert content["pairs"]["mated"] == found.mated
    assert content["pairs"]["lost_non_mated"] == found.lost_non_mated

    rows, point = figures("j.json"), found.points[0]
    given, at_point = found.tables
    tpr = rows["everybody", "TPR@FPR", "1/20"]
    assert tpr["value"] == pytest.approx(point.tpr) and tpr["numerator"] == point.true_accepts
    alike = rows["everybody", "TPR@FPR, people alike", "1/20"]
    assert alike["value"] == 1 - at_point.fnmr_share(alike=True).value != point.tpr
    misses = at_point.fnmr_share().interval()
    assert (tpr["low"], tpr["high"]) == pytest.approx((1 - misses.high, 1 - misses.low))
    assert rows["everybody", "realised FPR", "1/20"]["numerator"] == point.false_accepts
    assert rows["everybody", "threshold", "1/20"]["value"] == point.threshold
    assert f"threshold 1/20 {point.threshold}" in text
    hopeless = rows["everybody", "TPR@FPR", "1e-9"]
    assert hopeless["value"] is None and hopeless["status"] == "unresolved"
    of = {name: np.unique(SUBJECTS[name == GROUPS]) for name in ("=a", "b")}
    places = {name: np.flatnonzero(np.isin(found.subjects, each)) for name, each in of.items()}
    for name, sides in (("=a", ["=a"]), ("b", ["b"]), ("=a × b", ["=a", "b"])):
        row = rows[name, "FMR@threshold", "0.4"]
        share = given.fmr_among(*(places[side] for side in sides))
        assert (row["numerator"], row["denominator"]) == (share.events, share.comparisons)
        assert (row["low"], row["value"]) == (share.interval().low, share.value)
    for said in ("note: 1 rows of s.csv have no embedding", "note: 1 images were not acquired"):
        assert said in text


ROWS = [list(row) for row in zip(IDS, SUBJECTS, GROUPS, strict=True)]
TWO_KINDS = [*ROWS[:-1], [*ROWS[-1][:2], "other"]]


@pytest.mark.parametrize(
    ("arguments", "rows", "words"),
    [
        ("--subjects s.csv", [["other.jpg", "p0", ""], *ROWS[2:]], ("2 of 120", str(IDS[0]))),
        ("--subjects s.csv", [*ROWS, ROWS[4]], ("s.csv, line 122", "earlier line")),
        ("--subjects s.csv --group kind", TWO_KINDS, ("two values in the column kind",)),
        ("--subjects s.csv --group sex", ROWS, ("no column 'sex'",)),
        ("--group kind", ROWS, ("--subjects",)),
        ("--embeddings nobody.npz", ROWS, ("nobody.npz", "--subjects")),
        ("--fpr 7", ROWS, ("target '7'",)),
    ],
)
def test_mistakes_end_in_a_sentence(
    workplace: Path, refused: Refused, arguments: str, rows: list[list[str]], words: tuple[str, ...]
) -> None:
    write_subjects(workplace / "s.csv", rows)
    error = refused(main, "--embeddings", "e.npz", *arguments.split())
    assert all(word in error for word in words), error
