#!/usr/bin/env bash
# Hugging Face datasets 5.2.0: to_parquet() of pictures that were read from files writes none of
# them, only the paths that they had on this machine, and no error. save_to_disk() and push_to_hub()
# write the pictures. On another machine such a table has all its rows and labels, and fails at the
# first picture.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet numpy==2.4.6 pillow==12.0.0 datasets==5.2.0
cd "$folder"
HF_HOME="$folder/home" HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
import shutil
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as parquet
from PIL import Image

datasets.disable_progress_bars()
photos = Path("photos").resolve()
for number in range(12):
    path = photos / f"person{number // 4}" / f"{number}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 255, (112, 112, 3), np.uint8)
    Image.fromarray(pixels).save(path)
stored = sum(path.stat().st_size for path in photos.rglob("*.jpg"))
rows = datasets.load_dataset("imagefolder", data_dir=str(photos), split="train")
rows.to_parquet("train.parquet")
rows.save_to_disk("disk")
within = [row["bytes"] is not None for row in parquet.read_table("train.parquet")["image"].to_pylist()]
first = parquet.read_table("train.parquet")["image"][0].as_py()["path"]
arrow = sum(path.stat().st_size for path in Path("disk").glob("*.arrow"))
print("datasets", datasets.__version__)
print(f"12 pictures of {stored:,} bytes")
print(f"to_parquet: {Path('train.parquet').stat().st_size:,} bytes, {sum(within)} pictures, a path: …{first[-18:]}")
print(f"save_to_disk: {arrow:,} bytes")
shutil.rmtree(photos)
again = datasets.Dataset.from_parquet("train.parquet", cache_dir="cache")
print(f"once the photos are gone: {len(again)} rows, labels {sorted(set(again['label']))}")
try:
    again[0]["image"].load()
    failed = False
except FileNotFoundError:
    failed = True
print("the first picture is not found" if failed else "the first picture is there")
right = not any(within) and Path(first).is_absolute() and arrow > stored and failed and len(again) == 12
sys.exit(0 if right else "the behaviour has changed")
PYTHON
