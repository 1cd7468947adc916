"""Errors of identification (1:N) by recorded group: FPIR, FNIR and rank 1, at thresholds for all.

Subjects are split into two halves by a seed. Each half is enrolled once, one template a subject,
and searched: other images of enrolled subjects make mated searches, all images of the other half
non-mated ones. So everybody is in a gallery and outside of one, and figures rest on all subjects.

A search is a false positive if an entry of another subject reaches the threshold in a non-mated
search, and a false negative if the mate does not reach it in a mated one, whatever its rank: FPIR
and FNIR of ISO/IEC 19795-1. The threshold is set where the FPIR of all searches is the target, or
that of one named group, as the demographic tables of NIST's 1:N evaluation do (FRVT part 8).
Other subjects can set it as well, in galleries of the audited size: the best of more entries is
better, so that a threshold holds for one size alone.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from facerec.defaults import AUDIT_FPIR_TARGETS, Template
from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError, MetricError
from facerec.fairness.attributes import EVERYBODY, OTHERS, Grouping, Joined
from facerec.fairness.differentials import FEW_ERRORS
from facerec.fairness.pair_counts import rate
from facerec.large_arrays import take
from facerec.limits import Checked, Seed
from facerec.progress import Progress
from facerec.report.conclusions import ALPHA
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.operating_points import (
    RULE_OF_30,
    allowed_accepts,
    parse_rate,
    step_threshold,
)
from facerec.statistics.searches import (
    NOBODY,
    SearchShare,
    ratio_interval,
)
from facerec.verification.identification import nearest_entries

Figure = Literal["FPIR", "FNIR", "rank-1 miss rate"]
Mask = NDArray[np.bool_]

_HALVES = 2


@dataclass(frozen=True)
class SearchPlan(Checked):
    """What an audit of identification looks at."""

    targets: tuple[str, ...] = AUDIT_FPIR_TARGETS
    """Target FPIRs, taken exactly."""
    reference: str | None = None
    """Group on which thresholds are set too, and with which others are compared."""
    template: Template = "one"
    """Enrol one image of a subject, or the mean of the unit vectors of half of them."""
    seed: Seed = 0
    """Of the split of subjects and the choice of images."""


@dataclass(frozen=True)
class SearchThreshold:
    """A threshold for everybody, and what it was set on."""

    basis: str
    """Whose non-mated searches: `EVERYBODY`, `OTHERS`, or a group."""
    target: str
    """FPIR as it was written."""
    value: float | None
    """None if it accepts everything or nothing, or the target is not resolvable."""
    false_alarms: int
    non_mated: int
    reliable: bool
    """Whether these searches leave room for 30 false alarms at the target."""
    remark: str
    """Why there is no value."""


@dataclass(frozen=True)
class SearchRate:
    """A share of the searches of one group, and its ratio to that of the group compared with."""

    threshold: SearchThreshold | None
    """None for rank 1, which needs none."""
    group: str
    figure: Figure
    rate: Estimate
    ratio: Estimate | None
    """To the same figure of the reference group; None for that group and for `EVERYBODY`."""


@dataclass(frozen=True, kw_only=True)
class LargestRatio(Estimate):
    """The largest ratio of a figure between two groups whose interval excludes 1.

    The interval holds for all pairs of groups at once (Bonferroni). It rests on the searches of
    all groups, ``total``.
    """

    figure: Figure
    threshold: SearchThreshold
    ends: tuple[tuple[str, float], tuple[str, float]]
    """Groups of the numerator and of the denominator, and their rates."""


@dataclass(frozen=True)
class SearchAudit:
    """Identification by one attribute, or by the intersection of several."""

    compared_with: str
    """The group to which ratios are formed: the reference, or else the one with most subjects."""
    thresholds: tuple[SearchThreshold, ...]
    rates: tuple[SearchRate, ...]
    failures: tuple[tuple[str, Estimate], ...]
    """Group, and subjects of whom no image to enrol was acquired, among subjects."""
    largest: tuple[LargestRatio, ...]
    """Of FPIR and of FNIR at the `working_threshold`; none where no difference is detected."""


@dataclass(frozen=True)
class OneToMany:
    """Identification by all groupings."""

    protocol: str
    """How galleries and searches were made, in a few sentences."""
    groupings: tuple[SearchAudit, ...]


@dataclass(frozen=True, eq=False)
class Enrolment:
    """Who is enrolled where, and with which images; n images of G subjects."""

    half: NDArray[np.int64]
    """Gallery of each subject, 0 or 1, ``(G,)``."""
    enrolled: NDArray[np.bool_]
    """Whether an image is one to enrol, acquired or not, ``(n,)``."""

    @classmethod
    def draw(
        cls,
        subjects: NDArray[np.int64],
        order: NDArray[np.int64],
        template: Template,
        seed: int,
    ) -> Enrolment:
        """Split subjects into halves and choose their images, by a seed.

        Args:
            subjects: subject of each image, 0 to G − 1, ``(n,)``.
            order: a number of each image's own, ``(n,)``, by which it is drawn; rows play no part.
            template: enrol one image, or half of them rounded down, but one at least.
            seed: equal seeds draw alike.
        """
        generator = np.random.default_rng(seed)
        images = np.bincount(subjects)
        half = np.empty(images.size, np.int64)
        half[generator.permutation(images.size)] = np.arange(images.size) % _HALVES
        chance = np.empty(subjects.size, np.int64)
        chance[np.argsort(order)] = generator.permutation(subjects.size)
        drawn = np.lexsort((chance, subjects))
        starts = np.cumsum(images) - images
        turn = np.empty(subjects.size, np.int64)
        turn[drawn] = np.arange(subjects.size) - starts[subjects[drawn]]
        wanted = np.ones_like(images) if template == "one" else np.maximum(images // 2, 1)
        return cls(half, turn < wanted[subjects])


def enrol(
    vectors: NDArray[np.floating],
    subjects: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    count: int,
) -> NDArray[np.float64]:
    """Return the template of every subject: the mean of the unit vectors of the chosen images.

    Args:
        vectors: raw embeddings, ``(n, D)``.
        subjects: subject of each, ``(n,)``.
        chosen: images to enrol that were acquired, ``(n,)``.
        count: of subjects, G.

    Returns:
        ``(G, D)``; NaN for subjects without such an image.
    """
    rows = np.flatnonzero(chosen)
    units = vectors[rows].astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    sums = np.zeros((count, vectors.shape[1]))
    np.add.at(sums, subjects[rows], units)
    images = np.bincount(subjects[rows], minlength=count)[:, None]
    return np.divide(sums, images, out=np.full_like(sums, np.nan), where=images > 0)


@dataclass(frozen=True, eq=False)
class OtherSubjects:
    """Images of subjects who are not audited, on whose searches thresholds are set."""

    name: str
    """Of these data, for errors and reports."""
    vectors: NDArray[np.floating]
    """Raw embeddings, ``(M, D)``."""
    subjects: NDArray[np.int64]
    """Subject of each, 0 to P − 1, ``(M,)``."""
    order: NDArray[np.int64]
    """Rank of the id of each, ``(M,)``."""

    @classmethod
    def of(cls, embeddings: Embeddings, name: str) -> OtherSubjects:
        """Take the images that were acquired and have a named subject.

        Raises:
            DatasetError: there is none.
        """
        names = embeddings.subjects
        if names is None:
            names = np.full(len(embeddings.norms), "")
        known = (names != "") & (embeddings.norms > 0)
        if not known.any():
            raise DatasetError(
                f"{name}: these embeddings do not say who is on the images, so nobody can be "
                "searched for; embed record files or a folder of identity/image.jpg"
            )
        rows = np.flatnonzero(known)
        subjects = np.unique(names[rows], return_inverse=True)[1].reshape(-1)
        ids = rows if embeddings.ids is None else embeddings.ids[rows]
        order = np.unique(ids, return_inverse=True)[1].reshape(-1)
        return cls(name, take(embeddings.vectors, rows), subjects, order)

    @property
    def count(self) -> int:
        """Subjects."""
        return int(self.subjects.max()) + 1

    def best_scores(self, size: int, plan: SearchPlan) -> NDArray[np.float32]:
        """Return the best scores of non-mated searches, ``(S,)``.

        There are as many galleries of that size as subjects suffice for, each searched with all
        images of everybody else.

        Args:
            size: subjects in a gallery.
            plan: says how templates are made, and has the seed.

        Raises:
            DatasetError: too few subjects for a gallery and somebody outside.
        """
        if self.count <= size:
            raise DatasetError(
                f"{self.name}: {self.count:,} subjects, but a threshold of searches holds for "
                f"galleries of one size alone, and those audited have {size:,}; give more than "
                f"{size:,} subjects, or leave out --threshold-from or --one-to-many"
            )
        enrolled = Enrolment.draw(self.subjects, self.order, plan.template, plan.seed).enrolled
        templates = enrol(self.vectors, self.subjects, enrolled, self.count)
        order = np.random.default_rng((plan.seed, 2)).permutation(self.count)
        best = []
        for start in range(0, self.count - size + 1, size):
            entries = np.sort(order[start : start + size])
            probes = np.flatnonzero(~np.isin(self.subjects, entries))
            nearest = nearest_entries(
                self.vectors[probes], self.subjects[probes], templates[entries], entries
            )
            best.append(nearest.best)
        return np.concatenate(best)


class _Searcher:
    """Searches of both galleries, and their figures by group.

    Attributes:
        image: the probe of each search, ``(S,)``.
        subject: behind it.
        gallery: number of the gallery.
        mated: whether the subject is in it.
        best: best score with another subject's entry; ``entry`` is the subject of that entry,
            ``second`` the next best score, ``mate`` the score with the subject's own entry.
    """

    def __init__(
        self,
        vectors: NDArray[np.floating],
        joined: Joined,
        plan: SearchPlan,
        others: OtherSubjects | None = None,
    ) -> None:
        self.plan = plan
        self._subjects, self._acquired = joined.subjects, joined.acquired
        self.count = int(joined.subjects.max()) + 1
        own = vectors[joined.rows]
        self.drawn = Enrolment.draw(joined.subjects, joined.order, plan.template, plan.seed)
        chosen = self.drawn.enrolled & self._acquired
        templates = enrol(own, self._subjects, chosen, self.count)
        self._made = ~np.isnan(templates[:, 0])
        self.placed = np.where(self._made, self.drawn.half, NOBODY)
        half = self.drawn.half[self._subjects]
        columns: dict[str, list[NDArray]] = defaultdict(list)
        for gallery in range(_HALVES):
            inside = half == gallery
            # An enrolled image would find itself; whoever failed to enrol has no mate to find.
            mated = inside & ~self.drawn.enrolled & self._made[self._subjects]
            probes = np.flatnonzero((mated | ~inside) & self._acquired)
            entries = np.flatnonzero(self.placed == gallery)
            nearest = nearest_entries(
                own[probes], self._subjects[probes], templates[entries], entries
            )
            columns["image"].append(probes)
            columns["gallery"].append(np.full(probes.size, gallery))
            columns["mated"].append(mated[probes])
            columns["best"].append(nearest.best)
            # Without an entry the row is −1, which takes the last one.
            columns["entry"].append(np.append(entries, NOBODY)[nearest.entry])
            columns["second"].append(nearest.second)
            columns["mate"].append(nearest.mate)
        whole = {name: np.concatenate(blocks) for name, blocks in columns.items()}
        self.image, self.gallery, self.mated = whole["image"], whole["gallery"], whole["mated"]
        self.best, self.entry = whole["best"], whole["entry"]
        self.second, self.mate = whole["second"], whole["mate"]
        self.subject = self._subjects[self.image]
        self.entries = tuple(np.bincount(self.placed[self.placed >= 0]).tolist())
        self.of_others = None if others is None else others.best_scores(max(self.entries), plan)

    def audit(self, grouping: Grouping) -> SearchAudit:
        """Return the figures of a grouping."""
        group = np.full(self.count, -1, np.int64)
        known = grouping.codes >= 0
        group[self._subjects[known]] = grouping.codes[known]
        base = int(np.bincount(group[group >= 0], minlength=len(grouping.names)).argmax())
        if self.plan.reference in grouping.names:
            base = grouping.names.index(str(self.plan.reference))
        thresholds = self._thresholds(grouping)
        return SearchAudit(
            grouping.names[base],
            tuple(thresholds),
            tuple(self._rates(thresholds, grouping, base)),
            tuple(self._failures(grouping)),
            tuple(self._largest(thresholds, grouping)),
        )

    def _thresholds(self, grouping: Grouping) -> list[SearchThreshold]:
        """Set the thresholds on everybody or on other subjects.

        Those on the reference come on top, if it is one of these groups.
        """
        bases = {EVERYBODY: self.best[~self.mated]}
        if self.of_others is not None:
            bases = {OTHERS: self.of_others}
        if self.plan.reference in grouping.names:
            code = grouping.names.index(str(self.plan.reference))
            of_reference = grouping.codes[self.image] == code
            bases[str(self.plan.reference)] = self.best[~self.mated & of_reference]
        audited = self.best, self.second, self.mate
        return [
            _threshold(basis, target, scores, audited)
            for basis, scores in bases.items()
            for target in self.plan.targets
        ]

    def _outcomes(self, value: float) -> Iterator[tuple[Figure, Mask, float, Mask]]:
        """Yield FPIR and FNIR at a threshold: errors, the bar of `_share`, and which searches."""
        yield "FPIR", ~self.mated & (self.best >= value), value, ~self.mated
        yield "FNIR", self.mated & (self.mate < value), math.inf, self.mated

    def _share(
        self, events: Mask, bar: float | NDArray[np.floating], which: Mask
    ) -> SearchShare | None:
        """Return the share of events among some searches; None if there is no such search.

        Args:
            events: ``(S,)``.
            bar: what an entry of another subject must reach to cause one; +∞ if none can.
            which: searches that count, ``(S,)``.
        """
        if not which.any():
            return None
        alone = events & (self.best >= bar) & (self.second < bar)
        entry = np.where(alone, self.entry, NOBODY)
        return SearchShare.from_searches(
            events[which], self.subject[which], entry[which], self.placed, self.gallery[which]
        )

    def _rates(
        self, thresholds: Sequence[SearchThreshold], grouping: Grouping, base: int
    ) -> Iterator[SearchRate]:
        """Yield all rates, by threshold, figure and group."""
        names, rows = grouping.names, _rows(grouping, grouping.codes[self.image])

        def figure(
            name: Figure,
            events: Mask,
            bar: float | NDArray[np.floating],
            among: Mask,
            threshold: SearchThreshold | None,
        ) -> Iterator[SearchRate]:
            shares = [self._share(events, bar, among & which) for _, which in rows]
            for code, ((row, _), share) in enumerate(zip(rows, shares, strict=True)):
                ratio = None
                if code not in (base, len(names)):
                    ratio = _ratio(share, shares[base], names[base])
                yield SearchRate(threshold, row, name, _rate(share), ratio)

        with np.errstate(invalid="ignore"):
            beaten = self.mated & (self.best >= self.mate)
        mates = np.where(self.mated, self.mate, np.float32(np.inf))
        yield from figure("rank-1 miss rate", beaten, mates, self.mated, None)
        for threshold in thresholds:
            if threshold.value is not None:
                for name, events, bar, among in self._outcomes(threshold.value):
                    yield from figure(name, events, bar, among, threshold)

    def _largest(
        self, thresholds: Sequence[SearchThreshold], grouping: Grouping
    ) -> Iterator[LargestRatio]:
        """Yield the largest detected ratios between groups."""
        threshold = working_threshold(thresholds)
        pairs = math.comb(len(grouping.names), 2)
        if threshold is None or threshold.value is None or not pairs:
            return
        of = grouping.codes[self.image]
        for name, events, bar, among in self._outcomes(threshold.value):
            shares = {
                group: share
                for code, group in enumerate(grouping.names)
                if (share := self._share(events, bar, among & (of == code))) is not None
            }
            detected = [
                LargestRatio(
                    ratio.value,
                    ratio.interval,
                    total=sum(share.comparisons for share in shares.values()),
                    figure=name,
                    threshold=threshold,
                    ends=((first, shares[first].rate), (second, shares[second].rate)),
                )
                for first, second in itertools.permutations(shares, 2)
                if (ratio := _ratio(shares[first], shares[second], second, 1 - ALPHA / pairs)).low
                is not None
                and ratio.low > 1
            ]
            if detected:
                yield max(detected, key=lambda ratio: ratio.value or 0.0)

    def _failures(self, grouping: Grouping) -> Iterator[tuple[str, Estimate]]:
        """Yield what could not be enrolled, by group and of everybody."""
        for name, images in _rows(grouping, grouping.codes):
            there = np.bincount(self._subjects[images], minlength=self.count) > 0
            yield (
                name,
                rate(ClusteredShare.from_mated_counts(~self._made[there], np.ones(there.sum()))),
            )


def audit_searches(
    vectors: NDArray[np.floating],
    joined: Joined,
    groupings: Sequence[Grouping],
    plan: SearchPlan,
    progress: Progress | None = None,
    others: OtherSubjects | None = None,
) -> OneToMany:
    """Audit identification by group.

    Args:
        vectors: raw embeddings, ``(N, D)``, of which ``joined`` names the rows.
        joined: images with their subjects; failures to acquire stay images.
        groupings: with a group to show.
        plan: targets, reference, galleries and templates.
        progress: called with the groupings that are done.
        others: set the thresholds for everybody on these subjects.

    Raises:
        DatasetError: the reference is no group that is shown, or too few other subjects.
        MetricError: an impossible target, or no search of a kind.
    """
    for target in plan.targets:
        parse_rate(target)
    shown = [name for grouping in groupings for name in grouping.names]
    if plan.reference is not None and plan.reference not in shown:
        raise DatasetError(
            f"the reference group {plan.reference!r} is none of the groups that are shown "
            f"({', '.join(shown[:20])}); name one of these"
        )
    searcher = _Searcher(vectors, joined, plan, others)
    mated, made = int(np.count_nonzero(searcher.mated)), searcher.mated.size
    if not mated or mated == made:
        raise MetricError(
            f"{mated} of {made} searches are mated; identification needs both kinds, so some "
            "subjects with two images or more"
        )
    audits = []
    for number, grouping in enumerate(groupings, start=1):
        audits.append(searcher.audit(grouping))
        if progress is not None:
            progress("identification", number, len(groupings))
    chosen = (
        "one image, drawn by the seed,"
        if plan.template == "one"
        else "the mean of the unit vectors of half of a subject's images, one at least,"
    )
    protocol = (
        f"{searcher.count:,} subjects were split into two halves by seed {plan.seed}. Each half "
        f"was enrolled once, with {chosen} as a template, in galleries of "
        f"{' and '.join(f'{size:,}' for size in searcher.entries)} subjects. Other images of "
        f"enrolled subjects made {mated:,} mated searches, all images of the other half "
        f"{made - mated:,} non-mated ones; figures pool both galleries."
    )
    if others is not None and searcher.of_others is not None:
        protocol += (
            f" Thresholds were set on {others.count:,} subjects of {others.name}, by "
            f"{searcher.of_others.size:,} non-mated searches in galleries of "
            f"{max(searcher.entries):,} of them."
        )
    return OneToMany(protocol, tuple(audits))


def working_threshold(thresholds: Sequence[SearchThreshold]) -> SearchThreshold | None:
    """Return the threshold to look at first, of the first basis.

    It is the one of the lowest target that leaves room for 30 false alarms where it was set, or
    else of the highest target that is resolvable.
    """
    usable = [
        one for one in thresholds if one.value is not None and one.basis == thresholds[0].basis
    ]
    usable.sort(key=lambda one: one.false_alarms)
    return next((one for one in usable if one.reliable), usable[-1] if usable else None)


def _rows(grouping: Grouping, codes: NDArray[np.int64]) -> list[tuple[str, Mask]]:
    """Return which entries of codes are of each group, and at last those of everybody."""
    rows = [(name, codes == code) for code, name in enumerate(grouping.names)]
    return [*rows, (EVERYBODY, np.ones(codes.size, bool))]


def _rate(share: SearchShare | None) -> Estimate:
    """Return a share of searches; None if there is none."""
    if share is None:
        return Estimate(None, events=0, total=0, remark="no search")
    return Estimate(share.rate, share.interval(), share.events, share.comparisons)


def _threshold(
    basis: str,
    target: str,
    scores: NDArray[np.float32],
    audited: tuple[NDArray[np.float32], ...],
) -> SearchThreshold:
    """Return the lowest threshold whose FPIR does not exceed the target.

    Args:
        basis: whose searches.
        target: FPIR.
        scores: best scores of their non-mated searches, ``(S,)``.
        audited: scores that it tells apart too.
    """
    allowed = allowed_accepts(target, scores.size)
    lowest = step_threshold(np.sort(scores)[::-1], allowed, *audited)
    remark = ""
    if parse_rate(target) * scores.size < 1:
        remark = f"not resolvable with {scores.size:,} non-mated searches"
    elif not math.isfinite(lowest):
        remark = f"it accepts {'everything' if lowest == -math.inf else 'nothing'}"
    return SearchThreshold(
        basis=basis,
        target=target,
        value=None if remark else lowest,
        false_alarms=int(np.count_nonzero(scores >= lowest)),
        non_mated=scores.size,
        reliable=allowed >= RULE_OF_30,
        remark=remark,
    )


def _ratio(
    share: SearchShare | None, base: SearchShare | None, name: str, confidence: float = 1 - ALPHA
) -> Estimate:
    """Return the ratio of two shares, or why it is not formed."""
    if share is None or base is None:
        return Estimate(None, total=0, remark="no search")
    few = [one.events for one in (share, base)]
    if min(few) < FEW_ERRORS or max(few) < RULE_OF_30:
        reason = f"insufficient data: {few[0]} errors, {few[1]} in {name}"
        return Estimate(None, total=sum(few), remark=reason)
    interval = ratio_interval(share, base, confidence)
    return Estimate(share.rate / base.rate, interval, total=sum(few))
