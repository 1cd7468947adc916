from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
from pytest import MonkeyPatch

from facerec.backbones import Preprocessing
from facerec.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from facerec.base.errors import MetricError
from facerec.embedding.loading import load_model
from facerec.embedding.model import OnnxModel
from facerec.records.images import MemoryImages
from facerec.statistics.influences import ScoredComparisons
from facerec.verification import preprocessing
from facerec.verification.bench import Bench, Pairs
from facerec.verification.preprocessing import (
    SCALINGS,
    Trials,
    Way,
    _rank,
    likely,
    sample,
    try_preprocessing,
)

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from helpers.toy_model import ToyModel, tile_means  # noqa: E402
from helpers.toy_onnx import noted, tiles  # noqa: E402

PERSONS = 60


def red_model(folder: Path, name: str = "red.onnx", **options: object) -> OnnxModel:
    """Write a network that looks at what it takes for red, the first channel."""
    model = tiles(**options)  # type: ignore[arg-type]
    weight = np.random.default_rng(0).normal(size=(8, 147)).astype(np.float32)
    weight[:, 49:] = 0
    for tensor in model.graph.initializer:
        if tensor.name == "weight":
            tensor.CopyFrom(onnx.numpy_helper.from_array(weight, "weight"))
    onnx.save(model, folder / name)
    return load_model(folder / name)


def red_bench(folds: bool = True) -> Bench:
    """Pairs of persons who differ in red; green and blue are noise."""
    generator = np.random.default_rng(1)
    people = generator.random((PERSONS, 7, 7))
    content = []
    for person in np.repeat(people, 2, axis=0):
        small = generator.random((7, 7, 3))
        small[..., 2] = np.clip(person + 0.1 * generator.normal(size=(7, 7)), 0, 1)
        pixels = np.repeat(np.repeat((255 * small).astype(np.uint8), 16, 0), 16, 1)
        content.append(cv2.imencode(".png", pixels)[1].tobytes())
    first = 2 * np.arange(PERSONS)
    pairs = Pairs(
        np.concatenate([first, first]),
        np.concatenate([first + 1, np.roll(first, 1)]),
        np.arange(2 * PERSONS) < PERSONS,
        np.repeat(np.arange(PERSONS), 2),
        np.tile(np.arange(PERSONS) % 4, 2) if folds else None,
    )
    ids = [f"{i}.png" for i in range(2 * PERSONS)]
    return Bench("red", MemoryImages("red", ids, content), pairs)


def table(trials: Trials) -> pd.DataFrame:
    figures = trials.figures
    return figures.pivot(index="way", columns="figure", values="value").loc[figures.way.unique()]


def test_the_right_channels_are_found_and_ties_are_said(tmp_path: Path) -> None:
    model = red_model(tmp_path)
    seen: list[tuple[str, int, int]] = []
    bench = red_bench()
    found = try_preprocessing(model, bench, progress=lambda *now: seen.append(now))
    ways = table(found)
    assert ways["d′"].is_monotonic_decreasing and ways["d′ behind the best"].iloc[0] == 0
    best = f"--channels rgb --mean {ways.index[0].split()[3]}"
    assert found.verdict.startswith(f"best: {best}") and "bgr" not in found.verdict.split(". ")[0]
    # A factor changes no cosine, so the two scalings around 127.5 cannot be told apart.
    moved = next(iter(found.placements))
    one, other = (str(Way(Preprocessing(std=std), moved)) for std in (127.5, 128.0))
    assert ways["d′"][other] == pytest.approx(ways["d′"].filter(like=one).item(), rel=1e-4)
    assert len(ways) == len(likely(model)) + any(moved)
    assert ways.index.str.endswith("(assumed)").sum() == 1
    total = len(ways) * len(sample(bench)[1])
    assert found.pairs == 120 and seen[-1] == ("trying ways of preprocessing", total, total)
    assert seen[0][0] == "trying placements" and len(found.table("ways").rows) == len(ways)
    assert "subjects" in found.basis
    assert len(json.loads(json.dumps(found.to_json()))["figures"]) == 3 * len(ways)


def test_a_planted_placement_is_found_and_measured() -> None:
    """What tells people apart is bright, and lies beside what the network looks at."""
    bench = red_bench()
    content = []
    for encoded in bench.images.contents:
        picture = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
        crop = np.zeros_like(picture)
        crop[36:78, 24:66] = 100 + cv2.resize(picture, (42, 42)) // 2
        content.append(cv2.imencode(".png", crop)[1].tobytes())
    moved = replace(bench, images=MemoryImages("moved", bench.images.ids.tolist(), content))

    model = ToyModel(lambda pixels: tile_means(pixels[:, 32:74, 32:74]) + 1)
    found = try_preprocessing(model, moved)
    assert next(iter(found.placements)) == (8, -4) and len(found.figures) == 2 * 3
    assert found.verdict.startswith(f"best: {Way(model.preprocessing, (8, -4))}")
    assert "is worse" in found.verdict


def test_what_is_known_is_not_tried(tmp_path: Path) -> None:
    assert len(likely(red_model(tmp_path))) == 2 * len(SCALINGS)
    inside = red_model(tmp_path, "inside.onnx", leading=[("Sub", 127.5), ("Div", 127.5)])
    assert [given.channels for given in likely(inside)] == ["rgb", "bgr"]
    given = load_model(tmp_path / "red.onnx", channels="bgr")
    assert {wanted.channels for wanted in likely(given)} == {"bgr"}
    whole = load_model(tmp_path / "red.onnx", channels="bgr", mean=0, std=1)
    for known in (whole, red_model(tmp_path, metadata=noted())):
        assert likely(known) == (known.preprocessing,)
    # ImageNet's numbers are of colours, in whichever order the network takes them.
    both = [each for each in likely(red_model(tmp_path)) if isinstance(each.mean, tuple)]
    assert [each.mean for each in both] == [IMAGENET_MEAN, IMAGENET_MEAN[::-1]]
    assert [each.std for each in both] == [IMAGENET_STD, IMAGENET_STD[::-1]]
    # A family that goes by its name comes first, and is still tried.
    named = red_model(tmp_path, "adaface_ir50.onnx")
    assert named.assumed == ("channels", "mean", "std") and "AdaFace" in named.evidence[0]
    assert likely(named)[0] == Preprocessing("bgr", 127.5, 127.5)


def test_folds_are_whole_and_without_them_every_kind_is_drawn(monkeypatch: MonkeyPatch) -> None:
    # Whole folds are taken, the last of them too.
    monkeypatch.setattr(preprocessing, "PAIRS", 50)
    assert np.unique(red_bench().pairs.folds[sample(red_bench())[0]]).tolist() == [0, 1]
    monkeypatch.undo()
    chosen, used = sample(red_bench(folds=False))
    assert chosen.tolist() == list(range(2 * PERSONS)) and len(used) == 2 * PERSONS
    pairs = Pairs(np.zeros(5000, int), np.ones(5000, int), np.arange(5000) < 2500)
    chosen, _ = sample(Bench("many", MemoryImages("many", ["a", "b"], [b"", b""]), pairs))
    assert 900 < len(chosen) <= 1200
    assert abs(int((chosen < 2500).sum()) - len(chosen) / 2) <= 1


def test_influences_are_what_each_pair_adds() -> None:
    generator = np.random.default_rng(2)
    same = np.arange(400) % 2 == 0
    scores = same + generator.normal(size=400)
    whole, found = ScoredComparisons(scores, same).d_prime()
    for pair in (0, 1, 50, 399):
        rest = np.arange(400) != pair
        less, _ = ScoredComparisons(scores[rest], same[rest]).d_prime()
        assert whole - less == pytest.approx(found[pair], abs=2e-4)


def test_equal_candidates_are_not_told_apart_and_lost_scores_count_as_nothing() -> None:
    bench = red_bench()
    generator = np.random.default_rng(4)
    good = (bench.pairs.issame + generator.normal(size=2 * PERSONS)).astype(np.float32)
    lost = np.full_like(good, np.nan)
    candidates = [Way(Preprocessing("rgb", 0, std)) for std in (1, 2, 3)]
    chosen = np.arange(2 * PERSONS)
    found = _rank(bench, chosen, candidates, np.array([good, good + 1, lost]), {})
    assert "do not tell it from" in found.verdict and "all others are worse" in found.verdict
    # A small difference that is certain is negligible; a large one is not.
    same = bench.pairs.issame
    rows = np.array([good, good * 1.001 + 0.002 * same, good - same / 2])
    near = _rank(bench, chosen, candidates, rows.astype(np.float32), {})
    assert "--std 2 --shift 0 0; these pairs do not tell it" in near.verdict
    assert near.verdict.count("--std 3") == 0 and "may be as good" in near.verdict
    behind = near.figures[near.figures.figure == "d′ behind the best"]
    assert behind.low.iloc[1] > 0
    with pytest.raises(MetricError, match="two different pairs need a score"):
        _rank(bench, chosen[:PERSONS], candidates, np.zeros((3, PERSONS), np.float32), {})
