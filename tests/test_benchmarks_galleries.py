"""The benchmarks of galleries at tiny size."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from facerec.embedding import Embeddings, write_embeddings

pytestmark = pytest.mark.integration


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import measures_galleries

    return measures_galleries


def test_search(measures: ModuleType) -> None:
    query, memory = measures.gallery_search(people=3000, dimensions=32, batches=2)
    assert query.bar == 15 and memory.bar == 2.5 and 0 < memory.value < 2.5 and query.value > 0


def test_memory(measures: ModuleType) -> None:
    pytest.importorskip("pyarrow")
    rows = list(measures.gallery_memory(images=480, dimensions=16, shards=4))
    assert [row.unit for row in rows] == ["MB"] * 5 and all("480 images" in r.remark for r in rows)


def test_prediction(measures: ModuleType, tmp_path: Path) -> None:
    rows = list(measures.gallery_threshold(people=3000, probes=400, repeats=1, fresh=200))
    assert len(rows) == 2 * len(measures.crowds()) and all(row.bar == 20 for row in rows)
    assert rows[0].value < 60  # at this size
    vectors = np.random.default_rng(0).standard_normal((900, 32)).astype(np.float32)
    names = np.char.zfill(np.arange(900).astype(np.str_), 3)
    norms = np.linalg.norm(vectors, axis=1)
    file = tmp_path / "lfw.npz"
    write_embeddings(file, Embeddings(vectors, norms, False, ids=names, subjects=names))
    rows = list(measures.lfw_threshold(embeddings=file, repeats=2))
    assert [row.bar for row in rows] == [20] * 4 and "900 images" in rows[0].measure
    # With one image of everybody a tenth of the people is a tenth of the images.
    assert [row.value for row in rows[:2]] == [row.value for row in rows[2:]]
    (missing,) = measures.lfw_threshold(embeddings=tmp_path / "none.npz")
    assert missing.value is None and "facerec embed" in missing.remark


def test_coverage(measures: ModuleType) -> None:
    rows = list(measures.gallery_coverage(repeats=3, truths=3))
    assert len(rows) == 4 and all(0 <= row.value <= 100 for row in rows)


def test_the_fpir_of_a_crowd_is_that_which_is_counted(measures: ModuleType) -> None:
    generator = np.random.default_rng(1)
    for crowd in measures.crowds().values():
        probes = crowd.images(generator, 150)
        highest = probes @ crowd.people(generator, 20_000).T
        threshold = float(np.quantile(highest, 0.999))
        # The share of pairs is the FPIR of galleries of one person.
        counted = float((highest >= threshold).mean())
        assert crowd.fpir(probes, threshold, 1) == pytest.approx(counted, rel=0.1)
