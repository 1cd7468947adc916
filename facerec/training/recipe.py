"""The recipe: one frozen dataclass tree that says everything about a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from facerec.backbones import Backbone, Preprocessing
from facerec.base.errors import RecipeError
from facerec.base.limits import Checked, Count, Limits, NonNegative, Positive, Rest, Seed, Share
from facerec.heads.margins import ArcFace, Margin
from facerec.heads.norm_regularizer import NormPenalty
from facerec.records.training_set import Data
from facerec.training.distillation import Distillation
from facerec.training.finetuning import Finetune
from facerec.training.network import DataParallel
from facerec.training.optimization import SGD, Cosine, MultiStep, Optimizer, Polynomial

INIT = "init"
"""The ``backbone.name`` that stands for the network that `Init.path` holds."""


@dataclass(frozen=True)
class Head(Checked):
    """The class centres."""

    center_init: Literal["unit", "normal", "xavier"] = "unit"
    """How class centres start: with unit norm, drawn from N(0, 0.01²) as InsightFace does, or by
    Xavier's normal. The angular step of a centre goes with 1/‖w‖², so this is part of the learning
    rate."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Numbers in the matrix products with all centres; cosines to the own centre, and sums, are
    float32 either way. bf16 is for devices that compute in it."""
    centers_per_class: Annotated[int, Limits(1, 64)] = 1
    """Centres of each class, of which the nearest to a face counts (Sub-center ArcFace): with 2 or
    3, wrong and odd images of a class gather at one of their own and pull less at the others."""
    sample_rate: Share = 1.0
    """Share of the classes that take part in a step: those of the batch, and others at random
    (Partial FC). Below 1 a step's work and gradients follow this share; centres that take no part
    do not decay. 0.1 to 0.3 are published for a million subjects and more."""
    kernel: Literal["auto", "torch", "triton"] = "auto"
    """What computes the softmax over all centres: operations of torch, or kernels of Triton, which
    need CUDA and the extra gpu. With auto both are timed on a GPU before the first step and the
    faster one is taken; with deterministic, and elsewhere, it is torch."""


@dataclass(frozen=True)
class Validation(Checked):
    """Verification packs scored during training."""

    benches: tuple[str, ...] = ()
    """Verification packs to score, by name (lfw, cfp_fp, agedb_30, …); without any there is no
    validation."""
    data: Path | None = None
    """Folder that holds the packs; by default FACEREC_DATA and data/ are searched."""
    every_epochs: Count = 1
    """Epochs between two validations; the end of training always has one. They run in bf16 where
    training does."""
    every_steps: Count | None = None
    """Optimizer steps between two validations, in place of every_epochs. Each has a checkpoint."""
    flip: bool = True
    """Sum the raw embeddings of each image and its mirror image."""


@dataclass(frozen=True)
class Checkpoints(Checked):
    """What is kept to go on from after an interruption."""

    every_steps: Count = 2000
    """Optimizer steps between two checkpoints; the end of an epoch, SIGTERM and Ctrl-C save one
    too."""
    keep: Count = 2
    """Number of the last checkpoints to keep. They are written while training goes on, from a copy
    of the state in main memory: the backbone and this process's class centres, each with its
    optimizer state (iResNet-50 and 93,431 classes with SGD: 0.73 GB in one process)."""


@dataclass(frozen=True)
class Init(Checked):
    """What training starts from: by default a seed, else weights that were trained before."""

    path: Path | None = None
    """Weights to start from: a run's folder, a .safetensors that facerec wrote, or weights from
    elsewhere (.pth, .ckpt, …); without, all are drawn from the seed. With backbone.name init the
    network is theirs, and so is the preprocessing unless the recipe sets it."""
    strict: bool = True
    """Every tensor has to fit; with no-strict those that fit by name and shape are taken, and the
    rest is drawn."""
    head: Literal["fresh", "class_means"] = "fresh"
    """How class centres start: drawn as always, or each along the mean embedding that the starting
    network gives of its class's training images, not augmented."""


@dataclass(frozen=True)
class Recipe(Checked):
    """One training run.

    Every field can be set on the command line by its dotted name, `--optimizer.lr 0.05`.
    """

    data: Data = field(default_factory=lambda: Data(Path("data/train")))
    sampling: Literal["shuffle", "balanced"] = "shuffle"
    """Order of images: shuffle visits every image once in an epoch, or as often as the weight of
    its set says; balanced takes subjects in turn, however many images each has, and the images of
    each in turn."""
    backbone: Backbone = field(default_factory=Backbone)
    margin: Margin | None = field(default_factory=ArcFace)
    """The head's margin; None has no head and needs no labels, and learns from a teacher alone."""
    regularizer: NormPenalty | None = None
    terms: tuple[tuple[str, NonNegative], ...] = ()
    """Pairs of a name and a weight: losses of your own beside these, such as spread 0.5."""
    head: Head = field(default_factory=Head)
    optimizer: Optimizer = field(default_factory=SGD)
    schedule: Polynomial | Cosine | MultiStep = field(default_factory=Polynomial)
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    validation: Validation = field(default_factory=Validation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    batch_size: Count = 1024
    """Images in one optimizer step, over all processes together."""
    accumulation: Count = 1
    """Parts that a batch is computed in, to save memory. The result equals that of the whole batch,
    but for the statistics of batch norms and AdaFace's averages of norms, which take in one part
    after the other."""
    epochs: Count = 20
    """Passes over the training images; the last, incomplete batch of an epoch is dropped."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Numbers that the backbone computes in: auto is bf16 where the device has it, else fp32; fp16
    adds a gradient scaler. Penalties are float32; heads have a field of their own."""
    data_parallel: DataParallel = field(default_factory=DataParallel)
    compile: bool | Literal["auto"] = "auto"
    """Use torch.compile for normalisation and backbone: faster steps after a minute or so of
    compiling. With auto that is so on a GPU."""
    recompute: bool = False
    """Keep only the inputs of the backbone's blocks and compute their inside again in backward:
    far less memory for a third more work."""
    clip_norm: Positive | None = 5.0
    """Largest gradient norm of all the backbone's parameters together; None does not clip."""
    deterministic: bool = False
    """On a GPU, use only algorithms that give the same bits every time, not the fastest, so that a
    resumed run can equal one that was never stopped."""
    tf32: bool = False
    """On a GPU, round what goes into float32 products, those of the head too, to ten bits (TF32):
    several times faster. bf16 and fp16 are as they are, and validation does without."""
    workers: Annotated[int, Limits(0, 1024)] = 2
    """Processes that read and decode images, for each training process; 0 decodes in the training
    process itself."""
    log_every: Count = 10
    """Optimizer steps between two lines of metrics.jsonl; an epoch's last step has one as well."""
    logger: str | None = None
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow or trackio, each an extra,
    or module:Class of your own with start, log and end, see docs/training.md."""
    seed: Seed = 0
    """Seed of weights, data order and augmentation."""
    distillation: Distillation | None = None
    """A teacher whose embeddings are learned."""
    init: Init = field(default_factory=Init)
    finetune: Finetune = field(default_factory=Finetune)
    ema: Rest | None = None
    """Keep a moving average of the backbone's weights, which is validated and saved as the model
    (the weights themselves go into raw.safetensors): its weight against the newest ones after a
    step, such as 0.999; it begins smaller. None keeps no average."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for sentence, found in self._conflicts().items():
            if found:
                raise RecipeError(sentence)
        self.micro_batch(1)

    def _conflicts(self) -> dict[str, bool]:
        """Return a sentence for each thing that makes no sense, and whether it is there."""
        taught, init, also = self.distillation, self.init, self.data.also
        mixup, views = (taught.mixup, taught.views) if taught is not None else (0.0, 0)
        alone, resting = self.margin is None, self.finetune.freeze_steps != 0
        theirs, means = self.backbone.name == INIT, init.head == "class_means"
        balanced = self.sampling == "balanced"
        strangers = not all(further.labelled for further in also)
        weighted = any(further.weight != 1 for further in also)
        return {
            "there is nothing to learn; give a margin or a distillation": alone and taught is None,
            "distillation.mixup blends fixed views, and distillation.views is 0; set how many": (
                mixup > 0 and not views
            ),
            "distillation.mixup blends two people into one image, which a margin takes for one of "
            "them; set margin to None, or mixup to 0": mixup > 0 and not alone,
            "init.head class_means and finetune.freeze_steps are about class centres, and without "
            "a margin there are none; leave them out": alone and (means or resting),
            "init says how to start from weights, but not from which; set init.path too": (
                init.path is None and (means or theirs or not init.strict)
            ),
            "backbone.name init takes the whole section from init.path; leave out its other fields "
            "or the name": theirs and self.backbone != Backbone(INIT),
            "images of data.also without a label teach nothing without a teacher, and are not seen "
            "where subjects take turns; give a distillation and sampling shuffle": (
                strangers and (taught is None or balanced)
            ),
            "sampling balanced visits all subjects alike, so that sets cannot have a weight; leave "
            "those of data.also at 1, or choose shuffle": balanced and weighted,
        }

    def micro_batch(self, ranks: int) -> int:
        """Return how many images of a rank go through the backbone together.

        Raises:
            RecipeError: the batch does not divide among so many ranks and the micro-batches, or
                leaves single images, which the last batch norm cannot average.
        """
        share, rest = divmod(self.batch_size, ranks * self.accumulation)
        if rest:
            raise RecipeError(
                f"batch_size {self.batch_size} does not divide among {ranks} ranks × accumulation "
                f"{self.accumulation}; change one of the three"
            )
        learns = self.finetune.freeze_steps is not None and self.finetune.batch_norm == "train"
        if share == 1 and learns and self.backbone.embedding_bn != "none":
            raise RecipeError(
                "a micro-batch of a rank has a single image, over which the last batch norm cannot "
                "average; set a larger batch_size, or fewer ranks or a smaller accumulation"
            )
        return share
