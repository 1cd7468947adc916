"""The gallery of the service over real HTTP: enrolling, identifying, deleting, and refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from facerec.backbones import Preprocessing
from facerec.embedding import EmbeddingModel, Embeddings
from facerec.embedding.recognizer import FaceRecognizer
from facerec.errors import DatasetError, FacerecError, MetricError, ModelError
from facerec.galleries import Gallery, Space

httpx = pytest.importorskip("httpx")
for extra in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
    pytest.importorskip(extra)

EXAMPLES = Path(__file__).parents[2] / "examples"


class Patches(EmbeddingModel):
    """Averages patches of 28×28 and multiplies by a random matrix."""

    name, path, sha256 = "patches", None, "0" * 64
    embedding_size, batch_size, recipe, note = 32, 32, {}, None
    preprocessing = Preprocessing()

    def describe(self) -> dict[str, Any]:
        return self._description("numpy", "cpu", "fp64")

    def _forward(self, pixels: torch.Tensor) -> np.ndarray:
        x = pixels.numpy().astype(np.float64).reshape(len(pixels), 4, 28, 4, 28, 3)
        matrix = np.random.default_rng(0).normal(size=(48, 32))
        return (x.mean(axis=(2, 4)).reshape(len(pixels), 48) / 128 - 1) @ matrix


@pytest.fixture(scope="module")
def example() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        import service

        yield service


def image(seed: int) -> np.ndarray:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return cv2.resize(coarse, (112, 112), interpolation=cv2.INTER_NEAREST)


def files(*seeds: int) -> list[tuple[str, tuple[str, bytes]]]:
    encoded = [cv2.imencode(".png", image(seed)[:, :, ::-1])[1].tobytes() for seed in seeds]
    return [("images", ("x.png", content)) for content in encoded]


def subject(name: str) -> list[tuple[str, tuple[None, bytes]]]:
    return [("subject", (None, name.encode()))]


@pytest.fixture
def start(example: ModuleType, tmp_path: Path) -> Any:
    """Return what starts the service with a gallery in a file and gives a client."""

    def started(**options: Any) -> Any:
        model = FaceRecognizer(Patches())
        limits = example.Limits(max_images=4, max_people=40, timeout_s=20)
        return example.Service(model, limits, gallery=tmp_path / "g.npz", **options)

    return started


def connect(url: str) -> Any:
    return httpx.Client(base_url=url, timeout=30, verify=False)


def test_a_threshold_that_is_nan_does_not_start(start: Any) -> None:
    with pytest.raises(MetricError, match=r"identify_threshold.*NaN"):
        start(identify_threshold=float("nan"))


@pytest.mark.parametrize("fpir", ["0", "1"])
def test_an_fpir_that_no_gallery_can_have_does_not_start(start: Any, fpir: str) -> None:
    with pytest.raises(MetricError, match=f"fpir {fpir} .*between 0 and 1"):
        start(fpir=fpir)


def test_enrol_identify_delete(example: ModuleType, start: Any, tmp_path: Path) -> None:
    with example.running(start(identify_threshold=0.9)) as url, connect(url) as client:
        empty = client.post("/v1/identify", files=files(1))
        assert empty.status_code == 404 and "empty" in empty.json()["error"]
        first = client.post("/v1/enroll", files=[*files(1), *subject("Jérôme")]).json()
        assert (first["subject"], first["new"], first["images"], first["people"]) == (
            "Jérôme", True, 1, 1,
        )  # fmt: skip
        client.post("/v1/enroll", files=[*files(2, 2), *subject("b")])
        more = client.post("/v1/enroll", files=[*files(1), *subject("Jérôme")]).json()
        assert more["new"] is False and more["images"] == 2 and more["people"] == 2
        found = client.post("/v1/identify", files=files(1, 9)).json()
        known, stranger = found["answers"]
        assert known["subject"] == "Jérôme" and known["score"] == pytest.approx(1)
        assert known["margin"] == pytest.approx(
            known["candidates"][0]["score"] - known["candidates"][1]["score"]
        )
        assert stranger["subject"] is None and found["threshold"] == pytest.approx(0.9)
        assert found["contract"] == first["contract"] and found["people"] == 2
        # It is on the disk, and the file knows the model.
        assert Gallery.read(tmp_path / "g.npz").subjects.tolist() == ["Jérôme", "b"]
        gone = client.post("/v1/delete", files=subject("Jérôme"))
        assert gone.status_code == 200 and gone.json()["people"] == 1
        assert "Jérôme" not in Gallery.read(tmp_path / "g.npz")
        assert client.post("/v1/identify", files=files(1)).json()["answers"][0]["subject"] is None
        other = client.post("/v1/delete", data={"subject": "b"})  # not multipart
        assert other.status_code == 415 and "field called subject" in other.json()["error"]
        again = client.post("/v1/delete", files=subject("Jérôme"))
        assert again.status_code == 404 and "Jérôme" not in again.text
        metrics = client.get("/metrics").text
        assert "Jérôme" not in metrics
        assert 'endpoint="/v1/delete",status="200"} 1.0' in metrics
    # Another service goes on with the file.
    with example.running(start(identify_threshold=0.9)) as url, connect(url) as client:
        assert client.post("/v1/identify", files=files(2)).json()["answers"][0]["subject"] == "b"


def test_a_name_is_one_person_in_any_form(
    example: ModuleType, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed, decomposed = "J\xe9r\xf4me", "Je\u0301ro\u0302me"
    with example.running(start(identify_threshold=0.9)) as url, connect(url) as client:
        client.post("/v1/enroll", files=[*files(1), *subject(decomposed)])
        more = client.post("/v1/enroll", files=[*files(1), *subject(composed)]).json()
        assert (more["subject"], more["new"], more["people"]) == (composed, False, 1)
        for seed, name in enumerate("bcd", start=2):
            client.post("/v1/enroll", files=[*files(seed), *subject(name)])
        gone = client.post("/v1/delete", files=subject(decomposed))
        assert gone.status_code == 200 and gone.json()["people"] == 3
    # Of a file of before they are counted, and no name is logged.
    old = Gallery.read(tmp_path / "g.npz")
    old.subjects = np.array(["b", composed, decomposed])
    old.write(tmp_path / "g.npz")
    said: list[str] = []
    monkeypatch.setattr(example._log, "warning", lambda text, *values: said.append(text % values))
    with example.running(start(identify_threshold=0.9)) as url, connect(url) as client:
        assert client.post("/v1/delete", files=subject(composed)).json()["people"] == 1
    assert len(said) == 1 and "twice" in said[0] and said[0].endswith(": 1")
    assert Gallery.read(tmp_path / "g.npz").subjects.tolist() == ["b"]


def test_the_threshold_is_that_of_the_fpir(example: ModuleType, start: Any, tmp_path: Path) -> None:
    with example.running(start(fpir="0.2")) as url, connect(url) as client:
        client.post("/v1/enroll", files=[*files(0), *subject("p0")])
        few = client.post("/v1/identify", files=files(0))
        assert few.status_code == 501 and "--impostors" in few.json()["error"]
        assert "--identify-threshold" in few.json()["error"]
        (tmp_path / "g.npz").unlink()
    vectors = FaceRecognizer(Patches()).embed([image(i) for i in range(40)])
    space = Space.of(FaceRecognizer(Patches()))
    note = {"model": {"sha256": space.model, "preprocessing": space.preprocessing}}
    gallery = Gallery(space)
    images = Embeddings(vectors, np.linalg.norm(vectors, axis=1), True, note=note)
    gallery.enroll(images, [f"p{i}" for i in range(40)])
    gallery.write(tmp_path / "g.npz")
    with example.running(start(fpir="0.2")) as url, connect(url) as client:
        found = client.post("/v1/identify", files=files(3)).json()
        assert found["answers"][0]["subject"] == "p3"
        fpir = found["fpir"]
        assert fpir["gallery_size"] == 40 and 0 < fpir["fpir"] <= 0.2 + 1e-9
        assert fpir["low"] <= fpir["fpir"] <= fpir["high"]
        assert fpir["threshold"] == found["threshold"]
        full = client.post("/v1/enroll", files=[*files(99), *subject("one more")])
        assert full.status_code == 409 and "40 people" in full.json()["error"]
        # Somebody who is there may have more images.
        assert client.post("/v1/enroll", files=[*files(99), *subject("p1")]).status_code == 200


@pytest.mark.parametrize(
    ("path", "content", "status", "words"),
    [
        ("/v1/enroll", files(1), 400, "subject"),
        ("/v1/enroll", subject("a"), 400, "no image"),
        ("/v1/enroll", [*files(1), *subject("")], 400, "subject"),
        ("/v1/enroll", [*files(1), *subject("x" * 201)], 400, "200"),
        ("/v1/enroll", [*files(1), *subject("a\nb")], 400, "printable"),
        ("/v1/enroll", [*files(1), ("subject", (None, b"\xff"))], 400, "UTF-8"),
        ("/v1/enroll", [*files(1), *subject("a"), *subject("b")], 400, "two people"),
        ("/v1/enroll", [*files(1, 2, 3, 4, 5), *subject("a")], 413, "4 images"),
        ("/v1/identify", [*files(1), *subject("a")], 400, "images and points"),
        ("/v1/delete", subject("x" * 5000), 413, "bytes"),
        ("/v1/delete", [("images", (None, b"x"))], 400, "other than subject"),
        ("/v1/delete", subject("nobody"), 404, "nobody of that name"),
    ],
    ids=[str(number) for number in range(12)],
)
def test_refusals(
    example: ModuleType, start: Any, path: str, content: Any, status: int, words: str
) -> None:
    with example.running(start(identify_threshold=0.9)) as url, connect(url) as client:
        answer = client.post(path, files=content)
    assert answer.status_code == status and words in answer.json()["error"]


def test_without_a_gallery_its_endpoints_are_closed(example: ModuleType) -> None:
    service = example.Service(FaceRecognizer(Patches()))
    with example.running(service) as url, connect(url) as client:
        for path in ("/v1/enroll", "/v1/identify", "/v1/delete"):
            answer = client.post(path, files=files(1))
            assert answer.status_code == 501 and "--gallery" in answer.json()["error"]


def test_a_change_that_cannot_be_written_has_not_happened(
    example: ModuleType, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with example.running(start(identify_threshold=0.9)) as url, connect(url) as client:
        client.post("/v1/enroll", files=[*files(1), *subject("a")])

        def full(self: Gallery, path: Path) -> None:
            raise DatasetError(f"{path}: the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(Gallery, "write", full)
            for path, content in (
                ("/v1/enroll", [*files(2), *subject("b")]),
                ("/v1/delete", subject("a")),
            ):
                answer = client.post(path, files=content)
                assert answer.status_code == 507 and "disk is full" in answer.json()["error"]
        found = client.post("/v1/identify", files=files(1, 2)).json()
        assert [answer["subject"] for answer in found["answers"]] == ["a", None]


def test_a_gallery_of_another_model_is_refused(
    example: ModuleType, start: Any, tmp_path: Path
) -> None:
    with example.running(start()) as url, connect(url) as client:
        client.post("/v1/enroll", files=[*files(1), *subject("a")])
    other = Patches()
    other.sha256 = "1" * 64
    with pytest.raises(ModelError, match="another model"):
        example.Service(FaceRecognizer(other), gallery=tmp_path / "g.npz")
    with pytest.raises(ModelError, match="flip"):
        example.Service(FaceRecognizer(Patches(), flip=False), gallery=tmp_path / "g.npz")
    assert json.dumps(Gallery.read(tmp_path / "g.npz").space.preprocessing)


# --- who may use it --------------------------------------------------------------------------

OWN = "http://127.0.0.1:{port}"
"""The origin of the service itself; the port is filled in."""


FOREIGN: list[list[tuple[str, str]]] = [
    [("Host", "evil.example")],
    [("Host", "evil.example:8000"), ("Origin", "http://evil.example:8000")],
    [("Host", "localhost.evil.example")],
    [("Host", "127.0.0.1.evil.example:80")],
    [("Host", "evil@localhost")],
    [("Host", "192.0.2.1:8000")],
    [("Host", "")],
    [("Origin", "https://evil.example")],
    [("Origin", "null")],
    [("Origin", "")],
    [("Origin", "http://127.0.0.1")],
    [("Origin", "http://localhost:1"), ("Sec-Fetch-Site", "same-site")],
    [("Origin", "http://localhost.evil.example")],
    [("Sec-Fetch-Site", "cross-site")],
    [("Sec-Fetch-Site", "same-site")],
    [("Origin", OWN), ("Sec-Fetch-Site", "cross-site")],
    [("Origin", "https://evil.example"), ("Sec-Fetch-Site", "same-origin")],
    [("Origin", OWN), ("Origin", "https://evil.example")],
]
"""Headers of requests that a page of another site can make a browser send."""


def test_pages_of_other_sites_are_refused(example: ModuleType, start: Any, tmp_path: Path) -> None:
    with example.running(start(identify_threshold=0.9)) as url, connect(url) as client:
        assert client.post("/v1/enroll", files=[*files(1), *subject("a")]).status_code == 200
        before = (tmp_path / "g.npz").read_bytes()
        for headers in FOREIGN:
            sent = [(name, value.format(port=client.base_url.port)) for name, value in headers]
            for path, content in (
                ("/v1/enroll", [*files(2), *subject("b")]),
                ("/v1/delete", subject("a")),
                ("/v1/identify", files(1)),
                ("/v1/verify", files(1, 1)),
                ("/v1/embed", files(1)),
            ):
                answer = client.post(path, files=content, headers=sent)
                assert answer.status_code == 403, (path, headers)
                assert "--allow-" in answer.json()["error"]
                assert "access-control-allow-origin" not in answer.headers
        # Probes name hosts as they like.
        assert client.get("/healthz", headers={"Host": "192.0.2.1"}).status_code == 200
    assert (tmp_path / "g.npz").read_bytes() == before


def test_own_pages_and_those_allowed_are_answered(example: ModuleType, start: Any) -> None:
    app = "https://app.example"
    door = example.Door(["faces.example"], [app])
    with example.running(start(door=door)) as url, connect(url) as client:
        own = OWN.format(port=client.base_url.port)
        for headers in (
            {},
            {"Host": "localhost"},
            {"Host": "LOCALHOST:8000"},
            {"Host": "[::1]:8000"},
            {"Host": "faces.example:8443", "Origin": "https://faces.example:8443"},
            {"Origin": own, "Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
            {"Origin": app, "Sec-Fetch-Site": "cross-site"},
        ):
            answer = client.post("/v1/enroll", files=[*files(1), *subject("a")], headers=headers)
            assert answer.status_code == 200, headers
            # Browsers let a page of another site read what names it.
            named = answer.headers.get("access-control-allow-origin")
            assert named == (app if headers.get("Origin") == app else None)
        asks = {"Access-Control-Request-Method": "POST"}
        asks["Access-Control-Request-Headers"] = "authorization"
        for origin, status in ((app, 200), ("https://evil.example", 400)):
            preflight = client.options("/v1/enroll", headers={**asks, "Origin": origin})
            assert preflight.status_code == status


def test_changes_take_the_token(example: ModuleType, start: Any, tmp_path: Path) -> None:
    door = example.Door(token=b"open-sesame")
    with example.running(start(door=door, identify_threshold=0.9)) as url, connect(url) as client:

        def change(path: str, **headers: str) -> Any:
            content = [*(files(1) if path == "/v1/enroll" else []), *subject("a")]
            return client.post(path, files=content, headers=headers)

        for path in ("/v1/enroll", "/v1/delete"):
            for shown in (
                {},
                {"Authorization": "Bearer"},
                {"Authorization": "Bearer open-sesam"},
                {"Authorization": "Bearer open-sesame2"},
                {"Authorization": "Basic open-sesame"},
                {"Authorization": "open-sesame"},
            ):
                answer = change(path, **shown)
                assert answer.status_code == 401 and "open-sesame" not in answer.text
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert not (tmp_path / "g.npz").exists()
        token = {"Authorization": "Bearer open-sesame"}
        other = change("/v1/enroll", **token, Origin="https://evil.example")
        assert other.status_code == 403
        assert change("/v1/enroll", **token).status_code == 200
        # What changes nothing takes none.
        assert client.post("/v1/identify", files=files(1)).status_code == 200
        assert client.post("/v1/embed", files=files(1)).status_code == 200
        assert change("/v1/delete", **token).status_code == 200


def test_a_token_is_read_from_a_file_of_its_owner_alone(
    example: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "token"

    def write(content: bytes, mode: int = 0o600) -> None:
        path.write_bytes(content)
        path.chmod(mode)

    write(b"abc123-_.~\n")
    assert example.read_token(path) == b"abc123-_.~"
    for content, mode, words in (
        (b"abc\n", 0o640, "mode 640"),
        (b"abc\n", 0o604, "mode 604"),
        (b"", 0o600, "one line"),
        (b"\n\n", 0o600, "one line"),
        (b"abc\ndef\n", 0o600, "one line"),
        (b"two words\n", 0o600, "one line"),
        ("é".encode(), 0o600, "one line"),
        (b"x" * 5000, 0o600, "one line"),
    ):
        write(content, mode)
        with pytest.raises(FacerecError, match=words):
            example.read_token(path)
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "absent"):
        with pytest.raises(FacerecError, match="token"):
            example.read_token(tmp_path / name)


@pytest.mark.parametrize(
    "origin", ["*", "app.example", "https://app.example/", "null", "HTTPS://a"]
)
def test_what_is_no_origin_does_not_start(example: ModuleType, origin: str) -> None:
    with pytest.raises(FacerecError, match="--allow-origin"):
        example.Door(origins=[origin])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "faces.example"])
def test_a_gallery_that_everybody_could_change_is_not_served(
    example: ModuleType, tmp_path: Path, host: str
) -> None:
    with pytest.raises(FacerecError, match="--token-file"):
        example.serve(Path("model.onnx"), host=host, gallery=tmp_path / "g.npz")
    with pytest.raises(ModelError, match=r"model\.onnx"):  # so it gets as far as that
        example.serve(Path("model.onnx"), host="127.0.0.1", gallery=tmp_path / "g.npz")


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("asked", [True, False])
def test_mirror_images_are_added_as_the_gallery_has_it(
    example: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recorded: bool,
    asked: bool,
) -> None:
    served: list[Any] = []

    class Server:
        def run(self, sockets: Any) -> None: ...

    def create_server(service: Any) -> Server:
        served.append(service)
        return Server()

    def load(path: Path, *, flip: bool | None, **_: Any) -> FaceRecognizer:
        return FaceRecognizer(Patches(), flip=flip)

    monkeypatch.setattr(example, "create_server", create_server)
    monkeypatch.setattr(example.facerec, "load", load)
    example.serve(tmp_path / "m.onnx", port=0)
    assert served.pop().recognizer.flip is True  # the default, as in every command
    Gallery(Space.of(FaceRecognizer(Patches(), flip=recorded))).write(tmp_path / "g.npz")
    if recorded and not asked:
        with pytest.raises(ModelError, match="flip"):
            example.serve(tmp_path / "m.onnx", port=0, flip=asked, gallery=tmp_path / "g.npz")
    else:
        example.serve(tmp_path / "m.onnx", port=0, flip=asked, gallery=tmp_path / "g.npz")
        assert served.pop().recognizer.flip is recorded
