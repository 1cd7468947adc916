"""Every kind of file that facerec takes from others: how to make a valid one, and who reads it."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import pickle
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from mutations import (
    JSON,
    NPZ,
    PICKLE,
    TEXT,
    Mutator,
    change_header,
    change_mat,
    change_note,
    change_onnx,
    change_png,
    change_tar,
    change_text_array,
    inside_zip,
)
from scipy.io import savemat
from torch import nn

from facerec.backbones import Backbone, Preprocessing, register_backbone
from facerec.comparison.image_sets import ImageData, open_image_set
from facerec.embedding import (
    Embeddings,
    load_model,
    load_state_dict_file,
    read_embeddings,
    save_model,
    write_embeddings,
)
from facerec.embedding.align import PointsTable
from facerec.embedding.bundle import ONNX_FILE, SUMS_FILE, read_bundle, write_sums
from facerec.embedding.file import embeddings_sha256
from facerec.embedding.onnx_file import read_onnx
from facerec.embedding.onnx_preprocessing import guess_preprocessing
from facerec.embedding.onnx_weights import load_onnx_weights
from facerec.embedding.shards import Manifest, write_manifest
from facerec.errors import FacerecError
from facerec.export.thresholds import flip_mode, read_thresholds
from facerec.fairness.attributes import join, read_attributes
from facerec.files import parse_json
from facerec.galleries import Gallery, Space
from facerec.recipe import from_dict, to_dict
from facerec.records import RecordDataset, decode_image, read_pack, write_image_records, write_pack
from facerec.records.make import read_list
from facerec.records.recordio import RecordFile
from facerec.records.repair import repair_records
from facerec.records.tar_shards import INDEX, TarDataset
from facerec.training.recipe import Recipe
from facerec.verification import evaluate
from facerec.verification.bench import pack_bench
from facerec.verification.protocols import read_pairs, read_scores
from facerec.verification.protocols.template_lists import read_ijb, read_tinyface


@dataclass(frozen=True)
class Kind:
    """One kind of file."""

    name: str
    make: Callable[[Path], object]
    """Writes valid files into an empty folder."""
    read: Callable[[Path, Path], object]
    """Reads the folder, of which the second path is the file that was damaged."""
    targets: tuple[str, ...] = ("*",)
    """Which files to damage, as patterns."""
    mutators: tuple[Mutator, ...] = ()
    """Those for the form of the file, beside those for any bytes."""
    weight: float = 1.0
    """Share of the cases; 0 is read only where it is asked for."""
    needs: str | None = None
    """A package without which there is nothing to read."""

    @property
    def available(self) -> bool:
        """Whether what it needs is installed."""
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


def picture(number: int, kind: str = ".jpg", side: int = 112) -> bytes:
    """Encode a small picture, another for each number."""
    pattern = np.random.default_rng(number).integers(0, 255, (4, 4, 3), dtype=np.uint8)
    return bytes(cv2.imencode(kind, cv2.resize(pattern, (side, side)))[1])


def write(path: Path, *lines: str) -> Path:
    """Write lines of text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


# ---------------------------------------------------------------- records and packs


def make_records(root: Path) -> None:
    items = [(i // 3, f"person{i // 3}/{i}.jpg", picture(i)) for i in range(9)]
    write_image_records(root / "a" / "train", items)
    write_image_records(root / "b" / "train", items, layout="im2rec")
    write(root / "b" / "classes.txt", "Ann", "Bob", "Cyd")


def read_records(root: Path, target: Path) -> None:
    dataset = RecordDataset(target.parent)
    labels = dataset.load_labels()
    for i in range(0, min(len(labels), 30), 4):
        data, _ = dataset.sample(i)
        decode_image(data, dataset.where(i))


def scan_records(root: Path, target: Path) -> None:
    file = RecordFile(target)
    for _ in file.scan(salvage=True):
        pass
    repair_records(target)


def make_tars(root: Path) -> None:
    for number, form in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        with tarfile.open(root / f"{number}.tar", "w", format=form) as archive:
            for i in range(4):
                label = json.dumps({"label": f"person {i // 2}"}).encode()
                for name, content in (
                    (f"{'long/' * 30 if number else ''}é{i}.jpg", picture(i, side=16)),
                    (f"{'long/' * 30 if number else ''}é{i}.json", label),
                ):
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
        TarDataset(root / f"{number}.tar")  # keeps an index beside it


def read_tar(root: Path, target: Path) -> None:
    shard = target.with_name(target.name.removesuffix(INDEX))
    dataset = TarDataset(shard)
    dataset.subjects(), dataset.names_sha256()
    for i in range(min(len(dataset), 4)):
        data, _ = dataset.sample(i)
        decode_image(data, f"{dataset.where(i)} {dataset.name(i)}", None)


def make_packs(root: Path) -> None:
    images = [picture(i % 5, ".jpg" if i % 2 else ".png", 16) for i in range(8)]
    issame = [True, False, True, False]
    write_pack(root / "own.bin", images, issame)
    arrays = [np.frombuffer(image, np.uint8) for image in images]
    for name, entries, protocol in (
        ("bytes", images, 4),
        ("arrays", arrays, 4),
        ("old", arrays, 0),
    ):
        content = pickle.dumps((entries, issame), protocol=protocol)
        (root / f"{name}.bin").write_bytes(content)
    (root / "labels.bin").write_bytes(pickle.dumps((images, np.array(issame)), protocol=5))


def make_npz_pack(root: Path) -> None:
    images = [picture(i % 5, side=16) for i in range(8)]
    write_pack(root / "own.npz", images, [True, False, True, False])


def make_named_pack(root: Path) -> None:
    write_pack(root / "lfw.bin", [picture(i, side=16) for i in range(4)], [True, False])
    names = [f"{i},p{i // 2}/{i}.jpg,p{i // 2}" for i in range(4)]
    write(root / "lfw_images.csv", "index,image_id,subject_id", *names)


# ---------------------------------------------------------------- embeddings, scores, attributes


def make_embeddings(root: Path) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(6, 3)).astype(np.float32)
    norms = np.linalg.norm(vectors, axis=1).astype(np.float32)
    vectors[2], norms[2] = np.nan, np.nan
    ids = np.array([f"p{i // 2}/{i}.jpg" for i in range(6)])
    subjects = np.array([f"p{i // 2}" for i in range(6)])
    note = {"batch_size": 2, "model": {"sha256": "ab", "path": "m"}}
    whole = Embeddings(
        vectors, norms, True, ids=ids, subjects=subjects, failures={2: "no face"}, note=note
    )
    write_embeddings(root / "own.npz", whole)
    np.savez(root / "foreign.npz", embeddings=vectors.astype(np.float64), names=ids)
    np.savez_compressed(root / "bytes.npz", vectors=vectors[:2], image_id=np.array([b"a", b"b"]))


def make_gallery(root: Path) -> None:
    generator = np.random.default_rng(1)
    for number, name in enumerate(("many.npz", "one.npz")):
        count = 1 if number else 40  # enough for a tail
        gallery = Gallery(Space("ab", {"mean": 127.5}, True, 3, "toy"))
        vectors = generator.normal(size=(count, 3)).astype(np.float32)
        people = np.array([f"person {row}" for row in range(count)])
        norms = np.linalg.norm(vectors, axis=1)
        note = {"model": {"sha256": "ab", "name": "toy", "preprocessing": {"mean": 127.5}}}
        gallery.enroll(Embeddings(vectors, norms, True, people, people, note=note))
        if not number:
            gallery.calibrate()
        gallery.write(root / name)


def read_gallery(root: Path, target: Path) -> None:
    gallery = Gallery.read(target)
    vectors = np.eye(3, dtype=np.float32)[:2]
    note = {"model": {"sha256": "ab", "name": "toy", "preprocessing": {"mean": 127.5}}}
    names = np.array(["a", "person 2"])
    seen = Embeddings(vectors, np.ones(2, np.float32), True, names, names, note=note)
    if gallery.calibration is None:
        gallery.identify(seen, threshold=0.5)
    else:
        gallery.identify(seen, fpir="1e-1")
    gallery.enroll(seen)
    gallery.delete("person 2")


def make_shards(root: Path) -> None:
    generator = np.random.default_rng(0)
    note = {"batch_size": 2, "model": {"sha256": "ab", "path": "m"}}
    shards = {f"part-{number}.parquet": 4 for number in range(2)}
    (root / "set").mkdir()
    for number, (name, count) in enumerate(shards.items()):
        vectors = generator.normal(size=(count, 3)).astype(np.float32)
        norms = np.linalg.norm(vectors, axis=1)
        vectors[1], norms[1] = np.nan, np.nan
        ids = np.array([f"{number}/{row}.jpg" for row in range(count)])
        people = np.array([f"p{row}" for row in range(count)])
        part = Embeddings(vectors, norms, True, ids, people, {1: "no face"}, note)
        write_embeddings(root / "set" / name, part)
    write_manifest(root / "set", Manifest(note, shards))
    write_table_of_others(root / "others.parquet")


def write_table_of_others(path: Path) -> None:
    import pandas as pd

    lists = [[0.5, 1.0], [2.0, 3.5], None, [1.0, -1.0]]
    frame = pd.DataFrame({"image_id": list("abcd"), "subject_id": list("xxyy")})
    frame.assign(embedding=lists).to_parquet(path)


def read_shards_and_tables(root: Path, target: Path) -> None:
    whole = target.parent if target.parent.name == "set" else target
    embeddings_sha256(whole)
    read_embeddings(whole)


def make_scores(root: Path) -> None:
    generator = np.random.default_rng(0)
    rows = [(i % 2, generator.normal(i % 2), i // 4) for i in range(20)]
    write(root / "own.csv", "label,score,fold", *(f"{a},{b:.6f},{c}" for a, b, c in rows))
    bob = [(f"s{i}", f"s{i + same % 2}", score) for i, (same, score, _) in enumerate(rows)]
    header = "bio_ref_subject_id\tprobe_subject_id\tscore"
    write(root / "bob.csv", header, *(f"{a}\t{b}\t{c:.4f}" for a, b, c in bob))
    write(root / "signs.txt", *(f"{2 * a - 1} {b:.6f}" for a, b, _ in rows))
    write(root / "four.txt", *(f"{a} {b} {b}/1.jpg {c:.4f}" for a, b, c in bob))
    write(root / "five.txt", *(f"{a} m {b} {b}/1.jpg {c:.4f}" for a, b, c in bob))


def read_and_evaluate(root: Path, target: Path) -> None:
    found = read_scores(target)
    evaluate(found.scores, found.pairs(), name="scores", fpr=("1e-1",), replicates=0)


def make_attributes(root: Path) -> None:
    people = [f"p{i}/1.jpg,p{i},{'AB'[i % 2]},{20 + i}.5,self" for i in range(30)]
    write(root / "plain.csv", "image_id,subject_id,race,age,label_source", *people)
    quoted = [line.replace("self", '"self, twice"') for line in people]
    write(root / "quoted.csv", "image_id,subject_id,race,age,label_source", *quoted)


def read_and_join(root: Path, target: Path) -> None:
    attributes = read_attributes(target, ["race", "age"])
    ids = np.array([f"p{i}/1.jpg" for i in range(30)])
    join(attributes, ids, np.arange(1, 31) / 7, intersections=())


def make_points(root: Path) -> None:
    names = [f"{axis}{i}" for i in range(1, 6) for axis in "xy"]
    values = "38,51,73,51,56,71,41,92,70,92"
    write(root / "points.csv", f"image_id,{','.join(names)}", *(f"{i}.jpg,{values}" for i in "abc"))


# ---------------------------------------------------------------- lists of pairs and of images


def make_lists(root: Path) -> None:
    people = [f"Ann_{i:02d}" for i in range(12)]
    same = [f"{name}\t1\t2" for name in people[:4]]
    different = [f"{a}\t1\t{b}\t3" for a, b in zip(people[:4], people[4:8], strict=True)]
    folds = [*same[:2], *different[:2], *same[2:], *different[2:]]
    write(root / "lfw" / "pairs.txt", "2\t2", *folds)
    write(root / "xqlfw" / "pairs.txt", "4", *same, *different)
    two = [f"{name}_000{i}.jpg {n + 1}" for n, name in enumerate(people) for i in (1, 2)]
    apart = [f"{people[i // 2 + i % 2]}_0001.jpg 0" for i in range(20)]
    write(root / "calfw" / "pairs.txt", *two[:20], *apart)
    write(root / "cplfw" / "pairs.txt", *two[:20], *apart)
    unlabelled = [f"{name}/{name}_000{i}.jpg" for name in people for i in (1, 2)]
    write(root / "sllfw" / "pairs.txt", *unlabelled)
    write(root / "rfw" / "Asian_pairs.txt", *same, *different, *same, *different)
    write(root / "flat" / "tabs.txt", *(f"{p}/1.jpg\t{p}/2.jpg\t1" for p in people))
    write(root / "flat" / "commas.csv", "a,b,label", *(f'"{p}, x.jpg",{p}.jpg,0' for p in people))
    write(root / "flat" / "words.txt", *(f"same {p}/1.jpg {p}/2.jpg" for p in people))


def read_list_of_pairs(root: Path, target: Path) -> None:
    read_pairs(target, target.parent.name)


def make_cfp(root: Path) -> None:
    for letter, view in (("F", "frontal"), ("P", "profile")):
        names = [f"{p:03d}/{view}/{i:02d}.jpg" for p in range(1, 5) for i in (1, 2)]
        lines = [f"{n} ../Data/Images/{name}" for n, name in enumerate(names, 1)]
        write(root / "Protocol" / f"Pair_list_{letter}.txt", *lines)
    (root / "Data" / "Images").mkdir(parents=True)
    for split in ("FF", "FP"):
        for fold, first in ((1, 1), (2, 5)):
            folder = root / "Protocol" / "Split" / split / f"{fold:02d}"
            write(folder / "same.txt", f"{first},{first + 1}", f"{first + 2},{first + 3}")
            write(folder / "diff.txt", f"{first},{first + 2}")


def read_cfp(root: Path, target: Path) -> None:
    for split in ("cfp-ff", "cfp-fp"):
        read_pairs(root, split)


def make_ijb(root: Path) -> None:
    meta = root / "meta"
    (root / "loose_crop").mkdir()
    media = ["a.jpg 30 900", "b.jpg 30 900", "c.jpg 30 5", "d.jpg 7 1", "d.jpg 2 44", "e.jpg 11 1"]
    write(meta / "ijbc_face_tid_mid.txt", *media)
    points = [f"{name}.jpg 1 2 3 4 5.5 6 7 8 9 10 0.{i}" for i, name in enumerate("edcba", 1)]
    write(meta / "ijbc_name_5pts_score.txt", *points)
    write(meta / "ijbc_template_pair_label.txt", "30 7 1", "30 2 0", "7 11 0", "2 11 1")
    header = "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID"
    write(meta / "ijbc_1N_gallery_G1.csv", header, "30,500,x.jpg,1", "30,500,y.jpg,1")
    write(meta / "ijbc_1N_gallery_G2.csv", header, "2,17,x.jpg,1")
    write(meta / "ijbc_1N_probe_mixed.csv", header, "11,17,a.jpg,", "7,500,b.jpg,9")


def make_image_sets(root: Path) -> None:
    names = ["002.Auk/a.png", "001.Wren/b.png", "001.Wren/c.png", "002.Auk/d.png"]
    for folder in (root / "birds" / "images", root / "shop"):
        for number, name in enumerate(names):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number, ".png", 8))
    birds = root / "birds"
    write(birds / "images.txt", *(f"{i} {name}" for i, name in enumerate(names, 1)))
    write(birds / "image_class_labels.txt", *(f"{i} {int(n[:3])}" for i, n in enumerate(names, 1)))
    write(birds / "classes.txt", "1 001.Wren", "2 002.Auk")
    head = "image_id class_id super_class_id path"
    lines = [f"{i} {int(n[:3])} 1 {n}" for i, n in enumerate(names, 1)]
    write(root / "shop" / "Ebay_train.txt", head, *lines[1:3])
    write(root / "shop" / "Ebay_test.txt", head, lines[0], lines[3])


def read_image_sets(root: Path, target: Path) -> None:
    open_image_set(ImageData(target.parent, "cub" if target.parent.name == "birds" else "sop"))


def make_mat(root: Path) -> None:
    splits = np.empty((2, 1), dtype=object)
    for k in range(2):
        names = np.empty((2, 3), dtype=object)
        for i in range(3):
            names[0, i] = {"name": f"{i}_Ann_20_f", "age": 30.0}
            names[1, i] = {"name": f"{i + k}_Bob_30_m", "age": 60.0}
        splits[k, 0] = {"pairs": names, "labels": np.array([[1, -1, -1]], dtype=np.int16)}
    for name, packed in (("agedb_30_years.mat", False), ("agedb_packed.mat", True)):
        savemat(root / name, {"splits": splits}, do_compression=packed)
    folder = root / "tinyface" / "Testing_Set"
    for part in ("Probe", "Gallery_Match", "Gallery_Distractor"):
        (folder / part).mkdir(parents=True)
    (folder / "Gallery_Distractor" / "x.jpg").write_bytes(b"x")
    for part, names in (("probe", ["7_1.jpg", "9_1.jpg"]), ("gallery", ["9_1.jpg", "7_2.jpg"])):
        cells = np.empty((2, 1), dtype=object)
        cells[:, 0] = names
        stem = part if part == "probe" else "gallery_match"
        ids = np.array([[7.0], [9.0]])
        savemat(folder / f"{stem}_img_ID_pairs.mat", {f"{part}_set": cells, f"{part}_ids": ids})


def read_any_mat(root: Path, target: Path) -> None:
    if target.name.startswith("agedb"):
        read_pairs(target, "agedb")
    else:
        read_tinyface(root / "tinyface")


def make_parquet(root: Path) -> None:
    import pandas as pd

    cells = [{"bytes": picture(i, side=16), "path": f"{i}.jpg"} for i in range(4)]
    frame = pd.DataFrame({"image1": cells, "image2": cells[::-1], "label": [1, 0, 1, 0]})
    frame.to_parquet(root / "cells.parquet")
    raw = [cell["bytes"] for cell in cells]
    pd.DataFrame({"image1": raw, "image2": raw, "label": [True] * 4}).to_parquet(
        root / "raw.parquet"
    )


# ---------------------------------------------------------------- models


class _Tiny(nn.Module):
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
    return _Tiny(config)


TINY = Backbone("fuzzed", embedding_size=4)


def make_pth(root: Path) -> None:
    tensors = _Tiny(TINY).state_dict()
    torch.save(tensors, root / "new.pth")
    torch.save(tensors, root / "legacy.pth", _use_new_zipfile_serialization=False)
    parameters = {name: nn.Parameter(t, requires_grad=False) for name, t in tensors.items()}
    torch.save(parameters, root / "parameters.pth")


def make_safetensors(root: Path) -> None:
    recipe = to_dict(Recipe())
    save_model(root / "model.safetensors", _Tiny(TINY), TINY, Preprocessing(), recipe)


def make_recipe(root: Path) -> None:
    (root / "recipe.json").write_text(json.dumps(to_dict(Recipe())))


def read_recipe(root: Path, target: Path) -> None:
    try:
        tree = parse_json(target.read_bytes())
    except ValueError:
        return  # worded by whoever reads the file, each in its own way
    from_dict(Recipe, tree, str(target))


def make_thresholds(root: Path) -> None:
    interval = {"low": 0.1, "high": 0.9}
    point = {
        "target": "1e-2", "threshold": 0.31, "threshold_interval": interval, "resolvable": True,
        "fpr_realised": 0.01, "fpr_interval": interval, "false_accepts": 2, "negatives": 200,
        "tpr": 0.9, "tpr_interval": interval, "true_accepts": 180, "positives": 200,
        "reliable": True,
    }  # fmt: skip
    result = {"bench": "lfw", "flip": True, "score": "cosine", "model": {"sha256": "ab"}}
    result["tpr_at_fpr"] = [point, point]
    (root / "report.json").write_text(json.dumps({"results": [result, result]}))


def read_all_thresholds(root: Path, target: Path) -> None:
    flip_mode(read_thresholds(target, "ab"))


def make_onnx(root: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((2, 147), np.float32), "weight")
    mean = numpy_helper.from_array(np.full((1, 3, 1, 1), 127.5, np.float32), "mean")
    nodes = [
        helper.make_node("Sub", ["data", "mean"], ["centred"], name="Sub0"),
        helper.make_node("Mul", ["centred", "mean"], ["scaled"], name="Mul0"),
        helper.make_node("AveragePool", ["scaled"], ["a"], kernel_shape=[16, 16], strides=[16, 16]),
        helper.make_node("Flatten", ["a"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight"], ["embedding"], name="gemm", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiles",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", 3, 112, 112])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", 2])],
        [weight, mean],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    note = {"format": 1, "preprocessing": {"channels": "rgb", "mean": 127.5, "std": 127.5}}
    (root / "plain.onnx").write_bytes(model.SerializeToString())
    helper.set_model_props(model, {"facerec": json.dumps(note), "author": "somebody"})
    (root / "noted.onnx").write_bytes(model.SerializeToString())


def read_any_onnx(root: Path, target: Path) -> None:
    file = read_onnx(target)
    guess_preprocessing(file)
    file.image_input()


class _Pooled(nn.Module):
    """A network with every kind of layer whose weights come out of .onnx files."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 16, stride=16, bias=False)
        self.norm = nn.BatchNorm2d(2)
        self.prelu = nn.PReLU(2)
        self.linear = nn.Linear(2 * 7 * 7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.prelu(self.norm(self.conv(x))).flatten(1))


def make_onnx_weights(root: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper

    torch.manual_seed(0)
    stored = {k: v.numpy() for k, v in _Pooled().state_dict().items() if "num_batches" not in k}
    stored["prelu.weight"] = stored["prelu.weight"].reshape(2, 1, 1)
    norm = [f"norm.{n}" for n in ("weight", "bias", "running_mean", "running_var")]
    nodes = [
        helper.make_node("Conv", ["data", "conv.weight"], ["a"], strides=[16, 16]),
        helper.make_node("BatchNormalization", ["a", *norm], ["b"], epsilon=1e-5),
        helper.make_node("PRelu", ["b", "prelu.weight"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("Transpose", ["linear.weight"], ["w"], perm=[1, 0]),
        helper.make_node("MatMul", ["d", "w"], ["e"]),
        helper.make_node("Add", ["e", "linear.bias"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pooled",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, ["batch", 3, 112, 112])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (root / "pooled.onnx").write_bytes(model.SerializeToString())


def make_bundle(root: Path) -> None:
    make_onnx(root)
    (root / "noted.onnx").rename(root / ONNX_FILE)
    (root / "plain.onnx").unlink()
    note = {"schema": "facerec.bundle/1", "model": {"name": "toy"}, "thresholds": [{"fpr": "1e-3"}]}
    (root / "facerec.json").write_text(json.dumps(note))
    write_sums(root)


def read_damaged_bundle(root: Path, target: Path) -> None:
    if target.name != SUMS_FILE:
        (root / SUMS_FILE).unlink()
        write_sums(root)  # whoever sends a bundle can do that too
    read_bundle(root)


# ---------------------------------------------------------------- images


def make_images(root: Path) -> None:
    for side in (16, 112):
        (root / f"{side}.jpg").write_bytes(picture(1, ".jpg", side))
    pattern = cv2.imdecode(np.frombuffer(picture(2), np.uint8), cv2.IMREAD_COLOR)
    progressive = cv2.imencode(".jpg", pattern, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1]
    (root / "progressive.jpg").write_bytes(bytes(progressive))


def make_pngs(root: Path) -> None:
    (root / "colour.png").write_bytes(picture(1, ".png"))
    (root / "deep.png").write_bytes(
        bytes(cv2.imencode(".png", np.full((16, 16), 700, np.uint16))[1])
    )


def read_image(root: Path, target: Path) -> None:
    content = target.read_bytes()
    for size in ((112, 112), None):
        try:
            decode_image(content, str(target), size)
        except FacerecError as error:
            last = error
        else:
            last = None
    if last is not None:
        raise last


# ---------------------------------------------------------------- what must be found


def make_nothing(root: Path) -> None:
    (root / "file").write_bytes(b"valid")


def faulty(fault: Callable[[], object]) -> Callable[[Path, Path], None]:
    """Make a reader that takes the valid file alone."""

    def read(root: Path, target: Path) -> None:
        if target.read_bytes() != b"valid":
            fault()

    return read


class RawError(FacerecError):
    """Shows its sentence as it was given, whatever other errors do with theirs."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


def refuse_rudely() -> None:
    raise RawError("a message with \x1b[31m colours")


def refuse_at_length() -> None:
    raise RawError("x" * 10_000)


def hang() -> None:
    while True:
        time.sleep(1)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("rec", make_records, read_records, ("*/train.rec",), weight=3),
        Kind("rec-scan", make_records, scan_records, ("*/train.rec",), weight=3),
        Kind("idx", make_records, read_records, ("*/train.idx",), TEXT, weight=2),
        Kind("lst", make_records, lambda _, t: read_list(t), ("*/train.lst",), TEXT, weight=2),
        Kind("property", make_records, read_records, ("*/property",), TEXT, weight=2),
        Kind("classes", make_records, read_records, ("b/classes.txt",), TEXT, weight=0.5),
        Kind("pack-bin", make_packs, lambda _, t: pack_bench(t), ("*.bin",), PICKLE, weight=6),
        Kind("pack-npz", make_npz_pack, lambda _, t: read_pack(t), ("*.npz",), NPZ, weight=5),
        Kind("pack-names", make_named_pack, lambda r, _: pack_bench(r / "lfw.bin"), ("*.csv",),
             TEXT),
        Kind("embeddings", make_embeddings, lambda _, t: read_embeddings(t), ("*.npz",), NPZ,
             weight=6),
        Kind("gallery", make_gallery, read_gallery, ("*.npz",),
             (*NPZ, inside_zip(change_text_array, only="note.npy")), weight=4),
        Kind("shards", make_shards, read_shards_and_tables, ("*/*.parquet", "*.parquet"),
             weight=3, needs="pyarrow"),
        Kind("shards-manifest", make_shards, read_shards_and_tables, ("*/manifest.json",), JSON,
             weight=1, needs="pyarrow"),
        Kind("tar", make_tars, read_tar, ("*.tar",), (change_tar,), weight=3),
        Kind("tar-index", make_tars, read_tar, ("*.tar.index.npz",), NPZ, weight=1),
        Kind("scores", make_scores, read_and_evaluate, ("*.csv", "*.txt"), TEXT, weight=3),
        Kind("attributes", make_attributes, read_and_join, ("*.csv",), TEXT, weight=2),
        Kind("points", make_points, lambda _, t: PointsTable(t), ("*.csv",), TEXT, weight=2),
        Kind("pairs", make_lists, read_list_of_pairs, ("*/*",), TEXT, weight=6),
        Kind("cfp", make_cfp, read_cfp, ("Protocol/*.txt", "Protocol/*/*/*/*.txt"), TEXT, weight=2),
        Kind("ijb", make_ijb, lambda r, _: read_ijb(r, "ijbc"), ("meta/*",), TEXT, weight=2),
        Kind("image-sets", make_image_sets, read_image_sets, ("*/*.txt",), TEXT, weight=1),
        # Each costs the start of a process.
        Kind("mat", make_mat, read_any_mat, ("*.mat", "*/*/*.mat"), (change_mat,), weight=0.1),
        Kind("parquet", make_parquet, lambda _, t: read_pairs(t, "parquet"), ("*.parquet",),
             weight=2, needs="pyarrow"),
        Kind("pth", make_pth, lambda _, t: load_state_dict_file(_Tiny(TINY), t), ("*.pth",),
             (inside_zip(*PICKLE, only="data.pkl"), inside_zip(*PICKLE, only="data.pkl"), *PICKLE),
             weight=6),
        Kind("safetensors", make_safetensors, lambda _, t: load_model(t), ("*.safetensors",),
             (change_header, change_note, change_note), weight=4),
        Kind("recipe", make_recipe, read_recipe, ("*.json",), JSON, weight=2),
        Kind("thresholds", make_thresholds, read_all_thresholds, ("*.json",), JSON, weight=3),
        Kind("bundle", make_bundle, read_damaged_bundle, ("facerec.json",), JSON, weight=2,
             needs="onnx"),
        Kind("sums", make_bundle, read_damaged_bundle, (SUMS_FILE,), TEXT, weight=1, needs="onnx"),
        Kind("onnx", make_onnx, read_any_onnx, ("*.onnx",), (change_onnx, change_onnx), weight=5,
             needs="onnx"),
        Kind("onnx-weights", make_onnx_weights,
             lambda _, t: load_onnx_weights(_Pooled(), read_onnx(t)), ("*.onnx",),
             (change_onnx, change_onnx), weight=2, needs="onnx"),
        Kind("jpeg", make_images, read_image, ("*.jpg",), weight=3),
        Kind("png", make_pngs, read_image, ("*.png",), (change_png,), weight=3),
        Kind("fault-crash", make_nothing, faulty(os.abort), weight=0),
        Kind("fault-hang", make_nothing, faulty(hang), weight=0),
        Kind("fault-memory", make_nothing, faulty(lambda: b"x" * (200 << 20)), weight=0),
        Kind("fault-traceback", make_nothing, faulty(lambda: 1 / 0), weight=0),
        Kind("fault-message", make_nothing, faulty(refuse_rudely), weight=0),
        Kind("fault-length", make_nothing, faulty(refuse_at_length), weight=0),
    )
}  # fmt: skip
"""By name; the order is that of the report."""
