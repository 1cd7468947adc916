"""Features that a comparison's trunk writes: against one image at a time, and read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_comparison import comparison, protocol, write_images

from facerec.commands.compare import main
from facerec.comparison import Comparison, CropTransform, FeatureData, ImageData, Trunk
from facerec.comparison.features import open_features
from facerec.comparison.image_sets import open_image_set
from facerec.comparison.photo_features import write_features
from facerec.comparison.transforms import AreaCrop
from facerec.comparison.trunks import create_trunk
from facerec.errors import RecipeError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("photos")
    trunk = Trunk("efficientnet_lite0", embedding_size=8, image_size=32)
    weights = folder / "weights.pth"
    torch.save(create_trunk(trunk, seed=5).trunk.state_dict(), weights)
    transform = CropTransform(resize=40, size=32, crop=AreaCrop(0.2, 0.8))
    return comparison(
        write_images(folder / "images"),
        protocol=protocol(trunk=replace(trunk, weights=weights), transform=transform),
        seed=3,
    )


def test_features_are_those_of_single_images(plan: Comparison, tmp_path: Path) -> None:
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    heard: list[tuple[str, int, int]] = []
    write_features(plan, first, second, CPU, lambda *what: heard.append(what))
    assert isinstance(plan.data, ImageData) and plan.protocol.transform is not None
    images, transform = open_image_set(plan.data), plan.protocol.transform
    count = len(images)
    assert heard[-1] == ("features: second.npz", count, count)
    found = open_features(FeatureData(first, second))
    assert found.second_views is not None and found.ids.tolist() == images.ids.tolist()
    assert np.array_equal(found.labels, images.labels)
    network = create_trunk(plan.protocol.trunk, seed=0).trunk.eval()
    for i in (0, 63, 64, count - 1):
        photo = transform.prepare(images.read(i), "")
        pixels = [transform.evaluate(photo), transform.train(photo, seed=3, epoch=0, index=i)]
        with torch.no_grad():
            x = network(transform.normalize(torch.from_numpy(np.stack(pixels)))).numpy()
        np.testing.assert_allclose(found.features[i], x[0], rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(found.second_views[i], x[1], rtol=1e-4, atol=1e-9)
        assert np.abs(x[0] - x[1]).max() > 1e-3 * np.abs(x).max()


def test_one_view_alone(plan: Comparison, tmp_path: Path) -> None:
    write_features(plan, tmp_path / "first.parquet", None, CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["first.parquet"]
    assert open_features(FeatureData(tmp_path / "first.parquet")).features.shape == (96, 1280)


def test_what_has_no_features(plan: Comparison, tmp_path: Path) -> None:
    trunk = replace(plan.protocol.trunk, weights=None)
    without = replace(plan, protocol=replace(plan.protocol, trunk=trunk))
    with pytest.raises(RecipeError, match=r"no weights.*trunk\.weights"):
        write_features(without, tmp_path / "a.npz", None, CPU)
    with pytest.raises(RecipeError, match="features are written of photos"):
        write_features(replace(plan, data=FeatureData(tmp_path)), tmp_path / "a.npz", None, CPU)
    for names in (("a.csv", None), ("a.npz", "b.txt"), ("a.npz", "a.npz")):
        first, second = (name and tmp_path / name for name in names)
        with pytest.raises(RecipeError, match=r"files that end in \.npz or \.parquet, one for"):
            write_features(plan, first, second, CPU)
    assert not list(tmp_path.iterdir())


def test_from_the_command_line(
    plan: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(plan.data, ImageData)
    recipe = tmp_path / "tiny.py"
    tests = Path(__file__).resolve().parents[1]
    recipe.write_text(
        f"import sys\nfrom dataclasses import replace\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(tests)!r})\n"
        f"from helpers.tiny_comparison import comparison, protocol\n"
        f"from facerec.comparison import CropTransform, Trunk\n"
        f"weights = Path({str(plan.protocol.trunk.weights)!r})\n"
        f"trunk = Trunk('efficientnet_lite0', weights=weights, image_size=32)\n"
        f"transform = CropTransform(resize=40, size=32)\n"
        f"recipe = comparison(Path({str(plan.data.path)!r}),\n"
        f"    protocol=protocol(trunk=trunk, transform=transform))\n"
    )
    first, second = tmp_path / "a.npz", tmp_path / "b.npz"
    main([str(recipe), "--write-features", str(first), "--second-views", str(second)])
    printed = capsys.readouterr().out
    assert "of 96 images" in printed and str(second) in printed.replace("\n", "")
    assert open_features(FeatureData(first, second)).size == 1280
    with pytest.raises(SystemExit):
        main([str(recipe), "--write-features", str(first), "--features", str(first)])
    assert "--write-features" in capsys.readouterr().err


@pytest.mark.parametrize(
    "idle",
    [
        ["--smoke"],
        ["--trials", "3"],
        ["--recalls", "1"],
        ["--processes", "2"],
        ["--out", "here"],
        ["--storage", "journal:here"],
    ],
)
def test_what_has_no_effect_is_said(
    tmp_path: Path, idle: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["recipe.py", "--write-features", str(tmp_path / "a.npz"), *idle])
    assert ended.value.code == 2
    assert f"{idle[0]} would have no effect" in capsys.readouterr().err
