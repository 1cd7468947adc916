"""Proposals to change a set of images: their table, what they do together, new records."""

from __future__ import annotations

import pytest
from helpers.toy_files import picture, write_files

from facerec.base.errors import DatasetError
from facerec.records.images import SubjectFolders
from facerec.records.layout import RecordImages
from facerec.records.make import apply_proposals, make_records
from facerec.records.proposals import Proposal, combine, read_proposals, write_proposals


def row(kind, image, label, proposed, accept=True, other=""):
    return Proposal(kind, image, label, proposed, other, 0.75, accept)


@pytest.fixture
def three(tmp_path):
    files = {
        f"{name}/{shot}.jpg": picture(10 * who + shot)
        for who, name in enumerate(("anna", "bert", "cleo"))
        for shot in range(3)
    }
    return write_files(tmp_path / "faces", files)


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


def test_what_proposals_do_together():
    """Chains of merged labels end in one, a dropped image is gone, errors come before mixtures."""
    labels = dict.fromkeys("ijk", "a")
    after, merged = combine(
        [
            row("wrong_label", "i", "a", "d"),
            row("mixture", "i", "a", "a~2"),
            row("mixture", "j", "a", "a~2"),
            row("duplicate", "j", "a", ""),
            row("wrong_label", "k", "a", "d", accept=False),
            *(row("merge", "", a, b) for a, b in (("a", "b"), ("b", "c"), ("c", "a"), ("x", "y"))),
        ],
        labels,
    )
    assert after == {"i": "d", "j": "", "k": "a"}
    assert merged == {"a": "c", "b": "c", "x": "y"}


@pytest.mark.parametrize("as_records", [False, True])
def test_applied_proposals_make_new_records(three, tmp_path, as_records):
    path, source = three, SubjectFolders(three)
    if as_records:
        make_records(three, tmp_path / "old")
        path, source = tmp_path / "old", RecordImages(tmp_path / "old")
    image = {
        (str(label), shot): source.ids[3 * label + shot] for label in range(3) for shot in range(3)
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
    summary = apply_proposals(path, tmp_path / "p.csv", tmp_path / "new")
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
    assert (summary.images, summary.subjects) == (8, 3)
    assert list(summary.counts.values()) == [1, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([row("wrong_label", "nobody/1.jpg", "anna", "")], "nobody"),
        ([row("wrong_label", "anna/1.jpg", "bert", "")], "anna/1.jpg"),
        ([row("merge", "", "dora", "anna")], "dora"),
    ],
)
def test_proposals_of_another_set_leave_nothing(three, tmp_path, rows, word):
    write_proposals(tmp_path / "p.csv", rows)
    with pytest.raises(DatasetError, match=word):
        apply_proposals(three, tmp_path / "p.csv", tmp_path / "new")
    assert not (tmp_path / "new" / "train.rec").exists()
    with pytest.raises(DatasetError, match="another folder"):
        apply_proposals(three, tmp_path / "p.csv", three)
