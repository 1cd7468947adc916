"""``facerec group``: photos or embeddings → groups, which people edit, and ``enroll`` takes."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pandas as pd
from helpers.marked_faces import Marked, marked_photo
from helpers.toy_embeddings import made
from pytest import CaptureFixture, MonkeyPatch

from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.commands import enroll, group
from facerec.embedding import read_embeddings, save_model, write_embeddings
from facerec.galleries import Gallery
from tests.commands.conftest import Refused, Told
from tests.galleries.test_grouping import faces

WHAT = ["--model", "m.safetensors", "--align", "marked"]


def table() -> pd.DataFrame:
    return pd.read_csv("out/groups.csv", dtype=str, keep_default_na=False, index_col="image_id")


def write(path: str, vectors: np.ndarray, first: int = 0, network: str = "ab") -> None:
    ids = np.array([f"{number}.jpg" for number in first + np.arange(len(vectors))])
    vectors = vectors.astype(np.float32)
    digests = np.array([f"{abs(hash(row.tobytes())):032d}"[:32] for row in vectors], "S32")
    write_embeddings(path, made(vectors, None, network * 32, ids=ids, digests=digests))


def test_groups_are_named_enrolled_and_extended(
    tmp_path: Path, monkeypatch: MonkeyPatch, told: Told, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    vectors, _ = faces([5] * 60, noise=0.4)
    old = np.arange(300) % 5 < 3
    write("old.npz", np.concatenate([vectors[old], vectors[:1], vectors[:1] * np.nan]))
    said = told(group.main, "old.npz --out out")
    assert "expected wrong merges" in said and "there twice: 1" in said and "left out" in said
    rows = table()
    assert rows["group"].iloc[0] == rows["group"].iloc[180] != "" == rows["group"].iloc[181]
    assert rows["remark"].iloc[181] == "no face"
    assert {file.stat().st_mode & 0o777 for file in Path("out").iterdir()} == {0o600}
    named = ["enroll", "out/embeddings.npz", "--subjects", "out/groups.csv", "--gallery", "g.npz"]
    assert "nobody could" in refused(enroll.main, *named[1:])
    rows.loc["0.jpg", "subject_id"] = "ada"
    rows.to_csv("out/groups.csv")
    enroll.main(named[1:])
    gallery = Gallery.read("g.npz")
    assert gallery.subjects.tolist() == ["ada"] and gallery.images.tolist() == [3]

    write("new.npz", vectors[~old], 200)
    group.main(["new.npz", "--out", "out"])
    now = table()
    assert now.loc[rows.index, ["group", "subject_id"]].equals(rows[["group", "subject_id"]])
    assert np.mean(now["group"].iloc[182::2].to_numpy() == rows["group"].iloc[0:180:3]) > 0.9
    assert len(read_embeddings("out/embeddings.npz").norms) == 302
    # Whoever is taken out of a group is placed anew, and may not go where links forbid.
    now.loc["3.jpg", "group"] = ""
    now.loc[["3.jpg", "4.jpg"], "cannot"] = "twins"
    now.to_csv("out/groups.csv")
    group.main(["old.npz", "--out", "out"])
    assert table()["group"]["3.jpg"] != table()["group"]["4.jpg"] == now["group"]["4.jpg"]
    for column, value, words in (("group", "ada", "no number"), ("subject_id", "eve", "two names")):
        wrong = now.copy()
        wrong.loc["1.jpg", column] = value
        wrong.to_csv("out/groups.csv")
        assert words in refused(enroll.main, *named[1:])
    now.rename({"1.jpg": "lost.jpg"}).to_csv("out/groups.csv")
    assert "'lost.jpg'" in refused(group.main, "old.npz", "--out", "out")
    now.to_csv("out/groups.csv")
    write("other.npz", vectors[~old], 400, network="cd")
    assert "another model" in refused(group.main, "other.npz", "--out", "out")
    assert "--folders" in refused(group.main, "new.npz", "--out", "other", "--folders")
    write("three.npz", vectors[:3])
    assert "3 faces" in refused(group.main, "three.npz", "--out", "three")
    assert not Path("three").exists()


def test_all_faces_of_photos_take_part(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("facerec.commands.embedder.parse_align", lambda *given: Marked())
    monkeypatch.setattr("facerec.galleries.grouping._STRANGERS", 1)
    config = Backbone(name="mbf", width=0.25, embedding_size=16)
    save_model("m.safetensors", create_backbone(config, seed=0), config, Preprocessing(), {})
    Path("photos").mkdir()
    for photo in range(12):
        several = [(photo % 9 + 1, 10, 40, 1.5), ((photo + 4) % 9 + 1, 240, 80, 0.8)]
        photos = marked_photo(*several)[:, :, ::-1] if photo else np.zeros((9, 9, 3), np.uint8)
        assert cv2.imwrite(f"photos/{photo:02d}.png", photos)
    group.main(["photos", "--out", "out", "--folders", *WHAT])
    rows = table()
    assert len(rows) == 23 and rows["remark"]["00.png"] and not rows["group"]["00.png"]
    shown = rows[rows["group"] != ""]
    assert not shown.duplicated(["photo", "group"]).any() and (shown["box"] != "").all()
    links = [*Path("out/people").rglob("*.png")]
    assert links and all(link.resolve().parent == tmp_path / "photos" for link in links)
    capsys.readouterr()
    for name in ("12", "00"):  # another one, and one that failed is mended
        assert cv2.imwrite(f"photos/{name}.png", marked_photo((2, 10, 40, 1.5))[:, :, ::-1])
    group.main(["photos", "--out", "out", *WHAT])
    rows = table()
    assert len(rows) == 24 and "images photos: 2" in capsys.readouterr().out
    assert rows["group"]["00.png"] and not rows["remark"].any()
    assert "data:image/jpeg" in Path("out/groups.html").read_text()
