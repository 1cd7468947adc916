"""What the service takes, and whose requests it answers."""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from facerec.base.errors import FacerecError, RecipeError
from facerec.base.files import open_file
from facerec.base.limits import Count, Flags, NonNegative, Positive

if TYPE_CHECKING:
    from starlette.requests import Request

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Bounds(Flags):
    """What the service takes, and how it gathers batches."""

    max_batch: Count = 32
    """Images that go through the network together; 1 computes one request after the other."""
    max_wait_ms: NonNegative = 5.0
    """Milliseconds that a batch waits at most for images of requests that are on their way."""
    max_queue: Count = 256
    """Images admitted and not yet answered, --max-images at least; beyond that requests get status
    503. As many bodies of one address, and twice as many of all, may be on their way."""
    max_images: Count = 64
    """Images in one request."""
    max_body_bytes: Count = 16 << 20
    """Bytes of one request's body; eight times as much of one address may be on its way, and twice
    that of all."""
    max_pixels: Count = 16_000_000
    """Pixels of all images of one request, by their headers."""
    max_people: Count = 100_000
    """People in the gallery; every change writes its whole file."""
    timeout_s: Positive = 30.0
    """Seconds that a body may take to arrive, and then an answer to be computed."""


BOUNDS = Bounds()


@dataclass(frozen=True)
class Access:
    """Whose requests are answered.

    A page of another site can make its visitor's browser send forms to this machine, under the name
    of that site (``Origin``, ``Sec-Fetch-Site``) or, once its own name leads here, under that name
    (``Host``).
    """

    allow_origin: tuple[str, ...] = ()
    """Sites whose pages may use the service, as browsers name them, in lower case without a path:
    https://app.example:8443."""
    allow_host: tuple[str, ...] = ()
    """Names by which this service is called in addresses, besides localhost and --host."""
    trust_proxy: tuple[str, ...] = ()
    """Addresses of proxies whose X-Forwarded-For says where a request is from; without any the
    header counts for nothing, as anybody can send one."""
    token_file: Path | None = None
    """File with the token that requests which change the gallery or list its people must show; its
    owner alone may read it."""

    def __post_init__(self) -> None:
        odd = [at for at in self.allow_origin if not re.fullmatch(r"[a-z]+://[^/*\sA-Z]+", at)]
        if odd:
            raise RecipeError(f"--allow-origin {odd[0]}: it must be like https://app.example:8443")

    @functools.cached_property
    def token(self) -> bytes | None:
        """What whoever changes the gallery or lists its people must show.

        Raises:
            FacerecError: no file of one line that its owner alone can read.
        """
        if self.token_file is None:
            return None
        token = b""
        with contextlib.suppress(OSError), open_file(self.token_file) as file:
            if not os.fstat(file.fileno()).st_mode & 0o077:
                token = file.read(4096).strip()
        if not re.fullmatch(rb"[!-~]{1,1000}", token):
            raise FacerecError(
                f"{self.token_file}: no token, which is one line of letters, digits and signs "
                "without spaces, in a file that its owner alone can read (mode 600); write one "
                "with (umask 077; openssl rand -hex 32 > FILE)"
            )
        return token

    def is_own_site(self, request: Request) -> bool:
        """Tell that no page of another site had its visitor's browser send a request."""
        host = request.headers.get("host", "").lower()
        reached = (request.scope.get("server") or [""])[0]
        known = _name(host) in {*LOOPBACK, *map(_name, self.allow_host), reached}
        origins = set(request.headers.getlist("origin")) - {f"http://{host}", f"https://{host}"}
        sites = set(request.headers.getlist("sec-fetch-site")) - {"same-origin", "none"}
        return known and origins.issubset(self.allow_origin) and not (sites and not origins)

    def is_shown_token(self, request: Request) -> bool:
        """Tell whether a request shows the token, where there is one."""
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        given = shown.strip().encode() if scheme.lower() == "bearer" else b""
        return self.token is None or hmac.compare_digest(given, self.token)


ANYBODY = Access()


def _name(host: str) -> str:
    """Return the name in a ``Host`` header, without port and brackets."""
    return re.sub(r":\d*$", "", host.lower()).removeprefix("[").removesuffix("]")
