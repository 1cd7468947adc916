"""What is to be said of a model file before it is used."""

from __future__ import annotations

from facerec.embedding.model import EmbeddingModel, OnnxModel
from facerec.embedding.onnx_file import METADATA_KEY, printable

SHOWN = 12
"""Operators and metadata entries that are listed."""


def facts(model: EmbeddingModel) -> list[tuple[str, str]]:
    """Return what a model file holds, as names and lines of text."""
    about = model.describe()
    height, width = model.image_size
    found = [
        ("file", str(model.path)),
        ("SHA-256", str(model.sha256)),
        ("runtime", f"{about['runtime']} on {about['device']}, {about['precision']}"),
        ("images", f"{width}×{height} RGB, embeddings of {model.embedding_size} numbers, raw"),
    ]
    if isinstance(model, OnnxModel):
        file = model.file
        operators = [f"{printable(kind)} {count}" for kind, count in file.operators.items()]
        more = len(operators) - SHOWN
        metadata = [
            f"{printable(key)}: {'the note of facerec' if key == METADATA_KEY else printable(text)}"
            for key, text in file.metadata.items()
        ]
        found += [
            ("size", f"{len(file.content):,} bytes, {file.parameters:,} parameters"),
            *(("weights in", printable(name)) for name in file.beside),
            ("format", f"opset {file.opset}, IR {file.ir_version}"),
            ("producer", printable(file.producer) or "not stated"),
            *(("input", str(info)) for info in file.inputs),
            *(("output", str(info)) for info in file.outputs),
            ("operators", ", ".join(operators[:SHOWN]) + (f", {more} more" if more > 0 else "")),
            *(("metadata", line) for line in metadata[:SHOWN]),
        ]
    elif about["backbone"] is not None:
        backbone = about["backbone"]
        norm = backbone["embedding_bn"]
        found.append(
            ("backbone", f"{backbone['name']}, width {backbone['width']:g}, last norm {norm}")
        )
    return found
