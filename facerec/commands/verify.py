"""``facerec verify``: a model or embeddings, and a bench → figures with intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tyro

import facerec
from facerec.commands.benches import open_benches
from facerec.commands.cli import Console, run_command
from facerec.commands.figures import (
    COMPUTATION,
    OUTPUT,
    Computation,
    Output,
    Verified,
    tell,
)
from facerec.commands.known_overlaps import given_overlap, training_overlaps, without_known
from facerec.commands.models import preprocessing_words, print_embeddings, print_model
from facerec.commands.networks import NETWORK, Network, refuse_network_flags
from facerec.defaults import Compat
from facerec.embedding.align import Aligner, parse_align
from facerec.errors import MetricError, ModelError
from facerec.files import write_json
from facerec.limits import Flags
from facerec.progress import section
from facerec.records.images import ImageSource
from facerec.report.progress import progress_bar
from facerec.report.table import fact_lines

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel
    from facerec.verification import Bench, VerificationResult
    from facerec.verification.templates import TemplateBench


@dataclass(frozen=True)
class Benches(Flags):
    """Which pairs are verified."""

    bench: tuple[str, ...] = ()
    """Names (lfw, cfp_fp, agedb_30, …; ijbb, ijbc, tinyface) or packs (.bin, .npz); by default
    lfw."""
    data: Path | None = None
    """Folder of the benches; then FACEREC_DATA and data/ are looked at."""
    pairs: Path | None = None
    """A pair list in place of --bench, or the folder of lists for CFP and RFW."""
    format: str | None = None
    """Form of the pair list: lfw, xqlfw, calfw, cplfw, cfp-ff, cfp-fp, agedb, rfw, flat,
    parquet; a suffix such as .mat or .parquet says enough."""
    images: Path | None = None
    """Folder that the paths of --pairs are relative to."""
    overlap: Path | None = None
    """A list of facerec overlap between the training set and the bench: figures are printed without
    the pairs that show a person of both, too. Lists beside the model's training set are looked
    for."""

    def open(self) -> list[Bench | TemplateBench]:
        """Open them; see `open_benches`."""
        names = self.bench or (("lfw",) if self.pairs is None else ())
        return open_benches(names, self.pairs, self.format, self.images, self.data)


@dataclass(frozen=True)
class Views(Flags):
    """How images become embeddings."""

    flip: bool = True
    """Sum the raw embeddings of each image and its mirror image."""
    align: str | None = None
    """Find the face in photos of any size: a .csv of points (image_id,x1,y1,…,x5,y5), insightface,
    or a YuNet .onnx file."""
    align_threshold: float | None = None
    """Least score of a face that the detector of --align may find, 0 to 1; default 0.6 for YuNet,
    0.5 for insightface."""
    on_error: Literal["error", "skip"] = "error"
    """What an image that does not decode does: error ends the command, skip makes its pairs
    failures to acquire, which are counted and listed."""


BENCHES, VIEWS = Benches(), Views()


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
    benches: tyro.conf.OmitArgPrefixes[Benches] = BENCHES,
    model: Path | None = None,
    runs: Path = Path("runs"),
    embeddings: Path | None = None,
    compare: Path | None = None,
    try_preprocessing: bool = False,
    compat: Compat | None = None,
    views: tyro.conf.OmitArgPrefixes[Views] = VIEWS,
    computation: tyro.conf.OmitArgPrefixes[Computation] = COMPUTATION,
    output: tyro.conf.OmitArgPrefixes[Output] = OUTPUT,
    network: tyro.conf.OmitArgPrefixes[Network] = NETWORK,
) -> None:
    """Verify a model on LFW, CFP, AgeDB, RFW, IJB and others, or on pair lists of your own.

    Prints accuracy over ten folds, TPR at fixed FPRs, thresholds, AUC, EER and embedding norms,
    each with its counts and 95 % interval. Intervals allow for pairs that share a person. Scores
    alone: facerec verify-scores.

    Args:
        benches: which pairs are verified.
        model: a run folder, a bundle, a .safetensors or .onnx file; by default the newest run.
        runs: folder of all runs, of which the newest is taken without --model.
        embeddings: a file of facerec embed in place of a model, or a .parquet table of image_id
            and embedding (a list).
        compare: another model or embeddings for the same pairs: prints the differences with
            intervals that follow the pairs.
        try_preprocessing: say what a file of others holds, score the likely channel orders and
            scalings on two folds of the bench, name the best and whether others can be told from
            it, and end.
        compat: add the accuracy as that project computes it.
        views: how images become embeddings.
        computation: how figures are computed.
        output: where they go.
        network: how the network is loaded.
    """
    from facerec.embedding.file import is_embeddings
    from facerec.embedding.model import newest_run

    # Whatever can be wrong is found before minutes of embedding.
    settings = computation.settings()
    output.check()
    if embeddings is not None and (model is not None or try_preprocessing):
        raise MetricError("--embeddings take the place of a model; leave one of them out")
    console = Console(highlight=False)
    if embeddings is not None and is_embeddings(compare or embeddings):
        refuse_network_flags(network, views.flip, views.align, views.align_threshold)
    opened = benches.open()
    if try_preprocessing:
        loaded = network.load(model or newest_run(runs))
        _try_preprocessing(loaded, opened[0], views, console, output.json)
        return
    sources = []
    for path in [embeddings or model, *([] if compare is None else [compare])]:
        if path is not None and (path == embeddings or is_embeddings(path)):
            sources.append(_stored(path, console))
        else:
            loaded = network.load(path or newest_run(runs))
            sources.append(_of_model(loaded, views, network.batch_size, console))
    # Both sides of a comparison are scored on the same pairs, whoever was trained on what.
    known = [known for each in sources for known in training_overlaps(each.training_data)]
    if benches.overlap is not None:
        known = [given_overlap(benches.overlap, opened)]
    variants = [(bench, without_known(bench, known, console)) for bench in opened]
    both = [_verify_all(each, variants, settings, compat, console) for each in sources]
    tell(both, output, console)


def _try_preprocessing(
    model: EmbeddingModel,
    bench: Bench | TemplateBench,
    views: Views,
    console: Console,
    json: Path | None,
) -> None:
    """Say what the file holds, compare likely ways of preprocessing and say which is best."""
    from facerec.embedding.model import OnnxModel
    from facerec.report.tidy import figures_table
    from facerec.verification.preprocessing import try_preprocessing
    from facerec.verification.templates import TemplateBench

    if not isinstance(model, OnnxModel):
        raise ModelError(
            f"{model.path}: it says itself what it wants, "
            f"{preprocessing_words(model.preprocessing)}; leave out --try-preprocessing"
        )
    if isinstance(bench, TemplateBench):
        raise MetricError(
            f"{bench.name}: it compares templates; try ways of preprocessing on pairs of images, "
            "such as lfw"
        )
    align = parse_align(views.align, views.align_threshold)
    document = {"facerec": facerec.__version__, "model": model.describe()}
    console.print(fact_lines(model.file.facts()))
    print_model(model, False, align, console)
    with progress_bar(console, "images") as progress:
        trials = try_preprocessing(
            model,
            bench,
            align=align,
            batch_size=model.batch_size,
            progress=progress,
        )
    caption = f"ways of preprocessing on {trials.pairs:,} pairs of {trials.bench}, no flip"
    console.print(figures_table(caption, trials.figures).terminal())
    console.print(trials.basis, style="dim italic", soft_wrap=True)
    console.print(trials.verdict, style="bold", soft_wrap=True)
    if json is not None:
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


def _of_model(model: EmbeddingModel, views: Views, batch_size: int, console: Console) -> Source:
    """Take a model that embeds the images of every bench."""
    from facerec.embedding.extraction import embed_images

    aligner = parse_align(views.align, views.align_threshold)
    print_model(model, views.flip, aligner, console)

    def embed(images: ImageSource, name: str, points: Aligner | None) -> Embeddings:
        with progress_bar(console, "images") as progress:
            return embed_images(
                model,
                images,
                flip=views.flip,
                align=aligner or points,
                batch_size=batch_size,
                on_error=views.on_error,
                progress=section(progress, f"embedding {name}"),
            )

    data = getattr(model, "recipe", {}).get("data")
    return Source(embed, model.describe(), data if isinstance(data, Mapping) else {})


def _verify_all(
    source: Source,
    variants: Sequence[tuple[Bench | TemplateBench, Sequence[Bench]]],
    settings: Mapping[str, Any],
    compat: Compat | None,
    console: Console,
) -> Verified:
    """Verify every bench; beside each stand variants, with the same images and other pairs."""
    from facerec.verification import evaluate_embeddings
    from facerec.verification.templates import TemplateBench

    verified = Verified()
    for bench, others in variants:
        console.print(f"bench {bench.source.get('path', bench.name)}", soft_wrap=True)
        found: dict[str, VerificationResult] = {}
        if isinstance(bench, TemplateBench):
            found = _verify_templates(source, bench, settings, verified)
        else:
            embeddings = source.embed(bench.images, bench.name, None)
            for each in (bench, *others):
                result = evaluate_embeddings(embeddings, each, compat=compat, **settings)
                found[each.name] = replace(result, model=source.model)
        for name, result in found.items():
            # Two files of one name in different folders are two benches.
            longer = f"{bench.source.get('path')}{name.removeprefix(bench.name)}"
            verified.results[name if name not in verified.results else longer] = result
    return verified


def _verify_templates(
    source: Source, bench: TemplateBench, settings: Mapping[str, Any], verified: Verified
) -> dict[str, VerificationResult]:
    """Return the results of 1:1 with raw and with unit norms, and add those of 1:N."""
    from facerec.verification import evaluate, score_pairs
    from facerec.verification.identification import identify
    from facerec.verification.templates import template_vectors

    results: dict[str, VerificationResult] = {}
    embeddings = source.embed(bench.images, bench.name, bench.aligner())
    weightings: tuple[Literal["raw", "unit"], ...] = ("raw", "unit")
    for weighting in weightings:
        pooled = template_vectors(embeddings.vectors, bench, weighting)
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
            verified.searches.append(replace(identify(pooled.vectors, bench, name=name), **facts))
    return results


main = partial(run_command, verify)
