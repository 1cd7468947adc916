from __future__ import annotations

import base64
import functools
import hashlib
import html
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from helpers.html_page import Page
from helpers.toy_audit import EVIL, default_audit, toy_audit

from facerec.fairness.baseline import READING
from facerec.fairness.findings import MOST, verdict
from facerec.fairness.page import render
from facerec.fairness.rate_results import SCORE_EDGES, Calibration, GroupRates
from facerec.fairness.result import Audit
from facerec.fairness.tables import working_point
from facerec.report import figures
from facerec.statistics.operating_points import OperatingPoint

EDGE = 0.5
"""A threshold at an edge of the bins, so that the slider's counts are those of the audit."""
BEYOND = 0.35
"""A threshold between edges."""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def by_heading(rows: list[list[str]]) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in rows}


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write figures without drawing them, where they do not matter."""
    monkeypatch.setattr(figures, "draw", lambda figure, kind: kind.encode())


@functools.cache
def default_files() -> dict[str, bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", lambda figure, kind: kind.encode())
        return render(default_audit(), "facerec audit --embeddings 'a & b.npz'")


@pytest.fixture(scope="module")
def text() -> str:
    return default_files()["report.html"].decode()


@pytest.fixture(scope="module")
def found(text: str) -> Page:
    return Page(text)


# --- the page itself --------------------------------------------------------------------------


def test_page_needs_nothing_but_itself(text: str, found: Page) -> None:
    names = [tag for tag, _ in found.attributes]
    for tag in ("iframe", "object", "embed", "link", "base", "form", "svg"):
        assert tag not in names
    for tag, attributes in found.attributes:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        if "src" in attributes:
            assert tag == "img" and attributes["src"].startswith("data:image/svg+xml;base64,")
        if "href" in attributes:
            assert tag == "a" and attributes["href"].startswith("#")
    assert re.search(r"https?:|@import|url\(", text) is None


def test_policy_admits_one_script_and_one_style_by_hash(text: str) -> None:
    def digest(tag: str) -> str:
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.S)
        return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest('style')}'; "
        f"script-src 'sha256-{digest('script')}'; base-uri 'none'; form-action 'none'"
    )
    assert re.findall(r"<script[^>]*>", text) == [
        '<script type="application/json" id="widget-data">',
        "<script>",
    ]


def test_page_can_be_read_aloud_and_walked_by_keyboard(text: str, found: Page) -> None:
    assert found.all("html") == [{"lang": "en"}]
    assert all(image["alt"].endswith(".") for image in found.all("img"))
    assert len(found.all("table")) == len(found.all("caption"))
    assert all(cell.get("scope") in ("col", "row") for cell in found.all("th"))
    anchors = {a["href"].removeprefix("#") for a in found.all("a")}
    ids = [attributes["id"] for _, attributes in found.attributes if "id" in attributes]
    assert anchors <= set(ids) and len(ids) == len(set(ids))
    assert {section["aria-labelledby"] for section in found.all("section")} == anchors
    scrolls = [div for div in found.all("div") if div.get("class", "").startswith("scroll")]
    assert scrolls and all(div["tabindex"] == "0" and div["aria-label"] for div in scrolls)
    assert found.all("a")[0] == {"class": "skip", "href": "#findings"}
    assert {label["for"] for label in found.all("label")} <= set(ids)
    headings = [int(tag[1]) for tag, _ in found.attributes if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1 and all(b - a <= 1 for a, b in itertools.pairwise(headings))
    assert "@media print" in text and ":focus-visible" in text


def test_sections_come_in_reading_order(text: str) -> None:
    numbers = re.findall(r'<span class="count">(\d+)</span>(.*?)</h2>', text)
    assert [int(number) for number, _ in numbers] == list(range(1, 13))
    assert [title for _, title in numbers] == [
        "Findings",
        "Composition and sufficiency",
        "Norm distributions",
        "Association of the norm with the recorded group",
        "Does the norm matter here?",
        "Recognition at the global threshold",
        "Differential summary",
        "One to many: identification by group",
        "Baseline and new model",
        "Limitations",
        "Glossary and formulas",
        "Provenance",
    ]


def test_findings_come_first_and_hashes_last(text: str, found: Page) -> None:
    audit = default_audit()
    places = [
        text.index(mark)
        for mark in (
            f'<p class="verdict">{html.escape(verdict(audit.findings))}</p>',
            '<ol class="findings">',
            "<img ",
            'class="notes"',
            "<nav ",
            "<table>",
            'id="section-12"',
            audit.inputs[0].sha256,
        )
    ]
    assert places == sorted(places)
    assert "sha256" not in text[: text.index('id="section-12"')].partition("</head>")[2].lower()


def test_a_hostile_name_is_text_everywhere(text: str, found: Page) -> None:
    assert EVIL not in text and "<script>alert" not in text
    assert found.text.count(EVIL) > 20
    assert any(EVIL in image["alt"] for image in found.all("img"))
    assert (
        json.loads(re.findall(r'id="widget-data">(.*?)</script>', text, re.S)[0])["groupings"][0][
            "groups"
        ][0]["name"]
        == EVIL
    )
    assert not any("<" in name for name in default_files())


@pytest.mark.integration
def test_equal_inputs_give_equal_pages(tmp_path: Path, undrawn: None) -> None:
    first, second = (
        render(toy_audit(tmp_path, attributes=("sex",), compared=True), "the command")
        for _ in range(2)
    )
    assert first == second
    other = render(toy_audit(tmp_path, attributes=("sex",), seed=1), "the command")
    assert other["report.html"] != first["report.html"]


# --- what it says -----------------------------------------------------------------------------


def test_header_findings_and_caveats_are_there(found: Page) -> None:
    audit, text = default_audit(), words(found.text)
    inputs, facts = (by_heading(found.rows(name)) for name in ("Inputs", "What was audited"))
    for file in audit.inputs:
        assert inputs[f"{file.role} {file.name}"][0] == file.sha256
    assert inputs["embeddings e.npz"][1].endswith(f"images: 765; model: {EVIL}")
    assert facts["labels"] == ["curator"] and facts["non-mated pairs"] == [audit.policy]
    assert facts["threshold source"] == [audit.thresholds[0].source]
    assert by_heading(found.rows("Left out"))["no value for race"][:2] == ["15", "3"]
    assert len(audit.findings) == MOST
    for line in audit.findings:
        assert f"{line.grouping}: {line.figure}" in text
        assert f"{line.total:,} {line.unit}" in text and line.remark in text
    tags = [span["class"] for span in found.all("span") if "tag" in span.get("class", "")]
    assert tags == [f"tag {line.conclusion.split()[0]}" for line in audit.findings]
    for sentence in (*audit.caveats, *audit.warnings, *READING):
        assert words(sentence) in text
    assert "facerec audit --embeddings 'a & b.npz'" in text
    assert by_heading(found.rows("Settings"))["seed"] == ["0"]
    for word in ("fair ", "unbiased", "bias-free", "passed", "failed the"):
        assert word not in text.lower().replace("fairness", "")


def test_composition_has_counts_marks_and_what_is_suppressed(found: Page) -> None:
    audit = default_audit()
    grouping = audit.groupings[0]
    assert isinstance(grouping.rates, GroupRates)
    point = working_point(audit, grouping)
    assert point is not None
    target = point.threshold.target
    rows = by_heading(found.rows(f"Subjects, images and pairs; errors at target FMR {target}"))
    for count, part, group in zip(
        grouping.composition, grouping.rates.composition, point.groups, strict=True
    ):
        row = rows[group.name]
        assert row[:2] == [f"{count.subjects:,}", f"{count.images:,}"]
        assert row[3].endswith(f" {count.failed}/{count.images}")
        assert row[4:6] == [f"{part.mated:,}", f"{part.non_mated:,}"]
        assert row[7] == f"{group.fmr.mark} {group.fmr.events:,} of {part.non_mated:,}"
        assert row[8] == f"{group.fnmr.mark} {group.fnmr.events:,} of {part.mated:,}"
    assert grouping.suppressed == ("Dun",)
    assert rows["Dun"] == [
        "suppressed: under ten subjects, or else such a cell would follow from totals"
    ]
    assert "●" in {rows[name][7][0] for name in grouping.names} <= {"●", "◐", "○"}


def test_tables_hold_the_figures_of_the_audit(found: Page) -> None:
    audit = default_audit()
    for number, grouping in enumerate(audit.groupings):
        norms = by_heading(found.rows("Norms by group", number))
        for group in (*grouping.norms.groups, grouping.norms.overall):
            assert group.mean.interval is not None
            low, high = group.mean.interval.low, group.mean.interval.high
            assert norms[group.name][4] == f"{group.mean.value:.4g} [{low:.3g}, {high:.3g}]"
        assert isinstance(grouping.rates, GroupRates)
        for point in grouping.rates.points:
            caption = f"Rates at the global threshold of FMR {point.threshold.target}"
            rates = by_heading(found.rows(caption, number))
            for group in point.groups:
                fmr, fnmr = rates[group.name][:2]
                assert fmr.startswith(f"{group.fmr.value:.2g} [")
                assert f"{group.fmr.mark} {group.fmr.events:,}/{group.fmr.total:,}" in fmr
                assert fnmr.startswith(f"{100 * (group.fnmr.value or 0):.2f} % [")
                assert f" {group.fnmr.events:,}/{group.fnmr.total:,}" in fnmr
    assert "not deployable" in found.text
    rows = [row for title, rows in found.tables if title == "All measures" for row in rows[1:]]
    expected = [
        row for grouping in audit.groupings for row in getattr(grouping.differentials, "rows", ())
    ]
    assert len(rows) == len(expected)
    for row, measure in zip(rows, expected, strict=True):
        assert row[0] == f"{measure.measure}, {measure.of}"
        if measure.value is None:
            assert row[2] == "–" and measure.remark in row[6]
        else:
            assert row[2].startswith(f"{measure.value:.4g}")
    assert audit.comparison is not None
    changes = by_heading(found.rows("Changes"))
    for change in audit.comparison.to_json()["rows"]:
        if change["figure"] == "CV of norms":
            assert changes["CV of norms by construction"][0] == f"{change['baseline']:.3g}"


def test_inferred_labels_put_a_banner_on_top(tmp_path: Path, undrawn: None) -> None:
    audit = toy_audit(tmp_path, source="inferred", attributes=("race",))
    inferred = Page(render(audit)["report.html"].decode())
    assert audit.banner is not None
    assert audit.banner in inferred.text
    notes = [p for p in inferred.all("p") if p.get("class") == "banner"]
    assert notes == [{"class": "banner", "role": "note"}]
    assert b'class="banner"' not in default_files()["report.html"]
    assert "No baseline was given" in inferred.text
    assert "see MANIFEST.json" in inferred.text


def test_one_group_of_single_images_is_said_to_have_no_comparison(
    tmp_path: Path, undrawn: None
) -> None:
    audit = toy_audit(tmp_path, names=("Only",), sizes=(30,), attributes=("race",), images=1)
    files = render(audit)
    alone = Page(files["report.html"].decode())
    said = words(alone.text)
    assert "No comparison: all subjects are in one group." in said
    assert said.count("error rates need at least one of each") >= 3
    assert "There is no threshold" in said
    # Without scores there is nothing to slide over.
    assert alone.all("script") == [] and alone.all("input") == []
    assert {name for name in files if name.endswith("svg")} == {
        f"figures/{name}.svg"
        for name in (
            "headline",
            "1-race-norms",
            "1-race-difference",
            "1-race-ecdf",
            "1-race-spread",
        )
    }


@pytest.mark.integration
def test_figures_are_files_and_in_the_page(tmp_path: Path) -> None:
    audit = toy_audit(tmp_path, attributes=("sex",), targets=("1e-2",))
    files = render(audit)
    text = files.pop("report.html").decode()
    names = {Path(name).stem for name in files}
    assert names == {"headline"} | {
        f"1-sex-{name}"
        for name in (
            *("norms", "difference", "ecdf", "spread", "delta", "decile", "discard"),
            *("rates", "det", "matrix", "scores", "differentials", "searches"),
        )
    }
    pictures = [base64.b64decode(data) for data in re.findall(r"base64,([^\"]+)\"", text)]
    drawn = [content for name, content in files.items() if name.endswith(".svg")]
    assert sorted(pictures) == sorted(drawn)
    for name, content in files.items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
        else:
            image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
            assert image is not None and image.std() > 5
    assert len(files) == 2 * len(names)


# --- in a browser -----------------------------------------------------------------------------


@pytest.fixture
def browse(tmp_path: Path) -> Callable[[str, str], str]:
    """Return what opens a page at a fragment and gives its elements after scripts have run."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine, so the page cannot be opened in a browser")

    def open_page(content: str, fragment: str = "") -> str:
        path = tmp_path / "report.html"
        path.write_text(content, encoding="utf-8")
        flags = [*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]
        done = subprocess.run(
            [str(CHROMIUM), *flags, "--dump-dom", path.as_uri() + fragment],
            capture_output=True,
            timeout=300,
            check=True,
        )
        return done.stdout.decode()

    return open_page


def slid(dom: str) -> dict[tuple[int, int], dict[str, str]]:
    """Return the cells of the slider's tables by grouping and group."""
    found = {}
    for row in re.findall(r'<tr id="slider-.*?</tr>', dom, re.S):
        g, i = map(int, re.findall(r'id="slider-(\d+)-(\d+)"', row)[0])
        found[g, i] = dict(re.findall(r'data-cell="([a-z-]+)"[^>]*>([^<]*)<', row))
    return found


def counted(counts: tuple[int, ...], threshold: float) -> int:
    """Count the scores at or above an edge."""
    return sum(c for c, low in zip(counts, SCORE_EDGES[:-1], strict=True) if low >= threshold)


def check_rows(dom: str, audit: Audit, threshold: float) -> None:
    rows = slid(dom)
    assert len(rows) == sum(len(grouping.histograms) for grouping in audit.groupings)
    for (g, i), cells in rows.items():
        scores = audit.groupings[g].histograms[i]
        matched = counted(scores.non_mated, threshold)
        missed = sum(scores.mated) - counted(scores.mated, threshold)
        assert cells["fmr-counts"][2:] == f"{matched:,}/{sum(scores.non_mated):,}"
        assert cells["fnmr-counts"][2:] == f"{missed:,}/{sum(scores.mated):,}"
        assert float(cells["fmr"]) == pytest.approx(matched / sum(scores.non_mated), rel=0.01)
        assert float(cells["fnmr"]) == pytest.approx(missed / sum(scores.mated), rel=0.01)


def admit(text: str, script: str) -> str:
    """Add a script to a page and to its policy."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = text.replace("script-src ", f"script-src 'sha256-{digest}' ")
    return text.replace("</body>", f"<script>{script}</script></body>")


def test_slider_starts_at_the_audits_own_counts(
    tmp_path: Path, undrawn: None, browse: Callable[..., str]
) -> None:
    point = OperatingPoint("1e-2", 1.0, EDGE, 0.01, 1, 1, 1000, 10**5, True, True)
    audit = toy_audit(
        tmp_path,
        attributes=("race",),
        targets=("1e-2",),
        calibration=Calibration("other data", (point,)),
    )
    dom = browse(render(audit)["report.html"].decode())
    assert re.search(r'<div id="slider" class="slider">', dom)
    assert "t = 0.5: counts are exact at this edge of the bins." in dom
    check_rows(dom, audit, EDGE)
    for (g, i), cells in slid(dom).items():
        rates = audit.groupings[g].rates
        assert isinstance(rates, GroupRates)
        group = rates.points[0].groups[i]
        assert cells["fmr-counts"] == (f"{group.fmr.mark} {group.fmr.events:,}/{group.fmr.total:,}")
        assert cells["fnmr-counts"] == (
            f"{group.fnmr.mark} {group.fnmr.events:,}/{group.fnmr.total:,}"
        )


def test_a_threshold_between_edges_is_said_to_be_approximate(
    text: str, browse: Callable[..., str]
) -> None:
    dom = browse(text, f"#t={BEYOND}")
    nearest = SCORE_EDGES[np.abs(SCORE_EDGES - BEYOND).argmin()]
    assert f"t = {BEYOND} lies within a bin; shown is its nearest edge {nearest}" in words(dom)
    check_rows(dom, default_audit(), nearest)


def test_slider_number_and_buttons_move_the_rates(text: str, browse: Callable[..., str]) -> None:
    # Each way to ask leaves a copy of the tables behind.
    driver = """
    const keep = (name) => {
      const copy = document.createElement("output");
      copy.id = name;
      copy.textContent = document.getElementById("slider").innerHTML;
      document.body.append(copy);
    };
    const range = document.getElementById("threshold");
    range.value = 300;
    range.dispatchEvent(new Event("input"));
    keep("ranged");
    const number = document.getElementById("threshold-number");
    number.value = -5;
    number.dispatchEvent(new Event("change"));
    keep("lowest");
    number.value = 5;
    number.dispatchEvent(new Event("change"));
    keep("highest");
    document.querySelector("[data-threshold]").click();
    keep("clicked");
    """
    dom = browse(admit(text, driver))
    audit = default_audit()
    target = audit.thresholds[0].value
    assert target is not None
    edges = {
        "ranged": SCORE_EDGES[300],
        "lowest": SCORE_EDGES[0],
        "highest": SCORE_EDGES[-2],
        "clicked": SCORE_EDGES[np.abs(SCORE_EDGES - target).argmin()],
    }
    for name, edge in edges.items():
        (copy,) = re.findall(f'<output id="{name}">(.*?)</output>', dom, re.S)
        copy = copy.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        check_rows(copy, audit, edge)


def test_global_thresholds_lie_between_the_edges_around_them(text: str) -> None:
    for grouping in default_audit().groupings:
        assert isinstance(grouping.rates, GroupRates)
        for point in grouping.rates.points:
            threshold = point.threshold.value
            assert threshold is not None
            above = SCORE_EDGES[threshold <= SCORE_EDGES].min()
            below = SCORE_EDGES[threshold >= SCORE_EDGES].max()
            for scores, group in zip(grouping.histograms, point.groups, strict=True):
                matched = group.fmr.events
                assert counted(scores.non_mated, above) <= matched
                assert matched <= counted(scores.non_mated, below)


def test_policy_stops_what_was_smuggled_in(text: str, browse: Callable[..., str]) -> None:
    smuggled = text.replace(
        "</main>",
        "<script>document.title = 'taken'</script><img src='data:,' alt='' "
        "onerror=\"document.title = 'taken'\"><style>#slider { display: none }</style></main>",
    )
    # What the page looks like is asked by a script that the policy knows.
    asked = "document.body.dataset.shown = getComputedStyle(slider).display"
    dom = browse(admit(smuggled, asked))
    assert "<title>taken</title>" not in dom and 'data-shown="block"' in dom
    check_rows(dom, default_audit(), float(re.findall(r"edge ([\d.]+),", dom)[0]))
    # Without the policy all of that would have worked.
    open_page = re.sub(r"<meta http-equiv[^>]*>", "", smuggled)
    dom = browse(admit(open_page, asked))
    assert "<title>taken</title>" in dom and 'data-shown="none"' in dom


def test_without_script_the_slider_is_not_there(text: str, found: Page) -> None:
    (slider,) = [div for div in found.all("div") if div.get("id") == "slider"]
    assert "hidden" in slider
