"""Results of a comparison that was never run: small arrays from a seeded generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from facerec.comparison.finals import MODELS, RECALLS, VIEWS, FinalRun
from facerec.comparison.fit import Fit
from facerec.comparison.harness import ArmResult, Results
from facerec.comparison.losses import MarginHead
from facerec.comparison.protocol import CLUSTER_METRICS, METRICS, Arm, Comparison, Protocol, Range
from facerec.comparison.search import Trial
from facerec.comparison.trunks import Trunk
from facerec.heads import SEC, ArcFace, CosFace, SphereFace
from facerec.training import Adam

FOLDS = 4
HEADS = {
    "SphereFace": (SphereFace(scale=32.0), Range("loss.margin.margin", 1.0, 2.0)),
    "CosFace": (CosFace(scale=32.0), Range("loss.margin.margin", 0.0, 0.6)),
    "ArcFace": (ArcFace(scale=32.0, margin=0.3), Range("loss.margin.margin", 0.0, 0.8)),
}
TRUNK = Trunk(name="small_cnn", embedding_size=64)
PROTOCOL = Protocol(TRUNK, optimizer=Adam(lr=1e-3), steps_per_epoch=30, epochs=12, patience=4)
WEIGHT = Range("regularizer.weight", 0.0, 10.0, "log_with_zero")


def toy_arms(heads: Sequence[str] = ("SphereFace", "CosFace", "ArcFace")) -> tuple[Arm, ...]:
    """Return each head without and with a penalty."""
    arms = []
    for name in heads:
        margin, limits = HEADS[name]
        arms.append(Arm(name, MarginHead(margin), search=(limits,)))
        with_sec = {"regularizer": SEC(weight=0.1), "against": name, "search": (limits, WEIGHT)}
        arms.append(Arm(f"{name}+SEC", MarginHead(margin), **with_sec))
    return tuple(arms)


def toy_results(
    arms: tuple[Arm, ...] | None = None,
    *,
    gains: Mapping[str, float] | None = None,
    repetitions: int = 6,
    trials: int = 20,
    classes: int = 24,
    per_class: int = 8,
    epochs: int = 12,
    seed: int = 0,
    **changed: Any,
) -> Results:
    """Draw what a harness would have found.

    Args:
        arms: contestants; three margin heads with and without a penalty by default.
        gains: what an arm has more than the others, as a share; 0 by default.
        repetitions: seeds.
        trials: of every arm.
        classes: test classes.
        per_class: queries of each.
        epochs: at most so many.
        seed: of everything.
        changed: other fields of the comparison.
    """
    arms = toy_arms() if arms is None else arms
    question = "Does a constraint on norms help margin heads under equal conditions?"
    fields = {"name": "toy", "question": question, "protocol": PROTOCOL, **changed}
    comparison = Comparison(arms=arms, trials=trials, repetitions=repetitions, seed=seed, **fields)
    labels = np.repeat(np.arange(classes), per_class)
    difficulty = np.random.default_rng([seed, 1]).normal(0, 0.12, (classes, 1))
    found = []
    for place, arm in enumerate(arms):
        generator = np.random.default_rng([seed, 2, place])
        gain = (gains or {}).get(arm.name, 0.0)
        quality = np.clip(difficulty + 0.45 + gain, 0.05, 0.95)
        runs = {
            k: toy_run(np.random.default_rng([seed, 3, place, k]), labels, quality, arm, epochs)
            for k in range(repetitions)
        }
        done = tuple(_trial(generator, arm, number, 0.45 + gain) for number in range(trials))
        found.append(ArmResult(arm, done, runs, ()))
    untrained = {
        k: toy_run(np.random.default_rng([seed, 4, k]), labels, difficulty + 0.2, None, 0)
        for k in range(repetitions)
    }
    return Results(comparison, _manifest(comparison), tuple(found), untrained)


def toy_run(
    generator: np.random.Generator,
    labels: NDArray[np.int64],
    quality: NDArray[np.float64],
    arm: Arm | None,
    epochs: int,
) -> FinalRun:
    """Draw one seed: figures of queries around the quality of their class ``(C, 1)``."""
    of_seed = generator.normal(0, 0.006)
    scores: dict[tuple[str, str], NDArray[np.float64]] = {}
    for view in VIEWS:
        lower = 0.0 if view == "concatenated" else 0.04
        noise = generator.normal(0, 0.1, (len(quality), len(labels) // len(quality)))
        shares = np.clip(quality + of_seed - lower + noise, 0, 1).ravel()
        for name, power in zip(METRICS, (1.0, 0.8, 0.4), strict=True):
            scores[view, name] = shares**power
        scores[view, "precision_at_1"] = (shares > 0.35).astype(np.float64)
        for k in RECALLS:
            scores[view, f"recall@{k}"] = (shares > 0.35 / k).astype(np.float64)
    constrained = arm is not None and arm.regularizer is not None
    spread = (0.01 if constrained else 0.06) * generator.uniform(0.8, 1.2, FOLDS)
    scores[MODELS, "norm_mean"] = generator.uniform(9, 11, FOLDS)
    scores[MODELS, "norm_cv2"] = spread
    fits = ()
    if arm is not None:
        fits = tuple(toy_fit(generator, 0.45, epochs, constrained) for _ in range(FOLDS))
    for view in VIEWS:
        for name, other in zip(CLUSTER_METRICS, METRICS, strict=False):
            scores[view, name] = np.array(scores[view, other].mean())
    return FinalRun(labels, scores, fits, dropped=2)


def toy_fit(generator: np.random.Generator, final: float, epochs: int, quick: bool) -> Fit:
    """Draw a learning curve that ends near a score."""
    last = int(generator.integers(max(1, epochs - 3), epochs + 1))
    rate = 0.7 if quick else 0.4
    scores = final * (1 - np.exp(-rate * (np.arange(last + 1) + 0.5)))
    scores = np.clip(scores + generator.normal(0, 0.008, last + 1), 0.01, 1)
    best = int(np.argmax(scores))
    seconds = round(0.4 * last, 3)
    return Fit(float(scores[best]), best, tuple(scores.tolist()), seconds)


def failed(result: ArmResult) -> ArmResult:
    """Return an arm whose every trial diverged."""
    why = "the loss is nan in epoch 1"
    trials = tuple(
        replace(trial, score=None, failure=f"fold 0: {why}", folds=(None,), seconds=0.5)
        for trial in result.trials
    )
    return replace(result, trials=trials, runs={})


def with_arm(results: Results, name: str, **changed: Any) -> Results:
    """Return the results with fields of one arm's result changed."""
    arms = tuple(
        replace(each, **changed) if each.arm.name == name else each for each in results.arms
    )
    return replace(results, arms=arms)


def _trial(generator: np.random.Generator, arm: Arm, number: int, level: float) -> Trial:
    setting = {r.field: float(generator.uniform(r.low, r.high)) for r in arm.ranges}
    if number == 7:
        why = "fold 1: the loss is inf in epoch 2"
        return Trial(number, setting, None, (0.3, None), 2.0, why)
    reached = level * generator.beta(8, 2)
    fits = [toy_fit(generator, reached, 3, False) for _ in range(FOLDS)]
    folds, seconds = tuple(fit.score for fit in fits), sum(fit.seconds for fit in fits)
    return Trial(number, setting, float(np.mean(folds)), folds, seconds, None)


def _manifest(comparison: Comparison) -> dict[str, Any]:
    data = {"images": 1536, "classes": 96, "labels_sha256": "d" * 64}
    return {
        "comparison_sha256": "c" * 64,
        "data": {**data, "files": {"train.rec": {"bytes": 1234567, "sha256": "e" * 64}}},
        "notes": ["2 classes with one image are left out"],
        "seeds": {"trials": 17, "final_runs": [100 + k for k in range(comparison.repetitions)]},
        "command": "compare.py recipes/compare/toy.py",
        "device": "cpu",
        "versions": {"facerec": "0.1.0", "python": "3.11", "torch": "2.13.0"},
    }
