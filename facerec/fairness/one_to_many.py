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
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from facerec.base.errors import DatasetError
from facerec.cosines.searches import nearest_entries
from facerec.embedding.extraction import Embeddings
from facerec.fairness import rows as names
from facerec.fairness.attributes import Joined
from facerec.fairness.differentials import FEW_ERRORS
from facerec.fairness.groupings import EVERYBODY, OTHERS, UNKNOWN, Grouping, members
from facerec.fairness.settings import SearchPlan
from facerec.report.estimate import Estimate
from facerec.statistics.clustered import ClusteredShare
from facerec.statistics.operating_points import (
    RULE_OF_30,
    allowed_accepts,
    parse_rate,
    step_threshold,
)
from facerec.statistics.searches import NOBODY, ratio_interval, search_share

Mask = NDArray[np.bool_]

_HALVES = 2


def draw_galleries(
    subjects: NDArray[np.int64], ids: ArrayLike, seed: int
) -> tuple[NDArray[np.int64], Mask]:
    """Split subjects into halves and choose an image of each to enrol.

    Args:
        subjects: subject of each image, 0 to G − 1, ``(n,)``.
        ids: of the images, ``(n,)``, by whose order they are drawn; rows play no part.
        seed: equal seeds draw alike.

    Returns:
        Gallery of each subject, 0 or 1, ``(G,)``; whether an image is one to enrol, ``(n,)``.
    """
    generator = np.random.default_rng(seed)
    images = np.bincount(subjects)
    half = np.empty(images.size, np.int64)
    half[generator.permutation(images.size)] = np.arange(images.size) % _HALVES
    chance = np.empty(subjects.size, np.int64)
    chance[np.argsort(ids)] = generator.permutation(subjects.size)
    enrolled = np.zeros(subjects.size, bool)
    enrolled[np.lexsort((chance, subjects))[np.cumsum(images) - images]] = True
    return half, enrolled


@dataclass(frozen=True, eq=False)
class OtherSubjects:
    """Images of subjects who are not audited, on whose searches thresholds are set."""

    name: str
    """Name of these data, for errors and reports."""
    vectors: NDArray[np.floating]
    """Raw embeddings, ``(M, D)``."""
    subjects: NDArray[np.int64]
    """Subject of each, 0 to P − 1, ``(M,)``."""
    ids: NDArray[np.str_] | NDArray[np.int64]
    """Id of each image, ``(M,)``."""

    @classmethod
    def of(cls, embeddings: Embeddings, name: str) -> OtherSubjects:
        """Take the images that were acquired and have a named subject.

        Raises:
            DatasetError: there is none.
        """
        known = embeddings.norms > 0
        if embeddings.subjects is not None:
            known &= embeddings.subjects != ""
        if embeddings.subjects is None or not known.any():
            raise DatasetError(
                f"{name}: these embeddings do not say who is on the images, so nobody can be "
                "searched for; embed record files or a folder of subject/image.jpg"
            )
        rows = np.flatnonzero(known)
        subjects = np.unique(embeddings.subjects[rows], return_inverse=True)[1].reshape(-1)
        ids = rows if embeddings.ids is None else embeddings.ids[rows]
        return cls(name, embeddings.vectors[rows], subjects, ids)

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
        vectors, subjects = self.vectors, self.subjects
        _, enrolled = draw_galleries(subjects, self.ids, seed)
        order = np.random.default_rng((seed, 2)).permutation(self.count)
        best = []
        for start in range(0, self.count - size + 1, size):
            inside = np.isin(subjects, order[start : start + size])
            probes, entries = ~inside, inside & enrolled
            nearest = nearest_entries(
                vectors[probes], subjects[probes], vectors[entries], subjects[entries]
            )
            best.append(nearest.scores[:, 0])
        return np.concatenate(best)


def _search_both(
    vectors: NDArray[np.floating], ids: NDArray[np.str_], joined: Joined, seed: int
) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Search both galleries.

    Returns:
        A row a search: the image; its subject; whether the subject is in the gallery (``mated``);
        the best score with another subject's entry, the subject of that entry and the second best;
        the score with the subject's own entry (``mate``). And the gallery of each subject,
        ``(G,)``, `NOBODY` of whom no image is enrolled.
    """
    images = np.flatnonzero(joined.subjects != UNKNOWN)
    subjects, acquired = joined.subjects[images], joined.acquired[images]
    placed, enrolled = draw_galleries(subjects, ids[images], seed)
    half, there = placed[subjects], enrolled & acquired
    placed[np.setdiff1d(subjects, subjects[there])] = NOBODY
    searches = []
    for gallery in range(_HALVES):
        # An enrolled image would find itself; whoever failed to enrol has no mate to find.
        mated = (placed[subjects] == gallery) & ~enrolled
        probes = np.flatnonzero((mated | (half != gallery)) & acquired)
        entries = np.flatnonzero(there & (half == gallery))
        found = nearest_entries(
            vectors[images[probes]], subjects[probes], vectors[images[entries]], subjects[entries]
        )
        searches.append(
            pd.DataFrame(
                {
                    "image": images[probes],
                    "subject": subjects[probes],
                    "mated": mated[probes],
                    "best": found.scores[:, 0],
                    # Without an entry the row is −1, which takes the last one.
                    "entry": np.append(subjects[entries], NOBODY)[found.entries[:, 0]],
                    "second": found.scores[:, 1],
                    "mate": found.mate,
                }
            )
        )
    return pd.concat(searches, ignore_index=True), placed


def search_groups(
    embeddings: Embeddings,
    joined: Joined,
    groupings: Sequence[Grouping],
    plan: SearchPlan,
    seed: int,
    others: OtherSubjects | None = None,
) -> tuple[list[names.Row], str]:
    """Return identification by group as rows, and how galleries and searches were made.

    Args:
        embeddings: N raw ones, with ids.
        joined: their subjects; failures to acquire stay images.
        groupings: with a group to show.
        plan: targets and reference.
        seed: of the split of subjects and of the choice of images.
        others: set the thresholds for everybody on these subjects.

    Raises:
        DatasetError: the reference is no group that is shown, or too few other subjects.
        MetricError: an impossible target.
    """
    shown = [name for grouping in groupings for name in grouping.names]
    if plan.reference is not None and plan.reference not in shown:
        raise DatasetError(
            f"the reference group {plan.reference!r} is none of the groups that are shown "
            f"({', '.join(shown[:20])}); name one of these"
        )
    assert embeddings.ids is not None  # else nothing would have been joined
    searches, placed = _search_both(embeddings.vectors, embeddings.ids, joined, seed)
    mated, made = int(searches.mated.sum()), len(searches)
    entries = np.bincount(placed[placed != NOBODY]).tolist()
    protocol = (
        f"{placed.size:,} subjects were split into two halves by seed {seed}. Each half "
        "was enrolled once, with one image, drawn by the seed, as a template, in galleries of "
        f"{' and '.join(f'{size:,}' for size in entries)} subjects. Other images of "
        f"enrolled subjects made {mated:,} mated searches, all images of the other half "
        f"{made - mated:,} non-mated ones; figures pool both galleries."
    )
    of_others = None
    if others is not None:
        of_others = others.best_scores(max(entries), seed)
        protocol += (
            f" Thresholds were set on {others.count:,} subjects of {others.name}, by "
            f"{of_others.size:,} non-mated searches in galleries of {max(entries):,} of them."
        )
    rows: list[names.Row] = []
    for grouping in groupings:
        rows += _by_group(searches, placed, joined.subjects, grouping, plan, of_others)
    return rows, protocol


def _by_group(
    searches: pd.DataFrame,
    placed: NDArray[np.int64],
    subjects: NDArray[np.int64],
    grouping: Grouping,
    plan: SearchPlan,
    others: NDArray[np.float32] | None,
) -> Iterator[names.Row]:
    """Yield the figures of a grouping; ``others`` are scores on which thresholds are set."""
    best, mate, is_mated = (searches[name].to_numpy() for name in ("best", "mate", "mated"))
    second = searches.second.to_numpy()
    bases = {EVERYBODY: best[~is_mated]} if others is None else {OTHERS: others}
    reference = str(plan.reference)
    of_search = grouping.codes[searches.image]
    if reference in grouping.names:
        bases[reference] = best[~is_mated & (of_search == grouping.names.index(reference))]
    else:
        counts = [
            np.unique(subjects[grouping.codes == code]).size for code in range(len(grouping.names))
        ]
        reference = grouping.names[int(np.argmax(counts))]

    def rates(
        figure: str, where: names.At, events: Mask, bar: float | NDArray[np.floating], among: Mask
    ) -> Iterator[names.Row]:
        """Yield a rate by group; ``bar`` is what another's entry must reach to cause an event."""
        alone = events & (best >= bar) & (second < bar)
        entry = np.where(alone, searches.entry, NOBODY)
        shares = {}
        for name, inside in members(grouping.names, of_search, EVERYBODY):
            at = among & inside
            probes = searches.subject[at]
            shares[name] = search_share(events[at], probes, entry[at], placed) if at.any() else None
        for name, share in shares.items():
            yield names.row(grouping.name, figure, names.rate(share, "no search"), name, where)
            if name not in (reference, EVERYBODY):
                ratio = _ratio(share, shares[reference], reference)
                yield names.row(grouping.name, figure, ratio, name, where, other=reference)

    with np.errstate(invalid="ignore"):
        beaten = is_mated & (best >= mate)
    bar = np.where(is_mated, mate, np.float32(np.inf))
    yield from rates(names.RANK_1, names.NOWHERE, beaten, bar, is_mated)
    for (basis, scores), target in itertools.product(bases.items(), plan.fpir):
        # The lowest threshold whose FPIR does not exceed the target.
        ordered = np.sort(scores)[::-1]
        lowest = step_threshold(ordered, allowed_accepts(target, scores.size), best, second, mate)
        alarms, where = int(np.count_nonzero(scores >= lowest)), names.At(target, basis)
        few = f"{scores.size:,} non-mated searches" * (parse_rate(target) * scores.size < 1)
        found = names.threshold(lowest, alarms, scores.size, few)
        yield names.row(grouping.name, names.FPIR_THRESHOLD, found, "", where)
        if found.value is not None:
            yield from rates("FPIR", where, ~is_mated & (best >= lowest), lowest, ~is_mated)
            yield from rates("FNIR", where, is_mated & (mate < lowest), math.inf, is_mated)
    for name, images in members(grouping.names, grouping.codes, EVERYBODY):
        there = np.unique(subjects[images & (subjects != UNKNOWN)])
        failed = placed[there] == NOBODY
        share = ClusteredShare.from_mated_counts(failed, np.ones(there.size))
        yield names.row(grouping.name, names.NOT_ENROLLED, names.rate(share), name)


def _ratio(share: ClusteredShare | None, base: ClusteredShare | None, name: str) -> Estimate:
    """Return the ratio of two shares, or why it is not formed."""
    if share is None or base is None:
        return Estimate(None, total=0, remark="no search", unit="times")
    few = [one.events for one in (share, base)]
    if min(few) < FEW_ERRORS or max(few) < RULE_OF_30:
        reason = f"{few[0]} errors, {few[1]} in {name}"
        return Estimate(None, total=sum(few), remark=reason, unit="times")
    interval = ratio_interval(share, base)
    return Estimate(share.value / base.value, interval, total=sum(few), unit="times")
