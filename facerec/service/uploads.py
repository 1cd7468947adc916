"""Bodies of requests: bounded in number and bytes, taken apart, and decoded."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio
import numpy as np
from pydantic import TypeAdapter
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from facerec.base.errors import ImageError, message_line
from facerec.base.names import same_name
from facerec.embedding.align import Which
from facerec.embedding.recognizer import FaceRecognizer, read_photo
from facerec.records.decode import image_size
from facerec.service.batching import Faces, Metrics
from facerec.service.limits import Bounds

Fields = list[tuple[str, bytes]]
"""Names and contents of the fields of a form, or of JSON in its place."""

Places = list[dict[str, Any]]
"""Of each face: number of its image, its own number from the largest on, and box in pixels."""

_TEXTS = TypeAdapter(list[tuple[str, str | list[str]]])

LARGE = 8
"""Bodies of the largest size that one address may have on their way."""

NAME_CHARACTERS = 200
"""Longest name of a person."""

PARTS = 1000
"""Parts of a form, or marks of JSON, that a body may have beside those of its images: far more than
a request needs, so that nothing nests, or becomes many objects."""


def at_most(most: int, count: int, what: str) -> None:
    """Refuse a request that has more of something than one may have.

    Raises:
        HTTPException: it has.
    """
    if count > most:
        how = "send fewer or smaller images"
        raise HTTPException(413, f"{count:,} {what}, where a request may have {most:,}; {how}")


@dataclass(eq=False)
class _Body:
    address: str
    reading: anyio.CancelScope
    size: int = 0
    whole: bool = False


class Bodies:
    """The bodies of requests, bounded in number and bytes, of one address and in all.

    Where there is no room, the one of the heaviest address that has been silent longest gives way,
    so that whoever sends nothing keeps nobody out. What is whole stays until it is answered.

    Args:
        bounds: number, bytes and time.
        metrics: counts those on their way.
    """

    def __init__(self, bounds: Bounds, metrics: Metrics) -> None:
        self._bounds = bounds
        self._most = 2 * LARGE * bounds.max_body_bytes
        # However short, a body weighs so much that the bound of bytes is one of their number too.
        self._least = self._most // (2 * bounds.max_queue)
        self._held: dict[_Body, None] = {}  # in the order in which they were heard of
        metrics.pending.set_function(lambda: sum(not body.whole for body in self._held))

    @contextlib.asynccontextmanager
    async def whole(self, request: Request) -> AsyncIterator[Fields]:
        """Give the form of a request once it is whole, whatever its header says of the length.

        Args:
            request: whose body it is.

        Raises:
            HTTPException: it is no form, too large, late or in the way.
            ClientDisconnect: the client leaves.
        """
        seconds = self._bounds.timeout_s
        address = request.client.host if request.client else ""
        body = _Body(address, anyio.move_on_after(seconds))
        kind = request.headers.get("content-type", "")
        self._held[body] = None
        self._make_room()
        try:
            with body.reading:
                chunks = self._chunks(body, request)
                fields = await parse_body(chunks, kind, PARTS + 2 * self._bounds.max_images)
            if body not in self._held:
                busy = "the service is busy with other bodies; try again in a second"
                raise HTTPException(503, busy)
            if body.reading.cancelled_caught:
                raise HTTPException(408, f"the body did not arrive within {seconds:g} seconds")
            yield fields
        finally:
            self._held.pop(body, None)

    async def _chunks(self, body: _Body, request: Request) -> AsyncGenerator[bytes, None]:
        limit = self._bounds.max_body_bytes
        at_most(limit, int(request.headers.get("content-length", 0)), "bytes")
        async for chunk in request.stream():
            body.size += len(chunk)
            at_most(limit, body.size, "bytes")
            if body in self._held:
                self._held[body] = self._held.pop(body)
            self._make_room()
            yield chunk
        body.whole = True

    def _make_room(self) -> None:
        """Let bodies give way until no address has more than half of the bytes that all may."""
        while True:
            pending: Counter[str] = Counter()
            for body in self._held:
                pending[body.address] += 0 if body.whole else max(body.size, self._least)
            total = sum(max(body.size, self._least) for body in self._held)
            address, heaviest = max(pending.items(), key=lambda item: item[1], default=("", 0))
            if not heaviest or (heaviest <= self._most // 2 and total <= self._most):
                return
            own = (body for body in self._held if body.address == address and not body.whole)
            silent = next(own)
            del self._held[silent]
            silent.reading.cancel()


class Form(NamedTuple):
    """What a request holds, before any pixel is decoded."""

    images: list[bytes]
    sizes: list[tuple[int, int]]
    """Height and width of each image, by its header."""
    subject: str = ""
    """Name of a person, where the request has one."""
    new_subject: str = ""
    """Another name for them."""


def read_form(fields: Fields, names: Sequence[str], bounds: Bounds) -> Form:
    """Return what a form holds; the names of its files are not kept.

    Args:
        fields: of the form.
        names: of the fields that it must have.
        bounds: on images and their pixels.

    Raises:
        HTTPException: a field that is unknown, missing or there too often, or too many pixels.
        ImageError: what is no image.
    """
    if {name for name, _ in fields} != {*names}:
        listed = " and ".join(names)
        raise HTTPException(400, f"send fields called {listed}, and no others")
    found = {name: [content for own, content in fields if own == name] for name in names}
    images = found.pop("images", [])
    at_most(bounds.max_images, len(images), "images")
    sizes = [image_size(image, f"image {i}") for i, image in enumerate(images)]
    at_most(bounds.max_pixels, sum(height * width for height, width in sizes), "pixels")
    return Form(images, sizes, **{field: _read_name(found[field], field) for field in found})


def _read_name(given: Sequence[bytes], field: str) -> str:
    text = given[0].decode("utf-8", "replace") if len(given) == 1 else ""
    name = same_name(text.strip())
    if not name.isprintable() or "\ufffd" in name or not 0 < len(name) <= NAME_CHARACTERS:
        signs = f"1 to {NAME_CHARACTERS} printable characters of UTF-8"
        raise HTTPException(400, f"name one person in a field called {field}, in {signs}")
    return name


def decode_faces(
    images: list[bytes], recognizer: FaceRecognizer, which: Which, most: int
) -> tuple[Faces, Places, list[str]]:
    """Return aligned faces, uint8 RGB ``(N, H, W, 3)``, where each lies, and notes on photos.

    Args:
        images: encoded.
        recognizer: finds the faces.
        which: all faces of each, or one, see `FaceRecognizer.face`.
        most: faces that a request may have.

    Raises:
        ImageError: an image without a face, or that does not decode, or nobody knows whose it is,
            or a crop that lies otherwise than the network expects.
        HTTPException: too many faces.
    """
    faces: list[Any] = []
    places: Places = []
    notes: list[str] = []
    for i, image in enumerate(images):
        pixels, where = read_photo(image, f"image {i}")
        if misplaced := recognizer.misplaced(pixels, where):
            raise ImageError(misplaced)
        found, note = recognizer.faces(pixels, where, which)
        notes.append(note)
        faces += [face for face, _ in found]
        places += [{"image": i, "face": k, "box": box} for k, (_, box) in enumerate(found, 1)]
    at_most(most, len(faces), "faces")
    return np.stack(faces), places, [*filter(None, notes)]


async def parse_body(chunks: AsyncGenerator[bytes, None], content_type: str, most: int) -> Fields:
    """Return the fields of a multipart body as it comes, or of a JSON object once it is there.

    Raises:
        HTTPException: another kind of body, a damaged one, or of more than so many parts.
    """
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            body = b"".join([chunk async for chunk in chunks])
            return await asyncio.to_thread(_parse_json, body, most)
        if kind == "multipart/form-data":
            return await _parse_form(chunks, content_type, most)
    except (MultiPartException, ValueError, RecursionError) as error:
        raise HTTPException(
            400,
            f"the body is no whole form, or no JSON object of texts ({message_line(error)}); send "
            "a list of images in base64, and a name as one text",
        ) from error
    kinds = "multipart/form-data or application/json"
    raise HTTPException(415, f"send {kinds}, with fields called images or subject")


class _Parser(MultiPartParser):
    """Keeps files of any size in memory, and tells whether the form had its last boundary."""

    spool_max_size = 0
    ended = False

    def on_end(self) -> None:
        self.ended = True


async def _parse_form(chunks: AsyncGenerator[bytes, None], kind: str, most: int) -> Fields:
    # Of what it reads as Latin-1, the last of several charsets, the bytes can be had again.
    headers = Headers({"content-type": f"{kind}; charset=latin-1"})
    parts = dict.fromkeys(("max_files", "max_fields"), most)
    parser = _Parser(headers, chunks, **parts, max_part_size=sys.maxsize)
    await parser.parse()
    if not parser.ended:
        raise MultiPartException("it ends before its last boundary")
    return [
        (name, part.encode("latin-1") if isinstance(part, str) else part.file.read())
        for name, part in parser.items
    ]


def _parse_json(body: bytes, most: int) -> Fields:
    """Return the fields of a JSON object, in which a list stands for several of one name."""
    if sum(map(body.count, (b"[", b"{", b","))) > most:
        raise ValueError("it has more texts than a request needs")
    # As pairs, since a name may come twice; strictly, as a list is no object.
    read = json.loads(body, object_pairs_hook=list)
    return [
        (name, _decode(text) if name == "images" else text.encode())
        for name, value in _TEXTS.validate_python(read, strict=True)
        for text in ([value] if isinstance(value, str) else value)
    ]


def _decode(text: str) -> bytes:
    """Return what base64 stands for, with or without line breaks and ``data:…,`` before it."""
    code = re.sub("^data:[^,]*,", "", text).encode().translate(None, b" \t\r\n")
    return base64.b64decode(code, validate=True)
