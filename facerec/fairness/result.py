"""What an audit found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from facerec.fairness.groupings import ALL_GROUPS, EVERYBODY
from facerec.fairness.norms import SubjectNorms
from facerec.fairness.rows import NOWHERE, At, places
from facerec.report import tidy
from facerec.report.conclusions import Conclusion

SCHEMA = "facerec.audit/4"


@dataclass(frozen=True)
class Finding:
    """One line of the findings."""

    said: str
    """What was found, as a sentence in plain words with the figure."""
    conclusion: Conclusion
    detail: str
    """What it rests on, its p-value, and what would have been detected or why that is unknown."""
    ratio: float | None = None
    """Ratio of the rates of two groups, the larger first but in searches; None of other figures."""
    exploratory: bool = True
    """Whether it is anything but the one test declared in advance."""

    @property
    def text(self) -> str:
        """The whole line."""
        return f"{self.said} ({self.basis}): {self.conclusion}"

    @property
    def basis(self) -> str:
        """The detail, and whether it is exploratory."""
        return f"{self.detail}{'; exploratory, to be confirmed on other data' * self.exploratory}"


@dataclass(frozen=True, eq=False)
class Audit:
    """Everything that a report says."""

    facts: Mapping[str, Any]
    """The head of ``audit.json``: inputs, settings, counts, what was left out, and the ``banner``
    that every page must carry, if any; JSON types."""
    rows: pd.DataFrame
    """All figures, see `facerec.fairness.rows`."""
    at: At
    """The threshold of all sentences; without a target where no threshold could be set."""
    searches: Mapping[str, Sequence[At]]
    """Thresholds of identification to look at first, by grouping."""
    findings: tuple[Finding, ...]
    """At most eight, the largest ratio that is detected first."""
    warnings: tuple[str, ...]
    """What a reader must know of these data, one sentence each."""
    caveats: tuple[str, ...]
    """Fixed sentences that belong to every report."""
    norms: SubjectNorms | None = None
    """Norms by the first attribute, for a picture; in no file. None where scores were audited."""

    @property
    def groupings(self) -> list[str]:
        """Attributes in the order asked for, then the intersection."""
        return list(self.facts["groups"])

    @property
    def of_groups(self) -> pd.DataFrame:
        """The rows of one group, or of all together, by the audited model."""
        rows = self.rows
        own = rows["kind"].isin(("value", "size")) & (rows["group"] != "")
        return rows[own & (rows["other"] == "") & (rows["model"] == "")]

    @property
    def by_group(self) -> pd.DataFrame:
        """One row a group and a column a figure: values, sizes as whole numbers, at `at`.

        Rows are indexed by grouping and group. FPIR and FNIR are those at the first threshold of
        `searches`. What is not resolvable, withheld or missing in a group is NaN; intervals and
        counts are in `rows`.
        """
        rows = self.of_groups
        first = {name: found[0] for name, found in self.searches.items() if found}
        shown = np.array(
            [
                at in (NOWHERE, self.at, first.get(grouping))
                for at, grouping in zip(places(rows), rows["grouping"], strict=True)
            ]
        )
        rows = rows[shown & ~rows["group"].isin((ALL_GROUPS, EVERYBODY))]
        values = rows["value"].where(rows["status"] != "unresolved")
        table = values.set_axis(pd.MultiIndex.from_frame(rows[["grouping", "group", "figure"]]))
        sizes = rows["figure"][rows["kind"] == "size"].unique()
        return table.unstack(sort=False).astype(dict.fromkeys(sizes, "Int64"))

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows as JSON types; what is no finite number is None."""
        return tidy.records(self.rows.replace([np.inf, -np.inf], np.nan))

    def to_json(self, command: str, files: Sequence[str]) -> dict[str, Any]:
        """Return JSON types: a head of facts, findings and sentences, and flat rows."""
        return {
            "schema": SCHEMA,
            "command": command,
            **self.facts,
            "headline": {
                **self.at._asdict(),
                "searches": {
                    name: [one._asdict() for one in found] for name, found in self.searches.items()
                },
            },
            "findings": [{**vars(finding), "text": finding.text} for finding in self.findings],
            "warnings": list(self.warnings),
            "caveats": list(self.caveats),
            "files": sorted(files),
            "rows": self.records,
        }
