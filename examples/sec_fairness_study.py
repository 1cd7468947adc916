"""Does SEC change what norms and error rates have to do with groups?

    facerec demo --data-only --out faces
    python examples/sec_fairness_study.py demo --data faces --bench faces/lfw.bin \
        --attributes faces/attributes.csv --group group --seeds 0 1 2 --out study

trains the recipe with its penalty and without over several seeds, audits every model on the bench,
compares both arms on the same images, and writes ``OUT/answer.md``. Complete runs are kept, so the
same command goes on where it was interrupted. Real faces need records, a pack of other people and
a table of their recorded groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from facerec.base.recipe import load_recipe
from facerec.commands.train import Options, train_recipe
from facerec.embedding import Embeddings, embed_images, load_model
from facerec.fairness.attributes import Attributes, join, read_attributes
from facerec.fairness.audit import audit_embeddings
from facerec.fairness.baseline import READING, TWO_MODELS, Change, Key, compare_models, interval_of
from facerec.fairness.groupings import Grouping
from facerec.fairness.settings import AuditSettings
from facerec.report.estimate import Estimate
from facerec.report.words import limits, number
from facerec.training import Recipe
from facerec.training.initialization import resolved
from facerec.verification import Bench, pack_bench

ARMS = ("without SEC", "with SEC")
FEWEST_SEEDS = 3
"""From which on training noise can be judged."""


def train(recipe: Recipe, seed: int, arm: str, runs: Path) -> Path:
    """Return the folder of a run, trained to its end unless it is complete already."""
    name = f"{arm.replace(' ', '_')}_seed{seed}"
    folder = runs / name
    if (folder / "model.safetensors").is_file():
        return folder
    recipe = replace(recipe, seed=seed, regularizer=recipe.regularizer if arm == ARMS[1] else None)
    options = Options(name=name, runs=runs, resume=folder.exists())
    if train_recipe(recipe, name, options, Console()) is None:
        raise SystemExit(f"{folder}: training was interrupted; the same command goes on with it")
    return folder


@dataclass(frozen=True)
class Mean:
    """How one figure changes from the arm without SEC to that with it: the mean over all seeds."""

    name: str
    found: Estimate
    """With its interval over other subjects and, of several seeds, over other seeds too."""
    ends: tuple[float | None, float | None]
    """Means over seeds of both arms."""
    seeds: tuple[float | None, ...]
    """The change of each seed; None where the data cannot tell."""

    @property
    def same_sign(self) -> int:
        """Seeds whose change has the sign of the mean change."""
        return sum(np.sign(each or 0) == np.sign(self.found.value or 0) != 0 for each in self.seeds)

    @property
    def conclusion(self) -> str:
        """Whether the interval excludes zero; with one seed that speaks of two models alone."""
        interval = self.found.interval
        if self.found.value is None or interval is None:
            return "insufficient data"
        if interval.low > 0:
            return "increase detected"
        return "decrease detected" if interval.high < 0 else "none detected at this precision"


def over_seeds(changes: dict[int, Change]) -> Mean:
    """Return the mean change of one figure over seeds."""
    first, *_ = changes.values()
    figure, target, *groups = first.key
    at = f"{figure} at {target}" if target else figure
    name = ", ".join(filter(None, (at, " − ".join(filter(None, groups)))))
    seeds = tuple(change.value for change in changes.values())
    for seed, change in changes.items():
        if change.value is None:
            why = f"seed {seed}: " * (len(changes) > 1) + change.remark
            return Mean(
                name, replace(first, value=None, interval=None, remark=why), (None,) * 2, seeds
            )
    mean = float(np.mean(seeds))
    if abs(mean) < 1e-9 * np.abs(seeds).max():
        mean = 0.0  # of changes that cancel, rounding is left
    added = np.mean([change.added for change in changes.values()], axis=0)
    interval, why = interval_of(seeds, added, first.subjects)
    found = replace(first, value=mean, interval=interval, remark=why)
    sides = [(change.baseline.value, change.new.value) for change in changes.values()]
    without, with_sec = np.mean(sides, axis=0).tolist()
    return Mean(name, found, (without, with_sec), seeds)


def compare(
    embedded: dict[int, tuple[Embeddings, Embeddings]],
    subject: NDArray[np.int64],
    grouping: Grouping,
    **options: Any,
) -> tuple[list[Mean], list[str]]:
    """Return what changes over all seeds, of the images that no model failed on, and notes.

    Args:
        embedded: seed → the same images without and with SEC.
        subject: code of the subject on each image, −1 where not known.
        grouping: of the images.
        options: see `compare_models`.
    """
    there = np.all([side.norms > 0 for both in embedded.values() for side in both], axis=0)
    known = np.where(there, subject, -1)
    found: dict[Key, dict[int, Change]] = {}
    notes: dict[str, None] = {}
    for seed, both in embedded.items():
        changes, said = compare_models(*both, known, grouping, **options)
        notes |= dict.fromkeys(said)
        for change in changes:
            found.setdefault(change.key, {})[seed] = change
    if (count := len(embedded)) > 1:
        del notes[TWO_MODELS]
    few = f"{count} seeds: at least {FEWEST_SEEDS} an arm are needed to judge noise"
    whole = [each for each in found.values() if len(each) == count]
    return list(map(over_seeds, whole)), [*notes, *[few] * (1 < count < FEWEST_SEEDS)]


def study(
    recipe: Recipe,
    bench: Bench,
    attributes: Attributes,
    seeds: list[int],
    out: Path,
    targets: tuple[str, ...],
    replicates: int = 2000,
) -> tuple[list[str], list[Mean], list[str]]:
    """Train, audit and compare both arms; return what each audit found, the changes and notes."""
    said, embedded = [], {}
    for seed in seeds:
        sides = []
        for arm in ARMS:
            model = load_model(train(recipe, seed, arm, out / "runs"))
            embeddings = embed_images(model, bench.images, flip=True)
            audited = audit_embeddings(
                embeddings,
                attributes,
                settings=AuditSettings(fmr=targets, replicates=replicates),
                source=f"seed {seed} {arm}",
            )
            sides.append(embeddings)
            declared = [finding for finding in audited.findings if not finding.exploratory]
            said += [f"seed {seed} {arm}: {finding.text}" for finding in declared]
        embedded[seed] = sides[0], sides[1]
    joined = join(attributes, embedded[seeds[0]][0])
    how: dict[str, Any] = {"pairs": bench.pairs, "targets": targets}
    return said, *compare(embedded, joined.subjects, joined.groupings[0], **how)


def answer(said: list[str], changes: list[Mean], notes: list[str]) -> Iterator[str]:
    """Yield the lines of the answer, in Markdown."""
    yield "# Does SEC change what norms and error rates have to do with groups?\n"
    yield from (f"- {line}" for line in said)
    yield "\n| figure | without SEC | with SEC | change [95 %] | same sign | conclusion |"
    yield "|---|---|---|---|---|---|"
    for change in changes:
        yield f"| {' | '.join(_cells(change))} |"
    yield ""
    yield from (f"- {text}" for text in (*notes, *READING))


def _cells(change: Mean) -> list[str]:
    found = change.found
    by = f"{number(found.value, '+.3g')} {limits(found.interval, form='+.3g')}".strip()
    sign = f"{change.same_sign}/{len(change.seeds)}" if found.value is not None else "–"
    return [change.name, *map(number, change.ends), by, sign, found.remark or change.conclusion]


def main() -> None:
    """Read the command line and run the study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe", type=Path, help="arm with SEC; the other one has no penalty")
    parser.add_argument("--data", type=Path, required=True, help="training set")
    parser.add_argument("--bench", type=Path, required=True, help="pack of other people")
    parser.add_argument("--attributes", type=Path, required=True, help="their recorded groups")
    parser.add_argument("--group", required=True, help="column of the groups")
    parser.add_argument("--init", type=Path, help="weights that every run starts from")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fmr", nargs="+", default=["1e-1", "1e-2"], help="nominal FMRs")
    parser.add_argument("--out", type=Path, default=Path("study"))
    given = parser.parse_args()
    recipe = load_recipe(given.recipe, Recipe)
    recipe = replace(recipe, data=replace(recipe.data, path=given.data))
    recipe = resolved(replace(recipe, init=replace(recipe.init, path=given.init)))
    if recipe.regularizer is None:
        parser.error(f"{given.recipe} has no regularizer, so that both arms would be the same")
    attributes = read_attributes(given.attributes, [given.group])
    bench = pack_bench(given.bench)
    found = study(recipe, bench, attributes, given.seeds, given.out, tuple(given.fmr))
    text = "\n".join(answer(*found))
    (given.out / "answer.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
