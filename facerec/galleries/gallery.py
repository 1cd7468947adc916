"""A gallery of enrolled subjects: templates, exact search, deletion, and thresholds for its size.

    gallery = Gallery.read("door.npz")
    gallery.identify(read_embeddings("visitors.npz"), fpir="1e-2")

A subject has one template, the mean of the embeddings of all images that were enrolled. A search
goes through all templates in blocks, as float32 products; what it returns is scored again in
float64 and rounded to multiples of 2⁻²⁴, as in verification, so that answers depend neither on the
blocks nor on threads, and equal templates tie. Ties go to whoever was enrolled first.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from facerec.defaults import Fusion, IndexKind
from facerec.embedding.extraction import Embeddings
from facerec.embedding.recognizer import FaceRecognizer
from facerec.errors import DatasetError, MetricError, MissingExtraError, ModelError
from facerec.files import atomic_path, exclusive, parse_json
from facerec.galleries.threshold import DEPTH, Calibration, Fpir
from facerec.large_arrays import take
from facerec.names import same_name, same_names
from facerec.npz import ArchiveError, read_arrays, write_arrays
from facerec.progress import Progress
from facerec.records.images import text_array
from facerec.statistics.operating_points import Rate
from facerec.verification.unit_rows import row_norms

FORMAT = "facerec gallery 1"

MAX_BYTES = 64 << 30
"""Largest total size of the arrays of a gallery file that is read."""

QUERIES = 64
"""Probes that go through the gallery together."""

CALIBRATION_PROBES = 4096
"""Enrolled subjects who stand in for strangers at most, where nobody else does."""

LARGE = 2_000_000
"""Templates from which on ``auto`` searches by FAISS."""

Names = Sequence[str] | NDArray[np.str_]

_BLOCK = 8192
"""Templates in a block: with 64 probes their scores take 2 MiB."""

_GRID = 2.0**24


@dataclass(frozen=True)
class Space:
    """What embeddings have in common that can be compared: model, preprocessing, flip, size."""

    model: str | None
    """SHA-256 of the model file; None where it is not known."""
    preprocessing: Mapping[str, Any] | None
    """Channels, mean and standard deviation as JSON types; None is not known, or in the graph."""
    flip: bool | None
    """Whether mirror images were added; None where it is not known."""
    embedding_size: int
    name: str = field(default="", compare=False)
    """What the model is called."""

    @classmethod
    def of(cls, source: Embeddings | FaceRecognizer) -> Space:
        """Return the space of an embeddings file or of what embeds."""
        if isinstance(source, FaceRecognizer):
            flip: bool | None = source.flip
            size, about = source.embedding_size, source.model.describe()
        else:
            flip, size = source.flip, source.vectors.shape[1]
            said = source.note.get("model")
            about = said if isinstance(said, dict) else {}
        # As JSON has it, so that a space is equal to itself from a file.
        preprocessing = json.loads(json.dumps(about.get("preprocessing")))
        name = about.get("name")
        return cls(about.get("sha256"), preprocessing, flip, size, str(name or "unknown"))

    def check(self, other: Space, where: str) -> None:
        """Refuse embeddings of another space.

        Args:
            other: of the embeddings.
            where: they come from.

        Raises:
            ModelError: they were made otherwise.
        """
        shown = {
            "model": lambda space: f"{space.name} ({(space.model or 'no hash')[:12]})",
            "preprocessing": lambda space: json.dumps(space.preprocessing),
            "flip": lambda space: f"flip {space.flip}",
            "embedding_size": lambda space: f"{space.embedding_size} dimensions",
        }
        for name, words in shown.items():
            if getattr(self, name) != getattr(other, name):
                raise ModelError(
                    f"{where}: these embeddings have another {name.replace('_', ' ')} than the "
                    f"gallery, {words(other)} in place of {words(self)}, so they cannot be "
                    "compared; embed the images with the gallery's model, or enrol everybody anew"
                )


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

    def to_json(self) -> dict[str, Any]:
        """Return its fields as JSON types."""
        return asdict(self)


class Answers(Sequence[Answer]):
    """The answers to all probes, each made when it is asked for: of millions, numbers alone stay.

    Args:
        subjects: of the gallery, ``(N,)``.
        rows: of each probe's candidates, ``(n, k)``, the best first; −1 without an embedding.
        scores: theirs, ``(n, k)``.
        limit: score from which on the best one is named.
        count: candidates of an answer.
        failures: probe → why it has no embedding.
    """

    def __init__(
        self,
        subjects: NDArray[np.str_],
        rows: NDArray[np.int64],
        scores: NDArray[np.float32],
        limit: float,
        count: int,
        failures: Mapping[int, str],
    ) -> None:
        self._subjects, self._rows, self._scores = subjects, rows, scores
        self._limit, self._count, self._failures = limit, count, failures

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Answer, ...]: ...

    def __getitem__(self, index: int | slice) -> Answer | tuple[Answer, ...]:
        if isinstance(index, slice):
            return tuple(self[probe] for probe in range(*index.indices(len(self))))
        probe = range(len(self))[index]
        rows, scores = self._rows[probe].tolist(), self._scores[probe].tolist()
        if rows[0] < 0:
            failure = self._failures.get(probe) or "its embedding has no direction"
            return Answer(None, None, None, (), failure)
        candidates = tuple(
            Candidate(str(self._subjects[row]), score)
            for row, score in zip(rows, scores, strict=True)
        )
        best = candidates[0]
        margin = best.score - candidates[1].score if len(candidates) > 1 else None
        subject = best.subject if best.score >= self._limit else None
        return Answer(subject, best.score, margin, candidates[: self._count])


@dataclass(frozen=True)
class Identification:
    """Answers to probes, and what the threshold means in a gallery of this size."""

    answers: Sequence[Answer]
    threshold: float | None
    """None where none was asked for, and then nobody is named."""
    fpir: Fpir | None
    """None without a threshold, and for a gallery without a calibration."""


class Gallery:
    """Enrolled subjects and their templates; see the module for how they are searched.

    Args:
        space: that all embeddings must be of.
        fusion: what a template is the mean of. ``unit`` takes embeddings of length 1, so that every
            image counts alike; a gallery may have one image of a subject from a camera that gives
            long embeddings and many others that do not. ``raw`` keeps the lengths, which follow the
            quality of images with models that were not trained to have equal ones.

    Attributes:
        subjects: text ``(N,)``, in the order of enrolment.
        templates: float32 ``(N, D)`` of length 1.
        images: how many went into each template, int64 ``(N,)``.
        calibration: what FPIRs are predicted from; None where there is none.
        twins: names under which the file held two people whose names differ in their Unicode form
            alone; they are one here, and in a file that is written.
    """

    def __init__(self, space: Space, fusion: Fusion = "unit") -> None:
        if fusion not in get_args(Fusion):
            raise DatasetError(f"templates are means of unit or raw embeddings, not {fusion!r}")
        self.space, self.fusion = space, fusion
        self.subjects: NDArray[np.str_] = np.empty(0, "<U1")
        self.templates: NDArray[np.float32] = np.empty((0, space.embedding_size), np.float32)
        self.images: NDArray[np.int64] = np.empty(0, np.int64)
        # A mean is length · template, so more images can join it.
        self._lengths: NDArray[np.float32] = np.empty(0, np.float32)
        self.calibration: Calibration | None = None
        self.twins: tuple[str, ...] = ()
        self._index: Any = None

    def __len__(self) -> int:
        return len(self.subjects)

    def __contains__(self, subject: str) -> bool:
        return bool((self.subjects == same_name(subject)).any())

    def __repr__(self) -> str:
        return (
            f"<Gallery of {len(self):,} people, {self.space.embedding_size} dimensions, "
            f"{self.space.name}>"
        )

    # --- enrolling and deleting ------------------------------------------------------------

    def enroll(
        self, embeddings: Embeddings, subjects: Names | None = None, where: str = "images"
    ) -> Enrolment:
        """Add subjects, or images of subjects who are there.

        An image without an embedding, or of nobody knows whom, is left out and listed.

        Args:
            embeddings: with ids; rows of failures to acquire may be among them.
            subjects: who is on each image, ``(n,)`` texts; by default what `embeddings` says.
            where: the images come from.

        Raises:
            ModelError: embeddings of another model, preprocessing, flip or size.
            DatasetError: nobody says who is on the images.
        """
        self.space.check(Space.of(embeddings), where)
        known = _names(embeddings, subjects, where)
        count = len(embeddings.vectors)
        if known is None or known.shape != (count,):
            named = "nothing" if known is None else f"{known.size}"
            raise DatasetError(
                f"{where}: somebody must be named for each of {count} images, found {named}; put "
                "the images of each person into a folder of that name, or give a table"
            )
        names = np.arange(count).astype(np.str_) if embeddings.ids is None else embeddings.ids
        failures = {str(names[row]): why for row, why in embeddings.failures.items()}
        lengths = row_norms(embeddings.vectors)
        usable = (lengths > 0) & (known != "")
        for row in np.flatnonzero(~usable):
            why = "nobody says who is on it" if not known[row] else "its embedding has no direction"
            failures.setdefault(str(names[row]), why)
        distinct, subject = np.unique(known[usable], return_inverse=True)
        rows = np.flatnonzero(usable)[np.argsort(subject, kind="stable")]
        counts = np.bincount(subject, minlength=distinct.size)
        gallery_rows = self._rows_of(distinct)
        first = np.concatenate([[0], np.cumsum(counts)])
        sums = np.empty((distinct.size, self.space.embedding_size), np.float32)
        for who in range(distinct.size):
            mine = rows[first[who] : first[who + 1]]
            vectors = embeddings.vectors[mine].astype(np.float64)
            if self.fusion == "unit":
                vectors /= lengths[mine, None]
            total = vectors.sum(axis=0)
            at = int(gallery_rows[who])
            if at >= 0:
                weight = float(self._lengths[at]) * int(self.images[at])
                total += self.templates[at].astype(np.float64) * weight
            sums[who] = total
        norms = row_norms(sums)
        # Images that point in opposite directions leave nothing but rounding errors.
        weights = None if self.fusion == "unit" else lengths[usable]
        lost = ~(norms > 1e-6 * np.bincount(subject, weights, distinct.size))
        counts += np.where(gallery_rows >= 0, self.images[gallery_rows] if len(self) else 0, 0)
        for without in np.flatnonzero(lost):
            for row in rows[first[without] : first[without + 1]]:
                failures[str(names[row])] = "it and the person's other images add up to nothing"
        sums /= np.where(lost, 1, norms)[:, None].astype(np.float32)
        means = (norms / counts).astype(np.float32)
        more, new = (gallery_rows >= 0) & ~lost, (gallery_rows < 0) & ~lost
        if more.any() or new.any():
            self._index = None
        known_rows = gallery_rows[more]
        self.templates[known_rows], self._lengths[known_rows] = sums[more], means[more]
        self.images[known_rows] = counts[more]
        if new.any():
            # New subjects in the order in which they came.
            order = np.argsort(rows[first[:-1]][new], kind="stable")
            chosen = np.flatnonzero(new)[order]
            added = sums if np.array_equal(chosen, np.arange(len(sums))) else sums[chosen]
            self.subjects = np.concatenate([self.subjects, distinct[chosen]])
            self.templates = (
                np.concatenate([self.templates, added]) if len(self.templates) else added
            )
            self._lengths = np.concatenate([self._lengths, means[chosen]])
            self.images = np.concatenate([self.images, counts[chosen]])
        asked = np.unique(known[known != ""])
        absent = asked[self._rows_of(asked) < 0]
        return Enrolment(
            tuple(self.subjects[len(self.subjects) - int(new.sum()) :].tolist()),
            tuple(distinct[more].tolist()),
            int(sum(np.diff(first)[~lost])),
            failures,
            tuple(absent.tolist()),
        )

    def delete(self, subject: str) -> None:
        """Take a subject out: template, name, calibration scores, and any index.

        `write` then leaves no byte of them in the file.

        Raises:
            DatasetError: there is no such subject.
        """
        rows = np.flatnonzero(self.subjects == same_name(subject))
        if not rows.size:
            raise DatasetError(
                f"{subject!r} is not in the gallery of {len(self):,} people; check the name"
            )
        self._remove(int(rows[0]))

    def _remove(self, row: int) -> None:
        if self.calibration is not None:
            calibration = self.calibration
            inside = row < calibration.entry_subjects.size
            self.calibration = _renumbered(calibration, row) if inside else calibration
        # In place, block by block: a copy of a large gallery may not fit into memory.
        for start in range(row, len(self) - 1, _BLOCK):
            stop = min(start + _BLOCK, len(self) - 1)
            self.templates[start:stop] = self.templates[start + 1 : stop + 1].copy()
        self.templates[-1] = 0
        self.templates = self.templates[:-1]
        # Text keeps the width of its longest name, which may have been this one's.
        self.subjects = np.delete(self.subjects, row)
        self.subjects = self.subjects.astype(f"<U{max(1, _longest(self.subjects))}")
        self._lengths, self.images = np.delete(self._lengths, row), np.delete(self.images, row)
        # Centres and graphs of an index know those whom it was built from: it is built again.
        self._index = None

    def _join_twins(self) -> None:
        """Make one of people whose names are one, as if they had been enrolled so.

        Raises:
            ValueError: their templates add up to nothing.
        """
        names = same_names(self.subjects)
        if names is self.subjects:  # all were composed
            return
        self.subjects = names
        _, firsts, of = np.unique(self.subjects, return_index=True, return_inverse=True)
        first = firsts[of.reshape(-1)]
        again = np.flatnonzero(first != np.arange(len(self)))
        self.twins = tuple(np.unique(self.subjects[again]).tolist())
        for row in again[::-1].tolist():
            both = [int(first[row]), row]
            weights = self._lengths[both].astype(np.float64) * self.images[both]
            total = weights @ self.templates[both].astype(np.float64)
            length = float(np.linalg.norm(total))
            if not length > 1e-6 * weights.sum():
                raise ValueError(f"the two of the name {self.subjects[row]!r} add up to nothing")
            self.templates[both[0]] = total / length
            self.images[both[0]] += self.images[row]
            self._lengths[both[0]] = length / self.images[both[0]]
            self._remove(row)

    def _rows_of(self, subjects: NDArray[np.str_]) -> NDArray[np.int64]:
        """Return the row of each subject, −1 for those who are not there."""
        if not len(self) or not subjects.size:
            return np.full(subjects.size, -1)
        order = np.argsort(self.subjects)
        at = np.searchsorted(self.subjects, subjects, sorter=order)
        rows = order[np.minimum(at, len(order) - 1)]
        return np.where(self.subjects[rows] == subjects, rows, -1)

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
            index: ``exact`` looks at every template. ``flat``, ``ivf`` and ``hnsw`` let FAISS
                choose candidates, which are then scored as the others are; the last two may miss
                somebody. ``auto`` is exact up to two million templates, and ``ivf`` beyond.
            progress: called after each batch of probes.

        Returns:
            Rows and cosines ``(n, k)`` with k no more than the gallery has, the best first; −1 and
            NaN for a probe that is zero or not finite.

        Raises:
            MetricError: probes of another size, no count, or an empty gallery.
            MissingExtraError: FAISS is asked for and not installed.
        """
        probes = np.asarray(vectors)
        if probes.ndim != 2 or probes.shape[1] != self.space.embedding_size or count < 1:
            raise MetricError(
                f"a search takes probes of shape (n, {self.space.embedding_size}) and returns one "
                f"candidate at least, found {probes.shape} and {count}"
            )
        if not len(self):
            raise MetricError("the gallery is empty, so nobody can be found; enrol people first")
        if index == "auto":
            index = "ivf" if len(self) > LARGE else "exact"
        count = min(count, len(self))
        rows = np.full((len(probes), count), -1, np.int64)
        scores = np.full((len(probes), count), np.nan, np.float32)
        for start in range(0, len(probes), QUERIES):
            batch = slice(start, min(start + QUERIES, len(probes)))
            lengths = row_norms(probes[batch])
            good = np.flatnonzero(lengths > 0)
            if good.size:
                units = probes[batch][good].astype(np.float64) / lengths[good, None]
                nearest = self._search(units, count, index)
                rows[batch.start + good], scores[batch.start + good] = nearest
            if progress is not None:
                progress("searching", batch.stop, len(probes))
        return rows, scores

    def _search(
        self, units: NDArray[np.float64], count: int, kind: IndexKind
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Search with up to `QUERIES` unit vectors."""
        # More than are asked for, so that rounding cannot hide one of the best.
        listed = min(len(self), count + max(8, count))
        single = units.astype(np.float32)
        if kind == "exact":
            candidates, bounds = _nearest(self.templates, single, listed)
        else:
            candidates, bounds = self.index(kind).search(single, listed)
        rows = np.empty((len(units), count), np.int64)
        scores = np.empty((len(units), count), np.float32)
        # How far a float32 product of unit vectors can be off, twice.
        slack = 2 * (self.space.embedding_size + 4) * 2.0**-24
        for probe, unit in enumerate(units):
            chosen = np.sort(candidates[probe][candidates[probe] >= 0])
            mine = self._score(unit, chosen)
            order = np.argsort(-mine, kind="stable")[:count]
            certain = listed == len(self) or mine[order[-1]] > bounds[probe] + slack
            if kind == "exact" and not certain:
                mine = np.concatenate(
                    [
                        self._score(unit, np.arange(start, min(start + _BLOCK, len(self))))
                        for start in range(0, len(self), _BLOCK)
                    ]
                )
                chosen = np.flatnonzero(mine >= np.partition(mine, -count)[-count])
                mine = mine[chosen]
                order = np.argsort(-mine, kind="stable")[:count]
            if order.size < count:
                raise MetricError(
                    f"the {kind} index found {order.size} of {count} candidates; search exactly, "
                    "or ask for fewer"
                )
            rows[probe], scores[probe] = chosen[order], mine[order]
        return rows, scores

    def _score(self, unit: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return cosines rounded to the grid on which equal templates tie."""
        products = np.einsum("d,nd->n", unit, self.templates[rows].astype(np.float64))
        return (np.rint(products * _GRID) / _GRID).astype(np.float32)

    def index(self, kind: IndexKind) -> Any:
        """Return a FAISS index of the templates, built when it is first asked for.

        It lives in memory alone and is built again after every change, so that nothing of a deleted
        subject stays in its centres or its graph.

        Raises:
            MissingExtraError: FAISS is not installed.
        """
        from facerec.galleries.index import FaissIndex

        if self._index is None or self._index.kind != kind:
            self._index = FaissIndex(self.templates, kind)
        return self._index

    def identify(
        self,
        probes: Embeddings | ArrayLike,
        *,
        fpir: Rate | None = None,
        threshold: float | None = None,
        point: Fpir | None = None,
        count: int = 5,
        index: IndexKind = "auto",
        where: str = "probes",
        progress: Progress | None = None,
    ) -> Identification:
        """Say who is on each image; with neither FPIR nor threshold, list candidates alone.

        Args:
            probes: embeddings, whose model is checked, or vectors ``(n, D)`` of its model.
            fpir: chance that a stranger is taken for somebody; the threshold is the one that has
                it at this gallery's size.
            threshold: cosine from which on somebody is identified, in place of an FPIR.
            point: what `point` returned for the threshold, if it is known already.
            count: candidates of each answer.
            index: see `search`.
            where: the probes come from.
            progress: see `search`.

        Raises:
            ModelError: embeddings of another model, preprocessing, flip or size.
            MetricError: an FPIR and a threshold, an FPIR without a calibration, a threshold that is
                NaN, or no candidate.
        """
        if fpir is not None and threshold is not None:
            raise MetricError("an FPIR and a threshold are two ways to say one thing; give one")
        if count < 1 or (threshold is not None and np.isnan(threshold)):
            raise MetricError(
                "an identification lists one candidate at least, and its threshold is a number, "
                f"found {count} and {threshold}"
            )
        if isinstance(probes, Embeddings):
            self.space.check(Space.of(probes), where)
            vectors, failures = probes.vectors, probes.failures
        else:
            vectors, failures = np.asarray(probes), {}
        limit = None if threshold is None else float(np.float32(threshold))
        if point is None and (fpir, threshold) != (None, None):
            point = self.point(fpir, threshold)
        if point is not None:
            limit = point.threshold
        rows, scores = self.search(vectors, max(count, 2), index=index, progress=progress)
        least = np.inf if limit is None else limit
        answers = Answers(self.subjects, rows, scores, least, count, failures)
        return Identification(answers, limit, point)

    def point(self, fpir: Rate | None = None, threshold: float | None = None) -> Fpir | None:
        """Return threshold and FPIR at this gallery's size, from one of the two.

        Returns:
            None for a threshold without a calibration.

        Raises:
            MetricError: an FPIR without a calibration, or one that it does not carry.
        """
        if self.calibration is None:
            if threshold is not None:
                return None
            raise MetricError(
                f"nothing tells which threshold has FPIR {fpir} in this gallery: it is not "
                "calibrated; calibrate it with embeddings of other people, or give a threshold"
            )
        if threshold is not None:
            return self.calibration.fpir(float(np.float32(threshold)), max(1, len(self)))
        assert fpir is not None
        return self.calibration.threshold(fpir, max(1, len(self)))

    # --- calibration -----------------------------------------------------------------------

    def calibrate(
        self,
        impostors: Embeddings | None = None,
        *,
        subjects: Names | None = None,
        where: str = "impostors",
        depth: int = DEPTH,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Calibration:
        """Score subjects with the templates of others, and keep the highest scores.

        Nothing of an impostor's embedding or name is kept.

        Args:
            impostors: images of subjects who are not enrolled; those of subjects who are (by name)
                meet the others alone. By default the gallery's own subjects stand in for strangers,
                up to 4,096 of them, drawn at random. Their templates may rest on several images,
                which makes them better likenesses than the single image of a visitor.
            subjects: who is on each, ``(n,)``; by default what `impostors` says, or each image
                counts as another subject, and then intervals are too narrow.
            where: the impostors come from.
            depth: scores kept of each probe.
            seed: of the draw.
            progress: see `search`.

        Raises:
            ModelError: embeddings of another model, preprocessing, flip or size.
            MetricError: nobody to compare with.
        """
        entries = np.arange(len(self))
        if impostors is None:
            probes = np.random.default_rng(seed).permutation(len(self))[:CALIBRATION_PROBES]
            vectors: NDArray[np.floating] = self.templates[probes]
            of_probe, note = probes, {"probes": "the gallery's own people"}
        else:
            self.space.check(Space.of(impostors), where)
            names = _names(impostors, subjects, where)
            rows = np.flatnonzero(row_norms(impostors.vectors) > 0)
            vectors = take(impostors.vectors, rows)
            if names is None:
                of_probe = -1 - np.arange(rows.size)
            else:
                # Strangers have numbers below 0. An image of nobody knows whom is a subject.
                own = np.array([name or f"\0{row}" for row, name in enumerate(names)])[rows]
                strangers = -1 - np.unique(own, return_inverse=True)[1]
                gallery_rows = self._rows_of(own)
                of_probe = np.where(gallery_rows >= 0, gallery_rows, strangers)
            note = {"probes": where, "persons": "given" if names is not None else "one an image"}
        if not len(self) or not len(vectors):
            raise MetricError(
                f"{where}: {len(vectors)} usable embeddings of impostors and {len(self)} enrolled "
                "people are nothing to calibrate with; both are needed"
            )
        nearest, scores = self.search(vectors, depth + 1, index="exact", progress=progress)
        # Who would meet nobody else is no stranger to this gallery.
        alone = (of_probe == 0) if len(self) == 1 else np.zeros(len(of_probe), bool)
        if alone.all():
            raise MetricError(
                f"{where}: nobody but the one person who is enrolled, so nothing to calibrate "
                "with; give embeddings of other people"
            )
        nearest, scores, of_probe = nearest[~alone], scores[~alone], of_probe[~alone]
        # A subject with itself is no impostor; it goes to the end of its row.
        same = nearest == of_probe[:, None]
        order = np.argsort(same, axis=1, kind="stable")[:, :depth]
        nearest = np.take_along_axis(np.where(same, -1, nearest), order, axis=1)
        scores = np.take_along_axis(np.where(same, np.float32(-np.inf), scores), order, axis=1)
        self.calibration = Calibration(scores, nearest, of_probe.astype(np.int64), entries, note)
        return self.calibration

    # --- files -----------------------------------------------------------------------------

    @staticmethod
    @contextlib.contextmanager
    def claim(path: str | Path) -> Iterator[None]:
        """Let one process at a time read a gallery file, change it and write it again.

        Raises:
            DatasetError: another process has claimed it.
        """
        with exclusive(path, DatasetError, suffix=".update"):
            yield

    def write(self, path: str | Path) -> None:
        """Write the gallery whole or not at all; only the owner may read the file.

        Raises:
            DatasetError: it cannot be written.
        """
        arrays: dict[str, NDArray[Any]] = {
            "note": np.array(
                json.dumps(
                    {
                        "format": FORMAT,
                        "space": asdict(self.space),
                        "fusion": self.fusion,
                        "calibration": None if self.calibration is None else self.calibration.note,
                    },
                    allow_nan=False,
                )
            ),
            "subjects": self.subjects,
            "templates": self.templates,
            "lengths": self._lengths,
            "images": self.images,
        }
        if self.calibration is not None:
            calibration = self.calibration
            arrays |= {f"calibration_{name}": getattr(calibration, name) for name in _KEPT}
        with atomic_path(path, DatasetError, private=True) as temporary:
            write_arrays(temporary, arrays)

    @classmethod
    def read(cls, path: str | Path) -> Gallery:
        """Read a gallery file without running anything that it may contain.

        Raises:
            DatasetError: the file is missing, damaged, or no gallery.
        """
        path = Path(path)
        names = ["note", "subjects", "templates", "lengths", "images"]
        optional = [f"calibration_{name}" for name in _KEPT]
        try:
            size = path.stat().st_size
            arrays, _ = read_arrays(path, size, {*names, *optional}, MAX_BYTES)
        except OSError as problem:
            raise DatasetError(
                f"{path}: the gallery cannot be read ({problem.strerror or problem}); check the "
                "path, or enrol people first"
            ) from problem
        except ArchiveError as problem:
            raise DatasetError(
                f"{path}: no whole gallery file ({problem}); give the file that facerec enroll "
                "wrote, or enrol everybody anew"
            ) from problem
        try:
            return cls._from_arrays(arrays)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            MetricError,
            DatasetError,
        ) as error:
            raise DatasetError(
                f"{path}: no gallery that this facerec can read ({str(error)[:200]}); enrol "
                "everybody anew with facerec enroll"
            ) from error

    @classmethod
    def _from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Gallery:
        note = parse_json(str(arrays["note"][()]))
        if note["format"] != FORMAT:
            raise ValueError(f"its format is {str(note['format'])[:60]!r}")
        gallery = cls(_known_space(note["space"]), note["fusion"])
        gallery.subjects, gallery.templates = arrays["subjects"], arrays["templates"]
        gallery._lengths, gallery.images = arrays["lengths"], arrays["images"]
        count = len(gallery.subjects)
        kinds = (gallery.templates.dtype, gallery._lengths.dtype, gallery.images.dtype)
        if (
            gallery.subjects.dtype.kind != "U"
            or kinds != (np.float32, np.float32, np.int64)
            or gallery.templates.shape != (count, gallery.space.embedding_size)
            or any(
                a.shape != (count,) for a in (gallery.subjects, gallery._lengths, gallery.images)
            )
        ):
            raise ValueError("its arrays do not fit together")
        # Templates were unit vectors when they were written.
        if not np.allclose(row_norms(gallery.templates), 1, atol=1e-5):
            raise ValueError("a template is not of length 1")
        if np.unique(gallery.subjects).size != count:
            raise ValueError("somebody is in it twice")
        if note["calibration"] is not None:
            kept = {name: arrays[f"calibration_{name}"] for name in _KEPT}
            _check_calibration(kept, note["calibration"])
            calibration = Calibration(**kept, note=note["calibration"])
            entries = calibration.entry_subjects
            if not np.array_equal(entries, np.arange(min(entries.size, count))):
                raise ValueError("its calibration has other entries")
            gallery.calibration = calibration
        gallery._join_twins()
        return gallery

    def export(self, path: str | Path) -> None:
        """Write the templates as Parquet, one row a subject, for a database to load.

        Columns: ``image_id`` and ``subject_id`` (the subject, twice: facerec's own commands read
        the table as embeddings), ``images`` int64, ``embedding`` list of float32 of length 1, so
        that inner product and cosine are one. The file's metadata has the embedding space.

        Raises:
            MissingExtraError: pyarrow is not installed.
            DatasetError: the file cannot be written.
        """
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as problem:
            raise MissingExtraError(
                f"{path}: writing Parquet needs pyarrow; run: pip install 'facerec[parquet]'"
            ) from problem
        about = {"space": asdict(self.space), "fusion": self.fusion}
        schema = pa.schema(
            [
                ("image_id", pa.string()),
                ("subject_id", pa.string()),
                ("images", pa.int64()),
                ("embedding", pa.list_(pa.float32())),
            ],
            metadata={"facerec_gallery": json.dumps(about)},
        )
        size = self.space.embedding_size
        with (
            atomic_path(path, DatasetError, private=True) as temporary,
            pq.ParquetWriter(temporary, schema) as writer,
        ):
            for start in range(0, len(self), _BLOCK):
                block = slice(start, min(start + _BLOCK, len(self)))
                rows = block.stop - block.start
                names = pa.array(self.subjects[block].tolist(), pa.string())
                offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * size)
                values = pa.array(self.templates[block].reshape(-1))
                vectors = pa.ListArray.from_arrays(offsets, values)
                images = pa.array(self.images[block])
                table = pa.Table.from_arrays([names, names, images, vectors], schema=schema)
                writer.write_table(table)


_KEPT = ("scores", "entries", "probe_subjects", "entry_subjects")
"""Arrays of a calibration that a gallery file holds."""


def _known_space(fields: Mapping[str, Any]) -> Space:
    """Return the space that a file names.

    Raises:
        TypeError: a field is missing, unknown, or of another type.
    """
    space = Space(**fields)
    sound = (
        isinstance(space.model, str | None)
        and isinstance(space.preprocessing, Mapping | None)
        and isinstance(space.flip, bool | None)
        and type(space.embedding_size) is int
        and isinstance(space.name, str)
    )
    if not sound:
        raise TypeError("its space has a field of another type")
    return space


def _check_calibration(arrays: Mapping[str, NDArray[Any]], note: object) -> None:
    """Refuse what no gallery writes, beside shapes, which `Calibration` looks at.

    Raises:
        ValueError: numbers of another type or out of their range, or scores that do not descend.
    """
    scores, entries = arrays["scores"], arrays["entries"]
    kinds = [arrays[name].dtype for name in _KEPT]
    if (
        kinds != [np.float32, *[np.int64] * 3]
        or scores.shape != entries.shape
        or scores.ndim != 2
        or not isinstance(note, dict)
        or bool((entries < -1).any())
        or not np.array_equal(entries == -1, np.isneginf(scores))
        or bool(np.isposinf(scores).any())
        or not bool((scores[:, :-1] >= scores[:, 1:]).all())
    ):
        raise ValueError("its calibration is no table of the highest scores and their entries")


def _renumbered(calibration: Calibration, row: int) -> Calibration | None:
    """Return a calibration without an entry, whose subjects are rows of the gallery again."""
    left = calibration.without(row)
    if left is None:
        return None
    probes = left.probe_subjects
    return replace(
        left,
        probe_subjects=np.where(probes > row, probes - 1, probes),
        entry_subjects=np.arange(left.entry_subjects.size),
    )


def _names(embeddings: Embeddings, subjects: Names | None, where: str) -> NDArray[np.str_] | None:
    """Return who is on each image, from ``subjects`` or else the embeddings, if either tells."""
    names = embeddings.subjects if subjects is None else subjects
    return None if names is None else text_array(names, where)


def _longest(names: NDArray[np.str_]) -> int:
    return int(np.char.str_len(names).max()) if names.size else 0


def _nearest(
    templates: NDArray[np.float32], probes: NDArray[np.float32], count: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows with the highest float32 products, and the lowest of those products.

    Args:
        templates: ``(N, D)``.
        probes: ``(n, D)``.
        count: how many, no more than N.

    Returns:
        ``(n, count)`` in no order, and ``(n,)``: no other product is higher.
    """
    best = np.full((len(probes), count), -np.inf, np.float32)
    rows = np.full((len(probes), count), -1, np.int64)
    for start in range(0, len(templates), _BLOCK):
        block = templates[start : start + _BLOCK]
        scores = block @ probes.T
        worst = best.min(axis=1)
        # Most blocks have nobody better for many probes, and few for the others.
        for probe in np.flatnonzero(scores.max(axis=0) > worst):
            better = np.flatnonzero(scores[:, probe] > worst[probe])
            merged = np.concatenate([best[probe], scores[better, probe]])
            known = np.concatenate([rows[probe], start + better])
            top = np.argpartition(merged, -count)[-count:]
            best[probe], rows[probe] = merged[top], known[top]
    return rows, best.min(axis=1)
