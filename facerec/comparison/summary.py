"""A comparison as tables: of figures, of arms, of runs and of trials.

``figures`` has the rows of `facerec.report.tidy`: the mean over seeds of each figure of each arm,
and where the arm is compared with another the paired change, arm − base, with its test. The page,
the files, the terminal and LaTeX take all numbers from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from facerec.base.recipe import differences, is_within, to_dict
from facerec.comparison.finals import MODELS, VIEWS, FinalRun
from facerec.comparison.fit import SELECTED_BY, Fit
from facerec.comparison.harness import ArmResult, Results
from facerec.comparison.protocol import CLUSTER_METRICS, UNTRAINED, Arm, Comparison
from facerec.comparison.significance import (
    SeedMean,
    adjust,
    compare_paired,
    least_p,
    level_of,
    mean_over_seeds,
    rank_correlation,
    smallest_difference,
)
from facerec.report.estimate import Estimate, Unit
from facerec.report.tidy import Kind, Row, figure_row, records, tidy
from facerec.report.words import counted

HEADLINE = ("concatenated", SELECTED_BY)
"""View and metric that the comparison is decided by."""
NORM_SPREAD = (MODELS, "norm_cv2")
"""Variance of the norms of raw test embeddings over their squared mean."""
SHARES = (0.9, 0.95, 0.99)
"""Of the base's final validation score, at which speeds are compared."""

Claim = Literal["loss", "penalty", "protocol", "search"]
"""What the arms of a pair differ in first: other losses may come with other batches, but other
penalties come with the same loss. ``search`` is the rest: other ranges, or nothing. All pairs of a
claim answer one question together."""

_UNITS: dict[str, Unit] = {"norm_mean": "norm", "norm_cv2": "number"}
"""Of figures that are no shares."""
Key = tuple[str, str]
"""View and metric."""
ArmKey = tuple[str, str, str]
"""Arm, view and metric."""


@dataclass(frozen=True, eq=False)
class Summary:
    """A comparison in figures."""

    results: Results
    figures: pd.DataFrame
    """Rows by arm, view, figure and kind, whose denominator counts seeds and whose interval is that
    over seeds and test classes. Behind their columns stand ``against``, the limits over seeds and
    over classes alone, and of a change the ``p`` of its test and ``p_holm``, adjusted for the
    claim. Views are ``concatenated`` and ``separated`` for retrieval on the test classes;
    ``models`` for norms of test embeddings; ``validation`` for ratios of steps; ``trials`` for the
    difference between trials of the same settings."""
    arms: pd.DataFrame
    """By arm: its best setting, its costs, and where it is compared with another the claim, what
    makes the pair unfair, and what the test of the headline concludes."""
    runs: pd.DataFrame
    """A row for each seed of each arm."""
    trials: pd.DataFrame
    gain: Estimate
    """Rank correlation of the gain with the reduction of norm variance; families resampled."""

    @property
    def comparison(self) -> Comparison:
        """What was compared."""
        return self.results.comparison

    @property
    def pairs(self) -> list[Any]:
        """The rows of ``arms`` that are compared with another."""
        return [arm for arm in self.arms.itertuples() if isinstance(arm.against, str)]

    @cached_property
    def _rows(self) -> dict[tuple[str, ...], Row]:
        keys = ("arm", "view", "figure", "kind")
        return {tuple(row[key] for key in keys): row for row in records(self.figures)}

    def row(self, arm: str, view: str, metric: str, *, change: bool = False) -> Any:
        """Return the row of a figure, or of how it differs from the base; None without one."""
        return self._rows.get((arm, view, metric, "change" if change else "value"))

    def headline(self, arm: str, *, change: bool = False) -> Any:
        """Return the figure of an arm that the comparison is decided by."""
        return self.row(arm, *HEADLINE, change=change)

    def declared(self, arm: str, view: str, metric: str) -> bool:
        """Tell whether the adjusted test declares a difference: the only thing set in bold."""
        row = self.row(arm, view, metric, change=True)
        known = row is not None and row["p_holm"] is not None
        return known and bool(row["p_holm"] <= level_of(self.comparison.confidence))


def summarize(results: Results) -> Summary:
    """Compute all figures of a comparison."""
    comparison = results.comparison
    by_name = {each.arm.name: each for each in results.arms}
    claims: dict[str, list[str]] = {}
    rows: list[Row] = []
    compared: dict[ArmKey, SeedMean] = {}
    for name, runs in _runs_by_name(results).items():
        for key in _known(comparison, runs):
            values = _values(list(runs.values()), *key)
            mean = mean_over_seeds(*values, confidence=comparison.confidence)
            rows.append(_row((name, *key), mean))
    for name, each in by_name.items():
        if each.arm.against is not None:
            claims.setdefault(claim_of(comparison, each.arm), []).append(name)
            base = by_name[each.arm.against]
            rows += _speeds(comparison, each, base)
            for key, both in _paired(comparison, each, base):
                compared[(name, *key)] = compare_paired(*both, confidence=comparison.confidence)
    for key in dict.fromkeys((view, metric) for _, view, metric in compared):
        for names in claims.values():
            family = adjust([compared.get((name, *key)) for name in names])
            adjusted = zip(names, family, strict=True)
            compared |= {(name, *key): value for name, value in adjusted if value}
    for arm_key, value in compared.items():
        against = str(by_name[arm_key[0]].arm.against)
        rows.append(_row(arm_key, value, "change", against, p=value.p, p_holm=value.p_holm))
    tests = {name: float for name in ("p", "p_holm") if compared}
    arms = pd.DataFrame(
        _arm(comparison, each, by_name, claims, compared.get((each.arm.name, *HEADLINE)))
        for each in results.arms
    ).set_index("arm")
    floats = {"validation": float, **({"smallest": float} if claims else {})}
    return Summary(
        results,
        tidy(rows).astype(tests),
        arms.astype(floats),
        pd.DataFrame(_runs(results)),
        pd.DataFrame(_trials(results)),
        _gain(comparison, compared),
    )


def claim_of(comparison: Comparison, arm: Arm) -> Claim:
    """Return what an arm and its base differ in first."""
    base = comparison.arm(str(arm.against))
    if arm.loss != base.loss:
        return "loss"
    if arm.regularizer != base.regularizer:
        return "penalty"
    same = comparison.protocol_of(arm) == comparison.protocol_of(base)
    return "search" if same else "protocol"


def too_few_seeds(comparison: Comparison) -> str:
    """Return why some claim cannot be decided, whatever is trained; empty where all can.

    Holm's adjustment multiplies the lowest of the p of m pairs by m: nothing can be declared where
    m times the lowest p that the seeds can give exceeds 1 − confidence.
    """
    claims = [claim_of(comparison, arm) for arm in comparison.arms if arm.against]
    level, seeds = level_of(comparison.confidence), comparison.repetitions
    most, claim = max(((claims.count(claim), claim) for claim in claims), default=(0, ""))
    if most * least_p(seeds) <= level:
        return ""
    enough = next(n for n in count(seeds) if most * least_p(n) <= level)
    return (
        f"{counted(seeds, 'seed')} cannot decide {counted(most, 'pair')} with another {claim}: p "
        f"after Holm's adjustment stays above {level:g}, whatever the runs give; it takes "
        f"--repetitions {enough} at least"
    )


# ---------------------------------------------------------------- figures


def _runs_by_name(results: Results) -> dict[str, Mapping[int, FinalRun]]:
    return {UNTRAINED: results.untrained, **{each.arm.name: each.runs for each in results.arms}}


def _known(comparison: Comparison, runs: Mapping[int, FinalRun]) -> list[Key]:
    """Return view and metric of what these runs have."""
    keys: list[Key] = [(view, metric) for view in VIEWS for metric in comparison.figures]
    return [*keys, (MODELS, "norm_mean"), NORM_SPREAD] if runs else []


def _values(
    runs: Sequence[FinalRun], view: str, metric: str
) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
    """Return a figure of each seed and query with the queries' classes, or of each seed alone."""
    if view == MODELS or metric in CLUSTER_METRICS:
        return np.array([run.mean(view, metric) for run in runs]), None
    return np.stack([run.scores[view, metric] for run in runs]), runs[0].labels


def _row(
    key: ArmKey, mean: SeedMean, kind: Kind | None = None, against: str = "", **more: Any
) -> Row:
    """Return a row with both intervals that the joint one is made of."""
    arm, view, metric = key
    found = replace(mean, unit=_UNITS.get(metric, "share"))
    row = figure_row(metric, found, kind=kind, arm=arm, view=view)
    row["against"] = against
    for over, interval in (("seeds", mean.over_seeds), ("classes", mean.over_classes)):
        row[f"{over}_low"] = interval and interval.low
        row[f"{over}_high"] = interval and interval.high
    return {**row, **more}


# ---------------------------------------------------------------- pairs


def _paired(
    comparison: Comparison, arm: ArmResult, base: ArmResult
) -> Iterator[tuple[Key, tuple[Any, Any, Any]]]:
    """Yield the values of both arms, of the seeds that were scored in both, with the classes."""
    seeds = sorted(arm.runs.keys() & base.runs.keys())
    for key in _known(comparison, arm.runs) if seeds else ():
        first, labels = _values([arm.runs[seed] for seed in seeds], *key)
        yield key, (first, _values([base.runs[seed] for seed in seeds], *key)[0], labels)
    if comparison.paired_with(arm.arm) == base.arm:
        of_base = {trial.number: trial.score for trial in base.trials}
        both = [(trial.score, of_base.get(trial.number)) for trial in arm.trials]
        if known := [pair for pair in both if None not in pair]:
            yield ("trials", SELECTED_BY), (*np.array(known, np.float64).T, None)


def _speeds(comparison: Comparison, arm: ArmResult, base: ArmResult) -> Iterator[Row]:
    """Yield medians over seeds of the steps to a share of the base's final score, arm over base."""
    seeds = sorted(arm.runs.keys() & base.runs.keys())
    for share in SHARES if seeds else ():
        ratios = []
        for seed in seeds:
            level = share * _kept_scores(base.runs[seed].fits)[-1]
            steps = [
                comparison.protocol_of(each.arm).steps_per_epoch
                * _epochs_to(level, each.runs[seed].fits)
                for each in (arm, base)
            ]
            ratios.append(steps[0] / steps[1])
        # In logarithms, so that 2 and ½ are treated alike.
        median = float(np.exp(np.median(np.log(ratios))))
        never = sum(map(math.isinf, ratios))
        reason = f"{never} of {len(ratios)} runs never came so far" if never else ""
        known = median if median < math.inf else None
        found = Estimate(known, total=len(ratios), remark=reason, unit="times")
        keys = {"arm": arm.arm.name, "view": "validation", "against": str(arm.arm.against)}
        yield figure_row(f"steps_to_{100 * share:g}%", found, kind="value", **keys)


def _kept_scores(fits: Sequence[Fit]) -> NDArray[np.float64]:
    """Return validation scores of the weights kept after each epoch, means over folds.

    Training that stopped early keeps its score, so that later epochs show no selection of runs.
    """
    curves = [np.maximum.accumulate(fit.curve) for fit in fits]
    length = max(map(len, curves))
    return np.mean([np.pad(c, (0, length - len(c)), "edge") for c in curves], axis=0)[1:]


def _epochs_to(level: float, fits: Sequence[Fit]) -> float:
    reached = np.flatnonzero(_kept_scores(fits) >= level)
    return float(reached[0] + 1) if reached.size else math.inf


def _fairness(comparison: Comparison, arm: ArmResult, base: ArmResult) -> tuple[str, str]:
    """Return the declared fields that differ, and what takes the mark "fair" away."""
    # No other field differs, see `Comparison.check`.
    different = differences(*(to_dict(comparison.protocol_of(each.arm)) for each in (arm, base)))
    declared = [f for f in comparison.declared if any(is_within(name, (f,)) for name in different)]
    own, other = len(arm.trials), len(base.trials)
    return ", ".join(declared), "" if own == other else f"{own} and {other} trials"


def _gain(comparison: Comparison, compared: Mapping[ArmKey, SeedMean]) -> Estimate:
    def family(name: str) -> str:
        """Return the arm at the end of the chain of those that an arm is compared with."""
        against = comparison.arm(name).against
        return name if against is None else family(against)

    names = [name for name, *key in compared if tuple(key) == HEADLINE]
    if not names:
        return Estimate(None, remark="no pair was scored")
    gains = [compared[(name, *HEADLINE)].value for name in names]
    reductions = [-compared[(name, *NORM_SPREAD)].value for name in names]
    families = list(map(family, names))
    level, seed = comparison.confidence, comparison.seed
    return rank_correlation(gains, reductions, families, confidence=level, seed=seed)


# ---------------------------------------------------------------- arms, runs, trials


def _arm(
    comparison: Comparison,
    result: ArmResult,
    by_name: Mapping[str, ArmResult],
    claims: Mapping[str, Sequence[str]],
    headline: SeedMean | None,
) -> dict[str, Any]:
    arm, best = result.arm, result.best
    row: dict[str, Any] = {
        "arm": arm.name,
        "against": arm.against,
        "missing": _missing(result),
        "failures": "; ".join(result.failures),
        "validation": None if best is None else best.score,
        "setting": None if best is None else dict(best.setting),
        "trials": len(result.trials),
        "failed_trials": sum(trial.score is None for trial in result.trials),
        "trial_seconds": math.fsum(trial.seconds for trial in result.trials),
        "final_seconds": math.fsum(f.seconds for run in result.runs.values() for f in run.fits),
    }
    if arm.against is None:
        return row
    base = by_name[arm.against]
    claim = claim_of(comparison, arm)
    declared, unfair = _fairness(comparison, result, base)
    smallest, conclusion = None, "insufficient data"
    if headline is not None and headline.p_holm is not None:
        level = level_of(comparison.confidence)
        smallest = smallest_difference(headline.differences, level / len(claims[claim]))
        if headline.p_holm <= level:
            conclusion = "difference detected"
        elif smallest is not None:
            conclusion = "none detected at this precision"
    return row | {
        "claim": claim,
        "declared": declared,
        "unfair": unfair,
        "smallest": smallest,
        "conclusion": conclusion,
    }


def _missing(result: ArmResult) -> str:
    """Say why an arm has no scores."""
    failures = [trial.failure for trial in result.trials if trial.failure]
    if result.runs:
        return ""
    if result.failures:
        return f"all {len(result.failures)} final runs failed; {result.failures[0]}"
    return f"all {len(result.trials)} trials failed; the last: {failures[-1]}"


def _runs(results: Results) -> Iterator[dict[str, Any]]:
    for name, runs in _runs_by_name(results).items():
        for seed, run in runs.items():
            yield {
                "arm": name,
                "seed": seed,
                **{"_".join(key): run.mean(*key) for key in _known(results.comparison, runs)},
                "validation_map_at_r": " ".join(str(fit.score) for fit in run.fits),
                "best_epochs": " ".join(str(fit.epoch) for fit in run.fits),
                "seconds": math.fsum(fit.seconds for fit in run.fits),
            }


def _trials(results: Results) -> Iterator[dict[str, Any]]:
    for each in results.arms:
        for trial in each.trials:
            row = {**vars(trial), **trial.setting, "folds": " ".join(map(str, trial.folds))}
            del row["setting"]
            yield {"arm": each.arm.name, "best": trial == each.best, **row}
