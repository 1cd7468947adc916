#!/usr/bin/env bash
# A row of zeros, which many pipelines keep in the place of a photo without a face, has no cosine,
# and vector stores answer that in four ways: in DuckDB 2.0.1 it is the best match of every probe
# and passes every threshold (its NaN is greater than any number), in usearch 2.26.6 two such rows
# have the cosine 1, sqlite-vec 0.1.9 returns it in the midst of the others with no distance and
# LanceDB 0.40.0 returns one row less than were asked for. None says a word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 duckdb==2.0.1 usearch==2.26.6 \
    sqlite-vec==0.1.9 apsw==3.54.1.0 lancedb==0.40.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version

import apsw
import duckdb
import lancedb
import numpy as np
import sqlite_vec
from usearch.index import Index

generator = np.random.default_rng(0)
people = generator.standard_normal((200, 64)).astype(np.float32)
people[7] = 0  # the photo in which no face was found
probe = people[3] + 0.5 * generator.standard_normal(64).astype(np.float32)
print(*(f"{name} {version(name)}" for name in ("duckdb", "usearch", "sqlite-vec", "lancedb")))

database = duckdb.connect()
database.execute("create table people (id int, vector float[64])")
database.executemany("insert into people values (?, ?)", [(i, row.tolist()) for i, row in enumerate(people)])
scored = "select id, array_cosine_similarity(vector, ?::float[64]) as score from people"
best = database.execute(f"{scored} order by score desc limit 2", [probe.tolist()]).fetchall()
passed = database.execute(f"select id from ({scored}) where score >= 0.9 order by id", [probe.tolist()]).fetchall()
print(f"DuckDB: the two best {best}; at 0.9 or more {[row for (row,) in passed]}")

index = Index(ndim=64, metric="cos")
index.add(np.arange(200), people)
found = index.search(np.zeros(64, np.float32), 2)
print(f"usearch: a second photo without a face: nearest {found.keys[0]} at a distance of {found.distances[0]}")

connection = apsw.Connection(":memory:")
connection.enable_load_extension(True)
connection.load_extension(sqlite_vec.loadable_path())
connection.execute("create virtual table people using vec0(vector float[64] distance_metric=cosine)")
connection.executemany("insert into people(rowid, vector) values (?, ?)", [(i, row.tobytes()) for i, row in enumerate(people)])
rows = connection.execute(
    "select rowid, distance from people where vector match ? and k = 200", [probe.tobytes()]
).fetchall()
place = [row for row, _ in rows].index(7)
print(f"sqlite-vec: place {place + 1} of {len(rows)}, distance {rows[place][1]}")

table = lancedb.connect("lance").create_table("people", [{"id": i, "vector": row} for i, row in enumerate(people)])
listed = table.search(probe).distance_type("cosine").limit(200).to_list()
print(f"LanceDB: {len(listed)} of 200 rows, row 7 {'is' if 7 in [row['id'] for row in listed] else 'is not'} among them")

as_known = (
    best[0][0] == 7
    and np.isnan(best[0][1])
    and best[1][0] == 3
    and [row for (row,) in passed] == [3, 7]
    and (found.keys[0], found.distances[0]) == (7, 0)
    and 0 < place < 199
    and rows[place][1] is None
    and len(listed) == 199
    and 7 not in [row["id"] for row in listed]
)
sys.exit(0 if as_known else "the behaviour has changed")
PYTHON
