"""What one weight of the spherical embedding constraint means on other scales, see `measures`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from measures import Row
from rich.console import Console
from torch import Tensor, nn

from facerec.backbones import Backbone, register_backbone
from facerec.comparison import Trunk
from facerec.comparison.trunks import create_trunk
from facerec.heads import SEC, ArcFace
from facerec.records import Data, FaceDataset, RecordImages
from facerec.records.synthetic import SyntheticSet, write_synthetic
from facerec.training import SGD, Cosine, Recipe
from facerec.training.distributed import Processes
from facerec.training.learner import Learner
from facerec.training.trainer import Trainer

SIZES, SCALES = (128, 512), (32.0, 64.0)

FORMS = {"absolute": SEC(weight=0.1), "scale-free": SEC(weight=0.2, scale_free=True)}
"""Two weights that mean the same at 64 dimensions and scale 32."""


@register_backbone
def shrunken_cnn(config: Backbone) -> nn.Module:
    """Make a small network that looks at a quarter of the resolution; seconds an epoch."""
    fields = {name: getattr(config, name) for name in ("embedding_size", "embedding_bn")}
    trunk = create_trunk(Trunk(name="small_cnn", **fields), seed=0, size=28)
    return nn.Sequential(nn.AvgPool2d(4), trunk)


def sec_weight(records: Path | None = None, *, epochs: int = 10, batch_size: int = 64) -> list[Row]:
    """Train small networks of two sizes at two scales with one weight of SEC, in both its forms.

    The gradient of SEC on an embedding is radial, that of the margin loss tangential, so that the
    gradient that arrives tells both. Their shares are of the second half of the training, in which
    nothing but size, scale and form differs. What the scale-free form leaves to the softmax, the
    RMS over a batch of the length of the gradient in the logits ‖p − y‖, is measured beside it:
    times this, shares would agree if it were all that is left.

    Args:
        records: a training set; by default faces are generated.
        epochs: of each training.
        batch_size: images in a step.
    """
    with TemporaryDirectory() as folder:
        if records is None:
            records = Path(folder)
            write_synthetic(records, SyntheticSet(0, 60, 20, pairs_per_fold=4), processes=1)
        dataset = FaceDataset(RecordImages(records))
        rows = []
        for name, penalty in FORMS.items():
            shares, explained = [], []
            for size in SIZES:
                for scale in SCALES:
                    margin = ArcFace(scale=scale, margin=0.3)
                    share, residual, variation = _train(
                        dataset, size, margin, penalty, epochs, batch_size
                    )
                    shares.append(share)
                    explained.append(share * residual)
                    what = f"{penalty.weight:g}, {size} dimensions, scale {scale:g}"
                    told = (
                        f"norms then vary by {100 * variation:.2f} % of their mean; the gradient "
                        f"in the logits has length {residual:.3f}"
                    )
                    name_of = f"{name} SEC of weight {what}: its gradient against the margin loss's"
                    rows.append(Row(name_of, share, "×", remark=told))
            bar = 1.1 if penalty.scale_free else None
            largest = max(shares) / min(shares)
            rows.append(Row(f"{name} SEC: largest share over smallest", largest, "×", bar))
            if penalty.scale_free:
                what = f"{name} SEC: the same, shares times the length of the gradient in logits"
                rows.append(Row(what, max(explained) / min(explained), "×"))
    return rows


def _train(
    dataset: FaceDataset, size: int, margin: ArcFace, penalty: SEC, epochs: int, batch_size: int
) -> tuple[float, float, float]:
    """Return means over the second half of the training.

    They are the share of the penalty's gradient, the length of the gradient in the logits, and the
    variation of norms.
    """
    recipe = Recipe(
        data=Data(Path()),
        backbone=Backbone("shrunken_cnn", embedding_size=size),
        margin=margin,
        regularizer=penalty,
        optimizer=SGD(lr=0.1, weight_decay=5e-4),
        schedule=Cosine(warmup_epochs=0.5),
        batch_size=batch_size,
        epochs=epochs,
        workers=0,
    )
    learner = Learner(recipe, dataset, Processes(0, 1, torch.device("cpu")))
    trainer = Trainer(learner, Path(), Console(quiet=True))
    shares: list[Tensor] = []
    residuals: list[Tensor] = []

    def watch(_: nn.Module, __: object, embeddings: Tensor) -> None:
        directions = nn.functional.normalize(embeddings.detach().float())
        residuals.append(_residual(directions, trainer.learner.head.weight, batch.labels, margin))

        def split(gradient: Tensor) -> None:
            radial = (gradient.float() * directions).sum(1)
            tangential = gradient.float() - radial[:, None] * directions
            shares.append(radial.norm() / tangential.norm())

        embeddings.register_hook(split)

    trainer.learner.backbone.register_forward_hook(watch)
    variations = []
    for batch in trainer.batches():
        figures = trainer.learner.train_step(batch)
        variations.append(figures["norm_variance"].sqrt() / figures["norm_mean"])
    half = len(shares) // 2
    share, residual, variation = (
        float(torch.stack(values[half:]).mean()) for values in (shares, residuals, variations)
    )
    return share, residual, variation


@torch.no_grad()
def _residual(directions: Tensor, centers: Tensor, labels: Tensor, margin: ArcFace) -> Tensor:
    """Return the RMS of ‖p − y‖ over a batch, for the softmax p over all classes."""
    with torch.autocast(directions.device.type, enabled=False):  # the network is within one
        cosine = directions @ nn.functional.normalize(centers).T
    own = labels[:, None]
    cosine.scatter_(1, own, margin.target_cosine(cosine.gather(1, own)))
    gradient = (margin.scale * cosine).softmax(1)
    gradient.scatter_add_(1, own, gradient.new_full(own.shape, -1.0))
    return gradient.square().sum(1).mean().sqrt()
