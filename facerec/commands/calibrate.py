"""``facerec calibrate``: a model and people → what its cosines are worth as evidence."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro
from numpy.typing import NDArray

from facerec.commands.cli import Console, run_command
from facerec.commands.embedder import DEFAULT, Embedder, print_embeddings
from facerec.commands.sources import kind_of, open_set, read_members
from facerec.errors import DatasetError
from facerec.files import check_file_name, write_json
from facerec.report import words
from facerec.report.progress import progress_bar
from facerec.report.table import Table

if TYPE_CHECKING:
    from facerec.embedding.extraction import Embeddings
    from facerec.embedding.score_calibration import ScoreCalibration


def calibrate(
    bench: str | None = None,
    people: Path | None = None,
    data: Path | None = None,
    subjects: Path | None = None,
    group: str | None = None,
    out: Path | None = None,
    embedder: tyro.conf.OmitArgPrefixes[Embedder] = DEFAULT,
) -> None:
    """Find out what a cosine of a model is worth: how much better one person explains it than two.

    Compares every image with every other, of up to 5,000 people with up to 5 images each, and
    leaves a small file beside the model. From there same, serve, enroll and export-onnx take it.
    Its likelihood ratios hold for people and photos like these; facerec verify --calibration FILE
    tells whether they hold for others.

    Args:
        bench: a verification set: its name (lfw, cfp_fp, agedb_30, …) or its pack (.bin, .npz).
        people: in place of --bench: a folder of subject/image.jpg, a record file, or a file of
            embeddings (.npz, .parquet).
        data: folder to look for the verification set in, before FACEREC_DATA and data/.
        subjects: a .csv file with the columns image_id and subject_id, needed where the images do
            not say who is on them.
        group: a column of that file, with one value a subject, to tell whether the ratios hold
            alike in all groups.
        out: the file to write; by default MODEL.calibration.json beside the model file.
        embedder: how images become embeddings.
    """
    from facerec.embedding.bundle import is_bundle
    from facerec.embedding.score_calibration import calibration_file
    from facerec.verification.calibration import calibrate

    console = Console(highlight=False, soft_wrap=True)
    if (bench is None) == (people is None):
        raise DatasetError("say whose images are compared: give either --bench or --people")
    if group is not None and subjects is None:
        raise DatasetError("--group is a column of a table of people; give it with --subjects")
    path = Path(bench or str(people))
    embeddings, names = _embed(path, bench is not None, data, subjects is None, embedder, console)
    groups = None
    if subjects is not None:
        assert embeddings.ids is not None  # the readers see to that
        names, groups, _ = read_members(subjects, embeddings.ids, group)
    model = embeddings.note.get("model") or {}
    if not model.get("sha256") or embeddings.flip is None:
        raise DatasetError(
            f"{path}: it does not say which model made these embeddings, or whether mirror images "
            "were added, and a calibration holds for one model; make them with facerec embed"
        )
    place = Path(model.get("path") or "")
    if out is None and (not place.is_file() or is_bundle(place.parent)):
        raise DatasetError(
            f"{place}: a bundle is never changed, and the file of a model that is not there has no "
            "place beside it; calibrate the run and export it again, or name a file with --out"
        )
    target = out or calibration_file(place)
    check_file_name(target, DatasetError)
    with progress_bar(console) as progress:
        found = calibrate(embeddings, names, path.name, groups=groups, progress=progress)
    write_json(target, found.to_json())
    _print(found, console, groups)
    console.print(f"calibration: {target}")


def _embed(
    path: Path,
    is_bench: bool,
    data: Path | None,
    must_say: bool,
    embedder: Embedder,
    console: Console,
) -> tuple[Embeddings, NDArray[np.str_]]:
    """Return embeddings of people's images, and who is on them.

    Args:
        path: of a bench, images or embeddings.
        is_bench: whether the path is the name or the pack of a bench.
        data: folder of the bench.
        must_say: whether these must say who is on the images.
        embedder: how images become embeddings.
        console: where is said what is embedded.
    """
    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.embedding.model import newest_run
    from facerec.verification.bench import INFERRED

    if not is_bench and is_embeddings(path):
        embedder.refuse_unused()
        embeddings = read_embeddings(path)
        print_embeddings(path, embeddings, console)
        names, inferred = embeddings.subjects, False
    else:
        opened = open_set("bench" if is_bench else kind_of(path), path, data, embedder.on_error)
        inferred = opened.description.get("subjects_from") == INFERRED
        names = None if inferred else opened.subjects()
        if names is not None or not must_say:
            embedder = replace(embedder, model=embedder.model or newest_run())
            embeddings = embedder.embed(path, opened.images, console, opened.aligner)
    if names is None and must_say:
        known = ", or by its same pairs alone" if inferred else ""
        raise DatasetError(
            f"{path}: it does not say who is on its images{known}; name a table with the columns "
            "image_id,subject_id with --subjects"
        )
    return embeddings, np.empty(0, np.str_) if names is None else names


def _print(found: ScoreCalibration, console: Console, groups: NDArray[np.str_] | None) -> None:
    """Print what scores say, how true it is of other people, and whether groups differ."""
    from facerec.verification.calibration import differing

    console.print(found.basis, style="bold")
    low, high, rows = found.ratio.low, found.ratio.high, []
    for score in np.linspace(low, high, 6):
        said = found.evidence(float(score))
        whom = "one person" if said.for_one else "two people"
        rows.append((f"{score:.3f}", f"{said.times} times", whom, said.rarity))
    headings = "cosine", "photos agree better", "with", "as high score"
    console.print(Table("", headings, rows, words=("with",)).terminal())
    console.print(
        f"Cllr on people whom it does not know (ten folds): {found.cllr:.4f} bits, "
        f"{found.cllr / found.least_cllr:.2f} times the least possible {found.least_cllr:.4f}"
    )
    if groups is None:
        return
    by_group = []
    for each in found.groups:
        cost, high_by = (
            f"{each[name]:.3g} [{', '.join(f'{end:.3g}' for end in each[f'{name}_interval'])}]"
            for name in ("cllr", "too_high")
        )
        people = f"{each['subjects']:,}"
        by_group.append((each["group"], people, cost, high_by, words.p_value(each["p_holm"])))
    columns = "group", "people", "Cllr, bits", "ratios too high by", "p"
    console.print(Table("between people of one group", columns, by_group).terminal())
    console.print(differing(found.groups, groups), style="bold")


main = partial(run_command, calibrate)
