"""``facerec audit``: embeddings and recorded attributes → norms and error rates by group."""

from __future__ import annotations

import inspect
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from facerec.commands.benches import open_benches
from facerec.commands.cli import Console, listed, listed_rates, refuse_unused, run_command
from facerec.commands.models import print_model
from facerec.commands.networks import NETWORK, Network, refuse_network_flags
from facerec.defaults import AUDIT_FPIR_TARGETS, FMR_TARGETS, PERMUTATIONS, REPLICATES, Template
from facerec.embedding.align import parse_align
from facerec.errors import DatasetError, MetricError
from facerec.fairness.no_comparison import NoComparison
from facerec.files import sha256
from facerec.limits import MOST, Limits, Seed
from facerec.progress import Progress, section
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.fairness.attributes import Attributes
    from facerec.fairness.one_to_many import OtherSubjects, SearchPlan
    from facerec.fairness.quality import Quality
    from facerec.fairness.rate_results import Calibration
    from facerec.fairness.result import Audit, InputFile
    from facerec.verification.bench import Bench
    from facerec.verification.protocols import ScoredPairs

ALL = "all"
"""In place of a pair list: every image with every other."""

_ASSERTION = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([-+.\w]+)\s*")
_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_WITH_SCORES = frozenset((
    "group", "out", "attributes", "scores", "distances", "intersect", "subject", "fmr",
    "threshold_from", "allow_inferred_labels", "assertion", "replicates", "seed",
    "device",
))  # fmt: skip
"""Flags that mean something in an audit of scores."""

_FIGURES = ("eta2", "p", "fmr_ratio", "fnmr_ratio")
"""What `--assert` knows of the primary attribute."""


def audit(
    group: tuple[str, ...],
    out: Path,
    attributes: Path | None = None,
    embeddings: Path | None = None,
    model: Path | None = None,
    scores: Path | None = None,
    distances: bool = False,
    intersect: bool = False,
    subject: str = "subject_id",
    bench: str | None = None,
    pairs: str | None = None,
    format: str | None = None,
    images: Path | None = None,
    data: Path | None = None,
    threshold_from: Path | None = None,
    fmr: tuple[str, ...] = FMR_TARGETS,
    covariates: tuple[str, ...] = (),
    quality: Path | None = None,
    baseline: Path | None = None,
    one_to_many: bool = False,
    fpir: tuple[str, ...] = AUDIT_FPIR_TARGETS,
    reference: str | None = None,
    homogeneous: bool = False,
    template: Template = "one",
    allow_inferred_labels: bool = False,
    gating: bool = False,
    confidence: bool = False,
    assertion: Annotated[tuple[str, ...], tyro.conf.arg(name="assert")] = (),
    flip: bool = True,
    align: str | None = None,
    align_threshold: float | None = None,
    on_error: Literal["error", "skip"] = "error",
    network: tyro.conf.OmitArgPrefixes[Network] = NETWORK,
    # The fewest with which a test can reject at 5 %, and with an order statistic in both tails.
    permutations: Annotated[int, Limits(19, MOST)] = PERMUTATIONS,
    replicates: Annotated[int, Limits(40, MOST)] = REPLICATES,
    seed: Seed = 0,
    delete_embeddings: bool = False,
) -> None:
    """Audit embedding norms and error rates by recorded groups of people.

    Answers whether norms differ between groups, whether that can matter, and how FMR and FNMR
    differ at one threshold for all, each with its interval and counts. Groups are given, never
    guessed. The report holds no image, no embedding and no name. Scores alone (--scores) tell of
    error rates, not of norms.

    Args:
        attributes: a .csv file with the columns image_id, subject_id, label_source and groups; with
            --scores only needed if groups are not columns there.
        group: columns of groups, as gender,race; the first one is the primary attribute.
        out: folder for report.html, audit.json, tables, figures and a section for a model card.
        embeddings: a file of facerec embed with raw embeddings, or a .csv or .parquet table of
            image_id, e0, e1, … (or a column embedding with a list).
        model: in place of embeddings: a run folder, a .safetensors, .pth or .onnx file, to embed
            the images of --bench or --pairs on the way.
        scores: in place of embeddings: a table of label, score and groups, where GROUP is a column
            for both sides of a pair, or GROUP_1 and GROUP_2, or bob's bio_ref_GROUP and
            probe_GROUP; subjects in the same way under the name of --subject.
        distances: the scores are distances: smaller means more alike.
        intersect: make the combinations of all groups groups too.
        subject: column of the subject; image_id counts every image as a subject of its own.
        bench: score the pairs of a bench (lfw, cfp_fp, …) or a pack (.bin, .npz).
        pairs: score a pair list, or "all" pairs of images, the default without --bench.
        format: form of the pair list, see facerec verify.
        images: folder that the paths of the list are relative to.
        data: folder of the bench; then FACEREC_DATA and data/ are looked at.
        threshold_from: fix the thresholds on other data: embeddings that say who is on the images,
            or labelled scores (.csv); by default on the non-mated pairs of these data. With
            --one-to-many embeddings of more subjects than an audited gallery holds.
        fmr: nominal FMRs of the thresholds, as 1e-3,1e-4; taken exactly.
        covariates: columns of numbers to hold fixed, as yaw,blur.
        quality: a .csv as OFIQ writes it, whose columns serve as covariates too, such as
            Sharpness.scalar; by default UnifiedQualityScore.scalar.
        baseline: embeddings of the same images by another model, such as one trained without SEC;
            with --model that model itself.
        one_to_many: also audit identification: half of the subjects enrolled, searched by all, then
            the other half; FPIR, FNIR and rank 1 by group.
        fpir: with --one-to-many: target FPIRs of the thresholds, as 1e-2,2e-3; taken exactly.
        reference: with --one-to-many: a group on which thresholds are set too, and to which the
            others are compared; by default the one with most subjects.
        homogeneous: with --one-to-many: also search galleries that hold one group alone.
        template: with --one-to-many: enrol one image of a subject, or the mean of half of theirs.
        allow_inferred_labels: take inferred labels, which puts a banner on every page.
        gating: declare that images are accepted or discarded by norm.
        confidence: declare that the norm is shown or returned as a confidence.
        assertion: end with status 1 unless this holds, as in eta2<0.01; known of the primary
            attribute are eta2, p, fmr_ratio and fnmr_ratio, the highest rate of a group over the
            lowest at the smallest FMR that all groups have errors enough for.
        flip: with --model: sum the raw embeddings of each image and its mirror image.
        align: with --model: see facerec verify.
        align_threshold: with --align: see facerec verify.
        on_error: with --model: what an image that does not decode does; skip makes it a failure to
            acquire.
        network: how the network is loaded.
        permutations: of the tests on norms.
        replicates: resamples of the subjects.
        seed: of permutations and resamples.
        delete_embeddings: when the report is written, delete the files of --embeddings and
            --baseline: embeddings are personal data.
    """
    from facerec.embedding.extraction import unit_fusion
    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.fairness.audit import audit as audit_embeddings
    from facerec.fairness.outputs import check_audit_folder, write_audit
    from facerec.fairness.page import render
    from facerec.fairness.quality import read_quality
    from facerec.fairness.scores import audit_scores

    flags = {**locals(), **vars(network)}
    command = _command(flags)
    console = Console(highlight=False)
    # Whatever can be wrong is found before minutes of embedding.
    check_audit_folder(out)
    targets, groups = listed_rates(fmr), listed(group)
    searches = _search_plan(flags)
    asserted = [_assertion(text) for text in assertion]
    _check_source(flags)
    if embeddings is not None:
        refuse_network_flags(network, flip, align, align_threshold)
    measured = None if quality is None else read_quality(quality, listed(covariates))
    labels = None if attributes is None else _read_labels(attributes, groups, measured, flags)
    opened = _open_bench(bench, pairs, format, images, data)
    audited: Embeddings | None = None
    unit: NDArray[np.float32] | None = None
    other: Embeddings | None = None
    with progress_bar(console) as show:
        options = {"align": parse_align(align, align_threshold), "on_error": on_error}
        embed = partial(_embed, network, opened, flip, options, console, show)
        if scores is not None:
            source, columns = scores.name, () if labels is not None else groups
            scored, file = _read_scores(scores, distances, columns, subject)
        elif embeddings is not None:
            source, audited = str(embeddings), read_embeddings(embeddings)
            file = _embeddings_file("embeddings", embeddings, audited)
        else:
            assert model is not None
            source, file, (audited, *alone) = embed("model", model)
            unit = unit_fusion(audited, *alone) if alone else None
        calibration, remarks, others = _calibrate(
            threshold_from, targets, audited, distances, network.device, show
        )
        if measured is not None and measured.remark:
            remarks.insert(0, measured.remark)
        files = [file, *_shared_files(labels, opened, measured, threshold_from)]
        if baseline is not None and is_embeddings(baseline):
            other = read_embeddings(baseline)
            files.append(_embeddings_file("baseline", baseline, other))
        elif baseline is not None:
            if model is None:
                raise DatasetError(
                    f"{baseline}: with --embeddings the baseline is a file of embeddings too "
                    "(.npz); make it with facerec embed"
                )
            _, file, (other,) = embed("baseline", baseline)
            files.append(file)
        settings: dict[str, Any] = {
            "intersect": intersect,
            "targets": targets,
            "calibration": calibration,
            "replicates": replicates,
            "seed": seed,
            "inputs": files,
            "remarks": remarks,
            "progress": show,
        }
        if audited is None:
            result = audit_scores(
                scored,
                groups,
                name=source,
                attributes=labels,
                allow_inferred=allow_inferred_labels,
                **settings,
            )
        else:
            assert labels is not None  # as attributes were given
            result = audit_embeddings(
                audited,
                labels,
                pairs=None if pairs == ALL else opened,
                unit=unit,
                baseline=other,
                baseline_name=str(baseline),
                searches=searches,
                search_others=None if searches is None else others,
                gating=gating,
                confidence=confidence,
                permutations=permutations,
                source=source,
                device=network.device,
                **settings,
            )
        show("drawing", 0, 1)
        page = write_audit(out, result, render(result, command), command)
        show("drawing", 1, 1)
    stored = [path for path in (embeddings, baseline) if path is not None and is_embeddings(path)]
    _finish(result, page, asserted, stored if delete_embeddings else [], console)


def _finish(
    result: Audit,
    page: Path,
    asserted: Sequence[Callable[[Audit], str | None]],
    delete: Sequence[Path],
    console: Console,
) -> None:
    """Print the result, delete what is to go, and end with status 1 if an assertion fails."""
    from facerec.embedding.file import embeddings_files

    print_audit(result, console)
    console.print(f"report: {page}", soft_wrap=True)
    for path in delete:
        for file in embeddings_files(path):
            file.unlink()
        console.print(f"deleted: {path}", soft_wrap=True)
    failed = [text for failure in asserted if (text := failure(result)) is not None]
    for text in failed:
        console.print(f"assertion failed: {text}", style="red", soft_wrap=True)
    if failed:
        raise SystemExit(1)


def _search_plan(flags: Mapping[str, Any]) -> SearchPlan | None:
    """Return what is asked of identification, if anything; refuse flags that do nothing."""
    from facerec.embedding.file import is_embeddings
    from facerec.fairness.one_to_many import SearchPlan

    if not flags["one_to_many"]:
        defaults = _defaults()
        for name in ("fpir", "reference", "homogeneous", "template"):
            if flags[name] != defaults[name]:
                raise DatasetError(f"--{name} belongs to --one-to-many; give both or neither")
        return None
    calibration = flags["threshold_from"]
    if calibration is not None and not is_embeddings(calibration):
        raise DatasetError(
            f"{calibration}: scores of pairs set no threshold for --one-to-many, which must hold "
            "for the best score in a gallery; give embeddings that say who is on the images, or "
            "leave one of both flags out"
        )
    names = "reference", "homogeneous", "template", "seed"
    return SearchPlan(targets=listed_rates(flags["fpir"]), **{name: flags[name] for name in names})


def _defaults() -> dict[str, Any]:
    """Return every flag with its default."""
    flags: dict[str, Any] = {}
    for name, parameter in inspect.signature(audit).parameters.items():
        flags |= vars(NETWORK) if name == "network" else {name: parameter.default}
    return flags


def _check_source(flags: Mapping[str, Any]) -> None:
    """Refuse several sources or none, and flags that mean nothing with the one that is given."""
    from facerec.embedding.file import is_embeddings

    scores, calibration = flags["scores"], flags["threshold_from"]
    if sum(flags[name] is not None for name in ("embeddings", "model", "scores")) != 1:
        raise DatasetError("give one of --embeddings, --model and --scores, to say what is audited")
    if flags["attributes"] is None and scores is None:
        raise DatasetError("name the table of groups with --attributes")
    if scores is not None:
        for name, default in _defaults().items():
            if name not in _WITH_SCORES and flags[name] != default:
                raise DatasetError(
                    f"--{name.replace('_', '-')} belongs to an audit of embeddings; leave it out "
                    "with --scores"
                )
    elif flags["distances"] and (calibration is None or is_embeddings(calibration)):
        raise DatasetError("--distances says what scores are; leave it out without scores")


def _read_labels(
    path: Path, groups: Sequence[str], measured: Quality | None, flags: Mapping[str, Any]
) -> Attributes:
    """Read the table of groups, with covariates of its own and those that were measured."""
    from facerec.fairness.attributes import read_attributes
    from facerec.fairness.quality import add_quality

    elsewhere = () if measured is None else measured.measures
    labels = read_attributes(
        path,
        groups,
        subject=flags["subject"],
        covariates=[name for name in listed(flags["covariates"]) if name not in elsewhere],
        allow_inferred=flags["allow_inferred_labels"],
    )
    return labels if measured is None else add_quality(labels, measured)


def _assertion(text: str) -> Callable[[Audit], str | None]:
    """Read ``eta2<0.01``; return what says how an audit does not meet that, None if it does."""
    match = _ASSERTION.fullmatch(text)
    try:
        if match is None or match[1] not in _FIGURES:
            raise ValueError
        figure, relation, bound = match[1], match[2], float(match[3])
    except ValueError as problem:
        raise MetricError(
            f"--assert {text!r} is not of the form eta2<0.01; known are {', '.join(_FIGURES)}"
        ) from problem

    def failure(audit: Audit) -> str | None:
        value, reason = _figure(audit, figure)
        if value is None:
            return f"{figure}{relation}{bound:g}, but there is no such figure ({reason})"
        if _RELATIONS[relation](value, bound):
            return None
        return f"{figure}{relation}{bound:g}, found {value:.6g}"

    return failure


def _figure(audit: Audit, name: str) -> tuple[float | None, str | None]:
    """Return a figure of the primary attribute, and why it is missing or what is to be known."""
    grouping = next((grouping for grouping in audit.groupings if grouping.primary), None)
    if grouping is None:
        return None, "the primary attribute has no group to show"
    if name in ("eta2", "p"):
        association = grouping.association
        if isinstance(association, NoComparison):
            return None, association.reason
        eta2 = association.eta2
        return (association.p, None) if name == "p" else (eta2.value, eta2.remark)
    measures, of = grouping.differentials, name.partition("_")[0].upper()
    if isinstance(measures, NoComparison):
        return None, measures.reason
    row = measures.heading(of)
    return (None, measures.reason) if row is None else (row.value, row.remark)


def print_audit(audit: Audit, console: Console) -> None:
    """Print findings, norms and rates of every grouping, as fits 80 columns."""
    from facerec.fairness.one_to_many import OneToMany
    from facerec.fairness.one_to_many_page import summary_tables
    from facerec.fairness.tables import SUPPRESSED, group_sizes, head_points, norm_table, rate_table

    console.print(
        f"{audit.lead}, {audit.failures:,} failures to acquire; labels: "
        f"{'; '.join(audit.label_sources)}",
        style="bold",
    )
    if audit.banner is not None:
        console.print(audit.banner, style="bold red")
    for gone in audit.exclusions:
        of = "" if gone.attribute is None else f"{gone.attribute}: "
        console.print(f"left out: {of}{gone.images:,} × {gone.reason}", style="yellow")
    for line in group_sizes(audit):
        console.print(line)
    console.print()
    for finding in audit.findings:
        console.print(f"• {finding.text}")
    for grouping in audit.groupings:
        console.print()
        console.print(f"by {grouping.name}", style="bold")
        if grouping.suppressed:
            console.print(
                f"suppressed, {SUPPRESSED}: {', '.join(grouping.suppressed)}", style="yellow"
            )
        if grouping.norms is not None:
            console.print(norm_table(grouping.norms).terminal())
        if isinstance(grouping.rates, NoComparison):
            console.print(f"no error rates: {grouping.rates.reason}", style="yellow")
        for point in head_points(audit, grouping):
            console.print(rate_table(point).terminal())
    if isinstance(audit.one_to_many, OneToMany):
        console.print()
        console.print(audit.one_to_many.protocol)
        for table in summary_tables(audit.one_to_many):
            console.print(table.terminal())
    elif audit.one_to_many is not None:
        console.print(f"no identification: {audit.one_to_many.reason}", style="yellow")
    for skipped in audit.skipped:
        console.print(f"{skipped.name}: {skipped.reason}", style="yellow")
    console.print()
    for warning in audit.warnings:
        console.print(f"note: {warning}", style="yellow")


def _open_bench(
    bench: str | None,
    pairs: str | None,
    format: str | None,
    images: Path | None,
    data: Path | None,
) -> Bench | None:
    """Open the bench or pair list; None if neither is named."""
    from facerec.verification.templates import TemplateBench

    path = None if pairs in (None, ALL) else Path(str(pairs))
    if bench is None and path is None:
        unused = {"--format": format, "--images": images, "--data": data}
        refuse_unused("belongs to --bench or to a list of --pairs, and none is named", unused)
        return None
    (opened,) = open_benches([] if bench is None else [bench], path, format, images, data)
    if isinstance(opened, TemplateBench):
        raise DatasetError(
            f"{opened.name} compares templates, but norms and groups belong to images; audit its "
            "embeddings with --pairs all"
        )
    return opened


def _read_scores(
    path: Path, distances: bool, groups: Sequence[str], subject: str
) -> tuple[ScoredPairs, InputFile]:
    from facerec.embedding.file import is_embeddings
    from facerec.fairness.result import InputFile
    from facerec.verification.protocols import read_scores

    if is_embeddings(path):
        raise DatasetError(f"{path}: it holds embeddings; name it with --embeddings")
    scored = read_scores(path, distances=distances, groups=groups, subject=subject)
    details = {"pairs": len(scored), "score": scored.kind, "format": scored.source.get("format")}
    return scored, InputFile("scores", path.name, sha256(path), details)


def _embed(
    network: Network,
    bench: Bench | None,
    flip: bool,
    options: Mapping[str, Any],
    console: Console,
    show: Progress,
    role: Literal["model", "baseline"],
    path: Path,
) -> tuple[str, InputFile, list[Embeddings]]:
    """Embed the images of a bench; those of the model that is audited without flip, too.

    Also returns what the model is called in errors, and what it is in the report.
    """
    from facerec.embedding.extraction import embed_images, embed_views
    from facerec.fairness.result import InputFile

    loaded = network.load(path)
    print_model(loaded, flip, options["align"], console)
    if bench is None:
        raise DatasetError("--model needs --bench or --pairs, whose images it embeds")
    tell = section(show, f"{loaded.name}: embedding")
    options = {**options, "batch_size": network.batch_size, "progress": tell}
    if flip and role == "model":
        views = [*embed_views(loaded, bench.images, **options)]
    else:
        views = [embed_images(loaded, bench.images, flip=flip, **options)]
    described = views[0].note["model"]
    name = described["name"] if loaded.path is None else loaded.path.name
    file = InputFile(role, name, str(described["sha256"]), _describe(views[0]))
    return str(loaded.path), file, views


def _calibrate(
    path: Path | None,
    targets: Sequence[str],
    audited: Embeddings | None,
    distances: bool,
    device: str,
    show: Progress,
) -> tuple[Calibration | None, list[str], OtherSubjects | None]:
    """Fix thresholds on other data, embeddings or scores, if they are given.

    Also returns what a reader must know of them, and who is on the images, unless scores are
    given or audited (``audited`` is None).
    """
    from facerec.embedding.check import check_alike
    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.fairness.comparisons import calibrate_on_embeddings, calibrate_on_scores
    from facerec.fairness.one_to_many import OtherSubjects
    from facerec.verification.protocols import read_scores

    if path is None:
        return None, [], None
    unknown = f"Whether the scores of {path.name} come from the same model is not known."
    if not is_embeddings(path):
        scored = read_scores(path, distances=distances)
        remarks = [unknown, *(f"{note}." for note in scored.notes)]
        return calibrate_on_scores(scored, targets, name=path.name), remarks, None
    other = read_embeddings(path)
    if audited is not None:
        check_alike(other, audited, f"{path} and the audited images")
    calibration = calibrate_on_embeddings(
        other, targets, name=path.name, device=device, progress=show
    )
    if audited is None:
        return calibration, [unknown], None
    assert other.ids is not None and audited.ids is not None  # the reader sees to that
    shared = int(np.isin(other.ids, audited.ids).sum())
    note = f"{shared:,} images of {path.name} are audited too; it is not disjoint."
    return calibration, [note] if shared else [], OtherSubjects.of(other, path.name)


def _embeddings_file(
    role: Literal["embeddings", "baseline"], path: Path, embeddings: Embeddings
) -> InputFile:
    from facerec.embedding.file import embeddings_sha256
    from facerec.fairness.result import InputFile

    return InputFile(role, path.name, embeddings_sha256(path), _describe(embeddings))


def _describe(embeddings: Embeddings) -> dict[str, Any]:
    model, source = embeddings.note.get("model", {}), embeddings.note.get("source") or {}
    return {
        "data": Path(str(source.get("path") or "")).stem or None,
        "images": len(embeddings.vectors),
        "dim": embeddings.vectors.shape[1],
        "raw_norms": True,
        "flip": embeddings.flip,
        "failures": len(embeddings.failures),
        "model": {key: model.get(key) for key in ("name", "sha256", "preprocessing")},
        "align": embeddings.note.get("align"),
    }


def _shared_files(
    labels: Attributes | None,
    bench: Bench | None,
    measured: Quality | None,
    calibration: Path | None,
) -> Iterator[InputFile]:
    """Yield the files beside embeddings, a model or scores."""
    from facerec.embedding.file import embeddings_sha256
    from facerec.fairness.result import InputFile

    details: dict[str, Any]
    if labels is not None:
        details = {"lines": len(labels.lines), "label_source": list(labels.label_sources)}
        yield InputFile("attributes", labels.path.name, labels.sha256, details)
    if bench is not None:
        source = bench.source
        name = Path(str(source.get("path", bench.name))).name
        details = {"pairs": len(bench.pairs), "format": source.get("format")}
        details["notes"] = [*bench.notes]
        yield InputFile("pairs", name, str(source.get("sha256", "")), details)
    if measured is not None:
        details = {"lines": len(measured.files), "measures": list(measured.measures)}
        yield InputFile("quality", measured.path.name, measured.sha256, details)
    if calibration is not None:
        yield InputFile("calibration", calibration.name, embeddings_sha256(calibration), {})


def _command(flags: Mapping[str, Any]) -> str:
    """Return the command of these flags, without the place of the report."""
    words = ["facerec", "audit"]
    for name, default in _defaults().items():
        value = flags[name]
        if value == default:
            continue
        flag = "--" + ("assert" if name == "assertion" else name.replace("_", "-"))
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif name == "out":
            words += [flag, "OUT"]
        else:
            words += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)


main = partial(run_command, audit)
