#!/usr/bin/env bash
# Hugging Face datasets 5.2.0 compresses a JPEG again, at Pillow's quality of 75 and with halved
# colours, whenever a function that is mapped over a table looks at the picture, though it returns
# nothing but another column; so does a table made from a generator that yields rows of another. A
# function that does not look keeps the bytes. Nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 pillow==12.0.0 datasets==5.2.0
cd "$folder"
HF_HOME="$folder" HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import io
import sys

import datasets
import numpy as np
from PIL import Image

datasets.disable_progress_bars()
down, across = np.mgrid[:112, :112]
waves = np.sin(across / 7), np.cos(down / 5), np.sin((across + down) / 3)
noise = np.random.default_rng(0).normal(0, 8, (112, 112, 3))
picture = Image.fromarray((127 + 90 * np.stack(waves, -1) + noise).clip(0, 255).astype(np.uint8))
file = io.BytesIO()
picture.save(file, "JPEG", quality=95, subsampling=0)
jpeg = file.getvalue()
features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
table = datasets.Dataset.from_dict({"image": [{"bytes": jpeg, "path": None}], "label": [0]}, features=features)


def rows():
    yield from table


made = {
    "as it was given": table,
    "map that reads the label": table.map(lambda row: {"old": row["label"]}),
    "map that reads the width": table.map(lambda row: {"width": row["image"].width}),
    "from_generator": datasets.Dataset.from_generator(rows, features=features),
}
print("datasets", datasets.__version__)
kept = []
for name, other in made.items():
    stored = other.cast_column("image", datasets.Image(decode=False))[0]["image"]["bytes"]
    before, after = (np.asarray(Image.open(io.BytesIO(b)), int) for b in (jpeg, stored))
    kept.append(stored == jpeg)
    print(f"{name}: {len(stored):,} bytes, the mean pixel is {np.abs(after - before).mean():.1f} levels off")
sys.exit(0 if kept == [True, True, False, False] else "the behaviour has changed")
PYTHON
