"""What an audit finds, in its rows, its sentences, its page and its files."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.html_page import Page
from helpers.toy_embeddings import take

from facerec.embedding.extraction import Embeddings
from facerec.fairness import rows as names
from facerec.fairness.attributes import read_attributes
from facerec.fairness.audit import audit_embeddings
from facerec.fairness.page import page_files, write_audit
from facerec.fairness.result import Audit
from facerec.fairness.scores import audit_scores
from facerec.fairness.settings import AuditSettings, SearchPlan
from facerec.records.images import MemoryImages
from facerec.report.tidy import OF_PAIRS
from facerec.statistics.intervals import wilson
from facerec.verification.bench import Bench, Pairs
from facerec.verification.protocols import ScoredPairs, read_scores

EVIL = "<script>alert(1)</script>"
SIZES = {"Amber": 40, "Blue": 30, EVIL: 26, "Dun": 4, "": 5}
"""Subjects of each race; the fourth is too small to be shown, the last is not recorded."""
FAST = AuditSettings(fmr=("1e-1", "1e-2", "1e-7"), permutations=99, replicates=50)


def people(folder: Path, source: str = "curator", images: int = 4) -> tuple[Embeddings, Path]:
    """Return embeddings of made-up people, and the table of their races and sexes."""
    generator = np.random.default_rng(0)
    races = np.repeat(list(SIZES), list(SIZES.values()))
    person = np.repeat(np.arange(len(races)), images)
    code = np.array([list(SIZES).index(race) for race in races])
    centres = generator.normal(size=(5, 16))
    faces = generator.normal(size=(len(races), 16)) + 0.3 * code[:, None] * centres[code]
    vectors = faces[person] + 0.7 * generator.normal(size=(person.size, 16))
    norms = 20 - 2 * code[person] + generator.normal(size=person.size)
    norms += generator.normal(size=len(races))[person]
    vectors *= (norms / np.linalg.norm(vectors, axis=1))[:, None]
    vectors[3] = np.nan
    ids = np.array([f"face-{row}.jpg" for row in range(person.size)])
    path = folder / "attributes.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "race", "sex", "label_source"])
        for one, who in zip(ids, person, strict=True):
            writer.writerow([one, f"person-{who}", races[who], "fm"[who % 2], source])
    lengths = np.linalg.norm(vectors, axis=1).astype(np.float32)
    return Embeddings(vectors.astype(np.float32), lengths, True, ids, failures={3: "no face"}), path


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """An audit with everything in it."""
    embeddings, path = people(tmp_path_factory.mktemp("people"))
    turned = embeddings.vectors * np.float32(1.1)
    turned[:, 0] += 1
    other = replace(embeddings, vectors=turned, norms=np.linalg.norm(turned, axis=1))
    return audit_embeddings(
        embeddings,
        read_attributes(path, ["race", "sex"]),
        settings=replace(FAST, intersect=True),
        baseline=other,
        searches=SearchPlan(fpir=("2e-1", "1e-1"), reference="Amber"),
        inputs=[{"role": "embeddings", "name": "E.npz", "sha256": "ab" * 32}],
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """An audit by one attribute."""
    embeddings, path = people(tmp_path_factory.mktemp("people"))
    return audit_embeddings(embeddings, read_attributes(path, ["sex"]), settings=FAST)


def test_rows_hold_what_was_counted(found: Audit) -> None:
    rows = found.rows
    assert found.groupings == ["race", "sex", "race × sex"]
    assert found.facts["groups"]["race"]["suppressed"] == ("Dun",)
    assert found.facts["failures"] == 1 and found.facts["subjects"] == 101
    where = {"grouping": "race", "group": "Amber"}
    assert names.value_of(rows, names.SUBJECTS, "size", **where) == 40
    failed = names.select(rows, names.FAILED, **where).iloc[0]
    assert (failed.numerator, failed.denominator) == (1, 160)
    for row in rows[rows["numerator"].notna() & rows["value"].notna()].itertuples():
        if row.kind == "value" and row.figure in ("FMR", OF_PAIRS, names.FAILED):
            assert row.value == pytest.approx(row.numerator / row.denominator)
    shares = rows[rows["figure"].isin(["FMR", OF_PAIRS, "FPIR", "FNIR", names.RANK_1])]
    shares = shares[shares["kind"] == "value"]
    for row in shares.itertuples():
        assert row.value == row.numerator / row.denominator and row.low <= row.value <= row.high
    # What has no value or no interval says why.
    lacking = rows[rows["value"].isna()]
    assert len(lacking) and (lacking["remark"] != "").all()


def test_findings_are_sentences_made_of_the_rows(found: Audit) -> None:
    (first,) = (one for one in found.findings if not one.exploratory)
    others = [one for one in found.findings if one.exploratory]
    assert 2 <= len(others) <= 7
    eta2 = names.value_of(found.rows, names.ETA2, grouping="race")
    assert eta2 is not None and first.said.startswith(f"{100 * eta2:.2g} % [")
    assert first.conclusion == "difference detected" and "longest in Amber" in first.detail
    rates = names.select(found.rows, "FMR", at=found.at, grouping="race")
    rates = rates[rates["group"] != "all groups"].sort_values("value")
    line = next(finding for finding in others if "two people" in finding.said)
    high, low = rates.iloc[-1], rates.iloc[0]
    assert f"recorded as {high.group} and" in line.said
    assert f"{high.value / low.value:.3g} times [" in line.said
    assert f"({int(high.numerator):,}/{int(high.denominator):,})" in line.detail
    assert sum("From the baseline" in finding.said for finding in found.findings) >= 1


def test_the_page_is_short_and_says_what_the_rows_say(found: Audit, plain: Audit) -> None:
    html = page_files(plain, "facerec audit")["audit.html"].decode()
    page = Page(html)
    assert len(page.text.split()) <= 1500
    assert len(page.tables) <= 6 and len(page.all("img")) <= 5
    # The size of the groups comes before any finding.
    assert page.text.index("f 53 subjects") < page.text.index("lies between groups")
    files = page_files(found, "facerec audit")
    page = Page(files["audit.html"].decode())
    assert len(page.tables) <= 6 and len(page.all("img")) == 5 == len(files) - 1
    assert EVIL in page.text and "<script>alert" not in files["audit.html"].decode()
    for row in page.rows("Error rates")[1:]:
        grouping, _, group = row[0].partition(": ")
        where = {"grouping": grouping, "group": group}
        fmr = names.select(found.rows, "FMR", at=found.at, **where).iloc[0]
        assert f"{int(fmr.numerator):,}/{int(fmr.denominator):,}" in row[1]
    assert all(image["alt"] for image in page.all("img"))
    assert files == page_files(found, "facerec audit")


def test_all_files_hold_the_same_rows_and_no_names(found: Audit, tmp_path: Path) -> None:
    page = write_audit(tmp_path / "out", found, "facerec audit --out OUT")
    files = {path.name: path.read_bytes() for path in page.parent.iterdir()}
    assert len(files) <= 12
    document = json.loads(files["audit.json"])
    assert document["schema"] == "facerec.audit/4" and set(document["files"]) == set(files)
    # One of an earlier release is replaced, too.
    (tmp_path / "out" / "audit.json").write_text(
        json.dumps({**document, "schema": "facerec.audit/3"})
    )
    table = list(csv.DictReader(io.StringIO(files["audit.csv"].decode())))
    assert len(table) == len(document["rows"]) == len(found.rows)
    for line, row, exact in zip(table, document["rows"], found.records, strict=True):
        assert row == exact and list(row) == list(names.COLUMNS)
        for name in ("value", "low", "high", "numerator", "denominator"):
            assert (float(line[name]) if line[name] else None) == row[name]
    for name, content in files.items():
        assert b"person-" not in content and b"face-" not in content, name
    card = files["model_card_section.md"].decode()
    assert len(card.split()) < 450 and "&lt;script&gt;" in card and EVIL not in card
    # The same audit gives the same bytes, in the place of the earlier one.
    write_audit(tmp_path / "out", found, "facerec audit --out OUT")
    assert {path.name: path.read_bytes() for path in page.parent.iterdir()} == files


def test_an_audit_does_not_depend_on_the_order_of_images(tmp_path: Path) -> None:
    embeddings, path = people(tmp_path)
    labels = read_attributes(path, ["sex"])
    turned = np.random.default_rng(1).permutation(len(embeddings.norms))
    again = take(embeddings, turned)
    plan = SearchPlan(fpir=("1e-1",))
    one, other = (
        audit_embeddings(each, labels, settings=FAST, searches=plan) for each in (embeddings, again)
    )
    pd.testing.assert_frame_equal(one.rows, other.rows, rtol=1e-9)


def test_an_audit_says_of_its_pairs_what_verification_says(tmp_path: Path) -> None:
    embeddings, path = people(tmp_path)
    labels, every = read_attributes(path, ["sex"]), np.stack(np.triu_indices(404, 1))
    found = []
    for more in ([], [[7, 9], [7, 9]], every[::-1, :2]):
        first, second = np.append(every, np.array(more, int).reshape(2, -1), axis=1)
        pairs = Pairs(first, second, labels.subjects[first] == labels.subjects[second])
        bench = Bench("list", MemoryImages("memory", embeddings.ids.tolist(), []), pairs)
        found.append(audit_embeddings(embeddings, labels, settings=FAST, pairs=bench))
    pd.testing.assert_frame_equal(found[1].rows, found[0].rows)
    said = [(set(one.warnings) - set(found[0].warnings)).pop() for one in found[1:]]
    assert said[0].startswith("2 pairs compare an image with itself")
    assert said[1].startswith("2 pairs of the same two images")
    alike = replace(embeddings, vectors=np.ones_like(embeddings.vectors))
    warnings = audit_embeddings(alike, labels, settings=FAST).warnings
    assert any("point the same way" in warning for warning in warnings)


# --- scores -----------------------------------------------------------------------------------


def write_scores(path: Path, header: str, *columns: np.ndarray) -> ScoredPairs:
    lines = [",".join(map(str, (*line, "study"))) for line in zip(*columns, strict=True)]
    path.write_text("\n".join([f"{header},label_source", *lines]) + "\n")
    return read_scores(path, groups=("race",))


def test_pairs_of_nobody_known_are_independent(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    same, race = generator.random(2000) < 0.4, generator.choice(["A", "B"], 2000, p=[0.7, 0.3])
    centres = np.where(same, 0.6, 0.1 + 0.1 * (race == "B"))
    scores = np.tanh(centres + 0.2 * generator.normal(size=2000))
    scored = write_scores(tmp_path / "s.csv", "label,score,race", same.astype(int), scores, race)
    found = audit_scores(scored, ("race",), name="s.csv", settings=FAST)
    assert found.facts["subjects"] is None and any("independent" in w for w in found.warnings)
    for target in ("1e-1", "1e-2"):
        threshold = names.value_of(found.rows, names.THRESHOLD, "threshold", target=target)
        for group in "AB":
            for figure, errors, of in (
                ("FMR", scores >= threshold, ~same),
                ("FNMR", scores < threshold, same),
            ):
                inside = of & (race == group)
                row = names.select(found.rows, figure, group=group, target=target).iloc[0]
                limits = wilson(int((errors & inside).sum()), int(inside.sum()))
                assert (row.low, row.high) == (limits.low, limits.high)
    # B was made to have more false matches; norms are in no row, table or word.
    assert found.findings[0].conclusion == "difference detected"
    assert not found.rows["figure"].str.contains("norm").any()
    page = page_files(found, "x")["audit.html"].decode()
    assert "norm audit is impossible" in page and "Does the norm matter" not in page


RATES = {
    "far apart": {"A": (150, 1000), "B": (60, 1000)},
    "equal": {"A": (100, 1000), "B": (100, 1000)},
    "rare": {"A": (60, 9000), "B": (12, 9000)},
    "none in one": {"A": (40, 1000), "B": (0, 240)},
    "few pairs": {"A": (30, 60), "B": (90, 1000)},
    "three": {"A": (150, 1000), "B": (60, 1000), "C": (90, 1000)},
}
"""False non-matches of mated pairs in each group."""


@pytest.mark.parametrize("case", list(RATES))
def test_a_sentence_counts_people_as_the_rows_do(tmp_path: Path, case: str) -> None:
    mated = RATES[case] | {"few": (3, 3)}
    races, same, scores = [], [], []
    for race, (errors, pairs) in mated.items():
        races += [race] * (pairs + (2 if race == "few" else 2000))
        same += [1] * pairs + [0] * (len(races) - len(same) - pairs)
        scores += [-0.9] * errors + [0.9] * (pairs - errors)
        scores += np.linspace(-1, 0, len(same) - len(scores)).tolist()
    scored = write_scores(
        tmp_path / "s.csv", "label,score,race", *map(np.array, (same, scores, races))
    )
    settings = replace(FAST, fmr=("1e-1",), replicates=200)
    document = audit_scores(scored, ("race",), name="s.csv", settings=settings).to_json("", [])
    rows = {(row["figure"], row["group"], row["kind"]): row for row in document["rows"]}
    assert [one["said"] for one in document["findings"] if "few" in one["text"]] == []
    (line,) = (one for one in document["findings"] if "wrongly rejected" in one["said"])
    told = re.findall(r"(at most )?([\d,]+) (?:in|of) ([\d,.]+).*? as (\w)", line["said"])
    assert [group for *_, group in told] == ["A", "B"] or case == "equal"
    for bound, count, of, group in told:
        row = rows["FNMR", group, "value"]
        share = float(count.replace(",", "")) / float(of.replace(",", ""))
        assert share == pytest.approx(row["high"] if bound else row["value"], rel=0.1)
        assert f"({row['numerator']:,}/{row['denominator']:,})" in line["detail"]
    ratio = rows["FND (FNMR max/min)", "", "ratio"]
    assert line["ratio"] == ratio["value"]
    if ratio["value"] is None:
        assert line["said"].endswith("cannot tell how many times") and case == "none in one"
    elif rows["FND (FNMR max/min)", "", "p"]["value"] >= 0.05:
        assert line["said"].endswith(f"cannot tell, between 1 and {ratio['high']:.3g} times")
    else:
        limits = f"[{ratio['low']:.3g},\N{NO-BREAK SPACE}{ratio['high']:.3g}]"
        assert line["said"].endswith(f"{ratio['value']:.3g} times {limits}")
        assert line is document["findings"][0]
    assert (case == "equal") == (line["conclusion"] == "none detected at this precision")


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium prints the page")
def test_the_page_is_printed_on_two_sheets(plain: Audit, tmp_path: Path) -> None:
    page = write_audit(tmp_path / "out", plain, "facerec audit").as_uri()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={tmp_path / 'a.pdf'}"]
    subprocess.run(["chromium", *flags, page], check=True, capture_output=True, timeout=120)
    assert len(re.findall(rb"/Type /Page\b", (tmp_path / "a.pdf").read_bytes())) == 2


@pytest.mark.parametrize("columns", ["race_1,race_2", "bio_ref_race,bio_probe_race", ""])
def test_scores_give_what_their_embeddings_give(tmp_path: Path, columns: str) -> None:
    embeddings, path = people(tmp_path, images=2)
    labels = read_attributes(path, ["race"])
    first, second = np.triu_indices(len(embeddings.norms), 1)
    unit = embeddings.vectors / np.linalg.norm(embeddings.vectors, axis=1, keepdims=True)
    scores = np.einsum("nd,nd->n", unit[first], unit[second])
    who, race = labels.subjects, labels.groups["race"]
    kept = ~np.isnan(scores)
    sides = [who[first], who[second]]
    head = "score," + (columns.replace("race", "subject_id") or "subject_id_1,subject_id_2")
    if columns:
        sides, head = [*sides, race[first], race[second]], f"{head},{columns}"
    scored = write_scores(tmp_path / "s.csv", head, *(side[kept] for side in (scores, *sides)))
    given = None if columns else labels
    found = audit_scores(scored, ("race",), name="s.csv", settings=FAST, attributes=given)
    expected = audit_embeddings(embeddings, labels, settings=FAST)
    for figure in ("FMR", "FNMR"):
        one, other = (names.select(each.rows, figure) for each in (found, expected))
        assert len(one) == len(other)
        for column in ("group", "target", "numerator", "denominator"):
            assert one[column].tolist() == other[column].tolist()


def test_images_that_the_face_score_refuses_are_counted_by_group(tmp_path: Path) -> None:
    """Every tenth image of one sex and every second of the other are refused; all else stays."""
    embeddings, path = people(tmp_path)
    labels = read_attributes(path, ["sex"])
    plain = audit_embeddings(embeddings, labels, settings=FAST)
    row = np.arange(len(embeddings.norms))
    refused = np.where(row // 4 % 2, row % 2 == 0, row % 10 == 0)
    scores = np.where(refused, -3, 1).astype(np.float32)
    looked = replace(embeddings, face_scores=scores, note={"face_limit": -2.5})
    found = audit_embeddings(looked, labels, settings=FAST)
    for code, sex in enumerate("fm"):
        inside = (row // 4 % 2 == code) & np.isfinite(embeddings.norms)
        one = names.select(found.rows, names.REFUSED, group=sex).iloc[0]
        assert (one.numerator, one.denominator) == (refused[inside].sum(), inside.sum())
        assert 0 < one.low < one.value == refused[inside].mean() < one.high < 1
    rest = found.rows[found.rows["figure"] != names.REFUSED].reset_index(drop=True)
    pd.testing.assert_frame_equal(rest, plain.rows)
    count = f"{int(refused[np.isfinite(embeddings.norms)].sum())} of {row.size - 1} images"
    assert any(count in warning for warning in found.warnings)
    assert any("not looked at" in warning.lower() for warning in plain.warnings)
    page = Page(page_files(found, "facerec audit")["audit.html"].decode())
    assert names.REFUSED in page.rows("Error rates")[0]
    card = write_audit(tmp_path / "out", found, "").with_name("model_card_section.md")
    assert names.REFUSED in card.read_text()


def test_a_grouping_without_mated_pairs_takes_no_rates_from_the_others(tmp_path: Path) -> None:
    """One image of each person has a sex, all have a race."""
    embeddings, path = people(tmp_path)
    lines = path.read_text().splitlines()
    kept = [
        line if row % 4 == 1 else line.replace(",f,", ",,").replace(",m,", ",,")
        for row, line in enumerate(lines)
    ]
    path.write_text("\n".join(kept))
    found = audit_embeddings(embeddings, read_attributes(path, ["sex", "race"]), settings=FAST)
    (why,) = names.select(found.rows, "FMR", grouping="sex").remark
    assert "mated" in why
    alone = audit_embeddings(embeddings, read_attributes(path, ["race"]), settings=FAST).rows
    both = [rows[rows.grouping.isin(["", "race"])] for rows in (found.rows, alone)]
    rates = [rows[rows.figure.isin(["FMR", "FNMR", names.THRESHOLD])] for rows in both]
    pd.testing.assert_frame_equal(*(each.reset_index(drop=True) for each in rates))
