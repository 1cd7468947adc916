"""The endpoints of the service, around one recognizer, and its HTTP server.

Without a gallery nothing about a person is kept: no image, embedding, file name or person's name is
logged or written to disk. A gallery keeps one template and one name a person, and a hash of each
photo, in its file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

import facerec
from facerec.base.errors import FacerecError, ImageError, ModelError
from facerec.base.files import reading
from facerec.embedding.recognizer import FaceRecognizer
from facerec.service.batching import Metrics, MicroBatcher, Vectors
from facerec.service.gallery import GalleryFile
from facerec.service.limits import ANYBODY, BOUNDS, Access, Bounds
from facerec.service.uploads import Bodies, Fields, Form, Places, decode_faces, read_form

log = logging.getLogger("facerec.service")

GRACE = 3
"""Seconds in which requests are answered after the service is told to end."""

_FORMS = {
    "/v1/embed": ["images"],
    "/v1/faces": ["images"],
    "/v1/verify": ["images"],
    "/v1/enroll": ["images", "subject"],
    "/v1/identify": ["images"],
    "/v1/rename": ["subject", "new_subject"],
    "/v1/delete": ["subject"],
}
"""Paths, and the fields of their forms."""

_PATHS = (*_FORMS, "/v1/people", "/healthz", "/metrics")

# Whoever reads or changes who is known shows the token.
_BY_TOKEN = ("/v1/enroll", "/v1/rename", "/v1/delete", "/v1/people")

_IMAGES: dict[str, dict[str, Any]] = {
    "multipart/form-data": {"format": "binary"},
    "application/json": {"contentEncoding": "base64", "examples": ["/9j/4AAQSkZJRgABAQEA…"]},
}
"""What OpenAPI says of an image, by the kind of body."""

_FACES = {"/v1/faces": "all", "/v1/identify": "all", "/v1/enroll": None}
"""Paths that take other faces than the largest one of each image, see `decode_faces`."""

_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    503: {"Retry-After": "1", "Connection": "close"},
}
"""Of errors by their status."""


class Service:
    """The endpoints, around one recognizer.

    Args:
        recognizer: what embeds; only the batcher's thread calls it.
        bounds: what is taken.
        gallery: without one its endpoints are closed.
        choice: threshold, fpr and bench of ``/v1/verify``, see `FaceRecognizer.verify`.
    """

    def __init__(
        self,
        recognizer: FaceRecognizer,
        bounds: Bounds = BOUNDS,
        gallery: GalleryFile | None = None,
        **choice: Any,
    ) -> None:
        self.recognizer, self.bounds, self.choice = recognizer, bounds, choice
        self.contract = recognizer.contract
        self.metrics = Metrics()
        self.bodies = Bodies(bounds, self.metrics)
        self._batcher = MicroBatcher(recognizer.embed, bounds, self.metrics)
        # A large photo takes a second, so crops do not queue behind one; a detector is for one
        # thread. Changes and searches of the gallery take turns.
        names = ("crops", "photos", "answers")
        self._threads = {name: ThreadPoolExecutor(1, name) for name in names}
        own = {"embed": self._show, "faces": self._list, "verify": self._compare}
        self.works: dict[str, Callable[..., Any]] = {f"/v1/{name}": own[name] for name in own}
        for name in ("enroll", "identify", "rename", "delete", "people") if gallery else ():
            self.works[f"/v1/{name}"] = getattr(gallery, name)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Compute batches while the server runs."""
        self._working = asyncio.create_task(self._batcher.work())
        try:
            yield
        finally:
            self._working.cancel()
            for thread in self._threads.values():
                thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request: Request) -> Response:
        """Answer a form: with embeddings, a comparison, or what the gallery says."""
        names = _FORMS[request.url.path]
        async with self.bodies.whole(request) as fields:
            with self._batcher.places(1):  # before anything is decoded
                try:
                    work = self._answer(request, fields, names)
                    found = await asyncio.wait_for(work, self.bounds.timeout_s)
                except asyncio.TimeoutError as error:
                    late = "the service is too busy to answer in time; try again in a second"
                    raise HTTPException(503, late) from error
        return JSONResponse({**found, "contract": self.contract})

    async def people(
        self, offset: int = Query(0, ge=0), limit: int = Query(100, ge=1, le=1000)
    ) -> dict[str, Any]:
        """Tell who is in the gallery, and what it is of."""
        found = await self._run("answers", self.works["/v1/people"], offset, limit)
        return {**found, "contract": self.contract}

    async def _answer(self, request: Request, fields: Fields, names: list[str]) -> dict[str, Any]:
        path = request.url.path
        form = await self._run("crops", read_form, fields, names, self.bounds)
        vectors, places, notes = np.empty((0, 0), np.float32), [], []
        request.state.images = len(form.images)
        if form.images:
            crops = {self.recognizer.model.image_size}.issuperset(form.sizes)
            thread = "crops" if crops else "photos"
            which = _FACES.get(path, 1)
            most = max(self.bounds.max_queue, self.bounds.max_images)
            given = form.images, self.recognizer, which, most
            faces, places, notes = await self._run(thread, decode_faces, *given)
            with self._batcher.places(len(faces) - 1):
                vectors = await self._batcher.embed(faces)
        # What is begun is done, whether or not it is late.
        found = await self._run("answers", self.works[path], vectors, form, places)
        return {**found, "notes": [*notes, *found.get("notes", ())]}

    def _show(self, vectors: Vectors, form: Form, places: Places) -> dict[str, Any]:
        return {"embeddings": vectors.tolist(), "embedding_size": vectors.shape[1]}

    def _list(self, vectors: Vectors, form: Form, places: Places) -> dict[str, Any]:
        scores = map(self.recognizer.face_score, vectors)
        every = zip(places, scores, vectors.tolist(), strict=True)
        faces = [{**at, "face_score": score, "embedding": raw} for at, score, raw in every]
        return {"faces": faces, "embedding_size": vectors.shape[1]}

    def _compare(self, vectors: Vectors, form: Form, places: Places) -> dict[str, Any]:
        if len(vectors) != 2:
            two = "a comparison takes two images; send both in fields called images"
            raise HTTPException(400, two)
        try:
            return asdict(self.recognizer.verify(*vectors, **self.choice))
        except ModelError as error:
            how = "start the service with --threshold COSINE, or another --fpr and --bench"
            raise HTTPException(501, f"{error}; {how}") from error

    def _run(self, thread: str, work: Callable[..., Any], *given: Any) -> Awaitable[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads[thread], work, *given)

    async def healthz(self) -> Response:
        """Tell whether the service answers, and with which model, engine and device."""
        about = self.recognizer.describe()
        named = ("name", "runtime", "device", "precision", "embedding_size", "contract")
        stopped = self._working.done()
        said = {"status": "stopped" if stopped else "ok", **{key: about[key] for key in named}}
        return JSONResponse(said, 503 if stopped else 200)

    async def expose(self) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def observe(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Count, time and log a request.

        An unforeseen error's message may hold what the log must not, and so may a path or a method
        that is none of the service's.
        """
        began = time.monotonic()
        try:
            response = await call_next(request)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.error("%s in %s, line %s", type(error).__name__, place.filename, place.lineno)
            response = answer_error(500, "the service failed on this request; see its log")
        path, method, seconds = request.url.path, request.method, time.monotonic() - began
        path = path if path in _PATHS else "other"
        method = method if method in ("GET", "HEAD", "POST", "OPTIONS") else "other"
        self.metrics.seconds.labels(path, str(response.status_code)).observe(seconds)
        said = method, path, response.status_code, getattr(request.state, "images", 0)
        log.info("%s %s %d images=%d %.1f ms", *said, 1000 * seconds)
        return response


def answer_error(status: int, sentence: str) -> JSONResponse:
    """Return an error as JSON."""
    return JSONResponse({"error": sentence}, status, _HEADERS.get(status))


async def refuse(request: Request, error: Exception) -> Response:
    """Answer what cannot be done, in one sentence."""
    if isinstance(error, HTTPException):
        return answer_error(error.status_code, error.detail)
    if isinstance(error, RequestValidationError):
        wrong = error.errors()[0]
        return answer_error(400, f"{wrong['loc'][-1]}: {wrong['msg'].lower()}")
    return answer_error(422 if isinstance(error, ImageError) else 400, str(error))


def _describe(fields: list[str], image: dict[str, Any]) -> dict[str, Any]:
    """Return what OpenAPI says of a body."""
    name = {"type": "string", "examples": ["somebody"]}
    images = {"type": "array", "items": {"type": "string", **image}}
    properties = {field: images if field == "images" else name for field in fields}
    return {"schema": {"type": "object", "required": fields, "properties": properties}}


def create_app(service: Service, access: Access) -> FastAPI:
    """Return the ASGI application of a service."""

    async def check(request: Request) -> None:
        if not access.is_own_site(request):
            other = "a host of another name (start with --allow-host NAME) or from a page of"
            raise HTTPException(403, f"this is for {other} another site (--allow-origin ORIGIN)")
        if request.url.path in _BY_TOKEN and not access.is_shown_token(request):
            token = "people's names take the token: send Authorization: Bearer TOKEN"
            raise HTTPException(401, token)
        if request.url.path not in service.works:
            raise HTTPException(501, "the service has no gallery; start it with --gallery FILE")

    refused = (HTTPException, RequestValidationError, ImageError, ClientDisconnect)
    app = FastAPI(
        title="facerec",
        version=facerec.__version__,
        lifespan=service.lifespan,
        docs_url=None,  # the pages of both would load scripts from elsewhere
        redoc_url=None,
        exception_handlers=dict.fromkeys(refused, refuse),
    )
    own: dict[str, Any] = {"dependencies": [Depends(check)]}
    for path, fields in _FORMS.items():
        content = {kind: _describe(fields, image) for kind, image in _IMAGES.items()}
        body = {"requestBody": {"required": True, "content": content}}
        app.post(path, name=path, openapi_extra=body, **own)(service.answer)
    app.get("/v1/people", **own)(service.people)
    for path, state in (("/healthz", service.healthz), ("/metrics", service.expose)):
        app.get(path)(state)
        app.head(path, include_in_schema=False)(state)
    if access.allow_origin:  # so that pages of these sites may read the answers
        app.add_middleware(
            CORSMiddleware,
            allow_origins=access.allow_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization"],
        )
    app.middleware("http")(service.observe)
    return app


def create_server(service: Service, access: Access = ANYBODY) -> uvicorn.Server:
    """Return the HTTP server of a service, which serves once.

    Args:
        service: the endpoints.
        access: whose requests are answered.
    """
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it quotes uploads
    config = uvicorn.Config(
        create_app(service, access),
        access_log=False,
        log_level="critical",  # others tell of every request that is no HTTP
        server_header=False,
        ws="none",
        proxy_headers=bool(access.trust_proxy),
        forwarded_allow_ips=list(access.trust_proxy),
        lifespan="on",
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config)


def listen(host: str, port: int) -> socket.socket:
    """Open the port to listen on; 0 takes a free one.

    Raises:
        FacerecError: it is not to be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    advice, faults = "choose another --host or --port", (OSError, OverflowError)
    with reading(f"{host}, port {port}", FacerecError, advice, faults, "listened to"):
        listener = socket.create_server((host, port), family=family)
    # An answer leaves in two writes, of which the second would wait for the client's delayed
    # acknowledgement of the first. asyncio takes care of that on sockets of its own making only.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
