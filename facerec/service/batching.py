"""Images of requests that arrive together go through the network together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import anyio
import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Gauge, Histogram
from starlette.exceptions import HTTPException

from facerec.service.limits import Bounds

Faces = NDArray[np.uint8]
Vectors = NDArray[np.float32]


class Metrics:
    """What Prometheus reads, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        seconds: dict[str, Any] = {"buckets": [0.001 * 2**k for k in range(16)], "registry": own}
        sizes: dict[str, Any] = {"buckets": [2**k for k in range(10)], "registry": own}
        labels, about = ["endpoint", "status"], "From header to answer; the count is of requests"
        self.seconds = Histogram("facerec_request_seconds", about, labels, **seconds)
        self.model = Histogram("facerec_model_seconds", "Time in the network", **seconds)
        self.batch = Histogram("facerec_batch_images", "Images embedded together", **sizes)
        self.admitted = Gauge("facerec_admitted_images", "Images not answered", registry=own)
        self.pending = Gauge("facerec_pending_bodies", "Bodies on their way", registry=own)


class _Job(NamedTuple):
    faces: Faces
    vectors: asyncio.Future[Vectors]
    arrived: float


class MicroBatcher:
    """Gathers the images of many requests into batches; one thread runs the network.

    While a batch computes, the next one gathers. A job waits for others until a batch is full, at
    most ``max_wait_ms`` after its own arrival, and not at all if no other request is under way. A
    job is never divided between batches, so its images may lead beyond ``max_batch``; the model
    then divides. All methods are called from one event loop.

    Args:
        embed: uint8 ``(N, H, W, 3)`` → float32 ``(N, D)``; called from the thread alone.
        bounds: size, wait and capacity.
        metrics: counts images, batches and places.
    """

    def __init__(self, embed: Callable[[Faces], Vectors], bounds: Bounds, metrics: Metrics) -> None:
        self._embed, self._bounds, self._metrics = embed, bounds, metrics
        self._taken = 0
        metrics.admitted.set_function(lambda: self._taken)
        self._jobs: asyncio.Queue[_Job] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "network")

    @contextlib.contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Hold places for images, from admission to answer.

        Raises:
            HTTPException: the service is full.
        """
        if self._taken + count > max(self._bounds.max_queue, self._bounds.max_images):
            sentence = f"the service is busy with {self._taken} images; try again in a second"
            raise HTTPException(503, sentence)
        self._taken += count
        try:
            yield
        finally:
            self._taken -= count

    async def embed(self, faces: Faces) -> Vectors:
        """Return the embeddings, ``(N, D)``; if it is cancelled before, they are not computed."""
        loop = asyncio.get_running_loop()
        job = _Job(faces, loop.create_future(), loop.time())
        self._jobs.put_nowait(job)
        return await job.vectors

    async def work(self) -> None:
        """Compute batch after batch, until it is cancelled."""
        try:
            while True:
                jobs = await self._gather()
                if jobs := [job for job in jobs if not job.vectors.done()]:
                    await self._compute(jobs)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _gather(self) -> list[_Job]:
        jobs = [await self._jobs.get()]
        waited = asyncio.get_running_loop().time() - jobs[0].arrived
        with anyio.move_on_after(self._bounds.max_wait_ms / 1000 - waited):
            while sum(len(job.faces) for job in jobs) < min(self._bounds.max_batch, self._taken):
                jobs.append(await self._jobs.get())
        return jobs

    async def _compute(self, jobs: list[_Job]) -> None:
        faces = np.concatenate([job.faces for job in jobs])
        try:
            with self._metrics.model.time():
                loop = asyncio.get_running_loop()
                vectors = await loop.run_in_executor(self._thread, self._embed, faces)
        except Exception as error:  # whatever an engine raises must reach the requests
            for job in jobs:
                if not job.vectors.done():
                    job.vectors.set_exception(error)
            return
        self._metrics.batch.observe(len(vectors))
        ends = np.cumsum([len(job.faces) for job in jobs])
        for job, part in zip(jobs, np.split(vectors, ends[:-1]), strict=True):
            if not job.vectors.done():
                job.vectors.set_result(part)
