"""Figures of a comparison against naive means, and what its page and files say of them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.html_page import Page
from helpers.toy_comparison import HEADS, PROTOCOL, WEIGHT, failed, toy_arms, toy_results, with_arm
from scipy.stats import spearmanr

from facerec.comparison.finals import VIEWS, FinalRun
from facerec.comparison.fit import Fit
from facerec.comparison.harness import Results
from facerec.comparison.losses import MarginHead, MetricLoss
from facerec.comparison.protocol import FIGURES, Arm
from facerec.comparison.report import SCHEMA, report_files
from facerec.comparison.significance import compare_paired, mean_over_seeds
from facerec.comparison.summary import HEADLINE, Summary, summarize
from facerec.comparison.tables import COLUMNS
from facerec.heads import SEC, CosFace
from facerec.report.words import percent_limits
from facerec.statistics.intervals import Interval
from facerec.training import SGD

NAMES = {
    *("results.json", "table.csv", "runs.csv", "trials.csv", "table.tex", "report.html"),
    *("figures/arms.svg", "figures/arms.png"),
}
ODD = "-Odd_name=1.5+SEC-é"
EVIL = "<script>alert(1)</script> & \"quoted\" 'too' $x_1$ {{ 7 * 7 }} €"
DIVERGED = "the loss is <img src=x onerror=alert(2)> & nan"
GAINS = {"CosFace+SEC": 0.02, "ArcFace+SEC": 0.05, "SphereFace+SEC": -0.01}
PENALIZED = ("SphereFace+SEC", "CosFace+SEC", "ArcFace+SEC")


def odd_results() -> Results:
    """Return results with everything that can go wrong: text, failures, unfair pairs."""
    about = {"search": (HEADS["CosFace"][1], WEIGHT), "against": "CosFace"}
    about["protocol"] = replace(PROTOCOL, optimizer=SGD(lr=0.1))
    odd = Arm(ODD, MarginHead(CosFace(scale=32.0)), SEC(weight=0.1), **about)
    arms = (*toy_arms(("CosFace", "ArcFace")), odd)
    size = {"repetitions": 4, "trials": 9, "classes": 8, "per_class": 4}
    results = toy_results(arms, **size, question=EVIL, declared=("optimizer",))
    lost = [failed(each) if each.arm.name == "ArcFace+SEC" else each for each in results.arms]
    results = replace(results, arms=tuple(lost))
    kept = {seed: run for seed, run in runs(results, "CosFace+SEC").items() if seed != 1}
    return with_arm(results, "CosFace+SEC", runs=kept, failures=(f"seed 1: {DIVERGED}",))


def small(**changed: Any) -> Results:
    settings = {"repetitions": 6, "trials": 2, "classes": 6, "per_class": 4}
    return toy_results(**{**settings, **changed})


@pytest.fixture(scope="module")
def results() -> Results:
    return toy_results(gains=GAINS, classes=12, per_class=5)


@pytest.fixture(scope="module")
def summary(results: Results) -> Summary:
    return summarize(results)


@pytest.fixture(scope="module")
def files(summary: Summary) -> dict[str, bytes]:
    return report_files(summary)


@pytest.fixture(scope="module")
def odd() -> Summary:
    return summarize(odd_results())


@pytest.fixture(scope="module")
def odd_files(odd: Summary) -> dict[str, bytes]:
    return report_files(odd)


def runs(results: Results, name: str) -> dict[int, FinalRun]:
    return dict(next(each.runs for each in results.arms if each.arm.name == name))


def csv_rows(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def page_row(page: Page, caption: str, name: str) -> list[str]:
    """Return the row of a heading, minus signs as in ASCII."""
    for cells in page.rows(caption):
        heading, *others = (cell.replace("−", "-") for cell in cells)
        if re.match(re.escape(name) + r"($| n=)", heading):
            return others
    raise AssertionError(f"{caption}: no row {name}")


# ---------------------------------------------------------------- figures


def test_figures_are_means_over_seeds_and_paired_differences(
    results: Results, summary: Summary
) -> None:
    for arm in summary.arms.index:
        labels = runs(results, arm)[0].labels
        for view in VIEWS:
            for metric in FIGURES:
                values = np.stack([run.scores[view, metric] for run in runs(results, arm).values()])
                row = summary.row(arm, view, metric)
                expected = mean_over_seeds(values, labels)
                assert row["value"] == expected.value == pytest.approx(values.mean())
                assert expected.interval is not None and row["denominator"] == 6
                assert (row["low"], row["high"]) == (expected.interval.low, expected.interval.high)
                change = summary.row(arm, view, metric, change=True)
                if arm not in PENALIZED:
                    assert change is None
                    continue
                base = runs(results, change["against"]).values()
                of_base = [run.scores[view, metric] for run in base]
                found = compare_paired(values, np.stack(of_base), labels)
                assert (change["value"], change["p"]) == (found.value, found.p)
                assert change["low"] == found.interval.low
    untrained = np.mean([run.mean(*HEADLINE) for run in results.untrained.values()])
    assert summary.headline("untrained")["value"] == pytest.approx(float(untrained))


def test_p_is_adjusted_within_each_figure_and_claim(summary: Summary) -> None:
    for view in VIEWS:
        for metric in FIGURES:
            rows = [summary.row(arm, view, metric, change=True) for arm in PENALIZED]
            found = sorted((row["p"], row["p_holm"]) for row in rows)
            least = 0.0
            for place, (p, p_holm) in enumerate(found):
                least = min(1.0, max(least, (3 - place) * p))
                assert p_holm == pytest.approx(least)
    triplet = Arm("Triplet", MetricLoss("Triplet"), against="CosFace", search=())
    mixed = summarize(small(arms=(*toy_arms(("CosFace", "ArcFace")), triplet)))
    pairs = {pair.Index: pair for pair in mixed.pairs}
    names = ("CosFace+SEC", "ArcFace+SEC", "Triplet")
    assert [pairs[n].claim for n in names] == ["penalty", "penalty", "loss"]
    triplet = mixed.headline("Triplet", change=True)
    assert triplet["p_holm"] == triplet["p"]


def test_conclusions_are_those_of_the_adjusted_test() -> None:
    gains = {"CosFace+SEC": 0.06, "ArcFace+SEC": -0.06}
    results = small(arms=toy_arms(("CosFace", "ArcFace")), gains=gains, repetitions=8)
    found = summarize(results)
    assert [pair.conclusion for pair in found.pairs] == ["difference detected"] * 2
    same = with_arm(results, "CosFace+SEC", runs=results.arms[0].runs)
    same = with_arm(same, "ArcFace+SEC", runs={k: results.arms[3].runs[k] for k in range(5)})
    pairs = summarize(same).pairs
    # Five seeds give no p below 1/16, so two pairs none below 1/8.
    conclusions = ["none detected at this precision", "insufficient data"]
    assert [pair.conclusion for pair in pairs] == conclusions
    assert pairs[0].smallest == 0.0 and math.isnan(pairs[1].smallest)


def test_norm_reduction_against_gain(summary: Summary) -> None:
    gains = [summary.headline(arm, change=True)["value"] for arm in PENALIZED]
    spreads = [summary.row(arm, "models", "norm_cv2", change=True) for arm in PENALIZED]
    reductions = [-spread["value"] for spread in spreads]
    assert summary.gain.value == pytest.approx(spearmanr(gains, reductions).statistic)
    assert summary.gain.total == 3 and summary.gain.interval is not None


def test_trials_that_share_their_settings_are_paired() -> None:
    results = small(arms=toy_arms(("CosFace",)), trials=9, paired=True)
    row = summarize(results).row("CosFace+SEC", "trials", "map_at_r", change=True)
    first, second = ([t.score for t in each.trials] for each in results.arms[::-1])
    naive = [a - b for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    assert row["value"] == pytest.approx(np.mean(naive))
    assert row["denominator"] == len(naive) == 8  # number 7 fails in all arms


def fit_of(scores: Sequence[float]) -> Fit:
    best = max(range(len(scores)), key=lambda k: (scores[k], -k))
    return Fit(scores[best], best, tuple(scores), 1.0)


def test_steps_to_a_share_of_the_final_score(results: Results) -> None:
    base = [[0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.5, 0.4]]
    arm = [[0.1, 0.48, 0.2], [0.1, 0.5, 0.5]]
    for name, curves in (("CosFace+SEC", arm), ("CosFace", base)):
        fits = tuple(map(fit_of, curves))
        changed = {seed: replace(run, fits=fits) for seed, run in runs(results, name).items()}
        results = with_arm(results, name, runs=changed)
    found = summarize(results)
    # Means over folds of the kept scores: .2 .4 .45 .5 for the base, .49 .49 for the arm.
    assert found.row("CosFace+SEC", "validation", "steps_to_90%")["value"] == pytest.approx(30 / 90)
    # 99 % of .5 is beyond the arm, whose last validation is at 60 steps.
    last = found.row("CosFace+SEC", "validation", "steps_to_99%")
    assert last["value"] is None and last["remark"] == "6 of 6 runs never came so far"


def test_seeds_that_failed_are_left_out_of_both_arms(results: Results) -> None:
    arm, base = runs(results, "CosFace+SEC"), runs(results, "CosFace")
    why = ("seed 2: the loss is nan in epoch 3", "seed 5: the loss is inf in epoch 1")
    kept = (0, 1, 3, 4)
    some = with_arm(results, "CosFace+SEC", runs={k: arm[k] for k in kept}, failures=why)
    late = {k: base[k] for k in range(1, 6)}
    some = with_arm(some, "CosFace", runs=late, failures=("seed 0: nan",))
    found = summarize(some)
    naive = [arm[k].mean(*HEADLINE) - base[k].mean(*HEADLINE) for k in (1, 3, 4)]
    row = found.headline("CosFace+SEC", change=True)
    assert row["value"] == pytest.approx(np.mean(naive)) and row["denominator"] == 3
    assert found.arms.failures["CosFace+SEC"] == "; ".join(why)
    apart = summarize(with_arm(some, "CosFace", runs={5: base[5]}))
    assert "no seed was scored in both" in report_files(apart)["report.html"].decode()


def test_fair_and_unfair_pairs(results: Results, summary: Summary, odd: Summary) -> None:
    assert not any(pair.unfair or pair.declared for pair in summary.pairs)
    trials = results.arms[3].trials
    fewer = with_arm(results, "CosFace+SEC", trials=trials[:15])
    assert summarize(fewer).pairs[1].unfair == "15 and 20 trials"
    assert [pair.declared for pair in odd.pairs if pair.Index == ODD] == ["optimizer"]


# ---------------------------------------------------------------- the page and the files


def test_the_page_has_the_numbers_of_the_figures(summary: Summary, files: dict[str, bytes]) -> None:
    assert set(files) == NAMES
    page = Page(files["report.html"].decode())
    for arm in ("untrained", *summary.arms.index):
        cells = page_row(page, "Retrieval on the test classes", arm)
        for column, cell in zip(COLUMNS, cells, strict=False):
            row = summary.row(arm, "concatenated", column)
            half = 50 * (row["seeds_high"] - row["seeds_low"])
            limits = percent_limits(Interval(row["low"], row["high"])).replace("−", "-")
            assert cell == f"{100 * row['value']:.2f} ± {half:.2f} {' '.join(limits.split())}"
    for pair in summary.pairs:
        row = summary.headline(pair.Index, change=True)
        name = f"{pair.Index} - {pair.against}"
        cells = page_row(page, "Concatenated MAP@R, arm − base", name)
        limits = f"[{100 * row['low']:+.2f}, {100 * row['high']:+.2f}]"
        assert cells[:2] == ["6", f"{100 * row['value']:+.2f} points {limits}"]
        assert (
            cells[2:4] == [f"{row[name]:.2g}" for name in ("p", "p_holm")] and cells[-1] == "fair"
        )


def test_text_is_escaped_and_the_page_needs_nothing(odd_files: dict[str, bytes]) -> None:
    html = odd_files["report.html"].decode()
    page = Page(html)
    assert "<script" not in html and "<img src=x" not in html and "{{" in page.text
    assert EVIL in page.text and DIVERGED in page.text
    assert "http:" not in html.replace("http-equiv", "") and "https:" not in html
    ElementTree.fromstring(odd_files["figures/arms.svg"])
    assert report_files(summarize(odd_results())) == odd_files  # equal results, equal bytes


def test_latex_and_spreadsheets(odd: Summary, odd_files: dict[str, bytes]) -> None:
    assert r"-Odd\_name=1.5+SEC-é & " in odd_files["table.tex"].decode()
    table = csv_rows(odd_files["table.csv"])
    # A name that a spreadsheet would compute is quoted.
    names = {f"'{arm}" if arm == ODD else arm for arm in odd.arms.index} - {"ArcFace+SEC"}
    assert {row["arm"] for row in table} == {"untrained", *names}
    for row in table:
        if row["view"] in VIEWS:
            arm, change = row["arm"].removeprefix("'"), row["kind"] == "change"
            known = odd.row(arm, row["view"], row["figure"], change=change)
            assert float(row["value"]) == known["value"]
    document = json.loads(odd_files["results.json"], parse_constant=lambda name: 1 / 0)
    assert document["schema"] == SCHEMA and len(document["figures"]) == len(table)
    (lost,) = [arm for arm in document["arms"] if arm["arm"] == "ArcFace+SEC"]
    assert lost["missing"].startswith("all 9 trials failed")
    of_failed = [row for row in csv_rows(odd_files["runs.csv"]) if row["arm"] == "CosFace+SEC"]
    assert [row["seed"] for row in of_failed] == ["0", "2", "3"]
