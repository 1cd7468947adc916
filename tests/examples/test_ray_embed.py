"""Embedding under Ray: every image in exactly one shard, whatever dies on the way."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.toy_files import picture, write_tar
from helpers.toy_onnx import noted, tiles

from facerec.base.errors import DatasetError, FacerecError
from facerec.embedding.extraction import embed_images
from facerec.embedding.file import read_embeddings
from facerec.embedding.loading import load_model
from facerec.records.tar_shards import TarImages

pytest.importorskip("pyarrow")
EXAMPLES = Path(__file__).parents[2] / "examples"
WORKERS = int(os.environ.get("FACEREC_RAY_WORKERS", "8"))
"""64 of them take 16 GB of memory."""


def faces(folder: Path, shards: int, images: int) -> str:
    """Write WebDataset shards and the tiny network; return the pattern of the shards."""
    onnx.save(tiles(metadata=noted()), folder / "m.onnx")
    for number in range(shards):
        members = []
        for image in range(images):
            name = f"{number}-{image:05d}"
            members += [(f"{name}.jpg", picture(1000 * number + image))]
            members += [(f"{name}.cls", str(image % 9).encode())]
        write_tar(folder / f"s-{number}.tar", members)
    return str(folder / f"s-{{0..{shards - 1}}}.tar")


def kill_now_and_then(job: subprocess.Popen[bytes], seed: int, least: int) -> int:
    """Kill workers of a job at random until it ends; return how many died."""
    psutil = pytest.importorskip("psutil")
    generator = random.Random(seed)
    killed = 0
    while job.poll() is None:
        time.sleep(generator.uniform(0.1, 1.0))
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(job.pid).children(recursive=True)
            workers = [each for each in children if "MapWorker" in " ".join(each.cmdline())]
            if workers and killed < max(least, WORKERS):
                generator.choice(workers).kill()
                killed += 1
    return killed


@pytest.mark.slow
def test_killed_workers_lose_and_double_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    shards, images = 4, 8 * WORKERS
    pattern = faces(tmp_path, shards, images)
    out = tmp_path / "out"
    words = ["--model", str(tmp_path / "m.onnx"), "--records", pattern, "--out", str(out)]
    words += ["--workers", str(WORKERS), "--cpus", "0.02", "--shard-size", "8"]
    words += ["--batch-size", "4"]
    command = [sys.executable, str(EXAMPLES / "ray_embed.py"), *words]
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        killed = kill_now_and_then(job, 0, 3)
    said = (tmp_path / "log").read_text()
    print(f"{killed} workers killed of {WORKERS}")
    assert job.returncode == 0, said
    assert killed >= 3
    assert f"{shards * images:,} images: 0 lost, 0 doubled" in said
    found = read_embeddings(out)
    source = TarImages(pattern)
    assert Counter(found.ids.tolist()) == Counter(source.ids.tolist())
    wanted = embed_images(load_model(tmp_path / "m.onnx"), source, flip=True, batch_size=4)
    np.testing.assert_array_equal(found.vectors, wanted.vectors)
    assert found.subjects.tolist() == [str(label) for label in source.labels]
    # Started again, it finds everything there, and does without workers.
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0 and "0 of them to embed" in again.stdout, again.stderr
    assert before == {path.name: path.stat().st_mtime_ns for path in out.iterdir()}


@pytest.mark.parametrize(
    ("address", "said"),
    [(None, "RAY_raylet_start_wait_time_s"), ("10.0.0.1:6379", "10.0.0.1:6379")],
)
def test_a_ray_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None, said: str
) -> None:
    pytest.importorskip("ray.data")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import ray_embed

    def fail(**options: object) -> None:
        raise Exception("timed out during startup\nmore")

    monkeypatch.setattr(ray_embed.ray, "init", fail)
    with pytest.raises(FacerecError, match="timed out during startup") as refused:
        places = tmp_path / "m.onnx", tmp_path / "out", Path(faces(tmp_path, 2, 5))
        ray_embed.ray_embed(*places, shard_size=3, address=address)
    assert said in str(refused.value) and "more" not in str(refused.value)


def test_the_plan_and_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but Ray: blocks follow from the images, and the check counts what is not as it was."""
    pytest.importorskip("ray.data")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import ray_embed

    pattern = faces(tmp_path, 2, 5)

    def here(job, blocks, *_):  # type: ignore[no-untyped-def]
        embedder = ray_embed.Embedder(job)
        names = ("source", "start", "stop", "shard")
        for block in blocks:
            embedder({name: np.array([getattr(block, name)]) for name in names})

    monkeypatch.setattr(ray_embed, "run", here)
    model, out = tmp_path / "m.onnx", tmp_path / "out"
    ray_embed.ray_embed(model, out, Path(pattern), shard_size=3)
    found = read_embeddings(out)
    assert found.ids is not None and found.ids.tolist() == TarImages(pattern).ids.tolist()
    names = sorted(path.name for path in out.iterdir())
    assert names == [".job.json", *(f"part-{k:06d}.parquet" for k in range(4))]
    # Another job is refused, as is a folder of something else.
    with pytest.raises(DatasetError, match="flip"):
        ray_embed.ray_embed(model, out, Path(pattern), shard_size=3, flip=False)
    with pytest.raises(DatasetError, match="shards"):
        ray_embed.ray_embed(model, out, Path(pattern), shard_size=4)
    with pytest.raises(DatasetError, match="holds other files"):
        ray_embed.ray_embed(model, tmp_path, Path(pattern))
    # A shard that another one was copied over: its images are lost, the others doubled.
    (out / names[2]).write_bytes((out / names[1]).read_bytes())
    with pytest.raises(DatasetError, match="not those of the images"):
        ray_embed.ray_embed(model, out, Path(pattern), shard_size=3)
    (out / names[2]).unlink()
    ray_embed.ray_embed(model, out, Path(pattern), shard_size=3)
    np.testing.assert_array_equal(read_embeddings(out).vectors, found.vectors)
