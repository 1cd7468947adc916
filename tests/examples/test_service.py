"""The service of examples/ over real HTTP: right answers, batches, refusals, shutdown."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.commands.cli import run_command
from facerec.embedding import EmbeddingModel, save_model
from facerec.embedding.align import align_face, face_template
from facerec.embedding.recognizer import FaceRecognizer, load
from facerec.errors import FacerecError, ImageError, ModelError
from facerec.records.decode import decode_image

httpx = pytest.importorskip("httpx")
for extra in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
    pytest.importorskip(extra)

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZE = 112
LFW = {"bench": "lfw", "fpr": "1e-3", "threshold": 0.5, "flip": False}

Client = Any
"""An `httpx.Client`."""


class Patches(EmbeddingModel):
    """Averages patches of 28×28 and multiplies by a random matrix: fast, and unlike per image."""

    name, path, sha256 = "patches", None, "0" * 64
    embedding_size, batch_size, recipe = 16, 32, {}
    preprocessing = Preprocessing()

    def __init__(self) -> None:
        self.matrix = np.random.default_rng(0).normal(size=(48, 16))
        self.note = {"thresholds": [LFW]}
        self.before: Callable[[], None] = lambda: None

    def describe(self) -> dict[str, Any]:
        return self._description("numpy", "cpu", "fp64")

    def _forward(self, pixels: torch.Tensor) -> np.ndarray:
        self.before()
        x = pixels.numpy().astype(np.float64).reshape(len(pixels), 4, 28, 4, 28, 3)
        return (x.mean(axis=(2, 4)).reshape(len(pixels), 48) / 128 - 1) @ self.matrix


class Gate:
    """Holds a model before its next batch."""

    def __init__(self, model: Patches) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        model.before = self._pass

    def _pass(self) -> None:
        self.entered.set()
        assert self.open.wait(20)


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        import service

        yield service


@pytest.fixture
def model() -> Patches:
    return Patches()


@pytest.fixture
def limits(example: ModuleType) -> Any:
    return example.Limits(max_images=4, max_body_bytes=200_000, max_pixels=90_000, timeout_s=10)


@pytest.fixture
def service(example: ModuleType, model: Patches, limits: Any) -> Any:
    return example.Service(FaceRecognizer(model), limits)


@pytest.fixture
def client(example: ModuleType, service: Any) -> Iterator[Client]:
    with example.running(service) as url, connect(url) as client:
        yield client


def connect(url: str) -> Client:
    # Without certificates to load, which would take longer than all else here.
    return httpx.Client(base_url=url, timeout=30, verify=False)


def faces(count: int, seed: int = 0, size: tuple[int, int] = (SIZE, SIZE)) -> np.ndarray:
    """Return images with large shapes, so that JPEG changes them little."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return np.stack([cv2.resize(image, size[::-1]) for image in coarse])


def encode(image: np.ndarray, suffix: str = ".png") -> bytes:
    return cv2.imencode(suffix, image[:, :, ::-1])[1].tobytes()


def form(*images: bytes, field: str = "images") -> list[tuple[str, tuple[str, bytes]]]:
    return [(field, ("someone.png", image)) for image in images]


def counts(client: Client) -> dict[str, float]:
    """Return the metrics by name with labels."""
    lines = client.get("/metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


# --- right answers ---------------------------------------------------------------------------


def test_embeddings_are_those_of_the_recognizer(client: Client, service: Any) -> None:
    images = faces(3)
    answer = client.post("/v1/embed", files=form(*map(encode, images)))
    assert answer.status_code == 200
    found = answer.json()
    expected = service.recognizer.embed(images)
    np.testing.assert_allclose(found["embeddings"], expected, rtol=1e-6)
    assert found["embedding_size"] == 16
    assert found["contract"] == service.recognizer.contract
    # JSON carries a float32 whole.
    alone = client.post("/v1/embed", files=form(encode(images[1]))).json()["embeddings"]
    np.testing.assert_array_equal(np.float32(alone), service.recognizer.embed(images[1:2]))


def test_jpeg_and_png_by_their_content(client: Client, service: Any) -> None:
    (image,) = faces(1)
    jpeg = encode(image, ".jpg")
    decoded = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    files = [("images", ("x.gif", jpeg, "image/gif")), ("images", ("x", encode(image), "text/x"))]
    found = client.post("/v1/embed", files=files).json()["embeddings"]
    expected = service.recognizer.embed([decoded, image])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_photos_with_points(client: Client, service: Any) -> None:
    photos = [faces(1, 1, (200, 260))[0], faces(1, 2, (150, 140))[0]]
    points = [face_template() * 1.5 + 12, face_template() + 5]
    answer = client.post(
        "/v1/embed",
        files=form(*map(encode, photos)),
        data={"points": json.dumps([places.tolist() for places in points])},
    )
    crops = [align_face(photo, places) for photo, places in zip(photos, points, strict=True)]
    np.testing.assert_allclose(
        answer.json()["embeddings"], service.recognizer.embed(crops), rtol=1e-6
    )


def test_verify(client: Client, service: Any) -> None:
    a, b = faces(2)
    expected = service.recognizer.verify(a, b)
    found = client.post("/v1/verify", files=form(encode(a), encode(b))).json()
    assert found.pop("similarity") == pytest.approx(expected.similarity, abs=1e-6)
    assert found == {
        "threshold": 0.5,
        "same": expected.same,
        "source": "FPR 1e-3 on lfw",
        "fpr": "1e-3",
        "contract": service.contract,
    }
    again = client.post("/v1/verify", files=form(encode(a), encode(a))).json()
    assert again["same"] is True and again["similarity"] == pytest.approx(1)


def test_verify_with_a_threshold_of_the_operator(example: ModuleType, model: Patches) -> None:
    service = example.Service(FaceRecognizer(model), threshold=2.0)
    with example.running(service) as url:
        found = httpx.post(f"{url}/v1/verify", files=form(*[encode(faces(1)[0])] * 2)).json()
    assert found["same"] is False and found["source"] == "given" and found["threshold"] == 2


def test_without_an_fpr_the_model_s_own_threshold_serves(
    example: ModuleType, model: Patches
) -> None:
    model.note = {"thresholds": [{**LFW, "fpr": "1e-1"}]}
    service = example.Service(FaceRecognizer(model))
    assert service.no_threshold is None and "FPR 1e-1 on lfw" in service.threshold


def test_verify_without_any_threshold(example: ModuleType, model: Patches) -> None:
    model.note = None
    with example.running(example.Service(FaceRecognizer(model))) as url:
        answer = httpx.post(f"{url}/v1/verify", files=form(*[encode(faces(1)[0])] * 2))
    assert answer.status_code == 501
    assert answer.json()["error"].startswith("patches: no threshold for FPR 1e-3 is known; give")
    assert "--threshold" in answer.json()["error"] and "--fpr" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("thresholds", "flag"),
    [
        ([{**LFW, "fpr": "1e-2"}, {**LFW, "fpr": "1e-2", "bench": "cfp_fp"}], "--bench"),
        ([{**LFW, "fpr": "1e-2"}], "--fpr"),
    ],
)
def test_verify_names_the_flag_that_is_missing(
    example: ModuleType, model: Patches, thresholds: list[dict[str, Any]], flag: str
) -> None:
    model.note = {"thresholds": thresholds}
    asked = "1e-4" if flag == "--fpr" else None
    service = example.Service(FaceRecognizer(model), fpr=asked)
    with example.running(service) as url:
        answer = httpx.post(f"{url}/v1/verify", files=form(*[encode(faces(1)[0])] * 2))
    assert answer.status_code == 501
    assert flag in answer.json()["error"] and "--threshold" in answer.json()["error"]


def test_thresholds_with_mirror_images_ask_for_flip(example: ModuleType, model: Patches) -> None:
    model.note = {"thresholds": [{**LFW, "flip": True}]}
    assert example.Service(FaceRecognizer(model)).no_threshold is None  # as they were made
    closed = example.Service(FaceRecognizer(model, flip=False)).no_threshold
    assert "--flip" in closed and "no threshold" not in closed
    assert example.Service(FaceRecognizer(model, flip=True)).no_threshold is None
    model.note = {"thresholds": [{**LFW, "flip": False}]}
    assert "--no-flip" in example.Service(FaceRecognizer(model, flip=True)).no_threshold


def test_health_and_interface(client: Client, service: Any) -> None:
    answer = client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ok",
        "name": "patches",
        "runtime": "numpy",
        "device": "cpu",
        "precision": "fp64",
        "embedding_size": 16,
        "contract": service.contract,
    }
    for path in ("/healthz", "/metrics"):
        head = client.head(path)
        assert head.status_code == 200 and head.text == ""
    assert client.head("/v1/embed").status_code == 405
    assert set(client.get("/openapi.json").json()["paths"]) == {
        "/v1/embed",
        "/v1/verify",
        "/v1/enroll",
        "/v1/identify",
        "/v1/delete",
        "/healthz",
        "/metrics",
    }


@pytest.mark.integration
def test_sixty_four_clients_get_each_their_own_answer(
    example: ModuleType, model: Patches, service: Any
) -> None:
    gate = Gate(model)
    images = faces(64, seed=5)
    expected = FaceRecognizer(Patches()).embed(images)

    def ask(url: str, i: int) -> np.ndarray:
        with connect(url) as client:
            answers = [client.post("/v1/embed", files=form(encode(images[i]))) for _ in range(3)]
            assert {answer.status_code for answer in answers} == {200}
            return np.array([answer.json()["embeddings"][0] for answer in answers])

    with example.running(service) as url:
        with ThreadPoolExecutor(64) as pool:
            asked = [pool.submit(ask, url, i) for i in range(64)]
            # The first batch is held and has at most 32 images, so 32 others gather meanwhile.
            wait_for(lambda: service._batcher._jobs.qsize() >= 32)
            gate.open.set()
            found = [client.result() for client in asked]
        with connect(url) as client:
            after = counts(client)
    for vectors, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(vectors, np.tile(right, (3, 1)), rtol=1e-5)
    assert after['facerec_requests_total{endpoint="/v1/embed",status="200"}'] == 192
    assert after["facerec_images_total"] == after["facerec_batch_images_sum"] == 192
    assert after['facerec_batch_images_bucket{le="16.0"}'] < after["facerec_batch_images_count"]
    assert after['facerec_batch_images_bucket{le="32.0"}'] == after["facerec_batch_images_count"]
    assert after["facerec_admitted_images"] == 0


# --- refusals --------------------------------------------------------------------------------

FACE = encode(faces(1)[0])
JPEG = encode(faces(1)[0], ".jpg")
POINTS = json.dumps([face_template().tolist()])


def png_header(width: int, height: int) -> bytes:
    """Return the beginning of a PNG that claims a size."""
    sides = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return FACE[:16] + sides + FACE[24:]


@pytest.mark.parametrize(
    ("files", "status", "sentence"),
    [
        (form(b"GIF89a not a face"), 422, "image 0: neither a JPEG nor a PNG"),
        (form(FACE, b"MZ" * 99), 422, "image 1: neither a JPEG nor a PNG"),
        (form(b""), 422, "image 0: neither a JPEG nor a PNG.*0 bytes, it is empty"),
        (form(JPEG[:-100]), 422, "image 0: the JPEG of .* lacks its end marker"),
        (form(FACE[:-100]), 422, "image 0: the PNG of .* does not decode"),
        (form(FACE[:20]), 422, "image 0: .* no size in its header"),
        (form(encode(faces(1, 0, (160, 160))[0])), 422, "image 0: it is 160×160 .* points"),
        (form(png_header(60_000, 60_000)), 422, "image 0: it is 60000×60000"),
        (form(*[FACE] * 5), 413, "a request may hold 4 images"),
        (form(*[b"x"] * 10_000), 413, "a request may "),
        (form(b"x" * 3_000_000), 413, "a request may have 200,000 bytes"),
        (form(FACE, field="image"), 400, "a field other than images and points"),
        (form(FACE, field="images\r\n"), 400, "a field other than images and points"),
        ([("points", ("p", b"[]"))], 400, "the form holds no image"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_malformed_uploads(
    client: Client, files: Any, status: int, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = client.post("/v1/embed", files=files)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert re.match(sentence, error) or re.search(sentence, error)
    assert "\n" not in error and "someone" not in answer.text
    # The service goes on, and has nothing to say to its log.
    assert client.post("/v1/embed", files=form(FACE)).status_code == 200
    after = counts(client)
    assert after[f'facerec_requests_total{{endpoint="/v1/embed",status="{status}"}}'] == 1
    assert after["facerec_images_total"] == 1 and after["facerec_admitted_images"] == 0
    log = "".join(capfd.readouterr())
    assert log == ""


def damaged_images() -> list[bytes]:
    """Return images of which decoders in C complain on stderr."""

    def damaged(data: bytes, seed: int) -> bytes:
        broken = bytearray(data)
        places = np.random.default_rng(seed).integers(len(data) // 2, len(data) - 20, 3)
        broken[places[0]] ^= 255
        broken[places[1]] ^= 255
        return bytes(broken)

    rows = zlib.compress(bytes([77]) * (SIZE * (1 + 3 * SIZE)))  # 77 is no filter of a row
    chunk = b"IDAT" + rows
    bad_filter = FACE[:33] + len(rows).to_bytes(4, "big") + chunk
    bad_filter += zlib.crc32(chunk).to_bytes(4, "big") + FACE[-12:]
    return [bad_filter, *(damaged(JPEG, seed) for seed in range(40))]


def test_what_decoders_say_of_damaged_images_is_not_in_the_log(
    example: ModuleType, service: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    images = damaged_images()
    for image in images:
        with contextlib.suppress(ImageError):
            decode_image(image, "it", (SIZE, SIZE))
    said = capfd.readouterr().err
    assert "libpng" in said and said.count("Corrupt JPEG") > 10
    with (
        example.python_alone_on_stderr(),  # as `serve` has it
        example.running(service) as url,
        connect(url) as client,
    ):
        statuses = {client.post("/v1/embed", files=form(image)).status_code for image in images}
        assert talk(client, b"no HTTP\r\n\r\n")[0] == 400  # nor is what is no request
        # Python's own messages stay.
        logging.getLogger("facerec.service").error("a line of the log")
    assert statuses == {200, 422}
    assert capfd.readouterr().err == "a line of the log\n"


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        ("", "points must be JSON with five"),
        ("[[1, 2]]", r"numbers of shape .1, 5, 2."),
        ("[" * 900, "points must be JSON"),
        ("[" * 100_000, "points must be JSON"),
        (json.dumps([face_template().astype(str).tolist()]), "points must be JSON"),
        (json.dumps([[[1, 2]] * 4 + [[1]]]), "points must be JSON"),
        (json.dumps([[[10**30, 2]] * 5]), "points must be JSON"),
        ("\udcff", "points must be JSON"),
        (json.dumps([[[float("nan"), 2]] * 5]), "image 0: its five points are not all usable"),
        (json.dumps([[[900, 900]] * 5]), "image 0: all five points lie outside"),
        (json.dumps([[[9, 9]] * 5]), "image 0: its five points .nearly. coincide"),
    ],
)
def test_malformed_points(client: Client, points: str, sentence: str) -> None:
    data = points.encode("utf-8", "surrogateescape")
    answer = client.post("/v1/embed", files=[*form(FACE), ("points", (None, data))])
    assert answer.status_code in (400, 422)
    assert re.search(sentence, answer.json()["error"])


def test_the_photos_of_a_request_share_a_limit_of_pixels(client: Client) -> None:
    photo = encode(np.zeros((200, 200, 3), np.uint8))  # two fit into 90,000 pixels, three do not
    points = json.dumps([(face_template() + 9).tolist()] * 2)
    assert client.post("/v1/embed", files=form(*[photo] * 2), data={"points": points}).is_success
    points = json.dumps([(face_template() + 9).tolist()] * 3)
    answer = client.post("/v1/embed", files=form(*[photo] * 3), data={"points": points})
    assert answer.status_code == 413
    assert re.search("image 2: .* limit of 90,000 for the photos of", answer.json()["error"])


def test_photos_with_points_have_a_limit_of_pixels(client: Client) -> None:
    big = encode(np.zeros((301, 300, 3), np.uint8))
    for image, size in ((big, "301×300"), (png_header(60_000, 50_000), "50,000×60,000")):
        answer = client.post("/v1/embed", files=form(image), data={"points": POINTS})
        assert answer.status_code == 413
        assert f"image 0: it has {size} pixels, more than" in answer.json()["error"]


def test_points_twice(client: Client) -> None:
    files = [*form(FACE), *form(POINTS.encode(), POINTS.encode(), field="points")]
    answer = client.post("/v1/embed", files=files)
    assert answer.status_code == 400 and "points twice" in answer.json()["error"]


@pytest.mark.parametrize("count", [1, 3])
def test_verify_takes_two_images(client: Client, count: int) -> None:
    answer = client.post("/v1/verify", files=form(*[FACE] * count))
    assert answer.status_code in (400, 413)
    assert re.search("two images|hold 2 images", answer.json()["error"])


@pytest.mark.parametrize(
    ("content", "content_type", "status", "sentence"),
    [
        (b'{"url": "http://example.org/x.jpg"}', "application/json", 415, "multipart/form-data"),
        (FACE, "image/png", 415, "multipart/form-data"),
        (FACE, "multipart/form-data", 415, "multipart/form-data"),
        (FACE, "multipart/form-data; boundary=x", 400, "malformed"),
        (b"", "multipart/form-data; boundary=x", 400, "ends before its last boundary"),
        (b"--x\r\n\r\n", f"multipart/form-data; boundary={'x' * 400}", 400, "malformed"),
        (
            b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n' + FACE,
            "multipart/form-data; boundary=x",
            400,
            "ends before its last boundary",
        ),
        (b"--x\r\n\r\nabc\r\n--x--\r\n", "multipart/form-data; boundary=x", 400, "malformed"),
    ],
)
def test_bodies_that_are_no_forms(
    client: Client, content: bytes, content_type: str, status: int, sentence: str
) -> None:
    answer = client.post("/v1/embed", content=content, headers={"Content-Type": content_type})
    assert answer.status_code == status and sentence in answer.json()["error"]


def test_paths_and_methods_that_are_not_there(client: Client) -> None:
    for answer, status in (
        (client.get("/"), 404),
        (client.get("/docs"), 404),
        (client.get("/../../etc/passwd"), 404),
        (client.get("/v1/embed"), 405),
        (client.post("/healthz"), 405),
    ):
        assert answer.status_code == status
        assert "this service has /v1/embed, /v1/verify" in answer.json()["error"]
    assert counts(client)['facerec_requests_total{endpoint="other",status="404"}'] == 3


def talk(client: Client, text: bytes) -> tuple[int, str]:
    """Send bytes as they are; return status and text of the first answer."""
    url = client.base_url
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(text)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read().decode()


HEAD = (
    b"POST /v1/embed HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n"
)


def test_a_body_larger_than_it_says_or_without_a_length(client: Client) -> None:
    # No length: it is counted as it comes.
    answer = client.post(
        "/v1/embed",
        content=(b"x" * 50_000 for _ in range(20)),
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )
    assert answer.status_code == 413 and "200,000 bytes" in answer.json()["error"]
    # A large length is refused before any of the body comes.
    status, text = talk(client, HEAD + b"Content-Length: 99999999999\r\n\r\n")
    assert status == 413 and "200,000 bytes" in text
    # What goes beyond a small one is no part of the body.
    status, _ = talk(client, HEAD + b"Content-Length: 3\r\n\r\n" + b"x" * 9999)
    assert status == 400
    for length in (b"-1", b"many", b"9" * 30, b"3\r\nContent-Length: 4"):
        status, _ = talk(client, HEAD + b"Content-Length: " + length + b"\r\n\r\n")
        assert status in (400, 413)
    assert client.get("/healthz").status_code == 200


def test_a_body_that_does_not_arrive(example: ModuleType, model: Patches) -> None:
    service = example.Service(FaceRecognizer(model), example.Limits(timeout_s=0.2))
    with example.running(service) as url, connect(url) as client:
        status, text = talk(client, HEAD + b"Content-Length: 5000\r\n\r\nxxx")
        assert status == 408 and "the body did not arrive within 0.2 seconds" in text
        # Nor does one whose client leaves hold a place.
        with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as gone:
            gone.sendall(HEAD + b"Content-Length: 5000\r\n\r\nxxx")
        wait_for(lambda: counts(client)["facerec_admitted_images"] == 0)
        assert client.get("/healthz").status_code == 200


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 15
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


TYPES = st.sampled_from(["multipart/form-data; boundary=x", "multipart/form-data", "x", ""])
LATIN = st.text(st.characters(max_codepoint=255))  # which is how HTTP headers come
PIECES = st.sampled_from(
    [
        b"--x",
        b"--x--",
        b"\r\n",
        b"\r\n\r\n",
        b'Content-Disposition: form-data; name="images"',
        b'; filename="a"',
        b"Content-Transfer-Encoding: base64",
        b"x",
        b"\0",
    ]
)


@given(st.one_of(st.binary(), st.lists(PIECES, max_size=20).map(b"".join)), TYPES | LATIN)
def test_any_body_is_a_form_or_refused(example: ModuleType, body: bytes, content_type: str) -> None:
    try:
        fields = example.parse_form(body, content_type, 2)
    except example.Refusal as refusal:
        assert 400 <= refusal.status < 500 and "\n" not in str(refusal)
    else:
        assert set(fields) == {"images", "points"} and len(fields["images"]) <= 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.one_of(st.binary(), JSON.map(lambda value: json.dumps(value).encode())))
def test_any_points_are_points_or_refused(example: ModuleType, text: bytes) -> None:
    with pytest.raises(example.Refusal, match="points must be JSON"):
        example.read_points(text, 1)


@pytest.mark.parametrize(
    ("name", "filename"),
    [
        (b"images", b"\xff\xfe.png"),
        (b"images", b"\xed\xa0\x80"),
        (b"im\xffages", b"a.png"),
        (b"\xff", b"\xff"),
    ],
)
@pytest.mark.parametrize("style", [b'filename="%s"', b"filename*=utf-8''%s", b"filename=%s"])
def test_names_that_are_no_utf_8(
    client: Client, name: bytes, filename: bytes, style: bytes
) -> None:
    disposition = b'Content-Disposition: form-data; name="%s"; ' % name + style % filename
    body = b"--x\r\n" + disposition + b"\r\n\r\n" + FACE + b"\r\n--x--\r\n"
    head = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = client.post("/v1/embed", content=body, headers=head)
    assert answer.status_code == (200 if name == b"images" else 400)


# --- load, time-outs, failures ---------------------------------------------------------------


def test_a_full_service_asks_to_come_again(example: ModuleType, model: Patches) -> None:
    limits = example.Limits(max_batch=1, max_queue=3, max_images=3)
    gate = Gate(model)
    with (
        example.running(example.Service(FaceRecognizer(model), limits)) as url,
        connect(url) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        waiting = [pool.submit(client.post, "/v1/embed", files=form(FACE)) for _ in range(2)]
        wait_for(lambda: counts(client)["facerec_admitted_images"] == 2)
        # One more would be admitted, two are not.
        two = client.post("/v1/embed", files=form(FACE, FACE))
        assert two.status_code == 503 and two.headers["Retry-After"] == "1"
        assert "busy with 3 images" in two.json()["error"]
        assert client.get("/healthz").status_code == 200
        gate.open.set()
        assert [request.result().status_code for request in waiting] == [200, 200]
        assert client.post("/v1/embed", files=form(FACE, FACE)).status_code == 200


def test_answers_leave_at_once(example: ModuleType) -> None:
    """Nagle's algorithm would hold the second write of an answer for a client's acknowledgement."""
    with (
        example.listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_aligned_images_do_not_wait_for_large_photos(
    example: ModuleType, model: Patches, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, goes_on = threading.Event(), threading.Event()
    align = example.align_face

    def hold(*arguments: Any) -> np.ndarray:
        entered.set()
        assert goes_on.wait(20)
        return align(*arguments)

    monkeypatch.setattr(example, "align_face", hold)
    photo = encode(np.zeros((1500, 1500, 3), np.uint8))
    with (
        example.running(example.Service(FaceRecognizer(model))) as url,
        connect(url) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        large = [
            pool.submit(client.post, "/v1/embed", files=form(photo), data={"points": POINTS})
            for _ in range(3)
        ]
        assert entered.wait(20)
        try:
            assert client.post("/v1/embed", files=form(FACE)).status_code == 200
        finally:
            goes_on.set()
        assert [request.result().status_code for request in large] == [200] * 3


@contextlib.contextmanager
def stalled(
    client: Client, count: int, sent: int = 3, path: str = "/v1/embed", address: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    """Give connections with requests whose bodies stop after some bytes, and never end."""
    head = HEAD.replace(b"/v1/embed", path.encode())
    head += b"Content-Length: %d\r\n\r\n" % (sent + 90)
    server = (client.base_url.host, client.base_url.port or 80)
    with contextlib.ExitStack() as open_:
        connections = []
        for _ in range(count):
            slow = socket.create_connection(server, timeout=20, source_address=(address, 0))
            connections.append(open_.enter_context(slow))
            slow.sendall(head + bytes(sent))
        yield connections


@pytest.mark.parametrize("path", ["/v1/embed", "/v1/enroll", "/v1/delete"])
def test_bodies_that_never_come_keep_nobody_out(
    example: ModuleType, model: Patches, tmp_path: Path, path: str
) -> None:
    service = example.Service(FaceRecognizer(model), gallery=tmp_path / "g.npz")
    with (
        example.running(service) as url,
        connect(url) as client,
        stalled(client, 260, path=path) as slow,
    ):
        wait_for(lambda: counts(client)["facerec_pending_bodies"] == 256)
        assert counts(client)["facerec_admitted_images"] == 0
        answer = client.post("/v1/embed", files=form(FACE))
        assert answer.status_code == 200
        # Those that came first have given way, and the others wait.
        assert b" 503 " in slow[0].recv(99)
        slow[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            slow[-1].recv(1)


@pytest.mark.parametrize(
    ("limits", "sent"),
    [({"max_queue": 4, "max_images": 4}, 3), ({"max_large": 1, "max_body_bytes": 100_000}, 20_000)],
    ids=["number", "bytes"],
)
def test_pending_bodies_are_bounded_by_address_and_in_all(
    example: ModuleType, model: Patches, limits: dict[str, int], sent: int
) -> None:
    # 4 bodies of an address and 8 in all, or 100,000 and 200,000 bytes of them.
    service = example.Service(FaceRecognizer(model), example.Limits(**limits))
    most = 4 if sent == 3 else 5

    def pending() -> float:
        return counts(client)["facerec_pending_bodies"]

    with (
        example.running(service) as url,
        connect(url) as client,
        stalled(client, 1, sent, address="127.0.0.2") as first,
    ):
        wait_for(lambda: pending() == 1)
        with stalled(client, 9, sent) as many:
            # Only those of the address with most of them give way, and of those the first.
            wait_for(lambda: pending() == 1 + most)
            assert [b" 503 " in slow.recv(99) for slow in many[: 9 - most]] == [True] * (9 - most)
            with stalled(client, most, sent, address="127.0.0.3"):
                wait_for(lambda: pending() == 2 * most)
                assert client.post("/v1/embed", files=form(FACE)).status_code == 200
                first[0].setblocking(False)
                with pytest.raises(BlockingIOError):
                    first[0].recv(1)
        wait_for(lambda: pending() == 1)
    assert not service.bodies._readers


def test_bodies_that_wait_for_an_answer_count_and_stay(example: ModuleType, model: Patches) -> None:
    limits = example.Limits(max_large=1, max_body_bytes=len(FACE) + 400, timeout_s=20)
    gate = Gate(model)
    with (
        example.running(example.Service(FaceRecognizer(model), limits)) as url,
        connect(url) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        whole = [pool.submit(client.post, "/v1/embed", files=form(FACE)) for _ in range(2)]
        wait_for(lambda: counts(client)["facerec_admitted_images"] == 2)
        late = client.post("/v1/embed", files=form(FACE))
        assert late.status_code == 503 and "busy with other bodies" in late.json()["error"]
        gate.open.set()
        assert [request.result().status_code for request in whole] == [200, 200]
        assert client.post("/v1/embed", files=form(FACE)).status_code == 200


def test_bodies_on_their_way_do_not_delay_the_end(example: ModuleType, model: Patches) -> None:
    limits = example.Limits(timeout_s=300)
    with contextlib.ExitStack() as open_:
        with (
            example.running(example.Service(FaceRecognizer(model), limits)) as url,
            connect(url) as client,
        ):
            (slow,) = open_.enter_context(stalled(client, 1))
            wait_for(lambda: counts(client)["facerec_pending_bodies"] == 1)
        assert b" 503 " in slow.recv(99)


def test_an_answer_that_takes_too_long(example: ModuleType, model: Patches) -> None:
    limits = example.Limits(max_batch=1, timeout_s=1)
    gate = Gate(model)
    with (
        example.running(example.Service(FaceRecognizer(model), limits)) as url,
        connect(url) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        requests = [pool.submit(client.post, "/v1/embed", files=form(FACE)) for _ in range(2)]
        for answer in (request.result() for request in requests):
            assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
            assert "too busy to answer in time" in answer.json()["error"]
        gate.open.set()
        assert client.post("/v1/embed", files=form(FACE)).status_code == 200
        # The second of the two was still waiting, so it is not computed any more.
        assert counts(client)["facerec_images_total"] == 2


def test_a_failure_of_the_network_is_told_without_its_message(
    client: Client, model: Patches, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ModelError("secret: an embedding of somebody")

    model.before = fail
    answer = client.post("/v1/embed", files=form(FACE))
    assert answer.status_code == 500
    assert answer.json() == {"error": "the service failed on this request; see its log"}
    log = "".join(capfd.readouterr())
    assert "ModelError in " in log and "test_service.py" in log and "secret" not in log
    model.before = lambda: None
    assert client.post("/v1/embed", files=form(FACE)).status_code == 200
    assert counts(client)['facerec_requests_total{endpoint="/v1/embed",status="500"}'] == 1


def test_an_embedding_that_is_not_finite_is_no_answer(client: Client, model: Patches) -> None:
    model.matrix = model.matrix * np.nan
    for path in ("/v1/embed", "/v1/verify"):
        answer = client.post(path, files=form(FACE, FACE))
        assert answer.status_code == 500 and "NaN" not in answer.text


def test_requests_in_flight_are_answered_before_the_end(
    example: ModuleType, model: Patches, service: Any
) -> None:
    gate = Gate(model)
    with ThreadPoolExecutor(5) as pool:
        with example.running(service) as url:
            requests = [
                pool.submit(httpx.post, f"{url}/v1/embed", files=form(encode(face)), timeout=30)
                for face in faces(4)
            ]
            with connect(url) as client:
                wait_for(lambda: counts(client)["facerec_admitted_images"] == 4)
            pool.submit(lambda: (time.sleep(0.3), gate.open.set()))
        # The server has ended.
        found = [request.result() for request in requests]
    assert [answer.status_code for answer in found] == [200] * 4
    np.testing.assert_allclose(
        [answer.json()["embeddings"][0] for answer in found],
        service.recognizer.embed(faces(4)),
        rtol=1e-6,
    )
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")
    assert service._batcher.alive is False


# --- the batcher by itself -------------------------------------------------------------------


@pytest.fixture
def batches() -> list[int]:
    return []


@pytest.fixture
def make_batcher(example: ModuleType, batches: list[int]) -> Iterator[Callable[..., Any]]:
    """Make batchers whose vectors are the first pixel of each face; note the batches."""
    made = []

    def embed(faces: np.ndarray) -> np.ndarray:
        batches.append(len(faces))
        return faces[:, 0, 0, :1].astype(np.float32)

    def make(**limits: Any) -> Any:
        made.append(example.MicroBatcher(embed, example.Limits(**limits), example.Metrics()))
        return made[-1]

    yield make
    for batcher in made:
        batcher.stop()


def numbered(*numbers: int) -> np.ndarray:
    return np.stack([np.full((2, 2, 3), number, np.uint8) for number in numbers])


def test_a_lone_request_waits_for_nobody(make_batcher: Any, batches: list[int]) -> None:
    batcher = make_batcher(max_wait_ms=60_000)
    batcher.start()
    with batcher.places(1):
        assert batcher.submit(numbered(7)).result(5) == [[7]]
    assert batches == [1]


def test_a_batch_waits_for_what_is_on_its_way_but_not_forever(
    make_batcher: Any, batches: list[int]
) -> None:
    batcher = make_batcher(max_wait_ms=60_000)
    batcher.start()
    with batcher.places(3):
        jobs = [batcher.submit(numbered(1, 2))]
        assert not jobs[0].done()
        jobs.append(batcher.submit(numbered(3)))
        np.testing.assert_array_equal(jobs[0].result(5), [[1], [2]])
        np.testing.assert_array_equal(jobs[1].result(5), [[3]])
    assert batches == [3]
    short = make_batcher(max_wait_ms=20)
    short.start()
    with short.places(2):  # the second never comes
        assert short.submit(numbered(9)).result(5) == [[9]]


def test_a_full_batch_waits_for_nobody(make_batcher: Any, batches: list[int]) -> None:
    batcher = make_batcher(max_batch=2, max_wait_ms=60_000)
    with batcher.places(9):
        jobs = [batcher.submit(numbered(number)) for number in range(4)]
        batcher.start()
        assert [job.result(5).item() for job in jobs] == [0, 1, 2, 3]
    assert batches == [2, 2]


def test_what_is_cancelled_is_not_computed_and_what_was_submitted_is(
    make_batcher: Any, batches: list[int]
) -> None:
    batcher = make_batcher(max_batch=8, max_wait_ms=0)
    with batcher.places(3):
        jobs = [batcher.submit(numbered(number)) for number in range(3)]
        assert jobs[1].cancel()
        batcher.start()
        batcher.stop()
        assert jobs[0].result(0) == [[0]] and jobs[2].result(0) == [[2]]
    assert batches == [2] and not batcher.alive


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(1, 6))
def test_every_job_gets_its_own_rows(example: ModuleType, sizes: list[int], max_batch: int) -> None:
    limits = example.Limits(max_batch=max_batch, max_wait_ms=0)
    batcher = example.MicroBatcher(
        lambda faces: faces[:, 0, 0, :1].astype(np.float32), limits, example.Metrics()
    )
    ends = np.cumsum(sizes)
    parts = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    with batcher.places(sum(sizes)):
        jobs = [batcher.submit(numbered(*part)) for part in parts]
        batcher.start()
        batcher.stop()
    for job, part in zip(jobs, parts, strict=True):
        np.testing.assert_array_equal(job.result(0)[:, 0], part)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"max_batch": 0}, "max_batch must be more than 0, found 0"),
        ({"timeout_s": float("nan")}, "timeout_s must be more than 0, found nan"),
        ({"max_wait_ms": -1.0}, "max_wait_ms must not be negative"),
        ({"max_queue": 8}, "max_queue 8 must hold the max_images 64"),
    ],
)
def test_limits_that_cannot_be(example: ModuleType, wrong: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        example.Limits(**wrong)


# --- the commands ----------------------------------------------------------------------------


def save_small(folder: Path) -> Path:
    config = Backbone("iresnet18", embedding_size=8, width=0.125)
    path = folder / "model.safetensors"
    save_model(path, create_backbone(config, seed=1), config, Preprocessing(), {})
    return path


@pytest.mark.integration
def test_the_command_serves_a_file_until_it_is_told_to_stop(tmp_path: Path) -> None:
    path = save_small(tmp_path)
    command = [sys.executable, str(EXAMPLES / "service.py"), str(path), "--port", "0"]
    command += ["--allow-host", "a.example", "b.example:80", "--allow-origin", "https://c.example"]
    process = subprocess.Popen(
        [*command, "--max-batch", "4", "--device", "cpu", "--threshold", "0.3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert "torch" in lines[0] and "on cpu" in lines[0]
        assert lines[1].startswith("contract facerec-1-")
        url = lines[2].removeprefix("listening on ").strip()
        image = faces(1)[0]
        found = httpx.post(f"{url}/v1/embed", files=form(encode(image)), timeout=30).json()
        expected = load(path, device="cpu").embed(image[None])
        np.testing.assert_allclose(found["embeddings"], expected, rtol=1e-3, atol=1e-4)
        for headers, status in (
            ({"Host": "b.example", "Origin": "https://c.example"}, 422),
            ({"Host": "c.example"}, 403),
            ({"Origin": "https://b.example"}, 403),
        ):
            answer = httpx.post(f"{url}/v1/embed", files=form(b"x"), headers=headers)
            assert answer.status_code == status
        for bad in (b"x", *damaged_images()[:20]):
            assert httpx.post(f"{url}/v1/embed", files=form(bad)).status_code in (200, 422)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    # uvicorn raises the signal again when all is answered.
    assert process.returncode in (0, 128 + signal.SIGINT)
    assert output == errors == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["absent.onnx"], "absent.onnx: no such model"),
        (["absent.onnx", "--max-batch", "0"], "max_batch must be more than 0, found 0"),
        ([None, "--threshold", "nan"], "the threshold is NaN"),
        ([None, "--fpr", "often"], "target 'often' is not a rate"),
        ([None, "--allow-origin", "*"], "--allow-origin *: a site is named"),
        ([None, "--token-file", "absent"], "absent: the token cannot be read"),
        ([None, "--gallery", "g.npz", "--host", "0.0.0.0"], "give a --token-file"),
        ([None, "--port", "-1"], "127.0.0.1, port -1: cannot listen there"),
    ],
)
def test_the_command_words_its_errors(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str | None],
    sentence: str,
) -> None:
    path = save_small(tmp_path)
    monkeypatch.setattr(sys, "argv", ["service.py", *(a or str(path) for a in arguments)])
    with pytest.raises(SystemExit) as caught:
        example.main()
    assert caught.value.code == 2 and sentence in capsys.readouterr().err


def test_a_port_that_is_taken(example: ModuleType) -> None:
    with example.listen("127.0.0.1", 0) as taken:
        pattern = r"cannot listen there \(.*\); choose another --host or --port"
        with pytest.raises(FacerecError, match=pattern):
            example.listen(*taken.getsockname())
    with pytest.raises(FacerecError, match="cannot listen there"):
        example.listen("127.0.0.1", 70_000)


@pytest.mark.integration
def test_honest_clients_are_answered_beside_hostile_ones(
    example: ModuleType, model: Patches
) -> None:
    import load_service

    service = example.Service(FaceRecognizer(model))
    with example.running(service) as url:
        load = load_service.load_service(url, FACE, clients=2, requests=3, hostile=2)
        with connect(url) as client:
            after = counts(client)
    assert load.latencies.shape == (6,) and "2 clients beside 2 hostile ones" in str(load)
    assert after["facerec_images_total"] >= 8 and after["facerec_admitted_images"] == 0


@pytest.mark.parametrize("flag", ["--clients", "--requests"])
def test_a_load_of_nothing_is_refused(
    example: ModuleType, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import load_service

    with pytest.raises(SystemExit) as ended:
        run_command(load_service.load, ["http://127.0.0.1:9", "face.jpg", flag, "0"])
    assert ended.value.code == 2 and f"{flag} must be at least 1" in capsys.readouterr().err


@pytest.mark.integration
def test_load_from_many_clients(example: ModuleType, service: Any) -> None:
    import load_service

    with example.running(service) as url:
        load = load_service.load_service(url, FACE, clients=4, requests=3)
        with pytest.raises(FacerecError, match=r"the service answers 422: .*neither a JPEG"):
            load_service.load_service(url, b"x", clients=1, requests=1)
        with connect(url) as client:
            after = counts(client)
    assert load.latencies.shape == (12,) and (load.latencies > 0).all()
    assert load.per_second == pytest.approx(12 / load.seconds)
    assert load.percentile_ms(50) <= load.percentile_ms(99) <= 1000 * load.seconds
    assert "4 clients: " in str(load) and "12 requests of one image" in str(load)
    # Each client's first request is not counted.
    assert after['facerec_requests_total{endpoint="/v1/embed",status="200"}'] == 16
    with pytest.raises(FacerecError, match="no service answers there"):
        load_service.load_service(url, FACE, clients=2, requests=1)
