"""One folder that every consumer loads: written whole, after all checks, or not at all."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import facerec
from facerec.embedding.align import face_template
from facerec.embedding.bundle import (
    BUNDLE_SCHEMA,
    NOTE_FILE,
    ONNX_FILE,
    SUMS_FILE,
    VARIANTS_FOLDER,
    read_bundle,
    write_sums,
)
from facerec.embedding.engines import OnnxruntimeEngine, OpenVinoEngine
from facerec.embedding.model import OnnxModel
from facerec.embedding.onnx_file import (
    METADATA_FORMAT,
    METADATA_KEY,
    OnnxFile,
    guess_preprocessing,
    parse_onnx,
)
from facerec.embedding.torch_model import TorchModel
from facerec.errors import ExportError, FacerecError, MissingExtraError, ModelError
from facerec.export.cards import CARD_FILE, model_card, training_facts
from facerec.export.consumers import (
    OPENVINO,
    OPENVINO_BF16,
    OPENVINO_EXACT,
    OPENVINO_ROUNDED,
    ConsumerRow,
    bar_row,
    check_consumers,
)
from facerec.export.graph import export_graph, graph_preprocessing
from facerec.export.manifest import (
    MANIFEST_FILE,
    SERVER_FOLDER,
    SERVER_REMARK,
    check_server_scaling,
    model_id,
    package_manifest,
    server_manifest,
)
from facerec.export.measure import LoadMeasure, measure_engine
from facerec.export.options import DEFAULT, BundleOptions
from facerec.export.parity import Bar, ParityRow, check_parity, deviation, sample_faces
from facerec.export.quantize import calibration_images, quantize_int8
from facerec.export.tables import MAIN
from facerec.export.thresholds import Threshold, flip_mode, read_thresholds, result_thresholds
from facerec.export.triton import CONFIG_FILE, VERSION, triton_config
from facerec.export.triton import MODEL_FILE as TRITON_FILE
from facerec.export.variants import VARIANTS, VariantKind, make_variant
from facerec.files import atomic_folder, check_replaceable, fsync_directory, json_bytes
from facerec.progress import Progress, section
from facerec.recipe import to_dict
from facerec.report.documents import by_name, plain
from facerec.verification import Bench, VerificationResult, evaluate_bench
from facerec.verification.compare import Comparison, compare
from facerec.verification.tables import difference_limits, difference_points

ALIGNMENT = "arcface_112x112"
TRITON_FOLDER = "triton"
BATCHES = (1, 32)
"""Batch sizes whose speed is measured."""

CONSUMER_FACES = 6

FACES = "faces"
"""The parity check that `VariantReport.min_cosine` is taken from."""


@dataclass(frozen=True)
class Choice:
    """A variant that was asked for."""

    kind: VariantKind
    batch: int | None = None
    """Images in a batch, for ``fixed-batch``."""

    @property
    def name(self) -> str:
        """The name of its file, without suffix."""
        return self.kind if self.batch is None else f"{self.kind}-{self.batch}"


@dataclass(frozen=True)
class VariantReport:
    """What became of one variant."""

    name: str
    bytes: int
    min_cosine: float
    """The least cosine to the backbone's embeddings of generated faces."""
    openvino: ConsumerRow
    """Against the same file in onnxruntime."""
    comparisons: tuple[Comparison, ...]
    """With float32, on each bench."""
    refused: str | None
    """Why it was not written, or None."""


@dataclass(frozen=True)
class Bf16Report:
    """What OpenVINO in bfloat16 costs and gains, on a processor that computes in it."""

    loads: tuple[LoadMeasure, ...]
    """Speed of the main file beside OpenVINO in float32."""
    comparisons: tuple[Comparison, ...]
    """With float32, on each bench."""


@dataclass(frozen=True)
class BundleReport:
    """What an export wrote, checked and measured."""

    path: Path
    note: Mapping[str, Any]
    """The contents of ``facerec.json``."""
    parity: Mapping[str, tuple[ParityRow, ...]]
    """Rows of the main file and of each variant, by name."""
    consumers: tuple[ConsumerRow, ...]
    variants: tuple[VariantReport, ...]
    loads: Mapping[str, tuple[LoadMeasure, ...]]
    """Speed on this machine of the same files, if there are variants; never part of the bundle, so
    that a second export is equal."""
    bf16: Bf16Report | None
    """None where OpenVINO is missing or the processor does not compute in bfloat16; its cosine is
    among ``consumers``."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        values: dict[str, Any] = plain(self, _named)
        return {"bundle": str(values.pop("path")), **values}


def parse_variant(text: str) -> Choice:
    """Read a variant as the command line names it: a kind, or ``fixed-batch:8``.

    Raises:
        ExportError: no such variant.
    """
    kind, _, batch = text.partition(":")
    if kind not in VARIANTS:
        close = difflib.get_close_matches(kind, VARIANTS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(VARIANTS)}"
        raise ExportError(f"there is no variant {text!r}, {hint}")
    if (kind == "fixed-batch") != (batch.isdecimal() and 0 < int(batch) <= 1024):
        raise ExportError(
            f"variant {text!r}: fixed-batch takes the number of images, 1 to 1024, as in "
            "fixed-batch:8, and no other variant takes one"
        )
    return Choice(kind, int(batch) if batch else None)  # type: ignore[arg-type]


def export_bundle(
    model: TorchModel,
    out: Path,
    options: BundleOptions = DEFAULT,
    *,
    benches: Sequence[Bench] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> BundleReport:
    """Write a model's bundle, and prove that every consumer embeds as the model does.

    Equal inputs give equal bytes on one machine.

    Args:
        model: what is exported.
        out: the bundle's folder.
        options: what goes into it besides the main file.
        benches: on which the variants that change numbers are compared with float32.
        force: replace a bundle that is there.
        progress: called with each stage of the work and the steps of it.

    Raises:
        ExportError: what was asked for cannot be, a check fails, or the folder is taken. Nothing is
            written then, and an earlier bundle is still there.
    """
    choices = _check(model, options, benches, out, force)
    thresholds = (
        [] if options.thresholds is None else read_thresholds(options.thresholds, model.sha256)
    )
    with atomic_folder(out, ExportError, replace=force) as folder:
        try:
            return _Export(model, out, folder, options, benches, thresholds, progress).run(choices)
        except FacerecError as error:
            raise type(error)(f"{error}; no bundle was written") from error


def _check(
    model: TorchModel, options: BundleOptions, benches: Sequence[Bench], out: Path, force: bool
) -> list[Choice]:
    """Refuse what cannot end well, before minutes of work; return the variants."""
    choices = [parse_variant(text) for text in options.variant]
    for index, choice in enumerate(choices):
        if choice in choices[:index]:
            raise ExportError(f"variant {choice.name} is asked for twice; name it once")
    if any(choice.kind == "int8" for choice in choices) != (options.calibration is not None):
        raise ExportError(
            "variant int8 needs --calibration, a pack, record file or folder of aligned faces "
            "like those of the deployment, and nothing else needs it"
        )
    if not options.max_loss >= 0:
        raise ExportError(
            f"max_loss must be 0 or more, in points of percent, found {options.max_loss:g}"
        )
    if options.insightface_server:
        check_server_scaling(model.name, graph_preprocessing(model.preprocessing))
    for bench in benches:
        if bench.pairs.folds is None:
            raise ExportError(
                f"{bench.name}: has no folds, so no accuracy to compare variants by; give another "
                "bench"
            )
    if benches and all(VARIANTS[choice.kind].bar == Bar() for choice in choices):
        raise ExportError(
            "a bench compares the variants that change numbers, fp16 and int8, with float32; ask "
            "for one of them, or leave the bench out"
        )
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not force):
        raise ExportError(
            f"{out} is there already; choose another --out, or give --force, which replaces a "
            "bundle alone"
        )
    check_replaceable(out, _written_before, "a bundle")
    return choices


def _written_before(folder: Path) -> set[str]:
    """Return the files that an earlier export wrote, by its checksums."""
    sums = folder / SUMS_FILE
    lines = sums.read_text("utf-8", errors="replace").splitlines() if sums.is_file() else []
    return {SUMS_FILE, *(line.partition("  ")[2] for line in lines)}


@dataclass
class _Export:
    """The work on one bundle, in a folder that nobody sees yet."""

    model: TorchModel
    out: Path
    folder: Path
    options: BundleOptions
    benches: Sequence[Bench]
    thresholds: list[Threshold]
    progress: Progress | None
    references: list[VerificationResult] = field(default_factory=list)
    parity: dict[str, tuple[ParityRow, ...]] = field(default_factory=dict)
    loads: dict[str, tuple[LoadMeasure, ...]] = field(default_factory=dict)
    variants: list[VariantReport] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def run(self, choices: list[Choice]) -> BundleReport:
        """Do all of it, in the order of what is likely to fail."""
        if self.options.calibration is not None:
            with self._stage("reading faces to calibrate on"):
                path, count = self.options.calibration, self.options.calibration_images
                notes: list[str] = []
                self.faces, digest = calibration_images(path, count, tell=notes.append)
                self.calibration = {
                    "source": path.name,
                    "images": len(self.faces),
                    "sha256": digest,
                    "method": self.options.calibration_method,
                    **({"notes": notes} if notes else {}),
                }
        main = self._main()
        consumers = self._consumers(main)
        bf16 = self._bf16(main, consumers)
        for choice in choices:
            self._variant(choice, main)
        self._repositories(main)
        self._write(NOTE_FILE, json_bytes(self._note(main, consumers), sort_keys=True))
        # As others will read it: lists, not tuples.
        note = json.loads((self.folder / NOTE_FILE).read_bytes())
        self._write(CARD_FILE, model_card(note).encode())
        write_sums(self.folder)
        read_bundle(self.folder)
        _sync(self.folder)
        return BundleReport(
            self.out, note, self.parity, consumers, tuple(self.variants), self.loads, bf16
        )

    @contextlib.contextmanager
    def _stage(self, doing: str, steps: int = 1) -> Iterator[None]:
        if self.progress is not None:
            self.progress(doing, 0, steps)
        yield
        if self.progress is not None:
            self.progress(doing, steps, steps)

    def _main(self) -> OnnxFile:
        model = self.model
        note = {
            "format": METADATA_FORMAT,
            "version": facerec.__version__,
            "name": model.name,
            "weights_sha256": model.sha256,
            "recipe": model.recipe,
            "recipe_sha256": _recipe_hash(model.recipe),
            "alignment": ALIGNMENT,
            "embedding_size": model.embedding_size,
            "image_size": list(model.image_size),
            "flip": flip_mode(self.thresholds),
            "thresholds": self.thresholds,
            "license": self.options.license,
        }
        with self._stage("exporting the graph"):
            opset = self.options.opset
            graph = export_graph(model.backbone, model.preprocessing, opset=opset, note=note)
            main = parse_onnx(graph, str(self.out / ONNX_FILE))
            self._write(ONNX_FILE, main.content)
        with self._stage("comparing with torch"):
            self.parity[MAIN] = tuple(check_parity(model, main))
        self.engine = OnnxruntimeEngine(main)
        if self.options.variant:
            self._measure(main, MAIN)
        return main

    def _consumers(self, main: OnnxFile) -> tuple[ConsumerRow, ...]:
        with self._stage("loading it with every consumer"):
            stated = guess_preprocessing(main).preprocessing
            manifest = package_manifest(self.model.name, main, stated)
            self._write(MANIFEST_FILE, json_bytes(manifest, sort_keys=True))
            photos = np.ascontiguousarray(sample_faces(CONSUMER_FACES)[..., ::-1])
            rows = check_consumers(self.folder, self.model, photos)
        # A reason may name the temporary folder, which is another one each time.
        return tuple(replace(row, note=row.note.replace(f"{self.folder}/", "")) for row in rows)

    def _bf16(self, main: OnnxFile, consumers: Sequence[ConsumerRow]) -> Bf16Report | None:
        """Measure OpenVINO in bfloat16 beside float32, if it computed in it at all."""
        row = next((row for row in consumers if row.consumer == OPENVINO_BF16), None)
        if row is None or row.max_abs is None:
            return None
        with self._stage("measuring OpenVINO in bf16", len(BATCHES)):
            engine = OpenVinoEngine(main, "bf16")
            loads = measure_engine(engine, BATCHES, reference=OpenVinoEngine(main), repeats=3)
        model = OnnxModel(main, engine="openvino", precision="bf16", name=OPENVINO_BF16)
        comparisons = (compare(*both) for both in self._results(model, main))
        return Bf16Report(tuple(loads), tuple(comparisons))

    def _variant(self, choice: Choice, main: OnnxFile) -> None:
        """Make, check, measure and compare a variant; write it unless it loses too much."""
        kind = VARIANTS[choice.kind]
        # Others compute in the main file's own numbers.
        exact = kind.bar == Bar()
        path = f"{VARIANTS_FOLDER}/{choice.name}.onnx"
        with self._stage(f"making variant {choice.name}"):
            if choice.kind == "int8":
                method = self.options.calibration_method
                made = quantize_int8(main.content, self.faces, method=method)
            else:
                made = make_variant(choice.kind, main.content, batch=choice.batch or 1)
            file = parse_onnx(made, str(self.out / path))
            self.parity[choice.name] = tuple(
                check_parity(self.model, file, kind.bar or Bar(np.inf, -1.0))
            )
            openvino = self._openvino(file, exact)
        self._measure(file, choice.name)
        results = [] if exact else self._results(OnnxModel(file, name=choice.name), main)
        comparisons = tuple(compare(first, second) for first, second in results)
        cosine = min(row.min_cosine for row in self.parity[choice.name] if row.check == FACES)
        refused = self._loss(comparisons) if comparisons else None
        self.variants.append(
            VariantReport(choice.name, len(file.content), cosine, openvino, comparisons, refused)
        )
        if refused is not None:
            return
        thresholds = self.thresholds
        if not exact:
            thresholds = [row for _, second in results for row in result_thresholds(second)]
        file = parse_onnx(_restate(file.content, thresholds), file.where)
        self._write(path, file.content)
        benches = [bench.name for bench in self.benches] if results else []
        self.entries.append(
            {
                "name": choice.name,
                "kind": choice.kind,
                **_describe(file, path),
                "made": kind.made,
                "apart": kind.apart,
                "consumers": [
                    name
                    for name in kind.consumers
                    if name != OPENVINO or openvino.outcome in ("same", "not installed")
                ],
                "openvino": _row(openvino),
                "exact": exact,
                "min_cosine": round(cosine, 7),
                "calibration": self.calibration if choice.kind == "int8" else None,
                "accuracy": [
                    {"bench": name, **comparison.to_json()}
                    for name, comparison in zip(benches, comparisons, strict=True)
                ],
                "thresholds": thresholds,
            }
        )

    def _openvino(self, file: OnnxFile, exact: bool) -> ConsumerRow:
        """Compare OpenVINO with onnxruntime on the same file."""
        faces = sample_faces(CONSUMER_FACES)
        try:
            model = OnnxModel(file, engine="openvino")
            measured = deviation(OnnxModel(file).embed(faces), model.embed(faces))
        except MissingExtraError as error:
            return ConsumerRow(OPENVINO, None, "not installed", note=str(error))
        except ModelError as error:
            reason = str(error).removeprefix(f"{file.where}: ")
            return ConsumerRow(OPENVINO, None, "cannot load", note=reason)
        version = model.describe()["runtime"].removeprefix(f"{OPENVINO} ")
        bar = OPENVINO_EXACT if exact else OPENVINO_ROUNDED
        return bar_row(OPENVINO, version, measured, bar, "it embeds otherwise than onnxruntime")

    def _results(
        self, model: OnnxModel, main: OnnxFile
    ) -> list[tuple[VerificationResult, VerificationResult]]:
        """Verify the main file in onnxruntime and another model on every bench."""
        flip = flip_mode(self.thresholds) != "none"

        def verify(model: OnnxModel) -> list[VerificationResult]:
            return [
                evaluate_bench(
                    model,
                    bench,
                    flip=flip,
                    progress=section(self.progress, f"{model.name} on {bench.name}"),
                )
                for bench in self.benches
            ]

        if not self.references:
            self.references = verify(OnnxModel(main, name=MAIN))
        return list(zip(self.references, verify(model), strict=True))

    def _loss(self, comparisons: Sequence[Comparison]) -> str | None:
        """Return why a variant loses too much, or None."""
        limit = self.options.max_loss
        for bench, comparison in zip(self.benches, comparisons, strict=True):
            row = next(row for row in comparison.rows if row.figure == "accuracy")
            loss = -100 * (row.difference.value or 0)
            if loss > limit:
                points, interval = difference_points(row), difference_limits(row)
                return (
                    f"its accuracy on {bench.name} changes by {points} points {interval}, more "
                    f"than the {limit:g} of --max-loss"
                )
        return None

    def _measure(self, file: OnnxFile, name: str) -> None:
        """Measure the speed of a file on this machine, that of a variant beside the main file's."""
        fixed = file.image_input().batch
        batches = BATCHES if fixed is None else (fixed,)
        with self._stage(f"measuring {name}", len(batches)):
            reference = None if name == MAIN else self.engine
            engine = self.engine if name == MAIN else OnnxruntimeEngine(file)
            self.loads[name] = tuple(measure_engine(engine, batches, reference=reference))

    def _repositories(self, main: OnnxFile) -> None:
        """Write the folders that servers want as they are."""
        name = model_id(self.model.name)
        if self.options.triton:
            folder = f"{TRITON_FOLDER}/{name}"
            self._write(f"{folder}/{CONFIG_FILE}", triton_config(name, main).encode())
            self._write(f"{folder}/{VERSION}/{TRITON_FILE}", main.content)
        if self.options.insightface_server:
            stated = guess_preprocessing(main).preprocessing
            manifest = server_manifest(self.model.name, main, stated)
            self._write(f"{SERVER_FOLDER}/{MANIFEST_FILE}", json_bytes(manifest, sort_keys=True))
            self._write(f"{SERVER_FOLDER}/{ONNX_FILE}", main.content)
            self._write(f"{SERVER_FOLDER}/README.txt", SERVER_REMARK.encode())

    def _note(self, main: OnnxFile, consumers: Sequence[ConsumerRow]) -> dict[str, Any]:
        model, inside = self.model, main.note
        assert inside is not None
        path = model.path
        return {
            "schema": BUNDLE_SCHEMA,
            "facerec": facerec.__version__,
            "name": model.name,
            "model_id": model_id(model.name),
            "license": self.options.license,
            "model": {**_describe(main, ONNX_FILE), "thresholds": self.thresholds},
            "preprocessing": inside["preprocessing"],
            "alignment": ALIGNMENT,
            "alignment_points": face_template(model.image_size).tolist(),
            "embedding_size": model.embedding_size,
            "image_size": list(model.image_size),
            "normalised": False,
            "flip": inside["flip"],
            "variants": self.entries,
            "left_out": [
                {"name": row.name, "reason": row.refused}
                for row in self.variants
                if row.refused is not None
            ],
            "triton": TRITON_FOLDER if self.options.triton else None,
            "server": SERVER_FOLDER if self.options.insightface_server else None,
            "parity": [_row(row) for row in self.parity[MAIN]],
            "consumers": [_row(row) for row in consumers],
            "training": training_facts(model.recipe),
            "source": {
                "file": None if path is None else path.name,
                "sha256": model.sha256,
                "trained_on": to_dict(model.preprocessing),
                "recipe_sha256": inside["recipe_sha256"],
                "recipe": model.recipe,
            },
        }

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _describe(file: OnnxFile, path: str) -> dict[str, Any]:
    """Return what a consumer must know of a file, as JSON types."""
    assert file.note is not None
    return {
        "file": path,
        "sha256": file.sha256,
        "bytes": len(file.content),
        "opset": file.opset,
        "ir_version": file.ir_version,
        "parameters": file.parameters,
        "inputs": [asdict(tensor) for tensor in file.inputs],
        "outputs": [asdict(tensor) for tensor in file.outputs],
        "preprocessing": file.note["preprocessing"],
    }


def _restate(content: bytes, thresholds: list[Threshold]) -> bytes:
    """Return a variant with thresholds of its own in place of those of the main file."""
    import onnx

    model = onnx.load_from_string(content)
    for entry in model.metadata_props:
        if entry.key == METADATA_KEY:
            note = {**json.loads(entry.value), "thresholds": thresholds}
            entry.value = json.dumps(note, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return bytes(model.SerializeToString(deterministic=True))


def _recipe_hash(recipe: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of a recipe as JSON with sorted keys, or None without one."""
    text = json.dumps(recipe, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest() if recipe else None


def _named(value: Any) -> Any:
    """Return what is written of a dataclass: its fields, of a comparison what it says itself."""
    return value.to_json() if isinstance(value, Comparison) else by_name(value)


def _row(row: ParityRow | ConsumerRow) -> dict[str, Any]:
    """Return a check as JSON types, with as many digits as a repetition gives again."""
    values = asdict(row)
    for name, value in values.items():
        if isinstance(value, float):
            values[name] = round(value, 7) if name == "min_cosine" else float(f"{value:.1e}")
    return values


def _sync(folder: Path) -> None:
    """Make every file of a folder durable."""
    for path in folder.rglob("*"):
        if path.is_dir():
            fsync_directory(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    fsync_directory(folder)
