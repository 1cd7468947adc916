from __future__ import annotations

import csv
import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError, FacerecError, MetricError
from facerec.fairness.association import Association
from facerec.fairness.attributes import Attributes, read_attributes
from facerec.fairness.audit import audit, working_target
from facerec.fairness.channels import NormChannels
from facerec.fairness.comparisons import calibrate_on_embeddings, calibrate_on_scores
from facerec.fairness.differentials import Differentials
from facerec.fairness.no_comparison import NoComparison
from facerec.fairness.rate_results import SCORE_EDGES, GlobalThreshold, GroupRates
from facerec.fairness.result import Audit, GroupAudit
from facerec.records.images import MemoryImages
from facerec.verification.bench import Bench, Pairs, pack_bench
from facerec.verification.protocols import ScoredPairs

TARGETS = ("1e-1", "1e-2")
FAST = {"permutations": 199, "replicates": 60, "targets": TARGETS}


@dataclass
class People:
    """Made-up persons with a recorded race and sex."""

    embeddings: Embeddings
    subject: NDArray[np.int64]
    race: NDArray[np.int64]
    races: tuple[str, ...]
    path: Path

    def attributes(self, *groups: str, covariates: tuple[str, ...] = ()) -> Attributes:
        return read_attributes(self.path, groups or ["race"], covariates=covariates)


def people(
    folder: Path,
    sizes: tuple[int, ...] = (16, 14, 12),
    *,
    images: int = 3,
    shift: float = 0.0,
    seed: int = 0,
) -> People:
    """Persons in groups whose norms differ by ``shift`` from one group to the next.

    Vectors are signs times a number, so that cosines are multiples of 1/32 in every arithmetic.
    """
    generator = np.random.default_rng(seed)
    race_of = np.repeat(np.arange(len(sizes)), sizes)
    subject = np.repeat(np.arange(race_of.size), images)
    own, common = (
        generator.choice([-1, 1], size=(count, 64)) for count in (race_of.size, len(sizes))
    )
    shared = generator.random(own.shape) < 0.1 + 0.15 * race_of[:, None]
    base = np.where(shared, common[race_of], own)
    turned = generator.random((subject.size, 64)) < 0.14
    signs = np.where(turned, -base[subject], base[subject])
    norms = 20 + generator.normal(size=race_of.size)[subject] + shift * race_of[subject]
    norms += 0.5 * generator.normal(size=subject.size)
    vectors = signs.astype(np.float32) * (norms / 8).astype(np.float32)[:, None]
    ids = np.array([f"{place:04d}.jpg" for place in generator.permutation(subject.size)])
    path = folder / "attributes.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "subject_id", "race", "sex", "yaw", "label_source"])
        for place in generator.permutation(subject.size):
            person = subject[place]
            line = f"p{person}", "ABCD"[race_of[person]], "fm"[person % 2], place % 5
            writer.writerow([ids[place], *line, "curator"])
    lengths = np.linalg.norm(vectors, axis=1)
    found = Embeddings(vectors, lengths, False, ids)
    return People(found, subject, race_of[subject], tuple("ABCD"[: len(sizes)]), path)


def rates_of(part: GroupAudit) -> GroupRates:
    assert isinstance(part.rates, GroupRates)
    return part.rates


def all_scores(made: People) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Return the cosines and both sides of all pairs, and whether they are mated."""
    signs = np.sign(made.embeddings.vectors)
    first, second = np.array(list(itertools.combinations(range(len(signs)), 2))).T
    scores = np.array([signs[i] @ signs[j] / 64 for i, j in zip(first, second, strict=True)])
    return scores, first, second, made.subject[first] == made.subject[second]


def rejected(impostors: NDArray, target: float) -> np.float32:
    """Return the highest score that a threshold for a target has to reject."""
    descending = np.sort(impostors)[::-1].astype(np.float32)
    return descending[int(target * descending.size)]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[People, Audit]:
    made = people(tmp_path_factory.mktemp("planted"), shift=1.5)
    return made, audit(made.embeddings, made.attributes(), **FAST)


def test_planted_norms_are_found(planted: tuple[People, Audit]) -> None:
    made, found = planted
    (part,) = found.groupings
    assert (part.name, part.names, part.primary) == ("race", made.races, True)
    # To the letter: --against holds it against that of audits by earlier versions.
    assert found.policy == "from all pairs of images of two persons"
    # η² once more, from means of persons and nothing else.
    norms = made.embeddings.norms.astype(np.float64)
    means = np.array([norms[made.subject == person].mean() for person in range(42)])
    groups = [means[:16], means[16:30], means[30:]]
    between = sum(len(group) * (group.mean() - means.mean()) ** 2 for group in groups)
    assert isinstance(part.association, Association)
    assert part.association.eta2.value == pytest.approx(between / (42 * means.var()))
    assert (part.association.role, part.association.p) == ("primary", 1 / 200)
    for row, group in zip(part.norms.groups, groups, strict=True):
        assert row.subject_mean.value == pytest.approx(group.mean())
    assert found.findings[0].value == part.association.eta2.value
    assert found.findings[0].conclusion == "difference detected"


def test_rates_are_those_of_one_loop_over_all_pairs(planted: tuple[People, Audit]) -> None:
    made, found = planted
    (part,) = found.groupings
    scores, first, second, same = all_scores(made)
    for point, target in zip(rates_of(part).points, (0.1, 0.01), strict=True):
        threshold = point.threshold
        highest = rejected(scores[~same], target)
        assert highest < threshold.value <= scores[scores > highest].min()
        assert threshold.false_matches == np.count_nonzero(scores[~same] > highest)
        for code, group in enumerate(point.groups):
            inside = (made.race[first] == code) & (made.race[second] == code)
            matched = scores >= threshold.value
            assert group.fmr.total == np.count_nonzero(inside & ~same)
            assert group.fmr.events == np.count_nonzero(inside & ~same & matched)
            assert group.fnmr.total == np.count_nonzero(inside & same)
            assert group.fnmr.events == np.count_nonzero(inside & same & ~matched)
    assert found.thresholds == tuple(point.threshold for point in rates_of(part).points)
    assert found.target == "1e-2"
    assert isinstance(part.channels, NormChannels)
    assert part.channels.threshold == found.thresholds[1].value
    assert part.channels.pairs == np.count_nonzero(same)
    assert isinstance(part.differentials, Differentials)


def test_histograms_are_counts_of_the_scores_within_groups(planted: tuple[People, Audit]) -> None:
    made, found = planted
    scores, first, second, same = all_scores(made)
    for code, histogram in enumerate(found.groupings[0].histograms):
        inside = (made.race[first] == code) & (made.race[second] == code)
        for counts, part in ((histogram.mated, same), (histogram.non_mated, ~same)):
            expected = np.histogram(scores[inside & part], SCORE_EDGES)[0]
            assert list(counts) == expected.tolist()


def test_pair_list_gives_the_rates_of_its_pairs(tmp_path: Path) -> None:
    made = people(tmp_path, shift=0.5)
    scores, first, second, same = all_scores(made)
    generator = np.random.default_rng(1)
    kept = np.concatenate(
        [np.flatnonzero(same), generator.choice(np.flatnonzero(~same), 400, replace=False)]
    )
    bench = listed(made, first[kept], second[kept], same[kept])
    found = audit(made.embeddings, made.attributes(), pairs=bench, **FAST)
    (part,) = found.groupings
    assert found.settings.impostors == "list" and found.policy == "from the pair list of toy"
    for point in rates_of(part).points:
        assert point.threshold.non_mated == 400
        for code, group in enumerate(point.groups):
            inside = (made.race[first[kept]] == code) & (made.race[second[kept]] == code)
            other = scores[kept][inside & ~same[kept]]
            assert group.fmr.total == other.size
            assert group.fmr.events == np.count_nonzero(other >= point.threshold.value)
    for code, histogram in enumerate(part.histograms):
        inside = (made.race[first[kept]] == code) & (made.race[second[kept]] == code)
        assert sum(histogram.mated) == np.count_nonzero(inside & same[kept])
        assert sum(histogram.non_mated) == np.count_nonzero(inside & ~same[kept])


def listed(made: People, first: NDArray, second: NDArray, same: NDArray) -> Bench:
    """Make a bench of some pairs of rows; its images are in another order than the rows."""
    ids = made.embeddings.ids
    assert ids is not None
    rows = np.unique(np.concatenate([first, second]))[::-1]
    place = np.empty(len(ids), np.int64)
    place[rows] = np.arange(rows.size)
    images = MemoryImages("toy", ids[rows].tolist(), [b""] * rows.size)
    return Bench("toy", images, Pairs(place[first], place[second], same))


def test_labels_that_subjects_contradict_are_counted_and_not_used(tmp_path: Path) -> None:
    made = people(tmp_path)
    _, first, second, same = all_scores(made)
    wrong = same.copy()
    wrong[np.flatnonzero(same)[:3]] = False
    wrong[np.flatnonzero(~same)[:2]] = True
    bench = listed(made, first, second, wrong)
    (part,) = audit(made.embeddings, made.attributes(), pairs=bench, **FAST).groupings
    assert rates_of(part).excluded.contradictory == 5
    assert isinstance(part.channels, NormChannels)
    assert part.channels.pairs == np.count_nonzero(same) - 3
    assert sum(sum(histogram.mated) for histogram in part.histograms) == part.channels.pairs


def test_pair_list_without_embeddings_is_refused(tmp_path: Path) -> None:
    made = people(tmp_path)
    images = MemoryImages("toy", ["0000.jpg", "strange.jpg"], [b"", b""])
    bench = Bench("toy", images, Pairs(np.array([0]), np.array([1]), np.array([False])))
    with pytest.raises(DatasetError, match=r"toy: 1 of its 2 images .* 'strange.jpg'"):
        audit(made.embeddings, made.attributes(), pairs=bench, **FAST)


def test_intersection_pools_and_hides_small_cells(tmp_path: Path) -> None:
    made = people(tmp_path, (24, 30, 12))
    found = audit(made.embeddings, made.attributes("race", "sex"), intersect=True, **FAST)
    assert [part.name for part in found.groupings] == ["race", "sex", "race × sex"]
    assert [part.primary for part in found.groupings] == [True, False, False]
    race, sex, both = found.groupings
    # C × f would follow from the women if A × f and B × f were shown.
    assert both.suppressed == ("A × f", "A × m")
    assert both.slices[0] == {"race": "B", "sex": "f"}
    assert both.names[-1] == "other (pooled)" and both.pooled == ("C × f", "C × m")
    # One threshold for everyone, whatever the grouping.
    assert len({tuple(p.threshold for p in rates_of(part).points) for part in (race, sex)}) == 1
    total = sum(row.images for row in race.composition)
    assert total == sum(row.images for row in sex.composition) == 66 * 3


def test_intersection_of_small_cells_alone_is_skipped(tmp_path: Path) -> None:
    made = people(tmp_path, (3, 3))
    with pytest.raises(DatasetError, match="no group has the ten subjects"):
        audit(made.embeddings, made.attributes("race"), **FAST)
    made = people(tmp_path, (12, 12, 12))
    lines = made.path.read_text().splitlines()
    # Everybody has a value of their own in a second attribute.
    cells = [line.split(",") for line in lines[1:]]
    cells = [[*cell[:3], f"only {cell[1]}", *cell[4:]] for cell in cells]
    made.path.write_text("\n".join([lines[0], *(",".join(cell) for cell in cells)]))
    found = audit(made.embeddings, made.attributes("race", "sex"), **FAST)
    assert [part.name for part in found.groupings] == ["race", "sex"]
    assert found.groupings[1].names == ("other (pooled)",)


def test_one_group_is_no_comparison(tmp_path: Path) -> None:
    made = people(tmp_path, (20,))
    found = audit(made.embeddings, made.attributes(), **FAST)
    (part,) = found.groupings
    assert isinstance(part.association, NoComparison)
    assert isinstance(part.differentials, Differentials) and not part.differentials.rows
    assert part.norms.groups[0].images == 60
    assert {finding.conclusion for finding in found.findings} == {"insufficient data"}


def test_one_image_a_subject_has_norms_and_no_rates(tmp_path: Path) -> None:
    made = people(tmp_path, images=1)
    found = audit(made.embeddings, made.attributes(), **FAST)
    (part,) = found.groupings
    assert found.single_images and found.thresholds == () and found.target is None
    assert isinstance(part.rates, NoComparison) and "0 mated" in part.rates.reason
    assert isinstance(part.channels, NoComparison) and isinstance(part.fusion, NoComparison)
    assert isinstance(part.association, Association) and part.histograms == ()
    assert "Every subject has one image" in found.warnings[0]


def test_failures_stay_images_of_their_group(tmp_path: Path) -> None:
    made = people(tmp_path)
    vectors, norms = made.embeddings.vectors.copy(), made.embeddings.norms.copy()
    gone = [1, 2, 50]
    vectors[gone], norms[gone] = np.nan, np.nan
    failures = dict.fromkeys(gone, "no face")
    embeddings = replace(made.embeddings, vectors=vectors, norms=norms, failures=failures)
    found = audit(embeddings, made.attributes(), **FAST)
    (part,) = found.groupings
    assert found.failures == 3 and found.images == len(norms)
    assert [row.failed for row in part.composition] == [2, 1, 0]


def test_norms_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    made = people(tmp_path)
    norms = made.embeddings.norms.copy()
    norms[[4, 9]] = np.nan, np.inf
    found = audit(replace(made.embeddings, norms=norms), made.attributes(), **FAST)
    (gone,) = found.exclusions
    assert (gone.reason, gone.images, gone.positions) == ("norm is not finite", 2, (4, 9))


def test_calibration_fixes_the_threshold_elsewhere(tmp_path: Path) -> None:
    made = people(tmp_path)
    other = people(tmp_path, seed=7)
    subjects = np.array([f"q{person}" for person in other.subject])
    subjects[0] = ""
    calibration = calibrate_on_embeddings(
        replace(other.embeddings, subjects=subjects), TARGETS, name="other.npz"
    )
    scores, first, second, same = all_scores(other)
    known = (first > 0) & (second > 0)
    impostors = scores[known & ~same]
    highest = rejected(impostors, 0.01)
    assert highest < calibration.points[1].threshold < impostors[impostors > highest].min()
    found = audit(made.embeddings, made.attributes(), calibration=calibration, **FAST)
    assert [threshold.value for threshold in found.thresholds] == [
        point.threshold for point in calibration.points
    ]
    source = f"calibration on other.npz: {impostors.size:,} non-mated pairs pooled"
    assert found.thresholds[0].source == source
    assert not any("these data themselves" in warning for warning in found.warnings)


def test_calibration_on_scores_and_without_subjects(tmp_path: Path) -> None:
    scored = ScoredPairs(
        np.array([0.9, 0.8, np.nan, 0.3, 0.2, 0.1, 0.5]), np.array([1, 1, 1, 0, 0, 0, 0], bool)
    )
    points = calibrate_on_scores(scored, ["1/4"], name="s.csv").points
    assert (points[0].threshold, points[0].non_mated) == (0.4, 4)
    made = people(tmp_path)
    with pytest.raises(DatasetError, match="do not say who is on the images"):
        calibrate_on_embeddings(made.embeddings, TARGETS, name="other.npz")


def test_unit_fusion_is_compared_where_both_views_are_known(tmp_path: Path) -> None:
    made = people(tmp_path)
    (part,) = audit(made.embeddings, made.attributes(), **FAST).groupings
    assert isinstance(part.fusion, NoComparison) and "one view" in part.fusion.reason
    summed = replace(made.embeddings, flip=True)
    (part,) = audit(summed, made.attributes(), **FAST).groupings
    assert isinstance(part.fusion, NoComparison) and "sum of two views" in part.fusion.reason
    silent = replace(made.embeddings, flip=None)
    (part,) = audit(silent, made.attributes(), **FAST).groupings
    assert isinstance(part.fusion, NoComparison) and "do not say" in part.fusion.reason
    unit = 3 * made.embeddings.vectors
    found = audit(summed, made.attributes(), unit=unit, **FAST)
    assert not isinstance(found.groupings[0].fusion, NoComparison)
    assert {change.value for change in found.groupings[0].fusion} == {0.0}
    assert {channel.name: channel.active for channel in found.channels}["fusion"] is True


def test_covariates_and_a_constant_one(tmp_path: Path) -> None:
    made = people(tmp_path)
    found = audit(made.embeddings, made.attributes(covariates=("yaw",)), **FAST)
    adjusted = found.groupings[0].adjusted
    assert adjusted is not None and not isinstance(adjusted, NoComparison)
    assert adjusted.covariates == ("yaw",)
    text = made.path.read_text().splitlines()
    cells = [line.split(",") for line in text[1:]]
    constant = [",".join([*cell[:4], "1", cell[5]]) for cell in cells]
    made.path.write_text("\n".join([text[0], *constant]))
    found = audit(made.embeddings, made.attributes(covariates=("yaw",)), **FAST)
    adjusted = found.groupings[0].adjusted
    assert isinstance(adjusted, NoComparison) and "yaw" in adjusted.reason


def test_baseline_that_is_the_same_changes_nothing(planted: tuple[People, Audit]) -> None:
    made, _ = planted
    compared = audit(made.embeddings, made.attributes(), baseline=made.embeddings, **FAST)
    assert compared.comparison is not None
    changes = {change.figure: change.value for change in compared.comparison.changes}
    assert changes["η²"] == 0 and changes["CV of norms"] == 0
    topics = [finding.topic for finding in compared.findings]
    assert topics[:3] == ["norm", "FMR", "FNMR"] and topics[3:].count("baseline") == 3
    changed = [finding for finding in compared.findings if finding.topic == "baseline"]
    assert changed[0].conclusion != "difference detected"
    short = replace(
        made.embeddings,
        **{name: getattr(made.embeddings, name)[:-1] for name in ("vectors", "norms", "ids")},
    )
    with pytest.raises(MetricError, match="1 of its 126 images have no embedding"):
        audit(made.embeddings, made.attributes(), baseline=short, baseline_name="E0.npz", **FAST)


def test_baseline_with_a_pair_list(tmp_path: Path) -> None:
    other = people(tmp_path, seed=3)
    made = people(tmp_path)
    _, first, second, same = all_scores(made)
    bench = listed(made, first[::2], second[::2], same[::2])
    baseline = replace(other.embeddings, ids=made.embeddings.ids)
    compared = audit(made.embeddings, made.attributes(), pairs=bench, baseline=baseline, **FAST)
    assert compared.comparison is not None
    changes = compared.comparison.changes
    performance = [change.figure for change in changes if change.role == "performance"]
    assert performance == ["TPR@FPR=1e-1", "TPR@FPR=1e-2"] and compared.comparison.subjects == 42


def test_baseline_says_whom_it_counts_and_where_its_thresholds_come_from(tmp_path: Path) -> None:
    made = people(tmp_path)
    made.path.write_text(made.path.read_text().replace(",p0,A,", ",p0,,"))  # nothing is recorded
    same = all_scores(made)[-1]
    scored = ScoredPairs(np.where(same, 0.9, np.linspace(0, 0.5, same.size)), same)
    calibration = calibrate_on_scores(scored, FAST["targets"], name="s.csv")
    here, elsewhere = (
        audit(
            made.embeddings,
            made.attributes(),
            baseline=made.embeddings,
            calibration=given,
            **FAST,
        )
        for given in (None, calibration)
    )
    (finding,) = [
        one
        for one in here.findings
        if one.topic == "baseline" and one.figure.startswith("change of η")
    ]
    association = here.groupings[0].association
    assert isinstance(association, Association)
    assert (finding.total, association.subjects) == (41, 41)
    assert here.comparison is not None and elsewhere.comparison is not None
    assert here.comparison.subjects == 42
    assert set(elsewhere.comparison.notes) > set(here.comparison.notes)


def test_scaled_norms_leave_all_but_their_unit(planted: tuple[People, Audit]) -> None:
    made, found = planted
    scaled = replace(
        made.embeddings,
        vectors=4 * made.embeddings.vectors,
        norms=4 * made.embeddings.norms,
    )
    again = audit(scaled, made.attributes(), **FAST)
    before, after = found.groupings[0], again.groupings[0]
    assert isinstance(before.association, Association)
    assert isinstance(after.association, Association)
    assert after.association.eta2.value == pytest.approx(before.association.eta2.value)
    assert after.association.p == before.association.p
    assert after.norms.groups[0].mean.value == pytest.approx(4 * before.norms.groups[0].mean.value)
    assert after.rates == before.rates and after.histograms == before.histograms
    assert after.differentials == before.differentials


def test_same_seed_same_audit(planted: tuple[People, Audit]) -> None:
    made, found = planted
    again = audit(made.embeddings, made.attributes(), **FAST)
    assert again.findings == found.findings
    assert again.groupings[0].norms == found.groupings[0].norms
    assert again.groupings[0].channels == found.groupings[0].channels
    other = audit(made.embeddings, made.attributes(), seed=1, **FAST)
    assert other.groupings[0].norms != found.groupings[0].norms


def test_progress_says_what_is_done(tmp_path: Path) -> None:
    made = people(tmp_path)
    seen: list[tuple[str, int, int]] = []
    audit(made.embeddings, made.attributes(), progress=lambda *now: seen.append(now), **FAST)
    stages = [stage for stage, done, total in seen if done == total]
    assert {"comparing all pairs", "comparing mated pairs"} <= set(stages)
    assert {"race: norms", "race: differentials"} <= set(stages)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"intersect": True}, "an intersection needs two attributes"),
        ({"targets": ("1e-1", "2")}, "'2' is not a rate"),
    ],
)
def test_impossible_settings(tmp_path: Path, options: dict[str, object], error: str) -> None:
    made = people(tmp_path)
    with pytest.raises(FacerecError, match=error):
        audit(made.embeddings, made.attributes(), **{**FAST, **options})


def test_embeddings_without_ids_or_length(tmp_path: Path) -> None:
    made = people(tmp_path)
    with pytest.raises(DatasetError, match="without ids"):
        audit(replace(made.embeddings, ids=None), made.attributes(), **FAST)
    flat = made.embeddings.vectors / made.embeddings.norms[:, None]
    unit = replace(made.embeddings, vectors=flat, norms=np.linalg.norm(flat, axis=1))
    with pytest.raises(DatasetError, match=r"E\.npz: .*already normalised"):
        audit(unit, made.attributes(), source="E.npz", **FAST)


def test_target_of_findings_is_the_lowest_with_thirty_false_matches() -> None:
    def threshold(target: str, matches: int, value: float | None = 0.5) -> GlobalThreshold:
        pairs = 10**4
        return GlobalThreshold(target, value, "", matches, pairs, matches >= 1, matches >= 30, None)

    fixed = [threshold("1e-2", 100), threshold("3e-3", 30), threshold("1e-3", 10)]
    assert working_target(fixed) == "3e-3"
    assert working_target([*fixed[2:], threshold("1e-4", 1)]) == "1e-3"
    assert working_target([threshold("1e-5", 0)]) is None
    assert working_target([threshold("1", 10**4, value=None)]) is None
    assert working_target([]) is None


def test_lfw_counts_of_pairs_by_recorded_gender(shared_data: Path) -> None:
    bench = pack_bench(shared_data / "lfw" / "lfw.bin")
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(len(bench.images), 8)).astype(np.float32)
    embeddings = Embeddings(vectors, np.linalg.norm(vectors, axis=1), False, ids=bench.images.ids)
    attributes = read_attributes(shared_data / "lfw" / "attributes.csv", ["gender"])
    found = audit(
        embeddings, attributes, pairs=bench, permutations=19, replicates=10, targets=("1e-1",)
    )
    (part,) = found.groupings
    rates = rates_of(part)
    assert part.names == ("female", "male")
    assert [[cell.total for cell in row] for row in rates.points[0].matrix] == [
        [176, 1145],
        [1145, 1671],
    ]
    assert sum(row.images for row in part.composition) <= len(bench.images)
    reasons = {gone.reason for gone in found.exclusions}
    assert "attributes without embedding" in reasons
    assert "This benchmark was not built for comparisons" in found.caveats[-1]
