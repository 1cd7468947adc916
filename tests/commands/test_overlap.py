"""``facerec overlap``, the list that it writes, and what train and verify make of it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.toy_files import picture, read_table, write_files
from pytest import MonkeyPatch

from facerec.base.errors import DatasetError
from facerec.commands.overlap import main
from facerec.embedding.file import read_embeddings, write_embeddings
from facerec.galleries.known_overlaps import training_overlaps, without_known
from facerec.galleries.overlap_report import read_overlap
from facerec.records import Data, open_dataset
from facerec.records.images import MemoryImages
from facerec.verification.bench import Bench, Pairs
from tests.commands.conftest import Told
from tests.galleries.test_overlap import two_sets


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Two embeddings files of 30 and 25 people, of whom 8 are in both, and their overlap."""
    a, b = two_sets(0, (30, 25), 8, noise=0.5)
    for name, embeddings in (("a", a), ("b", b)):
        write_embeddings(tmp_path / f"{name}.npz", replace(embeddings, note={"flip": False}))
    files = [str(tmp_path / name) for name in ("a.npz", "b.npz", "list.csv", "page.html")]
    main([*files[:2], "--csv", files[2], "--page", files[3], "--share", "0.0005"])
    return tmp_path


def test_the_list_names_who_is_in_both(written: Path) -> None:
    rows = read_table(written / "list.csv")
    assert {row["subject_id"] for row in rows} == {str(person) for person in range(8)}
    assert all(row["other"] == f"b{row['subject_id']}" for row in rows)
    known = read_overlap(written / "list.csv")
    assert known.subjects == 8
    assert known.images == {f"b{image // 4}/{image}" for image in range(32)}
    page = (written / "page.html").read_text()
    assert "b7" in page and "<img" not in page
    assert "8 of 30" in page and "expected" in page
    assert (written / "page.html").stat().st_mode & 0o777 == 0o600


def test_pictures_without_a_face_are_in_no_set(written: Path, told: Told) -> None:
    """People of both sets whose images look like no face are nobody, unless all is taken."""
    known = read_embeddings(written / "a.npz")
    scores = np.where(np.isin(known.subjects, ["0", "1"]), -4, 1).astype(np.float32)
    note = {**known.note, "face_limit": -2.5}
    write_embeddings(written / "c.npz", replace(known, face_scores=scores, note=note))
    files = [str(written / name) for name in ("c.npz", "b.npz")]
    for flags, found, held in (([], "6 of 28", "8 not acquired"), (["--unchecked"], "8 of 30", "")):
        text = told(main, *files, "--share 0.0005", *flags)
        assert f"{found} subjects" in text and held in text and "8 of 120 images do not" in text


def test_pairs_of_people_of_the_training_set_are_left_out(written: Path) -> None:
    known = read_overlap(written / "list.csv")
    ids = two_sets(0, (30, 25), 8, noise=0.5)[1].ids.tolist()
    person = np.repeat(np.arange(25), 4)
    first = np.concatenate([np.arange(0, 100, 4), np.arange(0, 96, 4)])
    second = np.concatenate([np.arange(1, 100, 4), np.arange(4, 100, 4)])
    same = np.arange(49) < 25
    pairs = Pairs(first, second, same, person, np.arange(49) % 7)
    bench = Bench("toy", MemoryImages("toy", ids, []), pairs)
    (clean,), said = without_known(bench, [known, known])
    kept = (person[first] >= 8) & (person[second] >= 8)
    np.testing.assert_array_equal(clean.pairs.first, first[kept])
    np.testing.assert_array_equal(clean.pairs.issame, same[kept])
    assert len(clean.pairs) == len(clean.pairs.folds) == kept.sum()
    assert len(said) == 1
    # Of several sets that a model was trained on, nobody stays.
    more = replace(known, path=written / "more", images=frozenset(ids[-8:]))
    (clean,), _ = without_known(bench, [known, more])
    kept &= (person[first] < 23) & (person[second] < 23)
    np.testing.assert_array_equal(clean.pairs.first, first[kept])
    other = replace(bench, images=MemoryImages("toy", [f"{name}x" for name in ids], []))
    assert without_known(other, [known]) == ([], [])


def folder_of_faces(root: Path, people: int, images: int) -> Path:
    names = [f"p{person}/{image}.jpg" for person in range(people) for image in range(images)]
    return write_files(root, {name: picture(number) for number, name in enumerate(names)})


def test_people_and_images_of_a_list_are_not_read(tmp_path: Path) -> None:
    root = folder_of_faces(tmp_path / "faces", 4, 2)
    listed = tmp_path / "list.csv"
    listed.write_text("subject_id,image_id,cosine\np1,,0.9\n,p3/0.jpg,0.8\n")
    dataset = open_dataset(Data(root, exclude=listed), seed=0)
    assert dataset.class_names == ["p0", "p2", "p3"] and dataset.num_classes == 3
    names = [f"p{name}.jpg" for name in ("0/0", "0/1", "2/0", "2/1", "3/1")]
    assert dataset.ids.tolist() == names
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2] and dataset.sample(4)[1] == 2
    listed.write_text("subject_id,image_id\n")
    assert len(open_dataset(Data(root, exclude=listed), seed=0)) == 8


@pytest.mark.parametrize(
    ("arguments", "token"),
    [
        (["a.npz", "nothing.npz"], "nothing.npz"),
        (["a.npz", "b.npz", "--share", "2"], "--share"),
        (["a.npz", "faces"], "--model"),
        (["a.npz", "list.csv"], "list.csv: text"),
    ],
)
def test_bad_input_ends_in_a_sentence(
    written: Path, monkeypatch: MonkeyPatch, refused, arguments, token
) -> None:
    folder_of_faces(written / "faces", 1, 1)
    monkeypatch.chdir(written)
    assert token in refused(main, *arguments)


def test_lists_beside_the_training_set_are_looked_for(written: Path) -> None:
    root = folder_of_faces(written / "faces", 2, 1)
    facts = json.loads((written / "list.overlap.json").read_text())
    facts["a"]["path"] = str(root.resolve())
    (root / "list.overlap.json").write_text(json.dumps(facts))
    assert [known.subjects for known in training_overlaps({"path": str(root)})] == [8]
    assert not training_overlaps({"path": str(written)})[1:]
    excluded = {"path": str(root), "exclude": str(root / "list.csv")}
    assert not training_overlaps(excluded)
    (root / "list.overlap.json").write_text("{}")
    with pytest.raises(DatasetError, match="overlap"):
        training_overlaps({"path": str(root)})
