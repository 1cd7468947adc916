"""What a user does with ``facerec embed``: records, folders, benches, kills, ranks, photos."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.marked_faces import Marked, marked_photo
from helpers.toy_files import faces, png_header
from PIL import Image
from pytest import CaptureFixture, MonkeyPatch, TempPathFactory

import facerec
from facerec.backbones import Backbone, Preprocessing, create_backbone
from facerec.base.files import sha256
from facerec.commands import embedder
from facerec.commands.cli import Console
from facerec.commands.embed import main, print_summary
from facerec.embedding import Embeddings, extract, load_model, save_model
from facerec.embedding.align import align_face, face_template
from facerec.embedding.file import read_embeddings
from facerec.records import decode_image, make_records
from facerec.records.packs import write_pack
from tests.commands.conftest import Refused

DOOR = Path(facerec.__file__).parent.parent / "tools" / "embed.py"

PEOPLE, EACH = 7, 6

PACKED = [
    image
    for own, other in ((EACH * i, EACH * ((i + 1) % PEOPLE)) for i in range(PEOPLE))
    for image in (own, own + 1, own + 2, other + 3)
]
"""The images of the pack: a pair of one person, then a pair of two."""


def jpeg(image: np.ndarray) -> bytes:
    return cv2.imencode(".jpg", image)[1].tobytes()


@pytest.fixture(scope="module")
def template(tmp_path_factory: TempPathFactory) -> Path:
    """A working folder with a model, a folder of images, its records, and a pack."""
    folder = tmp_path_factory.mktemp("template")
    config = Backbone(name="iresnet18", width=0.125, embedding_size=16)
    backbone = create_backbone(config, seed=3)
    (folder / "run").mkdir()
    save_model(folder / "run" / "model.safetensors", backbone, config, Preprocessing(), {})
    images = [jpeg(image) for image in faces(PEOPLE * EACH)]
    for i, image in enumerate(images):
        person = folder / "images" / f"person {i // EACH}"
        person.mkdir(parents=True, exist_ok=True)
        (person / f"{i:02d}.jpg").write_bytes(image)
    make_records(folder / "images", folder / "records")
    (folder / "data").mkdir()
    write_pack(folder / "data" / "toy.bin", [images[i] for i in PACKED], [True, False] * PEOPLE)
    return folder


def embed(*arguments: str) -> None:
    main(["--model", "run", *arguments])


def expected(paths: Sequence[Path], flip: bool, batch_size: int = 64) -> np.ndarray:
    images = [decode_image(path.read_bytes(), str(path)) for path in paths]
    model = load_model("run", batch_size=batch_size)
    return extract(model, images, flip=flip, batch_size=batch_size).vectors


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    # One thread as in this process, so that sums are taken in the same order.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)


@pytest.mark.parametrize(
    ("marked", "aside", "shift", "said"),
    [(42, 0, "0 0", False), (42, -16, "0 0", True), (42, -16, "16 0", False), (30, 0, "0 0", True)],
)
def test_crops_that_lie_elsewhere_are_named_where_a_detector_is_at_hand(
    workplace: Path,
    capsys: CaptureFixture,
    monkeypatch: MonkeyPatch,
    marked: int,
    aside: int,
    shift: str,
    said: bool,
) -> None:
    """The rest of the crops shows no face."""
    shutil.rmtree("images")
    Path("images").mkdir()
    for i in range(42):
        photo = marked_photo(*[(1, aside, 0, 1.0)][: i < marked], height=112, width=112)
        cv2.imwrite(f"images/{i}.png", photo[:, :, ::-1])
    monkeypatch.setattr(embedder, "detector_at_hand", lambda given, beside: Marked())
    embed("--images", "images", "--out", "e.npz", "--shift", *shift.split())
    assert ("a detector looked at 32 crops" in capsys.readouterr().out) is said


def test_people_who_are_too_much_alike_are_named(workplace: Path, capsys: CaptureFixture) -> None:
    """By the mean cosine of all pairs of different people, if there are enough people."""
    generator = np.random.default_rng(0)
    for people, away, said in ((40, 0.5, True), (40, 0, False), (6, 0.5, False)):
        vectors = generator.normal(size=(2 * people, 32)) + away
        who = np.arange(2 * people) // 2
        names = np.array([f"p{number}" for number in who])
        made = Embeddings(vectors.astype(np.float32), np.ones(len(who)), True, names, names)
        print_summary(made, Path("e.npz"), Console())
        assert ("different people have a mean" in capsys.readouterr().out) is said


# --- sources ---------------------------------------------------------------------------------


def test_folder_of_images(workplace: Path, capsys: CaptureFixture) -> None:
    images = workplace / "images"
    (images / ".hidden").mkdir()
    (images / ".hidden" / "a.jpg").write_bytes(b"no image")
    (images / "person 0" / "notes.txt").write_text("no image")
    (images / "person 0" / "00.jpg").rename(images / "person 0" / "00.JPEG")
    (images / "deep" / "er").mkdir(parents=True)
    pixels = faces(1, seed=9)[0]
    (images / "deep" / "er" / "x.png").write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    embed("--images", "images", "--out", "out/e.npz")
    found = read_embeddings("out/e.npz")
    ids = found.ids.tolist()
    assert ids == sorted(ids) and len(ids) == PEOPLE * EACH + 1
    assert ids[:2] == ["deep/er/x.png", "person 0/00.JPEG"]
    assert found.subjects.tolist() == [name.split("/")[0] for name in ids]
    np.testing.assert_array_equal(found.vectors, expected([images / i for i in ids], flip=True))
    assert found.flip is True
    text = capsys.readouterr().out
    assert "images images: 43\n" in text
    assert "43 of 43 images embedded, 0 failures to acquire" in text
    assert text.endswith("embeddings: out/e.npz\n")
    assert list(Path("out").iterdir()) == [Path("out/e.npz")]


def test_records(workplace: Path, capsys: CaptureFixture) -> None:
    embed("--records", "records", "--out", "r.npz", "--no-flip")
    embed("--images", "images", "--out", "i.npz", "--no-flip")
    records, images = read_embeddings("r.npz"), read_embeddings("i.npz")
    assert records.ids is not None and records.ids.tolist() == [str(i) for i in range(1, 43)]
    assert records.subjects.tolist() == images.subjects.tolist()
    np.testing.assert_array_equal(records.vectors, images.vectors)
    assert records.flip is False
    assert records.note["source"] == {"kind": "records", "path": "records"}
    assert records.note["model"]["sha256"] == sha256("run/model.safetensors")
    assert records.note["model"]["preprocessing"]["mean"] == 127.5
    (workplace / "records" / "classes.txt").unlink()
    embed("--records", "records/train.rec", "--out", "n.npz", "--no-flip")
    numbered = read_embeddings("n.npz")
    assert numbered.subjects.tolist() == [str(i // EACH) for i in range(42)]


def test_bench(workplace: Path, capsys: CaptureFixture) -> None:
    embed("--bench", "toy", "--out", "e.npz", "--batch-size", "7")
    found = read_embeddings("e.npz")
    images = sorted((workplace / "images").rglob("*.jpg"))
    paths = [images[i] for i in PACKED]
    np.testing.assert_array_equal(found.vectors, expected(paths, flip=True, batch_size=7))
    assert found.ids is not None and found.ids.tolist() == [str(i) for i in range(28)]
    # The first pair of two shows one person, the second says nothing.
    assert found.subjects[:8].tolist() == ["0", "0", "1", "2", "3", "3", "4", "5"]
    assert found.note["source"]["subjects_from"] == "same pairs"
    assert found.note["source"]["sha256"] == sha256("data/toy.bin")
    names = [f"{path.parent.name}/{path.name}" for path in paths]
    lines = ["index,image_id", *(f"{i},{name}" for i, name in enumerate(names))]
    Path("data/pairs_images.csv").write_text("\n".join(lines))
    embed("--bench", "data/toy.bin", "--out", "e.npz")
    named = read_embeddings("e.npz")
    assert named.ids is not None and named.ids.tolist() == names
    assert named.subjects.tolist() == [path.parent.name for path in paths]


# --- failures to acquire ---------------------------------------------------------------------


def test_bad_images_are_counted_or_end_the_command(
    workplace: Path, capsys: CaptureFixture, refused: Refused
) -> None:
    paths = sorted((workplace / "images").rglob("*.jpg"))
    paths[0].write_bytes(png_header(50_000, 50_000))
    for path in paths[3:15]:
        path.write_bytes(path.read_bytes()[:300])
    sentence = refused(main, "--model", "run", "--images", "images", "--out", "e.npz")
    assert sentence.startswith("images/person 0/00.jpg: cannot be read")
    assert not Path("e.npz").exists() and not Path("e.npz.parts").exists()
    embed("--images", "images", "--out", "e.npz", "--on-error", "skip")
    found = read_embeddings("e.npz")
    assert sorted(found.failures) == [0, *range(3, 15)]
    text = capsys.readouterr().out
    assert "29 of 42 images embedded, 13 failures to acquire" in text
    assert text.count("  not acquired: images/person") == 10
    assert "… and 3 more" in text


def test_photos_are_aligned_by_a_table_of_points(workplace: Path, capsys: CaptureFixture) -> None:
    photos = [cv2.resize(image, (160, 200)) for image in faces(3, seed=5)]
    Path("photos").mkdir()
    for i, image in enumerate(photos):
        Path(f"photos/{i}.png").write_bytes(cv2.imencode(".png", image[:, :, ::-1])[1].tobytes())
    points = 1.2 * face_template() + (20, 10)
    header = "image_id," + ",".join(f"{axis}{i}" for i in range(1, 6) for axis in "xy")
    row = ",".join(repr(float(value)) for value in points.reshape(-1))
    Path("points.csv").write_text(f"{header}\r\n0.png,{row}\r\n2.png,{row}\r\n")
    arguments = ["--images", "photos", "--out", "e.npz", "--align", "points.csv"]
    embed(*arguments)
    found = read_embeddings("e.npz")
    crops = [align_face(photos[i], points) for i in (0, 2)]
    # Three images went through the network together.
    batch = np.stack([crops[0], np.zeros_like(crops[0]), crops[1]])
    together = extract(load_model("run"), batch, flip=True).vectors
    np.testing.assert_array_equal(found.vectors[[0, 2]], together[[0, 2]])
    reason = "photos/1.png: points.csv has no line with points for '1.png'"
    assert found.failures == {1: reason}
    assert found.subjects is None
    assert found.note["align"]["sha256"] == sha256("points.csv")
    text = capsys.readouterr().out
    assert f"not acquired: {reason}" in text and "2 of 3 images embedded" in text


def test_crops_in_records_stay_as_they_are_stored_and_those_in_a_folder_are_turned(
    workplace: Path, capsys: CaptureFixture
) -> None:
    crop = faces(1, seed=7)[0]
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, image, how in (("0", crop, {}), ("1", np.rot90(crop), {"exif": exif})):
        Path("crops/a").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ascontiguousarray(image)).save(f"crops/a/{name}.png", **how)
    embed("--images", "crops", "--out", "folder.npz")
    assert "turned" not in capsys.readouterr().out
    upright, turned = read_embeddings("folder.npz").vectors
    np.testing.assert_allclose(upright, turned, rtol=1e-4, atol=1e-5)
    summary = make_records("crops", "crops_records")
    assert "1 of 2 images looked at are marked as turned" in summary.notes[-1]
    for source in ("crops_records", "crops"):
        embed("--records", source, "--out", "records.npz")
        assert "1 of 2 images looked at are marked as turned" in capsys.readouterr().out
        as_stored = read_embeddings("records.npz").vectors[1]
        assert not np.allclose(as_stored, upright, rtol=0.1)
        Path("records.npz").unlink()
    images = [Path(f"crops/a/{i}.png").read_bytes() for i in (0, 1)]
    write_pack(Path("data/turned.bin"), images, [True])
    embed("--bench", "turned", "--data", "data", "--out", "pack.npz")
    assert "1 of 2 images looked at are marked as turned" in capsys.readouterr().out


# --- kills, ranks, processes -----------------------------------------------------------------

KILLED = """
import os, signal, sys
from facerec.commands.embed import main
from facerec.embedding.parts import EmbeddingsWriter

write, calls = EmbeddingsWriter.write, []

def write_two(self, part, embeddings):
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(part)
    write(self, part, embeddings)

EmbeddingsWriter.write = write_two
main(sys.argv[1:])
"""

SMALL_BATCHES = ["--images", "images", "--batch-size", "1"]
"""Forty-two images in six parts."""


@pytest.fixture(scope="module")
def reference(template: Path, tmp_path_factory: TempPathFactory) -> bytes:
    """The file that one uninterrupted process writes."""
    folder = tmp_path_factory.mktemp("reference")
    before = Path.cwd()
    os.chdir(template)
    try:
        embed(*SMALL_BATCHES, "--out", str(folder / "e.npz"))
    finally:
        os.chdir(before)
    return (folder / "e.npz").read_bytes()


@pytest.mark.integration
def test_a_killed_job_goes_on_and_ends_the_same(
    workplace: Path, reference: bytes, capsys: CaptureFixture, refused: Refused
) -> None:
    killed = python("-c", KILLED, "--model", "run", *SMALL_BATCHES, "--out", "e.npz")
    assert killed.returncode == -signal.SIGKILL
    assert not Path("e.npz").exists()
    assert len(list(Path("e.npz.parts").glob("part-*.npz"))) == 2
    # Another job is not mixed with it.
    sentence = refused(main, "--model", "run", *SMALL_BATCHES, "--out", "e.npz", "--no-flip")
    assert "it holds parts of a job that differs in" in sentence
    assert "differs in flip" in sentence
    embed(*SMALL_BATCHES, "--out", "e.npz")
    assert "going on: 16 images are embedded already" in capsys.readouterr().out
    assert Path("e.npz").read_bytes() == reference
    assert not Path("e.npz.parts").exists()


@pytest.mark.integration
def test_two_ranks_write_the_same_file(workplace: Path, reference: bytes) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    door = [*launcher, str(DOOR), "--model", "run"]
    done = python(*door, *SMALL_BATCHES, "--out", "e.npz")
    assert done.returncode == 0, done.stderr
    assert Path("e.npz").read_bytes() == reference
    assert done.stdout.count("42 of 42 images embedded") == 1
    assert not Path("e.npz.parts").exists()


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--out e.npz", "name the images with exactly one of --records, --images and --bench"),
        ("--images images --out e.npy", "e.npy: an embeddings file has a name that ends"),
        ("--images gone --out e.npz", "gone: there is no such photo, or folder of images"),
        ("--bench lfw --out e.npz", "no pack for bench 'lfw'"),
        ("--images images --out e.npz --align a.csv", "a.csv: cannot be read"),
        ("--images images --out e.npz --std 3", "run/model.safetensors: the file"),
    ],
)
def test_errors_are_sentences_and_leave_nothing(
    workplace: Path, refused: Refused, arguments: str, sentence: str
) -> None:
    before = sorted(workplace.rglob("*"))
    assert refused(main, "--model", "run", *arguments.split()).startswith(sentence)
    assert sorted(workplace.rglob("*")) == before
