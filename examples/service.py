"""An inference service: embeddings and comparisons of faces, and a gallery, over HTTP.

    python examples/service.py BUNDLE --port 8000 --gallery people.npz

Images of requests that arrive together go through the network together. Without a gallery nothing
about a person is kept: no image, embedding or file name is logged or written to disk. A gallery
keeps one template and one name a person in its file until they are deleted; no name is logged.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Ctrl-C ends the process at once until the server takes it over, without a traceback from
    # the libraries that are just being loaded.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import asyncio
import contextlib
import faulthandler
import functools
import hmac
import json
import logging
import math
import os
import queue
import re
import socket
import stat
import sys
import threading
import time
import traceback
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import tyro
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import File, FormParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import facerec
from facerec.commands.cli import run_command
from facerec.embedding.align import align_face
from facerec.embedding.engines import EngineName, Precision
from facerec.embedding.extraction import Embeddings
from facerec.embedding.recognizer import FaceRecognizer
from facerec.errors import DatasetError, FacerecError, ImageError, MetricError, ModelError
from facerec.galleries import Fpir, Gallery, Space
from facerec.names import same_name
from facerec.records.decode import decode_image, image_size
from facerec.statistics.operating_points import parse_rate

_FIELDS = {
    "images": {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "description": "JPEG, PNG, WebP, BMP, TIFF; aligned, of the model's size, or with points",
    },
    "points": {
        "type": "string",
        "description": "JSON of shape (images, 5, 2): five [x, y] for each image",
    },
    "subject": {"type": "string", "description": "name of the person, up to 200 characters"},
}
"""What OpenAPI says of the fields of forms."""

Answer = TypeVar("Answer")
Faces = NDArray[np.uint8]

_log = logging.getLogger("facerec.service")

_POINTS_BYTES = 1024
"""Longest JSON for the points of one image."""

_LARGE_PIXELS = 2_000_000
"""Photos of one request of more pixels are decoded by a thread of their own."""

_NAME_CHARACTERS = 200
"""Longest name of a person."""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    503: {"Retry-After": "1", "Connection": "close"},
}
"""Of errors by their status."""

_Shown = Annotated[
    HTTPAuthorizationCredentials | None,
    Depends(HTTPBearer(auto_error=False, description="what --token-file holds")),
]

_ENDPOINTS = (
    "/v1/embed",
    "/v1/verify",
    "/v1/enroll",
    "/v1/identify",
    "/v1/delete",
    "/healthz",
    "/metrics",
)


@dataclass(frozen=True)
class Limits:
    """What the service takes, and how it gathers batches."""

    max_batch: int = 32
    """Images that go through the network together; 1 computes one request after the other."""
    max_wait_ms: float = 5.0
    """How long a batch waits at most for images of requests that are on their way."""
    max_queue: int = 256
    """Images admitted and not yet answered; beyond that requests get status 503. As many bodies of
    one address, and twice as many of all, may be on their way."""
    max_images: int = 64
    """Images in one request."""
    max_body_bytes: int = 16 << 20
    """Size of one request's body."""
    max_pixels: int = 16_000_000
    """Pixels of the photos of one request together, by their headers."""
    max_large: int = 8
    """Bodies of the largest size, or of as many bytes, that one address may have on their way;
    twice as many of all are held."""
    max_people: int = 100_000
    """People in the gallery; every change writes its whole file."""
    timeout_s: float = 30.0
    """How long a body may take to arrive, and then an answer to be computed."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0 and name != "max_wait_ms":
                raise ValueError(f"{name} must be more than 0, found {value}")
        if not self.max_wait_ms >= 0:
            raise ValueError(f"max_wait_ms must not be negative, found {self.max_wait_ms}")
        if self.max_queue < self.max_images:
            raise ValueError(
                f"max_queue {self.max_queue} must hold the max_images {self.max_images} of one "
                "request"
            )


class Refusal(Exception):
    """A request that gets no result, with its HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Metrics:
    """What Prometheus reads, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        sizes = [2**k for k in range(10)]
        seconds = [0.001 * 2**k for k in range(16)]
        self.requests = Counter(
            "facerec_requests", "Requests answered", ["endpoint", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "facerec_request_seconds",
            "Time from a request's header to its answer",
            ["endpoint"],
            buckets=seconds,
            registry=self.registry,
        )
        self.images = Counter("facerec_images", "Images embedded", registry=self.registry)
        self.batch = Histogram(
            "facerec_batch_images",
            "Images embedded together",
            buckets=sizes,
            registry=self.registry,
        )
        self.model_seconds = Histogram(
            "facerec_model_seconds",
            "Time in the network for one batch",
            buckets=seconds,
            registry=self.registry,
        )
        self.admitted = Gauge(
            "facerec_admitted_images", "Images admitted and not answered", registry=self.registry
        )
        self.pending = Gauge(
            "facerec_pending_bodies", "Bodies on their way", registry=self.registry
        )


@dataclass
class _Job:
    faces: Faces
    vectors: Future[NDArray[np.float32]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class MicroBatcher:
    """Gathers the images of many requests into batches; one thread runs the network.

    While a batch computes, the next one gathers. A job waits for others until a batch is full, at
    most ``max_wait_ms`` after its own arrival, and not at all if no other request is under way. A
    job is never divided between batches, so its images may lead beyond ``max_batch``; the model
    then divides.

    Args:
        embed: uint8 ``(N, H, W, 3)`` → float32 ``(N, D)``; called from the thread alone.
        limits: size, wait and capacity.
        metrics: counts images, batches and places.
    """

    def __init__(
        self, embed: Callable[[Faces], NDArray[np.float32]], limits: Limits, metrics: Metrics
    ) -> None:
        self._embed = embed
        self._limits = limits
        self._metrics = metrics
        self._taken = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="network", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Compute what was submitted, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread takes jobs."""
        return self._thread.is_alive()

    @contextlib.contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Hold places for images, from admission to answer; call from one thread only.

        Raises:
            Refusal: the service is full.
        """
        if self._taken + count > self._limits.max_queue:
            raise Refusal(
                503, f"the service is busy with {self._taken} images; try again in a second"
            )
        self._taken += count
        self._metrics.admitted.set(self._taken)
        try:
            yield
        finally:
            self._taken -= count
            self._metrics.admitted.set(self._taken)

    def submit(self, faces: Faces) -> Future[NDArray[np.float32]]:
        """Return what will hold the embeddings, ``(N, D)``; cancelled, it is not computed."""
        job = _Job(faces)
        self._jobs.put(job)
        return job.vectors

    def _work(self) -> None:
        while (first := self._jobs.get()) is not None:
            jobs = [
                job for job in self._gather(first) if job.vectors.set_running_or_notify_cancel()
            ]
            if jobs:
                self._compute(jobs)

    def _gather(self, first: _Job) -> list[_Job]:
        jobs, count = [first], len(first.faces)
        deadline = first.arrived + self._limits.max_wait_ms / 1000
        while count < min(self._limits.max_batch, self._taken):
            try:
                job = self._jobs.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if job is None:  # nothing comes after it; the outer loop is to end there too
                self._jobs.put(None)
                break
            jobs.append(job)
            count += len(job.faces)
        return jobs

    def _compute(self, jobs: list[_Job]) -> None:
        try:
            with self._metrics.model_seconds.time():
                vectors = self._embed(np.concatenate([job.faces for job in jobs]))
        except Exception as error:  # whatever an engine raises must reach the requests
            for job in jobs:
                job.vectors.set_exception(error)
            return
        self._metrics.batch.observe(len(vectors))
        self._metrics.images.inc(len(vectors))
        start = 0
        for job in jobs:
            job.vectors.set_result(vectors[start : start + len(job.faces)])
            start += len(job.faces)


def parse_form(
    body: bytes, content_type: str, max_images: int, names: Sequence[str] = ("images", "points")
) -> dict[str, list[bytes]]:
    """Return the contents of the fields of a multipart body; names of files are not kept.

    Args:
        body: of the request.
        content_type: the header that names its boundary.
        max_images: of the field ``images``; others may occur once.
        names: of the fields that it may have.

    Raises:
        Refusal: another kind of body, a damaged one, an unknown field, or too many images.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        shown = "the images in fields called images"
        if "images" not in names:
            shown = f"a field called {names[0]}"
        raise Refusal(415, f"send multipart/form-data with {shown}")
    fields: dict[str, list[bytes]] = {name: [] for name in names}
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    whole = False

    def add(name: bytes | None, content: bytes | None) -> None:
        known = fields.get((name or b"").decode("latin-1"))
        if known is None:
            raise Refusal(400, f"the form has a field other than {listed}; leave it out")
        known.append(content or b"")
        if len(fields.get("images", ())) > max_images:
            raise Refusal(413, f"a request may hold {max_images} images; send several requests")
        if len(fields.get("points", ())) > 1:
            raise Refusal(400, "the form has the field points twice; send all points in one")
        if len(fields.get("subject", ())) > 1:
            raise Refusal(400, "the form names two people; send one request for each")

    def add_file(part: File) -> None:
        part.file_object.seek(0)
        add(part.field_name, part.file_object.read())

    def finish() -> None:
        nonlocal whole
        whole = True

    try:
        parser = FormParser(
            "multipart/form-data",
            on_field=lambda part: add(part.field_name, part.value),
            on_file=add_file,
            on_end=finish,
            boundary=options[b"boundary"],
            config={"MAX_MEMORY_FILE_SIZE": math.inf},  # never to the disk
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, UnicodeError) as error:  # the latter for names that are no UTF-8
        raise Refusal(400, "the multipart body is malformed; send it again") from error
    if not whole:
        raise Refusal(400, "the multipart body ends before its last boundary; send it again")
    return fields


def read_points(text: bytes, count: int) -> NDArray[np.float64]:
    """Return the points of ``count`` photos, ``(count, 5, 2)``, from JSON.

    Raises:
        Refusal: anything else.
    """
    points = np.empty(0)
    if len(text) <= _POINTS_BYTES * count:
        with contextlib.suppress(ValueError, RecursionError):  # no JSON, ragged, nested too deep
            points = np.asarray(json.loads(text))
    if points.shape != (count, 5, 2) or points.dtype.kind not in "iuf":
        raise Refusal(
            400,
            f"points must be JSON with five [x, y] for each image, as numbers of shape "
            f"({count}, 5, 2)",
        )
    return points.astype(np.float64)


def read_subject(found: Sequence[bytes]) -> str:
    """Return the name of a person from the form's field.

    Raises:
        Refusal: none, too long, or what is no text.
    """
    try:
        name = same_name(found[0].decode("utf-8").strip()) if found else ""
    except UnicodeDecodeError:
        name = ""
    if not name.isprintable() or not 0 < len(name) <= _NAME_CHARACTERS:
        raise Refusal(
            400,
            f"name the person in a field called subject, in 1 to {_NAME_CHARACTERS} printable "
            "characters of UTF-8",
        )
    return name


@dataclass
class Upload:
    """What a request holds, before any pixel is decoded.

    Attributes:
        images: encoded, one at least.
        points: of photos, ``(N, 5, 2)``; ``None`` if the images are aligned.
        pixels: of the photos together, by their headers; 0 for aligned images.
        subject: whom they show, where a person is to be named; else empty.
    """

    images: list[bytes]
    points: NDArray[np.float64] | None
    pixels: int = 0
    subject: str = ""

    def faces(self, size: tuple[int, int]) -> Faces:
        """Return the aligned faces, uint8 RGB ``(N, *size, 3)``.

        Raises:
            ImageError: an image that is not as it should be.
        """
        faces = np.empty((len(self.images), *size, 3), np.uint8)
        for i, image in enumerate(self.images):
            where = f"image {i}"
            if self.points is None:
                height, width = image_size(image, where)
                if (height, width) != size:
                    raise ImageError(
                        f"{where}: it is {height}×{width} (height×width), the model takes aligned "
                        f"faces of {size[0]}×{size[1]}; send such a crop, or the five points of "
                        "the face in a field called points"
                    )
                decode_image(image, where, size, faces[i], upright=True)
            else:
                photo = decode_image(image, where, size=None, upright=True)
                faces[i] = align_face(photo, self.points[i], size, where)
        return faces


def read_upload(body: bytes, content_type: str, limits: Limits, *, named: bool = False) -> Upload:
    """Return the images and points of a request, with what decoding them will cost.

    Args:
        body: a multipart form, see `parse_form`.
        content_type: the header that names its boundary.
        limits: on images and pixels.
        named: whether a field ``subject`` must name the person.

    Raises:
        Refusal: a form that is not as it should be.
        ImageError: a photo that is not as it should be.
    """
    names = ("images", "points", "subject") if named else ("images", "points")
    form = parse_form(body, content_type, limits.max_images, names)
    images = form["images"]
    if not images:
        raise Refusal(400, "the form holds no image; send at least one in a field called images")
    upload = Upload(images, None, subject=read_subject(form["subject"]) if named else "")
    if not form["points"]:
        return upload
    upload.points = read_points(form["points"][0], len(images))
    for i, image in enumerate(images):
        height, width = image_size(image, f"image {i}")
        upload.pixels += height * width
        if upload.pixels > limits.max_pixels:
            raise Refusal(
                413,
                f"image {i}: it has {height:,}×{width:,} pixels, more than the limit of "
                f"{limits.max_pixels:,} for the photos of a request; scale them down, or send "
                "several requests",
            )
    return upload


@dataclass(frozen=True)
class Door:
    """Whose requests are answered.

    A page of another site can make its visitor's browser send forms to this machine, under the name
    of that site (``Origin``, ``Sec-Fetch-Site``) or, once its own name leads here, under that name
    (``Host``).

    Attributes:
        hosts: names of this service beside the loopback's and the address that a client reached.
        origins: sites whose pages may use it, such as ``https://app.example``.
        token: what whoever changes the gallery must show.

    Raises:
        FacerecError: an origin is none.
    """

    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    token: bytes | None = None

    def __post_init__(self) -> None:
        for origin in self.origins:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/*\s]+", origin):
                raise FacerecError(
                    f"--allow-origin {origin}: a site is named as browsers do it, in lower case "
                    "without a path, for example https://app.example:8443"
                )

    async def check_site(self, request: Request) -> None:
        """Refuse what a page of another site had its visitor's browser send."""
        host = request.headers.get("host", "").lower()
        own = {*_LOOPBACK, *map(_name, self.hosts), (request.scope.get("server") or [""])[0]}
        if _name(host) not in own:
            raise Refusal(
                403, "the request is for a host of another name; start with --allow-host NAME"
            )
        origins = set(request.headers.getlist("origin")) - {f"http://{host}", f"https://{host}"}
        sites = set(request.headers.getlist("sec-fetch-site")) - {"same-origin", "none"}
        if not origins.issubset(self.origins) or (sites and not origins):
            raise Refusal(
                403, "the request is from a page of another site; start with --allow-origin ORIGIN"
            )

    async def check_token(self, shown: _Shown) -> None:
        """Refuse whoever does not show the token."""
        given = b"" if shown is None else shown.credentials.encode()
        if not hmac.compare_digest(given, self.token or b""):
            raise Refusal(401, "changes take the token: send Authorization: Bearer TOKEN")


def _name(host: str) -> str:
    """Return the name in a ``Host`` header, without port and brackets."""
    return re.sub(r":\d*$", "", host.lower()).removeprefix("[").removesuffix("]")


def read_token(path: Path) -> bytes:
    """Return the token in a file of one line that its owner alone can read.

    Raises:
        FacerecError: it is no such file.
    """
    try:
        # A pipe must not hang.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise FacerecError(f"{path}: the token must be in a regular file; write it to one")
            if about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o077:
                raise FacerecError(
                    f"{path}: others may read the token's file, or own it (mode "
                    f"{about.st_mode & 0o777:03o}); let it be yours, with chmod 600"
                )
            token = file.read(4096).strip()
    except OSError as error:
        raise FacerecError(f"{path}: the token cannot be read ({error.strerror})") from error
    if not re.fullmatch(rb"[!-~]{1,1000}", token):
        raise FacerecError(
            f"{path}: a token is one line of letters, digits and signs without spaces; write one, "
            "for example with openssl rand -hex 32"
        )
    return token


@dataclass(eq=False)
class _Body:
    address: str
    content: bytearray = field(default_factory=bytearray)
    whole: bool = False


class Bodies:
    """The bodies of requests, bounded in number and bytes, of one address and in all.

    Where there is no room, the one of the heaviest address that has been on its way longest gives
    way, so that whoever sends nothing, or slowly, keeps nobody out. What is whole stays until it
    is answered.

    Args:
        limits: number, bytes and time.
        metrics: counts those on their way.
    """

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._readers: dict[_Body, asyncio.Task[None]] = {}
        metrics.pending.set_function(lambda: sum(not body.whole for body in self._readers))

    @contextlib.asynccontextmanager
    async def whole(self, request: Request, limit: int) -> AsyncIterator[bytes]:
        """Give the body of a request once it is whole, whatever its header says of the length.

        Raises:
            Refusal: it is larger than ``limit`` bytes, late or in the way, or the client leaves.
        """
        body = _Body(request.client.host if request.client else "")
        reader = self._readers[body] = asyncio.create_task(self._read(body, request, limit))
        self._bound(2 * self._limits.max_queue, lambda body: not body.whole)
        try:
            await asyncio.wait({reader}, timeout=self._limits.timeout_s)
            if not reader.done():
                raise Refusal(
                    408, f"the body did not arrive within {self._limits.timeout_s:g} seconds"
                )
            if reader.cancelled():
                raise Refusal(503, "the service is busy with other bodies; try again in a second")
            reader.result()
            yield bytes(body.content)
        finally:
            reader.cancel()
            self._readers.pop(body, None)

    def let_go(self) -> None:
        """Let all that are on their way give way."""
        self._bound(0, lambda body: not body.whole)

    async def _read(self, body: _Body, request: Request, limit: int) -> None:
        too_large = Refusal(
            413, f"a request may have {limit:,} bytes; send fewer or smaller images"
        )
        claimed = request.headers.get("content-length", "")
        if claimed.isdecimal() and int(claimed[:20]) > limit:
            raise too_large
        try:
            async for chunk in request.stream():
                body.content += chunk
                if len(body.content) > limit:
                    raise too_large
                most = 2 * self._limits.max_large * self._limits.max_body_bytes
                self._bound(most, lambda body: len(body.content))
        except ClientDisconnect as error:
            raise Refusal(400, "the connection closed before the body was complete") from error
        body.whole = True

    def _bound(self, most: int, weigh: Callable[[_Body], int]) -> None:
        """Let bodies give way until one address has at most half of ``most``, and all have it."""
        while True:
            pending: Tally[str] = Tally()
            for body in self._readers:
                pending[body.address] += 0 if body.whole else weigh(body)
            address, heaviest = max(pending.items(), key=lambda item: item[1], default=("", 0))
            if not heaviest or (heaviest <= most // 2 and sum(map(weigh, self._readers)) <= most):
                return
            own = (body for body in self._readers if body.address == address and not body.whole)
            self._readers.pop(next(filter(weigh, own))).cancel()


async def within(seconds: float, work: Awaitable[Answer], late: Refusal) -> Answer:
    """Wait for an answer, or refuse when it is late."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError as error:
        raise late from error


class Enrolled:
    """A gallery and its file, which stay alike; only one thread calls it.

    Args:
        path: the file, read if it is there, and written whole after every change.
        recognizer: embeds all images that come.
        limits: on people.
        fpir: the chance of a false alarm whose threshold is taken at the gallery's size.
        threshold: cosine from which on somebody is identified, in place of an FPIR.

    Raises:
        ModelError: the gallery is of another model.
        DatasetError: it cannot be read.
    """

    def __init__(
        self,
        path: Path,
        recognizer: FaceRecognizer,
        limits: Limits,
        fpir: str,
        threshold: float | None,
    ) -> None:
        self.path, self._limits = path, limits
        self._space = Space.of(recognizer)
        self._fpir, self._threshold = fpir, threshold
        self.gallery = self._read()
        self.gallery.space.check(self._space, str(recognizer.model.path or "the model"))
        self._point: Fpir | None = None

    def enroll(self, vectors: NDArray[np.float32], subject: str) -> dict[str, Any]:
        """Add images of a person, new or not, and write the file."""
        new = subject not in self.gallery
        if new and len(self.gallery) >= self._limits.max_people:
            raise Refusal(
                409, f"the gallery is full with {len(self.gallery):,} people; delete some first"
            )
        norms = np.linalg.norm(vectors, axis=1)
        about = {"name": self._space.name, "sha256": self._space.model}
        note = {"model": {**about, "preprocessing": self._space.preprocessing}}
        images = Embeddings(vectors, norms, self._space.flip, note=note)
        with self._changing():
            report = self.gallery.enroll(images, [subject] * len(vectors))
            if not report.images:
                raise Refusal(422, "no image has an embedding to enrol; send others")
        row = int(np.flatnonzero(self.gallery.subjects == subject)[0])
        return {
            "subject": subject,
            "new": new,
            "images": int(self.gallery.images[row]),
            "failures": [{"image": int(i), "failure": why} for i, why in report.failures.items()],
            "people": len(self.gallery),
        }

    def delete(self, subject: str) -> dict[str, Any]:
        """Take a person out, and write the file, which keeps nothing of them."""
        if subject not in self.gallery:
            raise Refusal(404, "nobody of that name is in the gallery")
        with self._changing():
            self.gallery.delete(subject)
        return {"subject": subject, "people": len(self.gallery)}

    def identify(self, vectors: NDArray[np.float32]) -> dict[str, Any]:
        """Return an answer for each image, and the FPIR of the threshold."""
        if not len(self.gallery):
            raise Refusal(404, "the gallery is empty, so nobody can be found; enrol people first")
        try:
            point = self._known_point()
        except MetricError as error:
            raise Refusal(
                501,
                f"{error} (with the service stopped, by facerec enroll --impostors), or start the "
                "service with --identify-threshold",
            ) from error
        threshold = self._threshold if point is None else point.threshold
        assert threshold is not None
        found = self.gallery.identify(vectors, threshold=threshold, point=point)
        return {
            "answers": [answer.to_json() for answer in found.answers],
            "threshold": found.threshold,
            "fpir": None if found.fpir is None else found.fpir.to_json(),
            "people": len(self.gallery),
        }

    def _known_point(self) -> Fpir | None:
        if self._point is None:
            gallery = self.gallery
            entries = 0
            if gallery.calibration is not None:
                own = "persons" not in gallery.calibration.note
                # A calibration by impostors, who are not at hand, stays.
                entries = gallery.calibration.entry_subjects.size if own else len(gallery)
            if len(gallery) > 1 and entries < 0.9 * len(gallery):
                gallery.calibrate()
            fpir = self._fpir if self._threshold is None else None
            self._point = gallery.point(fpir, self._threshold)
        return self._point

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Write what the block changes; if that fails, the gallery is again what the file holds."""
        self._point = None
        try:
            yield
            self.gallery.write(self.path)
        except BaseException:
            self.gallery = self._read()
            raise

    def _read(self) -> Gallery:
        gallery = Gallery.read(self.path) if self.path.exists() else Gallery(self._space)
        if gallery.twins:  # without their names, of which none is logged
            _log.warning(
                "people whom the gallery held twice, under two Unicode forms of one name, and who "
                "are one here and in the file from the next change on: %d",
                len(gallery.twins),
            )
        return gallery


class Service:
    """The endpoints, around one recognizer.

    Args:
        recognizer: what embeds; only the batcher's thread calls it.
        limits: what is taken.
        threshold: cosine from which on ``/v1/verify`` says ``same``; by default the model's own.
        fpr: selects among the model's own, see `FaceRecognizer.threshold`.
        bench: the same.
        gallery: file of the gallery; without one its endpoints are closed.
        fpir: chance of a false alarm in a search of the whole gallery.
        identify_threshold: cosine from which on ``/v1/identify`` names somebody, in its place.
        door: whose requests are answered.

    Raises:
        MetricError: a threshold, the FPR or the FPIR is no such number.
        ModelError: the gallery is of another model.
        DatasetError: the gallery cannot be read.
    """

    def __init__(
        self,
        recognizer: FaceRecognizer,
        limits: Limits | None = None,
        *,
        threshold: float | None = None,
        fpr: str | None = None,
        bench: str | None = None,
        gallery: Path | None = None,
        fpir: str = "1e-2",
        identify_threshold: float | None = None,
        door: Door | None = None,
    ) -> None:
        self.recognizer = recognizer
        self.limits = limits or Limits()
        self.door = door or Door()
        self.enrolled: Enrolled | None = None
        if gallery is not None:
            if not 0 < parse_rate(fpir) < 1:
                raise MetricError(f"fpir {fpir} suits no gallery; give a rate between 0 and 1")
            if identify_threshold is not None and math.isnan(identify_threshold):
                raise MetricError(
                    "identify_threshold is NaN, which no similarity reaches; give a number"
                )
            self.enrolled = Enrolled(gallery, recognizer, self.limits, fpir, identify_threshold)
        # Changes and searches of the gallery take turns.
        self._desk = ThreadPoolExecutor(1, "gallery")
        self.metrics = Metrics()
        self.contract = recognizer.contract
        self.no_threshold: str | None = None
        self.threshold: str | None = None
        self._choice: dict[str, Any] = {"threshold": threshold, "fpr": fpr, "bench": bench}
        some = np.ones(recognizer.embedding_size, np.float32)
        try:
            if threshold is None:
                recognizer.threshold(fpr, bench)  # if there is none, this says what is known
            chosen = recognizer.verify(some, some, **self._choice)
            self.threshold = f"{chosen.threshold} ({chosen.source})"
        except ModelError as error:
            self.no_threshold = f"{error}; start the service with --threshold COSINE"
            if {known.flip for known in recognizer.thresholds} == {not recognizer.flip}:
                self.no_threshold += f", or with --{'no-' if recognizer.flip else ''}flip"
            elif recognizer.thresholds:
                self.no_threshold += ", or choose one of the model's by --fpr and --bench"
        self._batcher = MicroBatcher(recognizer.embed, self.limits, self.metrics)
        # A large photo takes a second, so the others do not queue behind one.
        self._decoder = ThreadPoolExecutor(1, "decoder")
        self._large_decoder = ThreadPoolExecutor(1, "decoder of large photos")
        self.bodies = Bodies(self.limits, self.metrics)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Run the threads while the server runs; it has answered all requests when this ends."""
        self._batcher.start()
        try:
            yield
        finally:
            self._batcher.stop()
            self._desk.shutdown()
            self._decoder.shutdown()
            self._large_decoder.shutdown()

    async def embed(self, request: Request) -> Response:
        """Embed the images of the form's fields ``images``.

        They are aligned and of the model's size, or a field ``points`` holds five points of each.
        """
        vectors, _ = await self._vectors(request, self.limits)
        return JSONResponse(
            {
                "embeddings": vectors.tolist(),
                "embedding_size": self.recognizer.embedding_size,
                "contract": self.contract,
            }
        )

    async def verify(self, request: Request) -> Response:
        """Compare the faces on the two images of the form's fields ``images``."""
        if self.no_threshold is not None:
            raise Refusal(501, self.no_threshold)
        vectors, _ = await self._vectors(request, replace(self.limits, max_images=2))
        if len(vectors) != 2:
            raise Refusal(400, "a comparison takes two images; send both in fields called images")
        result = self.recognizer.verify(vectors[0], vectors[1], **self._choice)
        answer = {**asdict(result), "contract": self.contract}
        del answer["notes"]  # of photos, and the service has crops
        return JSONResponse(answer)

    async def enroll(self, request: Request) -> Response:
        """Add the images of the form's fields ``images`` to the template of its ``subject``."""
        enrolled = self._gallery()
        vectors, subject = await self._vectors(request, self.limits, named=True)
        return await self._at_desk(lambda: enrolled.enroll(vectors, subject))

    async def identify(self, request: Request) -> Response:
        """Say who of the gallery is on each image of the form's fields ``images``."""
        enrolled = self._gallery()
        vectors, _ = await self._vectors(request, self.limits)
        return await self._at_desk(lambda: enrolled.identify(vectors))

    async def delete(self, request: Request) -> Response:
        """Take the person of the form's ``subject`` out of the gallery and its file."""
        enrolled = self._gallery()
        content_type = request.headers.get("content-type", "")
        async with self.bodies.whole(request, _POINTS_BYTES * 4) as body:
            subject = read_subject(parse_form(body, content_type, 0, ("subject",))["subject"])
        return await self._at_desk(lambda: enrolled.delete(subject))

    def _gallery(self) -> Enrolled:
        if self.enrolled is None:
            raise Refusal(501, "the service has no gallery; start it with --gallery FILE")
        return self.enrolled

    async def _at_desk(self, work: Callable[[], dict[str, Any]]) -> Response:
        """Let the gallery's thread work; what is begun is done, whether or not it is late."""
        done = asyncio.shield(asyncio.wrap_future(self._desk.submit(work)))
        answer = await within(self.limits.timeout_s, done, self._late)
        return JSONResponse({**answer, "contract": self.contract})

    async def healthz(self) -> Response:
        """Tell whether the service answers, and with which model, engine and device."""
        about = self.recognizer.describe()
        named = ("name", "runtime", "device", "precision", "embedding_size", "contract")
        alive = self._batcher.alive
        return JSONResponse(
            {"status": "ok" if alive else "stopped", **{key: about[key] for key in named}},
            200 if alive else 503,
        )

    async def expose(self) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @property
    def _late(self) -> Refusal:
        return Refusal(503, "the service is too busy to answer in time; try again in a second")

    async def _vectors(
        self, request: Request, limits: Limits, *, named: bool = False
    ) -> tuple[NDArray[np.float32], str]:
        """Return the embeddings of a request's images, and the person it names."""
        size = self.recognizer.model.image_size
        content_type = request.headers.get("content-type", "")

        async def answer(body: bytes) -> tuple[NDArray[np.float32], str]:
            read = functools.partial(read_upload, body, content_type, limits, named=named)
            reading = self._decoder.submit(read)
            upload = await asyncio.wrap_future(reading)
            is_large = upload.pixels > _LARGE_PIXELS
            decoder = self._large_decoder if is_large else self._decoder
            faces = await asyncio.wrap_future(decoder.submit(upload.faces, size))
            with self._batcher.places(len(faces) - 1):
                vectors = await asyncio.wrap_future(self._batcher.submit(faces))
                return vectors, upload.subject

        async with self.bodies.whole(request, limits.max_body_bytes) as body:
            with self._batcher.places(1):  # before anything is decoded
                return await within(limits.timeout_s, answer(body), self._late)


class Observer:
    """Counts and times requests; words what fails without a sentence, and never its message.

    An unforeseen error's message may hold what the log must not.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        endpoint = scope["path"] if scope["path"] in _ENDPOINTS else "other"
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        with self.metrics.seconds.labels(endpoint).time():
            try:
                await self.app(scope, receive, watch)
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                _log.error("%s in %s, line %s", type(error).__name__, place.filename, place.lineno)
                failed = answer_error(500, "the service failed on this request; see its log")
                if not status:
                    await failed(scope, receive, watch)
        self.metrics.requests.labels(endpoint, str(status)).inc()


def answer_error(status: int, sentence: str) -> JSONResponse:
    """Return an error as JSON."""
    return JSONResponse({"error": sentence}, status, _HEADERS.get(status))


def create_app(service: Service) -> FastAPI:
    """Return the ASGI application of a service."""
    app = FastAPI(
        title="facerec",
        version=facerec.__version__,
        lifespan=service.lifespan,
        docs_url=None,  # the pages of both would load scripts from elsewhere
        redoc_url=None,
    )
    for path, endpoint, required, optional in (
        ("/v1/embed", service.embed, ["images"], ["points"]),
        ("/v1/verify", service.verify, ["images"], ["points"]),
        ("/v1/enroll", service.enroll, ["images", "subject"], ["points"]),
        ("/v1/identify", service.identify, ["images"], ["points"]),
        ("/v1/delete", service.delete, ["subject"], []),
    ):
        fields = {name: _FIELDS[name] for name in required + optional}
        form = {"schema": {"type": "object", "required": required, "properties": fields}}
        body = {"required": True, "content": {"multipart/form-data": form}}
        checks = [Depends(service.door.check_site)]
        if service.door.token is not None and path in ("/v1/enroll", "/v1/delete"):
            checks.append(Depends(service.door.check_token))
        app.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            dependencies=checks,
            openapi_extra={"requestBody": body},
        )
    for path, state in (("/healthz", service.healthz), ("/metrics", service.expose)):
        app.add_api_route(path, state)
        app.add_api_route(path, state, methods=["HEAD"], include_in_schema=False)
    if service.door.origins:  # so that pages of these sites may read the answers
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.door.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization"],
        )
    app.add_middleware(Observer, metrics=service.metrics)

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return answer_error(error.status, str(error))

    @app.exception_handler(ImageError)
    async def unusable(request: Request, error: ImageError) -> Response:
        return answer_error(422, str(error))

    @app.exception_handler(DatasetError)
    async def unwritten(request: Request, error: DatasetError) -> Response:
        return answer_error(507, str(error))

    @app.exception_handler(HTTPException)
    async def misdirected(request: Request, error: HTTPException) -> Response:
        sentence = f"{error.detail}: this service has {', '.join(_ENDPOINTS)}"
        return answer_error(error.status_code, sentence)

    return app


def listen(host: str, port: int) -> socket.socket:
    """Open the port to listen on; 0 takes a free one.

    Raises:
        FacerecError: it is not to be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise FacerecError(
            f"{host}, port {port}: cannot listen there ({error}); choose another --host or --port"
        ) from error
    # An answer leaves in two writes, of which the second would wait for the client's delayed
    # acknowledgement of the first. asyncio takes care of that on sockets of its own making only.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextlib.contextmanager
def python_alone_on_stderr() -> Iterator[None]:
    """Leave stderr to Python while the block runs, whose log then holds no text of C libraries.

    Decoders write a line or more for every damaged image there, and anybody can send many.
    """
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "w", 1, errors="replace") as own:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        try:
            with contextlib.redirect_stderr(own):
                yield
        finally:
            os.dup2(own.fileno(), 2)


class Server(uvicorn.Server):
    """Does not wait for bodies on their way when it is to end; what is whole is answered."""

    bodies: Bodies

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go of these bodies, then end."""
        self.bodies.let_go()
        await super().shutdown(sockets)


def create_server(service: Service) -> Server:
    """Return the HTTP server of a service, to be run with a socket of `listen`."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it quotes what is uploaded
    config = uvicorn.Config(
        create_app(service),
        access_log=False,
        log_level="error",  # warnings tell of every request that is no HTTP
        server_header=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=math.ceil(service.limits.timeout_s),
    )
    server = Server(config)
    server.bodies = service.bodies
    return server


@contextlib.contextmanager
def running(service: Service) -> Iterator[str]:
    """Serve from a thread of this process while the block runs; give the URL.

    A `Service` serves once.
    """
    with listen("127.0.0.1", 0) as listener:
        server = create_server(service)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise FacerecError(f"{url}: the service did not start; see its log")
                time.sleep(0.005)
            yield url
        finally:
            server.should_exit = True
            thread.join()


def serve(
    model: tyro.conf.Positional[Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    engine: EngineName = "onnxruntime",
    device: str = "auto",
    precision: Precision = "fp32",
    variant: str | None = None,
    flip: bool = True,
    threshold: float | None = None,
    fpr: str | None = None,
    bench: str | None = None,
    gallery: Path | None = None,
    fpir: str = "1e-2",
    identify_threshold: float | None = None,
    allow_origin: tuple[str, ...] = (),
    allow_host: tuple[str, ...] = (),
    token_file: Path | None = None,
    limits: tyro.conf.OmitArgPrefixes[Limits] = Limits(),
) -> None:
    """Serve embeddings and comparisons of faces over HTTP, and a gallery.

    POST /v1/embed and /v1/verify take multipart forms, with a gallery also /v1/enroll, /v1/identify
    and /v1/delete; GET /healthz and /metrics tell the state.
    Pages of other sites are refused, and changes of the gallery may take a token. There is no other
    access control: put the service behind a proxy that has one.

    Args:
        model: a bundle, an .onnx or .safetensors file, or the folder of a run.
        host: address to listen on; 0.0.0.0 takes all.
        port: port to listen on.
        engine: what computes an .onnx file.
        device: auto, cpu, cuda or cuda:1; one that is not there is refused.
        precision: bf16 is faster on processors that have it, in OpenVINO or with .safetensors.
        variant: one of the bundle's variants, for example int8.
        flip: add the embedding of the mirror image, as facerec verify does, unless the gallery, or
            without --threshold the bundle's thresholds, were made without; takes twice the time.
        threshold: cosine from which on two faces are the same person's; by default the bundle's.
        fpr: FPR whose threshold in the bundle is taken; by default 1e-3, or the lowest that the
            bundle knows.
        bench: verification set whose threshold in the bundle is taken, if there are several.
        gallery: file of enrolled people, as facerec enroll writes it; made if it is not there.
        fpir: chance that a stranger is taken for somebody in the gallery, at its size.
        identify_threshold: cosine from which on somebody is identified, in place of fpir.
        allow_origin: sites whose pages may use the service, for example https://app.example.
        allow_host: names of this service in addresses, beside localhost and where it listens.
        token_file: file with the token that whoever changes the gallery must show; its owner alone
            may read it.
        limits: what the service takes.
    """
    token = None if token_file is None else read_token(token_file)
    door = Door((host, *allow_host), allow_origin, token)
    if gallery is not None and token is None and host not in _LOOPBACK:
        raise FacerecError(
            f"--host {host}: whoever reaches it could change {gallery}; give a --token-file, or "
            "listen on 127.0.0.1"
        )
    mirrored = flip if threshold is not None or not flip else None  # None: as the bundle has it
    if flip and gallery is not None and gallery.exists():
        mirrored = bool(Gallery.read(gallery).space.flip)
    recognizer = facerec.load(
        model,
        device=device,
        engine=engine,
        precision=precision,
        variant=variant,
        flip=mirrored,
        batch_size=limits.max_batch,
    )
    with contextlib.ExitStack() as claims:
        if gallery is not None:
            claims.enter_context(Gallery.claim(gallery))  # as long as the service runs
        endpoints = Service(
            recognizer,
            limits,
            threshold=threshold,
            fpr=fpr,
            bench=bench,
            gallery=gallery,
            fpir=fpir,
            identify_threshold=identify_threshold,
            door=door,
        )
        listener = claims.enter_context(listen(host, port))
        address, port = listener.getsockname()[:2]
        address = f"[{address}]" if ":" in address else address
        print(f"{recognizer!r}\ncontract {endpoints.contract}")
        if endpoints.no_threshold is not None:
            print(f"/v1/verify is closed: {endpoints.no_threshold}")
        elif threshold is None:
            print(f"/v1/verify says same from a cosine of {endpoints.threshold}")
        if endpoints.enrolled is not None:
            print(f"gallery {gallery}: {len(endpoints.enrolled.gallery):,} people")
        print(f"listening on http://{address}:{port}", flush=True)
        claims.enter_context(python_alone_on_stderr())
        faulthandler.enable()  # a crash of a library stays in the log
        create_server(endpoints).run([listener])


def main() -> None:
    """Run the command."""
    run_command(serve)


if __name__ == "__main__":
    main()
