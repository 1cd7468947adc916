"""Does SEC change what norms and error rates have to do with groups? The study and its answer.

Both arms of every seed are trained alike but for the penalty, audited alike, and compared on the
same images. The sentences and tables of the answer are made by rule from these figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from facerec.embedding import EmbeddingModel, Embeddings, embed_views
from facerec.embedding.extraction import unit_fusion
from facerec.errors import DatasetError
from facerec.fairness.attributes import Attributes, join
from facerec.fairness.baseline import BaselineComparison, RunPair, compare_runs
from facerec.fairness.differentials import rate_replicates, resample
from facerec.fairness.norms import percentile
from facerec.fairness.plain import plain
from facerec.fairness.rate_results import UNKNOWN
from facerec.fairness.rates import GroupErrors, all_pairs_group_rates
from facerec.fairness.result import Audit
from facerec.limits import Checked, Count, Seed
from facerec.progress import Progress, section
from facerec.records.synthetic import Group, SyntheticSet
from facerec.report.estimate import Estimate
from facerec.statistics.operating_points import parse_rate
from facerec.training.initialization import INIT
from facerec.training.recipe import Recipe
from facerec.verification import Bench, Pairs

ARMS: tuple[Literal["baseline", "sec"], ...] = ("baseline", "sec")


@dataclass(frozen=True)
class FairnessStudy(Checked):
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
    seeds: tuple[Seed, ...] = (0, 1, 2)
    """Of training; each gives one run an arm."""
    targets: tuple[str, ...] = ("1e-1", "1e-2", "1e-3")
    """Nominal FMRs."""
    target: str = "1e-2"
    """The one of them that the answer is given at."""
    replicates: Count = 2000
    """Resamples of the subjects."""
    permutations: Count = 9999
    """Of the test of association."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("generated", "real"):
            recipe = getattr(self, name)
            if recipe is not None and recipe.regularizer is None:
                raise ValueError(f"{name} has no regularizer, so that both arms would be the same")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different numbers, found {list(self.seeds)}")
        for target in self.targets:
            parse_rate(target)
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

    in_files: ClassVar = "target of group rate others excess=value interval higher"
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
        """Pairs of all benches; images and subjects are counted on from one to the next."""
        by_bench: list[tuple[NDArray[Any], ...]] = []
        images = subjects = 0
        for bench in self.benches:
            pairs = bench.pairs
            if pairs.subjects is None or pairs.folds is None:
                raise DatasetError(f"{bench.name}: fewer than ten pairs, so there are no folds")
            by_bench.append(
                (
                    pairs.first + images,
                    pairs.second + images,
                    pairs.issame,
                    pairs.subjects + subjects,
                    pairs.folds,
                )
            )
            images += len(bench.images)
            subjects += int(pairs.subjects.max()) + 1
        return Pairs(*(np.concatenate(column) for column in zip(*by_bench, strict=True)))

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
            "known_truth": plain(self.known, limits=False),
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
    """Return sets of other subjects in the same groups, small as packs, by what is known of them.

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
            seed=plan.faces.seed + index,
            identities=1,
            images_per_identity=1,
            groups=groups,
        )
        for index, (name, groups) in enumerate((("control", alike), ("harder", unlike)), start=1)
    }


def group_excess(
    errors: GroupErrors, *, replicates: int = 2000, seed: int = 0
) -> tuple[GroupExcess, ...]:
    """Return by how much the error rates of each group exceed those of the others.

    All groups are weighted alike in each resample of subjects; thresholds are taken as given.

    Args:
        errors: from `facerec.fairness.rates`.
        replicates: resamples of the subjects.
        seed: of the resampling.
    """
    rates, groups = errors.rates, len(errors.rates.names)
    weights = resample(errors.subjects, replicates, seed)
    # With two groups there is one comparison.
    confidence = 1 - 0.05 / (groups if groups > 2 else 1)
    kinds: tuple[Literal["FMR", "FNMR"], ...] = ("FMR", "FNMR")
    excesses = []
    for point, counts in zip(rates.points, errors.counts, strict=True):
        drawn = [rate_replicates(group, weights) for group in counts]
        for kind, of in enumerate(kinds):
            cells = [group.fmr if of == "FMR" else group.fnmr for group in point.groups]
            values = [cell.value for cell in cells if cell.value is not None]
            resampled = [column for rate in drawn if (column := rate[kind]) is not None]
            if groups < 2 or min(len(values), len(resampled)) < groups:
                continue
            fewest = min(cell.subjects for cell in cells)
            for index, name in enumerate(rates.names):
                others = float(np.mean(np.delete(values, index)))
                differences = resampled[index] - np.delete(resampled, index, axis=0).mean(axis=0)
                interval = percentile(differences, fewest, confidence)
                own = values[index]
                excesses.append(
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
    return tuple(excesses)


def embed_faces(
    model: EmbeddingModel, faces: FaceSet, progress: Progress | None = None
) -> tuple[Embeddings, NDArray[np.float32]]:
    """Embed all images and their mirror images.

    Returns:
        Raw fusion, and the vectors of unit fusion ``(m, D)``.
    """
    by_bench = []
    done, total = 0, len(faces.ids)
    for bench in faces.benches:
        tell = section(progress, "embedding", done, total)
        by_bench.append(embed_views(model, bench.images, progress=tell))
        done += len(bench.images)
    both, one = (
        replace(
            views[0],
            vectors=np.concatenate([embeddings.vectors for embeddings in views]),
            norms=np.concatenate([embeddings.norms for embeddings in views]),
            ids=faces.ids,
        )
        for views in zip(*by_bench, strict=True)
    )
    return both, unit_fusion(both, one)


def errors_by_group(
    model: EmbeddingModel,
    faces: FaceSet,
    targets: Sequence[str],
    progress: Progress | None = None,
) -> GroupErrors:
    """Embed images and count errors by group among all pairs."""
    raw, _ = embed_faces(model, faces, progress)
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
    """Compare the arms of all seeds on the same images."""
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
