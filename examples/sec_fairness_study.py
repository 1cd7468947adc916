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
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from facerec.base.recipe import load_recipe
from facerec.commands.train import Options, train_recipe
from facerec.embedding import embed_images, load_model
from facerec.fairness.attributes import Attributes, join, read_attributes
from facerec.fairness.audit import audit_embeddings
from facerec.fairness.baseline import READING, BaselineComparison, Change, RunPair, compare_runs
from facerec.fairness.result import AuditSettings
from facerec.report.words import limits, number
from facerec.training import Recipe
from facerec.training.initialization import resolved
from facerec.verification import Bench, pack_bench

ARMS = ("without SEC", "with SEC")


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


def study(
    recipe: Recipe,
    bench: Bench,
    attributes: Attributes,
    seeds: list[int],
    out: Path,
    targets: tuple[str, ...],
    replicates: int = 2000,
) -> tuple[list[str], BaselineComparison]:
    """Train, audit and compare both arms; return what each audit found, and the changes."""
    said, embedded = [], {}
    for seed in seeds:
        for arm in ARMS:
            model = load_model(train(recipe, seed, arm, out / "runs"))
            embeddings = embed_images(model, bench.images, flip=True)
            audited = audit_embeddings(
                embeddings,
                attributes,
                settings=AuditSettings(targets=targets, replicates=replicates),
                source=f"seed {seed} {arm}",
            )
            embedded[seed, arm] = embeddings
            declared = [finding for finding in audited.findings if not finding.exploratory]
            said += [f"seed {seed} {arm}: {finding.text}" for finding in declared]
    joined = join(attributes, embedded[seeds[0], ARMS[0]])
    groups = joined.groupings[0]
    comparison = compare_runs(
        [RunPair(seed, *(embedded[seed, arm] for arm in ARMS)) for seed in seeds],
        joined.subjects,
        groups.codes,
        groups.names,
        pairs=bench.pairs,
        targets=targets,
    )
    return said, comparison


def answer(said: list[str], comparison: BaselineComparison) -> Iterator[str]:
    """Yield the lines of the answer, in Markdown."""
    yield "# Does SEC change what norms and error rates have to do with groups?\n"
    yield from (f"- {line}" for line in said)
    yield "\n| figure | without SEC | with SEC | change [95 %] | same sign | conclusion |"
    yield "|---|---|---|---|---|---|"
    for change in comparison.changes:
        yield f"| {' | '.join(_cells(change))} |"
    yield ""
    yield from (f"- {text}" for text in (*comparison.notes, *READING))


def _cells(change: Change) -> list[str]:
    by = f"{number(change.value, '+.3g')} {limits(change.interval, form='+.3g')}".strip()
    sign = f"{change.same_sign}/{len(change.seeds)}" if change.value is not None else "–"
    ends = (number(change.baseline), number(change.treated))
    return [change.name, *ends, by, sign, change.remark or change.conclusion]


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
    said, comparison = study(recipe, bench, attributes, given.seeds, given.out, tuple(given.fmr))
    text = "\n".join(answer(said, comparison))
    (given.out / "answer.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
