"""``facerec calibrate``: a model and people → all that decides beside its weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import tyro
from numpy.typing import NDArray

from facerec.backbones.preprocessing import Preprocessing
from facerec.base.defaults import ALL_PAIRS_TARGETS
from facerec.base.errors import DatasetError
from facerec.base.files import check_place
from facerec.base.recipe import from_dict
from facerec.commands.cli import Console, exact_rates, print_first, run_command
from facerec.commands.embedder import DEFAULT, Embedder, print_notes, read_stored
from facerec.commands.sources import Opened, kind_of, open_set
from facerec.records.people import read_members
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.report.table import Table
from facerec.statistics.intervals import Interval

if TYPE_CHECKING:
    from facerec.embedding.calibration import ModelCalibration
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.model import EmbeddingModel


def calibrate(
    bench: str | None = None,
    people: Path | None = None,
    embeddings: Path | None = None,
    data: Path | None = None,
    subjects: Path | None = None,
    group: str | None = None,
    fpr: tuple[str, ...] = ALL_PAIRS_TARGETS,
    out: Path | None = None,
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = DEFAULT,
) -> None:
    """Find out what decides beside a model's weights, and leave it beside the model.

    Compares every image with every other, of up to 5,000 people with up to 5 images each, and
    writes MODEL.facerec.json: how pixels are prepared and placed, which pictures the model knows as
    faces, the cosine that decides at each false positive rate (FPR), and how much better one person
    explains a cosine than two. From there same, find, enroll, identify, serve, embed, verify and
    export-onnx take all of it; no other command writes it. It holds for people and photos like
    these; facerec verify --calibration FILE tells whether its ratios hold for others.

    Args:
        bench: a verification set: its name (lfw, cfp_fp, agedb_30, …) or its pack (.bin, .npz).
        people: in place of --bench: a folder of subject/image.jpg, or a record file.
        embeddings: a file of facerec embed of these images, in place of embedding them again; alone
            it stands for people whose images are not at hand.
        data: folder to look for the verification set in, before FACEREC_DATA and data/.
        subjects: a .csv file with the columns image_id and subject_id, needed where the images do
            not say who is on them.
        group: a column of that file, with one value a subject, to tell whether the ratios hold
            alike in all groups.
        fpr: false positive rates, as 1e-3,1e-4, whose thresholds are found.
        out: the file to write; by default MODEL.facerec.json beside the model file.
        embedder: how images become embeddings.
    """
    from facerec.embedding.bundle import is_bundle
    from facerec.embedding.calibration import calibration_file
    from facerec.embedding.extraction import draw_faces
    from facerec.embedding.face_score import SPOILT_FACES
    from facerec.embedding.file import is_embeddings
    from facerec.embedding.loading import newest_run
    from facerec.embedding.placement import alike_note, better_placement
    from facerec.verification import select_embeddings
    from facerec.verification.calibration import calibrate_model

    console = Console()
    if people is not None and is_embeddings(people):
        people, embeddings = None, people
    if (bench is not None and people is not None) or (bench, people, embeddings) == (None,) * 3:
        raise DatasetError(
            "say whose images are compared: give one of --bench and --people, or --embeddings"
        )
    if group is not None and subjects is None:
        raise DatasetError("--group is a column of a table of people; give it with --subjects")
    targets = exact_rates(fpr)
    source, groups = Path(bench or people or str(embeddings)), None
    stored, network, opened, align, sample = None, None, None, None, None
    if embeddings is not None:
        embedder.refuse_unused()
        stored = read_stored(embeddings, embedder.column_names, console)
        network = _network_of(stored, embeddings, embedder, console)
    if source != embeddings:
        kind = "bench" if bench is not None else kind_of(source)
        opened = open_set(kind, source, data, embedder.on_error)
    names = None if subjects is not None else _subjects(source, opened, stored)
    if stored is None:
        assert opened is not None
        network = embedder.load(embedder.model or newest_run(), calibrated=False)
        align = embedder.aligner or opened.aligner
        found = embedder.embed(source, opened.images, console, align, network=network)
    else:
        ids = None if opened is None else opened.images.ids
        found = stored if ids is None else select_embeddings(stored, ids, str(source))
    as_they_came = stored is None or stored.note.get("align") is None
    if opened is not None and network is not None and as_they_came:
        rows = np.flatnonzero(np.isfinite(found.norms))
        sample = draw_faces(network, opened.images, rows, SPOILT_FACES, align)
    ids = found.ids
    assert ids is not None  # the readers see to that
    if subjects is not None:
        names, groups, _ = read_members(subjects, ids, group)
    assert names is not None
    place = None if network is None else network.path
    if out is None and (place is None or is_bundle(place.parent)):
        raise DatasetError(
            f"{source}: there is no model's file beside which a calibration could lie; name the "
            "model with --model (a bundle is never changed: calibrate the run, and export it "
            "again), or the file to write with --out"
        )
    target = out or calibration_file(cast(Path, place))
    check_place(target, file=True)
    if target.is_file():
        console.print(f"{target} is replaced; nothing that it says is taken over", style="yellow")
    with progress_bar(console) as progress:
        calibration = calibrate_model(
            found,
            names,
            source.name,
            network=network,
            sample=sample,
            fpr=targets,
            groups=groups,
            progress=progress,
        )
    calibration.write(target)
    if calibration.faces is not None:
        lines = ids[calibration.faces.far(found.vectors)].tolist()
        if lines:
            told = words.counted(len(lines), "image")
            console.print(
                f"{told} show no face that the model knows, and are left out:", style="yellow"
            )
        print_first(lines, "clean lists all", console)
    _print(calibration, targets, console, groups)
    print_notes([alike_note(found, names), better_placement(network, sample)], console)
    console.print(f"calibration: {target}")


def _subjects(source: Path, opened: Opened | None, stored: Embeddings | None) -> NDArray[np.str_]:
    """Return who is on images ``(N,)``, as their set or the file of their embeddings says.

    Raises:
        DatasetError: it does not, or knows it by its same pairs alone.
    """
    from facerec.verification.bench import INFERRED

    inferred = opened is not None and opened.description.get("subjects_from") == INFERRED
    known = stored.subjects if stored is not None else None
    names = known if opened is None else None if inferred else opened.subjects()
    if names is None:
        who = "only its same pairs tell" if inferred else "it does not say"
        raise DatasetError(
            f"{source}: {who} who is on its images; name a table with the columns "
            "image_id,subject_id with --subjects"
        )
    return names


def _network_of(
    stored: Embeddings, path: Path, embedder: Embedder, console: Console
) -> EmbeddingModel | None:
    """Return the network that made the embeddings of a file, if it is named.

    Raises:
        FacerecError: another one is named, or the file does not say how they were made.
    """
    from facerec.embedding.onnx_preprocessing import PIXELS
    from facerec.embedding.space import Space

    made = Space.of(stored)
    if None in (made.model, made.flip) or {*PIXELS} - {*(made.preprocessing or ())}:
        raise DatasetError(
            f"{path}: it does not say which model made these embeddings, or whether mirror images "
            "were added, and a calibration holds for one model; make them with facerec embed"
        )
    if embedder.model is None:
        console.print(
            "the limits of faces cannot be found without the model that made these embeddings; "
            "name it with --model",
            style="yellow",
        )
        return None
    network = embedder.load(embedder.model, calibrated=False)
    if network.sha256 != made.model:
        raise DatasetError(
            f"{embedder.model}: these embeddings are of another model, {made.name}; name that"
        )
    own = from_dict(Preprocessing, made.preprocessing, str(path))
    return network.with_preprocessing(own, tuple(stored.note["model"].get("shift") or (0, 0)))


def _print(
    found: ModelCalibration,
    targets: Sequence[str],
    console: Console,
    groups: NDArray[np.str_] | None,
) -> None:
    """Print which cosines decide, which pictures are faces, and what scores say."""
    from facerec.verification.calibration import differing

    points = []
    for row in found.thresholds:
        (low, high), (accepts, negatives) = row.fpr_interval, row.false_accepts
        realised = f"{100 * row.fpr_realised:.3g} % [{100 * low:.2g}, {100 * high:.2g}]"
        counts = f"{accepts:,} of {negatives:,}"
        points.append((row.fpr, f"{row.threshold:g}", realised, counts, words.percent(row.tpr)))
    headings = "FPR", "threshold", "realised", "false accepts", "TPR"
    console.print(Table("cosines that decide", headings, points).terminal())
    told = [row.fpr for row in found.thresholds]
    if few := [target for target in targets if target not in told]:
        console.print(f"not carried by these images: FPR {', '.join(few)}")
    if found.faces is None:
        console.print("not looked at which pictures the model knows as faces", style="yellow")
    else:
        console.print(
            f"faces: a face score below {found.faces.limit:.1f} is refused, as of 5 in 1,000 of "
            f"{found.faces.faces:,} faces here; it {found.faces.words}"
        )
    worth = found.score_calibration
    if worth is None:
        console.print(
            "what a cosine is worth is not told: mated and non-mated scores hardly overlap, or the "
            "people are too few",
            style="yellow",
        )
        return
    console.print(worth.basis, style="bold")
    low, high, rows = worth.ratio.low, worth.ratio.high, []
    for score in np.linspace(low, high, 6):
        said = worth.evidence(float(score))
        whom = "one person" if said.for_one else "two people"
        rows.append((f"{score:.3f}", f"{said.times} times", whom, said.rarity))
    columns = "cosine", "photos agree better", "with", "as high score"
    console.print(Table("what a cosine is worth", columns, rows, words=("with",)).terminal())
    console.print(
        f"Cllr on people whom it does not know (ten folds): {worth.cllr:.4f} bits, "
        f"{worth.cllr / worth.least_cllr:.2f} times the least possible with such ends, "
        f"{worth.least_cllr:.4f}"
    )
    if groups is None:
        return
    by_group = []
    for each in worth.groups:
        cost, high_by = (
            f"{each[name]:.3g} {words.limits(Interval(*each[f'{name}_interval']))}"
            for name in ("cllr", "too_high")
        )
        about = each["group"], f"{each['subjects']:,}"
        by_group.append((*about, cost, high_by, words.p_value(each["p_holm"])))
    headings = "group", "people", "Cllr, bits", "ratios too high by", "p"
    console.print(Table("between people of one group", headings, by_group).terminal())
    console.print(differing(worth.groups, groups), style="bold")


main = partial(run_command, calibrate)
