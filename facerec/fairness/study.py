"""Does SEC change what norms and error rates have to do with groups? The study and its answer.

Both arms of every seed are trained alike but for the penalty, audited alike, and compared on the
same images. The sentences and tables of the answer are made by rule from these figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

import facerec
from facerec.embedding import EmbeddingModel, Embeddings, embed_images
from facerec.embedding.extract import unit_fusion
from facerec.errors import DatasetError
from facerec.fairness.association import Association
from facerec.fairness.attributes import Attributes, join
from facerec.fairness.baseline import BaselineComparison, Change, RunPair, compare_runs
from facerec.fairness.differentials import rate_replicates, resample
from facerec.fairness.norms import percentile
from facerec.fairness.plain import plain
from facerec.fairness.rate_results import UNKNOWN
from facerec.fairness.rates import GroupErrors, all_pairs_group_rates
from facerec.fairness.result import Audit
from facerec.progress import Progress, section
from facerec.records.synthetic import Group, SyntheticSet
from facerec.report.estimate import Estimate
from facerec.statistics.intervals import Interval
from facerec.training.initialization import INIT
from facerec.training.recipe import Recipe
from facerec.verification import Bench, Pairs

QUESTION = (
    "Are raw embedding norms associated with {attribute}, and does SEC change that, or the error "
    "rates by group?"
)

ARMS: tuple[Literal["baseline", "sec"], ...] = ("baseline", "sec")

_LIMITS = {
    "generated": "Generated faces are drawings with a planted difference in image quality: they "
    "show whether the audit finds what is known to be there, and say nothing about people.",
    "seeds": "A seed changes weights, order and augmentation of training, not the training "
    "images; other training images may give other changes.",
    "thresholds": "Thresholds are fixed on the same images; resamples take them as given.",
    "penalty": "One weight of the penalty, one backbone and one margin were tried.",
}


@dataclass(frozen=True)
class FairnessStudy:
    """What is trained, on what, and how the answer is computed."""

    generated: Recipe | None
    """SEC arm on generated faces; the baseline is the same without the penalty. None: real ones
    alone."""
    real: Recipe
    """SEC arm on real faces, where they are given on the command line."""
    faces: SyntheticSet = field(
        default_factory=lambda: SyntheticSet(
            groups=(Group("A"), Group("B", contrast=0.6, blur=1.5, noise=10.0))
        )
    )
    """Generated faces; one group's photos are of a worse quality."""
    harder: Group = field(default_factory=lambda: Group("B", contrast=0.4, blur=3.0, noise=20.0))
    """One of these groups as it is photographed where the truth is known: far worse than in
    training, so that it must have more errors."""
    attribute: str = "gender"
    """Column of the attributes of the real faces."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of training; each gives one run an arm."""
    targets: tuple[str, ...] = ("1e-1", "1e-2", "1e-3")
    """Nominal FMRs."""
    target: str = "1e-2"
    """The one of them that the answer is given at."""
    replicates: int = 2000
    """Resamples of the persons."""
    permutations: int = 9999
    """Of the test of association."""

    def __post_init__(self) -> None:
        for name in ("generated", "real"):
            recipe = getattr(self, name)
            if recipe is not None and recipe.regularizer is None:
                raise ValueError(f"{name} has no regularizer, so that both arms would be the same")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different numbers, found {list(self.seeds)}")
        if self.target not in self.targets:
            raise ValueError(f"target {self.target} is not among {', '.join(self.targets)}")
        names = [group.name for group in self.faces.groups]
        if self.harder.name not in names:
            raise ValueError(f"harder is {self.harder.name!r}, the groups are {', '.join(names)}")


@dataclass(frozen=True, kw_only=True)
class GroupExcess(Estimate):
    """By how much the error rate of a group exceeds the mean of the other groups'.

    The interval is over subjects, simultaneous for all groups (Bonferroni); None where nothing
    varies.
    """

    in_files: ClassVar = "target of group rate others excess=value interval"
    target: str
    of: Literal["FMR", "FNMR"]
    group: str
    rate: float
    others: float
    """Mean rate of the other groups."""

    @property
    def higher(self) -> bool:
        """Whether the interval excludes equality, and the group has more errors."""
        return self.interval is not None and self.interval.low > 0


@dataclass(frozen=True, eq=False)
class FaceSet:
    """Test images with attributes, and the recipe that is trained for them."""

    name: Literal["generated", "real"]
    title: str
    recipe: Recipe
    """SEC arm."""
    benches: tuple[Bench, ...]
    """Their images and pairs are taken together, fold by fold."""
    attributes: Attributes
    attribute: str

    @property
    def ids(self) -> NDArray[np.str_]:
        """Ids of all images, ``(m,)``."""
        return np.concatenate([bench.images.ids for bench in self.benches])

    @property
    def pairs(self) -> Pairs:
        """Pairs of all benches; images and persons are counted on from one to the next."""
        parts: list[tuple[NDArray[Any], ...]] = []
        images = persons = 0
        for bench in self.benches:
            pairs = bench.pairs
            if pairs.subjects is None or pairs.folds is None:
                raise DatasetError(f"{bench.name}: fewer than ten pairs, so there are no folds")
            parts.append(
                (
                    pairs.first + images,
                    pairs.second + images,
                    pairs.issame,
                    pairs.subjects + persons,
                    pairs.folds,
                )
            )
            images += len(bench.images)
            persons += int(pairs.subjects.max()) + 1
        return Pairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def groups(self, embeddings: Embeddings) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the code of the group of each image, ``(m,)``, −1 if unknown, and their names.

        Args:
            embeddings: of these images, in this order.
        """
        joined = join(self.attributes, self.ids, embeddings.norms, embeddings.failures)
        grouping = joined.groupings[0]
        group = np.full(len(self.ids), UNKNOWN)
        group[joined.rows] = grouping.codes
        return group, grouping.names


@dataclass(frozen=True)
class TrainedRun:
    """One run of an arm."""

    name: str
    arm: Literal["baseline", "sec"]
    seed: int
    folder: Path
    seconds: float | None
    """Training took; None if the run was complete before."""


@dataclass(frozen=True, eq=False)
class StudyRun:
    """One trained and audited model."""

    trained: TrainedRun
    embeddings: Embeddings
    unit: NDArray[np.float32]
    """Both views normalised before they are added, ``(m, D)``."""
    audit: Audit

    def to_json(self) -> dict[str, Any]:
        """Return what was found, as JSON types."""
        grouping = self.audit.groupings[0]
        assert grouping.norms is not None  # as embeddings were audited
        return {
            "name": self.trained.name,
            "arm": self.trained.arm,
            "seed": self.trained.seed,
            "model": self.embeddings.note.get("model", {}).get("sha256"),
            "trained_seconds": self.trained.seconds,
            "findings": [finding.text for finding in self.audit.findings],
            "norms": plain(grouping.norms, limits=False),
            "association": plain(grouping.association, limits=False),
            "differentials": plain(grouping.differentials, limits=False),
        }


@dataclass(frozen=True)
class KnownTruth:
    """What an audit finds where the truth is known."""

    run: str
    faces: str
    """``control`` or ``harder``, see `known_truths`."""
    excess: tuple[GroupExcess, ...]
    """Of every group, target and error."""


@dataclass(frozen=True, eq=False)
class SetResult:
    """Everything that was found on one set of images."""

    faces: FaceSet
    runs: tuple[StudyRun, ...]
    comparison: BaselineComparison
    known: tuple[KnownTruth, ...]
    """For every run on generated faces."""

    def to_json(self) -> dict[str, Any]:
        """Return what was found, as JSON types."""
        return {
            "name": self.faces.name,
            "title": self.faces.title,
            "attribute": self.faces.attribute,
            "benches": [dict(bench.source) for bench in self.faces.benches],
            "attributes_sha256": self.faces.attributes.sha256,
            "runs": [run.to_json() for run in self.runs],
            "comparison": self.comparison.to_json(),
            "known_truth": [
                {
                    "run": known.run,
                    "faces": known.faces,
                    "excess": [
                        plain(one, limits=False) | {"higher": one.higher} for one in known.excess
                    ],
                }
                for known in self.known
            ],
        }


def smaller(plan: FairnessStudy) -> FairnessStudy:
    """Return the study as small as it can be and still run through."""

    def tiny(recipe: Recipe) -> Recipe:
        backbone = replace(recipe.backbone, name="iresnet18", embedding_size=32, width=0.125)
        return replace(
            recipe,
            # The network of given weights stays as it is.
            backbone=recipe.backbone if recipe.backbone.name == INIT else backbone,
            epochs=1,
            batch_size=16,
            accumulation=1,
            precision="fp32",
            workers=0,
        )

    return replace(
        plan,
        generated=plan.generated and tiny(plan.generated),
        real=tiny(plan.real),
        faces=replace(plan.faces, identities=12, images_per_identity=8, pairs_per_fold=4),
        seeds=plan.seeds[:1],
        replicates=200,
        permutations=199,
    )


def known_truths(plan: FairnessStudy) -> dict[str, SyntheticSet]:
    """Return sets of other people in the same groups, no more than packs, by what is known of them.

    In ``control`` all are photographed alike; in ``harder`` all but one group.
    """
    alike = tuple(Group(group.name, share=group.share) for group in plan.faces.groups)
    unlike = tuple(
        replace(plan.harder, share=group.share) if group.name == plan.harder.name else group
        for group in alike
    )
    return {
        name: replace(
            plan.faces,
            seed=plan.faces.seed + place,
            identities=1,
            images_per_identity=1,
            groups=groups,
        )
        for place, (name, groups) in enumerate((("control", alike), ("harder", unlike)), start=1)
    }


def group_excess(
    errors: GroupErrors, *, replicates: int = 2000, seed: int = 0
) -> tuple[GroupExcess, ...]:
    """Return by how much the error rates of each group exceed those of the others.

    All groups are weighted alike in each resample of persons; thresholds are taken as given.

    Args:
        errors: from `facerec.fairness.rates`.
        replicates: resamples of the persons.
        seed: of the resampling.
    """
    rates, groups = errors.rates, len(errors.rates.names)
    weights = resample(errors.subjects, replicates, seed)
    # With two groups there is one comparison.
    confidence = 1 - 0.05 / (groups if groups > 2 else 1)
    kinds: tuple[Literal["FMR", "FNMR"], ...] = ("FMR", "FNMR")
    found = []
    for point, counts in zip(rates.points, errors.counts, strict=True):
        drawn = [rate_replicates(group, weights) for group in counts]
        for kind, of in enumerate(kinds):
            cells = [group.fmr if of == "FMR" else group.fnmr for group in point.groups]
            values = [cell.value for cell in cells if cell.value is not None]
            parts = [part for rate in drawn if (part := rate[kind]) is not None]
            if groups < 2 or min(len(values), len(parts)) < groups:
                continue
            fewest = min(cell.subjects for cell in cells)
            for place, name in enumerate(rates.names):
                others = float(np.mean(np.delete(values, place)))
                differences = parts[place] - np.delete(parts, place, axis=0).mean(axis=0)
                interval = percentile(differences, fewest, confidence)
                own = values[place]
                found.append(
                    GroupExcess(
                        own - others,
                        interval,
                        target=point.threshold.target,
                        of=of,
                        group=name,
                        rate=own,
                        others=others,
                    )
                )
    return tuple(found)


def embed_views(
    model: EmbeddingModel, faces: FaceSet, progress: Progress | None = None
) -> tuple[Embeddings, NDArray[np.float32]]:
    """Embed all images and their mirror images.

    Args:
        model: what embeds.
        faces: the images.
        progress: called with the images done, once with both views and once with one.

    Returns:
        Raw fusion, and the vectors of unit fusion ``(m, D)``.
    """
    both = _embed(model, faces, True, section(progress, "embedding both views"))
    one = _embed(model, faces, False, section(progress, "embedding one view"))
    return both, unit_fusion(both, one)


def _embed(
    model: EmbeddingModel, faces: FaceSet, flip: bool, progress: Progress | None
) -> Embeddings:
    benches: list[Embeddings] = []
    done, total = 0, sum(len(bench.images) for bench in faces.benches)
    for bench in faces.benches:
        tell = section(progress, "embedding", done, total)
        benches.append(embed_images(model, bench.images, flip=flip, progress=tell))
        done += len(bench.images)
    return replace(
        benches[0],
        vectors=np.concatenate([bench.vectors for bench in benches]),
        norms=np.concatenate([bench.norms for bench in benches]),
        ids=faces.ids,
    )


def errors_by_group(
    model: EmbeddingModel,
    faces: FaceSet,
    targets: Sequence[str],
    progress: Progress | None = None,
) -> GroupErrors:
    """Embed images and count errors by group among all pairs.

    Args:
        model: what embeds.
        faces: the images.
        targets: nominal FMRs.
        progress: called with the images done.
    """
    raw = _embed(model, faces, True, progress)
    group, names = faces.groups(raw)
    pairs = faces.pairs
    assert pairs.subjects is not None  # as `FaceSet.pairs` has made sure
    return all_pairs_group_rates(raw.vectors, pairs.subjects, group, names, targets=targets)


def compare_arms(
    plan: FairnessStudy,
    faces: FaceSet,
    runs: Sequence[StudyRun],
    progress: Progress | None,
) -> BaselineComparison:
    """Compare the arms of all seeds on the same images.

    Args:
        plan: the study.
        faces: the images.
        runs: one an arm and seed.
        progress: called after each model.
    """
    of = {(run.trained.seed, run.trained.arm): run for run in runs}
    group, names = faces.groups(runs[0].embeddings)
    pairs = faces.pairs
    assert pairs.subjects is not None  # as `FaceSet.pairs` has made sure
    return compare_runs(
        [
            RunPair(
                seed,
                of[seed, "baseline"].embeddings,
                of[seed, "sec"].embeddings,
                (of[seed, "baseline"].unit, of[seed, "sec"].unit),
            )
            for seed in plan.seeds
        ],
        pairs.subjects,
        group,
        names,
        attribute=faces.attribute,
        pairs=pairs,
        targets=plan.targets,
        replicates=plan.replicates,
        progress=progress,
    )


def answer(plan: FairnessStudy, result: SetResult) -> Iterator[str]:
    """Yield what was found on one set of images, one sentence each."""
    for arm, words in zip(ARMS, ("Without SEC", "With SEC"), strict=True):
        yield f"{words}, {_association(result, arm)}"
    changes = [result.comparison.find("η²")]
    changes += [
        result.comparison.find(f"max/geomean {of} at FMR={plan.target}", "raw")
        for of in ("FMR", "FNMR")
    ]
    names = ("the association (η²)", "the FMR differential", "the FNMR differential")
    for name, change in zip(names, changes, strict=True):
        yield f"Change of {name} with SEC: {_sentence(change)}"


def answer_page(
    plan: FairnessStudy,
    results: Sequence[SetResult],
    smoke: bool,
    command: str,
    cost: Mapping[str, Any],
) -> Iterator[str]:
    """Yield the lines of the whole answer, in Markdown.

    Args:
        plan: the study.
        results: what was found, one a set of images.
        smoke: whether this was a smoke run.
        command: that makes the same answer again.
        cost: ``seconds``, ``cores``, and the runs that were ``trained`` and ``complete_before``.
    """
    yield "# Does SEC change what norms and error rates have to do with groups?"
    if smoke:
        yield "\n**A smoke run: it shows that everything works. Its figures mean nothing.**"
    for result in results:
        faces, comparison = result.faces, result.comparison
        yield f"\n## {faces.title}\n"
        yield f"Question: {QUESTION.format(attribute=f'`{faces.attribute}`')}\n"
        yield from (f"- {line}" for line in answer(plan, result))
        yield (
            f"\n{comparison.images:,} images of {comparison.persons:,} persons in the groups "
            f"{', '.join(comparison.groups)}; error rates by group from {comparison.policy}. "
            f"{len(plan.seeds)} seeds an arm, {comparison.replicates:,} joint resamples of "
            "persons. Intervals are 95 %.\n"
        )
        yield from _table(comparison)
        yield from _known(plan, result)
        for note in comparison.notes:
            yield f"\nNote: {note}."
    yield "\n## How to read this\n"
    yield from (f"- {text}" for text in results[0].comparison.reading)
    yield "\n## Limits\n"
    yield from (f"- {text}" for text in _limits(results))
    yield "\n## Reproduce\n"
    yield f"```\n{command}\n```\n"
    yield (
        f"facerec {facerec.__version__}, {cost['cores']} cores; {cost['trained']} runs trained and "
        f"{cost['complete_before']} complete before, {cost['seconds']:.0f} seconds in all. "
        "Settings, figures of every seed and model hashes are in study.json."
    )


def _association(result: SetResult, arm: str) -> str:
    """Say how norms go with the groups in one arm, seed by seed."""
    parts = []
    for run in result.runs:
        found = run.audit.groupings[0].association
        if run.trained.arm != arm:
            continue
        if not isinstance(found, Association):
            return f"norms by {result.faces.attribute} cannot be compared: {found.reason}"
        value = found.eta2.value
        shown = "undefined" if value is None else _number(value)
        limits = _limits_of(found.eta2.interval)
        parts.append(f"{shown} {limits} (seed {run.trained.seed}, p = {found.p:.2g})")
    found = result.runs[0].audit.groupings[0].association
    assert isinstance(found, Association)
    least = "" if found.mde_eta2 is None else f"; detectable from {_number(found.mde_eta2)}"
    return (
        f"η² of persons' mean norms by {result.faces.attribute} is {', '.join(parts)}; "
        f"{found.subjects:,} persons{least}."
    )


def _sentence(change: Change) -> str:
    """Say what became of a figure."""
    if change.value is None:
        return f"insufficient data ({change.remark})."
    count = len(change.seeds)
    signs = "" if count == 1 else f", the same sign in {change.same_sign} of {count} seeds"
    text = (
        f"{_signed(change.value)} {_limits_of(change.interval)} (from {_number(change.baseline)} "
        f"to {_number(change.treated)}{signs}): {change.conclusion}"
    )
    if change.interval is None:
        return f"{text} ({change.remark})."
    return f"{text}{', of these two models alone' if count == 1 else ''}."


def _table(comparison: BaselineComparison) -> Iterator[str]:
    header = (
        "figure", "tells of", "without SEC", "with SEC", "change [95 %]", "other persons",
        "other seeds", "same sign", "conclusion",
    )  # fmt: skip
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for change in comparison.changes:
        cells = [""] * 6
        if change.value is not None:
            cells = [
                _number(change.baseline),
                _number(change.treated),
                f"{_signed(change.value)} {_limits_of(change.interval)}",
                _limits_of(change.over_subjects),
                _limits_of(change.over_seeds),
                f"{change.same_sign}/{len(change.seeds)}",
            ]
        yield f"| {' | '.join([_figure(change), change.role, *cells, change.conclusion])} |"
    lacking = [change for change in comparison.changes if change.remark]
    if lacking:
        yield ""
    yield from (f"- {_figure(change)}: {change.remark}" for change in lacking)


def _figure(change: Change) -> str:
    """Name the figure of a row, for a table in Markdown."""
    groups = "" if change.groups is None else f" {' − '.join(change.groups)}"
    fusion = "" if change.fusion is None else f", {change.fusion} fusion"
    return f"{change.figure}{groups}{fusion}".replace("|", "\\|")


def _known(plan: FairnessStudy, result: SetResult) -> Iterator[str]:
    """Hold what every audit found against what was planted."""
    if not result.known:
        return
    harder = plan.harder
    yield (
        f"\n### Known truth\n\nOther people than above. Photos of group {harder.name} are far "
        f"worse than in training (contrast × {harder.contrast:g}, blur of {harder.blur:g} pixels, "
        f"noise of {harder.noise:g} grey levels), those of the control are all alike. Excess of "
        f"the error rates of {harder.name} over the others' at FMR {plan.target}:\n"
    )
    yield "| run | photos | excess FMR | excess FNMR | told apart |"
    yield "|---|---|---|---|---|"
    for found in result.known:
        own = {
            one.of: one
            for one in found.excess
            if (one.group, one.target) == (harder.name, plan.target)
        }
        cells = [
            f"{_signed(own[of].value)} {_limits_of(own[of].interval)}" if of in own else "none"
            for of in ("FMR", "FNMR")
        ]
        higher = [of for of, one in own.items() if one.higher]
        photos = f"{harder.name} harder" if found.faces == "harder" else "control"
        told = " and ".join(higher) or "no"
        yield f"| {found.run} | {photos} | {' | '.join(cells)} | {told} |"


def _limits(results: Sequence[SetResult]) -> Iterator[str]:
    """Yield the caveats of all audits and those of the study."""
    found = [text for result in results for text in result.runs[0].audit.caveats]
    yield from dict.fromkeys(found)
    yield from _LIMITS.values()


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _signed(value: float | None) -> str:
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def _limits_of(interval: Interval | None) -> str:
    if interval is None or not all(map(math.isfinite, (interval.low, interval.high))):
        return "[–]"
    return f"[{_signed(interval.low)}, {_signed(interval.high)}]".replace("+", "")
