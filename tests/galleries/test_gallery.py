"""Galleries: search against a sorted table, templates, refusals, deletions, and files."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.calibrations import toy_calibration
from helpers.toy_embeddings import made as embeddings

from facerec.base.errors import DatasetError, MetricError, ModelError
from facerec.cosines.coarse import copy_of
from facerec.embedding import Embeddings, read_embeddings
from facerec.galleries import Gallery, Space, find_alarms


def digests(*texts: str) -> np.ndarray:
    return np.array([f"{text:>032}" for text in texts], "S32")


def people(count: int, size: int = 16, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    vectors = np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)
    return vectors, [f"person {i}" for i in range(count)]


def gallery_of(made: Embeddings) -> Gallery:
    found = Gallery(Space.of(made))
    found.enroll(made)
    return found


def gallery(vectors: np.ndarray, names: list[str]) -> Gallery:
    return gallery_of(embeddings(vectors, names))


@pytest.mark.parametrize("count", [1, 3, 100])
def test_search_is_that_of_a_sorted_table(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("facerec.cosines.searches.SHAPE", (4, 5))
    vectors, names = people(37)
    vectors[20:25] = vectors[3]  # ties, also across blocks
    found = gallery_of(embeddings(vectors, names, digests=digests(*map(str, range(37)))))
    probes = np.concatenate([vectors[3:4] * 7, people(9, seed=1)[0]])
    rows, scores = found.search(probes, count)
    assert rows.shape == scores.shape == (10, min(count, 37))
    unit = probes / np.linalg.norm(probes.astype(float), axis=1, keepdims=True)
    table = np.rint(unit @ found.templates.T.astype(float) * 2**24) / 2**24
    expected = np.argsort(-table, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(table, expected, 1), rtol=0, atol=2**-23)


def test_a_probe_without_direction_finds_nobody() -> None:
    vectors, names = people(5)
    found = gallery(vectors, names)
    probes = np.stack([vectors[2], np.zeros(16), np.full(16, np.nan)])
    answers = found.identify(embeddings(probes), threshold=0.9, count=1)
    assert answers[0].subject == "person 2" and answers[0].score == pytest.approx(1)
    assert len(answers[0].candidates) == 1 and answers[0].margin > 0
    for lost in (answers[1], answers[2]):
        assert lost.subject is lost.score is lost.margin is None and lost.failure
    # They are a sequence, though each is made when it is asked for.
    assert len(answers) == 3 and next(iter(answers)) == answers[0]
    with pytest.raises(IndexError):
        answers[3]
    found.delete("person 2")
    assert answers[0].subject == "person 2"


def test_templates_are_means_however_images_come() -> None:
    vectors, _ = people(24)
    vectors *= np.linspace(1, 30, 24, dtype=np.float32)[:, None]
    names = [f"person {i % 5}" for i in range(24)]
    at_once = gallery(vectors, names)
    in_turn = Gallery(at_once.space)
    for start, stop in ((0, 7), (7, 15), (15, 24)):
        in_turn.enroll(embeddings(vectors[start:stop], names[start:stop]))
    for i in range(5):
        mine = vectors[i::5].astype(np.float64)
        mine /= np.linalg.norm(mine, axis=1, keepdims=True)
        mean = mine.mean(axis=0)
        for found in (at_once, in_turn):
            assert found.subjects[i] == f"person {i}" and found.images[i] == len(mine)
            np.testing.assert_allclose(found.templates[i], mean / np.linalg.norm(mean), atol=1e-6)


def test_what_cannot_be_enrolled_is_listed_by_image() -> None:
    vectors, _ = people(8)
    vectors[1] = np.nan
    vectors[2] = 0
    vectors[6], vectors[7] = vectors[5], -vectors[5]
    names = ["a", "a", "b", "", "c", "d", "e", "e"]
    vectors[5], vectors[6] = 2 * vectors[5], -vectors[7]
    given = embeddings(vectors, names, failures={1: "no face on it"})
    found = Gallery(Space.of(given))
    report = found.enroll(given)
    assert report.enrolled == ("a", "c", "d") and report.images == 3
    assert report.failures["image 1"] == "no face on it"
    assert report.failures.keys() == {f"image {i}" for i in (1, 2, 3, 6, 7)}
    assert report.not_enrolled == ("b", "e")
    assert "b" not in found and "a" in found


def test_questions_without_an_answer_are_refused() -> None:
    vectors, names = people(4)
    found = gallery(vectors, names)
    for act in (found.enroll, found.calibrate, found.identify):
        with pytest.raises(ModelError, match=r"gallery cannot be compared.*another model"):
            act(embeddings(vectors, names, "cd" * 32))
    assert len(found) == 4 and found.calibration is None
    with pytest.raises(MetricError, match="calibrated"):
        found.identify(embeddings(vectors), fpir="1e-2")
    # With neither, candidates are listed and nobody is named.
    listed = found.identify(embeddings(vectors))
    assert listed.threshold is None and listed.fpir is None
    assert all(answer.subject is None and answer.candidates for answer in listed)
    with pytest.raises(MetricError, match="empty"):
        Gallery(found.space).search(vectors)
    with pytest.raises(DatasetError, match="nobody is named on 4 images"):
        found.enroll(embeddings(vectors))


# --- calibration -----------------------------------------------------------------------------


def test_own_people_stand_in_for_strangers() -> None:
    found = gallery(*people(30))
    calibration = found.calibrate()
    cosines = found.templates.astype(np.float64) @ found.templates.T.astype(np.float64)
    for place, row in enumerate(calibration.probe_subjects):
        others = np.delete(cosines[row], row)
        np.testing.assert_allclose(calibration.scores[place, :29], np.sort(others)[::-1], atol=1e-6)
        assert row not in calibration.entries[place]
    assert sorted(calibration.probe_subjects) == list(range(30))


def test_impostors_by_name_meet_others_alone_and_leave_no_name() -> None:
    vectors, names = people(30)
    found = gallery(vectors, names)
    others, _ = people(6, seed=5)
    who = ["x", "x", "y", "person 3", "", ""]
    calibration = found.calibrate(embeddings(others, who))
    strangers = calibration.probe_subjects
    assert strangers[0] == strangers[1] < 0 and strangers[3] == 3
    assert len(set(strangers.tolist())) == 5 and 3 not in calibration.entries[3]
    assert calibration.eligible.tolist() == [30, 30, 30, 29, 30, 30]
    point = found.point(threshold=0.6)
    alarms = (others / np.linalg.norm(others, axis=1, keepdims=True)) @ found.templates.T
    alarms[3, 3] = -1
    assert point.events == np.count_nonzero(alarms.max(axis=1) >= 0.6)


# --- deletion and files ----------------------------------------------------------------------


def traces(vector: np.ndarray, name: str) -> list[bytes]:
    """Return bytes by which a person would be known: name, whole embedding, any four numbers."""
    raw = np.asarray(vector, np.float32).tobytes()
    pieces = [raw[start : start + 16] for start in range(0, len(raw) - 15, 4)]
    return [*pieces, name.encode(), name.encode("utf-32-le"), name.encode("utf-16-le")]


@pytest.mark.parametrize("kind", ["exact", "faiss"])
def test_a_deleted_person_leaves_nothing_behind(tmp_path: Path, kind: Any) -> None:
    if kind != "exact":
        pytest.importorskip("faiss")
    vectors, names = people(120)
    names[7] = "somebody with a name that is longer than all others"
    marks = digests(*(f"<{i}>" for i in range(120)))
    found = gallery_of(embeddings(vectors, names, digests=marks))
    found.calibrate()
    found.search(vectors[:3], 2, index=kind)
    template, path = found.templates[7].copy(), tmp_path / "gallery.npz"
    found.write(path)
    held, copies = found.templates, [copy_of(found._rows, k).held for k in ("int8", "bfloat16")]
    before = path.read_bytes()
    assert all(piece in before for piece in traces(template, names[7])[:-3])
    assert names[7].encode("utf-32-le") in before and bytes(marks[7]) in before

    found.delete(names[7])
    found.write(path)
    after = path.read_bytes()
    assert not [piece for piece in traces(template, names[7]) if piece in after]
    assert not [piece for piece in traces(vectors[7], names[7]) if piece in after]
    assert [bytes(mark) in after for mark in marks] == [row != 7 for row in range(120)]
    # Nor in the memory that held the templates, and coarse copies of them.
    memory = held.tobytes()
    assert found._rows is None and not np.any(copies[0]) and not np.any(copies[1])
    assert not [piece for piece in traces(template, names[7]) if piece in memory]
    assert [file.name for file in tmp_path.iterdir()] == ["gallery.npz"]

    # It is the gallery that never knew them, also in its calibration and its index.
    kept = [i for i in range(120) if i != 7]
    never = gallery(vectors[kept], [names[i] for i in kept])
    np.testing.assert_array_equal(found.templates, never.templates)
    never.calibrate()
    for threshold, size in ((0.5, 100), (0.7, 50)):
        mine, theirs = (g.calibration.fpir(threshold, size) for g in (found, never))
        assert mine.value == pytest.approx(theirs.value, rel=1e-12)
    again = Gallery.read(path)
    assert again.digest_rows.tolist() == list(range(119))
    rows, _ = again.search(template[None], 5, index=kind)
    assert names[7] not in again.subjects[rows[0]]
    if kind != "exact":
        import faiss

        found.search(template[None], 5, index=kind)
        index = faiss.serialize_index(found._index).tobytes()
        assert not [piece for piece in traces(template, "")[:-3] if piece in index]


def test_a_gallery_is_read_as_it_was_written(tmp_path: Path) -> None:
    vectors, names = people(20)
    found = gallery(np.concatenate([vectors, vectors + 0.1]), names * 2)
    found.calibrate()
    found.write(tmp_path / "g.npz")
    assert (tmp_path / "g.npz").stat().st_mode & 0o777 == 0o600
    again = Gallery.read(tmp_path / "g.npz")
    assert again.space == found.space and len(again) == 20
    np.testing.assert_array_equal(again.templates, found.templates)
    np.testing.assert_array_equal(again.calibration.scores, found.calibration.scores)
    # And it goes on as the other would.
    for one in (again, found):
        one.enroll(embeddings(vectors[:3] * 2, names[:3]))
        one.delete("person 1")
    np.testing.assert_array_equal(again.templates, found.templates)
    assert again.point(threshold=0.5) == found.point(threshold=0.5)


def test_damaged_galleries_end_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "g.npz"
    with pytest.raises(DatasetError, match="No such file"):
        Gallery.read(path)
    vectors, names = people(6)
    found = gallery(vectors, names)
    calibration = found.calibrate()
    entries = calibration.entries
    lower = np.where(entries == entries[0, 0], -2, entries)
    for change in (
        {"templates": found.templates * 2},
        {"templates": found.templates[:3]},
        {"subjects": np.array([*"abcd", "\xe9", "e\u0301"])},  # one name in two forms
        {"images": found.images.astype(np.float64)},
        {"expires": np.full(6, "soon")},
        {"digest_rows": np.arange(1, 7)},
        {"digests": digests(*"ab")},
        {"calibration": replace(calibration, entries=lower)},
        {"calibration": replace(calibration, entry_subjects=np.arange(1, 7))},
    ):
        broken = gallery(vectors, names)
        for name, value in change.items():
            setattr(broken, name, value)
        broken.write(path)
        with pytest.raises(DatasetError, match="cannot be read"):
            Gallery.read(path)


@pytest.mark.parametrize("stored", ["digests", "empty", "none"])
def test_a_photo_counts_once(tmp_path: Path, stored: str) -> None:
    """A template is the mean over distinct photos, whether they come at once, again or later."""
    vectors, _ = people(4)
    first, second, third, other = vectors
    rows = np.stack([first, second, first, other])

    def made(vectors: Any, names: str, *texts: str) -> Embeddings:
        told = {"digests": digests(*texts), "empty": np.zeros(len(texts), "S32"), "none": None}
        return embeddings(vectors, [*names], digests=told[stored])

    found = gallery_of(made(rows, "aaab", *"1214"))
    report = found.enroll(made(np.stack([second, third, third]), "aaa", *"233"))
    assert (report.images, report.repeated, dict(report.failures)) == (1, 2, {})
    assert report.extended == ("a",) and found.images.tolist() == [3, 1]
    mean = sum(v.astype(np.float64) / np.linalg.norm(v) for v in (first, second, third))
    np.testing.assert_allclose(found.templates[0], mean / np.linalg.norm(mean), atol=1e-6)
    # The file knows it too, until the person goes; then the photo is as good as new.
    found.write(tmp_path / "g.npz")
    again = Gallery.read(tmp_path / "g.npz")
    more = made(first[None], "a", "1")
    report = again.enroll(more)
    assert (report.images, report.repeated, report.extended) == (0, 1, ())
    again.delete("a")
    assert again.digest_rows.tolist() == [0] and len(again.digests) == 1
    assert again.enroll(more).enrolled == ("a",) and again.images.tolist() == [1, 1]
    # Who comes with the same photo again stays as long as is asked for now.
    assert again.enroll(more, expires=date(2999, 1, 1)).images == 0
    assert np.isnat(again.expires[0]) and str(again.expires[1]) == "2999-01-01"
    nobody = embeddings(np.stack([third, -third, third]), [*"ccc"], digests=digests(*"565"))
    assert not again.enroll(nobody, expires=date(2999, 2, 1)).images
    assert str(again.expires[1]) == "2999-01-01"


def test_one_photo_under_two_people_is_refused_for_the_second() -> None:
    vectors, _ = people(4)
    made = embeddings(vectors, [*"abbc"], digests=digests(*"1122"))
    found = Gallery(Space.of(made))
    report = found.enroll(made)
    assert report.failures.keys() == {"image 1", "image 3"} and report.repeated == 0
    assert "'a'" in report.failures["image 1"] and "'b'" in report.failures["image 3"]
    assert report.enrolled == ("a", "b") and report.not_enrolled == ("c",)
    np.testing.assert_allclose(found.templates[1], vectors[2] / np.linalg.norm(vectors[2]), 1e-5)
    later = found.enroll(embeddings(vectors[:1], ["c"], digests=digests("1")))
    assert "'a'" in later.failures["image 0"] and not later.images and "c" not in found


# --- FAISS and Parquet -----------------------------------------------------------------------


def test_faiss_chooses_whom_to_score() -> None:
    pytest.importorskip("faiss")
    centres, _ = people(20, seed=3)
    noise, names = people(600)
    found = gallery(np.repeat(centres, 30, axis=0) * 2 + noise, names)
    probes = found.templates[::7] + 0.05 * people(86, seed=9)[0]
    exact, scores = found.search(probes, 3)
    rows, values = found.search(probes, 3, index="faiss")
    hit = rows == exact
    assert hit.mean() >= 0.9
    np.testing.assert_array_equal(values[hit], scores[hit])


def test_parquet_has_a_row_a_template(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    vectors, names = people(10)
    found = gallery(vectors, names)
    found.export(tmp_path / "g.parquet")
    table = parquet.read_table(tmp_path / "g.parquet")
    assert table.num_rows == 10 and str(table.schema.field("embedding").type) == (
        "large_list<element: float>"
    )
    assert b"ab" * 32 in table.schema.metadata[b"facerec_gallery"]
    again = read_embeddings(tmp_path / "g.parquet")
    assert again.subjects.tolist() == names
    np.testing.assert_array_equal(again.vectors, found.templates)


# --- expiry and alarms -------------------------------------------------------------------------

YESTERDAY = np.datetime64("now", "D") - 1


@pytest.mark.parametrize("index", ["exact", "faiss"])
def test_who_has_expired_is_as_good_as_deleted(tmp_path: Path, index: Any) -> None:
    if index == "faiss":
        pytest.importorskip("faiss")
    vectors, names = people(60)
    found, without = gallery(vectors, names), gallery(vectors, names)
    found.calibrate()
    without.calibrate()
    found.expires[[0, 7, 59]] = YESTERDAY
    found.expires[5] = YESTERDAY + 1  # today is a last day
    without.delete(*(names[row] for row in (0, 7, 59)))
    found.write(tmp_path / "g.npz")
    again = Gallery.read(tmp_path / "g.npz")
    assert again.expired.tolist() == [0, 7, 59]
    for options in ({"fpir": "0.2"}, {"threshold": 0.5}, {}):
        some = [
            g.identify(embeddings(vectors), index=index, **options) for g in (found, again, without)
        ]
        assert list(some[0]) == list(some[1]) == list(some[2])
        assert some[0].fpir == some[1].fpir == some[2].fpir
    # Whoever is enrolled with a new day is found again; without one, the old day stays.
    found.enroll(embeddings(vectors[:8], names[:8]))
    assert found.identify(embeddings(vectors[:1]), threshold=0.9)[0].subject is None
    found.enroll(embeddings(vectors[:1], names[:1]), expires=date(2999, 1, 1))
    assert found.identify(embeddings(vectors[:1]), threshold=0.9)[0].subject == names[0]


def test_who_came_when_is_kept_and_other_formats_are_refused(tmp_path: Path) -> None:
    found, path = gallery(*people(6)), tmp_path / "g.npz"
    assert (abs(np.datetime64("now") - found.enrolled) < np.timedelta64(60, "s")).all()
    found.write(path)
    assert (Gallery.read(path).enrolled == found.enrolled).all()
    arrays = dict(np.load(path))
    arrays["note"] = np.array(str(arrays["note"]).replace("gallery 2", "gallery 1"))
    np.savez(path, **arrays)
    with pytest.raises(DatasetError, match="it is 'facerec gallery 1'"):
        Gallery.read(path)


def test_one_person_under_two_names_and_a_lamb_are_named() -> None:
    vectors, names = people(400, size=64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert not len(find_alarms(gallery(vectors, names), names))
    twin = vectors[0] + 0.09 * people(1, size=64, seed=5)[0]
    lamb = vectors[1:5].sum(axis=0, keepdims=True)
    found = gallery(np.concatenate([vectors, twin, lamb]), [*names, "twin", "lamb"])
    found.recalibrate()
    alarms = find_alarms(found, ["lamb", "twin", "person 9"]).set_index("subject")
    assert sorted(alarms.index) == ["lamb", "twin"] and alarms.other["twin"] == "person 0"
    reached = found.templates[:-1] @ found.templates[-1] >= alarms.threshold["lamb"]
    assert alarms.reached["lamb"] == reached.sum() > 1


# --- names in two Unicode forms ---------------------------------------------------------------

COMPOSED, DECOMPOSED = "Jos\xe9 \u1ec7", "Jose\u0301 e\u0323\u0302"


@pytest.mark.parametrize("name", [COMPOSED, DECOMPOSED, "Jos\xe9 \u1eb9\u0302"])
def test_a_name_is_one_person_in_any_form(name: str) -> None:
    vectors, names = people(6)
    found = gallery(vectors[:5], [DECOMPOSED, *names[1:5]])
    report = found.enroll(embeddings(vectors[5:], [name]))
    assert not report.enrolled and report.extended == (COMPOSED,) and len(found) == 5
    assert name in found and found.images[0] == 2
    probe = vectors[0] / np.linalg.norm(vectors[0]) + vectors[5] / np.linalg.norm(vectors[5])
    assert found.identify(embeddings(probe[None]), threshold=0.99)[0].subject == COMPOSED
    # An impostor of that name is the one who is enrolled.
    calibration = found.calibrate(embeddings(vectors[5:], [name]))
    assert calibration.probe_subjects.tolist() == [0]
    found.delete(name)
    assert len(found) == 4 and name not in found and COMPOSED not in found


def test_a_calibration_tells_evidence_of_templates_of_one_image(tmp_path: Path) -> None:
    vectors, names = people(40)
    known = toy_calibration(
        {"name": "tiny", "sha256": "ab" * 32, "preprocessing": None}, flip=False
    )
    made = gallery(np.concatenate([vectors, 2 * vectors[:1]]), [*names, names[0]])
    made.score_calibration = known
    made.write(tmp_path / "g.npz")
    probes = vectors[:30] + 0.5 * people(30, seed=1)[0]
    found = Gallery.read(tmp_path / "g.npz").identify(embeddings(probes), threshold=0.5, among=1000)
    assert found[0].evidence is found[0].probability is None  # two images are in its template
    for answer in list(found)[1:]:
        expected = known.evidence(answer.score)
        assert answer.evidence == expected
        assert answer.probability == expected.probability(1000)
    assert found.likeness is None
    ones = gallery(vectors, names)
    ones.score_calibration = known
    told = ones.identify(embeddings(probes)).likeness
    assert told is not None and told.low < told.factor < told.high
