"""Templates and searches, against naive loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from helpers.examples import examples
from helpers.toy_packs import toy_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from facerec.base.errors import MetricError
from facerec.cosines import nearest_entries, search_gallery, searches
from facerec.records.images import MemoryImages
from facerec.verification import templates
from facerec.verification.identification import IdentificationResult, identify
from facerec.verification.templates import SearchSet, TemplateBench, template_vectors

# Vectors of templates.


def make_bench(
    image: Sequence[int],
    template: Sequence[int],
    media: Sequence[int],
    *,
    images: int,
    count: int,
    detector: NDArray[np.float32] | None = None,
) -> TemplateBench:
    names = [str(i) for i in range(images)]
    return TemplateBench(
        name="toy",
        images=MemoryImages("toy", names, [b""] * images),
        pairs=toy_pairs(np.zeros(0, bool)),
        image_rows=np.array(image, np.int64),
        template_rows=np.array(template, np.int64),
        media_rows=np.array(media, np.int64),
        template_ids=np.arange(count).astype(np.str_),
        detector_scores=detector,
    )


def naive_vectors(
    vectors: NDArray[np.float32], bench: TemplateBench, unit: bool, detector: bool
) -> NDArray[np.float64]:
    result = []
    for template in range(len(bench.template_ids)):
        media: dict[int, list[NDArray[np.float64]]] = {}
        for row in range(len(bench.image_rows)):
            if bench.template_rows[row] != template:
                continue
            vector = vectors[bench.image_rows[row]].astype(np.float64)
            if not np.isfinite(vector).all() or not vector.any():
                continue
            if unit:
                vector = vector / np.linalg.norm(vector)
            if detector:
                vector = vector * bench.detector_scores[bench.image_rows[row]]
            media.setdefault(int(bench.media_rows[row]), []).append(vector)
        missing = np.full(vectors.shape[1], np.nan)
        means = [np.mean(found, axis=0) for found in media.values()]
        result.append(np.sum(means, axis=0) if means else missing)
    return np.array(result)


@pytest.mark.parametrize("columns", [2, 64])
@pytest.mark.parametrize("detector", [False, True])
@pytest.mark.parametrize("weighting", ["raw", "unit"])
def test_vectors_as_in_naive_loops(
    monkeypatch: pytest.MonkeyPatch, weighting: Literal["raw", "unit"], detector: bool, columns: int
) -> None:
    monkeypatch.setattr(templates, "_COLUMNS", columns)
    rng = np.random.default_rng(3)
    images, count, length = 60, 12, 150
    vectors = (rng.normal(size=(images, 5)) * rng.uniform(1, 30, (images, 1))).astype(np.float32)
    vectors[[3, 17]] = np.nan
    vectors[8, 2] = np.inf
    vectors[21] = 0
    bench = make_bench(
        rng.integers(0, images, length).tolist(),
        rng.integers(0, count - 2, length).tolist(),
        rng.integers(-2, 2, length).tolist(),
        images=images,
        count=count,
        detector=rng.uniform(0.1, 1, images).astype(np.float32) if detector else None,
    )
    found = template_vectors(vectors, bench, weighting)
    expected = naive_vectors(vectors, bench, weighting == "unit", detector)
    assert found.vectors.dtype == np.float32
    assert np.isnan(found.vectors).any(axis=1).tolist() == [False] * 10 + [True] * 2
    np.testing.assert_allclose(found.vectors, expected, rtol=2e-6, atol=2e-6)
    failed = np.isin(bench.image_rows, [3, 17, 8, 21]).sum()
    assert f"{failed} of {length} images of templates have no usable" in found.notes[0]
    assert "2 of 12 templates have no image left" in found.notes[0]


# Searches.


def naive_scores(
    probes: NDArray[np.floating], gallery: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return the cosine of every probe with every entry, −inf where there is none."""
    scores = np.full((len(probes), len(gallery)), -np.inf)
    for place in np.ndindex(scores.shape):
        probe, entry = probes[place[0]].astype(float), gallery[place[1]].astype(float)
        product = np.linalg.norm(probe) * np.linalg.norm(entry)
        if product > 0:
            scores[place] = round(float(probe @ entry / product) * 2**24) / 2**24
    return scores


# Few small whole numbers give many equal cosines, zero vectors and NaN among them.
ENTRIES = st.sampled_from([-1.0, 0.0, 1.0, 2.0]) | st.just(np.nan)


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), st.integers(0, 12), st.integers(1, 12), st.integers(1, 5))
def test_search_as_by_brute_force(data: st.DataObject, size: int, others: int, tile: int) -> None:
    def draw(rows: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        vectors = arrays.arrays(np.float32, (rows, 2), elements=ENTRIES)
        subjects = arrays.arrays(np.int64, rows, elements=st.integers(-2, 4))
        return data.draw(vectors), data.draw(subjects)

    probes, mine = draw(size)
    gallery, theirs = draw(others)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, "SHAPE", (tile, tile))
        found = search_gallery(probes, mine, gallery, theirs, others)
        nearest = nearest_entries(probes, mine, gallery, theirs)
    for row, scores in enumerate(naive_scores(probes, gallery)):
        mate = (theirs == mine[row]) & (theirs >= 0)
        best, second = [*sorted(scores[~mate], reverse=True), -np.inf, -np.inf][:2]
        own = max(scores[mate], default=np.nan)
        rank = 1 + np.count_nonzero(scores[~mate] >= own) if mate.any() else 0
        line = found.best_other[row], found.mate[row], found.rank[row]
        np.testing.assert_array_equal(line, (best, own, rank))
        assert nearest.scores[row].tolist() == [best, second]
        assert nearest.mate[row] == max(scores[mate], default=-np.inf)
        entry = nearest.entries[row, 0]
        assert entry == -1 if best == -np.inf else not mate[entry] and scores[entry] == best


def by_key(result: IdentificationResult) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = result.to_json()["rows"]
    return {
        (row["gallery"], row["figure"], row["target"]): {
            **row,
            "value": -np.inf if row["value"] == "-inf" else row["value"],
        }
        for row in rows
    }


def identification_bench(
    probe_subjects: NDArray[np.int64], gallery_subjects: Sequence[NDArray[np.int64]]
) -> TemplateBench:
    """Templates are the probes, then the galleries one after the other; an image each."""
    ends = np.cumsum([len(probe_subjects), *map(len, gallery_subjects)])
    places = np.arange(ends[-1])
    galleries = [
        SearchSet(f"G{i}", places[ends[i - 1] : ends[i]], subjects)
        for i, subjects in enumerate(gallery_subjects, 1)
    ]
    bench = make_bench(places, places, places, images=places.size, count=places.size)
    probes = SearchSet("probe", places[: ends[0]], probe_subjects)
    return replace(bench, probes=probes, galleries=tuple(galleries))


def test_figures_are_averaged_over_the_galleries() -> None:
    rng = np.random.default_rng(8)
    persons = rng.normal(size=(60, 16))
    probe_subjects = rng.integers(0, 60, 400)
    galleries = [np.arange(40), np.arange(40, 55)]  # five persons are in neither
    bench = identification_bench(probe_subjects, galleries)
    subjects = np.concatenate([probe_subjects, *galleries])
    vectors = (persons[subjects] + rng.normal(size=(len(subjects), 16))).astype(np.float32)
    vectors[[0, 7, 410]] = np.nan
    result = identify(vectors, bench)

    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    tpir, rates = [], []
    start = 400
    for gallery in galleries:
        scores = units[:400] @ units[start : start + len(gallery)].T
        start += len(gallery)
        scores[np.isnan(scores)] = -np.inf
        mated = np.isin(probe_subjects, gallery)
        places = probe_subjects[mated] - gallery[0]
        mates = scores[mated, places]
        others = scores[mated].copy()
        others[np.arange(len(others)), places] = -np.inf
        rank = 1 + (others >= mates[:, None]).sum(axis=1)
        rank[np.isneginf(mates)] = len(gallery)
        alarms = np.sort(scores[~mated].max(axis=1))[::-1]
        limit = alarms[len(alarms) // 10]  # one alarm more would be too many
        tpir.append(float(np.mean((rank == 1) & (mates > limit))))
        rates.append([float(np.mean(rank <= r)) for r in (1, 5)])
    rows = by_key(result)
    for name, best, of_ranks in zip(("G1", "G2"), tpir, rates, strict=True):
        assert rows[name, "TPIR@FPIR", "1e-1"]["value"] == pytest.approx(best)
        assert [rows[name, "rank", rank]["value"] for rank in "15"] == of_ranks
        assert rows[name, "TPIR@FPIR", "1e-3"]["value"] is None
        for target in ("1e-1", "1e-2"):
            point, realised = (
                rows[name, figure, target] for figure in ("TPIR@FPIR", "realised FPIR")
            )
            for row in (point, realised):
                assert row["low"] <= row["value"] < row["high"]
                assert row["value"] == row["numerator"] / row["denominator"]
            assert realised["value"] <= float(target)
            assert point["denominator"] + realised["denominator"] == 400
    assert rows["mean", "TPIR@FPIR", "1e-1"]["value"] == pytest.approx(np.mean(tpir))
    means = [rows["mean", "rank", rank] for rank in "15"]
    assert [mean["value"] for mean in means] == pytest.approx(np.mean(rates, axis=0))
    assert all(0 <= mean["low"] < mean["value"] < mean["high"] <= 1 for mean in means)
    assert ("mean", "TPIR@FPIR", "1e-3") not in rows
    assert "gallery G1: 2 of 400 probes and 1 of 40 entries have no vector" in result.notes[0]


def test_a_bench_without_mated_searches() -> None:
    bench = identification_bench(np.array([0, 1]), [np.array([2, 3])])
    with pytest.raises(MetricError, match="mated"):
        identify(np.ones((4, 3), np.float32), bench)
