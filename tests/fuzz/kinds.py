"""Every kind of file that facerec takes from others: how to make a valid one, and who reads it."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import torch
from helpers.calibrations import (
    faces_json,
    model_calibration,
    point,
    refusing,
    toy_calibration,
)
from helpers.pair_lists import make_agedb
from helpers.toy_files import picture, write_tar
from helpers.toy_onnx import noted, tiles
from huggingface_hub import constants
from torch import nn

from facerec.backbones import Backbone, Preprocessing, register_backbone
from facerec.base.files import parse_json, sha256, write_json
from facerec.base.recipe import from_dict, to_dict
from facerec.commands.arcface_torch import read_config
from facerec.commands.cli import Console
from facerec.embedding import (
    EmbeddingModel,
    Embeddings,
    load_model,
    load_state_dict_file,
    read_embeddings,
    save_model,
    write_embeddings,
)
from facerec.embedding.align import read_points
from facerec.embedding.bundle import write_sums
from facerec.embedding.calibration import calibration_file
from facerec.embedding.onnx_file import METADATA_KEY
from facerec.embedding.parts import EmbeddingsWriter
from facerec.embedding.recognizer import FaceRecognizer
from facerec.export.tables import thresholds_table
from facerec.fairness.attributes import read_attributes
from facerec.galleries import Gallery, Space
from facerec.galleries.report import print_thresholds
from facerec.records import RecordImages, decode_image, read_pack, write_image_records, write_pack
from facerec.records.layout import read_list
from facerec.records.recordio import RecordFile
from facerec.records.tar_shards import TarImages
from facerec.training.recipe import Recipe
from facerec.verification.bench import pack_bench
from facerec.verification.protocols import read_pairs, read_scores


class Kind(NamedTuple):
    """One kind of file."""

    make: Callable[[Path], object]
    """Writes valid files into an empty folder."""
    read: Callable[[Path], object]
    """Reads the file that was damaged."""
    targets: str
    """Which files to damage, as a pattern."""
    form: str = "bytes"
    """bytes, text, json, or zip (members are damaged too)."""


def write(path: Path, *lines: str) -> None:
    """Write lines of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def make_records(root: Path) -> None:
    items = [(i // 3, f"person{i // 3}/{i}.jpg", picture(i)) for i in range(9)]
    write_image_records(root / "a" / "train", items)
    write_image_records(root / "b" / "train", items[1:] + items[:1])
    write(root / "b" / "classes.txt", "Ann", "Bob", "Cyd")


def read_records(target: Path) -> None:
    for _ in RecordFile(target.parent / "train.rec").scan(salvage=True):
        pass
    dataset = RecordImages(target.parent)
    labels = dataset.load_labels()
    for i in range(0, min(len(labels), 30), 4):
        decode_image(dataset.sample(i)[0], dataset.where(i))


def make_tars(root: Path) -> None:
    for number, form in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        folder = "long/" * 30 if number else ""
        members = []
        for i in range(4):
            label = json.dumps({"label": f"person {i // 2}"}).encode()
            for suffix, content in ((".jpg", picture(i, 16, 16)), (".json", label)):
                members.append((f"{folder}é{i}{suffix}", content))
        write_tar(root / f"{number}.tar", members, form)
        TarImages(root / f"{number}.tar")  # keeps an index beside it


def read_tar(target: Path) -> None:
    dataset = TarImages(target.with_name(f"{target.name[0]}.tar"))
    dataset.label_names()
    for i in range(min(len(dataset), 4)):
        decode_image(dataset.sample(i)[0], dataset.where(i), None)


def make_packs(root: Path) -> None:
    images = [picture(i % 5, 16, 16, ".jpg" if i % 2 else ".png") for i in range(8)]
    issame = [True, False, True, False]
    write_pack(root / "own.npz", images, issame)
    arrays = [np.frombuffer(image, np.uint8) for image in images]
    for protocol, entries in ((4, images), (5, arrays), (0, arrays)):
        (root / f"{protocol}.bin").write_bytes(pickle.dumps((entries, issame), protocol=protocol))


def some_embeddings() -> Embeddings:
    vectors = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    names = np.array([f"p{i // 2}/{i}.jpg" for i in range(40)])
    people = np.array([f"p{i // 2}" for i in range(40)])
    note = {"model": {"sha256": "ab", "name": "toy", "preprocessing": {"mean": 127.5}}}
    return Embeddings(vectors, np.linalg.norm(vectors, axis=1), True, names, people, note=note)


def make_embeddings(root: Path) -> None:
    write_embeddings(root / "own.npz", some_embeddings())
    vectors = some_embeddings().vectors
    names = np.array([f"{i}.jpg" for i in range(40)])
    np.savez(root / "foreign.npz", embeddings=vectors.astype(np.float64), names=names)
    np.savez_compressed(root / "bytes.npz", vectors=vectors[:2], image_id=np.array([b"a", b"b"]))


def make_gallery(root: Path) -> None:
    gallery = Gallery(Space("ab", {"mean": 127.5}, True, 3, "toy"))
    gallery.enroll(some_embeddings())
    gallery.calibrate()
    gallery.score_calibration = toy_calibration({"sha256": "ab"})
    gallery.write(root / "gallery.npz")
    with np.load(root / "gallery.npz") as arrays:
        (root / "note.json").write_text(str(arrays["note"]))


def read_note(target: Path) -> None:
    with np.load(target.with_name("gallery.npz")) as arrays:
        np.savez(
            target.with_name("other.npz"),
            **{**arrays, "note": np.array(target.read_text(errors="replace"))},
        )
    gallery = Gallery.read(target.with_name("other.npz"))
    rows = np.vstack([gallery.templates[:2], -gallery.templates[:1], np.eye(3)])
    gallery.images[:] = 1  # else no probe has evidence
    found = gallery.identify(replace(some_embeddings(), vectors=rows))
    str(found.likeness), list(map(str, found))
    print_thresholds(gallery.calibration, len(gallery), Console(file=io.StringIO()))


def read_gallery(target: Path) -> None:
    for answer in Gallery.read(target).identify(some_embeddings(), fpir="1e-1"):
        str(answer)


def make_texts(root: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [(i % 2, draw.normal(i % 2)) for i in range(20)]
    write(root / "scores" / "own.csv", "label,score", *(f"{a},{b:.6f}" for a, b in rows))
    write(root / "scores" / "signs.txt", *(f"{2 * a - 1} {b:.6f}" for a, b in rows))
    lines = [f"p{i}/1.jpg,p{i},{'AB'[i % 2]},{20 + i}.5,self" for i in range(30)]
    write(root / "attributes.csv", "image_id,subject_id,race,age,label_source", *lines)
    names = ",".join(f"{axis}{i}" for i in range(1, 6) for axis in "xy")
    points = "38,51,73,51,56,71,41,92,70,92"
    write(root / "points.csv", f"image_id,{names}", *(f"{i}.jpg,{points}" for i in "abc"))
    people = [f"Ann_{i:02d}" for i in range(12)]
    same = [f"{name}\t1\t2" for name in people[:4]]
    different = [f"{a}\t1\t{b}\t3" for a, b in zip(people[:4], people[4:8], strict=True)]
    write(root / "lfw" / "pairs.txt", "2\t2", *same[:2], *different[:2], *same[2:], *different[2:])
    write(root / "xqlfw" / "pairs.txt", "4", *same, *different)
    two = [f"{name}_000{i}.jpg {n + 1}" for n, name in enumerate(people) for i in (1, 2)]
    apart = [f"{people[i // 2 + i % 2]}_0001.jpg 0" for i in range(20)]
    write(root / "calfw" / "pairs.txt", *two[:20], *apart)
    write(root / "flat" / "tabs.txt", *(f"{p}/1.jpg\t{p}/2.jpg\t1" for p in people))
    write(root / "flat" / "commas.csv", "a,b,label", *(f'"{p}, x.jpg",{p}.jpg,0' for p in people))


class Tiny(nn.Module):
    """The smallest thing with what a backbone has."""

    def __init__(self, config: Backbone) -> None:
        super().__init__()
        self.embedding_size = config.embedding_size
        self.blocks: tuple[nn.Module, ...] = ()
        self.linear = nn.Linear(6, config.embedding_size)
        self.embedding_norm = nn.BatchNorm1d(config.embedding_size)
        self.embedding_norm.weight.requires_grad_(False)


@register_backbone
def fuzzed(config: Backbone) -> nn.Module:
    """Make a backbone in no time."""
    return Tiny(config)


TINY = Backbone("fuzzed", embedding_size=4)


def make_models(root: Path) -> None:
    tensors = Tiny(TINY).state_dict()
    torch.save(tensors, root / "new.pth")
    torch.save(tensors, root / "legacy.pth", _use_new_zipfile_serialization=False)
    recipe = to_dict(Recipe())
    save_model(root / "model.safetensors", Tiny(TINY), TINY, Preprocessing(), recipe)
    (root / "recipe.json").write_text(json.dumps(recipe))


def make_calibration(root: Path) -> None:
    make_models(root)
    path = root / "model.safetensors"
    about = {"name": "m", "sha256": sha256(path), "preprocessing": to_dict(Preprocessing())}
    worth = toy_calibration(about, flip=False)
    more = {"faces": refusing(np.arange(1, 5)), "score_calibration": worth}
    known = model_calibration(point(0.3), point(0.2, "1e-2"), sha256=sha256(path), **more)
    write_json(calibration_file(path), known.to_json())


def read_calibration(target: Path) -> None:
    judge_by(load_model(target.parent / "model.safetensors"))


def judge_by(model: EmbeddingModel) -> None:
    """Say everything that the calibration of a model says."""
    recognizer, known = FaceRecognizer(model), model.calibration
    one = np.eye(1, model.embedding_size)[0]
    for cosine in (-1.0, -0.2, 0.1, 0.3, 0.5, 0.7, 1.0):
        other = np.roll(one, 1) * np.sqrt(1 - cosine**2) + one * cosine
        shown = recognizer.verify(one, other, 0.3)
        str(shown), str(shown.evidence and shown.evidence.probability(10))
    if known is not None:
        list(map(str, known.thresholds)), known.faces and known.faces.words
        str(thresholds_table([*map(asdict, known.thresholds)]).markdown())


def make_thresholds(root: Path) -> None:
    ratio = toy_calibration({"preprocessing": None}, flip=False).to_json()
    faces = faces_json(refusing(np.arange(1, 9)))
    more = {"thresholds": [point(0.3), point(0.2, "1e-2")], "score_calibration": ratio}
    (root / "note.json").write_text(noted(**more, faces=faces)[METADATA_KEY])


def read_thresholds(target: Path) -> None:
    path = target.with_name("noted.onnx")
    path.write_bytes(
        tiles(metadata={METADATA_KEY: target.read_text(errors="replace")}).SerializeToString()
    )
    judge_by(load_model(path))


CONFIG = """config = EasyDict()
config.margin_list = (1.0, 0.5, 0.0)
config.network = "r50"
decay = 1e-4 * 5
config.weight_decay = decay
config.rec = 'data'
config.num_epoch = 4 * 10
config.warmup_epoch = config.num_epoch // 10
config.val_targets = ['lfw', 'cfp_fp']
config.gradient_acc = 2"""


def make_config(root: Path) -> None:
    write(root / "c.py", CONFIG)
    write(root / "base.py", "config.frequent = 7", "config.batch_size = 2 * 64")


def make_jobs(root: Path) -> None:
    write_embeddings(root / "shards" / "0.parquet", some_embeddings())
    write_json(root / "shards" / ".job.json", {"shards": {"0.parquet": 40}})
    begin_parts(root)


def begin_parts(root: Path) -> None:
    note = {"batch_size": 8, "model": {"sha256": "ab", "preprocessing": {"mean": 127.5}}}
    EmbeddingsWriter(root / "e.npz", np.array(["a", "b"]), note).begin()


def read_job(target: Path) -> None:
    begin_parts(target.parents[1])
    read_embeddings(target.parents[1] / "shards")


def make_hub(root: Path) -> None:
    repository = root / "hub" / "models--owner--name"
    folder = repository / "snapshots" / ("c0ffee" * 6 + "c0ff")
    write(folder / "facerec.json", "{}")
    make_onnx(folder)
    (folder / "noted.onnx").rename(folder / "model.onnx")
    write_sums(folder)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(folder.name)


def read_hub(target: Path) -> None:
    root = next(folder for folder in target.parents if folder.name == "hub")
    with mock.patch.multiple(constants, HF_HUB_CACHE=str(root), HF_HUB_OFFLINE=True):
        load_model("hf://owner/name")


def read_recipe(target: Path) -> None:
    try:
        tree = parse_json(target.read_bytes())
    except ValueError:
        return  # worded by whoever reads the file, each in its own way
    from_dict(Recipe, tree, str(target))


def make_mat(root: Path) -> None:
    pairs = [(f"{i}_Ann_20_f", f"{i}_Bob_30_m", -1 if i else 1) for i in range(3)]
    make_agedb(root / "plain.mat", [pairs, pairs])
    make_agedb(root / "packed.mat", [pairs, pairs], do_compression=True)


def make_onnx(root: Path) -> None:
    model = tiles(metadata={**noted(), "author": "somebody"})
    (root / "noted.onnx").write_bytes(model.SerializeToString())


def make_images(root: Path) -> None:
    for side in (16, 112):
        for kind in (".jpg", ".png", ".webp", ".bmp", ".tiff"):
            (root / f"{side}{kind}").write_bytes(picture(1, side, side, kind))


def read_image(target: Path) -> None:
    decode_image(target.read_bytes(), str(target), None)


KINDS = {
    "rec": Kind(make_records, read_records, "*/train.rec"),
    "idx": Kind(make_records, read_records, "*/train.idx", "text"),
    "property": Kind(make_records, read_records, "*/property", "text"),
    "classes": Kind(make_records, read_records, "b/classes.txt", "text"),
    "lst": Kind(make_records, read_list, "*/train.lst", "text"),
    "tar": Kind(make_tars, read_tar, "*.tar"),
    "tar-index": Kind(make_tars, read_tar, "*.tar.index.npz", "zip"),
    "pack-bin": Kind(make_packs, pack_bench, "*.bin"),
    "pack-npz": Kind(make_packs, read_pack, "*.npz", "zip"),
    "embeddings": Kind(make_embeddings, read_embeddings, "*.npz", "zip"),
    "gallery": Kind(make_gallery, read_gallery, "*.npz", "zip"),
    "gallery-note": Kind(make_gallery, read_note, "note.json", "json"),
    "scores": Kind(make_texts, read_scores, "scores/*", "text"),
    "attributes": Kind(
        make_texts, lambda t: read_attributes(t, ["race"]), "attributes.csv", "text"
    ),
    "points": Kind(make_texts, read_points, "points.csv", "text"),
    "pairs": Kind(make_texts, lambda t: read_pairs(t, t.parent.name), "*l*/*[st].*", "text"),
    "mat": Kind(make_mat, lambda t: read_pairs(t, "agedb"), "*.mat"),
    "pth": Kind(make_models, lambda t: load_state_dict_file(Tiny(TINY), t), "*.pth", "zip"),
    "safetensors": Kind(make_models, load_model, "*.safetensors"),
    "recipe": Kind(make_models, read_recipe, "recipe.json", "json"),
    "calibration": Kind(make_calibration, read_calibration, "*.facerec.json", "json"),
    "thresholds": Kind(make_thresholds, read_thresholds, "note.json", "json"),
    "arcface_torch": Kind(
        make_config, lambda t: read_config(t.with_name("c.py"), Console(quiet=True)), "*.py", "text"
    ),
    "hub": Kind(make_hub, read_hub, "hub/*/*/**/*[nS]", "text"),
    "job": Kind(make_jobs, read_job, "*/*job.json", "json"),
    "onnx": Kind(make_onnx, load_model, "*.onnx"),
    "image": Kind(make_images, read_image, "*"),
}
