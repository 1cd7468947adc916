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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from facerec.defaults import AUDIT_FPIR_TARGETS
from facerec.embedding.extraction import Embeddings
from facerec.errors import DatasetError, MetricError
from facerec.fairness import rows as names
from facerec.fairness.attributes import EVERYBODY, OTHERS, Grouping, Joined
from facerec.fairness.differentials import FEW_ERRORS
from facerec.fairness.pair_counts import rate
from facerec.fairness.rows import Rows
from facerec.large_arrays import take
from facerec.limits import Checked, Seed
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
    ratio_interval,
    search_share,
)
from facerec.verification.identification import nearest_entries

Mask = NDArray[np.bool_]
Templates = NDArray[np.float64]

_HALVES = 2


@dataclass(frozen=True)
class SearchPlan(Checked):
    """What an audit of identification looks at."""

    targets: tuple[str, ...] = AUDIT_FPIR_TARGETS
    """Target FPIRs, taken exactly."""
    reference: str | None = None
    """Group on which thresholds are set too, and with which others are compared."""
    seed: Seed = 0
    """Of the split of subjects and the choice of images."""


def draw(
    subjects: NDArray[np.int64], order: NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int64], Mask]:
    """Split subjects into halves and choose an image of each to enrol.

    Args:
        subjects: subject of each image, 0 to G − 1, ``(n,)``.
        order: a number of each image's own, ``(n,)``, by which it is drawn; rows play no part.
        seed: equal seeds draw alike.

    Returns:
        Gallery of each subject, 0 or 1, ``(G,)``; whether an image is one to enrol, ``(n,)``.
    """
    generator = np.random.default_rng(seed)
    images = np.bincount(subjects)
    half = np.empty(images.size, np.int64)
    half[generator.permutation(images.size)] = np.arange(images.size) % _HALVES
    chance = np.empty(subjects.size, np.int64)
    chance[np.argsort(order)] = generator.permutation(subjects.size)
    enrolled = np.zeros(subjects.size, bool)
    enrolled[np.lexsort((chance, subjects))[np.cumsum(images) - images]] = True
    return half, enrolled


def enrol(vectors: NDArray[np.floating], subjects: NDArray[np.int64], chosen: Mask) -> Templates:
    """Return the template of every subject, the unit vector of the image chosen, ``(G, D)``.

    Subjects without such an image have NaN.
    """
    templates = np.full((int(subjects.max()) + 1, vectors.shape[1]), np.nan)
    units = vectors[chosen].astype(np.float64)
    templates[subjects[chosen]] = units / np.linalg.norm(units, axis=1, keepdims=True)
    return templates


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
                "searched for; embed record files or a folder of subject/image.jpg"
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

    def best_scores(self, size: int, seed: int) -> NDArray[np.float32]:
        """Return the best scores of non-mated searches, ``(S,)``.

        There are as many galleries of that size as subjects suffice for, each searched with all
        images of everybody else.

        Args:
            size: subjects in a gallery.
            seed: of the images that are enrolled, and of the galleries.

        Raises:
            DatasetError: too few subjects for a gallery and somebody outside.
        """
        if self.count <= size:
            raise DatasetError(
                f"{self.name}: {self.count:,} subjects, but a threshold of searches holds for "
                f"galleries of one size alone, and those audited have {size:,}; give more than "
                f"{size:,} subjects, or leave out --threshold-from or --one-to-many"
            )
        _, enrolled = draw(self.subjects, self.order, seed)
        templates = enrol(self.vectors, self.subjects, enrolled)
        order = np.random.default_rng((seed, 2)).permutation(self.count)
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

    def __init__(self, vectors: NDArray[np.floating], joined: Joined, plan: SearchPlan) -> None:
        self.plan, self._subjects = plan, joined.subjects
        self.count = int(joined.subjects.max()) + 1
        own = vectors[joined.rows]
        half, enrolled = draw(joined.subjects, joined.order, plan.seed)
        templates = enrol(own, self._subjects, enrolled & joined.acquired)
        self._made = ~np.isnan(templates[:, 0])
        self.placed = np.where(self._made, half, NOBODY)
        blocks = []
        for gallery in range(_HALVES):
            inside = half[self._subjects] == gallery
            # An enrolled image would find itself; whoever failed to enrol has no mate to find.
            mated = inside & ~enrolled & self._made[self._subjects]
            probes = np.flatnonzero((mated | ~inside) & joined.acquired)
            entries = np.flatnonzero(self.placed == gallery)
            found = nearest_entries(
                own[probes], self._subjects[probes], templates[entries], entries
            )
            # Without an entry the row is −1, which takes the last one.
            entry = np.append(entries, NOBODY)[found.entry]
            where = np.full(probes.size, gallery)
            blocks.append(
                (probes, where, mated[probes], found.best, entry, found.second, found.mate)
            )
        columns = [np.concatenate(column) for column in zip(*blocks, strict=True)]
        self.image, self.gallery, self.mated, self.best, self.entry, self.second, self.mate = (
            columns
        )
        self.subject = self._subjects[self.image]
        self.entries = tuple(np.bincount(self.placed[self.placed >= 0]).tolist())

    def add(self, rows: Rows, grouping: Grouping, others: NDArray[np.float32] | None) -> None:
        """Add the figures of a grouping; ``others`` are scores on which thresholds are set."""
        thresholds = list(self._thresholds(rows, grouping, others))
        reference = self.plan.reference
        if reference not in grouping.names:
            subjects = [
                np.unique(self._subjects[grouping.codes == code]).size
                for code in range(len(grouping.names))
            ]
            reference = grouping.names[int(np.argmax(subjects))]
        members = _members(grouping, grouping.codes[self.image])

        def add(
            figure: str, where: str, events: Mask, bar: float | NDArray[np.floating], among: Mask
        ) -> None:
            shares = {name: self._share(events, bar, among & inside) for name, inside in members}
            for name, share in shares.items():
                rows.add(grouping.name, figure, _rate(share), name, where)
                if name not in (reference, EVERYBODY):
                    ratio = _ratio(share, shares[str(reference)], str(reference))
                    rows.add(
                        grouping.name, names.ratio_of(figure, str(reference)), ratio, name, where
                    )

        with np.errstate(invalid="ignore"):
            beaten = self.mated & (self.best >= self.mate)
        mates = np.where(self.mated, self.mate, np.float32(np.inf))
        add(names.RANK_1, "", beaten, mates, self.mated)
        for where, value in thresholds:
            add("FPIR", where, ~self.mated & (self.best >= value), value, ~self.mated)
            add("FNIR", where, self.mated & (self.mate < value), math.inf, self.mated)
        for name, images in _members(grouping, grouping.codes):
            there = np.bincount(self._subjects[images], minlength=self.count) > 0
            failed = ClusteredShare.from_mated_counts(~self._made[there], np.ones(there.sum()))
            rows.add(grouping.name, names.NOT_ENROLLED, rate(failed), name)

    def _thresholds(
        self, rows: Rows, grouping: Grouping, others: NDArray[np.float32] | None
    ) -> Iterator[tuple[str, float]]:
        """Add the thresholds; yield target with basis and value of those that have one.

        They are set on everybody, or on other subjects; and on the reference, if it is one of
        these groups. Each is the lowest one whose FPIR does not exceed the target.
        """
        bases = {EVERYBODY: self.best[~self.mated]} if others is None else {OTHERS: others}
        if self.plan.reference in grouping.names:
            code = grouping.names.index(str(self.plan.reference))
            of_reference = grouping.codes[self.image] == code
            bases[str(self.plan.reference)] = self.best[~self.mated & of_reference]
        for (basis, scores), target in itertools.product(bases.items(), self.plan.targets):
            allowed = allowed_accepts(target, scores.size)
            ordered = np.sort(scores)[::-1]
            lowest = step_threshold(ordered, allowed, self.best, self.second, self.mate)
            remark, where = "", f"{target} of {basis}"
            if parse_rate(target) * scores.size < 1:
                remark = f"not resolvable with {scores.size:,} non-mated searches"
            elif not math.isfinite(lowest):
                remark = f"it accepts {'everything' if lowest == -math.inf else 'nothing'}"
            alarms = int(np.count_nonzero(scores >= lowest))
            value = None if remark else lowest
            found = Estimate(value, None, alarms, scores.size, remark)
            rows.add(grouping.name, names.FPIR_THRESHOLD, found, "", where)
            if value is not None:
                yield where, value

    def _share(
        self, events: Mask, bar: float | NDArray[np.floating], which: Mask
    ) -> ClusteredShare | None:
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
        return search_share(
            events[which], self.subject[which], entry[which], self.placed, self.gallery[which]
        )


def add_searches(
    rows: Rows,
    vectors: NDArray[np.floating],
    joined: Joined,
    groupings: Sequence[Grouping],
    plan: SearchPlan,
    others: OtherSubjects | None = None,
) -> str:
    """Add identification by group; return how galleries and searches were made.

    Args:
        rows: to which the figures are added.
        vectors: raw embeddings, ``(N, D)``, of which ``joined`` names the rows.
        joined: images with their subjects; failures to acquire stay images.
        groupings: with a group to show.
        plan: targets, reference, galleries and templates.
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
    searcher = _Searcher(vectors, joined, plan)
    mated, made = int(np.count_nonzero(searcher.mated)), searcher.mated.size
    if not mated or mated == made:
        raise MetricError(
            f"{mated} of {made} searches are mated; identification needs both kinds, so some "
            "subjects with two images or more"
        )
    size = max(searcher.entries)
    of_others = None if others is None else others.best_scores(size, plan.seed)
    for grouping in groupings:
        searcher.add(rows, grouping, of_others)
    protocol = (
        f"{searcher.count:,} subjects were split into two halves by seed {plan.seed}. Each half "
        "was enrolled once, with one image, drawn by the seed, as a template, in galleries of "
        f"{' and '.join(f'{entries:,}' for entries in searcher.entries)} subjects. Other images of "
        f"enrolled subjects made {mated:,} mated searches, all images of the other half "
        f"{made - mated:,} non-mated ones; figures pool both galleries."
    )
    if others is not None and of_others is not None:
        protocol += (
            f" Thresholds were set on {others.count:,} subjects of {others.name}, by "
            f"{of_others.size:,} non-mated searches in galleries of {size:,} of them."
        )
    return protocol


def _members(grouping: Grouping, codes: NDArray[np.int64]) -> list[tuple[str, Mask]]:
    """Return which entries of codes are of each group, and at last those of everybody."""
    members = [(name, codes == code) for code, name in enumerate(grouping.names)]
    return [*members, (EVERYBODY, np.ones(codes.size, bool))]


def _rate(share: ClusteredShare | None) -> Estimate:
    """Return a share of searches; None if there is none."""
    if share is None:
        return Estimate(None, events=0, total=0, remark="no search")
    return Estimate(share.value, share.interval(), share.events, share.comparisons)


def _ratio(share: ClusteredShare | None, base: ClusteredShare | None, name: str) -> Estimate:
    """Return the ratio of two shares, or why it is not formed."""
    if share is None or base is None:
        return Estimate(None, total=0, remark="no search")
    few = [one.events for one in (share, base)]
    if min(few) < FEW_ERRORS or max(few) < RULE_OF_30:
        reason = f"insufficient data: {few[0]} errors, {few[1]} in {name}"
        return Estimate(None, total=sum(few), remark=reason)
    interval = ratio_interval(share, base, 1 - ALPHA)
    return Estimate(share.value / base.value, interval, total=sum(few))
