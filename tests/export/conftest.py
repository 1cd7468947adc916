"""Small models for all tests of exports, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from facerec.backbones import Backbone, Preprocessing, create_backbone, normalize
from facerec.embedding import TorchModel
from facerec.export import export_graph, sample_faces

MakeModel = Callable[..., TorchModel]
Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def faces() -> np.ndarray:
    """Generated faces, uint8 RGB ``(32, 112, 112, 3)``."""
    return sample_faces(32)


@pytest.fixture(scope="session")
def make_model(faces: np.ndarray) -> MakeModel:
    """Build a model whose batch norms have seen faces, so that its embeddings tell them apart."""

    def make(config: Backbone, preprocessing: Preprocessing | None = None) -> TorchModel:
        preprocessing = preprocessing or Preprocessing()
        backbone = create_backbone(config, seed=3)
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for module in backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.momentum = None
                    module.bias.normal_(0, 0.2, generator=generator)
                    if module.weight.requires_grad:
                        module.weight.uniform_(0.5, 1.5, generator=generator)
                elif isinstance(module, nn.PReLU):
                    module.weight.uniform_(0.0, 0.5, generator=generator)
        # Dropout is drawn alike in every process, as they share what is made of the model.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            backbone.train()(normalize(torch.from_numpy(faces), preprocessing))
        return TorchModel(backbone, preprocessing, config=config, name="tiny")

    return make


@pytest.fixture(scope="session")
def tiny_model(make_model: MakeModel) -> TorchModel:
    """An iResNet-18 of an eighth of the width, in training mode."""
    return make_model(Backbone("iresnet18", embedding_size=32, width=0.125, dropout=0.3))


@pytest.fixture(scope="session")
def tiny_note() -> dict[str, Any]:
    """What `tiny_onnx` says about itself, its preprocessing excepted."""
    return {"format": 1, "name": "tiny", "embedding_size": 32, "image_size": [112, 112]}


@pytest.fixture(scope="session")
def tiny_onnx(once: Once, tiny_model: TorchModel, tiny_note: dict[str, Any]) -> bytes:
    """The export of `tiny_model`."""

    def export(folder: Path) -> None:
        content = export_graph(tiny_model.backbone, tiny_model.preprocessing, note=tiny_note)
        (folder / "model.onnx").write_bytes(content)

    return (once("tiny_onnx", export) / "model.onnx").read_bytes()
