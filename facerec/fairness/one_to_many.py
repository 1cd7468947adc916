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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from facerec.defaults import AUDIT_FPIR_TARGETS, Template
from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError, MetricError
from facerec.fairness.attributes import EVERYBODY, OTHERS, SMALLEST_CELL, Grouping, Joined
from facerec.fairness.differentials import FEW_ERRORS
from facerec.fairness.rate_results import ErrorRate, rate_of, usable_threshold
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

Figure = Literal["FPIR", "FNIR", "FNIR with failures", "rank-1 miss rate"]
Galleries = Literal["mixed", "homogeneous"]

_HALVES = 2


@dataclass(frozen=True)
class SearchPlan(Checked):
    """What an audit of identification looks at."""

    targets: tuple[str, ...] = AUDIT_FPIR_TARGETS
    """Target FPIRs, taken exactly."""
    reference: str | None = None
    """Group on which thresholds are set too, and with which others are compared."""
    homogeneous: bool = False
    """Also search galleries that hold one group alone, of one size for all groups."""
    template: Template = "one"
    """Enrol one image of a subject, or the mean of the unit vectors of half of them."""
    seed: Seed = 0
    """Of the split of subjects and the choice of images."""


@dataclass(frozen=True)
class SearchThreshold:
    """A threshold for everybody, and what it was set on."""

    galleries: Galleries
    basis: str
    """Whose non-mated searches: `EVERYBODY`, `OTHERS`, or a group."""
    target: str
    """FPIR as it was written."""
    value: float | None
    """None if it accepts everything or nothing, see ``reason``."""
    false_alarms: int
    non_mated: int
    resolvable: bool
    """Whether these searches leave room for one false alarm at the target."""
    reliable: bool
    """Whether they leave room for 30."""
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class SearchRate(ErrorRate):
    """A share of the searches of one group, and its ratio to that of the group compared with."""

    in_files: ClassVar = (
        "galleries basis target threshold stratum group figure k=events n=total value interval "
        "n_eff=effective identities=subjects resolvable reliable mark reason=remark ratio"
    )
    galleries: Galleries
    basis: str | None
    """Whose threshold, see `SearchThreshold`; None for rank 1, which needs none."""
    target: str | None
    threshold: float | None
    stratum: str | None
    """The third of a covariate that probes lie in; None for all probes."""
    group: str
    figure: Figure
    ratio: Estimate | None
    """To the same figure of the reference group; None for that group and for `EVERYBODY`."""


@dataclass(frozen=True, kw_only=True)
class LargestRatio(Estimate):
    """The largest ratio of a figure between two groups whose interval excludes 1.

    The interval holds for all pairs of groups at once (Bonferroni). It rests on the searches of
    all groups, ``total``.
    """

    total: int
    figure: Figure
    threshold: SearchThreshold
    highest: tuple[str, int, int]
    """Group of the numerator, its errors and its searches."""
    lowest: tuple[str, int, int]
    """Of the denominator."""


@dataclass(frozen=True)
class GroupFailures:
    """Failures of one group."""

    group: str
    acquire: ErrorRate
    """Images without an embedding, among all images."""
    enrol: ErrorRate
    """Subjects without a template, as none of the images to enrol was acquired, among subjects."""


@dataclass(frozen=True)
class Entries:
    """Sizes of the galleries of one kind."""

    galleries: Galleries
    entries: tuple[int, ...]


@dataclass(frozen=True)
class SearchAudit:
    """Identification by one attribute, or by the intersection of several."""

    in_files: ClassVar = (
        "grouping=name compared_with galleries=entries thresholds rates failures reasons"
    )
    name: str
    """Of the grouping."""
    groups: tuple[str, ...]
    compared_with: str
    """The group to which ratios are formed: the reference, or else the one with most subjects."""
    thresholds: tuple[SearchThreshold, ...]
    rates: tuple[SearchRate, ...]
    failures: tuple[GroupFailures, ...]
    entries: tuple[Entries, ...]
    """One each kind of galleries."""
    reasons: tuple[str, ...]
    """Why there are no homogeneous galleries, or no thirds of a covariate, a sentence each."""
    largest: tuple[LargestRatio, ...]
    """Of FPIR and of FNIR in mixed galleries at the first of `working_thresholds`; none where no
    difference is detected. For findings; in no file."""


@dataclass(frozen=True)
class OneToMany:
    """Identification by all groupings."""

    in_files: ClassVar = (
        "protocol fpir=plan.targets reference=plan.reference homogeneous=plan.homogeneous "
        "template=plan.template seed=plan.seed persons=subjects entries mated non_mated groupings"
    )
    plan: SearchPlan
    protocol: str
    """How galleries and searches were made, in a few sentences."""
    subjects: int
    entries: tuple[int, ...]
    """Sizes of the two mixed galleries."""
    mated: int
    """Searches."""
    non_mated: int
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


@dataclass(frozen=True, eq=False)
class _Searched:
    """Searches of some galleries; S of them."""

    image: NDArray[np.int64]
    """The probe, ``(S,)``."""
    subject: NDArray[np.int64]
    """Behind it, ``(S,)``."""
    gallery: NDArray[np.int64]
    """Number of the gallery, ``(S,)``."""
    mated: NDArray[np.bool_]
    best: NDArray[np.float32]
    """Best score with another subject's entry, ``(S,)``."""
    entry: NDArray[np.int64]
    """The subject of that entry, ``(S,)``."""
    second: NDArray[np.float32]
    mate: NDArray[np.float32]
    placed: NDArray[np.int64]
    """Gallery of each subject, ``(G,)``; −1 for none."""

    @property
    def entries(self) -> tuple[int, ...]:
        """Sizes of the galleries."""
        return tuple(np.bincount(self.placed[self.placed >= 0]).tolist())

    def outcomes(
        self, value: float
    ) -> Iterator[tuple[Figure, NDArray[np.bool_], float, NDArray[np.bool_]]]:
        """Yield FPIR and FNIR at a threshold: errors, the bar of `share`, and which searches."""
        yield "FPIR", ~self.mated & (self.best >= value), value, ~self.mated
        yield "FNIR", self.mated & (self.mate < value), math.inf, self.mated

    def share(
        self, events: NDArray[np.bool_], bar: float | NDArray[np.floating], which: NDArray[np.bool_]
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


class _Searcher:
    """Searches of one data set, and their figures by group."""

    def __init__(
        self,
        vectors: NDArray[np.floating],
        joined: Joined,
        plan: SearchPlan,
        others: OtherSubjects | None = None,
    ) -> None:
        self.plan, self._joined = plan, joined
        self._others = others
        self._scores_of_others: dict[int, NDArray[np.float32]] = {}
        self._vectors, self._subjects = vectors[joined.rows], joined.subjects
        self.subject_count = int(joined.subjects.max()) + 1
        self.drawn = Enrolment.draw(joined.subjects, joined.order, plan.template, plan.seed)
        acquired = joined.acquired
        self._templates = enrol(
            self._vectors, self._subjects, self.drawn.enrolled & acquired, self.subject_count
        )
        self._made = ~np.isnan(self._templates[:, 0])
        self._acquired = acquired
        self.mixed = self._search(np.where(self._made, self.drawn.half, -1), _HALVES)

    def _search(
        self, placed: NDArray[np.int64], galleries: int, group: NDArray[np.int64] | None = None
    ) -> _Searched:
        """Search galleries with all images that are not enrolled in them.

        Args:
            placed: gallery of each subject, ``(G,)``.
            galleries: their number; gallery g holds subjects of half g mod 2.
            group: of each subject, ``(G,)``, where gallery g is searched by group g div 2 alone.
        """
        subject, half = self._subjects, self.drawn.half[self._subjects]
        rows: list[NDArray[np.int64]] = []
        columns: dict[str, list[NDArray]] = {
            name: [] for name in ("gallery", "mated", "best", "entry", "second", "mate")
        }
        for gallery in range(galleries):
            inside = half == gallery % _HALVES
            # An enrolled image would find itself; whoever failed to enrol has no mate to find.
            mated = inside & ~self.drawn.enrolled & (placed[subject] == gallery)
            wanted = (mated | ~inside) & self._acquired
            if group is not None:
                wanted &= group[subject] == gallery // _HALVES
            probes, entries = np.flatnonzero(wanted), np.flatnonzero(placed == gallery)
            rows.append(probes)
            nearest = nearest_entries(
                self._vectors[probes], subject[probes], self._templates[entries], entries
            )
            columns["gallery"].append(np.full(probes.size, gallery))
            columns["mated"].append(mated[probes])
            columns["best"].append(nearest.best)
            # Without an entry the row is −1, which takes the last one.
            columns["entry"].append(np.append(entries, NOBODY)[nearest.entry])
            columns["second"].append(nearest.second)
            columns["mate"].append(nearest.mate)
        joined = {name: np.concatenate(blocks) for name, blocks in columns.items()}
        image = np.concatenate(rows)
        return _Searched(image=image, subject=subject[image], placed=placed, **joined)

    def audit(self, grouping: Grouping) -> SearchAudit:
        """Return the figures of a grouping."""
        group = np.full(self.subject_count, -1, np.int64)
        known = grouping.codes >= 0
        group[self._subjects[known]] = grouping.codes[known]
        sizes = np.bincount(group[group >= 0], minlength=len(grouping.names))
        base = int(sizes.argmax())
        reference = self.plan.reference
        if reference in grouping.names:
            base = grouping.names.index(str(reference))
        searched: list[tuple[Galleries, _Searched]] = [("mixed", self.mixed)]
        strata, reasons = self._strata(grouping)
        if self.plan.homogeneous:
            placed, reason = self._homogeneous(group, len(grouping.names))
            if placed is None:
                reasons.append(f"No homogeneous galleries: {reason}.")
            else:
                count = _HALVES * len(grouping.names)
                searched.append(("homogeneous", self._search(placed, count, group)))
        thresholds: list[SearchThreshold] = []
        rates: list[SearchRate] = []
        for kind, searches in searched:
            mine = self._thresholds(kind, searches, grouping)
            thresholds += mine
            rates += self._rates(kind, searches, mine, grouping, base, strata)
        return SearchAudit(
            grouping.name,
            grouping.names,
            grouping.names[base],
            tuple(thresholds),
            tuple(rates),
            tuple(self._failures(grouping)),
            tuple(Entries(kind, searches.entries) for kind, searches in searched),
            tuple(reasons),
            tuple(self._largest(thresholds, grouping)),
        )

    def _strata(self, grouping: Grouping) -> tuple[dict[str, NDArray[np.bool_]], list[str]]:
        """Return which images lie in each third of each covariate, ``(n,)``, and what is withheld.

        A covariate is withheld where a third of a group has under ten subjects: the others would
        give its figures away.
        """
        strata: dict[str, NDArray[np.bool_]] = {}
        reasons = []
        for name, values in self._joined.covariates.items():
            known = self._acquired & ~np.isnan(values)
            if not known.any():
                reasons.append(f"No thirds of {name}: it is recorded for no image.")
                continue
            edges = np.quantile(values[known], (1 / 3, 2 / 3))
            third = np.searchsorted(edges, values, side="left")
            thirds = {
                f"{name}, {which} third": known & (third == number)
                for number, which in enumerate(("lowest", "middle", "highest"))
            }
            subjects = [
                np.unique(self._subjects[inside & (grouping.codes == code)]).size
                for inside in thirds.values()
                for code in range(len(grouping.names))
            ]
            if min(subjects) < SMALLEST_CELL:
                reasons.append(
                    f"No thirds of {name}: one has under {SMALLEST_CELL} subjects of a group."
                )
            else:
                strata |= thirds
        return strata, reasons

    def _homogeneous(
        self, group: NDArray[np.int64], groups: int
    ) -> tuple[NDArray[np.int64] | None, str | None]:
        """Place subjects in galleries of one group and half each, all of one size."""
        placed = np.where((group >= 0) & self._made, group * _HALVES + self.drawn.half, -1)
        size = int(np.bincount(placed[placed >= 0], minlength=groups * _HALVES).min())
        if size < 2:
            return None, f"a group has {size} enrolled subjects in one half, two are needed"
        # Who stays in a larger group is drawn by the seed too.
        order = np.random.default_rng((self.plan.seed, 1)).permutation(self.subject_count)
        left = np.full(self.subject_count, -1, np.int64)
        for gallery in range(groups * _HALVES):
            members = order[placed[order] == gallery][:size]
            left[members] = gallery
        return left, None

    def _thresholds(
        self, kind: Galleries, searches: _Searched, grouping: Grouping
    ) -> list[SearchThreshold]:
        """Set the thresholds on everybody or on other subjects.

        Those on the reference come on top, if it is one of these groups.
        """
        bases = {EVERYBODY: searches.best[~searches.mated]}
        if self._others is not None:
            bases = {OTHERS: self.of_others(self._others, searches)}
        if self.plan.reference in grouping.names:
            code = grouping.names.index(str(self.plan.reference))
            of_reference = grouping.codes[searches.image] == code
            bases[str(self.plan.reference)] = searches.best[~searches.mated & of_reference]
        return [
            _threshold(kind, basis, target, scores, searches)
            for basis, scores in bases.items()
            for target in self.plan.targets
        ]

    def of_others(self, others: OtherSubjects, searches: _Searched) -> NDArray[np.float32]:
        """Return the best scores of other subjects in galleries as large as those searched."""
        size = max(searches.entries)
        if size not in self._scores_of_others:
            self._scores_of_others[size] = others.best_scores(size, self.plan)
        return self._scores_of_others[size]

    def _rates(
        self,
        kind: Galleries,
        searches: _Searched,
        thresholds: Sequence[SearchThreshold],
        grouping: Grouping,
        base: int,
        strata: Mapping[str, NDArray[np.bool_]],
    ) -> Iterator[SearchRate]:
        """Yield all rates, by threshold, figure and group."""
        names, rows = grouping.names, _rows(grouping, grouping.codes[searches.image])
        if kind != "mixed":  # nobody searches all homogeneous galleries
            del rows[-1]
        mated = searches.mated

        def figure(
            name: Figure,
            events: NDArray[np.bool_],
            bar: float | NDArray[np.floating],
            among: NDArray[np.bool_],
            threshold: SearchThreshold | None,
            stratum: str | None = None,
        ) -> Iterator[SearchRate]:
            shares = [searches.share(events, bar, among & which) for _, which in rows]
            target = threshold.target if threshold and name == "FPIR" else None
            for code, ((row, _), share) in enumerate(zip(rows, shares, strict=True)):
                ratio = None
                if code not in (base, len(names)):
                    ratio = _ratio(share, shares[base], names[base])
                rate = rate_of(share, target)
                yield _row(rate, kind, threshold, row, name, ratio, stratum)

        with np.errstate(invalid="ignore"):
            beaten = mated & (searches.best >= searches.mate)
        mates = np.where(mated, searches.mate, np.float32(np.inf))
        yield from figure("rank-1 miss rate", beaten, mates, mated, None)
        for threshold in thresholds:
            if threshold.value is None or not threshold.resolvable:
                continue
            outcomes = list(searches.outcomes(threshold.value))
            for name, events, bar, among in outcomes:
                yield from figure(name, events, bar, among, threshold)
            if kind != "mixed":
                continue
            yield from self._with_failures(searches, outcomes[1][1], grouping, threshold)
            for stratum, images in strata.items():
                inside = images[searches.image]
                for name, events, bar, among in outcomes:
                    yield from figure(name, events, bar, among & inside, threshold, stratum)

    def _largest(
        self, thresholds: Sequence[SearchThreshold], grouping: Grouping
    ) -> Iterator[LargestRatio]:
        """Yield the largest detected ratios between groups in the mixed galleries."""
        working = [one for one in working_thresholds(thresholds) if one.galleries == "mixed"]
        pairs = math.comb(len(grouping.names), 2)
        if not working or not pairs:
            return
        threshold, searches = working[0], self.mixed
        assert threshold.value is not None  # or it would not be a working one
        of = grouping.codes[searches.image]
        for name, events, bar, among in searches.outcomes(threshold.value):
            shares = {
                group: share
                for code, group in enumerate(grouping.names)
                if (share := searches.share(events, bar, among & (of == code))) is not None
            }
            total = sum(share.comparisons for share in shares.values())
            detected = [
                LargestRatio(
                    value=ratio.value,
                    interval=ratio.interval,
                    total=total,
                    figure=name,
                    threshold=threshold,
                    highest=(first, shares[first].events, shares[first].comparisons),
                    lowest=(second, shares[second].events, shares[second].comparisons),
                )
                for first, second in itertools.permutations(shares, 2)
                if (ratio := _ratio(shares[first], shares[second], second, 1 - ALPHA / pairs)).low
                is not None
                and ratio.low > 1
            ]
            if detected:
                yield max(detected, key=lambda ratio: ratio.value or 0.0)

    def _with_failures(
        self,
        searches: _Searched,
        missed: NDArray[np.bool_],
        grouping: Grouping,
        threshold: SearchThreshold,
    ) -> Iterator[SearchRate]:
        """Yield the FNIR with failures to acquire and to enrol as misses, where there are any."""
        lost = ~self.drawn.enrolled & ~(self._acquired & self._made[self._subjects])
        if not lost.any():
            return
        error = lost.copy()
        error[searches.image[missed]] = True
        made = lost.copy()
        made[searches.image[searches.mated]] = True
        for name, which in _rows(grouping, grouping.codes):
            subjects = self._subjects[made & which]
            share = None
            if subjects.size:
                share = SearchShare.from_searches(
                    error[made & which],
                    subjects,
                    np.full(subjects.size, NOBODY),
                    np.full(self.subject_count, NOBODY),
                )
            yield _row(rate_of(share), "mixed", threshold, name, "FNIR with failures", None)

    def _failures(self, grouping: Grouping) -> Iterator[GroupFailures]:
        """Yield what could not be acquired and enrolled, by group and of everybody."""
        for name, images in _rows(grouping, grouping.codes):
            subjects = self._subjects[images]
            failed = np.bincount(subjects, ~self._acquired[images], self.subject_count)
            made = np.bincount(subjects, minlength=self.subject_count)
            there = made > 0
            acquire = ClusteredShare.from_mated_counts(failed[there], made[there])
            enrol = ClusteredShare.from_mated_counts(~self._made[there], np.ones(there.sum()))
            yield GroupFailures(name, rate_of(acquire), rate_of(enrol))


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
    mixed = searcher.mixed
    mated = int(np.count_nonzero(mixed.mated))
    if not mated or mated == mixed.mated.size:
        raise MetricError(
            f"{mated} of {mixed.mated.size} searches are mated; identification needs both kinds, "
            "so some subjects with two images or more"
        )
    audits = []
    for number, grouping in enumerate(groupings):
        if progress is not None:
            progress("identification", number, len(groupings))
        audits.append(searcher.audit(grouping))
    if progress is not None:
        progress("identification", len(groupings), len(groupings))
    chosen = (
        "one image, drawn by the seed,"
        if plan.template == "one"
        else "the mean of the unit vectors of half of a subject's images, one at least,"
    )
    entries = mixed.entries
    protocol = (
        f"{searcher.subject_count:,} subjects were split into two halves by seed {plan.seed}. Each "
        f"half was enrolled once, with {chosen} as a template, in galleries of "
        f"{' and '.join(f'{size:,}' for size in entries)} subjects. Other images of enrolled "
        f"subjects made {mated:,} mated searches, all images of the other half "
        f"{mixed.mated.size - mated:,} non-mated ones; figures pool both galleries."
    )
    if others is not None:
        scores = searcher.of_others(others, mixed)
        protocol += (
            f" Thresholds were set on {others.count:,} subjects of {others.name}, by "
            f"{scores.size:,} non-mated searches in galleries of {max(entries):,} of them."
        )
    return OneToMany(
        plan,
        protocol,
        searcher.subject_count,
        entries,
        mated,
        mixed.mated.size - mated,
        tuple(audits),
    )


def working_thresholds(thresholds: Sequence[SearchThreshold]) -> list[SearchThreshold]:
    """Return the threshold to look at first of each kind of galleries and each basis.

    It is the one of the lowest target that leaves room for 30 false alarms where it was set, or
    else of the highest target that is resolvable.
    """
    usable = [one for one in thresholds if one.value is not None and one.resolvable]
    chosen = []
    for kind, basis in dict.fromkeys((one.galleries, one.basis) for one in usable):
        here = [one for one in usable if (one.galleries, one.basis) == (kind, basis)]
        here.sort(key=lambda one: one.false_alarms)
        chosen.append(next((one for one in here if one.reliable), here[-1]))
    return chosen


def _rows(grouping: Grouping, codes: NDArray[np.int64]) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return which entries of codes are of each group, and at last those of everybody."""
    rows = [(name, codes == code) for code, name in enumerate(grouping.names)]
    return [*rows, (EVERYBODY, np.ones(codes.size, bool))]


def _threshold(
    kind: Galleries, basis: str, target: str, scores: NDArray[np.float32], searches: _Searched
) -> SearchThreshold:
    """Return the lowest threshold whose FPIR does not exceed the target.

    Args:
        kind: of galleries.
        basis: whose searches.
        target: FPIR.
        scores: best scores of their non-mated searches, ``(S,)``.
        searches: whose scores it tells apart too.
    """
    allowed = allowed_accepts(target, scores.size)
    audited = searches.best, searches.second, searches.mate
    lowest = step_threshold(np.sort(scores)[::-1], allowed, *audited)
    value, reason = usable_threshold(lowest)
    return SearchThreshold(
        galleries=kind,
        basis=basis,
        target=target,
        value=value,
        false_alarms=int(np.count_nonzero(scores >= lowest)),
        non_mated=scores.size,
        resolvable=parse_rate(target) * scores.size >= 1,
        reliable=allowed >= RULE_OF_30,
        reason=reason,
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


def _row(
    rate: ErrorRate,
    kind: Galleries,
    threshold: SearchThreshold | None,
    group: str,
    figure: Figure,
    ratio: Estimate | None,
    stratum: str | None = None,
) -> SearchRate:
    return SearchRate(
        **vars(rate),
        galleries=kind,
        basis=threshold.basis if threshold else None,
        target=threshold.target if threshold else None,
        threshold=threshold.value if threshold else None,
        stratum=stratum,
        group=group,
        figure=figure,
        ratio=ratio,
    )
