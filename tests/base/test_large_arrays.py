"""Arrays in files are those in memory to the last digit, and so is what is made of them."""

from __future__ import annotations

import mmap
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.toy_embeddings import take

from facerec.base import large_arrays
from facerec.base.errors import FacerecError
from facerec.cosines import coarse, unit_rows
from facerec.cosines.counts import Sample
from facerec.embedding.extraction import Embeddings
from facerec.embedding.file import read_embeddings, write_embeddings
from facerec.galleries import (
    Gallery,
    Space,
    clean_set,
    duplicates,
    find_overlap,
    impostor_tail,
    label_faults,
)
from facerec.verification.scoring import score_all_pairs


@pytest.fixture
def in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Put all arrays from now on into files, in blocks of a few rows."""

    def switch() -> None:
        monkeypatch.setattr(large_arrays, "LIMIT", 0)
        monkeypatch.setattr(large_arrays, "_ROWS", 7)
        monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
        monkeypatch.setattr("tempfile.tempdir", None)  # which is looked up once
        (tmp_path / "scratch").mkdir()

    return switch


def lies_in_a_file(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def face_set(people: int, images: int, seed: int, size: int = 24) -> Embeddings:
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(people, size))  # the same people in every set
    who = generator.permutation(np.repeat(np.arange(people), images))
    vectors = (centres[who] + 0.6 * generator.normal(size=(len(who), size))).astype(np.float32)
    vectors[11] = np.nan
    norms, ids = np.linalg.norm(vectors, axis=1), np.array([f"{seed}/{i}" for i in range(len(who))])
    names = np.array([f"p{person:02d}" for person in who])
    return Embeddings(vectors, norms, False, ids, names, {11: "no face"}, {"flip": False})


def plain(result: Any) -> Any:
    """Return everything that a result holds, as what compares."""
    if isinstance(result, np.ndarray):
        return result.dtype.str, result.shape, result.tobytes()
    if isinstance(result, list | tuple):
        return [plain(part) for part in result]
    if isinstance(result, dict):
        return {name: plain(part) for name, part in result.items()}
    if hasattr(result, "__dict__"):
        return {name: plain(part) for name, part in vars(result).items()}
    return repr(result)


def test_arrays_lie_in_files_without_names(in_files: Callable[[], None], tmp_path: Path) -> None:
    assert not lies_in_a_file(large_arrays.empty((3, 4), np.float32))
    in_files()
    matrix = large_arrays.empty((30, 4), np.float64)
    assert lies_in_a_file(matrix) and type(matrix) is np.ndarray and matrix.flags.writeable
    assert not any((tmp_path / "scratch").iterdir())
    matrix[:] = np.arange(120).reshape(30, 4) / 7
    rows = np.array([29, 3, 3, *range(20)])
    np.testing.assert_array_equal(large_arrays.take(matrix, rows), matrix[rows])
    for laid_out in (matrix, np.asfortranarray(matrix), matrix[:0]):
        narrow = large_arrays.as_type(laid_out, np.float32)
        np.testing.assert_array_equal(narrow, laid_out.astype(np.float32))
        assert narrow.flags.c_contiguous == laid_out.flags.c_contiguous


def test_no_room_is_a_sentence(in_files: Callable[[], None], tmp_path: Path) -> None:
    in_files()
    with pytest.raises(FacerecError, match=r"scratch: .* TMPDIR"):
        large_arrays.empty((1 << 58,), np.uint8)
    (tmp_path / "scratch").rmdir()
    with pytest.raises(FacerecError, match="TMPDIR"):
        large_arrays.empty((9,), np.uint8)


@pytest.mark.parametrize("sizes", [[3, 3, 3], [9, 1, 0, 0, 7, 20, 1], [0] * 20, [1] * 20, []])
def test_blocks_of_groups(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    monkeypatch.setattr(large_arrays, "_ROWS", 7)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    blocks = list(large_arrays.group_blocks(starts))
    assert [group for block in blocks for group in range(*block)] == list(range(len(sizes)))
    for first, last in blocks:
        assert last - first == 1 or (sum(sizes[first:last]) <= 7 and last - first <= 7)


@pytest.mark.parametrize("kind", ["own", "half", "double", "fortran", "compressed", "shards"])
def test_files_are_read_alike(in_files: Callable[[], None], tmp_path: Path, kind: str) -> None:
    wanted, file = face_set(10, 4, 1), tmp_path / "x.npz"
    if kind == "own":
        write_embeddings(file, wanted)
    elif kind == "shards":
        pytest.importorskip("pyarrow")
        file = tmp_path / "shards"
        file.mkdir()
        for number, rows in enumerate((slice(0, 15), slice(15, 40))):
            write_embeddings(file / f"{number}.parquet", take(wanted, rows))
    else:
        dtype = {"half": np.float16, "compressed": np.float32}.get(kind, float)
        vectors = wanted.vectors.astype(dtype)
        vectors = np.asfortranarray(vectors) if kind == "fortran" else vectors
        save = np.savez_compressed if kind == "compressed" else np.savez
        save(file, embeddings=vectors, names=wanted.ids)
    before = read_embeddings(file)
    in_files()
    after = read_embeddings(file)
    assert lies_in_a_file(after.vectors) and not lies_in_a_file(before.vectors)
    assert plain(after) == plain(before)


def all_pairs(first: Embeddings, _: Embeddings) -> Any:
    return score_all_pairs(first.vectors, first.subjects, fpr=("1e-1", "1e-2"), thresholds=(0.3,))


def overlap(first: Embeddings, second: Embeddings) -> Any:
    return find_overlap(first, second).matches.to_dict()


def unnamed_overlap(first: Embeddings, second: Embeddings) -> Any:
    return overlap(replace(first, subjects=None), replace(second, subjects=None))


def cleaning(first: Embeddings, _: Embeddings) -> Any:
    labels = first.subjects.copy()
    labels[:6] = labels[6:12]
    return clean_set(first.vectors, labels, first.ids)


def enrolment(first: Embeddings, second: Embeddings) -> Any:
    gallery = Gallery(Space.of(first))
    gallery.enroll(first)
    gallery.calibrate(second)
    return gallery.templates, gallery.calibration, gallery.search(second.vectors, 3)


@pytest.mark.parametrize("job", [all_pairs, overlap, unnamed_overlap, cleaning, enrolment])
def test_results_are_equal(in_files: Callable[[], None], tmp_path: Path, job: Any) -> None:
    files = []
    for seed, people in ((1, 20), (2, 12)):
        files.append(tmp_path / f"{seed}.npz")
        write_embeddings(files[-1], face_set(people, 6, seed))
    before = plain(job(*map(read_embeddings, files)))
    in_files()
    assert plain(job(*map(read_embeddings, files))) == before


@pytest.mark.integration
@pytest.mark.parametrize("job", [all_pairs, overlap, unnamed_overlap, cleaning, enrolment])
def test_more_images_take_little_more_memory(
    in_files: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: Any
) -> None:
    in_files()
    names = {large_arrays: "_ROWS", unit_rows: "_ROWS", impostor_tail: "_BLOCK"}
    names |= {label_faults: "_TILE", duplicates: "_PAIRS"}
    names |= {Sample: "SIZE", coarse: "_SAMPLE"}
    for module, name in (*names.items(), (impostor_tail, "SAMPLE")):
        monkeypatch.setattr(module, name, 64)
    monkeypatch.setattr(large_arrays, "LIMIT", 1 << 15)
    size, fixed = 512, tmp_path / "fixed.npz"
    write_embeddings(fixed, face_set(10, 6, 9, size))
    peaks = []
    for people in (60, 150):  # more images than a tile has rows
        file = tmp_path / f"{people}.npz"
        write_embeddings(file, face_set(people, 20, 1, size))
        tracemalloc.start()
        job(read_embeddings(file), read_embeddings(fixed))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # In memory it would be one to five times the vectors.
    assert peaks[1] - peaks[0] < 0.5 * 90 * 20 * 4 * size
