"""Features of photos by the trunk of a comparison, as it is before training: for `FeatureData`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import facerec
from facerec.comparison.fit import Trainer
from facerec.comparison.image_sets import ImageData, open_image_set
from facerec.comparison.protocol import Comparison
from facerec.comparison.transforms import BatchReader
from facerec.comparison.trunks import create_trunk
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings
from facerec.errors import RecipeError
from facerec.files import sha256
from facerec.progress import Progress
from facerec.recipe import to_dict

_BATCH = 64


def write_features(
    comparison: Comparison,
    path: Path,
    second_views: Path | None,
    device: torch.device,
    progress: Progress | None = None,
) -> int:
    """Write what the trunk of a comparison, without its embedder, makes of all its photos.

    Classes are written as their numbers from 1, whose order decides who trains and who tests.

    Args:
        comparison: on images; its common protocol has trunk and transform.
        path: ``.npz`` or ``.parquet``; of every photo as it is scored.
        second_views: the same of a random variant each, as it would be trained on; None for none.
        device: where to compute.
        progress: called after each batch.

    Returns:
        the number of photos.

    Raises:
        FacerecError: a comparison without photos or without weights, or images, weights or a file
            that fail.
    """
    files = [path] if second_views is None else [path, second_views]
    if len({file.resolve() for file in files}) < len(files) or not all(
        file.suffix.lower() in (".npz", ".parquet") for file in files
    ):
        raise RecipeError(
            f"{', '.join(map(str, files))}: features are written to files that end in .npz or "
            ".parquet, one for each view; name such files"
        )
    protocol, data = comparison.protocol, comparison.data
    if not isinstance(data, ImageData) or protocol.transform is None:
        raise RecipeError(
            f"{comparison.name}: features are written of photos and by a trunk for them; take a "
            "recipe such as papers/reality_check_photos, and name photos with --data"
        )
    if protocol.trunk.weights is None:
        raise RecipeError(
            f"{comparison.name}: the trunk {protocol.trunk.name} has no weights, and features of "
            "drawn ones tell nothing; name a file in trunk.weights"
        )
    images = open_image_set(data)
    network = create_trunk(protocol.trunk, comparison.seed).to(device).eval().trunk
    trainer, reader = Trainer(images, device), BatchReader(images, protocol.transform)
    # Whatever precision is trained in: all later figures rest on these.
    exact = replace(protocol, precision="fp32")

    def scored(part: NDArray[np.int64]) -> NDArray[np.float32]:
        return trainer.embed(network, part, exact)

    @torch.no_grad()
    def varied(part: NDArray[np.int64]) -> NDArray[np.float32]:
        pixels = reader.train(part, comparison.seed, epoch=0)
        values: Tensor = network(reader.normalize(pixels.to(device)))
        return values.float().cpu().numpy()

    parts = np.split(np.arange(len(images)), range(_BATCH, len(images), _BATCH))
    for file, view in zip(files, (scored, varied), strict=False):
        rows: list[NDArray[np.float32]] = []
        for part in parts:
            rows.extend(view(part))
            if progress is not None:
                progress(f"features: {file.name}", len(rows), len(images))
        vectors = np.stack(rows)
        note = {
            "facerec": facerec.__version__,
            "trunk": to_dict(protocol.trunk),
            "weights_sha256": sha256(protocol.trunk.weights),
            "transform": to_dict(protocol.transform),
            "view": "scored" if view is scored else "training",
            "source": images.fingerprint(),
        }
        write_embeddings(
            file,
            Embeddings(
                vectors,
                np.linalg.norm(vectors, axis=1),
                flip=False,
                ids=images.ids,
                subjects=(images.labels + 1).astype(np.str_),
                note=note,
            ),
        )
    return len(images)
