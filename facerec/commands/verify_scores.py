"""``facerec verify-scores``: scores that others computed → figures with intervals."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import tyro

from facerec.commands.cli import Console, run_command
from facerec.commands.figures import (
    COMPUTATION,
    OUTPUT,
    Computation,
    Output,
    Verified,
    tell,
)


def verify_scores(
    scores: tyro.conf.Positional[Path],
    compare: Path | None = None,
    distances: bool = False,
    computation: tyro.conf.OmitArgPrefixes[Computation] = COMPUTATION,
    output: tyro.conf.OmitArgPrefixes[Output] = OUTPUT,
) -> None:
    """Verify by scores alone: accuracy, TPR at fixed FPRs, thresholds, AUC and EER.

    Each figure has its counts and 95 % interval, which allows for pairs that share a person where
    the table names the subjects.

    Args:
        scores: a table of label,score (or bob's columns), one pair a line.
        compare: scores of another model for the same pairs: prints the differences.
        distances: the scores are distances: smaller means more alike.
        computation: how figures are computed.
        output: where they go.
    """
    from facerec.verification import evaluate
    from facerec.verification.protocols import read_scores

    settings = computation.settings()
    output.check()
    both = []
    for path in [scores, *([] if compare is None else [compare])]:
        scored = read_scores(path, distances=distances)
        result = evaluate(
            scored.scores,
            scored.pairs(),
            name=path.stem,
            notes=scored.notes,
            subjects_from="the list",
            **settings,
        )
        both.append(Verified({"scores": replace(result, score=scored.kind, source=scored.source)}))
    tell(both, output, Console(highlight=False))


main = partial(run_command, verify_scores)
