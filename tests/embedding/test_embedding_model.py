from __future__ import annotations

import errno
import json
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.thin import thinned
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from facerec.backbones import Backbone, Preprocessing, create_backbone, list_backbones, normalize
from facerec.embedding import (
    OnnxModel,
    TorchModel,
    load_model,
    load_state_dict_file,
    newest_run,
    save_model,
)
from facerec.errors import DeviceError, FacerecError, ImageError, MissingExtraError, ModelError
from facerec.files import sha256

SMALL = Backbone("iresnet18", embedding_size=16, width=0.125)
RECIPE = {"type": "Recipe", "seed": 5, "batch_size": 8}


def faces(count: int, seed: int = 0, side: int = 112) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, nn.Module]:
    backbone = create_backbone(SMALL, seed=1)
    backbone.features.bias.data.fill_(0.5)
    path = tmp_path / "runs" / "first" / "model.safetensors"
    save_model(path, backbone, SMALL, Preprocessing("bgr", 127.5, 128.0), RECIPE, {"step": 3})
    return path, backbone


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "embedding_bn"),
    thinned(
        [
            *((name, "frozen_gamma") for name in list_backbones()),
            *((name, kind) for name in ("iresnet18", "mbf") for kind in ("affine", "none")),
        ],
        lambda name, kind: name in ("iresnet18", "mbf"),
    ),
)
def test_saved_and_loaded_weights_are_the_same(
    tmp_path: Path, name: str, embedding_bn: Any
) -> None:
    config = Backbone(name, 8, width=0.125, embedding_bn=embedding_bn, dropout=0.25)
    backbone = create_backbone(config, seed=2)
    path = tmp_path / "backbone.safetensors"
    save_model(path, backbone, config, Preprocessing(), RECIPE)
    model = load_model(path)
    assert isinstance(model, TorchModel)
    assert model.config == config
    assert model.recipe == RECIPE
    assert model.preprocessing == Preprocessing()
    loaded = model.backbone.state_dict()
    assert list(loaded) == list(backbone.state_dict())
    for key, tensor in backbone.state_dict().items():
        assert loaded[key].dtype == tensor.dtype
        assert torch.equal(loaded[key], tensor), key
    trainable = [p.requires_grad for p in backbone.parameters()]
    assert [p.requires_grad for p in model.backbone.parameters()] == trainable


def test_a_loaded_model_embeds_as_the_one_that_was_saved(saved: tuple[Path, nn.Module]) -> None:
    path, backbone = saved
    live = TorchModel(backbone, Preprocessing("bgr", 127.5, 128.0))
    for given in (path, path.parent, str(path)):
        model = load_model(given)
        np.testing.assert_allclose(
            model.embed(faces(3)), live.embed(faces(3)), rtol=1e-4, atol=1e-5
        )
        assert model.name == "first"
        assert model.path == path
        assert model.sha256 == sha256(path)
    assert live.path is None and live.sha256 is None


def test_the_header_holds_what_is_needed_and_two_files_are_equal(
    saved: tuple[Path, nn.Module],
) -> None:
    path, backbone = saved
    with safe_open(path, framework="pt") as file:
        note = json.loads(file.metadata()["facerec"])
    assert note == {
        "format": 1,
        "backbone": {"type": "Backbone", **vars(SMALL)},
        "preprocessing": {"type": "Preprocessing", "channels": "bgr", "mean": 127.5, "std": 128.0},
        "recipe": RECIPE,
        "extra": {"step": 3},
    }
    other = path.with_name("again.safetensors")
    backbone = backbone.to(memory_format=torch.channels_last)
    save_model(other, backbone, SMALL, Preprocessing("bgr", 127.5, 128.0), RECIPE, {"step": 3})
    assert other.read_bytes() == path.read_bytes()
    assert sorted(p.name for p in path.parent.iterdir()) == ["again.safetensors", path.name]


def test_a_module_that_its_section_does_not_describe_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    backbone = create_backbone("mbf", width=0.125, embedding_size=16)
    with pytest.raises(
        ModelError, match=r"not written: tensor 'conv1.weight' of iresnet18.*missing"
    ):
        save_model(path, backbone, SMALL, Preprocessing(), {})
    wrapped = nn.ModuleDict({"module": create_backbone(SMALL)})
    with pytest.raises(ModelError, match="not written"):
        save_model(path, wrapped, SMALL, Preprocessing(), {})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file(
    saved: tuple[Path, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, backbone = saved
    before = path.read_bytes()

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ModelError, match="the disk is full"):
        save_model(path, backbone, SMALL, Preprocessing(), {})
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def rewrite(path: Path, tensors: dict[str, torch.Tensor], note: Any = None) -> None:
    """Replace tensors (or the note) of a model file, without any of the checks."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    if note is not None:
        metadata = {"facerec": note if isinstance(note, str) else json.dumps(note)}
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda t: t.pop("layer2.1.bn2.weight"),
            r"'layer2.1.bn2.weight' of iresnet18 .* is missing",
        ),
        (
            lambda t: t.update({"layer9.weight": torch.zeros(2)}),
            r"'layer9.weight' of iresnet18 \(embedding_size 16, width 0.125.*is not part of it",
        ),
        (
            lambda t: t.update({"fc.bias": torch.zeros(17)}),
            r"'fc.bias' of iresnet18 .* must be float32 \(16,\), found float32 \(17,\)",
        ),
        (
            lambda t: t.update({"fc.bias": torch.zeros(16, dtype=torch.float16)}),
            r"'fc.bias' .* must be float32 \(16,\), found float16 \(16,\)",
        ),
        (
            lambda t: t.update({"fc.bias": torch.full((16,), torch.nan)}),
            r"'fc.bias' holds NaN or infinity",
        ),
    ],
    ids=["missing", "unexpected", "shape", "type", "nan"],
)
def test_weights_of_another_architecture(
    saved: tuple[Path, nn.Module], damage: Any, sentence: str
) -> None:
    path, backbone = saved
    tensors = dict(backbone.state_dict())
    damage(tensors)
    rewrite(path, tensors)
    with pytest.raises(ModelError, match=sentence) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def good_note(**changes: Any) -> dict[str, Any]:
    note = {
        "format": 1,
        "backbone": {"type": "Backbone", **vars(SMALL)},
        "preprocessing": {"type": "Preprocessing"},
        "recipe": {},
    }
    return {**note, **changes}


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        ("{", "entry 'facerec' is damaged .*; copy or save the file again$"),
        ("[1]", "entry 'facerec' is damaged"),
        ({"format": 1}, "damaged.*backbone"),
        (good_note(format=2), "written in format 2, this facerec reads format 1"),
        (good_note(backbone={"name": "resnext"}), "no backbone is called 'resnext'"),
        (good_note(backbone={"nam": "mbf"}), "no field 'nam', did you mean 'name'"),
        (good_note(backbone={**vars(SMALL), "width": -1.0}), "width must be above 0"),
        (good_note(preprocessing={"channels": "gbr"}), "channels must be one of 'rgb', 'bgr'"),
    ],
)
def test_a_damaged_note(saved: tuple[Path, nn.Module], note: Any, sentence: str) -> None:
    path, backbone = saved
    rewrite(path, dict(backbone.state_dict()), note)
    with pytest.raises(ModelError, match=sentence) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_a_strangers_safetensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ModelError, match=r"without a common prefix.*another architecture"):
        load_model(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a model", struct.pack("<Q", 2**63), struct.pack("<Q", 10) + b"{}"],
    ids=["empty", "text", "huge header", "cut header"],
)
def test_a_broken_safetensors_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(
        ModelError, match=r"broken.safetensors: not a whole .*; copy or save it again$"
    ):
        load_model(path)


def test_a_model_without_rights_is_not_called_damaged(
    saved: tuple[Path, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> None:  # rights do not bind the user root
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ModelError, match=f"{saved[0]}: .*Permission denied"):
        load_model(saved[0])


def test_a_truncated_model_is_refused(saved: tuple[Path, nn.Module]) -> None:
    path, _ = saved
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match=r"not a whole .safetensors file"):
        load_model(path)


def test_paths_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no model.safetensors"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="no such model"):
        load_model(tmp_path / "absent.onnx")
    (tmp_path / "model.txt").write_bytes(b"")
    with pytest.raises(ModelError, match=r"not .txt"):
        load_model(tmp_path / "model.txt")


def test_the_file_knows_its_own_preprocessing(saved: tuple[Path, nn.Module]) -> None:
    path, _ = saved
    assert load_model(path, channels="bgr", std=128.0).preprocessing.std == 128.0
    with pytest.raises(
        ModelError, match="trained with channels bgr, so channels rgb would be wrong"
    ):
        load_model(path, channels="rgb")


def test_a_device_that_is_not_there(saved: tuple[Path, nn.Module]) -> None:
    path, _ = saved
    with pytest.raises(DeviceError, match="device 'warp' cannot be used here"):
        load_model(path, device="warp")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="device 'cuda' cannot be used here"):
            load_model(path, device="cuda")
    if not torch.backends.mps.is_available():
        with pytest.raises(DeviceError, match="device 'mps' cannot be used here") as caught:
            load_model(path, device="mps")
        assert len(str(caught.value)) < 200


# --- foreign state dicts ---------------------------------------------------------------------


def test_a_state_dict_file_loads_strictly(tmp_path: Path) -> None:
    source, target = create_backbone(SMALL, seed=1), create_backbone(SMALL, seed=2)
    path = tmp_path / "backbone.pth"
    torch.save(source.state_dict(), path)
    load_state_dict_file(target, path)
    for name, tensor in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], tensor)
    other = create_backbone("iresnet34", width=0.125, embedding_size=16)
    with pytest.raises(
        ModelError, match=r"tensor 'layer1.2.bn1.weight' of this IResNet is missing"
    ):
        load_state_dict_file(other, path)


def test_a_learned_gamma_needs_embedding_bn_affine(tmp_path: Path) -> None:
    source = create_backbone(SMALL, embedding_bn="affine", seed=1)
    source.features.weight.data[3] = 2.5
    path = tmp_path / "backbone.pth"
    torch.save(source.state_dict(), path)
    with pytest.raises(ModelError, match=r"from 1 to 2.5.*embedding_bn=\"affine\""):
        load_state_dict_file(create_backbone(SMALL), path)
    target = create_backbone(SMALL, embedding_bn="affine")
    load_state_dict_file(target, path)
    assert target.features.weight[3] == 2.5


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["FACEREC_TRAP"],)


def test_no_code_of_a_state_dict_file_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACEREC_TRAP", str(tmp_path / "sprung"))
    path = tmp_path / "evil.pth"
    torch.save({"fc.weight": Trap()}, path)
    legacy = tmp_path / "legacy.pth"
    legacy.write_bytes(pickle.dumps({"fc.weight": Trap()}))
    for file in (path, legacy):
        with pytest.raises(ModelError, match="not a state dict that loads without running code"):
            load_state_dict_file(create_backbone(SMALL), file)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"epoch": 3, "state_dict_backbone": {}}, "found a dict"),
        ([torch.zeros(1)], "found a list"),
    ],
)
def test_files_that_hold_something_else(tmp_path: Path, content: Any, sentence: str) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path)
    with pytest.raises(ModelError, match=sentence):
        load_state_dict_file(create_backbone(SMALL), path)
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="not a state dict"):
        load_state_dict_file(create_backbone(SMALL), path)
    with pytest.raises(ModelError, match="No such file"):
        load_state_dict_file(create_backbone(SMALL), tmp_path / "absent.pth")


# --- torch -----------------------------------------------------------------------------------


def test_embeddings_are_raw_and_do_not_depend_on_the_batch_size() -> None:
    backbone = create_backbone(SMALL, seed=1)
    images = faces(5)
    whole = TorchModel(backbone, Preprocessing()).embed(images)
    parts = TorchModel(backbone, Preprocessing(), batch_size=2).embed(images)
    with torch.no_grad():
        expected = backbone.eval()(normalize(torch.from_numpy(images), Preprocessing())).numpy()
    assert whole.shape == (5, 16) and whole.dtype == np.float32
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_allclose(parts, expected, rtol=1e-4, atol=1e-4)
    assert np.linalg.norm(whole, axis=1).std() > 0
    assert TorchModel(backbone, Preprocessing()).embed(images[:0]).shape == (0, 16)


def test_a_live_module_comes_back_as_it_was() -> None:
    backbone = create_backbone(SMALL, dropout=0.5, seed=1).train()
    backbone.layer1.eval()
    modes = {name: module.training for name, module in backbone.named_modules()}
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    model = TorchModel(backbone, Preprocessing())
    first, second = model.embed(faces(2)), model.embed(faces(2))
    np.testing.assert_array_equal(first, second)
    assert {name: module.training for name, module in backbone.named_modules()} == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
    with pytest.raises(ImageError):
        model.embed(faces(1, side=96))
    assert {name: module.training for name, module in backbone.named_modules()} == modes


def test_precision_is_what_it_says() -> None:
    backbone = create_backbone(SMALL, seed=1)
    exact = TorchModel(backbone, Preprocessing()).embed(faces(2))
    half = TorchModel(backbone, Preprocessing(), precision="bf16").embed(faces(2))
    assert half.dtype == np.float32
    assert not np.array_equal(half, exact)
    np.testing.assert_allclose(half, exact, atol=0.05 * np.abs(exact).max())
    with torch.autocast("cpu", torch.bfloat16):
        inside = TorchModel(backbone, Preprocessing()).embed(faces(2))
    np.testing.assert_array_equal(inside, exact)


def test_a_description_is_json_and_says_what_a_report_needs(saved: tuple[Path, nn.Module]) -> None:
    path, _ = saved
    told = json.loads(json.dumps(load_model(path, precision="bf16").describe()))
    assert told["name"] == "first"
    assert told["sha256"] == sha256(path)
    assert told["embedding_bn"] == "frozen_gamma"
    assert told["backbone"]["name"] == "iresnet18"
    assert told["preprocessing"]["channels"] == "bgr"
    assert (told["device"], told["precision"], told["embedding_size"]) == ("cpu", "bf16", 16)
    assert told["runtime"] == f"torch {torch.__version__}"
    live = TorchModel(create_backbone(SMALL), Preprocessing()).describe()
    assert live["path"] is None and live["backbone"] is None


def test_images_of_another_kind_are_refused() -> None:
    model = TorchModel(create_backbone(SMALL), Preprocessing())
    for images in (faces(1)[0], faces(1).astype(np.float32), faces(1).transpose(0, 3, 1, 2)):
        with pytest.raises(
            ImageError, match=r"uint8 RGB images of shape \(N, 112, 112, 3\), found"
        ):
            model.embed(images)


# --- runs ------------------------------------------------------------------------------------


def test_the_newest_run_is_the_one_written_last(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no run here holds a model.safetensors"):
        newest_run(tmp_path / "absent")
    for name, seconds in (("b", 200), ("a", 300), ("c", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"")
        os.utime(tmp_path / name / "model.safetensors", (seconds, seconds))
    (tmp_path / "unfinished").mkdir()
    assert newest_run(tmp_path) == tmp_path / "a"


# --- onnx ------------------------------------------------------------------------------------


def pooled_linear(
    images: np.ndarray, weight: np.ndarray, preprocessing: Preprocessing
) -> np.ndarray:
    """The embedding of the tests' ONNX models: means of 16×16 tiles, times a matrix."""
    ordered = images if preprocessing.channels == "rgb" else images[..., ::-1]
    x = (ordered.astype(np.float64) - preprocessing.mean) / preprocessing.std
    tiles = x.reshape(len(x), 7, 16, 7, 16, 3).mean(axis=(2, 4)).transpose(0, 3, 1, 2)
    return tiles.reshape(len(x), -1) @ weight.T


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    pytest.importorskip("onnxscript")
    path = tmp_path_factory.mktemp("onnx") / "theirs.onnx"
    linear = nn.Linear(147, 8, bias=False)
    nn.init.normal_(linear.weight, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), linear).eval()
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        network,
        (torch.zeros(2, 3, 112, 112),),
        path,
        dynamo=True,
        dynamic_shapes=({0: batch},),
        input_names=["face"],
        external_data=False,
        verbose=False,
    )
    return path, linear.weight.detach().numpy().astype(np.float64)


@pytest.mark.parametrize("channels", [None, "rgb", "bgr"])
@pytest.mark.parametrize(("mean", "std"), [(None, None), (127.5, 128.0), (0.0, 255.0)])
def test_onnx_with_every_preprocessing(
    exported: tuple[Path, np.ndarray], channels: Any, mean: float | None, std: float | None
) -> None:
    path, weight = exported
    model = load_model(path, channels=channels, mean=mean, std=std, batch_size=2)
    assert isinstance(model, OnnxModel)
    expected = Preprocessing(channels or "rgb", 127.5 if mean is None else mean, std or 127.5)
    assert model.preprocessing == expected
    found = model.embed(faces(5))
    assert found.shape == (5, 8) and found.dtype == np.float32
    np.testing.assert_allclose(found, pooled_linear(faces(5), weight, expected), atol=1e-5)
    told = json.loads(json.dumps(model.describe()))
    assert told["name"] == "theirs"
    assert told["sha256"] == sha256(path)
    assert told["preprocessing"]["std"] == expected.std
    assert told["runtime"].startswith("onnxruntime ")


def write_onnx(
    path: Path,
    weight: np.ndarray,
    batch: int | str,
    layout: str = "NCHW",
    outputs: tuple[str, ...] = ("vector",),
    kind: str = "FLOAT",
) -> None:
    """Build the tile model node by node, in the shapes that strangers' files have."""
    onnx = pytest.importorskip("onnx")
    helper, element = onnx.helper, getattr(onnx.TensorProto, kind)
    shape = [batch, 3, 112, 112] if layout == "NCHW" else [batch, 112, 112, 3]
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Identity", ["f"], ["n"])
        if layout == "NCHW"
        else helper.make_node("Transpose", ["f"], ["n"], perm=[0, 3, 1, 2]),
        helper.make_node("AveragePool", ["n"], ["p"], kernel_shape=[16, 16], strides=[16, 16]),
        helper.make_node("Flatten", ["p"], ["t"]),
        *(helper.make_node("Gemm", ["t", "w"], [name], transB=1) for name in outputs),
    ]
    graph = helper.make_graph(
        nodes,
        "tiles",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [batch, "d"]) for n in outputs],
        [onnx.numpy_helper.from_array(weight.astype(np.float32), "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


WEIGHT = np.random.default_rng(3).normal(size=(8, 147))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("batch", [1, 4, "n"])
def test_onnx_layouts_and_fixed_batches(tmp_path: Path, layout: str, batch: int | str) -> None:
    path = tmp_path / "tiles.onnx"
    write_onnx(path, WEIGHT, batch, layout)
    model = load_model(path, channels="bgr", batch_size=3)
    assert model.embedding_size == 8
    assert model.batch_size == (3 if batch == "n" else batch)
    expected = pooled_linear(faces(5), WEIGHT, Preprocessing("bgr"))
    np.testing.assert_allclose(model.embed(faces(5)), expected, atol=1e-5)
    with pytest.raises(ImageError, match="tiles takes aligned uint8"):
        model.embed(faces(1, side=96))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"outputs": ("vector", "norm")}, "one input and one output, found 1 and 2"),
        (
            {"kind": "DOUBLE"},
            r"must be float32 or uint8 images .* found x float64",
        ),
    ],
)
def test_onnx_files_of_other_kinds(tmp_path: Path, options: Any, sentence: str) -> None:
    path = tmp_path / "other.onnx"
    write_onnx(path, WEIGHT, "n", **options)
    with pytest.raises(ModelError, match=sentence):
        load_model(path)


def test_an_onnx_model_that_gives_no_vectors(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, element = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "same",
        [helper.make_tensor_value_info("x", element, ["n", 3, 112, 112])],
        [helper.make_tensor_value_info("y", element, ["n", 3, 112, 112])],
    )
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "same.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    with pytest.raises(ModelError, match=r"output of shape \(1, 3, 112, 112\), not \(1, D\)"):
        load_model(path)


def test_onnx_errors_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiles.onnx"
    write_onnx(path, WEIGHT, "n")
    raising: list[tuple[dict[str, Any], str, type[FacerecError]]] = [
        ({"precision": "bf16"}, "fixes its own precision", ModelError),
        ({"std": 0.0}, "std must be at least", ModelError),
        ({"device": "mps"}, "runs on cpu or cuda, not on 'mps'", ModelError),
    ]
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raising.append(({"device": "cuda"}, "offers no CUDAExecutionProvider here", ModelError))
    for options, sentence, kind in raising:
        with pytest.raises(kind, match=sentence):
            load_model(path, **options)
    (tmp_path / "cut.onnx").write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelError, match=r"cut.onnx: not an .onnx file"):
        load_model(tmp_path / "cut.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'facerec\[onnx\]'"):
        load_model(path)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["iresnet18", "mbf"])
def test_an_exported_backbone_equals_the_module(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxscript")
    backbone = create_backbone(name, width=0.125, embedding_size=16, seed=1).eval()
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        backbone,
        (torch.zeros(2, 3, 112, 112),),
        path,
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
        verbose=False,
    )
    found = load_model(path).embed(faces(3))
    expected = TorchModel(backbone, Preprocessing()).embed(faces(3))
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
