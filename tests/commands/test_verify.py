from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helpers.tiny_training  # noqa: F401  (its backbone)
import numpy as np
import pytest
from helpers.toy_files import read_files
from helpers.toy_packs import jpeg, make_pack

import facerec
from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base.files import sha256
from facerec.commands.embed import main as embed
from facerec.commands.verify import main
from facerec.commands.verify_scores import main as verify_scores
from facerec.embedding import read_embeddings, save_model
from facerec.embedding.align import face_template
from facerec.galleries import known_overlaps
from facerec.galleries.overlap_report import KnownOverlap
from facerec.verification import pack_bench, score_pairs
from tests.commands.conftest import Told


def unpack(pack: Path, folder: Path) -> None:
    """Write the images of a pack into a folder, with a flat list."""
    bench = pack_bench(pack)
    (folder / "images").mkdir(parents=True)
    for i in range(len(bench.images)):
        (folder / "images" / f"{i:06d}.jpg").write_bytes(bench.images.encoded(i))
    pairs = zip(bench.pairs.first, bench.pairs.second, bench.pairs.issame, strict=True)
    lines = [f"{first:06d}.jpg,{second:06d}.jpg,{int(same)}\n" for first, second, same in pairs]
    (folder / "pairs.csv").write_text("".join(lines))


def save_run(folder: Path, seed: int = 0) -> Path:
    config = Backbone("tiny_linear", embedding_size=32)
    backbone = create_backbone(config, seed=seed)
    save_model(folder / "model.safetensors", backbone, config, Preprocessing(), {})
    return folder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with two runs and one pack."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "data" / "lfw").mkdir(parents=True)
    make_pack(folder / "data" / "lfw" / "lfw.bin", per_fold=1)
    for age, name in enumerate(("older", "newest")):
        save_run(folder / "runs" / name, seed=age)
        os.utime(folder / "runs" / name / "model.safetensors", (1e9 + age, 1e9 + age))
    return folder


def test_json_of_two_benches(workplace: Path, told: Told) -> None:
    again = workplace / "elsewhere"
    again.mkdir()
    shutil.copy(workplace / "data" / "lfw" / "lfw.bin", again / "again.bin")
    arguments = ["--bench", "lfw", "again", "--data", str(again), "--fpr", "0.10,1/5"]
    text = told(main, *arguments, "--compat insightface --json out/figures.json")
    assert "figures: out/figures.json" in text
    content = json.loads((workplace / "out" / "figures.json").read_text())
    assert content["facerec"] == facerec.__version__
    first, second = content["results"]
    assert (first["bench"], second["bench"]) == ("lfw", "again")
    # The literals stay as they were written.
    assert [row["target"] for row in first["rows"] if row["figure"] == "TPR@FPR"] == ["0.10", "1/5"]
    assert first["pairs"] == {"mated": 10, "non_mated": 10, "failures": []}
    assert first["model"]["sha256"] == sha256("runs/newest/model.safetensors")
    source = {"path": "data/lfw/lfw.bin", "sha256": sha256("data/lfw/lfw.bin"), "format": "pack"}
    assert first["flip"] is True and first["source"] == source
    assert 0 <= rows(first)["accuracy as insightface’s"] <= 1
    assert first["folds"] == second["folds"]


def test_nothing_is_written_beside_a_model(workplace: Path) -> None:
    before = read_files(workplace / "runs")
    main(["--model", "runs/newest", "--json", "r.json"])
    main(["--model", "runs/newest", "--try-preprocessing"])
    assert read_files(workplace / "runs") == before


def test_onnx_of_a_stranger(workplace: Path, told: Told) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    # A model that is a thumbnail: average pooling and a reshape.
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    pool = node("AveragePool", ["x"], ["p"], kernel_shape=[16, 16], strides=[16, 16])
    ends = [value("x", 1, ["n", 3, 112, 112])], [value("y", 1, ["n", 147])]
    graph = onnx.helper.make_graph([pool, node("Flatten", ["p"], ["y"])], "thumbnail", *ends)
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), "thumbnail.onnx")
    said = told(main, "--model thumbnail.onnx --try-preprocessing --json tried.json")
    assert "assumed: channels, mean, std" in said and "best: --channels" in said
    tried = json.loads(Path("tried.json").read_text())["preprocessing"]
    ways = 10 + any(tried["placements"][0]["shift"])
    assert len(tried["figures"]) == 3 * ways and tried["verdict"] in " ".join(said.split())
    found = []
    for flags in (["--std", "128"], ["--std", "64"], ["--mean", "0"], ["--channels", "bgr"]):
        main(["--model", "thumbnail.onnx", *flags, "--json", "figures.json"])
        found.append(json.loads(Path("figures.json").read_text())["results"][0])
    plain, halved, shifted, swapped = found
    assert plain["folds"]["accuracy"]["mean"] >= 0.9
    norm = "norm, insightface’s “XNorm”"
    assert rows(halved)[norm] == pytest.approx(2 * rows(plain)[norm], rel=1e-5)
    assert halved["folds"] == plain["folds"]
    # Without the mean the embeddings all point the same way.
    assert rows(shifted)["d′"] != rows(plain)["d′"]
    assert swapped["model"]["preprocessing"]["channels"] == "bgr"


def figures(*arguments: str, run: Callable[[list[str]], None] = main) -> dict[str, Any]:
    """Run the command; return what it writes about its one bench."""
    run([*arguments, "--json", "figures.json"])
    (result,) = json.loads(Path("figures.json").read_text())["results"]
    return result


def rows(result: dict[str, Any]) -> dict[str, float]:
    """Return the figures that have no target by name."""
    return {row["figure"]: row["value"] for row in result["rows"] if not row["target"]}


SAME = ("pairs", "folds", "subjects")


def test_pack_folder_embeddings_and_scores_agree(workplace: Path) -> None:
    """One bench in four forms has one set of figures."""
    pack = figures("--bench", "lfw")
    unpack(Path("data/lfw/lfw.bin"), Path("tree"))
    folder = figures("--pairs", "tree/pairs.csv", "--format", "flat", "--images", "tree/images")
    embed(["--model", "runs/newest", "--bench", "lfw", "--out", "lfw.npz"])
    stored = figures("--bench", "lfw", "--embeddings", "lfw.npz")
    for name in SAME:
        assert folder[name] == pack[name], name
        assert stored[name] == pack[name], name
    assert rows(stored) == rows(pack)
    assert stored["flip"] is True and stored["model"]["sha256"] == pack["model"]["sha256"]
    bench = pack_bench("data/lfw/lfw.bin")
    vectors = read_embeddings(Path("lfw.npz")).vectors
    scores = score_pairs(vectors, bench.pairs.first, bench.pairs.second)
    lines = zip(bench.pairs.issame, scores, bench.pairs.folds, strict=True)  # type: ignore[arg-type]
    text = "".join(f"{int(same)},{score!r},{fold}\n" for same, score, fold in lines)
    Path("scores.csv").write_text(
        "label,score,fold\n" + text.replace("np.float32(", "").replace(")", "")
    )
    alone = figures("scores.csv", run=verify_scores)
    assert alone["folds"]["accuracy"]["accuracies"] == pack["folds"]["accuracy"]["accuracies"]
    assert rows(alone)["AUC"] == rows(pack)["AUC"]
    assert alone["subjects"] is None and "independent" in alone["intervals"]
    assert "norm CV" not in rows(alone) and alone["score"] == "as given in the file"


def test_both_sides_of_a_comparison_are_scored_on_the_same_pairs(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = pack_bench("data/lfw/lfw.bin").images.ids.tolist()
    # Only what the second model was trained on is in the bench.
    bench = {"sha256": sha256("data/lfw/lfw.bin")}
    known = KnownOverlap(Path("list.csv"), {}, bench, frozenset(ids[:4]), 2)
    answers = iter([[], [known]])
    monkeypatch.setattr(known_overlaps, "training_overlaps", lambda data: next(answers))
    main(["--compare", "runs/older", "--json", "figures.json"])
    content = json.loads(Path("figures.json").read_text())
    assert [row["pairs"]["mated"] for row in content["results"]] == [10, 9]
    comparison, _ = content["comparisons"]
    first, second, change = [row for row in comparison["rows"] if row["figure"] == "AUC"]
    assert first["value"] == rows(content["results"][0])["AUC"]
    assert change["value"] == pytest.approx(second["value"] - first["value"])
    text = capsys.readouterr().out
    assert all(f"model runs/{name}/model.safetensors" in text for name in ("newest", "older"))


def test_template_bench(workplace: Path, told: Told) -> None:
    folder = make_ijb(workplace / "ijbc")
    text = told(main, "--bench ijbc --data", str(folder), "--json figures.json --fpr 1e-1")
    assert "ijbc (raw norms)" in text and "ijbc (unit norms)" in text and "rank 1" in text.lower()
    figures = json.loads(Path("figures.json").read_text())
    raw, unit = figures["results"]
    assert raw["folds"] == {} and raw["pairs"]["mated"] == unit["pairs"]["mated"] == 6
    assert rows(raw) != rows(unit)
    # What is compared is said, and the same of 1:1 and 1:N.
    assert "detector" in raw["score"] and "raw norms" in raw["score"]
    searched = figures["identification"]
    assert [each["bench"] for each in searched] == [raw["bench"], unit["bench"]]
    for each, result in zip(searched, (raw, unit), strict=True):
        for fact in ("flip", "align", "score", "model", "source"):
            assert each[fact] == result[fact]
        assert each["galleries"] == {"G1": 3, "G2": 3}
        found = {(r["gallery"], r["figure"], r["target"]): r for r in each["rows"]}
        assert found["G1", "rank", "1"]["denominator"] == 3
        assert found["G1", "rank", "20"]["value"] == 1 == found["mean", "rank", "20"]["value"]
        # Three non-mated searches resolve no FPIR of a tenth.
        assert found["G1", "TPIR@FPIR", "1e-1"]["value"] is None
    assert "alignment: points of the bench\n" in text


def make_ijb(root: Path) -> Path:
    """Write six persons with two templates of two photos each, in insightface's layout."""
    generator = np.random.default_rng(5)
    (root / "meta").mkdir(parents=True)
    (root / "loose_crop").mkdir()
    points = " ".join(f"{value:.2f}" for value in face_template((112, 112)).reshape(-1))
    media, landmarks, pairs = [], [], []
    searches: dict[str, list[str]] = {"gallery_G1": [], "gallery_G2": [], "probe_mixed": []}
    for person in range(6):
        pattern = generator.random((6, 6, 3))
        for template in (2 * person + 1, 2 * person + 2):
            for photo in range(2):
                name = f"{template}_{photo}.jpg"
                (root / "loose_crop" / name).write_bytes(jpeg(generator, pattern))
                media.append(f"{name} {template} {photo}")
                landmarks.append(f"{name} {points} 0.{9 - photo}")
        lists = "gallery_G1" if person < 3 else "gallery_G2"
        searches[lists].append(f"{2 * person + 1},{person}")
        searches["probe_mixed"].append(f"{2 * person + 2},{person}")
        for other in range(6):
            pairs.append(f"{2 * person + 1} {2 * other + 2} {int(person == other)}")
    (root / "meta" / "ijbc_face_tid_mid.txt").write_text("\n".join(media))
    (root / "meta" / "ijbc_name_5pts_score.txt").write_text("\n".join(landmarks))
    (root / "meta" / "ijbc_template_pair_label.txt").write_text("\n".join(pairs))
    for name, lines in searches.items():
        text = "\n".join(["TEMPLATE_ID,SUBJECT_ID", *lines])
        (root / "meta" / f"ijbc_1N_{name}.csv").write_text(text)
    return root


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--bench", "agedb_30"], "no pack for bench 'agedb_30': looked for data/agedb_30.bin"),
        (["--fpr", "1e-3", "2"], "target '2' is not a rate between 0 and 1; write it as 1e-3"),
        (["--model", "gone.onnx"], "gone.onnx: no such model"),
        (["--channels", "bgr"], "runs/newest/model.safetensors: the file wants channels"),
        (["--bench", "broken.bin"], "broken.bin: "),
        (["--pairs", "list.txt"], "list.txt: its name does not tell its form; give --format"),
        (["--pairs", "gone.txt"], "gone.txt: there is no such list"),
        (["--out", "rep", "--json", "rep/a.json"], "rep/a.json: lies in the report's folder"),
    ],
)
def test_errors_are_sentences(
    workplace: Path, refused: Callable[..., str], arguments: list[str], sentence: str
) -> None:
    Path("broken.bin").write_bytes(b"no pack")
    Path("list.txt").touch()
    before = sorted(workplace.rglob("*"))
    assert refused(main, *arguments).startswith(sentence)
    assert sorted(workplace.rglob("*")) == before


def test_quality_of_images_and_refusals(
    workplace: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    ids = pack_bench("data/lfw/lfw.bin").images.ids
    assert ids is not None
    Path("Q.csv").write_text("\n".join(["file;q", *(f"{name};{n}" for n, name in enumerate(ids))]))
    given = ["--model", "runs/newest", "--bench", "lfw", "--fpr", "0.5", "--quality", "Q.csv"]
    found = rows(figures(*given))
    without = "FNMR without the lowest {} % of {}".format
    assert {without(20, "q"), without(5, "raw norm")} <= {*found}
    assert f"0 of {len(ids)} images have no number" in " ".join(capsys.readouterr().out.split())
    assert "scores alone" in refused(verify_scores, "S.csv", "--quality", "Q.csv")
