#!/usr/bin/env bash
# A vector that was taken out of an index of usearch 2.26.6 by remove() is no longer found nor
# counted, but the file that is saved afterwards holds all its numbers, and so does that file loaded
# and saved again; the next vector added takes its place. voyager 2.2.3 still counts and holds it.
# Whoever has to delete a person's template has to build the index anew.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 usearch==2.26.6 voyager==2.2.3
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import voyager
from usearch.index import Index

generator = np.random.default_rng(0)
vectors = generator.normal(size=(50, 64)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
gone, new = vectors[7], generator.normal(size=64).astype(np.float32)


def holds(path):
    """Tell whether the bytes of a file hold the numbers of the vector, to a rounding."""
    content = Path(path).read_bytes()
    for start in range(4):
        numbers = np.frombuffer(content[start : start + (len(content) - start) // 4 * 4], np.float32)
        near = np.flatnonzero(np.abs(np.nan_to_num(numbers[:-63]) - gone[0]) < 1e-6)
        if any(np.allclose(numbers[i : i + 64], gone, atol=1e-6) for i in near):
            return True
    return False


index = Index(ndim=64, metric="cos", dtype="f32")
index.add(np.arange(50), vectors)
index.remove(7)
index.save("one.usearch")
again = Index.restore("one.usearch")
counted = len(again), 7 in again
again.save("two.usearch")
again.add(50, new)
again.save("three.usearch")
other = voyager.Index(voyager.Space.Cosine, 64)
other.add_items(vectors)
other.mark_deleted(7)
other.save("one.voyager")
found = [holds(name) for name in ("one.usearch", "two.usearch", "three.usearch", "one.voyager")]
print("usearch", version("usearch"), "voyager", version("voyager"))
print("usearch: vectors, and whether it has the removed one:", counted)
print("the file holds it: after removal, loaded and saved again, after another was added:", found[:3])
print("voyager: vectors", len(other), "and its file holds the deleted one:", found[3])
as_known = counted == (49, False) and found == [True, True, False, True] and len(other) == 50
sys.exit(0 if as_known else "the behaviour has changed")
PYTHON
