"""Parquet shards are one embeddings file, or are refused in a sentence."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from facerec.commands.all_pairs import main
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import (
    embeddings_sha256,
    is_embeddings,
    read_embeddings,
    write_embeddings,
)
from facerec.embedding.shards import Manifest, write_manifest
from facerec.errors import DatasetError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NOTE = {"model": {"sha256": "a" * 64, "embedding_size": 6}, "flip": True, "align": None}
SIZES = (5, 1, 4, 3)
LOST = (5, 7)
"""Of all images, those without an embedding: one is alone in its shard."""


def made(images: int = sum(SIZES)) -> Embeddings:
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(images, 6)).astype(np.float32)
    norms = generator.random(images).astype(np.float32)  # with flip they are not those of vectors
    vectors[list(LOST)], norms[list(LOST)] = np.nan, np.nan
    return Embeddings(
        vectors,
        norms,
        True,
        ids=np.array([f"ä/{i}.jpg" for i in range(images)]),
        subjects=np.array([f"p{i // 3}" if i else "" for i in range(images)]),
        failures={row: f"no face in {row}" for row in LOST},
        note=NOTE,
    )


def rows(whole: Embeddings, start: int, stop: int) -> Embeddings:
    assert whole.ids is not None and whole.subjects is not None
    part = slice(start, stop)
    return replace(
        whole,
        vectors=whole.vectors[part],
        norms=whole.norms[part],
        ids=whole.ids[part],
        subjects=whole.subjects[part],
        failures={row - start: why for row, why in whole.failures.items() if start <= row < stop},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    start = 0
    for number, size in enumerate(SIZES):
        part = rows(made(), start, start + size)
        write_embeddings(tmp_path / "shards" / f"part-{number}.parquet", part)
        start += size
    counts = {f"part-{number}.parquet": size for number, size in enumerate(SIZES)}
    write_manifest(tmp_path / "shards", Manifest(NOTE, counts))
    return tmp_path / "shards"


def same(found: Embeddings, wanted: Embeddings) -> None:
    assert found.ids is not None and wanted.ids is not None
    assert found.ids.tolist() == wanted.ids.tolist()
    np.testing.assert_array_equal(found.vectors, wanted.vectors)
    np.testing.assert_array_equal(found.norms, wanted.norms)
    assert found.vectors.dtype == found.norms.dtype == np.float32
    assert found.subjects is not None and wanted.subjects is not None
    assert found.subjects.tolist() == wanted.subjects.tolist()
    assert dict(found.failures) == dict(wanted.failures)
    assert found.flip is True and found.note["model"] == NOTE["model"]


def test_shards_are_read_as_the_file_that_they_are_of(folder: Path) -> None:
    for path in (folder, folder / "part-*.parquet", folder / "part-{0..3}.parquet"):
        assert is_embeddings(path)
        found = read_embeddings(path)
        same(found, made())
        assert found.note["shards"] == len(SIZES)
    same(read_embeddings(folder / "part-{0,1}.parquet"), rows(made(), 0, 6))
    # What was read is written as one file again, in both formats.
    for name in ("whole.npz", "whole.parquet"):
        write_embeddings(folder.parent / name, read_embeddings(folder))
        same(read_embeddings(folder.parent / name), made())
        assert stat.S_IMODE((folder.parent / name).stat().st_mode) == 0o600


def test_equal_content_gives_equal_bytes(folder: Path) -> None:
    again = folder.parent / "again.parquet"
    write_embeddings(again, rows(made(), 0, SIZES[0]))
    assert again.read_bytes() == (folder / "part-0.parquet").read_bytes()
    before = embeddings_sha256(folder)
    write_embeddings(folder / "part-1.parquet", replace(rows(made(), 5, 6), failures={0: "other"}))
    assert embeddings_sha256(folder) != before


def test_a_shard_without_any_embedding_of_others(tmp_path: Path) -> None:
    kind = pa.list_(pa.float32())
    for number, values in enumerate(([None, None], [[1.0, 2.0], None])):
        ids = [f"{number}/{row}" for row in range(2)]
        content = pa.table({"image_id": ids, "embedding": pa.array(values, kind)})
        pq.write_table(content, tmp_path / f"{number}.parquet", row_group_size=1)
    found = read_embeddings(tmp_path / "1.parquet")
    assert found.vectors.shape == (2, 2) and list(found.failures) == [1]
    with pytest.raises(DatasetError, match="no embeddings in it"):
        read_embeddings(tmp_path / "0.parquet")


def overwrite(number: int, change: Callable[[Embeddings], Embeddings]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder / f"part-{number}.parquet"
        write_embeddings(path, change(read_embeddings(path)))

    return act


def other_model(part: Embeddings) -> Embeddings:
    return replace(part, note={**NOTE, "model": {**NOTE["model"], "sha256": "b" * 64}})  # type: ignore[dict-item]


def renamed(name: str) -> Callable[[Embeddings], Embeddings]:
    def change(part: Embeddings) -> Embeddings:
        assert part.ids is not None
        return replace(part, ids=np.array([name, *part.ids[1:].tolist()]))

    return change


@pytest.mark.parametrize(
    ("harm", "tokens"),
    [
        (overwrite(2, other_model), ("part-2.parquet", "sha256", "part-0.parquet")),
        (overwrite(3, lambda part: replace(part, flip=False)), ("part-3", "flip")),
        (overwrite(3, lambda part: replace(part, note={})), ("part-3", "sha256")),
        (overwrite(3, renamed("ä/2.jpg")), ("ä/2.jpg", "names two images")),
        (overwrite(3, lambda part: rows(part, 0, 2)), ("[5, 1, 4, 2] images", "says [5, 1, 4, 3]")),
        (lambda folder: (folder / "part-1.parquet").unlink(), ("part-1.parquet", "missing")),
        (
            lambda folder: (folder / "z.parquet").write_bytes(b""),
            ("z.parquet", "manifest.json"),
        ),
        (lambda folder: (folder / "part-0.parquet").write_bytes(b"PAR1"), ("part-0.parquet",)),
        (lambda folder: (folder / "manifest.json").write_text("{}"), ("manifest.json",)),
        (
            lambda folder: (folder / "manifest.json").write_text(
                json.dumps({"schema": "facerec.shards/1", "note": {}, "shards": {"../a": 1}})
            ),
            ("manifest.json",),
        ),
    ],
)
def test_what_is_no_whole_set_is_refused(
    folder: Path, harm: Callable[[Path], object], tokens: tuple[str, ...]
) -> None:
    harm(folder)
    with pytest.raises(DatasetError) as found:
        read_embeddings(folder)
    for token in tokens:
        assert token in str(found.value), (token, str(found.value))


def test_sizes_that_differ_and_folders_without_shards(folder: Path) -> None:
    part = read_embeddings(folder / "part-3.parquet")
    write_embeddings(folder / "part-3.parquet", replace(part, vectors=part.vectors[:, :4].copy()))
    with pytest.raises(DatasetError, match="no table of embeddings"):
        read_embeddings(folder / "*.parquet")
    (folder.parent / "empty").mkdir()
    assert not is_embeddings(folder.parent / "empty")
    with pytest.raises(DatasetError):
        read_embeddings(folder.parent / "gone.parquet")


def test_ids_that_are_no_unicode_stay_out_of_parquet(tmp_path: Path) -> None:
    part = renamed("\udcff.jpg")(rows(made(), 0, 2))
    with pytest.raises(DatasetError, match="Unicode"):
        write_embeddings(tmp_path / "e.parquet", part)
    assert not list(tmp_path.iterdir())


def test_all_pairs_takes_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = replace(made(), subjects=np.array([f"p{i // 3}" for i in range(sum(SIZES))]))
    write_embeddings(folder.parent / "one.npz", known)
    figures = []
    table = folder.parent / "people.csv"
    assert known.ids is not None and known.subjects is not None
    lines = [f"{i},{s}" for i, s in zip(known.ids, known.subjects, strict=True)]
    table.write_text("\n".join(["image_id,subject_id", *lines]) + "\n")
    for path in (folder, folder.parent / "one.npz"):
        out = folder.parent / f"{path.stem}.json"
        main(["--embeddings", str(path), "--subjects", str(table), "--json", str(out)])
        figures.append(json.loads(out.read_text()))
    capsys.readouterr()
    shards, single = figures
    assert shards["embeddings"]["sha256"] == embeddings_sha256(folder)
    for key in ("embeddings",):
        shards.pop(key), single.pop(key)
    assert shards == single
