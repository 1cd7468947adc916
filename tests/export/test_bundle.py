"""The bundle as a whole: what is in it, that it is the same again, that failures leave nothing."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from helpers.calibrations import model_calibration, point, refusing, toy_calibration
from helpers.thin import thinned
from helpers.toy_files import read_files
from pytest import MonkeyPatch, TempPathFactory

import facerec
from facerec.base.errors import ExportError, FacerecError
from facerec.base.files import sha256, write_json
from facerec.embedding import TorchModel, load_model, save_model
from facerec.embedding.align import face_template
from facerec.embedding.bundle import check_sums
from facerec.embedding.calibration import calibration_file
from facerec.embedding.engines import openvino_core
from facerec.embedding.onnx_file import OnnxFile, parse_onnx, read_onnx
from facerec.export import bundle, parity
from facerec.export.bundle import BundleOptions, BundleReport, export_bundle
from facerec.export.graph import serialized
from facerec.export.options import DEFAULT
from facerec.records.packs import write_pack
from facerec.verification import Bench, VerificationResult, evaluate_bench, pack_bench
from facerec.verification.compare import compare

RECIPE = {"type": "Recipe", "data": {"path": "/data/ms1mv3"}, "seed": 5}


@pytest.fixture(scope="module", autouse=True)
def _quicker(tiny_onnx: bytes) -> Iterator[None]:
    """Trace the network once, and in small batches: all else only takes time here."""

    def graph(backbone: Any, preprocessing: Any, *, opset: int, note: Any) -> bytes:
        stated = parse_onnx(tiny_onnx, "tiny").note
        note = {**note, "preprocessing": stated["preprocessing"]}
        return serialized(onnx.load_from_string(tiny_onnx), note, opset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "export_graph", graph)
        patch.setattr(parity, "BATCHES", (1, 2, 5))
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory: TempPathFactory, tiny_model: TorchModel) -> TorchModel:
    """The small model as a run, loaded again with a calibration."""
    path = tmp_path_factory.mktemp("runs") / "my run" / "model.safetensors"
    save_model(path, tiny_model.backbone, tiny_model.config, tiny_model.preprocessing, RECIPE)
    known = model_calibration(point(0.3, flip=True), sha256=sha256(path))
    write_json(calibration_file(path), known.to_json())
    model = load_model(path)
    return model


@pytest.fixture(scope="module")
def pack(tmp_path_factory: TempPathFactory, faces: np.ndarray) -> Path:
    """Twenty pairs of generated faces; a same pair is a face and a noisy copy of it."""
    generator = np.random.default_rng(0)

    def jpeg(face: int) -> bytes:
        noisy = np.clip(faces[face] + generator.normal(0, 25, faces[face].shape), 0, 255)
        return cv2.imencode(".jpg", noisy.astype(np.uint8)[..., ::-1])[1].tobytes()

    images, issame = [], []
    for pair in range(20):
        one = int(generator.integers(len(faces)))
        other = one if pair % 4 < 2 else (one + 1 + pair % 30) % len(faces)
        images += [jpeg(one), jpeg(other)]
        issame.append(pair % 4 < 2)
    path = tmp_path_factory.mktemp("packs") / "toy.bin"
    write_pack(path, images, issame)
    return path


@pytest.fixture(scope="module")
def bench(pack: Path) -> Bench:
    return pack_bench(pack)


@pytest.fixture(scope="module")
def result(saved: TorchModel, bench: Bench) -> VerificationResult:
    return evaluate_bench(saved, bench)


@pytest.fixture(scope="module")
def options(pack: Path) -> BundleOptions:
    return BundleOptions(int8=pack, int8_images=40, triton=True, max_loss=100, license="MIT")


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: TempPathFactory, saved: TorchModel, options: BundleOptions, bench: Bench
) -> BundleReport:
    """A bundle with everything in it."""
    out = tmp_path_factory.mktemp("out") / "bundle"
    return export_bundle(saved, out, options, benches=[bench])


@pytest.fixture
def quick(monkeypatch: MonkeyPatch, tiny_onnx: bytes, result: VerificationResult) -> None:
    """Leave out torch's exporter, consumers, parity and benches, which take seconds each."""

    def same(model: TorchModel, file: OnnxFile, exact: bool = True) -> list[Any]:
        return [bundle.ParityRow(0.0, 1.0, "faces", 1)]

    monkeypatch.setattr(bundle, "check_parity", same)

    def evaluated(model: Any, bench: Bench, *, flip: bool, progress: Any) -> Any:
        if progress is not None:
            progress("embedding", len(bench.images), len(bench.images))
        return result

    monkeypatch.setattr(bundle, "check_consumers", lambda *arguments: [])
    monkeypatch.setattr(bundle, "evaluate_bench", evaluated)


# --- what is in it ------------------------------------------------------------------------------


@pytest.mark.integration
def test_the_note_says_what_the_files_are(
    written: BundleReport, saved: TorchModel, bench: Bench
) -> None:
    note = json.loads((written.path / "facerec.json").read_text())
    sums = check_sums(written.path)
    (int8,) = note["variants"]
    for entry in (note["model"], int8):
        file = read_onnx(written.path / entry["file"])
        assert entry["sha256"] == file.sha256 == sums[entry["file"]]
        assert entry["bytes"] == len(file.content) and entry["opset"] == file.opset == 17
        inside = file.note
        assert inside is not None and inside["thresholds"] == entry["thresholds"]
        assert (inside["weights_sha256"], inside["recipe"]) == (saved.sha256, RECIPE)
        assert (inside["name"], inside["license"]) == ("my run", "MIT")
    assert note["source"]["sha256"] == saved.sha256 and note["source"]["recipe"] == RECIPE
    assert (note["name"], note["model_id"], note["license"]) == ("my run", "my-run", "MIT")
    assert note["embedding_size"] == 32 and note["normalised"] is False
    assert note["training"]["data"] == "ms1mv3" and note["flip"] == "sum_raw"
    np.testing.assert_array_equal(note["alignment_points"], face_template((112, 112)))
    rows = [asdict(row) for row in saved.calibration.thresholds]
    assert note["model"]["thresholds"] == json.loads(json.dumps(rows))
    # What int8 costs, and the thresholds of its own numbers: ten pairs resolve 1e-1 alone.
    result = evaluate_bench(load_model(written.path, variant="int8"), bench)
    (row,) = int8["thresholds"]
    assert row["threshold"] == pytest.approx(result.points[0].point.threshold, abs=1e-6)
    (cost,) = int8["accuracy"]
    assert cost["bench"] == "toy" and cost["int8"] == pytest.approx(
        result.accuracy.events / result.accuracy.total
    )
    assert int8["calibration"]["images"] == 40 and len(int8["calibration"]["sha256"]) == 64
    assert int8["bytes"] < 0.4 * note["model"]["bytes"]
    assert {row["consumer"]: row["outcome"] for row in note["consumers"]}["onnxruntime"] == "same"
    main = (written.path / "model.onnx").read_bytes()
    assert (written.path / "triton/my-run/1/model.onnx").read_bytes() == main


@pytest.mark.integration
def test_the_code_in_the_card_runs_and_all_of_it_agrees(
    written: BundleReport, faces: np.ndarray, monkeypatch: MonkeyPatch
) -> None:
    pytest.importorskip("insightface.model_zoo")
    openvino = pytest.importorskip("openvino")
    card = (written.path / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0]
    code = code.replace("BUNDLE", str(written.path))
    # Other embeddings would show on processors with bfloat16 alone.
    hints: list[dict[str, Any]] = []
    core, compile_model = openvino.Core, openvino.Core.compile_model

    def watched(self: Any, model: Any, device: str, config: Any = None) -> Any:
        hints.append(config or {})
        return compile_model(self, model, device, config or {})

    monkeypatch.setattr(core, "compile_model", watched)
    # With a core of the card's own would go the stack on which this process handles signals.
    shared = openvino_core()
    monkeypatch.setattr(openvino, "Core", lambda: shared)
    parts = code.split("\n\n")
    # Its thresholds are for sums with the mirror image, which facerec alone makes by itself.
    assert "**Add the mirror image.**" in card
    names: dict[str, Any] = {}

    def run(images: np.ndarray) -> list[np.ndarray]:
        names["faces"], found = images, []
        for part in parts:
            exec(part, names)
            found.append(np.array(names["embeddings"]))
        return found

    (wanted, *found), (_, *mirrored) = run(faces[:3]), run(faces[:3, :, ::-1])
    assert len(found) == 4
    for embeddings, added in zip(found, mirrored, strict=True):
        np.testing.assert_allclose(embeddings + added, wanted, atol=1e-5 * np.abs(wanted).max())
    assert [hint.get("INFERENCE_PRECISION_HINT") for hint in hints] == ["f32", "f32"]
    real = names["compiled"].get_property("INFERENCE_PRECISION_HINT")
    assert real == openvino.Type.f32


# --- the same again ------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_second_export_has_the_same_bytes(
    tmp_path: Path, saved: TorchModel, written: BundleReport, options: BundleOptions, bench: Bench
) -> None:
    again = export_bundle(saved, tmp_path / "elsewhere", options, benches=[bench])
    first, second = read_files(written.path), read_files(again.path)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


# --- refusals ------------------------------------------------------------------------------------


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[Path]:
    """A folder in which nothing may be left."""
    place = tmp_path / "place"
    place.mkdir()
    yield place
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "stage", ["export_graph", "check_parity", "check_consumers", "triton_config", "bundle_card"]
)
def test_a_failure_anywhere_leaves_nothing(
    untouched: Path, saved: TorchModel, quick: None, monkeypatch: MonkeyPatch, stage: str
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise ExportError(f"{stage} found a fault")

    monkeypatch.setattr(bundle, stage, fail)
    with pytest.raises(ExportError, match=f"^{stage} found a fault$"):
        export_bundle(saved, untouched / "b", BundleOptions(triton=True))


# --- what loses too much -------------------------------------------------------------------------


def worse(accuracy: float) -> Callable[..., Any]:
    """Make the comparison of two results say that the second has lost this share."""

    def judge(first: Any, second: Any) -> Any:
        found = compare(first, second)
        rows = found.rows[found.rows.figure == "accuracy"]
        float32 = rows.value.iloc[0]
        return replace(found, rows=rows.assign(value=[float32, float32 - accuracy, -accuracy]))

    return judge


@pytest.mark.parametrize(
    ("loss", "kept"),
    thinned([(0.001, True), (0.0021, False), (-0.5, True)], lambda loss, kept: not kept),
)
def test_an_int8_file_that_loses_too_much_is_not_written(
    tmp_path: Path,
    saved: TorchModel,
    bench: Bench,
    pack: Path,
    quick: None,
    monkeypatch: MonkeyPatch,
    loss: float,
    kept: bool,
) -> None:
    monkeypatch.setattr(bundle, "compare", worse(loss))
    monkeypatch.setattr(bundle, "quantize_int8", lambda main, images: main.content)
    options = BundleOptions(int8=pack, int8_images=40, max_loss=0.2)
    report = export_bundle(saved, tmp_path / "b", options, benches=[bench])
    assert (report.path / "variants" / "int8.onnx").is_file() == kept
    card = (report.path / "README.md").read_text()
    assert [entry["name"] for entry in report.note["variants"]] == ["int8"] * kept
    if kept:
        assert report.note["left_out"] == [] and "left out" not in card
    else:
        (entry,) = report.note["left_out"]
        assert re.search(r"on toy .*−0\.21 points.*0\.2 of --max-loss", entry["reason"])
        assert "int8 was left out" in card


# --- a folder that is there ----------------------------------------------------------------------


def test_a_taken_folder_is_refused_and_replaced_by_force(
    tmp_path: Path, saved: TorchModel, quick: None, monkeypatch: MonkeyPatch
) -> None:
    out = tmp_path / "place" / "b"
    export_bundle(saved, out, BundleOptions(triton=True))
    before = read_files(out)
    with pytest.raises(ExportError, match=r"there already; .* give --force"):
        export_bundle(saved, out)
    assert read_files(out) == before

    def fail(*arguments: Any) -> Any:
        raise ExportError("a consumer fails")

    with monkeypatch.context() as patch, pytest.raises(ExportError, match="a consumer fails"):
        patch.setattr(bundle, "check_consumers", fail)
        export_bundle(saved, out, force=True)
    assert read_files(out) == before
    export_bundle(saved, out, force=True)
    assert not any(name.startswith("triton") for name in read_files(out))
    assert [path.name for path in out.parent.iterdir()] == ["b"]


def test_force_replaces_bundles_alone(tmp_path: Path, saved: TorchModel, quick: None) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work")
    with pytest.raises(FacerecError, match=r"chapter\.txt, which is no part of a bundle"):
        export_bundle(saved, folder, force=True)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(FacerecError, match="this is a file"):
        export_bundle(saved, file, force=True)
    assert (folder / "chapter.txt").read_text() == "years of work" and file.read_text() == "mine"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert export_bundle(saved, empty).path == empty
    # What somebody laid into a bundle is theirs.
    (empty / "MODEL.LICENSE").write_text("signed")
    with pytest.raises(FacerecError, match=r"MODEL\.LICENSE, which is no part of a bundle"):
        export_bundle(saved, empty, force=True)
    assert (empty / "MODEL.LICENSE").read_text() == "signed"


def test_a_calibration_beside_the_model_goes_in(saved: TorchModel, tmp_path: Path) -> None:
    out, size = tmp_path / "bundle", saved.embedding_size
    limits, worth = refusing(np.arange(1, size + 1)), toy_calibration(saved.describe(), flip=False)
    model, rows = copy.copy(saved), [point(0.3), point(0.2, "1e-2")]
    # Crops that had to be moved are none that a bundle gets: it takes faces at the template.
    model.calibration = model_calibration(
        *rows, shift=(4, 0), faces=limits, score_calibration=worth
    )
    report = export_bundle(model, out, DEFAULT)
    assert report.note["flip"] == "none"
    loaded = facerec.load(out, device="cpu")
    assert loaded.calibration is not None and loaded.flip is False
    assert loaded.calibration.evidence(0.4) == worth.evidence(0.4)
    assert [each.threshold for each in loaded.thresholds] == [0.3, 0.2]
    vectors = np.random.default_rng(0).standard_normal((5, size))
    assert loaded.face_limits is not None and loaded.model.shift == loaded.model.cut == (0, 0)
    np.testing.assert_allclose(loaded.face_limits(vectors), limits(vectors), atol=1e-4)
    with pytest.raises(FacerecError, match="contradicts"):
        facerec.load(out, device="cpu", flip=True)
    model.calibration = model_calibration(shift=(4, 0), align={"method": "yunet"})
    with pytest.raises(FacerecError, match="what loads a bundle moves none"):
        export_bundle(model, tmp_path / "other", DEFAULT)
    assert not (tmp_path / "other").exists()
