"""One folder that every consumer loads: written whole, after all checks, or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import facerec
from facerec.base.errors import ExportError, FacerecError
from facerec.base.files import atomic_folder, json_bytes, read_file
from facerec.base.progress import Progress, section
from facerec.base.recipe import digest, to_dict
from facerec.embedding.align import face_template
from facerec.embedding.bundle import (
    BUNDLE_SCHEMA,
    CARD_FILE,
    EVALUATIONS_FILE,
    MAX_TEXT,
    MODEL_FILE,
    NOTE_FILE,
    ONNX_FILE,
    SUMS_FILE,
    VARIANTS_FOLDER,
    write_sums,
)
from facerec.embedding.hub import is_hub_name, parse_hub_name
from facerec.embedding.model import OnnxModel
from facerec.embedding.onnx_file import METADATA_FORMAT, OnnxFile, parse_onnx
from facerec.embedding.torch_model import TorchModel
from facerec.export.cards import bundle_card, evaluation_entries, training_facts
from facerec.export.consumers import check_consumers
from facerec.export.graph import export_graph, serialized
from facerec.export.options import DEFAULT, BundleOptions
from facerec.export.parity import Bar, ParityRow, check_parity, sample_faces
from facerec.export.quantize import int8_calibration_data, quantize_int8
from facerec.export.triton import model_id, triton_config
from facerec.report.folders import check_replaceable
from facerec.report.tidy import records
from facerec.report.words import number
from facerec.verification import Bench, VerificationResult, evaluate_bench
from facerec.verification.compare import compare
from facerec.verification.result import PairedComparison

ALIGNMENT = "arcface_112x112"
TRITON_FOLDER = "triton"
INT8_FILE = f"{VARIANTS_FOLDER}/int8.onnx"
CONSUMER_FACES = 6


@dataclass(frozen=True)
class BundleReport:
    """What an export wrote and checked."""

    path: Path
    note: Mapping[str, Any]
    """The contents of ``facerec.json``."""
    parity: Mapping[str, Sequence[ParityRow]]
    """File → its comparisons with torch."""
    comparisons: Sequence[PairedComparison]
    """Comparison of int8 with float32, on each bench."""


def default_folder(model: Path) -> Path:
    """Return where the bundle of a model goes: ``RUN/export``, or ``NAME_onnx`` beside a file."""
    if is_hub_name(model):
        return Path(f"{Path(parse_hub_name(model)[0]).name}_onnx")
    if model.is_dir():
        return model / "export"
    if model.name == MODEL_FILE:
        return model.parent / "export"
    return model.with_name(f"{model.stem}_onnx")


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

    Equal inputs give equal bytes on one machine. The model's calibration goes in.

    Args:
        model: what is exported.
        out: the bundle's folder.
        options: what goes into it besides the main file.
        benches: on which int8 is compared with float32.
        force: replace a bundle that is there.
        progress: called with each stage of the work.

    Raises:
        ExportError: what was asked for cannot be, a check fails, or the folder is taken. Nothing is
            written then, and an earlier bundle is still there.
    """
    if benches and options.int8 is None:
        raise ExportError("a bench compares int8 with float32; give --int8, or leave it out")
    if bench := next((bench for bench in benches if bench.pairs.folds is None), None):
        raise ExportError(f"{bench.name}: has no folds, so no accuracy; give another bench")
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not force):
        raise ExportError(
            f"{out} is there already; choose another --out, or give --force, which replaces a "
            "bundle alone"
        )
    check_replaceable(out, _written_before, "a bundle")
    own = model.calibration
    if own is not None and any(own.shift) and own.align is not None:
        raise ExportError(
            f"{own.where}: this calibration moves faces that were found in photos by "
            f"{own.shift[0]} {own.shift[1]}, and what loads a bundle moves none; calibrate without"
        )
    with atomic_folder(out, replace=force) as folder:
        try:
            return _write_all(model, out, folder, options, benches, progress)
        except FacerecError as error:
            raise type(error)(f"{error}; no bundle was written") from error


def _written_before(folder: Path) -> set[str]:
    """Return the files that an earlier export wrote, by its checksums."""
    sums = folder / SUMS_FILE
    text = read_file(sums, MAX_TEXT).decode(errors="replace") if sums.is_file() else ""
    listed = (line.partition("  ")[2] for line in text.splitlines())
    return {SUMS_FILE, CARD_FILE, EVALUATIONS_FILE, *listed}


def _write_all(
    model: TorchModel,
    out: Path,
    folder: Path,
    options: BundleOptions,
    benches: Sequence[Bench],
    progress: Progress | None,
) -> BundleReport:
    """Do all of it in a folder that nobody sees yet, in the order of what is likely to fail."""

    def begin(doing: str) -> None:
        if progress is not None:
            progress(doing, 0, 1)

    def write(name: str, content: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())

    begin("exporting the graph")
    stated = _stated(model, options)
    graph = export_graph(model.backbone, model.preprocessing, opset=options.opset, note=stated)
    main = parse_onnx(graph, str(out / ONNX_FILE))
    write(ONNX_FILE, graph)
    begin("comparing with torch")
    parity = {ONNX_FILE: check_parity(model, main)}
    begin("loading it with every consumer")
    photos = np.ascontiguousarray(sample_faces(CONSUMER_FACES)[..., ::-1])
    consumers = check_consumers(folder / ONNX_FILE, model, photos)
    comparisons: list[PairedComparison] = []
    variants: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    if options.int8 is not None:
        begin("making int8")
        faces, source = int8_calibration_data(options.int8, options.int8_images)
        int8 = parse_onnx(quantize_int8(main, faces), str(out / INT8_FILE))
        # A cosine is told; only a bench can say what it is worth.
        parity[INT8_FILE] = check_parity(model, int8, Bar(np.inf, -1.0))
        flip = stated["flip"] != "none"
        results = _verify(main, "float32", benches, flip, progress)
        own = _verify(int8, "int8", benches, flip, progress)
        comparisons = [compare(*both) for both in zip(results, own, strict=True)]
        costs = list(map(_accuracy, benches, comparisons))
        for cost in costs:
            change = 100 * (cost["int8"] - cost["float32"])
            if -change > options.max_loss and not left_out:
                reason = (
                    f"its accuracy on {cost['bench']} changes by {number(change, '+.2f')} points, "
                    f"more than the {options.max_loss:g} of --max-loss"
                )
                left_out = [{"name": "int8", "reason": reason}]
        if not left_out:
            found = [asdict(row) for result in own for row in result.thresholds()]
            int8 = _restate(int8, found)
            write(INT8_FILE, int8.content)
            faces_alone = [row.min_cosine for row in parity[INT8_FILE] if row.check == "faces"]
            variants = [
                {
                    "name": "int8",
                    **_describe(int8, INT8_FILE),
                    "min_cosine": min(faces_alone),
                    "calibration": source,
                    "accuracy": costs,
                    "thresholds": found,
                }
            ]
    name = model_id(model.name)
    if options.triton:
        write(f"{TRITON_FOLDER}/{name}/config.pbtxt", triton_config(name, main).encode())
        write(f"{TRITON_FOLDER}/{name}/1/model.onnx", graph)
    note = {
        **_note(model, main, stated),
        "parity": list(map(asdict, parity[ONNX_FILE])),
        "consumers": list(map(asdict, consumers)),
        "variants": variants,
        "left_out": left_out,
        "triton": TRITON_FOLDER if options.triton else None,
    }
    write(NOTE_FILE, json_bytes(note))
    # As others will read it: lists, not tuples.
    note = json.loads(read_file(folder / NOTE_FILE))
    write(CARD_FILE, bundle_card(note).encode())
    if entries := evaluation_entries(note):
        write(EVALUATIONS_FILE, entries.encode())
    write_sums(folder)
    return BundleReport(out, note, parity, comparisons)


def _stated(model: TorchModel, options: BundleOptions) -> dict[str, Any]:
    """Return what the exported file says about itself, with its calibration."""
    known = model.calibration
    own = {"thresholds": []} if known is None else known.to_json()
    return {
        "format": METADATA_FORMAT,
        "version": facerec.__version__,
        "name": model.name,
        "weights_sha256": model.sha256,
        "recipe": model.recipe,
        "recipe_sha256": digest(model.recipe) if model.recipe else None,
        "alignment": ALIGNMENT,
        "embedding_size": model.embedding_size,
        "image_size": list(model.image_size),
        "flip": known and ("sum_raw" if known.flip else "none"),
        **{name: own.get(name) for name in ("thresholds", "score_calibration", "faces")},
        "license": options.license,
    }


def _verify(
    file: OnnxFile, name: str, benches: Sequence[Bench], flip: bool, progress: Progress | None
) -> list[VerificationResult]:
    model = OnnxModel(file)
    model.name = name
    return [
        evaluate_bench(
            model, bench, flip=flip, progress=section(progress, f"{name} on {bench.name}")
        )
        for bench in benches
    ]


def _accuracy(bench: Bench, comparison: PairedComparison) -> dict[str, Any]:
    """Return what int8 costs on a bench, as JSON types."""
    one, other, change = records(comparison.rows[comparison.rows.figure == "accuracy"])
    return {
        "bench": bench.name,
        "float32": one["value"],
        "int8": other["value"],
        "low": change["low"],
        "high": change["high"],
        "basis": comparison.basis,
        "notes": list(comparison.notes),
    }


def _note(model: TorchModel, main: OnnxFile, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the bundle's note says but for what was checked and made of the file."""
    described = _describe(main, ONNX_FILE)
    shared = "name", "license", "alignment", "embedding_size", "image_size", "flip"
    return {
        "schema": BUNDLE_SCHEMA,
        "facerec": facerec.__version__,
        **{name: stated[name] for name in shared},
        "model_id": model_id(model.name),
        "model": {
            **described,
            **{name: stated[name] for name in ("thresholds", "score_calibration", "faces")},
        },
        "preprocessing": described["preprocessing"],
        "alignment_points": face_template(model.image_size).tolist(),
        "normalised": False,
        "training": training_facts(model.recipe),
        "source": {
            "file": None if model.path is None else model.path.name,
            "sha256": model.sha256,
            "trained_on": to_dict(model.preprocessing),
            "recipe_sha256": stated["recipe_sha256"],
            "recipe": model.recipe,
        },
    }


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


def _restate(file: OnnxFile, thresholds: list[dict[str, Any]]) -> OnnxFile:
    """Return an exported file with thresholds of its own, and nothing of another's calibration."""
    import onnx

    own = {"thresholds": thresholds, "score_calibration": None, "faces": None}
    model, note = onnx.load_from_string(file.content), {**(file.note or {}), **own}
    return parse_onnx(serialized(model, note, file.opset), file.where)
