"""The model card of a bundle: Markdown for people, written from the bundle's own note."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from facerec.export.tables import consumers_table, parity_table, thresholds_table
from facerec.report.table import escape_markdown

CARD_FILE = "model_card.md"

_WITHDRAWN = (
    "derives from MS-Celeb-1M, which was withdrawn in 2019; collected by web search without "
    "consent; for non-commercial research only"
)
_RETIRED = "no longer distributed by its authors as far as known; look-up of its terms needed"

DATA_TERMS = {
    "ms1m": _WITHDRAWN,
    "emore": _WITHDRAWN,
    "celeb1m": _WITHDRAWN,
    "vggface": _RETIRED,
    "megaface": _RETIRED,
    "casia": "collected from the web; consent of the people not documented; research use",
    "glint": "collected from the web; consent of the people not documented; licence unknown",
    "webface": "collected from the web; consent of the people not documented; licence unknown",
    "cfp": "photographs of celebrities; consent not documented; distributed for research",
    "lfw": "news photographs; consent not documented; research use",
    "agedb": "photographs of celebrities; consent not documented; distributed for research",
}
"""What is known of training sets, by a part of the folder's name in small letters; the project's
BROADER_IMPACT.md has the sources."""


def training_facts(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card says about the training, from the recipe (perhaps empty) as JSON types.

    Returns:
        ``data``, the name of the training set's folder; ``terms``, what is known of its terms, see
        `DATA_TERMS`; ``settings``.
    """
    path = recipe.get("data", {}).get("path")
    name = None if path is None else Path(path).name
    known = (terms for part, terms in DATA_TERMS.items() if part in (name or "").lower())
    settings = {
        name: _words(recipe[name])
        for name in ("backbone", "margin", "regularizer", "epochs", "batch_size", "seed")
        if recipe.get(name) is not None
    }
    return {"data": name, "terms": next(known, None), "settings": settings}


def bundle_card(note: Mapping[str, Any]) -> str:
    """Return the card of a bundle, given its ``facerec.json``, as Markdown."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("facerec.export"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = lambda value: escape_markdown(str(value))
    model = note["model"]
    return environment.get_template("model_card.md.j2").render(
        note,
        parity_table=parity_table([(model["file"], row) for row in note["parity"]]),
        consumers_table=consumers_table(note["consumers"]),
        thresholds_table=thresholds_table,
    )


def _words(value: Any) -> str:
    """Write a part of a recipe as the recipe file does: ``ArcFace(scale=64.0, margin=0.5)``."""
    if not isinstance(value, Mapping):
        return str(value)
    fields = (f"{name}={_words(inner)}" for name, inner in value.items() if name != "type")
    return f"{value.get('type', '')}({', '.join(fields)})"
