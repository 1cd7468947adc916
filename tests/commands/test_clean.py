"""``facerec clean`` and ``make-records --apply`` from end to end, on generated embeddings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.toy_files import read_table

from facerec.commands.clean import main
from facerec.commands.make_records import main as make
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import read_embeddings, write_embeddings
from facerec.records.layout import RecordImages
from facerec.records.training_set import Data, open_dataset


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder of 14 people with 6 images each, one of them of another; and its embeddings."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    centers = generator.standard_normal((14, 32))
    vectors, ids, subjects = [], [], []
    for person in range(14):
        (tmp_path / "faces" / f"p{person:02d}").mkdir(parents=True)
        for shot in range(6):
            who = 7 if (person, shot) == (3, 2) else person
            vectors.append(centers[who] + 0.5 * generator.standard_normal(32))
            image = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            name = f"p{person:02d}/{shot}.jpg"
            cv2.imwrite(f"faces/{name}", cv2.resize(image, (112, 112)))
            ids.append(name)
            subjects.append(f"p{person:02d}")
    vectors[10] = vectors[9] + 0.001
    array = np.array(vectors, np.float32)
    norms = np.linalg.norm(array, axis=1).astype(np.float32)
    found = Embeddings(array, norms, True, ids=np.array(ids), subjects=np.array(subjects))
    write_embeddings("e.npz", found)
    return tmp_path


@pytest.mark.parametrize("source", ["e.npz", "faces"])
def test_a_wrong_label_and_a_duplicate_are_found_and_mended(workplace, capsys, told, source):
    more = ["--embeddings", "e.npz"] if source == "faces" else []
    assert "84 images of 14 labels" in told(
        main, source, *more, "--out p.csv --page faces.html --device cpu"
    )
    wrong = [row for row in read_table("p.csv") if row["kind"] == "wrong_label"]
    assert [(row["image_id"], row["label"], row["proposed_label"]) for row in wrong] == [
        ("p03/2.jpg", "p03", "p07")
    ]
    twice = [row for row in read_table("p.csv") if row["kind"] == "duplicate"]
    assert [(row["image_id"], row["other_id"]) for row in twice] == [("p01/4.jpg", "p01/3.jpg")]

    # Of a duplicate the image that stays is named on the page, or nobody could look at both.
    shown = Path("faces.html").read_text()
    assert all(name in shown for name in ("p03/2.jpg", "p01/4.jpg", "p01/3.jpg"))
    assert shown.count("data:image/jpeg") == (6 if more else 0)
    for name in ("faces.html", "p.csv"):
        assert Path(name).stat().st_mode & 0o777 == 0o600

    make(["faces", "--apply", "p.csv", "--out", "new"])
    new = RecordImages("new")
    assert np.bincount(new.labels).tolist() == [6, 5, 6, 5, 6, 6, 6, 7, 6, 6, 6, 6, 6, 6]


def test_images_of_records_are_named_by_their_paths(workplace, told):
    make(["faces", "--out", "records"])
    keys = RecordImages("records").ids
    write_embeddings("keys.npz", replace(read_embeddings("e.npz"), ids=keys))
    flags = ["records", "--embeddings", "keys.npz", "--device", "cpu"]
    shown = told(main, *flags, "--out p.csv")
    named = {row["kind"]: (row["image_id"], row["other_id"]) for row in read_table("p.csv")}
    assert named == {"wrong_label": ("p03/2.jpg", ""), "duplicate": ("p01/4.jpg", "p01/3.jpg")}
    assert "p03/2.jpg" in shown and "p01/4.jpg" in shown
    main(["e.npz", "--out", "other.csv", "--device", "cpu"])
    assert read_table("other.csv") == read_table("p.csv")
    # Proposals take paths, and the keys by which images were named before.
    text = Path("p.csv").read_text()
    Path("old.csv").write_text(text.replace("p03/2.jpg", keys[20]).replace("p01/4.jpg", keys[10]))
    for number, proposals in enumerate(("p.csv", "old.csv")):
        make(["records", "--apply", proposals, "--out", f"new{number}"])
        new = RecordImages(f"new{number}")
        assert np.bincount(new.labels).tolist() == [6, 5, 6, 5, 6, 6, 6, 7, 6, 6, 6, 6, 6, 6]
    for name in ("p03/2.jpg", keys[20]):
        Path("out.csv").write_text(f"image_id\n{name}\n")
        left = open_dataset(Data(Path("records"), exclude=Path("out.csv")), seed=0)
        assert len(left) == 83 and left.ids.tolist() == [key for key in keys if key != keys[20]]


def test_embeddings_of_another_set_are_refused(workplace, refused):
    make(["faces", "--out", "records"])
    keys = RecordImages("records").ids
    known = read_embeddings("e.npz")
    # The keys of a record file without the first image: everybody else has moved by one.
    write_embeddings("own.npz", replace(known, ids=keys))
    subjects = np.append(known.subjects[1:], known.subjects[0])
    write_embeddings("other.npz", replace(known, ids=keys, subjects=subjects))
    main(["records", "--embeddings", "own.npz", "--out", "p.csv", "--device", "cpu"])
    error = refused(main, "records", "--embeddings", "other.npz", "--out", "q.csv")
    assert "other.npz" in error and "p01" in error
    assert not Path("q.csv").exists()


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["faces", "--out", "p.csv"], "--embeddings"),
        (["e.npz", "--embeddings", "e.npz", "--out", "p.csv"], "leave out"),
        (["unnamed.npz", "--out", "p.csv"], "0 of 84 images have"),
    ],
)
def test_flags_that_do_not_fit_are_refused(workplace, refused, arguments, word):
    write_embeddings("unnamed.npz", replace(read_embeddings("e.npz"), subjects=None))
    assert word in refused(main, *arguments)
    assert not (workplace / "p.csv").exists()
