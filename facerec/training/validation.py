"""Verification packs during training: the images are shared out over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from torch import nn

from facerec.embedding.engines import Precision
from facerec.embedding.extraction import draw_faces, embed_images
from facerec.embedding.placement import SAMPLE, alike_words, better_placement
from facerec.embedding.torch_model import TorchModel
from facerec.errors import PackError
from facerec.training.distributed import Processes
from facerec.training.recipe import Recipe, Validation
from facerec.verification import (
    Bench,
    VerificationResult,
    evaluate_embeddings,
    find_pack,
    pack_bench,
)


def without_missing(validation: Validation) -> tuple[Validation, str | None]:
    """Return the validation on those packs that are there, and a note on the others, if any."""
    found, missing = [], {}
    for name in validation.benches:
        try:
            find_pack(name, validation.data)
            found.append(name)
        except PackError as error:
            missing[name] = error
    if not missing:
        return validation, None
    rest = f"on {', '.join(found)} alone" if found else "without validation and best.safetensors"
    note = (
        f"{next(iter(missing.values()))}; {', '.join(missing)} missing, so the run goes {rest} "
        "(in training the folder is --validation.data)"
    )
    return replace(validation, benches=tuple(found)), note


class PackValidator:
    """Scores the packs of a recipe with the backbone as it is.

    Each rank embeds every W-th distinct image; all ranks gather the embeddings and compute the same
    figures, which are those of a single process and, but for the bootstrapped intervals, those of
    ``facerec verify``.

    Args:
        recipe: names the packs and how to preprocess.
        processes: this rank among its peers.
        batch_size: images per forward pass.

    Raises:
        PackError: packs are missing, or one is malformed; nothing is skipped.
    """

    def __init__(self, recipe: Recipe, processes: Processes, batch_size: int = 64) -> None:
        self.recipe, self.processes, self.batch_size = recipe, processes, batch_size
        self.benches: dict[str, Bench] = {
            name: pack_bench(find_pack(name, recipe.validation.data))
            for name in recipe.validation.benches
        }

    def __call__(
        self, backbone: nn.Module, precision: Precision = "fp32"
    ) -> dict[str, VerificationResult]:
        """Return the result of each pack, the same on all ranks.

        Args:
            backbone: the module in training; its modes are put back afterwards.
            precision: of its products; that of `facerec verify` is float32.
        """
        model = TorchModel(
            backbone, self.recipe.preprocessing, batch_size=self.batch_size, precision=precision
        )
        return {
            name: replace(self._score(model, bench), name=name)
            for name, bench in self.benches.items()
        }

    def misplaced(
        self, backbone: nn.Module, results: Mapping[str, VerificationResult]
    ) -> Iterator[str]:
        """Yield sentences on packs whose crops lie elsewhere than the network expects them.

        Two signs must agree, as a small or half-trained network shows either on crops that lie
        well: different people are too much alike, and norms are larger at another place.

        Args:
            backbone: the module in training.
            results: what this returned of it.
        """
        model = TorchModel(backbone, self.recipe.preprocessing, batch_size=self.batch_size)
        for name, bench in self.benches.items():
            others = results[name].non_mated_scores
            if others.size and alike_words(float(others.mean())):
                every = np.arange(len(bench.images))
                if said := better_placement(model, draw_faces(model, bench.images, every, SAMPLE)):
                    yield f"{name}: {said}"

    def _score(self, model: TorchModel, bench: Bench) -> VerificationResult:
        rank, world = self.processes.rank, self.processes.world_size
        share = embed_images(
            model,
            bench.images,
            flip=self.recipe.validation.flip,
            batch_size=self.batch_size,
            indices=np.arange(rank, len(bench.images), world),
        )
        shares = self.processes.gather_objects((share.vectors, share.norms))
        vectors = np.empty((len(bench.images), model.embedding_size), np.float32)
        norms = np.empty(len(bench.images), np.float32)
        for peer, (their_vectors, their_norms) in enumerate(shares):
            vectors[peer::world], norms[peer::world] = their_vectors, their_norms
        whole = replace(share, vectors=vectors, norms=norms, ids=bench.images.ids)
        # A bootstrap at every validation would say nothing that a trend over steps does not.
        return evaluate_embeddings(whole, bench)
