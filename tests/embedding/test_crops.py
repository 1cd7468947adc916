"""Photos → crops and records: what embed sees, in one process or several, in one go or in two."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.calibrations import model_calibration, refusing
from helpers.marked_faces import Marked, marked_photo
from helpers.toy_files import encode, read_files, read_table, write_files
from helpers.toy_model import ToyModel, tile_means

from facerec.commands.make_records import main
from facerec.embedding import crops
from facerec.embedding.align import face_template
from facerec.embedding.extraction import read_face
from facerec.records.decode import decode_image
from facerec.records.images import FolderImages
from facerec.records.training_set import Data, open_dataset

PHOTOS = {
    "ann/one.png": encode(marked_photo((1, 60, 40, 1.2))),
    "ann/two.png": encode(marked_photo((2, 200, 60, 1.0), (3, 20, 30, 0.7))),
    "ben/none.png": encode(marked_photo()),
    "eva/one.png": encode(marked_photo((4, 30, 20, 1.5))),
}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(crops, "parse_align", lambda text, threshold: Marked())
    return write_files(Path("photos"), PHOTOS)


def run(*flags: str) -> tuple[int, str]:
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            main(["photos", "--processes", "1", "--align", "marked", *flags])
        except SystemExit as end:
            return int(end.code or 0), output.getvalue()
    return 0, output.getvalue()


def test_crops_are_what_embed_sees(photos: Path) -> None:
    status, said = run("--out", "records", "--crops", "crops")
    assert status == 0, said
    assert "3 images of 2 subjects; 4 photos, 2 one face, 1 several faces, 1 no face" in said
    assert "1 person has no crop: ben" in said and not Path("crops.parts").exists()
    source, model = FolderImages(photos), ToyModel(tile_means)
    packed = open_dataset(Data(Path("records")), 0)
    for i, name in enumerate(("ann/one.png", "ann/two.png", "eva/one.png")):
        expected, _, _ = read_face(model, source, source.ids.tolist().index(name), Marked())
        written = decode_image(Path(f"crops/{name}.png").read_bytes(), name)
        np.testing.assert_array_equal(written, expected)
        np.testing.assert_array_equal(packed[i][0], expected)
    rows = {row["image_id"]: row for row in read_table("crops_photos.csv")}
    assert rows["ann/two.png"]["faces"] == "2" and "no face" in rows["ben/none.png"]["reason"]


def test_all_faces_and_those_that_the_model_does_not_know(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ToyModel(tile_means)
    source = FolderImages(photos)
    odd = source.ids.tolist().index("eva/one.png")
    face = read_face(model, source, odd, Marked())[0]
    model.calibration = model_calibration(faces=refusing(tile_means(face[None])[0]))
    monkeypatch.setattr("facerec.embedding.loading.load_model", lambda path: model)
    status, said = run("--faces", "all", "--crops", "all", "--model", "m.onnx")
    assert status == 0 and "1 refused" in said, said
    names = ["ann/one.png.png", "ann/two.png face 1.png", "ann/two.png face 2.png"]
    assert list(read_files(Path("all"))) == names
    model.calibration = None
    status, said = run("--crops", "other", "--model", "m.onnx")
    assert status == 2 and "facerec calibrate" in said


def test_a_stopped_job_goes_on(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--out", "whole", "--crops", "whole_crops")[0] == 0
    cut, seen = crops._Cutter.__call__, list[int]()

    def dies(self: Any, i: int) -> Any:
        seen.append(i)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return cut(self, i)

    monkeypatch.setattr(crops._Cutter, "__call__", dies)
    assert run("--out", "again", "--crops", "again_crops")[0] == 130
    assert not Path("again").exists() and not Path("again_crops").exists()
    log = Path("again_crops.parts", crops.LOG)
    log.write_text(log.read_text() + '{"image_id": "ben/no')  # as a kill may leave it
    status, said = run("--out", "again", "--crops", "again_crops", "--faces", "all")
    assert status == 2 and "a job that differs in faces" in said
    assert run("--out", "again", "--crops", "again_crops")[0] == 0
    assert seen == [0, 1, 2, 2, 3]
    for name in ("", "_crops"):
        assert read_files(Path(f"again{name}")) == read_files(Path(f"whole{name}"))


def test_bad_photos(photos: Path) -> None:
    Path("photos/ann/bad.jpg").write_bytes(PHOTOS["ann/one.png"][:99])
    status, said = run("--crops", "crops")
    assert status == 2 and "ann/bad.jpg" in said and "--on-error skip" in said
    assert not Path("crops").exists() and not Path("crops.parts").exists()  # the first photo
    status, said = run("--crops", "crops", "--on-error", "skip")
    assert status == 0 and "left out: " in said and "1 unreadable" in said
    for name in ("ann/one.png", "ann/two.png", "eva/one.png"):
        Path("photos", name).write_bytes(PHOTOS["ben/none.png"])
    status, said = run("--crops", "none", "--on-error", "skip")
    assert status == 2 and "no face is left of 5 photos, 1 unreadable, 4 no face" in said
    assert not Path("none").exists() and not Path("none.parts").exists()
    assert len(read_table("none_photos.csv")) == 5
    assert run("--crops", "photos/crops")[0] == 2
    write_files(Path("photos"), {"Zoe\u0301/1.png": b"x", "Zo\u00e9/1.png": b"x"})
    status, said = run("--crops", "c")
    assert status == 2 and "any Unicode form" in said


def test_several_processes_write_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(Path("photos"), {f"p{i % 3}/{i}.png": PHOTOS["ann/one.png"] for i in range(18)})
    row = ",".join(map(str, (1.2 * face_template() + (60, 40)).ravel()))
    header = "image_id," + ",".join(f"{axis}{i}" for i in range(1, 6) for axis in "xy")
    lines = [f"p{i % 3}/{i}.png,{row}" for i in range(17)]
    Path("points.csv").write_text("\n".join([header, *lines]))
    for processes in ("1", "2"):
        flags = ["--align", "points.csv", "--crops", processes, "--processes", processes]
        main(["photos", *flags])
    assert len(read_files(Path("1"))) == 17 and read_files(Path("1")) == read_files(Path("2"))
    assert Path("1_photos.csv").read_bytes() == Path("2_photos.csv").read_bytes()
