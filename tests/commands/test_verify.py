from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import facerec
from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.commands.verify import main
from facerec.embedding import save_model
from facerec.files import sha256
from facerec.records.packs import write_pack

REPOSITORY = Path(facerec.__file__).parent.parent


def jpeg(generator: np.random.Generator, person: np.ndarray) -> bytes:
    pattern = np.clip(person + 0.1 * generator.normal(size=person.shape), 0, 1)
    pixels = cv2.resize((255 * pattern).astype(np.uint8), (112, 112))
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def toy_pack(path: Path, cut: int | None = None) -> Path:
    """Write 20 pairs in ten folds; image ``cut`` ends early."""
    generator = np.random.default_rng(0)
    images, issame = [], []
    for same in [True, False] * 10:
        first, second = generator.random((2, 6, 6, 3))
        images += [jpeg(generator, first), jpeg(generator, first if same else second)]
        issame.append(same)
    if cut is not None:
        images[cut] = images[cut][:200]
    write_pack(path, images, issame)
    return path


def save_run(folder: Path, seed: int = 0) -> Path:
    config = Backbone(name="iresnet18", width=0.125, embedding_size=32)
    backbone = create_backbone(config, seed=seed)
    save_model(folder / "model.safetensors", backbone, config, Preprocessing(), {})
    return folder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with two runs and one pack."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "data" / "lfw").mkdir(parents=True)
    toy_pack(folder / "data" / "lfw" / "lfw.bin")
    toy_pack(folder / "data" / "cut.npz", cut=4)
    for age, name in enumerate(("older", "newest")):
        save_run(folder / "runs" / name, seed=age)
        os.utime(folder / "runs" / name / "model.safetensors", (1e9 + age, 1e9 + age))
    return folder


@pytest.fixture
def workplace(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    shutil.copytree(template, folder, copy_function=shutil.copy2)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FACEREC_DATA", raising=False)
    return folder


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, expect exit status 2, and return its one sentence."""
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error.removeprefix("error: ").strip()


def test_bench_alone_takes_the_newest_run(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--bench", "lfw"])
    text = capsys.readouterr().out
    assert "model runs/newest/model.safetensors" in text
    assert "bench data/lfw/lfw.bin" in text
    assert "lfw · newest: 10 same and 10 different pairs" in text
    assert re.search(r"TPR@FPR=1e-1 .* % +\[.*\] +\d+/10 at 1/10 +FPR 0.1, few errors", text)
    assert re.search(r"TPR@FPR=1e-3 .*not resolvable +N=10", text)
    assert "flip: sum of raw embeddings" in text
    main(["--bench", "lfw", "--runs", "runs", "--model", "runs/older", "--no-flip"])
    text = capsys.readouterr().out
    assert "lfw · older" in text and "flip: none" in text


def test_json_and_roc(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = workplace / "elsewhere"
    again.mkdir()
    shutil.copy(workplace / "data" / "lfw" / "lfw.bin", again / "again.bin")
    arguments = ["--bench", "lfw", "again", "--data", str(again), "--fpr", "0.10", "1/5"]
    main([*arguments, "--compat", "insightface", "--json", "out/figures.json", "--roc", "roc.svg"])
    text = capsys.readouterr().out
    assert "figures: out/figures.json" in text and "ROC: roc.svg" in text
    content = json.loads((workplace / "out" / "figures.json").read_text())
    assert content["facerec"] == facerec.__version__
    first, second = content["results"]
    assert (first["bench"], second["bench"]) == ("lfw", "again")
    # The literals stay as they were written.
    assert [point["target"] for point in first["tpr_at_fpr"]] == ["0.10", "1/5"]
    assert first["pairs"] == {"same": 10, "different": 10, "failures": []}
    assert first["flip"] is True
    assert first["model"]["sha256"] == sha256("runs/newest/model.safetensors")
    assert first["pack"] == {"path": "data/lfw/lfw.bin", "sha256": sha256("data/lfw/lfw.bin")}
    assert 0 <= first["insightface"]["mean"] <= 1
    for name in ("accuracy", "tpr_at_fpr", "auc", "eer", "norms"):
        assert first[name] == second[name]
    assert (workplace / "roc.svg").read_text().count("AUC") >= 2


def test_skipped_image_is_in_the_table_and_the_file(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = refused(capsys, "--bench", "cut", "--json", "figures.json")
    assert sentence.startswith("data/cut.npz, image 4 (pair 2): the JPEG of 200 bytes")
    assert not (workplace / "figures.json").exists()
    main(["--bench", "cut", "--on-error", "skip", "--json", "figures.json"])
    text = capsys.readouterr().out
    assert "not acquired" in text and "1/20 pairs" in text
    (failure,) = json.loads((workplace / "figures.json").read_text())["results"][0]["pairs"][
        "failures"
    ]
    assert (failure["pair"], failure["issame"]) == (2, True)
    assert failure["reason"].startswith("data/cut.npz, image 4 (pair 2)")


def test_onnx_of_a_stranger(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    # A model that is a thumbnail: average pooling and a reshape.
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node(
                "AveragePool", ["x"], ["p"], kernel_shape=[16, 16], strides=[16, 16]
            ),
            onnx.helper.make_node("Flatten", ["p"], ["y"]),
        ],
        "thumbnail",
        [onnx.helper.make_tensor_value_info("x", 1, ["n", 3, 112, 112])],
        [onnx.helper.make_tensor_value_info("y", 1, ["n", 147])],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), "thumbnail.onnx")
    found = []
    for flags in (["--std", "128"], ["--std", "64"], ["--mean", "0"], ["--channels", "bgr"]):
        main(["--model", "thumbnail.onnx", *flags, "--json", "figures.json"])
        found.append(json.loads(Path("figures.json").read_text())["results"][0])
    plain, halved, shifted, swapped = found
    assert plain["accuracy"]["mean"] >= 0.9
    assert halved["norms"]["mean"] == pytest.approx(2 * plain["norms"]["mean"], rel=1e-5)
    assert halved["accuracy"]["accuracies"] == plain["accuracy"]["accuracies"]
    # Without the mean the embeddings all point the same way.
    assert shifted["d_prime"] != plain["d_prime"]
    assert swapped["model"]["preprocessing"]["channels"] == "bgr"
    assert "lfw · thumbnail" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--bench", "agedb_30"],
            "no pack for bench 'agedb_30': looked for agedb_30.bin and agedb_30.npz in data/ and "
            "data/agedb_30/ (found there: cut, lfw); put an InsightFace-style agedb_30.bin there, "
            "or name its folder with --data or FACEREC_DATA",
        ),
        (["--fpr", "1e-3", "2"], "FPR target '2' is not a rate between 0 and 1; write it as 1e-3"),
        (["--roc", "roc.gif"], "roc.gif: a ROC plot is a .png, .svg or .pdf file"),
        (["--runs", "elsewhere"], "elsewhere: no run here holds a model.safetensors"),
        (["--model", "gone.onnx"], "gone.onnx: no such model"),
        (["--channels", "bgr"], "runs/newest/model.safetensors: the model was trained with"),
        (["--bench", "broken.bin"], "broken.bin: this is no whole pickle"),
    ],
)
def test_errors_are_sentences(
    workplace: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    Path("broken.bin").write_bytes(b"no pack")
    before = sorted(workplace.rglob("*"))
    assert refused(capsys, *arguments).startswith(sentence)
    assert sorted(workplace.rglob("*")) == before


def test_real_faces_in_the_three_encodings(
    shared_data: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for encoding in ("small_py3", "small_py2", "small_ndarray"):
        arguments = ["--bench", encoding, "--data", str(shared_data / "lfw_small")]
        main([*arguments, "--json", "figures.json"])
        found.append(json.loads(Path("figures.json").read_text())["results"][0])
        found[-1] = {k: v for k, v in found[-1].items() if k not in ("bench", "pack")}
    assert found[0] == found[1] == found[2]
    assert found[0]["pairs"] == {"same": 100, "different": 100, "failures": []}
    # Even random weights see that one photo resembles another a little.
    assert found[0]["accuracy"]["correct"] > 100
    assert found[0]["norms"]["images"] == 400


def test_hostile_pack_is_refused_and_nothing_runs(
    shared_data: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = refused(capsys, "--bench", str(shared_data / "lfw_small" / "evil.bin"))
    assert "evil.bin" in sentence and "system" in sentence
    assert not (workplace / "PWNED").exists()


def test_door(workplace: Path) -> None:
    door = [sys.executable, str(REPOSITORY / "tools" / "verify.py")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([*door, "--bench", "lfw"], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert "TPR@FPR=1e-1" in run.stdout
    run = subprocess.run([*door, "--bench", "no"], capture_output=True, text=True, env=environment)
    assert run.returncode == 2
    assert run.stderr.startswith("error: no pack for bench 'no'") and "Traceback" not in run.stderr


def test_same_command_gives_the_same_file(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = []
    for _ in range(2):
        main(["--json", "figures.json", "--roc", "roc.png"])
        contents.append((Path("figures.json").read_bytes(), Path("roc.png").read_bytes()))
    assert contents[0] == contents[1]
