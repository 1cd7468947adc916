"""The gallery of the service over real HTTP, and who may use the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.calibrations import refusing
from helpers.marked_faces import Marked, marked_photo, marks
from helpers.toy_files import encode

from facerec.base.errors import DatasetError, FacerecError
from facerec.embedding.recognizer import FaceRecognizer
from facerec.galleries import Gallery
from facerec.service.limits import Access
from tests.helpers.toy_service import Patches, faces, form


def images(*seeds: int, subject: str | bytes | None = None) -> Any:
    return form(*(encode(faces(1, seed)[0]) for seed in seeds), subject=subject)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "g.npz"


@pytest.fixture
def keep(path: Path, load: Any) -> Any:
    """Return what opens the gallery of a path as the service does."""

    def opened(**options: Any) -> Any:
        from facerec.service.gallery import GalleryFile

        return GalleryFile(path, FaceRecognizer(Patches(), flip=False), 40, **options)

    return opened


def test_enrol_identify_delete(serve: Any, keep: Any, path: Path) -> None:
    with serve(keep(threshold=0.9)) as client:
        empty = client.post("/v1/identify", files=images(1))
        assert empty.status_code == 404 and "empty" in empty.json()["error"]
        first = client.post("/v1/enroll", files=images(1, subject="Je\u0301ro\u0302me")).json()
        assert (first["subject"], first["new"], first["people"]) == ("J\xe9r\xf4me", True, 1)
        client.post("/v1/enroll", files=images(2, 2, subject="b"))
        more = client.post("/v1/enroll", files=images(1, 4, subject="J\xe9r\xf4me")).json()
        assert more["new"] is False and more["images"] == 2 and more["people"] == 2
        # A photo counts once, and belongs to one person.
        assert more["repeated"] == 1 and Gallery.read(path).images.tolist() == [2, 1]
        client.post("/v1/delete", files=form(subject="J\xe9r\xf4me"))
        client.post("/v1/enroll", files=images(1, subject="J\xe9r\xf4me"))
        foreign = client.post("/v1/enroll", files=images(1, subject="c"))
        assert foreign.status_code == 422 and "one person" in foreign.json()["error"]
        found = client.post("/v1/identify", files=images(1, 9)).json()
        known, stranger = found["answers"]
        assert known["subject"] == "Jérôme" and known["score"] == pytest.approx(1)
        assert stranger["subject"] is None and found["threshold"] == pytest.approx(0.9)
        assert found["contract"] == first["contract"] and found["people"] == 2
        # It is on the disk, and nobody else may write it.
        assert Gallery.read(path).subjects.tolist() == ["b", "Jérôme"]
        gone = client.post("/v1/delete", files=form(subject="Jérôme"))
        assert gone.status_code == 200 and gone.json()["people"] == 1
        assert "Jérôme" not in Gallery.read(path)
        assert client.post("/v1/identify", files=images(1)).json()["answers"][0]["subject"] is None
        again = client.post("/v1/delete", files=form(subject="Jérôme"))
        assert again.status_code == 404 and "Jérôme" not in again.text
        assert "Jérôme" not in client.get("/metrics").text
    file = keep(threshold=0.9)
    with serve(file) as client:  # another service goes on with the file
        assert client.post("/v1/identify", files=images(2)).json()["answers"][0]["subject"] == "b"
        client.post("/v1/enroll", files=images(1, subject="c"))
        file.gallery.expires[:1] = "2020-01-01"  # while it runs
        found = client.post("/v1/identify", files=images(2)).json()
        assert found["answers"][0]["subject"] is None
        assert (found["people"], found["expired"]) == (1, 1)


def test_every_face_of_a_photo_is_answered(serve: Any, keep: Any) -> None:
    both = marked_photo((1, 10, 40, 1.4), (2, 220, 80, 0.9))
    alike = marked_photo((1, 10, 40, 1.4), (2, 220, 80, 1.3))
    with serve(keep(threshold=0.9), max_images=2, max_queue=2) as client:
        client.service.recognizer.detector = Marked()
        told = client.post("/v1/enroll", files=form(encode(both), subject="a")).json()
        assert told["images"] == 1 and "2 faces" in told["notes"][0]
        refused = client.post("/v1/enroll", files=form(encode(alike), subject="b"))
        assert refused.status_code == 422 and "which is meant" in refused.json()["error"]
        found = client.post("/v1/identify", files=form(encode(both))).json()["answers"]
        assert [(each["image"], each["face"]) for each in found] == [(0, 1), (0, 2)]
        assert found[0]["subject"] == "a" and found[0]["score"] == pytest.approx(1, abs=1e-5)
        points = marks(both, 2)
        assert points is not None and found[1]["score"] < found[0]["score"]
        assert found[1]["box"] == [*points.min(axis=0), *points.max(axis=0)]
        (crop,) = client.post("/v1/identify", files=images(1)).json()["answers"]
        assert (crop["image"], crop["face"], crop["box"]) == (0, 1, None)
        many = client.post("/v1/identify", files=form(encode(both), encode(both)))
        assert many.status_code == 413 and "4 faces" in many.json()["error"]


def test_pictures_that_are_no_faces_are_failures(serve: Any, keep: Any, model: Patches) -> None:
    file = keep(threshold=0.5)
    with serve(file) as client:
        limits = refusing(model.embed(faces(1, 1))[0], -0.999)
        file._recognizer.face_limits = limits
        none = client.post("/v1/enroll", files=images(1, subject="a"))
        assert none.status_code == 422 and "face score" in none.json()["error"]
        told = client.post("/v1/enroll", files=images(1, 2, subject="a")).json()
        assert told["images"] == 1 and [row["image"] for row in told["failures"]] == [0]
        refused, known = client.post("/v1/identify", files=images(1, 2)).json()["answers"]
        assert refused["subject"] is None and "face score" in refused["failure"]
        assert known["subject"] == "a" and known["failure"] is None
        file._recognizer.unchecked = True
        assert client.post("/v1/enroll", files=images(1, subject="b")).json()["images"] == 1


def test_the_threshold_is_that_of_the_fpir(serve: Any, keep: Any) -> None:
    with serve(keep(fpir="0.2")) as client:
        client.post("/v1/enroll", files=images(0, subject="p0"))
        few = client.post("/v1/identify", files=images(0))
        assert few.status_code == 501
        assert "--impostors" in few.text and "--identify-threshold" in few.text
        for i in range(1, 40):
            client.post("/v1/enroll", files=images(i, subject=f"p{i}"))
        found = client.post("/v1/identify", files=images(3)).json()
        fpir = found["fpir"]
        assert found["answers"][0]["subject"] == "p3" and fpir["gallery_size"] == 40
        assert 0 < fpir["low"] <= fpir["fpir"] <= min(fpir["high"], 0.2 + 1e-9)
        assert fpir["threshold"] == found["threshold"]
        full = client.post("/v1/enroll", files=images(99, subject="one more"))
        assert full.status_code == 409 and "40 people" in full.json()["error"]
        # Somebody who is there may have more images.
        assert client.post("/v1/enroll", files=images(99, subject="p1")).status_code == 200


REFUSALS: list[tuple[str, Any, int, str]] = [
    ("/v1/enroll", images(1), 400, "subject"),
    ("/v1/enroll", form(subject="a"), 400, "no image"),
    ("/v1/enroll", images(1, subject="a\nb"), 400, "printable"),
    ("/v1/enroll", images(1, subject=b"\xff"), 400, "UTF-8"),
    ("/v1/enroll", [*images(1, subject="a"), *form(subject="b")], 400, "one person"),
    ("/v1/identify", images(1, subject="a"), 400, "may have images"),
    ("/v1/delete", form(subject="nobody"), 404, "nobody of that name"),
]


def test_refusals(serve: Any, keep: Any) -> None:
    with serve(keep(threshold=0.9)) as client:
        for path, content, status, words in REFUSALS:
            answer = client.post(path, files=content)
            assert answer.status_code == status and words in answer.json()["error"]
        plain = client.post("/v1/delete", data={"subject": "b"})  # not multipart
        assert plain.status_code == 415 and "called images or subject" in plain.json()["error"]
    with serve() as client:
        for path in ("/v1/enroll", "/v1/identify", "/v1/delete"):
            answer = client.post(path, files=images(1))
            assert answer.status_code == 501 and "--gallery" in answer.json()["error"]


def test_a_change_that_cannot_be_written_has_not_happened(
    serve: Any, keep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Gallery, path: Path) -> None:
        raise DatasetError(f"{path}: the disk is full")

    with serve(keep(threshold=0.9)) as client:
        client.post("/v1/enroll", files=images(1, subject="a"))
        with monkeypatch.context() as patch:
            patch.setattr(Gallery, "write", full)
            changes = ("enroll", images(2, subject="b")), ("delete", form(subject="a"))
            for name, content in changes:
                answer = client.post(f"/v1/{name}", files=content)
                assert answer.status_code == 507 and "disk is full" in answer.json()["error"]
        found = client.post("/v1/identify", files=images(1, 2)).json()
        assert [answer["subject"] for answer in found["answers"]] == ["a", None]


# --- who may use it --------------------------------------------------------------------------

OWN = "http://127.0.0.1:{port}"
"""The origin of the service itself; the port is filled in."""


FOREIGN: list[list[tuple[str, str]]] = [
    [("Host", "evil.example")],
    [("Host", "127.0.0.1.evil.example:80")],
    [("Host", "192.0.2.1:8000")],
    [("Origin", "https://evil.example")],
    [("Origin", "http://127.0.0.1")],
    [("Sec-Fetch-Site", "cross-site")],
    [("Origin", OWN), ("Sec-Fetch-Site", "cross-site")],
    [("Origin", OWN), ("Origin", "https://evil.example")],
]
"""Headers of requests that a page of another site can make a browser send."""


def test_pages_of_other_sites_are_refused(serve: Any, keep: Any, path: Path) -> None:
    with serve(keep(threshold=0.9)) as client:
        assert client.post("/v1/enroll", files=images(1, subject="a")).status_code == 200
        before = path.read_bytes()
        for headers in FOREIGN:
            sent = [(name, value.format(port=client.base_url.port)) for name, value in headers]
            for name, content in (
                ("enroll", images(2, subject="b")),
                ("delete", form(subject="a")),
                ("identify", images(1)),
                ("verify", images(1, 1)),
                ("embed", images(1)),
            ):
                answer = client.post(f"/v1/{name}", files=content, headers=sent)
                assert answer.status_code == 403, (name, headers)
                assert "--allow-" in answer.json()["error"]
                assert "access-control-allow-origin" not in answer.headers
        # Probes name hosts as they like.
        assert client.get("/healthz", headers={"Host": "192.0.2.1"}).status_code == 200
    assert path.read_bytes() == before


def write_token(path: Path, content: bytes, mode: int = 0o600) -> Access:
    path.write_bytes(content)
    path.chmod(mode)
    return Access(token_file=path)


def test_changes_take_the_token(serve: Any, keep: Any, path: Path, tmp_path: Path) -> None:
    access = write_token(tmp_path / "token", b"open-sesame\n")
    with serve(keep(threshold=0.9), access) as client:

        def change(name: str, **headers: str) -> Any:
            content = images(1, subject="a") if name == "enroll" else form(subject="a")
            return client.post(f"/v1/{name}", files=content, headers=headers)

        for name in ("enroll", "delete"):
            for shown in ("", "Bearer", "Bearer open-sesam", "Basic open-sesame", "open-sesame"):
                answer = change(name, Authorization=shown)
                assert answer.status_code == 401 and "open-sesame" not in answer.text
                assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert not path.exists()
        token = {"Authorization": "Bearer open-sesame"}
        assert change("enroll", **token, Origin="https://evil.example").status_code == 403
        assert change("enroll", **token).status_code == 200
        # What changes nothing takes none.
        assert client.post("/v1/identify", files=images(1)).status_code == 200
        assert change("delete", **token).status_code == 200


def test_a_token_is_read_from_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert write_token(path, b"abc123-_.~\n").token == b"abc123-_.~"
    wrong = [write_token(tmp_path / f"{mode:o}", b"abc\n", mode) for mode in (0o640, 0o604)]
    wrong += [write_token(tmp_path / f"{i}", x) for i, x in enumerate((b"\n", b"a b", b"a\nb"))]
    for access in (*wrong, Access(token_file=tmp_path), Access(token_file=tmp_path / "absent")):
        with pytest.raises(FacerecError, match=r"one line.*mode 600"):
            _ = access.token
