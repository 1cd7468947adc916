"""The bundle as a whole: what is in it, that it is the same again, that failures leave nothing."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import cv2
import numpy as np
import onnx
import pytest
from helpers.thin import thinned

import facerec
from facerec.backbones import Preprocessing
from facerec.embedding import TorchModel, load_model, save_model
from facerec.embedding.align import face_template
from facerec.embedding.bundle import check_sums, read_bundle
from facerec.embedding.engines import openvino_core
from facerec.embedding.onnx_file import OnnxFile, parse_onnx, read_onnx
from facerec.errors import ExportError, FacerecError, MissingExtraError, ModelError
from facerec.export import bundle, parity
from facerec.export.bundle import BundleOptions, BundleReport, export_bundle, parse_variant
from facerec.export.graph import finish
from facerec.export.measure import measure_engine
from facerec.export.variants import VARIANTS
from facerec.files import sha256, write_json
from facerec.records.packs import write_pack
from facerec.verification import Bench, VerificationResult, evaluate_bench, pack_bench
from facerec.verification.compare import compare

RECIPE = {"type": "Recipe", "data": {"path": "/data/ms1mv3"}, "seed": 5}
VARIANT_NAMES = ("uint8", "norm", "fp16", "int8", "fixed-batch:3")


@pytest.fixture(scope="module", autouse=True)
def _quicker(tiny_onnx: bytes) -> Iterator[None]:
    """Trace the network once; batches of 64 and thousands of resamples only take time here."""

    def graph(backbone: Any, preprocessing: Any, *, opset: int, note: Any) -> bytes:
        stated = parse_onnx(tiny_onnx, "tiny").note
        assert stated is not None
        note = {**note, "preprocessing": stated["preprocessing"]}
        return finish(onnx.load_from_string(tiny_onnx), note, opset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "export_graph", graph)
        patch.setattr(parity, "BATCHES", (1, 2, 5))
        patch.setattr(bundle, "evaluate_bench", partial(evaluate_bench, replicates=20))
        patch.setattr(bundle, "compare", partial(compare, replicates=20))
        patch.setattr(bundle, "measure_engine", partial(measure_engine, repeats=1))
        patch.setattr(bundle, "BATCHES", (1, 4))
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, tiny_model: TorchModel) -> TorchModel:
    """The small model as a run, loaded again."""
    path = tmp_path_factory.mktemp("runs") / "my run" / "model.safetensors"
    assert tiny_model.config is not None
    save_model(path, tiny_model.backbone, tiny_model.config, tiny_model.preprocessing, RECIPE)
    model = load_model(path)
    assert isinstance(model, TorchModel)
    return model


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, faces: np.ndarray) -> Path:
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
    return evaluate_bench(saved, bench, replicates=20)


@pytest.fixture(scope="module")
def thresholds(tmp_path_factory: pytest.TempPathFactory, result: VerificationResult) -> Path:
    path = tmp_path_factory.mktemp("reports") / "toy.json"
    write_json(path, {"facerec": facerec.__version__, "results": [result.to_json()]})
    return path


@pytest.fixture(scope="module")
def options(pack: Path, thresholds: Path) -> BundleOptions:
    return BundleOptions(
        variant=VARIANT_NAMES,
        triton=True,
        insightface_server=True,
        calibration=pack,
        calibration_images=40,
        calibration_method="minmax",
        max_loss=100,
        thresholds=thresholds,
        license="MIT",
    )


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: pytest.TempPathFactory,
    saved: TorchModel,
    options: BundleOptions,
    bench: Bench,
) -> BundleReport:
    """A bundle with everything in it."""
    out = tmp_path_factory.mktemp("out") / "bundle"
    return export_bundle(saved, out, options, benches=[bench])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tiny_onnx: bytes, result: VerificationResult) -> None:
    """Leave out torch's exporter, consumers, parity and benches, which take seconds each."""

    def same(model: TorchModel, file: OnnxFile, bar: Any = None) -> list[Any]:
        return [bundle.ParityRow("faces", 1, 0.0, 1.0, 0.0, True)]

    monkeypatch.setattr(bundle, "check_parity", same)

    def evaluated(model: Any, bench: Bench, *, flip: bool, progress: Any) -> Any:
        if progress is not None:
            progress("embedding", len(bench.images), len(bench.images))
        return result

    monkeypatch.setattr(bundle, "check_consumers", lambda *arguments: [])
    monkeypatch.setattr(bundle, "evaluate_bench", evaluated)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- what is in it ------------------------------------------------------------------------------


def share(result: VerificationResult) -> float:
    """Return the share of held-out pairs judged rightly."""
    assert result.accuracy is not None
    return result.accuracy.kfold.correct / result.accuracy.kfold.pairs


@pytest.mark.integration
def test_the_files_of_a_bundle(written: BundleReport) -> None:
    assert set(files(written.path)) == {
        "model.onnx",
        "manifest.json",
        "model_card.md",
        "facerec.json",
        "SHA256SUMS",
        *(f"variants/{name}.onnx" for name in ("uint8", "norm", "fp16", "int8", "fixed-batch-3")),
        "triton/my-run/config.pbtxt",
        "triton/my-run/1/model.onnx",
        "insightface-server/manifest.json",
        "insightface-server/model.onnx",
        "insightface-server/README.txt",
    }
    # insightface would take the wrong one of two.
    assert [path.name for path in written.path.glob("*.onnx")] == ["model.onnx"]
    found = read_bundle(written.path)
    assert found.note == written.note
    assert set(found.variants) == {"uint8", "norm", "fp16", "int8", "fixed-batch-3"}
    assert [path.name for path in written.path.parent.iterdir()] == ["bundle"]


@pytest.mark.integration
def test_without_options_there_is_the_least(tmp_path: Path, saved: TorchModel, quick: None) -> None:
    report = export_bundle(saved, tmp_path / "b")
    assert set(files(report.path)) == {
        "model.onnx",
        "manifest.json",
        "model_card.md",
        "facerec.json",
        "SHA256SUMS",
    }
    assert report.variants == () and report.loads == {}
    assert report.note["model"]["thresholds"] == [] and report.note["flip"] is None


@pytest.mark.integration
def test_the_note_says_what_the_files_are(written: BundleReport, saved: TorchModel) -> None:
    note = json.loads((written.path / "facerec.json").read_text())
    sums = check_sums(written.path)
    assert [entry["name"] for entry in note["variants"]] == [
        "uint8",
        "norm",
        "fp16",
        "int8",
        "fixed-batch-3",
    ]
    for entry in (note["model"], *note["variants"]):
        file = read_onnx(written.path / entry["file"])
        assert entry["sha256"] == file.sha256 == sums[entry["file"]]
        assert entry["bytes"] == (written.path / entry["file"]).stat().st_size
        assert entry["opset"] == file.opset == 17
        assert [tuple(tensor["shape"]) for tensor in entry["inputs"]] == [
            tensor.shape for tensor in file.inputs
        ]
        assert [tensor["name"] for tensor in entry["outputs"]] == [
            tensor.name for tensor in file.outputs
        ]
    assert note["source"]["sha256"] == saved.sha256
    assert note["source"]["recipe"] == RECIPE
    assert (note["name"], note["model_id"], note["license"]) == ("my run", "my-run", "MIT")
    assert note["embedding_size"] == 32 and note["normalised"] is False
    assert note["training"]["data"] == "ms1mv3" and note["flip"] == "sum_raw"
    np.testing.assert_array_equal(note["alignment_points"], face_template((112, 112)))


@pytest.mark.integration
def test_every_file_says_where_it_comes_from(written: BundleReport, saved: TorchModel) -> None:
    for name in ("model.onnx", *(entry["file"] for entry in written.note["variants"])):
        note = read_onnx(written.path / name).note
        assert note is not None
        assert note["weights_sha256"] == saved.sha256
        assert note["recipe"] == RECIPE
        assert note["recipe_sha256"] == written.note["source"]["recipe_sha256"]
        assert note["version"] == facerec.__version__
        assert (note["name"], note["license"]) == ("my run", "MIT")
        assert note["alignment"] == "arcface_112x112"
        assert (note["embedding_size"], note["image_size"]) == (32, [112, 112])


@pytest.mark.integration
def test_thresholds_belong_to_the_numbers_that_they_were_found_with(
    written: BundleReport, thresholds: Path, bench: Bench
) -> None:
    entries = {entry["name"]: entry for entry in written.note["variants"]}
    reported = json.loads(thresholds.read_text())["results"][0]["tpr_at_fpr"]
    found = {row["fpr"]: row["threshold"] for row in written.note["model"]["thresholds"]}
    # Ten different pairs resolve 1e-1 alone.
    assert found == {"1e-1": reported[0]["threshold"]}
    for name in ("uint8", "norm", "fixed-batch-3"):
        assert entries[name]["thresholds"] == written.note["model"]["thresholds"]
    for name in ("fp16", "int8"):
        model = load_model(written.path, variant=name)
        result = evaluate_bench(model, bench, replicates=0)
        (row,) = entries[name]["thresholds"]
        assert row["threshold"] == pytest.approx(result.point("1e-1").point.threshold, abs=1e-6)
        assert "source" not in row
    for entry in (written.note["model"], *entries.values()):
        note = read_onnx(written.path / entry["file"]).note
        assert note is not None and note["thresholds"] == entry["thresholds"]


@pytest.mark.integration
def test_a_recognizer_decides_by_these_thresholds(written: BundleReport) -> None:
    recognizer = facerec.load(written.path, flip=True)
    point = recognizer.threshold("1e-1")
    assert point.value == written.note["model"]["thresholds"][0]["threshold"]
    assert facerec.load(written.path, variant="int8", flip=True).threshold("1e-1").bench == "toy"


@pytest.mark.integration
def test_variants_that_change_numbers_are_compared(written: BundleReport, bench: Bench) -> None:
    float32 = evaluate_bench(load_model(written.path), bench, replicates=0)
    for report in written.variants:
        assert report.refused is None
        assert len(report.comparisons) == (report.name in ("fp16", "int8"))
        for comparison in report.comparisons:
            row = next(row for row in comparison.rows if row.figure == "accuracy")
            assert row.first.value == pytest.approx(
                float32.accuracy.events / float32.accuracy.total
            )
            variant = evaluate_bench(load_model(written.path, variant=report.name), bench)
            assert row.second.value == pytest.approx(
                variant.accuracy.events / variant.accuracy.total
            )
    entry = next(entry for entry in written.note["variants"] if entry["name"] == "int8")
    assert entry["calibration"]["images"] == 40 and entry["calibration"]["method"] == "minmax"
    assert len(entry["calibration"]["sha256"]) == 64
    assert entry["accuracy"][0]["bench"] == "toy"
    assert entry["bytes"] < 0.4 * written.note["model"]["bytes"]


@pytest.mark.integration
def test_speeds_are_reported_but_never_in_the_bundle(written: BundleReport) -> None:
    assert set(written.loads) == {"float32", "uint8", "norm", "fp16", "int8", "fixed-batch-3"}
    assert [load.batch for load in written.loads["float32"]] == [1, 4]
    assert [load.batch for load in written.loads["fixed-batch-3"]] == [3]
    assert "loads" in written.to_json()
    json.dumps(written.to_json(), allow_nan=False)
    for name, content in files(written.path).items():
        assert b"latency" not in content and b"images_per_second" not in content, name


@pytest.mark.integration
def test_parity_is_proven_for_every_file(written: BundleReport) -> None:
    assert set(written.parity) == set(written.loads)
    for name, rows in written.parity.items():
        exact = (
            VARIANTS[parse_variant(name.replace("batch-", "batch:")).kind].bar
            if (name != "float32")
            else bundle.Bar()
        )
        if exact == bundle.Bar():
            assert all(row.max_abs <= 1e-5 and row.min_cosine >= 0.999999 for row in rows)
    assert [row["check"] for row in written.note["parity"]] == [
        row.check for row in written.parity["float32"]
    ]


@pytest.mark.integration
def test_every_consumer_has_a_row(written: BundleReport) -> None:
    outcomes = {row.consumer: row.outcome for row in written.consumers}
    assert outcomes["onnxruntime"] == "same"
    able = outcomes.get("OpenVINO, bf16") in ("same", "not suited")
    assert (written.bf16 is not None) == able
    assert {row["consumer"] for row in written.note["consumers"]} == set(outcomes)


@pytest.mark.integration
def test_variants_go_through_openvino_too(written: BundleReport, faces: np.ndarray) -> None:
    pytest.importorskip("openvino")
    for report, entry in zip(written.variants, written.note["variants"], strict=True):
        assert entry["openvino"]["outcome"] == report.openvino.outcome
        if report.openvino.outcome == "same":
            name = report.name
            one = load_model(written.path, variant=name).embed(faces[:6])
            other = load_model(written.path, variant=name, engine="openvino").embed(faces[:6])
            cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1)
            cosines /= np.linalg.norm(other, axis=1)
            assert cosines.min() >= 0.999
            assert "OpenVINO" in entry["consumers"]
        else:
            assert "OpenVINO" not in entry["consumers"]
    for name in ("uint8", "norm", "fp16", "fixed-batch-3"):
        (report,) = (report for report in written.variants if report.name == name)
        assert report.openvino.outcome == "same", report.openvino


@pytest.mark.parametrize(
    ("error", "outcome", "claimed"),
    [(ModelError, "cannot load", False), (MissingExtraError, "not installed", True)],
)
def test_openvino_is_claimed_unless_it_fails(
    tmp_path: Path,
    saved: TorchModel,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    error: type[FacerecError],
    outcome: str,
    claimed: bool,
) -> None:
    original = bundle.OnnxModel

    def model(file: OnnxFile, **options: Any) -> Any:
        if options.get("engine") == "openvino":
            raise error("no such engine")
        return original(file, **options)

    monkeypatch.setattr(bundle, "OnnxModel", model)
    report = export_bundle(saved, tmp_path / "b", BundleOptions(("norm",)))
    (entry,) = report.note["variants"]
    assert entry["openvino"]["outcome"] == outcome
    assert ("OpenVINO" in entry["consumers"]) == claimed


@pytest.mark.integration
def test_bf16_is_measured_where_the_processor_has_it(
    tmp_path: Path,
    saved: TorchModel,
    quick: None,
    play_bf16: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    bench: Bench,
) -> None:
    rows = [bundle.ConsumerRow(bundle.OPENVINO_BF16, "1", "same", 1e-3, 0.9999, "")]
    monkeypatch.setattr(bundle, "check_consumers", lambda *given: rows)
    play_bf16(7)
    report = export_bundle(saved, tmp_path / "b", BundleOptions(("fp16",)), benches=[bench])
    assert report.bf16 is not None
    assert [load.batch for load in report.bf16.loads] == [1, 4]
    assert all(load.speedup is not None for load in report.bf16.loads)
    (comparison,) = report.bf16.comparisons
    assert "accuracy" in {row.figure for row in comparison.rows}
    assert json.loads(json.dumps(report.to_json()))["bf16"]["comparisons"]
    # Speeds are no part of the bundle.
    (row,) = report.note["consumers"]
    assert row["consumer"] == "OpenVINO, bf16" and row["min_cosine"] == 0.9999


@pytest.mark.integration
def test_copies_for_servers_are_the_main_file(written: BundleReport) -> None:
    main = (written.path / "model.onnx").read_bytes()
    assert (written.path / "triton/my-run/1/model.onnx").read_bytes() == main
    assert (written.path / "insightface-server/model.onnx").read_bytes() == main
    config = (written.path / "triton/my-run/config.pbtxt").read_text()
    # Triton wants the folder's name.
    assert 'name: "my-run"' in config
    assert "signed by InsightFace" in (written.path / "insightface-server/README.txt").read_text()
    assert not list(written.path.rglob("MODEL.LICENSE"))


@pytest.mark.integration
def test_the_code_in_the_card_runs_and_all_of_it_agrees(
    written: BundleReport, faces: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("insightface.model_zoo")
    openvino = pytest.importorskip("openvino")
    card = (written.path / "model_card.md").read_text()
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
    first, second = files(written.path), files(again.path)
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
    ("text", "sentence"),
    [
        ("int4", "did you mean 'int8'"),
        ("quantum", "known are uint8, norm"),
        ("fixed-batch", "takes the number of images"),
        ("fixed-batch:0", "takes the number of images"),
        ("fixed-batch:x", "takes the number of images"),
        ("fixed-batch:-1", "takes the number of images"),
        ("fixed-batch:9999", "1 to 1024"),
        ("uint8:4", "no other variant takes one"),
    ],
)
def test_unknown_variants(untouched: Path, saved: TorchModel, text: str, sentence: str) -> None:
    with pytest.raises(ExportError, match=sentence):
        export_bundle(saved, untouched / "b", BundleOptions(variant=(text,)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"variant": ("norm", "norm")}, "norm is asked for twice"),
        ({"variant": ("int8",)}, "int8 needs --calibration"),
        ({"calibration": Path("x")}, "nothing else needs it"),
        ({"thresholds": Path("gone.json")}, "gone.json: not a report"),
        ({"max_loss": -1.0}, "max_loss must be 0 or more"),
        ({"max_loss": float("nan")}, "max_loss must be 0 or more"),
    ],
)
def test_options_that_cannot_be(
    untouched: Path, saved: TorchModel, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ExportError, match=sentence):
        export_bundle(saved, untouched / "b", BundleOptions(**change))


def test_a_bench_without_folds_judges_no_variant(
    untouched: Path, saved: TorchModel, bench: Bench
) -> None:
    flat = replace(bench, pairs=replace(bench.pairs, folds=None))
    with pytest.raises(ExportError, match="toy: has no folds"):
        export_bundle(saved, untouched / "b", benches=[flat])


def test_a_bench_with_nothing_to_compare(untouched: Path, saved: TorchModel, bench: Bench) -> None:
    with pytest.raises(ExportError, match="fp16 and int8, with float32"):
        export_bundle(saved, untouched / "b", BundleOptions(("norm",)), benches=[bench])


def test_an_empty_calibration_set(
    untouched: Path, tmp_path: Path, saved: TorchModel, quick: None
) -> None:
    (tmp_path / "empty").mkdir()
    options = BundleOptions(variant=("int8",), calibration=tmp_path / "empty")
    with pytest.raises(FacerecError, match=r"empty.*no bundle was written$"):
        export_bundle(saved, untouched / "b", options)


@pytest.mark.parametrize(
    "stage", ["export_graph", "check_parity", "check_consumers", "triton_config", "model_card"]
)
def test_a_failure_anywhere_leaves_nothing(
    untouched: Path,
    saved: TorchModel,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise ExportError(f"{stage} found a fault")

    monkeypatch.setattr(bundle, stage, fail)
    with pytest.raises(ExportError, match=f"^{stage} found a fault; no bundle was written$"):
        export_bundle(saved, untouched / "b", BundleOptions(triton=True))


def test_a_sentence_names_the_bundle_not_its_temporary_folder(
    untouched: Path, saved: TorchModel, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path, *arguments: Any) -> Any:
        raise ExportError(f"{folder / 'model.onnx'}: a consumer fails")

    monkeypatch.setattr(bundle, "check_consumers", fail)
    with pytest.raises(ExportError) as caught:
        export_bundle(saved, untouched / "b")
    assert str(caught.value).startswith(f"{untouched / 'b' / 'model.onnx'}: a consumer fails")


def test_a_file_that_is_not_the_model_fails_its_checks(
    untouched: Path, saved: TorchModel, monkeypatch: pytest.MonkeyPatch, tiny_onnx: bytes
) -> None:
    """One changed weight is found, and nothing stays."""
    model = onnx.load_from_string(tiny_onnx)
    weight = model.graph.initializer[0]
    values = onnx.numpy_helper.to_array(weight).copy()
    values.flat[0] += 0.5
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    monkeypatch.setattr(bundle, "export_graph", lambda *a, **k: model.SerializeToString())
    with pytest.raises(ExportError, match=r"onnxruntime .* and torch differ .*no bundle"):
        export_bundle(saved, untouched / "b")


# --- what loses too much -------------------------------------------------------------------------


def worse(accuracy: float) -> Callable[..., Any]:
    """Make the comparison of two results say that the second has lost this share."""

    def judge(first: Any, second: Any) -> Any:
        found = compare(first, second, 20)
        rows = [
            replace(
                row,
                second=replace(row.first, value=row.first.value - accuracy),
                difference=replace(row.difference, value=-accuracy),
            )
            if row.figure == "accuracy"
            else row
            for row in found.rows
        ]
        return replace(found, rows=tuple(rows))

    return judge


@pytest.mark.parametrize(
    ("loss", "kept"),
    thinned([(0.001, True), (0.0021, False), (-0.5, True)], lambda loss, kept: not kept),
)
def test_a_variant_that_loses_too_much_is_not_written(
    tmp_path: Path,
    saved: TorchModel,
    bench: Bench,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    loss: float,
    kept: bool,
) -> None:
    monkeypatch.setattr(bundle, "compare", worse(loss))
    options = BundleOptions(variant=("fp16", "norm"), max_loss=0.2)
    report = export_bundle(saved, tmp_path / "b", options, benches=[bench])
    fp16 = report.variants[0]
    assert (report.path / "variants" / "fp16.onnx").is_file() == kept
    assert (report.path / "variants" / "norm.onnx").is_file()
    assert (fp16.refused is None) == kept
    card = (report.path / "model_card.md").read_text()
    if kept:
        assert report.note["left_out"] == [] and "left out" not in card
    else:
        (entry,) = report.note["left_out"]
        assert entry["name"] == "fp16"
        assert re.search(r"on toy .*−0\.21 points .*0\.2 of --max-loss", entry["reason"])
        assert "fp16 was left out" in card
        assert [variant["name"] for variant in report.note["variants"]] == ["norm"]


def test_without_a_bench_the_loss_is_unknown_and_said_to_be(
    tmp_path: Path, saved: TorchModel, quick: None
) -> None:
    report = export_bundle(saved, tmp_path / "b", BundleOptions(("fp16",), max_loss=0.2))
    assert report.note["variants"][0]["accuracy"] == []
    assert report.note["variants"][0]["thresholds"] == []
    assert "**not measured**" in (report.path / "model_card.md").read_text()


# --- a folder that is there ----------------------------------------------------------------------


def test_a_taken_folder_is_refused_and_replaced_by_force(
    tmp_path: Path, saved: TorchModel, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "place" / "b"
    export_bundle(saved, out, BundleOptions(variant=("norm",)))
    before = files(out)
    with pytest.raises(ExportError, match=r"there already; .* give --force"):
        export_bundle(saved, out)
    assert files(out) == before

    def fail(*arguments: Any) -> Any:
        raise ExportError("a consumer fails")

    with monkeypatch.context() as patch, pytest.raises(ExportError, match="a consumer fails"):
        patch.setattr(bundle, "check_consumers", fail)
        export_bundle(saved, out, force=True)
    assert files(out) == before
    export_bundle(saved, out, force=True)
    assert "variants/norm.onnx" not in files(out)
    assert [path.name for path in out.parent.iterdir()] == ["b"]


def test_a_folder_that_cannot_be_looked_through_is_a_sentence(
    tmp_path: Path, saved: TorchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path, pattern: str) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder / "1/cwd"))

    monkeypatch.setattr(Path, "rglob", refuse)
    with pytest.raises(FacerecError, match=r"Permission denied.*1/cwd"):
        export_bundle(saved, tmp_path, force=True)


def test_force_replaces_bundles_alone(tmp_path: Path, saved: TorchModel, quick: None) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "chapter.txt").write_text("years of work")
    with pytest.raises(FacerecError, match=r"chapter\.txt, which is no part of a bundle"):
        export_bundle(saved, folder, force=True)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ExportError, match="is there already"):
        export_bundle(saved, file, force=True)
    assert (folder / "chapter.txt").read_text() == "years of work" and file.read_text() == "mine"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert export_bundle(saved, empty).path == empty
    # What somebody laid into a bundle is theirs.
    (empty / "insightface-server").mkdir()
    (empty / "insightface-server" / "MODEL.LICENSE").write_text("signed")
    with pytest.raises(FacerecError, match=r"MODEL\.LICENSE, which is no part of a bundle"):
        export_bundle(saved, empty, force=True)
    assert (empty / "insightface-server" / "MODEL.LICENSE").read_text() == "signed"


# --- other models --------------------------------------------------------------------------------


def test_the_server_folder_needs_its_scaling_and_is_refused_before_any_work(
    untouched: Path, saved: TorchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "export_graph", lambda *_, **__: pytest.fail("too late"))
    model = TorchModel(saved.backbone, Preprocessing("rgb", 0.0, 255.0))
    with pytest.raises(ExportError, match="leave out --insightface-server"):
        export_bundle(model, untouched / "b", BundleOptions(insightface_server=True))


def test_a_model_in_memory_can_be_exported(
    tmp_path: Path, tiny_model: TorchModel, quick: None
) -> None:
    report = export_bundle(tiny_model, tmp_path / "b")
    assert report.note["source"]["sha256"] is None and report.note["source"]["file"] is None
    model = load_model(report.path)
    assert model.preprocessing == Preprocessing()
    assert parse_onnx((report.path / "model.onnx").read_bytes(), "x").note is not None


@pytest.mark.integration
def test_a_changed_file_is_found_on_load(tmp_path: Path, written: BundleReport) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(written.path, copy)
    path = copy / "variants" / "int8.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    assert sha256(path) != check_sums(written.path)["variants/int8.onnx"]
    with pytest.raises(FacerecError, match=r"int8.onnx: its SHA-256 is not the one"):
        load_model(copy)


def test_stages_are_told_with_their_steps(
    tmp_path: Path, saved: TorchModel, bench: Bench, quick: None
) -> None:
    stages: dict[str, tuple[int, int]] = {}

    def progress(doing: str, done: int, total: int) -> None:
        stages[doing] = done, total

    options = BundleOptions(variant=("fp16",))
    export_bundle(saved, tmp_path / "b", options, benches=[bench], progress=progress)
    assert "float32 on toy" in stages and "fp16 on toy" in stages
    assert all(done == total for done, total in stages.values())
