"""The report of a comparison: its page, its figures and its tables say what the summary says."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.html_page import Page
from helpers.toy_comparison import HEADS, PROTOCOL, WEIGHT, failed, toy_arms, toy_results, with_arm
from matplotlib.axes import Axes
from rich.console import Console

from facerec.comparison import report
from facerec.comparison.figures import (
    arm_figure,
    difference_figure,
    gain_figure,
    learning_figure,
    trial_figure,
)
from facerec.comparison.finals import VIEWS
from facerec.comparison.harness import Results
from facerec.comparison.losses import MarginHead, MetricLoss
from facerec.comparison.protocol import FIGURES, Arm
from facerec.comparison.report import (
    answers,
    meeting_best,
    render,
    sentence_of,
    too_few_seeds,
    write_report,
)
from facerec.comparison.significance import SeedMean, mean_over_seeds
from facerec.comparison.summary import HEADLINE, SCHEMA, SHARES, Summary, summarize
from facerec.comparison.tables import (
    COLUMNS,
    declared,
    headline_table,
    pair_table,
    to_latex,
)
from facerec.errors import ComparisonError
from facerec.heads import SEC, CosFace
from facerec.report.figures import COLOURS
from facerec.statistics.intervals import Interval
from facerec.training import SGD

pytestmark = pytest.mark.integration

NAMES = {
    "results.json",
    "table.csv",
    "runs.csv",
    "trials.csv",
    "table.tex",
    *(
        f"figures/{name}.{kind}"
        for name in ("arms", "differences", "learning", "norm_variance", "trials")
        for kind in ("svg", "png")
    ),
    "report.html",
}
ODD = "-Odd_name=1.5+SEC-é"
EVIL = "<script>alert(1)</script> & \"quoted\" 'too' $x_1$ {{ 7 * 7 }} €"
DIVERGED = "the loss is <img src=x onerror=alert(2)> & nan"
GAINS = {"CosFace+SEC": 0.02, "ArcFace+SEC": 0.05, "SphereFace+SEC": -0.01}


def odd_results() -> Results:
    """Return results with everything that can go wrong: text, failures, unfair pairs."""
    odd = Arm(
        ODD,
        MarginHead(CosFace(scale=32.0)),
        SEC(weight=0.1),
        against="CosFace",
        search=(HEADS["CosFace"][1], WEIGHT),
        protocol=replace(PROTOCOL, optimizer=SGD(lr=0.1)),
    )
    arms = (*toy_arms(("CosFace", "ArcFace")), odd)
    results = toy_results(
        arms,
        repetitions=4,
        trials=9,
        classes=8,
        per_class=4,
        replicates=20,
        question=EVIL,
        declared=("optimizer",),
    )
    broken = tuple(
        failed(each) if each.arm.name == "ArcFace+SEC" else each for each in results.arms
    )
    results = replace(results, arms=broken)
    runs = next(each.runs for each in results.arms if each.arm.name == "CosFace+SEC")
    return with_arm(
        results,
        "CosFace+SEC",
        runs=(runs[0], *runs[2:]),
        seeds=(0, *range(2, len(runs))),
        failures=(f"seed 1: {DIVERGED}",),
        first_settings=3,
    )


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(toy_results(gains=GAINS, replicates=20, classes=12, per_class=5))


@pytest.fixture(scope="module")
def odd() -> Summary:
    return summarize(odd_results())


@pytest.fixture(scope="module")
def files(summary: Summary) -> dict[str, bytes]:
    return render(summary)


@pytest.fixture(scope="module")
def odd_files(odd: Summary) -> dict[str, bytes]:
    return render(odd)


def row(page: Page, caption: str, name: str) -> list[str]:
    """Return the row of a heading, minus signs as in ASCII."""
    for cells in page.rows(caption):
        heading, *others = (cell.replace("−", "-") for cell in cells)
        if re.match(re.escape(name) + r"($| n=)", heading):
            return others
    raise AssertionError(f"{caption}: no row {name}")


@pytest.fixture(scope="module")
def page(files: dict[str, bytes]) -> Page:
    return Page(files["report.html"].decode())


@pytest.fixture(scope="module")
def odd_page(odd_files: dict[str, bytes]) -> Page:
    return Page(odd_files["report.html"].decode())


def document(files: dict[str, bytes]) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(files["results.json"], parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def cell(mean: dict[str, Any]) -> str:
    seeds, joint = mean["over_seeds"], mean["joint"]
    half = 50 * (seeds["high"] - seeds["low"])
    return (
        f"{100 * mean['estimate']:.2f} ± {half:.2f} "
        f"[{100 * joint['low']:.2f}, {100 * joint['high']:.2f}]"
    )


def signed(mean: dict[str, Any]) -> str:
    joint = mean["joint"]
    return f"{100 * mean['estimate']:+.2f} [{100 * joint['low']:+.2f}, {100 * joint['high']:+.2f}]"


def seed_mean(value: float, interval: Interval | None) -> SeedMean:
    return SeedMean(
        value=value, total=10, over_seeds=interval, over_classes=None, joint=None, interval=interval
    )


def rows(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


# ---------------------------------------------------------------- the page and its numbers


def test_the_page_has_the_numbers_of_the_json(files: dict[str, bytes], page: Page) -> None:
    found = document(files)
    assert found["schema"] == SCHEMA
    named = [("untrained", found["untrained"]), *((a["name"], a["scores"]) for a in found["arms"])]
    for name, scores in named:
        by_figure = {(score["view"], score["metric"]): score["mean"] for score in scores}
        expected = [cell(by_figure[column]) for column in COLUMNS]
        assert row(page, "Retrieval on the test classes", name) == expected
    for pair in found["pairs"]:
        heading = f"{pair['arm']} - {pair['base']}"
        by_figure = {(d["view"], d["metric"]): d["mean"] for d in pair["differences"]}
        mean = by_figure["concatenated", "map_at_r"]
        cells = row(page, "Concatenated MAP@R, arm − base", heading)
        assert cells[:2] == [str(mean["n"]), signed(mean)]
        smallest = "–" if pair["smallest"] is None else f"{100 * pair['smallest']:.2f}"
        assert cells[4:] == [f"{mean['p']:.2g}", f"{mean['p_holm']:.2g}", smallest, "fair"]
        for view in VIEWS:
            expected = [
                f"{signed(by_figure[view, m])}\np {by_figure[view, m]['p_holm']:.2g}"
                for m in FIGURES
            ]
            assert row(page, f"All figures, {view}", heading) == expected
        ratios = [speed["ratio"]["estimate"] for speed in pair["speeds"]]
        cells = row(page, "Ratio of steps", f"{pair['arm']} : {pair['base']}")
        assert [float(each.split()[0]) for each in cells] == [round(r, 2) for r in ratios]
        assert len(ratios) == len(SHARES)
    for arm in found["arms"]:
        values = row(page, "Concatenated MAP@R of every run, %", arm["name"])
        assert values == [f"{100 * value:.2f}" for value in arm["scores"][0]["values"]]
        assert row(page, "Best settings", arm["name"])[0] == str(arm["best_trial"])


def test_the_question_comes_first_and_the_answers_next(summary: Summary, page: Page) -> None:
    text = page.text
    order = [text.index(summary.question)]
    for line in answers(summary):
        figure, estimate, detail, basis = (
            words.replace("\N{NO-BREAK SPACE}", " ")
            for words in (line.figure, line.estimate, line.detail, line.basis)
        )
        order += [text.index(figure), text.index(estimate)]
        assert detail in text and basis in text
    order.append(text.index("Retrieval on the test classes"))
    assert order == sorted(order)


def test_the_forest_comes_first_and_many_pairs_have_no_sentences(
    summary: Summary, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def order(html: str, *marks: str) -> list[int]:
        return [html.index(mark) for mark in ("<figcaption>", *marks, "<nav ", "<table>")]

    spoken = [f'<span class="figure">{pair.arm} against {pair.base}' for pair in summary.pairs]
    claim = '<span class="figure">Another penalty, 3 pairs'
    few = order(files["report.html"].decode(), claim, *spoken)
    assert few == sorted(few)
    monkeypatch.setattr(report, "_SPOKEN", len(summary.pairs) - 1)
    html = render(summary)["report.html"].decode()
    many = order(html, claim)
    assert many == sorted(many)
    assert not any(mark in html for mark in spoken)


def test_the_first_figure_draws_all_arms_and_their_differences(summary: Summary) -> None:
    figure = arm_figure(summary)
    assert figure is not None
    scores, differences = figure.axes
    names = [text.get_text() for text in scores.get_yticklabels()]
    value = {arm.name: score.mean.value for arm in summary.arms if (score := arm.score(*HEADLINE))}
    bases = sorted(value.keys() & {pair.base for pair in summary.pairs}, key=lambda n: -value[n])
    assert names == [name for base in bases for name in (base, f"{base}+SEC")]

    def drawn(axes: Axes) -> dict[int, tuple[float, Any]]:
        return {
            int(line.get_ydata()[0]): (float(line.get_xdata()[0]), line.get_color())
            for line in axes.lines
            if line.get_marker() == "o"
        }

    assert {names[row]: x for row, (x, _) in drawn(scores).items()} == pytest.approx(
        {name: 100 * each for name, each in value.items()}
    )
    found = {names[row]: point for row, point in drawn(differences).items()}
    assert found.keys() == {pair.arm for pair in summary.pairs}
    for pair in summary.pairs:
        assert pair.headline is not None
        x, colour = found[pair.arm]
        assert x == pytest.approx(100 * pair.headline.mean.value)
        assert (colour in COLOURS) == (pair.conclusion == "difference detected")


def test_answers_give_estimate_interval_and_n(summary: Summary, files: dict[str, bytes]) -> None:
    said = answers(summary)
    assert len(said) == 2 + len(summary.pairs)
    assert document(files)["answers"] == [sentence_of(line) for line in said]
    for answer, pair in zip(said[1:], summary.pairs, strict=False):
        assert pair.headline is not None
        mean = pair.headline.mean
        assert mean.joint is not None
        text = sentence_of(answer).replace("−", "-").replace("\N{NO-BREAK SPACE}", " ")
        limits = f"[{100 * mean.joint.low:+.2f}, {100 * mean.joint.high:+.2f}]"
        assert text.startswith(f"{pair.arm} against {pair.base}: {100 * mean.value:+.2f} ")
        assert limits in text and "n = 6 seeds × 12 test classes" in text
        assert f"p = {mean.p:.2g}, adjusted for 3 pairs {mean.p_holm:.2g}" in text
        inside = mean.joint.low <= 0 <= mean.joint.high
        assert ("interval includes 0" in text) == inside
    verdict = re.compile(r"\b(better|worse|wins?|improv\w+|significant\w*|proves?|helps?)\b", re.I)
    assert not any(verdict.search(sentence_of(answer)) for answer in said)


def test_answers_place_intervals(summary: Summary) -> None:
    def moved(low: float, high: float) -> Summary:
        def with_interval(found: Any) -> Any:
            joint = replace(found.mean.joint, low=low, high=high)
            return replace(found, mean=replace(found.mean, joint=joint, interval=joint))

        pairs = [
            replace(pair, differences=tuple(map(with_interval, pair.differences)))
            for pair in summary.pairs
        ]
        return replace(summary, pairs=tuple(pairs))

    for ends, said in (
        ((0.01, 0.02), "lies above 0"),
        ((-0.01, 0.02), "includes 0"),
        ((0.0, 0.02), "includes 0"),
        ((-0.02, -0.01), "lies below 0"),
    ):
        _, *others = answers(moved(*ends))
        assert all(said in answer.detail for answer in others[:3])


def test_conclusions_are_those_of_the_adjusted_test() -> None:
    results = toy_results(
        toy_arms(("CosFace", "ArcFace")),
        gains={"CosFace+SEC": 0.06, "ArcFace+SEC": -0.06},
        repetitions=8,
        trials=2,
        classes=6,
        per_class=4,
        replicates=20,
    )
    summary = summarize(results)
    assert [pair.conclusion for pair in summary.pairs] == ["difference detected"] * 2
    claim, *_ = answers(summary)
    assert claim.estimate == "different in 2: above in 1, below in 1"
    assert declared(summary, *HEADLINE) == {"CosFace+SEC", "ArcFace+SEC"}
    same = summarize(
        with_arm(
            with_arm(results, "CosFace+SEC", runs=results.arms[0].runs),
            "ArcFace+SEC",
            runs=results.arms[3].runs[:5],
            seeds=tuple(range(5)),
        )
    )
    # Five seeds give no p below 1/16, so two pairs none below 1/8.
    assert [pair.conclusion for pair in same.pairs] == [
        "none detected at this precision",
        "insufficient data",
    ]
    assert (same.pairs[0].smallest, same.pairs[1].smallest) == (0.0, None)
    assert declared(same, *HEADLINE) == set()


def test_trials_that_share_their_settings_are_paired() -> None:
    arms = toy_arms(("CosFace",))
    results = toy_results(
        arms, repetitions=2, trials=9, classes=4, per_class=3, replicates=5, paired=True
    )
    (pair,) = summarize(results).pairs
    assert pair.trials is not None
    first, second = ([t.score for t in each.trials] for each in (results.arms[1], results.arms[0]))
    naive = [a - b for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    assert pair.trials.mean.differences == pytest.approx(naive)
    assert pair.trials.higher == sum(each > 0 for each in naive)
    assert pair.trials.failed == 9 - len(naive) == 1  # number 7 fails in all arms
    page = Page(render(summarize(results))["report.html"].decode())
    cells = row(page, "The same trials with and without", "CosFace+SEC - CosFace")
    assert cells[0] == "8 1 failed" and cells[3] == f"{pair.trials.higher} of 8"
    unpaired = summarize(replace(results, comparison=replace(results.comparison, paired=False)))
    assert unpaired.pairs[0].trials is None


def test_claims_are_adjusted_apart() -> None:
    triplet = Arm("Triplet", MetricLoss("Triplet"), against="CosFace", search=())
    results = toy_results(
        (*toy_arms(("CosFace", "ArcFace")), triplet),
        repetitions=6,
        trials=2,
        classes=4,
        per_class=3,
        replicates=5,
    )
    pairs = {pair.arm: pair for pair in summarize(results).pairs}
    assert [pairs[n].claim for n in ("CosFace+SEC", "Triplet")] == ["penalty", "loss"]
    assert [pairs[n].claim_pairs for n in ("CosFace+SEC", "ArcFace+SEC", "Triplet")] == [2, 2, 1]
    alone = pairs["Triplet"].headline
    assert alone is not None and alone.mean.p_holm == alone.mean.p


def test_arms_that_differ_in_what_is_searched_or_in_nothing_are_a_claim_of_their_own() -> None:
    base = toy_arms(("CosFace",))[0]
    arms = (
        base,
        replace(base, name="again", against="CosFace"),
        replace(base, name="alone", against="CosFace", search=()),
        replace(base, name="longer", against="CosFace", protocol=replace(PROTOCOL, patience=9)),
    )
    results = toy_results(
        arms, repetitions=6, trials=2, classes=4, per_class=3, replicates=5, declared=("patience",)
    )
    assert [pair.claim for pair in summarize(results).pairs] == ["search", "search", "protocol"]
    assert "2 pairs of another search" in too_few_seeds(replace(results.comparison, repetitions=2))


def test_no_effect_is_said_with_its_interval() -> None:
    heads = ("CosFace", "ArcFace")
    results = toy_results(
        toy_arms(heads), replicates=10, repetitions=3, trials=2, classes=6, per_class=4
    )
    for name in heads:
        base = next(each for each in results.arms if each.arm.name == name)
        results = with_arm(results, f"{name}+SEC", runs=base.runs)
    summary = summarize(results)
    for answer in answers(summary)[1:3]:
        text = sentence_of(answer).replace("\N{NO-BREAK SPACE}", " ")
        assert "0.00 points of concatenated MAP@R [+0.00, +0.00]" in text
        assert "includes 0" in text and "p = 1, adjusted for 2 pairs 1" in text


def test_how_the_reality_check_marks_the_best() -> None:
    # Concatenated MAP@R on CUB200 and Cars196, and what was read from these columns.
    cub = {
        "Contrastive": (26.53, 0.29),
        "Triplet": (23.69, 0.23),
        "NT-Xent": (25.09, 0.22),
        "N.Softmax": (25.25, 0.13),
        "CosFace": (26.70, 0.23),
        "ArcFace": (26.45, 0.20),
        "SNR": (25.75, 0.36),
        "MS+Miner": (26.52, 0.18),
        "SoftTriple": (26.51, 0.20),
    }
    cars = {
        "CosFace": (27.57, 0.30),
        "ArcFace": (27.22, 0.30),
        "MS": (28.07, 0.22),
        "MS+Miner": (27.01, 0.35),
        "SoftTriple": (27.08, 0.21),
    }

    def means(column: dict[str, tuple[float, float]]) -> dict[str, SeedMean]:
        return {
            name: seed_mean(mean, Interval(mean - half, mean + half))
            for name, (mean, half) in column.items()
        }

    assert meeting_best(means(cub)) == {
        "CosFace",
        "Contrastive",
        "MS+Miner",
        "SoftTriple",
        "ArcFace",
    }
    assert meeting_best(means(cars)) == {"MS", "CosFace"}
    assert meeting_best({}) == set()
    single = {
        "a": seed_mean(0.5, None),
        "b": seed_mean(0.4, None),
    }
    assert meeting_best(single) == {"a"}


def test_bold_cells_are_those_that_the_test_declares_different(
    summary: Summary, files: dict[str, bytes]
) -> None:
    html = files["report.html"].decode()
    table = html[html.index("<caption>Retrieval") : html.index("</table>")]
    for arm in summary.arms:
        row = table[table.index(f'scope="row">{arm.name}<') :]
        kinds = re.findall(r'<td class="number( strong)?">', row[: row.index("</tr>")])
        assert [kind != "" for kind in kinds] == [
            arm.name in declared(summary, *column) for column in COLUMNS
        ]


# ---------------------------------------------------------------- safety and form


def test_the_page_is_self_contained(files: dict[str, bytes], page: Page) -> None:
    html = files["report.html"].decode()
    tags = {tag for tag, _ in page.attributes}
    assert not tags & {"script", "link", "iframe", "object", "form", "base"}
    policy = next(a["content"] for tag, a in page.attributes if a.get("http-equiv"))
    style = re.search(r"<style>(.*)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    assert "http:" not in html.replace("http-equiv", "") and "https:" not in html
    for tag, attributes in page.attributes:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        if tag == "img":
            assert attributes["src"].startswith("data:image/svg+xml;base64,") and attributes["alt"]
            picture = base64.b64decode(attributes["src"].partition(",")[2])
            assert picture in files.values()
    anchors = {a["href"][1:] for tag, a in page.attributes if tag == "a"}
    assert anchors <= {a["id"] for _, a in page.attributes if "id" in a}
    assert html.count("<h1>") == 1 and "<html lang=" in html


def test_text_is_escaped(odd_files: dict[str, bytes], odd_page: Page) -> None:
    html = odd_files["report.html"].decode()
    assert "<script" not in html and "<img src=x" not in html and "{{" in odd_page.text
    assert EVIL in odd_page.text and DIVERGED in odd_page.text
    for name, content in odd_files.items():
        if name.endswith(".svg"):
            ElementTree.fromstring(content)
            assert b"<script" not in content
    assert document(odd_files)["question"] == EVIL


def test_failures_are_told(odd: Summary, odd_page: Page) -> None:
    text = odd_page.text
    assert "ArcFace+SEC has no scores: all 9 trials failed" in text
    assert "CosFace+SEC: 1 final run failed, left out of all figures: seed 1" in text
    assert "CosFace+SEC against CosFace does not bear the mark “fair”: 3 and 2 first" in text
    assert "With 4 seeds the sign-flip test cannot give a p below 0.12" in text
    assert "2 classes with one image are left out." in text
    failed_row = row(odd_page, "Retrieval on the test classes", "ArcFace+SEC")
    assert len(failed_row) == 1 and failed_row[0].startswith("failed all 9 trials failed")
    caption = "Concatenated MAP@R, arm − base"
    missing = row(odd_page, caption, "ArcFace+SEC - ArcFace")
    assert missing[1].startswith("– ArcFace+SEC: all 9") and missing[-1] == "fair"
    assert row(odd_page, caption, "CosFace+SEC - CosFace")[-1] == "not fair 3 and 2 first settings"
    odd_row = next(row for row in odd_page.rows(caption) if row[0].startswith(ODD))
    assert odd_row[-1] == "fair declared: optimizer"
    assert row(odd_page, "Concatenated MAP@R of every run, %", "CosFace+SEC")[1] == "– failed"
    own = odd_page.rows("Where arms differ from it")
    assert [ODD, "optimizer.type", "SGD"] in own
    assert "insufficient data in" in answers(odd)[0].detail


def test_one_run_has_no_plus_minus() -> None:
    summary = summarize(toy_results(repetitions=1, trials=1, replicates=10, classes=6, per_class=4))
    files = render(summary)
    assert "figures/trials.svg" not in files
    page = Page(files["report.html"].decode())
    for arm in summary.arms:
        cells = row(page, "Retrieval on the test classes", arm.name)
        assert all(re.fullmatch(r"\d+\.\d\d \(n=1\)", cell) for cell in cells)
    for pair in summary.pairs:
        cells = row(page, "Concatenated MAP@R, arm − base", f"{pair.arm} - {pair.base}")
        assert cells[0] == "1" and cells[1].endswith(" n=1") and cells[4:7] == ["–", "–", "–"]
    assert "One seed each: no interval and no p" in page.text
    said = " ".join(sentence_of(answer) for answer in answers(summary))
    assert "±" not in said and "over seeds" not in said
    assert "\\pm" not in files["table.tex"].decode() and "$n=1$" in files["table.tex"].decode()
    assert "nan" not in page.text.lower()


def test_arms_below_the_untrained_network_are_told() -> None:
    results = toy_results(repetitions=2, trials=1, replicates=10, classes=6, per_class=4)
    told = "lower than the network before training"
    assert told not in render(summarize(results))["report.html"].decode()
    better = next(arm.runs for arm in results.arms if arm.arm.name == "CosFace")
    worse = replace(results.arms[0], runs=results.untrained)
    swapped = replace(results, arms=(worse,), untrained=better)
    assert told in render(summarize(swapped))["report.html"].decode()


def test_arms_that_are_equal_in_every_run_are_told() -> None:
    results = toy_results(repetitions=6, trials=1, replicates=10, classes=6, per_class=4)
    base = next(arm.runs for arm in results.arms if arm.arm.name == "CosFace")
    said = [sentence_of(line) for line in answers(summarize(results))]
    assert not any("equal in every run" in each for each in said)
    said = [sentence_of(e) for e in answers(summarize(with_arm(results, "CosFace+SEC", runs=base)))]
    (line,) = [each for each in said if "equal in every run" in each]
    assert line.startswith("CosFace+SEC against CosFace") and "80 % power" not in line


def test_an_arm_that_never_beat_the_untrained_network_is_told() -> None:
    results = toy_results(repetitions=2, trials=1, replicates=10, classes=6, per_class=4)
    arm = results.arms[1]
    runs = list(arm.runs)
    runs[1] = replace(runs[1], fits=(replace(runs[1].fits[0], epoch=0), *runs[1].fits[1:]))
    summary = summarize(with_arm(results, arm.arm.name, runs=tuple(runs)))
    told = Page(render(summary)["report.html"].decode())
    sentence = f"{arm.arm.name}: in 1 of 8 final trainings no epoch scored higher in validation"
    assert told.text.count("no epoch scored higher") == 1 and sentence in told.text
    untouched = Page(render(summarize(results))["report.html"].decode())
    assert "no epoch scored higher" not in untouched.text


def test_a_comparison_without_pairs() -> None:
    arms = tuple(replace(arm, against=None) for arm in toy_arms(("CosFace",)))
    summary = summarize(
        toy_results(arms, repetitions=2, trials=3, replicates=10, classes=6, per_class=4)
    )
    files = render(summary)
    assert {Path(name).stem for name in NAMES - set(files)} == {"differences", "norm_variance"}
    page = Page(files["report.html"].decode())
    assert "Ratio of steps" not in dict(page.tables) and "Differences" not in page.text
    assert [answer.figure for answer in answers(summary)] == ["Highest concatenated MAP@R"]
    # Nor is a difference, a test or a table of them spoken of elsewhere.
    assert not re.search(r"its difference|Bold|next table", page.text)
    lone = summarize(
        toy_results(arms[:1], repetitions=2, trials=3, replicates=10, classes=6, per_class=4)
    )
    assert not answers(lone)
    assert "made by rule" not in Page(render(lone)["report.html"].decode()).text


def test_clusterings_stand_beside_retrieval_where_asked_for() -> None:
    results = toy_results(
        toy_arms(("CosFace",)),
        replicates=10,
        repetitions=3,
        trials=2,
        classes=6,
        per_class=4,
        metrics=("nmi", "f1"),
    )
    summary = summarize(results)
    files = render(summary)
    page = Page(files["report.html"].decode())
    asked = {(view, name) for view in VIEWS for name in ("nmi", "f1")}
    for arm, each in zip(results.arms, summary.arms, strict=True):
        cells = row(page, "Retrieval on the test classes", each.name)
        assert len(cells) == 10
        for position, name in ((3, "nmi"), (4, "f1")):
            values = [run.clusterings["concatenated", name] for run in arm.runs]
            score = each.score("concatenated", name)
            assert score is not None and list(score.values) == values
            mean = score.mean
            assert mean == mean_over_seeds(values) and mean.joint is None
            assert mean.interval is not None and mean.interval == mean.over_seeds
            half = 50 * (mean.interval.high - mean.interval.low)
            assert cells[position] == f"{100 * mean.value:.2f} ± {half:.2f}"
    table = rows(files["table.csv"])
    assert {(each["view"], each["metric"]) for each in table} >= asked
    (pair,) = document(files)["pairs"]
    assert {(each["view"], each["metric"]) for each in pair["differences"]} >= asked
    assert all(each["mean"]["p_holm"] is not None for each in pair["differences"])
    assert "concatenated_nmi" in rows(files["runs.csv"])[0]
    assert "cccccccccc" in files["table.tex"].decode() and "k-means" in page.text


def test_nothing_but_failures() -> None:
    results = toy_results(
        toy_arms(("CosFace",)), replicates=5, repetitions=2, trials=3, classes=4, per_class=3
    )
    results = replace(results, arms=tuple(map(failed, results.arms)))
    summary = summarize(results)
    files = render(summary)
    assert {name for name in files if name.endswith(".svg")} == set()
    assert "no difference can be computed" in Page(files["report.html"].decode()).text
    json.loads(files["results.json"])


def test_equal_results_give_equal_bytes(odd_files: dict[str, bytes]) -> None:
    again = render(summarize(odd_results()))
    assert list(again) == list(odd_files)
    assert again == odd_files


# ---------------------------------------------------------------- other files


def test_writing_leaves_other_files_alone(tmp_path: Path) -> None:
    results = toy_results(
        toy_arms(("CosFace",)), replicates=5, repetitions=2, trials=2, classes=4, per_class=3
    )
    (tmp_path / "manifest.json").write_text("mine")
    (tmp_path / "table.csv").write_text("old")
    paths = write_report(results, tmp_path)
    assert set(paths) == NAMES
    expected = render(summarize(results))
    for name, path in paths.items():
        assert path == tmp_path / name and path.read_bytes() == expected[name]
    assert (tmp_path / "manifest.json").read_text() == "mine"
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    results = toy_results(
        toy_arms(("CosFace",)), replicates=5, repetitions=1, trials=1, classes=4, per_class=3
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(ComparisonError, match="file"):
        write_report(results, tmp_path / "file")


def test_latex(odd: Summary, odd_files: dict[str, bytes]) -> None:
    text = odd_files["table.tex"].decode()
    assert text == to_latex(odd)
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert lines[0] == r"\begin{tabular}{lcccccc}" and lines[-1] == r"\end{tabular}"
    assert [line for line in lines if line.endswith("rule")] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]
    body = [line for line in lines if line.endswith(r"\\")]
    assert len(body) == 2 + 1 + len(odd.arms)
    named = dict(zip([arm.name for arm in odd.arms], body[3:], strict=True))
    assert named[ODD].startswith(r"{-}Odd\_name=1.5+SEC{-}é & ")
    assert named["ArcFace+SEC"] == r"ArcFace+SEC & -- & -- & -- & -- & -- & -- \\"
    for arm in odd.arms:
        cells = named[arm.name].removesuffix(r" \\").split(" & ")[1:]
        for column, found in zip(COLUMNS, cells, strict=True):
            score = arm.score(*column)
            if score is not None and score.mean.over_seeds is not None:
                interval = score.mean.over_seeds
                half = 50 * (interval.high - interval.low)
                value = f"{100 * score.mean.value:.2f}"
                bold = arm.name in declared(odd, *column)
                value = rf"\textbf{{{value}}}" if bold else value
                assert found == rf"{value} $\pm$ {half:.2f}"
    # Nothing that LaTeX would take for a command of its own.
    plain = re.sub(r"\\(_|[a-z]+|\\)|\$[^$]*\$|[{}&]", "", "\n".join(body))
    assert not re.search(r"[\\_#$%^~]", plain)


def test_tables_for_spreadsheets(odd: Summary, odd_files: dict[str, bytes]) -> None:
    table = rows(odd_files["table.csv"])
    scored = [arm for arm in odd.arms if arm.scores]
    assert len(table) == len(VIEWS) * len(FIGURES) * (1 + len(scored)) + 1
    # A name that a spreadsheet would compute is quoted.
    assert {row["arm"] for row in table} == {
        "untrained",
        *(f"'{arm.name}" if arm.name == ODD else arm.name for arm in odd.arms),
    }
    for row in table:
        if row["arm"] == "ArcFace+SEC":
            assert row["reason"].startswith("all 9 trials failed") and row["mean"] == ""
            continue
        arm = next((a for a in odd.arms if a.name == row["arm"].removeprefix("'")), None)
        if arm is not None:
            score = arm.score(row["view"], row["metric"])
            assert score is not None and score.mean.joint is not None
            assert float(row["mean"]) == score.mean.value
            assert float(row["mean_joint_low"]) == score.mean.joint.low
        pair = next((p for p in odd.pairs if arm is not None and p.arm == arm.name), None)
        if pair is not None and pair.headline is not None:
            found = pair.difference(row["view"], row["metric"])
            assert found is not None and float(row["difference"]) == found.mean.value
            assert float(row["p_holm"]) == found.mean.p_holm and row["against"] == pair.base


def test_runs_and_trials(odd: Summary, odd_files: dict[str, bytes]) -> None:
    runs = rows(odd_files["runs.csv"])
    assert len(runs) == 4 + sum(len(arm.runs) for arm in odd.arms) == 4 + 4 + 3 + 4 + 0 + 4
    of_failed = [row for row in runs if row["arm"] == "CosFace+SEC"]
    assert [row["seed"] for row in of_failed] == ["0", "2", "3"]
    assert [row["generator_seed"] for row in of_failed] == ["100", "102", "103"]
    score = odd.arm("CosFace+SEC").scores[0]
    assert [float(row["concatenated_map_at_r"]) for row in of_failed] == list(score.values)
    assert len(of_failed[0]["validation_map_at_r"].split()) == 4

    trials = rows(odd_files["trials.csv"])
    assert len(trials) == sum(len(arm.trials) for arm in odd.arms) == 9 * 5
    for arm in odd.arms:
        name = f"'{arm.name}" if arm.name == ODD else arm.name
        found = [row for row in trials if row["arm"] == name]
        best = [int(row["trial"]) for row in found if row["best"] == "True"]
        assert best == ([] if arm.best_trial is None else [arm.best_trial])
        for row, trial in zip(found, arm.trials, strict=True):
            assert row["score"] == ("" if trial.score is None else str(trial.score))
            margin = row["loss.margin.margin"]
            assert float(margin) == trial.setting["loss.margin.margin"]


def test_the_terminal_tables(odd: Summary) -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(headline_table(odd).terminal())
    scores = console.export_text().replace("\N{NO-BREAK SPACE}", " ").splitlines()
    for arm in odd.arms:
        line = next(line for line in scores if line.strip().startswith(f"{arm.name} "))
        if arm.reason:
            assert "failed" in line
            continue
        for column in COLUMNS[:3]:
            score = arm.score(*column)
            assert score is not None and f"{100 * score.mean.value:.2f} ±" in line
    console.print(pair_table(odd).terminal())
    text = console.export_text()
    headline = odd.pairs[0].headline
    assert headline is not None and headline.mean.joint is not None
    assert f"{100 * headline.mean.joint.low:+.2f}".replace("-", "−") in text
    assert "declared: optimizer" in " ".join(text.split())


# ---------------------------------------------------------------- figures


def test_figures_are_well_formed(files: dict[str, bytes]) -> None:
    assert set(files) == NAMES
    for name, content in files.items():
        if name.endswith(".svg"):
            root = ElementTree.fromstring(content)
            assert root.tag.endswith("svg") and b"<dc:date>" not in content


def test_the_forest_draws_estimates_and_intervals(summary: Summary) -> None:
    figure = difference_figure(summary)
    assert figure is not None
    drawn = [
        (line.get_marker(), [float(x) for x in line.get_xdata()]) for line in figure.axes[0].lines
    ]
    estimates = [xs[0] for marker, xs in drawn if marker in ("o", "s")]
    expected, whiskers = [], []
    for pair in summary.pairs:
        for view in VIEWS:
            found = pair.difference(view, "map_at_r")
            assert found is not None and found.mean.joint is not None
            expected.append(100 * found.mean.value)
            joint, mean = found.mean.joint, found.mean.value
            whiskers.append([100 * min(joint.low, mean), 100 * max(joint.high, mean)])
    assert estimates == pytest.approx(expected)
    ends = [xs for marker, xs in drawn if marker == "|" and len(xs) == 2]
    for whisker in whiskers:
        assert any(xs == pytest.approx(whisker) for xs in ends)


def test_the_scatter_draws_every_pair(summary: Summary) -> None:
    figure = gain_figure(summary)
    assert figure is not None
    points = [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in figure.axes[0].lines
        if line.get_marker() not in ("None", None, "")
    ]
    expected = [
        (pair.norm_reduction.value, 100 * pair.headline.mean.value)
        for pair in summary.pairs
        if pair.norm_reduction and pair.headline
    ]
    assert points == [pytest.approx(point) for point in expected]


def test_curves_share_panels_by_family(summary: Summary) -> None:
    for figure, marker in ((trial_figure(summary), True), (learning_figure(summary), False)):
        assert figure is not None and len(figure.axes) == 3
        for axes, name in zip(figure.axes, ("SphereFace", "CosFace", "ArcFace"), strict=True):
            legend = axes.get_legend()
            assert legend is not None
            assert [text.get_text() for text in legend.get_texts()] == [name, f"{name}+SEC"]
            curve = summary.arm(name)
            ends = [float(line.get_ydata()[-1]) for line in axes.lines]
            assert curve.learning is not None and curve.validation is not None
            last = curve.validation if marker else curve.learning.mean[-1]
            assert any(end == pytest.approx(100 * last) for end in ends)


def test_many_arms_are_cut_into_panels() -> None:
    head = MarginHead(CosFace(scale=32.0))
    arms = tuple(Arm(f"loss{k}", head, search=()) for k in range(9))
    summary = summarize(
        toy_results(arms, repetitions=1, trials=2, replicates=5, classes=4, per_class=3)
    )
    figure = trial_figure(summary)
    assert figure is not None
    sizes = [len(axes.get_legend().get_texts()) for axes in figure.axes if axes.get_visible()]
    assert sizes == [5, 4]
