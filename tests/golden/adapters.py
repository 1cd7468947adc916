"""All that the frozen figures know of facerec: each function returns name → value, flat.

A name that ends in ``low`` or ``high`` is a limit of an interval.
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from golden.people import People

Figures = dict[str, Any]
"""Numbers, and lists of names; None for what cannot be resolved."""

ESTIMATED = "≈ "
"""Begins the names of what is no limit of an interval but rests on the same resampled subjects or
on a fitted tail."""


def command(name: str, *arguments: object) -> None:
    """Run ``facerec NAME ARGUMENTS`` in this process."""
    module = importlib.import_module(f"facerec.commands.{name.replace('-', '_')}")
    module.main([str(argument) for argument in arguments])


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_people(people: People, path: Path, attribute: str = "tone") -> None:
    """Write embeddings as ``PATH.npz``, and who is on the images as ``PATH.csv``."""
    np.savez(
        path.with_suffix(".npz"), vectors=people.vectors, ids=people.ids, subjects=people.subjects
    )
    header = ["image_id", "subject_id", attribute, "label_source"]
    rows = zip(people.ids, people.subjects, people.groups, strict=True)
    write_csv(path.with_suffix(".csv"), header, [[*row, "curator"] for row in rows])


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def limits(name: str, interval: Mapping[str, Any] | list[float] | None) -> Figures:
    """Return both ends of an interval, however it is written down."""
    if interval is None:
        return {f"{name} low": None, f"{name} high": None}
    low, high = interval if isinstance(interval, list) else (interval["low"], interval["high"])
    return {f"{name} low": low, f"{name} high": high}


# --- verification ----------------------------------------------------------------------------


def verification(path: Path) -> Figures:
    """Read what ``verify --json`` wrote of one bench."""
    (result,) = read_json(path)["results"]
    rows = {row["figure"]: row for row in result["rows"] if not row["target"]}
    step = rows["EER by the step rule"]["value"]
    figures: Figures = {"d'": rows["d′"]["value"], "EER step": step}
    names = {"AUC": "AUC", "EER": "EER on the ROC hull", "norm mean": "norm, insightface’s “XNorm”"}
    for name, figure in names.items():
        if row := rows.get(figure):
            figures |= {name: row["value"], **limits(name, [row["low"], row["high"]])}
    for name in ("accuracy", "insightface"):
        if found := result["folds"].get(name):
            figures |= {f"{name} {key}": found[key] for key in ("mean", "std", "correct")}
            row = rows["accuracy" if name == "accuracy" else "accuracy as insightface’s"]
            figures |= limits(name, [row["low"], row["high"]])
    for row in (row for row in result["rows"] if row["target"]):
        at = f"at FPR {row['target']}"
        if row["figure"] == "TPR@FPR":
            figures[f"TPR {at}"] = row["value"]
            if row["status"] == "ok":
                figures[f"true accepts {at}"] = row["numerator"]
            figures |= limits(f"TPR {at}", [row["low"], row["high"]])
        elif row["figure"] == "realised FPR":
            figures[f"false accepts {at}"] = row["numerator"]
        elif row["figure"] == "threshold":
            figures[f"threshold {at}"] = row["value"]
    if norm := rows.get("norm SD"):
        figures["norm std"] = norm["value"]
    costs = ("minDCF", "least Cllr", "partial AUC")
    return figures | {n: row["value"] for n, row in rows.items() if n.startswith(costs)}


def difference(path: Path) -> Figures:
    """Read the paired differences of ``verify --compare --json``."""
    figures: Figures = {}
    for row in read_json(path)["comparisons"][0]["rows"]:
        if row["kind"] == "change":
            name = "=".join(filter(None, (f"difference of {row['figure']}", row["target"])))
            figures |= {name: row["value"], **limits(name, [row["low"], row["high"]])}
    return figures


def all_pairs(path: Path) -> Figures:
    """Read what ``all-pairs --json`` wrote."""
    result = read_json(path)
    figures: Figures = {f"{side} pairs": result["pairs"][side] for side in ("mated", "non_mated")}
    for row in result["rows"]:
        kind, at = f"{row['figure']}@".split("@")[:2]
        target, ends = row["target"], [row["low"], row["high"]]
        if at == "threshold":
            name = f"{kind} at {target}"
            if row["group"] != "everybody":
                name += f", {row['group']}"
                figures[f"{name}, comparisons"] = row["denominator"]
            else:
                figures |= limits(name, ends)
            figures[f"{name}, errors"] = row["numerator"]
        elif kind == "TPR":
            figures[f"true accepts at FPR {target}"] = row["numerator"]
            figures |= limits(f"TPR at {at} {target}", ends)
        elif kind == "realised FPR":
            figures[f"false accepts at FPR {target}"] = row["numerator"]
        elif kind == "threshold":
            figures[f"threshold at FPR {target}"] = row["value"]
    return figures


# --- audit -----------------------------------------------------------------------------------

NORMS = {
    "mean norm of subjects": "subject_mean",
    "SD of norms between subjects": "between_sd",
    "SD of norms within subjects": "within_sd",
}
MEASURES = [
    f"{name} ({of} {measure})"
    for name, of in (("FPD", "FMR"), ("FND", "FNMR"))
    for measure in ("max/min", "max/geomean", "max−min", "Gini")
]


def audit(folder: Path) -> Figures:
    """Read what ``audit`` wrote into a folder, of one grouping."""
    rows = read_json(folder / "audit.json")["rows"]

    def ends(row: Mapping[str, Any]) -> list[float] | None:
        return None if row["low"] is None else [row["low"], row["high"]]

    ps = {(row["figure"], row["target"]): row["value"] for row in rows if row["kind"] == "p"}
    by_figure = {row["figure"]: row for row in rows if row["kind"] == "value"}
    eta2 = by_figure["η² of norms"]
    figures: Figures = {
        "η²": eta2["value"],
        "Welch's F": by_figure["Welch's F of norms"]["value"],
        "permuted p": ps["η² of norms", ""],
        "detectable η²": by_figure["detectable η² of norms"]["value"],
    }
    figures |= limits("η²", ends(eta2))
    for row in rows:
        figure, group, target = row["figure"], row["group"], row["target"]
        measure = figure in MEASURES
        if row["kind"] == "p" or row["model"] or (row["kind"] == "ratio" and not measure):
            continue
        value, counts = row["value"], (row["numerator"], row["denominator"])
        if figure == "Cliff's δ of norms":
            name = f"δ {group} − {row['other']}"
        elif figure in NORMS:
            name = f"norm {NORMS[figure]}, {group}"
        elif figure == "threshold":
            figures[f"threshold at {target}"] = value
            continue
        elif figure in ("FMR", "FNMR", "FNMR of pairs"):
            name = f"{figure} {group} at {target}"
            figures |= dict(zip((f"{name}, errors", f"{name}, of"), counts, strict=True))
            figures |= limits(name, ends(row))
            continue
        elif measure:
            of, measure = figure[5:-1].split(" ", 1)
            name = f"{measure} of {of} at {target}"
            figures[f"{ESTIMATED}p, {name}"] = ps.get((figure, target))
        elif figure == "FPIR threshold":
            figures[f"1:N threshold of {row['basis']} at FPIR {target}"] = value
            continue
        elif figure in ("FPIR", "FNIR", "rank-1 miss rate"):
            at = f"of {row['basis']} at {target}" if target else ""
            name = f"1:N {figure}, {group} {at}".strip()
            figures |= dict(zip((f"{name}, errors", f"{name}, of"), counts, strict=True))
            continue
        else:
            continue
        figures |= {name: value} | limits(name, ends(row))
    return figures


# --- galleries -------------------------------------------------------------------------------


def overlap(path: Path) -> Figures:
    """Read the list of ``overlap --csv``."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        "people in both": sorted(f"{row['subject_id']} = {row['other']}" for row in rows),
        "sum of cosines": sum(float(row["cosine"]) for row in rows),
    }


def proposals(path: Path) -> Figures:
    """Read the proposals of ``clean``."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = "image_id", "label", "proposed_label", "other_id"
    figures: Figures = {kind: [] for kind in ("wrong_label", "merge", "mixture", "duplicate")}
    for row in rows:
        figures[row["kind"]].append(" ".join(row[name] for name in columns if row[name]))
    return {kind: sorted(found) for kind, found in figures.items()}


def identified_fixed(path: Path) -> Figures:
    """Read the answers of ``identify --json`` at a threshold that was given."""
    found = read_json(path)
    answers = found["answers"]
    return {
        "people": found["gallery"]["people"],
        "identified": sum(answer["subject"] is not None for answer in answers),
        "scores": float(np.sum([answer["score"] for answer in answers])),
        "margins": float(np.sum([answer["margin"] for answer in answers])),
        "right": sum(each["candidates"][0]["subject"] in each["image_id"] for each in answers),
    }


def identified_estimated(path: Path) -> Figures:
    """Read the threshold that ``identify`` took for an FPIR."""
    found = read_json(path)
    return {f"{ESTIMATED}threshold": found["threshold"]} | limits("FPIR", found["fpir"])


# --- comparison ------------------------------------------------------------------------------


def retrieval(vectors: ArrayLike, labels: ArrayLike) -> Figures:
    """Return means over queries of what a search among all others finds."""
    from facerec.comparison.retrieval import retrieve

    found = retrieve(vectors, labels).means()
    return {name.replace("@", "_at_"): mean for name, mean in found.items()}


def clusters(vectors: ArrayLike, labels: ArrayLike) -> Figures:
    from facerec.comparison.retrieval import clustering

    return dict(clustering(vectors, labels, seed=0))


def over_seeds(arm: NDArray[np.float64], base: NDArray[np.float64]) -> Figures:
    """Return the mean paired difference over seeds and the p-value of the sign-flip test."""
    from facerec.comparison.significance import compare_paired

    found = compare_paired(arm, base)
    return {"difference": found.value, "p": found.p} | limits("difference", vars(found.interval))


def comparison_losses(embeddings: Tensor, labels: Tensor) -> Figures:
    """Return value and gradient of every loss that a comparison may hold, at its defaults."""
    from facerec.comparison.loss_table import TABLE
    from facerec.comparison.losses import LossModule, MarginHead, MetricLoss

    figures: Figures = {}
    own = [name for name, entry in TABLE.items() if not entry.sha256]
    for config in (*map(MetricLoss, own), MarginHead()):
        loss = LossModule(config, int(labels.max()) + 1, embeddings.shape[1], seed=0)
        figures |= value_and_gradient(config.kind, loss.double(), embeddings, labels)
    return figures


# --- heads -----------------------------------------------------------------------------------


def value_and_gradient(name: str, loss: Any, embeddings: Tensor, *rest: Tensor) -> Figures:
    """Return a loss, and its gradient as one number: its length and its part along a vector."""
    raw = embeddings.clone().requires_grad_()
    value = loss(raw, *rest)
    (gradient,) = torch.autograd.grad(value, raw)
    ramp = torch.linspace(-1, 1, gradient.numel(), dtype=torch.float64)
    return {
        name: value.item(),
        f"{name}, gradient": gradient.norm().item() + (gradient.flatten() @ ramp).item(),
    }


def margin_losses(embeddings: Tensor, centers: Tensor, labels: Tensor) -> Figures:
    """Return the margin softmax with every margin, at its defaults."""
    from facerec import heads
    from facerec.heads.margin_softmax import margin_softmax

    names = ("Softmax", "CosFace", "ArcFace", "CombinedMargin", "SphereFace", "SphereFace2017")
    figures: Figures = {}
    for name in (*names, "SphereFaceR", "AdaFace", "MagFace"):
        margin = getattr(heads, name)()

        def loss(raw: Tensor, margin: Any = margin) -> Tensor:
            return margin_softmax(raw, centers, labels, margin).loss

        figures |= value_and_gradient(name, loss, embeddings)
    for wrap in ("fold", "linear", "clamp", "none", "easy"):
        cosines = torch.linspace(-1, 1, 9, dtype=torch.float64)
        target = heads.ArcFace(wrap=wrap).target_cosine(cosines)  # type: ignore[arg-type]
        figures[f"ArcFace, {wrap}"] = target.square().sum().item()
    return figures


def norm_penalties(first: Tensor, second: Tensor) -> Figures:
    """Return every norm penalty of a second batch after a first, which a moving mean remembers."""
    from facerec.heads import SEC, FixedNorm, L2Norm, NormRegularizer, RingLoss

    figures: Figures = {}
    for name, config in {
        "SEC": SEC(weight=0.5),
        "SEC, moving mean": SEC(weight=0.5, rho=0.25),
        "SEC, absolute": SEC(weight=0.5, p=1),
        "SEC, scale-free": SEC(weight=0.5, scale_free=True),
        "L2": L2Norm(weight=0.5),
        "fixed norm": FixedNorm(weight=0.5, radius=20.0),
        "ring loss": RingLoss(weight=0.5),
    }.items():
        penalty = NormRegularizer(config, scale=32.0).double()
        penalty(first)
        figures |= value_and_gradient(name, lambda raw, at=penalty: at(raw).loss, second)
    return figures


# --- runs ------------------------------------------------------------------------------------


def train(data: Path, runs: Path, name: str) -> None:
    """Train a narrow network on a folder of images: 8 steps."""
    small = "--backbone.width 0.125 --backbone.embedding-size 16 --batch-size 12 --epochs 2"
    how = "--device cpu --precision fp32 --workers 0 --log-every 1"
    given = ["--data.path", data, "--runs", runs, "--name", name]
    command("train", "demo", *given, *small.split(), *how.split())


def losses(run: Path) -> list[float]:
    """Return the loss of every step of a run."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [line["loss"] for line in map(json.loads, lines) if "loss" in line]


def embed(model: Path, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the raw embeddings of aligned images by a run."""
    import facerec

    return facerec.load(model).embed(images)
