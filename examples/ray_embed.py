"""Embed more images than one machine should, with Ray Data: Parquet shards, each image once.

    pip install -e '.[onnx,parquet,ray]'
    python examples/ray_embed.py --model bundle --records 'shards-{000..999}.tar' --out embeddings
    facerec all-pairs --embeddings embeddings

The images are cut into blocks, and each block becomes one shard under a name that follows from its
place: whoever embeds it, and however often, the same file results, and it is there whole or not at
all. A worker that dies loses the block that it was at, which Ray gives to another one; a job that
is started again skips the shards that are there. At the end the ids in all shards are held against
those of the images. All machines must see model, images and shards under the same paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

# First, since it keeps Ray from reporting to its maker.
from facerec.commands.cli import Console, run_command  # isort: skip

import numpy as np
import pyarrow.parquet as pq
import ray
import ray.data
from numpy.typing import NDArray

from facerec.base.errors import DatasetError, FacerecError, message_line
from facerec.base.files import exclusive, parse_json, read_file, write_json
from facerec.base.progress import Progress
from facerec.base.recipe import differences
from facerec.commands import embedder
from facerec.commands.sources import Kind, Opened, open_set
from facerec.embedding.extraction import describe_embedding, embed_images
from facerec.embedding.file import write_embeddings
from facerec.embedding.model import EmbeddingModel
from facerec.embedding.parquet import JOB_FILE
from facerec.embedding.parts import job_identity
from facerec.records.shards import TAR, set_kind, shard_paths
from facerec.report.progress import progress_bar

ATTEMPTS = 20
"""How often a block is given to another worker before the job ends: an image that kills every
worker must not keep a cluster busy for ever."""


@dataclass(frozen=True)
class Job(embedder.Embedder):
    """What is to be embedded, beside how."""

    out: Path = Path("embeddings")
    records: Path | None = None
    images: Path | None = None


@dataclass(frozen=True)
class Block:
    """Images that become one shard."""

    source: str
    """One tar of images, or the record file or folder of all of them."""
    start: int
    stop: int
    shard: str
    """File name of the result."""


class Embedder:
    """A worker: the model, and the images that it is at.

    Args:
        job: the flags; the images of each block take the place of its own.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.model: EmbeddingModel = job.load(job.model)
        self.at = ""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Embed blocks and write their shards; what goes back to Ray are counts alone."""
        columns = (batch[name].tolist() for name in ("source", "start", "stop", "shard"))
        failures = [self.embed(Block(*values)) for values in zip(*columns, strict=True)]
        return {"images": batch["stop"] - batch["start"], "failures": np.array(failures)}

    def embed(self, block: Block) -> int:
        """Write the shard of one block, whole or not at all; return its failures to acquire."""
        if block.source != self.at:
            self.source = open_one(self.job, block.source)
            self.subjects = self.source.subjects()
            self.at = block.source
        rows = np.arange(block.start, block.stop)
        found = embed_images(
            self.model,
            self.source.images,
            flip=self.job.flip,
            batch_size=self.job.batch_size,
            on_error=self.job.on_error,
            indices=rows,
        )
        found = replace(
            found,
            subjects=None if self.subjects is None else self.subjects[rows],
            note={**found.note, "source": self.source.description},
        )
        write_embeddings(self.job.out / block.shard, found)
        return len(found.failures)


def ray_embed(
    model: Path,
    out: Path,
    records: Path | None = None,
    images: Path | None = None,
    flip: bool = True,
    on_error: Literal["error", "skip"] = "error",
    batch_size: int = 64,
    shard_size: int = 8192,
    workers: int = 2,
    cpus: float = 1.0,
    gpus: float = 0.0,
    address: str | None = None,
) -> None:
    """Embed images in many processes of many machines into a folder of Parquet shards.

    Every image is in exactly one shard, whatever dies on the way. A job that was stopped goes on
    when it is started again. All commands read the folder as an embeddings file.

    Args:
        model: a bundle, an .onnx file, or anything else that facerec embed takes.
        out: the folder of shards.
        records: a record file, its folder, a folder of subject/image.jpg, or WebDataset shards.
        images: a folder with images at any depth.
        flip: sum the raw embeddings of each image and its mirror image.
        on_error: what an image that does not decode does: error ends the job, skip makes it a
            failure to acquire.
        batch_size: images that go through the network at once.
        shard_size: images in a shard, at most.
        workers: processes that embed.
        cpus: cores of each; less than one where many are to share a core.
        gpus: GPUs of each.
        address: of a running Ray cluster, such as auto; by default one is started here.
    """
    if min(workers, batch_size, shard_size) < 1 or not cpus > 0 <= gpus:
        raise FacerecError(
            "--workers, --batch-size and --shard-size are 1 or more, --cpus more than 0, --gpus 0 "
            "or more"
        )
    job = Job(
        model=model.resolve(),
        out=out.resolve(),
        records=None if records is None else records.absolute(),
        images=None if images is None else images.absolute(),
        flip=flip,
        on_error=on_error,
        device="cuda" if gpus else "cpu",
        batch_size=batch_size,
    )
    console = Console()
    with exclusive(job.out), progress_bar(console, "images") as progress:
        blocks, wanted = plan(job, shard_size, progress)
        begin(job, blocks)
        missing = [block for block in blocks if not (job.out / block.shard).is_file()]
        console.print(
            f"{len(wanted):,} images in {len(blocks):,} shards, {len(missing):,} of them to embed"
        )
        if missing:
            resources = {"num_cpus": cpus, "num_gpus": gpus}
            run(job, missing, workers, resources, address, progress)
        lost, doubled, strange = check(job, blocks, wanted, progress)
    console.print(
        f"{len(wanted):,} images: {lost:,} lost, {doubled:,} doubled, {strange:,} of other sources"
    )
    running, ended = job_files(job)
    if lost or doubled or strange:
        raise DatasetError(
            f"{job.out}: the shards are not those of the images, which may have changed; choose "
            "another folder, or remove this one, and run the same command again"
        )
    if running.exists():  # from now on the folder is read as a whole
        running.replace(ended)
    console.print(f"embeddings: {out}")


def open_one(job: Job, source: str) -> Opened:
    """Open one source of images."""
    kind: Kind = "images" if job.records is None else "records"
    return open_set(kind, source, on_error=job.on_error)


def plan(job: Job, shard_size: int, progress: Progress) -> tuple[list[Block], NDArray[np.void]]:
    """Return the blocks, which follow from the images alone, and a hash of every image's id.

    Raises:
        DatasetError: no source or two, or an id that two images have.
    """
    if (job.records is None) == (job.images is None):
        raise DatasetError("name the images with one of --records and --images")
    if job.records is not None and set_kind(job.records) == TAR:
        sources = [str(shard) for shard in shard_paths(job.records, ".tar")]
    else:
        sources = [str(job.records or job.images)]
    parts: list[tuple[str, int, int]] = []
    digests = []
    for number, source in enumerate(sources):
        ids = open_one(job, source).images.ids
        starts = range(0, len(ids), shard_size)
        parts += [(source, start, min(start + shard_size, len(ids))) for start in starts]
        digests.append(digest_ids(ids))
        progress("listing", number + 1, len(sources))
    wanted = np.concatenate(digests)
    repeated = len(wanted) - len(np.unique(wanted))
    if repeated:
        raise DatasetError(
            f"{job.records or job.images}: {repeated:,} ids of {len(wanted):,} images occur twice, "
            "so their embeddings could not be told apart; give the images names that differ"
        )
    names = (f"part-{number:06d}.parquet" for number in range(len(parts)))
    return [Block(*part, name) for part, name in zip(parts, names, strict=True)], wanted


def begin(job: Job, blocks: list[Block]) -> None:
    """Say in the folder what its shards will be, or see that it says just that.

    Raises:
        DatasetError: the folder holds something else, or shards of another job.
    """
    model = replace(job, device="auto").load(job.model)  # wrong flags end the job here
    note = describe_embedding(model, flip=job.flip, align=None, batch_size=job.batch_size)
    note["source"] = {"path": str(job.records or job.images)}
    shards = {block.shard: block.stop - block.start for block in blocks}
    wanted = {**job_identity(note), "shards": shards}
    before = next((file for file in job_files(job) if file.is_file()), None)
    if before is not None:
        try:
            changed = differences(parse_json(read_file(before)), wanted)
        except (OSError, ValueError, AttributeError) as problem:
            raise DatasetError(
                f"{before}: not what a job leaves ({problem}); remove it"
            ) from problem
        if changed:
            raise DatasetError(
                f"{job.out}: holds shards of a job that differs in {', '.join(changed[:4])}; run "
                "that command again, or choose another folder"
            )
    elif job.out.is_dir() and any(entry.name[0] != "." for entry in job.out.iterdir()):
        raise DatasetError(f"{job.out}: holds other files; choose another folder for the shards")
    else:
        job.out.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(job.out / JOB_FILE, wanted)


def job_files(job: Job) -> tuple[Path, Path]:
    """Return what says which job the shards are of: as long as it runs, and once it has ended."""
    return job.out / JOB_FILE, job.out / f".{JOB_FILE}"


def run(
    job: Job,
    blocks: list[Block],
    workers: int,
    resources: dict[str, float],
    address: str | None,
    progress: Progress,
) -> None:
    """Let workers embed blocks, each of which is retried where its worker dies.

    Raises:
        FacerecError: Ray does not start or answer, an image or the model is refused, or workers
            keep dying.
    """
    # What passes through Ray's store are names and counts.
    alone = {"include_dashboard": False, "object_store_memory": 100 << 20}
    try:
        ray.init(log_to_driver=False, **(alone if address is None else {"address": address}))
    except Exception as problem:  # bare ones where a machine is too busy
        where, do = "this machine", "free processors or raise RAY_raylet_start_wait_time_s"
        if address is not None:
            where, do = address, "start it there, or leave out --address"
        raise FacerecError(
            f"{where}: Ray does not start or answer ({message_line(problem)}); {do}"
        ) from problem
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        # Ray Data starts no task whose answer might not fit into the store, and thinks of 128 MiB.
        context.target_max_block_size = 1 << 20
        # Workers may be killed while they start as well.
        context.max_consecutive_actor_init_deaths = ATTEMPTS + 2 * workers
        done = ray.data.from_items(
            [asdict(block) for block in blocks], override_num_blocks=len(blocks)
        ).map_batches(
            Embedder,
            fn_constructor_args=(job,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(
                size=min(workers, len(blocks)), max_tasks_in_flight_per_actor=2
            ),
            max_restarts=-1,
            max_task_retries=ATTEMPTS,
            **resources,
        )
        count, total = 0, sum(block.stop - block.start for block in blocks)
        for row in done.iter_rows():
            count += int(row["images"])
            progress("embedding", count, total)
    except Exception as problem:
        refused = next(
            (cause for cause in _causes(problem) if isinstance(cause, FacerecError)), None
        )
        if refused is not None:
            raise refused from problem
        if not isinstance(problem, ray.exceptions.RayError):
            raise
        raise FacerecError(
            f"{job.out}: Ray ended the job ({message_line(problem)}); the same "
            "command goes on from the shards that are there"
        ) from problem
    finally:
        ray.shutdown()


def digest_ids(ids: NDArray[np.str_]) -> NDArray[np.void]:
    """Return 16 bytes for each id, ``(N,)``, by which very many can be compared."""
    digests = b"".join(
        hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()
        for name in ids.tolist()
    )
    return np.frombuffer(digests, "V16")


def check(
    job: Job, blocks: list[Block], wanted: NDArray[np.void], progress: Progress
) -> tuple[int, int, int]:
    """Count images that are in no shard, in more than one place, and in shards alone."""
    digests = []
    for number, block in enumerate(blocks):
        ids = pq.read_table(job.out / block.shard, columns=["image_id"])["image_id"]
        digests.append(digest_ids(np.array(ids.to_pylist(), np.str_)))
        progress("checking", number + 1, len(blocks))
    held = np.concatenate(digests)
    known = np.unique(held)
    lost = len(wanted) - int(np.isin(wanted, known).sum())
    return lost, len(held) - len(known), len(known) - (len(wanted) - lost)


def _causes(problem: BaseException) -> Iterator[BaseException]:
    """Yield an error and what lies behind it; Ray wraps those of workers."""
    at: BaseException | None = problem
    while at is not None:
        yield at
        at = getattr(at, "cause", None) or at.__cause__


if __name__ == "__main__":
    run_command(ray_embed)
