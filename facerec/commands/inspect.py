"""``facerec inspect``: what a model file holds, what it wants of its pixels, and who loads it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from facerec.commands.cli import Console, run_command
from facerec.commands.models import preprocessing_words
from facerec.errors import ExportError, MissingExtraError, ModelError
from facerec.files import write_json
from facerec.recipe import to_dict
from facerec.report.table import fact_lines, text_table

if TYPE_CHECKING:
    from facerec.embedding.bundle import Bundle
    from facerec.embedding.onnx_file import GuessedPreprocessing, OnnxFile

SHOWN = 12
"""Operators and metadata entries in the printed table; the JSON file has all."""


@dataclass(frozen=True)
class Verdict:
    """Whether one consumer would use the file as an embedding model."""

    consumer: str
    basis: Literal["tried", "rule"]
    """Whether it was run here on a black image, or its rules were applied to the file."""
    suits: bool | None
    """None: not installed here, not asked, or nothing tells the order of channels."""
    remark: str
    """Why not, or what it would do; may be empty."""


def inspect(model: tyro.conf.Positional[Path], load: bool = True, json: Path | None = None) -> None:
    """Show what a model file holds, what it wants of its pixels, and which programs would load it.

    Reads .onnx files of anybody without trusting them: one with weights outside its folder,
    operators of its own, functions, control flow or sizes that do not fit is refused. The
    preprocessing is read from facerec's own metadata or from the start of the graph; else it is an
    assumption, and said to be one.

    Args:
        model: an .onnx or .safetensors file, a bundle, or a run folder.
        load: run an .onnx file that passed the checks on a black image, in every engine installed
            here; --no-load only reads it.
        json: write everything to this file too.
    """
    from facerec.embedding.bundle import is_bundle, read_bundle
    from facerec.embedding.onnx_file import read_onnx

    console = Console(highlight=False)
    bundle = read_bundle(model) if model.is_dir() and is_bundle(model) else None
    path = model if bundle is None else bundle.model
    if path.suffix == ".onnx":
        inspection = _inspect_onnx(read_onnx(path), bundle, load, console)
    else:
        inspection = _inspect_safetensors(path, console)
    if json is not None:
        write_json(json, inspection)
        console.print(f"inspection: {json}", soft_wrap=True)


def _inspect_onnx(
    file: OnnxFile, bundle: Bundle | None, load: bool, console: Console
) -> dict[str, Any]:
    """Print and return what is to be said of a file."""
    from facerec.embedding.onnx_file import guess_preprocessing, printable

    guess = guess_preprocessing(file)
    verdicts = list(_verdicts(file, guess, load))
    if unknown := "channels" in guess.assumed and not guess.named:
        verdicts = [_without_channels(verdict) for verdict in verdicts]
    facts = [
        ("file", file.where),
        ("SHA-256", file.sha256),
        ("size", f"{len(file.content):,} bytes, {file.parameters:,} parameters"),
        *(("weights in", printable(name)) for name in file.beside),
        ("format", f"opset {file.opset}, IR {file.ir_version}"),
        ("producer", printable(file.producer) or "not stated"),
        *(("input", str(info)) for info in file.inputs),
        *(("output", str(info)) for info in file.outputs),
        ("operators", _counted(file)),
        *(("metadata", line) for line in _metadata(file)),
        ("preprocessing", preprocessing_words(guess.preprocessing)),
        *([("", "channel order unknown: RGB or BGR")] if unknown else []),
        *(("evidence", sentence) for sentence in guess.evidence),
    ]
    if bundle is not None:
        facts.append(("bundle", f"{len(bundle.sums)} files, all checksums right"))
        facts.append(("variants", ", ".join(bundle.variants) or "none"))
    _print_facts(facts, console)
    said = {True: "yes", False: "no", None: "unknown"}
    rows = [(row.consumer, row.basis, said[row.suits], row.remark) for row in verdicts]
    headings = "consumer", "basis", "suits", "remark"
    console.print(text_table("", headings, rows, words=headings).terminal())
    return {
        "file": file.where,
        "sha256": file.sha256,
        "bytes": len(file.content),
        "parameters": file.parameters,
        "opset": file.opset,
        "ir_version": file.ir_version,
        "producer": file.producer,
        "inputs": [asdict(info) for info in file.inputs],
        "outputs": [asdict(info) for info in file.outputs],
        "operators": dict(file.operators),
        "metadata": dict(file.metadata),
        "preprocessing": {
            "value": "embedded" if guess.preprocessing is None else to_dict(guess.preprocessing),
            "stated": guess.stated,
            "evidence": list(guess.evidence),
        },
        "consumers": [asdict(verdict) for verdict in verdicts],
        "bundle": None
        if bundle is None
        else {"note": bundle.note, "variants": list(bundle.variants), "files": dict(bundle.sums)},
    }


def _inspect_safetensors(path: Path, console: Console) -> dict[str, Any]:
    from facerec.embedding.model import load_model
    from facerec.embedding.onnx_file import printable
    from facerec.embedding.torch_model import TorchModel

    model = load_model(path)
    assert isinstance(model, TorchModel) and model.config is not None and model.path is not None
    parameters = sum(parameter.numel() for parameter in model.backbone.parameters())
    size = model.path.stat().st_size
    config = model.config
    _print_facts(
        [
            ("file", str(model.path)),
            ("SHA-256", str(model.sha256)),
            ("size", f"{size:,} bytes, {parameters:,} parameters"),
            ("backbone", f"{config.name}, width {config.width:g}, last norm {config.embedding_bn}"),
            ("input", "uint8 RGB [N, {}, {}, 3]".format(*model.image_size)),
            ("output", f"float32 [N, {model.embedding_size}], raw embeddings"),
            ("preprocessing", preprocessing_words(model.preprocessing)),
            *(("evidence", said) for said in model.evidence),
            *(("warning", warning) for warning in model.warnings),
            ("recipe", ", ".join(printable(name) for name in model.recipe) or "not stated"),
        ],
        console,
    )
    return {
        **model.describe(),
        "bytes": size,
        "parameters": parameters,
        "recipe": model.recipe,
    }


def _verdicts(file: OnnxFile, guess: GuessedPreprocessing, load: bool) -> Iterator[Verdict]:
    """Yield what every consumer would make of the file."""
    from facerec.embedding.model import OnnxModel
    from facerec.embedding.onnx_file import printable
    from facerec.export.triton import triton_config

    try:
        image = file.image_input()
        file.embedding_output()
    except ModelError as error:
        problem = str(error).removeprefix(f"{file.where}: ")
        yield Verdict("facerec", "rule", False, problem)
        yield _insightface_path(file, guess)
        return
    yield Verdict("facerec", "rule", True, "")
    yield _tried("onnxruntime", file, load, lambda: OnnxModel(file).embedding_size)
    yield _tried("OpenVINO", file, load, lambda: OnnxModel(file, engine="openvino").embedding_size)
    yield _tried("OpenCV DNN", file, load, partial(_opencv_size, file))
    yield _insightface_path(file, guess)
    yield _insightface_manifest(file, guess)
    suits = guess.preprocessing is None and image.dtype == "float32"
    remark = "feeds float32 RGB 0…255" + ("" if suits else ", which is not what it wants")
    yield Verdict("OpenCV FaceRecognizerSF", "rule", suits, remark)
    try:
        triton_config("model", file)
    except ExportError as error:
        yield Verdict("Triton, dynamic batching", "rule", False, printable(str(error), 200))
    else:
        yield Verdict("Triton, dynamic batching", "rule", True, "")


def _without_channels(verdict: Verdict) -> Verdict:
    """Take back that a consumer feeds what the model wants, where nobody knows what that is."""
    if verdict.basis == "tried" or not verdict.suits or "Triton" in verdict.consumer:
        return verdict
    remark = f"{verdict.remark or 'feeds RGB'}; the channel order that it wants is unknown"
    return replace(verdict, suits=None, remark=remark)


def _tried(name: str, file: OnnxFile, load: bool, size: Callable[[], int]) -> Verdict:
    if not load:
        return Verdict(name, "tried", None, "not tried")
    try:
        return Verdict(name, "tried", True, f"embeddings of {size()} numbers")
    except MissingExtraError as error:
        return Verdict(name, "tried", None, str(error))
    except ModelError as error:
        return Verdict(name, "tried", False, str(error).removeprefix(f"{file.where}: "))


_OPENCV_TRIAL = """
import cv2, numpy
shape, dtype = [int(side) for side in sys.argv[1].split(",")], sys.argv[2]
net = cv2.dnn.readNetFromONNX(numpy.frombuffer(sys.stdin.buffer.read(), numpy.uint8))
net.setInput(numpy.zeros(shape, dtype))
embeddings = net.forward()
print(embeddings.size // shape[0])
"""


def _opencv_size(file: OnnxFile) -> int:
    """Try OpenCV in a process of its own: it divides by zero on some files that others refuse."""
    from facerec.embedding.trial import run_opencv

    image = file.image_input()
    sides = ",".join(map(str, (image.batch or 1, *image.shape)))
    return int(run_opencv(file.where, _OPENCV_TRIAL, file.content, sides, image.dtype))


def _insightface_path(file: OnnxFile, guess: GuessedPreprocessing) -> Verdict:
    from facerec.backbones import Preprocessing
    from facerec.embedding.onnx_file import printable
    from facerec.export.consumers import legacy_router_simulation

    name = "insightface, a bare path"
    if not file.inputs:
        return Verdict(name, "rule", False, "the file has no input")
    route = legacy_router_simulation(file)
    if route.problem is not None:
        return Verdict(name, "rule", False, printable(route.problem, 200))
    wanted = guess.preprocessing or Preprocessing("rgb", 0.0, 1.0)
    fed = f"feeds RGB with mean {route.mean:g} and std {route.std:g}"
    suits = (route.mean, route.std, "rgb") == (wanted.mean, wanted.std, wanted.channels)
    return Verdict(name, "rule", suits, fed if suits else f"{fed}, which is not what it wants")


def _insightface_manifest(file: OnnxFile, guess: GuessedPreprocessing) -> Verdict:
    """Apply the rules of ``insightface/model_zoo/package_manifest.py`` and ``arcface_onnx.py``."""
    image = file.image_input()
    problems = {
        "the layout must be NCHW": image.layout != "NCHW",
        "there must be one output": len(file.outputs) != 1,
        "a fixed batch must be 1": image.batch not in (None, 1),
        "the images must be square": image.height != image.width,
        "it feeds RGB alone": guess.preprocessing is not None
        and guess.preprocessing.channels != "rgb",
    }
    breaches = [problem for problem, applies in problems.items() if applies]
    if breaches:
        return Verdict("insightface ≥ 2, a manifest", "rule", False, "; ".join(breaches))
    if guess.preprocessing is None:
        words = 'with preprocessing "embedded"'
    else:
        words = f"with mean {guess.preprocessing.mean:g} and std {guess.preprocessing.std:g}"
    return Verdict("insightface ≥ 2, a manifest", "rule", True, words)


def _counted(file: OnnxFile) -> str:
    from facerec.embedding.onnx_file import printable

    shown = [f"{printable(kind)} {count}" for kind, count in list(file.operators.items())[:SHOWN]]
    more = len(file.operators) - len(shown)
    return ", ".join(shown) + (f" and {more} kinds more" if more else "")


def _metadata(file: OnnxFile) -> Iterator[str]:
    from facerec.embedding.onnx_file import METADATA_KEY, printable

    for key, value in list(file.metadata.items())[:SHOWN]:
        ours = f"{len(value):,} characters, facerec's own note"
        yield f"{printable(key)}: {ours if key == METADATA_KEY else printable(value)}"
    if len(file.metadata) > SHOWN:
        yield f"and {len(file.metadata) - SHOWN} entries more"


def _print_facts(facts: Sequence[tuple[str, str]], console: Console) -> None:
    console.print(
        fact_lines(
            (name, "\n".join(text for _, text in lines))
            for name, lines in itertools.groupby(facts, key=lambda fact: fact[0])
        )
    )


main = partial(run_command, inspect)
