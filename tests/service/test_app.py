"""The service over real HTTP: right answers, batches, refusals, load, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import re
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
import pytest
from helpers.calibrations import model_calibration
from helpers.marked_faces import Marked, marked_photo
from helpers.toy_files import encode, png_header
from hypothesis import given
from hypothesis import strategies as st

from facerec.base.errors import ModelError
from facerec.embedding.recognizer import FaceRecognizer
from facerec.service.limits import Access
from tests.helpers.toy_service import (
    LFW,
    Gate,
    Patches,
    as_json,
    connect,
    counts,
    faces,
    form,
    requests,
    wait_for,
)

FACE = encode(faces(1)[0])
JPEG = encode(faces(1)[0], ".jpg")

# --- right answers ---------------------------------------------------------------------------


def test_embeddings_are_those_of_the_recognizer(client: Any) -> None:
    recognizer, images = client.service.recognizer, faces(3)
    found = client.post("/v1/embed", files=form(*map(encode, images))).json()
    np.testing.assert_allclose(found["embeddings"], recognizer.embed(images), rtol=1e-6)
    assert found["embedding_size"] == 32 and found["contract"] == recognizer.contract
    # JSON carries a float32 whole, and content, not a name, tells what an image is.
    files = [("images", ("x.gif", JPEG, "image/gif")), ("images", ("x", FACE, "text/x"))]
    alone = client.post("/v1/embed", files=files).json()["embeddings"]
    np.testing.assert_array_equal(np.float32(alone), recognizer.embed([JPEG, FACE]))
    # So does base64, as browsers and mail programs write it too.
    jpeg, face = as_json(form(JPEG, FACE))["images"]
    lines = f"{face[:76]}\r\n{face[76:]}\n"
    for sent in ([jpeg, face], [f"data:image/jpeg;base64,{jpeg}", lines]):
        assert client.post("/v1/embed", json={"images": sent}).json()["embeddings"] == alone
    assert client.post("/v1/embed", json={"images": jpeg}).json()["embeddings"] == alone[:1]


def test_verify(client: Any) -> None:
    a, b = faces(2)
    expected = client.service.recognizer.verify(a, b)
    found = client.post("/v1/verify", files=form(encode(a), encode(b))).json()
    assert found.pop("similarity") == pytest.approx(expected.similarity, abs=1e-6)
    assert found == {
        "threshold": 0.5,
        "same": expected.same,
        "source": "FPR 1e-3 on lfw",
        "fpr": "1e-3",
        "evidence": None,  # what a cosine is worth was not measured
        "notes": [],
        "face_scores": [None, None],
        "unknown": [],
        "contract": client.service.contract,
    }


def test_where_the_threshold_comes_from(serve: Any, model: Patches) -> None:
    model.calibration = None
    with serve() as client:
        answer = client.post("/v1/verify", files=form(FACE, FACE)).json()
        assert answer["same"] is None and "facerec calibrate" in answer["source"]
        alone = client.post("/v1/verify", files=form(FACE))
        assert alone.status_code == 400 and "two images" in alone.json()["error"]
    model.calibration = model_calibration({**LFW, "fpr": "1e-2"})
    with serve(fpr="1e-4") as client:
        answer = client.post("/v1/verify", files=form(FACE, FACE))
        assert answer.status_code == 501 and "--threshold" in answer.json()["error"]


def test_crops_whose_face_lies_elsewhere_are_refused(client: Any) -> None:
    client.service.recognizer.detector = Marked()
    here, there = (encode(marked_photo((1, x, 0, 1), height=112, width=112)) for x in (0, 12))
    assert client.post("/v1/embed", files=form(here)).status_code == 200
    refused = client.post("/v1/embed", files=form(here, there))
    assert refused.status_code == 422 and "image 1" in refused.json()["error"]


@pytest.mark.integration
def test_sixty_four_clients_get_each_their_own_answer(serve: Any, model: Patches) -> None:
    gate, images = Gate(model), faces(64, seed=5)
    expected = FaceRecognizer(Patches(), flip=False).embed(images)

    def ask(url: str, i: int) -> np.ndarray:
        with connect(url) as client:
            answers = [client.post("/v1/embed", files=form(encode(images[i]))) for _ in range(3)]
            return np.array([answer.json()["embeddings"][0] for answer in answers])

    with serve() as client, ThreadPoolExecutor(64) as pool:
        asked = [pool.submit(ask, str(client.base_url), i) for i in range(64)]
        # The first batch is held and has at most 32 images, so 32 others gather meanwhile.
        wait_for(lambda: client.service._batcher._jobs.qsize() >= 32)
        gate.open.set()
        found = [client.result() for client in asked]
        after = counts(client)
        assert requests(client, "/v1/embed", 200) == after["facerec_batch_images_sum"] == 192
    for vectors, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(vectors, np.tile(right, (3, 1)), rtol=1e-5)
    assert after['facerec_batch_images_bucket{le="16.0"}'] < after["facerec_batch_images_count"]
    assert after['facerec_batch_images_bucket{le="32.0"}'] == after["facerec_batch_images_count"]
    assert after["facerec_admitted_images"] == 0


# --- refusals --------------------------------------------------------------------------------

PART = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n'
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        (form(b"GIF89a not a face"), 422, "image 0: .*no JPEG, PNG"),
        (form(JPEG[:-100]), 422, "lacks its end marker"),
        (form(FACE[:-100]), 422, "cannot be read"),
        (form(png_header(6_000, 5_000)), 413, "30,000,000 pixels.* 90,000"),
        (form(png_header(60_000, 50_000)), 422, "image 0: "),  # a bomb
        (form(*[FACE] * 5), 413, "5 images"),
        (form(b"x" * 3_000_000), 413, "bytes.* 200,000"),
        (form(FACE, field="image"), 400, "fields called images"),
        (form(*[b""] * 1100), 400, "[Tt]oo many|more texts"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_malformed_uploads(
    client: Any, files: Any, status: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for body in ({"files": files}, {"json": as_json(files)}):
        answer = client.post("/v1/embed", **body)
        error = answer.json()["error"]
        assert answer.status_code == status
        assert re.search(words, error)
        assert "\n" not in error and "someone" not in answer.text
    # The service goes on, and has nothing to say to its log.
    assert client.post("/v1/embed", files=form(FACE)).status_code == 200
    assert requests(client, "/v1/embed", status) == 2
    assert "".join(capfd.readouterr()) == ""


JSON = {"Content-Type": "application/json; charset=utf-8"}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"images": ["AAA"]}', 400, "base64"),
        (b'{"images": ["AA*A"]}', 400, "base64"),
        ('{"images": ["ÄÄÄÄ"]}'.encode(), 400, "base64"),
        (b'{"images": [""]}', 422, "image 0: "),
        (b'{"images": [7]}', 400, "no JSON object of texts"),
        (b'{"images": ["\\ud800"]}', 400, "no JSON object of texts"),
        (b'{"images": ["\xff"]}', 400, "no JSON object of texts"),
        (b"", 400, "no JSON object of texts"),
        (b"{}", 400, "fields called images"),
        (b'{"images": ["AAA"], "images": []}', 400, "base64"),  # both count
        (b'[["images", ["AAAA"]]]', 400, "no JSON object of texts"),
        (b"[" * 150_000, 400, "more texts"),
        (b"[" * 600, 400, "no JSON object of texts"),
        (b'{"images":[' + b'"",' * 50_000 + b'""]}', 400, "more texts"),
    ],
)
def test_malformed_json(client: Any, body: bytes, status: int, words: str) -> None:
    answer = client.post("/v1/embed", content=body, headers=JSON)
    assert answer.status_code == status and words in answer.json()["error"]


def test_openapi_describes_forms_and_json(client: Any) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    posts = {path: methods["post"] for path, methods in paths.items() if "post" in methods}
    assert len(posts) == 7 and {"/v1/people", "/healthz"} <= set(paths) - set(posts)
    for post in posts.values():
        schemas = [kind["schema"] for kind in post["requestBody"]["content"].values()]
        for schema in schemas:
            assert schema["required"] == [*schema["properties"]] == schemas[0]["required"]


MARKS = [b"--x", b"--x--", b"\r\n", b"\r\n\r\n", PART, b"; filename=x", b"\0"]
PIECES = st.sampled_from([*MARKS, b"{", b"}", b"[", b"]", b'"images"', b'"AAAA"', b":", b",", b"1"])
TYPES = st.sampled_from([MULTIPART["Content-Type"], "multipart/form-data", *JSON.values(), "x", ""])
LATIN = st.text(st.characters(max_codepoint=255))  # which is how HTTP headers come


@given(st.one_of(st.binary(), st.lists(PIECES, max_size=20).map(b"".join)), TYPES | LATIN)
def test_any_body_is_a_form_or_refused(body: bytes, kind: str) -> None:
    from starlette.exceptions import HTTPException

    from facerec.service.uploads import parse_body

    async def chunks() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    try:
        fields = asyncio.run(parse_body(chunks(), kind, 2))
    except HTTPException as refusal:
        assert refusal.status_code in (400, 415) and "\n" not in refusal.detail
    else:
        assert len(fields) <= 4  # files, and others


def test_a_large_upload_stays_in_memory(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpooledTemporaryFile, "rollover", lambda file: pytest.fail("to the disk"))
    with serve() as client:
        answer = client.post("/v1/embed", files=form(JPEG + bytes(3 << 20)))
        assert answer.status_code == 200, answer.text


HEAD = (
    b"POST /v1/embed HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\n"
)


def talk(client: Any, text: bytes) -> tuple[int, str]:
    """Send bytes as they are; return status and text of the first answer."""
    url = client.base_url
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        connection.sendall(text)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read().decode()


def test_a_body_larger_than_it_says_or_without_a_length(client: Any) -> None:
    stream = iter([PART, *[b"x" * 50_000] * 20])  # no length: it is counted as it comes
    answer = client.post("/v1/embed", content=stream, headers=MULTIPART)
    assert answer.status_code == 413 and "have 200,000" in answer.json()["error"]
    # A large length is refused before any of the body comes.
    status, text = talk(client, HEAD + b"Content-Length: 99999999999\r\n\r\n")
    assert status == 413 and "have 200,000" in text
    assert client.get("/healthz").status_code == 200


# --- load, time-outs, failures ---------------------------------------------------------------


def test_a_full_service_asks_to_come_again(serve: Any, model: Patches) -> None:
    gate = Gate(model)
    with serve(max_batch=1, max_queue=3, max_images=3) as client, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.post, "/v1/embed", files=form(FACE)) for _ in range(2)]
        wait_for(lambda: counts(client)["facerec_admitted_images"] == 2)
        # One more would be admitted, two are not.
        two = client.post("/v1/embed", files=form(FACE, FACE))
        assert two.status_code == 503 and two.headers["Retry-After"] == "1"
        assert "busy with 3 images" in two.json()["error"]
        gate.open.set()
        assert [request.result().status_code for request in waiting] == [200, 200]
        assert client.post("/v1/embed", files=form(FACE, FACE)).status_code == 200


@contextlib.contextmanager
def stalled(
    client: Any,
    count: int,
    sent: int = 3,
    path: str = "/v1/embed",
    address: str = "127.0.0.1",
    headers: bytes = b"",
) -> Iterator[list[socket.socket]]:
    """Give connections with requests whose bodies stop after some bytes, and never end."""
    head = HEAD.replace(b"/v1/embed", path.encode())
    head += b"Content-Length: %d\r\n" % (sent + 90)
    server = (client.base_url.host, client.base_url.port or 80)
    with contextlib.ExitStack() as open_:
        connections = []
        for number in range(count):
            slow = socket.create_connection(server, timeout=20, source_address=(address, 0))
            connections.append(open_.enter_context(slow))
            own = headers.replace(b"N", str(number).encode())
            slow.sendall(head + own + b"\r\n" + (PART + bytes(sent))[:sent])
        yield connections


def is_quiet(connection: socket.socket) -> bool:
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return not connection.recv(1)
    return True


def test_bodies_that_never_come_keep_nobody_out(serve: Any) -> None:
    with serve() as client, stalled(client, 250) as slow:
        wait_for(lambda: counts(client)["facerec_pending_bodies"] == 250)
        slow[0].sendall(b"\r")
        assert counts(client)["facerec_admitted_images"] == 0
        with stalled(client, 10):
            wait_for(lambda: counts(client)["facerec_pending_bodies"] == 256)
            assert client.post("/v1/embed", files=form(FACE)).status_code == 200
            # Those that were silent longest have given way, and the others wait.
            assert b" 503 " in slow[1].recv(99) and is_quiet(slow[0]) and is_quiet(slow[-1])


@pytest.mark.parametrize(("proxies", "most"), [((), 4), (("127.0.0.1",), 8)])
def test_only_a_proxy_that_is_named_says_where_requests_are_from(
    serve: Any, proxies: tuple[str, ...], most: int
) -> None:
    named = b"X-Forwarded-For: 10.0.0.N\r\n"
    access = Access(trust_proxy=proxies)
    with serve(access=access, max_queue=4) as client, stalled(client, 12, headers=named) as slow:
        wait_for(lambda: counts(client)["facerec_pending_bodies"] == most)
        wait_for(lambda: sum(map(is_quiet, slow)) == most)


@pytest.mark.parametrize(
    ("limits", "sent"),
    [({"max_queue": 4}, 3), ({"max_body_bytes": 100_000}, 20_000)],
    ids=["number", "bytes"],
)
def test_pending_bodies_are_bounded_by_address_and_in_all(
    serve: Any, limits: dict[str, int], sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facerec.service.uploads.LARGE", 1)
    # 4 bodies of an address and 8 in all, or 100,000 and 200,000 bytes of them.
    most = 4 if sent == 3 else 5
    with serve(**limits) as client, stalled(client, 1, sent, address="127.0.0.2") as first:

        def pending() -> float:
            return counts(client)["facerec_pending_bodies"]

        wait_for(lambda: pending() == 1)
        with stalled(client, 9, sent) as many:
            # Only those of the address with most of them give way.
            wait_for(lambda: pending() == 1 + most)
            wait_for(lambda: sum(map(is_quiet, many)) == most)
            with stalled(client, most, sent, address="127.0.0.3"):
                wait_for(lambda: pending() == 2 * most)
                assert client.post("/v1/embed", files=form(FACE)).status_code == 200
                assert is_quiet(first[0])
        wait_for(lambda: pending() == 1)


def test_bodies_on_their_way_do_not_hold_up_the_end(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facerec.service.app.GRACE", 1)
    with contextlib.ExitStack() as open_:
        with serve(timeout_s=300) as client:
            (slow,) = open_.enter_context(stalled(client, 1))
            wait_for(lambda: counts(client)["facerec_pending_bodies"] == 1)
        assert b" 200 " not in slow.recv(99)


def test_an_answer_that_takes_too_long(serve: Any, model: Patches) -> None:
    gate = Gate(model)
    with serve(max_batch=1, timeout_s=1) as client, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.post, "/v1/embed", files=form(FACE)) for _ in range(2)]
        for answer in (request.result() for request in asked):
            assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
            assert "too busy to answer in time" in answer.json()["error"]
        gate.open.set()
        assert client.post("/v1/embed", files=form(FACE)).status_code == 200
        # The second of the two was still waiting, so it is not computed any more.
        assert counts(client)["facerec_batch_images_sum"] == 2


def test_a_failure_of_the_network_is_told_without_its_message(
    client: Any,
    model: Patches,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Optuna's storage, in a test before this one, silences all loggers that are there.
    logger = logging.getLogger("facerec.service")
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler()])

    def fail() -> None:
        raise ModelError("secret: an embedding of somebody")

    model.before = fail
    answer = client.post("/v1/embed", files=form(FACE))
    assert answer.status_code == 500
    assert answer.json() == {"error": "the service failed on this request; see its log"}
    log = "".join(capfd.readouterr())
    assert "ModelError in " in log and "test_app.py" in log and "secret" not in log
    model.before = lambda: None
    model.matrix = model.matrix * np.nan  # an embedding that is not finite is no answer
    for path in ("/v1/embed", "/v1/verify"):
        answer = client.post(path, files=form(FACE, FACE))
        assert answer.status_code == 500 and "NaN" not in answer.text


def test_requests_in_flight_are_answered_before_the_end(serve: Any, model: Patches) -> None:
    gate = Gate(model)
    with ThreadPoolExecutor(5) as pool:
        with serve() as client:
            url = str(client.base_url)
            others = [connect(url) for _ in range(4)]
            asked = [
                pool.submit(other.post, "/v1/embed", files=form(encode(face)))
                for other, face in zip(others, faces(4), strict=True)
            ]
            wait_for(lambda: counts(client)["facerec_admitted_images"] == 4)
            pool.submit(lambda: (time.sleep(0.3), gate.open.set()))
        found = [request.result() for request in asked]  # the server has ended
    assert [answer.status_code for answer in found] == [200] * 4
    expected = FaceRecognizer(Patches(), flip=False).embed(faces(4))
    answers = [answer.json()["embeddings"][0] for answer in found]
    np.testing.assert_allclose(answers, expected, rtol=1e-6)
    with pytest.raises(pytest.importorskip("httpx").ConnectError):
        others[0].get("/healthz")
