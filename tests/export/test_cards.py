from __future__ import annotations

import html
import re
from typing import Any

import pytest
from helpers.calibrations import point

from facerec.base.errors import printable
from facerec.export.cards import bundle_card, evaluation_entries, front_license, training_facts

RECIPE = {
    "type": "Recipe",
    "data": {"type": "Data", "path": "/home/someone/ms1mv3"},
    "backbone": {"type": "Backbone", "name": "iresnet18", "width": 0.25},
    "margin": {"type": "ArcFace", "scale": 64.0, "margin": 0.5},
    "regularizer": None,
    "epochs": 20,
}

TENSORS = {
    "inputs": [{"name": "data", "dtype": "float32", "shape": ["batch", 3, 112, 112]}],
    "outputs": [{"name": "embedding", "dtype": "float32", "shape": ["batch", 24]}],
}

MEASURED = {"fpr_interval": [0.0002, 0.0029], "false_accepts": [3, 3000], "reliable": False}
MEASURED |= {"tpr": 0.987, "tpr_interval": [0.981, 0.991], "true_accepts": [2961, 3000]}
THRESHOLD = point(0.31234, threshold_interval=[0.3, 0.325], flip=True, **MEASURED)


def note(**changes: Any) -> dict[str, Any]:
    model = {"file": "model.onnx", "sha256": "ab" * 32, "bytes": 100_000, "thresholds": []}
    consumer = {"consumer": "OpenCV DNN", "version": None, "outcome": "not installed"}
    consumer |= {"max_abs": None, "min_cosine": None, "note": "no opencv-python here"}
    return {
        "name": "run",
        "facerec": "0.1.0",
        "license": None,
        "training": training_facts(RECIPE),
        "model": {**model, "opset": 17, "ir_version": 8, "parameters": 12_345, **TENSORS},
        "preprocessing": {"channels": "rgb", "mean": 127.5, "std": 127.5},
        "alignment": "arcface_112x112",
        "alignment_points": [[38.2946, 51.6963], [73.5318, 51.5014], [56.0, 72.0]],
        "embedding_size": 24,
        "image_size": [112, 112],
        "flip": None,
        "variants": [],
        "left_out": [],
        "triton": None,
        "parity": [{"check": "faces", "batch": 5, "max_abs": 1.2e-7, "min_cosine": 0.9999999}],
        "consumers": [consumer],
        "source": {"file": "model.safetensors", "sha256": "cd" * 32},
        **changes,
    }


def with_thresholds(*rows: dict[str, Any]) -> dict[str, Any]:
    return {**note()["model"], "thresholds": list(rows)}


def rows(card: str, start: str) -> list[list[str]]:
    """Return the cells of all table rows that begin with a cell, brackets as people see them."""
    lines = [line for line in card.splitlines() if line.startswith(f"| {start} |")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    plain = [[cell.strip().replace("\N{NO-BREAK SPACE}", " ") for cell in line] for line in cells]
    return [[re.sub(r"\\([\[\]])", r"\1", cell) for cell in line] for line in plain]


def test_numbers_and_names_are_those_of_the_note() -> None:
    card = bundle_card(note(license="CC BY-NC 4.0", flip="sum_raw"))
    assert "Licence of the weights: CC BY-NC 4.0" in card
    assert rows(card, "input") == [["input", "`data` float32 batch × 3 × 112 × 112"]]
    assert rows(card, "scaling")[0][1].startswith("(pixel − 127.5) / 127.5")
    assert "(38.2946, 51.6963), (73.5318, 51.5014), (56.0, 72.0) as x, y" in card
    # Not in code, where an underscore has no escape.
    assert rows(card, "weights")[0][1].startswith("model.safetensors, SHA-256")
    assert 'facerec.load("BUNDLE", flip=True)' in card and "**Add the mirror image.**" in card
    assert "24 dimensions" in card and "100,000 bytes" in card and "ab" * 32 in card
    assert "sum of the raw embeddings" in rows(card, "mirror image")[0][1]
    assert rows(card, "margin") == [["margin", "ArcFace(scale=64.0, margin=0.5)"]]


def test_thresholds_have_interval_and_counts() -> None:
    bare = {**THRESHOLD, "bench": "cfp_fp", "threshold_interval": None, "reliable": True}
    card = bundle_card(note(model=with_thresholds(THRESHOLD, bare)))
    (row,) = rows(card, "lfw")
    assert row[:4] == ["lfw", "1e-3", "0.31234", "[0.3000, 0.3250]"]
    assert row[4] == "0.10 % [0.02, 0.29] (3/3000)"
    assert row[5] == "98.70 % [98.1, 99.1] (2961/3000), few errors"
    (other,) = rows(card, r"cfp\_fp")
    assert other[3] == "none" and other[5] == "98.70 % [98.1, 99.1] (2961/3000)"


@pytest.mark.parametrize("hostile", ["a|b\n# c", "<script>x</script>", "[x](http://y)", "`**_"])
def test_texts_of_users_are_no_markup(hostile: str) -> None:
    card = bundle_card(
        note(name=hostile, license=hostile, model=with_thresholds({**THRESHOLD, "bench": hostile}))
    )
    front, _, card = card.removeprefix("---\n").partition("\n---\n\n")
    assert [line for line in front.splitlines() if line.startswith(("#", "<", "["))] == []
    heading, licence = card.splitlines()[0], re.search("weights: (.*)", card)
    plain = " ".join(hostile.split())
    for shown in (heading.removeprefix("# "), licence[1]):
        assert html.unescape(re.sub(r"\\(.)", r"\1", shown)) == plain
        assert not re.search(r"(?<!\\)[`*_\[\]<>|#]", shown)
    # The table keeps its columns.
    head, row = (line for line in card.splitlines() if "| target FPR" in line or "0.31234" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == head.count("|") > 6


def test_the_hub_reads_the_card() -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    yaml = pytest.importorskip("yaml")
    bench = {**THRESHOLD, "bench": "a: 'ü' \"–\"\n- ---\u2028\x7f😀"}
    made = note(name="my: run", license="MIT", model=with_thresholds(THRESHOLD, bench))
    data = hub.ModelCard(bundle_card(made)).data
    assert (data.library_name, data.license, data.model_name) == ("facerec", "mit", "my: run")
    assert data.pipeline_tag == "image-feature-extraction" and "face-recognition" in data.tags
    entries = hub.parse_eval_result_entries(yaml.safe_load(evaluation_entries(made)))
    for result, entry, row in zip(data.eval_results, entries, (THRESHOLD, bench), strict=True):
        assert result.dataset_name == entry.dataset_id == printable(row["bench"])
        assert result.metric_value == entry.value == 98.7
        assert (entry.task_id, entry.notes) == ("tpr_at_fpr_1e-3", result.metric_args["notes"])
        assert "[98.1, 99.1] (2961/3000)" in entry.notes.replace("\N{NO-BREAK SPACE}", " ")
    assert evaluation_entries(note()) == "" and "model-index" not in bundle_card(note())
    assert front_license("CC BY-NC 4.0") == {"license": "cc-by-nc-4.0"}
    own = {"license": "other", "license_name": "research-only"}
    assert front_license("research: only") == own and front_license(None) == {}
