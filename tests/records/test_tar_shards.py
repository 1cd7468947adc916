"""WebDataset shards: what they hold in any order of access, and what is refused."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.toy_files import picture, write_tar

from facerec.base.errors import DatasetError
from facerec.commands.sources import open_set
from facerec.records.images import ImageSource
from facerec.records.tar_shards import INDEX, TarImages
from facerec.records.training_set import Data, Part, open_dataset

Members = Sequence[tuple[str, bytes]]


def sample(key: str, seed: int, label: object, field: str = "cls") -> list[tuple[str, bytes]]:
    return [(f"{key}.{field}", str(label).encode()), (f"{key}.jpg", picture(seed))]


def shards(folder: Path) -> Path:
    """Two shards of people 2, 0, 2 and 1; in the second the members are not in their order."""
    write_tar(folder / "s-000.tar", [*sample("a/0.0", 0, 2), *sample("a/1", 1, 0)])
    first, second = sample("b/2", 2, 2), sample("b/3", 3, "1\n")
    write_tar(folder / "s-001.tar", [first[1], second[1], second[0], first[0]])
    return folder


def contents(dataset: ImageSource) -> list[tuple[str, bytes, int]]:
    return [(name, *dataset.sample(i)) for i, name in enumerate(dataset.ids.tolist())]


WANTED = [
    ("a/0.0", picture(0), 2),
    ("a/1", picture(1), 0),
    ("b/2", picture(2), 2),
    ("b/3", picture(3), 1),
]


def test_samples_by_position(tmp_path: Path) -> None:
    folder = shards(tmp_path / "s")
    for path in (folder, folder / "s-{000..001}.tar", folder / "s-*.tar"):
        for _ in range(2):  # the second time by the index that the first one wrote
            dataset = open_dataset(Data(path), seed=0)
            assert isinstance(dataset.sources[0].images, TarImages)
            assert contents(dataset) == WANTED
            assert dataset.num_classes == 3 and dataset.class_names is None
            assert dataset.labels.tolist() == [2, 0, 2, 1] and not dataset.notes
            assert dataset.ids.tolist() == ["a/0.0", "a/1", "b/2", "b/3"]
    assert len(list(folder.glob("*" + INDEX))) == 2
    single = open_dataset(Data(folder / "s-001.tar"), seed=0)
    assert contents(single) == WANTED[2:]
    assert contents(pickle.loads(pickle.dumps(single))) == WANTED[2:]


@pytest.mark.parametrize(
    ("members", "labels", "names"),
    [
        (("cls", "7"), ("cls", " 3\n"), None),
        (("json", "7"), ("json", '{"caption": "x", "label": 3}'), None),
        (("json", '{"identity": "ben"}'), ("cls", "anna"), ["anna", "ben"]),
        (("txt", " 7\n"), ("cls", "3"), None),
        (("json", '{"label": null, "class": "007"}'), ("cls", "Ö"), ["007", "Ö"]),
    ],
)
def test_labels_are_numbers_or_names(
    tmp_path: Path,
    members: tuple[str, str],
    labels: tuple[str, str],
    names: list[str] | None,
) -> None:
    content = [*sample("a", 0, members[1], members[0]), *sample("b", 1, labels[1], labels[0])]
    dataset = TarImages(write_tar(tmp_path / "t.tar", content))
    assert dataset.class_names == names
    wanted = [7, 3] if names is None else [1, 0] if "ben" in names else [0, 1]
    assert dataset.labels.tolist() == wanted
    assert dataset.num_classes == max(wanted) + 1


def test_a_changed_shard_is_indexed_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", sample("a", 0, 0))
    dataset = TarImages(path)
    before = dataset.names_sha256()
    write_tar(path, [*sample("b", 1, 0), *sample("c", 2, 1)])
    again = TarImages(path)
    assert again.ids.tolist() == ["b", "c"] and again.names_sha256() != before
    for damage in (b"", b"PK", (tmp_path / ("t.tar" + INDEX)).read_bytes()[:-40]):
        (tmp_path / ("t.tar" + INDEX)).write_bytes(damage)
        assert contents(TarImages(path)) == contents(again)


def test_what_lies_beside_samples_is_passed_over(tmp_path: Path) -> None:
    extra = [("__info__.json", b"{}"), ("README", b"x"), ("a.seg.png", b"x"), ("a.npy", b"x")]
    extra += [("a.txt", b"a face"), ("a.json", b"{}"), ("._a.jpg", b"x"), ("__MACOSX/a.jpg", b"x")]
    path = write_tar(tmp_path / "t.tar", [*extra, *sample("a", 0, 0)])
    with tarfile.open(path, "a") as archive:
        folder = tarfile.TarInfo("dir")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        pipe = tarfile.TarInfo("c.jpg")
        pipe.type = tarfile.FIFOTYPE
        archive.addfile(pipe)
    for _ in range(2):  # the second time from the index
        dataset = TarImages(path)
        assert dataset.ids.tolist() == ["a"]
        (passed,) = dataset.notes
        for kind in ("without suffix", "image", ".npy", ".txt", ".json", "link", "special file"):
            assert f"1 {kind}" in passed
        for kind in ("__ file", "hidden", "__MACOSX"):
            assert f"1 {kind}" in passed


@pytest.mark.parametrize(
    ("members", "tokens"),
    [
        ([("a.cls", b"0")], ("no samples", "1 .cls passed over", "no other photo: 0")),
        ([*sample("a", 0, 0), ("a.png", picture(0))], ("sample a", "two of image", ".png")),
        ([*sample("a", 0, 0), *sample("c", 1, 1), ("a.JPG", b"")], ("sample a", "two of", ".jpg")),
        (sample("a", 0, 1 << 30), ("sample a", str(1 << 30))),
        (sample("a", 0, -1), ("sample a", "-1")),
        (sample("a", 0, "{", "json"), ("sample a", ".json")),
        (sample("a", 0, '{"label": 1.5}', "json"), ("sample a", "1.5")),
        ([("a.cls", b"\xff"), ("a.jpg", b"")], ("sample a", "UTF-8")),
        ([("README", b"")], ("no samples",)),
    ],
)
def test_bad_samples_are_named(tmp_path: Path, members: Members, tokens: Sequence[str]) -> None:
    with pytest.raises(DatasetError) as found:
        TarImages(write_tar(tmp_path / "t.tar", members))
    assert "t.tar" in str(found.value) or len(tokens) == 1
    for token in tokens:
        assert token in str(found.value), (token, str(found.value))
    assert not list(tmp_path.glob("*.tmp"))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "w.tar", [*sample("a", 0, 0), *sample("b", 1, 1)]).read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512
    path = tmp_path / "t.tar"
    for size in [*range(0, end, 512), *range(100, end, 1017)]:
        path.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match=r"t\.tar"):
            TarImages(path)
    path.write_bytes(whole[: end + 512])
    assert len(TarImages(path)) == 2


@pytest.mark.parametrize(
    ("change", "token"),
    [
        (lambda whole: whole + whole, "joined with cat"),
        (lambda whole: whole[:1024] + b"x" * 512 + whole[1536:], "after byte 1,024"),
        (lambda whole: b"\x1f\x8b" + whole, "gunzip"),
    ],
)
def test_what_is_no_plain_tar_is_refused(tmp_path: Path, change: object, token: str) -> None:
    whole = write_tar(tmp_path / "w.tar", [("a.cls", b"0"), ("a.jpg", picture(0))]).read_bytes()
    (tmp_path / "t.tar").write_bytes(change(whole))  # type: ignore[operator]
    with pytest.raises(DatasetError, match=token):
        TarImages(tmp_path / "t.tar")


def test_images_without_labels(tmp_path: Path) -> None:
    folder = tmp_path / "some"
    write_tar(folder / "t.tar", [*sample("a", 0, "anna"), ("b.jpg", picture(1))])
    skipping = open_dataset(Data(folder, on_error="skip"), 0)
    assert skipping.labels.tolist() == [0, -1] and skipping.notes and not skipping.has_unlabelled
    with pytest.raises(DatasetError, match="sample b"):
        skipping.sample(1)
    assert skipping[0][1] == 0
    images = TarImages(folder)
    assert images.labels.tolist() == [0, -1] and images.encoded(1) == picture(1)
    with pytest.raises(DatasetError, match=r"t\.tar, sample b: it has no label.*1 of 2"):
        open_dataset(Data(folder), 0)
    long = write_tar(tmp_path / "long.tar", sample("a", 0, "x" * (1 << 21)))
    with pytest.raises(DatasetError, match="sample a: it has no label"):
        open_dataset(Data(long), 0)
    bare = write_tar(tmp_path / "none" / "t.tar", [("b.jpg", picture(1))]).parent
    with pytest.raises(DatasetError, match="1 of 1"):
        open_dataset(Data(bare, on_error="skip"), 0)
    joined = open_dataset(
        Data(folder / "t.tar", on_error="skip", also=(Part(bare, labelled=False),)), 0
    )
    assert joined.labels.tolist() == [0, -1, -1] and joined.sample(2) == (picture(1), -1)
    for path, subjects in ((folder, ["anna", ""]), (bare, None)):
        source = open_set("records", path)
        known = source.subjects()
        assert (None if known is None else known.tolist()) == subjects
        assert source.description["kind"] == "webdataset"
