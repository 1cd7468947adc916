"""The study on sets so small that it takes seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_packs import PixelModel

from facerec.commands import study as module
from facerec.commands import train as training
from facerec.commands.study import Real, main, study
from facerec.embedding import embed_images, load_model
from facerec.errors import FacerecError, RecipeError, TrainingError
from facerec.fairness.attributes import join, read_attributes
from facerec.fairness.baseline import READING
from facerec.fairness.differentials import resample
from facerec.fairness.norms import percentile
from facerec.fairness.rates import GroupErrors, all_pairs_group_rates, pair_group_rates
from facerec.fairness.study import (
    FaceSet,
    FairnessStudy,
    GroupExcess,
    embed_faces,
    group_excess,
    known_truths,
    smaller,
)
from facerec.files import sha256
from facerec.recipe import load_recipe
from facerec.records.decode import decode_image
from facerec.records.synthetic import PACKS, Group, write_synthetic
from facerec.report.table import escape_markdown
from facerec.training.checkpoint import latest
from facerec.verification import pack_bench, score_pairs

REPOSITORY = Path(__file__).parents[2]

RECIPE = """
from pathlib import Path

from facerec.backbones import Backbone
from facerec.fairness.study import FairnessStudy
from facerec.heads import SEC, ArcFace
from facerec.records import Data
from facerec.records.decode import decode_image
from facerec.records.synthetic import Group, SyntheticSet
from facerec.training import SGD, Checkpoints, Recipe

small = Recipe(
    data=Data(path=Path("elsewhere")),
    backbone=Backbone(name="iresnet18", embedding_size=16, width=0.125),
    margin=ArcFace(scale=16.0, margin=0.2),
    regularizer=SEC(weight=0.5),
    optimizer=SGD(lr=0.05),
    checkpoints=Checkpoints(every_steps=1),
    batch_size=8,
    epochs=1,
    precision="fp32",
    workers=0,
)
recipe = FairnessStudy(
    generated=small,
    real=small,
    faces=SyntheticSet(
        seed=5,
        identities=4,
        images_per_identity=4,
        pairs_per_fold=4,
        groups=(Group("A"), Group("B", contrast=0.5, blur=2.0, noise=15.0)),
    ),
    seeds=(0,),
    targets=("2e-1", "1e-1"),
    target="1e-1",
    replicates=60,
    permutations=99,
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a study has run once, in ``out``."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "small.py").write_text(RECIPE)
    study(folder / "small.py", folder / "out", processes=1)
    return folder


def result_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "out" / "study.json").read_text(encoding="utf-8")))


@pytest.mark.integration
def test_a_study_goes_from_nothing_to_an_answer(folder: Path) -> None:
    out = folder / "out"
    runs = {path.name: path for path in (out / "runs").iterdir()}
    names = ["generated_baseline_seed0", "generated_sec_seed0"]
    assert sorted(runs) == sorted(names)
    recipes = {n: json.loads((p / "recipe.json").read_text()) for n, p in runs.items()}
    for name, recipe in recipes.items():
        assert recipe["data"]["path"] == str(out / "data")
        assert recipe["seed"] == int(name[-1])
        assert (recipe.pop("regularizer") is None) == ("baseline" in name)
    # The arms differ in the penalty alone.
    assert recipes[names[0]] == recipes[names[1]]

    found = result_of(folder)
    assert found["schema"] == "facerec.study/1" and found["smoke"] is False
    (faces,) = found["sets"]
    assert [run["name"] for run in faces["runs"]] == names
    for run in faces["runs"]:
        assert len(run["model"]) == 64 and run["findings"]
        assert run["association"]["subjects"] == 60
    known = [(row["run"], row["faces"]) for row in faces["known_truth"]]
    assert known == [(name, photos) for name in names for photos in ("control", "harder")]
    comparison = faces["comparison"]
    assert comparison["groups"] == ["A", "B"] and comparison["persons"] == 60
    figures = {(row["figure"], row["fusion"]) for row in comparison["rows"]}
    assert {("accuracy", "raw"), ("accuracy", "unit"), ("η²", None)} <= figures
    assert ("max/geomean FNMR at FMR=1e-1", "raw") in figures
    # What the runs found is what the comparison starts from.
    (eta2,) = (row for row in comparison["changes"] if row["figure"] == "η²")
    audited = [run["association"]["eta2"]["value"] for run in faces["runs"]]
    assert (eta2["baseline"], eta2["treated"]) == pytest.approx(tuple(audited), rel=1e-9)

    answer = (out / "answer.md").read_text(encoding="utf-8")
    for text in (*READING, "## Limits", "## Reproduce", "Known truth", "2 runs trained"):
        assert text in answer
    # Other caveats of an audit are of its page, whose p are adjusted.
    assert "Holm" not in answer and "section 5" not in answer
    assert "Impostor pairs are drawn" in answer
    assert "smoke" not in answer and " nan" not in answer and " inf" not in answer
    lines = answer.splitlines()
    rows = [line for line in lines if line.startswith("| ") and "| ---" not in line]
    table = [row for row in rows if row.count("|") == 10]
    assert len(table) == 1 + len(comparison["rows"])
    assert len({row.count("|") for row in rows}) == 2
    for name in names:
        for photos in ("B harder", "control"):
            assert any(row.startswith(f"| {escape_markdown(name)} | {photos} |") for row in rows)
    for row in comparison["rows"]:
        if row["change"] is None:
            assert row["reason"] and escape_markdown(row["reason"]) in answer


@pytest.mark.integration
def test_known_truths_show_other_people(folder: Path) -> None:
    plan = load_recipe(folder / "small.py", FairnessStudy)
    configs = [
        json.loads((folder / "out" / name / "dataset.json").read_text())["config"]
        for name in ("data", "control", "harder")
    ]
    assert len({config["seed"] for config in configs}) == 3
    blurs = [[group["blur"] for group in config["groups"]] for config in configs]
    assert blurs == [[0.0, 2.0], [0.0, 0.0], [0.0, 3.0]]
    control, harder = known_truths(plan).values()
    for faces in (control, harder):
        assert [group.name for group in faces.groups] == ["A", "B"]
        assert [group.share for group in faces.groups] == [0.5, 0.5]
        assert faces.pairs_per_fold == plan.faces.pairs_per_fold


@pytest.mark.integration
def test_the_same_command_goes_on_where_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[tuple[str, bool]] = []
    original = training.train_recipe

    def counted(recipe: Any, name: str, options: Any, console: Any) -> Path | None:
        trained.append((name, options.resume))
        return original(recipe, name, options, console)

    def stop(*arguments: Any) -> None:
        raise TrainingError("all runs are trained")

    monkeypatch.setattr(training, "train_recipe", counted)
    monkeypatch.setattr(module, "_audit_run", stop)
    monkeypatch.setattr(module, "write_synthetic", None)  # the faces are there

    def go_on() -> list[tuple[str, bool]]:
        trained.clear()
        with pytest.raises(TrainingError, match="all runs are trained"):
            study(folder / "small.py", folder / "out", processes=1)
        return trained

    assert go_on() == []
    printed = capsys.readouterr().out.replace("\n", "")
    assert "generated_baseline_seed0 is complete" in printed
    # One run was stopped behind its last step, the other before it had a checkpoint.
    runs = folder / "out" / "runs"
    begun, interrupted = runs / "generated_baseline_seed0", runs / "generated_sec_seed0"
    models = [run / "model.safetensors" for run in (begun, interrupted)]
    before = [sha256(model) for model in models]
    models[1].unlink()
    assert latest(interrupted / "checkpoints") is not None
    for path in sorted(begun.rglob("*"), reverse=True):
        if path.name != "recipe.json":
            path.rmdir() if path.is_dir() else path.unlink()
    assert go_on() == [(begun.name, False), (interrupted.name, True)]
    assert [sha256(model) for model in models] == before


@pytest.mark.integration
def test_other_settings_do_not_mix_with_what_is_there(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(RECIPE.replace("weight=0.5", "weight=0.7"))
    with pytest.raises(FacerecError, match=r"other values of regularizer\.weight"):
        study(other, folder / "out", processes=1)
    other.write_text(RECIPE.replace("seed=5", "seed=6"))
    with pytest.raises(RecipeError, match="holds faces of another configuration; choose another"):
        study(other, folder / "out", processes=1)


@pytest.mark.integration
def test_an_interrupted_training_ends_the_study(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "train_recipe", lambda *arguments: None)
    with pytest.raises(TrainingError, match="interrupted; the same command goes on with it"):
        study(folder / "small.py", folder / "out", seeds=(9,), processes=1)


@pytest.mark.integration
def test_real_faces_are_studied_alike(folder: Path) -> None:
    """Generated faces stand in for real ones, with their groups as the attribute."""
    data = folder / "out" / "data"
    lines = (data / "attributes.csv").read_text().replace("group", "gender", 1)
    (folder / "attributes.csv").write_text(lines)
    plan = load_recipe(folder / "small.py", FairnessStudy)
    faces = module._real_set(plan, Real(data, data / "lfw.bin", folder / "attributes.csv"))
    assert faces is not None and faces.attribute == "gender"
    files = Real(data, data / "lfw.bin", folder / "attributes.csv")
    longer = module._real_set(plan, replace(files, epochs=7))
    assert longer is not None
    assert (faces.recipe.epochs, longer.recipe.epochs) == (plan.real.epochs, 7)
    assert faces.recipe.data.path == data and len(faces.ids) == len(set(faces.ids)) > 40
    model = load_model(folder / "out" / "runs" / "generated_baseline_seed0")
    raw, unit = embed_faces(model, faces)
    # Of each view alone.
    images = np.stack([picture(faces, i) for i in range(len(faces.ids))])
    views = [model.embed(images), model.embed(images[:, :, ::-1])]
    np.testing.assert_allclose(raw.vectors, views[0] + views[1], rtol=1e-4, atol=1e-5)
    normalised = [view / np.linalg.norm(view, axis=1, keepdims=True) for view in views]
    np.testing.assert_allclose(unit, sum(normalised), rtol=1e-4, atol=1e-5)
    assert list(raw.ids if raw.ids is not None else []) == list(faces.ids)


@pytest.mark.integration
def test_every_run_starts_from_the_given_weights(folder: Path, tmp_path: Path) -> None:
    data, start = folder / "out" / "data", folder / "out" / "runs" / "generated_baseline_seed0"
    (tmp_path / "attributes.csv").write_text(
        (data / "attributes.csv").read_text().replace("group", "gender", 1)
    )
    text = RECIPE.replace("generated=small", "generated=None")
    text = text.replace(
        'Backbone(name="iresnet18", embedding_size=16, width=0.125)', 'Backbone("init")'
    )
    (tmp_path / "tuned.py").write_text(text)
    real = Real(data, data / "lfw.bin", tmp_path / "attributes.csv", init=start)
    study(tmp_path / "tuned.py", tmp_path / "out", real=real)
    runs = tmp_path / "out" / "runs"
    assert sorted(run.name for run in runs.iterdir()) == ["real_baseline_seed0", "real_sec_seed0"]
    for run in runs.iterdir():
        recipe = json.loads((run / "recipe.json").read_text())
        assert recipe["init"]["path"] == str(start) and recipe["backbone"]["width"] == 0.125
        assert json.loads((run / "manifest.json").read_text())["init"]["loaded"] > 50
    result = json.loads((tmp_path / "out" / "study.json").read_text())
    assert [faces["name"] for faces in result["sets"]] == ["real"]


def test_a_study_of_real_faces_alone_needs_them(tmp_path: Path) -> None:
    (tmp_path / "tuned.py").write_text(RECIPE.replace("generated=small", "generated=None"))
    with pytest.raises(RecipeError, match=r"real faces alone; give --real\.records"):
        study(tmp_path / "tuned.py", tmp_path / "out")


def picture(faces: FaceSet, i: int) -> np.ndarray:
    images = faces.benches[0].images
    return decode_image(images.encoded(i), images.where(i), (112, 112))


@pytest.mark.parametrize(
    "real", [Real(records=Path("x")), Real(epochs=3), Real(bench=Path("x"), attributes=Path("y"))]
)
def test_real_faces_need_all_three(real: Real, tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(RECIPE)
    with pytest.raises(RecipeError, match=r"need --real\.records, --real\.bench and --real\.attr"):
        study(tmp_path / "small.py", tmp_path / "out", real=real)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("regularizer=SEC(weight=0.5)", "regularizer=None", "generated has no regularizer"),
        ("seeds=(0,)", "seeds=(1, 1)", r"seeds must be different numbers, found \[1, 1\]"),
        ("seeds=(0,)", "seeds=(-1,)", "seeds must be at least 0"),
        ("replicates=60", "replicates=0", "replicates must be at least 1"),
        ("permutations=99", "permutations=0", "permutations must be at least 1"),
        ('targets=("2e-1", ', 'targets=("2", ', "target '2' is not a rate between 0 and 1"),
        ('target="1e-1"', 'target="1e-3"', "target 1e-3 is not among 2e-1, 1e-1"),
        ('target="1e-1"', 'target="1e-1", harder=Group("C")', "harder is 'C', the groups are A, B"),
    ],
)
def test_an_impossible_study_is_refused(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in RECIPE
    (tmp_path / "small.py").write_text(RECIPE.replace(old, new))
    with pytest.raises(RecipeError, match=sentence):
        study(tmp_path / "small.py", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_shipped_study_loads_and_has_a_smoke_version() -> None:
    plan = load_recipe(REPOSITORY / "recipes" / "studies" / "sec_fairness.py", FairnessStudy)
    assert len(plan.seeds) >= 3
    qualities = {g.name: (g.contrast, g.blur, g.noise) for g in plan.faces.groups}
    assert qualities["A"] == (1, 0, 0) != qualities[plan.harder.name]
    small = smaller(plan)
    assert small.seeds == plan.seeds[:1] and small.faces.groups == plan.faces.groups
    assert small.faces.total_images < plan.faces.total_images / 10
    for recipe in (small.generated, small.real):
        assert recipe is not None
        assert (recipe.epochs, recipe.backbone.width) == (1, 0.125)


@pytest.mark.parametrize("head", ["", "_cosface", "_sphereface"])
def test_the_studies_of_finetuned_models_take_the_network_of_the_weights(head: str) -> None:
    path = REPOSITORY / "recipes" / "studies" / f"sec_fairness_finetuned{head}.py"
    plan = smaller(load_recipe(path, FairnessStudy))
    assert type(plan.real.margin).__name__.lower() == (head[1:] or "arcface")
    assert plan.generated is None
    assert (plan.real.backbone.name, plan.real.epochs) == ("init", 1)


@pytest.mark.integration
def test_the_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: dict[str, Any] = {}

    def examine(plan: FairnessStudy, faces: FaceSet, *rest: Any) -> None:
        called[faces.name] = plan
        raise TrainingError("enough")

    monkeypatch.setattr(module, "_examine", examine)
    with pytest.raises(SystemExit) as ended:
        main([str(folder / "small.py"), "--out", str(folder / "out"), "--seeds", "3", "4"])
    assert ended.value.code == 2 and "error: enough" in capsys.readouterr().err
    assert called["generated"].seeds == (3, 4)
    with pytest.raises(SystemExit) as ended:
        main([str(folder / "small.py"), "--seeds", "3", "3"])
    assert ended.value.code == 2
    assert "--seeds must be different numbers, found [3, 3]" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([str(folder / "gone.py")])
    assert ended.value.code == 2 and "no such recipe file" in capsys.readouterr().err


@pytest.mark.slow
def test_the_smoke_run_of_the_shipped_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = REPOSITORY / "recipes" / "studies" / "sec_fairness.py"
    main([str(recipe), "--smoke", "--processes", "1"])
    answer = (tmp_path / "study" / "answer.md").read_text(encoding="utf-8")
    assert "**A smoke run: it shows that everything works. Its figures mean nothing.**" in answer
    assert "of these two models alone" in answer and "Note: one seed" in answer


# --- the planted difference, without any training ------------------------------------------------


def errors_of(data: Path) -> GroupErrors:
    """Embed all test images as thumbnails and count errors by group."""
    model = PixelModel()
    benches = [pack_bench(data / f"{name}.bin") for name in PACKS]
    vectors = np.concatenate([embed_pixels(model, bench) for bench in benches])
    ids = np.concatenate([bench.images.ids for bench in benches])
    attributes = read_attributes(data / "attributes.csv", ["group"])
    joined = join(attributes, ids, np.linalg.norm(vectors, axis=1))
    grouping = joined.groupings[0]
    return all_pairs_group_rates(
        vectors[joined.rows], joined.subjects, grouping.codes, grouping.names, targets=("1e-1",)
    )


def embed_pixels(model: PixelModel, bench: Any) -> np.ndarray:
    return embed_images(model, bench.images, flip=False).vectors


def excess_of(found: tuple[GroupExcess, ...], of: str) -> dict[str, GroupExcess]:
    return {one.group: one for one in found if one.of == of}


@pytest.mark.integration
def test_the_planted_group_is_told_apart_and_named(folder: Path) -> None:
    found = excess_of(group_excess(errors_of(folder / "out" / "data"), replicates=500), "FMR")
    assert found["B"].higher and not found["A"].higher
    assert found["A"].interval is not None and found["A"].interval.high < 0


@pytest.mark.integration
def test_without_a_planted_difference_equality_is_included(folder: Path, tmp_path: Path) -> None:
    faces = load_recipe(folder / "small.py", FairnessStudy).faces
    alike = replace(faces, groups=(Group("A"), Group("B")), identities=1, images_per_identity=1)
    write_synthetic(tmp_path, alike)
    for one in group_excess(errors_of(tmp_path), replicates=500):
        assert one.interval is not None
        assert one.interval.low < 0 < one.interval.high
        assert not one.higher


def test_excess_is_the_difference_of_rates_over_one_resample() -> None:
    """Three groups, brute force: every person as often as drawn."""
    generator = np.random.default_rng(0)
    subject = np.repeat(np.arange(30), 3)
    group = subject % 3
    rows = generator.normal(size=(30, 6))
    rows[2::3] += 2.0
    vectors = (rows[subject] + 0.8 * generator.normal(size=(90, 6))).astype(np.float32)
    first, second = np.triu_indices(90, 1)
    scores = score_pairs(vectors, first, second)
    same = subject[first] == subject[second]
    errors = pair_group_rates(
        scores, first, second, same, subject, group, ("A", "B", "C"), targets=("1e-1",)
    )
    threshold = errors.rates.points[0].threshold.value
    assert threshold is not None
    found = excess_of(group_excess(errors, replicates=40, seed=2), "FMR")
    one, other = subject[first], subject[second]
    rates = np.empty((41, 3))
    for row, times in enumerate(np.vstack([np.ones(30, int), resample(30, 40, 2)])):
        for code in range(3):
            inside = (one % 3 == code) & (other % 3 == code) & ~same
            weight = (times[one].astype(int) * times[other])[inside]
            rates[row, code] = np.average(scores[inside] >= threshold, weights=weight)
    for code, name in enumerate("ABC"):
        others = np.delete(rates, code, axis=1).mean(axis=1)
        assert found[name].value == pytest.approx(rates[0, code] - others[0])
        expected = percentile(rates[1:, code] - others[1:], 10, 1 - 0.05 / 3)
        interval = found[name].interval
        assert interval is not None and expected is not None
        assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert found["C"].higher
