"""A teacher's embeddings of all training images: made once, kept in a file, read by the loaders.

The teacher sees every picture before the first step. Its raw embeddings lie in one file, an array
``(images, views, T)`` of float16 that any number of processes and runs map into memory; a batch
takes its rows from there while it is loaded. What a file belongs to (the teacher's bytes and
preprocessing, the bytes of the images, the views) is hashed into its folder's name.

An interrupted pass goes on where it was: blocks of rows are flushed to the disk and then listed, by
each rank in a list of its own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import io
import json
import math
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from facerec.backbones import Backbone, Preprocessing
from facerec.embedding.model import EmbeddingModel, load_model
from facerec.errors import FacerecError, ModelError, RecipeError, TrainingError
from facerec.files import (
    atomic_path,
    exclusive,
    full_disk_sentence,
    open_file,
    parse_json,
    read_file,
    write_json,
)
from facerec.heads.distillation_loss import DistillationKind
from facerec.limits import Checked, Limits, NonNegative, Probability
from facerec.progress import Progress
from facerec.recipe import to_dict
from facerec.records.augment import Augmentation
from facerec.records.dataset import Batch, BatchLoader, BatchRequest, FaceDataset
from facerec.training.distributed import Processes

FORMAT = 1
ARRAY_FILE = "embeddings.npy"
NOTE_FILE = "teacher.json"
"""Written last: an embedding file without it is not whole."""

_ROWS_PER_BLOCK = 512  # pictures, after which the pass could go on


@dataclass(frozen=True)
class Distillation(Checked):
    """Learn a teacher's embeddings, beside the margin or instead of it (``margin`` None)."""

    teacher: Path
    """An .onnx file, a run, a bundle or a .safetensors file, of any embedding size."""
    weight: NonNegative = 1.0
    """Factor on the loss."""
    loss: DistillationKind = "cosine"
    """cosine: 1 − the cosine to the teacher's embedding; mse: squared distance, norms included;
    relation: squared difference of the cosines of all pairs of the batch."""
    views: Annotated[int, Limits(0, 10_000)] = 0
    """Fixed augmentations of each image, each embedded by the teacher as the network sees it; epoch
    e shows number e modulo views. 0: the teacher embeds image and mirror image, and whatever else
    augmentation does to one of them leaves its target."""
    mixup: Probability = 0.0
    """Share of the views that are blends of an image and up to half of another one, which shows the
    network far more than the faces that there are (Beyer et al., CVPR 2022); needs views, and no
    margin beside it."""
    preprocessing: Preprocessing | None = None
    """What the teacher's pixels must go through, where an .onnx file does not say so itself."""
    cache: Path = Path("runs/teachers")
    """Folder of the embedding files, which runs with the same teacher and images share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixup and not self.views:
            raise RecipeError(
                "distillation.mixup blends fixed views, and distillation.views is 0; set how many"
            )

    @property
    def pictures(self) -> int:
        """Pictures of each image that the teacher embeds."""
        return self.views or 2


class TeacherTargets:
    """The embeddings in a whole file; workers map the same memory.

    Args:
        folder: holds the array and its note.

    Attributes:
        path: of the array.
        note: what the file belongs to, and ``scale``.
        shape: images, views, dimensions.

    Raises:
        TrainingError: damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ARRAY_FILE
        advice = f"delete {folder} to have it made again"
        try:
            self.note: dict[str, Any] = parse_json(read_file(folder / NOTE_FILE))
            self.shape: tuple[int, int, int] = self._array.shape
            self.scale = float(self.note["scale"])
            whole = self.path.stat().st_size == self.note["bytes"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise TrainingError(f"{folder}: cannot be read ({error}); {advice}") from error
        if not whole or self._array.dtype != np.float16 or len(self.shape) != 3:
            raise TrainingError(
                f"{self.path}: not the array of embeddings that {NOTE_FILE} tells of; {advice}"
            )

    @property
    def size(self) -> int:
        """Dimensions of the teacher's embeddings."""
        return self.shape[2]

    @functools.cached_property
    def _array(self) -> NDArray[np.float16]:
        mapped: NDArray[np.float16] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return mapped

    def __getstate__(self) -> dict[str, Any]:
        # Spawned workers map the file themselves; pickling would copy it.
        return {name: value for name, value in self.__dict__.items() if name != "_array"}

    def rows(self, indices: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
        """Return raw embeddings, float32 ``(B, T)``.

        Args:
            indices: of the images, int64 ``(B,)``.
            views: which of their pictures, int64 ``(B,)``.
        """
        return torch.from_numpy(self._array[indices.numpy(), views.numpy()].astype(np.float32))


class TaughtDataset(Dataset):
    """Batches of a data set with the teacher's targets.

    Args:
        dataset: the images; gets the views of the recipe.
        config: says which views.
        targets: of the same images.
    """

    def __init__(self, dataset: FaceDataset, config: Distillation, targets: TeacherTargets) -> None:
        self.dataset, self.targets = dataset, targets
        dataset.views, dataset.mixup = config.views, config.mixup

    def __getitems__(self, request: BatchRequest) -> Batch:
        """Return the augmented images of a request; see `FaceDataset.__getitems__`."""
        batch = self.dataset.__getitems__(request)
        assert batch.views is not None
        batch.targets = self.targets.rows(batch.indices, batch.views)
        return batch


def distillation_warnings(
    config: Distillation, backbone: Backbone, targets: TeacherTargets
) -> list[str]:
    """Return one sentence for each doubtful choice of student and teacher."""
    sentences = []
    if assumed := targets.note.get("assumed"):
        sentences.append(
            f"{config.teacher} does not say which {', '.join(assumed)} its pixels need, so usual "
            "values are taken; give them as distillation.preprocessing if you know better"
        )
    direct = config.loss != "relation" and backbone.embedding_size == targets.size
    if direct and backbone.embedding_bn == "frozen_gamma":
        sentences.append(
            "the last BatchNorm (embedding_bn='frozen_gamma') gives all dimensions of an embedding "
            "the same spread, which the teacher's do not have; choose embedding_bn='affine'"
        )
    return sentences


def teacher_targets(
    config: Distillation,
    dataset: FaceDataset,
    processes: Processes,
    *,
    workers: int = 0,
    progress: Progress | None = None,
) -> TeacherTargets:
    """Open the teacher's embeddings of a data set, or make them; all ranks share the work.

    Args:
        config: the teacher and the views.
        dataset: the images, with their augmentation.
        processes: this rank among its peers, which all see the same files.
        workers: processes per rank that decode.
        progress: called with the images read, and the pictures that this rank has done.

    Raises:
        ModelError: the teacher cannot be read, takes images of another size, or gives embeddings
            that are not finite or zero.
        FacerecError: an image is damaged, or the file cannot be written.
    """
    teacher = _open_teacher(config, dataset, processes)
    facts = {
        "format": FORMAT,
        "teacher": teacher.sha256,
        "preprocessing": to_dict(teacher.preprocessing),
        "data": processes.on_main(lambda: _sha256_of_images(dataset, progress)),
        "images": len(dataset),
        "image_size": list(dataset.image_size),
        "views": config.views,
        "augmentation": _changes(dataset.augmentation) if config.views else None,
        **({"mixup": config.mixup} if config.mixup else {}),
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    folder = Path(config.cache) / f"{_plain(teacher.name)}-{key[:12]}"
    pictures = _Pictures(dataset, config)
    with contextlib.ExitStack() as stack:

        def prepare() -> bool:
            if folder.exists():
                return False
            stack.enter_context(exclusive(folder, TrainingError))
            return not folder.exists()  # somebody else may just have finished

        if processes.on_main(prepare):
            work = _Pass(folder, teacher, pictures, (len(dataset), config.pictures), processes)
            work.run(workers, progress)
            processes.on_main(lambda: work.finish(facts))
    targets = TeacherTargets(folder)
    if any(targets.note.get(name) != value for name, value in facts.items()):
        raise TrainingError(
            f"{folder}: its {NOTE_FILE} tells of another teacher or other images than those of "
            "this run; delete the folder to have the embeddings made again"
        )
    return targets


def _sha256_of_images(dataset: FaceDataset, progress: Progress | None) -> str:
    """Hash the bytes of all images in their order, whatever their names and wherever they lie."""
    digest = hashlib.sha256()
    for i in range(len(dataset)):
        try:
            image = hashlib.sha256(dataset.encoded(i)).digest()
        except FacerecError:
            if dataset.on_error == "error":
                raise
            image = b"damaged"
        digest.update(image)
        if progress is not None and (i + 1) % 1000 == 0:
            progress("reading images, whose teacher's embeddings may be there", i + 1, len(dataset))
    return digest.hexdigest()


def _changes(augmentation: Augmentation) -> dict[str, Any]:
    """Return its fields but for an affine change that never happens, which older files lack."""
    changes: dict[str, Any] = to_dict(augmentation)
    if not augmentation.affine:
        del changes["affine"]
    return changes


def _open_teacher(
    config: Distillation, dataset: FaceDataset, processes: Processes
) -> EmbeddingModel:
    """Load the teacher on this rank's device."""
    asked = {} if config.preprocessing is None else asdict(config.preprocessing)
    device = str(processes.device)
    if Path(config.teacher).suffix == ".onnx" and not (
        processes.device.type == "cuda" and _has_cuda_engine()
    ):
        device = "cpu"
    teacher = load_model(config.teacher, device=device, **asked)
    if teacher.image_size != dataset.image_size:
        sizes = " and ".join(
            "×".join(map(str, s)) for s in (teacher.image_size, dataset.image_size)
        )
        raise ModelError(
            f"{config.teacher}: teacher and training images must have one size, found {sizes} "
            "pixels; take another teacher"
        )
    return teacher


def _has_cuda_engine() -> bool:
    """Tell whether the onnxruntime that is installed can compute on a GPU."""
    try:
        import onnxruntime
    except ImportError:
        return False
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


class _Pictures(Dataset):
    """All pictures that a teacher sees; the epoch of a request is the number of the view."""

    def __init__(self, dataset: FaceDataset, config: Distillation) -> None:
        self.views = [copy.copy(dataset) for _ in range(1 if config.views else 2)]
        for number, view in enumerate(self.views):
            view.views, view.mixup = config.views, config.mixup
            if not config.views:  # as it is, and mirrored
                view.augmentation = Augmentation(flip=float(number))

    def __getitems__(self, request: BatchRequest) -> Batch:
        if len(self.views) == 1:
            return self.views[0].__getitems__(request)
        return self.views[request.epoch].__getitems__(BatchRequest(0, request.indices))

    def where(self, index: int) -> str:
        return self.views[0].where(index)


class _Pass:
    """The teacher's look at all pictures, in blocks of rows that this rank and its peers share.

    The hidden folder beside the final one holds the array, of full size from the beginning, and for
    each rank a list of finished blocks.
    """

    def __init__(
        self,
        folder: Path,
        teacher: EmbeddingModel,
        pictures: _Pictures,
        shape: tuple[int, int],
        processes: Processes,
    ) -> None:
        self.folder, self.unfinished = folder, folder.with_name(f".{folder.name}.part")
        self.teacher, self.pictures, self.processes = teacher, pictures, processes
        self.images, self.views = shape
        self.block = max(1, _ROWS_PER_BLOCK // self.views)
        self.shape = (self.images, self.views, teacher.embedding_size)
        self.path = self.unfinished / ARRAY_FILE
        self.row_bytes = self.views * teacher.embedding_size * 2
        self.start = 0  # of the numbers in the file

    def run(self, workers: int, progress: Progress | None) -> None:
        """Embed what is missing; an error of any rank is raised on all."""
        self.start, missing = self.processes.on_main(self._begin)
        own = missing[self.processes.rank :: self.processes.world_size]
        outcome: FacerecError | None = None
        try:
            self._embed(own, workers, progress)
        except FacerecError as error:
            outcome = error
        except OSError as error:
            outcome = TrainingError(full_disk_sentence(self.path, error))
        for failure in self.processes.gather_objects(outcome):
            if isinstance(failure, ModelError) and self.processes.is_main:
                shutil.rmtree(self.unfinished, ignore_errors=True)  # a teacher that is of no use
            if failure is not None:
                raise failure

    def finish(self, facts: dict[str, Any]) -> None:
        """Give the folder its name, with a note on what it holds."""
        array = np.load(self.path, mmap_mode="r")
        count, total, smallest, largest = 0, 0.0, math.inf, -math.inf
        for rows in range(0, len(array), 4096):
            vectors = array[rows : rows + 4096].astype(np.float64)
            vectors = vectors[~np.isnan(vectors[..., 0])]
            count += len(vectors)
            total += float(np.square(vectors).sum())
            smallest = min(smallest, float(vectors.min(initial=math.inf)))
            largest = max(largest, float(vectors.max(initial=-math.inf)))
        mean_square = total / max(count * self.teacher.embedding_size, 1)
        note = {
            **facts,
            "assumed": list(self.teacher.assumed),
            "path": str(self.teacher.path),
            "bytes": self.path.stat().st_size,
            "pictures": count,
            # To a mean square of 1 in a dimension.
            "scale": 1 / math.sqrt(mean_square),
        }
        write_json(self.unfinished / NOTE_FILE, note)
        for path in self._lists():
            path.unlink()
        self.unfinished.rename(self.folder)

    def _begin(self) -> tuple[int, list[int]]:
        """Make or check the array; return where its numbers begin, and the missing blocks."""
        self.unfinished.mkdir(parents=True, exist_ok=True)
        head = io.BytesIO()
        description = {"descr": "<f2", "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(head, description)
        self.start = head.tell()
        if not self._is_begun(head.getvalue()):
            for path in self._lists():
                path.unlink()
            with atomic_path(self.path, TrainingError) as temporary, temporary.open("wb") as file:
                file.write(head.getvalue())
                file.truncate(self.start + self.images * self.row_bytes)
        text = "".join(read_file(path).decode("ascii", "replace") for path in self._lists())
        done = set(re.findall(r"^(\d+)\n", text, re.MULTILINE))  # a torn line has no end
        blocks = range(-(-self.images // self.block))
        return self.start, [block for block in blocks if str(block) not in done]

    def _is_begun(self, head: bytes) -> bool:
        if not self.path.is_file():
            return False
        with open_file(self.path) as file:
            return file.read(len(head)) == head

    def _embed(self, blocks: Sequence[int], workers: int, progress: Progress | None) -> None:
        if not blocks:
            return
        requests = [
            BatchRequest(view, np.arange(*self._range(block)))
            for block in blocks
            for view in range(self.views)
        ]
        batches = iter(BatchLoader(self.pictures, requests, workers=workers))
        total = sum(len(request.indices) for request in requests)
        done = 0
        mine = self.unfinished / f"finished.{self.processes.rank}.txt"
        with (
            open_file(self.path, "r+b") as file,
            open_file(mine, "a", encoding="ascii") as finished,
        ):
            for block in blocks:
                first, last = self._range(block)
                rows = np.empty((last - first, *self.shape[1:]), np.float16)
                for view in range(self.views):
                    batch = next(batches)
                    rows[:, view] = self._vectors(batch, first, last)
                    done += last - first
                    if progress is not None:
                        progress("the teacher looks at the images", done, total)
                file.seek(self.start + first * self.row_bytes)
                file.write(rows.tobytes())
                file.flush()
                os.fsync(file.fileno())
                finished.write(f"{block}\n")
                finished.flush()
                os.fsync(finished.fileno())

    def _vectors(self, batch: Batch, first: int, last: int) -> NDArray[np.float16]:
        """Embed a batch; rows of images that could not be decoded are NaN, which no batch has."""
        vectors = self.teacher.embed(batch.images.numpy())
        asked = np.arange(first, last)
        replaced = batch.indices.numpy() != asked
        with np.errstate(over="ignore"):
            stored = vectors.astype(np.float16)
        bad = np.flatnonzero(~np.isfinite(stored).all(1) | ~stored.any(1))
        if len(bad):
            where = self.pictures.where(int(batch.indices[bad[0]]))
            raise ModelError(
                f"{self.teacher.path}: the teacher's embedding of {where} is zero or holds NaN, "
                "infinity or numbers beyond 65,504; look at its preprocessing, or take another "
                "teacher"
            )
        stored[replaced] = np.nan
        return stored

    def _range(self, block: int) -> tuple[int, int]:
        return block * self.block, min((block + 1) * self.block, self.images)

    def _lists(self) -> list[Path]:
        return list(self.unfinished.glob("finished.*.txt"))


def _plain(name: str) -> str:
    """Return a name that is fit for a folder."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip(".") or "teacher"
