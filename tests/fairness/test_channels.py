from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.examples import examples
from helpers.toy_faces import Toy, toy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import spearmanr

from facerec.errors import MetricError
from facerec.fairness import channels
from facerec.fairness.channels import (
    NormChannels,
    channel_checklist,
    compare_fusion,
    mated_pairs,
    norm_channels,
)
from facerec.fairness.differentials import rate_replicates, resample
from facerec.fairness.norms import percentile
from facerec.fairness.rates import all_pairs_group_rates, pair_group_rates
from facerec.statistics.clustered import fnmr_interval
from facerec.statistics.discard import error_versus_discard
from facerec.verification.evaluation import score_pairs

# Other processes may hold a machine up, so there is no deadline.
few = settings(max_examples=examples(40), deadline=None)


def people(
    persons: int = 120, images: int = 5, gap: float = 0.0, effect: float = 0.6, seed: int = 0
) -> dict[str, Any]:
    """Mated pairs whose scores rise with the norm; the second group has norms lower by a gap."""
    generator = np.random.default_rng(seed)
    subject = np.repeat(np.arange(persons), images)
    group = subject % 2
    norms = generator.normal(20 - gap * group, 2)
    first, second = mated_pairs(subject)
    quality = np.minimum(norms[first], norms[second])
    scores = effect * (quality - 18) / 2 + generator.normal(0, 1, first.size)
    return {
        "scores": scores,
        "first": first,
        "second": second,
        "norms": norms,
        "subject": subject,
        "group": group,
        "names": ("A", "B"),
        "threshold": -0.8,
    }


def quality_of(data: dict[str, Any]) -> np.ndarray:
    return np.minimum(data["norms"][data["first"]], data["norms"][data["second"]])


def measure(data: dict[str, Any], replicates: int = 60, seed: int = 0) -> NormChannels:
    return norm_channels(**data, replicates=replicates, seed=seed)


# --- the checklist --------------------------------------------------------------------------


@pytest.mark.parametrize("flip", [True, False, None])
def test_fusion_is_active_where_raw_vectors_are_added(flip: bool | None) -> None:
    checked = channel_checklist(flip=flip, gating=False, confidence=True)
    found = {channel.name: channel.active for channel in checked}
    assert found == {"training": None, "fusion": flip, "gating": False, "confidence": True}
    assert all(channel.evidence for channel in checked)


# --- mated pairs ----------------------------------------------------------------------------


@few
@given(st.lists(st.integers(-1, 5), max_size=25))
def test_mated_pairs_are_those_of_a_loop(subject: list[int]) -> None:
    first, second = mated_pairs(np.array(subject, np.int64))
    expected = {
        (one, other)
        for one, other in itertools.combinations(range(len(subject)), 2)
        if subject[one] == subject[other] >= 0
    }
    found = [tuple(sorted(pair)) for pair in zip(first.tolist(), second.tolist(), strict=True)]
    assert len(found) == len(expected) and set(found) == expected


# --- rank correlation -----------------------------------------------------------------------


def test_correlations_are_those_of_scipy() -> None:
    data = people(gap=2)
    data["scores"] = np.round(data["scores"], 1)  # ties
    data["norms"] = np.round(data["norms"])
    quality = quality_of(data)
    found = {each.group: each for each in measure(data).correlations}
    assert list(found) == [None, "A", "B"]
    of_pair = data["group"][data["first"]]
    for group, part in ((None, of_pair >= 0), ("A", of_pair == 0), ("B", of_pair == 1)):
        expected = spearmanr(quality[part], data["scores"][part]).statistic
        assert found[group].value == pytest.approx(expected, abs=1e-12)
        assert (found[group].total, found[group].replicates) == (part.sum(), 60)
        interval = found[group].interval
        assert interval is not None and interval.low < expected < interval.high


def test_replicates_rank_the_drawn_pairs_anew() -> None:
    data = people(persons=30, images=3)
    weights = resample(30, 40, 5)
    quality = quality_of(data)
    drawn = []
    for row in weights:
        times = row[data["subject"][data["first"]]]
        drawn.append(
            spearmanr(np.repeat(quality, times), np.repeat(data["scores"], times)).statistic
        )
    found = measure(data, replicates=40, seed=5).correlations[0]
    expected = percentile(np.array(drawn), 30)
    assert found.interval is not None and expected is not None
    assert (found.interval.low, found.interval.high) == (
        pytest.approx(expected.low),
        pytest.approx(expected.high),
    )


def test_many_distinct_values_are_ranked_coarsely(monkeypatch: pytest.MonkeyPatch) -> None:
    data = people(persons=900)
    assert len(data["scores"]) > 2 * channels._LEVELS
    coarse = measure(data).correlations
    monkeypatch.setattr(channels, "_LEVELS", 10**9)
    exact = measure(data).correlations
    for one, other in zip(coarse, exact, strict=True):
        assert one.value == other.value
        assert one.interval is not None and other.interval is not None
        assert one.interval.low == pytest.approx(other.interval.low, abs=1e-5)
        assert one.interval.high == pytest.approx(other.interval.high, abs=1e-5)
    assert coarse[0].interval != exact[0].interval


def test_many_pairs_have_fewer_replicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_CELLS", 1200 * 250)
    found = measure(people(), replicates=400).correlations
    assert [(each.total, each.replicates) for each in found] == [
        (1200, 250),
        (600, 400),
        (600, 400),
    ]
    monkeypatch.setattr(channels, "_CELLS", 1200)
    found = measure(people(), replicates=400).correlations
    assert [each.replicates for each in found] == [200] * 3


def test_correlation_of_equal_norms_is_undefined() -> None:
    data = people(persons=20)
    data["norms"] = np.full_like(data["norms"], 7.0)
    found = measure(data)
    assert [each.value for each in found.correlations] == [None] * 3
    assert "equal norms or scores" in str(found.correlations[0].remark)
    # One bin, a flat curve, and no cut that leaves anything out.
    assert [(each.bin, each.low, each.high) for each in found.bins] == [(1, 7.0, 7.0)]
    assert found.curves[0].discarded == (0.0, 1.0)
    assert {cut.groups[0].pairs.events for cut in found.cuts} == {0}


# --- norm bins ------------------------------------------------------------------------------


def test_bins_are_tenths_of_the_norms() -> None:
    data = people(gap=3)
    found = measure(data)
    quality, errors = quality_of(data), data["scores"] < data["threshold"]
    of_pair, person = data["group"][data["first"]], data["subject"][data["first"]]
    assert [each.bin for each in found.bins] == list(range(1, 11))
    assert found.bins[0].low == quality.min() and found.bins[-1].high == quality.max()
    for before, after in itertools.pairwise(found.bins):
        assert before.high < after.low
    for each in found.bins:
        inside = (quality >= each.low) & (quality <= each.high)
        # Pairs of one person share their worst image, so a few are tied.
        assert abs(int(inside.sum()) - quality.size // 10) < 5
        for row, part in zip(each.groups, (of_pair >= 0, of_pair == 0, of_pair == 1), strict=True):
            chosen = inside & part
            rate = row.fnmr
            assert (rate.events, rate.total) == (errors[chosen].sum(), chosen.sum())
            if chosen.any():
                assert rate.interval == fnmr_interval(errors[chosen], person[chosen])
    # Scores rise with norms, so errors fall.
    assert found.bins[0].groups[0].fnmr.events > 3 * found.bins[-1].groups[0].fnmr.events


# --- error versus discard -------------------------------------------------------------------


def test_published_curves(shared_data: Path) -> None:
    data = json.loads((shared_data / "oracles" / "edc_example_data.json").read_text())
    by_pair = data["similarity_scores"]["scores_by_pair_ids"]
    scores = np.array(list(by_pair.values()))
    threshold = float(np.quantile(scores, 0.05))
    areas = []
    for quality in data["quality_scores_by_sample_id_per_algorithm"].values():
        number = {sample: place for place, sample in enumerate(quality)}
        sides = np.array([[number[s] for s in pair.split("-")] for pair in by_pair]).T
        links = coo_array((np.ones(len(scores)), sides), (len(number), len(number)))
        found = norm_channels(
            scores,
            *sides,
            np.array(list(quality.values())),
            connected_components(links, directed=False)[1],
            np.zeros(len(number), np.int64),
            ("all",),
            threshold=threshold,
            replicates=2,
        )
        everyone = found.curves[0]
        assert (everyone.pairs, everyone.errors, everyone.fnmr[0]) == (10_000, 500, 0.05)
        assert everyone.area_above_best == pytest.approx(everyone.area - 0.00125)
        assert replace(everyone, group="all") == found.curves[1]
        areas.append(everyone.area)
    expected = [0.0069596816, 0.0093187126, 0.0078432575, 0.0091138562, 0.0070677574]
    assert areas == pytest.approx(expected, abs=5e-11)


def test_curves_are_points_of_the_whole_curve() -> None:
    data = people()
    of_pair = data["group"][data["first"]]
    errors, quality = data["scores"] < data["threshold"], quality_of(data)
    for curve, part in zip(
        measure(data).curves, (of_pair >= 0, of_pair == 0, of_pair == 1), strict=True
    ):
        whole = error_versus_discard(errors[part], quality[part])
        points = set(zip(whole.discard_rates.tolist(), whole.error_rates.tolist(), strict=True))
        shown = list(zip(curve.discarded, curve.fnmr, strict=True))
        assert set(shown) <= points and len(shown) <= 200
        assert shown[0] == (0, errors[part].mean()) and shown[-1] == (1, 0)
        assert np.diff(curve.discarded).max() < 0.02
        assert curve.area == whole.area("0.2")


def test_common_cuts() -> None:
    data = people(gap=2)
    quality, errors = quality_of(data), data["scores"] < data["threshold"]
    of_pair, person = data["group"][data["first"]], data["subject"][data["first"]]
    found = measure(data).cuts
    assert [cut.share for cut in found] == ["0.01", "0.05", "0.10", "0.20"]
    for cut in found:
        gone = quality < cut.norm
        # Pairs of one person share their worst image, so a few are tied.
        assert 0 <= round(float(cut.share) * quality.size) - gone.sum() < 5
        parts = (of_pair >= 0, of_pair == 0, of_pair == 1)
        images = (data["group"] >= 0, data["group"] == 0, data["group"] == 1)
        for row, part, members in zip(cut.groups, parts, images, strict=True):
            low = data["norms"][members] < cut.norm
            assert (row.images.events, row.images.total) == (low.sum(), members.sum())
            assert (row.pairs.events, row.pairs.total) == (gone[part].sum(), part.sum())
            assert row.pairs.interval == fnmr_interval(gone[part], person[part])
            assert row.before.events == errors[part].sum()
            assert row.after.events == errors[part & ~gone].sum()
            assert row.after.total == (part & ~gone).sum()
    # The cut is one for all, so the group of lower norms loses more.
    lost = [row.images.events for row in found[-1].groups]
    assert lost[2] > 2 * lost[1]


def test_tied_pairs_leave_together() -> None:
    data = people(persons=40)
    data["norms"] = np.round(data["norms"] / 2)
    quality = quality_of(data)
    for cut in measure(data).cuts:
        gone = cut.groups[0].pairs.events
        assert gone == np.count_nonzero(quality < cut.norm)
        assert gone <= float(cut.share) * quality.size
        # The next higher norm would discard too many.
        assert np.count_nonzero(quality <= cut.norm) > float(cut.share) * quality.size


# --- a common distribution of norms ---------------------------------------------------------


def test_a_gap_that_norms_explain_goes() -> None:
    # Scores depend on the norm alone, and the groups differ in norms alone.
    found = measure(people(persons=600, gap=1.5, effect=1.0), replicates=200).standardised
    assert found.reason is None and found.support > 0.9
    assert found.raw_gap is not None and found.standardised_gap is not None
    assert found.raw_gap.value > 0.1
    assert found.standardised_gap.value < found.raw_gap.value / 3
    assert found.change is not None and found.change.interval is not None
    assert found.change.interval.high < 0


def test_a_gap_that_norms_do_not_explain_stays() -> None:
    data = people(persons=600, effect=0.0)
    data["scores"] = data["scores"] - 0.7 * data["group"][data["first"]]
    found = measure(data, replicates=100).standardised
    assert found.change is not None and found.raw_gap is not None
    assert found.raw_gap.value > 0.15
    assert abs(found.change.value) < 0.01


def test_standardisation_by_hand() -> None:
    data = people(persons=100, gap=2, seed=3)
    found = measure(data, replicates=50, seed=2)
    standardised = found.standardised
    errors, of_pair = data["scores"] < data["threshold"], data["group"][data["first"]]
    person = data["subject"][data["first"]]
    weights = resample(100, 50, 2)
    inside = []
    for each in found.bins:
        part = (quality_of(data) >= each.low) & (quality_of(data) <= each.high)
        if all(np.unique(person[part & (of_pair == code)]).size >= 10 for code in (0, 1)):
            inside.append(part)
    assert standardised.bins == len(inside) >= 3
    total = sum(part.sum() for part in inside)
    assert standardised.support == pytest.approx(total / errors.size)
    drawn = []
    for times in [np.ones(100), *weights.astype(float)]:
        rates = [
            sum(
                (w := times[person[cell := part & (of_pair == code)]]) @ errors[cell] / w.sum()
                * part.sum() / total
                for part in inside
            )
            for code in (0, 1)
        ]  # fmt: skip
        drawn.append(rates)
    values = np.array(drawn)
    assert [group.standardised.value for group in standardised.groups] == pytest.approx(values[0])
    gaps = abs(values[:, 0] - values[:, 1])
    assert standardised.standardised_gap is not None
    assert standardised.standardised_gap.value == pytest.approx(gaps[0])
    expected, interval = percentile(gaps[1:], 100), standardised.standardised_gap.interval
    assert expected is not None and interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    chosen = np.any(inside, axis=0)
    raw = [errors[chosen & (of_pair == code)].mean() for code in (0, 1)]
    assert [group.raw.value for group in standardised.groups] == pytest.approx(raw)


def test_groups_without_common_norms_are_not_standardised() -> None:
    data = people(gap=100)
    found = measure(data).standardised
    assert (found.groups, found.raw_gap, found.bins) == ((), None, 0)
    assert found.reason == "no norm bin has 10 subjects of every group"
    alone = people() | {"group": np.zeros(600, np.int64), "names": ("all",)}
    assert measure(alone).standardised.reason == "one group alone"


# --- what takes no part, determinism, JSON --------------------------------------------------


def test_pairs_without_attributes_or_norms_are_counted() -> None:
    data = people(persons=40)
    data["group"] = data["group"].copy()
    data["group"][data["subject"] == 4] = -1
    data["norms"][data["subject"] == 7] = np.nan
    data["scores"][np.flatnonzero(data["subject"][data["first"]] == 9)[:3]] = np.nan
    found = measure(data)
    assert (found.excluded, found.lost) == (10, 13)
    assert (found.pairs, found.subjects) == (400 - 23, 38)
    kept = ~np.isin(data["subject"][data["first"]], (4, 7)) & ~np.isnan(data["scores"])
    rest = data | {key: data[key][kept] for key in ("scores", "first", "second")}
    assert replace(found, excluded=0, lost=0) == measure(rest)


def test_a_seed_settles_everything_and_all_is_json() -> None:
    data = people(persons=40)
    first, again, other = (measure(data, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    json.dumps(asdict(first), allow_nan=False)


def test_groups_without_pairs() -> None:
    data = people(persons=40) | {"names": ("A", "B", "none")}
    found = measure(data)
    assert [each.total for each in found.correlations][3] == 0
    assert [curve.group for curve in found.curves] == [None, "A", "B"]
    assert found.cuts[0].groups[3].before.remark == "no comparison"
    json.dumps(asdict(found), allow_nan=False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"scores": [0.5]}, "(2,) mated pairs but scores of shape (1,)"),
        ({"norms": [1.0]}, "have shapes (1,), (4,) and (4,)"),
        ({"second": [1, 2]}, "mated pair 1 shows the subjects 1 and 0; give pairs of one subject"),
        ({"scores": [np.nan, np.nan]}, "none of 2 mated pairs has a score"),
    ],
)
def test_bad_input(change: dict[str, list], sentence: str) -> None:
    data = {
        "scores": [0.9, 0.1],
        "first": [0, 3],
        "second": [1, 3],
        "norms": [1.0, 2.0, 3.0, 4.0],
        "subject": [0, 0, 0, 1],
        "group": [0, 0, 0, 0],
        "names": ("A",),
        "threshold": 0.5,
    }
    with pytest.raises(MetricError) as error:
        norm_channels(**(data | change))
    assert sentence in str(error.value)


# --- raw and unit fusion --------------------------------------------------------------------


def views(seed: int = 0) -> tuple[Toy, Toy]:
    """The sum of two raw views of every image, and of their unit vectors."""
    generator = np.random.default_rng(seed)
    faces = toy(persons=60, images=3, noise=0.2)
    unit = faces.vectors / np.linalg.norm(faces.vectors, axis=1, keepdims=True)
    sides = [unit + generator.normal(0, 0.15, unit.shape) for _ in range(2)]
    lengths = generator.uniform(5, 30, (2, len(unit), 1))
    raw = sides[0] * lengths[0] + sides[1] * lengths[1]
    normed = sum(side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    return (replace(faces, vectors=v.astype(np.float32)) for v in (raw, normed))  # type: ignore


def test_fusion_is_compared_at_its_own_thresholds() -> None:
    both = views()
    raw, unit = (
        all_pairs_group_rates(f.vectors, f.subject, f.group, f.names, targets=("1e-1", "1e-2"))
        for f in both
    )
    found = compare_fusion(raw, unit, replicates=80, seed=4)
    assert [(c.target, c.of, c.group) for c in found[:7]] == [
        ("1e-1", "FNMR", None),
        *[("1e-1", of, group) for group in "ABC" for of in ("FMR", "FNMR")],
    ]
    weights = resample(60, 80, 4)
    for change in found:
        place = ("1e-1", "1e-2").index(change.target)
        points = [side.rates.points[place] for side in (raw, unit)]
        if change.group is None:
            rates = [point.fnmr for point in points]
            missed = [
                sum(weights[:, c.members].astype(float) @ c.missed for c in side.counts[place])
                / sum(weights[:, c.members].astype(float) @ c.mated for c in side.counts[place])
                for side in (raw, unit)
            ]
        else:
            code = "ABC".index(change.group)
            groups = [point.groups[code] for point in points]
            rates = [getattr(group, change.of.lower()) for group in groups]
            missed = [
                rate_replicates(side.counts[place][code], weights)[change.of == "FNMR"]
                for side in (raw, unit)
            ]
        assert [change.raw, change.unit] == rates
        assert change.value == rates[1].value - rates[0].value
        assert change.interval == percentile(missed[1] - missed[0], rates[0].subjects)
    json.dumps([asdict(change) for change in found], allow_nan=False)


def test_equal_fusions_do_not_differ() -> None:
    faces = toy()
    errors = all_pairs_group_rates(
        faces.vectors, faces.subject, faces.group, faces.names, targets=("1e-2",)
    )
    for change in compare_fusion(errors, errors, replicates=20):
        assert change.value == 0 and change.interval is None


def test_fusions_of_other_comparisons_are_refused() -> None:
    faces = toy()
    first, second = faces.pairs
    same = faces.subject[first] == faces.subject[second]
    scores = score_pairs(faces.vectors, first, second)
    options: dict[str, Any] = {"targets": ("1e-2",)}

    def count(values: np.ndarray) -> Any:
        return pair_group_rates(
            values, first, second, same, faces.subject, faces.group, faces.names, **options
        )

    whole = count(scores)
    fewer = count(np.where(np.arange(scores.size) == np.flatnonzero(same)[0], np.nan, scores))
    options["targets"] = ("1e-1",)
    for other in (fewer, count(scores)):
        with pytest.raises(MetricError, match="not scored on the same comparisons"):
            compare_fusion(whole, other)
