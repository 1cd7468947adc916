"""The gallery of the service over real HTTP, and who may use the service."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.calibrations import refusing
from helpers.marked_faces import Marked, marked_photo, marks
from helpers.toy_files import encode

from facerec.base.errors import DatasetError, FacerecError
from facerec.embedding.recognizer import FaceRecognizer
from facerec.galleries import Gallery
from facerec.service.limits import Access
from tests.helpers.toy_service import Patches, as_json, faces, form


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
        assert empty.status_code == 501 and "empty" in empty.json()["error"]
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
        assert found == client.post("/v1/identify", json=as_json(images(1, 9))).json()
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
        every = client.post("/v1/faces", files=form(encode(both))).json()
        assert every == client.post("/v1/faces", json=as_json(form(encode(both)))).json()
        assert [(each["image"], each["face"]) for each in every["faces"]] == [(0, 1), (0, 2)]
        assert [each["box"] for each in every["faces"]] == [each["box"] for each in found]
        one = client.post("/v1/embed", files=form(encode(both))).json()["embeddings"]
        assert [each["embedding"] for each in every["faces"]][:1] == one
        (crop,) = client.post("/v1/identify", files=images(1)).json()["answers"]
        assert (crop["image"], crop["face"], crop["box"]) == (0, 1, None)
        many = client.post("/v1/identify", files=form(encode(both), encode(both)))
        assert many.status_code == 413 and "4 faces" in many.json()["error"]


def test_people_are_listed_and_renamed(serve: Any, keep: Any, path: Path) -> None:
    with serve(keep(threshold=0.9)) as client:
        for seed, name in enumerate(("a", "Somebody with a long name", "c")):
            client.post("/v1/enroll", json=as_json(images(seed, subject=name)))
        before = Gallery.read(path)
        sent = {"subject": "Somebody with a long name", "new_subject": "Je\u0301"}
        told = client.post("/v1/rename", json=sent).json()
        assert (told["subject"], told["people"]) == ("J\xe9", 3)
        after = Gallery.read(path)
        assert after.subjects.tolist() == ["a", "J\xe9", "c"]
        for name in ("templates", "images", "enrolled", "expires", "digests", "digest_rows"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
        # No byte of the old name is left, nor room for it.
        assert after.subjects.dtype == "<U2" and [*path.parent.glob("*.npz*")] == [path]
        assert "Somebody".encode("utf-32-le") not in path.read_bytes()
        answer = client.post("/v1/identify", files=images(1)).json()["answers"][0]
        assert answer["subject"] == "J\xe9"
        again = client.post("/v1/enroll", files=images(1, 5, subject="J\xe9")).json()
        assert (again["images"], again["repeated"], again["new"]) == (2, 1, False)
        for subject, new, status in (("J\xe9", "c", 409), ("J\xe9", "J\xe9", 409), ("b", "d", 404)):
            files = [*form(subject=subject), ("new_subject", (None, new.encode()))]
            assert client.post("/v1/rename", files=files).status_code == status
        bad = client.post("/v1/rename", json={"subject": "a", "new_subject": "\n b \n c"})
        assert bad.status_code == 400 and "called new_subject" in bad.json()["error"]
        page = client.get("/v1/people", params={"offset": 1, "limit": 1}).json()
        (row,) = page["subjects"]
        assert (row["subject"], row["images"], row["expires"]) == ("J\xe9", 2, None)
        assert row["enrolled"] == str(after.enrolled[1]) and page["people"] == 3
        assert page["space"]["embedding_size"] == 32 and page["contract"] == told["contract"]
        assert client.get("/v1/people?offset=3").json()["subjects"] == []
        for query in ("offset=-1", "limit=1001", "limit=all"):
            answer = client.get(f"/v1/people?{query}")
            assert answer.status_code == 400 and query.split("=")[0] in answer.json()["error"]
    with pytest.raises(DatasetError, match="already"):
        Gallery.read(path).rename("a", "c")


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
        assert "give a threshold" in few.text
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
    ("/v1/enroll", form(subject="a"), 400, "images and subject"),
    ("/v1/enroll", images(1, subject="a\nb"), 400, "printable"),
    ("/v1/enroll", images(1, subject=b"\xff"), 400, "UTF-8"),
    ("/v1/enroll", [*images(1, subject="a"), *form(subject="b")], 400, "one person"),
    ("/v1/identify", images(1, subject="a"), 400, "fields called images"),
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
        for path in ("/v1/enroll", "/v1/identify", "/v1/rename", "/v1/delete", "/v1/people"):
            method = "GET" if path == "/v1/people" else "POST"
            answer = client.request(method, path)
            assert answer.status_code == 501 and "--gallery" in answer.json()["error"]


def test_a_change_that_cannot_be_written_has_not_happened(
    serve: Any, keep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, arrays: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with serve(keep(threshold=0.9)) as client:
        client.post("/v1/enroll", files=images(1, subject="a"))
        with monkeypatch.context() as patch:
            patch.setattr("facerec.galleries.gallery.write_arrays", full)
            renamed = [*form(subject="a"), ("new_subject", (None, b"b"))]
            changes = ("enroll", images(2, subject="b")), ("delete", form(subject="a"))
            changes = (*changes, ("rename", renamed))
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
                ("rename", form(subject="a")),
                ("identify", images(1)),
                ("faces", images(1)),
                ("verify", images(1, 1)),
                ("embed", images(1)),
            ):
                answer = client.post(f"/v1/{name}", files=content, headers=sent)
                assert answer.status_code == 403, (name, headers)
                assert "--allow-" in answer.json()["error"]
                assert "access-control-allow-origin" not in answer.headers
            assert client.get("/v1/people", headers=sent).status_code == 403
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
            if name == "people":
                return client.get("/v1/people", headers=headers)
            return client.post(f"/v1/{name}", files=content, headers=headers)

        for name in ("enroll", "rename", "delete", "people"):
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
        assert change("people", **token).json()["people"] == 1
        assert change("delete", **token).status_code == 200


def test_a_token_is_read_from_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert write_token(path, b"abc123-_.~\n").token == b"abc123-_.~"
    wrong = [write_token(tmp_path / f"{mode:o}", b"abc\n", mode) for mode in (0o640, 0o604)]
    wrong += [write_token(tmp_path / f"{i}", x) for i, x in enumerate((b"\n", b"a b", b"a\nb"))]
    for access in (*wrong, Access(token_file=tmp_path), Access(token_file=tmp_path / "absent")):
        with pytest.raises(FacerecError, match=r"one line.*mode 600"):
            _ = access.token
