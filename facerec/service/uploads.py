"""Bodies of requests: bounded in number and bytes, taken apart, and decoded."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import File, FormParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from facerec.base.errors import ImageError
from facerec.base.names import same_name
from facerec.embedding.recognizer import FaceRecognizer, read_photo
from facerec.records.decode import image_size
from facerec.service.batching import Faces, Metrics
from facerec.service.limits import Bounds, Refusal

Places = list[dict[str, Any]]
"""Of each face: number of its image, its own number from the largest on, and box in pixels."""

LARGE = 8
"""Bodies of the largest size that one address may have on their way."""

NAME_CHARACTERS = 200
"""Longest name of a person."""


@dataclass(eq=False)
class _Body:
    address: str
    content: bytearray = field(default_factory=bytearray)
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
        self._readers: dict[_Body, asyncio.Task[None]] = {}
        metrics.pending.set_function(lambda: sum(not body.whole for body in self._readers))

    @contextlib.asynccontextmanager
    async def whole(self, request: Request) -> AsyncIterator[bytes]:
        """Give the body of a request once it is whole, whatever its header says of the length.

        Raises:
            Refusal: it is too large, late or in the way, or the client leaves.
        """
        body = _Body(request.client.host if request.client else "")
        reader = self._readers[body] = asyncio.create_task(self._read(body, request))
        self._make_room(self._most)
        try:
            await asyncio.wait({reader}, timeout=self._bounds.timeout_s)
            if not reader.done():
                raise Refusal(
                    408, f"the body did not arrive within {self._bounds.timeout_s:g} seconds"
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
        self._make_room(0)

    async def _read(self, body: _Body, request: Request) -> None:
        limit = self._bounds.max_body_bytes
        too_large = Refusal(
            413, f"a request may have {limit:,} bytes; send fewer or smaller images"
        )
        claimed = request.headers.get("content-length", "")
        if claimed.isdecimal() and int(claimed[:20]) > limit:
            raise too_large
        try:
            async for chunk in request.stream():
                body.content += chunk
                if body in self._readers:  # which are in the order in which they were heard of
                    self._readers[body] = self._readers.pop(body)
                if len(body.content) > limit:
                    raise too_large
                self._make_room(self._most)
        except ClientDisconnect as error:
            raise Refusal(400, "the connection closed before the body was complete") from error
        body.whole = True

    def _make_room(self, most: int) -> None:
        """Let bodies give way until one address has at most half of ``most``, and all have it."""
        while True:
            pending: Counter[str] = Counter()
            total = 0
            for body in self._readers:
                weight = max(len(body.content), self._least)
                total += weight
                pending[body.address] += 0 if body.whole else weight
            address, heaviest = max(pending.items(), key=lambda item: item[1], default=("", 0))
            if not heaviest or (heaviest <= most // 2 and total <= most):
                return
            own = (body for body in self._readers if body.address == address and not body.whole)
            self._readers.pop(next(own)).cancel()


class Form(NamedTuple):
    """What a request holds, before any pixel is decoded."""

    images: list[bytes]
    sizes: list[tuple[int, int]]
    """Height and width of each image, by its header."""
    subject: str
    """Name of a person, where the request has one."""


def read_form(body: bytes, content_type: str, names: Sequence[str], bounds: Bounds) -> Form:
    """Return what a multipart body holds; the names of its files are not kept.

    Args:
        body: of the request.
        content_type: the header that names its boundary.
        names: of the fields that it must have.
        bounds: on images and their pixels.

    Raises:
        Refusal: another kind of body, a damaged one, a field that is unknown, missing or there too
            often, or too many pixels.
        ImageError: what is no image.
    """
    found: dict[str, list[bytes]] = {name: [] for name in names}
    most = bounds.max_images + ("subject" in names)
    for name, content in parse_form(body, content_type, most):
        if name not in found:
            raise Refusal(400, f"the form may have {' and '.join(names)}; leave other fields out")
        found[name].append(content)
    images, subjects = found.get("images", []), found.get("subject")
    if not images and "images" in names:
        raise Refusal(400, "the form holds no image; send one or more in fields called images")
    sizes = [image_size(image, f"image {i}") for i, image in enumerate(images)]
    for i, pixels in enumerate(np.cumsum([height * width for height, width in sizes])):
        if pixels > bounds.max_pixels:
            raise Refusal(
                413,
                f"image {i}: it has {sizes[i][0]:,}×{sizes[i][1]:,} pixels, more than the limit of "
                f"{bounds.max_pixels:,} for the images of a request; scale them down, or send "
                "several requests",
            )
    subject = "" if subjects is None else _read_name(subjects)
    return Form(images, sizes, subject)


def _read_name(subjects: Sequence[bytes]) -> str:
    text = subjects[0].decode("utf-8", "replace") if len(subjects) == 1 else ""
    name = same_name(text.strip())
    if not name.isprintable() or "\ufffd" in name or not 0 < len(name) <= NAME_CHARACTERS:
        raise Refusal(
            400,
            f"name one person in a field called subject, in 1 to {NAME_CHARACTERS} printable "
            "characters of UTF-8",
        )
    return name


def decode_faces(
    images: list[bytes], recognizer: FaceRecognizer, which: Literal["all"] | int | None, most: int
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
        Refusal: too many faces.
    """
    faces: list[Any] = []
    places: Places = []
    notes: list[str] = []
    for i, image in enumerate(images):
        pixels, where = read_photo(image, f"image {i}")
        if misplaced := recognizer.misplaced(pixels, where):
            raise ImageError(misplaced)
        if which == "all":
            found = recognizer.faces(pixels, where)
        else:
            face, note = recognizer.face(pixels, where, which)
            found, notes = [(face, None)], [*notes, note]
        faces += [face for face, _ in found]
        places += [{"image": i, "face": k, "box": box} for k, (_, box) in enumerate(found, 1)]
    if len(faces) > most:
        raise Refusal(413, f"{len(faces):,} faces, more than the limit of {most:,}; cut photos up")
    return np.stack(faces), places, [*filter(None, notes)]


def parse_form(body: bytes, content_type: str, most: int) -> list[tuple[str, bytes]]:
    """Return names and contents of the fields of a multipart body.

    Raises:
        Refusal: another kind of body, a damaged one, or more than so many fields.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise Refusal(415, "send multipart/form-data, with fields called images or subject")
    fields: list[tuple[str, bytes]] = []
    ended = []

    def add(name: bytes | None, content: bytes | None) -> None:
        fields.append(((name or b"").decode("latin-1"), content or b""))
        if len(fields) > most:
            raise Refusal(413, f"a form may hold {most} fields; send several requests")

    def add_file(part: File) -> None:
        part.file_object.seek(0)
        add(part.field_name, part.file_object.read())

    try:
        parser = FormParser(
            "multipart/form-data",
            on_field=lambda part: add(part.field_name, part.value),
            on_file=add_file,
            on_end=lambda: ended.append(True),
            boundary=options[b"boundary"],
            config={"MAX_MEMORY_FILE_SIZE": math.inf},  # never to the disk
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, UnicodeError) as error:  # the latter for names that are no UTF-8
        raise Refusal(400, "the multipart body is malformed; send it again") from error
    if not ended:
        raise Refusal(400, "the multipart body ends before its last boundary; send it again")
    return fields
