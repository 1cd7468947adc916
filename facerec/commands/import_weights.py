"""``facerec import-weights``: a published backbone's weights or .onnx → .safetensors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from facerec.base.errors import ModelError
from facerec.base.files import sha256
from facerec.commands.cli import run_command
from facerec.commands.embedder import preprocessing_words


def import_weights(
    weights: tyro.conf.Positional[Path],
    backbone: str,
    out: Path | None = None,
    embedding_size: int = 512,
    width: float = 1.0,
    embedding_bn: Literal["frozen_gamma", "affine", "none"] | None = None,
    channels: Literal["rgb", "bgr"] | None = None,
    mean: float | None = None,
    std: float | None = None,
    force: bool = False,
) -> None:
    """Turn a published backbone into a .safetensors file that every command takes and trains on.

    Of a .pth, .pt, .ckpt or .safetensors, names, shapes and values are checked against the network,
    whatever prefixes and mappings are around them; a head beside it is left out, and nothing in it
    is run. Of an .onnx, layers are matched by shape and order, and the embeddings are compared.
    Batch norms that its exporter folded into other layers come back as the identity: train on with
    --finetune.batch-norm frozen.

    Args:
        weights: a .pth, .pt, .ckpt or .safetensors with a backbone's state_dict(), such as
            arcface_torch's model.pt or checkpoint_gpu_0.pt or an IR network of AdaFace, CVLface,
            TFace or face.evoLVe, or an .onnx.
        backbone: network: iresnet18, 34, 50, 100, 200 (or r18 to r200), mbf, mbf_large
            (InsightFace's), w600k_mbf (of its pack buffalo_s, an .onnx), mobilefacenet (the paper's
            sizes, ReLU6), vit_t, vit_s, vit_b or vit_l (of a .pth alone).
        out: the file to write; by default the same name with .safetensors.
        embedding_size: dimensions of the embedding.
        width: factor on the number of channels of all layers.
        embedding_bn: the last batch norm: frozen_gamma, affine or none; by default as InsightFace
            has it, frozen_gamma in iresnet and affine in the others.
        channels: channel order that the weights were trained on; by default what facerec wrote
            into an .onnx, else bgr for a file named as AdaFace's are or with its head, else rgb.
        mean: number that was subtracted from pixel values (0 to 255); by default what facerec wrote
            into an .onnx, else 127.5.
        std: number that the result was divided by; by default what facerec wrote into an .onnx,
            else 127.5.
        force: replace a file that is there.
    """
    from facerec.backbones import Backbone, create_backbone
    from facerec.backbones.registry import insightface_bn
    from facerec.embedding.onnx_file import read_onnx
    from facerec.embedding.onnx_preprocessing import guess_by_name, guess_preprocessing
    from facerec.embedding.onnx_weights import load_onnx_weights
    from facerec.embedding.state_dict import own_note
    from facerec.embedding.torch_model import load_state_dict_file, save_model

    out = weights.with_suffix(".safetensors") if out is None else out
    if out.suffix != ".safetensors":
        raise ModelError(f"{out}: the weights are written as .safetensors; choose such a name")
    if out.exists() and (not force or out.samefile(weights)):
        raise ModelError(f"{out} is there already; choose another --out, or replace it by --force")
    config = Backbone(backbone, embedding_size, width)
    config = replace(config, embedding_bn=embedding_bn or insightface_bn(config.name))
    left_out: tuple[str, ...] = ()
    module, guess = create_backbone(config), guess_by_name(weights)
    if weights.suffix == ".onnx":
        file = read_onnx(weights)
        load_onnx_weights(module, file)
        if file.note is not None:
            guess = replace(guess_preprocessing(file), fixed=())  # flags decide here
    else:
        if own_note(weights) is not None:
            raise ModelError(
                f"{weights}: facerec wrote it, with its architecture and preprocessing, which "
                "would be lost; give it to the other commands as it is"
            )
        left_out = load_state_dict_file(module, weights)
        guess = guess_by_name(weights, left_out)
    guess = guess.asked(weights, {"channels": channels, "mean": mean, "std": std})
    imported = {"file": weights.name, "sha256": sha256(weights)}
    save_model(out, module, config, guess.preprocessing, {}, {"imported": imported})
    parameters = sum(parameter.numel() for parameter in module.parameters())
    print(f"{out}: {backbone} with {parameters:,} parameters, from {weights.name}")
    if left_out:
        print(f"left out, as no part of the network: {len(left_out)} tensors, as {min(left_out)}")
    if guess.assumed:
        print(f"pixels {preprocessing_words(guess.preprocessing)}: {'; '.join(guess.evidence)}")


main = partial(run_command, import_weights)
