#!/usr/bin/env bash
# Graph indexes lose what is in them when many of their vectors are equal, as the embeddings of one
# placeholder picture are: of 2,000 other vectors, each of which is in the index and is asked for
# exactly, hnswlib 0.8.0, FAISS 1.15.1 and usearch 2.26.6 with their usual settings find all, and
# miss one in ten and more once 2,000 copies of one vector were added before them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 hnswlib==0.8.0 faiss-cpu==1.15.1 usearch==2.26.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import faiss
import hnswlib
import numpy as np
import usearch
from usearch.index import Index

faiss.omp_set_num_threads(1)
generator = np.random.default_rng(0)
people = generator.normal(size=(2000, 128)).astype(np.float32)
people /= np.linalg.norm(people, axis=1, keepdims=True)
copy = generator.normal(size=128).astype(np.float32)
copies = np.tile(copy / np.linalg.norm(copy), (2000, 1)).astype(np.float32)


def by_hnswlib(vectors):
    index = hnswlib.Index("cosine", 128)
    index.init_index(len(vectors))
    index.set_num_threads(1)
    index.add_items(vectors)
    index.set_ef(64)
    return index.knn_query(people, 1)[0][:, 0]


def by_faiss(vectors):
    index = faiss.IndexHNSWFlat(128, 16, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = 64
    index.add(vectors)
    return index.search(people, 1)[1][:, 0]


def by_usearch(vectors):
    index = Index(ndim=128, metric="cos", dtype="f32")
    index.add(np.arange(len(vectors)), vectors, threads=1)
    return np.ravel(index.search(people, 1, threads=1).keys)


print("hnswlib 0.8.0, FAISS", faiss.__version__, "usearch", usearch.__version__)
expected = True
for search in (by_hnswlib, by_faiss, by_usearch):
    alone = np.mean(search(people) == np.arange(2000))
    beside = np.mean(search(np.vstack([copies, people])) == np.arange(2000, 4000))
    print(f"{search.__name__}: {alone:.1%} of the vectors found by themselves, {beside:.1%} beside the copies")
    expected &= alone > 0.99 and beside < 0.92
sys.exit(0 if expected else "the behaviour has changed")
PYTHON
