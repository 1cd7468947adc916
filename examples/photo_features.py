"""Write what a frozen trunk makes of photos, and of a random crop of each, for ``facerec compare``.

    python examples/photo_features.py papers/reality_check_photos --data CARS196 --out features
    facerec compare papers/reality_check --features features/first.npz

The trunk, its weights and the crops are those of the recipe. ``second.npz`` goes to
``--second-views`` of losses of two views, such as SimCLR's.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from facerec.base.recipe import load_recipe
from facerec.comparison import Comparison
from facerec.comparison.image_sets import open_image_set
from facerec.comparison.transforms import BatchReader
from facerec.comparison.trunks import create_trunk
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import write_embeddings

BATCH = 64


def main() -> None:
    """Read the arguments and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    plan = load_recipe(arguments.recipe, Comparison)
    photos = open_image_set(replace(plan.data, path=arguments.data))
    reader = BatchReader(photos, plan.protocol.transform)
    network = create_trunk(plan.protocol.trunk, plan.seed, reader.size).eval().trunk.trunk
    arguments.out.mkdir(parents=True, exist_ok=True)
    everything = np.arange(len(photos))
    for name in ("first", "second"):
        rows = []
        for part in np.split(everything, range(BATCH, len(photos), BATCH)):
            if name == "first":
                (pixels,) = reader.evaluate(part, BATCH)
            else:
                pixels = reader.train(part, plan.seed, epoch=0)
            with torch.no_grad():
                rows.append(network(reader.normalize(pixels)).float().numpy())
        vectors = np.concatenate(rows)
        classes = (photos.labels + 1).astype(np.str_)  # their order decides who trains, who tests
        norms = np.linalg.norm(vectors, axis=1)
        found = Embeddings(vectors, norms, flip=False, ids=photos.ids, subjects=classes)
        write_embeddings(arguments.out / f"{name}.npz", found)


if __name__ == "__main__":
    main()
