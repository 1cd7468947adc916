"""What likelihood ratios are worth: on the people of the calibration, on others, and by group."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from measures_intervals import COUNTS, POPULATIONS, Population, extremes
from numpy.typing import NDArray
from rows import Row

from facerec.base.errors import MetricError
from facerec.embedding.extraction import Embeddings, embed_images
from facerec.embedding.loading import load_model
from facerec.records.training_set import Data, open_images
from facerec.statistics.calibration import CENTRES, LikelihoodRatio, ScoreCounts, cllr
from facerec.statistics.calibration_checks import likeness, shift, shift_p_value
from facerec.verification.bench import pack_bench
from facerec.verification.calibration import (
    calibrate_model,
    count_scores,
    cross_validate,
    draw_images,
    judge,
    least_cllr,
)
from facerec.verification.evaluation import evaluate_embeddings

Vectors = tuple[NDArray[np.float32], NDArray[np.str_]]


def calibration_carries() -> Iterator[Row]:
    """Calibrate the teacher on LFW and on other people, and judge both on LFW."""
    folder = os.environ.get("FACEREC_TEST_DATA")
    if not folder:
        yield Row("calibration on real faces", None, "×", remark="FACEREC_TEST_DATA is not set")
        return
    root = Path(folder)
    bench = pack_bench(root / "lfw" / "lfw.bin")
    model = load_model(root / "teacher" / "MobileFaceNet.onnx", device="cpu")
    lfw = embed_images(model, bench.images, flip=True)
    assert bench.pairs.subjects is not None
    names = bench.pairs.subjects.astype(np.str_)
    rows = draw_images(names)
    found, least = cross_validate(lfw.vectors[rows], names[rows])
    pairs = f"least {least:.4f} bits, all pairs of {len(np.unique(names)):,} people"
    yield Row("Cllr over least, LFW on LFW by ten folds", found / least, "×", 1.05, remark=pairs)

    sets = [_embed_records(model, root / name) for name in ("cfp_train", "celeba_train")]
    vectors, others = (np.concatenate(parts) for parts in zip(*sets, strict=True))
    embeddings = Embeddings(
        vectors, np.linalg.norm(vectors, axis=1), True, note={"model": model.describe()}
    )
    away = calibrate_model(embeddings, others, "cfp_train and celeba_train").score_calibration
    assert away is not None
    counts = count_scores(lfw.vectors[rows], names[rows])
    cost = cllr(away.ratio.log_ratio(CENTRES), *counts.totals) / least_cllr(*counts.totals)
    result = evaluate_embeddings(lfw, bench)
    said = judge(result, away, Path("away.json")).notes[-1]
    yield Row(
        "of ratios from cfp_train and celeba_train on LFW: Cllr over least, where that is not said",
        0.0 if "do not hold" in said else cost,
        "×",
        1.3,
        remark=f"{cost:.2f} on all pairs; View 2: {said}",
    )
    half = np.isin(names, np.random.default_rng(0).permutation(np.unique(names))[::2])
    home = LikelihoodRatio.fit(count_scores(lfw.vectors[half], names[half]))
    probes = _first_images(lfw.vectors[~half], names[~half])
    for which, ratio, holds in (("half of LFW", home, True), ("others", away.ratio, False)):
        told = likeness(ratio, _best_two(probes[500:1000], probes[:500]), 500)
        assert told is not None
        yield Row(
            f"by the runner-up of 500 unlabelled LFW probes, ratios of {which} are said to hold",
            {True: 1.0, None: 0.5, False: 0.0}[told.alike],
            "1 yes, 0 no",
            0.9 if holds else 0.1,
            "higher" if holds else "lower",
            str(told),
        )


def _embed_records(model, folder: Path) -> Vectors:  # type: ignore[no-untyped-def]
    images = open_images(folder, Data(folder))
    names = np.char.add(f"{folder.name} ", images.label_names())
    return embed_images(model, images, flip=True).vectors, names


def _first_images(vectors: NDArray[np.float32], names: NDArray[np.str_]) -> NDArray[np.float32]:
    chosen = vectors[np.unique(names, return_index=True)[1]]
    return chosen / np.linalg.norm(chosen, axis=1, keepdims=True)


def _best_two(probes: NDArray[np.float32], gallery: NDArray[np.float32]) -> NDArray[np.float32]:
    return -np.sort(-(probes @ gallery.T), axis=1)[:, :2]


def calibration_coverage(repetitions: int = 100, people: int = 60) -> Iterator[Row]:
    """Count how often the interval of a likelihood ratio holds the true one.

    Args:
        repetitions: sets of each design.
        people: their number.
    """
    covered: dict[str, float] = {}
    beyond = numbers = 0
    for name, population in POPULATIONS.items():
        scores, truth = _true_ratios(population)
        for label, count in COUNTS.items():
            generator = np.random.default_rng(3)
            held, inside = np.zeros(len(scores)), np.zeros(len(scores))
            for _ in range(repetitions):
                images = np.minimum(count(generator, people), 5)
                ratio = _fit(*_draw(population, generator, images))
                if ratio is None:
                    continue
                for place, (score, true) in enumerate(zip(scores, truth, strict=True)):
                    limits = ratio.interval(float(score))
                    if ratio.low <= score <= ratio.high:
                        inside[place] += 1
                        held[place] += limits.low <= true <= limits.high
                    else:
                        beyond += 1
                        numbers += bool(np.isfinite([limits.low, limits.high]).all())
            for place, score in enumerate(scores):
                if inside[place] >= repetitions / 2:
                    design = f"{name}, {label}, cosine {score:.2f}"
                    covered[design] = 100 * held[place] / inside[place]
    what = f"likelihood ratio, {people} people"
    yield from extremes(what, covered, (92.0, 98.0), repetitions)
    yield Row(
        "scores beyond the data with two limits",
        float(numbers),
        "scores",
        1.0,
        remark=f"of {beyond:,}",
    )


def calibration_groups(repetitions: int = 150, people: int = 40) -> Iterator[Row]:
    """Count how often two groups of equal people are said to differ.

    Args:
        repetitions: pairs of groups of each design.
        people: of each group.
    """
    declared: dict[str, float] = {}
    for name, population in POPULATIONS.items():
        for label, count in COUNTS.items():
            generator, times, made = np.random.default_rng(5), 0, 0
            for _ in range(repetitions):
                images = np.minimum(count(generator, 2 * people), 5)
                vectors, who = _draw(population, generator, images)
                ratio = _fit(vectors, who)
                if ratio is None:
                    continue
                values = ratio.told()
                one = np.isin(who, generator.permutation(2 * people)[:people])
                shifts = [shift(values, _count(vectors[side], who[side])) for side in (one, ~one)]
                if None in shifts:
                    continue
                times, made = times + (shift_p_value(*shifts) < 0.05), made + 1
            declared[f"{name}, {label}"] = 100 * times / max(made, 1)
    mean = float(np.mean(list(declared.values())))
    worst = max(declared, key=lambda design: declared[design])
    yield Row(
        f"equal groups of {people} people said to differ: mean of {len(declared)} designs",
        mean,
        "%",
        6.0,
        remark=f"most, {declared[worst]:.1f} %: {worst}; Monte-Carlo error "
        f"{100 * (0.05 * 0.95 / repetitions) ** 0.5:.1f} points each",
    )


def _draw(
    population: Population, generator: np.random.Generator, images: NDArray[np.integer]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    who = np.repeat(np.arange(images.size), images)
    return population.images(generator, population.people(generator, images.size), who), who


def _count(vectors: NDArray[np.float32], who: NDArray[np.int64]) -> ScoreCounts:
    who = np.unique(who, return_inverse=True)[1]
    first, second = np.triu_indices(who.size, 1)
    scores = np.einsum("nd,nd->n", vectors[first], vectors[second])
    return ScoreCounts.of_pairs(scores, who[first], who[second])


def _fit(vectors: NDArray[np.float32], who: NDArray[np.int64]) -> LikelihoodRatio | None:
    try:
        return LikelihoodRatio.fit(_count(vectors, who))
    except MetricError:
        return None


@cache
def _true_ratios(population: Population, pairs: int = 300_000) -> tuple[NDArray, NDArray]:
    """Return scores, and the logarithm of the ratio of both densities there, by narrow windows."""
    generator = np.random.default_rng(7)
    kinds: Mapping[bool, list[NDArray]] = {True: [], False: []}
    for _ in range(10):
        people = population.people(generator, pairs)
        one, other = (population.images(generator, people, np.arange(pairs)) for _ in range(2))
        kinds[True].append(np.einsum("nd,nd->n", one, other))
        kinds[False] += [np.einsum("nd,nd->n", one, np.roll(other, k, 0)) for k in (1, 7, 100)]
    mated, others = (np.concatenate(kinds[kind]) for kind in (True, False))
    scores = np.append(
        np.quantile(others, [0.7, 0.9, 0.99, 0.999]), np.quantile(mated, [0.02, 0.1, 0.5, 0.9])
    )
    shares = [[np.mean(np.abs(kind - at) < 0.01) for at in scores] for kind in (mated, others)]
    with np.errstate(divide="ignore"):
        return scores, np.log(shares[0]) - np.log(shares[1])
