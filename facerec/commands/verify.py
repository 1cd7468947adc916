"""``facerec verify``: a model or embeddings, and a bench → figures with intervals."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tyro

import facerec
from facerec.base.defaults import Compat
from facerec.base.errors import MetricError
from facerec.base.files import write_json
from facerec.commands.cli import Console, exit_on_error, run_command
from facerec.commands.embedder import (
    DEFAULT,
    Embedder,
    print_model,
    print_notes,
    read_stored,
    unlike_note,
)
from facerec.commands.sources import open_benches, open_image_benches
from facerec.commands.verified import FIGURES, Figures, Verified, tell
from facerec.records.images import SUFFIXES
from facerec.report.progress import progress_bar
from facerec.report.table import Table, print_facts

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel
    from facerec.verification import Bench, VerificationResult
    from facerec.verification.identification import IdentificationResult


def verify(
    bench: tuple[str, ...] = (),
    data: Path | None = None,
    pairs: Path | None = None,
    format: str | None = None,
    images: Path | None = None,
    overlap: Path | None = None,
    embeddings: Path | None = None,
    compare: Path | None = None,
    try_preprocessing: bool = False,
    compat: Compat | None = None,
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = DEFAULT,
    figures: tyro.conf.OmitArgPrefixes[Figures] = FIGURES,
) -> list[Verified]:
    """Verify a model on LFW, CFP, AgeDB, RFW, IJB and others, or on pair lists of your own.

    Prints accuracy over ten folds, true positive rates (TPR) at fixed false positive rates (FPR),
    thresholds, AUC, EER and embedding norms, each with its counts and 95 % interval. Intervals
    allow for pairs that share a person. It measures and changes nothing: what decides is found by
    facerec calibrate. Without --model the newest run is verified. For a table of scores there is
    facerec verify-scores.

    Args:
        bench: verification sets: names (lfw, cfp_fp, agedb_30, …; ijbb, ijbc, tinyface) or packs
            (.bin, .npz); by default lfw.
        data: folder to look for the verification sets in, before FACEREC_DATA and data/.
        pairs: a list of pairs in place of --bench, or the folder of lists for CFP and RFW.
        format: form of the list: lfw, xqlfw, calfw, cplfw, cfp-ff, cfp-fp, agedb, rfw, flat or
            parquet; not needed where its suffix tells, as .mat or .parquet.
        images: folder that the paths in the list of --pairs begin at.
        overlap: a list of facerec overlap between the training set and the bench: figures without
            the pairs that show a person of both are printed as well. Lists beside the model's
            training set are found without it.
        embeddings: a file of facerec embed in place of a model, or a .parquet table with the
            columns image_id and embedding (a list).
        compare: another model, or embeddings, for the same pairs: the differences are printed, with
            intervals of the paired differences.
        try_preprocessing: do not verify, but find out where faces must lie in their crops and how
            pixels must be prepared: say what a file from elsewhere holds, find the placement by the
            norms, score the likely channel orders and scalings on 1,200 pairs of the bench, and
            print the flags of the best.
        compat: also compute the accuracy as this project does.
        embedder: how images become embeddings.
        figures: figures to print and files to write.
    """
    from facerec.embedding.file import is_embeddings
    from facerec.embedding.loading import newest_run
    from facerec.embedding.torch_model import TorchModel
    from facerec.galleries.known_overlaps import given_overlap, training_overlaps, without_known
    from facerec.records.quality import read_quality
    from facerec.verification import VerificationResult

    # Whatever can be wrong is found before minutes of embedding.
    fpr, console = figures.check(), Console()
    if embeddings is not None and embedder.model is not None:
        raise MetricError("--embeddings take the place of a model; leave one of them out")
    if embeddings is not None and is_embeddings(compare or embeddings):
        embedder.refuse_unused()
    names = bench or (("lfw",) if pairs is None else ())
    which = names, pairs, format, images, data
    paths = [embeddings or embedder.model or newest_run(), *([] if compare is None else [compare])]
    if try_preprocessing:
        trial, model = open_image_benches(*which)[0], embedder.load(paths[0], calibrated=False)
        _try_preprocessing(model, trial, embedder, figures.json, console)
        return []
    if figures.quality is None:
        opened = open_benches(*which)
    else:
        opened = open_image_benches(*which)
        for one in opened:
            read_quality(figures.quality, one.images.ids)
    sources: list[tuple[Embeddings | EmbeddingModel, Mapping[str, Any]]] = []
    known = []
    for path in paths:
        if path == embeddings or is_embeddings(path):
            stored = read_stored(path, embedder.column_names, console)
            sources.append((stored, {**stored.note.get("model", {}), "name": path.stem}))
            continue
        model = embedder.load(path)
        sources.append((model, model.describe()))
        if isinstance(model, TorchModel):
            known += training_overlaps(model.recipe.get("data"))
    if overlap is not None:
        known = [given_overlap(overlap, opened)]
    # Both sides of a comparison are scored on the same pairs, whoever was trained on what.
    variants = []
    for each in opened:
        others, said = without_known(each, known)
        print_notes(said, console)
        variants.append((each, others))
    sides = []
    for source, about in sources:
        side = Verified()
        for each, others in variants:
            found = _embed(source, each, embedder, console, told=each is not opened[0])
            for result in _judge(found, each, others, compat, fpr):
                told = replace(result, model=about)
                if isinstance(told, VerificationResult):
                    # Two files of one name in different folders are two benches.
                    longer = f"{each.source.get('path')}{told.name.removeprefix(each.name)}"
                    side.results[longer if told.name in side.results else told.name] = told
                else:
                    side.searches.append(told)
        sides.append(side)
    tell(sides, figures, console)
    return sides


def _embed(
    source: Embeddings | EmbeddingModel,
    bench: Bench,
    embedder: Embedder,
    console: Console,
    told: bool,
) -> Embeddings:
    """Return the embeddings of a bench's images, by their ids or by the model.

    What shows that crops do not lie as the network expects is said.
    """
    from facerec.embedding.extraction import Embeddings, constant, draw_faces
    from facerec.embedding.placement import SAMPLE, alike_words, better_placement
    from facerec.verification import score_pairs, select_embeddings
    from facerec.verification.templates import TemplateBench

    path = bench.source.get("path", bench.name)
    console.print(f"bench {path}")
    if isinstance(source, Embeddings):
        found = select_embeddings(source, bench.images.ids, bench.name)
        print_notes([constant(found) or ""], console)
    else:
        found = embedder.embed(
            path, bench.images, console, bench.aligner, network=source, told=told
        )
    print_notes([unlike_note(found, "counted in all figures")], console)
    if not isinstance(bench, TemplateBench):
        others = bench.pairs[~bench.pairs.issame]
        scores = score_pairs(found.vectors, others.first, others.second)
        print_notes([alike_words(float(np.nanmean(scores)) if len(others) else 0.0)], console)
        if not isinstance(source, Embeddings) and not embedder.unchecked:
            rows = np.flatnonzero(np.isfinite(found.norms))
            faces = draw_faces(source, bench.images, rows, SAMPLE, embedder.aligner)
            print_notes([better_placement(source, faces)], console)
    return found


def _judge(
    embeddings: Embeddings,
    bench: Bench,
    others: Sequence[Bench],
    compat: Compat | None,
    fpr: Sequence[str],
) -> Iterator[VerificationResult | IdentificationResult]:
    """Yield the results of a bench, and of variants with other pairs.

    Templates are compared, and searched for, with raw and with unit norms.
    """
    from facerec.verification import evaluate, evaluate_embeddings, score_pairs
    from facerec.verification.identification import identify
    from facerec.verification.templates import TemplateBench, template_vectors

    if not isinstance(bench, TemplateBench):
        for each in (bench, *others):
            yield evaluate_embeddings(embeddings, each, compat=compat, fpr=fpr)
        return
    weightings: tuple[Literal["raw", "unit"], ...] = ("raw", "unit")
    for weighting in weightings:
        pooled = template_vectors(embeddings.vectors, bench, weighting)
        name = f"{bench.name} ({weighting} norms)"
        facts: Any = {
            "flip": embeddings.flip,
            "align": embeddings.note.get("align"),
            "score": pooled.score,
            "source": bench.source,
        }
        if len(bench.pairs):
            yield evaluate(
                score_pairs(pooled.vectors, bench.pairs.first, bench.pairs.second),
                bench.pairs,
                name=name,
                notes=(*bench.notes, *pooled.notes),
                subjects_from=bench.subjects_from,
                items=bench.template_ids,
                fpr=fpr,
                **facts,
            )
        if bench.probes is not None:
            yield replace(identify(pooled.vectors, bench, name=name), **facts)


def _try_preprocessing(
    model: EmbeddingModel,
    bench: Bench,
    embedder: Embedder,
    json: Path | None,
    console: Console,
) -> None:
    """Say what the file holds, compare likely ways of preprocessing and say which is best."""
    from facerec.embedding.model import OnnxModel
    from facerec.verification.preprocessing import try_preprocessing

    if isinstance(model, OnnxModel):
        print_facts(model.file.facts(), console)
    print_model(model, False, embedder.aligner, console)
    with progress_bar(console, "images") as progress:
        trials = try_preprocessing(model, bench, align=embedder.aligner, progress=progress)
    placed = [(*map(str, at), f"{norm:.2f}") for at, norm in trials.placements.items()]
    caption = "where faces lie: mean raw norm of the images, moved right and down by pixels"
    console.print(Table(caption, ("right", "down", "mean norm"), placed[:5]).terminal())
    caption = f"ways of preprocessing on {trials.pairs:,} pairs of {trials.bench}, no flip"
    console.print(trials.table(caption).terminal())
    console.print(trials.basis, style="dim italic")
    console.print(trials.verdict, style="bold")
    if json is not None:
        document = {"facerec": facerec.__version__, "model": model.describe()}
        write_json(json, {**document, "preprocessing": trials.to_json()})
        console.print(f"figures: {json}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; two photos are for another one."""
    words = sys.argv[1:] if argv is None else argv
    with exit_on_error():
        if photos := [word for word in words if Path(word).suffix.lower() in SUFFIXES]:
            same = f"facerec same {shlex.join(photos)} tells whether they show one person"
            raise MetricError(f"facerec verify scores a model on a set of pairs; {same}")
    run_command(verify, argv)
