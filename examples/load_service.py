"""Load on a running service from many clients at once, to see throughput and latency.

python examples/load_service.py http://127.0.0.1:8000 face.jpg --clients 16 --hostile 4
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import multiprocessing
import struct
import threading
import time
import urllib.parse
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro
from numpy.typing import NDArray

from facerec.base.errors import FacerecError
from facerec.base.limits import Count
from facerec.commands.cli import run_command
from facerec.service.limits import ANYBODY, Access

if TYPE_CHECKING:
    from facerec.service.app import Service

_BOUNDARY = "facerec-load"


@dataclass(frozen=True, eq=False)
class Load:
    """What the clients saw."""

    clients: int
    seconds: float
    """From the first request to the last answer."""
    latencies: NDArray[np.float64]
    """Seconds from request to answer, one a request."""
    hostile: int = 0
    """Clients beside them that send what costs a decoder most."""

    @property
    def per_second(self) -> float:
        """Requests answered per second."""
        return self.latencies.size / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return the latency that this share of the requests did not exceed, in milliseconds."""
        return float(np.percentile(self.latencies, percent)) * 1000

    def __str__(self) -> str:
        beside = f" beside {self.hostile} hostile ones" if self.hostile else ""
        return (
            f"{self.clients} clients{beside}: {self.per_second:,.1f} requests/s, latency p50 "
            f"{self.percentile_ms(50):,.1f} ms, p99 {self.percentile_ms(99):,.1f} ms, longest "
            f"{self.percentile_ms(100):,.1f} ms "
            f"({self.latencies.size:,} requests of one image)"
        )


def load_service(
    url: str, image: bytes, *, clients: int = 16, requests: int = 50, hostile: int = 0
) -> Load:
    """Send one image per request to ``/v1/embed``, each client its next when it has an answer.

    The clients run in a process of their own, so that they do not wait for the locks of a service
    in this one. Each sends one request beforehand, which does not count.

    Args:
        url: of the service, ``http://host:port``.
        image: a JPEG or PNG of an aligned face.
        clients: connections.
        requests: of each client.
        hostile: clients beside them that send `costly_uploads`, one after the other.

    Raises:
        FacerecError: an answer other than 200, or no connection.
    """
    # Spawned, since this process may hold a service with threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_run_clients, url, image, clients, requests, hostile).result()


def _run_clients(url: str, image: bytes, clients: int, requests: int, hostile: int) -> Load:
    address = urllib.parse.urlsplit(url).netloc
    ended = threading.Event()
    bodies = costly_uploads() if hostile else []
    attackers = [
        threading.Thread(target=_attack, args=(address, ended, bodies, i)) for i in range(hostile)
    ]
    for attacker in attackers:
        attacker.start()
    connections = [http.client.HTTPConnection(address, timeout=60) for _ in range(clients)]
    try:
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(partial(_send, image, 1), connections))
            begin = time.perf_counter()
            latencies = list(pool.map(partial(_send, image, requests), connections))
            seconds = time.perf_counter() - begin
    except OSError as error:
        raise FacerecError(f"{url}: no service answers there ({error}); start one") from error
    finally:
        ended.set()
        for attacker in attackers:
            attacker.join()
    return Load(clients, seconds, np.concatenate(latencies), hostile)


@contextlib.contextmanager
def running(service: Service, access: Access = ANYBODY) -> Iterator[str]:
    """Serve from a thread of this process while the block runs; give the URL."""
    from facerec.service.app import create_server, listen  # not in the process of the clients

    with listen("127.0.0.1", 0) as listener:
        server = create_server(service, access)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while thread.is_alive() and not server.started:
                time.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def costly_uploads() -> list[bytes]:
    """Return bodies that are small for what a decoder without bounds would do with them."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    def png(side: int, rows: bytes, depth: int = 8, kind: int = 2, before: bytes = b"") -> bytes:
        head = struct.pack(">IIBBBBB", side, side, depth, kind, 0, 0, 0)
        start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before
        return start + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")

    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(6_000_000)))
    claims = png(112, b"")[:33] + b"\xff\xff\xff\xffIDAT"
    photo = png(3900, bytes(3900 * (1 + 8 * 3900)), depth=16, kind=6)
    return [
        _form(png(112, bytes(112 * 337), before=text * 2000)),  # 12 MB of text chunks
        _form(png(112, bytes(200_000_000))),  # rows far beyond the image
        _form(*[claims] * 64),  # chunks that claim 4 GB
        _form(photo),  # 15 megapixels of 16-bit RGBA
        _form(*[photo] * 64),
    ]


def _attack(address: str, ended: threading.Event, bodies: list[bytes], first: int) -> None:
    """Send bodies until the others have ended; refusals and broken connections are fine."""
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    for i in itertools.count(first):
        if ended.is_set():
            return
        connection = http.client.HTTPConnection(address, timeout=60)
        dropped = contextlib.suppress(OSError, http.client.HTTPException)
        with contextlib.closing(connection), dropped:
            connection.request("POST", "/v1/embed", bodies[i % len(bodies)], headers)
            connection.getresponse().read()


def _form(*images: bytes) -> bytes:
    """Return the multipart body of a request."""
    head = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name=".encode()
    parts = [head + b'"images"; filename="i"\r\n\r\n' + image + b"\r\n" for image in images]
    return b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()


def _send(image: bytes, requests: int, connection: http.client.HTTPConnection) -> list[float]:
    """Send one image after the other; return the latencies in seconds."""
    body = _form(image)
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    latencies = []
    for _ in range(requests):
        begin = time.perf_counter()
        connection.request("POST", "/v1/embed", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise FacerecError(f"the service answers {answer.status}: {text.decode()}")
        latencies.append(time.perf_counter() - begin)
    return latencies


def load(
    url: tyro.conf.Positional[str],
    image: tyro.conf.Positional[Path],
    clients: Count = 16,
    requests: Count = 50,
    hostile: int = 0,
) -> None:
    """Measure throughput and latency of a running service.

    Args:
        url: where it listens, for example http://127.0.0.1:8000.
        image: a JPEG or PNG of an aligned face.
        clients: connections; each sends its next request when it has an answer.
        requests: of each client, with one image each.
        hostile: clients beside them that send images made to keep a decoder busy.
    """
    try:
        content = image.read_bytes()
    except OSError as error:
        raise FacerecError(f"{image}: the image cannot be read ({error.strerror})") from error
    print(load_service(url, content, clients=clients, requests=requests, hostile=hostile))


def main() -> None:
    """Run the command."""
    run_command(load)


if __name__ == "__main__":
    main()
