"""``facerec verify-scores``: scores that others computed → figures with intervals."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import tyro

from facerec.base.errors import MetricError
from facerec.commands.cli import Console, called_columns, run_command
from facerec.commands.verified import FIGURES, Figures, Verified, tell


def verify_scores(
    scores: tyro.conf.Positional[Path],
    compare: Path | None = None,
    distances: bool = False,
    columns: tuple[str, ...] = (),
    figures: tyro.conf.OmitArgPrefixes[Figures] = FIGURES,
) -> None:
    """Verify by scores alone: accuracy, TPR at fixed FPRs, thresholds, AUC and EER.

    Each figure has its counts and 95 % interval, which allows for pairs that share a person where
    the table names the subjects.

    Args:
        scores: a table of label,score (or bob's columns), one pair a line.
        compare: scores of another model for the same pairs, to print the differences.
        distances: the scores are distances: smaller means more alike.
        columns: columns that the table calls otherwise, as score=similarity label=Match.
        figures: figures to print and files to write.
    """
    from facerec.verification import evaluate
    from facerec.verification.protocols import read_scores

    fpr, called = figures.check(), called_columns(columns)
    if figures.subjects is not None or figures.quality is not None:
        raise MetricError("scores alone name no images: leave --subjects and --quality out")

    def judge(path: Path) -> Verified:
        scored = read_scores(path, distances=distances, called=called)
        result = evaluate(
            scored.scores,
            scored.pairs(),
            name=path.stem,
            notes=scored.notes,
            subjects_from="the list",
            fpr=fpr,
            score="minus the distance in the file" if distances else "as given in the file",
            source=scored.source,
        )
        return Verified({"scores": result})

    tables = [scores] if compare is None else [scores, compare]
    tell(list(map(judge, tables)), figures, Console())


main = partial(run_command, verify_scores)
