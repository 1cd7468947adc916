"""Compile the kernels of iResNet's batch norms for a GPU that is not there, in bfloat16.

Usage: ``python tests/training/batch_norms_compiled.py 90``
"""

from __future__ import annotations

import json
import sys

import torch
from helpers.triton_compiler import compiled

from facerec.backbones.iresnet import IResNetBlock
from facerec.backbones.triton_batch_norm import blocks_forward


def visit() -> None:
    """Go forward and backward through blocks of every number of channels."""
    for channels in (64, 128, 256, 512):
        blocks = [IResNetBlock(channels, channels, stride) for stride in (2, 1)]
        x = torch.zeros(1, channels, 8, 8, dtype=torch.bfloat16, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            blocks_forward(x, blocks).sum().backward()


if __name__ == "__main__":
    print(json.dumps(compiled(int(sys.argv[1]), visit)))
