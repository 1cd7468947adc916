from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import facerec
from facerec.commands.all_pairs import main
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings
from facerec.errors import FacerecError
from facerec.files import sha256
from facerec.verification.scoring import AllPairs, score_all_pairs

REPOSITORY = Path(facerec.__file__).parent.parent
FAILED = 7


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
    failures = {FAILED: "no face"}
    note = {"model": {"name": "toy"}}
    write_embeddings(
        path,
        Embeddings(VECTORS, norms, True, ids=IDS, subjects=subjects, failures=failures, note=note),
    )


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
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_toy(tmp_path / "e.npz")
    write_toy(tmp_path / "nobody.npz", subjects=None)
    write_subjects(tmp_path / "s.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def expected(**arguments: object) -> AllPairs:
    return score_all_pairs(VECTORS, SUBJECTS, **arguments)  # type: ignore[arg-type]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, expect exit status 2, and return its one sentence."""
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error.removeprefix("error: ").strip()


def test_points_and_thresholds_are_printed_with_counts(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--embeddings", "e.npz", "--fpr", "1e-1", "1e-9", "--threshold", "0.5", "0.999"])
    text = capsys.readouterr().out
    found = expected(fpr=["1e-1"], thresholds=[0.5])
    point, table = found.points[0], found.tables[0]
    assert "embeddings e.npz: 120 images" in text
    assert f"119 images of 30 subjects: {found.mated:,} mated" in text
    misses, mated = table.false_non_matches, found.mated
    for pattern in (
        rf"TPR@FPR=1e-1 +{100 * point.tpr:.2f} % +{point.true_accepts}/{mated} +"
        rf"t = {point.threshold:.4g}\s+\[[\d.,\s]+\]",
        rf"its FPR +{point.fpr_realised:.3g} +{point.false_accepts}/{found.non_mated:,} +n_eff",
        r"TPR@FPR=1e-9 +not resolvable +N=",
        rf"FMR at 0.5 +{table.fmr:.3g} +{table.false_matches}/\S+ +n_eff.*\s+\[[\d.,\s]+\]",
        rf"FNMR at 0.5 +{table.fnmr:.3g} +{misses}/{mated} +n_eff",
        r"FMR at 0.999 +0 +0/.* if independent\s+\[0,\s[\d.]+\]",
        rf"not acquired: 1 of 120 images; their {found.lost_mated} mated and "
        rf"{found.lost_non_mated} non-mated pairs",
    ):
        assert re.search(pattern, text), pattern
    assert "groups at" not in text and "figures:" not in text


def test_files_hold_all_figures(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--embeddings", "nobody.npz", "--subjects", "s.csv", "--group", "kind"]
    arguments += ["--fpr", "1/20,1e-9", "--threshold", "0.4", "--out", "out", "--json", "j.json"]
    main(arguments)
    text = capsys.readouterr().out
    assert "note: 1 rows of s.csv have no embedding" in text
    for name in ("j.json", "out/all_pairs.json", "out/roc.csv", "out/groups.csv"):
        assert f"figures: {name}" in text
    content = json.loads(Path("j.json").read_text())
    assert content == json.loads(Path("out/all_pairs.json").read_text())
    found = expected(fpr=["1/20"], thresholds=[0.4], groups=GROUPS)
    assert content["facerec"] == facerec.__version__
    assert content["embeddings"]["sha256"] == sha256("nobody.npz")
    assert content["embeddings"]["note"]["model"] == {"name": "toy"}
    assert content["failures"] == [IDS[FAILED]]
    assert content["pairs"] == {
        "mated": found.mated,
        "non_mated": found.non_mated,
        "lost_mated": found.lost_mated,
        "lost_non_mated": found.lost_non_mated,
    }
    point, hopeless = content["operating_points"]
    assert (point["target"], point["threshold"]) == ("1/20", found.points[0].threshold)
    assert point["true_accepts"] == found.points[0].true_accepts
    low, high = (point["tpr_interval"][end] for end in ("low", "high"))
    misses = found.tables[1].fnmr_share().interval()
    assert (low, high) == pytest.approx((1 - misses.high, 1 - misses.low))
    assert hopeless["tpr"] is None and hopeless["tpr_interval"] is None
    (at,) = content["thresholds"]
    share = found.tables[0].fmr_share()
    assert at["fmr"]["errors"] == share.events and at["fmr"]["comparisons"] == found.non_mated
    assert at["fmr"]["interval"]["high"] == share.interval().high
    cells = {(*cell["groups"], cell["error"]): cell for cell in at["groups"]}
    assert set(cells) == {
        ("=a", "FMR"),
        ("=a", "FNMR"),
        ("b", "FMR"),
        ("b", "FNMR"),
        ("=a", "b", "FMR"),
    }
    groups, table = found.groups, found.tables[0]
    assert groups is not None and table.group_false_matches is not None
    for key, place in ((("=a",), (0, 0)), (("b",), (1, 1)), (("=a", "b"), (0, 1))):
        cell = cells[(*key, "FMR")]
        counts = table.group_false_matches[place], groups.non_mated[place]
        assert (cell["errors"], cell["comparisons"]) == counts
        share = groups.fmr_share(table, *place)
        assert share is not None and cell["interval"]["low"] == share.interval().low

    with Path("out/groups.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # Both thresholds that can be resolved, five cells each; no cell is a formula.
    assert len(rows) == 10 and {row["first"] for row in rows} == {"'=a", "b"}
    assert sum(row["first"] != row["second"] for row in rows) == 2
    row = next(row for row in rows if row["at"] == "threshold 0.4" and row["error"] == "FNMR")
    assert int(row["errors"]) == cells["=a", "FNMR"]["errors"]
    assert float(row["high"]) == cells["=a", "FNMR"]["interval"]["high"]
    with Path("out/roc.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames is not None and "0.0001220703125" in reader.fieldnames[0]
        last = list(reader)[-1]
    assert (int(last["false_accepts"]), int(last["true_accepts"])) == (found.non_mated, found.mated)
    # The terminal shows the groups at both thresholds.
    assert text.count("groups at") == 2 and re.search(r"a × b +FMR +[\d.]+ +\d", text)


def test_a_folder_tells_of_one_run(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--embeddings", "e.npz", "--subjects", "s.csv", "--out", "out"]
    main([*arguments, "--group", "kind"])
    main(arguments)
    assert {path.name for path in Path("out").iterdir()} == {"all_pairs.json", "roc.csv"}
    Path("out/groups.csv").write_text("mine")
    main(arguments)
    assert Path("out/groups.csv").read_text() == "mine"

    def full(*_: object) -> None:
        raise FacerecError("out/roc.csv: the disk is full")

    monkeypatch.setattr("facerec.commands.all_pairs.save_csv", full)
    assert "disk is full" in refused(capsys, *arguments)
    assert not Path("out/all_pairs.json").exists()


def test_subjects_in_several_groups_get_counts_without_intervals(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        [name, who, "xy"[k % 2]] for k, (name, who) in enumerate(zip(IDS, SUBJECTS, strict=True))
    ]
    write_subjects(workplace / "s.csv", rows)
    arguments = ["--embeddings", "e.npz", "--subjects", "s.csv", "--group", "kind"]
    main([*arguments, "--fpr", "1e-1", "--json", "j.json"])
    assert re.search(r"x × y +FNMR .* subjects are in several groups", capsys.readouterr().out)
    (point,) = json.loads(Path("j.json").read_text())["operating_points"]
    cells = {(*cell["groups"], cell["error"]): cell for cell in point["groups"]}
    assert all(cell["interval"] is None for cell in cells.values())
    totals = {
        kind: sum(cell["comparisons"] for key, cell in cells.items() if key[-1] == kind)
        for kind in ("FMR", "FNMR")
    }
    found = expected(fpr=())
    assert totals == {"FMR": found.non_mated, "FNMR": found.mated}


def test_images_without_a_group_are_left_out_and_counted(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [list(row) for row in zip(IDS, SUBJECTS, GROUPS, strict=True)]
    blank = [3, 4, 50]
    for row, word in zip(blank, (" ", "None", "#N/A"), strict=True):
        rows[row][2] = word
    write_subjects(workplace / "s.csv", rows)
    arguments = ["--embeddings", "e.npz", "--subjects", "s.csv", "--group", "kind"]
    main([*arguments, "--fpr", "1e-1", "--json", "j.json"])
    people = len(set(SUBJECTS[blank]))
    said = " ".join(capsys.readouterr().out.split())
    assert f"3 images of {people} subjects have no kind in s.csv and are left out" in said
    content = json.loads(Path("j.json").read_text())
    kept = np.delete(np.arange(len(IDS)), blank)
    found = score_all_pairs(VECTORS[kept], SUBJECTS[kept], fpr=["1e-1"], groups=GROUPS[kept])
    assert content["images_without_group"] == 3 and content["failures"] == [IDS[FAILED]]
    (point,) = content["operating_points"]
    assert point["threshold"] == found.points[0].threshold
    assert (content["pairs"]["mated"], content["pairs"]["non_mated"]) == (
        found.mated,
        found.non_mated,
    )
    # All cells with pairs have intervals, as nobody is in two groups.
    assert all(cell["interval"] for cell in point["groups"] if cell["comparisons"])
    write_subjects(workplace / "s.csv", [[*row[:2], ""] for row in rows])
    assert "no image with an embedding has a value in the column kind" in refused(
        capsys, *arguments
    )


def test_tables_that_do_not_join_are_refused(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def problem(rows: list[list[str]], *more: str) -> str:
        write_subjects(workplace / "s.csv", rows)
        return refused(capsys, "--embeddings", "e.npz", "--subjects", "s.csv", *more)

    rows = [list(row) for row in zip(IDS, SUBJECTS, GROUPS, strict=True)]
    sentence = problem([["other.jpg", "p0", ""], *rows[2:]])
    assert "s.csv: 2 of 120 images with an embedding have no row" in sentence
    assert f"the first is '{IDS[0]}', and 1 of 119 rows have no embedding" in sentence
    assert "s.csv, line 122: image" in problem([*rows, rows[4]])
    assert "s.csv, line 3: image_id or subject_id is empty" in problem([rows[0], ["x", " ", ""]])
    assert "there is no column 'sex' (there are image_id, subject_id, kind)" in problem(
        rows, "--group", "sex"
    )
    (workplace / "s.csv").write_bytes(b"\xff\xfe\x00")
    assert "s.csv, line 1: this is no UTF-8" in refused(
        capsys, "--embeddings", "e.npz", "--subjects", "s.csv"
    )
    assert "gone.csv: the table cannot be read" in refused(
        capsys, "--embeddings", "e.npz", "--subjects", "gone.csv"
    )


def test_what_is_missing_is_said_before_the_work(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "of 120 of 120 images it does not say who is on them" in refused(
        capsys, "--embeddings", "nobody.npz"
    )
    write_toy(workplace / "some.npz", np.where(np.arange(120) < 3, "", SUBJECTS))
    assert "some.npz: of 3 of 120 images" in refused(capsys, "--embeddings", "some.npz")
    Path("report").touch()
    assert "report is no folder" in refused(capsys, "--embeddings", "gone.npz", "--out", "report")
    assert "--group sex: name the table" in refused(
        capsys, "--embeddings", "e.npz", "--group", "sex"
    )
    assert "target '7' is not a rate" in refused(capsys, "--embeddings", "gone", "--fpr", "7")
    assert "gone.npz" in refused(capsys, "--embeddings", "gone.npz")
    assert "a folder; name the file" in refused(capsys, "--embeddings", "gone", "--json", ".")
    assert "cannot be used here" in refused(capsys, "--embeddings", "e.npz", "--device", "cuda:99")


@pytest.mark.integration
def test_processes_of_torchrun_print_once_and_find_the_same(workplace: Path) -> None:
    main(["--embeddings", "e.npz", "--threshold", "0.5", "--json", "alone.json"])
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = ["--embeddings", "e.npz", "--threshold", "0.5", "--json", "two.json"]
    done = subprocess.run(
        [*program, str(REPOSITORY / "tools" / "all_pairs.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.count("figures: two.json") == done.stdout.count("TPR@FPR=1e-1") == 1
    alone, two = (json.loads(Path(name).read_text()) for name in ("alone.json", "two.json"))
    assert alone == two
