#!/usr/bin/env bash
# usearch 2.26.6 with metric "ip" and dtype "i8" gives every vector the same length before it stores
# it, so that what it calls inner product is the cosine, in units of its own: raw embeddings come back
# in another order than with dtype "f32", and their norms are gone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 usearch==2.26.6
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
import usearch
from usearch.index import Index

generator = np.random.default_rng(0)
raw = generator.normal(size=(200, 128)).astype(np.float32)
raw *= np.linspace(0.2, 3, 200, dtype=np.float32)[:, None]
query = generator.normal(size=128).astype(np.float32)
product = raw @ query
cosine = product / np.linalg.norm(raw, axis=1)


def ranks(numbers):
    return np.argsort(np.argsort(numbers))


def alike(one, other):
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


print("usearch", usearch.__version__)
found = {}
for dtype in ("f32", "i8"):
    index = Index(ndim=128, metric="ip", dtype=dtype)
    index.add(np.arange(200), raw)
    matches = index.search(query, 200, exact=True)
    score = np.empty(200)
    score[matches.keys] = 1 - matches.distances
    norms = np.linalg.norm(np.asarray(index.get(np.arange(200)), np.float32), axis=1)
    found[dtype] = alike(score, product), alike(score, cosine), norms.max() / norms.min()
    with_product, with_cosine, spread = found[dtype]
    print(f"{dtype}: rank correlation {with_product:.3f} with the product, {with_cosine:.3f} with the cosine;", end=" ")
    print(f"largest norm {spread:.2f} times the smallest")
right = found["f32"][0] > 0.9999 and found["f32"][2] > 10
wrong = found["i8"][1] > 0.99 and found["i8"][0] < 0.97 and found["i8"][2] < 1.1
sys.exit(0 if right and wrong else "the behaviour has changed")
PYTHON
