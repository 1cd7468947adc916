"""The plan's prediction of speed against steps that others have published.

The figures are those of insightface (``recognition/arcface_torch/README.md`` and
``docs/speed_benchmark.md``), for its own trainer: not one is facerec's, and none was measured here.
Two constants of `facerec.training.step_time.REFERENCE` were fitted to the four rows marked so; the
others test them. The tables disagree with themselves by about 12 %: eight V100 train 500,000
identities at rate 0.1 with 4,900 images/s in one and 618,000 with 4,322 in the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rows import Row

from facerec.backbones import Backbone
from facerec.records import Data
from facerec.training import Head, Recipe
from facerec.training.plan import plan_step
from facerec.training.step_time import CARDS, REFERENCE, Method, predict

NAMED = 15.0
"""Per cent; a larger error is named in the documentation."""


@dataclass(frozen=True)
class Published:
    """A published step."""

    card: str
    images_per_second: float
    identities: int
    rate: float
    """Share of the classes that take part."""
    backbone: str = "iresnet50"
    batch: int = 1024
    ranks: int = 8
    numbers: str = "fp16"
    """Of the backbone's products."""
    head: str = "fp32"
    fitted: bool = False

    @property
    def name(self) -> str:
        """Say what was trained."""
        head = "" if self.head == "fp32" else f", head {self.head}"
        return (
            f"{self.ranks} {self.card}, {self.backbone} {self.numbers}{head}, batch {self.batch:,},"
            f" {self.identities:,} identities, rate {self.rate:g}"
        )


_V100 = (
    (125_000, 4824, 5004),
    (500_000, 4013, 4900),
    (1_000_000, 3449, 4803),
    (1_400_000, 3043, 4738),
    (2_000_000, 2593, 4626),
    (4_000_000, 1748, 4208),
    (5_500_000, 1389, 3975),
)

_SAME, _WF42M = 618_000, 2_059_906

PUBLISHED = (
    *(
        Published("V100", speed, identities, 1.0, fitted=identities == 4_000_000)
        for identities, speed, _ in _V100
    ),
    *(
        Published("V100", speed, identities, 0.1, fitted=identities == 125_000)
        for identities, _, speed in _V100
    ),
    Published("V100", 3565, 8_000_000, 0.1),
    Published("V100", 2679, 16_000_000, 0.1),
    Published("V100", 1855, 29_000_000, 0.1),
    Published("A100", 3670, _SAME, 0.1, numbers="fp32"),
    Published("A100", 4760, _SAME, 0.1, numbers="tf32", head="tf32"),
    Published("A100", 5170, _SAME, 0.1),
    Published("A100", 5400, _SAME, 0.1, head="tf32", fitted=True),
    Published("A100", 7780, _SAME, 0.1, batch=2048, head="tf32"),
    Published("A100", 9400, _SAME, 0.1, batch=10_240, head="tf32", fitted=True),
    Published("A100", 3700, _SAME, 0.1, backbone="iresnet100", head="tf32"),
    Published("A100", 3480, 2_000_000, 0.1, backbone="iresnet100", head="tf32"),
    Published("RTX3090", 3790, _SAME, 0.1, head="tf32"),
    Published("V100", 4322, _SAME, 0.1),
    Published("A10", 3360, _SAME, 0.1, head="tf32"),
    # The cards of several hosts are not stated; V100 as in the first table is our guess.
    Published("V100", 5900, _WF42M, 0.2, batch=512 * 8, ranks=8),
    Published("V100", 11000, _WF42M, 0.2, batch=512 * 16, ranks=16),
    Published("V100", 17000, _WF42M, 0.2, batch=128 * 32, ranks=32),
    Published("V100", 5200, _WF42M, 0.2, backbone="iresnet100", batch=128 * 16, ranks=16),
    Published("V100", 9800, _WF42M, 0.2, backbone="iresnet100", batch=128 * 32, ranks=32),
)


def predicted(step: Published, method: Method = REFERENCE) -> float:
    """Return images/s as the plan predicts them."""
    recipe = Recipe(
        data=Data(Path()),
        backbone=Backbone(step.backbone),
        head=Head(sample_rate=step.rate),
        batch_size=step.batch,
        precision="fp16" if step.numbers == "fp16" else "fp32",
    )
    plan = plan_step(recipe, step.identities, step.ranks)
    card = CARDS[step.card]
    time = predict(plan, card, method, backbone=step.numbers, head=step.head)
    return time.images_per_second


def planned_speed() -> list[Row]:
    """Set predicted steps against published ones."""
    rows = []
    for step in PUBLISHED:
        found = predicted(step)
        error = 100 * (found / step.images_per_second - 1)
        rows.append(
            Row(
                step.name + (" (fitted)" if step.fitted else ""),
                error,
                "%",
                remark=f"{found:,.0f} planned, {step.images_per_second:,.0f} published images/s"
                + (", 15 % or more apart" if abs(error) >= NAMED else ""),
            )
        )
    return rows
