"""One folder that every consumer loads: written whole, after all checks, or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import facerec
from facerec.base.errors import ExportError
from facerec.base.files import atomic_folder, atomic_path, json_bytes, read_file
from facerec.base.progress import Progress, section
from facerec.embedding.align import face_template
from facerec.embedding.bundle import (
    BUNDLE_SCHEMA,
    CARD_FILE,
    EVALUATIONS_FILE,
    MODEL_FILE,
    NOTE_FILE,
    ONNX_FILE,
    SUMS_FILE,
    VARIANTS_FOLDER,
    read_sums,
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
from facerec.export.parity import ParityRow, check_parity, sample_faces
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
    for bench in benches:
        if options.int8 is None or bench.pairs.folds is None:
            raise ExportError(
                f"{bench.name}: a bench compares int8 with float32 by accuracy, the mean over "
                "folds; give --int8 and a bench with folds, or none"
            )
    check_replaceable(out, _written_before, "a bundle")
    if any(out.glob("*")) and not force:
        raise ExportError(
            f"{out} is there already; choose another --out, or give --force, which replaces a "
            "bundle alone"
        )
    own = model.calibration
    if own is not None and any(own.shift) and own.align is not None:
        raise ExportError(
            f"{own.where}: this calibration moves faces that were found in photos by "
            f"{own.shift[0]} {own.shift[1]}, and what loads a bundle moves none; calibrate without"
        )
    with atomic_folder(out, replace=force) as folder:

        def begin(doing: str) -> None:
            if progress is not None:
                progress(doing, 0, 1)

        def write(name: str, content: bytes) -> None:
            with atomic_path(folder / name) as file:
                file.write_bytes(content)

        # In the order of what is likely to fail.
        begin("exporting the graph")
        stated = _stated(model, options)
        graph = export_graph(model.backbone, model.preprocessing, opset=options.opset, note=stated)
        main = parse_onnx(graph, str(out / ONNX_FILE))
        write(ONNX_FILE, graph)
        begin("comparing with torch")
        parity = {ONNX_FILE: check_parity(model, main)}
        begin("loading it with every consumer")
        photos = np.ascontiguousarray(sample_faces(CONSUMER_FACES)[..., ::-1])
        consumers = check_consumers(replace(main, path=folder / ONNX_FILE), model, photos)
        comparisons: list[PairedComparison] = []
        note = {
            **_note(model, main),
            "parity": list(map(asdict, parity[ONNX_FILE])),
            "consumers": list(map(asdict, consumers)),
            "variants": [],
            "left_out": [],
            "triton": TRITON_FOLDER if options.triton else None,
        }
        if options.int8 is not None:
            begin("making int8")
            int8, entry, comparisons = _make_int8(model, main, options, benches, progress)
            parity[INT8_FILE] = check_parity(model, int8, exact=False)
            # A cosine is told; only a bench can say what it is worth.
            faces_alone = [row.min_cosine for row in parity[INT8_FILE] if row.check == "faces"]
            if reason := _too_much_lost(entry["accuracy"], options.max_loss):
                note["left_out"] = [{"name": "int8", "reason": reason}]
            else:
                write(INT8_FILE, int8.content)
                note["variants"] = [{**entry, "min_cosine": min(faces_alone)}]
        if options.triton:
            name = note["model_id"]
            write(f"{TRITON_FOLDER}/{name}/config.pbtxt", triton_config(name, main).encode())
            write(f"{TRITON_FOLDER}/{name}/1/model.onnx", graph)
        write(NOTE_FILE, json_bytes(note))
        # As others will read it: lists, not tuples.
        note = json.loads(read_file(folder / NOTE_FILE))
        write(CARD_FILE, bundle_card(note).encode())
        if entries := evaluation_entries(note):
            write(EVALUATIONS_FILE, entries.encode())
        write_sums(folder)
    return BundleReport(out, note, parity, comparisons)


def _written_before(folder: Path) -> set[str]:
    """Return the files that an earlier export wrote, by its checksums."""
    listed = read_sums(folder) if (folder / SUMS_FILE).is_file() else ()
    return {SUMS_FILE, CARD_FILE, EVALUATIONS_FILE, *listed}


def _make_int8(
    model: TorchModel,
    main: OnnxFile,
    options: BundleOptions,
    benches: Sequence[Bench],
    progress: Progress | None,
) -> tuple[OnnxFile, dict[str, Any], list[PairedComparison]]:
    """Return the int8 file, what the bundle's note says of it, and what it costs on each bench."""
    assert options.int8 is not None
    faces, source = int8_calibration_data(options.int8, options.int8_images)
    file = parse_onnx(quantize_int8(main, faces), INT8_FILE)
    results, own = (
        _verify(each, name, benches, progress) for name, each in (("float32", main), ("int8", file))
    )
    comparisons = list(map(compare, results, own))
    file = _restate(file, [asdict(row) for result in own for row in result.thresholds()])
    costs = list(map(_accuracy, benches, comparisons))
    made = {"calibration": source, "accuracy": costs}
    return file, {"name": "int8", **_describe(file, INT8_FILE), **made}, comparisons


def _too_much_lost(costs: Sequence[Mapping[str, Any]], most: float) -> str:
    """Return a sentence on the bench that costs too much accuracy, in points; else an empty one."""
    changes = [(100 * (cost["int8"] - cost["float32"]), cost["bench"]) for cost in costs]
    change, bench = min(changes, default=(0.0, ""))
    if -change <= most:
        return ""
    said = number(change, "+.2f")
    return f"its accuracy on {bench} changes by {said} points, more than the {most:g} of --max-loss"


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
        "alignment": ALIGNMENT,
        "embedding_size": model.embedding_size,
        "image_size": list(model.image_size),
        "flip": known and ("sum_raw" if known.flip else "none"),
        **{name: own.get(name) for name in ("thresholds", "score_calibration", "faces")},
        "license": options.license,
    }


def _verify(
    file: OnnxFile, name: str, benches: Sequence[Bench], progress: Progress | None
) -> list[VerificationResult]:
    model, flip = OnnxModel(file), (file.note or {})["flip"] != "none"
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


def _note(model: TorchModel, main: OnnxFile) -> dict[str, Any]:
    """Return what the bundle's note says but for what was checked and made of the file."""
    stated, described = main.note or {}, _describe(main, ONNX_FILE)
    shared = "name", "license", "alignment", "embedding_size", "image_size", "flip"
    return {
        "schema": BUNDLE_SCHEMA,
        "facerec": facerec.__version__,
        **{name: stated[name] for name in shared},
        "model_id": model_id(model.name),
        "model": described,
        "preprocessing": described["preprocessing"],
        "alignment_points": face_template(model.image_size).tolist(),
        "normalised": False,
        "training": training_facts(model.recipe),
        "source": {
            "file": None if model.path is None else model.path.name,
            "sha256": model.sha256,
            "recipe": model.recipe,
        },
    }


def _describe(file: OnnxFile, path: str) -> dict[str, Any]:
    """Return what a consumer must know of a file, as JSON types."""
    stated = file.note or {}
    decides = "preprocessing", "thresholds", "score_calibration", "faces"
    return {
        "file": path,
        "sha256": file.sha256,
        "bytes": len(file.content),
        "opset": file.opset,
        "ir_version": file.ir_version,
        "parameters": file.parameters,
        "inputs": [asdict(tensor) for tensor in file.inputs],
        "outputs": [asdict(tensor) for tensor in file.outputs],
        **{name: stated[name] for name in decides},
    }


def _restate(file: OnnxFile, thresholds: list[dict[str, Any]]) -> OnnxFile:
    """Return an exported file with thresholds of its own, and nothing of another's calibration."""
    import onnx

    own = {"thresholds": thresholds, "score_calibration": None, "faces": None}
    model, note = onnx.load_from_string(file.content), {**(file.note or {}), **own}
    return parse_onnx(serialized(model, note, file.opset), file.where)
