"""``facerec audit-plan``: how many people an audit needs, before anybody collects data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import tyro
from numpy.typing import ArrayLike, NDArray

from facerec.commands.cli import Console, refuse_unused, run_command
from facerec.defaults import QuestionKind
from facerec.errors import DatasetError, MetricError
from facerec.files import parse_json, read_file, write_json
from facerec.limits import Count, Flags, Limits, Positive, ProperShare, Seed
from facerec.progress import Progress
from facerec.report.progress import progress_bar

if TYPE_CHECKING:
    from facerec.fairness.plan import Plan
    from facerec.fairness.population import Components
    from facerec.fairness.questions import Question


@dataclass(frozen=True)
class Effect(Flags):
    """What is to be found: give the one that belongs to the question, or --people."""

    eta2: ProperShare | None = None
    """norms: η² of subjects' mean norms, as the audit reports it."""
    difference: Positive | None = None
    """norms: by how much the mean norm of the last group differs, in SDs of images in a group."""
    ratio: Annotated[float, Limits(1.0, 1e6, above=True)] | None = None
    """fmr, fnmr: the rate of the last group over that of the others."""
    width: Positive | None = None
    """fmr-interval, fnmr-interval: half width of the interval over the rate, as 0.25."""


@dataclass(frozen=True)
class Setting(Flags):
    """Under which circumstances."""

    images: tuple[Count, ...] = (2, 5, 10)
    """Images of each person; every number is a plan of its own."""
    shares: tuple[Positive, ...] = (1.0, 1.0)
    """How people divide among the groups, of which the last one differs: 3 1 for three quarters and
    one quarter, 1 1 1 1 for four equal groups."""
    fmr: Annotated[float, Limits(0.0, 0.01, above=True)] = 1e-3
    """FMR of the other groups at the threshold, or of the one whose interval is asked for."""
    fnmr: Annotated[float, Limits(0.0, 0.5, above=True)] = 0.05
    """The same of the FNMR."""
    power: Annotated[float, Limits(0.05, 0.999)] = 0.8
    """Chance to find what is there, or to reach the width."""
    audits: Annotated[int, Limits(50, 1_000_000)] = 1000
    """Audits that are drawn at the answer; their number makes the interval of the power."""
    seed: Seed = 0
    """Equal seeds give equal plans."""


def audit_plan(
    question: tyro.conf.Positional[QuestionKind],
    effect: tyro.conf.OmitArgPrefixes[Effect] = Effect(),
    setting: tyro.conf.OmitArgPrefixes[Setting] = Setting(),
    people: Count | None = None,
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
    attributes: Path | None = None,
    group: str | None = None,
    json: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Say how many people an audit needs, or what the people at hand can tell.

    Draws many audits of people who are not there, puts them to the audit's own tests at the 5 %
    level, and searches the size at which 80 % of them find what was planted. Questions:

    - norms: do mean norms differ between groups? (--eta2 or --difference)
    - fmr, fnmr: does a group have a higher error rate at one threshold? (--ratio)
    - fmr-interval, fnmr-interval: is the interval of a group's rate narrow? (--width)

    With --people the other way: the smallest effect that is found.

    Args:
        question: norms, fmr, fnmr, fmr-interval or fnmr-interval.
        effect: what is to be found.
        setting: under which circumstances.
        people: at hand, in all groups together, in place of an effect.
        from_: how much people and images vary, from data like those to come: an audit.json, or
            embeddings whose people are known; by default as measured on LFW.
        attributes: of these embeddings, as for facerec audit; variation is then that within groups.
        group: the column of these groups.
        json: write everything to this file.
        plot: draw the power curve into this .png, .svg or .pdf file.
    """
    from facerec.fairness.plan import plan
    from facerec.fairness.plan_report import power_figure
    from facerec.fairness.questions import Groups
    from facerec.report.figures import check_plot_path, write_figure

    console = Console(highlight=False)
    if plot is not None:
        check_plot_path(plot)
    wanted = _wanted(question, effect, people)
    _refuse_settings(question, setting)
    with progress_bar(console, "audits") as show:
        components = _components(from_, attributes, group, show)
        asked = _question(question, effect, setting, components)
        groups = Groups((1.0,) if question.endswith("interval") else setting.shares)
        if len(groups.shares) < 2 and not question.endswith("interval"):
            raise MetricError("--shares of one group leave nothing to compare; give two or more")
        planned = plan(
            asked,
            groups,
            setting.images,
            effect=wanted,
            subjects=people,
            power=setting.power,
            audits=setting.audits,
            seed=setting.seed,
            progress=show,
        )
    _print(planned, console)
    if json is not None:
        write_json(json, planned.to_json())
        console.print(f"json: {json}", soft_wrap=True)
    if plot is not None and (figure := power_figure(planned)) is not None:
        write_figure(figure, plot)
        console.print(f"power curve: {plot}", soft_wrap=True)


def _wanted(question: QuestionKind, effect: Effect, people: int | None) -> float | None:
    """Return the effect that was asked for; None if people are at hand."""
    names = {"norms": ("eta2", "difference"), "fmr": ("ratio",), "fnmr": ("ratio",)}
    own = names.get(question, ("width",))
    given = {name: value for name, value in vars(effect).items() if value is not None}
    strange = [f"--{name}" for name in given if name not in own]
    flags = " or ".join(f"--{name}" for name in own)
    if strange:
        raise MetricError(
            f"{', '.join(strange)}: no effect of the question {question}; it has {flags}"
        )
    if len(given) + (people is not None) != 1:
        raise MetricError(
            f"give one of {flags} (then people are searched) and --people (then it is)"
        )
    return next(iter(given.values()), None)


def _refuse_settings(question: QuestionKind, setting: Setting) -> None:
    """Refuse settings that the question has no use for."""
    unused = {"norms": ("fmr", "fnmr"), "fmr": ("fnmr",), "fnmr": ("fmr",)}[question.split("-")[0]]
    if question.endswith("interval"):
        unused += ("shares",)
    default = Setting()
    given = {
        f"--{name}": True if getattr(setting, name) != getattr(default, name) else None
        for name in unused
    }
    refuse_unused(f"is no setting of the question {question}", given)


def _question(
    question: QuestionKind, effect: Effect, setting: Setting, components: Components
) -> Question:
    from facerec.fairness.questions import IntervalQuestion, NormQuestion, RateQuestion

    if question == "norms":
        return NormQuestion(components, "eta2" if effect.difference is None else "difference")
    of: Literal["FMR", "FNMR"] = "FMR" if question.startswith("fmr") else "FNMR"
    rate = setting.fmr if of == "FMR" else setting.fnmr
    kind = IntervalQuestion if question.endswith("interval") else RateQuestion
    return kind(components, of, rate)


def _components(
    path: Path | None, attributes: Path | None, group: str | None, show: Progress
) -> Components:
    """Read how much people and images vary."""
    from facerec.embedding.file import is_embeddings, read_embeddings
    from facerec.fairness.attributes import join, read_attributes
    from facerec.fairness.population import DEFAULTS, from_audit, from_embeddings

    if path is None:
        if attributes is not None or group is not None:
            raise DatasetError("--attributes and --group belong to the embeddings of --from")
        return DEFAULTS
    if path.suffix.lower() == ".json":
        if attributes is not None or group is not None:
            raise DatasetError(f"{path}: an audit has its own groups; leave --attributes out")
        try:
            document = parse_json(read_file(path))
        except (OSError, ValueError) as problem:
            raise DatasetError(f"{path}: it cannot be read as JSON ({problem})") from problem
        return from_audit(document, source=path.name)
    if not is_embeddings(path):
        raise DatasetError(f"{path}: give an audit.json or a file of embeddings (.npz, .parquet)")
    if (attributes is None) != (group is None):
        raise DatasetError("--attributes has a column of groups, --group; give both or neither")
    embeddings = read_embeddings(path)
    count = len(embeddings.vectors)
    subject, codes = np.full(count, -1), np.full(count, -1)
    names: tuple[str, ...] = ("everybody",)
    if attributes is not None and group is not None:
        assert embeddings.ids is not None  # the reader sees to that
        labels = read_attributes(attributes, [group])
        joined = join(
            labels, embeddings.ids, embeddings.norms, embeddings.failures, source=str(path)
        )
        codes[joined.rows] = joined.groupings[0].codes
        subject[joined.rows] = _numbered(joined.subjects)
        names = joined.groupings[0].names
    elif embeddings.subjects is not None and (embeddings.subjects != "").any():
        known = embeddings.subjects != ""
        codes[known] = 0
        subject[known] = _numbered(embeddings.subjects[known])
    else:
        raise DatasetError(
            f"{path}: these embeddings do not say who is on the images; give --attributes"
        )
    return from_embeddings(
        embeddings.vectors, embeddings.norms, subject, codes, names, source=path.name, progress=show
    )


def _numbered(names: ArrayLike) -> NDArray[np.int64]:
    return np.unique(np.asarray(names), return_inverse=True)[1].reshape(-1)


def _print(planned: Plan, console: Console) -> None:
    from facerec.fairness.plan_report import answer_table

    question = planned.question
    console.print(question.text, style="bold")
    if planned.effect is not None:
        goal = f"{question.effect} {question.said(planned.effect)}"
    else:
        goal = f"{planned.subjects:,} subjects"
    console.print(
        f"{goal}, power {100 * planned.power:g} % at the 5 % level; {planned.audits:,} audits "
        f"drawn at each answer, seed {planned.seed}"
    )
    console.print(answer_table(planned).terminal())
    quantities = {"norms": "norms", "fnmr": "misses", "fnmr-interval": "misses"}
    quantity = quantities.get(question.kind, "false_matches")
    console.print(f"variation: {question.components.source[quantity]}", style="dim")
    console.print(
        "Everybody has as many images; the threshold is given, and comparisons are all within "
        "groups. The interval of the power is that of the drawing alone: people who vary "
        "otherwise than these need other numbers.",
        style="dim",
    )


main = partial(run_command, audit_plan)
