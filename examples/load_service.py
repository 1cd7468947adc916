"""Load on a running service from many clients at once, to see throughput and latency.

python examples/load_service.py http://127.0.0.1:8000 face.jpg --clients 16
"""

from __future__ import annotations

import http.client
import multiprocessing
import time
import urllib.parse
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray

from facerec.commands.cli import run_command
from facerec.errors import FacerecError

_BOUNDARY = "facerec-load"


@dataclass(frozen=True, eq=False)
class Load:
    """What the clients saw."""

    clients: int
    seconds: float
    """From the first request to the last answer."""
    latencies: NDArray[np.float64]
    """Seconds from request to answer, one a request."""

    @property
    def per_second(self) -> float:
        """Requests answered per second."""
        return self.latencies.size / self.seconds

    def percentile_ms(self, percent: float) -> float:
        """Return the latency that this share of the requests did not exceed, in milliseconds."""
        return float(np.percentile(self.latencies, percent)) * 1000

    def __str__(self) -> str:
        return (
            f"{self.clients} clients: {self.per_second:,.1f} requests/s, latency p50 "
            f"{self.percentile_ms(50):,.1f} ms, p99 {self.percentile_ms(99):,.1f} ms "
            f"({self.latencies.size:,} requests of one image)"
        )


def load_service(url: str, image: bytes, *, clients: int = 16, requests: int = 50) -> Load:
    """Send one image per request to ``/v1/embed``, each client its next when it has an answer.

    The clients run in a process of their own, so that they do not wait for the locks of a service
    in this one. Each sends one request beforehand, which does not count.

    Args:
        url: of the service, ``http://host:port``.
        image: a JPEG or PNG of an aligned face.
        clients: connections.
        requests: of each client.

    Raises:
        FacerecError: an answer other than 200, or no connection.
    """
    # Spawned, since this process may hold a service with threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_run_clients, url, image, clients, requests).result()


def _run_clients(url: str, image: bytes, clients: int, requests: int) -> Load:
    address = urllib.parse.urlsplit(url).netloc
    connections = [http.client.HTTPConnection(address, timeout=60) for _ in range(clients)]
    try:
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(partial(_send, image, 1), connections))
            begin = time.perf_counter()
            latencies = list(pool.map(partial(_send, image, requests), connections))
            seconds = time.perf_counter() - begin
    except OSError as error:
        raise FacerecError(f"{url}: no service answers there ({error}); start one") from error
    return Load(clients, seconds, np.concatenate(latencies))


def _send(image: bytes, requests: int, connection: http.client.HTTPConnection) -> list[float]:
    """Send one image after the other; return the latencies in seconds."""
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="i"\r\n\r\n'
    body = head.encode() + image + f"\r\n--{_BOUNDARY}--\r\n".encode()
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
    clients: int = 16,
    requests: int = 50,
) -> None:
    """Measure throughput and latency of a running service.

    Args:
        url: where it listens, for example http://127.0.0.1:8000.
        image: a JPEG or PNG of an aligned face.
        clients: connections; each sends its next request when it has an answer.
        requests: of each client, with one image each.
    """
    try:
        content = image.read_bytes()
    except OSError as error:
        raise FacerecError(f"{image}: the image cannot be read ({error.strerror})") from error
    print(load_service(url, content, clients=clients, requests=requests))


def main() -> None:
    """Run the command."""
    run_command(load)


if __name__ == "__main__":
    main()
