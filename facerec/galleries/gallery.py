"""A gallery of enrolled subjects: templates, exact search, deletion, and thresholds for its size.

    gallery = Gallery.read("door.npz")
    gallery.identify(read_embeddings("visitors.npz"), fpir="1e-2")

A subject has one template, the mean of the embeddings of all images that were enrolled. A search
is exact (`facerec.cosines`); ties go to whoever was enrolled first.

A subject may have a last day (UTC). From the day after on `identify` and `point` answer as if the
subject had been deleted; until that is done, the template stays in the gallery and its file.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from facerec.base.defaults import IndexKind
from facerec.base.errors import DatasetError, MetricError
from facerec.base.files import atomic_path, exclusive
from facerec.base.large_arrays import take
from facerec.base.libraries import Library
from facerec.base.names import same_name
from facerec.base.progress import Progress
from facerec.cosines.searches import best
from facerec.cosines.unit_rows import UnitRows, cosines, row_norms, unit_rows
from facerec.embedding.calibration import ScoreCalibration
from facerec.embedding.evidence import Evidence
from facerec.embedding.extraction import Embeddings, image_digest
from facerec.embedding.space import Space
from facerec.galleries.bridge import Bridge
from facerec.galleries.gallery_file import (
    COLUMNS,
    DIGESTS,
    FORMAT,
    KEPT,
    read_gallery,
)
from facerec.galleries.members import Members
from facerec.galleries.search import faiss_index
from facerec.galleries.threshold import DEPTH, Calibration, Fpir, left_out
from facerec.records.npz import write_arrays
from facerec.statistics.calibration_checks import Likeness, likeness
from facerec.statistics.operating_points import Rate

pa = Library("pyarrow", "'facerec[parquet]'")
parquet = Library("pyarrow.parquet", "'facerec[parquet]'")

CALIBRATION_PROBES = 4096
"""Enrolled subjects who stand in for strangers at most, where nobody else does."""

OWN = "the gallery's own people"
"""Where the probes of a calibration come from that nobody gave."""

LARGE = 2_000_000
"""Templates from which on ``auto`` searches by FAISS."""

_NO_UTF8 = re.compile("[\ud800-\udfff]")
"""What Python has in the place of bytes that are none."""


@dataclass(frozen=True)
class Enrolment:
    """What became of images to enrol."""

    enrolled: tuple[str, ...]
    """Subjects who are new in the gallery."""
    extended: tuple[str, ...]
    """Subjects who were there and whose template now rests on more images."""
    images: int
    """Images that went into templates."""
    failures: Mapping[str, str]
    """Image → why it went into none."""
    not_enrolled: tuple[str, ...]
    """Subjects of whom no image could be used and who are not in the gallery."""
    repeated: int
    """Images left out as they are in the template already, or twice among the images."""


@dataclass(frozen=True)
class Candidate:
    """Somebody in the gallery whom a probe resembles."""

    subject: str
    score: float
    """Cosine of probe and template."""


@dataclass(frozen=True)
class Answer:
    """What a search found."""

    subject: str | None
    """Who it is; None if nobody reaches the threshold, or the probe has no embedding."""
    score: float | None
    """Cosine with the best candidate, whether or not that reaches the threshold."""
    margin: float | None
    """By how much the best candidate is ahead of the next one; None where there is none."""
    candidates: tuple[Candidate, ...]
    """The best of the gallery, the best first; empty where the probe has no embedding."""
    failure: str | None = None
    """Why the probe has no embedding."""
    evidence: Evidence | None = None
    """What the score says of the best candidate; None without a calibration, and for a template of
    several images, of which that says nothing."""
    probability: tuple[float, float, float] | None = None
    """Probability of the best candidate by that evidence and the prior, with its limits."""


@dataclass(frozen=True, eq=False)
class Identification:
    """The answers to all probes, each made when it is asked for, and what the threshold means."""

    subjects: NDArray[np.str_]
    """Names of the gallery's subjects, ``(N,)``."""
    rows: NDArray[np.int64]
    """Rows of each probe's candidates, ``(n, k)``, the best first; −1 without an embedding."""
    scores: NDArray[np.float32]
    """Cosines of the candidates, ``(n, k)``."""
    threshold: float | None
    """Score from which on the best one is named; None where none was asked for: nobody is named."""
    fpir: Fpir | None
    """None without a threshold, and for a gallery without a calibration."""
    listed: int
    """Candidates of an answer."""
    failures: Mapping[int, str]
    """Probe → why it has no embedding."""
    images: NDArray[np.int64]
    """In each template, ``(N,)``."""
    score_calibration: ScoreCalibration | None
    among: int
    """How many equally likely people one must be on a probe."""

    @property
    def likeness(self) -> Likeness | None:
        """Whether the people of this gallery are like those of the calibration."""
        known = self.score_calibration
        if known is None or self.scores.shape[1] < 2 or self.images.max() > 1:
            return None
        return likeness(known.ratio, self.scores[:, :2], len(self.subjects))

    def to_json(self, places: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return threshold, FPIR and the answers, each with its place, as JSON types."""
        return {
            "threshold": self.threshold,
            "fpir": None if self.fpir is None else self.fpir.to_json(),
            "answers": [{**at, **asdict(each)} for at, each in zip(places, self, strict=True)],
        }

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Answer]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, probe: int) -> Answer:
        if self.rows[probe, 0] < 0:
            failure = self.failures.get(probe) or "its embedding has no direction"
            return Answer(None, None, None, (), failure)
        names, scores = self.subjects[self.rows[probe]].tolist(), self.scores[probe].tolist()
        candidates = tuple(map(Candidate, names, scores))[: self.listed]
        margin = scores[0] - scores[1] if len(scores) > 1 else None
        named = self.threshold is not None and scores[0] >= self.threshold
        evidence = None
        if self.score_calibration is not None and self.images[self.rows[probe, 0]] == 1:
            evidence = self.score_calibration.evidence(scores[0])
        chance = None if evidence is None else evidence.probability(self.among)
        who = names[0] if named else None
        return Answer(who, scores[0], margin, candidates, None, evidence, chance)


class Gallery:
    """Enrolled subjects and their templates; see the module for how they are searched.

    Args:
        space: that all embeddings must be of.

    Attributes:
        subjects: text ``(N,)``, in the order of enrolment.
        templates: float32 ``(N, D)`` of length 1.
        lengths: of the means before they are scaled to 1, so that more images can join, float32.
        images: how many went into each template, int64 ``(N,)``.
        enrolled: when each subject came, UTC, datetime64[s].
        expires: the last day on which each is found, UTC, datetime64[D]; NaT where there is none.
        digests: `image_digest` of each image in a template, bytes ``(M,)``.
        digest_rows: of the subject whose it is, int64 ``(M,)``.
        calibration: what FPIRs are predicted from; None where there is none.
        score_calibration: what a cosine is worth as evidence; None where that is not known.
        bridge: what translates probes; None where they are of the gallery's own space.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.subjects: NDArray[np.str_] = np.empty(0, "<U1")
        self.templates: NDArray[np.float32] = np.empty((0, space.embedding_size), np.float32)
        self.lengths: NDArray[np.float32] = np.empty(0, np.float32)
        self.images: NDArray[np.int64] = np.empty(0, np.int64)
        self.enrolled: NDArray[np.datetime64] = np.empty(0, "M8[s]")
        self.expires: NDArray[np.datetime64] = np.empty(0, "M8[D]")
        self.digests: NDArray[np.bytes_] = np.empty(0, "S32")
        self.digest_rows: NDArray[np.int64] = np.empty(0, np.int64)
        self.calibration: Calibration | None = None
        self.score_calibration: ScoreCalibration | None = None
        self.bridge: Bridge | None = None
        self._rows: UnitRows | None = None
        self._index: Any = None
        self._current: Gallery | None = None

    def __len__(self) -> int:
        return len(self.subjects)

    def __contains__(self, subject: str) -> bool:
        return bool((self.subjects == same_name(subject)).any())

    # --- enrolling and deleting ------------------------------------------------------------

    def enroll(
        self, embeddings: Embeddings, where: str = "images", expires: date | None = None
    ) -> Enrolment:
        """Add subjects, or images of subjects who are there.

        An image without an embedding, of nobody knows whom, or that is another subject's already,
        is left out and listed. One that is the subject's already counts once.

        Args:
            embeddings: with ids and subjects; rows of failures to acquire may be among them. Images
                without a digest are told apart by their embeddings.
            where: the images come from.
            expires: the last day of all of them, UTC; without one, subjects who are there keep
                theirs and new ones have none.

        Raises:
            ModelError: embeddings of another model, preprocessing, flip or size.
        """
        self.space.check(Space.of(embeddings), where)
        vectors, count = embeddings.vectors, len(embeddings.vectors)
        if (known := embeddings.subjects) is None:
            raise DatasetError(f"{where}: nobody is named on {count} images; give a table of names")
        stored = np.zeros(count, "S1") if embeddings.digests is None else embeddings.digests
        lengths = row_norms(vectors)
        why = np.full(count, "", object)  # it is left out; empty for what is enrolled
        why[~(lengths > 0)] = "its embedding has no direction"
        why[known == ""] = "nobody says who is on it"
        # Names of folders may be any bytes.
        odd = np.array([_NO_UTF8.search(name) is not None for name in known.tolist()], bool)
        why[odd] = "the person's name is no UTF-8; rename their folder"
        for row, reason in embeddings.failures.items():
            why[row] = reason
        pairs = zip(stored.tolist(), vectors, strict=True)
        digests = [digest or image_digest(vector.tobytes()) for digest, vector in pairs]
        holders = self.subjects[self.digest_rows].tolist()
        holder_of = dict(zip(self.digests.tolist(), holders, strict=True))
        again = np.zeros(count, bool)
        for row in np.flatnonzero(why == "").tolist():
            again[row] = digests[row] in holder_of
            holder = holder_of.setdefault(digests[row], str(known[row]))
            if holder != known[row]:
                why[row] = f"the same photo, of one person, is {holder!r} already; take one out"
        again &= why == ""
        usable = (why == "") & ~again
        label = np.full(count, -1)
        label[usable], come = pd.factorize(known[usable].astype(object))
        come = come.astype(np.str_)
        members = Members(vectors, label, len(come))
        images, rows = members.images, self.rows_of(come)
        sums, counts, there = members.sums(1 / lengths), images.copy(), np.flatnonzero(rows >= 0)
        held = rows[there]
        sums[there] += self.templates[held] * (self.lengths * self.images)[held, None]
        counts[there] += self.images[held]
        norms = row_norms(sums)
        # Images that point in opposite directions leave nothing but rounding errors.
        kept = norms > 1e-6 * images
        taken = members.order[np.repeat(kept, images)]
        why[np.setdiff1d(members.order, taken)] = "it and the person's others add up to nothing"
        sums /= np.where(kept, norms, 1)[:, None].astype(np.float32)
        new, more = np.flatnonzero((rows < 0) & kept), np.flatnonzero((rows >= 0) & kept)

        def joined(held: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
            held[rows[more]] = values[more]
            return np.concatenate([held, values[new]]) if len(held) else values[new]

        self.templates, self.images = joined(self.templates, sums), joined(self.images, counts)
        self.lengths = joined(self.lengths, (norms / counts).astype(np.float32))
        self.subjects = joined(self.subjects, come)
        self._rows = self._index = self._current = None
        self.enrolled = np.append(self.enrolled, np.full(len(new), np.datetime64("now", "s")))
        self.expires = np.append(self.expires, np.full(len(new), expires, "M8[D]"))
        if expires is not None:
            held = self.rows_of(np.append(come[more], known[again]))
            self.expires[held[held >= 0]] = expires
        self.digests = np.append(self.digests, np.array(digests, "S32")[taken])
        self.digest_rows = np.append(self.digest_rows, self.rows_of(known[taken]))
        asked = np.unique(known[known != ""])
        absent = asked[self.rows_of(asked) < 0]
        fresh, extended, none = (tuple(who.tolist()) for who in (come[new], come[more], absent))
        names = np.arange(count) if embeddings.ids is None else embeddings.ids
        failures = {str(names[row]): why[row] for row in np.flatnonzero(why != "")}
        repeated = int(np.count_nonzero(again))
        return Enrolment(fresh, extended, len(taken), failures, none, repeated)

    def delete(self, *subjects: str) -> None:
        """Take subjects out: templates, names, dates, digests, calibration scores, and any index.

        `write` then leaves no byte of them in the file.

        Raises:
            DatasetError: there is no such subject.
        """
        rows, held = self._rows_of_people(*subjects), self.templates
        if self._rows is not None:
            self._rows.erase()
        self._leave_out(rows)
        held[rows] = 0  # nor do they stay in memory

    def rename(self, subject: str, name: str) -> None:
        """Give a subject another name; template, dates, photos and calibration scores stay theirs.

        `write` then leaves no byte of the old one in the file.

        Raises:
            DatasetError: there is no such subject, or there is one of the other name.
        """
        (row,) = self._rows_of_people(subject)
        if name in self:
            raise DatasetError(f"{name!r} is in the gallery already; choose another name")
        names = self.subjects.tolist()
        names[row] = same_name(name)
        self.subjects, self._current = np.array(names, np.str_), None

    def _rows_of_people(self, *subjects: str) -> NDArray[np.int64]:
        rows = self.rows_of(np.array([same_name(subject) for subject in subjects], np.str_))
        if (rows < 0).any():
            unknown = subjects[int(rows.argmin())]
            names = {name.casefold(): name for name in self.subjects.tolist()}
            near = difflib.get_close_matches(unknown.casefold(), names, 1)
            meant = f"is {names[near[0]]!r} meant?" if near else "check the name"
            raise DatasetError(
                f"{unknown!r} is none of the {len(self):,} people in the gallery; {meant}"
            )
        return rows

    def _leave_out(self, rows: NDArray[np.int64]) -> None:
        """Take subjects out of all arrays, which are new ones then, and out of the calibration."""
        self.templates = take(self.templates, np.delete(np.arange(len(self)), rows))
        if self.calibration is not None:
            self.calibration = self.calibration.without(rows)
        # Text keeps the width of its longest name, which may have been one of theirs.
        self.subjects = np.array(np.delete(self.subjects, rows).tolist(), np.str_)
        for name in COLUMNS[2:]:
            setattr(self, name, np.delete(getattr(self, name), rows))
        kept = ~np.isin(self.digest_rows, rows)
        self.digests, held = self.digests[kept], self.digest_rows[kept]
        self.digest_rows = held - np.searchsorted(np.sort(rows), held)
        # Centres and graphs of an index know those whom it was built from: it is built again.
        self._rows = self._index = self._current = None

    @property
    def expired(self) -> NDArray[np.int64]:
        """Rows of the subjects whose last day is over."""
        return np.flatnonzero(self.expires < np.datetime64("now", "D"))

    def current(self) -> Gallery:
        """Return a gallery without those who have expired; itself, where nobody has.

        It is kept until somebody comes, goes or expires, and not to be changed.
        """
        gone = self.expired
        if not gone.size:
            return self
        if self._current is None or len(self._current) != len(self) - gone.size:
            self._current = copy.copy(self)
            self._current._leave_out(gone)
        return self._current

    def translated(self, bridge: Bridge) -> Gallery:
        """Return a gallery of the same people that is searched with probes of a new network.

        Neither thresholds nor evidence of the old network hold for translated probes: `calibrate`
        it with strangers embedded by the new one. It is not to be changed otherwise, nor written.

        Raises:
            ModelError: the bridge leads to another space than the gallery's.
        """
        self.space.check(bridge.old, "the bridge")
        view = copy.copy(self)
        view.bridge, view._current = bridge, None
        view.calibration = view.score_calibration = None
        return view

    def _check(self, probes: Embeddings, where: str) -> None:
        """Refuse probes that are of another space than those that are searched with."""
        space = self.space if self.bridge is None else self.bridge.new
        space.check(Space.of(probes), where, "gallery" if self.bridge is None else "bridge")

    def rows_of(self, subjects: NDArray[np.str_]) -> NDArray[np.int64]:
        """Return the row of each subject, −1 for those who are not there."""
        return np.asarray(pd.Index(self.subjects).get_indexer(pd.Index(subjects, dtype=object)))

    # --- searching -------------------------------------------------------------------------

    def search(
        self,
        vectors: ArrayLike,
        count: int = 5,
        *,
        index: IndexKind = "auto",
        progress: Progress | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the templates that are nearest to each probe.

        Args:
            vectors: probes, ``(n, D)``, of any length.
            count: k, how many to return.
            index: ``exact`` looks at every template. ``faiss`` lets an index choose candidates,
                which are then scored as the others are, and may miss somebody. ``auto`` is exact up
                to two million templates, and ``faiss`` beyond.
            progress: called with the tiles done.

        Returns:
            Rows and cosines ``(n, k)`` with k no more than the gallery has, the best first; −1 and
            NaN for a probe that is zero or not finite.

        Raises:
            MetricError: an empty gallery.
            MissingExtraError: FAISS is asked for and not installed.
        """
        probes = np.asarray(vectors) if self.bridge is None else self.bridge(np.asarray(vectors))
        if not len(self):
            raise MetricError("the gallery is empty, so nobody can be found; enrol people first")
        if index == "auto":
            index = "faiss" if len(self) > LARGE else "exact"
        count = min(count, len(self))
        rows = np.full((len(probes), count), -1, np.int64)
        scores = np.full((len(probes), count), np.nan, np.float32)
        norms = row_norms(probes)
        good = np.flatnonzero(norms > 0)
        mine = UnitRows(probes, good, norms)
        self._rows = self._rows or UnitRows(self.templates)
        if index == "exact":
            rows[good], scores[good] = best(mine, self._rows, count, progress=progress)
            return rows, scores
        # In memory alone and built again after every change: no centre keeps who was deleted.
        self._index = self._index or faiss_index(self.templates)
        most = min(len(self), count + max(8, count))
        found = np.sort(self._index.search(unit_rows(probes, norms, good), most)[1], axis=1)
        if (found < 0).sum(axis=1).max(initial=0) > found.shape[1] - count:
            raise MetricError(f"faiss found fewer than {count} candidates; search exactly")
        every = np.repeat(np.arange(len(good)), found.shape[1])
        values = cosines(mine, self._rows, every, np.maximum(found, 0).ravel()).reshape(found.shape)
        values[found < 0] = -np.inf
        order = np.argsort(-values, axis=1, kind="stable")[:, :count]
        rows[good] = np.take_along_axis(found, order, axis=1)
        scores[good] = np.take_along_axis(values, order, axis=1)
        return rows, scores

    def identify(
        self,
        probes: Embeddings,
        *,
        fpir: Rate | None = None,
        threshold: float | Fpir | None = None,
        count: int = 5,
        index: IndexKind = "auto",
        among: int | None = None,
        where: str = "probes",
        progress: Progress | None = None,
    ) -> Identification:
        """Say who is on each image; with neither FPIR nor threshold, list candidates alone.

        Nobody is found who has expired.

        Args:
            probes: embeddings of its model.
            fpir: chance that a stranger is taken for somebody; the threshold is the one that has
                it at this gallery's size.
            threshold: cosine from which on somebody is identified, in place of an FPIR, or what
                `point` returned.
            count: candidates of each answer.
            index: see `search`.
            among: how many equally likely people, in the gallery or not, may be on a probe: the
                prior of a probability is one in so many; by default the gallery's and one more.
            where: the probes come from.
            progress: see `search`.

        Raises:
            ModelError: embeddings of another model, preprocessing, flip or size.
            MetricError: an FPIR without a calibration.
        """
        self._check(probes, where)
        limit, point = None, threshold
        if not isinstance(point, Fpir):
            limit = None if point is None else float(np.float32(point))
            point = self.point(fpir, limit)
        limit = limit if point is None else point.threshold
        now = self.current()
        rows, scores = now.search(probes.vectors, max(count, 2), index=index, progress=progress)
        found = now.subjects, rows, scores, limit, point, count, probes.failures, now.images
        return Identification(*found, now.score_calibration, among or len(now) + 1)

    def point(self, fpir: Rate | None = None, threshold: float | None = None) -> Fpir | None:
        """Return threshold and FPIR at this gallery's size, from one of the two.

        Returns:
            None for neither, and for a threshold without a calibration.

        Raises:
            MetricError: an FPIR without a calibration, or one that it does not carry.
        """
        now = self.current()
        if now.calibration is not None and threshold is not None:
            return now.calibration.fpir(float(np.float32(threshold)), max(1, len(now)))
        if fpir is None:
            return None
        if now.calibration is None:
            of = f"the gallery, of {len(now):,} people, is not calibrated, and tells no FPIR {fpir}"
            raise MetricError(f"{of}; enrol or calibrate with other people, or give a threshold")
        return now.calibration.threshold(fpir, max(1, len(now)))

    # --- calibration -----------------------------------------------------------------------

    def calibrate(
        self,
        impostors: Embeddings | None = None,
        *,
        where: str = "impostors",
        progress: Progress | None = None,
    ) -> Calibration:
        """Score subjects with the templates of others, and keep the highest scores.

        Nothing of an impostor's embedding or name is kept.

        Args:
            impostors: images of subjects who are not enrolled; those of subjects who are (by name)
                meet the others alone. By default the gallery's own subjects stand in for strangers,
                up to 4,096 of them, drawn at random. Their templates may rest on several images,
                which makes them better likenesses than the single image of a visitor. Without names
                each image counts as another subject, and intervals are too narrow.
            where: the impostors come from.
            progress: see `search`.

        Raises:
            ModelError: embeddings of another model, preprocessing, flip or size.
            MetricError: nobody to compare with.
        """
        if impostors is None:
            rows = of_probe = np.random.default_rng(0).permutation(len(self))[:CALIBRATION_PROBES]
            vectors: NDArray[np.floating] = self.templates
            where = OWN
        else:
            self._check(impostors, where)
            vectors, given = impostors.vectors, impostors.subjects
            known = [""] * len(vectors) if given is None else given.tolist()
            rows = np.flatnonzero(row_norms(vectors) > 0)
            # An image without a name is a subject of its own. Strangers have numbers below 0.
            own = np.array([name or f"\0{row}" for row, name in enumerate(known)])[rows]
            at = self.rows_of(own)
            of_probe = np.where(at >= 0, at, -1 - np.unique(own, return_inverse=True)[1])
        # Who would meet nobody else is no stranger to this gallery.
        stay = (of_probe != 0) | (len(self) != 1)
        if not len(self) or not stay.any():
            found = f"{stay.sum()} usable embeddings of impostors and {len(self)} enrolled people"
            raise MetricError(f"{where}: {found}; to calibrate takes both, of different people")
        probes, of_probe = take(vectors, rows[stay]), of_probe[stay]
        nearest, scores = self.search(probes, DEPTH + 1, index="exact", progress=progress)
        # A subject with itself is no impostor.
        nearest, scores = left_out(nearest, scores, nearest == of_probe[:, None])
        kept = scores[:, :DEPTH], nearest[:, :DEPTH], of_probe.astype(np.int64)
        self.calibration = Calibration(*kept, np.arange(len(self)), where)
        self._current = None
        return self.calibration

    def recalibrate(self, progress: Progress | None = None) -> None:
        """Let the gallery's own subjects stand in for strangers, unless impostors did so before.

        Impostors are not at hand any more; deleted people are out of their scores already.
        """
        if self.calibration is not None and self.calibration.source != OWN:
            return
        self.calibration = None
        if len(self) > 1:
            self.calibrate(progress=progress)

    # --- files -----------------------------------------------------------------------------

    @staticmethod
    def claim(path: str | Path) -> AbstractContextManager[object]:
        """Let one process at a time read a gallery file, change it and write it again.

        Raises:
            DatasetError: another process has claimed it.
        """
        # A lock beside the one that each writing takes.
        return exclusive(f"{path}.update")

    def write(self, path: str | Path) -> None:
        """Write the gallery whole or not at all; only the owner may read the file.

        Raises:
            FacerecError: it cannot be written.
        """
        known, worth = self.calibration, self.score_calibration
        note = {
            "format": FORMAT,
            "space": asdict(self.space),
            "calibration": None if known is None else {"probes": known.source},
            "score_calibration": None if worth is None else worth.to_json(),
        }
        arrays: dict[str, NDArray[Any]] = {
            "note": np.array(json.dumps(note, allow_nan=False)),
            **{name: getattr(self, name) for name in (*COLUMNS, *DIGESTS)},
        }
        if known is not None:
            arrays |= {f"calibration_{name}": getattr(known, name) for name in KEPT}
        with atomic_path(path, private=True) as temporary:
            write_arrays(temporary, arrays)

    @classmethod
    def read(cls, path: str | Path) -> Gallery:
        """Read a gallery file without running anything that it may contain.

        Raises:
            DatasetError: the file is missing, damaged, or no gallery.
        """
        found = read_gallery(Path(path))
        gallery = cls(found["space"])
        vars(gallery).update(found)
        return gallery

    def export(self, path: str | Path) -> None:
        """Write the templates as Parquet, one row a subject, for a database to load.

        Columns: ``image_id`` and ``subject_id`` (the subject, twice: facerec's own commands read
        the table as embeddings), ``images`` int64, ``enrolled`` and ``expires``, and ``embedding``,
        list of float32 of length 1, so that inner product and cosine are one. The file's metadata
        has the embedding space.

        Raises:
            MissingExtraError: pyarrow is not installed.
            FacerecError: the file cannot be written.
        """
        names = pa.array(self.subjects.tolist(), pa.string())
        starts = np.arange(0, self.templates.size + 1, self.templates.shape[1])
        vectors = pa.LargeListArray.from_arrays(starts, pa.array(self.templates.reshape(-1)))
        kept = {name: getattr(self, name) for name in ("images", "enrolled", "expires")}
        table = {"image_id": names, "subject_id": names, **kept, "embedding": vectors}
        about = {"facerec_gallery": json.dumps({"space": asdict(self.space)})}
        with atomic_path(path, private=True) as temporary:
            # Numbers hardly compress, and a dictionary of them is larger than they are.
            parquet.write_table(pa.table(table, metadata=about), temporary, use_dictionary=False)
