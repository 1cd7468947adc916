"""A configuration file of arcface_torch, read without being run, as a recipe of facerec's.

Source of the fields, their defaults and what they do there: deepinsight/insightface,
recognition/arcface_torch: configs/base.py, train_v2.py, losses.py and backbones/__init__.py of July
2026. The recipe that this starts from has base.py's defaults, and what train_v2.py fixes.
"""

from __future__ import annotations

import ast
import os
import re
from operator import add, floordiv, mul, sub, truediv
from pathlib import Path
from typing import Any

from facerec.backbones import Backbone, is_backbone
from facerec.backbones.registry import insightface_bn
from facerec.base.errors import RecipeError
from facerec.base.files import NOTE, read_file
from facerec.base.limits import shown
from facerec.base.recipe import from_dict, to_dict
from facerec.commands.cli import Console
from facerec.heads import ArcFace, CombinedMargin, CosFace
from facerec.report import words
from facerec.report.table import Table
from facerec.training import Recipe

_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv, ast.FloorDiv: floordiv}
_DEFAULTS = {"fp16": False, "batch_size": 128, "optimizer": "sgd", "gradient_acc": 1, "seed": 2048}
"""Of their base.py, where the recipe has others or a rule needs them."""
_REQUIRED = ("rec", "num_epoch", "warmup_epoch", "val_targets")
_SAME = {
    "embedding_size": "backbone.embedding_size",
    "sample_rate": "head.sample_rate",
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "num_epoch": "epochs",
    "warmup_epoch": "schedule.warmup_epochs",
    "val_targets": "validation.benches",
    "frequent": "log_every",
    "verbose": "validation.every_steps",
    "seed": "seed",
    "num_workers": "workers",
}
_NONE = {
    "num_classes": "counted in the data",
    "num_image": "counted in the data",
    "resume": "--resume continues runs of facerec; --init.path OUTPUT/model.pt starts from theirs",
    "interclass_filtering_threshold": "every class counts; facerec clean finds people twice",
    "dali": "--workers processes decode the images",
    "dali_aug": "--data.augmentation has changes of its own",
    "momentum": "SGD has 0.9, in train_v2.py whatever stands here; AdamW has none",
    "save_all_states": "every checkpoint holds all of the state",
}
"""What stands for a field that has no counterpart."""


def read_config(path: Path, console: Console) -> tuple[str, Recipe]:
    """Return the name of the run and its recipe, and print what became of each field.

    A base.py beside the file is read first, as it is there. Their batch is that of one process; the
    recipe's is for as many as torchrun has started.

    Raises:
        RecipeError: a line is more than ``config.FIELD = value``, or its value means nothing here.
    """
    # Imported here, as it is a recipe like any other.
    from facerec.recipes.insightface.ms1mv3_r50 import recipe

    path = path.with_suffix(".py")  # which may be left out, as there
    known = {f"config.{name}": (value, "base.py") for name, value in _DEFAULTS.items()}
    for file in (path.with_name("base.py"), path):
        if file == path or file.is_file():
            known |= _settings(file)
    config = {n.removeprefix("config."): v for n, (v, _) in known.items() if n[:7] == "config."}
    if missing := [name for name in _REQUIRED if name not in config]:
        raise RecipeError(f"{path}: sets no config.{missing[0]}, which training needs; add it")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    # The first decide which fields there are, the last changes what others have set.
    order = {"network": 0, "optimizer": 0, "gradient_acc": 2}
    ours, none = [], []
    for name in sorted(config, key=lambda name: order.get(name, 1)):
        value, tree = config[name], to_dict(recipe)
        text = f"{name} = {'…' if 'key' in name else shown(value)}"
        try:
            fields = _translated(name, value, config, ranks)
            for field, new in fields.items():
                section, _, last = field.rpartition(".")
                (tree[section] if section else tree)[last] = new
            recipe = from_dict(Recipe, tree, "facerec")
        except (RecipeError, TypeError, ValueError, ArithmeticError) as error:
            raise RecipeError(f"{known['config.' + name][1]}: {error}; change it there") from error
        if fields:
            ours.append((text, ", ".join(f"{field} {new}" for field, new in fields.items())))
        elif name != "output":
            why = "--logger wandb" if "wandb" in name else "not known to facerec"
            none.append((text, _NONE.get(name, why) if value or name not in _NONE else "off"))
    run = Path(str(config.get("output") or path.stem)).name
    caption = f"{path} on {words.counted(ranks, 'process', 'processes')}, by default as runs/{run}"
    table = Table(caption, ("arcface_torch", "facerec"), ours, words=["facerec"])
    others = Table("Without a counterpart", ("field", "instead"), none, words=["instead"])
    console.print(table.terminal(), others.terminal())
    return run, recipe


def _settings(path: Path) -> dict[str, tuple[Any, str]]:
    """Return what the lines ``NAME = value`` of a file say, and where, by name.

    Raises:
        RecipeError: the file cannot be read, or a line is code of another kind.
    """
    known: dict[str, tuple[Any, str]] = {}
    where = str(path)
    try:
        lines = re.split(r"\r\n?|\n", read_file(path, NOTE).decode("utf-8"))
        for statement in ast.parse("\n".join(lines)).body:
            where = f"{path}: line {statement.lineno}: {lines[statement.lineno - 1].strip()}"
            match statement:
                case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()):
                    pass
                case ast.Assign([ast.Name("config")], ast.Call(args=[], keywords=[])):
                    pass
                case ast.Assign([(ast.Name() | ast.Attribute()) as target], value):
                    known[ast.unparse(target)] = _value(value, known), where
                case _:
                    raise ValueError("no such line")
    except Exception as error:  # of the file, the parser, and whatever `_value` meets
        plain = isinstance(error, (OSError, SyntaxError, UnicodeError, OverflowError))
        why = error if plain else "is code, and none is run"
        raise RecipeError(f"{where}: {why}; give lines config.FIELD = VALUE") from error
    return known


def _value(node: ast.expr, known: dict[str, tuple[Any, str]]) -> Any:
    """Return a literal, arithmetic with numbers, or what a name was set to above.

    Numbers stay small, as products of products would soon take minutes.

    Raises:
        Exception: of any kind that such code has, or it is other code.
    """
    match node:
        case ast.BinOp(left, op, right):  # + 0 is for numbers alone
            value = _OPERATORS[type(op)](_value(left, known) + 0, _value(right, known) + 0)
        case ast.Name() | ast.Attribute():
            return known[ast.unparse(node)][0]
        case _:
            value = ast.literal_eval(node)
    if isinstance(value, int) and abs(value) > 2**63:
        raise OverflowError("a whole number beyond 2⁶³")
    return value


def _translated(name: str, value: Any, config: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Return the recipe's fields that one of theirs stands for, if any.

    Raises:
        RecipeError: a network that facerec does not have.
    """
    match name:
        case "margin_list":
            m1, m2, m3 = value
            if (m1, m3) == (1, 0):
                # Beyond π the cosine rises again there, and the gradient is as if ψ were cos θ.
                return {"margin": ArcFace(64.0, m2, wrap="none", gradient="straight_through")}
            own = CosFace(64.0, m3) if (m1, m2) == (1, 0) else CombinedMargin(64.0, m1, m2, m3)
            return {"margin": own}
        case "network":
            return _backbone(value)
        case "optimizer":
            kind = {"sgd": "SGD", "adamw": "AdamW"}.get(value, value)
            return {"optimizer": {"type": kind, "decay": "all"}}
        case "batch_size":
            return {"batch_size": int(value) * ranks * config["gradient_acc"]}
        case "gradient_acc":
            fields = {"accumulation": value, "clip_norm": 5.0 / value}
            # Gradients are summed there and averaged here.
            if value != 1 and config["optimizer"] == "sgd":
                fields["optimizer.lr"] = config.get("lr", 0.1) * value
                fields["optimizer.weight_decay"] = config.get("weight_decay", 5e-4) / value
            return fields
        case "fp16":
            return {"precision": "fp16" if value else "fp32"}
        case "rec":
            return {"data.path": value, "validation.data": value}
    return {_SAME[name]: value} if name in _SAME else {}


def _backbone(name: str) -> dict[str, Any]:
    """Return the fields of the backbone that a name stands for."""
    vit = re.fullmatch(r"(vit_[tsbl])(_dp005_mask_?0(05)?)?", name)
    own = Backbone(vit[1] if vit else name).name
    if not is_backbone(own):
        raise RecipeError("facerec has no such network")
    fields: dict[str, Any] = {"backbone.name": own, "backbone.embedding_bn": insightface_bn(own)}
    if vit:  # a mask of 0.05 is not handed on there, so that the default of 0.1 holds
        drop, hidden = 0.05 if vit[2] else 0.1, 0.0 if vit[2] and not vit[3] else 0.1
        fields |= {"backbone.drop_path": drop, "backbone.mask_ratio": hidden}
        fields |= {"recompute": own in ("vit_b", "vit_l")}
    return fields
