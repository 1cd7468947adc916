"""What an audit is asked, by the flags of its commands or in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from facerec.base.defaults import AUDIT_FPIR_TARGETS, FMR_TARGETS, PERMUTATIONS, REPLICATES
from facerec.base.limits import MOST, Flags, Limits, Seed


@dataclass(frozen=True)
class AuditSettings(Flags):
    """How exactly."""

    fmr: tuple[str, ...] = FMR_TARGETS
    """False match rates, as 1e-3,1e-4, at which thresholds are set; never rounded."""
    # The fewest with which a test can reject at 5 %, and with an order statistic in both tails.
    permutations: Annotated[int, Limits(19, MOST)] = PERMUTATIONS
    """Permutations in the test on norms."""
    replicates: Annotated[int, Limits(40, MOST)] = REPLICATES
    """Bootstrap samples of the subjects, for intervals."""
    seed: Seed = 0
    """Seed of permutations and bootstrap samples."""
    intersect: bool = False
    """Also take the combinations of all groups as groups."""
    allow_inferred_labels: bool = False
    """Accept groups of which label_source does not say how they were recorded (self-reported,
    annotated by people, document, study); every page then says so."""

    def combinations(self, groups: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the attributes, alone and intersecting; one intersects with none but itself."""
        several = self.intersect and len(groups) > 1
        return [(group,) for group in groups] + [tuple(groups)] * several


@dataclass(frozen=True)
class SearchPlan(Flags):
    """Identification (1:N) by group."""

    one_to_many: bool = False
    """Also audit identification: half of the subjects are enrolled and all are searched for, then
    the other half; FPIR, FNIR and rank 1 by group."""
    fpir: tuple[str, ...] = AUDIT_FPIR_TARGETS
    """With --one-to-many: target FPIRs of the thresholds, as 1e-2,2e-3; never rounded."""
    reference: str | None = None
    """With --one-to-many: group on which thresholds are set too, and with which the others are
    compared; by default the one with most subjects."""


SETTINGS = AuditSettings()
