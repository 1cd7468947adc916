"""Verification packs during training: the images are shared out over the ranks."""

from __future__ import annotations

import numpy as np
from torch import nn

from facerec.embedding.extract import extract
from facerec.embedding.model import TorchModel
from facerec.records.decode import decode_image
from facerec.records.packs import Pack, read_pack
from facerec.training.distributed import Processes
from facerec.training.recipe import Recipe
from facerec.verification import VerificationResult, evaluate, find_pack


class PackValidator:
    """Scores the packs of a recipe with the backbone as it is.

    Each rank embeds every W-th distinct image; all ranks gather the embeddings and compute the same
    figures, which are those of a single process.

    Args:
        recipe: names the packs and how to preprocess.
        processes: this rank among its peers.
        batch_size: images per forward pass.

    Raises:
        PackError: a pack is missing or malformed; nothing is skipped.
    """

    def __init__(self, recipe: Recipe, processes: Processes, batch_size: int = 64) -> None:
        self.recipe, self.processes, self.batch_size = recipe, processes, batch_size
        self.packs: dict[str, Pack] = {
            name: read_pack(find_pack(name, recipe.validation.data))
            for name in recipe.validation.benches
        }

    def __call__(self, backbone: nn.Module) -> dict[str, VerificationResult]:
        """Return the result of each pack, the same on all ranks, in float32 as `facerec verify`.

        Args:
            backbone: the module in training; its modes are put back afterwards.
        """
        model = TorchModel(
            backbone, self.recipe.preprocessing, self.processes.device, batch_size=self.batch_size
        )
        return {name: self._score(model, name, pack) for name, pack in self.packs.items()}

    def _score(self, model: TorchModel, name: str, pack: Pack) -> VerificationResult:
        rank, world = self.processes.rank, self.processes.world_size
        distinct, inverse = pack.distinct()
        mine = distinct[rank::world]

        def image(i: int) -> np.ndarray:
            return decode_image(pack.encoded(int(mine[i])), f"{pack.path}, image {mine[i]}")

        found = extract(
            model, image, len(mine), flip=self.recipe.validation.flip, batch_size=self.batch_size
        )
        shares = self.processes.gather_objects((found.vectors, found.norms))
        vectors = np.empty((len(distinct), shares[0][0].shape[1]), np.float32)
        norms = np.empty(len(distinct), np.float32)
        for peer, (their_vectors, their_norms) in enumerate(shares):
            vectors[peer::world], norms[peer::world] = their_vectors, their_norms
        return evaluate(
            vectors[inverse],
            pack.issame,
            name=name,
            norms=norms[inverse],
            flip=self.recipe.validation.flip,
            images=inverse,
        )
