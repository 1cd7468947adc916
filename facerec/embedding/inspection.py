"""What is to be said of a model file before it is used."""

from __future__ import annotations

from facerec.embedding.model import EmbeddingModel, OnnxModel
from facerec.embedding.onnx_file import METADATA_KEY

SHOWN = 12
"""Entries of the metadata that are listed."""


def facts(model: EmbeddingModel) -> list[tuple[str, str]]:
    """Return what a model file holds, as names and lines of text."""
    height, width = model.image_size
    found = [
        ("file", str(model.path)),
        ("SHA-256", str(model.sha256)),
        ("runtime", f"{model.runtime} on {model.device}, {model.precision}"),
        ("images", f"{width}×{height} RGB, embeddings of {model.embedding_size} numbers, raw"),
    ]
    if isinstance(model, OnnxModel):
        file = model.file
        found += [
            ("size", f"{len(file.content):,} bytes, {file.parameters:,} parameters"),
            *(("weights in", name) for name in file.beside),
            ("format", f"opset {file.opset}, IR {file.ir_version}"),
            ("producer", file.producer[:80] or "not stated"),
            *(("input", str(info)[:200]) for info in file.inputs),
            *(("output", str(info)[:200]) for info in file.outputs),
            ("operators", ", ".join(f"{k} {n}" for k, n in file.operators.items())[:300]),
        ]
        for key, text in [*file.metadata.items()][:SHOWN]:
            shown = "the note of facerec" if key == METADATA_KEY else text
            found.append(("metadata", f"{key}: {shown}"[:120]))
    elif model.config is not None:
        found.append(("backbone", str(model.config)))
    return found
