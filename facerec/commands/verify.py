"""``facerec verify``: a model, embeddings or scores, and a bench → figures with intervals."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np
import tyro

import facerec
from facerec.commands.benches import open_benches
from facerec.commands.cli import Console, listed_rates, refuse_unused, run_command
from facerec.commands.models import preprocessing_words, print_embeddings, print_model
from facerec.commands.networks import NETWORK, Network, refuse_network_flags
from facerec.defaults import FPR_TARGETS, REPLICATES, Compat, Metric
from facerec.embedding.align import Aligner, parse_align
from facerec.errors import MetricError, ModelError
from facerec.files import write_json
from facerec.limits import Seed
from facerec.progress import section
from facerec.records.images import ImageSource
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel
    from facerec.galleries.overlap_report import KnownOverlap
    from facerec.verification import Bench, VerificationResult
    from facerec.verification.compare import Comparison
    from facerec.verification.identification import IdentificationResult
    from facerec.verification.templates import TemplateBench

Verified: TypeAlias = "tuple[dict[str, VerificationResult], list[IdentificationResult]]"
"""Results of 1:1 by name, and those of 1:N."""

LEAST_REPLICATES = 40
"""With fewer, 2.5 % of them are less than one, and no limit of an interval can be read."""
MOST_REPLICATES = 100_000

NORM_WEIGHTINGS: tuple[Literal["raw", "unit"], ...] = ("raw", "unit")


class Settings(TypedDict):
    """How figures are computed, the same for every bench and both sides of a comparison."""

    fpr: tuple[str, ...]
    metrics: tuple[Metric, ...]
    replicates: int
    seed: int


@dataclass(frozen=True)
class Source:
    """Something that has embeddings for images."""

    embed: Callable[[ImageSource, str, Aligner | None], Embeddings]
    """Returns those of all images of a bench of this name; points that come with it align them
    where no other way was asked for."""
    model: Mapping[str, Any]
    """What a report must say about the model."""
    training_data: Mapping[str, Any]
    """The section ``data`` of the recipe that trained the model; empty if unknown."""


def verify(
    bench: tuple[str, ...] = (),
    data: Path | None = None,
    pairs: Path | None = None,
    format: str | None = None,
    images: Path | None = None,
    model: Path | None = None,
    runs: Path = Path("runs"),
    embeddings: Path | None = None,
    scores: Path | None = None,
    distances: bool = False,
    compare: Path | None = None,
    overlap: Path | None = None,
    align: str | None = None,
    align_threshold: float | None = None,
    try_preprocessing: bool = False,
    flip: bool = True,
    fpr: tuple[str, ...] = FPR_TARGETS,
    compat: Compat | None = None,
    metrics: tuple[Metric, ...] = (),
    on_error: Literal["error", "skip"] = "error",
    replicates: int = REPLICATES,
    seed: Seed = 0,
    out: Path | None = None,
    with_images: bool = False,
    json: Path | None = None,
    roc: Path | None = None,
    network: tyro.conf.OmitArgPrefixes[Network] = NETWORK,
) -> None:
    """Verify a model on LFW, CFP, AgeDB, RFW, IJB and others, or on pair lists of your own.

    Prints accuracy over ten folds, TPR at fixed FPRs, thresholds, AUC, EER and embedding norms,
    each with its counts and 95 % interval. Intervals allow for pairs that share a person.

    Args:
        bench: names (lfw, cfp_fp, agedb_30, …; ijbb, ijbc, tinyface) or packs (.bin, .npz); by
            default lfw.
        data: folder of the benches; then FACEREC_DATA and data/ are looked at.
        pairs: a pair list in place of --bench, or the folder of lists for CFP and RFW.
        format: form of the pair list: lfw, xqlfw, calfw, cplfw, sllfw, cfp-ff, cfp-fp, agedb, rfw,
            flat, parquet; a suffix such as .mat or .parquet says enough.
        images: folder that the paths of --pairs are relative to.
        model: a run folder, a .safetensors, .pth or .onnx file; by default the newest run.
        runs: folder of all runs, of which the newest is taken without --model.
        embeddings: a file of facerec embed in place of a model, or a .csv or .parquet table of
            image_id, e0, e1, … (or a column embedding with a list).
        scores: a table of label,score (or bob's columns) in place of model and bench.
        distances: the scores are distances: smaller means more alike.
        compare: another model, embeddings or, with --scores, scores for the same pairs: prints the
            differences with intervals that follow the pairs.
        overlap: a list of facerec overlap between the training set and the bench: figures are
            printed without the pairs that show a person of both, too. Lists beside the model's
            training set are looked for.
        align: find the face in photos of any size: a .csv of points
            (image_id,x1,y1,…,x5,y5), insightface, or a YuNet .onnx file.
        align_threshold: least score of a face that the detector of --align may find, 0 to 1;
            default 0.6 for YuNet, 0.5 for insightface.
        try_preprocessing: score the likely channel orders and scalings of a file of others on two
            folds of the bench, name the best and whether others can be told from it, and end.
        flip: sum the raw embeddings of each image and its mirror image.
        fpr: false positive rates at which the true positive rate is read, as 1e-3,1e-4; taken
            exactly.
        compat: insightface or facex-zoo adds the accuracy as that project computes it.
        metrics: further figures: cost adds the least detection costs at priors 0.01 and 0.001
            (NIST's minDCF) and the least Cllr, pauc partial areas under the ROC.
        on_error: what an image that does not decode does: error ends the command, skip makes its
            pairs failures to acquire, which are counted and listed.
        replicates: bootstraps over subjects behind the intervals of TPR@FPR and of differences, 40
            or more; 0 for intervals of TPR@FPR without them.
        seed: of the bootstraps.
        out: folder for report.html, report.json, tables and figures.
        with_images: show the hardest pairs in the report; it then holds photos of people.
        json: write all figures to this file.
        roc: draw the ROC curves into this .png, .svg or .pdf file.
        network: how the network is loaded.
    """
    from facerec.embedding.extraction import embed_images
    from facerec.embedding.file import is_embeddings
    from facerec.embedding.model import newest_run
    from facerec.embedding.torch_model import TorchModel
    from facerec.report.figures import check_plot_path
    from facerec.verification.compare import compare as compare_results
    from facerec.verification.page import check_report_folder
    from facerec.verification.report import print_comparison, print_identification, print_result

    # Whatever can be wrong is found before minutes of embedding.
    fpr = listed_rates(fpr)
    if roc is not None:
        check_plot_path(roc)
    if out is not None:
        check_report_folder(out)
    if with_images and (out is None or scores is not None):
        raise MetricError("--with-images shows pictures in the report of a bench; give --out too")
    for file in (json, roc):
        if file and out and file.resolve().is_relative_to(out.resolve()):
            raise MetricError(
                f"{file}: lies in {out}, which holds the report and nothing else; choose another "
                "folder"
            )
    if replicates and not LEAST_REPLICATES <= replicates <= MOST_REPLICATES:
        raise MetricError(
            f"--replicates is {replicates}; give {LEAST_REPLICATES} to {MOST_REPLICATES:,}, or 0 "
            "for intervals without a bootstrap"
        )
    if not replicates and (compare is not None or try_preprocessing):
        raise MetricError(
            "intervals of differences are bootstraps alone; leave out --replicates 0 with "
            "--compare and --try-preprocessing"
        )
    settings = Settings(fpr=fpr, metrics=metrics, replicates=replicates, seed=seed)
    console = Console(highlight=False)

    if scores is not None or (embeddings is not None and is_embeddings(compare or embeddings)):
        refuse_network_flags(network, flip, align, align_threshold)
    names = bench or (("lfw",) if pairs is None else ())

    def source(path: Path | None) -> Source:
        if path is not None and (path == embeddings or is_embeddings(path)):
            return _stored(path, console)
        loaded = network.load(path or newest_run(runs))
        aligner = parse_align(align, align_threshold)
        print_model(loaded, flip, aligner, console)

        def embed(images: ImageSource, name: str, points: Aligner | None) -> Embeddings:
            with progress_bar(console, "images") as progress:
                return embed_images(
                    loaded,
                    images,
                    flip=flip,
                    align=aligner or points,
                    batch_size=network.batch_size,
                    on_error=on_error,
                    progress=section(progress, f"embedding {name}"),
                )

        recipe = loaded.recipe if isinstance(loaded, TorchModel) else {}
        data = recipe.get("data")
        return Source(embed, loaded.describe(), data if isinstance(data, Mapping) else {})

    if try_preprocessing:
        if scores is not None or embeddings is not None or compare is not None:
            raise MetricError("--try-preprocessing needs a model and a bench alone")
        tried = network.load(model or newest_run(runs))
        (opened, *_) = open_benches(names, pairs, format, images, data)
        aligner = parse_align(align, align_threshold)
        _try_preprocessing(tried, opened, aligner, settings, console, json)
        return
    benches: list[Bench | TemplateBench] = []
    paths = [scores or embeddings or model, *([] if compare is None else [compare])]
    if scores is not None:
        if bench or pairs is not None or model is not None or embeddings is not None:
            raise MetricError(
                "--scores needs neither pairs nor a model; leave out --bench, --pairs, --model and "
                "--embeddings"
            )
        refuse_unused(
            "belongs to images of a bench, and scores have none",
            {
                "--format": format,
                "--images": images,
                "--overlap": overlap,
                "--compat": compat,
            },
        )
        both = [_score_file(path, distances, settings) for path in paths if path is not None]
    else:
        if distances:
            raise MetricError("--distances says what --scores holds; leave it out without --scores")
        if model is not None and embeddings is not None:
            raise MetricError("--model and --embeddings exclude each other; give one of them")
        benches = open_benches(names, pairs, format, images, data)
        if roc is not None and all(bench.pairs is None for bench in benches):
            raise MetricError(
                f"{benches[0].name}: it has searches alone, and a ROC shows pairs; leave out --roc"
            )
        sources = [source(path) for path in paths]
        # Both sides of a comparison are scored on the same pairs, whoever was trained on what.
        known = (
            [_given_overlap(overlap, benches)]
            if overlap is not None
            else [known for each in sources for known in training_overlaps(each.training_data)]
        )
        variants = [(bench, _without_known(bench, known, console)) for bench in benches]
        both = [_verify_all(each, variants, settings, compat, console) for each in sources]
    (results, searches), (others, more), *_ = *both, ({}, [])
    comparisons = {
        name: compare_results(results[name], other, replicates, seed)
        for name, other in others.items()
    }
    for name, result in results.items():
        print_result(result, console)
        if name in comparisons:
            print_comparison(comparisons[name], console)
    searches = [*searches, *more]
    for identification in searches:
        print_identification(identification, console)
    _save(results, comparisons, searches, benches, console, out, with_images, json, roc)


def _try_preprocessing(
    model: EmbeddingModel,
    bench: Bench | TemplateBench,
    align: Aligner | None,
    settings: Settings,
    console: Console,
    json: Path | None,
) -> None:
    """Compare likely ways of preprocessing, print them and say which is best."""
    from facerec.embedding.torch_model import TorchModel
    from facerec.verification.preprocessing import try_preprocessing as compare_preprocessing
    from facerec.verification.report import print_trials
    from facerec.verification.templates import TemplateBench

    if isinstance(model, TorchModel) and not model.assumed:
        raise ModelError(
            f"{model.path}: it says itself what it wants, "
            f"{preprocessing_words(model.preprocessing)}; leave out --try-preprocessing"
        )
    if isinstance(bench, TemplateBench):
        raise MetricError(
            f"{bench.name}: it compares templates; try ways of preprocessing on pairs of images, "
            "such as lfw"
        )
    print_model(model, False, align, console)
    with progress_bar(console, "images") as progress:
        trials = compare_preprocessing(
            model,
            bench,
            align=align,
            batch_size=model.batch_size,
            replicates=settings["replicates"],
            seed=settings["seed"],
            progress=progress,
        )
    print_trials(trials, console)
    if json is not None:
        document = {"facerec": facerec.__version__, "model": model.describe()}
        write_json(json, {**document, "preprocessing": trials.to_json()})
        console.print(f"figures: {json}", soft_wrap=True)


def _stored(path: Path, console: Console) -> Source:
    """Open an embeddings file, which is joined by image id, and named after the file."""
    from facerec.embedding.file import read_embeddings
    from facerec.verification import select_embeddings

    embeddings = read_embeddings(path)
    print_embeddings(path, embeddings, console)
    return Source(
        lambda images, name, points: select_embeddings(embeddings, images.ids, name),
        {**embeddings.note.get("model", {}), "name": path.stem},
        {},
    )


def _verify_all(
    source: Source,
    variants: Sequence[tuple[Bench | TemplateBench, Sequence[Bench]]],
    settings: Settings,
    compat: Compat | None,
    console: Console,
) -> Verified:
    """Return the 1:1 results by name, and those of 1:N.

    Beside each bench stand variants of it, with the same images and other pairs.
    """
    from facerec.verification import evaluate_embeddings
    from facerec.verification.templates import TemplateBench

    results: dict[str, VerificationResult] = {}
    searches: list[IdentificationResult] = []
    for bench, others in variants:
        console.print(f"bench {bench.source.get('path', bench.name)}", soft_wrap=True)
        if isinstance(bench, TemplateBench):
            verified, identified = _verify_templates(source, bench, settings)
            searches += identified
        else:
            embeddings = source.embed(bench.images, bench.name, None)
            verified = {}
            for each in (bench, *others):
                result = evaluate_embeddings(embeddings, each, compat=compat, **settings)
                verified[each.name] = replace(result, model=source.model)
        for name, result in verified.items():
            # Two files of one name in different folders are two benches.
            longer = f"{bench.source.get('path')}{name.removeprefix(bench.name)}"
            results[name if name not in results else longer] = result
    return results, searches


def _given_overlap(path: Path, benches: Sequence[Bench | TemplateBench]) -> KnownOverlap:
    """Read the overlap that the user has given, which must be of one of the benches."""
    from facerec.galleries.overlap_report import read_overlap
    from facerec.verification import Bench

    given = read_overlap(path)
    if not any(given.is_of(bench) for bench in benches if isinstance(bench, Bench)):
        raise MetricError(
            f"{given.path}: its second set, {str(given.b.get('path'))!r}, is none of the benches; "
            "compute the overlap with the bench that is verified"
        )
    return given


def _without_known(
    bench: Bench | TemplateBench, known: Sequence[KnownOverlap], console: Console
) -> list[Bench]:
    """Return the bench without the pairs of people who were trained on, if it has such pairs."""
    from facerec.verification.templates import TemplateBench

    if isinstance(bench, TemplateBench):
        return []
    pairs, notes = bench.pairs, []
    clean = np.ones(len(pairs), dtype=bool)
    for overlap in {overlap.path.resolve(): overlap for overlap in known}.values():
        if not overlap.is_of(bench):
            continue
        said = f"{overlap.subjects:,} subjects of the training set are probably in {bench.name}"
        trained_on = np.isin(bench.images.ids, list(overlap.images))
        shown = trained_on[pairs.first] | trained_on[pairs.second]
        if not shown.any():
            console.print(f"{said} ({overlap.path})", soft_wrap=True)
            continue
        count = f"{np.count_nonzero(shown):,} of {len(pairs):,} pairs"
        console.print(
            f"warning: {said}, in {count} ({overlap.path}); figures with and without these pairs "
            "follow",
            style="yellow",
            soft_wrap=True,
        )
        notes.append(
            f"{count} show a person who is probably in the training set ({overlap.path}) and are "
            "left out"
        )
        clean &= ~shown
    if not notes:
        return []
    if not (pairs.issame[clean].any() and (~pairs.issame[clean]).any()):
        console.print(
            "warning: without these pairs there are not both same and different ones, so that "
            "no figures can be given",
            style="yellow",
        )
        return []
    folds = None
    if pairs.folds is not None:  # those that have pairs left, numbered anew
        folds = np.unique(pairs.folds[clean], return_inverse=True)[1].astype(np.int64)
        folds = folds if folds.max() else None
    return [
        replace(
            bench,
            name=f"{bench.name} without people of the training set",
            pairs=replace(
                pairs,
                first=pairs.first[clean],
                second=pairs.second[clean],
                issame=pairs.issame[clean],
                folds=folds,
            ),
            notes=(*bench.notes, *notes),
        )
    ]


def training_overlaps(data: Mapping[str, Any]) -> list[KnownOverlap]:
    """Return the overlaps whose facts lie beside a model's training set, and are of that set.

    A list that was left out in training is none: its people were not trained on. ``data`` is the
    recipe's section, empty where it is not known.
    """
    from facerec.galleries.overlap_report import SUFFIX, facts_path, read_overlap

    training_sets = [data, *data.get("also", ())] if data else []
    known = []
    for training_set in training_sets:
        path = Path(str(training_set.get("path", "")))
        excluded = training_set.get("exclude")
        folder = path if path.is_dir() else path.parent
        for file in sorted(folder.glob(f"*{SUFFIX}")) if path.exists() else ():
            overlap = read_overlap(file)
            if excluded is not None and facts_path(Path(str(excluded))).resolve() == file.resolve():
                continue
            if overlap.is_of_records(path):
                known.append(overlap)
    return known


def _verify_templates(source: Source, bench: TemplateBench, settings: Settings) -> Verified:
    """Return the results of 1:1 and of 1:N, each with raw and with unit norms."""
    from facerec.verification import evaluate, score_pairs
    from facerec.verification.identification import identify
    from facerec.verification.templates import template_vectors

    results: dict[str, VerificationResult] = {}
    searches: list[IdentificationResult] = []
    embeddings = source.embed(bench.images, bench.name, bench.aligner())
    weighted = bench.detector_scores is not None
    for weighting in NORM_WEIGHTINGS:
        pooled = template_vectors(
            embeddings.vectors, bench, norm_weighting=weighting, detector_score=weighted
        )
        name = f"{bench.name} ({weighting} norms)"
        facts: Any = {
            "flip": embeddings.flip,
            "align": embeddings.note.get("align"),
            "score": pooled.score,
            "model": source.model,
            "source": bench.source,
        }
        notes = (*bench.notes, *pooled.notes)
        if bench.pairs is not None:
            scores = score_pairs(pooled.vectors, bench.pairs.first, bench.pairs.second)
            result = evaluate(
                scores,
                bench.pairs,
                name=name,
                notes=notes,
                subjects_from=bench.subjects_from,
                items=bench.template_ids,
                reasons=dict.fromkeys(
                    np.flatnonzero(np.isnan(scores)).tolist(), "a template has no embedding"
                ),
                **settings,
            )
            results[name] = replace(result, **facts)
        if bench.probes is not None:
            searches.append(replace(identify(pooled.vectors, bench), name=name, **facts))
    return results, searches


def _score_file(path: Path, distances: bool, settings: Settings) -> Verified:
    from facerec.verification import evaluate
    from facerec.verification.protocols import read_scores

    scored = read_scores(path, distances=distances)
    result = evaluate(
        scored.scores,
        scored.pairs(),
        name=path.stem,
        notes=scored.notes,
        subjects_from="the list",
        **settings,
    )
    return {"scores": replace(result, score=scored.kind, source=scored.source)}, []


def _keep_thresholds(results: Mapping[str, VerificationResult], console: Console) -> None:
    """Leave the thresholds of a model beside it, for `facerec same` and `facerec.load`."""
    from facerec.embedding.bundle import is_bundle
    from facerec.embedding.recognizer import thresholds_file
    from facerec.export.thresholds import result_thresholds

    first = next(iter(results.values()), None)
    model = {} if first is None else first.model or {}
    rows = [row for result in results.values() for row in result_thresholds(result)]
    path = Path(model.get("path") or "")
    if not rows or not path.is_file() or not isinstance(rows[0]["flip"], bool):
        return
    # A bundle has its own, and is never changed; root may write where nobody is meant to.
    writable = path.parent.stat().st_mode & 0o222 and os.access(path.parent, os.W_OK)
    if is_bundle(path.parent) or not writable:
        return
    write_json(thresholds_file(path), {"sha256": model["sha256"], "thresholds": rows})
    console.print(f"thresholds: {thresholds_file(path)}", soft_wrap=True)


def _save(
    results: Mapping[str, VerificationResult],
    comparisons: Mapping[str, Comparison],
    searches: Sequence[IdentificationResult],
    benches: Sequence[Bench | TemplateBench],
    console: Console,
    out: Path | None,
    with_images: bool,
    json: Path | None,
    roc: Path | None,
) -> None:
    """Write what was asked for and say where it is."""
    from facerec.verification import Bench
    from facerec.verification.page import write_report
    from facerec.verification.plots import plot_roc

    _keep_thresholds(results, console)
    if json is not None:
        figures: dict[str, Any] = {
            "facerec": facerec.__version__,
            "results": [result.to_json() for result in results.values()],
        }
        if comparisons:
            figures["comparisons"] = [each.to_json() for each in comparisons.values()]
        if searches:
            figures["identification"] = [each.to_json() for each in searches]
        write_json(json, figures)
        console.print(f"figures: {json}", soft_wrap=True)
    if roc is not None:
        plot_roc(
            {
                name if result.model is None else f"{result.model['name']}, {name}": result
                for name, result in results.items()
            },
            roc,
        )
        console.print(f"ROC: {roc}", soft_wrap=True)
    if out is not None:
        pictures = {
            bench.name: bench.images.encoded for bench in benches if isinstance(bench, Bench)
        }
        write_report(
            out,
            results,
            comparisons=list(comparisons.values()),
            searches=searches,
            pictures=pictures if with_images else None,
            command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        )
        console.print(f"report: {out / 'report.html'}", soft_wrap=True)


main = partial(run_command, verify)
