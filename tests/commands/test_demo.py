"""The demo, on a set so small that it takes seconds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import pytest
from helpers.every_command import TRAINING

from facerec.commands.demo import demo, main
from facerec.export import parity
from facerec.fairness.rows import ETA2
from facerec.records.synthetic import CONTROL, PACKS, Group, SyntheticSet
from facerec.report.conclusions import ALPHA
from tests.commands.conftest import Refused

GROUPS = {"group": ["good", "poor"], "control": list(CONTROL)}

# As many people as two groups of ten need.
FACES = SyntheticSet(
    seed=3,
    subjects=8,
    images_per_subject=6,
    pairs_per_fold=12,
    groups=(Group("good"), Group("poor", contrast=0.3, blur=4.0, noise=30.0)),
)


@pytest.mark.integration
def test_the_demo_goes_from_nothing_to_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "BATCHES", (1, 5))
    (tmp_path / "tiny.py").write_text(TRAINING)
    out = tmp_path / "out"
    # What an earlier demo left there is replaced, and nothing else.
    for old in ("data/old.bin", "runs/old/model.safetensors", "mine.txt"):
        (out / old).parent.mkdir(parents=True, exist_ok=True)
        (out / old).write_text("old")
    demo(out, faces=FACES, recipe=tmp_path / "tiny.py", processes=1)
    printed = capsys.readouterr().out
    assert not (out / "data" / "old.bin").exists() and not (out / "runs" / "old").exists()
    assert (out / "mine.txt").read_text() == "old"

    # Two runs that differ in the penalty alone.
    plain, treated = (
        json.loads((out / "runs" / name / "recipe.json").read_text())
        for name in ("arcface", "arcface_sec")
    )
    assert plain.pop("regularizer") is None and treated.pop("regularizer")["type"] == "SEC"
    assert plain == treated and plain["data"]["path"] == str(out / "data")

    # The pages are those of verify and audit, which are named at the end.
    audits = [f"audit/{name}/audit.html" for name in ("arcface", "arcface_sec")]
    for page in ("verify/report.html", *audits):
        assert f"report: {out / page}" in printed
    document = json.loads((out / "verify" / "report.json").read_text())
    assert list(document["results"]) == list(PACKS)
    assert [one["first"] for one in document["comparisons"]]
    assert cv2.imread(str(out / "faces.jpg")) is not None
    arms = ("ArcFace", "ArcFace + SEC")
    lines = [re.split("  +", line.strip()) for line in printed.splitlines()]
    rows = [line for line in lines if len(line) == 4 and line[0] in arms]
    assert [row[:2] for row in rows] == [[arm, pack] for arm in arms for pack in PACKS]
    for row in rows:
        assert re.fullmatch(r"\d+\.\d\d % ± \d+\.\d\d", row[2])

    # Both runs are audited, the one with the penalty against the one without.
    planted = 0
    for name, arm in zip(audits, arms, strict=True):
        document = json.loads((out / name).with_name("audit.json").read_text())
        assert {g: each["shown"] for g, each in document["groups"].items()} == GROUPS
        rows = document["rows"]
        changes = any(row["kind"] == "change" for row in rows)
        assert changes == (arm == "ArcFace + SEC")
        p = {
            row["grouping"]: row["value"]
            for row in rows
            if (row["figure"], row["kind"]) == (ETA2, "p")
        }
        planted += p["group"] < ALPHA

    verdict = f"planted difference in {planted} of 2 models, and one between the control groups"
    assert verdict in " ".join(printed.split())


@pytest.mark.integration
def test_data_only_replaces_drawn_faces_and_no_others(tmp_path: Path, refused: Refused) -> None:
    records = tmp_path / "train.rec"
    records.write_bytes(b"photos")
    arguments = ["--data-only", "--out", str(tmp_path), "--processes", "1", "--subjects", "2"]
    arguments += ["--images-per-subject", "2", "--pairs-per-fold", "4"]
    assert "train.rec that was not generated" in refused(main, *arguments)
    assert records.read_bytes() == b"photos" and list(tmp_path.iterdir()) == [records]
    records.unlink()
    main(arguments)
    first = records.read_bytes()
    main(arguments)
    assert records.read_bytes() == first
