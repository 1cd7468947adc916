"""Verification packs during training: the images are shared out over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from torch import nn

from facerec.base.errors import PackError
from facerec.embedding.engines import Precision
from facerec.embedding.extraction import draw_faces, embed_images
from facerec.embedding.model import shifted
from facerec.embedding.placement import SAMPLE, stranger_cosine
from facerec.embedding.torch_model import TorchModel
from facerec.training.distributed import Processes
from facerec.training.recipe import Recipe, Validation
from facerec.verification import (
    Bench,
    VerificationResult,
    evaluate_embeddings,
    find_pack,
    pack_bench,
)

LESS_ALIKE = 0.03
"""Fall of the mean cosine of different people, where crops are moved, that tells of misplaced ones:
LFW's crops of 112×96, moved by 8 pixels, fall from 0.20 to 0.11 in toy networks and from 0.06 to
0.01 in a good one; crops that lie well never do."""


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
    figures, which are those of a single process and of ``facerec verify``.

    Args:
        recipe: names the packs and how to preprocess.
        processes: this rank among its peers.

    Raises:
        PackError: packs are missing, or one is malformed; nothing is skipped.
    """

    def __init__(self, recipe: Recipe, processes: Processes) -> None:
        self.recipe, self.processes = recipe, processes
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
        model = TorchModel(backbone, self.recipe.preprocessing, precision=precision)
        return {
            name: replace(self._score(model, bench), name=name)
            for name, bench in self.benches.items()
        }

    def misplaced(self, backbone: nn.Module) -> Iterator[str]:
        """Yield a sentence on each pack whose crops lie elsewhere than the network expects them.

        Different people are least alike where crops lie as in training, in small networks too,
        whose norms do not tell it.

        Args:
            backbone: the module at the end of training; before, everybody is alike.
        """
        model = TorchModel(backbone, self.recipe.preprocessing)
        for name, bench in self.benches.items():
            faces = draw_faces(model, bench.images, np.arange(len(bench.images)), SAMPLE)
            step, apart = 8 * model.image_size[0] // 112, np.arange(len(faces)).astype(np.str_)
            cosines = {
                shift: stranger_cosine(model.embed(shifted(faces, shift)), apart)
                for shift in ((0, 0), (step, 0), (-step, 0), (0, step), (0, -step))
            }
            (right, down), least = min(cosines.items(), key=lambda each: each[1])
            if least < cosines[0, 0] - LESS_ALIKE:
                yield (
                    f"{name}: its crops do not lie as those of the training set; different people "
                    f"have a mean cosine of {cosines[0, 0]:.2f}, and of {least:.2f} if crops are "
                    f"moved by {right} {down} pixels, as facerec verify --shift does"
                )

    def _score(self, model: TorchModel, bench: Bench) -> VerificationResult:
        rank, world = self.processes.rank, self.processes.world_size
        share = embed_images(
            model,
            bench.images,
            flip=self.recipe.validation.flip,
            indices=np.arange(rank, len(bench.images), world),
        )
        shares = self.processes.gather_objects((share.vectors, share.norms))
        vectors = np.empty((len(bench.images), model.embedding_size), np.float32)
        norms = np.empty(len(bench.images), np.float32)
        for peer, (their_vectors, their_norms) in enumerate(shares):
            vectors[peer::world], norms[peer::world] = their_vectors, their_norms
        whole = replace(share, vectors=vectors, norms=norms, ids=bench.images.ids)
        return evaluate_embeddings(whole, bench)
