from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from facerec.errors import DatasetError, MetricError
from facerec.fairness.attributes import read_attributes
from facerec.fairness.audit import audit
from facerec.fairness.comparisons import calibrate_on_scores
from facerec.fairness.differentials import Differentials
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.outputs import csv_tables, model_card, to_json
from facerec.fairness.page import render
from facerec.fairness.pair_counts import PairCounts
from facerec.fairness.rate_results import GroupRates
from facerec.fairness.result import Audit, GroupAudit
from facerec.fairness.scores import audit_scores
from facerec.report import figures
from facerec.statistics.intervals import wilson
from facerec.verification.protocols import ScoredPairs, read_scores
from tests.fairness.test_audit_assembly import People, all_scores, listed, people
from tests.fairness.test_outputs import schema_errors

TARGETS = ("1e-1", "1e-2")
FAST = {"replicates": 60, "targets": TARGETS}

BOB = ("bio_ref_subject_id", "probe_subject_id", "bio_ref_race", "probe_race")
NEWER = ("bio_ref_subject_id", "bio_probe_subject_id", "bio_ref_race", "bio_probe_race")
PLAIN = ("subject_id_1", "subject_id_2", "race_1", "race_2")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[People, tuple[NDArray, ...]]:
    """Made-up people, and scores, sides and labels of some of their pairs."""
    made = people(tmp_path_factory.mktemp("people"))
    scores, first, second, same = all_scores(made)
    generator = np.random.default_rng(1)
    drawn = generator.choice(np.flatnonzero(~same), 3000, replace=False)
    kept = np.concatenate([np.flatnonzero(same), drawn])
    return made, tuple(column[kept] for column in (scores, first, second, same))


def write(path: Path, made: People, columns: tuple[NDArray, ...], names: tuple[str, ...]) -> Path:
    scores, first, second, _ = columns
    race = np.array(made.races)
    rows = [",".join(["score", *names])]
    for score, one, other in zip(scores.tolist(), first, second, strict=True):
        sides = f"p{made.subject[one]}", f"p{made.subject[other]}"
        groups = (race[made.race[one]], race[made.race[other]]) if len(names) == 4 else ()
        rows.append(",".join([repr(score), *sides, *groups]))
    path.write_text("\n".join(rows) + "\n")
    return path


def rates_of(part: GroupAudit) -> GroupRates:
    assert isinstance(part.rates, GroupRates)
    return part.rates


def loose(folder: Path, lines: str, *groups: str, header: str = "label,score,race") -> Audit:
    """Audit a file that does not name the subjects."""
    path = folder / "loose.csv"
    path.write_text(f"{header}\n{lines}")
    chosen = groups or ("race",)
    return audit_scores(read_scores(path, groups=chosen), chosen, name=path.name, **FAST)


def some_lines(seed: int = 0, pairs: int = 2000) -> tuple[str, NDArray, NDArray, NDArray]:
    """Return lines of label, score and race, and these columns."""
    generator = np.random.default_rng(seed)
    same = generator.random(pairs) < 0.4
    race = generator.choice(["A", "B"], pairs, p=[0.7, 0.3])
    centres = np.where(same, 0.6, 0.1 + 0.1 * (race == "B"))
    scores = np.tanh(centres + 0.2 * generator.normal(size=pairs))
    rows = zip(same, scores.tolist(), race, strict=True)
    return "".join(f"{int(a)},{b!r},{c}\n" for a, b, c in rows), same, scores, race


@pytest.mark.parametrize("names", [BOB, NEWER, PLAIN, PLAIN[:2]])
def test_scores_give_what_their_embeddings_give(
    pairs: tuple[People, tuple[NDArray, ...]], tmp_path: Path, names: tuple[str, ...]
) -> None:
    made, columns = pairs
    # Of two columns alone the groups come from the table of attributes, by subject.
    attributes = made.attributes() if len(names) == 2 else None
    scored = read_scores(write(tmp_path / "s.csv", made, columns, names), groups=("race",))
    found = audit_scores(scored, ("race",), name="s.csv", attributes=attributes, **FAST)
    bench = listed(made, *columns[1:])
    expected = audit(made.embeddings, made.attributes(), pairs=bench, permutations=9, **FAST)
    (part,), (other,) = found.groupings, expected.groupings
    assert found.subjects == expected.subjects and found.pairs == len(columns[0])
    assert found.target == expected.target and part.names == other.names
    for point, same_point in zip(rates_of(part).points, rates_of(other).points, strict=True):
        # Thresholds lie just above a score, in the precision of the scores.
        assert point.threshold.value == pytest.approx(same_point.threshold.value)
        for group, same_group in zip(point.groups, same_point.groups, strict=True):
            assert (group.fmr, group.fnmr) == (same_group.fmr, same_group.fnmr)
        assert (point.fmr, point.fnmr) == (same_point.fmr, same_point.fnmr)
        assert point.matrix == same_point.matrix
    # Persons are numbered by name in one and by their order in the other.
    assert isinstance(part.differentials, Differentials)
    assert isinstance(other.differentials, Differentials)
    for row, same_row in zip(part.differentials.rows, other.differentials.rows, strict=True):
        assert (row.measure, row.value, row.mark) == (
            same_row.measure,
            same_row.value,
            same_row.mark,
        )
    assert part.histograms == other.histograms
    assert [count.subjects for count in part.composition] == [
        count.subjects for count in other.composition
    ]


def test_a_small_group_is_not_in_the_threshold_either(tmp_path: Path) -> None:
    made = people(tmp_path, (16, 14, 6))
    scores, first, second, same = all_scores(made)
    path = write(tmp_path / "s.csv", made, (scores, first, second, same), PLAIN)
    found = audit_scores(read_scores(path, groups=("race",)), ("race",), name="s.csv", **FAST)
    bench = listed(made, first, second, same)
    of_list, of_all = (
        audit(made.embeddings, made.attributes(), pairs=pairs, permutations=9, **FAST)
        for pairs in (bench, None)
    )
    shown = made.race < 2
    kept = shown[first] & shown[second]
    assert (found.subjects, found.pairs) == (30, np.count_nonzero(kept))
    for one in (found, of_list, of_all):
        for point, reference in zip(
            rates_of(one.groupings[0]).points, rates_of(of_all.groupings[0]).points, strict=True
        ):
            threshold = point.threshold
            assert threshold.non_mated == np.count_nonzero(kept & ~same)
            assert threshold.value == pytest.approx(reference.threshold.value)
            for rate, other in ((point.fmr, reference.fmr), (point.fnmr, reference.fnmr)):
                assert (rate.events, rate.total) == (other.events, other.total)
            assert point.fmr.events == threshold.false_matches


def test_norms_are_left_out_and_that_is_said(
    pairs: tuple[People, tuple[NDArray, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "draw", lambda figure, kind: kind.encode())
    made, columns = pairs
    scored = read_scores(write(tmp_path / "s.csv", made, columns, BOB), groups=("race",))
    found = audit_scores(scored, ("race",), name="s.csv", **FAST)
    (part,) = found.groupings
    assert part.norms is None and isinstance(part.association, NoComparison)
    assert any("norm audit is impossible" in warning for warning in found.warnings)
    assert {finding.topic for finding in found.findings} == {"FMR", "FNMR"}
    document = to_json(found)
    assert schema_errors(document) == []
    assert document["norms"] == [] and document["counts"]["images"] is None
    assert {"association", "channels", "fusion"} <= {
        row["what"] for row in document["not_computed"]
    }
    assert len(csv_tables(found, document)["rates"]) == 2 * 2 * 4
    html = render(found)["report.html"].decode()
    assert "Recognition at the global threshold" in html and "norm audit is impossible" in html
    for absent in ("Norm distributions", "Association of the norm", "Does the norm matter"):
        assert absent not in html
    card = model_card(found)
    assert "mean norm" not in card and f"{len(scored):,} scored pairs" in card


def test_pairs_of_nobody_known_are_independent(tmp_path: Path) -> None:
    lines, same, scores, race = some_lines()
    found = loose(tmp_path, lines)
    (part,) = found.groupings
    assert found.subjects is None and any("does not name" in text for text in found.warnings)
    for point in rates_of(part).points:
        accepted = scores >= point.threshold.value
        for name, group in zip("AB", point.groups, strict=True):
            inside = race == name
            for rate, events, of in (
                (group.fmr, accepted, inside & ~same),
                (group.fnmr, ~accepted, inside & same),
            ):
                errors, comparisons = int((events & of).sum()), int(of.sum())
                assert (rate.events, rate.total) == (errors, comparisons)
                limits = wilson(errors, comparisons)
                assert rate.interval is not None
                assert (rate.interval.low, rate.interval.high) == (limits.low, limits.high)
                assert "independent" in rate.interval.assumption
    assert schema_errors(to_json(found)) == []
    assert isinstance(part.differentials, Differentials) and part.differentials.rows
    # B was made to have more false matches.
    row = next(row for row in part.differentials.rows if row.measure == "max/geomean")
    assert row.of == "FMR" and row.p_value is not None and row.p_value < 0.05


def test_resampled_pairs_have_binomial_rates() -> None:
    counts = PairCounts(30, 1000, 5, 200, (0, 0))
    fmr, fnmr = counts.resample(4000)
    for drawn, errors, pairs in ((fmr, 30, 1000), (fnmr, 5, 200)):
        rate = errors / pairs
        spread = np.sqrt(rate * (1 - rate) / pairs)
        assert abs(drawn.mean() - rate) < 4 * spread / np.sqrt(drawn.size)
        assert drawn.std() == pytest.approx(spread, rel=0.05)
    assert abs(np.corrcoef(fmr, fnmr)[0, 1]) < 0.08
    # At a lower threshold each replicate has at least as many false matches.
    more = PairCounts(60, 1000, 2, 200, (0, 0)).resample(4000)
    assert (more[0] >= fmr).all() and (more[1] <= fnmr).all()
    np.testing.assert_array_equal(PairCounts(0, 9, 9, 9, (1, 2)).resample(5), [[0] * 5, [1] * 5])


@pytest.mark.integration
def test_equal_rates_of_independent_pairs_are_seldom_told_apart(tmp_path: Path) -> None:
    rejected = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        same = np.arange(3000) % 3 == 0
        scores = same + generator.normal(size=3000)
        race = generator.choice(["A", "B"], 3000)
        rows = zip(same, scores.tolist(), race, strict=True)
        lines = "".join(f"{int(a)},{b!r},{c}\n" for a, b, c in rows)
        found = loose(tmp_path, lines).groupings[0].differentials
        assert isinstance(found, Differentials)
        row = next(row for row in found.rows if row.measure == "max/geomean")
        assert row.p_value is not None
        rejected += row.p_value < 0.05
    assert rejected <= 8  # P(more) < 0.3 % at a level of 5 %


def test_blanks_and_contradictions_are_counted(tmp_path: Path) -> None:
    lines, same, *_ = some_lines()
    header = "label,score,race_1,race_2"
    fields = [line.split(",") for line in lines.splitlines()]
    rows = [[*row, row[2]] for row in fields]
    mated = np.flatnonzero(same)[:7]
    for row in mated:
        rows[row][3] = "B" if rows[row][2] == "A" else "A"
    blank = np.flatnonzero(~same)[:5]
    for row, word in zip(blank, (" ", "None", "#N/A", "<NA>", "-"), strict=True):
        rows[row][2] = word
    found = loose(tmp_path, "\n".join(map(",".join, rows)) + "\n", header=header)
    counted = {gone.reason: gone.images for gone in found.exclusions}
    assert counted == {"mated pair in several groups": 7, "no value": 5}
    excluded = rates_of(found.groupings[0]).excluded
    assert (excluded.mated, excluded.non_mated) == (7, 5)
    gone = np.concatenate([mated, blank])
    kept = np.delete(np.arange(len(rows)), gone)
    point = rates_of(found.groupings[0]).points[0]
    assert point.fnmr.total == same[kept].sum()


def test_a_subject_in_two_groups_is_left_out(
    pairs: tuple[People, tuple[NDArray, ...]], tmp_path: Path
) -> None:
    made, columns = pairs
    path = write(tmp_path / "s.csv", made, columns, PLAIN)
    text = path.read_text().splitlines()
    fields = text[1].split(",")
    person, fields[3] = fields[1], "B" if fields[3] != "B" else "C"
    text[1] = ",".join(fields)
    path.write_text("\n".join(text) + "\n")
    found = audit_scores(read_scores(path, groups=("race",)), ("race",), name="s.csv", **FAST)
    (gone,) = found.exclusions
    with_person = sum(person in line.split(",")[1:3] for line in text[1:])
    assert (gone.reason, gone.images, gone.subjects) == (
        "subject in several groups",
        with_person,
        1,
    )


def test_scores_on_another_scale_have_no_histograms(tmp_path: Path) -> None:
    lines, same, scores, race = some_lines()
    rows = zip(same, (-100 * scores).tolist(), race, strict=True)
    path = tmp_path / "d.csv"
    path.write_text("label,score,race\n" + "".join(f"{int(a)},{b!r},{c}\n" for a, b, c in rows))
    scored = read_scores(path, groups=("race",), distances=True)
    found = audit_scores(scored, ("race",), name="d.csv", **FAST)
    likewise = loose(tmp_path, lines)
    assert found.groupings[0].histograms == () != likewise.groupings[0].histograms
    for point, other in zip(
        rates_of(found.groupings[0]).points, rates_of(likewise.groupings[0]).points, strict=True
    ):
        assert point.threshold.value == pytest.approx(100 * (other.threshold.value or 0))
        assert point.groups[0].fmr == other.groups[0].fmr
    assert any("distances" in warning for warning in found.warnings)


def test_thresholds_from_elsewhere_and_intersections(tmp_path: Path) -> None:
    lines, _, _, _ = some_lines()
    other = ScoredPairs(np.linspace(-1, 1, 100), np.arange(100) > 60)
    calibration = calibrate_on_scores(other, TARGETS, name="other.csv")
    path = tmp_path / "s.csv"
    rows = [f"{line},{'fm'[i % 2]}" for i, line in enumerate(lines.splitlines())]
    path.write_text("label,score,race,sex\n" + "\n".join(rows) + "\n")
    scored = read_scores(path, groups=("race", "sex"))
    found = audit_scores(
        scored, ("race", "sex"), name="s.csv", intersect=True, calibration=calibration, **FAST
    )
    assert [part.name for part in found.groupings] == ["race", "sex", "race × sex"]
    assert found.groupings[2].names == ("A × f", "A × m", "B × f", "B × m")
    assert found.thresholds[0].value == calibration.points[0].threshold
    assert "other.csv" in found.thresholds[0].source


def test_an_attribute_named_twice_is_one(tmp_path: Path) -> None:
    lines, _, _, _ = some_lines()
    once, twice = loose(tmp_path, lines), loose(tmp_path, lines, "race", "race")
    assert [part.name for part in twice.groupings] == ["race"]
    assert twice.settings == once.settings
    scored = read_scores(tmp_path / "loose.csv", groups=("race",))
    with pytest.raises(DatasetError, match="an intersection needs two"):
        audit_scores(scored, ("race", "race"), name="x", intersect=True, **FAST)


def test_what_cannot_be_audited_is_said(
    pairs: tuple[People, tuple[NDArray, ...]], tmp_path: Path
) -> None:
    lines, _, _, _ = some_lines()
    with pytest.raises(DatasetError, match=r"loose.csv: no column .* sex_1 and sex_2, or bio_ref_"):
        loose(tmp_path, lines, "sex")
    with pytest.raises(DatasetError, match=r"loose.csv: the column race is empty"):
        loose(tmp_path, "1,.5,\n0,.1,\n" * 20)
    with pytest.raises(DatasetError, match="ten pairs that it takes"):
        loose(tmp_path, "1,.5,A\n0,.1,A\n")
    with pytest.raises(MetricError, match="no scores of different pairs"):
        loose(tmp_path, "1,.5,A\n" * 20)
    inferred = "label,score,race,label_source"
    rows = "".join(f"{line},inferred by X\n" for line in lines.splitlines())
    with pytest.raises(DatasetError, match="2,000 lines have inferred labels"):
        loose(tmp_path, rows, header=inferred)
    scored = read_scores(tmp_path / "loose.csv", groups=("race",))
    found = audit_scores(scored, ("race",), name="x", allow_inferred=True, **FAST)
    assert found.banner is not None and found.label_sources == ("inferred by X",)
    with pytest.raises(DatasetError, match="an intersection needs two"):
        audit_scores(scored, ("race",), name="x", allow_inferred=True, intersect=True, **FAST)
    made = pairs[0]
    with pytest.raises(DatasetError, match="does not name the subjects"):
        audit_scores(scored, ("race",), name="x", attributes=made.attributes(), **FAST)
    strangers = tmp_path / "attributes.csv"
    strangers.write_text("image_id,subject_id,race,label_source\na.jpg,q,A,c\n")
    named = read_scores(write(tmp_path / "s.csv", made, pairs[1], PLAIN[:2]))
    with pytest.raises(DatasetError, match=r"none of its subjects \(as 'q'\) is in s.csv"):
        audit_scores(
            named,
            ("race",),
            name="s.csv",
            attributes=read_attributes(strangers, ["race"]),
            **FAST,
        )


def test_bob_s_scores_with_groups(shared_data: Path, tmp_path: Path) -> None:
    # The published error rates of this file at its threshold of equal errors are those of all
    # pairs; here every second pair is of one group.
    lines = (shared_data / "oracles" / "bob_dev-1.txt").read_text().splitlines()
    fields = [line.split() for line in lines]
    rows = [f"{label},{score},{'ab'[i % 2]}" for i, (label, score) in enumerate(fields)]
    found = loose(tmp_path, "\n".join(rows) + "\n")
    assert found.failures == 54
    point = rates_of(found.groupings[0]).points[0]
    whole = read_scores(shared_data / "oracles" / "bob_dev-1.txt")
    expected = calibrate_on_scores(whole, TARGETS, name="x").points[0]
    assert point.threshold.value == expected.threshold
    assert point.fmr.events == expected.false_accepts
    assert point.fnmr.total - point.fnmr.events == expected.true_accepts
    fta = rates_of(found.groupings[0]).composition
    lost = np.array([[part.lost_mated, part.lost_non_mated] for part in fta])
    between = sum(score == "nan" for _, score in fields)
    assert lost.sum() == between == 54
