"""The card of a bundle: Markdown for people, with the facts that the Hugging Face Hub reads of it.

Both are written from the bundle's own note. Front matter: https://huggingface.co/docs/hub/model-cards;
``.eval_results``: https://huggingface.co/docs/hub/eval-results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from facerec.base.errors import printable
from facerec.export.tables import consumers_table, parity_table, rate_words, thresholds_table
from facerec.report import words
from facerec.report.table import escape_markdown

_LICENSES = r"mit|apache-2.0|bsd-[23]-clause|cc0-1.0|cc-by(-nc)?(-sa|-nd)?-4.0|[al]?gpl-3.0|mpl-2.0"
"""Names of licences at the Hub; any other is ``other`` there, with a name."""

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
    """Return the card of a bundle, given its ``facerec.json``, as Markdown with front matter."""
    return _render(
        "README.md.j2",
        note,
        front_license=front_license(note["license"]),
        parity_table=parity_table([(note["model"]["file"], row) for row in note["parity"]]),
        consumers_table=consumers_table(note["consumers"]),
        thresholds_table=thresholds_table,
    )


def evaluation_entries(note: Mapping[str, Any]) -> str:
    """Return what the Hub reads as ``.eval_results/*.yaml``; nothing if nothing was verified."""
    return _render("eval_results.yaml.j2", note)


def front_license(terms: str | None) -> dict[str, str]:
    """Return a licence as front matter names it: ``license``, and ``license_name`` of others."""
    name = re.sub(r"[^a-z0-9.]+", "-", (terms or "").lower()).strip("-.")
    if re.fullmatch(_LICENSES, name):
        return {"license": name}
    return {"license": "other", "license_name": name[:96] or "in-words"} if terms else {}


def _evaluation_words(row: Mapping[str, Any]) -> str:
    """Return what stands beside a TPR: intervals, counts, threshold and set."""
    return (
        f"TPR {rate_words(row, 'tpr')} at FPR {rate_words(row, 'fpr')}, 95 % intervals; threshold "
        f"{words.threshold(row['threshold'])}, {'with' if row['flip'] else 'without'} mirror "
        f"images; all pairs of {row['bench']}"
    )


def _render(template: str, note: Mapping[str, Any], **more: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("facerec.export"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = lambda value: escape_markdown(str(value))
    # JSON is YAML, but for characters that YAML takes in no form.
    environment.filters["yaml"] = lambda text: json.dumps(printable(str(text)), ensure_ascii=False)
    # A bench without mated pairs has no TPR.
    rows = [row for row in note["model"]["thresholds"] if row["tpr"] is not None]
    evaluations = [{**row, "notes": _evaluation_words(row)} for row in rows]
    return environment.get_template(template).render(note, evaluations=evaluations, **more)


def _words(value: Any) -> str:
    """Write a part of a recipe as the recipe file does: ``ArcFace(scale=64.0, margin=0.5)``."""
    if not isinstance(value, Mapping):
        return str(value)
    fields = (f"{name}={_words(inner)}" for name, inner in value.items() if name != "type")
    return f"{value.get('type', '')}({', '.join(fields)})"
