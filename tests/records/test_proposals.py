"""Tables of proposals: written, edited, read back, and applied to a set."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from facerec.errors import DatasetError
from facerec.records.images import SubjectFolders
from facerec.records.layout import RecordImages
from facerec.records.make import apply_proposals, make_records
from facerec.records.proposals import Proposal, combine, read_proposals, write_proposals


def row(kind, image, label, proposed, accept=True, other=""):
    return Proposal(kind, image, label, proposed, other, 0.75, accept)


@pytest.fixture
def folder(tmp_path):
    generator = np.random.default_rng(0)
    for person in ("anna", "bert", "cleo"):
        (tmp_path / "faces" / person).mkdir(parents=True)
        for shot in range(3):
            image = generator.integers(0, 256, (112, 112, 3), dtype=np.uint8)
            cv2.imwrite(str(tmp_path / "faces" / person / f"{shot}.jpg"), image)
    return tmp_path / "faces"


def test_a_table_comes_back_as_it_was(tmp_path):
    rows = [
        row("wrong_label", "=1+1.jpg", "-a", "'@b"),
        row("merge", "", "x", "'plain", accept=False),
        row("duplicate", "u", "v, w", "", other='"quoted"'),
    ]
    write_proposals(tmp_path / "p.csv", rows)
    assert read_proposals(tmp_path / "p.csv") == rows
    cells = (tmp_path / "p.csv").read_text().splitlines()[1].split(",")
    assert not any(cell.startswith(("=", "-", "@")) for cell in cells)


@pytest.mark.parametrize(
    "line, word",
    [
        ("odd,a,b,c,,1,yes", "odd"),
        ("merge,,b,,,1,yes", "label"),
        ("merge,,b,c,,1,maybe", "maybe"),
        ("merge,,b,c,,one,yes", "one"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, word):
    path = tmp_path / "p.csv"
    path.write_text(f"kind,image_id,label,proposed_label,other_id,score,accept\n{line}\n")
    with pytest.raises(DatasetError, match=rf"line 2.*{word}"):
        read_proposals(path)
    path.write_text("kind,image_id\n")
    with pytest.raises(DatasetError, match="label"):
        read_proposals(path)


def test_chains_and_rings_of_merged_labels_end_in_one():
    changes = combine(
        [row("merge", "", a, b) for a, b in (("a", "b"), ("b", "c"), ("c", "a"), ("x", "y"))]
    )
    assert {changes.label_of("", label) for label in "abc"} == {"c"}
    assert changes.label_of("", "x") == "y" and changes.label_of("", "z") == "z"


def test_a_dropped_image_is_gone_and_a_wrong_label_counts_before_a_mixture():
    changes = combine(
        [
            row("wrong_label", "i", "a", "b"),
            row("mixture", "i", "a", "a~2"),
            row("mixture", "j", "a", "a~2"),
            row("duplicate", "j", "a", ""),
            row("merge", "", "b", "c"),
            row("wrong_label", "k", "a", "b", accept=False),
        ]
    )
    assert changes.label_of("i", "a") == "c"
    assert changes.label_of("j", "a") is None
    assert changes.label_of("k", "a") == "a"
    assert changes.refused == 1


@pytest.mark.parametrize("as_records", [False, True])
def test_applied_proposals_make_new_records(folder, tmp_path, as_records):
    source = SubjectFolders(folder)
    if as_records:
        make_records(folder, tmp_path / "old")
        source = RecordImages(tmp_path / "old")
    image = {
        (str(label), shot): source.name(3 * label + shot) for label in range(3) for shot in range(3)
    }
    content = {name: source.encoded(i) for i, name in enumerate(source.ids.tolist())}
    rows = [
        row("wrong_label", image["0", 0], "anna", "bert"),
        row("wrong_label", image["0", 1], "anna", ""),
        row("mixture", image["1", 2], "bert", "bert~2"),
        row("merge", "", "cleo", "anna"),
        row("merge", "", "bert", "anna", accept=False),
    ]
    write_proposals(tmp_path / "p.csv", rows)
    summary = apply_proposals(source, tmp_path / "p.csv", tmp_path / "new")
    new = RecordImages(tmp_path / "new")
    assert new.class_names == ["anna", "bert", "bert~2"]
    wanted = {
        "anna": [image["0", 2], *(image["2", shot] for shot in range(3))],
        "bert": [image["0", 0], image["1", 0], image["1", 1]],
        "bert~2": [image["1", 2]],
    }
    found = {name: [] for name in wanted}
    for i in range(len(new)):
        found[new.class_names[new.labels[i]]].append(new.encoded(i))
    assert found == {name: [content[i] for i in images] for name, images in wanted.items()}
    assert (summary.images, summary.identities) == (8, 3)
    assert list(summary.counts.values()) == [1, 2, 1, 1, 0]


def test_proposals_of_another_set_leave_nothing(folder, tmp_path):
    source = SubjectFolders(folder)
    for rows, word in (
        ([row("wrong_label", "nobody/1.jpg", "anna", "")], "nobody"),
        ([row("wrong_label", "anna/1.jpg", "bert", "")], "anna/1.jpg"),
        ([row("merge", "", "dora", "anna")], "dora"),
        (
            [row("duplicate", name, name.split("/")[0], "") for name in source.ids.tolist()],
            "no image",
        ),
    ):
        write_proposals(tmp_path / "p.csv", rows)
        with pytest.raises(DatasetError, match=word):
            apply_proposals(source, tmp_path / "p.csv", tmp_path / "new")
        assert not (tmp_path / "new" / "train.rec").exists()
    write_proposals(tmp_path / "p.csv", [])
    with pytest.raises(DatasetError, match="another folder"):
        apply_proposals(source, tmp_path / "p.csv", folder)
